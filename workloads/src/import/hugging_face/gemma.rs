//! Gemma: heads of a dimension of their own, a gated GELU, a tied head; Gemma 2 and 3 normalise before and after attention and MLP and see windows in
//! some layers; Gemma 3 normalises queries and keys.

use super::Family;
use super::llama::{self, Defaults, SYNONYMS, read_with};
use super::llama_like::with;
use super::reader::Reader;
use super::windows;
use crate::error::WorkloadError;
use crate::limits::MAX_POSITIONS;
use crate::model::{Model, NormPlacement};
use crate::variations::QueryKeyNorm;
use sim::kernel::Function;

pub(super) const GEMMA: Family = Family {
    model_types: &["gemma"],
    keys: &[llama::KEYS, &["hidden_activation"]],
    defaults: &[("head_dim", 256), ("num_key_value_heads", 16)],
    synonyms: SYNONYMS,
    read: read_gemma,
};

pub(super) const GEMMA2: Family = Family {
    model_types: &["gemma2"],
    keys: &[llama::KEYS, &["hidden_activation", "layer_types", "sliding_window"]],
    defaults: &[("head_dim", 256), ("num_key_value_heads", 4), ("sliding_window", 4096)],
    synonyms: SYNONYMS,
    read: |reader| {
        let model = Model { norm_placement: NormPlacement::Sandwich, ..read_gemma(reader)? };
        with_windows(reader, model, 2)
    },
};

/// The text model of Gemma 3, whose files leave out what its class knows.
pub(super) const GEMMA3: Family = Family {
    model_types: &["gemma3_text", "gemma3"],
    keys: &[
        llama::KEYS,
        &["hidden_activation", "layer_types", "sliding_window", "sliding_window_pattern", "_sliding_window_pattern"],
    ],
    defaults: &[
        ("head_dim", 256),
        ("hidden_size", 2304),
        ("intermediate_size", 9216),
        ("max_position_embeddings", 131_072),
        ("num_attention_heads", 8),
        ("num_hidden_layers", 26),
        ("num_key_value_heads", 4),
        ("sliding_window", 4096),
        ("vocab_size", 262_208),
    ],
    synonyms: SYNONYMS,
    read: |reader| {
        let model = Model { norm_placement: NormPlacement::Sandwich, ..read_gemma(reader)? };
        let word = reader.word(&["sliding_window_pattern", "_sliding_window_pattern"]);
        let model = with_windows(reader, model, reader.optional_dimension(word, MAX_POSITIONS)?.unwrap_or(6))?;
        Ok(with(model, |v| v.query_key_norm = Some(QueryKeyNorm::Head)))
    },
};

fn read_gemma(reader: &Reader<'_>) -> Result<Model, WorkloadError> {
    let model = read_with(reader, Defaults { tied: true, activation: Function::Gelu, ..Defaults::LLAMA })?;
    // Where both are given, `hidden_activation` is what transformers takes.
    let activation = reader.activation("hidden_activation", Function::Gelu)?;
    Ok(Model { activation, ..model })
}

fn with_windows(reader: &Reader<'_>, model: Model, period: u64) -> Result<Model, WorkloadError> {
    match reader.optional_dimension("sliding_window", MAX_POSITIONS)? {
        Some(window) => windows::by_type(reader, model, window, period),
        None => Ok(model),
    }
}
