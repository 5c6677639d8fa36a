//! Combines a policy's treatment of a segment with the placements that techniques have fixed.

use super::activations::name_of_sampled;
use super::policy::RemainderTreatment;
use crate::graph::{OperatorGraph, PartialOffload, TensorId, TensorInfo, WHOLE};
use crate::recompute_policy::{Treatment, keep_tensors};
use sim::units::Bytes;
use std::collections::BTreeSet;

impl PartialOffload {
    /// Returns the offload of `fraction` of the tokens of `tensors`; the fraction is clamped to 0..1.
    #[must_use]
    pub fn new(tensors: BTreeSet<TensorId>, fraction: f64, rest: RemainderTreatment) -> Self {
        Self {
            tensors,
            millionths: (fraction.clamp(0.0, 1.0) * WHOLE as f64).round() as u32,
            recomputed: rest == RemainderTreatment::Recomputed,
        }
    }
}

impl Treatment {
    /// Returns the treatment with the placements that techniques have fixed for the graph.
    pub(crate) fn with_placements(self, graph: &OperatorGraph) -> Self {
        let settled = &graph.settled;
        let none = BTreeSet::new();
        let partial = settled.partly.as_ref().map_or(&none, |partly| &partly.tensors);
        let held = |t: &&TensorId| !settled.rebuilt.contains(t);
        let goes = |t: &&TensorId| settled.away.contains(t) || partial.contains(t);
        let device: BTreeSet<TensorId> = self.kept.iter().filter(|t| held(t) && !goes(t)).copied().collect();
        let mut host: BTreeSet<TensorId> = self.offloaded.iter().filter(held).copied().collect();
        host.extend(self.kept.iter().filter(|t| held(t) && goes(t)).copied());
        let mut all = keep_tensors(graph, &device, &host);
        all.stored = match settled.nvme {
            true => all.offloaded.clone(),
            false => self.stored.intersection(&all.offloaded).copied().collect(),
        };
        // A technique's partial offload takes precedence over the policy's.
        let moved = |partly: &PartialOffload| {
            let tensors: BTreeSet<TensorId> = partly.tensors.intersection(&all.offloaded).copied().collect();
            (!tensors.is_empty()).then(|| PartialOffload { tensors, ..partly.clone() })
        };
        let partly = settled.partly.as_ref().and_then(&moved).or_else(|| self.partly.as_ref().and_then(&moved));
        let Some(partly) = partly else { return all };
        if partly.recomputed {
            let whole: BTreeSet<TensorId> = host.difference(&partly.tensors).copied().collect();
            return all.recompute_remainder(graph, &device, &whole, partly);
        }
        all.partly = Some(partly);
        all
    }

    /// Returns the name of a tensor whose random row sample would be drawn again, or `None`. A sample is drawn again if
    /// it is not kept from the forward pass for all tokens.
    pub(crate) fn find_redrawn_sample<'g>(&self, graph: &'g OperatorGraph) -> Option<&'g str> {
        let in_part =
            |t: &TensorId| self.partly.as_ref().is_some_and(|partly| partly.recomputed && partly.tensors.contains(t));
        let held = |t: &TensorId| self.kept.contains(t) || self.offloaded.contains(t) && !in_part(t);
        let drawn = graph.tensors.iter().filter(|t| t.saved && !held(&t.id));
        drawn.into_iter().find_map(name_of_sampled)
    }

    /// Returns the bytes of a tensor that a backward pass must fetch or rebuild: all bytes except the resident part.
    pub(crate) fn absent_bytes(&self, tensor: &TensorInfo) -> Bytes {
        match &self.partly {
            Some(partly) if !partly.recomputed && partly.tensors.contains(&tensor.id) => {
                partly.offloaded_bytes(tensor.bytes)
            }
            _ => tensor.bytes,
        }
    }
}
