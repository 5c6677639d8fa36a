//! The detection of runs that do not fit, per group of rows.

use super::ValuePrediction;
use serde::Serialize;
use std::collections::BTreeMap;

/// The column of the outcome: 1 if the run fitted, 0 if it ran out of memory.
pub(super) const FITS: &str = "fits";

/// The out-of-memory predictions of one group. Precision is `None` if no row is predicted not to fit. Recall is `None`
/// if no row ran out of memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OutOfMemoryScore {
    /// The group.
    pub group: String,
    /// Number of rows that ran out of memory.
    pub failed: usize,
    /// Number of rows that ran out of memory and were predicted not to fit.
    pub caught: usize,
    /// Number of rows that ran, false alarms included.
    pub ran: usize,
    /// Number of rows that ran and were predicted not to fit.
    pub false_alarms: usize,
    /// Caught rows divided by all rows predicted not to fit.
    pub precision: Option<f64>,
    /// Caught rows divided by all rows that failed.
    pub recall: Option<f64>,
    /// The ids of false alarms and of missed failures.
    pub wrong: Vec<String>,
}

/// Returns one score for each group that has rows with a measured and a predicted outcome.
pub(super) fn score_groups(predictions: &[ValuePrediction]) -> Vec<OutOfMemoryScore> {
    let mut members: BTreeMap<&str, Vec<(&str, bool, bool)>> = BTreeMap::new();
    for p in predictions.iter().filter(|p| p.quantity == FITS) {
        if let Some(measured) = p.measured {
            members.entry(&p.group).or_default().push((&p.id, measured < 0.5, p.predicted < 0.5));
        }
    }
    members.into_iter().map(|(group, rows)| score_rows(group, &rows)).collect()
}

/// Scores rows of (id, failed, predicted to fail).
fn score_rows(group: &str, rows: &[(&str, bool, bool)]) -> OutOfMemoryScore {
    let count = |failed, predicted| rows.iter().filter(|(_, f, p)| *f == failed && *p == predicted).count();
    let (caught, missed, false_alarms, ran) =
        (count(true, true), count(true, false), count(false, true), count(false, false));
    let share = |part: usize, whole: usize| (whole > 0).then(|| part as f64 / whole as f64);
    OutOfMemoryScore {
        group: group.into(),
        failed: caught + missed,
        caught,
        ran: ran + false_alarms,
        false_alarms,
        precision: share(caught, caught + false_alarms),
        recall: share(caught, caught + missed),
        wrong: rows.iter().filter(|(_, f, p)| f != p).map(|(id, ..)| (*id).to_owned()).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn precision_and_recall_count_failures() {
        let rows = [("a", true, true), ("b", true, false), ("c", false, true), ("d", false, false), ("e", true, true)];
        let s = score_rows("g", &rows);
        assert_eq!((s.failed, s.caught, s.ran, s.false_alarms), (3, 2, 2, 1));
        let near = |value: Option<f64>| value.is_some_and(|v| (v - 2.0 / 3.0).abs() < 1e-12);
        assert!(near(s.precision) && near(s.recall));
        assert_eq!(s.wrong, ["b", "c"]);
    }

    #[test]
    fn without_failures_there_is_nothing_to_recall() {
        let s = score_rows("g", &[("a", false, false)]);
        assert_eq!((s.precision, s.recall, s.false_alarms), (None, None, 0));
    }
}
