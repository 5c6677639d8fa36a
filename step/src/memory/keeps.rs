//! The tensors that layers keep, by place and by stage: device, host, storage, or recomputed.

use crate::pipeline::arrangement::Arrangement;
use crate::{SoftwareStack, StepError, TrainingPlan, lowering_of_plan};
use sim::units::Bytes;
use workloads::graph::OperatorGraph;
use workloads::{ActivationPolicy, Model, SegmentKind, TensorId, TrainingGraph};

/// A tensor's name in the layer, and its bytes on one device for one micro-batch.
pub type NamedBytes = (String, Bytes);

/// Tensors that some layers of a stage keep for their backward passes.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerKeeps {
    /// Number of these layers on the stage.
    pub layers: u64,
    /// Their policy.
    pub policy: ActivationPolicy,
    /// Tensors that stay on the device.
    pub device: Vec<NamedBytes>,
    /// Tensors offloaded to the host.
    pub host: Vec<NamedBytes>,
    /// Tensors offloaded to storage.
    pub storage: Vec<NamedBytes>,
    /// Recomputed tensors that backward passes read.
    pub rebuilt: Vec<NamedBytes>,
    /// Recomputed operators.
    pub again: Vec<String>,
}

/// Returns the tensors that the layers of every stage keep, by policy, with the plan's techniques applied. A technique
/// may leave its last layers in device buffers; these layers count like the others.
///
/// # Errors
/// A plan that the model cannot be lowered for, a technique that cannot be used, layers that do not divide, or mixes
/// with other numbers of layers than the chunks.
pub fn layer_keeps_by_stage(
    model: &Model,
    plan: &TrainingPlan,
    stack: &SoftwareStack,
) -> Result<Vec<Vec<LayerKeeps>>, StepError> {
    let split = plan.layout.chunk_split(model.layers)?;
    plan.activations.check_layer_counts(&split)?;
    let arrangement = Arrangement::new(plan.layout, split, plan.schedule, plan.micro_batches());
    let training = TrainingGraph::new(model, &lowering_of_plan(model, plan, stack))?;
    let training = plan.techniques.apply_to_graph(model, training, plan.micro_batches())?;
    let Some(layer) = training.segment(SegmentKind::Layer) else { return Ok(Vec::new()) };
    let policies = plan.activations.distinct_policies();
    let each: Vec<LayerKeeps> = policies.iter().map(|policy| layer_keeps(&layer.graph, policy, stack)).collect();
    let stage = |stage: u32| {
        let known = each.iter().map(|keeps| LayerKeeps {
            layers: count_layers_with_policy(plan, &arrangement, stage, &keeps.policy),
            ..keeps.clone()
        });
        known.filter(|keeps| keeps.layers > 0).collect()
    };
    Ok((0..plan.layout.pipeline).map(stage).collect())
}

/// Returns the number of a stage's layers that follow `policy`.
pub(crate) fn count_layers_with_policy(
    plan: &TrainingPlan,
    arrangement: &Arrangement,
    stage: u32,
    policy: &ActivationPolicy,
) -> u64 {
    let Some(chunks) = plan.activations.chunk_mixes() else { return arrangement.layers_on_device(stage) };
    let here = chunks.iter().enumerate().filter(|(place, _)| arrangement.device_of_chunk(*place as u64) == stage);
    here.flat_map(|(_, mix)| mix).filter(|run| run.policy == *policy).map(|run| run.layers).sum()
}

fn layer_keeps(graph: &OperatorGraph, policy: &ActivationPolicy, stack: &SoftwareStack) -> LayerKeeps {
    let treatment = policy.treatment_with_extent(graph, stack.replay_extent());
    let short = |name: &str| name.strip_prefix("layer.").unwrap_or(name).to_owned();
    // The part of a partly offloaded tensor that stays on the device.
    let staying = |id: &TensorId| {
        let partly = treatment.partly.as_ref().filter(|partly| !partly.recomputed && partly.tensors.contains(id))?;
        graph.tensors.get(id.index()).map(|t| t.bytes.saturating_sub(partly.offloaded_bytes(t.bytes)))
    };
    let named = |id: &TensorId, less: Bytes| {
        graph.tensors.get(id.index()).map(|t| (short(&t.name), t.bytes.saturating_sub(less)))
    };
    let whole = |id: &TensorId| named(id, Bytes::ZERO);
    let partial = |id: &TensorId| {
        let partly = treatment.partly.as_ref().filter(|partly| partly.tensors.contains(id))?;
        graph.tensors.get(id.index()).map(|t| t.bytes.saturating_sub(partly.offloaded_bytes(t.bytes)))
    };
    let moved = |id: &TensorId| named(id, partial(id).unwrap_or_default());
    // The part of a partly offloaded tensor that is recomputed.
    let again_rest =
        |id: &TensorId| partial(id).filter(|_| staying(id).is_none()).and_then(|rest| Some((whole(id)?.0, rest)));
    let rest = |id: &TensorId| Some((whole(id)?.0, staying(id)?));
    let hosted = treatment.offloaded.difference(&treatment.stored);
    let elsewhere = |id: &TensorId| treatment.kept.contains(id) || treatment.offloaded.contains(id);
    let rebuilt = graph.tensors.iter().filter(|t| t.saved && !elsewhere(&t.id));
    let again = treatment.recompute.iter().filter_map(|op| graph.operators.get(op.index()));
    LayerKeeps {
        layers: 0,
        policy: policy.clone(),
        device: treatment.kept.iter().filter_map(whole).chain(treatment.offloaded.iter().filter_map(rest)).collect(),
        host: hosted.filter_map(moved).collect(),
        storage: treatment.stored.iter().filter_map(moved).collect(),
        rebuilt: rebuilt
            .map(|t| (short(&t.name), t.bytes))
            .chain(treatment.offloaded.iter().filter_map(again_rest))
            .collect(),
        again: again.map(|op| short(&op.name)).collect(),
    }
}
