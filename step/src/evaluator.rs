//! Time and memory of many plans in closed form: what plans share is prepared once, an evaluation is arithmetic.
//!
//! - A [`Shape`] is what plans share that are lowered alike (micro-batch, tensor, context and expert degrees, sequence parallelism, activation
//!   policy): what every piece takes and keeps.
//! - [`Degrees`] are what plans share that are divided alike (all degrees, chunks, ZeRO stage): what the network and the update take,
//!   what weights, gradients and states take of every kind of stage.
//! - [`Evaluator::evaluate`] joins the two for a schedule and a number of micro-batches.
//!
//! The need for memory is that of [`super::step_memory_of`], to the byte. The time is that of [`super::step_time_of`] wherever
//! [`PassesTime::Exact`] says so: without a pipeline, under GPipe, and under plain and interleaved 1F1B where the ends of the
//! pipeline are not lighter than what is between and sends are short and alike (see `sim::pipeline`'s `ends`). Otherwise, and under the
//! zero-bubble schedules, it is a lower bound; [`Evaluator::simulate`] has the last word. Both ways share every formula but the schedule's.

use super::arrangement::{Arrangement, DEVICE_KINDS};
use super::assembly::{Assembly, Exchanges};
use super::chunk::busy;
use super::evaluate::{Step, passes};
use super::least::loads;
use super::memory::{DeviceMemory, usable, with_fullest_experts};
use super::memory_account::{Account, Holding, MemoryProfile, StageRoom};
use super::need::Need;
use super::profile::LayerProfile;
use super::sends::Sends;
use super::{ChipTimes, SoftwareStack, StepError, StepProfile, TrainingPlan, lowered};
use sim::network::Fabric;
use sim::pipeline::{PassesTime, Schedule};
use sim::units::{Bytes, Seconds};
use std::sync::Arc;
use workloads::{ActivationPolicy, ChunkSplit, Model, StagePolicies, TrainingGraph};

/// A model lowered, profiled and sized for the plans that are lowered alike.
#[derive(Debug, Clone, PartialEq)]
pub struct Shape {
    pub(super) profile: StepProfile,
    memory: MemoryProfile,
}

impl Shape {
    /// The shape of plans whose chunks follow mixes of policies, from the shapes under each of these.
    ///
    /// # Errors
    /// No shape of one of the policies.
    pub fn mixed(policies: &StagePolicies, known: &[(&ActivationPolicy, &Self)]) -> Result<Self, StepError> {
        let of = |policy: &ActivationPolicy| {
            let shape = known.iter().find(|(other, _)| *other == policy).map(|(_, shape)| *shape);
            shape.ok_or_else(|| StepError::Hardware(format!("recompute {policy}: has not been timed")))
        };
        let first = of(policies.first())?;
        let Some(mixes) = policies.chunks() else { return Ok(first.clone()) };
        let layer = |policy: &ActivationPolicy| Ok(LayerProfile { policy: policy.clone(), layer: of(policy)?.profile.layer });
        let by_policy = policies.distinct().into_iter().map(layer).collect::<Result<_, StepError>>()?;
        let memories: Vec<(&ActivationPolicy, &MemoryProfile)> =
            known.iter().map(|(policy, shape)| (*policy, &shape.memory)).collect();
        Ok(Self { profile: first.profile.mixed(by_policy), memory: first.memory.mixed(&memories, mixes) })
    }

    /// What a layer keeps of one micro-batch on the device and on the host, what is alive besides while it runs, and what its passes take.
    #[must_use]
    pub fn layer(&self, stack: &SoftwareStack) -> LayerCost {
        let [kept, host, storage, working] = self.memory.layer();
        let [_, layer, _] = self.loads(stack);
        LayerCost { kept, host, storage, working, time: layer.forward + layer.backward }
    }

    /// The time of [`Self::layer`] where weights or gradients live away from the device: with their copies under these degrees. None where none do.
    #[must_use]
    pub fn layer_beside(&self, degrees: &Degrees, stack: &SoftwareStack) -> Option<Seconds> {
        degrees.exchanges.copies?;
        let [_, layer, _] = loads(&degrees.exchanges.beside(&self.profile, stack), stack);
        Some(layer.forward + layer.backward)
    }

    /// How long a layer's forward and its backward pass are busy, with what runs again.
    #[must_use]
    pub fn layer_busy(&self) -> [Seconds; 2] {
        busy(&self.profile.layer)
    }

    /// Whether no order of their kernels makes its passes faster.
    #[must_use]
    pub fn proven(&self) -> bool {
        [&self.profile.embedding, &self.profile.layer, &self.profile.head].into_iter().all(crate::PieceProfile::proven)
    }

    /// The shape of a plan.
    ///
    /// # Errors
    /// A plan that the model cannot be lowered for.
    pub fn new(chip: &mut ChipTimes, model: &Model, fabric: &Fabric, plan: &TrainingPlan) -> Result<Self, StepError> {
        let mut lowered = Lowered::new(model, plan, chip.stack())?;
        lowered.shape(chip, fabric, plan)
    }
}

/// A model lowered for the plans that differ in their activation policy at most. A clone shares what was lowered.
#[derive(Debug, Clone)]
pub struct Lowered<'a> {
    model: &'a Model,
    graph: Arc<TrainingGraph>,
    /// As the device with the fullest experts holds it, where there are any.
    fullest: Option<Arc<TrainingGraph>>,
    /// The first shape: policies share all but the layers' backward passes.
    known: Option<Shape>,
}

impl<'a> Lowered<'a> {
    /// Lowers a model for a plan.
    ///
    /// # Errors
    /// A plan that the model cannot be lowered for.
    pub fn new(model: &'a Model, plan: &TrainingPlan, stack: &SoftwareStack) -> Result<Self, StepError> {
        let graph = Arc::new(lowered(model, plan, stack)?);
        let fullest = match &model.experts {
            Some(_) => {
                let filled = with_fullest_experts(model, plan, stack);
                Some(Arc::new(lowered(&filled, plan, stack)?))
            }
            None => None,
        };
        Ok(Self { model, graph, fullest, known: None })
    }

    /// The lowered model.
    #[must_use]
    pub fn graph(&self) -> &TrainingGraph {
        &self.graph
    }

    /// What a policy makes of its memory.
    #[must_use]
    pub fn memory(&self, activations: &StagePolicies, stack: &SoftwareStack) -> MemoryProfile {
        MemoryProfile::new(self.fullest.as_ref().unwrap_or(&self.graph), activations, stack)
    }

    /// The shape of a plan, which is lowered so.
    ///
    /// # Errors
    /// A graph without layers.
    pub fn shape(&mut self, chip: &mut ChipTimes, fabric: &Fabric, plan: &TrainingPlan) -> Result<Shape, StepError> {
        let sized = self.fullest.as_ref().unwrap_or(&self.graph);
        if let Some(known) = &self.known {
            let memory = known.memory.under(sized, &plan.activations, chip.stack());
            return Ok(Shape { profile: chip.profile_like(&known.profile, fabric, plan)?, memory });
        }
        let profile = chip.profile_of(self.model, &self.graph, fabric, plan)?;
        let shape = Shape { profile, memory: MemoryProfile::new(sized, &plan.activations, chip.stack()) };
        self.known = Some(shape.clone());
        Ok(shape)
    }
}

/// A layer under a policy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerCost {
    /// Kept on the device of one micro-batch.
    pub kept: Bytes,
    /// Kept in the host's memory of one micro-batch.
    pub host: Bytes,
    /// Kept in storage of one micro-batch.
    pub storage: Bytes,
    /// Alive besides while the layer runs backward, with what comes back from the host for the next one.
    pub working: Bytes,
    /// Seconds of both its passes, with what runs again.
    pub time: Seconds,
}

/// How plans that are divided alike use the network, the optimizer and the memory that does not depend on activations.
#[derive(Debug, Clone)]
pub struct Degrees {
    arrangement: Arrangement,
    exchanges: Exchanges,
    holdings: [Holding; DEVICE_KINDS],
    domain: Option<u32>,
}

/// What a plan takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Evaluation {
    /// The step, or what it takes at least.
    pub time: PassesTime,
    /// What the fullest device needs.
    pub need: Need,
}

/// Evaluates the plans of one model on one cluster.
#[derive(Debug, Clone, Copy)]
pub struct Evaluator<'a> {
    pub(super) model: &'a Model,
    pub(super) fabric: &'a Fabric,
    pub(super) stack: &'a SoftwareStack,
    pub(super) capacity: Need,
}

impl<'a> Evaluator<'a> {
    /// On devices with `memory`.
    #[must_use]
    pub fn new(model: &'a Model, fabric: &'a Fabric, stack: &'a SoftwareStack, memory: DeviceMemory) -> Self {
        Self {
            model,
            fabric,
            stack,
            capacity: Need { device: usable(stack, memory.hbm), host: memory.host, storage: memory.storage },
        }
    }

    /// What programs can use of a device, of its host and of its storage.
    #[must_use]
    pub fn capacity(&self) -> Need {
        self.capacity
    }

    /// Bytes that are lacking, of all memories together; none where a plan fits.
    #[must_use]
    pub fn lack(&self, need: Need) -> Bytes {
        let over = self.over(need);
        over.device + over.host + over.storage
    }

    /// Bytes that are lacking of each memory.
    #[must_use]
    pub fn over(&self, need: Need) -> Need {
        need.over(&self.capacity)
    }

    /// Once per step outside any kernel: no plan takes less besides its passes.
    #[must_use]
    pub fn overhead(&self) -> Seconds {
        Seconds(self.stack.launch.per_step_ms * 1e-3)
    }

    /// Whether a plan may fit under some split of its layers into stages: not if its stages have too little room for all of them, however many each
    /// takes.
    #[must_use]
    pub fn may_fit(&self, shape: &Shape, plan: &TrainingPlan, domain: Option<u32>) -> bool {
        // Any split will do: what is asked does not depend on it.
        let split = ChunkSplit { chunks: plan.layout.chunks(), ..ChunkSplit::default() };
        let arrangement = Arrangement::new(plan.layout, split, plan.schedule, plan.micro_batches());
        let account = Account::new(&shape.memory, &arrangement, self.stack, domain);
        account.room(self.model.layers, self.capacity.device) >= self.model.layers
            && account.fullest_may_fit(self.model.layers, &self.capacity)
    }

    /// Whether a plan surely does not fit under a split of its layers: many times as fast as [`Self::degrees`] and [`Self::need`] tell.
    #[must_use]
    pub fn surely_too_large(&self, shape: &Shape, plan: &TrainingPlan, split: ChunkSplit, domain: Option<u32>) -> bool {
        let arrangement = Arrangement::new(plan.layout, split, plan.schedule, plan.micro_batches());
        Account::new(&shape.memory, &arrangement, self.stack, domain).surely_exceeds(self.capacity.device)
    }

    /// Prepares a plan's degrees, from the shape of any plan with its tensor, context and expert degrees. `domain`: as in
    /// [`super::step_memory`]. Of the plan's schedule it matters only whether it is [`Schedule::ZbV`], whose devices hold other chunks.
    ///
    /// # Errors
    /// Layers that do not divide, a schedule that needs another number of chunks.
    pub fn degrees(
        &self,
        chip: &mut ChipTimes,
        shape: &Shape,
        plan: &TrainingPlan,
        domain: Option<u32>,
    ) -> Result<Degrees, StepError> {
        let step = Step { fabric: self.fabric, plan, profile: &shape.profile };
        let arrangement = step.arrangement(self.model)?;
        let exchanges = step.exchanges(chip, &arrangement);
        let holdings = Account::new(&shape.memory, &arrangement, self.stack, domain).holdings();
        Ok(Degrees { arrangement, exchanges, holdings, domain })
    }

    /// What an activation's ways between stages take under a plan.
    #[must_use]
    pub fn sends(&self, chip: &ChipTimes, shape: &Shape, plan: &TrainingPlan) -> Sends {
        Step { fabric: self.fabric, plan, profile: &shape.profile }.sends(chip)
    }

    /// A plan's time and memory. The shape's and the degrees' tensor, context and expert degrees are the same, and under
    /// interleaved 1F1B the micro-batches a multiple of the stages.
    #[must_use]
    pub fn evaluate(
        &self,
        shape: &Shape,
        degrees: &Degrees,
        sends: &Sends,
        schedule: Schedule,
        micro_batches: u64,
    ) -> Evaluation {
        Evaluation {
            time: self.time(&mut Recent::default(), shape, degrees, sends, schedule, micro_batches),
            need: self.need(shape, degrees, schedule, micro_batches),
        }
    }

    /// [`Self::need`] of a policy that is not timed.
    #[must_use]
    pub fn need_under(&self, memory: &MemoryProfile, degrees: &Degrees, schedule: Schedule, micro_batches: u64) -> Need {
        let arrangement = degrees.under(schedule, micro_batches);
        let account = Account::new(memory, &arrangement, self.stack, degrees.domain);
        let [host, storage] = account.fullest_away(&degrees.holdings);
        Need { device: account.fullest(&degrees.holdings), host, storage }
    }

    /// The memory of [`Self::evaluate`].
    #[must_use]
    pub fn need(&self, shape: &Shape, degrees: &Degrees, schedule: Schedule, micro_batches: u64) -> Need {
        self.need_under(&shape.memory, degrees, schedule, micro_batches)
    }

    /// What every stage has for its layers' activations; `None` where one has too little whatever they keep. `shape` is of any policy that all layers
    /// follow.
    #[must_use]
    pub fn rooms(&self, shape: &Shape, degrees: &Degrees, schedule: Schedule, micro_batches: u64) -> Option<Vec<StageRoom>> {
        let arrangement = degrees.under(schedule, micro_batches);
        let account = Account::new(&shape.memory, &arrangement, self.stack, degrees.domain);
        let room = |device: u32| {
            let held = &degrees.holdings[arrangement.kind_of(device)];
            account.room_for(device, held, self.capacity.device)
        };
        (0..arrangement.layout.pipeline).map(room).collect()
    }

    /// The layers of every chunk and the device that holds it, in the order of the pipeline.
    #[must_use]
    pub fn chunks(degrees: &Degrees, schedule: Schedule, micro_batches: u64) -> Vec<(u64, u32)> {
        let arrangement = degrees.under(schedule, micro_batches);
        (0..arrangement.split.chunks).map(|place| (arrangement.split.layers(place), arrangement.device_of(place))).collect()
    }

    /// What every stage needs.
    #[must_use]
    pub fn needs(&self, shape: &Shape, degrees: &Degrees, schedule: Schedule, micro_batches: u64) -> Vec<Need> {
        let arrangement = degrees.under(schedule, micro_batches);
        let account = Account::new(&shape.memory, &arrangement, self.stack, degrees.domain);
        (0..arrangement.layout.pipeline)
            .map(|device| {
                let memory = account.stage(device, &degrees.holdings[arrangement.kind_of(device)]);
                Need { device: memory.need(), host: memory.host, storage: memory.storage }
            })
            .collect()
    }

    /// The time of [`Self::evaluate`]. `recent` is of plans of the same shape.
    #[must_use]
    pub fn time(
        &self,
        recent: &mut Recent,
        shape: &Shape,
        degrees: &Degrees,
        sends: &Sends,
        schedule: Schedule,
        micro_batches: u64,
    ) -> PassesTime {
        let arrangement = degrees.under(schedule, micro_batches);
        let known = recent.assembly.as_ref().filter(|known| degrees.same_chunks(&known.arrangement, recent.gathers));
        if known.is_none() || recent.sends != *sends {
            let fresh = Assembly::new(arrangement, self.stack, &shape.profile, &degrees.exchanges, sends);
            *recent = Recent { assembly: Some(fresh), sends: *sends, gathers: degrees.gathers(), passes: [None; SCHEDULES] };
        }
        let Some(assembly) = &recent.assembly else { return PassesTime::AtLeast(Seconds::ZERO) };
        let known = &mut recent.passes[place(arrangement.schedule)];
        let passes = match known {
            Some((m, passes)) if *m == micro_batches => *passes,
            _ => known.insert((micro_batches, assembly.closed(&arrangement))).1,
        };
        assembly.step(&arrangement, self.stack, &degrees.exchanges, passes)
    }

    /// The step's time with the schedule played event by event: exact always.
    ///
    /// # Errors
    /// A pipeline that the schedule cannot run.
    pub fn simulate(
        &self,
        shape: &Shape,
        degrees: &Degrees,
        sends: &Sends,
        schedule: Schedule,
        micro_batches: u64,
    ) -> Result<Seconds, StepError> {
        self.simulate_under(&StagePolicies::default(), shape, degrees, sends, (schedule, micro_batches))
    }

    /// The step of a plan that splits the backward pass and whose shape is bounded by its passes' schedules: no less under better ones. Played, every
    /// part of a pass takes what it does at least by itself, so that what a pass takes as a whole is better known to [`Self::time`].
    ///
    /// # Errors
    /// As [`Self::simulate`].
    pub fn simulate_least(
        &self,
        shape: &Shape,
        degrees: &Degrees,
        sends: &Sends,
        schedule: Schedule,
        micro_batches: u64,
    ) -> Result<Seconds, StepError> {
        let arrangement = degrees.under(schedule, micro_batches);
        let assembly = Assembly::at_least(arrangement, self.stack, &shape.profile, &degrees.exchanges, sends);
        let (passes, leads) = passes(&assembly, self.fabric, self.stack, &degrees.exchanges)?;
        Ok(passes + assembly.once(&arrangement, self.stack, &degrees.exchanges, &leads).total())
    }

    /// [`Self::simulate`] of a plan whose stages have policies of their own: `shape` is [`Shape::mixed`] of them.
    ///
    /// # Errors
    /// As there; mixes of other numbers of layers than the chunks hold.
    pub fn simulate_under(
        &self,
        policies: &StagePolicies,
        shape: &Shape,
        degrees: &Degrees,
        sends: &Sends,
        (schedule, micro_batches): (Schedule, u64),
    ) -> Result<Seconds, StepError> {
        let arrangement = degrees.under(schedule, micro_batches);
        policies.check(&arrangement.split)?;
        let assembly = Assembly::under(policies, arrangement, self.stack, &shape.profile, &degrees.exchanges, sends);
        let (passes, leads) = passes(&assembly, self.fabric, self.stack, &degrees.exchanges)?;
        Ok(passes + assembly.once(&arrangement, self.stack, &degrees.exchanges, &leads).total())
    }
}

/// Chunks and passes of the last plan timed: plans that differ in what data-parallel ranks share once per step have the same.
#[derive(Debug, Clone, Default)]
pub struct Recent {
    assembly: Option<Assembly>,
    sends: Sends,
    gathers: bool,
    /// Micro-batches and time, by schedule.
    passes: [Option<(u64, PassesTime)>; SCHEDULES],
}

/// Kinds of schedules.
const SCHEDULES: usize = 5;

fn place(schedule: Schedule) -> usize {
    match schedule {
        Schedule::GPipe => 0,
        Schedule::OneForwardOneBackward => 1,
        Schedule::Interleaved { .. } => 2,
        Schedule::ZbH1 => 3,
        Schedule::ZbV => 4,
    }
}

impl Degrees {
    /// Whether data-parallel ranks exchange weights or gradients in every micro-batch. Only then do they share what they copy to where these live.
    fn gathers(&self) -> bool {
        self.arrangement.layout.reduces_every_micro_batch()
    }

    /// The layers by chunk.
    #[must_use]
    pub fn split(&self) -> ChunkSplit {
        self.arrangement.split
    }

    /// Whether a pipeline of these degrees has the chunks of another one, which `gathers` in every micro-batch or does not.
    fn same_chunks(&self, other: &Arrangement, gathers: bool) -> bool {
        !gathers
            && !self.gathers()
            && other.split == self.arrangement.split
            && other.layout.pipeline == self.arrangement.layout.pipeline
    }

    fn under(&self, schedule: Schedule, micro_batches: u64) -> Arrangement {
        Arrangement::new(self.arrangement.layout, self.arrangement.split, schedule, micro_batches)
    }
}

#[cfg(test)]
#[path = "evaluator_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "parts_tests.rs"]
mod parts_tests;
