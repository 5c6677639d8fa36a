//! Fits a software stack's scalars to measured steps, from a prior that the other built-in stacks give: a scalar that the measurements say
//! nothing of stays where stacks usually have it, and a handful of measurements moves those that they determine.
//!
//! What is minimised is the sum over the rows of |ln(predicted / measured)| over their usual scatter, plus half the square of every scalar's distance
//! from its prior in units of the prior's spread: the most probable scalars where errors have a Laplace distribution (one row that the model
//! does not understand does not carry the others away) and scalars a normal one.

use crate::{SoftwareStack, StackError};
use sim::coordinate_search::coordinate_search;

/// What errors scatter by where the model is right: the median error of the built-in stacks on the data sets that they were fitted on is from 2 to
/// 9 % (`step/stacks/README.md`).
const ERROR_SCALE: f64 = 0.05;
/// The least spread of what is believed of fractions, and of amounts of memory: a tenth.
const FRACTIONS: f64 = 0.1;
/// The same of times, which differ between frameworks by factors: of e.
const TIMES: f64 = 1.0;
/// How much worse than the best the logarithm of the probability is at the ends of a 90 % range (half the chi-square of one degree of freedom).
const RANGE_DROP: f64 = 1.353;
/// The step of a coordinate, a logarithm, at which a fit ends: what is left moves no time by as much as models are wrong about it.
const FINEST: f64 = 0.02;
/// By how much longer steps are than those of a fit of fractions: times span a factor of a hundred.
const STRIDE: f64 = 3.0;
/// Standard deviations on either side of the mean between which 90 % of a normal distribution lies.
const NORMAL_90: f64 = 1.645;

/// A scalar that can be fitted: the key in the stack's file, unit included.
#[derive(Debug, Clone, Copy)]
pub struct Scalar {
    /// `table.key`.
    pub key: &'static str,
    /// What is added before the logarithm is taken, in the key's unit: a value well below it acts as zero does.
    floor: f64,
    /// The least spread of what is believed: stacks that took their values over from each other agree better than they know.
    spread: f64,
    get: fn(&SoftwareStack) -> f64,
    set: fn(&mut SoftwareStack, f64),
}

macro_rules! scalar {
    ($table:ident . $key:ident, $floor:expr, $spread:expr) => {
        Scalar {
            key: concat!(stringify!($table), ".", stringify!($key)),
            floor: $floor,
            spread: $spread,
            get: |stack| stack.$table.$key,
            set: |stack, value| stack.$table.$key = value,
        }
    };
}

/// What a step's time depends on.
pub const TIME: [Scalar; 12] = [
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
];

/// What its peak of memory depends on.
pub const MEMORY: [Scalar; 4] = [
    scalar!(memory.workspace_gib, 0.1, FRACTIONS),
    scalar!(memory.allocator_slack, 0.02, FRACTIONS),
    scalar!(memory.context_gib, 0.1, FRACTIONS),
    scalar!(memory.expert_imbalance, 0.1, FRACTIONS),
];

impl Scalar {
    /// The stack's value.
    #[must_use]
    pub fn of(&self, stack: &SoftwareStack) -> f64 {
        (self.get)(stack)
    }

    /// Gives one stack the value of another.
    pub fn copy(&self, from: &SoftwareStack, to: &mut SoftwareStack) {
        (self.set)(to, self.of(from));
    }

    fn coordinate(&self, value: f64) -> f64 {
        (value + self.floor).max(1e-6).ln()
    }

    fn value(&self, coordinate: f64) -> f64 {
        coordinate.exp() - self.floor
    }

    /// The values that a stack's file may have.
    fn limits(&self, stack: &SoftwareStack) -> (f64, f64) {
        let range = stack.values().into_iter().find(|(key, ..)| *key == self.key);
        range.map_or((0.0, f64::INFINITY), |(_, _, min, max)| (min, max))
    }
}

/// What is believed of a scalar before anything is measured: a normal distribution of ln(value + floor).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Belief {
    centre: f64,
    spread: f64,
}

/// What is believed of several scalars.
#[derive(Debug, Clone, PartialEq)]
pub struct Prior {
    beliefs: Vec<Belief>,
    /// The scalars of every stack that this is known from.
    others: Vec<Vec<f64>>,
}

impl Prior {
    /// The middle and the spread of the built-in stacks' values, without those of the names (the stacks that are to be fitted, so that nothing of
    /// what they were fitted on is known) and without `ideal`, which is no software.
    ///
    /// # Errors
    /// A built-in stack's file that cannot be read.
    pub fn of_others(scalars: &[Scalar], without: &[&str]) -> Result<Self, StackError> {
        let stacks = Self::others(without)?;
        let of = |stack: &SoftwareStack| scalars.iter().map(|scalar| scalar.coordinate(scalar.of(stack))).collect();
        let others = stacks.iter().map(of).collect();
        let beliefs = scalars.iter().map(|scalar| {
            let mut values: Vec<f64> = stacks.iter().map(|stack| scalar.coordinate(scalar.of(stack))).collect();
            values.sort_by(f64::total_cmp);
            let middle = values.get(values.len() / 2).copied().unwrap_or_default();
            Belief { centre: middle, spread: deviation(&values).max(scalar.spread) }
        });
        Ok(Self { beliefs: beliefs.collect(), others })
    }

    /// The stack's own values, with the spread of the others: for a stack that is to be adapted to a machine.
    ///
    /// # Errors
    /// As [`Self::of_others`].
    pub fn around(scalars: &[Scalar], stack: &SoftwareStack) -> Result<Self, StackError> {
        let mut prior = Self::of_others(scalars, &[])?;
        for (belief, scalar) in prior.beliefs.iter_mut().zip(scalars) {
            belief.centre = scalar.coordinate(scalar.of(stack));
        }
        Ok(prior)
    }

    fn others(without: &[&str]) -> Result<Vec<SoftwareStack>, StackError> {
        let names = SoftwareStack::names();
        let kept = names.iter().filter(|name| *name != "ideal" && !without.contains(&name.as_str()));
        kept.map(|name| SoftwareStack::load(name)).collect()
    }

    /// The stacks with every scalar at the middle of what is believed.
    #[must_use]
    pub fn applied(&self, scalars: &[Scalar], stacks: &[SoftwareStack]) -> Vec<SoftwareStack> {
        with(scalars, stacks, &self.centres())
    }

    fn centres(&self) -> Vec<f64> {
        self.beliefs.iter().map(|belief| belief.centre).collect()
    }

    /// How improbable a point is: minus the logarithm of its density, without the constant.
    fn cost(&self, point: &[f64]) -> f64 {
        point.iter().zip(&self.beliefs).map(|(u, b)| ((u - b.centre) / b.spread).powi(2) / 2.0).sum()
    }
}

fn deviation(values: &[f64]) -> f64 {
    let n = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / n;
    (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n).sqrt()
}

/// A fitted scalar.
#[derive(Debug, Clone, PartialEq)]
pub struct Fitted {
    /// Its key.
    pub key: &'static str,
    /// Its value before anything was measured.
    pub prior: f64,
    /// Its value.
    pub value: f64,
    /// The values between which, all others fixed, the measurements alone put it with 90 % confidence.
    pub range: (f64, f64),
    /// Whether that range is narrower than what was believed before; if not, the value is the prior's.
    pub determined: bool,
}

/// What a fit found.
#[derive(Debug, Clone, PartialEq)]
pub struct Fit {
    /// The stacks with the fitted scalars.
    pub stacks: Vec<SoftwareStack>,
    /// The scalars, in the order given; empty where no ranges were asked for.
    pub scalars: Vec<Fitted>,
    /// Mean |ln(predicted / measured)| with the scalars of the prior.
    pub before: f64,
    /// The same with the fitted ones.
    pub after: f64,
}

/// What is fitted: scalars that some stacks share, from what is believed of them.
#[derive(Debug, Clone, Copy)]
pub struct Question<'a> {
    /// The stacks; all get the same values.
    pub stacks: &'a [SoftwareStack],
    /// The scalars.
    pub scalars: &'a [Scalar],
    /// What is believed of each of them.
    pub prior: &'a Prior,
}

impl Question<'_> {
    /// The most probable scalars. `errors` gives ln(predicted / measured) of every row under some stacks.
    #[must_use]
    pub fn fit(&self, errors: &mut dyn FnMut(&[SoftwareStack]) -> Vec<f64>) -> Fit {
        let free = vec![true; self.scalars.len()];
        let point = self.search(&free, errors);
        self.found(&point, Vec::new(), errors)
    }

    /// The same, with the range in which the rows determine every scalar; one that they do not determine keeps its prior.
    #[must_use]
    pub fn fit_with_ranges(&self, errors: &mut dyn FnMut(&[SoftwareStack]) -> Vec<f64>) -> Fit {
        let point = self.search(&vec![true; self.scalars.len()], errors);
        let ranges: Vec<Range> = (0..point.len()).map(|i| self.range(&point, i, errors)).collect();
        let free: Vec<bool> = ranges.iter().map(|range| range.determined).collect();
        let point = if free.iter().all(|free| *free) { point } else { self.search(&free, errors) };
        let value = |scalar: &Scalar, at: f64| self.stacks.first().map_or(f64::NAN, |stack| clamped(scalar, stack, at));
        let fitted = self.scalars.iter().zip(&ranges).zip(&free).enumerate().map(|(i, ((scalar, range), free))| Fitted {
            key: scalar.key,
            prior: value(scalar, self.prior.beliefs[i].centre),
            value: value(scalar, point[i]),
            range: (value(scalar, range.low), value(scalar, range.high)),
            determined: *free,
        });
        self.found(&point, fitted.collect(), errors)
    }

    fn found(&self, point: &[f64], scalars: Vec<Fitted>, errors: &mut dyn FnMut(&[SoftwareStack]) -> Vec<f64>) -> Fit {
        let stacks = with(self.scalars, self.stacks, point);
        let (before, after) = (mean(&errors(&self.prior.applied(self.scalars, self.stacks))), mean(&errors(&stacks)));
        Fit { stacks, scalars, before, after }
    }

    /// Moves the free scalars from the middle of what is believed, or from where another stack has them if that explains the rows better: where
    /// a scalar makes no difference until another has moved (the host's time, where devices take longer) no single step leads out.
    fn search(&self, free: &[bool], errors: &mut dyn FnMut(&[SoftwareStack]) -> Vec<f64>) -> Vec<f64> {
        let centres = self.prior.centres();
        let start =
            |other: &Vec<f64>| (0..centres.len()).map(|i| if free[i] { self.limited(i, other[i]) } else { centres[i] }).collect();
        let mut starts: Vec<Vec<f64>> = self.prior.others.iter().map(start).collect();
        starts.push(centres.clone());
        let mut cost = |point: &Vec<f64>| self.misfit(point, errors) + self.prior.cost(point);
        let best = starts.into_iter().map(|point| (cost(&point), point)).min_by(|a, b| a.0.total_cmp(&b.0));
        let free: Vec<usize> = (0..free.len()).filter(|i| free[*i]).collect();
        let neighbours = |point: &Vec<f64>, i: usize, step: f64| {
            [step, -step].map(|by| {
                let mut moved = point.clone();
                moved[free[i]] = self.limited(free[i], moved[free[i]] + STRIDE * by);
                (STRIDE * step > FINEST && moved[free[i]] != point[free[i]]).then_some(moved)
            })
        };
        let objective = |point: &Vec<f64>| Ok::<f64, std::convert::Infallible>(cost(point));
        let Ok(found) = coordinate_search(best.map_or(centres, |(_, point)| point), free.len(), neighbours, objective);
        found.point
    }

    /// A coordinate within the values that a stack's file may have.
    fn limited(&self, i: usize, coordinate: f64) -> f64 {
        let Some(stack) = self.stacks.first() else { return coordinate };
        let (min, max) = self.scalars[i].limits(stack);
        coordinate.clamp(self.scalars[i].coordinate(min), self.scalars[i].coordinate(max))
    }

    fn misfit(&self, point: &[f64], errors: &mut dyn FnMut(&[SoftwareStack]) -> Vec<f64>) -> f64 {
        errors(&with(self.scalars, self.stacks, point)).iter().map(|e| e.abs()).sum::<f64>() / ERROR_SCALE
    }

    /// How far a coordinate can move, the others fixed, before the rows alone speak against it.
    fn range(&self, point: &[f64], i: usize, errors: &mut dyn FnMut(&[SoftwareStack]) -> Vec<f64>) -> Range {
        let best = self.misfit(point, errors);
        let mut end = |direction: f64| {
            let mut at = |by: f64| {
                let mut moved = point.to_vec();
                moved[i] = self.limited(i, point[i] + direction * by);
                (moved[i], self.misfit(&moved, errors) - best)
            };
            let (mut inside, mut outside) = (0.0, 0.02);
            // What lies further than this no prior holds possible.
            let far = 8.0 * self.prior.beliefs[i].spread;
            while at(outside).1 < RANGE_DROP {
                if outside > far {
                    return (at(outside).0, false);
                }
                (inside, outside) = (outside, outside * 2.0);
            }
            for _ in 0..6 {
                let middle = f64::midpoint(inside, outside);
                if at(middle).1 < RANGE_DROP { inside = middle } else { outside = middle }
            }
            (at(inside).0, true)
        };
        let ((low, below), (high, above)) = (end(-1.0), end(1.0));
        let width = 2.0 * NORMAL_90 * self.prior.beliefs[i].spread;
        Range { low, high, determined: (below || above) && high - low < width }
    }
}

/// The value at a coordinate, within those that the stack's file may have.
fn clamped(scalar: &Scalar, stack: &SoftwareStack, coordinate: f64) -> f64 {
    let (min, max) = scalar.limits(stack);
    rounded(scalar.value(coordinate).clamp(min, max))
}

/// Between which coordinates the rows put a scalar.
#[derive(Debug, Clone, Copy)]
struct Range {
    low: f64,
    high: f64,
    /// Whether the rows end it on one side at least, and it is narrower than what was believed.
    determined: bool,
}

fn with(scalars: &[Scalar], stacks: &[SoftwareStack], point: &[f64]) -> Vec<SoftwareStack> {
    let mut stacks = stacks.to_vec();
    for stack in &mut stacks {
        for (scalar, coordinate) in scalars.iter().zip(point) {
            let value = clamped(scalar, stack, *coordinate);
            (scalar.set)(stack, value);
        }
    }
    stacks
}

/// Four significant digits: what a fit is worth, and what is written to a stack's file.
fn rounded(value: f64) -> f64 {
    if value.abs() < 1e-9 { 0.0 } else { format!("{value:.3e}").parse().unwrap_or(value) }
}

fn mean(errors: &[f64]) -> f64 {
    errors.iter().map(|e| e.abs()).sum::<f64>() / errors.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A toy: rows of `work` seconds over the tensor fraction and `passes` of the pipeline's wait.
    fn errors(stack: &SoftwareStack, rows: &[(f64, f64)], truth: (f64, f64)) -> Vec<f64> {
        let time = |tensor: f64, wait: f64, row: &(f64, f64)| row.0 / tensor + row.1 * wait * 1e-6;
        let of = |row| time(stack.sustained.tensor_fraction, stack.launch.pipeline_pass_us, row);
        rows.iter().map(|row| (of(row) / time(truth.0, truth.1, row)).ln()).collect()
    }

    #[test]
    fn what_rows_determine_is_found_and_the_rest_keeps_its_prior() {
        let stacks = [SoftwareStack::load("megatron").unwrap()];
        let prior = Prior::of_others(&TIME, &["megatron"]).unwrap();
        let question = Question { stacks: &stacks, scalars: &TIME, prior: &prior };
        let rows: Vec<(f64, f64)> = (1..9).map(|i| (f64::from(i), f64::from(i % 3) * 500.0)).collect();
        let fit = question.fit_with_ranges(&mut |s| errors(&s[0], &rows, (0.7, 3000.0)));
        let of = |key: &str| fit.scalars.iter().find(|s| s.key == key).unwrap();
        let (tensor, wait) = (of("sustained.tensor_fraction"), of("launch.pipeline_pass_us"));
        assert!((tensor.value - 0.7).abs() < 0.02 && tensor.determined, "{tensor:?}");
        assert!((wait.value / 3000.0 - 1.0).abs() < 0.1 && wait.determined, "{wait:?}");
        assert!(wait.range.0 < 3000.0 && wait.range.1 > 3000.0, "{wait:?}");
        for scalar in fit.scalars.iter().filter(|s| !["sustained.tensor_fraction", "launch.pipeline_pass_us"].contains(&s.key)) {
            assert!(!scalar.determined && (scalar.value - scalar.prior).abs() <= 1e-3 * scalar.prior.abs() + 1e-9, "{scalar:?}");
        }
        assert!(fit.after < 0.02 && fit.after < fit.before, "{} {}", fit.before, fit.after);
    }

    #[test]
    fn a_prior_does_not_know_the_stack_that_is_fitted() {
        let own = SoftwareStack::load("nanotron").unwrap();
        let of = |prior: &Prior| prior.applied(&TIME, std::slice::from_ref(&own))[0].launch.pipeline_pass_us;
        let others = Prior::of_others(&TIME, &["nanotron"]).unwrap();
        assert!(of(&others) < own.launch.pipeline_pass_us / 2.0, "{}", of(&others));
        assert!((of(&Prior::around(&TIME, &own).unwrap()) / own.launch.pipeline_pass_us - 1.0).abs() < 1e-3);
    }
}
