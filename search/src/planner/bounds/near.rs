//! Splits of a plan's layers near the even one. The embedding and the head take as long as a few layers at most, so
//! their chunks hold fewer layers.

use workloads::{ChunkSplit, InnerChunks, Layout};

/// The largest number of layers by which an end chunk may be lighter than an inner chunk. The heaviest end among the
/// built-in models and those read from files is a head of 128,256 tokens beside 2,048 channels (Llama 3.2 1B), which
/// takes as long as 5 of its layers.
const LIGHTER: u64 = 5;

/// Number of splits of a plan that are evaluated: those with the least bounds. Bounds rank similar splits nearly as
/// well as their times.
pub(crate) const NEAR_TRIED: usize = 4;

/// The splits with ends lighter than the inner chunks by at most [`LIGHTER`] layers, or heavier by one. If some inner
/// chunks hold one layer more, these are the first or the last inner chunks. With two chunks, the first holds half of
/// the layers, up to [`LIGHTER`] more or fewer.
pub(crate) fn near_splits(layout: &Layout, layers: u64) -> Vec<ChunkSplit> {
    let chunks = layout.chunk_count().saturating_sub(2);
    let mut splits = Vec::new();
    if layout.chunk_count() == 2 {
        let between = InnerChunks { chunks: 0, inner: 0, longer: 0, shorter: 0 };
        let middle = layers / 2;
        let firsts = middle.saturating_sub(LIGHTER)..=(middle + LIGHTER).min(layers);
        return firsts.map(|first| between.with_ends(first, layers - first)).collect();
    }
    if chunks == 0 {
        return splits;
    }
    let least = layers.saturating_sub(2 * (layers.div_ceil(layout.chunk_count()) + 1)).max(chunks);
    for rest in least..=layers {
        let (inner, longer, ends) = (rest / chunks, rest % chunks, layers - rest);
        let [fewest, most] = [inner.saturating_sub(LIGHTER), inner + 1];
        let last = if longer > 0 { chunks - longer } else { 0 };
        for shorter in [0, last].into_iter().take(if last > 0 { 2 } else { 1 }) {
            let between = InnerChunks { chunks, inner, longer, shorter };
            for first in ends.saturating_sub(most).max(fewest)..=ends.saturating_sub(fewest).min(most) {
                splits.push(between.with_ends(first, ends - first));
            }
        }
    }
    splits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_splits_are_among_all_and_hold_the_even_one() {
        for (pipeline, virtual_stages, layers) in
            [(2, 1, 24), (2, 3, 24), (4, 1, 32), (8, 2, 80), (16, 7, 126), (4, 1, 3), (6, 1, 97)]
        {
            let layout = Layout { pipeline, virtual_stages, ..Layout::default() };
            let (near, all): (Vec<ChunkSplit>, Vec<ChunkSplit>) =
                (near_splits(&layout, layers), layout.chunk_splits(layers).collect());
            assert!(
                !near.is_empty() && near.iter().all(|split| all.contains(split)),
                "{pipeline} {virtual_stages} {layers}"
            );
            let mut once = near.clone();
            once.sort();
            once.dedup();
            assert_eq!(once.len(), near.len(), "a split twice");
            if let Ok(even) = layout.chunk_split(layers) {
                let alike = |split: &ChunkSplit| {
                    (0..even.chunks).all(|chunk| split.layers_of_chunk(chunk) == even.layers_of_chunk(chunk))
                };
                assert!(near.iter().any(alike), "{even}");
            }
        }
    }
}
