//! Every file of `tests/configs` can be read and lowered; published parameter counts hold.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use coplace_workloads as workloads;
use std::path::Path;
use workloads::model::Model;
use workloads::{Lowering, TrainingGraph};

fn folder() -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/configs")
}

#[test]
fn every_real_configuration_is_read() {
    let mut read = 0;
    for entry in std::fs::read_dir(folder()).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|e| e == "json") {
            let model = Model::load_file(&path).unwrap();
            TrainingGraph::new(&model, &Lowering::new(&model)).unwrap();
            read += 1;
        }
    }
    assert!(read >= 5, "only {read} configurations");
}

#[test]
fn parameters_are_the_published_ones() {
    for (file, parameters) in [("gpt2", 124_439_808), ("opt_350m", 331_196_416), ("smollm2_135m", 134_515_008)] {
        let model = Model::load(folder().join(format!("{file}.json")).to_str().unwrap()).unwrap();
        assert_eq!(model.parameters(), parameters, "{file}");
    }
}

#[test]
fn a_file_and_the_built_in_model_of_the_same_name_agree() {
    let from_file = Model::load_file(&folder().join("opt_350m.json")).unwrap();
    let built_in = Model::load("opt-350m").unwrap();
    assert_eq!(Model { name: built_in.name.clone(), ..from_file }, built_in);
}

#[test]
fn a_built_in_model_is_found_under_its_other_names() {
    use workloads::model::{built_in_names, is_built_in, other_names};
    let folded = |name: &str| name.to_lowercase().replace('_', "-");
    let mut seen = std::collections::BTreeSet::new();
    for (name, model) in other_names() {
        assert!(built_in_names().any(|own| own == model), "{name}: {model}");
        assert!(seen.insert(folded(name)) && !built_in_names().any(|own| folded(own) == folded(name)), "{name}: twice");
        assert!(is_built_in(name), "{name}");
    }
    assert_eq!(Model::load("moonshotai/Kimi-K2-Instruct").unwrap(), Model::load("kimi-k2").unwrap());
    assert_eq!(Model::load("deepseek-ai/DeepSeek-R1").unwrap().name, "deepseek-v3");
    assert!(Model::load("Qwen/Qwen3-33B").is_err() && !is_built_in("Qwen3-32B-FP8"));
}
