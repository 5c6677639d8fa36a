//! Mixtral: Llama whose MLPs are mixtures of experts, without a capacity limit.

use super::reader::{MAX_EXPERTS, Reader};
use super::{Family, llama};
use crate::error::WorkloadError;
use crate::model::{Experts, Model};

pub(super) const FAMILY: Family = Family {
    model_types: &["mixtral"],
    keys: &[
        "attention_bias",
        "attention_dropout",
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
    synonyms: &[("num_experts", "num_local_experts"), ("moe_top_k", "num_experts_per_tok")],
    read,
};

fn read(reader: &Reader<'_>) -> Result<Model, WorkloadError> {
    let count = reader.dimension("num_local_experts", MAX_EXPERTS)?;
    let top_k = reader.dimension("num_experts_per_tok", count)?;
    let experts = Some(Experts { count, top_k, capacity_factor: None });
    Ok(Model { experts, ..llama::read(reader)? })
}
