//! Unit areas: transistor counts over achieved density, memory bits over array efficiency, and PHYs that do not shrink.
//!
//! The method and the unit counts are LLMCompass's (Zhang et al., *LLMCompass: Enabling Efficient Hardware Design for
//! Large Language Model Inference*, ISCA 2024, cost model). `sim/constants/area.toml` has the unit areas with their
//! sources. Pads, clocks, test and fuses have no unit; they are a fixed fraction of the die.

use super::super::constants::{Constants, LinkConstants, LinkKind, PcieLane};
use super::super::energy::interpolate_log;
use super::super::{Accelerator, MemoryLevel, MemoryScope, ProcessNode};
use super::{AreaBreakdown, AreaPart};
use crate::files::FileFault;
use crate::kernel::DataType;
use crate::limits;
use crate::units::{Bytes, SquareMillimeters};
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;

/// Bytes per cycle of the port to which `area.crossbar_port` refers.
const CROSSBAR_PORT: f64 = 64.0;
/// Peak bandwidth of one HBM2 stack, B/s: 1024 bits at 2.4 Gb/s (JESD235B).
const HBM2_STACK: f64 = 307.2e9;
/// Sublanes of a lane that one instruction drives (a TPU's vector unit).
const SUBLANES: u32 = 8;
/// Accepted range of a core's port on the on-chip network, in bytes per cycle; the widest of 2025 have some thousands.
const PORT_BYTES: RangeInclusive<f64> = 1e-3..=1e9;

/// The construction of multiply-accumulate units.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ArrayCell {
    /// Cells of a large systolic array, with pipeline, weight and partial-sum registers.
    Systolic,
    /// Dot-product trees fed from a register file.
    DotProduct,
}

/// The construction of a memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SramKind {
    /// A cache or banked register file: tags, coherence, many small arrays.
    Cache,
    /// A software-managed memory.
    Scratchpad,
}

/// A memory on the die.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SramArray {
    /// Its name in the area breakdown: one of [`SramArray::PART`] or `other_memory`.
    pub name: String,
    /// Capacity of an instance.
    pub capacity_kib: f64,
    /// Instances, per core or per die by the list they are in.
    pub count: u32,
    /// Its construction.
    pub kind: SramKind,
    /// Ports of a scratchpad's bits (simultaneous reads and writes); a cache's ports are in its efficiency.
    pub ports: u32,
}

/// A kind of chip-to-chip link.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DieLink {
    /// NVLink 2 and 3: 25 GB/s per direction over eight or four pairs.
    Nvlink3,
    /// NVLink 4 and 5: two pairs.
    Nvlink4,
    /// AMD Infinity Fabric.
    InfinityFabric,
    /// Inter-chip interconnect of a TPU, 45 to 50 GB/s per direction.
    Ici,
}

impl DieLink {
    fn constants_of_kind(self, links: &LinkConstants) -> LinkKind {
        match self {
            Self::Nvlink3 => links.nvlink3,
            Self::Nvlink4 => links.nvlink4,
            Self::InfinityFabric => links.infinity_fabric,
            Self::Ici => links.ici,
        }
    }
}

/// The contents of the die, parts disabled in the product included.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Floorplan {
    /// The process.
    pub node: ProcessNode,
    /// Compute dies; all figures below are sums over them.
    pub dies: u32,
    /// Cores, disabled ones included.
    pub cores: u32,
    /// The construction of the arrays; the accelerator has their number and size per core.
    pub array_cell: ArrayCell,
    /// fp64 fused multiply-add units per core.
    pub fp64_units: u32,
    /// fp32 fused multiply-add units per core, in addition to those that fp64 units provide.
    pub fp32_units: u32,
    /// 32-bit integer units per core.
    pub integer_units: u32,
    /// Lanes with control logic, per core: lanes that issue address and integer work each cycle, or one per column of
    /// sublanes where one wide instruction drives them all.
    pub control_lanes: u32,
    /// Scalar units (TPU) per core.
    pub scalar_units: u32,
    /// Memories of each core.
    pub core_memory: Vec<SramArray>,
    /// Memories that the cores share.
    pub chip_memory: Vec<SramArray>,
    /// Bytes per cycle of each core's port on the on-chip network.
    pub network_port_bytes_per_cycle: f64,
    /// HBM stacks with a PHY on the die.
    pub hbm_stacks: u32,
    /// Kind of the chip-to-chip links.
    pub link: DieLink,
    /// Chip-to-chip links.
    pub links: u32,
    /// Generation of the PCIe interface (4 or 5).
    pub pcie_generation: u32,
    /// Lanes of the PCIe interface.
    pub pcie_lanes: u32,
    /// Blocks without a unit in the model (SparseCores, for instance), as the vendor's fraction of the die.
    pub other_blocks_fraction: f64,
}

/// The area of one memory at a node. It grows with capacity and with ports.
#[must_use]
pub fn sram_area(constants: &Constants, node: ProcessNode, kind: SramKind, capacity: Bytes, ports: u32) -> SquareMillimeters {
    if capacity == Bytes::ZERO {
        return SquareMillimeters::ZERO;
    }
    let kib = capacity.as_f64() / 1024.0;
    let bits = capacity.as_f64() * 8.0;
    let um2 = match kind {
        SramKind::Scratchpad => {
            let side = 1.0 + constants.area.port_growth * f64::from(ports.saturating_sub(1));
            bits * constants.area.scratchpad_bit * side * side
        }
        SramKind::Cache => {
            let area = |(kib, efficiency): (f64, f64)| (kib, kib * 8192.0 * constants.area.cache_bit / efficiency);
            let points = constants.area.cache_efficiency.points().map(area);
            let (first, last) = (points[0], points[points.len() - 1]);
            if kib >= last.0 { last.1 * kib / last.0 } else { interpolate_log(&points, kib.max(first.0)) }
        }
    };
    SquareMillimeters(um2 * constants.process.sram_scale.at_node(node) * 1e-6)
}

impl SramArray {
    fn area_at_node(&self, constants: &Constants, node: ProcessNode) -> SquareMillimeters {
        let capacity = Bytes((self.capacity_kib * 1024.0) as u64);
        sram_area(constants, node, self.kind, capacity, self.ports) * f64::from(self.count)
    }

    /// The memory's name in the breakdown.
    fn part_name(&self) -> &'static str {
        Self::PART.iter().find(|part| **part == self.name).copied().unwrap_or("other_memory")
    }

    /// Names of memories in the area breakdown.
    pub const PART: [&'static str; 4] = ["register_file", "local_buffer", "instruction_cache", "global_buffer"];
}

impl Floorplan {
    /// The floorplan of a chip that has not been built, for searches beyond PHAZE's tables: a TPU-like die at `node`.
    /// It has exactly the accelerator's cores and memories, one HBM stack per 307 GB/s (HBM2's fastest), and `links`
    /// chip-to-chip links.
    #[must_use]
    pub fn of_unbuilt_chip(accelerator: &Accelerator, node: ProcessNode, links: u32) -> Self {
        let array = |level: &MemoryLevel, name: &str| SramArray {
            name: name.to_owned(),
            capacity_kib: level.capacity.as_f64() / 1024.0,
            count: 1,
            kind: SramKind::Scratchpad,
            ports: level.ports,
        };
        let on_chip = |scope, name: &str| {
            let levels = accelerator.on_chip.iter().filter(|level| level.scope == scope);
            levels.map(|level| array(level, name)).collect::<Vec<_>>()
        };
        let (tensor, vector) = (accelerator.tensor.cores.max(1), &accelerator.vector);
        // Vector cores are spread over the tensor cores; a fraction of one is rounded up.
        let lanes = (vector.cores * vector.lanes).div_ceil(tensor);
        let mut core_memory = on_chip(MemoryScope::Core, "local_buffer");
        if let Some(memory) = accelerator.tensor.accumulation.memory() {
            core_memory.push(SramArray {
                name: "accumulators".into(),
                capacity_kib: memory.capacity.as_f64() / 1024.0,
                count: 1,
                kind: SramKind::Scratchpad,
                ports: 2,
            });
        }
        if let Some(buffer) = vector.buffer {
            let count = vector.cores.div_ceil(tensor);
            let capacity_kib = buffer.as_f64() / 1024.0;
            core_memory.push(SramArray {
                name: "vector_buffer".into(),
                capacity_kib,
                count,
                kind: SramKind::Scratchpad,
                ports: 2,
            });
        }
        let shared = accelerator.global_buffer().unwrap_or(&accelerator.hbm);
        let port = shared.read_bandwidth.0 / accelerator.clock.0 / f64::from(tensor);
        Self {
            node,
            dies: 1,
            cores: tensor,
            array_cell: ArrayCell::Systolic,
            fp64_units: 0,
            fp32_units: lanes,
            integer_units: lanes,
            control_lanes: lanes.div_ceil(SUBLANES),
            scalar_units: 0,
            core_memory,
            chip_memory: on_chip(MemoryScope::Chip, "global_buffer"),
            network_port_bytes_per_cycle: port,
            hbm_stacks: (accelerator.hbm.read_bandwidth.0 / HBM2_STACK).ceil() as u32,
            link: DieLink::Ici,
            links,
            pcie_generation: 4,
            pcie_lanes: 16,
            other_blocks_fraction: 0.0,
        }
    }

    /// The area of the dies by component, under the names of annotated die photographs.
    #[must_use]
    pub fn die_areas(&self, accelerator: &Accelerator) -> AreaBreakdown {
        let constants = &accelerator.constants;
        let link = self.link.constants_of_kind(&constants.link);
        let in_core = self.core_areas(accelerator);
        let core: SquareMillimeters = in_core.iter().map(|part| part.area).sum();
        let cores = f64::from(self.cores);
        let global: SquareMillimeters = self.chip_memory.iter().map(|memory| memory.area_at_node(constants, self.node)).sum();
        let stacks = f64::from(self.hbm_stacks);
        let links = f64::from(self.links);
        let mut die = vec![
            AreaPart { name: "cores", area: core * cores },
            AreaPart {
                name: "crossbar",
                area: self.logic_area(
                    constants,
                    cores * constants.area.crossbar_port * self.network_port_bytes_per_cycle / CROSSBAR_PORT,
                ),
            },
            AreaPart { name: "global_buffer", area: global },
            AreaPart { name: "mem_phy", area: SquareMillimeters(stacks * constants.hbm.phy) },
            AreaPart { name: "mem_ctrl", area: self.library_logic_area(constants, stacks * constants.hbm.controller) },
            AreaPart { name: "offchip_link_phy", area: SquareMillimeters(links * link.phy) },
        ];
        let known: SquareMillimeters = die.iter().map(|part| part.area).sum();
        let fixed = self.library_logic_area(constants, links * link.controllers * constants.link.controller)
            + SquareMillimeters(self.pcie_mm2(constants));
        // Both fractions are of the whole die, so the known area is the remaining fraction.
        let fraction = constants.area.unattributed + self.other_blocks_fraction;
        let rest = (known + fixed) * (fraction / (1.0 - fraction));
        die.push(AreaPart { name: "other", area: fixed + rest });
        AreaBreakdown { die, in_core }
    }

    /// Every impossible figure of a die.
    pub(in super::super) fn find_faults(&self, accelerator: &Accelerator) -> Vec<FileFault> {
        let mut faults = Vec::new();
        let tensor = accelerator.tensor.cores;
        if self.cores < tensor {
            let limit = format!("fewer than the {tensor} cores in use");
            faults.push(FileFault::new("area.cores", self.cores, limit, "count the cores on the die, disabled ones included"));
        }
        if self.dies == 0 {
            faults.push(FileFault::new("area.dies", 0, "a chip has at least one", "count the compute dies"));
        }
        let port = self.network_port_bytes_per_cycle;
        if !PORT_BYTES.contains(&port) {
            let limit = limits::describe_range(*PORT_BYTES.start(), *PORT_BYTES.end());
            let cure = "give what a core reads from the network per cycle";
            faults.push(FileFault::new("area.network_port_bytes_per_cycle", limits::format_number(port), limit, cure));
        }
        self.count_faults(&mut faults);
        if !(0.0..0.5).contains(&self.other_blocks_fraction) {
            let cure = "give the fraction of the die that other blocks take, 0 where unknown";
            faults.push(FileFault::new(
                "area.other_blocks_fraction",
                self.other_blocks_fraction,
                "must lie between 0 and 0.5",
                cure,
            ));
        }
        for memory in self.core_memory.iter().chain(&self.chip_memory) {
            let key = format!("area.{}", memory.name);
            let range = 1.0 / 1024.0..=limits::LARGEST_MEMORY as f64 / 1024.0;
            // A memory of capacity zero is none.
            if memory.capacity_kib != 0.0 && !range.contains(&memory.capacity_kib) {
                let limit = limits::describe_range(*range.start(), *range.end());
                faults.push(FileFault::new(
                    format!("{key}.capacity_kib"),
                    limits::format_number(memory.capacity_kib),
                    limit,
                    "remove it",
                ));
            }
            if memory.ports == 0 || memory.count == 0 {
                let value = format!("{} ports, {} instances", memory.ports, memory.count);
                faults.push(FileFault::new(key, value, "a memory has at least one of each", "remove it"));
            }
        }
        // Each figure is possible, but their total may not be.
        let total = if faults.is_empty() { self.die_areas(accelerator).total_area().0 } else { *limits::AREA.start() };
        if !limits::AREA.contains(&total) {
            let limit =
                format!("all dies together, which {}", limits::describe_range(*limits::AREA.start(), *limits::AREA.end()));
            faults.push(FileFault::new(
                "area",
                format!("{} mm^2", limits::format_number(total)),
                limit,
                "correct the counts and capacities",
            ));
        }
        faults
    }

    /// Adds counts that exceed the limit.
    fn count_faults(&self, faults: &mut Vec<FileFault>) {
        let memories = self.core_memory.iter().chain(&self.chip_memory);
        let of_memories =
            memories.flat_map(|m| [(format!("area.{}.count", m.name), m.count), (format!("area.{}.ports", m.name), m.ports)]);
        let counts = [
            ("dies", self.dies),
            ("cores", self.cores),
            ("fp64_units", self.fp64_units),
            ("fp32_units", self.fp32_units),
            ("integer_units", self.integer_units),
            ("control_lanes", self.control_lanes),
            ("scalar_units", self.scalar_units),
            ("hbm_stacks", self.hbm_stacks),
            ("links", self.links),
            ("pcie_lanes", self.pcie_lanes),
        ];
        let counts = counts.into_iter().map(|(key, count)| (format!("area.{key}"), count));
        for (key, count) in counts.chain(of_memories).filter(|(_, count)| *count > limits::LARGEST_COUNT) {
            faults.push(FileFault::new(key, count, format!("must be at most {}", limits::LARGEST_COUNT), "correct it"));
        }
    }

    fn core_areas(&self, accelerator: &Accelerator) -> Vec<AreaPart> {
        let (tensor, constants) = (&accelerator.tensor, &accelerator.constants);
        let cells = f64::from(tensor.arrays_per_core) * f64::from(tensor.rows) * f64::from(tensor.columns);
        let arrays = match self.array_cell {
            // Cells shrink like the logic that they consist of.
            ArrayCell::Systolic => self.shrunk_logic_area(constants, cells * constants.area.systolic_cell * 1e-6),
            ArrayCell::DotProduct => {
                let mantissa = if tensor.macs_per_unit_per_cycle.get(DataType::Fp16).is_some() { 10.0 } else { 7.0 };
                self.logic_area(constants, cells * floating_point_unit_transistors(constants, mantissa))
            }
        };
        let vector = f64::from(self.fp64_units) * constants.area.fp64_unit
            + f64::from(self.fp32_units) * floating_point_unit_transistors(constants, 23.0)
            + f64::from(self.integer_units) * constants.area.int32_unit;
        let mut parts = vec![
            AreaPart { name: "tensor_arrays", area: arrays },
            AreaPart { name: "vector_units", area: self.logic_area(constants, vector) },
            AreaPart {
                name: "control",
                area: self.logic_area(constants, f64::from(self.control_lanes) * constants.area.control_lane),
            },
            AreaPart {
                name: "scalar_unit",
                area: self.shrunk_logic_area(constants, f64::from(self.scalar_units) * constants.area.scalar_unit),
            },
        ];
        for memory in &self.core_memory {
            let (name, area) = (memory.part_name(), memory.area_at_node(constants, self.node));
            match parts.iter_mut().find(|part| part.name == name) {
                Some(part) => part.area += area,
                None => parts.push(AreaPart { name, area }),
            }
        }
        parts
    }

    /// Area of placed and routed logic.
    fn logic_area(&self, constants: &Constants, transistors: f64) -> SquareMillimeters {
        SquareMillimeters(transistors * 1e-6 / constants.process.logic_density.at_node(self.node))
    }

    /// Area of logic at library density.
    fn library_logic_area(&self, constants: &Constants, transistors: f64) -> SquareMillimeters {
        SquareMillimeters(transistors * 1e-6 / constants.process.library_density.at_node(self.node))
    }

    /// Area of logic whose area is known at 7 nm.
    fn shrunk_logic_area(&self, constants: &Constants, mm2_at_7nm: f64) -> SquareMillimeters {
        SquareMillimeters(
            mm2_at_7nm * constants.process.logic_density.at_node(ProcessNode::N7)
                / constants.process.logic_density.at_node(self.node),
        )
    }

    fn pcie_mm2(&self, constants: &Constants) -> f64 {
        let PcieLane { to_generation_4, from_generation_5 } = constants.area.pcie_lane;
        f64::from(self.pcie_lanes) * if self.pcie_generation >= 5 { from_generation_5 } else { to_generation_4 }
    }
}

/// Transistors of a fused multiply-add with this mantissa; they grow with its square (LLMCompass).
fn floating_point_unit_transistors(constants: &Constants, mantissa: f64) -> f64 {
    constants.area.fp64_unit * (mantissa / 52.0) * (mantissa / 52.0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::super::super::phaze::{PhazeConfig, design_accelerator};
    use super::super::super::{AreaModel, chip_area};
    use super::*;
    use proptest::prelude::*;

    /// A floorplan with one figure increased; `which` is the figure's number.
    fn grown(floorplan: &Floorplan, which: usize) -> Floorplan {
        let mut larger = floorplan.clone();
        match which {
            0 => larger.cores += 1,
            1 => larger.fp64_units += 1,
            2 => larger.fp32_units += 1,
            3 => larger.integer_units += 1,
            4 => larger.control_lanes += 1,
            5 => larger.scalar_units += 1,
            6 => larger.network_port_bytes_per_cycle *= 2.0,
            7 => larger.hbm_stacks += 1,
            8 => larger.links += 1,
            9 => larger.pcie_lanes += 1,
            10 => larger.other_blocks_fraction += 0.01,
            11 => larger.core_memory[0].capacity_kib *= 1.5,
            12 => larger.core_memory[0].count += 1,
            _ => larger.core_memory.push(larger.core_memory[0].clone()),
        }
        larger
    }

    proptest! {
        #[test]
        fn a_memory_grows_with_capacity_and_ports(
            kib in 1.0..1e6_f64, factor in 1.001..4.0_f64, ports in 1..8u32, node in prop::sample::select(ProcessNode::ALL.to_vec()),
        ) {
            let bytes = |kib: f64| Bytes((kib * 1024.0) as u64);
            for kind in [SramKind::Cache, SramKind::Scratchpad] {
                let small = sram_area(&Constants::nominal(), node, kind, bytes(kib), ports);
                prop_assert!(sram_area(&Constants::nominal(), node, kind, bytes(kib * factor), ports) >= small);
                prop_assert!(sram_area(&Constants::nominal(), node, kind, bytes(kib), ports + 1) >= small);
            }
        }

        #[test]
        fn a_die_grows_with_everything_on_it(name in prop::sample::select(vec!["a100_80gb_sxm", "mi210", "tpu_v4", "tpu_v2"]), which in 0..14usize) {
            let chip = Accelerator::built_in(name).unwrap();
            let AreaModel::UnitAreas(floorplan) = &chip.area_model else { panic!("{name}") };
            prop_assert!(grown(floorplan, which).die_areas(&chip).total_area() > floorplan.die_areas(&chip).total_area());
        }

        #[test]
        fn a_newer_node_is_smaller(name in prop::sample::select(vec!["a100_80gb_sxm", "mi210", "tpu_v4", "tpu_v2"])) {
            let chip = Accelerator::built_in(name).unwrap();
            let AreaModel::UnitAreas(floorplan) = &chip.area_model else { panic!("{name}") };
            let areas = ProcessNode::ALL.map(|node| Floorplan { node, ..(**floorplan).clone() }.die_areas(&chip).total_area());
            prop_assert!(areas.windows(2).all(|pair| pair[1] <= pair[0]), "{areas:?}");
        }
    }

    #[test]
    fn phazes_point_shrinks_from_22_nm() {
        let mut chip = design_accelerator(&PhazeConfig::tpu_v4_like());
        let tables = chip_area(&chip).unwrap().total_area();
        chip.area_model = AreaModel::UnitAreas(Box::new(Floorplan::of_unbuilt_chip(&chip, ProcessNode::N7, 6)));
        let breakdown = chip_area(&chip).unwrap();
        // Eight arrays of 14 mm^2 (TPU v4i's MXU) and 112 mm^2 of CMEM with separate ports.
        assert!((breakdown.in_core[0].area.0 / 13.9 - 1.0).abs() < 0.01, "{breakdown:?}");
        assert!(breakdown.total_area().0 > tables.0, "the tables leave HBM, links and control out: {breakdown:?}");
    }
}
