//! DiT (Peebles and Xie, ICCV 2023): diffusion transformers conditioned on a time step and a class. It reads the forms
//! that diffusers 0.42 writes (`DiTTransformer2DModel`; before, `Transformer2DModel`) and the arguments of the original
//! class `DiT`. The two differ: in diffusers every layer has its own embedders.

use super::ModelFamily;
use super::llama::llama_without_sizes;
use super::reader::{ConfigReader, NamedNumber};
use crate::error::WorkloadError;
use crate::limits::{MAX_FFN, MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_VOCABULARY, MAX_WIDTH};
use crate::model::{Model, Norm, PositionEncoding};
use crate::variations::{Conditioning, Patches, Variations};
use serde_json::Value;
use sim::kernel::ElementwiseFunction;

const DIFFUSERS: &[&str] = &[
    "activation_fn",
    "attention_bias",
    "attention_head_dim",
    "dropout",
    "in_channels",
    // The number of groups of a norm that models of patches do not have.
    "norm_num_groups",
    "norm_elementwise_affine",
    "norm_type",
    "num_attention_heads",
    "num_embeds_ada_norm",
    "num_layers",
    "out_channels",
    "patch_size",
    "sample_size",
    "upcast_attention",
];

/// Options of diffusers that are off in DiT, with the features that they switch on.
const OFF: &[(&str, &str)] = &[
    ("caption_channels", "captions"),
    ("cross_attention_dim", "attention to a text"),
    ("double_self_attention", "a second attention"),
    ("norm_elementwise_affine", "norms with parameters beside conditioned ones"),
    ("num_vector_embeds", "tokens of a codebook"),
    ("only_cross_attention", "attention to a text"),
    ("upcast_attention", "attention in fp32"),
    ("use_additional_conditions", "further conditions"),
];

/// Activations by diffusers' names (`FeedForward`): (name, nonlinearity, true if the MLP is gated).
const ACTIVATIONS: &[(&str, ElementwiseFunction, bool)] = &[
    ("geglu", ElementwiseFunction::Gelu, true),
    ("geglu-approximate", ElementwiseFunction::Gelu, false),
    ("gelu", ElementwiseFunction::Gelu, false),
    ("gelu-approximate", ElementwiseFunction::Gelu, false),
    ("linear-silu", ElementwiseFunction::Silu, false),
    ("swiglu", ElementwiseFunction::Silu, true),
];

pub(super) const FAMILY: ModelFamily = ModelFamily {
    model_types: &["DiTTransformer2DModel"],
    keys: &[DIFFUSERS],
    defaults: &[("in_channels", 4), ("num_embeds_ada_norm", 1000), ("patch_size", 2), ("sample_size", 32)],
    synonyms: SYNONYMS,
    read: |reader| {
        reader.require_text("norm_type", "ada_norm_zero", NEAR)?;
        read_diffusers(reader, "gelu-approximate", true)
    },
};

/// The class of several image models, in files written before diffusers 0.28; only DiT's form is read.
pub(super) const OLDER: ModelFamily = ModelFamily {
    model_types: &["Transformer2DModel"],
    keys: &[
        DIFFUSERS,
        &[
            "attention_type",
            "caption_channels",
            "cross_attention_dim",
            "double_self_attention",
            // A factor on the fixed positions.
            "interpolation_scale",
            "num_vector_embeds",
            "only_cross_attention",
            "use_additional_conditions",
            // Models of patches have no such projection.
            "use_linear_projection",
        ],
    ],
    defaults: &[],
    synonyms: SYNONYMS,
    read: |reader| {
        if reader.get("norm_type").is_none() {
            return Err(reader.value_error("norm_type", Value::Null, "\"ada_norm_zero\"", NEAR));
        }
        reader.require_text("norm_type", "ada_norm_zero", NEAR)?;
        reader.require_text("attention_type", "default", NEAR)?;
        if reader.get("norm_elementwise_affine").is_none() {
            let cure = "the class has parameters there unless the file says false: write false";
            return Err(reader.value_error("norm_elementwise_affine", Value::Null, "false", cure));
        }
        read_diffusers(reader, "geglu", false)
    },
};

/// The original class; the file has its arguments and `"model_type": "dit"`.
pub(super) const ORIGINAL: ModelFamily = ModelFamily {
    model_types: &["dit"],
    keys: &[&[
        "class_dropout_prob",
        "depth",
        "hidden_size",
        "in_channels",
        "input_size",
        "learn_sigma",
        "mlp_ratio",
        "num_classes",
        "num_heads",
        "patch_size",
    ]],
    defaults: &[("in_channels", 4), ("input_size", 32), ("num_classes", 1000), ("num_heads", 16), ("patch_size", 2)],
    synonyms: &[
        ("num_attention_heads", "num_heads"),
        ("num_hidden_layers", "depth"),
        ("num_layers", "depth"),
        ("sample_size", "input_size"),
    ],
    read: read_original,
};

const SYNONYMS: &[(&str, &str)] = &[
    ("depth", "num_layers"),
    ("input_size", "sample_size"),
    ("num_classes", "num_embeds_ada_norm"),
    ("num_heads", "num_attention_heads"),
    ("num_hidden_layers", "num_layers"),
];

const NEAR: &str = "other models of images are not covered: give DiT's configuration";

/// Reads diffusers' form. `activation` and `bias` are the class's defaults.
fn read_diffusers(reader: &ConfigReader<'_>, activation: &str, bias: bool) -> Result<Model, WorkloadError> {
    for (key, what) in OFF {
        if let Some(value) = reader.get(key).filter(|value| **value != Value::Bool(false)) {
            let cure = format!("{what} are not covered in DiT: give a model without");
            return Err(reader.value_error(key, value.clone(), "null or false", &cure));
        }
    }
    if reader.read_probability("dropout", 0.0)? > 0.0 {
        let cure = "no published DiT drops anything, and its places are not covered: write 0.0";
        return Err(reader.value_error("dropout", reader.get("dropout").cloned().unwrap_or_default(), "0.0", cure));
    }
    let heads = reader.read_dimension("num_attention_heads", MAX_HEADS)?;
    let head_dim = reader.read_dimension("attention_head_dim", MAX_WIDTH)?;
    let hidden = heads.saturating_mul(head_dim);
    if hidden > MAX_WIDTH {
        let limit = format!("such that heads times their dimension are at most {MAX_WIDTH}");
        return Err(reader.value_error("attention_head_dim", head_dim, &limit, "correct it"));
    }
    let channels = reader.read_dimension("in_channels", MAX_WIDTH)?;
    let sizes = Sizes {
        side: ("sample_size", reader.read_dimension("sample_size", MAX_WIDTH)?),
        channels: (channels, reader.read_optional_dimension("out_channels", MAX_WIDTH)?.unwrap_or(channels)),
        width: (hidden, heads),
        layers: reader.read_dimension("num_layers", MAX_LAYERS)?,
        rows: reader.read_dimension("num_embeds_ada_norm", MAX_VOCABULARY)? + 1,
        in_layers: true,
    };
    let (activation, gated) = read_activation(reader, activation)?;
    let qkv_bias = reader.read_flag("attention_bias", bias)?;
    Ok(Model { activation, gated, qkv_bias, ..sizes.read_model(reader)? })
}

/// Reads the activation by diffusers' name: (nonlinearity, true if the MLP is gated).
fn read_activation(reader: &ConfigReader<'_>, default: &str) -> Result<(ElementwiseFunction, bool), WorkloadError> {
    let value = reader.get("activation_fn").cloned().unwrap_or_else(|| default.into());
    let found = ACTIVATIONS.iter().find(|(name, ..)| value.as_str() == Some(*name));
    found.map(|(_, function, gated)| (*function, *gated)).ok_or_else(|| {
        let names: Vec<&str> = ACTIVATIONS.iter().map(|(name, ..)| *name).collect();
        let limit = format!("one of {}", names.join(", "));
        reader.value_error("activation_fn", value, &limit, "use the nearest of these in cost")
    })
}

fn read_original(reader: &ConfigReader<'_>) -> Result<Model, WorkloadError> {
    let hidden = reader.read_dimension("hidden_size", MAX_WIDTH)?;
    let heads = reader.read_dimension("num_heads", MAX_HEADS)?;
    reader.check_divides(
        NamedNumber { key: "num_heads", value: heads },
        NamedNumber { key: "hidden_size", value: hidden },
    )?;
    let channels = reader.read_dimension("in_channels", MAX_WIDTH)?;
    let outputs = if reader.read_flag("learn_sigma", true)? { 2 * channels } else { channels };
    let unknown = u64::from(reader.read_probability("class_dropout_prob", 0.1)? > 0.0);
    let sizes = Sizes {
        side: ("input_size", reader.read_dimension("input_size", MAX_WIDTH)?),
        channels: (channels, outputs),
        width: (hidden, heads),
        layers: reader.read_dimension("depth", MAX_LAYERS)?,
        rows: reader.read_dimension("num_classes", MAX_VOCABULARY)? + unknown,
        in_layers: false,
    };
    let ratio = reader.get("mlp_ratio").map_or(Some(4.0), Value::as_f64).unwrap_or(0.0);
    let ffn = (hidden as f64 * ratio) as u64;
    if !(1..=MAX_FFN).contains(&ffn) {
        let value = reader.get("mlp_ratio").cloned().unwrap_or_default();
        let limit = format!("a number such that the MLP's width is between 1 and {MAX_FFN}");
        return Err(reader.value_error("mlp_ratio", value, &limit, "write for instance 4.0"));
    }
    Ok(Model { ffn, ..sizes.read_model(reader)? })
}

/// The sizes of a DiT.
struct Sizes {
    /// The key and value of an image's side; images are square.
    side: (&'static str, u64),
    /// Number of channels that the model reads, and that it predicts.
    channels: (u64, u64),
    /// Width of the model and number of heads.
    width: (u64, u64),
    layers: u64,
    /// Rows of the table of classes.
    rows: u64,
    /// True if every layer has its own embedders.
    in_layers: bool,
}

impl Sizes {
    /// Reads the patch's size. Returns the model with biases, MLPs of four times the model's width, and GELU.
    fn read_model(&self, reader: &ConfigReader<'_>) -> Result<Model, WorkloadError> {
        let ((key, side), (hidden, heads)) = (self.side, self.width);
        let patch = reader.read_dimension("patch_size", MAX_WIDTH)?;
        reader.check_divides(NamedNumber { key: "patch_size", value: patch }, NamedNumber { key, value: side })?;
        let tokens = (side / patch).saturating_mul(side / patch);
        let area = patch.saturating_mul(patch);
        let (numbers, outputs) = (area.saturating_mul(self.channels.0), area.saturating_mul(self.channels.1));
        let too_many = [
            (key, side, tokens, MAX_POSITIONS, "patches"),
            ("patch_size", patch, numbers.max(outputs), MAX_VOCABULARY, "numbers in a patch"),
        ];
        if let Some((key, value, _, most, what)) = too_many.into_iter().find(|(_, _, count, most, _)| count > most) {
            return Err(reader.value_error(
                key,
                value,
                &format!("such that there are at most {most} {what}"),
                "correct it",
            ));
        }
        Ok(Model {
            layers: self.layers,
            heads,
            kv_heads: heads,
            head_dim: hidden / heads,
            ffn: 4 * hidden,
            vocabulary: outputs,
            max_sequence: tokens,
            // Fixed positions are added to the patches.
            position: PositionEncoding::None,
            norm: Norm::LayerNorm,
            norm_affine: false,
            activation: ElementwiseFunction::Gelu,
            gated: false,
            qkv_bias: true,
            attention_output_bias: true,
            mlp_bias: true,
            causal: false,
            head_bias: true,
            variations: Variations {
                patches: Some(Patches { numbers, bias: true, without_first_token: true }),
                conditioning: Some(Conditioning { rows: self.rows, in_layers: self.in_layers }),
                ..Variations::default()
            },
            ..llama_without_sizes(reader, hidden)
        })
    }
}
