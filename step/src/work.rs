//! A step before its collectives have times: what the chip does, once for every network that may carry the rest.

use super::away::AwayPieces;
use super::chip_times::{Cost, Fidelity, collective_latency};
use super::contention::{Communication, PortTimes, Window};
use super::copied::{Copied, LinkTimes};
use super::lowering::lowered;
use super::network::Network;
use super::profile::LayerProfile;
use super::{ChipTimes, Execution, PassProfile, PieceProfile, StepError, StepProfile, TrainingPlan};
use sim::kernel::{Axis, Collective, CollectiveKind, GradientOf, Kernel, KernelGraph, KernelNode, OpId, Pass};
use sim::units::Seconds;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use workloads::recompute_policy::Treatment;
use workloads::{ActivationPolicy, Model, RecomputeSet, Segment, SegmentKind, TrainingGraph};

/// What a model does under a plan, whatever its collectives take: a step for any network.
#[derive(Debug, Clone)]
pub struct StepWork {
    /// Embedding, layer, head; the layer under the plan's first policy.
    pieces: [Option<PieceWork>; 3],
    /// Where the plan has several policies, a layer under each.
    by_policy: Vec<(ActivationPolicy, PieceWork)>,
    /// The profile but for its pieces.
    rest: StepProfile,
}

impl StepWork {
    pub(super) fn new(chip: &mut ChipTimes, graph: &TrainingGraph, plan: &TrainingPlan, rest: StepProfile) -> Self {
        let (mut pieces, mut by_policy) = ([None, None, None], Vec::new());
        let (first, replay) = (plan.activations.first(), chip.stack().replay());
        for segment in &graph.segments {
            let slot = match segment.kind {
                SegmentKind::Embedding => 0,
                SegmentKind::Layer => 1,
                SegmentKind::Head => 2,
            };
            pieces[slot] = Some(chip.piece(segment, &first.treatment_under(&segment.graph, replay), None));
            if segment.kind == SegmentKind::Layer && plan.activations.alike().is_none() {
                let under = |policy: &ActivationPolicy| {
                    let treatment = policy.treatment_under(&segment.graph, replay);
                    (policy.clone(), chip.piece(segment, &treatment, None))
                };
                by_policy = plan.activations.distinct().into_iter().map(under).collect();
            }
        }
        Self { pieces, by_policy, rest }
    }

    /// The profile on a network. `chip` is the one that the work is of, or a clone of it.
    ///
    /// # Errors
    /// A chip so slow that its times leave the schedule's range.
    pub fn priced(&self, chip: &mut ChipTimes, network: &impl Network) -> Result<StepProfile, StepError> {
        let mut priced = |at: usize| self.pieces[at].as_ref().map_or(Ok(PieceProfile::default()), |p| p.priced(chip, network));
        let (embedding, layer, head) = (priced(0)?, priced(1)?, priced(2)?);
        let by_policy = self.by_policy.iter().map(|(policy, work)| {
            let layer = work.priced(chip, network)?;
            Ok(LayerProfile { policy: policy.clone(), layer })
        });
        let by_policy = by_policy.collect::<Result<_, StepError>>()?;
        Ok(self.rest.of_pieces([embedding, layer, head], by_policy))
    }
}

/// A piece of the pipeline.
#[derive(Debug, Clone)]
pub(super) struct PieceWork {
    passes: PassesWork,
    /// What copies one way take of the link to the host and of storage.
    copy: [Seconds; 2],
    parameters: u64,
    expert_parameters: u64,
    frozen: u64,
    /// How much of what runs again does, and how often the backward pass runs.
    repeats: [f64; 2],
}

impl PieceWork {
    pub(super) fn priced(&self, chip: &mut ChipTimes, network: &impl Network) -> Result<PieceProfile, StepError> {
        let [forward, recompute, backward] = match &self.passes {
            PassesWork::Streamed(passes) => passes.each_ref().map(|pass| pass.priced(chip, network)),
            PassesWork::Scheduled(passes) => passes.priced(chip, network)?,
        };
        let (parameters, expert_parameters, frozen) = (self.parameters, self.expert_parameters, self.frozen);
        let [recompute, backward] = [(recompute, self.repeats[0]), (backward, self.repeats[1])].map(|(pass, n)| pass.repeated(n));
        let mut piece = PieceProfile { forward, recompute, backward, parameters, expert_parameters, frozen, bounded: false };
        piece.forward.copies = LinkTimes::out_of_device(self.copy);
        piece.backward.copies = LinkTimes::into_device(self.copy);
        piece.wait_for_copies(chip.stack());
        match (&self.passes, chip.fidelity()) {
            (_, Fidelity::Exact) => {}
            (PassesWork::Streamed(_), _) => piece.bounded_but_for_copies(Seconds::ZERO),
            (PassesWork::Scheduled(_), Fidelity::Scheduled) if piece.proven() => {}
            (PassesWork::Scheduled(_), Fidelity::Scheduled) => piece.bounded_but_for_inputs(),
            (PassesWork::Scheduled(_), _) => piece.bounded_as_a_whole(),
        }
        Ok(piece)
    }
}

/// Forward pass, what runs again, backward pass.
#[derive(Debug, Clone)]
enum PassesWork {
    /// Kernels one after the other.
    Streamed(Box<[PassWork; 3]>),
    /// By the operator schedule, which places collectives among the kernels: it is another one wherever they take longer.
    Scheduled(Box<ScheduledWork>),
}

/// A collective inside a pass.
#[derive(Debug, Clone, Copy)]
struct CollectiveWork {
    collective: Collective,
    axis: Axis,
    /// Whether the stack may run it beside the products of weight gradients (tensor-parallel) or beside attention (context-parallel).
    hides: bool,
}

/// Whether a kernel is of the expert that every token goes to.
fn of_shared_expert(segment: &Segment, node: &KernelNode) -> bool {
    let operator = node.role.operator.and_then(|id| segment.graph.operators.get(id.index()));
    operator.is_some_and(|operator| operator.shared_expert)
}

/// A pass in a stream.
#[derive(Debug, Clone, Default)]
struct PassWork {
    /// Without collectives.
    alone: PassProfile,
    /// Of it, products that make gradients of weights, and the others.
    weights: Seconds,
    products: Seconds,
    /// Of it, fused attention.
    attention: Seconds,
    /// Of it, the expert that every token goes to.
    shared_expert: Seconds,
    /// In their order.
    collectives: Vec<CollectiveWork>,
}

impl PassWork {
    /// A pass whose collectives have times already.
    fn known(pass: PassProfile) -> Self {
        Self { alone: pass, ..Self::default() }
    }

    fn priced(&self, chip: &ChipTimes, network: &impl Network) -> PassProfile {
        let (mut pass, nothing) = (self.alone, Communication::default());
        let (mut beside, mut inside_products, mut ring, mut routed) = (nothing, nothing, nothing, nothing);
        for CollectiveWork { collective, axis, hides } in &self.collectives {
            let communication = chip.collective(network, collective);
            // In the order of one stream, they have the ports one after the other.
            let Communication { time, ports, .. } = communication;
            let alone = Communication { ports: PortTimes::default(), ..communication };
            pass.ports = pass.ports + ports;
            match axis {
                Axis::Context => {
                    pass.context += time;
                    if *hides {
                        ring = ring + alone;
                    }
                }
                Axis::Expert => {
                    pass.expert += time;
                    routed = routed + alone;
                }
                Axis::Tensor => {
                    pass.tensor += time;
                    // Userbuffers need one NVLink domain (Transformer Engine, issue 1071, and pull request 1470 for domains of several nodes).
                    let inside = collective.group.ranks.saturating_mul(collective.group.stride) <= network.fast_domain();
                    if inside && *hides {
                        beside = beside + alone;
                    } else if inside && matches!(collective.kind, CollectiveKind::AllGather | CollectiveKind::ReduceScatter) {
                        // Of as many parts as ranks, the first to come or the last to go has no product beside it.
                        inside_products = inside_products + alone * (1.0 - 1.0 / f64::from(collective.group.ranks.max(1)));
                    }
                }
            }
        }
        let overlap = &chip.stack().overlap;
        let saved = |time: Seconds, communication: &Communication| Window { time, ..Window::default() }.saves(communication);
        pass.beside_weights = saved(self.weights, &beside) * overlap.tensor;
        pass.tensor = pass.tensor - pass.beside_weights - saved(self.products, &inside_products) * overlap.products;
        pass.context = pass.context - saved(self.attention, &ring) * overlap.context;
        // What the shared expert has hidden does not hide again behind another micro-batch.
        let shared = saved(self.shared_expert, &routed) * overlap.shared_expert;
        let left = if pass.expert > Seconds::ZERO { 1.0 - shared / pass.expert } else { 0.0 };
        pass.expert = pass.expert
            - shared
            - saved(self.alone.device - self.shared_expert * overlap.shared_expert, &(routed * left)) * overlap.experts;
        pass
    }
}

/// Passes by the operator schedule.
#[derive(Debug, Clone)]
struct ScheduledWork {
    /// Either the graph, or the pass itself where it is known.
    forward: Result<PassProfile, KernelGraph>,
    /// The backward pass with nothing run again.
    backward: KernelGraph,
    /// With what runs again, if anything does.
    whole: Option<KernelGraph>,
    /// The distinct collectives of all.
    collectives: Vec<Collective>,
    /// By what the collectives take: a search over mappings asks for the same many times.
    known: Arc<Mutex<HashMap<Vec<u64>, [PassProfile; 3]>>>,
}

impl ScheduledWork {
    fn new(segment: &Segment, recompute: &RecomputeSet, forward: Option<PassProfile>) -> Self {
        let forward = forward.ok_or_else(|| segment.forward());
        let backward = segment.backward(&RecomputeSet::none());
        let whole = (!recompute.is_empty()).then(|| segment.backward(recompute));
        let mut collectives = Vec::new();
        for node in forward.as_ref().err().into_iter().chain([&backward]).chain(&whole).flat_map(KernelGraph::node_weights) {
            match node.kernel {
                Kernel::Collective(collective) if !collectives.contains(&collective) => collectives.push(collective),
                _ => {}
            }
        }
        Self { forward, backward, whole, collectives, known: Arc::default() }
    }

    fn priced(&self, chip: &mut ChipTimes, network: &impl Network) -> Result<[PassProfile; 3], StepError> {
        let mut key = Vec::new();
        for collective in &self.collectives {
            let Communication { time, ports, .. } = network.collective(collective);
            key.push(time.0.to_bits());
            key.extend(ports.bits());
        }
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(passes) = known().get(&key) {
            return Ok(*passes);
        }
        // Unlocked meanwhile: two that schedule the same at once get the same.
        let passes = self.scheduled(chip, network)?;
        known().insert(key, passes);
        Ok(passes)
    }

    /// What the collectives of the backward pass take one after the other.
    fn collectives_alone(&self, network: &impl Network) -> Seconds {
        let latency = |node: &KernelNode| match &node.kernel {
            Kernel::Collective(collective) => collective_latency(network, collective),
            _ => Seconds::ZERO,
        };
        self.backward.node_weights().map(latency).sum()
    }

    fn scheduled(&self, chip: &mut ChipTimes, network: &impl Network) -> Result<[PassProfile; 3], StepError> {
        let forward = match &self.forward {
            Ok(known) => *known,
            Err(graph) => chip.scheduled_pass(graph, network, |_| false)?,
        };
        let mut once = chip.scheduled_pass(&self.backward, network, |_| false)?;
        if chip.fidelity() >= Fidelity::Scheduled {
            // Where passes are bounded, so is this: the less the gradients of inputs take, the more of the pass can be put off.
            let weights = |node: &KernelNode| node.role.gradient == Some(GradientOf::Weights);
            let inputs = chip.scheduled_pass(&self.backward, network, weights)?;
            once.weight = (once.busy() - inputs.busy()).max(Seconds::ZERO).min(once.device);
            once.unproven_inputs = inputs.unproven;
            // Each as if the other took what it takes under the schedule that was found. Collectives that nothing hides are no gradients of weights.
            let put_off = (once.busy() - inputs.busy() - inputs.unproven).max(Seconds::ZERO);
            let computing =
                if once.unproven > Seconds::ZERO { once.busy() - self.collectives_alone(network) } else { once.device };
            once.parts = [inputs.busy(), put_off.min(computing).max(Seconds::ZERO)];
        }
        let Some(whole) = &self.whole else {
            return Ok([forward, PassProfile::default(), once]);
        };
        let whole = chip.scheduled_pass(whole, network, |_| false)?;
        let device = (whole.busy() - once.busy()).max(Seconds::ZERO);
        let least = (device - once.unproven).max(Seconds::ZERO);
        let recompute = PassProfile {
            device,
            parts: [if chip.fidelity() >= Fidelity::Scheduled { least } else { Seconds::ZERO }, Seconds::ZERO],
            launches: whole.launches.saturating_sub(once.launches),
            collective_ranks: whole.collective_ranks.saturating_sub(once.collective_ranks),
            ports: whole.ports - once.ports,
            energy: whole.energy - once.energy,
            unproven: whole.unproven,
            ..PassProfile::default()
        };
        Ok([forward, recompute, once])
    }
}

impl ChipTimes {
    /// The profile of a model under a plan.
    ///
    /// # Errors
    /// A plan that the model cannot be lowered for.
    pub fn profile(&mut self, model: &Model, network: &impl Network, plan: &TrainingPlan) -> Result<StepProfile, StepError> {
        let graph = lowered(model, plan, self.stack())?;
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
        let with_layers = |kind, without: bool| graph.segment(kind).filter(|_| !without).map(|segment| Arc::new(segment.clone()));
        let rest = StepProfile {
            embedding,
            layer,
            head,
            units: [SegmentKind::Embedding, SegmentKind::Layer, SegmentKind::Head].map(|kind| {
                // An end is a unit beside the layers that are with it.
                let ends = u64::from(kind != SegmentKind::Layer && graph.segment(kind).is_some_and(Segment::has_layers));
                graph.segment(kind).map_or(0, Segment::units) + ends
            }),
            tied_parameters: graph.segment(SegmentKind::Head).map_or(0, |s| s.tied_parameters),
            boundary: layer_segment.boundary_bytes,
            away: AwayPieces::of(graph),
            weight_bytes: per.weight,
            gradient_bytes: per.gradient,
            leading_segment: with_layers(SegmentKind::Embedding, model.list.leading.is_empty()),
            trailing_segment: with_layers(SegmentKind::Head, model.layers_with_head() == 0),
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
            let treatment = policy.treatment_under(&segment.graph, self.stack().replay());
            self.piece(segment, &treatment, Some(forward)).priced(self, network)
        };
        let uncopied = |pass: PassProfile| PassProfile { offload: Seconds::ZERO, copies: LinkTimes::default(), ..pass };
        let forward = uncopied(known.layer.forward);
        let first = plan.activations.first();
        let layer = again(&known.layer_segment, forward, first)?;
        let embedding = match &known.leading_segment {
            Some(segment) => again(segment, uncopied(known.embedding.forward), first)?,
            None => known.embedding,
        };
        let head = match &known.trailing_segment {
            Some(segment) => again(segment, uncopied(known.head.forward), first)?,
            None => known.head,
        };
        let mut by_policy = Vec::new();
        if plan.activations.alike().is_none() {
            for policy in plan.activations.distinct() {
                let layer = again(&known.layer_segment, forward, policy)?;
                by_policy.push(LayerProfile { policy: policy.clone(), layer });
            }
        }
        Ok(StepProfile { embedding, layer, head, by_policy, ..known.clone() })
    }

    /// What a segment does. `forward` is the forward pass without its copies, where it is known: no treatment changes it.
    pub(super) fn piece(&mut self, segment: &Segment, treatment: &Treatment, forward: Option<PassProfile>) -> PieceWork {
        let passes = match self.stack().kernels.execution {
            Execution::Stream => PassesWork::Streamed(Box::new(self.streamed_passes(segment, &treatment.recompute, forward))),
            Execution::Scheduled => PassesWork::Scheduled(Box::new(ScheduledWork::new(segment, &treatment.recompute, forward))),
        };
        let copied = Copied::of(treatment, &segment.graph);
        let exchanged = segment.statics.as_ref().map_or(segment.parameters, |statics| statics.own.exchanged);
        let twice = segment.second_backward;
        PieceWork {
            passes,
            copy: self.copies(copied),
            parameters: exchanged.sharded.saturating_add(exchanged.replicated),
            expert_parameters: exchanged.expert,
            frozen: segment.parameters.per_device().saturating_sub(exchanged.per_device()),
            repeats: [self.again_share(segment, treatment), if twice { 2.0 } else { 1.0 }],
        }
    }

    /// How much of what runs again does: all of it, but for operators that run again for a part of the tokens only. Of several parts the mean by what
    /// the operators' kernels take.
    fn again_share(&mut self, segment: &Segment, treatment: &Treatment) -> f64 {
        let shares: Vec<(OpId, f64)> = treatment.recompute.iter().map(|id| (id, treatment.again_share(id))).collect();
        let Some(first) = shares.first().map(|(_, share)| *share) else { return 1.0 };
        if shares.iter().all(|(_, share)| *share == first) {
            return first;
        }
        let (mut all, mut again) = (0.0, 0.0);
        for (id, share) in shares {
            let Some(operator) = segment.graph.operators.get(id.index()) else { continue };
            let kernels = operator.forward.iter().map(|step| &step.kernel);
            let time: f64 = kernels.filter(|k| !matches!(k, Kernel::Collective(_))).map(|k| self.cost(k).time.0).sum();
            (all, again) = (all + time, again + share * time);
        }
        if all > 0.0 { again / all } else { 1.0 }
    }

    fn streamed_passes(&mut self, segment: &Segment, recompute: &RecomputeSet, forward: Option<PassProfile>) -> [PassWork; 3] {
        let backward = segment.backward(recompute);
        let again = |pass: Pass| pass == Pass::Recompute;
        let forward = match forward {
            Some(pass) => PassWork::known(pass),
            None => self.pass(segment, &segment.forward(), |_| true),
        };
        [forward, self.pass(segment, &backward, again), self.pass(segment, &backward, |pass| !again(pass))]
    }

    /// How much longer the host takes to launch a product of several experts than a kernel: the library goes through them one by one, and quantises what
    /// narrow products read likewise, without the framework's language (Transformer Engine, `GroupedLinear`).
    fn one_by_one(&self, segment: &Segment, node: &KernelNode) -> Seconds {
        let Kernel::Contraction(product) = &node.kernel else { return Seconds::ZERO };
        let operator = node.role.operator.and_then(|id| segment.graph.operators.get(id.index()));
        if product.batch < 2 || operator.is_none_or(|operator| operator.parameters.expert == 0) {
            return Seconds::ZERO;
        }
        let each = if product.operand.bytes() == 1 { 2.0 } else { 1.0 };
        Seconds::from_micros(self.stack().launch.host_backward_us) * ((product.batch - 1) as f64 * each)
    }

    fn pass(&mut self, segment: &Segment, graph: &KernelGraph, chosen: impl Fn(Pass) -> bool) -> PassWork {
        let mut work = PassWork::default();
        for node in graph.node_weights().filter(|node| chosen(node.role.pass)) {
            work.alone.launches += 1;
            work.alone.slower_launches += self.one_by_one(segment, node);
            let weight = node.role.gradient == Some(GradientOf::Weights);
            let Kernel::Collective(collective) = &node.kernel else {
                let Cost { time, energy } = self.cost(&node.kernel);
                work.alone.device += time;
                work.alone.energy += energy;
                if weight {
                    work.alone.weight += time;
                    work.alone.weight_launches += 1;
                }
                if of_shared_expert(segment, node) {
                    work.shared_expert += time;
                }
                match node.kernel {
                    Kernel::Contraction(_) if weight => work.weights += time,
                    Kernel::Contraction(_) => work.products += time,
                    Kernel::FusedAttention(_) => work.attention += time,
                    _ => {}
                }
                continue;
            };
            work.alone.collective_ranks = work.alone.collective_ranks.saturating_add(collective.group.ranks);
            let axis = node.role.axis.unwrap_or(Axis::Tensor);
            let hides = match axis {
                // Attention waits for the all-to-alls of Ulysses, a ring's next part comes beside it.
                Axis::Context => collective.kind != CollectiveKind::AllToAll,
                Axis::Expert => false,
                Axis::Tensor => node.role.gradient.is_some(),
            };
            work.collectives.push(CollectiveWork { collective: *collective, axis, hides });
        }
        work
    }
}
