//! Families with linear attention in some layers: Qwen3-Next and Qwen 3.5 (gated delta net), Kimi Linear (Kimi delta
//! attention), MiniMax-Text-01 and M1 (lightning attention). `layer_types`, or an older list, states the kind of each
//! layer.

use super::ModelFamily;
use super::deepseek::{self, add_experts, add_latent_attention};
use super::experts::{MIXTRAL_KEYS, QWEN_KEYS, read_mixtral, read_qwen_experts};
use super::llama::{self, LlamaDefaults, SYNONYMS, read_with_defaults};
use super::llama_like::with_variations;
use super::reader::{ConfigReader, NamedNumber};
use super::windows::read_types_of_layers;
use crate::error::WorkloadError;
use crate::layer_list::{LayerKind, Mixer};
use crate::limits::{MAX_FFN, MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_WIDTH};
use crate::linear_attention::{LinearAttention, StateDecay};
use crate::model::{Model, SharedExpert};
use crate::variations::{OutputGate, QueryKeyNorm};
use serde_json::Value;

/// Tokens per chunk of the delta rule: the default of transformers and of flash-linear-attention.
const DELTA_CHUNK: u64 = 64;

const DELTA_NET_KEYS: &[&str] = &[
    "attn_output_gate",
    "full_attention_interval",
    "linear_conv_kernel_dim",
    "linear_key_head_dim",
    "linear_num_key_heads",
    "linear_num_value_heads",
    "linear_value_head_dim",
];

/// Qwen3-Next and Qwen 3.5 with experts.
pub(super) const QWEN3_NEXT: ModelFamily = ModelFamily {
    model_types: &["qwen3_next", "qwen3_5_moe", "qwen3_5_moe_text"],
    keys: &[llama::KEYS, QWEN_KEYS, DELTA_NET_KEYS],
    defaults: &[
        ("full_attention_interval", 4),
        ("head_dim", 256),
        // Used in layers without experts; Qwen 3.5 has none.
        ("intermediate_size", 5632),
        ("linear_conv_kernel_dim", 4),
        ("linear_key_head_dim", 128),
        ("linear_num_key_heads", 16),
        ("linear_num_value_heads", 32),
        ("linear_value_head_dim", 128),
        ("moe_intermediate_size", 512),
        ("num_key_value_heads", 2),
        ("shared_expert_intermediate_size", 512),
    ],
    synonyms: SYNONYMS,
    read: |reader| {
        let shared = reader.read_count("shared_expert_intermediate_size", MAX_FFN, 0)?;
        let shared = (shared > 0).then_some(SharedExpert { ffn: shared, weighed: true });
        add_delta_net(reader, read_qwen_experts(reader, shared)?)
    },
};

/// Qwen 3.5 without experts.
pub(super) const QWEN3_5: ModelFamily = ModelFamily {
    model_types: &["qwen3_5", "qwen3_5_text"],
    keys: &[llama::KEYS, DELTA_NET_KEYS, &["layer_types"]],
    defaults: &[
        ("full_attention_interval", 4),
        ("head_dim", 256),
        ("linear_conv_kernel_dim", 4),
        ("linear_key_head_dim", 128),
        ("linear_num_key_heads", 16),
        ("linear_num_value_heads", 32),
        ("linear_value_head_dim", 128),
        ("num_key_value_heads", 4),
    ],
    synonyms: SYNONYMS,
    read: |reader| add_delta_net(reader, read_with_defaults(reader, LlamaDefaults::LLAMA)?),
};

/// Adds gated delta nets, and in the other layers gated attention with norms of queries and keys.
fn add_delta_net(reader: &ConfigReader<'_>, model: Model) -> Result<Model, WorkloadError> {
    let heads = reader.read_dimension("linear_num_value_heads", MAX_HEADS)?;
    let key_heads = reader.read_dimension("linear_num_key_heads", MAX_HEADS)?;
    reader.check_divides(
        NamedNumber { key: "linear_num_key_heads", value: key_heads },
        NamedNumber { key: "linear_num_value_heads", value: heads },
    )?;
    let linear = LinearAttention {
        heads,
        key_heads,
        key_dim: reader.read_dimension("linear_key_head_dim", MAX_WIDTH)?,
        value_dim: reader.read_dimension("linear_value_head_dim", MAX_WIDTH)?,
        decay: StateDecay::PerHead,
        delta_rule: true,
        convolution: reader.read_dimension("linear_conv_kernel_dim", MAX_WIDTH)?,
        gate_rank: None,
        norm_of_head: true,
        chunk: DELTA_CHUNK,
    };
    let interval = reader.read_dimension("full_attention_interval", MAX_LAYERS)?;
    let part = reader.read_fraction("partial_rotary_factor", &["rope_parameters", "rope_scaling"], 0.25)?;
    let rotated = llama::read_rotated_fraction(model.head_dim, part);
    let gate = reader.read_flag("attn_output_gate", true)?.then_some(OutputGate::Number);
    let types = read_linear_types(reader, model.layer_count())?;
    let linear_at = |layer: u64| match &types {
        Some(types) => types[layer as usize],
        None => !(layer + 1).is_multiple_of(interval),
    };
    let model = with_variations(model, |v| {
        v.linear = Some(linear);
        (v.output_gate, v.rotated, v.query_key_norm) = (gate, rotated, Some(QueryKeyNorm::Head));
    });
    Ok(add_linear_layers(model, linear_at))
}

/// Returns the model with linear attention in the layers where `is_linear` is true, and attention in the others.
fn add_linear_layers(model: Model, is_linear: impl Fn(u64) -> bool) -> Model {
    let has_any = (0..model.layer_count()).any(&is_linear);
    let mixer = |layer| if is_linear(layer) { Mixer::Linear } else { Mixer::Attention };
    let model = model.with_changed_layers(|layer, kind| LayerKind { mixer: mixer(layer), ..kind });
    // A model without such layers must not have linear attention's limits on degrees.
    with_variations(model, |v| v.linear = v.linear.filter(|_| has_any))
}

/// Reads from `layer_types` which layers have linear attention; `None` without the key.
fn read_linear_types(reader: &ConfigReader<'_>, layers: u64) -> Result<Option<Vec<bool>>, WorkloadError> {
    let types = read_types_of_layers(reader, layers, &["full_attention", "linear_attention"])?;
    Ok(types.map(|types| types.iter().map(|kind| *kind == "linear_attention").collect()))
}

/// MiniMax: lightning attention in some layers and plain attention in the others, with experts in all layers.
pub(super) const MINIMAX: ModelFamily = ModelFamily {
    model_types: &["minimax", "minimax_m1", "minimax_text_01"],
    keys: &[llama::KEYS, MIXTRAL_KEYS, &["attn_type_list", "block_size", "layer_types", "rotary_dim"]],
    defaults: &[("block_size", 256), ("num_key_value_heads", 8)],
    synonyms: SYNONYMS,
    read: |reader| {
        let model = read_mixtral(reader)?;
        let linear = LinearAttention {
            heads: model.heads,
            key_heads: model.heads,
            key_dim: model.head_dim,
            value_dim: model.head_dim,
            decay: StateDecay::Constant,
            delta_rule: false,
            convolution: 0,
            gate_rank: None,
            norm_of_head: false,
            chunk: reader.read_dimension("block_size", MAX_POSITIONS)?,
        };
        let rotated = reader.read_optional_dimension("rotary_dim", model.head_dim)?.or(model.variations.rotated);
        let types = match read_linear_types(reader, model.layer_count())? {
            Some(types) => Some(types),
            None => read_numbered_types(reader, model.layer_count())?,
        };
        // The default of MiniMaxConfig is every second layer.
        let linear_at = |layer: u64| types.as_ref().map_or(layer % 2 == 1, |types| types[layer as usize]);
        let model = with_variations(model, |v| (v.linear, v.rotated) = (Some(linear), rotated));
        Ok(add_linear_layers(model, linear_at))
    },
};

/// Reads MiniMax's own list, in which 0 is linear attention and 1 full attention. Returns true for linear; `None`
/// without the key.
fn read_numbered_types(reader: &ConfigReader<'_>, layers: u64) -> Result<Option<Vec<bool>>, WorkloadError> {
    let Some(value) = reader.get("attn_type_list") else { return Ok(None) };
    let list = value.as_array().and_then(|list| list.iter().map(Value::as_u64).collect::<Option<Vec<u64>>>());
    match list.filter(|list| list.len() as u64 == layers && list.iter().all(|kind| *kind < 2)) {
        Some(list) => Ok(Some(list.iter().map(|kind| *kind == 0).collect())),
        None => {
            let limit =
                format!("a list of `num_hidden_layers` ({layers}) entries, 0 for linear and 1 for full attention");
            Err(reader.value_error("attn_type_list", value.clone(), &limit, "correct one of the two"))
        }
    }
}

/// Kimi Linear: Kimi delta attention in some layers and latent attention in the others, with DeepSeek's experts.
pub(super) const KIMI_LINEAR: ModelFamily = ModelFamily {
    model_types: &["kimi_linear"],
    keys: &[
        llama::KEYS,
        deepseek::EXPERT_KEYS,
        deepseek::LATENT_KEYS,
        &[
            "layer_types",
            "linear_attn_config",
            "linear_conv_kernel_dim",
            "linear_head_dim",
            "linear_num_heads",
            "mla_use_nope",
        ],
    ],
    defaults: &[
        ("first_k_dense_replace", 1),
        ("linear_conv_kernel_dim", 4),
        ("linear_head_dim", 128),
        ("linear_num_heads", 32),
    ],
    synonyms: SYNONYMS,
    read: |reader| {
        let model = read_with_defaults(reader, LlamaDefaults::LLAMA)?;
        let model = add_latent_attention(reader, add_experts(reader, model)?)?;
        let nested = reader.get("linear_attn_config");
        let size = |inner: &str, key: &'static str, limit| match nested.and_then(|nested| nested.get(inner)) {
            Some(value) => reader.nested_dimension("linear_attn_config", inner, value, limit),
            None => reader.read_dimension(key, limit),
        };
        let heads = size("num_heads", "linear_num_heads", MAX_HEADS)?;
        let dim = size("head_dim", "linear_head_dim", MAX_WIDTH)?;
        let linear = LinearAttention {
            heads,
            key_heads: heads,
            key_dim: dim,
            value_dim: dim,
            decay: StateDecay::PerChannel,
            delta_rule: true,
            convolution: size("short_conv_kernel_size", "linear_conv_kernel_dim", MAX_WIDTH)?,
            gate_rank: Some(dim),
            norm_of_head: true,
            chunk: DELTA_CHUNK,
        };
        let layers = model.layer_count();
        let types = match read_linear_types(reader, layers)? {
            Some(types) => Some(types),
            None => nested.map(|nested| read_nested_layers(reader, nested, layers)).transpose()?,
        };
        // The default of KimiLinearConfig is full attention in every fourth layer after the first.
        let linear_at =
            |layer: u64| types.as_ref().map_or(layer == 0 || !layer.is_multiple_of(4), |types| types[layer as usize]);
        Ok(add_linear_layers(with_variations(model, |v| v.linear = Some(linear)), linear_at))
    },
};

/// Reads Kimi's two lists of layers, counted from 1, which together must name every layer once. Returns true for
/// linear.
fn read_nested_layers(reader: &ConfigReader<'_>, nested: &Value, layers: u64) -> Result<Vec<bool>, WorkloadError> {
    let list = |key: &str| {
        let list = nested.get(key)?.as_array()?;
        list.iter().map(Value::as_u64).collect::<Option<Vec<u64>>>()
    };
    let (full, linear) = (list("full_attn_layers").unwrap_or_default(), list("kda_layers").unwrap_or_default());
    let named = |layer: &u64| full.contains(layer) != linear.contains(layer);
    if full.len() + linear.len() == layers as usize && (1..=layers).all(|layer| named(&layer)) {
        return Ok((1..=layers).map(|layer| linear.contains(&layer)).collect());
    }
    let limit = format!("`full_attn_layers` and `kda_layers` that name each of the {layers} layers, from 1, once");
    Err(reader.value_error("linear_attn_config", nested.clone(), &limit, "correct the two lists"))
}
