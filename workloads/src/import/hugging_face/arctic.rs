//! Snowflake Arctic. In layers with experts, a dense MLP follows attention, and the experts read the layer's input in
//! parallel with both. Transformers has no class for it. Keys and defaults are those of the published
//! `configuration_arctic.py`; layers are those of vLLM (`ArcticDecoderLayer`).

use super::ModelFamily;
use super::experts::{alternate_experts, read_routed_experts};
use super::llama::{self, LlamaDefaults, SYNONYMS, read_with_defaults};
use super::llama_like::with_variations;
use super::reader::ConfigReader;
use crate::error::WorkloadError;
use crate::limits::{MAX_EXPERTS, MAX_LAYERS};
use crate::model::{Experts, Model};
use serde_json::Value;

/// Keys by which a file states that layers have dense MLPs beside experts. The published class reads one key, vLLM the
/// other.
const DENSE_BESIDE: [&str; 2] = ["parallel_attn_mlp_res", "use_residual"];

pub(super) const FAMILY: ModelFamily = ModelFamily {
    model_types: &["arctic"],
    keys: &[
        llama::KEYS,
        &DENSE_BESIDE,
        &[
            "enable_expert_tensor_parallelism",
            "moe_eval_capacity_factor",
            "moe_layer_frequency",
            "moe_min_capacity",
            "moe_token_dropping",
            "moe_train_capacity_factor",
            "num_experts_per_tok",
            "num_local_experts",
        ],
    ],
    defaults: &[
        ("intermediate_size", 14_336),
        ("max_position_embeddings", 4096),
        ("moe_layer_frequency", 2),
        ("num_attention_heads", 32),
    ],
    synonyms: SYNONYMS,
    read: read_arctic,
};

fn read_arctic(reader: &ConfigReader<'_>) -> Result<Model, WorkloadError> {
    let model = read_with_defaults(reader, LlamaDefaults::LLAMA)?;
    let experts =
        Experts { capacity_factor: read_capacity(reader)?, ..read_routed_experts(reader, "num_local_experts")? };
    let given = DENSE_BESIDE.map(|key| reader.get(key).and_then(Value::as_bool));
    if let [Some(one), Some(other)] = given
        && one != other
    {
        let limit = format!("the value of `{}` ({one})", DENSE_BESIDE[0]);
        return Err(reader.value_error(DENSE_BESIDE[1], other, &limit, "correct one of the two"));
    }
    let dense = reader.read_flag(DENSE_BESIDE[0], false)? || reader.read_flag(DENSE_BESIDE[1], false)?;
    let every = reader.read_dimension("moe_layer_frequency", MAX_LAYERS)?;
    let (wide, hidden) = (model.ffn, model.hidden);
    let model = with_variations(model, |v| v.dense_beside_experts = dense.then_some(hidden));
    let model = Model { experts: Some(experts), ..model };
    Ok(alternate_experts(model, wide, |layer| (layer + 1).is_multiple_of(every)))
}

/// Reads the capacity factor of training; `None` if no tokens are dropped.
fn read_capacity(reader: &ConfigReader<'_>) -> Result<Option<f64>, WorkloadError> {
    if reader.read_count("moe_min_capacity", MAX_EXPERTS, 0)? > 0 {
        let given = reader.get("moe_min_capacity").cloned().unwrap_or_default();
        return Err(reader.value_error("moe_min_capacity", given, "0", "a least room of experts is not covered"));
    }
    if !reader.read_flag("moe_token_dropping", true)? {
        return Ok(None);
    }
    let count = reader.read_dimension("num_local_experts", MAX_EXPERTS)?;
    let top_k = reader.read_dimension("num_experts_per_tok", count)?;
    let most = count as f64 / top_k as f64;
    reader.note_assumption("experts have the room of training in every pass, serving's too".to_owned());
    Ok(Some(reader.read_optional_factor("moe_train_capacity_factor", most)?.unwrap_or(1.0)))
}
