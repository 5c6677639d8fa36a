//! Width, completions, manual pages, the doctor, and misspelt names.

use crate::support::{run_coplace, run_coplace_in};
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

/// Returns the command's answer on a screen of the given width.
fn on_screen(columns: &str, arguments: &[&str]) -> String {
    let mut command = assert_cmd::cargo::cargo_bin_cmd!("coplace");
    let output = command.env("COLUMNS", columns).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn answers_fit_eighty_columns_and_say_what_they_left_out() {
    let calls = [
        "evaluate llama2-7b --chip tpu_v4 --fabric tpu_v4_ici --devices 8 --global-batch 16 --pipeline 2 --kernels",
        "plan llama2-7b --chip a100_80gb --fabric selene_hdr200x8 --devices 16 --global-batch 64 --tensor 2 --pipeline \
        2",
        "list fabrics",
        "list models",
        "list chips",
        "techniques llama2-7b --chip a100_80gb_sxm --sequence-length 4096",
    ];
    for call in calls {
        let arguments: Vec<&str> = call.split(' ').collect();
        let narrow = on_screen("80", &arguments);
        let widest = narrow.lines().max_by_key(|line| line.chars().count()).unwrap();
        assert!(widest.chars().count() <= 80, "{call}: {widest}");
        assert!(!on_screen("170", &arguments).contains("Columns left out"), "{call}");
    }
    assert!(on_screen("80", &["list", "models"]).contains("Columns left out: "));
    // Notes below a row are not dropped.
    let dimensions = on_screen("80", &["list", "dimensions"]);
    assert!(
        dimensions.lines().all(|line| line.chars().count() <= 80) && !dimensions.contains("Columns left out"),
        "{dimensions}"
    );
    let (_, dies) = dimensions.split_once("\narea.dies ").unwrap();
    assert!(dies.split_once('\n').unwrap().1.starts_with("    from: 1.00; to: "), "{dies}");
    assert!(dies.contains("what it is: compute dies that share the area;"), "{dies}");
}

#[test]
fn off_a_terminal_a_line_has_eighty_columns() {
    let mut command = assert_cmd::cargo::cargo_bin_cmd!("coplace");
    let output = command.env_remove("COLUMNS").args(["list", "fabrics"]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let widest = text.lines().max_by_key(|line| line.chars().count()).unwrap();
    assert!((60..=80).contains(&widest.chars().count()), "{widest}");
    assert_eq!(text, on_screen("80", &["list", "fabrics"]));
}

#[test]
fn what_takes_long_says_what_it_does() {
    let dir = tempfile::tempdir().unwrap();
    // A phase that lasts longer than two seconds is reported. The search has eight seconds for three phases, so at
    // least one is reported.
    let said = |log: Option<&str>| {
        let mut command = assert_cmd::cargo::cargo_bin_cmd!("coplace");
        command.current_dir(dir.path()).env_remove("COPLACE_LOG");
        if let Some(level) = log {
            command.env("COPLACE_LOG", level);
        }
        let asked = ["search", "llama2-7b", "--study", "tpu", "--devices", "64", "--time-limit", "8", "--out", "run"];
        let output = command.args(asked).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stderr).unwrap()
    };
    let lines = said(None);
    let phases =
        ["reading the question and preparing plans", "bounding chips and planning for the first", "searching ["];
    let told = lines.lines().filter(|line| phases.iter().any(|phase| line.contains(phase)) && line.contains(" s"));
    assert!(told.count() >= 1, "{lines}");
    assert_eq!(said(Some("warn")), "");
}

/// A call of `plan` whose whole search takes minutes.
const LONG: &str =
    "plan llama3-70b --chip h100_80gb_sxm --fabric eos_ndr400x8 --devices 64 --global-batch 512 --everything --top 3";

#[test]
fn a_plan_that_takes_long_says_how_far_it_is_and_ends_with_the_best_so_far() {
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("coplace"));
    command.env_remove("COPLACE_LOG").args(LONG.split(' ')).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut told = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let line = told.by_ref().find(|line| line.contains("best ")).unwrap();
    // The phase that is reported first depends on the machine's speed.
    let parts = [" plans evaluated, ", "schedules played, ", "other splits of the layers, ", "what stages keep, "];
    assert!(line.contains("searching plans [") && parts.iter().any(|part| line.contains(part)), "{line}");
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-INT", &pid]).status().unwrap().success());
    let rest: Vec<String> = told.collect();
    assert!(rest.iter().any(|line| line.contains("Ctrl-C again ends at once")), "{rest:?}");
    let output = child.wait_with_output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("stopped by Ctrl-C or SIGTERM: the best plans so far."), "{text}");
    assert!(!text.contains("Its neighbours") && !text.contains("no plan of the space is faster"), "{text}");
}

/// A stopped search has no comparison, but its best design has a value by its own objective.
#[test]
fn a_search_that_is_stopped_keeps_its_best_which_is_compared_by_its_objective() {
    let dir = tempfile::tempdir().unwrap();
    let call =
        "search llama3-70b --study tpu --devices 64 --global-batch 256 --objective per-dollar --draws 0 --out run";
    let mut command = Command::new(assert_cmd::cargo::cargo_bin!("coplace"));
    command.current_dir(dir.path()).env_remove("COPLACE_LOG").args(call.split(' '));
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    let mut told = BufReader::new(child.stderr.take().unwrap()).lines().map(Result::unwrap);
    let best = told.by_ref().find(|line| line.contains("searching [") && line.contains("best "));
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-TERM", &pid]).status().unwrap().success(), "{best:?}");
    let rest: Vec<String> = told.collect();
    assert!(child.wait().unwrap().success() && rest.iter().any(|line| line.contains("Ctrl-C again")), "{rest:?}");
    let record = crate::search::read_record(&dir.path().join("run"));
    assert!(record["certificate"]["why"].as_str().unwrap().contains("stopped by Ctrl-C or SIGTERM"), "{record}");
    let compared = crate::support::run_coplace_in(dir.path(), &["compare", "run", "--format", "json"]).expect_json();
    let value = compared["entries"][0]["objective_value"].as_f64().unwrap();
    let design = &record["best"]["design"];
    let rate = design["throughput_tokens_per_s"].as_f64().unwrap() / 64.0;
    assert!((value / (rate / design["cost_usd"].as_f64().unwrap()) - 1.0).abs() < 1e-9, "{value}: {design}");
}

/// The warning that no plan found so far fits with the usual chance.
const RISKY: &str = " WARN none of the plans found so far fits with a chance of 90 %\n";

#[test]
fn a_plan_that_is_stopped_says_what_no_plan_is_below() {
    let call: Vec<&str> = LONG.split(' ').chain(["--time-limit", "1", "--format", "json"]).collect();
    let called = run_coplace(&call);
    // The plans found in a second depend on the machine. None of them may be likely to fit, which gives a warning.
    assert!(called.code == 0 && ["", RISKY].contains(&called.stderr.as_str()), "{}", called.stderr);
    let answer: serde_json::Value = serde_json::from_str(&called.stdout).unwrap();
    let stopped = &answer["stopped"];
    assert_eq!(stopped["by"], "stopped by --time-limit 1");
    let (bound, first) = (stopped["bound_s"].as_f64().unwrap(), answer["plans"][0]["step_s"].as_f64().unwrap());
    assert!(0.5 * first < bound && bound <= first, "{bound} {first}");
    // The number of plans that were not reached depends on the machine.
    assert!(
        answer["counts"]["not_reached"].as_u64().unwrap() > 0 && answer["neighbours"].as_array().unwrap().is_empty()
    );
    let unmapped = run_coplace(&LONG.split(' ').chain(["--time-limit", "1", "--map-ranks"]).collect::<Vec<_>>());
    assert!(
        unmapped.code == 0 && unmapped.stderr.contains("ranks are in the order of the devices"),
        "{}",
        unmapped.stderr
    );
    let called = run_coplace(&LONG.split(' ').chain(["--time-limit", "0"]).collect::<Vec<_>>());
    assert!(called.expect_refusal().contains("--time-limit 0: must be above 0"));
}

#[test]
fn completions_and_manual_pages_have_every_verb() {
    let help = run_coplace(&["--help"]).expect_result();
    assert!(help.contains("coplace completions SHELL, coplace man --out DIR"), "{help}");
    for shell in ["bash", "zsh", "fish", "elvish", "powershell"] {
        let script = run_coplace(&["completions", shell]).expect_result();
        assert!(script.contains("report") && script.contains("global-batch"), "{shell}");
    }
    let dir = tempfile::tempdir().unwrap();
    let text = run_coplace_in(dir.path(), &["man", "--out", "man"]).expect_result();
    assert!(text.starts_with("Written: "), "{text}");
    let page = std::fs::read_to_string(dir.path().join("man/coplace-plan.1")).unwrap();
    assert!(page.contains(".TH coplace-plan 1") && page.contains("\\-\\-global\\-batch"), "{page}");
    assert!(dir.path().join("man/coplace.1").is_file() && !dir.path().join("man/coplace-man.1").exists());
}

#[test]
fn the_doctor_reads_what_is_built_in_and_names_a_damaged_run() {
    let dir = tempfile::tempdir().unwrap();
    let found = run_coplace_in(dir.path(), &["doctor", "--format", "json"]).expect_json();
    assert_eq!((found["runs"].as_array().unwrap().len(), found["unsound"].as_array().unwrap().len()), (0, 0));
    let counts = found["built_in"].as_array().unwrap().iter().map(|kind| kind["sound"].as_u64().unwrap());
    assert!(counts.min().unwrap() >= 4 && found["threads"].as_u64().unwrap() >= 1);
    std::fs::create_dir_all(dir.path().join("runs/broken")).unwrap();
    std::fs::write(dir.path().join("runs/broken/record.json"), "{").unwrap();
    let called = run_coplace_in(dir.path(), &["doctor"]);
    assert_eq!(called.code, 3, "{}", called.stderr);
    assert!(called.stdout.contains("Not sound") && called.stdout.contains("runs/broken/"), "{}", called.stdout);
}

#[test]
fn a_name_that_is_nearly_right_is_answered_with_the_right_one() {
    let calls = [
        ("search lama2-7b", "llama2-7b"),
        ("search llama2-7b --study phase", "phaze"),
        ("search llama2-7b --objective throughputt", "throughput"),
        ("search llama2-7b --front powr", "power"),
        ("evaluate llama2-7b --chip tpu_v44", "tpu_v4"),
        ("evaluate llama2-7b --chip tpu_v4 --fabric tpu_v4_icy", "tpu_v4_ici"),
        ("evaluate llama2-7b --chip tpu_v4 --stack maxtxt", "maxtext"),
        ("evaluate llama2-7b --chip tpu_v4 --stack-option overlap.tensr=0", "overlap.tensor"),
        ("evaluate llama2-7b --chip tpu_v4 --technique galor", "galore"),
        ("evaluate llama2-7b --chip tpu_v4 --recompute selctive", "selective"),
    ];
    for (call, meant) in calls {
        let said = run_coplace(&call.split(' ').collect::<Vec<_>>());
        assert_eq!(said.code, 2, "{call}");
        let hint = said.stderr.to_lowercase();
        assert!(hint.contains(&format!("did you mean `{meant}`?")), "{call}: {}", said.stderr);
    }
}

/// Runs a Python script that reads a file, and returns its output. Tests that use it are ignored by default; `.ci/run`
/// runs them, and reports readers that cannot be installed.
fn read_by(script: &str, file: &std::path::Path) -> String {
    let output = Command::new("python3").arg("-c").arg(script).arg(file).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

const SMALL: &str =
    "evaluate llama2-7b --chip tpu_v4 --fabric tpu_v4_ici --devices 8 --global-batch 16 --pipeline 2 --format json";

#[test]
#[ignore = "needs Perfetto's trace processor (PyPI perfetto, which downloads it)"]
fn perfetto_s_own_reader_finds_every_pass() {
    let dir = tempfile::tempdir().unwrap();
    let call: Vec<&str> = SMALL.split(' ').chain(["--trace", "step.json"]).collect();
    let answer = run_coplace_in(dir.path(), &call).expect_json();
    let script = "import sys; from perfetto.trace_processor import TraceProcessor; tp = \
        TraceProcessor(trace=sys.argv[1]); \
        print(next(iter(tp.query(\"select count(*) c from slice where name like 'forward %' or name like 'backward \
        %'\"))).c)";
    let passes: u64 = read_by(script, &dir.path().join("step.json")).trim().parse().unwrap();
    let plan = &answer["result"]["plan"]["plan"];
    let micro_batches = 16 / plan["layout"]["data"].as_u64().unwrap() / plan["batch"]["micro_batch"].as_u64().unwrap();
    assert_eq!(passes, 2 * 2 * micro_batches);
}

#[test]
#[ignore = "needs MLCommons' chakra for Python, which is on no package index"]
fn chakra_s_own_reader_finds_every_kernel() {
    let dir = tempfile::tempdir().unwrap();
    let call: Vec<&str> = SMALL.split(' ').chain(["--chakra", "micro-batch.et"]).collect();
    let answer = run_coplace_in(dir.path(), &call).expect_json();
    let script = "import sys\n\
        from chakra.schema.protobuf.et_def_pb2 import GlobalMetadata, Node\n\
        from chakra.src.third_party.utils.protolib import decodeMessage, openFileRd\n\
        file, node, nodes = openFileRd(sys.argv[1]), Node(), 0\n\
        assert decodeMessage(file, GlobalMetadata())\n\
        while decodeMessage(file, node):\n    nodes += 1\n\
        print(nodes)";
    let nodes: u64 = read_by(script, &dir.path().join("micro-batch.et")).trim().parse().unwrap();
    let passes = answer["result"]["passes"].as_array().unwrap().iter();
    let kernels = passes.map(|pass| {
        let run =
            pass["kernels"].as_array().unwrap().iter().filter(|kernel| kernel["latency_s"].as_f64().unwrap() > 0.0);
        pass["count"].as_u64().unwrap() * run.count() as u64
    });
    assert_eq!(nodes, kernels.sum::<u64>());
}

#[test]
fn a_narrow_table_keeps_the_columns_that_one_came_for() {
    let call = "evaluate llama2-7b --chip tpu_v4 --fabric tpu_v4_ici --devices 8 --global-batch 16 --pipeline 2 \
        --details";
    let narrow = on_screen("80", &call.split(' ').collect::<Vec<_>>());
    let (_, memory) = narrow.split_once("Memory, GiB per device").unwrap();
    // A table with few rows is turned: its columns become lines.
    let heads = memory.lines().take(20).collect::<Vec<_>>().join(" ");
    assert!(["weights", "activations", "needs", "usable"].iter().all(|head| heads.contains(head)), "{heads}");
    let chips = on_screen("80", &["list", "chips"]);
    let heads = chips.lines().take(2).collect::<Vec<_>>().join(" ");
    assert!(["bf16 peak", "HBM", "bandwidth", "TDP"].iter().all(|head| heads.contains(head)), "{heads}");
}

#[test]
fn degrees_have_the_short_names_of_the_field() {
    let long = "evaluate llama2-7b --chip tpu_v4 --fabric tpu_v4_ici --devices 8 --global-batch 16 --pipeline 2 --tensor 2 \
        --context 1 --data 2";
    let short =
        "evaluate llama2-7b --chip tpu_v4 --fabric tpu_v4_ici --gpus 8 --global-batch 16 --pp 2 --tp 2 --cp 1 --dp 2";
    let run = |call: &str| run_coplace(&call.split_whitespace().collect::<Vec<_>>()).expect_result();
    assert_eq!(run(long), run(short));
}
