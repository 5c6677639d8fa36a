//! The times at which the gradients of a device are reduced.

use super::{GradientReduction, Pipeline};

/// Returns the reductions of a device's `stages` as (stage, start, end), in the order in which the gradients finish.
/// Stages without reduction time are omitted. `gradients` holds the start and end of each stage's last pass that
/// produces gradients.
pub(super) fn times_of_reductions(
    pipeline: &Pipeline,
    stages: &[usize],
    passes_end: f64,
    gradients: &[(f64, f64)],
) -> Vec<(usize, f64, f64)> {
    let mut stages: Vec<usize> = stages.iter().copied().filter(|&s| pipeline.stages[s].reduction.0 > 0.0).collect();
    stages.sort_by(|&a, &b| gradients[a].1.total_cmp(&gradients[b].1));
    let mut network = 0.0_f64;
    let mut reduced = Vec::with_capacity(stages.len());
    for s in stages {
        let duration = pipeline.stages[s].reduction.0;
        let (start, end) = match pipeline.reduction {
            GradientReduction::AfterBackward => {
                let start = network.max(passes_end);
                (start, start + duration)
            }
            GradientReduction::Overlapped { buckets } => {
                let parts = f64::from(buckets);
                let (produce_start, produce_end) = gradients[s];
                let ready = |i: u32| produce_start + (produce_end - produce_start) * f64::from(i) / parts;
                let first = network.max(ready(1));
                let last = (1..=buckets).fold(first, |now, i| now.max(ready(i)) + duration / parts);
                (first, last)
            }
        };
        reduced.push((s, start, end));
        network = end;
    }
    reduced
}
