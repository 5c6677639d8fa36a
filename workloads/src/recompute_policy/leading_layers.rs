//! Activation policies in the segments of the embedding and the head. Leading and trailing layers follow the policy
//! like all other layers.

use super::tensor_names::tensors_by_name;
use super::{
    ActivationPolicy, NamedTensor, ReplayExtent, Treatment, keep_everything, keep_per_operator, keep_tensors,
    recompute_attention_core,
};
use crate::graph::{OperatorGraph, TensorId};
use crate::layer_names::block_boundary_tensors;
use std::collections::BTreeSet;

/// Returns the tensors of an end segment that every policy keeps: those made outside its layers, and those that its
/// layers pass on.
fn tensors_outside_layers(graph: &OperatorGraph) -> BTreeSet<TensorId> {
    let made_by = |t: &TensorId| graph.tensors[t.index()].producer.map(|op| &graph.operators[op.index()]);
    let unlayered = graph.tensors.iter().map(|t| t.id).filter(|t| made_by(t).is_some_and(|op| op.layer.is_none()));
    unlayered.chain(block_boundary_tensors(graph)).collect()
}

impl ActivationPolicy {
    /// Returns the treatment of the embedding's or the head's segment, if it holds leading or trailing layers. Tensors
    /// that the policy offloads stay on the device.
    pub(crate) fn treatment_of_leading_layers(&self, graph: &OperatorGraph, replay: ReplayExtent) -> Treatment {
        let none = BTreeSet::new();
        let mut device = tensors_outside_layers(graph);
        let named: Vec<NamedTensor> = match self {
            Self::None => return keep_tensors(graph, &keep_everything(graph), &none),
            Self::Selective => return recompute_attention_core(graph, replay),
            Self::SelectivePerOperator => {
                device.extend(keep_per_operator(graph));
                Vec::new()
            }
            Self::Full => Vec::new(),
            Self::Named { policy, .. } => policy.kept_tensor_names().to_vec(),
            Self::Custom { host, device } => host.union(device).copied().collect(),
            Self::Tensors(places) => {
                device.extend(
                    tensors_by_name(graph, &places.device).union(&tensors_by_name(graph, &places.offloaded_names())),
                );
                Vec::new()
            }
        };
        device.extend(named.into_iter().flat_map(|t| t.resolve_tensors(graph)));
        let mut treatment = keep_tensors(graph, &device, &none);
        if *self == Self::Full && replay == ReplayExtent::WholeRegion {
            treatment.recompute = graph.operators.iter().filter(|op| op.layer.is_some()).map(|op| op.id).collect();
        }
        treatment
    }
}
