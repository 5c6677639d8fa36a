//! What a policy means for one segment: where each tensor is between the passes, and what runs again.

use super::keep_tensors;
use crate::graph::{OpId, OperatorGraph, PartialOffload, RecomputeSet, TensorId};
use serde::{Deserialize, Serialize};
use sim::units::Bytes;
use std::collections::BTreeSet;

/// What a policy means for one segment.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Treatment {
    /// The operators to run again in the backward pass.
    pub recompute: RecomputeSet,
    /// Tensors kept on the device from forward to backward.
    pub kept: BTreeSet<TensorId>,
    /// Tensors moved to host memory or to storage after the forward pass and back before the backward pass.
    pub offloaded: BTreeSet<TensorId>,
    /// Of these, those in storage.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub stored: BTreeSet<TensorId>,
    /// Of these, those of which a part of the tokens only is moved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub partly: Option<PartialOffload>,
    /// Of the operators that run again those that do for all tokens, where others do only for the tokens that do not go away. Without such others it is
    /// empty.
    #[serde(default, skip_serializing_if = "RecomputeSet::is_empty")]
    pub throughout: RecomputeSet,
}

impl Treatment {
    pub(crate) fn sum_bytes<'a>(graph: &OperatorGraph, tensors: impl IntoIterator<Item = &'a TensorId>) -> Bytes {
        tensors.into_iter().filter_map(|t| graph.tensors.get(t.index())).map(|t| t.bytes).sum()
    }

    /// The same where the tokens of which `partly`'s tensors do not go away run again: what they need for it, and what is kept for that besides. `device`
    /// and `whole` are the tensors kept there, and those sent away whole.
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

    /// The part of the tokens for which an operator of [`Self::recompute`] runs again.
    #[must_use]
    pub fn recomputed_token_fraction(&self, operator: OpId) -> f64 {
        match &self.partly {
            Some(partly) if partly.recomputed && !self.throughout.contains(operator) => 1.0 - partly.offloaded_fraction(),
            _ => 1.0,
        }
    }

    /// Bytes kept on the device per piece and micro-batch in flight.
    #[must_use]
    pub fn kept_bytes(&self, graph: &OperatorGraph) -> Bytes {
        Self::sum_bytes(graph, &self.kept) + self.partly.as_ref().map_or(Bytes::ZERO, |partly| partly.resident_bytes(graph))
    }

    /// Bytes moved to the host and to storage, and back, per piece and micro-batch.
    #[must_use]
    pub fn offloaded_bytes(&self, graph: &OperatorGraph) -> Bytes {
        let whole = Self::sum_bytes(graph, &self.offloaded);
        self.partly.as_ref().map_or(whole, |partly| whole.saturating_sub(partly.remaining_bytes(graph)))
    }

    /// Of [`Self::offloaded_bytes`] those to storage.
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

    /// Bytes that one piece's backward pass holds besides what is kept on the device: what it reads and was rebuilt, or brought back
    /// from the host.
    #[must_use]
    pub fn rebuilt_bytes(&self, graph: &OperatorGraph) -> Bytes {
        let rebuilt = graph.tensors.iter().filter(|t| t.saved && !self.kept.contains(&t.id) && !self.offloaded.contains(&t.id));
        let rest =
            self.partly.as_ref().filter(|partly| partly.recomputed).map_or(Bytes::ZERO, |partly| partly.remaining_bytes(graph));
        rebuilt.map(|t| t.bytes).sum::<Bytes>() + self.offloaded_bytes(graph) + rest
    }
}
