//! Splits of layers that are stated chunk by chunk, and the split that follows from layer costs.

use super::LayerEnds;

impl LayerEnds {
    /// Returns the ends of the split with these layers in each chunk. Returns `None` for a split that ends cannot
    /// express, or for fewer than two chunks.
    #[must_use]
    pub fn of_chunks(chunks: &[u64]) -> Option<Self> {
        let [first, between @ .., last] = chunks else { return None };
        let least = between.iter().min().copied().unwrap_or(0);
        let longer = between.iter().filter(|layers| **layers > least).count();
        let start = between.iter().position(|layers| *layers > least).unwrap_or(0);
        let neighbours = between.iter().skip(start).take(longer).all(|layers| *layers == least + 1);
        let small = |layers: u64| u32::try_from(layers).ok();
        neighbours.then_some(())?;
        Some(Self { first: small(*first)?, last: small(*last)?, shorter: small(start as u64)? })
    }
}

/// Returns the layers of each stage. A stage takes layers until the running cost reaches its cumulative share of the
/// total. The output layer has a cost, the embedding has none. On a tie the stage ends, as in most measured runs.
/// Source: nanotron, `models/base.py` `build_model`.
#[must_use]
pub fn split_by_cost(layers: u64, layer_cost: u64, head_cost: u64, stages: u32) -> Vec<u64> {
    let mut held = vec![0_u64; stages.max(1) as usize];
    let all = u128::from(layer_cost) * u128::from(layers) + u128::from(head_cost);
    let (mut stage, mut sum) = (0, 0_u128);
    for _ in 0..layers {
        held[stage] += 1;
        sum += u128::from(layer_cost);
        if sum * held.len() as u128 >= all * (stage as u128 + 1) {
            stage = (stage + 1).min(held.len() - 1);
        }
    }
    held
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_have_ends() {
        let of = |chunks: &[u64]| LayerEnds::of_chunks(chunks).map(|ends| ends.to_string());
        assert_eq!(of(&[8, 8, 8, 8]).as_deref(), Some("8:8"));
        assert_eq!(of(&[8, 8, 9, 7]).as_deref(), Some("8:7@1"));
        assert_eq!(of(&[3, 5, 4, 2]).as_deref(), Some("3:2"));
        assert_eq!(of(&[4, 6]).as_deref(), Some("4:6"));
        assert_eq!(of(&[4, 5, 4, 5, 4]), None);
        assert_eq!(of(&[4, 5, 7, 4]), None);
    }

    #[test]
    fn the_stage_with_the_output_layer_holds_fewer_layers() {
        assert_eq!(split_by_cost(12, 10, 0, 4), [3, 3, 3, 3]);
        assert_eq!(split_by_cost(12, 10, 40, 4), [4, 4, 4, 0]);
        assert_eq!(split_by_cost(12, 10, 15, 4), [4, 3, 4, 1]);
        assert_eq!(split_by_cost(5, 10, 3, 1), [5]);
    }
}
