//! GPT-NeoX (and Pythia): attention and MLP in parallel, each after its own LayerNorm, partly rotated heads, and an
//! untied head. GPT-J and Phi 1.5 and 2 have one norm for both, and a bias on the logits.

use super::ModelFamily;
use super::gpt2::read_positions;
use super::llama::{llama_without_sizes, read_kv_heads, read_rotated_fraction};
use super::reader::{ConfigReader, NamedNumber};
use crate::error::WorkloadError;
use crate::limits::{MAX_FFN, MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_VOCABULARY, MAX_WIDTH};
use crate::model::{Dropout, Model, Norm};
use crate::variations::{ParallelBranches, QueryKeyNorm, Variations};
use sim::kernel::ElementwiseFunction;

pub(super) const FAMILY: ModelFamily = ModelFamily {
    model_types: &["gpt_neox"],
    keys: &[&[
        "attention_bias",
        "attention_dropout",
        "hidden_act",
        "hidden_dropout",
        "hidden_size",
        "intermediate_size",
        "max_position_embeddings",
        "num_attention_heads",
        "num_hidden_layers",
        "partial_rotary_factor",
        "rope_parameters",
        "rope_scaling",
        "rotary_pct",
        "use_parallel_residual",
        "vocab_size",
    ]],
    defaults: &[],
    synonyms: &[("n_embd", "hidden_size"), ("n_layer", "num_hidden_layers"), ("n_head", "num_attention_heads")],
    read: read_neox,
};

fn read_neox(reader: &ConfigReader<'_>) -> Result<Model, WorkloadError> {
    let (hidden, heads) = read_widths(reader, "hidden_size", "num_attention_heads")?;
    let own = reader.read_fraction("rotary_pct", &[], 0.25)?;
    let part = reader.read_fraction("partial_rotary_factor", &["rope_parameters", "rope_scaling"], own)?;
    let bias = reader.read_flag("attention_bias", true)?;
    let residual = reader.read_probability("hidden_dropout", 0.0)?;
    let parallel = reader.read_flag("use_parallel_residual", true)?.then_some(ParallelBranches::OwnNorms);
    Ok(Model {
        layers: reader.read_dimension("num_hidden_layers", MAX_LAYERS)?,
        heads,
        kv_heads: heads,
        head_dim: hidden / heads,
        ffn: reader.read_dimension("intermediate_size", MAX_FFN)?,
        vocabulary: reader.read_dimension("vocab_size", MAX_VOCABULARY)?,
        vocabulary_multiple: reader.read_vocabulary_multiple()?,
        max_sequence: reader.read_dimension("max_position_embeddings", MAX_POSITIONS)?,
        activation: reader.read_activation("hidden_act", ElementwiseFunction::Gelu)?,
        qkv_bias: bias,
        attention_output_bias: bias,
        dropout: Dropout {
            embedding: residual,
            attention: reader.read_probability("attention_dropout", 0.0)?,
            residual,
            activation: 0.0,
        },
        tied_head: reader.read_flag("tie_word_embeddings", false)?,
        variations: Variations {
            parallel,
            rotated: read_rotated_fraction(hidden / heads, part),
            ..Variations::default()
        },
        ..neox_like_model(reader, hidden)
    })
}

pub(super) const GPTJ: ModelFamily = ModelFamily {
    // CodeGen differs only in the order of heads in its joint product of queries, keys and values.
    model_types: &["codegen", "gptj"],
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
        "rotary",
        "rotary_dim",
        "vocab_size",
    ]],
    defaults: &[("rotary_dim", 64)],
    synonyms: &[("hidden_size", "n_embd"), ("num_hidden_layers", "n_layer"), ("num_attention_heads", "n_head")],
    read: read_gptj,
};

fn read_gptj(reader: &ConfigReader<'_>) -> Result<Model, WorkloadError> {
    let (hidden, heads) = read_widths(reader, "n_embd", "n_head")?;
    reader.refuse_null("activation_function")?;
    let turned = reader.read_optional_dimension("rotary_dim", hidden / heads)?;
    if let Some(odd) = turned.filter(|turned| !turned.is_multiple_of(2)) {
        let cure = "a rotation turns pairs of entries: write the model's own value";
        return Err(reader.value_error("rotary_dim", odd, "an even number", cure));
    }
    Ok(Model {
        layers: reader.read_dimension("n_layer", MAX_LAYERS)?,
        heads,
        kv_heads: heads,
        head_dim: hidden / heads,
        ffn: reader.read_optional_dimension("n_inner", MAX_FFN)?.unwrap_or(4 * hidden),
        vocabulary: reader.read_dimension("vocab_size", MAX_VOCABULARY)?,
        vocabulary_multiple: reader.read_vocabulary_multiple()?,
        max_sequence: read_positions(reader)?,
        activation: reader.read_activation("activation_function", ElementwiseFunction::Gelu)?,
        dropout: Dropout {
            embedding: reader.read_probability("embd_pdrop", 0.0)?,
            attention: reader.read_probability("attn_pdrop", 0.0)?,
            residual: reader.read_probability("resid_pdrop", 0.0)?,
            activation: 0.0,
        },
        tied_head: reader.read_flag("tie_word_embeddings", false)?,
        head_bias: true,
        variations: Variations {
            parallel: Some(ParallelBranches::OneNorm),
            rotated: turned.filter(|turned| *turned < hidden / heads),
            ..Variations::default()
        },
        ..neox_like_model(reader, hidden)
    })
}

pub(super) const PHI: ModelFamily = ModelFamily {
    model_types: &["phi"],
    keys: &[&[
        "attention_dropout",
        "embd_pdrop",
        "hidden_act",
        "hidden_size",
        "intermediate_size",
        "max_position_embeddings",
        "num_attention_heads",
        "num_hidden_layers",
        "num_key_value_heads",
        "partial_rotary_factor",
        "qk_layernorm",
        "resid_pdrop",
        "rope_parameters",
        "rope_scaling",
        "vocab_size",
    ]],
    defaults: &[],
    synonyms: &[("n_embd", "hidden_size"), ("n_layer", "num_hidden_layers"), ("n_head", "num_attention_heads")],
    read: read_phi,
};

fn read_phi(reader: &ConfigReader<'_>) -> Result<Model, WorkloadError> {
    let (hidden, heads) = read_widths(reader, "hidden_size", "num_attention_heads")?;
    let part = reader.read_fraction("partial_rotary_factor", &["rope_parameters", "rope_scaling"], 0.5)?;
    Ok(Model {
        layers: reader.read_dimension("num_hidden_layers", MAX_LAYERS)?,
        heads,
        kv_heads: read_kv_heads(
            reader,
            "num_key_value_heads",
            NamedNumber { key: "num_attention_heads", value: heads },
        )?,
        head_dim: hidden / heads,
        ffn: reader.read_dimension("intermediate_size", MAX_FFN)?,
        vocabulary: reader.read_dimension("vocab_size", MAX_VOCABULARY)?,
        vocabulary_multiple: reader.read_vocabulary_multiple()?,
        max_sequence: reader.read_dimension("max_position_embeddings", MAX_POSITIONS)?,
        activation: reader.read_activation("hidden_act", ElementwiseFunction::Gelu)?,
        qkv_bias: true,
        attention_output_bias: true,
        dropout: Dropout {
            embedding: reader.read_probability("embd_pdrop", 0.0)?,
            attention: reader.read_probability("attention_dropout", 0.0)?,
            residual: reader.read_probability("resid_pdrop", 0.0)?,
            activation: 0.0,
        },
        tied_head: reader.read_flag("tie_word_embeddings", false)?,
        head_bias: true,
        variations: Variations {
            parallel: Some(ParallelBranches::OneNorm),
            query_key_norm: reader.read_flag("qk_layernorm", false)?.then_some(QueryKeyNorm::Head),
            rotated: read_rotated_fraction(hidden / heads, part),
            ..Variations::default()
        },
        ..neox_like_model(reader, hidden)
    })
}

/// Reads the width and the number of heads, which must divide the width.
pub(super) fn read_widths(
    reader: &ConfigReader<'_>,
    width: &'static str,
    heads: &'static str,
) -> Result<(u64, u64), WorkloadError> {
    let hidden = reader.read_dimension(width, MAX_WIDTH)?;
    let count = reader.read_dimension(heads, MAX_HEADS)?;
    reader.check_divides(NamedNumber { key: heads, value: count }, NamedNumber { key: width, value: hidden })?;
    Ok((hidden, count))
}

/// Returns the common part of these families: LayerNorm, and an ungated MLP with biases.
pub(super) fn neox_like_model(reader: &ConfigReader<'_>, hidden: u64) -> Model {
    Model {
        norm: Norm::LayerNorm,
        activation: ElementwiseFunction::Gelu,
        gated: false,
        mlp_bias: true,
        ..llama_without_sizes(reader, hidden)
    }
}
