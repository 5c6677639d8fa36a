//! What memory techniques have settled about a segment's tensors.

use super::{OperatorGraph, TensorId};
use serde::{Deserialize, Serialize};
use sim::units::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// Parts in a whole of what goes away by a share.
pub(crate) const WHOLE: u64 = 1_000_000;

/// What has been settled about a segment's tensors, whatever policy the plan has.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Settled {
    /// Not kept: made again by the operators that made them.
    pub rebuilt: BTreeSet<TensorId>,
    /// Sent away whole.
    pub away: BTreeSet<TensorId>,
    /// Sent away for a part of their tokens.
    pub partly: Option<PartialOffload>,
    /// Whether what goes away goes to storage, not to the host's memory.
    pub nvme: bool,
    /// Layers of every device whose tensors never go away, because their backward pass follows at once or their buffers are there anyway.
    pub buffered_layers: u64,
    /// Into how many slices a tensor is cut that exists slice by slice.
    pub slices: BTreeMap<TensorId, u64>,
}

/// Tensors of which a part goes away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PartialOffload {
    /// The tensors.
    pub tensors: BTreeSet<TensorId>,
    /// The part of their tokens that goes, in millionths.
    pub millionths: u32,
    /// Whether the others are dropped and made again, not kept.
    pub recomputed: bool,
}

impl PartialOffload {
    /// The part of the tokens that goes away.
    #[must_use]
    pub fn offloaded_fraction(&self) -> f64 {
        f64::from(self.millionths) / WHOLE as f64
    }

    /// Of so many bytes, those that go away.
    pub fn offloaded_bytes(&self, bytes: Bytes) -> Bytes {
        Bytes((u128::from(bytes.0) * u128::from(self.millionths)).div_ceil(u128::from(WHOLE)) as u64)
    }

    /// Bytes that do not go away.
    pub(crate) fn remaining_bytes(&self, graph: &OperatorGraph) -> Bytes {
        let all: Bytes = self.tensors.iter().map(|t| graph.tensors[t.index()].bytes).sum();
        all.saturating_sub(self.offloaded_bytes(all))
    }

    /// Of these, those that stay.
    pub(crate) fn resident_bytes(&self, graph: &OperatorGraph) -> Bytes {
        if self.recomputed { Bytes::ZERO } else { self.remaining_bytes(graph) }
    }
}

impl Settled {
    /// Whether nothing is settled.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rebuilt.is_empty() && self.away.is_empty() && self.partly.is_none() && self.slices.is_empty()
    }

    /// What a tensor of so many bytes takes while its block runs.
    pub(crate) fn bytes_at_work(&self, tensor: TensorId, bytes: Bytes) -> Bytes {
        match self.slices.get(&tensor) {
            None => bytes,
            Some(slices) => Bytes(bytes.0.div_ceil((*slices).max(1))),
        }
    }
}
