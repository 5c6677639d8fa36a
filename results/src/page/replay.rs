//! Replays a kept plan to compute what its record lacks: all passes of all stages, memory over time, the operations of
//! kernels, and the neighbouring plans. A replay is valid only if it gives the recorded time.

use super::subject::FoundPlan;
use crate::answer::plan::{NeighbourRow, neighbour_row, part_name};
use crate::answer::step::{NamedShare, kernel_bound};
use crate::text::{format_count, format_seconds};
use search::planner::{Job, PlanSpace, RankedPlan, neighbours};
use serde::Serialize;
use sim::cost::{Bottleneck, Traffic};
use sim::hardware::{Accelerator, MemoryLevel};
use sim::kernel::Kernel;
use sim::pipeline::{DeviceReport, PipelineEventKind, Timeline};
use sim::units::{Bytes, Seconds};
use step::explain::{Explanation, PassDetail, TimePart, explain_plan};
use step::{ChipTimes, KernelDetail, KernelPlace};

/// The largest number of passes on a page. A browser moves this many smoothly.
const MOST_EVENTS: usize = 20_000;
/// The largest number of moments of a stage's memory on a page. Each interval keeps its maximum.
const MOST_MOMENTS: usize = 1000;
/// The largest relative difference between the replayed and the recorded step. It allows for rounding in sums.
const SAME: f64 = 1e-9;

/// A replayed plan.
#[derive(Debug, Clone, PartialEq)]
pub struct PlanReplay {
    /// The kernels of the slowest stage, with the chip's roofline.
    pub roofline: PageRoofline,
    /// The passes of the step.
    pub timeline: StepTimeline,
    /// Shares of the step's time. Kernels are grouped by their bound.
    pub shares: Vec<NamedShare>,
    /// The plans that differ from this one in a single decision.
    pub decisions: Vec<NeighbourRow>,
}

/// The kernels of the slowest stage, and the peaks of the chip.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PageRoofline {
    /// The stage, from 0.
    pub stage: u32,
    /// Peak of the arrays for the type of the products, in TFLOP/s; 0 if there is none.
    pub peak_tflop_per_s: f64,
    /// Peak of the lanes in 10^12 operations per second, at one operation per lane and cycle.
    pub vector_tflop_per_s: f64,
    /// The memories that the kernels touch, innermost first.
    pub levels: Vec<MemoryRoof>,
    /// The kernels of a micro-batch.
    pub kernels: Vec<DrawnKernel>,
}

/// The roof of a memory level: all its instances on the chip.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct MemoryRoof {
    /// The name of the level.
    pub name: String,
    /// Read bandwidth in GB/s.
    pub gb_per_s: f64,
}

/// A kernel in the roofline plot.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DrawnKernel {
    /// The name, unique within its pass.
    pub name: String,
    /// The names of the segment and the pass.
    pub pass: String,
    /// The kind: `matrix product`, `attention`, `vector`, `collective`, `copy`.
    pub kind: &'static str,
    /// The resource that runs it: `all cores`, `one core`, `network` or `link`.
    pub span: &'static str,
    /// Executions per micro-batch.
    pub count: u64,
    /// Time of one execution, in seconds.
    pub latency_s: f64,
    /// Operations of one execution: FLOPs of matrix products and attention, operations of the lanes for vector kernels,
    /// else 0.
    pub operations: f64,
    /// For each level of the roofline, the bytes that it could read while its ports are busy with the kernel. At equal
    /// rates of a port that reads and writes share, these are the bytes read and written.
    pub level_bytes: Vec<f64>,
    /// The level of the roofline that bounds the kernel; `null` if no memory bounds it.
    pub level: Option<usize>,
    /// Achieved fraction of the peak of the cores that run it. `null` if no core runs it.
    pub utilization: Option<f64>,
    /// The bound: the resource that takes most of the kernel's time.
    pub bound: String,
}

/// The passes of a step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StepTimeline {
    /// The part of the step that is drawn, in words.
    pub shown: String,
    /// The end of the drawn part, in seconds.
    pub shown_s: f64,
    /// The whole step in seconds.
    pub total_s: f64,
    /// The names of the kinds of passes. `events` refers to them by index.
    pub kinds: [&'static str; 6],
    /// For each pass: stage, kind, micro-batch, chunk, start and length. Times are in seconds.
    pub events: Vec<(u32, usize, u32, u32, f64, f64)>,
    /// The memory of the stages.
    pub stages: Vec<DrawnStage>,
}

/// A stage's memory over a step.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DrawnStage {
    /// The stage, from 0.
    pub stage: u32,
    /// Pairs of a time in seconds and the GiB from that time on.
    pub memory_gib: Vec<(f64, f64)>,
}

impl PlanReplay {
    /// Replays a kept plan of a job.
    ///
    /// # Errors
    /// The reason, in words, why the plan does not belong to the job.
    pub fn new(job: &Job<'_>, kept: &FoundPlan) -> Result<Self, String> {
        let plan = &kept.plan.plan;
        let differs = "model, chip, fabric or stack differ from those of the run; give them with --model, --chip, \
            --fabric or --stack";
        let ranked = job.rank_plan(plan).map_err(|why| format!("{why}: {differs}"))?;
        let ranked = ranked.ok_or_else(|| format!("the plan does not fit the chip: {differs}"))?;
        let (now, then) = (ranked.time.total.0, kept.plan.step_s);
        if (now - then).abs() > SAME * then {
            return Err(format!(
                "the step takes {} now but took {} in the run: {differs}",
                format_seconds(Seconds(now)),
                format_seconds(Seconds(then))
            ));
        }
        Self::of_ranked_plan(job, &ranked).map_err(|why| why.to_string())
    }

    fn of_ranked_plan(job: &Job<'_>, ranked: &RankedPlan) -> Result<Self, step::StepError> {
        let mut chip = ChipTimes::new(job.chip, job.stack)?;
        let why = explain_plan(&mut chip, job.model, job.fabric, &ranked.plan)?;
        let space = PlanSpace::default().with_mixes_of(job.stack);
        let around = neighbours(job, &space, ranked)?;
        let share = |part: &TimePart| NamedShare {
            name: part_name(&part.name).to_owned(),
            fraction: part.time / why.time.total,
        };
        Ok(Self {
            shares: why.parts.iter().map(share).collect(),
            roofline: PageRoofline::new(job, &why),
            timeline: StepTimeline::new(&job.plan_timeline(&ranked.plan)?),
            decisions: around.iter().map(|n| neighbour_row(n, ranked)).collect(),
        })
    }
}

impl PageRoofline {
    /// Returns the kernels of an explained plan, with the peaks of the chip.
    #[must_use]
    pub fn new(job: &Job<'_>, why: &Explanation) -> Self {
        let chip = job.chip;
        let peak = chip.peak_flops(job.precision.product.unwrap_or(job.precision.operand));
        let details = || why.passes.iter().flat_map(|pass| pass.kernels.iter().map(move |kernel| (pass, kernel)));
        let touched = |at: &usize| details().any(|(_, kernel)| kernel.traffic.bytes(*at) > Bytes::ZERO);
        let levels: Vec<(usize, &MemoryLevel)> =
            chip.memory_levels().enumerate().filter(|(at, _)| touched(at)).collect();
        let roof = |(_, level): &(usize, &MemoryLevel)| MemoryRoof {
            name: level.name.clone(),
            gb_per_s: level.read_bandwidth.0 * f64::from(chip.instance_count(level)) / 1e9,
        };
        Self {
            stage: why.slowest_stage,
            peak_tflop_per_s: peak.map_or(0.0, |peak| peak.0 / 1e12),
            vector_tflop_per_s: chip.peak_vector_operations().0 / 1e12,
            levels: levels.iter().map(roof).collect(),
            kernels: details().map(|(pass, kernel)| drawn_kernel(kernel, pass, chip, &levels)).collect(),
        }
    }
}

fn drawn_kernel(
    kernel: &KernelDetail,
    pass: &PassDetail,
    chip: &Accelerator,
    levels: &[(usize, &MemoryLevel)],
) -> DrawnKernel {
    let (span, part) = match kernel.place {
        KernelPlace::AllCores => ("all cores", 1.0),
        KernelPlace::OneCore { .. } => ("one core", 1.0 / f64::from(chip.vector.cores.max(1))),
        KernelPlace::Network => ("network", 0.0),
        KernelPlace::Host => ("link", 0.0),
    };
    let (kind, operations) = match kernel.kernel {
        Kernel::Contraction(_) | Kernel::Epilogue(_) => ("matrix product", kernel.kernel.flops().as_f64()),
        Kernel::FusedAttention(_) => ("attention", kernel.kernel.flops().as_f64()),
        // The number of operations on lanes follows from the time during which the lanes are busy.
        Kernel::Elementwise(_) | Kernel::Reduction(_) => {
            ("vector", kernel.utilization * chip.peak_vector_operations().0 * part * kernel.latency.0)
        }
        Kernel::Collective(_) => ("collective", 0.0),
        Kernel::Transfer(_) => ("copy", 0.0),
    };
    let bytes = |(at, level): &(usize, &MemoryLevel)| {
        let Traffic { read, written, .. } = kernel.traffic;
        level.busy_time(Bytes(read[*at] as u64), Bytes(written[*at] as u64)).0 * level.read_bandwidth.0
    };
    let bounding = |at: &usize| kernel.bound == Bottleneck::Memory(u8::try_from(*at).unwrap_or(u8::MAX));
    DrawnKernel {
        name: kernel.name.clone(),
        pass: format!("{} {}", pass.segment, pass.pass),
        kind,
        span,
        count: pass.count,
        latency_s: kernel.latency.0,
        operations,
        level_bytes: levels.iter().map(bytes).collect(),
        level: levels.iter().position(|(at, _)| bounding(at)),
        utilization: kernel.runs_on_cores().then_some(kernel.utilization),
        bound: kernel_bound(kernel, chip),
    }
}

impl StepTimeline {
    /// Returns the timeline of a step. A long step is cut after its first [`MOST_EVENTS`] passes.
    fn new(timeline: &Timeline) -> Self {
        let mut events: Vec<_> = timeline.events.iter().collect();
        events.sort_by(|a, b| a.start.0.total_cmp(&b.start.0));
        let all = events.len();
        events.truncate(MOST_EVENTS);
        let end = if all > MOST_EVENTS { events.last().map_or(0.0, |event| event.start.0) } else { timeline.total.0 };
        let devices = timeline.devices.len().max(1);
        let event = |e: &&sim::pipeline::PipelineEvent| {
            let (kind, chunk) = (kind_index(e.kind), e.stage / u32::try_from(devices).unwrap_or(u32::MAX));
            (e.device, kind, e.micro_batch, chunk, e.start.0, (e.end - e.start).0)
        };
        let shown = if all > MOST_EVENTS {
            let (drawn, all) = (format_count(MOST_EVENTS as u64), format_count(all as u64));
            format!(
                "The first {drawn} of {all} passes are drawn; `coplace evaluate --trace` writes them all for Perfetto."
            )
        } else {
            format!("All {} passes.", format_count(all as u64))
        };
        Self {
            shown,
            shown_s: end,
            total_s: timeline.total.0,
            kinds: ["forward", "recompute", "backward", "weight gradient", "data-parallel communication", "optimizer"],
            events: events.iter().map(event).collect(),
            stages: (0..)
                .zip(&timeline.devices)
                .map(|(stage, device)| drawn_stage(stage, device, timeline.total))
                .collect(),
        }
    }
}

fn kind_index(kind: PipelineEventKind) -> usize {
    match kind {
        PipelineEventKind::Forward => 0,
        PipelineEventKind::Recompute => 1,
        PipelineEventKind::Backward => 2,
        PipelineEventKind::WeightGradient => 3,
        PipelineEventKind::Reduction => 4,
        PipelineEventKind::Optimizer => 5,
    }
}

/// Returns the memory of a stage. Frequent changes are thinned. Each interval keeps its maximum, so that no peak is
/// lost.
fn drawn_stage(stage: u32, device: &DeviceReport, total: Seconds) -> DrawnStage {
    let gib = |(time, bytes): &(Seconds, Bytes)| (time.0, bytes.gib());
    let width = device.memory.len().div_ceil(MOST_MOMENTS).max(1);
    let most = |span: &[(Seconds, Bytes)]| {
        let held = span.iter().map(|moment| moment.1).max().unwrap_or(Bytes::ZERO);
        span.first().map(|first| gib(&(first.0, held)))
    };
    let mut memory_gib: Vec<(f64, f64)> = device.memory.chunks(width).filter_map(most).collect();
    if let Some(last) = device.memory.last() {
        memory_gib.push((total.0, last.1.gib()));
    }
    DrawnStage { stage, memory_gib }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use sim::pipeline::{Pipeline, PipelineSchedule, PipelineStage};

    fn timeline(micro_batches: u32) -> Timeline {
        let stage = PipelineStage {
            forward: Seconds(1.0),
            backward_input: Seconds(1.0),
            backward_weight: Seconds(1.0),
            resident: Bytes(1 << 30),
            stash: Bytes(1 << 29),
            ..PipelineStage::default()
        };
        Pipeline::with_uniform_stages(stage, 3, micro_batches, PipelineSchedule::OneForwardOneBackward)
            .simulate_step()
            .unwrap()
    }

    #[test]
    fn a_short_step_is_drawn_whole() {
        let timeline = timeline(4);
        let played = StepTimeline::new(&timeline);
        assert_eq!((played.events.len(), played.shown_s), (timeline.events.len(), timeline.total.0));
        assert!(played.shown.starts_with("All "), "{}", played.shown);
        let busy: f64 = played.events.iter().filter(|e| e.0 == 1 && e.1 < 4).map(|e| e.5).sum();
        assert!((busy - timeline.devices[1].busy.0).abs() < 1e-9);
    }

    #[test]
    fn of_a_long_step_the_cut_is_told_and_no_peak_of_memory_is_lost() {
        let timeline = timeline(6000);
        let played = StepTimeline::new(&timeline);
        assert_eq!(played.events.len(), MOST_EVENTS);
        assert!(played.shown_s < played.total_s && played.shown.contains("of 36,0"), "{}", played.shown);
        for (drawn, device) in played.stages.iter().zip(&timeline.devices) {
            assert!(drawn.memory_gib.len() <= MOST_MOMENTS + 1);
            let peak = drawn.memory_gib.iter().map(|moment| moment.1).fold(0.0, f64::max);
            assert!((peak - device.peak_memory.gib()).abs() < 1e-12);
        }
    }
}
