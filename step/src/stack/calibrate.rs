//! Fits a software stack's scalars to measured steps. The prior comes from the other built-in stacks. A scalar that the
//! measurements do not determine keeps its prior value. A few measurements move only the scalars that they determine.
//!
//! [`sim::scalar_fit`] has the method.

use crate::{Framework, SoftwareStack, StackError};
use sim::scalar_fit::{self, ScalarFit, round_to_four_digits, standard_deviation};

/// Smallest prior spread of fractions and of amounts of memory: a tenth.
const FRACTIONS: f64 = 0.1;
/// Smallest prior spread of times and of the host's run-ahead. These differ between frameworks by factors of e.
const TIMES: f64 = 1.0;
/// A scalar that can be fitted, by its key in the stack's file, unit included.
#[derive(Debug, Clone, Copy)]
pub struct StackScalar {
    /// The key, `table.key`.
    pub key: &'static str,
    /// Offset added before the logarithm, in the key's unit. A value far below it acts like zero.
    floor: f64,
    /// Smallest prior spread, in the logarithm. Stacks that copied values from each other agree more closely than the
    /// values are certain.
    spread: f64,
    get: fn(&SoftwareStack) -> f64,
    set: fn(&mut SoftwareStack, f64),
}

macro_rules! scalar {
    ($table:ident . $key:ident, $floor:expr, $spread:expr) => {
        StackScalar {
            key: concat!(stringify!($table), ".", stringify!($key)),
            floor: $floor,
            spread: $spread,
            get: |stack| stack.$table.$key,
            set: |stack, value| stack.$table.$key = value,
        }
    };
}

/// Scalars that determine a step's time.
pub const TIME: [StackScalar; 14] = [
    scalar!(sustained.tensor_fraction, 0.0, FRACTIONS),
    scalar!(sustained.attention_fraction, 0.0, FRACTIONS),
    scalar!(sustained.memory_fraction, 0.0, FRACTIONS),
    scalar!(sustained.narrow_fraction, 0.0, FRACTIONS),
    scalar!(launch.gap_us, 1.0, TIMES),
    scalar!(launch.host_forward_us, 10.0, TIMES),
    scalar!(launch.host_backward_us, 10.0, TIMES),
    scalar!(launch.pipeline_pass_us, 100.0, TIMES),
    scalar!(launch.collective_rank_us, 5.0, TIMES),
    scalar!(launch.per_step_ms, 5.0, TIMES),
    scalar!(overlap.tensor, 0.1, FRACTIONS),
    scalar!(overlap.data_reduction, 0.1, FRACTIONS),
    scalar!(overlap.products, 0.1, FRACTIONS),
    scalar!(sustained.exchange_fraction, 0.0, FRACTIONS),
];

/// Scalars that determine a step's peak memory.
pub const MEMORY: [StackScalar; 5] = [
    scalar!(memory.workspace_gib, 0.1, FRACTIONS),
    scalar!(memory.allocator_slack, 0.02, FRACTIONS),
    scalar!(memory.context_gib, 0.1, FRACTIONS),
    scalar!(memory.states_ahead, 5.0, TIMES),
    scalar!(memory.expert_imbalance, 0.1, FRACTIONS),
];

impl StackScalar {
    /// Returns the scalar's value in a stack.
    #[must_use]
    pub fn value_in(&self, stack: &SoftwareStack) -> f64 {
        (self.get)(stack)
    }

    /// Copies the value from one stack to another.
    pub fn copy_value(&self, from: &SoftwareStack, to: &mut SoftwareStack) {
        (self.set)(to, self.value_in(from));
    }

    fn coordinate_of(&self, value: f64) -> f64 {
        (value + self.floor).max(1e-6).ln()
    }

    fn value_at_coordinate(&self, coordinate: f64) -> f64 {
        coordinate.exp() - self.floor
    }

    /// Returns the smallest and the largest value that a stack's file allows.
    fn value_range(&self, stack: &SoftwareStack) -> (f64, f64) {
        let range = stack.values_with_ranges().into_iter().find(|(key, ..)| *key == self.key);
        range.map_or((0.0, f64::INFINITY), |(_, _, min, max)| (min, max))
    }
}

/// Centre and spread of ln(value + floor).
#[derive(Debug, Clone, Copy, PartialEq)]
struct LogNormalBelief {
    centre: f64,
    spread: f64,
}

/// Prior of several scalars.
#[derive(Debug, Clone, PartialEq)]
pub struct StackPrior {
    beliefs: Vec<LogNormalBelief>,
    /// Coordinates of the scalars in every stack that the prior comes from. The fit starts from these points too.
    others: Vec<Vec<f64>>,
}

impl StackPrior {
    /// Returns a prior from the built-in stacks' values: their median, and their standard deviation but at least the
    /// scalar's smallest spread. It skips the stacks `without`, which are to be fitted, so that the prior knows nothing
    /// of their measurements. It also skips `ideal`, which is no real software, and stacks with the scalars of another
    /// stack.
    ///
    /// # Errors
    /// A built-in stack's file that cannot be read.
    pub fn from_other_stacks(scalars: &[StackScalar], without: &[&str]) -> Result<Self, StackError> {
        let stacks = Self::load_other_stacks(without)?;
        let of =
            |stack: &SoftwareStack| scalars.iter().map(|scalar| scalar.coordinate_of(scalar.value_in(stack))).collect();
        let others = stacks.iter().map(of).collect();
        let beliefs = scalars.iter().map(|scalar| {
            let mut values: Vec<f64> =
                stacks.iter().map(|stack| scalar.coordinate_of(scalar.value_in(stack))).collect();
            values.sort_by(f64::total_cmp);
            let middle = values.get(values.len() / 2).copied().unwrap_or_default();
            LogNormalBelief { centre: middle, spread: standard_deviation(&values).max(scalar.spread) }
        });
        Ok(Self { beliefs: beliefs.collect(), others })
    }

    /// Returns a prior around the stack's own values, with the spread of the built-in stacks. It serves to adapt a
    /// stack to a machine.
    ///
    /// # Errors
    /// As [`Self::from_other_stacks`].
    pub fn around_stack(scalars: &[StackScalar], stack: &SoftwareStack) -> Result<Self, StackError> {
        let mut prior = Self::from_other_stacks(scalars, &[])?;
        for (belief, scalar) in prior.beliefs.iter_mut().zip(scalars) {
            belief.centre = scalar.coordinate_of(scalar.value_in(stack));
        }
        Ok(prior)
    }

    fn load_other_stacks(without: &[&str]) -> Result<Vec<SoftwareStack>, StackError> {
        let names = SoftwareStack::built_in_names();
        let kept = names.iter().filter(|name| !without.contains(&name.as_str()));
        let mut stacks: Vec<SoftwareStack> = kept.map(|name| SoftwareStack::load(name)).collect::<Result<_, _>>()?;
        // A stack with the scalars of another stack adds no measurement.
        stacks.retain(|stack| stack.framework.name != Framework::Ideal && stack.calibrated_from.is_none());
        Ok(stacks)
    }

    /// Returns the stacks with every scalar at the prior's centre.
    #[must_use]
    pub fn apply_centres(&self, scalars: &[StackScalar], stacks: &[SoftwareStack]) -> Vec<SoftwareStack> {
        with_scalar_values(scalars, stacks, &self.belief_centres())
    }

    fn belief_centres(&self) -> Vec<f64> {
        self.beliefs.iter().map(|belief| belief.centre).collect()
    }
}

/// A fitted scalar.
#[derive(Debug, Clone, PartialEq)]
pub struct FittedOption {
    /// Its key.
    pub key: &'static str,
    /// Value before any measurement.
    pub prior: f64,
    /// Fitted value.
    pub value: f64,
    /// The 90 % confidence range from the measurements. Within it, the other scalars move along as far as their priors
    /// let them.
    pub range: (f64, f64),
    /// True if the range with the other scalars fixed is narrower than the prior. If not, the value is the prior's.
    pub determined: bool,
}

/// Result of a fit.
#[derive(Debug, Clone, PartialEq)]
pub struct StackFit {
    /// The stacks with fitted scalars.
    pub stacks: Vec<SoftwareStack>,
    /// The scalars, in the given order; empty if no ranges were requested.
    pub scalars: Vec<FittedOption>,
    /// Mean |ln(predicted / measured)| with the prior's scalars.
    pub before: f64,
    /// Mean |ln(predicted / measured)| with the fitted scalars.
    pub after: f64,
}

/// A calibration: scalars that several stacks share, and their prior.
#[derive(Debug, Clone, Copy)]
pub struct StackCalibration<'a> {
    /// The stacks; all get the same values.
    pub stacks: &'a [SoftwareStack],
    /// Scalars to fit.
    pub scalars: &'a [StackScalar],
    /// Prior of each scalar.
    pub prior: &'a StackPrior,
}

impl StackCalibration<'_> {
    /// Returns the fit with the most probable scalars, without ranges. `errors` returns ln(predicted / measured) of
    /// every row under the given stacks.
    #[must_use]
    pub fn fit_scalars(&self, errors: &mut dyn FnMut(&[SoftwareStack]) -> Vec<f64>) -> StackFit {
        let beliefs = self.coordinate_beliefs();
        let fit = ScalarFit { beliefs: &beliefs, starts: &self.prior.others };
        let point = fit.fit_point(&mut |point| errors(&with_scalar_values(self.scalars, self.stacks, point)));
        self.fit_at_point(&point, Vec::new(), errors)
    }

    /// Returns the fit with the most probable scalars, each with the range that the rows determine. A scalar that they
    /// do not determine keeps its prior value.
    #[must_use]
    pub fn fit_with_ranges(&self, errors: &mut dyn FnMut(&[SoftwareStack]) -> Vec<f64>) -> StackFit {
        let beliefs = self.coordinate_beliefs();
        let fit = ScalarFit { beliefs: &beliefs, starts: &self.prior.others };
        let (point, ranges) =
            fit.fit_with_ranges(&mut |point| errors(&with_scalar_values(self.scalars, self.stacks, point)));
        let value = |scalar: &StackScalar, at: f64| {
            self.stacks.first().map_or(f64::NAN, |stack| clamp_coordinate(scalar, stack, at))
        };
        let fitted = self.scalars.iter().zip(&ranges).enumerate().map(|(i, (scalar, range))| FittedOption {
            key: scalar.key,
            prior: value(scalar, self.prior.beliefs[i].centre),
            value: value(scalar, point[i]),
            range: (value(scalar, range.low), value(scalar, range.high)),
            determined: range.determined,
        });
        self.fit_at_point(&point, fitted.collect(), errors)
    }

    /// Returns the prior of each coordinate, within the range that a stack's file allows.
    fn coordinate_beliefs(&self) -> Vec<scalar_fit::ScalarPrior> {
        let one = |(scalar, belief): (&StackScalar, &LogNormalBelief)| {
            let (min, max) = self.stacks.first().map_or((0.0, f64::INFINITY), |stack| scalar.value_range(stack));
            let (least, most) = (scalar.coordinate_of(min), scalar.coordinate_of(max));
            scalar_fit::ScalarPrior { centre: belief.centre, spread: belief.spread, least, most }
        };
        self.scalars.iter().zip(&self.prior.beliefs).map(one).collect()
    }

    fn fit_at_point(
        &self,
        point: &[f64],
        scalars: Vec<FittedOption>,
        errors: &mut dyn FnMut(&[SoftwareStack]) -> Vec<f64>,
    ) -> StackFit {
        let stacks = with_scalar_values(self.scalars, self.stacks, point);
        let (before, after) = (
            mean_absolute_error(&errors(&self.prior.apply_centres(self.scalars, self.stacks))),
            mean_absolute_error(&errors(&stacks)),
        );
        StackFit { stacks, scalars, before, after }
    }
}

/// Returns the value at a coordinate, clamped to the range of the stack's file and rounded to four digits.
fn clamp_coordinate(scalar: &StackScalar, stack: &SoftwareStack, coordinate: f64) -> f64 {
    let (min, max) = scalar.value_range(stack);
    round_to_four_digits(scalar.value_at_coordinate(coordinate).clamp(min, max))
}

fn with_scalar_values(scalars: &[StackScalar], stacks: &[SoftwareStack], point: &[f64]) -> Vec<SoftwareStack> {
    let mut stacks = stacks.to_vec();
    for stack in &mut stacks {
        for (scalar, coordinate) in scalars.iter().zip(point) {
            let value = clamp_coordinate(scalar, stack, *coordinate);
            (scalar.set)(stack, value);
        }
    }
    stacks
}

fn mean_absolute_error(errors: &[f64]) -> f64 {
    errors.iter().map(|e| e.abs()).sum::<f64>() / errors.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Returns the errors of a toy model. A row is (seconds of products at full rate, number of pipeline waits).
    /// `truth` is the true (tensor fraction, microseconds per wait).
    fn errors(stack: &SoftwareStack, rows: &[(f64, f64)], truth: (f64, f64)) -> Vec<f64> {
        let time = |tensor: f64, wait: f64, row: &(f64, f64)| row.0 / tensor + row.1 * wait * 1e-6;
        let of = |row| time(stack.sustained.tensor_fraction, stack.launch.pipeline_pass_us, row);
        rows.iter().map(|row| (of(row) / time(truth.0, truth.1, row)).ln()).collect()
    }

    #[test]
    fn what_rows_determine_is_found_and_the_rest_keeps_its_prior() {
        let stacks = [SoftwareStack::load("megatron").unwrap()];
        let prior = StackPrior::from_other_stacks(&TIME, &["megatron"]).unwrap();
        let question = StackCalibration { stacks: &stacks, scalars: &TIME, prior: &prior };
        let rows: Vec<(f64, f64)> = (1..9).map(|i| (f64::from(i), f64::from(i % 3) * 500.0)).collect();
        let fit = question.fit_with_ranges(&mut |s| errors(&s[0], &rows, (0.7, 3000.0)));
        let of = |key: &str| fit.scalars.iter().find(|s| s.key == key).unwrap();
        let (tensor, wait) = (of("sustained.tensor_fraction"), of("launch.pipeline_pass_us"));
        assert!((tensor.value - 0.7).abs() < 0.02 && tensor.determined, "{tensor:?}");
        assert!((wait.value / 3000.0 - 1.0).abs() < 0.1 && wait.determined, "{wait:?}");
        assert!(wait.range.0 < 3000.0 && wait.range.1 > 3000.0, "{wait:?}");
        for scalar in
            fit.scalars.iter().filter(|s| !["sustained.tensor_fraction", "launch.pipeline_pass_us"].contains(&s.key))
        {
            assert!(
                !scalar.determined && (scalar.value - scalar.prior).abs() <= 1e-3 * scalar.prior.abs() + 1e-9,
                "{scalar:?}"
            );
        }
        assert!(fit.after < 0.02 && fit.after < fit.before, "{} {}", fit.before, fit.after);
    }

    #[test]
    fn a_prior_does_not_know_the_stack_that_is_fitted() {
        let own = SoftwareStack::load("nanotron").unwrap();
        let of = |prior: &StackPrior| prior.apply_centres(&TIME, std::slice::from_ref(&own))[0].launch.pipeline_pass_us;
        let others = StackPrior::from_other_stacks(&TIME, &["nanotron"]).unwrap();
        assert!(of(&others) < own.launch.pipeline_pass_us / 2.0, "{}", of(&others));
        assert!((of(&StackPrior::around_stack(&TIME, &own).unwrap()) / own.launch.pipeline_pass_us - 1.0).abs() < 1e-3);
    }
}
