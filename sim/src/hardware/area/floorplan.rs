//! The contents of a die, as a chip's file lists them. `units.rs` has the areas.

use super::super::{Accelerator, AccumulatorMemory, DieLink, HbmGeneration, MemoryLevel, MemoryScope, ProcessNode};
use crate::files::FileFault;
use crate::limits;
use crate::units::Hertz;
use serde::{Deserialize, Serialize};
use std::ops::RangeInclusive;

/// Integer and control lanes of a GPU's core (NVIDIA V100 to H100, AMD CDNA).
const GPU_LANES: u32 = 64;
/// Sublanes of a lane that one instruction drives (a TPU's vector unit).
const SUBLANES: u32 = 8;
/// Accepted range of a core's port on the on-chip network, in bytes per cycle; the widest of 2025 have some thousands.
const PORT_BYTES: RangeInclusive<f64> = 1e-3..=1e9;
/// Most TB/s between the dies of a chip; the largest of 2025 have tens.
const MOST_DIE_TO_DIE: f64 = 1e4;

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
    /// A cache or banked register file. In a memory that the cores share, each instance is a slice with tags, queues
    /// and coherence.
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
    /// Ports of its bits (simultaneous reads and writes); a banked memory's bits have one.
    pub ports: u32,
    /// Bytes that each port of an instance moves per cycle; 0 if a single bank is wide enough.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub bytes_per_cycle: f64,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "serde gives a reference")]
fn is_zero(value: &f64) -> bool {
    *value == 0.0
}

/// Dies under the compute dies, which hold the PHYs and shared memories (AMD MI300).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct BaseDies {
    /// Their process.
    pub node: ProcessNode,
    /// Their number.
    pub count: u32,
    /// The area of one, as published, in mm^2.
    pub mm2_each: f64,
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
    /// Lanes with control logic, per core. They are the lanes that issue address and integer work each cycle, or one
    /// per column of sublanes if one wide instruction drives them all.
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
    /// Their generation.
    #[serde(default)]
    pub hbm_generation: HbmGeneration,
    /// GDDR channels of 32 bits.
    #[serde(default)]
    pub gddr_channels: u32,
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
    /// Cores with a ray tracing unit.
    #[serde(default)]
    pub ray_tracing_cores: u32,
    /// Sets of display outputs and video engines: one for a graphics chip.
    #[serde(default)]
    pub media_blocks: u32,
    /// TB/s of both directions between neighbouring dies, summed over the pairs.
    #[serde(default)]
    pub die_to_die_tb_per_s: f64,
    /// Dies below the compute dies, which hold the PHYs, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base: Option<BaseDies>,
}

impl BaseDies {
    /// The area of all of them, in mm^2.
    pub(in super::super) fn total_mm2(self) -> f64 {
        f64::from(self.count) * self.mm2_each
    }
}

impl SramArray {
    /// Returns a memory of a chip as a scratchpad. Its ports share its bandwidth.
    fn of_level(level: &MemoryLevel, clock: Hertz, name: &str) -> Self {
        Self {
            name: name.to_owned(),
            capacity_kib: level.capacity.as_f64() / 1024.0,
            count: 1,
            kind: SramKind::Scratchpad,
            ports: level.ports,
            bytes_per_cycle: (level.read_bandwidth + level.write_bandwidth).0 / clock.0 / f64::from(level.ports.max(1)),
        }
    }

    /// The memory's name in the area breakdown.
    pub(super) fn part_name(&self) -> &'static str {
        Self::PART.iter().find(|part| **part == self.name).copied().unwrap_or("other_memory")
    }

    /// Returns a core's accumulators, which are read and written in the same cycle.
    fn of_accumulators(memory: &AccumulatorMemory) -> Self {
        let capacity_kib = memory.capacity.as_f64() / 1024.0;
        let bytes_per_cycle = memory.read_bytes_per_cycle.max(memory.write_bytes_per_cycle);
        Self {
            name: "accumulators".into(),
            capacity_kib,
            count: 1,
            kind: SramKind::Scratchpad,
            ports: 2,
            bytes_per_cycle,
        }
    }

    /// Names of memories in the area breakdown.
    pub const PART: [&'static str; 4] = ["register_file", "local_buffer", "instruction_cache", "global_buffer"];
}

impl Floorplan {
    /// Returns the floorplan of a chip that has not been built, for searches beyond PHAZE's tables: a TPU-like die at
    /// `node`. It has exactly the accelerator's cores and memories, one HBM2 stack per 307 GB/s (the nominal
    /// `hbm.hbm2.stack_rate`), and `links` chip-to-chip links.
    #[must_use]
    pub fn of_unbuilt_chip(accelerator: &Accelerator, node: ProcessNode, links: u32) -> Self {
        let on_chip = |scope, name: &str| {
            let levels = accelerator.on_chip.iter().filter(|level| level.scope == scope);
            levels.map(|level| SramArray::of_level(level, accelerator.clock, name)).collect::<Vec<_>>()
        };
        let (tensor, vector) = (accelerator.tensor.cores.max(1), &accelerator.vector);
        // Vector cores are spread over the tensor cores; a fraction of one is rounded up.
        let lanes = (vector.cores * vector.lanes).div_ceil(tensor);
        let mut core_memory = on_chip(MemoryScope::Core, "local_buffer");
        core_memory.extend(accelerator.tensor.accumulation.memory().map(SramArray::of_accumulators));
        if let Some(buffer) = vector.buffer {
            let count = vector.cores.div_ceil(tensor);
            let capacity_kib = buffer.as_f64() / 1024.0;
            core_memory.push(SramArray {
                name: "vector_buffer".into(),
                capacity_kib,
                count,
                kind: SramKind::Scratchpad,
                ports: 2,
                bytes_per_cycle: 0.0,
            });
        }
        let shared = accelerator.global_buffer().unwrap_or(&accelerator.hbm);
        let port = shared.read_bandwidth.0 / accelerator.clock.0 / f64::from(tensor);
        let stack = accelerator.constants.hbm.of_generation(HbmGeneration::Hbm2).stack_rate * 1e9;
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
            hbm_stacks: (accelerator.hbm.read_bandwidth.0 / stack).ceil() as u32,
            link: DieLink::Ici,
            links,
            pcie_generation: 4,
            pcie_lanes: 16,
            other_blocks_fraction: 0.0,
            hbm_generation: HbmGeneration::Hbm2,
            gddr_channels: 0,
            ray_tracing_cores: 0,
            media_blocks: 0,
            die_to_die_tb_per_s: 0.0,
            base: None,
        }
    }

    /// Returns this floorplan with the arrays' accumulators, unless it lists them already.
    pub(in super::super) fn with_accumulators(mut self, memory: Option<&AccumulatorMemory>) -> Self {
        let missing = memory.map(SramArray::of_accumulators);
        self.core_memory.extend(missing.filter(|own| self.core_memory.iter().all(|listed| listed.name != own.name)));
        self
    }

    /// Returns a floorplan with the core of a GPU whose die is not disclosed. The core has one fp32 unit per lane, and
    /// the integer and control lanes of the GPUs with disclosed dies.
    pub(in super::super) fn of_undisclosed_core(accelerator: &Accelerator) -> Self {
        let plan = Self::of_unbuilt_chip(accelerator, ProcessNode::N7, 0);
        let lanes = accelerator.vector.lanes;
        Self { fp32_units: lanes, integer_units: GPU_LANES.min(lanes), control_lanes: GPU_LANES.min(lanes), ..plan }
    }

    /// Returns a fault for every impossible figure of a die.
    pub(in super::super) fn find_faults(&self, accelerator: &Accelerator) -> Vec<FileFault> {
        let mut faults = Vec::new();
        let tensor = accelerator.tensor.cores;
        if self.cores < tensor {
            let limit = format!("fewer than the {tensor} cores in use");
            faults.push(FileFault::new(
                "area.cores",
                self.cores,
                limit,
                "count the cores on the die, disabled ones included",
            ));
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
        if !(0.0..=MOST_DIE_TO_DIE).contains(&self.die_to_die_tb_per_s) {
            let limit = limits::describe_range(0.0, MOST_DIE_TO_DIE);
            let (key, value) = ("area.die_to_die_tb_per_s", limits::format_number(self.die_to_die_tb_per_s));
            faults.push(FileFault::new(
                key,
                value,
                limit,
                "give TB/s of both directions, summed over the pairs of dies",
            ));
        }
        if let Some(base) = self.base.filter(|base| base.count == 0 || !limits::AREA.contains(&base.mm2_each)) {
            let value = format!("{} of {} mm^2", base.count, base.mm2_each);
            faults.push(FileFault::new(
                "area.base",
                value,
                "at least one die with an area",
                "correct it, or leave it out",
            ));
        }
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
            // A memory of capacity zero counts as absent.
            if memory.capacity_kib != 0.0 && !range.contains(&memory.capacity_kib) {
                let limit = limits::describe_range(*range.start(), *range.end());
                faults.push(FileFault::new(
                    format!("{key}.capacity_kib"),
                    limits::format_number(memory.capacity_kib),
                    limit,
                    "remove it",
                ));
            }
            if !(0.0..=*PORT_BYTES.end()).contains(&memory.bytes_per_cycle) {
                faults.push(FileFault::new(
                    format!("{key}.bytes_per_cycle"),
                    limits::format_number(memory.bytes_per_cycle),
                    limits::describe_range(0.0, *PORT_BYTES.end()),
                    "give what each port moves per cycle",
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
            let limit = format!(
                "all dies together, which {}",
                limits::describe_range(*limits::AREA.start(), *limits::AREA.end())
            );
            faults.push(FileFault::new(
                "area",
                format!("{} mm^2", limits::format_number(total)),
                limit,
                "correct the counts and capacities",
            ));
        }
        faults
    }

    /// Adds a fault for every count above the limit.
    fn count_faults(&self, faults: &mut Vec<FileFault>) {
        let memories = self.core_memory.iter().chain(&self.chip_memory);
        let of_memories = memories
            .flat_map(|m| [(format!("area.{}.count", m.name), m.count), (format!("area.{}.ports", m.name), m.ports)]);
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
            ("gddr_channels", self.gddr_channels),
            ("ray_tracing_cores", self.ray_tracing_cores),
            ("media_blocks", self.media_blocks),
        ];
        let counts = counts.into_iter().map(|(key, count)| (format!("area.{key}"), count));
        for (key, count) in counts.chain(of_memories).filter(|(_, count)| *count > limits::LARGEST_COUNT) {
            faults.push(FileFault::new(key, count, format!("must be at most {}", limits::LARGEST_COUNT), "correct it"));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::super::super::phaze::{PhazeConfig, design_accelerator};
    use super::super::super::{AreaModel, Constants, chip_area};
    use super::super::sram_area;
    use super::*;
    use crate::units::Bytes;
    use proptest::prelude::*;

    /// Returns a floorplan with one figure increased; `which` is the figure's number.
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
            13 => larger.core_memory[0].bytes_per_cycle += 1024.0,
            _ => larger.core_memory.push(larger.core_memory[0].clone()),
        }
        larger
    }

    proptest! {
        #[test]
        fn a_memory_grows_with_capacity_ports_and_bandwidth(
            kib in 1.0..1e6_f64, factor in 1.001..4.0_f64, ports in 1..8u32, width in 0.0..1e5_f64,
            node in prop::sample::select(ProcessNode::ALL.to_vec()),
        ) {
            let bytes = |kib: f64| Bytes((kib * 1024.0) as u64);
            let area = |bytes, ports, width| sram_area(&Constants::nominal(), node, bytes, ports, width);
            let small = area(bytes(kib), ports, width);
            prop_assert!(area(bytes(kib * factor), ports, width) >= small);
            prop_assert!(area(bytes(kib), ports + 1, width) >= small);
            prop_assert!(area(bytes(kib), ports, width * factor) >= small);
        }

        #[test]
        fn a_die_grows_with_everything_on_it(
            name in prop::sample::select(vec!["a100_80gb_sxm", "mi210", "tpu_v4", "tpu_v2"]), which in 0..15usize,
        ) {
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
        // TPU v4i's array is 14 mm^2; PHAZE's cells multiply fp16 too, whose significand is three bits longer.
        assert!((14.0..15.5).contains(&breakdown.in_core[0].area.0), "{breakdown:?}");
        assert!(breakdown.total_area().0 > tables.0, "the tables leave HBM, links and control out: {breakdown:?}");
    }
}
