//! Policies by stage against one policy for all stages, and laws of memory and of the host's link.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use crate::planner::search_plans::search_once;
use crate::planner::{Job, NO_MARGIN, PlanAnswer, PlanSpace, PlanWatch, RankedPlan, Splits, search_plans};
use sim::hardware::Accelerator;
use sim::network::Fabric;
use sim::pipeline::PipelineSchedule;
use sim::units::{Bytes, BytesPerSecond};
use step::{DeviceMemory, MixKind, SoftwareStack, layer_keeps_by_stage, step_memory, step_time};
use workloads::footprint::{Optimizer, Precision};
use workloads::training::Attention;
use workloads::{ActivationPolicy, Model, SegmentKind, TrainingGraph, ZeroStage};

pub(crate) struct MixHardware {
    model: Model,
    pub(crate) chip: Accelerator,
    fabric: Fabric,
    stack: SoftwareStack,
}

impl MixHardware {
    pub(crate) fn new(model: &str, stack: &str) -> Self {
        Self {
            model: Model::load(model).unwrap(),
            chip: Accelerator::built_in("h100_80gb_sxm").unwrap(),
            fabric: Fabric::built_in("eos_ndr400x8").unwrap().for_devices(64).unwrap(),
            stack: SoftwareStack::load(stack).unwrap(),
        }
    }

    pub(crate) fn job(&self, batch: u64, sequence_length: u64, headroom_gib: f64) -> Job<'_> {
        Job {
            model: &self.model,
            chip: &self.chip,
            fabric: &self.fabric,
            stack: &self.stack,
            devices: 64,
            global_batch: batch,
            sequence_length,
            attention: Attention::Fused,
            precision: Precision::MIXED_BF16,
            optimizer: Optimizer::Adam,
            headroom: Bytes::from_gib(headroom_gib),
            fit: NO_MARGIN,
            techniques: workloads::Techniques::none(),
        }
    }
}

pub(crate) fn mixed(space: &PlanSpace) -> PlanSpace {
    PlanSpace { mixes: Some(MixKind::PerStage), ..space.clone() }
}

pub(crate) fn under(space: &PlanSpace, policy: ActivationPolicy) -> PlanSpace {
    PlanSpace { activations: Some(vec![policy]), mixes: None, ..space.clone() }
}

pub(crate) fn seconds(answer: &PlanAnswer) -> f64 {
    answer.best.first().map_or(f64::INFINITY, |best| best.time.total.0)
}

/// One layout: 8 tensor-parallel devices, the given number of stages, and a schedule.
pub(crate) fn one(pipeline: u32, virtual_stages: u32, schedule: PipelineSchedule) -> PlanSpace {
    PlanSpace {
        tensor: Some(vec![8]),
        pipeline: Some(vec![pipeline]),
        context: Some(vec![1]),
        virtual_stages: Some(vec![virtual_stages]),
        zero: Some(vec![ZeroStage::OptimizerStates]),
        micro_batch: Some(vec![1]),
        splits: Some(Splits::Listed(vec![None])),
        sequence_parallel: Some(vec![true]),
        schedules: Some(vec![schedule]),
        ..PlanSpace::default()
    }
}

/// Checks that the step time and memory of `best` equal those that `step` computes, and that the plan fits.
pub(crate) fn hold(job: &Job<'_>, best: &RankedPlan) {
    let mut chip = step::ChipTimes::new(job.chip, job.stack).unwrap();
    assert_eq!(step_time(&mut chip, job.model, job.fabric, &best.plan).unwrap().total, best.time.total);
    let memory = DeviceMemory {
        hbm: DeviceMemory::of_chip(job.chip).hbm.saturating_sub(job.headroom),
        ..DeviceMemory::of_chip(job.chip)
    };
    let sized = step_memory(job.model, &best.plan, job.stack, memory, job.sharding_domain(&best.plan)).unwrap();
    assert_eq!(sized, best.memory);
    sized.check_fits().unwrap();
}

/// Llama 3 70B with 32,768 tokens on 64 devices of 80 GB. Policies by stage beat Megatron's two policies at equal
/// memory, layout by layout and over all.
#[test]
fn long_sequences_run_faster_with_policies_by_stage() {
    let hardware = MixHardware::new("llama3-70b", "megatron_core");
    let job = hardware.job(64, 32_768, 0.0);
    let space = PlanSpace { context: Some(vec![1]), ..one(8, 1, PipelineSchedule::OneForwardOneBackward) };
    let best = search_plans(&job, &PlanSpace { schedules: None, ..mixed(&space) }, 4).unwrap();
    let staged =
        best.best.iter().find(|plan| plan.plan.activations.uniform_policy().is_none()).expect("policies by stage");
    hold(&job, staged);
    for policy in [ActivationPolicy::Selective, ActivationPolicy::Full] {
        let named = seconds(&search_plans(&job, &under(&space, policy.clone()), 1).unwrap());
        assert!(staged.time.total.0 < 0.97 * named, "{policy}: {} {named}", staged.time.total.0);
    }
    // Early stages hold more micro-batches, so they keep no more than the last.
    let keeps = layer_keeps_by_stage(job.model, &staged.plan, job.stack).unwrap();
    let kept = |stage: &Vec<step::LayerKeeps>| -> u64 {
        stage.iter().map(|keeps| keeps.layers * keeps.device.iter().map(|(_, bytes)| bytes.0).sum::<u64>()).sum()
    };
    assert!(kept(&keeps[0]) <= kept(&keeps[7]), "{} {}", kept(&keeps[0]), kept(&keeps[7]));
    assert_eq!(keeps.iter().flatten().map(|keeps| keeps.layers).sum::<u64>(), job.model.layers);
    // Bytes are conserved: tensors that the backward pass reads are on the device, on the host, or rerun.
    let graph = TrainingGraph::new(job.model, &step::lowering_of_plan(job.model, &staged.plan, job.stack)).unwrap();
    let layer = &graph.segment(SegmentKind::Layer).unwrap().graph;
    let saved: u64 = layer.tensors.iter().filter(|t| t.saved).map(|t| t.bytes.0).sum();
    for keeps in keeps.iter().flatten() {
        let is_saved =
            |name: &str| layer.find_tensor(&format!("layer.{name}")).is_some_and(|t| layer.tensors[t.index()].saved);
        let sum = |tensors: &[step::NamedBytes]| {
            tensors.iter().filter(|(name, _)| is_saved(name)).map(|(_, b)| b.0).sum::<u64>()
        };
        assert_eq!(sum(&keeps.device) + sum(&keeps.host) + sum(&keeps.rebuilt), saved);
    }
}

/// No named policy is faster than the mix that may use it, for any schedule and memory. More memory is never slower.
#[test]
fn mixes_are_no_slower_than_policies_and_more_memory_is_never_slower() {
    let hardware = MixHardware::new("llama3-70b", "ideal");
    for (pipeline, chunks, schedule) in [
        (8, 1, PipelineSchedule::OneForwardOneBackward),
        (4, 1, PipelineSchedule::OneForwardOneBackward),
        (8, 2, PipelineSchedule::OneForwardOneBackward),
        (4, 1, PipelineSchedule::GPipe),
        (4, 1, PipelineSchedule::ZbH1),
        (4, 2, PipelineSchedule::ZB_V),
    ] {
        let space = one(pipeline, chunks, schedule);
        let mut before = f64::INFINITY;
        for headroom in [42.0, 36.0, 30.0, 20.0, 0.0] {
            let job = hardware.job(32, 16_384, headroom);
            let answer = search_once(&job, &mixed(&space), 1, PlanWatch::NONE).unwrap();
            let best = seconds(&answer);
            for policy in [ActivationPolicy::None, ActivationPolicy::Selective, ActivationPolicy::Full] {
                let named = seconds(&search_once(&job, &under(&space, policy.clone()), 1, PlanWatch::NONE).unwrap());
                assert!(best <= named * (1.0 + 1e-9), "{schedule:?} p {pipeline} {headroom} {policy}: {best} {named}");
            }
            assert!(
                best <= before * (1.0 + 1e-9),
                "{schedule:?} p {pipeline} v {chunks} {headroom} GiB free: {best} {before}"
            );
            before = best;
            answer.best.iter().for_each(|best| hold(&job, best));
        }
        assert!(before.is_finite());
    }
}

/// If other splits are allowed, mixes try to move a few layers too. The plan found is no slower than with the even
/// split, nor than with any split whose ends hold up to two layers more or less.
#[test]
fn layers_are_moved_between_chunks_that_keep_different_things() {
    let hardware = MixHardware::new("llama3-70b", "megatron");
    let job = hardware.job(32, 32_768, 0.0);
    let space = |splits| PlanSpace { splits, ..mixed(&one(4, 7, PipelineSchedule::OneForwardOneBackward)) };
    let found = search_once(&job, &space(None), 1, PlanWatch::NONE).unwrap();
    let best = &found.best[0];
    hold(&job, best);
    assert!(best.plan.activations.uniform_policy().is_none(), "the stages keep different things");
    let now = best.plan.layout.chunk_split(job.model.layers).unwrap();
    let near = |a: u64, b: u64| a.abs_diff(b) <= 2;
    let of = best
        .plan
        .layout
        .chunk_splits(job.model.layers)
        .filter(|split| near(split.first, now.first) && near(split.last, now.last));
    let ends: Vec<_> = of
        .filter(|split| split.longer_from <= 1 && split.first * split.last > 0)
        .map(|split| split.layer_ends())
        .collect();
    assert!(ends.len() > 8, "{ends:?}");
    let listed = search_once(&job, &space(Some(Splits::Listed(ends))), 1, PlanWatch::NONE).unwrap();
    assert!(seconds(&found) <= seconds(&listed) * (1.0 + 1e-9), "{} {}: {now}", seconds(&found), seconds(&listed));
    let even = search_once(&job, &space(Some(Splits::Listed(vec![None]))), 1, PlanWatch::NONE).unwrap();
    assert!(seconds(&found) < seconds(&even) * (1.0 - 1e-4), "{} {}", seconds(&found), seconds(&even));
}

/// An infinitely fast link to the host makes keeping free. With a link of rate zero only reruns are left.
#[test]
fn the_link_to_the_host_decides_what_is_offloaded() {
    let mut hardware = MixHardware::new("llama3-70b", "megatron_core");
    let space = one(8, 1, PipelineSchedule::OneForwardOneBackward);
    let host = hardware.chip.host.unwrap();
    let mut with = |host| {
        hardware.chip.host = host;
        // Copies overlap with the passes as the stack does it; nothing else changes.
        seconds(&search_once(&hardware.job(32, 16_384, 45.0), &mixed(&space), 1, PlanWatch::NONE).unwrap())
    };
    let endless =
        sim::hardware::HostLink { bandwidth: BytesPerSecond(1e30), capacity: Bytes(u64::MAX >> 20), memory: None };
    let [free, real] = [endless, host].map(|host| with(Some(host)));
    let still = with(Some(sim::hardware::HostLink { bandwidth: BytesPerSecond(1.0), ..host }));
    let none = with(None);
    assert!((still - none).abs() <= 1e-9 * none, "{still} {none}");
    assert!(free <= real * (1.0 + 1e-9) && real <= none * (1.0 + 1e-9), "{free} {real} {none}");
    hardware.chip.host = Some(host);
    let endless_memory = under(&space, ActivationPolicy::None);
    hardware.chip.hbm.capacity = Bytes(u64::MAX >> 20);
    let kept = seconds(&search_once(&hardware.job(32, 16_384, 0.0), &endless_memory, 1, PlanWatch::NONE).unwrap());
    assert!((free - kept).abs() <= 1e-6 * kept, "{free} {kept}");
    assert!(none > kept * 1.01, "{none} {kept}: memory is short here");
}

/// Blocks are what Megatron-LM runs: they come first under its stack, and no smaller block fits.
#[test]
fn blocks_recompute_as_few_layers_as_fit() {
    let hardware = MixHardware::new("llama3-70b", "megatron_core");
    let job = hardware.job(64, 16_384, 20.0);
    let space = one(8, 1, PipelineSchedule::OneForwardOneBackward).with_mixes_of(job.stack);
    let answer = search_plans(&job, &space, 3).unwrap();
    let best = &answer.best[0];
    let count = best.plan.activations.full_recompute_layers_per_chunk().unwrap();
    assert!((1..10).contains(&count) && job.framework_refusal(&best.plan).is_none(), "{count}");
    hold(&job, best);
    let split = best.plan.layout.chunk_split(job.model.layers).unwrap();
    let fewer = step::TrainingPlan {
        activations: workloads::StagePolicies::from_full_recompute_layers(count - 1, &split),
        ..best.plan.clone()
    };
    let memory = DeviceMemory {
        hbm: DeviceMemory::of_chip(job.chip).hbm.saturating_sub(job.headroom),
        ..DeviceMemory::of_chip(job.chip)
    };
    step_memory(job.model, &fewer, job.stack, memory, None).unwrap().check_fits().unwrap_err();
    let full = search_plans(&job, &under(&space, ActivationPolicy::Full), 1).unwrap();
    assert!(seconds(&answer) < seconds(&full));
}

/// Plans that rerun a given number of layers per chunk. With none, the plan keeps everything; with all layers, it
/// reruns everything. More layers take longer and keep less.
#[test]
fn blocks_of_a_given_size_lie_between_none_and_full() {
    let hardware = MixHardware::new("llama3-70b", "megatron_core");
    let job = hardware.job(64, 4096, 0.0);
    let space = one(8, 1, PipelineSchedule::OneForwardOneBackward);
    let plan = |blocks: Vec<u64>, activations: Option<Vec<ActivationPolicy>>| {
        let asked = PlanSpace { blocks, activations, mixes: Some(MixKind::None), ..space.clone() };
        let answer = search_plans(&job, &asked, 3).unwrap();
        answer.best.into_iter().next().unwrap()
    };
    let named = |policy| plan(Vec::new(), Some(vec![policy]));
    let held = |ranked: &RankedPlan| ranked.memory.stages.iter().map(|stage| stage.bytes_needed()).max().unwrap();
    let (none, full) = (named(ActivationPolicy::None), named(ActivationPolicy::Full));
    let mut before = none.clone();
    for count in [0, 1, 4, 9, 10, 40] {
        let found = plan(vec![count], None);
        match count {
            0 => assert_eq!((&found.plan, &found.time), (&none.plan, &none.time)),
            10.. => assert_eq!((&found.plan, &found.time), (&full.plan, &full.time)),
            _ => {
                assert_eq!(found.plan.activations.full_recompute_layers_per_chunk(), Some(count));
                hold(&job, &found);
            }
        }
        assert!(found.time.total >= before.time.total && held(&found) <= held(&before), "{count}");
        before = found;
    }
    // If a space has a policy and a block, the faster of the two comes first.
    assert_eq!(plan(vec![4], Some(vec![ActivationPolicy::None])).plan, none.plan);
    let beside_full = plan(vec![4], Some(vec![ActivationPolicy::Full]));
    assert_eq!(beside_full.plan.activations, plan(vec![4], None).plan.activations);
    // If the block does not fit, the answer's nearest plan is the one with the block.
    let long = hardware.job(64, 16_384, 20.0);
    let asked = PlanSpace { blocks: vec![1], activations: None, mixes: Some(MixKind::None), ..space.clone() };
    let answer = search_plans(&long, &asked, 1).unwrap();
    assert!(answer.best.is_empty());
    let (nearest, _) = answer.nearest.unwrap();
    assert_eq!(nearest.activations.full_recompute_layers_per_chunk(), Some(1));
}
