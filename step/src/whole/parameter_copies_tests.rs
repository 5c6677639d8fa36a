//! Laws of the copies of offloaded weights and gradients.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use crate::memory::step_memory::DeviceMemory;
use crate::pass::away::ParameterCopies;
use crate::technique_tests::technique_plan;
use crate::whole::evaluator::{Evaluator, PlanShape, RecentChunks};
use crate::{ChipTimes, Fidelity, PlanOnNetwork, SoftwareStack, StepTime, TrainingPlan, lower_plan, step_time};
use proptest::prelude::*;
use sim::hardware::{Accelerator, HostLink, Storage};
use sim::kernel::{Kernel, TransferLink};
use sim::network::Fabric;
use sim::pipeline::{PassesTime, PipelineSchedule};
use sim::units::{Bytes, BytesPerSecond};
use workloads::{ActivationPolicy, Layout, Model, SegmentKind, ZeroStage};

const INFINITY: &str = "zero-infinity";
const STORED: &str = "zero-infinity,to_nvme=1";
const OFFLOAD: &str = "zero-offload";
/// GB/s of a link that hides everything.
const BOUNDLESS: f64 = 1e12;

fn model() -> Model {
    Model { layers: 8, ..Model::load("llama2-7b").unwrap() }
}

/// Returns an A100 with the given GB/s to its host and to storage.
fn accelerator([host, storage]: [f64; 2]) -> Accelerator {
    let (rate, capacity) = (|gb: f64| BytesPerSecond(gb * 1e9), Bytes(1 << 50));
    let mut accelerator = Accelerator::built_in("a100_80gb_sxm").unwrap();
    accelerator.host = Some(HostLink { bandwidth: rate(host), capacity, memory: None });
    accelerator.storage = Some(Storage { read_bandwidth: rate(storage), write_bandwidth: rate(storage), capacity });
    accelerator
}

fn chip(links: [f64; 2]) -> ChipTimes {
    ChipTimes::new(&accelerator(links), &SoftwareStack::load("megatron").unwrap()).unwrap()
}

fn fabric() -> Fabric {
    Fabric::built_in("selene_hdr200x8").unwrap()
}

fn time(links: [f64; 2], plan: &TrainingPlan) -> StepTime {
    step_time(&mut chip(links), &model(), &fabric(), plan).unwrap()
}

fn layout(pipeline: u32, data: u32, zero: ZeroStage) -> Layout {
    Layout { pipeline, data, zero, ..Layout::default() }
}

fn copies(model: &Model, plan: &TrainingPlan) -> Option<ParameterCopies> {
    let (mut chip, fabric) = (chip([25.0, 6.4]), fabric());
    let profile = chip.profile_plan(model, &fabric, plan).unwrap();
    PlanOnNetwork { fabric: &fabric, plan, profile: &profile }.parameter_copies(&mut chip)
}

/// Returns random plans with offloaded weights or gradients, under several schedules.
fn plans() -> impl Strategy<Value = TrainingPlan> {
    let zero = proptest::sample::select(vec![
        ZeroStage::None,
        ZeroStage::OptimizerStates,
        ZeroStage::Gradients,
        ZeroStage::Parameters,
    ]);
    let schedule = proptest::sample::select(vec![
        PipelineSchedule::OneForwardOneBackward,
        PipelineSchedule::GPipe,
        PipelineSchedule::ZbH1,
    ]);
    let technique = proptest::sample::select(vec![INFINITY, STORED, OFFLOAD, "zero-infinity memo,fraction=0.5"]);
    (0_u32..3, 0_u32..3, 1_u64..9, zero, schedule, technique, any::<bool>()).prop_map(
        |(p, d, m, zero, schedule, technique, full)| {
            let mut plan = technique_plan(layout(1 << p, 1 << d, zero), m, technique);
            plan.schedule = if p > 0 { schedule } else { PipelineSchedule::OneForwardOneBackward };
            if full && !technique.contains("memo") {
                plan.activations = ActivationPolicy::Full.into();
            }
            plan
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn a_faster_link_makes_no_step_slower(plan in plans(), links in [0.1_f64..100.0, 0.1_f64..100.0], which in 0_usize..2, factor in 1.0_f64..100.0) {
        let mut faster = links;
        faster[which] *= factor;
        let [slow, fast] = [links, faster].map(|links| time(links, &plan).total.0);
        prop_assert!(fast <= slow * (1.0 + 1e-9), "{links:?} {slow}, {faster:?} {fast}");
    }

    #[test]
    fn what_bounds_a_step_with_copies_is_no_more_than_it(plan in plans(), links in [0.1_f64..100.0, 0.1_f64..100.0]) {
        is_bounded(&plan, links, "megatron");
    }
}

/// Checks that a search's bounds hold for the plans that it evaluates and prints.
fn is_bounded(plan: &TrainingPlan, links: [f64; 2], stack: &str) {
    let (model, fabric, stack) = (model(), fabric(), SoftwareStack::load(stack).unwrap());
    let mut chip = ChipTimes::new(&accelerator(links), &stack).unwrap();
    let exact = step_time(&mut chip, &model, &fabric, plan).unwrap().total.0;
    let room = Bytes(1 << 50);
    let evaluator = Evaluator::new(&model, &fabric, &stack, DeviceMemory { hbm: room, host: room, storage: room });
    for fidelity in [Fidelity::Peak, Fidelity::Mapped, Fidelity::Scheduled, Fidelity::Exact] {
        let mut chip = chip.with_fidelity(fidelity);
        let shape = PlanShape::new(&mut chip, &model, &fabric, plan).unwrap();
        let sends = evaluator.pipeline_sends(&chip, &shape, plan);
        // The previous plan's passes are not reused, although it has the same chunks.
        let mut recent = RecentChunks::default();
        let before = TrainingPlan { layout: Layout { data: 1, zero: ZeroStage::None, ..plan.layout }, ..plan.clone() };
        let [_, found] = [&before, plan].map(|plan| {
            let degrees = evaluator.prepare_degrees(&mut chip, &shape, plan, None).unwrap();
            let of = |recent: &mut RecentChunks| {
                evaluator.time_of_passes(recent, &shape, &degrees, &sends, plan.schedule, plan.micro_batches())
            };
            let found = of(&mut recent);
            assert_eq!(found, of(&mut RecentChunks::default()));
            found
        });
        assert!(found.seconds().0 <= exact * (1.0 + 1e-9), "{fidelity:?}: {found:?} above {exact}, {plan:?} {links:?}");
        if let (PassesTime::Exact(found), Fidelity::Exact) = (found, fidelity) {
            assert!((found.0 - exact).abs() <= 1e-9 * exact, "{found} {exact}, {plan:?} {links:?}");
        }
    }
}

#[test]
fn passes_by_the_operator_schedule_are_bounded_too() {
    for (pipeline, zero, schedule) in [
        (1, ZeroStage::Parameters, PipelineSchedule::OneForwardOneBackward),
        (2, ZeroStage::None, PipelineSchedule::OneForwardOneBackward),
        (4, ZeroStage::Parameters, PipelineSchedule::ZbH1),
    ] {
        for links in [[0.5, 0.5], [20.0, 5.0]] {
            is_bounded(
                &TrainingPlan { schedule, ..technique_plan(layout(pipeline, 2, zero), 4, STORED) },
                links,
                "ideal",
            );
        }
    }
}

#[test]
fn over_links_without_bounds_a_step_is_the_plain_one() {
    for (technique, zero) in
        [(INFINITY, ZeroStage::Parameters), (STORED, ZeroStage::Parameters), (OFFLOAD, ZeroStage::Gradients)]
    {
        let [with, plain] =
            [technique, ""].map(|technique| time([BOUNDLESS; 2], &technique_plan(layout(1, 2, zero), 4, technique)));
        assert!(with.offload.0 < 1e-3 * with.total.0, "{technique}: {with:?}");
        assert_eq!(
            (with.forward, with.backward, with.recompute),
            (plain.forward, plain.backward, plain.recompute),
            "{technique}"
        );
        assert!(
            time([2.0; 2], &technique_plan(layout(1, 2, zero), 4, technique)).offload.0 > 0.1 * with.total.0,
            "{technique}"
        );
    }
}

#[test]
fn every_micro_batch_copies_as_much() {
    for (technique, zero) in
        [(INFINITY, ZeroStage::Parameters), (STORED, ZeroStage::None), (OFFLOAD, ZeroStage::Gradients)]
    {
        let [one, seven] = [1, 7].map(|m| time([1.0; 2], &technique_plan(layout(1, 2, zero), m, technique)));
        assert!((seven.offload.0 / one.offload.0 - 7.0).abs() < 1e-9, "{technique}: {} {}", one.offload, seven.offload);
        assert!((seven.optimizer.0 / one.optimizer.0 - 1.0).abs() < 1e-9, "{technique}");
    }
}

#[test]
fn a_step_takes_at_least_what_its_links_take() {
    let (model, [host, storage]) = (model(), [0.5, 0.25]);
    let numbers = model.parameters() as f64;
    let m = 3;
    for (technique, zero, shared) in [
        (INFINITY, ZeroStage::None, 1.0),
        (INFINITY, ZeroStage::Parameters, 2.0),
        (STORED, ZeroStage::Parameters, 2.0),
        (OFFLOAD, ZeroStage::Gradients, 2.0),
    ] {
        let step = time([host, storage], &technique_plan(layout(1, 2, zero), m, technique));
        let gigabytes = 2.0 * numbers / shared / 1e9;
        let each = match technique {
            OFFLOAD => gigabytes / host,
            INFINITY => 2.0 * gigabytes / host,
            // Storage works in one direction at a time: weights for each of the two passes, and gradients.
            _ => 3.0 * gigabytes / storage,
        };
        let passes = step.total.0 - step.optimizer.0 - step.overhead.0;
        assert!(passes >= m as f64 * each, "{technique} {zero:?}: {passes} {each}");
        assert!(
            passes <= m as f64 * each + time([BOUNDLESS; 2], &technique_plan(layout(1, 2, zero), m, technique)).total.0,
            "{technique} {zero:?}"
        );
    }
}

#[test]
fn what_ranks_share_they_copy_their_share_of_and_the_rest_whole() {
    let model = model();
    let whole = model.parameters() * 2;
    for (pipeline, zero, [weights, gradients]) in [
        (1, ZeroStage::None, [1, 1]),
        (1, ZeroStage::OptimizerStates, [1, 1]),
        (1, ZeroStage::Gradients, [1, 4]),
        (1, ZeroStage::Parameters, [4, 4]),
        // In a pipeline, ZeRO-2 reduces whole gradients, after the last micro-batch.
        (2, ZeroStage::Gradients, [1, 1]),
        (2, ZeroStage::Parameters, [4, 4]),
    ] {
        for technique in [INFINITY, STORED, OFFLOAD] {
            let pieces = copies(&model, &technique_plan(layout(pipeline, 4, zero), 1, technique)).unwrap().pieces;
            let [embedding, layer, head] = pieces.map(|piece| [piece.weights, piece.gradients]);
            let sum = |of: usize| {
                let all = |copied: crate::pass::copied::CopiedBytes| [copied.all.0, copied.stored.0];
                let [e, l, h] = [embedding[of], layer[of], head[of]].map(all);
                [0, 1].map(|at| e[at] + l[at] * model.layers + h[at])
            };
            let near = |bytes: u64, shares: u64| bytes.abs_diff(whole / shares) <= 64;
            let [fetched, sent] = [sum(0), sum(1)];
            assert!(near(sent[0], gradients), "{technique} p{pipeline} {zero:?}: {sent:?}");
            assert!(
                if technique == OFFLOAD { fetched[0] == 0 } else { near(fetched[0], weights) },
                "{technique} {zero:?}: {fetched:?}"
            );
            for [all, stored] in [fetched, sent] {
                assert_eq!(stored, if technique == STORED { all } else { 0 }, "{technique}");
            }
        }
    }
}

#[test]
fn a_tied_head_fetches_its_weights_only_where_it_is_apart_from_the_embedding() {
    let model = Model { tied_head: true, ..model() };
    let [beside, apart] = [1, 2].map(|p| {
        let [embedding, _, head] =
            copies(&model, &technique_plan(layout(p, 1, ZeroStage::None), 1, INFINITY)).unwrap().pieces;
        (embedding.weights.all, head.weights.all)
    });
    assert!(beside.1 < Bytes(beside.0.0 / 100) && beside.0 == apart.0, "{beside:?} {apart:?}");
    assert_eq!(apart.1, beside.0 + beside.1);
}

#[test]
fn without_such_a_technique_nothing_is_copied() {
    for technique in ["", "adam8bit", "ssdtrain,fraction=0.5", "proximal-anchor,on_host=1"] {
        assert_eq!(
            copies(&model(), &technique_plan(layout(1, 2, ZeroStage::Parameters), 1, technique)),
            None,
            "{technique}"
        );
    }
}

#[test]
fn gradients_are_not_copied_to_the_host_again_by_the_update() {
    let (model, stack) = (model(), SoftwareStack::load("megatron").unwrap());
    let moved = |technique: &str, link: TransferLink| {
        let graph = lower_plan(&model, &technique_plan(Layout::default(), 1, technique), &stack).unwrap();
        let kernels = graph.segment(SegmentKind::Layer).unwrap().update_kernels(1 << 20);
        let bytes = kernels.iter().filter_map(|(kernel, times)| match kernel {
            Kernel::Transfer(copy) if copy.link == link => Some(copy.bytes.as_f64() * times),
            _ => None,
        });
        (bytes.sum::<f64>() / f64::from(1 << 20) * 1e6).round() / 1e6
    };
    // If the weights stay on the device, the updated ones return to it at 2 bytes per number.
    assert_eq!([OFFLOAD, INFINITY, STORED].map(|technique| moved(technique, TransferLink::Host)), [2.0, 0.0, 0.0]);
    // Gradients are read and weights written; 12 bytes of masters and moments are both.
    assert_eq!([OFFLOAD, INFINITY, STORED].map(|technique| moved(technique, TransferLink::Storage)), [0.0, 0.0, 28.0]);
    // The host's processors stream the same 28 bytes through their memory, wherever they come from.
    assert_eq!([OFFLOAD, INFINITY, STORED].map(|technique| moved(technique, TransferLink::HostMemory)), [28.0; 3]);
    assert_eq!(moved("adam8bit", TransferLink::HostMemory), 0.0);
}

#[test]
fn an_update_on_the_host_takes_as_long_as_its_memory_streams() {
    let (model, stack) = (model(), SoftwareStack::load("megatron").unwrap());
    let plan = technique_plan(Layout::default(), 1, INFINITY);
    let update = |memory: Option<f64>| {
        let mut accelerator = Accelerator::built_in("a100_80gb_sxm").unwrap();
        let host = accelerator.host.unwrap();
        accelerator.host = Some(HostLink { memory: memory.map(BytesPerSecond), ..host });
        let fabric = Fabric::built_in("nvlink3_node").unwrap().for_devices(1).unwrap();
        let mut chip = ChipTimes::new(&accelerator, &stack).unwrap();
        let profile = chip.profile_plan(&model, &fabric, &plan).unwrap();
        chip.time_of_update(&profile, 1_000_000_000).0
    };
    let more = update(Some(50e9)) - update(None);
    assert!((more / (28.0 / 50.0) - 1.0).abs() < 1e-6, "{more}");
}
