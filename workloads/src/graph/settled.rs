//! Tensor placements that memory techniques fix for a segment.

use super::{OperatorGraph, TensorId};
use serde::{Deserialize, Serialize};
use sim::units::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// Unit of a partial offload's share: one millionth.
pub(crate) const WHOLE: u64 = 1_000_000;

/// Placements that techniques have fixed for a segment's tensors, for every policy of the plan.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TensorPlacements {
    /// Tensors that are not kept; their producers make them again.
    pub rebuilt: BTreeSet<TensorId>,
    /// Tensors that are offloaded entirely.
    pub away: BTreeSet<TensorId>,
    /// Tensors that are offloaded for a share of their tokens.
    pub partly: Option<PartialOffload>,
    /// True if offloaded tensors go to storage instead of host memory.
    pub nvme: bool,
    /// Layers per device whose tensors are never offloaded, because their backward pass follows at once or their
    /// buffers exist anyway.
    pub buffered_layers: u64,
    /// True if offloaded tensors return one by one, each as another is freed; otherwise a whole layer's return while
    /// another layer's are read.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_tensor: bool,
    /// Number of slices of each tensor that exists slice by slice.
    pub slices: BTreeMap<TensorId, u64>,
}

/// Tensors of which a share is offloaded.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartialOffload {
    /// The tensors.
    pub tensors: BTreeSet<TensorId>,
    /// The offloaded share of their tokens, in millionths.
    pub millionths: u32,
    /// True if the other tokens are dropped and recomputed, not kept.
    pub recomputed: bool,
}

impl PartialOffload {
    /// Returns the offloaded share of the tokens.
    #[must_use]
    pub fn offloaded_fraction(&self) -> f64 {
        f64::from(self.millionths) / WHOLE as f64
    }

    /// Returns the offloaded part of `bytes`.
    pub fn offloaded_bytes(&self, bytes: Bytes) -> Bytes {
        Bytes((u128::from(bytes.0) * u128::from(self.millionths)).div_ceil(u128::from(WHOLE)) as u64)
    }

    /// Returns the bytes that are not offloaded.
    pub(crate) fn remaining_bytes(&self, graph: &OperatorGraph) -> Bytes {
        let all: Bytes = self.tensors.iter().map(|t| graph.tensors[t.index()].bytes).sum();
        all.saturating_sub(self.offloaded_bytes(all))
    }

    /// Returns the bytes that stay on the device.
    pub(crate) fn resident_bytes(&self, graph: &OperatorGraph) -> Bytes {
        if self.recomputed { Bytes::ZERO } else { self.remaining_bytes(graph) }
    }
}

impl TensorPlacements {
    /// Returns whether no placement is fixed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rebuilt.is_empty() && self.away.is_empty() && self.partly.is_none() && self.slices.is_empty()
    }

    /// Returns the bytes of a tensor while its block runs: one slice of it if it is sliced.
    pub(crate) fn bytes_at_work(&self, tensor: TensorId, bytes: Bytes) -> Bytes {
        match self.slices.get(&tensor) {
            None => bytes,
            Some(slices) => Bytes(bytes.0.div_ceil((*slices).max(1))),
        }
    }
}
