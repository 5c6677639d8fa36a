//! A step played event by event with everything on it: passes, reductions, updates, and memory over time.
//!
//! Passes, sends and their times are those of [`crate::step_time_of`]; so is what nothing hides of the exchanges and the update. There a device's
//! exchange begins when its passes can have ended at the latest, here when they have: the step here is no longer than there (without the
//! overhead per step, which has no place in it), and mostly equal; always where weight gradients are put off. What hidden communication there is runs beside the passes and is not shown.
//!
//! A device holds weights, gradients and states all the time, a micro-batch's activations from the start of its forward pass to the end of its
//! backward pass, and while a backward pass runs what [`crate::step_memory`] counts for the moment of a layer or of the loss. The moment of the
//! update is not played.

use crate::memory::account::{MemoryAccount, MemoryProfile};
use crate::whole::evaluate::{PlanOnNetwork, simulated_pipeline};
use crate::{ChipTimes, StepError, StepProfile, TrainingPlan};
use sim::network::Fabric;
use sim::pipeline::{PipelineSchedule, Timeline};
use sim::units::Bytes;
use workloads::{Model, TrainingGraph};

/// The timeline of a plan's step, from a profile and a lowered model (with the fullest experts) made for a plan that is lowered alike.
/// `domain`: as in [`crate::step_memory`].
///
/// # Errors
/// A pipeline that the schedule cannot run.
pub fn step_timeline(
    chip: &mut ChipTimes,
    model: &Model,
    fabric: &Fabric,
    plan: &TrainingPlan,
    (profile, training): (&StepProfile, &TrainingGraph),
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
        // The inputs of products, which are most of what is kept, are needed for the weights' gradients.
        stage.stash_for_weights = stage.stash;
        let at_hand = if waits { Bytes::ZERO } else { head };
        stage.working = at_hand + if place == last { layer.max(loss) } else { layer };
    }
    run.simulate_step().map_err(|error| StepError::Hardware(error.to_string()))
}
