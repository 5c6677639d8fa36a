//! The error on each carried set of measurements (`reference/measured`, each row with its source) is pinned: a change that makes one
//! worse by more than a tenth has to say so in `reference/measured/errors.csv`.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use coplace_results::validate::{Options, file};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// What an error may grow by before the file has to say so.
const TENTH: f64 = 1.1;
/// Rounding of the figures in the file, in percent.
const ROUNDING: f64 = 0.1;

fn measured(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("reference/measured").join(name)
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
    for name in ["gpu_kernels.csv", "gpu_collectives.csv", "collectives.csv", "stream_contention.csv"] {
        let report = file(&measured(name), &Options::default()).unwrap();
        assert!(report.row_errors.is_empty() && report.unpredicted.is_empty(), "{name}: {:?}", report.unpredicted);
        for group in &report.groups {
            now.insert((name.to_owned(), group.group.clone()), group.mape_pct.unwrap());
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
