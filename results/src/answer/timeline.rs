//! The timeline of a training step by stage, as data. `docs/json.md` describes it.

use serde::{Deserialize, Serialize};
use sim::pipeline::{DeviceReport, Timeline};

/// The timeline of one stage's device over a step. Times are in seconds from the start of the step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimelineRow {
    /// The stage, from 0.
    pub stage: u32,
    /// Time in forward and backward passes, with their recomputation and communication.
    pub busy_s: f64,
    /// Time without a pass, until the pipeline's last pass on any stage ends.
    pub bubble_s: f64,
    /// The part of the bubble spent waiting for a message whose sender had finished.
    pub exposed_send_s: f64,
    /// Time from the stage's last pass to the end of its data-parallel communication.
    pub exposed_reduction_s: f64,
    /// End of the stage's last pass.
    pub passes_end_s: f64,
    /// End of the stage's optimizer update.
    pub end_s: f64,
    /// Memory between passes, in GiB: weights, gradients, optimizer states and buffers.
    pub resident_gib: f64,
    /// Peak memory during passes, in GiB.
    pub peak_gib: f64,
}

/// Returns one row per stage of a simulated step.
#[must_use]
pub fn timeline_rows(timeline: &Timeline) -> Vec<TimelineRow> {
    let row = |(stage, device): (u32, &DeviceReport)| TimelineRow {
        stage,
        busy_s: device.busy.0,
        bubble_s: device.bubble.0,
        exposed_send_s: device.exposed_send.0,
        exposed_reduction_s: device.exposed_reduction.0,
        passes_end_s: device.passes_end.0,
        end_s: device.end.0,
        resident_gib: device.memory.first().map_or(0.0, |(_, bytes)| bytes.gib()),
        peak_gib: device.peak_memory.gib(),
    };
    (0..).zip(&timeline.devices).map(row).collect()
}

#[cfg(test)]
pub(crate) mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use sim::pipeline::{Pipeline, PipelineSchedule, PipelineStage};
    use sim::units::{Bytes, Seconds};

    pub(crate) fn timeline() -> Timeline {
        let stage = PipelineStage {
            forward: Seconds(1.0),
            recompute: Seconds(0.5),
            backward_input: Seconds(1.0),
            backward_weight: Seconds(1.0),
            reduction: Seconds(2.0),
            optimizer: Seconds(1.0),
            resident: Bytes(1 << 30),
            stash: Bytes(1 << 29),
            ..PipelineStage::default()
        };
        Pipeline::with_uniform_stages(stage, 3, 4, PipelineSchedule::OneForwardOneBackward).simulate_step().unwrap()
    }

    #[test]
    fn rows_sum_to_the_step() {
        let timeline = timeline();
        for row in timeline_rows(&timeline) {
            assert!((row.busy_s + row.bubble_s - timeline.passes_end.0).abs() < 1e-12);
            assert!(row.passes_end_s + row.exposed_reduction_s < row.end_s && row.end_s <= timeline.total.0);
            assert!((row.resident_gib - 1.0).abs() < 1e-12);
            // The first stage keeps three micro-batches, the last stage one.
            assert!((row.peak_gib - 1.0 - 0.5 * f64::from(3 - row.stage)).abs() < 1e-12, "{row:?}");
        }
    }
}
