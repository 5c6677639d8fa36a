//! `coplace search` and what reads its run directories.

use crate::support::{config_with, coplace, coplace_in, names, small_study, study_with};
use serde_json::Value;
use std::path::Path;

const FILES: [&str; 5] = ["SHA256SUMS", "designs.parquet", "pareto.png", "pareto.svg", "record.json"];

fn record(directory: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(directory.join("record.json")).unwrap()).unwrap()
}

#[test]
fn two_searches_leave_the_same_files_and_their_runs_are_compared_and_drawn() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("small.toml"), small_study()).unwrap();
    let search = |out: &str| coplace_in(dir.path(), &["search", "llama2-7b", "--study", "small.toml", "--out", out]).result();
    let text = search("a");
    for part in
        ["Best design", "Memory, GiB per device", "Proof\n=====\nProven: no design of this space is better.", "Comparison"]
    {
        assert!(text.contains(part), "{part} is missing:\n{text}");
    }
    assert!(text.contains("phaze_tpuv4, expert's placement") && text.contains("phaze_tpuv4, our best plan"), "{text}");
    search("b");
    let [a, b] = ["a", "b"].map(|name| dir.path().join(name));
    assert_eq!(names(&a), FILES);
    for file in &FILES[1..4] {
        assert_eq!(std::fs::read(a.join(file)).unwrap(), std::fs::read(b.join(file)).unwrap(), "{file} differs");
    }
    let [mut first, mut second] = [record(&a), record(&b)];
    assert!(first["times"]["total"].as_f64().unwrap() > 0.0);
    first["times"] = Value::Null;
    second["times"] = Value::Null;
    assert_eq!(first, second);
    compare(dir.path(), &first);
    pareto(dir.path(), &first);
}

fn compare(directory: &Path, record: &Value) {
    let alone = coplace_in(directory, &["compare", "a", "--format", "json"]).json();
    assert_eq!(alone, record["comparison"]);
    let both = coplace_in(directory, &["compare", "a", "b", "--format", "json"]).json();
    let labels: Vec<&str> = both["entries"].as_array().unwrap().iter().map(|e| e["label"].as_str().unwrap()).collect();
    assert_eq!(labels.len(), 2 * alone["entries"].as_array().unwrap().len());
    assert_eq!((labels[0], labels[labels.len() / 2]), ("a: best found", "b: best found"));
    let text = coplace_in(directory, &["compare", "a", "b"]).result();
    assert!(labels.iter().all(|label| text.contains(label)), "{text}");
}

fn pareto(directory: &Path, record: &Value) {
    let answer = coplace_in(directory, &["pareto", "a", "--out", "figures", "--format", "json"]).json();
    assert_eq!(names(&directory.join("figures")), ["pareto.png", "pareto.svg"]);
    let svg = |path: &str| std::fs::read(directory.join(path)).unwrap();
    assert_eq!(svg("figures/pareto.svg"), svg("a/pareto.svg"), "one run is drawn as the search drew it");
    let front = answer["runs"][0]["front"].as_array().unwrap();
    let of = |design: &Value, key: &str| design[key].as_f64().unwrap();
    let rises = |key: &str| front.windows(2).all(|pair| of(&pair[0], key) < of(&pair[1], key));
    assert!(rises("area_mm2") && rises("throughput_sequences_per_s"), "{answer}");
    // The largest design on the front is the fastest, and the fastest is the best found.
    assert_eq!(front.last().unwrap(), &record["best"]["design"]);
    let text = coplace_in(directory, &["pareto", "a", "b", "--out", "both"]).result();
    assert!(text.contains("a: the front of llama2-7b") && text.contains("b: the front of"), "{text}");
}

#[test]
fn a_config_json_from_disk_is_searched() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("tiny");
    std::fs::create_dir(&model).unwrap();
    std::fs::write(model.join("config.json"), config_with("num_hidden_layers", Some(6.into()))).unwrap();
    let one = study_with(&[
        ("tensor_cores", "[8]"),
        ("vector_cores", "[2]"),
        ("array_widths", "[128]"),
        ("global_buffer_mib", "[128]"),
        ("hbm_gib", "[32]"),
    ]);
    std::fs::write(dir.path().join("one.toml"), one).unwrap();
    let call = ["search", "tiny/config.json", "--study", "one.toml", "--sequence-length", "512", "--format", "json"];
    let record = coplace_in(dir.path(), &call).json();
    // Without --out the run directory is named after the model and the study.
    assert_eq!(names(&dir.path().join("runs").join("tiny-one")), FILES);
    assert_eq!(record["study"]["sequence_tokens"], 512);
    // Embedding (tied to the head) 49152 x 576, 6 layers of 576 x (2 x 576 + 2 x 192) + 3 x 576 x 1536 + 2 x 576, last norm.
    let layer = 576 * (2 * 576 + 2 * 192) + 3 * 576 * 1536 + 2 * 576;
    assert_eq!(record["study"]["parameters"], 49152 * 576 + 6 * layer + 576);
    assert_eq!(record["certificate"]["proof"], "proven");
    assert!(record["best"]["design"]["throughput_sequences_per_s"].as_f64().unwrap() > 0.0);
    // No expert has placed this model: TPUv4 appears under our plan alone.
    assert_eq!(record["comparison"]["entries"].as_array().unwrap().len(), 2);
}

#[test]
fn a_model_that_fits_nowhere_is_a_result_that_says_what_is_lacking() {
    let dir = tempfile::tempdir().unwrap();
    let tight = study_with(&[
        ("tensor_cores", "[8]"),
        ("vector_cores", "[2]"),
        ("array_widths", "[128]"),
        ("global_buffer_mib", "[128]"),
        ("hbm_gib", "[1]"),
    ]);
    std::fs::write(dir.path().join("tight.toml"), tight).unwrap();
    let text = coplace_in(dir.path(), &["search", "llama2-7b", "--study", "tight.toml", "--out", "run"]).result();
    assert!(text.contains("No design of this space runs the model."), "{text}");
    // The reason goes on below where it is wider than a screen.
    let said = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (_, why) = said.split_once(" because ").unwrap();
    for part in [
        "no plan fits; with p ",
        "stage ",
        " GiB of 1.00 GiB: the largest part, ",
        " GiB (on 8 x 128x128 TC, 2 x 128 VC, 128 MiB, 1 GiB HBM)",
    ] {
        assert!(why.contains(part), "{part} is missing: {why}");
    }
    assert_eq!(record(&dir.path().join("run"))["certificate"]["proof"], "infeasible");
    let compared = coplace_in(dir.path(), &["compare", "run"]).result();
    assert_eq!(compared, "No design of these runs runs the model.\n");
    let front = coplace_in(dir.path(), &["pareto", "run", "--out", "figures"]).result();
    assert!(front.starts_with("run: no design runs llama2-7b\n"), "{front}");
}

#[test]
fn the_smoke_study_is_searched_with_json_on_standard_output_alone() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run").display().to_string();
    let answer = coplace(&["search", "opt-350m", "--study", "smoke", "--out", &out, "--format", "json"]).json();
    assert_eq!(answer, record(&dir.path().join("run")));
    let c = &answer["certificate"];
    let sum: u64 = ["evaluated", "pruned", "infeasible", "over_area", "open"].iter().map(|key| c[*key].as_u64().unwrap()).sum();
    assert_eq!((c["designs"].as_u64(), answer["study"]["space_designs"].as_u64().is_some()), (Some(sum), true));
    assert_eq!((&c["proof"], c["open"].as_u64()), (&"proven".into(), Some(0)));
}
