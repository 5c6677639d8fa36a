//! Checks that every number of a chip's file has a source.

use crate::files::FileFault;
use std::collections::BTreeMap;

/// Returns the `[sources]` table as texts by dotted key. Nested tables and quoted dotted keys are equivalent.
pub(super) fn flatten_sources(table: &toml::Table, faults: &mut Vec<FileFault>) -> BTreeMap<String, String> {
    let mut flat = BTreeMap::new();
    let mut stack: Vec<(String, &toml::Value)> = table.iter().map(|(key, value)| (key.clone(), value)).collect();
    while let Some((key, value)) = stack.pop() {
        match value {
            toml::Value::String(text) if !text.trim().is_empty() => {
                flat.insert(key, text.clone());
            }
            toml::Value::Table(inner) => stack.extend(inner.iter().map(|(k, v)| (format!("{key}.{k}"), v))),
            _ => faults.push(FileFault::new(
                format!("sources.{key}"),
                value,
                "a source is a text",
                "name the paper, table or data sheet",
            )),
        }
    }
    flat
}

/// The section that a file may leave out with a reason, under its own name in `[sources]`.
const LEFT_OUT_WITH_REASON: &str = "area";

/// True if this source says why the file lacks a section.
pub(super) fn is_reason_of_absence(file: &toml::Table, source: &str) -> bool {
    source == LEFT_OUT_WITH_REASON && !file.contains_key(source)
}

/// Checks that a source covers every number and that every source covers a number. Fitted scalars are exempt, because
/// they have `fitted_on`; so are changed constants, which are an assumption of the file. A source of `area` in a file
/// without that section says why it has none.
pub(super) fn check_sources(file: &toml::Table, sources: &BTreeMap<String, String>, faults: &mut Vec<FileFault>) {
    let mut numbers = Vec::new();
    for (key, value) in file.iter().filter(|(key, _)| {
        !matches!(key.as_str(), "sources" | "calibration" | "library" | "attention" | "streams" | "constants")
    }) {
        number_leaves(key.clone(), value, &mut numbers);
    }
    let covers = |source: &str, number: &str| {
        number.strip_prefix(source).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    for (number, value) in &numbers {
        if !sources.keys().any(|source| covers(source, number)) {
            let cure = format!("add \"{number}\" = \"...\" to [sources]");
            faults.push(FileFault::new(number.clone(), value, "every figure needs a source", cure));
        }
    }
    // A changed constant may have a source.
    if let Some(constants) = file.get("constants") {
        number_leaves("constants".to_owned(), constants, &mut numbers);
    }
    for (source, text) in sources {
        if !is_reason_of_absence(file, source) && !numbers.iter().any(|(number, _)| covers(source, number)) {
            faults.push(FileFault::new(
                format!("sources.{source}"),
                text,
                "a source belongs to a figure of this file",
                "remove or rename it",
            ));
        }
    }
}

/// Appends the numbers below a value to `found`, with their dotted keys. Tables of an array go by their name.
fn number_leaves(key: String, value: &toml::Value, found: &mut Vec<(String, String)>) {
    match value {
        toml::Value::Integer(_) | toml::Value::Float(_) => found.push((key, value.to_string())),
        toml::Value::Table(table) => {
            for (inner, value) in table {
                number_leaves(format!("{key}.{inner}"), value, found);
            }
        }
        toml::Value::Array(items) => {
            for (index, item) in items.iter().enumerate() {
                let name =
                    item.get("name").and_then(toml::Value::as_str).map_or_else(|| index.to_string(), str::to_owned);
                number_leaves(format!("{key}.{name}"), item, found);
            }
        }
        _ => {}
    }
}
