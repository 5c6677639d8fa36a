//! `coplace search --robust`: designs by the bad end of their step's interval.

use crate::support::{coplace_in, small_study};
use serde_json::Value;

/// The 90 % interval of a run's best design's step.
fn step_interval(record: &Value) -> (f64, f64) {
    let ends = &record["best"]["step"]["plan"]["evidence"]["step_interval_s"];
    (ends[0].as_f64().unwrap(), ends[1].as_f64().unwrap())
}

#[test]
fn by_bad_ends_no_design_is_chosen_whose_step_may_take_longer() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("small.toml"), small_study()).unwrap();
    let search = |more: &[&str]| coplace_in(dir.path(), &[&["search", "llama2-7b", "small.toml"], more].concat());
    let plain = search(&["--front", "none", "--out", "plain", "--format", "json"]).json();
    let robust = search(&["--robust", "--out", "robust", "--format", "json"]).json();
    assert!(step_interval(&robust).1 <= step_interval(&plain).1, "{robust}");
    assert_eq!((&plain["certificate"]["robust"], &robust["certificate"]["robust"]), (&Value::Null, &true.into()));
    assert_eq!(robust["study"]["options"]["robust"], "true");
    // What is proven is proven of bad ends.
    let batch = robust["study"]["global_batch_sequences"].as_f64().unwrap();
    let best = robust["certificate"]["best_sequences_per_s"].as_f64().unwrap();
    assert!((best * step_interval(&robust).1 / batch - 1.0).abs() < 1e-9, "{best}");
    let text = search(&["--robust", "--front", "none", "--out", "again"]).result();
    assert!(text.contains("In tokens/s, at the bad end"), "{text}");
    let proof = "Proven: of no design of this space is the fastest plan found better at the bad end of its step's 90 % interval.";
    let said = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("Designs are ranked by the bad end"), "{text}");
    assert!(said.contains(proof) && text.contains("sequences/s at the bad end"), "{text}");
    // In parts the same.
    for part in ["1/2", "2/2"] {
        search(&["--robust", "--shard", part, "--out", &part[..1], "--format", "json"]).json();
    }
    let merged = coplace_in(dir.path(), &["merge", "1", "2", "--out", "merged", "--format", "json"]).json();
    assert_eq!((&merged["best"], &merged["certificate"]["bound"]), (&robust["best"], &robust["certificate"]["bound"]));
    for (more, why) in [
        (&["--robust", "--objective", "energy-per-token"][..], "intervals are known of a step's time, not of its energy"),
        (&["--robust", "--objective", "per-dollar", "--years", "4"], "per-dollar without --years"),
        (&["--robust", "--front", "area"], "leave --front out"),
    ] {
        let refused = search(more).refusal();
        assert!(refused.contains(why), "{refused}");
    }
    let swept = coplace_in(dir.path(), &["sweep", "llama2-7b", "small.toml", "--robust", "--out", "s"]).refusal();
    assert!(swept.contains("--robust") && swept.contains("use search"), "{swept}");
}
