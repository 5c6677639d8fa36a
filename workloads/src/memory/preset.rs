//! Techniques by name: a small TOML file each, with its formula and its source, in `presets/`; any file of that form by path.

use super::amount::{PresetAmount, TrainingQuantities};
use super::error::TechniqueError;
use super::policy::{
    Adapter, BlockSlices, OffloadPlace, OffloadTarget, ReadOnlyData, Representation, TechniqueRule, TensorClass, TrainingEffect,
};
use crate::footprint::Optimizer;
use include_dir::{Dir, include_dir};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

static PRESETS: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/src/memory/presets");

/// A number that the user may set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PresetParameter {
    /// What it is taken for where nobody says.
    pub default: PresetAmount,
    /// The least value.
    pub min: f64,
    /// The largest value.
    pub max: PresetAmount,
    /// Whether it must be whole.
    #[serde(default)]
    pub whole: bool,
    /// What it says, with its unit.
    pub meaning: String,
}

/// A technique as its file has it.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Preset {
    /// The file that it is from, as errors name it.
    #[serde(skip)]
    pub file: String,
    /// Its name: a built-in one's is its file's, without `.toml`.
    pub name: String,
    /// One line for lists.
    pub description: String,
    /// What it changes, in the symbols of its paper.
    pub formula: String,
    /// Where it is from.
    pub source: String,
    /// What it does to the result of training.
    pub gate: TrainingEffect,
    /// Whether the addresses of all tensors are planned ahead, so that nothing is lost to fragmentation.
    #[serde(default)]
    pub planned_addresses: bool,
    /// Whether its parameter `fraction` is to be chosen by the step where it is not given.
    #[serde(default)]
    pub adaptive: bool,
    /// A parameter that, where it is not 0, runs a second backward pass for the norm of all gradients.
    #[serde(default)]
    pub second_backward: Option<String>,
    /// Steps between two decompositions of a gradient (a parameter), where there are any.
    #[serde(default)]
    pub decomposed_every: Option<String>,
    /// Why a step can have one micro-batch only, where that is so.
    #[serde(default)]
    pub one_micro_batch: Option<SingleMicroBatch>,
    /// What to say where data-parallel replicas train together and its authors' code cannot.
    #[serde(default)]
    pub one_replica: Option<SingleMicroBatch>,
    /// The optimizers that it goes with, where it does not with all.
    #[serde(default)]
    pub optimizers: Option<AllowedOptimizers>,
    /// Techniques that it cannot be used with, and why.
    #[serde(default)]
    pub excludes: BTreeMap<String, String>,
    /// What the user may set.
    #[serde(default)]
    pub parameters: BTreeMap<String, PresetParameter>,
    /// What it does.
    #[serde(default, rename = "rule")]
    pub rules: Vec<TechniqueRule<PresetAmount, PresetAmount>>,
}

/// Why gradients cannot be accumulated, or come from one replica only.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SingleMicroBatch {
    /// The parameter that must not be 0 for it; always where none is given.
    #[serde(default)]
    pub when: Option<PresetAmount>,
    /// The reason.
    pub why: String,
}

/// The optimizers that a technique goes with.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AllowedOptimizers {
    /// These, first the one to use instead of others.
    pub with: Vec<Optimizer>,
    /// Why no other.
    pub why: String,
}

impl SingleMicroBatch {
    /// Whether it holds with these values of the parameters.
    pub(crate) fn applies_with(&self, values: &BTreeMap<String, f64>) -> bool {
        let named = |name: &str| values.get(name).copied();
        self.when.as_ref().is_none_or(|when| when.evaluate_with(&named).is_ok_and(|value| value != 0.0))
    }
}

impl Preset {
    /// The built-in presets' names, sorted.
    #[must_use]
    pub fn built_in_names() -> Vec<String> {
        let toml = |f: &&include_dir::File<'_>| f.path().extension().is_some_and(|e| e == "toml");
        let stem = |f: &include_dir::File<'_>| f.path().file_stem().map(|s| s.to_string_lossy().into_owned());
        let mut names: Vec<String> = PRESETS.files().filter(toml).filter_map(stem).collect();
        names.sort();
        names
    }

    /// A built-in preset by name, or a file of the same form by path (anything that ends in `.toml`).
    ///
    /// # Errors
    /// An unknown name, a file that cannot be read, keys or values that cannot be.
    pub fn load(name_or_path: &str) -> Result<Self, TechniqueError> {
        if name_or_path.ends_with(".toml") {
            let text = sim::files::text::read_text(name_or_path.as_ref())
                .map_err(|e| TechniqueError::Unreadable { file: name_or_path.to_owned(), why: e.to_string() })?;
            return Self::from_toml_str(name_or_path, &text);
        }
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

    /// Reads a text of a user's own; `file` names it in errors.
    ///
    /// # Errors
    /// Malformed TOML, missing or unknown keys, rules that cannot be, the name of a built-in preset.
    pub fn from_toml_str(file: &str, text: &str) -> Result<Self, TechniqueError> {
        let preset = Self::parse_preset(file, text)?;
        if Self::built_in_names().iter().any(|own| sim::names::are_same_name(own, &preset.name)) {
            let why = format!("name = {}: is a built-in technique's; give it a name of its own", preset.name);
            return Err(TechniqueError::Malformed { file: file.to_owned(), why });
        }
        Ok(preset)
    }

    fn parse_preset(file: &str, text: &str) -> Result<Self, TechniqueError> {
        let why =
            |e: toml::de::Error| TechniqueError::Malformed { file: file.to_owned(), why: e.to_string().trim_end().to_owned() };
        let preset = Self { file: file.to_owned(), ..toml::from_str(text).map_err(why)? };
        preset.check_rules()?;
        Ok(preset)
    }

    /// Whether it does no more than decide which saved activations are kept, and where: what a policy of recomputation and offload says as well.
    #[must_use]
    pub fn only_decides_places(&self) -> bool {
        self.decides_places() && !self.planned_addresses && self.rules.iter().all(|rule| rule.slice.is_none())
    }

    /// Whether it decides which saved activations are kept, and where, and what else it does is about where these lie: buffers on the device, addresses.
    #[must_use]
    pub fn decides_places(&self) -> bool {
        let places = |rule: &TechniqueRule<PresetAmount, PresetAmount>| {
            let further = rule.read_by.is_some()
                || rule.representation.is_some()
                || rule.adapter.is_some()
                || rule.copy_bytes.is_some()
                || rule.stock.is_some();
            rule.class == TensorClass::SavedActivations && !rule.frozen && !further
        };
        let further = self.second_backward.is_some() || self.decomposed_every.is_some();
        self.gate == TrainingEffect::Exact && !further && !self.rules.is_empty() && self.rules.iter().all(places)
    }

    /// Whether a text names it: by its name, or by the path of its file.
    #[must_use]
    pub fn is_called(&self, name_or_path: &str) -> bool {
        sim::names::are_same_name(&self.name, name_or_path) || self.file == name_or_path
    }

    /// The values of all parameters for a model: those given, the defaults of the others.
    ///
    /// # Errors
    /// A parameter that the technique does not have, or a value out of its range.
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
        // Parameters may name each other: those whose names are known first.
        while values.len() < self.parameters.len() {
            let before = values.len();
            let mut unknown = None;
            for (key, parameter) in self.parameters.iter().filter(|(key, _)| !values.contains_key(*key)).collect::<Vec<_>>() {
                match self.parameter_value(key, parameter, (given, &values), facts) {
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
        (given, known): (&BTreeMap<String, f64>, &BTreeMap<String, f64>),
        facts: &TrainingQuantities,
    ) -> Result<f64, TechniqueError> {
        let max = self.resolve_amount(&parameter.max, known, facts)?;
        let value = match given.get(key) {
            Some(value) => *value,
            None => {
                let value = self.resolve_amount(&parameter.default, known, facts)?.clamp(parameter.min, max.max(parameter.min));
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
            why: format!("`{name}` is neither a number nor a parameter nor a quantity of the model (hidden, ffn, vocabulary, sequence, heads, layers, experts)"),
        })
    }

    /// Its rules with numbers in them. Rules that a parameter switches off are left out. `bits_of` a class are those of its numbers in the run.
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
            Some(slice) => Some(BlockSlices { along: slice.along, count: slice.count.as_ref().map(&number).transpose()? }),
            None => None,
        };
        let adapter = match &rule.adapter {
            Some(adapter) => Some(Adapter { rank: number(&adapter.rank)?, trained: adapter.trained }),
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
            adapter,
            copy_bytes: rule.copy_bytes.as_ref().map(&number).transpose()?,
            stock,
            when: None,
        })
    }

    /// A place: `host`, `nvme`, or a parameter that is 0 for the one and 1 for the other.
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

/// A form with its numbers.
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
