//! Activations that a device's chunks keep at the same time under interleaved 1F1B. Its passes go through the chunks in
//! turns.

use super::MemoryAccount;
use crate::schedule::interleaving_group;
use sim::units::Bytes;

impl MemoryAccount<'_> {
    /// Returns the smallest and the largest number of passes in an end chunk under interleaved 1F1B, over all moments
    /// with `passes` passes in flight. The end chunk is the first one on the first device, or the last one on the last
    /// device.
    pub(crate) fn passes_in_end_chunk(&self, passes: u64, chunk: u32) -> [u64; 2] {
        let (m, p) = (self.arrangement.micro_batches, u64::from(self.arrangement.layout.pipeline));
        match (chunk, m / p) {
            _ if !m.is_multiple_of(p) => self.passes_in_chunk_by_turns(passes, chunk),
            // If there is one round of micro-batches, all pass the first chunk before any returns. The last chunk has
            // one at a time.
            (0, 1) => [p, p],
            (_, 1) => [1, 1],
            // The second round enters the first chunk while the first round returns through the others; the third round
            // enters as the second leaves. The last chunk is empty while others work.
            (0, _) => [2 * p - 1, 2 * p],
            _ => [0, 1],
        }
    }

    /// Returns the bytes that a stage's layers and its embedding keep at the peak under interleaved 1F1B, for any
    /// chunks. `in_loss` restricts the peak to moments with a micro-batch in the last chunk. This peak is at most one
    /// pass away from the end of a turn.
    pub(super) fn kept_by_turns(&self, stage: u32, layer: Bytes, embedding: Bytes, in_loss: bool) -> Bytes {
        let passes = self.passes_in_flight(stage);
        let keeps = self.kept_after_forward_passes(stage, layer, embedding);
        let sum = |n: u64| {
            let (kept, in_last) = keeps(n);
            (!in_loss || in_last).then_some(kept)
        };
        let turns = self.turn_ends(passes);
        if !in_loss {
            return turns.filter_map(sum).max().unwrap_or_default();
        }
        let last = self.arrangement.micro_batches * self.chunks_per_device();
        turns
            .flat_map(|n| [n.saturating_sub(1).max(passes), n, (n + 1).min(last)])
            .filter_map(sum)
            .max()
            .unwrap_or_default()
    }

    /// Returns [`Self::kept_by_turns`] of a device whose chunks keep `held`.
    pub(super) fn most_by_turns(&self, stage: u32, held: &[Bytes], in_loss: bool) -> Bytes {
        let (passes, v) = (self.passes_in_flight(stage), self.chunks_per_device());
        let sum = |n: u64| {
            let flying = self.passes_in_chunk_range(n, passes);
            let kept = held.iter().zip(0..).map(|(bytes, chunk)| *bytes * flying(chunk, chunk + 1)).sum::<Bytes>();
            (!in_loss || flying(v - 1, v) > 0).then_some(kept)
        };
        let turns = self.turn_ends(passes);
        if !in_loss {
            return turns.filter_map(sum).max().unwrap_or_default();
        }
        let last = self.arrangement.micro_batches * v;
        turns
            .flat_map(|n| [n.saturating_sub(1).max(passes), n, (n + 1).min(last)])
            .filter_map(sum)
            .max()
            .unwrap_or_default()
    }

    /// Returns the bytes kept when a device first reaches its largest number of passes in flight. They are at most the
    /// peak.
    pub(super) fn kept_at_first_peak(&self, stage: u32, layer: Bytes, embedding: Bytes) -> Bytes {
        self.kept_after_forward_passes(stage, layer, embedding)(self.passes_in_flight(stage)).0
    }

    /// Returns a function of the number of forward passes. It gives the bytes that a device then keeps, and whether a
    /// micro-batch is in its last chunk.
    fn kept_after_forward_passes(&self, stage: u32, layer: Bytes, embedding: Bytes) -> impl Fn(u64) -> (Bytes, bool) {
        let (passes, p, v) = (self.passes_in_flight(stage), self.arrangement.layout.pipeline, self.chunks_per_device());
        let (split, signed) = (&self.arrangement.split, |bytes: Bytes| i128::from(bytes.0));
        // Number of the device's chunks before a place of the pipeline. The longer chunks are neighbours in the
        // pipeline, so they are neighbours among the device's chunks too.
        let from = |place: u64| place.saturating_sub(stage.into()).div_ceil(p.into());
        let row = [from(split.longer_from), from(split.longer_from + split.longer)];
        let inner = signed(layer * split.inner);
        let first = if stage == 0 { signed(layer * split.first + embedding) - inner } else { 0 };
        let last = if stage + 1 == p { signed(layer * split.last) - inner } else { 0 };
        move |n: u64| {
            let flying = self.passes_in_chunk_range(n, passes);
            let count = |from, to| i128::from(flying(from, to));
            let kept = inner * i128::from(passes)
                + signed(layer) * count(row[0], row[1])
                + first * count(0, 1)
                + last * count(v - 1, v);
            (Bytes(u64::try_from(kept).unwrap_or(0)), count(v - 1, v) > 0)
        }
    }

    /// Returns [`Self::passes_in_end_chunk`] for any chunk and device, by enumeration of the schedule's turns.
    pub(crate) fn passes_in_chunk_by_turns(&self, passes: u64, chunk: u32) -> [u64; 2] {
        let at = |n: u64| self.passes_in_chunk_range(n, passes)(chunk.into(), u64::from(chunk) + 1);
        self.turn_ends(passes).map(at).fold([u64::MAX, 0], |[fewest, most], n| [fewest.min(n), most.max(n)])
    }

    /// Returns the number of micro-batches that interleaved 1F1B takes through a chunk at a time.
    pub(super) fn micro_batch_group(&self) -> u64 {
        let m = u32::try_from(self.arrangement.micro_batches).unwrap_or(u32::MAX);
        u64::from(interleaving_group(self.arrangement.layout.pipeline, m))
    }

    /// Returns a function that counts the passes in flight in a range of a device's chunks, after `n` forward passes
    /// and `n - passes` backward passes.
    fn passes_in_chunk_range(&self, n: u64, passes: u64) -> impl Fn(u64, u64) -> u64 + use<> {
        let (v, group) = (self.chunks_per_device(), self.micro_batch_group());
        let [forward, backward] = [n, n - passes].map(|count| (count / (group * v) * group, count % (group * v)));
        let through = move |(whole, rest): (u64, u64), from: u64, to: u64| {
            whole * (to - from) + rest.saturating_sub(from * group).min((to - from) * group)
        };
        move |from, to| through(forward, from, to).saturating_sub(through(backward, v - to, v - from))
    }

    /// Returns forward-pass counts of a device at the ends of turns, with `passes` in flight. Forward passes go through
    /// the chunks in turns of one group of micro-batches each; backward passes go in reverse. Within a turn, the number
    /// in a chunk only rises, falls or stays. So its extremes, and those of sums over chunks, are at the ends of turns.
    fn turn_ends(&self, passes: u64) -> impl Iterator<Item = u64> + use<> {
        let (v, group) = (self.chunks_per_device(), self.micro_batch_group());
        // A whole cycle of turns repeats.
        let end = (self.arrangement.micro_batches * v).min(passes + 2 * group * v);
        let turns = move |from: u64| (0..=2 * v + 1).map(move |i| from + i * group);
        turns(passes).chain(turns(passes.next_multiple_of(group))).filter(move |n| *n <= end).chain([end])
    }
}
