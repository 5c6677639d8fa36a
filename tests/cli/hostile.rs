//! Hostile surroundings: full disks, concurrent searches, unknown names, answers with numbers that are not finite.

use crate::support::{CommandOutput, file_names, read_repository_file, run_coplace, run_coplace_in, small_study};
use serde_json::{Value, json};
use std::path::Path;

/// Calls the command in a directory after a shell `setting`.
#[cfg(unix)]
fn under(setting: &str, directory: &Path, arguments: &[&str]) -> CommandOutput {
    let mut command = std::process::Command::new("sh");
    let script = format!("{setting} exec \"$0\" \"$@\"");
    command.arg("-c").arg(script).arg(assert_cmd::cargo::cargo_bin!("coplace")).args(arguments);
    let output = command.current_dir(directory).env("COPLACE_LOG", "warn").output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    CommandOutput { code: output.status.code().unwrap(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// No file may exceed one block. This simulates a full disk.
#[cfg(unix)]
const FULL: &str = "trap '' XFSZ; ulimit -f 0;";

#[cfg(unix)]
#[test]
fn a_full_disk_is_exit_code_1_in_every_verb_and_loses_no_answer() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("small.toml"), small_study()).unwrap();
    let search = ["search", "llama2-7b", "--study", "small.toml", "--out", "run"];
    let full = under(FULL, dir.path(), &search);
    assert_eq!((full.code, full.stderr.contains("cannot be written")), (1, true), "{}", full.stderr);
    assert!(full.stdout.contains("best chip") && !full.stdout.contains("Written:"), "{}", full.stdout);
    assert!(!dir.path().join("run").exists(), "nothing is left behind");
    let written = run_coplace_in(dir.path(), &search).expect_result();
    assert!(written.starts_with(full.stdout.lines().next().unwrap()), "{written}");
    let before: Vec<Vec<u8>> = file_names(&dir.path().join("run"))
        .iter()
        .map(|name| std::fs::read(dir.path().join("run").join(name)).unwrap())
        .collect();
    assert_eq!(under(FULL, dir.path(), &search).code, 1);
    for (name, bytes) in file_names(&dir.path().join("run")).iter().zip(before) {
        assert_eq!(std::fs::read(dir.path().join("run").join(name)).unwrap(), bytes, "{name}: the old run stays");
    }
    let data = crate::support::repository_path("sim/tests/data/collectives.csv").display().to_string();
    for option in [["--plot", "figures"], ["--predictions", "p.csv"], ["--breakdown", "b.csv"]] {
        let full = under(FULL, dir.path(), &["validate", &data, option[0], option[1]]);
        // Even the breakdown, a single line because there are no training runs, does not fit.
        assert_eq!(full.code, 1, "{option:?}: {}", full.stderr);
        assert!(full.stdout.contains("MAPE"), "{option:?}: {}", full.stdout);
        let nowhere = if option[0] == "--plot" { "small.toml/x" } else { "gone/x.csv" };
        assert_eq!(run_coplace_in(dir.path(), &["validate", &data, option[0], nowhere]).code, 2, "{option:?}");
    }
}

#[cfg(unix)]
#[test]
fn standard_output_that_takes_nothing_is_exit_code_1() {
    let dir = tempfile::tempdir().unwrap();
    for call in [
        &["--version"][..],
        &["--help"],
        &["plan", "--help"],
        &["list", "chips"],
        &["list", "stacks", "--format", "json"],
    ] {
        let full = under("exec > /dev/full;", dir.path(), call);
        assert_eq!(full.code, 1, "{call:?}");
        assert!(full.stderr.starts_with("error: "), "{call:?}: {}", full.stderr);
    }
}

#[cfg(unix)]
#[test]
fn a_directory_takes_one_search_at_a_time() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("small.toml"), small_study()).unwrap();
    std::fs::create_dir(dir.path().join("run")).unwrap();
    let lock = std::fs::File::open(dir.path().join("run")).unwrap();
    lock.lock().unwrap();
    let search = ["search", "llama2-7b", "--study", "small.toml", "--out", "run"];
    let refused = run_coplace_in(dir.path(), &search).expect_refusal();
    assert_eq!(
        refused,
        "error: --out run: another search writes into it; wait for its end, or give another directory\n"
    );
    assert_eq!(file_names(&dir.path().join("run")), [""; 0]);
}

#[test]
fn a_record_of_another_program_is_never_written_over() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("run")).unwrap();
    let file = dir.path().join("run/record.json");
    std::fs::write(&file, "{\"mine\": 1}").unwrap();
    let refused =
        run_coplace_in(dir.path(), &["search", "llama2-7b", "--study", "smoke", "--out", "run"]).expect_refusal();
    assert!(refused.contains("--out run: holds the answer to another question, which is not overwritten"), "{refused}");
    assert_eq!(std::fs::read_to_string(file).unwrap(), "{\"mine\": 1}");
}

#[test]
fn names_are_found_whatever_their_case_and_the_nearest_is_named() {
    let plan = |model, chip, fabric, stack| {
        let of = [
            "plan",
            model,
            "--chip",
            chip,
            "--fabric",
            fabric,
            "--devices",
            "8",
            "--global-batch",
            "8",
            "--tensor",
            "1",
        ];
        run_coplace(&[&of[..], &["--pipeline", "1", "--stack", stack, "--format", "json"]].concat())
    };
    let upper = plan("OPT-350M", "A100_80GB", "Selene_HDR200x8", "MEGATRON").expect_json();
    let lower = plan("opt-350m", "a100_80gb", "selene_hdr200x8", "megatron").expect_json();
    assert_eq!(upper["plans"], lower["plans"]);
    for (called, near) in [
        (plan("opt-350", "a100_80gb", "selene_hdr200x8", "megatron"), "did you mean `opt-350m`?"),
        (plan("opt-350m", "tpu_v4x", "selene_hdr200x8", "megatron"), "did you mean `tpu_v4`?"),
        (plan("opt-350m", "a100_80gb", "selene_hdr20x8", "megatron"), "did you mean `selene_hdr200x8`?"),
        (plan("opt-350m", "a100_80gb", "selene_hdr200x8", "megatrn"), "did you mean `megatron`?"),
        (run_coplace(&["search", "opt-350m", "--study", "smok"]), "did you mean `smoke`?"),
    ] {
        let message = called.expect_refusal();
        assert!(message.contains(near), "{near}: {message}");
    }
}

#[test]
fn links_with_a_wild_number_are_refused_by_their_line() {
    let dir = tempfile::tempdir().unwrap();
    let links = "file,src_idx,dst_idx,bandwidth_mbytes_per_s\na,0,65535,19200\na,0,1,19100\n";
    std::fs::write(dir.path().join("links.csv"), links).unwrap();
    let of = [
        "plan",
        "opt-350m",
        "--chip",
        "a100_80gb",
        "--fabric",
        "selene_hdr200x8",
        "--devices",
        "16",
        "--global-batch",
        "16",
    ];
    let refused = run_coplace_in(dir.path(), &[&of[..], &["--links", "links.csv"]].concat()).expect_refusal();
    assert!(
        refused.starts_with("error: links.csv: line 2, dst_idx = 65535: the lines name 3 units but not unit 2;"),
        "{refused}"
    );
}

#[test]
fn a_fabric_that_is_too_small_is_named_with_its_file_and_option() {
    let of = [
        "plan",
        "opt-350m",
        "--chip",
        "a100_80gb",
        "--fabric",
        "nvlink3_node",
        "--devices",
        "64",
        "--global-batch",
        "64",
    ];
    let refused = run_coplace(&of).expect_refusal();
    assert!(refused.starts_with("error: --devices 64 --fabric nvlink3_node: fabric `"), "{refused}");
}

#[test]
fn an_option_that_has_no_effect_says_so() {
    let of = [
        "plan",
        "opt-350m",
        "--chip",
        "a100_80gb",
        "--fabric",
        "nvlink3_node",
        "--devices",
        "8",
        "--global-batch",
        "8",
    ];
    let called = run_coplace(&[&of[..], &["--emit", "piper", "--top", "3"]].concat());
    assert_eq!(called.code, 0);
    assert!(called.stderr.contains("--top 3: --emit piper writes the graph"), "{}", called.stderr);
    assert_eq!(run_coplace(&[&of[..], &["--emit", "piper"]].concat()).stderr, "");
}

#[test]
fn a_recorded_time_of_nothing_is_no_share() {
    let dir = tempfile::tempdir().unwrap();
    let mut instance: Value =
        serde_json::from_str(&read_repository_file("interop/reference/phaze/placement/instance_000.json")).unwrap();
    assert!(instance["expected"]["time_per_batch"].is_f64(), "{instance}");
    instance["expected"]["time_per_batch"] = json!(-0.0);
    std::fs::write(dir.path().join("zero.json"), instance.to_string()).unwrap();
    let text = run_coplace_in(dir.path(), &["place", "zero.json"]).expect_result();
    assert!(text.ends_with("  expected: time per batch 0.000000: slower\n"), "{text}");
    let answer = run_coplace_in(dir.path(), &["place", "zero.json", "--format", "json"]).expect_json();
    assert_eq!((&answer["expected"]["difference"], &answer["expected"]["verdict"]), (&Value::Null, &json!("slower")));
}

/// A name in another's file could set the terminal's title or hide lines.
#[test]
fn names_and_damaged_lines_reach_the_terminal_without_control_characters() {
    let dir = tempfile::tempdir().unwrap();
    let chip = read_repository_file("sim/templates/chips/tpu_v4.toml");
    let steered = r"chip\u001b]0;TITLE\u0007\u001b[31mRED\r";
    let (_, rest) = chip.split_once('\n').unwrap();
    std::fs::write(dir.path().join("chip.toml"), format!("name = \"{steered}\"\n{rest}")).unwrap();
    std::fs::write(dir.path().join("broken.toml"), "[space]\n\u{1b}[2Jx\n").unwrap();
    let is_clean = |text: &str| !text.contains(|c: char| c.is_control() && c != '\n');
    let call = "evaluate opt-350m --chip chip.toml --devices 4 --fabric ideal_switch --global-batch 8";
    let shown = run_coplace_in(dir.path(), &call.split(' ').collect::<Vec<_>>()).expect_result();
    assert!(shown.contains(r"chip\u{1b}]0;TITLE\u{7}") && is_clean(&shown), "{shown:?}");
    let refused = run_coplace_in(dir.path(), &["search", "opt-350m", "--study", "broken.toml"]).expect_refusal();
    assert!(refused.contains(r"\u{1b}[2Jx") && is_clean(&refused), "{refused:?}");
}

#[cfg(unix)]
#[test]
fn figures_are_not_written_through_a_link_of_another_s_directory() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("small.toml"), small_study()).unwrap();
    run_coplace_in(dir.path(), &["search", "llama2-7b", "--study", "small.toml", "--out", "run"]).expect_result();
    let (victim, figure) = (dir.path().join("victim"), dir.path().join("run/pareto.svg"));
    std::fs::write(&victim, "precious").unwrap();
    std::fs::remove_file(&figure).unwrap();
    std::os::unix::fs::symlink(&victim, &figure).unwrap();
    let refused = run_coplace_in(dir.path(), &["pareto", "run", "--out", "run"]);
    let refused = refused.expect_refusal();
    let why =
        "pareto.svg: cannot be written: it is a link, which is not followed; remove it, or give another directory";
    assert!(refused.contains(why), "{refused}");
    assert_eq!(std::fs::read(&victim).unwrap(), b"precious");
}
