//! Time and memory of many plans in closed form. Common parts are prepared once, so an evaluation is only arithmetic.
//!
//! - A [`PlanShape`] is common to plans with the same lowering (micro-batch, tensor, context and expert degrees,
//!   sequence parallelism, activation policy): the times and bytes of every piece.
//! - [`DegreeCosts`] are common to plans with the same division (all degrees, chunks, ZeRO stage): the costs of the
//!   network and the update, and the bytes of weights, gradients and states of every kind of stage.
//! - [`Evaluator::evaluate_plan`] joins the two for a schedule and a number of micro-batches.
//!
//! The memory need equals that of [`crate::step_memory_of`] to the byte. The time equals that of
//! [`crate::step_time_of`] if it is [`PassesTime::Exact`]. It is exact without a pipeline and under GPipe. Under plain
//! and interleaved 1F1B, it is exact if the pipeline's ends are not lighter than its inner stages, and sends are short
//! and alike (see `sim::pipeline`'s `ends`). Otherwise, and under the zero-bubble schedules, the time is a lower bound,
//! and [`Evaluator::simulate_step`] gives the exact one. The closed form and the simulation share every formula except
//! the schedule's.

use crate::communication::sends::PipelineSends;
use crate::memory::account::{MemoryAccount, MemoryProfile, StageHolding, StageRoom};
use crate::memory::need::MemoryNeed;
use crate::memory::step_memory::{DeviceMemory, usable_hbm, with_fullest_experts};
use crate::pass::profile::LayerProfile;
use crate::pipeline::arrangement::{Arrangement, DEVICE_KINDS, DeviceGroup};
use crate::pipeline::chunk::busy_times;
use crate::whole::assembly::{Assembly, StepExchanges};
use crate::whole::evaluate::{PlanOnNetwork, time_passes};
use crate::whole::piece_load::{PieceLoad, piece_loads_of_profile};
use crate::{ChipTimes, SoftwareStack, StepError, StepProfile, TrainingPlan, lower_plan};
use sim::network::Fabric;
use sim::pipeline::{PassesTime, PipelineSchedule};
use sim::units::{Bytes, Seconds};
use std::sync::Arc;
use workloads::{ActivationPolicy, ChunkSplit, Model, StagePolicies, TrainingGraph};

/// The first or the last chunk of a pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EndChunk {
    /// The chunk with the embedding.
    First,
    /// The chunk with the head.
    Last,
}

/// A model lowered, profiled and sized, for all plans with the same lowering.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanShape {
    pub(crate) profile: StepProfile,
    memory: MemoryProfile,
}

impl PlanShape {
    /// Returns the loads of the embedding, a layer and the head. They exclude copies of offloaded weights and
    /// gradients, which depend on the degrees. Any number of layers, with any ends, takes at least the sum of their
    /// loads. In every pass, the longer of a layer's device and host time adds up.
    #[must_use]
    pub fn piece_loads(&self, stack: &SoftwareStack) -> [PieceLoad; 3] {
        piece_loads_of_profile(&self.profile, stack)
    }

    /// Returns the shape of plans whose chunks mix policies, from the shapes with one policy each.
    ///
    /// # Errors
    /// A policy that `known` lacks.
    pub fn mix_policies(policies: &StagePolicies, known: &[(&ActivationPolicy, &Self)]) -> Result<Self, StepError> {
        let of = |policy: &ActivationPolicy| {
            let shape = known.iter().find(|(other, _)| *other == policy).map(|(_, shape)| *shape);
            shape.ok_or_else(|| StepError::Hardware(format!("recompute {policy}: has not been timed")))
        };
        let first = of(policies.first_layer_policy())?;
        let Some(mixes) = policies.chunk_mixes() else { return Ok(first.clone()) };
        let layer =
            |policy: &ActivationPolicy| Ok(LayerProfile { policy: policy.clone(), layer: of(policy)?.profile.layer });
        let by_policy = policies.distinct_policies().into_iter().map(layer).collect::<Result<_, StepError>>()?;
        let memories: Vec<(&ActivationPolicy, &MemoryProfile)> =
            known.iter().map(|(policy, shape)| (*policy, &shape.memory)).collect();
        Ok(Self {
            profile: first.profile.with_layer_policies(by_policy),
            memory: first.memory.with_mixes(&memories, mixes),
        })
    }

    /// Returns a layer's cost: kept bytes per micro-batch on the device, the host and storage, working bytes while it
    /// runs, and the time of its passes.
    #[must_use]
    pub fn layer_cost(&self, stack: &SoftwareStack) -> LayerCost {
        let [kept, host, storage, working] = self.memory.layer_bytes();
        let [_, layer, _] = self.piece_loads(stack);
        LayerCost { kept, host, storage, working, time: layer.forward + layer.backward }
    }

    /// Returns the time of [`Self::layer_cost`], with copies of offloaded weights or gradients under these degrees;
    /// `None` if none are offloaded.
    #[must_use]
    pub fn layer_cost_with_copies(&self, degrees: &DegreeCosts, stack: &SoftwareStack) -> Option<Seconds> {
        degrees.exchanges.copies?;
        let [_, layer, _] =
            piece_loads_of_profile(&degrees.exchanges.add_copies_to_profile(&self.profile, stack), stack);
        Some(layer.forward + layer.backward)
    }

    /// Returns the busy time of a layer's forward pass, and of its backward pass with recomputation.
    #[must_use]
    pub fn layer_busy_times(&self) -> [Seconds; 2] {
        busy_times(&self.profile.layer)
    }

    /// Returns whether all schedules of the shape's passes are proven optimal: no order of kernels makes them faster.
    #[must_use]
    pub fn is_proven(&self) -> bool {
        [&self.profile.embedding, &self.profile.layer, &self.profile.head]
            .into_iter()
            .all(crate::PieceProfile::is_proven)
    }

    /// Returns the shape of a plan.
    ///
    /// # Errors
    /// A plan that the model cannot be lowered for.
    pub fn new(chip: &mut ChipTimes, model: &Model, fabric: &Fabric, plan: &TrainingPlan) -> Result<Self, StepError> {
        let mut lowered = LoweredModel::new(model, plan, chip.stack())?;
        lowered.plan_shape(chip, fabric, plan)
    }
}

/// A model lowered for plans that differ at most in their activation policy. Clones share the graphs.
#[derive(Debug, Clone)]
pub struct LoweredModel<'a> {
    model: &'a Model,
    graph: Arc<TrainingGraph>,
    /// The graph on the device with the fullest experts, if the model has experts.
    fullest: Option<Arc<TrainingGraph>>,
    /// The first shape that was made. Other policies change only the layers' backward passes.
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

    /// Returns the lowered model.
    #[must_use]
    pub fn graph(&self) -> &TrainingGraph {
        &self.graph
    }

    /// Returns the memory profile under `activations`, on the device with the fullest experts.
    #[must_use]
    pub fn memory_profile(&self, activations: &StagePolicies, stack: &SoftwareStack) -> MemoryProfile {
        MemoryProfile::new(self.fullest.as_ref().unwrap_or(&self.graph), activations, stack)
    }

    /// Returns the shape of a plan with this lowering.
    ///
    /// # Errors
    /// A graph without layers.
    pub fn plan_shape(
        &mut self,
        chip: &mut ChipTimes,
        fabric: &Fabric,
        plan: &TrainingPlan,
    ) -> Result<PlanShape, StepError> {
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

/// Cost of a layer under a policy.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerCost {
    /// Bytes kept on the device per micro-batch.
    pub kept: Bytes,
    /// Bytes kept in host memory per micro-batch.
    pub host: Bytes,
    /// Bytes kept in storage per micro-batch.
    pub storage: Bytes,
    /// Working bytes while the layer runs backward, with the next layer's tensors that return from the host.
    pub working: Bytes,
    /// Time of both its passes, with recomputation.
    pub time: Seconds,
}

/// Costs that all plans with the same division share: the use of the network, the update, and the memory apart from
/// activations.
#[derive(Debug, Clone)]
pub struct DegreeCosts {
    arrangement: Arrangement,
    exchanges: StepExchanges,
    holdings: [StageHolding; DEVICE_KINDS],
    domain: Option<u32>,
}

/// Time and memory of a plan.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepEvaluation {
    /// The step's time, exact or a lower bound.
    pub time: PassesTime,
    /// The need of the fullest device.
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
    /// Returns an evaluator for devices with `memory`.
    #[must_use]
    pub fn new(model: &'a Model, fabric: &'a Fabric, stack: &'a SoftwareStack, memory: DeviceMemory) -> Self {
        Self {
            model,
            fabric,
            stack,
            capacity: MemoryNeed { device: usable_hbm(stack, memory.hbm), host: memory.host, storage: memory.storage },
        }
    }

    /// Returns the usable bytes of a device, and of its shares of host memory and storage.
    #[must_use]
    pub fn capacity(&self) -> MemoryNeed {
        self.capacity
    }

    /// Returns the memory shortfall in bytes, summed over all memories; zero if the plan fits.
    #[must_use]
    pub fn total_shortfall(&self, need: MemoryNeed) -> Bytes {
        let over = self.shortfall(need);
        over.device + over.host + over.storage
    }

    /// Returns the shortfall of each memory in bytes; zero where the plan fits.
    #[must_use]
    pub fn shortfall(&self, need: MemoryNeed) -> MemoryNeed {
        need.shortfall_to(&self.capacity)
    }

    /// Returns the time per step outside kernels, which every plan takes in addition to its passes.
    #[must_use]
    pub fn overhead_per_step(&self) -> Seconds {
        Seconds(self.stack.launch.per_step_ms * 1e-3)
    }

    /// Returns whether a plan may fit under some split of its layers into stages. If not, its stages have too little
    /// room for all layers under every split.
    #[must_use]
    pub fn may_fit(&self, shape: &PlanShape, plan: &TrainingPlan, domain: Option<u32>) -> bool {
        // Any split will do, because the result does not depend on it.
        let split = ChunkSplit { chunks: plan.layout.chunk_count(), ..ChunkSplit::default() };
        let arrangement = Arrangement::new(plan.layout, split, plan.schedule, plan.micro_batches());
        let account = MemoryAccount::new(&shape.memory, &arrangement, self.stack, domain);
        account.upper_bound_of_layers(self.model.layers, self.capacity.device) >= self.model.layers
            && account.fullest_may_fit(self.model.layers, &self.capacity)
    }

    /// Returns whether a plan certainly does not fit under this split of its layers. The test is sufficient, not
    /// necessary. It is much faster than [`Self::prepare_degrees`] and [`Self::memory_need`].
    #[must_use]
    pub fn exceeds_capacity(
        &self,
        shape: &PlanShape,
        plan: &TrainingPlan,
        split: ChunkSplit,
        domain: Option<u32>,
    ) -> bool {
        let arrangement = Arrangement::new(plan.layout, split, plan.schedule, plan.micro_batches());
        MemoryAccount::new(&shape.memory, &arrangement, self.stack, domain)
            .surely_exceeds(self.capacity.device, |_| true)
    }

    /// Returns [`Self::exceeds_capacity`] of the devices that do not hold the chunk at `end`. The result does not
    /// depend on that chunk's layers.
    #[must_use]
    pub fn exceeds_capacity_without(
        &self,
        shape: &PlanShape,
        plan: &TrainingPlan,
        split: ChunkSplit,
        end: EndChunk,
        domain: Option<u32>,
    ) -> bool {
        let arrangement = Arrangement::new(plan.layout, split, plan.schedule, plan.micro_batches());
        let counts = |group: &DeviceGroup| match end {
            EndChunk::First => group.counts[0] == 0,
            EndChunk::Last => group.counts[2] == 0,
        };
        MemoryAccount::new(&shape.memory, &arrangement, self.stack, domain).surely_exceeds(self.capacity.device, counts)
    }

    /// Returns a plan's degree costs, from the shape of any plan with the same tensor, context and expert degrees.
    /// `domain` is as in [`crate::step_memory`]. Only schedules in a V ([`PipelineSchedule::is_in_v`]) make a
    /// difference: their devices hold other chunks.
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

    /// Returns the sends between stages under a plan.
    #[must_use]
    pub fn pipeline_sends(&self, chip: &ChipTimes, shape: &PlanShape, plan: &TrainingPlan) -> PipelineSends {
        PlanOnNetwork { fabric: self.fabric, plan, profile: &shape.profile }.pipeline_sends(chip)
    }

    /// Returns a plan's time and memory. `shape` and `degrees` must have the same tensor, context and expert degrees.
    /// Under interleaved 1F1B, the number of micro-batches must be a multiple of the number of stages.
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

    /// Returns [`Self::memory_need`] of a memory profile, for a policy that is not timed.
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

    /// Returns the memory need of [`Self::evaluate_plan`].
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

    /// Returns the bytes of device memory that the fullest stage lacks under every policy of its layers; zero if some
    /// policy might fit. `shape` may be of any uniform policy.
    #[must_use]
    pub fn least_shortfall(
        &self,
        shape: &PlanShape,
        degrees: &DegreeCosts,
        schedule: PipelineSchedule,
        micro_batches: u64,
    ) -> Bytes {
        let arrangement = degrees.arrangement_with(schedule, micro_batches);
        let account = MemoryAccount::new(&shape.memory, &arrangement, self.stack, degrees.domain);
        let least = |device| account.least_bytes(device, &degrees.holdings[arrangement.device_kind(device)]);
        let most = (0..arrangement.layout.pipeline).map(least).max().unwrap_or(Bytes::ZERO);
        most.saturating_sub(self.capacity.device)
    }

    /// Returns each stage's room for its layers' activations; `None` if some stage has too little room under every
    /// policy. `shape` may be of any uniform policy.
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

    /// Returns (number of layers, device) of every chunk, in pipeline order.
    #[must_use]
    pub fn chunk_places(degrees: &DegreeCosts, schedule: PipelineSchedule, micro_batches: u64) -> Vec<(u64, u32)> {
        let arrangement = degrees.arrangement_with(schedule, micro_batches);
        (0..arrangement.split.chunks)
            .map(|place| (arrangement.split.layers_of_chunk(place), arrangement.device_of_chunk(place)))
            .collect()
    }

    /// Returns the memory need of every stage, on one of its devices.
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

    /// Returns the step's time of [`Self::evaluate_plan`]. `recent` must be of plans with the same shape; it is
    /// updated.
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
        let known =
            recent.assembly.as_ref().filter(|known| degrees.makes_same_chunks(&known.arrangement, recent.gathers));
        if known.is_none() || recent.sends != *sends {
            let fresh = Assembly::new(arrangement, self.stack, &shape.profile, &degrees.exchanges, sends);
            *recent = RecentChunks {
                assembly: Some(fresh),
                sends: *sends,
                gathers: degrees.gathers_every_micro_batch(),
                passes: [None; PipelineSchedule::KINDS],
            };
        }
        let Some(assembly) = &recent.assembly else { return PassesTime::AtLeast(Seconds::ZERO) };
        let known = &mut recent.passes[arrangement.schedule.kind_index()];
        let passes = match known {
            Some((m, passes)) if *m == micro_batches => *passes,
            _ => known.insert((micro_batches, assembly.passes_in_closed_form(&arrangement))).1,
        };
        assembly.step_in_closed_form(&arrangement, self.stack, &degrees.exchanges, passes)
    }

    /// Returns the step's exact time, with the schedule simulated event by event.
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
        self.simulate_mixed(&StagePolicies::default(), shape, degrees, sends, schedule, micro_batches)
    }

    /// Returns a lower bound on the step of a plan whose schedule splits the backward pass and whose shape is bounded
    /// by its passes' schedules. In the simulation, each part of a pass has its own minimum. So
    /// [`Self::time_of_passes`] knows whole passes more precisely.
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

    /// Returns the simulated time of a plan whose stages have their own policies. `shape` comes from
    /// [`PlanShape::mix_policies`].
    ///
    /// # Errors
    /// As [`Self::simulate_step`], or mixes with other numbers of layers than the chunks.
    pub fn simulate_mixed(
        &self,
        policies: &StagePolicies,
        shape: &PlanShape,
        degrees: &DegreeCosts,
        sends: &PipelineSends,
        schedule: PipelineSchedule,
        micro_batches: u64,
    ) -> Result<Seconds, StepError> {
        let arrangement = degrees.arrangement_with(schedule, micro_batches);
        policies.check_layer_counts(&arrangement.split)?;
        let assembly =
            Assembly::with_policies(policies, arrangement, self.stack, &shape.profile, &degrees.exchanges, sends);
        let (passes, leads) = time_passes(&assembly, self.fabric, self.stack, &degrees.exchanges)?;
        Ok(passes + assembly.once_per_step(&arrangement, self.stack, &degrees.exchanges, &leads).total_time())
    }
}

/// Chunks and passes of the last timed plan. Plans that differ only in the sharding of what data-parallel ranks
/// exchange once per step share them.
#[derive(Debug, Clone, Default)]
pub struct RecentChunks {
    assembly: Option<Assembly>,
    sends: PipelineSends,
    gathers: bool,
    /// Micro-batches and time, by kind of schedule.
    passes: [Option<(u64, PassesTime)>; PipelineSchedule::KINDS],
}

impl DegreeCosts {
    /// Returns whether data-parallel ranks exchange weights or gradients in every micro-batch. Only then does the
    /// copying of offloaded weights and gradients depend on their sharding.
    fn gathers_every_micro_batch(&self) -> bool {
        self.arrangement.layout.reduces_every_micro_batch()
    }

    /// Returns the number of layers of each chunk.
    #[must_use]
    pub fn chunk_split(&self) -> ChunkSplit {
        self.arrangement.split
    }

    /// Returns whether a pipeline of these degrees has the same chunks as `other`. `gathers` tells whether `other`
    /// exchanges in every micro-batch.
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
