//! Gemma: a head dimension of its own, a gated GELU, a tied head. Gemma 2 and 3 have norms before and after attention
//! and MLP, and windows in some layers. Gemma 3 also normalises queries and keys.

use super::ModelFamily;
use super::llama::{self, LlamaDefaults, SYNONYMS, read_with_defaults};
use super::llama_like::with_variations;
use super::reader::ConfigReader;
use super::windows;
use crate::error::WorkloadError;
use crate::limits::MAX_POSITIONS;
use crate::model::{Model, NormPlacement};
use crate::variations::QueryKeyNorm;
use sim::kernel::ElementwiseFunction;

pub(super) const GEMMA: ModelFamily = ModelFamily {
    model_types: &["gemma"],
    keys: &[llama::KEYS, &["hidden_activation"]],
    defaults: &[("head_dim", 256), ("num_key_value_heads", 16)],
    synonyms: SYNONYMS,
    read: read_gemma,
};

pub(super) const GEMMA2: ModelFamily = ModelFamily {
    model_types: &["gemma2"],
    keys: &[llama::KEYS, &["hidden_activation", "layer_types", "sliding_window"]],
    defaults: &[("head_dim", 256), ("num_key_value_heads", 4), ("sliding_window", 4096)],
    synonyms: SYNONYMS,
    read: |reader| {
        let model = Model { norm_placement: NormPlacement::Sandwich, ..read_gemma(reader)? };
        add_gemma_windows(reader, model, 2)
    },
};

/// The text model of Gemma 3, whose files omit the defaults of its class.
pub(super) const GEMMA3: ModelFamily = ModelFamily {
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
        let word = reader.first_given_key(&["sliding_window_pattern", "_sliding_window_pattern"]);
        let model =
            add_gemma_windows(reader, model, reader.read_optional_dimension(word, MAX_POSITIONS)?.unwrap_or(6))?;
        Ok(with_variations(model, |v| v.query_key_norm = Some(QueryKeyNorm::Head)))
    },
};

fn read_gemma(reader: &ConfigReader<'_>) -> Result<Model, WorkloadError> {
    let model = read_with_defaults(
        reader,
        LlamaDefaults { tied: true, activation: ElementwiseFunction::Gelu, ..LlamaDefaults::LLAMA },
    )?;
    // If both are given, transformers uses `hidden_activation`.
    let activation = reader.read_activation("hidden_activation", ElementwiseFunction::Gelu)?;
    Ok(Model { activation, ..model })
}

fn add_gemma_windows(reader: &ConfigReader<'_>, model: Model, period: u64) -> Result<Model, WorkloadError> {
    match reader.read_window()? {
        Some(window) => windows::add_windows_by_type(reader, model, window, period),
        None => Ok(model),
    }
}
