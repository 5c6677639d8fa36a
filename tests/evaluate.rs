//! `coplace evaluate` from the outside: the printed report, the keys of the JSON, the exit codes.

#![allow(clippy::unwrap_used)]

use assert_cmd::Command;
use serde_json::Value;

/// Returns the command without progress output, on a wide screen.
fn coplace() -> Command {
    let mut command = Command::cargo_bin("coplace").unwrap();
    command.env("COPLACE_LOG", "warn").env("COLUMNS", "170");
    command
}

/// Returns a call of `evaluate` for BERT-large on eight TPU v4 with an ideal switch.
fn evaluate(arguments: &[&str]) -> Command {
    let mut command = coplace();
    command.args(["evaluate", "bert-large", "--chip", "tpu_v4", "--devices", "8", "--fabric", "ideal_switch"]);
    command.args(["--global-batch", "64"]).args(arguments);
    command
}

fn text(arguments: &[&str]) -> String {
    let output = evaluate(arguments).assert().success().get_output().clone();
    assert!(output.stderr.is_empty(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn json(arguments: &[&str]) -> Value {
    serde_json::from_str(&text(&[arguments, &["--format", "json"]].concat())).unwrap()
}

/// Returns the answer for GPT-3 on eight devices, which is far too large for them.
fn too_large() -> Value {
    let mut command = coplace();
    command.args(["evaluate", "gpt3-175b", "--chip", "tpu_v4", "--devices", "8", "--global-batch", "8"]);
    command.args(["--pipeline", "8", "--data", "1", "--tensor", "1", "--format", "json"]);
    serde_json::from_slice(&command.assert().success().get_output().stdout).unwrap()
}

fn refused(arguments: &[&str]) -> String {
    let output = evaluate(arguments).assert().code(2).get_output().clone();
    assert!(output.stdout.is_empty());
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn the_report_of_a_given_plan() {
    let plan = ["--pipeline", "2", "--data", "2", "--tensor", "2", "--micro-batch", "4", "--details"];
    insta::assert_snapshot!(text(&plan));
}

#[test]
fn lines_fit_a_wide_terminal() {
    let report = text(&["--details"]);
    let longest = report.lines().max_by_key(|line| line.chars().count()).unwrap();
    assert!(longest.chars().count() <= 160, "{longest}");
}

fn keys(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                found.push(key.clone());
                // The keys of this object are data.
                if key != "classes_gib" {
                    keys(value, found);
                }
            }
        }
        Value::Array(items) => items.iter().for_each(|item| keys(item, found)),
        _ => {}
    }
}

#[test]
fn every_key_of_the_json_is_documented() {
    let mut found = Vec::new();
    keys(&json(&["--tensor", "2"]), &mut found);
    keys(&too_large(), &mut found);
    found.sort();
    found.dedup();
    assert!(found.len() > 60, "{found:?}");
    let described = include_str!("../docs/json.md");
    let missing: Vec<&String> = found.iter().filter(|k| !described.contains(&format!("`{k}`"))).collect();
    let missing: Vec<&&String> = missing.iter().filter(|k| !described.contains(&format!(".{k}`"))).collect();
    assert!(missing.is_empty(), "{missing:?}");
}

#[test]
fn the_json_adds_up() {
    let answer = json(&["--pipeline", "4", "--data", "1", "--tensor", "2", "--micro-batch", "4", "--stack", "ideal"]);
    let result = &answer["result"];
    let number = |value: &Value| value.as_f64().unwrap();
    let sum = |list: &Value, key: &str| list.as_array().unwrap().iter().map(|v| number(&v[key])).sum::<f64>();
    assert!((sum(&result["time_shares"], "fraction") - 1.0).abs() < 1e-9);
    let energy = &result["energy"];
    assert!((number(&energy["dynamic_j"]) + number(&energy["static_j"]) - number(&energy["step_j"])).abs() < 1e-9);
    assert_eq!(
        (&energy["step_j"], &result["plan"]["plan"]["layout"]["data"]),
        (&result["plan"]["energy_j"], &Value::from(1))
    );
    assert_eq!(result["stages"].as_array().unwrap().len(), 4);
    let parts: f64 = result["plan"]["parts_s"].as_object().unwrap().values().map(number).sum();
    assert!((parts / number(&result["plan"]["step_s"]) - 1.0).abs() < 1e-9);
    for pass in result["passes"].as_array().unwrap() {
        let end = |k: &Value| number(&k["start_s"]) + number(&k["latency_s"]);
        let last = pass["kernels"].as_array().unwrap().iter().map(end).fold(0.0, f64::max);
        assert!((last - number(&pass["time_s"])).abs() < 1e-9, "{}", pass["pass"]);
        assert!((sum(&pass["kernels"], "share") - 1.0).abs() < 1e-9, "{}", pass["pass"]);
    }
}

/// Calls that name a job, each with the degrees of a plan.
const JOBS: [(&str, &str); 3] = [
    (
        "llama2-7b --chip a100_80gb --fabric selene_hdr200x8 --devices 16 --global-batch 64",
        "--tensor 4 --pipeline 2 --micro-batch 2 --zero 1 --recompute selective --schedule 1f1b --virtual-stages 2 \
        --order t-d-p --layer-split even",
    ),
    (
        "bert-large --chip tpu_v4 --fabric tpu_v4_ici --devices 8 --global-batch 64 --stack ideal",
        "--tensor 2 --pipeline 2 --micro-batch 4 --zero 0 --recompute none --layer-split 13:11",
    ),
    (
        "opt-350m --chip h100_80gb --fabric eos_ndr400x8 --devices 8 --global-batch 32 --stack pytorch_fsdp \
        --stack-option overlap.tensor=0.5",
        "--tensor 1 --pipeline 1 --micro-batch 2 --zero 3 --recompute full",
    ),
];

#[test]
fn a_plan_takes_what_plan_says() {
    let call = |verb: &str, arguments: &str| {
        let mut command = coplace();
        command.arg(verb).args(arguments.split(' ')).args(["--format", "json"]);
        serde_json::from_slice::<Value>(&command.assert().success().get_output().stdout).unwrap()
    };
    for (job, degrees) in JOBS {
        for arguments in [job.to_owned(), format!("{job} {degrees}")] {
            // `evaluate` takes a given plan, whatever its chance to fit. So `plan` must not require a chance.
            let fit = if arguments == job { "" } else { " --fit 0.5" };
            let (listed, evaluated) = (call("plan", &format!("{arguments}{fit}")), call("evaluate", &arguments));
            let result = &evaluated["result"];
            assert_eq!(listed["plans"][0], result["plan"], "{arguments}");
            assert!(result["plan"]["step_s"].as_f64().unwrap() > 0.0);
            assert_eq!(
                (&listed["stages"], &listed["timeline"]),
                (&result["stages"], &result["timeline"]),
                "{arguments}"
            );
            // `plan` also counts discouraged plans, because it shows the fastest one.
            let plans = |answer: &Value| answer["counts"]["plans"].as_u64().unwrap();
            assert!(plans(&listed) >= plans(&evaluated) && plans(&evaluated) > 0, "{arguments}");
        }
    }
}

#[test]
fn without_a_cluster_it_is_1024_devices_on_the_chip_s_usual_network() {
    let mut command = coplace();
    command.args([
        "evaluate",
        "bert-large",
        "--chip",
        "tpu_v4",
        "--tensor",
        "1",
        "--pipeline",
        "1",
        "--format",
        "json",
    ]);
    let answer: Value = serde_json::from_slice(&command.assert().success().get_output().stdout).unwrap();
    let given = &answer["job"]["cluster"];
    assert_eq!((&given["devices"], &given["global_batch_sequences"]), (&1024.into(), &4096.into()));
    assert_eq!(given["fabric"], "ici_3d_torus");
}

#[test]
fn degrees_that_do_not_divide_are_refused_with_those_that_do() {
    let batch = refused(&["--micro-batch", "3"]);
    assert!(batch.contains("--micro-batch: ") && batch.contains("64"), "{batch}");
    let devices = refused(&["--pipeline", "4", "--data", "4", "--tensor", "2"]);
    let expected = "must be 1, the copies of 8 devices (tp x cp x pp) among 8; use dp = 1, or pp = 1";
    assert!(devices.contains("--data: ") && devices.contains(expected), "{devices}");
    // The pipeline's degree follows from the number of copies.
    let copies = json(&["--pipeline", "2,4", "--data", "1", "--tensor", "2"]);
    assert_eq!(copies["result"]["plan"]["plan"]["layout"]["pipeline"], 4);
    let micro = refused(&["--pipeline", "1", "--data", "8", "--tensor", "1", "--micro-batch", "16"]);
    assert!(micro.contains("--micro-batch: "), "{micro}");
}

#[test]
fn what_lacks_memory_says_where_and_how_much() {
    let answer = too_large();
    let (why, shortfall) = (answer["why"].as_str().unwrap(), &answer["shortfall"]);
    let bytes = |key: &str| shortfall[key].as_u64().unwrap();
    assert_eq!(bytes("need_bytes") - bytes("have_bytes"), bytes("lacking_bytes"));
    assert_eq!(answer["feasible"], false);
    let gib = |key: &str| bytes(key) as f64 / f64::from(1 << 30);
    let expected =
        format!("stage {} needs {:.2} GiB of {:.2} GiB", bytes("stage"), gib("need_bytes"), gib("have_bytes"));
    assert!(why.contains(&expected) && why.contains(shortfall["plan"].as_str().unwrap()), "{why}");
}

#[test]
fn the_summary_is_last_and_kernels_come_before_it_where_they_are_asked_for() {
    let (short, long) = (text(&["--tensor", "2", "--details"]), text(&["--tensor", "2", "--kernels", "--details"]));
    assert!(short.lines().count() < 70, "{}", short.lines().count());
    let summary = |text: &str| text[text.find("Kernels that take most of the step").unwrap()..].to_owned();
    assert_eq!(summary(&short), summary(&long));
    assert!(long.contains("layer, forward: ") && !short.contains("layer, forward: "));
    for text in [short, long] {
        let last = text.lines().last().unwrap();
        assert!(last.trim_start().starts_with("evidence"), "{last}");
        assert!(text.lines().take(6).any(|line| line.contains("software") && line.contains("maxtext")), "{text}");
    }
}

#[test]
fn bad_flags_are_refused_with_the_cure() {
    for (arguments, expected) in [
        (vec!["--tensor", "3"], "--tensor: "),
        (vec!["--tensor", "0"], "0 is not in 1..=65536"),
        (vec!["--micro-batch", "0"], "0 is not in 1..=65536"),
        (vec!["--data", "3"], "must be a divisor of the 8 devices; use dp = 2 or 4"),
        (vec!["--attention", "flash"], "[possible values: fused, unfused]"),
        (vec!["--trace", "/nonexistent/x.json"], "/nonexistent/x.json: cannot be written"),
    ] {
        let error = refused(&arguments);
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
    let unknown = |arguments: &[&str]| {
        let output = coplace().arg("evaluate").args(arguments).assert().code(2).get_output().clone();
        String::from_utf8(output.stderr).unwrap()
    };
    assert!(unknown(&["bert-large", "--chip", "tpu"]).contains("unknown chip `tpu`: built in are"));
    assert!(unknown(&["bert-large", "--chip", "x.toml"]).contains("x.toml: cannot be read: No such file"));
    assert!(unknown(&["bert", "--chip", "tpu_v4"]).contains("unknown model `bert`"));
    assert!(unknown(&["bert-large", "--chip", "tpu_v4", "--fabric", "web"]).contains("fabric `web`"));
}

#[test]
fn a_chip_file_is_read_like_a_built_in_chip() {
    let chip = include_str!("../sim/templates/chips/tpu_v4.toml");
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("mine.toml");
    let run = |text: &str| {
        std::fs::write(&file, text).unwrap();
        let mut command = coplace();
        command.args(["evaluate", "bert-large", "--devices", "8", "--fabric", "ideal_switch", "--global-batch", "64"]);
        command.arg("--chip").arg(&file).output().unwrap()
    };
    assert_eq!(String::from_utf8(run(chip).stdout).unwrap(), text(&[]));
    let broken = run(&chip[..chip.len() / 2]);
    let error = String::from_utf8(broken.stderr).unwrap();
    assert_eq!(broken.status.code(), Some(2), "{error}");
    assert!(error.contains("mine.toml"), "{error}");
}

#[test]
fn a_fabric_without_figures_for_the_chip_is_refused() {
    let mut command = coplace();
    command.args(["evaluate", "bert-large", "--chip", "a100_80gb_sxm", "--devices", "64", "--fabric", "ici_3d_torus"]);
    let output = command.assert().code(2).get_output().clone();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("has no figures for chip `a100_80gb_sxm`: it has tpu_v4"), "{error}");
}

#[test]
fn a_shared_fabric_is_that_of_the_chip() {
    let result = |fabric: &str| {
        let mut command = coplace();
        command.args([
            "evaluate",
            "llama2-7b",
            "--chip",
            "tpu_v5p",
            "--devices",
            "64",
            "--global-batch",
            "512",
            "--fabric",
            fabric,
        ]);
        let output = command.args(["--format", "json"]).assert().success().get_output().clone();
        let mut result = serde_json::from_slice::<Value>(&output.stdout).unwrap()["result"].clone();
        // The evidence is removed, because it names the fabric.
        assert!(result["plan"].as_object_mut().unwrap().remove("evidence").is_some());
        result
    };
    assert_eq!(result("ici_3d_torus"), result("tpu_v5p_ici"));
}

#[test]
fn the_best_plan_given_again_is_the_same() {
    let evaluate = |given: &[&str]| {
        let mut command = coplace();
        command.args([
            "evaluate",
            "llama3-8b",
            "--chip",
            "tpu_v4",
            "--devices",
            "16",
            "--global-batch",
            "64",
            "--fabric",
            "tpu_v4_ici",
        ]);
        let output = command.args(["--format", "json"]).args(given).assert().success().get_output().clone();
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["result"].clone()
    };
    let mut best = evaluate(&[]);
    // A plan that is given has no similar plans, so its count is 0.
    best["plan"]["alike"] = 0.into();
    let plan = &best["plan"]["plan"];
    let degree = |key: &str| plan["layout"][key].to_string();
    let [p, d, t, v, c] = ["pipeline", "data", "tensor", "virtual_stages", "context"].map(degree);
    let method = plan["layout"]["context_method"].as_str().unwrap();
    let (b, policy) = (plan["batch"]["micro_batch"].to_string(), recompute(&plan["activations"]));
    let degrees = ["--pipeline", &p, "--data", &d, "--tensor", &t, "--virtual-stages", &v, "--micro-batch", &b];
    let degrees = [&degrees[..], &["--context", &c, "--context-method", method]].concat();
    let given = evaluate(&[&degrees[..], &["--recompute", &policy]].concat());
    assert_eq!(best, given);
}

/// Returns a policy of the record in the form of `--recompute`.
fn recompute(policy: &Value) -> String {
    policy.as_str().unwrap().to_owned()
}

#[test]
fn the_trace_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("stage.json");
    text(&["--trace", file.to_str().unwrap()]);
    let trace: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    let events = trace["traceEvents"].as_array().unwrap();
    // The trace has the stages' passes and the slowest stage's kernels.
    let named =
        |name: &str| events.iter().any(|e| e["name"].as_str().is_some_and(|n| n.starts_with(name)) && e["ph"] == "X");
    assert!(events.len() > 50 && named("forward 0") && named("layer forward") && named("layer."), "{}", events.len());
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}
