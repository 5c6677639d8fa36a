//! Limits on the values in records. Digests prove that a file is unchanged; these limits prove that its values are
//! possible.
//!
//! The key of a number contains its unit. Therefore the key alone decides which values are possible.

use serde_json::Value;

/// Endings of keys whose values are quantities: times, energies, powers, clocks, sizes, areas, prices and rates.
const QUANTITIES: [&str; 14] = [
    "_s",
    "_ms",
    "_j",
    "_w",
    "_mhz",
    "_gib",
    "_mib",
    "_mm2",
    "_usd",
    "_bytes",
    "_per_token",
    "_per_device",
    "_per_user",
    "_per_joule",
];
/// Other keys whose values are quantities.
const NAMED_QUANTITIES: [&str; 4] = ["value", "mfu", "utilization", "decoding"];
/// Keys of objects whose numbers are quantities, unless a number's own key sets another limit.
const TABLES: [&str; 2] = ["times", "values"];
/// Keys of fractions, from 0 to 1.
const FRACTIONS: [&str; 4] = ["load", "share", "prompt_fraction", "prefix_hit"];
/// Keys of counts, at least 1.
const COUNTS: [&str; 8] = ["devices", "devices_used", "replicas", "tp", "pp", "attention_dp", "ep", "dcp"];
/// The key of a plan's layout. Its numbers are degrees of parallelism, at least 1.
const LAYOUT: &str = "layout";
/// The key of the question. It is skipped here, because its own reader checks it.
const ASKED: &str = "asked";
/// The tolerance for rounding errors, in the unit of the value.
const ROUNDING: f64 = 1e-6;

/// An impossible value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{key} = {value}: {limit}")]
pub(crate) struct ImpossibleValue {
    /// The keys and positions that lead to the value: `cases[0].answer.choices[0].ttft_ms`.
    pub(crate) key: String,
    /// The value.
    pub(crate) value: String,
    /// The limit that it breaks.
    pub(crate) limit: String,
}

impl ImpossibleValue {
    /// Makes the error for a value that breaks a limit.
    pub(crate) fn new(key: impl Into<String>, value: impl ToString, limit: impl Into<String>) -> Self {
        Self { key: key.into(), value: value.to_string(), limit: limit.into() }
    }
}

/// The range of values that a key allows.
#[derive(Clone, Copy)]
enum KeyLimit {
    /// Any number.
    Free,
    /// Not negative.
    Quantity,
    /// From 0 to 1.
    Fraction,
    /// At least 1.
    Count,
}

impl KeyLimit {
    /// Returns the limit of a key. A key without a limit inherits the limit of the enclosing object.
    fn of_key(key: &str, outer: Self) -> Self {
        if COUNTS.contains(&key) {
            Self::Count
        } else if FRACTIONS.contains(&key) {
            Self::Fraction
        } else if NAMED_QUANTITIES.contains(&key) || QUANTITIES.iter().any(|end| key.ends_with(end)) {
            Self::Quantity
        } else {
            outer
        }
    }

    /// Returns the limit in words if a number breaks it.
    fn broken_by(self, number: f64) -> Option<&'static str> {
        match self {
            Self::Quantity if number < -ROUNDING => Some("must not be negative"),
            Self::Fraction if !(-ROUNDING..=1.0 + ROUNDING).contains(&number) => Some("must be from 0 to 1"),
            Self::Count if number < 1.0 => Some("must be at least 1"),
            _ => None,
        }
    }
}

/// Checks every number of a record by its key.
///
/// # Errors
/// The first impossible value.
pub(crate) fn check_values(record: &Value) -> Result<(), ImpossibleValue> {
    check_below(record, "", KeyLimit::Free)
}

fn check_below(value: &Value, place: &str, limit: KeyLimit) -> Result<(), ImpossibleValue> {
    match value {
        Value::Number(number) => match number.as_f64().and_then(|number| limit.broken_by(number)) {
            Some(broken) => Err(ImpossibleValue::new(place, number, broken)),
            None => Ok(()),
        },
        Value::Array(items) => {
            let mut items = items.iter().enumerate();
            items.try_for_each(|(at, item)| check_below(item, &format!("{place}[{at}]"), limit))
        }
        Value::Object(keys) => keys.iter().filter(|(key, _)| *key != ASKED).try_for_each(|(key, item)| {
            let place = if place.is_empty() { key.clone() } else { format!("{place}.{key}") };
            let own = match (item, key.as_str()) {
                (Value::Object(_), LAYOUT) => KeyLimit::Count,
                (Value::Object(_), key) if TABLES.contains(&key) => KeyLimit::Quantity,
                (Value::Object(_), _) => KeyLimit::Free,
                (_, key) => KeyLimit::of_key(key, limit),
            };
            check_below(item, &place, own)
        }),
        Value::Null | Value::Bool(_) | Value::String(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_key_says_which_values_can_be() {
        let fault = |record: Value| check_values(&record).err().map(|fault| fault.to_string());
        for (record, said) in [
            (json!({"step": {"parts": [{"busy_s": -1.0}]}}), "step.parts[0].busy_s = -1.0: must not be negative"),
            (json!({"step_interval_s": [1.0, -2.0]}), "step_interval_s[1] = -2.0: must not be negative"),
            (json!({"times": {"search": -3}}), "times.search = -3: must not be negative"),
            (json!({"choices": [{"devices": 0}]}), "choices[0].devices = 0: must be at least 1"),
            (json!({"layout": {"tensor": 0}}), "layout.tensor = 0: must be at least 1"),
            (json!({"load": 1.5}), "load = 1.5: must be from 0 to 1"),
        ] {
            assert_eq!(fault(record), Some(said.to_owned()));
        }
        // Rounding, keys without a unit, and the question are left alone.
        let sound =
            json!({"a_s": -1e-12, "lead": -0.5, "parts_s": {"tensor": 0.0}, "asked": {"devices": 0}, "seed": 0});
        assert_eq!(fault(sound), None);
    }
}
