//! Zamba and Zamba 2 (Zyphra): scans in every layer. In some layers, a block of attention and MLP precedes the scan,
//! and these layers share the block's weights. Defaults are those of transformers 5.24.

use super::ModelFamily;
use super::hybrids::{expanded_width, read_step_rank};
use super::llama::{self, LlamaDefaults, SYNONYMS, read_with_defaults};
use super::llama_like::with_variations;
use super::reader::{ConfigReader, NamedNumber};
use super::windows::read_types_under_key;
use crate::error::WorkloadError;
use crate::layer_list::{FeedForward, LayerKind, Mixer};
use crate::limits::{MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_WIDTH};
use crate::model::{Model, PositionEncoding};
use crate::variations::{ChannelScan, SharedBlock, StateSpace};
use serde_json::Value;
use sim::kernel::ElementwiseFunction;

/// Keys of both families. The values of `attention_hidden_size` and similar keys follow from other keys.
const ZAMBA_KEYS: &[&str] = &[
    "attention_head_dim",
    "attention_hidden_size",
    "layers_block_type",
    "mamba_d_conv",
    "mamba_d_state",
    "mamba_expand",
    "n_mamba_heads",
];

const DEFAULTS: LlamaDefaults =
    LlamaDefaults { tied: true, activation: ElementwiseFunction::Gelu, ..LlamaDefaults::LLAMA };

pub(super) const ZAMBA: ModelFamily = ModelFamily {
    model_types: &["zamba"],
    keys: &[
        llama::KEYS,
        ZAMBA_KEYS,
        &[
            "attn_layer_offset",
            "attn_layer_period",
            "hidden_mamba_act",
            "mamba_conv_bias",
            "mamba_dt_rank",
            "mamba_proj_bias",
        ],
    ],
    defaults: &[
        ("attn_layer_offset", 4),
        ("attn_layer_period", 6),
        ("mamba_d_conv", 4),
        ("mamba_d_state", 16),
        ("mamba_expand", 2),
        ("max_position_embeddings", 4096),
        ("n_mamba_heads", 2),
        ("num_key_value_heads", 16),
    ],
    synonyms: SYNONYMS,
    read: |reader| {
        let model = read_shared_heads(reader)?;
        let width = expanded_width(reader, &model)?;
        let groups = reader.read_dimension("n_mamba_heads", MAX_HEADS)?;
        reader.check_divides(
            NamedNumber { key: "n_mamba_heads", value: groups },
            NamedNumber { key: "mamba_expand x hidden_size", value: width },
        )?;
        let scan = ChannelScan {
            width,
            state: reader.read_dimension("mamba_d_state", MAX_WIDTH)?,
            convolution: reader.read_dimension("mamba_d_conv", MAX_WIDTH)?,
            groups,
            step_rank: read_step_rank(reader, "mamba_dt_rank", model.hidden)?,
            bias: reader.read_flag("mamba_proj_bias", false)?,
            convolution_bias: reader.read_flag("mamba_conv_bias", true)?,
            norms: false,
        };
        let block = SharedBlock { count: 1, attention_adapter: None, mlp_adapter: None };
        let every = reader.read_dimension("attn_layer_period", MAX_LAYERS)?;
        let first = reader.read_count("attn_layer_offset", MAX_LAYERS, 4)?;
        // Without a list, the third layer is the first with the block, and periods are counted after it.
        let shares = |layer: u64| layer == 2 || layer > 2 && (layer - 3) % every == first;
        let shares =
            read_sharing_layers(reader, model.layers)?.unwrap_or_else(|| (0..model.layers).map(shares).collect());
        let model = Model { position: PositionEncoding::None, ..model };
        Ok(with_shared_blocks(
            with_variations(model, |v| v.channel_scan = Some(scan)),
            block,
            Mixer::ChannelScan,
            &shares,
        ))
    },
};

pub(super) const ZAMBA2: ModelFamily = ModelFamily {
    model_types: &["zamba2"],
    keys: &[
        llama::KEYS,
        ZAMBA_KEYS,
        &[
            "adapter_rank",
            "add_bias_linear",
            "chunk_size",
            "hybrid_layer_ids",
            "kv_channels",
            "mamba_headdim",
            "mamba_ngroups",
            "num_mem_blocks",
            "num_query_groups",
            "use_conv_bias",
            "use_long_context",
            "use_mem_rope",
            "use_shared_attention_adapter",
        ],
    ],
    defaults: &[
        ("adapter_rank", 128),
        ("chunk_size", 256),
        ("mamba_d_conv", 4),
        ("mamba_d_state", 64),
        ("mamba_expand", 2),
        ("mamba_ngroups", 1),
        ("max_position_embeddings", 4096),
        ("n_mamba_heads", 8),
        ("num_mem_blocks", 1),
    ],
    synonyms: SYNONYMS,
    read: read_zamba2,
};

fn read_zamba2(reader: &ConfigReader<'_>) -> Result<Model, WorkloadError> {
    let model = read_shared_heads(reader)?;
    let bias = reader.read_flag("add_bias_linear", false)?;
    let width = expanded_width(reader, &model)?;
    let heads = reader.read_dimension("n_mamba_heads", MAX_HEADS)?;
    reader.check_divides(
        NamedNumber { key: "n_mamba_heads", value: heads },
        NamedNumber { key: "mamba_expand x hidden_size", value: width },
    )?;
    let groups = reader.read_dimension("mamba_ngroups", MAX_HEADS)?;
    reader.check_divides(
        NamedNumber { key: "mamba_ngroups", value: groups },
        NamedNumber { key: "n_mamba_heads", value: heads },
    )?;
    let scan = StateSpace {
        heads,
        head_dim: width / heads,
        state: reader.read_dimension("mamba_d_state", MAX_WIDTH)?,
        groups,
        convolution: reader.read_dimension("mamba_d_conv", MAX_WIDTH)?,
        chunk: reader.read_dimension("chunk_size", MAX_POSITIONS)?,
        bias,
        // Transformers' layer has these biases whatever the file states.
        convolution_bias: true,
        without_norm: false,
    };
    check_derived(reader, &[("mamba_headdim", scan.head_dim)])?;
    let rank = reader.read_dimension("adapter_rank", MAX_WIDTH)?;
    let attention_adapter = reader.read_flag("use_shared_attention_adapter", false)?.then_some(rank);
    if attention_adapter.is_some() && model.kv_heads != model.heads {
        let limit = "false where keys have fewer heads: adapters are as wide as queries";
        return Err(reader.value_error("use_shared_attention_adapter", true, limit, "correct one of the two"));
    }
    let Some(shares) = read_sharing_layers(reader, model.layers)? else {
        return Err(reader.value_error("layers_block_type", Value::Null, "a kind for each layer", "list the kinds"));
    };
    let rotates = reader.read_flag("use_mem_rope", false)?;
    let longer = reader.read_flag("use_long_context", false)?;
    let model = Model {
        position: if rotates { PositionEncoding::Rotary } else { PositionEncoding::None },
        // Transformers sets this length if the key is true.
        max_sequence: if longer { 16_384 } else { model.max_sequence },
        mlp_bias: bias,
        ..model
    };
    let count = reader.read_dimension("num_mem_blocks", MAX_LAYERS)?;
    let block = SharedBlock { count, attention_adapter, mlp_adapter: Some(rank) };
    Ok(with_shared_blocks(with_variations(model, |v| v.scan = Some(scan)), block, Mixer::Scan, &shares))
}

/// Reads the heads and the MLP of the shared block. The block's attention is twice as wide as the model.
fn read_shared_heads(reader: &ConfigReader<'_>) -> Result<Model, WorkloadError> {
    reader.require_flag("tie_word_embeddings", true, "transformers shares no blocks without it: set it to true")?;
    let model = read_with_defaults(reader, DEFAULTS)?;
    let double = 2 * model.hidden;
    reader.check_divides(
        NamedNumber { key: "num_attention_heads", value: model.heads },
        NamedNumber { key: "attention_hidden_size", value: double },
    )?;
    let head_dim = double / model.heads;
    let heads = model.heads;
    check_derived(
        reader,
        &[
            ("attention_hidden_size", double),
            ("attention_head_dim", head_dim),
            ("head_dim", head_dim),
            ("kv_channels", model.hidden / heads),
            ("num_query_groups", heads),
        ],
    )?;
    Ok(Model { head_dim, variations: crate::variations::Variations { rotated: None, ..model.variations }, ..model })
}

/// Returns an error if a key's value differs from the value that follows from other keys.
fn check_derived(reader: &ConfigReader<'_>, derived: &[(&str, u64)]) -> Result<(), WorkloadError> {
    for (key, value) in derived {
        if let Some(given) = reader.get(key).filter(|given| given.as_u64() != Some(*value)) {
            let limit = format!("{value}, which follows from widths and heads");
            return Err(reader.value_error(key, given.clone(), &limit, "correct it, or leave it out"));
        }
    }
    Ok(())
}

/// Reads which layers have a shared block; `None` without a list of kinds.
fn read_sharing_layers(reader: &ConfigReader<'_>, layers: u64) -> Result<Option<Vec<bool>>, WorkloadError> {
    let known = ["hybrid", "linear_attention", "mamba"];
    let types = read_types_under_key(reader, "layers_block_type", layers, &known)?;
    let shares = types.map(|types| types.iter().map(|kind| *kind == "hybrid").collect::<Vec<bool>>());
    let Some(given) = reader.get("hybrid_layer_ids") else { return Ok(shares) };
    let listed = shares.iter().flatten().zip(0u64..).filter(|(shares, _)| **shares);
    let listed: Vec<Value> = listed.map(|(_, layer)| Value::from(layer)).collect();
    if given.as_array() != Some(&listed) {
        let limit = "the layers that `layers_block_type` calls hybrid";
        return Err(reader.value_error("hybrid_layer_ids", given.clone(), limit, "correct one of the two"));
    }
    Ok(shares)
}

/// Returns the model with a shared block before the scan where `shares` is true, and the mixer `plain` alone elsewhere.
fn with_shared_blocks(model: Model, block: SharedBlock, plain: Mixer, shares: &[bool]) -> Model {
    let any = shares.contains(&true);
    let model = with_variations(model, |v| v.shared_block = any.then_some(block));
    model.with_changed_layers(|layer, kind| LayerKind {
        mixer: if shares.get(layer as usize) == Some(&true) { Mixer::SharedBlock } else { plain },
        feed: FeedForward::None,
        ..kind
    })
}
