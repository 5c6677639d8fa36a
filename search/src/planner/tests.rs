//! The search over plans against exhaustive search.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use super::search_plans::search_once;
use super::{
    Job, MapRanks, NO_MARGIN, NeighbourOutcome, PlanAnswer, PlanSpace, PlanWatch, RankedPlan, SPLIT_TOLERANCE, Splits,
    default_policies, map_plans, neighbours, search_plans,
};
use crate::rank_mapping::RankMapping;
use measured::evidence::{PredictedQuantity, PredictionFacts, ResidualTable};
use sim::hardware::Accelerator;
use sim::network::Fabric;
use sim::pipeline::{PipelineSchedule, VSchedule};
use sim::units::Bytes;
use std::collections::BTreeSet;
use step::{ChipTimes, DeviceMemory, SoftwareStack, TrainingPlan, step_energy_of, step_memory, step_time};
use workloads::footprint::{Optimizer, Precision};
use workloads::training::{Attention, ContextMethod};
use workloads::{ActivationPolicy, Batch, LayerRun, Layout, Model, RankOrder, StagePolicies, ZeroStage};

pub(super) struct PlannerHardware {
    model: Model,
    chip: Accelerator,
    fabric: Fabric,
    stack: SoftwareStack,
}

impl PlannerHardware {
    pub fn new(model: &str) -> Self {
        Self {
            model: Model::load(model).unwrap(),
            chip: Accelerator::built_in("a100_80gb_sxm").unwrap(),
            fabric: Fabric::built_in("selene_hdr200x8").unwrap(),
            stack: SoftwareStack::load("megatron").unwrap(),
        }
    }

    pub fn job(&self, devices: u32, global_batch: u64, sequence_length: u64) -> Job<'_> {
        Job {
            model: &self.model,
            chip: &self.chip,
            fabric: &self.fabric,
            stack: &self.stack,
            devices,
            global_batch,
            sequence_length,
            attention: Attention::Fused,
            precision: Precision::MIXED_BF16,
            optimizer: Optimizer::Adam,
            headroom: Bytes::ZERO,
            fit: NO_MARGIN,
            techniques: workloads::Techniques::none(),
        }
    }
}

/// A space of some hundred plans with every kind of decision.
fn space() -> PlanSpace {
    PlanSpace {
        virtual_stages: Some(vec![1, 2]),
        micro_batch: Some(vec![1, 4]),
        zero: Some(vec![ZeroStage::None, ZeroStage::OptimizerStates]),
        schedules: Some(vec![
            PipelineSchedule::OneForwardOneBackward,
            PipelineSchedule::GPipe,
            PipelineSchedule::ZbH1,
            PipelineSchedule::ZB_V,
        ]),
        ..PlanSpace::default()
    }
}

#[test]
fn the_list_is_that_of_trying_every_plan() {
    let hardware = PlannerHardware::new("llama2-7b");
    let job = hardware.job(16, 64, 2048);
    let space = PlanSpace { splits: Some(Splits::Listed(vec![None])), ..space() };
    let mut chip = ChipTimes::new(job.chip, job.stack).unwrap();
    let mut steps = Vec::new();
    for plan in space.plans(&job) {
        let memory = step_memory(job.model, &plan, job.stack, DeviceMemory::of_chip(job.chip), None).unwrap();
        let Ok(time) = step_time(&mut chip, job.model, job.fabric, &plan) else { continue };
        if memory.check_fits().is_ok() {
            steps.push(time.total.0);
        }
    }
    steps.sort_by(f64::total_cmp);
    let answer = search_plans(&job, &space, 5).unwrap();
    let found: Vec<f64> = answer.best.iter().map(|b| b.time.total.0).collect();
    assert_eq!(found, steps[..5]);
    assert_eq!(answer.timed + answer.over_capacity + answer.rejected_by_bound + answer.refused, answer.plans);
    assert!(answer.rejected_by_bound > 0, "bounds decide nothing");
}

/// The search evaluates few splits, but its list equals that of an exhaustive search over the splits of every plan.
#[test]
fn every_plan_of_the_list_has_its_best_split() {
    let mut hardware = PlannerHardware::new("llama3-8b");
    // A head that takes as long as several layers; a depth that few numbers of stages divide.
    for (layers, pipeline, virtual_stages) in [(14, vec![2, 4, 8], vec![1, 2]), (9, vec![4], vec![1, 2])] {
        hardware.model.layers = layers;
        let job = hardware.job(8, 16, 1024);
        let narrow = PlanSpace { pipeline: Some(pipeline), virtual_stages: Some(virtual_stages), ..space() };
        let (mut chip, mut steps, mut splits) = (ChipTimes::new(job.chip, job.stack).unwrap(), Vec::new(), 0);
        for plan in narrow.plans(&job) {
            let mut best = f64::INFINITY;
            let known = plan.layout.chunk_split(layers).unwrap();
            for split in plan.layout.chunk_splits(layers) {
                splits += u64::from(split != known);
                let mut other = plan.clone();
                other.layout.ends = if split == known { plan.layout.ends } else { split.layer_ends() };
                let memory = step_memory(job.model, &other, job.stack, DeviceMemory::of_chip(job.chip), None).unwrap();
                if memory.check_fits().is_ok()
                    && let Ok(time) = step_time(&mut chip, job.model, job.fabric, &other)
                {
                    best = best.min(time.total.0);
                }
            }
            steps.push(best);
        }
        steps.sort_by(f64::total_cmp);
        let all = PlanSpace { splits: Some(Splits::Best), ..narrow.clone() };
        let answer = search_once(&job, &all, 5, PlanWatch::NONE).unwrap();
        let found: Vec<f64> = answer.best.iter().map(|b| b.time.total.0).collect();
        assert_eq!(found.len(), 5);
        let near = search_once(&job, &narrow, 5, PlanWatch::NONE).unwrap();
        assert!(
            near.best[0].time.total.0 <= found[0] / (1.0 - SPLIT_TOLERANCE),
            "{} {}",
            near.best[0].time.total,
            found[0]
        );
        assert_eq!(near.splits, splits);
        for (found, best) in found.iter().zip(&steps) {
            assert!((found / best - 1.0).abs() < 1e-9, "{found} {best}");
        }
        assert_eq!(answer.splits, splits);
        assert!(answer.splits_tried < splits / 4, "bounds decide little: {} of {splits}", answer.splits_tried);
        assert!(
            answer.best[0].plan.layout.ends.is_some(),
            "the head is worth several layers: {:?}",
            answer.best[0].plan
        );
        let even = search_plans(&job, &PlanSpace { splits: Some(Splits::Listed(vec![None])), ..narrow }, 5).unwrap();
        assert!(even.splits == 0 && even.best.first().is_none_or(|b| b.time.total > answer.best[0].time.total));
    }
}

#[test]
fn sequences_are_split_by_rings_and_by_heads_where_those_divide() {
    let hardware = PlannerHardware::new("llama2-7b");
    let job = hardware.job(64, 8, 16384);
    let space = PlanSpace {
        tensor: Some(vec![1, 8]),
        pipeline: Some(vec![1]),
        context: Some(vec![8]),
        zero: Some(vec![ZeroStage::Parameters]),
        ..PlanSpace::default()
    };
    let mut chip = ChipTimes::new(job.chip, job.stack).unwrap();
    let (mut steps, mut methods) = (Vec::new(), Vec::new());
    for plan in space.plans(&job) {
        methods.push((plan.layout.tensor, plan.layout.context_method));
        let memory = step_memory(job.model, &plan, job.stack, DeviceMemory::of_chip(job.chip), None).unwrap();
        let step = step_time(&mut chip, job.model, job.fabric, &plan).unwrap().total.0;
        if memory.check_fits().is_ok() {
            steps.push(step);
        }
    }
    // Ulysses would split the heads over 8 devices, but each of 8 tensor-parallel devices has only 4 of the 32.
    assert!(methods.contains(&(1, ContextMethod::Ulysses)) && methods.contains(&(8, ContextMethod::Ring)));
    assert!(!methods.contains(&(8, ContextMethod::Ulysses)));
    steps.sort_by(f64::total_cmp);
    let found: Vec<f64> = search_plans(&job, &space, 4).unwrap().best.iter().map(|b| b.time.total.0).collect();
    assert_eq!(found, steps[..4]);
}

#[test]
fn ulysses_splits_key_and_value_heads_whole() {
    let hardware = PlannerHardware::new("llama3-8b");
    let job = hardware.job(64, 64, 16384);
    let space = PlanSpace {
        pipeline: Some(vec![1]),
        context: Some(vec![2, 4, 8, 16]),
        context_methods: Some(vec![ContextMethod::Ulysses]),
        ..PlanSpace::default()
    };
    let plans = space.plans(&job);
    let degrees: BTreeSet<(u32, u32)> = plans.iter().map(|plan| (plan.layout.tensor, plan.layout.context)).collect();
    // The model has eight key and value heads. The product of tensor and context degree must divide them.
    assert_eq!(degrees, BTreeSet::from([(1, 2), (1, 4), (1, 8), (2, 2), (2, 4), (4, 2)]));
}

#[test]
fn no_neighbour_inside_the_space_is_faster_than_the_best_plan() {
    let hardware = PlannerHardware::new("gpt2-xl");
    let job = hardware.job(32, 128, 1024);
    let space = PlanSpace::default();
    let answer = search_plans(&job, &space, 1).unwrap();
    let best = &answer.best[0];
    let around = neighbours(&job, &space, best).unwrap();
    assert!(around.iter().any(|n| matches!(n.outcome, NeighbourOutcome::Runs { .. })));
    for n in around {
        if let NeighbourOutcome::Runs { step, .. } = n.outcome {
            assert!(step.0 >= best.time.total.0 * (1.0 - 1e-12), "{}: {step} against {}", n.change, best.time.total);
        }
    }
}

#[test]
fn neighbours_take_the_nearest_number_of_chunks_that_is_allowed() {
    let mut hardware = PlannerHardware::new("llama2-7b");
    hardware.model.layers = 24;
    let job = hardware.job(32, 96, 2048);
    let layout =
        Layout { tensor: 4, pipeline: 4, data: 2, virtual_stages: 6, sequence_parallel: true, ..Layout::default() };
    let batch = Batch { micro_batch: 4, global_batch: 96, sequence_length: 2048 };
    let plan = job.make_plan(layout, batch, ActivationPolicy::Full, PipelineSchedule::OneForwardOneBackward);
    let around = neighbours(&job, &PlanSpace::default(), &ranked(&job, &plan)).unwrap();
    let of = |change: &str| around.iter().find(|n| n.change == change).map(|n| &n.outcome);
    // 24 layers on 8 stages allow at most 3 chunks per stage. With several chunks, the number of micro-batches must be
    // a multiple of the number of stages, and 12 is no multiple of 8.
    for change in [
        "p 4 -> 8, t 4 -> 2, v 6 -> 1",
        "p 4 -> 8, d 2 -> 1, v 6 -> 3",
        "d 2 -> 4, t 4 -> 2, v 6 -> 1",
        "d 2 -> 4, p 4 -> 2",
    ] {
        assert!(
            of(change).is_some_and(|outcome| !matches!(outcome, NeighbourOutcome::Refused(_))),
            "{change}: {:?}",
            of(change)
        );
    }
    assert!(around.iter().all(|n| !matches!(n.outcome, NeighbourOutcome::Refused(_))), "{around:?}");
}

#[test]
fn neighbours_have_a_schedule_that_was_asked_for_and_its_number_of_chunks() {
    let hardware = PlannerHardware::new("gpt2-xl");
    let job = hardware.job(16, 64, 1024);
    for schedule in [PipelineSchedule::GPipe, PipelineSchedule::ZbH1, PipelineSchedule::ZB_V] {
        let name = schedule.name();
        let space = PlanSpace { schedules: Some(vec![schedule]), ..PlanSpace::default() };
        let batch = Batch { micro_batch: 1, global_batch: 64, sequence_length: 1024 };
        let alone = job.make_plan(
            Layout { data: 16, ..Layout::default() },
            batch,
            ActivationPolicy::Full,
            PipelineSchedule::OneForwardOneBackward,
        );
        let around = neighbours(&job, &space, &ranked(&job, &alone)).unwrap();
        let change = format!("p 1 -> 2, d 16 -> 8, {name}");
        assert!(
            around.iter().any(|n| n.change == change && !matches!(n.outcome, NeighbourOutcome::Refused(_))),
            "{change}: {around:?}"
        );
        let piped = Layout { pipeline: 2, data: 8, virtual_stages: schedule.chunks_per_device(), ..Layout::default() };
        let plan = job.make_plan(piped, batch, ActivationPolicy::Full, schedule);
        let around = neighbours(&job, &space, &ranked(&job, &plan)).unwrap();
        assert!(around.iter().all(|n| !n.change.starts_with("chunks per stage")), "{name}: {around:?}");
    }
}

#[test]
fn neighbours_are_of_the_zero_stages_and_orders_that_were_asked_for() {
    let hardware = PlannerHardware::new("gpt2-xl");
    let job = hardware.job(16, 64, 1024);
    let layout = Layout { pipeline: 2, data: 8, zero: ZeroStage::OptimizerStates, ..Layout::default() };
    let batch = Batch { micro_batch: 1, global_batch: 64, sequence_length: 1024 };
    let plan = job.make_plan(layout, batch, ActivationPolicy::Full, PipelineSchedule::OneForwardOneBackward);
    let changes = |space: &PlanSpace| -> Vec<String> {
        let around = neighbours(&job, space, &ranked(&job, &plan)).unwrap();
        let named = around.into_iter().map(|neighbour| neighbour.change);
        let mut found: Vec<String> =
            named.filter(|change| change.starts_with("ZeRO") || change.starts_with("ranks")).collect();
        found.sort_unstable();
        found
    };
    let open = ["ZeRO-1 -> ZeRO-0", "ZeRO-1 -> ZeRO-2", "ranks t-d-p -> t-p-d"];
    assert_eq!(changes(&PlanSpace::default()), open);
    let asked = PlanSpace {
        zero: Some(vec![ZeroStage::OptimizerStates, ZeroStage::Parameters]),
        orders: Some(vec![RankOrder::DataFirst]),
        ..PlanSpace::default()
    };
    assert_eq!(changes(&asked), ["ZeRO-1 -> ZeRO-3"]);
}

#[test]
fn a_requested_order_of_ranks_is_that_of_every_plan_or_refused() {
    let hardware = PlannerHardware::new("gpt2-xl");
    let job = hardware.job(16, 64, 1024);
    let asked = PlanSpace {
        pipeline: Some(vec![2]),
        tensor: Some(vec![1]),
        orders: Some(vec![RankOrder::PipelineFirst]),
        ..PlanSpace::default()
    };
    let orders_on = |fabric: &Fabric| -> BTreeSet<RankOrder> {
        let job = Job { fabric, ..job };
        asked.plans(&job).iter().map(|plan| plan.layout.order).collect()
    };
    let flat = Fabric::built_in("phaze_flat").unwrap().for_devices(16).unwrap();
    for fabric in [job.fabric, &flat] {
        assert_eq!(orders_on(fabric), BTreeSet::from([RankOrder::PipelineFirst]), "{}", fabric.name);
    }
    let beside_context = PlanSpace { context: Some(vec![2]), ..asked };
    assert!(beside_context.plans(&job).is_empty());
}

#[test]
fn plans_that_differ_in_nothing_that_counts_are_listed_once() {
    let hardware = PlannerHardware::new("llama2-7b");
    let job = hardware.job(64, 64, 2048);
    // Nodes of 8 are full of tensor-parallel devices: every further axis crosses nodes, in either order of ranks.
    let space = PlanSpace { tensor: Some(vec![8]), pipeline: Some(vec![2, 4]), ..PlanSpace::default() };
    let answer = search_plans(&job, &space, 10).unwrap();
    let of_order = |order| PlanSpace { orders: Some(vec![order]), ..space.clone() };
    let [usual, other] =
        [RankOrder::DataFirst, RankOrder::PipelineFirst].map(|o| search_plans(&job, &of_order(o), 10).unwrap());
    let steps = |answer: &PlanAnswer| answer.best.iter().map(|b| b.time.total.0).collect::<Vec<_>>();
    assert!(steps(&usual).iter().zip(steps(&other)).any(|(a, b)| (a - b).abs() <= 1e-12 * a), "no plans are alike");
    assert_eq!(answer.best.len(), 10);
    for (i, one) in answer.best.iter().enumerate() {
        let rest = &answer.best[i + 1..];
        assert!(rest.iter().all(|two| !one.is_like(two)), "{:?}", one.plan);
        // Nothing is lost: the plan, or a similar one, is in the list of its order.
        let found =
            [&usual, &other].iter().any(|list| list.best.iter().any(|two| two.plan == one.plan || one.is_like(two)));
        assert!(found || i >= 5, "{:?}", one.plan);
    }
}

#[test]
fn everything_holds_the_default_space_and_no_policy_twice() {
    let mut hardware = PlannerHardware::new("gpt2-xl");
    // A head that takes as long as several layers; a depth that few numbers of stages divide.
    hardware.model.layers = 14;
    let job = hardware.job(8, 16, 1024);
    let deep = PlanSpace { pipeline: Some(vec![4]), virtual_stages: Some(vec![1, 2]), ..PlanSpace::default() };
    let kept = PlanSpace {
        activations: Some(default_policies()),
        schedules: Some(vec![PipelineSchedule::GPipe]),
        ..deep.clone()
    };
    for (asked, uneven) in
        [(PlanSpace { micro_batch: Some(vec![1, 2]), ..PlanSpace::default() }, false), (deep, true), (kept, true)]
    {
        let full = PlanSpace::full(&job, &asked, default_policies());
        let [wide, narrow] = [&full, &asked].map(|space| search_plans(&job, space, 3).unwrap());
        let even = PlanSpace { splits: Some(Splits::Listed(vec![None])), ..full.clone() };
        let even = search_plans(&job, &even, 3).unwrap();
        for (i, one) in wide.best.iter().enumerate() {
            for other in [&narrow, &even] {
                let other = other.best.get(i).map_or(f64::INFINITY, |other| other.time.total.0);
                assert!(one.time.total.0 <= other * (1.0 + 1e-9), "{:?}", one.plan);
            }
        }
        // The fastest plan that the framework runs may follow the requested ones.
        assert!((3..=4).contains(&wide.best.len()) && (!uneven || wide.splits > 0));
        assert!(
            wide.plans >= even.plans && wide.plans > narrow.plans,
            "{} {} {}",
            wide.plans,
            even.plans,
            narrow.plans
        );
        assert_eq!(wide.plans, full.plans(&job).len());
        assert_eq!(wide.timed + wide.over_capacity + wide.rejected_by_bound + wide.refused, wide.plans);
        assert_eq!(wide.best[0].plan.layout.ends.is_some(), uneven, "{:?}", wide.best[0].plan);
        if asked.schedules.is_none() {
            let schedules = full.schedules.unwrap();
            assert!(VSchedule::ALL.iter().all(|v| schedules.contains(&PipelineSchedule::InV(*v))), "{schedules:?}");
        }
        let policies = full.activations.unwrap();
        assert!(policies.iter().enumerate().all(|(i, p)| !policies[..i].contains(p)), "{}", policies.len());
    }
}

#[test]
fn plans_that_offload_more_than_their_hosts_have_are_left_out() {
    let mut hardware = PlannerHardware::new("llama2-7b");
    let offload = "custom:offload(decoder_layer_input,qkv_proj,mlpwi)".parse().unwrap();
    let space = PlanSpace { activations: Some(vec![offload]), ..space() };
    let wide = search_plans(&hardware.job(8, 32, 4096), &space, 1).unwrap();
    let kept = wide.best[0].memory.stages.iter().map(|s| s.host).max().unwrap();
    assert!(kept > Bytes::ZERO);
    let host = hardware.chip.host.as_mut().unwrap();
    host.capacity = Bytes(kept.0 - 1);
    let narrow = search_plans(&hardware.job(8, 32, 4096), &space, 1).unwrap();
    assert!(narrow.over_capacity > wide.over_capacity && narrow.plans == wide.plans);
    assert!(narrow.best.iter().all(|b| b.plan != wide.best[0].plan && b.time.total >= wide.best[0].time.total));
    hardware.chip.host = None;
    let job = hardware.job(8, 32, 4096);
    let none = search_plans(&job, &space, 1).unwrap();
    assert!(none.best.is_empty() && none.over_capacity + none.refused == none.plans);
    let (plan, _) = none.nearest.unwrap();
    let memory = step_memory(job.model, &plan, job.stack, DeviceMemory::of_chip(job.chip), None).unwrap();
    assert!(memory.stages.iter().any(|s| s.host > memory.host_capacity));
}

#[test]
fn what_fits_nowhere_says_what_the_nearest_plan_lacks() {
    let hardware = PlannerHardware::new("gpt3-175b");
    let job = hardware.job(8, 8, 2048);
    let answer = search_plans(&job, &PlanSpace::default(), 3).unwrap();
    assert!(answer.best.is_empty() && answer.rejected_by_bound == 0);
    let (_, why) = answer.nearest.unwrap();
    assert!(why.need > why.have);
    // 175 billion parameters of 2 + 2 + 4 + 8 bytes, on devices of 79.15 GiB less the framework's memory. With this
    // many devices and even sharding there is room for nothing else.
    let least = job.least_devices();
    assert_eq!(
        least,
        (16.0 * job.model.parameters() as f64 / ((79.15 - job.stack.memory.context_gib) * f64::from(1 << 30))).ceil()
            as u64
    );
    let enough = hardware.job(64, 64, 2048);
    assert!(!search_plans(&enough, &PlanSpace::default(), 1).unwrap().best.is_empty() && (8..=64).contains(&least));
}

/// A plan that fits, evaluated.
fn ranked(job: &Job<'_>, plan: &TrainingPlan) -> RankedPlan {
    let mut chip = ChipTimes::new(job.chip, job.stack).unwrap();
    let time = step_time(&mut chip, job.model, job.fabric, plan).unwrap();
    let memory = step_memory(job.model, plan, job.stack, DeviceMemory::of_chip(job.chip), None).unwrap();
    let profile = chip.profile_plan(job.model, job.fabric, plan).unwrap();
    let energy = step_energy_of(&mut chip, job.model, job.fabric, plan, &profile, time.total).unwrap().total_energy();
    RankedPlan { plan: plan.clone(), time, memory, energy, alike: 0 }
}

/// The fastest plans on a fabric, as listed and with their ranks mapped.
fn listed(
    hardware: &PlannerHardware,
    devices: u32,
    space: &PlanSpace,
    which: MapRanks,
) -> (PlanAnswer, Vec<RankMapping>) {
    let job = hardware.job(devices, u64::from(devices) * 2, 1024);
    let orders = (which == MapRanks::Always).then(|| vec![RankOrder::DataFirst]);
    let mut answer = search_plans(&job, &PlanSpace { orders, ..space.clone() }, 2).unwrap();
    let mappings = map_plans(&job, &mut answer, which).unwrap();
    (answer, mappings)
}

#[test]
fn a_matrix_of_equal_links_gives_the_plans_of_the_switch() {
    let only = |tensor: u32, pipeline: u32, context: u32, expert: u32| PlanSpace {
        tensor: Some(vec![tensor]),
        pipeline: Some(vec![pipeline]),
        context: Some(vec![context]),
        expert: Some(vec![expert]),
        micro_batch: Some(vec![1]),
        ..PlanSpace::default()
    };
    let zero_bubble =
        PlanSpace { virtual_stages: Some(vec![1]), schedules: Some(vec![PipelineSchedule::ZbH1]), ..only(1, 4, 1, 1) };
    let cases = [
        ("gpt2-xl", 16, PlanSpace::default()),
        ("llama2-7b", 32, PlanSpace::default()),
        ("llama2-7b", 64, only(2, 4, 2, 1)),
        ("gpt2-xl", 16, zero_bubble),
        ("mixtral-8x7b", 32, PlanSpace { micro_batch: Some(vec![1]), ..PlanSpace::default() }),
        ("mixtral-8x7b", 64, only(1, 4, 1, 8)),
        ("mixtral-8x7b", 32, only(2, 2, 2, 4)),
    ];
    let (mut mapped, mut gained) = (0, 0);
    for (name, devices, space) in cases {
        let flat = PlannerHardware::new(name);
        let flat = PlannerHardware { fabric: flat.fabric.for_devices(devices).unwrap(), ..flat };
        let matrix =
            PlannerHardware { fabric: flat.fabric.with_written_links().unwrap(), ..PlannerHardware::new(name) };
        assert!(flat.fabric.measured_links().is_none() && matrix.fabric.measured_links().is_some());
        for which in [MapRanks::WhereLinksDiffer, MapRanks::Always] {
            let [(a, on_flat), (b, on_matrix)] =
                [&flat, &matrix].map(|hardware| listed(hardware, devices, &space, which));
            let close = |x: f64, y: f64, what: &str| {
                assert!(
                    (x / y - 1.0).abs() <= 1e-9,
                    "{name} on {devices}, {which:?}, {what}: {x} on the switch, {y} on the matrix"
                );
            };
            assert!(!a.best.is_empty() && a.best.len() == b.best.len());
            assert_eq!((a.plans, a.over_capacity, a.refused), (b.plans, b.over_capacity, b.refused));
            for (one, other) in a.best.iter().zip(&b.best) {
                for ((what, x), (_, y)) in one.time.named_parts().into_iter().zip(other.time.named_parts()) {
                    close((one.time.total + x).0, (other.time.total + y).0, what);
                }
            }
            assert_eq!(
                (on_flat.len(), on_matrix.len()),
                if which == MapRanks::Always { (a.best.len(), a.best.len()) } else { (0, 0) }
            );
            for (one, other) in on_flat.iter().zip(&on_matrix) {
                close(one.before.0, other.before.0, "rank order");
                close(one.after.0, other.after.0, "as mapped");
                close(one.lower_bound.0, other.lower_bound.0, "bound");
                mapped += 1;
                gained += usize::from(one.after.0 < one.before.0 * 0.99);
            }
        }
    }
    // Even with equal links, the ranks that share a node matter.
    assert!(gained > 0 && mapped > gained, "{gained} of {mapped}");
}

/// Jobs with a head as heavy as several layers, with depths that few numbers of stages divide, and with few
/// micro-batches.
#[test]
fn near_splits_lose_no_more_than_their_tolerance() {
    for (model, layers, devices, batch, sequence) in [
        ("gpt2-xl", 18, 16, 32, 1024),
        ("llama3-8b", 10, 8, 32, 512),
        ("llama2-7b", 23, 16, 16, 1024),
        ("bert-large", 24, 32, 128, 512),
    ] {
        let mut hardware = PlannerHardware::new(model);
        hardware.model.layers = layers;
        let job = hardware.job(devices, batch, sequence);
        let piped = PlanSpace { pipeline: Some(vec![2, 4, 8]), micro_batch: Some(vec![1, 2]), ..PlanSpace::default() };
        let [near, best] = [Splits::Near, Splits::Best]
            .map(|splits| search_plans(&job, &PlanSpace { splits: Some(splits), ..piped.clone() }, 1).unwrap());
        let [near_s, best_s] = [&near, &best].map(|answer| answer.best[0].time.total.0);
        assert!(
            near_s * (1.0 - SPLIT_TOLERANCE) <= best_s && best_s <= near_s * (1.0 + 1e-9),
            "{model}: {near_s} {best_s}"
        );
        // The default leaves out numbers of chunks that split the layers less evenly.
        assert!(near.splits <= best.splits, "{} {}", near.splits, best.splits);
        assert_eq!((near.split_tolerance, best.split_tolerance), (Some(SPLIT_TOLERANCE), Some(0.0)));
    }
}

#[test]
fn headroom_is_left_free() {
    let hardware = PlannerHardware::new("llama2-7b");
    let job = hardware.job(16, 64, 2048);
    let all = search_plans(&job, &PlanSpace::default(), 1).unwrap();
    let peak =
        |answer: &PlanAnswer| answer.best[0].memory.stages.iter().map(|stage| stage.bytes_needed()).max().unwrap();
    let free = all.best[0].memory.capacity.saturating_sub(peak(&all));
    let job = Job { headroom: free + Bytes::from_gib(1.0), ..job };
    let spared = search_plans(&job, &PlanSpace::default(), 1).unwrap();
    assert!(peak(&spared) < peak(&all) && spared.best[0].time.total >= all.best[0].time.total);
    assert_eq!(spared.best[0].memory.capacity, all.best[0].memory.capacity.saturating_sub(job.headroom));
}

#[test]
fn a_plan_keeps_the_margin_of_its_own_errors() {
    let mut hardware = PlannerHardware::new("llama2-7b");
    let table = ResidualTable::read_carried();
    let need = |ranked: &RankedPlan| ranked.memory.stages.iter().map(|stage| stage.bytes_needed()).max().unwrap();
    let usual = hardware.chip.hbm.capacity;
    // Only the even split is allowed: otherwise the list has only the best split of a plan, although another split may
    // fit with the margin.
    let space = PlanSpace { splits: Some(Splits::Listed(vec![None])), ..space() };
    let mut least_free = Bytes(u64::MAX);
    for share in [1.0, 0.6, 0.4, 0.25] {
        hardware.chip.hbm.capacity = Bytes((usual.as_f64() * share) as u64);
        let job = hardware.job(16, 64, 2048);
        let all = search_once(&job, &space, 100_000, PlanWatch::NONE).unwrap();
        for chance in [0.5, 0.8, 0.9, 0.99] {
            let job = Job { fit: chance, ..job };
            let fits = |ranked: &&RankedPlan| {
                let facts = PredictionFacts::of_plan(job.chip, job.fabric, job.stack, job.model, &ranked.plan);
                let factor = table.factor_at(PredictedQuantity::Peak, &facts, chance.max(NO_MARGIN)).unwrap();
                let factor = if chance <= NO_MARGIN { 1.0 } else { factor.max(1.0) };
                let usable = ranked.memory.capacity;
                let free = job.memory_left_free_by(&ranked.plan).as_f64();
                let margin = usable.as_f64() * (1.0 - 1.0 / factor);
                assert!((free - margin).abs() <= 1.0, "{factor} {:?}", ranked.plan);
                need(ranked).as_f64() * factor <= usable.as_f64()
            };
            let expected = all.best.iter().filter(fits).take(20).map(|ranked| ranked.time.total.0).collect::<Vec<_>>();
            let found = search_once(&job, &space, 20, PlanWatch::NONE).unwrap();
            let times = found.best.iter().map(|ranked| ranked.time.total.0).collect::<Vec<_>>();
            assert_eq!(times, expected, "{share} {chance}");
            found
                .best
                .iter()
                .for_each(|ranked| least_free = least_free.min(ranked.memory.capacity.saturating_sub(need(ranked))));
        }
    }
    assert!(least_free < Bytes::from_gib(1.0), "{least_free:?}");
}

#[test]
fn the_larger_of_margin_and_headroom_is_left_free() {
    let hardware = PlannerHardware::new("llama2-7b");
    let job = hardware.job(16, 64, 2048);
    let plan = search_plans(&job, &space(), 1).unwrap().best[0].plan.clone();
    let free = |fit: f64, headroom: f64| {
        Job { fit, headroom: Bytes::from_gib(headroom), ..job }.memory_left_free_by(&plan).gib()
    };
    assert_eq!((free(0.5, 0.0), free(0.5, 30.0)), (0.0, 30.0));
    assert!(0.0 < free(0.8, 0.0) && free(0.8, 0.0) < free(0.9, 0.0) && free(0.9, 0.0) < free(0.99, 0.0));
    assert_eq!((free(0.9, 1.0), free(0.9, 30.0)), (free(0.9, 0.0), 30.0));
    // If stages have different policies, the margin is that of the policy with the widest errors.
    let under = |policies: StagePolicies| {
        let plan = TrainingPlan { activations: policies, ..plan.clone() };
        Job { fit: 0.9, ..job }.memory_left_free_by(&plan)
    };
    let run = |policy: ActivationPolicy| vec![LayerRun { layers: 16, policy }];
    let mix = under(StagePolicies::from_chunk_mixes(vec![run(ActivationPolicy::None), run(ActivationPolicy::Full)]));
    for policy in default_policies() {
        assert!(under(policy.into()) <= mix);
    }
}

#[test]
fn a_tensor_degree_above_the_key_value_heads_is_listed_and_one_that_runs_with_it() {
    let hardware = PlannerHardware::new("llama2-7b");
    let model = Model { kv_heads: 2, ..hardware.job(8, 8, 4096).model.clone() };
    let stacks = ["torchtitan", "megatron"].map(|name| SoftwareStack::load(name).unwrap());
    let space = PlanSpace { tensor: Some(vec![2, 4]), pipeline: Some(vec![1]), ..PlanSpace::default() };
    let refused = |stack: &SoftwareStack, space: &PlanSpace| -> Vec<(u32, Option<String>)> {
        let job = Job { model: &model, stack, ..hardware.job(8, 8, 4096) };
        let answer = search_plans(&job, space, 1).unwrap();
        answer.best.iter().map(|ranked| (ranked.plan.layout.tensor, job.framework_refusal(&ranked.plan))).collect()
    };
    let four = PlanSpace { tensor: Some(vec![4]), ..space.clone() };
    let why = "tensor 4: it must divide the model's key/value heads, 2".to_owned();
    assert_eq!(refused(&stacks[0], &four), [(4, Some(why))]);
    assert_eq!(refused(&stacks[1], &four), [(4, None)]);
    // Whichever degree is faster, one that runs is listed.
    assert!(refused(&stacks[0], &space).contains(&(2, None)));
}

#[test]
fn plans_are_listed_by_time_and_one_that_the_framework_can_run_is_among_them() {
    let hardware = PlannerHardware::new("llama2-7b");
    let job = hardware.job(8, 32, 4096);
    let offload = "custom:offload(qkv_proj)".parse().unwrap();
    let space = PlanSpace {
        activations: Some(vec![offload, ActivationPolicy::Full]),
        tensor: Some(vec![1, 2]),
        ..PlanSpace::default()
    };
    let answer = search_plans(&job, &space, 4).unwrap();
    let full =
        search_plans(&job, &PlanSpace { activations: Some(vec![ActivationPolicy::Full]), ..space.clone() }, 1).unwrap();
    let lacks: Vec<bool> = answer.best.iter().map(|ranked| job.framework_refusal(&ranked.plan).is_some()).collect();
    assert!(lacks[0], "offloading is hidden: {lacks:?}");
    assert!(answer.best.is_sorted_by(|a, b| a.time.total <= b.time.total));
    let runs = lacks.iter().position(|lacks| !lacks).unwrap();
    assert_eq!(answer.best[runs].time.total, full.best[0].time.total);
    assert!(lacks.len() == 4 || lacks.len() == 5 && runs == 4, "{lacks:?}");
    // If nothing can be run, the list stays as it is.
    let policies = space.activations.map(|mut list| list.drain(..1).collect());
    let none = search_plans(&job, &PlanSpace { activations: policies, ..space }, 2).unwrap();
    assert!(none.best.iter().all(|ranked| job.framework_refusal(&ranked.plan).is_some()) && !none.best.is_empty());
}
