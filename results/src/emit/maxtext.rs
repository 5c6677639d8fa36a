//! MaxText's settings (`src/maxtext/configs/base.yml` and `types.py` of AI-Hypercomputer/maxtext at commits 000b810bb1d9 and 000e6d8a0ee0, 2026), as
//! `key=value` arguments.

use super::kept::{Said, by_policies, maxtext_names};
use super::{Inexpressible, Lines, Numerics, Recipe, Written};
use crate::planned::schedule_name;
use search::planner::{PlanSpace, Splits};
use sim::kernel::{DataType, Function};
use sim::pipeline::Schedule;
use std::collections::BTreeSet;
use std::fmt::Display;
use step::TrainingPlan;
use workloads::footprint::Optimizer;
use workloads::model::{Norm, NormPlacement, Position};
use workloads::recompute_policy::{NamedPolicy, NamedTensor};
use workloads::training::{Attention, ContextMethod};
use workloads::variations::Variations;
use workloads::{ActivationPolicy, Model, RankOrder, ZeroStage};

/// The settings of a plan, one per line; lines that begin with `#` say what MaxText has no setting for.
///
/// # Errors
/// A model that none of its decoder blocks is.
pub fn maxtext(recipe: &Recipe<'_>) -> Result<Written, Inexpressible> {
    let plan = &by_policies(recipe);
    let (model, recipe) = (recipe.model, &Recipe { plan, ..*recipe });
    let block = Block::of(recipe)?;
    let mut settings = Settings(recipe.comments("maxtext"));
    settings.shape(model, plan);
    settings.block(model, recipe.numerics, block);
    settings.batch(model, plan);
    settings.mesh(recipe);
    settings.sharing(recipe);
    settings.numerics(recipe);
    settings.optimizer(plan);
    settings.techniques(plan);
    settings.activations(recipe, block);
    Ok(settings.0.written())
}

/// MaxText's decoder blocks that models here can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Block {
    Llama,
    Mixtral,
    Gpt3,
}

impl Block {
    fn of(recipe: &Recipe<'_>) -> Result<Self, Inexpressible> {
        let model = recipe.model;
        let biased = model.qkv_bias || model.attention_output_bias || model.mlp_bias;
        let llama = model.position == Position::Rotary && model.norm == Norm::RmsNorm && model.gated && !biased;
        let gpt3 = model.position != Position::Rotary && model.norm == Norm::LayerNorm && !model.gated && model.mlp_bias;
        recipe.refuse(
            "MaxText",
            &[
                (!model.causal, "attention in both directions"),
                (model.norm_placement == NormPlacement::Post, "layers that normalise after their sums"),
                (model.embedding_width != model.hidden, "embeddings narrower than its layers"),
                (!model.norm_affine, "norms without parameters"),
                (llama && model.activation != Function::Silu, "a gated MLP of another activation than SiLU"),
                (gpt3 && model.activation != Function::Gelu, "an MLP of another activation than GELU"),
                (gpt3 && model.experts.is_some(), "experts with biases and LayerNorm"),
                (!llama && !gpt3, "layers that are neither Llama's nor GPT-3's"),
                (model.norm_placement != NormPlacement::Pre, "norms elsewhere than before attention and MLP"),
                (model.position == Position::Alibi, "positions by ALiBi"),
                (model.position == Position::None, "attention without positions"),
                (model.embedding_norm, "a norm of the embedding"),
                (
                    model.variations != Variations::default() || !model.list.is_empty(),
                    "another attention, or another order of layers or branches, than Llama's and GPT-3's",
                ),
                (model.experts.is_some_and(|experts| experts.shared.is_some()), "experts that every token goes to"),
            ],
        )?;
        Ok(match (gpt3, model.experts) {
            (true, _) => Self::Gpt3,
            (false, Some(_)) => Self::Mixtral,
            (false, None) => Self::Llama,
        })
    }
}

struct Settings(Lines);

impl Settings {
    fn set(&mut self, key: &str, value: impl Display) {
        self.0.push(format!("{key}={value}"));
    }

    fn shape(&mut self, model: &Model, plan: &TrainingPlan) {
        self.set("base_num_decoder_layers", model.layers);
        self.set("base_emb_dim", model.hidden);
        self.set("base_mlp_dim", model.ffn);
        self.set("base_num_query_heads", model.heads);
        self.set("base_num_kv_heads", model.kv_heads);
        self.set("head_dim", model.head_dim);
        self.set("vocab_size", model.padded_vocabulary(plan.layout.tensor));
        self.set("max_target_length", plan.batch.sequence_length);
        if let Some(experts) = &model.experts {
            self.set("num_experts", experts.count);
            self.set("num_experts_per_tok", experts.top_k);
            self.set("base_moe_mlp_dim", model.ffn);
            if let Some(groups) = experts.groups {
                self.set("n_routing_groups", groups.count);
                self.set("topk_routing_group", groups.chosen);
            }
            if let Some(factor) = experts.capacity_factor {
                self.set("capacity_factor", factor);
                self.set("sparse_matmul", false);
            }
        }
    }

    fn block(&mut self, model: &Model, numerics: Numerics, block: Block) {
        let (name, activations) = match block {
            Block::Llama => ("llama2", "['silu','linear']"),
            Block::Mixtral => ("mixtral", "['silu','linear']"),
            Block::Gpt3 => ("gpt3", "['gelu']"),
        };
        self.set("decoder_block", name);
        self.set("mlp_activations", activations);
        self.set("logits_via_embedding", model.tied_head);
        if let Position::Learned { rows } = model.position {
            self.set("trainable_position_size", rows);
            // As configs/models/gpt3-175b.yml has them: one product for queries, keys and values, logits as they are.
            self.set("fused_qkv", true);
            self.set("normalize_embedding_logits", false);
        }
        match numerics.rotary_base.filter(|_| model.position == Position::Rotary) {
            Some(base) => self.set("rope_max_timescale", base),
            None => self.0.note(
                model.position == Position::Rotary,
                "rope_max_timescale: the model's own (10000 where it is left out); it changes no time",
            ),
        }
        if let Some(epsilon) = numerics.norm_epsilon {
            self.set("normalization_layer_epsilon", epsilon);
        }
        self.set("enable_dropout", model.dropout.residual > 0.0);
        if model.dropout.residual > 0.0 {
            self.set("dropout_rate", model.dropout.residual);
        }
    }

    fn batch(&mut self, model: &Model, plan: &TrainingPlan) {
        let l = &plan.layout;
        let micro_batches = plan.micro_batches();
        let accumulated = if l.pipeline == 1 { micro_batches } else { 1 };
        // MaxText counts the sequences of a step (of a gradient-accumulation step) per device, fractions allowed.
        self.set("per_device_batch_size", plan.batch.global_batch as f64 / (accumulated * l.devices()) as f64);
        if accumulated > 1 {
            self.set("gradient_accumulation_steps", accumulated);
            let fp8 = plan.precision.product == Some(DataType::Fp8);
            self.0.lack(fp8, "fp8: MaxText refuses it beside gradient accumulation");
        }
        if l.pipeline > 1 {
            self.set("num_pipeline_microbatches", micro_batches);
            self.set("num_layers_per_pipeline_stage", model.layers.div_ceil(l.chunks()));
            if let (Some(split), false) =
                (l.chunk_split(model.layers).ok(), model.layers.is_multiple_of(l.chunks()) && l.ends.is_none())
            {
                self.0
                    .lack(true, &format!("layers {split}: MaxText gives every stage as many (coplace plan --layer-split even)"));
            }
            let ragged = !micro_batches.is_multiple_of(l.pipeline.into());
            self.0.lack(ragged, "micro-batches: MaxText takes multiples of the stages only");
            let name = schedule_name(plan);
            let text = format!(
                "schedule {name}: MaxText runs all forward passes first, which keeps every micro-batch's activations (coplace plan \
                 --schedule gpipe --virtual-stages 1)"
            );
            self.0.lack(plan.schedule != Schedule::GPipe, &text);
        }
    }

    /// Degrees inside a slice (`ici_`) and between slices (`dcn_`): axes fill the slice in the order of ranks.
    fn mesh(&mut self, recipe: &Recipe<'_>) {
        let l = &recipe.plan.layout;
        let ulysses = l.context > 1 && l.context_method == ContextMethod::Ulysses;
        self.0.lack(ulysses, "Ulysses: MaxText gathers keys and values instead");
        // Experts are an axis of their own, taken from the data-parallel ranks.
        let uneven = !l.data.is_multiple_of(l.expert.max(1));
        self.0.lack(uneven, "experts: MaxText takes their axis from the data-parallel ranks, which these do not divide");
        self.0.lack(
            !uneven && l.expert_tensor.is_some(),
            "experts split over another width than the rest: MaxText splits both alike",
        );
        let copies = (l.data / l.expert.max(1)).max(1);
        let sharded = l.zero == ZeroStage::Parameters;
        let tensor = (if l.sequence_parallel { "tensor_sequence" } else { "tensor" }, l.tensor);
        let data = (if sharded { "fsdp" } else { "data" }, copies);
        let pipeline = ("pipeline", l.pipeline);
        let axes = match l.order {
            RankOrder::DataFirst => [tensor, ("context", l.context), ("expert", l.expert), data, pipeline],
            RankOrder::PipelineFirst => [tensor, ("context", l.context), pipeline, ("expert", l.expert), data],
        };
        let slices = l.devices() > u64::from(recipe.fast_domain);
        let (mut left, mut straddles, mut outer) = (recipe.fast_domain, false, 1);
        for (axis, degree) in axes {
            let inside = if slices { common_divisor(degree, left) } else { degree };
            let between = degree / inside;
            straddles |= between > 1 && left != inside;
            left = if between > 1 { 1 } else { left / inside };
            if inside > 1 || axis == data.0 {
                self.set(&format!("ici_{axis}_parallelism"), inside);
            }
            // Hybrid sharding: copies between slices.
            let outer_axis = if axis == "fsdp" && recipe.stack.kernels.shard_within_domain { "data" } else { axis };
            if between > 1 {
                self.set(&format!("dcn_{outer_axis}_parallelism"), between);
                outer = if outer_axis == "data" { between } else { outer };
            }
        }
        // Its default takes all slices.
        if slices && outer == 1 {
            self.set("dcn_data_parallelism", 1);
        }
        self.0.lack(
            straddles,
            &format!("slices of {}: an axis fills them unevenly, which MaxText's mesh cannot", recipe.fast_domain),
        );
    }

    fn sharing(&mut self, recipe: &Recipe<'_>) {
        let l = &recipe.plan.layout;
        if matches!(l.zero, ZeroStage::OptimizerStates | ZeroStage::Gradients) {
            self.set("shard_optimizer_over_data", true);
            self.0.lack(l.zero == ZeroStage::Gradients, "ZeRO-2: MaxText shares optimizer states (ZeRO-1) or weights too (fsdp)");
            let copies = recipe.stack.kernels.shard_within_domain && l.devices() > u64::from(recipe.fast_domain);
            self.0.lack(copies, "states: this plan shares them inside a slice, MaxText over all of the data axis");
        }
    }

    fn numerics(&mut self, recipe: &Recipe<'_>) {
        let (plan, tpu) = (recipe.plan, recipe.chip.starts_with("tpu"));
        self.set("hardware", if tpu { "tpu" } else { "gpu" });
        self.set(
            "attention",
            match (plan.attention, tpu) {
                (Attention::Unfused, _) => "dot_product",
                (Attention::Fused, true) => "flash",
                (Attention::Fused, false) => "cudnn_flash_te",
            },
        );
        let name = |t: DataType| match t {
            DataType::Fp32 => "float32",
            DataType::Fp16 => "float16",
            _ => "bfloat16",
        };
        self.set("dtype", name(plan.precision.operand));
        self.set("weight_dtype", name(plan.precision.master.unwrap_or(plan.precision.operand)));
        match plan.precision.product {
            Some(DataType::Fp8) => self.set("quantization", "fp8"),
            Some(DataType::Int8) => self.set("quantization", "int8"),
            Some(product) if product.bytes() == 1 => {
                self.0.lack(true, &format!("products in {product}: written for fp8 and int8 only"));
            }
            _ => {}
        }
    }

    fn optimizer(&mut self, plan: &TrainingPlan) {
        match plan.optimizer {
            Optimizer::Adam => self.set("opt_type", "adamw"),
            Optimizer::Sgd => self.set("opt_type", "sgd"),
            Optimizer::Muon => self.set("opt_type", "muon"),
            Optimizer::Momentum => {
                self.0.lack(true, "optimizer momentum: MaxText has adamw, adam_pax, sgd (without momentum) and muon")
            }
            Optimizer::Adafactor => self.0.lack(true, "optimizer adafactor: MaxText has adamw, adam_pax, sgd and muon"),
            Optimizer::Adam8bit => self.0.lack(true, "optimizer adam8bit: MaxText has adamw, adam_pax, sgd and muon"),
        }
    }

    fn techniques(&mut self, plan: &TrainingPlan) {
        for technique in plan.techniques.iter() {
            self.0.lack(true, &format!("technique {technique}: MaxText has no setting for it"));
        }
    }

    fn activations(&mut self, recipe: &Recipe<'_>, block: Block) {
        let (model, plan) = (recipe.model, recipe.plan);
        let none = BTreeSet::new();
        let Some(policy) = plan.activations.alike() else {
            return self.0.lack(true, "recompute by stage: MaxText has one policy for all layers");
        };
        match policy {
            ActivationPolicy::None => {
                // Every layer is wrapped in jax.remat, `none` among the policies of no version.
                self.set("remat_policy", "minimal_with_context");
                self.0.lack(
                    true,
                    "recompute none: MaxText's nearest keeps every product and attention's result, the rest runs again",
                );
            }
            ActivationPolicy::Full => self.set("remat_policy", "full"),
            ActivationPolicy::Named { policy, offloaded } => {
                let tensors: BTreeSet<NamedTensor> = policy.tensors().iter().copied().collect();
                match named(*policy, *offloaded) {
                    Some(name) => self.set("remat_policy", name),
                    None if *offloaded => self.custom(model, block, &tensors, &none),
                    None => self.custom(model, block, &none, &tensors),
                }
            }
            ActivationPolicy::Custom { host, device } => self.custom(model, block, host, device),
            other => match maxtext_names(recipe, other) {
                None => self.0.lack(true, &format!("recompute {other}: MaxText has no policy of this kind")),
                Some(Said { words: [host, device], otherwise }) => {
                    self.custom(model, block, &host, &device);
                    let lost = otherwise.join(", ");
                    self.0.lack(!otherwise.is_empty(), &format!("recompute {other}: MaxText has no name for {lost}"));
                }
            },
        }
    }

    fn custom(&mut self, model: &Model, block: Block, host: &BTreeSet<NamedTensor>, device: &BTreeSet<NamedTensor>) {
        self.set("remat_policy", "custom");
        for (tensors, place) in [(host, "offload"), (device, "device")] {
            for name in tensors.iter().flat_map(|tensor| own_names(*tensor, model, block)) {
                self.set(&name, place);
            }
        }
    }
}

/// The policies that MaxText has a name for.
#[must_use]
pub fn maxtext_policies() -> Vec<ActivationPolicy> {
    let all = [false, true].into_iter().flat_map(|offloaded| NamedPolicy::all().map(move |policy| (policy, offloaded)));
    let own = all.filter(|(policy, offloaded)| named(*policy, *offloaded).is_some());
    let of_name = |(policy, offloaded)| ActivationPolicy::Named { policy, offloaded };
    [ActivationPolicy::Full].into_iter().chain(own.map(of_name)).collect()
}

/// What MaxText runs of the other decisions: stages of as many layers each, all forward passes first, states shared or weights too (fsdp, in
/// pipelines as well), keys and values gathered.
#[must_use]
pub fn maxtext_choices() -> PlanSpace {
    PlanSpace {
        splits: Some(Splits::Listed(vec![None])),
        schedules: Some(vec![Schedule::GPipe]),
        zero: Some(vec![ZeroStage::None, ZeroStage::OptimizerStates, ZeroStage::Parameters]),
        context_methods: Some(vec![ContextMethod::Ring]),
        ..PlanSpace::default()
    }
}

/// MaxText's name of a policy, where it has one.
fn named(policy: NamedPolicy, offloaded: bool) -> Option<&'static str> {
    match (policy, offloaded) {
        (NamedPolicy::Minimal, false) => Some("minimal"),
        (NamedPolicy::Minimal, true) => Some("minimal_offloaded"),
        (NamedPolicy::MinimalWithContext, false) => Some("minimal_with_context"),
        (NamedPolicy::SaveQkvProj, false) => Some("save_qkv_proj"),
        (NamedPolicy::SaveQkvProj, true) => Some("qkv_proj_offloaded"),
        (NamedPolicy::SaveOutProj, false) => Some("save_out_proj"),
        (NamedPolicy::SaveDotExceptMlp, false) => Some("save_dot_except_mlp"),
        (NamedPolicy::SaveDotWithContextExceptMlp, false) => Some("save_dot_with_context_except_mlp"),
        (NamedPolicy::SaveDotExceptMlpwi, false) => Some("save_dot_except_mlpwi"),
        // Paxml's.
        (NamedPolicy::SaveDotExceptLogits | NamedPolicy::SaveDotExceptLogitsFfn1, false) | (_, true) => None,
    }
}

/// A tensor under the names of MaxText's layers: separate projections but in GPT-3's, the two first products of a gated MLP, experts apart.
fn own_names(tensor: NamedTensor, model: &Model, block: Block) -> Vec<String> {
    let names: &[&str] = match tensor {
        NamedTensor::QkvProj if block != Block::Gpt3 => &["query_proj", "key_proj", "value_proj"],
        NamedTensor::Mlpwi if model.gated => &["mlpwi_0", "mlpwi_1"],
        NamedTensor::Mlpwi0 if !model.gated => &["mlpwi"],
        _ => return vec![in_experts(&tensor.to_string(), block)],
    };
    names.iter().map(|name| in_experts(name, block)).collect()
}

fn in_experts(name: &str, block: Block) -> String {
    if block == Block::Mixtral && name.starts_with("mlp") { format!("moe_{name}") } else { name.to_owned() }
}

/// Euclid's.
fn common_divisor(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { common_divisor(b, a % b) }
}
