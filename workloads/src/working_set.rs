//! What one piece's passes hold besides what is kept from forward to backward: the working set of a segment.

use crate::graph::{OpId, OperatorGraph};
use crate::layer_names::layer_of;
use crate::recompute_policy::Treatment;
use sim::units::Bytes;

impl Treatment {
    /// Most bytes alive at once in the backward pass of one piece besides what is kept on the device, operators running in order: what was
    /// rebuilt or brought back from the host, each until the last backward chain that reads it; gradients from their first contribution
    /// to their producer's backward pass; a further contribution to a gradient until it is added; workspaces. Everything rebuilt is there
    /// when the backward pass of its layer starts, as a checkpointed region leaves it.
    #[must_use]
    pub fn backward_bytes(&self, graph: &OperatorGraph) -> Bytes {
        let mut readers = vec![usize::MAX; graph.tensors.len()];
        // Running backwards, the first operator in order is the last to read.
        for op in graph.operators.iter().rev() {
            for read in op.backward.iter().flat_map(|chain| &chain.reads) {
                readers[read.index()] = op.id.index();
            }
        }
        let moved = |t: &&crate::graph::TensorInfo| !self.kept.contains(&t.id) && readers[t.id.index()] != usize::MAX;
        // Slices share what is differentiated: all of it is rebuilt, however their gradients come.
        let size = |t: &crate::graph::TensorInfo| self.absent_bytes(t);
        // Layers of a block are rebuilt one after the other.
        let layer = |op: usize| layer_of(&graph.operators[op].name);
        let region = |t: &crate::graph::TensorInfo| layer(t.producer.map_or(readers[t.id.index()], OpId::index));
        let rebuilt: Vec<(usize, Option<&str>, Bytes)> =
            graph.tensors.iter().filter(moved).map(|t| (readers[t.id.index()], region(t), size(t))).collect();
        let gradient = |t: &crate::graph::TensorInfo| graph.settled.at_work(t.id, t.gradient_bytes);
        // What comes back from the host only to be recomputed from is there from the start to the end.
        let sources = self.offloaded.iter().filter(|t| readers[t.index()] == usize::MAX);
        let fixed: Bytes = sources.map(|t| graph.tensors[t.index()].bytes).sum();
        let mut gradients = vec![false; graph.tensors.len()];
        gradients[graph.output.index()] = true;
        let mut peak = Bytes::ZERO;
        for op in graph.operators.iter().rev() {
            // An operator without a backward pass (a conversion) hands no gradient on.
            let given = if op.backward.is_empty() { &[][..] } else { &op.inputs[..] };
            let further: Bytes = given.iter().filter(|t| gradients[t.index()]).map(|t| gradient(&graph.tensors[t.index()])).sum();
            given.iter().for_each(|t| gradients[t.index()] = true);
            let held: Bytes = graph.tensors.iter().filter(|t| gradients[t.id.index()]).map(gradient).sum::<Bytes>() + further;
            let here = layer_of(&op.name);
            let waits = |last: usize, region: Option<&str>| last <= op.id.index() && (region == here || layer(last) == here);
            let waiting: Bytes = rebuilt.iter().filter(|(last, region, _)| waits(*last, *region)).map(|(.., bytes)| *bytes).sum();
            peak = peak.max(held + waiting + op.workspace);
            op.outputs.iter().for_each(|t| gradients[t.index()] = false);
        }
        peak + fixed
    }

    /// Most bytes alive at once in either pass of one piece besides what is kept on the device.
    #[must_use]
    pub fn transient_bytes(&self, graph: &OperatorGraph) -> Bytes {
        let mut held = self.kept.clone();
        held.extend(&self.offloaded);
        graph.forward_bytes(|t| held.contains(&t)).max(self.backward_bytes(graph))
    }
}
