//! State-space models. Mamba 2 (Dao and Gu 2024) has only scan layers. Nemotron-H (NVIDIA 2025) has scans, attention
//! without positions, MLPs and experts as separate layers, in the order that a pattern states.

use super::ModelFamily;
use super::experts::read_routed_experts;
use super::llama::llama_without_sizes;
use super::reader::{ConfigReader, NamedNumber};
use crate::error::WorkloadError;
use crate::layer_list::{FeedForward, LayerKind, Mixer};
use crate::limits::{MAX_EXPERTS, MAX_FFN, MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_VOCABULARY, MAX_WIDTH};
use crate::model::{Experts, Model, PositionEncoding, SharedExpert};
use crate::variations::{StateSpace, Variations};
use serde_json::Value;
use sim::kernel::ElementwiseFunction;

/// Default sequence length for scans, whose files may state none. It is the length of the paper's training.
pub(super) const PAPER_SEQUENCE: u64 = 2048;

pub(super) const MAMBA2: ModelFamily = ModelFamily {
    model_types: &["mamba2"],
    keys: &[&[
        "chunk_size",
        "conv_kernel",
        "expand",
        "head_dim",
        "hidden_act",
        "hidden_size",
        "intermediate_size",
        "max_position_embeddings",
        "n_groups",
        "num_heads",
        "num_hidden_layers",
        "state_size",
        "use_bias",
        "use_conv_bias",
        "vocab_size",
    ]],
    defaults: &[
        ("chunk_size", 256),
        ("conv_kernel", 4),
        ("expand", 2),
        ("head_dim", 64),
        ("n_groups", 8),
        ("num_heads", 128),
        ("state_size", 128),
    ],
    synonyms: &[("d_model", "hidden_size"), ("n_layer", "num_hidden_layers")],
    read: |reader| {
        let hidden = reader.read_dimension("hidden_size", MAX_WIDTH)?;
        let scan = StateSpace {
            heads: reader.read_dimension("num_heads", MAX_HEADS)?,
            head_dim: reader.read_dimension("head_dim", MAX_WIDTH)?,
            state: reader.read_dimension("state_size", MAX_WIDTH)?,
            groups: reader.read_dimension("n_groups", MAX_HEADS)?,
            convolution: reader.read_dimension("conv_kernel", MAX_WIDTH)?,
            chunk: reader.read_dimension("chunk_size", MAX_POSITIONS)?,
            bias: reader.read_flag("use_bias", false)?,
            convolution_bias: reader.read_flag("use_conv_bias", true)?,
            without_norm: false,
        };
        let expanded = hidden.saturating_mul(reader.read_dimension("expand", MAX_WIDTH)?);
        if expanded != scan.scan_width() {
            let limit = format!(
                "such that `num_heads` x `head_dim` ({}) is `hidden_size` x `expand` ({expanded})",
                scan.scan_width()
            );
            return Err(reader.value_error("num_heads", scan.heads, &limit, "correct one of the four"));
        }
        check_groups(reader, &scan, "num_heads")?;
        let longest = reader.read_optional_dimension("max_position_embeddings", MAX_POSITIONS)?;
        if longest.is_none() {
            reader.note_assumption(format!(
                "no longest sequence is given: {PAPER_SEQUENCE} tokens are assumed unless a plan states them"
            ));
        }
        Ok(Model {
            layers: reader.read_dimension("num_hidden_layers", MAX_LAYERS)?,
            // The model has no attention, so these are the scan's heads.
            heads: scan.heads,
            kv_heads: scan.heads,
            head_dim: scan.head_dim,
            ffn: scan.scan_width(),
            vocabulary: reader.read_dimension("vocab_size", MAX_VOCABULARY)?,
            vocabulary_multiple: reader.read_vocabulary_multiple()?,
            max_sequence: longest.unwrap_or(PAPER_SEQUENCE),
            position: PositionEncoding::None,
            tied_head: reader.read_flag("tie_word_embeddings", false)?,
            variations: Variations { mixer: Mixer::Scan, scan: Some(scan), without_mlp: true, ..Variations::default() },
            ..llama_without_sizes(reader, hidden)
        })
    },
};

pub(super) const NEMOTRON_H: ModelFamily = ModelFamily {
    model_types: &["nemotron_h"],
    keys: &[&[
        "attention_bias",
        "attention_dropout",
        "attention_head_dim",
        "chunk_size",
        "conv_kernel",
        "expand",
        "head_dim",
        "hidden_dropout",
        "hidden_size",
        "hybrid_override_pattern",
        "intermediate_size",
        "layers_block_type",
        "mamba_head_dim",
        "mamba_hidden_act",
        "mamba_num_heads",
        "mamba_proj_bias",
        "max_position_embeddings",
        "mlp_bias",
        "mlp_hidden_act",
        "moe_intermediate_size",
        "moe_latent_size",
        "moe_shared_expert_intermediate_size",
        "n_groups",
        "n_routed_experts",
        "n_shared_experts",
        "num_attention_heads",
        "num_experts_per_tok",
        "num_hidden_layers",
        "num_key_value_heads",
        "ssm_state_size",
        "use_bias",
        "use_conv_bias",
        "vocab_size",
    ]],
    defaults: &[("chunk_size", 128), ("conv_kernel", 4), ("head_dim", 128), ("n_groups", 8), ("ssm_state_size", 128)],
    synonyms: &[],
    read: read_nemotron,
};

fn read_nemotron(reader: &ConfigReader<'_>) -> Result<Model, WorkloadError> {
    let hidden = reader.read_dimension("hidden_size", MAX_WIDTH)?;
    let heads = reader.read_dimension("num_attention_heads", MAX_HEADS)?;
    let scan = StateSpace {
        heads: reader.read_dimension("mamba_num_heads", MAX_HEADS)?,
        head_dim: reader.read_dimension("mamba_head_dim", MAX_WIDTH)?,
        state: reader.read_dimension("ssm_state_size", MAX_WIDTH)?,
        groups: reader.read_dimension("n_groups", MAX_HEADS)?,
        convolution: reader.read_dimension("conv_kernel", MAX_WIDTH)?,
        chunk: reader.read_dimension("chunk_size", MAX_POSITIONS)?,
        bias: reader.read_flag("mamba_proj_bias", false)?,
        convolution_bias: reader.read_flag("use_conv_bias", true)?,
        without_norm: false,
    };
    check_groups(reader, &scan, "mamba_num_heads")?;
    let dense = reader.read_dimension("intermediate_size", MAX_FFN)?;
    let kinds = read_layer_pattern(reader, dense)?;
    let sparse = kinds.iter().any(|kind| kind.mixer == Mixer::None && kind.feed == FeedForward::Own);
    let experts = if sparse { Some(read_nemotron_experts(reader)?) } else { None };
    let ffn = if sparse { reader.read_dimension("moe_intermediate_size", MAX_FFN)? } else { dense };
    let attention_bias = reader.read_flag("attention_bias", false)?;
    let word = reader.first_given_key(&["attention_head_dim", "head_dim"]);
    let model = Model {
        heads,
        kv_heads: super::llama::read_kv_heads(
            reader,
            "num_key_value_heads",
            NamedNumber { key: "num_attention_heads", value: heads },
        )?,
        head_dim: reader.read_dimension(word, MAX_WIDTH)?,
        ffn,
        experts,
        vocabulary: reader.read_dimension("vocab_size", MAX_VOCABULARY)?,
        vocabulary_multiple: reader.read_vocabulary_multiple()?,
        max_sequence: reader.read_dimension("max_position_embeddings", MAX_POSITIONS)?,
        position: PositionEncoding::None,
        // Squared ReLU keeps its input for its derivative, like leaky ReLU. Its extra multiplication is on chip.
        activation: ElementwiseFunction::LeakyRelu,
        gated: false,
        qkv_bias: attention_bias,
        attention_output_bias: attention_bias,
        mlp_bias: reader.read_flag("mlp_bias", false)?,
        tied_head: reader.read_flag("tie_word_embeddings", false)?,
        variations: Variations { scan: Some(scan), ..Variations::default() },
        ..llama_without_sizes(reader, hidden)
    };
    Ok(model.with_layers(&[], &kinds))
}

/// Keys that list the kind of every layer. Transformers 5 writes a list; NVIDIA's files have a string.
const LAYER_LISTS: [&str; 2] = ["layers_block_type", "hybrid_override_pattern"];

/// Reads the kind of every layer. In a string, M is a scan, * attention, - an MLP, and E experts.
fn read_layer_pattern(reader: &ConfigReader<'_>, dense: u64) -> Result<Vec<LayerKind>, WorkloadError> {
    let key = reader.first_given_key(&LAYER_LISTS);
    let value = reader.get(key).cloned().unwrap_or_default();
    let Some(kinds) = kinds_of_layers(&value, dense).filter(|kinds| !kinds.is_empty()) else {
        let cure = "write one letter per layer: M for a scan, * for attention, - for an MLP, E for experts";
        return Err(reader.value_error(key, value, "a text of M, *, - and E, or a list of kinds", cure));
    };
    for other in LAYER_LISTS.iter().filter(|other| **other != key) {
        if let Some(given) = reader.get(other).filter(|given| kinds_of_layers(given, dense).as_ref() != Some(&kinds)) {
            let limit = format!("the layers of `{key}`");
            return Err(reader.value_error(other, given.clone(), &limit, "leave one of the two out"));
        }
    }
    // Transformers 5 may write the list without this number.
    let layers = reader.read_optional_dimension("num_hidden_layers", MAX_LAYERS)?.unwrap_or(kinds.len() as u64);
    if kinds.len() as u64 != layers {
        let limit = format!("one entry for each of `num_hidden_layers` ({layers}) layers");
        return Err(reader.value_error(key, value, &limit, &format!("it has {}: correct one of the two", kinds.len())));
    }
    Ok(kinds)
}

/// Returns the kinds of layers that a list or a string names; `None` if it contains an unknown name.
fn kinds_of_layers(value: &Value, dense: u64) -> Option<Vec<LayerKind>> {
    let kind = |name: &str| {
        let (mixer, feed) = match name {
            "M" | "mamba" | "linear_attention" => (Mixer::Scan, FeedForward::None),
            "*" | "attention" | "full_attention" => (Mixer::Attention, FeedForward::None),
            "-" | "mlp" => (Mixer::None, FeedForward::Mlp(dense)),
            "E" | "moe" => (Mixer::None, FeedForward::Own),
            _ => return None,
        };
        Some(LayerKind { mixer, feed, ..LayerKind::default() })
    };
    match value {
        Value::Array(list) => list.iter().map(|name| kind(name.as_str()?)).collect(),
        _ => value.as_str().unwrap_or_default().chars().map(|letter| kind(letter.encode_utf8(&mut [0; 4]))).collect(),
    }
}

/// Reads the routed experts and the shared expert.
fn read_nemotron_experts(reader: &ConfigReader<'_>) -> Result<Experts, WorkloadError> {
    let each = reader.read_optional_dimension("moe_shared_expert_intermediate_size", MAX_FFN)?.unwrap_or(0);
    let shared = each.saturating_mul(reader.read_count("n_shared_experts", MAX_EXPERTS, 1)?);
    let shared = (shared > 0).then_some(SharedExpert { ffn: shared, weighed: false });
    let latent = reader.read_optional_dimension("moe_latent_size", MAX_WIDTH)?;
    Ok(Experts { shared, latent, ..read_routed_experts(reader, "n_routed_experts")? })
}

fn check_groups(reader: &ConfigReader<'_>, scan: &StateSpace, heads: &'static str) -> Result<(), WorkloadError> {
    reader.check_divides(
        NamedNumber { key: "n_groups", value: scan.groups },
        NamedNumber { key: heads, value: scan.heads },
    )
}
