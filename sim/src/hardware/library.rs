//! What a vendor's kernel library makes of a chip: few physical scalars, fitted on kernels measured alone on the device.

use crate::units::Seconds;
use serde::{Deserialize, Serialize};

/// Products and attention as a library of hand-written kernels runs them: tiles of fixed shapes, one per core at a time. A chip
/// without it is mapped as a compiler maps it, by a search over tiles.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct KernelLibrary {
    /// The least that a launched kernel takes on the device: launch, first instruction, last write.
    pub floor: Seconds,
    /// Fraction of the arrays' peak that the inner loop of a tile reaches before power holds the clock down
    /// (`tensor_achieved_fraction` is what power lets a long product keep).
    pub issue_fraction: f64,
    /// Bytes per cycle that a core's loads bring in from the shared cache, each line counted once for every core that gets it.
    pub core_read_bytes_per_cycle: f64,
    /// Start and end of a tile that its loop does not hide: first loads, last stores, the next tile's address.
    pub tile_overhead: Seconds,
    /// Fraction of the device memory's peak that a product's operands are read at.
    pub read_fraction: f64,
    /// Fraction of it that results are written at.
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

/// One scalar of a table of fitted ones in a chip's file: its key and its physical range.
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
    /// Every scalar. A file that has the table gives them all.
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
