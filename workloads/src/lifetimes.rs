//! Lifetimes of all tensors in a piece's passes, except those kept from forward to backward. They are the input of an
//! address planner.

use crate::graph::{OperatorGraph, TensorInfo};
use crate::recompute_policy::Treatment;
use sim::units::Bytes;

/// A span of memory that is needed over consecutive operators of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lifetime {
    /// Size in bytes.
    pub bytes: Bytes,
    /// Index of the first operator that needs the memory, in the order of the pass.
    pub from: u32,
    /// Index of the first operator that no longer needs the memory.
    pub until: u32,
}

impl Lifetime {
    /// Returns the lifetime of `bytes` from operator `from` until before operator `until`. `None` without bytes or
    /// operators.
    fn new(bytes: Bytes, from: usize, until: usize) -> Option<Self> {
        let moment = |at: usize| u32::try_from(at).unwrap_or(u32::MAX);
        (bytes > Bytes::ZERO && from < until).then(|| Self { bytes, from: moment(from), until: moment(until) })
    }
}

impl Treatment {
    /// Returns the lifetimes of the forward pass and of the backward pass, each in the order of its pass. Rebuilt
    /// tensors live from the start of the backward pass. With at most one layer, the peak is
    /// [`Treatment::transient_bytes`] with [`crate::Release::AtTheEnd`]; with several layers it may be higher.
    #[must_use]
    pub fn lifetimes(&self, graph: &OperatorGraph) -> [Vec<Lifetime>; 2] {
        [self.forward_lifetimes(graph), self.backward_lifetimes(graph)]
    }

    fn forward_lifetimes(&self, graph: &OperatorGraph) -> Vec<Lifetime> {
        let end = graph.operators.len();
        let mut spans: Vec<Option<(usize, usize)>> = vec![None; graph.tensors.len()];
        for op in &graph.operators {
            let at = op.id.index();
            for tensor in op.inputs.iter().chain(&op.outputs) {
                let (from, _) = spans[tensor.index()].unwrap_or((at, at));
                spans[tensor.index()] = Some((from, at + 1));
            }
        }
        if let Some((_, until)) = &mut spans[graph.output.index()] {
            *until = end;
        }
        let held = |t: &TensorInfo| self.kept.contains(&t.id) || self.offloaded.contains(&t.id);
        let tensors = graph.tensors.iter().filter(|t| !held(t)).filter_map(|t| {
            let (from, until) = spans[t.id.index()]?;
            Lifetime::new(graph.settled.bytes_at_work(t.id, t.bytes), from, until)
        });
        let work =
            graph.operators.iter().filter_map(|op| Lifetime::new(op.workspace, op.id.index(), op.id.index() + 1));
        tensors.chain(work).collect()
    }

    fn backward_lifetimes(&self, graph: &OperatorGraph) -> Vec<Lifetime> {
        let end = graph.operators.len();
        let step = |op: usize| end - 1 - op;
        let mut read_until = vec![0; graph.tensors.len()];
        for op in graph.operators.iter().rev() {
            for read in op.backward.iter().flat_map(|chain| &chain.reads) {
                read_until[read.index()] = step(op.id.index()) + 1;
            }
        }
        let mut all: Vec<Lifetime> = Vec::new();
        let rebuilt = graph.tensors.iter().filter(|t| !self.kept.contains(&t.id));
        all.extend(rebuilt.filter_map(|t| Lifetime::new(self.absent_bytes(t), 0, read_until[t.id.index()])));
        let sources = self.offloaded.iter().filter(|t| read_until[t.index()] == 0);
        all.extend(sources.filter_map(|t| Lifetime::new(graph.tensors[t.index()].bytes, 0, end)));
        let gradient = |t: usize| graph.settled.bytes_at_work(graph.tensors[t].id, graph.tensors[t].gradient_bytes);
        let mut since: Vec<Option<usize>> = vec![None; graph.tensors.len()];
        since[graph.output.index()] = Some(0);
        for op in graph.operators.iter().rev() {
            let at = step(op.id.index());
            all.extend(Lifetime::new(op.workspace, at, at + 1));
            if !op.backward.is_empty() {
                for input in op.inputs.iter().map(|t| t.index()) {
                    match since[input] {
                        // A second contribution to a gradient is a separate tensor until it is added.
                        Some(_) => all.extend(Lifetime::new(gradient(input), at, at + 1)),
                        None => since[input] = Some(at),
                    }
                }
            }
            for output in op.outputs.iter().map(|t| t.index()) {
                all.extend(since[output].take().and_then(|from| Lifetime::new(gradient(output), from, at + 1)));
            }
        }
        let left = since.iter().enumerate().filter_map(|(t, since)| Lifetime::new(gradient(t), (*since)?, end));
        all.extend(left);
        all
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::{ActivationPolicy, Lowering, Model, Release, SegmentKind, TrainingGraph};

    #[test]
    fn the_most_alive_at_once_is_the_working_set() {
        for name in ["llama3-8b", "gpt3-175b", "mixtral-8x7b"] {
            let model = Model::load(name).unwrap();
            for fused in [true, false] {
                let lowering = Lowering {
                    tensor_parallel: 2,
                    sequence_parallel: fused,
                    elementwise_fusion: fused,
                    ..Lowering::new(&model)
                };
                let graph = TrainingGraph::new(&model, &lowering).unwrap();
                let layer = &graph.segment(SegmentKind::Layer).unwrap().graph;
                for policy in
                    ["none", "selective", "full", "minimal_offloaded", "custom:offload(context)+device(mlpwi)"]
                {
                    let treatment = policy.parse::<ActivationPolicy>().unwrap().treatment_of_segment(layer);
                    let live = |pass: &[Lifetime], at: u32| {
                        pass.iter().filter(|l| l.from <= at && at < l.until).map(|l| l.bytes).sum::<Bytes>()
                    };
                    let steps = layer.operators.len() as u32;
                    let passes = treatment.lifetimes(layer);
                    let most = passes.iter().flat_map(|pass| (0..steps).map(|at| live(pass, at)));
                    assert_eq!(
                        most.max().unwrap(),
                        treatment.transient_bytes(layer, Release::AtTheEnd),
                        "{name} {policy}"
                    );
                }
            }
        }
    }
}
