//! Bytes of each memory that a plan needs, or that there are.

use sim::units::Bytes;

/// What the fullest device, and those that offload most, need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MemoryNeed {
    /// Of a device's own memory.
    pub device: Bytes,
    /// Of the host's.
    pub host: Bytes,
    /// Of storage.
    pub storage: Bytes,
}

impl MemoryNeed {
    /// What is lacking of each memory where there is so much.
    #[must_use]
    pub fn shortfall_to(self, have: &Self) -> Self {
        Self {
            device: self.device.saturating_sub(have.device),
            host: self.host.saturating_sub(have.host),
            storage: self.storage.saturating_sub(have.storage),
        }
    }
}
