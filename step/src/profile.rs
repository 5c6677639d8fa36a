//! What one micro-batch costs on one device, per segment: the part of a step that does not depend on how many micro-batches, stages and
//! data-parallel ranks there are.

use super::contention::{Communication, PortTimes};
use super::execute::Fidelity;
use super::network::Network;
use super::work::StepWork;
use super::work::link_of;
use super::{Execution, SoftwareStack, StepError, TrainingPlan};
use serde::{Deserialize, Serialize};
use sim::cost::{CostModel, KernelCost, Span};
use sim::costed::Costs;
use sim::hardware::{Accelerator, KernelLibrary};
use sim::kernel::{Collective, Kernel, Link};
use sim::network::Fabric;
use sim::schedule::{Limits, Memo};
use sim::units::{Bytes, Joules, Seconds};
use std::collections::BTreeMap;
use std::sync::Arc;
use workloads::training::Attention;
use workloads::{ActivationPolicy, Lowering, Model, Segment, SegmentKind, TrainingGraph};

/// One pass of one segment: one micro-batch, one device.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct PassProfile {
    /// Kernels, one after the other.
    pub device: Seconds,
    /// Of these, gradients of weights: what zero-bubble schedules put off.
    pub weight: Seconds,
    /// Kernels and collectives that the host launches.
    pub launches: u32,
    /// Of these, kernels of `weight`.
    pub weight_launches: u32,
    /// Tensor-parallel collectives that nothing hides.
    pub tensor: Seconds,
    /// Tensor-parallel collectives hidden behind kernels of `weight`: nothing hides them where these are put off.
    pub beside_weights: Seconds,
    /// Context-parallel ones that nothing hides.
    pub context: Seconds,
    /// Expert-parallel ones that nothing hides.
    pub expert: Seconds,
    /// Copies to or from the host that nothing hides.
    pub offload: Seconds,
    /// How long its collectives, hidden ones too, have the ports.
    pub ports: PortTimes,
    /// Energy of its kernels, static power apart; none where they are bounded only.
    pub energy: Joules,
    /// How much less the pass might take under a better schedule: none where its schedule is proven.
    pub unproven: Seconds,
}

impl PassProfile {
    /// Computing, communicating and copying.
    #[must_use]
    pub fn busy(&self) -> Seconds {
        self.device + self.tensor + self.context + self.expert + self.offload
    }

    pub(super) fn plus(self, other: Self) -> Self {
        Self {
            device: self.device + other.device,
            weight: self.weight + other.weight,
            launches: self.launches.saturating_add(other.launches),
            weight_launches: self.weight_launches.saturating_add(other.weight_launches),
            tensor: self.tensor + other.tensor,
            beside_weights: self.beside_weights + other.beside_weights,
            context: self.context + other.context,
            expert: self.expert + other.expert,
            offload: self.offload + other.offload,
            ports: self.ports + other.ports,
            energy: self.energy + other.energy,
            unproven: self.unproven + other.unproven,
        }
    }

    fn times(self, count: u64) -> Self {
        self.scaled(count as f64, |launches| launches.saturating_mul(u32::try_from(count).unwrap_or(u32::MAX)))
    }

    /// The pass a part of a time, or several times.
    pub(super) fn repeated(self, times: f64) -> Self {
        if times == 1.0 { self } else { self.scaled(times, |launches| (f64::from(launches) * times.ceil()) as u32) }
    }

    fn scaled(self, n: f64, launches: impl Fn(u32) -> u32) -> Self {
        Self {
            device: self.device * n,
            weight: self.weight * n,
            launches: launches(self.launches),
            weight_launches: launches(self.weight_launches),
            tensor: self.tensor * n,
            beside_weights: self.beside_weights * n,
            context: self.context * n,
            expert: self.expert * n,
            offload: self.offload * n,
            ports: self.ports * n,
            energy: self.energy * n,
            unproven: self.unproven * n,
        }
    }
}

/// A piece of the pipeline: one micro-batch, one device.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct PieceProfile {
    /// The forward pass.
    pub forward: PassProfile,
    /// What runs again before the backward pass.
    pub recompute: PassProfile,
    /// The backward pass without it.
    pub backward: PassProfile,
    /// Parameters of the piece on one device of the tensor-parallel group, experts apart.
    pub parameters: u64,
    /// Parameters of the experts on one device.
    pub expert_parameters: u64,
    /// Of all parameters besides, those that have no gradient, or a smaller one: ZeRO-3 gathers them too.
    pub frozen: u64,
}

impl PieceProfile {
    /// Two pieces one after the other.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            forward: self.forward.plus(other.forward),
            recompute: self.recompute.plus(other.recompute),
            backward: self.backward.plus(other.backward),
            parameters: self.parameters.saturating_add(other.parameters),
            expert_parameters: self.expert_parameters.saturating_add(other.expert_parameters),
            frozen: self.frozen.saturating_add(other.frozen),
        }
    }

    /// The piece `count` times.
    #[must_use]
    pub fn times(self, count: u64) -> Self {
        Self {
            forward: self.forward.times(count),
            recompute: self.recompute.times(count),
            backward: self.backward.times(count),
            parameters: self.parameters.saturating_mul(count),
            expert_parameters: self.expert_parameters.saturating_mul(count),
            frozen: self.frozen.saturating_mul(count),
        }
    }
}

/// What a step needs to know of a model lowered for one device.
#[derive(Debug, Clone, PartialEq)]
pub struct StepProfile {
    /// Before the first layer.
    pub embedding: PieceProfile,
    /// One layer.
    pub layer: PieceProfile,
    /// After the last layer.
    pub head: PieceProfile,
    /// Parameters that a head away from the embedding holds a copy of.
    pub tied_parameters: u64,
    /// Bytes between two pieces on one device.
    pub boundary: Bytes,
    /// Bytes of a weight as products read it.
    pub weight_bytes: Bytes,
    /// Bytes of a weight's gradient.
    pub gradient_bytes: Bytes,
    /// The graph that it was made from: its optimizer's kernels.
    layer_segment: Arc<Segment>,
    /// The embedding's graph, where layers are in it that follow the policy.
    leading_segment: Option<Arc<Segment>>,
    /// Where the plan has several policies, a layer under each; [`Self::layer`] is then under the first.
    pub(super) by_policy: Vec<LayerProfile>,
}

/// A layer under one of a plan's policies.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LayerProfile {
    /// The policy.
    pub policy: ActivationPolicy,
    /// What it takes.
    pub layer: PieceProfile,
}

impl StepProfile {
    /// The same with other pieces: embedding, layer, head.
    pub(super) fn of_pieces(&self, [embedding, layer, head]: [PieceProfile; 3], by_policy: Vec<LayerProfile>) -> Self {
        Self { embedding, layer, head, by_policy, ..self.clone() }
    }

    /// A layer under a policy of the plan that it was made for.
    pub(super) fn layer_under(&self, policy: &ActivationPolicy) -> &PieceProfile {
        self.by_policy.iter().find(|known| known.policy == *policy).map_or(&self.layer, |known| &known.layer)
    }

    /// The same with layers under several policies.
    pub(super) fn mixed(&self, by_policy: Vec<LayerProfile>) -> Self {
        Self { by_policy, ..self.clone() }
    }
}

/// Pieces of schedules remembered: some kilobytes each.
const MEMO_CAPACITY: usize = 1 << 16;
/// Work on one piece of a schedule: a second or two where it is hard. All passes of the built-in models on the built-in chips are proven within it.
const SCHEDULE_STEPS: u64 = 1_500_000;

/// A chip under a software stack: what kernels and passes take.
#[derive(Debug, Clone)]
pub struct ChipTimes {
    stack: SoftwareStack,
    model: CostModel,
    fidelity: Fidelity,
    known: BTreeMap<Kernel, Cost>,
    scheduled: BTreeMap<Kernel, Costs>,
    schedules: Arc<Memo>,
}

/// A kernel library at the rates that it keeps in hours of training.
fn sustained(library: KernelLibrary, stack: &SoftwareStack, clock: f64) -> KernelLibrary {
    KernelLibrary {
        issue_fraction: library.issue_fraction * stack.sustained.tensor_fraction * clock,
        read_fraction: (library.read_fraction * stack.sustained.memory_fraction).min(1.0),
        write_fraction: (library.write_fraction * stack.sustained.memory_fraction).min(1.0),
        ..library
    }
}

/// What a kernel takes.
#[derive(Debug, Clone, Copy)]
pub(super) struct Cost {
    pub(super) time: Seconds,
    pub(super) energy: Joules,
}

impl ChipTimes {
    /// A chip as the stack drives it.
    ///
    /// # Errors
    /// A figure of the chip that the cost model cannot use.
    pub fn new(chip: &Accelerator, stack: &SoftwareStack) -> Result<Self, StepError> {
        let limits = Limits { steps: SCHEDULE_STEPS, ..Limits::default() };
        Self::sharing(chip, stack, Arc::new(Memo::new(limits, MEMO_CAPACITY)))
    }

    /// The same with the solved schedules of others: what chips have in common is solved once.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn sharing(chip: &Accelerator, stack: &SoftwareStack, schedules: Arc<Memo>) -> Result<Self, StepError> {
        let mut chip = chip.clone();
        let calibration = &mut chip.calibration;
        let clock = if stack.sustained.throttled { chip.sustained_clock_fraction } else { 1.0 };
        calibration.tensor_achieved_fraction *= stack.sustained.tensor_fraction * clock;
        calibration.hbm_achieved_fraction = (calibration.hbm_achieved_fraction * stack.sustained.memory_fraction).min(1.0);
        chip.library = match stack.kernels.execution {
            // A compiler's schedule runs its own kernels.
            Execution::Scheduled => None,
            Execution::Stream => chip.library.map(|library| sustained(library, stack, clock)),
        };
        let model = CostModel::new(chip).map_err(|e| StepError::Hardware(e.to_string()))?;
        let (known, scheduled) = (BTreeMap::new(), BTreeMap::new());
        Ok(Self { stack: stack.clone(), model, fidelity: Fidelity::Exact, known, scheduled, schedules })
    }

    /// The same chip with kernels bounded from below instead of timed.
    #[must_use]
    pub fn at(&self, fidelity: Fidelity) -> Self {
        let (stack, model, schedules) = (self.stack.clone(), self.model.clone(), Arc::clone(&self.schedules));
        Self { stack, model, fidelity, known: BTreeMap::new(), scheduled: BTreeMap::new(), schedules }
    }

    /// The stack.
    #[must_use]
    pub fn stack(&self) -> &SoftwareStack {
        &self.stack
    }

    /// The chip, its calibration as the stack drives it.
    #[must_use]
    pub fn chip(&self) -> &Accelerator {
        self.model.accelerator()
    }

    /// How exactly its kernels are timed.
    #[must_use]
    pub fn fidelity(&self) -> Fidelity {
        self.fidelity
    }

    pub(crate) fn schedules(&self) -> &Memo {
        &self.schedules
    }

    /// What the stack's kernels take longer than the modelled ones, and the gap before each.
    fn as_launched(&self, kernel: &Kernel, modelled: Seconds) -> Seconds {
        let slower = match kernel {
            Kernel::FusedAttention(_) => self.stack.sustained.attention_fraction,
            Kernel::Contraction(c) if c.operand.bytes() == 1 => self.stack.sustained.narrow_fraction,
            _ => 1.0,
        };
        modelled / slower + Seconds::from_micros(self.stack.launch.gap_us)
    }

    /// A time below which a kernel does not come, however it runs, as exactly as this is asked for; a collective's own.
    #[must_use]
    pub fn bound(&self, kernel: &Kernel, fabric: &Fabric, fidelity: Fidelity) -> Seconds {
        match kernel {
            Kernel::Collective(collective) => fabric.collective(collective).latency,
            _ => self.kernel_bound(kernel, fidelity),
        }
    }

    fn kernel_bound(&self, kernel: &Kernel, fidelity: Fidelity) -> Seconds {
        let mapped = matches!(kernel, Kernel::Contraction(_) | Kernel::Epilogue(_) | Kernel::FusedAttention(_));
        let least = match fidelity {
            Fidelity::Peak if mapped => {
                self.model.lower_bound(kernel, Span::AllCores).min(self.model.lower_bound(kernel, Span::OneCore))
            }
            Fidelity::Buffered if mapped => self.model.buffered_bound(kernel),
            _ => self.model.fastest(kernel),
        };
        self.as_launched(kernel, least)
    }

    /// What a kernel takes in a stream, over the whole chip, with its energy.
    pub(super) fn cost(&mut self, kernel: &Kernel) -> Cost {
        if let Some(known) = self.known.get(kernel) {
            return *known;
        }
        let scheduled = self.stack.kernels.execution == Execution::Scheduled;
        let timed = self.fidelity == Fidelity::Exact || self.fidelity == Fidelity::Mapped && !scheduled;
        let cost = if timed {
            let cost = self.model.cost(kernel, Span::AllCores);
            Cost { time: self.as_launched(kernel, cost.latency), energy: cost.energy }
        } else {
            Cost { time: self.kernel_bound(kernel, self.fidelity), energy: Joules::ZERO }
        };
        self.known.insert(*kernel, cost);
        cost
    }

    /// What a kernel takes in a stream of kernels, over the whole chip.
    pub fn kernel(&mut self, kernel: &Kernel) -> Seconds {
        self.cost(kernel).time
    }

    /// The energy of a kernel over the whole chip, static power apart.
    pub(crate) fn energy(&mut self, kernel: &Kernel) -> Joules {
        self.cost(kernel).energy
    }

    /// What a kernel or collective takes at least in a schedule.
    pub(crate) fn least(&mut self, kernel: &Kernel, network: &impl Network) -> Seconds {
        match kernel {
            Kernel::Collective(collective) => latency(network, collective),
            _ => self.kernel(kernel),
        }
    }

    /// What a kernel or collective takes in a schedule, on one core and on all.
    pub(crate) fn costs(&mut self, kernel: &Kernel, network: &impl Network) -> Costs {
        if let Kernel::Collective(collective) = kernel {
            let cost = KernelCost::network(latency(network, collective));
            return Costs { one_core: cost, all_cores: cost };
        }
        if let Some(known) = self.scheduled.get(kernel) {
            return *known;
        }
        let on = |span| {
            let cost = self.model.cost(kernel, span);
            KernelCost { latency: self.as_launched(kernel, cost.latency), ..cost }
        };
        let costs = Costs { one_core: on(Span::OneCore), all_cores: on(Span::AllCores) };
        self.scheduled.insert(*kernel, costs);
        costs
    }

    /// What a collective takes in a stream of kernels: its launch is hidden behind the one before.
    #[must_use]
    pub fn collective(&self, network: &impl Network, collective: &Collective) -> Communication {
        network.collective(collective).launched(self.gap())
    }

    /// The gap between two launches.
    pub(super) fn gap(&self) -> Seconds {
        Seconds::from_micros(self.stack.launch.gap_us)
    }

    /// The profile of a model under a plan.
    ///
    /// # Errors
    /// A plan that the model cannot be lowered for.
    pub fn profile(&mut self, model: &Model, network: &impl Network, plan: &TrainingPlan) -> Result<StepProfile, StepError> {
        let graph = lowered(model, plan, &self.stack)?;
        self.profile_of(model, &graph, network, plan)
    }

    /// [`Self::profile`] of a model that is lowered already.
    ///
    /// # Errors
    /// A graph without layers, a chip so slow that its times leave the schedule's range.
    pub fn profile_of(
        &mut self,
        model: &Model,
        graph: &TrainingGraph,
        network: &impl Network,
        plan: &TrainingPlan,
    ) -> Result<StepProfile, StepError> {
        self.work_of(model, graph, plan)?.priced(self, network)
    }

    /// What a model that is lowered already does under a plan, whatever its collectives take.
    ///
    /// # Errors
    /// A graph without layers.
    pub fn work_of(&mut self, model: &Model, graph: &TrainingGraph, plan: &TrainingPlan) -> Result<StepWork, StepError> {
        let missing = || StepError::Hardware(format!("{}: has no layers", model.name));
        let layer_segment = Arc::new(graph.segment(SegmentKind::Layer).cloned().ok_or_else(missing)?);
        let per = layer_segment.bytes_per_parameter();
        let [embedding, layer, head] = [PieceProfile::default(); 3];
        let rest = StepProfile {
            embedding,
            layer,
            head,
            tied_parameters: graph.segment(SegmentKind::Head).map_or(0, |s| s.tied_parameters),
            boundary: layer_segment.boundary_bytes,
            weight_bytes: per.weight,
            gradient_bytes: per.gradient,
            leading_segment: graph
                .segment(SegmentKind::Embedding)
                .filter(|_| model.variations.leading_dense.is_some())
                .map(|segment| Arc::new(segment.clone())),
            layer_segment,
            by_policy: Vec::new(),
        };
        Ok(StepWork::new(self, graph, plan, rest))
    }

    /// The profile of a plan that differs from `known`'s in its activation policies at most: policies speak of layers' backward passes only.
    ///
    /// # Errors
    /// A chip so slow that its times leave the schedule's range.
    pub fn profile_like(
        &mut self,
        known: &StepProfile,
        network: &impl Network,
        plan: &TrainingPlan,
    ) -> Result<StepProfile, StepError> {
        let mut again = |segment: &Segment, forward: PassProfile, policy: &ActivationPolicy| {
            let treatment = policy.treatment_under(&segment.graph, self.stack.replay());
            self.piece(segment, &treatment, Some(forward)).priced(self, network)
        };
        let forward = PassProfile { offload: Seconds::ZERO, ..known.layer.forward };
        let first = plan.activations.first();
        let layer = again(&known.layer_segment, forward, first)?;
        let embedding = match &known.leading_segment {
            Some(segment) => again(segment, known.embedding.forward, first)?,
            None => known.embedding,
        };
        let mut by_policy = Vec::new();
        if plan.activations.alike().is_none() {
            for policy in plan.activations.distinct() {
                let layer = again(&known.layer_segment, forward, policy)?;
                by_policy.push(LayerProfile { policy: policy.clone(), layer });
            }
        }
        Ok(StepProfile { embedding, layer, by_policy, ..known.clone() })
    }

    /// The optimizer's update of `parameters` on one device, with the stack's passes over the gradients.
    pub fn update(&mut self, profile: &StepProfile, parameters: u64) -> Seconds {
        self.update_kernels(profile, parameters).iter().map(|(kernel, times)| self.kernel(kernel) * *times).sum()
    }

    /// The energy of [`Self::update`], static power apart.
    pub(crate) fn update_energy(&mut self, profile: &StepProfile, parameters: u64) -> Joules {
        self.update_kernels(profile, parameters).iter().map(|(kernel, times)| self.energy(kernel) * *times).sum()
    }

    /// The kernels of an update, and how often a step runs each.
    fn update_kernels(&self, profile: &StepProfile, parameters: u64) -> Vec<(Kernel, f64)> {
        if parameters == 0 {
            return Vec::new();
        }
        let mut kernels = profile.layer_segment.update_kernels(parameters);
        if self.stack.kernels.gradient_reads + self.stack.kernels.gradient_writes == 0.0 {
            return kernels;
        }
        let size = profile.gradient_bytes * parameters;
        let pass = |times: f64| Bytes((size.as_f64() * times) as u64);
        let passes = Kernel::Elementwise(sim::kernel::Elementwise {
            function: sim::kernel::Function::Mul,
            direction: sim::kernel::Direction::Forward,
            elements: parameters,
            read: pass(self.stack.kernels.gradient_reads),
            written: pass(self.stack.kernels.gradient_writes),
        });
        kernels.push((passes, 1.0));
        kernels
    }

    /// Where the activations that a plan moves go.
    pub(crate) fn link(profile: &StepProfile) -> Link {
        link_of(&profile.layer_segment)
    }

    /// What one layer under a policy copies to the host in every micro-batch.
    pub(crate) fn offloaded(&self, profile: &StepProfile, policy: &ActivationPolicy) -> Bytes {
        let graph = &profile.layer_segment.graph;
        policy.treatment_under(graph, self.stack.replay()).offloaded_bytes(graph)
    }
}

/// What a collective takes in a schedule, its launch with it.
fn latency(network: &impl Network, collective: &Collective) -> Seconds {
    if collective.group.ranks < 2 || collective.bytes == Bytes::ZERO {
        return Seconds::ZERO;
    }
    network.launch() + network.collective(collective).time
}

/// A model lowered for a plan, its memory techniques applied.
///
/// # Errors
/// A plan that the model cannot be lowered for, techniques that cannot be used with it or with each other.
pub fn lowered(model: &Model, plan: &TrainingPlan, stack: &SoftwareStack) -> Result<TrainingGraph, StepError> {
    let graph = TrainingGraph::new(model, &lowering(model, plan, stack))?;
    Ok(plan.techniques.apply(model, graph, plan.micro_batches())?)
}

/// How a plan is lowered under a stack.
#[must_use]
pub fn lowering(model: &Model, plan: &TrainingPlan, stack: &SoftwareStack) -> Lowering {
    Lowering {
        micro_batch: plan.batch.micro_batch,
        sequence_length: plan.batch.sequence_length,
        tensor_parallel: plan.layout.tensor,
        sequence_parallel: plan.layout.sequence_parallel && plan.layout.tensor > 1,
        context_parallel: plan.layout.context,
        context_method: plan.layout.context_method,
        expert_parallel: plan.layout.expert,
        expert_tensor_parallel: plan.layout.expert_tensor(),
        attention: if plan.layout.context > 1 { Attention::Fused } else { plan.attention },
        precision: plan.precision,
        optimizer: plan.optimizer,
        elementwise_fusion: stack.kernels.elementwise_fusion,
        separate_projections: stack.kernels.separate_projections,
        cached_conversions: stack.kernels.cached_conversions,
        separate_accumulation: stack.kernels.separate_accumulation && plan.micro_batches() > 1,
        fused_loss: stack.kernels.fused_loss,
        ..Lowering::new(model)
    }
}
