//! Laws of explanations: step, passes and kernels add up.
#![allow(clippy::unwrap_used)]

use super::{Explanation, explain_plan};
use crate::{
    ChipTimes, ExecutionMode, KernelDetail, KernelPlace, SoftwareStack, StepEnergy, TrainingPlan, step_energy_of,
    step_time,
};
use sim::hardware::Accelerator;
use sim::kernel::Kernel;
use sim::network::Fabric;
use sim::pipeline::PipelineSchedule;
use sim::units::{Joules, Seconds};
use workloads::footprint::{Optimizer, Precision};
use workloads::training::Attention;
use workloads::{Batch, Layout, Model, Technique, ZeroStage};

fn plan(layout: Layout, activations: &str) -> TrainingPlan {
    TrainingPlan {
        layout,
        batch: Batch { micro_batch: 2, global_batch: 32, sequence_length: 1024 },
        activations: activations.parse().unwrap(),
        attention: Attention::Fused,
        precision: Precision::MIXED_BF16,
        optimizer: Optimizer::Adam,
        schedule: PipelineSchedule::OneForwardOneBackward,
        techniques: workloads::Techniques::default(),
    }
}

fn layout(tensor: u32, pipeline: u32, context: u32) -> Layout {
    Layout { tensor, pipeline, context, data: 2, sequence_parallel: tensor > 1, ..Layout::default() }
}

/// Returns plans with every kind of communication inside a pass, every kind of recomputation, and copies of weights,
/// gradients and activations.
fn plans() -> Vec<TrainingPlan> {
    vec![
        plan(layout(1, 1, 1), "none"),
        plan(layout(4, 1, 1), "selective"),
        plan(layout(2, 4, 1), "full"),
        plan(layout(2, 2, 2), "none"),
        TrainingPlan {
            techniques: ["zero-infinity".parse::<Technique>().unwrap()].into_iter().collect(),
            ..plan(Layout { zero: ZeroStage::Parameters, ..layout(1, 2, 1) }, "none")
        },
        plan(layout(1, 2, 1), "custom:offload(decoder_layer_input)"),
    ]
}

struct Case {
    plan: TrainingPlan,
    why: Explanation,
    energy: StepEnergy,
    total: Seconds,
}

fn cases(chip: &str, stack: &SoftwareStack) -> Vec<Case> {
    let (model, chip) = (Model::load("llama2-7b").unwrap(), Accelerator::built_in(chip).unwrap());
    let fabric = Fabric::built_in("selene_hdr200x8").unwrap();
    let mut times = ChipTimes::new(&chip, stack).unwrap();
    let case = |plan: TrainingPlan| {
        let why = explain_plan(&mut times, &model, &fabric, &plan).unwrap();
        let total = step_time(&mut times, &model, &fabric, &plan).unwrap().total;
        let profile = times.profile_plan(&model, &fabric, &plan).unwrap();
        let energy = step_energy_of(&mut times, &model, &fabric, &plan, &profile, total).unwrap();
        Case { plan, why, energy, total }
    };
    plans().into_iter().map(case).collect()
}

fn stacks() -> Vec<SoftwareStack> {
    let mut stream = SoftwareStack::load("ideal").unwrap();
    stream.kernels.execution = ExecutionMode::Stream;
    let megatron = SoftwareStack::load("megatron").unwrap();
    // Collectives and copies are hidden as far as there is work beside them.
    let mut hiding = megatron.clone();
    (hiding.overlap.tensor, hiding.overlap.products, hiding.overlap.context, hiding.overlap.host) =
        (1.0, 1.0, 1.0, 1.0);
    vec![stream, SoftwareStack::load("ideal").unwrap(), megatron, hiding]
}

#[test]
fn the_parts_are_the_step() {
    for stack in stacks() {
        for Case { plan, why, total, .. } in cases("a100_80gb_sxm", &stack) {
            let sum: Seconds = why.parts.iter().map(|part| part.time).sum();
            assert_eq!(why.time.total, total);
            assert!((sum.0 / total.0 - 1.0).abs() < 1e-9, "{}: {plan:?}: {sum} of {total}", stack.name);
            let kernels: Seconds =
                why.parts.iter().filter(|part| part.name.contains(", bound by ")).map(|part| part.time).sum();
            assert!(
                (kernels.0 / (why.time.forward + why.time.backward).0 - 1.0).abs() < 1e-9,
                "{}: {plan:?}",
                stack.name
            );
            assert!(
                why.parts.is_sorted_by(|a, b| a.time.0 >= b.time.0) && why.parts.iter().all(|part| part.time.0 > 0.0)
            );
        }
    }
}

#[test]
fn the_passes_are_the_slowest_stages_work() {
    for stack in stacks() {
        for Case { plan, why, .. } in cases("a100_80gb_sxm", &stack) {
            let busy: f64 = why.passes.iter().map(|pass| pass.time.0 * pass.count as f64).sum();
            let t = &why.time;
            let parts = [t.forward, t.backward, t.recompute, t.tensor, t.context, t.expert, t.offload];
            let expected = parts.into_iter().sum::<Seconds>().0 / plan.micro_batches() as f64;
            assert!((busy / expected - 1.0).abs() < 1e-9, "{}: {plan:?}: {busy} of {expected}", stack.name);
        }
    }
}

#[test]
fn the_kernels_of_a_pass_end_with_it() {
    let (mut collectives, mut copies) = (0, 0);
    for stack in stacks() {
        for Case { plan, why, .. } in cases("a100_80gb_sxm", &stack) {
            for pass in &why.passes {
                let hidden = pass.kernels.iter().filter(|kernel| kernel.exposed < kernel.latency);
                let hidden: Vec<KernelPlace> = hidden.map(|kernel| kernel.place).collect();
                collectives += hidden.iter().filter(|place| **place == KernelPlace::Network).count();
                copies += hidden.iter().filter(|place| **place == KernelPlace::Host).count();
                let end = pass.kernels.iter().map(|kernel| kernel.end_time().0).fold(0.0, f64::max);
                // Schedules count in picoseconds.
                let slack = 1e-9 * pass.time.0 + 1e-12;
                let context = format!("{}, {plan:?}, {} {}", stack.name, pass.segment, pass.pass);
                assert!((end - pass.time.0).abs() <= slack, "{context}: {end}");
                let exposed: Seconds = pass.kernels.iter().map(|kernel| kernel.exposed).sum();
                assert!((exposed - pass.time).0.abs() <= slack, "{context}: {exposed} of {}", pass.time);
                let within = |kernel: &KernelDetail| {
                    kernel.start.0 >= 0.0 && kernel.exposed.0 >= 0.0 && kernel.exposed.0 <= kernel.latency.0 + slack
                };
                assert!(pass.kernels.iter().all(within), "{context}");
                let computing: Vec<_> = pass.kernels.iter().filter(|kernel| kernel.runs_on_cores()).collect();
                assert!(computing.iter().all(|kernel| kernel.end_time().0 <= pass.time.0 + slack), "{context}");
                assert!(
                    pass.kernels.is_sorted_by(|a, b| a.start.0 <= b.start.0 || b.place == KernelPlace::Host),
                    "{context}"
                );
                if stack.kernels.execution == ExecutionMode::Stream {
                    let one_by_one = computing.windows(2).all(|pair| pair[0].end_time().0 <= pair[1].start.0 + slack);
                    assert!(
                        one_by_one && computing.iter().all(|kernel| kernel.place == KernelPlace::AllCores),
                        "{context}"
                    );
                }
            }
        }
    }
    assert!(collectives > 10 && copies > 10, "{collectives} {copies}");
}

#[test]
fn without_a_pipeline_the_passes_have_the_steps_energy() {
    for stack in stacks() {
        for Case { plan, why, energy, .. } in cases("tpu_v4", &stack) {
            if plan.layout.pipeline > 1 {
                continue;
            }
            let micro_batch: Joules = why.passes.iter().map(|pass| pass.energy * pass.count as f64).sum();
            let devices = f64::from(plan.layout.tensor * plan.layout.context * plan.layout.data);
            let all = micro_batch * plan.micro_batches() as f64 * devices;
            assert!(
                (all.0 / energy.passes.0 - 1.0).abs() < 1e-9,
                "{}: {plan:?}: {all} of {}",
                stack.name,
                energy.passes
            );
        }
    }
}

#[test]
fn what_is_copied_to_the_host_is_a_kernel_of_both_passes() {
    let stack = SoftwareStack::load("megatron").unwrap();
    let cases = cases("a100_80gb_sxm", &stack);
    let case = cases.last().unwrap();
    for pass in &case.why.passes {
        let copies = pass.kernels.iter().filter(|kernel| matches!(kernel.kernel, Kernel::Transfer(_))).count();
        assert_eq!(copies, usize::from(pass.segment == "layer"), "{}", pass.segment);
    }
}

#[test]
fn kernels_side_by_side_share_the_device_memory() {
    let ideal = SoftwareStack::load("ideal").unwrap();
    let mut beside = 0;
    for chip in ["tpu_v4", "tpu_v5e", "tpu_v5p", "tpu_v6e"] {
        let memory = Accelerator::built_in(chip).unwrap();
        let gives = memory.hbm.read_bandwidth.0 * memory.calibration.hbm_achieved_fraction;
        assert!(memory.hbm.ports == 1 && memory.hbm.read_bandwidth == memory.hbm.write_bandwidth, "{chip}");
        for Case { plan, why, .. } in cases(chip, &ideal) {
            for pass in &why.passes {
                let kernels =
                    || pass.kernels.iter().filter(|kernel| kernel.runs_on_cores() && kernel.latency > Seconds::ZERO);
                // Kernels that run within a span move all their bytes within it.
                for (from, to) in kernels()
                    .flat_map(|a| kernels().map(|b| (a.start.0, b.end_time().0)))
                    .filter(|(from, to)| from < to)
                {
                    let inside = |kernel: &&KernelDetail| kernel.start.0 >= from && kernel.end_time().0 <= to;
                    let moved: f64 = kernels().filter(inside).map(|kernel| kernel.hbm.as_f64()).sum();
                    let rate = moved / (to - from);
                    assert!(
                        rate <= gives * 1.001,
                        "{chip}, {plan:?}, {}: {rate} of {gives} from {from} to {to}",
                        pass.pass
                    );
                    beside += usize::from(
                        kernels()
                            .any(|kernel| kernel.start.0 > from && kernel.start.0 < to && kernel.end_time().0 > to),
                    );
                }
            }
        }
    }
    assert!(beside > 100, "{beside}");
}
