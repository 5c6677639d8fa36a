//! The time of a pass, by parts.

use serde::{Deserialize, Serialize};
use sim::units::{Joules, Seconds};

/// The time of a pass by parts. [`Self::total`] is the sum of the times.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct PassTime {
    /// Products with weights.
    pub products: Seconds,
    /// Attention, and other work on the cache.
    pub attention: Seconds,
    /// Vector work.
    pub vector: Seconds,
    /// Communication inside the replica.
    pub communication: Seconds,
    /// Gaps between kernels.
    pub gaps: Seconds,
    /// Host time that no kernel hides: between iterations, and launches beyond the kernels' time.
    pub host: Seconds,
    /// Passes of the drafter.
    #[serde(default)]
    pub drafts: Seconds,
    /// Exposed transfers of keys and values from or to a memory off the device.
    #[serde(default)]
    pub fetches: Seconds,
    /// Energy of its kernels on one device, without static power.
    pub energy: Joules,
}

impl PassTime {
    /// Returns the sum of the parts.
    #[must_use]
    pub fn total(&self) -> Seconds {
        self.on_device() + self.host + self.drafts + self.fetches
    }

    /// Returns the time of the kernels and of the gaps between them.
    pub(crate) fn on_device(&self) -> Seconds {
        self.products + self.attention + self.vector + self.communication + self.gaps
    }

    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            products: self.products + other.products,
            attention: self.attention + other.attention,
            vector: self.vector + other.vector,
            communication: self.communication + other.communication,
            gaps: self.gaps + other.gaps,
            host: self.host + other.host,
            drafts: self.drafts + other.drafts,
            fetches: self.fetches + other.fetches,
            energy: self.energy + other.energy,
        }
    }

    pub(crate) fn times(self, n: f64) -> Self {
        Self {
            products: self.products * n,
            attention: self.attention * n,
            vector: self.vector * n,
            communication: self.communication * n,
            gaps: self.gaps * n,
            host: self.host * n,
            drafts: self.drafts * n,
            fetches: self.fetches * n,
            energy: self.energy * n,
        }
    }
}
