//! Evaluates single plans of a job.

use crate::planner::Job;
use crate::planner::fit::PeakFactors;
use crate::planner::ranked::RankedPlan;
use sim::pipeline::Timeline;
use step::{
    ChipTimes, OverCapacity, StepError, StepMemory, StepProfile, TrainingPlan, lower_plan, step_energy_of,
    step_memory_of, step_time_of, step_timeline, usable_hbm, with_fullest_experts,
};
use workloads::TrainingGraph;

impl Job<'_> {
    /// Lowers and profiles the model for a plan.
    pub(crate) fn lower_shape(&self, chip: &mut ChipTimes, plan: &TrainingPlan) -> Result<LoweredShape, StepError> {
        let graph = lower_plan(self.model, plan, self.stack)?;
        let profile = chip.profile_lowered(self.model, &graph, self.fabric, plan)?;
        if self.model.experts.is_none() {
            return Ok(LoweredShape { graph, profile });
        }
        let fullest = with_fullest_experts(self.model, plan, self.stack);
        Ok(LoweredShape { graph: lower_plan(&fullest, plan, self.stack)?, profile })
    }

    /// Simulates a plan's step event by event. Returns its timeline.
    ///
    /// # Errors
    /// A plan that the model, the fabric or the schedule does not allow, or a chip that the cost model cannot use.
    pub fn plan_timeline(&self, plan: &TrainingPlan) -> Result<Timeline, StepError> {
        let mut chip = ChipTimes::new(self.chip, self.stack)?;
        let shape = self.lower_shape(&mut chip, plan)?;
        step_timeline(
            &mut chip,
            self.model,
            self.fabric,
            plan,
            &shape.profile,
            &shape.graph,
            self.sharding_domain(plan),
        )
    }

    /// Evaluates a given plan; `None` if it does not fit.
    ///
    /// # Errors
    /// A plan that the model, the batch, the fabric or the schedule does not allow, or a chip that the cost model
    /// cannot use.
    pub fn rank_plan(&self, plan: &TrainingPlan) -> Result<Option<RankedPlan>, StepError> {
        plan.layout.check_model_and_batch(self.model, &plan.batch)?;
        let mut chip = ChipTimes::new(self.chip, self.stack)?;
        let shape = self.lower_shape(&mut chip, plan)?;
        Ok(match self.try_plan(&mut chip, &shape, plan, &PeakFactors::new(self))? {
            PlanAttempt::Fits(ranked) => Some(*ranked),
            PlanAttempt::OverCapacity(..) => None,
        })
    }

    /// Evaluates the memory of one plan and, if it fits, its time and energy. The capacity of a plan that fits includes
    /// the margin for the error of its peak.
    pub(crate) fn try_plan(
        &self,
        chip: &mut ChipTimes,
        shape: &LoweredShape,
        plan: &TrainingPlan,
        factors: &PeakFactors,
    ) -> Result<PlanAttempt, StepError> {
        let have = self.memory_for_peak(factors.factor_of_plan(self, plan, plan.schedule));
        let domain = self.sharding_domain(plan);
        let mut memory = step_memory_of(self.model, &shape.graph, plan, self.stack, have, domain)?;
        if let Err(why) = memory.check_fits() {
            return Ok(PlanAttempt::OverCapacity(why, Box::new(memory)));
        }
        memory.capacity = usable_hbm(self.stack, self.memory_for_peak(1.0).hbm);
        let time = step_time_of(chip, self.model, self.fabric, plan, &shape.profile)?;
        let energy = step_energy_of(chip, self.model, self.fabric, plan, &shape.profile, time.total)?.total_energy();
        Ok(PlanAttempt::Fits(Box::new(RankedPlan { plan: plan.clone(), time, memory, energy, alike: 0 })))
    }
}

/// A model lowered and profiled for a plan.
#[derive(Debug)]
pub(crate) struct LoweredShape {
    /// The graph of the device with the fullest experts. It gives the memory; `profile` gives the time.
    pub(crate) graph: TrainingGraph,
    pub(crate) profile: StepProfile,
}

/// The outcome of evaluating a plan.
pub(crate) enum PlanAttempt {
    Fits(Box<RankedPlan>),
    OverCapacity(OverCapacity, Box<StepMemory>),
}
