//! BERT: post-norm, token types, and a masked-language-model head (a product, an activation, a norm, tied logits with a
//! bias). Megatron-BERT has norms before attention and MLP, a norm after the last layer, and none on the embedding.
//! [`super::heads`] reads other heads (`architectures`).

use super::ModelFamily;
use super::reader::{ConfigReader, NamedNumber};
use crate::error::WorkloadError;
use crate::layer_list::LayerList;
use crate::limits::{MAX_FFN, MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_VOCABULARY, MAX_WIDTH};
use crate::model::{Dropout, Model, Norm, NormPlacement, PositionEncoding};
use crate::variations::Variations;
use sim::kernel::ElementwiseFunction;

pub(super) const FAMILY: ModelFamily = ModelFamily {
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
    read: read_bert,
};

/// RoBERTa: BERT with two position rows before the first position (`padding_idx + 1`).
pub(super) const ROBERTA: ModelFamily =
    ModelFamily { model_types: &["roberta", "xlm-roberta", "camembert"], read: read_roberta, ..FAMILY };

fn read_roberta(reader: &ConfigReader<'_>) -> Result<Model, WorkloadError> {
    let model = read_bert(reader)?;
    let Some(longest) = model.max_sequence.checked_sub(2).filter(|longest| *longest > 0) else {
        let cure = "the table has two rows before the first position: write for instance 514";
        return Err(reader.value_error("max_position_embeddings", model.max_sequence, "at least 3", cure));
    };
    Ok(Model { max_sequence: longest, ..model })
}

fn read_bert(reader: &ConfigReader<'_>) -> Result<Model, WorkloadError> {
    let hidden = reader.read_dimension("hidden_size", MAX_WIDTH)?;
    let heads = reader.read_dimension("num_attention_heads", MAX_HEADS)?;
    reader.check_divides(
        NamedNumber { key: "num_attention_heads", value: heads },
        NamedNumber { key: "hidden_size", value: hidden },
    )?;
    let positions = reader.read_dimension("max_position_embeddings", MAX_POSITIONS)?;
    reader.require_text(
        "position_embedding_type",
        "absolute",
        "relative positions are not supported: give a model with absolute ones",
    )?;
    let residual = reader.read_probability("hidden_dropout_prob", 0.1)?;
    let post = reader.model_type != "megatron-bert";
    Ok(Model {
        name: reader.name.to_owned(),
        family: reader.model_type.clone(),
        layers: reader.read_dimension("num_hidden_layers", MAX_LAYERS)?,
        hidden,
        heads,
        kv_heads: heads,
        head_dim: hidden / heads,
        ffn: reader.read_dimension("intermediate_size", MAX_FFN)?,
        experts: None,
        vocabulary: reader.read_dimension("vocab_size", MAX_VOCABULARY)?,
        vocabulary_multiple: reader.read_vocabulary_multiple()?,
        max_sequence: positions,
        embedding_width: hidden,
        position: PositionEncoding::Learned { rows: positions },
        token_types: reader.read_count("type_vocab_size", MAX_VOCABULARY, 2)?,
        norm: Norm::LayerNorm,
        norm_affine: true,
        norm_placement: if post { NormPlacement::Post } else { NormPlacement::Pre },
        embedding_norm: post,
        final_norm: !post,
        activation: reader.read_activation("hidden_act", ElementwiseFunction::Gelu)?,
        gated: false,
        qkv_bias: true,
        attention_output_bias: true,
        mlp_bias: true,
        causal: reader.read_flag("is_decoder", false)?,
        dropout: Dropout {
            embedding: residual,
            attention: reader.read_probability("attention_probs_dropout_prob", 0.1)?,
            residual,
            activation: 0.0,
        },
        tied_head: reader.read_flag("tie_word_embeddings", true)?,
        head_transform: true,
        head_bias: true,
        variations: Variations::default(),
        list: LayerList::default(),
        documents: Vec::new(),
        assumptions: Vec::new(),
    })
}
