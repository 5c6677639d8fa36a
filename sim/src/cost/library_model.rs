//! A vendor's kernel library on a chip, in rates.

use crate::hardware::{Accelerator, KernelLibrary};

/// A kernel library on a chip, in rates.
#[derive(Debug, Clone, Copy)]
pub(super) struct LibraryModel {
    pub(super) scalars: KernelLibrary,
    /// Bytes per second into one core.
    pub(super) core_read: f64,
    /// Seconds per byte from and to the device's memory.
    pub(super) read: f64,
    pub(super) write: f64,
    /// Seconds per byte at its peak bandwidth.
    pub(super) peak: f64,
    /// True if a kernel is measured alone and repeatedly: its floor then counts, and caches hold data that fits.
    pub(super) alone: bool,
}

impl LibraryModel {
    pub(super) fn new(accelerator: &Accelerator, scalars: &KernelLibrary) -> Self {
        let nominal = accelerator.hbm.read_bandwidth.0;
        Self {
            scalars: *scalars,
            core_read: scalars.core_read_bytes_per_cycle * accelerator.clock.0,
            read: 1.0 / (nominal * scalars.read_fraction),
            write: 1.0 / (accelerator.hbm.write_bandwidth.0 * scalars.write_fraction),
            peak: 1.0 / nominal,
            alone: false,
        }
    }

    /// The same library for one kernel measured alone.
    pub(super) fn measured_alone(self) -> Self {
        Self { alone: true, ..self }
    }

    /// Bytes per second that a core can load.
    pub(super) fn core_read_rate(&self) -> f64 {
        self.core_read
    }

    /// The least time of a kernel. In a stream it is zero, because a stack's launches already contain it.
    pub(super) fn floor_seconds(&self) -> f64 {
        if self.alone { self.scalars.floor.0 } else { 0.0 }
    }
}
