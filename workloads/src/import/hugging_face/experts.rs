//! Families whose MLPs are mixtures of experts, every layer alike, without a capacity limit unless `capacity_factor` sets one (a key of ours: Hugging
//! Face's configurations have none).

use super::Family;
use super::llama::{self, Defaults, SYNONYMS, read_with};
use super::llama_like::{upper_windows, with};
use super::reader::Reader;
use super::windows;
use crate::error::WorkloadError;
use crate::limits::{MAX_EXPERTS, MAX_FFN, MAX_LAYERS, MAX_POSITIONS};
use crate::model::{Experts, Model, SharedExpert};
use crate::variations::QueryKeyNorm;

const EXPERT_SYNONYMS: &[(&str, &str)] =
    &[("num_experts", "num_local_experts"), ("moe_top_k", "num_experts_per_tok"), ("expert_capacity_factor", "capacity_factor")];

/// Mixtral: experts of the MLP's width.
pub(super) const MIXTRAL: Family = Family {
    model_types: &["mixtral"],
    keys: &[llama::KEYS, &["capacity_factor", "num_experts_per_tok", "num_local_experts", "sliding_window"]],
    defaults: &[("num_key_value_heads", 8)],
    synonyms: EXPERT_SYNONYMS,
    read: |reader| {
        let model = read_with(reader, Defaults::LLAMA)?;
        if let Some(window) = reader.optional_dimension("sliding_window", MAX_POSITIONS)? {
            windows::note(reader, &model, "sliding_window", window, model.layers);
        }
        Ok(Model { experts: Some(experts(reader, "num_local_experts")?), ..model })
    },
};

/// Qwen's keys for experts.
const QWEN_KEYS: &[&str] = &[
    "capacity_factor",
    "decoder_sparse_step",
    "layer_types",
    "max_window_layers",
    "mlp_only_layers",
    "moe_intermediate_size",
    "num_experts",
    "num_experts_per_tok",
    "qkv_bias",
    "shared_expert_intermediate_size",
    "sliding_window",
    "use_sliding_window",
];

/// Qwen2-MoE: narrow experts beside a shared one with a weight of its own.
pub(super) const QWEN2_MOE: Family = Family {
    model_types: &["qwen2_moe"],
    keys: &[llama::KEYS, QWEN_KEYS],
    defaults: &[
        ("moe_intermediate_size", 1408),
        ("shared_expert_intermediate_size", 5632),
        ("num_experts", 60),
        ("num_experts_per_tok", 4),
        ("num_key_value_heads", 16),
    ],
    synonyms: SYNONYMS,
    read: |reader| {
        let shared = reader.count("shared_expert_intermediate_size", MAX_FFN, 5632)?;
        let shared = (shared > 0).then_some(SharedExpert { ffn: shared, weighed: true });
        let model = qwen(reader, shared)?;
        Ok(Model { qkv_bias: reader.flag("qkv_bias", true)?, attention_output_bias: false, ..model })
    },
};

/// Qwen3-MoE: narrow experts and norms of queries and keys.
pub(super) const QWEN3_MOE: Family = Family {
    model_types: &["qwen3_moe", "qwen3_vl_moe_text"],
    keys: &[llama::KEYS, QWEN_KEYS],
    defaults: &[("moe_intermediate_size", 768), ("num_experts", 128), ("num_experts_per_tok", 8), ("num_key_value_heads", 4)],
    synonyms: SYNONYMS,
    read: |reader| Ok(with(qwen(reader, None)?, |v| v.query_key_norm = Some(QueryKeyNorm::Head))),
};

fn qwen(reader: &Reader<'_>, shared: Option<SharedExpert>) -> Result<Model, WorkloadError> {
    let model = read_with(reader, Defaults::LLAMA)?;
    upper_windows(reader, &model)?;
    let step = reader.optional_dimension("decoder_sparse_step", MAX_LAYERS)?.unwrap_or(1);
    if step > 1 {
        return Err(reader.error("decoder_sparse_step", step, "1", MIXED));
    }
    if let Some(dense) = reader.get("mlp_only_layers").filter(|list| list.as_array().is_some_and(|list| !list.is_empty())) {
        return Err(reader.error("mlp_only_layers", dense.clone(), "an empty list", MIXED));
    }
    let ffn = reader.dimension("moe_intermediate_size", MAX_FFN)?;
    Ok(Model { ffn, experts: Some(Experts { shared, ..experts(reader, "num_experts")? }), ..model })
}

/// What is missing where layers with and without experts alternate.
const MIXED: &str = "layers with and without experts in turn are not covered yet, dense ones before the first expert are in DeepSeek's files alone: \
    give a model with experts in every layer";

/// OLMoE: many narrow experts, norms of whole queries and keys.
pub(super) const OLMOE: Family = Family {
    model_types: &["olmoe"],
    keys: &[llama::KEYS, &["capacity_factor", "num_experts", "num_experts_per_tok"]],
    defaults: &[("num_experts", 64), ("num_experts_per_tok", 8)],
    synonyms: SYNONYMS,
    read: |reader| {
        let model = read_with(reader, Defaults::LLAMA)?;
        let experts = Some(experts(reader, "num_experts")?);
        Ok(with(Model { experts, ..model }, |v| v.query_key_norm = Some(QueryKeyNorm::Whole)))
    },
};

/// GPT-OSS: biases everywhere, sinks beside the scores, windows in every second layer.
pub(super) const GPT_OSS: Family = Family {
    model_types: &["gpt_oss"],
    keys: &[
        llama::KEYS,
        &["capacity_factor", "experts_per_token", "layer_types", "num_experts_per_tok", "num_local_experts", "sliding_window"],
    ],
    defaults: &[("head_dim", 64), ("max_position_embeddings", 131_072), ("num_key_value_heads", 8), ("sliding_window", 128)],
    synonyms: EXPERT_SYNONYMS,
    read: |reader| {
        let model = read_with(reader, Defaults { attention_bias: true, ..Defaults::LLAMA })?;
        if let Some(window) = reader.optional_dimension("sliding_window", MAX_POSITIONS)? {
            windows::note(reader, &model, "sliding_window", window, windows::layers(reader, &model, 2));
        }
        let experts = Some(Experts { router_bias: true, ..experts(reader, "num_local_experts")? });
        Ok(with(Model { experts, mlp_bias: true, ..model }, |v| v.sinks = true))
    },
};

/// The text model of Llama 4, where every layer has experts (Scout): one routed and one shared expert of the same width, norms of queries and
/// keys without parameters.
pub(super) const LLAMA4: Family = Family {
    model_types: &["llama4_text", "llama4"],
    keys: &[
        llama::KEYS,
        &[
            "capacity_factor",
            "interleave_moe_layer_step",
            "intermediate_size_mlp",
            "moe_layers",
            "num_experts_per_tok",
            "num_local_experts",
            "use_qk_norm",
        ],
    ],
    defaults: &[("num_experts_per_tok", 1), ("num_key_value_heads", 8), ("num_local_experts", 16)],
    synonyms: EXPERT_SYNONYMS,
    read: |reader| {
        let model = read_with(reader, Defaults::LLAMA)?;
        let step = reader.optional_dimension("interleave_moe_layer_step", MAX_LAYERS)?.unwrap_or(1);
        if step > 1 {
            return Err(reader.error("interleave_moe_layer_step", step, "1", MIXED));
        }
        if reader.flag("use_qk_norm", true)? {
            reader.assume(
                "`use_qk_norm` = true: norms of queries and keys without parameters are taken as part of the rotation".to_owned(),
            );
        }
        let shared = Some(SharedExpert { ffn: model.ffn, weighed: false });
        Ok(Model { experts: Some(Experts { shared, ..experts(reader, "num_local_experts")? }), ..model })
    },
};

/// The routed experts: their number under `key`, and how many a token goes to.
pub(super) fn experts(reader: &Reader<'_>, key: &'static str) -> Result<Experts, WorkloadError> {
    let count = reader.dimension(key, MAX_EXPERTS)?;
    let top_k = reader.dimension("num_experts_per_tok", count)?;
    // Room for every token at every expert: more is never filled.
    let most = count as f64 / top_k as f64;
    let capacity_factor = reader.optional_factor("capacity_factor", most)?;
    Ok(Experts { count, top_k, capacity_factor, ..Experts::default() })
}
