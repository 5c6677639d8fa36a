//! Whisper, whose encoder reads sound: its tokens, operations and parameters by hand, and on several devices.
#![allow(clippy::unwrap_used, missing_docs)]

use coplace_workloads as workloads;
use sim::units::Flops;
use std::path::Path;
use workloads::layout::{Batch, Layout};
use workloads::training::Attention;
use workloads::{Lowering, Model, SegmentKind, TrainingGraph};

/// Returns a Whisper of width 1,024 with MLPs of 4,096 and 8 layers per side. The encoder has 1,500 tokens, from frames
/// of 80 bins; the decoder has 448.
fn whisper() -> Model {
    Model::load_file(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transformers/whisper.json")).unwrap()
}

#[test]
fn operations_are_those_of_each_sides_own_tokens() {
    let model = whisper();
    let (d, ffn, vocabulary, sound, text) = (1024_u128, 4096_u128, 32_768_u128, 1500_u128, 448_u128);
    // The backward pass does two multiply-additions for every forward one, which makes 6 operations per weight and
    // token.
    let encoder = sound * (6 * (4 * d * d + 2 * d * ffn) + 12 * d * sound);
    let own = 6 * (4 * d * d + 2 * d * d + 2 * d * ffn) + 12 * d * text;
    let decoder = text * (own + 12 * d * sound) + sound * 6 * 2 * d * d;
    // The first convolution runs on two frames per token, and computes no gradient of the sound.
    let convolutions = 2 * sound * 4 * 3 * 80 * d + sound * 6 * 3 * d * d;
    let all = 8 * (encoder + decoder) + convolutions + text * 6 * d * vocabulary;
    assert_eq!(model.training_flops(1, 448, 32_768), Flops(all));
    // The mask of the decoder's self-attention leaves half of the scores.
    assert_eq!(model.necessary_training_flops(1, 448, 32_768), Flops(all - 8 * text * 12 * d * 224));
    let lowering = Lowering { attention: Attention::Unfused, micro_batch: 3, ..Lowering::new(&model) };
    assert_eq!(TrainingGraph::new(&model, &lowering).unwrap().kernel_flops(), Flops(3 * all));
}

#[test]
fn devices_share_both_sides() {
    let model = whisper();
    let base = Lowering { attention: Attention::Unfused, ..Lowering::new(&model) };
    let one = TrainingGraph::new(&model, &base).unwrap();
    assert_eq!(one.parameters().per_device_count(), model.parameters());
    let bytes = |graph: &TrainingGraph| graph.segment(SegmentKind::Layer).unwrap().boundary_bytes.0;
    // A stage sends decoder and encoder tokens together, in two bytes per element.
    assert_eq!(bytes(&one), (448 + 1500) * 1024 * 2);
    let split = Lowering { tensor_parallel: 4, sequence_parallel: true, ..base };
    let four = TrainingGraph::new(&model, &split).unwrap();
    assert_eq!(four.kernel_flops() * 4, one.kernel_flops());
    assert_eq!(bytes(&four) * 4, bytes(&one));
    let fused = Lowering { attention: Attention::Fused, ..Lowering::new(&model) };
    let ring = Lowering { context_parallel: 4, ..fused };
    let flops = |lowering: &Lowering| TrainingGraph::new(&model, lowering).unwrap().kernel_flops();
    assert_eq!(flops(&ring) * 4, flops(&fused));
}

#[test]
fn devices_must_divide_the_encoders_tokens() {
    let model = whisper();
    let wide = Lowering { tensor_parallel: 8, sequence_parallel: true, ..Lowering::new(&model) };
    let error = TrainingGraph::new(&model, &wide).unwrap_err().to_string();
    assert!(
        error.ends_with("must be a divisor of the encoder's 1500 tokens: use 6, or switch sequence parallelism off"),
        "{error}"
    );
    let batch = Batch { micro_batch: 1, global_batch: 8, sequence_length: 448 };
    let refusal = |layout: Layout| layout.check_model_and_batch(&model, &batch).unwrap_err().to_string();
    let long = Layout { context: 8, ..Layout::default() };
    assert_eq!(
        refusal(long),
        "cp = 8: must be such that tp x cp, or cp without sequence parallelism, divides the encoder's 1500 tokens; use \
         cp = 6 or 10"
    );
    let wide = Layout { tensor: 8, sequence_parallel: true, ..Layout::default() };
    assert!(refusal(wide).ends_with("use no sequence parallelism"));
    assert!(Layout { tensor: 8, ..Layout::default() }.check_model_and_batch(&model, &batch).is_ok());
}
