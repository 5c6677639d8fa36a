//! The energy of a step against a sum over kernels without [`ChipTimes`].
#![allow(clippy::unwrap_used)]

use crate::{ChipTimes, ExecutionMode, SoftwareStack, StepEnergy, TrainingPlan, lowering_of_plan, step_energy_of};
use sim::cost::{CostModel, Span};
use sim::hardware::Accelerator;
use sim::kernel::{Kernel, KernelGraph, Transfer, TransferLink};
use sim::network::Fabric;
use sim::pipeline::PipelineSchedule;
use sim::units::{Bytes, Joules, Seconds};
use workloads::footprint::{Optimizer, Precision};
use workloads::training::Attention;
use workloads::{Batch, Layout, Model, SegmentKind, TrainingGraph, ZeroStage};

const STEP: Seconds = Seconds(2.0);

/// Returns a plan on four devices (t 2, d 2) with 8 micro-batches of 2 sequences each.
fn plan(zero: ZeroStage, activations: &str) -> TrainingPlan {
    TrainingPlan {
        layout: Layout { tensor: 2, data: 2, zero, ..Layout::default() },
        batch: Batch { micro_batch: 2, global_batch: 32, sequence_length: 512 },
        activations: activations.parse().unwrap(),
        attention: Attention::Fused,
        precision: Precision::MIXED_BF16,
        optimizer: Optimizer::Adam,
        schedule: PipelineSchedule::OneForwardOneBackward,
        techniques: workloads::Techniques::default(),
    }
}

fn stack() -> SoftwareStack {
    let mut stack = SoftwareStack::load("ideal").unwrap();
    stack.kernels.execution = ExecutionMode::Stream;
    stack
}

fn modelled(model: &Model, chip: &Accelerator, plan: &TrainingPlan) -> StepEnergy {
    let fabric = Fabric::built_in("selene_hdr200x8").unwrap();
    let mut times = ChipTimes::new(chip, &stack()).unwrap();
    let profile = times.profile_plan(model, &fabric, plan).unwrap();
    step_energy_of(&mut times, model, &fabric, plan, &profile, STEP).unwrap()
}

#[test]
fn every_kernel_of_every_micro_batch_is_counted_once() {
    let (model, chip) = (Model::load("bert-large").unwrap(), Accelerator::built_in("a100_80gb_sxm").unwrap());
    let costs = CostModel::new(chip.clone()).unwrap();
    let joules = |kernel: &Kernel| match kernel {
        Kernel::Collective(_) => 0.0,
        kernel => costs.cost_of_kernel(kernel, Span::AllCores).energy.0,
    };
    let of = |graph: &KernelGraph| graph.node_weights().map(|node| joules(&node.kernel)).sum::<f64>();
    for (policy, zero) in
        [("none", ZeroStage::None), ("full", ZeroStage::OptimizerStates), ("selective", ZeroStage::None)]
    {
        let plan = plan(zero, policy);
        let graph = TrainingGraph::new(&model, &lowering_of_plan(&model, &plan, &stack())).unwrap();
        let (mut passes, mut parameters) = (0.0, 0);
        for segment in &graph.segments {
            let treatment =
                plan.activations.first_layer_policy().treatment_with_extent(&segment.graph, stack().replay_extent());
            let times = if segment.kind == SegmentKind::Layer { model.layers } else { 1 };
            passes += (of(&segment.forward_graph()) + of(&segment.backward_graph(&treatment.recompute))) * times as f64;
            parameters += (segment.parameters.sharded + segment.parameters.replicated) * times;
        }
        // 8 micro-batches on each of four devices; ZeRO-1 shards the update over two of them.
        let owned = if zero == ZeroStage::None { parameters } else { parameters.div_ceil(2) };
        let update = joules(&graph.segment(SegmentKind::Layer).unwrap().update_kernel(owned)) * 4.0;
        let energy = modelled(&model, &chip, &plan);
        let near = |a: Joules, b: f64| (a.0 - b).abs() <= 1e-9 * b && b > 0.0;
        assert!(near(energy.passes, passes * 8.0 * 4.0), "{policy}: {energy:?}, by hand {}", passes * 32.0);
        assert!(near(energy.update, update), "{policy}: {energy:?}, by hand {update}");
        assert!(near(energy.standing, chip.energy.static_power.0 * STEP.0 * 4.0), "{energy:?}");
    }
}

#[test]
fn what_is_offloaded_goes_to_the_host_and_comes_back() {
    let (model, chip) = (Model::load("llama2-7b").unwrap(), Accelerator::built_in("a100_80gb_sxm").unwrap());
    let kept = modelled(&model, &chip, &plan(ZeroStage::None, "custom:device(decoder_layer_input)"));
    let moved = modelled(&model, &chip, &plan(ZeroStage::None, "custom:offload(decoder_layer_input)"));
    // A layer's input: 2 sequences of 512 tokens, in bf16.
    let copy = Kernel::Transfer(Transfer { link: TransferLink::Host, bytes: Bytes(2 * 512 * model.hidden * 2) });
    let joules = CostModel::new(chip.clone()).unwrap().cost_of_kernel(&copy, Span::AllCores).energy.0;
    let expected = joules * 2.0 * model.layers as f64 * 8.0 * 4.0;
    let more = (moved.passes - kept.passes).0;
    assert!((more - expected).abs() < 1e-6 * expected, "{more} J for {expected} J");
}

#[test]
fn a_pipeline_runs_the_same_kernels() {
    let (model, chip) = (Model::load("llama2-7b").unwrap(), Accelerator::built_in("a100_80gb_sxm").unwrap());
    let one = plan(ZeroStage::None, "full");
    let mut two = one.clone();
    // As many micro-batches per rank, on twice as many devices.
    (two.layout.pipeline, two.layout.tensor) = (2, 2);
    let [one, two] = [one, two].map(|plan| modelled(&model, &chip, &plan));
    let near = |a: Joules, b: Joules| (a.0 - b.0).abs() <= 1e-9 * b.0;
    assert!(near(one.passes, two.passes) && near(one.standing * 2.0, two.standing), "{one:?} {two:?}");
    // Llama's head is not tied, so one stage updates each parameter.
    assert!((one.update.0 - two.update.0).abs() < 1e-3 * one.update.0, "{one:?} {two:?}");
}
