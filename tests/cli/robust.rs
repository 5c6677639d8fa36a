//! `coplace search --robust`: designs ranked by the bad end of their step's interval.

use crate::support::{run_coplace_in, small_study};
use serde_json::Value;
use std::path::Path;

/// Returns the 90 % interval of the best design's step.
fn step_interval(record: &Value) -> (f64, f64) {
    let ends = &record["best"]["step"]["plan"]["evidence"]["step_interval_s"];
    (ends[0].as_f64().unwrap(), ends[1].as_f64().unwrap())
}

/// Formats a number with four digits, as in tables.
fn significant(value: f64) -> String {
    let digits = (3 - value.log10().floor() as i32).max(0);
    format!("{value:.0$}", digits as usize)
}

/// Checks that a limit on the step time applies to the bad end. The smallest limit that leaves a design is `end`, the
/// bad end of the best design.
fn limited(dir: &Path, end: f64) {
    let search = |most: f64, out: &str| {
        let most = most.to_string();
        run_coplace_in(
            dir,
            &["search", "llama2-7b", "small.toml", "--robust", "--max-step", &most, "--out", out, "--format", "json"],
        )
    };
    let within = search(end * 1.000_001, "within").expect_json();
    assert!((step_interval(&within).1 / end - 1.0).abs() < 1e-9, "{within}");
    let none = search(end * 0.999_999, "beyond").expect_json();
    assert_eq!((&none["best"], &none["certificate"]["proof"]), (&Value::Null, &"infeasible".into()));
    let why = none["certificate"]["why"].as_str().unwrap();
    assert!(why.contains("at the bad end of its interval, the limit is"), "{why}");
}

#[test]
fn by_bad_ends_no_design_is_chosen_whose_step_may_take_longer() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("small.toml"), small_study()).unwrap();
    let search = |more: &[&str]| run_coplace_in(dir.path(), &[&["search", "llama2-7b", "small.toml"], more].concat());
    let plain = search(&["--front", "none", "--out", "plain", "--format", "json"]).expect_json();
    let robust = search(&["--robust", "--out", "robust", "--format", "json"]).expect_json();
    assert!(step_interval(&robust).1 <= step_interval(&plain).1, "{robust}");
    assert_eq!((&plain["certificate"]["robust"], &robust["certificate"]["robust"]), (&Value::Null, &true.into()));
    assert_eq!(robust["study"]["options"]["robust"], "true");
    // The best value in the proof is the rate at the bad end.
    let batch = robust["study"]["global_batch_sequences"].as_f64().unwrap();
    let best = robust["certificate"]["best_sequences_per_s"].as_f64().unwrap();
    assert!((best * step_interval(&robust).1 / batch - 1.0).abs() < 1e-9, "{best}");
    let text = search(&["--robust", "--details", "--front", "none", "--out", "again"]).expect_result();
    assert!(text.contains("In tokens/s, at the bad end"), "{text}");
    let proof =
        "Proven: no design of this space has a fastest plan that is better at the bad end of its step's 90 % interval.";
    let said = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("Designs are ranked by the bad end"), "{text}");
    // Tables have the bad end beside the step, and `designs.parquet` has it for every design. There is no front.
    assert!(
        said.contains("Comparison, designs ranked by the bad end") && said.contains("at which designs are ranked"),
        "{text}"
    );
    let end = format!("  {}", significant(step_interval(&robust).1));
    let line = text.lines().find(|line| line.starts_with("best found") && line.contains("mm²")).unwrap();
    assert!(said.contains("step s bad end s MFU %") && line.contains(&end), "{line}: {end}");
    assert_eq!(
        robust["best"]["design"]["bad_end_step_s"],
        robust["best"]["step"]["plan"]["evidence"]["step_interval_s"][1]
    );
    assert!(plain["best"]["design"]["bad_end_step_s"].is_null());
    assert!(!dir.path().join("robust/pareto.png").exists() && dir.path().join("plain/pareto.png").exists());
    let refused = run_coplace_in(dir.path(), &["pareto", "plain", "robust", "--out", "front"]).expect_refusal();
    assert!(
        refused.contains("robust: is a run of search --robust") && refused.contains("search without --robust"),
        "{refused}"
    );
    assert!(run_coplace_in(dir.path(), &["compare", "plain", "robust"]).expect_result().contains("bad end s"));
    let explained = run_coplace_in(dir.path(), &["explain", "robust"]).expect_result();
    assert!(explained.contains("the figures here are for predicted steps"), "{explained}");
    run_coplace_in(dir.path(), &["report", "robust", "-o", "robust.html"]).expect_result();
    let page = std::fs::read_to_string(dir.path().join("robust.html")).unwrap();
    for words in
        ["trains it fastest at the bad end of its step's 90 % interval", "step at the bad end", "\"robust\":true"]
    {
        assert!(page.contains(words), "{words}");
    }
    assert!(said.contains(proof) && text.contains("tokens/s at the bad end"), "{text}");
    // A search in parts finds the same design and bound.
    for part in ["1/2", "2/2"] {
        search(&["--robust", "--shard", part, "--out", &part[..1], "--format", "json"]).expect_json();
    }
    let merged = run_coplace_in(dir.path(), &["merge", "1", "2", "--out", "merged", "--format", "json"]).expect_json();
    assert_eq!((&merged["best"], &merged["certificate"]["bound"]), (&robust["best"], &robust["certificate"]["bound"]));
    for (more, why) in [
        (
            &["--robust", "--objective", "energy-per-token"][..],
            "intervals are known of a step's time, not of its energy",
        ),
        (&["--robust", "--objective", "per-dollar", "--years", "4"], "per-dollar without --years"),
        (&["--robust", "--front", "area"], "leave --front out"),
    ] {
        let refused = search(more).expect_refusal();
        assert!(refused.contains(why), "{refused}");
    }
    limited(dir.path(), step_interval(&robust).1);
    let swept =
        run_coplace_in(dir.path(), &["sweep", "llama2-7b", "small.toml", "--robust", "--out", "s"]).expect_refusal();
    assert!(swept.contains("--robust") && swept.contains("use search"), "{swept}");
}
