//! Searches for several models: their fronts, and the verbs that read their runs.

use crate::explain::csv_rows;
use crate::search::read_record;
use crate::support::{run_coplace_in, small_study};
use std::collections::BTreeMap;
use std::path::Path;

/// A study of sixteen relatives of one chip. Each model is trained on its own cluster.
pub const STUDY: &str = r#"
description = "A test"
source = "none"
[space]
base_chip = "h100_80gb_sxm"
[space.dimensions]
hbm_stacks = [3, 5]
"area.hbm_stacks" = "hbm_stacks"
"memory.hbm.capacity_gib" = "16 * hbm_stacks"
"memory.hbm.read_gb_per_s" = "600 * hbm_stacks"
"memory.hbm.write_gb_per_s" = "600 * hbm_stacks"
sms = [66, 132]
"area.cores" = "sms"
"tensor.cores" = "sms"
"vector.cores" = "sms"
clock_mhz = [1200, 1500]
"tensor.columns" = [16, 32]
"energy.static_w" = "0.12 * area_mm2"
[cluster]
devices = 8
fabric = "eos_ndr400x8"
global_batch_sequences = 32
[plan]
context_parallel = [1]
expert_parallel = [1]
virtual_stages = [1]
zero = [1]
schedules = ["1f1b"]
recompute = ["none", "full"]
layer_split = "even"
micro_batch_sequences = [1, 2]
attention = "fused"
optimizer = "adam"
[limits]
evaluations = 1000
"#;

type Row = BTreeMap<String, String>;
type Value<'a> = &'a dyn Fn(&Row) -> f64;

const MODELS: [&str; 2] = ["opt-350m", "llama2-7b"];
/// The years of operation, and the USD of energy per W over these years.
const YEARS: (&str, f64) = ("3", 3.0 * 8.766 * 0.9 * 1.1 * 0.08);

/// Sweeps the study for each model alone, and returns the rows.
fn swept(dir: &Path) -> [Vec<Row>; 2] {
    MODELS.map(|model| {
        run_coplace_in(dir, &["sweep", model, "--study", "s.toml", "--out", &format!("sweep-{model}")]).expect_result();
        csv_rows(&std::fs::read_to_string(dir.join(format!("sweep-{model}/sweep.csv"))).unwrap())
    })
}

#[test]
fn fronts_over_several_models_are_of_what_is_asked_for_and_exact() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("s.toml"), STUDY).unwrap();
    let swept = swept(dir.path());
    let number = |row: &Row, key: &str| row[key].parse::<f64>().unwrap();
    // Returns the geometric mean over both models. A search's value, or its inverse if more is better, differs from it
    // by a factor that depends on the reference.
    let mean = |at: usize, of: Value<'_>| (of(&swept[0][at]) * of(&swept[1][at])).sqrt();
    let energy = |row: &Row| number(row, "energy_per_token_j");
    let paid = |row: &Row| {
        number(row, "cost_usd") * number(row, "step_time_s") + YEARS.1 / 8.0 * number(row, "energy_per_step_j")
    };
    let seconds = |row: &Row| number(row, "step_time_s");
    let asked: [(&[&str], &str, Value<'_>, &str); 3] = [
        (
            &["--objective", "energy-per-token", "--front", "area"],
            "energy_times_reference",
            &energy,
            "energy per token against area",
        ),
        (
            &["--objective", "per-dollar", "--years", YEARS.0, "--front", "area"],
            "times_reference_per_usd",
            &paid,
            "throughput per USD against area",
        ),
        (&["--front", "energy"], "times_reference", &seconds, "throughput against energy"),
    ];
    for (flags, column, value, title) in asked {
        let call = [&["search", MODELS[0], MODELS[1], "--study", "s.toml", "--out", column][..], flags].concat();
        run_coplace_in(dir.path(), &call).expect_result();
        let cost = |at: usize| if flags[1] == "energy" { mean(at, &energy) } else { number(&swept[0][at], "area_mm2") };
        let all: Vec<(f64, f64)> = (0..swept[0].len())
            .filter(|at| swept.iter().all(|rows| rows[*at]["outcome"] == "evaluated"))
            .map(|at| (cost(at), mean(at, value)))
            .collect();
        let better = |a: &(f64, f64), b: &(f64, f64)| a != b && a.0 <= b.0 && a.1 <= b.1;
        let mut front: Vec<(f64, f64)> =
            all.iter().filter(|own| !all.iter().any(|other| better(other, own))).copied().collect();
        front.sort_by(|a, b| a.0.total_cmp(&b.0));
        front.dedup();
        assert!(front.len() > 1 && front.len() < all.len(), "{column}: {front:?}");
        let drawn =
            run_coplace_in(dir.path(), &["pareto", column, "--out", "figures", "--format", "json"]).expect_json();
        let found: Vec<f64> = drawn["runs"][0]["front"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| {
                row[column].as_f64().map(|value| if column.starts_with("times") { 1.0 / value } else { value }).unwrap()
            })
            .collect();
        assert_eq!(found.len(), front.len(), "{column}: {front:?}, found {found:?}");
        let first = found[0];
        for (found, own) in found.iter().zip(&front) {
            let [one, other] = [found / own.1, first / front[0].1];
            assert!((one / other - 1.0).abs() < 1e-9, "{column}: {front:?}, found {found}");
        }
        let kept = read_record(&dir.path().join(column));
        assert_eq!(kept["front"]["designs"].as_array().unwrap().len(), front.len());
        assert_eq!(kept["front"]["quantities"][0], kept["certificate"]["objective"]);
        let svg = std::fs::read_to_string(dir.path().join(column).join("pareto.svg")).unwrap();
        assert!(svg.contains(title) && svg.contains("times the reference"), "{column}: {title}");
    }
}

fn searched(dir: &Path, models: &[&str], more: &[&str]) {
    run_coplace_in(dir, &[&["search"][..], models, &["--study", "s.toml"], more].concat()).expect_result();
}

#[test]
fn runs_of_several_models_are_compared_by_their_mean_and_on_each() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("s.toml"), STUDY).unwrap();
    searched(dir.path(), &MODELS, &["--out", "a"]);
    searched(dir.path(), &MODELS, &["--max-area", "600", "--out", "b"]);
    searched(dir.path(), &MODELS[..1], &["--out", "alone"]);
    let compare = |runs: &[&str]| run_coplace_in(dir.path(), &[&["compare"][..], runs].concat());
    let text = compare(&["a", "--details"]).expect_result();
    for part in [
        "Mean over the models\n",
        "x reference: the geometric mean of the models' throughputs relative to h100_80gb_sxm",
        "On opt-350m, 2,048 tokens",
        "On llama2-7b, 4,096 tokens",
    ] {
        assert!(text.contains(part), "{part} is missing:\n{text}");
    }
    assert!(!text.contains("no plan fits"), "{text}");
    let both = compare(&["a", "b", "--format", "json"]).expect_json();
    let entries = both["entries"].as_array().unwrap();
    for run in ["a", "b"] {
        let found = read_record(&dir.path().join(run));
        let entry = entries.iter().find(|entry| entry["label"] == format!("{run}: best found")).unwrap();
        assert_eq!(entry["times_reference"], found["best"]["design"]["times_reference"]);
        for (at, model) in MODELS.iter().enumerate() {
            assert_eq!(both["models"][at]["model"], *model);
            let on = both["models"][at]["entries"].as_array().unwrap();
            let own = on.iter().find(|entry| entry["label"] == format!("{run}: best found")).unwrap();
            assert_eq!(own["throughput_tokens_per_s"], found["best"]["models"][at]["step"]["time"]["tokens_per_s"]);
        }
    }
    // A baseline's value is the mean of its values for the models.
    let tpu = |entries: &serde_json::Value| {
        let entries = entries.as_array().unwrap();
        entries.iter().find(|entry| entry["label"].as_str().unwrap().starts_with("a: tpu_v4, ideal")).unwrap().clone()
    };
    let found = read_record(&dir.path().join("a"));
    let times = |at: usize| {
        tpu(&both["models"][at]["entries"])["throughput_tokens_per_s"].as_f64().unwrap()
            / found["best"]["models"][at]["reference_tokens_per_s"].as_f64().unwrap()
    };
    let mean = (times(0) * times(1)).sqrt();
    assert!((tpu(&both["entries"])["times_reference"].as_f64().unwrap() / mean - 1.0).abs() < 1e-12);
    for call in [&["compare", "a", "alone"][..], &["pareto", "alone", "a", "--out", "figures"]] {
        let refused = run_coplace_in(dir.path(), call).expect_refusal();
        let why = "a (of opt-350m, llama2-7b) is a run of several models and alone (of opt-350m) of one";
        assert!(refused.contains(why) && refused.contains("coplace evaluate MODEL --chip a"), "{refused}");
    }
    searched(dir.path(), &[MODELS[1], MODELS[0]], &["--out", "others"]);
    let refused = compare(&["a", "others"]).expect_refusal();
    assert!(refused.contains("their rates have no common scale; give runs of the same models"), "{refused}");
}

#[test]
fn means_over_other_references_are_brought_to_one() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("s.toml"), STUDY).unwrap();
    searched(dir.path(), &MODELS, &["--out", "a"]);
    std::fs::write(dir.path().join("s.toml"), STUDY.replace("[space]\n", "[space]\nreference_chip = \"tpu_v4\"\n"))
        .unwrap();
    searched(dir.path(), &MODELS, &["--out", "b"]);
    let runs = run_coplace_in(dir.path(), &["pareto", "a", "b", "--out", "figures", "--format", "json"]).expect_json()
        ["runs"]
        .clone();
    let column = |run: usize, key: &str| {
        let front = runs[run]["front"].as_array().unwrap();
        front.iter().map(|row| row[key].as_f64().unwrap()).collect::<Vec<_>>()
    };
    for key in ["times_reference", "energy_times_reference"] {
        let (own, other) = (column(0, key), column(1, key));
        assert!(own.len() > 1 && own.len() == other.len());
        assert!(own.iter().zip(&other).all(|(a, b)| (a / b - 1.0).abs() < 1e-9), "{key}: {own:?}, {other:?}");
    }
    assert!((runs[0]["hypervolume"].as_f64().unwrap() - runs[1]["hypervolume"].as_f64().unwrap()).abs() < 1e-9);
    let best = |run: &str| read_record(&dir.path().join(run))["certificate"]["best"].as_f64().unwrap();
    assert!((best("a") / best("b") - 1.0).abs() > 0.1, "the references are alike");
    searched(dir.path(), &MODELS, &["--over", "mean", "--out", "mean"]);
    let refused = run_coplace_in(dir.path(), &["pareto", "a", "mean", "--out", "figures"]).expect_refusal();
    assert!(refused.contains("(geomean, mean)"), "{refused}");
}

#[test]
fn runs_of_different_processes_say_them() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("s.toml"), STUDY).unwrap();
    for node in ["n4", "n7"] {
        searched(dir.path(), &MODELS[..1], &["--node", node, "--out", node]);
    }
    let text = run_coplace_in(dir.path(), &["pareto", "n4", "n7", "--out", "figures"]).expect_result();
    for part in
        ["designs of 4 nm\n", "designs of 7 nm\n", "Areas belong to different process nodes and cannot be compared."]
    {
        assert!(text.contains(part), "{part} is missing:\n{text}");
    }
    let svg = std::fs::read_to_string(dir.path().join("figures/pareto.svg")).unwrap();
    for part in ["n4 (4 nm): Pareto front", "n7 (7 nm): Pareto front", "n4: best found (4 nm)", "n7: best found (7 nm)"]
    {
        assert!(svg.split_whitespace().collect::<Vec<_>>().join(" ").contains(part), "{part}");
    }
    let one = run_coplace_in(dir.path(), &["pareto", "n4", "n4", "--out", "figures"]).expect_result();
    assert!(!one.contains(" of 4 nm") && !one.contains("different processes"), "{one}");
}

#[test]
fn the_last_line_of_the_gap_over_time_counts_what_the_proof_counts() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("s.toml"), STUDY).unwrap();
    std::fs::write(dir.path().join("small.toml"), small_study()).unwrap();
    let relatives = ["search", "llama2-7b", "--study", "s.toml", "--max-area", "700", "--objective", "per-watt"];
    let scarce = ["search", "llama3-70b", "--study", "s.toml", "--devices", "16", "--global-batch", "16"];
    for call in [&relatives[..], &scarce, &["search", "llama2-7b", "--study", "small.toml"]] {
        let run = dir.path().join("run");
        let text = run_coplace_in(dir.path(), &[call, &["--details", "--out", "run"]].concat()).expect_result();
        let (found, table) = (read_record(&run), std::fs::read_to_string(run.join("progress.csv")).unwrap());
        let of = |key: &str| found["certificate"][key].as_u64().unwrap_or(0);
        let mut lines = table.lines().map(|line| line.split(',').collect::<Vec<_>>());
        let (head, last) = (lines.next().unwrap(), lines.next_back().unwrap());
        let column = |name: &str| last[head.iter().position(|column| *column == name).unwrap()].parse::<u64>().unwrap();
        let boxes = ["discarded_boxes_peaks", "discarded_boxes_mapped"].map(column).iter().sum::<u64>();
        let alone =
            ["peaks", "mapped", "plans"].map(|by| column(&format!("discarded_designs_{by}"))).iter().sum::<u64>();
        let outside = ["over_area", "over_power", "over_cost", "outside_hbm", "unbuildable", "no_chip"]
            .map(of)
            .iter()
            .sum::<u64>();
        let counted = [column("evaluated"), boxes, boxes + alone, column("infeasible"), column("outside")];
        assert_eq!(
            counted,
            [of("evaluated"), of("pruned_in_boxes"), of("pruned"), of("infeasible"), outside],
            "{call:?}: {table}"
        );
        assert_eq!(counted[0] + counted[2] + counted[3] + counted[4], of("designs"), "{call:?}: {table}");
        assert!(text.contains("infeasible  outside\n"), "{text}");
        std::fs::remove_dir_all(&run).unwrap();
    }
}
