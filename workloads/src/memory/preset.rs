//! Techniques by name. Each technique is a small TOML file in `presets/` with its formula and source. Users can also
//! give the path of a file in the same format.

use super::amount::{PresetAmount, TrainingQuantities};
use super::error::TechniqueError;
use super::policy::{
    Adapter, BlockSlices, OffloadPlace, OffloadTarget, ReadOnlyData, Representation, SliceAxis, TechniqueRule,
    TensorClass, TrainingEffect,
};
use crate::footprint::Optimizer;
use include_dir::{Dir, include_dir};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Aliases of built-in techniques: (alias, name).
const ALIASES: [(&str, &str); 1] = [("tralgorithm", "proximal-anchor")];

static PRESETS: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/src/memory/presets");

/// A parameter of a technique that the user may set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PresetParameter {
    /// The value if the user gives none.
    pub default: PresetAmount,
    /// Smallest allowed value.
    pub min: f64,
    /// Largest allowed value.
    pub max: PresetAmount,
    /// True if the value must be a whole number.
    #[serde(default)]
    pub whole: bool,
    /// Meaning of the value, with its unit.
    pub meaning: String,
}

/// A technique as its file states it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preset {
    /// The file's name, for error messages.
    #[serde(skip)]
    pub file: String,
    /// The technique's name. A built-in technique's file is `NAME.toml`.
    pub name: String,
    /// A description of one line for lists.
    pub description: String,
    /// The formula of the technique's memory, in the symbols of its paper.
    pub formula: String,
    /// The source: paper, section, table.
    pub source: String,
    /// Its effect on the result of training.
    pub gate: TrainingEffect,
    /// True if the addresses of all tensors are planned ahead, so that no memory is lost to fragmentation.
    #[serde(default)]
    pub planned_addresses: bool,
    /// True if the planner chooses the parameter `fraction` when the user does not give it.
    #[serde(default)]
    pub adaptive: bool,
    /// Name of a parameter. If it is not 0, a second backward pass computes the norm of all gradients.
    #[serde(default)]
    pub second_backward: Option<String>,
    /// Name of a parameter. If it is not 0, the host's part of the update overlaps with its copies and the device's
    /// part.
    #[serde(default)]
    pub overlapped_update: Option<String>,
    /// Name of the parameter with the number of steps between two decompositions of a gradient; `None` without any.
    #[serde(default)]
    pub decomposed_every: Option<String>,
    /// The reason why a step can have only one micro-batch; `None` if it can have more.
    #[serde(default)]
    pub one_micro_batch: Option<SingleMicroBatch>,
    /// A note for runs with several data-parallel replicas, which the authors' code does not support; `None` if it
    /// does.
    #[serde(default)]
    pub one_replica: Option<SingleMicroBatch>,
    /// The optimizers that the technique supports; `None` means all.
    #[serde(default)]
    pub optimizers: Option<AllowedOptimizers>,
    /// The reason why no training plan can use the technique; `None` for techniques of training.
    #[serde(default)]
    pub inference_only: Option<String>,
    /// The technique's effect on a serving deployment; `None` if it has none.
    #[serde(default)]
    pub serving: Option<ServingEffect>,
    /// Techniques that cannot be combined with this one, each with the reason.
    #[serde(default)]
    pub excludes: BTreeMap<String, String>,
    /// Parameters that the user may set.
    #[serde(default)]
    pub parameters: BTreeMap<String, PresetParameter>,
    /// Its rules.
    #[serde(default, rename = "rule")]
    pub rules: Vec<TechniqueRule<PresetAmount, PresetAmount>>,
}

/// A technique's effect on a serving deployment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServingEffect {
    /// The chunks of a prompt pass the layers separately. They are merged in pairs, and half of their tokens remain.
    MergeChunks,
    /// Decoding also attends to the keys and values of stored texts.
    ReadMemories,
}

/// A reason against gradient accumulation or against several replicas.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SingleMicroBatch {
    /// The parameter that activates the reason if it is not 0; the reason always holds if absent.
    #[serde(default)]
    pub when: Option<PresetAmount>,
    /// The reason.
    pub why: String,
}

/// Optimizers that a technique supports.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllowedOptimizers {
    /// The supported optimizers; the first one is suggested as the replacement.
    pub with: Vec<Optimizer>,
    /// The reason against all others.
    pub why: String,
}

impl SingleMicroBatch {
    /// Returns whether the reason holds for these parameter values.
    pub(crate) fn applies_with(&self, values: &BTreeMap<String, f64>) -> bool {
        let named = |name: &str| values.get(name).copied();
        self.when.as_ref().is_none_or(|when| when.evaluate_with(&named).is_ok_and(|value| value != 0.0))
    }
}

impl Preset {
    /// Returns the names of the built-in presets, sorted.
    #[must_use]
    pub fn built_in_names() -> Vec<String> {
        let toml = |f: &&include_dir::File<'_>| f.path().extension().is_some_and(|e| e == "toml");
        let stem = |f: &include_dir::File<'_>| f.path().file_stem().map(|s| s.to_string_lossy().into_owned());
        let mut names: Vec<String> = PRESETS.files().filter(toml).filter_map(stem).collect();
        names.sort();
        names
    }

    /// Loads a built-in preset by name or alias, or a file of the same format by a path that ends in `.toml`.
    ///
    /// # Errors
    /// An unknown name, an unreadable file, invalid keys or values.
    pub fn load(name_or_path: &str) -> Result<Self, TechniqueError> {
        if name_or_path.ends_with(".toml") {
            let text = sim::files::text::read_text(name_or_path.as_ref())
                .map_err(|e| TechniqueError::Unreadable { file: name_or_path.to_owned(), why: e.to_string() })?;
            return Self::from_toml_str(name_or_path, &text);
        }
        let alias = ALIASES.iter().find(|(other, _)| sim::names::are_same_name(other, name_or_path));
        let name_or_path = alias.map_or(name_or_path, |(_, name)| *name);
        let own = Self::built_in_names()
            .into_iter()
            .find(|name| sim::names::are_same_name(name, name_or_path))
            .map(|name| format!("{name}.toml"));
        match own.and_then(|file| Some((PRESETS.get_file(&file)?.contents_utf8()?, file))) {
            Some((text, file)) => Self::parse_preset(&file, text),
            None => {
                let known = Self::built_in_names().join(", ");
                Err(TechniqueError::Unknown {
                    hint: sim::names::hint(name_or_path, &known, "built in are"),
                    name: name_or_path.to_owned(),
                })
            }
        }
    }

    /// Parses a user's preset. `file` names the preset in errors.
    ///
    /// # Errors
    /// Malformed TOML, missing or unknown keys, invalid rules, the name of a built-in preset.
    pub fn from_toml_str(file: &str, text: &str) -> Result<Self, TechniqueError> {
        let preset = Self::parse_preset(file, text)?;
        if Self::built_in_names().iter().any(|own| sim::names::are_same_name(own, &preset.name)) {
            let why = format!("name = {}: a built-in technique has this name; choose another", preset.name);
            return Err(TechniqueError::Malformed { file: file.to_owned(), why });
        }
        Ok(preset)
    }

    fn parse_preset(file: &str, text: &str) -> Result<Self, TechniqueError> {
        let why = |e: toml::de::Error| TechniqueError::Malformed {
            file: file.to_owned(),
            why: e.to_string().trim_end().to_owned(),
        };
        let preset = Self { file: file.to_owned(), ..toml::from_str(text).map_err(why)? };
        preset.check_rules()?;
        Ok(preset)
    }

    /// Returns whether a recomputation and offload policy can replace the technique: the technique only chooses the
    /// saved activations to keep, and their places.
    #[must_use]
    pub fn only_decides_places(&self) -> bool {
        self.decides_places() && !self.planned_addresses && self.rules.iter().all(|rule| rule.slice.is_none())
    }

    /// Returns whether the technique chooses the saved activations to keep, and their places. It may also plan buffers
    /// and addresses, but must do nothing else.
    #[must_use]
    pub fn decides_places(&self) -> bool {
        let places = |rule: &TechniqueRule<PresetAmount, PresetAmount>| {
            // A policy can return only whole layers, not single tensors.
            let by_tensor = rule.slice.as_ref().is_some_and(|slice| slice.along == SliceAxis::Tensor);
            let further = rule.read_by.is_some()
                || rule.representation.is_some()
                || rule.adapter.is_some()
                || rule.copy_bytes.is_some()
                || rule.stock.is_some()
                || by_tensor;
            rule.class == TensorClass::SavedActivations && !rule.frozen && !further
        };
        let further = self.second_backward.is_some() || self.decomposed_every.is_some();
        self.gate == TrainingEffect::Exact && !further && !self.rules.is_empty() && self.rules.iter().all(places)
    }

    /// Returns whether the technique only stores data that training reads.
    #[must_use]
    pub fn only_stores_data(&self) -> bool {
        !self.rules.is_empty() && self.rules.iter().all(|rule| rule.stock.is_some())
    }

    /// Returns whether the technique needs another one that freezes the weights: it quantises them and does not freeze
    /// them itself.
    #[must_use]
    pub fn needs_frozen_weights(&self) -> bool {
        let quantises = |form: &Representation<PresetAmount>| matches!(form, Representation::Quantised { .. });
        let narrows = self
            .rules
            .iter()
            .any(|rule| rule.class == TensorClass::Weights && rule.representation.as_ref().is_some_and(quantises));
        narrows && !self.rules.iter().any(|rule| rule.frozen)
    }

    /// Returns whether the technique attaches adapters to products.
    #[must_use]
    pub fn has_adapters(&self) -> bool {
        self.rules.iter().any(|rule| rule.adapter.is_some())
    }

    /// Returns whether `name_or_path` is this technique's name, its alias or its file's path.
    #[must_use]
    pub fn is_called(&self, name_or_path: &str) -> bool {
        let alias = ALIASES.iter().find(|(other, _)| sim::names::are_same_name(other, name_or_path));
        let named = alias.map_or(name_or_path, |(_, name)| *name);
        sim::names::are_same_name(&self.name, named) || self.file == name_or_path
    }

    /// Returns the values of all parameters: the given values, and defaults for the rest.
    ///
    /// # Errors
    /// A parameter that the technique does not have, a value out of range, or an unknown name in a default or limit.
    pub fn parameter_values(
        &self,
        given: &BTreeMap<String, f64>,
        facts: &TrainingQuantities,
    ) -> Result<BTreeMap<String, f64>, TechniqueError> {
        if let Some(key) = given.keys().find(|key| !self.parameters.contains_key(*key)) {
            let known: Vec<&str> = self.parameters.keys().map(String::as_str).collect();
            let cure = match known.is_empty() {
                true => "it has none; leave it out".to_owned(),
                false => sim::names::hint(key, &known.join(", "), "it has"),
            };
            return Err(TechniqueError::NoParameter { technique: self.name.clone(), key: key.clone(), cure });
        }
        let mut values = BTreeMap::new();
        // Parameters may refer to each other, so each round resolves those whose references are known.
        while values.len() < self.parameters.len() {
            let before = values.len();
            let mut unknown = None;
            for (key, parameter) in
                self.parameters.iter().filter(|(key, _)| !values.contains_key(*key)).collect::<Vec<_>>()
            {
                match self.parameter_value(key, parameter, given, &values, facts) {
                    Ok(value) => {
                        values.insert(key.clone(), value);
                    }
                    Err(error @ TechniqueError::Malformed { .. }) => unknown = Some(error),
                    Err(error) => return Err(error),
                }
            }
            if let Some(error) = unknown.filter(|_| values.len() == before) {
                return Err(error);
            }
        }
        Ok(values)
    }

    fn parameter_value(
        &self,
        key: &str,
        parameter: &PresetParameter,
        given: &BTreeMap<String, f64>,
        known: &BTreeMap<String, f64>,
        facts: &TrainingQuantities,
    ) -> Result<f64, TechniqueError> {
        let max = self.resolve_amount(&parameter.max, known, facts)?;
        let value = match given.get(key) {
            Some(value) => *value,
            None => {
                let value =
                    self.resolve_amount(&parameter.default, known, facts)?.clamp(parameter.min, max.max(parameter.min));
                if parameter.whole { value.floor() } else { value }
            }
        };
        if (parameter.min..=max).contains(&value) && !(parameter.whole && value.fract() != 0.0) {
            return Ok(value);
        }
        Err(TechniqueError::Value {
            technique: self.name.clone(),
            key: key.to_owned(),
            value: value.to_string(),
            limit: format!("{}from {} to {max}", if parameter.whole { "a whole number " } else { "" }, parameter.min),
            meaning: parameter.meaning.clone(),
        })
    }

    fn resolve_amount(
        &self,
        amount: &PresetAmount,
        values: &BTreeMap<String, f64>,
        facts: &TrainingQuantities,
    ) -> Result<f64, TechniqueError> {
        let named = |name: &str| values.get(name).copied().or_else(|| facts.find_by_name(name));
        amount.evaluate_with(&named).map_err(|name| TechniqueError::Malformed {
            file: self.file.clone(),
            why: format!(
                "`{name}` is not a number, a parameter or a quantity of the model (hidden, ffn, vocabulary, \
                sequence, heads, layers, experts)"
            ),
        })
    }

    /// Returns the rules with all numbers resolved, without the rules that a parameter switches off. `bits_of` returns
    /// the bits per number of a class in this run. A number out of range or an unknown name is an error.
    pub(crate) fn resolve_rules(
        &self,
        values: &BTreeMap<String, f64>,
        facts: &TrainingQuantities,
        bits_of: impl Fn(TensorClass) -> u64,
    ) -> Result<Vec<TechniqueRule>, TechniqueError> {
        let number = |amount: &PresetAmount| self.resolve_amount(amount, values, facts);
        let mut rules = Vec::new();
        for (at, rule) in (1..).zip(&self.rules) {
            let off = rule.when.as_ref().map(number).transpose()?.is_some_and(|value| value == 0.0);
            if !off {
                let rule = self.resolve_rule(rule, number)?;
                self.check_numbers(at, &rule, &bits_of)?;
                rules.push(rule);
            }
        }
        Ok(rules)
    }

    fn resolve_rule(
        &self,
        rule: &TechniqueRule<PresetAmount, PresetAmount>,
        number: impl Fn(&PresetAmount) -> Result<f64, TechniqueError>,
    ) -> Result<TechniqueRule, TechniqueError> {
        let representation = rule.representation.as_ref().map(|form| resolve_form(form, &number)).transpose()?;
        let place = match &rule.place {
            Some(place) => Some(OffloadPlace {
                to: self.resolve_place(&place.to, &number)?,
                fraction: number(&place.fraction)?,
                rest: place.rest,
            }),
            None => None,
        };
        let slice = match &rule.slice {
            Some(slice) => {
                Some(BlockSlices { along: slice.along, count: slice.count.as_ref().map(&number).transpose()? })
            }
            None => None,
        };
        let adapter = match &rule.adapter {
            Some(adapter) => {
                Some(Adapter { rank: number(&adapter.rank)?, trained: adapter.trained, form: adapter.form })
            }
            None => None,
        };
        let stock = match &rule.stock {
            Some(stock) => Some(ReadOnlyData { item: stock.item, count: number(&stock.count)? }),
            None => None,
        };
        Ok(TechniqueRule {
            class: rule.class,
            at: rule.at.clone(),
            read_by: rule.read_by,
            tensors: rule.tensors.clone(),
            representation,
            place,
            rebuild: rule.rebuild,
            slice,
            frozen: rule.frozen,
            keeps_input: rule.keeps_input,
            adapter,
            copy_bytes: rule.copy_bytes.as_ref().map(&number).transpose()?,
            stock,
            when: None,
        })
    }

    /// Resolves a place: `host`, `nvme`, or a parameter (0 means the host, any other value NVMe).
    fn resolve_place(
        &self,
        written: &PresetAmount,
        number: &impl Fn(&PresetAmount) -> Result<f64, TechniqueError>,
    ) -> Result<OffloadTarget, TechniqueError> {
        match written {
            PresetAmount::Name(name) if name == "host" => Ok(OffloadTarget::Host),
            PresetAmount::Name(name) if name == "nvme" => Ok(OffloadTarget::Nvme),
            other => Ok(if number(other)? == 0.0 { OffloadTarget::Host } else { OffloadTarget::Nvme }),
        }
    }
}

/// Resolves the numbers of a form.
fn resolve_form(
    form: &Representation<PresetAmount>,
    number: &impl Fn(&PresetAmount) -> Result<f64, TechniqueError>,
) -> Result<Representation, TechniqueError> {
    Ok(match form {
        Representation::Absent => Representation::Absent,
        Representation::Quantised { bits, group, meta_bytes, per_reader } => Representation::Quantised {
            bits: number(bits)?,
            group: number(group)?,
            meta_bytes: number(meta_bytes)?,
            per_reader: *per_reader,
        },
        Representation::Projected { rank, basis } => Representation::Projected { rank: number(rank)?, basis: *basis },
        Representation::SampledRows { fraction, index_bytes } => {
            Representation::SampledRows { fraction: number(fraction)?, index_bytes: number(index_bytes)? }
        }
        Representation::GroupScalars { groups } => Representation::GroupScalars { groups: number(groups)? },
        Representation::DerivativeBits { bits } => Representation::DerivativeBits { bits: number(bits)? },
        Representation::SharedWithOutput => Representation::SharedWithOutput,
        Representation::Factored => Representation::Factored,
    })
}
