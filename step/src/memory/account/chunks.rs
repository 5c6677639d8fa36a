//! Memory of a device's chunks if stages have their own policies.

use super::at_work::TransientBytes;
use super::{MemoryAccount, MemoryProfile, StageHolding};
use crate::memory::techniques::fragmented_fraction;
use crate::memory::zero_states::ResidentBytes;
use sim::pipeline::PipelineSchedule;
use sim::units::Bytes;
use workloads::{ActivationPolicy, LayerMix};

/// Bytes that one chunk's layers keep of one micro-batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ChunkMemory {
    /// On the device, for all its layers.
    pub kept: Bytes,
    /// In host memory and storage, for all its layers.
    pub offloaded: Bytes,
    /// The part of `offloaded` in storage.
    pub stored: Bytes,
    /// Largest transient bytes while one of its layers runs.
    transient: TransientBytes,
    /// The most bytes that a layer of the chunk brings back to the device while another layer runs.
    returning: Bytes,
}

impl ChunkMemory {
    pub fn new(known: &[(&ActivationPolicy, &MemoryProfile)], mix: &LayerMix) -> Self {
        let mut chunk = Self::default();
        for run in mix {
            let Some((_, layer)) = known.iter().find(|(policy, _)| **policy == run.policy) else { continue };
            chunk.kept += layer.kept * run.layers;
            chunk.offloaded += layer.offloaded * run.layers;
            chunk.stored += layer.stored * run.layers;
            chunk.transient = chunk.transient.max_of_both(layer.transient);
            chunk.returning = chunk.returning.max(layer.returning);
        }
        chunk
    }
}

/// The device memory that a stage has left for its layers' activations.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StageRoom {
    /// Bytes for its layers' activations of all micro-batches in flight, and for transients while one layer runs.
    pub layers: Bytes,
    /// Bytes for its layers' activations during the loss, on the stage that has the loss.
    pub loss: Option<Bytes>,
    /// Micro-batches in flight, as a mean over its layers. With several chunks per device, each chunk holds only some
    /// of these micro-batches.
    pub depth: f64,
}

impl MemoryAccount<'_> {
    /// Returns whether stages have their own policies.
    pub(super) fn has_stage_policies(&self) -> bool {
        !self.profile.chunks.is_empty()
    }

    /// Returns the places of a stage's chunks in the pipeline.
    pub(super) fn chunk_places(&self, stage: u32) -> impl Iterator<Item = usize> + '_ {
        (0..self.profile.chunks.len()).filter(move |place| self.arrangement.device_of_chunk(*place as u64) == stage)
    }

    /// Returns the bytes that a stage's layers and its embedding keep at the peak. `of` gives the bytes of one chunk.
    /// `in_loss` is as in [`Self::kept_by_turns`].
    pub(super) fn kept_in_chunks(
        &self,
        stage: u32,
        of: impl Fn(&ChunkMemory) -> Bytes,
        embedding: Bytes,
        in_loss: bool,
    ) -> Bytes {
        let held: Vec<Bytes> = self.chunk_places(stage).map(|place| of(&self.profile.chunks[place])).collect();
        let embedding = if stage == 0 { embedding } else { Bytes::ZERO };
        match (self.arrangement.schedule, held.as_slice()) {
            (PipelineSchedule::InV(schedule), [first, last]) => {
                self.most_in_both_chunks(schedule, stage, [*first, *last], embedding)
            }
            (PipelineSchedule::Interleaved { .. }, _) => {
                let mut held = held;
                if let Some(first) = held.first_mut() {
                    *first += embedding;
                }
                self.most_by_turns(stage, &held, in_loss)
            }
            _ => {
                let passes = self.passes_in_flight(stage);
                held.into_iter().sum::<Bytes>() * passes + embedding * passes.min(self.arrangement.micro_batches)
            }
        }
    }

    /// Returns the bytes alive while one of a stage's layers runs backward and the next one's tensors arrive from the
    /// host.
    pub(super) fn transient_bytes_of_chunks(&self, stage: u32) -> Bytes {
        if self.arrangement.layers_on_device(stage) == 0 {
            return self.transient_bytes() + self.profile.returning;
        }
        let schedule = self.arrangement.schedule;
        let most = |of: &dyn Fn(&ChunkMemory) -> Bytes| {
            self.chunk_places(stage).map(|place| of(&self.profile.chunks[place])).max()
        };
        most(&|chunk| chunk.transient.under_schedule(schedule)).unwrap_or_default()
            + most(&|chunk| chunk.returning).unwrap_or_default()
    }

    /// Returns a stage's room for its layers' activations in a device's `capacity`; `None` if the stage does not fit
    /// even without them.
    pub(crate) fn room_for_activations(&self, stage: u32, held: &StageHolding, capacity: Bytes) -> Option<StageRoom> {
        let ends = self.bytes_of_ends(stage, held);
        let free = capacity.0.checked_sub(self.bytes_apart(stage).0)?;
        // Live bytes that fit beside the memory that fragmentation wastes.
        let live =
            Bytes((free as f64 / (1.0 + fragmented_fraction(self.profile.changed.as_deref(), self.stack))) as u64);
        let left = |moment: [Bytes; 5]| {
            let ResidentBytes { weights, masters, states, .. } = held.resident;
            let others = weights + masters + states + moment.into_iter().sum::<Bytes>();
            live.0.checked_sub(others.0).map(Bytes)
        };
        left(self.bytes_in_update(held))?;
        let layers = left([held.open, ends, Bytes::ZERO, Bytes::ZERO, held.resident.gradients])?;
        let loss = if held.head { Some(left(self.bytes_in_loss(stage, held, ends))?) } else { None };
        let depth = self.kept_by_stage(stage, held, Bytes(MARK), Bytes::ZERO, false).as_f64()
            / (MARK * held.layers.max(1)) as f64;
        Some(StageRoom { layers, loss, depth })
    }

    /// Returns the bytes that a stage needs without its layers' activations: a lower bound under every policy.
    pub(crate) fn least_bytes(&self, stage: u32, held: &StageHolding) -> Bytes {
        let ends = self.bytes_of_ends(stage, held);
        let ResidentBytes { weights, masters, states, gradients, .. } = held.resident;
        let sum = |moment: [Bytes; 5]| moment.into_iter().sum::<Bytes>();
        let loss = if held.head { sum(self.bytes_in_loss(stage, held, ends)) } else { Bytes::ZERO };
        let moments = sum(self.bytes_in_update(held)).max(held.open + ends + gradients).max(loss);
        let wasted = 1.0 + fragmented_fraction(self.profile.changed.as_deref(), self.stack);
        let live = (weights + masters + states + moments).as_f64() * wasted;
        self.bytes_apart(stage) + Bytes(live as u64)
    }

    /// Returns the bytes of activations that the embedding and the head keep on a stage.
    fn bytes_of_ends(&self, stage: u32, held: &StageHolding) -> Bytes {
        let head = if held.head { self.profile.head.kept * self.losses_in_flight(stage) } else { Bytes::ZERO };
        self.kept_by_stage(stage, held, Bytes::ZERO, self.profile.embedding.kept, false) + head
    }

    /// Returns the bytes besides the allocator's live ones: framework, collective buffers, workspaces, and blocks that
    /// wait for the device.
    fn bytes_apart(&self, stage: u32) -> Bytes {
        let [framework, collectives, workspace] = self.fixed;
        framework + collectives + workspace + self.bytes_ahead_of_device(stage)
    }
}

/// Arbitrary bytes per layer, to count the layers that are kept.
const MARK: u64 = 1 << 20;
