//! From profiles to a step: stages, schedule, data parallelism, optimizer. Cheap: no kernel is costed here but the update.

use super::arrangement::{Alike, Arrangement};
use super::assembly::{Assembly, Exchange, Exchanges, Leads, exposed_exchange};
use super::chip_times::ChipTimes;
use super::chunk::{Chunk, exposed_gathers, windows};
use super::contention::Communication;
use super::exchange::{holders, inside, shards};
use super::network::Network;
use super::profile::{PieceProfile, StepProfile};
use super::sends::Sends;
use super::slowing::Slowing;
use super::{SoftwareStack, StepError, StepTime, TrainingPlan};
use sim::kernel::{Collective, CollectiveKind, Group};
use sim::network::Fabric;
use sim::pipeline::{Pipeline, Reduction, Schedule, Stage, StageWork, interleaved_exact_time, one_f_one_b_exact_time};
use sim::units::{Bytes, Seconds};
use workloads::{LayoutError, Model, ZeroStage};

/// The time of one training step.
///
/// # Errors
/// A plan that breaks a rule of its layout, a model that cannot be lowered so, a fabric that the plan does not fit.
pub fn step_time<N: Network>(
    chip: &mut ChipTimes,
    model: &Model,
    fabric: &N,
    plan: &TrainingPlan,
) -> Result<StepTime, StepError> {
    plan.layout.check(model, &plan.batch)?;
    let profile = chip.profile(model, fabric, plan)?;
    step_time_of(chip, model, fabric, plan, &profile)
}

/// The time of one training step of a plan that obeys its layout's rules, from a profile made for a plan that is lowered alike.
///
/// # Errors
/// A pipeline that the schedule cannot run.
pub fn step_time_of<N: Network>(
    chip: &mut ChipTimes,
    model: &Model,
    fabric: &N,
    plan: &TrainingPlan,
    profile: &StepProfile,
) -> Result<StepTime, StepError> {
    Step { fabric, plan, profile }.time(chip, model)
}

/// A plan on a network: a fabric, or any other that answers like one.
pub struct Step<'a, N = Fabric> {
    /// The network.
    pub fabric: &'a N,
    /// The plan.
    pub plan: &'a TrainingPlan,
    /// What its pieces take.
    pub profile: &'a StepProfile,
}

impl<N: Network> Step<'_, N> {
    fn time(&self, chip: &mut ChipTimes, model: &Model) -> Result<StepTime, StepError> {
        let (assembly, exchanges) = self.assembly(chip, model)?;
        let (passes, leads) = passes(&assembly, self.fabric, chip.stack(), &exchanges)?;
        let once = assembly.once(&assembly.arrangement, chip.stack(), &exchanges, &leads);
        Ok(assembly.account(passes, &once))
    }

    /// The plan put together, with what it exchanges.
    pub fn assembly(&self, chip: &mut ChipTimes, model: &Model) -> Result<(Assembly, Exchanges), StepError> {
        let arrangement = self.arrangement(model)?;
        let (exchanges, sends) = (self.exchanges(chip, &arrangement), self.sends(chip));
        let policies = &self.plan.activations;
        policies.check(&arrangement.split)?;
        Ok((Assembly::under(policies, arrangement, chip.stack(), self.profile, &exchanges, &sends), exchanges))
    }

    /// How the plan divides the model.
    pub fn arrangement(&self, model: &Model) -> Result<Arrangement, StepError> {
        let layout = self.plan.layout;
        let split = layout.chunk_split(model.layers)?;
        let arrangement = Arrangement::new(layout, split, self.plan.schedule, self.plan.micro_batches());
        if layout.pipeline > 1 && arrangement.schedule.chunks() != layout.virtual_stages {
            return Err(StepError::Layout(LayoutError {
                key: "virtual_stages",
                value: layout.virtual_stages.to_string(),
                limit: format!("{} under its schedule", arrangement.schedule.chunks()),
                cure: "use as many, or 1F1B".to_owned(),
            }));
        }
        Ok(arrangement)
    }

    /// What the degrees ask of the network and of the update.
    pub fn exchanges(&self, chip: &mut ChipTimes, arrangement: &Arrangement) -> Exchanges {
        let (pieces, units) = (arrangement.pieces(self.profile), arrangement.units(self.profile));
        let mut exchanges = Exchanges { tied: self.tied(chip), copies: self.parameter_copies(chip), ..Exchanges::default() };
        for Alike { kind, counts, .. } in arrangement.devices() {
            let sum = |of: fn(&PieceProfile) -> u64| pieces.iter().zip(counts).map(|(piece, n)| of(piece) * n).sum();
            let (parameters, experts) = (sum(|p| p.parameters), sum(|p| p.expert_parameters));
            exchanges.devices[kind] = Exchange {
                update: chip.update(self.profile, self.share(chip, parameters, experts)),
                ..self.exchange(chip, parameters, experts)
            };
        }
        for ((unit, piece), n) in exchanges.units.iter_mut().zip(&pieces).zip(units) {
            *unit = self.gathers(chip, piece, n);
        }
        exchanges
    }

    /// Weights gathered (ZeRO-3), and gradients scattered (ZeRO-2 and -3), in every micro-batch: the part that nothing hides, forward and
    /// backward. `units` are what is gathered at a time: layers and ends.
    pub fn sharded(&self, chip: &ChipTimes, piece: &PieceProfile, units: u64) -> (Seconds, Seconds) {
        let exposed = exposed_gathers(chip.stack(), piece, units, self.gathers(chip, piece, units));
        (exposed.forward, exposed.backward)
    }

    /// What one of a piece's `units` exchanges in every micro-batch: ZeRO-3 gathers its weights, ZeRO-2 and -3 scatter its gradients, of which
    /// they keep a share only.
    pub fn gathers(&self, chip: &ChipTimes, piece: &PieceProfile, units: u64) -> (Communication, Communication) {
        let (mut gather, mut scatter) = (Communication::default(), Communication::default());
        let zero = self.plan.layout.zero;
        if !self.plan.layout.reduces_every_micro_batch() {
            return (gather, scatter);
        }
        // Weights without gradients are gathered with the dense ones.
        let mut still = piece.frozen;
        for (parameters, group) in self.held(piece.parameters, piece.expert_parameters) {
            let shards = self.sharding(chip, group).0;
            let collective = |kind, bytes: Bytes, count: u64| self.collective(chip, kind, bytes * (count / units.max(1)), shards);
            if zero == ZeroStage::Parameters {
                gather = gather + collective(CollectiveKind::AllGather, self.profile.weight_bytes, parameters + still);
            }
            scatter = scatter + collective(CollectiveKind::ReduceScatter, self.profile.gradient_bytes, parameters);
            still = 0;
        }
        (gather, scatter)
    }

    /// Parameters on a device with the ranks that hold the same ones: experts are spread over the expert-parallel ones.
    pub fn held(&self, parameters: u64, experts: u64) -> [(u64, Group); 2] {
        let [dense, sparse] = holders(&self.plan.layout);
        [(parameters, dense), (experts, sparse)]
    }

    /// The ranks among which ZeRO shares what `group` holds, and the groups of copies under hybrid sharding.
    pub fn sharding(&self, chip: &ChipTimes, group: Group) -> (Group, Group) {
        let hybrid = chip.stack().kernels.shard_within_domain;
        let ranks = shards(group.ranks, hybrid.then(|| inside(self.fabric.fast_domain(), group.stride)));
        let copies = Group { ranks: group.ranks / ranks, stride: group.stride * ranks };
        (Group { ranks, stride: group.stride }, copies)
    }

    /// What a collective of a group takes; nothing for a group of one.
    pub fn collective(&self, chip: &ChipTimes, kind: CollectiveKind, bytes: Bytes, group: Group) -> Communication {
        if group.ranks < 2 || bytes == Bytes::ZERO {
            return Communication::default();
        }
        chip.collective(self.fabric, &Collective { kind, bytes, group })
    }

    /// Parameters that one device updates.
    pub fn share(&self, chip: &ChipTimes, parameters: u64, experts: u64) -> u64 {
        if self.plan.layout.zero == ZeroStage::None {
            return parameters.saturating_add(experts);
        }
        let held = self.held(parameters, experts);
        held.iter().map(|(count, group)| count.div_ceil(u64::from(self.sharding(chip, *group).0.ranks))).sum()
    }

    /// Gradients (and updated weights) of all of a device's pieces once per step, less what their passes hide.
    pub fn synchronisation(&self, chip: &ChipTimes, all: &PieceProfile) -> Seconds {
        let exchange = self.exchange(chip, all.parameters, all.expert_parameters);
        exposed_exchange(chip.stack(), &exchange, windows(chip.stack(), all))
    }

    /// Gradients (and updated weights) once per step.
    pub fn exchange(&self, chip: &ChipTimes, parameters: u64, experts: u64) -> Exchange {
        let mut exchange = Exchange::default();
        let slower = match self.plan.layout.zero {
            ZeroStage::OptimizerStates | ZeroStage::Gradients => 1.0 / chip.stack().sustained.exchange_fraction,
            ZeroStage::None | ZeroStage::Parameters => 1.0,
        };
        for (count, group) in self.held(parameters, experts) {
            let [first, second, weights] = self.reductions(chip, count, group);
            for Collective { kind, bytes, group } in [first, second] {
                exchange.reduce = exchange.reduce + self.collective(chip, kind, bytes, group);
            }
            exchange.gather = exchange.gather + self.collective(chip, weights.kind, weights.bytes, weights.group);
        }
        exchange.reduce = exchange.reduce * slower;
        exchange.gather = exchange.gather * slower;
        exchange
    }

    /// What `group` exchanges once per step for the `count` parameters that it holds: two reductions of gradients (the second among copies
    /// under hybrid sharding) and a gathering of weights. What a ZeRO stage does not do has no bytes.
    pub fn reductions(&self, chip: &ChipTimes, count: u64, group: Group) -> [Collective; 3] {
        let (gradients, weights) = (self.profile.gradient_bytes * count, self.profile.weight_bytes * count);
        let (shards, copies) = self.sharding(chip, group);
        let shard = Bytes(gradients.0 / u64::from(shards.ranks.max(1)));
        let nothing = Bytes::ZERO;
        let (all, scattered, shared, gathered) = match self.plan.layout.zero {
            ZeroStage::None => (gradients, nothing, nothing, nothing),
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

    /// The sum of the gradients of a tied embedding's two copies.
    pub fn tied(&self, chip: &ChipTimes) -> Seconds {
        let layout = &self.plan.layout;
        if layout.pipeline == 1 || self.profile.tied_parameters == 0 {
            return Seconds::ZERO;
        }
        let bytes = self.profile.gradient_bytes * self.profile.tied_parameters;
        self.fabric.tied(layout, bytes).launched(chip.gap()).time
    }

    /// The ways of an activation between stages. Tensor-parallel devices send a slice each and gather it again
    /// (Narayanan et al., SC 2021, section 4.1).
    pub fn sends(&self, chip: &ChipTimes) -> Sends {
        let layout = &self.plan.layout;
        let bytes = self.profile.boundary;
        let sliced = layout.tensor > 1 && !layout.sequence_parallel;
        let slice = if sliced { Bytes(bytes.0 / u64::from(layout.tensor)) } else { bytes };
        let group = Group { ranks: layout.tensor, stride: 1 };
        let gather = Collective { kind: CollectiveKind::AllGather, bytes, group };
        Sends::new(self.fabric, layout, |tier| {
            let send = self.fabric.send(layout, tier, slice).launched(chip.gap());
            let send = if sliced { send + chip.collective(self.fabric, &gather) } else { send };
            // The chip's scalars are of collectives of whole groups; a send takes few of their channels, and nothing measured tells what it slows.
            Communication { slowing: Slowing::default(), ..send }
        })
    }
}

/// All passes of all micro-batches through the pipeline, as the schedule plays them, and how much earlier than the last devices end.
pub fn passes(
    assembly: &Assembly,
    fabric: &impl Network,
    stack: &SoftwareStack,
    exchanges: &Exchanges,
) -> Result<(Seconds, Leads), StepError> {
    let Arrangement { split, schedule, micro_batches, .. } = assembly.arrangement;
    if split.chunks == 1 {
        return Ok((assembly.alone(), Leads::Closed));
    }
    let m = u32::try_from(micro_batches).unwrap_or(u32::MAX);
    let chunks = (0..split.chunks).map(|place| assembly.chunk(place));
    let work = || chunks.map(|c| StageWork { forward: c.forward, backward: c.recompute + c.backward }).collect::<Vec<_>>();
    match schedule {
        Schedule::OneForwardOneBackward => {
            return Ok((one_f_one_b_exact_time(&work(), &assembly.sends(fabric), m), Leads::Closed));
        }
        Schedule::Interleaved { chunks } if m.is_multiple_of(assembly.arrangement.layout.pipeline) => {
            return Ok((interleaved_exact_time(&work(), &assembly.sends(fabric), chunks, m), Leads::Closed));
        }
        _ => {}
    }
    let played = pipeline(assembly, fabric, stack, exchanges).measure().map_err(|e| StepError::Hardware(e.to_string()))?;
    let leads = if schedule.splits_backward() {
        Leads::Played(played.devices.iter().map(|device| played.passes_end - device.passes_end).collect())
    } else {
        Leads::Closed
    };
    Ok((played.passes_end, leads))
}

/// The step as the event simulation plays it, without memory and the overhead. Exchanges and updates belong to it: of ZB-V's orders that one is
/// run under which the step takes least, not the passes.
pub fn pipeline(assembly: &Assembly, fabric: &impl Network, stack: &SoftwareStack, exchanges: &Exchanges) -> Pipeline {
    let arrangement = &assembly.arrangement;
    let stage = |c: &Chunk| {
        let [backward_input, backward_weight] = c.gradients(arrangement.schedule);
        Stage { forward: c.forward, recompute: c.recompute, backward_input, backward_weight, ..Stage::default() }
    };
    let mut stages: Vec<Stage> = (0..arrangement.split.chunks).map(|place| stage(assembly.chunk(place))).collect();
    let mut alike = assembly.device(0);
    for (device, stage) in (0..arrangement.layout.pipeline).zip(&mut stages) {
        if alike.is_none_or(|alike| alike.to < device) {
            alike = assembly.device(device);
        }
        let Some(alike) = &alike else { continue };
        let once = assembly.once_on(alike, stack, exchanges);
        (stage.reduction, stage.optimizer) = (once.data + once.tied, once.update);
    }
    Pipeline {
        stages,
        sends: assembly.sends(fabric),
        micro_batches: u32::try_from(arrangement.micro_batches).unwrap_or(u32::MAX),
        schedule: arrangement.schedule,
        reduction: Reduction::AfterBackward,
        optimizer_waits_for_all: true,
    }
}
