//! Finds the fastest plan of a job on one of many chips. Groups of plans are refined in the order of their bounds, each
//! only as far as the best plan so far requires.
//!
//! A plan group is bounded in steps:
//! - by its kernels' peaks;
//! - by the part of the peaks that arrays and buffers allow;
//! - by its mapped kernels;
//! - by its plans, timed with kernels at their fastest: plans that fit, policy by policy; or all plans without a memory
//!   limit, if layers may be split or kept in ways that are not listed.
//!
//! The remaining plans are timed exactly. Plans, times and ties are those of [`search_plans`](crate::planner::search_plans),
//! with all splits of the layers open and whatever the stack's framework can run.

use crate::planner::RankedPlan;
use crate::planner::chips::on_chip::{ChipKernels, GroupBounds, GroupRefinement, OnChip, QueuedGroup};
use crate::planner::chips::prepared::PreparedJob;
use crate::planner::search::found::FoundPlans;
use crate::planner::search::found::ROUNDING;
use sim::hardware::Accelerator;
use sim::status::SolveStatus;
use sim::units::Seconds;
use step::{ChipTimes, Fidelity, OverCapacity, StepError, TrainingPlan};

/// The outcome of a job on a chip.
#[derive(Debug, Clone, PartialEq)]
pub enum FastestPlan {
    /// The fastest plan that fits, and its proven bounds among all plans.
    Plan(Box<RankedPlan>, SolveStatus),
    /// No plan fits; the one with the smallest memory shortfall.
    TooLarge(Option<Box<(TrainingPlan, OverCapacity)>>),
    /// Lower bound on all plans, at or above the cutoff.
    Beaten(Seconds),
}

impl PreparedJob<'_> {
    /// Lower bound in seconds on any plan on the chip, from its kernels' peaks.
    #[must_use]
    pub fn coarse_bound(&self, kernels: &mut ChipKernels<'_>) -> Seconds {
        Self::lower_bound_over_fabrics(&[self], kernels, f64::INFINITY, Fidelity::Peak)
    }

    /// Lower bound in seconds on any plan on the chip, from mapped kernels and timed plans; infinite if none fits. It
    /// is only as tight as needed to decide whether it is below `cutoff`.
    #[must_use]
    pub fn fine_bound(&self, kernels: &mut ChipKernels<'_>, cutoff: f64) -> Seconds {
        Self::lower_bound_within(&[self], kernels, (cutoff, Fidelity::Exact), &mut GroupBounds::default())
    }

    /// Lower bound in seconds on any plan on the chip, on any of several fabrics, from least kernel times. It is only
    /// as tight as needed to decide whether it is below `cutoff`. Jobs that are not [`Self::differs_in_fabric_only`]
    /// are bounded one by one.
    #[must_use]
    pub fn lower_bound_over_fabrics(
        all: &[&Self],
        kernels: &mut ChipKernels<'_>,
        cutoff: f64,
        fidelity: Fidelity,
    ) -> Seconds {
        Self::lower_bound_within(all, kernels, (cutoff, fidelity.min(Fidelity::Mapped)), &mut GroupBounds::default())
    }

    /// As [`Self::lower_bound_over_fabrics`], or on one fabric with [`Fidelity::Exact`] as [`Self::fine_bound`], with
    /// known bounds.
    ///
    /// `known` must hold for a set of chips and fabrics that includes these. Groups that it decides are not refined. It
    /// receives the new bounds, and then holds for this chip and these fabrics.
    #[must_use]
    pub fn lower_bound_within(
        all: &[&Self],
        kernels: &mut ChipKernels<'_>,
        (cutoff, fidelity): (f64, Fidelity),
        known: &mut GroupBounds,
    ) -> Seconds {
        let deepest = match all {
            [alone] if fidelity > Fidelity::Mapped => alone.deepest_refinement(),
            _ => GroupRefinement::Bound(fidelity.min(Fidelity::Mapped)),
        };
        if all.windows(2).all(|pair| pair[0].differs_in_fabric_only(pair[1])) {
            return Self::lower_bound_to(all, kernels, (cutoff, deepest), known);
        }
        let each = all
            .iter()
            .map(|prepared| Self::lower_bound_to(&[prepared], kernels, (cutoff, deepest), &mut GroupBounds::default()));
        each.fold(Seconds(f64::INFINITY), Seconds::min)
    }

    /// True if two jobs differ at most in their fabrics and in the collectives that follow from them.
    #[must_use]
    pub fn differs_in_fabric_only(&self, other: &Self) -> bool {
        self.mark.alike == other.mark.alike
    }

    fn lower_bound_to(
        all: &[&Self],
        kernels: &mut ChipKernels<'_>,
        (cutoff, deepest): (f64, GroupRefinement),
        known: &mut GroupBounds,
    ) -> Seconds {
        let Some(first) = all.first() else { return Seconds(f64::INFINITY) };
        let job = first.job(kernels.chip());
        let mut on = OnChip::new(first, all, &job, kernels, known);
        let bound = loop {
            match on.waiting.pop() {
                None => break f64::INFINITY,
                Some(least) if least.look == deepest || least.bound >= cutoff => {
                    on.waiting.push(least);
                    break least.bound;
                }
                Some(least) => on.refine_bound(least, cutoff),
            }
        };
        *known = on.group_bounds();
        Seconds(bound)
    }

    /// The fastest plan on the chip, or proof that no plan is below `cutoff` seconds.
    ///
    /// # Errors
    /// A chip that the cost model cannot use.
    pub fn fastest_plan(&self, chip: &Accelerator, cutoff: f64) -> Result<FastestPlan, StepError> {
        self.fastest_plan_with_kernels(&mut ChipKernels::new(self, chip)?, cutoff)
    }

    /// [`Self::fastest_plan`] with cached kernel times of the chip.
    ///
    /// # Errors
    /// As [`Self::fastest_plan`].
    pub fn fastest_plan_with_kernels(
        &self,
        kernels: &mut ChipKernels<'_>,
        cutoff: f64,
    ) -> Result<FastestPlan, StepError> {
        let mut exact = kernels.exact.clone();
        let found = self.search_fastest_plan(kernels, &mut exact, cutoff);
        kernels.exact = exact;
        found
    }

    fn search_fastest_plan(
        &self,
        kernels: &mut ChipKernels<'_>,
        exact: &mut ChipTimes,
        cutoff: f64,
    ) -> Result<FastestPlan, StepError> {
        let job = self.job(kernels.chip());
        let all = [self];
        let mut on = OnChip::new(self, &all, &job, kernels, &GroupBounds::default());
        let (mut found, mut gap, mut open) = (FoundPlans::default(), 0.0_f64, Vec::new());
        let mut left = f64::INFINITY;
        while let Some(least) = on.waiting.pop() {
            let limit = cutoff.min(found.cutoff_for_count(1) * (1.0 + ROUNDING));
            // A group's bound must be below this to be refined.
            let useful = limit * (1.0 - self.split_tolerance);
            let QueuedGroup { bound, lot, look } = least;
            if bound >= useful {
                left = bound;
                break;
            }
            if look == self.deepest_refinement() {
                let bounds = on.fitting.get(&lot).map(Vec::as_slice);
                let looked = on.search_in_own_memory().find_fastest_of_group(
                    exact,
                    &self.lots[lot],
                    (limit, bounds),
                    &mut found,
                );
                gap = gap.max(looked.gap);
                if !looked.open.is_empty() {
                    open.push((lot, looked.open));
                }
            } else {
                on.refine_bound(least, useful);
            }
        }
        let search = on.search_in_own_memory();
        if let Some((lack, candidate)) = on.lacking.nearest {
            found.note_shortfall(lack, candidate);
        }
        let bounded = exact.with_fidelity(Fidelity::Scheduled);
        // Groups skipped for the tolerance are below the limit.
        let skipped = if self.split_tolerance > 0.0 { left } else { f64::INFINITY };
        let least = |seconds: f64| on.lower_bound_of_groups(&open, &bounded, skipped.min(seconds * (1.0 - gap)));
        let Some(first) = found.best.first().copied() else {
            return Ok(match cutoff.is_finite() || left.is_finite() {
                true => FastestPlan::Beaten(Seconds(least(cutoff))),
                false => FastestPlan::TooLarge(search.find_nearest_miss(found)?.map(Box::new)),
            });
        };
        // Plans that differ only by rounding are compared by their final times.
        found.best.retain(|candidate| candidate.time <= first.time * (1.0 + 2.0 * ROUNDING));
        found.nearest = None;
        let answer =
            search.finish_answer_on(exact, found, (0, crate::planner::search::found::SplitStatistics::default()), 1)?;
        match answer.best.into_iter().next() {
            Some(best) if best.time.total.0 < cutoff => {
                let seconds = best.time.total.0;
                Ok(FastestPlan::Plan(Box::new(best), SolveStatus::from_bounds(least(seconds), seconds)))
            }
            // Other plans below it may not have been timed, but none is below the cutoff.
            Some(_) => Ok(FastestPlan::Beaten(Seconds(least(cutoff)))),
            None => Ok(FastestPlan::TooLarge(None)),
        }
    }
}

#[cfg(test)]
#[path = "fastest_tests.rs"]
mod tests;
