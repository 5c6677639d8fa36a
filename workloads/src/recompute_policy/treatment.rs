//! What a policy means for one segment: where each tensor is between the passes, and what runs again.

use crate::graph::{OperatorGraph, Partly, RecomputeSet, TensorId};
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
    pub partly: Option<Partly>,
}

impl Treatment {
    pub(crate) fn bytes<'a>(graph: &OperatorGraph, tensors: impl IntoIterator<Item = &'a TensorId>) -> Bytes {
        tensors.into_iter().filter_map(|t| graph.tensors.get(t.index())).map(|t| t.bytes).sum()
    }

    /// Bytes kept on the device per piece and micro-batch in flight.
    #[must_use]
    pub fn kept_bytes(&self, graph: &OperatorGraph) -> Bytes {
        Self::bytes(graph, &self.kept) + self.partly.as_ref().map_or(Bytes::ZERO, |partly| partly.staying(graph))
    }

    /// Bytes moved to the host and to storage, and back, per piece and micro-batch.
    #[must_use]
    pub fn offloaded_bytes(&self, graph: &OperatorGraph) -> Bytes {
        let whole = Self::bytes(graph, &self.offloaded);
        self.partly.as_ref().map_or(whole, |partly| whole.saturating_sub(partly.not_moved(graph)))
    }

    /// Of [`Self::offloaded_bytes`] those to storage.
    #[must_use]
    pub fn stored_bytes(&self, graph: &OperatorGraph) -> Bytes {
        if self.stored == self.offloaded {
            return self.offloaded_bytes(graph);
        }
        let whole = Self::bytes(graph, &self.stored);
        self.partly.as_ref().map_or(whole, |partly| {
            let tensors = partly.tensors.intersection(&self.stored).copied().collect();
            whole.saturating_sub(Partly { tensors, ..partly.clone() }.not_moved(graph))
        })
    }

    /// Bytes that one piece's backward pass holds besides what is kept on the device: what it reads and was rebuilt, or brought back
    /// from the host.
    #[must_use]
    pub fn rebuilt_bytes(&self, graph: &OperatorGraph) -> Bytes {
        let rebuilt = graph.tensors.iter().filter(|t| t.saved && !self.kept.contains(&t.id) && !self.offloaded.contains(&t.id));
        rebuilt.map(|t| t.bytes).sum::<Bytes>() + self.offloaded_bytes(graph)
    }
}
