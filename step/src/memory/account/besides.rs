//! What frameworks hold besides what training needs: blocks that wait for the device, placeholders of gradients, the update's large buffers.

use super::{MemoryAccount, PeakMoment, StageHolding};
use sim::units::Bytes;
use workloads::{Layout, TrainingGraph};

impl MemoryAccount<'_> {
    /// Blocks that asynchronous tensor-parallel collectives have read or written, and that the allocator takes back only when the device has passed them,
    /// while the host runs ahead of it. How far it does is bounded by the queue of launches, not by the layers. In a pipeline it waits for its
    /// neighbours but in the first passes: of `d` micro-batches in flight, all but two are launched ahead.
    pub(super) fn bytes_ahead_of_device(&self, stage: u32) -> Bytes {
        let (layout, states) = (&self.arrangement.layout, self.stack.memory.states_ahead);
        if layout.tensor < 2 || states == 0.0 {
            return Bytes::ZERO;
        }
        let part = match layout.pipeline {
            1 => 1.0,
            _ => (1.0 - 2.0 / self.passes_in_flight(stage).max(2) as f64).max(0.0),
        };
        Bytes((self.profile.hidden.as_f64() * states * part) as u64)
    }

    /// Empty gradients in the weights' type that stand for those added to the main gradients by the products themselves: one per shape of a layer's
    /// weights, shared by all layers, kept for good. Those of experts, one for all of a device, are left out.
    pub(super) fn placeholder_gradients(&self, layers: u64) -> Bytes {
        let pieces = &self.profile.parameters;
        if !self.stack.memory.placeholder_gradients || layers == 0 {
            return Bytes::ZERO;
        }
        pieces.per.weight * (pieces.one_layer.sharded + pieces.one_layer.replicated)
    }

    /// The head's, which is there in its backward pass only.
    pub(super) fn head_placeholder_gradient(&self) -> Bytes {
        let pieces = &self.profile.parameters;
        let placed = self.stack.memory.placeholder_gradients;
        pieces.per.weight * if placed { pieces.head_apart.per_device_count() } else { 0 }
    }

    /// The optimizer's temporaries.
    pub(super) fn update_temporaries(&self, held: &StageHolding) -> Bytes {
        Bytes((held.resident.updated as f64 * self.stack.memory.update_bytes_per_parameter) as u64)
    }

    /// The same as a reserved reading has them besides the peak of another moment: buffers as large as all parameters of a device find no place among
    /// the blocks that activations have left.
    pub(super) fn update_temporaries_beside(&self, held: &StageHolding, peak: PeakMoment) -> Bytes {
        if self.stack.memory.update_contiguous && peak != PeakMoment::Update {
            self.update_temporaries(held)
        } else {
            Bytes::ZERO
        }
    }
}

/// Hidden states between layers as they are before a sequence-parallel device takes its part.
pub(super) fn whole_hidden_states(training: &TrainingGraph, boundary: Bytes) -> Bytes {
    let parts = if training.lowering.sequence_parallel { training.lowering.tensor_parallel } else { 1 };
    boundary * u64::from(parts)
}

/// Communicators that a device has joined: one per parallel axis, two for the pipeline (both directions), and the world's.
pub(super) fn count_communicators(l: &Layout) -> u64 {
    let axes =
        [l.tensor, l.data, l.context, l.expert, l.expert_tensor.unwrap_or(1)].into_iter().filter(|degree| *degree > 1).count()
            as u64;
    let pipeline = if l.pipeline > 1 { 2 } else { 0 };
    let all = axes + pipeline;
    if all == 0 { 0 } else { all + 1 }
}
