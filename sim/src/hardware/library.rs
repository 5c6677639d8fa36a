//! A vendor's kernel library on a chip: few physical scalars, fitted to kernels measured alone on the device.

use crate::units::Seconds;
use serde::{Deserialize, Serialize};

/// Products and attention as a library of hand-written kernels runs them: tiles of fixed shapes, one per core at a
/// time. Kernels of a chip without a library are mapped by a search over tiles, as a compiler does.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct KernelLibrary {
    /// The least time of a launched kernel on the device: launch, first instruction, last write.
    pub floor: Seconds,
    /// Fraction of the arrays' peak that the inner loop of a tile reaches before power lowers the clock.
    /// `tensor_achieved_fraction` is the fraction that a long product keeps under the power limit.
    pub issue_fraction: f64,
    /// Bytes per cycle that a core loads from the shared cache; each line counts once for every core that receives it.
    pub core_read_bytes_per_cycle: f64,
    /// Exposed start and end of a tile: first loads, last stores, the next tile's address.
    pub tile_overhead: Seconds,
    /// Fraction of the device memory's peak bandwidth at which a product reads its operands.
    pub read_fraction: f64,
    /// Fraction of it at which results are written.
    pub write_fraction: f64,
    /// Fraction of the vector lanes' peak that attention's softmax reaches between its products.
    pub softmax_fraction: f64,
    /// Start and end of a tile of queries in attention.
    pub attention_tile_overhead: Seconds,
}

impl Default for KernelLibrary {
    fn default() -> Self {
        Self {
            floor: Seconds::ZERO,
            issue_fraction: 1.0,
            core_read_bytes_per_cycle: 1e6,
            tile_overhead: Seconds::ZERO,
            read_fraction: 1.0,
            write_fraction: 1.0,
            softmax_fraction: 1.0,
            attention_tile_overhead: Seconds::ZERO,
        }
    }
}

/// One fitted scalar of a table in a chip's file: its key and its physical range.
#[derive(Debug, Clone, Copy)]
pub struct FittedScalar<T> {
    /// The key in the table.
    pub key: &'static str,
    /// The smallest physical value, in the key's unit.
    pub min: f64,
    /// The largest plausible value, in the key's unit.
    pub max: f64,
    /// Reads it, in the key's unit.
    pub get: fn(&T) -> f64,
    /// Sets it, in the key's unit.
    pub set: fn(&mut T, f64),
}

impl KernelLibrary {
    /// All scalars. A file that has the table gives all of them.
    pub const PARAMETERS: [FittedScalar<Self>; 8] = [
        FittedScalar {
            key: "floor_us",
            min: 0.0,
            max: 1000.0,
            get: |l| l.floor.micros(),
            set: |l, v| l.floor = Seconds::from_micros(v),
        },
        FittedScalar { key: "issue_fraction", min: 0.01, max: 1.0, get: |l| l.issue_fraction, set: |l, v| l.issue_fraction = v },
        FittedScalar {
            key: "core_read_bytes_per_cycle",
            min: 0.01,
            max: 1e6,
            get: |l| l.core_read_bytes_per_cycle,
            set: |l, v| l.core_read_bytes_per_cycle = v,
        },
        FittedScalar {
            key: "tile_overhead_us",
            min: 0.0,
            max: 1000.0,
            get: |l| l.tile_overhead.micros(),
            set: |l, v| l.tile_overhead = Seconds::from_micros(v),
        },
        FittedScalar { key: "read_fraction", min: 0.01, max: 1.0, get: |l| l.read_fraction, set: |l, v| l.read_fraction = v },
        FittedScalar { key: "write_fraction", min: 0.01, max: 1.0, get: |l| l.write_fraction, set: |l, v| l.write_fraction = v },
        FittedScalar {
            key: "softmax_fraction",
            min: 0.01,
            max: 8.0,
            get: |l| l.softmax_fraction,
            set: |l, v| l.softmax_fraction = v,
        },
        FittedScalar {
            key: "attention_tile_overhead_us",
            min: 0.0,
            max: 1000.0,
            get: |l| l.attention_tile_overhead.micros(),
            set: |l, v| l.attention_tile_overhead = Seconds::from_micros(v),
        },
    ];
}
