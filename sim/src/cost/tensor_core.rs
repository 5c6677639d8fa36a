//! One systolic array without stalls: cycles and SRAM accesses of a product, exactly as SCALE-Sim counts them. Also the
//! cycles of a tile on the several arrays of a core.
//!
//! (Sr, Sc, T) is (M, N, K) for output stationary, (K, N, M) for weight stationary and (K, M, N) for input stationary.
//! An `R x C` array works through `F = ceil(Sr/R) ceil(Sc/C)` folds, each streaming `T` operands (Samajdar et al.,
//! *SCALE-Sim: Systolic CNN Accelerator Simulator*, 2018, equations 1 to 4).

use crate::hardware::{Accelerator, Accumulation, Dataflow};
use serde::{Deserialize, Serialize};

/// Bytes of an accumulator (fp32, or int32 for int8).
pub(super) const ACCUMULATOR: f64 = 4.0;

/// A product (m, k) x (k, n) on one array of `rows` x `columns` multiply-accumulate units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ArrayProblem {
    /// Rows of the array; zero counts as one.
    pub rows: u64,
    /// Columns of the array; zero counts as one.
    pub columns: u64,
    /// The stationary operand.
    pub dataflow: Dataflow,
    /// Rows of the left operand (im2col: output pixels).
    pub m: u64,
    /// Columns of the right operand (filters).
    pub n: u64,
    /// The contracted dimension (window).
    pub k: u64,
}

/// The counters of one array for a product whose operands are all in its SRAM.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ArrayReport {
    /// Folds: times that the array is filled with a stationary tile.
    pub folds: u64,
    /// Cycles without overlap between folds. SCALE-Sim's COMPUTE_REPORT prints this number minus one.
    pub cycles: u64,
    /// Percentage of the array's units that hold work, averaged over folds.
    pub mapping_efficiency_percent: f64,
    /// Percentage of unit-cycles that multiply.
    pub utilization_percent: f64,
    /// Words of the left operand read from SRAM.
    pub ifmap_reads: u64,
    /// Words of the right operand read from SRAM.
    pub filter_reads: u64,
    /// Words of the result written to SRAM.
    pub ofmap_writes: u64,
    /// [`Self::ofmap_writes`] as SCALE-Sim v3 prints it. Its count for output stationary is larger by `F (R + C)`: `F`
    /// folds on an array of `R` rows and `C` columns.
    pub ofmap_writes_scale_sim: u64,
}

/// Returns `(Sr, Sc, T)`: the dimensions mapped on the array's rows and columns, and the streamed one.
#[must_use]
pub fn map_on_array(dataflow: Dataflow, m: u64, n: u64, k: u64) -> (u64, u64, u64) {
    match dataflow {
        Dataflow::OutputStationary => (m, n, k),
        Dataflow::WeightStationary => (k, n, m),
        Dataflow::InputStationary => (k, m, n),
    }
}

/// Returns the cycles of one fold that streams `t` operands, from an empty array to an empty array.
#[must_use]
pub fn fold_cycles(dataflow: Dataflow, rows: u64, columns: u64, t: u64) -> u64 {
    let load = match dataflow {
        Dataflow::OutputStationary => 0,
        Dataflow::WeightStationary | Dataflow::InputStationary => rows,
    };
    load.saturating_add(rows).saturating_add(columns).saturating_add(t).saturating_sub(2)
}

/// Returns how often every result leaves the array: once per fold of the contracted dimension, or once where results
/// accumulate in place. All passes but the last are partial sums.
#[must_use]
pub fn count_result_passes(dataflow: Dataflow, rows: u64, k: u64) -> u64 {
    match dataflow {
        Dataflow::OutputStationary => 1,
        Dataflow::WeightStationary | Dataflow::InputStationary => k.div_ceil(rows.max(1)),
    }
}

impl ArrayProblem {
    /// Returns the stall-free cycles and SRAM accesses. With a dimension of zero all counts are zero. Counts saturate.
    #[must_use]
    pub fn run_stall_free(&self) -> ArrayReport {
        let (rows, columns) = (self.rows.max(1), self.columns.max(1));
        let (m, n, k) = (self.m, self.n, self.k);
        let (sr, sc, t) = map_on_array(self.dataflow, m, n, k);
        let (row_folds, column_folds) = (sr.div_ceil(rows), sc.div_ceil(columns));
        let folds = if t == 0 { 0 } else { row_folds.saturating_mul(column_folds) };
        let cycles = folds.saturating_mul(fold_cycles(self.dataflow, rows, columns, t));
        let words = |a: u64, b: u64, times: u64| a.saturating_mul(b).saturating_mul(times);
        let (ifmap_reads, filter_reads) = match self.dataflow {
            Dataflow::OutputStationary => (words(m, k, column_folds), words(k, n, row_folds)),
            Dataflow::WeightStationary => (words(m, k, column_folds), words(k, n, 1)),
            Dataflow::InputStationary => (words(m, k, 1), words(k, n, column_folds)),
        };
        let ofmap_writes = words(m, n, count_result_passes(self.dataflow, rows, k));
        let slip = match self.dataflow {
            Dataflow::OutputStationary => folds.saturating_mul(rows + columns),
            Dataflow::WeightStationary | Dataflow::InputStationary => 0,
        };
        let units = rows as f64 * columns as f64;
        let percent = |part: f64, whole: f64| if whole > 0.0 { 100.0 * part / whole } else { 0.0 };
        ArrayReport {
            folds,
            cycles,
            mapping_efficiency_percent: percent(sr as f64 * sc as f64, folds as f64 * units),
            utilization_percent: percent(m as f64 * n as f64 * k as f64, cycles as f64 * units),
            ifmap_reads,
            filter_reads,
            ofmap_writes,
            ofmap_writes_scale_sim: ofmap_writes.saturating_add(slip),
        }
    }
}

/// The arrays of one core, as the mapper uses them. All figures are `f64`: every count here is below 2^53.
#[derive(Debug, Clone, Copy)]
pub(super) struct CoreArrays {
    pub(super) dataflow: Dataflow,
    pub(super) preload: bool,
    pub(super) count: f64,
    pub(super) rows: f64,
    pub(super) columns: f64,
    pub(super) sums: SumPlace,
}

/// The place of partial sums between folds, as the mapper uses it.
#[derive(Debug, Clone, Copy)]
pub(super) enum SumPlace {
    /// Partial sums take no time.
    Free,
    /// At the ports of the core's innermost memory.
    LocalBuffer,
    /// In accumulators: bytes of a core, seconds per byte, and joules per byte that is both written and read. The sums
    /// stay at the innermost memory instead if that is better.
    Memory { capacity: f64, read: f64, write: f64, energy: f64 },
}

impl SumPlace {
    /// Returns the seconds per byte that is both written to the accumulators and read from them; zero if the chip has
    /// none.
    pub(super) fn seconds_per_byte(self) -> f64 {
        match self {
            Self::Memory { read, write, .. } => read.max(write),
            Self::Free | Self::LocalBuffer => 0.0,
        }
    }

    /// Returns the joules per byte that is both written to the accumulators and read from them; zero if the chip has
    /// none.
    pub(super) fn energy_per_byte(self) -> f64 {
        match self {
            Self::Memory { energy, .. } => energy,
            Self::Free | Self::LocalBuffer => 0.0,
        }
    }

    /// The places that software can choose from.
    pub(super) fn list_alternatives(self) -> impl Iterator<Item = Self> {
        let local = matches!(self, Self::Memory { .. }).then_some(Self::LocalBuffer);
        std::iter::once(self).chain(local)
    }

    pub(super) fn of_chip(accelerator: &Accelerator) -> Self {
        let per_byte = |bytes_per_cycle: f64| 1.0 / (bytes_per_cycle * accelerator.clock.0);
        match (accelerator.tensor.dataflow, &accelerator.tensor.accumulation) {
            (Dataflow::OutputStationary, _) | (_, Accumulation::DedicatedPorts) => Self::Free,
            (_, Accumulation::LocalBuffer) => Self::LocalBuffer,
            (_, Accumulation::Memory(memory)) => Self::Memory {
                capacity: memory.capacity.as_f64(),
                read: per_byte(memory.read_bytes_per_cycle),
                write: per_byte(memory.write_bytes_per_cycle),
                energy: memory.read_energy_per_byte.0 + memory.write_energy_per_byte.0,
            },
        }
    }
}

impl CoreArrays {
    /// Returns how often a product over `k` writes each sum as a partial one. It reads each sum as often.
    pub(super) fn partial_passes(&self, k: f64) -> f64 {
        count_result_passes(self.dataflow, self.rows as u64, k as u64).saturating_sub(1) as f64
    }

    /// Returns how often the stationary operand of a product (m, n, k) enters the arrays if the sums stay in
    /// accumulators of `capacity` bytes and `arrays` arrays share the folds. The sums of the columns in progress must
    /// fit, so the streamed dimension is cut into chunks. `None` if a chunk is shorter than the load of the next fold.
    pub(super) fn stationary_passes(&self, capacity: f64, m: f64, n: f64, k: f64, arrays: f64) -> Option<f64> {
        let (_, spatial, streamed) = self.mapped_dimensions(m, n, k);
        let wide = spatial.min(self.columns * arrays);
        let chunks = ceil_div(streamed * wide * ACCUMULATOR, capacity);
        let hidden = self.preload && floor_nonnegative(streamed / chunks) >= self.load_cycles(k.min(self.rows));
        (chunks <= 1.0 || hidden).then_some(chunks)
    }

    /// Returns the cycles of `folds` folds that stream `t` operands on one array, each loading `used` rows. With
    /// preload the next stationary tile loads while the current one streams, so filling and draining count once per
    /// kernel ([`CoreArrays::fill_cycles`]). Without preload they count once per fold, as in SCALE-Sim.
    fn cycles_of_folds(&self, folds: f64, t: f64, used: f64) -> f64 {
        if !self.preload {
            return folds * (t + self.load_cycles(self.rows) + self.rows + self.columns - 2.0);
        }
        folds * t.max(self.load_cycles(used))
    }

    fn load_cycles(&self, used_rows: f64) -> f64 {
        match self.dataflow {
            Dataflow::OutputStationary => 0.0,
            Dataflow::WeightStationary | Dataflow::InputStationary => used_rows,
        }
    }

    /// Returns the cycles that a preloading array adds once per kernel: the way through the rows and columns that a
    /// product (m, n, k) uses, or the load of its first stationary tile if that takes longer. Zero without preload,
    /// where every fold includes both.
    pub(super) fn fill_cycles(&self, m: f64, n: f64, k: f64) -> f64 {
        if !self.preload {
            return 0.0;
        }
        let (sr, sc, _) = self.mapped_dimensions(m, n, k);
        let (rows, columns) = (sr.min(self.rows), sc.min(self.columns));
        (rows + columns - 2.0).max(self.load_cycles(rows))
    }

    /// Returns the array dimensions that M and N are mapped on; `None` for the streamed one.
    pub(super) fn spatial_granules(&self) -> (Option<f64>, Option<f64>) {
        match self.dataflow {
            Dataflow::OutputStationary => (Some(self.rows), Some(self.columns)),
            Dataflow::WeightStationary => (None, Some(self.columns)),
            Dataflow::InputStationary => (Some(self.columns), None),
        }
    }

    fn mapped_dimensions(&self, m: f64, n: f64, k: f64) -> (f64, f64, f64) {
        match self.dataflow {
            Dataflow::OutputStationary => (m, n, k),
            Dataflow::WeightStationary => (k, n, m),
            Dataflow::InputStationary => (k, m, n),
        }
    }

    /// Returns the cycles of a tile on `workers` of the core's arrays together. The arrays share the folds, split the
    /// streamed dimension, or do both (`workers` = a x b: a arrays over folds, b over the stream), whichever is
    /// fastest.
    pub(super) fn tile_cycles(&self, m: f64, n: f64, k: f64, workers: f64) -> f64 {
        let (sr, sc, t) = self.mapped_dimensions(m, n, k);
        let used = sr.min(self.rows);
        let folds = ceil_div(sr, self.rows) * ceil_div(sc, self.columns);
        if workers <= 1.0 {
            return self.cycles_of_folds(folds, t, used);
        }
        let mut best = self.cycles_of_folds(ceil_div(folds, workers), t, used);
        let mut split = 2.0;
        while split <= workers {
            best = best.min(self.cycles_of_folds(
                ceil_div(folds, floor_nonnegative(workers / split)),
                ceil_div(t, split),
                used,
            ));
            split *= 2.0;
        }
        best
    }
}

/// Returns ceil(a / b) of whole numbers held as floats.
#[inline]
pub(super) fn ceil_div(a: f64, b: f64) -> f64 {
    ceil_nonnegative(a / b)
}

/// Returns [`f64::ceil`] of a number that is not negative, without a function call. Processors before SSE4.1, Rust's
/// default target, need that call, and the mapper rounds up dozens of times per candidate.
#[inline]
pub(super) fn ceil_nonnegative(x: f64) -> f64 {
    /// 2^52: from here on every float is whole, so adding it rounds to the nearest whole number.
    const WHOLE: f64 = 4_503_599_627_370_496.0;
    if x >= WHOLE {
        return x;
    }
    let nearest = (x + WHOLE) - WHOLE;
    if nearest < x { nearest + 1.0 } else { nearest }
}

/// Returns [`f64::floor`], implemented like [`ceil_nonnegative`].
#[inline]
pub(super) fn floor_nonnegative(x: f64) -> f64 {
    let above = ceil_nonnegative(x);
    if above > x { above - 1.0 } else { above }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn the_short_ceil_is_the_long_one(x in prop_oneof![0.0..1e3, 0.0..1e12, 0.0..1e19, proptest::num::f64::POSITIVE]) {
            prop_assert_eq!(ceil_nonnegative(x), x.ceil());
            prop_assert_eq!(ceil_nonnegative(x.trunc()), x.trunc());
            prop_assert_eq!((floor_nonnegative(x), floor_nonnegative(x.trunc())), (x.floor(), x.trunc()));
        }
    }

    #[test]
    fn no_work_takes_no_cycles() {
        for dataflow in [Dataflow::OutputStationary, Dataflow::WeightStationary, Dataflow::InputStationary] {
            let report = ArrayProblem { rows: 8, columns: 8, dataflow, m: 4, n: 0, k: 4 }.run_stall_free();
            assert_eq!((report.folds, report.cycles, report.ofmap_writes), (0, 0, 0), "{dataflow:?}");
        }
    }

    #[test]
    fn absurd_sizes_saturate() {
        let report = ArrayProblem {
            rows: 8,
            columns: 8,
            dataflow: Dataflow::WeightStationary,
            m: u64::MAX,
            n: u64::MAX,
            k: u64::MAX,
        }
        .run_stall_free();
        assert_eq!(report.cycles, u64::MAX);
    }

    #[test]
    fn preload_hides_the_fill_and_several_arrays_share_the_folds() {
        let mut arrays = CoreArrays {
            dataflow: Dataflow::WeightStationary,
            preload: false,
            count: 4.0,
            rows: 128.0,
            columns: 128.0,
            sums: SumPlace::Free,
        };
        let alone = arrays.tile_cycles(512.0, 512.0, 512.0, 1.0);
        assert_eq!(
            alone,
            ArrayProblem { rows: 128, columns: 128, dataflow: Dataflow::WeightStationary, m: 512, n: 512, k: 512 }
                .run_stall_free()
                .cycles as f64
        );
        assert_eq!(arrays.tile_cycles(512.0, 512.0, 512.0, arrays.count), alone / 4.0);
        arrays.preload = true;
        assert_eq!(arrays.tile_cycles(512.0, 512.0, 512.0, 4.0), 4.0 * 512.0);
    }
}
