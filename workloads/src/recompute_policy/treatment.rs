//! A policy applied to one segment: the place of each tensor between the passes, and the operators to recompute.

use super::keep_tensors;
use crate::graph::{OpId, OperatorGraph, PartialOffload, RecomputeSet, TensorId};
use serde::{Deserialize, Serialize};
use sim::units::Bytes;
use std::collections::BTreeSet;

/// A policy's decisions for the tensors and operators of one segment.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Treatment {
    /// Operators that are recomputed in the backward pass.
    pub recompute: RecomputeSet,
    /// Tensors kept on the device from forward to backward.
    pub kept: BTreeSet<TensorId>,
    /// Tensors that move to host memory or storage after the forward pass, and back before the backward pass.
    pub offloaded: BTreeSet<TensorId>,
    /// The part of `offloaded` that goes to storage.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub stored: BTreeSet<TensorId>,
    /// The part of `offloaded` of which only a share of the tokens moves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partly: Option<PartialOffload>,
    /// Operators that are recomputed for all tokens, if other operators are recomputed only for the tokens that are not
    /// offloaded. Empty without such other operators.
    #[serde(default, skip_serializing_if = "RecomputeSet::is_empty")]
    pub throughout: RecomputeSet,
}

impl Treatment {
    pub(crate) fn sum_bytes<'a>(graph: &OperatorGraph, tensors: impl IntoIterator<Item = &'a TensorId>) -> Bytes {
        tensors.into_iter().filter_map(|t| graph.tensors.get(t.index())).map(|t| t.bytes).sum()
    }

    /// Recomputes the tokens of `partly`'s tensors that are not offloaded, and keeps the tensors that this needs.
    /// `device` lists the tensors kept on the device, and `whole` those offloaded entirely.
    pub(crate) fn recompute_remainder(
        mut self,
        graph: &OperatorGraph,
        device: &BTreeSet<TensorId>,
        whole: &BTreeSet<TensorId>,
        partly: PartialOffload,
    ) -> Self {
        let rest = keep_tensors(graph, device, whole);
        self.throughout = std::mem::replace(&mut self.recompute, rest.recompute);
        self.kept.extend(rest.kept);
        self.offloaded.extend(rest.offloaded);
        self.partly = Some(partly);
        self
    }

    /// Returns the share of the tokens, from 0 to 1, for which an operator of [`Self::recompute`] is recomputed.
    #[must_use]
    pub fn recomputed_token_fraction(&self, operator: OpId) -> f64 {
        match &self.partly {
            Some(partly) if partly.recomputed && !self.throughout.contains(operator) => {
                1.0 - partly.offloaded_fraction()
            }
            _ => 1.0,
        }
    }

    /// Returns the bytes kept on the device per piece and micro-batch in flight.
    #[must_use]
    pub fn kept_bytes(&self, graph: &OperatorGraph) -> Bytes {
        Self::sum_bytes(graph, &self.kept)
            + self.partly.as_ref().map_or(Bytes::ZERO, |partly| partly.resident_bytes(graph))
    }

    /// Returns the bytes moved to host memory or storage per piece and micro-batch; the same bytes move back.
    #[must_use]
    pub fn offloaded_bytes(&self, graph: &OperatorGraph) -> Bytes {
        let whole = Self::sum_bytes(graph, &self.offloaded);
        self.partly.as_ref().map_or(whole, |partly| whole.saturating_sub(partly.remaining_bytes(graph)))
    }

    /// Returns the part of [`Self::offloaded_bytes`] that goes to storage.
    #[must_use]
    pub fn stored_bytes(&self, graph: &OperatorGraph) -> Bytes {
        if self.stored == self.offloaded {
            return self.offloaded_bytes(graph);
        }
        let whole = Self::sum_bytes(graph, &self.stored);
        self.partly.as_ref().map_or(whole, |partly| {
            let tensors = partly.tensors.intersection(&self.stored).copied().collect();
            whole.saturating_sub(PartialOffload { tensors, ..partly.clone() }.remaining_bytes(graph))
        })
    }

    /// Returns the bytes of the next piece that return while one piece's backward pass runs: all of its offloaded
    /// bytes. If tensors return one by one, it is the largest tensor's bytes.
    #[must_use]
    pub fn returning_bytes(&self, graph: &OperatorGraph) -> Bytes {
        if !graph.settled.by_tensor {
            return self.offloaded_bytes(graph);
        }
        let part = |tensor: &TensorId, bytes: Bytes| match &self.partly {
            Some(partly) if partly.tensors.contains(tensor) => partly.offloaded_bytes(bytes),
            _ => bytes,
        };
        let tensors = self.offloaded.iter().filter_map(|t| Some(part(t, graph.tensors.get(t.index())?.bytes)));
        tensors.max().unwrap_or_default()
    }

    /// Returns the bytes that one piece's backward pass holds besides [`Self::kept_bytes`]: the tensors that it
    /// rebuilds or fetches.
    #[must_use]
    pub fn rebuilt_bytes(&self, graph: &OperatorGraph) -> Bytes {
        let rebuilt =
            graph.tensors.iter().filter(|t| t.saved && !self.kept.contains(&t.id) && !self.offloaded.contains(&t.id));
        let rest = self
            .partly
            .as_ref()
            .filter(|partly| partly.recomputed)
            .map_or(Bytes::ZERO, |partly| partly.remaining_bytes(graph));
        rebuilt.map(|t| t.bytes).sum::<Bytes>() + self.offloaded_bytes(graph) + rest
    }
}
