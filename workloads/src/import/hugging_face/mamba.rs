//! State-space models: Mamba 2 (Dao and Gu 2024), layers of scans alone; Nemotron-H (NVIDIA 2025), scans, attention without positions, MLPs and
//! experts as layers of their own, in the order that a pattern spells.

use super::Family;
use super::experts::experts;
use super::llama::bare;
use super::reader::Reader;
use crate::error::WorkloadError;
use crate::layer_list::{Feed, LayerKind, Mixer};
use crate::limits::{MAX_EXPERTS, MAX_FFN, MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_VOCABULARY, MAX_WIDTH};
use crate::model::{Experts, Model, Position, SharedExpert};
use crate::variations::{StateSpace, Variations};
use sim::kernel::Function;

/// The sequence length of a scan's own training where a file has none, which a scan does not need: that of the paper.
const PAPER_SEQUENCE: u64 = 2048;

pub(super) const MAMBA2: Family = Family {
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
        ("hidden_size", 4096),
        ("n_groups", 8),
        ("num_heads", 128),
        ("num_hidden_layers", 64),
        ("state_size", 128),
        ("vocab_size", 32_768),
    ],
    synonyms: &[("d_model", "hidden_size"), ("n_layer", "num_hidden_layers")],
    read: |reader| {
        let hidden = reader.dimension("hidden_size", MAX_WIDTH)?;
        let scan = StateSpace {
            heads: reader.dimension("num_heads", MAX_HEADS)?,
            head_dim: reader.dimension("head_dim", MAX_WIDTH)?,
            state: reader.dimension("state_size", MAX_WIDTH)?,
            groups: reader.dimension("n_groups", MAX_HEADS)?,
            convolution: reader.dimension("conv_kernel", MAX_WIDTH)?,
            chunk: reader.dimension("chunk_size", MAX_POSITIONS)?,
            bias: reader.flag("use_bias", false)?,
            convolution_bias: reader.flag("use_conv_bias", true)?,
        };
        let expanded = hidden.saturating_mul(reader.dimension("expand", MAX_WIDTH)?);
        if expanded != scan.width() {
            let limit = format!("such that `num_heads` x `head_dim` ({}) is `hidden_size` x `expand` ({expanded})", scan.width());
            return Err(reader.error("num_heads", scan.heads, &limit, "correct one of the four"));
        }
        check_groups(reader, &scan, "num_heads")?;
        let longest = reader.optional_dimension("max_position_embeddings", MAX_POSITIONS)?;
        if longest.is_none() {
            reader.assume(format!("no longest sequence is given: {PAPER_SEQUENCE} tokens are taken where a plan says none"));
        }
        Ok(Model {
            layers: reader.dimension("num_hidden_layers", MAX_LAYERS)?,
            // Of attention there is nothing: these are the scan's.
            heads: scan.heads,
            kv_heads: scan.heads,
            head_dim: scan.head_dim,
            ffn: scan.width(),
            vocabulary: reader.dimension("vocab_size", MAX_VOCABULARY)?,
            vocabulary_multiple: reader.vocabulary_multiple()?,
            max_sequence: longest.unwrap_or(PAPER_SEQUENCE),
            position: Position::None,
            tied_head: reader.flag("tie_word_embeddings", false)?,
            variations: Variations { mixer: Mixer::Scan, scan: Some(scan), without_mlp: true, ..Variations::default() },
            ..bare(reader, hidden)
        })
    },
};

pub(super) const NEMOTRON_H: Family = Family {
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
        "mamba_head_dim",
        "mamba_hidden_act",
        "mamba_num_heads",
        "mamba_proj_bias",
        "max_position_embeddings",
        "mlp_bias",
        "mlp_hidden_act",
        "moe_intermediate_size",
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

fn read_nemotron(reader: &Reader<'_>) -> Result<Model, WorkloadError> {
    let hidden = reader.dimension("hidden_size", MAX_WIDTH)?;
    let heads = reader.dimension("num_attention_heads", MAX_HEADS)?;
    let layers = reader.dimension("num_hidden_layers", MAX_LAYERS)?;
    let scan = StateSpace {
        heads: reader.dimension("mamba_num_heads", MAX_HEADS)?,
        head_dim: reader.dimension("mamba_head_dim", MAX_WIDTH)?,
        state: reader.dimension("ssm_state_size", MAX_WIDTH)?,
        groups: reader.dimension("n_groups", MAX_HEADS)?,
        convolution: reader.dimension("conv_kernel", MAX_WIDTH)?,
        chunk: reader.dimension("chunk_size", MAX_POSITIONS)?,
        bias: reader.flag("mamba_proj_bias", false)?,
        convolution_bias: reader.flag("use_conv_bias", true)?,
    };
    check_groups(reader, &scan, "mamba_num_heads")?;
    let dense = reader.dimension("intermediate_size", MAX_FFN)?;
    let kinds = pattern(reader, layers, dense)?;
    let sparse = kinds.iter().any(|kind| kind.mixer == Mixer::None && kind.feed == Feed::Own);
    let experts = if sparse { Some(mixture(reader)?) } else { None };
    let ffn = if sparse { reader.dimension("moe_intermediate_size", MAX_FFN)? } else { dense };
    let attention_bias = reader.flag("attention_bias", false)?;
    let word = reader.word(&["attention_head_dim", "head_dim"]);
    let model = Model {
        heads,
        kv_heads: super::llama::kv_heads(reader, "num_key_value_heads", ("num_attention_heads", heads))?,
        head_dim: reader.dimension(word, MAX_WIDTH)?,
        ffn,
        experts,
        vocabulary: reader.dimension("vocab_size", MAX_VOCABULARY)?,
        vocabulary_multiple: reader.vocabulary_multiple()?,
        max_sequence: reader.dimension("max_position_embeddings", MAX_POSITIONS)?,
        position: Position::None,
        // Squared ReLU keeps its input for its derivative, as leaky ReLU does, and costs a product more of what is on chip.
        activation: Function::LeakyRelu,
        gated: false,
        qkv_bias: attention_bias,
        attention_output_bias: attention_bias,
        mlp_bias: reader.flag("mlp_bias", false)?,
        tied_head: reader.flag("tie_word_embeddings", false)?,
        variations: Variations { scan: Some(scan), ..Variations::default() },
        ..bare(reader, hidden)
    };
    Ok(model.with_layers(&[], &kinds))
}

/// The layers that `hybrid_override_pattern` spells: M a scan, * attention, - an MLP, E experts.
fn pattern(reader: &Reader<'_>, layers: u64, dense: u64) -> Result<Vec<LayerKind>, WorkloadError> {
    let key = "hybrid_override_pattern";
    let text = reader.get(key).and_then(|value| value.as_str()).unwrap_or_default();
    let kind = |letter: char| {
        let (mixer, feed) = match letter {
            'M' => (Mixer::Scan, Feed::None),
            '*' => (Mixer::Attention, Feed::None),
            '-' => (Mixer::None, Feed::Mlp(dense)),
            'E' => (Mixer::None, Feed::Own),
            _ => return None,
        };
        Some(LayerKind { mixer, feed, ..LayerKind::default() })
    };
    let kinds = text.chars().map(kind).collect::<Option<Vec<LayerKind>>>();
    let Some(kinds) = kinds.filter(|kinds| !kinds.is_empty()) else {
        let cure = "write a letter a layer: M for a scan, * for attention, - for an MLP, E for experts";
        return Err(reader.error(key, text, "a text of M, *, - and E", cure));
    };
    if kinds.len() as u64 != layers {
        let limit = format!("a text of `num_hidden_layers` ({layers}) letters");
        return Err(reader.error(key, text, &limit, &format!("it has {}: correct one of the two", kinds.len())));
    }
    Ok(kinds)
}

/// The experts, beside those for every token.
fn mixture(reader: &Reader<'_>) -> Result<Experts, WorkloadError> {
    let each = reader.optional_dimension("moe_shared_expert_intermediate_size", MAX_FFN)?.unwrap_or(0);
    let shared = each.saturating_mul(reader.count("n_shared_experts", MAX_EXPERTS, 1)?);
    let shared = (shared > 0).then_some(SharedExpert { ffn: shared, weighed: false });
    Ok(Experts { shared, ..experts(reader, "n_routed_experts")? })
}

fn check_groups(reader: &Reader<'_>, scan: &StateSpace, heads: &'static str) -> Result<(), WorkloadError> {
    reader.divides(("n_groups", scan.groups), (heads, scan.heads))
}
