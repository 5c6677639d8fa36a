//! Copies of activations between a device, its host and its storage.

use super::ChipTimes;
use sim::kernel::{Kernel, Link, Transfer};
use sim::units::{Bytes, Seconds};
use workloads::ActivationPolicy;
use workloads::graph::OperatorGraph;
use workloads::recompute_policy::Treatment;

/// What one piece copies away in every micro-batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Copied {
    /// All of it.
    pub all: Bytes,
    /// Of that, what goes to storage.
    pub stored: Bytes,
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

impl ChipTimes {
    /// What one piece under a policy copies away in every micro-batch.
    pub(crate) fn copied(&self, graph: &OperatorGraph, policy: &ActivationPolicy) -> Copied {
        Copied::of(&policy.treatment_under(graph, self.stack().replay()), graph)
    }

    /// Seconds of copies one way. Storage is behind the device's link to its host, as NVMe and GPUDirect are: what goes there shares that link with what
    /// goes to the host's memory, and takes no less than storage takes for it. A chip without a link to a host reaches storage by a way of its own.
    pub(crate) fn copies(&mut self, copied: Copied) -> Option<Seconds> {
        let mut over = |link, bytes| self.kernel(&Kernel::Transfer(Transfer { link, bytes }));
        let Copied { all, stored } = copied;
        if all == Bytes::ZERO {
            return None;
        }
        if stored == Bytes::ZERO {
            return Some(over(Link::Host, all));
        }
        let (shared, storage) = (over(Link::Host, all), over(Link::Storage, stored));
        Some(if stored == all && !shared.is_finite() { storage } else { shared.max(storage) })
    }
}
