//! The mapper's view of a contraction, and the least operand bytes into a memory of a given capacity.

use super::machine::Machine;
use super::tensor_core::{ACCUMULATOR, ceil_div, ceil_nonnegative};

/// A contraction as the mapper uses it, in floats. `operand` is in bytes per number.
#[derive(Debug, Clone, Copy)]
pub(super) struct MappingProblem {
    pub(super) batch: f64,
    pub(super) m: f64,
    pub(super) n: f64,
    pub(super) k: f64,
    pub(super) operand: f64,
    /// Bytes written per number of the result; less than a number's size if results are summed.
    pub(super) result: f64,
    /// Multiply-accumulates per multiply-accumulate unit and second.
    pub(super) rate: f64,
    /// Numbers along K that a multiply-accumulate unit contracts at once: at a double rate for a narrow type, it holds
    /// two weights.
    pub(super) depth: f64,
    /// Elementwise work on each result while it is on chip: seconds on the lanes, and further bytes read.
    pub(super) epilogue_time: f64,
    pub(super) epilogue_read: f64,
    /// Bytes written in addition to the result.
    pub(super) epilogue_written: f64,
}

impl MappingProblem {
    /// Returns the operand bytes into the cores with `tm` rows and `tn` columns of units.
    #[inline]
    pub(super) fn bytes_into_cores(&self, tm: f64, tn: f64) -> f64 {
        self.batch * self.k * self.operand * (self.m * tn + self.n * tm)
    }

    /// Returns the bytes of results, the epilogue's included.
    #[inline]
    pub(super) fn written_bytes(&self) -> f64 {
        self.batch * self.m * self.n * self.result + self.epilogue_written
    }
}

/// Returns the length along K of a tile's first chunk, in numbers (not bytes): enough to fill the array's rows once.
pub(super) fn chunk_length(machine: &Machine, k: f64) -> f64 {
    k.min(machine.arrays.rows)
}

/// Returns true if a tile (m, n) of a product over k fits into `capacity` bytes with one of its residents:
/// accumulators, left rows or right columns.
#[inline]
pub(super) fn fits_capacity(capacity: f64, m: f64, n: f64, k: f64, chunk: f64, operand: f64) -> bool {
    let accumulators = m * n * ACCUMULATOR + 2.0 * (m + n) * chunk * operand;
    if accumulators <= capacity {
        return true;
    }
    let least = 2.0 * chunk * operand;
    // One array-sized strip of results at a time, next to the resident operand.
    m * k * operand + least + chunk * m * ACCUMULATOR <= capacity
        || k * n * operand + least + chunk * n * ACCUMULATOR <= capacity
}

/// Returns the least operand bytes into a memory of `capacity` bytes for one product. Candidates are tiles with
/// accumulators resident here or in the `inner` bytes of inner memories, and resident panels of either operand. The
/// tiles are the even splits of M, each with the largest N that fits.
pub(super) fn least_operand_bytes(p: &MappingProblem, capacity: f64, inner: f64, chunk: f64) -> f64 {
    let (left, right) = (p.m * p.k * p.operand, p.k * p.n * p.operand);
    let compulsory = left + right;
    if compulsory <= capacity
        || left + 2.0 * chunk * p.operand <= capacity
        || right + 2.0 * chunk * p.operand <= capacity
    {
        return compulsory;
    }
    let panel = (capacity - 2.0 * chunk * p.operand) / (p.k * p.operand);
    let mut best = f64::INFINITY;
    if panel >= 1.0 {
        best = (left + right * ceil_div(p.m, panel.floor())).min(right + left * ceil_div(p.n, panel.floor()));
    }
    let mut split = 1.0;
    while split <= 4096.0 && right * split + left < best {
        let m = ceil_div(p.m, split);
        // m n 4 <= capacity + inner, 2 (m + n) chunk operand <= capacity
        let by_accumulators = (capacity + inner - 2.0 * m * chunk * p.operand) / (m * ACCUMULATOR);
        let by_chunks = capacity / (2.0 * chunk * p.operand) - m;
        let n = by_accumulators.min(by_chunks).floor().min(p.n);
        if n >= 1.0 {
            best = best.min(right * split + left * ceil_div(p.n, n));
        }
        split = if split < 16.0 { split + 1.0 } else { ceil_nonnegative(split * 1.25) };
    }
    if best.is_finite() { best } else { 2.0 * p.m * p.n * p.k * p.operand }
}
