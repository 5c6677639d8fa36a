//! Compares offload and mixes with exhaustive search.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::tests::random_layer;
use super::*;
use proptest::prelude::*;
use sim::units::{Bytes, Seconds};

/// The least added seconds within a budget, over all rerun sets and all placements of the retained tensors on the host
/// and in storage.
fn fastest_by_trying(layer: &LayerTensors, links: &CopyLinks, budget: u64) -> Option<f64> {
    let mut best: Option<f64> = None;
    for mask in 0..1_u32 << layer.operators.len() {
        let set = (0..layer.operators.len())
            .filter(|o| mask >> o & 1 == 1)
            .fold(OperatorSet::EMPTY, OperatorSet::with_operator);
        if set.iter().any(|o| !layer.operators[o].recomputable) {
            continue;
        }
        let choices = layer.tensor_choices(set);
        let kept: Vec<u64> = choices
            .iter()
            .zip(&layer.tensors)
            .filter(|(c, _)| **c == TensorChoice::Keep)
            .map(|(_, t)| t.bytes.0)
            .collect();
        let extra = layer.policy_of_rerun(set).extra.0;
        for places in 0..3_u32.pow(kept.len() as u32) {
            let of = |place: u32| {
                let here = kept.iter().enumerate().filter(|(i, _)| places / 3_u32.pow(*i as u32) % 3 == place);
                here.map(|(_, b)| *b).sum::<u64>()
            };
            let added = extra + links.exposed_copy_seconds(OffloadedBytes { host: of(1), storage: of(2) }, extra);
            if of(0) <= budget && added.is_finite() {
                best = Some(best.map_or(added, |best: f64| best.min(added)));
            }
        }
    }
    best
}

fn links() -> impl Strategy<Value = CopyLinks> {
    let rate = || {
        (0_u32..3, 0_u32..8).prop_map(|(latency, per_byte)| CopyRate {
            latency: f64::from(latency),
            per_byte: f64::from(per_byte) / 4.0,
        })
    };
    (prop::option::of(rate()), prop::option::of(rate()), 0_u32..3, 0_u32..30, 0_u32..30).prop_map(
        |(host, storage, hidden, forward, backward)| CopyLinks {
            host,
            storage,
            hidden: f64::from(hidden) / 2.0,
            forward: f64::from(forward),
            backward: f64::from(backward),
        },
    )
}

fn times(layer: &LayerTensors) -> Vec<Seconds> {
    layer.operators.iter().map(|o| o.forward).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]
    #[test]
    fn offload_is_what_trying_everything_finds(
        seed in prop::collection::vec(any::<u32>(), 40..80),
        operators in 1_usize..5,
        link in links(),
        part in 0_u64..=8,
    ) {
        let layer = random_layer(&seed, operators);
        let all: u64 = layer.policy_of_rerun(OperatorSet::EMPTY).stash.0;
        let budget = all * part / 8;
        let wanted = fastest_by_trying(&layer, &link, budget);
        let found = fastest_by_ilp(&layer, &link, Bytes(budget)).unwrap();
        prop_assert_eq!(found.is_some(), wanted.is_some());
        let space = RecomputeSpace::new(layer.clone()).unwrap();
        let front = LayerFront::new(&space, &times(&layer), Some(link)).unwrap();
        // A choice with a part of a tensor accounts for exactly the tokens that are away.
        for choice in &front.choices {
            let part = |t: &TensorIndex| match &choice.share {
                Some((of, share)) if of.contains(t) && !share.recomputed => share.offloaded_bytes(layer.tensors[t.0].bytes),
                _ => layer.tensors[t.0].bytes,
            };
            let again = choice.share.as_ref().filter(|(_, share)| share.recomputed);
            let less = again.map_or(Bytes::ZERO, |(of, share)| {
                let all: Bytes = of.iter().map(|t| layer.tensors[t.0].bytes).sum();
                all.saturating_sub(share.offloaded_bytes(all))
            });
            let sum = |tensors: &[TensorIndex]| match tensors.iter().map(part).sum::<Bytes>() {
                Bytes(0) => Bytes(0),
                all => all.saturating_sub(less),
            };
            prop_assert_eq!((choice.host, choice.storage), (sum(&choice.offloaded), sum(&choice.stored)));
            let retained = layer.policy_of_rerun(choice.operators).stash;
            let extra = layer.policy_of_rerun(choice.operators).extra;
            if again.is_some() {
                // If only a part of the tokens is rerun, the other tokens retain more. So the choice retains at least
                // the policy's bytes, and its reruns take at most the policy's time.
                prop_assert!(choice.stash + choice.host + choice.storage >= retained && choice.again <= extra);
            } else {
                prop_assert_eq!((choice.stash + choice.host + choice.storage, choice.again), (retained, extra));
            }
            let away = OffloadedBytes { host: choice.host.0, storage: choice.storage.0 };
            let extra = choice.again.0;
            prop_assert!((choice.added.0 - extra - link.exposed_copy_seconds(away, extra)).abs() <= 1e-9);
        }
        if let (Some(BoundedChoice { choice: found, bound }), Some(wanted)) = (found, wanted) {
            prop_assert!(bound.0 <= wanted + 1e-6 && found.stash.0 <= budget, "{bound} {wanted}");
            prop_assert!((found.added.0 - wanted).abs() <= 1e-6 * (1.0 + wanted), "{} {}", found.added.0, wanted);
            // Nothing is lost: every retained tensor is on the device or away.
            prop_assert_eq!(found.stash + found.host + found.storage, layer.policy_of_rerun(found.operators).stash);
            prop_assert!(front.lower_bound_within(Bytes(budget)).unwrap().0 <= wanted + 1e-9);
            let choice = front.fastest_within(Bytes(budget)).unwrap();
            prop_assert!(choice.added.0 >= front.lower_bound_within(Bytes(budget)).unwrap().0 - 1e-9);
        }
        // More room is never slower.
        let added = |budget: u64| front.fastest_within(Bytes(budget)).map_or(f64::INFINITY, |choice| choice.added.0);
        prop_assert!(added(budget + 1) <= added(budget));
    }

    #[test]
    fn a_link_without_end_makes_offload_free_and_one_without_rate_leaves_what_runs_again(
        seed in prop::collection::vec(any::<u32>(), 40..80),
        operators in 1_usize..9,
        part in 0_u64..8,
    ) {
        let space = RecomputeSpace::new(random_layer(&seed, operators)).unwrap();
        let times = times(space.layer());
        let budget = Bytes(space.layer().policy_of_rerun(OperatorSet::EMPTY).stash.0 * part / 8);
        let rate = |per_byte| Some(CopyRate { latency: 0.0, per_byte });
        let to_host = |per_byte| CopyLinks { host: rate(per_byte), storage: None, hidden: 1.0, forward: 0.0, backward: 0.0 };
        let to_storage = |per_byte| CopyLinks { host: None, storage: rate(per_byte), ..to_host(0.0) };
        for links in [to_host(0.0), to_storage(0.0)] {
            let free = LayerFront::new(&space, &times, Some(links)).unwrap();
            prop_assert_eq!(free.fastest_within(budget).unwrap().added, Seconds(0.0));
            prop_assert_eq!(free.lower_bound_within(budget), Some(Seconds(0.0)));
        }
        let without = LayerFront::new(&space, &times, None).unwrap();
        let slow = [to_host(1e12), to_storage(1e12)].map(|links| LayerFront::new(&space, &times, Some(links)).unwrap());
        // If the inputs alone exceed the budget, only a host can hold them.
        if let Some(kept) = without.fastest_within(budget) {
            for slow in &slow {
                prop_assert_eq!(slow.fastest_within(budget).unwrap().added, kept.added);
            }
            let exact = space.front(&times).unwrap();
            let least = exact.iter().filter(|policy| policy.stash <= budget).map(|policy| policy.extra.0).fold(f64::INFINITY, f64::min);
            prop_assert_eq!(kept.added.0, least);
        }
    }
}

/// The least time of any mix of a stage's layers, by exhaustive search.
fn mix_by_trying(question: &MixQuestion<'_>) -> Option<f64> {
    fn counts(layers: u64, kinds: usize) -> Vec<Vec<u64>> {
        if kinds == 1 {
            return vec![vec![layers]];
        }
        let with = |n: u64| counts(layers - n, kinds - 1).into_iter().map(move |rest| [vec![n], rest].concat());
        (0..=layers).flat_map(with).collect()
    }
    let mut best: Option<f64> = None;
    for counts in counts(question.layers, question.points.len()) {
        if fits(question, &counts.iter().copied().enumerate().collect::<Vec<_>>()) {
            let time = counts.iter().zip(question.points).map(|(n, p)| *n as f64 * p.time).sum();
            best = Some(best.map_or(time, |best: f64| best.min(time)));
        }
    }
    best
}

fn fits(question: &MixQuestion<'_>, counts: &[(usize, u64)]) -> bool {
    let sum = |of: fn(&MixPoint) -> u64| counts.iter().map(|(at, n)| n * of(&question.points[*at])).sum::<u64>() as f64;
    let working = counts.iter().filter(|(_, n)| *n > 0).map(|(at, _)| question.points[*at].working).max().unwrap_or(0);
    let kept = question.depth * sum(|p| p.kept);
    kept + working as f64 <= question.room as f64
        && question.kept.is_none_or(|room| kept <= room as f64)
        && question.depth * sum(|p| p.host) <= question.host as f64
        && question.depth * sum(|p| p.storage) <= question.storage as f64
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn mixes_are_what_trying_every_one_finds(
        points in prop::collection::vec((0_u64..40, 0_u64..12, 0_u64..9, 0_u64..20, 1_u32..40), 1..6),
        layers in 1_u64..6,
        depth in 1_u32..4,
        room in 0_u64..500,
        kept in prop::option::of(0_u64..500),
        away in prop::array::uniform2(prop::option::of(0_u64..80)),
    ) {
        let point = |(kept, host, storage, working, time)| MixPoint { kept, host, storage, working, time: f64::from(time) };
        let points: Vec<MixPoint> = points.into_iter().map(point).collect();
        let [host, storage] = away.map(|bytes| bytes.unwrap_or(1 << 40));
        let question = MixQuestion { points: &points, layers, depth: f64::from(depth), room, kept, host, storage };
        let wanted = mix_by_trying(&question);
        let found = question.find_best_mix();
        prop_assert_eq!(found.is_some(), wanted.is_some(), "{:?} {:?}", found, wanted);
        if let (Some(found), Some(wanted)) = (&found, wanted) {
            prop_assert!(fits(&question, &found.counts), "{found:?}");
            prop_assert_eq!(found.counts.iter().map(|(_, n)| *n).sum::<u64>(), layers);
            prop_assert!(found.bound <= wanted + 1e-9, "{found:?} {wanted}");
            prop_assert!((found.time - wanted).abs() <= 1e-9 * wanted, "{found:?} {wanted}");
        }
    }
}
