#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use proptest::prelude::*;
use sim::status::SolveStatus;
use sim::units::{Bytes, Seconds};

/// Small whole numbers, so that sums are exact and ties happen.
fn seconds(range: std::ops::Range<u32>) -> impl Strategy<Value = Seconds> {
    range.prop_map(|n| Seconds(f64::from(n)))
}

fn bytes(range: std::ops::Range<u64>) -> impl Strategy<Value = Bytes> {
    range.prop_map(Bytes)
}

fn policy() -> impl Strategy<Value = SegmentPolicy> {
    (0_u64..9, 0_u32..6, 0_u64..6).prop_map(|(stash, extra, workspace)| SegmentPolicy {
        id: (stash * 100 + workspace) as usize,
        stash: Bytes(stash),
        extra: Seconds(f64::from(extra)),
        workspace: Bytes(workspace),
    })
}

prop_compose! {
    fn segment(most: usize)(
        repeat in 1..=most,
        forward in seconds(0..5),
        backward in seconds(1..7),
        policies in prop::collection::vec(policy(), 1..4),
        replicated in bytes(0..8),
        sharded in prop_oneof![Just(Bytes(0)), bytes(0..12)],
        gradient in bytes(0..20),
        (optimizer, sharded_optimizer) in (seconds(0..4), prop_oneof![Just(Seconds(0.0)), seconds(0..8)]),
        transient in bytes(0..7),
        boundary in seconds(0..3),
    ) -> Segment {
        Segment {
            name: "s".into(), repeat, forward, backward, policies, replicated, sharded, gradient, optimizer,
            sharded_optimizer, transient, boundary,
        }
    }
}

/// Chains of at most seven pieces in at most six segments.
fn profile() -> impl Strategy<Value = ChainProfile> {
    let chains = prop_oneof![
        (segment(1), segment(5), segment(1)).prop_map(|(a, b, c)| vec![a, b, c]),
        (segment(2), segment(3), segment(2)).prop_map(|(a, b, c)| vec![a, b, c]),
        segment(7).prop_map(|a| vec![a]),
        prop::collection::vec(segment(1), 2..7),
    ];
    (chains, 8_u64..90, 0_u64..5).prop_map(|(segments, hbm, constant)| ChainProfile {
        segments,
        hbm: Bytes(hbm),
        constant: Bytes(constant),
    })
}

fn limits() -> impl Strategy<Value = ClusterLimits> {
    (1_u64..9, prop::sample::select(vec![1_u64, 2, 4, 6, 8, 12, 24]), 1_u64..3, 1_u64..3).prop_map(
        |(devices, global_batch, tensor_width, micro_batch)| ClusterLimits { devices, global_batch, tensor_width, micro_batch },
    )
}

/// A ring with a latency per rank.
fn ring(bytes: Bytes, ranks: u64, stride: u64) -> Seconds {
    Seconds((ranks + stride) as f64 * 0.5 + bytes.as_f64() * 0.25 * (ranks - 1) as f64)
}

/// The least extra seconds of the pieces `first..end` by trying every policy for every piece, and the least memory.
fn try_all_policies(profile: &ChainProfile, pieces: &[&Segment], depth: u64, degree: u64) -> (f64, u64) {
    let fixed = profile.constant.0
        + pieces.iter().map(|s| s.replicated.0).sum::<u64>()
        + pieces.iter().map(|s| s.sharded.0).sum::<u64>().div_ceil(degree);
    let (mut best, mut least) = (f64::INFINITY, u64::MAX);
    let mut digits = vec![0_usize; pieces.len()];
    loop {
        let chosen = || pieces.iter().zip(&digits).map(|(s, &d)| (s, &s.policies[d]));
        let stash: u64 = chosen().map(|(_, p)| p.stash.0).sum();
        let working = chosen().map(|(s, p)| p.workspace.0 + s.transient.0).max().unwrap();
        let need = fixed + depth * stash + working;
        least = least.min(need);
        if need <= profile.hbm.0 {
            best = best.min(chosen().map(|(_, p)| p.extra.0).sum());
        }
        let Some(next) = digits.iter().zip(pieces).position(|(&d, s)| d + 1 < s.policies.len()) else { break };
        digits[..next].fill(0);
        digits[next] += 1;
    }
    (best, least)
}

struct Found {
    step: f64,
    /// Devices, stages of the best plan by the tie rule.
    tie: (u64, usize),
    /// The least memory any plan needs on its fullest stage.
    least_memory: u64,
}

/// Every pair, every split, every policy of every piece. With `only`, that pair alone.
fn brute_force(profile: &ChainProfile, limits: ClusterLimits, only: Option<FixedPlacement>) -> Option<Found> {
    let pieces: Vec<&Segment> = profile.segments.iter().flat_map(|s| std::iter::repeat_n(s, s.repeat)).collect();
    let n = pieces.len();
    let mut found: Option<Found> = None;
    for p in 1..=n {
        for d in 1..=limits.devices {
            let devices = p as u64 * d * limits.tensor_width;
            let asked = only.is_none_or(|o| o.pipeline_stages == p && o.data_parallel == d);
            if !asked || devices > limits.devices || !limits.global_batch.is_multiple_of(d * limits.micro_batch) {
                continue;
            }
            let m = limits.global_batch / d / limits.micro_batch;
            // cut i after piece i where the bit is set
            for cuts in (0..1_u32 << (n - 1)).filter(|c| c.count_ones() as usize == p - 1) {
                let ends: Vec<usize> = (1..n).filter(|i| cuts >> (i - 1) & 1 == 1).chain([n]).collect();
                let (mut sum, mut slowest, mut tail, mut memory, mut first) = (0.0, 0.0_f64, 0.0_f64, 0, 0);
                for (k, &end) in ends.iter().enumerate() {
                    let own = &pieces[first..end];
                    let (extra, need) = try_all_policies(profile, own, m.min((p - k) as u64), d);
                    let mut time = extra + own.iter().map(|s| s.forward.0 + s.backward.0).sum::<f64>();
                    time += if first > 0 { pieces[first - 1].boundary.0 } else { 0.0 };
                    time += if end < n { pieces[end - 1].boundary.0 } else { 0.0 };
                    let gradients = own.iter().map(|s| s.gradient).sum::<Bytes>();
                    let reduce = if d > 1 && gradients.0 > 0 { ring(gradients, d, limits.tensor_width).0 } else { 0.0 };
                    let update: f64 = own.iter().map(|s| s.optimizer.0 + s.sharded_optimizer.0 / d as f64).sum();
                    sum += time;
                    slowest = slowest.max(time);
                    tail = tail.max(reduce + update);
                    memory = memory.max(need);
                    first = end;
                }
                let step = if sum.is_finite() { sum + (m - 1) as f64 * slowest + tail } else { sum };
                let best = found.get_or_insert(Found { step, tie: (devices, p), least_memory: memory });
                best.least_memory = best.least_memory.min(memory);
                let tied = step.is_finite() && (step - best.step).abs() <= 1e-11 * step;
                if step < best.step && !tied || tied && (devices, p) < best.tie {
                    (best.step, best.tie) = (step, (devices, p));
                }
            }
        }
    }
    found
}

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-9 * b.abs()
}

/// A fast answer and its bounds against what trying everything finds: never worse than its status says, never better than the truth.
fn check_sweep(profile: &ChainProfile, limits: ClusterLimits, found: Option<&Found>) -> Result<(), TestCaseError> {
    let sweep = place_with(profile, limits, &ring, Effort::Sweep).unwrap();
    let best = found.map_or(f64::INFINITY, |found| found.step);
    let Ok(plan) = &sweep.outcome else {
        prop_assert_eq!(best, f64::INFINITY);
        return Ok(());
    };
    prop_assert_eq!(verify_plan(profile, limits, &ring, plan), vec![]);
    let proven = plan.step.0 * (1.0 - sweep.status.gap().unwrap());
    prop_assert!(proven <= best * (1.0 + 1e-9) && best <= plan.step.0 * (1.0 + 1e-9), "{} {} {}", proven, best, plan.step);
    Ok(())
}

/// The answers to `profile` against trying everything.
fn check_best(profile: &ChainProfile, limits: ClusterLimits) -> Result<(), TestCaseError> {
    let placement = place(profile, limits, &ring).unwrap();
    let bound = lower_bound(profile, limits, &ring).unwrap();
    let found = brute_force(profile, limits, None);
    check_sweep(profile, limits, found.as_ref())?;
    match (&placement.outcome, found) {
        (Ok(plan), Some(found)) => {
            prop_assert_eq!(verify_plan(profile, limits, &ring, plan), vec![]);
            prop_assert!(close(plan.step.0, found.step), "{} {}", plan.step, found.step);
            prop_assert_eq!((plan.devices, plan.pipeline_stages), found.tie);
            prop_assert_eq!(&placement.status, &SolveStatus::Optimal);
            prop_assert!(bound.0 <= found.step * (1.0 + 1e-9));
        }
        (Err(NoPlan::OverCapacity(shortfall)), Some(found)) => {
            prop_assert_eq!(found.step, f64::INFINITY);
            prop_assert_eq!(shortfall.need, Bytes(found.least_memory));
            prop_assert!(shortfall.need > shortfall.have && shortfall.stage < shortfall.pipeline_stages);
        }
        (Err(NoPlan::TooFewDevices { .. } | NoPlan::BatchDoesNotDivide { .. }), None) => {
            prop_assert_eq!(bound.0, f64::INFINITY);
        }
        (outcome, _) => prop_assert!(false, "{:?}", outcome),
    }
    Ok(())
}

/// A segment whose pieces take a second, under one policy.
fn plain(repeat: usize, replicated: u64, stash: u64, working: (u64, u64), optimizer: (f64, f64)) -> Segment {
    Segment {
        name: "plain".into(),
        repeat,
        forward: Seconds(0.0),
        backward: Seconds(1.0),
        policies: vec![SegmentPolicy { id: 0, stash: Bytes(stash), extra: Seconds(0.0), workspace: Bytes(working.0) }],
        replicated: Bytes(replicated),
        sharded: Bytes(0),
        gradient: Bytes(0),
        optimizer: Seconds(optimizer.0),
        sharded_optimizer: Seconds(optimizer.1),
        transient: Bytes(working.1),
        boundary: Seconds(0.0),
    }
}

/// Pieces A A B B C, of which B fits only where at most two micro-batches are kept. A first stage that takes both A leaves B to the second
/// of four stages, which keeps three; the best plan has an A in each of the first two.
#[test]
fn a_full_early_stage_does_not_hide_splits_that_keep_large_pieces_late() {
    let segments =
        vec![plain(2, 1, 1, (0, 0), (2.0, 3.0)), plain(2, 7, 6, (4, 1), (1.0, 0.0)), plain(1, 0, 0, (0, 0), (0.0, 0.0))];
    let profile = ChainProfile { segments, hbm: Bytes(25), constant: Bytes(0) };
    let limits = ClusterLimits { devices: 4, global_batch: 6, tensor_width: 1, micro_batch: 1 };
    let plan = place(&profile, limits, &ring).unwrap().outcome.unwrap();
    assert_eq!(plan.step, Seconds(20.0));
    assert_eq!(plan.stages.iter().map(|s| s.end).collect::<Vec<_>>(), vec![1, 2, 3, 5]);
    check_best(&profile, limits).unwrap();
    let fixed = FixedPlacement { pipeline_stages: 4, data_parallel: 1 };
    let given = evaluate_fixed(&profile, limits, &ring, fixed, LayerSplit::Optimal).unwrap().outcome.unwrap();
    assert_eq!(given.step, Seconds(20.0));
}

/// The number of cases the environment asks for (`PROPTEST_CASES`), else `usual`.
fn cases(usual: u32) -> ProptestConfig {
    let config = ProptestConfig::default();
    if std::env::var_os("PROPTEST_CASES").is_some() { config } else { ProptestConfig { cases: usual, ..config } }
}

proptest! {
    #![proptest_config(cases(1500))]
    #[test]
    fn the_best_plan_is_what_trying_everything_finds(profile in profile(), limits in limits()) {
        check_best(&profile, limits)?;
    }

    #[test]
    fn a_given_placement_gets_its_best_policies_and_split(
        profile in profile(), limits in limits(), pipeline_stages in 1_usize..6, data_parallel in 1_u64..5,
    ) {
        let fixed = FixedPlacement { pipeline_stages, data_parallel };
        let optimal = evaluate_fixed(&profile, limits, &ring, fixed, LayerSplit::Optimal).unwrap();
        let even = evaluate_fixed(&profile, limits, &ring, fixed, LayerSplit::Even).unwrap();
        match (&optimal.outcome, brute_force(&profile, limits, Some(fixed))) {
            (Ok(plan), Some(found)) => {
                prop_assert_eq!(verify_plan(&profile, limits, &ring, plan), vec![]);
                prop_assert!(close(plan.step.0, found.step), "{} {}", plan.step, found.step);
            }
            (Err(NoPlan::OverCapacity(shortfall)), Some(found)) => {
                prop_assert_eq!(found.step, f64::INFINITY);
                prop_assert!(shortfall.need > shortfall.have);
            }
            (Err(_), None) => {}
            (outcome, _) => prop_assert!(false, "{:?}", outcome),
        }
        if let (Ok(even), Ok(optimal)) = (&even.outcome, &optimal.outcome) {
            prop_assert_eq!(verify_plan(&profile, limits, &ring, even), vec![]);
            prop_assert!(optimal.step.0 <= even.step.0 * (1.0 + 1e-9));
        }
        prop_assert!(optimal.outcome.is_ok() || even.outcome.is_err());
    }

    /// Memory that is tight leaves few splits: none may be overlooked.
    #[test]
    fn a_device_that_just_fits_is_enough(
        profile in profile(), limits in limits(), pipeline_stages in 1_usize..6, data_parallel in 1_u64..3,
    ) {
        let fixed = FixedPlacement { pipeline_stages, data_parallel };
        let devices = pipeline_stages as u64 * data_parallel * limits.tensor_width;
        let limits = ClusterLimits { devices, global_batch: data_parallel * limits.global_batch * limits.micro_batch, ..limits };
        let Some(Found { least_memory, .. }) = brute_force(&profile, limits, Some(fixed)) else { return Ok(()) };
        let fitting = ChainProfile { hbm: Bytes(least_memory), ..profile.clone() };
        let expected = brute_force(&fitting, limits, Some(fixed)).unwrap().step;
        let given = evaluate_fixed(&fitting, limits, &ring, fixed, LayerSplit::Optimal).unwrap();
        let plan = given.outcome.map_err(|why| TestCaseError::fail(why.to_string()))?;
        prop_assert!(close(plan.step.0, expected), "{} {}", plan.step, expected);
        check_best(&fitting, limits)?;
        if let Some(less) = least_memory.checked_sub(1) {
            let lacking = ChainProfile { hbm: Bytes(less), ..profile };
            let given = evaluate_fixed(&lacking, limits, &ring, fixed, LayerSplit::Optimal).unwrap();
            prop_assert!(matches!(given.outcome, Err(NoPlan::OverCapacity(_))));
            check_best(&lacking, limits)?;
        }
    }

    #[test]
    fn more_memory_or_devices_never_makes_it_slower(
        profile in profile(), limits in limits(), more in 1_u64..40, devices in 1_u64..5,
    ) {
        let step = |p: &ChainProfile, l| place(p, l, &ring).unwrap().outcome.map_or(f64::INFINITY, |plan| plan.step.0);
        let roomier = ChainProfile { hbm: profile.hbm + Bytes(more), ..profile.clone() };
        let larger = ClusterLimits { devices: limits.devices + devices, ..limits };
        let now = step(&profile, limits);
        prop_assert!(step(&roomier, limits) <= now * (1.0 + 1e-9));
        prop_assert!(step(&profile, larger) <= now * (1.0 + 1e-9));
    }
}

/// The least extra seconds of `count` equal pieces in `room` bytes, by totals: every stash total reachable with each cap on the working set.
fn mix_by_totals(policies: &[SegmentPolicy], count: usize, depth: u64, room: u64) -> f64 {
    let mut best = f64::INFINITY;
    for cap in policies.iter().map(|p| p.workspace.0).filter(|&cap| cap <= room) {
        let mut totals = std::collections::BTreeMap::from([(0_u64, 0.0_f64)]);
        for _ in 0..count {
            let mut next = std::collections::BTreeMap::new();
            for (stash, extra) in &totals {
                for policy in policies.iter().filter(|p| p.workspace.0 <= cap) {
                    let least = next.entry(stash + policy.stash.0).or_insert(f64::INFINITY);
                    *least = least.min(extra + policy.extra.0);
                }
            }
            totals = next;
        }
        let fitting = totals.into_iter().filter(|(stash, _)| stash * depth + cap <= room);
        best = best.min(fitting.map(|(_, extra)| extra).fold(f64::INFINITY, f64::min));
    }
    best
}

proptest! {
    #![proptest_config(cases(600))]
    #[test]
    fn a_stage_of_many_layers_gets_its_best_mix(
        // Stash, what a byte less costs in percent of the usual, workspace.
        raw in prop::collection::vec((0_u64..60, 80_u64..120, 0_u64..30), 2..9),
        count in 1_usize..16,
        fill in 0.0_f64..1.0,
    ) {
        let policies: Vec<SegmentPolicy> = raw.iter().enumerate().map(|(id, &(stash, percent, workspace))| SegmentPolicy {
            id, stash: Bytes(stash), extra: Seconds(((60 - stash) * percent) as f64), workspace: Bytes(workspace),
        }).collect();
        let most = 60 * count as u64 + 30;
        let segment = Segment {
            name: "layer".into(), repeat: count, forward: Seconds(100.0), backward: Seconds(200.0), policies: policies.clone(),
            replicated: Bytes(0), sharded: Bytes(0), gradient: Bytes(0), optimizer: Seconds(0.0), sharded_optimizer: Seconds(0.0),
            transient: Bytes(0), boundary: Seconds(0.0),
        };
        let profile = ChainProfile { segments: vec![segment], hbm: Bytes((most as f64 * fill) as u64), constant: Bytes(0) };
        let limits = ClusterLimits { devices: 1, global_batch: 1, tensor_width: 1, micro_batch: 1 };
        let expected = mix_by_totals(&policies, count, 1, profile.hbm.0) + 300.0 * count as f64;
        let proof = place(&profile, limits, &ring).unwrap();
        let sweep = place_with(&profile, limits, &ring, Effort::Sweep).unwrap();
        match (proof.outcome, sweep.outcome) {
            (Ok(plan), Ok(quick)) => {
                prop_assert!(close(plan.step.0, expected), "{} {expected}", plan.step);
                prop_assert_eq!(proof.status, SolveStatus::Optimal);
                prop_assert_eq!(verify_plan(&profile, limits, &ring, &plan), vec![]);
                prop_assert_eq!(verify_plan(&profile, limits, &ring, &quick), vec![]);
                let bound = quick.step.0 * (1.0 - sweep.status.gap().unwrap());
                prop_assert!(bound <= expected * (1.0 + 1e-9) && quick.step.0 >= expected * (1.0 - 1e-9));
            }
            (Err(_), Err(_)) => prop_assert_eq!(expected, f64::INFINITY),
            (proof, sweep) => prop_assert!(false, "{:?} {:?}", proof, sweep),
        }
    }
}
