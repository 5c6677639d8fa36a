//! `coplace evaluate` as users see it: the printed report, the JSON's keys, the exit codes.

#![allow(clippy::unwrap_used)]

use assert_cmd::Command;
use serde_json::Value;

/// BERT-large on eight TPUv4 behind an ideal switch.
fn evaluate(arguments: &[&str]) -> Command {
    let mut command = Command::cargo_bin("coplace").unwrap();
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

/// GPT-3 on eight devices: far too large.
fn too_large() -> Value {
    let mut command = Command::cargo_bin("coplace").unwrap();
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
    let plan = ["--pipeline", "2", "--data", "2", "--tensor", "2", "--micro-batch", "4"];
    insta::assert_snapshot!(text(&plan));
}

#[test]
fn lines_fit_a_wide_terminal() {
    let report = text(&[]);
    let longest = report.lines().max_by_key(|line| line.chars().count()).unwrap();
    assert!(longest.chars().count() <= 160, "{longest}");
}

fn keys(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                found.push(key.clone());
                // The keys of this object are data.
                if key != "memory_gib" {
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
    let answer = json(&["--pipeline", "4", "--data", "1", "--tensor", "2", "--micro-batch", "4"]);
    let result = &answer["result"];
    let number = |value: &Value| value.as_f64().unwrap();
    let sum = |list: &Value, key: &str| list.as_array().unwrap().iter().map(|v| number(&v[key])).sum::<f64>();
    assert!((sum(&result["time_shares"], "fraction") - 1.0).abs() < 1e-9);
    let energy = &result["energy"];
    assert!((number(&energy["dynamic_j"]) + number(&energy["static_j"]) - number(&energy["step_j"])).abs() < 1e-9);
    assert_eq!(result["plan"]["devices_used"], 8);
    assert_eq!(result["stages"].as_array().unwrap().len(), 4);
    for pass in result["passes"].as_array().unwrap() {
        let end = |k: &Value| number(&k["start_s"]) + number(&k["latency_s"]);
        let last = pass["kernels"].as_array().unwrap().iter().map(end).fold(0.0, f64::max);
        assert!((last - number(&pass["time_s"])).abs() < 1e-9, "{}", pass["pass"]);
    }
    let (closed, simulated) = (number(&result["time"]["step_s"]), number(&result["time"]["simulated_step_s"]));
    assert!(simulated < closed * 1.12 && simulated > closed * 0.8, "{closed} {simulated}");
}

#[test]
fn one_stage_is_simulated_as_the_closed_form_says() {
    let answer = json(&["--pipeline", "1", "--data", "8", "--tensor", "1", "--micro-batch", "4"]);
    let time = &answer["result"]["time"];
    let (closed, simulated) = (time["step_s"].as_f64().unwrap(), time["simulated_step_s"].as_f64().unwrap());
    assert!((closed - simulated).abs() < 1e-9 * closed, "{closed} {simulated}");
}

#[test]
fn degrees_that_do_not_divide_are_refused_with_those_that_do() {
    let batch = refused(&["--micro-batch", "3"]);
    assert!(
        batch.contains("a global batch of 64 sequences is not 1 replicas") && batch.contains("use a global batch of 63 or 66"),
        "{batch}"
    );
    let devices = refused(&["--pipeline", "4", "--data", "4", "--tensor", "2"]);
    assert!(devices.contains("32 devices are needed") && devices.contains("whose product is at most 8"), "{devices}");
    let micro = refused(&["--pipeline", "1", "--data", "8", "--tensor", "1", "--micro-batch", "16"]);
    assert!(micro.contains("micro-batches of 16") && micro.contains("use a global batch of 128"), "{micro}");
}

#[test]
fn what_lacks_memory_says_where_and_how_much() {
    let answer = too_large();
    let (why, shortfall) = (answer["why"].as_str().unwrap(), &answer["shortfall"]);
    let bytes = |key: &str| shortfall[key].as_u64().unwrap();
    assert_eq!(bytes("have_bytes"), 32 << 30);
    assert_eq!(bytes("need_bytes") - bytes("have_bytes"), bytes("lacking_bytes"));
    assert_eq!(bytes("pipeline_stages"), 8);
    let expected = format!(
        "on stage {}, the device has 32.000 GiB, {:.3} GiB are lacking",
        bytes("stage"),
        bytes("lacking_bytes") as f64 / f64::from(1 << 30)
    );
    assert!(why.ends_with(&expected), "{why}");
}

#[test]
fn bad_flags_are_refused_with_the_cure() {
    for (arguments, expected) in [
        (
            vec!["--tensor", "3"],
            "must divide the 16 heads (16 key/value heads) and the MLP width 4096 of bert-large; use one of 1, 2, 4, 8, 16",
        ),
        (vec!["--tensor", "0"], "0 is not in 1..=65536"),
        (vec!["--micro-batch", "0"], "0 is not in 1..=65536"),
        (vec!["--pipeline", "2"], "--data <D>"),
        (vec!["--pipeline", "2", "--data", "2"], "--tensor <T>"),
        (vec!["--attention", "flash"], "[possible values: fused, unfused]"),
        (vec!["--trace", "/nonexistent/x.json"], "/nonexistent/x.json: cannot be written"),
    ] {
        let error = refused(&arguments);
        assert!(error.contains(expected), "{arguments:?}: {error}");
    }
    let unknown = |arguments: &[&str]| {
        let output = Command::cargo_bin("coplace").unwrap().arg("evaluate").args(arguments).assert().code(2).get_output().clone();
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
        let mut command = Command::cargo_bin("coplace").unwrap();
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
    let mut command = Command::cargo_bin("coplace").unwrap();
    command.args(["evaluate", "bert-large", "--chip", "a100_80gb_sxm", "--devices", "64", "--fabric", "ici_3d_torus"]);
    let output = command.assert().code(2).get_output().clone();
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(error.contains("has no figures for chip `a100_80gb_sxm`: it has tpu_v4"), "{error}");
}

#[test]
fn a_shared_fabric_is_that_of_the_chip() {
    let result = |fabric: &str| {
        let mut command = Command::cargo_bin("coplace").unwrap();
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
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["result"].clone()
    };
    assert_eq!(result("ici_3d_torus"), result("tpu_v5p_ici"));
}

#[test]
fn the_best_plan_given_again_is_the_same() {
    let evaluate = |given: &[&str]| {
        let mut command = Command::cargo_bin("coplace").unwrap();
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
    let degree = |key: &str| best["plan"][key].to_string();
    let [p, d, t, b] = ["pipeline_stages", "data_parallel", "tensor_parallel", "micro_batch_sequences"].map(degree);
    // Splits of its layers and mixes of policies tie there.
    assert_eq!(p, "2");
    let mut given = evaluate(&["--pipeline", &p, "--data", &d, "--tensor", &t, "--micro-batch", &b]);
    for result in [&mut best, &mut given] {
        result.as_object_mut().unwrap().remove("search");
    }
    assert_eq!(best, given);
}

#[test]
fn the_trace_is_written() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("stage.json");
    text(&["--trace", file.to_str().unwrap()]);
    let trace: Value = serde_json::from_str(&std::fs::read_to_string(&file).unwrap()).unwrap();
    assert!(trace["traceEvents"].as_array().unwrap().len() > 50);
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
}
