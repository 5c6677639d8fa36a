//! RWKV 4 (Peng et al. 2023, arXiv:2305.13048). Defaults are those of transformers 5.24.

use super::ModelFamily;
use super::llama::llama_without_sizes;
use crate::layer_list::Mixer;
use crate::limits::{MAX_FFN, MAX_LAYERS, MAX_POSITIONS, MAX_VOCABULARY, MAX_WIDTH};
use crate::model::{Model, Norm, PositionEncoding};
use crate::variations::{Recurrence, Variations};
use sim::kernel::ElementwiseFunction;

pub(super) const FAMILY: ModelFamily = ModelFamily {
    model_types: &["rwkv"],
    keys: &[&[
        "attention_hidden_size",
        "context_length",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        // This key scales weights only in inference.
        "rescale_every",
        "vocab_size",
    ]],
    defaults: &[("context_length", 1024)],
    synonyms: &[("max_position_embeddings", "context_length")],
    read: |reader| {
        let hidden = reader.read_dimension("hidden_size", MAX_WIDTH)?;
        let width = reader.read_optional_dimension("attention_hidden_size", MAX_WIDTH)?.unwrap_or(hidden);
        let ffn = reader.read_optional_dimension("intermediate_size", MAX_FFN)?.unwrap_or(4 * hidden);
        Ok(Model {
            layers: reader.read_dimension("num_hidden_layers", MAX_LAYERS)?,
            // The model has no attention; its channels are split over devices like heads.
            heads: width,
            kv_heads: width,
            head_dim: 1,
            ffn,
            vocabulary: reader.read_dimension("vocab_size", MAX_VOCABULARY)?,
            vocabulary_multiple: reader.read_vocabulary_multiple()?,
            max_sequence: reader.read_dimension("context_length", MAX_POSITIONS)?,
            position: PositionEncoding::None,
            norm: Norm::LayerNorm,
            embedding_norm: true,
            // Squared ReLU keeps its input for its derivative, like leaky ReLU. Its extra multiplication is on chip.
            activation: ElementwiseFunction::LeakyRelu,
            gated: false,
            tied_head: reader.read_flag("tie_word_embeddings", false)?,
            variations: Variations {
                mixer: Mixer::Recurrence,
                recurrence: Some(Recurrence { width }),
                ..Variations::default()
            },
            ..llama_without_sizes(reader, hidden)
        })
    },
};
