//! What must hold of every accelerator, whether read from a file or built by a search.

use super::{Accelerator, AreaModel, Calibration, MemoryLevel, Scope};
use crate::files::Fault;
use crate::units::Bytes;

/// How far a published peak may lie above what the arrays give (rounding of the published figure).
const PEAK_ROUNDING: f64 = 1.02;
/// The most cores, arrays, rows, columns or lanes that are taken for a chip's: far above any wafer's.
const LARGEST_COUNT: u32 = 1 << 20;
/// The most bytes that are taken for a memory's: 1 PiB.
const LARGEST_MEMORY: Bytes = Bytes(1 << 50);
/// How far it may lie below (a clock that is not held, units that are not counted).
const PEAK_SHORTFALL: f64 = 0.9;

/// Every missing, zero, negative, NaN or contradictory figure; empty for a sound chip.
#[must_use]
pub fn verify(accelerator: &Accelerator) -> Vec<Fault> {
    let mut faults = Faults::default();
    compute(accelerator, &mut faults);
    // Bandwidths may be given per cycle: with an impossible clock they are wrong because of it.
    let clock = accelerator.clock.0;
    for level in accelerator.levels() {
        memory(level, clock.is_finite() && clock > 0.0, &mut faults);
    }
    hierarchy(accelerator, &mut faults);
    links(accelerator, &mut faults);
    energy(accelerator, &mut faults);
    calibration(&accelerator.calibration, &mut faults);
    published(accelerator, &mut faults);
    if let AreaModel::UnitAreas(floorplan) = &accelerator.area_model {
        faults.0.extend(floorplan.faults(accelerator));
    }
    faults.0
}

/// The faults so far.
#[derive(Default)]
struct Faults(Vec<Fault>);

impl Faults {
    fn positive(&mut self, key: &str, value: f64, cure: &str) {
        if !(value.is_finite() && value > 0.0) {
            self.0.push(Fault::new(key, value, "must be positive and finite", cure));
        }
    }

    fn not_negative(&mut self, key: &str, value: f64, cure: &str) {
        if !(value.is_finite() && value >= 0.0) {
            self.0.push(Fault::new(key, value, "must be finite and not negative", cure));
        }
    }
}

/// No chip is clocked above this many hertz: ten times the fastest silicon sold.
const FASTEST_CLOCK: f64 = 1e11;

fn compute(accelerator: &Accelerator, faults: &mut Faults) {
    let (tensor, vector) = (&accelerator.tensor, &accelerator.vector);
    faults.positive("clock_mhz", accelerator.clock.0 / 1e6, "give the clock of the cores");
    if accelerator.clock.0 > FASTEST_CLOCK {
        faults.0.push(Fault::new("clock_mhz", accelerator.clock.0 / 1e6, "must be at most 100000", "give megahertz"));
    }
    let sustained = accelerator.sustained_clock_fraction;
    if !(sustained > 0.0 && sustained <= 1.0) {
        let cure = "give what is left of the clock under load, or leave it out";
        faults.0.push(Fault::new("sustained_clock_fraction", sustained, "must be above 0 and at most 1", cure));
    }
    let counts = [
        ("tensor.cores", tensor.cores),
        ("tensor.arrays_per_core", tensor.arrays_per_core),
        ("tensor.rows", tensor.rows),
        ("tensor.columns", tensor.columns),
        ("vector.cores", vector.cores),
        ("vector.lanes", vector.lanes),
    ];
    for (key, count) in counts {
        faults.positive(key, f64::from(count), "a chip has at least one");
        if count > LARGEST_COUNT {
            faults.0.push(Fault::new(key, count, format!("must be at most {LARGEST_COUNT}"), "correct it"));
        }
    }
    if vector.buffer == Some(Bytes::ZERO) {
        let cure = "leave it out where vector cores share the tensor core's local buffer";
        faults.0.push(Fault::new("vector.buffer_kib", 0, "must be positive", cure));
    }
    let rates = &tensor.macs_per_unit_per_cycle;
    if rates.iter().next().is_none() {
        let cure = "give the rate of at least one data type, `bf16 = 1.0` for instance";
        faults.0.push(Fault::new(
            "tensor.macs_per_unit_per_cycle",
            "nothing",
            "arrays that support no type compute nothing",
            cure,
        ));
    }
    for (data_type, rate) in rates.iter() {
        let key = format!("tensor.macs_per_unit_per_cycle.{data_type}");
        faults.positive(&key, rate, "leave out a type that is not supported");
    }
}

fn memory(level: &MemoryLevel, clock_is_sound: bool, faults: &mut Faults) {
    let key = |suffix: &str| format!("memory.{}.{suffix}", level.name);
    if level.name.trim().is_empty() {
        faults.0.push(Fault::new("memory.name", "\"\"", "every memory has a name", "name it, \"l2\" for instance"));
    }
    if level.capacity == Bytes::ZERO {
        let cure = "give its capacity, or remove the memory";
        faults.0.push(Fault::new(key("capacity"), level.capacity, "a memory with a bandwidth has a capacity", cure));
    }
    if level.capacity > LARGEST_MEMORY {
        faults.0.push(Fault::new(key("capacity"), level.capacity, "must be at most 1 PiB", "correct it"));
    }
    if clock_is_sound {
        faults.positive(&key("read bandwidth in B/s"), level.read_bandwidth.0, "give its peak read rate");
        faults.positive(&key("write bandwidth in B/s"), level.write_bandwidth.0, "give its peak write rate");
    }
    faults.positive(&key("ports"), f64::from(level.ports), "1 where reads and writes share, 2 where they do not");
    faults.not_negative(&key("latency in s"), level.latency.0, "0 where unknown");
    faults.not_negative(&key("read energy in J/B"), level.read_energy_per_byte.0, "leave it out to take the node's");
    faults.not_negative(&key("write energy in J/B"), level.write_energy_per_byte.0, "leave it out to take the node's");
}

fn hierarchy(accelerator: &Accelerator, faults: &mut Faults) {
    let levels: Vec<&MemoryLevel> = accelerator.levels().collect();
    for (index, level) in levels.iter().enumerate() {
        if levels.iter().take(index).any(|other| other.name == level.name) {
            let cure = "names tell memories apart: rename one";
            faults.0.push(Fault::new("memory.name", &level.name, "appears twice", cure));
        }
        let Some(outer) = levels.get(index + 1) else { continue };
        if level.scope == Scope::Chip && outer.scope == Scope::Core {
            let cure = "list memories innermost first: those of a core before those of the chip";
            let key = format!("memory.{}.scope", outer.name);
            faults.0.push(Fault::new(key, "core", format!("lies outside {}, which all cores share", level.name), cure));
        }
        // A register file may exceed the first-level cache; what all cores share is larger than what one core has.
        if outer.scope == Scope::Chip && level.capacity > outer.capacity {
            let limit = format!("exceeds the {} of {}, the memory around it", outer.capacity, outer.name);
            let key = format!("memory.{}.capacity", level.name);
            faults.0.push(Fault::new(key, level.capacity, limit, "list memories innermost first, or correct one of the two"));
        }
    }
    if accelerator.hbm.scope != Scope::Chip {
        let key = format!("memory.{}.scope", accelerator.hbm.name);
        faults.0.push(Fault::new(key, "core", "the outermost memory is the device's", "write scope = \"chip\""));
    }
}

fn links(accelerator: &Accelerator, faults: &mut Faults) {
    if let Some(host) = &accelerator.host {
        faults.positive("host.link_gb_per_s", host.bandwidth.0 / 1e9, "remove [host] where there is none");
        faults.positive("host.capacity_gib", host.capacity.gib(), "a link to the host leads to its memory");
    }
    if let Some(storage) = &accelerator.storage {
        faults.positive("storage.read_gb_per_s", storage.read_bandwidth.0 / 1e9, "remove [storage] where there is none");
        faults.positive("storage.write_gb_per_s", storage.write_bandwidth.0 / 1e9, "remove [storage] where there is none");
        faults.positive("storage.capacity_gb", storage.capacity.as_f64() / 1e9, "storage with a bandwidth has a capacity");
    }
}

fn energy(accelerator: &Accelerator, faults: &mut Faults) {
    let energy = &accelerator.energy;
    faults.not_negative("energy.static_w", energy.static_power.0, "give the idle power");
    faults.not_negative(
        "energy.pj_per_vector_operation",
        energy.per_vector_operation.0 * 1e12,
        "leave it out to take the node's",
    );
    for (data_type, joules) in energy.per_mac.iter() {
        faults.not_negative(&format!("energy.pj_per_mac.{data_type}"), joules.0 * 1e12, "leave it out to take the node's");
    }
}

fn calibration(calibration: &Calibration, faults: &mut Faults) {
    for parameter in &Calibration::PARAMETERS {
        let value = (parameter.get)(calibration);
        if !(value >= parameter.min && value <= parameter.max) {
            let limit = format!("must lie between {} and {}", parameter.min, parameter.max);
            let cure = format!("fit it anew; {} is the ideal chip's", parameter.ideal);
            faults.0.push(Fault::new(format!("calibration.{}", parameter.key), value, limit, cure));
        }
    }
}

fn published(accelerator: &Accelerator, faults: &mut Faults) {
    if let Some(area) = accelerator.published.die_area {
        faults.positive("published.die_area_mm2", area.0, "leave it out where it is not published");
    }
    if let Some(tdp) = accelerator.published.tdp {
        faults.positive("published.tdp_w", tdp.0, "leave it out where it is not published");
        if accelerator.energy.static_power >= tdp {
            let limit = format!("reaches the published {} W that the chip draws at work", tdp.0);
            faults.0.push(Fault::new("energy.static_w", accelerator.energy.static_power.0, limit, "give the idle power"));
        }
    }
    for (data_type, peak) in accelerator.published.peak.iter() {
        let key = format!("published.peak_tflops.{data_type}");
        let stated = peak.0 / 1e12;
        faults.positive(&key, stated, "leave it out where it is not published");
        let Some(modelled) = accelerator.peak(data_type).map(|peak| peak.0 / 1e12) else {
            let cure = format!("give tensor.macs_per_unit_per_cycle.{data_type}");
            faults.0.push(Fault::new(key, stated, "the arrays do not support this type", cure));
            continue;
        };
        // Where the arrays or the clock are impossible, their own faults say so.
        if !(modelled.is_finite() && modelled > 0.0) {
            continue;
        }
        if stated > modelled * PEAK_ROUNDING || stated < modelled * PEAK_SHORTFALL {
            let limit = format!("arrays x clock give {modelled:.1} TFLOP/s");
            let cure = "correct the clock, the arrays, the rate or the published peak";
            faults.0.push(Fault::new(key, stated, limit, cure));
        }
    }
}
