#![allow(clippy::unwrap_used)]

use super::*;
use proptest::prelude::*;
use sim::hardware::Template;
use sim::kernel::{Collective, CollectiveKind, Group};
use sim::network::LinkMatrix;
use sim::pipeline::Schedule;
use sim::units::Bytes;
use step::{ChipTimes, SoftwareStack, TrainingPlan, step_time};
use workloads::footprint::{Optimizer, Precision};
use workloads::training::Attention;
use workloads::{ActivationPolicy, Batch, LayerEnds, Layout, Model};

const QUICK: Effort = Effort { moves: 3_000, starts: 3 };

/// A symmetric matrix from the rates of its upper triangle, GB/s.
fn fabric(unit: u32, units: usize, rates: &[f64]) -> Fabric {
    let mut rows = vec![vec![0.0; units]; units];
    let pairs = (0..units).flat_map(|a| (a + 1..units).map(move |b| (a, b)));
    for ((a, b), rate) in pairs.zip(rates.iter().cycle()) {
        (rows[a][b], rows[b][a]) = (*rate, *rate);
    }
    let links = LinkMatrix::from_gb_per_s(&rows).unwrap();
    let selene = Fabric::template("selene_hdr200x8").unwrap().with_fast_domain(unit.max(2)).unwrap();
    selene.with_links(&links, unit, "a test").unwrap()
}

/// Tensor, data and pipeline traffic of `t x d x p` ranks.
fn traffic(t: u32, d: u32, p: u32, micro_batches: u32) -> StepTraffic {
    let stage = t * d;
    let mut demands = Vec::new();
    for s in 0..p {
        let mut add = |axis, role, kind, mib: u64, ranks, stride| {
            let collective = Collective { kind, bytes: Bytes(mib << 20), group: Group { ranks, stride } };
            let blocks = stage / (ranks * stride);
            if ranks > 1 {
                demands.push(Demand { axis, role, collective, weight: 1.0, first: s * stage, lanes: stride, blocks });
            }
        };
        add(TrafficAxis::Tensor, Role::Pass(s as usize), CollectiveKind::AllReduce, 32, t, 1);
        add(TrafficAxis::Data, Role::Once(s as usize), CollectiveKind::AllReduce, 1024 + 64 * u64::from(s), d, t);
        if s + 1 < p {
            let collective =
                Collective { kind: CollectiveKind::SendRecv, bytes: Bytes(16 << 20), group: Group { ranks: 2, stride: stage } };
            let (axis, role) = (TrafficAxis::Pipeline, Role::Send(s as usize, s as usize + 1));
            demands.push(Demand { axis, role, collective, weight: 2.0, first: s * stage, lanes: stage, blocks: 1 });
        }
    }
    let pace = Pace { micro_batches, rhythm: Rhythm::Alternating };
    StepTraffic {
        degrees: [t, 1, d, p],
        pace,
        busy: vec![1e-3; p as usize],
        leads: (0..p).map(|s| f64::from(s) * 2e-4).collect(),
        demands,
        rest: 0.0,
    }
}

/// The least time over all assignments, by trying them.
fn exhaustive(traffic: &StepTraffic, fabric: &Fabric) -> f64 {
    fn go(devices: &mut Vec<u32>, at: usize, try_one: &mut impl FnMut(&[u32])) {
        if at == devices.len() {
            return try_one(devices);
        }
        for i in at..devices.len() {
            devices.swap(at, i);
            go(devices, at + 1, try_one);
            devices.swap(at, i);
        }
    }
    let mut best = f64::INFINITY;
    let mut devices: Vec<u32> = (0..traffic.ranks()).collect();
    go(&mut devices, 0, &mut |d| best = best.min(mapped_time(traffic, fabric, d).unwrap().0));
    best
}

/// Slices of a torus (2 x 2 devices each) joined by links of these rates.
fn slices(units: usize, rates: &[f64]) -> Fabric {
    let flat = fabric(4, units, rates);
    let mut slices = Fabric::template("tpu_v4_ici").unwrap().for_devices(4).unwrap();
    assert!(slices.tiers.len() == 1 && matches!(slices.tiers[0].topology, sim::network::Topology::Torus { .. }));
    slices.tiers.push(flat.tiers[1].clone());
    slices
}

/// The least time over all orders of the axes and all orders of whole units, by trying them.
fn exhaustive_units(traffic: &StepTraffic, fabric: &Fabric, unit: u32) -> f64 {
    fn permutations(list: Vec<u32>) -> Vec<Vec<u32>> {
        if list.len() < 2 {
            return vec![list];
        }
        let without = |i: usize| list.iter().enumerate().filter(move |(j, _)| *j != i).map(|(_, x)| *x).collect();
        (0..list.len())
            .flat_map(|i| permutations(without(i)).into_iter().map(move |rest: Vec<u32>| (i, rest)))
            .map(|(i, rest)| [vec![list[i]], rest].concat())
            .collect()
    }
    let mut best = f64::INFINITY;
    for (_, devices) in starts(traffic, unit, true) {
        for order in permutations((0..fabric.devices() / unit).collect()) {
            let moved: Vec<u32> = devices.iter().map(|d| order[(d / unit) as usize] * unit + d % unit).collect();
            best = best.min(mapped_time(traffic, fabric, &moved).unwrap().0);
        }
    }
    best
}

/// Two racks with fast links inside, whose nodes are numbered one way or another.
#[test]
fn the_numbering_of_units_does_not_matter() {
    let traffic = traffic(4, 16, 2, 8);
    let mapped = |stride: u32| {
        let rack = |unit: u32| unit * stride % 16 / 8;
        let pairs = (0..16).flat_map(|a| (a + 1..16).map(move |b| (a, b)));
        let rates: Vec<f64> = pairs.map(|(a, b)| if rack(a) == rack(b) { 100.0 } else { 25.0 }).collect();
        map_ranks(&traffic, &fabric(8, 16, &rates), QUICK).unwrap().after.0
    };
    let sorted = mapped(1);
    for stride in [3, 5, 7, 9] {
        assert!((mapped(stride) / sorted - 1.0).abs() < 1e-9, "stride {stride}: {} and {sorted}", mapped(stride));
    }
}

#[test]
fn whole_slices_reach_the_optimum_and_the_bound_is_below_it() {
    let rates = [11.0, 25.0, 7.0, 19.0, 3.0, 23.0, 13.0, 5.0, 17.0, 29.0];
    for (t, d, p) in [(4, 3, 1), (4, 1, 4), (2, 4, 2), (4, 2, 2), (1, 8, 2), (2, 2, 4), (4, 5, 1), (2, 2, 5), (8, 2, 1)] {
        let (traffic, fabric) = (traffic(t, d, p, 4), slices((t * d * p / 4) as usize, &rates));
        let mapping = map_ranks(&traffic, &fabric, QUICK).unwrap();
        let best = exhaustive_units(&traffic, &fabric, 4);
        let place = format!("t {t}, d {d}, p {p}: {mapping:?}, best {best}");
        assert!((mapping.after.0 / best - 1.0).abs() < 1e-9, "{place}");
        assert!(mapping.lower_bound.0 <= best * (1.0 + 1e-9) && mapping.lower_bound.0 > mapping.without_links.0, "{place}");
        assert!(is_permutation(&mapping) && mapping.after <= mapping.before && mapping.whole_units);
        // What shares a slice in some order of the axes still does.
        let orders = starts(&traffic, 4, true);
        let together = |devices: &[u32]| {
            let mut units: Vec<Vec<u32>> = vec![Vec::new(); (t * d * p / 4) as usize];
            devices.iter().enumerate().for_each(|(rank, device)| units[(device / 4) as usize].push(rank as u32));
            units.sort();
            units
        };
        assert!(orders.iter().any(|(_, devices)| together(devices) == together(&mapping.devices)), "{place}");
    }
}

#[test]
fn on_equal_links_a_group_costs_what_the_fabric_says() {
    let fabric = slices(4, &[20.0]);
    let step = traffic(2, 4, 2, 4);
    let mut prices = price::Prices::new(&fabric);
    assert!(prices.whole);
    for (id, demand) in step.demands.iter().enumerate() {
        let whole = fabric.collective(&demand.collective);
        for group in demand.groups() {
            let cost = prices.among(id, demand, group.iter().copied());
            assert!((cost / (whole.startup + whole.transfer).0 - 1.0).abs() < 1e-9, "{demand:?}: {cost} {whole:?}");
        }
    }
}

fn is_permutation(mapping: &RankMapping) -> bool {
    let mut devices = mapping.devices.clone();
    devices.sort_unstable();
    devices.iter().copied().eq(0..devices.len() as u32)
}

#[test]
fn small_cases_reach_the_optimum_and_the_bound_is_below_it() {
    let rates = [11.0, 25.0, 7.0, 19.0, 3.0, 23.0, 13.0, 5.0, 17.0, 29.0, 2.0, 31.0, 37.0, 9.0, 15.0, 21.0];
    for (unit, t, d, p) in [(2, 2, 3, 1), (2, 1, 3, 2), (1, 1, 3, 2), (1, 2, 3, 1), (2, 2, 1, 3), (3, 2, 3, 1), (1, 1, 2, 3)] {
        let (traffic, fabric) = (traffic(t, d, p, 4), fabric(unit, (t * d * p / unit) as usize, &rates));
        let mapping = map_ranks(&traffic, &fabric, QUICK).unwrap();
        let best = exhaustive(&traffic, &fabric);
        let place = format!("unit {unit}, t {t}, d {d}, p {p}: {mapping:?}, best {best}");
        assert!((mapping.after.0 / best - 1.0).abs() < 1e-9, "{place}");
        assert!(mapping.lower_bound.0 <= best * (1.0 + 1e-9) && mapping.lower_bound.0 > mapping.without_links.0, "{place}");
        assert!(is_permutation(&mapping));
    }
}

#[test]
fn axes_that_talk_most_are_put_inside_units() {
    // Ranks count tensor first, but the data axis carries the traffic: its pairs belong on nodes.
    let mut heavy = traffic(2, 2, 1, 1);
    heavy.demands[0].collective.bytes = Bytes(1 << 10);
    let mapping = map_ranks(&heavy, &fabric(2, 2, &[10.0]), QUICK).unwrap();
    assert_eq!(mapping.order[0], TrafficAxis::Data);
    assert!(mapping.after.0 < mapping.before.0 / 4.0, "{mapping:?}");
    assert_eq!(mapping.devices[0] / 2, mapping.devices[2] / 2);
}

#[test]
fn what_cannot_be_mapped_is_refused() {
    let step = traffic(2, 2, 1, 1);
    let flat = Fabric::template("selene_hdr200x8").unwrap();
    assert!(map_ranks(&step, &flat, QUICK).unwrap_err().to_string().contains("not a matrix of links"));
    let wrong = map_ranks(&step, &fabric(2, 3, &[5.0]), QUICK).unwrap_err().to_string();
    assert!(wrong.starts_with("4 ranks on 6 devices"), "{wrong}");
}

fn plan(tensor: u32, data: u32, pipeline: u32) -> TrainingPlan {
    TrainingPlan {
        layout: Layout { tensor, data, pipeline, sequence_parallel: tensor > 1, ..Layout::default() },
        batch: Batch { micro_batch: 1, global_batch: u64::from(data) * 16, sequence_length: 2048 },
        activations: ActivationPolicy::Selective,
        attention: Attention::Fused,
        precision: Precision::MIXED_BF16,
        optimizer: Optimizer::Adam,
        schedule: Schedule::OneForwardOneBackward,
    }
}

#[test]
fn where_units_stand_changes_neither_the_traffic_nor_the_bound() {
    let model = Model::load("llama2-7b").unwrap();
    let chip = Template::find("a100_80gb_sxm").unwrap().accelerator.clone();
    let mut chip = ChipTimes::new(&chip, &SoftwareStack::load("megatron").unwrap()).unwrap();
    // Two islands of four nodes each, one node after the other or in turns.
    let rate = |a: usize, b: usize| if a / 4 == b / 4 { 40.0 } else { 4.0 };
    let rows: Vec<Vec<f64>> = (0..8).map(|a| (0..8).map(|b| if a == b { 0.0 } else { rate(a, b) }).collect()).collect();
    let links = LinkMatrix::from_gb_per_s(&rows).unwrap();
    let selene = Fabric::template("selene_hdr200x8").unwrap();
    let islands = selene.with_links(&links, 8, "a test").unwrap();
    let turns = islands.clone().permuted(&[0, 4, 1, 5, 2, 6, 3, 7]);
    for (t, d, p) in [(2, 4, 8), (8, 2, 4), (4, 8, 2), (8, 8, 1)] {
        let plan = plan(t, d, p);
        let [one, other] = [&islands, &turns].map(|fabric| {
            let traffic = StepTraffic::of(&mut chip, &model, fabric, &plan).unwrap();
            let mapping = map_ranks(&traffic, fabric, QUICK).unwrap();
            (traffic, mapping)
        });
        assert!((one.0.rest - other.0.rest).abs() <= 1e-9 * one.0.rest && one.0.demands == other.0.demands);
        let [low, also] = [one.1.lower_bound.0, other.1.lower_bound.0];
        let place = format!("t {t} d {d} p {p}: {} {} in order, {low} {also} at least", one.1.after, other.1.after);
        assert!((low / also - 1.0).abs() < 1e-9 && low.max(also) <= one.1.after.0.min(other.1.after.0) * (1.0 + 1e-9), "{place}");
    }
}

#[test]
fn on_equal_links_the_rank_order_takes_what_the_step_takes() {
    let model = Model::load("llama2-7b").unwrap();
    let chip = Template::find("a100_80gb_sxm").unwrap().accelerator.clone();
    let mut chip = ChipTimes::new(&chip, &SoftwareStack::load("megatron").unwrap()).unwrap();
    let fabric = Fabric::template("vivaldi_mpigraph_0").unwrap().with_equal_links();
    let even = |t, d, p, v, schedule| (t, d, p, v, schedule, None);
    let (plain, interleaved) = (Schedule::OneForwardOneBackward, |chunks| Schedule::Interleaved { chunks });
    let thin = Some(LayerEnds { first: 1, last: 1, shorter: 0 });
    let cases = [
        // Stages of a node and more, and of half and a quarter of one: of their sends some cross nodes, others do not.
        even(8, 4, 4, 1, plain),
        even(8, 8, 2, 1, plain),
        even(2, 2, 32, 1, plain),
        even(2, 1, 32, 1, plain),
        even(4, 1, 32, 1, plain),
        even(1, 8, 16, 2, interleaved(2)),
        even(2, 4, 16, 2, interleaved(2)),
        even(2, 4, 4, 1, Schedule::GPipe),
        even(2, 4, 4, 1, Schedule::ZbH1),
        even(2, 4, 4, 2, Schedule::ZbV),
        // Ends lighter than what is between, and heavier.
        (2, 4, 4, 2, interleaved(2), thin),
        (2, 4, 4, 1, plain, thin),
        (1, 4, 8, 1, Schedule::GPipe, Some(LayerEnds { first: 1, last: 7, shorter: 0 })),
        (1, 4, 8, 2, interleaved(2), Some(LayerEnds { first: 3, last: 1, shorter: 0 })),
    ];
    for (t, d, p, v, schedule, ends) in cases {
        let (mut plan, devices) = (plan(t, d, p), t * d * p);
        plan.layout = Layout { virtual_stages: v, ends, ..plan.layout };
        plan.schedule = schedule;
        plan.batch.global_batch = u64::from(d * p) * 2;
        let fabric = fabric.for_devices(devices).unwrap();
        let traffic = StepTraffic::of(&mut chip, &model, &fabric, &plan).unwrap();
        let identity: Vec<u32> = (0..devices).collect();
        let direct = step_time(&mut chip, &model, &fabric, &plan).unwrap().total;
        let mapped = mapped_time(&traffic, &fabric, &identity).unwrap();
        let place = format!("t {t} d {d} p {p} v {v} {schedule:?} {ends:?}");
        assert!((mapped.0 / direct.0 - 1.0).abs() < 1e-9, "{place}: {mapped} mapped, {direct} in the step model");
        // The paths alone are no longer than the step, but for what stages exchange while others have passes left.
        let early = traffic.demands.iter().any(|demand| matches!(demand.role, Role::Once(_) | Role::End));
        assert!(early || traffic.rest >= -1e-9 * direct.0, "{place}: {} of {direct}", traffic.rest);
    }
}

#[test]
fn a_plan_on_measured_nodes_gains_what_the_step_model_says() {
    let model = Model::load("llama2-7b").unwrap();
    let chip = Template::find("a100_80gb_sxm").unwrap().accelerator.clone();
    let mut chip = ChipTimes::new(&chip, &SoftwareStack::load("megatron").unwrap()).unwrap();
    let fabric = Fabric::template("vivaldi_mpigraph_0").unwrap();
    let plan = plan(8, 4, 4);
    let traffic = StepTraffic::of(&mut chip, &model, &fabric, &plan).unwrap();
    let mapping = map_ranks(&traffic, &fabric, QUICK).unwrap();
    let direct = step_time(&mut chip, &model, &fabric, &plan).unwrap().total;
    // The step prices every link like the slowest in its pattern, the mapping each like itself: equal where links are (above), close here.
    assert!((mapping.before.0 / direct.0 - 1.0).abs() < 0.01, "rank order takes what the step takes: {mapping:?} {direct:?}");
    assert!(mapping.after < mapping.before && mapping.lower_bound <= mapping.after);
    // Where whole nodes were moved, the step model prices the moved fabric alike.
    let nodes: Vec<u32> = mapping.devices.chunks(8).map(|c| c[0] / 8).collect();
    let whole = mapping.devices.chunks(8).zip(&nodes).all(|(c, node)| c.iter().all(|d| d / 8 == *node));
    assert!(whole, "tensor groups of 8 stay on their nodes: {:?}", mapping.devices);
    let moved = step_time(&mut chip, &model, &fabric.permuted(&nodes), &plan).unwrap().total;
    // It takes the slowest link of any stage for every stage: no faster, and close.
    let slower = moved.0 / mapping.after.0 - 1.0;
    assert!((-0.01..0.02).contains(&slower), "{} {}", mapping.after, moved);
    assert!(moved < direct);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn mapped_is_never_slower_and_never_below_the_bound(
        rates in prop::collection::vec(1.0..40.0_f64, 28),
        shape in prop::sample::select(vec![(2, 2, 2, 2), (2, 2, 4, 1), (1, 2, 2, 2), (4, 2, 2, 2), (2, 4, 2, 2), (2, 1, 8, 1)]),
        micro_batches in 1..32_u32,
    ) {
        let (unit, t, d, p) = shape;
        let (traffic, fabric) = (traffic(t, d, p, micro_batches), fabric(unit, (t * d * p / unit) as usize, &rates));
        let mapping = map_ranks(&traffic, &fabric, Effort { moves: 600, starts: 2 }).unwrap();
        prop_assert!(mapping.after <= mapping.before && mapping.after <= mapping.ordered);
        prop_assert!(mapping.lower_bound <= mapping.after);
        prop_assert!(is_permutation(&mapping));
        let again = mapped_time(&traffic, &fabric, &mapping.devices).unwrap();
        prop_assert!((again.0 / mapping.after.0 - 1.0).abs() < 1e-12);
        prop_assert_eq!(&mapping, &map_ranks(&traffic, &fabric, Effort { moves: 600, starts: 2 }).unwrap());
    }

    #[test]
    fn on_equal_links_whole_nodes_may_go_anywhere_and_the_bound_is_met(
        rate in 1.0..40.0_f64,
        swaps in prop::collection::vec((0..4_usize, 0..4_usize), 1..6),
    ) {
        let (traffic, fabric) = (traffic(2, 2, 2, 8), fabric(2, 4, &[rate]));
        let mut nodes: Vec<u32> = (0..4).collect();
        for (a, b) in swaps {
            nodes.swap(a, b);
        }
        let devices: Vec<u32> = nodes.iter().flat_map(|n| [2 * n, 2 * n + 1]).collect();
        let mapping = map_ranks(&traffic, &fabric, Effort { moves: 600, starts: 2 }).unwrap();
        let moved = mapped_time(&traffic, &fabric, &devices).unwrap();
        prop_assert!((moved.0 / mapping.before.0 - 1.0).abs() < 1e-12);
        let (t, f) = (super::tests::traffic(1, 6, 1, 8), super::tests::fabric(1, 6, &[rate]));
        let flat = map_ranks(&t, &f, Effort { moves: 600, starts: 2 }).unwrap();
        prop_assert_eq!(flat.status, SolveStatus::Optimal);
        prop_assert!((flat.after.0 / flat.before.0 - 1.0).abs() < 1e-12);
    }

    #[test]
    fn slower_links_are_never_faster(
        rates in prop::collection::vec(2.0..40.0_f64, 6),
        slow in 0..6_usize,
        devices in Just((0..8_u32).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        let step = traffic(2, 2, 2, 8);
        let before = mapped_time(&step, &fabric(2, 4, &rates), &devices).unwrap();
        let mut slower = rates.clone();
        slower[slow] /= 2.0;
        prop_assert!(mapped_time(&step, &fabric(2, 4, &slower), &devices).unwrap() >= before);
    }
}
