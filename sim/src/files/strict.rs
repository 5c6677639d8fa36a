//! JSON in which no object gives a key twice. An ordinary reader would silently take one of the two values.

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};
use std::fmt;

/// Returns the value of a JSON text.
///
/// # Errors
/// Text that is not JSON, or a key given twice in an object at any depth ([`serde_json::Error::is_data`] distinguishes
/// the two).
pub fn parse_strict(text: &str) -> Result<Value, serde_json::Error> {
    let mut reader = serde_json::Deserializer::from_str(text);
    let value = StrictJson.deserialize(&mut reader)?;
    reader.end()?;
    Ok(value)
}

/// Returns the cure for a text that [`parse_strict`] refuses: `otherwise`, unless a key is given twice.
#[must_use]
pub fn cure_for_refusal<'a>(error: &serde_json::Error, otherwise: &'a str) -> &'a str {
    if error.is_data() { "give each key once" } else { otherwise }
}

/// Reads a value and checks the keys of every object in it.
#[derive(Debug, Clone, Copy)]
pub struct StrictJson;

impl<'de> DeserializeSeed<'de> for StrictJson {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for StrictJson {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(Value::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(Value::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(Value::String(value.to_owned()))
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(Value::String(value))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = list.next_element_seed(Self)? {
            items.push(item);
        }
        Ok(Value::Array(items))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(key) = object.next_key::<String>()? {
            if map.contains_key(&key) {
                return Err(A::Error::custom(format!("key `{key}` is given twice")));
            }
            let value = object.next_value_seed(Self)?;
            map.insert(key, value);
        }
        Ok(Value::Object(map))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn texts_without_repeated_keys_are_read_as_they_are() {
        for text in [
            r#"{"a": [1, -2, 2.5, 1e300, "x", null, true, {"a": {}}], "b": {"a": 18446744073709551615}}"#,
            "[]",
            "3",
            "\"\\u00e9\"",
        ] {
            assert_eq!(parse_strict(text).unwrap(), serde_json::from_str::<Value>(text).unwrap(), "{text}");
        }
        for text in ["", "{", "[1,]", "NaN", "1e400", "{} {}", r#"{"a" 1}"#] {
            assert!(!parse_strict(text).unwrap_err().is_data(), "{text}");
            assert!(serde_json::from_str::<Value>(text).is_err(), "{text}");
        }
    }

    #[test]
    fn keys_given_twice_are_refused_at_any_depth() {
        for text in [r#"{"a": 1, "a": 1}"#, r#"{"b": [{"a": 1, "c": 2, "a": null}]}"#, "{\"\\u0061\": 1,\n\"a\": 2}"] {
            let error = parse_strict(text).unwrap_err();
            assert!(error.is_data() && error.to_string().starts_with("key `a` is given twice at line "), "{error}");
            assert_eq!(cure_for_refusal(&error, "mend it"), "give each key once");
        }
    }
}
