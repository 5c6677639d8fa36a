//! Weights and gradients that live away from the device, and what a micro-batch copies of them.

use super::copied::{Copied, LinkTimes};
use workloads::memory::{PlacedBytes, Statics};
use workloads::{SegmentKind, TrainingGraph};

/// Bytes of a piece's weights and gradients, those away from the device.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(super) struct AwayParameters {
    pub weights: PlacedBytes,
    pub gradients: PlacedBytes,
}

impl AwayParameters {
    fn of(statics: &Statics) -> Self {
        Self { weights: statics.weights, gradients: statics.gradients }
    }

    fn any(&self) -> bool {
        [self.weights, self.gradients].iter().any(|placed| placed.host.per_device() + placed.nvme.per_device() > 0)
    }
}

/// Of embedding, layer and head.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct AwayPieces {
    pub pieces: [AwayParameters; 3],
    /// The head in a stage without the embedding that it is tied to.
    pub head_apart: AwayParameters,
}

impl AwayPieces {
    /// Those of a lowered model; none where all are on the device.
    pub fn of(graph: &TrainingGraph) -> Option<Self> {
        let of = |kind| graph.segment(kind).and_then(|segment| segment.statics.as_deref()).copied().unwrap_or_default();
        let [embedding, layer, head] = [SegmentKind::Embedding, SegmentKind::Layer, SegmentKind::Head].map(of);
        let pieces = [embedding.own, layer.own, head.own].map(|own| AwayParameters::of(&own));
        let head_apart = AwayParameters::of(&head.apart);
        (pieces.iter().any(AwayParameters::any) || head_apart.any()).then_some(Self { pieces, head_apart })
    }
}

/// What a piece's passes of one micro-batch copy.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PieceCopies {
    /// To the device, in the forward pass and again in the backward pass.
    pub(super) weights: Copied,
    /// From the device, in the backward pass.
    pub(super) gradients: Copied,
    /// How long the forward and the backward pass have the links for them.
    pub(super) passes: [LinkTimes; 2],
}

/// Of embedding, layer and head.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ParameterCopies {
    pub(super) pieces: [PieceCopies; 3],
    /// Whether passes are bounded only: what waits for copies may then be put off with the gradients of weights.
    pub(super) bounded: bool,
}
