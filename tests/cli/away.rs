//! Offloading to host memory, to NVMe and in part, and its form in frameworks' configurations.

use crate::support::{CommandOutput, run_coplace};

/// Arguments of a job on eight A100, up to the option for the number of stages.
pub const CLUSTER: [&str; 11] = [
    "--chip",
    "a100_80gb_sxm",
    "--fabric",
    "selene_hdr200x8",
    "--devices",
    "8",
    "--global-batch",
    "8",
    "--tensor",
    "2",
    "--pipeline",
];

#[test]
fn storage_that_no_plan_uses_is_said_to_be_of_no_effect() {
    let words = [
        "plan",
        "gpt2-xl",
        "--chip",
        "a100_80gb_sxm",
        "--fabric",
        "nvlink3_node",
        "--devices",
        "8",
        "--global-batch",
        "64",
    ];
    let told = |more: &[&str]| run_coplace(&words.into_iter().chain(more.iter().copied()).collect::<Vec<_>>());
    let warned = told(&["--nvme", "6:1600"]);
    assert!(warned.stderr.contains("--nvme 6:1600: no plan of the list keeps anything there"), "{}", warned.stderr);
    assert!(!told(&[]).stderr.contains("--nvme"));
}

fn call(verb: &str, more: &[&str]) -> CommandOutput {
    let words: Vec<&str> =
        [verb, "llama2-7b"].into_iter().chain(CLUSTER).chain(["1"]).chain(more.iter().copied()).collect();
    run_coplace(&words)
}

const PLACES: &str = "tensors:offload(attention.core.out*0.5)+nvme(mlp.gated.out)+device(attention.norm.out,mlp.gate_up.gate,mlp.gate_up.up)";

#[test]
fn tensors_go_to_the_host_and_to_storage_whole_and_in_part() {
    let plan = ["--micro-batch", "2", "--zero", "1", "--recompute", PLACES];
    let with = |more: &[&str]| call("evaluate", &[&plan[..], more].concat());
    let answer = with(&["--nvme", "6:100", "--format", "json"]).expect_json();
    let stage = &answer["result"]["stages"][0];
    let mib = |place: &str, name: &str| stage["keeps"][0][place][name].as_f64().unwrap();
    // A device has 4096 tokens of two sequences, and half of every layer. In 2 bytes, the attention's output is 4096
    // wide, and the MLP's 11008. Half of the tokens of the attention's output are offloaded.
    let tokens = 4096.0 * 2.0 / 1_048_576.0;
    assert_eq!(mib("host_mib", "attention.core.out"), tokens * 4096.0 / 2.0);
    assert_eq!(mib("device_mib", "attention.core.out"), tokens * 4096.0 / 2.0);
    assert_eq!(mib("storage_mib", "mlp.gated.out"), tokens * 11_008.0);
    // A stage keeps one micro-batch of all 32 layers.
    let gib = |key: &str| stage[key].as_f64().unwrap();
    assert!((gib("storage_gib") - 32.0 * tokens * 11_008.0 / 1024.0).abs() < 1e-9, "{stage}");
    assert!((gib("host_gib") - 32.0 * tokens * 2048.0 / 1024.0).abs() < 1e-9, "{stage}");
    let text = with(&["--nvme", "6:100", "--details"]).expect_result();
    assert!(text.contains("on NVMe") && text.contains("MiB on NVMe"), "{text}");
    // Slower storage takes longer. If storage is too small, the message has the size that is needed.
    let step = |rate: &str| {
        with(&["--nvme", rate, "--format", "json"]).expect_json()["result"]["time"]["step_s"].as_f64().unwrap()
    };
    assert!(step("0.5:100") > 1.2 * step("20:100"));
    let short = with(&["--nvme", "6:1"]);
    assert!(short.stdout.contains("needs 2.69 GiB of 0.93 GiB of storage"), "{}", short.stdout);
    for (rate, part) in [("6", "write it like 6.4:1600"), ("6:0", "each from 0.001"), ("x:1", "--nvme x:1")] {
        assert!(with(&["--nvme", rate]).expect_refusal().contains(part), "{rate}");
    }
    for (places, part) in [
        ("tensors:offload(attention.core.out*1.5)", "above 0 and below 1"),
        (
            "tensors:offload(attention.core.out*0.5)+nvme(mlp.gated.out*0.25)",
            "all partly offloaded tensors have the same share",
        ),
        ("tensors:device(mlp.gated.out*0.5)", "stays on the device whole"),
        ("tensors:offload(mlp.gated.out)+nvme(mlp.gated.out)", "is in two places"),
        ("tensors:nvme(mlp.gate)", "no such tensor"),
        ("tensors:tape(mlp.gated.out)", "nvme"),
    ] {
        let refused = call("evaluate", &["--micro-batch", "2", "--recompute", places]).expect_refusal();
        assert!(refused.contains(part), "{places}: {refused}");
    }
}

#[test]
fn choices_are_written_in_the_words_of_frameworks() {
    let fixed = ["--micro-batch", "2", "--zero", "1", "--recompute"];
    let emit = |recompute: &'static str, more: &[&str]| call("plan", &[&fixed[..], &[recompute], more].concat());
    let modules = ["--technique", "recompute-mlp", "--technique", "offload-core-attn", "--emit", "megatron"];
    let written = emit("none", &modules).expect_result();
    // The projection reads the offloaded output of the core. Megatron-LM leaves it on the device unless both are named.
    let away = "--offload-modules core_attn attn_proj";
    for line in ["--recompute-modules mlp", "--fine-grained-activation-offloading", away] {
        assert!(written.lines().any(|written| written == line), "{line}: {written}");
    }
    let lossy = ["--technique", "galore", "--allow", "galore", "--emit", "megatron"];
    let lacking = emit("none", &lossy);
    assert_eq!(lacking.code, 3, "{}", lacking.stderr);
    assert!(
        lacking.stderr.contains("technique galore") && lacking.stdout.contains("# technique galore"),
        "{}",
        lacking.stderr
    );
    let torch = emit("save_dot_except_mlp", &["--emit", "torch"]);
    assert!(torch.stdout.contains("create_selective_checkpoint_contexts(policy)"), "{}", torch.stdout);
    let places = call(
        "plan",
        &["--micro-batch", "2", "--zero", "1", "--nvme", "6:100", "--recompute", PLACES, "--emit", "torch"],
    );
    assert_eq!(places.code, 3);
    assert!(places.stderr.contains("offloaded: attention.core.out, mlp.gated.out"), "{}", places.stderr);
}
