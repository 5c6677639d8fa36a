//! ModernBERT (Warner et al. 2024): an encoder with rotary positions, gated MLPs, norms before the branches, windows in all but every third layer.

use super::Family;
use super::llama::bare;
use super::reader::Reader;
use crate::error::WorkloadError;
use crate::layer_list::LayerKind;
use crate::limits::{MAX_FFN, MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_VOCABULARY, MAX_WIDTH};
use crate::model::{Dropout, Model, Norm};
use crate::variations::Variations;
use sim::kernel::Function;

pub(super) const FAMILY: Family = Family {
    model_types: &["modernbert"],
    keys: &[&[
        "attention_bias",
        "attention_dropout",
        "classifier_bias",
        "decoder_bias",
        "embedding_dropout",
        "global_attn_every_n_layers",
        "hidden_activation",
        "hidden_size",
        "intermediate_size",
        "local_attention",
        "max_position_embeddings",
        "mlp_bias",
        "mlp_dropout",
        "norm_bias",
        "num_attention_heads",
        "num_hidden_layers",
        "vocab_size",
    ]],
    defaults: &[
        ("global_attn_every_n_layers", 3),
        ("hidden_size", 768),
        ("intermediate_size", 1152),
        ("local_attention", 128),
        ("max_position_embeddings", 8192),
        ("num_attention_heads", 12),
        ("num_hidden_layers", 22),
        ("vocab_size", 50_368),
    ],
    synonyms: &[],
    read,
};

fn read(reader: &Reader<'_>) -> Result<Model, WorkloadError> {
    let hidden = reader.dimension("hidden_size", MAX_WIDTH)?;
    let heads = reader.dimension("num_attention_heads", MAX_HEADS)?;
    reader.divides(("num_attention_heads", heads), ("hidden_size", hidden))?;
    reader.forbid("classifier_bias", "a bias of the head's first product is not covered: set it to false")?;
    let attention_bias = reader.flag("attention_bias", false)?;
    let layers = reader.dimension("num_hidden_layers", MAX_LAYERS)?;
    let model = Model {
        heads,
        kv_heads: heads,
        head_dim: hidden / heads,
        ffn: reader.dimension("intermediate_size", MAX_FFN)?,
        vocabulary: reader.dimension("vocab_size", MAX_VOCABULARY)?,
        vocabulary_multiple: reader.vocabulary_multiple()?,
        max_sequence: reader.dimension("max_position_embeddings", MAX_POSITIONS)?,
        norm: Norm::LayerNorm,
        embedding_norm: true,
        activation: reader.activation("hidden_activation", Function::Gelu)?,
        qkv_bias: attention_bias,
        attention_output_bias: attention_bias,
        mlp_bias: reader.flag("mlp_bias", false)?,
        causal: false,
        dropout: Dropout {
            embedding: reader.probability("embedding_dropout", 0.0)?,
            attention: reader.probability("attention_dropout", 0.0)?,
            residual: 0.0,
            activation: reader.probability("mlp_dropout", 0.0)?,
        },
        tied_head: reader.flag("tie_word_embeddings", true)?,
        head_transform: true,
        head_bias: reader.flag("decoder_bias", true)?,
        variations: Variations {
            norm_without_bias: !reader.flag("norm_bias", false)?,
            transform_without_bias: true,
            ..Variations::default()
        },
        ..bare(reader, hidden)
    };
    let period = reader.dimension("global_attn_every_n_layers", MAX_LAYERS)?;
    // Half of them before a token and half behind it, and its own.
    let window = reader.dimension("local_attention", MAX_POSITIONS)? / 2 * 2 + 1;
    let windowed = |layer: u64| !layer.is_multiple_of(period) && window < model.max_sequence;
    let kind = |layer| LayerKind {
        window: windowed(layer).then_some(window),
        // The embedding's norm is the first layer's.
        without_first_norm: layer == 0,
        ..LayerKind::default()
    };
    let kinds: Vec<LayerKind> = (0..layers).map(kind).collect();
    Ok(model.with_layers(&[], &kinds))
}
