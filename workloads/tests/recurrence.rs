//! RWKV 4: operations, kept tensors and state by hand.
#![allow(clippy::unwrap_used, missing_docs)]

use coplace_workloads as workloads;
use sim::kernel::DataType;
use sim::units::{Bytes, Flops};
use std::path::Path;
use workloads::serving::CacheSize;
use workloads::{Lowering, Model, RecomputeSet, SegmentKind, TrainingGraph};

fn load(name: &str) -> Model {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transformers").join(format!("{name}.json"));
    Model::load_file(&file).unwrap()
}

/// The model has width d = 1,024, 512 channels and MLPs of 2,816. A layer has products for keys, values, gates and its
/// output, and for the MLP's keys, values and gate.
#[test]
fn the_products_are_those_counted_by_hand() {
    let (d, width, ffn, s, vocabulary) = (1024_u128, 512_u128, 2816_u128, 2048_u128, 32_768_u128);
    let model = load("rwkv_narrow");
    let forward = 8 * (4 * d * width + 2 * d * ffn + d * d) + d * vocabulary;
    assert_eq!(model.training_flops(1, 2048, 32_768), Flops(6 * s * forward));
    assert_eq!(model.training_flops(2, 1024, 32_768), Flops(6 * s * forward));
}

/// A layer with fused norms keeps these two-byte elements per token (d = 1,024, f = 4,096): its input, the norm's
/// result and three mixes (5 d), keys, values, the recurrence's result, gates before their sigmoid and the gated result
/// (5 d); the sum, the norm's result and two mixes (4 d), the MLP before and after its activation (2 f), its result and
/// the gate (2 d).
#[test]
fn a_layer_keeps_what_its_backward_pass_reads() {
    let model = load("rwkv");
    let lowering = Lowering { sequence_length: 1024, elementwise_fusion: true, ..Lowering::new(&model) };
    let graph = TrainingGraph::new(&model, &lowering).unwrap();
    let layer = graph.segment(SegmentKind::Layer).unwrap();
    let (d, f) = (1024, 4096);
    let names: Vec<_> = layer
        .graph
        .kept_tensors(&RecomputeSet::none())
        .iter()
        .map(|t| layer.graph.tensors[t.index()].name.clone())
        .collect();
    assert_eq!(
        layer.saved_bytes(&RecomputeSet::none()),
        Bytes(1024 * 2 * (5 * d + 5 * d + 4 * d + 2 * f + 2 * d)),
        "{names:?}"
    );
}

/// A layer's state has three fp32 elements per channel, and the last token before each of the two mixes in bf16.
#[test]
fn the_state_does_not_grow() {
    let size = CacheSize::of_model(&load("rwkv"), 1, DataType::Bf16);
    assert_eq!((size.per_token, size.per_sequence), (Bytes::ZERO, Bytes(8 * (4 * 3 * 1024 + 2 * 2 * 1024))));
}
