//! ViT (Dosovitskiy et al. 2021) and both towers of CLIP (Radford et al. 2021): pre-norm layers with biases. In image
//! models, a learned token precedes the patches. The head reads one token per sequence.

use super::ModelFamily;
use super::labels::read_labels;
use super::llama::llama_without_sizes;
use super::reader::{ConfigReader, NamedNumber};
use crate::error::WorkloadError;
use crate::limits::{MAX_FFN, MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_VOCABULARY, MAX_WIDTH};
use crate::model::{Dropout, Model, Norm, PositionEncoding};
use crate::variations::{Patches, TaskHead, Variations};
use sim::kernel::ElementwiseFunction;

const LAYERS: &[&str] = &[
    "attention_dropout",
    "hidden_act",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_hidden_layers",
];

const IMAGES: &[&str] = &["image_size", "num_channels", "patch_size"];

pub(super) const FAMILY: ModelFamily = ModelFamily {
    model_types: &["vit"],
    keys: &[
        LAYERS,
        IMAGES,
        &[
            "attention_probs_dropout_prob",
            // Only the class that predicts masked patches reads this key.
            "encoder_stride",
            "hidden_dropout_prob",
            "id2label",
            "num_labels",
            "pooler_output_size",
            "qkv_bias",
        ],
    ],
    defaults: &[
        ("image_size", 224),
        ("intermediate_size", 3072),
        ("num_attention_heads", 12),
        ("num_channels", 3),
        ("patch_size", 16),
    ],
    synonyms: &[],
    read: |reader| {
        let outputs = read_labels(reader)?;
        let model = read_image_model(reader, TaskHead::on_one_token(outputs, true), true)?;
        let pooled = reader.read_optional_dimension("pooler_output_size", MAX_WIDTH)?.unwrap_or(model.hidden);
        if pooled != model.hidden {
            let limit = format!("`hidden_size` ({}): a pooler of another width is not covered", model.hidden);
            return Err(reader.value_error("pooler_output_size", pooled, &limit, "leave it out"));
        }
        let residual = reader.read_probability("hidden_dropout_prob", 0.0)?;
        let attention = reader.read_probability("attention_probs_dropout_prob", 0.0)?;
        let dropout = Dropout { embedding: residual, attention, residual, ..model.dropout };
        Ok(Model { qkv_bias: reader.read_flag("qkv_bias", true)?, dropout, ..model })
    },
};

/// CLIP's image tower: a norm before the layers, and a projection instead of classes.
pub(super) const CLIP_VISION: ModelFamily = ModelFamily {
    model_types: &["clip_vision_model"],
    keys: &[LAYERS, IMAGES, &["projection_dim"]],
    defaults: &[
        ("hidden_size", 768),
        ("image_size", 224),
        ("intermediate_size", 3072),
        ("num_attention_heads", 12),
        ("num_channels", 3),
        ("num_hidden_layers", 12),
        ("patch_size", 32),
        ("projection_dim", 512),
    ],
    synonyms: &[],
    read: |reader| {
        let outputs = reader.read_dimension("projection_dim", MAX_WIDTH)?;
        read_contrastive_head(reader);
        Ok(Model { embedding_norm: true, ..read_image_model(reader, TaskHead::on_one_token(outputs, false), false)? })
    },
};

/// CLIP's text tower, which is causal.
pub(super) const CLIP_TEXT: ModelFamily = ModelFamily {
    model_types: &["clip_text_model", "clip"],
    keys: &[LAYERS, &["max_position_embeddings", "projection_dim", "vocab_size"]],
    defaults: &[
        ("hidden_size", 512),
        ("intermediate_size", 2048),
        ("max_position_embeddings", 77),
        ("num_attention_heads", 8),
        ("num_hidden_layers", 12),
        ("projection_dim", 512),
        ("vocab_size", 49_408),
    ],
    synonyms: &[],
    read: |reader| {
        let head = TaskHead::on_one_token(reader.read_dimension("projection_dim", MAX_WIDTH)?, false);
        read_contrastive_head(reader);
        let positions = reader.read_dimension("max_position_embeddings", MAX_POSITIONS)?;
        let model = image_layers(reader, positions, head)?;
        Ok(Model { causal: true, vocabulary: reader.read_dimension("vocab_size", MAX_VOCABULARY)?, ..model })
    },
};

fn read_contrastive_head(reader: &ConfigReader<'_>) {
    reader.note_assumption(
        "one tower is trained by itself: its loss covers the projection's numbers; the scores of all pairs of a batch \
         are left out"
            .to_owned(),
    );
}

/// Returns a model of images; `bias` states whether the product of patches has a bias.
fn read_image_model(reader: &ConfigReader<'_>, head: TaskHead, bias: bool) -> Result<Model, WorkloadError> {
    let (image, patch) =
        (reader.read_dimension("image_size", MAX_WIDTH)?, reader.read_dimension("patch_size", MAX_WIDTH)?);
    reader.check_divides(
        NamedNumber { key: "patch_size", value: patch },
        NamedNumber { key: "image_size", value: image },
    )?;
    let numbers = patch.saturating_mul(patch).saturating_mul(reader.read_dimension("num_channels", MAX_WIDTH)?);
    let side = image / patch;
    let tokens = side.saturating_mul(side).saturating_add(1);
    if tokens > MAX_POSITIONS {
        return Err(reader.value_error(
            "image_size",
            image,
            &format!("such that there are at most {MAX_POSITIONS} patches"),
            "correct it",
        ));
    }
    let mut model = image_layers(reader, tokens, head)?;
    model.variations.patches = Some(Patches { numbers, bias, without_first_token: false });
    Ok(Model { vocabulary: head.outputs, ..model })
}

fn image_layers(reader: &ConfigReader<'_>, tokens: u64, head: TaskHead) -> Result<Model, WorkloadError> {
    let hidden = reader.read_dimension("hidden_size", MAX_WIDTH)?;
    let heads = reader.read_dimension("num_attention_heads", MAX_HEADS)?;
    reader.check_divides(
        NamedNumber { key: "num_attention_heads", value: heads },
        NamedNumber { key: "hidden_size", value: hidden },
    )?;
    Ok(Model {
        layers: reader.read_dimension("num_hidden_layers", MAX_LAYERS)?,
        heads,
        kv_heads: heads,
        head_dim: hidden / heads,
        ffn: reader.read_dimension("intermediate_size", MAX_FFN)?,
        max_sequence: tokens,
        position: PositionEncoding::Learned { rows: tokens },
        norm: Norm::LayerNorm,
        activation: reader.read_activation("hidden_act", ElementwiseFunction::Gelu)?,
        gated: false,
        qkv_bias: true,
        attention_output_bias: true,
        mlp_bias: true,
        causal: false,
        dropout: Dropout { attention: reader.read_probability("attention_dropout", 0.0)?, ..Dropout::default() },
        variations: Variations { task_head: Some(head), ..Variations::default() },
        ..llama_without_sizes(reader, hidden)
    })
}
