//! Finds the fastest plan of a job on one of many chips. Groups of plans are refined in the order of their bounds, each
//! only as far as the best plan so far requires.
//!
//! A plan group is bounded in steps:
//! - by its kernels' peaks;
//! - by the part of its kernels' peaks that arrays and buffers allow;
//! - by its mapped kernels;
//! - by its plans, timed with kernels at their fastest. These are the plans that fit, policy by policy. If layers may
//!   be split or kept in ways that are not listed, these are all plans, without a memory limit.
//!
//! The remaining plans are timed exactly. Plans, times and ties are those of
//! [`search_plans`](crate::planner::search_plans), with all splits of the layers open, and regardless of what the
//! stack's framework can run.

use crate::planner::RankedPlan;
use crate::planner::chips::on_chip::{ChipKernels, GroupBounds, GroupRefinement, OnChip, QueuedGroup, UnprovenGroup};
use crate::planner::chips::prepared::PreparedJob;
use crate::planner::search::found::{FoundPlans, ROUNDING, SplitStatistics};
use sim::hardware::Accelerator;
use sim::status::SolveStatus;
use sim::units::Seconds;
use step::{ChipTimes, Fidelity, OverCapacity, StepError, TrainingPlan};

/// The outcome of a job on a chip.
#[derive(Debug, Clone, PartialEq)]
pub enum FastestPlan {
    /// The fastest plan that fits, and the proven bounds on its time among all plans.
    Plan(Box<RankedPlan>, SolveStatus),
    /// No plan fits. Holds the plan with the smallest memory shortfall, if known.
    TooLarge(Option<Box<(TrainingPlan, OverCapacity)>>),
    /// No plan that fits was found below the cutoff. Holds a lower bound on all plans. It is at or above the cutoff,
    /// except for the split tolerance and the gaps of mixes.
    Beaten(Seconds),
}

/// The groups of a job after they were searched in the order of their bounds.
struct RefinedGroups {
    found: FoundPlans,
    /// The largest possible gain of a better mix or split, as a fraction.
    gap: f64,
    open: Vec<UnprovenGroup>,
    /// The least bound in seconds of the groups that were not searched; infinite if there is none.
    left: f64,
}

impl PreparedJob<'_> {
    /// Lower bound in seconds on any plan on the chip, from its kernels' peaks.
    #[must_use]
    pub fn coarse_bound(&self, kernels: &mut ChipKernels<'_>) -> Seconds {
        Self::lower_bound_over_fabrics(&[self], kernels, f64::INFINITY, Fidelity::Peak)
    }

    /// Lower bound in seconds on any plan on the chip, from mapped kernels and timed plans. It is only as tight as
    /// needed to decide whether it is below `cutoff`. If splits and policies are listed, only plans that fit count, and
    /// the bound is infinite if none fits.
    #[must_use]
    pub fn fine_bound(&self, kernels: &mut ChipKernels<'_>, cutoff: f64) -> Seconds {
        Self::lower_bound_within(&[self], kernels, cutoff, Fidelity::Exact, &mut GroupBounds::default())
    }

    /// Lower bound in seconds on any plan on the chip, on any of several fabrics, from least kernel times. It is only
    /// as tight as needed to decide whether it is below `cutoff`. If the jobs differ in more than their fabrics
    /// ([`Self::differs_in_fabric_only`]), they are bounded one by one.
    #[must_use]
    pub fn lower_bound_over_fabrics(
        all: &[&Self],
        kernels: &mut ChipKernels<'_>,
        cutoff: f64,
        fidelity: Fidelity,
    ) -> Seconds {
        Self::lower_bound_within(all, kernels, cutoff, fidelity.min(Fidelity::Mapped), &mut GroupBounds::default())
    }

    /// As [`Self::lower_bound_over_fabrics`], with known bounds. If one fabric has the fastest links, as a single one
    /// does, [`Fidelity::Exact`] is allowed, and the bound is that of [`Self::fine_bound`] on that fabric.
    ///
    /// `known` must hold for a set of chips and fabrics that includes these. Groups that it decides are not refined. On
    /// return it has the new bounds, which hold for this chip and these fabrics. It is neither used nor changed if the
    /// jobs are bounded one by one.
    #[must_use]
    pub fn lower_bound_within(
        all: &[&Self],
        kernels: &mut ChipKernels<'_>,
        cutoff: f64,
        fidelity: Fidelity,
        known: &mut GroupBounds,
    ) -> Seconds {
        let alike = all.windows(2).all(|pair| pair[0].differs_in_fabric_only(pair[1]));
        let fastest = alike.then(|| Self::on_fastest_links(all)).flatten();
        let all = fastest.as_ref().map_or(all, std::slice::from_ref);
        let deepest = match all {
            [alone] if fidelity > Fidelity::Mapped => alone.deepest_refinement(),
            _ => GroupRefinement::Bound(fidelity.min(Fidelity::Mapped)),
        };
        if alike {
            return Self::lower_bound_to(all, kernels, cutoff, deepest, known);
        }
        let each = all
            .iter()
            .map(|prepared| Self::lower_bound_to(&[prepared], kernels, cutoff, deepest, &mut GroupBounds::default()));
        each.fold(Seconds(f64::INFINITY), Seconds::min)
    }

    /// The job whose fabric is at least as fast as that of every other. `None` if no fabric is.
    fn on_fastest_links<'j>(all: &[&'j Self]) -> Option<&'j Self> {
        let is_fastest = |one: &&&Self| all.iter().all(|other| one.job.fabric.has_links_of_at_least(other.job.fabric));
        all.iter().rev().find(is_fastest).copied()
    }

    /// True if two jobs are lowered alike: they differ at most in their fabrics and in the collectives that follow from
    /// these.
    #[must_use]
    pub fn differs_in_fabric_only(&self, other: &Self) -> bool {
        self.mark.alike == other.mark.alike
    }

    fn lower_bound_to(
        all: &[&Self],
        kernels: &mut ChipKernels<'_>,
        cutoff: f64,
        deepest: GroupRefinement,
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

    /// Finds the fastest plan on the chip, or proves that no plan is below `cutoff` seconds, within the split tolerance
    /// and the gaps of mixes.
    ///
    /// # Errors
    /// A chip that the cost model cannot use.
    pub fn fastest_plan(&self, chip: &Accelerator, cutoff: f64) -> Result<FastestPlan, StepError> {
        self.fastest_plan_with_kernels(&mut ChipKernels::new(self, chip)?, cutoff)
    }

    /// As [`Self::fastest_plan`], with cached kernel times of the chip.
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

    /// Searches the groups in the order of their bounds, until no bound is below the fastest plan or `cutoff`.
    fn refine_groups(&self, on: &mut OnChip<'_, '_, '_>, exact: &mut ChipTimes, cutoff: f64) -> RefinedGroups {
        let (mut found, mut gap, mut open) = (FoundPlans::default(), 0.0_f64, Vec::new());
        let mut left = f64::INFINITY;
        while let Some(least) = on.waiting.pop() {
            let limit = cutoff.min(found.cutoff_for_count(1) * (1.0 + ROUNDING));
            // Only groups with a bound below this are refined.
            let useful = limit * (1.0 - self.split_tolerance);
            let QueuedGroup { bound, lot, look } = least;
            if bound >= useful {
                left = bound;
                break;
            }
            if look == self.deepest_refinement() {
                let bounds = on.fitting.get(&lot).map(Vec::as_slice);
                let search = on.search_in_own_memory();
                let looked = search.find_fastest_of_group(exact, &self.lots[lot], limit, bounds, &mut found);
                gap = gap.max(looked.gap);
                if !looked.open.is_empty() {
                    open.push(UnprovenGroup { lot, policies: looked.open });
                }
            } else {
                on.refine_bound(least, useful);
            }
        }
        RefinedGroups { found, gap, open, left }
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
        let RefinedGroups { mut found, gap, open, left } = self.refine_groups(&mut on, exact, cutoff);
        let search = on.search_in_own_memory();
        if let Some((lack, candidate)) = on.lacking.nearest {
            found.note_shortfall(lack, candidate);
        }
        let bounded = exact.with_fidelity(Fidelity::Scheduled);
        // Groups that the tolerance skips may have plans below the limit.
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
        let answer = search.finish_answer_on(exact, found, 0, SplitStatistics::default(), 1)?;
        match answer.best.into_iter().next() {
            Some(best) if best.time.total.0 < cutoff => {
                let seconds = best.time.total.0;
                Ok(FastestPlan::Plan(Box::new(best), SolveStatus::from_bounds(least(seconds), seconds)))
            }
            // Plans faster than this one may not have been timed, but none is below the cutoff.
            Some(_) => Ok(FastestPlan::Beaten(Seconds(least(cutoff)))),
            None => Ok(FastestPlan::TooLarge(None)),
        }
    }
}

#[cfg(test)]
#[path = "fastest_tests.rs"]
mod tests;
