//! The data-parallel ranks that shard parameters under ZeRO. Both the time and the memory of sharding use these
//! functions.

use crate::SoftwareStack;
use sim::kernel::RankGroup;
use workloads::Layout;

/// Returns two groups of ranks: those with the same dense parameters (layers and ends), and those with the same
/// experts. Experts are spread over the expert-parallel ranks. Context-parallel ranks hold the same weights as
/// data-parallel ones.
#[must_use]
pub(crate) fn parameter_holders(layout: &Layout) -> [RankGroup; 2] {
    let (all, e) = (layout.data.saturating_mul(layout.context), layout.expert.max(1));
    let stride = layout.data_stride();
    if let Some(width) = layout.expert_tensor {
        let inner = width.saturating_mul(e);
        let copies = u32::try_from(layout.ranks_per_stage() / u64::from(inner.max(1))).unwrap_or(u32::MAX);
        return [RankGroup { ranks: all, stride }, RankGroup { ranks: copies.max(1), stride: inner }];
    }
    [RankGroup { ranks: all, stride }, RankGroup { ranks: (all / e).max(1), stride: stride.saturating_mul(e) }]
}

/// Returns the number of neighbouring devices that together hold one copy of the sharded state, under hybrid sharding:
/// as the layout states, or `fast_domain` devices if the stack shards only inside fast domains. `None` if sharding is
/// not hybrid.
pub(crate) fn copy_devices(stack: &SoftwareStack, fast_domain: u32, layout: &Layout) -> Option<u32> {
    let stated = layout.shards.map(|shards| shards.saturating_mul(layout.data_stride()));
    stated.or_else(|| stack.kernels.shard_within_domain.then_some(fast_domain))
}

/// Returns the number of data-parallel ranks that together hold one copy of the sharded state, under hybrid sharding:
/// as the layout states, or the ranks of a fast domain if the stack shards only inside fast domains. `None` if sharding
/// is not hybrid.
#[must_use]
pub fn sharing_domain(stack: &SoftwareStack, fast_domain: u32, layout: &Layout) -> Option<u32> {
    copy_devices(stack, fast_domain, layout).map(|devices| ranks_inside(devices, layout.data_stride()))
}

/// Returns the number of copies of the layers' sharded state; 1 unless sharding is hybrid.
#[must_use]
pub fn state_copies(stack: &SoftwareStack, fast_domain: u32, layout: &Layout) -> u32 {
    let [holders, _] = parameter_holders(layout);
    holders.ranks / shard_groups(holders.ranks, sharing_domain(stack, fast_domain, layout))
}

/// Returns the number of a group's ranks among `devices` neighbouring devices, at least 1. `stride` is the distance
/// between its ranks.
pub(crate) fn ranks_inside(devices: u32, stride: u32) -> u32 {
    (devices / stride.max(1)).max(1)
}

/// Returns the number of shards among `ranks` ranks that hold the same parameters. Without a smaller domain, it is
/// `ranks`. Otherwise it is the largest divisor of `ranks` that is at most `domain`, so that every domain holds a copy.
pub(crate) fn shard_groups(ranks: u32, domain: Option<u32>) -> u32 {
    match domain {
        Some(inside) if inside < ranks => {
            (1..=inside.max(1)).rev().find(|shards| ranks.is_multiple_of(*shards)).unwrap_or(1)
        }
        _ => ranks.max(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_domain_holds_a_copy() {
        assert_eq!(
            [(16, Some(8)), (12, Some(8)), (6, Some(8)), (7, Some(4)), (8, None), (0, None)]
                .map(|(r, d)| shard_groups(r, d)),
            [8, 6, 6, 1, 8, 1]
        );
    }

    #[test]
    fn experts_are_held_by_fewer() {
        let layout = Layout { tensor: 2, data: 8, context: 2, expert: 4, ..Layout::default() };
        assert_eq!(parameter_holders(&layout), [RankGroup { ranks: 16, stride: 2 }, RankGroup { ranks: 4, stride: 8 }]);
    }

    /// Expert-tensor, expert-parallel and expert-data-parallel ranks make up a stage, for every width.
    #[test]
    fn experts_of_another_width_are_held_by_what_is_left() {
        let layout = Layout { tensor: 4, data: 8, context: 2, expert: 4, ..Layout::default() };
        for width in [1, 2, 4, 8, 16] {
            let layout = layout.with_expert_tensor_degree(width);
            let [dense, experts] = parameter_holders(&layout);
            assert_eq!(dense, RankGroup { ranks: 16, stride: 4 });
            assert_eq!(experts, RankGroup { ranks: 64 / (4 * width), stride: 4 * width }, "{width}");
        }
        assert_eq!(layout.with_expert_tensor_degree(4), layout, "what follows anyway");
    }
}
