//! Whether intervals hold on what was held out, and what choosing by their bad end costs.

use super::Scheme;
use super::interval::Interval;
use super::table::{Quantity, Residuals, Row};
use std::collections::BTreeMap;

/// The least rows of a data set that say anything of how often an interval holds.
const LEAST: usize = 15;
/// The least plans of a group that say anything of a choice.
const PLANS: usize = 6;

/// How often the intervals of a data set's rows hold, with something held out.
#[derive(Debug, Clone, PartialEq)]
pub struct Coverage {
    /// The data set.
    pub dataset: String,
    /// What was predicted.
    pub quantity: Quantity,
    /// What was held out, of the scalars and of the errors that intervals are made of.
    pub scheme: Scheme,
    /// Rows.
    pub rows: usize,
    /// The part of them whose measured value lies within.
    pub covered: f64,
    /// Median of the interval's length over the prediction.
    pub width: f64,
    /// Groups of six plans and more that compete (equal model, chips and batch).
    pub groups: usize,
    /// Mean loss of the plan that is predicted fastest over the fastest, and of the one whose interval's bad end is least; `None` without groups.
    pub regret: Option<[f64; 2]>,
}

/// A row with its interval, both without its fold.
struct Judged<'a> {
    row: &'a Row,
    error: f64,
    interval: Interval,
}

/// The coverage of every data set of fifteen rows and more.
#[must_use]
pub fn coverage(table: &Residuals) -> Vec<Coverage> {
    let mut found = Vec::new();
    for quantity in [Quantity::StepTime, Quantity::Peak] {
        let mut sets: BTreeMap<&str, Vec<&Row>> = BTreeMap::new();
        for row in table.of(quantity) {
            sets.entry(&row.dataset).or_default().push(row);
        }
        for (dataset, rows) in sets.into_iter().filter(|(_, rows)| rows.len() >= LEAST) {
            for scheme in [Scheme::Model, Scheme::Nodes, Scheme::Stack] {
                let judged: Vec<Judged<'_>> = rows.iter().filter_map(|row| judge(table, quantity, scheme, row)).collect();
                if judged.len() >= LEAST {
                    found.push(summary(dataset, quantity, scheme, &judged));
                }
            }
        }
    }
    found
}

/// A row's interval from the rows that have not been held out with it; nothing where its stack's rows are all of one fold.
fn judge<'a>(table: &Residuals, quantity: Quantity, scheme: Scheme, row: &'a Row) -> Option<Judged<'a>> {
    let (at, stack) = (scheme as usize, &row.facts.stack.name);
    let error = row.held_out[at]?;
    let held_out = |other: &Row| other.facts.stack.name == *stack && (scheme == Scheme::Stack || other.fold[at] == row.fold[at]);
    Some(Judged { row, error, interval: table.interval_under(scheme, quantity, &row.facts, |other| !held_out(other)) })
}

fn summary(dataset: &str, quantity: Quantity, scheme: Scheme, judged: &[Judged<'_>]) -> Coverage {
    let within = |j: &&Judged<'_>| (j.interval.low..=j.interval.high).contains(&j.error.exp());
    let mut widths: Vec<f64> = judged.iter().map(|j| j.interval.high - j.interval.low).collect();
    widths.sort_by(f64::total_cmp);
    let mut sets: BTreeMap<&str, Vec<&Judged<'_>>> = BTreeMap::new();
    for j in judged.iter().filter(|_| quantity == Quantity::StepTime) {
        sets.entry(&j.row.ranking).or_default().push(j);
    }
    let groups: Vec<[f64; 2]> = sets.values().filter(|plans| plans.len() >= PLANS).map(|plans| regrets(plans)).collect();
    let mean = |at: usize| groups.iter().map(|g| g[at]).sum::<f64>() / groups.len() as f64;
    Coverage {
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

/// What choosing by the predicted time, and by the interval's end, costs.
fn regrets(plans: &[&Judged<'_>]) -> [f64; 2] {
    let predicted = |j: &Judged<'_>| j.row.measured * (-j.error).exp();
    let best = plans.iter().map(|j| j.row.measured).fold(f64::INFINITY, f64::min);
    let chosen = |by: &dyn Fn(&Judged<'_>) -> f64| {
        let least = plans.iter().min_by(|a, b| by(a).total_cmp(&by(b)));
        least.map_or(0.0, |j| j.row.measured / best - 1.0)
    };
    [chosen(&|j| predicted(j)), chosen(&|j| predicted(j) * j.interval.high)]
}
