//! Every verb has help.

use crate::support::run_coplace;

/// Returns the verbs in the command's help.
fn verbs() -> Vec<String> {
    let help = run_coplace(&["--help"]).expect_result();
    let listed = help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let names = listed.filter_map(|line| line.strip_prefix("  ")).filter(|line| !line.starts_with(' '));
    names.filter_map(|line| line.split_whitespace().next().map(str::to_owned)).filter(|verb| verb != "help").collect()
}

#[test]
fn every_verb_has_an_example_a_format_and_its_json() {
    let verbs = verbs();
    for known in
        ["search", "compare", "pareto", "validate", "calibrate", "place", "schedule", "scalesim", "calculon", "list"]
    {
        assert!(verbs.iter().any(|verb| verb == known), "{known} is missing from {verbs:?}");
    }
    for verb in &verbs {
        let help = run_coplace(&[verb, "--help"]).expect_result();
        assert!(
            help.contains(&format!("Example:\n  coplace {verb} "))
                || help.contains(&format!("Examples:\n  coplace {verb} ")),
            "{help}"
        );
        // Verbs that run a server (`mcp`, `page`) print no answer.
        if coplace::arguments::SERVING_VERBS.contains(&verb.as_str()) {
            continue;
        }
        assert!(help.contains("--format <FORMAT>") && help.contains("JSON: "), "{help}");
    }
}

#[test]
fn the_help_says_what_the_exit_codes_mean_and_what_the_main_job_is() {
    let help = run_coplace(&["--help"]).expect_result();
    assert!(help.contains("Exit codes: 0 a result, 2 wrong input, 3 an incomplete result, 1 anything else."), "{help}");
    assert!(help.contains("coplace search llama2-7b"), "{help}");
    assert_eq!(run_coplace(&["--version"]).expect_result(), format!("coplace {}\n", env!("CARGO_PKG_VERSION")));
}

/// A negative number is an ordinary value, also in a list: the error names the option and the limit.
#[test]
fn negative_numbers_are_refused_by_their_options() {
    let job = [
        "plan",
        "llama2-7b",
        "--chip",
        "a100_80gb",
        "--fabric",
        "selene_hdr200x8",
        "--devices",
        "8",
        "--global-batch",
        "8",
    ];
    for (option, value, limit) in [
        ("--expert-tensor", "-1", "-1 is not in 1..=65536"),
        ("--tensor", "-1,2", "-1 is not in 1..=65536"),
        ("--zero", "-1", "-1 is not in 0..=3"),
        ("--top", "-3", "-3 is not in 1..=10000"),
        ("--sequence-length", "-4096", "-4096 is not in 1..=16777216"),
        ("--headroom-gib", "-0.5", "must be at least 0"),
        ("--time-limit", "-inf", "must be above 0"),
    ] {
        let said = run_coplace(&[&job[..], &[option, value]].concat()).expect_refusal();
        assert!(said.contains(option) && said.contains(limit) && !said.contains("-- -"), "{option} {value}: {said}");
    }
    let said = run_coplace(&["search", "llama2-7b", "--hbm-stacks", "-2"]).expect_refusal();
    assert!(said.contains("invalid value '-2' for '--hbm-stacks <N>': -2 is not in 1..=64"), "{said}");
}

#[test]
fn a_wrong_call_is_refused_with_exit_code_2() {
    for call in [&["frobnicate"][..], &["place"], &["list", "cats"], &["search", "llama2-7b", "--seed", "x"], &[]] {
        let called = run_coplace(call);
        assert_eq!((called.code, called.stdout.as_str()), (2, ""), "{call:?}");
        assert!(called.stderr.contains("--help") || called.stderr.contains("Usage:"), "{}", called.stderr);
    }
}
