//! The errors of predictions, per group of rows.

use super::{FileReport, ValuePrediction};
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

/// The row with the largest error of a group; `None` if every row is exact.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WorstRow {
    /// The row's id.
    pub id: String,
    /// The measured value.
    pub measured: f64,
    /// The predicted value.
    pub predicted: f64,
    /// (predicted - measured) / measured, in percent.
    pub error_pct: f64,
}

/// The scores of one quantity in one group. Errors are (predicted - measured) / measured in percent.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct GroupScore {
    /// The group; `all` is the whole file.
    pub group: String,
    /// The target column.
    pub quantity: &'static str,
    /// Number of rows with a measured and a predicted value.
    pub n: usize,
    /// Number of rows of the group that could not be predicted.
    pub unpredicted: usize,
    /// Number of rows whose prediction equals the measured value. The tolerance is 1e-4 for percentages, which are
    /// printed with few digits, and 1e-9 relative otherwise.
    pub exact: usize,
    /// Mean absolute error in percent, over rows with a non-zero measured value; `None` without such rows.
    pub mape_pct: Option<f64>,
    /// Median absolute error in percent.
    pub median_pct: Option<f64>,
    /// Mean signed error in percent. Positive values mean that predictions are too high.
    pub bias_pct: Option<f64>,
    /// Percentage of the rows with a 90 % interval whose measured value lies in it; `None` without such rows.
    pub within_pct: Option<f64>,
    /// Median width of these intervals, in percent of the prediction.
    pub width_pct: Option<f64>,
    /// The row with the largest error; `None` if all are exact.
    pub worst: Option<WorstRow>,
    /// The software stacks of the group's training runs, by name.
    #[serde(rename = "stack", skip_serializing_if = "BTreeSet::is_empty")]
    pub stacks: BTreeSet<String>,
}

/// The name of the group with all rows.
pub(super) const ALL: &str = "all";

/// Returns the scores of every group and quantity of a report, by quantity and group. Only counts that must be exact
/// are also scored over the whole file. Errors of different data sets are never pooled.
pub(super) fn score_groups(report: &FileReport) -> Vec<GroupScore> {
    let mut unpredicted: BTreeMap<String, usize> = BTreeMap::new();
    for row in &report.unpredicted {
        for group in names_of_groups(&row.group, row.size) {
            *unpredicted.entry(group).or_default() += 1;
        }
    }
    let mut scores = Vec::new();
    // The outcome "fits" is not scored in percent (see `out_of_memory`).
    for target in report.dataset.target_columns().iter().filter(|t| t.column != super::out_of_memory::FITS) {
        let mut members: BTreeMap<String, Vec<&ValuePrediction>> = BTreeMap::new();
        for p in report.predictions.iter().filter(|p| p.quantity == target.column && p.measured.is_some()) {
            for group in names_of_groups(&p.group, p.size) {
                members.entry(group).or_default().push(p);
            }
        }
        for group in unpredicted.keys() {
            members.entry(group.clone()).or_default();
        }
        if members.values().all(Vec::is_empty) && unpredicted.is_empty() {
            continue;
        }
        for (group, rows) in &members {
            scores.push(score_pairs(group, target.column, rows, unpredicted.get(group).copied().unwrap_or(0)));
        }
        if members.len() > 1 && report.dataset.is_exact() {
            let rows: Vec<&ValuePrediction> = members.into_values().flatten().collect();
            scores.push(score_pairs(ALL, target.column, &rows, report.unpredicted.len()));
        }
    }
    scores
}

/// Returns the groups of a row: its own, and its size class within it.
fn names_of_groups(group: &str, size: Option<&str>) -> impl Iterator<Item = String> {
    std::iter::once(group.to_owned()).chain(size.map(|size| format!("{group} {size}")))
}

/// Returns the error in percent; `None` if the measured value is zero.
fn error_pct(measured: f64, predicted: f64) -> Option<f64> {
    (measured != 0.0).then(|| (predicted - measured) / measured * 100.0)
}

fn are_equal(quantity: &str, measured: f64, predicted: f64) -> bool {
    let tolerance = if quantity.ends_with("_pct") { 1e-4 } else { 1e-9 * measured.abs() };
    (predicted - measured).abs() <= tolerance
}

fn score_pairs(group: &str, quantity: &'static str, rows: &[&ValuePrediction], unpredicted: usize) -> GroupScore {
    let measured = |p: &ValuePrediction| p.measured.unwrap_or(f64::NAN);
    let exact = rows.iter().filter(|p| are_equal(quantity, measured(p), p.predicted)).count();
    let errors: Vec<(f64, &ValuePrediction)> =
        rows.iter().filter_map(|p| error_pct(measured(p), p.predicted).map(|e| (e, *p))).collect();
    let mut sizes: Vec<f64> = errors.iter().map(|(e, _)| e.abs()).collect();
    sizes.sort_by(f64::total_cmp);
    let mean =
        |values: &mut dyn Iterator<Item = f64>| (!errors.is_empty()).then(|| values.sum::<f64>() / errors.len() as f64);
    let off = errors.iter().filter(|(e, _)| *e != 0.0);
    let worst = off.max_by(|a, b| a.0.abs().total_cmp(&b.0.abs()));
    let judged: Vec<(f64, f64, [f64; 2])> =
        rows.iter().filter_map(|p| Some((measured(p), p.predicted, p.evidence?.interval))).collect();
    let within = judged.iter().filter(|(measured, _, [low, high])| (*low..=*high).contains(measured)).count();
    let mut widths: Vec<f64> =
        judged.iter().map(|(_, predicted, [low, high])| (high - low) / predicted * 100.0).collect();
    widths.sort_by(f64::total_cmp);
    GroupScore {
        group: group.into(),
        quantity,
        n: rows.len(),
        unpredicted,
        exact,
        mape_pct: mean(&mut sizes.iter().copied()),
        median_pct: find_median(&sizes),
        bias_pct: mean(&mut errors.iter().map(|(e, _)| *e)),
        within_pct: (!judged.is_empty()).then(|| within as f64 / judged.len() as f64 * 100.0),
        width_pct: find_median(&widths),
        worst: worst.map(|(error_pct, p)| WorstRow {
            id: p.id.clone(),
            measured: measured(p),
            predicted: p.predicted,
            error_pct: *error_pct,
        }),
        stacks: rows.iter().filter_map(|p| p.stack.clone()).collect(),
    }
}

/// Returns the median of sorted values: the middle one, or the mean of the two in the middle; `None` without values.
#[must_use]
pub fn find_median(sorted: &[f64]) -> Option<f64> {
    let middle = sorted.len() / 2;
    let upper = *sorted.get(middle)?;
    if sorted.len() % 2 == 1 { Some(upper) } else { Some(f64::midpoint(sorted[middle - 1], upper)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prediction(measured: f64, predicted: f64) -> ValuePrediction {
        ValuePrediction {
            line: 2,
            id: format!("{measured}"),
            quantity: "measured_us",
            group: "g".into(),
            size: None,
            ranking: None,
            measured: Some(measured),
            predicted,
            stack: None,
            evidence: None,
        }
    }

    #[test]
    fn errors_are_relative_to_what_was_measured() {
        let rows = [prediction(100.0, 110.0), prediction(200.0, 150.0), prediction(10.0, 10.0)];
        let rows: Vec<&ValuePrediction> = rows.iter().collect();
        let score = score_pairs("g", "measured_us", &rows, 2);
        assert_eq!((score.n, score.unpredicted, score.exact), (3, 2, 1));
        let near = |value: Option<f64>, expected: f64| value.is_some_and(|v| (v - expected).abs() < 1e-12);
        assert!(near(score.mape_pct, 35.0 / 3.0) && near(score.median_pct, 10.0) && near(score.bias_pct, -5.0));
        assert!(score.worst.is_some_and(|w| w.id == "200" && w.error_pct == -25.0));
    }

    #[test]
    fn nothing_scores_nothing() {
        let empty = score_pairs("g", "measured_us", &[], 5);
        assert_eq!((empty.n, empty.mape_pct, empty.worst), (0, None, None));
        assert_eq!(find_median(&[1.0, 2.0, 4.0, 8.0]), Some(3.0));
        assert_eq!(error_pct(0.0, 1.0), None);
    }
}
