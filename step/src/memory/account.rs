//! A stage's memory at each moment, from a lowered model's figures ([`MemoryProfile`]), the degrees ([`StageHolding`])
//! and the schedule.

mod at_work;
mod away;
mod besides;
mod chunks;
mod kept;
mod logits;
mod turns;

use self::at_work::TransientBytes;
use self::away::EndKeeps;
use self::besides::{count_communicators, whole_hidden_states};
use self::chunks::ChunkMemory;
pub use self::chunks::StageRoom;
use self::logits::LogitBytes;
use crate::SoftwareStack;
use crate::memory::stage::{PeakMoment, StageMemory};
use crate::memory::techniques::{OffloadedModelBytes, TechniqueMemory, fragmented_fraction, working_set_of_layer};
use crate::memory::zero_states::{ResidentBytes, ZeroSharding};
use crate::pipeline::arrangement::{Arrangement, DEVICE_KINDS, DeviceGroup};
use crate::schedule::interleaving_group;
use sim::pipeline::{PipelineSchedule, passes_in_flight};
use sim::units::Bytes;
use workloads::footprint::{BytesPerParameter, Optimizer};
use workloads::graph::{OpId, OperatorGraph, OperatorRole, Parameters, TensorInfo};
use workloads::training::Lowering;
use workloads::{ActivationPolicy, LayerMix, ReplayExtent, Segment, SegmentKind, StagePolicies, TrainingGraph};

pub(crate) const GIB: f64 = 1_073_741_824.0;
const MIB: f64 = 1_048_576.0;

/// Sizes of a model lowered for one device and one micro-batch, for all plans with the same lowering.
#[derive(Debug, Clone, PartialEq)]
pub struct MemoryProfile {
    pub(crate) parameters: PieceParameters,
    /// Bytes that a layer keeps on the device from forward to backward pass.
    kept: Bytes,
    /// Bytes that a layer offloads.
    offloaded: Bytes,
    /// The part of `offloaded` in storage.
    stored: Bytes,
    /// Bytes of the next layer that return while one layer runs backward.
    returning: Bytes,
    /// Transient bytes while one layer runs.
    transient: TransientBytes,
    /// Bytes that the embedding and the head keep, with their layers.
    embedding: EndKeeps,
    head: EndKeeps,
    /// Bytes per parameter of the state that the optimizer's update copies, for all parameters at once; zero for
    /// updates in place.
    copied_state: Bytes,
    /// Sizes of a micro-batch's logits, whole or by chunks.
    logits: LogitBytes,
    /// Bytes of a micro-batch's hidden states between layers, before a sequence-parallel device takes its part.
    hidden: Bytes,
    /// Bytes that chunks keep, in pipeline order, if stages have their own policies.
    chunks: Vec<ChunkMemory>,
    /// Changes by memory techniques.
    changed: Option<Box<TechniqueMemory>>,
}

/// Parameters of the pieces on one device, and the bytes per parameter.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PieceParameters {
    embedding: Parameters,
    layer: Parameters,
    /// Mean of one layer in a block of layers.
    one_layer: Parameters,
    head: Parameters,
    /// The head on a stage without the embedding that it is tied to.
    head_apart: Parameters,
    per: BytesPerParameter,
}

impl MemoryProfile {
    /// Returns the profile of a model lowered for one device, under `policies`.
    #[must_use]
    pub fn new(training: &TrainingGraph, policies: &StagePolicies, stack: &SoftwareStack) -> Self {
        // A training graph has all three kinds of segments; the first one is only a fallback.
        let segment = |kind| training.segment(kind).unwrap_or(&training.segments[0]);
        let [embedding, layer, head] = [SegmentKind::Embedding, SegmentKind::Layer, SegmentKind::Head].map(segment);
        let ends = [embedding, head]
            .map(|end| EndKeeps::of_treatment(&ActivationPolicy::None.treatment_of_segment(&end.graph), &end.graph));
        Self {
            parameters: PieceParameters {
                embedding: embedding.parameters,
                layer: layer.parameters,
                one_layer: layer.parameters.share_of_parts(layer.layers_per_piece()),
                head: head.parameters,
                head_apart: head.with_tied_copy().parameters,
                per: layer.bytes_per_parameter(),
            },
            kept: Bytes::ZERO,
            offloaded: Bytes::ZERO,
            stored: Bytes::ZERO,
            returning: Bytes::ZERO,
            transient: TransientBytes::default(),
            embedding: ends[0],
            head: ends[1],
            copied_state: copied_state(&training.lowering),
            logits: LogitBytes::new(head, &training.lowering),
            hidden: whole_hidden_states(training, layer.boundary_bytes),
            chunks: Vec::new(),
            changed: TechniqueMemory::new(training, stack).map(Box::new),
        }
        .with_policies(training, policies, stack)
    }

    /// Returns the profile under other policies, which change only what layers keep.
    #[must_use]
    pub fn with_policies(&self, training: &TrainingGraph, policies: &StagePolicies, stack: &SoftwareStack) -> Self {
        let first = Self { chunks: Vec::new(), ..self.with_one_policy(training, policies.first_layer_policy(), stack) };
        let Some(mixes) = policies.chunk_mixes() else { return first };
        let known: Vec<(&ActivationPolicy, Self)> = policies
            .distinct_policies()
            .into_iter()
            .map(|policy| (policy, self.with_one_policy(training, policy, stack)))
            .collect();
        let layers = known.iter().map(|(policy, memory)| (*policy, memory));
        first.with_mixes(&layers.collect::<Vec<_>>(), mixes)
    }

    /// Returns the profile with one mix of policies per chunk. `known` holds the profile under each policy.
    #[must_use]
    pub fn with_mixes(&self, known: &[(&ActivationPolicy, &Self)], mixes: &[LayerMix]) -> Self {
        Self { chunks: mixes.iter().map(|mix| ChunkMemory::new(known, mix)).collect(), ..self.clone() }
    }

    /// Returns a layer's bytes of one micro-batch: kept on the device, on the host and in storage, and its working
    /// bytes while it runs backward.
    pub(crate) fn layer_bytes(&self) -> [Bytes; 4] {
        [self.kept, self.offloaded.saturating_sub(self.stored), self.stored, self.transient.in_one_go + self.returning]
    }

    fn with_one_policy(&self, training: &TrainingGraph, policy: &ActivationPolicy, stack: &SoftwareStack) -> Self {
        let Some(layer) = training.segment(SegmentKind::Layer) else { return self.clone() };
        // Eager execution caches results before it knows which operators read them, so it repeats the whole region. A
        // compiler knows the readers.
        let caches = *policy == ActivationPolicy::SelectivePerOperator && !stack.kernels.elementwise_fusion;
        let replay = if caches || stack.kernels.recompute_whole_layer {
            ReplayExtent::WholeRegion
        } else {
            ReplayExtent::NeededOnly
        };
        let treatment = policy.treatment_with_extent(&layer.graph, replay);
        let transient = TransientBytes::new(stack, |release| {
            working_set_of_layer(&treatment, &layer.graph, self.changed.as_deref(), stack, release)
        });
        // An embedding or head without layers keeps the same tensors under every policy.
        let end = |kind, known| {
            let of = |segment: &Segment| {
                EndKeeps::of_treatment(&policy.treatment_with_extent(&segment.graph, replay), &segment.graph)
            };
            training.segment(kind).map_or(known, of)
        };
        Self {
            embedding: end(SegmentKind::Embedding, self.embedding),
            head: end(SegmentKind::Head, self.head),
            kept: treatment.kept_bytes(&layer.graph),
            offloaded: treatment.offloaded_bytes(&layer.graph),
            stored: treatment.stored_bytes(&layer.graph),
            returning: treatment.returning_bytes(&layer.graph),
            transient,
            ..self.clone()
        }
    }
}

/// Returns the bytes per parameter of one of Adam's states; zero for optimizers whose updates are in place
/// (`torch/optim/adam.py` and `sgd.py`: `_multi_tensor_adam` takes the roots of all second moments, `_multi_tensor_sgd`
/// adds to the weights).
fn copied_state(lowering: &Lowering) -> Bytes {
    match lowering.optimizer {
        Optimizer::Adam => Bytes(lowering.precision.state_type().bytes()),
        Optimizer::Sgd | Optimizer::Momentum | Optimizer::Adafactor | Optimizer::Adam8bit | Optimizer::Muon => {
            Bytes::ZERO
        }
    }
}

/// Returns whether a tensor belongs to the logits or the loss, which have a class of their own.
fn belongs_to_logits(graph: &OperatorGraph, tensor: &TensorInfo) -> bool {
    let made_by = |op: OpId| matches!(graph.operators[op.index()].role, OperatorRole::Logits | OperatorRole::Loss);
    tensor.producer.is_some_and(made_by)
}

/// A stage's pieces, and the bytes of their parameters for every micro-batch size, policy and schedule.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StageHolding {
    layers: u64,
    embedding: bool,
    head: bool,
    resident: ResidentBytes,
    /// Offloaded weights, gradients and states.
    away: OffloadedModelBytes,
    /// Gathered weights, and gradients not yet reduced, while a layer runs.
    open: Bytes,
    /// Gathered weights during the loss.
    open_loss: Bytes,
}

/// Memory accounting of a plan: the inputs that all stages share.
pub(crate) struct MemoryAccount<'a> {
    arrangement: &'a Arrangement,
    stack: &'a SoftwareStack,
    profile: &'a MemoryProfile,
    domain: Option<u32>,
    /// Bytes of framework, collective buffers and workspaces.
    fixed: [Bytes; 3],
}

impl<'a> MemoryAccount<'a> {
    pub(crate) fn new(
        profile: &'a MemoryProfile,
        arrangement: &'a Arrangement,
        stack: &'a SoftwareStack,
        domain: Option<u32>,
    ) -> Self {
        let memory = &stack.memory;
        let framework = Bytes((memory.context_gib * GIB) as u64);
        let collectives = Bytes((memory.communicator_mib * MIB) as u64) * count_communicators(&arrangement.layout);
        let workspace = Bytes((memory.workspace_gib * GIB) as u64);
        Self { arrangement, stack, profile, domain, fixed: [framework, collectives, workspace] }
    }

    /// Returns a stage's pieces and parameter bytes.
    pub(crate) fn stage_holding(&self, stage: u32) -> StageHolding {
        let Arrangement { layout, split, .. } = self.arrangement;
        let mine = |chunk: u64| self.arrangement.device_of_chunk(chunk) == stage;
        let (embedding, head) = (mine(0), mine(split.chunks - 1));
        let layers = self.arrangement.layers_on_device(stage);
        let pieces = &self.profile.parameters;
        let mut all = pieces.layer.times_pieces(layers);
        if embedding {
            all = all.plus(pieces.embedding);
        }
        if head {
            all = all.plus(if embedding { pieces.head } else { pieces.head_apart });
        }
        let sharding = ZeroSharding::new(layout, self.stack, self.domain);
        let (mut resident, away) = match &self.profile.changed {
            None => (sharding.resident_bytes(all, &pieces.per), OffloadedModelBytes::default()),
            Some(changed) => {
                changed.resident_bytes(&sharding, layers, [embedding, head], self.stack.memory.stored_master)
            }
        };
        resident.gradients += self.placeholder_gradients(layers);
        let at_once =
            if sharding.keeps_gathered() { layers } else { layers.min(u64::from(self.stack.memory.gathered_layers)) };
        let window = pieces.one_layer.times_pieces(at_once);
        let root = self.root_parameters(embedding, head);
        let gathered = sharding.gathered_bytes(window.plus(root), &pieces.per, &resident);
        let reducing = sharding.unreduced_bytes(pieces.one_layer.plus(root), &resident);
        let loss = if sharding.keeps_gathered() { window } else { pieces.one_layer };
        let loss = loss.plus(if self.stack.memory.root_gathered { root } else { pieces.head });
        let open_loss = sharding.gathered_bytes(loss, &pieces.per, &resident);
        StageHolding { layers, embedding, head, resident, away, open: gathered + reducing, open_loss }
    }

    /// Returns the numbers of parameters of the ends that the stage holds, if the stack keeps them gathered for the
    /// whole step; otherwise zeros. `embedding` and `head` tell which ends the stage holds.
    fn root_parameters(&self, embedding: bool, head: bool) -> Parameters {
        let mut root = Parameters::default();
        if self.stack.memory.root_gathered {
            let pieces = &self.profile.parameters;
            for (held, parameters) in [(embedding, pieces.embedding), (head, pieces.head)] {
                root = if held { root.plus(parameters) } else { root };
            }
        }
        root
    }

    /// Returns the bytes that a stage holds at each of its possible peaks: gathered, activations, transients, logits,
    /// gradients.
    fn stage_moments(&self, stage: u32, held: &StageHolding) -> impl Iterator<Item = (PeakMoment, [Bytes; 5])> + use<> {
        let layers = (PeakMoment::Layers, self.bytes_in_layers(stage, held, self.kept_activations(stage, held, false)));
        let loss = held
            .head
            .then(|| (PeakMoment::Loss, self.bytes_in_loss(stage, held, self.kept_activations(stage, held, true))));
        let update = (PeakMoment::Update, self.bytes_in_update(held));
        [Some(layers), loss, Some(update)].into_iter().flatten()
    }

    /// Returns the live bytes at a moment: by class, from the weights on, and their sum. The third value is the bytes
    /// lost to fragmentation.
    fn live_and_lost_bytes(
        &self,
        held: &StageHolding,
        [gathered, activations, transient, logits, gradients]: [Bytes; 5],
    ) -> ([Bytes; 8], Bytes, Bytes) {
        let ResidentBytes { weights, masters, states, .. } = held.resident;
        let live = [weights, gradients, masters, states, gathered, activations, transient, logits];
        let sum: Bytes = live.iter().copied().sum();
        let lost = fragmented_fraction(self.profile.changed.as_deref(), self.stack);
        (live, sum, Bytes((sum.as_f64() * lost) as u64))
    }

    /// Returns the bytes that a stage needs at a moment.
    fn bytes_needed_at(&self, stage: u32, held: &StageHolding, moment: [Bytes; 5]) -> Bytes {
        let (_, sum, lost) = self.live_and_lost_bytes(held, moment);
        let [framework, collectives, workspace] = self.fixed;
        framework + collectives + sum + workspace + lost + self.bytes_ahead_of_device(stage)
    }

    /// Returns the peak of a stage.
    pub(crate) fn peak_of_stage(&self, stage: u32, held: &StageHolding) -> StageMemory {
        // Every stage has at least two moments. The last of equal ones counts.
        let most = self.stage_moments(stage, held).max_by_key(|(_, moment)| self.bytes_needed_at(stage, held, *moment));
        let (moment, holds) = most.unwrap_or((PeakMoment::Update, [Bytes::ZERO; 5]));
        let ([weights, gradients, masters, states, gathered, activations, transient, logits], sum, lost) =
            self.live_and_lost_bytes(held, holds);
        let [framework, collectives, workspace] = self.fixed;
        let transient = transient + workspace;
        let ahead = self.bytes_ahead_of_device(stage);
        let slack = Bytes((sum.as_f64() * self.stack.memory.allocator_slack) as u64);
        StageMemory {
            stage,
            moment,
            classes: [
                framework,
                collectives,
                weights,
                gradients,
                masters,
                states,
                gathered,
                activations,
                transient,
                logits,
                lost + ahead,
            ],
            cached: slack + ahead + self.update_temporaries_beside(held, moment),
            host: self.host_bytes(stage, held),
            host_states: held.away.host,
            read_only: held.away.read_only,
            storage: self.storage_bytes(stage, held),
            written: self.bytes_written_to_storage(stage, held),
        }
    }

    /// Returns the bytes of the fullest stage. Without policies per stage, the first device of each kind suffices:
    /// later devices of a kind hold the same chunks, for fewer micro-batches in flight.
    pub(crate) fn fullest_stage_bytes(&self, holdings: &[StageHolding; DEVICE_KINDS]) -> Bytes {
        let of = |DeviceGroup { kind, from, .. }| {
            let held = &holdings[kind];
            self.stage_moments(from, held).map(|(_, moment)| self.bytes_needed_at(from, held, moment)).max()
        };
        if self.has_stage_policies() {
            return (0..self.arrangement.layout.pipeline)
                .map(|d| self.arrangement.single_device(d))
                .filter_map(of)
                .max()
                .unwrap_or_default();
        }
        self.arrangement.device_groups().filter_map(of).max().unwrap_or_default()
    }

    /// Returns three sums of bytes on a stage: what it always holds, and what it needs in addition while a layer and
    /// while the loss runs backward. All exclude kept activations. The last sum is zero on stages without the head.
    pub(crate) fn resident_and_transient(&self, stage: u32, held: &StageHolding) -> [Bytes; 3] {
        let [framework, collectives, workspace] = self.fixed;
        let ResidentBytes { weights, gradients, masters, states, .. } = held.resident;
        let always = framework + collectives + workspace + weights + masters + states + gradients;
        let [in_layers, in_loss] = [false, true].map(|loss| self.kept_activations(stage, held, loss));
        let layers = self
            .bytes_needed_at(stage, held, self.bytes_in_layers(stage, held, in_layers))
            .saturating_sub(always + in_layers);
        let loss = self
            .bytes_needed_at(stage, held, self.bytes_in_loss(stage, held, in_loss))
            .saturating_sub(always + in_loss);
        [always, layers, if held.head { loss } else { Bytes::ZERO }]
    }

    /// Returns the bytes of activations that a micro-batch keeps in the chunk at `place` until its backward pass. The
    /// second value is the head's part, which only GPipe keeps for more than the current micro-batch.
    pub(crate) fn stashed_activations(&self, place: u64) -> [Bytes; 2] {
        let split = &self.arrangement.split;
        let (first, last) = (place == 0, place + 1 == split.chunks);
        let layers = if first { split.first } else { split.layers_of_chunk(place) };
        let embedding = if first { self.profile.embedding.kept } else { Bytes::ZERO };
        let head = if last { self.profile.head.kept } else { Bytes::ZERO };
        let kept = self.profile.chunks.get(place as usize).map_or(self.profile.kept * layers, |chunk| chunk.kept);
        [kept + embedding, head]
    }

    /// Returns an upper bound on the layers that all stages together can hold in a device's `capacity`, for every split
    /// of `layers`. A stage's share of permanent bytes is its share of the layers. In addition, each layer keeps its
    /// activations for every pass in flight.
    ///
    /// With several chunks per stage, chunks have different numbers of passes in flight. The peak is at least the
    /// average over a round. Let `P` passes be in flight, and let `g` micro-batches go through a chunk at a time. Chunk
    /// `c` of `v` then has on average `P / v + g (1 - (2 c + 1) / v)` of them: forward passes reach it `c g` passes
    /// after the first chunk, and backward passes `c g` passes earlier. The last chunk has the fewest. The end chunks
    /// may have any number of layers, so the first and the last stage count as if all their layers were in the last
    /// chunk. On other stages, chunks differ by at most one layer: of `n` layers, each holds at least `(n - v + 1) /
    /// v`.
    pub(crate) fn upper_bound_of_layers(&self, layers: u64, capacity: Bytes) -> u64 {
        let Arrangement { layout, schedule, micro_batches, .. } = self.arrangement;
        if self.profile.changed.is_some() {
            // Under techniques, bytes do not add up layer by layer, so plans are judged by their need.
            return layers;
        }
        let pieces = &self.profile.parameters;
        let held = ZeroSharding::new(layout, self.stack, self.domain)
            .resident_bytes(pieces.layer.times_pieces(layers), &pieces.per);
        let always = (held.weights + held.gradients + held.states).as_f64() / layers.max(1) as f64;
        let [framework, collectives, _] = self.fixed;
        let free = capacity.saturating_sub(framework + collectives).as_f64();
        let (p, v) = (layout.pipeline, self.chunks_per_device());
        let of_stage = |stage: u32| {
            let passes = self.passes_in_flight(stage);
            let interleaved = matches!(schedule, PipelineSchedule::Interleaved { .. });
            let round = micro_batches / self.micro_batch_group() * self.micro_batch_group() * v
                >= passes + self.micro_batch_group() * v;
            let (fewest, spread) = match (interleaved, stage == 0 || stage + 1 == p) {
                (false, _) => (passes as f64 / v as f64, 0.0),
                (true, _) if !round => (0.0, 0.0),
                (true, true) => (passes.saturating_sub((v - 1) * self.micro_batch_group()) as f64 / v as f64, 0.0),
                (true, false) => (passes as f64 / v as f64, (v - 1) as f64),
            };
            let kept = self.profile.kept.as_f64() * fewest;
            // Compensates for rounding just below a whole number.
            (((free + kept * spread) / (always + kept) + 1e-6) as u64).min(layers)
        };
        (0..p).map(of_stage).sum()
    }

    /// Returns whether a plan needs more than `capacity`. Sufficient test: never rejects a plan that fits, catches most
    /// that do not. It checks one moment of each stage's passes, for the stages of the groups that `counts` admits.
    pub(crate) fn surely_exceeds(&self, capacity: Bytes, counts: impl Fn(&DeviceGroup) -> bool) -> bool {
        let exceeds = |stage: u32| {
            let held = self.stage_holding(stage);
            let head = if held.head { self.profile.head.kept * self.losses_in_flight(stage) } else { Bytes::ZERO };
            let embedding = self.profile.embedding.kept;
            let turns = matches!(self.arrangement.schedule, PipelineSchedule::Interleaved { .. })
                && self.arrangement.split.longer > 0;
            let kept = if turns {
                self.kept_at_first_peak(stage, self.profile.kept, embedding)
            } else {
                self.kept_by_stage(stage, &held, self.profile.kept, embedding, false)
            };
            self.bytes_needed_at(stage, &held, self.bytes_in_layers(stage, &held, kept + head)) > capacity
        };
        self.arrangement.device_groups().filter(counts).any(|alike| exceeds(alike.from))
    }

    /// Returns the holding of each kind of device; that of the first device for kinds that the pipeline lacks.
    pub(crate) fn stage_holdings(&self) -> [StageHolding; DEVICE_KINDS] {
        let mut holdings = [self.stage_holding(0); DEVICE_KINDS];
        for alike in self.arrangement.device_groups().skip(1) {
            holdings[alike.kind] = self.stage_holding(alike.from);
        }
        holdings
    }

    /// Returns the number of micro-batches in flight at the peak. With several chunks per stage, a micro-batch counts
    /// once for each chunk in which it is in flight.
    pub(crate) fn passes_in_flight(&self, stage: u32) -> u64 {
        let (m, p) =
            (u32::try_from(self.arrangement.micro_batches).unwrap_or(u32::MAX), self.arrangement.layout.pipeline);
        let schedule = self.arrangement.schedule;
        let depth = u64::from(passes_in_flight(schedule, p, stage, m));
        match schedule {
            PipelineSchedule::Interleaved { chunks } => {
                let longer = u64::from(chunks - 1) * u64::from(interleaving_group(p, m) - p);
                (depth + longer).min(u64::from(m) * u64::from(chunks))
            }
            _ => depth,
        }
    }

    fn chunks_per_device(&self) -> u64 {
        u64::from(self.arrangement.schedule.chunks_per_device().max(1))
    }

    /// Returns the bytes while layers run: gathered, activations, transients, logits, gradients.
    fn bytes_in_layers(&self, stage: u32, held: &StageHolding, activations: Bytes) -> [Bytes; 5] {
        // While one layer runs backward, the next one's tensors arrive from the host.
        let at_work = if self.has_stage_policies() {
            self.transient_bytes_of_chunks(stage)
        } else {
            self.transient_bytes() + self.profile.returning
        };
        let all = held.resident.gradients;
        if !self.frees_by_layer() || all == Bytes::ZERO {
            return [held.open, activations, at_work, Bytes::ZERO, all];
        }
        // Remaining activations shrink as gradients arrive, so the peak is at one of the two ends.
        let pieces = &self.profile.parameters;
        let first = (self.head_gradient_bytes(held) + pieces.per.gradient * pieces.layer.per_device_count()).min(all);
        let last = Bytes(activations.0 / held.layers.max(1));
        let (activations, gradients) =
            if activations + first > last + all { (activations, first) } else { (last, all) };
        [held.open, activations, at_work, Bytes::ZERO, gradients]
    }

    /// Returns whether gradients arrive layer by layer while activations are freed: only with one micro-batch per step.
    fn frees_by_layer(&self) -> bool {
        self.stack.memory.gradients_by_layer && self.arrangement.micro_batches == 1
    }

    /// Returns the bytes of the gradients of the head's parameters, which arrive first.
    fn head_gradient_bytes(&self, held: &StageHolding) -> Bytes {
        let pieces = &self.profile.parameters;
        let own = pieces.per.gradient * if held.head { pieces.head.per_device_count() } else { 0 };
        own.min(held.resident.gradients)
    }

    fn bytes_in_loss(&self, stage: u32, held: &StageHolding, activations: Bytes) -> [Bytes; 5] {
        let logits = &self.profile.logits;
        let at_work = self.logits_at_work(held);
        let waiting = logits.waiting() * self.losses_in_flight(stage).saturating_sub(1);
        let early = self.arrangement.micro_batches == 1 && !self.stack.memory.gradients_persist;
        let gradients = match (self.frees_by_layer() || early && logits.chunked, early) {
            (true, _) => self.head_gradient_bytes(held),
            (false, true) => Bytes::ZERO,
            (false, false) => held.resident.gradients,
        };
        [
            held.open_loss,
            activations,
            self.buffered_bytes(held),
            at_work + waiting + self.head_placeholder_gradient(),
            gradients,
        ]
    }

    fn bytes_in_update(&self, held: &StageHolding) -> [Bytes; 5] {
        [Bytes::ZERO, Bytes::ZERO, self.update_temporaries(held), Bytes::ZERO, held.resident.gradients]
    }
}
