//! Groups of plans that are lowered alike.

use crate::planner::Job;
use sim::pipeline::PipelineSchedule;
use step::TrainingPlan;
use workloads::training::ContextMethod;
use workloads::{ActivationPolicy, Batch, Layout};

/// Plans with the same tensor, context, expert and expert-tensor degrees.
#[derive(Debug)]
pub(crate) struct DegreeClass {
    pub divisions: Vec<LayoutSchedules>,
    pub lots: Vec<PlanGroup>,
}

/// A layout with its schedules. Sequence parallelism and the context-parallel method are not decided.
#[derive(Debug)]
pub(crate) struct LayoutSchedules {
    pub layout: Layout,
    pub schedules: Vec<PipelineSchedule>,
    /// By schedule: true if its plans may use the fastest split of layers, if their policy allows it too.
    pub open: Vec<bool>,
    /// True if every policy may use this layout; otherwise only policies that allow the fastest split.
    pub even: bool,
}

/// The key of plans that are lowered alike: context-parallel method, sequence parallelism, micro-batch, and true if
/// separate kernels sum the gradients.
pub(crate) type PlanGroupKey = (ContextMethod, bool, u64, bool);

/// Plans of a degree class that are lowered alike except for their policies.
#[derive(Debug)]
pub(crate) struct PlanGroup {
    pub context_method: ContextMethod,
    pub sequence_parallel: bool,
    pub micro_batch: u64,
    /// Indices of its divisions, each with the micro-batches per step.
    pub pairs: Vec<(usize, u64)>,
}

impl PlanGroup {
    /// A division's layout in this group.
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
        let batch = Batch {
            micro_batch: lot.micro_batch,
            global_batch: job.global_batch,
            sequence_length: job.sequence_length,
        };
        job.make_plan(layout, batch, policy.clone(), schedule)
    }
}
