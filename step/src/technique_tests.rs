//! Bytes of memory techniques by stage: everything that leaves the device is counted elsewhere.
#![allow(clippy::unwrap_used, clippy::panic)]

use super::*;
use crate::memory::stage::PeakMoment;
use crate::pass::lowering::lower_plan;
use sim::pipeline::PipelineSchedule;
use sim::units::Bytes;
use workloads::footprint::{Optimizer, Precision};
use workloads::training::Attention;
use workloads::{ActivationPolicy, Batch, Layout, Model, SegmentKind, Technique, Techniques, ZeroStage};

const OFFLOADS: [&str; 9] = [
    "offload-attn-norm",
    "offload-attn-proj",
    "offload-core-attn",
    "offload-expert-fc1",
    "offload-mlp-norm",
    "offload-moe-act",
    "offload-qkv-linear",
    "memo,fraction=1",
    "ssdtrain,fraction=0.625",
];

pub(crate) fn technique_plan(layout: Layout, micro_batches: u64, techniques: &str) -> TrainingPlan {
    TrainingPlan {
        layout,
        batch: Batch { micro_batch: 1, global_batch: micro_batches * u64::from(layout.data), sequence_length: 4096 },
        activations: ActivationPolicy::None.into(),
        attention: Attention::Fused,
        precision: Precision::MIXED_BF16,
        optimizer: Optimizer::Adam,
        schedule: PipelineSchedule::OneForwardOneBackward,
        techniques: techniques.split_whitespace().map(|t| t.parse::<Technique>().unwrap()).collect::<Techniques>(),
    }
}

fn memory(model: &Model, plan: &TrainingPlan, stack: &SoftwareStack) -> StepMemory {
    let all = Bytes(1 << 50);
    step_memory(model, plan, stack, DeviceMemory { hbm: all, host: all, storage: all }, None).unwrap()
}

/// For every stage, the bytes on the device, on the host and in storage sum to the bytes without techniques. MEMO's
/// rounding buffers on the device count too.
#[test]
fn activations_are_on_the_device_or_away_whatever_the_model() {
    let stack = SoftwareStack::load("megatron_core").unwrap();
    for (name, tensor, pipelines) in [
        ("llama2-7b", 4, [1, 4]),
        ("gemma-2-9b", 8, [1, 3]),
        ("gpt-oss-20b", 8, [1, 4]),
        ("mixtral-8x7b", 4, [1, 2]),
        ("deepseek-v2-lite", 4, [1, 2]),
        ("deepseek-v3", 8, [1, 2]),
    ] {
        let model = Model::load(name).unwrap();
        for pipeline in pipelines {
            let layout = Layout { tensor, pipeline, sequence_parallel: true, ..Layout::default() };
            let of = |techniques: &str| memory(&model, &technique_plan(layout, 8, techniques), &stack).stages;
            let plain = of("");
            for technique in OFFLOADS {
                let graph = lower_plan(&model, &technique_plan(layout, 8, technique), &stack).unwrap();
                let layer = &graph.segment(SegmentKind::Layer).unwrap().graph;
                let each =
                    ActivationPolicy::None.treatment_with_extent(layer, stack.replay_extent()).offloaded_bytes(layer);
                let buffered = each * layer.settled.buffered_layers;
                for (before, after) in plain.iter().zip(of(technique)) {
                    assert!(
                        before.moment != PeakMoment::Update && after.moment != PeakMoment::Update,
                        "{name} {technique}"
                    );
                    let held = after.class_bytes(MemoryClass::Activations) + after.host + after.storage + buffered;
                    // A partial offload rounds a tensor's bytes up.
                    let off = held.0.abs_diff(before.class_bytes(MemoryClass::Activations).0);
                    assert!(off <= 8 * 64, "{name} {technique} p{pipeline}, stage {}: {off} bytes", before.stage);
                }
            }
        }
    }
}

/// Under stacks that store the fp32 master copy, frozen weights have none. All ranks together hold 2 bytes per frozen
/// number and 4 per trained number. An anchor adds 2 bytes per trained number.
#[test]
fn frozen_weights_and_anchors_are_held_where_masters_are_the_weights() {
    let layout = Layout { data: 8, zero: ZeroStage::Parameters, ..Layout::default() };
    for name in ["llama2-7b", "mixtral-8x7b"] {
        let model = Model::load(name).unwrap();
        for stack in ["pytorch_fsdp", "torchtitan", "maxtext"] {
            let stack = SoftwareStack::load(stack).unwrap();
            let weights = |techniques: &str| {
                memory(&model, &technique_plan(layout, 1, techniques), &stack).stages[0]
                    .class_bytes(MemoryClass::Weights)
                    .0
            };
            let numbers = model.parameters();
            let near = |bytes: u64, wanted: u64| bytes.abs_diff(wanted) <= 1 << 10;
            assert!(near(weights(""), 4 * numbers / 8), "{name} {}", stack.name);
            assert!(near(weights("proximal-anchor"), 6 * numbers / 8), "{name} {}", stack.name);
            let graph = lower_plan(&model, &technique_plan(layout, 1, "lora"), &stack).unwrap();
            let trained: u64 = graph
                .segments
                .iter()
                .map(|s| s.statics.as_deref().unwrap().own.updated.per_device_count() * s.repeat)
                .sum();
            assert!(trained > 0);
            assert!(
                near(weights("lora"), (2 * numbers + 4 * trained) / 8),
                "{name} {}: {}",
                stack.name,
                weights("lora")
            );
            // The anchor covers only the adapters.
            assert!(near(weights("lora proximal-anchor"), (2 * numbers + 6 * trained) / 8), "{name} {}", stack.name);
        }
    }
}

/// An error names correctly what does not fit into host memory or storage.
#[test]
fn read_only_data_that_does_not_fit_is_called_so() {
    let model = Model::load("llama2-7b").unwrap();
    let stack = SoftwareStack::load("megatron_core").unwrap();
    let lacks = |techniques: &str| {
        let have = DeviceMemory { hbm: Bytes(1 << 50), host: Bytes(16 << 30), storage: Bytes(16 << 30) };
        step_memory(&model, &technique_plan(Layout::default(), 1, techniques), &stack, have, None)
            .unwrap()
            .check_fits()
            .unwrap_err()
            .to_string()
    };
    // 32 GiB of examples.
    let examples = lacks("exemplar,examples=34359738368,example_bytes=1");
    assert!(
        examples.contains("32.00 GiB of it read-only data") && !examples.contains("optimizer states"),
        "{examples}"
    );
    let stored = lacks("exemplar,examples=34359738368,example_bytes=1,to_nvme=1");
    assert!(stored.contains("of storage per device: 32.00 GiB of it read-only data"), "{stored}");
    // With states beside a little read-only data, the error names the states.
    let states = lacks("zero-offload exemplar,examples=1073741824,example_bytes=1");
    let gib = 14.0 * model.parameters() as f64 / f64::from(1 << 30);
    assert!(states.contains(&format!("{gib:.2} GiB of it weights, gradients and optimizer states")), "{states}");
}

/// An update writes weights, masters and states once; every micro-batch writes its gradients and activations, however
/// many are in flight.
#[test]
fn storage_is_written_once_a_step_but_for_what_every_micro_batch_sends() {
    let (model, stack) =
        (Model { layers: 4, ..Model::load("llama2-7b").unwrap() }, SoftwareStack::load("megatron").unwrap());
    let numbers = model.parameters();
    // Half of what the layers keep.
    let half = "ssdtrain,fraction=0.5";
    let graph = lower_plan(&model, &technique_plan(Layout::default(), 1, half), &stack).unwrap();
    let segment = graph.segment(SegmentKind::Layer).unwrap();
    let gradients = segment.bytes_per_parameter().gradient.0 * numbers;
    let kept = ActivationPolicy::None
        .treatment_with_extent(&segment.graph, stack.replay_extent())
        .stored_bytes(&segment.graph)
        .0;
    assert!(kept > 0);
    for (pipeline, data, micro_batches) in [(1, 1, 1), (1, 4, 8), (2, 2, 2), (2, 1, 8)] {
        let written = |techniques: &str| {
            let layout = Layout { pipeline, data, zero: ZeroStage::Parameters, ..Layout::default() };
            let stages = memory(&model, &technique_plan(layout, micro_batches, techniques), &stack).stages;
            stages.iter().fold([0; 2], |sum, stage| [sum[0] + stage.written[0].0, sum[1] + stage.written[1].0])
        };
        let near = |bytes: u64, wanted: u64| bytes.abs_diff(wanted / u64::from(data)) <= 64;
        let [once, each] = written("zero-infinity,to_nvme=1");
        assert!(near(once, 14 * numbers) && near(each, gradients), "p{pipeline} d{data}: {once} {each}");
        assert_eq!(written("zero-infinity"), [0; 2]);
        // The last layers of a device keep their activations on the device.
        let layers = model.layers - u64::from(pipeline) * segment.graph.settled.buffered_layers;
        assert_eq!(written(half), [0, kept * layers], "p{pipeline} d{data}");
    }
}
