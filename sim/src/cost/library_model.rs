//! A vendor's kernel library on a chip, in rates.

use crate::hardware::constants::LibraryConstants;
use crate::hardware::{Accelerator, KernelLibrary};

/// A kernel library on a chip, in rates.
#[derive(Debug, Clone, Copy)]
pub(super) struct LibraryModel {
    pub(super) scalars: KernelLibrary,
    pub(super) constants: LibraryConstants,
    /// Bytes per second into one core.
    pub(super) core_read: f64,
    /// Seconds per byte from and to the device's memory.
    pub(super) read: f64,
    pub(super) write: f64,
    /// Seconds per byte at the peak bandwidth of the device's memory.
    pub(super) peak: f64,
    /// True if a kernel is measured alone and repeatedly: caches hold data that fits.
    pub(super) alone: bool,
    /// True if a kernel's start and its waits count. They count only for a kernel that is measured alone by the
    /// device's clock: a host's overhead and a stack's launches already contain them.
    waits: bool,
}

impl LibraryModel {
    pub(super) fn new(accelerator: &Accelerator, scalars: &KernelLibrary) -> Self {
        let nominal = accelerator.hbm.read_bandwidth.0;
        Self {
            scalars: *scalars,
            constants: accelerator.constants.library,
            core_read: scalars.core_read_bytes_per_cycle * accelerator.clock.0,
            read: 1.0 / (nominal * scalars.read_fraction),
            write: 1.0 / (accelerator.hbm.write_bandwidth.0 * scalars.write_fraction),
            peak: 1.0 / nominal,
            alone: false,
            waits: false,
        }
    }

    /// The same library for one kernel measured alone by the device's clock.
    pub(super) fn measured_alone(self) -> Self {
        Self { alone: true, waits: true, ..self }
    }

    /// The same library for one kernel measured alone by the host's clock.
    pub(super) fn measured_by_host(self) -> Self {
        Self { alone: true, waits: false, ..self }
    }

    /// True for a kernel measured alone by the device's clock.
    pub(super) fn timed_by_device(&self) -> bool {
        self.waits
    }

    /// Returns the bytes per second that a core can load.
    pub(super) fn core_read_rate(&self) -> f64 {
        self.core_read
    }

    /// The least time of a kernel. It is zero unless the device's clock measures the kernel alone: elsewhere a stack's
    /// launches or the host's overhead already contain it.
    pub(super) fn floor_seconds(&self) -> f64 {
        if self.waits { self.scalars.floor.0 } else { 0.0 }
    }

    /// The least time of a row function's work: the latency of reading a row, summing it and writing it. It is zero
    /// wherever [`Self::floor_seconds`] is.
    pub(super) fn row_wait_seconds(&self) -> f64 {
        if self.waits { self.constants.row_wait * 1e-6 } else { 0.0 }
    }
}
