//! Searches or bounds the plans of one group on one chip.

use crate::planner::bounds::loads::PassLoads;
use crate::planner::chips::prepared::{PreparedGroup, PreparedJob};
use crate::planner::search::core::{PlanSearch, SPARE, WorkShares};
use crate::planner::search::found::{FoundPlans, GroupPlace, PlanCandidate, ROUNDING, SplitStatistics};
use crate::planner::search::watch::PlanWatchState;
use crate::planner::{Job, PlanWatch};
use sim::units::Bytes;
use std::sync::{Arc, OnceLock};
use step::{ChipTimes, DeviceMemory, Evaluator, LoweredModel, OverCapacity, PlanShape, StepError, TrainingPlan};
use workloads::ActivationPolicy;

/// The proven distance of a group's best plan from the optimum.
#[derive(Debug, Clone)]
pub(crate) struct GroupFastest {
    /// Indices of the policies under which another order of kernels may make passes faster.
    pub open: Vec<usize>,
    /// The largest possible gain of a better plan, as a fraction of its time, if passes take the times found.
    pub gap: f64,
}

/// Makes a search among a job's prepared plans for those that fit the chip's memory.
pub(crate) fn search_in_memory<'s>(prepared: &'s PreparedJob<'_>, job: &'s Job<'s>, chip: ChipTimes) -> PlanSearch<'s> {
    let evaluator = Evaluator::new(job.model, job.fabric, job.stack, DeviceMemory::of_chip(job.chip));
    PlanSearch { evaluator, factors: Some(prepared.factors_of(job)), ..search_without_memory(prepared, job, chip) }
}

/// Makes a search among a job's prepared plans without a memory limit.
pub(crate) fn search_without_memory<'s>(
    prepared: &'s PreparedJob<'_>,
    job: &'s Job<'s>,
    chip: ChipTimes,
) -> PlanSearch<'s> {
    let endless = DeviceMemory { hbm: Bytes(u64::MAX), host: Bytes(u64::MAX), storage: Bytes(u64::MAX) };
    PlanSearch {
        job,
        evaluator: Evaluator::new(job.model, job.fabric, job.stack, endless),
        factors: None,
        chip,
        families: Arc::clone(&prepared.families),
        policies: Arc::clone(&prepared.policies),
        open: Arc::clone(&prepared.open),
        limit: f64::INFINITY,
        shapes: prepared.first_shapes(),
        divided: vec![OnceLock::new(); prepared.families.len()],
        length: 1 + SPARE,
        uneven: prepared.uneven,
        split_tolerance: prepared.split_tolerance,
        mixes: prepared.mixes,
        staged: std::sync::Mutex::default(),
        standing: PlanWatchState::new(PlanWatch::NONE),
        least: OnceLock::new(),
    }
}

/// A group's policies after their plans were evaluated.
struct EvaluatedPolicies {
    /// Indices of the policies under which another order of kernels may make passes faster.
    unproven: Vec<usize>,
    /// The loads by policy; `None` if the policy was skipped or has no shape.
    loads: Vec<Option<PassLoads>>,
}

impl PlanSearch<'_> {
    /// Adds the fastest plans of a group that are below `limit` seconds to `found`. `bounds` are lower bounds in
    /// seconds by policy, if known; policies at or above the limit are skipped.
    pub(crate) fn find_fastest_of_group(
        &self,
        chip: &mut ChipTimes,
        lot: &PreparedGroup<'_>,
        limit: f64,
        bounds: Option<&[f64]>,
        found: &mut FoundPlans,
    ) -> GroupFastest {
        let place = lot.place;
        let mut lowered = lot.lowered.clone();
        let EvaluatedPolicies { unproven, loads } =
            self.evaluate_group_policies(chip, place, &mut lowered, limit, bounds, found);
        found.prune_beaten(self.length);
        self.settle_group(found, chip, &lowered);
        if self.uneven {
            let limit = limit.min(found.cutoff_for_count(1) * (1.0 + ROUNDING));
            let here: Vec<PlanCandidate> = found.best.iter().filter(|c| c.group_place() == place).copied().collect();
            let more = self.best_splits_of_group(chip, place, &here, &loads, limit).plans;
            more.best.into_iter().for_each(|candidate| found.insert_with_split(candidate, self.length));
        }
        let mixed = self.add_mixes_of_group(chip, place, limit, found);
        let open = if mixed.proven { unproven } else { (0..self.policies.len()).collect() };
        GroupFastest { open, gap: mixed.gap.max(self.split_tolerance) }
    }

    /// Evaluates a group's plans policy by policy, least bound first. The arguments are those of
    /// [`Self::find_fastest_of_group`].
    fn evaluate_group_policies(
        &self,
        chip: &mut ChipTimes,
        place: GroupPlace,
        lowered: &mut LoweredModel<'_>,
        limit: f64,
        bounds: Option<&[f64]>,
        found: &mut FoundPlans,
    ) -> EvaluatedPolicies {
        let layers = self.job.model.layers;
        let first = self.any_plan_of_group(place);
        let first_plan = self.plan_of(first);
        let shares = self.least_shares_of_group(place);
        let mut order: Vec<usize> = (0..self.policies.len()).collect();
        if let Some(bounds) = bounds {
            order.sort_by(|&a, &b| bounds[a].total_cmp(&bounds[b]));
            // The shape that keeps everything must be lowered first, whichever policy is first in the order.
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
            // No policy takes less work than the one without reruns.
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
            let at = PlanCandidate { policy: policy as u32, ..first };
            self.evaluate_policy(chip, &shape, plan, at, WorkShares { by_pair: &shares, most }, found);
        }
        EvaluatedPolicies { unproven, loads }
    }

    /// A plan of a group under a policy.
    pub(crate) fn plan_under_policy(&self, lot: &PreparedGroup<'_>, policy: usize) -> TrainingPlan {
        let first = self.plan_of(self.any_plan_of_group(lot.place));
        TrainingPlan { activations: self.policies[policy].clone().into(), ..first }
    }

    /// Lower bound in seconds on any plan of a group that fits under a policy, if `shape` bounds its passes. It is only
    /// as tight as needed to decide whether it is below `limit`. `lacking` receives the nearest plan that does not fit.
    /// Zero if the plans cannot be bounded.
    pub(crate) fn bound_fitting_plans(
        &self,
        lot: &PreparedGroup<'_>,
        policy: usize,
        shape: &Result<PlanShape, StepError>,
        limit: f64,
        lacking: &mut FoundPlans,
    ) -> f64 {
        let Ok(known) = shape.as_ref().map(|shape| PassLoads::of_shape(shape, self.job.stack)) else { return 0.0 };
        let most = (limit - self.evaluator.overhead_per_step().0) / known.all_loads(self.job.model.layers);
        let first = PlanCandidate { policy: policy as u32, ..self.any_plan_of_group(lot.place) };
        let shares = self.least_shares_of_group(lot.place);
        let mut found = FoundPlans::default();
        let plan = self.plan_under_policy(lot, policy);
        self.evaluate_policy(&self.chip, shape, plan, first, WorkShares { by_pair: &shares, most }, &mut found);
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

    /// The plan with the smallest shortfall among those that do not fit; `None` if none was noted.
    pub(crate) fn find_nearest_miss(
        &self,
        found: FoundPlans,
    ) -> Result<Option<(TrainingPlan, OverCapacity)>, StepError> {
        Ok(self.finish_answer(found, 0, SplitStatistics::default(), 1)?.nearest)
    }
}
