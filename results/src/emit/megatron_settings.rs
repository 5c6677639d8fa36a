//! Megatron-LM's settings of a plan: names of arguments, the combinations that `validate_args` asserts, and the options
//! that it switches on itself. Both the command line and Megatron Bridge's fields are written from them. Source:
//! `megatron/training/arguments.py` of NVIDIA/Megatron-LM at commit 000c4ac24f61 (2025).

use super::kept::{PolicyNames, find_megatron_modules, megatron_module};
use super::{DOCUMENTS, EmittedLines, Inexpressible, PlanRecipe, RouterNumerics, mixer_features};
use crate::answer::plan::schedule_name;
use sim::kernel::{DataType, ElementwiseFunction};
use sim::pipeline::PipelineSchedule;
use step::{Framework, TrainingPlan, state_copies};
use workloads::footprint::Optimizer;
use workloads::layer_list::{EncoderDecoderSide, KeyWindow, LayerKind};
use workloads::model::{Norm, NormPlacement, PositionEncoding};
use workloads::training::{Attention, ContextMethod};
use workloads::variations::QueryKeyNorm;
use workloads::{ActivationPolicy, Layout, Model, RankOrder, Technique, ZeroStage};

/// Returns features for which Megatron-LM's layers have no setting, each with whether the model has it.
fn refused_features(model: &Model) -> [(bool, &'static str); 20] {
    [
        (model.norm_placement == NormPlacement::Post, "layers that normalise after their sums"),
        (model.embedding_width != model.hidden, "embeddings narrower than its layers"),
        (!model.norm_affine, "norms without parameters"),
        (model.gated && model.activation != ElementwiseFunction::Silu, "a gated MLP of another activation than SiLU"),
        (!model.gated && model.activation != ElementwiseFunction::Gelu, "an MLP of another activation than GELU"),
        (model.norm_placement != NormPlacement::Pre, "norms elsewhere than before attention and MLP"),
        (model.position == PositionEncoding::Alibi, "positions by ALiBi"),
        (model.position == PositionEncoding::None, "attention without positions"),
        (model.embedding_norm, "a norm of the embedding"),
        (model.experts.is_some_and(|experts| experts.latent.is_some()), "experts on narrower vectors"),
        (model.head_bias && !model.head_transform, "a bias on the logits"),
        (
            !model.list.trailing.is_empty()
                || model.leading_dense().is_none() && !model.list.leading.is_empty()
                || !model.list.block.is_empty()
                    && (WindowedLayers::of_model(model).is_none() || !model.list.leading.is_empty()),
            "layers that differ in more than leading ones without experts, or windows in all but every n-th",
        ),
        (matches!(model.variations.window, Some(KeyWindow::Chunk { .. })), "attention in chunks"),
        (model.variations.side != EncoderDecoderSide::Only, "an encoder and a decoder"),
        (
            model.variations.patches.is_some() || model.variations.task_head.is_some(),
            "images, or a head of another task than predicting tokens",
        ),
        (model.variations.norm_without_bias, "LayerNorm without a bias"),
        (model.variations.parallel.is_some(), "attention and MLP beside each other"),
        (
            matches!(model.variations.query_key_norm, Some(QueryKeyNorm::Whole | QueryKeyNorm::OwnHead)),
            "norms of queries and keys over all heads",
        ),
        (
            model.experts.is_some_and(|experts| experts.router_bias != model.mlp_bias),
            "a bias on the router's logits or in the experts, without the other",
        ),
        (
            model.experts.and_then(|experts| experts.shared).is_some_and(|shared| shared.weighed),
            "a weighed shared expert",
        ),
    ]
}

/// One line of settings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum MegatronEntry {
    /// A remark about the plan, or about the next settings.
    Comment(String),
    /// An argument without its dashes, and its value; `None` for a switch.
    Setting(&'static str, Option<String>),
}

/// The arguments of a plan in order, and the parts that no argument expresses.
#[derive(Debug, Default)]
pub(super) struct MegatronSettings {
    /// The arguments and comments.
    pub(super) entries: Vec<MegatronEntry>,
    /// Parts of the plan that no argument expresses. Each of them is also a comment.
    pub(super) lacking: Vec<String>,
}

/// The comment for a model without latent attention whose rotation YaRN stretches. Megatron-LM reads
/// `--rotary-scaling-factor` only for latent attention, and `--position-embedding-type` has no `yarn`.
pub(super) const YARN: &str = "positions by YaRN: pretrain_gpt.py has no arguments for it; its model provider has to \
                               set yarn_rotary_scaling_factor and its like; it changes no time";

/// Attention windows of layers: the keys of a window, and the period of the layers without a window, if there are any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct WindowedLayers {
    keys: u64,
    period: Option<u64>,
}

impl WindowedLayers {
    /// Returns the windows of a model's layers. `None` if there are none, or if their order is not periodic.
    fn of_model(model: &Model) -> Option<Self> {
        let sliding = |window: Option<KeyWindow>| match window {
            Some(KeyWindow::Sliding(keys)) => Some(keys),
            _ => None,
        };
        let Some((last, windowed)) = model.list.block.split_last() else {
            return sliding(model.variations.window).map(|keys| Self { keys, period: None });
        };
        let keys = sliding(windowed.first()?.window)?;
        let alike = |kind: &LayerKind| *kind == LayerKind { window: Some(KeyWindow::Sliding(keys)), ..*last };
        (last.window.is_none() && windowed.iter().all(alike))
            .then_some(Self { keys, period: Some(model.list.block.len() as u64) })
    }
}

/// Megatron-LM's option for sharding states, gradients or weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ShardingFlag {
    Replicated,
    DistributedOptimizer,
    /// PyTorch's FSDP2.
    TorchFsdp,
    /// Megatron-LM's own FSDP: for sharded gradients, and where PyTorch's is refused.
    MegatronFsdp,
}

impl ShardingFlag {
    fn of_layout(model: &Model, plan: &TrainingPlan) -> Self {
        let layout = &plan.layout;
        let torch =
            layout.pipeline == 1 && layout.expert == 1 && plan.precision.operand != DataType::Fp16 && !model.tied_head;
        match layout.zero {
            ZeroStage::None => Self::Replicated,
            ZeroStage::OptimizerStates => Self::DistributedOptimizer,
            ZeroStage::Parameters if torch => Self::TorchFsdp,
            ZeroStage::Gradients | ZeroStage::Parameters => Self::MegatronFsdp,
        }
    }
}

/// True if Megatron-LM's precision-aware optimizer supports the plan.
fn is_precision_aware(plan: &TrainingPlan) -> bool {
    plan.layout.zero == ZeroStage::OptimizerStates && plan.optimizer == Optimizer::Adam
}

/// Returns the fraction of the optimizer's states that a technique offloads, and whether copies overlap with updates.
/// `None` for other techniques.
fn offloaded_states(technique: &Technique) -> Option<(f64, bool)> {
    match technique.preset().name.as_str() {
        "zero-offload" => Some((1.0, false)),
        "optimizer-offload" => Some((
            technique.given_parameter("fraction").unwrap_or(1.0),
            technique.given_parameter("overlap").is_some_and(|value| value != 0.0),
        )),
        _ => None,
    }
}

impl MegatronSettings {
    /// Returns the settings of a plan, in which techniques for layers must already be policies (`plan_by_policies`).
    ///
    /// # Errors
    /// A model that the layers of Megatron-LM's core cannot express.
    pub(super) fn of_recipe(recipe: &PlanRecipe<'_>, framework: &'static str) -> Result<Self, Inexpressible> {
        let PlanRecipe { model, plan, .. } = *recipe;
        recipe.refuse_features(framework, &mixer_features(model))?;
        recipe.refuse_features(framework, &refused_features(model))?;
        let EmittedLines { lines, lacking } = recipe.push_comments(Framework::takes_megatron_arguments);
        let comment = |line: String| MegatronEntry::Comment(line.trim_start_matches("# ").to_owned());
        let mut out = Self { entries: lines.into_iter().map(comment).collect(), lacking };
        out.push_model(recipe);
        out.push_experts(model, recipe);
        out.push_numerics(model, plan);
        out.push_layout(model, &plan.layout);
        out.push_pipeline(recipe);
        out.push_sharing(recipe);
        out.push_overlap(recipe);
        out.push_optimizer(plan);
        out.push_states(plan);
        out.push_techniques(plan);
        out.push_activations(recipe);
        out.push_argument("micro-batch-size", plan.batch.micro_batch);
        out.push_argument("global-batch-size", plan.batch.global_batch);
        Ok(out)
    }

    /// Returns the value of an argument that is set; an empty text for a switch. `None` if it is not set.
    pub(super) fn words_of(&self, argument: &str) -> Option<&str> {
        self.entries.iter().find_map(|entry| match entry {
            MegatronEntry::Setting(known, words) if *known == argument => Some(words.as_deref().unwrap_or_default()),
            _ => None,
        })
    }

    fn push_argument(&mut self, argument: &'static str, value: impl std::fmt::Display) {
        self.entries.push(MegatronEntry::Setting(argument, Some(value.to_string())));
    }

    /// Adds a switch, or an argument with its value after a space. Does nothing if `on` is false.
    fn push_flag(&mut self, words: &'static str, on: bool) {
        let (argument, value) = words.split_once(' ').map_or((words, None), |(name, value)| (name, Some(value)));
        if on {
            self.entries.push(MegatronEntry::Setting(argument, value.map(str::to_owned)));
        }
    }

    /// Adds a comment about the arguments, or about a choice that is left to the reader. Does nothing if `on` is false.
    fn push_note(&mut self, on: bool, text: &str) {
        if on {
            self.entries.push(MegatronEntry::Comment(text.to_owned()));
        }
    }

    /// Adds a comment about a part that the arguments cannot express, and notes it as lacking. Does nothing if `on` is
    /// false.
    fn push_lack(&mut self, on: bool, text: &str) {
        self.push_note(on, text);
        if on {
            self.lacking.push(text.to_owned());
        }
    }

    fn push_model(&mut self, recipe: &PlanRecipe<'_>) {
        let model = recipe.model;
        self.push_sizes(model);
        self.push_tokens(recipe);
        self.push_activation(recipe);
        self.push_windows(model);
        self.push_flag("normalization RMSNorm", model.norm == Norm::RmsNorm);
        self.push_rotation(recipe);
        if let Some(epsilon) = recipe.numerics.norm_epsilon {
            self.push_argument("norm-epsilon", epsilon);
        }
        self.push_flag("untie-embeddings-and-output-weights", !model.tied_head);
        self.push_flag("disable-bias-linear", !model.mlp_bias);
        self.push_flag("add-qkv-bias", model.qkv_bias && !model.mlp_bias);
        self.push_flag("qk-layernorm", model.variations.query_key_norm.is_some());
        self.push_latent_attention(model);
        self.push_argument("attention-dropout", model.dropout.attention);
        self.push_argument("hidden-dropout", model.dropout.residual);
    }

    fn push_sizes(&mut self, model: &Model) {
        self.push_note(!model.causal, "not causal: an entry point with a bidirectional mask (pretrain_bert.py)");
        self.push_argument("num-layers", model.layer_count());
        if model.variations.further_tokens > 0 {
            self.push_argument("mtp-num-layers", model.variations.further_tokens);
        }
        self.push_argument("hidden-size", model.hidden);
        self.push_argument("ffn-hidden-size", model.leading_dense().map_or(model.ffn, |dense| dense.ffn));
        self.push_argument("num-attention-heads", model.heads);
        self.push_argument("kv-channels", model.head_dim);
        if model.kv_heads != model.heads {
            self.push_flag("group-query-attention", true);
            self.push_argument("num-query-groups", model.kv_heads);
        }
    }

    /// Adds the sequence length and the vocabulary.
    fn push_tokens(&mut self, recipe: &PlanRecipe<'_>) {
        let PlanRecipe { model, plan, stack, .. } = *recipe;
        self.push_argument("seq-length", plan.batch.sequence_length);
        let (sequence, halves) = (plan.batch.sequence_length, 2 * u64::from(plan.layout.context));
        let uneven = halves > 2 && !sequence.is_multiple_of(halves);
        self.push_lack(
            uneven,
            &format!("context parallelism: Megatron-LM cuts sequences in {halves}, which does not divide {sequence}"),
        );
        self.push_lack(!model.documents.is_empty(), DOCUMENTS);
        self.push_argument("max-position-embeddings", plan.batch.sequence_length.max(model.max_sequence));
        // NullTokenizer itself adds the token for the end of a document (`_NullTokenizer` adds 1).
        self.push_argument("vocab-size", model.vocabulary - 1);
        let multiple = match model.vocabulary_multiple {
            0 | 1 => u64::from(stack.kernels.vocabulary_multiple),
            own => own,
        };
        self.push_argument("make-vocab-size-divisible-by", multiple);
        self.push_note(
            true,
            &format!(
                "--vocab-size: NullTokenizer adds 1, which makes {}; another tokenizer replaces it",
                model.vocabulary
            ),
        );
    }

    fn push_activation(&mut self, recipe: &PlanRecipe<'_>) {
        let gated = recipe.model.gated;
        match recipe.numerics.gate_limit.filter(|_| gated) {
            // GPT-OSS computes x sigmoid(1.702 x) (y + 1), and limits both inputs.
            Some(limit) => {
                self.push_flag("quick-geglu", true);
                self.push_argument("glu-linear-offset", "1.0");
                self.push_argument("activation-func-clamp-value", format_args!("{limit:?}"));
            }
            None => self.push_flag("swiglu", gated),
        }
    }

    fn push_windows(&mut self, model: &Model) {
        if let Some(WindowedLayers { keys, period }) = WindowedLayers::of_model(model) {
            // The value counts the keys to the left of a query, without the query's own key. Megatron Bridge also reads
            // GPT-OSS's 128 as (127, 0) (`models/gpt_oss/gpt_oss_bridge.py`).
            self.push_argument("window-size", format_args!("{},0", keys.saturating_sub(1)));
            if let Some(period) = period {
                self.push_argument("window-attn-skip-freq", period);
            }
        }
        self.push_flag("softmax-type learnable", model.variations.sinks);
    }

    fn push_rotation(&mut self, recipe: &PlanRecipe<'_>) {
        let PlanRecipe { model, numerics, .. } = *recipe;
        if model.position != PositionEncoding::Rotary {
            return;
        }
        self.push_argument("position-embedding-type", "rope");
        if let Some(rotated) = model.variations.rotated {
            self.push_argument("rotary-percent", rotated as f64 / model.head_dim as f64);
        }
        if let Some(factor) = numerics.rotation_factor {
            self.push_flag("use-rope-scaling", true);
            self.push_argument("rope-scaling-factor", format_args!("{factor:?}"));
        }
        self.push_note(numerics.yarn && model.variations.latent.is_none(), YARN);
        match numerics.rotary_base {
            Some(base) => self.push_argument("rotary-base", base),
            None => {
                self.push_note(true, "--rotary-base: the model's own (10000 where it is left out); it changes no time")
            }
        }
    }

    fn push_latent_attention(&mut self, model: &Model) {
        let Some(latent) = model.variations.latent else { return };
        self.push_flag("multi-latent-attention", true);
        if let Some(rank) = latent.query_rank {
            self.push_argument("q-lora-rank", rank);
        }
        self.push_argument("kv-lora-rank", latent.kv_rank);
        self.push_argument("qk-head-dim", model.head_dim.saturating_sub(latent.rope_dim));
        self.push_argument("qk-pos-emb-head-dim", latent.rope_dim);
        self.push_argument("v-head-dim", latent.value_dim);
        self.push_flag("qk-layernorm", model.variations.query_key_norm.is_none());
    }

    fn push_experts(&mut self, model: &Model, recipe: &PlanRecipe<'_>) {
        let (plan, layout) = (recipe.plan, &recipe.plan.layout);
        let once = layout.expert > 1 && recipe.stack.kernels.expert_deduplicated;
        let Some(experts) = &model.experts else { return };
        self.push_argument("num-experts", experts.count);
        if let Some(dense) = model.leading_dense() {
            self.push_argument("moe-layer-freq", format_args!("([0]*{}+[1]*{})", dense.layers, model.layers));
            self.push_argument("moe-ffn-hidden-size", model.ffn);
        }
        if let Some(shared) = experts.shared {
            self.push_argument("moe-shared-expert-intermediate-size", shared.ffn);
        }
        self.push_argument("moe-router-topk", experts.top_k);
        self.push_router(recipe.numerics.router);
        if let Some(groups) = experts.groups {
            self.push_argument("moe-router-num-groups", groups.count);
            self.push_argument("moe-router-group-topk", groups.chosen);
        }
        self.push_argument("moe-token-dispatcher-type", if once { "flex" } else { "alltoall" });
        self.push_flag("moe-enable-deepep", once);
        self.push_flag("moe-grouped-gemm", plan.precision.operand == DataType::Bf16);
        if let Some(factor) = experts.capacity_factor {
            self.push_argument("moe-expert-capacity-factor", factor);
            self.push_flag("moe-pad-expert-input-to-capacity", true);
        }
        if layout.expert > 1 {
            self.push_argument("expert-model-parallel-size", layout.expert);
            self.push_lack(
                plan.precision.operand == DataType::Fp16,
                "expert parallelism: Megatron-LM refuses it in fp16",
            );
        }
        if let Some(width) = layout.expert_tensor_degree() {
            self.push_argument("expert-tensor-parallel-size", width);
        }
    }

    fn push_router(&mut self, router: RouterNumerics) {
        self.push_flag("moe-router-score-function sigmoid", router.sigmoid);
        self.push_flag("moe-router-pre-softmax", router.softmax_over_all);
        self.push_flag("moe-router-enable-expert-bias", router.balancing_bias);
        if let Some(factor) = router.scaling_factor {
            self.push_argument("moe-router-topk-scaling-factor", format_args!("{factor:?}"));
        }
        if let Some(weight) = router.balance_loss {
            let kind = match (weight > 0.0, router.balances_sequences) {
                (true, true) => "seq_aux_loss",
                (true, false) => "aux_loss",
                (false, _) => "none",
            };
            self.push_argument("moe-router-load-balancing-type", kind);
            self.push_argument("moe-aux-loss-coeff", format_args!("{weight:?}"));
        }
    }

    fn push_numerics(&mut self, model: &Model, plan: &TrainingPlan) {
        let precision = &plan.precision;
        let (bf16, fp16) = (precision.operand == DataType::Bf16, precision.operand == DataType::Fp16);
        self.push_flag("bf16", bf16);
        self.push_flag("grad-reduce-in-bf16", bf16 && precision.gradient == DataType::Bf16);
        self.push_flag("fp16", fp16);
        self.push_flag("accumulate-allreduce-grads-in-fp32", fp16 && precision.gradient == DataType::Fp32);
        self.push_flag("fp8-format hybrid", precision.product == Some(DataType::Fp8));
        self.push_flag("fp8-format e4m3", precision.product == Some(DataType::Mxfp8));
        self.push_flag("fp8-recipe mxfp8", precision.product == Some(DataType::Mxfp8));
        self.push_flag("fp4-format e2m1", precision.product == Some(DataType::Nvfp4));
        self.push_flag("fp4-recipe nvfp4", precision.product == Some(DataType::Nvfp4));
        if let Some(why) = Framework::MegatronLm.why_product_not_trained(precision.product) {
            self.push_lack(true, &why);
        }
        // Transformer Engine's flash attention has no sinks; cuDNN's has ("Disabling FlashAttention for softmax_type").
        let fused = if model.variations.sinks { "fused" } else { "flash" };
        self.push_argument("attention-backend", if plan.attention == Attention::Fused { fused } else { "unfused" });
    }

    fn push_layout(&mut self, model: &Model, layout: &Layout) {
        self.push_argument("tensor-model-parallel-size", layout.tensor);
        self.push_argument("pipeline-model-parallel-size", layout.pipeline);
        if layout.context > 1 {
            self.push_argument("context-parallel-size", layout.context);
            let exchanged = layout.context_method == ContextMethod::Ulysses;
            self.push_flag("cp-comm-type a2a", exchanged);
            self.push_lack(
                model.variations.sinks && !exchanged,
                "context parallelism beside sinks: Transformer Engine exchanges heads (--cp-comm-type a2a, here \
                 --context-method ulysses) and passes no keys around a ring",
            );
        }
        self.push_stages(model, layout);
        self.push_flag("use-tp-pp-dp-mapping", layout.order == RankOrder::PipelineFirst);
        self.push_flag("sequence-parallel", layout.sequence_parallel);
    }

    /// Adds the arguments that divide the layers among the stages.
    ///
    /// There are flags for a split in which the embedding or the loss counts as a layer. If every stage is one chunk
    /// and the inner stages are equal, there are also flags for other sizes of the first and the last stage
    /// (`arguments.py` asserts that the remaining layers divide). Every other split lists its chunks (Megatron-LM core
    /// 0.13 and later).
    fn push_stages(&mut self, model: &Model, layout: &Layout) {
        let Ok(split) = layout.chunk_split(model.layers) else { return };
        // Leading layers are in the chunk of the embedding.
        let leading = model.list.leading.len() as u64;
        let of_block = model.layers_per_block();
        let uneven = split.first < split.inner || split.last < split.inner;
        let listed = layout.ends.is_some() || split.chunks > 1 && (leading > 0 || of_block > 1 && uneven);
        match layout.ends {
            Some(ends)
                if leading == 0
                    && layout.virtual_stages == 1
                    && ends.first > 0
                    && ends.last > 0
                    && split.longer == 0 =>
            {
                self.push_argument("decoder-first-pipeline-num-layers", u64::from(ends.first) * of_block);
                self.push_argument("decoder-last-pipeline-num-layers", u64::from(ends.last) * of_block);
            }
            _ if listed => {
                let several = |kind: &str, layers: u64| match layers {
                    0 => None,
                    1 => Some(kind.to_owned()),
                    layers => Some(format!("{kind}*{layers}")),
                };
                let with_ends = |place: u64| {
                    let (first, last) = (place == 0, place + 1 == split.chunks);
                    let layers = split.layers_of_chunk(place) * of_block + if first { leading } else { 0 };
                    let further = if last { model.variations.further_tokens } else { 0 };
                    [
                        first.then(|| "E".to_owned()),
                        several("t", layers),
                        several("m", further),
                        last.then(|| "L".to_owned()),
                    ]
                    .into_iter()
                    .flatten()
                    .collect::<Vec<_>>()
                    .join(",")
                };
                let list: Vec<String> = (0..split.chunks).map(with_ends).collect();
                self.push_argument("pipeline-model-parallel-layout", list.join("|"));
            }
            _ => {
                if layout.virtual_stages > 1 {
                    self.push_argument("num-layers-per-virtual-pipeline-stage", split.inner * of_block);
                }
                let several = split.chunks > 1;
                self.push_flag("account-for-embedding-in-pipeline-split", several && split.first < split.inner);
                self.push_flag("account-for-loss-in-pipeline-split", several && split.last < split.inner);
            }
        }
    }

    fn push_pipeline(&mut self, recipe: &PlanRecipe<'_>) {
        let layout = &recipe.plan.layout;
        let exposed = layout.virtual_stages > 1 && recipe.stack.overlap.pipeline == 0.0;
        self.push_flag("no-overlap-p2p-communication", exposed && layout.pipeline > 2);
        self.push_lack(
            exposed && layout.pipeline == 2,
            "two interleaved stages: Megatron-LM overlaps their sends, this plan does not",
        );
        let longer = match recipe.plan.schedule {
            PipelineSchedule::OneForwardOneBackward | PipelineSchedule::Interleaved { .. } => return,
            PipelineSchedule::GPipe => "which needs less memory",
            // 1F1B keeps two passes per stage in flight through two chunks.
            PipelineSchedule::InV(v) if v.most_passes(layout.pipeline) < 2 * layout.pipeline => {
                "which needs more memory"
            }
            PipelineSchedule::ZbH1 | PipelineSchedule::InV(_) => "which takes longer",
        };
        if layout.pipeline > 1 {
            let name = schedule_name(recipe.plan);
            self.push_lack(true, &format!("schedule {name}: Megatron-LM runs 1F1B, {longer}"));
        }
    }

    fn push_sharing(&mut self, recipe: &PlanRecipe<'_>) {
        let (plan, layout) = (recipe.plan, &recipe.plan.layout);
        let sharing = ShardingFlag::of_layout(recipe.model, plan);
        match sharing {
            ShardingFlag::Replicated => {}
            ShardingFlag::DistributedOptimizer => self.push_flag("use-distributed-optimizer", true),
            ShardingFlag::TorchFsdp => {
                self.push_flag("use-torch-fsdp2", true);
                self.push_flag("no-gradient-accumulation-fusion", true);
                self.push_argument("ckpt-format", "torch_dist");
            }
            ShardingFlag::MegatronFsdp => {
                let gradients = layout.zero == ZeroStage::Gradients;
                self.push_flag("use-megatron-fsdp", true);
                self.push_argument(
                    "data-parallel-sharding-strategy",
                    if gradients { "optim_grads" } else { "optim_grads_params" },
                );
                self.push_flag("use-distributed-optimizer", true);
                self.push_flag("no-gradient-accumulation-fusion", true);
                self.push_argument("ckpt-format", "fsdp_dtensor");
                self.push_note(layout.pipeline > 1, "FSDP in a pipeline: not among what Megatron-LM documents");
            }
        }
        let copies = state_copies(recipe.stack, recipe.fast_domain, layout);
        let hybrid = sharing != ShardingFlag::Replicated && copies > 1;
        if hybrid && sharing != ShardingFlag::TorchFsdp {
            self.push_argument("num-distributed-optimizer-instances", copies);
        }
        if hybrid && sharing == ShardingFlag::MegatronFsdp {
            self.push_argument("outer-dp-sharding-strategy", "no_shard");
        }
        self.push_lack(
            hybrid && sharing == ShardingFlag::TorchFsdp,
            "hybrid sharding: FSDP2 shards over all data-parallel ranks",
        );
        let fsdp = matches!(sharing, ShardingFlag::TorchFsdp | ShardingFlag::MegatronFsdp);
        let one_queue = layout.tensor > 1 || layout.context > 1;
        self.push_note(fsdp, "environment: CUDA_DEVICE_MAX_CONNECTIONS must not be 1");
        self.push_note(!fsdp && one_queue, "environment: CUDA_DEVICE_MAX_CONNECTIONS=1 (asserted before Blackwell)");
    }

    fn push_overlap(&mut self, recipe: &PlanRecipe<'_>) {
        let (overlap, layout) = (&recipe.stack.overlap, &recipe.plan.layout);
        let sharing = ShardingFlag::of_layout(recipe.model, recipe.plan);
        let copies = u64::from(layout.data) * u64::from(layout.context) > 1;
        // FSDP2 overlaps the reduction itself. `--overlap-param-gather` requires the distributed optimizer, beside
        // which FSDP2 is refused.
        let reduced = copies && overlap.data_reduction > 0.0 && sharing != ShardingFlag::TorchFsdp;
        let sharded = matches!(sharing, ShardingFlag::DistributedOptimizer | ShardingFlag::MegatronFsdp);
        let gathered = copies && overlap.parameter_prefetch > 0.0 && sharded;
        self.push_flag("overlap-grad-reduce", reduced);
        self.push_flag("overlap-param-gather", gathered && reduced);
        self.push_lack(
            gathered && !reduced,
            "weights gathered beside the forward pass: --overlap-param-gather needs --overlap-grad-reduce",
        );
        let inside = layout.tensor > 1 && layout.tensor <= recipe.fast_domain;
        let routed = recipe.model.experts.is_some() && layout.expert > 1;
        let shared = recipe.model.experts.is_some_and(|experts| experts.shared.is_some());
        self.push_flag("overlap-moe-expert-parallel-comm", routed && overlap.experts > 0.0);
        self.push_flag("moe-shared-expert-overlap", routed && shared && overlap.shared_expert > 0.0);
        self.push_flag("tp-comm-overlap", overlap.tensor > 0.0 && layout.sequence_parallel && inside);
    }

    fn push_optimizer(&mut self, plan: &TrainingPlan) {
        let named = match plan.optimizer {
            Optimizer::Adam => "adam",
            Optimizer::Sgd | Optimizer::Momentum => "sgd",
            Optimizer::Muon => "muon",
            Optimizer::Adafactor => {
                return self.push_lack(true, "optimizer adafactor: Megatron-LM has adam, sgd and muon");
            }
            Optimizer::Adam8bit => {
                return self.push_lack(true, "optimizer adam8bit: Megatron-LM has adam, sgd and muon");
            }
        };
        self.push_argument("optimizer", named);
        if named == "sgd" {
            self.push_argument("sgd-momentum", if plan.optimizer == Optimizer::Momentum { 0.9 } else { 0.0 });
        }
        let shared = named != "adam" && plan.layout.zero != ZeroStage::None;
        self.push_lack(shared, "the distributed optimizer takes adam only (core/optimizer/distrib_optimizer.py)");
    }

    /// Adds the formats of states and master weights. Only the precision-aware optimizer has narrower ones; it asserts
    /// Adam and the distributed optimizer (`megatron/core/optimizer/optimizer_config.py`).
    fn push_states(&mut self, plan: &TrainingPlan) {
        let precision = &plan.precision;
        self.push_lack(
            precision.master.is_none(),
            "no master weights: Megatron-LM keeps a copy, in fp32 or fp16 (--main-params-dtype)",
        );
        let states = precision.state_type();
        let has_states = plan.optimizer.states() > 0 && plan.optimizer != Optimizer::Adam8bit;
        let narrow = has_states && states != DataType::Fp32 && precision.master.is_some();
        if narrow && is_precision_aware(plan) {
            self.push_argument("exp-avg-dtype", states);
            self.push_argument("exp-avg-sq-dtype", states);
            if precision.gradient == DataType::Bf16 {
                self.push_argument("main-grads-dtype", precision.gradient);
            }
            // An offloaded optimizer also switches the precision-aware optimizer on.
            let offloaded = plan.techniques.iter().any(|technique| offloaded_states(technique).is_some());
            self.push_flag("use-precision-aware-optimizer", !offloaded);
        }
        self.push_lack(
            narrow && !is_precision_aware(plan),
            &format!(
                "states in {states}: the precision-aware optimizer takes adam with the distributed optimizer only"
            ),
        );
    }

    /// Adds the arguments of techniques that are not policies of layers.
    fn push_techniques(&mut self, plan: &TrainingPlan) {
        for technique in plan.techniques.iter() {
            // Offloading uses the precision-aware optimizer, which needs the distributed optimizer.
            match offloaded_states(technique).filter(|_| is_precision_aware(plan)) {
                Some((fraction, overlapped)) => {
                    self.push_flag("optimizer-cpu-offload", true);
                    self.push_argument("optimizer-offload-fraction", format_args!("{fraction:?}"));
                    self.push_flag("overlap-cpu-optimizer-d2h-h2d", overlapped);
                    self.push_flag("use-precision-aware-optimizer", true);
                }
                None => self.push_lack(true, &format!("technique {technique}: Megatron-LM has no argument for it")),
            }
        }
    }

    /// Adds the modules whose activations are recomputed or offloaded to the host.
    fn push_modules(&mut self, modules: &[(String, bool)]) {
        let of = |away: bool| {
            modules.iter().filter(|(_, other)| *other == away).map(|(name, _)| name.as_str()).collect::<Vec<_>>()
        };
        let (again, away) = (of(false), of(true));
        if !again.is_empty() {
            self.push_argument("recompute-granularity", "selective");
            self.push_argument("recompute-modules", again.join(" "));
        }
        if !away.is_empty() {
            self.push_flag("fine-grained-activation-offloading", true);
            self.push_argument("offload-modules", away.join(" "));
        }
        let alone = away.contains(&"attn_proj") && !away.contains(&"core_attn");
        self.push_lack(alone, "attn_proj offloaded without core_attn: Megatron-LM offloads both or neither");
    }

    /// Adds the arguments for the activations that layers keep.
    fn push_activations(&mut self, recipe: &PlanRecipe<'_>) {
        let plan = recipe.plan;
        let Some(policy) = plan.activations.uniform_policy() else {
            return match plan.activations.full_recompute_layers_per_chunk() {
                Some(layers) => {
                    self.push_argument("recompute-granularity", "full");
                    self.push_argument("recompute-method", "block");
                    self.push_argument("recompute-num-layers", layers * recipe.model.layers_per_block());
                }
                None => self.push_lack(
                    true,
                    "recompute by stage: Megatron-LM recomputes as many layers in every chunk (--recompute-method \
                    block), and no other mix",
                ),
            };
        };
        match policy {
            ActivationPolicy::None => {}
            ActivationPolicy::Selective => self.push_argument("recompute-granularity", "selective"),
            ActivationPolicy::Full => {
                self.push_argument("recompute-granularity", "full");
                self.push_argument("recompute-method", "uniform");
                self.push_argument("recompute-num-layers", 1);
            }
            other => match find_megatron_modules(recipe, other) {
                None => self
                    .push_lack(true, &format!("recompute {other}: Megatron-LM has none, selective, full, and modules")),
                Some(PolicyNames { words, otherwise }) => {
                    let modules: Vec<(String, bool)> = words.into_iter().filter_map(megatron_module).collect();
                    self.push_modules(&modules);
                    let lost = otherwise.join(", ");
                    self.push_lack(
                        !otherwise.is_empty(),
                        &format!("recompute {other}: Megatron-LM has no module for {lost}"),
                    );
                }
            },
        }
    }
}
