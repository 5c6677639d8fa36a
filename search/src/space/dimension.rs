//! Dimensions of a space. A dimension is a field of the base chip's or fabric's file, or a user-defined name, with its
//! values.

use super::lookup::LookUp;
use super::names::refers_to_names;
use sim::hardware::FieldValue;
use std::collections::BTreeMap;
use std::fmt;

/// Limit on the values of one dimension.
const MOST_VALUES: usize = 65_536;

/// The values of a dimension.
#[derive(Debug, Clone, PartialEq)]
pub enum Values {
    /// A list of values.
    Listed(Vec<FieldValue>),
    /// Values that follow from other dimensions: an expression, or a word.
    Derived(String),
    /// Values looked up by another dimension.
    LookedUp(LookUp),
}

impl Values {
    /// True if the values depend on dimension `name`.
    pub(super) fn refer_to_dimension(&self, name: &str) -> bool {
        match self {
            Self::Listed(_) => false,
            Self::Derived(text) => refers_to_names(text, name),
            Self::LookedUp(look_up) => look_up.by == name,
        }
    }
}

/// Writes values in the syntax of a study.
impl fmt::Display for Values {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listed(values) => {
                write!(f, "[{}]", values.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "))
            }
            Self::Derived(text) => write!(f, "\"{text}\""),
            Self::LookedUp(look_up) => look_up.fmt(f),
        }
    }
}

/// A dimension in a study.
#[derive(Debug, Clone, PartialEq)]
pub struct Dimension {
    /// The key of a field (`memory.hbm.capacity_gib`, `fabric.tier.ici.bandwidth_gb_per_s`), or a user-defined name
    /// that other dimensions refer to.
    pub key: String,
    /// Its values.
    pub values: Values,
}

/// Reads a table of dimensions, sorted by key. Keys may be dotted or nested tables.
///
/// # Errors
/// A message with the faulty dimension, its value, the limit and the cure.
pub fn read_dimensions(table: &toml::Table) -> Result<Vec<Dimension>, String> {
    let mut found = Vec::new();
    for (key, value) in table {
        add_dimension(key.clone(), value, &mut found)?;
    }
    found.sort_by(|a, b| a.key.cmp(&b.key));
    if let Some(pair) = found.windows(2).find(|pair| pair[0].key == pair[1].key) {
        return Err(format!("space.dimensions.{}: is given twice; keep one", pair[0].key));
    }
    Ok(found)
}

/// The table that [`read_dimensions`] reads as these dimensions.
pub(super) fn dimensions_table(dimensions: &[Dimension]) -> toml::Table {
    let value = |values: &Values| match values {
        Values::Listed(list) => toml::Value::Array(list.iter().map(FieldValue::to_toml).collect()),
        Values::Derived(formula) => toml::Value::String(formula.clone()),
        Values::LookedUp(LookUp { by, values }) => {
            let values = values.iter().map(|(key, value)| (key.clone(), value.to_toml())).collect();
            let entries = [("by", toml::Value::String(by.clone())), ("values", toml::Value::Table(values))];
            toml::Value::Table(entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect())
        }
    };
    dimensions.iter().map(|dimension| (dimension.key.clone(), value(&dimension.values))).collect()
}

fn add_dimension(key: String, value: &toml::Value, found: &mut Vec<Dimension>) -> Result<(), String> {
    let fault = |limit: &str| format!("space.dimensions.{key} = {value}: {limit}");
    let values = match value {
        toml::Value::String(sides) if is_torus_sides(sides) => Values::Listed(vec![FieldValue::Word(sides.clone())]),
        toml::Value::String(formula) => Values::Derived(formula.clone()),
        toml::Value::Table(table) if table.contains_key("from") || table.contains_key("to") => {
            Values::Listed(values_of_range(table).map_err(fault)?)
        }
        toml::Value::Table(table) if table.contains_key("by") || table.contains_key("values") => {
            Values::LookedUp(LookUp::read_table(table).map_err(|why| fault(&why))?)
        }
        toml::Value::Table(table) => {
            for (inner, value) in table {
                add_dimension(format!("{key}.{inner}"), value, found)?;
            }
            return Ok(());
        }
        toml::Value::Array(items) => {
            let mut values: Vec<FieldValue> = Vec::with_capacity(items.len());
            for item in items {
                let Some(value) = torus_sides(item).or_else(|| FieldValue::from_toml(item)) else {
                    return Err(fault("has a value that is no number, word or torus (4x4x8); correct it"));
                };
                // A repeated value is dropped, because it would make the same chip.
                if !values.contains(&value) {
                    values.push(value);
                }
            }
            Values::Listed(values)
        }
        value => match FieldValue::from_toml(value) {
            Some(value) => Values::Listed(vec![value]),
            None => return Err(fault("is no number and no word; give a value or a list")),
        },
    };
    if let Values::Listed(list) = &values {
        if list.is_empty() || list.len() > MOST_VALUES {
            return Err(fault(&format!("needs 1 to {MOST_VALUES} values; list the values to try")));
        }
        if list.iter().any(|value| value.number().is_some_and(|number| !number.is_finite())) {
            return Err(fault("has a number that is not finite; correct it"));
        }
    }
    found.push(Dimension { key, values });
    Ok(())
}

/// A list of torus sides as a word, for example `4x4x8`. `None` unless it has at least two positive whole numbers.
fn torus_sides(item: &toml::Value) -> Option<FieldValue> {
    let sides = item.as_array()?.iter().map(|side| side.as_integer().filter(|side| *side > 0));
    let sides: Vec<String> = sides.map(|side| Some(side?.to_string())).collect::<Option<_>>()?;
    (sides.len() > 1).then(|| FieldValue::Word(sides.join("x")))
}

/// True if a text gives the sides of a torus (`4x4x8`) and is no expression.
fn is_torus_sides(text: &str) -> bool {
    let number = |side: &str| !side.is_empty() && side.bytes().all(|byte| byte.is_ascii_digit());
    text.contains('x') && text.split('x').all(number)
}

/// Expands `{ from, to, step }` or `{ from, to, factor }`, both ends included.
fn values_of_range(table: &toml::Table) -> Result<Vec<FieldValue>, &'static str> {
    const FORM: &str = "write { from = 16, to = 64, step = 16 }, or { from = 1, to = 64, factor = 2 }";
    let number = |key: &str| table.get(key).and_then(FieldValue::from_toml).and_then(|value| value.number());
    let (Some(from), Some(to)) = (number("from"), number("to")) else { return Err(FORM) };
    if table.len() != 3 || !(from.is_finite() && to.is_finite()) {
        return Err(FORM);
    }
    if from > to {
        return Err("the range is empty: `from` is above `to`; swap them");
    }
    // The allowance includes an end that sums or products of decimals just miss.
    let end = to + (to.abs() + from.abs()) * 1e-12;
    let mut values = Vec::new();
    match (number("step"), number("factor")) {
        (Some(step), None) if step.is_finite() && step > 0.0 => {
            let mut at = from;
            while at <= end && values.len() <= MOST_VALUES {
                values.push(FieldValue::Number(at));
                at = from + step * values.len() as f64;
            }
        }
        (None, Some(factor)) if factor.is_finite() && factor > 1.0 && from > 0.0 => {
            let mut at = from;
            while at <= end && values.len() <= MOST_VALUES {
                values.push(FieldValue::Number(at));
                at *= factor;
            }
        }
        (None, Some(_)) => return Err("`factor` must be above 1 and `from` above 0; correct it"),
        (Some(_), None) => return Err("`step` must be above 0; correct it"),
        _ => return Err(FORM),
    }
    Ok(values)
}

/// Describes a cycle among dimensions that refer to each other, as an error message.
pub(super) fn describe_cycle(waiting: &BTreeMap<&str, &Values>) -> String {
    let next = |key: &str| {
        waiting.keys().copied().find(|name| waiting.get(key).is_some_and(|values| values.refer_to_dimension(name)))
    };
    let mut path: Vec<&str> = waiting.keys().copied().take(1).collect();
    while let Some(key) = path.last().and_then(|key| next(key)) {
        let begin = path.iter().position(|before| *before == key);
        path.push(key);
        if let Some(begin) = begin {
            let values = waiting.get(key).map_or_else(String::new, ToString::to_string);
            let way = path[begin..].join(" -> ");
            return format!("space.dimensions.{key} = {values}: it refers to itself ({way}); give one of them values");
        }
    }
    "space.dimensions: dimensions refer to each other in a cycle; give one of them values".to_owned()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;

    fn dimensions(text: &str) -> Result<Vec<Dimension>, String> {
        read_dimensions(&toml::from_str(text).unwrap())
    }

    fn numbers(text: &str) -> Vec<f64> {
        let found = dimensions(text).unwrap();
        let Values::Listed(list) = &found[0].values else { panic!("{found:?}") };
        list.iter().map(|value| value.number().unwrap()).collect()
    }

    #[test]
    fn lists_ranges_powers_and_formulas_are_read() {
        assert_eq!(numbers("a = [4, 2, 4]"), [4.0, 2.0]);
        assert_eq!(numbers("a = { from = 0.1, to = 0.5, step = 0.1 }").len(), 5);
        assert_eq!(numbers("a = { from = 2, to = 64, factor = 2 }"), [2.0, 4.0, 8.0, 16.0, 32.0, 64.0]);
        assert_eq!(numbers("a = 7"), [7.0]);
        let found =
            dimensions("tensor.cores = [1, 2]\n\"tensor.rows\" = [8]\nclock_mhz = \"1000 + tensor.cores\"").unwrap();
        let keys: Vec<&str> = found.iter().map(|d| d.key.as_str()).collect();
        assert_eq!(keys, ["clock_mhz", "tensor.cores", "tensor.rows"]);
        assert_eq!(found[0].values, Values::Derived("1000 + tensor.cores".into()));
        let found = dimensions("a = { by = \"b\", values = { n7 = 1, n3 = \"x\" } }").unwrap();
        let values = [("n7", FieldValue::Number(1.0)), ("n3", FieldValue::Word("x".into()))];
        let mut look_up =
            LookUp { by: "b".into(), values: values.map(|(key, value)| (key.to_owned(), value)).to_vec() };
        look_up.values.sort_by(|a, b| a.0.cmp(&b.0));
        assert_eq!(found[0].values.to_string(), "{ by = \"b\", values = { n3 = \"x\", n7 = 1 } }");
        assert_eq!(found[0].values, Values::LookedUp(look_up));
    }

    #[test]
    fn sides_of_a_torus_are_read_as_lists_and_as_words() {
        let words = |list: &[&str]| Values::Listed(list.iter().map(|word| FieldValue::Word((*word).into())).collect());
        assert_eq!(dimensions("a = [[4, 4, 8], \"8x16\"]").unwrap()[0].values, words(&["4x4x8", "8x16"]));
        assert_eq!(dimensions("a = \"16x16\"").unwrap()[0].values, words(&["16x16"]));
        assert_eq!(dimensions("a = \"4 * x\"").unwrap()[0].values, Values::Derived("4 * x".into()));
    }

    #[test]
    fn what_is_no_dimension_is_named() {
        for (text, why) in [
            ("a = []", "space.dimensions.a = []: needs 1 to 65536 values; list the values to try"),
            ("a = [nan]", "space.dimensions.a = [nan]: has a number that is not finite; correct it"),
            (
                "a = [[1]]",
                "space.dimensions.a = [[1]]: has a value that is no number, word or torus (4x4x8); correct it",
            ),
            ("a = [[4, 0]]", "has a value that is no number, word or torus (4x4x8); correct it"),
            ("a = { from = 4, to = 2, step = 1 }", "the range is empty: `from` is above `to`; swap them"),
            ("a = { from = 1, to = 2 }", "write { from = 16, to = 64, step = 16 }"),
            ("a = { from = 1, to = 2, step = 0 }", "`step` must be above 0; correct it"),
            ("a = { from = 0, to = 2, factor = 2 }", "`factor` must be above 1 and `from` above 0; correct it"),
            (
                "a = { by = \"b\" }",
                "space.dimensions.a = { by = \"b\" }: write { by = \"area.node\", values = { n7 = 460, n3 = 922 } }",
            ),
            ("a = { by = \"b\", values = {} }", "write { by = "),
            ("a = { by = 4, values = { 4 = 1 } }", "write { by = "),
            ("a = { by = \"b\", values = { 4 = 1 }, step = 2 }", "write { by = "),
            (
                "a = { by = \"b\", values = { 4 = nan } }",
                "4 = nan must be a finite number, a word or a flag; correct it",
            ),
            (
                "a = { by = \"b\", values = { 4 = [1] } }",
                "4 = [1] must be a finite number, a word or a flag; correct it",
            ),
            ("tensor.cores = 1\n\"tensor.cores\" = 2", "space.dimensions.tensor.cores: is given twice; keep one"),
        ] {
            let error = dimensions(text).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }
}
