//! The distribution of the next error, from weighted errors of rows: their mean and spread, and the number of
//! independent ones among them.

use super::HoldOutScheme;
use super::table::ResidualRow;
use statrs::distribution::{ContinuousCDF, StudentsT};
use std::collections::BTreeMap;

/// Nominal coverage of an interval.
pub const CONFIDENCE: f64 = 0.9;
/// The correlation of errors of rows that were held out together. Without it, the intervals of three of nine data sets
/// cover less than 85 % (`coplace validate --intervals`); with it, all cover 85 to 96 %.
const ALIKE: f64 = 0.22;
/// Fraction of the weight at either end whose errors are replaced: half of the 5 % outside a 90 % interval at that end.
/// Without replacement, runs that took up to fifty times as long as similar ones make nanotron's intervals 1.4 times as
/// wide. For software that was never measured (stacks held out), every error counts: the intervals of vtrain_single
/// then cover 75 %, and only 63 % with replaced ends.
const TAIL: f64 = (1.0 - CONFIDENCE) / 4.0;
/// Smallest number of degrees of freedom. Below it, Student's distribution has neither mean nor spread.
pub(super) const LEAST_FREEDOM: f64 = 1.5;

/// The predicted next error: its mean and standard deviation, with the degrees of freedom.
pub(super) struct NextError {
    pub(super) mean: f64,
    pub(super) deviation: f64,
    pub(super) freedom: f64,
}

impl NextError {
    /// Returns the error that the next error does not exceed with this probability.
    pub(super) fn quantile(&self, probability: f64) -> f64 {
        self.mean + self.deviation * student_quantile(probability, self.freedom)
    }

    /// Returns the probability that the next error is at most `error`.
    pub(super) fn probability_below(&self, error: f64) -> f64 {
        let apart = error - self.mean;
        if self.deviation <= 0.0 {
            return if apart >= 0.0 { 1.0 } else { 0.0 };
        }
        StudentsT::new(0.0, 1.0, self.freedom).map_or(0.0, |students| students.cdf(apart / self.deviation))
    }

    pub(super) fn from_weighted_rows(scheme: HoldOutScheme, weights: &[(f64, &ResidualRow)]) -> Option<Self> {
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

/// Weight, in runs, of the general errors when errors of closer cases update them. With it, intervals after 1, 2, 6 and
/// 12 runs cover 86, 89, 89 and 91 % of the other runs of nine carried data sets. With a weight of 1, they cover fewer:
/// 79, 80, 87 and 90 % in a first experiment. On average, the spread of one data set is 1.8 times that of another,
/// which gives 2.7 (Smyth, 2004).
const PRIOR_RUNS: f64 = 3.0;

/// The errors of cases closer to a prediction than those in general: own runs of a step, measured pairs of a ratio.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct CloserErrors {
    pub(super) mean: f64,
    pub(super) deviation: f64,
    /// Effective number of independent cases like the prediction.
    pub(super) count: f64,
}

impl CloserErrors {
    /// Returns the distribution of the next error after closer errors, if there are any. The general errors are
    /// the prior: a normal distribution of unknown mean and variance, worth [`PRIOR_RUNS`] runs, with the same 90 %
    /// interval. The closer errors update it in closed form (normal and inverse chi-squared; Gelman et al., Bayesian
    /// Data Analysis, section 3.3; Smyth, 2004). So one or two cases leave the interval wide, and many replace it.
    pub(super) fn update_error(closer: Option<&Self>, general: Option<NextError>) -> Option<NextError> {
        let (Some(closer), Some(general)) = (closer, &general) else { return general };
        let at_end = f64::midpoint(1.0, CONFIDENCE);
        let half = general.deviation * student_quantile(at_end, general.freedom);
        let variance = (half / student_quantile(at_end, PRIOR_RUNS)).powi(2) / (1.0 + 1.0 / PRIOR_RUNS);
        let total = PRIOR_RUNS + closer.count;
        let apart = closer.mean - general.mean;
        let square = (PRIOR_RUNS * (variance + closer.count / total * apart * apart)
            + closer.count * closer.deviation * closer.deviation)
            / total;
        Some(NextError {
            mean: general.mean + closer.count / total * apart,
            deviation: (square * (1.0 + 1.0 / total)).sqrt(),
            freedom: total,
        })
    }
}

/// Mean and standard deviation of weighted errors. At either end, the errors of the fraction `tail` of the weight take
/// the value of the nearest error outside that fraction (winsorised; Tukey and McLaughlin, 1963).
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

/// Returns the fraction of the weight whose errors are replaced at either end.
pub(super) fn tail_fraction(scheme: HoldOutScheme) -> f64 {
    if scheme == HoldOutScheme::Stack { 0.0 } else { TAIL }
}

/// Returns the quantile of Student's distribution.
pub(super) fn student_quantile(at: f64, freedom: f64) -> f64 {
    StudentsT::new(0.0, 1.0, freedom).map_or(f64::INFINITY, |students| students.inverse_cdf(at))
}

/// Returns the effective number of independent rows of equal weight. Errors of rows that were held out together are
/// correlated, because they share models or numbers of chips and scalars.
pub(super) fn effective_count(scheme: HoldOutScheme, weights: &[(f64, &ResidualRow)]) -> f64 {
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
