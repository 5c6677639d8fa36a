//! `coplace sweep`: every design is stored, whatever happens to the process, the store or the disk.

use crate::support::{CommandOutput, file_names, run_coplace_in};
use serde_json::Value;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// A study of relatives of TPU v4 on two fabrics. Some of them are too large, some are no chips, and some are too small
/// for the model.
const STUDY: &str = r#"
description = "TPU v4's relatives"
source = "sim/templates/chips/tpu_v4.toml"
[space]
base_chip = "tpu_v4"
max_area_mm2 = 560
# Chips beyond all limits are part of the sweep.
build_limits = false
[space.dimensions]
"tensor.arrays_per_core" = [1, 2, 4]
"vector.lanes" = [512, 1024]
"memory.cmem.capacity_mib" = [32, 128]
"memory.hbm.capacity_gib" = [0.05, 1, 16]
hbm_stacks = [2, 8]
"area.hbm_stacks" = "hbm_stacks"
links = [6, 12]
"area.links" = "links"
"fabric.tier.ici.bandwidth_gb_per_s" = "45 * links"
clock_mhz = [850, 1050]
"area.node" = ["n7", "n5"]
[cluster]
devices = 8
fabric = "tpu_v4_ici"
global_batch_sequences = 64
[plan]
context_parallel = [1]
expert_parallel = [1]
virtual_stages = [1]
zero = [0]
schedules = ["1f1b"]
recompute = ["none", "full"]
layer_split = "even"
micro_batch_sequences = [1, 4]
attention = "fused"
optimizer = "adam"
[limits]
evaluations = 1000
"#;
const DESIGNS: u64 = 3 * 2 * 2 * 3 * 2 * 2 * 2 * 2;

const EXPORTS: [&str; 2] = ["sweep.parquet", "sweep.csv"];

/// Returns the arguments of a sweep that writes into `out`.
fn sweep<'a>(out: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    // A study's file may be given among the models.
    let mut words = vec!["sweep", "opt-350m", "s.toml", "--sequence-length", "512", "--out", out, "--format", "json"];
    words.extend(more);
    words
}

/// Returns a copy of a directory with the study and, in `whole`, an undisturbed sweep. The sweep is made once for all
/// tests.
pub fn undisturbed_sweep() -> tempfile::TempDir {
    static ONE: OnceLock<tempfile::TempDir> = OnceLock::new();
    let one = ONE.get_or_init(|| {
        // Statics are never dropped, so the directory is inside the target directory and is removed with that.
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        std::fs::write(dir.path().join("s.toml"), STUDY).unwrap();
        let answer = run_coplace_in(dir.path(), &sweep("whole", &[])).expect_json();
        assert_eq!(answer["this_run"]["designs"], DESIGNS);
        dir
    });
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("whole")).unwrap();
    for file in std::iter::once("s.toml".to_owned())
        .chain(file_names(&one.path().join("whole")).into_iter().map(|name| format!("whole/{name}")))
    {
        std::fs::copy(one.path().join(&file), dir.path().join(&file)).unwrap();
    }
    dir
}

#[track_caller]
pub fn assert_same_exports(dir: &Path, other: &str) {
    for file in EXPORTS {
        let [a, b] = ["whole", other].map(|run| std::fs::read(dir.join(run).join(file)).unwrap());
        assert!(a == b, "{file} of {other} differs from that of an undisturbed sweep");
    }
}

/// Returns the number of times that a process is killed: 3, or the value of `COPLACE_KILLS`.
fn kills() -> u32 {
    std::env::var("COPLACE_KILLS").ok().and_then(|n| n.parse().ok()).unwrap_or(3)
}

/// Pseudo-random bytes, the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        // SplitMix64 (Steele, Lea and Flood).
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below.max(1)
    }
}

#[test]
fn a_sweep_has_every_design_and_is_a_run_for_other_verbs() {
    let dir = undisturbed_sweep();
    let whole = dir.path().join("whole");
    assert_eq!(
        file_names(&whole),
        ["SHA256SUMS", "best.toml", "fabric.toml", "record.json", "sweep.csv", "sweep.parquet", "sweep.sqlite"]
    );
    let lines = std::fs::read_to_string(whole.join("sweep.csv")).unwrap();
    let mut lines = lines.lines();
    let header: Vec<&str> = lines.next().unwrap().split(',').collect();
    for column in [
        "links",
        "vector.lanes",
        "area.node",
        "outcome",
        "area_mm2",
        "peak_power_w",
        "cost_usd",
        "step_time_s",
        "bound_by",
    ] {
        assert!(header.contains(&column), "{column} is missing from {header:?}");
    }
    assert_eq!(lines.count() as u64, DESIGNS);
    // One thread gives the same bytes.
    let mut command = assert_cmd::cargo::cargo_bin_cmd!("coplace");
    let one = command.current_dir(dir.path()).env("RAYON_NUM_THREADS", "1").args(sweep("one", &[])).output().unwrap();
    assert!(one.status.success(), "{}", String::from_utf8_lossy(&one.stderr));
    assert_same_exports(dir.path(), "one");
    let answer: Value = serde_json::from_slice(&one.stdout).unwrap();
    let counted = &answer["outcomes"];
    let total: u64 = counted.as_object().unwrap().values().map(|count| count.as_u64().unwrap()).sum();
    assert_eq!(total, DESIGNS);
    for fate in ["evaluated", "infeasible", "over_area", "no_chip"] {
        assert!(counted[fate].as_u64().unwrap() > 0, "{fate}: {counted}");
    }
    // The search of the same question prunes by bounds and finds the same design.
    let search =
        ["search", "opt-350m", "--study", "s.toml", "--sequence-length", "512", "--out", "search", "--format", "json"];
    let searched = run_coplace_in(dir.path(), &search).expect_json();
    for key in ["throughput_sequences_per_s", "area_mm2", "tensor_parallel", "step_time_s"] {
        assert_eq!(searched["best"]["design"][key], answer["record"]["best"]["design"][key], "{key}");
    }
    for key in ["proof", "best", "bound", "gap", "designs", "over_area", "no_chip"] {
        assert_eq!(searched["certificate"][key], answer["record"]["certificate"][key], "{key}");
    }
    let again =
        run_coplace_in(dir.path(), &["evaluate", "opt-350m", "--chip", "whole", "--format", "json"]).expect_json();
    assert_eq!(again["result"]["time"]["step_s"], searched["best"]["step"]["time"]["step_s"]);
    assert!(again["result"]["time"]["step_s"].is_f64(), "{again}");
    refusals(dir.path());
    read_by_others(dir.path());
}

/// Checks that verbs that read runs accept the directory of a sweep, and report a damaged one.
fn read_by_others(dir: &Path) {
    let compared = run_coplace_in(dir, &["compare", "whole", "search", "--format", "json"]).expect_json();
    let steps: Vec<&Value> =
        compared["entries"].as_array().unwrap().iter().map(|entry| &entry["step_time_s"]).collect();
    assert!(steps.len() >= 2 && steps[0].is_f64() && steps[0] == steps[1], "{compared}");
    run_coplace_in(dir, &["report", "whole", "-o", "whole.html"]).expect_result();
    assert!(std::fs::read_to_string(dir.join("whole.html")).unwrap().contains("evaluated designs"));
    let looked = run_coplace_in(dir, &["doctor", "--runs", ".", "--format", "json"]).expect_json();
    let runs: Vec<&str> =
        looked["runs"].as_array().unwrap().iter().filter_map(|run| run["directory"].as_str()).collect();
    assert!(runs.contains(&"./whole") && looked["unsound"].as_array().unwrap().is_empty(), "{looked}");
    run_coplace_in(dir, &["explain", "whole"]).expect_result();
    let record = std::fs::read_to_string(dir.join("whole/record.json")).unwrap();
    std::fs::write(dir.join("whole/record.json"), format!("{record} ")).unwrap();
    for verb in ["explain", "compare"] {
        let refused = run_coplace_in(dir, &[verb, "whole"]).expect_refusal();
        assert!(refused.contains("record.json: its SHA-256 digest is"), "{refused}");
    }
}

fn refusals(dir: &Path) {
    let refused = run_coplace_in(dir, &sweep("whole", &[])).expect_refusal();
    let of = format!("--out whole: holds {DESIGNS} of {DESIGNS} designs of this sweep; go on with it (--resume)");
    assert!(refused.contains(&of), "{refused}");
    let other = run_coplace_in(dir, &sweep("whole", &["--resume", "--max-area", "400"])).expect_refusal();
    let differs = "whole/sweep.sqlite: holds another sweep: chips.space.max_area_mm2 is ";
    assert!(other.contains(differs) && other.contains(" there and 400.0 here"), "{other}");
    // Another spelling of the study's path is the same sweep.
    let spelled =
        ["sweep", "opt-350m", "--study", "./s.toml", "--sequence-length", "512", "--out", "whole", "--resume"];
    run_coplace_in(dir, &spelled).expect_result();
    let part = run_coplace_in(dir, &sweep("whole", &["--resume", "--shard", "1/2"])).expect_refusal();
    assert!(part.contains("whole/sweep.sqlite: holds another sweep: part 1/1 of its designs"), "{part}");
    std::fs::create_dir_all(dir.join("mine")).unwrap();
    std::fs::write(dir.join("mine/notes.txt"), "mine").unwrap();
    let foreign = run_coplace_in(dir, &sweep("mine", &[])).expect_refusal();
    assert!(
        foreign.contains("--out mine: holds files that are no sweep; give an empty or a new directory"),
        "{foreign}"
    );
    // Finished sweeps may be resumed: there is nothing left to do.
    let done = run_coplace_in(dir, &sweep("whole", &["--resume"])).expect_json();
    assert_eq!(done["this_run"]["designs"], 0);
}

/// Starts a sweep and kills it after a pause, which optionally begins at its first stored rows. Returns true if it was
/// killed before its end.
fn killed(dir: &Path, out: &str, after_progress: bool, pause: Duration) -> bool {
    let mut child = Command::new(assert_cmd::cargo::cargo_bin!("coplace"))
        .current_dir(dir)
        .args(sweep(out, &["--resume"]))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let store = dir.join(out).join("sweep.sqlite");
    let size = || std::fs::metadata(&store).map_or(0, |at| at.len());
    let (before, start) = (size(), Instant::now());
    while after_progress && size() <= before.max(16_384) && child.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < Duration::from_secs(120), "the sweep makes no progress");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::thread::sleep(pause);
    let running = child.try_wait().unwrap().is_none();
    // SIGKILL on Unix.
    child.kill().unwrap();
    child.wait().unwrap();
    running
}

#[test]
fn a_sweep_killed_at_any_moment_goes_on_to_the_same_bytes() {
    let dir = undisturbed_sweep();
    let mut dice = Dice(16);
    let mut killed_at_work = 0;
    for kill in 0..kills() {
        let pause = Duration::from_millis(dice.roll(400));
        killed_at_work += u32::from(killed(dir.path(), "killed", kill % 3 != 2, pause));
        if kill % 10 == 9 {
            // The sweep may be finished by now, so another one is started.
            run_coplace_in(dir.path(), &sweep("killed", &["--resume"])).expect_json();
            assert_same_exports(dir.path(), "killed");
            std::fs::remove_dir_all(dir.path().join("killed")).unwrap();
        }
    }
    let last = run_coplace_in(dir.path(), &sweep("killed", &["--resume"])).expect_json();
    assert!(killed_at_work > 0, "every process ended before it was killed");
    assert!(kills() != 3 || last["this_run"]["designs"].as_u64().unwrap() < DESIGNS, "nothing was kept: {last}");
    assert_same_exports(dir.path(), "killed");
}

#[test]
fn signals_stop_a_sweep_at_once_and_say_what_is_kept() {
    for signal in ["-INT", "-TERM"] {
        check_stop_by_signal(signal);
    }
}

fn check_stop_by_signal(signal: &str) {
    let dir = undisturbed_sweep();
    // Ctrl-C is ignored, as when a shell starts a command in the background.
    let coplace = assert_cmd::cargo::cargo_bin!("coplace").display().to_string();
    let call = format!("trap '' INT; exec {coplace} {}", sweep("stopped", &[]).join(" "));
    let mut child = Command::new("sh")
        .current_dir(dir.path())
        .args(["-c", &call])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let (store, start) = (dir.path().join("stopped/sweep.sqlite"), Instant::now());
    while std::fs::metadata(&store).map_or(0, |at| at.len()) <= 16_384 {
        assert!(child.try_wait().unwrap().is_none() && start.elapsed() < Duration::from_secs(120), "nothing is kept");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert!(Command::new("kill").args([signal, &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(130), "{said}");
    let line = said.lines().last().unwrap();
    let kept = line.strip_prefix("stopped by Ctrl-C or SIGTERM: ").and_then(|rest| rest.split(' ').next()).unwrap();
    assert!(line.ends_with("of 576 designs are stored in stopped; go on with --resume"), "{line}");
    let rest = run_coplace_in(dir.path(), &sweep("stopped", &["--resume"])).expect_json();
    let (kept, rest) = (kept.parse::<u64>().unwrap(), rest["this_run"]["designs"].as_u64().unwrap());
    assert_eq!(kept + rest, DESIGNS, "{kept} {rest}");
    assert_same_exports(dir.path(), "stopped");
}

#[test]
fn what_a_sweep_does_not_take_is_refused_and_not_in_its_help() {
    let dir = tempfile::tempdir().unwrap();
    for (call, why) in [
        (&["sweep", "opt-350m", "--study", "smoke", "--front", "area"][..], "--front area: works only for search: "),
        (
            &["sweep", "opt-350m", "--study", "smoke", "--over", "mean"],
            "--over mean: works only for search: a sweep is of one model",
        ),
        (&["sweep", "opt-350m", "--study", "smoke", "--within", "1"], "--within 1: works only for search: "),
        (
            &["sweep", "opt-350m", "--study", "smoke", "--time-limit", "1"],
            "--time-limit 1: works only for search: stop a sweep with Ctrl-C",
        ),
        (
            &["sweep", "opt-350m", "bert-large", "--study", "smoke"],
            "MODEL: opt-350m, bert-large: must be one here; name one of them",
        ),
        (&["sweep", "--study", "tpu"], "name one of them as MODEL (llama3-70b, for instance)"),
    ] {
        let refused = run_coplace_in(dir.path(), call).expect_refusal();
        assert!(refused.contains(why), "{refused}");
    }
    assert!(crate::support::file_names(dir.path()).is_empty());
    let help = run_coplace_in(dir.path(), &["sweep", "--help"]).expect_result();
    for absent in ["--over", "--time-limit", "--within", "--front", "several are searched"] {
        assert!(!help.contains(absent), "{absent}: {help}");
    }
    assert!(help.contains("--objective") && help.contains("for one model"), "{help}");
}

/// Such a sweep would need a bit of memory per combination, more than a machine has.
#[test]
fn a_sweep_of_too_many_designs_is_refused_before_it_begins() {
    let dir = tempfile::tempdir().unwrap();
    let many = format!("{:?}", (100..=2100).collect::<Vec<u32>>());
    let lists = ["[512, 1024]", "[32, 128]", "[850, 1050]", "[0.05, 1, 16]"];
    let study = lists.iter().fold(STUDY.to_owned(), |study, list| study.replace(list, &many));
    std::fs::write(dir.path().join("s.toml"), study).unwrap();
    let refused = run_coplace_in(dir.path(), &sweep("huge", &[])).expect_refusal();
    let limit = "combinations, and a sweep stores at most 8589934592; list fewer values, or use coplace search";
    assert!(refused.starts_with("error: s.toml: has ") && refused.contains(limit), "{refused}");
    assert!(!dir.path().join("huge").exists());
}

/// Changes a store and resumes it. Checks that it is refused by name, or that its exports equal those of an undisturbed
/// sweep. Returns true if it was refused.
fn damaged(dir: &Path, what: &str, change: impl FnOnce(&Path)) -> bool {
    let (out, store) = (dir.join("damaged"), dir.join("damaged/sweep.sqlite"));
    drop(std::fs::remove_dir_all(&out));
    std::fs::create_dir(&out).unwrap();
    std::fs::copy(dir.join("whole/sweep.sqlite"), &store).unwrap();
    change(&store);
    let called: CommandOutput = run_coplace_in(dir, &sweep("damaged", &["--resume"]));
    if called.code == 0 {
        assert_same_exports(dir, "damaged");
        return false;
    }
    let message = called.expect_refusal();
    assert!(message.contains("damaged/sweep.sqlite: "), "{what}: {message}");
    let cures = ["remove it and sweep again", "give another directory", "go on with that version"];
    assert!(cures.iter().any(|cure| message.contains(cure)), "{what}: {message}");
    true
}

#[test]
fn truncated_and_flipped_stores_are_named() {
    let dir = undisturbed_sweep();
    let size = std::fs::metadata(dir.path().join("whole/sweep.sqlite")).unwrap().len();
    let open = |store: &Path| std::fs::OpenOptions::new().read(true).write(true).open(store).unwrap();
    for length in [0, 1, 100, 4096, size / 2, size - 4096, size - 1] {
        let refused = damaged(dir.path(), &format!("cut to {length}"), |store| open(store).set_len(length).unwrap());
        assert!(refused, "a store cut to {length} of {size} bytes was taken");
    }
    let mut dice = Dice(17);
    let (flips, mut refused) = (4 * kills().min(50), 0);
    // Free space of a page is zero, and its bits have no meaning.
    let whole = std::fs::read(dir.path().join("whole/sweep.sqlite")).unwrap();
    let written: Vec<u64> = (0..size).filter(|at| whole[*at as usize] != 0).collect();
    for _ in 0..flips {
        let (at, bit) = (written[dice.roll(written.len() as u64) as usize], dice.roll(8));
        refused += u32::from(damaged(dir.path(), &format!("bit {bit} of byte {at}"), |store| {
            let mut file = open(store);
            let mut byte = [0];
            file.seek(SeekFrom::Start(at)).unwrap();
            file.read_exact(&mut byte).unwrap();
            file.seek(SeekFrom::Start(at)).unwrap();
            file.write_all(&[byte[0] ^ 1 << bit]).unwrap();
        }));
    }
    // Some bytes are deleted data, where a flip changes nothing. Most flips must be refused.
    assert!(refused * 2 > flips, "{refused} of {flips} flips were refused");
}

#[cfg(unix)]
#[test]
fn a_full_disk_is_named_and_loses_nothing() {
    let dir = undisturbed_sweep();
    let size = std::fs::metadata(dir.path().join("whole/sweep.sqlite")).unwrap().len();
    // The limit is in blocks of 512 bytes: no space at all, then space for half of the store.
    for blocks in [0, size / 1024] {
        let script = format!("trap '' XFSZ; ulimit -f {blocks}; exec \"$0\" \"$@\"");
        let mut command = Command::new("sh");
        command.args(["-c", &script]).arg(assert_cmd::cargo::cargo_bin!("coplace")).args(sweep("full", &["--resume"]));
        let output = command.current_dir(dir.path()).output().unwrap();
        let message = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(1), "{message}");
        let cure = "nothing that was committed is lost: make room and go on with --resume";
        assert!(message.contains("full/sweep.sqlite: cannot be written: ") && message.contains(cure), "{message}");
    }
    let rest = run_coplace_in(dir.path(), &sweep("full", &["--resume"])).expect_json();
    // If only the exports find no space, the answer is still printed.
    let exports = dir.path().join("exports");
    std::fs::create_dir(&exports).unwrap();
    std::fs::copy(dir.path().join("whole/sweep.sqlite"), exports.join("sweep.sqlite")).unwrap();
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' XFSZ; ulimit -f 0; exec \"$0\" \"$@\""]);
    command.arg(assert_cmd::cargo::cargo_bin!("coplace")).args(sweep("exports", &["--resume"]));
    let output = command.current_dir(dir.path()).output().unwrap();
    let message = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{message}");
    assert!(message.contains("exports/sweep.") && message.contains("cannot be written: "), "{message}");
    let answer: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((&answer["record"]["best"], &answer["outcomes"]), (&rest["record"]["best"], &rest["outcomes"]));
    assert_eq!(answer["files"], serde_json::json!(["exports/sweep.sqlite"]));
    assert_eq!(file_names(&exports), ["sweep.sqlite"]);
    let again = rest["this_run"]["designs"].as_u64().unwrap();
    assert!(again > 0 && again < DESIGNS, "what was kept on the full disk is looked at again: {again}");
    assert_same_exports(dir.path(), "full");
}

#[cfg(unix)]
#[test]
fn a_second_process_on_one_sweep_is_told_so() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("s.toml"), STUDY).unwrap();
    std::fs::create_dir(dir.path().join("busy")).unwrap();
    let lock = std::fs::File::open(dir.path().join("busy")).unwrap();
    lock.lock().unwrap();
    let refused = run_coplace_in(dir.path(), &sweep("busy", &["--resume"])).expect_refusal();
    assert_eq!(
        refused,
        "error: --out busy: another process sweeps into it; wait for its end, or give another directory\n"
    );
}

#[test]
fn parts_put_together_are_the_whole_and_a_lost_one_is_named() {
    let dir = undisturbed_sweep();
    let part =
        |part: &str, out: &str| run_coplace_in(dir.path(), &sweep(out, &["--shard", part, "--resume"])).expect_json();
    let merge = |more: &[&str]| {
        run_coplace_in(dir.path(), &[&["merge", "--out", "merged", "--format", "json"][..], more].concat())
    };
    let (first, third) = (part("1/3", "a"), part("3/3", "c"));
    assert_eq!((&first["part"], &first["record"]), (&Value::from("1/3"), &Value::Null));
    assert_eq!(file_names(&dir.path().join("a")), ["sweep.sqlite"]);
    let lost = merge(&["c", "a"]).expect_refusal();
    assert!(
        lost.contains("1 of 3 parts: none of the directories holds 2/3; run it with --shard 2/3, and merge again"),
        "{lost}"
    );
    let second = part("2/3", "b");
    let counted: u64 = [&first, &second, &third].map(|part| part["designs"].as_u64().unwrap()).iter().sum();
    assert_eq!(counted, DESIGNS);
    let merged = merge(&["c", "a", "b"]).expect_json();
    assert_same_exports(dir.path(), "merged");
    let again = merge(&["b", "c", "a", "a"]).expect_json();
    assert_eq!(merged["outcomes"], again["outcomes"]);
    assert_same_exports(dir.path(), "merged");
    let whole: Value =
        serde_json::from_str(&std::fs::read_to_string(dir.path().join("whole/record.json")).unwrap()).unwrap();
    assert_eq!(merged["record"]["best"], whole["best"]);
    let stranger = run_coplace_in(dir.path(), &sweep("d", &["--shard", "1/2"])).expect_json();
    assert_eq!(stranger["part"], "1/2");
    let into = run_coplace_in(dir.path(), &["merge", "a", "b", "c", "--out", "./a"]).expect_refusal();
    assert!(into.contains("--out a: is one of the parts"), "{into}");
    let different = merge(&["a", "d"]).expect_refusal();
    assert!(different.contains("a and d hold parts of different sweeps; give the directories of one"), "{different}");
    // The parts carry the text of their study, so they can be merged after its file has changed.
    std::fs::write(dir.path().join("s.toml"), STUDY.replace("[1, 2, 4]", "[1, 2, 8]")).unwrap();
    assert_eq!(merge(&["a", "b", "c"]).expect_json()["outcomes"], merged["outcomes"]);
}

/// Reads a sweep's Parquet with pandas and DuckDB and compares it with the CSV, cell by cell.
const READERS: &str = r#"
import sys, duckdb, pandas
whole = sys.argv[1]
csv = pandas.read_csv(f"{whole}/sweep.csv")
frame = pandas.read_parquet(f"{whole}/sweep.parquet")
table = duckdb.sql(f"select * from '{whole}/sweep.parquet' order by index").df()
for read in [frame, table]:
    assert list(read.columns) == list(csv.columns), (list(read.columns), list(csv.columns))
    assert len(read) == len(csv)
    for name in csv.columns:
        ours, theirs = csv[name], read[name]
        assert (ours.isna() == theirs.isna()).all(), name
        there = ~ours.isna()
        if pandas.api.types.is_numeric_dtype(ours):
            assert (ours[there].astype(float) == theirs[there].astype(float)).all(), name
        else:
            assert (ours[there].astype(str) == theirs[there].astype(str)).all(), name
best = duckdb.sql(f"select min(step_time_s) from '{whole}/sweep.parquet' where outcome = 'evaluated'").df().iloc[0, 0]
print(len(frame), best)
"#;

#[test]
#[ignore = "needs pandas, pyarrow and duckdb: .ci/run installs them and runs it"]
fn pandas_and_duckdb_read_a_sweep() {
    let dir = undisturbed_sweep();
    let whole = dir.path().join("whole");
    let read = Command::new("python3").args(["-c", READERS, &whole.display().to_string()]).output().unwrap();
    assert!(read.status.success(), "{}", String::from_utf8_lossy(&read.stderr));
    let said = String::from_utf8(read.stdout).unwrap();
    let (rows, best) = said.trim().split_once(' ').unwrap();
    assert_eq!(rows.parse::<u64>().unwrap(), DESIGNS);
    let record: Value = serde_json::from_slice(&std::fs::read(whole.join("record.json")).unwrap()).unwrap();
    assert_eq!(best.parse::<f64>().ok(), record["best"]["design"]["step_time_s"].as_f64());
}

/// The verbs that read a finished sweep.
const READING_VERBS: [&[&str]; 3] =
    [&["compare", "whole"], &["pareto", "whole", "--out", "figures"], &["merge", "whole", "--out", "merged"]];

/// A finished sweep may be in a directory that cannot be written, such as another user's or an archive's.
#[test]
fn a_finished_sweep_that_cannot_be_written_can_be_read() {
    let dir = undisturbed_sweep();
    // A directory in the place of SQLite's log makes the store read-only, also for root.
    std::fs::create_dir(dir.path().join("whole/sweep.sqlite-wal")).unwrap();
    for call in READING_VERBS {
        run_coplace_in(dir.path(), call).expect_result();
    }
    let refused = run_coplace_in(dir.path(), &sweep("whole", &["--resume"]));
    assert!(refused.code != 0 && refused.stderr.contains("sweep.sqlite"), "{}", refused.stderr);
}

#[test]
fn a_store_with_a_view_in_the_place_of_a_table_is_damaged() {
    let dir = undisturbed_sweep();
    let store = rusqlite::Connection::open(dir.path().join("whole/sweep.sqlite")).unwrap();
    let endless = "ALTER TABLE design RENAME TO other;
        CREATE VIEW design AS WITH RECURSIVE c(number, row, checksum) AS
        (SELECT 0, x'00', 0 UNION ALL SELECT number + 1, row, checksum FROM c) SELECT * FROM c;";
    store.execute_batch(endless).unwrap();
    store.close().unwrap();
    for call in READING_VERBS {
        let refused = run_coplace_in(dir.path(), call).expect_refusal();
        assert!(refused.contains("its tables are not those of a sweep"), "{refused}");
    }
}

/// A foreign store may have computed columns or checks that take very long. So other tables than coplace's are refused.
#[test]
fn a_store_whose_tables_were_made_otherwise_is_damaged() {
    for table in [
        "CREATE TABLE design (number INTEGER PRIMARY KEY, row BLOB AS (zeroblob(1000000000)), checksum INTEGER) STRICT",
        "CREATE TABLE design (number INTEGER PRIMARY KEY, row BLOB, checksum INTEGER CHECK (abs(number) >= 0)) STRICT",
    ] {
        let refused = damaged(undisturbed_sweep().path(), table, |store| {
            let store = rusqlite::Connection::open(store).unwrap();
            store.execute_batch(&format!("DROP TABLE design; {table};")).unwrap();
            store.close().unwrap();
        });
        assert!(refused, "{table}");
    }
}

/// A store with an impossible number of combinations is refused, because a bit for each of 2^60 combinations would fill
/// the memory.
#[test]
fn a_store_that_counts_more_than_its_dimensions_is_damaged() {
    let refused = damaged(undisturbed_sweep().path(), "combinations", |store| {
        let store = rusqlite::Connection::open(store).unwrap();
        let text: String = store.query_row("SELECT text FROM facts", [], |row| row.get(0)).unwrap();
        let text = text.replace(&format!("\"combinations\":{DESIGNS}"), "\"combinations\":1152921504606846976");
        // The checksum of the facts is the FNV-1a hash of the number 0 and of the text.
        let bytes = 0_u64.to_le_bytes().into_iter().chain(text.bytes());
        let sum = bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        store.execute("UPDATE facts SET text = ?1, checksum = ?2", (&text, sum as i64)).unwrap();
        store.close().unwrap();
    });
    assert!(refused);
}
