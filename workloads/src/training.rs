//! The training graph: a model lowered for one device of a tensor-parallel group. Its pipeline segments give forward,
//! backward and optimizer kernels and their bytes.

use crate::autocast::refuse_split_autocast;
use crate::error::WorkloadError;
use crate::footprint::BytesPerParameter;
use crate::graph::{OperatorGraph, OperatorNode, Parameters, RecomputeSet, TensorInfo};
use crate::layer_list::EncoderDecoderSide;
use crate::layer_names::layer_prefixes;
use crate::lower::Lowerer;
pub use crate::lowering::{Attention, Autocast, ContextMethod, LossForm, Lowering};
use crate::memory::{BytesByPlace, SegmentStatics, TechniqueEffects};
use crate::model::Model;
use crate::op::segment_plan::SegmentPlan;
use crate::parallel::DeviceSlice;
use serde::{Deserialize, Serialize};
use sim::kernel::{
    Collective, CollectiveKind, Direction, Elementwise, Kernel, KernelGraph, KernelNode, KernelRole, ParallelAxis,
    Pass, RankGroup,
};
use sim::units::{Bytes, Flops};
use std::fmt;

/// A segment's part of the pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SegmentKind {
    /// Embedding and leading layers, at the pipeline's start.
    Embedding,
    /// The layers: identical ones, or a repeated block.
    Layer,
    /// Trailing layers, final norm, logits and loss, at the pipeline's end.
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

/// A run of identical pieces of the pipeline. Every number is for one piece, one micro-batch and one device.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Segment {
    /// Its part of the pipeline.
    pub kind: SegmentKind,
    /// Its name, which begins its operators' names.
    pub name: String,
    /// Number of identical pieces in a row.
    pub repeat: u64,
    /// Operators and tensors of one piece.
    pub graph: OperatorGraph,
    /// Parameters of one piece on one device.
    pub parameters: Parameters,
    /// Parameters on one device that this segment shares with the embedding segment: a tied head, or the table of
    /// modules that predict further tokens. They are not in `parameters`. A stage that holds this segment without the
    /// embedding keeps a copy of them, with gradient and optimizer state.
    pub tied_parameters: u64,
    /// Bytes of the activation (and of its gradient) that the next piece receives on one device: the whole residual
    /// stream, or this device's tokens of it under sequence parallelism. Zero after the head.
    pub boundary_bytes: Bytes,
    /// The run's settings.
    pub lowering: Lowering,
    /// Parameter, gradient and optimizer bytes under memory techniques; `None` without techniques.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub statics: Option<Box<SegmentStatics>>,
    /// True if the backward pass runs twice.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub second_backward: bool,
    /// True if the kernels of an update run side by side where they use different resources: the device, the host link,
    /// and the host's memory.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub overlapped_update: bool,
    /// Kernels that memory techniques add to one update of one piece's parameters, and how often a step runs each.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub update_extra: Vec<(Kernel, f64)>,
}

impl Segment {
    fn new(kind: SegmentKind, repeat: u64, graph: OperatorGraph, lowering: &Lowering) -> Self {
        let parameters = graph.operators.iter().fold(Parameters::default(), |sum, op| sum.plus(op.parameters));
        let boundary_bytes =
            if kind == SegmentKind::Head { Bytes::ZERO } else { graph.tensors[graph.output.index()].bytes };
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
            overlapped_update: false,
            update_extra: Vec::new(),
        }
    }

    /// Returns the segment as held by a stage without the embedding. It includes its own copy of the shared parameters,
    /// with their gradients, optimizer states and update. Once per step, the gradients of both copies are summed.
    #[must_use]
    pub fn with_tied_copy(&self) -> Self {
        let mut copy = self.clone();
        copy.parameters.sharded = copy.parameters.sharded.saturating_add(copy.tied_parameters);
        copy.tied_parameters = 0;
        copy
    }

    /// Returns the number of layers in a piece: one or more in a block, and 1 for an end without layers.
    #[must_use]
    pub fn layers_per_piece(&self) -> u64 {
        layer_prefixes(&self.graph).len().max(1) as u64
    }

    /// Returns whether the segment has layers.
    #[must_use]
    pub fn has_layers(&self) -> bool {
        !layer_prefixes(&self.graph).is_empty()
    }

    /// Returns the operators in a valid execution order.
    #[must_use]
    pub fn operators(&self) -> &[OperatorNode] {
        &self.graph.operators
    }

    /// Returns the tensors, indexed by their ids.
    #[must_use]
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.graph.tensors
    }

    /// Returns the kernels of the forward pass; node order is a valid execution order.
    #[must_use]
    pub fn forward_graph(&self) -> KernelGraph {
        Lowerer::new(&self.graph, self.lowering.epilogues).lower_forward()
    }

    /// Returns the kernels of the backward pass: recomputed ones and both gradients of every operator. Node order is a
    /// valid execution order.
    #[must_use]
    pub fn backward_graph(&self, recompute: &RecomputeSet) -> KernelGraph {
        Lowerer::new(&self.graph, self.lowering.epilogues).lower_backward(recompute)
    }

    /// Returns the bytes kept from forward to backward per micro-batch in flight, if `recompute` is recomputed.
    #[must_use]
    pub fn saved_bytes(&self, recompute: &RecomputeSet) -> Bytes {
        self.graph.saved_bytes(recompute)
    }

    /// Returns the peak bytes of one piece's forward or backward pass besides kept tensors: unsaved tensors, gradients,
    /// rebuilt tensors and gathered shards ([`OperatorGraph::transient_bytes`]).
    #[must_use]
    pub fn transient_bytes(&self, recompute: &RecomputeSet) -> Bytes {
        self.graph.transient_bytes(recompute)
    }

    /// Returns the bytes per parameter, by use.
    #[must_use]
    pub fn bytes_per_parameter(&self) -> BytesPerParameter {
        BytesPerParameter::new(self.lowering.optimizer, &self.lowering.precision)
    }

    /// Returns the bytes of one piece's weights on one device, without `tied_parameters`.
    #[must_use]
    pub fn weight_bytes(&self) -> Bytes {
        self.bytes_per_parameter().weight * self.parameters.per_device_count()
    }

    /// Returns the bytes of one piece's weight gradients on one device, without `tied_parameters`.
    #[must_use]
    pub fn gradient_bytes(&self) -> Bytes {
        self.bytes_per_parameter().gradient * self.parameters.per_device_count()
    }

    /// Returns the bytes of one piece's master weights and optimizer states on one device, without `tied_parameters`.
    #[must_use]
    pub fn optimizer_bytes(&self) -> Bytes {
        self.bytes_per_parameter().optimizer_bytes() * self.parameters.per_device_count()
    }

    /// Returns the kernels of one optimizer step for one piece on one device, in order. Under sequence parallelism, the
    /// tensor-parallel group first sums the gradients of replicated parameters. The update reads gradients, master
    /// weights (or weights) and states, and writes weights, master weights and states.
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

    /// Returns the update of `elements` parameters. It reads gradients, master weights (or weights) and states, and
    /// writes weights, master weights and states.
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

    /// Returns the kernels of an update of `parameters` parameters, and how often a step runs each. Memory techniques
    /// change the bytes read and written, and add kernels in proportion. The device updates only the parameters whose
    /// states it holds.
    #[must_use]
    pub fn update_kernels(&self, parameters: u64) -> Vec<(Kernel, f64)> {
        let update = self.update_kernel(parameters);
        let (Some(statics), Kernel::Elementwise(plain)) = (&self.statics, update) else { return vec![(update, 1.0)] };
        let own = &statics.own;
        let each = parameters as f64 / (own.exchanged.per_device_count().max(1)) as f64;
        let part = |bytes: u64| Bytes((bytes as f64 * each) as u64);
        let device = |placed: &BytesByPlace| placed.device.per_device_count();
        let (states, masters) = (part(device(&own.states)), part(device(&own.masters)));
        let gone = |placed: &BytesByPlace| placed.host.per_device_count() + placed.nvme.per_device_count();
        let (here, away) = (device(&own.states) + device(&own.masters), gone(&own.states) + gone(&own.masters));
        let mut kernels = Vec::new();
        if here > 0 || away == 0 {
            let share = if away == 0 { 1.0 } else { here as f64 / (here + away) as f64 };
            let elements = (parameters as f64 * share).round() as u64;
            let per = self.bytes_per_parameter();
            let weights = per.weight * elements;
            let source = if masters > Bytes::ZERO { masters } else { weights };
            let (read, written) = (per.gradient * elements + source + states, weights + masters + states);
            kernels.push((Kernel::Elementwise(Elementwise { elements, read, written, ..plain }), 1.0));
        }
        kernels.extend(self.update_extra.iter().map(|(kernel, times)| (*kernel, times * each)));
        kernels
    }

    /// Returns the matrix operations of one piece's forward pass on one device.
    #[must_use]
    pub fn forward_flops(&self) -> Flops {
        self.graph.operators.iter().flat_map(|op| &op.forward).map(|s| s.kernel.flops()).sum()
    }

    /// Returns the matrix operations of one piece's backward pass on one device, without recomputation.
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
    /// Rows of the token embedding and of the head over all devices, with padding.
    pub vocabulary_rows: u64,
    /// Model FLOPs of one micro-batch over all tensor-parallel devices, with all scores counted:
    /// [`Model::training_flops`] of the vocabulary without padding.
    pub model_flops: Flops,
    /// Run-wide effects of memory techniques.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub applied: Option<Box<TechniqueEffects>>,
}

impl TrainingGraph {
    /// Lowers a model to the operators of its segments on one device.
    ///
    /// # Errors
    /// A micro-batch, sequence length or parallel degree that is out of range or does not fit the model. Under
    /// autocast, a tensor-, context- or expert-parallel degree above 1.
    pub fn new(model: &Model, lowering: &Lowering) -> Result<Self, WorkloadError> {
        refuse_split_autocast(model, lowering)?;
        let slice = DeviceSlice::new(model, lowering)?;
        let plan = SegmentPlan::new(model, lowering, slice);
        let embedded = plan.build_embedding().with_autocast(lowering.autocast, false);
        let cast = |graph: OperatorGraph| graph.with_autocast(lowering.autocast, embedded.has_wide_output());
        let (layers, head) = (cast(plan.build_layers()), cast(plan.build_head()));
        let mut embedding = Segment::new(SegmentKind::Embedding, 1, embedded, lowering);
        let mut layer = Segment::new(SegmentKind::Layer, model.layers, layers, lowering);
        if model.variations.side == EncoderDecoderSide::Decoder {
            // The encoder's result passes through every stage with the residual stream.
            let encoded = plan.encoder_plan().residual_stream_bytes();
            for segment in [&mut embedding, &mut layer] {
                segment.boundary_bytes += encoded;
            }
        }
        if model.variations.conditioning.is_some_and(|own| !own.in_layers) {
            // The vector that conditions all layers also passes through every stage.
            let vector = plan.sequence_context().activation_bytes(lowering.micro_batch.saturating_mul(model.hidden));
            for segment in [&mut embedding, &mut layer] {
                segment.boundary_bytes += vector;
            }
        }
        let mut head = Segment::new(SegmentKind::Head, 1, head, lowering);
        if model.tied_head {
            let shared = slice.vocabulary.saturating_mul(model.embedding_width);
            head.tied_parameters = shared;
            head.parameters.sharded = head.parameters.sharded.saturating_sub(shared);
        } else if model.variations.further_tokens > 0 {
            // The modules that predict further tokens look tokens up in the embedding's table.
            head.tied_parameters = slice.vocabulary.saturating_mul(model.embedding_width);
        }
        let vocabulary_rows = model.vocabulary_padded_by(lowering.vocabulary_multiple, lowering.tensor_parallel);
        Ok(Self {
            model: model.name.clone(),
            lowering: *lowering,
            segments: vec![embedding, layer, head],
            vocabulary_rows,
            model_flops: model.training_flops(lowering.micro_batch, lowering.sequence_length, model.vocabulary),
            applied: None,
        })
    }

    /// Returns the first segment of this kind, or `None`.
    #[must_use]
    pub fn segment(&self, kind: SegmentKind) -> Option<&Segment> {
        self.segments.iter().find(|s| s.kind == kind)
    }

    /// Returns whether memory techniques offload anything: (to the host, to storage).
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

    /// Returns the parameters on one device over all segments and repetitions; tied ones count once.
    #[must_use]
    pub fn parameters(&self) -> Parameters {
        self.segments.iter().fold(Parameters::default(), |sum, s| sum.plus(s.parameters.times_pieces(s.repeat)))
    }

    /// Returns the matrix operations of one micro-batch on one device: forward and both gradients, without
    /// recomputation of activations. It counts the work of the kernels: fused attention skips the causally masked half
    /// of the scores, and computes the scores again in the backward pass.
    #[must_use]
    pub fn kernel_flops(&self) -> Flops {
        self.segments.iter().map(|s| (s.forward_flops() + s.backward_flops()) * u128::from(s.repeat)).sum()
    }
}
