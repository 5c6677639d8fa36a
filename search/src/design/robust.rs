//! Designs by what their steps take at worst, so that the search does not choose the design about which the model is wrong most luckily.
//!
//! Every design is under its fastest plan, as ever, and its step counts as long as it may take at the bad end of the plan's interval: a factor of one
//! and more of the predicted time. No factor is below the least of the plans that there are, so that a bound on times, that many times, is one on bad ends.

use super::bounds::SLACK;
use super::{DesignEvaluation, DesignOutcome, DesignSearch, Rejection, value_of_verdict};
use crate::planner::{Job, PreparedJob, RankedPlan};
use crate::runner::CandidateOutcome;
use crate::space::DesignId;
use sim::hardware::Accelerator;
use sim::units::Seconds;
use std::fmt;

/// How much longer than predicted steps may take.
pub trait StepTimeMargin: fmt::Debug + Sync {
    /// How many times as long as predicted the step of a job's plan may take: 1 and more, and the same whenever it is asked for.
    fn step_factor(&self, job: &Job<'_>, plan: &RankedPlan) -> f64;
}

/// A search by the bad ends of steps, whose objective is of seconds alone and which has no front.
#[derive(Debug, Clone, Copy)]
pub struct RobustSearch<'a> {
    /// The bad ends.
    pub ends: &'a dyn StepTimeMargin,
    /// By model: no plan of its space has a lower factor, on any chip and fabric of the search.
    pub least: &'a [f64],
}

impl DesignSearch<'_> {
    /// No step of a model counts as fewer times its seconds.
    pub(super) fn least_step_factor(&self, model: usize) -> f64 {
        self.robust.map_or(1.0, |robust| robust.least.get(model).copied().unwrap_or(1.0))
    }

    /// As how many times its seconds a step counts.
    pub(super) fn step_factor_of(&self, prepared: &PreparedJob<'_>, chip: &Accelerator, plan: &RankedPlan) -> f64 {
        self.robust.map_or(1.0, |robust| robust.ends.step_factor(&prepared.job(chip), plan))
    }

    /// A model's plans of longer predicted steps than this are outside the limit on steps, which holds for what steps count as.
    pub(super) fn longest_step(&self, model: usize) -> f64 {
        self.aim.max_step.map_or(f64::INFINITY, |most| most.0 / self.least_step_factor(model) * SLACK)
    }

    /// Why a design is outside the limit on steps: its step counts as so many seconds, or more.
    pub(super) fn step_limit_exclusion(&self, counted: f64, most: Seconds) -> Rejection {
        match self.robust {
            Some(_) => Rejection::MayBeSlow(Seconds(counted), most),
            None => Rejection::TooSlow(Seconds(counted), most),
        }
    }

    /// Whether a design with less HBM may be within the limit on steps though its chip with the most is not: under a slower plan whose bad end is nearer.
    pub(super) fn may_be_nearer(&self, with_more: &[DesignEvaluation]) -> bool {
        let why = with_more.last().and_then(|of| of.outcome.as_ref().err());
        self.robust.is_some() && matches!(why, Some(Rejection::MayBeSlow(..)))
    }

    /// No value of a design is below this, whose chip was evaluated with more HBM: no step is shorter with less, though another plan's bad end may be nearer.
    pub(super) fn least_value_with_less_memory(&self, id: DesignId, with_more: &CandidateOutcome<Vec<DesignEvaluation>>) -> f64 {
        let least = self.lower_bound_of_design(with_more);
        let (CandidateOutcome::Evaluated { evaluation, .. }, true) = (with_more, self.robust.is_some()) else { return least };
        let Ok(chip) = self.space.chip_of_design(id) else { return 0.0 };
        let part = |(model, of): (usize, &DesignEvaluation)| {
            let plan = of.outcome.as_ref().ok()?;
            Some(self.least_step_factor(model) / self.step_factor_of(self.prepared_job(model, id), &chip, plan))
        };
        // A hair for rounding; means grow with every model's.
        least * evaluation.iter().enumerate().filter_map(part).fold(1.0, f64::min) * (1.0 - 1e-12)
    }

    /// The position of the best design, `at` on the front: of bad ends one with less HBM may be better than its chip with the most, or the only one within
    /// the limit on steps. It is then the front.
    pub(super) fn best_by_bad_end(&self, designs: &[DesignOutcome], front: &mut Vec<usize>, at: Option<usize>) -> Option<usize> {
        let chip = at.map(|at| front[at]);
        if self.robust.is_none() {
            return chip;
        }
        let value = |of: Option<usize>| of.map_or(f64::INFINITY, |of| value_of_verdict(&designs[of].outcome));
        let better = |best, other| if value(Some(other)) < value(best) { Some(other) } else { best };
        let best = (0..designs.len()).fold(chip, better);
        *front = best.into_iter().collect();
        best
    }
}
