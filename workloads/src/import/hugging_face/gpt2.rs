//! GPT-2 (and GPT-3, Megatron's GPTs): pre-norm, learned positions, GELU, tied head.

use super::ModelFamily;
use super::reader::{ConfigReader, NamedNumber};
use crate::error::WorkloadError;
use crate::layer_list::LayerList;
use crate::limits::{MAX_FFN, MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_VOCABULARY, MAX_WIDTH};
use crate::model::{Dropout, Model, Norm, NormPlacement, PositionEncoding};
use crate::variations::Variations;
use sim::kernel::ElementwiseFunction;

pub(super) const FAMILY: ModelFamily = ModelFamily {
    model_types: &["gpt2"],
    keys: &[&[
        "activation_function",
        "attn_pdrop",
        "embd_pdrop",
        "n_ctx",
        "n_embd",
        "n_head",
        "n_inner",
        "n_layer",
        "n_positions",
        "resid_pdrop",
        "vocab_size",
    ]],
    defaults: &[],
    synonyms: &[
        ("hidden_size", "n_embd"),
        ("num_hidden_layers", "n_layer"),
        ("num_attention_heads", "n_head"),
        ("intermediate_size", "n_inner"),
        ("max_position_embeddings", "n_positions"),
        ("hidden_act", "activation_function"),
    ],
    read: read_gpt2,
};

/// GPT-BigCode (StarCoder): GPT-2 with one key/value head.
pub(super) const BIGCODE: ModelFamily = ModelFamily {
    model_types: &["gpt_bigcode"],
    keys: &[&[
        "activation_function",
        "attn_pdrop",
        "embd_pdrop",
        "multi_query",
        // Transformers writes this key, but `multi_query` decides.
        "num_key_value_heads",
        "n_embd",
        "n_head",
        "n_inner",
        "n_layer",
        "n_positions",
        "resid_pdrop",
        "vocab_size",
    ]],
    read: read_bigcode,
    ..FAMILY
};

fn read_bigcode(reader: &ConfigReader<'_>) -> Result<Model, WorkloadError> {
    let model = read_gpt2(reader)?;
    let kv_heads = if reader.read_flag("multi_query", true)? { 1 } else { model.heads };
    Ok(Model { kv_heads, ..model })
}

/// Reads the longest sequence. `n_ctx`, if present, must state the same number.
pub(super) fn read_positions(reader: &ConfigReader<'_>) -> Result<u64, WorkloadError> {
    let positions = reader.read_dimension("n_positions", MAX_POSITIONS)?;
    if let Some(context) = reader.read_optional_dimension("n_ctx", MAX_POSITIONS)?
        && context != positions
    {
        return Err(reader.value_error(
            "n_ctx",
            context,
            &format!("`n_positions` ({positions})"),
            "both state the longest sequence: remove n_ctx or make them equal",
        ));
    }
    Ok(positions)
}

fn read_gpt2(reader: &ConfigReader<'_>) -> Result<Model, WorkloadError> {
    reader.refuse_null("activation_function")?;
    let hidden = reader.read_dimension("n_embd", MAX_WIDTH)?;
    let heads = reader.read_dimension("n_head", MAX_HEADS)?;
    reader.check_divides(NamedNumber { key: "n_head", value: heads }, NamedNumber { key: "n_embd", value: hidden })?;
    let positions = read_positions(reader)?;
    Ok(Model {
        name: reader.name.to_owned(),
        family: reader.model_type.clone(),
        layers: reader.read_dimension("n_layer", MAX_LAYERS)?,
        hidden,
        heads,
        kv_heads: heads,
        head_dim: hidden / heads,
        ffn: reader.read_optional_dimension("n_inner", MAX_FFN)?.unwrap_or(4 * hidden),
        experts: None,
        vocabulary: reader.read_dimension("vocab_size", MAX_VOCABULARY)?,
        vocabulary_multiple: reader.read_vocabulary_multiple()?,
        max_sequence: positions,
        embedding_width: hidden,
        position: PositionEncoding::Learned { rows: positions },
        token_types: 0,
        norm: Norm::LayerNorm,
        norm_affine: true,
        norm_placement: NormPlacement::Pre,
        embedding_norm: false,
        final_norm: true,
        activation: reader.read_activation("activation_function", ElementwiseFunction::Gelu)?,
        gated: false,
        qkv_bias: true,
        attention_output_bias: true,
        mlp_bias: true,
        causal: true,
        dropout: Dropout {
            embedding: reader.read_probability("embd_pdrop", 0.1)?,
            attention: reader.read_probability("attn_pdrop", 0.1)?,
            residual: reader.read_probability("resid_pdrop", 0.1)?,
            activation: 0.0,
        },
        tied_head: reader.read_flag("tie_word_embeddings", true)?,
        head_transform: false,
        head_bias: false,
        variations: Variations::default(),
        list: LayerList::default(),
        documents: Vec::new(),
        assumptions: Vec::new(),
    })
}
