//! The coverage of intervals on held-out rows, and the regret of choosing by their bad end.

use super::HoldOutScheme;
use super::interval::PredictionInterval;
use super::table::{PredictedQuantity, ResidualRow, ResidualTable};
use std::collections::BTreeMap;

/// Fewest rows of a data set that allow a statement about coverage.
const LEAST: usize = 15;
/// Fewest plans of a group that allow a statement about a choice.
const PLANS: usize = 6;

/// The coverage of the intervals of a data set, with something held out.
#[derive(Debug, Clone, PartialEq)]
pub struct IntervalCoverage {
    /// The data set.
    pub dataset: String,
    /// The predicted quantity.
    pub quantity: PredictedQuantity,
    /// The held-out rows, both of the scalars and of the errors that make intervals.
    pub scheme: HoldOutScheme,
    /// Number of rows.
    pub rows: usize,
    /// Fraction of the rows whose measured value lies in the interval.
    pub covered: f64,
    /// Median width of the interval relative to the prediction.
    pub width: f64,
    /// Groups of six or more competing plans (equal model, chips and batch).
    pub groups: usize,
    /// Mean regret of the plan that is predicted fastest, and of the plan with the smallest bad end of its interval;
    /// `None` without groups.
    pub regret: Option<[f64; 2]>,
}

/// A row with its interval, both with its fold held out.
struct JudgedRow<'a> {
    row: &'a ResidualRow,
    error: f64,
    interval: PredictionInterval,
}

/// The coverage of every data set with fifteen or more rows.
#[must_use]
pub fn coverage_by_data_set(table: &ResidualTable) -> Vec<IntervalCoverage> {
    let mut found = Vec::new();
    for quantity in [PredictedQuantity::StepTime, PredictedQuantity::Peak] {
        let mut sets: BTreeMap<&str, Vec<&ResidualRow>> = BTreeMap::new();
        for row in table.rows_of(quantity) {
            sets.entry(&row.dataset).or_default().push(row);
        }
        for (dataset, rows) in sets.into_iter().filter(|(_, rows)| rows.len() >= LEAST) {
            for scheme in [HoldOutScheme::Model, HoldOutScheme::Nodes, HoldOutScheme::Stack] {
                let judged: Vec<JudgedRow<'_>> =
                    rows.iter().filter_map(|row| judge_row(table, quantity, scheme, row)).collect();
                if judged.len() >= LEAST {
                    found.push(summarize_coverage(dataset, quantity, scheme, &judged));
                }
            }
        }
    }
    found
}

/// The interval of a row, from the rows that were not held out with it. `None` if all rows of its stack are in one
/// fold.
fn judge_row<'a>(
    table: &ResidualTable,
    quantity: PredictedQuantity,
    scheme: HoldOutScheme,
    row: &'a ResidualRow,
) -> Option<JudgedRow<'a>> {
    let (at, stack) = (scheme as usize, &row.facts.stack.name);
    let error = row.held_out[at]?;
    let held_out = |other: &ResidualRow| {
        other.facts.stack.name == *stack && (scheme == HoldOutScheme::Stack || other.fold[at] == row.fold[at])
    };
    Some(JudgedRow {
        row,
        error,
        interval: table.interval_under(scheme, quantity, &row.facts, |other| !held_out(other)),
    })
}

fn summarize_coverage(
    dataset: &str,
    quantity: PredictedQuantity,
    scheme: HoldOutScheme,
    judged: &[JudgedRow<'_>],
) -> IntervalCoverage {
    let within = |j: &&JudgedRow<'_>| (j.interval.low..=j.interval.high).contains(&j.error.exp());
    let mut widths: Vec<f64> = judged.iter().map(|j| j.interval.high - j.interval.low).collect();
    widths.sort_by(f64::total_cmp);
    let mut sets: BTreeMap<&str, Vec<&JudgedRow<'_>>> = BTreeMap::new();
    for j in judged.iter().filter(|_| quantity == PredictedQuantity::StepTime) {
        sets.entry(&j.row.ranking).or_default().push(j);
    }
    let groups: Vec<[f64; 2]> =
        sets.values().filter(|plans| plans.len() >= PLANS).map(|plans| mean_regrets(plans)).collect();
    let mean = |at: usize| groups.iter().map(|g| g[at]).sum::<f64>() / groups.len() as f64;
    IntervalCoverage {
        dataset: dataset.to_owned(),
        quantity,
        scheme,
        rows: judged.len(),
        covered: judged.iter().filter(within).count() as f64 / judged.len() as f64,
        width: widths.get(widths.len() / 2).copied().unwrap_or_default(),
        groups: groups.len(),
        regret: (!groups.is_empty()).then(|| [mean(0), mean(1)]),
    }
}

/// The mean regret of choosing by the predicted time, and by the end of the interval.
fn mean_regrets(plans: &[&JudgedRow<'_>]) -> [f64; 2] {
    let predicted = |j: &JudgedRow<'_>| j.row.measured * (-j.error).exp();
    let best = plans.iter().map(|j| j.row.measured).fold(f64::INFINITY, f64::min);
    let chosen = |by: &dyn Fn(&JudgedRow<'_>) -> f64| {
        let least = plans.iter().min_by(|a, b| by(a).total_cmp(&by(b)));
        least.map_or(0.0, |j| j.row.measured / best - 1.0)
    };
    [chosen(&|j| predicted(j)), chosen(&|j| predicted(j) * j.interval.high)]
}
