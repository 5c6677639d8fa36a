//! DeepSeek V2 and V3, Kimi K2: latent attention, narrow routed experts beside shared ones, dense MLPs in the first
//! layers. DeepSeek-MoE and GLM 4.5 have the same layers with ordinary attention.

use super::ModelFamily;
use super::experts::{alternate_experts, read_routed_experts};
use super::llama::{self, LlamaDefaults, read_with_defaults};
use super::llama_like::with_variations;
use super::reader::ConfigReader;
use crate::error::WorkloadError;
use crate::limits::{MAX_EXPERTS, MAX_FFN, MAX_LAYERS, MAX_WIDTH};
use crate::model::{ExpertGroups, Experts, Model, SharedExpert};
use crate::variations::{LatentAttention, QueryKeyNorm};

const EXPERT_KEYS: &[&str] = &[
    "capacity_factor",
    "first_k_dense_replace",
    "moe_intermediate_size",
    "moe_layer_freq",
    "n_group",
    "n_routed_experts",
    "n_shared_experts",
    "num_experts_per_tok",
    "topk_group",
    "topk_method",
];

const SYNONYMS: &[(&str, &str)] = &[
    ("num_experts", "n_routed_experts"),
    ("num_local_experts", "n_routed_experts"),
    ("moe_top_k", "num_experts_per_tok"),
    ("num_shared_experts", "n_shared_experts"),
];

pub(super) const FAMILY: ModelFamily = ModelFamily {
    model_types: &["deepseek_v2", "deepseek_v3", "kimi_k2"],
    keys: &[
        llama::KEYS,
        EXPERT_KEYS,
        &["kv_lora_rank", "q_lora_rank", "qk_head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"],
    ],
    defaults: &[],
    synonyms: SYNONYMS,
    read: |reader| {
        let model = add_experts(reader, read_with_defaults(reader, LlamaDefaults::LLAMA)?)?;
        let rope_dim = reader.read_dimension("qk_rope_head_dim", MAX_WIDTH)?;
        let latent = LatentAttention {
            query_rank: reader.read_optional_dimension("q_lora_rank", MAX_WIDTH)?,
            kv_rank: reader.read_dimension("kv_lora_rank", MAX_WIDTH)?,
            rope_dim,
            value_dim: reader.read_dimension("v_head_dim", MAX_WIDTH)?,
        };
        let head_dim = rope_dim + reader.read_dimension("qk_nope_head_dim", MAX_WIDTH)?;
        // Latent attention has as many key heads as query heads, whatever the file states. Its biases are on the
        // down-projections.
        if model.qkv_bias {
            reader.note_assumption("`attention_bias` = true: biases of the narrow vectors are left out".to_owned());
        }
        let model = Model { head_dim, kv_heads: model.heads, qkv_bias: false, attention_output_bias: false, ..model };
        Ok(with_variations(model, |v| v.latent = Some(latent)))
    },
};

/// The same layers with ordinary attention: DeepSeek-MoE, and GLM 4.5, which rotates half of every head.
pub(super) const PLAIN_ATTENTION: ModelFamily = ModelFamily {
    model_types: &["deepseek", "glm4_moe"],
    keys: &[llama::KEYS, EXPERT_KEYS, &["use_qk_norm"]],
    defaults: &[],
    synonyms: SYNONYMS,
    read: |reader| {
        let glm = reader.model_type == "glm4_moe";
        let rotated = if glm { 0.5 } else { 1.0 };
        let model =
            add_experts(reader, read_with_defaults(reader, LlamaDefaults { rotated, ..LlamaDefaults::LLAMA })?)?;
        let norms = reader.read_flag("use_qk_norm", false)?.then_some(QueryKeyNorm::Head);
        let attention_output_bias = model.attention_output_bias && !glm;
        Ok(with_variations(Model { attention_output_bias, ..model }, |v| v.query_key_norm = norms))
    },
};

/// Adds the experts; a file without any is dense.
fn add_experts(reader: &ConfigReader<'_>, model: Model) -> Result<Model, WorkloadError> {
    if reader.get("n_routed_experts").is_none() {
        return Ok(model);
    }
    let frequency = reader.read_optional_dimension("moe_layer_freq", MAX_LAYERS)?.unwrap_or(1);
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
    let sparse = |layer: u64| layer >= dense && layer.is_multiple_of(frequency);
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
    let model = alternate_experts(Model { ffn: width, experts, ..model }, layers, wide, sparse);
    let leading = model.list.leading.len();
    if leading > 0 {
        reader.note_assumption(format!(
            "`first_k_dense_replace` = {dense}: the leading layers without experts stay with the embedding on the \
             pipeline's first stage"
        ));
    }
    Ok(model)
}

/// Reads the limit on a token's expert groups, if it is below their number. A `greedy` router has no groups
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
    reader.check_divides(("n_group", count), ("n_routed_experts", experts.count))?;
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
