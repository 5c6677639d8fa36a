//! The layers that a segment's operators belong to, by name. The layer segment holds one layer or a block of layers.
//! The embedding and head segments hold leading and trailing layers.

use crate::graph::{OperatorGraph, OperatorNode, TensorId};
use sim::units::Bytes;
use std::collections::BTreeSet;

/// Prefix of a leading layer's name, before its number.
pub(crate) const LEADING_LAYER: &str = "leading_layer_";

/// Prefix of a trailing layer's name, before its number.
pub(crate) const TRAILING_LAYER: &str = "trailing_layer_";

/// Returns the layer that a name belongs to, such as `layer`, `layer.3` in a block, `leading_layer_2` or
/// `trailing_layer_0`; `None` outside layers.
pub(crate) fn layer_of_name(name: &str) -> Option<&str> {
    let (first, rest) = name.split_once('.')?;
    if first == "layer" {
        let number = rest.split('.').next().filter(|part| part.parse::<u32>().is_ok());
        return Some(&name[..number.map_or(first.len(), |number| first.len() + 1 + number.len())]);
    }
    (first.starts_with(LEADING_LAYER) || first.starts_with(TRAILING_LAYER)).then_some(first)
}

/// Returns the name of an operator or tensor without its layer's prefix; `None` outside layers.
pub(crate) fn name_within_layer(name: &str) -> Option<&str> {
    name.strip_prefix(layer_of_name(name)?)?.strip_prefix('.')
}

/// Returns the name prefixes of the graph's layers, in order. In the layer segment they are the layer or a block's
/// layers; in the other segments they are the leading or trailing layers.
pub(crate) fn layer_prefixes(graph: &OperatorGraph) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    let own = graph.find_tensor("layer.input").is_some();
    let of_segment = |layer: &&str| own == (layer.split('.').next() == Some("layer"));
    for layer in graph.operators.iter().filter_map(|op| op.layer.as_deref()).filter(of_segment) {
        if names.last().is_none_or(|last| last != layer) {
            names.push(layer.to_owned());
        }
    }
    names
}

/// Returns the tensors that one layer makes and an operator outside that layer reads. Every policy keeps them like a
/// layer's input.
pub(crate) fn block_boundary_tensors(graph: &OperatorGraph) -> BTreeSet<TensorId> {
    let made_by = |t: &TensorId| graph.tensors[t.index()].producer.map(|op| &graph.operators[op.index()]);
    let crosses = |op: &OperatorNode, t: &TensorId| {
        made_by(t).is_some_and(|maker| maker.layer.is_some() && maker.layer != op.layer)
    };
    graph.operators.iter().flat_map(|op| op.inputs.iter().filter(|t| crosses(op, t)).copied()).collect()
}

/// Returns the tensors with a gradient that enter a layer of the graph: an operator of the layer reads them, and no
/// operator of that layer makes them.
pub(crate) fn layer_input_tensors(graph: &OperatorGraph) -> BTreeSet<TensorId> {
    let maker =
        |t: &TensorId| graph.tensors[t.index()].producer.and_then(|op| graph.operators[op.index()].layer.as_deref());
    let has_gradient = |t: &&TensorId| graph.tensors[t.index()].gradient_bytes > Bytes::ZERO;
    let layered = graph.operators.iter().filter_map(|op| Some((op.layer.as_deref()?, op)));
    layered
        .flat_map(|(layer, op)| op.inputs.iter().filter(has_gradient).filter(move |t| maker(t) != Some(layer)))
        .copied()
        .collect()
}
