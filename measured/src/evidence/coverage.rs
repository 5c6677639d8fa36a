//! The coverage of intervals on held-out rows, and the regret of choosing plans by the upper end of their intervals.

use super::interval::PredictionInterval;
use super::ratio::{PairedRuns, paired_runs};
use super::table::{PredictedQuantity, ResidualRow, ResidualTable};
use super::{HoldOutScheme, PairKind};
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
    /// Mean regret of the plan that is predicted fastest, and of the plan whose interval has the lowest upper end;
    /// `None` without groups.
    pub regret: Option<[f64; 2]>,
}

/// A row with its error and its interval, both with its fold held out.
struct JudgedRow<'a> {
    row: &'a ResidualRow,
    error: f64,
    interval: PredictionInterval,
}

/// Returns the coverage of every data set with fifteen or more rows, by quantity and scheme.
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

/// Returns a row with its interval from the rows that were not held out with it; `None` if the row has no error under
/// the scheme.
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

/// Returns the regret of choosing by the predicted time, and of choosing by the upper end of the interval.
fn mean_regrets(plans: &[&JudgedRow<'_>]) -> [f64; 2] {
    let predicted = |j: &JudgedRow<'_>| j.row.measured * (-j.error).exp();
    let best = plans.iter().map(|j| j.row.measured).fold(f64::INFINITY, f64::min);
    let chosen = |by: &dyn Fn(&JudgedRow<'_>) -> f64| {
        let least = plans.iter().min_by(|a, b| by(a).total_cmp(&by(b)));
        least.map_or(0.0, |j| j.row.measured / best - 1.0)
    };
    [chosen(&|j| predicted(j)), chosen(&|j| predicted(j) * j.interval.high)]
}

/// Largest number of pairs of one job on two clusters that count. Jobs with hundreds of plans must not outweigh the
/// others.
const PAIRS_OF_A_JOB: usize = 10;

/// The coverage of intervals of ratios of measured steps, with something held out.
#[derive(Debug, Clone, PartialEq)]
pub struct RatioCoverage {
    /// The difference between the two runs of a pair.
    pub kind: PairKind,
    /// The held-out rows, both of the scalars and of the pairs that make intervals.
    pub scheme: HoldOutScheme,
    /// Number of jobs, counted once per pair of clusters that ran the job.
    pub jobs: usize,
    /// Number of pairs, at most ten per job.
    pub pairs: usize,
    /// Fraction of the pairs whose measured ratio lies in the interval.
    pub covered: f64,
    /// Median width of the interval relative to the predicted ratio.
    pub width: f64,
    /// The median width if the errors of the two steps were independent.
    pub width_apart: f64,
    /// Fraction of the pairs whose interval does not contain 1, so that the faster run is called.
    pub called: f64,
    /// Fraction of the called pairs whose called run was also measured as the faster one; `None` if no pair is called.
    pub right: Option<f64>,
}

/// A pair with its error and its intervals, with the runs' folds held out.
struct JudgedPair {
    /// ln of the measured over the predicted ratio.
    error: f64,
    /// ln of the predicted ratio.
    predicted: f64,
    interval: PredictionInterval,
    apart: PredictionInterval,
}

/// Returns the coverage of ratios of measured steps, by the difference between the runs of a pair. Models and software
/// are held out in turn. For pairs on two chips, the chips are held out too.
#[must_use]
pub fn coverage_of_ratios(table: &ResidualTable) -> Vec<RatioCoverage> {
    let quantity = PredictedQuantity::StepTime;
    let mut groups: BTreeMap<PairKind, Vec<PairedRuns<'_>>> = BTreeMap::new();
    for pair in paired_runs(table.rows_of(quantity)) {
        groups.entry(pair.kind).or_default().push(pair);
    }
    let mut found = Vec::new();
    for (kind, groups) in groups {
        let schemes = [HoldOutScheme::Model, HoldOutScheme::Chip, HoldOutScheme::Stack];
        for scheme in schemes.into_iter().filter(|scheme| *scheme != HoldOutScheme::Chip || kind == PairKind::Chips) {
            let judged: Vec<Vec<JudgedPair>> =
                groups.iter().map(|group| judge_pairs(table, scheme, group)).filter(|of| !of.is_empty()).collect();
            let jobs = judged.len();
            let judged: Vec<JudgedPair> = judged.into_iter().flatten().collect();
            if !judged.is_empty() {
                found.push(summarize_ratios(kind, scheme, jobs, &judged));
            }
        }
    }
    found
}

fn judge_pairs(table: &ResidualTable, scheme: HoldOutScheme, group: &PairedRuns<'_>) -> Vec<JudgedPair> {
    let [one, other] = &group.sides;
    let all = one.iter().enumerate().flat_map(|(at, a)| {
        let from = if group.kind == PairKind::Plans { at + 1 } else { 0 };
        other[from..].iter().map(move |b| [*a, *b])
    });
    let pairs: Vec<[&ResidualRow; 2]> = all.collect();
    let every = pairs.len().div_ceil(PAIRS_OF_A_JOB).max(1);
    pairs.into_iter().step_by(every).filter_map(|pair| judge_pair(table, scheme, pair)).collect()
}

/// Returns a pair with its intervals from the rows that were not held out with either run; `None` if a run has no error
/// under the scheme.
fn judge_pair(table: &ResidualTable, scheme: HoldOutScheme, pair: [&ResidualRow; 2]) -> Option<JudgedPair> {
    let at = scheme as usize;
    let [Some(first), Some(second)] = pair.map(|row| row.held_out[at]) else { return None };
    let held_out = |row: &ResidualRow, other: &ResidualRow| match scheme {
        HoldOutScheme::Chip => other.facts.chip.name == row.facts.chip.name,
        HoldOutScheme::Stack => other.facts.stack.name == row.facts.stack.name,
        _ => other.facts.stack.name == row.facts.stack.name && other.fold[at] == row.fold[at],
    };
    let known = |other: &ResidualRow| !pair.iter().any(|row| held_out(row, other));
    let facts = pair.map(|row| &row.facts);
    let quantity = PredictedQuantity::StepTime;
    let error = first - second;
    Some(JudgedPair {
        error,
        predicted: (pair[0].measured / pair[1].measured).ln() - error,
        interval: table.ratio_interval_under(scheme, quantity, facts, known),
        apart: PredictionInterval::from_next_error(&table.ratio_error_apart(scheme, quantity, facts, known)),
    })
}

fn summarize_ratios(kind: PairKind, scheme: HoldOutScheme, jobs: usize, judged: &[JudgedPair]) -> RatioCoverage {
    let share = |count: usize, of: usize| count as f64 / of as f64;
    let median = |interval: fn(&JudgedPair) -> PredictionInterval| {
        let mut widths: Vec<f64> = judged.iter().map(|j| interval(j).high - interval(j).low).collect();
        widths.sort_by(f64::total_cmp);
        widths[widths.len() / 2]
    };
    let is_called = |j: &&JudgedPair| {
        let [low, high] = j.interval.around_prediction(j.predicted.exp());
        low > 1.0 || high < 1.0
    };
    let called: Vec<&JudgedPair> = judged.iter().filter(is_called).collect();
    let is_right = |j: &&&JudgedPair| (j.predicted > 0.0) == (j.predicted + j.error > 0.0);
    RatioCoverage {
        kind,
        scheme,
        jobs,
        pairs: judged.len(),
        covered: share(
            judged.iter().filter(|j| (j.interval.low..=j.interval.high).contains(&j.error.exp())).count(),
            judged.len(),
        ),
        width: median(|j| j.interval),
        width_apart: median(|j| j.apart),
        called: share(called.len(), judged.len()),
        right: (!called.is_empty()).then(|| share(called.iter().filter(is_right).count(), called.len())),
    }
}
