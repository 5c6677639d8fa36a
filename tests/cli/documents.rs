//! `--documents`: sequences that are packed from documents.

use crate::support::{run_coplace, run_coplace_in};

const CALL: &str = "evaluate llama3-8b --chip h100 --fabric eos_ndr400x8 --devices 8 --global-batch 8 \
    --sequence-length 32768 --tensor 8 --pipeline 1 --context 1 --micro-batch 1 --recompute full";

fn words(more: &[&str]) -> Vec<String> {
    CALL.split_whitespace().chain(more.iter().copied()).map(str::to_owned).collect()
}

#[test]
fn documents_shorten_attention_and_whole_ones_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let call = |more: &[&str]| {
        let words = words(more);
        run_coplace_in(dir.path(), &words.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let answer = |more: &[&str]| call(&[more, &["--format", "json"]].concat()).expect_json();
    let step = |answer: &serde_json::Value| answer["result"]["plan"]["step_s"].as_f64().unwrap();
    let whole = answer(&[]);
    assert_eq!(step(&answer(&["--documents", "32768"])), step(&whole));
    let short = answer(&["--documents", "4096:3,2048"]);
    // Attention is half of the step at 32,768 tokens.
    assert!(step(&short) < 0.75 * step(&whole), "{} {}", step(&short), step(&whole));
    assert_eq!(short["job"]["model"]["documents"], serde_json::json!([[4096, 3], [2048, 1]]));
    std::fs::write(dir.path().join("lengths.csv"), "documents,tokens\n3,4096\n1,2048\n0,17\n").unwrap();
    assert_eq!(step(&answer(&["--documents", "lengths.csv"])), step(&short));
    // Unfused attention computes all scores.
    let unfused = |more: &[&str]| step(&answer(&[&["--attention", "unfused"], more].concat()));
    assert_eq!(unfused(&["--documents", "2048"]), unfused(&[]));
    for (given, said) in [
        ("much", "--documents much: must be whole numbers above 0: tokens, or tokens:number"),
        ("512:0", "--documents 512:0: must be whole numbers above 0"),
        ("nowhere.csv", "--documents nowhere.csv: cannot be read: "),
    ] {
        let refused = call(&["--documents", given]).expect_refusal();
        assert!(refused.contains(said), "{refused}");
    }
    std::fs::write(dir.path().join("lengths.csv"), "tokens\n4096\nmany\n").unwrap();
    let refused = call(&["--documents", "lengths.csv"]).expect_refusal();
    assert!(refused.contains("line 3: `many` has no whole number in a column"), "{refused}");
    std::fs::write(dir.path().join("lengths.csv"), "tokens,count\n4096,5\n").unwrap();
    let refused = call(&["--documents", "lengths.csv"]).expect_refusal();
    assert!(refused.contains("has a column `count`, which is not known"), "{refused}");
    for nothing in ["tokens,documents\n", "tokens,documents\n4096,0\n"] {
        std::fs::write(dir.path().join("lengths.csv"), nothing).unwrap();
        let refused = call(&["--documents", "lengths.csv"]).expect_refusal();
        assert!(refused.contains("--documents lengths.csv: has no documents: must have at least one"), "{refused}");
    }
}

#[test]
fn a_plan_with_documents_says_what_the_framework_s_file_lacks() {
    let call = "plan llama3-8b --chip h100 --fabric eos_ndr400x8 --devices 8 --global-batch 8 --sequence-length 8192 \
        --tensor 4 --pipeline 1 --context 1 --micro-batch 1 --recompute full --documents 1024 --emit megatron";
    let refused = run_coplace(&call.split_whitespace().collect::<Vec<_>>());
    assert!(refused.stderr.contains("attention within packed documents"), "{}", refused.stderr);
}
