//! Laws of a step's time: a faster part makes no step slower.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::tests::{sample_layouts, time_step_of};
use super::{ChipTimes, SoftwareStack, step_time};
use proptest::prelude::*;
use sim::hardware::Accelerator;
use sim::network::Fabric;
use sim::pipeline::PipelineSchedule;
use sim::units::BytesPerSecond;
use workloads::{ActivationPolicy, Model, RankOrder, ZeroStage};

/// Returns Selene's fabric with 1/100 to 10 times the bandwidth and up to ten times the latencies of the links in nodes
/// of 8, and of those between nodes.
fn fabrics() -> impl Strategy<Value = Fabric> {
    let scale = || (-2.0_f64..1.0).prop_map(|exponent| 10_f64.powf(exponent));
    (scale(), scale(), 1.0_f64..10.0, 1.0_f64..10.0).prop_map(|(inner, outer, inner_latency, outer_latency)| {
        let mut fabric = Fabric::built_in("selene_hdr200x8").unwrap();
        for (tier, (bandwidth, latency)) in [(inner, inner_latency), (outer, outer_latency)].into_iter().enumerate() {
            scale_bandwidth(&mut fabric, tier, bandwidth);
            scale_latency(&mut fabric, tier, latency);
        }
        fabric
    })
}

fn scale_bandwidth(fabric: &mut Fabric, tier: usize, factor: f64) {
    let tier = &mut fabric.tiers[tier];
    tier.bandwidth = BytesPerSecond(tier.bandwidth.0 * factor);
}

fn scale_latency(fabric: &mut Fabric, tier: usize, factor: f64) {
    let tier = &mut fabric.tiers[tier];
    for latency in [&mut tier.operation, &mut tier.step, &mut tier.chunk] {
        *latency = *latency * factor;
    }
    if let Some(low) = &mut tier.low_latency {
        low.step = low.step * factor;
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4096))]

    /// Covers a large model on a slower chip, and a small model on a faster chip. Under `megatron_core`, the host's
    /// launches limit the small model.
    #[test]
    fn time_never_falls_when_a_link_slows(
        mut plan in sample_layouts(),
        small in any::<bool>(),
        (pipeline_first, recompute) in any::<(bool, bool)>(),
        fabric in fabrics(),
        tier in 0_usize..2,
        (of_bandwidth, factor) in (any::<bool>(), 0.1_f64..1.0),
        stack in proptest::sample::select(vec!["megatron", "megatron_core", "pytorch_fsdp", "torchtitan", "maxtext"]),
        schedule in proptest::sample::select(vec![PipelineSchedule::OneForwardOneBackward, PipelineSchedule::GPipe, PipelineSchedule::ZbH1]),
        split in proptest::option::of(0_usize..1000),
    ) {
        if plan.layout.pipeline > 1 {
            plan.schedule = match (plan.layout.virtual_stages, schedule) {
                (1, schedule) | (_, schedule @ PipelineSchedule::OneForwardOneBackward) => schedule,
                _ => PipelineSchedule::ZB_V,
            };
        }
        plan.layout.order = if pipeline_first { RankOrder::PipelineFirst } else { RankOrder::DataFirst };
        let (model, chip) = if small { ("bert-large", "h100_80gb") } else { ("llama2-7b", "a100_80gb_sxm") };
        if small {
            plan.batch.sequence_length = 512;
        }
        if let Some(split) = split {
            let splits: Vec<_> = plan.layout.chunk_splits(Model::load(model).unwrap().layers).collect();
            plan.layout.ends = splits.get(split % splits.len().max(1)).and_then(|split| split.layer_ends());
        }
        if !recompute {
            plan.activations = ActivationPolicy::None.into();
        }
        let mut slower = fabric.clone();
        if of_bandwidth { scale_bandwidth(&mut slower, tier, factor) } else { scale_latency(&mut slower, tier, 1.0 / factor) }
        let (fast, slow) = (time_step_of(model, chip, &fabric, &plan, stack), time_step_of(model, chip, &slower, &plan, stack));
        prop_assert!(slow.total.0 >= fast.total.0 * (1.0 - 1e-9), "{slow:?} < {fast:?}");
    }
}

/// Returns a chip and a stack with one better figure: a shorter gap between kernels, less host time, faster arrays,
/// lanes or memories.
fn better(chip: &Accelerator, stack: &SoftwareStack, figure: usize, factor: f64) -> (Accelerator, SoftwareStack) {
    let (mut chip, mut stack) = (chip.clone(), stack.clone());
    let launch = &mut stack.launch;
    let wider = |bandwidth: &mut BytesPerSecond| bandwidth.0 /= factor;
    match figure {
        0 => launch.gap_us *= factor,
        1 => launch.host_forward_us *= factor,
        2 => launch.host_backward_us *= factor,
        3 => launch.pipeline_pass_us *= factor,
        4 => chip.calibration.tensor_achieved_fraction /= factor,
        5 => chip.calibration.vector_achieved_fraction /= factor,
        6 => [&mut chip.hbm.read_bandwidth, &mut chip.hbm.write_bandwidth].into_iter().for_each(wider),
        _ => chip.on_chip.iter_mut().flat_map(|l| [&mut l.read_bandwidth, &mut l.write_bandwidth]).for_each(wider),
    }
    (chip, stack)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    /// Covers a small model, which the host limits under all stacks but one, and a large model. Zero-bubble schedules
    /// run without data parallelism.
    #[test]
    fn time_never_rises_when_the_chip_or_the_host_is_faster(
        mut plan in sample_layouts(),
        small in any::<bool>(),
        recompute in any::<bool>(),
        figure in 0_usize..8,
        factor in 0.2_f64..1.0,
        host in 0.2_f64..4.0,
        stack in proptest::sample::select(vec!["megatron", "megatron_core", "torchtitan"]),
        schedule in proptest::sample::select(vec![PipelineSchedule::OneForwardOneBackward, PipelineSchedule::GPipe, PipelineSchedule::ZbH1, PipelineSchedule::ZB_V]),
        split in proptest::option::of(0_usize..1000),
    ) {
        prop_assume!(plan.layout.pipeline > 1);
        // Split backward passes run here without data parallelism: the exchange of data-parallel ranks hides behind
        // both of their parts. If a part that is put off gets shorter, the exposed exchange may grow by more than the
        // pipeline gains.
        if schedule.splits_backward() {
            (plan.layout.data, plan.layout.context, plan.layout.zero) = (1, 1, ZeroStage::None);
        }
        plan.layout.virtual_stages = if schedule == PipelineSchedule::ZB_V { 2 } else { 1 };
        plan.schedule = schedule;
        let (model, chip) = if small { ("bert-large", "h100_80gb") } else { ("llama2-7b", "a100_80gb_sxm") };
        if small {
            plan.batch.sequence_length = 512;
        }
        let model = Model::load(model).unwrap();
        if let Some(split) = split {
            let splits: Vec<_> = plan.layout.chunk_splits(model.layers).collect();
            plan.layout.ends = splits.get(split % splits.len().max(1)).and_then(|split| split.layer_ends());
        }
        if !recompute {
            plan.activations = ActivationPolicy::None.into();
        }
        let fabric = Fabric::built_in("selene_hdr200x8").unwrap();
        let chip = Accelerator::built_in(chip).unwrap();
        let mut stack = SoftwareStack::load(stack).unwrap();
        // Backward passes that wait for the host, that do not, and in between.
        stack.launch.host_backward_us *= host;
        let step = |(chip, stack): &(Accelerator, SoftwareStack)| {
            step_time(&mut ChipTimes::new(chip, stack).unwrap(), &model, &fabric, &plan).unwrap()
        };
        let (slow, fast) = (step(&(chip.clone(), stack.clone())), step(&better(&chip, &stack, figure, factor)));
        prop_assert!(fast.total.0 <= slow.total.0 * (1.0 + 1e-9), "figure {figure} of {plan:?}: {fast:?} > {slow:?}");
    }
}
