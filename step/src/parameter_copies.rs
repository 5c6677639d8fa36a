//! Copies of weights and gradients that live away from the device: every micro-batch fetches a piece's weights for its forward pass and again for its
//! backward pass, and its backward pass sends the gradients away (Ren et al., ZeRO-Offload, USENIX ATC 2021, section 4.1; Rajbhandari et al.,
//! ZeRO-Infinity, SC 2021, sections 4 and 6.1).
//!
//! What ranks share, each copies its share of, over its own link: under ZeRO-3 weights are fetched in shares and then gathered, gradients that are
//! reduced in every micro-batch (ZeRO-2, ZeRO-3) leave in shares. Otherwise every rank copies what it holds whole; in a pipeline that is so of ZeRO-2's
//! gradients, too. Like weights that ZeRO-3 gathers, those fetched for the backward pass serve what runs again there, and a head beside the embedding
//! that it is tied to has none of its own.

use super::assembly::Exchanges;
use super::copied::{Copied, LinkTimes};
use super::evaluate::Step;
use super::exchange::sharing_domain;
use super::memory_static::Sharding;
use super::network::Network;
use super::profile::{PieceProfile, StepProfile};
use super::{ChipTimes, Fidelity, SoftwareStack};
use sim::kernel::Kernel;
use sim::units::{Bytes, Joules};
use std::borrow::Cow;
use workloads::memory::{PlacedBytes, Statics};
use workloads::{SegmentKind, TrainingGraph};

/// Bytes of a piece's weights and gradients, those away from the device.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
struct AwayParameters {
    weights: PlacedBytes,
    gradients: PlacedBytes,
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
    pieces: [AwayParameters; 3],
    /// The head in a stage without the embedding that it is tied to.
    head_apart: AwayParameters,
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
    passes: [LinkTimes; 2],
}

/// Of embedding, layer and head.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ParameterCopies {
    pub(super) pieces: [PieceCopies; 3],
    /// Whether passes are bounded only: what waits for copies may then be put off with the gradients of weights.
    bounded: bool,
}

impl PieceCopies {
    /// The piece with these copies beside those of its activations.
    fn beside(&self, piece: &mut PieceProfile, stack: &SoftwareStack, bounded: bool) {
        let before = piece.backward.offload;
        piece.forward.copies = piece.forward.copies.plus(self.passes[0]);
        piece.backward.copies = piece.backward.copies.plus(self.passes[1]);
        piece.wait_for_copies(stack);
        if bounded {
            piece.backward.weight += piece.backward.offload - before;
        }
    }
}

impl Exchanges {
    /// The profile with the copies of weights and gradients that live away from the device.
    pub(super) fn beside<'p>(&self, profile: &'p StepProfile, stack: &SoftwareStack) -> Cow<'p, StepProfile> {
        let Some(ParameterCopies { pieces: [embedding, layer, head], bounded }) = &self.copies else {
            return Cow::Borrowed(profile);
        };
        let mut profile = profile.clone();
        embedding.beside(&mut profile.embedding, stack, *bounded);
        layer.beside(&mut profile.layer, stack, *bounded);
        head.beside(&mut profile.head, stack, *bounded);
        profile.by_policy.iter_mut().for_each(|known| layer.beside(&mut known.layer, stack, *bounded));
        Cow::Owned(profile)
    }
}

impl<N: Network> Step<'_, N> {
    /// What is copied in every micro-batch of weights and gradients that live away from the device; none where all live there.
    pub(super) fn parameter_copies(&self, chip: &mut ChipTimes) -> Option<ParameterCopies> {
        let away = self.profile.away?;
        let layout = &self.plan.layout;
        let sharding = Sharding::new(layout, chip.stack(), sharing_domain(chip.stack(), self.fabric.fast_domain(), layout));
        let [weights, gradients, _] = sharding.zero_shares();
        let copied = |placed: &PlacedBytes, shared: bool| {
            let [host, stored] = [placed.host, placed.nvme].map(|bytes| Bytes(sharding.share_of(bytes, shared)));
            Copied { all: host + stored, stored }
        };
        let [embedding, layer, head] = away.pieces;
        let head = if layout.pipeline > 1 { away.head_apart } else { head };
        let pieces = [embedding, layer, head].map(|piece| {
            let weights = copied(&piece.weights, weights);
            let gradients = copied(&piece.gradients, gradients && layout.reduces_every_micro_batch());
            let fetch = LinkTimes::into_device(chip.copies(weights));
            let send = LinkTimes::out_of_device(chip.copies(gradients));
            PieceCopies { weights, gradients, passes: [fetch, fetch.plus(send)] }
        });
        Some(ParameterCopies { pieces, bounded: chip.fidelity() != Fidelity::Exact })
    }

    /// The energy of these copies in one micro-batch on the devices of all stages, static power apart.
    pub(super) fn parameter_copy_energy(&self, chip: &mut ChipTimes, layers: u64) -> Joules {
        let Some(copies) = self.parameter_copies(chip) else { return Joules::ZERO };
        let mut of = |piece: &PieceCopies| {
            let moved = [piece.weights, piece.weights, piece.gradients].into_iter().flat_map(Copied::by_link);
            moved.map(|copy| chip.energy(&Kernel::Transfer(copy))).sum::<Joules>()
        };
        let [embedding, layer, head] = copies.pieces.each_ref().map(&mut of);
        embedding + layer * layers as f64 + head
    }
}

#[cfg(test)]
#[path = "parameter_copies_tests.rs"]
mod tests;
