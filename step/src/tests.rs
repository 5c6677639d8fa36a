//! A step's time: its parts, and what changes them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::{
    ChipTimes, DeviceMemory, SoftwareStack, StepProfile, StepTime, TrainingPlan, lowering_of_plan, sharing_domain,
    step_memory, step_time,
};
use proptest::prelude::*;
use sim::hardware::Accelerator;
use sim::kernel::DataType;
use sim::network::Fabric;
use sim::pipeline::PipelineSchedule;
use sim::units::{BytesPerSecond, Seconds};
use workloads::footprint::{Optimizer, Precision};
use workloads::training::Attention;
use workloads::{ActivationPolicy, Batch, Layout, Model, RankOrder, TrainingGraph, ZeroStage};

pub(crate) fn sample_plan(layout: Layout, micro_batch: u64, global_batch: u64) -> TrainingPlan {
    TrainingPlan {
        layout,
        batch: Batch { micro_batch, global_batch, sequence_length: 1024 },
        activations: ActivationPolicy::Full.into(),
        attention: Attention::Fused,
        precision: Precision::MIXED_BF16,
        optimizer: Optimizer::Adam,
        schedule: PipelineSchedule::OneForwardOneBackward,
        techniques: workloads::Techniques::default(),
    }
}

pub(crate) fn time_llama_step(fabric: &Fabric, plan: &TrainingPlan, stack: &str) -> StepTime {
    time_step_of("llama2-7b", "a100_80gb_sxm", fabric, plan, stack)
}

pub(crate) fn time_step_of(model: &str, chip: &str, fabric: &Fabric, plan: &TrainingPlan, stack: &str) -> StepTime {
    let model = Model::load(model).expect("built in");
    let chip = Accelerator::built_in(chip).expect("built in");
    let mut chip = ChipTimes::new(&chip, &SoftwareStack::load(stack).expect("built in")).expect("sound");
    step_time(&mut chip, &model, fabric, plan).expect("fits")
}

/// Returns plans on up to 128 devices for Llama 2 7B (32 layers, 32 heads).
pub(crate) fn sample_layouts() -> impl Strategy<Value = TrainingPlan> {
    let zero = prop_oneof![
        Just(ZeroStage::None),
        Just(ZeroStage::OptimizerStates),
        Just(ZeroStage::Gradients),
        Just(ZeroStage::Parameters)
    ];
    (0_u32..4, 0_u32..3, 0_u32..3, any::<bool>(), 1_u32..3, zero, 0_u32..3).prop_map(
        |(t, p, d, sequence, v, zero, b)| {
            let layout = Layout {
                tensor: 1 << t,
                pipeline: 1 << p,
                data: 1 << d,
                virtual_stages: if p > 0 { v } else { 1 },
                sequence_parallel: sequence && t > 0,
                zero,
                ..Layout::default()
            };
            sample_plan(layout, 1 << b, u64::from(layout.data) * (8 << b))
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_parts_sum_to_the_whole(plan in sample_layouts(), stack in prop_oneof![Just("megatron"), Just("pytorch_fsdp")]) {
        let fabric = Fabric::built_in("selene_hdr200x8").unwrap();
        let step = time_llama_step(&fabric, &plan, stack);
        let sum: Seconds = step.named_parts()[1..].iter().map(|(_, part)| *part).sum();
        prop_assert!((sum.0 - step.total.0).abs() <= 1e-9 * step.total.0, "{step:?}");
        prop_assert!(step.named_parts().iter().all(|(_, part)| part.0 >= -1e-9 * step.total.0), "{step:?}");
    }
}

#[test]
fn axes_that_share_a_port_contend_for_it() {
    let model = Model::load("llama2-7b").unwrap();
    let chip = Accelerator::built_in("a100_80gb_sxm").unwrap();
    let mut chip = ChipTimes::new(&chip, &SoftwareStack::load("pytorch_fsdp").unwrap()).unwrap();
    let slow = |tier: usize| {
        let fabric = Fabric::built_in("selene_hdr200x8").unwrap();
        let bandwidth = fabric.tiers[tier].bandwidth.0;
        fabric.with_bandwidth(tier, BytesPerSecond(bandwidth / 8.0))
    };
    // Weights are gathered inside the node, where tensor-parallel devices also communicate, or between nodes, where
    // they do not.
    for (tensor, shared) in [(4, true), (8, false)] {
        let layout = Layout { tensor, data: 2, zero: ZeroStage::Parameters, ..Layout::default() };
        let plan = sample_plan(layout, 1, 4);
        let fabric = slow(usize::from(!shared));
        let profile = chip.profile_plan(&model, &fabric, &plan).unwrap();
        let mut alone = profile.clone();
        for piece in [&mut alone.embedding, &mut alone.layer, &mut alone.head] {
            for pass in [&mut piece.forward, &mut piece.recompute, &mut piece.backward] {
                pass.ports = super::PortTimes::default();
            }
        }
        let [beside, alone] =
            [&profile, &alone].map(|p| super::step_time_of(&mut chip, &model, &fabric, &plan, p).unwrap());
        assert_eq!(beside.data > alone.data, shared, "t {tensor}: {:?} against {:?}", beside.data, alone.data);
        assert_eq!(beside.tensor, alone.tensor);
    }
}

#[test]
fn model_flops_are_invariant_under_the_plan() {
    // No degree pads this vocabulary: a multiple of 128 x 16.
    let model = Model { vocabulary: 32_768, ..Model::load("llama2-7b").unwrap() };
    let stack = SoftwareStack::load("megatron").unwrap();
    let flops = |t: u32, d: u32, micro_batch: u64, sequence_parallel: bool| {
        let layout = Layout { tensor: t, data: d, sequence_parallel, ..Layout::default() };
        let plan = sample_plan(layout, micro_batch, 64);
        let graph = TrainingGraph::new(&model, &lowering_of_plan(&model, &plan, &stack)).unwrap();
        graph.kernel_flops().0 * u128::from(t) * u128::from(plan.micro_batches()) * u128::from(d)
    };
    let whole = flops(1, 1, 1, false);
    for (t, d, b, sequence) in [(2, 1, 1, false), (8, 1, 4, true), (1, 8, 8, false), (4, 2, 2, true), (16, 4, 1, false)]
    {
        assert_eq!(flops(t, d, b, sequence), whole, "t {t} d {d} b {b}");
    }
}

#[test]
fn a_matrix_of_equal_links_is_the_flat_switch() {
    let tier = "name = \"net\"\nachieved_fraction = 0.9\nstep_latency_us = 5.0\nsource = \"test\"\n";
    let head = "name = \"test\"\ndescription = \"test\"\nsource = \"test\"\nlaunch_us = 5.0\n\n[[tier]]\n";
    let row = |i: usize| {
        let cells: Vec<&str> = (0..8).map(|j| if i == j { "0.0" } else { "25.0" }).collect();
        format!("[{}]", cells.join(", "))
    };
    let links: Vec<String> = (0..8).map(row).collect();
    let matrix = format!("{head}{tier}topology = \"matrix\"\nlinks_gb_per_s = [{}]\n", links.join(", "));
    let switch = format!("{head}{tier}topology = \"switch\"\ndevices = 8\nbandwidth_gb_per_s = 25.0\n");
    let fabrics = [matrix, switch].map(|text| Fabric::from_toml_str("test.toml", &text).unwrap());
    for (t, p, d) in [(8, 1, 1), (1, 8, 1), (1, 1, 8), (2, 2, 2), (4, 1, 2), (1, 4, 2)] {
        let layout = Layout { tensor: t, pipeline: p, data: d, ..Layout::default() };
        let [matrix, switch] =
            fabrics.each_ref().map(|f| time_llama_step(f, &sample_plan(layout, 1, 32), "megatron").total.0);
        assert!((matrix / switch - 1.0).abs() < 1e-9, "t {t} p {p} d {d}: {matrix} against {switch}");
    }
}

#[test]
fn every_built_in_stack_is_sound_and_errors_name_the_cure() {
    let names = SoftwareStack::built_in_names();
    assert!(names.len() >= 4 && names.iter().all(|name| SoftwareStack::load(name).unwrap().name == *name), "{names:?}");
    let unknown = SoftwareStack::load("jax").unwrap_err().to_string();
    assert!(
        unknown.starts_with("unknown software stack `jax`: built in are ")
            && unknown.contains("ideal, internevo, litgpt, maxtext, megatron, "),
        "{unknown}"
    );
    let text = include_str!("../stacks/megatron.toml");
    let wrong = |from: &str, to: &str| {
        SoftwareStack::from_toml_str("mine.toml", &text.replace(from, to)).unwrap_err().to_string()
    };
    let fraction = 1.0 + SoftwareStack::load("megatron").unwrap().sustained.tensor_fraction;
    assert_eq!(
        wrong("\ntensor_fraction = 0", "\ntensor_fraction = 1"),
        format!(
            "mine.toml: sustained.tensor_fraction = {fraction}: must be from 0.05 to 1; give a value in that range"
        )
    );
    let unsourced = wrong("\nlaunch = \"", "\nlunch = \"");
    assert!(
        unsourced.starts_with("mine.toml: launch.gap_us = ")
            && unsourced.contains(": has no source; state under [sources]"),
        "{unsourced}"
    );
}

#[test]
fn recomputing_more_takes_longer_and_a_pipeline_waits() {
    let fabric = Fabric::built_in("selene_hdr200x8").unwrap();
    let layout = Layout { tensor: 8, pipeline: 4, ..Layout::default() };
    let [none, full] = [ActivationPolicy::None, ActivationPolicy::Full].map(|activations| {
        time_llama_step(
            &fabric,
            &TrainingPlan { activations: activations.into(), ..sample_plan(layout, 1, 16) },
            "megatron",
        )
    });
    assert!(none.recompute == Seconds::ZERO && full.total.0 > none.total.0 && full.recompute.0 > 0.0);
    let deeper = |m: u64| time_llama_step(&fabric, &sample_plan(layout, 1, m), "megatron");
    let share = |step: StepTime| step.bubble / step.total;
    assert!(share(deeper(4)) > share(deeper(64)), "the bubble's share falls with the micro-batches");
}

#[test]
fn what_shares_gradients_reduces_them_in_every_micro_batch() {
    let fabric = Fabric::built_in("selene_hdr200x8").unwrap();
    let data = |zero: ZeroStage, m: u64| {
        let layout = Layout { tensor: 8, data: 4, zero, ..Layout::default() };
        time_llama_step(&fabric, &sample_plan(layout, 1, 4 * m), "megatron").data.0
    };
    use ZeroStage::{Gradients, OptimizerStates, Parameters};
    assert_eq!(data(OptimizerStates, 1), data(OptimizerStates, 8), "once per step");
    let [one, two, eight] = [1, 2, 8].map(|m| data(Gradients, m));
    assert!(((eight - one) / (two - one) - 7.0).abs() < 1e-9, "{one} {two} {eight}");
    assert!(two - one > 0.5 * one && two < data(Parameters, 2), "{one} {two}");
}

#[test]
fn gathers_follow_the_prefetch_and_scatters_the_reduction() {
    let fabric = Fabric::built_in("eos_ndr400x8").unwrap().for_devices(32).unwrap();
    let (model, chip) = (Model::load("llama2-7b").unwrap(), Accelerator::built_in("h100_sxm").unwrap());
    let data = |zero, prefetch: f64, reduction: f64| {
        let mut stack = SoftwareStack::load("megatron_core").unwrap();
        stack.overlap.parameter_prefetch = prefetch;
        stack.overlap.data_reduction = reduction;
        let plan = sample_plan(Layout { tensor: 4, data: 8, zero, ..Layout::default() }, 1, 8);
        step_time(&mut ChipTimes::new(&chip, &stack).unwrap(), &model, &fabric, &plan).unwrap().data
    };
    let shared = |prefetch, reduction| data(ZeroStage::Parameters, prefetch, reduction);
    // The forward pass gathers; the backward pass gathers and scatters as many bytes. So two of three equal parts
    // follow the prefetch option, and one follows the reduction option.
    let (none, both) = (shared(0.0, 0.0), shared(1.0, 1.0));
    let (gathers, scatters) = (none - shared(1.0, 0.0), none - shared(0.0, 1.0));
    assert!(scatters > Seconds::ZERO && gathers > scatters * 1.5, "{gathers} {scatters}");
    assert!(
        none - both >= gathers.max(scatters) && none - both <= (gathers + scatters) * (1.0 + 1e-9),
        "{none} {both}"
    );
    let half = shared(0.5, 0.5);
    assert!((half.0 / ((none + both) * 0.5).0 - 1.0).abs() < 1e-9, "{half}");
    for reduction in [0.0, 1.0] {
        let gradients = |prefetch| data(ZeroStage::Gradients, prefetch, reduction);
        assert!(gradients(0.0) >= gradients(1.0), "updated weights are gathered once per step");
    }
}

/// Stated shards of a fast domain are the stack's hybrid sharding; those of all ranks are no hybrid sharding.
#[test]
fn stated_shards_are_hybrid_sharding() {
    let fabric = Fabric::built_in("eos_ndr400x8").unwrap().for_devices(32).unwrap();
    let (model, chip) = (Model::load("llama2-7b").unwrap(), Accelerator::built_in("h100_sxm").unwrap());
    let run = |zero, shards, shard_within_domain| {
        let mut stack = SoftwareStack::load("megatron_core").unwrap();
        stack.kernels.shard_within_domain = shard_within_domain;
        let plan = sample_plan(Layout { tensor: 2, data: 16, zero, shards, ..Layout::default() }, 1, 32);
        let domain = sharing_domain(&stack, fabric.fast_domain_devices(), &plan.layout);
        let memory = step_memory(&model, &plan, &stack, DeviceMemory::of_chip(&chip), domain).unwrap();
        (step_time(&mut ChipTimes::new(&chip, &stack).unwrap(), &model, &fabric, &plan).unwrap(), memory)
    };
    for zero in [ZeroStage::OptimizerStates, ZeroStage::Gradients, ZeroStage::Parameters] {
        assert_eq!(run(zero, Some(4), false), run(zero, None, true));
        assert_eq!(run(zero, Some(16), true), run(zero, None, false));
        let peaks = [2, 4, 8, 16].map(|shards| run(zero, Some(shards), false).1.stages[0].bytes_needed());
        assert!(peaks.is_sorted_by(|a, b| a > b), "{peaks:?}");
    }
}

#[test]
fn the_axis_that_lies_inside_a_node_talks_faster() {
    let fabric = Fabric::built_in("selene_hdr200x8").unwrap();
    let step = |fabric: &Fabric, order: RankOrder| {
        let layout = Layout { tensor: 2, pipeline: 4, data: 8, order, ..Layout::default() };
        time_llama_step(fabric, &sample_plan(layout, 1, 64), "megatron")
    };
    let [copies, stages] = [RankOrder::DataFirst, RankOrder::PipelineFirst].map(|order| step(&fabric, order));
    assert!(copies.data < stages.data && copies.bubble > stages.bubble, "{copies:?} {stages:?}");
    let flat = fabric.with_fast_domain(64).unwrap();
    let [copies, stages] = [RankOrder::DataFirst, RankOrder::PipelineFirst].map(|order| step(&flat, order).total);
    assert_eq!(copies, stages, "on one switch every order is as good");
    let model = Model::load("llama2-7b").unwrap();
    let layout = Layout { context: 2, pipeline: 2, order: RankOrder::PipelineFirst, ..Layout::default() };
    let error = layout.check_model_and_batch(&model, &sample_plan(layout, 1, 8).batch).unwrap_err().to_string();
    assert_eq!(error, "cp = 2: must be 1 if the stages of a copy are neighbours; use the order t-d-p");
}

#[test]
fn sends_hide_only_where_stages_hold_several_chunks() {
    let fabric = Fabric::built_in("selene_hdr200x8").unwrap();
    let slow = fabric.clone().with_bandwidth(1, BytesPerSecond(fabric.tiers[1].bandwidth.0 / 8.0));
    let step = |fabric: &Fabric, stack: &str, chunks: u32| {
        let layout = Layout { tensor: 8, pipeline: 4, virtual_stages: chunks, ..Layout::default() };
        time_llama_step(fabric, &sample_plan(layout, 4, 64), stack).bubble
    };
    assert!(step(&slow, "megatron_core", 1) > step(&fabric, "megatron_core", 1), "plain 1F1B waits for what it sends");
    assert_eq!(
        step(&slow, "megatron_core", 2),
        step(&fabric, "megatron_core", 2),
        "another chunk's pass runs meanwhile"
    );
    assert!(step(&slow, "megatron", 2) > step(&fabric, "megatron", 2), "nothing overlaps");
    let passes = |stack: &str| {
        let stack = SoftwareStack::load(stack).unwrap();
        [1, 2].map(|chunks| stack.pipeline_pass_overhead(chunks).micros() / stack.launch.pipeline_pass_us)
    };
    assert_eq!(passes("megatron_core"), [1.0, 0.0], "the host waits for exchanges that do not overlap");
    assert_eq!(passes("megatron"), [1.0, 1.0]);
}

#[test]
fn messages_between_nodes_slow_the_launches_of_collectives() {
    let (fabric, chip) =
        (Fabric::built_in("selene_hdr200x8").unwrap(), Accelerator::built_in("a100_80gb_sxm").unwrap());
    let model = Model::load("llama2-7b").unwrap();
    let stack = |collective_rank_us: f64| {
        let mut stack = SoftwareStack::load("nanotron").unwrap();
        stack.launch.collective_rank_us = collective_rank_us;
        stack
    };
    let step = |layout: Layout, us: f64| {
        let plan = sample_plan(layout, 1, 16);
        step_time(&mut ChipTimes::new(&chip, &stack(us)).unwrap(), &model, &fabric, &plan).unwrap().total
    };
    let layout = Layout { tensor: 4, pipeline: 4, ..Layout::default() };
    let slower = |layout: Layout| step(layout, 300.0).0 / step(layout, 0.0).0;
    assert!(slower(layout) > 1.5, "stages on two nodes");
    assert!(slower(Layout { tensor: 8, ..layout }) > slower(layout), "more ranks");
    assert_eq!(slower(Layout { pipeline: 2, ..layout }), 1.0, "a pipeline inside a node");
    assert_eq!(slower(Layout { tensor: 1, pipeline: 16, ..layout }), 1.0, "no collectives");
    assert_eq!(slower(Layout { pipeline: 1, data: 4, ..layout }), 1.0, "no pipeline");
}

#[test]
fn without_a_pipeline_there_is_no_bubble() {
    let fabric = Fabric::built_in("selene_hdr200x8").unwrap();
    for (tensor, data, micro_batches) in [(1, 8, 3), (2, 4, 7), (8, 1, 11), (8, 3, 13)] {
        let layout = Layout { tensor, data, ..Layout::default() };
        let step = time_llama_step(&fabric, &sample_plan(layout, 1, u64::from(data) * micro_batches), "megatron");
        assert_eq!(step.bubble, Seconds::ZERO, "t {tensor} d {data}");
    }
}

#[test]
fn gradients_are_kept_as_the_stack_accumulates_them() {
    let of = |stack: &str, asked| SoftwareStack::load(stack).unwrap().precision_of_run(asked);
    let fp16 = Precision { operand: DataType::Fp16, gradient: DataType::Fp16, ..Precision::MIXED_BF16 };
    for stack in ["megatron", "megatron_core"] {
        assert_eq!(of(stack, Precision::MIXED_BF16), Precision::MIXED_BF16_FP32_GRADIENTS);
        for same in [fp16, Precision::PURE_BF16, Precision::FP32] {
            assert_eq!(of(stack, same), same, "only --bf16 switches it on");
        }
    }
    for stack in ["maxtext", "pytorch_fsdp", "torchtitan"] {
        assert_eq!(of(stack, Precision::MIXED_BF16), Precision::MIXED_BF16);
    }
}

#[test]
fn names_of_operators_and_kernels_change_no_time() {
    let mixed = Layout { tensor: 2, context: 2, expert: 2, data: 2, sequence_parallel: true, ..Layout::default() };
    let fabric = Fabric::built_in("selene_hdr200x8").expect("built in").for_devices(8).expect("a unit");
    let chip = Accelerator::built_in("a100_80gb_sxm").expect("built in");
    // Kernels in a stream, and by the operator schedule.
    let stacks = ["megatron", "ideal"].map(|stack| SoftwareStack::load(stack).expect("built in"));
    let mut chips = stacks.map(|stack| ChipTimes::new(&chip, &stack).expect("sound"));
    let mut compared = 0;
    let models = ["llama2-7b", "mixtral-8x7b", "bert-large", "gpt2-xl"];
    for (name, chip) in models.iter().flat_map(|name| [0, 1].map(|stack| (*name, stack))) {
        let chip = &mut chips[chip];
        let model = Model::load(name).expect("built in");
        for layout in [Layout::default(), mixed] {
            let layout = if model.experts.is_none() { Layout { expert: 1, ..layout } } else { layout };
            let batch = Batch { micro_batch: 1, global_batch: 8, sequence_length: 512 };
            for activations in [ActivationPolicy::None, ActivationPolicy::Full] {
                let plan = TrainingPlan { batch, activations: activations.into(), ..sample_plan(layout, 1, 8) };
                let Ok(graph) = TrainingGraph::new(&model, &lowering_of_plan(&model, &plan, chip.stack())) else {
                    continue;
                };
                let mut renamed = graph.clone();
                for op in renamed.segments.iter_mut().flat_map(|s| &mut s.graph.operators) {
                    op.name = format!("layer.moe.exchange.backward_weight.{}.ring_", op.id);
                    let chains = op.backward.iter_mut().flat_map(|chain| &mut chain.steps);
                    for (i, step) in op.forward.iter_mut().chain(&mut op.backward_prepare).chain(chains).enumerate() {
                        step.label = format!("{i}.recompute.backward_input.all_to_all.");
                    }
                }
                let [plain, other] =
                    [graph, renamed].map(|g| chip.profile_lowered(&model, &g, &fabric, &plan).expect("has layers"));
                let pieces = |p: &StepProfile| [p.embedding, p.layer, p.head];
                assert_eq!(pieces(&plain), pieces(&other), "{name} {layout:?}");
                compared += 1;
            }
        }
    }
    assert_eq!(compared, 28, "all but the 25 heads of gpt2-xl on two devices");
}

#[test]
fn tensor_parallel_sums_are_hidden_inside_a_fast_domain_only() {
    let fabric = Fabric::built_in("eos_ndr400x8").unwrap();
    let step = |tensor: u32, stack: &SoftwareStack| {
        let layout = Layout { tensor, data: 32 / tensor, sequence_parallel: true, ..Layout::default() };
        let (model, chip) = (Model::load("llama2-7b").unwrap(), Accelerator::built_in("h100_80gb_sxm").unwrap());
        let mut chip = ChipTimes::new(&chip, stack).unwrap();
        step_time(&mut chip, &model, &fabric, &sample_plan(layout, 4, 128)).unwrap().tensor
    };
    let hidden = SoftwareStack::load("megatron_core").unwrap();
    let exposed = hidden.with_option("overlap.tensor=0").unwrap();
    assert!(step(8, &hidden) < step(8, &exposed), "a node of eight");
    assert_eq!(step(16, &hidden), step(16, &exposed), "two nodes");
}

/// Returns the model with its layers in blocks of two equal ones.
fn in_blocks(model: &Model) -> Model {
    let kind = model.uniform_kind();
    let list = workloads::LayerList { block: vec![kind; 2], ..workloads::LayerList::default() };
    Model { layers: model.layers / 2, list, ..model.clone() }
}

#[test]
fn blocks_of_alike_layers_take_what_the_layers_take() {
    use super::{DeviceMemory, step_memory};
    let fabric = Fabric::built_in("selene_hdr200x8").unwrap();
    let (model, chip) = (Model::load("llama2-7b").unwrap(), Accelerator::built_in("a100_80gb_sxm").unwrap());
    let blocks = in_blocks(&model);
    assert_eq!((blocks.parameters(), blocks.layer_count()), (model.parameters(), model.layer_count()));
    for stack in ["megatron", "pytorch_fsdp"] {
        let stack = SoftwareStack::load(stack).unwrap();
        for (pipeline, zero) in [(1, ZeroStage::None), (4, ZeroStage::OptimizerStates), (1, ZeroStage::Parameters)] {
            for policy in ["none", "selective", "selective_per_operator", "full", "minimal", "custom:device(qkv_proj)"]
            {
                let layout =
                    Layout { tensor: 2, pipeline, data: 4, sequence_parallel: true, zero, ..Layout::default() };
                let plan = TrainingPlan {
                    activations: policy.parse::<ActivationPolicy>().unwrap().into(),
                    ..sample_plan(layout, 1, 32)
                };
                let times = [&model, &blocks].map(|model| {
                    let mut chip = ChipTimes::new(&chip, &stack).unwrap();
                    step_time(&mut chip, model, &fabric, &plan).unwrap().total.0
                });
                assert!(
                    (times[0] - times[1]).abs() <= 1e-9 * times[0],
                    "{policy}, pp = {pipeline}, {zero:?}: {times:?}"
                );
                let memory = DeviceMemory::of_chip(&chip);
                let needs = [&model, &blocks].map(|model| {
                    let stages = step_memory(model, &plan, &stack, memory, None).unwrap().stages;
                    stages.iter().map(|stage| stage.bytes_needed().0).collect::<Vec<_>>()
                });
                assert_eq!(needs[0], needs[1], "{policy}, pp = {pipeline}, {zero:?}");
            }
        }
    }
}

#[test]
fn a_hot_expert_and_gathered_tokens_take_longer() {
    let fabric = Fabric::built_in("selene_hdr200x8").unwrap();
    let layout = Layout { expert: 8, data: 8, ..Layout::default() };
    let plan = TrainingPlan { activations: ActivationPolicy::None.into(), ..sample_plan(layout, 1, 64) };
    let under = |options: &[&str]| {
        let mut stack = SoftwareStack::load("megatron_core").unwrap();
        for option in options {
            stack = stack.with_option(option).unwrap();
        }
        let chip = Accelerator::built_in("h100_80gb_sxm").unwrap();
        let mut chip = ChipTimes::new(&chip, &stack).unwrap();
        step_time(&mut chip, &Model::load("mixtral-8x7b").unwrap(), &fabric, &plan).unwrap()
    };
    let even = under(&[]);
    assert_eq!(under(&["kernels.expert_imbalance=1.0"]).total, even.total);
    let hot = under(&["kernels.expert_imbalance=1.5"]);
    // Experts are most of Mixtral's work: the fullest device has half as many tokens more, in products and in the
    // exchange.
    assert!(hot.forward > even.forward * 1.2 && hot.forward < even.forward * 1.5, "{even:?} {hot:?}");
    // The latencies of the exchange do not grow, so it takes at most half as long again.
    let longer = hot.expert / even.expert;
    assert!(longer > 1.2 && longer <= 1.5, "{even:?} {hot:?}");
    let gathered = under(&["kernels.expert_all_gather=true"]);
    // A rank with T tokens receives the tokens of seven other ranks, 7 T. The exchange brings it 7/8 of two copies,
    // 1.75 T.
    assert!(gathered.expert > even.expert * 2.0, "{even:?} {gathered:?}");
    assert_eq!(gathered.forward, even.forward);
}
