//! From profiles to a step: stages, schedule, data parallelism, optimizer. Cheap: no kernel is costed here but the update.

use super::contention::{Communication, Window};
use super::profile::{ChipTimes, PassProfile, PieceProfile, StepProfile};
use super::{StepError, StepTime, TrainingPlan};
use sim::kernel::{Collective, CollectiveKind, Group};
use sim::network::Fabric;
use sim::pipeline::{Pipeline, Reduction, Schedule, Stage, StageWork, one_f_one_b_exact_time};
use sim::units::{Bytes, Seconds};
use workloads::{Layout, Model, ZeroStage};

/// The time of one training step.
///
/// # Errors
/// A plan that breaks a rule of its layout, a model that cannot be lowered so, a fabric that the plan does not fit.
pub fn step_time(chip: &mut ChipTimes, model: &Model, fabric: &Fabric, plan: &TrainingPlan) -> Result<StepTime, StepError> {
    plan.layout.check(model, &plan.batch)?;
    let profile = chip.profile(model, fabric, plan)?;
    step_time_of(chip, model, fabric, plan, &profile)
}

/// The time of one training step of a plan that obeys its layout's rules, from a profile made for a plan that is lowered alike.
///
/// # Errors
/// A pipeline that the schedule cannot run.
pub fn step_time_of(
    chip: &mut ChipTimes,
    model: &Model,
    fabric: &Fabric,
    plan: &TrainingPlan,
    profile: &StepProfile,
) -> Result<StepTime, StepError> {
    Step { fabric, plan, profile }.time(chip, model)
}

/// A time that the step does not go below: every device's own work, after the passes that its first one waits for and before those that wait
/// for its last one. Nothing is priced but what the profile holds: cheap beside [`step_time_of`].
///
/// # Errors
/// Layers that do not divide.
pub fn step_lower_bound(model: &Model, plan: &TrainingPlan, profile: &StepProfile) -> Result<Seconds, StepError> {
    let split = plan.layout.chunk_layers(model.layers)?;
    let busy = |piece: &PieceProfile| piece.forward.busy() + piece.recompute.busy() + piece.backward.busy();
    let (layer, embedding, head) = (busy(&profile.layer), busy(&profile.embedding), busy(&profile.head));
    let p = plan.layout.pipeline as usize;
    let last = split.len() - 1;
    let chunk = |i: usize| {
        let ends = if i == 0 { embedding } else { Seconds::ZERO } + if i == last { head } else { Seconds::ZERO };
        layer * split[i] as f64 + ends
    };
    // Where chunks run in the order of the devices, the first pass on a device waits for one pass on each device before it, and its
    // last one is waited for by as many; but what comes last may be weight gradients, for which nothing waits.
    let in_order = plan.schedule != Schedule::ZbV;
    let pieces = split.iter().copied().min().unwrap_or_default() as f64;
    let shortest = if plan.schedule == Schedule::ZbH1 { profile.layer.forward.busy() } else { layer } * pieces;
    let m = plan.micro_batches() as f64;
    let device = |k: usize| {
        let work: Seconds = (k..split.len()).step_by(p).map(chunk).sum();
        work * m + if in_order { shortest * k as f64 } else { Seconds::ZERO }
    };
    if in_order {
        return Ok((0..p).map(device).fold(Seconds::ZERO, Seconds::max));
    }
    let all: Seconds = (0..split.len()).map(chunk).sum();
    Ok(all * m / p as f64)
}

/// A chunk of the pipeline as it runs one micro-batch.
#[derive(Debug, Clone, Copy, Default)]
struct Chunk {
    piece: PieceProfile,
    forward: Seconds,
    recompute: Seconds,
    backward: Seconds,
    /// Data-parallel communication in every micro-batch that nothing hides (ZeRO-3).
    data: Seconds,
    host: Seconds,
}

/// A plan on a fabric.
pub(crate) struct Step<'a> {
    pub fabric: &'a Fabric,
    pub plan: &'a TrainingPlan,
    pub profile: &'a StepProfile,
}

impl Step<'_> {
    fn time(&self, chip: &mut ChipTimes, model: &Model) -> Result<StepTime, StepError> {
        let layout = &self.plan.layout;
        let split = layout.chunk_layers(model.layers)?;
        let last = split.len() - 1;
        let chunks: Vec<Chunk> = split
            .iter()
            .enumerate()
            .map(|(i, &layers)| {
                let mut piece = self.profile.layer.times(layers);
                let mut ends = 0;
                if i == 0 {
                    piece = self.profile.embedding.plus(piece);
                    ends += 1;
                }
                if i == last {
                    piece = piece.plus(self.profile.head);
                    if last > 0 {
                        piece.parameters += self.profile.tied_parameters;
                    }
                    ends += 1;
                }
                self.chunk(chip, piece, layers, ends)
            })
            .collect();
        let send = self.send(chip);
        let sends = send.time - shortest_forward(&chunks).hides(&send) * chip.stack().overlap.pipeline;
        let passes = self.passes(&chunks, sends)?;
        let p = layout.pipeline as usize;
        let device = |k: usize| chunks.iter().skip(k).step_by(p).copied().collect::<Vec<_>>();
        let mut total = StepTime::default();
        let mut slowest = Seconds(-1.0);
        for k in 0..p {
            let mine = device(k);
            let busy: Seconds = mine.iter().map(|c| c.forward + c.recompute + c.backward).sum();
            let parameters = mine.iter().map(|c| c.piece.parameters).sum();
            let experts = mine.iter().map(|c| c.piece.expert_parameters).sum();
            let backward = backward_window(mine.iter().map(|c| (c.recompute + c.backward, &c.piece)));
            let data = self.synchronisation(chip, parameters, experts, backward);
            let optimizer = chip.update(self.profile, self.share(chip, parameters, experts));
            if busy > slowest {
                slowest = busy;
                self.account(&mut total, &mine);
            }
            total.data = total.data.max(data);
            total.optimizer = total.optimizer.max(optimizer);
        }
        let m = self.plan.micro_batches() as f64;
        let each_data: Seconds = device_data(&chunks, p) * m;
        let tied = self.tied(chip);
        total.overhead = Seconds(chip.stack().launch.per_step_ms * 1e-3);
        let once = total.data + total.optimizer + tied + total.overhead;
        let in_passes = total.forward
            + total.backward
            + total.recompute
            + total.host_bound
            + total.tensor
            + total.context
            + total.expert
            + total.offload
            + each_data;
        total.data = total.data + tied + each_data;
        total.bubble = passes - in_passes;
        total.total = passes + once;
        Ok(total)
    }

    /// A chunk's passes: what its kernels take, or what the host takes to launch them.
    fn chunk(&self, chip: &ChipTimes, piece: PieceProfile, layers: u64, ends: u64) -> Chunk {
        let launch = &chip.stack().launch;
        let host = |us: f64, launches: u32| Seconds::from_micros(us * f64::from(launches));
        let (f, r, b) = (piece.forward, piece.recompute, piece.backward);
        let forward_host = host(launch.host_forward_us, f.launches);
        let backward_host = host(launch.host_forward_us, r.launches) + host(launch.host_backward_us, b.launches);
        let (forward_gather, backward_gather) = self.sharded(chip, &piece, layers + ends);
        let busy = r.busy() + b.busy();
        let exchange = if self.plan.layout.pipeline > 1 { Seconds::from_micros(launch.pipeline_pass_us) } else { Seconds::ZERO };
        let forward = f.busy().max(forward_host) + exchange + forward_gather;
        let backward = busy.max(backward_host) + exchange + backward_gather;
        let waiting = (forward_host - f.busy()).max(Seconds::ZERO) + (backward_host - busy).max(Seconds::ZERO) + exchange * 2.0;
        Chunk {
            piece,
            forward,
            recompute: r.busy(),
            backward: backward - r.busy(),
            data: forward_gather + backward_gather,
            host: waiting,
        }
    }

    /// Weights gathered, and gradients scattered, in every micro-batch under ZeRO-3: the part that nothing hides, forward and backward.
    /// `units` are what is gathered at a time: layers and ends.
    pub fn sharded(&self, chip: &ChipTimes, piece: &PieceProfile, units: u64) -> (Seconds, Seconds) {
        if self.plan.layout.zero != ZeroStage::Parameters {
            return (Seconds::ZERO, Seconds::ZERO);
        }
        let n = units.max(1);
        let (mut gather, mut scatter) = (Communication::default(), Communication::default());
        for (parameters, group) in self.held(piece.parameters, piece.expert_parameters) {
            let shards = self.sharding(chip, group).0;
            let each = parameters / n;
            let collective = |kind, bytes: Bytes| self.collective(chip, kind, bytes * each, shards);
            gather = gather + collective(CollectiveKind::AllGather, self.profile.weight_bytes);
            scatter = scatter + collective(CollectiveKind::ReduceScatter, self.profile.gradient_bytes);
        }
        let prefetch = chip.stack().overlap.parameter_prefetch;
        let exposed = |communication: Communication, all: Window| {
            let each = Window { time: all.time / n as f64, ports: all.ports * (1.0 / n as f64) };
            (communication.time - each.hides(&communication) * prefetch) * (n as f64 - 1.0) + communication.time
        };
        let backward = piece.recompute.plus(piece.backward);
        (exposed(gather, piece.forward.window()), exposed(gather + scatter, backward.window()))
    }

    /// Parameters on a device with the ranks that hold the same ones: experts are spread over the expert-parallel ones.
    pub fn held(&self, parameters: u64, experts: u64) -> [(u64, Group); 2] {
        let layout = &self.plan.layout;
        let (all, e) = (layout.data * layout.context, layout.expert.max(1));
        [
            (parameters, Group { ranks: all, stride: layout.tensor }),
            (experts, Group { ranks: (all / e).max(1), stride: layout.tensor * e }),
        ]
    }

    /// The ranks among which ZeRO shares what `group` holds, and the groups of copies under hybrid sharding.
    pub fn sharding(&self, chip: &ChipTimes, group: Group) -> (Group, Group) {
        let inside = (self.fabric.fast_domain() / group.stride).max(1);
        let hybrid = chip.stack().kernels.shard_within_domain && inside < group.ranks && group.ranks.is_multiple_of(inside);
        let ranks = if hybrid { inside } else { group.ranks };
        let copies = Group { ranks: group.ranks / ranks, stride: group.stride * ranks };
        (Group { ranks, stride: group.stride }, copies)
    }

    pub fn collective(&self, chip: &ChipTimes, kind: CollectiveKind, bytes: Bytes, group: Group) -> Communication {
        if group.ranks < 2 || bytes == Bytes::ZERO {
            return Communication::default();
        }
        chip.collective(self.fabric, &Collective { kind, bytes, group })
    }

    /// Parameters that one device updates.
    fn share(&self, chip: &ChipTimes, parameters: u64, experts: u64) -> u64 {
        if self.plan.layout.zero == ZeroStage::None {
            return parameters.saturating_add(experts);
        }
        let held = self.held(parameters, experts);
        held.iter().map(|(count, group)| count.div_ceil(u64::from(self.sharding(chip, *group).0.ranks))).sum()
    }

    /// Gradients (and updated weights) once per step, less what the last micro-batch's backward pass hides beside its own collectives.
    pub fn synchronisation(&self, chip: &ChipTimes, parameters: u64, experts: u64, backward: Window) -> Seconds {
        let (mut reduce, mut gather) = (Communication::default(), Seconds::ZERO);
        for (count, group) in self.held(parameters, experts) {
            let [first, second, weights] = self.reductions(chip, count, group);
            for Collective { kind, bytes, group } in [first, second] {
                reduce = reduce + self.collective(chip, kind, bytes, group);
            }
            gather += self.collective(chip, weights.kind, weights.bytes, weights.group).time;
        }
        reduce.time - backward.hides(&reduce) * chip.stack().overlap.data_reduction + gather
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
    fn tied(&self, chip: &ChipTimes) -> Seconds {
        let layout = &self.plan.layout;
        if layout.pipeline == 1 || self.profile.tied_parameters == 0 {
            return Seconds::ZERO;
        }
        let bytes = self.profile.gradient_bytes * self.profile.tied_parameters;
        let group = Group { ranks: 2, stride: stage_stride(layout) * (layout.pipeline - 1) };
        chip.collective(self.fabric, &Collective { kind: CollectiveKind::AllReduce, bytes, group }).time
    }

    /// The way of an activation between neighbouring stages. Tensor-parallel devices send a slice each and gather it again
    /// (Narayanan et al., SC 2021, section 4.1).
    fn send(&self, chip: &ChipTimes) -> Communication {
        let layout = &self.plan.layout;
        if layout.pipeline == 1 {
            return Communication::default();
        }
        let bytes = self.profile.boundary;
        let sliced = layout.tensor > 1 && !layout.sequence_parallel;
        let slice = if sliced { Bytes(bytes.0 / u64::from(layout.tensor)) } else { bytes };
        let group = Group { ranks: 2, stride: stage_stride(layout) };
        let send = chip.collective(self.fabric, &Collective { kind: CollectiveKind::SendRecv, bytes: slice, group });
        if !sliced {
            return send;
        }
        let group = Group { ranks: layout.tensor, stride: 1 };
        send + chip.collective(self.fabric, &Collective { kind: CollectiveKind::AllGather, bytes, group })
    }

    /// All passes of all micro-batches through the pipeline.
    fn passes(&self, chunks: &[Chunk], send: Seconds) -> Result<Seconds, StepError> {
        let m = u32::try_from(self.plan.micro_batches()).unwrap_or(u32::MAX);
        let layout = &self.plan.layout;
        if chunks.len() == 1 {
            return Ok(chunks.iter().map(|c| c.forward + c.recompute + c.backward).sum::<Seconds>() * f64::from(m));
        }
        let sends = vec![send; chunks.len() - 1];
        let schedule =
            if layout.virtual_stages > 1 { Schedule::Interleaved { chunks: layout.virtual_stages } } else { self.plan.schedule };
        if schedule == Schedule::OneForwardOneBackward {
            let work: Vec<StageWork> =
                chunks.iter().map(|c| StageWork { forward: c.forward, backward: c.recompute + c.backward }).collect();
            return Ok(one_f_one_b_exact_time(&work, &sends, m));
        }
        let stages = chunks
            .iter()
            .map(|c| Stage {
                forward: c.forward,
                recompute: c.recompute,
                backward_input: c.backward / 2.0,
                backward_weight: c.backward / 2.0,
                ..Stage::default()
            })
            .collect();
        let pipeline = Pipeline {
            stages,
            sends,
            micro_batches: m,
            schedule,
            reduction: Reduction::AfterBackward,
            optimizer_waits_for_all: true,
        };
        Ok(pipeline.measure().map_err(|e| StepError::Hardware(e.to_string()))?.passes_end)
    }

    /// The parts of the passes of one device.
    fn account(&self, total: &mut StepTime, chunks: &[Chunk]) {
        let m = self.plan.micro_batches() as f64;
        let sum = |part: &dyn Fn(&Chunk) -> Seconds| chunks.iter().map(part).sum::<Seconds>() * m;
        let passes = |part: fn(&PassProfile) -> Seconds| {
            sum(&|c| part(&c.piece.forward) + part(&c.piece.recompute) + part(&c.piece.backward))
        };
        total.forward = sum(&|c| c.piece.forward.device);
        total.recompute = sum(&|c| c.piece.recompute.device);
        total.backward = sum(&|c| c.piece.backward.device);
        total.tensor = passes(|p| p.tensor);
        total.context = passes(|p| p.context);
        total.expert = passes(|p| p.expert);
        total.offload = passes(|p| p.offload);
        total.host_bound = sum(&|c| c.host);
    }
}

/// The shortest forward pass of a chunk, as work to hide the sends of the next micro-batch behind.
fn shortest_forward(chunks: &[Chunk]) -> Window {
    let windows = chunks.iter().map(|chunk| Window { time: chunk.forward, ports: chunk.piece.forward.ports });
    windows.min_by(|a, b| a.time.0.total_cmp(&b.time.0)).unwrap_or_default()
}

/// The backward passes of a device's pieces, one after the other, as work to hide communication behind.
pub(crate) fn backward_window<'a>(pieces: impl Iterator<Item = (Seconds, &'a PieceProfile)>) -> Window {
    pieces.fold(Window::default(), |window, (time, piece)| Window {
        time: window.time + time,
        ports: window.ports + piece.recompute.ports + piece.backward.ports,
    })
}

fn device_data(chunks: &[Chunk], p: usize) -> Seconds {
    let per = |k: usize| chunks.iter().skip(k).step_by(p).map(|c| c.data).sum::<Seconds>();
    (0..p).map(per).fold(Seconds::ZERO, Seconds::max)
}

/// Devices from a stage to the next.
fn stage_stride(layout: &Layout) -> u32 {
    layout.tensor * layout.context * layout.data
}
