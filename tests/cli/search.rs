//! `coplace search`, and the verbs that read its run directories.

use crate::explain::csv_rows;
use crate::support::{
    config_with, file_names, repository_path, run_coplace, run_coplace_in, run_on_screen, small_study, study_with,
};
use serde_json::Value;
use std::path::Path;

const FILES: [&str; 7] =
    ["SHA256SUMS", "best.toml", "designs.parquet", "pareto.png", "pareto.svg", "progress.csv", "record.json"];

pub fn read_record(directory: &Path) -> Value {
    serde_json::from_str(&std::fs::read_to_string(directory.join("record.json")).unwrap()).unwrap()
}

#[test]
fn two_searches_leave_the_same_files_and_their_runs_are_compared_and_drawn() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("small.toml"), small_study()).unwrap();
    let search = |out: &str| {
        let call = ["search", "llama2-7b", "--study", "small.toml", "--details", "--out", out];
        run_coplace_in(dir.path(), &call).expect_result()
    };
    let text = search("a");
    for part in [
        "Best design",
        "Memory, GiB per device",
        "Proof\n=====\nProven: no design of this space is better.",
        "Comparison",
    ] {
        assert!(text.contains(part), "{part} is missing:\n{text}");
    }
    assert!(text.contains("phaze_tpuv4, expert's placement") && text.contains("phaze_tpuv4, as sold"), "{text}");
    search("b");
    let [a, b] = ["a", "b"].map(|name| dir.path().join(name));
    assert_eq!(file_names(&a), FILES);
    for file in &FILES[1..5] {
        assert_eq!(std::fs::read(a.join(file)).unwrap(), std::fs::read(b.join(file)).unwrap(), "{file} differs");
    }
    let [mut first, mut second] = [read_record(&a), read_record(&b)];
    assert!(first["times"]["total"].as_f64().unwrap() > 0.0);
    first["times"] = Value::Null;
    second["times"] = Value::Null;
    assert_eq!(first, second);
    compare(dir.path(), &first);
    pareto(dir.path(), &first);
}

fn compare(directory: &Path, record: &Value) {
    let alone = run_coplace_in(directory, &["compare", "a", "--format", "json"]).expect_json();
    assert_eq!((&alone["format"], &alone["entries"]), (&1.into(), &record["comparison"]["entries"]));
    let both = run_coplace_in(directory, &["compare", "a", "b", "--format", "json"]).expect_json();
    let labels: Vec<&str> = both["entries"].as_array().unwrap().iter().map(|e| e["label"].as_str().unwrap()).collect();
    assert_eq!(labels.len(), 2 * alone["entries"].as_array().unwrap().len());
    assert_eq!((labels[0], labels[labels.len() / 2]), ("a: best found", "b: best found"));
    let text = run_coplace_in(directory, &["compare", "a", "b", "--details"]).expect_result();
    assert!(labels.iter().all(|label| text.contains(label)), "{text}");
    // The short answer first has the found designs, and then the lead over built chips.
    let short = run_on_screen(directory, "80", &["compare", "a", "b"]).expect_result();
    let lines: Vec<&str> = short.lines().collect();
    assert!(lines[..10].join("\n").contains("b: best found") && lines.len() < 40, "{short}");
    assert!(short.contains("\nthe found one is as good, by") && !short.contains(", as sold"), "{short}");
}

fn pareto(directory: &Path, record: &Value) {
    let answer = run_coplace_in(directory, &["pareto", "a", "--out", "figures", "--format", "json"]).expect_json();
    assert_eq!(file_names(&directory.join("figures")), ["pareto.csv", "pareto.png", "pareto.svg"]);
    let svg = |path: &str| std::fs::read(directory.join(path)).unwrap();
    assert_eq!(svg("figures/pareto.svg"), svg("a/pareto.svg"), "one run is drawn as the search drew it");
    let front = answer["runs"][0]["front"].as_array().unwrap();
    let of = |design: &Value, key: &str| design[key].as_f64().unwrap();
    let rises = |key: &str| front.windows(2).all(|pair| of(&pair[0], key) < of(&pair[1], key));
    assert!(rises("area_mm2") && rises("throughput_sequences_per_s"), "{answer}");
    // The largest design on the front is the fastest, and the fastest is the best one found.
    assert_eq!(front.last().unwrap(), &record["best"]["design"]);
    let own = &answer["runs"][0];
    assert_eq!(
        (&own["axes"]["x"], &own["axes"]["y"], &own["axes"]["z"]),
        (&"area".into(), &"throughput".into(), &Value::Null)
    );
    let recorded = &record["front"];
    assert_eq!((&recorded["hypervolume"], &recorded["knee"]["index"]), (&own["hypervolume"], &own["knee"]));
    // The table has the whole front, with the values along the axes. The text lists the whole front too, because it is
    // short.
    let rows = csv_rows(&std::fs::read_to_string(directory.join("figures/pareto.csv")).unwrap());
    assert_eq!(rows.len(), front.len());
    for (row, design) in rows.iter().zip(front) {
        let number = |key: &str| row[key].parse::<f64>().unwrap();
        assert_eq!((row["run"].as_str(), row["index"].clone()), ("a", design["index"].to_string()));
        assert_eq!((number("area (mm²)"), number("area_mm2")), (of(design, "area_mm2"), of(design, "area_mm2")));
        assert!(
            (number("throughput (thousand tokens/s)") * 1e3 / of(design, "throughput_tokens_per_s") - 1.0).abs() < 1e-9
        );
    }
    let text = run_coplace_in(directory, &["pareto", "a", "--out", "figures"]).expect_result();
    let listed = front.iter().filter(|row| text.contains(&format!("\n{} ", row["index"]))).count();
    assert!(front.len() < 8 && listed == front.len() && !text.contains("pareto.csv has all"), "{text}");
    let power = ["pareto", "a", "--x", "power", "--y", "per-watt", "--out", "watts"];
    let text = run_coplace_in(directory, &power).expect_result();
    assert!(text.contains("throughput per W against power") && text.contains("tokens/s per W"), "{text}");
    let drawn = std::fs::read_to_string(directory.join("watts/pareto.svg")).unwrap();
    assert!(drawn.contains("throughput per W (tokens/s per W)") && drawn.contains("tpu_v7"), "{drawn}");
    for (given, why) in [(["--x", "aera"], "area"), (["--x", "throughput"], "twice"), (["--z", "area"], "twice")] {
        let refused =
            run_coplace_in(directory, &[&["pareto", "a", "--out", "none"], &given[..]].concat()).expect_refusal();
        assert!(refused.contains(given[0]) && refused.contains(why), "{refused}");
    }
    let text = run_coplace_in(directory, &["pareto", "a", "b", "--out", "both"]).expect_result();
    assert!(text.contains("a: the front of llama2-7b") && text.contains("b: the front of"), "{text}");
}

#[test]
fn a_config_json_from_disk_is_searched() {
    let dir = tempfile::tempdir().unwrap();
    let model = dir.path().join("tiny");
    std::fs::create_dir(&model).unwrap();
    std::fs::write(model.join("config.json"), config_with("num_hidden_layers", Some(6.into()))).unwrap();
    let one = study_with(&[
        ("tensor_cores", "[8]"),
        ("vector_cores", "[2]"),
        ("array_widths", "[128]"),
        ("global_buffer_mib", "[128]"),
        ("hbm_gib", "[32]"),
    ]);
    std::fs::write(dir.path().join("one.toml"), one).unwrap();
    let call = ["search", "tiny/config.json", "--study", "one.toml", "--sequence-length", "512", "--format", "json"];
    let record = run_coplace_in(dir.path(), &call).expect_json();
    // Without --out the run directory is named after the model and the study.
    let run = &file_names(&dir.path().join("runs"))[0];
    assert_eq!(file_names(&dir.path().join("runs").join(run)), FILES);
    assert_eq!(record["study"]["sequence_tokens"], 512);
    // The parameters are the embedding of 49152 x 576, which is also the head, six layers, and the last norm.
    let layer = 576 * (2 * 576 + 2 * 192) + 3 * 576 * 1536 + 2 * 576;
    assert_eq!(record["study"]["parameters"], 49152 * 576 + 6 * layer + 576);
    assert_eq!(record["certificate"]["proof"], "proven");
    assert!(record["best"]["design"]["throughput_sequences_per_s"].as_f64().unwrap() > 0.0);
    // There is no expert placement for this model. So the best design is followed by the reference and the built chips:
    // first on the same fabric, then as sold.
    let entries = record["comparison"]["entries"].as_array().unwrap();
    let labels: Vec<&str> = entries.iter().map(|e| e["label"].as_str().unwrap()).collect();
    let chips: Vec<&str> = labels[2..].iter().map(|label| label.split(',').next().unwrap()).collect();
    let built = ["tpu_v4", "tpu_v5p", "tpu_v6e", "tpu_v7", "a100_80gb_sxm", "h100_80gb_sxm", "b200"];
    // PHAZE's reference has no fitted scalars, so it has only one row on the same fabric. Built chips have two.
    let expected: Vec<&str> = std::iter::once("phaze_tpuv4")
        .chain(built.iter().flat_map(|chip| [*chip, *chip]))
        .chain(["phaze_tpuv4"])
        .chain(built)
        .collect();
    assert_eq!((labels[..2].to_vec(), chips), (vec!["best found", "best found, family"], expected));
    // Every row with a plan has its fabric, stack, efficiency and value.
    for entry in entries.iter().filter(|entry| !entry["plan"].is_null()) {
        let said = ["fabric", "stack", "efficiency", "objective_value"].map(|key| entry[key].is_null());
        assert_eq!(said, [false; 4], "{entry}");
    }
    // The area of the A100 is measured. Dies without a measured area have the model's.
    let area = |chip: &str| {
        entries.iter().find(|e| e["label"].as_str().unwrap().starts_with(chip)).unwrap()["area_mm2"].clone()
    };
    assert_eq!((area("a100_80gb_sxm"), area("tpu_v7").is_f64()), (826.0.into(), true));
    let svg = std::fs::read_to_string(dir.path().join("runs").join(run).join("pareto.svg")).unwrap();
    assert!(svg.contains("h100_80gb_sxm") && svg.contains("tpu_v7"), "{svg}");
    // The run's directory is named after the model and the study.
    let own = file_names(&dir.path().join("runs"));
    assert!(own[0].starts_with("tiny-one-") && own.len() == 1, "{own:?}");
}

#[test]
fn a_front_of_three_objectives_has_what_each_of_two_has_and_a_study_needs_no_flag() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("small.toml"), small_study()).unwrap();
    let search = |front: &str| {
        let call = ["search", "llama2-7b", "small.toml", "--front", front, "--out", front, "--format", "json"];
        let answer = run_coplace_in(dir.path(), &call).expect_json();
        assert_eq!(
            (&answer["study"]["name"], &answer["study"]["options"]["front"]),
            (&"small.toml".into(), &front.into())
        );
        answer
    };
    let indices = |answer: &Value| -> Vec<u64> {
        answer["front"]["designs"].as_array().unwrap().iter().map(|index| index.as_u64().unwrap()).collect()
    };
    let (area, power, both) = (search("area"), search("power"), search("area,power"));
    assert_eq!(both["front"]["quantities"], serde_json::json!(["throughput", "area", "power"]));
    assert_eq!(both["best"]["design"]["area_mm2"], area["best"]["design"]["area_mm2"]);
    let all = indices(&both);
    assert!(all.len() >= indices(&area).len().max(indices(&power).len()), "{all:?}");
    let text = run_coplace_in(dir.path(), &["pareto", "area,power", "--out", "figures"]).expect_result();
    assert!(text.contains("throughput against area and power") && text.contains("power W"), "{text}");
    for (call, why) in [
        (vec!["search", "llama2-7b", "small.toml", "--study", "phaze"], "--study phaze names another"),
        (vec!["sweep", "llama2-7b", "small.toml", "other.toml"], "are two studies"),
        (vec!["search", "llama2-7b", "--front", "area,power,cost"], "at most two axes"),
        (vec!["search", "llama2-7b", "--years", "4"], "--objective per-dollar"),
        (vec!["search", "llama2-7b", "--objective", "per-dollar", "--pue", "1.2"], "add --years"),
        (
            vec!["search", "llama2-7b", "--objective", "per-dollar", "--years", "4", "--pue", "0.5"],
            "--pue 0.5: must be from 1 to 10",
        ),
        (vec!["search", "llama2-7b", "small.toml", "--min-hbm-gib", "1000"], "none is within the limits of HBM"),
    ] {
        let refused = run_coplace_in(dir.path(), &call).expect_refusal();
        assert!(refused.contains(why), "{refused}");
    }
}

#[test]
fn a_model_that_fits_nowhere_is_a_result_that_says_what_is_lacking() {
    let dir = tempfile::tempdir().unwrap();
    let tight = study_with(&[
        ("tensor_cores", "[8]"),
        ("vector_cores", "[2]"),
        ("array_widths", "[128]"),
        ("global_buffer_mib", "[128]"),
        ("hbm_gib", "[1]"),
    ]);
    std::fs::write(dir.path().join("tight.toml"), tight).unwrap();
    let call = ["search", "llama2-7b", "--study", "tight.toml", "--details", "--out", "run"];
    let text = run_coplace_in(dir.path(), &call).expect_result();
    assert!(text.contains("No design of this space runs the model."), "{text}");
    // The reason is folded if it is wider than the screen.
    let said = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let (_, why) = said.split_once(" because ").unwrap();
    for part in [
        "no plan fits; with p ",
        "stage ",
        " GiB of 1.00 GiB: the largest part, ",
        " GiB (on 8 x 128x128 TC, 2 x 128 VC, 128 MiB, 1 GiB HBM)",
    ] {
        assert!(why.contains(part), "{part} is missing: {why}");
    }
    assert_eq!(read_record(&dir.path().join("run"))["certificate"]["proof"], "infeasible");
    let compared = run_coplace_in(dir.path(), &["compare", "run"]).expect_result();
    assert_eq!(compared, "No design of these runs runs the model.\n");
    let front = run_coplace_in(dir.path(), &["pareto", "run", "--out", "figures"]).expect_result();
    assert!(front.starts_with("run: no design runs llama2-7b\n"), "{front}");
}

#[test]
fn the_smoke_study_is_searched_with_json_on_standard_output_alone() {
    let dir = tempfile::tempdir().unwrap();
    let out = dir.path().join("run").display().to_string();
    let answer =
        run_coplace(&["search", "opt-350m", "--study", "smoke", "--out", &out, "--format", "json"]).expect_json();
    assert_eq!(answer, read_record(&dir.path().join("run")));
    let c = &answer["certificate"];
    let sum: u64 =
        ["evaluated", "pruned", "infeasible", "over_area", "open"].iter().map(|key| c[*key].as_u64().unwrap()).sum();
    assert_eq!((c["designs"].as_u64(), answer["study"]["space_designs"].as_u64().is_some()), (Some(sum), true));
    assert_eq!((&c["proof"], c["open"].as_u64()), (&"proven".into(), Some(0)));
}

/// A study of nine relatives of TPU v4. The bandwidth of their torus grows with their number of links.
pub const RELATIVES: &str = r#"
description = "TPU v4's relatives"
source = "a test"

[space]
base_chip = "tpu_v4"
max_area_mm2 = 700

[space.dimensions]
"tensor.arrays_per_core" = [2, 4, 8]
links = { from = 2, to = 6, step = 2 }
"area.links" = "links"
"fabric.tier.ici.bandwidth_gb_per_s" = "45 * links"
"energy.static_w" = "0.15 * area_mm2"

[cluster]
devices = 16
fabric = "tpu_v4_ici"
global_batch_sequences = 64

[plan]
context_parallel = [1]
expert_parallel = [1]
virtual_stages = [1]
schedules = ["1f1b"]
zero = [0, 1]
recompute = ["none", "full"]
attention = "fused"
optimizer = "adam"

[limits]
evaluations = 1000
"#;

#[test]
fn silicon_that_costs_no_area_is_named_beside_the_best_chip() {
    let dir = tempfile::tempdir().unwrap();
    let free = RELATIVES.replace("\"area.links\" = \"links\"\n", "");
    for (file, study, named) in [("tied.toml", RELATIVES, false), ("free.toml", &free, true)] {
        std::fs::write(dir.path().join(file), study).unwrap();
        let call = ["search", "opt-350m", "--study", file, "--sequence-length", "1024"];
        let text = run_coplace_in(dir.path(), &call).expect_result();
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(text.contains("No area follows from links: the study's chips have more or less"), named, "{text}");
    }
}

#[test]
fn the_chip_that_a_search_finds_is_one_for_other_verbs() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("small.toml"), small_study()).unwrap();
    std::fs::write(dir.path().join("relatives.toml"), RELATIVES).unwrap();
    for (model, study, more) in
        [("llama2-7b", "small.toml", &[][..]), ("opt-350m", "relatives.toml", &["--sequence-length", "1024"])]
    {
        let call = [&["search", model, "--study", study, "--out", study.trim_end_matches(".toml")][..], more].concat();
        let text = run_coplace_in(dir.path(), &call).expect_result();
        let run = study.trim_end_matches(".toml");
        let found = read_record(&dir.path().join(run));
        let step = &found["best"]["step"]["plan"]["step_s"];
        assert!(step.as_f64().unwrap() > 0.0, "{text}");
        // The run gives cluster, stack and plan, so `evaluate` has the same time to the last digit.
        let again = run_coplace_in(dir.path(), &["evaluate", model, "--chip", run, "--format", "json"]).expect_json();
        assert_eq!(&again["result"]["plan"]["step_s"], step, "{study}");
        assert_eq!(again["result"]["energy"], found["best"]["step"]["energy"]);
        // If an option changes the question, the run's plan is not used, and the plan is open again.
        let int8 = ["--precision", "int8"];
        let changes = [&["--gradients", "fp32"][..], &["--stack-option", "overlap.tensor=0.5"]];
        for more in changes.into_iter().chain((run == "relatives").then_some(&int8[..])) {
            let call = [&["evaluate", model, "--chip", run, "--format", "json"][..], more].concat();
            let other = run_coplace_in(dir.path(), &call).expect_json();
            assert_eq!(other["asked"]["plans"], serde_json::json!({}), "{more:?}");
        }
        assert_ne!(again["asked"]["plans"], serde_json::json!({}));
        // The arguments in `evaluate_with` give the same time, with the chip's file as with the run.
        let with: Vec<&str> =
            found["best"]["evaluate_with"].as_array().unwrap().iter().map(|a| a.as_str().unwrap()).collect();
        let file = format!("{run}/best.toml");
        for chip in [&file[..], run] {
            let call = [&["evaluate", model, "--chip", chip, "--format", "json"][..], &with].concat();
            assert_eq!(
                &run_coplace_in(dir.path(), &call).expect_json()["result"]["plan"]["step_s"],
                step,
                "{study} {chip}"
            );
        }
        // The run is also a chip for other models, and for `plan`.
        let other =
            run_coplace_in(dir.path(), &["evaluate", "bert-large", "--chip", run, "--format", "json"]).expect_json();
        assert_eq!(other["job"]["cluster"]["devices"], found["study"]["devices"], "{other}");
        let plans = run_coplace_in(
            dir.path(),
            &[
                "plan",
                model,
                "--chip",
                run,
                "--layer-split",
                "even",
                "--global-batch",
                "64",
                "--devices",
                "16",
                "--format",
                "json",
            ],
        );
        assert!(plans.expect_json()["plans"][0]["step_s"].as_f64().unwrap() > 0.0);
    }
    let toml = std::fs::read_to_string(dir.path().join("relatives/best.toml")).unwrap();
    assert!(
        toml.contains(
            "\"tensor.arrays_per_core\" = \"found by coplace search opt-350m, study relatives.toml, question "
        ),
        "{toml}"
    );
    assert!(dir.path().join("relatives/fabric.toml").is_file() && !dir.path().join("small/fabric.toml").exists());
    let design = &read_record(&dir.path().join("relatives"))["best"]["design"];
    assert!(design["dimensions"].as_str().unwrap().starts_with("links "), "{design}");
    assert!(design["area_mm2"].as_f64().unwrap() <= 700.0 && design["peak_power_w"].as_f64().unwrap() > 0.0);
}

#[test]
fn no_run_is_written_over_another_question_s_answer() {
    let dir = tempfile::tempdir().unwrap();
    let search = |more: &[&str]| {
        let call = [&["search", "opt-350m", "--study", "smoke", "--format", "json"][..], more].concat();
        run_coplace_in(dir.path(), &call)
    };
    let own = search(&[]).expect_json();
    let shorter = search(&["--sequence-length", "512"]).expect_json();
    assert_ne!(own["question"], shorter["question"]);
    let digest = shorter["question"].as_str().unwrap();
    let runs = dir.path().join("runs");
    assert_eq!(file_names(&runs), ["opt-350m-smoke".to_owned(), format!("opt-350m-smoke-{digest}")]);
    let before = std::fs::read(runs.join("opt-350m-smoke/record.json")).unwrap();
    let refused = search(&["--max-area", "200", "--out", "runs/opt-350m-smoke"]).expect_refusal();
    let why = "error: --out runs/opt-350m-smoke: holds the answer to another question, which is not overwritten; give \
        another directory, or remove it\n";
    assert_eq!(refused, why);
    assert_eq!(std::fs::read(runs.join("opt-350m-smoke/record.json")).unwrap(), before);
    // Every spelling of a question has the same digest and directory.
    assert_eq!(search(&[]).expect_json()["question"], own["question"]);
    let study = repository_path("search/studies/smoke.toml").display().to_string();
    let spelled = ["search", "facebook/opt-350m", "--study", &study, "--out", "runs/opt-350m-smoke"];
    let said = run_coplace_in(dir.path(), &spelled).expect_result();
    assert!(said.contains("record.json"), "{said}");
    // An answer with a weaker proof does not replace the run.
    let proven = || read_record(&runs.join("opt-350m-smoke"))["certificate"]["proof"].clone();
    assert_eq!(proven(), "proven");
    let weak = [&spelled[..], &["--time-limit", "0.001"]].concat();
    let said = run_coplace_in(dir.path(), &weak);
    assert!(said.stdout.contains("Not written: the run in runs/opt-350m-smoke has a gap of 0.0 %"), "{said:?}");
    // A larger tolerance is the same question, and does not replace the proven run either.
    run_coplace_in(dir.path(), &[&spelled[..], &["--within", "20"]].concat()).expect_result();
    assert_eq!(proven(), "proven");
    assert_eq!(file_names(&runs).len(), 2);
}

#[test]
fn one_chip_is_found_for_several_models_each_under_its_own_plan() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("small.toml"), small_study()).unwrap();
    let both = ["search", "llama2-7b", "opt-350m", "--study", "small.toml"];
    let text = run_coplace_in(dir.path(), &[&both[..], &["--details", "--out", "both"]].concat()).expect_result();
    assert!(text.starts_with("llama2-7b, opt-350m on one chip, each on a cluster of it"), "{text}");
    for part in [
        "Models\n======",
        "x reference",
        "times the reference's, over the models",
        "Comparison on opt-350m",
        "The gap over time",
    ] {
        assert!(text.contains(part), "{part} is missing:\n{text}");
    }
    let found = read_record(&dir.path().join("both"));
    let models = found["best"]["models"].as_array().unwrap();
    let times: Vec<f64> = models.iter().map(|of| of["times_reference"].as_f64().unwrap()).collect();
    let mean = (times[0] * times[1]).sqrt();
    assert!((found["certificate"]["best"].as_f64().unwrap() / mean - 1.0).abs() < 1e-9, "{times:?}");
    assert!((found["best"]["design"]["times_reference"].as_f64().unwrap() / mean - 1.0).abs() < 1e-9);
    // On its own best chip, each model is at least as fast as on the chip for both.
    for (model, times) in ["llama2-7b", "opt-350m"].iter().zip(&models[..]) {
        run_coplace_in(dir.path(), &["search", model, "--study", "small.toml", "--out", model]).expect_result();
        let alone = read_record(&dir.path().join(model))["best"]["step"]["time"]["tokens_per_s"].as_f64().unwrap();
        assert!(times["step"]["time"]["tokens_per_s"].as_f64().unwrap() <= alone * (1.0 + 1e-9), "{model}");
        // `evaluate` reproduces the plan on the chip of the run.
        let again =
            run_coplace_in(dir.path(), &["evaluate", model, "--chip", "both", "--format", "json"]).expect_json();
        assert_eq!(again["result"]["time"], times["step"]["time"], "{model}");
    }
    both_explained(dir.path(), mean);
    let mean = record_of(dir.path(), &[&both[..], &["--over", "mean", "--out", "mean"]].concat());
    let times: Vec<f64> =
        mean["best"]["models"].as_array().unwrap().iter().map(|of| of["times_reference"].as_f64().unwrap()).collect();
    assert!(
        (mean["certificate"]["best"].as_f64().unwrap() / ((times[0] + times[1]) / 2.0) - 1.0).abs() < 1e-9,
        "{times:?}"
    );
    let none = run_coplace_in(dir.path(), &["search", "--study", "small.toml"]).expect_refusal();
    assert!(none.contains("MODEL: none is given, and study small.toml names none; name one or several"), "{none}");
}

/// Checks the explanation of a run of two models. `best` is the value of the best design.
fn both_explained(dir: &Path, best: f64) {
    let explained = run_coplace_in(dir, &["explain", "both", "--format", "json"]).expect_json();
    let list = |of: &Value, key: &str| of[key].as_array().unwrap().clone();
    let models = list(&explained, "models");
    assert_eq!(models.iter().map(|of| of["model"].as_str().unwrap()).collect::<Vec<_>>(), ["llama2-7b", "opt-350m"]);
    let steps = list(&explained, "steps");
    assert!(!steps.is_empty() && explained.get("kernels").is_none());
    for (at, step) in steps.iter().enumerate() {
        let own: Vec<Option<f64>> = models.iter().map(|of| list(of, "steps")[at]["change"].as_f64()).collect();
        let [Some(one), Some(other)] = own[..] else {
            assert!(step["change"].is_null(), "{step}");
            continue;
        };
        // The effect on the mean is the geometric mean of the models' effects.
        let mean = ((1.0 + one) * (1.0 + other)).sqrt();
        assert!((1.0 + step["change"].as_f64().unwrap() - mean).abs() < 1e-9, "{step}");
        assert!((step["value"].as_f64().unwrap() / (best * mean) - 1.0).abs() < 1e-9, "{step}");
        if step["limits"] == "within" {
            assert!(mean <= 1.0 + 1e-9, "a neighbour is better than the best: {step}");
        }
    }
    for of in &models {
        assert!(!list(of, "kernels").is_empty() && !list(of, "time_shares").is_empty());
        assert_eq!(list(of, "worth").len(), list(&explained, "worth").len());
    }
    let text = run_coplace_in(dir, &["explain", "both"]).expect_result();
    for part in ["llama2-7b, 4,096 tokens", "opt-350m, 2,048 tokens", "Best: ", "its value (% better)"] {
        assert!(text.contains(part), "{part} is missing:\n{text}");
    }
}

fn record_of(dir: &Path, arguments: &[&str]) -> Value {
    run_coplace_in(dir, &[arguments, &["--format", "json"]].concat()).expect_json()
}

#[test]
fn a_search_that_is_stopped_tells_its_best_and_its_gap_and_how_the_gap_shrank() {
    let dir = tempfile::tempdir().unwrap();
    let asked = [
        "search",
        "llama2-7b",
        "--study",
        "tpu",
        "--devices",
        "64",
        "--global-batch",
        "256",
        "--time-limit",
        "1",
        "--out",
        "a",
    ];
    let text = run_coplace_in(dir.path(), &asked).expect_result();
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("stopped by --time-limit 1"), "{text}");
    let found = read_record(&dir.path().join("a"));
    let certificate = &found["certificate"];
    // A slow machine may stop before it has a bound.
    let gap = certificate["gap"].as_f64().map_or(certificate["bound"].is_null(), |gap| gap > 0.0);
    assert!(certificate["open"].as_u64().unwrap() > 0 && gap, "{certificate}");
    let table = std::fs::read_to_string(dir.path().join("a/progress.csv")).unwrap();
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split(',').collect()).collect();
    assert_eq!(rows[0][..5], ["seconds", "best", "bound", "unit", "gap"]);
    let last = rows.last().unwrap();
    assert_eq!(last[1].parse::<f64>().unwrap(), certificate["best"].as_f64().unwrap(), "{table}");
    assert!(rows.iter().all(|row| row.len() == rows[0].len()), "{table}");
    let refused = run_coplace_in(dir.path(), &["search", "llama2-7b", "--time-limit", "0"]).expect_refusal();
    assert!(refused.contains("--time-limit 0: must be above 0"), "{refused}");
}

#[test]
fn freedoms_are_compared_at_no_fewer_evaluations() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("small.toml"), small_study()).unwrap();
    let with = |more: &[&str]| {
        run_coplace_in(dir.path(), &[&["compare", "--freedoms", "llama2-7b", "--study", "small.toml"], more].concat())
    };
    let answer = with(&["--format", "json", "--out", "figures"]).expect_json();
    let model = &answer["models"][0];
    let times: Vec<f64> = model["times_first"].as_array().unwrap().iter().map(|t| t.as_f64().unwrap()).collect();
    let [expert, plan, bayesian, chip, both, _, built] = times[..] else { panic!("{times:?}") };
    // More freedom is never worse, and no evaluated chip is better than the best.
    assert!(
        expert == 1.0 && plan >= 1.0 && bayesian <= chip && chip <= both && plan <= both && built > 0.0,
        "{times:?}"
    );
    let evaluations = |by: &str| model["evaluations"][by].as_u64().unwrap();
    assert!(evaluations("joint") > 0 && evaluations("bayesian") >= evaluations("joint").max(32));
    assert!(model["gap"].as_f64().unwrap() >= 0.0);
    assert_eq!(answer["over_all"][4]["times_first"], model["times_first"][4]);
    assert_eq!(file_names(&dir.path().join("figures")), ["freedoms.png", "freedoms.svg"]);
    assert_eq!(with(&["--format", "json"]).expect_json(), answer, "the same for a seed");
    let text = with(&[]).expect_result();
    assert!(text.contains("chip and plan together") && text.contains("evaluations"), "{text}");
    let given = with(&["--expert", "4,2,128", "--evaluations", "3", "--format", "json"]).expect_json();
    assert_eq!(given["models"][0]["evaluations"]["bayesian"], 3);
    assert!(given["models"][0]["expert"].as_str().unwrap().starts_with("p 4, t 2, d 128"), "{given}");
    for (words, part) in [
        (vec!["--expert", "4,2"], "write it like 8,1,128"),
        (vec!["--expert", "4,0,1"], "each from 1"),
        (vec!["--expert", "3,5,7"], "p 3, t 5, d 7"),
    ] {
        let refused = with(&words).expect_refusal();
        assert!(refused.contains(part), "{words:?}: {refused}");
    }
    let unknown =
        run_coplace_in(dir.path(), &["compare", "--freedoms", "llama3-8b", "--study", "small.toml"]).expect_refusal();
    assert!(unknown.contains("--expert PIPELINE,TENSOR,DATA"), "{unknown}");
    // The batch does not divide among 85 ranks. PHAZE adds sequences to fill them, and only the sequences of the batch
    // count.
    let filled =
        run_coplace_in(dir.path(), &["compare", "--freedoms", "opt-350m", "--study", "small.toml", "--format", "json"])
            .expect_json();
    let model = &filled["models"][0];
    assert!(model["expert"].as_str().unwrap().contains("69 of 4165 sequences fill up the 85 ranks"), "{model}");
    let first = &model["entries"][0];
    let number = |key: &str| first[key].as_f64().unwrap();
    assert!((number("throughput_sequences_per_s") * number("step_time_s") / 4096.0 - 1.0).abs() < 1e-12, "{model}");
    let [expert, .., both, _, _] = model["times_first"].as_array().unwrap().as_slice() else { panic!("{model}") };
    assert!(expert.as_f64() == Some(1.0) && both.as_f64().unwrap() > 1.0, "{model}");
}

#[test]
fn a_batch_that_the_study_s_plans_cannot_have_is_cured_by_flags() {
    let dir = tempfile::tempdir().unwrap();
    let refused = run_coplace_in(dir.path(), &["search", "llama2-7b", "--study", "smoke", "--global-batch", "7"])
        .expect_refusal();
    assert_eq!(
        refused,
        "error: smoke: plan: pp = 1024: must be at most 34: the 32 layers, one for every stage, and the embedding's \
        and the head's; use --global-batch 8, or --devices 1008 or 1064, or other degrees in the study's [plan]\n"
    );
    // The suggested cure works.
    run_coplace_in(
        dir.path(),
        &["search", "llama2-7b", "--study", "smoke", "--global-batch", "7", "--devices", "1008"],
    )
    .expect_result();
}

#[test]
fn a_run_without_a_chip_is_named_before_the_flags_that_it_would_bring() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir(dir.path().join("empty")).unwrap();
    let tiny = ["search", "llama3-70b", "--study", "smoke", "--devices", "1", "--global-batch", "1", "--out", "none"];
    run_coplace_in(dir.path(), &tiny).expect_result();
    for verb in ["plan", "evaluate"] {
        for (run, why) in [("empty", "empty"), ("none", "none: ")] {
            let refused = run_coplace_in(dir.path(), &[verb, "llama3-8b", "--chip", run]).expect_refusal();
            assert!(refused.starts_with(&format!("error: {why}")) && !refused.contains("--fabric"), "{refused}");
        }
    }
    let chip = run_coplace_in(dir.path(), &["plan", "llama3-8b", "--chip", "tpu_v4"]).expect_refusal();
    assert!(chip.contains("--fabric is missing") && chip.contains("tpu_v4_ici"), "{chip}");
}
