//! Copies of offloaded weights and gradients. Every micro-batch fetches a piece's weights for its forward pass and
//! again for its backward pass. The backward pass sends the gradients away from the device (Ren et al., ZeRO-Offload,
//! USENIX ATC 2021, section 4.1; Rajbhandari et al., ZeRO-Infinity, SC 2021, sections 4 and 6.1).
//!
//! Each rank copies its share of sharded tensors over its own link. Under ZeRO-3, ranks fetch shares of the weights and
//! gather them. Gradients that are reduced in every micro-batch (ZeRO-2, ZeRO-3) leave in shares. Otherwise every rank
//! copies all that it holds, including ZeRO-2's gradients in a pipeline. Weights fetched for the backward pass also
//! serve its recomputation, like weights that ZeRO-3 gathers. A head beside the embedding that it is tied to has no
//! copies of its own.

use crate::communication::network::StepNetwork;
use crate::communication::sharing::sharing_domain;
use crate::memory::zero_states::ZeroSharding;
use crate::pass::away::{ParameterCopies, PieceCopies};
use crate::pass::copied::{CopiedBytes, LinkTimes};
use crate::whole::evaluate::PlanOnNetwork;
use crate::{ChipTimes, Fidelity};
use sim::kernel::Kernel;
use sim::units::{Bytes, Joules};
use workloads::memory::BytesByPlace;

impl<N: StepNetwork> PlanOnNetwork<'_, N> {
    /// Returns the copies of offloaded weights and gradients per micro-batch; `None` if none are offloaded.
    pub(crate) fn parameter_copies(&self, chip: &mut ChipTimes) -> Option<ParameterCopies> {
        let away = self.profile.away?;
        let layout = &self.plan.layout;
        let sharding = ZeroSharding::new(
            layout,
            chip.stack(),
            sharing_domain(chip.stack(), self.fabric.fast_domain_size(), layout),
        );
        let [weights, gradients, _] = sharding.zero_sharded_classes();
        let copied = |placed: &BytesByPlace, shared: bool| {
            let [host, stored] = [placed.host, placed.nvme].map(|bytes| Bytes(sharding.share_of(bytes, shared)));
            CopiedBytes { all: host + stored, stored }
        };
        let [embedding, layer, head] = away.pieces;
        let head = if layout.pipeline > 1 { away.head_apart } else { head };
        let pieces = [embedding, layer, head].map(|piece| {
            let weights = copied(&piece.weights, weights);
            let gradients = copied(&piece.gradients, gradients && layout.reduces_every_micro_batch());
            let fetch = LinkTimes::into_device(chip.copy_times(weights));
            let send = LinkTimes::out_of_device(chip.copy_times(gradients));
            PieceCopies { weights, gradients, passes: [fetch, fetch.plus(send)] }
        });
        Some(ParameterCopies { pieces, bounded: chip.fidelity() != Fidelity::Exact })
    }

    /// Returns the energy of [`Self::parameter_copies`] for one micro-batch on one device of every stage, without
    /// static power.
    pub(crate) fn energy_of_parameter_copies(&self, chip: &mut ChipTimes, layers: u64) -> Joules {
        let Some(copies) = self.parameter_copies(chip) else { return Joules::ZERO };
        let mut of = |piece: &PieceCopies| {
            let moved = [piece.weights, piece.weights, piece.gradients].into_iter().flat_map(CopiedBytes::transfers);
            moved.map(|copy| chip.energy_of_kernel(&Kernel::Transfer(copy))).sum::<Joules>()
        };
        let [embedding, layer, head] = copies.pieces.each_ref().map(&mut of);
        embedding + layer * layers as f64 + head
    }
}

#[cfg(test)]
#[path = "parameter_copies_tests.rs"]
mod tests;
