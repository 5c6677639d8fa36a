//! Families whose layers differ in their attention heads: MiMo V2 Flash, Step 3.5 and 3.7, Laguna, Gemma 4, and
//! NVIDIA's searched Llamas (Nemotron-NAS). EXAONE MoE, with windows in dense and sparse layers, is also here. Defaults
//! are those of transformers 5.24.

use super::ModelFamily;
use super::deepseek::{self, add_experts};
use super::experts::{alternate_experts, read_routed_experts};
use super::llama::{self, LlamaDefaults, SYNONYMS, read_with_defaults, read_without_mlp};
use super::llama_like::with_variations;
use super::reader::{ConfigReader, NamedNumber};
use super::windows::{self, read_types_of_layers};
use crate::error::WorkloadError;
use crate::layer_list::{AttentionShape, FeedForward, LayerKind, Mixer};
use crate::limits::{MAX_EXPERTS, MAX_FFN, MAX_HEADS, MAX_WIDTH};
use crate::model::{Experts, Model, NormPlacement, SharedExpert};
use crate::variations::{OutputGate, QueryKeyNorm};
use serde_json::Value;
use sim::kernel::ElementwiseFunction;

/// Returns the model's own heads as the shape of a layer.
fn own_shape(model: &Model) -> AttentionShape {
    AttentionShape {
        heads: model.heads,
        kv_heads: model.kv_heads,
        head_dim: model.head_dim,
        sinks: model.variations.sinks,
        shared_value: model.variations.shared_value,
    }
}

/// Returns the model with `window` and `shape` in the layers where `windowed` is true.
fn with_windowed_shape(model: Model, window: u64, shape: AttentionShape, windowed: impl Fn(u64) -> bool) -> Model {
    let changed = (shape != own_shape(&model)).then_some(shape);
    let model = windows::with_window(model, window, &windowed);
    let attention = |layer| changed.filter(|_| windowed(layer));
    model.with_changed_layers(|layer, kind| LayerKind { attention: attention(layer), ..kind })
}

/// EXAONE MoE: windows in three layers of four, experts after the first layer.
pub(super) const EXAONE_MOE: ModelFamily = ModelFamily {
    model_types: &["exaone_moe"],
    keys: &[llama::KEYS, deepseek::EXPERT_KEYS, &["layer_types", "sliding_window", "sliding_window_pattern"]],
    defaults: &[("first_k_dense_replace", 1), ("n_shared_experts", 1), ("sliding_window_pattern", 4)],
    synonyms: SYNONYMS,
    read: |reader| {
        let model = add_experts(reader, read_with_defaults(reader, LlamaDefaults::LLAMA)?)?;
        let period = reader.read_count("sliding_window_pattern", MAX_WIDTH, 4)?;
        let model = match reader.read_window()? {
            Some(window) => windows::add_windows_by_type(reader, model, window, period)?,
            None => model,
        };
        Ok(with_variations(model, |v| v.query_key_norm = Some(QueryKeyNorm::Head)))
    },
};

/// MiMo V2 Flash: layers with a window have twice as many key/value heads, and sinks. Values are narrower than keys.
pub(super) const MIMO_V2_FLASH: ModelFamily = ModelFamily {
    model_types: &["mimo_v2_flash"],
    keys: &[
        llama::KEYS,
        deepseek::EXPERT_KEYS,
        &[
            "add_full_attention_sink_bias",
            "add_swa_attention_sink_bias",
            "hybrid_layer_pattern",
            "layer_types",
            "sliding_window",
            "sliding_window_size",
            "swa_head_dim",
            "swa_num_attention_heads",
            "swa_num_key_value_heads",
            "swa_v_head_dim",
            "v_head_dim",
        ],
    ],
    defaults: &[("first_k_dense_replace", 1), ("head_dim", 192), ("num_key_value_heads", 4), ("v_head_dim", 128)],
    synonyms: SYNONYMS,
    read: |reader| {
        let model = read_with_defaults(reader, LlamaDefaults::LLAMA)?;
        let part = reader.read_fraction("partial_rotary_factor", &[], 0.334)?;
        let model = add_experts(reader, Model { attention_output_bias: false, ..model })?;
        let layers = model.layer_count();
        let value = reader.read_dimension("v_head_dim", MAX_WIDTH)?;
        for (key, own) in [("swa_head_dim", model.head_dim), ("swa_v_head_dim", value)] {
            if let Some(other) = reader.read_optional_dimension(key, MAX_WIDTH)?.filter(|other| *other != own) {
                let limit = format!("{own}, as in the other layers");
                return Err(reader.value_error(key, other, &limit, "heads of two dimensions are not covered here"));
            }
        }
        let rotated = llama::read_rotated_fraction(model.head_dim, part);
        let full_sinks = reader.read_flag("add_full_attention_sink_bias", false)?;
        let model = with_variations(model, |v| {
            (v.value_dim, v.rotated, v.sinks) = (Some(value), rotated, full_sinks);
        });
        let heads = reader.read_optional_dimension("swa_num_attention_heads", MAX_HEADS)?.unwrap_or(model.heads);
        let kv_heads =
            reader.read_optional_dimension("swa_num_key_value_heads", MAX_HEADS)?.unwrap_or(2 * model.kv_heads);
        reader.check_divides(
            NamedNumber { key: "swa_num_key_value_heads", value: kv_heads },
            NamedNumber { key: "num_attention_heads", value: heads },
        )?;
        let sinks = reader.read_flag("add_swa_attention_sink_bias", true)?;
        let shape = AttentionShape { heads, kv_heads, sinks, ..own_shape(&model) };
        // The checkpoint's own key counts the earlier tokens, without the query's own token.
        let window = reader.read_optional_dimension("sliding_window_size", MAX_WIDTH)?.map(|before| before + 1);
        let window = match window {
            Some(window) => window,
            None => reader.read_window()?.unwrap_or(129),
        };
        let windowed = match (read_types_of_layers(reader, layers, TYPES)?, reader.get("hybrid_layer_pattern")) {
            (Some(types), _) => types.iter().map(|kind| *kind == TYPES[1]).collect(),
            (None, Some(value)) => reader.read_marks("hybrid_layer_pattern", "", value, layers)?,
            (None, None) => (0..layers).map(|layer| layer > 0 && !(layer + 1).is_multiple_of(6)).collect::<Vec<_>>(),
        };
        Ok(with_windowed_shape(model, window, shape, |layer| windowed[layer as usize]))
    },
};

/// Names of the kinds of attention in lists of layers.
const TYPES: &[&str] = &["full_attention", "sliding_attention"];

/// Step 3.5 and 3.7: a gate per head, more heads in layers with a window, a shared expert.
pub(super) const STEP3P5: ModelFamily = ModelFamily {
    model_types: &["step3p5", "step3p7"],
    keys: &[
        llama::KEYS,
        &[
            "attention_other_setting",
            "capacity_factor",
            "first_k_dense_replace",
            "layer_types",
            "mlp_layer_types",
            "moe_intermediate_size",
            "moe_layers_enum",
            "n_routed_experts",
            "n_shared_experts",
            "num_experts_per_tok",
            "num_sliding_attention_heads",
            "per_layer_config",
            "share_expert_dim",
            "sliding_window",
            "use_head_wise_attn_gate",
        ],
    ],
    defaults: &[
        ("first_k_dense_replace", 3),
        ("head_dim", 128),
        ("moe_intermediate_size", 1280),
        ("num_key_value_heads", 8),
        ("share_expert_dim", 1280),
    ],
    synonyms: SYNONYMS,
    read: |reader| {
        let model = read_with_defaults(reader, LlamaDefaults::LLAMA)?;
        let layers = model.layers;
        let wide = model.ffn;
        let ffn = reader.read_dimension("moe_intermediate_size", MAX_FFN)?;
        let each = reader.read_dimension("share_expert_dim", MAX_FFN)?;
        let shared = each.saturating_mul(reader.read_count("n_shared_experts", MAX_EXPERTS, 1)?).min(MAX_FFN);
        let shared = (shared > 0).then_some(SharedExpert { ffn: shared, weighed: false });
        let experts = Some(Experts { shared, ..read_routed_experts(reader, "n_routed_experts")? });
        let dense = reader.read_count("first_k_dense_replace", layers, 3)?;
        let listed = deepseek::read_sparse_layers(reader, layers)?;
        let named = read_numbers(reader, "moe_layers_enum")?;
        let sparse = |layer: u64| match (&listed, &named) {
            (Some(list), _) => list[layer as usize],
            (None, Some(named)) => named.contains(&layer),
            (None, None) => layer >= dense,
        };
        let model = alternate_experts(Model { ffn, experts, ..model }, wide, sparse);
        let gate = reader.read_flag("use_head_wise_attn_gate", true)?.then_some(OutputGate::Head);
        let model = with_variations(model, |v| {
            (v.output_gate, v.query_key_norm) = (gate, Some(QueryKeyNorm::Head));
        });
        let other = reader.get("attention_other_setting").and_then(|other| other.get("num_attention_heads"));
        let heads = match other {
            Some(value) => {
                reader.nested_dimension("attention_other_setting", "num_attention_heads", value, MAX_HEADS)?
            }
            None => reader.read_optional_dimension("num_sliding_attention_heads", MAX_HEADS)?.unwrap_or(model.heads),
        };
        let shape = AttentionShape { heads, ..own_shape(&model) };
        let Some(types) = read_types_of_layers(reader, layers, TYPES)? else { return Ok(model) };
        let Some(window) = reader.read_window()? else { return Ok(model) };
        Ok(with_windowed_shape(model, window, shape, |layer| types[layer as usize] == TYPES[1]))
    },
};

/// Reads layer indices from a list or from a string with commas; `None` without the key.
fn read_numbers(reader: &ConfigReader<'_>, key: &str) -> Result<Option<Vec<u64>>, WorkloadError> {
    let Some(value) = reader.get(key) else { return Ok(None) };
    let numbers: Option<Vec<u64>> = match value {
        Value::Array(list) => list.iter().map(Value::as_u64).collect(),
        _ => value.as_str().unwrap_or_default().split(',').map(|part| part.trim().parse().ok()).collect(),
    };
    match numbers {
        Some(numbers) => Ok(Some(numbers)),
        None => Err(reader.value_error(key, value.clone(), "layers' numbers from 0, with commas", "correct the list")),
    }
}

/// Laguna: a number of heads per layer, and a gate per head or per element.
pub(super) const LAGUNA: ModelFamily = ModelFamily {
    model_types: &["laguna"],
    keys: &[
        llama::KEYS,
        &[
            "capacity_factor",
            "gating",
            "layer_types",
            "mlp_layer_types",
            "moe_intermediate_size",
            "num_attention_heads_per_layer",
            "num_experts",
            "num_experts_per_tok",
            "shared_expert_intermediate_size",
            "sliding_window",
        ],
    ],
    defaults: &[
        ("head_dim", 128),
        ("moe_intermediate_size", 512),
        ("num_key_value_heads", 8),
        ("shared_expert_intermediate_size", 512),
        ("sliding_window", 512),
    ],
    synonyms: SYNONYMS,
    read: |reader| {
        let model = read_with_defaults(reader, LlamaDefaults::LLAMA)?;
        let (layers, wide) = (model.layers, model.ffn);
        let ffn = reader.read_dimension("moe_intermediate_size", MAX_FFN)?;
        let shared = reader.read_dimension("shared_expert_intermediate_size", MAX_FFN)?;
        let shared = Some(SharedExpert { ffn: shared, weighed: false });
        // The correction that the router adds to its scores is a parameter.
        let experts = Some(Experts { shared, router_bias: true, ..read_routed_experts(reader, "num_experts")? });
        let sparse = deepseek::read_sparse_layers(reader, layers)?;
        let sparse = |layer: u64| sparse.as_ref().map_or(layer > 0, |sparse| sparse[layer as usize]);
        let model = alternate_experts(Model { ffn, experts, ..model }, wide, sparse);
        let gate = match reader.get("gating") {
            None | Some(Value::Bool(true)) => Some(OutputGate::Head),
            Some(Value::String(kind)) if kind == "per-head" => Some(OutputGate::Head),
            Some(Value::String(kind)) if kind == "per-element" => Some(OutputGate::Number),
            Some(value) => {
                let limit = "true, \"per-head\" or \"per-element\"";
                return Err(reader.value_error("gating", value.clone(), limit, "other gates are not covered"));
            }
        };
        let model = with_variations(model, |v| {
            (v.output_gate, v.query_key_norm) = (gate, Some(QueryKeyNorm::Head));
        });
        let model = match (read_types_of_layers(reader, layers, TYPES)?, reader.read_window()?) {
            (Some(types), Some(window)) => {
                windows::with_window(model, window, |layer| types[layer as usize] == TYPES[1])
            }
            _ => model,
        };
        let Some(heads) = read_numbers(reader, "num_attention_heads_per_layer")? else { return Ok(model) };
        let fits = |count: &u64| (1..=MAX_HEADS).contains(count) && count.is_multiple_of(model.kv_heads);
        if heads.len() as u64 != layers || !heads.iter().all(fits) {
            let value = reader.get("num_attention_heads_per_layer").cloned().unwrap_or_default();
            let limit = format!("{layers} multiples of `num_key_value_heads` ({})", model.kv_heads);
            return Err(reader.value_error("num_attention_heads_per_layer", value, &limit, "correct the list"));
        }
        let own = own_shape(&model);
        let shape = |layer: u64| Some(AttentionShape { heads: heads[layer as usize], ..own });
        Ok(model.with_changed_layers(|layer, kind| LayerKind {
            attention: shape(layer).filter(|shape| *shape != own),
            ..kind
        }))
    },
};

/// The text model of Gemma 4: layers without a window have wider heads and fewer key heads, and may use keys as values.
pub(super) const GEMMA4: ModelFamily = ModelFamily {
    model_types: &["gemma4", "gemma4_text"],
    keys: &[
        llama::KEYS,
        &[
            "attention_k_eq_v",
            "capacity_factor",
            "enable_moe_block",
            "global_head_dim",
            "hidden_activation",
            "hidden_size_per_layer_input",
            "layer_types",
            "moe_intermediate_size",
            "num_experts",
            "num_experts_per_tok",
            "num_global_key_value_heads",
            "num_kv_shared_layers",
            "per_layer_config",
            "sliding_window",
            "use_bidirectional_attention",
            "use_double_wide_mlp",
            "vocab_size_per_layer_input",
        ],
    ],
    defaults: &[("head_dim", 256), ("sliding_window", 512)],
    synonyms: SYNONYMS,
    read: |reader| {
        for (key, what) in [
            ("hidden_size_per_layer_input", "inputs per layer"),
            ("num_kv_shared_layers", "layers that share keys and values"),
        ] {
            // The default of Gemma4TextConfig is per-layer inputs of width 256 if the key is absent.
            let absent = if key == "hidden_size_per_layer_input" { 256 } else { 0 };
            let count = reader.read_count(key, MAX_WIDTH, absent)?;
            if count > 0 {
                return Err(reader.value_error(key, count, "0", &format!("{what} are not covered yet")));
            }
        }
        let defaults = LlamaDefaults { tied: true, activation: ElementwiseFunction::Gelu, ..LlamaDefaults::LLAMA };
        let model = read_with_defaults(reader, defaults)?;
        let activation = reader.read_activation("hidden_activation", ElementwiseFunction::Gelu)?;
        let both_ways = reader.get("use_bidirectional_attention").and_then(Value::as_str);
        let causal = matches!(both_ways, None | Some("vision"));
        let model = Model { activation, causal, norm_placement: NormPlacement::Sandwich, ..model };
        let model =
            if reader.read_flag("enable_moe_block", false)? { add_normed_experts(reader, model)? } else { model };
        let layers = model.layers;
        // The scalar of every layer is a buffer. Norms of values have no gains and count as part of the products.
        let model = with_variations(model, |v| v.query_key_norm = Some(QueryKeyNorm::Head));
        let types = match read_types_of_layers(reader, layers, TYPES)? {
            Some(types) => types.iter().map(|kind| *kind == TYPES[0]).collect(),
            None => (1..=layers).map(|layer| layer.is_multiple_of(6) || layer == layers).collect::<Vec<bool>>(),
        };
        let first_full = types.iter().position(|full| *full).unwrap_or_default();
        let stated = |key: &str| read_layer_size(reader, first_full, key);
        let head_dim = match stated("head_dim")? {
            Some(dim) => dim,
            None => reader.read_optional_dimension("global_head_dim", MAX_WIDTH)?.unwrap_or(512),
        };
        let shared_value = reader.read_flag("attention_k_eq_v", false)?;
        let kv_heads = match stated("num_key_value_heads")? {
            Some(heads) => heads,
            None => reader
                .read_optional_dimension("num_global_key_value_heads", MAX_HEADS)?
                .filter(|_| shared_value)
                .unwrap_or(model.kv_heads),
        };
        reader.check_divides(
            NamedNumber { key: "num_global_key_value_heads", value: kv_heads },
            NamedNumber { key: "num_attention_heads", value: model.heads },
        )?;
        let own = own_shape(&model);
        let shape = AttentionShape { head_dim, kv_heads, shared_value, ..own };
        let model = match reader.read_window()? {
            Some(window) => windows::with_window(model, window, |layer| !types[layer as usize]),
            None => model,
        };
        let full = |layer: u64| Some(shape).filter(|shape| types[layer as usize] && *shape != own);
        Ok(model.with_changed_layers(|layer, kind| LayerKind { attention: full(layer), ..kind }))
    },
};

/// Adds Gemma 4's experts beside the MLP, each with its own norms. One parameter per expert scales the router's
/// weights.
fn add_normed_experts(reader: &ConfigReader<'_>, model: Model) -> Result<Model, WorkloadError> {
    let shared = Some(SharedExpert { ffn: model.ffn, weighed: false });
    let routed = read_routed_experts(reader, "num_experts")?;
    let experts = Some(Experts { shared, router_bias: true, own_norms: true, ..routed });
    Ok(Model { ffn: reader.read_dimension("moe_intermediate_size", MAX_FFN)?, experts, ..model })
}

/// Reads one layer's size from `per_layer_config`, as transformers writes it: an object keyed by layer indices. `None`
/// if it is absent.
fn read_layer_size(reader: &ConfigReader<'_>, layer: usize, key: &str) -> Result<Option<u64>, WorkloadError> {
    let Some(list) = reader.get("per_layer_config").and_then(Value::as_object) else { return Ok(None) };
    let entry = list.iter().find(|(number, _)| number.parse::<usize>() == Ok(layer));
    let Some(value) = entry.and_then(|(_, sizes)| sizes.get(key)) else { return Ok(None) };
    reader.nested_dimension("per_layer_config", key, value, MAX_WIDTH).map(Some)
}

/// NVIDIA's searched Llamas (Nemotron-NAS). `block_configs` gives each layer its own number of key heads and MLP width,
/// or removes attention or MLP. Source: `modeling_decilm.py` in nvidia/Llama-3_3-Nemotron-Super-49B-v1.
pub(super) const NEMOTRON_NAS: ModelFamily = ModelFamily {
    model_types: &["nemotron-nas"],
    keys: &[llama::KEYS, &["block_configs"]],
    defaults: &[],
    synonyms: SYNONYMS,
    read: |reader| {
        let model = read_without_mlp(reader, LlamaDefaults::LLAMA)?;
        let value = reader.get("block_configs").cloned().unwrap_or_default();
        let list = value.as_array().filter(|list| list.len() as u64 == model.layers);
        let Some(list) = list else {
            let limit = format!("a list of `num_hidden_layers` ({}) entries", model.layers);
            return Err(reader.value_error("block_configs", value.clone(), &limit, "correct one of the two"));
        };
        let kinds: Vec<LayerKind> =
            (0..).zip(list).map(|(layer, block)| read_block(reader, &model, layer, block)).collect::<Result<_, _>>()?;
        let width = |kind: &LayerKind| match kind.feed {
            FeedForward::Mlp(width) => Some(width),
            FeedForward::Own | FeedForward::None => None,
        };
        let Some(ffn) = kinds.iter().filter_map(width).max() else {
            let limit = "at least one layer with an MLP";
            return Err(reader.value_error("block_configs", value.clone(), limit, "correct the list"));
        };
        Ok(Model { ffn, ..model }.with_layers(&[], &kinds))
    },
};

/// Reads the entry of one layer of a searched Llama.
fn read_block(reader: &ConfigReader<'_>, model: &Model, layer: u64, block: &Value) -> Result<LayerKind, WorkloadError> {
    let field = |part: &str, key: &str| block.get(part).and_then(|part| part.get(key)).filter(|value| !value.is_null());
    let is = |part: &str, key: &str| field(part, key).and_then(Value::as_bool).unwrap_or(false);
    let wrong = |part: &str, key: &str, limit: &str| {
        let name = format!("block_configs[{layer}].{part}.{key}");
        reader.value_error(&name, field(part, key).cloned().unwrap_or_default(), limit, "correct the layer")
    };
    for part in ["attention", "ffn"] {
        if is(part, "replace_with_linear") {
            return Err(wrong(part, "replace_with_linear", "false: a single product is not covered"));
        }
    }
    let (mixer, attention) = if is("attention", "no_op") {
        (Mixer::None, None)
    } else {
        let shared = field("attention", "n_heads_in_group").and_then(Value::as_u64);
        let Some(shared) = shared.filter(|n| *n > 0 && model.heads.is_multiple_of(*n)) else {
            let limit = format!("a divisor of `num_attention_heads` ({})", model.heads);
            return Err(wrong("attention", "n_heads_in_group", &limit));
        };
        (Mixer::Attention, Some(AttentionShape { kv_heads: model.heads / shared, ..own_shape(model) }))
    };
    let feed = if is("ffn", "no_op") {
        FeedForward::None
    } else {
        // The width is the factor times 2/3 of the model's width, rounded up to a multiple of 256
        // (`_ffn_mult_to_intermediate_size`).
        let width = field("ffn", "ffn_mult").and_then(Value::as_f64);
        let width = width.map(|factor| (2.0 * factor * model.hidden as f64 / 3.0) as u64);
        match width.map(|width| width.next_multiple_of(256)).filter(|width| (1..=MAX_FFN).contains(width)) {
            Some(width) => FeedForward::Mlp(width),
            None => return Err(wrong("ffn", "ffn_mult", "a factor that gives a width in range")),
        }
    };
    Ok(LayerKind { mixer, attention, feed, ..model.uniform_kind() })
}
