//! A trace of a step for Chrome (`chrome://tracing`) and Perfetto (<https://ui.perfetto.dev>). It has the passes of
//! every stage, and the kernels in the passes of the slowest stage. The format is the JSON object format of the Trace
//! Event Format: complete events (`"ph": "X"`) with times in microseconds.

use crate::answer::step::{ExplainedPlan, kernel_bound};
use crate::emit::stage_trace;
use serde_json::{Value, json};
use sim::hardware::Accelerator;
use sim::kernel::Kernel;
use sim::units::Seconds;
use std::collections::{BTreeMap, BTreeSet};
use step::explain::PassDetail;
use step::{KernelDetail, KernelPlace};

/// A row of the trace, in the order of display. The events of a row never overlap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum TraceTrack {
    Passes,
    AllTensorCores,
    AllVectorCores,
    TensorCore(u32),
    VectorCore(u32),
    Network(u32),
    Host(u32),
}

impl TraceTrack {
    fn name(self) -> String {
        match self {
            Self::Passes => "passes".into(),
            Self::AllTensorCores => "all tensor cores".into(),
            Self::AllVectorCores => "all vector cores".into(),
            Self::TensorCore(i) => format!("tensor core {i}"),
            Self::VectorCore(i) => format!("vector core {i}"),
            Self::Network(0) => "network".into(),
            Self::Network(i) => format!("network, beside {i} more"),
            Self::Host(0) => "link to the host".into(),
            Self::Host(i) => format!("link to the host, beside {i} more"),
        }
    }
}

/// Times that differ by less than this count as equal, in seconds: a thousandth of the schedule's tick of a picosecond.
const MOMENT: f64 = 1e-15;

/// An event in the process of the kernels.
struct KernelEvent {
    track: TraceTrack,
    name: String,
    start: Seconds,
    length: Seconds,
    arguments: Value,
}

/// Returns the trace of a step. It has the stages, as in [`stage_trace::timeline_trace`], and another process with the
/// kernels of the slowest stage, in which each pass occurs once.
#[must_use]
pub fn kernel_trace(title: &str, explained: &ExplainedPlan, chip: &Accelerator) -> String {
    let mut events = stage_trace::timeline_events(&explained.timeline);
    let process = explained.timeline.devices.len();
    let name = format!("kernels of stage {}, each pass once", explained.why.slowest_stage);
    events.extend(kernel_events(&explained.why.passes, chip, process, &name));
    stage_trace::trace_text(title, events)
}

/// Returns the events of the passes one after another, each once. There is one track per used core, one for kernels
/// across all tensor cores, and one for kernels across all vector cores. A fused kernel is on a tensor track and on a
/// vector track. Concurrent collectives have separate tracks. Kernels without duration are omitted.
fn kernel_events(passes: &[PassDetail], chip: &Accelerator, process: usize, name: &str) -> Vec<Value> {
    let mut events = Vec::new();
    let mut at = Seconds::ZERO;
    for pass in passes {
        events.push(KernelEvent {
            track: TraceTrack::Passes,
            name: format!("{} {}", pass.segment, pass.pass),
            start: at,
            length: pass.time,
            arguments: json!({ "times_per_micro_batch": pass.count, "unproven_s": pass.unproven.0 }),
        });
        add_pass_kernels(&mut events, pass, at, chip);
        at += pass.time;
    }
    let used: BTreeSet<TraceTrack> = events.iter().map(|e| e.track).collect();
    let tracks: BTreeMap<TraceTrack, usize> = used.into_iter().enumerate().map(|(row, track)| (track, row)).collect();
    let mut all = vec![
        json!({ "ph": "M", "pid": process, "name": "process_name", "args": { "name": name } }),
        json!({ "ph": "M", "pid": process, "name": "process_sort_index", "args": { "sort_index": process } }),
    ];
    for (track, row) in &tracks {
        all.push(
            json!({ "ph": "M", "pid": process, "tid": row, "name": "thread_name", "args": { "name": track.name() } }),
        );
        all.push(json!({ "ph": "M", "pid": process, "tid": row, "name": "thread_sort_index", "args": { "sort_index": row } }));
    }
    all.extend(events.iter().map(|e| {
        json!({
            "ph": "X", "pid": process, "tid": tracks.get(&e.track), "name": e.name, "ts": e.start.0 * 1e6, "dur": e.length.0 * 1e6,
            "args": e.arguments,
        })
    }));
    all
}

/// Adds the kernels of a pass that starts at `at`.
fn add_pass_kernels(events: &mut Vec<KernelEvent>, pass: &PassDetail, at: Seconds, chip: &Accelerator) {
    let mut free = FreeTracks::default();
    for kernel in pass.kernels.iter().filter(|kernel| kernel.latency > Seconds::ZERO) {
        let arguments = json!({
            "bound_by": kernel_bound(kernel, chip),
            "utilization": kernel.utilization,
            "energy_j": kernel.energy.0,
            "hbm_bytes": kernel.hbm.0,
        });
        for track in tracks_of_kernel(kernel, &mut free) {
            let (name, start, length) = (kernel.name.clone(), at + kernel.start, kernel.latency);
            events.push(KernelEvent { track, name, start, length, arguments: arguments.clone() });
        }
    }
}

/// The times at which the tracks of the network and of the link to the host become free, in seconds.
#[derive(Default)]
struct FreeTracks {
    network: Vec<f64>,
    host: Vec<f64>,
}

/// Returns the first track that is free when a kernel starts, and occupies it until the kernel ends.
fn occupy_track(free: &mut Vec<f64>, kernel: &KernelDetail) -> u32 {
    let at = free.iter().position(|end| *end <= kernel.start.0 + MOMENT).unwrap_or(free.len());
    free.resize(free.len().max(at + 1), 0.0);
    free[at] = kernel.end_time().0;
    u32::try_from(at).unwrap_or(u32::MAX)
}

/// Returns the tracks of a kernel.
fn tracks_of_kernel(kernel: &KernelDetail, free: &mut FreeTracks) -> Vec<TraceTrack> {
    let (tensor, vector) = match kernel.kernel {
        Kernel::Contraction(_) => (true, false),
        Kernel::Epilogue(_) | Kernel::FusedAttention(_) => (true, true),
        Kernel::Elementwise(_) | Kernel::Reduction(_) => (false, true),
        Kernel::Collective(_) | Kernel::Transfer(_) => (false, false),
    };
    match kernel.place {
        KernelPlace::AllCores => {
            let [tensor, vector] =
                [tensor.then_some(TraceTrack::AllTensorCores), vector.then_some(TraceTrack::AllVectorCores)];
            tensor.into_iter().chain(vector).collect()
        }
        KernelPlace::OneCore { tensor, vector } => {
            tensor.map(TraceTrack::TensorCore).into_iter().chain(vector.map(TraceTrack::VectorCore)).collect()
        }
        KernelPlace::Network => vec![TraceTrack::Network(occupy_track(&mut free.network, kernel))],
        KernelPlace::Host => vec![TraceTrack::Host(occupy_track(&mut free.host, kernel))],
    }
}

#[cfg(test)]
#[path = "trace_tests.rs"]
pub(crate) mod tests;
