//! BERT: post-norm, token types, masked-language-model head (a product, an activation, a norm, tied logits with a bias).
//! Megatron-BERT: the same with norms before attention and MLP, one after the last layer, none on the embedding.

use super::Family;
use super::reader::Reader;
use crate::error::WorkloadError;
use crate::layer_list::LayerList;
use crate::limits::{MAX_FFN, MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_VOCABULARY, MAX_WIDTH};
use crate::model::{Dropout, Model, Norm, NormPlacement, Position};
use crate::variations::Variations;
use sim::kernel::Function;

pub(super) const FAMILY: Family = Family {
    model_types: &["bert", "megatron-bert"],
    keys: &[&[
        "attention_probs_dropout_prob",
        "hidden_act",
        "hidden_dropout_prob",
        "hidden_size",
        "intermediate_size",
        "is_decoder",
        "max_position_embeddings",
        "num_attention_heads",
        "num_hidden_layers",
        "position_embedding_type",
        "type_vocab_size",
        "vocab_size",
    ]],
    defaults: &[],
    synonyms: &[("n_embd", "hidden_size"), ("n_layer", "num_hidden_layers"), ("n_head", "num_attention_heads")],
    read,
};

/// RoBERTa: BERT whose position table has two rows before the first position (`padding_idx + 1`).
pub(super) const ROBERTA: Family = Family { model_types: &["roberta", "xlm-roberta", "camembert"], read: read_roberta, ..FAMILY };

fn read_roberta(reader: &Reader<'_>) -> Result<Model, WorkloadError> {
    let model = read(reader)?;
    let Some(longest) = model.max_sequence.checked_sub(2).filter(|longest| *longest > 0) else {
        let cure = "two rows lie before the first position: write for instance 514";
        return Err(reader.error("max_position_embeddings", model.max_sequence, "at least 3", cure));
    };
    Ok(Model { max_sequence: longest, ..model })
}

fn read(reader: &Reader<'_>) -> Result<Model, WorkloadError> {
    let hidden = reader.dimension("hidden_size", MAX_WIDTH)?;
    let heads = reader.dimension("num_attention_heads", MAX_HEADS)?;
    reader.divides(("num_attention_heads", heads), ("hidden_size", hidden))?;
    let positions = reader.dimension("max_position_embeddings", MAX_POSITIONS)?;
    reader.require(
        "position_embedding_type",
        "absolute",
        "relative positions are not supported: give a model with absolute ones",
    )?;
    let residual = reader.probability("hidden_dropout_prob", 0.1)?;
    let post = reader.model_type != "megatron-bert";
    Ok(Model {
        name: reader.name.to_owned(),
        family: reader.model_type.clone(),
        layers: reader.dimension("num_hidden_layers", MAX_LAYERS)?,
        hidden,
        heads,
        kv_heads: heads,
        head_dim: hidden / heads,
        ffn: reader.dimension("intermediate_size", MAX_FFN)?,
        experts: None,
        vocabulary: reader.dimension("vocab_size", MAX_VOCABULARY)?,
        vocabulary_multiple: reader.vocabulary_multiple()?,
        max_sequence: positions,
        embedding_width: hidden,
        position: Position::Learned { rows: positions },
        token_types: reader.count("type_vocab_size", MAX_VOCABULARY, 2)?,
        norm: Norm::LayerNorm,
        norm_affine: true,
        norm_placement: if post { NormPlacement::Post } else { NormPlacement::Pre },
        embedding_norm: post,
        final_norm: !post,
        activation: reader.activation("hidden_act", Function::Gelu)?,
        gated: false,
        qkv_bias: true,
        attention_output_bias: true,
        mlp_bias: true,
        causal: reader.flag("is_decoder", false)?,
        dropout: Dropout {
            embedding: residual,
            attention: reader.probability("attention_probs_dropout_prob", 0.1)?,
            residual,
            activation: 0.0,
        },
        tied_head: reader.flag("tie_word_embeddings", true)?,
        head_transform: true,
        head_bias: true,
        variations: Variations::default(),
        list: LayerList::default(),
        assumptions: Vec::new(),
    })
}
