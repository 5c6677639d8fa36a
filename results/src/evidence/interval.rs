//! Intervals from the errors of the rows most like a prediction (conformal prediction, weighted by likeness).

use super::table::{Quantity, Residuals, Row};
use super::{Facts, Kind, Scheme};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How often the measured value lies within.
pub const CONFIDENCE: f64 = 0.9;
/// The rows whose errors make an interval, and as many more as are as far away: those most like the prediction. With 60 the intervals of vTrain's runs cover 77 %, with 200 they
/// cover 90 (`coplace validate --intervals`).
const NEIGHBOURS: usize = 200;
/// The distance at which a row counts a factor e less than the nearest. Half of it leaves two data sets of ten with less than 85 % covered.
const LIKENESS: f64 = 2.0;
/// Distances: another stack, one of another kind besides, another chip, one of another kind besides, a fabric of another kind, a mechanism that one
/// has and the other has not, a doubling of the chips. Assumed: software moves errors most, a mechanism or a doubling least.
const STACK: f64 = 4.0;
const STACK_KIND: f64 = 4.0;
const CHIP: f64 = 1.0;
const CHIP_KIND: f64 = 2.0;
const FABRIC_KIND: f64 = 1.0;
const MECHANISM: f64 = 0.5;
const DOUBLING: f64 = 0.25;

/// The correlation of the errors of rows that were held out together, for how much they say of others. Without it the intervals of half of the data
/// sets cover less than 85 % with models held out (`coplace validate --intervals`).
const ALIKE: f64 = 0.05;

/// Between which multiples of the predicted value the measured one lies with [`CONFIDENCE`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Interval {
    /// Measured over predicted, at least.
    pub low: f64,
    /// At most.
    pub high: f64,
}

impl Interval {
    /// Nothing is known.
    pub const UNKNOWN: Self = Self { low: 0.0, high: f64::INFINITY };

    /// Around a predicted value, which always lies within.
    #[must_use]
    pub fn around(&self, predicted: f64) -> [f64; 2] {
        [predicted * self.low, predicted * self.high]
    }
}

/// How far two predictions are from resting on the same.
fn distance(a: &Facts, b: &Facts) -> f64 {
    let apart = |a: &Kind, b: &Kind, name: f64, kind: f64| match (a.name == b.name, a.kind == b.kind) {
        (true, _) => 0.0,
        (false, true) => name,
        (false, false) => name + kind,
    };
    let doublings = (f64::from(a.chips) / f64::from(b.chips)).log2().abs();
    apart(&a.stack, &b.stack, STACK, STACK_KIND)
        + apart(&a.chip, &b.chip, CHIP, CHIP_KIND)
        + apart(&a.fabric, &b.fabric, 0.0, FABRIC_KIND)
        + MECHANISM * a.mechanisms.symmetric_difference(&b.mechanisms).count() as f64
        + DOUBLING * doublings
}

impl Residuals {
    /// What of the prediction no measured run has: what is to be held out of those that judge it.
    pub(super) fn scheme(&self, quantity: Quantity, facts: &Facts) -> Scheme {
        let like = |same: &dyn Fn(&Kind) -> bool| self.of(quantity).filter(|row| same(&row.facts.stack)).collect::<Vec<&Row>>();
        let mut of_stack = like(&|stack| stack.name == facts.stack.name);
        if of_stack.len() < super::LEAST {
            of_stack = like(&|stack| stack.kind == facts.stack.kind);
        }
        if of_stack.len() < super::LEAST {
            Scheme::Stack
        } else if !of_stack.iter().any(|row| row.facts.chip.name == facts.chip.name) {
            Scheme::Chip
        } else if of_stack.iter().all(|row| row.facts.chips < facts.chips) {
            Scheme::Nodes
        } else {
            Scheme::Model
        }
    }

    /// The interval of a prediction, from the rows that `known` leaves.
    pub(super) fn interval(&self, quantity: Quantity, facts: &Facts, known: impl Fn(&Row) -> bool) -> Interval {
        self.interval_under(self.scheme(quantity, facts), quantity, facts, known)
    }

    /// The same with what is held out given.
    pub(super) fn interval_under(
        &self,
        scheme: Scheme,
        quantity: Quantity,
        facts: &Facts,
        known: impl Fn(&Row) -> bool,
    ) -> Interval {
        let mut near: Vec<(f64, &Row)> =
            self.of(quantity).filter(|row| known(row)).map(|row| (distance(facts, &row.facts), row)).collect();
        near.sort_by(|a, b| a.0.total_cmp(&b.0));
        // With all that are as far away as the last of them: which are left out must not depend on their errors.
        if let Some(&(furthest, _)) = near.get(NEIGHBOURS - 1) {
            near.retain(|(distance, _)| *distance <= furthest);
        }
        let Some(&(nearest, _)) = near.first() else { return Interval::UNKNOWN };
        let weights: Vec<(f64, &Row)> =
            near.iter().map(|(distance, row)| (((nearest - distance) / LIKENESS).exp(), *row)).collect();
        let effective = effective(scheme, &weights);
        let mut weighed: Vec<(f64, f64)> = weights.iter().map(|(weight, row)| (row.error(scheme), *weight)).collect();
        weighed.sort_by(|a, b| a.0.total_cmp(&b.0));
        let sum: f64 = weights.iter().map(|(weight, _)| weight).sum();
        // Of n rows the k-th smallest is exceeded with probability 1 - k / (n + 1).
        let above = (f64::midpoint(1.0, CONFIDENCE) * (effective + 1.0) / effective).min(1.0);
        let (low, high) = (quantile(&weighed, (1.0 - above) * sum), quantile(&weighed, above * sum));
        Interval { low: low.min(0.0).exp(), high: high.max(0.0).exp() }
    }
}

/// As how many independent rows of equal weight weighed rows count. The errors of rows that were held out together are alike, as they are of the
/// same models or numbers of chips under the same scalars: those of another model will be alike in another way.
fn effective(scheme: Scheme, weights: &[(f64, &Row)]) -> f64 {
    let mut families: BTreeMap<(&str, usize), f64> = BTreeMap::new();
    let (mut sum, mut squares) = (0.0, 0.0);
    for (weight, row) in weights {
        *families.entry((&row.facts.stack.name, row.fold[usize::from(scheme == Scheme::Nodes)])).or_default() += weight;
        (sum, squares) = (sum + weight, squares + weight * weight);
    }
    let of_families: f64 = families.values().map(|weight| weight * weight).sum();
    sum * sum / ((1.0 - ALIKE) * squares + ALIKE * of_families)
}

impl Row {
    /// The error with so much held out, or what comes nearest where that could not be.
    pub(super) fn error(&self, scheme: Scheme) -> f64 {
        let [model, nodes, chip, stack] = self.held_out;
        let chosen = match scheme {
            Scheme::Model => model.or(nodes).or(chip),
            Scheme::Nodes => nodes.or(model).or(chip),
            Scheme::Chip => chip.or(stack),
            Scheme::Stack => None,
        };
        chosen.or(stack).unwrap_or(self.in_sample)
    }
}

/// The value at which the weights, by ascending value, reach `at`.
fn quantile(weighed: &[(f64, f64)], at: f64) -> f64 {
    let mut sum = 0.0;
    let reached = weighed.iter().find(|(_, weight)| {
        sum += weight;
        sum >= at * (1.0 - 1e-12)
    });
    reached.or(weighed.last()).map_or(0.0, |(value, _)| *value)
}
