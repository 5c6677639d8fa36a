//! The constants' definitions, read once from the embedded files.

use std::sync::OnceLock;

/// The definition of a constant.
#[derive(Debug, Clone, PartialEq)]
pub struct ConstantDefinition {
    /// Its key: file, tables and name, as in `process.logic_density.n7`.
    pub key: String,
    /// The least plausible value.
    pub low: f64,
    /// The value that the model takes.
    pub nominal: f64,
    /// The largest plausible value.
    pub high: f64,
    /// Its unit and meaning.
    pub unit: String,
    /// The origin of the value.
    pub source: String,
    /// The year of the source.
    pub year: i64,
    /// True for a limit on what is built. A study sets it; it is not an uncertain property of a design.
    pub limit: bool,
}

const FILES: [(&str, &str); 11] = [
    ("process", include_str!("../../../constants/process.toml")),
    ("area", include_str!("../../../constants/area.toml")),
    ("hbm", include_str!("../../../constants/hbm.toml")),
    ("link", include_str!("../../../constants/link.toml")),
    ("energy", include_str!("../../../constants/energy.toml")),
    ("manufacturing", include_str!("../../../constants/manufacturing.toml")),
    ("library", include_str!("../../../constants/library.toml")),
    ("package", include_str!("../../../constants/package.toml")),
    ("efficiency", include_str!("../../../constants/efficiency.toml")),
    ("kernel", include_str!("../../../constants/kernel.toml")),
    ("system", include_str!("../../../constants/system.toml")),
];

/// Returns all constants, sorted by key. A table's unit, source, year and limit hold for the constants in it that state
/// none.
#[must_use]
pub fn constant_definitions() -> &'static [ConstantDefinition] {
    static ALL: OnceLock<Vec<ConstantDefinition>> = OnceLock::new();
    ALL.get_or_init(|| {
        let mut all = Vec::new();
        for (name, text) in FILES {
            let table: toml::Table = toml::from_str(text).unwrap_or_default();
            collect_definitions(name, &table, &Origin::default(), &mut all);
        }
        all.sort_by(|a: &ConstantDefinition, b| a.key.cmp(&b.key));
        all
    })
}

#[derive(Clone, Default)]
struct Origin {
    unit: String,
    source: String,
    year: i64,
    limit: bool,
}

fn collect_definitions(key: &str, table: &toml::Table, outer: &Origin, all: &mut Vec<ConstantDefinition>) {
    let text = |key: &str, outer: &str| table.get(key).and_then(toml::Value::as_str).unwrap_or(outer).to_owned();
    let origin = Origin {
        unit: text("unit", &outer.unit),
        source: text("source", &outer.source),
        year: table.get("year").and_then(toml::Value::as_integer).unwrap_or(outer.year),
        limit: table.get("limit").and_then(toml::Value::as_bool).unwrap_or(outer.limit),
    };
    let number = |key: &str| {
        let value = table.get(key)?;
        value.as_float().or_else(|| value.as_integer().map(|whole| whole as f64))
    };
    if let (Some(low), Some(nominal), Some(high)) = (number("low"), number("nominal"), number("high")) {
        let Origin { unit, source, year, limit } = origin;
        all.push(ConstantDefinition { key: key.to_owned(), low, nominal, high, unit, source, year, limit });
        return;
    }
    for (name, inner) in table {
        if let Some(inner) = inner.as_table() {
            collect_definitions(&format!("{key}.{name}"), inner, &origin, all);
        }
    }
}
