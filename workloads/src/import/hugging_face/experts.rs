//! Families with a mixture of experts in some or all layers. `capacity_factor` sets a capacity limit; it is coplace's
//! own key, because these families' configurations have none.

use super::ModelFamily;
use super::llama::{self, LlamaDefaults, SYNONYMS, read_with_defaults};
use super::llama_like::{read_upper_windows, with_variations};
use super::reader::ConfigReader;
use super::windows;
use crate::error::WorkloadError;
use crate::layer_list::{FeedForward, KeyWindow, LayerKind};
use crate::limits::{MAX_EXPERTS, MAX_FFN, MAX_LAYERS, MAX_POSITIONS};
use crate::model::{Dropout, Experts, Model, Norm, NormPlacement, SharedExpert};
use crate::variations::QueryKeyNorm;
use sim::kernel::ElementwiseFunction;

const EXPERT_SYNONYMS: &[(&str, &str)] = &[("expert_capacity_factor", "capacity_factor")];

/// Mixtral: experts as wide as the MLP. Granite's models may add a shared expert.
pub(super) const MIXTRAL: ModelFamily = ModelFamily {
    model_types: &["mixtral", "granitemoe", "granitemoeshared"],
    keys: &[llama::KEYS, MIXTRAL_KEYS],
    defaults: &[("num_key_value_heads", 8)],
    synonyms: EXPERT_SYNONYMS,
    read: read_mixtral,
};

pub(super) const MIXTRAL_KEYS: &[&str] =
    &["capacity_factor", "num_experts_per_tok", "num_local_experts", "shared_intermediate_size", "sliding_window"];

pub(super) fn read_mixtral(reader: &ConfigReader<'_>) -> Result<Model, WorkloadError> {
    let mut model = read_with_defaults(reader, LlamaDefaults::LLAMA)?;
    if let Some(window) = reader.read_window()? {
        model = windows::with_window(model, window, |_| true);
    }
    let shared = reader.read_count("shared_intermediate_size", MAX_FFN, 0)?;
    let shared = (shared > 0).then_some(SharedExpert { ffn: shared, weighed: false });
    let experts = Experts { shared, ..read_routed_experts(reader, "num_local_experts")? };
    Ok(Model { experts: Some(experts), ..model })
}

/// Grok 1: Mixtral with norms on inputs and results, caps on scores, and a tied head. Source: `configuration_grok_1.py`
/// in hpcai-tech/grok-1, and `model.py` of xai-org/grok-1.
pub(super) const GROK: ModelFamily = ModelFamily {
    model_types: &["grok-1"],
    keys: &[llama::KEYS, MIXTRAL_KEYS],
    defaults: &[],
    synonyms: EXPERT_SYNONYMS,
    read: |reader| {
        let defaults = LlamaDefaults { tied: true, activation: ElementwiseFunction::Gelu, ..LlamaDefaults::LLAMA };
        let model = Model { norm_placement: NormPlacement::Sandwich, ..read_with_defaults(reader, defaults)? };
        Ok(Model { experts: Some(read_routed_experts(reader, "num_local_experts")?), ..model })
    },
};

/// Phi 3.5 MoE: LayerNorm, and biases if the file states them.
pub(super) const PHIMOE: ModelFamily = ModelFamily {
    model_types: &["phimoe"],
    keys: &[llama::KEYS, MIXTRAL_KEYS, &["hidden_dropout", "lm_head_bias"]],
    defaults: &[("num_key_value_heads", 8)],
    synonyms: EXPERT_SYNONYMS,
    read: |reader| {
        let head_bias = reader.read_flag("lm_head_bias", false)?;
        let model = Model { norm: Norm::LayerNorm, head_bias, ..read_mixtral(reader)? };
        let residual = reader.read_probability("hidden_dropout", 0.0)?;
        Ok(Model { dropout: Dropout { residual, ..model.dropout }, ..model })
    },
};

/// MiniMax M2: norms over whole queries and keys, and rotation of a part of every head.
pub(super) const MINIMAX_M2: ModelFamily = ModelFamily {
    model_types: &["minimax_m2"],
    keys: &[llama::KEYS, MIXTRAL_KEYS, &["attn_type_list", "qk_norm_type", "rotary_dim", "use_qk_norm"]],
    defaults: &[("head_dim", 128), ("num_key_value_heads", 8)],
    synonyms: EXPERT_SYNONYMS,
    read: |reader| {
        let model = read_mixtral(reader)?;
        let kinds = reader.get("attn_type_list").and_then(|list| list.as_array());
        if kinds.is_some_and(|list| list.iter().any(|kind| kind.as_u64() != Some(1))) {
            let value = reader.get("attn_type_list").cloned().unwrap_or_default();
            let cure = "layers of linear attention are not covered yet: give a model without";
            return Err(reader.value_error("attn_type_list", value, "a list of 1, full attention", cure));
        }
        reader.require_text("qk_norm_type", "per_layer", "only norms of whole queries and keys are covered")?;
        let norms = reader.read_flag("use_qk_norm", true)?.then_some(QueryKeyNorm::Whole);
        let rotated = reader.read_optional_dimension("rotary_dim", model.head_dim)?.or(model.variations.rotated);
        Ok(with_variations(model, |v| (v.query_key_norm, v.rotated) = (norms, rotated)))
    },
};

/// Hunyuan: experts as wide as the MLP, shared experts, and norms of queries and keys.
pub(super) const HUNYUAN: ModelFamily = ModelFamily {
    model_types: &["hunyuan_v1_moe"],
    keys: &[llama::KEYS, &["capacity_factor", "n_shared_experts", "num_experts", "num_experts_per_tok"]],
    defaults: &[],
    synonyms: EXPERT_SYNONYMS,
    read: |reader| {
        let model = read_with_defaults(reader, LlamaDefaults::LLAMA)?;
        let count = reader.read_count("n_shared_experts", MAX_EXPERTS, 1)?;
        let together = model.ffn.saturating_mul(count);
        if together > MAX_FFN {
            let limit = format!("such that all of `intermediate_size` ({}) are at most {MAX_FFN} wide", model.ffn);
            return Err(reader.value_error("n_shared_experts", count, &limit, "correct one of the two"));
        }
        let shared = (together > 0).then_some(SharedExpert { ffn: together, weighed: false });
        let experts = Some(Experts { shared, ..read_routed_experts(reader, "num_experts")? });
        Ok(with_variations(Model { experts, ..model }, |v| v.query_key_norm = Some(QueryKeyNorm::Head)))
    },
};

/// Keys of Qwen's families with experts.
pub(super) const QWEN_KEYS: &[&str] = &[
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

/// Qwen2-MoE: narrow experts beside a shared expert with its own gate.
pub(super) const QWEN2_MOE: ModelFamily = ModelFamily {
    model_types: &["qwen2_moe"],
    keys: &[llama::KEYS, QWEN_KEYS],
    defaults: &[
        ("moe_intermediate_size", 1408),
        ("shared_expert_intermediate_size", 5632),
        ("num_key_value_heads", 16),
    ],
    synonyms: SYNONYMS,
    read: |reader| {
        let shared = reader.read_count("shared_expert_intermediate_size", MAX_FFN, 5632)?;
        let shared = (shared > 0).then_some(SharedExpert { ffn: shared, weighed: true });
        let model = read_upper_windows(reader, read_qwen_experts(reader, shared)?)?;
        Ok(Model { qkv_bias: reader.read_flag("qkv_bias", true)?, attention_output_bias: false, ..model })
    },
};

/// Qwen3-MoE: narrow experts and norms of queries and keys.
pub(super) const QWEN3_MOE: ModelFamily = ModelFamily {
    model_types: &["qwen3_moe", "qwen3_vl_moe_text"],
    keys: &[llama::KEYS, QWEN_KEYS],
    defaults: &[("moe_intermediate_size", 768), ("num_key_value_heads", 4)],
    synonyms: SYNONYMS,
    read: |reader| {
        let model = read_upper_windows(reader, read_qwen_experts(reader, None)?)?;
        Ok(with_variations(model, |v| v.query_key_norm = Some(QueryKeyNorm::Head)))
    },
};

/// Reads Qwen's layers with and without experts. `shared` is the shared expert of the layers with experts.
pub(super) fn read_qwen_experts(
    reader: &ConfigReader<'_>,
    shared: Option<SharedExpert>,
) -> Result<Model, WorkloadError> {
    let model = read_with_defaults(reader, LlamaDefaults::LLAMA)?;
    let step = reader.read_optional_dimension("decoder_sparse_step", MAX_LAYERS)?.unwrap_or(1);
    let dense = read_layer_list(reader, "mlp_only_layers", model.layers)?.unwrap_or_default();
    let mixed = step > 1 || !dense.is_empty();
    let wide = model.ffn;
    let ffn = reader.read_dimension("moe_intermediate_size", MAX_FFN)?;
    let model =
        Model { ffn, experts: Some(Experts { shared, ..read_routed_experts(reader, "num_experts")? }), ..model };
    if !mixed {
        return Ok(model);
    }
    Ok(alternate_experts(model, wide, |layer| (layer + 1).is_multiple_of(step) && !dense.contains(&layer)))
}

/// Returns the model with experts in the layers where `sparse` is true, and an MLP of width `wide` in the others.
pub(super) fn alternate_experts(model: Model, wide: u64, sparse: impl Fn(u64) -> bool) -> Model {
    let feed = |layer| if sparse(layer) { FeedForward::Own } else { FeedForward::Mlp(wide) };
    model.with_changed_layers(|layer, kind| LayerKind { feed: feed(layer), ..kind })
}

/// Reads a list of layer indices, counted from 0; `None` without the key.
pub(super) fn read_layer_list(
    reader: &ConfigReader<'_>,
    key: &'static str,
    layers: u64,
) -> Result<Option<Vec<u64>>, WorkloadError> {
    let Some(value) = reader.get(key) else { return Ok(None) };
    let numbers =
        value.as_array().and_then(|list| list.iter().map(serde_json::Value::as_u64).collect::<Option<Vec<u64>>>());
    match numbers.filter(|list| list.iter().all(|layer| *layer < layers)) {
        Some(list) => Ok(Some(list)),
        None => {
            let limit = format!("a list of layers' numbers below `num_hidden_layers` ({layers})");
            Err(reader.value_error(key, value.clone(), &limit, "correct one of the two"))
        }
    }
}

/// OLMoE: many narrow experts, and norms over whole queries and keys. FlexOlmo has its layer norms on results, like
/// OLMo 2.
pub(super) const OLMOE: ModelFamily = ModelFamily {
    model_types: &["olmoe", "flex_olmo"],
    keys: &[llama::KEYS, &["capacity_factor", "num_experts", "num_experts_per_tok"]],
    defaults: &[],
    synonyms: SYNONYMS,
    read: |reader| {
        let model = read_with_defaults(reader, LlamaDefaults::LLAMA)?;
        let on_results = reader.model_type == "flex_olmo";
        let norm_placement = if on_results { NormPlacement::Output } else { model.norm_placement };
        let model = Model { norm_placement, ..model };
        let experts = Some(read_routed_experts(reader, "num_experts")?);
        Ok(with_variations(Model { experts, ..model }, |v| v.query_key_norm = Some(QueryKeyNorm::Whole)))
    },
};

/// GPT-OSS: biases everywhere, attention sinks, and windows in every second layer.
pub(super) const GPT_OSS: ModelFamily = ModelFamily {
    model_types: &["gpt_oss"],
    keys: &[
        llama::KEYS,
        &[
            "capacity_factor",
            "experts_per_token",
            "layer_types",
            "num_experts_per_tok",
            "num_local_experts",
            "sliding_window",
        ],
    ],
    defaults: &[
        ("head_dim", 64),
        ("max_position_embeddings", 131_072),
        ("num_key_value_heads", 8),
        ("sliding_window", 128),
    ],
    synonyms: EXPERT_SYNONYMS,
    read: |reader| {
        let mut model = read_with_defaults(reader, LlamaDefaults { attention_bias: true, ..LlamaDefaults::LLAMA })?;
        if let Some(window) = reader.read_window()? {
            model = windows::add_windows_by_type(reader, model, window, 2)?;
        }
        let experts = Some(Experts { router_bias: true, ..read_routed_experts(reader, "num_local_experts")? });
        Ok(with_variations(Model { experts, mlp_bias: true, ..model }, |v| v.sinks = true))
    },
};

/// The text model of Llama 4. Every layer (Scout) or every second layer (Maverick) has one routed and one shared expert
/// per token, of the same width. Norms of queries and keys have no parameters. In layers with rotation, a token sees
/// only its own chunk; in the others it sees all tokens.
pub(super) const LLAMA4: ModelFamily = ModelFamily {
    model_types: &["llama4_text", "llama4"],
    keys: &[
        llama::KEYS,
        &[
            "attention_chunk_size",
            "capacity_factor",
            "interleave_moe_layer_step",
            "intermediate_size_mlp",
            "layer_types",
            "moe_layers",
            "no_rope_layer_interval",
            "no_rope_layers",
            "num_experts_per_tok",
            "num_local_experts",
            "use_qk_norm",
        ],
    ],
    defaults: &[("attention_chunk_size", 8192), ("num_key_value_heads", 8)],
    synonyms: EXPERT_SYNONYMS,
    read: |reader| {
        let model = read_with_defaults(reader, LlamaDefaults::LLAMA)?;
        let step = reader.read_optional_dimension("interleave_moe_layer_step", MAX_LAYERS)?.unwrap_or(1);
        let sparse = read_layer_list(reader, "moe_layers", model.layers)?;
        let wide = reader.read_optional_dimension("intermediate_size_mlp", MAX_FFN)?.unwrap_or(model.ffn);
        if reader.read_flag("use_qk_norm", true)? {
            reader.note_assumption(
                "`use_qk_norm` = true: norms of queries and keys without parameters count as part of the rotation"
                    .to_owned(),
            );
        }
        let shared = Some(SharedExpert { ffn: model.ffn, weighed: false });
        let model =
            Model { experts: Some(Experts { shared, ..read_routed_experts(reader, "num_local_experts")? }), ..model };
        let model = alternate_experts(model, wide, |layer| match &sparse {
            Some(sparse) => sparse.contains(&layer),
            None => (layer + 1).is_multiple_of(step),
        });
        add_chunks(reader, model)
    },
};

/// Adds chunks to the layers that `layer_types` names. Without that key, layers with rotation get chunks: those that
/// `no_rope_layers` marks by 1, or all except every `no_rope_layer_interval`-th. As in transformers, an empty list
/// counts as absent.
fn add_chunks(reader: &ConfigReader<'_>, model: Model) -> Result<Model, WorkloadError> {
    let layers = model.layer_count();
    let every = reader.read_optional_dimension("no_rope_layer_interval", MAX_LAYERS)?.unwrap_or(4);
    let rotated: Vec<bool> = match reader.get("no_rope_layers") {
        Some(value) if value.as_array().is_none_or(|list| !list.is_empty()) => {
            reader.read_marks("no_rope_layers", "", value, layers)?
        }
        _ => (0..layers).map(|layer| !(layer + 1).is_multiple_of(every)).collect(),
    };
    if rotated.contains(&false) {
        reader.note_assumption("layers without rotation are costed with it".to_owned());
    }
    let local: Vec<bool> =
        match windows::read_types_of_layers(reader, layers, &["full_attention", "chunked_attention"])? {
            Some(types) => types.iter().map(|kind| *kind == "chunked_attention").collect(),
            None => rotated,
        };
    match reader.read_optional_dimension("attention_chunk_size", MAX_POSITIONS)? {
        Some(chunk) => Ok(windows::with_key_window(model, KeyWindow::Chunk { chunk }, |layer| local[layer as usize])),
        None => Ok(model),
    }
}

/// Reads the routed experts: their number under `key`, the experts per token, and the capacity factor if stated.
pub(super) fn read_routed_experts(reader: &ConfigReader<'_>, key: &'static str) -> Result<Experts, WorkloadError> {
    let count = reader.read_dimension(key, MAX_EXPERTS)?;
    let top_k = reader.read_dimension("num_experts_per_tok", count)?;
    // At this factor every expert has room for every token, so a larger factor changes nothing.
    let most = count as f64 / top_k as f64;
    let capacity_factor = reader.read_optional_factor("capacity_factor", most)?;
    Ok(Experts { count, top_k, capacity_factor, ..Experts::default() })
}
