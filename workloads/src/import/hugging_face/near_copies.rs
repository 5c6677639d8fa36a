//! Families that are Llama with a few differences, each a row of [`NEAR_COPIES`]. Defaults are those of transformers
//! 5.24.

use super::ModelFamily;
use super::llama::{self, LlamaDefaults, SYNONYMS, read_with_defaults};
use super::llama_like::with_variations;
use super::reader::ConfigReader;
use super::windows;
use crate::error::WorkloadError;
use crate::limits::MAX_POSITIONS;
use crate::model::{Dropout, Model, Norm, NormPlacement};
use crate::variations::QueryKeyNorm;
use sim::kernel::ElementwiseFunction;

/// The differences of a family from Llama.
#[derive(Debug, Clone, Copy)]
struct NearCopy {
    model_type: &'static str,
    /// Default values for keys that a file omits.
    defaults: LlamaDefaults,
    norm: Norm,
    /// True if norms have parameters.
    norm_affine: bool,
    norm_placement: NormPlacement,
    query_key_norm: Option<QueryKeyNorm>,
    /// True if the MLP has a gate.
    gated: bool,
    /// True if the attention's output projection has a bias when its other products have one.
    output_bias: bool,
    /// Period of the layers without a window, if the file has no list; 0 if every layer has the window.
    window_period: u64,
}

const LLAMA: NearCopy = NearCopy {
    model_type: "",
    defaults: LlamaDefaults::LLAMA,
    norm: Norm::RmsNorm,
    norm_affine: true,
    norm_placement: NormPlacement::Pre,
    query_key_norm: None,
    gated: true,
    output_bias: true,
    window_period: 0,
};

/// Squared ReLU keeps its input for its derivative, like leaky ReLU. Its extra multiplication is on chip.
const SQUARED_RELU: LlamaDefaults =
    LlamaDefaults { activation: ElementwiseFunction::LeakyRelu, ..LlamaDefaults::LLAMA };
const TIED: LlamaDefaults = LlamaDefaults { tied: true, ..LlamaDefaults::LLAMA };
const HALF_ROTATED: LlamaDefaults = LlamaDefaults { rotated: 0.5, attention_bias: true, ..LlamaDefaults::LLAMA };

static NEAR_COPIES: &[NearCopy] = &[
    NearCopy { model_type: "arcee", defaults: SQUARED_RELU, gated: false, ..LLAMA },
    NearCopy { model_type: "ernie4_5", defaults: TIED, ..LLAMA },
    NearCopy {
        model_type: "exaone4",
        norm_placement: NormPlacement::Output,
        query_key_norm: Some(QueryKeyNorm::Head),
        window_period: 4,
        ..LLAMA
    },
    NearCopy { model_type: "glm", defaults: HALF_ROTATED, output_bias: false, ..LLAMA },
    NearCopy {
        model_type: "glm4",
        defaults: HALF_ROTATED,
        norm_placement: NormPlacement::Sandwich,
        output_bias: false,
        ..LLAMA
    },
    NearCopy { model_type: "helium", output_bias: false, ..LLAMA },
    NearCopy { model_type: "hunyuan_v1_dense", query_key_norm: Some(QueryKeyNorm::Head), ..LLAMA },
    NearCopy { model_type: "internlm2", ..LLAMA },
    NearCopy { model_type: "internlm3", output_bias: false, ..LLAMA },
    NearCopy {
        model_type: "jais2",
        defaults: LlamaDefaults { attention_bias: true, ..SQUARED_RELU },
        norm: Norm::LayerNorm,
        gated: false,
        ..LLAMA
    },
    NearCopy { model_type: "nanochat", defaults: SQUARED_RELU, norm_affine: false, gated: false, ..LLAMA },
    NearCopy {
        model_type: "nemotron",
        defaults: LlamaDefaults { rotated: 0.5, ..SQUARED_RELU },
        norm: Norm::LayerNorm,
        gated: false,
        ..LLAMA
    },
    NearCopy {
        model_type: "seed_oss",
        defaults: LlamaDefaults { attention_bias: true, ..LlamaDefaults::LLAMA },
        output_bias: false,
        ..LLAMA
    },
    NearCopy {
        model_type: "vaultgemma",
        defaults: LlamaDefaults { activation: ElementwiseFunction::Gelu, ..TIED },
        window_period: 2,
        ..LLAMA
    },
];

pub(super) const FAMILY: ModelFamily = ModelFamily {
    model_types: &[
        "arcee",
        "ernie4_5",
        "exaone4",
        "glm",
        "glm4",
        "helium",
        "hunyuan_v1_dense",
        "internlm2",
        "internlm3",
        "jais2",
        "nanochat",
        "nemotron",
        "seed_oss",
        "vaultgemma",
    ],
    keys: &[
        llama::KEYS,
        &[
            "attention_out_bias",
            "bias",
            "hidden_activation",
            "layer_types",
            "residual_dropout",
            "qkv_bias",
            "sliding_window",
            "sliding_window_pattern",
            "use_bias",
        ],
    ],
    defaults: &[],
    synonyms: SYNONYMS,
    read: read_near_copy,
};

fn read_near_copy(reader: &ConfigReader<'_>) -> Result<Model, WorkloadError> {
    // InternLM 3's flag for the biases that `qkv_bias` does not cover.
    reader.forbid_flag("bias", "biases of attention's last product and of the MLP are not covered: set it to false")?;
    let copy = NEAR_COPIES.iter().find(|copy| copy.model_type == reader.model_type).unwrap_or(&LLAMA);
    let model = read_with_defaults(reader, copy.defaults)?;
    // Some families have one flag for all biases (ERNIE 4.5).
    let bias = reader.read_flag("use_bias", false)?;
    let output_bias = reader.read_flag("attention_out_bias", model.attention_output_bias && copy.output_bias)?;
    // If both are given, transformers uses `hidden_activation`.
    let activation = reader.read_activation("hidden_activation", model.activation)?;
    let residual = reader.read_probability("residual_dropout", 0.0)?;
    if !copy.norm_affine {
        reader.note_assumption("norms of queries and keys without parameters count as part of the rotation".to_owned());
    }
    let model = Model {
        norm: copy.norm,
        norm_affine: copy.norm_affine,
        norm_placement: copy.norm_placement,
        gated: copy.gated,
        activation,
        qkv_bias: reader.read_flag("qkv_bias", model.qkv_bias)? || bias,
        attention_output_bias: output_bias || bias,
        mlp_bias: model.mlp_bias || bias,
        dropout: Dropout { residual, ..model.dropout },
        ..model
    };
    let period = reader.read_optional_dimension("sliding_window_pattern", MAX_POSITIONS)?.unwrap_or(copy.window_period);
    let model = match reader.read_window()? {
        Some(window) => windows::add_windows_by_type(reader, model, window, period)?,
        None => model,
    };
    Ok(with_variations(model, |v| v.query_key_norm = copy.query_key_norm))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_a_family_that_is_read_and_no_other() {
        let rows: Vec<&str> = NEAR_COPIES.iter().map(|copy| copy.model_type).collect();
        assert_eq!(rows, FAMILY.model_types);
    }
}
