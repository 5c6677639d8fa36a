//! Checked access to the keys of a `config.json`.

use super::ModelFamily;
use super::entries::{ConfigEntries, UnlikeNames};
use super::keys::{self, KeyEffect};
use crate::error::{WorkloadError, find_mistyped, find_nearest};
use crate::limits::{MAX_LAYERS, MAX_POSITIONS, MAX_WIDTH};
use serde_json::Value;
use sim::kernel::ElementwiseFunction;
use std::cell::RefCell;

/// Returns the key that names the family: `model_type`, or the class's key in files that diffusers wrote.
pub(super) fn class_key(entries: &ConfigEntries) -> &'static str {
    let of_diffusers = entries.raw_value("model_type").is_none() && entries.raw_value(CLASS_OF_DIFFUSERS).is_some();
    if of_diffusers { CLASS_OF_DIFFUSERS } else { "model_type" }
}

/// Reads the value of `model_type`, or of diffusers' class key. A missing or non-text value is an error.
pub(super) fn read_model_type(file: &str, entries: &ConfigEntries) -> Result<String, WorkloadError> {
    let key = class_key(entries);
    match entries.raw_value(key) {
        Some(Value::String(text)) => Ok(text.clone()),
        Some(value) => Err(bad_value_error(file, key, value, "a string", "write for instance \"llama\"")),
        None => Err(WorkloadError::MissingKey {
            file: file.to_owned(),
            key: "model_type".to_owned(),
            needed_by: "every configuration".to_owned(),
            example: "\"llama\"".to_owned(),
        }),
    }
}

/// Returns the error for a family that is not covered; `missing` names the missing feature, if known.
pub(super) fn unknown_type_error(
    file: &str,
    key: &str,
    model_type: &str,
    missing: Option<&str>,
    known: impl Iterator<Item = &'static str>,
) -> WorkloadError {
    let known: Vec<&str> = known.collect();
    let cure = match (missing, find_mistyped(model_type, known.iter().copied())) {
        (Some(missing), _) => {
            format!("it needs {missing}, which is not covered yet: give a model of one of these families")
        }
        (None, Some(near)) => format!("did you mean \"{near}\"?"),
        (None, None) => "give a model of one of these families".to_owned(),
    };
    // The text part of a multimodal model is listed under its family's name.
    let families: Vec<&str> = known.into_iter().filter(|name| !name.ends_with("_text")).collect();
    bad_value_error(file, key, &Value::String(model_type.to_owned()), &format!("one of {}", families.join(", ")), &cure)
}

/// A number under its key.
#[derive(Debug, Clone, Copy)]
pub(super) struct NamedNumber<'a> {
    pub(super) key: &'a str,
    pub(super) value: u64,
}

/// Returns the error for two names of one number with different values.
pub(super) fn unlike_names_error(
    file: &str,
    entries: &ConfigEntries,
    UnlikeNames { own, other }: UnlikeNames,
) -> WorkloadError {
    let value = |key: &str| entries.get(key).cloned().unwrap_or_default();
    let limit = format!("equal to `{own}` ({}), another name of the same number", shorten_value(&value(&own)));
    bad_value_error(file, &other, &value(&other), &limit, "leave one of the two out")
}

pub(super) fn bad_value_error(file: &str, key: &str, value: &Value, limit: &str, cure: &str) -> WorkloadError {
    WorkloadError::BadValue {
        file: file.to_owned(),
        key: key.to_owned(),
        value: shorten_value(value),
        limit: limit.to_owned(),
        cure: cure.to_owned(),
    }
}

/// Returns a value as text, as in the file; text of more than 60 characters is shortened.
pub(super) fn shorten_value(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= 60 { text } else { format!("{}...", text.chars().take(57).collect::<String>()) }
}

/// Returns the nonlinearity with Hugging Face's name `name`, or `None`.
pub(super) fn activation_by_name(name: &str) -> Option<ElementwiseFunction> {
    Some(match name {
        "gelu" | "gelu_new" | "gelu_fast" | "gelu_python" | "gelu_pytorch_tanh" | "gelu_accurate" | "quick_gelu" => {
            ElementwiseFunction::Gelu
        }
        "relu" => ElementwiseFunction::Relu,
        // The clamped variant of GPT-OSS and MiniMax M3 differs only by on-chip work.
        "silu" | "swish" | "swigluoai" => ElementwiseFunction::Silu,
        "sigmoid" => ElementwiseFunction::Sigmoid,
        "tanh" => ElementwiseFunction::Tanh,
        // Squared ReLU keeps its input for its derivative, like leaky ReLU. Its extra multiplication is on chip.
        "leaky_relu" | "relu2" => ElementwiseFunction::LeakyRelu,
        "prelu" => ElementwiseFunction::ParametricRelu,
        "elu" => ElementwiseFunction::Elu,
        "selu" => ElementwiseFunction::Selu,
        "linear" => ElementwiseFunction::Copy,
        _ => return None,
    })
}

/// Diffusers' key for the class of a model, in files without `model_type`.
const CLASS_OF_DIFFUSERS: &str = "_class_name";

/// The cure for an unknown key that may change the work.
const UNREAD_CURE: &str = "it may change the work: correct it, or take it as without effect by --assume KEY=ignored";

/// Access to the keys of one file, as its family reads them.
pub(super) struct ConfigReader<'a> {
    /// The model's name.
    pub(super) name: &'a str,
    /// The value of `model_type`.
    pub(super) model_type: String,
    file: &'a str,
    entries: &'a ConfigEntries,
    /// The family's defaults for absent keys.
    defaults: &'static [(&'static str, u64)],
    /// True if the family reads multi-head latent attention.
    latent: bool,
    assumptions: RefCell<Vec<String>>,
}

impl<'a> ConfigReader<'a> {
    /// Creates the reader and classifies the keys that the family does not read. Keys without effect are ignored.
    /// Features that are not modelled become assumptions, or errors if the answer would be too wrong. Misspelt keys are
    /// errors.
    pub(super) fn new(
        name: &'a str,
        file: &'a str,
        model_type: String,
        family: &ModelFamily,
        entries: &'a ConfigEntries,
    ) -> Result<Self, WorkloadError> {
        let (defaults, latent) = (family.defaults, family.reads("kv_lora_rank"));
        let reader = Self { name, model_type, file, entries, defaults, latent, assumptions: RefCell::default() };
        let ignored = reader.read_ignored(family)?;
        let mut unknown = Vec::new();
        for (key, value) in entries.pairs().filter(|(key, _)| !family.reads(key)) {
            if ignored.contains(&key) {
                reader.note_assumption(format!("`{key}` = {} is ignored, as was asked", shorten_value(value)));
                continue;
            }
            if keys::FLAGS.contains(&key) {
                reader.read_flag(key, false)?;
            }
            match keys::effect_of_key(key, value) {
                KeyEffect::None => {}
                KeyEffect::Assumed(what) => reader.note_value(key, value, what),
                KeyEffect::AssumedByLayer(what) => {
                    reader.read_marks(key, "", value, reader.read_dimension("num_hidden_layers", MAX_LAYERS)?)?;
                    reader.note_value(key, value, what);
                }
                KeyEffect::AssumedNumber(what) => {
                    reader.read_dimension(key, MAX_LAYERS)?;
                    reader.note_value(key, value, what);
                }
                KeyEffect::Missing(what) => {
                    let cure = format!("{what} are not covered yet: give a model without");
                    return Err(bad_value_error(file, key, value, "absent or null", &cure));
                }
                KeyEffect::Unknown => {
                    reader.refuse_misspelling(key, value, family)?;
                    if keys::may_change_work(key, value) {
                        return Err(reader.unknown_key_error(key, value, UNREAD_CURE.replace("KEY", key)));
                    }
                    unknown.push(format!("`{key}` = {}", shorten_value(value)));
                }
            }
        }
        if !unknown.is_empty() {
            let (keys, known) =
                if unknown.len() == 1 { ("key", "is not known and is") } else { ("keys", "are not known and are") };
            reader.note_assumption(format!("the {keys} {} {known} assumed to have no effect", unknown.join(", ")));
        }
        Ok(reader)
    }

    /// Reads the keys that the user wants ignored. Each must be in the file, and the family must not read it.
    fn read_ignored(&self, family: &ModelFamily) -> Result<Vec<&'a str>, WorkloadError> {
        let Some(value) = self.get(keys::ASSUME_IGNORED) else { return Ok(Vec::new()) };
        let list: Option<Vec<&str>> =
            value.as_array().and_then(|list| list.iter().map(Value::as_str).collect::<Option<Vec<&str>>>());
        let fits = |key: &&str| self.has_key(key) && !family.reads(key);
        match list {
            Some(list) if list.iter().all(fits) => Ok(list),
            _ => {
                let limit = "a list of keys of this file that its family does not read";
                let cure = "correct the names; a key that is read cannot be ignored";
                Err(self.value_error(keys::ASSUME_IGNORED, value.clone(), limit, cure))
            }
        }
    }

    fn unknown_key_error(&self, key: &str, value: &Value, cure: String) -> WorkloadError {
        WorkloadError::UnknownKey {
            file: self.file.to_owned(),
            key: key.to_owned(),
            value: shorten_value(value),
            family: self.model_type.clone(),
            cure,
        }
    }

    /// Returns an error if an unknown key is a misspelling, or another family's name, of a key that the family reads
    /// and that is absent.
    fn refuse_misspelling(&self, key: &str, value: &Value, family: &ModelFamily) -> Result<(), WorkloadError> {
        let absent = |meant: &str| self.entries.raw_value(meant).is_none();
        let synonym =
            family.synonyms.iter().find(|(word, meant)| *word == key && absent(meant)).map(|(_, meant)| *meant);
        let words = keys::COMMON.iter().chain(family.keys.iter().copied().flatten()).copied();
        match synonym.or_else(|| find_mistyped(key, words.filter(|word| absent(word)))) {
            None => Ok(()),
            Some(near) => Err(self.unknown_key_error(key, value, format!("did you mean `{near}`?"))),
        }
    }

    /// Notes the assumption made for a feature of the file that is not modelled.
    pub(super) fn note_assumption(&self, what: String) {
        self.assumptions.borrow_mut().push(what);
    }

    fn note_once(&self, what: String) {
        if !self.assumptions.borrow().contains(&what) {
            self.note_assumption(what);
        }
    }

    fn note_value(&self, key: &str, value: &Value, what: &str) {
        self.note_assumption(format!("`{key}` = {}: {what}", shorten_value(value)));
    }

    /// Takes the assumptions noted so far out of the reader.
    pub(super) fn assumptions(&self) -> Vec<String> {
        self.assumptions.take()
    }

    /// Reads the width of an attention window; `None` without one. 0 counts as absent, because transformers writes it
    /// for a window that is off.
    pub(super) fn read_window(&self) -> Result<Option<u64>, WorkloadError> {
        match self.get("sliding_window").and_then(Value::as_u64) {
            Some(0) => Ok(None),
            _ => self.read_optional_dimension("sliding_window", MAX_POSITIONS),
        }
    }

    /// Returns the value of a key, or `None`. Null counts as absent, as in Hugging Face's own reader.
    pub(super) fn get(&self, key: &str) -> Option<&'a Value> {
        self.entries.get(key)
    }

    /// Returns whether the family reads multi-head latent attention and the file has it.
    pub(super) fn reads_latent_attention(&self) -> bool {
        self.latent && self.get("kv_lora_rank").is_some()
    }

    /// Returns whether the file's list of ignored keys contains `key`.
    pub(super) fn is_ignored(&self, key: &str) -> bool {
        let list = self.get(keys::ASSUME_IGNORED).and_then(Value::as_array);
        list.is_some_and(|list| list.iter().any(|ignored| ignored == key))
    }

    /// Returns whether the file has the key, even as null.
    pub(super) fn has_key(&self, key: &str) -> bool {
        self.entries.raw_value(key).is_some()
    }

    /// Checks that a value inside an object is a whole number from 1 to `limit`, and returns it.
    pub(super) fn nested_dimension(
        &self,
        object: &str,
        key: &str,
        value: &Value,
        limit: u64,
    ) -> Result<u64, WorkloadError> {
        value.as_u64().filter(|n| (1..=limit).contains(n)).ok_or_else(|| {
            let limit = format!("a whole number between 1 and {limit}");
            self.value_error(&format!("{object}.{key}"), value.clone(), &limit, "write the model's own value")
        })
    }

    /// Reads one mark per layer, 0 or 1. `inner` is the key inside an object; it is empty for a list at the top level.
    pub(super) fn read_marks(
        &self,
        key: &str,
        inner: &str,
        value: &Value,
        layers: u64,
    ) -> Result<Vec<bool>, WorkloadError> {
        let mark = |mark: &Value| match mark {
            Value::Bool(flag) => Some(*flag),
            _ => mark.as_u64().filter(|n| *n < 2).map(|n| n == 1),
        };
        let list = value.as_array().and_then(|list| list.iter().map(mark).collect::<Option<Vec<bool>>>());
        list.filter(|list| list.len() as u64 == layers).ok_or_else(|| {
            let name = if inner.is_empty() { key.to_owned() } else { format!("{key}.{inner}") };
            let limit = format!("a list of `num_hidden_layers` ({layers}) marks, each 0 or 1");
            self.value_error(&name, value.clone(), &limit, "correct one of the two")
        })
    }

    /// Returns the first of `words` that the file has as a key; the first word if the file has none of them.
    pub(super) fn first_given_key(&self, words: &[&'static str]) -> &'static str {
        words.iter().find(|word| self.get(word).is_some()).or(words.first()).copied().unwrap_or_default()
    }

    /// Returns the error for a value outside its limit.
    pub(super) fn value_error(&self, key: &str, value: impl Into<Value>, limit: &str, cure: &str) -> WorkloadError {
        bad_value_error(self.file, key, &value.into(), limit, cure)
    }

    /// Reads a required whole number from 1 to `limit`, or the family's default.
    pub(super) fn read_dimension(&self, key: &str, limit: u64) -> Result<u64, WorkloadError> {
        self.read_optional_dimension(key, limit)?.ok_or_else(|| WorkloadError::MissingKey {
            file: self.file.to_owned(),
            key: key.to_owned(),
            needed_by: format!("a model of type `{}`", self.model_type),
            example: "<number>".to_owned(),
        })
    }

    /// Reads an optional whole number from 1 to `limit`, or the family's default; `None` without both.
    pub(super) fn read_optional_dimension(&self, key: &str, limit: u64) -> Result<Option<u64>, WorkloadError> {
        let Some(value) = self.get(key) else {
            let default = self.defaults.iter().find(|(known, _)| *known == key && !self.has_key(key));
            if let Some((_, value)) = default.filter(|_| keys::MAIN_SIZES.contains(&key)) {
                self.note_once(format!("`{key}` is absent: transformers takes {value}"));
            }
            return Ok(default.map(|(_, value)| *value));
        };
        match value.as_u64() {
            Some(n) if (1..=limit).contains(&n) => Ok(Some(n)),
            _ => Err(bad_value_error(
                self.file,
                key,
                value,
                &format!("a whole number between 1 and {limit}"),
                "write the model's own value, without quotes",
            )),
        }
    }

    /// Reads a whole number from 0 to `limit`, or the family's default, or `default`.
    pub(super) fn read_count(&self, key: &str, limit: u64, default: u64) -> Result<u64, WorkloadError> {
        match self.get(key) {
            Some(value) if value.as_u64() == Some(0) => Ok(0),
            _ => Ok(self.read_optional_dimension(key, limit)?.unwrap_or(default)),
        }
    }

    /// Reads a dropout probability, at least 0 and below 1, or `default`.
    pub(super) fn read_probability(&self, key: &str, default: f64) -> Result<f64, WorkloadError> {
        let Some(value) = self.get(key) else { return Ok(default) };
        match value.as_f64() {
            Some(p) if (0.0..1.0).contains(&p) => Ok(p),
            _ => Err(bad_value_error(
                self.file,
                key,
                value,
                "a probability at least 0 and below 1",
                "write 0.0 for none, or for instance 0.1",
            )),
        }
    }

    /// Reads a fraction above 0 and at most 1, at the top level or in one of the objects `within`, or `default`.
    pub(super) fn read_fraction(&self, key: &str, within: &[&str], default: f64) -> Result<f64, WorkloadError> {
        let inner = within.iter().filter_map(|object| Some((format!("{object}.{key}"), self.get(object)?.get(key)?)));
        let found = self
            .get(key)
            .map(|value| (key.to_owned(), value))
            .into_iter()
            .chain(inner)
            .find(|(_, value)| !value.is_null());
        match found {
            None => Ok(default),
            Some((_, value)) if value.as_f64().is_some_and(|part| part > 0.0 && part <= 1.0) => {
                Ok(value.as_f64().unwrap_or(default))
            }
            Some((key, value)) => Err(bad_value_error(
                self.file,
                &key,
                value,
                "a fraction above 0.0 and up to 1.0",
                "write for instance 0.5",
            )),
        }
    }

    /// Reads an optional factor from 1 to `limit`; `None` without the key.
    pub(super) fn read_optional_factor(&self, key: &str, limit: f64) -> Result<Option<f64>, WorkloadError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_f64() {
            Some(factor) if (1.0..=limit).contains(&factor) => Ok(Some(factor)),
            _ => {
                let cure = "write for instance 1.25, or leave it out if no token is dropped";
                Err(bad_value_error(
                    self.file,
                    key,
                    value,
                    &format!("a number from 1.0 to {limit} (experts over experts per token)"),
                    cure,
                ))
            }
        }
    }

    /// Reads a boolean, or `default`.
    pub(super) fn read_flag(&self, key: &str, default: bool) -> Result<bool, WorkloadError> {
        match self.get(key) {
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(value) => {
                Err(bad_value_error(self.file, key, value, "true or false", "write true or false, without quotes"))
            }
            None => Ok(default),
        }
    }

    /// Returns an error if the key is null. Null normally counts as absent, but transformers does not allow null here.
    pub(super) fn refuse_null(&self, key: &str) -> Result<(), WorkloadError> {
        if self.has_key(key) && self.get(key).is_none() {
            return Err(self.value_error(key, Value::Null, "a name", "write the model's own value, or leave it out"));
        }
        Ok(())
    }

    /// Returns an error if the flag is present and differs from `only`.
    pub(super) fn require_flag(&self, key: &str, only: bool, cure: &str) -> Result<(), WorkloadError> {
        if self.read_flag(key, only)? == only {
            return Ok(());
        }
        Err(self.value_error(key, !only, &only.to_string(), cure))
    }

    /// Returns an error if the flag is set.
    pub(super) fn forbid_flag(&self, key: &str, cure: &str) -> Result<(), WorkloadError> {
        if self.read_flag(key, false)? {
            Err(bad_value_error(self.file, key, &Value::Bool(true), "false", cure))
        } else {
            Ok(())
        }
    }

    /// Returns an error if the key is present and its value is not the text `only`.
    pub(super) fn require_text(&self, key: &str, only: &str, cure: &str) -> Result<(), WorkloadError> {
        match self.get(key) {
            Some(value) if value.as_str() != Some(only) => {
                Err(bad_value_error(self.file, key, value, &format!("\"{only}\""), cure))
            }
            _ => Ok(()),
        }
    }

    /// Reads a nonlinearity by Hugging Face's name, or `default`.
    pub(super) fn read_activation(
        &self,
        key: &str,
        default: ElementwiseFunction,
    ) -> Result<ElementwiseFunction, WorkloadError> {
        let Some(value) = self.get(key) else { return Ok(default) };
        activation_by_name(value.as_str().unwrap_or_default()).ok_or_else(|| {
            let names = "elu, gelu, gelu_fast, gelu_new, gelu_pytorch_tanh, leaky_relu, linear, prelu, \
                quick_gelu, relu, relu2, selu, sigmoid, silu, swigluoai, tanh";
            let near = value.as_str().and_then(|word| find_nearest(word, names.split(", ")));
            let cure = near.map_or("use the nearest of these in cost".to_owned(), |near| {
                format!(
                    "did you mean \
                \"{near}\"?"
                )
            });
            bad_value_error(self.file, key, value, &format!("one of {names}"), &cure)
        })
    }

    /// Returns an error with the nearest divisors if `part` does not divide `whole`.
    pub(super) fn check_divides(&self, part: NamedNumber<'_>, whole: NamedNumber<'_>) -> Result<(), WorkloadError> {
        let NamedNumber { key: part_key, value: part } = part;
        let NamedNumber { key: whole_key, value: whole } = whole;
        if whole.is_multiple_of(part) {
            return Ok(());
        }
        let divides = |n: &u64| whole.is_multiple_of(*n);
        let below = (1..part.min(whole + 1)).rev().find(divides);
        let above = (part + 1..=whole.min(MAX_WIDTH)).find(divides);
        let near: Vec<String> = [below, above].into_iter().flatten().map(|n| n.to_string()).collect();
        let cure = format!("use {} or change `{whole_key}`", near.join(", "));
        Err(self.value_error(part_key, part, &format!("a divisor of `{whole_key}` ({whole})"), &cure))
    }

    /// Reads the multiple to which the vocabulary is padded; 1 without the key.
    pub(super) fn read_vocabulary_multiple(&self) -> Result<u64, WorkloadError> {
        Ok(self.read_optional_dimension("make_vocab_size_divisible_by", MAX_WIDTH)?.unwrap_or(1))
    }
}
