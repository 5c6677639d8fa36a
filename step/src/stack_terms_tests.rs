//! Effects of single stack scalars on a step.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::{
    ChipTimes, DeviceMemory, Fidelity, MemoryClass, SoftwareStack, StepTime, TrainingPlan, step_memory, step_time,
};
use sim::cost::{AttentionCall, AttentionSoftware, CostModel, Routine};
use sim::hardware::Accelerator;
use sim::kernel::{DataType, Direction, FusedAttention, Kernel};
use sim::network::Fabric;
use sim::pipeline::PipelineSchedule;
use workloads::footprint::{Optimizer, Precision};
use workloads::training::Attention;
use workloads::{ActivationPolicy, Batch, Layout, Model, ZeroStage};

fn plan(layout: Layout) -> TrainingPlan {
    TrainingPlan {
        layout,
        batch: Batch { micro_batch: 1, global_batch: 4 * u64::from(layout.data), sequence_length: 2048 },
        activations: ActivationPolicy::None.into(),
        attention: Attention::Fused,
        precision: Precision::MIXED_BF16,
        optimizer: Optimizer::Adam,
        schedule: PipelineSchedule::OneForwardOneBackward,
        techniques: workloads::Techniques::default(),
    }
}

fn step(model: &str, layout: Layout, change: impl Fn(&mut SoftwareStack)) -> StepTime {
    timed(&Model::load(model).unwrap(), layout, change)
}

fn timed(model: &Model, layout: Layout, change: impl Fn(&mut SoftwareStack)) -> StepTime {
    let mut stack = SoftwareStack::load("megatron_bridge").unwrap();
    change(&mut stack);
    let fabric = Fabric::built_in("eos_ndr400x8").unwrap();
    let mut chip = ChipTimes::new(&Accelerator::built_in("h100_80gb_sxm").unwrap(), &stack).unwrap();
    step_time(&mut chip, model, &fabric, &plan(layout)).unwrap()
}

#[test]
fn products_hide_what_they_are_cut_for_but_the_first_part() {
    // Slow products, so that each takes longer than the part of a collective that hides beside it.
    let change = |products: f64| {
        move |stack: &mut SoftwareStack| (stack.overlap.products, stack.sustained.tensor_fraction) = (products, 0.5)
    };
    let at = |layout: Layout, products: f64| step("llama2-7b", layout, change(products)).tensor.0;
    let layout = Layout { tensor: 8, sequence_parallel: true, ..Layout::default() };
    let [none, half, all] = [0.0, 0.5, 1.0].map(|products| at(layout, products));
    assert!((2.0 * half - none - all).abs() < 1e-9 * none, "a fraction of what could be hidden");
    assert!(all < 0.3 * none && all > 0.05 * none, "an eighth of each at least: {all} of {none}");
    let summed = Layout { sequence_parallel: false, ..layout };
    assert_eq!(at(summed, 0.0), at(summed, 1.0), "sums are not cut");
    let across = Layout { tensor: 16, ..layout };
    assert_eq!(at(across, 0.0), at(across, 1.0), "no domain holds the group");
}

/// With the same expert-parallel degree but each expert whole on one device, tensor-parallel devices gather and sum
/// nothing for experts. Each device then holds more of an expert, whose gradients several ranks sum. All-to-alls stay
/// inside nodes. A stated width equal to the tensor-parallel group changes nothing.
#[test]
fn experts_of_width_one_trade_sums_for_weights() {
    let usual = Layout { tensor: 4, data: 8, expert: 8, sequence_parallel: true, ..Layout::default() };
    let at = |layout: Layout| step("mixtral-8x7b", layout, |_| ());
    let [wide, narrow] = [4, 1].map(|width| at(usual.with_expert_tensor_degree(width)));
    assert_eq!(wide, at(usual));
    assert!(narrow.tensor < wide.tensor, "{narrow:?} {wide:?}");
    assert!(narrow.data > wide.data, "{narrow:?} {wide:?}");
    // Neighbours hold different experts: a node of eight has all of them.
    assert!(narrow.expert < wide.expert * 0.5, "{narrow:?} {wide:?}");
}

/// DeepSeek-V3 on eight nodes. Sending a token once to each node with chosen experts takes less time than sending it
/// once per expert. It takes less again if the router is limited to four nodes. With one copy per expert that limit
/// changes nothing.
#[test]
fn tokens_sent_once_to_every_node_take_less() {
    let model = Model::load("deepseek-v3").unwrap();
    let free = Model {
        experts: model.experts.map(|experts| workloads::model::Experts { groups: None, ..experts }),
        ..model.clone()
    };
    let layout = Layout { data: 64, expert: 64, ..Layout::default() };
    let at =
        |model: &Model, once: bool| timed(model, layout, |stack| stack.kernels.expert_deduplicated = once).expert.0;
    let copies = at(&free, false);
    assert_eq!(at(&model, false), copies);
    let (any, limited) = (at(&free, true), at(&model, true));
    // A token goes to 5.3 nodes on average, or to 3.65 with the limit, instead of in 8 copies. The start-up of its
    // pieces adds time.
    assert!((0.6..0.75).contains(&(any / copies)), "{any} {copies}");
    assert!((0.42..0.55).contains(&(limited / copies)), "{limited} {copies}");
    // Inside one node, NVLink carries each token once to every device with any of its experts.
    let layout = Layout { data: 8, expert: 8, ..Layout::default() };
    let at = |once: bool| timed(&free, layout, |stack| stack.kernels.expert_deduplicated = once).expert.0;
    assert!(at(true) < at(false));
    let stack =
        SoftwareStack::load("megatron_bridge").unwrap().with_option("kernels.expert_deduplicated=true").unwrap();
    let error = stack.with_option("kernels.expert_all_gather=true").unwrap_err().to_string();
    assert!(error.contains("kernels.expert_all_gather"), "{error}");
}

/// Memory follows the expert-data-parallel ranks. Without sharding, a device holds its experts in full; with it, the
/// memory is the same for every width.
#[test]
fn wider_shares_of_experts_are_shared_by_more_ranks() {
    let (model, stack) = (Model::load("mixtral-8x7b").unwrap(), SoftwareStack::load("megatron_bridge").unwrap());
    let of = |width: u32, zero: ZeroStage| {
        let layout = Layout { tensor: 4, data: 8, expert: 8, sequence_parallel: true, zero, ..Layout::default() };
        let plan = plan(layout.with_expert_tensor_degree(width));
        let capacity = DeviceMemory::of_chip(&Accelerator::built_in("h100_80gb_sxm").unwrap());
        let memory = step_memory(&model, &plan, &stack, capacity, None).unwrap();
        [MemoryClass::Weights, MemoryClass::OptimizerStates].map(|class| memory.stages[0].class_bytes(class).0)
    };
    let (wide, narrow) = (of(4, ZeroStage::OptimizerStates), of(1, ZeroStage::OptimizerStates));
    let experts = 32 * 3 * 4096 * 14336_u64;
    assert_eq!(narrow[0] - wide[0], 2 * experts * 3 / 4, "one expert a layer, whole instead of a quarter");
    assert!(narrow[1].abs_diff(wide[1]) < 64, "states are shared by four times as many ranks: {wide:?} {narrow:?}");
}

#[test]
fn shards_exchanged_tensor_by_tensor_take_longer() {
    let at = |zero: ZeroStage, fraction: f64| {
        let layout = Layout { data: 16, zero, ..Layout::default() };
        let change = |stack: &mut SoftwareStack| {
            stack.sustained.exchange_fraction = fraction;
            (stack.overlap.data_reduction, stack.overlap.parameter_prefetch) = (0.0, 0.0);
        };
        step("llama2-7b", layout, change).data.0
    };
    let ratio = at(ZeroStage::OptimizerStates, 0.25) / at(ZeroStage::OptimizerStates, 1.0);
    assert!((ratio - 4.0).abs() < 1e-9, "{ratio}");
    assert_eq!(at(ZeroStage::None, 0.25), at(ZeroStage::None, 1.0), "sums of whole gradients are one exchange");
}

#[test]
fn exchanges_of_experts_hide_behind_another_micro_batch_and_the_shared_expert() {
    let at = |model: &str, experts: f64, shared: f64| {
        let layout = Layout { data: 16, expert: 16, ..Layout::default() };
        step(model, layout, |stack| (stack.overlap.experts, stack.overlap.shared_expert) = (experts, shared)).expert.0
    };
    let lite = |experts, shared| at("deepseek-v2-lite", experts, shared);
    let [none, half, all] = [0.0, 0.5, 1.0].map(|experts| lite(experts, 0.0));
    assert!(
        (2.0 * half - none - all).abs() < 1e-9 * none && all < none,
        "a fraction of what could be hidden: {none} {half} {all}"
    );
    let [shared, both] = [0.0, 0.5].map(|experts| lite(experts, 1.0));
    assert!(0.0 < shared && shared < none && both < shared, "{none} {shared} {both}");
    assert_eq!(at("qwen3-30b-a3b", 0.0, 1.0), at("qwen3-30b-a3b", 0.0, 0.0), "there is no shared expert");
}

#[test]
fn experts_are_launched_one_by_one() {
    let host = |expert: u32, us: f64| {
        let layout = Layout { data: 8, expert, ..Layout::default() };
        step("qwen3-30b-a3b", layout, |stack| (stack.launch.host_backward_us, stack.launch.host_forward_us) = (us, 0.0))
            .host_bound
            .0
    };
    assert_eq!(host(8, 0.0), 0.0);
    let (few, many) = (host(8, 200.0), host(4, 200.0));
    assert!(many > 1.4 * few, "16 and 32 experts on a device: {few} and {many}");
}

/// Attention by cuDNN on an H100 takes cuDNN's measured time, at the chip's sustained clock if the stack is throttled.
/// PyTorch's choice `sdpa` keeps the modelled kernel on a chip without cuDNN's rates. An unknown library is refused,
/// and the error lists the known ones.
#[test]
fn attention_runs_by_the_library_that_the_stack_names() {
    let stack = |library: &str, throttled: bool| {
        let stack = SoftwareStack::load("huggingface").unwrap();
        let stack = stack.with_option(&format!("kernels.attention_library={library}")).unwrap();
        let stack = stack.with_option("sustained.memory_fraction=1").unwrap();
        stack.with_option(&format!("sustained.throttled={throttled}")).unwrap()
    };
    let attention = FusedAttention {
        direction: Direction::Forward,
        batch: 2,
        heads: 32,
        kv_heads: 8,
        queries: 4096,
        keys: 4096,
        head_dim: 64,
        causal: true,
        window: None,
        values_are_keys: false,
        pieces: None,
        operand: DataType::Bf16,
    };
    let time = |chip: &str, stack: &SoftwareStack, attention: FusedAttention| {
        let chip = Accelerator::built_in(chip).unwrap();
        let fabric = Fabric::built_in("eos_ndr400x8").unwrap();
        let chip = ChipTimes::new(&chip, stack).unwrap();
        chip.lower_bound_of_kernel(&Kernel::FusedAttention(attention), &fabric, Fidelity::Mapped).micros()
    };
    // The library's own time and the gap between kernels. The device's clock gave 342 us (cuDNN 9.19 in a training
    // step): its rates, fitted on other shapes, are a fifth too fast here.
    let gap = stack("cudnn", false).launch.gap_us;
    let alone = {
        let chip = Accelerator::built_in("h100_80gb_sxm").unwrap();
        let software = AttentionSoftware::find_on_chip(&chip, "cudnn").unwrap();
        let call = AttentionCall::of_kernel(&attention, software).unwrap();
        CostModel::new(chip).unwrap().time_alone(&Routine::Attention(call)).micros()
    };
    let measured = time("h100_80gb_sxm", &stack("cudnn", false), attention) - gap;
    assert!((measured / alone - 1.0).abs() < 1e-9, "{measured} us, alone {alone}");
    assert!((270.0..350.0).contains(&alone), "{alone}");
    assert_eq!(
        time("h100_80gb_sxm", &stack("sdpa", false), attention),
        time("h100_80gb_sxm", &stack("cudnn", false), attention)
    );
    assert!(time("h100_80gb_sxm", &stack("cudnn", true), attention) > 1.1 * measured);
    assert_eq!(
        time("a100_80gb_sxm", &stack("sdpa", false), attention),
        time("a100_80gb_sxm", &stack("modelled", false), attention)
    );
    let whole = FusedAttention { causal: false, ..attention };
    let [named, modelled] = ["cudnn", "modelled"].map(|name| time("h100_80gb_sxm", &stack(name, false), whole));
    assert_eq!(named, modelled, "a library's rates are those of causal attention");
    let chip = Accelerator::built_in("h100_80gb_sxm").unwrap();
    let refused = ChipTimes::new(&chip, &stack("flash_attention_9", false)).unwrap_err().to_string();
    let known = "no attention library \"flash_attention_9\"; known are: cudnn, flash_attention_2; modelled and sdpa";
    assert!(refused.contains(known), "{refused}");
    // Libraries of another maker's chips are refused too.
    let tpu = Accelerator::built_in("tpu_v4").unwrap();
    let refused = ChipTimes::new(&tpu, &stack("flash_attention_2", false)).unwrap_err().to_string();
    assert!(refused.contains("tpu_v4 has no attention library \"flash_attention_2\"; known are: none"), "{refused}");
}

/// Owners of whole tensors broadcast one after the other: the time beyond that of the bytes grows with the owners and
/// with the ranks that every broadcast passes. There are no more owners than parameter tensors.
#[test]
fn owners_of_whole_tensors_broadcast_one_after_the_other() {
    let fabric = Fabric::built_in("eos_ndr400x8").unwrap();
    let chip = Accelerator::built_in("h100_80gb_sxm").unwrap();
    let exchange = |layers, data, zero, whole| {
        let model = Model { layers, ..Model::load("llama2-7b").unwrap() };
        let mut stack = SoftwareStack::load("megatron").unwrap();
        (stack.kernels.whole_tensor_shards, stack.kernels.fp32_gradients) = (whole, false);
        let plan = plan(Layout { data, zero, ..Layout::default() });
        step_time(&mut ChipTimes::new(&chip, &stack).unwrap(), &model, &fabric, &plan).unwrap().data.0
    };
    // Without ZeRO, all ranks also sum all gradients, but nobody broadcasts. The difference is the time of the
    // broadcasts.
    let broadcasts = |layers, data| {
        exchange(layers, data, ZeroStage::OptimizerStates, true) - exchange(layers, data, ZeroStage::None, true)
    };
    let [few, more, many, most] = [8, 64, 128, 256].map(|data| broadcasts(2, data));
    assert!(few > 0.0 && more > few, "more owners, and more ranks for each");
    // Two layers and the ends have some 15 tensors, which are the owners; four layers some 27.
    let ratio = (most - many) / (many - more);
    assert!((1.6..2.4).contains(&ratio), "every broadcast passes all ranks: {ratio}");
    let ratio = (broadcasts(4, 256) - broadcasts(4, 128)) / (most - many);
    assert!((1.4..2.0).contains(&ratio), "twice the layers have almost twice the owners: {ratio}");
    for zero in [ZeroStage::None, ZeroStage::Gradients, ZeroStage::Parameters] {
        assert_eq!(exchange(2, 16, zero, true), exchange(2, 16, zero, false), "{zero:?}");
    }
}

/// If a chip's rates come from row-scaled products, they include the cost of a scale per row. The stack's fraction for
/// narrow products then counts only above 1.
#[test]
fn rates_of_row_scaled_products_hold_the_scales_already() {
    let fabric = Fabric::built_in("mi300x_400g").unwrap();
    let time = |row_scaled: bool, narrow: f64| {
        let mut chip = Accelerator::built_in("mi300x").unwrap();
        chip.library.as_mut().unwrap().formats.fp8.as_mut().unwrap().row_scaled = row_scaled;
        let mut stack = SoftwareStack::load("torchtitan").unwrap();
        stack.sustained.narrow_fraction = narrow;
        let precision = Precision { operand: DataType::Fp8, ..Precision::MIXED_BF16 };
        let plan =
            TrainingPlan { precision, ..plan(Layout { data: 8, zero: ZeroStage::Parameters, ..Layout::default() }) };
        let model = Model { layers: 2, ..Model::load("llama2-7b").unwrap() };
        step_time(&mut ChipTimes::new(&chip, &stack).unwrap(), &model, &fabric, &plan).unwrap().total
    };
    assert!(Accelerator::built_in("mi300x").unwrap().library.unwrap().formats.fp8.unwrap().row_scaled);
    assert_eq!(time(true, 0.4), time(true, 1.0));
    assert!(time(false, 0.4) > time(false, 1.0) && time(true, 1.2) < time(true, 1.0));
}

/// Gradients that are reduced in fp32 move twice the bytes of bf16 ones; fp32 gradients move no more than before.
#[test]
fn gradients_are_reduced_in_the_stack_s_type() {
    let fabric = Fabric::built_in("eos_ndr400x8").unwrap();
    let data = |fp32_gradients, fp32_reduction, zero| {
        let mut stack = SoftwareStack::load("megatron").unwrap();
        stack.kernels.fp32_reduction = fp32_reduction;
        let mut chip = ChipTimes::new(&Accelerator::built_in("h100_80gb_sxm").unwrap(), &stack).unwrap();
        let precision = if fp32_gradients { Precision::MIXED_BF16_FP32_GRADIENTS } else { Precision::MIXED_BF16 };
        let plan = TrainingPlan { precision, ..plan(Layout { data: 8, zero, ..Layout::default() }) };
        step_time(&mut chip, &Model::load("llama2-7b").unwrap(), &fabric, &plan).unwrap().data.0
    };
    for zero in [ZeroStage::None, ZeroStage::OptimizerStates, ZeroStage::Parameters] {
        assert!(data(false, true, zero) > data(false, false, zero), "{zero:?}");
        assert_eq!(data(true, true, zero), data(true, false, zero), "{zero:?}");
    }
    let ratio = data(false, true, ZeroStage::None) / data(false, false, ZeroStage::None);
    assert!((1.8..2.0).contains(&ratio), "{ratio}");
}
