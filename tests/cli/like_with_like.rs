//! Comparisons under equal terms: the figure of every row equals that of `plan` for its chip, fabric and stack.

use crate::search::{RELATIVES, read_record};
use crate::support::run_coplace_in;
use serde_json::Value;

/// The plans of the study [`RELATIVES`] as options of `plan`.
const PLANS: [&str; 18] = [
    "--tensor",
    "1,2",
    "--pipeline",
    "1",
    "--context",
    "1",
    "--expert",
    "1",
    "--virtual-stages",
    "1",
    "--zero",
    "0,3",
    "--schedule",
    "1f1b",
    "--recompute",
    "none;full",
    "--layer-split",
    "even",
];

/// Returns the study [`RELATIVES`] with the plans of [`PLANS`].
fn narrow_study() -> String {
    let (head, _) = RELATIVES.split_once("[plan]").unwrap();
    let (_, limits) = RELATIVES.split_once("[limits]").unwrap();
    format!(
        "{head}[plan]\nstack = \"ideal\"\ntensor_parallel = [1, 2]\npipeline_parallel = [1]\ncontext_parallel = [1]\n\
         expert_parallel = [1]\nvirtual_stages = [1]\nzero = [0, 3]\nschedules = [\"1f1b\"]\n\
         recompute = [\"none\", \"full\"]\n\
         layer_split = \"even\"\nattention = \"fused\"\noptimizer = \"adam\"\n[limits]{limits}"
    )
}

#[test]
fn a_row_s_figure_is_that_of_plan_on_the_row_s_fabric_and_stack() {
    check_rows("opt-350m", "1024", "0.5");
}

/// The margin differs from plan to plan. With the same margin for all plans, b200 would have a plan that is 2.7 %
/// slower.
#[test]
fn a_row_s_plan_keeps_the_margin_that_plan_keeps() {
    check_rows("llama2-7b", "2048", "0.94");
}

fn check_rows(model: &str, sequence: &str, fit: &str) {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("s.toml"), narrow_study()).unwrap();
    let job = ["search", model, "--study", "s.toml", "--sequence-length", sequence, "--draws", "0"];
    run_coplace_in(dir.path(), &[&job[..], &["--fit", fit, "--out", "run"]].concat()).expect_result();
    let record = read_record(&dir.path().join("run"));
    let (devices, batch) =
        (record["study"]["devices"].to_string(), record["study"]["global_batch_sequences"].to_string());
    let entries = record["comparison"]["entries"].as_array().unwrap();
    let mut checked = 0;
    for entry in entries.iter().filter(|entry| !entry["plan"].is_null()) {
        let standing = &entry["baseline"]["standing"];
        let (Some(chip), false) = (entry["baseline"]["chip"].as_str(), standing == "ideal") else { continue };
        let fabric = if standing == "as_sold" { entry["fabric"].as_str().unwrap() } else { "run/fabric.toml" };
        let stack = entry["stack"].as_str().unwrap();
        let job = [
            "plan",
            model,
            "--chip",
            chip,
            "--fabric",
            fabric,
            "--stack",
            stack,
            "--devices",
            &devices,
            "--global-batch",
            &batch,
            "--sequence-length",
            sequence,
            "--fit",
            fit,
            "--format",
            "json",
        ];
        // A row has the fastest plan that the stack's framework can run. On the found fabric, it is among the study's
        // plans; as sold, it is among all plans.
        let plans = if standing == "as_sold" { &[][..] } else { &PLANS };
        let planned = run_coplace_in(dir.path(), &[&job[..], plans].concat()).expect_json();
        let listed = planned["plans"].as_array().unwrap();
        let first = listed.iter().find(|plan| plan["cannot_run"].is_null()).unwrap();
        let (own, other) = (entry["step_time_s"].as_f64().unwrap(), first["step_s"].as_f64().unwrap());
        assert!((own / other - 1.0).abs() < 1e-12, "{}: {own}, plan says {other}", entry["label"]);
        checked += 1;
    }
    assert!(checked >= 8, "{checked}: {entries:?}");
    // The product of the causes' factors is the whole lead.
    let gain = &record["comparison"]["gain"];
    let product: f64 = gain["causes"].as_array().unwrap().iter().map(|of| of["factor"].as_f64().unwrap()).product();
    let value = |label: &Value| {
        entries.iter().find(|entry| entry["label"] == *label).unwrap()["objective_value"].as_f64().unwrap()
    };
    let whole = value(&"best found".into()) / value(&gain["over"]);
    assert!((product / whole - 1.0).abs() < 1e-9, "{product}, {whole}: {gain}");
}

#[test]
fn a_plan_fits_with_the_chance_that_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    let job = [
        "plan",
        "llama3-8b",
        "--chip",
        "h100",
        "--fabric",
        "nvlink4_node",
        "--devices",
        "8",
        "--global-batch",
        "64",
        "--sequence-length",
        "8192",
        "--format",
        "json",
    ];
    let with = |fit: &[&str]| run_coplace_in(dir.path(), &[&job[..], fit].concat()).expect_json();
    let chances = |answer: &Value| -> Vec<f64> {
        answer["plans"].as_array().unwrap().iter().filter_map(|plan| plan["fit_probability"].as_f64()).collect()
    };
    let (usual, half, sure) = (with(&[]), with(&["--fit", "0.5"]), with(&["--fit", "0.99"]));
    assert!(!chances(&usual).is_empty() && chances(&usual).iter().all(|chance| *chance >= 0.9), "{usual}");
    assert!(chances(&sure).iter().all(|chance| *chance >= 0.99), "{sure}");
    // `evaluate` chooses the same plan.
    let evaluated = run_coplace_in(dir.path(), &[&["evaluate"][..], &job[1..]].concat()).expect_json();
    assert!(evaluated["result"]["plan"]["fit_probability"].as_f64().unwrap() >= 0.9, "{evaluated}");
    assert_eq!(evaluated["result"]["time"]["step_s"], usual["plans"][0]["step_s"]);
    // A margin only excludes plans, so that a higher chance never gives a shorter step.
    let step = |answer: &Value| answer["plans"][0]["step_s"].as_f64().unwrap();
    let rounding = 1.0 + 1e-9;
    assert!(step(&half) <= step(&usual) * rounding && step(&usual) <= step(&sure) * rounding);
    assert!(chances(&half).iter().any(|chance| *chance < 0.9), "{half}");
    for wrong in ["0", "1", "nan", "-0.5"] {
        let said = run_coplace_in(dir.path(), &[&job[..], &["--fit", wrong]].concat()).expect_refusal();
        assert!(said.contains("must be greater than 0 and less than 1"), "{said}");
    }
}

#[test]
fn a_job_without_a_likely_plan_names_the_likeliest() {
    let dir = tempfile::tempdir().unwrap();
    let job = [
        "plan",
        "llama2-7b",
        "--chip",
        "h200",
        "--fabric",
        "nvlink4_node",
        "--devices",
        "1",
        "--global-batch",
        "8",
        "--sequence-length",
    ];
    let said = |more: &[&str]| run_coplace_in(dir.path(), &[&job[..], more].concat());
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    // The message does not depend on the length of the list.
    for list in [&["2048"][..], &["2048", "--top", "1"]] {
        let text = words(&said(list).expect_result());
        assert!(
            text.contains("no plan fits with a chance of 90 %") && text.contains("with a chance of 88 %"),
            "{text}"
        );
    }
    let emitted = said(&["2048", "--emit", "megatron"]);
    assert!(emitted.code == 1 && emitted.stderr.contains("no plan fits with a chance of 90 %"), "{}", emitted.stderr);
    // `ssdtrain` without a fraction leaves the offloaded part open. The storage is too small for all activations.
    let away = ["4096", "--micro-batch", "1", "--recompute", "none", "--technique", "ssdtrain", "--nvme", "6:10"];
    let text = words(&said(&away).expect_result());
    assert!(text.contains("no plan fits with a chance of 90 %") && text.contains("--fit 0.5"), "{text}");
}

#[test]
fn the_plan_of_a_found_chip_fits_with_the_chance_that_is_asked_for() {
    let dir = tempfile::tempdir().unwrap();
    // With one device, the fastest plan nearly fills the memory.
    std::fs::write(dir.path().join("s.toml"), RELATIVES.replace("devices = 16", "devices = 1")).unwrap();
    let job = ["search", "opt-350m", "--study", "s.toml", "--global-batch", "24", "--draws", "0", "--format", "json"];
    let with = |fit: &[&str]| run_coplace_in(dir.path(), &[&job[..], fit].concat()).expect_json();
    let chance = |found: &Value| found["best"]["step"]["plan"]["fit_probability"].as_f64().unwrap();
    let step = |found: &Value| found["best"]["step"]["plan"]["step_s"].as_f64().unwrap();
    let (usual, half, sure) = (with(&[]), with(&["--fit", "0.5"]), with(&["--fit", "0.99"]));
    assert!(chance(&half) < 0.9 && chance(&usual) >= 0.9 && chance(&sure) >= 0.99, "{}", chance(&half));
    assert!(step(&half) < step(&usual) && step(&usual) <= step(&sure));
    assert_eq!(usual["study"]["options"]["fit"], "0.9");
    // The capacity is the same with and without a margin: the margin is not subtracted from it.
    assert_eq!(usual["best"]["step"]["capacity_gib"], half["best"]["step"]["capacity_gib"]);
    for wrong in ["0", "1", "nan"] {
        let said = run_coplace_in(dir.path(), &[&job[..], &["--fit", wrong]].concat()).expect_refusal();
        assert!(said.contains("must be greater than 0 and less than 1"), "{said}");
    }
    let study = RELATIVES.replace("[plan]", "[plan]\nfit = 1.5");
    std::fs::write(dir.path().join("s.toml"), study).unwrap();
    let said = run_coplace_in(dir.path(), &job).expect_refusal();
    assert!(said.contains("s.toml, line 22: plan.fit = 1.5: must be greater than 0 and less than 1"), "{said}");
}

#[test]
fn the_efficiency_of_a_space_is_asked_for_and_ideal_chips_are_fastest() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("s.toml"), narrow_study()).unwrap();
    let call = ["search", "opt-350m", "--study", "s.toml", "--sequence-length", "1024", "--draws", "0"];
    let rate = |efficiency: &str| {
        let found = run_coplace_in(
            dir.path(),
            &[&call[..], &["--efficiency", efficiency, "--out", efficiency, "--format", "json"]].concat(),
        )
        .expect_json();
        assert_eq!(
            found["comparison"]["entries"][0]["efficiency"],
            if efficiency == "base" { "fitted" } else { efficiency }
        );
        found["certificate"]["best"].as_f64().unwrap()
    };
    let [ideal, family, base] = ["ideal", "family", "base"].map(rate);
    assert!(ideal > family && ideal > base, "{ideal} {family} {base}");
    let refused = run_coplace_in(
        dir.path(),
        &["search", "opt-350m", "--study", "smoke", "--efficiency", "family", "--out", "phaze"],
    )
    .expect_refusal();
    assert!(refused.contains("--efficiency family") && refused.contains("PHAZE's chips are ideal"), "{refused}");
}

#[test]
fn a_choice_is_drawn_the_same_twice_and_reads_back() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("s.toml"), narrow_study()).unwrap();
    let call =
        ["search", "opt-350m", "--study", "s.toml", "--sequence-length", "1024", "--draws", "32", "--format", "json"];
    let run = |out: &str| run_coplace_in(dir.path(), &[&call[..], &["--out", out]].concat()).expect_json();
    let (one, two) = (run("one"), run("two"));
    let decision = &one["decision"];
    assert_eq!(decision, &two["decision"]);
    assert_eq!(decision["draws"].as_u64().unwrap() + decision["left_out"].as_u64().unwrap_or(0), 32);
    let finalists = decision["finalists"].as_array().unwrap();
    let sum: f64 = finalists.iter().map(|of| of["probability_best"].as_f64().unwrap()).sum();
    assert!((sum - 1.0).abs() < 1e-9, "{decision}");
    let least = finalists.iter().map(|of| of["regret_expected"].as_f64().unwrap()).fold(f64::INFINITY, f64::min);
    assert_eq!(decision["robust"]["regret_expected"].as_f64(), Some(least));
    assert!(dir.path().join("one/tornado.png").exists());
    // Efficiencies are among the uncertain constants.
    let inputs: Vec<&str> =
        decision["tornado"].as_array().unwrap().iter().map(|row| row["input"].as_str().unwrap()).collect();
    assert!(inputs.contains(&"efficiency.scratchpads.tensor"), "{inputs:?}");
    let none = run_coplace_in(dir.path(), &[&call[..6], &["--draws", "0", "--out", "none"]].concat()).expect_result();
    assert!(!none.contains("how sure") && !dir.path().join("none/tornado.png").exists(), "{none}");
    let part = [&call[..6], &["--draws", "8", "--shard", "1/2", "--out", "part"]].concat();
    let refused = run_coplace_in(dir.path(), &part).expect_refusal();
    assert!(refused.contains("--draws 8: a part has no answer of its own"), "{refused}");
}
