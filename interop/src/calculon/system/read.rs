//! Parses text into a [`CalculonSystem`].

use super::{
    CalculonEngine, CalculonMemory, CalculonNetwork, CalculonOperation, CalculonSystem, EfficiencyCurve, OPERATIONS,
};
use sim::files::FileError;
use sim::files::json::{JsonObject, JsonReader};
use sim::kernel::DataType;
use sim::limits::{self, LEAST_FRACTION};
use sim::units::{Bytes, BytesPerSecond, FlopsPerSecond, Seconds};

/// Accepted rates of an engine in TFLOP/s, and of a memory or a link in GB/s. They range from the first processors and
/// networks of this millennium to a thousand times today's rates.
const LEAST_TFLOPS: f64 = 1e-3;
const FASTEST_TFLOPS: f64 = 1e7;
const LEAST_GB_PER_S: f64 = 1e-3;
const FASTEST_GB_PER_S: f64 = 1e8;
/// Largest capacity of a memory, in GiB: 1 PiB. Calculon's files write more for a memory without end.
pub(super) const LARGEST_GIB: f64 = 1_048_576.0;
/// Largest size of a curve's step, in GFLOP or MB: a million million times a large kernel's.
const LARGEST_SIZE: f64 = 1e18;
/// Smallest accepted capacity: about a kilobyte.
const LEAST_GIB: f64 = 1e-6;
/// Largest number of endpoints of a cluster.
const MOST_ENDPOINTS: u64 = 1 << 20;
/// Longest accepted latency of a network, in seconds.
const LONGEST_LATENCY: f64 = 1.0;

const TYPES: [(&str, DataType); 4] =
    [("float16", DataType::Fp16), ("bfloat16", DataType::Bf16), ("float8", DataType::Fp8), ("float32", DataType::Fp32)];

pub(super) fn read_system(text: &str, file: &str) -> Result<CalculonSystem, FileError> {
    let mut reading = JsonReader::new(file);
    let json = reading.parse_value(text, "a system description of Calculon (.json)")?;
    let root = reading.root_object(&json);
    let system = root.map(|root| read_fields(&mut reading, &root, file));
    reading
        .finish_reading(())
        .and_then(|()| system.ok_or_else(|| FileError { file: file.to_owned(), faults: Vec::new() }))
}

fn read_fields(r: &mut JsonReader, root: &JsonObject<'_>, file: &str) -> CalculonSystem {
    r.refuse_unknown_keys(root, &["matrix", "vector", "mem1", "mem2", "processing_mode", "networks"]);
    let networks = r.list_under(root, "networks");
    if networks.is_empty() && r.is_sound() {
        r.add_fault("networks", "[]", "a system has at least one network", "add one");
    }
    CalculonSystem {
        file: file.to_owned(),
        matrix: read_engine(r, root, "matrix"),
        vector: read_engine(r, root, "vector"),
        memory: read_memory(r, root, "mem1", true).unwrap_or_else(|| CalculonMemory {
            capacity: Bytes(1),
            beyond_gib: None,
            bandwidth: BytesPerSecond(1.0),
            efficiency: EfficiencyCurve(Vec::new()),
        }),
        host: read_memory(r, root, "mem2", false),
        roofline: r
            .choice_under(root, "processing_mode", &[("roofline", true), ("no_overlap", false)])
            .unwrap_or_default(),
        networks: networks
            .iter()
            .enumerate()
            .filter_map(|(i, value)| {
                let object = r.object_at(&format!("networks[{i}]"), value)?;
                Some(read_network(r, &object))
            })
            .collect(),
    }
}

/// Reads an engine: a rate and a curve per data type, or one rate with a curve per data type.
fn read_engine(r: &mut JsonReader, root: &JsonObject<'_>, key: &str) -> Vec<CalculonEngine> {
    let Some(object) = r.object_under(root, key) else { return Vec::new() };
    let mut engines = Vec::new();
    if object.contains_key("tflops") || object.contains_key("gflops_efficiency") {
        r.refuse_unknown_keys(&object, &["tflops", "gflops_efficiency"]);
        let peak = r.number_under(&object, "tflops", LEAST_TFLOPS, FASTEST_TFLOPS);
        let Some(curves) = r.object_under(&object, "gflops_efficiency") else { return Vec::new() };
        r.refuse_unknown_keys(&curves, &TYPES.map(|(name, _)| name));
        for (name, data_type) in TYPES.into_iter().filter(|(name, _)| curves.contains_key(name)) {
            engines.push(CalculonEngine {
                data_type,
                peak: read_tera(peak),
                efficiency: read_curve(r, &curves, name, 1e9),
            });
        }
    } else {
        r.refuse_unknown_keys(&object, &TYPES.map(|(name, _)| name));
        for (name, data_type) in TYPES.into_iter().filter(|(name, _)| object.contains_key(name)) {
            let Some(of_type) = r.object_under(&object, name) else { continue };
            r.refuse_unknown_keys(&of_type, &["tflops", "gflops_efficiency"]);
            let peak = r.number_under(&of_type, "tflops", LEAST_TFLOPS, FASTEST_TFLOPS);
            engines.push(CalculonEngine {
                data_type,
                peak: read_tera(peak),
                efficiency: read_curve(r, &of_type, "gflops_efficiency", 1e9),
            });
        }
    }
    if engines.is_empty() && r.is_sound() {
        let names = TYPES.map(|(name, _)| name).join(", ");
        r.add_fault(key, "{}", format!("an engine computes at least one of {names}"), "give the rate of a type");
    }
    engines
}

fn read_tera(tflops: f64) -> FlopsPerSecond {
    FlopsPerSecond(tflops * 1e12)
}

/// Reads a curve: pairs of a smallest size and a fraction, with sizes falling to 0. `unit` is the FLOPs or bytes of one
/// unit of size.
fn read_curve(r: &mut JsonReader, object: &JsonObject<'_>, key: &str, unit: f64) -> EfficiencyCurve {
    let path = format!("{}{key}", object.path);
    let mut points: Vec<(f64, f64)> = Vec::new();
    for (i, value) in r.list_under(object, key).iter().enumerate() {
        let at = format!("{path}[{i}]");
        let Some([size, fraction]) = value.as_array().map(Vec::as_slice) else {
            r.add_fault(at, value, "must be a list of a size and a fraction", "write [size, fraction]");
            continue;
        };
        let least = r.number_at(&format!("{at}[0]"), size, 0.0, LARGEST_SIZE) * unit;
        let share = r.number_at(&format!("{at}[1]"), fraction, 0.0, 1.0);
        if share < LEAST_FRACTION && r.is_sound() {
            let limit = "must be above 0 (1e-6 at least)";
            r.add_fault(format!("{at}[1]"), fraction, limit, "an operation that achieves nothing never ends");
        }
        if points.last().is_some_and(|(above, _)| *above <= least) {
            r.add_fault(
                format!("{at}[0]"),
                size,
                "must be below the size before it",
                "list sizes from the largest to 0",
            );
        }
        points.push((least, share));
    }
    if r.is_sound() && points.last().is_none_or(|(least, _)| *least > 0.0) {
        let last = points.last().map_or_else(|| "[]".to_owned(), |(least, _)| (least / unit).to_string());
        r.add_fault(path, last, "the last size must be 0, so that every operation is covered", "add [0, fraction]");
    }
    EfficiencyCurve(points)
}

/// Reads a memory; `None` after a fault, or for an optional memory without capacity.
fn read_memory(r: &mut JsonReader, root: &JsonObject<'_>, key: &str, needed: bool) -> Option<CalculonMemory> {
    let object = r.object_under(root, key)?;
    r.refuse_unknown_keys(&object, &["GiB", "GBps", "MB_efficiency"]);
    let gib = r.number_under(&object, "GiB", 0.0, f64::MAX);
    let rate = r.number_under(&object, "GBps", 0.0, FASTEST_GB_PER_S);
    for (key, value, least) in [("GiB", gib, LEAST_GIB), ("GBps", rate, LEAST_GB_PER_S)] {
        if value > 0.0 && value < least {
            let limit = format!("must be 0 or at least {}", limits::format_number(least));
            r.add_fault(format!("{}{key}", object.path), limits::format_number(value), limit, "correct it");
        }
    }
    let efficiency = read_curve(r, &object, "MB_efficiency", 1e6);
    if gib > 0.0 && rate > 0.0 {
        return Some(CalculonMemory {
            capacity: Bytes::from_gib(gib.min(LARGEST_GIB)),
            beyond_gib: (gib > LARGEST_GIB).then_some(gib),
            bandwidth: BytesPerSecond(rate * 1e9),
            efficiency,
        });
    }
    if needed && r.is_sound() {
        let (name, value) = if gib > 0.0 { ("GBps", rate) } else { ("GiB", gib) };
        r.add_fault(format!("{}{name}", object.path), value, "must be positive", "give the device's memory");
    }
    None
}

fn read_network(r: &mut JsonReader, object: &JsonObject<'_>) -> CalculonNetwork {
    let old = object.contains_key("collective_minus1_scalar");
    let mut known = vec!["bandwidth", "efficiency", "size", "latency", "ops", "must_be_filled", "processor_usage"];
    known.extend(old.then_some("collective_minus1_scalar"));
    r.refuse_unknown_keys(object, &known);
    let minus_one = old && r.flag_under(object, "collective_minus1_scalar");
    let bandwidth = r.number_under(object, "bandwidth", LEAST_GB_PER_S, FASTEST_GB_PER_S);
    let processor_usage = r.number_under(object, "processor_usage", 0.0, 1.0);
    CalculonNetwork {
        bandwidth: BytesPerSecond(bandwidth * 1e9),
        efficiency: r.number_under(object, "efficiency", LEAST_FRACTION, 1.0),
        size: r.count_under(object, "size", 1, MOST_ENDPOINTS) as u32,
        latency: Seconds(r.number_under(object, "latency", 0.0, LONGEST_LATENCY)),
        operations: read_operations(r, object, old, minus_one),
        must_be_filled: r.flag_under(object, "must_be_filled"),
        processor_usage,
    }
}

fn read_operations(r: &mut JsonReader, network: &JsonObject<'_>, old: bool, minus_one: bool) -> [CalculonOperation; 4] {
    let mut operations = [CalculonOperation { factor: 1.0, offset: 0.0 }; 4];
    let Some(ops) = r.object_under(network, "ops") else { return operations };
    r.refuse_unknown_keys(&ops, &OPERATIONS);
    for (slot, name) in operations.iter_mut().zip(OPERATIONS) {
        let Some(value) = r.value_of_key(&ops, name) else { continue };
        let (at, collective) = (format!("{}{name}", ops.path), name != "p2p");
        if old {
            slot.factor = r.number_at(&at, value, 0.0, 1e3);
            slot.offset = if collective && minus_one { -1.0 } else { 0.0 };
        } else if let Some([factor, offset]) = value.as_array().map(Vec::as_slice) {
            slot.factor = r.number_at(&format!("{at}[0]"), factor, 0.0, 1e3);
            match (collective, offset.is_null()) {
                (true, _) => slot.offset = r.number_at(&format!("{at}[1]"), offset, -1.0, 1e6),
                (false, true) => {}
                (false, false) => r.add_fault(format!("{at}[1]"), offset, "a send has no offset", "write null"),
            }
        } else {
            r.add_fault(&at, value, "must be a list of a factor and an offset", "write [factor, offset], null for p2p");
        }
        if slot.factor < LEAST_FRACTION && r.is_sound() {
            r.add_fault(at, value, "its factor must be positive (1e-6 at least)", "correct it");
        }
    }
    operations
}
