//! The chip's work in a step, before collectives have times. It is computed once for all networks.

use crate::communication::contention::{Communication, OverlapWindow, PortTimes};
use crate::communication::network::StepNetwork;
use crate::pass::away::OffloadedPieces;
use crate::pass::chip_times::{Fidelity, KernelTimeEnergy, collective_latency};
use crate::pass::copied::{CopiedBytes, LinkTimes};
use crate::pass::lowering::lower_plan;
use crate::pass::profile::LayerProfile;
use crate::{ChipTimes, ExecutionMode, PassProfile, PieceProfile, StepError, StepProfile, TrainingPlan};
use sim::kernel::{Collective, CollectiveKind, GradientOf, Kernel, KernelGraph, KernelNode, OpId, ParallelAxis, Pass};
use sim::units::Seconds;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use workloads::recompute_policy::Treatment;
use workloads::{ActivationPolicy, Model, RecomputeSet, Segment, SegmentKind, TrainingGraph};

/// A model's work under a plan, without the times of collectives. It can be timed on any network.
#[derive(Debug, Clone)]
pub struct StepWork {
    /// Embedding, layer, head; the layer is under the plan's first policy.
    pieces: [Option<PieceWork>; 3],
    /// A layer under each policy, if the plan has several.
    by_policy: Vec<(ActivationPolicy, PieceWork)>,
    /// The profile without its pieces.
    rest: StepProfile,
}

impl StepWork {
    pub(crate) fn new(chip: &mut ChipTimes, graph: &TrainingGraph, plan: &TrainingPlan, rest: StepProfile) -> Self {
        let (mut pieces, mut by_policy) = ([None, None, None], Vec::new());
        let (first, replay) = (plan.activations.first_layer_policy(), chip.stack().replay_extent());
        for segment in &graph.segments {
            let slot = match segment.kind {
                SegmentKind::Embedding => 0,
                SegmentKind::Layer => 1,
                SegmentKind::Head => 2,
            };
            pieces[slot] =
                Some(chip.work_of_segment(segment, &first.treatment_with_extent(&segment.graph, replay), None));
            if segment.kind == SegmentKind::Layer && plan.activations.uniform_policy().is_none() {
                let under = |policy: &ActivationPolicy| {
                    let treatment = policy.treatment_with_extent(&segment.graph, replay);
                    (policy.clone(), chip.work_of_segment(segment, &treatment, None))
                };
                by_policy = plan.activations.distinct_policies().into_iter().map(under).collect();
            }
        }
        Self { pieces, by_policy, rest }
    }

    /// Returns the profile on a network. `chip` must be the chip of this work, or a clone of it.
    ///
    /// # Errors
    /// A chip so slow that its times leave the schedule's range.
    pub fn price_on_network(&self, chip: &mut ChipTimes, network: &impl StepNetwork) -> Result<StepProfile, StepError> {
        let mut priced =
            |at: usize| self.pieces[at].as_ref().map_or(Ok(PieceProfile::default()), |p| p.price_piece(chip, network));
        let (embedding, layer, head) = (priced(0)?, priced(1)?, priced(2)?);
        let by_policy = self.by_policy.iter().map(|(policy, work)| {
            let layer = work.price_piece(chip, network)?;
            Ok(LayerProfile { policy: policy.clone(), layer })
        });
        let by_policy = by_policy.collect::<Result<_, StepError>>()?;
        Ok(self.rest.with_pieces([embedding, layer, head], by_policy))
    }
}

/// The work of a piece of the pipeline in one micro-batch.
#[derive(Debug, Clone)]
pub(crate) struct PieceWork {
    passes: PassesWork,
    /// Times for which one-way copies occupy (the host link, storage).
    copy: [Seconds; 2],
    parameters: u64,
    expert_parameters: u64,
    tensors: u64,
    frozen: u64,
    /// Fraction of the recomputation that runs, and number of runs of the backward pass.
    repeats: [f64; 2],
}

impl PieceWork {
    pub(crate) fn price_piece(
        &self,
        chip: &mut ChipTimes,
        network: &impl StepNetwork,
    ) -> Result<PieceProfile, StepError> {
        let [forward, recompute, backward] = match &self.passes {
            PassesWork::Streamed(passes) => passes.each_ref().map(|pass| pass.price_pass(chip, network)),
            PassesWork::Scheduled(passes) => passes.price_passes(chip, network)?,
        };
        let [recompute, backward] =
            [(recompute, self.repeats[0]), (backward, self.repeats[1])].map(|(pass, n)| pass.repeated(n));
        let mut piece = PieceProfile {
            forward,
            recompute,
            backward,
            parameters: self.parameters,
            expert_parameters: self.expert_parameters,
            tensors: self.tensors,
            frozen: self.frozen,
            bounded: false,
        };
        piece.forward.copies = LinkTimes::out_of_device(self.copy);
        piece.backward.copies = LinkTimes::into_device(self.copy);
        piece.add_exposed_copies(chip.stack());
        match (&self.passes, chip.fidelity()) {
            (_, Fidelity::Exact) => {}
            (PassesWork::Streamed(_), _) => piece.mark_bounded_but_for_copies(Seconds::ZERO),
            (PassesWork::Scheduled(_), Fidelity::Scheduled) if piece.is_proven() => {}
            (PassesWork::Scheduled(_), Fidelity::Scheduled) => piece.mark_bounded_but_for_inputs(),
            (PassesWork::Scheduled(_), _) => piece.mark_bounded(),
        }
        Ok(piece)
    }
}

/// Forward pass, recomputation, backward pass.
#[derive(Debug, Clone)]
enum PassesWork {
    /// Kernels in sequence.
    Streamed(Box<[PassWork; 3]>),
    /// By the operator schedule, which places collectives among the kernels. Other times of collectives lead to another
    /// schedule.
    Scheduled(Box<ScheduledWork>),
}

/// A collective inside a pass.
#[derive(Debug, Clone, Copy)]
struct CollectiveWork {
    collective: Collective,
    axis: ParallelAxis,
    /// True if the stack may run the collective beside the products of weight gradients (tensor-parallel) or beside
    /// attention (context-parallel).
    hides: bool,
}

/// Returns whether a kernel belongs to the shared expert.
fn is_in_shared_expert(segment: &Segment, node: &KernelNode) -> bool {
    let operator = node.role.operator.and_then(|id| segment.graph.operators.get(id.index()));
    operator.is_some_and(|operator| operator.shared_expert)
}

/// A pass in a stream.
#[derive(Debug, Clone, Default)]
struct PassWork {
    /// The pass without collectives.
    alone: PassProfile,
    /// Times of products for weight gradients, and of all other products.
    weights: Seconds,
    products: Seconds,
    /// Time of fused attention.
    attention: Seconds,
    /// Time of the shared expert.
    shared_expert: Seconds,
    /// Its collectives, in order.
    collectives: Vec<CollectiveWork>,
}

impl PassWork {
    /// Returns the work of a pass whose collectives already have times.
    fn with_known_times(pass: PassProfile) -> Self {
        Self { alone: pass, ..Self::default() }
    }

    fn price_pass(&self, chip: &ChipTimes, network: &impl StepNetwork) -> PassProfile {
        let (mut pass, nothing) = (self.alone, Communication::default());
        let (mut beside, mut inside_products, mut ring, mut routed) = (nothing, nothing, nothing, nothing);
        for CollectiveWork { collective, axis, hides } in &self.collectives {
            let communication = chip.cost_of_collective(network, collective);
            // In a stream, collectives use the ports one after the other.
            let Communication { time, ports, .. } = communication;
            let alone = Communication { ports: PortTimes::default(), ..communication };
            pass.ports = pass.ports + ports;
            match axis {
                ParallelAxis::Context => {
                    pass.context += time;
                    if *hides {
                        ring = ring + alone;
                    }
                }
                ParallelAxis::Expert => {
                    pass.expert += time;
                    routed = routed + alone;
                }
                ParallelAxis::Tensor => {
                    pass.tensor += time;
                    // Userbuffers need one NVLink domain (Transformer Engine, issue 1071; pull request 1470 for domains
                    // of several nodes).
                    let inside =
                        collective.group.ranks.saturating_mul(collective.group.stride) <= network.fast_domain_size();
                    if inside && *hides {
                        beside = beside + alone;
                    } else if inside
                        && matches!(collective.kind, CollectiveKind::AllGather | CollectiveKind::ReduceScatter)
                    {
                        // The collective is cut into one part per rank. The part that arrives first or leaves last has
                        // no product beside it.
                        inside_products =
                            inside_products + alone * (1.0 - 1.0 / f64::from(collective.group.ranks.max(1)));
                    }
                }
            }
        }
        let overlap = &chip.stack().overlap;
        let saved = |time: Seconds, communication: &Communication| {
            OverlapWindow { time, ..OverlapWindow::default() }.time_saved(communication)
        };
        pass.beside_weights = saved(self.weights, &beside) * overlap.tensor;
        pass.tensor = pass.tensor - pass.beside_weights - saved(self.products, &inside_products) * overlap.products;
        pass.context = pass.context - saved(self.attention, &ring) * overlap.context;
        // The part that the shared expert hides cannot be hidden again behind another micro-batch.
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
    /// The pass itself if it is known, otherwise its graph.
    forward: Result<PassProfile, KernelGraph>,
    /// The backward pass without recomputation.
    backward: KernelGraph,
    /// The backward pass with recomputation, if there is any.
    whole: Option<KernelGraph>,
    /// The distinct collectives of all passes.
    collectives: Vec<Collective>,
    /// Results by the collectives' times. A search over mappings asks for the same times often.
    known: Arc<Mutex<HashMap<Vec<u64>, [PassProfile; 3]>>>,
}

impl ScheduledWork {
    fn new(segment: &Segment, recompute: &RecomputeSet, forward: Option<PassProfile>) -> Self {
        let forward = forward.ok_or_else(|| segment.forward_graph());
        let backward = segment.backward_graph(&RecomputeSet::none());
        let whole = (!recompute.is_empty()).then(|| segment.backward_graph(recompute));
        let mut collectives = Vec::new();
        for node in
            forward.as_ref().err().into_iter().chain([&backward]).chain(&whole).flat_map(KernelGraph::node_weights)
        {
            match node.kernel {
                Kernel::Collective(collective) if !collectives.contains(&collective) => collectives.push(collective),
                _ => {}
            }
        }
        Self { forward, backward, whole, collectives, known: Arc::default() }
    }

    fn price_passes(&self, chip: &mut ChipTimes, network: &impl StepNetwork) -> Result<[PassProfile; 3], StepError> {
        let mut key = Vec::new();
        for collective in &self.collectives {
            let Communication { time, ports, .. } = network.cost_of_collective(collective);
            key.push(time.0.to_bits());
            key.extend(ports.to_bits());
        }
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(passes) = known().get(&key) {
            return Ok(*passes);
        }
        // The lock is released during the scheduling. Two threads that schedule the same passes get the same result.
        let passes = self.schedule_passes(chip, network)?;
        known().insert(key, passes);
        Ok(passes)
    }

    /// Returns the time of the backward pass's collectives in sequence.
    fn collectives_in_sequence(&self, network: &impl StepNetwork) -> Seconds {
        let latency = |node: &KernelNode| match &node.kernel {
            Kernel::Collective(collective) => collective_latency(network, collective),
            _ => Seconds::ZERO,
        };
        self.backward.node_weights().map(latency).sum()
    }

    fn schedule_passes(&self, chip: &mut ChipTimes, network: &impl StepNetwork) -> Result<[PassProfile; 3], StepError> {
        let forward = match &self.forward {
            Ok(known) => *known,
            Err(graph) => chip.scheduled_pass(graph, network, |_| false)?,
        };
        let mut once = chip.scheduled_pass(&self.backward, network, |_| false)?;
        if chip.fidelity() >= Fidelity::Scheduled {
            // If passes are bounded, the pass of the input gradients is bounded too. The shorter it is, the larger is
            // the part of the backward pass that can be put off.
            let weights = |node: &KernelNode| node.role.gradient == Some(GradientOf::Weights);
            let inputs = chip.scheduled_pass(&self.backward, network, weights)?;
            once.weight = (once.busy_time() - inputs.busy_time()).max(Seconds::ZERO).min(once.device);
            once.unproven_inputs = inputs.unproven;
            // The bound of each part assumes that the other part takes at most its time under the found schedule.
            // Exposed collectives are not part of the weight gradients.
            let put_off = (once.busy_time() - inputs.busy_time() - inputs.unproven).max(Seconds::ZERO);
            let computing = if once.unproven > Seconds::ZERO {
                once.busy_time() - self.collectives_in_sequence(network)
            } else {
                once.device
            };
            once.parts = [inputs.busy_time(), put_off.min(computing).max(Seconds::ZERO)];
        }
        let Some(whole) = &self.whole else {
            return Ok([forward, PassProfile::default(), once]);
        };
        let whole = chip.scheduled_pass(whole, network, |_| false)?;
        let device = (whole.busy_time() - once.busy_time()).max(Seconds::ZERO);
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
    /// Returns the profile of a model under a plan.
    ///
    /// # Errors
    /// A plan that the model cannot be lowered for, a graph without layers, or a chip so slow that its times leave the
    /// schedule's range.
    pub fn profile_plan(
        &mut self,
        model: &Model,
        network: &impl StepNetwork,
        plan: &TrainingPlan,
    ) -> Result<StepProfile, StepError> {
        let graph = lower_plan(model, plan, self.stack())?;
        self.profile_lowered(model, &graph, network, plan)
    }

    /// Returns [`Self::profile_plan`] of a lowered model.
    ///
    /// # Errors
    /// A graph without layers, a chip so slow that its times leave the schedule's range.
    pub fn profile_lowered(
        &mut self,
        model: &Model,
        graph: &TrainingGraph,
        network: &impl StepNetwork,
        plan: &TrainingPlan,
    ) -> Result<StepProfile, StepError> {
        self.work_of_lowered(model, graph, plan)?.price_on_network(self, network)
    }

    /// Returns the work of a lowered model under a plan, without the times of collectives.
    ///
    /// # Errors
    /// A graph without layers.
    pub fn work_of_lowered(
        &mut self,
        model: &Model,
        graph: &TrainingGraph,
        plan: &TrainingPlan,
    ) -> Result<StepWork, StepError> {
        let missing = || StepError::Hardware(format!("{}: has no layers", model.name));
        let layer_segment = Arc::new(graph.segment(SegmentKind::Layer).cloned().ok_or_else(missing)?);
        let per = layer_segment.bytes_per_parameter();
        let [embedding, layer, head] = [PieceProfile::default(); 3];
        let with_layers =
            |kind, without: bool| graph.segment(kind).filter(|_| !without).map(|segment| Arc::new(segment.clone()));
        let rest = StepProfile {
            embedding,
            layer,
            head,
            units: [SegmentKind::Embedding, SegmentKind::Layer, SegmentKind::Head].map(|kind| {
                // An end is a unit of its own, besides the layers in its segment.
                let ends =
                    u64::from(kind != SegmentKind::Layer && graph.segment(kind).is_some_and(Segment::has_layers));
                graph.segment(kind).map_or(0, Segment::layers_per_piece) + ends
            }),
            tied_parameters: graph.segment(SegmentKind::Head).map_or(0, |s| s.tied_parameters),
            boundary: layer_segment.boundary_bytes,
            away: OffloadedPieces::from_graph(graph),
            weight_bytes: per.weight,
            gradient_bytes: per.gradient,
            leading_segment: with_layers(SegmentKind::Embedding, model.list.leading.is_empty()),
            trailing_segment: with_layers(SegmentKind::Head, model.layers_with_head() == 0),
            layer_segment,
            by_policy: Vec::new(),
        };
        Ok(StepWork::new(self, graph, plan, rest))
    }

    /// Returns the profile of a plan that differs at most in its activation policies from the plan of `known`. Policies
    /// change only the layers' backward passes.
    ///
    /// # Errors
    /// A chip so slow that its times leave the schedule's range.
    pub fn profile_with_policies(
        &mut self,
        known: &StepProfile,
        network: &impl StepNetwork,
        plan: &TrainingPlan,
    ) -> Result<StepProfile, StepError> {
        let mut again = |segment: &Segment, forward: PassProfile, policy: &ActivationPolicy| {
            let treatment = policy.treatment_with_extent(&segment.graph, self.stack().replay_extent());
            self.work_of_segment(segment, &treatment, Some(forward)).price_piece(self, network)
        };
        let uncopied = |pass: PassProfile| PassProfile { offload: Seconds::ZERO, copies: LinkTimes::default(), ..pass };
        let forward = uncopied(known.layer.forward);
        let first = plan.activations.first_layer_policy();
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
        if plan.activations.uniform_policy().is_none() {
            for policy in plan.activations.distinct_policies() {
                let layer = again(&known.layer_segment, forward, policy)?;
                by_policy.push(LayerProfile { policy: policy.clone(), layer });
            }
        }
        Ok(StepProfile { embedding, layer, head, by_policy, ..known.clone() })
    }

    /// Returns the work of a segment. `forward` is its forward pass without copies, if it is known already. No
    /// treatment changes it.
    pub(crate) fn work_of_segment(
        &mut self,
        segment: &Segment,
        treatment: &Treatment,
        forward: Option<PassProfile>,
    ) -> PieceWork {
        let passes = match self.stack().kernels.execution {
            ExecutionMode::Stream => {
                PassesWork::Streamed(Box::new(self.stream_passes(segment, &treatment.recompute, forward)))
            }
            ExecutionMode::Scheduled => {
                PassesWork::Scheduled(Box::new(ScheduledWork::new(segment, &treatment.recompute, forward)))
            }
        };
        let copied = CopiedBytes::of_treatment(treatment, &segment.graph);
        let exchanged = segment.statics.as_ref().map_or(segment.parameters, |statics| statics.own.exchanged);
        let twice = segment.second_backward;
        PieceWork {
            passes,
            copy: self.copy_times(copied),
            parameters: exchanged.sharded.saturating_add(exchanged.replicated),
            expert_parameters: exchanged.expert,
            tensors: segment.graph.operators.iter().filter(|op| op.parameters.per_device_count() > 0).count() as u64,
            frozen: segment.parameters.per_device_count().saturating_sub(exchanged.per_device_count()),
            repeats: [self.recomputed_fraction(segment, treatment), if twice { 2.0 } else { 1.0 }],
        }
    }

    /// Returns the fraction of the recomputation that runs. It is 1 unless some operators are recomputed for only part
    /// of the tokens. If operators have different fractions, the result is their mean, weighted by the operators'
    /// kernel times.
    fn recomputed_fraction(&mut self, segment: &Segment, treatment: &Treatment) -> f64 {
        let shares: Vec<(OpId, f64)> =
            treatment.recompute.iter().map(|id| (id, treatment.recomputed_token_fraction(id))).collect();
        let Some(first) = shares.first().map(|(_, share)| *share) else { return 1.0 };
        if shares.iter().all(|(_, share)| *share == first) {
            return first;
        }
        let (mut all, mut again) = (0.0, 0.0);
        for (id, share) in shares {
            let Some(operator) = segment.graph.operators.get(id.index()) else { continue };
            let kernels = operator.forward.iter().map(|step| &step.kernel);
            let time: f64 =
                kernels.filter(|k| !matches!(k, Kernel::Collective(_))).map(|k| self.cost_of_kernel(k).time.0).sum();
            (all, again) = (all + time, again + share * time);
        }
        if all > 0.0 { again / all } else { 1.0 }
    }

    fn stream_passes(
        &mut self,
        segment: &Segment,
        recompute: &RecomputeSet,
        forward: Option<PassProfile>,
    ) -> [PassWork; 3] {
        let backward = segment.backward_graph(recompute);
        let again = |pass: Pass| pass == Pass::Recompute;
        let forward = match forward {
            Some(pass) => PassWork::with_known_times(pass),
            None => self.stream_pass(segment, &segment.forward_graph(), |_| true),
        };
        [
            forward,
            self.stream_pass(segment, &backward, again),
            self.stream_pass(segment, &backward, |pass| !again(pass)),
        ]
    }

    /// Returns the host's extra time to launch a product of several experts. The library launches one product per
    /// expert. For narrow products it also quantises the operands one by one. Both happen without the framework's
    /// language (Transformer Engine, `GroupedLinear`).
    fn expert_launch_time(&self, segment: &Segment, node: &KernelNode) -> Seconds {
        let Kernel::Contraction(product) = &node.kernel else { return Seconds::ZERO };
        let operator = node.role.operator.and_then(|id| segment.graph.operators.get(id.index()));
        if product.batch < 2 || operator.is_none_or(|operator| operator.parameters.expert == 0) {
            return Seconds::ZERO;
        }
        let each = if product.operand.bytes() == 1 { 2.0 } else { 1.0 };
        Seconds::from_micros(self.stack().launch.host_backward_us) * ((product.batch - 1) as f64 * each)
    }

    fn stream_pass(&mut self, segment: &Segment, graph: &KernelGraph, chosen: impl Fn(Pass) -> bool) -> PassWork {
        let mut work = PassWork::default();
        for node in graph.node_weights().filter(|node| chosen(node.role.pass)) {
            work.alone.launches += 1;
            work.alone.slower_launches += self.expert_launch_time(segment, node);
            let weight = node.role.gradient == Some(GradientOf::Weights);
            let Kernel::Collective(collective) = &node.kernel else {
                let KernelTimeEnergy { time, energy } = self.cost_of_kernel(&node.kernel);
                work.alone.device += time;
                work.alone.energy += energy;
                if weight {
                    work.alone.weight += time;
                    work.alone.weight_launches += 1;
                }
                if is_in_shared_expert(segment, node) {
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
            let axis = node.role.axis.unwrap_or(ParallelAxis::Tensor);
            let hides = match axis {
                // Attention waits for Ulysses' all-to-alls. In a ring, the next part arrives beside attention.
                ParallelAxis::Context => collective.kind != CollectiveKind::AllToAll,
                ParallelAxis::Expert => false,
                ParallelAxis::Tensor => node.role.gradient.is_some(),
            };
            work.collectives.push(CollectiveWork { collective: *collective, axis, hides });
        }
        work
    }
}
