//! Look-ups: the value of a dimension that belongs to each value of another, where no expression says it (which HBM a process has).

use super::formula::ValueExtent;
use super::interval::NumberInterval;
use sim::hardware::FieldValue;
use std::fmt;

/// What a dimension is for each value of another: `{ by = "area.node", values = { n7 = 460, n3 = 922 } }`.
#[derive(Debug, Clone, PartialEq)]
pub struct LookUp {
    /// The other dimension, or a field of the base.
    pub by: String,
    /// Its values as a study writes them, and what belongs to each.
    pub values: Vec<(String, FieldValue)>,
}

impl LookUp {
    /// Reads a table with `by` and `values`.
    ///
    /// # Errors
    /// What is wrong, and the cure.
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
            let wrong = || format!("{key} = {value} is no finite number, no word and no flag; correct it");
            found.push((key.clone(), setting.ok_or_else(wrong)?));
        }
        Ok(Self { by: by.trim().to_owned(), values: found })
    }

    /// Whether something belongs to a value of the other.
    #[must_use]
    pub fn has_value_for(&self, value: &FieldValue) -> bool {
        self.value_for(value).is_ok()
    }

    /// What belongs to a value of the other.
    ///
    /// # Errors
    /// Nothing does: the cure.
    pub(super) fn value_for(&self, value: &FieldValue) -> Result<&FieldValue, String> {
        let found = self.values.iter().find(|(key, _)| key_matches(key, value));
        found.map(|(_, of)| of).ok_or_else(|| {
            let by = &self.by;
            format!("has no value for {by} = {value}; add one (values = {{ {value} = ... }}), or leave {value} out of {by}")
        })
    }

    /// What is known of it where so much is known of the other.
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

/// Whether a key of a look-up means a value.
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
