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

use crate::planner::bounds::loads::PassLoads;
use crate::planner::chips::on_chip::{ChipKernels, GroupBounds, GroupRefinement, OnChip, QueuedGroup};
use crate::planner::chips::prepared::{PreparedGroup, PreparedJob};
use crate::planner::search::core::PlanSearch;
use crate::planner::search::found::{FoundPlans, PlanCandidate};
use crate::planner::search::watch::PlanWatchState;
use crate::planner::splits::uneven::ROUNDING;
use crate::planner::{Job, PlanWatch, RankedPlan};
use sim::hardware::Accelerator;
use sim::status::SolveStatus;
use sim::units::Seconds;
use std::sync::{Arc, OnceLock};
use step::{ChipTimes, DeviceMemory, Evaluator, Fidelity, MixKind, OverCapacity, PlanShape, StepError, TrainingPlan};
use workloads::ActivationPolicy;

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
    pub fn lower_bound_over_fabrics(all: &[&Self], kernels: &mut ChipKernels<'_>, cutoff: f64, fidelity: Fidelity) -> Seconds {
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
        let each =
            all.iter().map(|prepared| Self::lower_bound_to(&[prepared], kernels, (cutoff, deepest), &mut GroupBounds::default()));
        each.fold(Seconds(f64::INFINITY), Seconds::min)
    }

    /// Whether two jobs differ at most in their fabrics and in the collectives that follow from them.
    #[must_use]
    pub fn differs_in_fabric_only(&self, other: &Self) -> bool {
        self.mark.alike == other.mark.alike
    }

    /// How far groups are refined before their plans are timed exactly. Splits and policies beyond the listed ones may
    /// fit where the listed ones do not, so then memory is no criterion.
    pub(crate) fn deepest_refinement(&self) -> GroupRefinement {
        if self.uneven || self.mixes != MixKind::None { GroupRefinement::Relaxed } else { GroupRefinement::Fitting }
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
    pub fn fastest_plan_with_kernels(&self, kernels: &mut ChipKernels<'_>, cutoff: f64) -> Result<FastestPlan, StepError> {
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
                let looked = on.search_in_own_memory().find_fastest_of_group(exact, &self.lots[lot], (limit, bounds), &mut found);
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
        let answer = search.finish_answer_on(exact, found, (0, crate::planner::splits::uneven::SplitStatistics::default()), 1)?;
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

/// How close to optimal the plans found in a group are.
#[derive(Debug, Clone)]
pub(crate) struct GroupFastest {
    /// The policies under which another order of kernels may make passes faster.
    pub open: Vec<usize>,
    /// The largest possible gain of a better plan, as a fraction of its time, with passes as they are.
    pub gap: f64,
}

/// A search among the plans of a job on devices with the given memory.
pub(crate) fn search_with_memory<'s>(
    prepared: &'s PreparedJob<'_>,
    job: &'s Job<'s>,
    chip: ChipTimes,
    memory: DeviceMemory,
) -> PlanSearch<'s> {
    PlanSearch {
        job,
        evaluator: Evaluator::new(job.model, job.fabric, job.stack, memory),
        chip,
        families: Arc::clone(&prepared.families),
        policies: Arc::clone(&prepared.policies),
        open: Arc::clone(&prepared.open),
        limit: f64::INFINITY,
        shapes: prepared.first_shapes(),
        divided: vec![OnceLock::new(); prepared.families.len()],
        length: 1 + crate::planner::search::core::SPARE,
        uneven: prepared.uneven,
        split_tolerance: prepared.split_tolerance,
        mixes: prepared.mixes,
        staged: std::sync::Mutex::default(),
        standing: PlanWatchState::new(PlanWatch::NONE),
        least: OnceLock::new(),
    }
}

impl PlanSearch<'_> {
    /// Adds the fastest plans of a group that are below `limit` seconds to `found`. `bounds` are lower bounds by
    /// policy, if known.
    pub(crate) fn find_fastest_of_group(
        &self,
        chip: &mut ChipTimes,
        lot: &PreparedGroup<'_>,
        (limit, bounds): (f64, Option<&[f64]>),
        found: &mut FoundPlans,
    ) -> GroupFastest {
        let (family, place) = (lot.family, lot.lot);
        let layers = self.job.model.layers;
        let first = self.any_plan_of_group(family, place);
        let first_plan = self.plan_of(first);
        let shares = self.least_shares_of_group(family, place);
        let mut lowered = lot.lowered.clone();
        let mut order: Vec<usize> = (0..self.policies.len()).collect();
        if let Some(bounds) = bounds {
            order.sort_by(|&a, &b| bounds[a].total_cmp(&bounds[b]));
            // The first shape lowered must be the one that keeps everything, whichever policy is first in the order.
            let plan = TrainingPlan { activations: ActivationPolicy::None.into(), ..first_plan.clone() };
            lowered.plan_shape(chip, self.job.fabric, &plan).ok();
        }
        let (mut unproven, mut kept, mut loads) = (Vec::new(), None, vec![None; order.len()]);
        for policy in order {
            let activations = &self.policies[policy];
            let limit = limit.min(found.cutoff_for_count(1) * (1.0 + ROUNDING));
            if bounds.is_some_and(|bounds| bounds[policy] >= limit) {
                continue;
            }
            // No policy works less than one without reruns.
            let work = kept.map_or(0.0, |kept: PassLoads| kept.all_loads(layers));
            let overhead = self.evaluator.overhead_per_step().0;
            if shares.iter().all(|share| work * share + overhead >= limit) {
                continue;
            }
            let plan = TrainingPlan { activations: activations.clone().into(), ..first_plan.clone() };
            let shape = lowered.plan_shape(chip, self.job.fabric, &plan);
            let known = shape.as_ref().ok().map(|shape| PassLoads::of_shape(shape, self.job.stack));
            if shape.as_ref().is_ok_and(|shape| !shape.is_proven()) {
                unproven.push(policy);
            }
            if *activations == ActivationPolicy::None {
                kept = known;
            }
            loads[policy] = known;
            let most = known.map_or(f64::INFINITY, |known| (limit - overhead) / known.all_loads(layers));
            self.evaluate_policy(chip, &shape, plan, (PlanCandidate { policy: policy as u32, ..first }, &shares, most), found);
        }
        found.prune_beaten(self.length);
        self.settle_group(found, chip, &lowered);
        if self.uneven {
            let limit = limit.min(found.cutoff_for_count(1) * (1.0 + ROUNDING));
            let here: Vec<PlanCandidate> = found.best.iter().filter(|c| (c.family, c.lot) == (family, place)).copied().collect();
            let (more, _) = self.best_splits_of_group(chip, (family as usize, place as usize), (&here, &loads), limit);
            more.best.into_iter().for_each(|candidate| found.insert_with_split(candidate, self.length));
        }
        let mixed = self.add_mixes_of_group(chip, (family as usize, place as usize), limit, found);
        let open = if mixed.proven { unproven } else { (0..self.policies.len()).collect() };
        GroupFastest { open, gap: mixed.gap.max(self.split_tolerance) }
    }

    /// A plan of a group under a policy.
    pub(crate) fn plan_under_policy(&self, lot: &PreparedGroup<'_>, policy: usize) -> TrainingPlan {
        let first = self.plan_of(self.any_plan_of_group(lot.family, lot.lot));
        TrainingPlan { activations: self.policies[policy].clone().into(), ..first }
    }

    /// Lower bound in seconds on any plan of a group under a policy that fits, if `shape` bounds its passes. It is only
    /// as tight as needed to decide whether it is below `limit`. `lacking` keeps the nearest plan that does not fit.
    pub(crate) fn bound_fitting_plans(
        &self,
        lot: &PreparedGroup<'_>,
        (policy, shape): (usize, &Result<PlanShape, StepError>),
        limit: f64,
        lacking: &mut FoundPlans,
    ) -> f64 {
        let Ok(known) = shape.as_ref().map(|shape| PassLoads::of_shape(shape, self.job.stack)) else { return 0.0 };
        let most = (limit - self.evaluator.overhead_per_step().0) / known.all_loads(self.job.model.layers);
        let first = PlanCandidate { policy: policy as u32, ..self.any_plan_of_group(lot.family, lot.lot) };
        let shares = self.least_shares_of_group(lot.family, lot.lot);
        let mut found = FoundPlans::default();
        self.evaluate_policy(&self.chip, shape, self.plan_under_policy(lot, policy), (first, &shares, most), &mut found);
        if let Some((lack, candidate)) = found.nearest {
            lacking.note_shortfall(lack, candidate);
        }
        if found.refused > 0 {
            return 0.0;
        }
        let open = found.open.iter().map(|candidate| candidate.time).fold(f64::INFINITY, f64::min);
        let beyond = if found.rejected_by_bound > 0 { limit } else { f64::INFINITY };
        found.cutoff_for_count(1).min(open).min(beyond)
    }

    /// The plan with the smallest shortfall among those that do not fit.
    fn find_nearest_miss(&self, found: FoundPlans) -> Result<Option<(TrainingPlan, OverCapacity)>, StepError> {
        Ok(self.finish_answer(found, 0, crate::planner::splits::uneven::SplitStatistics::default(), 1)?.nearest)
    }
}

#[cfg(test)]
#[path = "fastest_tests.rs"]
mod tests;
