//! Megatron-LM's command-line arguments, as `megatron/training/arguments.py` of NVIDIA/Megatron-LM has them at commit 000c4ac24f61 (2025):
//! their names, what `validate_args` asserts of their combinations, and what it switches on by itself.

use super::kept::{Said, by_policies, megatron_module, megatron_modules};
use super::{Inexpressible, Lines, Numerics, Recipe, Written};
use crate::planned::schedule_name;
use sim::kernel::{DataType, Function};
use sim::pipeline::Schedule;
use step::TrainingPlan;
use workloads::footprint::Optimizer;
use workloads::layer_list::{Mixer, Side};
use workloads::model::{Norm, NormPlacement, Position};
use workloads::training::{Attention, ContextMethod};
use workloads::variations::QueryKeyNorm;
use workloads::{ActivationPolicy, Layout, Model, RankOrder, ZeroStage};

/// The arguments of a plan, one per line; lines that begin with `#` say what Megatron-LM has no argument for.
///
/// # Errors
/// A model that its layers cannot be.
pub fn megatron(recipe: &Recipe<'_>) -> Result<Written, Inexpressible> {
    let plan = &by_policies(recipe);
    let (model, recipe) = (recipe.model, &Recipe { plan, ..*recipe });
    recipe.refuse(
        "Megatron-LM",
        &[
            (model.norm_placement == NormPlacement::Post, "layers that normalise after their sums"),
            (model.embedding_width != model.hidden, "embeddings narrower than its layers"),
            (!model.norm_affine, "norms without parameters"),
            (model.gated && model.activation != Function::Silu, "a gated MLP of another activation than SiLU"),
            (!model.gated && model.activation != Function::Gelu, "an MLP of another activation than GELU"),
            (model.norm_placement != NormPlacement::Pre, "norms elsewhere than before attention and MLP"),
            (model.position == Position::Alibi, "positions by ALiBi"),
            (model.position == Position::None, "attention without positions"),
            (model.embedding_norm, "a norm of the embedding"),
            (model.head_bias && !model.head_transform, "a bias on the logits"),
            (
                !model.list.leading.is_empty() && plan.layout.pipeline > 1,
                "leading layers without experts beside the embedding of a pipeline",
            ),
            (
                !model.list.block.is_empty()
                    || !model.list.trailing.is_empty()
                    || model.leading_dense().is_none() && !model.list.is_empty(),
                "layers that differ in more than leading ones without experts",
            ),
            (model.variations.window.is_some(), "windows of attention"),
            (model.variations.mixer != Mixer::Attention, "state-space scans"),
            (model.variations.side != Side::Only, "an encoder and a decoder"),
            (model.variations.patches.is_some() || model.variations.pooled_head.is_some(), "images, or a head on one token"),
            (model.variations.norm_without_bias, "LayerNorm without a bias"),
            (model.variations.parallel.is_some(), "attention and MLP beside each other"),
            (model.variations.sinks, "sinks beside the scores"),
            (
                matches!(model.variations.query_key_norm, Some(QueryKeyNorm::Whole | QueryKeyNorm::OwnHead)),
                "norms of queries and keys over all heads",
            ),
            (model.experts.is_some_and(|experts| experts.router_bias), "a bias on the router's logits"),
            (model.experts.and_then(|experts| experts.shared).is_some_and(|shared| shared.weighed), "a weighed shared expert"),
        ],
    )?;
    let mut out = Arguments(recipe.comments("megatron"));
    out.model(model, recipe.numerics, plan);
    out.experts(model, recipe);
    out.numerics(plan);
    out.layout(model, &plan.layout);
    out.pipeline(recipe);
    out.sharing(recipe);
    out.overlap(recipe);
    out.optimizer(plan);
    out.techniques(plan);
    out.activations(recipe);
    out.set("micro-batch-size", plan.batch.micro_batch);
    out.set("global-batch-size", plan.batch.global_batch);
    Ok(out.0.written())
}

/// Which of Megatron-LM's ways shares gradients or weights.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sharing {
    Replicated,
    DistributedOptimizer,
    /// PyTorch's FSDP2.
    TorchFsdp,
    /// Megatron's own FSDP, for gradients alone and where PyTorch's is refused.
    MegatronFsdp,
}

impl Sharing {
    fn of(model: &Model, plan: &TrainingPlan) -> Self {
        let layout = &plan.layout;
        let torch = layout.pipeline == 1 && layout.expert == 1 && plan.precision.operand != DataType::Fp16 && !model.tied_head;
        match layout.zero {
            ZeroStage::None => Self::Replicated,
            ZeroStage::OptimizerStates => Self::DistributedOptimizer,
            ZeroStage::Parameters if torch => Self::TorchFsdp,
            ZeroStage::Gradients | ZeroStage::Parameters => Self::MegatronFsdp,
        }
    }
}

struct Arguments(Lines);

impl Arguments {
    fn set(&mut self, key: &str, value: impl std::fmt::Display) {
        self.0.push(format!("--{key} {value}"));
    }

    fn flag(&mut self, key: &str, on: bool) {
        if on {
            self.0.push(format!("--{key}"));
        }
    }

    fn model(&mut self, model: &Model, numerics: Numerics, plan: &TrainingPlan) {
        self.0.note(!model.causal, "not causal: an entry point with a bidirectional mask (pretrain_bert.py)");
        self.set("num-layers", model.all_layers());
        if model.variations.further_tokens > 0 {
            self.set("mtp-num-layers", model.variations.further_tokens);
        }
        self.set("hidden-size", model.hidden);
        self.set("ffn-hidden-size", model.leading_dense().map_or(model.ffn, |dense| dense.ffn));
        self.set("num-attention-heads", model.heads);
        self.set("kv-channels", model.head_dim);
        if model.kv_heads != model.heads {
            self.flag("group-query-attention", true);
            self.set("num-query-groups", model.kv_heads);
        }
        self.set("seq-length", plan.batch.sequence_length);
        let (sequence, halves) = (plan.batch.sequence_length, 2 * u64::from(plan.layout.context));
        let uneven = halves > 2 && !sequence.is_multiple_of(halves);
        self.0.lack(
            uneven,
            &format!("context parallelism: Megatron-LM cuts sequences in {halves}, which does not divide {sequence}"),
        );
        self.set("max-position-embeddings", plan.batch.sequence_length.max(model.max_sequence));
        self.set("vocab-size", model.vocabulary);
        self.set("make-vocab-size-divisible-by", model.vocabulary_multiple);
        self.0.note(true, "a tokenizer of its own replaces --vocab-size");
        self.flag("swiglu", model.gated);
        self.flag("normalization RMSNorm", model.norm == Norm::RmsNorm);
        if model.position == Position::Rotary {
            self.set("position-embedding-type", "rope");
            if let Some(rotated) = model.variations.rotated {
                self.set("rotary-percent", rotated as f64 / model.head_dim as f64);
            }
            match numerics.rotary_base {
                Some(base) => self.set("rotary-base", base),
                None => self.0.note(true, "--rotary-base: the model's own (10000 where it is left out); it changes no time"),
            }
        }
        if let Some(epsilon) = numerics.norm_epsilon {
            self.set("norm-epsilon", epsilon);
        }
        self.flag("untie-embeddings-and-output-weights", !model.tied_head);
        self.flag("disable-bias-linear", !model.mlp_bias);
        self.flag("add-qkv-bias", model.qkv_bias && !model.mlp_bias);
        self.flag("qk-layernorm", model.variations.query_key_norm.is_some());
        self.latent_attention(model);
        self.set("attention-dropout", model.dropout.attention);
        self.set("hidden-dropout", model.dropout.residual);
    }

    fn latent_attention(&mut self, model: &Model) {
        let Some(latent) = model.variations.latent else { return };
        self.flag("multi-latent-attention", true);
        if let Some(rank) = latent.query_rank {
            self.set("q-lora-rank", rank);
        }
        self.set("kv-lora-rank", latent.kv_rank);
        self.set("qk-head-dim", model.head_dim.saturating_sub(latent.rope_dim));
        self.set("qk-pos-emb-head-dim", latent.rope_dim);
        self.set("v-head-dim", latent.value_dim);
        self.flag("qk-layernorm", model.variations.query_key_norm.is_none());
    }

    fn experts(&mut self, model: &Model, recipe: &Recipe<'_>) {
        let (plan, layout) = (recipe.plan, &recipe.plan.layout);
        let once = layout.expert > 1 && recipe.stack.kernels.expert_deduplicated;
        let Some(experts) = &model.experts else { return };
        self.set("num-experts", experts.count);
        if let Some(dense) = model.leading_dense() {
            self.set("moe-layer-freq", format_args!("'([0]*{}+[1]*{})'", dense.layers, model.layers));
            self.set("moe-ffn-hidden-size", model.ffn);
        }
        if let Some(shared) = experts.shared {
            self.set("moe-shared-expert-intermediate-size", shared.ffn);
        }
        self.set("moe-router-topk", experts.top_k);
        if let Some(groups) = experts.groups {
            self.set("moe-router-num-groups", groups.count);
            self.set("moe-router-group-topk", groups.chosen);
        }
        self.set("moe-token-dispatcher-type", if once { "flex" } else { "alltoall" });
        self.flag("moe-enable-deepep", once);
        self.flag("moe-grouped-gemm", plan.precision.operand == DataType::Bf16);
        if let Some(factor) = experts.capacity_factor {
            self.set("moe-expert-capacity-factor", factor);
            self.flag("moe-pad-expert-input-to-capacity", true);
        }
        if layout.expert > 1 {
            self.set("expert-model-parallel-size", layout.expert);
            self.0.lack(plan.precision.operand == DataType::Fp16, "expert parallelism: Megatron-LM refuses it in fp16");
        }
        if let Some(width) = layout.expert_tensor() {
            self.set("expert-tensor-parallel-size", width);
        }
    }

    fn numerics(&mut self, plan: &TrainingPlan) {
        let precision = &plan.precision;
        let (bf16, fp16) = (precision.operand == DataType::Bf16, precision.operand == DataType::Fp16);
        self.flag("bf16", bf16);
        self.flag("grad-reduce-in-bf16", bf16 && precision.gradient == DataType::Bf16);
        self.flag("fp16", fp16);
        self.flag("accumulate-allreduce-grads-in-fp32", fp16 && precision.gradient == DataType::Fp32);
        self.flag("fp8-format hybrid", precision.product == Some(DataType::Fp8));
        self.flag("fp8-format e4m3", precision.product == Some(DataType::Mxfp8));
        self.flag("fp8-recipe mxfp8", precision.product == Some(DataType::Mxfp8));
        self.flag("fp4-format e2m1", precision.product == Some(DataType::Nvfp4));
        self.flag("fp4-recipe nvfp4", precision.product == Some(DataType::Nvfp4));
        self.0.lack(precision.product == Some(DataType::Int8), "products in int8: Megatron-LM has fp8 and fp4 only");
        self.set("attention-backend", if plan.attention == Attention::Fused { "flash" } else { "unfused" });
    }

    fn layout(&mut self, model: &Model, layout: &Layout) {
        self.set("tensor-model-parallel-size", layout.tensor);
        self.set("pipeline-model-parallel-size", layout.pipeline);
        if layout.context > 1 {
            self.set("context-parallel-size", layout.context);
            self.flag("cp-comm-type a2a", layout.context_method == ContextMethod::Ulysses);
        }
        self.stages(model, layout);
        self.flag("use-tp-pp-dp-mapping", layout.order == RankOrder::PipelineFirst);
        self.flag("sequence-parallel", layout.sequence_parallel);
    }

    /// How the layers are divided among the stages. Ends that count as layers have flags of their own, and so have other ends that hold some layers
    /// where every stage is one chunk and those between are equal (`arguments.py` asks that what they leave divides); everything else is spelled out
    /// chunk by chunk (Megatron-LM core 0.13 and later).
    fn stages(&mut self, model: &Model, layout: &Layout) {
        let Ok(split) = layout.chunk_split(model.layers) else { return };
        match layout.ends {
            Some(ends) if layout.virtual_stages == 1 && ends.first > 0 && ends.last > 0 && split.longer == 0 => {
                self.set("decoder-first-pipeline-num-layers", ends.first);
                self.set("decoder-last-pipeline-num-layers", ends.last);
            }
            Some(_) => {
                let chunk = |place: u64| match split.layers(place) {
                    0 => None,
                    1 => Some("t".to_owned()),
                    layers => Some(format!("t*{layers}")),
                };
                let with_ends = |place: u64| {
                    let embedding = (place == 0).then(|| "E".to_owned());
                    let loss = (place + 1 == split.chunks).then(|| "L".to_owned());
                    [embedding, chunk(place), loss].into_iter().flatten().collect::<Vec<_>>().join(",")
                };
                let list: Vec<String> = (0..split.chunks).map(with_ends).collect();
                self.set("pipeline-model-parallel-layout", format!("\"{}\"", list.join("|")));
            }
            None => {
                if layout.virtual_stages > 1 {
                    self.set("num-layers-per-virtual-pipeline-stage", split.inner);
                }
                let several = split.chunks > 1;
                self.flag("account-for-embedding-in-pipeline-split", several && split.first < split.inner);
                self.flag("account-for-loss-in-pipeline-split", several && split.last < split.inner);
            }
        }
    }

    fn pipeline(&mut self, recipe: &Recipe<'_>) {
        let layout = &recipe.plan.layout;
        let exposed = layout.virtual_stages > 1 && recipe.stack.overlap.pipeline == 0.0;
        self.flag("no-overlap-p2p-communication", exposed && layout.pipeline > 2);
        self.0.lack(
            exposed && layout.pipeline == 2,
            "two interleaved stages: Megatron-LM overlaps their sends, this plan does not",
        );
        let longer = match recipe.plan.schedule {
            Schedule::OneForwardOneBackward | Schedule::Interleaved { .. } => return,
            Schedule::GPipe => "which needs less memory",
            Schedule::ZbH1 | Schedule::ZbV => "which takes longer",
        };
        if layout.pipeline > 1 {
            let name = schedule_name(recipe.plan);
            self.0.lack(true, &format!("schedule {name}: Megatron-LM runs 1F1B, {longer}"));
        }
    }

    fn sharing(&mut self, recipe: &Recipe<'_>) {
        let (plan, layout) = (recipe.plan, &recipe.plan.layout);
        let sharing = Sharing::of(recipe.model, plan);
        match sharing {
            Sharing::Replicated => {}
            Sharing::DistributedOptimizer => self.flag("use-distributed-optimizer", true),
            Sharing::TorchFsdp => {
                self.flag("use-torch-fsdp2", true);
                self.flag("no-gradient-accumulation-fusion", true);
                self.set("ckpt-format", "torch_dist");
            }
            Sharing::MegatronFsdp => {
                let gradients = layout.zero == ZeroStage::Gradients;
                self.flag("use-megatron-fsdp", true);
                self.set("data-parallel-sharding-strategy", if gradients { "optim_grads" } else { "optim_grads_params" });
                self.flag("use-distributed-optimizer", true);
                self.flag("no-gradient-accumulation-fusion", true);
                self.set("ckpt-format", "fsdp_dtensor");
                self.0.note(layout.pipeline > 1, "FSDP in a pipeline: not among what Megatron-LM documents");
            }
        }
        let inside = (recipe.fast_domain / layout.data_stride().max(1)).max(1);
        let copies = (layout.data * layout.context) / inside;
        let hybrid = recipe.stack.kernels.shard_within_domain && sharing != Sharing::Replicated && copies > 1;
        if hybrid && sharing != Sharing::TorchFsdp {
            self.set("num-distributed-optimizer-instances", copies);
        }
        if hybrid && sharing == Sharing::MegatronFsdp {
            self.set("outer-dp-sharding-strategy", "no_shard");
        }
        self.0.lack(hybrid && sharing == Sharing::TorchFsdp, "hybrid sharding: FSDP2 shards over all data-parallel ranks");
        let fsdp = matches!(sharing, Sharing::TorchFsdp | Sharing::MegatronFsdp);
        let one_queue = layout.tensor > 1 || layout.context > 1;
        self.0.note(fsdp, "environment: CUDA_DEVICE_MAX_CONNECTIONS must not be 1");
        self.0.note(!fsdp && one_queue, "environment: CUDA_DEVICE_MAX_CONNECTIONS=1 (asserted before Blackwell)");
    }

    fn overlap(&mut self, recipe: &Recipe<'_>) {
        let (overlap, layout) = (&recipe.stack.overlap, &recipe.plan.layout);
        let sharing = Sharing::of(recipe.model, recipe.plan);
        let copies = u64::from(layout.data) * u64::from(layout.context) > 1;
        // FSDP2 overlaps by itself, and is refused beside the distributed optimizer, which the latter flag needs.
        let reduced = copies && overlap.data_reduction > 0.0 && sharing != Sharing::TorchFsdp;
        let sharded = matches!(sharing, Sharing::DistributedOptimizer | Sharing::MegatronFsdp);
        let gathered = copies && overlap.parameter_prefetch > 0.0 && sharded;
        self.flag("overlap-grad-reduce", reduced);
        self.flag("overlap-param-gather", gathered && reduced);
        self.0.lack(
            gathered && !reduced,
            "weights gathered beside the forward pass: --overlap-param-gather needs --overlap-grad-reduce",
        );
        let inside = layout.tensor > 1 && layout.tensor <= recipe.fast_domain;
        let routed = recipe.model.experts.is_some() && layout.expert > 1;
        let shared = recipe.model.experts.is_some_and(|experts| experts.shared.is_some());
        self.flag("overlap-moe-expert-parallel-comm", routed && overlap.experts > 0.0);
        self.flag("moe-shared-expert-overlap", routed && shared && overlap.shared_expert > 0.0);
        self.flag("tp-comm-overlap", overlap.tensor > 0.0 && layout.sequence_parallel && inside);
    }

    fn optimizer(&mut self, plan: &TrainingPlan) {
        let named = match plan.optimizer {
            Optimizer::Adam => "adam",
            Optimizer::Sgd | Optimizer::Momentum => "sgd",
            Optimizer::Muon => "muon",
            Optimizer::Adafactor => return self.0.lack(true, "optimizer adafactor: Megatron-LM has adam, sgd and muon"),
            Optimizer::Adam8bit => return self.0.lack(true, "optimizer adam8bit: Megatron-LM has adam, sgd and muon"),
        };
        self.set("optimizer", named);
        if named == "sgd" {
            self.set("sgd-momentum", if plan.optimizer == Optimizer::Momentum { 0.9 } else { 0.0 });
        }
        let shared = named != "adam" && plan.layout.zero != ZeroStage::None;
        self.0.lack(shared, "the distributed optimizer takes adam only (core/optimizer/distrib_optimizer.py)");
    }

    /// Techniques that are no policy of the layers.
    fn techniques(&mut self, plan: &TrainingPlan) {
        let shared = plan.layout.zero == ZeroStage::OptimizerStates && plan.optimizer == Optimizer::Adam;
        for technique in plan.techniques.iter() {
            // Its path is that of the precision-aware optimizer, which is part of the distributed one.
            if technique.preset().name == "zero-offload" && shared {
                self.flag("optimizer-cpu-offload", true);
                self.set("optimizer-offload-fraction", "1.0");
                self.flag("use-precision-aware-optimizer", true);
            } else {
                self.0.lack(true, &format!("technique {technique}: Megatron-LM has no argument for it"));
            }
        }
    }

    /// Modules whose activations run again, and those that are sent to the host.
    fn modules(&mut self, modules: &[(String, bool)]) {
        let of =
            |away: bool| modules.iter().filter(|(_, other)| *other == away).map(|(name, _)| name.as_str()).collect::<Vec<_>>();
        let (again, away) = (of(false), of(true));
        if !again.is_empty() {
            self.set("recompute-granularity", "selective");
            self.set("recompute-modules", again.join(" "));
        }
        if !away.is_empty() {
            self.flag("fine-grained-activation-offloading", true);
            self.set("offload-modules", away.join(" "));
        }
        let alone = away.contains(&"attn_proj") && !away.contains(&"core_attn");
        self.0.lack(alone, "attn_proj away without core_attn: Megatron-LM sends both or neither");
    }

    /// What layers keep.
    fn activations(&mut self, recipe: &Recipe<'_>) {
        let plan = recipe.plan;
        let Some(policy) = plan.activations.alike() else {
            return match plan.activations.block() {
                Some(layers) => {
                    self.set("recompute-granularity", "full");
                    self.set("recompute-method", "block");
                    self.set("recompute-num-layers", layers);
                }
                None => self.0.lack(
                    true,
                    "recompute by stage: Megatron-LM recomputes as many layers in every chunk (--recompute-method block), and no other mix",
                ),
            };
        };
        match policy {
            ActivationPolicy::None => {}
            ActivationPolicy::Selective => self.set("recompute-granularity", "selective"),
            ActivationPolicy::Full => {
                self.set("recompute-granularity", "full");
                self.set("recompute-method", "uniform");
                self.set("recompute-num-layers", 1);
            }
            other => match megatron_modules(recipe, other) {
                None => self.0.lack(true, &format!("recompute {other}: Megatron-LM has none, selective, full, and modules")),
                Some(Said { words, otherwise }) => {
                    let modules: Vec<(String, bool)> = words.into_iter().filter_map(megatron_module).collect();
                    self.modules(&modules);
                    let lost = otherwise.join(", ");
                    self.0.lack(!otherwise.is_empty(), &format!("recompute {other}: Megatron-LM has no module for {lost}"));
                }
            },
        }
    }
}
