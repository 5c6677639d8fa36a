//! Families of plans and the lots in them: what is lowered alike.

use super::Job;
use sim::pipeline::PipelineSchedule;
use step::TrainingPlan;
use workloads::training::ContextMethod;
use workloads::{ActivationPolicy, Batch, Layout};

/// Plans of the same tensor, context, expert and expert-tensor degrees.
#[derive(Debug)]
pub(super) struct DegreeClass {
    pub divisions: Vec<LayoutSchedules>,
    pub lots: Vec<PlanGroup>,
}

/// A layout, sequence parallelism left open, with its schedules.
#[derive(Debug)]
pub(super) struct LayoutSchedules {
    pub layout: Layout,
    pub schedules: Vec<PipelineSchedule>,
    /// Of each schedule, whether layers may be split as is fastest, if the policy is one for it.
    pub open: Vec<bool>,
    /// Whether it goes with every policy; if not, with those only whose layers may be split as is fastest.
    pub even: bool,
}

/// What makes plans of a family be lowered alike: how sequences are split over context- and over tensor-parallel devices, the micro-batch, and
/// whether gradients are summed by kernels of their own.
pub(super) type PlanGroupKey = (ContextMethod, bool, u64, bool);

/// Plans of a family that are lowered alike but for their policies.
#[derive(Debug)]
pub(super) struct PlanGroup {
    pub context_method: ContextMethod,
    pub sequence_parallel: bool,
    pub micro_batch: u64,
    /// The divisions, by their places, that it goes with, and the micro-batches per step.
    pub pairs: Vec<(usize, u64)>,
}

impl PlanGroup {
    /// A division's layout in this lot.
    pub fn layout(&self, division: Layout) -> Layout {
        Layout { context_method: self.context_method, sequence_parallel: self.sequence_parallel, ..division }
    }
}

impl DegreeClass {
    /// One of its plans.
    pub fn plan(
        &self,
        job: &Job<'_>,
        lot: &PlanGroup,
        division: usize,
        policy: &ActivationPolicy,
        schedule: PipelineSchedule,
    ) -> TrainingPlan {
        let layout = lot.layout(self.divisions[division].layout);
        let batch = Batch { micro_batch: lot.micro_batch, global_batch: job.global_batch, sequence_length: job.sequence_length };
        job.make_plan(layout, batch, policy.clone(), schedule)
    }
}
