//! Modules that predict further tokens, and the execution of experts.

use crate::support::{run_coplace, run_coplace_in};

#[test]
fn modules_for_further_tokens_and_a_capacity_are_trained_where_they_are_asked_for() {
    const CALL: &str = "evaluate deepseek-v2-lite --chip h100 --fabric eos_ndr400x8 --devices 16 --global-batch 64 \
        --sequence-length 4096 --tensor 1 \
        --pipeline 1 --data 16 --expert 16 --zero 1 --micro-batch 1 --recompute full";
    let with =
        |more: &[&str]| CALL.split_whitespace().chain(more.iter().copied()).map(str::to_owned).collect::<Vec<_>>();
    let call = |more: &[&str]| run_coplace(&with(more).iter().map(String::as_str).collect::<Vec<_>>());
    let step = |more: &[&str]| {
        call(&[more, &["--format", "json"]].concat()).expect_json()["result"]["plan"]["step_s"].as_f64().unwrap()
    };
    let plain = step(&[]);
    // The module adds one layer to 27, and a second head.
    let further = step(&["--mtp-layers", "1"]) / plain;
    assert!(1.03 < further && further < 1.3, "{further}");
    assert!(step(&["--capacity-factor", "1.5"]) > 1.02 * plain);
    assert!(step(&["--stack-option", "overlap.shared_expert=1"]) < plain);
    // Experts may have a tensor-parallel width of their own, and tokens may be sent only once to every node.
    let refused = call(&["--expert-tensor", "3"]).expect_refusal();
    assert!(refused.contains("--expert-tensor: etp = 3: must be a divisor of the 16 ranks of a stage"), "{refused}");
    assert!(step(&["--stack-option", "kernels.expert_deduplicated=true"]) < plain);
    assert!(call(&["--mtp-layers", "33"]).expect_refusal().contains("33 is not in 0..=32"));
    assert!(call(&["--capacity-factor", "0.5"]).expect_refusal().contains("must be from 1 to 10.66"));
    let dense = "evaluate llama2-7b --chip h100 --fabric eos_ndr400x8 --devices 8 --global-batch 8 --capacity-factor \
        1.5";
    assert!(run_coplace(&dense.split(' ').collect::<Vec<_>>()).expect_refusal().contains("llama2-7b has no experts"));
    let emitted = "plan qwen3-30b-a3b --chip h100 --fabric eos_ndr400x8 --devices 16 --global-batch 64 \
        --sequence-length 4096 --tensor 1 --pipeline 1 \
        --expert 16 --micro-batch 1 --mtp-layers 1 --stack-option overlap.experts=1 --emit megatron";
    let written = run_coplace(&emitted.split_whitespace().collect::<Vec<_>>()).expect_result();
    assert!(
        written.contains("--mtp-num-layers 1") && written.contains("--overlap-moe-expert-parallel-comm"),
        "{written}"
    );
}

/// A search with a module for further tokens trains it too, and `evaluate` reproduces the step of the best design.
#[test]
fn a_search_trains_modules_for_further_tokens() {
    let dir = tempfile::tempdir().unwrap();
    let search = ["search", "megatron-gpt2-xl", "--study", "smoke", "--within", "20", "--format", "json", "--out"];
    let best = |out: &str, more: &[&str]| {
        let found = run_coplace_in(dir.path(), &[&search[..], &[out], more].concat()).expect_json();
        assert_eq!(found["study"]["options"]["mtp_layers"].is_string(), !more.is_empty());
        found["best"]["step"]["time"]["step_s"].as_f64().unwrap()
    };
    let (plain, further) = (best("plain", &[]), best("further", &["--mtp-layers", "1"]));
    // The module adds one layer to 40, and a head, to the slowest stage.
    assert!(1.01 < further / plain && further / plain < 1.3, "{further} {plain}");
    let again = run_coplace_in(dir.path(), &["evaluate", "megatron-gpt2-xl", "--chip", "further", "--format", "json"])
        .expect_json();
    let step = again["result"]["plan"]["step_s"].as_f64().unwrap();
    assert!((step / further - 1.0).abs() < 1e-9, "{step} {further}");
    let narrow = ["search", "opt-350m", "--study", "smoke", "--mtp-layers", "1"];
    assert!(
        run_coplace_in(dir.path(), &narrow).expect_refusal().contains("whose embedding is narrower than its layers")
    );
}

#[test]
fn active_parameters_are_stated_beside_all_where_a_token_does_not_meet_all() {
    let answer = |verb: &str, model: &str, format: &str| {
        let call = format!(
            "{verb} {model} --chip h100 --fabric eos_ndr400x8 --devices 16 --global-batch 64 --tensor 1 --pipeline 1 \
             --zero 1 --micro-batch 1 --recompute full --sequence-length 4096 --format {format}"
        );
        run_coplace(&call.split_whitespace().collect::<Vec<_>>())
    };
    let evaluated = answer("evaluate", "qwen3-30b-a3b", "json").expect_json();
    let planned = answer("plan", "qwen3-30b-a3b", "json").expect_json();
    // Qwen states 30.5 billion parameters for Qwen3-30B-A3B, of which 3.3 billion are active.
    for of in [&evaluated["job"]["model"], &planned] {
        let count = |key: &str| of[key].as_u64().unwrap() as f64 / 1e9;
        assert!((count("parameters") - 30.5).abs() < 0.05 && (count("active_parameters") - 3.3).abs() < 0.1, "{of}");
    }
    let active = planned["active_parameters"].as_u64().unwrap().to_string();
    let billions = format!(",{} active per token", &active[active.len() - 3..]);
    for verb in ["evaluate", "plan"] {
        let text = answer(verb, "qwen3-30b-a3b", "text").expect_result();
        assert!(text.contains("30,532,122,624 parameters, 3,") && text.contains(&billions), "{text}");
    }
    let dense = answer("evaluate", "llama2-7b", "json").expect_json();
    assert_eq!(dense["job"]["model"]["parameters"], 6_738_415_616_u64);
    assert!(dense["job"]["model"].get("active_parameters").is_none());
    assert!(!answer("evaluate", "llama2-7b", "text").expect_result().contains("active per token"));
}
