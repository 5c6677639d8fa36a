//! Copies between a device, its host and its storage: of activations, and of weights and gradients that live away from the device.

use crate::ChipTimes;
use serde::{Deserialize, Serialize};
use sim::kernel::{Kernel, Transfer, TransferLink};
use sim::units::{Bytes, Seconds};
use std::ops::Add;
use workloads::ActivationPolicy;
use workloads::graph::OperatorGraph;
use workloads::recompute_policy::Treatment;

/// What one piece copies one way in a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct CopiedBytes {
    /// All of it.
    pub all: Bytes,
    /// Of that, what goes to storage.
    pub stored: Bytes,
}

impl Add for CopiedBytes {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { all: self.all + other.all, stored: self.stored + other.stored }
    }
}

impl CopiedBytes {
    pub(crate) fn of_treatment(treatment: &Treatment, graph: &OperatorGraph) -> Self {
        Self { all: treatment.offloaded_bytes(graph), stored: treatment.stored_bytes(graph) }
    }

    /// The copies by link, where there are any.
    pub(crate) fn transfers(self) -> impl Iterator<Item = Transfer> {
        let host = Transfer { link: TransferLink::Host, bytes: self.all.saturating_sub(self.stored) };
        let copies = [host, Transfer { link: TransferLink::Storage, bytes: self.stored }];
        copies.into_iter().filter(|copy| copy.bytes > Bytes::ZERO)
    }
}

/// Seconds that a pass's copies have the device's link to its host and the storage behind it, into the device and out of it.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct LinkTimes {
    /// The link, whose directions proceed side by side ([`sim::hardware::HostLink`]).
    pub host: [Seconds; 2],
    /// Storage, which reads and writes one after the other.
    pub storage: [Seconds; 2],
}

impl LinkTimes {
    /// Copies into the device, each of which has the link and the storage for so long.
    pub(crate) fn into_device([host, storage]: [Seconds; 2]) -> Self {
        Self { host: [host, Seconds::ZERO], storage: [storage, Seconds::ZERO] }
    }

    /// Copies out of the device.
    pub(crate) fn out_of_device([host, storage]: [Seconds; 2]) -> Self {
        Self { host: [Seconds::ZERO, host], storage: [Seconds::ZERO, storage] }
    }

    /// What they take if nothing else does.
    pub(crate) fn longest_time(&self) -> Seconds {
        self.host[0].max(self.host[1]).max(self.storage[0] + self.storage[1])
    }

    /// How long copies go on, into the device and out of it.
    pub(crate) fn times_each_way(&self) -> [Seconds; 2] {
        [0, 1].map(|way| self.host[way].max(self.storage[way]))
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        let sum = |a: [Seconds; 2], b: [Seconds; 2]| [a[0] + b[0], a[1] + b[1]];
        Self { host: sum(self.host, other.host), storage: sum(self.storage, other.storage) }
    }

    pub(crate) fn times(self, n: f64) -> Self {
        Self { host: self.host.map(|time| time * n), storage: self.storage.map(|time| time * n) }
    }
}

impl ChipTimes {
    /// What one piece under a policy copies away in every micro-batch.
    pub(crate) fn copied_bytes(&self, graph: &OperatorGraph, policy: &ActivationPolicy) -> CopiedBytes {
        CopiedBytes::of_treatment(&policy.treatment_with_extent(graph, self.stack().replay_extent()), graph)
    }

    /// Seconds that copies one way have the link to the host and storage. Storage is behind the device's link to its host, as NVMe and GPUDirect are:
    /// what goes there shares that link with what goes to the host's memory, and takes no less than storage takes for it. A chip without a link to a
    /// host reaches storage by a way of its own.
    pub(crate) fn copy_times(&mut self, copied: CopiedBytes) -> [Seconds; 2] {
        let mut over = |link, bytes| self.time_of_kernel(&Kernel::Transfer(Transfer { link, bytes }));
        let CopiedBytes { all, stored } = copied;
        if all == Bytes::ZERO {
            return [Seconds::ZERO; 2];
        }
        if stored == Bytes::ZERO {
            return [over(TransferLink::Host, all), Seconds::ZERO];
        }
        let (shared, storage) = (over(TransferLink::Host, all), over(TransferLink::Storage, stored));
        [if stored == all && !shared.is_finite() { Seconds::ZERO } else { shared }, storage]
    }
}
