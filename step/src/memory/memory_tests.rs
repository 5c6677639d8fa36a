//! Laws of the memory model.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use crate::lowering_of_plan;
use crate::memory::stage::PeakMoment;
use crate::memory::zero_states::ZeroSharding;
use crate::schedule::effective_schedule;
use proptest::prelude::*;
use sim::pipeline::{Pipeline, PipelineSchedule, PipelineStage};
use workloads::footprint::{Optimizer, Precision};
use workloads::training::Attention;
use workloads::{ActivationPolicy, Batch, ChunkSplit, Layout, SegmentKind, ZeroStage};

const STACKS: [&str; 4] = ["maxtext", "megatron", "pytorch_fsdp", "torchtitan"];

fn plan(layout: Layout, micro_batch: u64, micro_batches: u64) -> TrainingPlan {
    TrainingPlan {
        layout,
        batch: Batch {
            micro_batch,
            global_batch: micro_batch * micro_batches * u64::from(layout.data),
            sequence_length: 1024,
        },
        activations: ActivationPolicy::None.into(),
        attention: Attention::Fused,
        precision: Precision::MIXED_BF16,
        optimizer: Optimizer::Adam,
        schedule: PipelineSchedule::OneForwardOneBackward,
        techniques: workloads::Techniques::default(),
    }
}

fn memory(model: &Model, plan: &TrainingPlan, stack: &str) -> StepMemory {
    step_memory(
        model,
        plan,
        &SoftwareStack::load(stack).unwrap(),
        DeviceMemory { hbm: Bytes(80 << 30), host: Bytes(256 << 30), storage: Bytes::ZERO },
        None,
    )
    .unwrap()
}

fn layouts() -> impl Strategy<Value = Layout> {
    (0_u32..3, 0_u32..3, 0_u32..5, 0_u32..2, any::<bool>()).prop_map(|(t, p, d, v, sequence_parallel)| Layout {
        tensor: 1 << t,
        pipeline: 1 << p,
        data: 1 << d,
        virtual_stages: if p > 0 { 1 << v } else { 1 },
        sequence_parallel: sequence_parallel && t > 0,
        ..Layout::default()
    })
}

fn model() -> Model {
    Model { layers: 16, ..Model::load("llama3-8b").unwrap() }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn sharing_more_never_needs_more(layout in layouts(), rounds in 1_u64..4, stack in 0_usize..4, full in any::<bool>()) {
        let stages = [ZeroStage::None, ZeroStage::OptimizerStates, ZeroStage::Gradients, ZeroStage::Parameters];
        let activations = if full { ActivationPolicy::Full } else { ActivationPolicy::None };
        let needs: Vec<Vec<Bytes>> = stages
            .into_iter()
            .map(|zero| {
                let layout = Layout { zero, ..layout };
                let plan = TrainingPlan { activations: activations.clone().into(), ..plan(layout, 1, rounds * u64::from(layout.pipeline)) };
                memory(&model(), &plan, STACKS[stack]).stages.iter().map(StageMemory::bytes_needed).collect()
            })
            .collect();
        for pair in needs.windows(2) {
            for (less, more) in pair[1].iter().zip(&pair[0]) {
                prop_assert!(less <= more, "{layout:?}: {needs:?}");
            }
        }
    }

    #[test]
    fn more_micro_batch_or_sequence_never_needs_less(layout in layouts(), stack in 0_usize..4) {
        let small = plan(layout, 1, u64::from(layout.pipeline));
        let needs = |plan: &TrainingPlan| memory(&model(), plan, STACKS[stack]).peak_reading(MemoryReading::Allocated);
        let large = plan(layout, 2, u64::from(layout.pipeline));
        let mut long = small.clone();
        long.batch.sequence_length = 2048;
        // Equal if the optimizer's update is the peak.
        prop_assert!(needs(&small) <= needs(&large));
        prop_assert!(needs(&small) <= needs(&long));
    }
}

#[test]
fn more_recomputation_never_keeps_more() {
    let order = ["full", "save_out_proj", "save_dot_except_mlp", "minimal", "minimal_with_context", "none"];
    for stack in STACKS {
        let layout = Layout { pipeline: 4, ..Layout::default() };
        let runs = order.map(|text| {
            let plan = TrainingPlan { activations: text.parse().unwrap(), ..plan(layout, 4, 8) };
            memory(&model(), &plan, stack)
        });
        for pair in runs.windows(2) {
            for (more, less) in pair[0].stages.iter().zip(&pair[1].stages) {
                // The update keeps no activations, and may be the peak of the policy that recomputes most.
                assert!(
                    more.class_bytes(MemoryClass::Activations) < less.class_bytes(MemoryClass::Activations)
                        || more.moment == PeakMoment::Update
                );
                assert!(less.moment != PeakMoment::Update || more.moment == PeakMoment::Update, "{stack}");
            }
        }
        let first = |run: &StepMemory| run.stages[0].bytes_needed();
        assert!(runs.windows(2).all(|pair| first(&pair[0]) <= first(&pair[1])), "{stack}");
    }
}

#[test]
fn offloading_moves_activations_to_the_host() {
    let layout = Layout { data: 8, zero: ZeroStage::Parameters, ..Layout::default() };
    let run = |text: &str| {
        memory(&model(), &TrainingPlan { activations: text.parse().unwrap(), ..plan(layout, 4, 1) }, "maxtext")
    };
    let (kept, moved) = (run("minimal"), run("minimal_offloaded"));
    let difference = |class| kept.stages[0].class_bytes(class).0 - moved.stages[0].class_bytes(class).0;
    assert_eq!(difference(MemoryClass::Activations), moved.stages[0].host.0);
    assert_eq!(kept.stages[0].host, Bytes::ZERO);
}

/// Activations in closed form equal those of the event simulation of the same pipeline.
#[test]
fn activations_are_those_of_the_simulated_timeline() {
    let model = model();
    let cases = [
        (PipelineSchedule::OneForwardOneBackward, 4, 1, 8),
        (PipelineSchedule::OneForwardOneBackward, 4, 1, 2),
        (PipelineSchedule::OneForwardOneBackward, 4, 2, 8),
        (PipelineSchedule::OneForwardOneBackward, 2, 4, 2),
        (PipelineSchedule::GPipe, 4, 1, 6),
    ];
    for (schedule, pipeline, virtual_stages, m) in cases {
        let layout = Layout { pipeline, virtual_stages, ..Layout::default() };
        let plan = TrainingPlan { schedule, ..plan(layout, 1, m) };
        let run = memory(&model, &plan, "megatron");
        let chunks = plan.layout.chunk_layers(model.layers).unwrap();
        let stack = SoftwareStack::load("megatron").unwrap();
        let training = TrainingGraph::new(&model, &lowering_of_plan(&model, &plan, &stack)).unwrap();
        let kept = training.segment(SegmentKind::Layer).unwrap().saved_bytes(&workloads::RecomputeSet::none());
        let stash = |layers: &u64| PipelineStage {
            forward: sim::units::Seconds(1.0),
            backward_input: sim::units::Seconds(2.0),
            stash: kept * *layers,
            ..PipelineStage::default()
        };
        let mut pipeline_run = Pipeline::with_uniform_stages(
            PipelineStage::default(),
            chunks.len(),
            m as u32,
            effective_schedule(&plan.layout, plan.schedule),
        );
        pipeline_run.stages = chunks.iter().map(stash).collect();
        let timeline = pipeline_run.simulate_step().unwrap();
        for (stage, device) in run.stages.iter().zip(&timeline.devices) {
            // Embedding and head keep more on the ends; the layers between are compared to the byte.
            let ends = stage.stage == 0 || stage.stage + 1 == pipeline;
            let activations = stage.class_bytes(MemoryClass::Activations);
            assert!(activations >= device.peak_memory, "{schedule:?} stage {}", stage.stage);
            if !ends && stage.moment == PeakMoment::Layers {
                assert_eq!(
                    activations, device.peak_memory,
                    "{schedule:?} p {pipeline} v {virtual_stages} stage {}",
                    stage.stage
                );
            }
        }
    }
}

#[test]
fn rounds_of_micro_batches_fill_the_end_chunks_as_their_turns_do() {
    let model = Model { layers: 4, ..model() };
    let stack = SoftwareStack::load("megatron").unwrap();
    let plan = plan(Layout::default(), 1, 1);
    let training = TrainingGraph::new(&model, &lowering_of_plan(&model, &plan, &stack)).unwrap();
    let profile = MemoryProfile::new(&training, &plan.activations, &stack);
    for (p, v, rounds) in (2..7).flat_map(|p| (2..5).flat_map(move |v| (1..6).map(move |rounds| (p, v, rounds)))) {
        let layout = Layout { pipeline: p, virtual_stages: v, ..Layout::default() };
        let split = ChunkSplit { chunks: u64::from(p * v), first: 1, inner: 1, last: 1, ..ChunkSplit::default() };
        let schedule = PipelineSchedule::Interleaved { chunks: v };
        let arrangement = Arrangement::new(layout, split, schedule, u64::from(p) * rounds);
        let account = MemoryAccount::new(&profile, &arrangement, &stack, None);
        for (stage, chunk) in [(0, 0), (p - 1, v - 1)] {
            let passes = account.passes_in_flight(stage);
            let place = format!("p {p} v {v} rounds {rounds} stage {stage}");
            assert_eq!(
                account.passes_in_end_chunk(passes, chunk),
                account.passes_in_chunk_by_turns(passes, chunk),
                "{place}"
            );
        }
    }
}

#[test]
fn a_longer_group_of_micro_batches_keeps_more() {
    // Five micro-batches on four stages of two chunks go through a chunk in one group of five. The last stage then
    // holds one pass more than with groups of four.
    let layout = Layout { pipeline: 4, virtual_stages: 2, ..Layout::default() };
    let kept = |m| memory(&model(), &plan(layout, 1, m), "megatron").stages[3].class_bytes(MemoryClass::Activations).0;
    assert!(kept(5) > kept(8));
}

#[test]
fn what_breaks_a_stage_is_named() {
    let model = Model::load("gpt3-175b").unwrap();
    let layout = Layout { tensor: 8, pipeline: 8, data: 2, ..Layout::default() };
    let error = memory(&model, &plan(layout, 8, 16), "megatron").check_fits().unwrap_err();
    assert_eq!((error.stage, error.class), (0, MemoryClass::Activations), "the first stage keeps most: {error}");
    assert!(error.need > error.have);
    let text = error.to_string();
    assert!(text.starts_with("stage 0 needs ") && text.contains(" GiB of "), "{text}");
    // Sharded states and few activations: it fits.
    let layout = Layout { pipeline: 16, data: 16, zero: ZeroStage::OptimizerStates, sequence_parallel: true, ..layout };
    let small = TrainingPlan { activations: ActivationPolicy::Full.into(), ..plan(layout, 1, 16) };
    assert!(memory(&model, &small, "megatron").check_fits().is_ok());
    let alone = memory(&model, &plan(Layout::default(), 1, 1), "megatron").check_fits().unwrap_err();
    // Eight bytes of states per parameter exceed four of master weights and two of weights.
    assert_eq!(alone.class, MemoryClass::OptimizerStates, "{alone}");
    assert!(alone.largest.0 >= 8 * model.parameters() && alone.largest.0 < 9 * model.parameters(), "{alone}");
    assert!(alone.to_string().contains(": the largest part, optimizer states, is "), "{alone}");
}

#[test]
fn the_cure_is_none_that_the_plan_has_already() {
    let model = Model::load("gpt3-175b").unwrap();
    let cure = |layout: Layout, micro_batch| {
        let plan = plan(layout, micro_batch, micro_batch * u64::from(layout.data));
        memory(&model, &plan, "megatron").check_fits().unwrap_err().suggest_cure(&plan)
    };
    let more = "more devices, or a chip with more memory";
    let wide = Layout { tensor: 8, ..Layout::default() };
    assert_eq!(cure(wide, 1), format!("use {more}"), "one copy has nothing to share");
    let copies = Layout { data: 4, ..wide };
    let wider = "more tensor- or pipeline-parallel devices in place of copies";
    assert_eq!(cure(copies, 1), format!("use ZeRO-1, {wider}, {more}"));
    let shared = Layout { zero: ZeroStage::OptimizerStates, ..copies };
    assert_eq!(cure(shared, 1), format!("use ZeRO-2, {wider}, {more}"), "states are shared already");
    let kept = cure(Layout { tensor: 8, pipeline: 8, ..Layout::default() }, 8);
    assert_eq!(kept, format!("use more recomputation or offloading, a smaller micro-batch, {more}"));
}

#[test]
fn offloading_is_limited_by_the_hosts_memory() {
    let model = model();
    let stack = SoftwareStack::load("maxtext").unwrap();
    let layout = Layout { tensor: 2, pipeline: 4, ..Layout::default() };
    let offload = "custom:offload(decoder_layer_input,qkv_proj)".parse().unwrap();
    let plan = TrainingPlan { activations: offload, ..plan(layout, 2, 8) };
    let with = |host| {
        step_memory(&model, &plan, &stack, DeviceMemory { hbm: Bytes(80 << 30), host, storage: Bytes::ZERO }, None)
            .unwrap()
    };
    // Stage k of p keeps min(m, p - k) micro-batches: 4 layers, 2 sequences, a hidden state and its projections in 2
    // bytes.
    let needs = with(Bytes::ZERO).stages.iter().map(|s| s.host).collect::<Vec<_>>();
    let layer = (4096 + (4096 + 2 * 1024) / 2) * 2 * 1024 * 2;
    assert_eq!(needs, [4, 3, 2, 1].map(|depth| Bytes(4 * depth * layer)));
    assert!(with(needs[0]).check_fits().is_ok());
    let error = with(Bytes(1 << 28)).check_fits().unwrap_err();
    assert_eq!((error.stage, error.class, error.need, error.have), (0, MemoryClass::Host, needs[0], Bytes(1 << 28)));
    let text = error.to_string();
    assert!(
        text.starts_with("stage 0 needs 0.44 GiB of 0.25 GiB of host memory per device: offloaded activations"),
        "{text}"
    );
    // If both are too small, the error names device memory first.
    let none = step_memory(
        &model,
        &plan,
        &stack,
        DeviceMemory { hbm: Bytes(1 << 30), host: Bytes::ZERO, storage: Bytes::ZERO },
        None,
    )
    .unwrap();
    assert_ne!(none.check_fits().unwrap_err().class, MemoryClass::Host);
    assert!(with(Bytes::ZERO).check_fits().unwrap_err().to_string().ends_with("give the chip's file its [host]"));
}

#[test]
fn states_are_those_of_the_zero_paper() {
    // Rajbhandari et al. 2020, figure 1: 7.5B parameters over 64 ranks take 120, 31.4, 16.6 and 1.9 GB with fp16
    // gradients.
    let model = Model::load("llama2-7b").unwrap();
    let parameters = model.parameters() as f64;
    for (zero, per_parameter) in [
        (ZeroStage::None, 16.0),
        (ZeroStage::OptimizerStates, 4.0 + 12.0 / 64.0),
        (ZeroStage::Gradients, 2.0 + 14.0 / 64.0),
        (ZeroStage::Parameters, 16.0 / 64.0),
    ] {
        let layout = Layout { data: 64, zero, ..Layout::default() };
        let stack = SoftwareStack::load("megatron").unwrap();
        let mut lowered = lowering_of_plan(&model, &plan(layout, 1, 1), &stack);
        lowered.precision = Precision::MIXED_BF16;
        let training = TrainingGraph::new(&model, &lowered).unwrap();
        let sharding = ZeroSharding::new(&layout, &stack, None);
        let resident = sharding.resident_bytes(training.parameters(), &training.segments[0].bytes_per_parameter());
        let held = (resident.weights + resident.gradients + resident.masters + resident.states).as_f64();
        assert!((held / (parameters * per_parameter) - 1.0).abs() < 1e-6, "{zero:?}: {held}");
    }
}

#[test]
fn in_a_pipeline_zero_2_holds_the_gradients_of_a_chunk_whole() {
    let model = Model::load("llama2-7b").unwrap();
    let stack = SoftwareStack::load("megatron").unwrap();
    let gradients = |zero, virtual_stages| {
        let layout = Layout { data: 16, pipeline: 4, virtual_stages, zero, ..Layout::default() };
        let training = TrainingGraph::new(&model, &lowering_of_plan(&model, &plan(layout, 1, 64), &stack)).unwrap();
        let resident = ZeroSharding::new(&layout, &stack, None)
            .resident_bytes(training.parameters(), &training.segments[0].bytes_per_parameter());
        resident.gradients.as_f64()
    };
    let all = gradients(ZeroStage::None, 1);
    assert_eq!(gradients(ZeroStage::Gradients, 1), all);
    let interleaved = gradients(ZeroStage::Gradients, 8) / all;
    assert!((interleaved - (1.0 / 16.0 + 1.0 / 8.0)).abs() < 1e-6, "{interleaved}");
}

#[test]
fn experts_are_shared_by_the_ranks_that_hold_the_same_ones() {
    let experts = Some(workloads::model::Experts { count: 8, top_k: 2, ..workloads::model::Experts::default() });
    let model = Model { experts, ..model() };
    let state = |expert, zero| {
        let layout = Layout { data: 8, expert, zero, ..Layout::default() };
        let stack = SoftwareStack::load("megatron").unwrap();
        let plan = plan(layout, 1, 1);
        let training = TrainingGraph::new(&model, &lowering_of_plan(&model, &plan, &stack)).unwrap();
        let resident = ZeroSharding::new(&layout, &stack, None)
            .resident_bytes(training.parameters(), &training.segments[0].bytes_per_parameter());
        (training.parameters(), resident)
    };
    for expert in [1, 2, 8] {
        let (parameters, resident) = state(expert, ZeroStage::OptimizerStates);
        let dense = parameters.sharded + parameters.replicated;
        assert_eq!(parameters.expert, 16 * 8 * 3 * 4096 * 14336 / u64::from(expert));
        // Fp32 master weights and two moments: a device holds an eighth of those of the dense weights. The 8 / e ranks
        // that hold the same experts share theirs equally.
        let shared = dense.div_ceil(8) + parameters.expert / (8 / u64::from(expert));
        assert_eq!((resident.masters, resident.states), (Bytes(4 * shared), Bytes(8 * shared)), "e = {expert}");
        assert_eq!(resident.weights, Bytes(2 * (dense + parameters.expert)), "weights are whole");
    }
}

#[test]
fn uneven_routing_fills_the_fullest_device() {
    let experts = Some(workloads::model::Experts { count: 8, top_k: 2, ..workloads::model::Experts::default() });
    let sparse = Model { experts, ..model() };
    let kept = |model: &Model, expert| {
        let layout = Layout { data: 8, expert, ..Layout::default() };
        memory(model, &plan(layout, 1, 1), "maxtext").stages[0].class_bytes(MemoryClass::Activations)
    };
    assert!(kept(&sparse, 1) < kept(&sparse, 2) && kept(&sparse, 2) < kept(&sparse, 8));
    // With a stated capacity every expert takes that much, for any number of devices.
    let limited =
        Model { experts: experts.map(|e| workloads::model::Experts { capacity_factor: Some(1.25), ..e }), ..sparse };
    assert_eq!(kept(&limited, 2), kept(&limited, 8));
}

/// Returns the memory of a plan under a slightly changed stack.
fn under(model: &Model, plan: &TrainingPlan, stack: &str, change: impl Fn(&mut crate::MemoryOptions)) -> StepMemory {
    let mut stack = SoftwareStack::load(stack).unwrap();
    change(&mut stack.memory);
    let room = DeviceMemory { hbm: Bytes(1 << 40), host: Bytes::ZERO, storage: Bytes::ZERO };
    step_memory(model, plan, &stack, room, None).unwrap()
}

#[test]
fn a_host_that_runs_ahead_holds_whole_hidden_states() {
    let held_by = |tensor, pipeline, micro_batches| {
        let layout = Layout { tensor, pipeline, sequence_parallel: tensor > 1, ..Layout::default() };
        let plan = plan(layout, 2, micro_batches);
        let [with, without] = [50.0, 0.0].map(|n| under(&model(), &plan, "nanotron", |memory| memory.states_ahead = n));
        let more = |reading| with.stages[0].reading_of(reading).saturating_sub(without.stages[0].reading_of(reading));
        let [reserved, live] = [more(MemoryReading::Reserved), more(MemoryReading::Allocated)];
        assert_eq!(
            with.stages[0].bytes_needed().saturating_sub(without.stages[0].bytes_needed()),
            reserved,
            "what waits for the device cannot be used either"
        );
        assert_eq!(live, Bytes::ZERO, "nobody reads it any more");
        reserved
    };
    let held = |tensor, pipeline| held_by(tensor, pipeline, 16);
    let state = 2 * 1024 * 4096 * 2;
    assert_eq!(held(1, 1), Bytes::ZERO, "nothing is gathered");
    // The degree by which states are split does not matter, because whole states are held.
    assert_eq!([held(2, 1), held(8, 1)], [Bytes(50 * state); 2]);
    // The first of 2, 4 and 8 stages has as many micro-batches in flight; all but two are launched ahead.
    assert_eq!([held(2, 2), held(2, 4), held(2, 8)], [Bytes::ZERO, Bytes(25 * state), Bytes(75 * state / 2)]);
    // A forward pass leaves a state per layer, at most as many as the queue.
    let layers = model().layers;
    let passed = |layers: u64| Bytes(layers.min(50) * state);
    assert_eq!([1, 2].map(|pipeline| held_by(2, pipeline, 1)), [passed(layers), passed(layers / 2)]);
    assert_eq!(held_by(2, 1, 2), passed(2 * layers));
}

#[test]
fn in_a_pipeline_fsdp_keeps_weights_and_gradients_whole() {
    let of = |pipeline, whole| {
        let layout = Layout { pipeline, data: 8, zero: ZeroStage::Parameters, ..Layout::default() };
        let found = under(&model(), &plan(layout, 1, 8), "torchtitan", |memory| memory.unsharded_in_pipeline = whole);
        [MemoryClass::Gathered, MemoryClass::Gradients]
            .map(|class| found.stages[1.min(found.stages.len() - 1)].class_bytes(class).0)
    };
    assert_eq!(of(1, true), of(1, false));
    // Four layers on the second of four stages.
    let layer: u64 = 4096 * (2 * 4096 + 2 * 1024 + 3 * 14_336) + 2 * 4096;
    assert_eq!(of(4, true), [4 * layer * 2, 4 * layer * 4]);
    assert_eq!(of(4, false), [2 * layer * 2 + layer * 6, 4 * layer * 4 / 8]);
}

#[test]
fn gradients_that_products_add_up_leave_placeholders() {
    let of = |pipeline, placed| {
        let layout = Layout { tensor: 2, pipeline, sequence_parallel: true, ..Layout::default() };
        let found = under(&model(), &plan(layout, 1, 8), "megatron_core_exposed", |memory| {
            memory.placeholder_gradients = placed
        });
        found
            .stages
            .iter()
            .map(|stage| (stage.moment, stage.reading_of(MemoryReading::Allocated).0))
            .collect::<Vec<_>>()
    };
    let layer: u64 = 4096 * (2 * 4096 + 2 * 1024 + 3 * 14_336) / 2 + 2 * 4096;
    let [with, without] = [true, false].map(|placed| of(2, placed));
    assert_eq!((with[0].0, with[0].1 - without[0].1), (PeakMoment::Layers, 2 * layer));
    // The loss adds the head's placeholder, and the final norm's.
    assert_eq!((with[1].0, without[1].0), (PeakMoment::Loss, PeakMoment::Loss));
    assert_eq!(with[1].1 - without[1].1, 2 * (layer + 128_256 * 4096 / 2 + 4096));
}

#[test]
fn large_buffers_of_the_update_are_reserved_beside_activations() {
    let layout = Layout { tensor: 2, data: 4, zero: ZeroStage::OptimizerStates, ..Layout::default() };
    let plan = plan(layout, 8, 8);
    let [with, without] =
        [true, false].map(|apart| under(&model(), &plan, "megatron_deepspeed", |m| m.update_contiguous = apart));
    let stage = &with.stages[0];
    assert_ne!(stage.moment, PeakMoment::Update);
    let shared = stage.class_bytes(MemoryClass::OptimizerStates).0 / 8;
    let more =
        stage.reading_of(MemoryReading::Reserved).saturating_sub(without.stages[0].reading_of(MemoryReading::Reserved));
    assert_eq!(more, Bytes(6 * shared));
    assert_eq!(stage.bytes_needed(), without.stages[0].bytes_needed(), "under pressure the cache goes first");
}
