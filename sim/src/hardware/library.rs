//! A vendor's kernel library on a chip: few physical scalars, fitted to kernels measured alone on the device.

use super::PerDataType;
use crate::units::Seconds;
use serde::{Deserialize, Serialize};

/// Products and attention as a library of hand-written kernels runs them: tiles of fixed shapes, one per core at a
/// time. If a chip has no library, a search over tiles maps its kernels, as a compiler does.
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
    /// Fraction of the device memory's peak bandwidth at which results are written.
    pub write_fraction: f64,
    /// Fraction of the vector lanes' peak that attention's softmax reaches between its products.
    pub softmax_fraction: f64,
    /// Start and end of a tile of queries in attention.
    pub attention_tile_overhead: Seconds,
    /// The kernel of a decoding step, if it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub decode: Option<DecodeKernel>,
    /// The kernels of products whose rows start off a full vector, if they were measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unaligned: Option<UnalignedKernels>,
    /// The kernels of number formats that differ from the 16-bit ones beyond the arrays' rate.
    #[serde(default, skip_serializing_if = "PerDataType::is_empty")]
    pub formats: PerDataType<FormatKernels>,
}

/// Kernels of 16-bit products with a matrix whose rows do not start at multiples of 16 B. Hopper's matrix instructions
/// and its copy engine need such multiples. Otherwise a library runs kernels of earlier generations; for rows that
/// start at odd numbers these load number by number.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct UnalignedKernels {
    /// Fraction of the arrays' peak that products reach if rows start at multiples of 4 or 8 B.
    pub pieces: f64,
    /// The fraction that they reach if rows start at multiples of 2 B.
    pub numbers: f64,
}

impl UnalignedKernels {
    /// All scalars. A file that has the table gives all of them.
    pub const PARAMETERS: [FittedScalar<Self>; 2] = [
        FittedScalar { key: "pieces_fraction", min: 0.001, max: 1.0, get: |u| u.pieces, set: |u, v| u.pieces = v },
        FittedScalar { key: "numbers_fraction", min: 0.001, max: 1.0, get: |u| u.numbers, set: |u, v| u.numbers = v },
    ];
}

/// A serving library's kernel of one decoding step.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct DecodeKernel {
    /// Its launch, with the rotary embedding and the write of keys and values.
    pub launch: Seconds,
    /// Fraction of the device memory's peak bandwidth at which long streams of keys are read.
    pub read_fraction: f64,
}

impl DecodeKernel {
    /// All scalars. A file that has the table gives all of them.
    pub const PARAMETERS: [FittedScalar<Self>; 2] = [
        FittedScalar {
            key: "launch_us",
            min: 0.0,
            max: 1000.0,
            get: |d| d.launch.micros(),
            set: |d, v| d.launch = Seconds::from_micros(v),
        },
        FittedScalar {
            key: "read_fraction",
            min: 0.01,
            max: 1.0,
            get: |d| d.read_fraction,
            set: |d, v| d.read_fraction = v,
        },
    ];
}

/// The differences between a library's products of one number format and its 16-bit ones.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct FormatKernels {
    /// Launches that convert the input of a framework's linear layer to the format.
    pub convert: Seconds,
    /// The least time of a step of the inner loop (128 B of the contracted dimension). Block-scaled formats move and
    /// apply their scales in each step.
    pub step: Seconds,
    /// Most parts that the contracted dimension is split into.
    pub most_splits: f64,
    /// True if the measured products behind the rates have a scale per row or block. Row-wise recipes then run these
    /// products unchanged.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub row_scaled: bool,
}

impl Default for FormatKernels {
    fn default() -> Self {
        Self { convert: Seconds::ZERO, step: Seconds::ZERO, most_splits: Self::MOST_SPLITS, row_scaled: false }
    }
}

impl FormatKernels {
    /// Largest number of splits for kernels without a limit of their own.
    pub const MOST_SPLITS: f64 = 32.0;

    /// The optional key of [`Self::row_scaled`].
    pub const ROW_SCALED: &str = "row_scaled";

    /// All scalars. A table of a format gives all of them.
    pub const PARAMETERS: [FittedScalar<Self>; 3] = [
        FittedScalar {
            key: "convert_us",
            min: 0.0,
            max: 1000.0,
            get: |f| f.convert.micros(),
            set: |f, v| f.convert = Seconds::from_micros(v),
        },
        FittedScalar {
            key: "step_us",
            min: 0.0,
            max: 100.0,
            get: |f| f.step.micros(),
            set: |f, v| f.step = Seconds::from_micros(v),
        },
        FittedScalar {
            key: "most_splits",
            min: 1.0,
            max: Self::MOST_SPLITS,
            get: |f| f.most_splits,
            set: |f, v| f.most_splits = v,
        },
    ];
}

/// A version of an attention library on a chip: rates of its kernels between their softmaxes.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct AttentionLibrary {
    /// Rate of the forward pass' products, as a fraction of the arrays' peak.
    pub issue_fraction: f64,
    /// Exposed fraction of the shorter of products and softmax in the forward pass.
    pub exposed_fraction: f64,
    /// Rate of the backward pass' products.
    pub backward_issue_fraction: f64,
    /// Exposed fraction of the shorter of products and softmax in the backward pass.
    pub backward_exposed_fraction: f64,
    /// Fraction of the vector lanes' peak that the softmax reaches.
    pub softmax_fraction: f64,
    /// Start and end of a tile of queries.
    pub tile_overhead: Seconds,
}

impl AttentionLibrary {
    /// Returns the library at a fraction of the chip's clock.
    #[must_use]
    pub fn at_clock(self, fraction: f64) -> Self {
        Self {
            issue_fraction: self.issue_fraction * fraction,
            backward_issue_fraction: self.backward_issue_fraction * fraction,
            softmax_fraction: self.softmax_fraction * fraction,
            ..self
        }
    }

    /// All scalars. A file that names the library gives all of them.
    pub const PARAMETERS: [FittedScalar<Self>; 6] = [
        FittedScalar {
            key: "issue_fraction",
            min: 0.01,
            max: 1.0,
            get: |a| a.issue_fraction,
            set: |a, v| a.issue_fraction = v,
        },
        FittedScalar {
            key: "exposed_fraction",
            min: 0.0,
            max: 1.0,
            get: |a| a.exposed_fraction,
            set: |a, v| a.exposed_fraction = v,
        },
        FittedScalar {
            key: "backward_issue_fraction",
            min: 0.01,
            max: 1.0,
            get: |a| a.backward_issue_fraction,
            set: |a, v| a.backward_issue_fraction = v,
        },
        FittedScalar {
            key: "backward_exposed_fraction",
            min: 0.0,
            max: 1.0,
            get: |a| a.backward_exposed_fraction,
            set: |a, v| a.backward_exposed_fraction = v,
        },
        FittedScalar {
            key: "softmax_fraction",
            min: 0.01,
            max: 8.0,
            get: |a| a.softmax_fraction,
            set: |a, v| a.softmax_fraction = v,
        },
        FittedScalar {
            key: "tile_overhead_us",
            min: 0.0,
            max: 1000.0,
            get: |a| a.tile_overhead.micros(),
            set: |a, v| a.tile_overhead = Seconds::from_micros(v),
        },
    ];
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
            decode: None,
            unaligned: None,
            formats: PerDataType::default(),
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
    /// All scalars. A file that has the table gives all of them. The tables of formats lie below this table.
    pub const PARAMETERS: [FittedScalar<Self>; 8] = [
        FittedScalar {
            key: "floor_us",
            min: 0.0,
            max: 1000.0,
            get: |l| l.floor.micros(),
            set: |l, v| l.floor = Seconds::from_micros(v),
        },
        FittedScalar {
            key: "issue_fraction",
            min: 0.01,
            max: 1.0,
            get: |l| l.issue_fraction,
            set: |l, v| l.issue_fraction = v,
        },
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
        FittedScalar {
            key: "read_fraction",
            min: 0.01,
            max: 1.0,
            get: |l| l.read_fraction,
            set: |l, v| l.read_fraction = v,
        },
        FittedScalar {
            key: "write_fraction",
            min: 0.01,
            max: 1.0,
            get: |l| l.write_fraction,
            set: |l, v| l.write_fraction = v,
        },
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
