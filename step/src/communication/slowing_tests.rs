//! Effects of mutual slowdown on a step.
#![allow(clippy::unwrap_used)]

use crate::{ChipTimes, SoftwareStack, StepTime, TrainingPlan, step_time};
use sim::hardware::Accelerator;
use sim::network::Fabric;
use sim::pipeline::PipelineSchedule;
use workloads::footprint::{Optimizer, Precision};
use workloads::training::Attention;
use workloads::{ActivationPolicy, Batch, Layout, Model, ZeroStage};

fn step(layout: Layout, stack: &str, change: impl Fn(&mut Accelerator, &mut SoftwareStack)) -> StepTime {
    let (mut chip, mut stack) = (Accelerator::built_in("a100_80gb_sxm").unwrap(), SoftwareStack::load(stack).unwrap());
    change(&mut chip, &mut stack);
    let plan = TrainingPlan {
        layout,
        batch: Batch { micro_batch: 1, global_batch: u64::from(layout.data), sequence_length: 2048 },
        activations: ActivationPolicy::Full.into(),
        attention: Attention::Fused,
        precision: Precision::MIXED_BF16,
        optimizer: Optimizer::Adam,
        schedule: PipelineSchedule::OneForwardOneBackward,
        techniques: workloads::Techniques::default(),
    };
    let mut chip = ChipTimes::new(&chip, &stack).unwrap();
    step_time(&mut chip, &Model::load("llama2-7b").unwrap(), &Fabric::built_in("selene_hdr200x8").unwrap(), &plan)
        .unwrap()
}

#[test]
fn what_overlaps_in_a_step_is_slowed_and_nothing_else() {
    let sharded = |data| Layout { data, zero: ZeroStage::Parameters, ..Layout::default() };
    for data in [8, 64] {
        let unknown = step(sharded(data), "torchtitan", |chip, _| chip.streams = None);
        let slowed = step(sharded(data), "torchtitan", |_, _| {});
        let left_out = step(sharded(data), "torchtitan", |_, stack| stack.overlap.contended = false);
        assert_eq!(unknown, left_out, "{data} devices");
        assert!(slowed.total > unknown.total && slowed.data > unknown.data, "{data} devices: {slowed:?} {unknown:?}");
        // Slowdown costs at most as much as a fully exposed exchange.
        let exposed = step(sharded(data), "torchtitan", |_, stack| {
            (stack.overlap.data_reduction, stack.overlap.parameter_prefetch) = (0.0, 0.0);
        });
        assert!(slowed.total < exposed.total, "{data} devices: {slowed:?} {exposed:?}");
        // Without overlap there is no slowdown.
        assert_eq!(
            step(sharded(data), "megatron", |_, _| {}),
            step(sharded(data), "megatron", |chip, _| chip.streams = None)
        );
    }
    // Gradient sums within a node slow kernels ten times as much as sums between nodes.
    let lost = |layout: Layout| {
        let [slowed, alone] =
            [true, false].map(|on| step(layout, "torchtitan", |_, stack| stack.overlap.contended = on));
        (slowed.total - alone.total).0 / alone.total.0
    };
    assert!(lost(sharded(8)) > lost(sharded(64)), "{} {}", lost(sharded(8)), lost(sharded(64)));
}
