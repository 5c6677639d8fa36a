//! How much memory a training step takes on every device: the peak of each pipeline stage by class, whether it fits, and what breaks it.
//!
//! A stage peaks at one of three moments, and what is alive then is summed:
//! - [`Moment::Layers`]: the backward pass of a layer while as many micro-batches are in flight as the schedule ever has. Besides weights,
//!   gradients, states and the activations kept: the gradients and rebuilt activations of one layer, the weights that ZeRO-3 has gathered and the
//!   gradients not yet reduced.
//! - [`Moment::Loss`]: the loss and its gradient, on the stage with the head: logits in the widths that the stack keeps them in.
//! - [`Moment::Update`]: the optimizer's update with its temporaries, when no activation is left.
//!
//! [`sim::pipeline::in_flight`] gives the micro-batches in flight; its equality with the event simulation is tested there and here.

use super::memory_static::{Resident, Sharding};
use super::{SoftwareStack, StepError, TrainingPlan, lowering};
use serde::{Deserialize, Serialize};
use sim::pipeline::{Schedule, in_flight};
use sim::units::Bytes;
use std::fmt;
use thiserror::Error;
use workloads::{ActivationPolicy, Layout, Model, Replay, Segment, SegmentKind, TrainingGraph, Treatment};

/// What memory is used for, in the order in which a device fills.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum MemoryClass {
    /// What the driver and the libraries take before anything is trained.
    Framework,
    /// Buffers of the collective library, per communicator.
    Collectives,
    /// Weights as they are stored.
    Weights,
    /// Gradients of weights.
    Gradients,
    /// Master weights and optimizer states.
    OptimizerStates,
    /// Weights gathered for use, and gradients not yet reduced, of ZeRO-2 and ZeRO-3.
    Gathered,
    /// Activations kept for the backward pass.
    Activations,
    /// What exists only while a layer, the loss or the update runs.
    Transient,
    /// What the allocator holds beyond live tensors.
    Allocator,
}

impl MemoryClass {
    /// All of them, in order.
    pub const ALL: [Self; 9] = [
        Self::Framework,
        Self::Collectives,
        Self::Weights,
        Self::Gradients,
        Self::OptimizerStates,
        Self::Gathered,
        Self::Activations,
        Self::Transient,
        Self::Allocator,
    ];
}

impl fmt::Display for MemoryClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Framework => "framework",
            Self::Collectives => "collective buffers",
            Self::Weights => "weights",
            Self::Gradients => "gradients",
            Self::OptimizerStates => "optimizer states",
            Self::Gathered => "gathered weights and gradients",
            Self::Activations => "activations",
            Self::Transient => "transients",
            Self::Allocator => "allocator",
        })
    }
}

/// When a stage's memory peaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Moment {
    /// In the backward pass of a layer.
    Layers,
    /// In the loss.
    Loss,
    /// In the optimizer's update.
    Update,
}

/// What an instrument counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reading {
    /// Live tensors (`torch.cuda.max_memory_allocated`).
    Allocated,
    /// What the allocator has asked of the device (`torch.cuda.max_memory_reserved`).
    Reserved,
    /// All that is taken of the device, driver and collective buffers included (`nvidia-smi`).
    Device,
}

/// The peak of one stage's devices.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StageMemory {
    /// The pipeline stage, from 0.
    pub stage: u32,
    /// When it peaks.
    pub moment: Moment,
    /// Bytes of each class, in the order of [`MemoryClass::ALL`]. [`MemoryClass::Allocator`] is what a run that has to fit cannot avoid.
    pub classes: [Bytes; 9],
    /// What a reserved reading shows above live tensors: blocks that the allocator keeps for reuse and would give up under pressure.
    pub cached: Bytes,
    /// Bytes in host memory: offloaded activations.
    pub host: Bytes,
}

/// A stage that needs more than there is.
#[derive(Debug, Clone, PartialEq, Eq, Error, Serialize, Deserialize)]
#[error("stage {stage} needs {:.2} GiB of {:.2} GiB: {class} do not fit any more{}", need.gib(), have.gib(), self.advice())]
pub struct OverCapacity {
    /// The stage, from 0.
    pub stage: u32,
    /// The class that no longer fits, filling in the order of [`MemoryClass::ALL`].
    pub class: MemoryClass,
    /// Bytes needed.
    pub need: Bytes,
    /// Bytes there are for it.
    pub have: Bytes,
}

impl OverCapacity {
    fn advice(&self) -> &'static str {
        match self.class {
            MemoryClass::Framework | MemoryClass::Collectives => "; use a chip with more memory",
            MemoryClass::Weights => "; use more tensor- or pipeline-parallel devices, or ZeRO-3",
            MemoryClass::Gradients => "; use more tensor- or pipeline-parallel devices, or ZeRO-2 over data-parallel ones",
            MemoryClass::OptimizerStates => "; use ZeRO-1, or more tensor- or pipeline-parallel devices",
            MemoryClass::Gathered => "; use more tensor-parallel devices",
            MemoryClass::Activations => "; recompute or offload more, or use a smaller micro-batch",
            MemoryClass::Transient | MemoryClass::Allocator => "; use a smaller micro-batch, or split the sequence",
        }
    }
}

impl StageMemory {
    /// Bytes of a class.
    #[must_use]
    pub fn class(&self, class: MemoryClass) -> Bytes {
        self.classes[class as usize]
    }

    /// What a device must have to run the stage.
    #[must_use]
    pub fn need(&self) -> Bytes {
        self.classes.iter().copied().sum()
    }

    /// What an instrument shows.
    #[must_use]
    pub fn reading(&self, reading: Reading) -> Bytes {
        let outside = self.class(MemoryClass::Framework) + self.class(MemoryClass::Collectives);
        let live = self.need().saturating_sub(outside + self.class(MemoryClass::Allocator));
        match reading {
            Reading::Allocated => live,
            Reading::Reserved => live + self.cached,
            Reading::Device => live + self.cached + outside,
        }
    }

    /// Whether it fits, and if not, which class broke it.
    ///
    /// # Errors
    /// The class at which the sum exceeds `have`.
    pub fn fits(&self, have: Bytes) -> Result<(), OverCapacity> {
        let mut sum = Bytes::ZERO;
        for class in MemoryClass::ALL {
            sum += self.class(class);
            if sum > have {
                return Err(OverCapacity { stage: self.stage, class, need: self.need(), have });
            }
        }
        Ok(())
    }
}

/// The peaks of a run's stages.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepMemory {
    /// One per pipeline stage.
    pub stages: Vec<StageMemory>,
    /// What programs can use of a device.
    pub capacity: Bytes,
}

impl StepMemory {
    /// The largest reading of any stage.
    #[must_use]
    pub fn peak(&self, reading: Reading) -> Bytes {
        self.stages.iter().map(|s| s.reading(reading).min(self.limit(s, reading))).max().unwrap_or_default()
    }

    /// The reading of the last stage, which is where Megatron-LM logs memory.
    #[must_use]
    pub fn last_stage(&self, reading: Reading) -> Bytes {
        self.stages.last().map(|s| s.reading(reading).min(self.limit(s, reading))).unwrap_or_default()
    }

    /// A cache never grows beyond the device: there the allocator gives blocks back first.
    fn limit(&self, stage: &StageMemory, reading: Reading) -> Bytes {
        let outside = stage.class(MemoryClass::Framework) + stage.class(MemoryClass::Collectives);
        match reading {
            Reading::Allocated => Bytes(u64::MAX),
            Reading::Reserved => self.capacity.saturating_sub(outside).max(stage.reading(Reading::Allocated)),
            Reading::Device => self.capacity.max(stage.reading(Reading::Allocated) + outside),
        }
    }

    /// Whether every stage fits.
    ///
    /// # Errors
    /// The stage that exceeds the capacity most, and the class that broke it.
    pub fn fits(&self) -> Result<(), OverCapacity> {
        let worst = self.stages.iter().max_by_key(|s| s.need());
        worst.map_or(Ok(()), |s| s.fits(self.capacity))
    }
}

/// The schedule that runs: 1F1B over several chunks per stage is interleaved; without a pipeline all schedules are the same.
#[must_use]
pub fn effective_schedule(layout: &Layout, schedule: Schedule) -> Schedule {
    match (schedule, layout.virtual_stages) {
        _ if layout.pipeline == 1 => Schedule::OneForwardOneBackward,
        (Schedule::OneForwardOneBackward, chunks) if chunks > 1 => Schedule::Interleaved { chunks },
        (schedule, _) => schedule,
    }
}

/// Micro-batches that a stage passes through one chunk before it turns to the next: the stages' number, or the least above it of
/// which `m` is a multiple or leaves a rest of at least `p` (Megatron-LM's rule for `microbatch_group_size_per_vp_stage`); `p` where
/// there is none.
#[must_use]
pub fn interleaving_group(p: u32, m: u32) -> u32 {
    let p = p.max(1);
    (p..=m).find(|group| m.is_multiple_of(*group) || m % group >= p).unwrap_or(p)
}

/// The memory of a plan on devices of `hbm` bytes. `domain` is the number of data-parallel ranks among which ZeRO shards; all of them
/// unless sharding is hybrid.
///
/// # Errors
/// A plan that the model or the layout's rules do not allow.
pub fn step_memory(
    model: &Model,
    plan: &TrainingPlan,
    stack: &SoftwareStack,
    hbm: Bytes,
    domain: Option<u32>,
) -> Result<StepMemory, StepError> {
    let filled = with_fullest_experts(model, plan, stack);
    let training = TrainingGraph::new(&filled, &lowering(&filled, plan, stack))?;
    step_memory_of(model, &training, plan, stack, hbm, domain)
}

/// [`step_memory`] of a model that is lowered already, for a plan that is lowered alike. Experts are as full as it was lowered with; for the
/// fullest device's, lower [`with_fullest_experts`].
///
/// # Errors
/// Layers that do not divide.
pub fn step_memory_of(
    model: &Model,
    training: &TrainingGraph,
    plan: &TrainingPlan,
    stack: &SoftwareStack,
    hbm: Bytes,
    domain: Option<u32>,
) -> Result<StepMemory, StepError> {
    let chunks = plan.layout.chunk_layers(model.layers)?;
    let account = Account::new(training, plan, stack, domain);
    let stages = (0..plan.layout.pipeline).map(|stage| account.stage(stage, &chunks)).collect();
    let reserved = (stack.memory.driver_reserved_gib * GIB) as u64;
    Ok(StepMemory { stages, capacity: hbm.saturating_sub(Bytes(reserved)) })
}

/// The model with the room that the fullest expert-parallel device takes where routing has no capacity limit.
#[must_use]
pub fn with_fullest_experts(model: &Model, plan: &TrainingPlan, stack: &SoftwareStack) -> Model {
    let mut filled = model.clone();
    if let Some(experts) = filled.experts.as_mut().filter(|experts| experts.capacity_factor.is_none()) {
        let others = 1.0 - 1.0 / f64::from(plan.layout.expert.max(1));
        experts.capacity_factor = Some(1.0 + stack.memory.expert_imbalance * others);
    }
    filled
}

const GIB: f64 = 1_073_741_824.0;
const MIB: f64 = 1_048_576.0;

/// What a stage holds.
#[derive(Debug, Clone, Copy)]
struct Contents {
    layers: u64,
    embedding: bool,
    head: bool,
}

/// What all stages share.
struct Account<'a> {
    plan: &'a TrainingPlan,
    stack: &'a SoftwareStack,
    training: &'a TrainingGraph,
    schedule: Schedule,
    sharding: Sharding,
    /// What a layer keeps.
    layer: Treatment,
}

impl<'a> Account<'a> {
    fn new(training: &'a TrainingGraph, plan: &'a TrainingPlan, stack: &'a SoftwareStack, domain: Option<u32>) -> Self {
        // Eager execution caches results before it knows who reads them; a compiler does not.
        let caches = plan.activations == ActivationPolicy::SelectivePerOperator && !stack.kernels.elementwise_fusion;
        let replay = if caches || stack.kernels.recompute_whole_layer { Replay::WholeRegion } else { Replay::NeededOnly };
        let layer = training.segment(SegmentKind::Layer).map(|s| plan.activations.treatment_under(&s.graph, replay));
        Self {
            plan,
            stack,
            training,
            schedule: effective_schedule(&plan.layout, plan.schedule),
            sharding: Sharding::new(plan, stack, domain),
            layer: layer.unwrap_or_default(),
        }
    }

    fn segment(&self, kind: SegmentKind) -> &Segment {
        // A training graph has all three kinds; the first is as good as any if it had not.
        self.training.segment(kind).unwrap_or(&self.training.segments[0])
    }

    fn contents(&self, stage: u32, chunks: &[u64]) -> Contents {
        let p = self.plan.layout.pipeline as usize;
        let device = |chunk: usize| match self.schedule {
            Schedule::ZbV if chunk >= p => (2 * p - 1).saturating_sub(chunk),
            _ => chunk % p,
        };
        let mine = |chunk: usize| device(chunk) == stage as usize;
        let layers = chunks.iter().enumerate().filter(|(chunk, _)| mine(*chunk)).map(|(_, layers)| layers).sum();
        Contents { layers, embedding: mine(0), head: mine(chunks.len().saturating_sub(1)) }
    }

    fn stage(&self, stage: u32, chunks: &[u64]) -> StageMemory {
        let contents = self.contents(stage, chunks);
        let resident = self.resident(contents);
        let mut moments = vec![(Moment::Layers, self.layers_moment(stage, contents, &resident))];
        if contents.head {
            moments.push((Moment::Loss, self.loss_moment(stage, contents, &resident)));
        }
        moments.push((Moment::Update, self.update_moment(&resident)));
        let memory = &self.stack.memory;
        let peaks = moments.into_iter().map(|(moment, [gathered, activations, transient, gradients])| {
            let live = [resident.weights, gradients, resident.states, gathered, activations, transient];
            let sum: Bytes = live.iter().copied().sum();
            let lost = Bytes((sum.as_f64() * memory.fragmentation) as u64);
            let [weights, gradients, states, gathered, activations, transient] = live;
            let transient = transient + Bytes((memory.workspace_gib * GIB) as u64);
            let framework = Bytes((memory.context_gib * GIB) as u64);
            let communicators = Bytes((memory.communicator_mib * MIB) as u64) * self.communicators();
            StageMemory {
                stage,
                moment,
                classes: [framework, communicators, weights, gradients, states, gathered, activations, transient, lost],
                cached: Bytes((sum.as_f64() * memory.allocator_slack) as u64),
                host: self.host(stage, contents),
            }
        });
        // The moments are never none; of equal ones the last is taken.
        peaks.max_by_key(StageMemory::need).unwrap_or_else(|| self.empty(stage))
    }

    fn empty(&self, stage: u32) -> StageMemory {
        StageMemory { stage, moment: Moment::Update, classes: [Bytes::ZERO; 9], cached: Bytes::ZERO, host: Bytes::ZERO }
    }

    fn resident(&self, contents: Contents) -> Resident {
        let layer = self.segment(SegmentKind::Layer);
        let mut parameters = layer.parameters.times(contents.layers);
        if contents.embedding {
            parameters = parameters.plus(self.segment(SegmentKind::Embedding).parameters);
        }
        if contents.head {
            let head = self.segment(SegmentKind::Head);
            let head = if contents.embedding { head.clone() } else { head.with_tied_copy() };
            parameters = parameters.plus(head.parameters);
        }
        self.sharding.resident(parameters, &layer.bytes_per_parameter())
    }

    /// Micro-batches (passes through one chunk) in flight at the peak.
    fn passes(&self, stage: u32) -> u64 {
        let (m, p) = (u32::try_from(self.plan.micro_batches()).unwrap_or(u32::MAX), self.plan.layout.pipeline);
        let depth = u64::from(in_flight(self.schedule, p, stage, m));
        match self.schedule {
            Schedule::Interleaved { chunks } => {
                let longer = u64::from(chunks - 1) * u64::from(interleaving_group(p, m) - p);
                (depth + longer).min(u64::from(m) * u64::from(chunks))
            }
            _ => depth,
        }
    }

    /// Activations kept by the layers of a stage, and by its embedding and head.
    fn activations(&self, stage: u32, contents: Contents) -> Bytes {
        let (passes, chunks) = (self.passes(stage), u64::from(self.schedule.chunks().max(1)));
        let layer = self.layer.kept_bytes(&self.segment(SegmentKind::Layer).graph);
        let layers = Bytes((layer * contents.layers * passes).0.div_ceil(chunks));
        let whole = if chunks > 1 { self.plan.micro_batches().min(self.plan.layout.pipeline.into()) } else { passes };
        let kept = |kind| {
            let graph = &self.segment(kind).graph;
            let large = |t: &workloads::graph::TensorInfo| {
                t.producer.is_some_and(|op| ["head.logits", "head.loss"].contains(&graph.operators[op.index()].name.as_str()))
            };
            let kept = graph.kept(&workloads::RecomputeSet::none());
            kept.iter().map(|t| &graph.tensors[t.index()]).filter(|t| !large(t)).map(|t| t.bytes).sum::<Bytes>()
        };
        let ends = if contents.embedding { kept(SegmentKind::Embedding) * whole } else { Bytes::ZERO };
        let head = if contents.head { kept(SegmentKind::Head) * self.losses(stage) } else { Bytes::ZERO };
        layers + ends + head
    }

    /// Micro-batches whose loss is waiting for its backward pass: all of them under GPipe, else the one at hand.
    fn losses(&self, stage: u32) -> u64 {
        if self.schedule == Schedule::GPipe { self.passes(stage) } else { 1 }
    }

    fn host(&self, stage: u32, contents: Contents) -> Bytes {
        let chunks = u64::from(self.schedule.chunks().max(1));
        let layer = self.layer.offloaded_bytes(&self.segment(SegmentKind::Layer).graph);
        Bytes((layer * contents.layers * self.passes(stage)).0.div_ceil(chunks))
    }

    /// Gathered, activations, transients, gradients.
    fn layers_moment(&self, stage: u32, contents: Contents, resident: &Resident) -> [Bytes; 4] {
        let layer = self.segment(SegmentKind::Layer);
        let at_work = self.layer.transient_bytes(&layer.graph);
        // While one layer runs backward, the next one's tensors come from the host.
        let arriving = self.layer.offloaded_bytes(&layer.graph);
        let window = layer.parameters.times(contents.layers.min(u64::from(self.stack.memory.gathered_layers)));
        let root = self.root(contents);
        let gathered = self.sharding.gathered(window.plus(root), &layer.bytes_per_parameter(), resident);
        let reducing = self.sharding.reducing(layer.parameters.plus(root), resident);
        [gathered + reducing, self.activations(stage, contents), at_work + arriving, resident.gradients]
    }

    /// Embedding and head where they stay gathered for the whole step.
    fn root(&self, contents: Contents) -> workloads::graph::Parameters {
        let mut root = workloads::graph::Parameters::default();
        if self.stack.memory.root_gathered {
            for (kind, held) in [(SegmentKind::Embedding, contents.embedding), (SegmentKind::Head, contents.head)] {
                root = if held { root.plus(self.segment(kind).parameters) } else { root };
            }
        }
        root
    }

    fn loss_moment(&self, stage: u32, contents: Contents, resident: &Resident) -> [Bytes; 4] {
        let head = self.segment(SegmentKind::Head);
        let logits = head.graph.tensor("head.logits.out").map(|t| head.graph.tensors[t.index()].bytes).unwrap_or_default();
        let count = logits.0 / self.training.lowering.precision.operand.bytes();
        let widths = self.stack.memory.bytes_per_logit;
        let at_work = Bytes((count as f64 * widths) as u64);
        // Other micro-batches of GPipe wait with their probabilities in fp32.
        let waiting = Bytes(4 * count) * self.losses(stage).saturating_sub(1);
        let layer = self.segment(SegmentKind::Layer);
        let open = layer.parameters.plus(if self.stack.memory.root_gathered { self.root(contents) } else { head.parameters });
        let gathered = self.sharding.gathered(open, &layer.bytes_per_parameter(), resident);
        let early = self.plan.micro_batches() == 1 && !self.stack.memory.gradients_persist;
        let gradients = if early { Bytes::ZERO } else { resident.gradients };
        [gathered, self.activations(stage, contents), at_work + waiting, gradients]
    }

    fn update_moment(&self, resident: &Resident) -> [Bytes; 4] {
        let temporary = resident.updated as f64 * self.stack.memory.update_bytes_per_parameter;
        [Bytes::ZERO, Bytes::ZERO, Bytes(temporary as u64), resident.gradients]
    }

    /// Communicators that a device has joined: one per parallel axis, two for the pipeline (both directions), and the world's.
    fn communicators(&self) -> u64 {
        let l = &self.plan.layout;
        let axes = [l.tensor, l.data, l.context, l.expert].into_iter().filter(|degree| *degree > 1).count() as u64;
        let pipeline = if l.pipeline > 1 { 2 } else { 0 };
        let all = axes + pipeline;
        if all == 0 { 0 } else { all + 1 }
    }
}

#[cfg(test)]
#[path = "memory_tests.rs"]
mod tests;
