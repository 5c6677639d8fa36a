//! Families that are Llama with a few differences. Defaults are those of transformers' configuration classes.

use super::ModelFamily;
use super::llama::{self, LlamaDefaults, SYNONYMS, read_with_defaults};
use super::reader::ConfigReader;
use super::windows;
use crate::error::WorkloadError;
use crate::limits::MAX_POSITIONS;
use crate::model::{Dropout, Model, Norm, NormPlacement};
use crate::variations::{ParallelBranches, QueryKeyNorm, Variations};
use sim::kernel::ElementwiseFunction;

/// Mistral: windows in every layer, unless `layer_types` names some.
pub(super) const MISTRAL: ModelFamily = ModelFamily {
    model_types: &["mistral", "ministral", "ministral3"],
    keys: &[llama::KEYS, &["layer_types", "sliding_window"]],
    defaults: &[("num_key_value_heads", 8)],
    synonyms: SYNONYMS,
    read: |reader| {
        let model = read_with_defaults(reader, LlamaDefaults::LLAMA)?;
        // The default of MistralConfig is 4096 if the key is absent, and no window if it is null.
        let absent = (!reader.has_key("sliding_window")).then_some(4096);
        match reader.read_window()?.or(absent) {
            Some(window) => windows::add_windows_by_type(reader, model, window, 0),
            None => Ok(model),
        }
    },
};

/// Qwen 2 and 2.5, MiMo: biases on queries, keys and values.
pub(super) const QWEN2: ModelFamily = ModelFamily {
    model_types: &["qwen2", "mimo", "qwen2_vl", "qwen2_5_vl", "qwen2_vl_text", "qwen2_5_vl_text"],
    keys: &[llama::KEYS, &["layer_types", "max_window_layers", "sliding_window", "use_sliding_window"]],
    defaults: &[("num_key_value_heads", 32)],
    synonyms: SYNONYMS,
    read: |reader| {
        let model = read_with_defaults(reader, LlamaDefaults::LLAMA)?;
        let model = read_upper_windows(reader, model)?;
        Ok(Model { qkv_bias: true, attention_output_bias: false, ..model })
    },
};

/// Qwen 3: norms of queries and keys, no biases.
pub(super) const QWEN3: ModelFamily = ModelFamily {
    model_types: &["qwen3", "qwen3_vl_text"],
    keys: &[llama::KEYS, &["layer_types", "max_window_layers", "sliding_window", "use_sliding_window"]],
    defaults: &[("head_dim", 128), ("num_key_value_heads", 32)],
    synonyms: SYNONYMS,
    read: |reader| {
        let model = read_with_defaults(reader, LlamaDefaults::LLAMA)?;
        let model = read_upper_windows(reader, model)?;
        Ok(with_variations(model, |v| v.query_key_norm = Some(QueryKeyNorm::Head)))
    },
};

/// Phi 3 and 4: joint products of queries, keys and values, and of gate and up; dropout of embedding and results.
pub(super) const PHI3: ModelFamily = ModelFamily {
    model_types: &["phi3"],
    keys: &[llama::KEYS, &["embd_pdrop", "resid_pdrop", "sliding_window"]],
    defaults: &[],
    synonyms: SYNONYMS,
    read: |reader| {
        let mut model = read_with_defaults(reader, LlamaDefaults::LLAMA)?;
        if let Some(window) = reader.read_window()? {
            model = windows::with_window(model, window, |_| true);
        }
        let (embedding, residual) =
            (reader.read_probability("embd_pdrop", 0.0)?, reader.read_probability("resid_pdrop", 0.0)?);
        let dropout = Dropout { embedding, residual, ..model.dropout };
        Ok(Model { dropout, ..model })
    },
};

/// Granite: Llama with factors on its tensors; SmolLM 3: Llama with a tied head.
pub(super) const GRANITE: ModelFamily = ModelFamily {
    model_types: &["granite", "smollm3"],
    keys: &[llama::KEYS, &["layer_types", "max_window_layers", "sliding_window", "use_sliding_window"]],
    defaults: &[],
    synonyms: SYNONYMS,
    read: |reader| {
        read_upper_windows(
            reader,
            read_with_defaults(reader, LlamaDefaults { tied: reader.model_type == "smollm3", ..LlamaDefaults::LLAMA })?,
        )
    },
};

/// OLMo: LayerNorm without parameters.
pub(super) const OLMO: ModelFamily = ModelFamily {
    model_types: &["olmo"],
    keys: &[llama::KEYS],
    defaults: &[],
    synonyms: SYNONYMS,
    read: |reader| {
        Ok(Model { norm: Norm::LayerNorm, norm_affine: false, ..read_with_defaults(reader, LlamaDefaults::LLAMA)? })
    },
};

/// OLMo 2 and 3: norms over whole queries and keys, and layer norms on results. OLMo 3 has windows in three layers of
/// four.
pub(super) const OLMO2: ModelFamily = ModelFamily {
    model_types: &["olmo2", "olmo3"],
    keys: &[llama::KEYS, &["layer_types", "sliding_window"]],
    defaults: &[],
    synonyms: SYNONYMS,
    read: |reader| {
        let mut model = read_with_defaults(reader, LlamaDefaults::LLAMA)?;
        if let Some(window) = reader.read_window()? {
            model = windows::add_windows_by_type(reader, model, window, 4)?;
        }
        let model = Model { norm_placement: NormPlacement::Output, ..model };
        Ok(with_variations(model, |v| v.query_key_norm = Some(QueryKeyNorm::Whole)))
    },
};

/// Command R: attention and MLP in parallel after one LayerNorm without bias, and a tied head. Command R+ has norms of
/// queries and keys. Command A has windows in three layers of four.
pub(super) const COHERE: ModelFamily = ModelFamily {
    model_types: &["cohere", "cohere2"],
    keys: &[llama::KEYS, &["layer_types", "sliding_window", "sliding_window_pattern", "use_qk_norm"]],
    defaults: &[],
    synonyms: SYNONYMS,
    read: |reader| {
        let mut model = read_with_defaults(reader, LlamaDefaults { tied: true, ..LlamaDefaults::LLAMA })?;
        if let Some(window) = reader.read_window()? {
            let period = reader.read_optional_dimension("sliding_window_pattern", MAX_POSITIONS)?.unwrap_or(4);
            model = windows::add_windows_by_type(reader, model, window, period)?;
        }
        let norms = reader.read_flag("use_qk_norm", false)?.then_some(QueryKeyNorm::OwnHead);
        Ok(with_variations(Model { norm: Norm::LayerNorm, ..model }, |v| {
            v.norm_without_bias = true;
            v.parallel = Some(ParallelBranches::OneNorm);
            v.query_key_norm = norms;
        }))
    },
};

/// StableLM: LayerNorm, a quarter of every head rotated.
pub(super) const STABLELM: ModelFamily = ModelFamily {
    model_types: &["stablelm"],
    keys: &[llama::KEYS, &["hidden_dropout", "qk_layernorm", "use_parallel_residual", "use_qkv_bias"]],
    defaults: &[],
    synonyms: SYNONYMS,
    read: |reader| {
        let model = read_with_defaults(reader, LlamaDefaults { rotated: 0.25, ..LlamaDefaults::LLAMA })?;
        let norms = reader.read_flag("qk_layernorm", false)?.then_some(QueryKeyNorm::OwnHead);
        let parallel = reader.read_flag("use_parallel_residual", false)?.then_some(ParallelBranches::OneNorm);
        let dropout = Dropout { residual: reader.read_probability("hidden_dropout", 0.0)?, ..model.dropout };
        let model = Model {
            norm: Norm::LayerNorm,
            qkv_bias: reader.read_flag("use_qkv_bias", false)?,
            attention_output_bias: false,
            dropout,
            ..model
        };
        Ok(with_variations(model, |v| {
            v.query_key_norm = norms;
            v.parallel = parallel;
        }))
    },
};

/// StarCoder 2: LayerNorm, an MLP without gate, biases everywhere, a tied head.
pub(super) const STARCODER2: ModelFamily = ModelFamily {
    model_types: &["starcoder2"],
    keys: &[
        llama::KEYS,
        &[
            "embedding_dropout",
            "layer_types",
            "mlp_type",
            "norm_type",
            "residual_dropout",
            "sliding_window",
            "use_bias",
        ],
    ],
    defaults: &[("num_key_value_heads", 2)],
    synonyms: SYNONYMS,
    read: |reader| {
        let mut model = read_with_defaults(
            reader,
            LlamaDefaults { tied: true, activation: ElementwiseFunction::Gelu, ..LlamaDefaults::LLAMA },
        )?;
        if let Some(window) = reader.read_window()? {
            model = windows::add_windows_by_type(reader, model, window, 0)?;
        }
        reader.require_text("mlp_type", "default", "only MLPs without a gate are covered for StarCoder 2")?;
        reader.require_text("norm_type", "layer_norm", "only LayerNorm is covered for StarCoder 2")?;
        let bias = reader.read_flag("use_bias", true)?;
        let (embedding, residual) =
            (reader.read_probability("embedding_dropout", 0.0)?, reader.read_probability("residual_dropout", 0.0)?);
        Ok(Model {
            norm: Norm::LayerNorm,
            gated: false,
            qkv_bias: bias,
            attention_output_bias: bias,
            mlp_bias: bias,
            dropout: Dropout { embedding, residual, ..model.dropout },
            ..model
        })
    },
};

/// Returns the model with changed variations.
pub(super) fn with_variations(mut model: Model, change: impl FnOnce(&mut Variations)) -> Model {
    change(&mut model.variations);
    model
}

/// Adds Qwen's windows if `use_sliding_window` is set: in the layers that `layer_types` names, or else from
/// `max_window_layers` on.
pub(super) fn read_upper_windows(reader: &ConfigReader<'_>, model: Model) -> Result<Model, WorkloadError> {
    let absent = (!reader.has_key("sliding_window")).then_some(4096);
    let window = reader.read_window()?.or(absent);
    let whole = reader.read_count("max_window_layers", MAX_POSITIONS, 28)?;
    let used = reader.read_flag("use_sliding_window", false)?;
    let Some(window) = window.filter(|_| used) else { return Ok(model) };
    match windows::read_layer_types(reader, model.layer_count())? {
        Some(_) => windows::add_windows_by_type(reader, model, window, 0),
        None => Ok(windows::with_window(model, window, |layer| layer >= whole)),
    }
}
