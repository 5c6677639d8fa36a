//! Intervals of ratios of two predicted steps. Errors that both predictions share cancel in their ratio, so the ratio
//! is more certain than either step. Two steps with independent errors are the prior. It is updated by measured pairs:
//! runs of one job (model, sequence length, batch, number of chips, precision) that differ in the same way as the two
//! predictions.

use super::distance::{LIKENESS, distance_of_facts};
use super::interval::{NEIGHBOURS, PredictionInterval};
use super::next_error::{CloserErrors, ErrorSpread, NextError, independent_count, tail_fraction};
use super::table::{PredictedQuantity, ResidualRow, ResidualTable};
use super::{HoldOutScheme, PredictionFacts};
use std::collections::BTreeMap;
use std::fmt;

/// The most important difference between two predictions of one job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PairKind {
    /// Plans on one cluster under one stack.
    Plans,
    /// Networks between the same chips.
    Fabrics,
    /// Chips, under one stack.
    Chips,
    /// Software stacks.
    Stacks,
}

impl fmt::Display for PairKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Plans => "two plans",
            Self::Fabrics => "two fabrics",
            Self::Chips => "two chips",
            Self::Stacks => "two stacks",
        })
    }
}

impl PairKind {
    /// Returns the kind of a pair of predictions.
    #[must_use]
    pub fn of_facts(a: &PredictionFacts, b: &PredictionFacts) -> Self {
        if a.stack.name != b.stack.name {
            Self::Stacks
        } else if a.chip.name != b.chip.name {
            Self::Chips
        } else if a.fabric.name != b.fabric.name {
            Self::Fabrics
        } else {
            Self::Plans
        }
    }
}

/// The runs of one job on two clusters; on one cluster the two sides are the same runs.
pub(super) struct PairedRuns<'t> {
    pub(super) kind: PairKind,
    pub(super) sides: [Vec<&'t ResidualRow>; 2],
}

/// Stack, chip and fabric.
type ClusterNames<'t> = (&'t str, &'t str, &'t str);

/// Returns all pairs of clusters of each job, and each cluster with itself if it has several runs of the job.
pub(super) fn paired_runs<'t>(rows: impl Iterator<Item = &'t ResidualRow>) -> Vec<PairedRuns<'t>> {
    let mut jobs: BTreeMap<&str, BTreeMap<ClusterNames<'t>, Vec<&'t ResidualRow>>> = BTreeMap::new();
    for row in rows {
        let cluster = (row.facts.stack.name.as_str(), row.facts.chip.name.as_str(), row.facts.fabric.name.as_str());
        jobs.entry(&row.ranking).or_default().entry(cluster).or_default().push(row);
    }
    let mut found = Vec::new();
    for clusters in jobs.into_values() {
        let clusters: Vec<Vec<&ResidualRow>> = clusters.into_values().collect();
        for (at, one) in clusters.iter().enumerate() {
            if one.len() > 1 {
                found.push(PairedRuns { kind: PairKind::Plans, sides: [one.clone(), one.clone()] });
            }
            found.extend(clusters[at + 1..].iter().map(|other| PairedRuns {
                kind: PairKind::of_facts(&one[0].facts, &other[0].facts),
                sides: [one.clone(), other.clone()],
            }));
        }
    }
    found
}

impl PairedRuns<'_> {
    /// Returns the mean square of the difference of two errors, one from either side; `None` without a pair.
    fn mean_square(&self, scheme: HoldOutScheme) -> Option<f64> {
        let spread = |rows: &[&ResidualRow]| {
            ErrorSpread::from_weighted_errors(
                rows.iter().map(|row| (1.0, row.error_under(scheme))),
                tail_fraction(scheme),
            )
        };
        let [one, other] = [spread(&self.sides[0])?, spread(&self.sides[1])?];
        let square = one.deviation.powi(2) + other.deviation.powi(2) + (one.mean - other.mean).powi(2);
        let count = self.sides[0].len() as f64;
        // On one cluster, both sides have the same runs, so the mean includes the pairs of a run with itself. The
        // factor removes these pairs, whose errors do not differ.
        Some(if self.kind == PairKind::Plans { square * count / (count - 1.0) } else { square })
    }

    /// Returns the evidence of these runs about the ratio of two predictions; `None` without a pair.
    fn near_to(&self, facts: [&PredictionFacts; 2], scheme: HoldOutScheme) -> Option<NearPair<'_>> {
        let [one, other] = &self.sides;
        let worth = if self.kind == PairKind::Plans { 1.0 - 1.0 / one.len() as f64 } else { 1.0 };
        let of_family = one.first().zip(other.first())?;
        let stacks = [of_family.0, of_family.1].map(|row| row.facts.stack.name.as_str());
        let fold = of_family.0.fold[usize::from(scheme == HoldOutScheme::Nodes)];
        let mean_square = self.mean_square(scheme)?;
        Some(NearPair { distance: self.distance_from(facts), family: (stacks, fold), worth, mean_square })
    }

    /// Returns the distance of the nearest runs from the two predictions, as the mean over both sides.
    fn distance_from(&self, facts: [&PredictionFacts; 2]) -> f64 {
        let nearest = |facts: &PredictionFacts, rows: &[&ResidualRow]| {
            rows.iter().map(|row| distance_of_facts(facts, &row.facts)).fold(f64::INFINITY, f64::min)
        };
        let [a, b] = facts;
        let [one, other] = &self.sides;
        if self.kind == PairKind::Plans {
            let first = nearest(a, one);
            return if a == b { first } else { f64::midpoint(first, nearest(b, one)) };
        }
        let straight = nearest(a, one) + nearest(b, other);
        straight.min(nearest(a, other) + nearest(b, one)) / 2.0
    }
}

/// The evidence of a job's runs on two clusters about the ratio of two predictions.
struct NearPair<'t> {
    distance: f64,
    /// The stacks of both sides, and the fold with which their models are held out. Pairs of one family are correlated.
    family: ([&'t str; 2], usize),
    /// Weight of the evidence if all distances are equal.
    worth: f64,
    mean_square: f64,
}

impl CloserErrors {
    /// Returns the errors of measured pairs; `None` without pairs. They count as fewer, the less the nearest pair
    /// resembles the prediction. Pairs of the same software with models of one fold are correlated. For software that
    /// was never measured, each pair of other stacks is one guess.
    fn from_pairs(scheme: HoldOutScheme, near: &[NearPair<'_>]) -> Option<Self> {
        let nearest = near.first()?.distance;
        let mut of_stacks: BTreeMap<[&str; 2], (f64, f64)> = BTreeMap::new();
        for pair in near.iter().filter(|_| scheme == HoldOutScheme::Stack) {
            let (own, likenesses) = of_stacks.entry(pair.family.0).or_insert((pair.distance, 0.0));
            *likenesses += pair.worth * ((*own - pair.distance) / LIKENESS).exp();
        }
        let mut families: BTreeMap<([&str; 2], usize), f64> = BTreeMap::new();
        let (mut sum, mut square, mut squares) = (0.0, 0.0, 0.0);
        for pair in near {
            let likeness = pair.worth * ((nearest - pair.distance) / LIKENESS).exp();
            let (stacks, fold) = pair.family;
            let (weight, family) = match of_stacks.get(&stacks) {
                Some((_, likenesses)) => (likeness / likenesses, (stacks, 0)),
                None => (likeness, (stacks, fold)),
            };
            *families.entry(family).or_default() += weight;
            (sum, square, squares) = (sum + weight, square + weight * pair.mean_square, squares + weight * weight);
        }
        // Without correlation, this is the sum of the likenesses, as for own runs.
        let alike = squares / sum * (-nearest / LIKENESS).exp();
        let count = independent_count(sum, squares, families.into_values()) * alike;
        (sum > 0.0).then(|| Self { mean: 0.0, deviation: (square / sum).sqrt(), count })
    }
}

impl ResidualTable {
    /// Returns the 90 % interval of the measured over the predicted ratio of two steps. It is symmetric: the interval
    /// of the inverse ratio is its inverse.
    #[must_use]
    pub fn ratio_interval(&self, quantity: PredictedQuantity, facts: [&PredictionFacts; 2]) -> PredictionInterval {
        let scheme = facts.map(|facts| self.hold_out_scheme(quantity, facts)).into_iter().max();
        self.ratio_interval_under(scheme.unwrap_or(HoldOutScheme::Stack), quantity, facts, |_| true)
    }

    /// Returns the interval of a ratio with a given scheme held out, from the rows that `known` selects.
    pub(super) fn ratio_interval_under(
        &self,
        scheme: HoldOutScheme,
        quantity: PredictedQuantity,
        facts: [&PredictionFacts; 2],
        known: impl Fn(&ResidualRow) -> bool,
    ) -> PredictionInterval {
        let kind = PairKind::of_facts(facts[0], facts[1]);
        let pairs = paired_runs(self.rows_of(quantity).filter(|row| known(row)));
        let mut near: Vec<NearPair<'_>> =
            pairs.iter().filter(|pair| pair.kind == kind).filter_map(|pair| pair.near_to(facts, scheme)).collect();
        near.sort_by(|a, b| a.distance.total_cmp(&b.distance));
        near.truncate(NEIGHBOURS);
        let pairs = CloserErrors::from_pairs(scheme, &near);
        let apart = self.ratio_error_apart(scheme, quantity, facts, &known);
        PredictionInterval::from_next_error(&CloserErrors::update_error(pairs.as_ref(), apart))
    }

    /// Returns the error of the ratio of two steps with independent errors; `None` without rows.
    pub(super) fn ratio_error_apart(
        &self,
        scheme: HoldOutScheme,
        quantity: PredictedQuantity,
        facts: [&PredictionFacts; 2],
        known: impl Fn(&ResidualRow) -> bool,
    ) -> Option<NextError> {
        let [Some(a), Some(b)] = facts.map(|facts| self.next_error_under(scheme, quantity, facts, &known)) else {
            return None;
        };
        Some(NextError { mean: 0.0, deviation: a.deviation.hypot(b.deviation), freedom: a.freedom.min(b.freedom) })
    }
}
