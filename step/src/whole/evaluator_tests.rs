//! The evaluator against both slow paths: the same time if it is exact, never more otherwise, and always the same
//! bytes.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use crate::lowering_of_plan;
use crate::memory::stage::PeakMoment;
use crate::{
    DeviceHolding, Fidelity, MemoryClass, StageMemory, StepMemory, StepTime, step_memory, step_time, step_timeline,
};
use proptest::prelude::*;
use sim::hardware::Accelerator;
use sim::pipeline::Timeline;
use workloads::footprint::{Optimizer, Precision};
use workloads::training::{Attention, ContextMethod};
use workloads::{ActivationPolicy, Batch, Layout, RankOrder, ZeroStage};

/// Returns models with layers that divide evenly, alone, together with both ends, or together with the last end. They
/// have tied and untied heads; the last one has experts.
fn models() -> Vec<Model> {
    let load = |name: &str, layers| Model { layers, ..Model::load(name).unwrap() };
    let experts = Some(workloads::model::Experts { count: 8, top_k: 2, ..workloads::model::Experts::default() });
    let sparse = Model { experts, ..load("llama3-8b", 8) };
    vec![load("llama2-7b", 24), load("gpt2-xl", 22), load("llama3-8b", 15), load("gpt3-175b", 24), sparse]
}

fn policies() -> Vec<ActivationPolicy> {
    let names = [
        "none",
        "selective",
        "selective_per_operator",
        "full",
        "minimal_offloaded",
        "custom:offload(qkv_proj)+device(context)",
    ];
    names.iter().map(|name| name.parse().unwrap()).collect()
}

fn schedule(kind: usize, virtual_stages: u32) -> PipelineSchedule {
    match (kind, virtual_stages) {
        (0, 1) => PipelineSchedule::GPipe,
        (1, 1) => PipelineSchedule::ZbH1,
        (0 | 1, 2) => PipelineSchedule::ZB_V,
        _ => PipelineSchedule::OneForwardOneBackward,
    }
}

/// Returns a random plan for a model; most obey its rules.
fn plans() -> impl Strategy<Value = (usize, TrainingPlan)> {
    let zeros = [ZeroStage::None, ZeroStage::OptimizerStates, ZeroStage::Gradients, ZeroStage::Parameters];
    let degrees = (0_u32..4, 0_u32..4, 0_u32..5, 0_u32..2, 0_u32..2);
    let pipeline = (1_u32..5, 0_usize..4, 1_u64..12);
    let choice = (0_u32..3, any::<bool>(), 0_usize..6, 0_usize..5, prop::option::of(0_usize..1000));
    (degrees, pipeline, prop::sample::select(zeros.to_vec()), choice).prop_map(
        |((t, p, d, c, e), (v, kind, rounds), zero, (b, sequence_parallel, policy, model, split))| {
            let virtual_stages = if p > 0 { v } else { 1 };
            let layout = Layout {
                tensor: 1 << t,
                pipeline: 1 << p,
                data: 1 << d,
                context: 1 << c,
                context_method: if kind % 2 == 0 { ContextMethod::Ring } else { ContextMethod::Ulysses },
                expert: if model == 4 { 1 << e.min(d) } else { 1 },
                expert_tensor: (model == 4 && sequence_parallel && t > 0 && rounds % 2 == 1).then_some(1),
                virtual_stages,
                sequence_parallel: sequence_parallel && t > 0,
                zero,
                shards: (zero != ZeroStage::None && policy == 1 && d > 0).then(|| 1 << (d - 1)),
                order: if rounds % 2 == 0 { RankOrder::PipelineFirst } else { RankOrder::DataFirst },
                ends: None,
            };
            // Half of the plans have an uneven split, if there is one.
            let splits: Vec<_> = layout.chunk_splits(models()[model].layers).collect();
            let ends = split.and_then(|i| splits.get(i % splits.len().max(1))).and_then(|split| split.layer_ends());
            let layout = Layout { ends, ..layout };
            let m = if virtual_stages > 1 { rounds * (1 << p) } else { rounds };
            let batch =
                Batch { micro_batch: 1 << b, global_batch: (m << b) * u64::from(layout.data), sequence_length: 1024 };
            let plan = TrainingPlan {
                layout,
                batch,
                activations: policies()[policy].clone().into(),
                attention: if policy % 2 == 0 { Attention::Fused } else { Attention::Unfused },
                precision: Precision::MIXED_BF16,
                optimizer: Optimizer::Adam,
                schedule: schedule(kind, virtual_stages),
                techniques: workloads::Techniques::default(),
            };
            (model, plan)
        },
    )
}

fn room(bytes: u64) -> DeviceMemory {
    DeviceMemory { hbm: Bytes(bytes), host: Bytes(bytes), storage: Bytes(bytes) }
}

/// Compares one plan with the slow paths. Returns whether its time was exact, or `None` if it breaks a rule.
fn hold(model: &Model, plan: &TrainingPlan, stack: &str, fabric: &str) -> Result<Option<bool>, TestCaseError> {
    let stack = SoftwareStack::load(stack).unwrap();
    let fabric = Fabric::built_in(fabric).unwrap();
    let accelerator = Accelerator::built_in("a100_80gb_sxm").unwrap();
    let mut chip = ChipTimes::new(&accelerator, &stack).unwrap();
    let slow = step_time(&mut chip, model, &fabric, plan);
    let Ok(slow) = slow else { return Ok(None) };
    let domain = stack.kernels.shard_within_domain.then_some(2);
    let memory = step_memory(model, plan, &stack, DeviceMemory::of_chip(&accelerator), domain).unwrap();
    let evaluator = Evaluator::new(model, &fabric, &stack, DeviceMemory::of_chip(&accelerator));
    let shape = PlanShape::new(&mut chip, model, &fabric, plan).unwrap();
    // Prepared from another plan, with another micro-batch, policy, schedule and sequence parallelism.
    let mut other = TrainingPlan { activations: ActivationPolicy::Full.into(), ..plan.clone() };
    other.layout.sequence_parallel = false;
    other.batch.micro_batch *= 2;
    other.batch.global_batch *= 6;
    if plan.schedule != PipelineSchedule::ZB_V {
        other.schedule = PipelineSchedule::OneForwardOneBackward;
    }
    let from = PlanShape::new(&mut chip, model, &fabric, &other).unwrap();
    let degrees = evaluator.prepare_degrees(&mut chip, &from, &other, domain).unwrap();
    let sends = evaluator.pipeline_sends(&chip, &shape, plan);
    let found = evaluator.evaluate_plan(&shape, &degrees, &sends, plan.schedule, plan.micro_batches());
    let fullest = |of: fn(&StageMemory) -> Bytes| memory.stages.iter().map(of).max().unwrap();
    prop_assert_eq!(
        found.need,
        MemoryNeed {
            device: fullest(StageMemory::bytes_needed),
            host: fullest(|s| s.host),
            storage: fullest(|s| s.storage)
        },
        "{:?}",
        plan
    );
    prop_assert_eq!(
        evaluator.capacity(),
        MemoryNeed { device: memory.capacity, host: memory.host_capacity, storage: memory.storage_capacity }
    );
    // A plan that fits must be found to fit under some split.
    let exactly = Evaluator::new(
        model,
        &fabric,
        &stack,
        DeviceMemory { hbm: Bytes(found.need.device.0 + (1 << 34)), ..room(1 << 50) },
    );
    let spare = exactly.capacity().device.saturating_sub(found.need.device);
    let exactly = DeviceMemory { hbm: Bytes(found.need.device.0 + (1 << 34) - spare.0), ..room(1 << 50) };
    let exactly = Evaluator::new(model, &fabric, &stack, exactly);
    prop_assert_eq!(exactly.capacity().device, found.need.device);
    let split = plan.layout.chunk_split(model.layers).unwrap();
    prop_assert!(
        exactly.may_fit(&shape, plan, domain) && !exactly.exceeds_capacity(&shape, plan, split, domain),
        "{:?}",
        plan
    );
    host_line((model, plan), &stack, &fabric, (found.need, domain))?;
    let graph = TrainingGraph::new(model, &lowering_of_plan(model, plan, &stack)).unwrap();
    let filled = with_fullest_experts(model, plan, &stack);
    let fullest = TrainingGraph::new(&filled, &lowering_of_plan(&filled, plan, &stack)).unwrap();
    let profile = chip.profile_lowered(model, &graph, &fabric, plan).unwrap();
    let timeline = step_timeline(&mut chip, model, &fabric, plan, &profile, &fullest, domain).unwrap();
    played(&timeline, &slow, &memory, (plan, plan.layout.chunk_split(model.layers).unwrap()))?;
    let difference = found.time.seconds().0 / slow.total.0 - 1.0;
    let simulated = evaluator.simulate_step(&shape, &degrees, &sends, plan.schedule, plan.micro_batches()).unwrap();
    prop_assert!((simulated.0 / slow.total.0 - 1.0).abs() <= 1e-9, "{plan:?}: {simulated}, {}", slow.total);
    if plan.layout.pipeline > 1 {
        let first: u64 =
            plan.layout.chunk_layers(model.layers).unwrap().into_iter().step_by(plan.layout.pipeline as usize).sum();
        let held = DeviceHolding::first_device(first);
        // If weight gradients run separately, the first device may end long before the last.
        let last = !plan.schedule.splits_backward();
        let exchange = if last { evaluator.least_exposed_exchange(&chip, &from, plan, held) } else { Seconds::ZERO };
        let least =
            exchange + evaluator.time_of_least_update(&mut chip, &from, plan, held) + evaluator.overhead_per_step();
        let once = slow.total - timeline.passes_end;
        let mine = if plan.schedule == PipelineSchedule::ZB_V { Seconds::ZERO } else { least };
        prop_assert!(mine.0 <= once.0 + 1e-9 * slow.total.0, "{plan:?}: {mine} of {once}");
    }
    let exact = matches!(found.time, PassesTime::Exact(_));
    let allowed = if exact { difference.abs() <= 1e-9 } else { difference <= 1e-9 };
    prop_assert!(allowed, "{plan:?}: {found:?}, slow {}", slow.total);
    Ok(Some(exact))
}

/// Checks that [`step_memory`] and the evaluator agree, to the byte, whether a plan fits into host memory.
fn host_line(
    (model, plan): (&Model, &TrainingPlan),
    stack: &SoftwareStack,
    fabric: &Fabric,
    (need, domain): (MemoryNeed, Option<u32>),
) -> Result<(), TestCaseError> {
    for host in [need.host, Bytes(need.host.0.saturating_sub(1))] {
        let room = DeviceMemory { hbm: Bytes(1 << 50), host, storage: Bytes::ZERO };
        let fits = step_memory(model, plan, stack, room, domain).unwrap().check_fits();
        let lack = Evaluator::new(model, fabric, stack, room).total_shortfall(need);
        prop_assert_eq!(fits.is_ok(), lack == Bytes::ZERO, "{:?}: {:?}", plan, fits);
        prop_assert!(fits.is_ok() || fits.is_err_and(|why| why.class == MemoryClass::Host && why.need == need.host));
    }
    Ok(())
}

/// Checks that the timeline's step is no longer than the step, and that its memory equals the stages' need.
fn played(
    timeline: &Timeline,
    slow: &StepTime,
    memory: &StepMemory,
    (plan, split): (&TrainingPlan, ChunkSplit),
) -> Result<(), TestCaseError> {
    let slowest = timeline.total + slow.overhead;
    prop_assert!(slowest.0 <= slow.total.0 * (1.0 + 1e-9), "{plan:?}: {slowest}, {}", slow.total);
    if plan.layout.pipeline > 1 && plan.schedule.splits_backward() {
        prop_assert!(slowest.0 >= slow.total.0 * (1.0 - 1e-9), "{plan:?}: {slowest}, {}", slow.total);
    }
    let once = slow.optimizer + slow.overhead;
    let passes = slow.total - slow.data - slow.tied - once;
    prop_assert!(timeline.passes_end.0 >= passes.0 * (1.0 - 1e-9), "{plan:?}: {}, {passes}", timeline.passes_end);
    for (stage, device) in memory.stages.iter().zip(&timeline.devices) {
        let (played, need) = (device.peak_memory.as_f64(), stage.bytes_needed().as_f64());
        let place = format!("{plan:?}: {stage:?}, {} played", device.peak_memory);
        prop_assert!(played <= need * (1.0 + 1e-9), "{}", place);
        // The update is not simulated. The last stage of interleaved chunks adds its loss to the most that its layers
        // keep, even if the two do not coincide. ZB-H1 holds less where it puts nothing off. ZB-V does not always
        // reach its limit of passes in flight. The first stage does, if its first chunk keeps at least as much as its
        // last one.
        let apart = plan.layout.virtual_stages > 1 && stage.stage + 1 == plan.layout.pipeline;
        let full = stage.stage == 0
            && split.first >= split.last
            && plan.micro_batches() >= u64::from(2 * plan.layout.pipeline - 1);
        let limit = plan.schedule == PipelineSchedule::ZbH1 || plan.schedule == PipelineSchedule::ZB_V && !full;
        let bounded = apart || stage.moment == PeakMoment::Update || limit;
        prop_assert!(bounded || played >= need * (1.0 - 1e-9), "{}", place);
    }
    Ok(())
}

const STACKS: [&str; 5] = ["megatron", "maxtext", "pytorch_fsdp", "torchtitan", "torchtitan_async"];
const FABRICS: [&str; 3] = ["selene_hdr200x8", "tpu_v4_ici", "eos_ndr400x8"];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1500))]

    #[test]
    fn times_and_bytes_are_those_of_the_slow_paths((model, plan) in plans(), stack in 0_usize..5, fabric in 0_usize..3) {
        hold(&models()[model], &plan, STACKS[stack], FABRICS[fabric])?;
    }
}

/// Checks that a plan's step with bounded passes, in closed form and simulated, never exceeds its real time.
/// Zero-bubble schedules are simulated with the parts of passes at their minimum.
fn bounded(model: &Model, plan: &TrainingPlan, chip: &str, fabric: &str) -> Result<(), TestCaseError> {
    let stack = SoftwareStack::load("ideal").unwrap();
    let fabric = Fabric::built_in(fabric).unwrap();
    let accelerator = Accelerator::built_in(chip).unwrap();
    let chip = ChipTimes::new(&accelerator, &stack).unwrap();
    let evaluator = Evaluator::new(model, &fabric, &stack, DeviceMemory::of_chip(&accelerator));
    let mut exact = [f64::INFINITY; 2];
    for fidelity in [Fidelity::Exact, Fidelity::Scheduled, Fidelity::Mapped, Fidelity::Buffered, Fidelity::Peak] {
        let mut chip = chip.with_fidelity(fidelity);
        let Ok(shape) = PlanShape::new(&mut chip, model, &fabric, plan) else { return Ok(()) };
        let Ok(degrees) = evaluator.prepare_degrees(&mut chip, &shape, plan, None) else { return Ok(()) };
        let sends = evaluator.pipeline_sends(&chip, &shape, plan);
        let found = evaluator.evaluate_plan(&shape, &degrees, &sends, plan.schedule, plan.micro_batches());
        let (schedule, m) = (plan.schedule, plan.micro_batches());
        let played = match (fidelity, schedule.splits_backward()) {
            (Fidelity::Exact, _) | (_, false) => {
                evaluator.simulate_step(&shape, &degrees, &sends, schedule, m).unwrap()
            }
            (Fidelity::Scheduled, true) if shape.is_proven() => {
                evaluator.simulate_step(&shape, &degrees, &sends, schedule, m).unwrap()
            }
            (Fidelity::Scheduled, true) => {
                evaluator.simulate_lower_bound(&shape, &degrees, &sends, schedule, m).unwrap()
            }
            _ => Seconds::ZERO,
        };
        let now = [found.time.seconds().0, played.0];
        if fidelity == Fidelity::Exact {
            exact = now;
        }
        let below = now.iter().zip(exact).all(|(now, exact)| *now <= exact * (1.0 + 1e-9));
        prop_assert!(below, "{fidelity:?}: {now:?}, exactly {exact:?}, {plan:?}");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn no_bounded_pass_makes_a_step_longer((model, plan) in plans(), chip in 0_usize..3, fabric in 0_usize..3) {
        bounded(&models()[model], &plan, ["tpu_v4", "tpu_v5e", "a100_80gb_sxm"][chip], FABRICS[fabric])?;
    }
}

#[test]
fn plans_of_a_large_model_are_timed_exactly() {
    let model = Model::load("gpt3-175b").unwrap();
    let mut exact = (0, 0);
    for (tensor, pipeline, virtual_stages, zero) in [
        (8, 8, 1, ZeroStage::None),
        (8, 8, 12, ZeroStage::OptimizerStates),
        (4, 32, 3, ZeroStage::Parameters),
        (8, 16, 6, ZeroStage::OptimizerStates),
        (1, 2, 7, ZeroStage::OptimizerStates),
        (8, 1, 1, ZeroStage::Gradients),
    ] {
        for (micro_batch, policy) in [(1, "full"), (2, "none"), (4, "selective")] {
            let layout = Layout { tensor, pipeline, data: 8, virtual_stages, zero, ..Layout::default() };
            let plan = TrainingPlan {
                layout,
                batch: Batch { micro_batch, global_batch: 2048, sequence_length: 2048 },
                activations: policy.parse().unwrap(),
                attention: Attention::Fused,
                precision: Precision::MIXED_BF16,
                optimizer: Optimizer::Adam,
                schedule: PipelineSchedule::OneForwardOneBackward,
                techniques: workloads::Techniques::default(),
            };
            let holds = hold(&model, &plan, "megatron", "selene_hdr200x8").unwrap().expect("obeys the rules");
            exact = (exact.0 + usize::from(holds), exact.1 + 1);
        }
    }
    // The three plans that are not exact have two stages of seven chunks. With both ends, 98 layers are seven per
    // chunk, so the first chunk has one layer less than an inner one.
    assert_eq!(exact, (15, 18));
}

#[test]
fn a_last_chunk_of_many_layers_may_fit() {
    // Under interleaved 1F1B, the last chunk has a third of the layers and holds one micro-batch at a time.
    let ends = Some(workloads::LayerEnds { first: 0, last: 8, shorter: 11 });
    let layout = Layout {
        tensor: 8,
        pipeline: 8,
        data: 8,
        virtual_stages: 2,
        zero: ZeroStage::Gradients,
        ends,
        ..Layout::default()
    };
    let plan = TrainingPlan {
        layout,
        batch: Batch { micro_batch: 2, global_batch: 384, sequence_length: 1024 },
        activations: ActivationPolicy::None.into(),
        attention: Attention::Fused,
        precision: Precision::MIXED_BF16,
        optimizer: Optimizer::Adam,
        schedule: PipelineSchedule::OneForwardOneBackward,
        techniques: workloads::Techniques::default(),
    };
    assert!(hold(&models()[0], &plan, "pytorch_fsdp", "selene_hdr200x8").unwrap().is_some());
}

#[test]
fn policies_share_all_but_the_backward_pass() {
    let stack = SoftwareStack::load("megatron").unwrap();
    let fabric = Fabric::built_in("selene_hdr200x8").unwrap();
    let mut chip = ChipTimes::new(&Accelerator::built_in("a100_80gb_sxm").unwrap(), &stack).unwrap();
    for model in models() {
        let plan = |activations: ActivationPolicy| TrainingPlan {
            layout: Layout { data: 2, expert: if model.experts.is_some() { 2 } else { 1 }, ..Layout::default() },
            batch: Batch { micro_batch: 2, global_batch: 8, sequence_length: 1024 },
            activations: activations.into(),
            attention: Attention::Unfused,
            precision: Precision::MIXED_BF16,
            optimizer: Optimizer::Adam,
            schedule: PipelineSchedule::OneForwardOneBackward,
            techniques: workloads::Techniques::default(),
        };
        let mut lowered = LoweredModel::new(&model, &plan(ActivationPolicy::None), &stack).unwrap();
        for policy in policies().into_iter().rev() {
            let shared = lowered.plan_shape(&mut chip, &fabric, &plan(policy.clone())).unwrap();
            assert_eq!(shared, PlanShape::new(&mut chip, &model, &fabric, &plan(policy)).unwrap());
        }
    }
}

/// Returns a plan with mixed policies; `pick` gives the policy of each layer.
fn mixed(model: &Model, plan: &TrainingPlan, pick: impl Fn(u64) -> ActivationPolicy) -> Option<TrainingPlan> {
    let chunks = plan.layout.chunk_layers(model.layers).ok()?;
    let mut layer = 0;
    let mut mix = |layers: u64| {
        let runs = (layer..layer + layers).map(|at| workloads::LayerRun { layers: 1, policy: pick(at) }).collect();
        layer += layers;
        runs
    };
    let chunks = chunks.into_iter().map(&mut mix).collect();
    Some(TrainingPlan { activations: StagePolicies::ByChunk(chunks), ..plan.clone() })
}

/// Returns the plan with each chunk's runs of layers joined into one, under the policy of the first.
fn joined(plan: &TrainingPlan) -> TrainingPlan {
    let join = |mix: &workloads::LayerMix| {
        let layers = mix.iter().map(|run| run.layers).sum();
        mix.first().map_or_else(Vec::new, |run| vec![workloads::LayerRun { layers, ..run.clone() }])
    };
    let chunks = plan.activations.chunk_mixes().unwrap().iter().map(join).collect();
    TrainingPlan { activations: StagePolicies::ByChunk(chunks), ..plan.clone() }
}

/// Returns a plan's time, memory, energy and timeline.
fn everything(
    model: &Model,
    plan: &TrainingPlan,
    stack: &str,
) -> Result<(StepTime, StepMemory, f64, Timeline), StepError> {
    let stack = SoftwareStack::load(stack).unwrap();
    let fabric = Fabric::built_in("selene_hdr200x8").unwrap();
    let accelerator = Accelerator::built_in("a100_80gb_sxm").unwrap();
    let mut chip = ChipTimes::new(&accelerator, &stack)?;
    let time = step_time(&mut chip, model, &fabric, plan)?;
    let memory = step_memory(model, plan, &stack, DeviceMemory::of_chip(&accelerator), None)?;
    let graph = TrainingGraph::new(model, &lowering_of_plan(model, plan, &stack))?;
    let profile = chip.profile_lowered(model, &graph, &fabric, plan)?;
    let energy = crate::step_energy_of(&mut chip, model, &fabric, plan, &profile, time.total)?.total_energy().0;
    let timeline = step_timeline(&mut chip, model, &fabric, plan, &profile, &graph, None)?;
    Ok((time, memory, energy, timeline))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    /// Chunks with their own but equal policies give exactly the plan with that policy, bit for bit.
    #[test]
    fn the_same_policy_in_every_stage_is_one_policy((model, plan) in plans(), stack in 0..2_usize) {
        let (model, stack) = (&models()[model], ["megatron", "torchtitan"][stack]);
        let policy = plan.activations.first_layer_policy().clone();
        if let (Ok(alike), Some(apart)) = (everything(model, &plan, stack), mixed(model, &plan, |_| policy.clone())) {
            let apart = everything(model, &joined(&apart), stack).unwrap();
            prop_assert_eq!(alike.0, apart.0);
            prop_assert_eq!(alike.1, apart.1);
            prop_assert!((alike.2 - apart.2).abs() <= 1e-12 * alike.2, "{} {}", alike.2, apart.2);
            prop_assert_eq!(alike.3, apart.3);
        }
    }

    /// A mix takes at least as long as the plan that keeps everything. It takes at most as long as the slower policy
    /// everywhere, except for what longer passes hide. The evaluator equals the slow path to the last bit and byte.
    #[test]
    fn mixes_lie_between_their_policies((model, plan) in plans(), seed in any::<u64>()) {
        let (model, stack) = (&models()[model], SoftwareStack::load("megatron").unwrap());
        let pick = |at: u64| if (seed >> (at % 64)) & 1 == 1 { ActivationPolicy::Full } else { ActivationPolicy::None };
        let Some(apart) = mixed(model, &plan, pick) else { return Ok(()) };
        let Ok((time, memory, _, _)) = everything(model, &apart, "megatron") else { return Ok(()) };
        let fabric = Fabric::built_in("selene_hdr200x8").unwrap();
        let accelerator = Accelerator::built_in("a100_80gb_sxm").unwrap();
        let mut chip = ChipTimes::new(&accelerator, &stack).unwrap();
        let evaluator = Evaluator::new(model, &fabric, &stack, DeviceMemory::of_chip(&accelerator));
        let alike = |policy: ActivationPolicy| TrainingPlan { activations: policy.into(), ..plan.clone() };
        let mut shape = |policy| PlanShape::new(&mut chip, model, &fabric, &alike(policy)).unwrap();
        let [none, full] = [shape(ActivationPolicy::None), shape(ActivationPolicy::Full)];
        let known = [(&ActivationPolicy::None, &none), (&ActivationPolicy::Full, &full)];
        let shape = PlanShape::mix_policies(&apart.activations, &known).unwrap();
        let degrees = evaluator.prepare_degrees(&mut chip, &none, &plan, None).unwrap();
        let sends = evaluator.pipeline_sends(&chip, &none, &plan);
        let (kind, m) = (plan.schedule, plan.micro_batches());
        let found = evaluator.simulate_mixed(&apart.activations, &shape, &degrees, &sends, kind, m).unwrap();
        prop_assert_eq!(found, time.total);
        let needs = evaluator.stage_needs(&shape, &degrees, kind, m);
        prop_assert_eq!(needs.iter().map(|need| need.device).max(), memory.stages.iter().map(StageMemory::bytes_needed).max());
        prop_assert_eq!(evaluator.memory_need(&shape, &degrees, kind, m).device, memory.stages.iter().map(StageMemory::bytes_needed).max().unwrap());
        for (stage, memory) in memory.stages.iter().enumerate() {
            let under = |policy| step_memory(model, &alike(policy), &stack, DeviceMemory::of_chip(&accelerator), None).unwrap().stages.remove(stage);
            for other in [under(ActivationPolicy::None), under(ActivationPolicy::Full)] {
                let more = |class| memory.class_bytes(class) > other.class_bytes(class);
                prop_assert!(memory.moment != other.moment || !(more(MemoryClass::Activations) && more(MemoryClass::Transient)));
            }
        }
        let of = |policy| everything(model, &alike(policy), "megatron").unwrap().0.total.0;
        // Longer passes hide more of the work that follows them once per step. So longer passes may make a step
        // shorter, by at most this slack.
        let slack = 0.02 * of(ActivationPolicy::Full);
        prop_assert!(of(ActivationPolicy::None) <= time.total.0 + slack && time.total.0 <= of(ActivationPolicy::Full) + slack);
    }
}

#[test]
fn a_plan_with_techniques_that_just_fits_may_fit_and_one_with_half_of_it_may_not() {
    let (model, stack) = (Model::load("llama2-7b").unwrap(), SoftwareStack::load("megatron").unwrap());
    let fabric = Fabric::built_in("selene_hdr200x8").unwrap();
    let accelerator = Accelerator::built_in("a100_80gb_sxm").unwrap();
    for (name, pipeline, zero) in [
        ("zero-offload", 4, ZeroStage::Gradients),
        ("zero-infinity,to_nvme=1", 1, ZeroStage::Parameters),
        ("zero-infinity,to_nvme=1", 2, ZeroStage::None),
        ("lomo", 2, ZeroStage::None),
        ("galore,rank=64", 8, ZeroStage::OptimizerStates),
    ] {
        let plan = TrainingPlan {
            layout: Layout { pipeline, data: 2, zero, ..Layout::default() },
            batch: Batch { micro_batch: 1, global_batch: 2, sequence_length: 512 },
            activations: ActivationPolicy::None.into(),
            attention: Attention::Fused,
            precision: Precision::MIXED_BF16,
            optimizer: Optimizer::Adam,
            schedule: PipelineSchedule::OneForwardOneBackward,
            techniques: [name.parse::<workloads::Technique>().unwrap()].into_iter().collect(),
        };
        let mut chip = ChipTimes::new(&accelerator, &stack).unwrap();
        let shape = PlanShape::new(&mut chip, &model, &fabric, &plan).unwrap();
        let memory = step_memory(&model, &plan, &stack, room(1 << 50), None).unwrap();
        let most = |of: fn(&StageMemory) -> Bytes| memory.stages.iter().map(of).max().unwrap();
        let need = [most(StageMemory::bytes_needed), most(|s| s.host), most(|s| s.storage)];
        let may = |[device, host, storage]: [Bytes; 3]| {
            let hbm = Bytes(device.0 + (1 << 36));
            let spare = Evaluator::new(&model, &fabric, &stack, DeviceMemory { hbm, host, storage }).capacity().device;
            let hbm = Bytes(hbm.0 - spare.saturating_sub(device).0);
            Evaluator::new(&model, &fabric, &stack, DeviceMemory { hbm, host, storage }).may_fit(&shape, &plan, None)
        };
        assert!(may(need), "{name} {need:?}");
        if let Some(away) = (1..3).find(|&at| need[at] > Bytes(1 << 33)) {
            let mut less = need;
            less[away] = Bytes(need[away].0 / 2);
            assert!(!may(less), "{name} {need:?}");
        }
    }
}
