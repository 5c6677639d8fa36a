//! No line of a report is wider than a screen.

use crate::support::{run_coplace_in, run_on_screen};

/// The largest line width, in characters.
const WIDEST: usize = 170;

#[test]
fn no_line_of_a_report_is_wider_than_a_screen() {
    let dir = tempfile::tempdir().unwrap();
    let calls = [
        // Stages with long memory policies.
        "evaluate gpt3-175b --chip a100_40gb --fabric selene_hdr200x8 --devices 128 --global-batch 512 --pipeline 16 \
        --data 1 --tensor 8 --micro-batch 4 --attention unfused",
        // No plan, for a long reason.
        "evaluate mixtral-8x7b --chip tpu_v4 --attention unfused",
        // Plans whose recomputation has long names.
        "plan llama2-7b --chip a100_80gb --fabric selene_hdr200x8 --devices 16 --global-batch 64 --pipeline 2,4 --zero \
        0,1,3 --top 20 --schedule 1f1b,zb-v --recompute \
         none;custom:offload(decoder_layer_input,qkv_proj)+device(context,out_proj,mlpwi)",
        // Neighbours that break rules with long texts.
        "plan gpt3-175b --chip a100_80gb --fabric selene_hdr200x8 --devices 1024 --global-batch 1536",
        "list fabrics",
        "search llama2-7b --study smoke --out run",
    ];
    for call in calls {
        let mut words: Vec<&str> = call.split_whitespace().collect();
        words.extend((words[0] != "list").then_some("--details"));
        let text = run_coplace_in(dir.path(), &words).expect_result();
        let widest = text.lines().max_by_key(|line| line.chars().count()).unwrap();
        assert!(widest.chars().count() <= WIDEST, "{call}: {widest}");
    }
}

#[test]
fn a_narrow_screen_has_every_class_of_memory() {
    let job = "evaluate gpt3-175b --chip a100_40gb --fabric selene_hdr200x8 --devices 128 --global-batch 512 \
        --pipeline 16 --data 1 --tensor 8 --micro-batch 4 --attention unfused --details";
    let dir = tempfile::tempdir().unwrap();
    let text = run_on_screen(dir.path(), "80", &job.split_whitespace().collect::<Vec<_>>()).expect_result();
    let table = text.split("\nMemory, GiB per device\n").nth(1).unwrap().split("\nStages").next().unwrap();
    for class in ["weights", "master weights", "optimizer states", "activations", "transients", "needs", "usable"] {
        assert_eq!(table.lines().filter(|line| line.starts_with(&format!("{class} "))).count(), 2, "{class}: {table}");
    }
    assert!(!table.contains("left out") && table.lines().all(|line| line.chars().count() <= 80), "{table}");
}
