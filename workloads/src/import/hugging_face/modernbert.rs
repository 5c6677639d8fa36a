//! ModernBERT (Warner et al. 2024): an encoder with rotary positions, gated MLPs, norms before the branches, and
//! windows in all layers except every third.

use super::ModelFamily;
use super::llama::llama_without_sizes;
use super::reader::{ConfigReader, NamedNumber};
use super::windows;
use crate::error::WorkloadError;
use crate::layer_list::{KeyWindow, LayerKind};
use crate::limits::{MAX_FFN, MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_VOCABULARY, MAX_WIDTH};
use crate::model::{Dropout, Model, Norm};
use crate::variations::Variations;
use sim::kernel::ElementwiseFunction;

pub(super) const FAMILY: ModelFamily = ModelFamily {
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
        "layer_types",
        "local_attention",
        "max_position_embeddings",
        "mlp_bias",
        "mlp_dropout",
        "norm_bias",
        "num_attention_heads",
        "num_hidden_layers",
        // Transformers' base class writes this key; positions are rotated whatever it states.
        "position_embedding_type",
        "vocab_size",
    ]],
    defaults: &[
        ("global_attn_every_n_layers", 3),
        ("intermediate_size", 1152),
        ("local_attention", 128),
        ("max_position_embeddings", 8192),
        ("num_attention_heads", 12),
    ],
    synonyms: &[],
    read: read_modernbert,
};

fn read_modernbert(reader: &ConfigReader<'_>) -> Result<Model, WorkloadError> {
    let hidden = reader.read_dimension("hidden_size", MAX_WIDTH)?;
    let heads = reader.read_dimension("num_attention_heads", MAX_HEADS)?;
    reader.check_divides(
        NamedNumber { key: "num_attention_heads", value: heads },
        NamedNumber { key: "hidden_size", value: hidden },
    )?;
    reader.forbid_flag("classifier_bias", "a bias of the head's first product is not covered: set it to false")?;
    let attention_bias = reader.read_flag("attention_bias", false)?;
    let layers = reader.read_dimension("num_hidden_layers", MAX_LAYERS)?;
    let model = Model {
        heads,
        kv_heads: heads,
        head_dim: hidden / heads,
        ffn: reader.read_dimension("intermediate_size", MAX_FFN)?,
        vocabulary: reader.read_dimension("vocab_size", MAX_VOCABULARY)?,
        vocabulary_multiple: reader.read_vocabulary_multiple()?,
        max_sequence: reader.read_dimension("max_position_embeddings", MAX_POSITIONS)?,
        norm: Norm::LayerNorm,
        embedding_norm: true,
        activation: reader.read_activation("hidden_activation", ElementwiseFunction::Gelu)?,
        qkv_bias: attention_bias,
        attention_output_bias: attention_bias,
        mlp_bias: reader.read_flag("mlp_bias", false)?,
        causal: false,
        dropout: Dropout {
            embedding: reader.read_probability("embedding_dropout", 0.0)?,
            attention: reader.read_probability("attention_dropout", 0.0)?,
            residual: 0.0,
            activation: reader.read_probability("mlp_dropout", 0.0)?,
        },
        tied_head: reader.read_flag("tie_word_embeddings", true)?,
        head_transform: true,
        head_bias: reader.read_flag("decoder_bias", true)?,
        variations: Variations {
            norm_without_bias: !reader.read_flag("norm_bias", false)?,
            transform_without_bias: true,
            ..Variations::default()
        },
        ..llama_without_sizes(reader, hidden)
    };
    let period = reader.read_dimension("global_attn_every_n_layers", MAX_LAYERS)?;
    // A token sees half of the window before it, half after it, and itself.
    let window = reader.read_dimension("local_attention", MAX_POSITIONS)? / 2 * 2 + 1;
    let types = windows::read_layer_types(reader, layers)?;
    let by_type = |layer: u64| types.as_ref().map(|types| types[layer as usize] == "sliding_attention");
    let sees_part = |layer: u64| by_type(layer).unwrap_or(!layer.is_multiple_of(period));
    let windowed = |layer: u64| sees_part(layer) && window < model.max_sequence;
    let kind = |layer| LayerKind {
        window: windowed(layer).then_some(KeyWindow::Sliding(window)),
        // The embedding's norm replaces the first norm of the first layer.
        without_first_norm: layer == 0,
        ..LayerKind::default()
    };
    let kinds: Vec<LayerKind> = (0..layers).map(kind).collect();
    Ok(model.with_layers(&[], &kinds))
}
