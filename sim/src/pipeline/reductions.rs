//! The times at which the gradients of a device are reduced.

use super::{GradientReduction, Pipeline};

/// Seconds at which a pass starts and ends.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PassSpan {
    pub(super) start: f64,
    pub(super) end: f64,
}

/// The reduction of a stage's gradients.
#[derive(Debug, Clone, Copy)]
pub(super) struct StageReduction {
    pub(super) stage: usize,
    pub(super) span: PassSpan,
}

/// Returns the reductions of a device's `stages`, in the order in which the gradients finish. Stages without reduction
/// time are omitted. `gradients` holds each stage's last pass that produces gradients.
pub(super) fn times_of_reductions(
    pipeline: &Pipeline,
    stages: &[usize],
    passes_end: f64,
    gradients: &[PassSpan],
) -> Vec<StageReduction> {
    let mut stages: Vec<usize> = stages.iter().copied().filter(|&s| pipeline.stages[s].reduction.0 > 0.0).collect();
    stages.sort_by(|&a, &b| gradients[a].end.total_cmp(&gradients[b].end));
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
                let produced = gradients[s];
                let ready = |i: u32| produced.start + (produced.end - produced.start) * f64::from(i) / parts;
                let first = network.max(ready(1));
                let last = (1..=buckets).fold(first, |now, i| now.max(ready(i)) + duration / parts);
                (first, last)
            }
        };
        reduced.push(StageReduction { stage: s, span: PassSpan { start, end } });
        network = end;
    }
    reduced
}
