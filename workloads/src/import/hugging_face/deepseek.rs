//! DeepSeek V2 and V3, Kimi K2: latent attention, narrow routed experts beside shared ones, and dense MLPs in the first
//! layers. DeepSeek-MoE, GLM 4.5, dots.llm1 and ERNIE 4.5 have the same layers with ordinary attention.

use super::ModelFamily;
use super::experts::{alternate_experts, read_routed_experts};
use super::llama::{self, LlamaDefaults, read_with_defaults};
use super::llama_like::with_variations;
use super::reader::{ConfigReader, NamedNumber};
use super::windows;
use crate::error::WorkloadError;
use crate::limits::{MAX_EXPERTS, MAX_FFN, MAX_LAYERS, MAX_WIDTH};
use crate::model::{ExpertGroups, Experts, Model, SharedExpert};
use crate::variations::{LatentAttention, QueryKeyNorm};

pub(super) const EXPERT_KEYS: &[&str] = &[
    "capacity_factor",
    "first_k_dense_replace",
    "mlp_layer_types",
    "moe_intermediate_size",
    "moe_layer_freq",
    "n_group",
    "n_routed_experts",
    "n_shared_experts",
    "num_experts_per_tok",
    "topk_group",
    "topk_method",
];

pub(super) const LATENT_KEYS: &[&str] =
    &["kv_lora_rank", "q_lora_rank", "qk_head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"];

pub(super) const FAMILY: ModelFamily = ModelFamily {
    model_types: &["deepseek_v2", "deepseek_v3", "glm4_moe_lite", "kimi_k2", "youtu"],
    keys: &[llama::KEYS, EXPERT_KEYS, LATENT_KEYS],
    defaults: &[],
    synonyms: llama::SYNONYMS,
    read: |reader| {
        add_latent_attention(reader, add_experts(reader, read_with_defaults(reader, LlamaDefaults::LLAMA)?)?)
    },
};

/// Returns the model with latent attention.
pub(super) fn add_latent_attention(reader: &ConfigReader<'_>, model: Model) -> Result<Model, WorkloadError> {
    let rope_dim = reader.read_dimension("qk_rope_head_dim", MAX_WIDTH)?;
    let latent = LatentAttention {
        query_rank: reader.read_optional_dimension("q_lora_rank", MAX_WIDTH)?,
        kv_rank: reader.read_dimension("kv_lora_rank", MAX_WIDTH)?,
        rope_dim,
        value_dim: reader.read_dimension("v_head_dim", MAX_WIDTH)?,
    };
    let head_dim = rope_dim + reader.read_dimension("qk_nope_head_dim", MAX_WIDTH)?;
    // Latent attention has as many key heads as query heads, whatever the file states. Its biases would be on the
    // down-projections.
    if model.qkv_bias {
        reader.note_assumption("`attention_bias` = true: biases of the narrow vectors are left out".to_owned());
    }
    let model = Model { head_dim, kv_heads: model.heads, qkv_bias: false, attention_output_bias: false, ..model };
    Ok(with_variations(model, |v| v.latent = Some(latent)))
}

/// DeepSeek's layers with ordinary attention: DeepSeek-MoE, dots.llm1, ERNIE 4.5, and GLM 4.5, which rotates half of
/// every head.
pub(super) const PLAIN_ATTENTION: ModelFamily = ModelFamily {
    model_types: &["deepseek", "dots1", "ernie4_5_moe", "glm4_moe"],
    keys: &[
        llama::KEYS,
        EXPERT_KEYS,
        // A window has an effect only in the layers that `layer_types` names.
        &["layer_types", "max_window_layers", "moe_layer_end_index", "sliding_window", "use_bias", "use_qk_norm"],
    ],
    defaults: &[],
    synonyms: llama::SYNONYMS,
    read: |reader| {
        let PlainAttention { rotated, tied, norms, output_bias, router_bias } =
            PlainAttention::of_type(&reader.model_type);
        let model = read_with_defaults(reader, LlamaDefaults { rotated, tied, ..LlamaDefaults::LLAMA })?;
        let model = add_experts(reader, model)?;
        let types = windows::read_layer_types(reader, model.layer_count())?;
        let model = match reader.read_window()?.filter(|_| types.is_some()) {
            Some(window) => windows::add_windows_by_type(reader, model, window, 1)?,
            None => model,
        };
        let norms = reader.read_flag("use_qk_norm", norms)?.then_some(QueryKeyNorm::Head);
        let bias = reader.read_flag("use_bias", false)?;
        let attention_output_bias = model.attention_output_bias && output_bias || bias;
        let experts = model.experts.map(|experts| Experts { router_bias, ..experts });
        let (qkv_bias, mlp_bias) = (model.qkv_bias || bias, model.mlp_bias || bias);
        let model = Model { attention_output_bias, qkv_bias, mlp_bias, experts, ..model };
        Ok(with_variations(model, |v| v.query_key_norm = norms))
    },
};

/// Differences between the families with ordinary attention.
#[derive(Debug, Clone, Copy)]
struct PlainAttention {
    rotated: f64,
    tied: bool,
    /// True if queries and keys have norms unless the file states otherwise.
    norms: bool,
    /// True if the attention's output projection has a bias when its other products have one.
    output_bias: bool,
    /// True if the correction that the router adds to its scores is a parameter.
    router_bias: bool,
}

impl PlainAttention {
    fn of_type(model_type: &str) -> Self {
        let own = Self { rotated: 1.0, tied: false, norms: false, output_bias: true, router_bias: false };
        match model_type {
            "dots1" => Self { norms: true, ..own },
            "ernie4_5_moe" => Self { tied: true, router_bias: true, ..own },
            "glm4_moe" => Self { rotated: 0.5, output_bias: false, ..own },
            _ => own,
        }
    }
}

/// Adds the experts. A file without any expert key describes a dense model, which stays unchanged.
pub(super) fn add_experts(reader: &ConfigReader<'_>, model: Model) -> Result<Model, WorkloadError> {
    let has_experts = ["n_routed_experts", "moe_intermediate_size", "num_experts_per_tok", "mlp_layer_types"];
    if has_experts.iter().all(|key| reader.get(key).is_none()) {
        return Ok(model);
    }
    let frequency = match reader.get("moe_layer_freq") {
        Some(value) if value.is_array() => 1,
        _ => reader.read_optional_dimension("moe_layer_freq", MAX_LAYERS)?.unwrap_or(1),
    };
    let width = reader.read_dimension("moe_intermediate_size", MAX_FFN)?;
    let shared = reader.read_count("n_shared_experts", MAX_EXPERTS, 0)?;
    let together = width.saturating_mul(shared);
    if together > MAX_FFN {
        let limit =
            format!("such that all experts of `moe_intermediate_size` ({width}) together are at most {MAX_FFN} wide");
        return Err(reader.value_error("n_shared_experts", shared, &limit, "correct one of the two"));
    }
    let shared = (shared > 0).then_some(SharedExpert { ffn: together, weighed: false });
    let dense = reader.read_count("first_k_dense_replace", MAX_LAYERS, 0)?;
    let last = read_last_sparse_layer(reader)?;
    let listed = read_sparse_layers(reader, model.layers)?;
    let leading = |list: &Vec<bool>| list.iter().take_while(|sparse| !**sparse).count() as u64;
    if let Some(listed) = listed.as_ref().map(leading).filter(|listed| *listed != dense)
        && reader.get("first_k_dense_replace").is_some()
    {
        let limit = format!("the number of leading \"dense\" layers in `mlp_layer_types` ({listed})");
        return Err(reader.value_error("first_k_dense_replace", dense, &limit, "correct one of the two"));
    }
    let sparse = |layer: u64| match &listed {
        Some(sparse) => sparse[layer as usize],
        None => layer >= dense && layer <= last && layer.is_multiple_of(frequency),
    };
    let (layers, wide) = (model.layers, model.ffn);
    if !(0..layers).any(sparse) {
        let limit = format!("less than `num_hidden_layers` ({layers})");
        return Err(reader.value_error(
            "first_k_dense_replace",
            dense,
            &limit,
            "these layers have no experts; at least one layer must have some",
        ));
    }
    let routed = read_routed_experts(reader, "n_routed_experts")?;
    let experts = Some(Experts { shared, groups: read_expert_groups(reader, &routed)?, ..routed });
    let model = alternate_experts(Model { ffn: width, experts, ..model }, wide, sparse);
    let leading = model.list.leading.len();
    if leading > 0 {
        reader.note_assumption(format!(
            "`first_k_dense_replace` = {dense}: the leading layers without experts stay with the embedding on the \
             pipeline's first stage"
        ));
    }
    Ok(model)
}

/// Reads the index of the last layer with experts (ERNIE 4.5). -1 or an absent key means the model's last layer.
fn read_last_sparse_layer(reader: &ConfigReader<'_>) -> Result<u64, WorkloadError> {
    let Some(value) = reader.get("moe_layer_end_index").filter(|value| value.as_i64() != Some(-1)) else {
        return Ok(MAX_LAYERS);
    };
    value.as_u64().ok_or_else(|| {
        let cure = "write -1 for the last layer";
        reader.value_error("moe_layer_end_index", value.clone(), "-1 or a layer's number from 0", cure)
    })
}

/// Reads the list of layers with experts (true) and without (false), as transformers 5 writes it; `None` without a
/// list.
pub(super) fn read_sparse_layers(reader: &ConfigReader<'_>, layers: u64) -> Result<Option<Vec<bool>>, WorkloadError> {
    let Some(value) = reader.get("mlp_layer_types") else {
        // Some checkpoints mark each layer by 0 or 1, under the key that otherwise holds the interval.
        let marks = reader.get("moe_layer_freq").filter(|value| value.is_array());
        return marks.map(|value| reader.read_marks("moe_layer_freq", "", value, layers)).transpose();
    };
    let kind = |kind: &serde_json::Value| match kind.as_str() {
        Some("sparse") => Some(true),
        Some("dense") => Some(false),
        _ => None,
    };
    let list = value.as_array().and_then(|list| list.iter().map(kind).collect::<Option<Vec<bool>>>());
    match list.filter(|list| list.len() as u64 == layers) {
        Some(list) => Ok(Some(list)),
        None => {
            let limit = format!("a list of `num_hidden_layers` ({layers}) entries, each \"dense\" or \"sparse\"");
            Err(reader.value_error("mlp_layer_types", value.clone(), &limit, "correct one of the two"))
        }
    }
}

/// Reads the limit on a token's expert groups; `None` if a token may use all groups. A `greedy` router has no groups
/// (DeepSeek-V2-Lite).
fn read_expert_groups(reader: &ConfigReader<'_>, experts: &Experts) -> Result<Option<ExpertGroups>, WorkloadError> {
    let count = reader.read_optional_dimension("n_group", MAX_EXPERTS)?.unwrap_or(1);
    let chosen = reader.read_optional_dimension("topk_group", MAX_EXPERTS)?.unwrap_or(count);
    if chosen > count {
        let limit = format!("at most `n_group` ({count})");
        return Err(reader.value_error("topk_group", chosen, &limit, "correct one of the two"));
    }
    match reader.get("topk_method").and_then(|method| method.as_str()) {
        Some("greedy") => return Ok(None),
        None | Some("group_limited_greedy" | "noaux_tc") => {}
        Some(other) => {
            let limit = "greedy, group_limited_greedy or noaux_tc";
            return Err(reader.value_error("topk_method", other, limit, "correct it, or leave it out"));
        }
    }
    reader.check_divides(
        NamedNumber { key: "n_group", value: count },
        NamedNumber { key: "n_routed_experts", value: experts.count },
    )?;
    let within = chosen.saturating_mul(experts.count / count);
    if experts.top_k > within {
        let limit = format!(
            "such that its groups of {} experts hold `num_experts_per_tok` ({})",
            experts.count / count,
            experts.top_k
        );
        return Err(reader.value_error("topk_group", chosen, &limit, "correct one of the two"));
    }
    Ok((chosen < count).then_some(ExpertGroups { count, chosen }))
}
