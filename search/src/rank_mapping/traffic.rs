//! What the ranks of a step exchange: all axes, all stages.

use super::pace::{Pace, Rhythm};
use serde::{Deserialize, Serialize};
use sim::kernel::{Axis, Collective, CollectiveKind, Group, Kernel, KernelGraph};
use sim::network::Fabric;
use sim::pipeline::Schedule;
use sim::units::{Bytes, Seconds};
use std::collections::BTreeMap;
use step::{Alike, Assembly, ChipTimes, PieceProfile, Step, StepError, StepProfile, TrainingPlan, lowering, step_time_of};
use workloads::{Layout, Model, RankOrder, SegmentKind, TrainingGraph, ZeroStage};

/// The parallel axis that a collective belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TrafficAxis {
    /// Tensor parallelism.
    Tensor,
    /// Context parallelism.
    Context,
    /// Data parallelism and ZeRO.
    Data,
    /// Sends between stages.
    Pipeline,
    /// Expert parallelism (a part of the data axis).
    Expert,
    /// The sum of a tied embedding's two gradients, between the first stage and the last.
    Tied,
}

impl TrafficAxis {
    /// The order in which ranks count, fastest first.
    pub const RANK_ORDER: [Self; 4] = [Self::Tensor, Self::Context, Self::Data, Self::Pipeline];
}

/// Where in the step a demand takes its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Role {
    /// In the passes of every micro-batch in a stage.
    Pass(usize),
    /// Between two stages, there and back, as often as the schedule's pace says.
    Send(usize, usize),
    /// After the passes of a stage, once.
    Once(usize),
    /// After all stages, once.
    End,
}

/// A collective that all groups of an axis run at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Demand {
    /// Its axis.
    pub axis: TrafficAxis,
    /// Where it counts.
    pub role: Role,
    /// Kind, bytes and the pattern of a group over ranks.
    pub collective: Collective,
    /// How often it runs, times the share that nothing hides.
    pub weight: f64,
    /// The first rank of the first group.
    pub first: u32,
    /// Groups that start at consecutive ranks.
    pub lanes: u32,
    /// Repetitions of those, one behind the other.
    pub blocks: u32,
}

impl Demand {
    /// The ranks of every group.
    pub(super) fn groups(&self) -> impl Iterator<Item = Vec<u32>> + use<> {
        let Self { first, lanes, blocks, collective: Collective { group: Group { ranks, stride }, .. }, .. } = *self;
        (0..blocks).flat_map(move |block| {
            let start = first + block * ranks * stride;
            (0..lanes).map(move |lane| (0..ranks).map(|i| start + lane + i * stride).collect())
        })
    }
}

/// What a step does as far as the links decide it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct StepTraffic {
    /// Ranks along tensor, context, data, pipeline: the first counts fastest.
    pub degrees: [u32; 4],
    /// The schedule.
    pub pace: Pace,
    /// Seconds of a stage's passes for one micro-batch, exposed collectives apart.
    pub busy: Vec<f64>,
    /// Seconds that a stage's last pass ends before the pipeline's, at least: what it exchanges once begins so much earlier.
    pub leads: Vec<f64>,
    /// Everything that is exchanged.
    pub demands: Vec<Demand>,
    /// Seconds added to what the paths give, whatever the assignment: on equal links the rank order takes what the step takes. Below 0 where stages
    /// exchange once per step while others have passes left.
    pub rest: f64,
}

impl StepTraffic {
    /// The traffic of a plan. What is hidden, and what the paths leave out, are those of [`step::step_time`] on links that are all
    /// alike ([`Fabric::with_equal_links`]): the same wherever the units stand.
    ///
    /// # Errors
    /// A plan that breaks a rule of its layout or cannot be lowered.
    pub fn of(chip: &mut ChipTimes, model: &Model, fabric: &Fabric, plan: &TrainingPlan) -> Result<Self, StepError> {
        plan.layout.check(model, &plan.batch)?;
        // Where ranks lie is what a mapping decides: they count in the default order.
        let layout = Layout { order: RankOrder::DataFirst, ..plan.layout };
        let plan = &TrainingPlan { layout, ..plan.clone() };
        let fabric = &fabric.clone().with_equal_links();
        let graph = TrainingGraph::new(model, &lowering(model, plan, chip.stack()))?;
        let profile = chip.profile_of(model, &graph, fabric, plan)?;
        let total = step_time_of(chip, model, fabric, plan, &profile)?.total.0;
        let step = Step { fabric, plan, profile: &profile };
        let (assembly, _) = step.assembly(chip, model)?;
        let rhythm = rhythm(&assembly);
        let mut leads = vec![0.0; plan.layout.pipeline as usize];
        for alike in assembly.arrangement.devices() {
            let lead = assembly.lead(&assembly.arrangement, alike.kind, alike.from).0;
            (0..)
                .zip(&mut leads)
                .filter(|(stage, _)| assembly.arrangement.kind_of(*stage) == alike.kind)
                .for_each(|(_, l)| *l = lead);
        }
        let mut builder = Builder { chip, step, stage: stage_ranks(plan), demands: Vec::new() };
        let layout = &plan.layout;
        let split = layout.chunk_layers(model.layers)?;
        let mut busy = vec![0.0; layout.pipeline as usize];
        for (i, &layers) in split.iter().enumerate() {
            let mut parts = vec![(SegmentKind::Layer, layers)];
            if i == 0 {
                parts.push((SegmentKind::Embedding, 1));
            }
            if i + 1 == split.len() {
                parts.push((SegmentKind::Head, 1));
            }
            let stage = i % busy.len();
            for (kind, count) in parts {
                busy[stage] += device_seconds(piece(&profile, kind)) * count as f64;
                builder.passes(&graph, kind, count, stage);
                builder.sharded(piece(&profile, kind), count, stage);
            }
        }
        builder.once(&split);
        builder.sends(split.len());
        let demands = builder.merged();
        let mut traffic = Self {
            degrees: [layout.tensor, layout.context, layout.data, layout.pipeline],
            pace: Pace { micro_batches: u32::try_from(plan.micro_batches()).unwrap_or(u32::MAX), rhythm },
            busy,
            leads,
            demands,
            rest: 0.0,
        };
        if let Ok(time) = super::mapped_time(&traffic, fabric, &(0..traffic.ranks()).collect::<Vec<_>>()) {
            traffic.rest = total - time.0;
        }
        Ok(traffic)
    }

    /// Ranks of the step.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        self.degrees.iter().product()
    }

    /// Seconds of the step where the slowest group of a demand takes `cost(demand)`.
    #[must_use]
    pub fn time(&self, cost: impl Fn(usize) -> f64) -> f64 {
        let Parts { passes, sends, once, end } = self.parts(cost);
        let last = once.iter().copied().fold(0.0, f64::max);
        self.pace.longest(&passes, &sends) + last + end + self.rest
    }

    /// What the stages and the sends between them take where the slowest group of a demand takes `cost(demand)`.
    fn parts(&self, cost: impl Fn(usize) -> f64) -> Parts {
        let stages = self.busy.len();
        let (mut passes, mut sends) = (self.busy.clone(), vec![0.0; stages]);
        let mut once: Vec<f64> = self.leads.iter().map(|lead| -lead).collect();
        let mut end = 0.0;
        for (id, demand) in self.demands.iter().enumerate() {
            let time = demand.weight * cost(id);
            match demand.role {
                Role::Pass(stage) => passes[stage] += time,
                Role::Once(stage) => once[stage] += time,
                Role::Send(low, high) => sends[boundary(low, high, stages)] += time,
                Role::End => end += time,
            }
        }
        Parts { passes, sends, once, end }
    }

    /// Per axis, seconds over the step of the stage where it takes longest.
    pub(super) fn axis_times(&self, cost: impl Fn(usize) -> f64) -> Vec<(TrafficAxis, f64)> {
        let mut times: BTreeMap<TrafficAxis, Vec<f64>> = BTreeMap::new();
        let Parts { passes, sends, .. } = self.parts(&cost);
        let path = self.pace.longest_path(&passes, &sends);
        for (id, demand) in self.demands.iter().enumerate() {
            let stages = times.entry(demand.axis).or_insert_with(|| vec![0.0; self.busy.len()]);
            let time = demand.weight * cost(id);
            match demand.role {
                Role::Pass(stage) => stages[stage] += time * f64::from(self.pace.micro_batches),
                Role::Once(stage) => stages[stage] += time,
                Role::Send(low, high) => {
                    let often = self.pace.sends_on(path, boundary(low, high, stages.len()));
                    stages.iter_mut().for_each(|t| *t += often * time);
                }
                Role::End => stages.iter_mut().for_each(|t| *t += time),
            }
        }
        times.into_iter().map(|(axis, stages)| (axis, stages.into_iter().fold(0.0, f64::max))).collect()
    }

    /// Every order of the axes of several ranks over the devices, with the device of each rank.
    pub(super) fn axis_orders(&self) -> Vec<(Vec<TrafficAxis>, Vec<u32>)> {
        let wide: Vec<usize> = (0..4).filter(|axis| self.degrees[*axis] > 1).collect();
        let mut orders: Vec<Vec<usize>> = vec![Vec::new()];
        for _ in &wide {
            let longer = |order: &Vec<usize>| -> Vec<Vec<usize>> {
                let free = wide.iter().filter(|axis| !order.contains(axis));
                free.map(|axis| order.iter().chain([axis]).copied().collect()).collect()
            };
            orders = orders.iter().flat_map(longer).collect();
        }
        let named = |order: Vec<usize>| {
            let devices = (0..self.ranks()).map(|rank| self.device(rank, &order)).collect();
            (order.iter().map(|axis| TrafficAxis::RANK_ORDER[*axis]).collect(), devices)
        };
        orders.into_iter().map(named).collect()
    }

    /// The device of a rank when the axes fill the devices in `order`, fastest first.
    fn device(&self, rank: u32, order: &[usize]) -> u32 {
        let mut rest = rank;
        let place = self.degrees.map(|degree| {
            let at = rest % degree;
            rest /= degree;
            at
        });
        order.iter().rev().fold(0, |device, &axis| device * self.degrees[axis] + place[axis])
    }
}

/// What a step's stages take.
struct Parts {
    /// The passes of one micro-batch.
    passes: Vec<f64>,
    /// The sends to the next stage and back; the last stage's: to the first.
    sends: Vec<f64>,
    /// What follows the passes.
    once: Vec<f64>,
    /// What follows everything.
    end: f64,
}

/// The place of two stages' sends among all: that of the lower one, or the last where the last stage sends to the first.
pub(super) fn boundary(low: usize, high: usize, stages: usize) -> usize {
    if high == low + 1 { low } else { stages - 1 }
}

fn stage_ranks(plan: &TrainingPlan) -> u32 {
    plan.layout.tensor * plan.layout.context * plan.layout.data
}

fn piece(profile: &StepProfile, kind: SegmentKind) -> &PieceProfile {
    match kind {
        SegmentKind::Embedding => &profile.embedding,
        SegmentKind::Layer => &profile.layer,
        SegmentKind::Head => &profile.head,
    }
}

fn device_seconds(piece: &PieceProfile) -> f64 {
    [&piece.forward, &piece.recompute, &piece.backward].iter().map(|p| (p.device + p.offload).0).sum()
}

struct Builder<'a, 'b> {
    chip: &'a ChipTimes,
    step: Step<'b>,
    /// Ranks of a stage.
    stage: u32,
    demands: Vec<Demand>,
}

impl Builder<'_, '_> {
    /// Adds a collective of the groups of one stage. One whose pattern is longer than the stage (experts that reach into the tensor-parallel
    /// group unevenly) cannot be assigned and stays in `rest`, at its time on links that are all alike.
    fn add(&mut self, axis: TrafficAxis, role: Role, stage: usize, collective: Collective, weight: f64) {
        let Group { ranks, stride } = collective.group;
        let span = ranks.saturating_mul(stride);
        if ranks < 2 || collective.bytes == Bytes::ZERO || span > self.stage || weight == 0.0 {
            return;
        }
        let first = stage as u32 * self.stage;
        self.demands.push(Demand { axis, role, collective, weight, first, lanes: stride, blocks: self.stage / span });
    }

    /// The share of some communication that nothing hides.
    fn exposed(&self, exposed: f64, collectives: &[(Collective, f64)]) -> f64 {
        let time = |c: &Collective| self.step.collective(self.chip, c.kind, c.bytes, c.group).time.0;
        let all: f64 = collectives.iter().map(|(c, n)| time(c) * n).sum();
        if all > 0.0 { (exposed / all).clamp(0.0, 1.0) } else { 0.0 }
    }

    /// Collectives inside `count` pieces of a kind.
    fn passes(&mut self, graph: &TrainingGraph, kind: SegmentKind, count: u64, stage: usize) {
        let Some(segment) = graph.segment(kind) else { return };
        let treatment = self.step.plan.activations.treatment_under(&segment.graph, self.chip.stack().replay());
        let passes = [segment.forward(), segment.backward(&treatment.recompute)];
        let profile = *piece(self.step.profile, kind);
        for axis in [Axis::Tensor, Axis::Context, Axis::Expert] {
            let list: Vec<(Collective, f64)> = passes.iter().flat_map(|pass| collectives(pass, axis)).map(|c| (c, 1.0)).collect();
            let all = [profile.forward, profile.recompute, profile.backward];
            let (named, time): (_, f64) = match axis {
                Axis::Tensor => (TrafficAxis::Tensor, all.iter().map(|p| p.tensor.0).sum()),
                Axis::Context => (TrafficAxis::Context, all.iter().map(|p| p.context.0).sum()),
                Axis::Expert => (TrafficAxis::Expert, all.iter().map(|p| p.expert.0).sum()),
            };
            let share = self.exposed(time, &list);
            for (collective, _) in list {
                self.add(named, Role::Pass(stage), stage, collective, share * count as f64);
            }
        }
    }

    /// Weights gathered (ZeRO-3) and gradients scattered (ZeRO-2 and -3) for every micro-batch, of `count` pieces.
    fn sharded(&mut self, piece: &PieceProfile, count: u64, stage: usize) {
        let zero = self.step.plan.layout.zero;
        if !self.step.plan.layout.reduces_every_micro_batch() {
            return;
        }
        let (forward, backward) = self.step.sharded(self.chip, &piece.times(count), count);
        let mut list = Vec::new();
        for (parameters, group) in self.step.held(piece.parameters, piece.expert_parameters) {
            let group = self.step.sharding(self.chip, group).0;
            let of = |kind, bytes: Bytes| Collective { kind, bytes: bytes * parameters, group };
            if zero == ZeroStage::Parameters {
                list.push((of(CollectiveKind::AllGather, self.step.profile.weight_bytes), 2.0 * count as f64));
            }
            list.push((of(CollectiveKind::ReduceScatter, self.step.profile.gradient_bytes), count as f64));
        }
        let share = self.exposed((forward + backward).0, &list);
        for (collective, times) in list {
            self.add(TrafficAxis::Data, Role::Pass(stage), stage, collective, share * times);
        }
    }

    /// Gradients and weights once per step, and the sum of a tied embedding's two gradients.
    fn once(&mut self, split: &[u64]) {
        let (profile, p) = (self.step.profile, self.step.plan.layout.pipeline as usize);
        for stage in 0..p {
            let mut all = PieceProfile::default();
            for (i, layers) in split.iter().enumerate().skip(stage).step_by(p) {
                all = all.plus(profile.layer.times(*layers));
                if i == 0 {
                    all = all.plus(profile.embedding);
                }
                if i + 1 == split.len() {
                    all = all.plus(profile.head);
                    all.parameters += if i > 0 { profile.tied_parameters } else { 0 };
                }
            }
            let (parameters, experts) = (all.parameters, all.expert_parameters);
            let time = self.step.synchronisation(self.chip, &all).0;
            let held = self.step.held(parameters, experts);
            let list: Vec<(Collective, f64)> =
                held.iter().flat_map(|(n, group)| self.step.reductions(self.chip, *n, *group)).map(|c| (c, 1.0)).collect();
            let share = self.exposed(time, &list);
            for (collective, _) in list {
                self.add(TrafficAxis::Data, Role::Once(stage), stage, collective, share);
            }
        }
        if p > 1 && profile.tied_parameters > 0 {
            let group = Group { ranks: 2, stride: self.stage * (p as u32 - 1) };
            let bytes = profile.gradient_bytes * profile.tied_parameters;
            let collective = Collective { kind: CollectiveKind::AllReduce, bytes, group };
            self.lanes(TrafficAxis::Tied, Role::End, collective, 0, 1.0);
        }
    }

    /// Pairs of ranks that lie a number of stages apart.
    fn lanes(&mut self, axis: TrafficAxis, role: Role, collective: Collective, first: u32, weight: f64) {
        let lanes = self.stage;
        if collective.bytes > Bytes::ZERO && weight > 0.0 {
            self.demands.push(Demand { axis, role, collective, weight, first, lanes, blocks: 1 });
        }
    }

    /// Activations and their gradients between stages, sliced over tensor-parallel ranks that hold copies and gathered again.
    fn sends(&mut self, chunks: usize) {
        let layout = self.step.plan.layout;
        let p = layout.pipeline as usize;
        let exposed = 2.0 * (1.0 - self.chip.stack().hidden_sends(layout.virtual_stages));
        let bytes = self.step.profile.boundary;
        let sliced = layout.tensor > 1 && !layout.sequence_parallel;
        let slice = if sliced { Bytes(bytes.0 / u64::from(layout.tensor)) } else { bytes };
        for chunk in 1..if p > 1 { chunks } else { 0 } {
            let (from, to) = ((chunk - 1) % p, chunk % p);
            let (low, high) = (from.min(to), from.max(to));
            let group = Group { ranks: 2, stride: self.stage * (high - low) as u32 };
            let send = Collective { kind: CollectiveKind::SendRecv, bytes: slice, group };
            let role = Role::Send(low, high);
            self.lanes(TrafficAxis::Pipeline, role, send, low as u32 * self.stage, exposed);
            if sliced {
                let group = Group { ranks: layout.tensor, stride: 1 };
                let gather = Collective { kind: CollectiveKind::AllGather, bytes, group };
                self.add(TrafficAxis::Pipeline, role, to, gather, exposed);
            }
        }
    }

    /// The demands with equal ones joined.
    fn merged(self) -> Vec<Demand> {
        let mut list: Vec<Demand> = Vec::new();
        for demand in self.demands {
            match list.iter_mut().find(|d| Demand { weight: demand.weight, ..**d } == demand) {
                Some(same) => same.weight += demand.weight,
                None => list.push(demand),
            }
        }
        list
    }
}

/// How micro-batches follow each other, with the shares of stages' passes that lie on the way of one.
fn rhythm(assembly: &Assembly) -> Rhythm {
    let schedule = assembly.arrangement.schedule;
    // Zero-bubble schedules put the gradients of weights off.
    let kept = |kind: usize| {
        let chunk = &assembly.chunks[kind];
        let [input, weight] = chunk.gradients(schedule);
        let all = chunk.forward + chunk.recompute + input + weight;
        let put_off = if schedule.splits_backward() { weight } else { Seconds::ZERO };
        ((all - put_off).0, all.0)
    };
    // Of the passes of a kind of device, those through its first chunk.
    let on_the_way = |alike: Alike| {
        let whole: f64 =
            (0..).zip(alike.counts).filter(|(_, count)| *count > 0).map(|(kind, count)| kept(kind).1 * count as f64).sum();
        let part = kept(assembly.arrangement.chunk_kind(alike.from.into())).0;
        if whole > 0.0 { part / whole } else { 0.0 }
    };
    // None but the last device is behind all others; of the kinds between the least share holds for all.
    let before = assembly.arrangement.devices().filter(|alike| ![0, 2].contains(&alike.kind)).map(on_the_way).reduce(f64::min);
    let first = assembly.arrangement.devices().next().map_or(0.0, on_the_way);
    match schedule {
        Schedule::OneForwardOneBackward => Rhythm::Alternating,
        Schedule::GPipe => Rhythm::Through { first: 1.0, before: 1.0, behind: 1.0 },
        Schedule::ZbV | Schedule::Interleaved { .. } | Schedule::ZbH1 => {
            Rhythm::Through { first, before: before.unwrap_or(0.0), behind: 0.0 }
        }
    }
}

fn collectives(graph: &KernelGraph, axis: Axis) -> Vec<Collective> {
    let of = |node: &sim::kernel::KernelNode| match &node.kernel {
        Kernel::Collective(collective) if node.role.axis == Some(axis) => Some(*collective),
        _ => None,
    };
    graph.node_weights().filter_map(of).collect()
}
