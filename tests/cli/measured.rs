//! `coplace validate` and `coplace calibrate` on measured rows.

use crate::support::{file_names, read_repository_file, repository_path, run_coplace, run_coplace_in};

/// The header of a file of kernels. Tests add made-up rows.
const HEADER: &str = "id,dataset,chip,kernel,m,n,k,batch,elements,dtype,measured_us,spread_pct,timing,source\n";

fn gemm(id: &str, chip: &str, size: u32, measured_us: &str) -> String {
    format!("{id},mine,{chip},gemm,{size},{size},{size},1,,fp16,{measured_us},,device,made up\n")
}

#[test]
fn every_cycle_count_is_predicted_exactly_and_written_and_drawn() {
    let dir = tempfile::tempdir().unwrap();
    let file = repository_path("sim/tests/data/systolic_cycles.csv").display().to_string();
    let call = ["validate", &file, "--predictions", "p.csv", "--plot", "plots", "--format", "json"];
    let answer = run_coplace_in(dir.path(), &call).expect_json();
    let report = &answer["files"][0];
    assert_eq!((&answer["format"], &report["dataset"]), (&1.into(), &"systolic_cycles".into()));
    let groups = report["groups"].as_array().unwrap();
    assert!(groups.iter().all(|g| g["n"] == g["exact"] && g["unpredicted"] == 0), "{report}");
    let rows = report["rows"].as_u64().unwrap();
    assert_eq!(rows as usize, read_repository_file("sim/tests/data/systolic_cycles.csv").lines().count() - 1);
    let predictions = std::fs::read_to_string(dir.path().join("p.csv")).unwrap();
    assert!(predictions.starts_with("id,quantity,measured,predicted,low,high,grade,stack\n"));
    assert!(predictions.lines().filter(|line| line.contains(",array_cycles,")).count() as u64 == rows);
    let drawn = file_names(&dir.path().join("plots"));
    assert!(
        drawn.contains(&"systolic_cycles-array_cycles.svg".to_owned()) && drawn.len().is_multiple_of(2),
        "{drawn:?}"
    );
}

#[test]
fn collectives_are_scored_per_group_in_text() {
    let text = run_coplace(&["validate", "sim/tests/data/collectives.csv"]).expect_result();
    assert!(text.starts_with("sim/tests/data/collectives.csv: collectives, "), "{text}");
    assert!(text.contains("MAPE %") && text.contains("all_reduce >=16MiB"), "{text}");
}

#[test]
fn a_wrong_row_is_named_with_exit_code_2_and_the_rest_scored() {
    let dir = tempfile::tempdir().unwrap();
    let rows = [
        gemm("good", "a100_80gb_sxm", 4096, "600"),
        gemm("nan", "a100_80gb_sxm", 4096, "NaN"),
        gemm("zero", "tpu_v4", 4096, "0"),
    ];
    std::fs::write(dir.path().join("k.csv"), HEADER.to_owned() + &rows.concat()).unwrap();
    let called = run_coplace_in(dir.path(), &["validate", "k.csv", "gone.csv", "--predictions", "p.csv"]);
    assert_eq!(called.code, 2);
    assert!(called.stdout.contains("k.csv: kernels, 3 rows"), "{}", called.stdout);
    insta::assert_snapshot!("validate_wrong_rows", called.stderr);
    let predictions = std::fs::read_to_string(dir.path().join("p.csv")).unwrap();
    assert_eq!(predictions.lines().count(), 2, "{predictions}");
    assert!(predictions.contains("\ngood,measured_us,600,"), "{predictions}");
}

#[test]
fn a_row_that_no_model_covers_is_counted_and_named_without_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let rows = [gemm("good", "a100_80gb_sxm", 4096, "600"), gemm("odd", "abacus", 4096, "600")];
    std::fs::write(dir.path().join("k.csv"), HEADER.to_owned() + &rows.concat()).unwrap();
    let text = run_coplace_in(dir.path(), &["validate", "k.csv"]).expect_result();
    assert!(text.contains("not predicted: 1 rows") && text.contains("abacus") && text.contains(": odd\n"), "{text}");
}

#[test]
fn a_fit_finds_the_fraction_of_a_slower_chip_and_moves_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let write = |measured_us: &str| {
        let of = |id: u32| {
            gemm(&if id == 0 { "a".to_owned() } else { format!("a{id}") }, "tpu_v4", 8192, measured_us)
                .replace("fp16", "bf16")
        };
        let rows: Vec<String> = (0..6).map(of).chain([gemm("b", "a100_80gb_sxm", 4096, "600")]).collect();
        std::fs::write(dir.path().join("k.csv"), HEADER.to_owned() + &rows.concat()).unwrap();
    };
    write("1");
    run_coplace_in(dir.path(), &["validate", "k.csv", "--predictions", "p.csv"]).expect_result();
    let predictions = std::fs::read_to_string(dir.path().join("p.csv")).unwrap();
    let cells = predictions.lines().find_map(|l| l.strip_prefix("a,measured_us,1,")).unwrap();
    let predicted: f64 = cells.split(',').next().unwrap().parse().unwrap();
    // The arrays bound a product of this size. If it takes 1.5 times as long, the fitted fraction is about two thirds.
    write(&(1.5 * predicted).to_string());
    let call = ["calibrate", "tpu_v4", "k.csv", "--only", "tensor_achieved_fraction", "--format", "json"];
    let answer = run_coplace_in(dir.path(), &call).expect_json();
    assert_eq!((answer["measurements"].as_u64(), answer["other_chips"].as_u64()), (Some(6), Some(1)));
    let error = |key: &str| answer[key].as_f64().unwrap();
    // The fit ends at steps of 2 %, so that an error of up to 2 % remains.
    assert!(error("error_after_pct") <= error("error_before_pct") && error("error_after_pct") < 2.0, "{answer}");
    let [scalar] = &answer["scalars"].as_array().unwrap()[..] else { panic!("{answer}") };
    assert!(scalar["key"] == "calibration.tensor_achieved_fraction" && scalar["determined"] == true, "{scalar}");
    let of = |key: &str| scalar[key].as_f64().unwrap();
    assert!((0.5..0.85).contains(&(of("after") / of("before"))), "{scalar}");
    assert!(
        (scalar["range"][0].as_f64().unwrap()..=scalar["range"][1].as_f64().unwrap()).contains(&of("after")),
        "{scalar}"
    );
    // Every verb accepts the written file as a chip.
    run_coplace_in(
        dir.path(),
        &[
            "calibrate",
            "a100_80gb_sxm",
            &repository_path("sim/tests/data/kernels.csv").display().to_string(),
            "--out",
            "ours.toml",
        ],
    )
    .expect_result();
    let written = std::fs::read_to_string(dir.path().join("ours.toml")).unwrap();
    assert!(written.contains("hbm_achieved_fraction = \"42 kernels of ") && !written.contains("aliases"), "{written}");
    let plan = [
        "plan",
        "gpt2-xl",
        "--chip",
        "ours.toml",
        "--fabric",
        "nvlink3_node",
        "--devices",
        "8",
        "--global-batch",
        "64",
    ];
    assert!(run_coplace_in(dir.path(), &plan).expect_result().contains("ours"));
    let only = ["calibrate", "tpu_v4", "k.csv", "--only", "tensor_achieved_fraction"];
    let text = run_coplace_in(dir.path(), &only).expect_result();
    assert!(
        text.contains("For the chip's file") && text.contains("\n[calibration]\ntensor_achieved_fraction = "),
        "{text}"
    );
}

#[test]
fn a_fabric_is_fitted_to_its_collectives_and_written_for_every_verb() {
    let dir = tempfile::tempdir().unwrap();
    let rows = repository_path("measured/reference/gpu_collectives.csv").display().to_string();
    let call = ["calibrate", "nvlink3_node", &rows, "--out", "our_node.toml", "--format", "json"];
    let answer = run_coplace_in(dir.path(), &call).expect_json();
    let of = |key: &str| answer[key].as_f64().unwrap();
    assert!(of("rows") > 40.0 && of("others") > 0.0 && of("after_pct") < of("before_pct"), "{answer}");
    assert!(of("left_out_pct") >= of("after_pct") && of("left_out_pct") < 10.0, "{answer}");
    // A faulty row is reported, and the others are fitted.
    let text = std::fs::read_to_string(&rows).unwrap();
    let some: String = text.lines().take(60).map(|line| format!("{line}\n")).collect();
    std::fs::write(dir.path().join("wrong.csv"), some.replacen(",9.08,", ",nan,", 1)).unwrap();
    let called = run_coplace_in(dir.path(), &["calibrate", "nvlink3_node", "wrong.csv"]);
    assert!(called.code == 2 && called.stdout.contains("rows of nvlink3_node"), "{}", called.stdout);
    assert!(called.stderr.contains("wrong.csv:2: measured_us = nan: must be"), "{}", called.stderr);
    let plan = [
        "plan",
        "gpt2-xl",
        "--chip",
        "a100_80gb_sxm",
        "--fabric",
        "our_node.toml",
        "--devices",
        "8",
        "--global-batch",
        "64",
    ];
    assert!(run_coplace_in(dir.path(), &plan).expect_result().contains("our_node"));
}

/// The file of a fitted stack contains the measured runs. They narrow the interval of a step on their cluster, but not
/// of one on another fabric.
#[test]
fn own_runs_narrow_the_intervals_of_their_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let rows = read_repository_file("measured/reference/training_runs_2.csv");
    let on_node = |line: &&str| line.contains("nanotron_h100") && line.contains(",nvlink4_node,");
    let some: Vec<&str> = rows.lines().take(1).chain(rows.lines().filter(on_node).step_by(7).take(6)).collect();
    std::fs::write(dir.path().join("runs.csv"), some.join("\n") + "\n").unwrap();
    let fitted =
        run_coplace_in(dir.path(), &["calibrate", "nanotron", "runs.csv", "--out", "ours.toml"]).expect_result();
    assert!(fitted.contains("has the runs' held-out errors"), "{fitted}");
    let written = std::fs::read_to_string(dir.path().join("ours.toml")).unwrap();
    assert!(written.matches("[[runs]]").count() >= 5 && written.contains("error_without_run = "), "{written}");
    let mut in_runs = false;
    let mut without = String::new();
    for line in written.lines() {
        if line.starts_with('[') {
            in_runs = line == "[[runs]]";
        }
        if !in_runs {
            without.push_str(&format!("{line}\n"));
        }
    }
    std::fs::write(dir.path().join("without.toml"), without).unwrap();
    let evidence = |stack: &str, fabric: &str| {
        let call = "plan gpt2-xl --chip h100_80gb_sxm --devices 8 --global-batch 64 --format json";
        let words = call.split(' ').chain(["--stack", stack, "--fabric", fabric]);
        let answer = run_coplace_in(dir.path(), &words.collect::<Vec<_>>()).expect_json();
        let found = &answer["plans"][0]["evidence"];
        let end = |at: usize| found["step_interval_s"][at].as_f64().unwrap();
        let names = |ground: &serde_json::Value| format!("{} {}", ground["what"], ground["name"]);
        let grounds: Vec<String> = found["grounds"].as_array().unwrap().iter().map(names).collect();
        (end(1) / end(0), grounds.join(", "))
    };
    let (own, none) = (evidence("ours.toml", "nvlink4_node"), evidence("without.toml", "nvlink4_node"));
    assert!(own.0 < 0.95 * none.0 && !own.1.contains("\"stack\"") && none.1.contains("\"stack\""), "{own:?} {none:?}");
    let on_another = |stack| evidence(stack, "nvlink3_node").0;
    assert_eq!(on_another("ours.toml"), on_another("without.toml"));
    // An impossible error in a run is refused with its limits.
    let wrong = written.replacen("error_without_run = ", "error_without_run = 99.0 # ", 1);
    std::fs::write(dir.path().join("wrong.toml"), wrong).unwrap();
    let call =
        "plan gpt2-xl --chip h100_80gb_sxm --fabric nvlink4_node --devices 8 --global-batch 8 --stack wrong.toml";
    let called = run_coplace_in(dir.path(), &call.split(' ').collect::<Vec<_>>());
    let said = called.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        called.code == 2 && said.contains("wrong.toml: runs, ") && said.contains("must be from -10 to 10"),
        "{said}"
    );
}

/// The context of a row includes its new tokens, so it has at least as many. An attention library affects only prompts.
#[test]
fn passes_are_refused_where_a_column_would_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let refused = |row: &str| {
        let text = format!("id,chip,model,dtype,batch,new,context,library,measured_us\n{row}\n");
        std::fs::write(dir.path().join("passes.csv"), text).unwrap();
        let called = run_coplace_in(dir.path(), &["validate", "passes.csv"]);
        format!("{} {}", called.stderr, called.stdout).split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let said = refused("a,h100_80gb_sxm,llama3.1-8b,bf16,1,600,512,,100");
    assert!(said.contains("passes.csv:2: new = 600: the context has 512 tokens, the new ones among them"), "{said}");
    let said = refused("a,h100_80gb_sxm,llama3.1-8b,bf16,1,,512,cudnn,100");
    assert!(said.contains("passes.csv:2: library = cudnn: changes nothing while decoding"), "{said}");
    let said = refused("a,h100_80gb_sxm,llama3.1-8b,bf16,1,64,512,flash_attention_9,100");
    assert!(said.contains("no attention library \"flash_attention_9\"; known are: cudnn, flash_attention_2"), "{said}");
    let said = refused("a,h100_80gb_sxm,llama3.1-8b,bf16,1,64,512,cudnn,100");
    assert!(said.contains("llama3.1-8b prompts 1 0") && !said.contains("not scored"), "{said}");
}

/// Checks the tables of the book: every figure is under its system, with its verdict and the value to four digits.
/// There are no other rows.
fn check_pages_of_papers(figures: &[serde_json::Value]) {
    let mut rows = std::collections::BTreeMap::new();
    for page in ["papers.md", "papers-approximate.md", "papers-inference.md"] {
        let text = read_repository_file(&format!("docs/src/{page}"));
        let mut system = "";
        for line in text.lines() {
            system = line.strip_prefix("## ").unwrap_or(system);
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            if let ["", what, _, predicted, unit, verdict, ""] = cells[..]
                && let Ok(predicted) = predicted.replace(',', "").parse::<f64>()
            {
                rows.insert((system.to_owned(), what.to_owned()), (predicted, unit.to_owned(), verdict.to_owned()));
            }
        }
    }
    for figure in figures {
        let text = |key: &str| figure[key].as_str().unwrap().to_owned();
        let row = rows.remove(&(text("system"), text("what"))).unwrap_or_else(|| panic!("no row for {figure}"));
        let predicted = figure["predicted"].as_f64().unwrap();
        assert!((row.0 - predicted).abs() <= 6e-4 * predicted.abs(), "{row:?} of {figure}");
        let verdict = if figure["within"] == true { "within" } else { "missed" };
        let fitted = if figure["fitted"] == true { ", fitted" } else { "" };
        assert_eq!((row.1, row.2), (text("unit"), format!("{verdict}{fitted}")), "{figure}");
    }
    assert!(rows.is_empty(), "rows without a figure: {rows:?}");
}

/// A tolerance in percentage points is compared with the difference, not with the relative error.
#[test]
fn points_are_not_percent() {
    let text = run_coplace(&["validate", "--techniques"]).expect_result();
    let line = text.lines().find(|line| line.starts_with("memo_mfu")).unwrap();
    assert!(line.contains(" 5 points ") && line.matches(" points ").count() == 2, "{line}");
    let all = run_coplace(&["validate", "--techniques", "--format", "json"]).expect_json();
    check_pages_of_papers(all.as_array().unwrap());
    for figure in all.as_array().unwrap() {
        let number = |key: &str| figure[key].as_f64();
        let (low, predicted) = (number("published").unwrap(), number("predicted").unwrap());
        let off = predicted - predicted.clamp(low, number("published_to").unwrap_or(low));
        match figure["tolerance"].as_str().unwrap().strip_suffix(" points") {
            Some(points) => {
                assert_eq!(figure["error_points"].as_f64(), Some(off), "{figure}");
                assert_eq!(figure["within"], off.abs() <= points.parse().unwrap(), "{figure}");
            }
            None => {
                assert!(
                    figure["error_points"].is_null() && figure["tolerance"].as_str().unwrap().ends_with(" %"),
                    "{figure}"
                )
            }
        }
    }
}

/// The built chip is in the space of its hindcast. So the best chip is at least as fast within the same limits, up to
/// the gap of the search.
#[test]
fn a_hindcast_is_at_least_as_good_as_its_chip_and_within_its_limits() {
    let answer = run_coplace(&["validate", "--hindcast", "MI300X", "--format", "json"]).expect_json();
    let [chip] = answer["chips"].as_array().unwrap().as_slice() else { panic!("{answer}") };
    let number = |value: &serde_json::Value| value.as_f64().unwrap();
    assert_eq!((&chip["chip"], &chip["year"]), (&"mi300x".into(), &2023.into()));
    for side in ["real", "found"] {
        assert!(number(&chip[side]["power_w"]) <= number(&chip["max_power_w"]), "{side}: {chip}");
        assert!(number(&chip[side]["area_mm2"]) <= number(&chip["max_area_mm2"]) * (1.0 + 1e-9), "{side}: {chip}");
    }
    assert!(number(&chip["speedup"]) * (1.0 + number(&chip["gap"])) >= 1.0, "{chip}");
    let refused = run_coplace(&["validate", "--hindcast", "gaudi2"]).expect_refusal();
    assert!(refused.contains("--hindcast gaudi2: has no hindcast; give one of tpu_v4, tpu_v5p,"), "{refused}");
}
