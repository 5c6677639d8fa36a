//! Energy per operation and per byte, and power.
//!
//! Operations: Horowitz, *Computing's Energy Problem*, ISSCC 2014 (45 nm) and Jouppi et al., *Ten Lessons From Three Generations
//! Shaped Google's TPUv4i*, ISCA 2021, Table 2 (7 nm); other nodes by [`Node::energy`].

use super::{Accelerator, Dataflow, Node, PerDataType, TensorCores};
use crate::kernel::DataType;
use crate::units::{Bytes, Joules, Watts};
use serde::{Deserialize, Serialize};

/// What an operation costs, and what the chip draws while it does nothing. Energy per byte belongs to each
/// [`MemoryLevel`](super::MemoryLevel).
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct EnergyModel {
    /// One multiply-accumulate (a product and an addition, accumulated in fp32, or in int32 for int8), by operand type.
    pub per_mac: PerDataType<Joules>,
    /// One result of the simplest vector function (an fp32 addition with its operands from the register file).
    pub per_vector_operation: Joules,
    /// Leakage, clocks and PHYs: drawn for as long as a step takes.
    pub static_power: Watts,
}

impl EnergyModel {
    /// The energy of `count` multiply-accumulates; that of fp32 where the type has no figure of its own.
    #[must_use]
    pub fn macs(&self, data_type: DataType, count: u128) -> Joules {
        let each = self.per_mac.get(data_type).or(self.per_mac.fp32).unwrap_or_default();
        each * count as f64
    }

    /// The energy of `count` vector results.
    #[must_use]
    pub fn vector_operations(&self, count: u128) -> Joules {
        self.per_vector_operation * count as f64
    }
}

/// Static power per area, for chips that have no measurement: TPU v4 idles at 90 W (Jouppi et al., ISCA 2023, Table 4) on a die of
/// at most 600 mm^2; TPU v2 and v3 at 0.09 and 0.13 W/mm^2 (ISCA 2021, Table 1).
pub const STATIC_WATTS_PER_MM2: f64 = 0.15;

/// Picojoules at 45 and at 7 nm: (45 nm, 7 nm).
type Pair = (f64, f64);

const FP16_PRODUCT: Pair = (1.1, 0.34);
/// Horowitz has no bf16: fp16's ratio between the nodes applied to 7 nm's bf16 product.
const BF16_PRODUCT: Pair = (0.21 * 1.1 / 0.34, 0.21);
const FP32_PRODUCT: Pair = (3.7, 1.31);
const INT8_PRODUCT: Pair = (0.2, 0.07);
const FP32_ADDITION: Pair = (0.9, 0.38);
const INT32_ADDITION: Pair = (0.1, 0.03);
/// A 64-bit access to an 8 KiB SRAM: a register file.
const SRAM_8_KIB: Pair = (10.0, 7.5);
const SRAM_32_KIB: Pair = (20.0, 8.5);
const SRAM_1_MIB: Pair = (100.0, 14.0);
/// TPU v4i's CMEM, 1.88 pJ per bit read (accelforge, `examples/arches/tpu_v4i.yaml`); at 45 nm with the ratio of the 1 MiB memory.
const SRAM_128_MIB: Pair = (120.0 * 100.0 / 14.0, 120.0);
/// Writes over reads: CMEM 2.36 / 1.88 pJ per bit, a VMEM bank 0.293 / 0.249 (the same file): 1.2 in the middle.
const WRITE_OVER_READ: f64 = 1.2;
/// HBM2, 250 to 450 pJ per 64 bits (ISCA 2021, Table 2): the middle, per byte. Off-chip memory does not follow the node.
const HBM_PICOJOULES_PER_BYTE: f64 = 350.0 / 8.0;
/// A memory above this is taken for DRAM.
const LARGEST_SRAM: f64 = 1_073_741_824.0;

/// Whether a memory of this capacity is taken for DRAM, which has a clock of its own.
pub(super) fn is_dram(capacity: Bytes) -> bool {
    capacity.as_f64() > LARGEST_SRAM
}

/// Energy per operation at a node; no static power.
#[must_use]
pub fn default_energy(node: Node) -> EnergyModel {
    let at = |pair: Pair| node.energy(pair.0, pair.1);
    let mac = |product, addition| Some(Joules((at(product) + at(addition)) * 1e-12));
    // Three 4-byte operands of an fp32 addition through the register file.
    let vector = at(FP32_ADDITION) + 12.0 * at(SRAM_8_KIB) / 8.0;
    EnergyModel {
        per_mac: PerDataType {
            fp32: mac(FP32_PRODUCT, FP32_ADDITION),
            bf16: mac(BF16_PRODUCT, FP32_ADDITION),
            fp16: mac(FP16_PRODUCT, FP32_ADDITION),
            // No published figure: an 8-bit product of either kind is a multiplier of at most 8 x 8 bits.
            fp8: mac(INT8_PRODUCT, FP32_ADDITION),
            int8: mac(INT8_PRODUCT, INT32_ADDITION),
            // No measured figure of narrower products: an upper limit.
            mxfp8: mac(INT8_PRODUCT, FP32_ADDITION),
            nvfp4: mac(INT8_PRODUCT, FP32_ADDITION),
        },
        per_vector_operation: Joules(vector * 1e-12),
        static_power: Watts::ZERO,
    }
}

/// Energy of reading and of writing one byte of a memory of this capacity: SRAM between the published sizes on logarithmic
/// scales, HBM above 1 GiB.
#[must_use]
pub fn sram_energy_per_byte(node: Node, capacity: Bytes) -> (Joules, Joules) {
    if is_dram(capacity) {
        return (Joules(HBM_PICOJOULES_PER_BYTE * 1e-12), Joules(HBM_PICOJOULES_PER_BYTE * 1e-12));
    }
    let points = [(8192.0, SRAM_8_KIB), (32_768.0, SRAM_32_KIB), (1_048_576.0, SRAM_1_MIB), (134_217_728.0, SRAM_128_MIB)];
    let points = points.map(|(size, pair)| (size, node.energy(pair.0, pair.1)));
    let read = interpolate_log(&points, capacity.as_f64().max(8192.0)) / 8.0;
    (Joules(read * 1e-12), Joules(read * WRITE_OVER_READ * 1e-12))
}

/// Piecewise linear on logarithmic scales through points of ascending x > 0, y > 0; the outer segments extend.
pub(super) fn interpolate_log(points: &[(f64, f64)], x: f64) -> f64 {
    let inner = points.windows(2).find(|pair| x <= pair[1].0).or_else(|| points.windows(2).last());
    let Some([(x0, y0), (x1, y1)]) = inner else {
        return points.first().map_or(0.0, |point| point.1);
    };
    let t = (x / x0).ln() / (x1 / x0).ln();
    y0 * (y1 / y0).powf(t)
}

/// The power of the two heaviest sustained loads, static power included: what a thermal design must carry.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SustainedPower {
    /// A large square contraction in the fastest 16-bit type at the arrays' peak, its operands fed from the innermost memory and each
    /// crossing the outer ones once per tile.
    pub contraction: Watts,
    /// A stream through the device's memory at its peak bandwidth, half reads, half writes, with one vector operation per 4 bytes.
    pub stream: Watts,
}

impl SustainedPower {
    /// The larger of the two.
    #[must_use]
    pub fn peak(&self) -> Watts {
        self.contraction.max(self.stream)
    }
}

/// Dimension of the square contraction that [`sustained_power`] runs: large enough for every chip to be compute bound.
const CONTRACTION: f64 = 8192.0;

/// Bytes that an array's edges read and write per multiply-accumulate, 16-bit operands and fp32 sums. With a stationary operand
/// the other enters by the rows, and partial sums leave by the columns to be accumulated on the way. Output stationary arrays
/// take both operands, and their accumulators live in the memory beside them: read and written once per `rows` of depth.
fn edge_traffic(tensor: &TensorCores) -> (f64, f64) {
    let (rows, columns) = (f64::from(tensor.rows), f64::from(tensor.columns));
    let read = match tensor.dataflow {
        Dataflow::WeightStationary | Dataflow::InputStationary => 2.0 * rows,
        Dataflow::OutputStationary => 2.0 * rows + 2.0 * columns + 4.0 * columns,
    };
    (read / (rows * columns), 4.0 * columns / (rows * columns))
}

/// The power of an accelerator under its heaviest sustained loads, from energies per action and static power.
#[must_use]
pub fn sustained_power(accelerator: &Accelerator) -> SustainedPower {
    SustainedPower { contraction: contraction(accelerator, accelerator), stream: stream(accelerator) }
}

/// Power that no accelerator between two takes less than: `small` has the least of each of their figures, `large` the most, the same arrays' dataflow
/// and the same memories by name.
#[must_use]
pub fn least_sustained_power(small: &Accelerator, large: &Accelerator) -> Watts {
    // Which type is the fastest may differ between accelerators whose rates do.
    if small.tensor.macs_per_unit_per_cycle != large.tensor.macs_per_unit_per_cycle {
        return stream(small);
    }
    contraction(small, large).max(stream(small))
}

/// A large contraction at the rates of one accelerator. Traffic per multiply-accumulate falls with arrays and memories: it is that of `large`.
fn contraction(small: &Accelerator, large: &Accelerator) -> Watts {
    let rates = &small.tensor.macs_per_unit_per_cycle;
    let data_type = if rates.bf16 >= rates.fp16 { DataType::Bf16 } else { DataType::Fp16 };
    let rate = rates.get(data_type).unwrap_or(0.0) * small.clock.0;
    let macs = small.tensor.units() as f64 * rate;
    let mut power = small.energy.static_power + Watts(small.energy.macs(data_type, 1).0 * macs);
    let (mut read, mut written) = edge_traffic(&large.tensor);
    let mut tile = 1.0_f64;
    for (level, larger) in small.levels().zip(large.levels()) {
        let instances = f64::from(small.instances(level));
        let reads = (macs * read).min(level.read_bandwidth.0 * instances);
        let writes = (macs * written).min(level.write_bandwidth.0 * instances);
        power += Watts(level.read_energy_per_byte.0 * reads + level.write_energy_per_byte.0 * writes);
        // A square tile (two 2-byte operands and an fp32 result per element) in half the level, the other half being filled.
        tile = (larger.capacity.as_f64() / 2.0 / 8.0).sqrt().clamp(tile, CONTRACTION);
        read = 2.0 * 2.0 / tile;
        written = 2.0 / CONTRACTION;
    }
    power
}

/// A stream through an accelerator's device memory.
fn stream(accelerator: &Accelerator) -> Watts {
    let hbm = &accelerator.hbm;
    let per_byte =
        (hbm.read_energy_per_byte.0 + hbm.write_energy_per_byte.0) / 2.0 + accelerator.energy.per_vector_operation.0 / 4.0;
    accelerator.energy.static_power + Watts(per_byte * hbm.read_bandwidth.0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use proptest::prelude::*;

    fn picojoules(energy: Joules) -> f64 {
        energy.0 * 1e12
    }

    #[test]
    fn the_published_nodes_are_reproduced() {
        let mac = |node, data_type| picojoules(default_energy(node).macs(data_type, 1));
        let close = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-9, "{a} {b}");
        close(mac(Node::N7, DataType::Bf16), 0.21 + 0.38);
        close(mac(Node::N7, DataType::Int8), 0.07 + 0.03);
        close(mac(Node::N45, DataType::Fp16), 1.1 + 0.9);
        close(mac(Node::N45, DataType::Fp32), 3.7 + 0.9);
        close(picojoules(sram_energy_per_byte(Node::N7, Bytes(32 << 10)).0), 8.5 / 8.0);
        close(picojoules(sram_energy_per_byte(Node::N45, Bytes(1 << 20)).0), 100.0 / 8.0);
        close(picojoules(sram_energy_per_byte(Node::N7, Bytes(128 << 20)).0), 15.0);
        close(picojoules(sram_energy_per_byte(Node::N5, Bytes(32 << 30)).0), 43.75);
    }

    #[test]
    fn a_type_without_a_figure_costs_what_fp32_does() {
        let energy =
            EnergyModel { per_mac: PerDataType { fp32: Some(Joules(2.0)), ..PerDataType::default() }, ..EnergyModel::default() };
        assert_eq!(energy.macs(DataType::Fp8, 3), Joules(6.0));
    }

    proptest! {
        #[test]
        fn newer_nodes_and_smaller_memories_take_less(kib in 1u64..1_000_000, factor in 1u64..8) {
            for pair in Node::ALL.windows(2) {
                for (data_type, newer) in default_energy(pair[1]).per_mac.iter() {
                    prop_assert!(newer <= default_energy(pair[0]).macs(data_type, 1));
                }
                let (old, new) = (sram_energy_per_byte(pair[0], Bytes(kib << 10)), sram_energy_per_byte(pair[1], Bytes(kib << 10)));
                prop_assert!(new.0 <= old.0 && new.1 <= old.1 && old.0 <= old.1);
            }
            let (small, large) = (Bytes(kib << 10), Bytes((kib * factor).min(1 << 20) << 10).0.max(kib << 10));
            prop_assert!(sram_energy_per_byte(Node::N7, Bytes(large)).0 >= sram_energy_per_byte(Node::N7, small).0);
        }
    }
}
