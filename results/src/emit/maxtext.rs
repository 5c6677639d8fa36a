//! MaxText's settings as a YAML file that is read over its `base.yml`. Source: `src/maxtext/configs/base.yml` and
//! `types.py` of AI-Hypercomputer/maxtext at commits 000b810bb1d9 and 000e6d8a0ee0, 2026.

use super::kept::{PolicyNames, find_maxtext_names, plan_by_policies};
use super::{DOCUMENTS, EmittedLines, EmittedPlan, Inexpressible, ModelNumerics, PlanRecipe, mixer_features};
use crate::answer::plan::schedule_name;
use search::planner::{PlanSpace, Splits};
use sim::kernel::{DataType, ElementwiseFunction};
use sim::pipeline::PipelineSchedule;
use std::collections::BTreeSet;
use std::fmt::Display;
use step::{Framework, TrainingPlan, state_copies};
use workloads::footprint::Optimizer;
use workloads::model::{Norm, NormPlacement, PositionEncoding};
use workloads::recompute_policy::{NamedPolicy, NamedTensor};
use workloads::training::{Attention, ContextMethod};
use workloads::variations::Variations;
use workloads::{ActivationPolicy, Model, RankOrder, ZeroStage};

/// The head of the file: its launch, and the file that it is read over. The user replaces OPEN by values that MaxText
/// requires.
const HEAD: [&str; 4] = [
    "# MaxText's settings, read over its base.yml. Replace what stands in OPEN; with this file as maxtext.yml:",
    "# python3 -m maxtext.trainers.pre_train.train maxtext.yml run_name=OPEN base_output_directory=OPEN \\",
    "#   dataset_type=synthetic steps=10",
    "base_config: \"base.yml\"",
];

/// Writes the settings of a plan as YAML, one per line. Lines that begin with `#` hold the launch, and name parts for
/// which MaxText has no setting.
///
/// # Errors
/// A model that none of MaxText's decoder blocks fits.
pub fn write_maxtext(recipe: &PlanRecipe<'_>) -> Result<EmittedPlan, Inexpressible> {
    let plan = &plan_by_policies(recipe);
    let (model, recipe) = (recipe.model, &PlanRecipe { plan, ..*recipe });
    let block = DecoderBlock::from_model(recipe)?;
    let mut settings = MaxTextSettings(recipe.push_comments(|framework| framework == Framework::MaxText));
    settings.0.lines.splice(0..0, HEAD.map(str::to_owned));
    settings.push_model_shape(model, plan);
    settings.push_decoder_block(model, recipe.numerics, block);
    settings.push_batch(model, plan);
    settings.push_mesh(recipe);
    settings.push_sharing(recipe);
    settings.push_numerics(recipe);
    settings.push_optimizer(plan);
    settings.push_techniques(plan);
    settings.push_activations(recipe, block);
    Ok(settings.0.into_text())
}

/// The decoder blocks of MaxText that models are written with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DecoderBlock {
    Llama,
    Mixtral,
    Gpt3,
}

impl DecoderBlock {
    fn from_model(recipe: &PlanRecipe<'_>) -> Result<Self, Inexpressible> {
        let model = recipe.model;
        let biased = model.qkv_bias || model.attention_output_bias || model.mlp_bias;
        let llama = model.position == PositionEncoding::Rotary && model.norm == Norm::RmsNorm && model.gated && !biased;
        let gpt3 = model.position != PositionEncoding::Rotary
            && model.norm == Norm::LayerNorm
            && !model.gated
            && model.mlp_bias;
        recipe.refuse_features("MaxText", &mixer_features(model))?;
        recipe.refuse_features(
            "MaxText",
            &[
                (!model.causal, "attention in both directions"),
                (model.norm_placement == NormPlacement::Post, "layers that normalise after their sums"),
                (model.embedding_width != model.hidden, "embeddings narrower than its layers"),
                (!model.norm_affine, "norms without parameters"),
                (llama && model.activation != ElementwiseFunction::Silu, "a gated MLP of another activation than SiLU"),
                (gpt3 && model.activation != ElementwiseFunction::Gelu, "an MLP of another activation than GELU"),
                (gpt3 && model.experts.is_some(), "experts with biases and LayerNorm"),
                (model.experts.is_some_and(|experts| experts.latent.is_some()), "experts on narrower vectors"),
                (!llama && !gpt3, "layers that are neither Llama's nor GPT-3's"),
                (model.norm_placement != NormPlacement::Pre, "norms elsewhere than before attention and MLP"),
                (model.position == PositionEncoding::Alibi, "positions by ALiBi"),
                (model.position == PositionEncoding::None, "attention without positions"),
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

/// Returns the axis of the data-parallel ranks: `fsdp` if they shard the weights, else `data`.
fn axis_of_data(plan: &TrainingPlan) -> &'static str {
    if plan.layout.zero == ZeroStage::Parameters { "fsdp" } else { "data" }
}

/// Returns the axes of the mesh with their degrees, innermost first.
fn mesh_axes(recipe: &PlanRecipe<'_>) -> Vec<(&'static str, u32)> {
    let l = &recipe.plan.layout;
    let copies = (l.data / l.expert.max(1)).max(1);
    let tensor = (if l.sequence_parallel { "tensor_sequence" } else { "tensor" }, l.tensor);
    // Hybrid sharding: `fsdp` shards the weights inside each copy, and `data` counts the copies.
    let whole = Some(state_copies(recipe.stack, recipe.fast_domain, l));
    let sharded = l.zero == ZeroStage::Parameters;
    let whole = whole.filter(|whole| sharded && *whole > 1 && copies.is_multiple_of(*whole));
    let data = (axis_of_data(recipe.plan), copies / whole.unwrap_or(1));
    let pipeline = ("pipeline", l.pipeline);
    let (context, expert) = (("context", l.context), ("expert", l.expert));
    let inner = match l.order {
        RankOrder::DataFirst => [tensor, context, expert, data],
        RankOrder::PipelineFirst => [tensor, context, pipeline, expert],
    };
    let whole = whole.map(|whole| ("data", whole));
    let outer = match l.order {
        RankOrder::DataFirst => [whole, Some(pipeline)],
        RankOrder::PipelineFirst => [Some(data), whole],
    };
    inner.into_iter().chain(outer.into_iter().flatten()).collect()
}

struct MaxTextSettings(EmittedLines);

impl MaxTextSettings {
    fn push_setting(&mut self, key: &str, value: impl Display) {
        self.0.push(format!("{key}: {value}"));
    }

    fn push_model_shape(&mut self, model: &Model, plan: &TrainingPlan) {
        self.push_setting("base_num_decoder_layers", model.layers);
        self.push_setting("base_emb_dim", model.hidden);
        self.push_setting("base_mlp_dim", model.ffn);
        self.push_setting("base_num_query_heads", model.heads);
        self.push_setting("base_num_kv_heads", model.kv_heads);
        self.push_setting("head_dim", model.head_dim);
        self.push_setting("vocab_size", model.padded_vocabulary(plan.layout.tensor));
        self.push_setting("max_target_length", plan.batch.sequence_length);
        if let Some(experts) = &model.experts {
            self.push_setting("num_experts", experts.count);
            self.push_setting("num_experts_per_tok", experts.top_k);
            self.push_setting("base_moe_mlp_dim", model.ffn);
            if let Some(groups) = experts.groups {
                self.push_setting("n_routing_groups", groups.count);
                self.push_setting("topk_routing_group", groups.chosen);
            }
            if let Some(factor) = experts.capacity_factor {
                self.push_setting("capacity_factor", factor);
                self.push_setting("sparse_matmul", false);
            }
        }
    }

    fn push_decoder_block(&mut self, model: &Model, numerics: ModelNumerics, block: DecoderBlock) {
        let (name, activations) = match block {
            DecoderBlock::Llama => ("llama2", "['silu','linear']"),
            DecoderBlock::Mixtral => ("mixtral", "['silu','linear']"),
            DecoderBlock::Gpt3 => ("gpt3", "['gelu']"),
        };
        self.push_setting("decoder_block", name);
        self.push_setting("mlp_activations", activations);
        self.push_setting("logits_via_embedding", model.tied_head);
        if let PositionEncoding::Learned { rows } = model.position {
            self.push_setting("trainable_position_size", rows);
            // This follows configs/models/gpt3-175b.yml: one product for queries, keys and values, and logits that are
            // not scaled.
            self.push_setting("fused_qkv", true);
            self.push_setting("normalize_embedding_logits", false);
        }
        match numerics.rotary_base.filter(|_| model.position == PositionEncoding::Rotary) {
            Some(base) => self.push_setting("rope_max_timescale", base),
            None => self.0.push_note(
                model.position == PositionEncoding::Rotary,
                "rope_max_timescale: the model's own (10000 where it is left out); it changes no time",
            ),
        }
        if let Some(epsilon) = numerics.norm_epsilon {
            self.push_setting("normalization_layer_epsilon", epsilon);
        }
        self.push_setting("enable_dropout", model.dropout.residual > 0.0);
        if model.dropout.residual > 0.0 {
            self.push_setting("dropout_rate", model.dropout.residual);
        }
    }

    fn push_batch(&mut self, model: &Model, plan: &TrainingPlan) {
        let l = &plan.layout;
        let micro_batches = plan.micro_batches();
        let accumulated = if l.pipeline == 1 { micro_batches } else { 1 };
        // MaxText counts the sequences of a step (or of a gradient-accumulation step) per device. The number may be a
        // fraction.
        self.push_setting(
            "per_device_batch_size",
            plan.batch.global_batch as f64 / (accumulated * l.device_count()) as f64,
        );
        if accumulated > 1 {
            self.push_setting("gradient_accumulation_steps", accumulated);
            let fp8 = plan.precision.product == Some(DataType::Fp8);
            self.0.push_lack(fp8, "fp8: MaxText refuses it beside gradient accumulation");
        }
        if l.pipeline > 1 {
            self.push_setting("num_pipeline_microbatches", micro_batches);
            self.push_setting("num_layers_per_pipeline_stage", model.layers.div_ceil(l.chunk_count()));
            if let (Some(split), false) =
                (l.chunk_split(model.layers).ok(), model.layers.is_multiple_of(l.chunk_count()) && l.ends.is_none())
            {
                self.0.push_lack(
                    true,
                    &format!("layers {split}: MaxText splits them evenly (coplace plan --layer-split even)"),
                );
            }
            let ragged = !micro_batches.is_multiple_of(l.pipeline.into());
            self.0.push_lack(ragged, "micro-batches: MaxText takes multiples of the stages only");
            let name = schedule_name(plan);
            let text = format!(
                "schedule {name}: MaxText runs all forward passes first, which keeps every micro-batch's activations \
                (coplace plan --schedule gpipe --virtual-stages 1)"
            );
            self.0.push_lack(plan.schedule != PipelineSchedule::GPipe, &text);
        }
    }

    /// Notes the parts of the layout for which MaxText's mesh has no axis.
    fn push_layout_lacks(&mut self, recipe: &PlanRecipe<'_>) {
        let l = &recipe.plan.layout;
        let ulysses = l.context > 1 && l.context_method == ContextMethod::Ulysses;
        self.0.push_lack(ulysses, "Ulysses: MaxText gathers keys and values instead");
        self.0.push_lack(!recipe.model.documents.is_empty(), DOCUMENTS);
        // Experts have their own axis, which is split off from the data-parallel ranks.
        let uneven = !l.data.is_multiple_of(l.expert.max(1));
        self.0.push_lack(
            uneven,
            "experts: MaxText takes their axis from the data-parallel ranks, which these do not divide",
        );
        self.0.push_lack(
            !uneven && l.expert_tensor.is_some(),
            "experts split over another width than the rest: MaxText uses one width for both",
        );
    }

    /// Sets the degrees of the axes inside a slice (`ici_`) and between slices (`dcn_`). The axes fill a slice from the
    /// innermost outwards.
    fn push_mesh(&mut self, recipe: &PlanRecipe<'_>) {
        self.push_layout_lacks(recipe);
        let sharding = axis_of_data(recipe.plan);
        let slices = recipe.plan.layout.device_count() > u64::from(recipe.fast_domain);
        let (mut left, mut straddles, mut outer) = (recipe.fast_domain, false, 1);
        for (axis, degree) in mesh_axes(recipe) {
            let inside = if slices { num_integer::gcd(degree, left) } else { degree };
            let between = degree / inside;
            straddles |= between > 1 && left != inside;
            left = if between > 1 { 1 } else { left / inside };
            if inside > 1 || axis == sharding {
                self.push_setting(&format!("ici_{axis}_parallelism"), inside);
            }
            if between > 1 {
                self.push_setting(&format!("dcn_{axis}_parallelism"), between);
                outer = if axis == "data" { between } else { outer };
            }
        }
        // By default, this axis would take all slices.
        if slices && outer == 1 {
            self.push_setting("dcn_data_parallelism", 1);
        }
        self.0.push_lack(
            straddles,
            &format!("slices of {}: an axis fills them unevenly, which MaxText's mesh cannot", recipe.fast_domain),
        );
    }

    fn push_sharing(&mut self, recipe: &PlanRecipe<'_>) {
        let l = &recipe.plan.layout;
        self.0.push_lack(
            l.context > 1 && l.zero != ZeroStage::Parameters,
            "whole weights beside context parallelism: MaxText shards weights over the devices of a sequence too \
             (base.yml, logical_axis_rules)",
        );
        if matches!(l.zero, ZeroStage::OptimizerStates | ZeroStage::Gradients) {
            self.push_setting("shard_optimizer_over_data", true);
            self.0.push_lack(
                l.zero == ZeroStage::Gradients,
                "ZeRO-2: MaxText shards optimizer states (ZeRO-1), or weights too (fsdp)",
            );
            let copies = state_copies(recipe.stack, recipe.fast_domain, l) > 1;
            self.0.push_lack(copies, "states: this plan shares them inside a slice, MaxText over all of the data axis");
        }
    }

    fn push_numerics(&mut self, recipe: &PlanRecipe<'_>) {
        let (plan, tpu) = (recipe.plan, recipe.chip.starts_with("tpu"));
        self.push_setting("hardware", if tpu { "tpu" } else { "gpu" });
        self.push_setting(
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
        self.push_setting("dtype", name(plan.precision.operand));
        self.push_setting("weight_dtype", name(plan.precision.master.unwrap_or(plan.precision.operand)));
        match plan.precision.product {
            Some(DataType::Fp8) => self.push_setting("quantization", "fp8"),
            Some(DataType::Int8) => self.push_setting("quantization", "int8"),
            _ => {}
        }
        if let Some(why) = Framework::MaxText.why_product_not_trained(plan.precision.product) {
            self.0.push_lack(true, &why);
        }
    }

    fn push_optimizer(&mut self, plan: &TrainingPlan) {
        match plan.optimizer {
            Optimizer::Adam => self.push_setting("opt_type", "adamw"),
            Optimizer::Sgd => self.push_setting("opt_type", "sgd"),
            Optimizer::Muon => self.push_setting("opt_type", "muon"),
            Optimizer::Momentum => self
                .0
                .push_lack(true, "optimizer momentum: MaxText has adamw, adam_pax, sgd (without momentum) and muon"),
            Optimizer::Adafactor => {
                self.0.push_lack(true, "optimizer adafactor: MaxText has adamw, adam_pax, sgd and muon")
            }
            Optimizer::Adam8bit => {
                self.0.push_lack(true, "optimizer adam8bit: MaxText has adamw, adam_pax, sgd and muon")
            }
        }
    }

    fn push_techniques(&mut self, plan: &TrainingPlan) {
        for technique in plan.techniques.iter() {
            self.0.push_lack(true, &format!("technique {technique}: no setting of MaxText is written for it"));
        }
    }

    fn push_activations(&mut self, recipe: &PlanRecipe<'_>, block: DecoderBlock) {
        let (model, plan) = (recipe.model, recipe.plan);
        let none = BTreeSet::new();
        let Some(policy) = plan.activations.uniform_policy() else {
            return self.0.push_lack(true, "recompute by stage: MaxText has one policy for all layers");
        };
        match policy {
            ActivationPolicy::None => {
                // MaxText wraps every layer in jax.remat, and no version has a policy `none`.
                self.push_setting("remat_policy", "minimal_with_context");
                self.0.push_lack(
                    true,
                    "recompute none: MaxText's nearest policy keeps all products and attention's result, and \
                    recomputes the rest",
                );
            }
            ActivationPolicy::Full => self.push_setting("remat_policy", "full"),
            ActivationPolicy::Named { policy, offloaded } => {
                let tensors: BTreeSet<NamedTensor> = policy.kept_tensor_names().iter().copied().collect();
                match policy_name(*policy, *offloaded) {
                    Some(name) => self.push_setting("remat_policy", name),
                    None if *offloaded => self.push_custom_policy(model, block, &tensors, &none),
                    None => self.push_custom_policy(model, block, &none, &tensors),
                }
            }
            ActivationPolicy::Custom { host, device } => self.push_custom_policy(model, block, host, device),
            other => match find_maxtext_names(recipe, other) {
                None => self.0.push_lack(true, &format!("recompute {other}: MaxText has no policy of this kind")),
                Some(PolicyNames { words: [host, device], otherwise }) => {
                    self.push_custom_policy(model, block, &host, &device);
                    let lost = otherwise.join(", ");
                    self.0.push_lack(
                        !otherwise.is_empty(),
                        &format!("recompute {other}: MaxText has no name for {lost}"),
                    );
                }
            },
        }
    }

    fn push_custom_policy(
        &mut self,
        model: &Model,
        block: DecoderBlock,
        host: &BTreeSet<NamedTensor>,
        device: &BTreeSet<NamedTensor>,
    ) {
        self.push_setting("remat_policy", "custom");
        for (tensors, place) in [(host, "offload"), (device, "device")] {
            for name in tensors.iter().flat_map(|tensor| own_names(*tensor, model, block)) {
                self.push_setting(&name, place);
            }
        }
    }
}

/// Returns the policies for which MaxText has a name.
#[must_use]
pub fn maxtext_policies() -> Vec<ActivationPolicy> {
    let all = [false, true]
        .into_iter()
        .flat_map(|offloaded| NamedPolicy::all_policies().map(move |policy| (policy, offloaded)));
    let own = all.filter(|(policy, offloaded)| policy_name(*policy, *offloaded).is_some());
    let of_name = |(policy, offloaded)| ActivationPolicy::Named { policy, offloaded };
    [ActivationPolicy::Full].into_iter().chain(own.map(of_name)).collect()
}

/// Returns the other decisions that MaxText supports: equal stages, all forward passes first, sharded optimizer states
/// (or weights too: fsdp, also with pipelines), gathered keys and values.
#[must_use]
pub fn maxtext_choices() -> PlanSpace {
    PlanSpace {
        splits: Some(Splits::Listed(vec![None])),
        schedules: Some(vec![PipelineSchedule::GPipe]),
        zero: Some(vec![ZeroStage::None, ZeroStage::OptimizerStates, ZeroStage::Parameters]),
        context_methods: Some(vec![ContextMethod::Ring]),
        ..PlanSpace::default()
    }
}

/// Returns MaxText's name of a policy; `None` if it has none.
fn policy_name(policy: NamedPolicy, offloaded: bool) -> Option<&'static str> {
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
        // These names come from Paxml.
        (NamedPolicy::SaveDotExceptLogits | NamedPolicy::SaveDotExceptLogitsFfn1, false) | (_, true) => None,
    }
}

/// Returns the names of a tensor in MaxText's layers. Projections have separate names except in GPT-3. The first two
/// products of a gated MLP and the experts have their own names.
fn own_names(tensor: NamedTensor, model: &Model, block: DecoderBlock) -> Vec<String> {
    let names: &[&str] = match tensor {
        NamedTensor::QkvProj if block != DecoderBlock::Gpt3 => &["query_proj", "key_proj", "value_proj"],
        NamedTensor::Mlpwi if model.gated => &["mlpwi_0", "mlpwi_1"],
        NamedTensor::Mlpwi0 if !model.gated => &["mlpwi"],
        _ => return vec![is_in_experts(&tensor.to_string(), block)],
    };
    names.iter().map(|name| is_in_experts(name, block)).collect()
}

fn is_in_experts(name: &str, block: DecoderBlock) -> String {
    if block == DecoderBlock::Mixtral && name.starts_with("mlp") { format!("moe_{name}") } else { name.to_owned() }
}
