//! Verbs answer in a few lines on a narrow screen; `--details` prints the whole answer, and JSON is the same.

use crate::support::{CommandOutput, run_on_screen, study_with};
use std::path::Path;

/// The largest number of lines of a short answer at 80 columns.
const MOST_LINES: usize = 30;

fn call(directory: &Path, words: &str, more: &[&str]) -> CommandOutput {
    run_on_screen(directory, "80", &words.split_whitespace().chain(more.iter().copied()).collect::<Vec<_>>())
}

/// Checks a short answer: it has at most [`MOST_LINES`] lines of 80 columns, and these names in this order.
#[track_caller]
fn check_short(text: &str, names: &[&str]) {
    assert!(text.lines().count() <= MOST_LINES && text.lines().all(|line| line.chars().count() <= 80), "{text}");
    let mut rest = text;
    for name in names {
        rest = rest.split_once(&format!("\n  {name} ")).unwrap_or_else(|| panic!("no {name}: {text}")).1;
    }
    assert!(text.contains("\nNext: ") && !text.contains("\n===="), "{text}");
}

#[test]
fn plan_answers_in_a_few_lines_and_with_details_in_full() {
    const JOB: &str =
        "plan llama3-8b --chip h100 --fabric eos_ndr400x8 --devices 16 --global-batch 64 --sequence-length 4096";
    let dir = tempfile::tempdir().unwrap();
    let short = call(dir.path(), JOB, &[]).expect_result();
    check_short(&short, &["best plan", "value", "why", "memory", "nearest", "proof", "how sure"]);
    for words in ["with 90 % confidence", "fits with a chance of", "other listed plans", "FSDP", "tensor or pipeline"] {
        assert!(short.split_whitespace().collect::<Vec<_>>().join(" ").contains(words), "{words}: {short}");
    }
    let whole = call(dir.path(), JOB, &["--details"]).expect_result();
    for heading in
        ["Fastest plans that fit", "Its memory, GiB per device", "Its neighbours, one decision away", "Search"]
    {
        assert!(whole.contains(&format!("\n{heading}\n=")), "{heading}: {whole}");
    }
    let json = |more: &[&str]| call(dir.path(), JOB, &[more, &["--format", "json"]].concat()).expect_json();
    assert_eq!(json(&[]), json(&["--details"]));
    let refused = call(dir.path(), JOB, &["--details", "--emit", "megatron"]).expect_refusal();
    assert!(refused.contains("cannot be used with"), "{refused}");
}

/// With fixed degrees, all plans are of one family, and the short answer has the first plans of the list instead of
/// families. It also has the techniques and the length of the training.
#[test]
fn a_short_plan_names_what_was_asked_beside_the_plan() {
    const JOB: &str = "plan llama2-7b --chip a100_80gb --fabric selene_hdr200x8 --devices 16 --global-batch 64 \
        --tensor 2 --pipeline 2 --data 4 --recompute full --micro-batch 1,2 --zero 1";
    let dir = tempfile::tempdir().unwrap();
    let more = ["--tokens", "100B", "--technique", "planned-addresses"];
    let short = call(dir.path(), JOB, &more).expect_result();
    check_short(&short, &["best plan", "how sure", "training", "techniques"]);
    assert!(short.contains("days ") && short.contains("planned-addresses: exact"), "{short}");
    assert!(short.contains("\n#  ") && short.contains("\n1  "), "{short}");
    let none = call(dir.path(), "plan llama3-70b --chip h100 --fabric nvlink4_node --devices 8 --global-batch 16", &[]);
    let none = none.expect_result();
    assert!(none.contains("\n  no plan  no plan fits; the nearest, t 8"), "{none}");
}

#[test]
fn evaluate_answers_in_a_few_lines_and_with_details_in_full() {
    const JOB: &str = "evaluate llama2-7b --chip tpu_v4 --fabric tpu_v4_ici --devices 8 --global-batch 16 --pipeline 2";
    let dir = tempfile::tempdir().unwrap();
    let short = call(dir.path(), JOB, &[]).expect_result();
    check_short(&short, &["value", "plan", "it is", "why", "memory", "energy", "how sure"]);
    assert!(short.contains("bound by arrays") && short.contains("with 90 % confidence"), "{short}");
    let whole = call(dir.path(), JOB, &["--details"]).expect_result();
    for heading in ["Kernels that take most of the step", "Memory, GiB per device", "Stages over a step, seconds"] {
        assert!(whole.contains(&format!("\n{heading}\n=")), "{heading}: {whole}");
    }
    let kernels = call(dir.path(), JOB, &["--kernels"]).expect_result();
    assert!(kernels.contains("layer, forward: ") && kernels.ends_with(&short), "{kernels}");
    let json = |more: &[&str]| call(dir.path(), JOB, &[more, &["--format", "json"]].concat()).expect_json();
    assert_eq!(json(&[]), json(&["--details"]));
}

#[test]
fn a_sweep_and_its_merged_parts_answer_in_a_few_lines_and_with_details_in_full() {
    const JOB: &str = "sweep opt-350m --study small.toml --sequence-length 512";
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("small.toml"), study_with(&[("tensor_cores", "[8, 4]")])).unwrap();
    let short = call(dir.path(), JOB, &["--out", "my sweep"]).expect_result();
    check_short(&short, &["best chip", "plan", "value", "why", "proof"]);
    assert!(short.contains("Next: coplace explain 'my sweep' (") && short.contains("--resume --details."), "{short}");
    let whole = call(dir.path(), JOB, &["--out", "my sweep", "--resume", "--details"]).expect_result();
    let chips = whole.split("\n  in the space       ").nth(1).unwrap().split('\n').next().unwrap();
    assert!(whole.contains("\nMemory, GiB per device\n=") && short.contains(&format!("none of {chips}")), "{whole}");
    for part in ["1", "2"] {
        call(dir.path(), JOB, &["--shard", &format!("{part}/2"), "--out", part]).expect_result();
    }
    let merged = call(dir.path(), "merge 1 2 --out whole", &[]).expect_result();
    check_short(&merged, &["best chip", "plan", "value", "why", "proof"]);
    assert!(!merged.contains("--resume"), "{merged}");
    let merged = call(dir.path(), "merge 1 2 --out whole --details", &[]).expect_result();
    assert!(merged.contains("\nBest design\n="), "{merged}");
}
