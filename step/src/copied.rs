//! Copies between a device, its host and its storage: of activations, and of weights and gradients that live away from the device.

use super::ChipTimes;
use serde::{Deserialize, Serialize};
use sim::kernel::{Kernel, Link, Transfer};
use sim::units::{Bytes, Seconds};
use std::ops::Add;
use workloads::ActivationPolicy;
use workloads::graph::OperatorGraph;
use workloads::recompute_policy::Treatment;

/// What one piece copies one way in a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Copied {
    /// All of it.
    pub all: Bytes,
    /// Of that, what goes to storage.
    pub stored: Bytes,
}

impl Add for Copied {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { all: self.all + other.all, stored: self.stored + other.stored }
    }
}

impl Copied {
    pub(crate) fn of(treatment: &Treatment, graph: &OperatorGraph) -> Self {
        Self { all: treatment.offloaded_bytes(graph), stored: treatment.stored_bytes(graph) }
    }

    /// The copies by link, where there are any.
    pub(crate) fn by_link(self) -> impl Iterator<Item = Transfer> {
        let host = Transfer { link: Link::Host, bytes: self.all.saturating_sub(self.stored) };
        let copies = [host, Transfer { link: Link::Storage, bytes: self.stored }];
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
    pub(super) fn into_device([host, storage]: [Seconds; 2]) -> Self {
        Self { host: [host, Seconds::ZERO], storage: [storage, Seconds::ZERO] }
    }

    /// Copies out of the device.
    pub(super) fn out_of_device([host, storage]: [Seconds; 2]) -> Self {
        Self { host: [Seconds::ZERO, host], storage: [Seconds::ZERO, storage] }
    }

    /// What they take if nothing else does.
    pub(super) fn longest(&self) -> Seconds {
        self.host[0].max(self.host[1]).max(self.storage[0] + self.storage[1])
    }

    /// How long copies go on, into the device and out of it.
    pub(super) fn each_way(&self) -> [Seconds; 2] {
        [0, 1].map(|way| self.host[way].max(self.storage[way]))
    }

    pub(super) fn plus(self, other: Self) -> Self {
        let sum = |a: [Seconds; 2], b: [Seconds; 2]| [a[0] + b[0], a[1] + b[1]];
        Self { host: sum(self.host, other.host), storage: sum(self.storage, other.storage) }
    }

    pub(super) fn times(self, n: f64) -> Self {
        Self { host: self.host.map(|time| time * n), storage: self.storage.map(|time| time * n) }
    }
}

impl ChipTimes {
    /// What one piece under a policy copies away in every micro-batch.
    pub(crate) fn copied(&self, graph: &OperatorGraph, policy: &ActivationPolicy) -> Copied {
        Copied::of(&policy.treatment_under(graph, self.stack().replay()), graph)
    }

    /// Seconds that copies one way have the link to the host and storage. Storage is behind the device's link to its host, as NVMe and GPUDirect are:
    /// what goes there shares that link with what goes to the host's memory, and takes no less than storage takes for it. A chip without a link to a
    /// host reaches storage by a way of its own.
    pub(crate) fn copies(&mut self, copied: Copied) -> [Seconds; 2] {
        let mut over = |link, bytes| self.kernel(&Kernel::Transfer(Transfer { link, bytes }));
        let Copied { all, stored } = copied;
        if all == Bytes::ZERO {
            return [Seconds::ZERO; 2];
        }
        if stored == Bytes::ZERO {
            return [over(Link::Host, all), Seconds::ZERO];
        }
        let (shared, storage) = (over(Link::Host, all), over(Link::Storage, stored));
        [if stored == all && !shared.is_finite() { Seconds::ZERO } else { shared }, storage]
    }
}
