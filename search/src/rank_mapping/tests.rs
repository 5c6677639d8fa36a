#![allow(clippy::unwrap_used)]

use super::*;
use proptest::prelude::*;
use sim::hardware::ChipTemplate;
use sim::network::LinkMatrix;
use sim::pipeline::PipelineSchedule;
use step::{
    ChipTimes, PlacedNetwork, SoftwareStack, StepWork, TrainingPlan, lowering_of_plan, step_time, step_time_of,
};
use workloads::footprint::{Optimizer, Precision};
use workloads::training::Attention;
use workloads::{ActivationPolicy, Batch, LayerEnds, Layout, Model, RankOrder, TrainingGraph, ZeroStage};

const QUICK: RankMappingEffort = RankMappingEffort { moves: 3_000, starts: 3 };

/// A symmetric matrix from the rates of its upper triangle, GB/s.
fn matrix(units: usize, rates: &[f64]) -> LinkMatrix {
    let mut rows = vec![vec![0.0; units]; units];
    let pairs = (0..units).flat_map(|a| (a + 1..units).map(move |b| (a, b)));
    for ((a, b), rate) in pairs.zip(rates.iter().cycle()) {
        (rows[a][b], rows[b][a]) = (*rate, *rate);
    }
    LinkMatrix::from_gb_per_s(&rows).unwrap()
}

fn fabric(unit: u32, units: usize, rates: &[f64]) -> Fabric {
    let selene = Fabric::built_in("selene_hdr200x8").unwrap().with_fast_domain(unit.max(2)).unwrap();
    selene.with_links(&matrix(units, rates), unit, "a test").unwrap()
}

/// Slices of a torus (2 x 2 devices each), joined by links of these rates.
fn slices(units: usize, rates: &[f64]) -> Fabric {
    let flat = fabric(4, units, rates);
    let mut slices = Fabric::built_in("tpu_v4_ici").unwrap().for_devices(4).unwrap();
    assert!(slices.tiers.len() == 1 && matches!(slices.tiers[0].topology, sim::network::Topology::Torus { .. }));
    slices.tiers.push(flat.tiers[1].clone());
    slices
}

/// A model on A100s under a stack.
struct Machine {
    model: Model,
    chip: ChipTimes,
}

impl Machine {
    fn new(model: &str, stack: &str) -> Self {
        let chip = ChipTemplate::find_built_in("a100_80gb_sxm").unwrap().accelerator.clone();
        let chip = ChipTimes::new(&chip, &SoftwareStack::load(stack).unwrap()).unwrap();
        Self { model: Model::load(model).unwrap(), chip }
    }

    fn traffic(&self, fabric: &Fabric, plan: &TrainingPlan) -> StepTraffic<'_> {
        StepTraffic::of_plan(&mut self.chip.clone(), &self.model, fabric, plan).unwrap()
    }

    fn step(&self, fabric: &Fabric, plan: &TrainingPlan) -> f64 {
        step_time(&mut self.chip.clone(), &self.model, fabric, plan).unwrap().total.0
    }

    fn map(&self, fabric: &Fabric, plan: &TrainingPlan, effort: RankMappingEffort) -> RankMapping {
        map_ranks(&self.traffic(fabric, plan), fabric, effort).unwrap()
    }

    fn work(&self, plan: &TrainingPlan) -> StepWork {
        let graph = TrainingGraph::new(&self.model, &lowering_of_plan(&self.model, plan, self.chip.stack())).unwrap();
        self.chip.clone().work_of_lowered(&self.model, &graph, plan).unwrap()
    }

    /// The step model's time with ranks on the given devices, without the mapping's short cuts.
    fn placed(&self, fabric: &Fabric, plan: &TrainingPlan, work: &StepWork, devices: &[u32]) -> f64 {
        let (placed, mut chip) = (PlacedNetwork::new(fabric, devices.to_vec()), self.chip.clone());
        let profile = work.price_on_network(&mut chip, &placed).unwrap();
        step_time_of(&mut chip, &self.model, &placed, plan, &profile).unwrap().total.0
    }

    /// The least time over all given assignments.
    fn least(&self, fabric: &Fabric, plan: &TrainingPlan, assignments: impl Iterator<Item = Vec<u32>>) -> f64 {
        let work = self.work(plan);
        assignments.map(|devices| self.placed(fabric, plan, &work, &devices)).fold(f64::INFINITY, f64::min)
    }
}

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

fn plan(tensor: u32, data: u32, pipeline: u32) -> TrainingPlan {
    TrainingPlan {
        layout: Layout { tensor, data, pipeline, sequence_parallel: tensor > 1, ..Layout::default() },
        batch: Batch { micro_batch: 1, global_batch: u64::from(data) * 16, sequence_length: 512 },
        activations: ActivationPolicy::Selective.into(),
        attention: Attention::Fused,
        precision: Precision::MIXED_BF16,
        optimizer: Optimizer::Adam,
        schedule: PipelineSchedule::OneForwardOneBackward,
        techniques: workloads::Techniques::default(),
    }
}

fn sharded(plan: TrainingPlan, zero: ZeroStage) -> TrainingPlan {
    TrainingPlan { layout: Layout { zero, ..plan.layout }, ..plan }
}

fn scheduled(plan: TrainingPlan, schedule: PipelineSchedule, virtual_stages: u32) -> TrainingPlan {
    TrainingPlan { layout: Layout { virtual_stages, ..plan.layout }, schedule, ..plan }
}

/// Plans of up to six devices, with the devices in a unit.
fn small_plans() -> Vec<(u32, TrainingPlan)> {
    let pipeline_first =
        |plan: TrainingPlan| TrainingPlan { layout: Layout { order: RankOrder::PipelineFirst, ..plan.layout }, ..plan };
    vec![
        (1, plan(1, 4, 1)),
        (1, plan(4, 1, 1)),
        (1, plan(2, 2, 1)),
        (1, sharded(plan(1, 4, 1), ZeroStage::OptimizerStates)),
        (1, sharded(plan(1, 5, 1), ZeroStage::Parameters)),
        (1, sharded(plan(2, 2, 1), ZeroStage::OptimizerStates)),
        (1, plan(1, 3, 2)),
        (1, plan(1, 1, 6)),
        (1, plan(1, 2, 3)),
        (1, pipeline_first(plan(1, 2, 2))),
        (1, scheduled(plan(1, 2, 2), PipelineSchedule::Interleaved { chunks: 2 }, 2)),
        (1, scheduled(plan(1, 2, 2), PipelineSchedule::GPipe, 1)),
        (2, plan(2, 3, 1)),
        (2, plan(1, 2, 3)),
        (2, sharded(plan(2, 1, 3), ZeroStage::OptimizerStates)),
        (2, sharded(plan(1, 6, 1), ZeroStage::OptimizerStates)),
        (3, plan(2, 3, 1)),
        (2, sharded(plan(2, 2, 1), ZeroStage::Parameters)),
    ]
}

fn rates() -> impl Strategy<Value = Vec<f64>> {
    prop::collection::vec((0.0..6.0_f64).prop_map(f64::exp2), 15)
}

/// A case of the laws: a stack, the devices per unit and a plan on up to six devices, and the rates of the links.
fn case() -> impl Strategy<Value = (String, (u32, TrainingPlan), Vec<f64>)> {
    (prop::sample::select(SoftwareStack::built_in_names()), prop::sample::select(small_plans()), rates())
}

fn units(unit: u32, plan: &TrainingPlan) -> u32 {
    plan.layout.device_count() as u32 / unit
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// No assignment is below the bound. An answer called optimal is the least of all. Rank order takes the plan's own
    /// time.
    #[test]
    fn no_assignment_is_below_the_bound_or_an_optimum((stack, (unit, plan), rates) in case()) {
        let machine = Machine::new("bert-large", &stack);
        let fabric = fabric(unit, units(unit, &plan) as usize, &rates);
        let mapping = machine.map(&fabric, &plan, QUICK);
        let all = permutations((0..fabric.device_count()).collect()).into_iter();
        let least = machine.least(&fabric, &plan, all);
        prop_assert!(mapping.lower_bound.0 <= least * (1.0 + 1e-9), "{mapping:?}, least {least}");
        prop_assert!(bound::lower_bound_of_mappings(&machine.traffic(&fabric, &plan), &fabric) <= least * (1.0 + 1e-9));
        prop_assert!((mapping.after.0 / least - 1.0).abs() <= 1e-9, "{mapping:?}, least {least}");
        prop_assert!(mapping.status == SolveStatus::Optimal);
        // The times are compared only if links differ. Equal links are priced as a switch, which ignores that groups of
        // two straddle units of three.
        let step = machine.step(&fabric, &plan);
        prop_assert!(!fabric.links_differ() || (mapping.before.0 / step - 1.0).abs() <= 1e-12, "{mapping:?}, step {step}");
        let placed = machine.placed(&fabric, &plan, &machine.work(&plan), &mapping.devices);
        prop_assert!((mapping.after.0 / placed - 1.0).abs() <= 1e-12, "{mapping:?}, placed {placed}");
    }

    /// The numbering of units changes neither the best step nor the bounds.
    #[test]
    fn relabelled_units_have_the_same_best_step_and_bound(
        (stack, (unit, plan), rates) in case(),
        order in Just((0..6_u32).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        let machine = Machine::new("bert-large", &stack);
        let units = units(unit, &plan);
        let one = fabric(unit, units as usize, &rates);
        let order: Vec<u32> = order.into_iter().filter(|unit| *unit < units).collect();
        let other = one.clone().permute_units(&order);
        let [a, b] = [&one, &other].map(|fabric| machine.map(fabric, &plan, QUICK));
        let [low, also] = [&one, &other].map(|fabric| bound::lower_bound_of_mappings(&machine.traffic(fabric, &plan), fabric));
        prop_assert!((a.after.0 / b.after.0 - 1.0).abs() <= 1e-9, "{a:?} {b:?}");
        prop_assert!((a.lower_bound.0 / b.lower_bound.0 - 1.0).abs() <= 1e-9 && (low / also - 1.0).abs() <= 1e-9);
        prop_assert_eq!(a.without_links, b.without_links);
    }

    /// A faster link slows no assignment, no best step and no bound.
    #[test]
    fn a_faster_link_is_never_slower(
        (stack, (unit, plan), rates) in case(),
        link in 0..15_usize,
        faster in (0.0..7.0_f64).prop_map(f64::exp2),
        devices in Just((0..6_u32).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        let machine = Machine::new("bert-large", &stack);
        let units = units(unit, &plan);
        let mut better = rates.clone();
        better[link % (units * (units - 1) / 2) as usize] *= faster;
        let [one, other] = [&rates, &better].map(|rates| fabric(unit, units as usize, rates));
        let devices: Vec<u32> = devices.into_iter().filter(|device| *device < one.device_count()).collect();
        let work = machine.work(&plan);
        let [a, b] = [&one, &other].map(|fabric| machine.placed(fabric, &plan, &work, &devices));
        prop_assert!(b <= a * (1.0 + 1e-9), "{devices:?} takes {a}, then {b}");
        let [a, b] = [&one, &other].map(|fabric| machine.map(fabric, &plan, QUICK));
        prop_assert!(b.after.0 <= a.after.0 * (1.0 + 1e-9) && b.lower_bound.0 <= a.lower_bound.0 * (1.0 + 1e-9), "{a:?} {b:?}");
        prop_assert!(b.before.0 <= a.before.0 * (1.0 + 1e-9) && a.without_links == b.without_links, "{a:?} {b:?}");
        let [a, b] = [&one, &other].map(|fabric| bound::lower_bound_of_mappings(&machine.traffic(fabric, &plan), fabric));
        prop_assert!(b <= a * (1.0 + 1e-9), "bounds {a} and {b}");
    }

    /// On a matrix of equal links a step takes as long as on a switch.
    #[test]
    fn links_alike_are_a_switch(stack in prop::sample::select(SoftwareStack::built_in_names()), plan in prop::sample::select(small_plans()), rate in 1.0..60.0_f64) {
        let ((unit, plan), machine) = (plan, Machine::new("bert-large", &stack));
        let links = fabric(unit, units(unit, &plan) as usize, &[rate]);
        let mut switch = links.clone();
        switch.tiers.last_mut().unwrap().topology = sim::network::Topology::Switch;
        let [a, b] = [&links, &switch].map(|fabric| machine.step(fabric, &plan));
        prop_assert!((a / b - 1.0).abs() <= 1e-9, "{a} on links, {b} on the switch");
        let [a, b] = [&links, &switch].map(|fabric| machine.map(&fabric.with_written_links().unwrap(), &plan, QUICK));
        prop_assert_eq!(a, b);
    }

    /// Cases too large for exhaustive search. The answer is no slower than its starts, no faster than the bound, and
    /// reproducible.
    #[test]
    fn mapped_is_never_slower_and_never_below_the_bound(
        stack in prop::sample::select(SoftwareStack::built_in_names()),
        rates in prop::collection::vec(1.0..40.0_f64, 28),
        shape in prop::sample::select(vec![(2, 4, 2, 2), (1, 2, 2, 4), (4, 2, 4, 2), (2, 2, 8, 1), (2, 1, 16, 1), (1, 1, 4, 3)]),
    ) {
        let ((unit, t, d, p), machine) = (shape, Machine::new("bert-large", &stack));
        let (plan, effort) = (plan(t, d, p), RankMappingEffort { moves: 600, starts: 2 });
        let fabric = fabric(unit, (t * d * p / unit) as usize, &rates);
        let mapping = machine.map(&fabric, &plan, effort);
        prop_assert!(mapping.after <= mapping.before && mapping.after <= mapping.ordered);
        prop_assert!(mapping.lower_bound <= mapping.after && mapping.lower_bound >= mapping.without_links, "{mapping:?}");
        prop_assert!(is_permutation(&mapping));
        let placed = machine.placed(&fabric, &plan, &machine.work(&plan), &mapping.devices);
        prop_assert!((placed / mapping.after.0 - 1.0).abs() < 1e-12);
        prop_assert_eq!(&mapping, &machine.map(&fabric, &plan, effort));
    }

    /// The numbering does not matter in a heuristic search either, if no two units have links of equal rates.
    #[test]
    fn searches_do_not_see_numbers(
        rates in prop::collection::vec(1.0..40.0_f64, 28),
        order in Just((0..8_u32).collect::<Vec<_>>()).prop_shuffle(),
    ) {
        let (machine, plan, effort) = (Machine::new("bert-large", "megatron_core"), plan(2, 4, 2), RankMappingEffort { moves: 300, starts: 2 });
        let one = fabric(2, 8, &rates);
        let other = one.clone().permute_units(&order);
        let [a, b] = [&one, &other].map(|fabric| machine.map(fabric, &plan, effort));
        // The times may differ only if the shorter one is that of an order of the axes. Rank order is one of these, and
        // it depends on the numbering.
        prop_assert!((a.after.0 / b.after.0 - 1.0).abs() <= 1e-9 || a.after.0.min(b.after.0) == a.ordered.0.min(b.ordered.0), "{a:?} {b:?}");
        prop_assert!((a.lower_bound.0 / b.lower_bound.0 - 1.0).abs() <= 1e-9);
    }
}

/// Two racks with fast links inside and two numberings of their nodes.
#[test]
fn the_numbering_of_units_does_not_matter() {
    let (machine, plan) = (Machine::new("bert-large", "megatron"), plan(4, 16, 2));
    let mapped = |stride: u32| {
        let rack = |unit: u32| unit * stride % 16 / 8;
        let pairs = (0..16).flat_map(|a| (a + 1..16).map(move |b| (a, b)));
        let rates: Vec<f64> = pairs.map(|(a, b)| if rack(a) == rack(b) { 100.0 } else { 25.0 }).collect();
        machine.map(&fabric(8, 16, &rates), &plan, QUICK).after.0
    };
    let sorted = mapped(1);
    for stride in [3, 5, 7, 9] {
        assert!((mapped(stride) / sorted - 1.0).abs() < 1e-9, "stride {stride}: {} and {sorted}", mapped(stride));
    }
}

#[test]
fn whole_slices_reach_the_optimum_and_the_bound_is_below_it() {
    let rates = [11.0, 25.0, 7.0, 19.0, 3.0, 23.0, 13.0, 5.0, 17.0, 29.0];
    let machine = Machine::new("bert-large", "megatron_core");
    for (t, d, p) in [(4, 3, 1), (4, 1, 4), (2, 4, 2), (4, 2, 2), (1, 8, 2), (2, 2, 4), (4, 5, 1), (8, 2, 1)] {
        let (plan, fabric) = (plan(t, d, p), slices((t * d * p / 4) as usize, &rates));
        let traffic = machine.traffic(&fabric, &plan);
        let mapping = map_ranks(&traffic, &fabric, QUICK).unwrap();
        let orders = starting_orders(&traffic, 4, true);
        let moved = |devices: &[u32]| {
            let devices = devices.to_vec();
            let all = permutations((0..fabric.device_count() / 4).collect()).into_iter();
            all.map(move |order| devices.iter().map(|d| order[(d / 4) as usize] * 4 + d % 4).collect::<Vec<u32>>())
        };
        let best = machine.least(&fabric, &plan, orders.iter().flat_map(|order| moved(&order.devices)));
        let place = format!("t {t}, d {d}, p {p}: {mapping:?}, best {best}");
        assert!((mapping.after.0 / best - 1.0).abs() < 1e-9, "{place}");
        let bound = bound::lower_bound_of_mappings(&traffic, &fabric);
        assert!(bound <= best * (1.0 + 1e-9) && bound > mapping.without_links.0, "{bound}: {place}");
        assert!(is_permutation(&mapping) && mapping.after <= mapping.before && mapping.whole_units);
        // Ranks that share a slice in some order of the axes still share one.
        let together = |devices: &[u32]| {
            let mut units: Vec<Vec<u32>> = vec![Vec::new(); (t * d * p / 4) as usize];
            devices.iter().enumerate().for_each(|(rank, device)| units[(device / 4) as usize].push(rank as u32));
            units.sort();
            units
        };
        assert!(orders.iter().any(|order| together(&order.devices) == together(&mapping.devices)), "{place}");
    }
}

fn is_permutation(mapping: &RankMapping) -> bool {
    let mut devices = mapping.devices.clone();
    devices.sort_unstable();
    devices.iter().copied().eq(0..devices.len() as u32)
}

#[test]
fn axes_that_talk_most_are_put_inside_units() {
    // Ranks count tensor first. With few tokens the data axis carries the traffic, so its pairs belong on nodes.
    let machine = Machine::new("bert-large", "megatron");
    let few = TrainingPlan { batch: Batch { micro_batch: 1, global_batch: 2, sequence_length: 16 }, ..plan(2, 2, 1) };
    let mapping = machine.map(&fabric(2, 2, &[10.0]), &few, QUICK);
    assert_eq!(mapping.order[0], TrafficAxis::Data);
    assert!(mapping.after.0 < mapping.before.0 * 0.9, "{mapping:?}");
    assert_eq!(mapping.devices[0] / 2, mapping.devices[2] / 2);
}

#[test]
fn what_cannot_be_mapped_is_refused() {
    let machine = Machine::new("bert-large", "megatron");
    let step = machine.traffic(&fabric(2, 2, &[5.0]), &plan(2, 2, 1));
    let flat = Fabric::built_in("selene_hdr200x8").unwrap();
    assert!(map_ranks(&step, &flat, QUICK).unwrap_err().to_string().contains("not a matrix of links"));
    let wrong = map_ranks(&step, &fabric(2, 3, &[5.0]), QUICK).unwrap_err().to_string();
    assert!(wrong.starts_with("4 ranks on 6 devices"), "{wrong}");
}

#[test]
fn on_equal_links_the_rank_order_takes_what_the_step_takes() {
    let machine = Machine::new("llama2-7b", "megatron");
    let even = |t, d, p, v, schedule| (t, d, p, v, schedule, None);
    let (plain, interleaved) =
        (PipelineSchedule::OneForwardOneBackward, |chunks| PipelineSchedule::Interleaved { chunks });
    let thin = Some(LayerEnds { first: 1, last: 1, shorter: 0 });
    let cases = [
        // Stages of one node and more, of half a node and of a quarter: some of their sends cross nodes.
        even(8, 4, 4, 1, plain),
        even(8, 8, 2, 1, plain),
        even(2, 2, 32, 1, plain),
        even(2, 1, 32, 1, plain),
        even(4, 1, 32, 1, plain),
        even(1, 8, 16, 2, interleaved(2)),
        even(2, 4, 16, 2, interleaved(2)),
        even(2, 4, 4, 1, PipelineSchedule::GPipe),
        even(2, 4, 4, 1, PipelineSchedule::ZbH1),
        even(2, 4, 4, 2, PipelineSchedule::ZB_V),
        // End chunks lighter than the inner chunks, and heavier.
        (2, 4, 4, 2, interleaved(2), thin),
        (2, 4, 4, 1, plain, thin),
        (1, 4, 8, 1, PipelineSchedule::GPipe, Some(LayerEnds { first: 1, last: 7, shorter: 0 })),
        (1, 4, 8, 2, interleaved(2), Some(LayerEnds { first: 3, last: 1, shorter: 0 })),
    ];
    for (t, d, p, v, schedule, ends) in cases {
        let (mut plan, devices) = (plan(t, d, p), t * d * p);
        plan.layout = Layout { virtual_stages: v, ends, ..plan.layout };
        plan.schedule = schedule;
        plan.batch.global_batch = u64::from(d * p) * 2;
        for fabric in ["vivaldi_mpigraph_0", "selene_hdr200x8"] {
            // Different links, and equal links.
            let fabric = Fabric::built_in(fabric).unwrap().for_devices(devices).unwrap().with_written_links().unwrap();
            let identity: Vec<u32> = (0..devices).collect();
            let direct = machine.step(&fabric, &plan);
            let mapped = time_of_mapping(&machine.traffic(&fabric, &plan), &fabric, &identity).unwrap().total;
            let place = format!("t {t} d {d} p {p} v {v} {schedule:?} {ends:?}");
            assert!((mapped.0 / direct - 1.0).abs() < 1e-9, "{place}: {mapped} mapped, {direct} in the step model");
        }
    }
}

#[test]
fn a_plan_on_measured_nodes_gains_what_the_step_model_says() {
    let machine = Machine::new("llama2-7b", "megatron");
    let fabric = Fabric::built_in("vivaldi_mpigraph_0").unwrap();
    let plan = plan(8, 4, 4);
    let mapping = machine.map(&fabric, &plan, QUICK);
    assert!((mapping.before.0 / machine.step(&fabric, &plan) - 1.0).abs() < 1e-12);
    assert!(mapping.after < mapping.before && mapping.lower_bound <= mapping.after);
    // Only whole nodes were moved. So the step model takes the same time on a fabric with its nodes in the new order.
    let nodes: Vec<u32> = mapping.devices.chunks(8).map(|c| c[0] / 8).collect();
    let whole = mapping.devices.chunks(8).zip(&nodes).all(|(c, node)| c.iter().all(|d| d / 8 == *node));
    assert!(whole, "tensor groups of 8 stay on their nodes: {:?}", mapping.devices);
    let moved = machine.step(&fabric.permute_units(&nodes), &plan);
    assert!((moved / mapping.after.0 - 1.0).abs() < 1e-12, "{} {}", mapping.after, moved);
}

/// Four devices with the same links under two numberings. Reductions run beside passes.
#[test]
fn devices_of_two_numberings_have_one_answer() {
    let machine = Machine::new("bert-large", "megatron_core");
    let plan = sharded(plan(1, 4, 1), ZeroStage::OptimizerStates);
    let a = [18.619021, 17.562369, 17.398966, 18.772799, 17.109579, 18.758746];
    let b = [17.109579, 17.398966, 18.758746, 18.619021, 18.772799, 17.562369];
    let [a, b] = [a, b].map(|rates| machine.map(&fabric(1, 4, &rates), &plan, QUICK));
    assert!((a.after.0 / b.after.0 - 1.0).abs() < 1e-12 && a.status == SolveStatus::Optimal, "{a:?} {b:?}");
}

/// One link of six is a hundred times as fast, on the path of an all-reduce that host launches otherwise hide.
#[test]
fn a_link_a_hundred_times_as_fast_helps_or_does_nothing() {
    let machine = Machine::new("bert-large", "megatron");
    let plan = TrainingPlan {
        activations: ActivationPolicy::Full.into(),
        batch: Batch { micro_batch: 1, global_batch: 4, sequence_length: 512 },
        ..plan(4, 1, 1)
    };
    let map = |rate: f64| machine.map(&fabric(1, 4, &[50.0, 5.0, rate, 5.0, 6.0, 50.0]), &plan, QUICK);
    let [slow, fast] = [5.0, 500.0].map(map);
    assert!(
        fast.after <= slow.after && fast.lower_bound <= slow.lower_bound && fast.before <= slow.before,
        "{slow:?} {fast:?}"
    );
    assert_eq!(fast.without_links, slow.without_links);
}
