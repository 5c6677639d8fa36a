//! How a plan's schedule runs on its layout.

use sim::pipeline::PipelineSchedule;
use workloads::Layout;

/// The schedule that runs: 1F1B over several chunks per stage is interleaved; without a pipeline all schedules are the same.
#[must_use]
pub fn effective_schedule(layout: &Layout, schedule: PipelineSchedule) -> PipelineSchedule {
    match (schedule, layout.virtual_stages) {
        _ if layout.pipeline == 1 => PipelineSchedule::OneForwardOneBackward,
        (PipelineSchedule::OneForwardOneBackward, chunks) if chunks > 1 => PipelineSchedule::Interleaved { chunks },
        (schedule, _) => schedule,
    }
}

/// Micro-batches that a stage passes through one chunk before it turns to the next: the stages' number, or the least above it of
/// which `m` is a multiple or leaves a rest of at least `p` (Megatron-LM's rule for `microbatch_group_size_per_vp_stage`); `p` where
/// there is none.
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
