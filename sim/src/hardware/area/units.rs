//! Unit areas: transistor counts over the density that shipped dies reach, memory bits with their periphery, and PHYs
//! that do not shrink.
//!
//! The method is LLMCompass's (Zhang et al., *LLMCompass: Enabling Efficient Hardware Design for Large Language Model
//! Inference*, ISCA 2024, cost model). `sim/constants/area.toml` has the unit areas with their sources. Pads, clocks,
//! test and fuses have no unit; they are a fixed fraction of the die.

use super::super::constants::{Constants, PcieLane};
use super::super::{Accelerator, ProcessNode};
use super::{AreaBreakdown, AreaPart, Floorplan, SramKind};
use crate::kernel::DataType;
use crate::units::{Bytes, SquareMillimeters};

/// Bytes per cycle of the network to which `area.network` refers: 128 ports of 64.
const NETWORK_WIDTH: f64 = 8192.0;
/// Bytes per cycle of one of its ports.
const NETWORK_PORT: f64 = 64.0;
/// Registers of a multiply-accumulate cell, in bits: operands, the next weight, a partial sum.
const CELL_REGISTERS: f64 = 96.0;

/// Returns the area of one memory at a node. It grows with capacity, with ports and with the bytes that each port moves
/// per cycle, because these decide how many banks it is cut into. A capacity of zero has none.
#[must_use]
pub fn sram_area(
    constants: &Constants,
    node: ProcessNode,
    capacity: Bytes,
    ports: u32,
    bytes_per_cycle: f64,
) -> SquareMillimeters {
    if capacity == Bytes::ZERO {
        return SquareMillimeters::ZERO;
    }
    let area = &constants.area;
    let banks = (bytes_per_cycle / area.bank_width).max(1.0);
    let (bits, kib) = (capacity.as_f64() * 8.0, capacity.as_f64() / 1024.0);
    let side = 1.0 + area.port_growth * f64::from(ports.saturating_sub(1));
    let periphery = 1.0 + area.sram_periphery / (kib / banks).sqrt();
    SquareMillimeters(
        bits * area.sram_bit * periphery * side * side * constants.process.sram_scale.at_node(node) * 1e-6,
    )
}

/// Returns the significand bits of a type, hidden bit included; for an integer type, all its bits.
fn significand_bits(data_type: DataType) -> f64 {
    match data_type {
        DataType::Fp32 => 24.0,
        DataType::Fp16 => 11.0,
        DataType::Bf16 | DataType::Int8 => 8.0,
        DataType::Fp8 | DataType::Mxfp8 => 4.0,
        DataType::Nvfp4 | DataType::Mxfp4 => 2.0,
    }
}

/// Returns the number of transistors of a multiply-accumulate unit: the multiplier's squared bits, the accumulator's
/// bits, registers.
fn multiply_accumulate_transistors(
    constants: &Constants,
    squared_bits: f64,
    accumulator_bits: f64,
    registers: f64,
) -> f64 {
    let area = &constants.area;
    let accumulator = area.accumulator * accumulator_bits / significand_bits(DataType::Fp32);
    (area.multiplier_bit * squared_bits + accumulator + registers * area.register_bit) * area.datapath_overhead
}

/// Returns the number of transistors of a fused multiply-add of scalars with this significand and word, both in bits.
fn fused_multiply_add_transistors(constants: &Constants, significand: f64, word: f64) -> f64 {
    multiply_accumulate_transistors(constants, significand * significand, significand, 3.0 * word)
}

/// Returns the number of transistors of a 32-bit integer unit: multiplier and registers.
fn integer_unit_transistors(constants: &Constants) -> f64 {
    let area = &constants.area;
    (area.integer_multiplier_bit * 32.0 * 32.0 + 3.0 * 32.0 * area.register_bit) * area.datapath_overhead
}

/// Returns the number of transistors of the lanes and the control of one core, in millions.
pub(in super::super) fn running_megatransistors(constants: &Constants, plan: &Floorplan) -> f64 {
    (vector_transistors(constants, plan) + f64::from(plan.control_lanes) * constants.area.control_lane) * 1e-6
}

/// Returns the number of transistors of a core's arrays. A cell has the multiplier of the type that needs the most
/// squared bits; narrower types share it. Systolic cells and dot products have the same parts.
fn array_transistors(constants: &Constants, accelerator: &Accelerator) -> f64 {
    let tensor = &accelerator.tensor;
    let cells = f64::from(tensor.arrays_per_core) * f64::from(tensor.rows) * f64::from(tensor.columns);
    let types = tensor.macs_per_unit_per_cycle.iter();
    let squared_bits = types.map(|(data_type, rate)| rate * significand_bits(data_type).powi(2)).fold(0.0, f64::max);
    let accumulator = significand_bits(DataType::Fp32);
    cells * multiply_accumulate_transistors(constants, squared_bits, accumulator, CELL_REGISTERS)
}

fn vector_transistors(constants: &Constants, plan: &Floorplan) -> f64 {
    f64::from(plan.fp64_units) * fused_multiply_add_transistors(constants, 53.0, 64.0)
        + f64::from(plan.fp32_units) * fused_multiply_add_transistors(constants, 24.0, 32.0)
        + f64::from(plan.integer_units) * integer_unit_transistors(constants)
}

impl Floorplan {
    /// Returns the area of the dies by component, under the names of annotated die photographs. If base dies hold the
    /// PHYs, the compute dies have none.
    #[must_use]
    pub fn die_areas(&self, accelerator: &Accelerator) -> AreaBreakdown {
        let constants = &*accelerator.constants;
        let in_core = self.core_areas(accelerator);
        let core: SquareMillimeters = in_core.iter().map(|part| part.area).sum();
        let mut die = vec![
            AreaPart { name: "cores", area: core * f64::from(self.cores) },
            AreaPart { name: "crossbar", area: self.network_area(constants) },
            AreaPart { name: "global_buffer", area: self.shared_memory_area(constants) },
        ];
        let mut fixed = SquareMillimeters::ZERO;
        if self.base.is_none() {
            let (phys, controllers) = self.interface_areas(constants);
            die.extend(phys);
            fixed = controllers;
        }
        let known: SquareMillimeters = die.iter().map(|part| part.area).sum();
        // Both fractions are of the whole die, so the known area is the remaining fraction.
        let fraction = constants.area.unattributed + self.other_blocks_fraction;
        let rest = (known + fixed) * (fraction / (1.0 - fraction));
        die.push(AreaPart { name: "other", area: fixed + rest });
        AreaBreakdown { die, in_core }
    }

    /// Returns the PHYs and memory controllers by component, and the area that photographs do not separate: link
    /// controllers, PCIe, links between dies, display and video.
    fn interface_areas(&self, constants: &Constants) -> ([AreaPart; 3], SquareMillimeters) {
        let (area, hbm, link) = (&constants.area, &constants.hbm, constants.link.of_kind(self.link));
        let shrunk = |mm2_at_7nm: f64| SquareMillimeters(mm2_at_7nm * constants.process.sram_scale.at_node(self.node));
        let (stacks, channels, links) =
            (f64::from(self.hbm_stacks), f64::from(self.gddr_channels), f64::from(self.links));
        let phys = [
            AreaPart { name: "mem_phy", area: SquareMillimeters(stacks * hbm.phy + channels * area.gddr_phy) },
            AreaPart { name: "mem_ctrl", area: shrunk(stacks * hbm.controller + channels * area.gddr_controller) },
            AreaPart { name: "offchip_link_phy", area: SquareMillimeters(links * link.phy) },
        ];
        let PcieLane { to_generation_4, from_generation_5 } = area.pcie_lane;
        let lane = if self.pcie_generation >= 5 { from_generation_5 } else { to_generation_4 };
        let die_to_die = 2.0 * self.die_to_die_tb_per_s * constants.link.die_to_die.area;
        let controllers =
            shrunk(links * link.controllers * constants.link.controller + f64::from(self.media_blocks) * area.media);
        (phys, controllers + SquareMillimeters(f64::from(self.pcie_lanes) * lane + die_to_die))
    }

    /// Returns the area of the on-chip networks of all dies. The wires of a die's network grow with the square of its
    /// width. The network joins the die's own cores; the links between dies carry the rest (`BuildRule::DieToDie`).
    fn network_area(&self, constants: &Constants) -> SquareMillimeters {
        let dies = f64::from(self.dies.max(1));
        let width = f64::from(self.cores) / dies * self.network_port_bytes_per_cycle;
        let ports = width / NETWORK_PORT * (width / NETWORK_WIDTH);
        self.logic_area(constants, dies * constants.area.network * ports)
    }

    fn shared_memory_area(&self, constants: &Constants) -> SquareMillimeters {
        let of = |memory: &super::SramArray| {
            let bits = memory.area_at_node(constants, self.node);
            match memory.kind {
                SramKind::Scratchpad => bits,
                SramKind::Cache => {
                    bits + self.logic_area(constants, f64::from(memory.count) * constants.area.cache_slice)
                }
            }
        };
        self.chip_memory.iter().map(of).sum()
    }

    fn core_areas(&self, accelerator: &Accelerator) -> Vec<AreaPart> {
        let constants = &*accelerator.constants;
        let area = &constants.area;
        let scalar = f64::from(self.scalar_units) * (area.scalar_unit + area.sequencer);
        let mut parts = vec![
            AreaPart {
                name: "tensor_arrays",
                area: self.logic_area(constants, array_transistors(constants, accelerator)),
            },
            AreaPart {
                name: "vector_units",
                area: self.logic_area(
                    constants,
                    vector_transistors(constants, self) + self.transcendental_transistors(accelerator),
                ),
            },
            AreaPart {
                name: "control",
                area: self.logic_area(constants, f64::from(self.control_lanes) * area.control_lane),
            },
            AreaPart { name: "scalar_unit", area: self.shrunk_logic_area(constants, scalar) },
        ];
        if self.ray_tracing_cores > 0 {
            let share = f64::from(self.ray_tracing_cores) / f64::from(self.cores.max(1));
            let area = self.logic_area(constants, share * area.ray_tracing_core);
            parts.push(AreaPart { name: "ray_tracing", area });
        }
        for memory in &self.core_memory {
            let (name, area) = (memory.part_name(), memory.area_at_node(constants, self.node));
            match parts.iter_mut().find(|part| part.name == name) {
                Some(part) => part.area += area,
                None => parts.push(AreaPart { name, area }),
            }
        }
        parts
    }

    /// Returns the number of transistors of a core's share of the units for transcendental functions.
    fn transcendental_transistors(&self, accelerator: &Accelerator) -> f64 {
        let (constants, vector) = (&accelerator.constants, &accelerator.vector);
        let units = vector.transcendentals_per_cycle * f64::from(vector.cores) / f64::from(self.cores.max(1));
        units * constants.area.transcendental_unit * fused_multiply_add_transistors(constants, 24.0, 32.0)
    }

    /// Returns the area of placed and routed logic.
    fn logic_area(&self, constants: &Constants, transistors: f64) -> SquareMillimeters {
        SquareMillimeters(transistors * 1e-6 / constants.process.logic_density.at_node(self.node))
    }

    /// Returns the area of logic whose area is known at 7 nm.
    fn shrunk_logic_area(&self, constants: &Constants, mm2_at_7nm: f64) -> SquareMillimeters {
        let density = &constants.process.logic_density;
        SquareMillimeters(mm2_at_7nm * density.at_node(ProcessNode::N7) / density.at_node(self.node))
    }
}

impl super::SramArray {
    /// Returns the area of the bits of all instances, with their periphery.
    fn area_at_node(&self, constants: &Constants, node: ProcessNode) -> SquareMillimeters {
        let capacity = Bytes((self.capacity_kib * 1024.0) as u64);
        sram_area(constants, node, capacity, self.ports, self.bytes_per_cycle) * f64::from(self.count)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;

    #[test]
    fn units_are_ordered_as_their_work_is() {
        let constants = Constants::nominal();
        let fma = |significand, word| fused_multiply_add_transistors(&constants, significand, word);
        let (integer, single, double) = (integer_unit_transistors(&constants), fma(24.0, 32.0), fma(53.0, 64.0));
        assert!(integer < single && single < double, "{integer} {single} {double}");
        // TPU v4i's cell of 850 um^2 at 7 nm.
        let cell = multiply_accumulate_transistors(&constants, 64.0, 24.0, CELL_REGISTERS);
        let um2 = cell / constants.process.logic_density.at_node(ProcessNode::N7);
        assert!((um2 / 850.0 - 1.0).abs() < 0.1, "{um2}");
    }
}
