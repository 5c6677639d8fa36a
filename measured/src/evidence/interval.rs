//! Intervals from the errors of the rows most similar to a prediction, weighted by similarity. The interval is the
//! errors' mean plus and minus a multiple of their spread. Student's distribution gives the multiple for the number of
//! independent errors. Errors are ln(measured / predicted), so that a factor of two counts the same in both directions.

use super::table::{PredictedQuantity, ResidualRow, ResidualTable};
use super::{HoldOutScheme, NamedKind, PredictionFacts};
use serde::{Deserialize, Serialize};
use statrs::distribution::{ContinuousCDF, StudentsT};
use std::collections::BTreeMap;

/// Nominal coverage of an interval.
pub const CONFIDENCE: f64 = 0.9;
/// Number of rows whose errors make an interval; rows at the same distance as the last one count too. With 100 rows,
/// the intervals of three of nine data sets cover less than 85 % with models held out (`coplace validate --intervals`);
/// those of vtrain_multi cover 70 %. For software that was never measured, every stack contributes this many rows. If
/// they were taken among all rows, they would come from two or six stacks, depending on ZeRO-1 or ZeRO-3, and the
/// interval would be six times as wide.
pub(super) const NEIGHBOURS: usize = 200;
/// The distance at which a row weighs a factor e less than the nearest one. With 2, the intervals of three of nine data
/// sets cover less than 85 %; with 6, those of BigScience's runs cover all.
pub(super) const LIKENESS: f64 = 3.5;
/// Distances between the facts of two runs, in this order: another stack, an addition for another kind of stack,
/// another chip, an addition for another kind of chip, another kind of fabric, a mechanism that only one of them has, a
/// doubling of the chips. They are assumed: software moves errors most, a mechanism or a doubling least.
const STACK: f64 = 4.0;
const STACK_KIND: f64 = 4.0;
const CHIP: f64 = 1.0;
const CHIP_KIND: f64 = 2.0;
const FABRIC_KIND: f64 = 1.0;
const MECHANISM: f64 = 0.5;
const DOUBLING: f64 = 0.25;

/// The correlation of errors of rows that were held out together. Without it, the intervals of three of nine data sets
/// cover less than 85 % (`coplace validate --intervals`); with it, all cover 85 to 96 %.
const ALIKE: f64 = 0.22;
/// The fraction of the weight at either end whose errors are replaced: half of the part outside 90 %. Runs that took up
/// to fifty times as long as similar ones made nanotron's intervals 1.4 times as wide. For software that was never
/// measured, every error counts: with replaced ends, the intervals of vtrain_single cover 63 % with stacks held out,
/// and 75 % without.
const TAIL: f64 = (1.0 - CONFIDENCE) / 4.0;
/// Smallest number of degrees of freedom. Below it, Student's distribution has neither mean nor spread.
pub(super) const LEAST_FREEDOM: f64 = 1.5;

/// An interval of the measured over the predicted value, with [`CONFIDENCE`].
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct PredictionInterval {
    /// Lower end of measured over predicted.
    pub low: f64,
    /// Upper end.
    pub high: f64,
}

impl PredictionInterval {
    /// The interval without any information: from 0 to infinity.
    pub const UNKNOWN: Self = Self { low: 0.0, high: f64::INFINITY };

    /// Returns the ends of the interval around a predicted value, in its unit. The predicted value lies within.
    #[must_use]
    pub fn around_prediction(&self, predicted: f64) -> [f64; 2] {
        [predicted * self.low, predicted * self.high]
    }

    /// Returns the interval of the next error, widened to contain the prediction; [`Self::UNKNOWN`] for `None`.
    pub(super) fn from_next_error(next: &Option<NextError>) -> Self {
        let Some(next) = next else { return Self::UNKNOWN };
        let half = next.deviation * student_quantile(f64::midpoint(1.0, CONFIDENCE), next.freedom);
        Self { low: (next.mean - half).min(0.0).exp(), high: (next.mean + half).max(0.0).exp() }
    }

    /// Returns the smallest interval that contains both intervals.
    pub(super) fn join_with(self, other: Self) -> Self {
        Self { low: self.low.min(other.low), high: self.high.max(other.high) }
    }
}

fn name_distance(a: &NamedKind, b: &NamedKind, name: f64, kind: f64) -> f64 {
    match (a.name == b.name, a.kind == b.kind) {
        (true, _) => 0.0,
        (false, true) => name,
        (false, false) => name + kind,
    }
}

fn distance_of_stacks(a: &PredictionFacts, b: &PredictionFacts) -> f64 {
    name_distance(&a.stack, &b.stack, STACK, STACK_KIND)
}

/// Returns the distance between the facts of two predictions.
pub(super) fn distance_of_facts(a: &PredictionFacts, b: &PredictionFacts) -> f64 {
    let doublings = (f64::from(a.chips) / f64::from(b.chips)).log2().abs();
    distance_of_stacks(a, b)
        + name_distance(&a.chip, &b.chip, CHIP, CHIP_KIND)
        + name_distance(&a.fabric, &b.fabric, 0.0, FABRIC_KIND)
        + MECHANISM * a.mechanisms.symmetric_difference(&b.mechanisms).count() as f64
        + DOUBLING * doublings
}

impl ResidualTable {
    /// Returns the scheme for a prediction: the property of it that no measured run has. The rows that judge the
    /// prediction must have that property held out.
    pub(super) fn hold_out_scheme(&self, quantity: PredictedQuantity, facts: &PredictionFacts) -> HoldOutScheme {
        let like = |same: &dyn Fn(&NamedKind) -> bool| {
            self.rows_of(quantity).filter(|row| same(&row.facts.stack)).collect::<Vec<&ResidualRow>>()
        };
        let mut of_stack = like(&|stack| stack.name == facts.stack.name);
        if of_stack.len() < super::LEAST {
            of_stack = like(&|stack| stack.kind == facts.stack.kind);
        }
        if of_stack.len() < super::LEAST {
            HoldOutScheme::Stack
        } else if !of_stack.iter().any(|row| row.facts.chip.name == facts.chip.name) {
            HoldOutScheme::Chip
        } else if of_stack.iter().all(|row| row.facts.chips < facts.chips) {
            HoldOutScheme::Nodes
        } else {
            HoldOutScheme::Model
        }
    }

    /// Returns the interval of a prediction, from the rows that `known` selects. It is at least as wide as the interval
    /// of the nearest measured case.
    pub(super) fn interval_from(
        &self,
        quantity: PredictedQuantity,
        facts: &PredictionFacts,
        known: impl Fn(&ResidualRow) -> bool,
    ) -> PredictionInterval {
        let next = self.next_errors(quantity, facts, known);
        next.iter()
            .map(PredictionInterval::from_next_error)
            .reduce(PredictionInterval::join_with)
            .unwrap_or(PredictionInterval::UNKNOWN)
    }

    /// Returns the distributions of a prediction's error: its own, and those of the nearest measured cases. `None`
    /// stands for an unknown distribution.
    fn next_errors(
        &self,
        quantity: PredictedQuantity,
        facts: &PredictionFacts,
        known: impl Fn(&ResidualRow) -> bool,
    ) -> Vec<Option<NextError>> {
        let scheme = self.hold_out_scheme(quantity, facts);
        let nearest = match scheme {
            HoldOutScheme::Chip => self.facts_on_measured_chips(quantity, facts),
            HoldOutScheme::Nodes => self.facts_on_measured_numbers(quantity, facts),
            HoldOutScheme::Model | HoldOutScheme::Stack => Vec::new(),
        };
        let own = self.next_error_under(scheme, quantity, facts, &known);
        let nearest = nearest.iter().map(|facts| self.next_error_under(HoldOutScheme::Model, quantity, facts, &known));
        std::iter::once(own).chain(nearest).collect()
    }

    /// Returns the probability that the measured value is at most `factor` times the prediction. It is the smallest one
    /// among the distributions whose intervals [`ResidualTable::interval_of`] joins. `None` if nothing is known.
    #[must_use]
    pub fn probability_within(&self, quantity: PredictedQuantity, facts: &PredictionFacts, factor: f64) -> Option<f64> {
        let next: Option<Vec<NextError>> = self.next_errors(quantity, facts, |_| true).into_iter().collect();
        next?.iter().map(|error| error.probability_below(factor.ln())).reduce(f64::min)
    }

    /// Returns the factor on the prediction that the measured value does not exceed with this probability: the inverse
    /// of [`ResidualTable::probability_within`]. `None` if nothing is known.
    #[must_use]
    pub fn factor_at(&self, quantity: PredictedQuantity, facts: &PredictionFacts, probability: f64) -> Option<f64> {
        let next: Option<Vec<NextError>> = self.next_errors(quantity, facts, |_| true).into_iter().collect();
        next?.iter().map(|error| error.quantile(probability).exp()).reduce(f64::max)
    }

    /// Returns the same facts on the nearest clusters on which this software, or related software, was measured.
    fn facts_on_measured_chips(&self, quantity: PredictedQuantity, facts: &PredictionFacts) -> Vec<PredictionFacts> {
        let mut found: BTreeMap<(&str, &str), (f64, PredictionFacts)> = BTreeMap::new();
        for row in self.rows_of(quantity).filter(|row| row.facts.stack.kind == facts.stack.kind) {
            let like =
                PredictionFacts { chip: row.facts.chip.clone(), fabric: row.facts.fabric.clone(), ..facts.clone() };
            let apart = distance_of_facts(facts, &like) + distance_of_stacks(facts, &row.facts);
            let at = found.entry((&row.facts.chip.name, &row.facts.fabric.name)).or_insert((apart, like));
            at.0 = at.0.min(apart);
        }
        let least = found.values().fold(f64::INFINITY, |least, (apart, _)| least.min(*apart));
        found.into_values().filter(|(apart, _)| *apart <= least).map(|(_, facts)| facts).collect()
    }

    /// Returns the same facts on the largest number of chips on which this software, or related software, was measured.
    fn facts_on_measured_numbers(&self, quantity: PredictedQuantity, facts: &PredictionFacts) -> Vec<PredictionFacts> {
        let like = self.rows_of(quantity).filter(|row| row.facts.stack.kind == facts.stack.kind);
        like.map(|row| row.facts.chips)
            .max()
            .map(|chips| PredictionFacts { chips, ..facts.clone() })
            .into_iter()
            .collect()
    }

    /// Returns the interval of a prediction with a given scheme held out.
    pub(super) fn interval_under(
        &self,
        scheme: HoldOutScheme,
        quantity: PredictedQuantity,
        facts: &PredictionFacts,
        known: impl Fn(&ResidualRow) -> bool,
    ) -> PredictionInterval {
        PredictionInterval::from_next_error(&self.next_error_under(scheme, quantity, facts, known))
    }

    /// Returns the distribution of the next error with a given scheme held out; `None` without rows.
    pub(super) fn next_error_under(
        &self,
        scheme: HoldOutScheme,
        quantity: PredictedQuantity,
        facts: &PredictionFacts,
        known: impl Fn(&ResidualRow) -> bool,
    ) -> Option<NextError> {
        let near = self.near_rows(scheme, quantity, facts, known);
        NextError::from_weighted_rows(scheme, &weights_by_distance(scheme, &near))
    }

    /// Returns the rows most similar to a prediction, with their distances. For software that was never measured, the
    /// rows come from every stack.
    fn near_rows(
        &self,
        scheme: HoldOutScheme,
        quantity: PredictedQuantity,
        facts: &PredictionFacts,
        known: impl Fn(&ResidualRow) -> bool,
    ) -> Vec<(f64, &ResidualRow)> {
        let mut stacks: BTreeMap<&str, Vec<(f64, &ResidualRow)>> = BTreeMap::new();
        for row in self.rows_of(quantity).filter(|row| known(row)) {
            let stack = if scheme == HoldOutScheme::Stack { row.facts.stack.name.as_str() } else { "" };
            stacks.entry(stack).or_default().push((distance_of_facts(facts, &row.facts), row));
        }
        stacks.into_values().flat_map(nearest_rows).collect()
    }

    /// Returns the factor by which the prediction of another design or job must be longer to be slower with
    /// [`CONFIDENCE`], if both rest on the same software. Errors that both share cancel, so the factor is at most the
    /// one without shared errors. It is 1 if nothing is known.
    #[must_use]
    pub fn lead_over_design(&self, quantity: PredictedQuantity, facts: &PredictionFacts) -> f64 {
        let scheme = self.hold_out_scheme(quantity, facts);
        let weights = weights_by_distance(scheme, &self.near_rows(scheme, quantity, facts, |_| true));
        let Some(next) = NextError::from_weighted_rows(scheme, &weights) else { return 1.0 };
        // The error of either prediction may go in either direction.
        let lead =
            |deviation: f64, freedom: f64| (2.0_f64.sqrt() * deviation * student_quantile(CONFIDENCE, freedom)).exp();
        let mut groups: BTreeMap<&str, Vec<(f64, &ResidualRow)>> = BTreeMap::new();
        for (weight, row) in weights {
            groups.entry(&row.facts.stack.name).or_default().push((weight, row));
        }
        let (mut sum, mut squares, mut kept) = (0.0, 0.0, Vec::new());
        for rows in groups.into_values().filter(|rows| rows.len() > 1) {
            let Some(spread) = ErrorSpread::from_weighted_errors(
                rows.iter().map(|(weight, row)| (*weight, row.error_under(scheme))),
                tail_fraction(scheme),
            ) else {
                continue;
            };
            let weight: f64 = rows.iter().map(|(weight, _)| weight).sum();
            let count = rows.len() as f64;
            sum += weight;
            squares += weight * spread.deviation * spread.deviation * count / (count - 1.0);
            kept.extend(rows);
        }
        if sum <= 0.0 {
            return 1.0;
        }
        let freedom = (effective_count(scheme, &kept) - 1.0).max(LEAST_FREEDOM);
        lead((squares / sum).sqrt(), freedom).min(lead(next.deviation, next.freedom))
    }
}

/// The predicted next error: its mean and standard deviation, with the degrees of freedom.
pub(super) struct NextError {
    pub(super) mean: f64,
    pub(super) deviation: f64,
    pub(super) freedom: f64,
}

impl NextError {
    /// Returns the error that the next error does not exceed with this probability.
    fn quantile(&self, probability: f64) -> f64 {
        self.mean + self.deviation * student_quantile(probability, self.freedom)
    }

    /// The probability that the next error is at most `error`.
    fn probability_below(&self, error: f64) -> f64 {
        let apart = error - self.mean;
        if self.deviation <= 0.0 {
            return if apart >= 0.0 { 1.0 } else { 0.0 };
        }
        StudentsT::new(0.0, 1.0, self.freedom).map_or(0.0, |students| students.cdf(apart / self.deviation))
    }

    fn from_weighted_rows(scheme: HoldOutScheme, weights: &[(f64, &ResidualRow)]) -> Option<Self> {
        let ErrorSpread { mean, deviation } = ErrorSpread::from_weighted_errors(
            weights.iter().map(|(weight, row)| (*weight, row.error_under(scheme))),
            tail_fraction(scheme),
        )?;
        let count = effective_count(scheme, weights);
        let freedom = (count - 1.0).max(LEAST_FREEDOM);
        // The standard deviation of one more error, given the errors of this many rows.
        Some(Self { mean, deviation: deviation * (count / freedom.min(count) * (1.0 + 1.0 / count)).sqrt(), freedom })
    }
}

/// Mean and standard deviation of weighted errors. At either end, the fraction `tail` of the weight gets the value of
/// the next error (winsorised; Tukey and McLaughlin, 1963).
pub(super) struct ErrorSpread {
    pub(super) mean: f64,
    pub(super) deviation: f64,
}

impl ErrorSpread {
    pub(super) fn from_weighted_errors(errors: impl Iterator<Item = (f64, f64)>, tail: f64) -> Option<Self> {
        let mut errors: Vec<(f64, f64)> = errors.collect();
        errors.sort_by(|a, b| a.1.total_cmp(&b.1));
        let sum: f64 = errors.iter().map(|(weight, _)| weight).sum();
        let (low, high) =
            (first_above_weight(errors.iter(), tail * sum)?, first_above_weight(errors.iter().rev(), tail * sum)?);
        let weighed = |of: &dyn Fn(f64) -> f64| {
            errors.iter().map(|(weight, error)| weight * of(error.clamp(low, high))).sum::<f64>() / sum
        };
        let mean = weighed(&|error| error);
        Some(Self { mean, deviation: weighed(&|error| (error - mean).powi(2)).sqrt() })
    }
}

/// Returns the first error at which the cumulative weight exceeds `most`; `None` without weight.
fn first_above_weight<'a>(errors: impl Iterator<Item = &'a (f64, f64)>, most: f64) -> Option<f64> {
    let mut before = 0.0;
    errors.map(|(weight, error)| (*weight, *error)).find_map(|(weight, error)| {
        before += weight;
        (before > most).then_some(error)
    })
}

/// The fraction of the weight that is replaced at either end.
pub(super) fn tail_fraction(scheme: HoldOutScheme) -> f64 {
    if scheme == HoldOutScheme::Stack { 0.0 } else { TAIL }
}

/// The quantile of Student's distribution.
fn student_quantile(at: f64, freedom: f64) -> f64 {
    StudentsT::new(0.0, 1.0, freedom).map_or(f64::INFINITY, |students| students.inverse_cdf(at))
}

/// Returns the nearest rows, with all rows at the distance of the last one, so that the selection does not depend on
/// errors.
fn nearest_rows(mut rows: Vec<(f64, &ResidualRow)>) -> Vec<(f64, &ResidualRow)> {
    rows.sort_by(|a, b| a.0.total_cmp(&b.0));
    if let Some(&(furthest, _)) = rows.get(NEIGHBOURS - 1) {
        rows.retain(|(distance, _)| *distance <= furthest);
    }
    rows
}

/// Returns the rows with weights by their distances. For software that was never measured, each other stack is one
/// guess. The guess weighs as much as its nearest row, whatever its number of runs. Its rows share this weight by their
/// distances.
fn weights_by_distance<'r>(scheme: HoldOutScheme, near: &[(f64, &'r ResidualRow)]) -> Vec<(f64, &'r ResidualRow)> {
    let least = |of: f64, (distance, _): &(f64, &ResidualRow)| of.min(*distance);
    let nearest = near.iter().fold(f64::INFINITY, least);
    let likeness = |distance: f64, from: f64| ((from - distance) / LIKENESS).exp();
    let mut stacks: BTreeMap<&str, Vec<(f64, &ResidualRow)>> = BTreeMap::new();
    for of in near.iter().filter(|_| scheme == HoldOutScheme::Stack) {
        stacks.entry(&of.1.facts.stack.name).or_default().push(*of);
    }
    let likenesses = |rows: Vec<(f64, &ResidualRow)>| {
        let own = rows.iter().fold(f64::INFINITY, least);
        rows.iter().map(|(distance, _)| likeness(*distance, own)).sum::<f64>()
    };
    let among: BTreeMap<&str, f64> = stacks.into_iter().map(|(stack, rows)| (stack, likenesses(rows))).collect();
    let share = |row: &ResidualRow| among.get(row.facts.stack.name.as_str()).copied().unwrap_or(1.0);
    near.iter().map(|(distance, row)| (likeness(*distance, nearest) / share(row), *row)).collect()
}

/// Returns the effective number of independent rows of equal weight. Errors of rows that were held out together are
/// correlated, because they share models or numbers of chips and scalars.
fn effective_count(scheme: HoldOutScheme, weights: &[(f64, &ResidualRow)]) -> f64 {
    let mut families: BTreeMap<(&str, usize), f64> = BTreeMap::new();
    let (mut sum, mut squares) = (0.0, 0.0);
    for (weight, row) in weights {
        let fold = match scheme {
            HoldOutScheme::Stack => 0,
            HoldOutScheme::Nodes => row.fold[1],
            HoldOutScheme::Model | HoldOutScheme::Chip => row.fold[0],
        };
        *families.entry((&row.facts.stack.name, fold)).or_default() += weight;
        (sum, squares) = (sum + weight, squares + weight * weight);
    }
    independent_count(sum, squares, families.into_values())
}

/// Returns the effective number of independent errors. `sum` and `squares` are the sum of all weights and of their
/// squares. `families` are the weights of the families within which errors are correlated.
pub(super) fn independent_count(sum: f64, squares: f64, families: impl Iterator<Item = f64>) -> f64 {
    let of_families: f64 = families.map(|weight| weight * weight).sum();
    sum * sum / ((1.0 - ALIKE) * squares + ALIKE * of_families)
}

impl ResidualRow {
    /// Returns the error with the scheme held out; if the row lacks it, the error with the most similar scheme.
    pub(super) fn error_under(&self, scheme: HoldOutScheme) -> f64 {
        let [model, nodes, chip, stack] = self.held_out;
        let chosen = match scheme {
            HoldOutScheme::Model => model.or(nodes).or(chip),
            HoldOutScheme::Nodes => nodes.or(model).or(chip),
            HoldOutScheme::Chip => chip.or(stack),
            HoldOutScheme::Stack => None,
        };
        chosen.or(stack).unwrap_or(self.in_sample)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_run_that_hung_does_not_widen_what_is_said_of_its_like() {
        let like = |errors: &[f64]| errors.iter().map(|error| (1.0, *error)).collect::<Vec<_>>();
        let sound: Vec<f64> = (0..80).map(|i| f64::from(i - 40) / 400.0).collect();
        let hung = [&sound[..], &[3.9]].concat();
        let deviation = |errors: &[f64], tail: f64| {
            ErrorSpread::from_weighted_errors(like(errors).into_iter(), tail).unwrap().deviation
        };
        assert!((deviation(&hung, TAIL) / deviation(&sound, TAIL) - 1.0).abs() < 0.05, "{}", deviation(&hung, TAIL));
        assert!(deviation(&hung, 0.0) > 5.0 * deviation(&sound, 0.0), "{}", deviation(&hung, 0.0));
    }

    /// The chance belongs to the interval: at its upper end it is 95 %, unless the prediction itself widened it.
    #[test]
    fn the_chance_at_the_upper_end_is_half_of_what_the_interval_leaves_out() {
        let table = ResidualTable::read_carried();
        let mut checked = 0;
        for quantity in [PredictedQuantity::StepTime, PredictedQuantity::Peak] {
            for facts in table.rows_of(quantity).map(|row| &row.facts).step_by(97) {
                let high = table.interval_of(quantity, facts).high;
                let chance = table.probability_within(quantity, facts, high).unwrap();
                let factor = table.factor_at(quantity, facts, 0.95).unwrap();
                if factor > 1.0 {
                    assert!((chance - 0.95).abs() < 1e-6, "{facts:?}: {chance}");
                    assert!((factor / high - 1.0).abs() < 1e-6, "{facts:?}: {factor} {high}");
                    checked += 1;
                }
                for asked in [0.5, 0.9, 0.99] {
                    let factor = table.factor_at(quantity, facts, asked).unwrap();
                    let back = table.probability_within(quantity, facts, factor).unwrap();
                    assert!((back - asked).abs() < 1e-6, "{facts:?}: {asked} {back}");
                }
            }
        }
        assert!(checked > 3, "{checked}");
    }

    #[test]
    fn few_errors_all_count() {
        // With fewer than forty rows of equal weight, none is in the tail.
        let errors = [(1.0, -0.3), (1.0, 0.0), (1.0, 0.3)];
        let ErrorSpread { mean, deviation } = ErrorSpread::from_weighted_errors(errors.into_iter(), TAIL).unwrap();
        assert!(mean.abs() < 1e-12 && (deviation - (0.06_f64).sqrt()).abs() < 1e-12, "{mean} {deviation}");
        assert!(
            ErrorSpread::from_weighted_errors([(0.0, 1.0)].into_iter(), TAIL).is_none()
                && ErrorSpread::from_weighted_errors(std::iter::empty(), TAIL).is_none()
        );
    }
}
