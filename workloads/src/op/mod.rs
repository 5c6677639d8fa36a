//! Operators, one file each: the kernels that run forward and backward on one device, the tensors that they make, and
//! the tensors that the backward pass reads. A new operator needs a file here and a line below;
//! [`crate::op::transformer`] places it in layers.

pub(crate) mod activation;
pub(crate) mod channel_scan;
mod composed;
pub(crate) mod compressed_attention;
pub(crate) mod conditioning;
pub(crate) mod context;
pub(crate) mod convolution;
pub(crate) mod cross;
pub(crate) mod dropout;
pub(crate) mod embedding;
pub(crate) mod frames;
pub(crate) mod further;
pub(crate) mod fused_attention;
pub(crate) mod gated;
pub(crate) mod gated_convolution;
pub(crate) mod indexer;
pub(crate) mod latent;
pub(crate) mod linear;
pub(crate) mod linear_attention;
pub(crate) mod loss;
pub(crate) mod moe;
pub(crate) mod norm;
pub(crate) mod patches;
pub(crate) mod per_head;
pub(crate) mod pooling;
pub(crate) mod query_key_norm;
pub(crate) mod recurrence;
pub(crate) mod residual;
pub(crate) mod rope;
pub(crate) mod scan;
pub(crate) mod scores;
pub(crate) mod segment_plan;
pub(crate) mod shared_block;
pub(crate) mod shared_expert;
pub(crate) mod softmax;
pub(crate) mod streams;
pub(crate) mod transformer;
pub(crate) mod ulysses;

use crate::graph::{BackwardChain, Gradient, KernelStep, TensorId};
use crate::lowering::LossForm;
use crate::serving_pass::ServingPass;
use sim::kernel::{
    Collective, CollectiveKind, DataType, Direction, Elementwise, ElementwiseFunction, Kernel, ParallelAxis, RankGroup,
    Reduction, RowFunction, SequencePieces,
};
use sim::units::Bytes;

/// Bytes per element of a recurrent state, which is in fp32.
pub(crate) const STATE_BYTES: u64 = 4;

/// Properties that all operators of a segment share: the micro-batch, its split over devices, and the number formats.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OperatorContext {
    /// Sequences in a micro-batch.
    pub(crate) batch: u64,
    /// Tokens of a sequence on this context-parallel device.
    pub(crate) sequence: u64,
    /// Context-parallel devices. A sequence has `sequence * context` tokens.
    pub(crate) context: u32,
    /// Tensor-parallel devices.
    pub(crate) ranks: u32,
    /// True if the tensor-parallel devices split norms, dropout and residual sums along the sequence.
    pub(crate) sequence_parallel: bool,
    /// Type of activations and weights.
    pub(crate) operand: DataType,
    /// Type to which products with weights convert their operands; equals `operand` without conversion.
    pub(crate) product: DataType,
    /// Type of weight gradients.
    pub(crate) gradient: DataType,
    /// True if neighbouring elementwise operations form one kernel.
    pub(crate) fused: bool,
    /// True if RMS norms, rotations and conversions run as single operations (`composed.rs`).
    pub(crate) composed: bool,
    /// True if a separate pass adds weight gradients to those in memory.
    pub(crate) separate_accumulation: bool,
    pub(crate) cached_conversions: bool,
    /// True if the loss reads and writes logits in their own type and converts them on the fly.
    pub(crate) fused_loss: bool,
    /// The way in which the head and the loss are computed.
    pub(crate) loss: LossForm,
    /// The pieces into which documents cut a whole sequence; `None` if nothing cuts it.
    pub(crate) pieces: Option<SequencePieces>,
    /// Settings of a serving pass; `None` in training.
    pub(crate) serving: Option<ServingPass>,
}

impl OperatorContext {
    /// Returns the micro-batch's tokens on this context-parallel device.
    pub(crate) fn tokens(&self) -> u64 {
        self.batch.saturating_mul(self.sequence)
    }

    /// Returns the number of tokens on this device outside the split products: a share of them under sequence
    /// parallelism.
    pub(crate) fn local_tokens(&self) -> u64 {
        self.batch.saturating_mul(self.local_sequence())
    }

    /// Returns the number of tokens of a whole sequence, over all context-parallel devices.
    pub(crate) fn full_sequence(&self) -> u64 {
        self.sequence.saturating_mul(u64::from(self.context))
    }

    /// Returns the number of tokens of a sequence that attention can see: the whole sequence, and the cached tokens
    /// before it.
    pub(crate) fn seen_tokens(&self) -> u64 {
        self.full_sequence().saturating_add(self.serving.map_or(0, |pass| pass.cached))
    }

    /// Returns whether the pass reads keys and values from a cache like decoding: it makes one token per sequence, or
    /// verifies drafts.
    pub(crate) fn decodes(&self) -> bool {
        self.serving.is_some_and(|pass| pass.verifies || self.sequence == 1)
    }

    /// Returns the context for operators that process whole sequences with a share of the heads.
    pub(crate) fn with_whole_sequences(&self) -> Self {
        Self { sequence: self.full_sequence(), context: 1, ..*self }
    }

    /// Returns a collective over the context-parallel devices; neighbours are one tensor-parallel group apart.
    pub(crate) fn context_collective_step(&self, label: &str, kind: CollectiveKind, bytes: Bytes) -> KernelStep {
        let group = RankGroup { ranks: self.context, stride: self.ranks };
        collective_step(label, ParallelAxis::Context, Collective { kind, bytes, group })
    }

    /// Returns the number of positions of a sequence on this device outside the split products.
    pub(crate) fn local_sequence(&self) -> u64 {
        if self.sequence_parallel { self.sequence / u64::from(self.ranks) } else { self.sequence }
    }

    /// Returns the bytes of `elements` elements of an activation.
    pub(crate) fn activation_bytes(&self, elements: u64) -> Bytes {
        Bytes(self.operand.bytes()) * elements
    }

    /// Returns the bytes of `elements` elements of a weight gradient.
    pub(crate) fn gradient_bytes(&self, elements: u64) -> Bytes {
        Bytes(self.gradient.bytes()) * elements
    }

    /// Returns whether there are several tensor-parallel devices.
    pub(crate) fn is_tensor_parallel(&self) -> bool {
        self.ranks > 1
    }

    /// Returns a collective over the tensor-parallel devices, which are neighbours.
    pub(crate) fn tensor_collective_step(&self, label: &str, kind: CollectiveKind, bytes: Bytes) -> KernelStep {
        let group = RankGroup { ranks: self.ranks, stride: 1 };
        collective_step(label, ParallelAxis::Tensor, Collective { kind, bytes, group })
    }

    /// Returns the step that sums a full activation of `bytes` over the tensor-parallel devices: an all-reduce, or a
    /// reduce-scatter under sequence parallelism. `None` for one device.
    pub(crate) fn sum_over_tensor_ranks(&self, label: &str, bytes: Bytes) -> Option<KernelStep> {
        self.is_tensor_parallel().then(|| {
            if self.sequence_parallel {
                self.tensor_collective_step(&format!("{label}.reduce_scatter"), CollectiveKind::ReduceScatter, bytes)
            } else {
                self.tensor_collective_step(&format!("{label}.all_reduce"), CollectiveKind::AllReduce, bytes)
            }
        })
    }

    /// Returns the step that gathers an activation, split along the sequence, to its full `bytes`; `None` if it is not
    /// split.
    pub(crate) fn gather_sequence(&self, label: &str, bytes: Bytes) -> Option<KernelStep> {
        (self.is_tensor_parallel() && self.sequence_parallel)
            .then(|| self.tensor_collective_step(&format!("{label}.all_gather"), CollectiveKind::AllGather, bytes))
    }
}

/// Returns a step with one device's kernel.
pub(crate) fn kernel_step(label: &str, kernel: Kernel) -> KernelStep {
    KernelStep { label: label.to_owned(), kernel, axis: None }
}

/// Returns a step with a collective along an axis.
pub(crate) fn collective_step(label: &str, axis: ParallelAxis, collective: Collective) -> KernelStep {
    KernelStep { label: label.to_owned(), kernel: Kernel::Collective(collective), axis: Some(axis) }
}

/// Returns the step of a recurrence for every sequence's new tokens. A sequence's state of `numbers` fp32 elements is
/// read, decayed, added to, multiplied with the query and written. Each draft writes a state, because any of them may
/// be the last accepted one.
pub(crate) fn recurrent_step(shape: &OperatorContext, numbers: u64) -> KernelStep {
    let states = shape.batch.saturating_mul(numbers);
    let size = Bytes(STATE_BYTES) * states;
    let (work, written) = (states.saturating_mul(3 * shape.sequence), size * shape.sequence);
    let step = elementwise_kernel(ElementwiseFunction::Mul, Direction::Forward, work, size, written);
    kernel_step("forward.recurrent", step)
}

/// Returns a chain that computes input gradients.
pub(crate) fn input_chain(inputs: &[TensorId], reads: &[TensorId], steps: Vec<KernelStep>) -> BackwardChain {
    BackwardChain { gradient: Gradient::Inputs(inputs.to_vec()), reads: reads.to_vec(), steps }
}

/// Returns a chain that computes parameter gradients.
pub(crate) fn weight_chain(reads: &[TensorId], steps: Vec<KernelStep>) -> BackwardChain {
    BackwardChain { gradient: Gradient::Weights, reads: reads.to_vec(), steps }
}

/// Returns an elementwise kernel.
pub(crate) fn elementwise_kernel(
    function: ElementwiseFunction,
    direction: Direction,
    elements: u64,
    read: Bytes,
    written: Bytes,
) -> Kernel {
    Kernel::Elementwise(Elementwise { function, direction, elements, read, written })
}

/// Rows of equal width that a row-wise kernel reads.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowShape {
    pub(crate) rows: u64,
    pub(crate) columns: u64,
}

/// Returns a row-wise kernel.
pub(crate) fn reduction_kernel(
    function: RowFunction,
    direction: Direction,
    RowShape { rows, columns }: RowShape,
    read: Bytes,
    written: Bytes,
) -> Kernel {
    Kernel::Reduction(Reduction { function, direction, rows, columns, read, written })
}
