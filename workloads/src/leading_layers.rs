//! Layers in the segment of the embedding: the leading ones that have an MLP in place of experts. They follow activation policies as other layers do.

use crate::graph::{OperatorGraph, OperatorNode, TensorId};
use crate::recompute_policy::{
    ActivationPolicy, NamedTensor, Replay, Treatment, everything, keeping, per_operator, without_attention_core,
};
use crate::tensor_names::by_name;
use std::collections::BTreeSet;

/// What the names of leading layers begin with, before their number.
pub(crate) const LEADING_LAYER: &str = "leading_layer_";

/// What the names of the graph's layers begin with: the one of a layer's segment, and the leading ones that are with the embedding.
pub(crate) fn layers_in(graph: &OperatorGraph) -> Vec<String> {
    if graph.tensor("layer.input").is_some() {
        return vec!["layer".to_owned()];
    }
    let names: BTreeSet<&str> = graph.operators.iter().filter_map(|op| op.name.split('.').next()).collect();
    names.into_iter().filter(|name| name.starts_with(LEADING_LAYER)).map(str::to_owned).collect()
}

/// Whether an operator belongs to a layer.
pub(crate) fn in_layer(op: &OperatorNode) -> bool {
    op.name.starts_with("layer.") || op.name.starts_with(LEADING_LAYER)
}

/// The tensors of the embedding's segment that every policy keeps: all that is not made inside a leading layer, and what each of these hands on.
fn outside_layers(graph: &OperatorGraph) -> BTreeSet<TensorId> {
    let layer = |op: &OperatorNode| op.name.split('.').next().map(str::to_owned);
    let made_by = |t: &TensorId| graph.tensors[t.index()].producer.map(|op| &graph.operators[op.index()]);
    let unlayered = graph.tensors.iter().map(|t| t.id).filter(|t| made_by(t).is_some_and(|op| !in_layer(op)));
    let handed = graph
        .operators
        .iter()
        .flat_map(|op| op.inputs.iter().filter(move |t| made_by(t).is_some_and(|maker| layer(maker) != layer(op))).copied());
    unlayered.chain(handed).collect()
}

impl ActivationPolicy {
    /// What it means for the embedding's segment where leading layers are in it.
    pub(crate) fn of_leading_layers(&self, graph: &OperatorGraph, replay: Replay) -> Treatment {
        let none = BTreeSet::new();
        let mut device = outside_layers(graph);
        let named: Vec<NamedTensor> = match self {
            Self::None => return keeping(graph, &everything(graph), &none),
            Self::Selective => return without_attention_core(graph, replay),
            Self::SelectivePerOperator => {
                device.extend(per_operator(graph));
                Vec::new()
            }
            Self::Full => Vec::new(),
            Self::Named { policy, .. } => policy.tensors().to_vec(),
            Self::Custom { host, device } => host.union(device).copied().collect(),
            Self::Tensors { host, device: kept } => {
                device.extend(by_name(graph, kept).union(&by_name(graph, host)));
                Vec::new()
            }
        };
        device.extend(named.into_iter().flat_map(|t| t.resolve(graph)));
        let mut treatment = keeping(graph, &device, &none);
        if *self == Self::Full && replay == Replay::WholeRegion {
            treatment.recompute = graph.operators.iter().filter(|op| in_layer(op)).map(|op| op.id).collect();
        }
        treatment
    }
}
