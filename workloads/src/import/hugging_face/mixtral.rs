//! Mixtral: Llama whose MLPs are mixtures of experts, without a capacity limit unless `capacity_factor` sets one (a key of ours: Hugging Face's
//! configurations have none).

use super::reader::Reader;
use super::{Family, llama};
use crate::error::WorkloadError;
use crate::limits::MAX_EXPERTS;
use crate::model::{Experts, Model};

pub(super) const FAMILY: Family = Family {
    model_types: &["mixtral"],
    keys: &[
        "attention_bias",
        "attention_dropout",
        "capacity_factor",
        "head_dim",
        "hidden_act",
        "hidden_size",
        "intermediate_size",
        "max_position_embeddings",
        "mlp_bias",
        "num_attention_heads",
        "num_experts_per_tok",
        "num_hidden_layers",
        "num_key_value_heads",
        "num_local_experts",
        "vocab_size",
    ],
    // The router's auxiliary loss and jitter cost next to nothing; attention is costed over whole sequences, as Mixtral's is.
    irrelevant: &[
        "output_router_logits",
        "rms_norm_eps",
        "rope_parameters",
        "rope_theta",
        "router_aux_loss_coef",
        "router_jitter_noise",
        "sliding_window",
    ],
    synonyms: &[
        ("num_experts", "num_local_experts"),
        ("moe_top_k", "num_experts_per_tok"),
        ("expert_capacity_factor", "capacity_factor"),
    ],
    read,
};

fn read(reader: &Reader<'_>) -> Result<Model, WorkloadError> {
    let count = reader.dimension("num_local_experts", MAX_EXPERTS)?;
    let top_k = reader.dimension("num_experts_per_tok", count)?;
    // Room for every token at every expert: more is never filled.
    let most = count as f64 / top_k as f64;
    let capacity_factor = reader.optional_factor("capacity_factor", most)?;
    let experts = Some(Experts { count, top_k, capacity_factor });
    Ok(Model { experts, ..llama::read(reader)? })
}
