//! Weights, gradients and optimizer states of a stage under ZeRO, and what ZeRO gathers for use.

use crate::SoftwareStack;
use crate::communication::sharing::{parameter_holders, ranks_inside, shard_groups};
use sim::kernel::RankGroup;
use sim::units::Bytes;
use workloads::footprint::BytesPerParameter;
use workloads::graph::Parameters;
use workloads::memory::StaticBytes;
use workloads::{Layout, ZeroStage};

/// The sharding of parameters, gradients and states under ZeRO.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ZeroSharding {
    zero: ZeroStage,
    /// Number of ranks that shard dense parameters.
    ranks: u64,
    /// Number of equal parts of a device's gradients. The device holds one part unsharded, besides its shard of all
    /// parts. `None` if every micro-batch reduces its gradients, or if ZeRO does not shard them. The number is 1 if the
    /// pipeline keeps all gradients unsharded. In other pipelines under ZeRO-2, it is the number of chunks per stage: a
    /// chunk's micro-batches come in rows as long as the pipeline, and its gradients are reduced after each row.
    whole: Option<u64>,
    /// True if a pipeline keeps weights gathered, and gradients whole, from the first micro-batch to the last.
    keeps_whole: bool,
    /// Number of ranks that shard the same experts.
    expert_ranks: u64,
    /// True if the stored weights are the master copy (FSDP, MaxText). Products then read a gathered, converted copy.
    stored_master: bool,
    /// True if the master copy is the model's own parameters (autocast), which ZeRO-1 and ZeRO-2 leave whole.
    whole_masters: bool,
    /// Bytes per parameter of a gradient during its reduction.
    reduced_bytes: f64,
    /// True if gradients in the weights' type stay beside the wider ones that they are added to.
    second_gradients: bool,
}

/// Bytes that a device always holds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ResidentBytes {
    /// Stored weights, and the copy for products if it is permanent.
    pub weights: Bytes,
    pub gradients: Bytes,
    /// Master weights, if the stored weights are not these.
    pub masters: Bytes,
    /// Optimizer states.
    pub states: Bytes,
    /// Number of parameters that the device updates.
    pub updated: u64,
    /// Bytes of the products' weights that the device does not hold under ZeRO-3. Gathering everything would add them.
    missing_weights: Bytes,
    /// Bytes of gradients that the device does not hold under ZeRO-2 and ZeRO-3.
    missing_gradients: Bytes,
}

impl ZeroSharding {
    pub(crate) fn new(layout: &Layout, stack: &SoftwareStack, domain: Option<u32>) -> Self {
        let [dense, experts] = parameter_holders(layout);
        // Ranks with different experts do not shard them among each other.
        let among = |group: RankGroup, domain: Option<u32>| u64::from(shard_groups(group.ranks, domain));
        let pipelined = layout.pipeline > 1;
        let keeps_whole = pipelined && layout.zero >= ZeroStage::Gradients && stack.memory.unsharded_in_pipeline;
        let in_rows = pipelined && layout.zero == ZeroStage::Gradients;
        Self {
            zero: layout.zero,
            whole: if keeps_whole { Some(1) } else { in_rows.then_some(layout.virtual_stages.into()) },
            keeps_whole,
            ranks: among(dense, domain),
            expert_ranks: among(
                experts,
                domain.map(|domain| ranks_inside(domain.saturating_mul(layout.data_stride()), experts.stride)),
            ),
            stored_master: stack.memory.stored_master,
            whole_masters: !stack.kernels.autocast.is_none(),
            reduced_bytes: stack.memory.reduced_bytes_per_parameter,
            second_gradients: stack.memory.second_gradients,
        }
    }

    /// Returns whether weights stay gathered and gradients whole throughout.
    pub(crate) fn keeps_gathered(&self) -> bool {
        self.keeps_whole
    }

    /// Returns, for weights, gradients and states, whether ZeRO shards them.
    pub(crate) fn zero_sharded_classes(&self) -> [bool; 3] {
        [self.zero >= ZeroStage::Parameters, self.zero >= ZeroStage::Gradients, self.zero >= ZeroStage::OptimizerStates]
    }

    /// Returns a device's share of a count if `shared`; otherwise the whole count.
    pub(crate) fn share_of(&self, count: Parameters, shared: bool) -> u64 {
        self.share_of_parameters(count, shared)
    }

    /// Returns [`Self::resident_bytes`] of a stage whose bytes by class memory techniques have changed. `gradient`
    /// widens gradient bytes to the stack's type.
    pub(crate) fn resident_static_bytes(
        &self,
        all: &StaticBytes,
        stored_master: bool,
        gradient: impl Fn(u64) -> u64,
    ) -> ResidentBytes {
        let [weights, gradients, states] = self.zero_sharded_classes();
        let copy = all.weights.device.per_device_count();
        let away = all.weights.host.per_device_count() + all.weights.nvme.per_device_count();
        let masters = self.share_of_parameters(all.masters.device, self.shards_masters());
        let stored_master = stored_master && masters > 0;
        // If the stored weights are the master copy, frozen weights have no master copy. They are stored in the type in
        // which products read them.
        let held =
            self.share_of_parameters(if stored_master && weights { all.frozen } else { all.weights.device }, weights);
        let stored = held + if stored_master { masters } else { 0 };
        let missing = copy.saturating_sub(held);
        let others = if stored_master { 0 } else { masters };
        let whole = gradient(all.gradients.device.per_device_count());
        let spread = self.whole.map_or(0, |chunks| whole.div_ceil(chunks.max(1)));
        let held = (gradient(self.share_of_parameters(all.gradients.device, gradients)) + spread).min(whole);
        ResidentBytes {
            weights: Bytes(
                stored + self.share_of_parameters(all.copies.device, weights) + all.stock.device.per_device_count(),
            ),
            gradients: Bytes(held + gradient(all.largest_gradient)),
            masters: Bytes(others),
            states: Bytes(self.share_of_parameters(all.states.device, states)),
            updated: self.share_of_parameters(all.at_once, states),
            missing_weights: Bytes(missing + away),
            missing_gradients: Bytes(whole - held),
        }
    }

    /// Returns whether ZeRO shards the master copy.
    fn shards_masters(&self) -> bool {
        let [weights, _, states] = self.zero_sharded_classes();
        if self.whole_masters { weights } else { states }
    }

    /// Returns a device's share of dense and expert parameters if `shared`; otherwise all of them.
    fn share_of_parameters(&self, parameters: Parameters, shared: bool) -> u64 {
        let dense = parameters.sharded.saturating_add(parameters.replicated);
        if !shared {
            return parameters.per_device_count();
        }
        dense.div_ceil(self.ranks).saturating_add(parameters.expert.div_ceil(self.expert_ranks))
    }

    pub(crate) fn resident_bytes(&self, parameters: Parameters, per: &BytesPerParameter) -> ResidentBytes {
        let count = |shared| self.share_of_parameters(parameters, shared);
        let (states, gradients, weights) = (
            self.zero >= ZeroStage::OptimizerStates,
            self.zero >= ZeroStage::Gradients,
            self.zero >= ZeroStage::Parameters,
        );
        let all = parameters.per_device_count();
        let master = self.stored_master && per.master > Bytes::ZERO;
        let gradient = if master { per.gradient.max(per.master) } else { per.gradient };
        let copy = per.weight * all;
        let (stored, masters, missing_weights) = if master {
            let copied = if weights { Bytes::ZERO } else { copy };
            (per.master * count(states) + copied, Bytes::ZERO, if weights { copy } else { Bytes::ZERO })
        } else {
            let stored = per.weight * count(weights);
            (stored, per.master * count(self.shards_masters()), copy.saturating_sub(stored))
        };
        let whole = self.whole.map_or(Bytes::ZERO, |chunks| Bytes((gradient * all).0.div_ceil(chunks.max(1))));
        let held = (gradient * count(gradients) + whole).min(gradient * all);
        ResidentBytes {
            weights: stored,
            gradients: held + if self.second_gradients && per.gradient > per.weight { copy } else { Bytes::ZERO },
            masters,
            states: per.state * count(states),
            updated: count(states),
            missing_weights,
            missing_gradients: (gradient * all).saturating_sub(held),
        }
    }

    /// Returns the bytes of gathered weights while the parameters `open` are in use. They are at most the bytes that
    /// gathering everything would add.
    pub(crate) fn gathered_bytes(&self, open: Parameters, per: &BytesPerParameter, resident: &ResidentBytes) -> Bytes {
        (per.weight * open.per_device_count()).min(resident.missing_weights)
    }

    /// Returns the bytes of gradients that are whole until they are reduced, for the parameters `open`.
    pub(crate) fn unreduced_bytes(&self, open: Parameters, resident: &ResidentBytes) -> Bytes {
        Bytes((open.per_device_count() as f64 * self.reduced_bytes) as u64).min(resident.missing_gradients)
    }
}
