//! Searches by the bad ends of step times, so that the search does not choose a design by a lucky model error.
//!
//! Every design has its fastest plan as usual. Its step counts at the bad end of the plan's interval: the predicted
//! time times a factor of at least one. The search knows a lower bound on the factors of all plans. So a bound on
//! times, multiplied by this least factor, is a bound on bad ends.

use super::bounds::SLACK;
use super::{DesignEvaluation, DesignOutcome, DesignSearch, Rejection, value_of_verdict};
use crate::planner::{Job, PreparedJob, RankedPlan};
use crate::runner::CandidateOutcome;
use crate::space::DesignId;
use sim::hardware::Accelerator;
use sim::units::Seconds;

/// The factor from a plan's predicted step time to the bad end of its interval: 1 or more, and equal in every call.
pub type StepFactor = fn(&Job<'_>, &RankedPlan) -> f64;

/// A search by the bad ends of steps. Its objective depends on seconds alone, and it has no front.
#[derive(Debug, Clone, Copy)]
pub struct RobustSearch<'a> {
    /// The factor at the bad end: [`bad_end_factor`](crate::bad_end::bad_end_factor), or a substitute in tests.
    pub factor: StepFactor,
    /// By model, a lower bound on the factor of any plan of its space, on any chip and fabric of the search.
    pub least: &'a [f64],
}

impl DesignSearch<'_> {
    /// Lower bound on the factor of a model's plans; 1 if steps count as predicted.
    pub(super) fn least_step_factor(&self, model: usize) -> f64 {
        self.robust.map_or(1.0, |robust| robust.least.get(model).copied().unwrap_or(1.0))
    }

    /// The factor of one plan; 1 if steps count as predicted.
    pub(super) fn step_factor_of(&self, prepared: &PreparedJob<'_>, chip: &Accelerator, plan: &RankedPlan) -> f64 {
        self.robust.map_or(1.0, |robust| (robust.factor)(&prepared.job(chip), plan))
    }

    /// Limit on a plan's predicted step, in seconds; infinite without a step limit. A longer step exceeds the limit at
    /// its bad end, because no factor is below the least one.
    pub(super) fn longest_step(&self, model: usize) -> f64 {
        self.aim.max_step.map_or(f64::INFINITY, |most| most.0 / self.least_step_factor(model) * SLACK)
    }

    /// The rejection of a design whose counted step exceeds the limit.
    pub(super) fn step_limit_exclusion(&self, counted: f64, most: Seconds) -> Rejection {
        match self.robust {
            Some(_) => Rejection::MayBeSlow(Seconds(counted), most),
            None => Rejection::TooSlow(Seconds(counted), most),
        }
    }

    /// True if a design with less HBM may be within the step limit although its chip with the most is not: a slower
    /// plan may have a nearer bad end.
    pub(super) fn may_be_nearer(&self, with_more: &[DesignEvaluation]) -> bool {
        let why = with_more.last().and_then(|of| of.outcome.as_ref().err());
        self.robust.is_some() && matches!(why, Some(Rejection::MayBeSlow(..)))
    }

    /// Lower bound on the value of a design whose chip was evaluated with more HBM. Less HBM shortens no step, but
    /// another plan's bad end may be nearer.
    pub(super) fn least_value_with_less_memory(
        &self,
        id: DesignId,
        with_more: &CandidateOutcome<Vec<DesignEvaluation>>,
    ) -> f64 {
        let least = self.lower_bound_of_design(with_more);
        let (CandidateOutcome::Evaluated { evaluation, .. }, true) = (with_more, self.robust.is_some()) else {
            return least;
        };
        let Ok(chip) = self.space.chip_of_design(id) else { return 0.0 };
        let part = |(model, of): (usize, &DesignEvaluation)| {
            let plan = of.outcome.as_ref().ok()?;
            Some(self.least_step_factor(model) / self.step_factor_of(self.prepared_job(model, id), &chip, plan))
        };
        // The mean over models grows with each model's measure, so the smallest part bounds it. The last factor allows
        // for rounding.
        least * evaluation.iter().enumerate().filter_map(part).fold(1.0, f64::min) * (1.0 - 1e-12)
    }

    /// Index of the best design; `at` is its place on the front. At bad ends a design with less HBM may be better than
    /// its chip with the most, or the only one within the step limit. The best design becomes the front.
    pub(super) fn best_by_bad_end(
        &self,
        designs: &[DesignOutcome],
        front: &mut Vec<usize>,
        at: Option<usize>,
    ) -> Option<usize> {
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
