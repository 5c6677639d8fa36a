//! Fields of Megatron Bridge's configuration, with the arguments of Megatron-LM that they stand for: one row per field,
//! for the writer and the reader of recipes. Sources:
//! `src/megatron/bridge/training/{config,comm_overlap,mixed_precision}.py` and `models/{gpt,mla}_provider.py` of
//! NVIDIA-NeMo/Megatron-Bridge at commit 003e863ad19f (2026), and Megatron Core's `transformer_config.py`,
//! `model_parallel_config.py`, `optimizer_config.py` and `distributed_data_parallel_config.py`.

use std::fmt;

/// A literal value in Python source.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PythonLiteral {
    /// A string.
    Text(String),
    /// A number, as it is written.
    Number(String),
    /// `True`, `False`, `None`, or a dotted name such as `torch.bfloat16`.
    Name(String),
    /// A list.
    List(Vec<PythonLiteral>),
    /// A tuple.
    Tuple(Vec<PythonLiteral>),
}

impl PythonLiteral {
    /// Returns the part of a name after its last dot; `None` for other values.
    fn last_name(&self) -> Option<&str> {
        match self {
            Self::Name(name) => name.rsplit('.').next(),
            _ => None,
        }
    }

    /// Returns the parts of a list or of a tuple; `None` for other values.
    fn parts(&self) -> Option<&[Self]> {
        match self {
            Self::List(parts) | Self::Tuple(parts) => Some(parts),
            _ => None,
        }
    }

    /// Returns a string's or a number's text; `None` for other values.
    fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) | Self::Number(text) => Some(text),
            _ => None,
        }
    }
}

impl fmt::Display for PythonLiteral {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |parts: &[Self]| parts.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        match self {
            Self::Text(text) => write!(f, "\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"")),
            Self::Number(text) | Self::Name(text) => f.write_str(text),
            Self::List(parts) => write!(f, "[{}]", list(parts)),
            Self::Tuple(parts) => write!(f, "({})", list(parts)),
        }
    }
}

/// The form of a field's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldKind {
    /// The argument's number.
    Number,
    /// The argument's word, quoted.
    Text,
    /// The argument's words as a list.
    Words,
    /// `True` if the argument is given.
    Switch,
    /// `False` if the argument is given.
    Inverse,
    /// Two numbers (`127,0`) as a tuple.
    Pair,
    /// A list of 0 or 1 for every layer (`([0]*3+[1]*58)` as the argument), or a number.
    Pattern,
    /// A number format (`bf16`) by PyTorch's name.
    Dtype,
    /// A member of `AttnBackend`.
    Backend,
    /// The first value stands for the argument. The second value stands for its absence.
    Given(&'static str, &'static str),
}

/// The meaning of a field's value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FieldReading {
    /// The argument is given, with these words.
    Argument(Vec<String>),
    /// The argument is not given.
    Absent,
    /// The field cannot have this value.
    Unknown,
}

/// A field of `ConfigContainer`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BridgeField {
    /// Megatron-LM's argument, without dashes.
    pub argument: &'static str,
    /// The field's path: `model.tensor_model_parallel_size`.
    pub path: &'static str,
    /// The form of its value.
    pub kind: FieldKind,
    /// Python's value if the argument is not given. If it is empty, the field is then left out.
    pub otherwise: &'static str,
    /// True for the model's own shape and numerics. A provider from Hugging Face sets these itself.
    pub of_model: bool,
}

/// Number formats: Megatron-LM's names and PyTorch's (`megatron/training/arguments.py`, `dtype_map`).
const DTYPES: [(&str, &str); 4] =
    [("fp32", "torch.float32"), ("bf16", "torch.bfloat16"), ("fp16", "torch.float16"), ("fp8", "torch.uint8")];

/// Largest number of layers in one part of a pattern.
const MOST_LAYERS: usize = 1 << 16;

impl BridgeField {
    /// Returns the field's value in Python. `words` are the argument's words, or `None` if it is not given. Returns
    /// `None` if the field is left out.
    #[must_use]
    pub fn literal(&self, words: Option<&str>) -> Option<PythonLiteral> {
        let name = |text: &str| PythonLiteral::Name(text.to_owned());
        let number = |text: &str| PythonLiteral::Number(text.to_owned());
        let Some(words) = words else {
            return (!self.otherwise.is_empty()).then(|| name(self.otherwise));
        };
        Some(match self.kind {
            FieldKind::Number => number(words),
            FieldKind::Text => PythonLiteral::Text(words.to_owned()),
            FieldKind::Words => {
                PythonLiteral::List(words.split(' ').map(|word| PythonLiteral::Text(word.to_owned())).collect())
            }
            FieldKind::Switch => name("True"),
            FieldKind::Inverse => name("False"),
            FieldKind::Pair => PythonLiteral::Tuple(words.split(',').map(number).collect()),
            FieldKind::Pattern => match layers_of_pattern(words) {
                Some(layers) => PythonLiteral::List(layers.iter().map(|kind| number(kind)).collect()),
                None => number(words),
            },
            FieldKind::Dtype => {
                name(DTYPES.iter().find(|(own, _)| *own == words).map_or("torch.float32", |(_, torch)| torch))
            }
            FieldKind::Backend => PythonLiteral::Name(format!("AttnBackend.{words}")),
            FieldKind::Given(value, _) => name(value),
        })
    }

    /// Returns the meaning of a value of the field. Python's `None` means that the argument is not given.
    #[must_use]
    pub fn read(&self, literal: &PythonLiteral) -> FieldReading {
        let given = |found: Option<String>| found.map_or(FieldReading::Unknown, |w| FieldReading::Argument(vec![w]));
        let switch = |on: &str, off: &str| match literal.last_name() {
            Some(name) if name == on => FieldReading::Argument(vec!["true".to_owned()]),
            Some(name) if name == off => FieldReading::Absent,
            _ => FieldReading::Unknown,
        };
        if *literal == PythonLiteral::Name("None".to_owned()) {
            return FieldReading::Absent;
        }
        match self.kind {
            FieldKind::Number => match literal {
                PythonLiteral::Number(text) => given(Some(text.clone())),
                _ => FieldReading::Unknown,
            },
            FieldKind::Text => match literal {
                PythonLiteral::Text(text) => given(Some(text.clone())),
                _ => FieldReading::Unknown,
            },
            FieldKind::Words => {
                let words = literal.parts().and_then(|parts| {
                    parts.iter().map(|part| part.text().map(str::to_owned)).collect::<Option<Vec<String>>>()
                });
                match words {
                    Some(words) if words.is_empty() => FieldReading::Absent,
                    Some(words) => FieldReading::Argument(words),
                    None => FieldReading::Unknown,
                }
            }
            FieldKind::Switch => switch("True", "False"),
            FieldKind::Inverse => switch("False", "True"),
            FieldKind::Pair => given(literal.parts().and_then(|parts| match parts {
                [left, right] => Some(format!("{},{}", left.text()?, right.text()?)),
                _ => None,
            })),
            FieldKind::Pattern => match literal {
                PythonLiteral::Number(text) => given(Some(text.clone())),
                _ => given(literal.parts().and_then(pattern_of_layers)),
            },
            FieldKind::Dtype => given(literal.last_name().and_then(|name| {
                let known = DTYPES.iter().find(|(_, torch)| torch.strip_prefix("torch.") == Some(name));
                known.map(|(own, _)| (*own).to_owned())
            })),
            FieldKind::Backend => given(literal.last_name().map(str::to_owned)),
            FieldKind::Given(on, off) => match literal {
                PythonLiteral::Text(_) => read_quoted(literal, on),
                _ => switch(on.rsplit('.').next().unwrap_or(on), off.rsplit('.').next().unwrap_or(off)),
            },
        }
    }
}

/// Returns the meaning of a quoted value, which a field has only if its argument is given.
fn read_quoted(literal: &PythonLiteral, on: &str) -> FieldReading {
    if literal.to_string() == on { FieldReading::Argument(vec!["true".to_owned()]) } else { FieldReading::Unknown }
}

/// Returns the kind of every layer in a pattern such as `([0]*3+[1]*58)`; `None` if the text has another form.
fn layers_of_pattern(words: &str) -> Option<Vec<&str>> {
    let inside = words.strip_prefix('(')?.strip_suffix(')')?;
    let mut layers = Vec::new();
    for part in inside.split('+') {
        let (kind, times) = part.split_once('*')?;
        let kind = kind.strip_prefix('[')?.strip_suffix(']')?;
        let times = times.parse().ok().filter(|times| *times <= MOST_LAYERS)?;
        layers.extend(std::iter::repeat_n(kind, times));
    }
    Some(layers)
}

/// Returns the pattern of a list of layers, in runs of equal layers: the inverse of [`layers_of_pattern`].
fn pattern_of_layers(layers: &[PythonLiteral]) -> Option<String> {
    let kinds: Vec<&str> = layers.iter().map(PythonLiteral::text).collect::<Option<_>>()?;
    let runs = kinds.chunk_by(|one, next| one == next).map(|run| Some(format!("[{}]*{}", run.first()?, run.len())));
    Some(format!("({})", runs.collect::<Option<Vec<_>>>()?.join("+")))
}

const fn shape(argument: &'static str, path: &'static str, kind: FieldKind) -> BridgeField {
    BridgeField { argument, path, kind, otherwise: "", of_model: true }
}

const fn field(argument: &'static str, path: &'static str, kind: FieldKind, otherwise: &'static str) -> BridgeField {
    BridgeField { argument, path, kind, otherwise, of_model: false }
}

use FieldKind::{Backend, Dtype, Given, Inverse, Number, Pair, Pattern, Switch, Text, Words};

/// The fields, in the order in which they are written. Several may have one argument. Fields of the model are written
/// even where the argument is not given, if a provider from Hugging Face may have set them.
pub const BRIDGE_FIELDS: &[BridgeField] = &[
    shape("num-layers", "model.num_layers", Number),
    shape("hidden-size", "model.hidden_size", Number),
    shape("ffn-hidden-size", "model.ffn_hidden_size", Number),
    shape("num-attention-heads", "model.num_attention_heads", Number),
    shape("kv-channels", "model.kv_channels", Number),
    shape("num-query-groups", "model.num_query_groups", Number),
    shape("swiglu", "model.gated_linear_unit", Given("True", "False")),
    shape("quick-geglu", "model.gated_linear_unit", Given("True", "False")),
    shape("swiglu", "model.activation_func", Given("F.silu", "F.gelu")),
    shape("quick-geglu", "model.activation_func", Given("quick_gelu", "F.gelu")),
    shape("glu-linear-offset", "model.glu_linear_offset", Number),
    shape("activation-func-clamp-value", "model.activation_func_clamp_value", Number),
    shape("window-size", "model.window_size", Pair),
    shape("window-attn-skip-freq", "model.window_attn_skip_freq", Number),
    shape("softmax-type", "model.softmax_type", Text),
    shape("normalization", "model.normalization", Text),
    shape("norm-epsilon", "model.layernorm_epsilon", Number),
    shape("position-embedding-type", "model.position_embedding_type", Text),
    shape("rotary-percent", "model.rotary_percent", Number),
    shape("rotary-base", "model.rotary_base", Number),
    shape("use-rope-scaling", "model.rope_scaling", Switch),
    shape("rope-scaling-factor", "model.rope_scaling_factor", Number),
    shape("untie-embeddings-and-output-weights", "model.share_embeddings_and_output_weights", Inverse),
    shape("disable-bias-linear", "model.add_bias_linear", Inverse),
    shape("add-qkv-bias", "model.add_qkv_bias", Switch),
    shape("qk-layernorm", "model.qk_layernorm", Switch),
    shape("multi-latent-attention", "model.multi_latent_attention", Switch),
    shape("q-lora-rank", "model.q_lora_rank", Number),
    shape("kv-lora-rank", "model.kv_lora_rank", Number),
    shape("qk-head-dim", "model.qk_head_dim", Number),
    shape("qk-pos-emb-head-dim", "model.qk_pos_emb_head_dim", Number),
    shape("v-head-dim", "model.v_head_dim", Number),
    shape("attention-dropout", "model.attention_dropout", Number),
    shape("hidden-dropout", "model.hidden_dropout", Number),
    shape("num-experts", "model.num_moe_experts", Number),
    shape("moe-layer-freq", "model.moe_layer_freq", Pattern),
    shape("moe-ffn-hidden-size", "model.moe_ffn_hidden_size", Number),
    shape("moe-shared-expert-intermediate-size", "model.moe_shared_expert_intermediate_size", Number),
    shape("moe-router-topk", "model.moe_router_topk", Number),
    shape("moe-router-score-function", "model.moe_router_score_function", Text),
    shape("moe-router-pre-softmax", "model.moe_router_pre_softmax", Switch),
    shape("moe-router-enable-expert-bias", "model.moe_router_enable_expert_bias", Switch),
    shape("moe-router-topk-scaling-factor", "model.moe_router_topk_scaling_factor", Number),
    shape("moe-router-load-balancing-type", "model.moe_router_load_balancing_type", Text),
    shape("moe-aux-loss-coeff", "model.moe_aux_loss_coeff", Number),
    shape("moe-router-num-groups", "model.moe_router_num_groups", Number),
    shape("moe-router-group-topk", "model.moe_router_group_topk", Number),
    field("seq-length", "model.seq_length", Number, ""),
    field("make-vocab-size-divisible-by", "model.make_vocab_size_divisible_by", Number, ""),
    field("mtp-num-layers", "model.mtp_num_layers", Number, "None"),
    field("tensor-model-parallel-size", "model.tensor_model_parallel_size", Number, "1"),
    field("pipeline-model-parallel-size", "model.pipeline_model_parallel_size", Number, "1"),
    field("pipeline-model-parallel-layout", "model.pipeline_model_parallel_layout", Text, "None"),
    field("decoder-first-pipeline-num-layers", "model.num_layers_in_first_pipeline_stage", Number, "None"),
    field("decoder-last-pipeline-num-layers", "model.num_layers_in_last_pipeline_stage", Number, "None"),
    field("account-for-embedding-in-pipeline-split", "model.account_for_embedding_in_pipeline_split", Switch, "False"),
    field("account-for-loss-in-pipeline-split", "model.account_for_loss_in_pipeline_split", Switch, "False"),
    field("context-parallel-size", "model.context_parallel_size", Number, "1"),
    field("cp-comm-type", "model.cp_comm_type", Text, ""),
    field("expert-model-parallel-size", "model.expert_model_parallel_size", Number, "1"),
    field("expert-tensor-parallel-size", "model.expert_tensor_parallel_size", Number, "None"),
    field("sequence-parallel", "model.sequence_parallel", Switch, "False"),
    field("moe-token-dispatcher-type", "model.moe_token_dispatcher_type", Text, ""),
    field("moe-enable-deepep", "model.moe_flex_dispatcher_backend", Given("\"deepep\"", "None"), ""),
    field("moe-grouped-gemm", "model.moe_grouped_gemm", Switch, "False"),
    field("moe-expert-capacity-factor", "model.moe_expert_capacity_factor", Number, "None"),
    field("moe-pad-expert-input-to-capacity", "model.moe_pad_expert_input_to_capacity", Switch, "False"),
    field("moe-shared-expert-overlap", "model.moe_shared_expert_overlap", Switch, "False"),
    field("attention-backend", "model.attention_backend", Backend, ""),
    field("recompute-granularity", "model.recompute_granularity", Text, "None"),
    field("recompute-method", "model.recompute_method", Text, "None"),
    field("recompute-num-layers", "model.recompute_num_layers", Number, "None"),
    field("recompute-modules", "model.recompute_modules", Words, "None"),
    field("fine-grained-activation-offloading", "model.fine_grained_activation_offloading", Switch, "False"),
    field("offload-modules", "model.offload_modules", Words, "None"),
    field("no-gradient-accumulation-fusion", "model.gradient_accumulation_fusion", Given("False", "True"), ""),
    field("micro-batch-size", "train.micro_batch_size", Number, ""),
    field("global-batch-size", "train.global_batch_size", Number, ""),
    field("optimizer", "optimizer.optimizer", Text, ""),
    field("sgd-momentum", "optimizer.sgd_momentum", Number, ""),
    field("use-distributed-optimizer", "optimizer.use_distributed_optimizer", Switch, "False"),
    field("use-precision-aware-optimizer", "optimizer.use_precision_aware_optimizer", Switch, ""),
    field("main-grads-dtype", "optimizer.main_grads_dtype", Dtype, ""),
    field("main-params-dtype", "optimizer.main_params_dtype", Dtype, ""),
    field("exp-avg-dtype", "optimizer.exp_avg_dtype", Dtype, ""),
    field("exp-avg-sq-dtype", "optimizer.exp_avg_sq_dtype", Dtype, ""),
    field("optimizer-cpu-offload", "optimizer.optimizer_cpu_offload", Switch, ""),
    field("optimizer-offload-fraction", "optimizer.optimizer_offload_fraction", Number, ""),
    field("overlap-cpu-optimizer-d2h-h2d", "optimizer.overlap_cpu_optimizer_d2h_h2d", Switch, ""),
    field("use-distributed-optimizer", "ddp.use_distributed_optimizer", Switch, "False"),
    field("overlap-grad-reduce", "ddp.overlap_grad_reduce", Switch, "False"),
    field("overlap-param-gather", "ddp.overlap_param_gather", Switch, "False"),
    field("use-megatron-fsdp", "ddp.use_megatron_fsdp", Switch, ""),
    field("data-parallel-sharding-strategy", "ddp.data_parallel_sharding_strategy", Text, ""),
    field("outer-dp-sharding-strategy", "ddp.outer_dp_sharding_strategy", Text, ""),
    field("num-distributed-optimizer-instances", "ddp.num_distributed_optimizer_instances", Number, ""),
    field("use-megatron-fsdp", "dist.use_megatron_fsdp", Switch, ""),
    field("use-torch-fsdp2", "dist.use_torch_fsdp2", Switch, ""),
    field("use-tp-pp-dp-mapping", "dist.use_tp_pp_dp_mapping", Switch, ""),
    // `comm_overlap` is applied to the fields above, so an overlap that it does not name is off.
    field("tp-comm-overlap", "comm_overlap.tp_comm_overlap", Switch, "False"),
    field("overlap-grad-reduce", "comm_overlap.overlap_grad_reduce", Switch, "False"),
    field("overlap-param-gather", "comm_overlap.overlap_param_gather", Switch, "False"),
    field("no-overlap-p2p-communication", "comm_overlap.overlap_p2p_comm", Given("False", "True"), ""),
    field("no-overlap-p2p-communication", "comm_overlap.batch_p2p_comm", Given("True", "False"), ""),
    field("overlap-moe-expert-parallel-comm", "comm_overlap.overlap_moe_expert_parallel_comm", Switch, ""),
    field("bf16", "mixed_precision.bf16", Switch, ""),
    field("fp16", "mixed_precision.fp16", Switch, ""),
    field("bf16", "mixed_precision.params_dtype", Given("torch.bfloat16", "torch.float32"), ""),
    field("fp16", "mixed_precision.params_dtype", Given("torch.float16", "torch.float32"), ""),
    field("bf16", "mixed_precision.pipeline_dtype", Given("torch.bfloat16", "torch.float32"), ""),
    field("fp16", "mixed_precision.pipeline_dtype", Given("torch.float16", "torch.float32"), ""),
    field("fp8-format", "mixed_precision.fp8", Text, ""),
    // Bridge's default is "tensorwise". Megatron-LM's default is "delayed".
    field("fp8-recipe", "mixed_precision.fp8_recipe", Text, "\"delayed\""),
    field("fp4-format", "mixed_precision.fp4", Text, ""),
    field("fp4-recipe", "mixed_precision.fp4_recipe", Text, ""),
    field("seq-length", "dataset.seq_length", Number, ""),
    field("vocab-size", "tokenizer.vocab_size", Number, ""),
    field("ckpt-format", "checkpoint.ckpt_format", Text, ""),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_row_writes_it_reads() {
        let samples = |kind| match kind {
            Number => "8",
            Words => "core_attn moe_act",
            Pair => "127,0",
            Pattern => "([0]*3+[1]*58)",
            Dtype => "bf16",
            Text | Backend => "flash",
            Switch | Inverse | Given(..) => "true",
        };
        for row in BRIDGE_FIELDS {
            let words = samples(row.kind);
            let written = row.literal(Some(words)).map(|literal| row.read(&literal));
            let expected = words.split(' ').map(str::to_owned).collect();
            assert_eq!(written, Some(FieldReading::Argument(expected)), "{}", row.path);
            if let Some(otherwise) = row.literal(None).filter(|_| row.kind != Number && row.kind != Text) {
                assert_eq!(row.read(&otherwise), FieldReading::Absent, "{}", row.path);
            }
        }
    }

    #[test]
    fn values_are_written_as_python_has_them() {
        let of = |path: &str, words: Option<&str>| {
            let row = BRIDGE_FIELDS.iter().find(|row| row.path == path);
            row.and_then(|row| row.literal(words)).map(|literal| literal.to_string()).unwrap_or_default()
        };
        assert_eq!(of("model.window_size", Some("127,0")), "(127, 0)");
        assert_eq!(of("model.moe_layer_freq", Some("([0]*1+[1]*3)")), "[0, 1, 1, 1]");
        assert_eq!(of("model.recompute_modules", Some("core_attn mlp")), "[\"core_attn\", \"mlp\"]");
        assert_eq!(of("model.add_bias_linear", Some("true")), "False");
        assert_eq!(of("model.recompute_granularity", None), "None");
        assert_eq!(of("optimizer.exp_avg_dtype", Some("bf16")), "torch.bfloat16");
        assert_eq!(of("mixed_precision.fp8_recipe", None), "\"delayed\"");
    }
}
