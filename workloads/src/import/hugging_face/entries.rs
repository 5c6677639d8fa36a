//! The keys and values of a `config.json`.

use super::keys;
use crate::error::WorkloadError;
use serde::Deserialize;
use serde::de::{Deserializer, MapAccess, Visitor};
use serde_json::{Map, Value};
use sim::files::strict::StrictJson;
use std::borrow::Cow;
use std::fmt;

/// Two names of one number that have different values.
#[derive(Debug)]
pub(super) struct UnlikeNames {
    /// The family's own name.
    pub(super) own: String,
    pub(super) other: String,
}

/// The keys and values of the file in order, duplicates included.
#[derive(Clone)]
pub(super) struct ConfigEntries(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for ConfigEntries {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = ConfigEntries;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of keys and values")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<ConfigEntries, A::Error> {
                let mut pairs = Vec::new();
                while let Some(key) = map.next_key()? {
                    pairs.push((key, map.next_value_seed(StrictJson)?));
                }
                Ok(ConfigEntries(pairs))
            }
        }
        deserializer.deserialize_map(Pairs)
    }
}

impl ConfigEntries {
    /// Returns the keys and values in order.
    pub(super) fn pairs(&self) -> impl Iterator<Item = (&str, &Value)> {
        self.0.iter().map(|(key, value)| (key.as_str(), value))
    }

    /// Returns the value of a key, or `None`. Null counts as absent, as in Hugging Face's own reader.
    pub(super) fn get(&self, key: &str) -> Option<&Value> {
        self.raw_value(key).filter(|value| !value.is_null())
    }

    pub(super) fn raw_value(&self, key: &str) -> Option<&Value> {
        self.0.iter().find(|(known, _)| known == key).map(|(_, value)| value)
    }

    /// Adds `ignored` to the file's own list of keys to ignore.
    pub(super) fn add_ignored(&mut self, ignored: &[String]) {
        let own = self.get(keys::ASSUME_IGNORED).and_then(Value::as_array).cloned().unwrap_or_default();
        if !ignored.is_empty() {
            self.0.retain(|(key, _)| key != keys::ASSUME_IGNORED);
            let all = own.into_iter().chain(ignored.iter().cloned().map(Value::String)).collect();
            self.0.push((keys::ASSUME_IGNORED.to_owned(), Value::Array(all)));
        }
    }

    /// Replaces a key's value if a new value is given.
    pub(super) fn replace_value(&mut self, key: &str, value: Option<&Value>) {
        if let Some(value) = value {
            self.0.retain(|(known, _)| known != key);
            self.0.push((key.to_owned(), value.clone()));
        }
    }

    /// Renames keys that have another family's name for a number to the name that `read` accepts. If both names are
    /// present with different values, it returns the two names as the error.
    pub(super) fn rename_synonyms(&mut self, read: impl Fn(&str) -> bool) -> Result<(), UnlikeNames> {
        for names in keys::SAME_NUMBER {
            let Some(own) = names.iter().find(|name| read(name)) else { continue };
            let Some(other) = names.iter().find(|name| !read(name) && self.get(name).is_some()) else { continue };
            if let (Some(ours), Some(theirs)) = (self.get(own), self.get(other))
                && ours != theirs
            {
                return Err(UnlikeNames { own: (*own).to_owned(), other: (*other).to_owned() });
            }
            self.0.retain(|(key, value)| key != own || !value.is_null());
            if self.get(own).is_some() {
                self.0.retain(|(key, _)| key != other);
            }
            if let Some((key, _)) = self.0.iter_mut().find(|(key, _)| key == other) {
                (*own).clone_into(key);
            }
        }
        for (own, stand_in) in keys::STAND_INS {
            if read(own) && !read(stand_in) && self.get(own).is_none() {
                self.0.retain(|(key, _)| key != own);
                if let Some((key, _)) = self.0.iter_mut().find(|(key, _)| key == stand_in) {
                    (*own).clone_into(key);
                }
            }
        }
        Ok(())
    }

    /// Replaces a nested object with its entries. Entries that the outer level already has are dropped.
    pub(super) fn unfold_object(&mut self, key: &str) {
        let Some(Value::Object(object)) = self.get(key).cloned() else { return };
        self.0.retain(|(known, _)| known != key);
        for (inner, value) in object {
            if self.raw_value(&inner).is_none() {
                self.0.push((inner, value));
            }
        }
    }

    /// Returns the entries of a nested object, and the outer entries named in `inherited` that the object lacks.
    pub(super) fn flatten_object(&self, object: &Map<String, Value>, inherited: &[&str]) -> Self {
        let own = object.iter().map(|(key, value)| (key.clone(), value.clone()));
        let outer =
            self.0.iter().filter(|(key, _)| inherited.contains(&key.as_str()) && !object.contains_key(key)).cloned();
        Self(own.chain(outer).collect())
    }
}

/// Parses the text of a file. A repeated key is an error.
pub(super) fn parse_entries(file: &str, text: &str) -> Result<ConfigEntries, WorkloadError> {
    let entries: ConfigEntries =
        serde_json::from_str(&replace_infinities(text)).map_err(|e| describe_syntax_error(file, text, &e))?;
    for (i, (key, _)) in entries.0.iter().enumerate() {
        if entries.0[..i].iter().any(|(earlier, _)| earlier == key) {
            return Err(WorkloadError::DuplicateKey { file: file.to_owned(), key: key.clone() });
        }
    }
    Ok(entries)
}

/// Returns the text with `Infinity` replaced by the largest number. Python writes `Infinity` for absent limits
/// (`time_step_limit` of Mamba 2), but JSON does not allow it.
fn replace_infinities(text: &str) -> Cow<'_, str> {
    const INFINITY: &str = "Infinity";
    if !text.contains(INFINITY) {
        return Cow::Borrowed(text);
    }
    let (mut finite, mut rest, mut quoted) = (String::with_capacity(text.len()), text, false);
    while let Some(c) = rest.chars().next() {
        if !quoted && rest.starts_with(INFINITY) {
            finite.push_str("1.7976931348623157e308");
            rest = &rest[INFINITY.len()..];
            continue;
        }
        // The character after a backslash in a string is copied with it.
        let taken =
            if quoted && c == '\\' { 1 + rest[1..].chars().next().map_or(0, char::len_utf8) } else { c.len_utf8() };
        quoted ^= c == '"';
        finite.push_str(&rest[..taken]);
        rest = &rest[taken..];
    }
    Cow::Owned(finite)
}

/// Largest number of characters of a faulty line that a message repeats, because a file may be one long line.
const SHOWN: usize = 80;

fn describe_syntax_error(file: &str, text: &str, error: &serde_json::Error) -> WorkloadError {
    let line = error.line().max(1);
    let content: String = text.lines().nth(line - 1).unwrap_or_default().trim().chars().take(SHOWN).collect();
    let number = ["NaN", "nan", "inf"].iter().any(|word| content.contains(word));
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn infinity_is_read_as_python_writes_it() {
        let text =
            r#"{"time_step_limit": [0.0, Infinity], "low": -Infinity, "name": "To \"Infinity\" and \\", "n": 3}"#;
        let ConfigEntries(read) = parse_entries("config.json", text).unwrap();
        let value = |key: &str| read.iter().find(|(known, _)| known == key).unwrap().1.clone();
        assert_eq!(value("time_step_limit"), serde_json::json!([0.0, f64::MAX]));
        assert_eq!(value("low"), serde_json::json!(-f64::MAX));
        assert_eq!(value("name"), r#"To "Infinity" and \"#);
        assert_eq!(value("n"), 3);
    }

    #[test]
    fn what_is_no_number_is_not_read_as_one() {
        for text in ["{\"rope_theta\": NaN}", "{\"rope_theta\": Infinit}", "{Infinity: 1}"] {
            let message = parse_entries("config.json", text).err().unwrap().to_string();
            assert!(message.starts_with("config.json, line 1: not valid JSON"), "{message}");
        }
    }
}
