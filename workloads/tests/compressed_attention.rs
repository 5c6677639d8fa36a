//! DeepSeek-V4: operations, kept tensors and cache by hand.
#![allow(clippy::unwrap_used, missing_docs)]

use coplace_workloads as workloads;
use sim::kernel::{DataType, Kernel};
use sim::units::{Bytes, Flops};
use std::path::Path;
use workloads::layer_list::KeyChoice;
use workloads::serving::{CacheSize, ServingGraph, ServingPass};
use workloads::training::Attention;
use workloads::{Lowering, Model, RecomputeSet, SegmentKind, TrainingGraph};

fn load(name: &str) -> Model {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transformers").join(format!("{name}.json"));
    Model::load_file(&file).unwrap()
}

/// Width d = 1,024, 16 heads of 128, queries from 256 numbers, 4 groups of heads to 256 numbers each, 2 of 16 experts
/// of 512 and a shared one, four streams. Three of eight layers choose 256 of the entries of 4 tokens by 8 heads of 64;
/// five see all entries of 128 tokens. Forward multiply-additions per token and layer.
#[test]
fn a_step_has_the_operations_counted_by_hand() {
    let model = load("deepseek_v4");
    let (d, s, vocabulary) = (1024_u128, 4096_u128, 32_768_u128);
    let attention = d * 256 + 256 * 2048 + d * 128 + 4 * 512 * 256 + 4 * 256 * d;
    let experts = d * 16 + (2 + 1) * 3 * d * 512;
    // Two mixings: weights into and out of a branch for four streams, and a matrix of 4 x 4.
    let streams = 2 * (4 + 4 + 16) * 4 * d;
    let common = attention + experts + streams;
    // Vectors and gates; overlapping entries take two vectors of each token.
    let all_entries = 2 * d * 128;
    let chosen_entries = 2 * d * 2 * 128;
    let index = 2 * d * 2 * 64 + 256 * 8 * 64 + d * 8;
    // The head: a product of four streams, and the logits.
    let head = 4 * 4 * d + d * vocabulary;
    let products = 8 * common + 5 * all_entries + 3 * (chosen_entries + index) + head;
    // Keys that a query sees: of a window of 128 less the first ones' shortfall, and 16 of 32 entries, or of 1,024
    // entries 256 less 256² / 2,048.
    let near = 128 - 128 * 128 / (2 * 4096);
    let scores = 2 * 2048 * (5 * (near + 16) + 3 * (near + 256 - 32));
    let indexed = 3 * 8 * 64 * (512 + 2 * (256 - 32));
    // The indexer's input has no gradient. Its scores run forward on half of the entries, backward on the chosen ones.
    let all = s * (6 * products - 2 * 3 * index + 6 * scores + 2 * indexed);
    assert_eq!(model.necessary_training_flops(1, 4096, 32_768), Flops(all));
    // All scores: of every token and entry.
    let more = 2 * 2048 * (5 * (4096 + 32 - near - 16) + 3 * (4096 + 1024 - near - 224));
    assert_eq!(model.training_flops(1, 4096, 32_768), Flops(all + s * 6 * more));
}

/// Kernels do the operations of the closed form, but for the indexer's own.
#[test]
fn kernels_do_the_operations_of_the_closed_form() {
    let model = load("deepseek_v4");
    let lowering = Lowering { attention: Attention::Unfused, sequence_length: 4096, ..Lowering::new(&model) };
    let graph = TrainingGraph::new(&model, &lowering).unwrap();
    // Attention's probabilities on the chosen entries, which the indexer learns from; its product by heads again.
    let target = 3 * 4096 * 2 * 224 * (16 * 128 + 8 * 64_u128);
    assert_eq!(graph.kernel_flops().0, model.training_flops(1, 4096, 32_768).0 + target);
}

/// A layer keeps four streams of 1,024 numbers between its branches, and its pipeline stage sends as many.
#[test]
fn streams_travel_between_stages() {
    let model = load("deepseek_v4");
    let lowering = Lowering { sequence_length: 4096, elementwise_fusion: true, ..Lowering::new(&model) };
    let graph = TrainingGraph::new(&model, &lowering).unwrap();
    let segment = graph.segment(SegmentKind::Layer).unwrap();
    assert_eq!(segment.boundary_bytes, Bytes(4096 * 4 * 1024 * 2));
    let kept = segment.graph.kept_tensors(&RecomputeSet::none());
    let sizes = kept.iter().map(|id| &segment.graph.tensors[id.index()]);
    let streams: Vec<&str> = sizes
        .filter(|tensor| tensor.bytes == segment.boundary_bytes && tensor.name.contains("stream"))
        .map(|tensor| tensor.name.as_str())
        .collect();
    // Each mixing reads the streams before it: the input, and every mixing's result but the last.
    let layers = model.layers_per_block();
    assert_eq!(streams.len() as u64, 2 * layers - 1, "{streams:?}");
}

/// In bf16: the last 128 keys of 128 numbers in every layer; of all tokens an entry of 128 numbers per 128 tokens in
/// five layers, and entries of 128 and 64 numbers per 4 tokens in three.
#[test]
fn the_cache_has_windows_and_entries() {
    let size = CacheSize::of_model(&load("deepseek_v4"), 1, DataType::Bf16);
    let windows: Vec<u64> = size.windows.iter().map(|(tokens, bytes)| tokens * bytes.0).collect();
    assert_eq!(windows.iter().sum::<u64>(), 8 * 128 * 128 * 2);
    assert_eq!(size.per_token, Bytes(5 * 2 + 3 * (128 + 64) * 2 / 4));
    // Vectors and gates that wait for an entry: of 128 tokens, or of 4 tokens twice with the indexer's.
    assert_eq!(size.per_sequence, Bytes(2 * (5 * 2 * 128 * 128 + 3 * 2 * 8 * (128 + 64))));
}

/// A new token after 8,191 sees 128 near keys, and 64 entries or the best 256 of 2,048.
#[test]
fn decoding_reads_near_keys_and_entries() {
    let model = load("deepseek_v4");
    let pass = ServingPass { cached: 8191, expert_ranks: 1, expert_product: None, verifies: false };
    let lowering = Lowering { sequence_length: 1, ..Lowering::new(&model) };
    let graph = ServingGraph::new(&model, &lowering, pass).unwrap();
    let operators = graph.segments.iter().flat_map(|segment| segment.operators().iter());
    let mut keys: Vec<u64> = operators
        .flat_map(|op| &op.forward)
        .filter_map(|step| match step.kernel {
            Kernel::FusedAttention(core) => Some(core.keys),
            _ => None,
        })
        .collect();
    keys.sort_unstable();
    keys.dedup();
    assert_eq!(keys, [128 + 64, 128 + 256]);
}

/// The published files list the tokens per entry, one more than layers.
#[test]
fn published_lists_give_the_same_layers() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transformers/deepseek_v4.json");
    let mut config: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
    let object = config.as_object_mut().unwrap();
    object.remove("layer_types");
    object.remove("mlp_layer_types");
    object.insert("num_hash_layers".to_owned(), 3.into());
    object.insert("compress_ratios".to_owned(), serde_json::json!([128, 128, 128, 4, 128, 4, 128, 4, 0]));
    let read = workloads::import::hugging_face::parse_config("x", "config.json", &config.to_string()).unwrap();
    let listed = load("deepseek_v4");
    assert_eq!((read.layers_in_order(), read.parameters()), (listed.layers_in_order(), listed.parameters()));
    assert_eq!(read.layers_in_order()[3].keys, KeyChoice::Indexed);
}
