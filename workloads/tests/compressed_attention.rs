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

/// The model has eight layers of width d = 1,024 with four streams. Attention has 16 heads of 128, low-rank queries of
/// 256, and 4 groups of heads with results of rank 256. A token uses 2 of 16 experts and a shared one, all 512 wide.
/// Five layers see all entries, of 128 tokens each. In three layers, an indexer with 8 heads of 64 chooses 256 entries
/// of 4 tokens each. The variables count forward multiply-additions per token.
#[test]
fn a_step_has_the_operations_counted_by_hand() {
    let model = load("deepseek_v4");
    let (d, s, vocabulary) = (1024_u128, 4096_u128, 32_768_u128);
    let attention = d * 256 + 256 * 2048 + d * 128 + 4 * 512 * 256 + 4 * 256 * d;
    let experts = d * 16 + (2 + 1) * 3 * d * 512;
    // A layer mixes the streams twice. Each time a product makes 4 weights into the branch, 4 out of it, and a matrix
    // of 4 x 4.
    let streams = 2 * (4 + 4 + 16) * 4 * d;
    let common = attention + experts + streams;
    // Two products make vectors and gates. Chosen entries overlap, so each token has two of both.
    let all_entries = 2 * d * 128;
    let chosen_entries = 2 * d * 2 * 128;
    let index = 2 * d * 2 * 64 + 256 * 8 * 64 + d * 8;
    // The head has the product that makes four streams' weights, and the logits.
    let head = 4 * 4 * d + d * vocabulary;
    let products = 8 * common + 5 * all_entries + 3 * (chosen_entries + index) + head;
    // `near` is the mean number of keys in the window of 128: the first queries see fewer. A query also sees on average
    // 16 of 32 entries, or 256 - 256² / 2,048 of 1,024 entries.
    let near = 128 - 128 * 128 / (2 * 4096);
    let scores = 2 * 2048 * (5 * (near + 16) + 3 * (near + 256 - 32));
    let indexed = 3 * 8 * 64 * (512 + 2 * (256 - 32));
    // The indexer's input has no gradient. The forward pass scores half of the entries on average; the backward pass
    // covers only the chosen ones.
    let all = s * (6 * products - 2 * 3 * index + 6 * scores + 2 * indexed);
    assert_eq!(model.necessary_training_flops(1, 4096, 32_768), Flops(all));
    // `training_flops` counts the scores of all tokens and all entries.
    let more = 2 * 2048 * (5 * (4096 + 32 - near - 16) + 3 * (4096 + 1024 - near - 224));
    assert_eq!(model.training_flops(1, 4096, 32_768), Flops(all + s * 6 * more));
}

/// Kernels do the operations of the closed form, and more in the indexer's backward pass.
#[test]
fn kernels_do_the_operations_of_the_closed_form() {
    let model = load("deepseek_v4");
    let lowering = Lowering { attention: Attention::Unfused, sequence_length: 4096, ..Lowering::new(&model) };
    let graph = TrainingGraph::new(&model, &lowering).unwrap();
    // The indexer learns from attention's probabilities, so its backward pass computes attention's scores on the chosen
    // entries again, and its own heads' scores.
    let target = 3 * 4096 * 2 * 224 * (16 * 128 + 8 * 64_u128);
    assert_eq!(graph.kernel_flops().0, model.training_flops(1, 4096, 32_768).0 + target);
}

/// A layer keeps four streams of 1,024 elements per token between its branches, and a pipeline stage sends four
/// streams.
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
    // Each of the two mixings per layer keeps the streams that it reads. The first one reads the segment's input, so
    // `streams` holds the results of all mixings but the last.
    let layers = model.layers_per_block();
    assert_eq!(streams.len() as u64, 2 * layers - 1, "{streams:?}");
}

/// The bf16 cache holds the last 128 keys, of 128 elements each, in every layer. Five layers add an entry of 128
/// elements per 128 tokens. Three layers add, per 4 tokens, an entry of 128 elements and an indexer key of 64.
#[test]
fn the_cache_has_windows_and_entries() {
    let size = CacheSize::of_model(&load("deepseek_v4"), 1, DataType::Bf16);
    let windows: Vec<u64> = size.windows.iter().map(|(tokens, bytes)| tokens * bytes.0).collect();
    assert_eq!(windows.iter().sum::<u64>(), 8 * 128 * 128 * 2);
    assert_eq!(size.per_token, Bytes(5 * 2 + 3 * (128 + 64) * 2 / 4));
    // The cache also holds the vectors and gates of tokens whose entry is incomplete. Five layers hold one of each for
    // 128 tokens. Three layers hold two of each for 4 tokens, for entries and for indexer keys.
    assert_eq!(size.per_sequence, Bytes(2 * (5 * 2 * 128 * 128 + 3 * 2 * 8 * (128 + 64))));
}

/// A new token after 8,191 cached ones sees 128 near keys, and all 64 entries of 128 tokens or the best 256 of 2,048
/// entries of 4 tokens.
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

/// Published files list the tokens per entry of each layer, and one more number. Such a list gives the same model as
/// `layer_types`.
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
