//! Look-ups: tables of a dimension's value for each value of another one. They express relations without a formula,
//! such as the HBM rate of a process node.

use super::extent::ValueExtent;
use super::interval::NumberInterval;
use sim::hardware::FieldValue;
use std::fmt;

/// A dimension's value for each value of another: `{ by = "area.node", values = { n7 = 460, n3 = 922 } }`.
#[derive(Debug, Clone, PartialEq)]
pub struct LookUp {
    /// The other dimension, or a field of the base.
    pub by: String,
    /// The other dimension's values in the study's syntax, each with its result.
    pub values: Vec<(String, FieldValue)>,
}

impl LookUp {
    /// Reads a table with `by` and `values`.
    ///
    /// # Errors
    /// A message with the fault and the cure.
    pub(super) fn read_table(table: &toml::Table) -> Result<Self, String> {
        const FORM: &str = "write { by = \"area.node\", values = { n7 = 460, n3 = 922 } }";
        let (Some(by), Some(values)) = (table.get("by").and_then(toml::Value::as_str), table.get("values")) else {
            return Err(FORM.into());
        };
        let Some(values) = values.as_table().filter(|values| table.len() == 2 && !values.is_empty()) else {
            return Err(FORM.into());
        };
        let mut found = Vec::with_capacity(values.len());
        for (key, value) in values {
            let setting = FieldValue::from_toml(value).filter(|setting| setting.number().is_none_or(f64::is_finite));
            let wrong = || format!("{key} = {value} must be a finite number, a word or a flag; correct it");
            found.push((key.clone(), setting.ok_or_else(wrong)?));
        }
        Ok(Self { by: by.trim().to_owned(), values: found })
    }

    /// True if the look-up has a result for `value`.
    #[must_use]
    pub fn has_value_for(&self, value: &FieldValue) -> bool {
        self.value_for(value).is_ok()
    }

    /// The result for `value`.
    ///
    /// # Errors
    /// A message that there is no result, with the cure.
    pub(super) fn value_for(&self, value: &FieldValue) -> Result<&FieldValue, String> {
        let found = self.values.iter().find(|(key, _)| key_matches(key, value));
        found.map(|(_, of)| of).ok_or_else(|| {
            let by = &self.by;
            format!(
                "has no value for {by} = {value}; add one (values = {{ {value} = ... }}), or leave {value} out of {by}"
            )
        })
    }

    /// The extent of the results over an extent of the other dimension.
    ///
    /// # Errors
    /// As [`Self::value_for`].
    pub(super) fn extent_for(&self, of: &ValueExtent) -> Result<ValueExtent, String> {
        let found: Vec<&FieldValue> = match of {
            ValueExtent::Fixed(value) => vec![self.value_for(value)?],
            ValueExtent::Among(values) => values.iter().map(|value| self.value_for(value)).collect::<Result<_, _>>()?,
            ValueExtent::Between(NumberInterval { low, high }) => {
                let within = |key: &str| key.parse().is_ok_and(|number: f64| (*low..=*high).contains(&number));
                self.values.iter().filter(|(key, _)| within(key)).map(|(_, of)| of).collect()
            }
            ValueExtent::Unknown => self.values.iter().map(|(_, of)| of).collect(),
        };
        Ok(ValueExtent::one_of(found))
    }
}

/// True if a key of the look-up stands for `value`.
fn key_matches(key: &str, value: &FieldValue) -> bool {
    match value {
        FieldValue::Number(number) => key.parse() == Ok(*number),
        other => other.to_string() == key,
    }
}

impl fmt::Display for LookUp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let values = self.values.iter().map(|(key, value)| match value {
            FieldValue::Word(word) => format!("{key} = \"{word}\""),
            other => format!("{key} = {other}"),
        });
        write!(f, "{{ by = \"{}\", values = {{ {} }} }}", self.by, values.collect::<Vec<_>>().join(", "))
    }
}
