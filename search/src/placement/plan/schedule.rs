//! The pipeline schedule's closed form: how long a step takes and how many micro-batches a stage keeps.

/// Micro-batches stage `stage` of `stages` keeps alive under 1F1B with `micro_batches` of them: it starts as many forward passes as there
/// are stages from it to the end before its first backward pass.
#[must_use]
pub fn in_flight(micro_batches: u64, stages: usize, stage: usize) -> u64 {
    micro_batches.min((stages - stage.min(stages)) as u64)
}

/// Seconds of one training step under 1F1B.
///
/// The first micro-batch visits every stage (`sum`), the slowest stage (`bottleneck`) then works through the other `micro_batches - 1`
/// without a pause, and the step ends with the slowest stage's gradient reduction and optimiser (`tail`).
///
/// The search relies on this growing with each of its arguments and on nothing else of a stage entering it.
#[must_use]
pub fn step_seconds(sum: f64, bottleneck: f64, micro_batches: u64, tail: f64) -> f64 {
    sum + (micro_batches - 1) as f64 * bottleneck + tail
}
