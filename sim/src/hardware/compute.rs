//! The compute units: systolic arrays in tensor cores, lanes in vector cores.

use super::accumulators::Accumulation;
use crate::kernel::DataType;
use crate::units::Bytes;
use serde::{Deserialize, Serialize};

/// The operand that stays in the array while the others stream through it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Dataflow {
    /// Results accumulate in place, in registers beside the units (GPUs); both operands stream in.
    OutputStationary,
    /// The right operand stays; the left streams in, partial sums stream out.
    #[default]
    WeightStationary,
    /// The left operand stays; the right streams in, partial sums stream out.
    InputStationary,
}

/// A value per data type; absent if the type is not supported.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PerDataType<T> {
    /// IEEE binary32.
    #[serde(default = "none", skip_serializing_if = "Option::is_none")]
    pub fp32: Option<T>,
    /// bfloat16.
    #[serde(default = "none", skip_serializing_if = "Option::is_none")]
    pub bf16: Option<T>,
    /// IEEE binary16.
    #[serde(default = "none", skip_serializing_if = "Option::is_none")]
    pub fp16: Option<T>,
    /// 8-bit floating point.
    #[serde(default = "none", skip_serializing_if = "Option::is_none")]
    pub fp8: Option<T>,
    /// 8-bit integer.
    #[serde(default = "none", skip_serializing_if = "Option::is_none")]
    pub int8: Option<T>,
    /// 8-bit floating point in scaled blocks.
    #[serde(default = "none", skip_serializing_if = "Option::is_none")]
    pub mxfp8: Option<T>,
    /// 4-bit floating point in blocks of 16.
    #[serde(default = "none", skip_serializing_if = "Option::is_none")]
    pub nvfp4: Option<T>,
    /// 4-bit floating point in blocks of 32.
    #[serde(default = "none", skip_serializing_if = "Option::is_none")]
    pub mxfp4: Option<T>,
}

fn none<T>() -> Option<T> {
    None
}

impl<T> Default for PerDataType<T> {
    fn default() -> Self {
        Self { fp32: None, bf16: None, fp16: None, fp8: None, int8: None, mxfp8: None, nvfp4: None, mxfp4: None }
    }
}

impl<T: Copy> PerDataType<T> {
    /// Returns the value for a type; `None` if the type is not supported.
    #[must_use]
    pub fn get(&self, data_type: DataType) -> Option<T> {
        match data_type {
            DataType::Fp32 => self.fp32,
            DataType::Bf16 => self.bf16,
            DataType::Fp16 => self.fp16,
            DataType::Fp8 => self.fp8,
            DataType::Int8 => self.int8,
            DataType::Mxfp8 => self.mxfp8,
            DataType::Nvfp4 => self.nvfp4,
            DataType::Mxfp4 => self.mxfp4,
        }
    }

    /// The supported types with their values.
    pub fn iter(&self) -> impl Iterator<Item = (DataType, T)> + '_ {
        DataType::ALL.into_iter().filter_map(|data_type| Some((data_type, self.get(data_type)?)))
    }

    /// True if no type has a value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.iter().next().is_none()
    }

    /// Returns the value of a type, to be set or removed.
    pub fn value_mut(&mut self, data_type: DataType) -> &mut Option<T> {
        match data_type {
            DataType::Fp32 => &mut self.fp32,
            DataType::Bf16 => &mut self.bf16,
            DataType::Fp16 => &mut self.fp16,
            DataType::Fp8 => &mut self.fp8,
            DataType::Int8 => &mut self.int8,
            DataType::Mxfp8 => &mut self.mxfp8,
            DataType::Nvfp4 => &mut self.nvfp4,
            DataType::Mxfp4 => &mut self.mxfp4,
        }
    }

    /// Returns this table, with the other's values for the types that have none here.
    #[must_use]
    pub fn or_else_from(&self, other: &Self) -> Self {
        Self {
            fp32: self.fp32.or(other.fp32),
            bf16: self.bf16.or(other.bf16),
            fp16: self.fp16.or(other.fp16),
            fp8: self.fp8.or(other.fp8),
            int8: self.int8.or(other.int8),
            mxfp8: self.mxfp8.or(other.mxfp8),
            nvfp4: self.nvfp4.or(other.nvfp4),
            mxfp4: self.mxfp4.or(other.mxfp4),
        }
    }

    /// Returns the same table with `f` applied to every value.
    #[must_use]
    pub fn map_values<U>(&self, mut f: impl FnMut(T) -> U) -> PerDataType<U> {
        PerDataType {
            fp32: self.fp32.map(&mut f),
            bf16: self.bf16.map(&mut f),
            fp16: self.fp16.map(&mut f),
            fp8: self.fp8.map(&mut f),
            int8: self.int8.map(&mut f),
            mxfp8: self.mxfp8.map(&mut f),
            nvfp4: self.nvfp4.map(&mut f),
            mxfp4: self.mxfp4.map(&mut f),
        }
    }
}

/// The matrix units: `cores` cores of `arrays_per_core` systolic arrays of `rows` x `columns` multiply-accumulate
/// units.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct TensorCores {
    /// Cores on the chip (TPU TensorCores, GPU streaming multiprocessors or compute units).
    pub cores: u32,
    /// Arrays in each core (TPU MXUs, GPU tensor cores).
    pub arrays_per_core: u32,
    /// Rows of an array: the dimension by which its streaming operand enters.
    pub rows: u32,
    /// Columns of an array: the dimension by which results leave.
    pub columns: u32,
    /// The stationary operand.
    pub dataflow: Dataflow,
    /// True if the next stationary tile loads while the current one computes (a second weight register per unit). The
    /// fill then counts once per kernel, not once per tile.
    pub preload: bool,
    /// The place of partial sums between folds.
    pub accumulation: Accumulation,
    /// Multiply-accumulates per unit and cycle, by operand type: 1 is one per cycle, 2 a half-width type that packs
    /// two, a fraction a wide type that takes several passes. Absent: not supported.
    pub macs_per_unit_per_cycle: PerDataType<f64>,
}

impl TensorCores {
    /// Returns the number of multiply-accumulate units on the chip.
    #[must_use]
    pub fn unit_count(&self) -> u64 {
        u64::from(self.cores) * u64::from(self.arrays_per_core) * u64::from(self.rows) * u64::from(self.columns)
    }
}

/// The vector units.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct VectorCores {
    /// Cores on the chip.
    pub cores: u32,
    /// Results of the simplest function (an addition) per core and cycle: lanes x sublanes.
    pub lanes: u32,
    /// A vector core's own buffer; `None` if it shares the tensor core's local buffer.
    pub buffer: Option<Bytes>,
    /// Functions such as exponential, reciprocal, root and hyperbolic tangent that units beside the lanes compute, per
    /// core and cycle. With zero the lanes compute them.
    pub transcendentals_per_cycle: f64,
}
