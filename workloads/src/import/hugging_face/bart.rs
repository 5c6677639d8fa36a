//! BART (Lewis et al. 2020) and its relatives: an encoder and a decoder with cross attention, tables of positions, and
//! biases. The relatives differ in their norms and tables ([`RELATIVES`]). Whisper is a relative whose encoder reads
//! sound.

use super::ModelFamily;
use super::llama::llama_without_sizes;
use super::reader::{ConfigReader, NamedNumber};
use crate::error::WorkloadError;
use crate::layer_list::{AttentionShape, EncoderDecoderSide, FeedForward, LayerKind, LayerList};
use crate::limits::{MAX_FFN, MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_VOCABULARY, MAX_WIDTH};
use crate::model::{Dropout, Model, Norm, NormPlacement, PositionEncoding};
use crate::variations::{SoundFrames, Variations};
use sim::kernel::ElementwiseFunction;

/// A relative of BART, by its differences.
struct BartRelative {
    model_type: &'static str,
    /// True if norms precede every branch and end each side, instead of following every sum.
    normalises_before: bool,
    /// True if the embedding of each side has a norm.
    embedding_norm: bool,
    /// The table of positions.
    table: PositionTable,
    /// The nonlinearity if the file names none.
    activation: ElementwiseFunction,
    /// The key of the decoder's longest sequence.
    longest: &'static str,
    /// True if the encoder reads sound.
    sound: bool,
    /// True if keys have no bias.
    key_without_bias: bool,
}

/// The table of positions of each side.
enum PositionTable {
    /// Trained, with `before` rows before the first position (`BartLearnedPositionalEmbedding`: `offset`).
    Learned { before: u64 },
    /// Sines that are parameters in transformers, without gradients.
    Fixed,
    /// Sines that are not parameters.
    Computed,
}

const BART: BartRelative = BartRelative {
    model_type: "bart",
    normalises_before: false,
    embedding_norm: true,
    table: PositionTable::Learned { before: 2 },
    activation: ElementwiseFunction::Gelu,
    longest: "max_position_embeddings",
    sound: false,
    key_without_bias: false,
};
const BLENDERBOT: BartRelative = BartRelative {
    model_type: "blenderbot",
    normalises_before: true,
    embedding_norm: false,
    table: PositionTable::Learned { before: 0 },
    ..BART
};

/// BART and its relatives, as transformers 5.17 builds them.
static RELATIVES: &[BartRelative] = &[
    BART,
    BartRelative { model_type: "plbart", ..BART },
    BartRelative { model_type: "mbart", normalises_before: true, ..BART },
    BartRelative { model_type: "blenderbot-small", table: PositionTable::Learned { before: 0 }, ..BART },
    BartRelative { model_type: "marian", embedding_norm: false, table: PositionTable::Fixed, ..BART },
    BLENDERBOT,
    BartRelative { model_type: "pegasus", table: PositionTable::Fixed, ..BLENDERBOT },
    BartRelative {
        model_type: "m2m_100",
        table: PositionTable::Computed,
        activation: ElementwiseFunction::Relu,
        ..BLENDERBOT
    },
    BartRelative {
        model_type: "whisper",
        longest: "max_target_positions",
        sound: true,
        key_without_bias: true,
        ..BLENDERBOT
    },
];

pub(super) const FAMILY: ModelFamily = ModelFamily {
    model_types: &["bart", "blenderbot", "blenderbot-small", "m2m_100", "marian", "mbart", "pegasus", "plbart"],
    keys: &[
        SIDES,
        &[
            "add_bias_logits",
            "add_final_layer_norm",
            "decoder_vocab_size",
            "max_position_embeddings",
            "normalize_before",
            "normalize_embedding",
            "share_encoder_decoder_embeddings",
        ],
    ],
    defaults: &[],
    synonyms: SYNONYMS,
    read: read_bart,
};

/// Whisper (Radford et al. 2022), as transformers 5.17 builds it: the encoder reads sound.
pub(super) const WHISPER: ModelFamily = ModelFamily {
    model_types: &["whisper"],
    keys: &[SIDES, &["max_source_positions", "max_target_positions", "num_mel_bins"]],
    defaults: &[("max_source_positions", 1500), ("max_target_positions", 448), ("num_mel_bins", 80)],
    synonyms: SYNONYMS,
    read: read_bart,
};

const SYNONYMS: &[(&str, &str)] = &[("hidden_size", "d_model"), ("num_attention_heads", "encoder_attention_heads")];

/// Keys that describe both sides' layers.
const SIDES: &[&str] = &[
    "activation_dropout",
    "activation_function",
    "attention_dropout",
    "d_model",
    "decoder_attention_heads",
    "decoder_ffn_dim",
    "decoder_layers",
    "dropout",
    "encoder_attention_heads",
    "encoder_ffn_dim",
    "encoder_layers",
    "num_hidden_layers",
    "vocab_size",
];

fn read_bart(reader: &ConfigReader<'_>) -> Result<Model, WorkloadError> {
    let hidden = reader.read_dimension("d_model", MAX_WIDTH)?;
    let encoder_heads = read_heads(reader, "encoder_attention_heads", hidden)?;
    let heads = read_heads(reader, "decoder_attention_heads", hidden)?;
    let encoder_ffn = reader.read_dimension("encoder_ffn_dim", MAX_FFN)?;
    let ffn = reader.read_dimension("decoder_ffn_dim", MAX_FFN)?;
    let encoder_layers = reader.read_dimension("encoder_layers", MAX_LAYERS)?;
    let vocabulary = reader.read_dimension("vocab_size", MAX_VOCABULARY)?;
    let relative = RELATIVES.iter().find(|relative| relative.model_type == reader.model_type).unwrap_or(&BART);
    check_sides(reader, relative, encoder_layers, vocabulary)?;
    let max_sequence = reader.read_dimension(relative.longest, MAX_POSITIONS)?;
    let rows = rows_of_positions(reader, relative, max_sequence);
    let frames = if relative.sound { Some(read_frames(reader)?) } else { None };
    note_encoded_length(reader, frames, max_sequence);
    let encoder = LayerKind {
        attention: (encoder_heads != heads).then(|| encoder_attention(encoder_heads, hidden)),
        side: EncoderDecoderSide::Encoder,
        feed: if encoder_ffn == ffn { FeedForward::Own } else { FeedForward::Mlp(encoder_ffn) },
        ..LayerKind::default()
    };
    let normalises_before = relative.normalises_before;
    let rate = reader.read_probability("dropout", 0.1)?;
    Ok(Model {
        layers: reader.read_dimension("decoder_layers", MAX_LAYERS)?,
        heads,
        kv_heads: heads,
        head_dim: hidden / heads,
        ffn,
        vocabulary,
        vocabulary_multiple: reader.read_vocabulary_multiple()?,
        max_sequence,
        position: PositionEncoding::Learned { rows },
        norm: Norm::LayerNorm,
        norm_placement: if normalises_before { NormPlacement::Pre } else { NormPlacement::Post },
        embedding_norm: relative.embedding_norm,
        final_norm: normalises_before,
        activation: reader.read_activation("activation_function", relative.activation)?,
        gated: false,
        qkv_bias: true,
        attention_output_bias: true,
        mlp_bias: true,
        dropout: Dropout {
            embedding: rate,
            attention: reader.read_probability("attention_dropout", 0.0)?,
            residual: rate,
            activation: reader.read_probability("activation_dropout", 0.0)?,
        },
        tied_head: reader.read_flag("tie_word_embeddings", true)?,
        variations: Variations {
            side: EncoderDecoderSide::Decoder,
            key_without_bias: relative.key_without_bias,
            frames,
            ..Variations::default()
        },
        list: LayerList { leading: vec![encoder; encoder_layers as usize], ..LayerList::default() },
        ..llama_without_sizes(reader, hidden)
    })
}

fn read_heads(reader: &ConfigReader<'_>, key: &'static str, hidden: u64) -> Result<u64, WorkloadError> {
    let heads = reader.read_dimension(key, MAX_HEADS)?;
    reader
        .check_divides(NamedNumber { key, value: heads }, NamedNumber { key: "d_model", value: hidden })
        .map(|()| heads)
}

fn encoder_attention(heads: u64, hidden: u64) -> AttentionShape {
    AttentionShape { heads, kv_heads: heads, head_dim: hidden / heads, sinks: false, shared_value: false }
}

fn note_encoded_length(reader: &ConfigReader<'_>, frames: Option<SoundFrames>, max_sequence: u64) {
    let encoded = match frames {
        Some(frames) => format!("every sequence has {} tokens in the encoder", frames.tokens),
        None => format!("the decoder's sequences are as long as the encoder's ({max_sequence} tokens by default)"),
    };
    reader.note_assumption(format!("{encoded}; the encoder stays on a pipeline's first stage"));
}

/// Reads the sizes of an encoder of sound.
fn read_frames(reader: &ConfigReader<'_>) -> Result<SoundFrames, WorkloadError> {
    let bins = reader.read_dimension("num_mel_bins", MAX_WIDTH)?;
    let tokens = reader.read_dimension("max_source_positions", MAX_POSITIONS)?;
    reader.note_assumption("the encoder's fixed table of positions is costed as a trained one".to_owned());
    Ok(SoundFrames { bins, tokens })
}

/// Refuses features that the family's model classes do not build, and sides that do not share vocabulary and embedding.
fn check_sides(
    reader: &ConfigReader<'_>,
    relative: &BartRelative,
    encoder_layers: u64,
    vocabulary: u64,
) -> Result<(), WorkloadError> {
    if let Some(other) = reader.read_optional_dimension("num_hidden_layers", MAX_LAYERS)?
        && other != encoder_layers
    {
        let limit = format!("`encoder_layers` ({encoder_layers}), the same number in transformers");
        return Err(reader.value_error("num_hidden_layers", other, &limit, "leave it out"));
    }
    if let Some(other) = reader.read_optional_dimension("decoder_vocab_size", MAX_VOCABULARY)?
        && other != vocabulary
    {
        let limit = format!("`vocab_size` ({vocabulary}): sides with vocabularies of their own are not covered");
        return Err(reader.value_error("decoder_vocab_size", other, &limit, "give a model with one vocabulary"));
    }
    if !reader.read_flag("share_encoder_decoder_embeddings", true)? {
        let limit = "true: sides with embeddings of their own are not covered";
        let cure = "give a model with one embedding";
        return Err(reader.value_error("share_encoder_decoder_embeddings", false, limit, cure));
    }
    for (key, only) in [
        ("add_bias_logits", false),
        ("add_final_layer_norm", relative.normalises_before),
        ("normalize_before", relative.normalises_before),
        ("normalize_embedding", relative.embedding_norm),
    ] {
        reader.require_flag(key, only, "transformers builds this family with that value alone: correct the key")?;
    }
    reader.refuse_null("activation_function")
}

/// Returns the number of rows in a side's table of positions that are counted as trained.
fn rows_of_positions(reader: &ConfigReader<'_>, relative: &BartRelative, max_sequence: u64) -> u64 {
    match relative.table {
        PositionTable::Learned { before } => max_sequence + before,
        PositionTable::Fixed => {
            reader.note_assumption("the fixed tables of positions are costed as trained ones".to_owned());
            max_sequence
        }
        PositionTable::Computed => 0,
    }
}
