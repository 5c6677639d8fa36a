//! Copies of a layer's tensors to the host and to storage: their rates, bytes and destinations.

/// The rate of copies in one direction.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CopyRate {
    /// Seconds before the first byte.
    pub latency: f64,
    /// Seconds per byte.
    pub per_byte: f64,
}

impl CopyRate {
    pub(super) fn seconds_of(&self, bytes: u64) -> f64 {
        if bytes == 0 { 0.0 } else { self.latency + self.per_byte * bytes as f64 }
    }

    /// The largest number of bytes that can be copied in `seconds`.
    pub(super) fn bytes_within(&self, seconds: f64) -> u64 {
        if self.per_byte > 0.0 { ((seconds - self.latency).max(0.0) / self.per_byte) as u64 } else { u64::MAX }
    }
}

/// The links for copies between a device, its host and its storage, and the pass times of one layer that can hide
/// copies.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CopyLinks {
    /// The link to the host, if any. Copies to storage use it too.
    pub host: Option<CopyRate>,
    /// The link to storage, if any.
    pub storage: Option<CopyRate>,
    /// The fraction, 0 to 1, of overlapping time that the software uses: of copy time up to a pass's busy time, this
    /// part is hidden.
    pub hidden: f64,
    /// Busy time of the forward pass, in seconds.
    pub forward: f64,
    /// Busy time of the backward pass without reruns, in seconds.
    pub backward: f64,
}

/// Bytes of a layer that are offloaded from the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct OffloadedBytes {
    /// In the host's memory.
    pub host: u64,
    /// In storage.
    pub storage: u64,
}

impl OffloadedBytes {
    /// The sum of both.
    #[must_use]
    pub fn total(self) -> u64 {
        self.host.saturating_add(self.storage)
    }
}

impl CopyLinks {
    /// Seconds of the copies in one direction. Infinite if a link that they need is missing.
    #[must_use]
    pub fn copy_seconds(&self, away: OffloadedBytes) -> f64 {
        let shared = match &self.host {
            Some(rate) => rate.seconds_of(away.total()),
            None if away.host > 0 => f64::INFINITY,
            None => 0.0,
        };
        let stored = match &self.storage {
            Some(rate) => rate.seconds_of(away.storage),
            None if away.storage > 0 => f64::INFINITY,
            None => 0.0,
        };
        shared.max(stored)
    }

    /// Exposed copy seconds, summed over both passes. The backward pass has `rerun` seconds of reruns.
    #[must_use]
    pub fn exposed_copy_seconds(&self, away: OffloadedBytes, rerun: f64) -> f64 {
        self.pass_exposed_seconds(self.copy_seconds(away), rerun)
    }

    pub(super) fn pass_exposed_seconds(&self, copy: f64, rerun: f64) -> f64 {
        if copy == 0.0 {
            return 0.0;
        }
        let exposed = |busy: f64| copy - copy.min(busy) * self.hidden;
        exposed(self.forward) + exposed(self.backward + rerun)
    }

    /// The part of `bytes` that can go to storage without making the copies slower than sending all to the host. Zero
    /// without both links.
    pub(super) fn storage_bytes_beside_host(&self, bytes: u64) -> u64 {
        match (&self.host, &self.storage) {
            (Some(host), Some(storage)) => storage.bytes_within(host.seconds_of(bytes)).min(bytes),
            _ => 0,
        }
    }

    /// Lower bound on the exposed seconds of copying `bytes` to any destination, without latency. `None` without a
    /// link.
    pub(super) fn least_copy_seconds(&self, bytes: f64, rerun: f64) -> Option<f64> {
        Some(self.pass_exposed_seconds(self.least_seconds_per_byte()? * bytes, rerun))
    }

    /// Least seconds per byte of a copy. Copies to storage also use the link to the host, if there is one. `None`
    /// without a link.
    pub(super) fn least_seconds_per_byte(&self) -> Option<f64> {
        self.host.or(self.storage).map(|rate| rate.per_byte)
    }
}

/// The destination of offloaded tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum OffloadDestination {
    Host,
    /// To both at once, with as much to storage as takes no longer than the copies to the host.
    Both,
    Storage,
}
