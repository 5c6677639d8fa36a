//! The closed forms against the event simulation: equal, or a bound, as the module documentation states.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use proptest::prelude::*;

fn stage(forward: f64, backward: f64) -> PipelineStage {
    PipelineStage { forward: Seconds(forward), backward_input: Seconds(backward), ..PipelineStage::default() }
}

fn one_f_one_b(forward: &[f64], backward: &[f64], sends: &[f64], m: u32) -> Pipeline {
    Pipeline {
        stages: forward.iter().zip(backward).map(|(&f, &b)| stage(f, b)).collect(),
        sends: sends.iter().map(|&c| Seconds(c)).collect(),
        micro_batches: m,
        schedule: PipelineSchedule::OneForwardOneBackward,
        reduction: GradientReduction::AfterBackward,
        optimizer_waits_for_all: false,
    }
}

fn time(pipeline: &Pipeline) -> f64 {
    pipeline.simulate_without_records().unwrap().total.0
}

fn work(p: &Pipeline) -> Vec<StageWork> {
    p.stages.iter().map(|s| StageWork { forward: s.forward, backward: s.backward_seconds() }).collect()
}

fn totals(p: &Pipeline) -> Vec<Seconds> {
    work(p).iter().map(StageWork::total_seconds).collect()
}

fn planner(p: &Pipeline) -> f64 {
    one_f_one_b_time(&totals(p), &p.sends, p.micro_batches).0
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * a.abs().max(b.abs())
}

fn below(a: f64, b: f64) -> bool {
    a <= b * (1.0 + 1e-9)
}

#[test]
fn the_counterexamples_of_the_module_page_hold() {
    let early = one_f_one_b(&[6.0, 4.0, 4.0, 4.0, 4.0], &[6.0, 1.0, 1.0, 3.0, 3.0], &[0.0; 4], 6);
    assert_eq!((time(&early), planner(&early)), (72.0, 96.0));
    let f = [6.0, 1.0, 2.0, 4.0, 2.0, 2.0];
    let proportional = one_f_one_b(&f, &f.map(|x| 2.0 * x), &[0.0; 5], 6);
    assert_eq!((time(&proportional), planner(&proportional)), (111.0, 141.0));
    let mixed = one_f_one_b(&[5.0, 6.0, 1.0, 1.0], &[1.0, 1.0, 6.0, 1.0], &[0.0; 3], 5);
    assert_eq!((time(&mixed), planner(&mixed)), (53.0, 50.0));
    // Equal stages with sends: the round trip takes longer than the micro-batches in flight, (2 + 2 + 2) / 2 instead of
    // 2.
    let sends = one_f_one_b(&[1.0, 1.0], &[1.0, 1.0], &[1.0], 13);
    assert_eq!((time(&sends), planner(&sends)), (42.0, 42.0));
}

#[test]
fn a_trace_says_who_did_what_when() {
    let mut pipeline = one_f_one_b(&[1.0, 1.0], &[2.0, 2.0], &[0.5], 2);
    pipeline.stages[0].recompute = Seconds(1.0);
    pipeline.stages[1].optimizer = Seconds(0.25);
    let timeline = pipeline.simulate_step().unwrap();
    let lines: Vec<String> = timeline
        .events
        .iter()
        .map(|e| format!("{} {:?} {} {}..{}", e.device, e.kind, e.micro_batch, e.start.0, e.end.0))
        .collect();
    assert_eq!(
        lines,
        [
            "0 Forward 0 0..1",
            "0 Forward 1 1..2",
            "0 Recompute 0 5..6",
            "0 Backward 0 6..8",
            "0 Recompute 1 8..9",
            "0 Backward 1 9..11",
            "1 Forward 0 1.5..2.5",
            "1 Backward 0 2.5..4.5",
            "1 Forward 1 4.5..5.5",
            "1 Backward 1 5.5..7.5",
            "1 Optimizer 0 7.5..7.75",
        ]
    );
    assert_eq!((timeline.devices[0].bubble, timeline.devices[0].exposed_send), (Seconds(3.0), Seconds(0.5)));
    assert_eq!(timeline.total, Seconds(11.0));
}

#[test]
fn interleaving_shrinks_the_bubble_by_the_chunks() {
    for (p, chunks, m) in [(2_u32, 2_u32, 4_u32), (4, 2, 8), (4, 3, 8), (4, 4, 4), (8, 2, 16), (1, 2, 3)] {
        let pipeline = Pipeline::with_uniform_stages(
            stage(1.0, 2.0),
            (p * chunks) as usize,
            m,
            PipelineSchedule::Interleaved { chunks },
        );
        let expected = interleaved_time(Seconds(3.0), p, chunks, m).0;
        assert!(close(time(&pipeline), expected), "p {p} v {chunks} m {m}: {} {expected}", time(&pipeline));
    }
}

#[test]
fn zero_bubble_h1_fills_a_third_of_the_bubble_at_the_memory_of_the_first_stage() {
    let pass = PipelineStage {
        backward_weight: Seconds(1.0),
        stash: Bytes(10),
        stash_for_weights: Bytes(10),
        ..stage(1.0, 1.0)
    };
    for (p, m) in [(2_u32, 4_u32), (4, 8), (8, 16), (4, 4)] {
        let split = Pipeline::with_uniform_stages(pass, p as usize, m, PipelineSchedule::ZbH1);
        let timeline = split.simulate_without_records().unwrap();
        let expected = zb_h1_time(Seconds(1.0), Seconds(1.0), Seconds(1.0), p, m).0;
        assert!(close(timeline.total.0, expected), "p {p} m {m}: {} {expected}", timeline.total);
        for (k, device) in timeline.devices.iter().enumerate() {
            assert!(device.peak_memory.0 <= 10 * u64::from(passes_in_flight(PipelineSchedule::ZbH1, p, k as u32, m)));
        }
        let plain = Pipeline { schedule: PipelineSchedule::OneForwardOneBackward, ..split };
        assert!(timeline.total.0 < time(&plain));
    }
}

/// With equal passes, V-Half's bubble is smaller than 1F1B's, within half of 1F1B's memory plus one micro-batch. V-Min
/// stays near 1F1B's time within a third of the memory plus one micro-batch. Qi et al. (NeurIPS 2024, abstract) report
/// half the memory without loss of efficiency, and a third with comparable throughput.
#[test]
fn schedules_in_a_v_trade_memory_for_bubble() {
    let pass = PipelineStage {
        forward: Seconds(1.0),
        backward_input: Seconds(1.0),
        backward_weight: Seconds(1.0),
        stash: Bytes(1),
        stash_for_weights: Bytes(1),
        ..PipelineStage::default()
    };
    for p in [4_u32, 6, 8, 12, 16] {
        let m = 4 * p;
        let played = |schedule| {
            let timeline = Pipeline::with_uniform_stages(pass, 2 * p as usize, m, schedule).simulate_step().unwrap();
            let held = timeline.devices.iter().map(|device| device.peak_memory.0).max().unwrap();
            (timeline.total.0 - 6.0 * f64::from(m), held)
        };
        // A stage of 1F1B has both chunks, so its first device holds 2 p passes through a chunk.
        let plain = 6.0 * (f64::from(p) - 1.0);
        let [whole, half, third, dual] = VSchedule::ALL.map(|schedule| played(PipelineSchedule::InV(schedule)));
        for (schedule, (_, held)) in VSchedule::ALL.into_iter().zip([whole, half, third, dual]) {
            assert!(held <= u64::from(schedule.most_passes(p)), "{schedule:?} {p}: {held}");
        }
        assert!(whole.0 < half.0 && half.0 <= third.0, "{p}: {whole:?} {half:?} {third:?}");
        assert!(half.0 < plain, "{p}: {half:?} {plain}");
        assert!(third.0 < 1.6 * plain, "{p}: {third:?} {plain}");
    }
}

/// The DeepSeek-V3 Technical Report (table 2) gives `(PP / 2 - 1) (F&B + B - 3 W)` as the bubble of DualPipe over `PP`
/// stages, with one pass more in flight than 1F1B. The V has `PP / 2` devices. A forward and a backward pass that run
/// as one take `F&B = F + B` if they hide nothing. The formula holds for `B = 2 W`; with longer input gradients the
/// bubble is smaller.
#[test]
fn dual_pipe_v_has_the_published_bubble_and_memory() {
    let [weight, input] = [1.0, 1.5];
    let pass = PipelineStage {
        backward_weight: Seconds(weight),
        stash: Bytes(1),
        stash_for_weights: Bytes(1),
        ..stage(1.0, weight)
    };
    for (p, m) in [(1_u32, 2_u32), (2, 4), (2, 7), (3, 9), (4, 20), (8, 16), (8, 40)] {
        let played = |pass| {
            let pipeline = Pipeline::with_uniform_stages(pass, 2 * p as usize, m, PipelineSchedule::DUAL_PIPE_V);
            pipeline.simulate_step().unwrap()
        };
        let published = |back: f64| f64::from(p - 1) * (1.0 + back + back - 3.0 * weight);
        let (equal, longer) = (played(pass), played(PipelineStage { backward_input: Seconds(input), ..pass }));
        let bubble = |step: &Timeline, back: f64| step.total.0 - f64::from(m) * 2.0 * (1.0 + back);
        assert!(close(bubble(&equal, 2.0), published(2.0)), "{p} {m}: {}", bubble(&equal, 2.0));
        assert!(below(bubble(&longer, 2.5), published(2.5)), "{p} {m}: {}", bubble(&longer, 2.5));
        let most = equal.devices.iter().map(|device| device.peak_memory.0).max();
        assert_eq!(most, Some(u64::from(2 * p + 1).min(u64::from(2 * m))), "{p} {m}");
    }
}

#[test]
fn dual_pipe_v_needs_two_micro_batches_per_device() {
    let few = Pipeline::with_uniform_stages(stage(1.0, 1.0), 8, 7, PipelineSchedule::DUAL_PIPE_V);
    let said = few.simulate_step().unwrap_err().to_string();
    assert_eq!(said, "micro-batches under DualPipeV = 7: must be at least 8; raise it");
}

#[test]
fn zero_bubble_v_beats_h1_within_its_memory() {
    let pass = PipelineStage {
        backward_weight: Seconds(1.0),
        stash: Bytes(10),
        stash_for_weights: Bytes(10),
        ..stage(1.0, 1.0)
    };
    for (p, m) in [(2_u32, 8_u32), (4, 16), (8, 32)] {
        let v = Pipeline::with_uniform_stages(pass, 2 * p as usize, m, PipelineSchedule::ZB_V)
            .simulate_without_records()
            .unwrap();
        let whole = PipelineStage {
            forward: Seconds(2.0),
            backward_input: Seconds(2.0),
            backward_weight: Seconds(2.0),
            ..pass
        };
        let h1 = Pipeline::with_uniform_stages(whole, p as usize, m, PipelineSchedule::ZbH1)
            .simulate_without_records()
            .unwrap();
        assert!(v.total < h1.total, "p {p}: {} {}", v.total, h1.total);
        assert!(
            v.devices
                .iter()
                .all(|d| d.peak_memory.0 <= 10 * u64::from(passes_in_flight(PipelineSchedule::ZB_V, p, 0, m)))
        );
    }
}

#[test]
fn reductions_overlap_in_buckets() {
    let once = PipelineStage { reduction: Seconds(4.0), ..stage(1.0, 2.0) };
    let mut pipeline = Pipeline::with_uniform_stages(once, 1, 3, PipelineSchedule::OneForwardOneBackward);
    assert_eq!(time(&pipeline), 9.0 + 4.0);
    pipeline.reduction = GradientReduction::Overlapped { buckets: 4 };
    // The first quarter is ready at 7.5; from then on the network is the bottleneck.
    assert_eq!(time(&pipeline), 7.5 + 4.0);
    pipeline.stages[0].reduction = Seconds(0.4);
    assert!(close(time(&pipeline), 9.0 + 0.1));
}

#[test]
fn errors_say_what_would_do() {
    let p = Pipeline::with_uniform_stages(stage(1.0, 1.0), 8, 6, PipelineSchedule::Interleaved { chunks: 2 });
    let text = p.simulate_step().unwrap_err().to_string();
    assert_eq!(text, "6 micro-batches on 4 interleaved devices: must be a multiple; use 4 or 8");
    let p = Pipeline::with_uniform_stages(stage(1.0, 1.0), 7, 8, PipelineSchedule::Interleaved { chunks: 2 });
    let text = p.simulate_step().unwrap_err().to_string();
    assert_eq!(text, "7 virtual stages do not divide into 2 chunks per device; use 6 or 8");
    let p = Pipeline::with_uniform_stages(stage(f64::NAN, 1.0), 2, 8, PipelineSchedule::GPipe);
    assert!(p.simulate_step().unwrap_err().to_string().starts_with("stage 0: forward = NaN: must be a finite number"));
}

/// Stages and sends of small integers and halves make ties frequent.
fn uneven() -> impl Strategy<Value = (Vec<(f64, f64, f64)>, u32)> {
    let one = (1_u32..=6, 1_u32..=6, 0_u32..=3).prop_map(|(f, b, c)| (f64::from(f), f64::from(b), f64::from(c) / 2.0));
    (prop::collection::vec(one, 1..7), 1_u32..16)
}

fn build(stages: &[(f64, f64, f64)], m: u32, backward: impl Fn(f64, f64) -> f64, sends: f64) -> Pipeline {
    let f: Vec<f64> = stages.iter().map(|s| s.0).collect();
    let b: Vec<f64> = stages.iter().map(|s| backward(s.0, s.1)).collect();
    let c: Vec<f64> = stages.iter().skip(1).map(|s| s.2 * sends).collect();
    one_f_one_b(&f, &b, &c, m)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn the_planners_time_is_exact_for_equal_totals(raw in uneven()) {
        let p = build(&raw.0, raw.1, |f, _| 7.0 - f, 0.0);
        prop_assert!(close(time(&p), planner(&p)));
        prop_assert!(close(time(&p), one_f_one_b_lower_bound(&work(&p), &p.sends, raw.1).0));
    }

    #[test]
    fn the_planners_time_is_an_upper_bound_for_equal_ratios(raw in uneven(), ratio in prop::sample::select(vec![0.5, 1.0, 2.0, 3.0])) {
        for sends in [0.0, 1.0] {
            let p = build(&raw.0, raw.1, |f, _| f * ratio, sends);
            prop_assert!(below(time(&p), planner(&p)), "{} {}", time(&p), planner(&p));
        }
        let mut p = build(&raw.0, raw.1, |f, _| f * ratio, 0.0);
        let slack: f64 = planner(&p) - time(&p);
        let t = totals(&p);
        let first_slowest = (0..t.len()).fold(0, |a, b| if t[b] > t[a] { b } else { a });
        let after: f64 = t[first_slowest + 1..].iter().map(|s| s.0).sum();
        prop_assert!(below(slack, after + 1e-9), "slack {slack} after {after}");
        let slowest = p.stages.iter().fold(0.0_f64, |a, s| a.max(s.forward.0));
        let last = p.stages.len() - 1;
        p.stages[last] = stage(slowest, slowest * ratio);
        prop_assert!(close(time(&p), planner(&p)));
    }

    #[test]
    fn bounds_hold_for_any_stages_and_sends(raw in uneven(), sends in prop::sample::select(vec![0.0, 1.0, 4.0])) {
        let p = build(&raw.0, raw.1, |_, b| b, sends);
        let t = time(&p);
        prop_assert!(below(one_f_one_b_lower_bound(&work(&p), &p.sends, raw.1).0, t));
        prop_assert!(below(t, one_f_one_b_upper_bound(&totals(&p), &p.sends, raw.1).0));
    }

    #[test]
    fn the_recurrence_is_the_simulation(raw in uneven(), sends in prop::sample::select(vec![0.0, 1.0, 4.0])) {
        let p = build(&raw.0, raw.1, |_, b| b, sends);
        prop_assert!(close(time(&p), one_f_one_b_exact_time(&work(&p), &p.sends, raw.1).0));
    }

    #[test]
    fn the_period_is_what_a_micro_batch_more_costs(raw in uneven(), sends in prop::sample::select(vec![0.0, 1.0, 4.0])) {
        // The two numbers of micro-batches, 240 and 360, differ by a multiple of every interval's length.
        let long = |m| time(&build(&raw.0, m, |_, b| b, sends));
        let p = build(&raw.0, 1, |_, b| b, sends);
        let period = one_f_one_b_period(&totals(&p), &p.sends).0;
        prop_assert!(close((long(360) - long(240)) / 120.0, period));
    }

    #[test]
    fn gpipe_is_two_flow_shops(raw in uneven()) {
        let mut p = build(&raw.0, raw.1, |_, b| b, 1.0);
        p.schedule = PipelineSchedule::GPipe;
        prop_assert!(close(time(&p), gpipe_time(&work(&p), &p.sends, raw.1).0));
    }

    #[test]
    fn peak_memory_is_the_closed_form(raw in uneven(), stash in 1_u64..1000, working in 0_u64..100) {
        let mut p = build(&raw.0, raw.1, |_, b| b, 1.0);
        for (i, s) in p.stages.iter_mut().enumerate() {
            (s.stash, s.working, s.resident) = (Bytes(stash + i as u64), Bytes(working), Bytes(7 * i as u64));
        }
        for schedule in [PipelineSchedule::OneForwardOneBackward, PipelineSchedule::GPipe] {
            p.schedule = schedule;
            let timeline = p.simulate_step().unwrap();
            for (k, device) in timeline.devices.iter().enumerate() {
                let s = &p.stages[k];
                let depth = u64::from(passes_in_flight(schedule, p.device_count(), k as u32, raw.1));
                prop_assert_eq!(device.peak_memory, s.resident + s.stash * depth + s.working);
                let curve = device.memory.iter().map(|(_, b)| *b).max();
                prop_assert_eq!(curve, Some(device.peak_memory));
                prop_assert_eq!(device.memory.last().map(|(_, b)| *b), Some(s.resident));
            }
        }
    }

    #[test]
    fn interleaved_memory_is_the_closed_form(p in 1_u32..6, chunks in 2_u32..5, rounds in 1_u32..4) {
        let each = PipelineStage { stash: Bytes(5), ..stage(1.0, 2.0) };
        let m = p * rounds;
        let schedule = PipelineSchedule::Interleaved { chunks };
        let timeline = Pipeline::with_uniform_stages(each, (p * chunks) as usize, m, schedule).simulate_step().unwrap();
        for (k, device) in timeline.devices.iter().enumerate() {
            prop_assert_eq!(device.peak_memory, Bytes(5) * u64::from(passes_in_flight(schedule, p, k as u32, m)));
        }
    }

    /// With the same passes, however uneven, ZB-H1 takes at most as long as 1F1B and holds at most [`passes_in_flight`]
    /// passes. Qi et al. state a bubble of (p - 1)(F + B - W) instead of (p - 1)(F + B + W).
    #[test]
    fn zb_h1_is_never_longer_than_1f1b(
        raw in uneven(),
        weights in prop::collection::vec(0_u32..20, 8),
        sends in prop::sample::select(vec![0.0, 1.0, 4.0]),
    ) {
        let mut p = build(&raw.0, raw.1, |_, b| b, sends);
        for (stage, weight) in p.stages.iter_mut().zip(weights.iter().cycle()) {
            (stage.backward_weight, stage.recompute) = (Seconds(f64::from(*weight)), Seconds(0.5));
            (stage.reduction, stage.optimizer) = (stage.forward, Seconds(0.25));
            (stage.stash, stage.stash_for_weights) = (Bytes(3), Bytes(1));
        }
        let plain = p.simulate_step().unwrap();
        p.schedule = PipelineSchedule::ZbH1;
        let split = p.simulate_step().unwrap();
        prop_assert!(below(split.total.0, plain.total.0), "{} {}", split.total, plain.total);
        prop_assert_eq!(p.simulate_without_records().unwrap().total, split.total);
        for (k, device) in split.devices.iter().enumerate() {
            let depth = u64::from(passes_in_flight(PipelineSchedule::ZbH1, p.device_count(), k as u32, raw.1));
            prop_assert!(device.peak_memory <= Bytes(3) * depth);
        }
    }

    #[test]
    fn every_schedule_does_all_the_work_in_order(raw in uneven(), kind in 0_usize..8) {
        let schedule = [
            PipelineSchedule::GPipe, PipelineSchedule::OneForwardOneBackward, PipelineSchedule::Interleaved { chunks: 2 }, PipelineSchedule::ZbH1, PipelineSchedule::ZB_V,
            PipelineSchedule::V_HALF, PipelineSchedule::V_MIN, PipelineSchedule::DUAL_PIPE_V,
        ][kind];
        let (mut stages, m) = raw;
        if schedule.chunks_per_device() == 2 {
            stages.extend(stages.clone());
        }
        let devices = stages.len() as u32 / schedule.chunks_per_device();
        let m = if kind == 2 { m * devices } else { m.max(schedule.least_micro_batches(devices)) };
        let mut p = build(&stages, m, |_, b| b, 1.0);
        p.schedule = schedule;
        for s in &mut p.stages {
            (s.backward_weight, s.recompute) = (Seconds(1.0), Seconds(0.5));
            (s.reduction, s.optimizer) = (s.forward * 0.5, Seconds(0.25));
        }
        p.optimizer_waits_for_all = m.is_multiple_of(2);
        if m.is_multiple_of(3) {
            p.reduction = GradientReduction::Overlapped { buckets: 4 };
        }
        let timeline = p.simulate_step().unwrap();
        prop_assert!(below(p.lower_bound().0, timeline.total.0), "{} {}", p.lower_bound(), timeline.total);
        let busy: f64 = timeline.devices.iter().map(|d| d.busy.0).sum();
        let expected: f64 = p.stages.iter().map(|s| (s.forward + s.backward_seconds()).0).sum::<f64>() * f64::from(m);
        prop_assert!(close(busy, expected), "{busy} {expected}");
        prop_assert!(timeline.devices.iter().all(|d| d.bubble.0 >= 0.0 && d.exposed_send.0 >= 0.0));
        let passes: Vec<_> = timeline.events.iter().filter(|e| e.kind != PipelineEventKind::Reduction).collect();
        for pair in passes.windows(2).filter(|w| w[0].device == w[1].device) {
            prop_assert!(pair[0].end.0 <= pair[1].start.0 + 1e-9);
        }
        // A longer pass or send never speeds up a fixed order, nor the best of several orders.
        if !p.sends.is_empty() {
            p.sends[0] += Seconds(1.0);
            prop_assert!(time(&p) >= timeline.total.0 - 1e-9);
        }
        let before = time(&p);
        let passes = &mut p.stages[m as usize % stages.len()];
        (passes.forward, passes.backward_weight) = (passes.forward * 1.5, passes.backward_weight * 1.25);
        prop_assert!(time(&p) >= before - 1e-9);
    }
}
