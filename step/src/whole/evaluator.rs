//! Time and memory of many plans in closed form: what plans share is prepared once, an evaluation is arithmetic.
//!
//! - A [`PlanShape`] is what plans share that are lowered alike (micro-batch, tensor, context and expert degrees, sequence parallelism, activation
//!   policy): what every piece takes and keeps.
//! - [`DegreeCosts`] are what plans share that are divided alike (all degrees, chunks, ZeRO stage): what the network and the update take,
//!   what weights, gradients and states take of every kind of stage.
//! - [`Evaluator::evaluate_plan`] joins the two for a schedule and a number of micro-batches.
//!
//! The need for memory is that of [`crate::step_memory_of`], to the byte. The time is that of [`crate::step_time_of`] wherever
//! [`PassesTime::Exact`] says so: without a pipeline, under GPipe, and under plain and interleaved 1F1B where the ends of the
//! pipeline are not lighter than what is between and sends are short and alike (see `sim::pipeline`'s `ends`). Otherwise, and under the
//! zero-bubble schedules, it is a lower bound; [`Evaluator::simulate_step`] has the last word. Both ways share every formula but the schedule's.

use crate::communication::sends::PipelineSends;
use crate::memory::account::{MemoryAccount, MemoryProfile, StageHolding, StageRoom};
use crate::memory::need::MemoryNeed;
use crate::memory::step_memory::{DeviceMemory, usable_hbm, with_fullest_experts};
use crate::pass::profile::LayerProfile;
use crate::pipeline::arrangement::{Arrangement, DEVICE_KINDS};
use crate::pipeline::chunk::busy_times;
use crate::whole::assembly::{Assembly, StepExchanges};
use crate::whole::evaluate::{PlanOnNetwork, time_passes};
use crate::whole::lower_bounds::piece_loads_of_profile;
use crate::{ChipTimes, SoftwareStack, StepError, StepProfile, TrainingPlan, lower_plan};
use sim::network::Fabric;
use sim::pipeline::{PassesTime, PipelineSchedule};
use sim::units::{Bytes, Seconds};
use std::sync::Arc;
use workloads::{ActivationPolicy, ChunkSplit, Model, StagePolicies, TrainingGraph};

/// A model lowered, profiled and sized for the plans that are lowered alike.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanShape {
    pub(crate) profile: StepProfile,
    memory: MemoryProfile,
}

impl PlanShape {
    /// The shape of plans whose chunks follow mixes of policies, from the shapes under each of these.
    ///
    /// # Errors
    /// No shape of one of the policies.
    pub fn mix_policies(policies: &StagePolicies, known: &[(&ActivationPolicy, &Self)]) -> Result<Self, StepError> {
        let of = |policy: &ActivationPolicy| {
            let shape = known.iter().find(|(other, _)| *other == policy).map(|(_, shape)| *shape);
            shape.ok_or_else(|| StepError::Hardware(format!("recompute {policy}: has not been timed")))
        };
        let first = of(policies.first_layer_policy())?;
        let Some(mixes) = policies.chunk_mixes() else { return Ok(first.clone()) };
        let layer = |policy: &ActivationPolicy| Ok(LayerProfile { policy: policy.clone(), layer: of(policy)?.profile.layer });
        let by_policy = policies.distinct_policies().into_iter().map(layer).collect::<Result<_, StepError>>()?;
        let memories: Vec<(&ActivationPolicy, &MemoryProfile)> =
            known.iter().map(|(policy, shape)| (*policy, &shape.memory)).collect();
        Ok(Self { profile: first.profile.with_layer_policies(by_policy), memory: first.memory.with_mixes(&memories, mixes) })
    }

    /// What a layer keeps of one micro-batch on the device and on the host, what is alive besides while it runs, and what its passes take.
    #[must_use]
    pub fn layer_cost(&self, stack: &SoftwareStack) -> LayerCost {
        let [kept, host, storage, working] = self.memory.layer_bytes();
        let [_, layer, _] = self.piece_loads(stack);
        LayerCost { kept, host, storage, working, time: layer.forward + layer.backward }
    }

    /// The time of [`Self::layer_cost`] where weights or gradients live away from the device: with their copies under these degrees. None where none do.
    #[must_use]
    pub fn layer_cost_with_copies(&self, degrees: &DegreeCosts, stack: &SoftwareStack) -> Option<Seconds> {
        degrees.exchanges.copies?;
        let [_, layer, _] = piece_loads_of_profile(&degrees.exchanges.add_copies_to_profile(&self.profile, stack), stack);
        Some(layer.forward + layer.backward)
    }

    /// How long a layer's forward and its backward pass are busy, with what runs again.
    #[must_use]
    pub fn layer_busy_times(&self) -> [Seconds; 2] {
        busy_times(&self.profile.layer)
    }

    /// Whether no order of their kernels makes its passes faster.
    #[must_use]
    pub fn is_proven(&self) -> bool {
        [&self.profile.embedding, &self.profile.layer, &self.profile.head].into_iter().all(crate::PieceProfile::is_proven)
    }

    /// The shape of a plan.
    ///
    /// # Errors
    /// A plan that the model cannot be lowered for.
    pub fn new(chip: &mut ChipTimes, model: &Model, fabric: &Fabric, plan: &TrainingPlan) -> Result<Self, StepError> {
        let mut lowered = LoweredModel::new(model, plan, chip.stack())?;
        lowered.plan_shape(chip, fabric, plan)
    }
}

/// A model lowered for the plans that differ in their activation policy at most. A clone shares what was lowered.
#[derive(Debug, Clone)]
pub struct LoweredModel<'a> {
    model: &'a Model,
    graph: Arc<TrainingGraph>,
    /// As the device with the fullest experts holds it, where there are any.
    fullest: Option<Arc<TrainingGraph>>,
    /// The first shape: policies share all but the layers' backward passes.
    known: Option<PlanShape>,
}

impl<'a> LoweredModel<'a> {
    /// Lowers a model for a plan.
    ///
    /// # Errors
    /// A plan that the model cannot be lowered for.
    pub fn new(model: &'a Model, plan: &TrainingPlan, stack: &SoftwareStack) -> Result<Self, StepError> {
        let graph = Arc::new(lower_plan(model, plan, stack)?);
        let fullest = match &model.experts {
            Some(_) => {
                let filled = with_fullest_experts(model, plan, stack);
                Some(Arc::new(lower_plan(&filled, plan, stack)?))
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
    pub fn memory_profile(&self, activations: &StagePolicies, stack: &SoftwareStack) -> MemoryProfile {
        MemoryProfile::new(self.fullest.as_ref().unwrap_or(&self.graph), activations, stack)
    }

    /// The shape of a plan, which is lowered so.
    ///
    /// # Errors
    /// A graph without layers.
    pub fn plan_shape(&mut self, chip: &mut ChipTimes, fabric: &Fabric, plan: &TrainingPlan) -> Result<PlanShape, StepError> {
        let sized = self.fullest.as_ref().unwrap_or(&self.graph);
        if let Some(known) = &self.known {
            let memory = known.memory.with_policies(sized, &plan.activations, chip.stack());
            return Ok(PlanShape { profile: chip.profile_with_policies(&known.profile, fabric, plan)?, memory });
        }
        let profile = chip.profile_lowered(self.model, &self.graph, fabric, plan)?;
        let shape = PlanShape { profile, memory: MemoryProfile::new(sized, &plan.activations, chip.stack()) };
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
pub struct DegreeCosts {
    arrangement: Arrangement,
    exchanges: StepExchanges,
    holdings: [StageHolding; DEVICE_KINDS],
    domain: Option<u32>,
}

/// What a plan takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepEvaluation {
    /// The step, or what it takes at least.
    pub time: PassesTime,
    /// What the fullest device needs.
    pub need: MemoryNeed,
}

/// Evaluates the plans of one model on one cluster.
#[derive(Debug, Clone, Copy)]
pub struct Evaluator<'a> {
    pub(crate) model: &'a Model,
    pub(crate) fabric: &'a Fabric,
    pub(crate) stack: &'a SoftwareStack,
    pub(crate) capacity: MemoryNeed,
}

impl<'a> Evaluator<'a> {
    /// On devices with `memory`.
    #[must_use]
    pub fn new(model: &'a Model, fabric: &'a Fabric, stack: &'a SoftwareStack, memory: DeviceMemory) -> Self {
        Self {
            model,
            fabric,
            stack,
            capacity: MemoryNeed { device: usable_hbm(stack, memory.hbm), host: memory.host, storage: memory.storage },
        }
    }

    /// What programs can use of a device, of its host and of its storage.
    #[must_use]
    pub fn capacity(&self) -> MemoryNeed {
        self.capacity
    }

    /// Bytes that are lacking, of all memories together; none where a plan fits.
    #[must_use]
    pub fn total_shortfall(&self, need: MemoryNeed) -> Bytes {
        let over = self.shortfall(need);
        over.device + over.host + over.storage
    }

    /// Bytes that are lacking of each memory.
    #[must_use]
    pub fn shortfall(&self, need: MemoryNeed) -> MemoryNeed {
        need.shortfall_to(&self.capacity)
    }

    /// Once per step outside any kernel: no plan takes less besides its passes.
    #[must_use]
    pub fn overhead_per_step(&self) -> Seconds {
        Seconds(self.stack.launch.per_step_ms * 1e-3)
    }

    /// Whether a plan may fit under some split of its layers into stages: not if its stages have too little room for all of them, however many each
    /// takes.
    #[must_use]
    pub fn may_fit(&self, shape: &PlanShape, plan: &TrainingPlan, domain: Option<u32>) -> bool {
        // Any split will do: what is asked does not depend on it.
        let split = ChunkSplit { chunks: plan.layout.chunk_count(), ..ChunkSplit::default() };
        let arrangement = Arrangement::new(plan.layout, split, plan.schedule, plan.micro_batches());
        let account = MemoryAccount::new(&shape.memory, &arrangement, self.stack, domain);
        account.upper_bound_of_layers(self.model.layers, self.capacity.device) >= self.model.layers
            && account.fullest_may_fit(self.model.layers, &self.capacity)
    }

    /// Whether a plan surely does not fit under a split of its layers: many times as fast as [`Self::prepare_degrees`] and [`Self::memory_need`] tell.
    #[must_use]
    pub fn exceeds_capacity(&self, shape: &PlanShape, plan: &TrainingPlan, split: ChunkSplit, domain: Option<u32>) -> bool {
        let arrangement = Arrangement::new(plan.layout, split, plan.schedule, plan.micro_batches());
        MemoryAccount::new(&shape.memory, &arrangement, self.stack, domain).surely_exceeds(self.capacity.device)
    }

    /// Prepares a plan's degrees, from the shape of any plan with its tensor, context and expert degrees. `domain`: as in
    /// [`crate::step_memory`]. Of the plan's schedule it matters only whether it is [`PipelineSchedule::ZbV`], whose devices hold other chunks.
    ///
    /// # Errors
    /// Layers that do not divide, a schedule that needs another number of chunks.
    pub fn prepare_degrees(
        &self,
        chip: &mut ChipTimes,
        shape: &PlanShape,
        plan: &TrainingPlan,
        domain: Option<u32>,
    ) -> Result<DegreeCosts, StepError> {
        let step = PlanOnNetwork { fabric: self.fabric, plan, profile: &shape.profile };
        let arrangement = step.arrange_model(self.model)?;
        let exchanges = step.step_exchanges(chip, &arrangement);
        let holdings = MemoryAccount::new(&shape.memory, &arrangement, self.stack, domain).stage_holdings();
        Ok(DegreeCosts { arrangement, exchanges, holdings, domain })
    }

    /// What an activation's ways between stages take under a plan.
    #[must_use]
    pub fn pipeline_sends(&self, chip: &ChipTimes, shape: &PlanShape, plan: &TrainingPlan) -> PipelineSends {
        PlanOnNetwork { fabric: self.fabric, plan, profile: &shape.profile }.pipeline_sends(chip)
    }

    /// A plan's time and memory. The shape's and the degrees' tensor, context and expert degrees are the same, and under
    /// interleaved 1F1B the micro-batches a multiple of the stages.
    #[must_use]
    pub fn evaluate_plan(
        &self,
        shape: &PlanShape,
        degrees: &DegreeCosts,
        sends: &PipelineSends,
        schedule: PipelineSchedule,
        micro_batches: u64,
    ) -> StepEvaluation {
        StepEvaluation {
            time: self.time_of_passes(&mut RecentChunks::default(), shape, degrees, sends, schedule, micro_batches),
            need: self.memory_need(shape, degrees, schedule, micro_batches),
        }
    }

    /// [`Self::memory_need`] of a policy that is not timed.
    #[must_use]
    pub fn memory_need_of_profile(
        &self,
        memory: &MemoryProfile,
        degrees: &DegreeCosts,
        schedule: PipelineSchedule,
        micro_batches: u64,
    ) -> MemoryNeed {
        let arrangement = degrees.arrangement_with(schedule, micro_batches);
        let account = MemoryAccount::new(memory, &arrangement, self.stack, degrees.domain);
        let [host, storage] = account.fullest_offloaded(&degrees.holdings);
        MemoryNeed { device: account.fullest_stage_bytes(&degrees.holdings), host, storage }
    }

    /// The memory of [`Self::evaluate_plan`].
    #[must_use]
    pub fn memory_need(
        &self,
        shape: &PlanShape,
        degrees: &DegreeCosts,
        schedule: PipelineSchedule,
        micro_batches: u64,
    ) -> MemoryNeed {
        self.memory_need_of_profile(&shape.memory, degrees, schedule, micro_batches)
    }

    /// What every stage has for its layers' activations; `None` where one has too little whatever they keep. `shape` is of any policy that all layers
    /// follow.
    #[must_use]
    pub fn stage_rooms(
        &self,
        shape: &PlanShape,
        degrees: &DegreeCosts,
        schedule: PipelineSchedule,
        micro_batches: u64,
    ) -> Option<Vec<StageRoom>> {
        let arrangement = degrees.arrangement_with(schedule, micro_batches);
        let account = MemoryAccount::new(&shape.memory, &arrangement, self.stack, degrees.domain);
        let room = |device: u32| {
            let held = &degrees.holdings[arrangement.device_kind(device)];
            account.room_for_activations(device, held, self.capacity.device)
        };
        (0..arrangement.layout.pipeline).map(room).collect()
    }

    /// The layers of every chunk and the device that holds it, in the order of the pipeline.
    #[must_use]
    pub fn chunk_places(degrees: &DegreeCosts, schedule: PipelineSchedule, micro_batches: u64) -> Vec<(u64, u32)> {
        let arrangement = degrees.arrangement_with(schedule, micro_batches);
        (0..arrangement.split.chunks)
            .map(|place| (arrangement.split.layers_of_chunk(place), arrangement.device_of_chunk(place)))
            .collect()
    }

    /// What every stage needs.
    #[must_use]
    pub fn stage_needs(
        &self,
        shape: &PlanShape,
        degrees: &DegreeCosts,
        schedule: PipelineSchedule,
        micro_batches: u64,
    ) -> Vec<MemoryNeed> {
        let arrangement = degrees.arrangement_with(schedule, micro_batches);
        let account = MemoryAccount::new(&shape.memory, &arrangement, self.stack, degrees.domain);
        (0..arrangement.layout.pipeline)
            .map(|device| {
                let memory = account.peak_of_stage(device, &degrees.holdings[arrangement.device_kind(device)]);
                MemoryNeed { device: memory.bytes_needed(), host: memory.host, storage: memory.storage }
            })
            .collect()
    }

    /// The time of [`Self::evaluate_plan`]. `recent` is of plans of the same shape.
    #[must_use]
    pub fn time_of_passes(
        &self,
        recent: &mut RecentChunks,
        shape: &PlanShape,
        degrees: &DegreeCosts,
        sends: &PipelineSends,
        schedule: PipelineSchedule,
        micro_batches: u64,
    ) -> PassesTime {
        let arrangement = degrees.arrangement_with(schedule, micro_batches);
        let known = recent.assembly.as_ref().filter(|known| degrees.makes_same_chunks(&known.arrangement, recent.gathers));
        if known.is_none() || recent.sends != *sends {
            let fresh = Assembly::new(arrangement, self.stack, &shape.profile, &degrees.exchanges, sends);
            *recent = RecentChunks {
                assembly: Some(fresh),
                sends: *sends,
                gathers: degrees.gathers_every_micro_batch(),
                passes: [None; SCHEDULES],
            };
        }
        let Some(assembly) = &recent.assembly else { return PassesTime::AtLeast(Seconds::ZERO) };
        let known = &mut recent.passes[schedule_index(arrangement.schedule)];
        let passes = match known {
            Some((m, passes)) if *m == micro_batches => *passes,
            _ => known.insert((micro_batches, assembly.passes_in_closed_form(&arrangement))).1,
        };
        assembly.step_in_closed_form(&arrangement, self.stack, &degrees.exchanges, passes)
    }

    /// The step's time with the schedule played event by event: exact always.
    ///
    /// # Errors
    /// A pipeline that the schedule cannot run.
    pub fn simulate_step(
        &self,
        shape: &PlanShape,
        degrees: &DegreeCosts,
        sends: &PipelineSends,
        schedule: PipelineSchedule,
        micro_batches: u64,
    ) -> Result<Seconds, StepError> {
        self.simulate_mixed(&StagePolicies::default(), shape, degrees, sends, (schedule, micro_batches))
    }

    /// The step of a plan that splits the backward pass and whose shape is bounded by its passes' schedules: no less under better ones. Played, every
    /// part of a pass takes what it does at least by itself, so that what a pass takes as a whole is better known to [`Self::time_of_passes`].
    ///
    /// # Errors
    /// As [`Self::simulate_step`].
    pub fn simulate_lower_bound(
        &self,
        shape: &PlanShape,
        degrees: &DegreeCosts,
        sends: &PipelineSends,
        schedule: PipelineSchedule,
        micro_batches: u64,
    ) -> Result<Seconds, StepError> {
        let arrangement = degrees.arrangement_with(schedule, micro_batches);
        let assembly = Assembly::new_lower_bound(arrangement, self.stack, &shape.profile, &degrees.exchanges, sends);
        let (passes, leads) = time_passes(&assembly, self.fabric, self.stack, &degrees.exchanges)?;
        Ok(passes + assembly.once_per_step(&arrangement, self.stack, &degrees.exchanges, &leads).total_time())
    }

    /// [`Self::simulate_step`] of a plan whose stages have policies of their own: `shape` is [`PlanShape::mix_policies`] of them.
    ///
    /// # Errors
    /// As there; mixes of other numbers of layers than the chunks hold.
    pub fn simulate_mixed(
        &self,
        policies: &StagePolicies,
        shape: &PlanShape,
        degrees: &DegreeCosts,
        sends: &PipelineSends,
        (schedule, micro_batches): (PipelineSchedule, u64),
    ) -> Result<Seconds, StepError> {
        let arrangement = degrees.arrangement_with(schedule, micro_batches);
        policies.check_layer_counts(&arrangement.split)?;
        let assembly = Assembly::with_policies(policies, arrangement, self.stack, &shape.profile, &degrees.exchanges, sends);
        let (passes, leads) = time_passes(&assembly, self.fabric, self.stack, &degrees.exchanges)?;
        Ok(passes + assembly.once_per_step(&arrangement, self.stack, &degrees.exchanges, &leads).total_time())
    }
}

/// Chunks and passes of the last plan timed: plans that differ in what data-parallel ranks share once per step have the same.
#[derive(Debug, Clone, Default)]
pub struct RecentChunks {
    assembly: Option<Assembly>,
    sends: PipelineSends,
    gathers: bool,
    /// Micro-batches and time, by schedule.
    passes: [Option<(u64, PassesTime)>; SCHEDULES],
}

/// Kinds of schedules.
const SCHEDULES: usize = 5;

fn schedule_index(schedule: PipelineSchedule) -> usize {
    match schedule {
        PipelineSchedule::GPipe => 0,
        PipelineSchedule::OneForwardOneBackward => 1,
        PipelineSchedule::Interleaved { .. } => 2,
        PipelineSchedule::ZbH1 => 3,
        PipelineSchedule::ZbV => 4,
    }
}

impl DegreeCosts {
    /// Whether data-parallel ranks exchange weights or gradients in every micro-batch. Only then do they share what they copy to where these live.
    fn gathers_every_micro_batch(&self) -> bool {
        self.arrangement.layout.reduces_every_micro_batch()
    }

    /// The layers by chunk.
    #[must_use]
    pub fn chunk_split(&self) -> ChunkSplit {
        self.arrangement.split
    }

    /// Whether a pipeline of these degrees has the chunks of another one, which `gathers` in every micro-batch or does not.
    fn makes_same_chunks(&self, other: &Arrangement, gathers: bool) -> bool {
        !gathers
            && !self.gathers_every_micro_batch()
            && other.split == self.arrangement.split
            && other.layout.pipeline == self.arrangement.layout.pipeline
    }

    fn arrangement_with(&self, schedule: PipelineSchedule, micro_batches: u64) -> Arrangement {
        Arrangement::new(self.arrangement.layout, self.arrangement.split, schedule, micro_batches)
    }
}

#[cfg(test)]
#[path = "evaluator_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "parts_tests.rs"]
mod parts_tests;
