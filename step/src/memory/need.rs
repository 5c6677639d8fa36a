//! Bytes per memory: a plan's need, or a capacity.

use sim::units::Bytes;

/// The need of the fullest device, and of the devices that offload most; or the capacity of one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryNeed {
    /// Device memory.
    pub device: Bytes,
    /// Host memory.
    pub host: Bytes,
    /// Storage.
    pub storage: Bytes,
}

impl MemoryNeed {
    /// Returns the bytes by which each memory exceeds the capacity `have`; zero where it fits.
    #[must_use]
    pub fn shortfall_to(self, have: &Self) -> Self {
        Self {
            device: self.device.saturating_sub(have.device),
            host: self.host.saturating_sub(have.host),
            storage: self.storage.saturating_sub(have.storage),
        }
    }
}
