//! Energy per operation and per byte, and power.
//!
//! Energies per operation are constants (`sim/constants/energy.toml`). [`Constants::energy_at_node`] scales them to
//! nodes, [`Constants::energy_at_clock`] to clocks.

use super::area::{Floorplan, running_megatransistors};
use super::constants::{Constants, EnergyPair};
use super::memory::is_dram;
use super::{
    Accelerator, Accumulation, AreaModel, Dataflow, HbmGeneration, MemoryLevel, MemoryScope, PerDataType, ProcessNode,
    TensorCores, chip_area,
};
use crate::kernel::DataType;
use crate::units::{Bytes, Hertz, Joules, Seconds, Watts};
use serde::{Deserialize, Serialize};

/// The way in which the cores receive instructions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ControlStyle {
    /// Few instructions drive large units (TPU, Gaudi). Their energy is in the static power, because these chips'
    /// clocks run while they idle.
    #[default]
    Wide,
    /// Schedulers issue instructions of some tens of threads every cycle (GPU). Their clocks are gated and lowered
    /// while they idle.
    Simt,
}

/// The energy of operations, and the static power. Energy per byte belongs to each [`MemoryLevel`].
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct EnergyModel {
    /// One multiply-accumulate by operand type: a product and an addition in fp32, or in int32 for int8.
    pub per_mac: PerDataType<Joules>,
    /// One result of the simplest vector function: an fp32 addition with its operands from the register file.
    pub per_vector_operation: Joules,
    /// One cycle of a tensor core and its vector core while any kernel runs: schedulers, instructions, clocks
    /// ([`ControlStyle`]).
    pub per_core_cycle: Joules,
    /// Leakage, clocks and PHYs; drawn for the whole time of a step.
    pub static_power: Watts,
}

impl EnergyModel {
    /// Returns the energy of `count` multiply-accumulates; fp32's if the type has no figure of its own.
    #[must_use]
    pub fn macs_energy(&self, data_type: DataType, count: u128) -> Joules {
        let each = self.per_mac.get(data_type).or(self.per_mac.fp32).unwrap_or_default();
        each * count as f64
    }

    /// Returns the energy of `count` vector results.
    #[must_use]
    pub fn vector_energy(&self, count: u128) -> Joules {
        self.per_vector_operation * count as f64
    }

    /// Returns the energy of `cores` cores that run for `time` at this clock.
    #[must_use]
    pub fn running_energy(&self, cores: f64, clock: Hertz, time: Seconds) -> Joules {
        self.per_core_cycle * (cores * clock.0 * time.0)
    }
}

/// The name of register files. Their energy per byte is that of their banks, and does not depend on the capacity.
const REGISTER_FILE: &str = "register_file";

/// Returns the picojoules to read and to write a byte of a register file.
fn register_file_picojoules(constants: &Constants, node: ProcessNode) -> (f64, f64) {
    let energy = &constants.energy;
    let of = |node| constants.energy_at_node(energy.fp16_product, node);
    let shrunk = of(node) / of(ProcessNode::N28);
    (energy.register_read * shrunk, energy.register_write * shrunk)
}

/// The constants, process and clock on which default energies depend.
#[derive(Debug, Clone, Copy)]
pub struct EnergyPoint<'a> {
    /// The constants.
    pub constants: &'a Constants,
    /// The process.
    pub node: ProcessNode,
    /// The clock.
    pub clock: Hertz,
}

impl EnergyPoint<'_> {
    /// Returns the energy that the chip's voltage regulators draw for this energy at the chip.
    #[must_use]
    pub fn drawn_energy(&self, picojoules: f64) -> Joules {
        Joules(picojoules * 1e-12 / self.constants.energy.regulator_efficiency)
    }

    /// Returns the picojoules at the chip of an operation with these energies at the published nodes.
    fn operation_picojoules(&self, pair: EnergyPair) -> f64 {
        self.constants.energy_at_clock(self.node, self.clock) * self.constants.energy_at_node(pair, self.node)
    }

    /// Returns the energy of an on-chip memory at this point, relative to its energy at another point.
    #[must_use]
    pub fn memory_energy_over(&self, other: &Self) -> f64 {
        let pair = self.constants.energy.sram_1_mib;
        self.operation_picojoules(pair) / other.operation_picojoules(pair)
    }
}

/// Returns the energy per operation of a chip at a node and a clock. The static power and the energy of a core's cycle
/// are zero; [`default_static_power`] and [`default_core_cycle`] give them.
#[must_use]
pub fn default_energy_model(point: EnergyPoint<'_>) -> EnergyModel {
    let EnergyPoint { constants, node, clock } = point;
    let energy = &constants.energy;
    let at = |pair: EnergyPair| point.operation_picojoules(pair);
    let mac = |product, addition| Some(point.drawn_energy(at(product) + at(addition)));
    // Two operands of an fp32 addition are read and its result written.
    let (read, write) = register_file_picojoules(constants, node);
    let vector = at(energy.fp32_addition) + constants.energy_at_clock(node, clock) * (8.0 * read + 4.0 * write);
    EnergyModel {
        per_mac: PerDataType {
            fp32: mac(energy.fp32_product, energy.fp32_addition),
            bf16: mac(energy.bf16_product, energy.fp32_addition),
            fp16: mac(energy.fp16_product, energy.fp32_addition),
            // There is no published figure for fp8. Its multiplier has at most 8 x 8 bits, as int8's has, so it takes
            // int8's figure.
            fp8: mac(energy.int8_product, energy.fp32_addition),
            int8: mac(energy.int8_product, energy.int32_addition),
            // There is no measured figure for the block formats. The energy of an int8 product is an upper bound.
            mxfp8: mac(energy.int8_product, energy.fp32_addition),
            nvfp4: mac(energy.int8_product, energy.fp32_addition),
            mxfp4: mac(energy.int8_product, energy.fp32_addition),
        },
        per_vector_operation: point.drawn_energy(vector),
        per_core_cycle: Joules::ZERO,
        static_power: Watts::ZERO,
    }
}

/// Returns the energy of a cycle of one core with this control. It grows with the core's lanes and control, so that
/// large cores are not free. Arrays take energy per multiply-accumulate instead.
#[must_use]
pub fn default_core_cycle(point: EnergyPoint<'_>, accelerator: &Accelerator, control: ControlStyle) -> Joules {
    let constants = point.constants;
    let megatransistors = match (control, &accelerator.area_model) {
        (ControlStyle::Wide, _) => 0.0,
        (ControlStyle::Simt, AreaModel::UnitAreas(floorplan)) => running_megatransistors(constants, floorplan),
        (ControlStyle::Simt, AreaModel::Phaze22nm | AreaModel::Undisclosed) => {
            running_megatransistors(constants, &Floorplan::of_undisclosed_core(accelerator))
        }
    };
    point.drawn_energy(megatransistors * point.operation_picojoules(constants.energy.simt_core_cycle))
}

/// Returns the static power of a chip without a measurement: leakage of its dies, HBM without traffic, links. `None` if
/// the chip has no area model.
#[must_use]
pub fn default_static_power(accelerator: &Accelerator) -> Option<Watts> {
    let constants = &accelerator.constants;
    let area = chip_area(accelerator).ok()?.total_area().0;
    let node = accelerator.process_node()?;
    let leakage = area * constants.process.leakage.at_node(node);
    let AreaModel::UnitAreas(floorplan) = &accelerator.area_model else { return Some(Watts(leakage)) };
    let base = floorplan.base.map_or(0.0, |base| base.total_mm2() * constants.process.leakage.at_node(base.node));
    let stacks = f64::from(floorplan.hbm_stacks) * constants.hbm.of_generation(floorplan.hbm_generation).idle_power;
    let links = f64::from(floorplan.links) * constants.link.of_kind(floorplan.link).watts();
    let die_to_die = floorplan.die_to_die_tb_per_s * 8.0 * constants.link.die_to_die.energy;
    Some(Watts(leakage + base + (stacks + links + die_to_die) / constants.energy.regulator_efficiency))
}

/// Returns the energy to read and to write one byte of a memory of this name and capacity. SRAM interpolates between
/// the published sizes on logarithmic scales. A `register_file` takes its banks' energy. Above 1 GiB the energy is
/// HBM's.
#[must_use]
pub fn default_energy_per_byte(
    point: EnergyPoint<'_>,
    name: &str,
    capacity: Bytes,
    generation: HbmGeneration,
) -> (Joules, Joules) {
    let EnergyPoint { constants, node, clock } = point;
    if is_dram(capacity) {
        let both = point.drawn_energy(constants.hbm.of_generation(generation).energy);
        return (both, both);
    }
    let energy = &constants.energy;
    if name == REGISTER_FILE {
        let design = constants.energy_at_clock(node, clock);
        let (read, write) = register_file_picojoules(constants, node);
        return (point.drawn_energy(design * read), point.drawn_energy(design * write));
    }
    let points = [
        (8192.0, energy.sram_8_kib),
        (32_768.0, energy.sram_32_kib),
        (1_048_576.0, energy.sram_1_mib),
        (134_217_728.0, energy.sram_128_mib),
    ];
    let points = points.map(|(size, pair)| (size, point.operation_picojoules(pair)));
    let read = interpolate_log(&points, capacity.as_f64().max(8192.0)) / 8.0;
    (point.drawn_energy(read), point.drawn_energy(read * energy.write_over_read))
}

/// Interpolates linearly on logarithmic scales through points of ascending x > 0, y > 0. The outer segments
/// extrapolate.
fn interpolate_log(points: &[(f64, f64)], x: f64) -> f64 {
    let inner = points.windows(2).find(|pair| x <= pair[1].0).or_else(|| points.windows(2).last());
    let Some([(x0, y0), (x1, y1)]) = inner else {
        return points.first().map_or(0.0, |point| point.1);
    };
    let t = (x / x0).ln() / (x1 / x0).ln();
    y0 * (y1 / y0).powf(t)
}

/// Power under the heaviest sustained loads, static power included.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SustainedPower {
    /// A large square contraction in the fastest 16-bit type at the arrays' peak. The innermost memory feeds its
    /// operands, and each crosses the outer memories once per tile.
    pub contraction: Watts,
    /// A stream through the device's memory at its peak bandwidth, half reads, half writes, with one vector operation
    /// per 4 bytes.
    pub stream: Watts,
    /// The contraction while all lanes and the device's memory also work at their peaks. No single kernel draws this
    /// power, but kernels in parallel do. A design without a power limit that lowers the clock must carry it.
    pub together: Watts,
}

impl SustainedPower {
    /// The larger of the contraction's and the stream's power.
    #[must_use]
    pub fn peak_power(&self) -> Watts {
        self.contraction.max(self.stream)
    }
}

/// Dimension of the square contraction of [`sustained_power`]; every chip is compute bound at it.
const CONTRACTION: f64 = 8192.0;

/// Returns the bytes that an array's edges read and write per multiply-accumulate, with 16-bit operands and fp32 sums.
/// With a stationary operand, the other operand enters by the rows. It is read once for all arrays of a core, which
/// work on neighbouring columns as in the mapper. Sums leave by the columns, once per fold of K
/// ([`count_result_passes`](crate::cost::count_result_passes)). In a large product each sum comes back for the next
/// fold, from the local buffer or from the accumulators; dedicated ports add it on the way. Output-stationary arrays
/// read both operands. Their accumulators live in the local memory and are read and written once per `rows` of depth.
fn edge_bytes_per_mac(tensor: &TensorCores) -> (f64, f64) {
    let (rows, columns) = (f64::from(tensor.rows), f64::from(tensor.columns));
    let (streamed, sums) = (2.0 * rows / f64::from(tensor.arrays_per_core), 4.0 * columns);
    let (read, written) = match (tensor.dataflow, &tensor.accumulation) {
        (Dataflow::OutputStationary, _) => (2.0 * rows + 2.0 * columns + sums, sums),
        (_, Accumulation::LocalBuffer) => (streamed + sums, sums),
        (_, Accumulation::DedicatedPorts) => (streamed, sums),
        (_, Accumulation::Memory(_)) => (streamed, 0.0),
    };
    (read / (rows * columns), written / (rows * columns))
}

/// Returns the power of an accelerator under its heaviest sustained loads, from energies per action and static power.
#[must_use]
pub fn sustained_power(accelerator: &Accelerator) -> SustainedPower {
    let products = contraction_power(accelerator, accelerator, full_cell_rate(accelerator));
    let lanes = Watts(accelerator.energy.per_vector_operation.0 * accelerator.peak_vector_operations().0);
    let together = products.on_chip + lanes + device_memory_power(accelerator);
    SustainedPower { contraction: products.total_power(), stream: stream_power(accelerator), together }
}

/// Returns a lower bound on the sustained power of all accelerators between two. `small` has the least of each figure,
/// `large` the most. Both have the same dataflow, and `large` has the memories of `small` by name.
#[must_use]
pub fn least_sustained_power(small: &Accelerator, large: &Accelerator) -> Watts {
    least_power_at_cell_rate(small, large, full_cell_rate(small))
}

/// Returns [`least_sustained_power`] of only those accelerators whose number of cells times their clock is `cells`.
#[must_use]
pub fn least_power_at_cell_rate(small: &Accelerator, large: &Accelerator, cells: Hertz) -> Watts {
    // If rates differ, the fastest type may differ too.
    if small.tensor.macs_per_unit_per_cycle != large.tensor.macs_per_unit_per_cycle {
        return stream_power(small);
    }
    contraction_power(small, large, cells).total_power().max(stream_power(small))
}

/// Returns the number of an accelerator's cells times its clock.
#[must_use]
pub fn full_cell_rate(accelerator: &Accelerator) -> Hertz {
    Hertz(accelerator.tensor.unit_count() as f64 * accelerator.clock.0)
}

/// The power of a large contraction.
struct ContractionPower {
    /// All power except that of the device's memory; static power included.
    on_chip: Watts,
    device_memory: Watts,
}

impl ContractionPower {
    fn total_power(&self) -> Watts {
        self.on_chip + self.device_memory
    }
}

/// Returns the power of a large contraction on a chip whose number of cells times clock is `cells`. Rates and energies
/// are those of `small`. Traffic per multiply-accumulate falls with larger arrays and memories, so it is taken from
/// `large`.
fn contraction_power(small: &Accelerator, large: &Accelerator, cells: Hertz) -> ContractionPower {
    let rates = &small.tensor.macs_per_unit_per_cycle;
    let data_type = if rates.bf16 >= rates.fp16 { DataType::Bf16 } else { DataType::Fp16 };
    let macs = cells.0 * rates.get(data_type).unwrap_or(0.0);
    let mut on_chip =
        small.energy.static_power + running_power(small) + Watts(small.energy.macs_energy(data_type, 1).0 * macs);
    let mut last = Watts::ZERO;
    on_chip += accumulator_power(small, large, macs);
    let (mut read, mut written) = edge_bytes_per_mac(&large.tensor);
    let mut tile = 1.0_f64;
    let mut smaller = small.memory_levels().peekable();
    for larger in large.memory_levels() {
        on_chip += last;
        // A level that `small` lacks takes no power.
        last = smaller.next_if(|level| level.name == larger.name).map_or(Watts::ZERO, |level| {
            let instances = f64::from(small.instance_count(level));
            let reads = (macs * read).min(level.read_bandwidth.0 * instances);
            let writes = (macs * written).min(level.write_bandwidth.0 * instances);
            Watts(level.read_energy_per_byte.0 * reads + level.write_energy_per_byte.0 * writes)
        });
        // A square tile in half the level, while the other half is filled.
        tile = (larger.capacity.as_f64() / 2.0 / element_bytes(larger)).sqrt().clamp(tile, CONTRACTION);
        read = 2.0 * 2.0 / tile;
        written = 2.0 / CONTRACTION;
    }
    ContractionPower { on_chip, device_memory: last }
}

/// Returns the power of the accumulators in a large product. A sum is written and read once per fold of the array with
/// the most rows.
fn accumulator_power(small: &Accelerator, large: &Accelerator, macs: f64) -> Watts {
    let Some(memory) = small.tensor.accumulation.memory() else { return Watts::ZERO };
    let bytes = macs * 4.0 / f64::from(large.tensor.rows);
    Watts((memory.read_energy_per_byte.0 + memory.write_energy_per_byte.0) * bytes)
}

/// Returns the bytes per element of a square tile: two 2-byte operands and an fp32 result. A register file holds only
/// results; operands bypass it.
fn element_bytes(level: &MemoryLevel) -> f64 {
    if level.scope == MemoryScope::Core && level.name == REGISTER_FILE { 4.0 } else { 8.0 }
}

/// Returns the running power of all cores.
fn running_power(accelerator: &Accelerator) -> Watts {
    let second =
        accelerator.energy.running_energy(f64::from(accelerator.tensor.cores), accelerator.clock, Seconds(1.0));
    Watts(second.0)
}

/// Returns the power of the device's memory at its peak, half reads, half writes.
fn device_memory_power(accelerator: &Accelerator) -> Watts {
    let hbm = &accelerator.hbm;
    Watts((hbm.read_energy_per_byte.0 + hbm.write_energy_per_byte.0) / 2.0 * hbm.read_bandwidth.0)
}

/// Returns the power of a stream through an accelerator's device memory.
fn stream_power(accelerator: &Accelerator) -> Watts {
    let lanes = Watts(accelerator.energy.per_vector_operation.0 / 4.0 * accelerator.hbm.read_bandwidth.0);
    accelerator.energy.static_power + running_power(accelerator) + device_memory_power(accelerator) + lanes
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use proptest::prelude::*;

    fn picojoules(energy: Joules) -> f64 {
        energy.0 * 1e12
    }

    fn at(constants: &Constants, node: ProcessNode, mhz: f64) -> EnergyPoint<'_> {
        EnergyPoint { constants, node, clock: Hertz(mhz * 1e6) }
    }

    #[test]
    fn the_published_nodes_are_reproduced() {
        let constants = &Constants::nominal();
        // Published energies are those at the chip.
        let delivered = |energy: Joules| picojoules(energy) * constants.energy.regulator_efficiency;
        let mac =
            |node, data_type| delivered(default_energy_model(at(constants, node, 1050.0)).macs_energy(data_type, 1));
        let byte = |node, bytes| {
            delivered(
                default_energy_per_byte(at(constants, node, 1050.0), "buffer", Bytes(bytes), HbmGeneration::Hbm2).0,
            )
        };
        let close = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-9, "{a} {b}");
        close(mac(ProcessNode::N7, DataType::Bf16), 0.21 + 0.38);
        close(mac(ProcessNode::N7, DataType::Int8), 0.07 + 0.03);
        close(mac(ProcessNode::N45, DataType::Fp16), 1.1 + 0.9);
        close(mac(ProcessNode::N45, DataType::Fp32), 3.7 + 0.9);
        close(byte(ProcessNode::N7, 32 << 10), 8.5 / 8.0);
        close(byte(ProcessNode::N45, 1 << 20), 100.0 / 8.0);
        close(byte(ProcessNode::N7, 128 << 20), 15.0);
        close(byte(ProcessNode::N5, 32 << 30), 43.75);
    }

    /// Links are the largest term of the static power if a chip has many: 18 links of 50 GB/s take some 95 W.
    #[test]
    fn links_and_stacks_draw_power() {
        let base = Accelerator::built_in("tpu_v4").unwrap();
        let AreaModel::UnitAreas(plan) = &base.area_model else { panic!() };
        let with = |links, hbm_stacks| {
            let area_model = AreaModel::UnitAreas(Box::new(Floorplan { links, hbm_stacks, ..(**plan).clone() }));
            default_static_power(&Accelerator { area_model, ..base.clone() }).unwrap().0
        };
        let (links, stacks) = (with(18, 4) - with(0, 4), with(6, 8) - with(6, 4));
        assert!((80.0..110.0).contains(&links) && (12.0..40.0).contains(&stacks), "{links} {stacks}");
        // The model of a built chip is near its measured power.
        assert!((with(6, 4) / base.energy.static_power.0 - 1.0).abs() < 0.2, "{}", with(6, 4));
    }

    #[test]
    fn a_type_without_a_figure_costs_what_fp32_does() {
        let energy = EnergyModel {
            per_mac: PerDataType { fp32: Some(Joules(2.0)), ..PerDataType::default() },
            ..EnergyModel::default()
        };
        assert_eq!(energy.macs_energy(DataType::Fp8, 3), Joules(6.0));
    }

    proptest! {
        #[test]
        fn newer_nodes_and_smaller_memories_take_less(kib in 1u64..1_000_000, factor in 1u64..8, mhz in 300.0..3000.0_f64) {
            let constants = &Constants::nominal();
            let byte = |node, kib: u64, mhz: f64| {
                default_energy_per_byte(at(constants, node, mhz), "buffer", Bytes(kib << 10), HbmGeneration::Hbm3)
            };
            let model = |node, mhz: f64| default_energy_model(at(constants, node, mhz));
            // Planar nodes have no reference clock, so only pairs of planar nodes and pairs of FinFET nodes are
            // compared.
            for pair in ProcessNode::ALL.windows(2).filter(|pair| (pair[0] >= ProcessNode::N16) == (pair[1] >= ProcessNode::N16)) {
                for (data_type, newer) in model(pair[1], mhz).per_mac.iter() {
                    prop_assert!(newer <= model(pair[0], mhz).macs_energy(data_type, 1) * 1.05);
                }
                let (old, new) = (byte(pair[0], kib, mhz), byte(pair[1], kib, mhz));
                prop_assert!(new.0 <= old.0 * 1.05 && new.1 <= old.1 * 1.05 && old.0 <= old.1);
            }
            let larger = (kib * factor).min(1 << 20).max(kib);
            prop_assert!(byte(ProcessNode::N7, larger, mhz).0 >= byte(ProcessNode::N7, kib, mhz).0);
            for node in ProcessNode::ALL {
                prop_assert!(model(node, mhz).per_vector_operation <= model(node, mhz * 1.1).per_vector_operation);
                prop_assert!(byte(node, kib, mhz).0 <= byte(node, kib, mhz * 1.1).0);
            }
        }
    }
}
