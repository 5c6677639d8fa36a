//! A training step event by event: by stage as data (described in `docs/json.md`), and as a trace for Chrome
//! (`chrome://tracing`) and Perfetto (<https://ui.perfetto.dev>).

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sim::pipeline::{DeviceReport, PipelineEvent, PipelineEventKind, Timeline};
use sim::units::Seconds;

/// The device of one stage over a step. Times are in seconds from the start of the step.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimelineRow {
    /// The stage, from 0.
    pub stage: u32,
    /// Forward and backward passes, with their recomputation and communication.
    pub busy_s: f64,
    /// Time without a pass, until the last pass of the pipeline ends.
    pub bubble_s: f64,
    /// Part of the bubble: waiting for a message whose sender had finished.
    pub exposed_send_s: f64,
    /// From the stage's last pass to the end of its data-parallel communication.
    pub exposed_reduction_s: f64,
    /// End of its last pass.
    pub passes_end_s: f64,
    /// End of its optimizer update.
    pub end_s: f64,
    /// Resident memory between passes, in GiB: weights, gradients, states, buffers.
    pub resident_gib: f64,
    /// Peak memory during passes, in GiB.
    pub peak_gib: f64,
}

/// The rows of a simulated step.
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

/// The step as a trace. Each stage is a process with a track of passes, a track of events once per step, and its memory
/// as a counter in GiB. The format is the JSON object format of the Trace Event Format, with times in microseconds.
#[must_use]
pub fn timeline_trace(title: &str, timeline: &Timeline) -> String {
    trace_text(title, timeline_events(timeline))
}

/// The text of a trace with these events.
pub(crate) fn trace_text(title: &str, events: Vec<Value>) -> String {
    // The text is compact, because a step of a deep pipeline has a hundred thousand events.
    format!("{}\n", json!({ "displayTimeUnit": "ms", "otherData": { "title": title }, "traceEvents": events }))
}

/// The events of [`timeline_trace`].
pub(crate) fn timeline_events(timeline: &Timeline) -> Vec<Value> {
    let mut all = Vec::new();
    for (stage, device) in timeline.devices.iter().enumerate() {
        all.push(json!({ "ph": "M", "pid": stage, "name": "process_name", "args": { "name": format!("stage {stage}") } }));
        all.push(json!({ "ph": "M", "pid": stage, "name": "process_sort_index", "args": { "sort_index": stage } }));
        for (track, name) in ["passes", "once per step"].into_iter().enumerate() {
            all.push(json!({ "ph": "M", "pid": stage, "tid": track, "name": "thread_name", "args": { "name": name } }));
        }
        all.extend(device.memory.iter().map(|(time, bytes)| {
            json!({ "ph": "C", "pid": stage, "name": "memory", "ts": to_microseconds(*time), "args": { "GiB": bytes.gib() } })
        }));
    }
    all.extend(timeline.events.iter().map(|event| complete_event(event, timeline.devices.len())));
    all
}

/// An event of a step with `devices` devices.
fn complete_event(event: &PipelineEvent, devices: usize) -> Value {
    let (name, track) = match event.kind {
        PipelineEventKind::Forward => ("forward", 0),
        PipelineEventKind::Recompute => ("recompute", 0),
        PipelineEventKind::Backward => ("backward", 0),
        PipelineEventKind::WeightGradient => ("weight gradient", 0),
        PipelineEventKind::Reduction => ("data-parallel communication", 1),
        PipelineEventKind::Optimizer => ("optimizer", 1),
    };
    let arguments = match track {
        0 => json!({ "micro_batch": event.micro_batch, "chunk": event.stage as usize / devices.max(1) }),
        _ => json!({}),
    };
    let label = if track == 0 { format!("{name} {}", event.micro_batch) } else { name.to_owned() };
    json!({
        "ph": "X", "pid": event.device, "tid": track, "cat": name, "name": label, "ts": to_microseconds(event.start),
        "dur": to_microseconds(event.end - event.start), "args": arguments,
    })
}

fn to_microseconds(time: Seconds) -> f64 {
    time.0 * 1e6
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use sim::pipeline::{Pipeline, PipelineSchedule, PipelineStage};
    use sim::units::Bytes;

    fn timeline() -> Timeline {
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

    #[test]
    fn a_trace_has_every_pass_and_the_memory_of_every_stage() {
        let timeline = timeline();
        let trace: Value = serde_json::from_str(&timeline_trace("test", &timeline)).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let of = |ph: &str| events.iter().filter(|e| e["ph"] == ph).collect::<Vec<_>>();
        let passes: Vec<_> = of("X").into_iter().filter(|e| e["tid"] == 0).collect();
        assert_eq!(passes.len(), 3 * 4 * 3, "forward, recomputation and backward of four micro-batches on three stages");
        assert_eq!(of("X").len(), passes.len() + 3 * 2, "and a reduction and an update each");
        let end = of("X").iter().map(|e| e["ts"].as_f64().unwrap() + e["dur"].as_f64().unwrap()).fold(0.0, f64::max);
        assert!((end / (timeline.total.0 * 1e6) - 1.0).abs() < 1e-12);
        for stage in 0..3 {
            let gib = of("C").into_iter().filter(|e| e["pid"] == stage).map(|e| e["args"]["GiB"].as_f64().unwrap());
            let peak = timeline.devices[stage].peak_memory.gib();
            assert!((gib.fold(0.0, f64::max) - peak).abs() < 1e-12);
        }
    }
}
