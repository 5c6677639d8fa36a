//! Settings of a serving pass within a lowering: cached tokens, and the distribution of experts.

use serde::{Deserialize, Serialize};
use sim::kernel::DataType;

/// Settings of a serving pass within a lowering.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ServingPass {
    /// Tokens of every sequence that are in the cache before the pass.
    pub cached: u64,
    /// Number of parts of a tensor-parallel group over which the experts are distributed. Every device holds all tokens
    /// and computes its own experts. The group's all-reduce sums the results; no token is sent.
    pub expert_ranks: u32,
    /// Operand type of experts' products; `None` means that of the other layers' products.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expert_product: Option<DataType>,
    /// True if the new tokens are drafts that the pass verifies. Attention reads the cache as in decoding, and the head
    /// computes logits for every token.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub verifies: bool,
}

impl ServingPass {
    /// Returns the mean number of cached keys that `new` queries see, rounded up. Without a window, each query sees all
    /// cached keys. With a window of w keys, query i (from 0) sees at most the last w - 1 - i of them.
    pub(crate) fn mean_cached_keys(&self, new: u64, window: Option<u64>) -> u64 {
        let Some(window) = window else { return self.cached };
        let reach = window.saturating_sub(1);
        let full = (reach + 1).saturating_sub(self.cached).min(new);
        let some = reach.min(new).saturating_sub(full);
        // Queries full, full + 1, ... see reach - full, reach - full - 1, ... keys.
        let first = u128::from(reach.saturating_sub(full));
        let partly = u128::from(some) * (2 * first + 1 - u128::from(some).min(2 * first + 1)) / 2;
        let all = u128::from(full) * u128::from(self.cached) + partly;
        u64::try_from(all.div_ceil(u128::from(new.max(1)))).unwrap_or(u64::MAX)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    fn pass_after(cached: u64) -> ServingPass {
        ServingPass { cached, expert_ranks: 1, expert_product: None, verifies: false }
    }

    #[test]
    fn queries_in_a_window_see_fewer_cached_keys() {
        let mean = |cached: u64, new: u64, window: u64| {
            let seen: u64 = (0..new).map(|i| cached.min((window - 1).saturating_sub(i))).sum();
            seen.div_ceil(new)
        };
        for cached in [0, 1, 5, 100, 1000] {
            for new in [1, 2, 7, 64, 300] {
                for window in [1, 2, 8, 128, 4096] {
                    let pass = pass_after(cached);
                    assert_eq!(
                        pass.mean_cached_keys(new, Some(window)),
                        mean(cached, new, window),
                        "{cached} {new} {window}"
                    );
                }
                assert_eq!(pass_after(cached).mean_cached_keys(new, None), cached);
            }
        }
    }
}
