//! Finds the best chip for both training and serving.

use super::bounded::{BoundedValues, JoinedValues, PricedValue};
use super::{ServedChip, ServedSpace};
use crate::design::evaluate_chip;
use crate::planner::{ChipKernels, PreparedJob};
use crate::runner::Verdict;
use rayon::prelude::*;
use serving::best::ServingAnswer;

/// A training job on the chips of a space.
#[derive(Debug, Clone, Copy)]
pub struct TrainedSpace<'a> {
    /// The job and its plans, prepared for every fabric of [`crate::space::Space::fabric_settings`], in that order.
    pub prepared: &'a [PreparedJob<'a>],
    /// Tokens of a training step per chip.
    pub tokens_per_chip: f64,
}

/// The best chip for both, and the best chip for each alone.
#[derive(Debug, Clone)]
pub struct ChipForBoth {
    /// Index of the chip with the highest weighted geometric mean of both rates.
    pub chip: usize,
    /// Its deployments, highest value first.
    pub answer: ServingAnswer,
    /// Index of the best chip for training alone.
    pub trainer: usize,
    /// Index of the best chip for serving alone.
    pub server: usize,
    /// Training tokens per second per chip: of the chip for both, of the trainer and of the server.
    pub training: [f64; 3],
    /// Values of the best deployment under the serving objective: of the chip for both, of the trainer and of the
    /// server.
    pub serving: [f64; 3],
    /// Number of chips whose fastest training plan was found, and of chips whose deployments were priced.
    pub priced: [usize; 2],
    /// The highest bound on the mean of a chip without both exact rates, as a fraction of the best mean: at most 1.
    pub open_bound: f64,
}

impl TrainedSpace<'_> {
    /// Returns an upper bound on the training tokens per second per chip, from its kernels' peaks.
    fn bound_rate(&self, chip: &ServedChip) -> f64 {
        let Some(prepared) = chip.built.fabric.and_then(|fabric| self.prepared.get(fabric)) else { return 0.0 };
        let kernels = ChipKernels::new(prepared, &chip.built.chip);
        kernels.map_or(0.0, |mut kernels| self.tokens_per_chip / prepared.coarse_bound(&mut kernels).0)
    }

    /// Returns the training tokens per second per chip under the fastest plan; zero without a plan. May return an upper
    /// bound at or below `threshold` instead.
    fn price_rate(&self, chip: &ServedChip, threshold: f64) -> PricedValue {
        let Some(prepared) = chip.built.fabric.and_then(|fabric| self.prepared.get(fabric)) else {
            return PricedValue::Exact(0.0);
        };
        let cutoff = if threshold > 0.0 { self.tokens_per_chip / threshold } else { f64::INFINITY };
        match evaluate_chip(prepared, &chip.built.chip, cutoff) {
            Verdict::Feasible { value, .. } => PricedValue::Exact(self.tokens_per_chip / value),
            Verdict::Infeasible(_) => PricedValue::Exact(0.0),
            Verdict::Beaten(seconds) => PricedValue::AtMost(self.tokens_per_chip / seconds),
        }
    }
}

impl ServedSpace<'_> {
    /// Returns the chip with the highest weighted geometric mean of training and serving, with `weight` between 0 and 1
    /// for training; `None` if no chip does both. Serving counts as the value under the space's serving objective.
    #[must_use]
    pub fn best_for_both(&self, chips: &[ServedChip], trained: &TrainedSpace<'_>, weight: f64) -> Option<ChipForBoth> {
        let serve = |at: usize, _: f64| self.exact_value(chips, at);
        let train = |at: usize, threshold: f64| {
            chips.get(at).map_or(PricedValue::Exact(0.0), |chip| trained.price_rate(chip, threshold))
        };
        let mut serving = self.bound_chips(chips);
        let mut training = BoundedValues::from_bounds(chips.par_iter().map(|chip| trained.bound_rate(chip)).collect());
        let server = serving.settle_largest(&serve)?;
        let trainer = training.settle_largest(&train)?;
        let join = |serve: f64, train: f64| train.powf(weight) * serve.powf(1.0 - weight);
        let needed = |mean: f64, serve: f64| (mean / serve.powf(1.0 - weight)).powf(1.0 / weight);
        let joined = JoinedValues { join: &join, needed: &needed };
        let chip = serving.settle_joint(&mut training, &joined, &serve, &train)?;
        let open = |at: &usize| serving.exact(*at).is_none() || training.exact(*at).is_none();
        let mean = |at: usize| join(serving.at_most(at), training.at_most(at));
        let open_bound = (0..chips.len()).filter(open).map(mean).fold(0.0, f64::max) / mean(chip);
        let priced = [training.priced(), serving.priced()];
        let exact = |value: PricedValue| match value {
            PricedValue::Exact(value) | PricedValue::AtMost(value) => value,
        };
        let three = [chip, trainer, server];
        let answer = self.price_chip(chips.get(chip)?).1;
        Some(ChipForBoth {
            chip,
            answer,
            trainer,
            server,
            training: three.map(|at| training.exact(at).unwrap_or_else(|| exact(train(at, 0.0)))),
            serving: three.map(|at| serving.exact(at).unwrap_or_else(|| exact(serve(at, 0.0)))),
            priced,
            open_bound,
        })
    }
}
