//! The rules of every accelerator, read from a file or built by a search.

use super::{
    Accelerator, AccumulatorMemory, AreaModel, AttentionLibrary, Calibration, DecodeKernel, FittedScalar,
    FormatKernels, KernelLibrary, MemoryLevel, MemoryScope, StreamContention, UnalignedKernels, VectorCores,
};
use crate::files::FileFault;
use crate::limits::{self, LARGEST_COUNT};
use crate::units::Bytes;
use std::ops::RangeInclusive;

/// Upper limit on the ratio of a published peak to the arrays' peak. It allows for the rounding of the published
/// figure.
const PEAK_ROUNDING: f64 = 1.02;
/// Lower limit on the ratio of a published peak to the arrays' peak. It allows for a clock that is not kept and for
/// units that are not counted.
const PEAK_SHORTFALL: f64 = 0.9;

/// Returns every missing, zero, negative, NaN or contradictory figure; an empty list for a valid chip.
#[must_use]
pub fn find_faults(accelerator: &Accelerator) -> Vec<FileFault> {
    let mut faults = ChipFaults::default();
    check_compute(accelerator, &mut faults);
    // Bandwidths may be given per cycle. With an impossible clock they are wrong because of it, and are not reported.
    let clock = accelerator.clock.0;
    for level in accelerator.memory_levels() {
        check_memory(level, clock.is_finite() && clock > 0.0, &mut faults);
    }
    check_hierarchy(accelerator, &mut faults);
    check_links(accelerator, &mut faults);
    check_energy(accelerator, &mut faults);
    check_calibration(&accelerator.calibration, &mut faults);
    if let Some(scalars) = &accelerator.library {
        check_fitted("library", scalars, &KernelLibrary::PARAMETERS, &mut faults);
        if let Some(decode) = &scalars.decode {
            check_fitted("library.decode", decode, &DecodeKernel::PARAMETERS, &mut faults);
        }
        if let Some(unaligned) = &scalars.unaligned {
            check_fitted("library.unaligned", unaligned, &UnalignedKernels::PARAMETERS, &mut faults);
        }
        for (format, kernels) in scalars.formats.iter() {
            check_fitted(&format!("library.formats.{format}"), &kernels, &FormatKernels::PARAMETERS, &mut faults);
        }
    }
    for (name, scalars) in &accelerator.attention {
        check_fitted(&format!("attention.{name}"), scalars, &AttentionLibrary::PARAMETERS, &mut faults);
    }
    if let Some(scalars) = &accelerator.streams {
        check_fitted("streams", scalars, &StreamContention::PARAMETERS, &mut faults);
    }
    check_published(accelerator, &mut faults);
    if let AreaModel::UnitAreas(floorplan) = &accelerator.area_model {
        faults.0.extend(floorplan.find_faults(accelerator));
    }
    faults.0
}

/// The faults so far.
#[derive(Default)]
struct ChipFaults(Vec<FileFault>);

impl ChipFaults {
    fn check_positive(&mut self, key: &str, value: f64, cure: &str) {
        if !(value.is_finite() && value > 0.0) {
            self.0.push(FileFault::new(key, value, "must be positive and finite", cure));
        }
    }

    /// Checks a positive number against a range in the key's unit.
    fn check_within(&mut self, key: &str, value: f64, range: RangeInclusive<f64>, cure: &str) {
        self.check_positive(key, value, cure);
        if value.is_finite() && value > 0.0 && !range.contains(&value) {
            let limit = limits::describe_range(*range.start(), *range.end());
            self.0.push(FileFault::new(key, limits::format_number(value), limit, cure));
        }
    }

    /// Checks a number from 0 to `most`.
    fn check_up_to(&mut self, key: &str, value: f64, most: f64, cure: &str) {
        self.check_not_negative(key, value, cure);
        if value.is_finite() && value > most {
            self.0.push(FileFault::new(key, limits::format_number(value), limits::describe_range(0.0, most), cure));
        }
    }

    fn check_not_negative(&mut self, key: &str, value: f64, cure: &str) {
        if !(value.is_finite() && value >= 0.0) {
            self.0.push(FileFault::new(key, value, "must be finite and not negative", cure));
        }
    }
}

/// Returns a range of base units, converted to a larger unit.
fn range_in_units(range: RangeInclusive<f64>, unit: f64) -> RangeInclusive<f64> {
    range.start() / unit..=range.end() / unit
}

fn check_compute(accelerator: &Accelerator, faults: &mut ChipFaults) {
    let (tensor, vector) = (&accelerator.tensor, &accelerator.vector);
    faults.check_within(
        "clock_mhz",
        accelerator.clock.0 / 1e6,
        range_in_units(limits::CLOCK, 1e6),
        "give the clock of the cores",
    );
    let sustained = accelerator.sustained_clock_fraction;
    if !(limits::LEAST_FRACTION..=1.0).contains(&sustained) {
        let cure = "give the fraction of the clock that is kept under load, or leave it out";
        faults.0.push(FileFault::new(
            "sustained_clock_fraction",
            sustained,
            "must be above 0 (a millionth at least) and at most 1",
            cure,
        ));
    }
    let counts_are_sound = check_counts(accelerator, faults);
    check_vector_buffer(vector, faults);
    if !(0.0..=1e6).contains(&vector.transcendentals_per_cycle) {
        let key = "vector.transcendentals_per_cycle";
        let cure = "give functions per vector core and cycle; 0 where the lanes compute them";
        faults.0.push(FileFault::new(key, vector.transcendentals_per_cycle, "must be from 0 to 1e6", cure));
    }
    check_accumulators(tensor.accumulation.memory(), faults);
    check_rates(accelerator, counts_are_sound, faults);
}

/// Checks the numbers of cores, arrays and lanes. Returns whether all are sound.
fn check_counts(accelerator: &Accelerator, faults: &mut ChipFaults) -> bool {
    let (tensor, vector) = (&accelerator.tensor, &accelerator.vector);
    let counts = [
        ("tensor.cores", tensor.cores),
        ("tensor.arrays_per_core", tensor.arrays_per_core),
        ("tensor.rows", tensor.rows),
        ("tensor.columns", tensor.columns),
        ("vector.cores", vector.cores),
        ("vector.lanes", vector.lanes),
    ];
    for (key, count) in counts {
        faults.check_positive(key, f64::from(count), "a chip has at least one");
        if count > LARGEST_COUNT {
            faults.0.push(FileFault::new(key, count, format!("must be at most {LARGEST_COUNT}"), "correct it"));
        }
    }
    counts.iter().all(|(_, count)| (1..=LARGEST_COUNT).contains(count))
}

fn check_vector_buffer(vector: &VectorCores, faults: &mut ChipFaults) {
    if vector.buffer == Some(Bytes::ZERO) {
        let cure = "leave it out where vector cores share the tensor core's local buffer";
        faults.0.push(FileFault::new("vector.buffer_kib", 0, "must be positive", cure));
    }
    if vector.buffer.is_some_and(|buffer| buffer.0 > limits::LARGEST_MEMORY) {
        faults.0.push(FileFault::new("vector.buffer_kib", "more", "must be at most 1 PiB", "correct it"));
    }
}

/// Checks the rate of every data type, and the peak that follows if clock and counts are sound.
fn check_rates(accelerator: &Accelerator, counts_are_sound: bool, faults: &mut ChipFaults) {
    let rates = &accelerator.tensor.macs_per_unit_per_cycle;
    if rates.iter().next().is_none() {
        let cure = "give the rate of at least one data type, `bf16 = 1.0` for instance";
        faults.0.push(FileFault::new(
            "tensor.macs_per_unit_per_cycle",
            "nothing",
            "arrays that support no type compute nothing",
            cure,
        ));
    }
    for (data_type, rate) in rates.iter() {
        let key = format!("tensor.macs_per_unit_per_cycle.{data_type}");
        faults.check_positive(&key, rate, "leave out a type that is not supported");
        let peak = accelerator.peak_flops(data_type).map_or(0.0, |peak| peak.0);
        let sound = rate.is_finite() && rate > 0.0 && limits::CLOCK.contains(&accelerator.clock.0);
        if sound && !limits::PEAK.contains(&peak) && counts_are_sound {
            let range = range_in_units(limits::PEAK, 1e12);
            let within = limits::describe_range(*range.start(), *range.end());
            let limit =
                format!("arrays x clock x rate give {} TFLOP/s, which {within}", limits::format_number(peak / 1e12));
            faults.0.push(FileFault::new(
                key,
                limits::format_number(rate),
                limit,
                "correct the rate, the clock or the arrays",
            ));
        }
    }
}

fn check_accumulators(memory: Option<&AccumulatorMemory>, faults: &mut ChipFaults) {
    let Some(memory) = memory else { return };
    let key = |suffix: &str| format!("tensor.accumulators.{suffix}");
    let most = limits::LARGEST_MEMORY as f64 / 1024.0;
    faults.check_within(&key("capacity_kib"), memory.capacity.as_f64() / 1024.0, 1.0 / 1024.0..=most, "0 for none");
    for (access, rate) in [("read", memory.read_bytes_per_cycle), ("write", memory.write_bytes_per_cycle)] {
        let cure = "4 B for each column of an array keep up with it";
        faults.check_within(&key(&format!("{access}_bytes_per_cycle")), rate, limits::BYTES_PER_CYCLE, cure);
    }
    for (access, energy) in [("read", memory.read_energy_per_byte), ("write", memory.write_energy_per_byte)] {
        let cure = "leave it out to take the node's";
        let most = limits::MOST_ENERGY * 1e12;
        faults.check_up_to(&key(&format!("{access}_pj_per_byte")), energy.0 * 1e12, most, cure);
    }
}

fn check_memory(level: &MemoryLevel, clock_is_sound: bool, faults: &mut ChipFaults) {
    let key = |suffix: &str| format!("memory.{}.{suffix}", level.name);
    if level.name.trim().is_empty() {
        faults.0.push(FileFault::new("memory.name", "\"\"", "every memory has a name", "name it, \"l2\" for instance"));
    }
    if level.capacity == Bytes::ZERO {
        let cure = "give its capacity, or remove the memory";
        faults.0.push(FileFault::new(
            key("capacity"),
            level.capacity,
            "a memory with a bandwidth has a capacity",
            cure,
        ));
    }
    if level.capacity.0 > limits::LARGEST_MEMORY {
        faults.0.push(FileFault::new(key("capacity"), level.capacity, "must be at most 1 PiB", "correct it"));
    }
    if clock_is_sound {
        faults.check_within(
            &key("read bandwidth in B/s"),
            level.read_bandwidth.0,
            limits::RATE,
            "give its peak read rate",
        );
        faults.check_within(
            &key("write bandwidth in B/s"),
            level.write_bandwidth.0,
            limits::RATE,
            "give its peak write rate",
        );
    }
    let ports = "1 where reads and writes share, 2 where they do not";
    faults.check_within(&key("ports"), f64::from(level.ports), 1.0..=f64::from(LARGEST_COUNT), ports);
    faults.check_up_to(&key("latency in s"), level.latency.0, limits::LONGEST_LATENCY, "0 where unknown");
    let energies = [("read", level.read_energy_per_byte), ("write", level.write_energy_per_byte)];
    for (access, energy) in energies {
        let cure = "leave it out to take the node's";
        faults.check_up_to(&key(&format!("{access} energy in J/B")), energy.0, limits::MOST_ENERGY, cure);
    }
}

fn check_hierarchy(accelerator: &Accelerator, faults: &mut ChipFaults) {
    let levels: Vec<&MemoryLevel> = accelerator.memory_levels().collect();
    for (index, level) in levels.iter().enumerate() {
        if levels.iter().take(index).any(|other| other.name == level.name) {
            let cure = "memories need distinct names: rename one";
            faults.0.push(FileFault::new("memory.name", &level.name, "appears twice", cure));
        }
        let Some(outer) = levels.get(index + 1) else { continue };
        if level.scope == MemoryScope::Chip && outer.scope == MemoryScope::Core {
            let cure = "list memories innermost first: those of a core before those of the chip";
            let key = format!("memory.{}.scope", outer.name);
            faults.0.push(FileFault::new(
                key,
                "core",
                format!("lies outside {}, which all cores share", level.name),
                cure,
            ));
        }
        // A register file may exceed the first-level cache, but a shared memory that data has to cross is larger than a
        // core's own.
        let Some(outer) = levels.iter().skip(index + 1).find(|outer| !outer.kind.has_bypass()) else { continue };
        if outer.scope == MemoryScope::Chip && level.capacity > outer.capacity {
            let limit = format!("exceeds the {} of {}, the memory around it", outer.capacity, outer.name);
            let key = format!("memory.{}.capacity", level.name);
            faults.0.push(FileFault::new(
                key,
                level.capacity,
                limit,
                "list memories innermost first, or correct one of the two",
            ));
        }
    }
    if accelerator.hbm.scope != MemoryScope::Chip {
        let key = format!("memory.{}.scope", accelerator.hbm.name);
        faults.0.push(FileFault::new(key, "core", "the outermost memory is the device's", "write scope = \"chip\""));
    }
}

fn check_links(accelerator: &Accelerator, faults: &mut ChipFaults) {
    let rates = || range_in_units(limits::RATE, 1e9);
    let capacities = |most: u64, unit: f64| 1.0 / unit..=most as f64 / unit;
    if let Some(host) = &accelerator.host {
        faults.check_within("host.link_gb_per_s", host.bandwidth.0 / 1e9, rates(), "remove [host] where there is none");
        let range = capacities(limits::LARGEST_MEMORY, 1_073_741_824.0);
        faults.check_within("host.capacity_gib", host.capacity.gib(), range, "a link to the host leads to its memory");
        if let Some(memory) = host.memory {
            faults.check_within("host.memory_gb_per_s", memory.0 / 1e9, rates(), "leave it out where it is not known");
        }
    }
    if let Some(storage) = &accelerator.storage {
        let none = "remove [storage] where there is none";
        faults.check_within("storage.read_gb_per_s", storage.read_bandwidth.0 / 1e9, rates(), none);
        faults.check_within("storage.write_gb_per_s", storage.write_bandwidth.0 / 1e9, rates(), none);
        let range = capacities(limits::LARGEST_STORAGE, 1e9);
        let cure = "storage with a bandwidth has a capacity";
        faults.check_within("storage.capacity_gb", storage.capacity.as_f64() / 1e9, range, cure);
    }
}

fn check_energy(accelerator: &Accelerator, faults: &mut ChipFaults) {
    let energy = &accelerator.energy;
    faults.check_up_to("energy.static_w", energy.static_power.0, *limits::POWER.end(), "give the idle power");
    let (picojoules, cure) = (limits::MOST_ENERGY * 1e12, "leave it out to take the node's");
    faults.check_up_to("energy.pj_per_vector_operation", energy.per_vector_operation.0 * 1e12, picojoules, cure);
    faults.check_up_to("energy.pj_per_core_cycle", energy.per_core_cycle.0 * 1e12, picojoules, cure);
    for (data_type, joules) in energy.per_mac.iter() {
        faults.check_up_to(&format!("energy.pj_per_mac.{data_type}"), joules.0 * 1e12, picojoules, cure);
    }
}

fn check_calibration(calibration: &Calibration, faults: &mut ChipFaults) {
    for parameter in &Calibration::PARAMETERS {
        let value = (parameter.get)(calibration);
        if !(value >= parameter.min && value <= parameter.max) {
            let limit = format!("must lie between {} and {}", parameter.min, parameter.max);
            let cure = format!("fit it anew; {} is the ideal chip's", parameter.ideal);
            faults.0.push(FileFault::new(format!("calibration.{}", parameter.key), value, limit, cure));
        }
    }
    let range = Calibration::FORMAT_FRACTIONS;
    for (format, fraction) in calibration.achieved_by_format.iter().filter(|(_, fraction)| !range.contains(fraction)) {
        let key = format!("calibration.{}.{format}", Calibration::BY_FORMAT);
        let limit = format!("must lie between {} and {}", range.start(), range.end());
        faults.0.push(FileFault::new(key, fraction, limit, "fit it anew; 1 is the ideal chip's"));
    }
}

fn check_fitted<T>(name: &str, scalars: &T, known: &[FittedScalar<T>], faults: &mut ChipFaults) {
    for scalar in known {
        let value = (scalar.get)(scalars);
        if !(value >= scalar.min && value <= scalar.max) {
            let limit = format!("must lie between {} and {}", scalar.min, scalar.max);
            let cure = format!("fit it anew, or leave [{name}] out");
            faults.0.push(FileFault::new(format!("{name}.{}", scalar.key), value, limit, cure));
        }
    }
}

fn check_published(accelerator: &Accelerator, faults: &mut ChipFaults) {
    if let Some(area) = accelerator.published.die_area {
        faults.check_within("published.die_area_mm2", area.0, limits::AREA, "leave it out where it is not published");
    }
    if let Some(tdp) = accelerator.published.tdp {
        faults.check_within("published.tdp_w", tdp.0, limits::POWER, "leave it out where it is not published");
        if accelerator.energy.static_power >= tdp {
            let limit = format!("reaches the published {} W that the chip draws at work", tdp.0);
            faults.0.push(FileFault::new(
                "energy.static_w",
                accelerator.energy.static_power.0,
                limit,
                "give the idle power",
            ));
        }
    }
    for (data_type, peak) in accelerator.published.peak.iter() {
        let key = format!("published.peak_tflops.{data_type}");
        let stated = peak.0 / 1e12;
        faults.check_positive(&key, stated, "leave it out where it is not published");
        let Some(modelled) = accelerator.peak_flops(data_type).map(|peak| peak.0 / 1e12) else {
            let cure = format!("give tensor.macs_per_unit_per_cycle.{data_type}");
            faults.0.push(FileFault::new(key, stated, "the arrays do not support this type", cure));
            continue;
        };
        // Impossible arrays or clocks have faults of their own.
        if !(modelled.is_finite() && modelled > 0.0) {
            continue;
        }
        if stated > modelled * PEAK_ROUNDING || stated < modelled * PEAK_SHORTFALL {
            let limit = format!("arrays x clock give {modelled:.1} TFLOP/s");
            let cure = "correct the clock, the arrays, the rate or the published peak";
            faults.0.push(FileFault::new(key, stated, limit, cure));
        }
    }
}
