//! Mixers other than full attention over all keys: linear attention, scans by channels, sparse attention with an
//! indexer, and layers that differ in heads. The tests compare operations with hand counts, and check rules that hold
//! for every model.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use coplace_workloads as workloads;
use sim::cost::{CostModel, Span};
use sim::hardware::Accelerator;
use sim::kernel::{DataType, FusedAttention, Kernel};
use std::path::Path;
use workloads::import::hugging_face::parse_config;
use workloads::layer_list::{KeyChoice, KeyWindow, LayerKind, LayerList, Mixer};
use workloads::linear_attention::{LinearAttention, StateDecay};
use workloads::serving::{CacheSize, ServingGraph, ServingPass};
use workloads::training::Attention;
use workloads::variations::Indexer;
use workloads::{Batch, Layout, Lowering, Model, RecomputeSet, SegmentKind, TrainingGraph};

fn load(name: &str) -> Model {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transformers").join(format!("{name}.json"));
    Model::load_file(&file).unwrap()
}

const MIXED: [&str; 39] = [
    "bamba",
    "deepseek_v32",
    "deepseek_v4",
    "deepseek_v4_windows",
    "dots1_windows",
    "exaone_moe",
    "falcon_h1",
    "falcon_h1_norm",
    "falcon_mamba",
    "gemma2_classes",
    "gemma4_text",
    "gemma4_text_experts",
    "glm_moe_dsa",
    "glm_moe_dsa_shared_index",
    "granitemoehybrid",
    "granitemoehybrid_dense",
    "jamba",
    "kimi_linear",
    "laguna",
    "lfm2",
    "lfm2_biases",
    "lfm2_moe",
    "lfm3",
    "llama_classes",
    "mamba",
    "mimo_v2_flash",
    "minimax",
    "minimax_m3",
    "qwen3_5_moe_text",
    "qwen3_5_text",
    "qwen3_next",
    "qwen3_next_dense_layers",
    "rwkv",
    "rwkv_narrow",
    "step3p5",
    "zamba",
    "zamba2",
    "zamba2_one_block",
    "zamba_biases",
];

fn lowering(model: &Model, sequence_length: u64) -> Lowering {
    Lowering { sequence_length, micro_batch: 2, ..Lowering::new(model) }
}

/// The graph's parameters are those of the closed form. Unfused kernels do the operations of the closed form, except in
/// models with an indexer.
#[test]
fn graphs_have_the_parameters_and_operations_of_the_closed_form() {
    for name in MIXED {
        let model = load(name);
        for attention in [Attention::Fused, Attention::Unfused] {
            let lowering = Lowering { attention, ..lowering(&model, 2048) };
            let graph = TrainingGraph::new(&model, &lowering).unwrap();
            assert_eq!(graph.parameters().per_device_count(), model.parameters(), "{name}");
            if attention == Attention::Unfused && model.variations.indexer.is_none() {
                assert_eq!(graph.kernel_flops(), model.training_flops(2, 2048, model.vocabulary), "{name}");
            }
        }
    }
}

/// Under tensor parallelism, the shares of two devices sum to the whole model.
#[test]
fn split_models_sum_to_the_whole() {
    for name in MIXED {
        let model = load(name);
        // Devices that share a group of a scan's projections each hold the group, so their shares exceed the whole.
        if model.variations.scan.is_some_and(|scan| !scan.groups.is_multiple_of(2)) {
            continue;
        }
        let split = Lowering { tensor_parallel: 2, ..lowering(&model, 2048) };
        for sequence_parallel in [false, true] {
            let graph = TrainingGraph::new(&model, &Lowering { sequence_parallel, ..split }).unwrap();
            let parameters = graph.parameters();
            let whole = 2 * (parameters.sharded + parameters.expert) + parameters.replicated;
            assert_eq!(whole, model.parameters(), "{name}");
        }
    }
}

/// Gated delta net, one head of 128 x 128 in chunks of 64. Multiply-additions of a chunk: keys 64 x 64 x 128, inverse
/// 64 x 64 x 11, W and U 64 x 256 x 64, W S and K^T V 64 x 128 x 128 each, Q K^T 64 x 64 x 128, P V 64 x 128 x 64,
/// Q S 64 x 128 x 128.
#[test]
fn a_gated_delta_net_has_the_operations_counted_by_hand() {
    let net = LinearAttention {
        heads: 1,
        key_heads: 1,
        key_dim: 128,
        value_dim: 128,
        decay: StateDecay::PerHead,
        delta_rule: true,
        convolution: 4,
        gate_rank: None,
        norm_of_head: true,
        chunk: 64,
    };
    let chunk = 524_288 + 45_056 + 1_048_576 + 2 * 1_048_576 + 524_288 + 524_288 + 1_048_576;
    let (forward, both) = net.operations(4096);
    assert_eq!(forward, 2 * chunk / 64);
    // The backward pass does twice the forward work, except for the inverse: its gradient is two products of 64 x 64 x
    // 64.
    assert_eq!(both, 2 * (3 * (chunk - 45_056) + 45_056 + 2 * 262_144) / 64);
    // Every head does the same work. The work per token does not depend on the sequence length.
    let heads = LinearAttention { heads: 32, key_heads: 16, ..net };
    assert_eq!(heads.operations(65_536).0, 32 * forward);
    assert_eq!(net.operations(1 << 20), net.operations(4096));
}

/// Lightning attention, one head of 128 in blocks of 256: per token 2 x 2 x (256 x 128 + 128 x 128) operations.
#[test]
fn lightning_attention_has_the_operations_counted_by_hand() {
    let lightning = LinearAttention {
        heads: 1,
        key_heads: 1,
        key_dim: 128,
        value_dim: 128,
        decay: StateDecay::Constant,
        delta_rule: false,
        convolution: 0,
        gate_rank: None,
        norm_of_head: false,
        chunk: 256,
    };
    assert_eq!(lightning.operations(8192), (196_608, 3 * 196_608));
}

/// DeepSeek-V3.2's indexer at 131,072 tokens: 64 heads of 128 score 65,536 tokens on average; 2,048 tokens are chosen;
/// the mean is 16 less, because the first queries see fewer tokens.
#[test]
fn an_indexer_has_the_operations_counted_by_hand() {
    let indexer = Indexer {
        heads: 64,
        head_dim: 128,
        chosen: 2048,
        block: 1,
        tokens_per_key: 1,
        query_rank: Some(1536),
        weighed: true,
        scaled: None,
    };
    assert_eq!(indexer.score_operations(131_072), 2 * 64 * 128 * 65_536);
    assert_eq!(indexer.chosen_keys(131_072), 2032);
    assert_eq!(indexer.chosen_keys(1024), 512);
    // Queries 1536 x 8192, keys 7168 x 128, weights 7168 x 64, and the norm's gain and bias.
    assert_eq!((indexer.matrices(7168), indexer.vectors()), (12_582_912 + 917_504 + 458_752, 256));
    // The graph's kernel of the indexer's scores does the operations of the closed form.
    let model = load("deepseek_v32");
    let length = 2048;
    let graph = TrainingGraph::new(&model, &lowering(&model, length)).unwrap();
    let layer = &graph.segment(SegmentKind::Layer).unwrap();
    let forward = layer.forward_graph();
    let scores = forward.node_weights().find(|node| node.name.contains("index.scores.forward.scores")).unwrap();
    let Kernel::Epilogue(epilogue) = scores.kernel else { panic!("{:?}", scores.kernel) };
    let own = model.variations.indexer.unwrap();
    assert_eq!(epilogue.contraction.flops().0, u128::from(2 * length) * own.score_operations(length));
}

/// Returns a function that finds a kernel of DeepSeek-V3.2's indexer by the end of its name. The pass has `new` tokens
/// in each of `batch` sequences, after 131,072 cached tokens.
fn indexer_kernels(batch: u64, new: u64) -> impl Fn(&str) -> Kernel {
    let model = Model::load("deepseek-v3.2").unwrap();
    let lowering = Lowering { micro_batch: batch, sequence_length: new, ..Lowering::new(&model) };
    let pass = ServingPass { cached: 131_072, expert_ranks: 1, expert_product: None, verifies: false };
    let graph = ServingGraph::new(&model, &lowering, pass).unwrap();
    let layer = graph.segments.into_iter().find(|segment| segment.kind == SegmentKind::Layer).unwrap();
    let forward = layer.forward_graph();
    move |name| forward.node_weights().find(|node| node.name.ends_with(&format!("index.scores.{name}"))).unwrap().kernel
}

/// Decoding 16 sequences: every key is read once in fp8 with its scale (132 B). The heads' scores stay on chip; their
/// sum is written in fp32 (4 B) and read twice by the selection.
#[test]
fn an_indexer_decodes_from_132_bytes_per_token() {
    let kernel = indexer_kernels(16, 1);
    let keys = 16 * 131_073;
    let scores = kernel("forward.scores");
    assert_eq!(scores.flops().0, 2 * u128::from(keys * 64 * 128_u64));
    let queries = 16 * 64 * (128 + 4);
    assert_eq!(scores.compulsory_bytes().0, keys * (132 + 4) + queries);
    assert_eq!(kernel("forward").compulsory_bytes().0, keys * 4 * 2 + 16 * 2048 * 4);
    // Queries and the new key are read in bf16, and written in fp8 with a scale.
    assert_eq!(kernel("forward.convert").compulsory_bytes().0, 16 * 65 * (256 + 132));
    let Kernel::Epilogue(scores) = scores else { panic!("{scores:?}") };
    assert_eq!((scores.contraction.operand, scores.summed), (DataType::Fp8, 64));
    // On an H200 the kernel is bound by memory bandwidth: 136 B per key at 0.766 of 4.8 TB/s.
    let chip = CostModel::new(Accelerator::built_in("h200").unwrap()).unwrap();
    let time = chip.cost_of_kernel(&Kernel::Epilogue(scores), Span::AllCores).latency.0;
    let streamed = (keys * 136) as f64 / (0.766 * 4.8e12);
    assert!((time / streamed - 1.0).abs() < 0.01, "{time} {streamed}");
}

/// A prompt's chunk of 8,192 tokens follows 131,072 cached tokens. On average, every query scores all cached keys and
/// half of the new ones.
#[test]
fn an_indexer_scores_a_prompt_at_the_rate_of_fp8() {
    let kernel = indexer_kernels(1, 8192);
    let (queries, keys) = (8192_u64, 131_072 + 4096_u64);
    let scores = kernel("forward.scores");
    assert_eq!(scores.flops().0, 2 * u128::from(queries * 64 * 128) * u128::from(keys));
    assert_eq!(scores.compulsory_bytes().0, queries * 64 * (128 + 4) + keys * 132 + queries * keys * 4);
    assert_eq!(kernel("forward").compulsory_bytes().0, queries * keys * 4 * 2 + queries * 2048 * 4);
    let chip = Accelerator::built_in("h200").unwrap();
    let cost = CostModel::new(chip.clone()).unwrap().cost_of_kernel(&scores, Span::AllCores);
    let peak = chip.peak_flops(DataType::Fp8).unwrap().0;
    let least = scores.flops().as_f64() / (peak * chip.calibration.tensor_achieved_fraction);
    assert!((1.0..1.05).contains(&(cost.latency.0 / least)), "{} {least}", cost.latency.0);
}

/// Llama 4 Scout: of 48 layers, 12 see all earlier tokens and 36 those of their chunk of 8,192.
#[test]
fn chunks_leave_the_scores_of_their_own_tokens() {
    let model = Model::load("llama4-scout").unwrap();
    let (heads, width) = (40_u128, 128_u128);
    // In five whole chunks, a query sees 4,096 keys on average instead of 20,480.
    let s = 5 * 8192_u128;
    let all = model.training_flops(1, s as u64, model.vocabulary).0;
    let necessary = model.necessary_training_flops(1, s as u64, model.vocabulary).0;
    assert_eq!(all - necessary, 6 * s * 2 * heads * width * (12 * (s - s / 2) + 36 * (s - 4096)));
    // The sequence has four whole chunks and one of 1,000 tokens. Fused kernels compute half of every chunk's scores in
    // seven products. Unfused kernels compute all scores in six products.
    let s = 4 * 8192 + 1000_u128;
    let flops = |attention| {
        let lowering = Lowering { sequence_length: s as u64, attention, ..Lowering::new(&model) };
        TrainingGraph::new(&model, &lowering).unwrap().kernel_flops().0
    };
    let scores = 12 * s * s / 2 + 36 * (4 * 8192 * 8192 + 1000 * 1000) / 2;
    let products = [Attention::Fused, Attention::Unfused].map(flops);
    assert_eq!(products[1] - products[0], 2 * heads * width * (6 * 48 * s * s - 7 * scores));
    // Chunks change nothing in a sequence that is no longer than a chunk.
    let whole = Model { list: LayerList::default(), layers: 48, ..model.clone() };
    assert_eq!(
        model.necessary_training_flops(1, 8192, model.vocabulary),
        whole.necessary_training_flops(1, 8192, model.vocabulary)
    );
}

/// Returns the kernels of attention's core in Llama 4 Scout's layers with chunks.
fn chunk_kernels(batch: u64, new: u64, cached: u64) -> Vec<FusedAttention> {
    let model = Model::load("llama4-scout").unwrap();
    let kind = model.layers_in_order()[0];
    assert_eq!(kind.window, Some(KeyWindow::Chunk { chunk: 8192 }));
    let local = model.with_uniform_kind(&kind);
    let lowering = Lowering { micro_batch: batch, sequence_length: new, ..Lowering::new(&local) };
    let pass = ServingPass { cached, expert_ranks: 1, expert_product: None, verifies: false };
    let graph = ServingGraph::new(&local, &lowering, pass).unwrap();
    let layer = graph.segments.into_iter().find(|segment| segment.kind == SegmentKind::Layer).unwrap();
    let kernels = layer.forward_graph().node_weights().map(|node| node.kernel).collect::<Vec<_>>();
    kernels
        .into_iter()
        .filter_map(|kernel| if let Kernel::FusedAttention(a) = kernel { Some(a) } else { None })
        .collect()
}

/// A new token scores itself and the earlier tokens of its chunk, cached or new. The test counts these scores one by
/// one.
#[test]
fn prompts_in_chunks_score_the_tokens_counted_one_by_one() {
    for cached in [0, 1000, 8192, 12_288, 100_000] {
        for new in [2, 700, 8192, 10_000, 30_000] {
            let kernels = chunk_kernels(2, new, cached);
            let seen: u64 = (cached..cached + new).map(|place| place % 8192 + 1).sum();
            let scores: u128 = kernels.iter().map(FusedAttention::score_count).sum();
            // A causal kernel counts only half of a token's score with itself, so the other half is added.
            assert_eq!(2 * scores + 2 * 40 * u128::from(new), 2 * 2 * 40 * u128::from(seen), "{cached} {new}");
        }
    }
}

/// Decoding reads all tokens of a sequence that is no longer than a chunk. In a longer sequence it reads half of a
/// chunk and the token itself.
#[test]
fn decoding_in_chunks_reads_half_a_chunk() {
    for (cached, keys) in [(0, 1), (8000, 8001), (8191, 8192), (8192, 4097), (131_072, 4097)] {
        let [kernel] = chunk_kernels(3, 1, cached)[..] else { panic!("one kernel") };
        assert_eq!((kernel.batch, kernel.queries, kernel.keys, kernel.kv_heads), (3, 5, keys, 8), "{cached}");
    }
    // 12 layers cache all tokens, and 36 cache at most a chunk. A token has 8 keys and 8 values of 128 elements in
    // bf16.
    let cache = CacheSize::of_model(&Model::load("llama4-scout").unwrap(), 1, DataType::Bf16);
    let token = 8 * 2 * 128 * 2;
    assert_eq!(cache.of_sequence(131_072).0, token * (12 * 131_072 + 36 * 8192));
    assert_eq!(cache.of_sequence(4000).0, token * 48 * 4000);
}

/// A list that names full attention for every layer gives a model without linear attention.
#[test]
fn a_list_of_full_attention_is_the_plain_model() {
    let listed = load("qwen3_next_full");
    assert!(listed.list.is_empty() && listed.variations.linear.is_none(), "{:?}", listed.list);
    assert_eq!(listed.layers, 8);
    let kind = listed.uniform_kind();
    assert_eq!((kind.mixer, kind), (Mixer::Attention, LayerKind::default()));
    // Context parallelism, which linear attention refuses, is allowed.
    let split = Lowering { context_parallel: 2, ..lowering(&listed, 2048) };
    assert!(TrainingGraph::new(&listed, &split).is_ok());
    let mixed = load("qwen3_next");
    let error = TrainingGraph::new(&mixed, &Lowering { context_parallel: 2, ..lowering(&mixed, 2048) }).unwrap_err();
    assert!(error.to_string().contains("linear attention goes along the whole sequence"), "{error}");
}

/// Kept bytes and operations of linear attention grow with the sequence, not with its square.
#[test]
fn linear_attention_grows_linearly_with_the_sequence() {
    for name in ["kimi_linear", "minimax", "qwen3_next"] {
        let model = load(name);
        let linear = model.with_uniform_kind(&LayerKind { mixer: Mixer::Linear, ..model.uniform_kind() });
        let at = |length: u64| {
            let graph = TrainingGraph::new(&linear, &lowering(&linear, length)).unwrap();
            let layer = graph.segment(SegmentKind::Layer).unwrap().clone();
            (layer.saved_bytes(&RecomputeSet::none()).0, layer.forward_flops().0, layer.backward_flops().0)
        };
        let (one, four) = (at(2048), at(8192));
        assert_eq!(four, (4 * one.0, 4 * one.1, 4 * one.2), "{name}");
    }
}

/// Returns the seconds of a layer's forward and backward kernels on one H100, one after the other.
fn layer_seconds(model: &Model, sequence_length: u64) -> f64 {
    let cost = CostModel::new(Accelerator::built_in("h100_80gb_sxm").unwrap()).unwrap();
    let lowering = Lowering { micro_batch: 1, ..lowering(model, sequence_length) };
    let graph = TrainingGraph::new(model, &lowering).unwrap();
    let layer = graph.segment(SegmentKind::Layer).unwrap();
    let (forward, backward) = (layer.forward_graph(), layer.backward_graph(&RecomputeSet::none()));
    let kernels = forward.node_weights().chain(backward.node_weights());
    kernels.map(|node| cost.latency_of_kernel(&node.kernel, Span::AllCores).0).sum()
}

#[test]
fn the_time_of_linear_attention_grows_linearly_with_the_sequence() {
    for name in ["kimi_linear", "minimax", "qwen3_next"] {
        let model = load(name);
        let alike = |mixer| model.with_uniform_kind(&LayerKind { mixer, ..model.uniform_kind() });
        let ratio = |model: &Model| layer_seconds(model, 65_536) / layer_seconds(model, 16_384);
        let (linear, full) = (ratio(&alike(Mixer::Linear)), ratio(&alike(Mixer::Attention)));
        assert!((3.8..4.05).contains(&linear), "{name}: {linear}");
        assert!(full > 5.0, "{name}: {full}");
    }
}

/// A convolution of 3 tokens between gates, 1,024 wide, has four products of 1,024 x 1,024 per token, whatever the
/// sequence.
#[test]
fn a_short_convolution_has_four_products_and_grows_with_the_tokens() {
    let model = load("lfm2");
    let convolution = model.with_uniform_kind(&LayerKind { mixer: Mixer::Convolution, ..model.uniform_kind() });
    let graph = TrainingGraph::new(&convolution, &lowering(&convolution, 2048)).unwrap();
    let layer = graph.segment(SegmentKind::Layer).unwrap();
    let named = layer.operators().iter().filter(|op| op.name.starts_with("layer.convolution"));
    let flops: u128 = named.clone().flat_map(|op| &op.forward).map(|step| step.kernel.flops().0).sum();
    assert_eq!(flops, 2 * u128::from(lowering(&convolution, 2048).micro_batch) * 2048 * 4 * 1024 * 1024);
    let core = named.clone().find(|op| op.name.ends_with(".core")).unwrap();
    assert_eq!(core.parameters.sharded, 3 * 1024);
    let ratio = layer_seconds(&convolution, 65_536) / layer_seconds(&convolution, 16_384);
    assert!((3.8..4.05).contains(&ratio), "{ratio}");
}

/// Returns DeepSeek-V3.2, GLM 5 and MiniMax M3 with their published sizes of attention.
fn published_attention() -> [(&'static str, Model); 3] {
    let resized = |name: &str, sizes: &[(&str, u64)]| {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transformers").join(format!("{name}.json"));
        let mut config: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        for (key, value) in sizes {
            config[key] = (*value).into();
        }
        parse_config(name, "config.json", &config.to_string()).unwrap()
    };
    let latent = [("kv_lora_rank", 512), ("qk_rope_head_dim", 64), ("index_head_dim", 128), ("index_topk", 2048)];
    let deepseek = [
        ("hidden_size", 7168),
        ("num_attention_heads", 128),
        ("num_key_value_heads", 128),
        ("q_lora_rank", 1536),
        ("qk_nope_head_dim", 128),
        ("v_head_dim", 128),
        ("index_n_heads", 64),
    ];
    let glm = [
        ("hidden_size", 6144),
        ("num_attention_heads", 64),
        ("num_key_value_heads", 64),
        ("q_lora_rank", 2048),
        ("qk_nope_head_dim", 192),
        ("v_head_dim", 256),
        ("index_n_heads", 32),
    ];
    let minimax = [
        ("hidden_size", 6144),
        ("num_attention_heads", 64),
        ("head_dim", 128),
        ("index_head_dim", 128),
        ("index_block_size", 128),
        ("index_topk_blocks", 16),
    ];
    [
        ("deepseek_v32", resized("deepseek_v32", &[&latent[..], &deepseek].concat())),
        ("glm_moe_dsa", resized("glm_moe_dsa", &[&latent[..], &glm].concat())),
        ("minimax_m3", resized("minimax_m3", &minimax)),
    ]
}

/// Attention to chosen tokens, with its indexer, takes no longer than full attention of the same shape where the
/// sequence is long, and grows more slowly.
#[test]
fn chosen_tokens_are_never_dearer_than_all_in_long_sequences() {
    for (name, model) in published_attention() {
        let alike = |keys| model.with_uniform_kind(&LayerKind { keys, ..model.uniform_kind() });
        let kinds = [KeyChoice::Reused, KeyChoice::Indexed, KeyChoice::All].map(alike);
        let at = |length| kinds.each_ref().map(|model| layer_seconds(model, length));
        let (shorter, longer) = (at(65_536), at(131_072));
        for [reused, chosen, all] in [shorter, longer] {
            assert!(reused < chosen && chosen < all, "{name}: {reused}, {chosen}, {all}");
        }
        assert!(longer[1] / shorter[1] < longer[2] / shorter[2], "{name}: {shorter:?}, {longer:?}");
        // If a sequence has no more tokens than are chosen, attention takes as long as full attention.
        let [reused, _, all] = at(512);
        assert!((reused - all).abs() < 1e-12, "{name}: {reused}, {all}");
    }
}

/// Context-parallel devices share a sequence's queries. Each device scores its own queries after it receives all keys
/// of the indexer.
#[test]
fn an_indexer_runs_under_context_parallelism() {
    let model = load("deepseek_v32");
    let at = |context_parallel| {
        let lowering = Lowering { context_parallel, ..lowering(&model, 8192) };
        let graph = TrainingGraph::new(&model, &lowering).unwrap();
        let layer = graph.segment(SegmentKind::Layer).unwrap().clone();
        (layer.forward_flops().0, layer.forward_graph())
    };
    let (whole, split) = (at(1), at(4));
    assert_eq!(whole.0, 4 * split.0);
    assert!(split.1.node_weights().any(|node| node.name.ends_with("index.scores.forward.all_gather")));
    let method = workloads::training::ContextMethod::Ulysses;
    let ulysses = Lowering { context_parallel: 4, context_method: method, ..lowering(&model, 8192) };
    let error = TrainingGraph::new(&model, &ulysses).unwrap_err().to_string();
    assert!(error.contains("use the ring method"), "{error}");
}

/// Full recomputation keeps a layer's input, whatever its mixer; everything else is rebuilt.
#[test]
fn full_recomputation_keeps_inputs_alone() {
    for name in MIXED {
        let model = load(name);
        let graph = TrainingGraph::new(&model, &lowering(&model, 2048)).unwrap();
        let layer = graph.segment(SegmentKind::Layer).unwrap();
        let full = layer.graph.full_recompute_set();
        let streams = model.variations.streams.map_or(1, |streams| streams.count);
        assert_eq!(layer.saved_bytes(&full).0, 2 * 2 * 2048 * model.hidden * streams, "{name}");
        assert!(layer.saved_bytes(&RecomputeSet::none()) > layer.saved_bytes(&full), "{name}");
    }
}

/// Nemotron-NAS, counted by hand because transformers has no class for it. One layer has 4 key heads and an MLP of
/// 1,536 (two thirds of twice 1,024, rounded up to a multiple of 256). One has no attention. One has 2 key heads and no
/// MLP.
#[test]
fn a_searched_llama_has_the_parameters_counted_by_hand() {
    let block = |group: serde_json::Value, factor: serde_json::Value| {
        serde_json::json!({
            "attention": {"n_heads_in_group": group, "no_op": group.is_null(), "replace_with_linear": false},
            "ffn": {"ffn_mult": factor, "no_op": factor.is_null(), "replace_with_linear": false},
        })
    };
    let null = serde_json::Value::Null;
    let blocks = [block(4.into(), 2.0.into()), block(null.clone(), 1.0.into()), block(8.into(), null)];
    let config = serde_json::json!({
        "model_type": "nemotron-nas", "hidden_size": 1024, "num_attention_heads": 16, "num_hidden_layers": 3,
        "num_key_value_heads": null, "intermediate_size": null, "max_position_embeddings": 4096, "vocab_size": 1000,
        "tie_word_embeddings": false, "block_configs": blocks,
    });
    let model = parse_config("searched", "config.json", &config.to_string()).unwrap();
    let first = 2 * 1024 * 1024 + 2 * 256 * 1024 + 3 * 1024 * 1536 + 2 * 1024;
    let second = 3 * 1024 * 768 + 1024;
    let third = 2 * 1024 * 1024 + 2 * 128 * 1024 + 1024;
    assert_eq!(model.parameters(), first + second + third + 2 * 1000 * 1024 + 1024);
    for tensor_parallel in [1, 2] {
        let lowering = Lowering { tensor_parallel, ..lowering(&model, 1024) };
        assert!(TrainingGraph::new(&model, &lowering).is_ok());
    }
    let error = TrainingGraph::new(&model, &Lowering { tensor_parallel: 3, ..lowering(&model, 1024) }).unwrap_err();
    assert!(error.to_string().contains("divisor of the 16 heads"), "{error}");
}

/// An invalid list of layers is refused, and the error names key, value and cure.
#[test]
fn bad_lists_of_layers_are_named() {
    let changed = |name: &str, change: &dyn Fn(&mut serde_json::Map<String, serde_json::Value>)| {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transformers").join(format!("{name}.json"));
        let mut config: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(file).unwrap()).unwrap();
        change(config.as_object_mut().unwrap());
        parse_config(name, "config.json", &config.to_string()).unwrap_err().to_string()
    };
    let set = |name: &str, key: &str, value: serde_json::Value| {
        changed(name, &|config| drop(config.insert(key.to_owned(), value.clone())))
    };
    let json = |text: &str| serde_json::from_str(text).unwrap();
    for (message, parts) in [
        (
            set("qwen3_next", "layer_types", json(r#"["full_attention", "lineer_attention"]"#)),
            ["`layer_types`", "linear"],
        ),
        (set("qwen3_next", "layer_types", json(r#"["full_attention"]"#)), ["num_hidden_layers", "it has 1"]),
        (set("qwen3_next", "linear_num_key_heads", 3.into()), ["linear_num_key_heads", "divisor"]),
        (
            changed("kimi_linear", &|config| {
                config.remove("layer_types");
                config.insert("linear_attn_config".into(), json(r#"{"full_attn_layers": [4], "kda_layers": [1, 2]}"#));
            }),
            ["linear_attn_config", "kda_layers"],
        ),
        (
            changed("minimax", &|config| {
                config.remove("layer_types");
                config.insert("attn_type_list".into(), json("[0, 1, 2]"));
            }),
            ["attn_type_list", "0 for linear"],
        ),
        (set("glm_moe_dsa", "indexer_types", json(r#"["shared", "full"]"#)), ["indexer_types", "the first one"]),
        (set("gemma4_text", "hidden_size_per_layer_input", 64.into()), ["hidden_size_per_layer_input", "not covered"]),
        (set("gemma4_text", "num_kv_shared_layers", 2.into()), ["num_kv_shared_layers", "share keys and values"]),
        (
            set("laguna", "num_attention_heads_per_layer", json("[16, 30]")),
            ["num_attention_heads_per_layer", "multiples"],
        ),
        (set("laguna", "gating", json(r#""per-token""#)), ["gating", "per-head"]),
        (set("falcon_h1", "projectors_bias", true.into()), ["projectors_bias", "mamba_proj_bias"]),
        (set("jamba", "attn_layer_offset", 9.into()), ["attn_layer_offset", "attn_layer_period"]),
        (set("deepseek_v4", "num_key_value_heads", 2.into()), ["num_key_value_heads", "one key serves all heads"]),
        (set("deepseek_v4", "n_shared_experts", 2.into()), ["n_shared_experts", "one shared expert"]),
        (set("deepseek_v4", "o_groups", 3.into()), ["o_groups", "num_attention_heads"]),
        (set("llama", "model_type", "albert".into()), ["albert", "share their weights"]),
        (set("llama", "block_configs", json("[{}]")), ["block_configs", "not covered"]),
        (
            set("llama_classes", "architectures", json(r#"["LlamaForMultipleChoice"]"#)),
            ["LlamaForMultipleChoice", "...ForTokenClassification"],
        ),
    ] {
        for part in parts {
            assert!(message.contains(part), "{message}");
        }
    }
}

/// A tensor-parallel device holds whole key heads of linear attention, or shares one key head with other devices.
#[test]
fn a_tensor_degree_cuts_no_key_head_of_linear_attention() {
    let mut model = load("qwen3_next");
    let linear = model.variations.linear.as_mut().unwrap();
    (linear.heads, linear.key_heads) = (12, 6);
    (model.heads, model.kv_heads) = (12, 12);
    let refused = |tensor: u32| {
        let asked = Lowering { tensor_parallel: tensor, ..lowering(&model, 1024) };
        TrainingGraph::new(&model, &asked).err().map(|error| error.to_string())
    };
    // Two devices hold three whole key heads each. Four devices would split heads, so they are refused.
    assert_eq!(refused(2), None);
    let error = refused(4).unwrap();
    assert!(error.contains("a divisor or a multiple of the 6 key heads of linear attention"), "{error}");
    let batch = Batch { micro_batch: 1, global_batch: 4, sequence_length: 1024 };
    let layout = Layout { tensor: 4, ..Layout::default() };
    let error = layout.check_model_and_batch(&model, &batch).unwrap_err().to_string();
    assert!(
        error.contains("of the 12 heads of linear attention, a divisor or a multiple of its 6 key heads"),
        "{error}"
    );
}
