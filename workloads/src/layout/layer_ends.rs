//! Uneven splits of a model's layers over a pipeline. The first and last chunk can differ from the inner chunks, and
//! some inner chunks can hold one more layer.

use super::{ChunkSplit, Layout, LayoutError};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The number of layers in the first and the last model chunk of a pipeline. With one chunk per stage these are the
/// first and last stage: Megatron-LM's `--decoder-first-pipeline-num-layers` and `--decoder-last-pipeline-num-layers`.
/// The inner chunks share the rest equally. If the rest does not divide, some neighbouring inner chunks hold one more
/// layer. An end without layers holds only the embedding or the head. With more chunks than layers plus 2, some inner
/// chunks hold no layers and only pass on their input (nanotron cuts small models so).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LayerEnds {
    /// Layers of the first chunk.
    pub first: u32,
    /// Layers of the last chunk.
    pub last: u32,
    /// Number of inner chunks before the longer ones; 0 if all inner chunks are equal.
    #[serde(default)]
    pub shorter: u32,
}

impl fmt::Display for LayerEnds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.first, self.last)?;
        if self.shorter > 0 { write!(f, "@{}", self.shorter) } else { Ok(()) }
    }
}

impl FromStr for LayerEnds {
    type Err = LayoutError;

    fn from_str(text: &str) -> Result<Self, LayoutError> {
        let (ends, shorter) = text.split_once('@').unwrap_or((text, "0"));
        let parts = ends
            .split_once(':')
            .map(|(first, last)| (first.trim().parse(), last.trim().parse(), shorter.trim().parse()));
        match parts {
            Some((Ok(first), Ok(last), Ok(shorter))) => Ok(Self { first, last, shorter }),
            _ => Err(LayoutError {
                key: "layer_split",
                value: text.to_owned(),
                limit: "`even`, `best`, or FIRST:LAST (layers of the first and last chunk), optionally @N (inner \
                    chunks before those with one layer more)"
                    .to_owned(),
                cure: "use a value such as 7:8 or 7:8@2".to_owned(),
            }),
        }
    }
}

/// Returns the split of `layers` into `chunks` with these ends; `None` if it does not exist.
fn split_by_ends(layers: u64, chunks: u64, ends: LayerEnds) -> Option<ChunkSplit> {
    let (first, last, shorter) = (u64::from(ends.first), u64::from(ends.last), u64::from(ends.shorter));
    let rest = layers.checked_sub(first.checked_add(last)?)?;
    let of_two = ChunkSplit { chunks, first, inner: first.max(last), last, ..ChunkSplit::default() };
    match chunks {
        0 | 1 => None,
        2 => (rest == 0 && shorter == 0).then_some(of_two),
        // Every inner chunk must have a layer, unless there are too few layers for that.
        _ => InnerChunks::new(chunks - 2, rest, shorter)
            .filter(|between| between.inner > 0 || chunks > layers + 2)
            .map(|between| between.with_ends(first, last)),
    }
}

/// The distribution of layers over the inner chunks of a pipeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InnerChunks {
    /// Number of inner chunks; 0 in a pipeline of two chunks.
    pub chunks: u64,
    /// Layers of each inner chunk, except the longer ones.
    pub inner: u64,
    /// Number of inner chunks with one more layer.
    pub longer: u64,
    /// Number of inner chunks before the longer ones.
    pub shorter: u64,
}

impl InnerChunks {
    fn new(chunks: u64, layers: u64, shorter: u64) -> Option<Self> {
        let (inner, longer) = (layers / chunks, layers % chunks);
        let most = if longer > 0 { chunks - longer } else { 0 };
        (shorter <= most).then_some(Self { chunks, inner, longer, shorter })
    }

    /// Returns the total number of layers in the inner chunks.
    #[must_use]
    pub fn layer_count(&self) -> u64 {
        self.chunks * self.inner + self.longer
    }

    /// Returns the split with these inner chunks and ends.
    #[must_use]
    pub fn with_ends(&self, first: u64, last: u64) -> ChunkSplit {
        let inner = if self.chunks == 0 { first.max(last) } else { self.inner };
        let longer_from = if self.longer > 0 { 1 + self.shorter } else { 0 };
        ChunkSplit { chunks: self.chunks + 2, first, inner, last, longer: self.longer, longer_from }
    }
}

/// Returns the most layers that the last chunk can hold if the first holds `first` and each inner chunk one; `None` if
/// there are too few layers or chunks.
fn largest_last_chunk(layers: u64, chunks: u64, first: u64) -> Option<u64> {
    layers.checked_sub(first)?.checked_sub(chunks.checked_sub(2)?)
}

impl Layout {
    /// Returns the split of a layout that states its ends.
    ///
    /// # Errors
    /// Ends that fit no split: without a pipeline, with too many or too few layers, or with the longer chunks out of
    /// range. The message names the nearest valid ends.
    pub(crate) fn stated_split(&self, layers: u64, ends: LayerEnds) -> Result<ChunkSplit, LayoutError> {
        let chunks = self.chunk_count();
        self.split_with_ends(layers, ends).ok_or_else(|| {
            let held = u64::from(ends.first) + u64::from(ends.last);
            let alone = self.split_with_ends(layers, LayerEnds { shorter: 0, ..ends });
            let limit = match chunks {
                0 | 1 => "left out without a pipeline".to_owned(),
                _ if held > layers => format!("at most the {layers} layers in the first and the last chunk together"),
                2 if alone.is_none() => format!("such that the two chunks hold the {layers} layers"),
                _ if alone.is_some() => format!("such that the longer chunks are among the {} inner ones", chunks - 2),
                _ => format!("such that each of the {} inner chunks has one of the {layers} layers", chunks - 2),
            };
            let near: Vec<String> = self.nearest_ends(layers, ends).iter().map(ToString::to_string).collect();
            let cure = match (chunks, near.is_empty()) {
                (0 | 1, _) => "leave it out, or use pp of at least 2".to_owned(),
                (_, true) => format!("use at most {} chunks", layers + 2),
                _ => format!("use {}", near.join(" or ")),
            };
            LayoutError { key: "layer_split", value: ends.to_string(), limit, cure }
        })
    }

    /// Returns the split with these ends; `None` if it does not exist. Chunks without layers are refused with virtual
    /// stages, where they would have no use.
    fn split_with_ends(&self, layers: u64, ends: LayerEnds) -> Option<ChunkSplit> {
        let chunks = self.chunk_count();
        split_by_ends(layers, chunks, ends).filter(|_| self.virtual_stages == 1 || chunks <= layers + 2)
    }

    /// Returns the valid ends nearest to `ends`. If only the place of the longer chunks is invalid, they come as late
    /// as possible. Otherwise it keeps the first chunk if it can. Otherwise it returns the two ends that differ in the
    /// fewest layers; ties go to the nearer last chunk.
    fn nearest_ends(&self, layers: u64, ends: LayerEnds) -> Vec<LayerEnds> {
        let chunks = self.chunk_count();
        let alone = LayerEnds { shorter: 0, ..ends };
        if let Some(split) = self.split_with_ends(layers, alone) {
            let most = if split.longer > 0 { chunks - 2 - split.longer } else { 0 };
            return vec![LayerEnds { shorter: u32::try_from(most).unwrap_or(u32::MAX), ..ends }];
        }
        let beside = |first: u64| {
            let last = largest_last_chunk(layers, chunks, first)?;
            let last = if chunks > 2 { last.min(ends.last.into()) } else { last };
            Some(LayerEnds { first: u32::try_from(first).ok()?, last: u32::try_from(last).ok()?, shorter: 0 })
        };
        if let Some(near) = beside(ends.first.into()) {
            return vec![near];
        }
        let mut near: Vec<LayerEnds> = (0..=layers).filter_map(beside).collect();
        near.sort_by_key(|near| {
            let last = near.last.abs_diff(ends.last);
            (u64::from(near.first.abs_diff(ends.first)) + u64::from(last), last)
        });
        near.truncate(2);
        near
    }

    /// Returns every way to give each inner chunk at least one layer: all equal, or some neighbouring chunks one more.
    /// The iterator is empty without a pipeline.
    pub fn inner_chunk_choices(&self, layers: u64) -> impl Iterator<Item = InnerChunks> + use<> {
        let chunks = self.chunk_count().saturating_sub(2);
        let rests = match self.chunk_count() {
            0 | 1 => 1..1,
            2 => 0..1,
            _ => chunks..layers + 1,
        };
        rests.flat_map(move |rest| {
            let (inner, longer) = (rest.checked_div(chunks).unwrap_or(0), rest.checked_rem(chunks).unwrap_or(0));
            let places = if longer > 0 { chunks - longer } else { 0 };
            (0..=places).map(move |shorter| InnerChunks { chunks, inner, longer, shorter })
        })
    }

    /// Iterates over the splits that give each inner chunk at least one layer, for every choice of first and last
    /// chunk.
    pub fn chunk_splits(&self, layers: u64) -> impl Iterator<Item = ChunkSplit> + use<> {
        self.inner_chunk_choices(layers).flat_map(move |between| {
            let ends = layers - between.layer_count();
            (0..=ends).map(move |first| between.with_ends(first, ends - first))
        })
    }

    /// Returns the number of [`Layout::chunk_splits`].
    #[must_use]
    pub fn count_chunk_splits(&self, layers: u64) -> u64 {
        let between = self.chunk_count().saturating_sub(2);
        match self.chunk_count() {
            0 | 1 => 0,
            2 => layers + 1,
            _ => (between..=layers)
                .map(|rest| {
                    let longer = rest % between;
                    let places = if longer > 0 { between - longer + 1 } else { 1 };
                    (layers - rest + 1) * places
                })
                .sum(),
        }
    }

    /// Returns the ends of a split whose longest chunk is as short as possible. It prefers equal inner chunks.
    /// Otherwise the longer ones come last, where 1F1B keeps activations of the fewest micro-batches. Returns `None`
    /// without a pipeline, or with fewer layers than inner chunks.
    #[must_use]
    pub fn balanced_ends(&self, layers: u64) -> Option<LayerEnds> {
        let chunks = self.chunk_count();
        let between = chunks.checked_sub(2)?;
        if layers < between {
            return None;
        }
        let most = layers.div_ceil(chunks);
        let small = |layers: u64| u32::try_from(layers).ok();
        if let Some(ends) = layers.checked_sub(between * most) {
            return Some(LayerEnds { first: small(ends / 2)?, last: small(ends - ends / 2)?, shorter: 0 });
        }
        // Even the inner chunks cannot all have the longest length, so both ends get one layer fewer.
        let end = small(most - 1)?;
        Some(LayerEnds { first: end, last: end, shorter: small(between - (layers - chunks * (most - 1)))? })
    }
}

impl ChunkSplit {
    /// Returns the ends of the split; `None` for a single chunk, or if a number exceeds 32 bits.
    #[must_use]
    pub fn layer_ends(&self) -> Option<LayerEnds> {
        let small = |layers: u64| u32::try_from(layers).ok();
        (self.chunks > 1).then_some(())?;
        let shorter = self.longer_from.saturating_sub(1);
        Some(LayerEnds { first: small(self.first)?, last: small(self.last)?, shorter: small(shorter)? })
    }
}

/// Prints the layers of the chunks, and joins equal inner neighbours: `8+9x2+6`.
impl fmt::Display for ChunkSplit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut from = 0;
        while from < self.chunks {
            let layers = self.layers_of_chunk(from);
            // The first and the last chunk are always printed separately.
            let end = from == 0 || from + 1 == self.chunks;
            let alike = (from + 1..self.chunks.saturating_sub(1))
                .take_while(|next| !end && self.layers_of_chunk(*next) == layers)
                .count() as u64;
            f.write_str(if from > 0 { "+" } else { "" })?;
            write!(f, "{layers}")?;
            if alike > 0 {
                write!(f, "x{}", alike + 1)?;
            }
            from += alike + 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn layout(pipeline: u32, virtual_stages: u32, ends: Option<(u32, u32)>) -> Layout {
        let ends = ends.map(|(first, last)| LayerEnds { first, last, shorter: 0 });
        Layout { pipeline, virtual_stages, ends, ..Layout::default() }
    }

    /// Returns all lists of `p` numbers whose sum is `n`.
    fn compositions(n: u64, p: u64) -> Vec<Vec<u64>> {
        if p == 1 {
            return vec![vec![n]];
        }
        let longer = |last: u64| move |list: Vec<u64>| list.into_iter().chain([last]).collect();
        (0..=n).flat_map(|last| compositions(n - last, p - 1).into_iter().map(longer(last))).collect()
    }

    /// Returns whether the inner chunks are equal, except for one contiguous run that holds one layer more.
    fn has_one_row(list: &[u64]) -> bool {
        let between = &list[1..list.len() - 1];
        let least = between.iter().copied().min().unwrap_or(1);
        let more: Vec<u64> = between.iter().map(|n| n - least).collect();
        let rises = more.iter().enumerate().filter(|(i, n)| **n > 0 && (*i == 0 || more[i - 1] == 0)).count();
        least > 0 && more.iter().all(|n| *n < 2) && rises < 2
    }

    #[test]
    fn splits_are_all_lists_whose_chunks_between_differ_by_a_layer_in_one_row() {
        for (pipeline, virtual_stages, layers) in
            [(2, 1, 7), (3, 1, 9), (4, 1, 10), (6, 1, 6), (2, 2, 11), (3, 2, 11), (9, 1, 7)]
        {
            let layout = layout(pipeline, virtual_stages, None);
            let chunks = layout.chunk_count();
            let mut found: Vec<Vec<u64>> = Vec::new();
            for split in layout.chunk_splits(layers) {
                found.push((0..split.chunks).map(|c| split.layers_of_chunk(c)).collect());
                let stated = Layout { ends: split.layer_ends(), ..layout };
                assert_eq!(stated.chunk_split(layers).unwrap(), split);
                assert_eq!(stated.ends.unwrap().to_string().parse::<LayerEnds>().ok(), split.layer_ends());
            }
            let mut expected = compositions(layers, chunks);
            expected.retain(|list| has_one_row(list));
            assert_eq!(found.len() as u64, layout.count_chunk_splits(layers));
            found.sort();
            expected.sort();
            assert_eq!(found, expected);
        }
    }

    #[test]
    fn balanced_ends_leave_no_shorter_longest_chunk() {
        for (chunks, layers) in (2..13).flat_map(|chunks| (1..40).map(move |layers| (chunks, layers))) {
            let layout = layout(chunks, 1, None);
            let longest = |s: &ChunkSplit| (0..s.chunks).map(|c| s.layers_of_chunk(c)).max();
            let least = layout.chunk_splits(layers).map(|s| longest(&s)).min();
            let balanced = layout.balanced_ends(layers).map(|ends| split_by_ends(layers, chunks.into(), ends).unwrap());
            assert_eq!(balanced.map(|s| longest(&s)), least, "{layers} layers, {chunks} chunks");
        }
    }

    /// Compares the nearest ends with an exhaustive search.
    #[test]
    fn the_nearest_ends_are_named() {
        for (pipeline, layers) in [(2, 7), (3, 9), (4, 10), (5, 13), (9, 7), (10, 7)] {
            let layout = layout(pipeline, 1, None);
            let allowed: Vec<LayerEnds> = layout
                .chunk_splits(layers)
                .filter_map(|split| split.layer_ends())
                .filter(|ends| ends.shorter == 0)
                .collect();
            for (first, last) in (0..15).flat_map(|first| (0..15).map(move |last| (first, last))) {
                let ends = LayerEnds { first, last, shorter: 0 };
                if (Layout { ends: Some(ends), ..layout }).chunk_split(layers).is_ok() {
                    assert!(allowed.contains(&ends) || u64::from(pipeline) > layers + 2);
                    continue;
                }
                let near = layout.nearest_ends(layers, ends);
                assert!(
                    near.iter().all(|near| allowed.contains(near)) && near.is_empty() == allowed.is_empty(),
                    "{ends}: {near:?}"
                );
                let away = |near: &LayerEnds| near.first.abs_diff(first) + near.last.abs_diff(last);
                let beside: Vec<&LayerEnds> = allowed.iter().filter(|near| near.first == first).collect();
                if beside.is_empty() {
                    assert_eq!(near.first().map(away), allowed.iter().map(away).min(), "{ends}: {near:?}");
                } else {
                    let below = beside.iter().filter(|near| near.last < last).max();
                    let above = beside.iter().filter(|near| near.last > last).min();
                    let expected: Vec<LayerEnds> = below.into_iter().chain(above).map(|near| **near).collect();
                    assert_eq!(near, expected, "{ends}");
                }
            }
        }
    }

    #[test]
    fn ends_are_read_and_written() {
        let split = layout(4, 1, Some((8, 6))).chunk_split(32).unwrap();
        assert_eq!(
            (split.to_string(), split.layer_ends().unwrap().to_string()),
            ("8+9x2+6".to_owned(), "8:6".to_owned())
        );
        assert_eq!("8:6".parse::<LayerEnds>().unwrap(), LayerEnds { first: 8, last: 6, shorter: 0 });
        assert_eq!("8:6@2".parse::<LayerEnds>().unwrap(), LayerEnds { first: 8, last: 6, shorter: 2 });
        assert!("8,6".parse::<LayerEnds>().unwrap_err().to_string().contains("use a value such as 7:8"));
        assert!("8:6@".parse::<LayerEnds>().unwrap_err().to_string().contains("layer_split = 8:6@: must be"));
        assert_eq!(layout(20, 1, None).balanced_ends(96), Some(LayerEnds { first: 3, last: 3, shorter: 0 }));
        assert_eq!(layout(16, 1, None).balanced_ends(40), Some(LayerEnds { first: 2, last: 2, shorter: 6 }));
        let thin = |shorter| Layout { ends: Some(LayerEnds { first: 2, last: 1, shorter }), ..layout(8, 1, None) };
        let written = |l: Layout| l.chunk_split(26).unwrap().to_string();
        assert_eq!([0, 1].map(|n| written(thin(n))), ["2+4x5+3+1", "2+3+4x5+1"]);
        assert_eq!(
            thin(7).chunk_split(26).unwrap_err().to_string(),
            "layer_split = 2:1@7: must be such that the longer chunks are among the 6 inner ones; use 2:1@1"
        );
        let fault = |l: Layout| l.chunk_split(32).unwrap_err().to_string();
        assert_eq!(
            fault(layout(4, 1, Some((8, 23)))),
            "layer_split = 8:23: must be such that each of the 2 inner chunks has one of the 32 layers; use 8:22"
        );
        assert!(fault(layout(2, 1, Some((8, 7)))).contains("hold the 32 layers; use 8:24"));
        assert!(fault(layout(1, 1, Some((8, 7)))).contains("left out without a pipeline"));
        assert_eq!(
            fault(layout(4, 1, Some((99, 1)))),
            "layer_split = 99:1: must be at most the 32 layers in the first and the last chunk together; use 29:1 or \
             30:0"
        );
        // No split with this first chunk gives every inner chunk a layer.
        assert!(fault(layout(4, 1, Some((31, 0)))).ends_with("has one of the 32 layers; use 30:0 or 29:0"));
        assert!(fault(layout(2, 1, Some((u32::MAX, u32::MAX)))).contains("together; use "));
        // With more stages than layers plus 2, some inner stages hold no layers.
        let written = |l: Layout| l.chunk_split(32).unwrap().to_string();
        assert_eq!(written(layout(40, 1, Some((1, 1)))), "1+1x30+0x8+1");
        assert_eq!(written(layout(40, 1, Some((0, 0)))), "0+1x32+0x6+0");
        assert!(fault(layout(40, 1, Some((30, 3)))).ends_with("together; use at most 34 chunks"));
        // With virtual stages, chunks without layers are refused.
        assert!(fault(layout(20, 2, Some((1, 1)))).ends_with("use at most 34 chunks"));
    }
}
