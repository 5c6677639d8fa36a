//! The command as a library: calls in one process, side by side, with the program's own answers.
#![allow(clippy::unwrap_used)]

use assert_cmd::Command;
use coplace::{CallControl, CallFault, CallOutput, Files, answer_call};
use std::path::Path;
use std::thread;

fn words(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

fn answer(line: &str) -> CallOutput {
    let (output, result) = answer_call(&words(line), Files::default(), CallControl::default());
    result.unwrap_or_else(|fault| unreachable!("{line}: {}", fault.message));
    output
}

fn fault(line: &str) -> Box<CallFault> {
    answer_call(&words(line), Files::default(), CallControl::default()).1.unwrap_err()
}

/// Returns the output of the program.
fn printed(line: &str, format: &str) -> String {
    let mut program = Command::cargo_bin("coplace").unwrap();
    let output = program.args(words(line)).args(["--format", format]).env("COLUMNS", "170").output().unwrap();
    assert!(output.status.success(), "{line}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

const CALLS: [&str; 6] = [
    "evaluate opt-350m --chip h100 --fabric nvlink4_node --devices 4 --global-batch 8",
    "evaluate gpt2-xl --chip a100_80gb --fabric selene_hdr200x8 --devices 16 --global-batch 64 --pipeline 2 --kernels",
    "plan opt-350m --chip h100 --fabric nvlink4_node --devices 8 --global-batch 16 --top 3",
    "plan llama2-7b --chip tpu_v4 --fabric tpu_v4_ici --devices 64 --global-batch 512 --stack maxtext",
    "techniques opt-350m --chip h100 --technique galore",
    "list chips",
];

#[test]
fn calls_side_by_side_write_what_the_program_writes() {
    let all: Vec<(usize, CallOutput)> = thread::scope(|scope| {
        let calls: Vec<_> = (0..3 * CALLS.len())
            .map(|call| call % CALLS.len())
            .map(|at| scope.spawn(move || (at, answer(CALLS[at]))))
            .collect();
        calls.into_iter().map(|call| call.join().unwrap()).collect()
    });
    for (at, line) in CALLS.iter().enumerate() {
        let (json, text) = (printed(line, "json"), printed(line, "text"));
        for (_, output) in all.iter().filter(|(of, _)| of == &at) {
            assert_eq!(output.json, json, "{line}");
            assert_eq!(output.text, text, "{line}");
        }
    }
}

#[test]
fn a_fault_names_key_value_limit_and_cure() {
    let job = "evaluate opt-350m --chip h100 --fabric nvlink4_node --devices 4 --global-batch 8";
    let found = fault(&format!("{job} --pipeline 2 --tensor 1 --data 4"));
    assert_eq!((found.exit_code, found.key.as_deref(), found.value.as_deref()), (2, Some("--data"), Some("4")));
    assert!(found.limit.unwrap().ends_with("2, the copies of 2 devices (tp x cp x pp) among 4"));
    assert_eq!(found.cure.unwrap(), "use dp = 2, or pp = 1");
    let found = fault(&format!("{job} --sequence-lenth 4"));
    assert_eq!((found.key.as_deref(), found.exit_code), (Some("--sequence-lenth"), 2));
    assert_eq!(found.cure.unwrap(), "use --sequence-length");
    let found = fault(&format!("{job} --tensor 3"));
    assert_eq!((found.key.as_deref(), found.value.as_deref()), (Some("--tensor"), Some("3")));
    let found = fault(&format!("{job} --attention fast"));
    assert_eq!(found.limit.as_deref(), Some("must be one of fused, unfused"));
    assert!(!found.message.contains("--help"), "{}", found.message);
    let found = fault("evaluate opt-350m --chip h100 --fabric nvlink4_node --devices many --global-batch 8");
    assert_eq!((found.key.as_deref(), found.value.as_deref()), (Some("--devices"), Some("many")));
    assert!(found.limit.unwrap().contains("whole number from 1 to 1048576"));
    let found = fault(&format!("{job} --stack-option overlap.tensor=7"));
    assert_eq!((found.key.as_deref(), found.value.as_deref()), (Some("--stack-option"), Some("overlap.tensor=7")));
    let found = fault("evaluate llama-9b --chip h100 --fabric nvlink4_node --devices 4 --global-batch 8");
    assert_eq!((found.key.as_deref(), found.value.as_deref()), (Some("model"), Some("llama-9b")));
    assert_eq!(found.limit.as_deref(), Some("is neither a built-in model nor a file"));
    let found = fault("evaluate opt-350m --chip nowhere.toml --fabric nvlink4_node --devices 4 --global-batch 8");
    assert_eq!((found.file.as_deref(), found.key), (Some("nowhere.toml"), None));
    assert!(found.cure.unwrap().starts_with("give the path of a chip file"));
    // A value may contain the separators of a message. They do not split the value.
    let found = fault("evaluate x:;=.toml --chip h100 --fabric nvlink4_node --devices 4 --global-batch 8");
    assert_eq!((found.key.as_deref(), found.value.as_deref()), (Some("model"), Some("x:;=.toml")));
}

#[test]
fn a_carried_text_stands_in_for_a_file() {
    let text = include_str!("../sim/templates/chips/h100_80gb_sxm.toml");
    let mut files = Files::default();
    files.insert(Path::new("mine.toml"), text.to_owned());
    let job = words("evaluate opt-350m --chip mine.toml --fabric nvlink4_node --devices 4 --global-batch 8");
    let (output, result) = answer_call(&job, files, CallControl::default());
    assert_eq!(result, Ok(()));
    assert!(output.json.contains("\"mine.toml\": "), "the answer carries the chip's file");
    assert!(answer_call(&job, Files::default(), CallControl::default()).1.unwrap_err().message.contains("mine.toml"));
}

#[test]
fn a_stopped_call_has_the_best_so_far_and_warnings_are_kept() {
    let control = CallControl::default();
    control.stop();
    let job = words("plan opt-350m --chip h100 --fabric nvlink4_node --devices 8 --global-batch 16");
    let (output, result) = answer_call(&job, Files::default(), control);
    assert_eq!(result, Ok(()));
    assert!(output.json.contains("stopped by the caller"), "{}", output.json);
    let line = "plan opt-350m --chip h100 --fabric nvlink4_node --devices 8 --global-batch 16 --nvme 7:960";
    assert!(answer(line).warnings.iter().any(|warning| warning.contains("--nvme 7:960: no plan of the list")));
}
