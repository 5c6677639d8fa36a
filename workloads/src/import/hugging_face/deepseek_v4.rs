//! DeepSeek-V4: several residual streams, attention to near tokens and compressed entries, and experts in every layer.
//! Defaults are those of transformers 5.24.

use super::ModelFamily;
use super::deepseek::EXPERT_KEYS;
use super::experts::read_routed_experts;
use super::llama::{self, LlamaDefaults, SYNONYMS, read_without_mlp};
use super::llama_like::with_variations;
use super::reader::{ConfigReader, NamedNumber};
use super::windows::{read_types_of_layers, read_types_under_key};
use crate::error::WorkloadError;
use crate::layer_list::{KeyChoice, KeyWindow, LayerKind, Mixer};
use crate::limits::{MAX_FFN, MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_WIDTH};
use crate::model::{Experts, Model, SharedExpert};
use crate::variations::{CompressedAttention, Indexer, ResidualStreams};
use serde_json::Value;

/// Largest numbers of residual streams and of rounds that balance their matrix; the published models have 4 and 20.
const MOST_STREAMS: u64 = 64;
const MOST_ROUNDS: u64 = 1000;

/// Number of layers whose experts a table chooses, if the file states none (transformers 5.24,
/// `default_num_hash_layers`).
const DEFAULT_HASH_LAYERS: u64 = 3;

/// The key of the object with the tokens per entry for each kind of layer.
const RATES: &str = "compress_rates";

/// Kinds of layers by transformers' names, with the entries that their queries see.
const KINDS: [(&str, KeyChoice); 3] = [
    ("heavily_compressed_attention", KeyChoice::Entries),
    ("compressed_sparse_attention", KeyChoice::Indexed),
    ("sliding_attention", KeyChoice::All),
];

pub(super) const FAMILY: ModelFamily = ModelFamily {
    model_types: &["deepseek_v4"],
    keys: &[
        llama::KEYS,
        EXPERT_KEYS,
        &[
            "compress_rate_csa",
            "compress_rate_hca",
            "compress_rates",
            "compress_ratios",
            "compress_rope_theta",
            "hc_mult",
            "hc_sinkhorn_iters",
            "index_head_dim",
            "index_n_heads",
            "index_topk",
            "layer_types",
            "num_hash_layers",
            "o_groups",
            "o_lora_rank",
            "q_lora_rank",
            "qk_rope_head_dim",
            "sliding_window",
        ],
    ],
    defaults: &[
        ("compress_rate_csa", 4),
        ("compress_rate_hca", 128),
        ("hc_mult", 4),
        ("hc_sinkhorn_iters", 20),
        ("head_dim", 512),
        ("index_head_dim", 128),
        ("index_n_heads", 64),
        ("index_topk", 512),
        ("moe_intermediate_size", 2048),
        ("num_key_value_heads", 1),
        ("o_groups", 8),
        ("o_lora_rank", 1024),
        ("q_lora_rank", 1024),
        ("sliding_window", 128),
    ],
    synonyms: SYNONYMS,
    read: read_deepseek_v4,
};

fn read_deepseek_v4(reader: &ConfigReader<'_>) -> Result<Model, WorkloadError> {
    let cure = "biases are not covered in this family: set it to false";
    reader.forbid_flag("attention_bias", cure)?;
    reader.forbid_flag("mlp_bias", cure)?;
    let model = read_without_mlp(reader, LlamaDefaults { rotated: 0.125, ..LlamaDefaults::LLAMA })?;
    if model.kv_heads != 1 {
        let limit = "1: one key serves all heads";
        return Err(reader.value_error("num_key_value_heads", model.kv_heads, limit, "correct it"));
    }
    let rotated = reader.read_optional_dimension("qk_rope_head_dim", model.head_dim)?;
    if let Some(rotated) = rotated.filter(|_| reader.get("partial_rotary_factor").is_some())
        && Some(rotated) != model.variations.rotated
    {
        let part = model.variations.rotated.unwrap_or(model.head_dim);
        let limit = format!("`head_dim` x `partial_rotary_factor` ({part})");
        return Err(reader.value_error("qk_rope_head_dim", rotated, &limit, "leave one of the two out"));
    }
    let rotated = rotated.or(model.variations.rotated);
    let model = add_experts(reader, model)?;
    let kinds = read_kinds(reader, model.layers)?;
    let own = read_attention(reader, &model)?;
    let window = reader.read_dimension("sliding_window", MAX_POSITIONS)?;
    let indexed = kinds.contains(&KeyChoice::Indexed);
    let indexer = Indexer {
        heads: reader.read_dimension("index_n_heads", MAX_HEADS)?,
        head_dim: reader.read_dimension("index_head_dim", MAX_WIDTH)?,
        chosen: reader.read_dimension("index_topk", MAX_POSITIONS)?,
        block: 1,
        tokens_per_key: own.chosen_entry_tokens,
        query_rank: Some(own.query_rank),
        weighed: true,
        scaled: None,
    };
    let streams = ResidualStreams {
        count: reader.read_dimension("hc_mult", MOST_STREAMS)?,
        rounds: reader.read_dimension("hc_sinkhorn_iters", MOST_ROUNDS)?,
    };
    note_assumptions(reader, indexed);
    let model = with_variations(model, |v| {
        (v.rotated, v.sinks, v.shared_value) = (rotated, true, true);
        (v.compressed, v.streams, v.indexer) = (Some(own), Some(streams), indexed.then_some(indexer));
    });
    Ok(model.with_changed_layers(|layer, kind| LayerKind {
        mixer: Mixer::Compressed,
        window: Some(KeyWindow::Sliding(window)),
        keys: kinds[layer as usize],
        ..kind
    }))
}

fn note_assumptions(reader: &ConfigReader<'_>, indexed: bool) {
    let part = "norms of queries without parameters, the rotation of entries and the inverse rotation of results count \
                as part of the kernels beside them";
    reader.note_assumption(part.to_owned());
    if indexed {
        let learns = "the indexer learns from attention's own probabilities on the chosen entries, as in V3.2; the \
                      model's loss has no gradient through it";
        reader.note_assumption(learns.to_owned());
    }
}

/// Reads the widths and groups of attention, and the tokens per entry.
fn read_attention(reader: &ConfigReader<'_>, model: &Model) -> Result<CompressedAttention, WorkloadError> {
    check_rates(reader)?;
    let rate = |inner: &str, key: &'static str| read_rate(reader, inner, key);
    let [all, chosen, _] = KINDS.map(|(name, _)| name);
    let own = CompressedAttention {
        query_rank: reader.read_dimension("q_lora_rank", MAX_WIDTH)?,
        output_groups: reader.read_dimension("o_groups", MAX_HEADS)?,
        output_rank: reader.read_dimension("o_lora_rank", MAX_WIDTH)?,
        entry_tokens: rate(all, "compress_rate_hca")?,
        chosen_entry_tokens: rate(chosen, "compress_rate_csa")?,
    };
    if own.chosen_entry_tokens < 2 {
        let limit = "at least 2 tokens per chosen entry";
        return Err(reader.value_error("compress_rates", own.chosen_entry_tokens, limit, "correct it"));
    }
    reader.check_divides(
        NamedNumber { key: "o_groups", value: own.output_groups },
        NamedNumber { key: "num_attention_heads", value: model.heads },
    )?;
    Ok(own)
}

/// Returns an error if `compress_rates` is not an object with a number for each kind of layer.
fn check_rates(reader: &ConfigReader<'_>) -> Result<(), WorkloadError> {
    let Some(value) = reader.get(RATES) else { return Ok(()) };
    let known = |key: &String| KINDS.iter().any(|(name, keys)| name == key && *keys != KeyChoice::All);
    if value.as_object().is_some_and(|rates| rates.keys().all(known)) {
        return Ok(());
    }
    let [all, chosen, _] = KINDS.map(|(name, _)| name);
    let limit = format!("an object of numbers by kind of layer, \"{all}\" and \"{chosen}\"");
    Err(reader.value_error(RATES, value.clone(), &limit, "correct the kinds, or leave it out for 128 and 4"))
}

/// Reads the tokens per entry of a kind of layer from `compress_rates`, or from `key`, which older files use.
fn read_rate(reader: &ConfigReader<'_>, inner: &str, key: &'static str) -> Result<u64, WorkloadError> {
    let older = reader.read_dimension(key, MAX_POSITIONS)?;
    let Some(rates) = reader.get(RATES) else { return Ok(older) };
    let name = format!("{RATES}.{inner}");
    let Some(value) = rates.get(inner) else {
        if reader.get(key).is_some() {
            return Ok(older);
        }
        let limit = "a whole number of tokens per entry";
        return Err(reader.value_error(&name, Value::Null, limit, "add the model's own value"));
    };
    let rate = reader.nested_dimension(RATES, inner, value, MAX_POSITIONS)?;
    if reader.get(key).is_some() && older != rate {
        let limit = format!("`{key}` ({older}), another name of the same number");
        return Err(reader.value_error(&name, rate, &limit, "leave one of the two out"));
    }
    Ok(rate)
}

/// Reads the entries that each layer sees: from the kinds of layers, or from the tokens per entry (0 for none). In
/// published files, that second list has one more number, for the module that predicts a further token.
fn read_kinds(reader: &ConfigReader<'_>, layers: u64) -> Result<Vec<KeyChoice>, WorkloadError> {
    let known = KINDS.map(|(name, _)| name);
    let by_ratio = read_ratios(reader, layers)?;
    if let Some(types) = read_types_of_layers(reader, layers, &known)? {
        let kind = |name: &&str| KINDS.iter().find(|(known, _)| known == name).map(|(_, keys)| *keys);
        let by_type: Vec<KeyChoice> = types.iter().filter_map(kind).collect();
        if by_ratio.is_some_and(|by_ratio| by_ratio != by_type) {
            let given = reader.get("compress_ratios").cloned().unwrap_or_default();
            let limit = "the kinds of `layer_types`: 0, 4 and 128 for sliding, sparse and heavily compressed attention";
            return Err(reader.value_error("compress_ratios", given, limit, "leave one of the two out"));
        }
        return Ok(by_type);
    }
    let kind = |layer: u64| if layer < 2 || layer.is_multiple_of(2) { KeyChoice::Entries } else { KeyChoice::Indexed };
    Ok(by_ratio.unwrap_or_else(|| (0..layers).map(kind).collect()))
}

/// Reads the kinds of layers from a list of tokens per entry; `None` without a list.
fn read_ratios(reader: &ConfigReader<'_>, layers: u64) -> Result<Option<Vec<KeyChoice>>, WorkloadError> {
    let Some(value) = reader.get("compress_ratios") else { return Ok(None) };
    let further = reader.read_count("num_nextn_predict_layers", MAX_LAYERS, 1)?;
    let kind = |ratio: &Value| match ratio.as_u64() {
        Some(0) => Some(KeyChoice::All),
        Some(4) => Some(KeyChoice::Indexed),
        Some(128) => Some(KeyChoice::Entries),
        _ => None,
    };
    let list = value.as_array().and_then(|list| list.iter().map(kind).collect::<Option<Vec<KeyChoice>>>());
    match list.filter(|list| [layers, layers + further].contains(&(list.len() as u64))) {
        Some(list) => Ok(Some(list.into_iter().take(layers as usize).collect())),
        None => {
            let limit = format!("a list of `num_hidden_layers` ({layers}) numbers, each 0, 4 or 128");
            Err(reader.value_error("compress_ratios", value.clone(), &limit, "correct one of the two"))
        }
    }
}

/// Adds experts in every layer. A table by token chooses the experts of the first layers; the router's scores weigh
/// them in all layers.
fn add_experts(reader: &ConfigReader<'_>, model: Model) -> Result<Model, WorkloadError> {
    let ffn = reader.read_dimension("moe_intermediate_size", MAX_FFN)?;
    // Transformers uses both names for the same number.
    if let Some(other) = reader.read_optional_dimension("intermediate_size", MAX_FFN)?.filter(|other| *other != ffn) {
        let limit = format!("`moe_intermediate_size` ({ffn}), another name of the same number");
        return Err(reader.value_error("intermediate_size", other, &limit, "leave it out"));
    }
    if reader.read_count("n_shared_experts", MAX_WIDTH, 1)? != 1 {
        let given = reader.get("n_shared_experts").cloned().unwrap_or_default();
        let limit = "1: transformers builds one shared expert of `moe_intermediate_size`";
        return Err(reader.value_error("n_shared_experts", given, limit, "correct it"));
    }
    let types = read_types_under_key(reader, "mlp_layer_types", model.layers, &["hash_moe", "moe"])?;
    let first = reader.read_count("num_hash_layers", model.layers, DEFAULT_HASH_LAYERS.min(model.layers))?;
    let by_table = types.map_or(first, |types| types.iter().filter(|kind| **kind == "hash_moe").count() as u64);
    if reader.get("num_hash_layers").is_some() && by_table != first {
        let limit = format!("the number of \"hash_moe\" in `mlp_layer_types` ({by_table})");
        return Err(reader.value_error("num_hash_layers", first, &limit, "leave one of the two out"));
    }
    if by_table > 0 {
        reader.note_assumption(format!(
            "a table by token chooses the experts of {by_table} layers: it has no gradient and is not counted"
        ));
    }
    let shared = Some(SharedExpert { ffn, weighed: false });
    let experts = Some(Experts { shared, ..read_routed_experts(reader, "n_routed_experts")? });
    Ok(Model { ffn, experts, ..model })
}
