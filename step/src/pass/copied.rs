//! Copies between a device, its host and its storage: activations, and offloaded weights and gradients.

use crate::ChipTimes;
use serde::{Deserialize, Serialize};
use sim::kernel::{Kernel, Transfer, TransferLink};
use sim::units::{Bytes, Seconds};
use std::ops::Add;
use workloads::ActivationPolicy;
use workloads::graph::OperatorGraph;
use workloads::recompute_policy::Treatment;

/// Bytes that one piece copies in one direction in a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct CopiedBytes {
    /// All bytes.
    pub all: Bytes,
    /// The part that goes to storage.
    pub stored: Bytes,
}

/// Bytes that one piece copies in a pass, in both directions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct CopiesEachWay {
    /// Copies from the host and storage.
    pub into_device: CopiedBytes,
    /// Copies to the host and storage.
    pub out_of_device: CopiedBytes,
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

    /// Returns the non-empty transfers, by link.
    pub(crate) fn transfers(self) -> impl Iterator<Item = Transfer> {
        let host = Transfer { link: TransferLink::Host, bytes: self.all.saturating_sub(self.stored) };
        let copies = [host, Transfer { link: TransferLink::Storage, bytes: self.stored }];
        copies.into_iter().filter(|copy| copy.bytes > Bytes::ZERO)
    }
}

/// Times for which a pass's copies occupy the device's host link and the storage: (into the device, out of it).
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct LinkTimes {
    /// The host link; both directions work at the same time ([`sim::hardware::HostLink`]).
    pub host: [Seconds; 2],
    /// Storage, which reads and writes one after the other.
    pub storage: [Seconds; 2],
}

impl LinkTimes {
    /// Returns the times of copies into the device.
    pub(crate) fn into_device([host, storage]: [Seconds; 2]) -> Self {
        Self { host: [host, Seconds::ZERO], storage: [storage, Seconds::ZERO] }
    }

    /// Returns the times of copies out of the device.
    pub(crate) fn out_of_device([host, storage]: [Seconds; 2]) -> Self {
        Self { host: [Seconds::ZERO, host], storage: [Seconds::ZERO, storage] }
    }

    /// Returns the time of all copies if nothing else uses the links.
    pub(crate) fn longest_time(&self) -> Seconds {
        self.host[0].max(self.host[1]).max(self.storage[0] + self.storage[1])
    }

    /// Returns the time of the copies in each direction: (into the device, out of it).
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
    /// Returns the bytes that one piece offloads per micro-batch under a policy.
    pub(crate) fn copied_bytes(&self, graph: &OperatorGraph, policy: &ActivationPolicy) -> CopiedBytes {
        CopiedBytes::of_treatment(&policy.treatment_with_extent(graph, self.stack().replay_extent()), graph)
    }

    /// Returns the times for which one-way copies occupy (the host link, the storage). Storage is behind the host link,
    /// like NVMe and GPUDirect: its traffic shares the link with host traffic, and takes at least the storage's own
    /// time. A chip without a host link reaches storage on a separate path.
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
