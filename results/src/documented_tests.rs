//! Checks that the schemas in `results/README.md` are complete: every key and column of the code is described
//! there.

use crate::store::design::{DesignRow, DesignStatus};

const README: &str = include_str!("../README.md");

fn described(name: &str) -> bool {
    README.contains(&format!("`{name}`"))
        || README.contains(&format!("`.{name}`"))
        || README.contains(&format!(".{name}`"))
}

fn keys(value: &serde_json::Value, open: &[&str], found: &mut Vec<String>) {
    match value {
        serde_json::Value::Object(map) => {
            for (key, value) in map {
                found.push(key.clone());
                // The keys of these objects are data, not schema.
                if !open.contains(&key.as_str()) {
                    keys(value, open, found);
                }
            }
        }
        serde_json::Value::Array(items) => items.iter().for_each(|item| keys(item, open, found)),
        _ => {}
    }
}

#[test]
fn every_key_of_the_record_is_described() {
    let mut record = crate::run::record::example_of_several();
    record.comparison = record.best.as_ref().map(|b| crate::answer::comparison::Comparison {
        differences: vec!["x".into()],
        gain: Some(crate::answer::comparison::GainSplit {
            over: "x".into(),
            causes: vec![crate::answer::comparison::GainCause { cause: "x".into(), factor: 1.0 }],
        }),
        ..crate::answer::comparison::Comparison::of_entries(vec![
            crate::answer::comparison::ComparisonEntry::from_design("x", &b.design),
        ])
    });
    record.decision =
        Some(crate::answer::decision::DecisionRecord { left_out: 1, ..crate::answer::decision::example() });
    let mut found = Vec::new();
    // The keys of a planned step are in docs/json.md. A test of the command compares them with the printed output.
    let open = ["asked", "options", "step", "times"];
    keys(&serde_json::to_value(&record).unwrap_or_default(), &open, &mut found);
    assert!(found.len() > 50, "the record has {} keys", found.len());
    // The name of an object counts as described if a key inside it is: `best.design` describes `best`.
    let missing: Vec<&String> = found.iter().filter(|k| !described(k) && !README.contains(&format!("`{k}."))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn every_column_and_outcome_of_the_store_is_described() {
    let names = DesignRow::COLUMNS.iter().map(|c| c.name).chain(DesignStatus::ALL.map(DesignStatus::name));
    let missing: Vec<&str> = names.filter(|name| !described(name)).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
