//! OPT: learned positions with two more rows than the longest sequence, ReLU, biases, and a tied head. OPT-350m has its
//! norms after the residual sums, and its token embedding is narrower than its layers.

use super::ModelFamily;
use super::reader::{ConfigReader, NamedNumber};
use crate::error::WorkloadError;
use crate::layer_list::LayerList;
use crate::limits::{MAX_FFN, MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_VOCABULARY, MAX_WIDTH};
use crate::model::{Dropout, Model, Norm, NormPlacement, PositionEncoding};
use crate::variations::Variations;
use sim::kernel::ElementwiseFunction;

pub(super) const FAMILY: ModelFamily = ModelFamily {
    model_types: &["opt"],
    keys: &[&[
        "_remove_final_layer_norm",
        "activation_dropout",
        "activation_function",
        "attention_dropout",
        "do_layer_norm_before",
        "dropout",
        "enable_bias",
        "ffn_dim",
        "hidden_size",
        "layer_norm_elementwise_affine",
        "layerdrop",
        "max_position_embeddings",
        "num_attention_heads",
        "num_hidden_layers",
        "vocab_size",
        "word_embed_proj_dim",
    ]],
    defaults: &[],
    synonyms: &[("intermediate_size", "ffn_dim"), ("hidden_act", "activation_function"), ("n_embd", "hidden_size")],
    read: read_opt,
};

/// Rows of the position table before the first position (`OPTLearnedPositionalEmbedding.offset`).
const POSITION_OFFSET: u64 = 2;

fn read_opt(reader: &ConfigReader<'_>) -> Result<Model, WorkloadError> {
    let hidden = reader.read_dimension("hidden_size", MAX_WIDTH)?;
    let heads = reader.read_dimension("num_attention_heads", MAX_HEADS)?;
    reader.check_divides(
        NamedNumber { key: "num_attention_heads", value: heads },
        NamedNumber { key: "hidden_size", value: hidden },
    )?;
    let positions = reader.read_dimension("max_position_embeddings", MAX_POSITIONS)?;
    let pre = reader.read_flag("do_layer_norm_before", true)?;
    let bias = reader.read_flag("enable_bias", true)?;
    if reader.read_probability("layerdrop", 0.0)? > 0.0 {
        let cure = "dropping whole layers makes the work of a step random: set it to 0.0";
        return Err(reader.value_error("layerdrop", reader.read_probability("layerdrop", 0.0)?, "0.0", cure));
    }
    let residual = reader.read_probability("dropout", 0.1)?;
    Ok(Model {
        name: reader.name.to_owned(),
        family: reader.model_type.clone(),
        layers: reader.read_dimension("num_hidden_layers", MAX_LAYERS)?,
        hidden,
        heads,
        kv_heads: heads,
        head_dim: hidden / heads,
        ffn: reader.read_dimension("ffn_dim", MAX_FFN)?,
        experts: None,
        vocabulary: reader.read_dimension("vocab_size", MAX_VOCABULARY)?,
        vocabulary_multiple: reader.read_vocabulary_multiple()?,
        max_sequence: positions,
        embedding_width: reader.read_optional_dimension("word_embed_proj_dim", MAX_WIDTH)?.unwrap_or(hidden),
        position: PositionEncoding::Learned { rows: positions + POSITION_OFFSET },
        token_types: 0,
        norm: Norm::LayerNorm,
        norm_affine: reader.read_flag("layer_norm_elementwise_affine", true)?,
        norm_placement: if pre { NormPlacement::Pre } else { NormPlacement::Post },
        embedding_norm: false,
        final_norm: pre && !reader.read_flag("_remove_final_layer_norm", false)?,
        activation: reader.read_activation("activation_function", ElementwiseFunction::Relu)?,
        gated: false,
        qkv_bias: bias,
        attention_output_bias: bias,
        mlp_bias: bias,
        causal: true,
        dropout: Dropout {
            embedding: 0.0,
            attention: reader.read_probability("attention_dropout", 0.0)?,
            residual,
            activation: reader.read_probability("activation_dropout", 0.0)?,
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
