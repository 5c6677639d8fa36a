//! Strict reading of JSON: every key must be known and every figure in its range. Every fault is recorded with its
//! path, value, limit and cure.

use super::{FileError, FileFault, strict};
use serde_json::{Map, Value};
use std::fmt::Display;

/// Longest value that a message quotes, in characters.
const QUOTED: usize = 60;

/// A reader of one file. After a fault it continues with a substitute value; [`JsonReader::finish_reading`] returns the
/// faults.
#[derive(Debug)]
pub struct JsonReader {
    file: String,
    faults: Vec<FileFault>,
}

/// An object of the file and its path: empty for the root, else with a trailing dot.
#[derive(Debug, Clone)]
pub struct JsonObject<'a> {
    /// Prefix of all its keys in messages.
    pub path: String,
    map: &'a Map<String, Value>,
}

impl<'a> JsonObject<'a> {
    /// True if it has this key.
    #[must_use]
    pub fn contains_key(&self, key: &str) -> bool {
        self.map.contains_key(key)
    }

    /// Its keys and values.
    pub fn entries(&self) -> impl Iterator<Item = (&'a str, &'a Value)> + use<'a> {
        self.map.iter().map(|(key, value)| (key.as_str(), value))
    }
}

impl JsonReader {
    /// Creates a reader of `file`, which is named in errors.
    #[must_use]
    pub fn new(file: &str) -> Self {
        Self { file: file.to_owned(), faults: Vec::new() }
    }

    /// Parses a JSON text; `what` describes the expected file.
    ///
    /// # Errors
    /// Text that is not JSON, or that gives a key twice.
    pub fn parse_value(&self, text: &str, what: &str) -> Result<Value, FileError> {
        strict::parse_strict(text).map_err(|why| malformed_error(&self.file, &why, &format!("give {what}")))
    }

    /// Returns `read`, or all faults.
    ///
    /// # Errors
    /// Any recorded fault.
    pub fn finish_reading<T>(self, read: T) -> Result<T, FileError> {
        if self.faults.is_empty() { Ok(read) } else { Err(FileError { file: self.file, faults: self.faults }) }
    }

    /// True if there is no fault so far.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        self.faults.is_empty()
    }

    /// Records a fault.
    pub fn add_fault(
        &mut self,
        key: impl Into<String>,
        value: impl Display,
        limit: impl Into<String>,
        cure: impl Into<String>,
    ) {
        self.faults.push(FileFault::new(key, shorten_value(&value.to_string()), limit, cure));
    }

    /// Returns the root object. If the value is not an object, records a fault and returns `None`.
    pub fn root_object<'a>(&mut self, value: &'a Value) -> Option<JsonObject<'a>> {
        self.object_at("", value)
    }

    /// Returns the object at a path. If the value is not an object, records a fault and returns `None`.
    pub fn object_at<'a>(&mut self, path: &str, value: &'a Value) -> Option<JsonObject<'a>> {
        let Some(map) = value.as_object() else {
            let key = if path.is_empty() { "the file" } else { path };
            self.add_fault(key, value, "must be an object", "put its keys in { }");
            return None;
        };
        let path = if path.is_empty() { String::new() } else { format!("{path}.") };
        Some(JsonObject { path, map })
    }

    /// Returns the object under a key. If the key is missing or its value is not an object, records a fault and returns
    /// `None`.
    pub fn object_under<'a>(&mut self, object: &JsonObject<'a>, key: &str) -> Option<JsonObject<'a>> {
        let value = self.value_of_key(object, key)?;
        self.object_at(&format!("{}{key}", object.path), value)
    }

    /// Records a fault for the first key that is not in `known`.
    pub fn refuse_unknown_keys(&mut self, object: &JsonObject<'_>, known: &[&str]) {
        if let Some((key, value)) = object.map.iter().find(|(key, _)| !known.contains(&key.as_str())) {
            let limit = format!("is not a key; there are {}", known.join(", "));
            self.add_fault(format!("{}{key}", object.path), value, limit, "remove it or correct its name");
        }
    }

    /// Returns the value of a required key. If the key is missing, records a fault and returns `None`.
    pub fn value_of_key<'a>(&mut self, object: &JsonObject<'a>, key: &str) -> Option<&'a Value> {
        let found = object.map.get(key);
        if found.is_none() {
            self.add_fault(format!("{}{key}", object.path), "nothing", "this key is needed", "add it");
        }
        found
    }

    /// Returns the list under a key; an empty list after a fault.
    pub fn list_under<'a>(&mut self, object: &JsonObject<'a>, key: &str) -> &'a [Value] {
        let Some(value) = self.value_of_key(object, key) else { return &[] };
        value.as_array().map_or_else(
            || {
                self.add_fault(format!("{}{key}", object.path), value, "must be a list", "put it in [ ]");
                &[][..]
            },
            Vec::as_slice,
        )
    }

    /// Returns a number from `least` to `most` under a key; `least` after a fault.
    pub fn number_under(&mut self, object: &JsonObject<'_>, key: &str, least: f64, most: f64) -> f64 {
        match self.value_of_key(object, key) {
            Some(value) => self.number_at(&format!("{}{key}", object.path), value, least, most),
            None => least,
        }
    }

    /// Returns a number from `least` to `most` at a path; `least` after a fault.
    pub fn number_at(&mut self, path: &str, value: &Value, least: f64, most: f64) -> f64 {
        match value.as_f64() {
            Some(number) if (least..=most).contains(&number) => number,
            Some(_) => {
                self.add_fault(
                    path,
                    value,
                    format!("must lie between {} and {}", format_limit(least), format_limit(most)),
                    "correct it",
                );
                least
            }
            None => {
                self.add_fault(path, value, "must be a number", "write it without quotes");
                least
            }
        }
    }

    /// Returns a positive number up to `most` under a key; the smallest positive `f64` after a fault.
    pub fn positive_number_under(&mut self, object: &JsonObject<'_>, key: &str, most: f64) -> f64 {
        let before = self.faults.len();
        let number = self.number_under(object, key, 0.0, most);
        if number > 0.0 || self.faults.len() > before {
            return number.max(f64::MIN_POSITIVE);
        }
        self.add_fault(format!("{}{key}", object.path), "0", "must be positive", "correct it");
        f64::MIN_POSITIVE
    }

    /// Returns a whole number from `least` to `most` under a key; `least` after a fault.
    pub fn count_under(&mut self, object: &JsonObject<'_>, key: &str, least: u64, most: u64) -> u64 {
        let Some(value) = self.value_of_key(object, key) else { return least };
        // Tools that compute in floats write 8 as 8.0.
        let whole =
            value.as_u64().or_else(|| value.as_f64().filter(|n| n.fract() == 0.0 && *n >= 0.0).map(|n| n as u64));
        match whole {
            Some(count) if (least..=most).contains(&count) => count,
            _ => {
                let limit = format!("must be a whole number between {least} and {most}");
                self.add_fault(format!("{}{key}", object.path), value, limit, "correct it");
                least
            }
        }
    }

    /// Returns a Boolean under a key; false after a fault.
    pub fn flag_under(&mut self, object: &JsonObject<'_>, key: &str) -> bool {
        let Some(value) = self.value_of_key(object, key) else { return false };
        value.as_bool().unwrap_or_else(|| {
            self.add_fault(format!("{}{key}", object.path), value, "must be true or false", "write it without quotes");
            false
        })
    }

    /// Returns a text under a key; an empty text after a fault.
    pub fn text_under<'a>(&mut self, object: &JsonObject<'a>, key: &str) -> &'a str {
        let Some(value) = self.value_of_key(object, key) else { return "" };
        value.as_str().unwrap_or_else(|| {
            self.add_fault(format!("{}{key}", object.path), value, "must be a text", "put it in quotes");
            ""
        })
    }

    /// Returns the meaning of the text under a key, from the pairs in `known`. After a fault it is the first meaning,
    /// or `None` if `known` is empty.
    pub fn choice_under<T: Copy>(&mut self, object: &JsonObject<'_>, key: &str, known: &[(&str, T)]) -> Option<T> {
        let before = self.faults.len();
        let text = self.text_under(object, key);
        let found = known.iter().find(|(name, _)| *name == text).map(|(_, meaning)| *meaning);
        if found.is_none() && self.faults.len() == before {
            let names = known.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
            self.add_fault(
                format!("{}{key}", object.path),
                format!("\"{text}\""),
                format!("must be one of {names}"),
                "correct it",
            );
        }
        found.or_else(|| known.first().map(|(_, meaning)| *meaning))
    }
}

/// Returns the error for a text that [`strict::parse_strict`] refuses.
#[must_use]
pub fn malformed_error(file: &str, why: &serde_json::Error, cure: &str) -> FileError {
    let limit = if why.is_data() { why.to_string() } else { format!("must be JSON: {why}") };
    FileError {
        file: file.to_owned(),
        faults: vec![FileFault::new("text", "malformed", limit, strict::cure_for_refusal(why, cure))],
    }
}

/// Returns a limit in readable form.
fn format_limit(limit: f64) -> String {
    if limit.abs() >= 1e7 { format!("{limit:e}") } else { limit.to_string() }
}

fn shorten_value(text: &str) -> String {
    if text.chars().count() <= QUOTED {
        return text.to_owned();
    }
    text.chars().take(QUOTED - 3).chain("...".chars()).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Returns the error message after `read` has read the root object.
    fn message(text: &str, read: impl FnOnce(&mut JsonReader, &JsonObject<'_>)) -> String {
        let mut reading = JsonReader::new("f.json");
        let value = reading.parse_value(text, "a file").unwrap();
        if let Some(root) = reading.root_object(&value) {
            read(&mut reading, &root);
        }
        reading.finish_reading(()).unwrap_err().to_string()
    }

    #[test]
    fn faults_name_file_key_value_limit_and_cure() {
        let count = |text| message(text, |r, o| assert_eq!(r.count_under(o, "n", 1, 8), 1));
        assert_eq!(count("{}"), "f.json: n = nothing: this key is needed; add it");
        assert_eq!(count(r#"{"n": -3}"#), "f.json: n = -3: must be a whole number between 1 and 8; correct it");
        assert_eq!(count(r#"{"n": 2.5}"#), "f.json: n = 2.5: must be a whole number between 1 and 8; correct it");
        assert_eq!(count(r#"{"n": "4"}"#), "f.json: n = \"4\": must be a whole number between 1 and 8; correct it");
        let positive = |text| message(text, |r, o| assert!(r.positive_number_under(o, "x", 1e12) > 0.0));
        assert_eq!(positive(r#"{"x": 0}"#), "f.json: x = 0: must be positive; correct it");
        assert_eq!(positive(r#"{"x": -1}"#), "f.json: x = -1: must lie between 0 and 1e12; correct it");
        let odd = message(r#"{"n": 1, "m": 2}"#, |r, o| r.refuse_unknown_keys(o, &["n"]));
        assert_eq!(odd, "f.json: m = 2: is not a key; there are n; remove it or correct its name");
        let kind = message(r#"{"k": "c"}"#, |r, o| assert_eq!(r.choice_under(o, "k", &[("a", 1), ("b", 2)]), Some(1)));
        assert_eq!(kind, "f.json: k = \"c\": must be one of a, b; correct it");
        assert_eq!(message("[1]", |_, _| ()), "f.json: the file = [1]: must be an object; put its keys in { }");
    }

    #[test]
    fn whole_floats_are_counts() {
        let mut reading = JsonReader::new("f.json");
        let value = reading.parse_value(r#"{"n": 8.0}"#, "a file").unwrap();
        let root = reading.root_object(&value).unwrap();
        assert_eq!(reading.count_under(&root, "n", 1, 8), 8);
        assert!(reading.finish_reading(()).is_ok());
    }
}
