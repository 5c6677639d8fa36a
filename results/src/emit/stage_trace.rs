//! A trace of a step, with the passes of every stage, for Chrome (`chrome://tracing`) and Perfetto
//! (<https://ui.perfetto.dev>).

use serde_json::{Value, json};
use sim::pipeline::{PipelineEvent, PipelineEventKind, Timeline};
use sim::units::Seconds;

/// Returns the trace of a step. Each stage is a process with a track of passes, a track of events that occur once per
/// step, and a counter of its memory in GiB. The format is the JSON object format of the Trace Event Format, with times
/// in microseconds.
#[must_use]
pub fn timeline_trace(title: &str, timeline: &Timeline) -> String {
    trace_text(title, timeline_events(timeline))
}

/// Returns the text of a trace with these events.
pub(super) fn trace_text(title: &str, events: Vec<Value>) -> String {
    // The text is compact, because a step of a deep pipeline has a hundred thousand events.
    format!("{}\n", json!({ "displayTimeUnit": "ms", "otherData": { "title": title }, "traceEvents": events }))
}

/// Returns the events of [`timeline_trace`].
pub(super) fn timeline_events(timeline: &Timeline) -> Vec<Value> {
    let mut all = Vec::new();
    for (stage, device) in timeline.devices.iter().enumerate() {
        all.push(
            json!({ "ph": "M", "pid": stage, "name": "process_name", "args": { "name": format!("stage {stage}") } }),
        );
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

/// Returns the trace event for an event of a step with `devices` devices.
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
    use crate::answer::timeline::tests::timeline;

    #[test]
    fn a_trace_has_every_pass_and_the_memory_of_every_stage() {
        let timeline = timeline();
        let trace: Value = serde_json::from_str(&timeline_trace("test", &timeline)).unwrap();
        let events = trace["traceEvents"].as_array().unwrap();
        let of = |ph: &str| events.iter().filter(|e| e["ph"] == ph).collect::<Vec<_>>();
        let passes: Vec<_> = of("X").into_iter().filter(|e| e["tid"] == 0).collect();
        assert_eq!(
            passes.len(),
            3 * 4 * 3,
            "forward, recomputation and backward of four micro-batches on three stages"
        );
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
