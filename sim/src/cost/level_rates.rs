//! Memory levels as rates: the seconds of a byte at the ports.

use crate::hardware::{Accelerator, MemoryLevel, MemoryScope};

/// A memory level: the capacity of one instance and the seconds per byte through its ports.
#[derive(Debug, Clone, Copy)]
pub(super) struct LevelRates {
    /// Bytes of an instance; the span's share if the level is shared and the span is one core.
    pub(super) capacity: f64,
    /// Seconds per byte read.
    pub(super) read: f64,
    /// Seconds per byte written.
    pub(super) write: f64,
    /// True if reads and writes share the port.
    pub(super) single_port: bool,
    /// Seconds from a request to its first byte.
    pub(super) latency: f64,
    /// Joules per byte read and written.
    pub(super) read_energy: f64,
    pub(super) write_energy: f64,
    /// True if data can move past the level.
    pub(super) bypass: bool,
    /// Position in [`Accelerator::memory_levels`], innermost first.
    pub(super) index: usize,
}

/// Bytes read from a memory level and written to it.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct LevelBytes {
    pub(super) read: f64,
    pub(super) written: f64,
}

impl LevelRates {
    fn new(level: &MemoryLevel, index: usize, share: f64, achieved: f64) -> Self {
        Self {
            capacity: level.capacity.as_f64() * share,
            read: 1.0 / (level.read_bandwidth.0 * share * achieved),
            write: 1.0 / (level.write_bandwidth.0 * share * achieved),
            single_port: level.ports <= 1,
            latency: level.latency.0,
            read_energy: level.read_energy_per_byte.0,
            write_energy: level.write_energy_per_byte.0,
            bypass: level.kind.has_bypass(),
            index,
        }
    }

    /// Returns the seconds for which the ports are busy with this traffic.
    #[inline]
    pub(super) fn busy_seconds(&self, read: f64, written: f64) -> f64 {
        let (reading, writing) = (read * self.read, written * self.write);
        if self.single_port { reading + writing } else { reading.max(writing) }
    }

    /// Returns the joules of this traffic.
    #[inline]
    pub(super) fn traffic_energy(&self, read: f64, written: f64) -> f64 {
        read * self.read_energy + written * self.write_energy
    }
}

/// Returns the levels of one scope, outermost first. The device's memory is the chip's outermost level, whatever its
/// scope.
pub(super) fn split_levels(accelerator: &Accelerator, scope: MemoryScope, share: f64) -> Vec<LevelRates> {
    let last = accelerator.level_count() - 1;
    let achieved = accelerator.calibration.hbm_achieved_fraction;
    let mut levels: Vec<LevelRates> = accelerator
        .memory_levels()
        .enumerate()
        .filter(|(index, level)| if *index == last { scope == MemoryScope::Chip } else { level.scope == scope })
        .map(|(index, level)| {
            let rates = LevelRates::new(level, index, share, if index == last { achieved } else { 1.0 });
            LevelRates { bypass: rates.bypass && index != last, ..rates }
        })
        .collect();
    levels.reverse();
    levels
}
