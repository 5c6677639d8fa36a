//! A plan's model as graphs of operators, in the form of the stack's framework.

use crate::{SoftwareStack, StepError, TrainingPlan};
use std::borrow::Cow;
use workloads::memory::TrainingQuantities;
use workloads::model::Experts;
use workloads::training::Attention;
use workloads::{Lowering, Model, TrainingGraph};

/// Returns a model lowered for a plan, with its memory techniques applied.
///
/// # Errors
/// A plan that the model cannot be lowered for; techniques that are incompatible with the plan, with each other or with
/// the recomputation.
pub fn lower_plan(model: &Model, plan: &TrainingPlan, stack: &SoftwareStack) -> Result<TrainingGraph, StepError> {
    let lowering = lowering_of_plan(model, plan, stack);
    let graph = TrainingGraph::new(&with_expert_imbalance(model, plan, stack), &lowering)?;
    let mut graph = plan.techniques.apply_to_graph(model, graph, plan.micro_batches())?;
    plan.activations
        .distinct_policies()
        .into_iter()
        .try_for_each(|policy| plan.techniques.check_policy(policy, &graph, stack.replay_extent()))?;
    if let Some(applied) = &mut graph.applied {
        applied.notes.extend(
            plan.techniques.describe_replica_limits(&TrainingQuantities::new(model, &lowering), plan.layout.data)?,
        );
    }
    Ok(graph)
}

/// Returns the model with the stack's imbalance of experts. The model stays unchanged without expert parallelism,
/// without imbalance, or with a capacity limit.
fn with_expert_imbalance<'m>(model: &'m Model, plan: &TrainingPlan, stack: &SoftwareStack) -> Cow<'m, Model> {
    let factor = stack.kernels.expert_imbalance;
    match model.experts {
        Some(experts) if factor > 1.0 && plan.layout.expert > 1 && experts.capacity_factor.is_none() => {
            let most = (experts.count as f64 / experts.top_k.max(1) as f64).max(1.0);
            let experts = Some(Experts { imbalance: Some(factor.min(most)), ..experts });
            Cow::Owned(Model { experts, ..model.clone() })
        }
        _ => Cow::Borrowed(model),
    }
}

/// Returns the lowering of a plan under a stack.
#[must_use]
pub fn lowering_of_plan(model: &Model, plan: &TrainingPlan, stack: &SoftwareStack) -> Lowering {
    Lowering {
        micro_batch: plan.batch.micro_batch,
        sequence_length: plan.batch.sequence_length,
        tensor_parallel: plan.layout.tensor,
        sequence_parallel: plan.layout.sequence_parallel && plan.layout.tensor > 1,
        context_parallel: plan.layout.context,
        context_method: plan.layout.context_method,
        expert_parallel: plan.layout.expert,
        expert_tensor_parallel: plan.layout.expert_tensor_degree(),
        expert_all_gather: stack.kernels.expert_all_gather,
        expert_deduplicated: stack.kernels.expert_deduplicated,
        attention: if plan.layout.context > 1 { Attention::Fused } else { plan.attention },
        precision: plan.precision,
        optimizer: plan.optimizer,
        elementwise_fusion: stack.kernels.elementwise_fusion,
        composed_layers: stack.kernels.composed_layers,
        separate_projections: stack.kernels.separate_projections,
        cached_conversions: stack.kernels.cached_conversions,
        weighted_experts: stack.kernels.weighted_experts,
        separate_accumulation: stack.kernels.separate_accumulation && plan.micro_batches() > 1,
        fused_loss: stack.kernels.fused_loss,
        loss: stack.kernels.loss,
        vocabulary_multiple: stack.kernels.vocabulary_multiple.into(),
        wide_adapters: stack.kernels.wide_adapters,
        autocast: stack.kernels.autocast,
        ..Lowering::new(model)
    }
}
