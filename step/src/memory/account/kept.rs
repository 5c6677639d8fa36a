//! Activations that the passes in flight keep on a stage's devices.

use super::{MemoryAccount, StageHolding};
use crate::pipeline::arrangement::Arrangement;
use sim::pipeline::{PipelineSchedule, VSchedule, v_in_flight};
use sim::units::Bytes;

impl MemoryAccount<'_> {
    /// Returns the bytes of activations that a stage's layers, embedding and head keep at the peak. `in_loss` restricts
    /// the peak to moments with a loss.
    pub(super) fn kept_activations(&self, stage: u32, held: &StageHolding, in_loss: bool) -> Bytes {
        let head = if held.head { self.profile.head.kept * self.losses_in_flight(stage) } else { Bytes::ZERO };
        if self.has_stage_policies() {
            return self.kept_in_chunks(stage, |chunk| chunk.kept, self.profile.embedding.kept, in_loss && held.head)
                + head;
        }
        self.kept_by_stage(stage, held, self.profile.kept, self.profile.embedding.kept, in_loss) + head
    }

    /// Returns the bytes that a stage's layers and its embedding keep at the peak.
    pub(super) fn kept_by_stage(
        &self,
        stage: u32,
        held: &StageHolding,
        layer: Bytes,
        embedding: Bytes,
        in_loss: bool,
    ) -> Bytes {
        let passes = self.passes_in_flight(stage);
        let split = &self.arrangement.split;
        let chunks = match self.arrangement.schedule {
            PipelineSchedule::Interleaved { chunks } => chunks,
            PipelineSchedule::InV(schedule) => return self.kept_in_both_chunks(schedule, stage, layer, embedding),
            _ => {
                let micro_batches = passes.min(self.arrangement.micro_batches);
                let embedding = if held.embedding { embedding * micro_batches } else { Bytes::ZERO };
                return layer * held.layers * passes + embedding;
            }
        };
        if split.longer > 0 {
            return self.kept_by_turns(stage, layer, embedding, in_loss && held.head);
        }
        let (inner, signed) = (layer * split.inner, |bytes: Bytes| i128::from(bytes.0));
        let mut sum = signed(inner * passes);
        // The first and the last chunk keep more or less than an inner one. The number of passes there is the one that
        // makes the sum largest.
        let ends = [(held.embedding, 0, layer * split.first + embedding), (held.head, chunks - 1, layer * split.last)];
        for (_, chunk, end) in ends.into_iter().filter(|(here, ..)| *here) {
            let more = signed(end) - signed(inner);
            if more != 0 {
                let [fewest, most] = self.passes_in_end_chunk(passes, chunk);
                // During the loss, the last chunk has at least the micro-batch of that loss.
                let fewest = if in_loss && chunk > 0 { fewest.max(1) } else { fewest };
                sum += (more * i128::from(fewest)).max(more * i128::from(most));
            }
        }
        Bytes(u64::try_from(sum).unwrap_or(0))
    }

    /// Returns the peak bytes that a stage's two chunks in a V, and its embedding, keep.
    pub(super) fn kept_in_both_chunks(&self, schedule: VSchedule, stage: u32, layer: Bytes, embedding: Bytes) -> Bytes {
        let split = &self.arrangement.split;
        let held =
            [u64::from(stage), split.chunks - 1 - u64::from(stage)].map(|place| layer * split.layers_of_chunk(place));
        self.most_in_both_chunks(schedule, stage, held, embedding)
    }

    pub(super) fn most_in_both_chunks(
        &self,
        schedule: VSchedule,
        stage: u32,
        [first, last]: [Bytes; 2],
        embedding: Bytes,
    ) -> Bytes {
        let Arrangement { layout, micro_batches, .. } = self.arrangement;
        let first = if stage == 0 { first + embedding } else { first };
        let corners = v_in_flight(schedule, layout.pipeline, u32::try_from(*micro_batches).unwrap_or(u32::MAX));
        let sums = corners.map(|[early, late]| first * u64::from(early) + last * u64::from(late));
        sums[0].max(sums[1])
    }

    /// Returns the number of micro-batches whose loss waits for its backward pass: all in flight under GPipe, otherwise
    /// one.
    pub(super) fn losses_in_flight(&self, stage: u32) -> u64 {
        if self.arrangement.schedule == PipelineSchedule::GPipe { self.passes_in_flight(stage) } else { 1 }
    }
}
