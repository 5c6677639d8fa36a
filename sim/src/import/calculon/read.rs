//! From text to [`System`].

use super::{Efficiency, Engine, Memory, Network, OPERATIONS, Operation, System};
use crate::files::FileError;
use crate::files::json::{Object, Reading};
use crate::kernel::DataType;
use crate::limits::{self, LEAST_FRACTION};
use crate::units::{Bytes, BytesPerSecond, FlopsPerSecond, Seconds};

/// What is taken for an engine's rate, in TFLOP/s, and for a memory's or a link's, in GB/s: from what the first processors and networks of this
/// millennium had to a thousand times today's.
const LEAST_TFLOPS: f64 = 1e-3;
const FASTEST_TFLOPS: f64 = 1e7;
const LEAST_GB_PER_S: f64 = 1e-3;
const FASTEST_GB_PER_S: f64 = 1e8;
/// The most that is taken for a memory's capacity, in GiB: 1 PiB.
const LARGEST_GIB: f64 = 1_048_576.0;
/// The largest size at which a curve steps, in GFLOP or MB: a million million times a large kernel's.
const LARGEST_SIZE: f64 = 1e18;
/// The least, about a kilobyte.
const LEAST_GIB: f64 = 1e-6;
/// The most endpoints that a cluster here has.
const MOST_ENDPOINTS: u64 = 1 << 20;
/// The longest latency that is taken for a network's, in seconds.
const LONGEST_LATENCY: f64 = 1.0;

const TYPES: [(&str, DataType); 4] =
    [("float16", DataType::Fp16), ("bfloat16", DataType::Bf16), ("float8", DataType::Fp8), ("float32", DataType::Fp32)];

pub(super) fn system(text: &str, file: &str) -> Result<System, FileError> {
    let mut reading = Reading::new(file);
    let json = reading.parse(text, "a system description of Calculon (.json)")?;
    let root = reading.root(&json);
    let system = root.map(|root| read(&mut reading, &root, file));
    reading.finish(()).and_then(|()| system.ok_or_else(|| FileError { file: file.to_owned(), faults: Vec::new() }))
}

fn read(r: &mut Reading, root: &Object<'_>, file: &str) -> System {
    r.only(root, &["matrix", "vector", "mem1", "mem2", "processing_mode", "networks"]);
    let networks = r.list(root, "networks");
    if networks.is_empty() && r.sound() {
        r.fault("networks", "[]", "a system has at least one network", "add one");
    }
    System {
        file: file.to_owned(),
        matrix: engine(r, root, "matrix"),
        vector: engine(r, root, "vector"),
        memory: memory(r, root, "mem1", true).unwrap_or_else(|| Memory {
            capacity: Bytes(1),
            bandwidth: BytesPerSecond(1.0),
            efficiency: Efficiency(Vec::new()),
        }),
        host: memory(r, root, "mem2", false),
        roofline: r.choice(root, "processing_mode", &[("roofline", true), ("no_overlap", false)]).unwrap_or_default(),
        networks: networks
            .iter()
            .enumerate()
            .filter_map(|(i, value)| {
                let object = r.object(&format!("networks[{i}]"), value)?;
                Some(network(r, &object))
            })
            .collect(),
    }
}

/// An engine: by type its rate and curve, or one rate and by type a curve.
fn engine(r: &mut Reading, root: &Object<'_>, key: &str) -> Vec<Engine> {
    let Some(object) = r.inner(root, key) else { return Vec::new() };
    let mut engines = Vec::new();
    if object.has("tflops") || object.has("gflops_efficiency") {
        r.only(&object, &["tflops", "gflops_efficiency"]);
        let peak = r.number(&object, "tflops", LEAST_TFLOPS, FASTEST_TFLOPS);
        let Some(curves) = r.inner(&object, "gflops_efficiency") else { return Vec::new() };
        r.only(&curves, &TYPES.map(|(name, _)| name));
        for (name, data_type) in TYPES.into_iter().filter(|(name, _)| curves.has(name)) {
            engines.push(Engine { data_type, peak: tera(peak), efficiency: curve(r, &curves, name, 1e9) });
        }
    } else {
        r.only(&object, &TYPES.map(|(name, _)| name));
        for (name, data_type) in TYPES.into_iter().filter(|(name, _)| object.has(name)) {
            let Some(of_type) = r.inner(&object, name) else { continue };
            r.only(&of_type, &["tflops", "gflops_efficiency"]);
            let peak = r.number(&of_type, "tflops", LEAST_TFLOPS, FASTEST_TFLOPS);
            engines.push(Engine { data_type, peak: tera(peak), efficiency: curve(r, &of_type, "gflops_efficiency", 1e9) });
        }
    }
    if engines.is_empty() && r.sound() {
        let names = TYPES.map(|(name, _)| name).join(", ");
        r.fault(key, "{}", format!("an engine computes at least one of {names}"), "give the rate of a type");
    }
    engines
}

fn tera(tflops: f64) -> FlopsPerSecond {
    FlopsPerSecond(tflops * 1e12)
}

/// A curve: pairs of a least size (in `unit`) and a fraction, sizes falling to 0.
fn curve(r: &mut Reading, object: &Object<'_>, key: &str, unit: f64) -> Efficiency {
    let path = format!("{}{key}", object.path);
    let mut points: Vec<(f64, f64)> = Vec::new();
    for (i, value) in r.list(object, key).iter().enumerate() {
        let at = format!("{path}[{i}]");
        let Some([size, fraction]) = value.as_array().map(Vec::as_slice) else {
            r.fault(at, value, "must be a list of a size and a fraction", "write [size, fraction]");
            continue;
        };
        let least = r.number_in(&format!("{at}[0]"), size, 0.0, LARGEST_SIZE) * unit;
        let share = r.number_in(&format!("{at}[1]"), fraction, 0.0, 1.0);
        if share < LEAST_FRACTION && r.sound() {
            let limit = "must be above 0 (1e-6 at least)";
            r.fault(format!("{at}[1]"), fraction, limit, "an operation that achieves nothing never ends");
        }
        if points.last().is_some_and(|(above, _)| *above <= least) {
            r.fault(format!("{at}[0]"), size, "must be below the size before it", "list sizes from the largest to 0");
        }
        points.push((least, share));
    }
    if r.sound() && points.last().is_none_or(|(least, _)| *least > 0.0) {
        let last = points.last().map_or_else(|| "[]".to_owned(), |(least, _)| (least / unit).to_string());
        r.fault(path, last, "the last size must be 0, so that every operation is covered", "add [0, fraction]");
    }
    Efficiency(points)
}

/// A memory; none where one that need not exist has no bytes.
fn memory(r: &mut Reading, root: &Object<'_>, key: &str, needed: bool) -> Option<Memory> {
    let object = r.inner(root, key)?;
    r.only(&object, &["GiB", "GBps", "MB_efficiency"]);
    let gib = r.number(&object, "GiB", 0.0, LARGEST_GIB);
    let rate = r.number(&object, "GBps", 0.0, FASTEST_GB_PER_S);
    for (key, value, least) in [("GiB", gib, LEAST_GIB), ("GBps", rate, LEAST_GB_PER_S)] {
        if value > 0.0 && value < least {
            let limit = format!("must be 0 or at least {}", limits::plain(least));
            r.fault(format!("{}{key}", object.path), limits::plain(value), limit, "correct it");
        }
    }
    let efficiency = curve(r, &object, "MB_efficiency", 1e6);
    if gib > 0.0 && rate > 0.0 {
        return Some(Memory { capacity: Bytes::from_gib(gib), bandwidth: BytesPerSecond(rate * 1e9), efficiency });
    }
    if needed && r.sound() {
        let (name, value) = if gib > 0.0 { ("GBps", rate) } else { ("GiB", gib) };
        r.fault(format!("{}{name}", object.path), value, "must be positive", "give the device's memory");
    }
    None
}

fn network(r: &mut Reading, object: &Object<'_>) -> Network {
    let old = object.has("collective_minus1_scalar");
    let mut known = vec!["bandwidth", "efficiency", "size", "latency", "ops", "must_be_filled", "processor_usage"];
    known.extend(old.then_some("collective_minus1_scalar"));
    r.only(object, &known);
    let minus_one = old && r.flag(object, "collective_minus1_scalar");
    let bandwidth = r.number(object, "bandwidth", LEAST_GB_PER_S, FASTEST_GB_PER_S);
    let processor_usage = r.number(object, "processor_usage", 0.0, 1.0);
    Network {
        bandwidth: BytesPerSecond(bandwidth * 1e9),
        efficiency: r.number(object, "efficiency", LEAST_FRACTION, 1.0),
        size: r.count(object, "size", 1, MOST_ENDPOINTS) as u32,
        latency: Seconds(r.number(object, "latency", 0.0, LONGEST_LATENCY)),
        operations: operations(r, object, old, minus_one),
        must_be_filled: r.flag(object, "must_be_filled"),
        processor_usage,
    }
}

fn operations(r: &mut Reading, network: &Object<'_>, old: bool, minus_one: bool) -> [Operation; 4] {
    let mut operations = [Operation { factor: 1.0, offset: 0.0 }; 4];
    let Some(ops) = r.inner(network, "ops") else { return operations };
    r.only(&ops, &OPERATIONS);
    for (slot, name) in operations.iter_mut().zip(OPERATIONS) {
        let Some(value) = r.need(&ops, name) else { continue };
        let (at, collective) = (format!("{}{name}", ops.path), name != "p2p");
        if old {
            slot.factor = r.number_in(&at, value, 0.0, 1e3);
            slot.offset = if collective && minus_one { -1.0 } else { 0.0 };
        } else if let Some([factor, offset]) = value.as_array().map(Vec::as_slice) {
            slot.factor = r.number_in(&format!("{at}[0]"), factor, 0.0, 1e3);
            match (collective, offset.is_null()) {
                (true, _) => slot.offset = r.number_in(&format!("{at}[1]"), offset, -1.0, 1e6),
                (false, true) => {}
                (false, false) => r.fault(format!("{at}[1]"), offset, "a send has no offset", "write null"),
            }
        } else {
            r.fault(&at, value, "must be a list of a factor and an offset", "write [factor, offset], null for p2p");
        }
        if slot.factor < LEAST_FRACTION && r.sound() {
            r.fault(at, value, "its factor must be positive (1e-6 at least)", "correct it");
        }
    }
    operations
}
