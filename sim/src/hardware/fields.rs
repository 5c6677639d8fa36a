//! The fields of a chip's and a fabric's file, for users who vary them: unit, range, meaning.

use crate::limits;

/// The description of a field.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ChipField {
    /// Its key; `*` stands for a name.
    pub key: &'static str,
    /// Its unit; empty if it has none.
    pub unit: &'static str,
    /// The accepted range, in the unit; `None` for words.
    pub range: Option<(f64, f64)>,
    /// Its meaning.
    pub meaning: &'static str,
}

const COUNT: Option<(f64, f64)> = Some((1.0, limits::LARGEST_COUNT as f64));
const COUNT_OR_NONE: Option<(f64, f64)> = Some((0.0, limits::LARGEST_COUNT as f64));
const FRACTION: Option<(f64, f64)> = Some((limits::LEAST_FRACTION, 1.0));

/// Returns a range of base units, converted to a key's unit.
const fn range_from_to(least: f64, most: f64, unit: f64) -> Option<(f64, f64)> {
    Some((least / unit, most / unit))
}

const GB_PER_S: Option<(f64, f64)> = range_from_to(*limits::RATE.start(), *limits::RATE.end(), 1e9);
const MEMORY: f64 = limits::LARGEST_MEMORY as f64;
const BYTES_PER_CYCLE: Option<(f64, f64)> = Some((*limits::BYTES_PER_CYCLE.start(), *limits::BYTES_PER_CYCLE.end()));
const PICOJOULES: Option<(f64, f64)> = Some((0.0, limits::MOST_ENERGY * 1e12));
const MICROSECONDS: Option<(f64, f64)> = Some((0.0, 1e6));

const READ_ENERGY: &str = "energy of a byte read; default: the node's";
const WRITE_ENERGY: &str = "energy of a byte written; default: the node's";
const CAPACITY: &str = "capacity of an instance; 0 removes a scratchpad that has a path around it";

const fn describe_field(
    key: &'static str,
    unit: &'static str,
    range: Option<(f64, f64)>,
    meaning: &'static str,
) -> ChipField {
    ChipField { key, unit, range, meaning }
}

/// The fields of a chip's file that a design may vary.
pub const CHIP: [ChipField; 81] = [
    describe_field(
        "clock_mhz",
        "MHz",
        range_from_to(*limits::CLOCK.start(), *limits::CLOCK.end(), 1e6),
        "clock of the cores, and of all figures per cycle",
    ),
    describe_field(
        "lowered_clock_mhz",
        "MHz",
        range_from_to(*limits::CLOCK.start(), *limits::CLOCK.end(), 1e6),
        "lowered clock under a power limit; voltage and energies follow (no dimension)",
    ),
    describe_field("sustained_clock_fraction", "", FRACTION, "fraction of the clock that is kept under load"),
    describe_field("tensor.cores", "", COUNT, "tensor cores (SMs of a GPU)"),
    describe_field("tensor.arrays_per_core", "", COUNT, "arrays of a tensor core"),
    describe_field("tensor.rows", "", COUNT, "rows of an array"),
    describe_field("tensor.columns", "", COUNT, "columns of an array"),
    describe_field("tensor.dataflow", "", None, "weight_stationary, output_stationary or input_stationary"),
    describe_field("tensor.preload", "", None, "true: the next stationary tile loads while the present one computes"),
    describe_field(
        "tensor.accumulation",
        "",
        None,
        "local_buffer: partial sums take time at its ports; dedicated_ports: they take none",
    ),
    describe_field(
        "tensor.accumulators.capacity_kib",
        "KiB",
        range_from_to(0.0, MEMORY, 1024.0),
        "a core's memory of partial sums; 0: none",
    ),
    describe_field("tensor.accumulators.read_bytes_per_cycle", "B/cycle", BYTES_PER_CYCLE, "peak rate out of it"),
    describe_field("tensor.accumulators.write_bytes_per_cycle", "B/cycle", BYTES_PER_CYCLE, "peak rate into it"),
    describe_field("tensor.accumulators.read_pj_per_byte", "pJ/B", PICOJOULES, READ_ENERGY),
    describe_field("tensor.accumulators.write_pj_per_byte", "pJ/B", PICOJOULES, WRITE_ENERGY),
    describe_field(
        "tensor.macs_per_unit_per_cycle.*",
        "",
        Some((1e-6, 1e6)),
        "multiply-accumulates per unit and cycle, by type (bf16, fp8, ...)",
    ),
    describe_field("vector.cores", "", COUNT, "vector cores"),
    describe_field("vector.lanes", "", COUNT, "results of an addition per vector core and cycle"),
    describe_field("vector.buffer_kib", "KiB", range_from_to(1.0, MEMORY, 1024.0), "a vector core's own buffer"),
    describe_field(
        "vector.transcendentals_per_cycle",
        "",
        Some((0.0, 1e6)),
        "exponentials, reciprocals, roots and tangents per vector core and cycle of units beside the lanes",
    ),
    describe_field("memory.*.scope", "", None, "core: one per tensor core; chip: shared"),
    describe_field("memory.*.kind", "", None, "scratchpad: software fills it; cache: it sees all traffic"),
    describe_field("memory.*.bypass", "", None, "true: data can move past a shared scratchpad; its default"),
    describe_field("memory.*.capacity_kib", "KiB", range_from_to(0.0, MEMORY, 1024.0), CAPACITY),
    describe_field("memory.*.capacity_mib", "MiB", range_from_to(0.0, MEMORY, 1_048_576.0), CAPACITY),
    describe_field(
        "memory.*.capacity_gib",
        "GiB",
        range_from_to(1.0, MEMORY, 1_073_741_824.0),
        "capacity of an instance",
    ),
    describe_field("memory.*.capacity_gb", "GB", range_from_to(1.0, MEMORY, 1e9), "capacity of an instance"),
    describe_field("memory.*.read_gb_per_s", "GB/s", GB_PER_S, "peak rate out of an instance"),
    describe_field(
        "memory.*.read_bytes_per_cycle",
        "B/cycle",
        BYTES_PER_CYCLE,
        "peak rate out of an instance, at the cores' clock",
    ),
    describe_field("memory.*.write_gb_per_s", "GB/s", GB_PER_S, "peak rate into an instance"),
    describe_field(
        "memory.*.write_bytes_per_cycle",
        "B/cycle",
        BYTES_PER_CYCLE,
        "peak rate into an instance, at the cores' clock",
    ),
    describe_field("memory.*.ports", "", COUNT, "1 where reads and writes share"),
    describe_field(
        "memory.*.latency_ns",
        "ns",
        Some((0.0, limits::LONGEST_LATENCY * 1e9)),
        "from a request to its first byte",
    ),
    describe_field("memory.*.read_pj_per_byte", "pJ/B", PICOJOULES, READ_ENERGY),
    describe_field("memory.*.write_pj_per_byte", "pJ/B", PICOJOULES, WRITE_ENERGY),
    describe_field("host.link", "", None, "pcie: link_gb_per_s is the lanes' raw rate, of which data reach a part"),
    describe_field("host.link_gb_per_s", "GB/s", GB_PER_S, "link to the host, each direction"),
    describe_field("host.capacity_gib", "GiB", range_from_to(1.0, MEMORY, 1_073_741_824.0), "host memory per device"),
    describe_field(
        "host.memory_gb_per_s",
        "GB/s",
        GB_PER_S,
        "a device's part of the host processors' memory bandwidth",
    ),
    describe_field("storage.read_gb_per_s", "GB/s", GB_PER_S, "reads from storage"),
    describe_field("storage.write_gb_per_s", "GB/s", GB_PER_S, "writes to storage"),
    describe_field(
        "storage.capacity_gb",
        "GB",
        range_from_to(1.0, limits::LARGEST_STORAGE as f64, 1e9),
        "storage per device",
    ),
    describe_field("schedule.pairing", "", None, "pairing of a fused kernel's cores: any_pair or same_index"),
    describe_field("schedule.exclusivity", "", None, "cores that a kernel on all cores blocks: all_cores or own_kind"),
    describe_field("schedule.collectives_overlap", "", None, "true: collectives overlap with kernels"),
    describe_field("area.model", "", None, "phaze_22nm, or unit_areas with the contents of the die"),
    describe_field("area.node", "", None, "process of the die: n45, n28, n22, n16, n8, n7, n6, n5, n4 or n3"),
    describe_field(
        "area.dies",
        "",
        COUNT,
        "compute dies that share the area; area.die_to_die_tb_per_s has the links between them",
    ),
    describe_field("area.cores", "", COUNT, "cores on the dies, disabled ones included"),
    describe_field("area.array_cell", "", None, "systolic or dot_product"),
    describe_field("area.fp64_units", "", COUNT_OR_NONE, "fp64 units of a core"),
    describe_field("area.fp32_units", "", COUNT_OR_NONE, "fp32 units of a core"),
    describe_field("area.integer_units", "", COUNT_OR_NONE, "integer units of a core"),
    describe_field("area.control_lanes", "", COUNT_OR_NONE, "lanes of a core with control logic"),
    describe_field("area.scalar_units", "", COUNT_OR_NONE, "scalar units of a core"),
    describe_field(
        "area.network_port_bytes_per_cycle",
        "B/cycle",
        Some((1e-3, 1e9)),
        "a core's port on the on-chip network",
    ),
    describe_field("area.hbm_stacks", "", COUNT_OR_NONE, "HBM stacks with a PHY on the die"),
    describe_field("area.hbm_generation", "", None, "generation of the stacks: hbm2, hbm2e, hbm3, hbm3e or hbm4"),
    describe_field("area.gddr_channels", "", COUNT_OR_NONE, "GDDR channels of 32 bits"),
    describe_field("area.ray_tracing_cores", "", COUNT_OR_NONE, "cores with a ray tracing unit"),
    describe_field("area.media_blocks", "", COUNT_OR_NONE, "sets of display outputs and video engines"),
    describe_field(
        "area.die_to_die_tb_per_s",
        "TB/s",
        Some((0.0, 1e4)),
        "both directions between neighbouring dies, summed over the pairs",
    ),
    describe_field("area.base.node", "", None, "process of the dies below the compute dies, which hold the PHYs"),
    describe_field("area.base.count", "", COUNT, "dies below the compute dies"),
    describe_field(
        "area.base.mm2_each",
        "mm²",
        Some((*limits::AREA.start(), *limits::AREA.end())),
        "area of a die below the compute dies",
    ),
    describe_field(
        "area.link",
        "",
        None,
        "kind of chip-to-chip link: nvlink3, nvlink4, nvlink5, infinity_fabric, ici, ici_100 or ethernet_100g",
    ),
    describe_field("area.links", "", COUNT_OR_NONE, "chip-to-chip links with a PHY on the die"),
    describe_field("area.pcie_generation", "", Some((1.0, 8.0)), "PCIe generation of the host's link"),
    describe_field("area.pcie_lanes", "", COUNT_OR_NONE, "PCIe lanes of the host's link"),
    describe_field("area.other_blocks_fraction", "", Some((0.0, 0.5)), "fraction of the die for blocks without a unit"),
    describe_field(
        "area.*.*.capacity_kib",
        "KiB",
        range_from_to(0.0, MEMORY, 1024.0),
        "capacity of an instance of a memory on the die; 0: none",
    ),
    describe_field("area.*.*.count", "", COUNT, "instances, per core or per die"),
    describe_field("area.*.*.ports", "", COUNT, "ports of its bits"),
    describe_field("area.*.*.kind", "", None, "cache or scratchpad"),
    describe_field(
        "area.*.*.bytes_per_cycle",
        "B",
        Some((0.0, 1e9)),
        "bytes that each port of an instance moves per cycle; 0: a single bank is wide enough",
    ),
    describe_field("energy.node", "", None, "process of the energies"),
    describe_field(
        "energy.control",
        "",
        None,
        "wide (few instructions), or simt (schedulers issue every cycle, as in GPUs)",
    ),
    describe_field(
        "energy.static_w",
        "W",
        Some((0.0, *limits::POWER.end())),
        "idle power; default: leakage of the dies, HBM without traffic, links",
    ),
    describe_field("energy.stated.node", "", None, "process to which the file's energies of on-chip memories refer"),
    describe_field(
        "energy.stated.clock_mhz",
        "MHz",
        range_from_to(*limits::CLOCK.start(), *limits::CLOCK.end(), 1e6),
        "clock to which the file's energies of on-chip memories refer",
    ),
    describe_field("energy.pj_*", "pJ", PICOJOULES, "energy of an operation; default: the node's"),
];

/// The fields of a fabric's file that a design may vary, as a study writes them.
pub const FABRIC: [ChipField; 27] = [
    describe_field("fabric.launch_us", "µs", MICROSECONDS, "time to start a collective"),
    describe_field("fabric.tier.*.topology", "", None, "switch, fat_tree, fully_connected, ring or torus"),
    describe_field(
        "fabric.tier.*.devices",
        "",
        Some((1.0, u32::MAX as f64)),
        "devices in a unit of the tier; innermost: the fast domain",
    ),
    describe_field("fabric.tier.*.wrap_multiple", "", COUNT, "sides of a torus that are multiples of it wrap around"),
    describe_field("fabric.tier.*.twisted", "", None, "true: slices are twisted tori where possible"),
    describe_field(
        "fabric.tier.*.oversubscription",
        "",
        Some((1.0, limits::MOST_OVERSUBSCRIPTION)),
        "downlinks over uplinks of a fat tree",
    ),
    describe_field(
        "fabric.tier.*.bandwidth_gb_per_s",
        "GB/s",
        GB_PER_S,
        "bandwidth of a device's port, all links, each direction",
    ),
    describe_field(
        "fabric.tier.*.achieved_fraction",
        "",
        FRACTION,
        "fraction of the bandwidth that large messages achieve",
    ),
    describe_field("fabric.tier.*.step_latency_us", "µs", MICROSECONDS, "latency of a step of the bulk protocol"),
    describe_field("fabric.tier.*.chunk_overhead_us", "µs", MICROSECONDS, "time that every pipelined chunk adds"),
    describe_field("fabric.tier.*.ring_step_us", "µs", MICROSECONDS, "least time of a step of a ring across the tier"),
    describe_field("fabric.tier.*.final_copy_gb_per_s", "GB/s", GB_PER_S, "rate of the copy that ends a collective"),
    describe_field(
        "fabric.tier.*.low_latency_step_us",
        "µs",
        MICROSECONDS,
        "latency of a step of the low-latency protocol",
    ),
    describe_field("fabric.tier.*.low_latency_fraction", "", FRACTION, "fraction of the bandwidth that it achieves"),
    describe_field("fabric.tier.*.line_step_us", "µs", MICROSECONDS, "latency of a step of the 128-byte-line protocol"),
    describe_field("fabric.tier.*.line_fraction", "", FRACTION, "fraction of the bandwidth that it achieves"),
    describe_field("fabric.tier.*.line_chunk_us", "µs", MICROSECONDS, "time that every chunk of it adds"),
    describe_field(
        "fabric.tier.*.exchange_step_us",
        "µs",
        MICROSECONDS,
        "time of a bulk all-to-all in addition to its bytes",
    ),
    describe_field("fabric.tier.*.exchange_fraction", "", FRACTION, "fraction of the bandwidth that it achieves"),
    describe_field("fabric.tier.*.exchange_chunk_us", "µs", MICROSECONDS, "time that every chunk of it adds"),
    describe_field(
        "fabric.tier.*.exchange_peer_gb_per_s",
        "GB/s",
        GB_PER_S,
        "rate to each peer of a low-latency all-to-all",
    ),
    describe_field("fabric.tier.*.in_network_latency_us", "µs", MICROSECONDS, "latency of a reduction in the switch"),
    describe_field("fabric.tier.*.in_network_fraction", "", FRACTION, "fraction of the bandwidth that it achieves"),
    describe_field("fabric.tier.*.in_network_chunk_us", "µs", MICROSECONDS, "time that every chunk of it adds"),
    describe_field(
        "fabric.tier.*.dims",
        "",
        None,
        "largest sides of a torus, \"4x4x8\" or [4, 4, 8]; clusters are slices of it",
    ),
    describe_field("fabric.tier.*.links_gb_per_s", "GB/s", None, "measured links (a table: no dimension)"),
    describe_field("fabric.tier.*.name", "", None, "the tier's name (no dimension)"),
];

/// The effect of increasing a chip's field while all others stay the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FieldEffect {
    /// No kernel gets slower at its peak rate, and area, power and cost do not fall.
    Faster,
    /// No kernel gets faster or takes less energy; area and cost do not change.
    Slower,
    /// The effect is unknown.
    Unknown,
}

/// The dependence of kernels' bounds on a chip's field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BoundGrowth {
    /// The effect of an increase on kernels at their peaks, and on the chip's area, power and cost.
    pub more: FieldEffect,
    /// True if `more` also holds for [`buffered_bound`](crate::cost::CostModel::buffered_bound), which adds unfilled
    /// arrays and buffer traffic.
    pub buffered: bool,
    /// True if `more` also holds for mapped kernels: the mapper's candidates do not depend on the field.
    pub mapped: bool,
    /// True if its values are whole numbers.
    pub whole: bool,
}

/// Tables whose numbers never make a chip slower or smaller when they grow.
const GROWING_TABLES: [&str; 5] = ["memory.", "tensor.accumulators.", "host.", "storage.", "area."];

/// Returns the dependence of bounds on a field of a chip's file. Fields without a range are unknown.
///
/// The mapper is monotone in rates and capacities. It is not monotone in the number and shape of the arrays, which cut
/// products into tiles. Larger arrays need longer chunks of operands, so buffers hold less of them.
#[must_use]
pub fn growth_of_bounds(key: &str) -> BoundGrowth {
    const UNKNOWN: BoundGrowth =
        BoundGrowth { more: FieldEffect::Unknown, buffered: false, mapped: false, whole: false };
    let Some(field) = find_field(key).filter(|field| field.range.is_some()) else { return UNKNOWN };
    let known = |more, buffered, mapped| {
        let whole = field.range == COUNT || field.range == COUNT_OR_NONE;
        BoundGrowth { more, buffered, mapped, whole }
    };
    match field.key {
        "tensor.rows" => known(FieldEffect::Faster, false, false),
        "tensor.cores"
        | "tensor.arrays_per_core"
        | "tensor.columns"
        | "vector.cores"
        | "vector.lanes"
        | "vector.buffer_kib"
        | "memory.*.ports" => known(FieldEffect::Faster, true, false),
        "memory.*.latency_ns" => known(FieldEffect::Slower, true, false),
        // An increase of these fields has no fixed effect. For instance, more dies have a better yield, and a PCIe
        // generation is not a quantity.
        "lowered_clock_mhz"
        | "sustained_clock_fraction"
        | "area.dies"
        | "area.pcie_generation"
        | "energy.stated.clock_mhz" => UNKNOWN,
        "clock_mhz" | "vector.transcendentals_per_cycle" => known(FieldEffect::Faster, true, true),
        key if ["memory.*.", "tensor.accumulators."].iter().any(|table| key.starts_with(table))
            && key.ends_with("pj_per_byte") =>
        {
            known(FieldEffect::Slower, true, true)
        }
        key if key.starts_with("energy.") => known(FieldEffect::Slower, true, true),
        key if GROWING_TABLES.iter().any(|table| key.starts_with(table)) => known(FieldEffect::Faster, true, true),
        _ => UNKNOWN,
    }
}

/// Returns the description of a chip's key, or of a fabric's key with the prefix `fabric.`; `None` if there is none.
#[must_use]
pub fn find_field(key: &str) -> Option<&'static ChipField> {
    let matches = |field: &&ChipField| {
        let (mut parts, mut pattern) = (key.split('.'), field.key.split('.'));
        loop {
            match (parts.next(), pattern.next()) {
                (None, None) => return true,
                (Some(_), Some("*")) => {}
                (Some(part), Some(like)) if part == like => {}
                // The last part of a pattern may be a prefix of several keys.
                (Some(part), Some(like)) if like.strip_suffix('*').is_some_and(|begin| part.starts_with(begin)) => {
                    return true;
                }
                _ => return false,
            }
        }
    };
    const { &CHIP }.iter().chain(const { &FABRIC }).find(matches)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::super::{ChipDocument, template_names};
    use super::*;
    use crate::network::{Fabric, FabricDocument};

    #[test]
    fn every_field_of_every_built_in_file_is_explained_and_within_its_range() {
        let mut seen = std::collections::BTreeSet::new();
        let mut check = |key: &str, value: Option<f64>| {
            let field = find_field(key).unwrap_or_else(|| panic!("{key} is not explained"));
            seen.insert(field.key);
            assert_eq!(field.range.is_some(), value.is_some(), "{key}");
            if let (Some((least, most)), Some(value)) = (field.range, value) {
                assert!((least..=most).contains(&value), "{key} = {value}: {least} to {most}");
            }
        };
        for name in template_names() {
            for (key, value) in ChipDocument::of_built_in_chip(name).unwrap().strip_measured(false).list_fields() {
                if !super::super::document::is_measured(&key) {
                    check(&key, value.number());
                }
            }
        }
        for name in Fabric::names() {
            let Ok(document) = FabricDocument::load_for(name, "tpu_v4") else { continue };
            for (key, value) in document.list_fields() {
                check(&format!("fabric.{key}"), value.number());
            }
        }
        assert!(seen.len() > 50, "{seen:?}");
    }
}
