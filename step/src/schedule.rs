//! The effective schedule of a plan on its layout.

use sim::pipeline::PipelineSchedule;
use workloads::Layout;

/// Returns the effective schedule. 1F1B with several chunks per stage becomes interleaved 1F1B. Without a pipeline,
/// every schedule becomes 1F1B.
#[must_use]
pub fn effective_schedule(layout: &Layout, schedule: PipelineSchedule) -> PipelineSchedule {
    match (schedule, layout.virtual_stages) {
        _ if layout.pipeline == 1 => PipelineSchedule::OneForwardOneBackward,
        (PipelineSchedule::OneForwardOneBackward, chunks) if chunks > 1 => PipelineSchedule::Interleaved { chunks },
        (schedule, _) => schedule,
    }
}

/// Returns the number of micro-batches that a stage passes through one chunk before it turns to the next chunk. With
/// `p` stages and `m` micro-batches, this is the smallest number from `p` to `m` that divides `m` or leaves a remainder
/// of at least `p`. If there is none, the function returns `p`. Megatron-LM has this rule for
/// `microbatch_group_size_per_vp_stage`.
#[must_use]
pub fn interleaving_group(p: u32, m: u32) -> u32 {
    let p = p.max(1);
    (p..=m).find(|group| m.is_multiple_of(*group) || m % group >= p).unwrap_or(p)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn interleaving_groups_are_megatrons() {
        assert_eq!([(4, 8), (4, 4), (4, 5), (4, 14), (4, 3)].map(|(p, m)| interleaving_group(p, m)), [4, 4, 5, 5, 4]);
    }
}
