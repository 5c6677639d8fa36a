//! Activation policies in the segments of the embedding and of the head, whose leading and trailing layers follow them as the others do.

use super::tensor_names::by_name;
use super::{ActivationPolicy, NamedTensor, Replay, Treatment, everything, keeping, per_operator, without_attention_core};
use crate::graph::{OperatorGraph, TensorId};
use crate::layer_names::{handed_on, in_layer};
use std::collections::BTreeSet;

/// The tensors of the embedding's segment that every policy keeps: all that is not made inside a leading layer, and what each of these hands on.
fn outside_layers(graph: &OperatorGraph) -> BTreeSet<TensorId> {
    let made_by = |t: &TensorId| graph.tensors[t.index()].producer.map(|op| &graph.operators[op.index()]);
    let unlayered = graph.tensors.iter().map(|t| t.id).filter(|t| made_by(t).is_some_and(|op| !in_layer(op)));
    unlayered.chain(handed_on(graph)).collect()
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
            Self::Tensors(places) => {
                device.extend(by_name(graph, &places.device).union(&by_name(graph, &places.away())));
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
