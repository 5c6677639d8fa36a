//! Weights and gradients that live away from the device, and what a micro-batch copies of them.

use crate::pass::copied::{CopiedBytes, LinkTimes};
use workloads::memory::{BytesByPlace, StaticBytes};
use workloads::{SegmentKind, TrainingGraph};

/// Bytes of a piece's weights and gradients, those away from the device.
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
        [self.weights, self.gradients].iter().any(|placed| placed.host.per_device_count() + placed.nvme.per_device_count() > 0)
    }
}

/// Of embedding, layer and head.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct OffloadedPieces {
    pub pieces: [OffloadedParameters; 3],
    /// The head in a stage without the embedding that it is tied to.
    pub head_apart: OffloadedParameters,
}

impl OffloadedPieces {
    /// Those of a lowered model; none where all are on the device.
    pub fn from_graph(graph: &TrainingGraph) -> Option<Self> {
        let of = |kind| graph.segment(kind).and_then(|segment| segment.statics.as_deref()).copied().unwrap_or_default();
        let [embedding, layer, head] = [SegmentKind::Embedding, SegmentKind::Layer, SegmentKind::Head].map(of);
        let pieces = [embedding.own, layer.own, head.own].map(|own| OffloadedParameters::from_statics(&own));
        let head_apart = OffloadedParameters::from_statics(&head.apart);
        (pieces.iter().any(OffloadedParameters::is_any) || head_apart.is_any()).then_some(Self { pieces, head_apart })
    }
}

/// What a piece's passes of one micro-batch copy.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct PieceCopies {
    /// To the device, in the forward pass and again in the backward pass.
    pub(crate) weights: CopiedBytes,
    /// From the device, in the backward pass.
    pub(crate) gradients: CopiedBytes,
    /// How long the forward and the backward pass have the links for them.
    pub(crate) passes: [LinkTimes; 2],
}

/// Of embedding, layer and head.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ParameterCopies {
    pub(crate) pieces: [PieceCopies; 3],
    /// Whether passes are bounded only: what waits for copies may then be put off with the gradients of weights.
    pub(crate) bounded: bool,
}
