//! The best training plan for hardware that stands already: what a training engineer asks.
//!
//! Every plan of a [`PlanSpace`] is evaluated in closed form ([`step::Evaluator`]): what the fullest device needs, and the step's time
//! or, where only the event simulation has it (zero-bubble schedules, ends lighter than what is between), a bound. Plans of the second kind
//! that fit are then simulated in the order of their bounds, until no bound is below the last plan of the list asked for. So the list is the
//! true one of the space under this model. Nothing depends on the number of threads.
//!
//! A plan of the space leaves open how its layers are split into stages; it is counted and evaluated under the even split. Then `splits` gives
//! every plan that can come into the list its best one. A space far too large for that ([`Splits::BestOf`]) holds a small one within it, which is
//! searched first: how long its list takes rules out most of the others by a bound on their work, before anything else of them is looked at.

mod fastest;
mod fault;
mod found;
mod mapped;
mod neighbours;
mod prepared;
mod search;
mod space;
mod splits;
#[cfg(test)]
mod tests;
mod walk;

pub use fastest::Fastest;
pub use mapped::{MapRanks, PlanMappingError, map_plans};
pub use neighbours::{Neighbour, Outcome, neighbours};
pub use prepared::Prepared;
pub use search::search_plans;
pub use space::{PlanSpace, Splits, default_policies};
pub use walk::schedule_of;

use sim::hardware::Accelerator;
use sim::network::Fabric;
use sim::pipeline::{Schedule, Timeline};
use sim::units::{Bytes, Joules};
use step::{
    ChipTimes, DeviceMemory, OverCapacity, SoftwareStack, StageMemory, StepError, StepMemory, StepProfile, StepTime,
    TrainingPlan, lowering, step_energy_of, step_memory_of, step_time_of, step_timeline, usable, with_fullest_experts,
};
use workloads::footprint::{BytesPerParameter, Optimizer, Precision};
use workloads::training::Attention;
use workloads::{ActivationPolicy, Batch, Layout, Model, RankOrder, TrainingGraph};

/// What is to be trained, on what, under which software; the plan is left open.
#[derive(Debug, Clone, Copy)]
pub struct Job<'a> {
    /// The model.
    pub model: &'a Model,
    /// Every device.
    pub chip: &'a Accelerator,
    /// The network, cut to the devices.
    pub fabric: &'a Fabric,
    /// The software.
    pub stack: &'a SoftwareStack,
    /// Devices, all of them used.
    pub devices: u32,
    /// Sequences per step.
    pub global_batch: u64,
    /// Tokens per sequence.
    pub sequence_length: u64,
    /// How attention is computed.
    pub attention: Attention,
    /// Number formats.
    pub precision: Precision,
    /// The optimizer.
    pub optimizer: Optimizer,
}

/// A plan that fits, with what it takes.
#[derive(Debug, Clone, PartialEq)]
pub struct RankedPlan {
    /// The plan.
    pub plan: TrainingPlan,
    /// Its step.
    pub time: StepTime,
    /// Its memory.
    pub memory: StepMemory,
    /// The energy of a step over all devices.
    pub energy: Joules,
}

impl RankedPlan {
    /// Whether two plans are the same but for chunks per stage, splits and the order of ranks, and take the same memory and time, but for rounding:
    /// sums of the same parts in another order.
    fn is_like(&self, other: &Self) -> bool {
        let [a, b] = [self, other].map(|ranked| ranked.time.total.0);
        let same = |plan: &TrainingPlan| TrainingPlan {
            layout: Layout { virtual_stages: 1, ends: None, order: RankOrder::DataFirst, ..plan.layout },
            ..plan.clone()
        };
        (a - b).abs() <= 1e-12 * a && self.peak() == other.peak() && same(&self.plan) == same(&other.plan)
    }

    /// Of the fullest device, and of its host.
    fn peak(&self) -> [Option<Bytes>; 2] {
        let most = |of: fn(&StageMemory) -> Bytes| self.memory.stages.iter().map(of).max();
        [most(StageMemory::need), most(|stage| stage.host)]
    }
}

/// Of plans, fastest first, that differ in chunks per stage (with their split) or in the order of ranks only and take the same time and memory, the
/// one of fewest chunks, with ranks in the usual order.
fn one_of_alike(plans: Vec<RankedPlan>) -> Vec<RankedPlan> {
    let mut kept: Vec<RankedPlan> = Vec::with_capacity(plans.len());
    let choice = |ranked: &RankedPlan| (ranked.plan.layout.virtual_stages, ranked.plan.layout.order as u8);
    for plan in plans {
        match kept.iter_mut().find(|other| other.is_like(&plan) && choice(other) != choice(&plan)) {
            Some(other) if choice(&plan) < choice(other) => *other = plan,
            Some(_) => {}
            None => kept.push(plan),
        }
    }
    kept
}

/// The answer of a search over plans.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanAnswer {
    /// The fastest plans that fit, fastest first; of those that differ in chunks per stage or the order of ranks only and are as fast and as large as
    /// each other, one.
    pub best: Vec<RankedPlan>,
    /// Plans in the space.
    pub plans: usize,
    /// Of these, timed: in closed form where that is exact, else played event by event.
    pub timed: usize,
    /// Of those timed, played event by event.
    pub simulated: usize,
    /// Found too large for the devices' memory, or for what their hosts have for them; under [`Splits::BestOf`] of those that a bound on all
    /// schedules leaves.
    pub over_capacity: usize,
    /// No faster than the last of the list by their bound; they fit, but for those that a bound on all schedules rejects before.
    pub rejected_by_bound: usize,
    /// Refused by the model, the fabric or the schedule, with the first reason.
    pub refused: usize,
    /// That reason.
    pub refusal: Option<StepError>,
    /// Other splits of the layers that the plans have besides the even one, under which they are counted above.
    pub splits: u64,
    /// Of these, evaluated one by one; the others are no faster than the last of the list, by a bound on all splits of a plan or on their own.
    pub splits_tried: u64,
    /// Of the plans that do not fit, the one that lacks least.
    pub nearest: Option<(TrainingPlan, OverCapacity)>,
}

impl<'a> Job<'a> {
    /// A plan of this job.
    #[must_use]
    pub fn plan(&self, layout: Layout, batch: Batch, activations: ActivationPolicy, schedule: Schedule) -> TrainingPlan {
        TrainingPlan {
            layout,
            batch,
            activations,
            attention: self.attention,
            precision: self.precision,
            optimizer: self.optimizer,
            schedule,
        }
    }

    /// Fewer devices than these hold no plan: every parameter's weight and optimizer states, and its gradient where the stack never frees
    /// gradients, lie on one device at least, and no policy moves them to the host.
    #[must_use]
    pub fn least_devices(&self) -> u64 {
        let per = BytesPerParameter::new(self.optimizer, &self.precision);
        let memory = &self.stack.memory;
        let stored = if memory.stored_master && per.master > Bytes::ZERO { Bytes::ZERO } else { per.weight };
        let gradient = if memory.gradients_persist { per.gradient } else { Bytes::ZERO };
        let least = (stored + per.master + per.state + gradient) * self.model.parameters();
        least.0.div_ceil(usable(self.stack, self.chip.memory_capacity()).0.max(1)).max(1)
    }

    /// Data-parallel ranks among which ZeRO shares, where the stack shares inside fast domains only.
    fn domain(&self, plan: &TrainingPlan) -> Option<u32> {
        let inside = (self.fabric.fast_domain() / plan.layout.data_stride().max(1)).max(1);
        self.stack.kernels.shard_within_domain.then_some(inside)
    }

    /// Lowers and profiles the model for a plan.
    fn shape(&self, chip: &mut ChipTimes, plan: &TrainingPlan) -> Result<Shape, StepError> {
        let graph = TrainingGraph::new(self.model, &lowering(self.model, plan, self.stack))?;
        let profile = chip.profile_of(self.model, &graph, self.fabric, plan)?;
        if self.model.experts.is_none() {
            return Ok(Shape { graph, profile });
        }
        let fullest = with_fullest_experts(self.model, plan, self.stack);
        Ok(Shape { graph: TrainingGraph::new(&fullest, &lowering(&fullest, plan, self.stack))?, profile })
    }

    /// A plan's step event by event.
    ///
    /// # Errors
    /// A plan that the model, the fabric or the schedule does not allow.
    pub fn timeline(&self, plan: &TrainingPlan) -> Result<Timeline, StepError> {
        let mut chip = ChipTimes::new(self.chip, self.stack)?;
        let shape = self.shape(&mut chip, plan)?;
        step_timeline(&mut chip, self.model, self.fabric, plan, (&shape.profile, &shape.graph), self.domain(plan))
    }

    /// Tries one plan.
    fn attempt(&self, chip: &mut ChipTimes, shape: &Shape, plan: &TrainingPlan) -> Result<Attempt, StepError> {
        let memory = step_memory_of(self.model, &shape.graph, plan, self.stack, DeviceMemory::of(self.chip), self.domain(plan))?;
        if let Err(why) = memory.fits() {
            return Ok(Attempt::OverCapacity(why, Box::new(memory)));
        }
        let time = step_time_of(chip, self.model, self.fabric, plan, &shape.profile)?;
        let energy = step_energy_of(chip, self.model, self.fabric, plan, &shape.profile, time.total)?.total();
        Ok(Attempt::Fits(Box::new(RankedPlan { plan: plan.clone(), time, memory, energy })))
    }
}

/// A model lowered and profiled for a plan.
#[derive(Debug)]
struct Shape {
    /// As the device with the fullest experts holds it.
    graph: TrainingGraph,
    profile: StepProfile,
}

/// What came of trying a plan.
enum Attempt {
    Fits(Box<RankedPlan>),
    OverCapacity(OverCapacity, Box<StepMemory>),
}
