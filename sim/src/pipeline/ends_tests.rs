//! The closed forms of pipelines with unequal ends against the event simulation.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use crate::pipeline::{GradientReduction, Pipeline, PipelineStage};
use proptest::prelude::*;

/// Returns the event simulation's time. `farther` lists extra send times by pair of neighbouring devices; the last
/// entry is the way from the last device round to the first.
fn simulated_with(p: &UnequalEndsPipeline, farther: &[f64], schedule: PipelineSchedule) -> f64 {
    let stages = (p.devices * schedule.chunks_per_device()) as usize;
    let stage = |i: usize| {
        let work = if i == 0 {
            p.first
        } else if i + 1 == stages {
            p.last
        } else {
            p.inner
        };
        PipelineStage {
            forward: work.forward,
            backward_input: work.backward - work.weight,
            backward_weight: work.weight,
            ..PipelineStage::default()
        }
    };
    let devices = p.devices as usize;
    // ZB-V turns at the last device and comes back the same way.
    let pair = |i: usize| match schedule {
        PipelineSchedule::ZB_V if i >= devices => 2 * devices - 2 - i,
        _ => i % devices,
    };
    let send = |i: usize| p.send + Seconds(farther.get(pair(i)).copied().unwrap_or(0.0));
    let pipeline = Pipeline {
        stages: (0..stages).map(stage).collect(),
        sends: (0..stages - 1).map(send).collect(),
        micro_batches: p.micro_batches,
        schedule,
        reduction: GradientReduction::AfterBackward,
        optimizer_waits_for_all: false,
    };
    pipeline.simulate_without_records().unwrap().passes_end.0
}

fn holds(p: &UnequalEndsPipeline, schedule: PipelineSchedule) -> Result<bool, TestCaseError> {
    holds_with(p, &[], schedule)
}

fn holds_with(p: &UnequalEndsPipeline, farther: &[f64], schedule: PipelineSchedule) -> Result<bool, TestCaseError> {
    let (expected, found) = (simulated_with(p, farther, schedule), p.time_of_passes(schedule));
    let difference = (found.seconds().0 - expected) / expected.max(f64::MIN_POSITIVE);
    match found {
        PassesTime::Exact(_) => {
            prop_assert!(difference.abs() <= 1e-9, "{p:?} {schedule:?}: {found:?}, simulated {expected}")
        }
        PassesTime::AtLeast(_) => {
            prop_assert!(difference <= 1e-9, "{p:?} {schedule:?}: {found:?}, simulated {expected}")
        }
    }
    Ok(matches!(found, PassesTime::Exact(_)))
}

fn work(forward: f64, backward: f64, weight: f64) -> ChunkWork {
    ChunkWork { forward: Seconds(forward), backward: Seconds(backward), weight: Seconds(backward * weight) }
}

/// Halves and small integers make ties frequent; ends are lighter and heavier than the rest.
fn pipelines() -> impl Strategy<Value = UnequalEndsPipeline> {
    let pass = || (1_u32..=12).prop_map(|x| f64::from(x) / 2.0);
    let off = || prop::sample::select(vec![-2.0, -1.0, -0.5, 0.0, 0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 7.0]);
    let send = prop::sample::select(vec![0.0, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0]);
    let weight = prop::sample::select(vec![0.0, 0.25, 0.5]);
    let size = (2_u32..12, prop_oneof![1_u32..12, 1_u32..120]);
    ((pass(), pass()), (off(), off(), off(), off()), send, weight, size).prop_map(
        |((f, b), (f0, b0, f1, b1), send, weight, (devices, micro_batches))| UnequalEndsPipeline {
            first: work((f + f0).max(0.0), (b + b0).max(0.0), weight),
            inner: work(f, b, weight),
            last: work((f + f1).max(0.0), (b + b1).max(0.0), weight),
            send: Seconds(send),
            farther: Seconds::ZERO,
            devices,
            micro_batches,
        },
    )
}

/// Draws pipelines like the layers of a transformer: backward twice the forward or more, heavier ends (or one layer
/// lighter), short sends.
fn models() -> impl Strategy<Value = UnequalEndsPipeline> {
    let layers =
        (1_u32..12, any::<bool>()).prop_map(|(n, fewer)| (f64::from(n), f64::from(n - u32::from(fewer && n > 1))));
    let size = (2_u32..12, 1_u32..100);
    (layers, 2.0_f64..4.0, 0.0_f64..0.1, 0.1_f64..1.5, 0.0_f64..0.5, size).prop_map(
        |((inner, ends), back, embedding, head, send, (devices, micro_batches))| UnequalEndsPipeline {
            first: work(ends + embedding, ends * back + embedding * 2.0, 0.5),
            inner: work(inner, inner * back, 0.5),
            last: work(ends + head, ends * back + head * 2.0, 0.5),
            send: Seconds(send),
            farther: Seconds::ZERO,
            devices,
            micro_batches,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn one_f_one_b_is_exact_where_it_says_so(p in pipelines()) {
        holds(&p, PipelineSchedule::OneForwardOneBackward)?;
    }

    #[test]
    fn gpipe_is_exact(p in pipelines()) {
        prop_assert!(holds(&p, PipelineSchedule::GPipe)?);
    }

    #[test]
    fn sends_of_unequal_length_leave_bounds_and_gpipe_exact(
        mut p in pipelines(),
        longer in prop::collection::vec(prop::sample::select(vec![0.0, 0.0, 0.5, 1.0, 3.0]), 12),
        chunks in 2_u32..5,
    ) {
        let pairs = &longer[..p.devices as usize];
        p.farther = Seconds(pairs[..pairs.len() - 1].iter().sum());
        prop_assert!(holds_with(&p, pairs, PipelineSchedule::GPipe)?);
        if p.farther > Seconds::ZERO {
            prop_assert!(!holds_with(&p, pairs, PipelineSchedule::OneForwardOneBackward)?);
            p.micro_batches = p.micro_batches.min(40);
            holds_with(&p, pairs, PipelineSchedule::ZbH1)?;
            holds_with(&p, pairs, PipelineSchedule::ZB_V)?;
            p.micro_batches = p.devices * (1 + p.micro_batches % 6);
            let exact = holds_with(&p, pairs, PipelineSchedule::Interleaved { chunks })?;
            prop_assert!(!exact);
        }
    }

    #[test]
    fn zero_bubble_is_bounded(mut p in pipelines(), model in models()) {
        p.micro_batches = p.micro_batches.min(40);
        for p in [p, UnequalEndsPipeline { micro_batches: model.micro_batches.min(40), ..model }] {
            holds(&p, PipelineSchedule::ZbH1)?;
            holds(&p, PipelineSchedule::ZB_V)?;
        }
    }

    #[test]
    fn interleaving_is_exact_where_it_says_so(mut p in pipelines(), chunks in 2_u32..6) {
        p.micro_batches = p.devices * (1 + p.micro_batches % 6);
        holds(&p, PipelineSchedule::Interleaved { chunks })?;
    }

    #[test]
    fn models_of_equal_layers_need_no_simulation(mut p in models(), chunks in 2_u32..6) {
        let even = p.first.forward >= p.inner.forward;
        // The closed form may be a mere bound if the first stage lacks a layer and stages have few layers. The first
        // stage is then shorter than the backward pass of another stage.
        let exact = holds(&p, PipelineSchedule::OneForwardOneBackward)?;
        prop_assert!(exact || (!even && p.inner.forward.0 < 5.0), "{p:?}");
        p.micro_batches = p.devices * (1 + p.micro_batches % 6);
        prop_assert_eq!(holds(&p, PipelineSchedule::Interleaved { chunks })?, even, "{:?}", p);
    }
}
