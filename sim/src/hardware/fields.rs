//! What the fields of a chip's and a fabric's file are, for people who vary them: unit, range, meaning.

use crate::limits;

/// What is known of a field.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Field {
    /// Its key; `*` stands for a name.
    pub key: &'static str,
    /// Its unit; empty where it has none.
    pub unit: &'static str,
    /// The least and the most that its reader takes, in the unit; `None` of words.
    pub range: Option<(f64, f64)>,
    /// What it is.
    pub meaning: &'static str,
}

const COUNT: Option<(f64, f64)> = Some((1.0, limits::LARGEST_COUNT as f64));
const COUNT_OR_NONE: Option<(f64, f64)> = Some((0.0, limits::LARGEST_COUNT as f64));
const FRACTION: Option<(f64, f64)> = Some((limits::LEAST_FRACTION, 1.0));

/// A range of base units in a key's unit.
const fn from_to(least: f64, most: f64, unit: f64) -> Option<(f64, f64)> {
    Some((least / unit, most / unit))
}

const GB_PER_S: Option<(f64, f64)> = from_to(*limits::RATE.start(), *limits::RATE.end(), 1e9);
const MEMORY: f64 = limits::LARGEST_MEMORY as f64;
const PICOJOULES: Option<(f64, f64)> = Some((0.0, limits::MOST_ENERGY * 1e12));
const MICROSECONDS: Option<(f64, f64)> = Some((0.0, 1e6));

const fn field(key: &'static str, unit: &'static str, range: Option<(f64, f64)>, meaning: &'static str) -> Field {
    Field { key, unit, range, meaning }
}

/// The fields of a chip's file that a design may vary.
pub const CHIP: [Field; 60] = [
    field(
        "clock_mhz",
        "MHz",
        from_to(*limits::CLOCK.start(), *limits::CLOCK.end(), 1e6),
        "clock of the cores and of what is per cycle",
    ),
    field(
        "lowered_clock_mhz",
        "MHz",
        from_to(*limits::CLOCK.start(), *limits::CLOCK.end(), 1e6),
        "clock that power holds the chip down to, voltage and energies with it (no dimension)",
    ),
    field("sustained_clock_fraction", "", FRACTION, "what is left of the clock under load"),
    field("tensor.cores", "", COUNT, "tensor cores (SMs of a GPU)"),
    field("tensor.arrays_per_core", "", COUNT, "arrays of a tensor core"),
    field("tensor.rows", "", COUNT, "rows of an array"),
    field("tensor.columns", "", COUNT, "columns of an array"),
    field("tensor.dataflow", "", None, "weight_stationary, output_stationary or input_stationary"),
    field("tensor.preload", "", None, "true: the next stationary tile loads while the present one computes"),
    field("tensor.macs_per_unit_per_cycle.*", "", Some((1e-6, 1e6)), "products of a unit per cycle, by type (bf16, fp8, ...)"),
    field("vector.cores", "", COUNT, "vector cores"),
    field("vector.lanes", "", COUNT, "results of an addition per vector core and cycle"),
    field("vector.buffer_kib", "KiB", from_to(1.0, MEMORY, 1024.0), "a vector core's own buffer"),
    field("memory.*.scope", "", None, "core: one per tensor core; chip: shared"),
    field("memory.*.capacity_kib", "KiB", from_to(1.0, MEMORY, 1024.0), "capacity of an instance"),
    field("memory.*.capacity_mib", "MiB", from_to(1.0, MEMORY, 1_048_576.0), "capacity of an instance"),
    field("memory.*.capacity_gib", "GiB", from_to(1.0, MEMORY, 1_073_741_824.0), "capacity of an instance"),
    field("memory.*.capacity_gb", "GB", from_to(1.0, MEMORY, 1e9), "capacity of an instance"),
    field("memory.*.read_gb_per_s", "GB/s", GB_PER_S, "peak rate out of an instance"),
    field("memory.*.read_bytes_per_cycle", "B/cycle", Some((1e-5, 1e15)), "peak rate out of an instance, at the cores' clock"),
    field("memory.*.write_gb_per_s", "GB/s", GB_PER_S, "peak rate into an instance"),
    field("memory.*.write_bytes_per_cycle", "B/cycle", Some((1e-5, 1e15)), "peak rate into an instance, at the cores' clock"),
    field("memory.*.ports", "", COUNT, "1 where reads and writes share"),
    field("memory.*.latency_ns", "ns", Some((0.0, limits::LONGEST_LATENCY * 1e9)), "from a request to its first byte"),
    field("memory.*.read_pj_per_byte", "pJ/B", PICOJOULES, "energy of a byte read; the node's where it is left out"),
    field("memory.*.write_pj_per_byte", "pJ/B", PICOJOULES, "energy of a byte written; the node's where it is left out"),
    field("host.link_gb_per_s", "GB/s", GB_PER_S, "link to the host, each way"),
    field("host.capacity_gib", "GiB", from_to(1.0, MEMORY, 1_073_741_824.0), "the host's memory for a device"),
    field("host.memory_gb_per_s", "GB/s", GB_PER_S, "the host's processors to their memory, a device's part of it"),
    field("storage.read_gb_per_s", "GB/s", GB_PER_S, "reads from storage"),
    field("storage.write_gb_per_s", "GB/s", GB_PER_S, "writes to storage"),
    field("storage.capacity_gb", "GB", from_to(1.0, limits::LARGEST_STORAGE as f64, 1e9), "storage for a device"),
    field("schedule.pairing", "", None, "cores of a fused kernel: any_pair or same_index"),
    field("schedule.exclusivity", "", None, "what a kernel on all cores blocks: all_cores or own_kind"),
    field("schedule.collectives_overlap", "", None, "true: collectives run beside kernels"),
    field("area.model", "", None, "phaze_22nm, or unit_areas with what is on the die"),
    field("area.node", "", None, "process of the die: n45, n28, n22, n16, n7, n6, n5, n4 or n3"),
    field(
        "area.dies",
        "",
        COUNT,
        "compute dies that share the area; several yield better and cost nothing more here: no die-to-die PHY, no assembly",
    ),
    field("area.cores", "", COUNT, "cores on the dies, disabled ones included"),
    field("area.array_cell", "", None, "systolic or dot_product"),
    field("area.fp64_units", "", COUNT_OR_NONE, "fp64 units of a core"),
    field("area.fp32_units", "", COUNT_OR_NONE, "fp32 units of a core"),
    field("area.integer_units", "", COUNT_OR_NONE, "integer units of a core"),
    field("area.control_lanes", "", COUNT_OR_NONE, "lanes of a core that control logic is built for"),
    field("area.scalar_units", "", COUNT_OR_NONE, "scalar units of a core"),
    field("area.network_port_bytes_per_cycle", "B/cycle", Some((1e-3, 1e9)), "a core's port on the on-chip network"),
    field("area.hbm_stacks", "", COUNT_OR_NONE, "HBM stacks with a PHY on the die"),
    field("area.link", "", None, "kind of chip-to-chip link: nvlink3, nvlink4, infinity_fabric or ici"),
    field("area.links", "", COUNT_OR_NONE, "chip-to-chip links with a PHY on the die"),
    field("area.pcie_generation", "", Some((1.0, 8.0)), "of the host's link"),
    field("area.pcie_lanes", "", COUNT_OR_NONE, "of the host's link"),
    field("area.other_blocks_fraction", "", Some((0.0, 0.5)), "blocks that have no unit, of the die"),
    field("area.*.*.capacity_kib", "KiB", from_to(1.0, MEMORY, 1024.0), "a memory on the die, an instance"),
    field("area.*.*.count", "", COUNT, "instances, per core or per die"),
    field("area.*.*.ports", "", COUNT, "ports of its bits"),
    field("area.*.*.kind", "", None, "cache or scratchpad"),
    field("energy.node", "", None, "process of the energies"),
    field("energy.control", "", None, "wide, or simt where schedulers issue instructions every cycle, as GPUs' do"),
    field("energy.static_w", "W", Some((0.0, *limits::POWER.end())), "leakage, clocks and PHYs"),
    field("energy.pj_*", "pJ", PICOJOULES, "of an operation; the node's where it is left out"),
];

/// The fields of a fabric's file that a design may vary, as a study writes them.
pub const FABRIC: [Field; 27] = [
    field("fabric.launch_us", "µs", MICROSECONDS, "starting a collective"),
    field("fabric.tier.*.topology", "", None, "switch, fat_tree, fully_connected, ring or torus"),
    field(
        "fabric.tier.*.devices",
        "",
        Some((1.0, u32::MAX as f64)),
        "devices in a unit of the tier: of the innermost, the fast domain",
    ),
    field("fabric.tier.*.wrap_multiple", "", COUNT, "a torus closes sides that are multiples of it"),
    field("fabric.tier.*.twisted", "", None, "true: twisted tori where slices allow them"),
    field(
        "fabric.tier.*.oversubscription",
        "",
        Some((1.0, limits::MOST_OVERSUBSCRIPTION)),
        "downlinks over uplinks of a fat tree",
    ),
    field("fabric.tier.*.bandwidth_gb_per_s", "GB/s", GB_PER_S, "of a device, all links of its port, each way"),
    field("fabric.tier.*.achieved_fraction", "", FRACTION, "of the bandwidth, by large messages"),
    field("fabric.tier.*.step_latency_us", "µs", MICROSECONDS, "a step of the bulk protocol"),
    field("fabric.tier.*.chunk_overhead_us", "µs", MICROSECONDS, "added by every pipelined chunk"),
    field("fabric.tier.*.ring_step_us", "µs", MICROSECONDS, "a step of a ring that crosses the tier, at least"),
    field("fabric.tier.*.final_copy_gb_per_s", "GB/s", GB_PER_S, "the copy that ends a collective"),
    field("fabric.tier.*.low_latency_step_us", "µs", MICROSECONDS, "a step of the low-latency protocol"),
    field("fabric.tier.*.low_latency_fraction", "", FRACTION, "of the bandwidth, under it"),
    field("fabric.tier.*.line_step_us", "µs", MICROSECONDS, "a step of the protocol of 128-byte lines"),
    field("fabric.tier.*.line_fraction", "", FRACTION, "of the bandwidth, under it"),
    field("fabric.tier.*.line_chunk_us", "µs", MICROSECONDS, "added by every chunk of it"),
    field("fabric.tier.*.exchange_step_us", "µs", MICROSECONDS, "an all-to-all in bulk, besides its bytes"),
    field("fabric.tier.*.exchange_fraction", "", FRACTION, "of the bandwidth, by it"),
    field("fabric.tier.*.exchange_chunk_us", "µs", MICROSECONDS, "added by every chunk of it"),
    field("fabric.tier.*.exchange_peer_gb_per_s", "GB/s", GB_PER_S, "to each peer of it, under low latency"),
    field("fabric.tier.*.in_network_latency_us", "µs", MICROSECONDS, "a reduction in the switch"),
    field("fabric.tier.*.in_network_fraction", "", FRACTION, "of the bandwidth, by it"),
    field("fabric.tier.*.in_network_chunk_us", "µs", MICROSECONDS, "added by every chunk of it"),
    field("fabric.tier.*.dims", "", None, "sides of a torus, \"4x4x8\" or [4, 4, 8]; slices of them have the devices"),
    field("fabric.tier.*.links_gb_per_s", "GB/s", None, "measured links (a table: no dimension)"),
    field("fabric.tier.*.name", "", None, "the tier's name (no dimension)"),
];

/// What more of a chip's field does, all others being the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum More {
    /// No kernel's peak is lower, and the chip takes no less area, power or money.
    Faster,
    /// No kernel is faster, or its energy no less; area and money do not change.
    Slower,
    /// Not known.
    Unknown,
}

/// How bounds of kernels follow a chip's field.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Growth {
    /// What more of it does to kernels at their peaks, and to what the chip takes.
    pub more: More,
    /// Whether the same holds of kernels with what arrays cannot fill and buffers cannot keep
    /// ([`buffered_bound`](crate::cost::CostModel::buffered_bound)).
    pub buffered: bool,
    /// Whether the same holds of kernels mapped: the mapper's candidates do not depend on the field.
    pub mapped: bool,
    /// Whether its values are whole numbers.
    pub whole: bool,
}

/// How bounds follow a field of a chip's file.
///
/// The mapper is monotone in rates and capacities, not in the arrays' number and shape, which cut products into tiles. Larger arrays need longer
/// chunks of operands, so that buffers hold less of them.
#[must_use]
pub fn growth(key: &str) -> Growth {
    const UNKNOWN: Growth = Growth { more: More::Unknown, buffered: false, mapped: false, whole: false };
    let Some(field) = find(key).filter(|field| field.range.is_some()) else { return UNKNOWN };
    let known = |more, buffered, mapped| {
        let whole = field.range == COUNT || field.range == COUNT_OR_NONE;
        Growth { more, buffered, mapped, whole }
    };
    match field.key {
        "tensor.rows" => known(More::Faster, false, false),
        "tensor.cores"
        | "tensor.arrays_per_core"
        | "tensor.columns"
        | "vector.cores"
        | "vector.lanes"
        | "vector.buffer_kib"
        | "memory.*.ports" => known(More::Faster, true, false),
        "memory.*.latency_ns" => known(More::Slower, true, false),
        // More dies yield better; a generation of PCIe is no number of anything.
        "lowered_clock_mhz" | "sustained_clock_fraction" | "area.dies" | "area.pcie_generation" => UNKNOWN,
        "clock_mhz" => known(More::Faster, true, true),
        key if key.starts_with("memory.*.") && key.ends_with("pj_per_byte") => known(More::Slower, true, true),
        key if key.starts_with("energy.") => known(More::Slower, true, true),
        key if ["memory.", "host.", "storage.", "area."].iter().any(|table| key.starts_with(table)) => {
            known(More::Faster, true, true)
        }
        _ => UNKNOWN,
    }
}

/// What is known of a key, of a chip or (with `fabric.` before it) of a fabric.
#[must_use]
pub fn find(key: &str) -> Option<&'static Field> {
    let matches = |field: &&Field| {
        let (mut parts, mut pattern) = (key.split('.'), field.key.split('.'));
        loop {
            match (parts.next(), pattern.next()) {
                (None, None) => return true,
                (Some(_), Some("*")) => {}
                (Some(part), Some(like)) if part == like => {}
                // The last part of a pattern may be the begin of several keys.
                (Some(part), Some(like)) if like.strip_suffix('*').is_some_and(|begin| part.starts_with(begin)) => return true,
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
            let field = find(key).unwrap_or_else(|| panic!("{key} is not explained"));
            seen.insert(field.key);
            assert_eq!(field.range.is_some(), value.is_some(), "{key}");
            if let (Some((least, most)), Some(value)) = (field.range, value) {
                assert!((least..=most).contains(&value), "{key} = {value}: {least} to {most}");
            }
        };
        for name in template_names() {
            for (key, value) in ChipDocument::template(name).unwrap().unbuilt(false).fields() {
                if !super::super::document::is_measured(&key) {
                    check(&key, value.number());
                }
            }
        }
        for name in Fabric::names() {
            let Ok(document) = FabricDocument::load_for(name, "tpu_v4") else { continue };
            for (key, value) in document.fields() {
                check(&format!("fabric.{key}"), value.number());
            }
        }
        assert!(seen.len() > 50, "{seen:?}");
    }
}
