//! What techniques have settled about a segment's activations, and what a policy makes of it.

use super::policy::{Away, Rest};
use crate::graph::{OperatorGraph, TensorId, TensorInfo};
use crate::recompute_policy::{Treatment, keeping};
use serde::{Deserialize, Serialize};
use sim::units::Bytes;
use std::collections::{BTreeMap, BTreeSet};

/// Parts in a whole of what goes away by a share.
const WHOLE: u64 = 1_000_000;

/// What has been settled about a segment's tensors, whatever policy the plan has.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Settled {
    /// Not kept: made again by the operators that made them.
    pub rebuilt: BTreeSet<TensorId>,
    /// Sent away whole.
    pub away: BTreeSet<TensorId>,
    /// Sent away for a part of their tokens.
    pub partly: Option<Partly>,
    /// Whether what goes away goes to storage, not to the host's memory.
    pub nvme: bool,
    /// Layers of every device whose tensors never go away, because their backward pass follows at once or their buffers are there anyway.
    pub buffered_layers: u64,
    /// Into how many slices a tensor is cut that exists slice by slice.
    pub slices: BTreeMap<TensorId, u64>,
}

/// Tensors of which a part goes away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Partly {
    /// The tensors.
    pub tensors: BTreeSet<TensorId>,
    /// The part of their tokens that goes, in millionths.
    pub millionths: u32,
    /// Whether the others are dropped and made again, not kept.
    pub recomputed: bool,
}

impl Partly {
    /// Of tensors.
    #[must_use]
    pub fn new(tensors: BTreeSet<TensorId>, fraction: f64, rest: Rest) -> Self {
        Self {
            tensors,
            millionths: (fraction.clamp(0.0, 1.0) * WHOLE as f64).round() as u32,
            recomputed: rest == Rest::Recomputed,
        }
    }

    /// The part of the tokens that goes away.
    #[must_use]
    pub fn fraction(&self) -> f64 {
        f64::from(self.millionths) / WHOLE as f64
    }

    /// Bytes that do not go away.
    pub(crate) fn not_moved(&self, graph: &OperatorGraph) -> Bytes {
        let all = Treatment::bytes(graph, &self.tensors);
        all.saturating_sub(part(all, self.millionths))
    }

    /// Of these, those that stay.
    pub(crate) fn staying(&self, graph: &OperatorGraph) -> Bytes {
        if self.recomputed { Bytes::ZERO } else { self.not_moved(graph) }
    }
}

fn part(bytes: Bytes, millionths: u32) -> Bytes {
    Bytes((u128::from(bytes.0) * u128::from(millionths)).div_ceil(u128::from(WHOLE)) as u64)
}

impl Settled {
    /// Whether nothing is settled.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rebuilt.is_empty() && self.away.is_empty() && self.partly.is_none() && self.slices.is_empty()
    }

    /// Where what goes away goes.
    #[must_use]
    pub fn to(&self) -> Away {
        if self.nvme { Away::Nvme } else { Away::Host }
    }

    /// What a tensor of so many bytes takes while its block runs.
    pub(crate) fn at_work(&self, tensor: TensorId, bytes: Bytes) -> Bytes {
        match self.slices.get(&tensor) {
            None => bytes,
            Some(slices) => Bytes(bytes.0.div_ceil((*slices).max(1))),
        }
    }
}

impl Treatment {
    /// What a policy means where techniques have settled something.
    pub(crate) fn settled(self, graph: &OperatorGraph) -> Self {
        let settled = &graph.settled;
        let none = BTreeSet::new();
        let partial = settled.partly.as_ref().map_or(&none, |partly| &partly.tensors);
        let held = |t: &&TensorId| !settled.rebuilt.contains(t);
        let goes = |t: &&TensorId| settled.away.contains(t) || partial.contains(t);
        let device: BTreeSet<TensorId> = self.kept.iter().filter(|t| held(t) && !goes(t)).copied().collect();
        let mut host: BTreeSet<TensorId> = self.offloaded.iter().filter(held).copied().collect();
        host.extend(self.kept.iter().filter(|t| held(t) && goes(t)).copied());
        let mut all = keeping(graph, &device, &host);
        let moved: BTreeSet<TensorId> = partial.iter().filter(|t| all.offloaded.contains(t)).copied().collect();
        let Some(partly) = settled.partly.as_ref().filter(|_| !moved.is_empty()) else { return all };
        if partly.recomputed {
            // What the tokens that stay need to run again.
            let whole: BTreeSet<TensorId> = host.difference(partial).copied().collect();
            all.recompute = keeping(graph, &device, &whole).recompute;
        }
        all.partly = Some(Partly { tensors: moved, ..partly.clone() });
        all
    }

    /// The part of the tokens for which what runs again does.
    #[must_use]
    pub fn recomputed_share(&self) -> f64 {
        self.partly.as_ref().filter(|partly| partly.recomputed).map_or(1.0, |partly| 1.0 - partly.fraction())
    }

    /// Bytes of a tensor that a backward pass has to have brought back or rebuilt: all but what has stayed of it.
    pub(crate) fn absent_bytes(&self, tensor: &TensorInfo) -> Bytes {
        match &self.partly {
            Some(partly) if !partly.recomputed && partly.tensors.contains(&tensor.id) => part(tensor.bytes, partly.millionths),
            _ => tensor.bytes,
        }
    }
}
