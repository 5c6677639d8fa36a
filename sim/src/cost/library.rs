//! Products as a vendor's kernel library runs them: tiles of the library's shapes, in waves over the cores.
//!
//! Every core works on one tile at a time. A step of its inner loop takes the longer of its products and its loads from
//! the shared cache; a tile adds its start and end. A partly filled last wave takes as long as a full one. The
//! contracted dimension may be split over cores, and the parts are then summed. Meanwhile the device's memory moves the
//! data that the shared cache does not hold. The chip's power limit bounds the joint draw of arrays and memory, which
//! adds a lower bound on the time. The model takes the fastest tile and split, as a library's heuristics or tuning do.
//!
//! The scalars are [`KernelLibrary`]'s. The constants here agree on the chips that were measured (A100, H100).

use super::library_model::LibraryModel;
use super::machine::{Machine, SpanResources};
use super::mapping_problem::MappingProblem;
use super::tensor_core::ceil_div;
use super::{Bottleneck, CostModel, KernelCost, Traffic};
use crate::kernel::{Contraction, DataType};
use crate::units::Seconds;

/// Result tiles: those of CUTLASS' and cuBLAS' tensor-core kernels, and narrow ones for products with a few rows.
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

/// Splits of the contracted dimension.
const SPLITS: [f64; 9] = [1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0];

/// Bytes of the contracted dimension per step of the inner loop: one line of shared memory, 128 B.
const STEP_BYTES: f64 = 128.0;

/// Most bytes that a thread loads or stores at once; the alignment of a matrix's rows may allow fewer.
const VECTOR_BYTES: u64 = 16;

/// Alignment in bytes that the matrices of a batch need for their products to run on tensor cores. The matrices lie one
/// after another in rows as long as a head's dimension. Rows of 150 16-bit numbers are aligned to 4 bytes. cuBLAS asks
/// for 16 (its library documentation, "Tensor Core Usage"), but has kernels with smaller loads for single products.
const BATCH_BYTES: f64 = 8.0;

/// Sets of weights that measurements of single products rotate through, to defeat caches.
const WEIGHT_SETS: f64 = 5.0;

/// Returns the fraction of the operands that the device's memory has to move, from 0 to 1.
fn missed_fraction(library: &LibraryModel, view: &SpanResources, p: &MappingProblem) -> f64 {
    let Some(cache) = view.shared.last().filter(|_| library.alone && view.shared.len() > 1 && p.batch <= 1.0) else {
        return 1.0;
    };
    let held = library.constants.cache_held * cache.capacity;
    let set = p.m * p.k * p.operand + WEIGHT_SETS * p.n * p.k * p.operand + p.m * p.n * p.result;
    (set / held - 1.0).clamp(0.0, 1.0)
}

/// Returns the fraction of the arrays' peak that power allows a product of this type.
fn power_fraction(machine: &Machine, library: &LibraryModel, operand: DataType) -> f64 {
    let narrow = if operand.bytes() == 1 { library.constants.narrow_power } else { 1.0 };
    let measured = machine.calibration.achieved_by_format.get(operand);
    measured.unwrap_or(machine.calibration.tensor_achieved_fraction * narrow)
}

/// Returns the load width along the rows of a product's matrices, as a fraction of a full vector. Rows lie along the
/// contracted dimension or the result's columns, never along the left operand's rows. Weight gradients, which have fp32
/// results, are the exception. Their operands are contiguous in both dimensions of the result, and tokens are
/// contracted.
fn narrowest_row(c: &Contraction) -> f64 {
    let is_gradient = c.result == DataType::Fp32 && c.operand.bytes() == 2;
    let other = if is_gradient { c.m } else { c.k };
    vector_alignment(other, c.operand.bytes()).min(vector_alignment(c.n, c.operand.bytes()))
}

/// Returns the load width of a product's operands, as a fraction of a full vector.
fn load_width_of_product(library: &LibraryModel, c: &Contraction) -> f64 {
    let width = narrowest_row(c);
    if c.batch > 1 { width } else { width.max(library.constants.unaligned_loads) }
}

/// Returns the fraction of the arrays' peak that kernels for unaligned rows reach; `None` for aligned rows, and on
/// chips where those kernels were not measured.
fn unaligned_fraction(library: &LibraryModel, c: &Contraction) -> Option<f64> {
    let kernels = library.scalars.unaligned.filter(|_| c.operand.bytes() == 2)?;
    match narrowest_row(c) * VECTOR_BYTES as f64 {
        bytes if bytes >= VECTOR_BYTES as f64 => None,
        bytes if bytes >= 4.0 => Some(kernels.pieces),
        _ => Some(kernels.numbers),
    }
}

/// Returns the load width along rows of `length` numbers, as a fraction of a full vector. Rows that do not start at
/// multiples of 16 B are loaded in smaller pieces.
pub(super) fn vector_alignment(length: u64, bytes: u64) -> f64 {
    let row = length.saturating_mul(bytes).max(1);
    let width = 1_u64 << row.trailing_zeros().min(VECTOR_BYTES.trailing_zeros());
    width as f64 / VECTOR_BYTES as f64
}

/// The time and traffic of one tile and split.
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

/// Parameters of a product that do not depend on the tile.
struct TileInvariants<'a> {
    p: &'a MappingProblem,
    library: &'a LibraryModel,
    cores: f64,
    /// A core's seconds per multiply-accumulate and per loaded byte.
    mac: f64,
    load: f64,
    /// The least seconds of the products under the power limit.
    power: f64,
    missed: f64,
    step: f64,
    /// The least seconds of a step.
    least_step: f64,
    /// Seconds per byte of partial results in the shared cache.
    partial: f64,
}

/// Returns the cost of a product on the whole chip. `p` already contains the time of the elementwise work; `operations`
/// is needed only for its energy.
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
        energy: model.energy_of_traffic(&traffic)
            + energy.macs_energy(c.operand, CostModel::count_macs(c))
            + energy.vector_energy(operations as u128),
        traffic,
        utilization: p.batch * p.m * p.n * p.k / (machine.peak_macs(view, c.operand) * total),
        bound,
    }
}

/// Returns the latency of [`cost_of_product`].
pub(super) fn latency_of_product(
    machine: &Machine,
    view: &SpanResources,
    library: &LibraryModel,
    c: &Contraction,
    p: &MappingProblem,
) -> f64 {
    library.floor_seconds() + choose_fastest_tile(machine, view, library, c, p).time
}

/// Returns the seconds of equal products in one call, without the library's floor.
pub(super) fn time_of_group(machine: &Machine, view: &SpanResources, library: &LibraryModel, c: &Contraction) -> f64 {
    choose_fastest_tile(machine, view, library, c, &MappingProblem::of_contraction(machine, view, c, None)).time
}

/// Returns the fastest tile and split.
fn choose_fastest_tile(
    machine: &Machine,
    view: &SpanResources,
    library: &LibraryModel,
    c: &Contraction,
    p: &MappingProblem,
) -> TileChoice {
    let core = machine.core_peak(c.operand);
    let unaligned = unaligned_fraction(library, c);
    // The measured rates of the kernels for unaligned rows include their loads.
    let vector = if unaligned.is_some() { 1.0 } else { load_width_of_product(library, c) };
    let scattered = c.batch > 1 && vector * (VECTOR_BYTES as f64) < BATCH_BYTES;
    let rate = match unaligned {
        Some(fraction) => core * fraction,
        None if scattered => library.constants.scattered_issue * view.lanes / view.cores * machine.clock,
        None => core * library.scalars.issue_fraction,
    };
    let format = library.scalars.formats.get(c.operand).unwrap_or_default();
    let frame = TileInvariants {
        p,
        library,
        cores: view.cores,
        mac: 1.0 / rate,
        load: 1.0 / (library.core_read * vector),
        power: p.batch * p.m * p.n * p.k / (core * view.cores * power_fraction(machine, library, c.operand)),
        missed: missed_fraction(library, view, p),
        step: STEP_BYTES / p.operand,
        least_step: format.step.0,
        partial: view.shared.last().map_or(0.0, |level| level.write),
    };
    let mut best: Option<TileChoice> = None;
    for (tm, tn) in TILES {
        for split in SPLITS {
            if split > format.most_splits || split > 1.0 && p.k < 2.0 * split * frame.step {
                break;
            }
            let chosen = frame.evaluate_tile(LibraryTile { tm, tn }, split);
            if best.is_none_or(|best| chosen.time < best.time) {
                best = Some(chosen);
            }
        }
    }
    best.unwrap_or(TileChoice { time: 0.0, work: 0.0, moving: 0.0, fetched: 0.0, loaded: 0.0, partials: 0.0 })
}

/// Rows and columns of an output tile.
#[derive(Clone, Copy)]
struct LibraryTile {
    tm: f64,
    tn: f64,
}

impl TileInvariants<'_> {
    fn evaluate_tile(&self, LibraryTile { tm, tn }: LibraryTile, split: f64) -> TileChoice {
        let (p, library) = (self.p, self.library);
        let (rows, columns) = (ceil_div(p.m, tm), ceil_div(p.n, tn));
        let tiles = rows * columns;
        let steps = ceil_div(p.k, self.step * split);
        let step_bytes = (tm + tn) * self.step * p.operand;
        let step = (tm * tn * self.step * self.mac).max(step_bytes * self.load).max(self.least_step);
        let waves = ceil_div(p.batch * tiles * split, self.cores);
        let fetched = self.fetched_bytes(LibraryTile { tm, tn }, rows, columns, p.batch * tiles);
        let written = p.written_bytes();
        let moving = (fetched + p.epilogue_read) * library.read
            + written * library.write
            + library.constants.memory_ramp * 1e-6 * self.missed;
        let moved = fetched + p.epilogue_read + written;
        let powered = self.power + library.constants.memory_power * moved * library.peak;
        let work = (waves * (steps * step + library.scalars.tile_overhead.0)).max(powered).max(p.epilogue_time);
        let partials = if split > 1.0 { p.batch * p.m * p.n * split * super::tensor_core::ACCUMULATOR } else { 0.0 };
        let sum = if split > 1.0 { partials * self.partial + library.constants.split_overhead * 1e-6 } else { 0.0 };
        let loaded = p.batch * tiles * split * steps * step_bytes;
        TileChoice {
            time: work.max(moving) + library.constants.exposed * work.min(moving) + sum,
            work,
            moving,
            fetched,
            loaded,
            partials,
        }
    }

    /// Returns the operand bytes out of the device's memory. The tiles of a wave form a block that is as square as
    /// possible. Each row and column of the block is read once.
    fn fetched_bytes(&self, LibraryTile { tm, tn }: LibraryTile, rows: f64, columns: f64, tiles: f64) -> f64 {
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
    use crate::cost::{InputConversion, Routine};
    use crate::hardware::Accelerator;
    use crate::kernel::Kernel;

    #[test]
    fn rows_that_start_off_a_vector_are_loaded_in_pieces() {
        assert_eq!(vector_alignment(4096, 2), 1.0);
        assert_eq!(vector_alignment(150, 2), 0.25);
        assert_eq!(vector_alignment(192, 2), 1.0);
        assert_eq!(vector_alignment(4097, 1), 1.0 / 16.0);
    }

    fn product(m: u64, n: u64, k: u64, operand: DataType) -> Contraction {
        Contraction { batch: 1, m, n, k, operand, result: DataType::Bf16 }
    }

    fn time_on(chip: &Accelerator, routine: &Routine) -> f64 {
        CostModel::new(chip.clone()).unwrap().time_alone(routine).micros()
    }

    #[test]
    fn a_format_that_keeps_more_of_its_peak_is_never_slower() {
        let chip = Accelerator::built_in("b200").unwrap();
        let mut better = chip.clone();
        better.calibration.achieved_by_format =
            chip.calibration.achieved_by_format.map_values(|fraction| fraction * 1.3);
        for operand in [DataType::Fp8, DataType::Nvfp4] {
            for (m, n, k) in [(1, 4096, 4096), (256, 8192, 7168), (4096, 4096, 4096), (16384, 51200, 16384)] {
                let routine = Routine::Linear(product(m, n, k, operand), InputConversion::Quantise);
                assert!(time_on(&better, &routine) <= time_on(&chip, &routine), "{operand} {m} x {n} x {k}");
            }
            let large = Routine::Linear(product(16384, 51200, 16384, operand), InputConversion::Quantise);
            assert!(time_on(&better, &large) < 0.9 * time_on(&chip, &large), "{operand}: power limits a large product");
        }
    }

    #[test]
    fn a_format_without_splits_takes_every_step_of_a_long_dimension() {
        let chip = Accelerator::built_in("b200").unwrap();
        let narrow = Routine::Linear(product(13, 512, 51200, DataType::Nvfp4), InputConversion::Quantise);
        let measured = 100.46;
        assert!((time_on(&chip, &narrow) / measured - 1.0).abs() < 0.15, "{}", time_on(&chip, &narrow));
        let mut split = chip.clone();
        split.library.as_mut().unwrap().formats.nvfp4.as_mut().unwrap().most_splits = 32.0;
        assert!(time_on(&split, &narrow) < 0.5 * time_on(&chip, &narrow));
    }

    /// Measured on an H100 (`measured/reference/h100_pytorch`): a product with 50,257 columns takes 30,261 us, one with
    /// 50,264 columns 4,630 us. A product with 4,095 rows takes 177.7 us, a weight's gradient with 4,095 contracted
    /// tokens 198.7 us.
    #[test]
    fn rows_of_the_matrices_decide_on_hopper() {
        let chip = Accelerator::built_in("h100_80gb_sxm").unwrap();
        let bf16 = DataType::Bf16;
        let time = |c: Contraction| time_on(&chip, &Routine::Kernel(Kernel::Contraction(c)));
        let ratio = time(product(8192, 50257, 4096, bf16)) / time(product(8192, 50264, 4096, bf16));
        assert!((5.0..7.0).contains(&ratio), "{ratio}; 6.5 was measured");
        let ratio = time(product(8192, 50260, 4096, bf16)) / time(product(8192, 50264, 4096, bf16));
        assert!((2.3..3.0).contains(&ratio), "{ratio}; 2.5 was measured");
        let even = time(product(4096, 4096, 4096, bf16));
        assert!(time(product(4095, 4096, 4096, bf16)) <= even);
        assert!(time(product(4096, 4096, 4095, bf16)) > 4.0 * even);
        let gradient = |m, k| time(Contraction { result: DataType::Fp32, ..product(m, 4096, k, bf16) });
        assert!(gradient(4096, 4095) <= gradient(4096, 4096));
        assert!(gradient(4095, 4096) > 4.0 * gradient(4096, 4096));
    }

    #[test]
    fn an_unaligned_vocabulary_costs_less_than_half_of_the_product() {
        let chip = Accelerator::built_in("a100_80gb_sxm").unwrap();
        let time =
            |n: u64| time_on(&chip, &Routine::Kernel(Kernel::Contraction(product(8192, n, 4096, DataType::Bf16))));
        let slower = time(50257) / time(50304);
        assert!((1.3..1.5).contains(&slower), "{slower}; 1.35 to 1.45 was measured");
    }
}
