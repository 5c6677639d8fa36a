//! A TOML file as a document with fields that are found and set by dotted keys. Tables of a list go by their names
//! (`memory.hbm.capacity_gib`).

use super::FileFault;
use std::fmt;

/// The value of a field.
#[derive(Debug, Clone, PartialEq)]
pub enum FieldValue {
    /// A number in the unit that the key names.
    Number(f64),
    /// A word, such as the name of a technology node.
    Word(String),
    /// True or false.
    Flag(bool),
}

impl FieldValue {
    /// The number, if it is one.
    #[must_use]
    pub fn number(&self) -> Option<f64> {
        if let Self::Number(number) = self { Some(*number) } else { None }
    }

    /// Converts a TOML value; `None` for dates, lists and tables.
    #[must_use]
    pub fn from_toml(value: &toml::Value) -> Option<Self> {
        match value {
            toml::Value::Integer(whole) => Some(Self::Number(*whole as f64)),
            toml::Value::Float(number) => Some(Self::Number(*number)),
            toml::Value::String(word) => Some(Self::Word(word.clone())),
            toml::Value::Boolean(flag) => Some(Self::Flag(*flag)),
            _ => None,
        }
    }

    /// Converts the value to TOML; a whole number becomes an integer.
    #[must_use]
    pub fn to_toml(&self) -> toml::Value {
        /// Whole numbers up to this are written as integers: a double holds them all exactly.
        const LARGEST_WHOLE: f64 = 9e15;
        match self {
            Self::Number(number) if number.fract() == 0.0 && number.abs() <= LARGEST_WHOLE => {
                toml::Value::Integer(*number as i64)
            }
            Self::Number(number) => toml::Value::Float(*number),
            Self::Word(word) => toml::Value::String(word.clone()),
            Self::Flag(flag) => toml::Value::Boolean(*flag),
        }
    }
}

impl fmt::Display for FieldValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => write!(f, "{number}"),
            Self::Word(word) => f.write_str(word),
            Self::Flag(flag) => write!(f, "{flag}"),
        }
    }
}

/// Alternative keys of a memory. A file has one of each group; setting one replaces the others.
const ALTERNATIVES: [&[&str]; 3] = [
    &["capacity_kib", "capacity_mib", "capacity_gib", "capacity_gb"],
    &["read_gb_per_s", "read_bytes_per_cycle"],
    &["write_gb_per_s", "write_bytes_per_cycle"],
];

/// Returns every field with a single value, with its dotted key. Items of a list without a `name` are skipped.
#[must_use]
pub fn list_fields(table: &toml::Table) -> Vec<(String, FieldValue)> {
    let mut found = Vec::new();
    for (key, value) in table {
        collect_leaves(key.clone(), value, &mut found);
    }
    found
}

/// Returns the value of a field. `None` if there is no such field, or if it is a table or a list.
#[must_use]
pub fn field_value(table: &toml::Table, key: &str) -> Option<FieldValue> {
    let (parents, last) = split_key(key);
    let mut parents = parents.iter();
    let Some(first) = parents.next() else { return table.get(last).and_then(FieldValue::from_toml) };
    let parent = parents.try_fold(table.get(*first)?, |value, part| value_under(value, part))?;
    parent.get(last).and_then(FieldValue::from_toml)
}

/// Sets a field in a table that the file has, and removes the field's alternatives: `read_bytes_per_cycle` replaces
/// `read_gb_per_s`.
///
/// # Errors
/// There is no such table, or the field is a table or a list.
pub fn set_field(table: &mut toml::Table, key: &str, value: &FieldValue, file: &str) -> Result<(), FileFault> {
    let (parents, last) = split_key(key);
    let Some(table) =
        parents.iter().try_fold(FieldParent::Table(table), FieldParent::child_of).and_then(FieldParent::into_table)
    else {
        let cure = format!("use a field of {}'s file (coplace list dimensions)", file);
        return Err(FileFault::new(key, value, "there is no such table", cure));
    };
    if table.get(last).is_some_and(|found| FieldValue::from_toml(found).is_none()) {
        return Err(FileFault::new(key, value, "is a table or a list, not a field", "use one of its fields"));
    }
    for other in ALTERNATIVES.iter().filter(|keys| keys.contains(&last)).flat_map(|keys| keys.iter()) {
        table.remove(*other);
    }
    table.insert(last.to_owned(), value.to_toml());
    Ok(())
}

/// Splits a dotted key into the keys of the enclosing tables and the field's own key.
fn split_key(key: &str) -> (Vec<&str>, &str) {
    let mut parts: Vec<&str> = key.split('.').collect();
    let last = parts.pop().unwrap_or_default();
    (parts, last)
}

/// Returns the value under a key, or under a name in a list of named tables.
fn value_under<'a>(value: &'a toml::Value, part: &str) -> Option<&'a toml::Value> {
    match value {
        toml::Value::Table(table) => table.get(part),
        toml::Value::Array(items) => items.iter().find(|item| is_named(item, part)),
        _ => None,
    }
}

fn is_named(item: &toml::Value, name: &str) -> bool {
    item.get("name").and_then(toml::Value::as_str) == Some(name)
}

/// The container of a field.
enum FieldParent<'a> {
    Table(&'a mut toml::Table),
    List(&'a mut Vec<toml::Value>),
}

impl<'a> FieldParent<'a> {
    fn child_of(self, part: &&str) -> Option<Self> {
        let value = match self {
            Self::Table(table) => table.get_mut(*part)?,
            Self::List(items) => items.iter_mut().find(|item| is_named(item, part))?,
        };
        match value {
            toml::Value::Table(table) => Some(Self::Table(table)),
            toml::Value::Array(items) => Some(Self::List(items)),
            _ => None,
        }
    }

    fn into_table(self) -> Option<&'a mut toml::Table> {
        if let Self::Table(table) = self { Some(table) } else { None }
    }
}

/// Appends the fields with a single value at or below a value to `found`.
fn collect_leaves(key: String, value: &toml::Value, found: &mut Vec<(String, FieldValue)>) {
    match value {
        toml::Value::Table(table) => {
            for (inner, value) in table.iter().filter(|(inner, _)| *inner != "name") {
                collect_leaves(format!("{key}.{inner}"), value, found);
            }
        }
        toml::Value::Array(items) => {
            for item in items {
                if let Some(name) = item.get("name").and_then(toml::Value::as_str) {
                    collect_leaves(format!("{key}.{name}"), item, found);
                }
            }
        }
        value => found.extend(FieldValue::from_toml(value).map(|value| (key, value))),
    }
}
