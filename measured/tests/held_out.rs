//! Errors on held-out rows: the carried table belongs to today's model, and the code that makes it fits and predicts.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use coplace_measured::evidence::HoldOutScheme;
use coplace_measured::validate::held_out::{
    AloneResidual, calibrate_stack, held_out_models, kernel_residuals, run_residuals,
};
use coplace_measured::validate::{ValidateOptions, validate_file};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use step::SoftwareStack;

fn reference(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("reference").join(name)
}

/// Copies the selected rows of a carried file into a file.
fn part(directory: &Path, name: &str, keep: impl Fn(usize, &str) -> bool) -> PathBuf {
    let text = std::fs::read_to_string(reference(name)).unwrap();
    let (head, rows) = text.split_once('\n').unwrap();
    let kept: Vec<&str> = rows.lines().enumerate().filter(|(at, line)| keep(*at, line)).map(|(_, line)| line).collect();
    let path = directory.join(name);
    std::fs::write(&path, format!("{head}\n{}\n", kept.join("\n"))).unwrap();
    path
}

/// Largest mean difference between predictions and the carried table, in logarithms. If the model moves further, the
/// table is made again.
const MOVED: f64 = 0.02;

#[test]
fn the_carried_errors_are_those_of_the_model() {
    let text = std::fs::read_to_string(reference("residuals.csv")).unwrap();
    let cells = text.lines().skip(1).map(|line| line.split(',').collect::<Vec<_>>());
    let carried: BTreeMap<(String, String), f64> =
        cells.map(|cells| ((cells[2].to_owned(), cells[0].to_owned()), cells[13].parse().unwrap())).collect();
    let directory = tempfile::tempdir().unwrap();
    for name in ["training_runs.csv", "training_runs_2.csv", "memory_peaks.csv"] {
        let report =
            validate_file(&part(directory.path(), name, |at, _| at % 11 == 0), &ValidateOptions::default()).unwrap();
        let mut apart = Vec::new();
        for p in report.predictions.iter().filter(|p| p.quantity != "fits") {
            let Some(error) = p
                .measured
                .and_then(|m| Some((m / p.predicted).ln() - carried.get(&(p.id.clone(), p.quantity.to_owned()))?))
            else {
                continue;
            };
            apart.push(error.abs());
        }
        let mean = apart.iter().sum::<f64>() / apart.len() as f64;
        assert!(apart.len() >= 8, "{name}: {} rows of the table", apart.len());
        assert!(
            mean < MOVED,
            "{name}: predictions are {mean:.3} from the carried table's: make it again with `coplace validate --held-out` (reference/measured/README.md)"
        );
    }
}

/// Rows whose software is a stack with options of their own are held out with the others of that stack.
#[test]
fn a_row_with_options_is_one_of_its_stack() {
    let directory = tempfile::tempdir().unwrap();
    let file = part(directory.path(), "training_runs.csv", |_, line| {
        line.starts_with("titan_0") || line.starts_with("titan_30")
    });
    let residuals = run_residuals(&file, &ValidateOptions::default()).unwrap();
    let stack_of = |id: &str| residuals.iter().find(|one| one.id == id).unwrap().facts.stack.name.clone();
    assert_eq!(stack_of("titan_30"), "torchtitan");
}

/// Copies up to `rows` of nanotron's runs of one model on one number of nodes into a file.
fn few(directory: &Path, rows: usize) -> PathBuf {
    let runs = std::cell::Cell::new(0);
    part(directory, "training_runs_2.csv", |_, line| {
        let is = line.contains("nanotron_h100") && line.contains(",8,8,") && runs.get() < rows;
        runs.set(runs.get() + usize::from(is));
        is
    })
}

#[test]
fn what_is_held_out_is_predicted_without_it() {
    let directory = tempfile::tempdir().unwrap();
    let rows = part(directory.path(), "training_runs.csv", |_, line| line.contains("maxtext_tables"));
    let found = run_residuals(&rows, &ValidateOptions::default()).unwrap();
    let steps: Vec<_> = found.iter().filter(|r| r.quantity == "iteration_s").collect();
    assert_eq!(steps.len(), 6);
    let mean = |error: &dyn Fn(usize) -> Option<f64>| {
        let errors: Vec<f64> = (0..steps.len()).filter_map(error).map(f64::abs).collect();
        errors.iter().sum::<f64>() / errors.len() as f64
    };
    let (in_sample, unfitted) =
        (mean(&|i| Some(steps[i].in_sample)), mean(&|i| steps[i].held_out[HoldOutScheme::Stack as usize]));
    let by_model = mean(&|i| steps[i].held_out[HoldOutScheme::Model as usize]);
    assert!(in_sample < by_model && by_model < unfitted, "{in_sample} {by_model} {unfitted}");
    let (a, b) = (steps[0], steps[1]);
    assert!(a.id != b.id && a.facts.stack == b.facts.stack && a.facts.chips >= 64, "{a:?} {b:?}");
}

#[test]
fn a_stack_is_fitted_to_a_few_runs_of_a_slower_machine() {
    let directory = tempfile::tempdir().unwrap();
    let path = few(directory.path(), 6);
    // The same runs, a quarter slower than the built-in stack predicts. The fit must find the cause.
    let report = validate_file(&path, &ValidateOptions::default()).unwrap();
    let mut table = csv::Reader::from_path(&path).unwrap();
    let head = table.headers().unwrap().clone();
    let at = |key: &str| head.iter().position(|name| name == key).unwrap();
    let mut slower = csv::Writer::from_path(directory.path().join("slower.csv")).unwrap();
    slower.write_record(&head).unwrap();
    for row in table.records().map(Result::unwrap) {
        let Some(p) = report.predictions.iter().find(|p| p.quantity == "iteration_s" && p.id == row[at("id")]) else {
            continue;
        };
        let cell = |(i, cell): (usize, &str)| {
            if i == at("iteration_s") { (1.25 * p.predicted).to_string() } else { cell.to_owned() }
        };
        slower.write_record(row.iter().enumerate().map(cell)).unwrap();
    }
    slower.flush().unwrap();
    drop(slower);
    let base = SoftwareStack::load("nanotron").unwrap();
    let fitted =
        calibrate_stack(&directory.path().join("slower.csv"), &base, "ours", &ValidateOptions::default()).unwrap();
    let steps = fitted.parts.iter().find(|part| part.quantity == "iteration_s").unwrap();
    assert!((steps.before_pct - 20.0).abs() < 0.5 && steps.after_pct < 5.0 && steps.left_out_pct < 10.0, "{steps:?}");
    assert!(steps.scalars.iter().any(|s| s.determined) && steps.scalars.iter().any(|s| !s.determined), "{steps:?}");
    for scalar in &steps.scalars {
        let kept = (scalar.after - scalar.before).abs() <= 1e-3 * scalar.before.abs() + 1e-9;
        assert!(scalar.determined || kept, "{scalar:?}");
    }
    // The written file names its source and can be read.
    let written = directory.path().join("ours.toml");
    std::fs::write(&written, fitted.stack.to_toml_string().unwrap()).unwrap();
    let read = SoftwareStack::load(&written.display().to_string()).unwrap();
    assert_eq!((read.name.as_str(), &read), ("ours", &fitted.stack));
    assert!(
        read.sources.values().any(|source| source.starts_with("coplace calibrate: fitted on 6 rows")),
        "{:?}",
        read.sources
    );
    // The stack keeps the name of the software that it was calibrated from, even if its launch cost changed.
    assert_eq!(read.calibrated_from.as_deref(), Some("nanotron"));
}

#[test]
fn a_chip_is_predicted_by_the_scalars_of_another() {
    let directory = tempfile::tempdir().unwrap();
    let rows =
        part(directory.path(), "gpu_kernels.csv", |_, line| line.contains("_sxm,gemm,") && line.contains(",bf16,"));
    let found = kernel_residuals(&rows, &ValidateOptions::default()).unwrap();
    let mape = |chip: &str, error: &dyn Fn(&AloneResidual) -> Option<f64>| {
        let of_chip = found.iter().filter(|r| r.facts.place == chip && r.facts.kind == "gemm bf16");
        let errors: Vec<f64> = of_chip.filter_map(error).map(|e| (-e).exp_m1().abs() * 100.0).collect();
        assert!(errors.len() > 20, "{chip}");
        errors.iter().sum::<f64>() / errors.len() as f64
    };
    for chip in ["a100_80gb_sxm", "h100_80gb_sxm"] {
        let (in_sample, rows, other) =
            (mape(chip, &|r| Some(r.in_sample)), mape(chip, &|r| r.rows), mape(chip, &|r| r.chip));
        assert!(in_sample < 9.0 && rows < 12.0 && other < 15.0, "{chip}: {in_sample:.1} {rows:.1} {other:.1} %");
        assert!(in_sample < other, "{chip}");
    }
}

/// An engine's scalars carry over to a model that they were not fitted on. The errors are largest for gpt-oss, whose
/// experts are converted on their way to the arrays.
#[test]
fn engines_predict_a_model_that_they_were_not_fitted_on() {
    let directory = tempfile::tempdir().unwrap();
    let file = part(directory.path(), "serving.csv", |at, _| at % 3 == 0);
    let found = held_out_models(&file, &ValidateOptions::default()).unwrap();
    let told: Vec<String> = found.iter().map(|f| format!("{f:?}")).collect();
    assert_eq!(found.len(), 6, "{told:#?}");
    // TensorRT-LLM's Qwen3, Llama and gpt-oss, then vLLM's: mean errors in percent when they were pinned.
    for (f, pinned) in found.iter().zip([11.4, 19.1, 25.0, 6.3, 7.5, 49.9]) {
        assert!(f.between_pct[1] < 1.1 * pinned, "{f:?}, pinned {pinned}, of {told:#?}");
    }
}
