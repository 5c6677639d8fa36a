//! Intervals from the errors of the rows most similar to a prediction, weighted by similarity. The interval is the
//! errors' mean plus and minus a multiple of their spread. Student's distribution gives the multiple for the number of
//! independent errors. Errors are ln(measured / predicted), so that a factor of two counts the same in both directions.

use super::distance::{LIKENESS, distance_of_facts, distance_of_stacks};
use super::next_error::{
    CONFIDENCE, CloserErrors, ErrorSpread, LEAST_FREEDOM, NextError, effective_count, student_quantile, tail_fraction,
};
use super::table::{PredictedQuantity, ResidualRow, ResidualTable};
use super::{HoldOutScheme, NamedKind, PredictionFacts};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Number of rows whose errors make an interval; rows at the same distance as the last one count too. With 100 rows,
/// the intervals of three of nine data sets cover less than 85 % with models held out (`coplace validate --intervals`);
/// those of vtrain_multi cover 70 %. For software that was never measured, every stack contributes this many rows. If
/// they were taken among all rows, they would come from two or six stacks, depending on ZeRO-1 or ZeRO-3, and the
/// interval would be six times as wide.
pub(super) const NEIGHBOURS: usize = 200;

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
        let own = self.carried_error_under(scheme, quantity, facts, &known);
        let nearest =
            nearest.iter().map(|facts| self.carried_error_under(HoldOutScheme::Model, quantity, facts, &known));
        // Own runs on the prediction's cluster update every distribution: they say as much about it as about the
        // nearest measured cases.
        let own_errors = CloserErrors::of_own_runs(quantity, facts);
        std::iter::once(own).chain(nearest).map(|next| CloserErrors::update_error(own_errors.as_ref(), next)).collect()
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

    /// Returns `facts` with the chip and the fabric of the nearest clusters on which this software, or related
    /// software, was measured.
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

    /// Returns `facts` with the largest number of chips on which this software, or related software, was measured.
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
        let carried = self.carried_error_under(scheme, quantity, facts, known);
        CloserErrors::update_error(CloserErrors::of_own_runs(quantity, facts).as_ref(), carried)
    }

    /// Returns the distribution of the next error from the carried rows alone.
    fn carried_error_under(
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
        let next = NextError::from_weighted_rows(scheme, &weights);
        let Some(next) = CloserErrors::update_error(CloserErrors::of_own_runs(quantity, facts).as_ref(), next) else {
            return 1.0;
        };
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
}
