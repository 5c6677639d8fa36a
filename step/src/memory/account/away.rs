//! A stage's offloaded bytes, in host memory and in storage.

use super::{ChunkMemory, DEVICE_KINDS, MemoryAccount, StageHolding, belongs_to_logits};
use crate::memory::need::MemoryNeed;
use crate::memory::zero_states::ZeroSharding;
use crate::pipeline::arrangement::DeviceGroup;
use sim::units::Bytes;
use workloads::Treatment;
use workloads::graph::OperatorGraph;

/// Bytes that the embedding or the head keeps of one micro-batch, with the layers in its segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct EndKeeps {
    /// On the device, without logits and loss.
    pub kept: Bytes,
    /// Offloaded.
    pub away: Bytes,
    /// The part of `away` in storage.
    pub stored: Bytes,
}

impl EndKeeps {
    pub fn of_treatment(treatment: &Treatment, graph: &OperatorGraph) -> Self {
        let logits: Bytes = treatment
            .kept
            .iter()
            .map(|t| &graph.tensors[t.index()])
            .filter(|t| belongs_to_logits(graph, t))
            .map(|t| t.bytes)
            .sum();
        Self {
            kept: treatment.kept_bytes(graph).saturating_sub(logits),
            away: treatment.offloaded_bytes(graph),
            stored: treatment.stored_bytes(graph),
        }
    }
}

impl MemoryAccount<'_> {
    /// Returns whether weights, gradients and states may fit under some split of the layers; true without techniques.
    /// Under every split, some stage holds at least an equal share of the layers, which the function tests without the
    /// ends.
    pub(crate) fn fullest_may_fit(&self, layers: u64, capacity: &MemoryNeed) -> bool {
        let Some(changed) = &self.profile.changed else { return true };
        let layout = self.arrangement.layout;
        let least = layers.div_ceil(u64::from(layout.pipeline.max(1)));
        let sharding = ZeroSharding::new(&layout, self.stack, self.domain);
        let (held, away) = changed.resident_bytes(&sharding, least, [false; 2], self.stack.memory.stored_master);
        let device = held.weights + held.gradients + held.masters + held.states;
        device <= capacity.device && away.host <= capacity.host && away.storage <= capacity.storage
    }

    /// Returns the most bytes that any stage keeps in host memory, and the most that any stage keeps in storage.
    pub(crate) fn fullest_offloaded(&self, holdings: &[StageHolding; DEVICE_KINDS]) -> [Bytes; 2] {
        let of = |DeviceGroup { kind, from, .. }| {
            [self.host_bytes(from, &holdings[kind]), self.storage_bytes(from, &holdings[kind])]
        };
        let most = |[host, storage]: [Bytes; 2], [h, s]: [Bytes; 2]| [host.max(h), storage.max(s)];
        if self.has_stage_policies() {
            return (0..self.arrangement.layout.pipeline)
                .map(|d| of(self.arrangement.single_device(d)))
                .fold([Bytes::ZERO; 2], most);
        }
        // Without techniques, the layers at the ends keep on the device the tensors that a policy offloads.
        if self.profile.offloaded == Bytes::ZERO && self.profile.changed.is_none() {
            return [Bytes::ZERO; 2];
        }
        self.arrangement.device_groups().map(of).fold([Bytes::ZERO; 2], most)
    }

    pub(super) fn host_bytes(&self, stage: u32, held: &StageHolding) -> Bytes {
        let [all, stored] = self.offloaded_activations(stage, held);
        held.away.host + all.saturating_sub(stored)
    }

    pub(super) fn storage_bytes(&self, stage: u32, held: &StageHolding) -> Bytes {
        held.away.storage + self.offloaded_activations(stage, held)[1]
    }

    /// Returns the bytes written to storage: by the update, and per micro-batch (gradients and activations).
    pub(super) fn bytes_written_to_storage(&self, stage: u32, held: &StageHolding) -> [Bytes; 2] {
        let buffered = self.buffered_layers(held);
        let mut activations = match self.has_stage_policies() {
            true => self.chunk_places(stage).map(|place| self.profile.chunks[place].stored).sum::<Bytes>(),
            false => self.profile.stored * held.layers,
        };
        activations = activations.saturating_sub(self.profile.stored * buffered);
        if self.profile.changed.is_some() || self.profile.offloaded > Bytes::ZERO {
            let end = |here: bool, end: &EndKeeps| if here { end.stored } else { Bytes::ZERO };
            activations += end(held.embedding, &self.profile.embedding) + end(held.head, &self.profile.head);
        }
        [held.away.updated, held.away.gradients + activations]
    }

    /// Returns the number of layers of a stage whose activations never leave the device.
    fn buffered_layers(&self, held: &StageHolding) -> u64 {
        self.profile.changed.as_ref().map_or(0, |changed| changed.buffered_layers.min(held.layers))
    }

    /// Returns the activation bytes of the buffered layers. The device holds them during the loss, since their backward
    /// pass follows it.
    pub(super) fn buffered_bytes(&self, held: &StageHolding) -> Bytes {
        self.profile.offloaded * self.buffered_layers(held)
    }

    /// Returns the bytes of offloaded activations: all of them, and those in storage. They include layers at the ends,
    /// but not layers with device buffers.
    fn offloaded_activations(&self, stage: u32, held: &StageHolding) -> [Bytes; 2] {
        let buffered = self.buffered_layers(held);
        let of = |in_chunk: fn(&ChunkMemory) -> Bytes, each: Bytes, of_end: fn(&EndKeeps) -> Bytes| {
            let (embedding, head) = (of_end(&self.profile.embedding), of_end(&self.profile.head));
            let all = match self.has_stage_policies() {
                true => self.kept_in_chunks(stage, in_chunk, embedding, false),
                false => self.kept_by_stage(stage, held, each, embedding, false),
            };
            let head = if held.head { head * self.losses_in_flight(stage) } else { Bytes::ZERO };
            all.saturating_sub(each * buffered) + head
        };
        [
            of(|chunk| chunk.offloaded, self.profile.offloaded, |end| end.away),
            of(|chunk| chunk.stored, self.profile.stored, |end| end.stored),
        ]
    }
}
