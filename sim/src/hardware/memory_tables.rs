//! The memories of a chip's file as written, accumulators included. Keys carry the unit.

use super::energy::{EnergyPoint, default_energy_per_byte};
use super::memory::is_dram;
use super::{Accumulation, AccumulatorMemory, HbmGeneration, MemoryKind, MemoryLevel, MemoryScope};
use crate::files::FileFault;
use crate::limits;
use crate::units::{Bytes, BytesPerSecond, Joules, Seconds};
use serde::Deserialize;
use std::ops::RangeInclusive;

/// The basis of the energies of a file's memories: the constants, process and clock, and the HBM generation.
pub(super) struct MemoryEnergyBasis<'a> {
    pub(super) point: EnergyPoint<'a>,
    /// Factor on stated energies of on-chip memories.
    pub(super) stated_factor: f64,
    pub(super) generation: HbmGeneration,
}

impl MemoryEnergyBasis<'_> {
    /// Returns the joules of a byte read and of a byte written: as stated in pJ, else the constants' value for a memory
    /// of this name and size.
    fn energies_per_byte(&self, name: &str, capacity: Bytes, stated: [Option<f64>; 2]) -> [Joules; 2] {
        let (read, write) = default_energy_per_byte(self.point, name, capacity, self.generation);
        let factor = if is_dram(capacity) { 1.0 } else { self.stated_factor };
        let energy = |stated: Option<f64>, default| stated.map_or(default, |pj| self.point.drawn_energy(pj * factor));
        [energy(stated[0], read), energy(stated[1], write)]
    }
}

/// The place of partial sums in a chip without `[tensor.accumulators]`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum AccumulationKey {
    LocalBuffer,
    DedicatedPorts,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AccumulatorTable {
    capacity_kib: f64,
    read_bytes_per_cycle: f64,
    write_bytes_per_cycle: f64,
    read_pj_per_byte: Option<f64>,
    write_pj_per_byte: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct MemoryTable {
    name: String,
    scope: MemoryScope,
    kind: Option<KindKey>,
    bypass: Option<bool>,
    capacity_kib: Option<f64>,
    capacity_mib: Option<f64>,
    capacity_gib: Option<f64>,
    capacity_gb: Option<f64>,
    read_gb_per_s: Option<f64>,
    read_bytes_per_cycle: Option<f64>,
    write_gb_per_s: Option<f64>,
    write_bytes_per_cycle: Option<f64>,
    ports: u32,
    #[serde(default)]
    latency_ns: f64,
    read_pj_per_byte: Option<f64>,
    write_pj_per_byte: Option<f64>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum KindKey {
    Cache,
    Scratchpad,
}

impl MemoryTable {
    /// The key of a capacity of zero, by which a file removes a level.
    fn zero_capacity(&self) -> Option<&'static str> {
        let capacities = [
            ("capacity_kib", self.capacity_kib),
            ("capacity_mib", self.capacity_mib),
            ("capacity_gib", self.capacity_gib),
            ("capacity_gb", self.capacity_gb),
        ];
        capacities.into_iter().find_map(|(key, capacity)| (capacity == Some(0.0)).then_some(key))
    }

    /// Returns the fault of a zero capacity if data cannot go around the level. Kernels may be slower with a small
    /// level of this kind than without it. A search over capacities that include zero then has no bound.
    fn zero_capacity_fault(&self, key: &str, kind: MemoryKind, device_memory: bool) -> FileFault {
        let (limit, cure) = match (kind, self.scope) {
            _ if device_memory => ("the outermost memory holds the model and cannot be left out", "give its capacity"),
            (_, MemoryScope::Core) => (
                "only a level that data can go around can be left out, and nothing goes around a core's own memory",
                "give its capacity, or remove its [[memory]] table",
            ),
            (MemoryKind::Cache, _) => (
                "only a level that data can go around can be left out, and nothing goes around a cache",
                "give its capacity, write kind = \"scratchpad\", or remove its [[memory]] table",
            ),
            (MemoryKind::Scratchpad { .. }, _) => (
                "only a level that data can go around can be left out, and bypass = false denies the way around it",
                "give its capacity, write bypass = true, or remove its [[memory]] table",
            ),
        };
        FileFault::new(format!("memory.{}.{key}", self.name), 0, limit, cure)
    }

    /// Returns the kind of a memory. A shared memory without a stated kind sees all traffic, as a cache does. A path
    /// around a scratchpad exists unless the file denies it.
    fn memory_kind(&self, device_memory: bool, faults: &mut Vec<FileFault>) -> MemoryKind {
        let shared = self.scope == MemoryScope::Chip && !device_memory;
        let kind = match (self.kind, shared) {
            (Some(KindKey::Cache), _) | (None, true) => MemoryKind::Cache,
            (Some(KindKey::Scratchpad), true) => MemoryKind::Scratchpad { bypass: self.bypass.unwrap_or(true) },
            (Some(KindKey::Scratchpad) | None, false) => MemoryKind::Scratchpad { bypass: false },
        };
        if self.bypass == Some(true) && !kind.has_bypass() {
            let limit = "only a scratchpad that cores share and that is on the die has a path around it";
            let cure = "remove it, or write kind = \"scratchpad\"";
            faults.push(FileFault::new(format!("memory.{}.bypass", self.name), true, limit, cure));
        }
        kind
    }
}

/// Returns the levels of a chip's file, innermost first, without those that it removes. The Boolean is false if at
/// least one level cannot be read; the faults give the reason.
pub(super) fn build_levels(
    tables: &[MemoryTable],
    basis: &MemoryEnergyBasis<'_>,
    faults: &mut Vec<FileFault>,
) -> (Vec<MemoryLevel>, bool) {
    let (mut levels, mut complete) = (Vec::with_capacity(tables.len()), true);
    for (index, memory) in tables.iter().enumerate() {
        let device_memory = index + 1 == tables.len();
        let kind = memory.memory_kind(device_memory, faults);
        match memory.zero_capacity() {
            // The other figures of a level that is left out do not matter.
            Some(_) if kind.has_bypass() => {}
            Some(key) => {
                faults.push(memory.zero_capacity_fault(key, kind, device_memory));
                complete = false;
            }
            None => {
                let level = build_level(memory, kind, basis, faults);
                complete &= level.is_some();
                levels.extend(level);
            }
        }
    }
    (levels, complete)
}

/// Returns the place of partial sums. Accumulators of capacity zero count as absent.
pub(super) fn build_accumulation(
    place: Option<AccumulationKey>,
    accumulators: Option<&AccumulatorTable>,
    basis: &MemoryEnergyBasis<'_>,
    faults: &mut Vec<FileFault>,
) -> Accumulation {
    match (place, accumulators.filter(|table| table.capacity_kib != 0.0)) {
        (Some(AccumulationKey::DedicatedPorts), None) => Accumulation::DedicatedPorts,
        (Some(AccumulationKey::LocalBuffer) | None, None) => Accumulation::LocalBuffer,
        (key, Some(table)) => {
            if key == Some(AccumulationKey::DedicatedPorts) {
                let cure = "keep one of tensor.accumulation and [tensor.accumulators]";
                faults.push(FileFault::new(
                    "tensor.accumulation",
                    "dedicated_ports",
                    "the sums have a memory of their own",
                    cure,
                ));
            }
            let capacity = to_bytes(table.capacity_kib, 1024.0);
            let [read, write] =
                basis.energies_per_byte("accumulators", capacity, [table.read_pj_per_byte, table.write_pj_per_byte]);
            Accumulation::Memory(AccumulatorMemory {
                capacity,
                read_bytes_per_cycle: table.read_bytes_per_cycle,
                write_bytes_per_cycle: table.write_bytes_per_cycle,
                read_energy_per_byte: read,
                write_energy_per_byte: write,
            })
        }
    }
}

fn build_level(
    raw: &MemoryTable,
    kind: MemoryKind,
    basis: &MemoryEnergyBasis<'_>,
    faults: &mut Vec<FileFault>,
) -> Option<MemoryLevel> {
    let clock = basis.point.clock;
    let key = |suffix: &str| format!("memory.{}.{suffix}", raw.name);
    let capacities = [
        ("capacity_kib", raw.capacity_kib, 1024.0),
        ("capacity_mib", raw.capacity_mib, 1_048_576.0),
        ("capacity_gib", raw.capacity_gib, 1_073_741_824.0),
        ("capacity_gb", raw.capacity_gb, 1e9),
    ];
    let reads =
        [("read_gb_per_s", raw.read_gb_per_s, 1e9), ("read_bytes_per_cycle", raw.read_bytes_per_cycle, clock.0)];
    let writes =
        [("write_gb_per_s", raw.write_gb_per_s, 1e9), ("write_bytes_per_cycle", raw.write_bytes_per_cycle, clock.0)];
    let capacity = read_one_of(&key("capacity"), &capacities, Some(1.0..=limits::LARGEST_MEMORY as f64), faults);
    // With an impossible clock a rate per cycle is not checked; the clock's own fault is reported.
    let rates = limits::CLOCK.contains(&clock.0).then_some(limits::RATE);
    let read = read_one_of(&key("read"), &reads, rates.clone(), faults);
    let write = read_one_of(&key("write"), &writes, rates, faults);
    let (capacity, read, write) = (capacity?, read?, write?);
    let capacity = to_bytes(capacity, 1.0);
    let [read_energy, write_energy] =
        basis.energies_per_byte(&raw.name, capacity, [raw.read_pj_per_byte, raw.write_pj_per_byte]);
    Some(MemoryLevel {
        name: raw.name.clone(),
        scope: raw.scope,
        kind,
        capacity,
        read_bandwidth: BytesPerSecond(read),
        write_bandwidth: BytesPerSecond(write),
        ports: raw.ports,
        latency: Seconds(raw.latency_ns * 1e-9),
        read_energy_per_byte: read_energy,
        write_energy_per_byte: write_energy,
    })
}

/// Returns the value of the one key given, in base units; `range` is in base units too. After a fault it is the range's
/// end for a value above it, else `None`.
fn read_one_of(
    key: &str,
    given: &[(&str, Option<f64>, f64)],
    range: Option<RangeInclusive<f64>>,
    faults: &mut Vec<FileFault>,
) -> Option<f64> {
    let outside = |value: f64| range.as_ref().filter(|range| !range.contains(&value));
    let present: Vec<_> = given.iter().filter_map(|(name, value, unit)| Some((*name, (*value)?, *unit))).collect();
    let names = given.iter().map(|(name, ..)| *name).collect::<Vec<_>>().join(", ");
    match present.as_slice() {
        [(_, value, unit)] if value.is_finite() && *value > 0.0 && outside(value * unit).is_none() => {
            Some(value * unit)
        }
        [(name, value, unit)] => {
            let table = key.rsplit_once('.').map_or("", |(table, _)| table);
            let range = outside(value * unit).filter(|_| value.is_finite() && *value > 0.0);
            let within = |range: &RangeInclusive<f64>| limits::describe_range(range.start() / unit, range.end() / unit);
            let limit = range.map_or_else(|| "must be positive and finite".to_owned(), within);
            faults.push(FileFault::new(format!("{table}.{name}"), limits::format_number(*value), limit, "correct it"));
            // Continuing with the largest accepted value finds the other faults too.
            range.map(|range| *range.end()).filter(|most| value * unit > *most)
        }
        [] => {
            faults.push(FileFault::new(key, "nothing", "this figure is needed", format!("give one of {names}")));
            None
        }
        several => {
            let found = several.iter().map(|(name, ..)| *name).collect::<Vec<_>>().join(" and ");
            faults.push(FileFault::new(key, found, "one figure, one key", format!("keep one of {names}")));
            None
        }
    }
}

/// Amounts that are not positive become zero bytes, which [`find_faults`] reports by name.
pub(super) fn to_bytes(amount: f64, unit: f64) -> Bytes {
    Bytes((amount * unit).round() as u64)
}
