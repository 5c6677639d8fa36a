//! The bounds of pipelines with a run of longer stages against the event simulation.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use crate::pipeline::{GradientReduction, Pipeline, PipelineStage, VSchedule};
use proptest::prelude::*;

/// Returns the event simulation's time. `farther` lists extra send times by pair of neighbouring devices.
fn simulated(p: &LongerRunPipeline, farther: &[f64], schedule: PipelineSchedule) -> f64 {
    let stages = u64::from(p.pipeline.devices * schedule.chunks_per_device());
    let stage = |i: u64| {
        let work = p.work_of_stage(i, stages);
        let backward_input = work.backward - work.weight;
        PipelineStage {
            forward: work.forward,
            backward_input,
            backward_weight: work.weight,
            ..PipelineStage::default()
        }
    };
    let devices = p.pipeline.devices as usize;
    // A V turns at the last device and comes back the same way.
    let pair = |i: usize| match schedule {
        _ if schedule.is_in_v() && i >= devices => 2 * devices - 2 - i,
        _ => i % devices,
    };
    let pipeline = Pipeline {
        stages: (0..stages).map(stage).collect(),
        sends: (0..stages as usize - 1)
            .map(|i| p.pipeline.send + Seconds(farther.get(pair(i)).copied().unwrap_or(0.0)))
            .collect(),
        micro_batches: p.pipeline.micro_batches,
        schedule,
        reduction: GradientReduction::AfterBackward,
        optimizer_waits_for_all: false,
    };
    pipeline.simulate_without_records().unwrap().passes_end.0
}

fn work(forward: f64, backward: f64, weight: f64) -> ChunkWork {
    ChunkWork { forward: Seconds(forward), backward: Seconds(backward), weight: Seconds(backward * weight) }
}

/// Small numbers make ties frequent; ends are lighter and heavier than the rest. `from` and `count` are within 0..1 and
/// are fitted to the chunks later.
fn pipelines() -> impl Strategy<Value = (UnequalEndsPipeline, ChunkWork, f64, f64)> {
    let pass = || (1_u32..=12).prop_map(|x| f64::from(x) / 2.0);
    let more = || prop::sample::select(vec![0.0, 0.5, 1.0, 2.0, 5.0]);
    let send = prop::sample::select(vec![0.0, 0.1, 0.25, 0.5, 1.0, 4.0]);
    let weight = prop::sample::select(vec![0.0, 0.25, 0.5]);
    let passes = ([pass(), pass(), pass(), pass(), pass(), pass()], [more(), more()]);
    (passes, send, weight, (2_u32..10, 1_u32..50), (0.0..1.0, 0.0..1.0)).prop_map(
        |(([f, b, f0, b0, f1, b1], [longer_f, longer_b]), send, w, (devices, micro_batches), (from, count))| {
            let pipeline = UnequalEndsPipeline {
                first: work(f0, b0, w),
                inner: work(f, b, w),
                last: work(f1, b1, w),
                send: Seconds(send),
                farther: Seconds::ZERO,
                devices,
                micro_batches,
            };
            (pipeline, work(f + longer_f, b + longer_b, w), from, count)
        },
    )
}

/// Returns the pipeline with its run fitted to this many chunks per device, if there is a place for one.
fn fitted(
    (pipeline, longer, from, count): (UnequalEndsPipeline, ChunkWork, f64, f64),
    chunks: u32,
) -> Option<LongerRunPipeline> {
    let between = u64::from(pipeline.devices * chunks) - 2;
    let count = 1 + (count * between.saturating_sub(2) as f64) as u64;
    let from = 1 + (from * (between.checked_sub(count)? + 1) as f64) as u64;
    Some(LongerRunPipeline { pipeline, longer, from, count })
}

fn holds(p: &LongerRunPipeline, farther: &[f64], schedule: PipelineSchedule) -> Result<f64, TestCaseError> {
    let (expected, found) = (simulated(p, farther, schedule), p.time_of_passes(schedule));
    let difference = found.seconds().0 / expected - 1.0;
    match found {
        PassesTime::Exact(_) => {
            prop_assert!(difference.abs() <= 1e-9, "{p:?} {schedule:?}: {found:?}, simulated {expected}")
        }
        PassesTime::AtLeast(_) => {
            prop_assert!(difference <= 1e-9, "{p:?} {schedule:?}: {found:?}, simulated {expected}")
        }
    }
    Ok(-difference)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn one_chunk_per_device_is_bounded_and_gpipe_exact(
        parts in pipelines(),
        longer in prop::collection::vec(prop::sample::select(vec![0.0, 0.0, 0.5, 3.0]), 12),
        equal in any::<bool>(),
    ) {
        let Some(mut p) = fitted(parts, 1) else { return Ok(()) };
        let pairs = if equal { vec![] } else { longer[..p.pipeline.devices as usize - 1].to_vec() };
        p.pipeline.farther = Seconds(pairs.iter().sum());
        for schedule in [PipelineSchedule::OneForwardOneBackward, PipelineSchedule::ZbH1, PipelineSchedule::GPipe] {
            holds(&p, &pairs, schedule)?;
        }
        prop_assert!(matches!(p.time_of_passes(PipelineSchedule::GPipe), PassesTime::Exact(_)));
    }

    #[test]
    fn several_chunks_per_device_are_bounded(
        parts in pipelines(),
        longer in prop::collection::vec(prop::sample::select(vec![0.0, 0.0, 0.5, 3.0]), 12),
        equal in any::<bool>(),
        chunks in 2_u32..5,
    ) {
        let in_v = VSchedule::ALL.map(|schedule| (PipelineSchedule::InV(schedule), 2));
        for (schedule, chunks) in in_v.into_iter().chain([(PipelineSchedule::Interleaved { chunks }, chunks)]) {
            let Some(mut p) = fitted(parts, chunks) else { return Ok(()) };
            let rounds = schedule.least_micro_batches(1) + parts.0.micro_batches % 5;
            p.pipeline.micro_batches = p.pipeline.devices * rounds;
            let pairs = if equal { vec![] } else { longer[..p.pipeline.devices as usize].to_vec() };
            p.pipeline.farther = Seconds(pairs.iter().rev().skip(1).sum());
            holds(&p, &pairs, schedule)?;
        }
    }
}

/// The pipelines are like splits of layers: backward twice the forward, a run one layer longer, short sends, several
/// rounds of micro-batches.
#[test]
fn bounds_are_tight_for_models_of_layers() {
    let (mut sum, mut meet, mut all) = (0.0, 0, 0);
    for (p, v, rounds, head) in (2..7_u32)
        .flat_map(|p| [1, 2, 3].into_iter().flat_map(move |v| [2, 5].map(|r| (p, v, r, 0.5 * f64::from(p % 3)))))
    {
        let layers = |n: f64| work(n, 2.0 * n, 0.5);
        let pipeline = UnequalEndsPipeline {
            first: layers(1.1),
            inner: layers(1.0),
            last: layers(head + 0.5),
            send: Seconds(0.05),
            farther: Seconds::ZERO,
            devices: p,
            micro_batches: p * rounds,
        };
        let schedule =
            if v == 1 { PipelineSchedule::OneForwardOneBackward } else { PipelineSchedule::Interleaved { chunks: v } };
        let between = u64::from(p * v) - 2;
        for (count, from) in (1..between).flat_map(|count| (1..=between - count + 1).map(move |from| (count, from))) {
            let short =
                holds(&LongerRunPipeline { pipeline, longer: layers(2.0), from, count }, &[], schedule).unwrap();
            sum += short;
            meet += u32::from(short < 1e-9);
            all += 1;
        }
    }
    assert!(sum / f64::from(all) < 0.02 && meet > all / 8, "{} {meet} of {all}", sum / f64::from(all));
}
