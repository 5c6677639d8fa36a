//! The working set of a segment: the memory of one piece's passes besides the tensors kept from forward to backward.

use crate::graph::{OpId, OperatorGraph, TensorId};
use crate::recompute_policy::Treatment;
use sim::units::Bytes;
use std::collections::BTreeSet;

/// The time at which a piece frees the tensors kept for its backward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Release {
    /// All tensors after the piece's backward pass.
    AtTheEnd,
    /// Each tensor after the last operator that reads it, as automatic differentiation does when it saves tensors per
    /// operator. Tensors that a recomputation reads are held to the end.
    BehindReaders,
}

impl Treatment {
    /// Returns the most bytes alive at once in the backward pass of one piece, besides what is kept on the device.
    /// Operators run in order. Counted are:
    ///
    /// - rebuilt or fetched tensors, each until the last backward chain that reads it;
    /// - gradients, from their first contribution to their producer's backward pass;
    /// - a further contribution to a gradient, until it is added;
    /// - workspaces.
    ///
    /// All rebuilt tensors of a layer exist when the backward pass of the layer starts, as after a checkpointed region.
    /// Kept tensors that are already freed are subtracted.
    #[must_use]
    pub fn peak_backward_bytes(&self, graph: &OperatorGraph, release: Release) -> Bytes {
        let mut readers = vec![usize::MAX; graph.tensors.len()];
        // The backward pass runs in reverse, so the last reader is the operator with the smallest index.
        for op in graph.operators.iter().rev() {
            for read in op.backward.iter().flat_map(|chain| &chain.reads) {
                readers[read.index()] = op.id.index();
            }
        }
        let moved = |t: &&crate::graph::TensorInfo| !self.kept.contains(&t.id) && readers[t.id.index()] != usize::MAX;
        // Rebuilt tensors are counted whole, even if their gradients exist slice by slice.
        let size = |t: &crate::graph::TensorInfo| self.absent_bytes(t);
        // Layers of a block are rebuilt one after the other.
        let layer = |op: usize| graph.operators[op].layer.as_deref();
        let region = |t: &crate::graph::TensorInfo| layer(t.producer.map_or(readers[t.id.index()], OpId::index));
        let rebuilt: Vec<(usize, Option<&str>, Bytes)> =
            graph.tensors.iter().filter(moved).map(|t| (readers[t.id.index()], region(t), size(t))).collect();
        let gradient = |t: &crate::graph::TensorInfo| graph.settled.bytes_at_work(t.id, t.gradient_bytes);
        // Tensors fetched from the host only as sources of a recomputation stay from start to end.
        let sources = self.offloaded.iter().filter(|t| readers[t.index()] == usize::MAX);
        let fixed: Bytes = sources.map(|t| graph.tensors[t.index()].bytes).sum();
        let released = self.released_after(graph, &readers, release);
        let mut gradients = vec![false; graph.tensors.len()];
        gradients[graph.output.index()] = true;
        let mut peak = Bytes::ZERO;
        for op in graph.operators.iter().rev() {
            // An operator without a backward pass (a conversion) passes on no gradient.
            let given = if op.backward.is_empty() { &[][..] } else { &op.inputs[..] };
            let further: Bytes =
                given.iter().filter(|t| gradients[t.index()]).map(|t| gradient(&graph.tensors[t.index()])).sum();
            given.iter().for_each(|t| gradients[t.index()] = true);
            let held: Bytes =
                graph.tensors.iter().filter(|t| gradients[t.id.index()]).map(gradient).sum::<Bytes>() + further;
            let here = op.layer.as_deref();
            let waits =
                |last: usize, region: Option<&str>| last <= op.id.index() && (region == here || layer(last) == here);
            let waiting: Bytes =
                rebuilt.iter().filter(|(last, region, _)| waits(*last, *region)).map(|(.., bytes)| *bytes).sum();
            let free: Bytes = released.iter().filter(|(last, _)| *last > op.id.index()).map(|(_, bytes)| *bytes).sum();
            peak = peak.max((held + waiting + op.workspace).saturating_sub(free));
            op.outputs.iter().for_each(|t| gradients[t.index()] = false);
        }
        peak + fixed
    }

    /// Returns the kept tensors that are freed before the pass ends: (index of the last reader, bytes).
    fn released_after(&self, graph: &OperatorGraph, readers: &[usize], release: Release) -> Vec<(usize, Bytes)> {
        if release == Release::AtTheEnd {
            return Vec::new();
        }
        let again = |op: &&crate::graph::OperatorNode| self.recompute.contains(op.id);
        let sources: BTreeSet<TensorId> =
            graph.operators.iter().filter(again).flat_map(|op| op.inputs.iter().copied()).collect();
        let read = |t: &&TensorId| readers[t.index()] != usize::MAX && !sources.contains(t);
        self.kept.iter().filter(read).map(|t| (readers[t.index()], graph.tensors[t.index()].bytes)).collect()
    }

    /// Returns the most bytes alive at once in either pass of one piece, besides the tensors kept on the device. With
    /// [`Release::BehindReaders`], the forward pass also subtracts the kept tensors that later operators make.
    #[must_use]
    pub fn transient_bytes(&self, graph: &OperatorGraph, release: Release) -> Bytes {
        let mut held = self.kept.clone();
        held.extend(&self.offloaded);
        let made = |t: &TensorId| graph.tensors[t.index()].producer.map(|op| (op, graph.tensors[t.index()].bytes));
        let coming: Vec<(OpId, Bytes)> = match release {
            Release::AtTheEnd => Vec::new(),
            Release::BehindReaders => self.kept.iter().filter_map(made).collect(),
        };
        let absent = |at: OpId| coming.iter().filter(|(op, _)| *op > at).map(|(_, bytes)| *bytes).sum();
        graph.peak_forward_bytes(|t| held.contains(&t), absent).max(self.peak_backward_bytes(graph, release))
    }
}
