//! Offloaded weights and gradients, and their copies in one micro-batch.

use crate::pass::copied::{CopiedBytes, LinkTimes};
use workloads::memory::{BytesByPlace, StaticBytes};
use workloads::{SegmentKind, TrainingGraph};

/// Offloaded bytes of a piece's weights and gradients.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct OffloadedParameters {
    pub weights: BytesByPlace,
    pub gradients: BytesByPlace,
}

impl OffloadedParameters {
    fn from_statics(statics: &StaticBytes) -> Self {
        Self { weights: statics.weights, gradients: statics.gradients }
    }

    fn is_any(&self) -> bool {
        [self.weights, self.gradients]
            .iter()
            .any(|placed| placed.host.per_device_count() + placed.nvme.per_device_count() > 0)
    }
}

/// Offloaded bytes of the embedding, one layer and the head.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct OffloadedPieces {
    pub pieces: [OffloadedParameters; 3],
    /// The head on a stage without the embedding that it is tied to.
    pub head_apart: OffloadedParameters,
}

impl OffloadedPieces {
    /// Returns the offloaded bytes of a lowered model; `None` if everything is on the device.
    pub fn from_graph(graph: &TrainingGraph) -> Option<Self> {
        let of = |kind| graph.segment(kind).and_then(|segment| segment.statics.as_deref()).copied().unwrap_or_default();
        let [embedding, layer, head] = [SegmentKind::Embedding, SegmentKind::Layer, SegmentKind::Head].map(of);
        let pieces = [embedding.own, layer.own, head.own].map(|own| OffloadedParameters::from_statics(&own));
        let head_apart = OffloadedParameters::from_statics(&head.apart);
        (pieces.iter().any(OffloadedParameters::is_any) || head_apart.is_any()).then_some(Self { pieces, head_apart })
    }
}

/// Copies of a piece's weights and gradients in one micro-batch.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PieceCopies {
    /// To the device, in the forward pass and again in the backward pass.
    pub(crate) weights: CopiedBytes,
    /// From the device, in the backward pass.
    pub(crate) gradients: CopiedBytes,
    /// Link times of these copies in the forward and the backward pass.
    pub(crate) passes: [LinkTimes; 2],
}

/// Copies of the weights and gradients of the embedding, one layer and the head.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ParameterCopies {
    pub(crate) pieces: [PieceCopies; 3],
    /// True if pass times are only lower bounds. Work that waits for copies may then be put off with the weight
    /// gradients.
    pub(crate) bounded: bool,
}
