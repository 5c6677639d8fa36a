//! Tensor placements that memory techniques fix in a segment.

use super::{OperatorGraph, TensorId};
use serde::{Deserialize, Serialize};
use sim::units::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// The whole of a tensor in millionths, the unit of a partial offload's share.
pub(crate) const WHOLE: u64 = 1_000_000;

/// Placements of a segment's tensors that techniques have fixed, whatever policy the plan follows.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct TensorPlacements {
    /// Tensors that are not kept; their producers run again.
    pub rebuilt: BTreeSet<TensorId>,
    /// Tensors that are offloaded entirely.
    pub away: BTreeSet<TensorId>,
    /// Tensors of which a share of the tokens is offloaded; `None` without such tensors.
    pub partly: Option<PartialOffload>,
    /// True if offloaded tensors go to storage instead of host memory.
    pub nvme: bool,
    /// Number of layers per device whose tensors are never offloaded, because their backward pass follows at once or
    /// buffers for them exist anyway.
    pub buffered_layers: u64,
    /// True if offloaded tensors return one by one, each as another is freed. Otherwise all tensors of one layer return
    /// while another layer's are read.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub by_tensor: bool,
    /// Number of slices of each tensor that exists slice by slice.
    pub slices: BTreeMap<TensorId, u64>,
}

/// Tensors that are offloaded in part.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartialOffload {
    /// The tensors.
    pub tensors: BTreeSet<TensorId>,
    /// The offloaded share of their tokens, in millionths.
    pub millionths: u32,
    /// True if the other tokens are recomputed instead of kept.
    pub recomputed: bool,
}

impl PartialOffload {
    /// Returns the offloaded share of the tokens, from 0 to 1.
    #[must_use]
    pub fn offloaded_fraction(&self) -> f64 {
        f64::from(self.millionths) / WHOLE as f64
    }

    /// Returns the offloaded part of `bytes`, rounded up.
    pub fn offloaded_bytes(&self, bytes: Bytes) -> Bytes {
        Bytes((u128::from(bytes.0) * u128::from(self.millionths)).div_ceil(u128::from(WHOLE)) as u64)
    }

    /// Returns the bytes of these tensors that are not offloaded.
    pub(crate) fn remaining_bytes(&self, graph: &OperatorGraph) -> Bytes {
        let all: Bytes = self.tensors.iter().map(|t| graph.tensors[t.index()].bytes).sum();
        all.saturating_sub(self.offloaded_bytes(all))
    }

    /// Returns the bytes of these tensors that stay on the device from forward to backward: none if they are
    /// recomputed.
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

    /// Returns the bytes of a tensor while its operators run: one slice if it is sliced.
    pub(crate) fn bytes_at_work(&self, tensor: TensorId, bytes: Bytes) -> Bytes {
        match self.slices.get(&tensor) {
            None => bytes,
            Some(slices) => Bytes(bytes.0.div_ceil((*slices).max(1))),
        }
    }
}
