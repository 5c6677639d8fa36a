//! Calculon (Isaev, McDonald, Dennison, Vuduc, *Calculon: a methodology and tool for high-level co-design of systems
//! and large language models*, SC 2023): reads its description of a system as a chip and as a fabric.
//!
//! A system has a matrix and a vector engine, two memories and numbered networks. For each, the file states the
//! fraction of the rate that operations achieve, by the size of the operation. coplace keeps peaks, bandwidths,
//! capacities and the fraction of the largest operations. It drops the lower steps of the curves, because its own model
//! of tiles and launches gives the losses of small operations.
//!
//! Both forms of the file are read: Calculon 1.0's (`matrix.float16.tflops`, `ops` with a factor and an offset) and the
//! earlier one (`matrix.tflops`, `ops` with a factor, `collective_minus1_scalar`).

mod chip;
mod fabric;
mod read;
#[cfg(test)]
mod tests;

pub use fabric::CalculonAxis;

use serde_json::Value;
use sim::files::FileError;
use sim::kernel::DataType;
use sim::units::{Bytes, BytesPerSecond, FlopsPerSecond, Seconds};

/// Fractions of peak by size, largest first: the fraction that an operation of at least this size achieves.
#[derive(Debug, Clone, PartialEq)]
pub struct EfficiencyCurve(pub Vec<(f64, f64)>);

impl EfficiencyCurve {
    /// Returns the fraction that the largest operations achieve.
    #[must_use]
    pub fn largest_efficiency(&self) -> f64 {
        self.0.first().map_or(1.0, |(_, fraction)| *fraction)
    }
}

/// An engine's rate for one data type.
#[derive(Debug, Clone, PartialEq)]
pub struct CalculonEngine {
    /// The type.
    pub data_type: DataType,
    /// Its peak.
    pub peak: FlopsPerSecond,
    /// The fraction of the peak that an operation achieves, by its FLOPs.
    pub efficiency: EfficiencyCurve,
}

/// A memory.
#[derive(Debug, Clone, PartialEq)]
pub struct CalculonMemory {
    /// Its capacity, 1 PiB at most.
    pub capacity: Bytes,
    /// The capacity that the file states, in GiB, if it is above 1 PiB: Calculon's way to write an endless memory.
    pub beyond_gib: Option<f64>,
    /// Peak rate, reads and writes together.
    pub bandwidth: BytesPerSecond,
    /// The fraction of the peak rate that an operation achieves, by its bytes.
    pub efficiency: EfficiencyCurve,
}

/// The bytes that an operation on `n` members sends: `factor * (1 + offset / n)` times its size.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CalculonOperation {
    /// The factor.
    pub factor: f64,
    /// The offset; 0 for a send.
    pub offset: f64,
}

/// A network.
#[derive(Debug, Clone, PartialEq)]
pub struct CalculonNetwork {
    /// Bytes per second of an endpoint, one direction.
    pub bandwidth: BytesPerSecond,
    /// The fraction of the bandwidth that operations achieve.
    pub efficiency: f64,
    /// Endpoints.
    pub size: u32,
    /// Time that every operation takes in addition to moving its bytes.
    pub latency: Seconds,
    /// `p2p`, `reduce_scatter`, `all_gather`, `all_reduce`, in this order.
    pub operations: [CalculonOperation; 4],
    /// True if the groups of ranks on the network must fill it.
    pub must_be_filled: bool,
    /// Fraction of the processor that overlapped communication takes.
    pub processor_usage: f64,
}

/// The names of [`CalculonNetwork::operations`].
pub const OPERATIONS: [&str; 4] = ["p2p", "reduce_scatter", "all_gather", "all_reduce"];

/// A system.
#[derive(Debug, Clone, PartialEq)]
pub struct CalculonSystem {
    /// The file's name in errors.
    pub file: String,
    /// The matrix engine, by type; at least one.
    pub matrix: Vec<CalculonEngine>,
    /// The vector engine, by type; at least one.
    pub vector: Vec<CalculonEngine>,
    /// The device's memory.
    pub memory: CalculonMemory,
    /// The memory behind the device's; `None` if it has no capacity.
    pub host: Option<CalculonMemory>,
    /// True if an operation takes the longer of computing and moving (`roofline`), false if it takes their sum
    /// (`no_overlap`).
    pub roofline: bool,
    /// The networks, by number.
    pub networks: Vec<CalculonNetwork>,
}

impl CalculonSystem {
    /// True if a JSON text is a Calculon system, valid or not, and not another tool's file.
    #[must_use]
    pub fn recognises(text: &str) -> bool {
        let value: Result<Value, _> = serde_json::from_str(text);
        value.is_ok_and(|value| ["mem1", "networks", "processing_mode"].iter().any(|key| value.get(key).is_some()))
    }

    /// Reads a system; `file` names it in errors.
    ///
    /// # Errors
    /// Malformed JSON, missing or unknown keys, or impossible figures; all of them are listed by their path in the
    /// file.
    pub fn from_json_str(text: &str, file: &str) -> Result<Self, FileError> {
        read::read_system(text, file)
    }

    /// Returns the file's name without folders and extension.
    #[must_use]
    pub fn name(&self) -> &str {
        let name = self.file.rsplit(['/', '\\']).next().unwrap_or(&self.file);
        name.strip_suffix(".json").unwrap_or(name)
    }
}
