//! The constants as the model reads them. `sim/constants/*.toml` has their units, ranges and sources.

use super::super::{Calibration, DieLink, HbmGeneration, MemoryKind, ProcessNode};
use crate::units::Seconds;
use serde::Deserialize;

/// A value per process node.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeValues {
    n45: f64,
    n28: f64,
    n22: f64,
    n16: f64,
    n8: f64,
    n7: f64,
    n6: f64,
    n5: f64,
    n4: f64,
    n3: f64,
}

impl NodeValues {
    /// Returns the value of a node.
    #[must_use]
    pub fn at_node(&self, node: ProcessNode) -> f64 {
        match node {
            ProcessNode::N45 => self.n45,
            ProcessNode::N28 => self.n28,
            ProcessNode::N22 => self.n22,
            ProcessNode::N16 => self.n16,
            ProcessNode::N8 => self.n8,
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
    /// Area of an SRAM bit, relative to 7 nm.
    pub sram_scale: NodeValues,
    /// Lowest operating voltage, relative to the voltage at the node's reference clock; for planar nodes relative to
    /// the voltage at the designed clock.
    pub voltage_floor: NodeValues,
    /// Exponent of the voltage: (voltage / designed voltage) = (clock / designed clock) to this power.
    pub voltage_exponent: f64,
    /// Lowest clock, as a fraction of the designed clock.
    pub lowest_clock_fraction: f64,
    /// W per mm^2 of a powered die.
    pub leakage: NodeValues,
}

/// `area.toml`.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AreaConstants {
    /// Transistors of a multiplier per squared bit of the significand.
    pub multiplier_bit: f64,
    /// Transistors of an fp32 adder with alignment and normalisation.
    pub accumulator: f64,
    /// Transistors of a pipeline register's bit.
    pub register_bit: f64,
    /// Ratio of the transistors of a placed arithmetic unit to those of its parts.
    pub datapath_overhead: f64,
    /// Transistors of an integer multiplier per squared bit.
    pub integer_multiplier_bit: f64,
    /// Transistors of control per lane.
    pub control_lane: f64,
    /// Transistors per core with ray tracing.
    pub ray_tracing_core: f64,
    /// Transistors per 64-byte port of a die's network that is 8,192 bytes per cycle wide.
    pub network: f64,
    /// mm^2 at 7 nm of a TPU core's scalar unit.
    pub scalar_unit: f64,
    /// mm^2 at 7 nm of the logic around a TPU core's units.
    pub sequencer: f64,
    /// Area of one transcendental function per cycle, in fp32 fused multiply-adds.
    pub transcendental_unit: f64,
    /// um^2 at 7 nm of a bit of one port in a large array.
    pub sram_bit: f64,
    /// Ratio of the periphery's area to the bits' area, times the square root of a bank's capacity in KiB.
    pub sram_periphery: f64,
    /// Bytes per cycle of a bank's port.
    pub bank_width: f64,
    /// Growth of each side of a bit per further port.
    pub port_growth: f64,
    /// Transistors of the control of a shared cache's slice.
    pub cache_slice: f64,
    /// mm^2 of a GDDR PHY of 32 bits.
    pub gddr_phy: f64,
    /// mm^2 at 7 nm of a GDDR channel's controller.
    pub gddr_controller: f64,
    /// mm^2 at 7 nm of display and video.
    pub media: f64,
    /// mm^2 of a PCIe lane.
    pub pcie_lane: PcieLane,
    /// Fraction of the die that no unit covers.
    pub unattributed: f64,
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
    /// mm^2 at 7 nm of one stack's controllers.
    pub controller: f64,
    /// mm^2 of one stack's PHY.
    pub phy: f64,
    hbm2: StackConstants,
    hbm2e: StackConstants,
    hbm3: StackConstants,
    hbm3e: StackConstants,
    hbm4: StackConstants,
}

impl HbmConstants {
    /// Returns the constants of a generation's stacks.
    #[must_use]
    pub fn of_generation(&self, generation: HbmGeneration) -> &StackConstants {
        match generation {
            HbmGeneration::Hbm2 => &self.hbm2,
            HbmGeneration::Hbm2e => &self.hbm2e,
            HbmGeneration::Hbm3 => &self.hbm3,
            HbmGeneration::Hbm3e => &self.hbm3e,
            HbmGeneration::Hbm4 => &self.hbm4,
        }
    }
}

/// Constants of a stack of HBM.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StackConstants {
    /// Highest rate in GB/s, as rounded by vendors.
    pub stack_rate: f64,
    /// pJ per byte.
    pub energy: f64,
    /// W without traffic.
    pub idle_power: f64,
    /// USD per GB.
    pub price: f64,
    /// mm^2 on the interposer.
    pub package_area: f64,
}

/// `link.toml`.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkConstants {
    /// mm^2 at 7 nm of a controller of 25 GB/s.
    pub controller: f64,
    nvlink3: LinkKind,
    nvlink4: LinkKind,
    nvlink5: LinkKind,
    infinity_fabric: LinkKind,
    ici: LinkKind,
    ici_100: LinkKind,
    ethernet_100g: LinkKind,
    /// Between the dies of a chip.
    pub die_to_die: DieToDie,
    /// Between a device and its host.
    pub pcie: PcieConstants,
}

/// Constants of PCIe.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PcieConstants {
    /// Fraction of the lanes' raw rate that copied data reach.
    pub payload_fraction: f64,
}

impl LinkConstants {
    /// Returns the constants of a kind of link.
    #[must_use]
    pub fn of_kind(&self, kind: DieLink) -> &LinkKind {
        match kind {
            DieLink::Nvlink3 => &self.nvlink3,
            DieLink::Nvlink4 => &self.nvlink4,
            DieLink::Nvlink5 => &self.nvlink5,
            DieLink::InfinityFabric => &self.infinity_fabric,
            DieLink::Ici => &self.ici,
            DieLink::Ici100 => &self.ici_100,
            DieLink::Ethernet100g => &self.ethernet_100g,
        }
    }
}

/// Constants of a kind of link, per link.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkKind {
    /// mm^2 of the PHY.
    pub phy: f64,
    /// Controllers of 25 GB/s.
    pub controllers: f64,
    /// GB/s per direction.
    pub rate: f64,
    /// pJ per bit, in either direction.
    pub energy: f64,
    /// mm of the die's edge.
    pub edge: f64,
}

impl LinkKind {
    /// Returns the watts of one link.
    #[must_use]
    pub fn watts(&self) -> f64 {
        2.0 * 8.0 * self.rate * 1e9 * self.energy * 1e-12
    }
}

/// Constants of the links between the dies of a chip, per TB/s of both directions.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DieToDie {
    /// mm^2 on each of two dies.
    pub area: f64,
    /// pJ per bit.
    pub energy: f64,
    /// mm of each die's edge.
    pub edge: f64,
}

/// `efficiency.toml`.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EfficiencyConstants {
    scratchpads: FamilyEfficiency,
    caches: FamilyEfficiency,
}

impl EfficiencyConstants {
    /// Returns the efficiency of a family's chips.
    #[must_use]
    pub fn of_family(&self, family: ChipFamily) -> &FamilyEfficiency {
        match family {
            ChipFamily::Scratchpads => &self.scratchpads,
            ChipFamily::Caches => &self.caches,
        }
    }
}

/// A family of chips that reach similar fractions of their peaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChipFamily {
    /// Systolic arrays with memories that software manages: TPUs.
    Scratchpads,
    /// Cores behind a shared cache: GPUs.
    Caches,
}

impl ChipFamily {
    /// Its name in chip files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Scratchpads => "scratchpads",
            Self::Caches => "caches",
        }
    }

    /// Returns the family of chips whose outermost shared memory is of this kind. Chips without a shared memory count
    /// as chips with scratchpads.
    #[must_use]
    pub fn of_memory_kind(kind: Option<MemoryKind>) -> Self {
        if kind == Some(MemoryKind::Cache) { Self::Caches } else { Self::Scratchpads }
    }
}

/// The efficiency that chips of a family reach.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FamilyEfficiency {
    /// Fraction of the arrays' peak.
    pub tensor: f64,
    /// Fraction of the bandwidth of HBM.
    pub hbm: f64,
    /// Fraction of the lanes' peak.
    pub vector: f64,
    /// Microseconds of a launch.
    pub launch: f64,
}

impl FamilyEfficiency {
    /// The scalars of a chip of the family.
    #[must_use]
    pub fn calibration(&self) -> Calibration {
        Calibration {
            launch_overhead: Seconds::from_micros(self.launch),
            hbm_achieved_fraction: self.hbm,
            tensor_achieved_fraction: self.tensor,
            vector_achieved_fraction: self.vector,
            ..Calibration::default()
        }
    }
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

/// Energy relative to 7 nm at equal speed.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EnergyScale {
    /// 8 nm.
    pub n8: f64,
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
    /// Ratio of the energy of a write to that of a read.
    pub write_over_read: f64,
    /// pJ per byte read from a register file at 28 nm.
    pub register_read: f64,
    /// pJ per byte written to a register file at 28 nm.
    pub register_write: f64,
    /// A cycle of a GPU's core, per million transistors of its logic.
    pub simt_core_cycle: EnergyPair,
    /// Energy relative to 7 nm at equal speed, for 8 nm and for nodes below 7 nm.
    pub scale: EnergyScale,
    /// MHz to which energies at 7 nm and below refer.
    pub reference_clock: f64,
    /// Ratio of the clock at 7 nm to that at 16 nm, at equal voltage.
    pub speed_of_n7_over_n16: f64,
    /// Ratio of the power at the chip to the power into its voltage regulators.
    pub regulator_efficiency: f64,
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
    /// Cost of assembly, package and test, as a fraction of the price of the dies.
    pub packaging: f64,
    /// USD per mm^2 of interposer.
    pub interposer: f64,
    /// Fraction of assembled packages that are good.
    pub assembly_yield: f64,
    /// Million USD of a chip's design.
    pub design: NodeValues,
    /// Chips over which the design is paid.
    pub volume: f64,
}

/// `package.toml`.
#[derive(Debug, Clone, Copy, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PackageConstants {
    /// mm of the reticle's longer side.
    pub reticle_long: f64,
    /// mm of the reticle's shorter side.
    pub reticle_short: f64,
    /// Largest ratio of a die's longer side to its shorter side.
    pub aspect: f64,
    /// mm between the centres of neighbouring stacks.
    pub stack_pitch: f64,
    /// mm of the die's edge per stack.
    pub phy_width: f64,
    /// mm of the die's edge per PCIe lane.
    pub pcie_lane_width: f64,
    /// Fraction of the edge that PHYs may take.
    pub usable_edge: f64,
    /// Largest area of dies and stacks in one package, in mm^2.
    pub interposer_area: f64,
    /// Highest power of a package per mm^2 of compute dies, in W. If the base dies below them are larger, their area
    /// counts.
    pub power_density: f64,
}
