//! Checked access to the keys of a `config.json`.

use super::{COMMON_IRRELEVANT, COMMON_KEYS, Family};
use crate::error::{WorkloadError, nearest};
use crate::limits::MAX_WIDTH;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::Value;
use sim::files::strict::Strict;
use sim::kernel::Function;
use std::fmt;

/// The keys and values of the file, in its order, duplicates and all.
pub(super) struct Entries(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Entries;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of keys and values")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut pairs = Vec::new();
                while let Some(key) = map.next_key()? {
                    pairs.push((key, map.next_value_seed(Strict)?));
                }
                Ok(Entries(pairs))
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}

/// Parses the text; a key given twice is an error.
pub(super) fn entries(file: &str, text: &str) -> Result<Entries, WorkloadError> {
    let entries: Entries = serde_json::from_str(text).map_err(|e| syntax_error(file, text, &e))?;
    for (i, (key, _)) in entries.0.iter().enumerate() {
        if entries.0[..i].iter().any(|(earlier, _)| earlier == key) {
            return Err(WorkloadError::DuplicateKey { file: file.to_owned(), key: key.clone() });
        }
    }
    Ok(entries)
}

/// How much of a faulty line a message repeats, in characters: a file may be one long line.
const SHOWN: usize = 80;

fn syntax_error(file: &str, text: &str, error: &serde_json::Error) -> WorkloadError {
    let line = error.line().max(1);
    let content: String = text.lines().nth(line - 1).unwrap_or_default().trim().chars().take(SHOWN).collect();
    let number = ["NaN", "Infinity", "nan", "inf"].iter().any(|word| content.contains(word));
    let (at, cure) = if error.is_eof() {
        (String::new(), "the file ends before the object does; is it truncated? fetch it again")
    } else if number {
        (format!(", at `{content}`"), "write an ordinary number; JSON has no NaN and no infinity")
    } else {
        (format!(", at `{content}`"), "mend that line")
    };
    let reason = error.to_string();
    let reason = reason.split(" at line ").next().unwrap_or(&reason).to_owned();
    WorkloadError::Syntax { file: file.to_owned(), line, reason, at, cure: cure.to_owned() }
}

/// The value of `model_type`.
pub(super) fn model_type(file: &str, entries: &Entries) -> Result<String, WorkloadError> {
    match entries.0.iter().find(|(key, _)| key == "model_type") {
        Some((_, Value::String(text))) => Ok(text.clone()),
        Some((_, value)) => Err(bad(file, "model_type", value, "a string", "write for instance \"llama\"")),
        None => Err(WorkloadError::MissingKey {
            file: file.to_owned(),
            key: "model_type".to_owned(),
            needed_by: "every configuration".to_owned(),
            example: "\"llama\"".to_owned(),
        }),
    }
}

/// The error for a family that nobody reads.
pub(super) fn unknown_type(file: &str, model_type: &str, known: impl Iterator<Item = &'static str>) -> WorkloadError {
    let known: Vec<&str> = known.collect();
    let cure = match nearest(model_type, known.iter().copied()) {
        Some(near) => format!("did you mean \"{near}\"?"),
        None => "give a model of one of these families".to_owned(),
    };
    bad(file, "model_type", &Value::String(model_type.to_owned()), &format!("one of {}", known.join(", ")), &cure)
}

fn bad(file: &str, key: &str, value: &Value, limit: &str, cure: &str) -> WorkloadError {
    WorkloadError::BadValue {
        file: file.to_owned(),
        key: key.to_owned(),
        value: shown(value),
        limit: limit.to_owned(),
        cure: cure.to_owned(),
    }
}

/// A value as the file has it, cut where long.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    if text.chars().count() <= 60 { text } else { format!("{}...", text.chars().take(57).collect::<String>()) }
}

/// The keys of one file, all known to its family.
pub(super) struct Reader<'a> {
    /// What the model will be called.
    pub(super) name: &'a str,
    /// The value of `model_type`.
    pub(super) model_type: String,
    file: &'a str,
    entries: &'a Entries,
}

impl<'a> Reader<'a> {
    /// Checks that every key is known to the family.
    pub(super) fn new(
        name: &'a str,
        file: &'a str,
        model_type: String,
        family: &Family,
        entries: &'a Entries,
    ) -> Result<Self, WorkloadError> {
        let lists = [COMMON_KEYS, family.keys, COMMON_IRRELEVANT, family.irrelevant];
        for (key, value) in &entries.0 {
            if lists.iter().any(|list| list.contains(&key.as_str())) {
                continue;
            }
            let synonym = family.synonyms.iter().find(|(word, _)| word == key).map(|(_, meant)| *meant);
            let near = synonym.or_else(|| nearest(key, lists.iter().flat_map(|list| list.iter().copied())));
            let cure = match near {
                Some(near) => format!("did you mean `{near}`?"),
                None => "remove it if it does not change the model's work".to_owned(),
            };
            return Err(WorkloadError::UnknownKey {
                file: file.to_owned(),
                key: key.clone(),
                value: shown(value),
                family: model_type,
                cure,
            });
        }
        Ok(Self { name, model_type, file, entries })
    }

    /// The value of a key; null counts as absent, as in Hugging Face's own reader.
    fn get(&self, key: &str) -> Option<&'a Value> {
        self.entries.0.iter().find(|(k, _)| k == key).map(|(_, value)| value).filter(|value| !value.is_null())
    }

    /// The error for a value that breaks a rule of its own.
    pub(super) fn error(&self, key: &str, value: impl Into<Value>, limit: &str, cure: &str) -> WorkloadError {
        bad(self.file, key, &value.into(), limit, cure)
    }

    /// A whole number from 1 to `limit` that must be there.
    pub(super) fn dimension(&self, key: &str, limit: u64) -> Result<u64, WorkloadError> {
        self.optional_dimension(key, limit)?.ok_or_else(|| WorkloadError::MissingKey {
            file: self.file.to_owned(),
            key: key.to_owned(),
            needed_by: format!("a model of type `{}`", self.model_type),
            example: "<number>".to_owned(),
        })
    }

    /// A whole number from 1 to `limit`, if it is there.
    pub(super) fn optional_dimension(&self, key: &str, limit: u64) -> Result<Option<u64>, WorkloadError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_u64() {
            Some(n) if (1..=limit).contains(&n) => Ok(Some(n)),
            _ => Err(bad(
                self.file,
                key,
                value,
                &format!("a whole number between 1 and {limit}"),
                "write the model's own value, without quotes",
            )),
        }
    }

    /// A whole number from 0 to `limit`, or the default.
    pub(super) fn count(&self, key: &str, limit: u64, default: u64) -> Result<u64, WorkloadError> {
        match self.get(key) {
            Some(value) if value.as_u64() == Some(0) => Ok(0),
            Some(_) => Ok(self.optional_dimension(key, limit)?.unwrap_or(default)),
            None => Ok(default),
        }
    }

    /// A probability of dropping, at least 0 and below 1, or the default.
    pub(super) fn probability(&self, key: &str, default: f64) -> Result<f64, WorkloadError> {
        let Some(value) = self.get(key) else { return Ok(default) };
        match value.as_f64() {
            Some(p) if (0.0..1.0).contains(&p) => Ok(p),
            _ => {
                Err(bad(self.file, key, value, "a probability at least 0 and below 1", "write 0.0 for none, or for instance 0.1"))
            }
        }
    }

    /// A factor from 1 to `limit`, if it is there.
    pub(super) fn optional_factor(&self, key: &str, limit: f64) -> Result<Option<f64>, WorkloadError> {
        let Some(value) = self.get(key) else { return Ok(None) };
        match value.as_f64() {
            Some(factor) if (1.0..=limit).contains(&factor) => Ok(Some(factor)),
            _ => {
                let cure = "write for instance 1.25, or leave it out where no token is dropped";
                Err(bad(self.file, key, value, &format!("a number from 1.0 to {limit} (experts over experts per token)"), cure))
            }
        }
    }

    /// True or false, or the default.
    pub(super) fn flag(&self, key: &str, default: bool) -> Result<bool, WorkloadError> {
        match self.get(key) {
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(value) => Err(bad(self.file, key, value, "true or false", "write true or false, without quotes")),
            None => Ok(default),
        }
    }

    /// An error where the flag is set.
    pub(super) fn forbid(&self, key: &str, cure: &str) -> Result<(), WorkloadError> {
        if self.flag(key, false)? { Err(bad(self.file, key, &Value::Bool(true), "false", cure)) } else { Ok(()) }
    }

    /// An error where the text is there and is not `only`.
    pub(super) fn require(&self, key: &str, only: &str, cure: &str) -> Result<(), WorkloadError> {
        match self.get(key) {
            Some(value) if value.as_str() != Some(only) => Err(bad(self.file, key, value, &format!("\"{only}\""), cure)),
            _ => Ok(()),
        }
    }

    /// An error where the number is there, by itself or in one of the objects `within`, and is not 1.
    pub(super) fn require_one(&self, key: &str, within: &[&str], cure: &str) -> Result<(), WorkloadError> {
        let inner = within.iter().filter_map(|object| Some((format!("{object}.{key}"), self.get(object)?.get(key)?)));
        let found = self.get(key).map(|value| (key.to_owned(), value)).into_iter().chain(inner);
        match found.filter(|(_, value)| !value.is_null()).find(|(_, value)| value.as_f64() != Some(1.0)) {
            Some((key, value)) => Err(bad(self.file, &key, value, "1.0", cure)),
            None => Ok(()),
        }
    }

    /// A nonlinearity by Hugging Face's name, or the default.
    pub(super) fn activation(&self, key: &str, default: Function) -> Result<Function, WorkloadError> {
        let Some(value) = self.get(key) else { return Ok(default) };
        let function = match value.as_str().unwrap_or_default() {
            "gelu" | "gelu_new" | "gelu_fast" | "gelu_python" | "gelu_pytorch_tanh" | "gelu_accurate" | "quick_gelu" => {
                Function::Gelu
            }
            "relu" => Function::Relu,
            "silu" | "swish" => Function::Silu,
            "sigmoid" => Function::Sigmoid,
            "tanh" => Function::Tanh,
            "leaky_relu" => Function::LeakyRelu,
            "prelu" => Function::ParametricRelu,
            "elu" => Function::Elu,
            "selu" => Function::Selu,
            "linear" => Function::Copy,
            _ => {
                let names = "elu, gelu, gelu_fast, gelu_new, gelu_pytorch_tanh, leaky_relu, linear, prelu, quick_gelu, relu, selu, \
                    sigmoid, silu, tanh";
                let near = value.as_str().and_then(|word| nearest(word, names.split(", ")));
                let cure = near.map_or("use the nearest of these in cost".to_owned(), |near| format!("did you mean \"{near}\"?"));
                return Err(bad(self.file, key, value, &format!("one of {names}"), &cure));
            }
        };
        Ok(function)
    }

    /// An error where `part` does not divide `whole`, naming the nearest divisors.
    pub(super) fn divides(&self, (part_key, part): (&str, u64), (whole_key, whole): (&str, u64)) -> Result<(), WorkloadError> {
        if whole.is_multiple_of(part) {
            return Ok(());
        }
        let divides = |n: &u64| whole.is_multiple_of(*n);
        let below = (1..part.min(whole + 1)).rev().find(divides);
        let above = (part + 1..=whole.min(MAX_WIDTH)).find(divides);
        let near: Vec<String> = [below, above].into_iter().flatten().map(|n| n.to_string()).collect();
        let cure = format!("use {} or change `{whole_key}`", near.join(", "));
        Err(self.error(part_key, part, &format!("a divisor of `{whole_key}` ({whole})"), &cure))
    }

    /// The padding of the vocabulary that the configuration asks for.
    pub(super) fn vocabulary_multiple(&self) -> Result<u64, WorkloadError> {
        Ok(self.optional_dimension("make_vocab_size_divisible_by", MAX_WIDTH)?.unwrap_or(1))
    }
}
