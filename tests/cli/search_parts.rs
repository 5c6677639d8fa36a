//! `coplace search` in parts, and their merge.

use crate::support::{CommandOutput, file_names, run_coplace_in};
use crate::sweep::undisturbed_sweep;
use results::run::sweep::read_directory;
use results::store::design::DesignRow;
use serde_json::{Value, json};
use std::path::Path;

/// Returns the arguments of a search that writes into `out`.
pub fn search_arguments<'a>(out: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    let mut words =
        vec!["search", "opt-350m", "--study", "s.toml", "--sequence-length", "512", "--out", out, "--format", "json"];
    words.extend(more);
    words
}

/// Makes a directory with the study. Its folder `searched` has the run of a single process.
pub fn search_in_one_process() -> tempfile::TempDir {
    let dir = undisturbed_sweep();
    // The tests add `--draws 0` to searches, but a merge always makes the default number of draws.
    run_coplace_in(dir.path(), &search_arguments("searched", &["--draws", "256"])).expect_json();
    dir
}

/// Counts of decisions. Only these differ between merged searches, because they depend on the exchange between parts.
const WORK: [&str; 5] = ["evaluated", "pruned", "pruned_in_boxes", "infeasible", "open"];

fn record(dir: &Path, run: &str) -> Value {
    let text = std::fs::read_to_string(dir.join(run).join("record.json")).unwrap();
    let mut record: Value = serde_json::from_str(&text).unwrap();
    let decided: u64 = WORK
        .iter()
        .filter(|key| **key != "pruned_in_boxes")
        .map(|key| record["certificate"][key].as_u64().unwrap())
        .sum();
    for key in WORK {
        record["certificate"].as_object_mut().unwrap().remove(key);
    }
    record["certificate"]["decided"] = json!(decided);
    record.as_object_mut().unwrap().remove("times");
    record
}

fn front(dir: &Path, run: &str) -> Vec<DesignRow> {
    read_directory(&dir.join(run)).unwrap().designs_on_front().into_iter().cloned().collect()
}

/// Asserts that a run has the answer of a single process: its best design with its files, its proof, its front, its
/// comparison.
#[track_caller]
pub fn assert_same_answer(dir: &Path, other: &str) {
    for file in ["best.toml", "fabric.toml"] {
        let [a, b] = ["searched", other].map(|run| std::fs::read(dir.join(run).join(file)).unwrap());
        assert!(a == b, "{file} of {other} differs from that of one process");
    }
    assert_eq!(record(dir, "searched"), record(dir, other));
    assert!(!front(dir, other).is_empty());
    assert_eq!(front(dir, "searched"), front(dir, other));
}

#[test]
fn parts_of_a_search_put_together_have_the_answer_of_one_process() {
    let dir = search_in_one_process();
    let at = |name: &str| dir.path().join(name);
    let part = |part: &str, out: &str, more: &[&str]| -> CommandOutput {
        run_coplace_in(dir.path(), &search_arguments(out, &[&["--shard", part][..], more].concat()))
    };
    let merge = |more: &[&str]| {
        run_coplace_in(dir.path(), &[&["merge", "--out", "merged", "--format", "json"][..], more].concat())
    };
    let first = part("1/3", "a", &["--share", "best"]).expect_json();
    assert_eq!((&first["part"], &first["was_complete"]), (&json!("1/3"), &json!(false)));
    assert_eq!(file_names(&at("a")), ["SHA256SUMS", "decided.bin", "part.json"]);
    assert_eq!(file_names(&at("best")), ["1-of-3.json"]);
    let third = part("3/3", "c", &["--share", "best"]).expect_json();
    let lost = merge(&["c", "a", "b"]).expect_refusal();
    assert!(
        lost.contains("1 of 3 parts: none of the directories holds 2/3; run it with --shard 2/3, and merge again"),
        "{lost}"
    );
    let swept = merge(&["c", "whole", "a"]).expect_refusal();
    assert!(
        swept.contains("c: is a part of a search, and whole one of a sweep; give the parts of one of them alone"),
        "{swept}"
    );
    // A part that does not share designs gives the same answer.
    part("2/3", "b", &[]).expect_json();
    let merged = merge(&["c", "a", "b"]).expect_json();
    assert_same_answer(dir.path(), "merged");
    assert!(merged["times"]["parts"].as_f64().is_some_and(|seconds| seconds > 0.0), "{}", merged["times"]);
    let files =
        || ["designs.parquet", "pareto.svg", "best.toml"].map(|file| std::fs::read(at("merged").join(file)).unwrap());
    let before = files();
    merge(&["b", "a", "c", "a"]).expect_json();
    assert!(before == files(), "merging again changes something");
    // A finished part is not searched again, and does not count as another part.
    let again = part("3/3", "c", &[]).expect_json();
    assert_eq!((&again["was_complete"], &again["seconds"]), (&json!(true), &third["seconds"]));
    let other = part("2/3", "c", &[]).expect_refusal();
    assert!(other.contains("--out c: holds part 3/3 of the search of question"), "{other}");
    let limited = part("1/3", "d", &["--time-limit", "5"]).expect_refusal();
    assert!(limited.contains("--time-limit: works only for a search in one process"), "{limited}");
    assert!(!at("d").exists());
    part("1/2", "d", &[]).expect_json();
    let different = merge(&["a", "d"]).expect_refusal();
    assert!(different.contains("a and d hold parts of different searches; give the directories of one"), "{different}");
    std::fs::write(at("b/decided.bin"), "x").unwrap();
    let damaged = merge(&["a", "b", "c"]).expect_refusal();
    assert!(damaged.contains("decided.bin: its SHA-256 digest is"), "{damaged}");
    // The parts carry the text of their study, so they can be merged after its file has changed.
    part("2/3", "e", &[]).expect_json();
    let study = std::fs::read_to_string(at("s.toml")).unwrap();
    std::fs::write(at("s.toml"), study.replace("[1, 2, 4]", "[1, 2, 8]")).unwrap();
    merge(&["a", "e", "c"]).expect_json();
}
