//! Splits of the layers for plans with policies by stage: the few near the even split that are fastest if everything is
//! kept. They do not depend on the memory, so more memory never removes a plan.

use crate::planner::bounds::loads::{PassLoads, SecondsByHolding, SplitCosts};
use crate::planner::search::core::PlanSearch;
use crate::planner::search::found::PlanCandidate;
use step::{ChipTimes, DeviceHolding, EndChunk, PlanShape, TrainingPlan};
use workloads::{ChunkSplit, LayerEnds};

/// [`SplitCosts`] of a plan that keeps everything, without a memory limit.
struct KeepAllSplitCosts<'r, 's> {
    search: &'r PlanSearch<'s>,
    chip: &'r mut ChipTimes,
    shape: &'r PlanShape,
    plan: &'r TrainingPlan,
    /// Seconds computed so far, by what a device holds: of the exchange after its last pass, and of its update.
    known: [SecondsByHolding; 2],
}

impl SplitCosts for KeepAllSplitCosts<'_, '_> {
    fn late_exchange_seconds(&mut self, held: DeviceHolding) -> f64 {
        let Self { search, chip, shape, plan, known: [late, _] } = self;
        late.get_or_insert_with(held, || search.evaluator.least_exposed_exchange(chip, shape, plan, held).0)
    }

    fn update_seconds(&mut self, held: DeviceHolding) -> f64 {
        let Self { search, chip, shape, plan, known: [_, update] } = self;
        update.get_or_insert_with(held, || search.evaluator.time_of_least_update(chip, shape, plan, held).0)
    }

    fn may_fit(&self, split: ChunkSplit) -> bool {
        self.search.job.may_hold_split(&split)
    }

    fn may_fit_without(&self, _: ChunkSplit, _: EndChunk) -> bool {
        true
    }
}

impl PlanSearch<'_> {
    /// The end chunks of the few uneven splits near the even one whose lower bound is below `limit` seconds. Mixes are
    /// made for each. `shape` keeps every activation.
    pub(crate) fn ends_for_mixes(
        &self,
        chip: &mut ChipTimes,
        shape: &PlanShape,
        candidate: &PlanCandidate,
        limit: f64,
    ) -> Vec<LayerEnds> {
        let plan = self.plan_of(*candidate);
        let division = &self.families[candidate.family as usize].divisions[candidate.division as usize];
        if !self.uneven || plan.layout.pipeline < 2 || !division.open[candidate.schedule as usize] {
            return Vec::new();
        }
        let (layers, limit) = (self.job.model.layers, limit - self.evaluator.overhead_per_step().0);
        let sends = self.evaluator.pipeline_sends(chip, shape, &plan);
        let loads = self.loads_of_plan(chip, shape, &plan, &PassLoads::of_shape(shape, self.job.stack), &sends);
        let mut rest = KeepAllSplitCosts { search: self, chip, shape, plan: &plan, known: Default::default() };
        let mut splits = loads.near_splits_by_bound(layers, &plan, limit, &mut rest);
        let even = plan.layout.chunk_split(layers).ok();
        std::iter::from_fn(|| splits.next_below(&loads, &plan, limit, &rest))
            .filter(|least| Some(least.split) != even)
            .filter_map(|least| least.split.layer_ends())
            .collect()
    }
}
