//! Snowflake Arctic, which transformers has no class for: parameters and operations by hand, from its published sizes.
#![allow(clippy::unwrap_used, missing_docs)]

use coplace_workloads as workloads;
use sim::units::Flops;
use workloads::import::hugging_face::parse_config;
use workloads::training::Attention;
use workloads::{Lowering, Model, TrainingGraph};

/// Returns a file with the keys of `configuration_arctic.py` and the sizes of Snowflake/snowflake-arctic-base.
fn config() -> serde_json::Value {
    serde_json::json!({
        "model_type": "arctic", "vocab_size": 32000, "hidden_size": 7168, "intermediate_size": 4864,
        "num_hidden_layers": 35, "num_attention_heads": 56, "num_key_value_heads": 8, "hidden_act": "silu",
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 10000, "sliding_window": null,
        "tie_word_embeddings": false, "num_experts_per_tok": 2, "num_local_experts": 128, "moe_layer_frequency": 1,
        "parallel_attn_mlp_res": true, "use_residual": true, "moe_token_dropping": false,
        "moe_train_capacity_factor": 1, "moe_eval_capacity_factor": 1, "moe_min_capacity": 0,
        "enable_expert_tensor_parallelism": false, "quantization": null, "router_aux_loss_coef": 0.001
    })
}

fn read(config: &serde_json::Value) -> Result<Model, String> {
    parse_config("arctic", "config.json", &config.to_string()).map_err(|error| error.to_string())
}

/// Published: 480 billion parameters, 17 billion active (Snowflake, "Arctic", April 2024: a dense model of 10 billion
/// beside 128 experts of 3.66 billion).
#[test]
fn arctic_has_the_published_parameters() {
    let model = read(&config()).unwrap();
    let (d, ffn, layers) = (7168_u64, 4864_u64, 35_u64);
    let expert = 3 * d * ffn;
    let dense = d * (56 + 2 * 8 + 56) * 128 + 3 * d * d + 128 * d + 3 * d;
    let ends = 2 * 32_000 * d + d;
    assert_eq!(model.parameters(), layers * (128 * expert + dense) + ends);
    assert_eq!(model.active_parameters(), layers * (2 * expert + dense) + ends);
    assert_eq!((model.parameters() + 5_000_000_000) / 10_000_000_000, 48);
    assert_eq!((model.active_parameters() + 500_000_000) / 1_000_000_000, 17);
    // One expert per layer, summed over all layers, has 3.66 billion parameters.
    assert_eq!((layers * expert + 5_000_000) / 10_000_000, 366);
}

#[test]
fn every_token_meets_the_dense_mlp_and_its_experts() {
    let model = read(&config()).unwrap();
    let (d, s) = (7168_u128, 4096_u128);
    let layer = d * 128 * 128 + 3 * d * d + 2 * 3 * d * 4864 + 128 * d + 2 * d * s;
    let all = Flops(6 * s * (35 * layer + 32_000 * d));
    assert_eq!(model.training_flops(1, 4096, 32_000), all);
    let lowering = Lowering { attention: Attention::Unfused, ..Lowering::new(&model) };
    let graph = TrainingGraph::new(&model, &lowering).unwrap();
    assert_eq!((graph.kernel_flops(), graph.parameters().per_device_count()), (all, model.parameters()));
    let split = Lowering { tensor_parallel: 8, expert_parallel: 4, ..lowering };
    let own = TrainingGraph::new(&model, &split).unwrap().parameters();
    assert_eq!(own.expert * 32, 35 * 128 * 3 * 7168 * 4864);
}

#[test]
fn two_keys_for_one_switch_agree() {
    let mut config = config();
    config["use_residual"] = false.into();
    let error = read(&config).unwrap_err();
    assert!(error.contains("use_residual") && error.contains("parallel_attn_mlp_res"), "{error}");
    config.as_object_mut().unwrap().remove("parallel_attn_mlp_res");
    let plain = read(&config).unwrap();
    assert_eq!(plain.variations.dense_beside_experts, None);
    config["moe_layer_frequency"] = 2.into();
    // With this frequency, every second layer has one MLP of an expert's width instead of 128 experts and a router.
    assert_eq!(plain.parameters() - read(&config).unwrap().parameters(), 18 * (127 * 3 * 7168 * 4864 + 128 * 7168));
}
