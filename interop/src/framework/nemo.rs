//! NeMo's configuration of Megatron models (`megatron_gpt_config.yaml` of NVIDIA/NeMo 1 and the files of its launcher),
//! as Megatron-LM's arguments. Most keys of `model` are the arguments' names with underscores.

use super::keys::FrameworkFileError;
use std::collections::BTreeMap;

/// Keys by their paths, with the arguments of other names that they stand for.
const RENAMED: [(&str, &str); 20] = [
    ("trainer.devices", "nproc-per-node"),
    ("trainer.num_nodes", "nnodes"),
    ("model.encoder_seq_length", "seq-length"),
    ("model.virtual_pipeline_model_parallel_size", "num-virtual-stages-per-pipeline-rank"),
    ("model.activations_checkpoint_granularity", "recompute-granularity"),
    ("model.activations_checkpoint_method", "recompute-method"),
    ("model.activations_checkpoint_num_layers", "recompute-num-layers"),
    ("model.layernorm_epsilon", "norm-epsilon"),
    ("model.rotary_percentage", "rotary-percent"),
    ("model.num_moe_experts", "num-experts"),
    ("model.moe_router_topk", "moe-router-topk"),
    ("model.moe_aux_loss_coeff", "moe-aux-loss-coeff"),
    ("model.ub_tp_comm_overlap", "tp-comm-overlap"),
    ("model.use_flash_attention", "use-flash-attn"),
    ("model.optim.overlap_grad_sync", "overlap-grad-reduce"),
    ("model.optim.overlap_param_sync", "overlap-param-gather"),
    ("model.qk_layernorm", "qk-layernorm"),
    ("model.window_size", "window-size"),
    ("model.moe_grouped_gemm", "moe-grouped-gemm"),
    ("model.reset_attention_mask", "reset-attention-mask"),
];

/// Keys of `model` that are arguments of the same name.
const SAME: [&str; 20] = [
    "context_parallel_size",
    "expert_model_parallel_size",
    "ffn_hidden_size",
    "global_batch_size",
    "attention_dropout",
    "hidden_dropout",
    "hidden_size",
    "kv_channels",
    "make_vocab_size_divisible_by",
    "max_position_embeddings",
    "micro_batch_size",
    "num_attention_heads",
    "num_layers",
    "pipeline_model_parallel_size",
    "position_embedding_type",
    "rampup_batch_size",
    "rotary_base",
    "seq_length",
    "sequence_parallel",
    "tensor_model_parallel_size",
];

/// Keys that affect neither time nor memory, or that every run of this kind has: logs, checkpoints, data, the
/// tokenizer, initial values, learning rates.
const NOTHING: [&str; 79] = [
    "cluster*",
    "defaults*",
    "exp_manager*",
    "hydra*",
    "inference*",
    "name",
    "restore_from_path",
    "run*",
    "target",
    "trainer.accelerator",
    "trainer.benchmark",
    "trainer.check_val_every_n_epoch",
    "trainer.enable_*",
    "trainer.gradient_clip_val",
    "trainer.limit_*",
    "trainer.log_every_n_steps",
    "trainer.logger",
    "trainer.max_*",
    "trainer.replace_sampler_ddp",
    "trainer.use_distributed_sampler",
    "trainer.val_check_interval",
    "model.apply_query_key_layer_scaling",
    "model.apply_rope_fusion",
    "model.async_grad_allreduce",
    "model.batch_p2p_comm",
    "model.bias_activation_fusion",
    "model.bias_dropout_add_fusion",
    "model.bias_dropout_fusion",
    "model.bias_gelu_fusion",
    "model.cross_entropy_loss_fusion",
    "model.data*",
    "model.deterministic_mode",
    "model.do_layer_norm_weight_decay",
    "model.dist_ckpt*",
    "model.fp16_lm_cross_entropy",
    "model.fp8_amax*",
    "model.fp8_e4m3",
    "model.fp8_hybrid",
    "model.fp8_interval",
    "model.fp8_margin",
    "model.gc_interval",
    "model.grad_allreduce_chunk_size_mb",
    "model.grad_div_ar_fusion",
    "model.gradient_accumulation_fusion",
    "model.gradient_as_bucket_view",
    "model.hysteresis",
    "model.init_method_std",
    "model.layer_norm_fusion",
    "model.masked_softmax_fusion",
    "model.mcore_gpt",
    "model.megatron_amp_O2",
    "model.moe_router_load_balancing_type",
    "model.name",
    "model.native_amp*",
    "model.normalize_attention_scores",
    "model.nsys_profile*",
    "model.onnx_safe",
    "model.optim.average_in_collective",
    "model.optim.betas",
    "model.optim.bucket_cap_mb",
    "model.optim.contiguous_*",
    "model.optim.eps",
    "model.optim.lr",
    "model.optim.min_lr",
    "model.optim.sched*",
    "model.optim.weight_decay",
    "model.overlap_p2p_comm",
    "model.persist_layer_norm",
    "model.post_process",
    "model.pre_process",
    "model.reset_position_ids",
    "model.resume_from_checkpoint",
    "model.seed",
    "model.sync_batch_comm",
    "model.tokenizer*",
    "model.transformer_engine",
    "model.use_cpu_initialization",
    "model.use_emha",
    "model.use_scaled_init_method",
];

/// Values of a key that all mean the same argument, or no argument.
struct KnownValue {
    key: &'static str,
    /// The values, in lower case.
    values: &'static [&'static str],
    argument: Option<(&'static str, &'static str)>,
}

const fn known_value(
    key: &'static str,
    values: &'static [&'static str],
    argument: Option<(&'static str, &'static str)>,
) -> KnownValue {
    KnownValue { key, values, argument }
}

const KNOWN_VALUES: [KnownValue; 10] = [
    known_value("model.normalization", &["rmsnorm"], Some(("normalization", "RMSNorm"))),
    known_value("model.normalization", &["layernorm", "layernorm1p"], None),
    known_value("model.activation", &["fast-swiglu", "swiglu"], Some(("swiglu", "true"))),
    known_value("model.activation", &["gelu"], None),
    known_value("model.precision", &["bf16", "bf16-mixed"], Some(("bf16", "true"))),
    known_value("trainer.precision", &["bf16", "bf16-mixed"], Some(("bf16", "true"))),
    known_value("model.precision", &["16", "16-mixed", "fp16"], Some(("fp16", "true"))),
    known_value("trainer.precision", &["16", "16-mixed", "fp16"], Some(("fp16", "true"))),
    known_value("model.fp8", &["false"], None),
    known_value("model.activations_checkpoint_num_layers", &["0"], None),
];

/// Keys with their accepted values. Other values would mean another model.
const ONLY: [(&str, &[&str]); 12] = [
    ("model.transformer_block_type", &["pre_ln"]),
    ("model.headscale", &["false"]),
    ("model.openai_gelu", &["false"]),
    ("model.ffn_dropout", &["0", "0.0"]),
    ("model.num_micro_batches_with_partial_activation_checkpoints", &["0"]),
    ("model.activations_checkpoint_layers_per_pipeline", &["0"]),
    ("model.eod_mask_loss", &["false", "true"]),
    ("trainer.strategy", &["auto", "ddp"]),
    ("trainer.accumulate_grad_batches", &["1"]),
    ("model.attention_type", &["multihead"]),
    ("model.fp32_residual_connection", &["false"]),
    ("model.fp8_params", &["false"]),
];

/// The optimizers of Adam's kind by the names that NeMo registers. The flag is true if states are sharded over
/// data-parallel ranks (NeMo 1, `core/optim/optimizers.py` and `megatron_base_model.py`).
const OPTIMIZERS: [(&str, bool); 5] = [
    ("adam", false),
    ("adamw", false),
    ("fused_adam", false),
    ("distributed_fused_adam", true),
    ("mcore_distributed_optim", true),
];

/// True if the optimizer of this name shards its states; `None` if it is not of Adam's kind.
fn optimizer(name: &str) -> Option<bool> {
    OPTIMIZERS.iter().find(|(known, _)| *known == name).map(|(_, sharded)| *sharded)
}

/// True if the leaves of a YAML file are NeMo's.
pub(super) fn recognises(values: &BTreeMap<String, Vec<String>>) -> bool {
    let has = |start: &str| values.keys().any(|key| key.starts_with(start));
    has("trainer.")
        && ["model.tensor_model_parallel_size", "model.num_layers", "model.micro_batch_size"]
            .iter()
            .any(|key| values.contains_key(*key))
}

/// Returns the arguments that the leaves of a NeMo file stand for, by Megatron-LM's names. A key that is not understood
/// keeps its own name.
///
/// # Errors
/// A value that is not modelled, or that refers to another key in a way that is not understood.
pub(super) fn arguments_of(
    file: &str,
    values: &BTreeMap<String, Vec<String>>,
) -> Result<BTreeMap<String, Vec<String>>, FrameworkFileError> {
    let mut arguments = NemoArguments { file, found: BTreeMap::new(), sharded: false };
    for (key, list) in values {
        let text = list.join(" ");
        let value = resolve(values, key, &text, 0).ok_or_else(|| {
            arguments.fault(key, &text, "names another key in a way that is not understood; write its value")
        })?;
        arguments.read_leaf(key, &value)?;
    }
    let NemoArguments { mut found, sharded, .. } = arguments;
    for argument in ["overlap-grad-reduce", "overlap-param-gather"].into_iter().filter(|_| sharded) {
        found.entry(argument.to_owned()).or_insert_with(|| vec!["true".to_owned()]);
    }
    Ok(found)
}

/// The arguments that a file's leaves have given so far.
struct NemoArguments<'a> {
    file: &'a str,
    found: BTreeMap<String, Vec<String>>,
    /// True for a sharded optimizer. Data-parallel ranks then overlap their communication unless the file turns that
    /// off.
    sharded: bool,
}

impl NemoArguments<'_> {
    fn fault(&self, key: &str, value: &str, why: &str) -> FrameworkFileError {
        FrameworkFileError { file: self.file.to_owned(), key: format!("{key} = {value}"), why: why.to_owned() }
    }

    fn set(&mut self, name: &str, value: &str) {
        self.found.insert(name.to_owned(), vec![value.to_owned()]);
    }

    fn read_leaf(&mut self, key: &str, value: &str) -> Result<(), FrameworkFileError> {
        let is = |name: &str| name.strip_suffix('*').map_or(key == name, |start| key.starts_with(start));
        let own = key.strip_prefix("model.").unwrap_or_default();
        let lower = value.to_lowercase();
        let known = KNOWN_VALUES.iter().find(|known| known.key == key && known.values.contains(&lower.as_str()));
        if let Some(KnownValue { argument, .. }) = known {
            argument.iter().for_each(|(name, value)| self.set(name, value));
            return Ok(());
        }
        match (key, lower.as_str()) {
            (_, "null" | "none") => {}
            ("model.bias", value) => self.set("disable-bias-linear", opposite_of_false(value)),
            ("model.share_embeddings_and_output_weights", shared) => {
                self.set("untie-embeddings-and-output-weights", opposite_of_false(shared));
            }
            ("model.num_query_groups", _) => {
                self.set("group-query-attention", "true");
                self.set("num-query-groups", value);
            }
            ("model.fp8", _) => self.set("fp8-format", "hybrid"),
            ("model.optim.name", name) if optimizer(name).is_some() => {
                self.set("optimizer", "adam");
                self.sharded = optimizer(name).unwrap_or_default();
                self.set("use-distributed-optimizer", if self.sharded { "true" } else { "false" });
            }
            (
                "model.normalization"
                | "model.activation"
                | "model.precision"
                | "trainer.precision"
                | "model.optim.name",
                _,
            ) => {
                return Err(self.fault(key, value, "is not modelled; name the model before --from, or correct it"));
            }
            (_, value) if ONLY.iter().any(|(known, _)| *known == key) => {
                if !ONLY.iter().any(|(known, values)| *known == key && values.contains(&value)) {
                    let why = "is not modelled; leave it out, or name the model before --from";
                    return Err(self.fault(key, value, why));
                }
            }
            _ if SAME.contains(&own) => self.set(&own.replace('_', "-"), value),
            _ => match RENAMED.iter().find(|(known, _)| *known == key) {
                Some((_, argument)) => self.set(argument, value),
                None if NOTHING.iter().any(|name| is(name)) => {}
                None => self.set(key, value),
            },
        }
        Ok(())
    }
}

fn opposite_of_false(value: &str) -> &'static str {
    if value == "false" { "true" } else { "false" }
}

/// Longest chain of references between keys.
const MOST_DEPTH: usize = 8;

/// Returns a value with its references replaced: `${.hidden_size}` is a neighbour, `${model.hidden_size}` any key, and
/// `${multiply:4, ${.hidden_size}}` a product. `None` for any other reference, unless the key has no effect.
fn resolve(values: &BTreeMap<String, Vec<String>>, key: &str, text: &str, depth: usize) -> Option<String> {
    let Some(inside) = text.strip_prefix("${").and_then(|text| text.strip_suffix('}')) else {
        // A text that only contains references, such as a path or a log's name, stays as it is.
        return Some(text.to_owned());
    };
    if depth >= MOST_DEPTH {
        return None;
    }
    if let Some(factors) = inside.strip_prefix("multiply:") {
        let factors = factors.split(',').map(|part| resolve(values, key, part.trim(), depth + 1)?.parse::<u64>().ok());
        return factors
            .collect::<Option<Vec<u64>>>()
            .map(|all| all.into_iter().fold(1, u64::saturating_mul).to_string());
    }
    let (folder, _) = key.rsplit_once('.').unwrap_or_default();
    let path = match inside.strip_prefix('.') {
        Some(neighbour) => format!("{folder}.{neighbour}"),
        None => inside.to_owned(),
    };
    match values.get(&path) {
        Some(list) => resolve(values, &path, &list.join(" "), depth + 1),
        // A key without effect may refer to a missing key.
        None if NOTHING.iter().any(|name| name.strip_suffix('*').map_or(key == *name, |s| key.starts_with(s))) => {
            Some(text.to_owned())
        }
        None => None,
    }
}
