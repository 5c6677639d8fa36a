//! Bytes of weights and caches against hand formulas.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use coplace_serving::{ServingEngine, ServingFormats, ServingPlan, memory_of_plan};
use sim::files::carried::Files;
use sim::hardware::Accelerator;
use sim::kernel::{DataType, Kernel};
use sim::units::Bytes;
use std::path::Path;
use workloads::Lowering;
use workloads::Model;
use workloads::serving::{CacheSize, ServingGraph, ServingPass};

fn small(name: &str) -> Model {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../workloads/tests/transformers");
    Model::load_file(&folder.join(format!("{name}.json"))).unwrap()
}

fn cache(model: &Model, tensor: u32) -> CacheSize {
    CacheSize::of_model(model, tensor, DataType::Bf16)
}

fn per_token(bytes: u64) -> CacheSize {
    CacheSize { per_token: Bytes(bytes), ..CacheSize::default() }
}

#[test]
fn a_matrix_that_embedding_and_head_share_is_held_once_on_a_stage() {
    let chip = Accelerator::built_in("h100_80gb_sxm").unwrap();
    let engine = ServingEngine::load_from("vllm", &Files::default()).unwrap();
    let model = Model::load("llama3.2-1b").unwrap();
    let of = |pipeline: u32| {
        let plan = ServingPlan {
            tensor: 1,
            pipeline,
            attention_data: 1,
            expert: 1,
            context: 1,
            formats: ServingFormats::BF16,
        };
        memory_of_plan(&model, &chip, &engine, &plan).unwrap()
    };
    // 1,235,814,400 parameters, as transformers counts them, in bf16.
    assert_eq!(of(1).weights, Bytes(2 * 1_235_814_400));
    // Two stages hold the tied embedding twice. The fullest stage has half the layers and the larger end.
    let layers = of(1).weights_of_layers;
    assert!(of(2).weights.0 >= layers.0 / 2 + 128_256 * 2048 * 2, "{:?}", of(2).weights);
}

#[test]
fn caches_of_six_kinds_of_attention() {
    let built_in = |name: &str| Model::load(name).unwrap();
    // Many heads: Llama 2 7B, 32 layers of 32 keys and values of 128.
    assert_eq!(cache(&built_in("llama2-7b"), 1), per_token(32 * 32 * (128 + 128) * 2));
    // Grouped queries: Llama 3 70B, 80 layers of 8 key heads. Each of 8 devices holds one head, and so does each of 16.
    assert_eq!(cache(&built_in("llama3-70b"), 1), per_token(327_680));
    assert_eq!(cache(&built_in("llama3-70b"), 8), per_token(40_960));
    assert_eq!(cache(&built_in("llama3-70b"), 16), per_token(40_960));
    // Latent: DeepSeek-V3, 61 layers of 512 + 64 numbers, on every device.
    assert_eq!(cache(&built_in("deepseek-v3"), 1), per_token(61 * 576 * 2));
    assert_eq!(cache(&built_in("deepseek-v3"), 8), per_token(61 * 576 * 2));
    // Windows in every second layer: gpt-oss (8 keys of 64, 128 tokens) and Gemma 2 (8 keys of 256, 4096 tokens).
    let windows = |layers: u64, width: u64, window: u64| CacheSize {
        per_token: Bytes(layers * 8 * 2 * width * 2),
        windows: vec![(window, Bytes(layers * 8 * 2 * width * 2))],
        ..CacheSize::default()
    };
    assert_eq!(cache(&built_in("gpt-oss-120b"), 1), windows(18, 64, 128));
    assert_eq!(cache(&built_in("gemma-2-9b"), 1), windows(21, 256, 4096));
    let gemma = cache(&built_in("gemma-2-9b"), 1);
    assert_eq!(gemma.of_sequence(1000).0, 42 * 8192 * 1000);
    assert_eq!(gemma.of_sequence(10_000).0, 21 * 8192 * (10_000 + 4096));
    // Linear attention: 6 layers with 8 states of 64 x 64 in fp32, and 4 inputs of the convolution over 8 values and
    // twice 4 keys of 64; 2 layers with 4 keys of 128.
    let linear = CacheSize {
        per_sequence: Bytes(6 * (8 * 64 * 64 * 4 + 4 * (8 + 2 * 4) * 64 * 2)),
        ..per_token(2 * 4 * (128 + 128) * 2)
    };
    assert_eq!(cache(&small("qwen3_next"), 1), linear);
    // An indexer: DeepSeek-V3.2 with 8 layers of 128 + 32 latent numbers and the indexer's key of 64, in fp8 with an
    // fp32 scale. As published: 61 layers of 512 + 64 numbers and a key of 128 with its scale, 132 B.
    assert_eq!(cache(&small("deepseek_v32"), 1), per_token(8 * ((128 + 32) * 2 + 64 + 4)));
    assert_eq!(cache(&built_in("deepseek-v3.2"), 8), per_token(61 * (576 * 2 + 132)));
    let narrow = CacheSize::of_model(&built_in("deepseek-v3.2"), 8, DataType::Fp8);
    assert_eq!(narrow, per_token(61 * (576 + 132)));
    // Half the bytes in fp8.
    let narrow = CacheSize::of_model(&built_in("llama3-70b"), 1, DataType::Fp8);
    assert_eq!(narrow, per_token(163_840));
}

#[test]
fn weights_of_llama_3_70b() {
    const PARAMETERS: u64 = 70_553_706_496;
    const EMBEDDING: u64 = 128_256 * 8192;
    const NORMS: u64 = (2 * 80 + 1) * 8192;
    let model = Model::load("llama3-70b").unwrap();
    let chip = Accelerator::built_in("b200").unwrap();
    let engine = ServingEngine::load_from("vllm", &Files::default()).unwrap();
    let memory = |plan: &ServingPlan| memory_of_plan(&model, &chip, &engine, plan).unwrap();
    let one = ServingPlan::of_one_device(ServingFormats::BF16);
    assert_eq!(memory(&one).weights.0, 2 * PARAMETERS);
    // Eight devices split all but the norms.
    let eight = ServingPlan { tensor: 8, ..one };
    assert_eq!(memory(&eight).weights.0, 2 * ((PARAMETERS - NORMS) / 8 + NORMS));
    // 40 of the 80 layers, and the larger of embedding and head (with the last norm).
    let stages = ServingPlan { pipeline: 2, ..one };
    let layers = PARAMETERS - 2 * EMBEDDING - 8192;
    assert_eq!(memory(&stages).weights.0, 2 * (layers / 2 + EMBEDDING + 8192));
    // A decoded token's products read all weights but the embedding's and the norms'.
    let lowering = Lowering { sequence_length: 1, ..Lowering::new(&model) };
    let pass = ServingPass { cached: 1000, expert_ranks: 1, expert_product: None, verifies: false };
    let graph = ServingGraph::new(&model, &lowering, pass).unwrap();
    let mut read = 0;
    for segment in &graph.segments {
        for node in segment.forward_graph().node_weights() {
            if let Kernel::Contraction(product) = &node.kernel {
                read += 2 * product.batch * product.k * product.n * segment.repeat;
            }
        }
    }
    assert_eq!(read, 2 * (PARAMETERS - EMBEDDING - NORMS));
}

#[test]
fn sequences_that_fit_are_room_over_cache() {
    let model = Model::load("llama3-8b").unwrap();
    let chip = Accelerator::built_in("h100_80gb_sxm").unwrap();
    let engine = ServingEngine::load_from("vllm", &Files::default()).unwrap();
    let memory = memory_of_plan(&model, &chip, &engine, &ServingPlan::of_one_device(ServingFormats::BF16)).unwrap();
    // 32 layers of 8 keys and values of 128; half a page of 16 tokens to spare.
    let each = 32 * 8 * 2 * 128 * 2 * (4000 + 8);
    assert_eq!(memory.cache_of_sequence(4000).0, each);
    assert_eq!(memory.sequences_that_fit(4000), memory.room_for_cache().0 / each);
    let used = memory.weights.0 + memory.working.0 + memory.room_for_cache().0;
    assert_eq!(used, (chip.hbm.capacity.as_f64() * 0.9) as u64);
}
