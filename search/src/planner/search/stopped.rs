//! Lower bounds for a search over plans that is stopped before its end.

use crate::planner::MixStatistics;
use crate::planner::bounds::loads::PassLoads;
use crate::planner::search::core::PlanSearch;
use crate::planner::search::found::{FoundPlans, GroupPlace, ROUNDING};
use rayon::prelude::*;
use sim::units::Seconds;
use step::{Fidelity, LoweredModel, TrainingPlan};
use workloads::StagePolicies;

impl PlanSearch<'_> {
    /// Number of plans of a group, over all policies.
    pub(crate) fn plan_count_of_group(&self, place: GroupPlace) -> usize {
        let family = &self.families[place.family as usize];
        let of = |open: bool| -> usize {
            let divisions =
                family.lots[place.lot as usize].pairs.iter().map(|(division, _)| &family.divisions[*division]);
            divisions.filter(|division| division.even || open).map(|division| division.schedules.len()).sum()
        };
        let [even, all] = [false, true].map(of);
        self.open.iter().map(|open| if *open { all } else { even }).sum()
    }

    /// Lower bound in seconds on any plan of a group under any policy and split: no reruns, and every kernel at its
    /// peak. `place` is the group's index in [`PlanSearch::group_places`].
    pub(crate) fn lower_bound_of_group_at(&self, place: usize) -> f64 {
        let all = self.least.get_or_init(|| {
            let peak = self.chip.with_fidelity(Fidelity::Peak);
            let least = |chip: &mut step::ChipTimes, &place: &GroupPlace| {
                let first = self.plan_of(self.any_plan_of_group(place));
                let kept = TrainingPlan { activations: StagePolicies::default(), ..first };
                let lowered = LoweredModel::new(self.job.model, &kept, self.job.stack);
                let shape = lowered.and_then(|mut lowered| lowered.plan_shape(chip, self.job.fabric, &kept));
                let work = shape
                    .map_or(0.0, |shape| PassLoads::of_shape(&shape, self.job.stack).all_loads(self.job.model.layers));
                let share = self.least_shares_of_group(place).into_iter().fold(f64::INFINITY, f64::min);
                (work * share + self.evaluator.overhead_per_step().0) * (1.0 - ROUNDING)
            };
            self.group_places().par_iter().map_init(|| peak.clone(), least).collect()
        });
        all[place]
    }

    /// Lower bound on the step time of all plans of a stopped search. It covers the plans found, the plans that the
    /// search did not reach, and the splits and mixes that its tolerances let it skip.
    pub(crate) fn lower_bound_when_stopped(
        &self,
        found: &FoundPlans,
        split_tolerance: Option<f64>,
        mixed: Option<MixStatistics>,
    ) -> Seconds {
        let gap = 1.0 - mixed.map_or(0.0, |mixed| mixed.gap);
        let best = found.cutoff_for_count(1) * (1.0 - split_tolerance.unwrap_or(0.0)) * gap;
        Seconds(best.min(self.standing.left_bound()))
    }
}

#[cfg(test)]
#[path = "stopped_tests.rs"]
mod tests;
