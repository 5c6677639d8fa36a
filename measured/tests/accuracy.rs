//! Pins the error on each carried set of measurements (`reference`, each row with its source). A change that
//! makes an error worse by more than a tenth must update `reference/errors.csv`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use coplace_measured::validate::{Dataset, ValidateOptions, validate_file};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Largest factor on an error before the file must be updated.
const TENTH: f64 = 1.1;
/// Rounding of the figures in the file, in percent.
const ROUNDING: f64 = 0.1;

fn measured(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("reference").join(name)
}

#[test]
fn no_error_on_measured_data_has_grown_by_a_tenth() {
    let text = std::fs::read_to_string(measured("errors.csv")).unwrap();
    let mut lines = text.lines();
    assert_eq!(lines.next(), Some("file,group,mean_error_pct"));
    let mut pinned: BTreeMap<(String, String), f64> = BTreeMap::new();
    for line in lines {
        let cells: Vec<&str> = line.split(',').collect();
        pinned.insert((cells[0].into(), cells[1].into()), cells[2].parse().unwrap());
    }
    let mut now: BTreeMap<(String, String), f64> = BTreeMap::new();
    let files = [
        "gpu_kernels.csv",
        "gpu_collectives.csv",
        "collectives.csv",
        "stream_contention.csv",
        "training_runs.csv",
        "training_runs_2.csv",
        "memory_peaks.csv",
        "serving.csv",
        "pytorch_h100_h200/gpu_kernels.csv",
        "pytorch_h100_h200/serving_kernels.csv",
        "pytorch_h100_h200/step_kernels.csv",
        "pytorch_h100_h200/gpu_energy.csv",
        "pytorch_h100_h200/decode_passes.csv",
        "pytorch_h100_h200/stream_contention.csv",
        "pytorch_h100_h200/training_runs.csv",
        "pytorch_h100_h200/finetuning_peaks.csv",
    ];
    for name in files {
        let report = validate_file(&measured(name), &ValidateOptions::default()).unwrap();
        // Three data sets have rows without a prediction, each of which is reported: training runs of plans that are
        // not modelled, serving points without a load, and energies with operands of zeros. All other rows are
        // predicted.
        let partly = matches!(report.dataset, Dataset::TrainingRuns | Dataset::Serving | Dataset::KernelEnergy);
        let several = report.dataset.target_columns().len() > 1;
        assert!(
            partly || (report.row_errors.is_empty() && report.unpredicted.is_empty()),
            "{name}: {:?}",
            report.unpredicted
        );
        for group in &report.groups {
            let (called, error) = match several {
                true => (format!("{} {}", group.group, group.quantity), group.mape_pct),
                false => (group.group.clone(), group.mape_pct),
            };
            if let Some(error) = error {
                now.insert((name.to_owned(), called), error);
            }
        }
        // The fraction of runs out of memory that are predicted to fit, and the fraction of fitting runs that are not.
        for told in &report.out_of_memory {
            let part = |wrong: usize, of: usize| 100.0 * wrong as f64 / of.max(1) as f64;
            now.insert(
                (name.to_owned(), format!("{} missed", told.group)),
                part(told.failed - told.caught, told.failed),
            );
            now.insert((name.to_owned(), format!("{} alarms", told.group)), part(told.false_alarms, told.ran));
        }
    }
    let found: String = now.iter().map(|((file, group), error)| format!("{file},{group},{error:.1}\n")).collect();
    assert_eq!(now.keys().collect::<Vec<_>>(), pinned.keys().collect::<Vec<_>>(), "groups differ; found\n{found}");
    for (key, error) in &now {
        let limit = pinned[key] * TENTH + ROUNDING;
        assert!(
            *error <= limit,
            "{key:?}: {error:.1} % where {:.1} % is pinned; if it has to be, write it there:\n{found}",
            pinned[key]
        );
    }
}
