//! What the chunks of a device keep where stages have policies of their own.

use super::at_work::TransientBytes;
use super::{MemoryAccount, MemoryProfile, StageHolding};
use crate::memory::techniques::fragmented_fraction;
use crate::memory::zero_states::ResidentBytes;
use sim::pipeline::PipelineSchedule;
use sim::units::Bytes;
use workloads::{ActivationPolicy, LayerMix};

/// What one chunk's layers keep of one micro-batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct ChunkMemory {
    /// On the device, all its layers.
    pub kept: Bytes,
    /// In host memory and in storage, all its layers.
    pub offloaded: Bytes,
    /// Of that, in storage.
    pub stored: Bytes,
    /// Alive besides while one of its layers runs, at most.
    transient: TransientBytes,
    /// What one of its layers brings back from the host, at most.
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
            chunk.returning = chunk.returning.max(layer.offloaded);
        }
        chunk
    }
}

/// What a stage has for its layers' activations.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StageRoom {
    /// Bytes for what its layers keep of all micro-batches in flight, and for what is alive besides while one of them runs.
    pub layers: Bytes,
    /// Bytes for what its layers keep while the loss runs, on the stage that has it.
    pub loss: Option<Bytes>,
    /// Micro-batches in flight, as a mean over its layers: of several chunks on a device each holds a part of them only.
    pub depth: f64,
}

impl MemoryAccount<'_> {
    /// Whether stages have policies of their own.
    pub(super) fn has_stage_policies(&self) -> bool {
        !self.profile.chunks.is_empty()
    }

    /// Places of a stage's chunks.
    pub(super) fn chunk_places(&self, stage: u32) -> impl Iterator<Item = usize> + '_ {
        (0..self.profile.chunks.len()).filter(move |place| self.arrangement.device_of_chunk(*place as u64) == stage)
    }

    /// What a stage's layers, and its embedding, keep at the peak. `in_loss`: as in [`Self::kept_by_turns`].
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
            (PipelineSchedule::ZbV, [first, last]) => self.most_in_both_chunks(stage, [*first, *last], embedding),
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

    /// What is alive besides while one of a stage's layers runs backward and the next one's tensors come from the host.
    pub(super) fn transient_bytes_of_chunks(&self, stage: u32) -> Bytes {
        if self.arrangement.layers_on_device(stage) == 0 {
            return self.transient_bytes() + self.profile.offloaded;
        }
        let schedule = self.arrangement.schedule;
        let most =
            |of: &dyn Fn(&ChunkMemory) -> Bytes| self.chunk_places(stage).map(|place| of(&self.profile.chunks[place])).max();
        most(&|chunk| chunk.transient.under_schedule(schedule)).unwrap_or_default()
            + most(&|chunk| chunk.returning).unwrap_or_default()
    }

    /// What a stage has for its layers' activations in a device's `capacity`; `None` where it has too little without any.
    pub(crate) fn room_for_activations(&self, stage: u32, held: &StageHolding, capacity: Bytes) -> Option<StageRoom> {
        let head = if held.head { self.profile.head.kept * self.losses_in_flight(stage) } else { Bytes::ZERO };
        let ends = self.kept_by_stage(stage, held, Bytes::ZERO, self.profile.embedding.kept, false) + head;
        let [framework, collectives, workspace] = self.fixed;
        let free = capacity.0.checked_sub((framework + collectives + workspace + self.bytes_ahead_of_device(stage)).0)?;
        // Of what is live so much is lost to fragmentation; what rounding may have added is given back.
        let live = Bytes((free as f64 / (1.0 + fragmented_fraction(self.profile.changed.as_deref(), self.stack))) as u64);
        let left = |moment: [Bytes; 5]| {
            let ResidentBytes { weights, masters, states, .. } = held.resident;
            let others = weights + masters + states + moment.into_iter().sum::<Bytes>();
            live.0.checked_sub(others.0).map(Bytes)
        };
        left(self.bytes_in_update(held))?;
        let layers = left([held.open, ends, Bytes::ZERO, Bytes::ZERO, held.resident.gradients])?;
        let loss = if held.head { Some(left(self.bytes_in_loss(stage, held, ends))?) } else { None };
        let depth =
            self.kept_by_stage(stage, held, Bytes(MARK), Bytes::ZERO, false).as_f64() / (MARK * held.layers.max(1)) as f64;
        Some(StageRoom { layers, loss, depth })
    }
}

/// Bytes of a layer that only counts.
const MARK: u64 = 1 << 20;
