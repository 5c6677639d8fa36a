//! Tests `coplace sweep --slurm` and `coplace search --slurm` with a stand-in for sbatch that runs submitted jobs at
//! once. They use a real Slurm if `.ci/slurm` has set one up.
#![cfg(unix)]

use crate::search_parts::{assert_same_answer, search_in_one_process};
use crate::support::{CommandOutput, file_names};
use crate::sweep::{assert_same_exports, undisturbed_sweep};
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// A stand-in for sbatch. It runs the tasks of an array one after another, except those in LOST, and then the dependent
/// jobs. It knows only the options that the sweep passes, and writes all calls to `submitted`.
const SBATCH: &str = r#"#!/bin/sh
echo "$@" >> submitted
tasks=""
for word; do
    case "$word" in
        --array=*) tasks=$(echo "${word#--array=}" | tr ',' '\n' | while IFS=- read -r a b; do seq "$a" "${b:-$a}"; done) ;;
        --output=*) log="${word#--output=}" ;;
        --partition=closed) echo "sbatch: error: invalid partition specified: closed" >&2; exit 1 ;;
    esac
    script="$word"
done
export SLURM_CPUS_ON_NODE=2
if [ -n "$tasks" ]; then
    for task in $tasks; do
        case " $LOST " in *" $task "*) continue ;; esac
        SLURM_ARRAY_TASK_ID=$task sh "$script" >> "$(echo "$log" | sed "s/%a/$task/")" 2>&1
    done
    echo "41;cluster"
else
    sh "$script" >> "$log" 2>&1
    echo 42
fi
"#;

fn submit(dir: &Path, path: &Path, lost: &str, more: &[&str]) -> CommandOutput {
    submit_a("sweep", dir, path, (lost, more))
}

fn submit_a(verb: &str, dir: &Path, path: &Path, (lost, more): (&str, &[&str])) -> CommandOutput {
    let mut command = assert_cmd::cargo::cargo_bin_cmd!("coplace");
    let words = [
        verb,
        "opt-350m",
        "--study",
        "s.toml",
        "--sequence-length",
        "512",
        "--out",
        "it's here/batch",
        "--format",
        "json",
    ];
    let output = command
        .current_dir(dir)
        .env("COPLACE_LOG", "warn")
        .env("PATH", path)
        .env("LOST", lost)
        .args(words)
        .args(more)
        .output()
        .unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    CommandOutput { code: output.status.code().unwrap(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// Makes a stand-in for sbatch in a directory, and returns a PATH that begins with it.
fn stand_in(dir: &Path) -> std::ffi::OsString {
    let bin = dir.join("bin");
    std::fs::create_dir(&bin).unwrap();
    std::fs::write(bin.join("sbatch"), SBATCH).unwrap();
    std::fs::set_permissions(bin.join("sbatch"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = std::env::var_os("PATH").unwrap();
    std::env::join_paths(std::iter::once(bin).chain(std::env::split_paths(&path))).unwrap()
}

#[test]
fn a_job_array_s_lost_part_is_named_and_submitted_alone() {
    let dir = undisturbed_sweep();
    let at = |name: &str| dir.path().join("it's here").join(name);
    let none = submit(dir.path(), Path::new("/nowhere"), "", &["--parts", "3", "--slurm"]).expect_refusal();
    assert!(
        none.contains("--slurm: sbatch cannot be started: ") && none.contains("run it where Slurm's commands are"),
        "{none}"
    );
    let path = stand_in(dir.path());
    let path = Path::new(&path);
    let closed = submit(dir.path(), path, "", &["--parts", "3", "--slurm", "--partition=closed"]).expect_refusal();
    assert!(closed.contains("array.sh: invalid partition specified: closed"), "{closed}");
    std::fs::remove_file(dir.path().join("submitted")).unwrap();
    let first =
        submit(dir.path(), path, "2", &["--parts", "3", "--slurm", "--partition=long", "--time=1:00:00"]).expect_json();
    assert_eq!((&first["submitted"], &first["complete"], &first["job"]), (&json!([1, 2, 3]), &json!([]), &json!("41")));
    let said = std::fs::read_to_string(dir.path().join("submitted")).unwrap();
    let lines: Vec<&str> = said.lines().collect();
    assert!(
        lines[0].contains("--requeue --array=1-3 ") && lines[0].contains(" --partition=long --time=1:00:00 "),
        "{said}"
    );
    assert!(lines[1].contains("--dependency=afterany:41 --partition=long"), "{said}");
    let merged = std::fs::read_to_string(at("batch.parts/merge.log")).unwrap();
    assert!(
        merged.contains("1 of 3 parts: none of the directories holds 2/3; run it with --shard 2/3, and merge again"),
        "{merged}"
    );
    assert!(!at("batch/sweep.csv").exists());
    let second = submit(dir.path(), path, "", &["--parts", "3", "--slurm"]).expect_json();
    assert_eq!((&second["submitted"], &second["complete"]), (&json!([2]), &json!([1, 3])));
    assert_same_exports(dir.path(), "it's here/batch");
    let third = submit(dir.path(), path, "", &["--parts", "3", "--slurm"]).expect_json();
    assert_eq!((&third["submitted"], &third["job"], &third["merge_job"]), (&json!([]), &Value::Null, &json!("42")));
    assert_same_exports(dir.path(), "it's here/batch");
    assert_eq!(
        file_names(&at("batch.parts")),
        [
            "1-of-3",
            "2-of-3",
            "3-of-3",
            "array.sh",
            "merge.log",
            "merge.sh",
            "part-1.log",
            "part-2.log",
            "part-3.log",
            "question.json"
        ]
    );
}

#[test]
fn a_search_s_lost_part_is_named_and_submitted_alone() {
    let dir = search_in_one_process();
    let path = stand_in(dir.path());
    let at = |name: &str| dir.path().join("it's here").join(name);
    let submit = |lost: &str, more: &[&str]| submit_a("search", dir.path(), Path::new(&path), (lost, more));
    let limited = submit("", &["--time-limit", "5", "--slurm"]).expect_refusal();
    assert!(limited.contains("limit the job (--slurm --time=4:00:00)"), "{limited}");
    let first = submit("2", &["--parts", "3", "--slurm", "--partition=long"]).expect_json();
    assert_eq!((&first["submitted"], &first["complete"], &first["job"]), (&json!([1, 2, 3]), &json!([]), &json!("41")));
    let said = std::fs::read_to_string(dir.path().join("submitted")).unwrap();
    assert!(said.contains("--job-name=coplace-search --requeue --array=1-3 "), "{said}");
    let merged = std::fs::read_to_string(at("batch.parts/merge.log")).unwrap();
    assert!(
        merged.contains("1 of 3 parts: none of the directories holds 2/3; run it with --shard 2/3, and merge again"),
        "{merged}"
    );
    assert!(!at("batch/record.json").exists());
    let second = submit("", &["--parts", "3", "--slurm"]).expect_json();
    assert_eq!((&second["submitted"], &second["complete"]), (&json!([2]), &json!([1, 3])));
    assert_same_answer(dir.path(), "it's here/batch");
    let third = submit("", &["--parts", "3", "--slurm"]).expect_json();
    assert_eq!((&third["submitted"], &third["job"], &third["merge_job"]), (&json!([]), &Value::Null, &json!("42")));
    assert_same_answer(dir.path(), "it's here/batch");
    assert_eq!(
        file_names(&at("batch.parts")),
        [
            "1-of-3",
            "2-of-3",
            "3-of-3",
            "array.sh",
            "best",
            "merge.log",
            "merge.sh",
            "part-1.log",
            "part-2.log",
            "part-3.log",
            "question.json"
        ]
    );
    assert_eq!(file_names(&at("batch.parts/best")), ["1-of-3.json", "2-of-3.json", "3-of-3.json"]);
    // Directories with the answer or the parts of another question are refused.
    let answered = submit("", &["--parts", "3", "--max-area", "500", "--slurm"]).expect_refusal();
    assert!(answered.contains("holds the answer to another question"), "{answered}");
    std::fs::remove_dir_all(at("batch")).unwrap();
    let other = submit("", &["--parts", "3", "--max-area", "500", "--slurm"]).expect_refusal();
    assert!(other.contains("1-of-3: holds part 1/3 of the search of question"), "{other}");
}

/// Returns the output of one of Slurm's commands.
#[track_caller]
fn slurm(command: &str, words: &[&str]) -> String {
    let output = std::process::Command::new(command).args(words).output().unwrap();
    assert!(output.status.success(), "{command} {words:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

/// Waits until a condition holds.
#[track_caller]
fn wait(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < Duration::from_secs(300), "{what}: {}", slurm("squeue", &[]));
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Submits a sweep or a search of four parts, kills one part and requeues another. Checks that only the killed part is
/// submitted again.
fn killed_and_requeued(verb: &str, dir: &Path, at_work: impl Fn(&Path) -> bool) {
    let path = std::env::var_os("PATH").unwrap();
    let again =
        || submit_a(verb, dir, Path::new(&path), ("", &["--parts", "4", "--slurm", "--cpus-per-task=1"])).expect_json();
    let at = |name: &str| dir.join("it's here/batch.parts").join(name);
    let first = again();
    let job = first["job"].as_str().unwrap();
    wait("part 1 is at work", || at_work(&at("1-of-4")));
    slurm("scancel", &["--full", "--signal=KILL", &format!("{job}_1")]);
    wait("part 3 is at work", || at_work(&at("3-of-4")));
    let third = format!("{job}_3");
    slurm("scontrol", &["requeue", &third]);
    // By default, a requeued task waits for two minutes. The new start is five seconds away, because a node refuses a
    // task whose credential has the same second as the end of the last task.
    wait("part 3 is to begin again", || slurm("squeue", &["-h", "-j", &third, "-o", "%T"]).trim() == "PENDING");
    slurm("scontrol", &["update", &format!("jobid={third}"), "StartTime=now+5"]);
    wait("everything has ended", || slurm("squeue", &["-h"]).trim().is_empty());
    let merged = std::fs::read_to_string(at("merge.log")).unwrap();
    let (unfinished, lost) =
        ("part 1/4 has ", "none of the directories holds 1/4; run it with --shard 1/4, and merge again");
    assert!(merged.contains(if verb == "sweep" { unfinished } else { lost }), "{merged}");
    let second = again();
    assert_eq!((&second["submitted"], &second["complete"]), (&json!([1]), &json!([2, 3, 4])));
    wait("everything has ended", || slurm("squeue", &["-h"]).trim().is_empty());
}

#[test]
#[ignore = "needs a Slurm of its own: .ci/slurm starts one and runs it"]
fn slurm_s_own_array_survives_kills_and_requeues() {
    let dir = undisturbed_sweep();
    // A store that is larger than an empty one has rows.
    let kept = |part: &Path| std::fs::metadata(part.join("sweep.sqlite")).is_ok_and(|store| store.len() > 16_384);
    killed_and_requeued("sweep", dir.path(), kept);
    assert_same_exports(dir.path(), "it's here/batch");
}

#[test]
#[ignore = "needs a Slurm of its own: .ci/slurm starts one and runs it"]
fn slurm_s_own_array_of_a_search_survives_kills_and_requeues() {
    let dir = search_in_one_process();
    let begun = |part: &Path| part.is_dir() && !part.join("part.json").exists();
    killed_and_requeued("search", dir.path(), begun);
    assert_same_answer(dir.path(), "it's here/batch");
}
