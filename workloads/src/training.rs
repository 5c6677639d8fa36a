//! The training graph: a model lowered for one device of a tensor-parallel group, as pipeline segments whose forward, backward
//! and optimiser kernels and bytes the search asks for.

use crate::error::WorkloadError;
use crate::footprint::BytesPerParameter;
use crate::graph::{OperatorGraph, OperatorNode, Parameters, RecomputeSet, TensorInfo};
use crate::layer_list::EncoderDecoderSide;
use crate::layer_names::layer_prefixes;
use crate::lower::Lowerer;
pub use crate::lowering::{Attention, ContextMethod, Lowering};
use crate::memory::{BytesByPlace, SegmentStatics, TechniqueEffects};
use crate::model::Model;
use crate::op::transformer::SegmentPlan;
use crate::parallel::DeviceSlice;
use serde::{Deserialize, Serialize};
use sim::kernel::{
    Collective, CollectiveKind, Direction, Elementwise, Kernel, KernelGraph, KernelNode, KernelRole, ParallelAxis, Pass,
    RankGroup,
};
use sim::units::{Bytes, Flops};
use std::fmt;

/// Which part of the pipeline a segment is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SegmentKind {
    /// Before the first layer.
    Embedding,
    /// The layers, all alike, or a block of layers that repeats.
    Layer,
    /// After the last layer: final norm, logits, loss.
    Head,
}

impl fmt::Display for SegmentKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Embedding => "embedding",
            Self::Layer => "layer",
            Self::Head => "head",
        })
    }
}

/// A run of identical pieces of the pipeline; every number is for one piece, one micro-batch and one device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Segment {
    /// Which part.
    pub kind: SegmentKind,
    /// Its name, the first part of its operators' names.
    pub name: String,
    /// How many identical pieces follow each other.
    pub repeat: u64,
    /// Operators and tensors of one piece.
    pub graph: OperatorGraph,
    /// Parameters of one piece on one device.
    pub parameters: Parameters,
    /// Parameters on one device that this segment shares with the embedding segment (a tied head; the table of modules that predict further tokens); not
    /// in `parameters`. A pipeline stage that holds this segment without the embedding keeps a copy of them, with gradient and optimiser state.
    pub tied_parameters: u64,
    /// Bytes of the activation (and of its gradient) that the next piece receives on one device: all of the residual stream,
    /// or this device's tokens of it under sequence parallelism; zero after the head.
    pub boundary_bytes: Bytes,
    /// The run's settings.
    pub lowering: Lowering,
    /// What its parameters take where memory techniques change it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statics: Option<Box<SegmentStatics>>,
    /// Whether the backward pass runs twice.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub second_backward: bool,
    /// What memory techniques add to one update of one piece's parameters: kernels, and how often a step runs each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub update_extra: Vec<(Kernel, f64)>,
}

impl Segment {
    fn new(kind: SegmentKind, repeat: u64, graph: OperatorGraph, lowering: &Lowering) -> Self {
        let parameters = graph.operators.iter().fold(Parameters::default(), |sum, op| sum.plus(op.parameters));
        let boundary_bytes = if kind == SegmentKind::Head { Bytes::ZERO } else { graph.tensors[graph.output.index()].bytes };
        Self {
            kind,
            name: kind.to_string(),
            repeat,
            graph,
            parameters,
            tied_parameters: 0,
            boundary_bytes,
            lowering: *lowering,
            statics: None,
            second_backward: false,
            update_extra: Vec::new(),
        }
    }

    /// The segment as a pipeline stage without the embedding holds it: with a copy of the parameters that it shares with the
    /// embedding, hence with their gradients, optimiser states and update. Once per step, the gradients of both copies are summed.
    #[must_use]
    pub fn with_tied_copy(&self) -> Self {
        let mut copy = self.clone();
        copy.parameters.sharded = copy.parameters.sharded.saturating_add(copy.tied_parameters);
        copy.tied_parameters = 0;
        copy
    }

    /// Layers of one piece: of a block of them several, of an end without any 1, as a unit of its own.
    #[must_use]
    pub fn layers_per_piece(&self) -> u64 {
        layer_prefixes(&self.graph).len().max(1) as u64
    }

    /// Whether there are layers in it.
    #[must_use]
    pub fn has_layers(&self) -> bool {
        !layer_prefixes(&self.graph).is_empty()
    }

    /// Operators in an order in which they can run.
    #[must_use]
    pub fn operators(&self) -> &[OperatorNode] {
        &self.graph.operators
    }

    /// Tensors, indexed by their ids.
    #[must_use]
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.graph.tensors
    }

    /// The kernels of the forward pass; node order is an order in which they can run.
    #[must_use]
    pub fn forward_graph(&self) -> KernelGraph {
        Lowerer::new(&self.graph, self.lowering.epilogues).lower_forward()
    }

    /// The kernels of the backward pass: what is recomputed, both gradients of every operator; node order is an order in which
    /// they can run.
    #[must_use]
    pub fn backward_graph(&self, recompute: &RecomputeSet) -> KernelGraph {
        Lowerer::new(&self.graph, self.lowering.epilogues).lower_backward(recompute)
    }

    /// Bytes kept from forward to backward per micro-batch in flight, when `recompute` is run again.
    #[must_use]
    pub fn saved_bytes(&self, recompute: &RecomputeSet) -> Bytes {
        self.graph.saved_bytes(recompute)
    }

    /// Bytes alive, in the worst moment of one piece's forward or backward pass, besides what is kept: unsaved tensors,
    /// gradients, what recomputation has rebuilt, gathered shards ([`OperatorGraph::transient_bytes`]).
    #[must_use]
    pub fn transient_bytes(&self, recompute: &RecomputeSet) -> Bytes {
        self.graph.transient_bytes(recompute)
    }

    /// Bytes per parameter, by use.
    #[must_use]
    pub fn bytes_per_parameter(&self) -> BytesPerParameter {
        BytesPerParameter::new(self.lowering.optimizer, &self.lowering.precision)
    }

    /// Bytes of one piece's weights on one device (without `tied_parameters`).
    #[must_use]
    pub fn weight_bytes(&self) -> Bytes {
        self.bytes_per_parameter().weight * self.parameters.per_device_count()
    }

    /// Bytes of one piece's weight gradients on one device (without `tied_parameters`).
    #[must_use]
    pub fn gradient_bytes(&self) -> Bytes {
        self.bytes_per_parameter().gradient * self.parameters.per_device_count()
    }

    /// Bytes of one piece's master weights and optimiser states on one device (without `tied_parameters`).
    #[must_use]
    pub fn optimizer_bytes(&self) -> Bytes {
        self.bytes_per_parameter().optimizer_bytes() * self.parameters.per_device_count()
    }

    /// The kernels of one optimiser step for one piece on one device, in order: under sequence parallelism the sum of the gradients
    /// of replicated parameters over the tensor-parallel group, then the update, which reads gradients, master weights
    /// (or weights) and states and writes weights, master weights and states.
    #[must_use]
    pub fn optimizer_step_kernels(&self) -> Vec<KernelNode> {
        let per = self.bytes_per_parameter();
        let mut kernels = Vec::new();
        let role = |axis| KernelRole { operator: None, pass: Pass::Optimizer, gradient: None, axis };
        let replicated = self.parameters.replicated;
        let ranks = self.lowering.tensor_parallel;
        if self.lowering.sequence_parallel && ranks > 1 && replicated > 0 {
            kernels.push(KernelNode {
                name: format!("{}.optimizer.all_reduce_replicated", self.name),
                kernel: Kernel::Collective(Collective {
                    kind: CollectiveKind::AllReduce,
                    bytes: per.gradient * replicated,
                    group: RankGroup { ranks, stride: 1 },
                }),
                role: role(Some(ParallelAxis::Tensor)),
            });
        }
        let elements = self.parameters.per_device_count();
        if elements > 0 {
            let name = format!("{}.optimizer.update", self.name);
            kernels.push(KernelNode { name, kernel: self.update_kernel(elements), role: role(None) });
        }
        kernels
    }

    /// The update of `elements` parameters: reads gradients, master weights (or weights) and states, writes weights, master weights and
    /// states.
    #[must_use]
    pub fn update_kernel(&self, elements: u64) -> Kernel {
        let per = self.bytes_per_parameter();
        let source = if per.master == Bytes::ZERO { per.weight } else { per.master };
        Kernel::Elementwise(Elementwise {
            function: self.lowering.optimizer.update_function(),
            direction: Direction::Forward,
            elements,
            read: (per.gradient + source + per.state) * elements,
            written: (per.weight + per.master + per.state) * elements,
        })
    }

    /// The kernels of an update of `parameters` and how often a step runs each: with memory techniques what is read and written is what they
    /// leave, and what they add comes in proportion.
    #[must_use]
    pub fn update_kernels(&self, parameters: u64) -> Vec<(Kernel, f64)> {
        let update = self.update_kernel(parameters);
        let (Some(statics), Kernel::Elementwise(plain)) = (&self.statics, update) else { return vec![(update, 1.0)] };
        let own = &statics.own;
        let each = parameters as f64 / (own.exchanged.per_device_count().max(1)) as f64;
        let part = |bytes: u64| Bytes((bytes as f64 * each) as u64);
        let device = |placed: &BytesByPlace| placed.device.per_device_count();
        let (states, masters) = (part(device(&own.states)), part(device(&own.masters)));
        let away = own.states.host.per_device_count() + own.states.nvme.per_device_count() > 0;
        let mut kernels = Vec::new();
        if !away {
            let per = self.bytes_per_parameter();
            let weights = per.weight * parameters;
            let source = if masters > Bytes::ZERO { masters } else { weights };
            let (read, written) = (per.gradient * parameters + source + states, weights + masters + states);
            kernels.push((Kernel::Elementwise(Elementwise { read, written, ..plain }), 1.0));
        }
        kernels.extend(self.update_extra.iter().map(|(kernel, times)| (*kernel, times * each)));
        kernels
    }

    /// Matrix operations of one piece's forward pass on one device.
    #[must_use]
    pub fn forward_flops(&self) -> Flops {
        self.graph.operators.iter().flat_map(|op| &op.forward).map(|s| s.kernel.flops()).sum()
    }

    /// Matrix operations of one piece's backward pass on one device, without recomputation.
    #[must_use]
    pub fn backward_flops(&self) -> Flops {
        self.graph.operators.iter().flat_map(|op| &op.backward).flat_map(|c| &c.steps).map(|s| s.kernel.flops()).sum()
    }
}

/// A model lowered for one device of a tensor-parallel group.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainingGraph {
    /// The model's name.
    pub model: String,
    /// The run's settings.
    pub lowering: Lowering,
    /// Embedding, layer, head: in pipeline order.
    pub segments: Vec<Segment>,
    /// Rows of the token embedding and of the head, all devices together, padding included.
    pub vocabulary_rows: u64,
    /// Model FLOPs of one micro-batch, all tensor-parallel devices together and all scores counted: [`Model::training_flops`] of the vocabulary
    /// without padding.
    pub model_flops: Flops,
    /// What memory techniques change about the run as a whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied: Option<Box<TechniqueEffects>>,
}

impl TrainingGraph {
    /// Lowers a model.
    ///
    /// # Errors
    /// Where the micro-batch, sequence length or tensor-parallel degree is out of range or does not fit the model.
    pub fn new(model: &Model, lowering: &Lowering) -> Result<Self, WorkloadError> {
        let slice = DeviceSlice::new(model, lowering)?;
        let plan = SegmentPlan::new(model, lowering, slice);
        let mut embedding = Segment::new(SegmentKind::Embedding, 1, plan.build_embedding(), lowering);
        let mut layer = Segment::new(SegmentKind::Layer, model.layers, plan.build_layers(), lowering);
        if model.variations.side == EncoderDecoderSide::Decoder {
            // The encoder's result goes along to every stage.
            for segment in [&mut embedding, &mut layer] {
                segment.boundary_bytes = segment.boundary_bytes * 2;
            }
        }
        let mut head = Segment::new(SegmentKind::Head, 1, plan.build_head(), lowering);
        if model.tied_head {
            let shared = slice.vocabulary.saturating_mul(model.embedding_width);
            head.tied_parameters = shared;
            head.parameters.sharded = head.parameters.sharded.saturating_sub(shared);
        } else if model.variations.further_tokens > 0 {
            // Their modules look up the same table.
            head.tied_parameters = slice.vocabulary.saturating_mul(model.embedding_width);
        }
        let vocabulary_rows = model.padded_vocabulary(lowering.tensor_parallel);
        Ok(Self {
            model: model.name.clone(),
            lowering: *lowering,
            segments: vec![embedding, layer, head],
            vocabulary_rows,
            model_flops: model.training_flops(lowering.micro_batch, lowering.sequence_length, model.vocabulary),
            applied: None,
        })
    }

    /// The segment of a kind.
    #[must_use]
    pub fn segment(&self, kind: SegmentKind) -> Option<&Segment> {
        self.segments.iter().find(|s| s.kind == kind)
    }

    /// Whether memory techniques send anything to the host, and to storage.
    #[must_use]
    pub fn offloads(&self) -> (bool, bool) {
        let placed = self.segments.iter().filter_map(|s| s.statics.as_deref()).flat_map(|s| {
            let own = &s.own;
            [own.weights, own.copies, own.masters, own.gradients, own.states, own.stock]
        });
        let [mut host, mut storage] = [false; 2];
        for bytes in placed {
            host |= bytes.host.per_device_count() > 0;
            storage |= bytes.nvme.per_device_count() > 0;
        }
        for settled in self.segments.iter().map(|s| &s.graph.settled) {
            let moves = !settled.away.is_empty() || settled.partly.is_some();
            host |= moves && !settled.nvme;
            storage |= moves && settled.nvme;
        }
        (host, storage)
    }

    /// Parameters on one device, all segments and repetitions, tied ones once.
    #[must_use]
    pub fn parameters(&self) -> Parameters {
        self.segments.iter().fold(Parameters::default(), |sum, s| sum.plus(s.parameters.times_pieces(s.repeat)))
    }

    /// Matrix operations of one micro-batch on one device, forward and both gradients, without recomputation, as its kernels do
    /// them: fused attention skips the causal half of the scores and computes them again in the backward pass.
    #[must_use]
    pub fn kernel_flops(&self) -> Flops {
        self.segments.iter().map(|s| (s.forward_flops() + s.backward_flops()) * u128::from(s.repeat)).sum()
    }
}
