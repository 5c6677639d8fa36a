//! Sizes that a file states are never taken by default, and lists and numbers that contradict each other are refused.

#![allow(clippy::unwrap_used, missing_docs)]

use coplace_workloads as workloads;
use serde_json::{Map, Value, json};
use std::path::PathBuf;
use workloads::Model;
use workloads::import::hugging_face::parse_config;

fn read_object(file: &str) -> Map<String, Value> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("tests/{file}.json"));
    // Python writes infinity for an absent limit.
    serde_json::from_str(&std::fs::read_to_string(path).unwrap().replace("Infinity", "1e308")).unwrap()
}

fn parse(object: &Map<String, Value>) -> Result<Model, String> {
    let text = serde_json::to_string(object).unwrap();
    parse_config("config.json", "config.json", &text).map_err(|error| error.to_string())
}

/// If one of its main sizes is removed, a file that transformers wrote is refused, and the error names the key.
#[test]
fn main_sizes_and_counts_of_experts_are_never_taken_by_default() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/transformers");
    let (mut refused, mut faults) = (0, Vec::new());
    let keys = [
        "d_model",
        "hidden_size",
        "moe_num_experts",
        "n_embd",
        "n_layer",
        "n_layers",
        "n_routed_experts",
        "num_experts",
        "num_experts_per_tok",
        "num_experts_per_token",
        "num_hidden_layers",
        "num_layers",
        "num_local_experts",
        "vocab_size",
    ];
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        if path.extension().is_none_or(|end| end != "json") {
            continue;
        }
        let object = read_object(&format!("transformers/{name}"));
        // Published files of these families state only what differs from the defaults of transformers. For an absent
        // key, an assumption notes the default.
        let omits = name.starts_with("gemma3_text") || name.starts_with("clip_");
        for key in keys.iter().filter(|key| object.get(**key).is_some_and(|value| value.as_u64() > Some(0))) {
            let mut without = object.clone();
            without.remove(*key);
            match parse(&without) {
                Err(error) => {
                    // If the file had another name for the number, the error asks for the family's own key.
                    assert!(error.contains(&format!("`{key}`")) || error.contains("is missing"), "{name}: {error}");
                    refused += 1;
                }
                Ok(model) if omits => {
                    let noted = format!("`{key}` is absent: transformers takes");
                    assert!(model.assumptions.iter().any(|said| said.starts_with(&noted)), "{name} {key}");
                }
                Ok(_) => faults.push(format!("{name} {key}")),
            }
        }
    }
    assert!(faults.is_empty(), "{faults:?}");
    assert!(refused > 300, "{refused}");
}

/// DeepSeek-V4's rates, ratios and numbers of layers are refused if they are of the wrong kind or contradict each
/// other.
#[test]
fn numbers_of_deepseek_v4_are_refused_where_they_contradict() {
    let layers = 8;
    let kinds = read_object("transformers/deepseek_v4");
    let has = |key: &str| kinds.get(key).is_some_and(|value| !value.is_null());
    assert!(has("compress_rates") && has("layer_types") && has("mlp_layer_types"));
    for (key, value, said) in [
        ("compress_rates", json!([4, 128]), "an object of numbers by kind of layer"),
        ("compress_rates", json!(4), "an object of numbers by kind of layer"),
        ("compress_rates", json!({"sliding_attention": 4}), "an object of numbers by kind of layer"),
        ("compress_rates", json!({"compressed_sparse_attention": 4}), "`compress_rates.heavily_compressed_attention`"),
        ("compress_rate_csa", json!(64), "another name of the same number"),
        ("compress_ratios", json!([0, 0, 0, 0, 0, 0, 0, 0]), "the kinds of `layer_types`"),
        ("compress_ratios", json!([0]), "a list of `num_hidden_layers` (8) numbers"),
        ("num_hash_layers", json!(layers + 1), "a whole number between 1 and 8"),
        ("num_hash_layers", json!(7), "the number of \"hash_moe\""),
        ("num_hash_layers", json!("three"), "a whole number"),
    ] {
        let mut object = kinds.clone();
        object.insert(key.to_owned(), value.clone());
        let error = parse(&object).unwrap_err();
        assert!(error.contains(key) && error.contains(said), "{key} {value}: {error}");
    }
}
