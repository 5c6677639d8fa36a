//! Configurations that transformers 5.24.0 wrote (DBRX, CodeGen, umT5, Whisper, BART and its relatives: 5.17.0), with
//! the parameters of the models that it builds from them.
//!
//! The sizes are our own: 8 layers of width 1,024 and 16 experts of which 2 are chosen, unless the name says otherwise.
//! Parameters are those of the model on the meta device; active ones are without the experts that are not chosen.

#![allow(clippy::unwrap_used, missing_docs)]

use coplace_workloads as workloads;
use std::collections::BTreeSet;
use std::path::Path;
use workloads::Model;

/// Returns the folder of the configurations.
fn folder() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/transformers"))
}

#[test]
fn every_configuration_of_transformers_has_its_parameters() {
    let table = std::fs::read_to_string(folder().join("parameters.csv")).unwrap();
    let (mut faults, mut types) = (Vec::new(), BTreeSet::new());
    let rows = table.lines().skip(1);
    for row in rows.clone() {
        let fields: Vec<&str> = row.split(',').collect();
        let (name, expected) = (fields[0], [fields[1], fields[2]].map(|count| count.parse::<u64>().unwrap()));
        match Model::load_file(&folder().join(format!("{name}.json"))) {
            Ok(model) => {
                let counts = [model.parameters(), model.active_parameters()];
                if counts != expected {
                    faults.push(format!("{name}: {counts:?}, transformers has {expected:?}"));
                }
                types.insert(model.family);
            }
            Err(error) => faults.push(error.to_string()),
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
    assert!(rows.count() >= 140 && types.len() >= 99, "{} families", types.len());
}
