//! Products as a vendor's kernel library runs them: tiles of the shapes that libraries have, in waves over the cores.
//!
//! Every core works on one tile at a time. A step of its inner loop takes the longer of its products and of its loads from the
//! shared cache; a tile adds its start and end. Tiles run in waves: the last, partly filled one takes as long as the others.
//! The contracted dimension may be split over cores, the parts are then summed. Beside the waves the device's memory moves
//! what the shared cache does not hold, and power holds the clock below what arrays and memory would draw together. The
//! fastest tile and split are taken, as a library's heuristics (or its tuning) take them.
//!
//! The scalars are [`KernelLibrary`]'s; what is a constant here was found alike on the chips that were measured (A100, H100).

use super::machine::{Machine, SpanResources};
use super::mapping::MappingProblem;
use super::tensor_core::ceil_div;
use super::{Bottleneck, CostModel, KernelCost, Traffic};
use crate::hardware::{Accelerator, KernelLibrary};
use crate::kernel::{Contraction, DataType};
use crate::units::Seconds;

/// Tiles of results: what CUTLASS' and cuBLAS' kernels offer for tensor cores, and the narrow ones of products by a few rows.
const TILES: [(f64, f64); 20] = [
    (256.0, 128.0),
    (128.0, 256.0),
    (128.0, 128.0),
    (256.0, 64.0),
    (64.0, 256.0),
    (128.0, 64.0),
    (64.0, 128.0),
    (64.0, 64.0),
    (32.0, 128.0),
    (128.0, 32.0),
    (64.0, 32.0),
    (32.0, 64.0),
    (16.0, 128.0),
    (16.0, 64.0),
    (128.0, 16.0),
    (64.0, 16.0),
    (32.0, 32.0),
    (16.0, 32.0),
    (8.0, 64.0),
    (8.0, 128.0),
];

/// Parts that the contracted dimension is cut into.
const SPLITS: [f64; 9] = [1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0];

/// Bytes of the contracted dimension that a step of the inner loop takes: one line of the shared memory's 128 B.
const STEP_BYTES: f64 = 128.0;

/// Bytes that a thread's load or store moves at once where the rows of a matrix allow it.
const VECTOR_BYTES: u64 = 16;

/// Bytes at whose multiples the matrices of a batch have to start for its products to run on tensor cores: one after another in rows of a head's
/// numbers, those of 150 16-bit ones start at multiples of 4. cuBLAS asks for 16 (its library documentation, "Tensor Core Usage"), and has kernels
/// that load less at once for single products.
const BATCH_BYTES: f64 = 8.0;

/// Part of the fp32 units' rate at which such products run instead. Fitted on what a sequence takes more in a layer of 96 heads of 150 numbers than
/// in one of 64 heads of 224 (Megatron-DeepSpeed on A100, micro-batches of 1 to 8).
const SCATTERED_ISSUE: f64 = 0.43;

/// Starting the sum of the parts of a split: a second kernel, or a turn at the semaphore. Fitted: 2.2 us on A100, 2.8 on H100.
const SPLIT_OVERHEAD: f64 = 2.5e-6;

/// First bytes from the device's memory: latency and the ramp of the first wave. Fitted: 1.5 us on A100 and on H100.
const MEMORY_RAMP: f64 = 1.5e-6;

/// Part of the shorter of computing and moving that the longer does not hide. Fitted: 0.15 on A100, 0.05 on H100.
const EXPOSED: f64 = 0.1;

/// Power of the device's memory at its peak over what the chip's power leaves for dynamic use. Fitted on H100: 0.20; HBM3 at
/// 3.35 TB/s and some 4 pJ a bit draws 110 of 570 W.
const MEMORY_POWER: f64 = 0.2;

/// Part of the shared cache that repeated runs of one product find filled. Fitted: 0.43 on A100, 0.47 on H100.
const CACHE_HELD: f64 = 0.45;

/// Sets of weights that measurements of single products take in turn, so that caches do not flatter them.
const WEIGHT_SETS: f64 = 5.0;

/// What 8-bit products keep of the rate that power lets 16-bit ones have relative to their peaks. Fitted on H100.
const NARROW_POWER: f64 = 0.926;

/// A kernel library on a chip, in rates.
#[derive(Debug, Clone, Copy)]
pub(super) struct LibraryModel {
    pub(super) scalars: KernelLibrary,
    /// Bytes per second into one core.
    core_read: f64,
    /// Seconds per byte from and to the device's memory.
    pub(super) read: f64,
    pub(super) write: f64,
    /// Seconds per byte at its peak.
    peak: f64,
    /// Whether a kernel runs alone and again and again: its floor shows, and caches hold what fits.
    alone: bool,
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

    /// The same where one kernel is measured alone.
    pub(super) fn measured_alone(self) -> Self {
        Self { alone: true, ..self }
    }

    /// Bytes per second that a core's loads bring in.
    pub(super) fn core_read_rate(&self) -> f64 {
        self.core_read
    }

    /// The least that a kernel takes: in a stream the launches of a stack stand for it.
    fn floor_seconds(&self) -> f64 {
        if self.alone { self.scalars.floor.0 } else { 0.0 }
    }

    /// Part of the operands that the device's memory has to move, from 0 to 1.
    fn missed_fraction(&self, view: &SpanResources, p: &MappingProblem) -> f64 {
        let Some(cache) = view.shared.last().filter(|_| self.alone && view.shared.len() > 1 && p.batch <= 1.0) else {
            return 1.0;
        };
        let held = CACHE_HELD * cache.capacity;
        let set = p.m * p.k * p.operand + WEIGHT_SETS * p.n * p.k * p.operand + p.m * p.n * p.result;
        (set / held - 1.0).clamp(0.0, 1.0)
    }
}

/// What power lets a product of a type keep of the arrays' peak.
fn power_fraction(machine: &Machine, operand: DataType) -> f64 {
    let narrow = if operand.bytes() == 1 { NARROW_POWER } else { 1.0 };
    machine.calibration.tensor_achieved_fraction * narrow
}

/// Part of a full vector's width that loads along rows of `length` numbers have: rows that do not start at multiples of 16 B are
/// loaded in smaller pieces.
pub(super) fn vector_alignment(length: u64, bytes: u64) -> f64 {
    let row = length.saturating_mul(bytes).max(1);
    let width = 1_u64 << row.trailing_zeros().min(VECTOR_BYTES.trailing_zeros());
    width as f64 / VECTOR_BYTES as f64
}

/// A tile, a split, and what they take.
#[derive(Debug, Clone, Copy)]
struct TileChoice {
    time: f64,
    work: f64,
    moving: f64,
    /// Operand bytes from the device's memory and from the shared cache.
    fetched: f64,
    loaded: f64,
    partials: f64,
}

/// What does not depend on the tile.
struct TileInvariants<'a> {
    p: &'a MappingProblem,
    library: &'a LibraryModel,
    cores: f64,
    /// Seconds of one core for a multiply-accumulate and for a loaded byte.
    mac: f64,
    load: f64,
    /// Seconds that power allows the products not to undercut.
    power: f64,
    missed: f64,
    step: f64,
    /// Seconds per byte of partial results in the shared cache.
    partial: f64,
}

/// The cost of a product on the whole chip; `operations` lane-cycles of elementwise work are in the problem.
pub(super) fn cost_of_product(
    model: &CostModel,
    view: &SpanResources,
    library: &LibraryModel,
    c: &Contraction,
    p: &MappingProblem,
    operations: f64,
) -> KernelCost {
    let machine = &model.machine;
    let chosen = choose_fastest_tile(machine, view, library, c, p);
    let total = library.floor_seconds() + chosen.time;
    let mut traffic = Traffic::default();
    let last = view.shared.len().saturating_sub(1);
    for (i, level) in view.shared.iter().enumerate() {
        let read = if i == last && i > 0 { chosen.loaded } else { chosen.fetched };
        let filled = if i == 0 { 0.0 } else { chosen.fetched };
        let parked = if i == last { chosen.partials } else { 0.0 };
        traffic.add_traffic(level.index, read + p.epilogue_read + parked, p.written_bytes() + filled + parked);
    }
    for level in &view.local {
        traffic.add_traffic(level.index, chosen.loaded, chosen.loaded);
    }
    let bound = if library.floor_seconds() > chosen.time {
        Bottleneck::Overhead
    } else if chosen.work >= chosen.moving {
        Bottleneck::Compute
    } else {
        Bottleneck::Memory(view.shared.first().map_or(0, |level| level.index as u8))
    };
    let energy = model.energy_model();
    KernelCost {
        latency: Seconds(total),
        energy: model.add_traffic_energy(&traffic)
            + energy.macs_energy(c.operand, CostModel::count_macs(c))
            + energy.vector_energy(operations as u128),
        traffic,
        utilization: p.batch * p.m * p.n * p.k / (machine.peak_macs(view, c.operand) * total),
        bound,
    }
}

/// The latency of [`cost_of_product`].
pub(super) fn latency_of_product(
    machine: &Machine,
    view: &SpanResources,
    library: &LibraryModel,
    c: &Contraction,
    p: &MappingProblem,
) -> f64 {
    library.floor_seconds() + choose_fastest_tile(machine, view, library, c, p).time
}

/// Equal products in one call, without their floor.
pub(super) fn time_of_group(machine: &Machine, view: &SpanResources, library: &LibraryModel, c: &Contraction) -> f64 {
    choose_fastest_tile(machine, view, library, c, &MappingProblem::of_contraction(machine, view, c, None)).time
}

/// The fastest tile and split.
fn choose_fastest_tile(
    machine: &Machine,
    view: &SpanResources,
    library: &LibraryModel,
    c: &Contraction,
    p: &MappingProblem,
) -> TileChoice {
    let core = machine.core_peak(c.operand);
    let vector = vector_alignment(c.k, c.operand.bytes()).min(vector_alignment(c.n, c.operand.bytes()));
    let scattered = c.batch > 1 && vector * (VECTOR_BYTES as f64) < BATCH_BYTES;
    let rate =
        if scattered { SCATTERED_ISSUE * view.lanes / view.cores * machine.clock } else { core * library.scalars.issue_fraction };
    let frame = TileInvariants {
        p,
        library,
        cores: view.cores,
        mac: 1.0 / rate,
        load: 1.0 / (library.core_read * vector),
        power: p.batch * p.m * p.n * p.k / (core * view.cores * power_fraction(machine, c.operand)),
        missed: library.missed_fraction(view, p),
        step: STEP_BYTES / p.operand,
        partial: view.shared.last().map_or(0.0, |level| level.write),
    };
    let mut best: Option<TileChoice> = None;
    for tile in TILES {
        for split in SPLITS {
            if split > 1.0 && p.k < 2.0 * split * frame.step {
                break;
            }
            let chosen = frame.evaluate_tile(tile, split);
            if best.is_none_or(|best| chosen.time < best.time) {
                best = Some(chosen);
            }
        }
    }
    best.unwrap_or(TileChoice { time: 0.0, work: 0.0, moving: 0.0, fetched: 0.0, loaded: 0.0, partials: 0.0 })
}

impl TileInvariants<'_> {
    fn evaluate_tile(&self, (tm, tn): (f64, f64), split: f64) -> TileChoice {
        let (p, library) = (self.p, self.library);
        let (rows, columns) = (ceil_div(p.m, tm), ceil_div(p.n, tn));
        let tiles = rows * columns;
        let steps = ceil_div(p.k, self.step * split);
        let step_bytes = (tm + tn) * self.step * p.operand;
        let step = (tm * tn * self.step * self.mac).max(step_bytes * self.load);
        let waves = ceil_div(p.batch * tiles * split, self.cores);
        let fetched = self.fetched_bytes((tm, tn), (rows, columns), p.batch * tiles);
        let written = p.written_bytes();
        let moving = (fetched + p.epilogue_read) * library.read + written * library.write + MEMORY_RAMP * self.missed;
        let moved = fetched + p.epilogue_read + written;
        let powered = self.power + MEMORY_POWER * moved * library.peak;
        let work = (waves * (steps * step + library.scalars.tile_overhead.0)).max(powered).max(p.epilogue_time);
        let partials = if split > 1.0 { p.batch * p.m * p.n * split * super::mapping::ACCUMULATOR } else { 0.0 };
        let sum = if split > 1.0 { partials * self.partial + SPLIT_OVERHEAD } else { 0.0 };
        let loaded = p.batch * tiles * split * steps * step_bytes;
        TileChoice { time: work.max(moving) + EXPOSED * work.min(moving) + sum, work, moving, fetched, loaded, partials }
    }

    /// Operand bytes out of the device's memory: the tiles of a wave lie in a block as square as it goes, which reads each of
    /// its rows and columns once.
    fn fetched_bytes(&self, (tm, tn): (f64, f64), (rows, columns): (f64, f64), tiles: f64) -> f64 {
        let p = self.p;
        let at_once = (rows * columns).min(self.cores);
        let down = (at_once * tn / tm).sqrt().clamp(1.0, rows);
        let across = (at_once / down).min(columns);
        let down = (at_once / across).min(rows);
        let blocks = (tiles / at_once).max(p.batch);
        let least = p.batch * (p.m + p.n);
        (blocks * (down * tm + across * tn)).max(least) * p.k * p.operand * self.missed
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn rows_that_start_off_a_vector_are_loaded_in_pieces() {
        assert_eq!(vector_alignment(4096, 2), 1.0);
        assert_eq!(vector_alignment(150, 2), 0.25);
        assert_eq!(vector_alignment(192, 2), 1.0);
        assert_eq!(vector_alignment(4097, 1), 1.0 / 16.0);
    }
}
