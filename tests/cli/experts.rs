//! Modules that predict further tokens, and how experts are run.

use crate::support::coplace;

#[test]
fn modules_for_further_tokens_and_a_capacity_are_trained_where_they_are_asked_for() {
    const CALL: &str = "evaluate deepseek-v2-lite --chip h100 --fabric eos_ndr400x8 --devices 16 --global-batch 64 --sequence-length 4096 --tensor 1 \
        --pipeline 1 --data 16 --expert 16 --zero 1 --micro-batch 1 --recompute full";
    let with = |more: &[&str]| CALL.split_whitespace().chain(more.iter().copied()).map(str::to_owned).collect::<Vec<_>>();
    let call = |more: &[&str]| coplace(&with(more).iter().map(String::as_str).collect::<Vec<_>>());
    let step = |more: &[&str]| call(&[more, &["--format", "json"]].concat()).json()["result"]["plan"]["step_s"].as_f64().unwrap();
    let plain = step(&[]);
    // One of 27 layers more, and a second head.
    let further = step(&["--mtp-layers", "1"]) / plain;
    assert!(1.03 < further && further < 1.3, "{further}");
    assert!(step(&["--capacity-factor", "1.5"]) > 1.02 * plain);
    assert!(step(&["--stack-option", "overlap.shared_expert=1"]) < plain);
    // Experts of another width than the tensor-parallel group's, and tokens sent once to every node.
    let narrow = ["--tensor", "2", "--data", "8", "--expert", "8"];
    let narrow = |more: &[&str]| call(&[&narrow, more].concat());
    assert!(narrow(&["--expert-tensor", "3"]).refusal().contains("--expert-tensor: etp = 3"));
    assert!(step(&["--stack-option", "kernels.expert_deduplicated=true"]) < plain);
    assert!(call(&["--mtp-layers", "33"]).refusal().contains("must be at most 32"));
    assert!(call(&["--capacity-factor", "0.5"]).refusal().contains("must be from 1 to 10.66"));
    let dense = "evaluate llama2-7b --chip h100 --fabric eos_ndr400x8 --devices 8 --global-batch 8 --capacity-factor 1.5";
    assert!(coplace(&dense.split(' ').collect::<Vec<_>>()).refusal().contains("llama2-7b has no experts"));
    let emitted = "plan qwen3-30b-a3b --chip h100 --fabric eos_ndr400x8 --devices 16 --global-batch 64 --sequence-length 4096 --tensor 1 --pipeline 1 \
        --expert 16 --micro-batch 1 --mtp-layers 1 --stack-option overlap.experts=1 --emit megatron";
    let written = coplace(&emitted.split_whitespace().collect::<Vec<_>>()).result();
    assert!(written.contains("--mtp-num-layers 1") && written.contains("--overlap-moe-expert-parallel-comm"), "{written}");
}
