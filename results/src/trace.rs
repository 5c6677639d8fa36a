//! Passes as a trace that Chrome (`chrome://tracing`) and Perfetto (<https://ui.perfetto.dev>) show: the JSON object format of the Trace
//! Event Format, complete events (`"ph": "X"`) with times in microseconds.

use search::explain::{PassDetail, bound_name, kernel_units};
use serde_json::{Value, json};
use sim::costed::{ScheduledGraph, TICKS_PER_SECOND};
use sim::hardware::Accelerator;
use sim::schedule::OperatorKind;
use std::collections::BTreeMap;

/// A row of the trace: what is on it never overlaps. In the order in which they are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Track {
    Passes,
    AllTensorCores,
    AllVectorCores,
    TensorCore(u32),
    VectorCore(u32),
    Link(u32),
}

impl Track {
    fn name(self) -> String {
        match self {
            Self::Passes => "passes".into(),
            Self::AllTensorCores => "all tensor cores".into(),
            Self::AllVectorCores => "all vector cores".into(),
            Self::TensorCore(i) => format!("tensor core {i}"),
            Self::VectorCore(i) => format!("vector core {i}"),
            Self::Link(i) => format!("network link {i}"),
        }
    }
}

/// An event in the ticks of the schedule.
struct Event {
    track: Track,
    name: String,
    start: u64,
    length: u64,
    arguments: Value,
}

/// The trace of passes, one after another, each once: one track per core and link that is used, one each for kernels across all tensor
/// and all vector cores. A fused kernel is on a tensor and on a vector track. Kernels that take no time are left out.
#[must_use]
pub fn trace(title: &str, passes: &[PassDetail], chip: &Accelerator) -> String {
    let mut events = Vec::new();
    let mut at = 0u64;
    for pass in passes {
        let length = pass.scheduled.schedule.makespan;
        events.push(Event {
            track: Track::Passes,
            name: format!("{} {}", pass.segment, pass.pass),
            start: at,
            length,
            arguments: json!({ "times_per_micro_batch": pass.count, "schedule": pass.scheduled.schedule.status.to_string() }),
        });
        add_kernels(&mut events, &pass.scheduled, at, chip);
        at = at.saturating_add(length);
    }
    let tracks: BTreeMap<Track, usize> = {
        let used: std::collections::BTreeSet<Track> = events.iter().map(|e| e.track).collect();
        used.into_iter().enumerate().map(|(row, track)| (track, row)).collect()
    };
    let mut all = vec![json!({ "ph": "M", "pid": 0, "name": "process_name", "args": { "name": title } })];
    for (track, row) in &tracks {
        all.push(json!({ "ph": "M", "pid": 0, "tid": row, "name": "thread_name", "args": { "name": track.name() } }));
        all.push(json!({ "ph": "M", "pid": 0, "tid": row, "name": "thread_sort_index", "args": { "sort_index": row } }));
    }
    all.extend(events.iter().map(|e| {
        json!({
            "ph": "X", "pid": 0, "tid": tracks.get(&e.track), "name": e.name, "ts": micros(e.start), "dur": micros(e.length),
            "args": e.arguments,
        })
    }));
    let trace = json!({ "displayTimeUnit": "ns", "traceEvents": all });
    format!("{trace:#}\n")
}

fn micros(ticks: u64) -> f64 {
    ticks as f64 / (TICKS_PER_SECOND / 1e6)
}

fn add_kernels(events: &mut Vec<Event>, scheduled: &ScheduledGraph, at: u64, chip: &Accelerator) {
    let schedule = &scheduled.schedule;
    let hbm = chip.level_count() - 1;
    let ends = schedule.ends(&scheduled.problem);
    for (i, node) in scheduled.graph.node_weights().enumerate() {
        let length = ends[i].saturating_sub(schedule.starts[i]);
        if length == 0 {
            continue;
        }
        let cost = &scheduled.costs[i];
        let arguments = json!({
            "bound_by": bound_name(cost.bound, kernel_units(&node.kernel), chip),
            "utilization": cost.utilization,
            "energy_j": cost.energy.0,
            "hbm_bytes": cost.traffic.bytes(hbm).0,
        });
        for track in tracks(scheduled, i) {
            events.push(Event {
                track,
                name: node.name.clone(),
                start: at.saturating_add(schedule.starts[i]),
                length,
                arguments: arguments.clone(),
            });
        }
    }
}

/// The tracks that a kernel is on.
fn tracks(scheduled: &ScheduledGraph, kernel: usize) -> Vec<Track> {
    let kind: OperatorKind = scheduled.problem.operators()[kernel].kind;
    let on = scheduled.schedule.cores[kernel];
    if scheduled.schedule.exclusive[kernel] {
        let tensor = kind.uses_tensor().then_some(Track::AllTensorCores);
        let vector = kind.uses_vector().then_some(Track::AllVectorCores);
        return tensor.into_iter().chain(vector).collect();
    }
    let tensor = on.tensor_core.map(Track::TensorCore);
    let vector = on.vector_core.map(Track::VectorCore);
    tensor.into_iter().chain(vector).chain(on.link.map(Track::Link)).collect()
}

#[cfg(test)]
#[path = "trace_tests.rs"]
mod tests;
