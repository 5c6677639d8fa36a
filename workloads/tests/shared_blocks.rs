//! Zamba and Zamba 2, whose layers share blocks of attention and MLP: operations, kept tensors, cache and parameters by
//! hand.
#![allow(clippy::unwrap_used, missing_docs)]

use coplace_workloads as workloads;
use sim::kernel::DataType;
use sim::units::{Bytes, Flops};
use std::path::Path;
use workloads::layout::{Batch, Layout};
use workloads::serving::{CacheSize, ServingGraph, ServingPass};
use workloads::training::Attention;
use workloads::{Lowering, Model, RecomputeSet, SegmentKind, TrainingGraph};

fn load(name: &str) -> Model {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transformers").join(format!("{name}.json"));
    Model::load_file(&file).unwrap()
}

/// Zamba 2 has width d = 1,024, MLPs of 4,096, and adapters of rank 64. Four of its 12 layers have one of two blocks.
/// The variables count forward multiply-additions per token. Each is two operations, and a step does three times the
/// forward work.
#[test]
fn every_layer_does_the_work_of_its_block() {
    let model = load("zamba2");
    let (d, ffn, r, s, vocabulary) = (1024_u128, 4096_u128, 64_u128, 2048_u128, 32_000_u128);
    // A block has products for queries, keys and values (2 d each), attention's output, the MLP, and the layer's own
    // product.
    let block = 2 * d * 3 * 2 * d + 2 * d * d + 3 * d * ffn + d * d;
    let adapters = 3 * (2 * d * r + r * 2 * d) + d * r + r * 2 * ffn;
    // Scores and context of 16 heads of 128 count all keys.
    let attention = 2 * (2 * d) * s;
    // A scan has products for gate, input, two groups' projections into and out of 64 state elements, 16 steps, and the
    // output. Its chunks have four more products.
    let products = d * (2 * 2 * d + 2 * 2 * 64 + 16) + 2 * d * d;
    let scan = 256 * 64 * 2 + 256 * 2 * d + 2 * 64 * 2 * d;
    let forward = 12 * (products + scan) + 4 * (block + adapters + attention) + d * vocabulary;
    assert_eq!(model.training_flops(1, 2048, 32_000), Flops(6 * s * forward));
    let lowering = Lowering { attention: Attention::Unfused, sequence_length: 2048, ..Lowering::new(&model) };
    assert_eq!(TrainingGraph::new(&model, &lowering).unwrap().kernel_flops(), Flops(6 * s * forward));
}

/// Operations of Zamba, counted like those of Zamba 2. Its scans do no products of their own. A layer has products for
/// input and gate, the steps' low-rank vector (64) and projections (2 x 16), the steps, and the output. Two layers run
/// the one block.
#[test]
fn scans_by_channels_share_a_block_too() {
    let model = load("zamba");
    let (d, ffn, s, vocabulary) = (1024_u128, 4096_u128, 2048_u128, 32_000_u128);
    let block = 2 * d * 3 * 2 * d + 2 * d * d + 3 * d * ffn + d * d + 2 * (2 * d) * s;
    let products = d * 2 * 2 * d + 2 * d * (64 + 32) + 64 * 2 * d + 2 * d * d;
    let forward = 12 * products + 2 * block + d * vocabulary;
    assert_eq!(model.training_flops(1, 2048, 32_000), Flops(6 * s * forward));
}

/// The weights of a block count once, with the embedding, although several layers run the block.
#[test]
fn shared_weights_count_once() {
    let model = load("zamba2");
    let graph = TrainingGraph::new(&model, &Lowering::new(&model)).unwrap();
    let embedding = graph.segment(SegmentKind::Embedding).unwrap();
    let held = embedding.graph.find_operator("embedding.shared_blocks").unwrap().parameters;
    let (d, ffn) = (1024, 4096);
    let each = 2 * d * 3 * 2 * d + 2 * d * d + 3 * d * ffn + 3 * d;
    assert_eq!(held.per_device_count(), 2 * each);
    assert_eq!(graph.parameters().per_device_count(), model.parameters());
    // Serving keeps the shared products in the format of the layers' products.
    let pass = ServingPass { cached: 512, expert_ranks: 1, expert_product: None, verifies: false };
    assert!(ServingGraph::new(&model, &Lowering { sequence_length: 1, ..Lowering::new(&model) }, pass).is_ok());
}

/// A layer with a block keeps these two-byte elements per token besides its scan (d = 1,024, f = 4,096): the layer's
/// input beside the embedding (2 d), the norm's result (2 d), queries (2 d), keys and values (2 d: half the heads),
/// attention's result (2 d), the MLP's input before and after its norm (2 d), the adapter's narrow vector (r = 128),
/// gate and up (2 f), the gate's activation and the product (2 f). It also keeps the block's result (d), and the sum
/// before the scan's norm (d). The embedding itself is kept once.
#[test]
fn a_layer_keeps_what_its_backward_pass_reads() {
    let model = load("zamba2_one_block");
    let graph = TrainingGraph::new(&model, &Lowering::new(&model)).unwrap();
    let segment = graph.segment(SegmentKind::Layer).unwrap();
    let operators = segment.operators().iter();
    let layer = operators.filter_map(|op| op.name.strip_suffix(".attention.joint")).next().unwrap();
    let kept = segment.graph.kept_tensors(&RecomputeSet::none());
    let tensors = kept.iter().map(|id| &segment.graph.tensors[id.index()]);
    let of_layer = tensors.filter(|tensor| tensor.name.starts_with(&format!("{layer}.")));
    let with: Vec<(String, Bytes)> = of_layer.map(|tensor| (tensor.name.clone(), tensor.bytes)).collect();
    let of_block = |(name, _): &&(String, Bytes)| !name.contains(".scan.");
    let numbers: u64 = with.iter().filter(of_block).map(|(_, bytes)| bytes.0).sum();
    let (d, f, r, tokens) = (1024, 4096, 128, model.max_sequence);
    // Log-sum-exps of 16 heads and the factors of two norms are fp32.
    let kept = 2 * (2 * d + 2 * d + 2 * d + 2 * d + 2 * d + 2 * d + 2 * f + 2 * f + r + d + d) + 4 * 16 + 4 * 2;
    assert_eq!(numbers, tokens * kept, "{with:?}");
}

/// A cache has keys and values of the layers with blocks, and a state of every layer's scan.
#[test]
fn the_cache_has_keys_and_states() {
    let size = CacheSize::of_model(&load("zamba2"), 1, DataType::Bf16);
    assert_eq!(size.per_token, Bytes(4 * 2 * 16 * 128 * 2));
    // 16 heads of 128 x 64 in fp32, and the last four inputs of 2,048 + 256 channels.
    assert_eq!(size.per_sequence, Bytes(12 * (4 * 16 * 128 * 64 + 2 * 4 * 2304)));
    let size = CacheSize::of_model(&load("zamba"), 1, DataType::Bf16);
    assert_eq!(size.per_token, Bytes(2 * 2 * 16 * 128 * 2));
    assert_eq!(size.per_sequence, Bytes(12 * (4 * 2048 * 16 + 2 * 4 * 2048)));
}

#[test]
fn stages_would_need_copies_of_shared_weights() {
    let layout = Layout { pipeline: 2, ..Layout::default() };
    let batch = Batch { micro_batch: 1, global_batch: 4, sequence_length: 2048 };
    let error = layout.check_model_and_batch(&load("zamba2_one_block"), &batch).unwrap_err().to_string();
    assert_eq!(
        error,
        "pp = 2: must be 1: layers share the weights of a block, and gradients of copies on several stages are not \
         modelled; use pp = 1"
    );
    // Groups of a scan's channels stay whole.
    let layout = Layout { tensor: 4, ..Layout::default() };
    let error = layout.check_model_and_batch(&load("zamba"), &batch).unwrap_err().to_string();
    assert!(error.contains("2 groups of the scan's channels"), "{error}");
}
