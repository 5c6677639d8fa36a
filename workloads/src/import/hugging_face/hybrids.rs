//! Scans in combination with attention and MLPs: Bamba and Granite 4 (Mamba 2), Falcon-H1 (scan and attention in one
//! layer), Jamba (Mamba 1 and experts). Mamba and Falcon-Mamba have only Mamba 1. Defaults are those of transformers
//! 5.24.

use super::ModelFamily;
use super::experts::{MIXTRAL_KEYS, alternate_experts, read_routed_experts};
use super::llama::{self, LlamaDefaults, SYNONYMS, llama_without_sizes, read_with_defaults};
use super::llama_like::with_variations;
use super::mamba::PAPER_SEQUENCE;
use super::reader::{ConfigReader, NamedNumber};
use crate::error::WorkloadError;
use crate::layer_list::{LayerKind, Mixer};
use crate::limits::{MAX_FFN, MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_VOCABULARY, MAX_WIDTH};
use crate::model::{Experts, Model, PositionEncoding, SharedExpert};
use crate::variations::{ChannelScan, StateSpace, Variations};
use serde_json::Value;

const SCAN_KEYS: &[&str] = &[
    "mamba_chunk_size",
    "mamba_conv_bias",
    "mamba_d_conv",
    "mamba_d_head",
    "mamba_d_state",
    "mamba_expand",
    "mamba_n_groups",
    "mamba_n_heads",
    "mamba_proj_bias",
];

const SCAN_DEFAULTS: &[(&str, u64)] = &[
    ("mamba_chunk_size", 256),
    ("mamba_d_conv", 4),
    ("mamba_d_state", 256),
    ("mamba_expand", 2),
    ("mamba_n_groups", 1),
    ("mamba_n_heads", 128),
];

/// Reads Mamba 2's scan; `width` is the width of the scanned vectors.
fn read_scan(reader: &ConfigReader<'_>, width: u64) -> Result<StateSpace, WorkloadError> {
    let heads = reader.read_dimension("mamba_n_heads", MAX_HEADS)?;
    reader.check_divides(
        NamedNumber { key: "mamba_n_heads", value: heads },
        NamedNumber { key: "mamba_d_ssm", value: width },
    )?;
    let head_dim = match reader.get("mamba_d_head").and_then(Value::as_str) {
        Some("auto") => width / heads,
        _ => reader.read_optional_dimension("mamba_d_head", MAX_WIDTH)?.unwrap_or(width / heads),
    };
    if head_dim.saturating_mul(heads) != width {
        let limit = format!("such that `mamba_n_heads` x `mamba_d_head` is the scan's width ({width})");
        return Err(reader.value_error("mamba_d_head", head_dim, &limit, "correct one of the two"));
    }
    let groups = reader.read_dimension("mamba_n_groups", MAX_HEADS)?;
    reader.check_divides(
        NamedNumber { key: "mamba_n_groups", value: groups },
        NamedNumber { key: "mamba_n_heads", value: heads },
    )?;
    Ok(StateSpace {
        heads,
        head_dim,
        state: reader.read_dimension("mamba_d_state", MAX_WIDTH)?,
        groups,
        convolution: reader.read_dimension("mamba_d_conv", MAX_WIDTH)?,
        chunk: reader.read_dimension("mamba_chunk_size", MAX_POSITIONS)?,
        bias: reader.read_flag("mamba_proj_bias", false)?,
        convolution_bias: reader.read_flag("mamba_conv_bias", true)?,
        without_norm: false,
    })
}

/// Returns the scan's width: the model's width times the file's `mamba_expand`.
pub(super) fn expanded_width(reader: &ConfigReader<'_>, model: &Model) -> Result<u64, WorkloadError> {
    Ok(model.hidden.saturating_mul(reader.read_dimension("mamba_expand", MAX_WIDTH)?))
}

/// Returns the model with scans in the layers where `scans` is true, and attention in the others.
fn with_scans(model: Model, scan: StateSpace, scans: impl Fn(u64) -> bool) -> Model {
    let mixer = |layer| if scans(layer) { Mixer::Scan } else { Mixer::Attention };
    let any = (0..model.layer_count()).any(&scans);
    let model = model.with_changed_layers(|layer, kind| LayerKind { mixer: mixer(layer), ..kind });
    with_variations(model, |v| v.scan = any.then_some(scan))
}

pub(super) const BAMBA: ModelFamily = ModelFamily {
    model_types: &["bamba"],
    keys: &[llama::KEYS, SCAN_KEYS, &["attn_layer_indices"]],
    defaults: SCAN_DEFAULTS,
    synonyms: SYNONYMS,
    read: |reader| {
        let model = read_with_defaults(reader, LlamaDefaults { rotated: 0.5, ..LlamaDefaults::LLAMA })?;
        let attention =
            super::experts::read_layer_list(reader, "attn_layer_indices", model.layers)?.unwrap_or_default();
        let scan = read_scan(reader, expanded_width(reader, &model)?)?;
        Ok(with_scans(model, scan, |layer| !attention.contains(&layer)))
    },
};

/// Granite 4: scans and attention, each followed by experts with a shared one, or by a dense MLP of that shared width.
pub(super) const GRANITE_HYBRID: ModelFamily = ModelFamily {
    model_types: &["granitemoehybrid"],
    keys: &[llama::KEYS, MIXTRAL_KEYS, SCAN_KEYS, &["layer_types", "layers_block_type", "position_embedding_type"]],
    defaults: SCAN_DEFAULTS,
    synonyms: SYNONYMS,
    read: |reader| {
        let model = read_with_defaults(reader, LlamaDefaults::LLAMA)?;
        let layers = model.layers;
        let shared = reader.read_dimension("shared_intermediate_size", MAX_FFN)?;
        // Zero means a dense model. Zero is never the default.
        let dense = reader.get("num_local_experts").and_then(Value::as_u64) == Some(0);
        let model = if dense {
            Model { ffn: shared, ..model }
        } else {
            let shared = Some(SharedExpert { ffn: shared, weighed: false });
            Model { experts: Some(Experts { shared, ..read_routed_experts(reader, "num_local_experts")? }), ..model }
        };
        let position = match reader.get("position_embedding_type").and_then(Value::as_str) {
            Some("rope") => PositionEncoding::Rotary,
            _ => PositionEncoding::None,
        };
        let key = reader.first_given_key(&["layer_types", "layers_block_type"]);
        let known = ["linear_attention", "mamba", "full_attention", "attention"];
        let types = super::windows::read_types_under_key(reader, key, layers, &known)?;
        let scans = |layer: u64| types.as_ref().is_none_or(|types| known[..2].contains(&types[layer as usize]));
        let scan = read_scan(reader, expanded_width(reader, &model)?)?;
        Ok(with_scans(Model { position, ..model }, scan, scans))
    },
};

/// Falcon-H1: every layer has attention and a scan on the same input.
pub(super) const FALCON_H1: ModelFamily = ModelFamily {
    model_types: &["falcon_h1"],
    keys: &[
        llama::KEYS,
        SCAN_KEYS,
        &["mamba_d_ssm", "mamba_norm_before_gate", "mamba_rms_norm", "mamba_use_mlp", "projectors_bias"],
    ],
    defaults: &[
        ("mamba_chunk_size", 256),
        ("mamba_d_conv", 4),
        ("mamba_d_state", 256),
        ("mamba_expand", 2),
        ("mamba_n_groups", 1),
        ("mamba_n_heads", 128),
    ],
    synonyms: SYNONYMS,
    read: |reader| {
        let model = read_with_defaults(reader, LlamaDefaults::LLAMA)?;
        let width = match reader.read_optional_dimension("mamba_d_ssm", MAX_FFN)? {
            Some(width) => width,
            None => expanded_width(reader, &model)?,
        };
        if !reader.read_flag("mamba_use_mlp", true)? {
            return Err(reader.value_error("mamba_use_mlp", false, "true", "layers without MLPs are not covered"));
        }
        let without_norm = !reader.read_flag("mamba_rms_norm", false)?;
        let scan = StateSpace { without_norm, ..read_scan(reader, width)? };
        if reader.read_flag("projectors_bias", false)? != scan.bias {
            let limit = "the value of `mamba_proj_bias`";
            return Err(reader.value_error("projectors_bias", !scan.bias, limit, "unlike biases are not covered"));
        }
        let model = with_variations(model, |v| v.scan = Some(scan));
        Ok(model.with_changed_layers(|_, kind| LayerKind { mixer: Mixer::AttentionAndScan, ..kind }))
    },
};

/// Reads the width of the low-rank vector from which Mamba's steps are computed. "auto" or an absent key means a
/// sixteenth of the model's width, rounded up.
pub(super) fn read_step_rank(reader: &ConfigReader<'_>, key: &str, hidden: u64) -> Result<u64, WorkloadError> {
    let auto = hidden.div_ceil(16);
    match reader.get(key).and_then(Value::as_str) {
        Some("auto") => Ok(auto),
        _ => Ok(reader.read_optional_dimension(key, MAX_WIDTH)?.unwrap_or(auto)),
    }
}

/// Jamba: Mamba 1 alternates with attention, and MLPs alternate with experts.
pub(super) const JAMBA: ModelFamily = ModelFamily {
    model_types: &["jamba"],
    keys: &[
        llama::KEYS,
        &[
            "attn_layer_offset",
            "attn_layer_period",
            "capacity_factor",
            "expert_layer_offset",
            "expert_layer_period",
            "mamba_conv_bias",
            "mamba_d_conv",
            "mamba_d_state",
            "mamba_dt_rank",
            "mamba_expand",
            "mamba_proj_bias",
            "num_experts",
            "num_experts_per_tok",
        ],
    ],
    defaults: &[
        ("attn_layer_offset", 4),
        ("attn_layer_period", 8),
        ("expert_layer_offset", 1),
        ("expert_layer_period", 2),
        ("mamba_d_conv", 4),
        ("mamba_d_state", 16),
        ("mamba_expand", 2),
        ("max_position_embeddings", 262_144),
        ("num_key_value_heads", 8),
    ],
    synonyms: SYNONYMS,
    read: |reader| {
        let model = read_with_defaults(reader, LlamaDefaults::LLAMA)?;
        let at = |period: &str, offset: &str| -> Result<(u64, u64), WorkloadError> {
            let every = reader.read_dimension(period, MAX_LAYERS)?;
            let first = reader.read_count(offset, MAX_LAYERS, 0)?;
            if first >= every {
                return Err(reader.value_error(offset, first, &format!("below `{period}` ({every})"), "correct one"));
            }
            Ok((every, first))
        };
        let (every, first) = at("attn_layer_period", "attn_layer_offset")?;
        let (sparse_every, sparse_first) = at("expert_layer_period", "expert_layer_offset")?;
        let scan = ChannelScan {
            width: expanded_width(reader, &model)?,
            state: reader.read_dimension("mamba_d_state", MAX_WIDTH)?,
            convolution: reader.read_dimension("mamba_d_conv", MAX_WIDTH)?,
            groups: 1,
            step_rank: read_step_rank(reader, "mamba_dt_rank", model.hidden)?,
            bias: reader.read_flag("mamba_proj_bias", false)?,
            convolution_bias: reader.read_flag("mamba_conv_bias", true)?,
            norms: true,
        };
        let wide = model.ffn;
        let experts = reader.read_dimension("num_experts", MAX_WIDTH)?;
        let model = if experts > 1 {
            let experts = Some(read_routed_experts(reader, "num_experts")?);
            alternate_experts(Model { experts, ..model }, wide, |layer| layer % sparse_every == sparse_first)
        } else {
            model
        };
        let mixer = |layer: u64| if layer % every == first { Mixer::Attention } else { Mixer::ChannelScan };
        // Attention has no rotation, because the scans depend on the order.
        let model = Model { position: PositionEncoding::None, ..model };
        let model = with_variations(model, |v| v.channel_scan = Some(scan));
        Ok(model.with_changed_layers(|layer, kind| LayerKind { mixer: mixer(layer), ..kind }))
    },
};

/// Mamba 1, and Falcon-Mamba, whose norms inside the scan have no gains.
pub(super) const MAMBA: ModelFamily = ModelFamily {
    model_types: &["falcon_mamba", "mamba"],
    keys: &[&[
        "conv_kernel",
        "expand",
        "hidden_act",
        "hidden_size",
        "intermediate_size",
        "max_position_embeddings",
        "num_hidden_layers",
        "state_size",
        "time_step_rank",
        "use_bias",
        "use_conv_bias",
        "vocab_size",
    ]],
    defaults: &[("conv_kernel", 4), ("expand", 2), ("state_size", 16)],
    synonyms: &[("d_model", "hidden_size"), ("n_layer", "num_hidden_layers")],
    read: |reader| {
        let hidden = reader.read_dimension("hidden_size", MAX_WIDTH)?;
        let width = match reader.read_optional_dimension("intermediate_size", MAX_FFN)? {
            Some(width) => width,
            None => hidden.saturating_mul(reader.read_dimension("expand", MAX_WIDTH)?),
        };
        let scan = ChannelScan {
            width,
            state: reader.read_dimension("state_size", MAX_WIDTH)?,
            convolution: reader.read_dimension("conv_kernel", MAX_WIDTH)?,
            groups: 1,
            step_rank: read_step_rank(reader, "time_step_rank", hidden)?,
            bias: reader.read_flag("use_bias", false)?,
            convolution_bias: reader.read_flag("use_conv_bias", true)?,
            norms: false,
        };
        let longest = reader.read_optional_dimension("max_position_embeddings", MAX_POSITIONS)?;
        if longest.is_none() {
            reader.note_assumption(format!(
                "no longest sequence is given: {PAPER_SEQUENCE} tokens are assumed unless a plan states them"
            ));
        }
        Ok(Model {
            layers: reader.read_dimension("num_hidden_layers", MAX_LAYERS)?,
            // The model has no attention; its channels are split over devices like heads.
            heads: width,
            kv_heads: width,
            head_dim: 1,
            ffn: width,
            vocabulary: reader.read_dimension("vocab_size", MAX_VOCABULARY)?,
            vocabulary_multiple: reader.read_vocabulary_multiple()?,
            max_sequence: longest.unwrap_or(PAPER_SEQUENCE),
            position: PositionEncoding::None,
            tied_head: reader.read_flag("tie_word_embeddings", true)?,
            variations: Variations {
                mixer: Mixer::ChannelScan,
                channel_scan: Some(scan),
                without_mlp: true,
                ..Variations::default()
            },
            ..llama_without_sizes(reader, hidden)
        })
    },
};
