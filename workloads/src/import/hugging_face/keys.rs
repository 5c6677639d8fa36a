//! Effects of `config.json` keys on a training step, for any family. This table covers only keys that the family does
//! not read itself.

use serde_json::Value;

/// Keys that every family reads.
pub(super) const COMMON: &[&str] = &[
    "model_type",
    "tie_word_embeddings",
    "is_encoder_decoder",
    "add_cross_attention",
    "make_vocab_size_divisible_by",
    ASSUME_IGNORED,
];

/// The main sizes of a model. Only families whose published files omit them have defaults, and the use of a default is
/// noted.
pub(super) const MAIN_SIZES: &[&str] = &["hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"];

/// coplace's own key: the names of keys that the user wants ignored.
pub(super) const ASSUME_IGNORED: &str = "assume_ignored";

/// Different names of one number, in files of different families and of different releases of transformers.
pub(super) const SAME_NUMBER: &[&[&str]] = &[
    &["num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_moe_experts"],
    &[
        "num_experts_per_tok",
        "num_experts_per_token",
        "experts_per_token",
        "moe_top_k",
        "moe_topk",
        "moe_k",
        "top_k_experts",
    ],
    &["n_shared_experts", "num_shared_experts", "moe_num_shared_experts", "num_shared_expert"],
    &["first_k_dense_replace", "moe_layer_start_index"],
    &["moe_layer_freq", "moe_layer_interval"],
    &["n_group", "num_expert_group"],
    &["num_key_value_heads", "num_attention_groups"],
];

/// Keys that replace another key if a file lacks it: (the key that is read, its replacement).
pub(super) const STAND_INS: &[(&str, &str)] = &[("max_position_embeddings", "model_max_length")];

/// The effect of a key that the file's family does not read.
#[derive(Debug, Clone, Copy)]
pub(super) enum KeyEffect {
    /// No effect, neither on a training step's work nor on its memory.
    None,
    /// A feature that is not modelled, with the assumption made instead.
    Assumed(&'static str),
    /// As `Assumed`, for a value with one mark per layer.
    AssumedByLayer(&'static str),
    /// As `Assumed`, for a value that is a number of layers.
    AssumedNumber(&'static str),
    /// A missing feature: without it, work would be miscounted by more than 2 %.
    Missing(&'static str),
    /// An unknown effect.
    Unknown,
}

/// Returns the effect of a key with this value.
pub(super) fn effect_of_key(key: &str, value: &Value) -> KeyEffect {
    if is_disabled(value) || IRRELEVANT.contains(&key) || belongs_to_others(key) {
        return KeyEffect::None;
    }
    EFFECTS.iter().find(|(known, _)| *known == key).map_or(KeyEffect::Unknown, |(_, effect)| *effect)
}

/// Returns whether an unknown key may change the work: a size, a count, a factor, a list, an object, or a kind by name.
pub(super) fn may_change_work(key: &str, value: &Value) -> bool {
    let ends = |ends: &[&str]| ends.iter().any(|end| key.ends_with(end));
    match value {
        Value::Array(_) | Value::Object(_) => true,
        Value::Number(number) => {
            number.as_u64().is_some_and(|n| n > 1)
                || ends(&["_ratio", "_multiplier", "_factor", "_fraction", "_expand"])
        }
        Value::String(_) => ends(&["_type", "_types", "_pattern", "_mode", "_kind"]),
        Value::Null | Value::Bool(_) => false,
    }
}

/// Returns whether an option with this value is off.
fn is_disabled(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
        Value::Bool(true) => false,
    }
}

/// Returns whether a key only concerns token ids, rotation angles, pooling for other tasks, or Hugging Face itself.
fn belongs_to_others(key: &str) -> bool {
    ["_token_id", "_token_ids", "_token_index", "_coef", "_coeff", "_std"].iter().any(|end| key.ends_with(end))
        || ["_", "rope_", "time_step_", "summary_", "pooler_", "initializer", "init_", "use_init"]
            .iter()
            .any(|start| key.starts_with(start))
}

const LEFT_OUT: KeyEffect = KeyEffect::Assumed("only the text model is trained, this part is left out");
const SCALED: KeyEffect = KeyEffect::Assumed("a factor on a tensor counts as part of the kernel before it");
const CAPPED: KeyEffect = KeyEffect::Assumed("the cap on scores or logits counts as part of their kernel");
const FURTHER: KeyEffect = KeyEffect::Assumed(
    "the modules that predict further tokens are left out, as in transformers; --mtp-layers trains them",
);
const DROPPED: KeyEffect = KeyEffect::Missing("dropping whole layers, which makes the work of a step random");
const LINEAR: KeyEffect = KeyEffect::Missing("layers of linear attention");

/// Keys of options that must be true or false. They are checked if the family does not read them.
pub(super) const FLAGS: &[&str] =
    &["reorder_and_upcast_attn", "scale_attn_by_inverse_layer_idx", "scale_attn_weights", "scale_embedding"];

/// Keys that change the work, for families that do not read them.
const EFFECTS: &[(&str, KeyEffect)] = &[
    ("attn_logit_softcapping", CAPPED),
    ("final_logit_softcapping", CAPPED),
    ("logits_soft_cap", CAPPED),
    ("max_attn_value", CAPPED),
    ("attention_multiplier", SCALED),
    ("attn_output_multiplier", SCALED),
    ("embedding_multiplier_scale", SCALED),
    ("output_multiplier_scale", SCALED),
    ("embedding_multiplier", SCALED),
    ("logit_scale", SCALED),
    ("logits_scaling", SCALED),
    ("residual_multiplier", SCALED),
    ("scale_embedding", SCALED),
    ("attention_in_multiplier", SCALED),
    ("attention_out_multiplier", SCALED),
    ("attention_value_scale", SCALED),
    ("key_multiplier", SCALED),
    ("lm_head_multiplier", SCALED),
    ("mlp_multipliers", SCALED),
    ("ssm_in_multiplier", SCALED),
    ("ssm_multipliers", SCALED),
    ("ssm_out_multiplier", SCALED),
    ("swiglu_limits", SCALED),
    ("swiglu_limits_shared", SCALED),
    ("mup_width_multiplier", SCALED),
    ("full_attn_alpha_factor", SCALED),
    ("full_attn_beta_factor", SCALED),
    ("layernorm_full_attention_alpha", SCALED),
    ("layernorm_full_attention_beta", SCALED),
    ("layernorm_linear_attention_alpha", SCALED),
    ("layernorm_linear_attention_beta", SCALED),
    ("layernorm_mlp_alpha", SCALED),
    ("layernorm_mlp_beta", SCALED),
    ("linear_attn_alpha_factor", SCALED),
    ("linear_attn_beta_factor", SCALED),
    ("mlp_alpha_factor", SCALED),
    ("mlp_beta_factor", SCALED),
    ("clip_qkv", KeyEffect::Assumed("clamping queries, keys and values counts as part of their kernel")),
    ("swiglu_limit", KeyEffect::Assumed("the limit of the gated activation counts as part of its kernel")),
    ("lora_rank", KeyEffect::Missing("adapters")),
    ("audio_config", LEFT_OUT),
    ("vision_config", LEFT_OUT),
    ("num_nextn_predict_layers", FURTHER),
    ("num_mtp_modules", FURTHER),
    ("mtp_num_hidden_layers", FURTHER),
    ("mtp_layers_block_type", FURTHER),
    ("mtp_hybrid_override_pattern", FURTHER),
    ("residual_in_fp32", KeyEffect::Assumed("the residual stream has the activations' own type")),
    ("moe_jitter_eps", KeyEffect::Assumed("noise on the router's input is left out")),
    ("router_jitter_noise", KeyEffect::Assumed("noise on the router's input is left out")),
    ("use_rope_layers", KeyEffect::Assumed("layers without rotation are costed with it")),
    ("no_rope_layers", KeyEffect::AssumedByLayer("layers without rotation are costed with it")),
    ("no_rope_layer_interval", KeyEffect::AssumedNumber("layers without rotation are costed with it")),
    ("attention_chunk_size", KeyEffect::Missing("layers of attention in chunks")),
    ("cross_attention_layers", KeyEffect::Missing("layers of cross attention")),
    ("attn_layer_period", KeyEffect::Missing("layers without attention")),
    ("block_configs", KeyEffect::Missing("layers that differ by a list of blocks")),
    ("index_topk", KeyEffect::Missing("an indexer that chooses the tokens of attention")),
    ("hybrid_override_pattern", KeyEffect::Missing("layers without attention")),
    ("full_attention_interval", LINEAR),
    ("linear_num_value_heads", LINEAR),
    ("num_kv_shared_layers", KeyEffect::Missing("layers that share keys and values")),
    ("num_hidden_groups", KeyEffect::Missing("layers that share their weights")),
    ("decoder_layerdrop", DROPPED),
    ("encoder_layerdrop", DROPPED),
    ("layerdrop", DROPPED),
    ("ssm_state_size", KeyEffect::Missing("state-space scans")),
];

/// Keys that Hugging Face writes and that change neither a training step's work nor its memory: names and versions,
/// text generation, heads of other tasks, initial values, epsilons, rotation angles, the checkpoint's number format,
/// and the router's choice rule.
pub(super) const IRRELEVANT: &[&str] = &[
    "architectures",
    "att_impl_type",
    "attn_implementation",
    "attn_temperature_tuning",
    "aux_loss_alpha",
    "bias_dropout_fusion",
    "embedding_fraction",
    "floor_scale",
    "full_attn_mod",
    "inference_runner",
    "initial_context_length",
    "interpolate_factor",
    "max_batch_size",
    "model_max_length",
    "pad_key_length",
    "partial_rotary_factors",
    "pre_allocate_kv_cache",
    "validate_runner_input",
    "auto_map",
    "bad_words_ids",
    "begin_suppress_tokens",
    "cache_implementation",
    "chunk_size_feed_forward",
    "apply_spec_augment",
    "classifier_dropout",
    "classifier_proj_size",
    "mask_feature_length",
    "mask_feature_min_masks",
    "mask_feature_prob",
    "mask_time_length",
    "mask_time_min_masks",
    "mask_time_prob",
    "median_filter_width",
    "use_weighted_layer_sum",
    "compression_config",
    "cross_attention_hidden_size",
    "directionality",
    "diversity_penalty",
    "do_sample",
    "dtype",
    "early_stopping",
    "ep_size",
    "exponential_decay_length_penalty",
    "encoder_no_repeat_ngram_size",
    "finetuning_task",
    "gradient_checkpointing",
    "id2label",
    "init_device",
    "is_llama_config",
    "label2id",
    "language",
    "layer_norm_eps",
    "layer_norm_epsilon",
    "layernorm_epsilon",
    "length_penalty",
    "masked_softmax_fusion",
    "max_length",
    "max_seq_len",
    "max_sequence_length",
    "min_length",
    "model_name",
    "mixer_rms_eps",
    "moe_loss_weight",
    "moe_norm_min",
    "moe_normalize_expert_weights",
    "moe_routed_scaling_factor",
    "moe_renormalize",
    "moe_router_activation_func",
    "moe_router_scaling_factor",
    "n_group",
    "name",
    "no_repeat_ngram_size",
    "norm_eps",
    "norm_epsilon",
    "norm_topk_prob",
    "num_beam_groups",
    "num_beams",
    "num_labels",
    "num_logits_to_keep",
    "norm_before_gate",
    "num_return_sequences",
    "offset_alibi",
    "original_max_position_embeddings",
    "output_attentions",
    "output_hidden_states",
    "output_past",
    "output_projection",
    "output_router_logits",
    "output_scores",
    "postnorm",
    "predict_special_tokens",
    "prefix",
    "pretraining_tp",
    "problem_type",
    "pruned_heads",
    "quantization_config",
    "query_pre_attn_scalar",
    "remove_invalid_values",
    "reorder_and_upcast_attn",
    "repetition_penalty",
    "rescale_prenorm_residual",
    "return_dict",
    "return_dict_in_generate",
    "rms_norm_eps",
    "rotary_emb_base",
    "rotary_base",
    "routed_scaling_factor",
    "scale_attention_softmax_in_fp32",
    "scale_attn_by_inverse_layer_idx",
    "scale_attn_weights",
    "scoring_func",
    "seq_aux",
    "shared_moe_mode",
    "skip_bias_add",
    "skip_bias_add_qkv",
    "slow_but_exact",
    "attention_softmax_in_fp32",
    "suppress_tokens",
    "swa_rope_theta",
    "swiglu_alpha",
    "task_specific_params",
    "temperature",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "tokenizer_class",
    "tokenizer_name",
    "top_k",
    "top_p",
    "topk_group",
    "topk_method",
    "torch_dtype",
    "torchscript",
    "transformers_version",
    "transformers.js_config",
    "typical_p",
    "unk_token_id",
    "unsloth_fixed",
    "unsloth_version",
    "use_bfloat16",
    "use_cache",
    "use_associative_scan",
    "use_flash_attn",
    "use_grouped_topk",
    "use_mamba_kernels",
    "use_mambapy",
    "verbose",
    "yarn_only_types",
];
