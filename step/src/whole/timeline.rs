//! A step simulated event by event: passes, reductions, updates, and memory over time.
//!
//! Passes, sends and their times are those of [`crate::step_time_of`], and so are the exposed exchanges and the update.
//! `step_time_of` starts a device's exchange at the latest possible end of its passes. The timeline starts it at their
//! actual end. So the timeline is never longer than that step without the overhead per step, which the timeline omits.
//! Mostly they are equal. They always are if weight gradients are put off. Hidden communication runs beside the passes
//! and is not shown.
//!
//! A device always holds weights, gradients and states. It holds a micro-batch's activations from the start of its
//! forward pass to the end of its backward pass. During a backward pass, it also holds the bytes that
//! [`crate::step_memory`] counts for a layer or the loss. The peak in the update is not simulated.

use crate::memory::account::{MemoryAccount, MemoryProfile};
use crate::whole::evaluate::{PlanOnNetwork, simulated_pipeline};
use crate::{ChipTimes, StepError, StepProfile, TrainingPlan};
use sim::network::Fabric;
use sim::pipeline::{PipelineSchedule, Timeline};
use sim::units::Bytes;
use workloads::{Model, TrainingGraph};

/// Returns the timeline of a plan's step. The profile and the lowered model (with the fullest experts) must be made for
/// a plan with the same lowering. `domain` is as in [`crate::step_memory`].
///
/// # Errors
/// A pipeline that the schedule cannot run.
pub fn step_timeline(
    chip: &mut ChipTimes,
    model: &Model,
    fabric: &Fabric,
    plan: &TrainingPlan,
    profile: &StepProfile,
    training: &TrainingGraph,
    domain: Option<u32>,
) -> Result<Timeline, StepError> {
    let (assembly, exchanges) = PlanOnNetwork { fabric, plan, profile }.assemble_plan(chip, model)?;
    let (arrangement, stack) = (assembly.arrangement, chip.stack());
    let mut run = simulated_pipeline(&assembly, fabric, stack, &exchanges);
    let p = arrangement.layout.pipeline;
    let memory = MemoryProfile::new(training, &plan.activations, stack);
    let account = MemoryAccount::new(&memory, &arrangement, stack, domain);
    let held: Vec<[Bytes; 3]> =
        (0..p).map(|device| account.resident_and_transient(device, &account.stage_holding(device))).collect();
    let devices: Vec<usize> = (0..run.stages.len()).map(|place| run.device_of(place)).collect();
    let last = run.stages.len() - 1;
    for (place, stage) in run.stages.iter_mut().enumerate() {
        let [always, layer, loss] = held[devices[place]];
        let [kept, head] = account.stashed_activations(place as u64);
        let waits = arrangement.schedule == PipelineSchedule::GPipe;
        stage.resident = if place < p as usize { always } else { Bytes::ZERO };
        stage.stash = if waits { kept + head } else { kept };
        // Most kept tensors are inputs of products, which the weight gradients need.
        stage.stash_for_weights = stage.stash;
        let at_hand = if waits { Bytes::ZERO } else { head };
        stage.working = at_hand + if place == last { layer.max(loss) } else { layer };
    }
    run.simulate_step().map_err(|error| StepError::Hardware(error.to_string()))
}
