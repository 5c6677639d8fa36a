//! Uneven splits of a model's layers: pipelines whose first and last chunk hold other numbers of layers than those between.

use crate::layout::{ChunkSplit, Layout, LayoutError};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// Layers of the first and of the last model chunk of a pipeline (of the first and the last stage, where each holds one chunk: Megatron-LM's
/// `--decoder-first-pipeline-num-layers` and `--decoder-last-pipeline-num-layers`). Every chunk between holds an equal share of the rest. An end
/// without layers holds the embedding or the head alone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct LayerEnds {
    /// Layers of the first chunk.
    pub first: u32,
    /// Layers of the last chunk.
    pub last: u32,
}

impl fmt::Display for LayerEnds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.first, self.last)
    }
}

impl FromStr for LayerEnds {
    type Err = LayoutError;

    fn from_str(text: &str) -> Result<Self, LayoutError> {
        let parts = text.split_once(':').map(|(first, last)| (first.trim().parse(), last.trim().parse()));
        match parts {
            Some((Ok(first), Ok(last))) => Ok(Self { first, last }),
            _ => Err(LayoutError {
                key: "layer_split",
                value: text.to_owned(),
                limit: "`even`, `best` alone, or layers of the first and of the last chunk as two numbers with a colon"
                    .to_owned(),
                cure: "use a value such as 7:8".to_owned(),
            }),
        }
    }
}

/// The split of `layers` into `chunks` with such ends, if there is one.
fn split(layers: u64, chunks: u64, ends: LayerEnds) -> Option<ChunkSplit> {
    let (first, last) = (u64::from(ends.first), u64::from(ends.last));
    let rest = layers.checked_sub(first + last)?;
    let inner = match chunks {
        0 | 1 => return None,
        2 if rest == 0 => first.max(last),
        2 => return None,
        _ if rest > 0 && rest.is_multiple_of(chunks - 2) => rest / (chunks - 2),
        _ => return None,
    };
    Some(ChunkSplit { chunks, first, inner, last })
}

/// The layers of the last chunk, nearest to `last` from below and from above, that a first chunk of `first` allows.
fn lasts_near(layers: u64, chunks: u64, first: u64, last: u64) -> Vec<u64> {
    let Some(left) = layers.checked_sub(first) else { return Vec::new() };
    let Some(between) = chunks.checked_sub(2) else { return Vec::new() };
    // What is allowed rises from `least` to `most` in steps of a layer for every chunk between.
    let (least, most) = match between {
        0 => (left, left),
        _ if left < between => return Vec::new(),
        _ => (left % between, left - between),
    };
    if last < least {
        return vec![least];
    }
    let below = (least + (last - least) / between.max(1) * between).min(most);
    let above = below + between.max(1);
    if above <= most { vec![below, above] } else { vec![below] }
}

impl Layout {
    /// The split of a layout that states its ends.
    pub(crate) fn ended_split(&self, layers: u64, ends: LayerEnds) -> Result<ChunkSplit, LayoutError> {
        let chunks = self.chunks();
        split(layers, chunks, ends).ok_or_else(|| {
            let held = u64::from(ends.first) + u64::from(ends.last);
            let limit = match chunks {
                0 | 1 => "left out without a pipeline".to_owned(),
                _ if held > layers => format!("at most the {layers} layers in the first and the last chunk together"),
                2 => format!("such that the two chunks hold the {layers} layers"),
                _ => format!("such that what they leave of the {layers} layers divides among the {} chunks between", chunks - 2),
            };
            let near: Vec<String> = self.near_ends(layers, ends).iter().map(ToString::to_string).collect();
            let cure = match (chunks, near.is_empty()) {
                (0 | 1, _) => "leave it out, or use pp of at least 2".to_owned(),
                (_, true) => format!("use at most {} chunks", layers + 2),
                _ => format!("use {}", near.join(" or ")),
            };
            LayoutError { key: "layer_split", value: ends.to_string(), limit, cure }
        })
    }

    /// The ends nearest to some that this layout's chunks allow: those with the same first chunk, one with fewer and one with more layers in the
    /// last; where there are none, the two that differ in fewest layers, in the first chunk before the last.
    fn near_ends(&self, layers: u64, ends: LayerEnds) -> Vec<LayerEnds> {
        let beside =
            |first: u64| lasts_near(layers, self.chunks(), first, ends.last.into()).into_iter().map(move |last| (first, last));
        let mut near: Vec<(u64, u64)> = beside(ends.first.into()).collect();
        if near.is_empty() {
            near = (0..=layers).flat_map(beside).collect();
            let away = |near: &(u64, u64)| {
                let last = near.1.abs_diff(ends.last.into());
                (near.0.abs_diff(ends.first.into()) + last, last)
            };
            near.sort_by_key(away);
            near.truncate(2);
        }
        let ends = |(first, last)| Some(LayerEnds { first: u32::try_from(first).ok()?, last: u32::try_from(last).ok()? });
        near.into_iter().filter_map(ends).collect()
    }

    /// Every split into this layout's chunks in which those between are equal and hold at least one layer: none without a pipeline.
    pub fn splits(&self, layers: u64) -> impl Iterator<Item = ChunkSplit> + use<> {
        let chunks = self.chunks();
        let between = chunks.saturating_sub(2);
        let sizes = match chunks {
            0 | 1 => 1..1,
            2 => 1..2,
            _ => 1..layers / between + 1,
        };
        sizes.flat_map(move |size| {
            let ends = layers - if chunks == 2 { 0 } else { between * size };
            (0..=ends).map(move |first| {
                let last = ends - first;
                ChunkSplit { chunks, first, inner: if chunks == 2 { first.max(last) } else { size }, last }
            })
        })
    }

    /// How many [`Layout::splits`] there are.
    #[must_use]
    pub fn split_count(&self, layers: u64) -> u64 {
        let chunks = self.chunks();
        let between = chunks.saturating_sub(2);
        match chunks {
            0 | 1 => 0,
            2 => layers + 1,
            _ => {
                let sizes = layers / between;
                sizes * (layers + 1) - between * (sizes * (sizes + 1) / 2)
            }
        }
    }

    /// Of these, the ends of the one whose longest chunk is shortest, and whose ends differ least.
    #[must_use]
    pub fn balanced_ends(&self, layers: u64) -> Option<LayerEnds> {
        let longest = |s: &ChunkSplit| (s.first.max(s.inner).max(s.last), s.first.abs_diff(s.last), s.first);
        self.splits(layers).min_by_key(longest).and_then(|s| s.ends())
    }
}

impl ChunkSplit {
    /// Its ends; `None` of one chunk.
    #[must_use]
    pub fn ends(&self) -> Option<LayerEnds> {
        let end = |layers: u64| u32::try_from(layers).ok();
        (self.chunks > 1).then_some(())?;
        Some(LayerEnds { first: end(self.first)?, last: end(self.last)? })
    }
}

/// The chunks' layers, equal neighbours together: `8+9x2+6`.
impl fmt::Display for ChunkSplit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.first)?;
        match self.chunks {
            0 | 1 => return Ok(()),
            2 => {}
            3 => write!(f, "+{}", self.inner)?,
            _ => write!(f, "+{}x{}", self.inner, self.chunks - 2)?,
        }
        write!(f, "+{}", self.last)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn layout(pipeline: u32, virtual_stages: u32, ends: Option<(u32, u32)>) -> Layout {
        let ends = ends.map(|(first, last)| LayerEnds { first, last });
        Layout { pipeline, virtual_stages, ends, ..Layout::default() }
    }

    #[test]
    fn splits_are_all_lists_with_equal_chunks_between() {
        for (pipeline, virtual_stages, layers) in [(2, 1, 7), (3, 1, 9), (4, 1, 10), (6, 1, 6), (2, 2, 11), (3, 2, 13), (9, 1, 7)]
        {
            let layout = layout(pipeline, virtual_stages, None);
            let found: Vec<ChunkSplit> = layout.splits(layers).collect();
            assert_eq!(found.len() as u64, layout.split_count(layers));
            let chunks = layout.chunks();
            let mut expected = 0;
            for first in 0..=layers {
                for last in 0..=layers - first {
                    let rest = layers - first - last;
                    let equal = if chunks == 2 { rest == 0 } else { rest > 0 && rest % (chunks - 2) == 0 };
                    expected += usize::from(equal);
                }
            }
            assert_eq!(found.len(), expected);
            for split in found {
                let list: Vec<u64> = (0..split.chunks).map(|c| split.layers(c)).collect();
                assert_eq!((list.len() as u64, list.iter().sum::<u64>()), (chunks, layers), "{split}");
                let stated = Layout { ends: split.ends(), ..layout };
                assert_eq!(stated.chunk_split(layers).unwrap(), split);
            }
        }
    }

    /// The nearest ends, found by trying all.
    #[test]
    fn the_nearest_ends_are_named() {
        for (pipeline, layers) in [(2, 7), (3, 9), (4, 10), (5, 13), (9, 7), (10, 7)] {
            let layout = layout(pipeline, 1, None);
            let allowed: Vec<LayerEnds> = layout.splits(layers).filter_map(|split| split.ends()).collect();
            for (first, last) in (0..15).flat_map(|first| (0..15).map(move |last| (first, last))) {
                let ends = LayerEnds { first, last };
                if allowed.contains(&ends) {
                    continue;
                }
                let near = layout.near_ends(layers, ends);
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
        assert_eq!((split.to_string(), split.ends().unwrap().to_string()), ("8+9x2+6".to_owned(), "8:6".to_owned()));
        assert_eq!("8:6".parse::<LayerEnds>().unwrap(), LayerEnds { first: 8, last: 6 });
        assert!("8,6".parse::<LayerEnds>().unwrap_err().to_string().contains("use a value such as 7:8"));
        assert_eq!(layout(20, 1, None).balanced_ends(96), Some(LayerEnds { first: 3, last: 3 }));
        let fault = |l: Layout| l.chunk_split(32).unwrap_err().to_string();
        assert_eq!(
            fault(layout(4, 1, Some((8, 7)))),
            "layer_split = 8:7: must be such that what they leave of the 32 layers divides among the 2 chunks between; use 8:6 or 8:8"
        );
        assert!(fault(layout(2, 1, Some((8, 7)))).contains("hold the 32 layers; use 8:24"));
        assert!(fault(layout(1, 1, Some((8, 7)))).contains("left out without a pipeline"));
        assert_eq!(
            fault(layout(4, 1, Some((99, 1)))),
            "layer_split = 99:1: must be at most the 32 layers in the first and the last chunk together; use 29:1 or 30:0"
        );
        // Nothing that begins so leaves the chunks between a layer each.
        assert!(fault(layout(4, 1, Some((31, 0)))).ends_with("divides among the 2 chunks between; use 30:0 or 28:0"));
        assert!(fault(layout(2, 1, Some((u32::MAX, u32::MAX)))).contains("together; use "));
        assert!(fault(layout(40, 1, Some((1, 1)))).ends_with("among the 38 chunks between; use at most 34 chunks"));
    }
}
