//! Computes a step from profiles: stages, schedule, data parallelism and optimizer. This is cheap, since of all kernels
//! only the update's are costed here.

use crate::communication::contention::Communication;
use crate::communication::network::StepNetwork;
use crate::communication::sends::PipelineSends;
use crate::communication::sharing::{copy_devices, parameter_holders, ranks_inside, shard_groups};
use crate::communication::slowing::MutualSlowdown;
use crate::pass::chip_times::ChipTimes;
use crate::pass::profile::{PieceProfile, StepProfile};
use crate::pipeline::arrangement::{Arrangement, DeviceGroup};
use crate::pipeline::chunk::{Chunk, ShardingExchange, pass_windows};
use crate::whole::assembly::{Assembly, ParameterExchange, PassEndLeads, StepExchanges, exposed_exchange};
use crate::{SoftwareStack, StepError, StepTime, TrainingPlan};
use sim::kernel::{Collective, CollectiveKind, DataType, RankGroup};
use sim::network::Fabric;
use sim::pipeline::{
    GradientReduction, Pipeline, PipelineSchedule, PipelineStage, StageWork, interleaved_exact_time,
    one_f_one_b_exact_time,
};
use sim::units::{Bytes, Seconds};
use workloads::{LayoutError, Model, ZeroStage};

/// Returns the time of one training step.
///
/// # Errors
/// A plan that breaks a rule of its layout, a model that cannot be lowered for the plan, or a pipeline that the
/// schedule cannot run.
pub fn step_time<N: StepNetwork>(
    chip: &mut ChipTimes,
    model: &Model,
    fabric: &N,
    plan: &TrainingPlan,
) -> Result<StepTime, StepError> {
    plan.layout.check_model_and_batch(model, &plan.batch)?;
    let profile = chip.profile_plan(model, fabric, plan)?;
    step_time_of(chip, model, fabric, plan, &profile)
}

/// Returns the time of one training step. The plan must obey its layout's rules, and the profile must be made for a
/// plan with the same lowering.
///
/// # Errors
/// Layers that do not divide among the chunks, mixes of policies with other numbers of layers than the chunks, or a
/// pipeline that the schedule cannot run.
pub fn step_time_of<N: StepNetwork>(
    chip: &mut ChipTimes,
    model: &Model,
    fabric: &N,
    plan: &TrainingPlan,
    profile: &StepProfile,
) -> Result<StepTime, StepError> {
    PlanOnNetwork { fabric, plan, profile }.time_of_step(chip, model)
}

/// A plan on a network: a fabric, or another implementation of [`StepNetwork`].
pub struct PlanOnNetwork<'a, N = Fabric> {
    /// The network.
    pub fabric: &'a N,
    /// The plan.
    pub plan: &'a TrainingPlan,
    /// The profiles of its pieces.
    pub profile: &'a StepProfile,
}

/// The ranks that shard a group's parameters, and under hybrid sharding those with copies of the same shard.
#[derive(Debug, Clone, Copy)]
pub struct ShardGroups {
    /// The ranks that share one copy.
    pub shards: RankGroup,
    /// The ranks that hold the same shard.
    pub copies: RankGroup,
}

impl<N: StepNetwork> PlanOnNetwork<'_, N> {
    fn time_of_step(&self, chip: &mut ChipTimes, model: &Model) -> Result<StepTime, StepError> {
        let (assembly, exchanges) = self.assemble_plan(chip, model)?;
        let (passes, leads) = time_passes(&assembly, self.fabric, chip.stack(), &exchanges)?;
        let once = assembly.once_per_step(&assembly.arrangement, chip.stack(), &exchanges, &leads);
        Ok(assembly.account_step(passes, &once))
    }

    /// Returns the assembled plan and its exchanges.
    ///
    /// # Errors
    /// As [`step_time_of`].
    pub fn assemble_plan(&self, chip: &mut ChipTimes, model: &Model) -> Result<(Assembly, StepExchanges), StepError> {
        let arrangement = self.arrange_model(model)?;
        let (exchanges, sends) = (self.step_exchanges(chip, &arrangement), self.pipeline_sends(chip));
        let policies = &self.plan.activations;
        policies.check_layer_counts(&arrangement.split)?;
        Ok((Assembly::with_policies(policies, arrangement, chip.stack(), self.profile, &exchanges, &sends), exchanges))
    }

    /// Returns the division of the model under the plan.
    ///
    /// # Errors
    /// Layers that do not divide among the chunks, or a schedule that needs another number of chunks per stage.
    pub fn arrange_model(&self, model: &Model) -> Result<Arrangement, StepError> {
        let layout = self.plan.layout;
        let split = layout.chunk_split(model.layers)?;
        let arrangement = Arrangement::new(layout, split, self.plan.schedule, self.plan.micro_batches());
        if layout.pipeline > 1 && arrangement.schedule.chunks_per_device() != layout.virtual_stages {
            return Err(StepError::Layout(LayoutError {
                key: "virtual_stages",
                value: layout.virtual_stages.to_string(),
                limit: format!("{} under its schedule", arrangement.schedule.chunks_per_device()),
                cure: "use as many, or 1F1B".to_owned(),
            }));
        }
        Ok(arrangement)
    }

    /// Returns the plan's demands on the network and the optimizer.
    pub fn step_exchanges(&self, chip: &mut ChipTimes, arrangement: &Arrangement) -> StepExchanges {
        let (pieces, units) = (arrangement.chunk_pieces(self.profile), arrangement.gather_units(self.profile));
        let mut exchanges = StepExchanges {
            tied: self.tied_gradient_sum(chip),
            copies: self.parameter_copies(chip),
            ..StepExchanges::default()
        };
        for DeviceGroup { kind, counts, .. } in arrangement.device_groups() {
            let sum = |of: fn(&PieceProfile) -> u64| pieces.iter().zip(counts).map(|(piece, n)| of(piece) * n).sum();
            let held = PieceProfile {
                parameters: sum(|p| p.parameters),
                expert_parameters: sum(|p| p.expert_parameters),
                tensors: sum(|p| p.tensors),
                ..PieceProfile::default()
            };
            let updated = self.updated_parameters(chip, held.parameters, held.expert_parameters);
            exchanges.devices[kind] = ParameterExchange {
                update: chip.time_of_update(self.profile, updated),
                ..self.exchange_of_parameters(chip, &held)
            };
        }
        for ((unit, piece), n) in exchanges.units.iter_mut().zip(&pieces).zip(units) {
            *unit = self.gathers_per_unit(chip, piece, n);
        }
        exchanges
    }

    /// Returns the exchange of one of a piece's `units` per micro-batch. ZeRO-3 gathers the
    /// unit's weights. ZeRO-2 and -3 scatter its gradients and keep a shard.
    pub fn gathers_per_unit(&self, chip: &ChipTimes, piece: &PieceProfile, units: u64) -> ShardingExchange {
        let mut exchange = ShardingExchange::default();
        let zero = self.plan.layout.zero;
        if !self.plan.layout.reduces_every_micro_batch() {
            return exchange;
        }
        // Weights without gradients are gathered with the dense weights.
        let mut still = piece.frozen;
        for (parameters, group) in self.holders_of_parameters(piece.parameters, piece.expert_parameters) {
            let shards = self.sharding_groups(chip, group).shards;
            let collective = |kind, bytes: Bytes, count: u64| {
                self.collective_cost(chip, kind, bytes * (count / units.max(1)), shards)
            };
            if zero == ZeroStage::Parameters {
                let weights = self.profile.weight_bytes;
                exchange.gather = exchange.gather + collective(CollectiveKind::AllGather, weights, parameters + still);
            }
            exchange.scatter =
                exchange.scatter + collective(CollectiveKind::ReduceScatter, self.reduced_bytes(chip), parameters);
            still = 0;
        }
        exchange
    }

    /// Returns a device's dense and expert parameters, each with the group of ranks that hold the same ones. Experts
    /// are spread over the expert-parallel ranks.
    pub fn holders_of_parameters(&self, parameters: u64, experts: u64) -> [(u64, RankGroup); 2] {
        let [dense, sparse] = parameter_holders(&self.plan.layout);
        [(parameters, dense), (experts, sparse)]
    }

    /// Returns the groups that shard the parameters of `group` and hold copies of the same shard.
    pub fn sharding_groups(&self, chip: &ChipTimes, group: RankGroup) -> ShardGroups {
        let copy = copy_devices(chip.stack(), self.fabric.fast_domain_size(), &self.plan.layout);
        let ranks = shard_groups(group.ranks, copy.map(|devices| ranks_inside(devices, group.stride)));
        let copies = RankGroup { ranks: group.ranks / ranks, stride: group.stride * ranks };
        ShardGroups { shards: RankGroup { ranks, stride: group.stride }, copies }
    }

    /// Returns the cost of a collective of a group; zero for a group of one or for no bytes.
    pub fn collective_cost(
        &self,
        chip: &ChipTimes,
        kind: CollectiveKind,
        bytes: Bytes,
        group: RankGroup,
    ) -> Communication {
        if group.ranks < 2 || bytes == Bytes::ZERO {
            return Communication::default();
        }
        chip.cost_of_collective(self.fabric, &Collective { kind, bytes, group })
    }

    /// Returns the number of parameters that one device updates.
    pub fn updated_parameters(&self, chip: &ChipTimes, parameters: u64, experts: u64) -> u64 {
        if self.plan.layout.zero == ZeroStage::None {
            return parameters.saturating_add(experts);
        }
        let held = self.holders_of_parameters(parameters, experts);
        held.iter()
            .map(|(count, group)| count.div_ceil(u64::from(self.sharding_groups(chip, *group).shards.ranks)))
            .sum()
    }

    /// Returns the exposed exchange once per step of all pieces on a device.
    pub fn exposed_synchronisation(&self, chip: &ChipTimes, all: &PieceProfile) -> Seconds {
        let exchange = self.exchange_of_parameters(chip, all);
        exposed_exchange(chip.stack(), &exchange, pass_windows(chip.stack(), all))
    }

    /// Returns the exchange once per step of the gradients (and updated weights) of all pieces on a device, without the
    /// update's time.
    pub fn exchange_of_parameters(&self, chip: &ChipTimes, held: &PieceProfile) -> ParameterExchange {
        let mut exchange = ParameterExchange::default();
        let slower = match self.plan.layout.zero {
            ZeroStage::OptimizerStates | ZeroStage::Gradients => 1.0 / chip.stack().sustained.exchange_fraction,
            ZeroStage::None | ZeroStage::Parameters => 1.0,
        };
        for (count, group) in self.holders_of_parameters(held.parameters, held.expert_parameters) {
            let [first, second, weights] = self.reduce_and_gather(chip, count, group);
            for Collective { kind, bytes, group } in [first, second] {
                exchange.reduce = exchange.reduce + self.collective_cost(chip, kind, bytes, group);
            }
            exchange.gather = exchange.gather + self.gather_updated_weights(chip, weights, held.tensors);
        }
        exchange.reduce = exchange.reduce * slower;
        exchange.gather = exchange.gather * slower;
        exchange
    }

    /// Returns the cost of `gather`. If ranks own whole tensors, each owner broadcasts an equal share of the bytes
    /// instead, after the previous broadcast has reached all ranks. There are at most as many owners as `tensors`.
    fn gather_updated_weights(&self, chip: &ChipTimes, gather: Collective, tensors: u64) -> Communication {
        let Collective { bytes, group, .. } = gather;
        if !self.shares_whole_tensors(chip) {
            return self.collective_cost(chip, gather.kind, bytes, group);
        }
        let owners = u64::from(group.ranks).min(tensors).max(1);
        self.collective_cost(chip, CollectiveKind::Broadcast, Bytes(bytes.0.div_ceil(owners)), group) * owners as f64
    }

    /// Returns the bytes of one weight's gradient while it is reduced.
    fn reduced_bytes(&self, chip: &ChipTimes) -> Bytes {
        let own = self.profile.gradient_bytes;
        if chip.stack().kernels.fp32_reduction { own.max(Bytes(DataType::Fp32.bytes())) } else { own }
    }

    fn shares_whole_tensors(&self, chip: &ChipTimes) -> bool {
        self.plan.layout.zero == ZeroStage::OptimizerStates && chip.stack().kernels.whole_tensor_shards
    }

    /// Returns the collectives of `group` once per step, for the `count` parameters that it holds. These are two
    /// reductions of gradients (the second among copies under hybrid sharding) and a gathering of weights. A collective
    /// that the ZeRO stage does not need has no bytes.
    pub fn reduce_and_gather(&self, chip: &ChipTimes, count: u64, group: RankGroup) -> [Collective; 3] {
        let (gradients, weights) = (self.reduced_bytes(chip) * count, self.profile.weight_bytes * count);
        let ShardGroups { shards, copies } = self.sharding_groups(chip, group);
        let shard = Bytes(gradients.0 / u64::from(shards.ranks.max(1)));
        let nothing = Bytes::ZERO;
        let (all, scattered, shared, gathered) = match self.plan.layout.zero {
            ZeroStage::None => (gradients, nothing, nothing, nothing),
            ZeroStage::OptimizerStates if self.shares_whole_tensors(chip) => (gradients, nothing, nothing, weights),
            ZeroStage::Gradients if self.plan.layout.reduces_every_micro_batch() => (nothing, nothing, shard, weights),
            ZeroStage::OptimizerStates | ZeroStage::Gradients => (nothing, gradients, shard, weights),
            ZeroStage::Parameters => (nothing, nothing, shard, nothing),
        };
        let first = if all > nothing {
            Collective { kind: CollectiveKind::AllReduce, bytes: all, group }
        } else {
            Collective { kind: CollectiveKind::ReduceScatter, bytes: scattered, group: shards }
        };
        let second = Collective { kind: CollectiveKind::AllReduce, bytes: shared, group: copies };
        [first, second, Collective { kind: CollectiveKind::AllGather, bytes: gathered, group: shards }]
    }

    /// Returns the time to sum the gradients of a tied embedding's two copies; zero without a pipeline or without a
    /// tied embedding.
    pub fn tied_gradient_sum(&self, chip: &ChipTimes) -> Seconds {
        let layout = &self.plan.layout;
        if layout.pipeline == 1 || self.profile.tied_parameters == 0 {
            return Seconds::ZERO;
        }
        let bytes = self.profile.gradient_bytes * self.profile.tied_parameters;
        self.fabric.time_of_tied_sum(layout, bytes).with_launch_gap(chip.launch_gap()).time
    }

    /// Returns the sends of activations between stages. Under sequence parallelism, a device sends its own tokens.
    /// Otherwise each tensor-parallel device sends a slice, and the receiving stage gathers the slices (Narayanan et
    /// al., SC 2021, section 4.1).
    pub fn pipeline_sends(&self, chip: &ChipTimes) -> PipelineSends {
        let layout = &self.plan.layout;
        let bytes = self.profile.boundary;
        let sliced = layout.tensor > 1 && !layout.sequence_parallel;
        let slice = if sliced { Bytes(bytes.0 / u64::from(layout.tensor)) } else { bytes };
        let group = RankGroup { ranks: layout.tensor, stride: 1 };
        let gather = Collective { kind: CollectiveKind::AllGather, bytes, group };
        PipelineSends::new(self.fabric, layout, |tier| {
            let send = self.fabric.cost_of_send(layout, tier, slice).with_launch_gap(chip.launch_gap());
            let send = if sliced { send + chip.cost_of_collective(self.fabric, &gather) } else { send };
            // The chip's scalars of slowdown are for collectives of whole groups. A send uses few of their channels,
            // and no measurement tells what a send slows.
            Communication { slowing: MutualSlowdown::default(), ..send }
        })
    }
}

/// Returns the time of all passes of all micro-batches under the schedule, and the time by which each device's passes
/// end before the last pass.
///
/// # Errors
/// A pipeline that the schedule cannot run.
pub fn time_passes(
    assembly: &Assembly,
    fabric: &impl StepNetwork,
    stack: &SoftwareStack,
    exchanges: &StepExchanges,
) -> Result<(Seconds, PassEndLeads), StepError> {
    let Arrangement { split, schedule, micro_batches, .. } = assembly.arrangement;
    if split.chunks == 1 {
        return Ok((assembly.passes_without_pipeline(), PassEndLeads::Closed));
    }
    let m = u32::try_from(micro_batches).unwrap_or(u32::MAX);
    let chunks = (0..split.chunks).map(|place| assembly.chunk_at(place));
    let work =
        || chunks.map(|c| StageWork { forward: c.forward, backward: c.recompute + c.backward }).collect::<Vec<_>>();
    match schedule {
        PipelineSchedule::OneForwardOneBackward => {
            return Ok((
                one_f_one_b_exact_time(&work(), &assembly.exposed_sends_between_chunks(fabric), m),
                PassEndLeads::Closed,
            ));
        }
        PipelineSchedule::Interleaved { chunks } if m.is_multiple_of(assembly.arrangement.layout.pipeline) => {
            return Ok((
                interleaved_exact_time(&work(), &assembly.exposed_sends_between_chunks(fabric), chunks, m),
                PassEndLeads::Closed,
            ));
        }
        _ => {}
    }
    let played = simulated_pipeline(assembly, fabric, stack, exchanges)
        .simulate_without_records()
        .map_err(|e| StepError::Hardware(e.to_string()))?;
    let leads = if schedule.splits_backward() {
        PassEndLeads::Played(played.devices.iter().map(|device| played.passes_end - device.passes_end).collect())
    } else {
        PassEndLeads::Closed
    };
    Ok((played.passes_end, leads))
}

/// Returns the step as a pipeline for the event simulation, without memory and without the overhead per step. It
/// includes exchanges and updates, so ZB-V runs the order with the shortest step, not the one with the shortest passes.
pub fn simulated_pipeline(
    assembly: &Assembly,
    fabric: &impl StepNetwork,
    stack: &SoftwareStack,
    exchanges: &StepExchanges,
) -> Pipeline {
    let arrangement = &assembly.arrangement;
    let stage = |c: &Chunk| {
        let [backward_input, backward_weight] = c.gradient_times(arrangement.schedule);
        PipelineStage {
            forward: c.forward,
            recompute: c.recompute,
            backward_input,
            backward_weight,
            ..PipelineStage::default()
        }
    };
    let mut stages: Vec<PipelineStage> =
        (0..arrangement.split.chunks).map(|place| stage(assembly.chunk_at(place))).collect();
    let mut alike = assembly.group_of_device(0);
    for (device, stage) in (0..arrangement.layout.pipeline).zip(&mut stages) {
        if alike.is_none_or(|alike| alike.to < device) {
            alike = assembly.group_of_device(device);
        }
        let Some(alike) = &alike else { continue };
        let once = assembly.once_per_device(alike, stack, exchanges);
        (stage.reduction, stage.optimizer) = (once.data + once.tied, once.update);
    }
    Pipeline {
        stages,
        sends: assembly.exposed_sends_between_chunks(fabric),
        micro_batches: u32::try_from(arrangement.micro_batches).unwrap_or(u32::MAX),
        schedule: arrangement.schedule,
        reduction: GradientReduction::AfterBackward,
        optimizer_waits_for_all: true,
    }
}
