//! Framework memory beyond the model's own tensors: blocks that wait for the device, placeholders of gradients, large
//! buffers of the update.

use super::{MemoryAccount, PeakMoment, StageHolding};
use sim::units::Bytes;
use workloads::{Layout, TrainingGraph};

impl MemoryAccount<'_> {
    /// Returns the bytes of blocks that asynchronous tensor-parallel collectives have used and the allocator cannot
    /// reuse yet. It reclaims a block only after the device has passed the collective, while the host runs ahead. The
    /// launch queue limits the run-ahead. A step begins with the host and the device together, and every forward pass
    /// leaves at most one state per layer. In a pipeline, the host waits for its neighbours except in the first passes:
    /// of `d` micro-batches in flight, all but two are launched ahead.
    pub(super) fn bytes_ahead_of_device(&self, stage: u32) -> Bytes {
        let (layout, states) = (&self.arrangement.layout, self.stack.memory.states_ahead);
        if layout.tensor < 2 || states == 0.0 {
            return Bytes::ZERO;
        }
        let micro_batches = self.arrangement.micro_batches;
        let held = if layout.pipeline == 1 || micro_batches == 1 {
            states.min(self.arrangement.layers_on_device(stage) as f64 * micro_batches as f64)
        } else {
            states * (1.0 - 2.0 / self.passes_in_flight(stage).max(2) as f64).max(0.0)
        };
        Bytes((self.profile.hidden.as_f64() * held) as u64)
    }

    /// Returns the bytes of placeholder gradients: empty tensors in the weights' type, which stand for gradients that
    /// products add directly to the main gradients. There is one per shape of a layer's weights, common to all layers,
    /// and never freed. Those of experts, one per device, are not counted.
    pub(super) fn placeholder_gradients(&self, layers: u64) -> Bytes {
        let pieces = &self.profile.parameters;
        if !self.stack.memory.placeholder_gradients || layers == 0 {
            return Bytes::ZERO;
        }
        pieces.per.weight * (pieces.one_layer.sharded + pieces.one_layer.replicated)
    }

    /// Returns the bytes of the head's placeholder gradient, which exists only in its backward pass.
    pub(super) fn head_placeholder_gradient(&self) -> Bytes {
        let pieces = &self.profile.parameters;
        let placed = self.stack.memory.placeholder_gradients;
        pieces.per.weight * if placed { pieces.head_apart.per_device_count() } else { 0 }
    }

    /// Returns the bytes of the optimizer's temporaries: buffers of any optimizer, and copies of one of Adam's states.
    pub(super) fn update_temporaries(&self, held: &StageHolding) -> Bytes {
        let memory = &self.stack.memory;
        let copies = memory.update_state_copies * self.profile.copied_state.as_f64();
        Bytes((held.resident.updated as f64 * (memory.update_bytes_per_parameter + copies)) as u64)
    }

    /// Returns the bytes that the optimizer's temporaries add to a reserved reading whose peak is another moment.
    /// Buffers as large as all parameters of a device do not fit into the blocks that activations leave.
    pub(super) fn update_temporaries_beside(&self, held: &StageHolding, peak: PeakMoment) -> Bytes {
        if self.stack.memory.update_contiguous && peak != PeakMoment::Update {
            self.update_temporaries(held)
        } else {
            Bytes::ZERO
        }
    }
}

/// Returns the bytes of the hidden states between layers, before a sequence-parallel device takes its part.
pub(super) fn whole_hidden_states(training: &TrainingGraph, boundary: Bytes) -> Bytes {
    let parts = if training.lowering.sequence_parallel { training.lowering.tensor_parallel } else { 1 };
    boundary * u64::from(parts)
}

/// Returns the number of communicators of a device: one per parallel axis, two for the pipeline (both directions), and
/// the world's.
pub(super) fn count_communicators(l: &Layout) -> u64 {
    let axes = [l.tensor, l.data, l.context, l.expert, l.expert_tensor.unwrap_or(1)]
        .into_iter()
        .filter(|degree| *degree > 1)
        .count() as u64;
    let pipeline = if l.pipeline > 1 { 2 } else { 0 };
    let all = axes + pipeline;
    if all == 0 { 0 } else { all + 1 }
}
