//! TorchTitan's `.toml`. Source: `torchtitan/config/job_config.py` of pytorch/torchtitan (2025).

use super::kept::plan_by_policies;
use super::{DOCUMENTS, EmittedLines, EmittedPlan, Inexpressible, PlanRecipe};
use crate::answer::plan::schedule_name;
use search::planner::{PlanSpace, Splits};
use sim::kernel::DataType;
use std::fmt::Display;
use step::{Framework, TORCHTITAN_MODELS, TORCHTITAN_SCHEDULES, state_copies};
use workloads::footprint::Optimizer;
use workloads::training::{Attention, ContextMethod};
use workloads::{ActivationPolicy, Model, RankOrder, ZeroStage};

/// Writes a plan as TorchTitan's configuration. Comments name the parts for which TorchTitan has no key.
///
/// # Errors
/// A model whose shape is none of TorchTitan's flavours.
pub fn write_torchtitan(recipe: &PlanRecipe<'_>) -> Result<EmittedPlan, Inexpressible> {
    let plan = &plan_by_policies(recipe);
    let recipe = &PlanRecipe { plan, ..*recipe };
    let known = TORCHTITAN_MODELS.iter().find(|(.., built_in)| has_shape_of(recipe.model, built_in));
    recipe.refuse_features("TorchTitan", &[(known.is_none(), "a shape that none of its flavours has")])?;
    let (name, flavor) = known.map_or(("", ""), |(name, flavor, _)| (name, flavor));
    let lines = recipe.push_comments(|framework| framework == Framework::TorchTitan);
    let mut out = TorchTitanTables(lines);
    let fp8 = plan.precision.product == Some(DataType::Fp8);
    out.push_table("model");
    out.push_text("name", name);
    out.push_text("flavor", flavor);
    if fp8 {
        out.0.push("converters = [\"float8\"]".to_owned());
    }
    if let Some(why) = Framework::TorchTitan.why_product_not_trained(plan.precision.product) {
        out.0.push_lack(true, &why);
    }
    out.0.push_lack(plan.precision.product == Some(DataType::Mxfp8), "products in mxfp8: no key is written for them");
    out.0.push_lack(plan.precision.operand != DataType::Bf16, "number formats: TorchTitan trains in bf16");
    out.push_batch(recipe);
    out.push_parallelism(recipe);
    out.push_activations(recipe);
    out.push_table("compile");
    out.push("enable", recipe.stack.kernels.elementwise_fusion);
    if let Some(scales) = recipe.stack.framework.fp8_recipe.as_deref().filter(|_| fp8) {
        out.push_table("quantize.linear.float8");
        out.push_text("recipe_name", scales);
    }
    out.push_table("optimizer");
    out.push_text("name", "AdamW");
    out.0.push_lack(plan.optimizer != Optimizer::Adam, "optimizer: TorchTitan has Adam and AdamW");
    out.0.push_lack(!recipe.model.documents.is_empty(), DOCUMENTS);
    out.0.push_lack(plan.attention != Attention::Fused, "attention operator by operator: TorchTitan's is fused");
    for technique in plan.techniques.iter() {
        out.0.push_lack(true, &format!("technique {technique}: no key of TorchTitan is written for it"));
    }
    Ok(out.0.into_text())
}

/// True if a model equals a built-in one, apart from its name and its longest sequence.
fn has_shape_of(model: &Model, built_in: &str) -> bool {
    let same = |known: Model| Model { name: model.name.clone(), max_sequence: model.max_sequence, ..known } == *model;
    Model::load(built_in).is_ok_and(same)
}

/// Returns the decisions that TorchTitan supports: FSDP2 (ZeRO-2 and ZeRO-3), ring attention, sequence parallelism,
/// stages of equal layers, and data-parallel ranks before the pipeline.
#[must_use]
pub fn torchtitan_choices() -> PlanSpace {
    PlanSpace {
        splits: Some(Splits::Listed(vec![None])),
        zero: Some(vec![ZeroStage::Gradients, ZeroStage::Parameters]),
        context_methods: Some(vec![ContextMethod::Ring]),
        orders: Some(vec![RankOrder::DataFirst]),
        sequence_parallel: Some(vec![true]),
        ..PlanSpace::default()
    }
}

struct TorchTitanTables(EmittedLines);

impl TorchTitanTables {
    fn push_table(&mut self, name: &str) {
        self.0.push(format!("[{name}]"));
    }

    fn push(&mut self, key: &str, value: impl Display) {
        self.0.push(format!("{key} = {value}"));
    }

    fn push_text(&mut self, key: &str, value: &str) {
        self.0.push(format!("{key} = \"{value}\""));
    }

    fn push_batch(&mut self, recipe: &PlanRecipe<'_>) {
        let (plan, layout) = (recipe.plan, &recipe.plan.layout);
        // With a pipeline, a rank's batch of a step is cut into micro-batches. Without one, gradients are accumulated.
        let local = match layout.pipeline {
            1 => plan.batch.micro_batch,
            _ => plan.batch.micro_batch * plan.micro_batches(),
        };
        self.push_table("training");
        self.push("local_batch_size", local);
        self.push("global_batch_size", plan.batch.global_batch);
        self.push("seq_len", plan.batch.sequence_length);
        self.push("steps", 50);
    }

    fn push_parallelism(&mut self, recipe: &PlanRecipe<'_>) {
        let layout = &recipe.plan.layout;
        let copies = match layout.zero {
            ZeroStage::None => layout.data,
            _ => state_copies(recipe.stack, recipe.fast_domain, layout).min(layout.data).max(1),
        };
        self.push_table("parallelism");
        self.push("data_parallel_replicate_degree", copies);
        self.push("data_parallel_shard_degree", layout.data / copies);
        if layout.zero == ZeroStage::Gradients {
            self.push_text("fsdp_reshard_after_forward", "never");
        }
        self.0.push_lack(
            matches!(layout.zero, ZeroStage::None | ZeroStage::OptimizerStates),
            "ZeRO-0 and ZeRO-1: TorchTitan shards by FSDP2, which is ZeRO-2 or ZeRO-3",
        );
        self.push("tensor_parallel_degree", layout.tensor);
        if layout.tensor > 1 && recipe.stack.overlap.tensor > 0.0 {
            self.push("enable_async_tensor_parallel", true);
        }
        self.0.push_lack(
            layout.tensor > 1 && !layout.sequence_parallel,
            "tensor parallelism without sequence parallelism: TorchTitan always splits both",
        );
        self.push("context_parallel_degree", layout.context);
        self.0.push_lack(
            layout.context > 1 && layout.context_method == ContextMethod::Ulysses,
            "Ulysses: TorchTitan's context parallelism passes keys and values around",
        );
        if recipe.model.experts.is_some() {
            self.push("expert_parallel_degree", layout.expert);
            self.0.push_lack(layout.expert_tensor.is_some(), "experts split over another width than the rest");
        }
        self.push("pipeline_parallel_degree", layout.pipeline);
        if layout.pipeline > 1 {
            self.push_pipeline(recipe);
        }
    }

    fn push_pipeline(&mut self, recipe: &PlanRecipe<'_>) {
        let (plan, layout) = (recipe.plan, &recipe.plan.layout);
        self.push("pipeline_parallel_microbatch_size", plan.batch.micro_batch);
        let asked = (plan.schedule.without_chunks(), layout.virtual_stages);
        let schedule = TORCHTITAN_SCHEDULES.iter().find(|(_, known, chunks)| (*known, *chunks) == asked);
        match schedule {
            Some((schedule, ..)) => self.push_text("pipeline_parallel_schedule", schedule),
            None => self.0.push_lack(
                true,
                &format!(
                    "schedule {} with {} chunks: written for one chunk, or two interleaved",
                    schedule_name(plan),
                    layout.virtual_stages
                ),
            ),
        }
        self.push("pipeline_parallel_first_stage_less_layers", 0);
        self.push("pipeline_parallel_last_stage_less_layers", 0);
        let even = layout.ends.is_none() && recipe.model.layers.is_multiple_of(layout.chunk_count());
        self.0.push_lack(!even, "layers that the stages do not share evenly (coplace plan --layer-split even)");
        self.0.push_lack(layout.order == RankOrder::PipelineFirst, "ranks with the stages of a copy side by side");
    }

    fn push_activations(&mut self, recipe: &PlanRecipe<'_>) {
        self.push_table("activation_checkpoint");
        match recipe.plan.activations.uniform_policy() {
            Some(ActivationPolicy::None) => self.push_text("mode", "none"),
            Some(ActivationPolicy::Full) => self.push_text("mode", "full"),
            Some(ActivationPolicy::SelectivePerOperator) => {
                self.push_text("mode", "selective");
                self.push_text("selective_ac_option", "op");
            }
            other => {
                let named = other.map_or_else(|| "by stage".to_owned(), ToString::to_string);
                self.0.push_lack(
                    true,
                    &format!("recompute {named}: TorchTitan has none, full and selective per operator"),
                );
            }
        }
    }
}
