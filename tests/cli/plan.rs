//! `coplace plan`: the list, its proof by counts, its neighbours, and the frameworks' words.

use crate::support::coplace;
use serde_json::Value;

const JOB: [&str; 10] =
    ["plan", "llama2-7b", "--chip", "a100_80gb", "--fabric", "selene_hdr200x8", "--devices", "64", "--global-batch", "512"];

fn call(more: &[&str]) -> Vec<&'static str> {
    JOB.iter().copied().chain(more.iter().map(|s| -> &'static str { String::leak((*s).to_owned()) })).collect()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

#[test]
fn the_fastest_plans_fit_and_no_neighbour_beats_them() {
    let answer = coplace(&call(&["--top", "5", "--format", "json"])).json();
    let plans = answer["plans"].as_array().unwrap();
    assert_eq!(plans.len(), 5);
    let steps: Vec<f64> = plans.iter().map(|p| number(&p["step_s"])).collect();
    assert!(steps.is_sorted(), "{steps:?}");
    for plan in plans {
        let parts: f64 = plan["parts_s"].as_object().unwrap().values().map(number).sum();
        assert!((parts / number(&plan["step_s"]) - 1.0).abs() < 1e-9);
        assert!(number(&plan["peak_gib"]) <= number(&answer["capacity_gib"]));
        let layout = &plan["plan"]["layout"];
        let devices: f64 = ["tensor", "pipeline", "data", "context"].iter().map(|key| number(&layout[key])).product();
        assert_eq!(devices, 64.0);
        assert!((0.2..1.0).contains(&number(&plan["mfu"])), "{}", plan["mfu"]);
    }
    for neighbour in answer["neighbours"].as_array().unwrap() {
        assert!(neighbour["step_s"].is_null() || number(&neighbour["step_s"]) >= steps[0] * (1.0 - 1e-12), "{neighbour}");
    }
    let counts = &answer["counts"];
    let decided: f64 = ["timed", "over_capacity", "rejected_by_bound", "refused"].iter().map(|key| number(&counts[key])).sum();
    assert_eq!(decided, number(&counts["plans"]));
    assert_eq!(answer, coplace(&call(&["--top", "5", "--format", "json"])).json(), "the same call gives the same answer");
}

#[test]
fn the_text_has_the_list_the_time_the_memory_and_the_neighbours() {
    let text = coplace(&call(&[])).result();
    for part in
        ["Fastest plans that fit\n", "Where the first one's time goes\n", "Its memory, GiB per device\n", "plans in the space"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
}

#[test]
fn a_plan_is_written_in_a_frameworks_words() {
    let fixed = ["--tensor", "4", "--pipeline", "4", "--virtual-stages", "2", "--micro-batch", "1", "--zero", "1"];
    let emit = |framework: &'static str, recompute: &'static str| {
        let more: Vec<&str> = fixed.iter().copied().chain(["--recompute", recompute, "--emit", framework]).collect();
        coplace(&call(&more)).result()
    };
    let megatron = emit("megatron", "full");
    for flag in [
        "--tensor-model-parallel-size 4",
        "--pipeline-model-parallel-size 4",
        "--num-layers-per-virtual-pipeline-stage 4",
        "--use-distributed-optimizer",
        "--recompute-granularity full",
        "--micro-batch-size 1",
        "--global-batch-size 512",
        "--swiglu",
    ] {
        assert!(megatron.lines().any(|line| line == flag), "{flag}: {megatron}");
    }
    let maxtext = emit("maxtext", "minimal");
    for setting in
        ["ici_pipeline_parallelism=4", "num_pipeline_microbatches=128", "remat_policy=minimal", "per_device_batch_size=8"]
    {
        assert!(maxtext.lines().any(|line| line == setting), "{setting}: {maxtext}");
    }
    assert!(maxtext.contains("# ZeRO-1"), "{maxtext}");
}

#[test]
fn what_fits_nowhere_is_a_result_that_says_what_is_lacking() {
    let small = ["plan", "gpt3-175b", "--chip", "a100_80gb", "--fabric", "nvlink3_node", "--devices", "8", "--global-batch", "8"];
    let text = coplace(&small).result();
    assert!(text.contains("no plan fits; the nearest, t ") && text.contains("GiB of 79.15 GiB"), "{text}");
    let none = coplace(&call(&["--tensor", "1", "--pipeline", "1", "--virtual-stages", "2"])).result();
    assert!(none.contains("no plan uses all 64 devices"), "{none}");
}

#[test]
fn faulty_arguments_are_refused() {
    let cases = [
        (vec!["--recompute", "ful"], "recompute policy `ful`"),
        (vec!["--stack", "nix"], "unknown software stack `nix`"),
        (
            vec!["--precision", "fp8"],
            "--precision fp8: a100_80gb_sxm has no matrix products of that type; use bf16 or fp16 or int8",
        ),
        (vec!["--tensor", "7"], "tp = 7: must be a divisor of the 32 heads"),
        (vec!["--pipeline", "64"], "pp = 64: must be such that"),
        (vec!["--micro-batch", "7"], "micro_batch = 7: must be a divisor of the 512 sequences"),
        (vec!["--expert", "2"], "ep = 2: must be 1 for a model without experts"),
        (vec!["--emit", "megatron", "--format", "json"], "cannot be used with"),
    ];
    for (more, message) in cases {
        let refusal = coplace(&call(&more)).refusal();
        assert!(refusal.contains(message), "{refusal}");
    }
    let fabric =
        ["plan", "llama2-7b", "--chip", "a100_80gb", "--fabric", "nvlink3_node", "--devices", "64", "--global-batch", "8"];
    assert!(coplace(&fabric).refusal().contains("it holds at most 8"));
}
