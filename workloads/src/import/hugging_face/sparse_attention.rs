//! Families whose attention sees only the tokens that an indexer chooses: DeepSeek-V3.2 and GLM 5 (latent attention),
//! and MiniMax M3 (blocks of tokens, in some layers). Defaults are those of transformers 5.24.

use super::ModelFamily;
use super::deepseek::{self, add_experts, add_latent_attention};
use super::experts::{alternate_experts, read_routed_experts};
use super::llama::{self, LlamaDefaults, SYNONYMS, read_with_defaults};
use super::llama_like::with_variations;
use super::reader::ConfigReader;
use super::windows::read_types_of_layers;
use crate::error::WorkloadError;
use crate::layer_list::{KeyChoice, LayerKind};
use crate::limits::{MAX_FFN, MAX_HEADS, MAX_LAYERS, MAX_POSITIONS, MAX_WIDTH};
use crate::model::{Experts, Model, SharedExpert};
use crate::variations::{Indexer, QueryKeyNorm};
use serde_json::Value;

/// Number of elements of an indexer's query or key that share an fp32 scale. DeepSeek-V3.2-Exp's inference code keeps
/// keys in fp8 (`inference/model.py`: `k_cache`, `k_scale_cache`, `block_size`) and scores them in fp8 (`fp8_index`).
/// vLLM, SGLang and TensorRT-LLM do the same for GLM 5, with DeepGEMM's `fp8_mqa_logits` and `fp8_paged_mqa_logits`.
const INDEX_BLOCK: u64 = 128;

const INDEX_KEYS: &[&str] = &["index_head_dim", "index_n_heads", "layer_types"];

pub(super) const DEEPSEEK_V32: ModelFamily = ModelFamily {
    model_types: &["deepseek_v32"],
    keys: &[llama::KEYS, deepseek::EXPERT_KEYS, deepseek::LATENT_KEYS, INDEX_KEYS, &["index_topk"]],
    defaults: &[("first_k_dense_replace", 3), ("index_head_dim", 128), ("index_n_heads", 64), ("index_topk", 2048)],
    synonyms: SYNONYMS,
    read: read_deepseek,
};

/// GLM 5: some layers may reuse the choice of an earlier layer.
pub(super) const GLM_MOE_DSA: ModelFamily = ModelFamily {
    model_types: &["glm_moe_dsa"],
    keys: &[
        llama::KEYS,
        deepseek::EXPERT_KEYS,
        deepseek::LATENT_KEYS,
        INDEX_KEYS,
        &["index_skip_topk_offset", "index_topk", "index_topk_freq", "index_topk_pattern", "indexer_types"],
    ],
    defaults: &[("first_k_dense_replace", 3), ("index_head_dim", 128), ("index_n_heads", 32), ("index_topk", 2048)],
    synonyms: SYNONYMS,
    read: |reader| {
        let model = read_deepseek(reader)?;
        let own = read_own_indexers(reader, model.layer_count())?;
        let keys = |layer: u64| if own[layer as usize] { KeyChoice::Indexed } else { KeyChoice::Reused };
        Ok(model.with_changed_layers(|layer, kind| LayerKind { keys: keys(layer), ..kind }))
    },
};

fn read_deepseek(reader: &ConfigReader<'_>) -> Result<Model, WorkloadError> {
    let model = read_with_defaults(reader, LlamaDefaults::LLAMA)?;
    let model = add_latent_attention(reader, add_experts(reader, model)?)?;
    read_types_of_layers(reader, model.layer_count(), &["indexed_attention", "deepseek_sparse_attention"])?;
    let indexer = Indexer {
        heads: reader.read_dimension("index_n_heads", MAX_HEADS)?,
        head_dim: reader.read_dimension("index_head_dim", MAX_WIDTH)?,
        chosen: reader.read_dimension("index_topk", MAX_POSITIONS)?,
        block: 1,
        tokens_per_key: 1,
        query_rank: Some(reader.read_dimension("q_lora_rank", MAX_WIDTH)?),
        weighed: true,
        scaled: Some(INDEX_BLOCK),
    };
    note_learning(reader);
    let model = with_variations(model, |v| v.indexer = Some(indexer));
    Ok(model.with_changed_layers(|_, kind| LayerKind { keys: KeyChoice::Indexed, ..kind }))
}

fn note_learning(reader: &ConfigReader<'_>) {
    reader.note_assumption(
        "the indexer learns from attention's own probabilities on the chosen tokens, as in DeepSeek-V3.2; the model's \
         loss has no gradient through it"
            .to_owned(),
    );
}

/// Reads which layers have their own indexer: from a list, from a pattern of F and S, or from an interval.
fn read_own_indexers(reader: &ConfigReader<'_>, layers: u64) -> Result<Vec<bool>, WorkloadError> {
    let key = reader.first_given_key(&["indexer_types", "index_topk_pattern"]);
    let is_own = |kind: &str| match kind {
        "full" | "F" => Some(true),
        "shared" | "S" => Some(false),
        _ => None,
    };
    let list = match reader.get(key) {
        None => {
            let every = reader.read_count("index_topk_freq", MAX_LAYERS, 1)?.max(1);
            let offset = reader.read_count("index_skip_topk_offset", MAX_LAYERS, 2)?;
            let own = |layer: u64| (layer + 1).saturating_sub(offset).is_multiple_of(every);
            return Ok((0..layers).map(own).collect());
        }
        Some(Value::Array(list)) => list.iter().map(|kind| is_own(kind.as_str()?)).collect::<Option<Vec<bool>>>(),
        Some(value) => {
            let letters = value.as_str().unwrap_or_default().chars();
            letters.map(|letter| is_own(letter.encode_utf8(&mut [0; 4]))).collect()
        }
    };
    // The first layer has no earlier choice to reuse.
    match list.filter(|list| list.len() as u64 == layers && list.first() == Some(&true)) {
        Some(list) => Ok(list),
        None => {
            let limit = format!("{layers} entries, each \"full\" or \"shared\", the first one \"full\"");
            Err(reader.value_error(key, reader.get(key).cloned().unwrap_or_default(), &limit, "correct the list"))
        }
    }
}

/// MiniMax M3's text model: grouped-query attention, which in the layers that a list names sees only chosen blocks.
pub(super) const MINIMAX_M3: ModelFamily = ModelFamily {
    model_types: &["minimax_m3", "minimax_m3_vl", "minimax_m3_vl_text"],
    keys: &[
        llama::KEYS,
        INDEX_KEYS,
        &[
            "capacity_factor",
            "dense_intermediate_size",
            "index_block_size",
            "index_local_blocks",
            "index_topk_blocks",
            "mlp_layer_types",
            "moe_layer_freq",
            "num_experts_per_tok",
            "num_local_experts",
            "rotary_dim",
            "shared_intermediate_size",
            "sparse_attention_config",
        ],
    ],
    defaults: &[
        ("dense_intermediate_size", 12_288),
        ("head_dim", 128),
        ("index_block_size", 128),
        ("index_head_dim", 128),
        ("index_n_heads", 4),
        ("index_topk_blocks", 16),
        ("num_key_value_heads", 4),
        ("shared_intermediate_size", 3072),
    ],
    synonyms: SYNONYMS,
    read: |reader| {
        let model = read_with_defaults(reader, LlamaDefaults::LLAMA)?;
        let layers = model.layers;
        let shared = reader.read_dimension("shared_intermediate_size", MAX_FFN)?;
        let shared = Some(SharedExpert { ffn: shared, weighed: false });
        let experts = Some(Experts { shared, ..read_routed_experts(reader, "num_local_experts")? });
        let wide = reader.read_dimension("dense_intermediate_size", MAX_FFN)?;
        let sparse = deepseek::read_sparse_layers(reader, layers)?;
        let model = alternate_experts(Model { experts, ..model }, wide, |layer| {
            sparse.as_ref().is_none_or(|sparse| sparse[layer as usize])
        });
        let nested = reader.get("sparse_attention_config");
        let size = |inner: &str, key: &'static str, limit| match nested.and_then(|nested| nested.get(inner)) {
            Some(value) => reader.nested_dimension("sparse_attention_config", inner, value, limit),
            None => reader.read_dimension(key, limit),
        };
        let block = size("sparse_block_size", "index_block_size", MAX_POSITIONS)?;
        let blocks = size("sparse_topk_blocks", "index_topk_blocks", MAX_POSITIONS)?;
        let indexer = Indexer {
            heads: size("sparse_num_index_heads", "index_n_heads", MAX_HEADS)?,
            head_dim: size("sparse_index_dim", "index_head_dim", MAX_WIDTH)?,
            chosen: block.saturating_mul(blocks),
            block,
            tokens_per_key: 1,
            query_rank: None,
            weighed: false,
            scaled: None,
        };
        let types = read_types_of_layers(reader, layers, &["full_attention", "minimax_m3_sparse"])?;
        let listed = nested.and_then(|nested| nested.get("sparse_attention_freq"));
        let indexed: Vec<bool> = match (types, listed) {
            (Some(types), _) => types.iter().map(|kind| *kind == "minimax_m3_sparse").collect(),
            (None, Some(value)) => {
                reader.read_marks("sparse_attention_config", "sparse_attention_freq", value, layers)?
            }
            (None, None) => vec![false; layers as usize],
        };
        let any = indexed.contains(&true);
        if any {
            note_learning(reader);
        }
        let rotated = reader.read_optional_dimension("rotary_dim", model.head_dim)?.or(model.variations.rotated);
        let model = with_variations(model, |v| {
            (v.rotated, v.query_key_norm) = (rotated, Some(QueryKeyNorm::Head));
            v.indexer = any.then_some(indexer);
        });
        let keys = |layer: u64| if indexed[layer as usize] { KeyChoice::Indexed } else { KeyChoice::All };
        Ok(model.with_changed_layers(|layer, kind| LayerKind { keys: keys(layer), ..kind }))
    },
};
