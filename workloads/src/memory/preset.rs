//! Techniques by name: a small TOML file each, with its formula and its source, in `presets/`; any file of that form by path.

use super::amount::{Amount, Facts};
use super::error::TechniqueError;
use super::policy::{Adapter, Away, Gate, Place, Representation, Rule, Slice, Stock, TensorClass};
use crate::footprint::Optimizer;
use include_dir::{Dir, include_dir};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

static PRESETS: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/src/memory/presets");

/// A number that the user may set.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Parameter {
    /// What it is taken for where nobody says.
    pub default: Amount,
    /// The least value.
    pub min: f64,
    /// The largest value.
    pub max: Amount,
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
    pub gate: Gate,
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
    pub one_micro_batch: Option<OneMicroBatch>,
    /// What to say where data-parallel replicas train together and its authors' code cannot.
    #[serde(default)]
    pub one_replica: Option<OneMicroBatch>,
    /// The optimizers that it goes with, where it does not with all.
    #[serde(default)]
    pub optimizers: Option<OfOptimizers>,
    /// Techniques that it cannot be used with, and why.
    #[serde(default)]
    pub excludes: BTreeMap<String, String>,
    /// What the user may set.
    #[serde(default)]
    pub parameters: BTreeMap<String, Parameter>,
    /// What it does.
    #[serde(default, rename = "rule")]
    pub rules: Vec<Rule<Amount, Amount>>,
}

/// Why gradients cannot be accumulated, or come from one replica only.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OneMicroBatch {
    /// The parameter that must not be 0 for it; always where none is given.
    #[serde(default)]
    pub when: Option<Amount>,
    /// The reason.
    pub why: String,
}

/// The optimizers that a technique goes with.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct OfOptimizers {
    /// These, first the one to use instead of others.
    pub with: Vec<Optimizer>,
    /// Why no other.
    pub why: String,
}

impl OneMicroBatch {
    /// Whether it holds with these values of the parameters.
    pub(crate) fn applies(&self, values: &BTreeMap<String, f64>) -> bool {
        let named = |name: &str| values.get(name).copied();
        self.when.as_ref().is_none_or(|when| when.value(&named).is_ok_and(|value| value != 0.0))
    }
}

impl Preset {
    /// The built-in presets' names, sorted.
    #[must_use]
    pub fn names() -> Vec<String> {
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
            let text = sim::files::text::read(name_or_path.as_ref())
                .map_err(|e| TechniqueError::Unreadable { file: name_or_path.to_owned(), why: e.to_string() })?;
            return Self::from_toml_str(name_or_path, &text);
        }
        let own = Self::names().into_iter().find(|name| sim::names::same(name, name_or_path)).map(|name| format!("{name}.toml"));
        match own.and_then(|file| Some((PRESETS.get_file(&file)?.contents_utf8()?, file))) {
            Some((text, file)) => Self::read(&file, text),
            None => {
                let known = Self::names().join(", ");
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
        let preset = Self::read(file, text)?;
        if Self::names().iter().any(|own| sim::names::same(own, &preset.name)) {
            let why = format!("name = {}: is a built-in technique's; give it a name of its own", preset.name);
            return Err(TechniqueError::Malformed { file: file.to_owned(), why });
        }
        Ok(preset)
    }

    fn read(file: &str, text: &str) -> Result<Self, TechniqueError> {
        let why =
            |e: toml::de::Error| TechniqueError::Malformed { file: file.to_owned(), why: e.to_string().trim_end().to_owned() };
        let preset = Self { file: file.to_owned(), ..toml::from_str(text).map_err(why)? };
        preset.check_rules()?;
        Ok(preset)
    }

    /// Whether it does no more than decide which saved activations are kept, and where: what a policy of recomputation and offload says as well.
    #[must_use]
    pub fn only_places(&self) -> bool {
        self.decides_places() && !self.planned_addresses && self.rules.iter().all(|rule| rule.slice.is_none())
    }

    /// Whether it decides which saved activations are kept, and where, and what else it does is about where these lie: buffers on the device, addresses.
    #[must_use]
    pub fn decides_places(&self) -> bool {
        let places = |rule: &Rule<Amount, Amount>| {
            let further = rule.read_by.is_some()
                || rule.representation.is_some()
                || rule.adapter.is_some()
                || rule.copy_bytes.is_some()
                || rule.stock.is_some();
            rule.class == TensorClass::SavedActivations && !rule.frozen && !further
        };
        let further = self.second_backward.is_some() || self.decomposed_every.is_some();
        self.gate == Gate::Exact && !further && !self.rules.is_empty() && self.rules.iter().all(places)
    }

    /// Whether a text names it: by its name, or by the path of its file.
    #[must_use]
    pub fn is_called(&self, name_or_path: &str) -> bool {
        sim::names::same(&self.name, name_or_path) || self.file == name_or_path
    }

    /// The values of all parameters for a model: those given, the defaults of the others.
    ///
    /// # Errors
    /// A parameter that the technique does not have, or a value out of its range.
    pub fn values(&self, given: &BTreeMap<String, f64>, facts: &Facts) -> Result<BTreeMap<String, f64>, TechniqueError> {
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
                match self.one_value(key, parameter, (given, &values), facts) {
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

    fn one_value(
        &self,
        key: &str,
        parameter: &Parameter,
        (given, known): (&BTreeMap<String, f64>, &BTreeMap<String, f64>),
        facts: &Facts,
    ) -> Result<f64, TechniqueError> {
        let max = self.resolve(&parameter.max, known, facts)?;
        let value = match given.get(key) {
            Some(value) => *value,
            None => {
                let value = self.resolve(&parameter.default, known, facts)?.clamp(parameter.min, max.max(parameter.min));
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

    fn resolve(&self, amount: &Amount, values: &BTreeMap<String, f64>, facts: &Facts) -> Result<f64, TechniqueError> {
        let named = |name: &str| values.get(name).copied().or_else(|| facts.get(name));
        amount.value(&named).map_err(|name| TechniqueError::Malformed {
            file: self.file.clone(),
            why: format!("`{name}` is neither a number nor a parameter nor a quantity of the model (hidden, ffn, vocabulary, sequence, heads, layers, experts)"),
        })
    }

    /// Its rules with numbers in them. Rules that a parameter switches off are left out. `bits_of` a class are those of its numbers in the run.
    pub(crate) fn rules(
        &self,
        values: &BTreeMap<String, f64>,
        facts: &Facts,
        bits_of: impl Fn(TensorClass) -> u64,
    ) -> Result<Vec<Rule>, TechniqueError> {
        let number = |amount: &Amount| self.resolve(amount, values, facts);
        let mut rules = Vec::new();
        for (at, rule) in (1..).zip(&self.rules) {
            let off = rule.when.as_ref().map(number).transpose()?.is_some_and(|value| value == 0.0);
            if !off {
                let rule = self.rule(rule, number)?;
                self.check_numbers(at, &rule, &bits_of)?;
                rules.push(rule);
            }
        }
        Ok(rules)
    }

    fn rule(
        &self,
        rule: &Rule<Amount, Amount>,
        number: impl Fn(&Amount) -> Result<f64, TechniqueError>,
    ) -> Result<Rule, TechniqueError> {
        let representation = rule.representation.as_ref().map(|form| form_of(form, &number)).transpose()?;
        let place = match &rule.place {
            Some(place) => {
                Some(Place { to: self.away(&place.to, &number)?, fraction: number(&place.fraction)?, rest: place.rest })
            }
            None => None,
        };
        let slice = match &rule.slice {
            Some(slice) => Some(Slice { along: slice.along, count: slice.count.as_ref().map(&number).transpose()? }),
            None => None,
        };
        let adapter = match &rule.adapter {
            Some(adapter) => Some(Adapter { rank: number(&adapter.rank)?, trained: adapter.trained }),
            None => None,
        };
        let stock = match &rule.stock {
            Some(stock) => Some(Stock { item: stock.item, count: number(&stock.count)? }),
            None => None,
        };
        Ok(Rule {
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
    fn away(&self, written: &Amount, number: &impl Fn(&Amount) -> Result<f64, TechniqueError>) -> Result<Away, TechniqueError> {
        match written {
            Amount::Name(name) if name == "host" => Ok(Away::Host),
            Amount::Name(name) if name == "nvme" => Ok(Away::Nvme),
            other => Ok(if number(other)? == 0.0 { Away::Host } else { Away::Nvme }),
        }
    }
}

/// A form with its numbers.
fn form_of(
    form: &Representation<Amount>,
    number: &impl Fn(&Amount) -> Result<f64, TechniqueError>,
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
