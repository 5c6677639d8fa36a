//! Short convolutions in most layers and attention in the others: LFM2, LFM2 with experts, and LFM3 (Liquid AI 2025,
//! 2026). Defaults are those of transformers 5.24.

use super::ModelFamily;
use super::experts::{alternate_experts, read_layer_list, read_routed_experts};
use super::llama::{self, LlamaDefaults, SYNONYMS, read_with_defaults};
use super::llama_like::with_variations;
use super::reader::ConfigReader;
use super::windows::read_types_under_key;
use crate::error::WorkloadError;
use crate::layer_list::{KeyWindow, LayerKind, Mixer};
use crate::limits::{MAX_FFN, MAX_LAYERS, MAX_POSITIONS, MAX_WIDTH};
use crate::model::{Model, NormPlacement};
use crate::variations::{GatedConvolution, OutputGate, QueryKeyNorm};

const CONVOLUTION_KEYS: &[&str] = &["conv_L_cache", "conv_bias", "layer_types", "tie_embedding"];
const DEFAULTS: &[(&str, u64)] = &[("max_position_embeddings", 128_000), ("num_key_value_heads", 8)];
/// Names of the kinds of layers; the first is a convolution.
const LAYER_TYPES: [&str; 3] = ["conv", "full_attention", "sliding_attention"];

/// LFM2. Its MLPs are narrower than the stated width, unless the file switches the adjustment off.
pub(super) const LFM2: ModelFamily = ModelFamily {
    model_types: &["lfm2"],
    keys: &[
        llama::KEYS,
        CONVOLUTION_KEYS,
        &[
            "block_auto_adjust_ff_dim",
            "block_ff_dim",
            "block_ffn_dim_multiplier",
            "block_multiple_of",
            "full_attn_idxs",
        ],
    ],
    defaults: DEFAULTS,
    synonyms: SYNONYMS,
    read: |reader| {
        let model = read_plain(reader)?;
        let given = reader.read_optional_dimension("block_ff_dim", MAX_FFN)?.unwrap_or(model.ffn);
        let ffn = read_adjusted_width(reader, given)?;
        add_convolutions(reader, Model { ffn, ..model }, 3, |_| LAYER_TYPES[1])
    },
};

/// LFM2 with experts after some dense layers.
pub(super) const LFM2_MOE: ModelFamily = ModelFamily {
    model_types: &["lfm2_moe"],
    keys: &[
        llama::KEYS,
        CONVOLUTION_KEYS,
        &["moe_intermediate_size", "num_dense_layers", "num_experts", "num_experts_per_tok"],
    ],
    defaults: DEFAULTS,
    synonyms: SYNONYMS,
    read: |reader| {
        let model = read_plain(reader)?;
        let dense = reader.read_count("num_dense_layers", MAX_LAYERS, 2)?;
        let (wide, ffn) = (model.ffn, reader.read_dimension("moe_intermediate_size", MAX_FFN)?);
        let experts = Some(read_routed_experts(reader, "num_experts")?);
        let model = alternate_experts(Model { ffn, experts, ..model }, wide, |layer| layer >= dense);
        add_convolutions(reader, model, 3, |_| LAYER_TYPES[1])
    },
};

/// LFM3: norms before and after each branch unless the file states otherwise, a gate on every attention head, and
/// windows in some layers.
pub(super) const LFM3: ModelFamily = ModelFamily {
    model_types: &["lfm3"],
    keys: &[llama::KEYS, CONVOLUTION_KEYS, &["sliding_window", "use_attention_gate", "use_sandwich_norm"]],
    defaults: &[("head_dim", 128), ("max_position_embeddings", 128_000), ("num_key_value_heads", 4)],
    synonyms: SYNONYMS,
    read: |reader| {
        let sandwich = reader.read_flag("use_sandwich_norm", true)?;
        let norm_placement = if sandwich { NormPlacement::Sandwich } else { NormPlacement::Pre };
        let gate = reader.read_flag("use_attention_gate", true)?.then_some(OutputGate::Head);
        let model = Model { norm_placement, ..read_plain(reader)? };
        add_convolutions(reader, with_variations(model, |v| v.output_gate = gate), 7, usual_type_of_lfm3)
    },
};

/// Reads the common part of these families, with norms of queries and keys.
fn read_plain(reader: &ConfigReader<'_>) -> Result<Model, WorkloadError> {
    let model = read_with_defaults(reader, LlamaDefaults { tied: true, ..LlamaDefaults::LLAMA })?;
    let tied_head = reader.read_flag("tie_embedding", model.tied_head)?;
    Ok(with_variations(Model { tied_head, ..model }, |v| v.query_key_norm = Some(QueryKeyNorm::Head)))
}

/// Returns the MLP's width: two thirds of `given`, times a factor, rounded up to a multiple. If the adjustment is off,
/// it is `given`.
fn read_adjusted_width(reader: &ConfigReader<'_>, given: u64) -> Result<u64, WorkloadError> {
    if !reader.read_flag("block_auto_adjust_ff_dim", true)? {
        return Ok(given);
    }
    let multiple = reader.read_count("block_multiple_of", MAX_WIDTH, 256)?.max(1);
    let factor = match reader.get("block_ffn_dim_multiplier") {
        None => 1.0,
        Some(value) => value.as_f64().filter(|factor| *factor > 0.0 && *factor <= 16.0).ok_or_else(|| {
            let limit = "a number above 0 and at most 16";
            reader.value_error("block_ffn_dim_multiplier", value.clone(), limit, "write the model's own value")
        })?,
    };
    let width = (factor * (2 * given / 3) as f64) as u64;
    Ok(width.div_ceil(multiple) * multiple)
}

/// Returns the kind of one of LFM3's layers if the file has no list.
fn usual_type_of_lfm3(layer: u64) -> &'static str {
    match layer % 4 {
        2 => LAYER_TYPES[1],
        0 if layer > 0 => LAYER_TYPES[2],
        _ => LAYER_TYPES[0],
    }
}

/// Adds the convolutions. The defaults are `usual_reach`, the number of tokens that a convolution covers, and
/// `usual_type`, the kind of each layer.
fn add_convolutions(
    reader: &ConfigReader<'_>,
    model: Model,
    usual_reach: u64,
    usual_type: fn(u64) -> &'static str,
) -> Result<Model, WorkloadError> {
    let convolution = GatedConvolution {
        reach: reader.read_count("conv_L_cache", MAX_POSITIONS, usual_reach)?.max(1),
        bias: reader.read_flag("conv_bias", false)?,
    };
    let layers = model.layer_count();
    let types = read_types_under_key(reader, "layer_types", layers, &LAYER_TYPES)?;
    let attention = match types {
        Some(_) => None,
        None => read_layer_list(reader, "full_attn_idxs", layers)?,
    };
    let window = reader.read_window()?;
    let type_of = |layer: u64| match (&types, &attention) {
        (Some(types), _) => types[layer as usize],
        (None, Some(attention)) => LAYER_TYPES[usize::from(attention.contains(&layer))],
        (None, None) => usual_type(layer),
    };
    let kind_of = |layer: u64, kind: LayerKind| {
        let named = type_of(layer);
        let mixer = if named == LAYER_TYPES[0] { Mixer::Convolution } else { Mixer::Attention };
        LayerKind { mixer, window: window.filter(|_| named == LAYER_TYPES[2]).map(KeyWindow::Sliding), ..kind }
    };
    let any = (0..layers).any(|layer| type_of(layer) == LAYER_TYPES[0]);
    let model = with_variations(model, |v| v.convolution = any.then_some(convolution));
    Ok(model.with_changed_layers(kind_of))
}
