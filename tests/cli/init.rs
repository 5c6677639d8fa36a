//! `coplace init`: a study that can be searched unchanged.

use crate::support::{file_names, run_coplace_in};
use serde_json::Value;

#[test]
fn a_new_study_is_searched_as_it_is_and_never_written_over() {
    let dir = tempfile::tempdir().unwrap();
    let written = run_coplace_in(dir.path(), &["init", "mine.toml", "--format", "json"]).expect_json();
    assert_eq!((&written["study"], &written["schema"]), (&"mine.toml".into(), &"coplace-study.schema.json".into()));
    assert_eq!(file_names(dir.path()), ["coplace-study.schema.json", "mine.toml"]);
    let text = std::fs::read_to_string(dir.path().join("mine.toml")).unwrap();
    assert!(text.starts_with("#:schema ./coplace-study.schema.json\n"), "{text}");
    let schema = std::fs::read_to_string(dir.path().join("coplace-study.schema.json")).unwrap();
    let schema: Value = serde_json::from_str(&schema).unwrap();
    assert_eq!(schema["properties"]["cluster"]["$ref"], "#/$defs/ClusterSpec");
    // The dimensions are fixed to keep the space small. Another test covers the search.
    let fixed =
        ["--set", "tensor.cores=1", "--set", "tensor.arrays_per_core=2", "--set", "clock_mhz=1050", "--set", "links=6"];
    let search =
        [&["search", "opt-350m", "--study", "mine.toml", "--sequence-length", "512", "--format", "json"][..], &fixed]
            .concat();
    let found = run_coplace_in(dir.path(), &search).expect_json();
    assert_eq!(found["certificate"]["designs"], 3, "{}", found["certificate"]);
    assert!(found["best"]["design"]["throughput_sequences_per_s"].as_f64().unwrap() > 0.0);
    let refused = run_coplace_in(dir.path(), &["init", "mine.toml"]).expect_refusal();
    assert_eq!(refused, "error: mine.toml: is there already; give another name, or remove it\n");
    run_coplace_in(dir.path(), &["init", "tpu.toml", "--study", "TPU"]).expect_result();
    let copy = std::fs::read_to_string(dir.path().join("tpu.toml")).unwrap();
    assert!(copy.contains("relatives of TPU v4, 7 to 3 nm, for three models"), "{copy}");
}

#[test]
fn what_init_cannot_write_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let unknown = run_coplace_in(dir.path(), &["init", "a.toml", "--study", "tpus"]).expect_refusal();
    assert!(unknown.contains("unknown study `tpus`: did you mean `tpu`?"), "{unknown}");
    let ending = run_coplace_in(dir.path(), &["init", "a.json"]).expect_refusal();
    assert!(ending.contains("a.json: a study's name ends in .toml"), "{ending}");
    std::fs::write(dir.path().join("coplace-study.schema.json"), "{}").unwrap();
    let foreign = run_coplace_in(dir.path(), &["init", "a.toml"]).expect_refusal();
    assert!(foreign.contains("coplace-study.schema.json: is not coplace's schema of studies"), "{foreign}");
    assert_eq!(file_names(dir.path()), ["coplace-study.schema.json"]);
    let missing = run_coplace_in(dir.path(), &["init", "no/where/a.toml"]);
    assert!(missing.code != 0 && missing.stderr.contains("no/where"), "{}", missing.stderr);
}
