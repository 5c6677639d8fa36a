//! The constants as the model reads them. `sim/constants/*.toml` has their units, ranges and sources.

use super::super::ProcessNode;
use serde::Deserialize;

/// A value per process node.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeValues {
    n45: f64,
    n28: f64,
    n22: f64,
    n16: f64,
    n7: f64,
    n6: f64,
    n5: f64,
    n4: f64,
    n3: f64,
}

impl NodeValues {
    /// The value of a node.
    #[must_use]
    pub fn at_node(&self, node: ProcessNode) -> f64 {
        match node {
            ProcessNode::N45 => self.n45,
            ProcessNode::N28 => self.n28,
            ProcessNode::N22 => self.n22,
            ProcessNode::N16 => self.n16,
            ProcessNode::N7 => self.n7,
            ProcessNode::N6 => self.n6,
            ProcessNode::N5 => self.n5,
            ProcessNode::N4 => self.n4,
            ProcessNode::N3 => self.n3,
        }
    }
}

/// `process.toml`.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProcessConstants {
    /// Transistors per mm^2 that a large accelerator reaches, in millions.
    pub logic_density: NodeValues,
    /// Transistors per mm^2 of the densest library, in millions.
    pub library_density: NodeValues,
    /// Area of an SRAM bit over 7 nm's.
    pub sram_scale: NodeValues,
    /// Lowest operating voltage over the voltage at the highest clock.
    pub voltage_floor: NodeValues,
    /// Voltage over designed voltage is (clock over designed clock) to this power.
    pub voltage_exponent: f64,
    /// Lowest clock over the designed one.
    pub lowest_clock_fraction: f64,
}

/// `area.toml`.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AreaConstants {
    /// Transistors of an fp64 fused multiply-add.
    pub fp64_unit: f64,
    /// Transistors of a 32-bit integer unit.
    pub int32_unit: f64,
    /// Transistors of control per lane.
    pub control_lane: f64,
    /// Transistors of the on-chip network per port of 64 bytes per cycle.
    pub crossbar_port: f64,
    /// um^2 at 7 nm of a cell of a systolic array.
    pub systolic_cell: f64,
    /// mm^2 at 7 nm of a TPU core's scalar unit.
    pub scalar_unit: f64,
    /// um^2 at 7 nm of a cache's bit, before array efficiency.
    pub cache_bit: f64,
    /// Fraction of a cache's area that is bits.
    pub cache_efficiency: CacheEfficiency,
    /// um^2 at 7 nm of a scratchpad's bit of one port.
    pub scratchpad_bit: f64,
    /// Growth of each side of a bit per further port.
    pub port_growth: f64,
    /// mm^2 of a PCIe lane.
    pub pcie_lane: PcieLane,
    /// Fraction of the die that no unit covers.
    pub unattributed: f64,
}

/// Fraction of a cache's area that is bits, by capacity in KiB.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CacheEfficiency {
    kib_4: f64,
    kib_8: f64,
    kib_16: f64,
    kib_32: f64,
    kib_64: f64,
    kib_128: f64,
    kib_256: f64,
    kib_512: f64,
    kib_1024: f64,
}

impl CacheEfficiency {
    /// Capacity in KiB and fraction, ascending.
    #[must_use]
    pub fn points(&self) -> [(f64, f64); 9] {
        [
            (4.0, self.kib_4),
            (8.0, self.kib_8),
            (16.0, self.kib_16),
            (32.0, self.kib_32),
            (64.0, self.kib_64),
            (128.0, self.kib_128),
            (256.0, self.kib_256),
            (512.0, self.kib_512),
            (1024.0, self.kib_1024),
        ]
    }
}

/// mm^2 of a PCIe lane, by generation.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PcieLane {
    /// Up to generation 4.
    pub to_generation_4: f64,
    /// From generation 5 on.
    pub from_generation_5: f64,
}

/// `hbm.toml`.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HbmConstants {
    /// mm^2 of one stack's PHY.
    pub phy: f64,
    /// Transistors of the controllers of one stack.
    pub controller: f64,
    /// pJ per byte.
    pub energy: f64,
    /// USD per GB.
    pub price: f64,
}

/// `link.toml`.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkConstants {
    /// Transistors of a controller.
    pub controller: f64,
    /// NVLink 2 and 3.
    pub nvlink3: LinkKind,
    /// NVLink 4 and 5.
    pub nvlink4: LinkKind,
    /// AMD Infinity Fabric.
    pub infinity_fabric: LinkKind,
    /// Inter-chip interconnect of a TPU.
    pub ici: LinkKind,
}

/// Constants of a kind of link.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkKind {
    /// mm^2 of the PHY.
    pub phy: f64,
    /// Controllers of a link.
    pub controllers: f64,
}

/// Picojoules at 45 and at 7 nm.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnergyPair {
    /// At 45 nm.
    pub n45: f64,
    /// At 7 nm.
    pub n7: f64,
}

/// Energy over 7 nm's at equal speed.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnergyScale {
    /// 6 nm.
    pub n6: f64,
    /// 5 nm.
    pub n5: f64,
    /// 4 nm.
    pub n4: f64,
    /// 3 nm.
    pub n3: f64,
}

/// `energy.toml`.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnergyConstants {
    /// A product of fp16 operands.
    pub fp16_product: EnergyPair,
    /// A product of bf16 operands.
    pub bf16_product: EnergyPair,
    /// A product of fp32 operands.
    pub fp32_product: EnergyPair,
    /// A product of int8 operands.
    pub int8_product: EnergyPair,
    /// An addition in fp32.
    pub fp32_addition: EnergyPair,
    /// An addition in int32.
    pub int32_addition: EnergyPair,
    /// 64 bits from 8 KiB.
    pub sram_8_kib: EnergyPair,
    /// 64 bits from 32 KiB.
    pub sram_32_kib: EnergyPair,
    /// 64 bits from 1 MiB.
    pub sram_1_mib: EnergyPair,
    /// 64 bits from 128 MiB.
    pub sram_128_mib: EnergyPair,
    /// Energy of a write over a read.
    pub write_over_read: f64,
    /// pJ per byte read from a register file at 28 nm.
    pub register_read: f64,
    /// pJ per byte written to a register file at 28 nm.
    pub register_write: f64,
    /// A cycle of a GPU's core.
    pub simt_core_cycle: EnergyPair,
    /// Energy over 7 nm's at equal speed, below 7 nm.
    pub scale: EnergyScale,
    /// MHz to which energies at 7 nm and below refer.
    pub reference_clock: f64,
    /// Clock of 7 nm over 16 nm's at equal voltage.
    pub speed_of_n7_over_n16: f64,
    /// W per mm^2 of a chip without a measurement.
    pub static_power: f64,
}

/// `manufacturing.toml`.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManufacturingConstants {
    /// USD of a 300 mm wafer.
    pub wafer_price: NodeValues,
    /// Defects per cm^2.
    pub defect_density: f64,
    /// Exponent of the yield model.
    pub process_complexity: f64,
    /// Assembly, package and test over the price of the dies.
    pub packaging: f64,
}
