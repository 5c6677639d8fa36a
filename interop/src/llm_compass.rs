//! LLMCompass (Zhang et al., ISCA 2024): reads the JSON description of a system (`configs/*.json`). Its device becomes
//! a chip, and its interconnect becomes a fabric.
//!
//! Missing properties follow LLMCompass's own model (`hardware_model/`, `software_model/matmul.py`): output-stationary
//! arrays that stay busy on long products, core memories that never limit, one port on the global buffer and on the
//! device's memory. Energy per operation and byte is the process node's; static power is not stated and therefore zero.
//! The unit counts of its area model are not read, so the chip has no area.

use serde_json::Value;
use sim::files::{FileError, json, strict};
use sim::hardware::energy::{EnergyPoint, default_energy_model, default_energy_per_byte};
use sim::hardware::{
    Accelerator, AreaModel, Calibration, ChipOrigin, Constants, Dataflow, Exclusivity, FileFault, HbmGeneration,
    MemoryKind, MemoryLevel, ProcessNode,
};
use sim::hardware::{
    Accumulation, ChipTemplate, MemoryScope, Pairing, PerDataType, PublishedFigures, TensorCores, VectorCores,
    find_faults,
};
use sim::limits::{self, LARGEST_COUNT};
use sim::network::{Fabric, Tier, Topology, TorusDim};
use sim::units::{Bytes, BytesPerSecond, Hertz, Seconds};
use std::collections::BTreeMap;
use std::ops::RangeInclusive;

const KIB: f64 = 1024.0;
const MIB: f64 = 1_048_576.0;
const GIB: f64 = 1_073_741_824.0;
/// The usual software stack: LLMCompass shards its models as Megatron-LM does (Zhang et al., ISCA 2024, section III).
const USUAL_STACK: &str = "megatron";

/// Reads the device of a system as a chip; `file` names it in errors.
///
/// # Errors
/// Malformed JSON, missing keys, or impossible figures; all of them are listed by their path in the file.
pub fn read_chip(text: &str, file: &str) -> Result<ChipTemplate, FileError> {
    let json = parse_file(
        text,
        file,
        "give a chip file (.toml), an LLMCompass device description or a Calculon system (.json)",
    )?;
    let mut reader = CompassReader { json: &json, faults: Vec::new() };
    let accelerator = build_accelerator(&mut reader);
    if reader.faults.is_empty() {
        reader.faults = find_faults(&accelerator);
    }
    reader.check_sound(file)?;
    Ok(ChipTemplate {
        name: accelerator.name.clone(),
        aliases: Vec::new(),
        description: format!("LLMCompass device description {file}"),
        accelerator,
        sources: BTreeMap::from([(
            "all".to_owned(),
            format!("{file}, and where it is silent LLMCompass's own assumptions"),
        )]),
        fitted_on: BTreeMap::new(),
    })
}

/// Reads the interconnect: devices that are fully connected (`FC`) or form a ring (`RING`). Each device has the one-way
/// bandwidth of all its links, less the share of packet headers. A step takes the link's latency; starting a collective
/// takes no time.
///
/// # Errors
/// As [`read_chip`].
pub fn read_fabric(text: &str, file: &str) -> Result<Fabric, FileError> {
    let json = parse_file(
        text,
        file,
        "give a fabric file (.toml), an LLMCompass device description or a Calculon system (.json)",
    )?;
    let mut r = CompassReader { json: &json, faults: Vec::new() };
    let link = |key: &str| format!("interconnect.link.{key}");
    let name = r.text_at("name").to_owned();
    let devices = r.positive_count("device_count");
    let ring = r.choice_at("interconnect.topology", &[("FC", false), ("RING", true)]).unwrap_or(false);
    let links = "interconnect.link_count_per_device";
    let bandwidth =
        r.positive_number(links, FACTOR) * r.positive_number(&link("bandwidth_per_direction_byte"), limits::RATE);
    r.capped_product(&[links, &link("bandwidth_per_direction_byte")], bandwidth, limits::RATE, "in B/s");
    let (payload, header) = (
        r.positive_number(&link("max_payload_size_byte"), PACKET),
        r.positive_number(&link("header_size_byte"), PACKET),
    );
    let latency = r.positive_number(&link("latency_second"), f64::MIN_POSITIVE..=limits::LONGEST_LATENCY);
    r.check_sound(file)?;
    let wrap = devices > 1;
    let topology = if ring {
        let dims = vec![TorusDim { size: devices, wrap }];
        Topology::Torus { dims, limits: vec![devices], wrap_multiple: 1, twisted: false, twisted_hops: None }
    } else {
        Topology::FullyConnected { units: devices }
    };
    let tier = Tier {
        name: "links".to_owned(),
        devices,
        topology,
        bandwidth: BytesPerSecond(bandwidth),
        achieved_fraction: payload / (payload + header),
        operation: Seconds::ZERO,
        step: Seconds(latency),
        chunk: Seconds::ZERO,
        final_copy: BytesPerSecond(f64::INFINITY),
        low_latency: None,
        line: None,
        exchange: None,
        ring_step: None,
        group_bandwidth: Vec::new(),
        in_network: None,
        source: file.to_owned(),
    };
    let description = format!("LLMCompass interconnect {file}");
    Ok(Fabric {
        name,
        description,
        launch: Seconds::ZERO,
        tiers: vec![tier],
        fitted_on: String::new(),
        joins: Vec::new(),
        system: Default::default(),
    })
}

fn parse_file(text: &str, file: &str, cure: &str) -> Result<Value, FileError> {
    strict::parse_strict(text).map_err(|why| json::malformed_error(file, &why, cure))
}

struct CompassReader<'a> {
    json: &'a Value,
    faults: Vec<FileFault>,
}

impl<'a> CompassReader<'a> {
    /// Returns the faults so far as an error, if there are any, and clears them.
    fn check_sound(&mut self, file: &str) -> Result<(), FileError> {
        let faults = std::mem::take(&mut self.faults);
        if faults.is_empty() { Ok(()) } else { Err(FileError { file: file.to_owned(), faults }) }
    }

    fn value_at(&self, path: &str) -> Option<&'a Value> {
        path.split('.').try_fold(self.json, |value, key| value.get(key))
    }

    fn required_value(&mut self, path: &str) -> Option<&'a Value> {
        let found = self.value_at(path);
        if found.is_none() {
            let cure = "add it; configs/template.json of LLMCompass has every key";
            self.faults.push(FileFault::new(path, "nothing", "this figure is needed", cure));
        }
        found
    }

    /// Reads a positive number within `range`; returns 1 after a fault.
    fn positive_number(&mut self, path: &str, range: RangeInclusive<f64>) -> f64 {
        let Some(value) = self.required_value(path) else { return 1.0 };
        match value.as_f64() {
            Some(number) if range.contains(&number) => number,
            Some(number) if number > 0.0 => {
                let limit = limits::describe_range(*range.start(), *range.end());
                self.faults.push(FileFault::new(path, value, limit, "correct it"));
                1.0
            }
            _ => {
                self.faults.push(FileFault::new(path, value, "must be a positive number", "correct it"));
                1.0
            }
        }
    }

    /// Reads a positive whole number of at most [`LARGEST_COUNT`]; returns 1 after a fault.
    fn positive_count(&mut self, path: &str) -> u32 {
        let number = self.positive_number(path, f64::MIN_POSITIVE..=f64::from(LARGEST_COUNT));
        if number.fract() == 0.0 {
            return number as u32;
        }
        self.faults.push(FileFault::new(
            path,
            number,
            format!("must be a whole number of at most {LARGEST_COUNT}"),
            "correct it",
        ));
        1
    }

    /// Checks a product of figures against its range, unless there are faults already. `unit` describes the product in
    /// the message.
    fn capped_product(&mut self, paths: &[&str], product: f64, range: RangeInclusive<f64>, unit: &str) {
        if self.faults.is_empty() && !range.contains(&product) {
            let limit = format!("their product {unit} {}", limits::describe_range(*range.start(), *range.end()));
            self.faults.push(FileFault::new(
                paths.join(" x "),
                limits::format_number(product),
                limit,
                "correct one of them",
            ));
        }
    }

    fn text_at(&mut self, path: &str) -> &'a str {
        let Some(value) = self.required_value(path) else { return "" };
        value.as_str().unwrap_or_else(|| {
            self.faults.push(FileFault::new(path, value, "must be a text", "put it in quotes"));
            ""
        })
    }

    /// Returns the value that `known` has for the text at `path`; `None` after a fault.
    fn choice_at<T: Copy>(&mut self, path: &str, known: &[(&str, T)]) -> Option<T> {
        let before = self.faults.len();
        let text = self.text_at(path);
        let found = known.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
        if found.is_none() && self.faults.len() == before {
            let names = known.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
            self.faults.push(FileFault::new(path, text, format!("must be one of {names}"), "correct it"));
        }
        found
    }
}

const NODES: [(&str, ProcessNode); 10] = [
    ("45nm", ProcessNode::N45),
    ("28nm", ProcessNode::N28),
    ("22nm", ProcessNode::N22),
    ("16nm", ProcessNode::N16),
    ("7nm", ProcessNode::N7),
    ("8nm", ProcessNode::N8),
    ("6nm", ProcessNode::N6),
    ("5nm", ProcessNode::N5),
    ("4nm", ProcessNode::N4),
    ("3nm", ProcessNode::N3),
];

/// Accepted counts and bytes per cycle that multiply another figure.
const FACTOR: RangeInclusive<f64> = 1e-3..=1e9;
/// Accepted bytes of a packet, or of its header.
const PACKET: RangeInclusive<f64> = 1e-3..=1e9;
/// Accepted bits per second of a pin, up to a million times the fastest ones' 2e11.
const PIN: RangeInclusive<f64> = 1.0..=1e17;

/// Returns the accepted range of a memory's capacity, counted in units of `unit` bytes.
fn capacity_limits(unit: f64) -> RangeInclusive<f64> {
    1.0 / unit..=limits::LARGEST_MEMORY as f64 / unit
}

/// Data types of arrays and lanes, with their bytes.
const TYPES: [(&str, f64); 5] = [("fp32", 4.0), ("bf16", 2.0), ("fp16", 2.0), ("fp8", 1.0), ("int8", 1.0)];

fn rates_of_types(data_type: &str, rate: f64) -> PerDataType<f64> {
    let mut rates = PerDataType::default();
    let slot = match data_type {
        "fp32" => &mut rates.fp32,
        "bf16" => &mut rates.bf16,
        "fp8" => &mut rates.fp8,
        "int8" => &mut rates.int8,
        _ => &mut rates.fp16,
    };
    *slot = Some(rate);
    rates
}

/// The generation of device memory in the examples of LLMCompass.
const HBM: HbmGeneration = HbmGeneration::Hbm2e;

fn build_accelerator(r: &mut CompassReader<'_>) -> Accelerator {
    let clock = Hertz(r.positive_number("device.frequency_Hz", limits::CLOCK));
    let node = r.choice_at("device.compute_chiplet.process_node", &NODES).unwrap_or(ProcessNode::N7);
    let chiplets = r.positive_count("device.compute_chiplet_count");
    let cores = r.positive_count("device.compute_chiplet.core_count").saturating_mul(chiplets);
    let paths = ["device.compute_chiplet_count", "device.compute_chiplet.core_count"];
    r.capped_product(&paths, f64::from(cores), 1.0..=f64::from(LARGEST_COUNT), "in cores");
    let (tensor, fed) = build_tensor_cores(r, cores);
    let energy = default_energy_model(EnergyPoint { constants: &Constants::nominal(), node, clock });
    Accelerator {
        name: r.text_at("name").to_owned(),
        clock,
        lowered: None,
        cell_rate_limit: None,
        rates_are_measured: false,
        sustained_clock_fraction: 1.0,
        tensor,
        vector: VectorCores {
            cores,
            lanes: lanes_per_core(r, tensor.arrays_per_core),
            buffer: None,
            transcendentals_per_cycle: 0.0,
        },
        on_chip: build_on_chip_memories(r, clock, node, fed),
        hbm: build_device_memory(r, clock, node),
        host: None,
        storage: None,
        pairing: Pairing::SameIndex,
        exclusivity: Exclusivity::AllCores,
        collectives_overlap: false,
        area_model: AreaModel::Undisclosed,
        energy,
        calibration: Calibration::default(),
        library: None,
        attention: BTreeMap::new(),
        streams: None,
        published: PublishedFigures::default(),
        origin: ChipOrigin { usual_stack: Some(USUAL_STACK.to_owned()), ..ChipOrigin::default() },
        constants: Constants::nominal(),
    }
}

/// Reads the arrays. Returns them with the bytes per cycle that keep the arrays of one core busy.
fn build_tensor_cores(r: &mut CompassReader<'_>, cores: u32) -> (TensorCores, f64) {
    let array = |key: &str| format!("device.compute_chiplet.core.systolic_array.{key}");
    let arrays_per_core = r.positive_count("device.compute_chiplet.core.sublane_count");
    let (rows, columns) = (r.positive_count(&array("array_height")), r.positive_count(&array("array_width")));
    let rate = r.positive_number(&array("mac_per_cycle"), FACTOR);
    let bytes = r.choice_at(&array("data_type"), &TYPES).unwrap_or(2.0);
    let tensor = TensorCores {
        cores,
        arrays_per_core,
        rows,
        columns,
        dataflow: Dataflow::OutputStationary,
        preload: true,
        accumulation: Accumulation::default(),
        macs_per_unit_per_cycle: rates_of_types(
            r.value_at(&array("data_type")).and_then(Value::as_str).unwrap_or("fp16"),
            rate,
        ),
    };
    let edges = f64::from(rows) + f64::from(columns);
    (tensor, f64::from(arrays_per_core) * edges * rate.max(1.0) * bytes)
}

/// Reads the lanes of a core: its results per cycle. `flop_per_cycle` counts a multiply-accumulate as two operations.
fn lanes_per_core(r: &mut CompassReader<'_>, sublanes: u32) -> u32 {
    let unit = |key: &str| format!("device.compute_chiplet.core.vector_unit.{key}");
    let width = f64::from(r.positive_count(&unit("vector_width")));
    let flops = r.positive_number(&unit("flop_per_cycle"), FACTOR);
    let lanes = (f64::from(sublanes) * width * (flops / 2.0).max(1.0)).round();
    let paths = ["device.compute_chiplet.core.sublane_count", &unit("vector_width"), &unit("flop_per_cycle")];
    r.capped_product(&paths, lanes, 1.0..=f64::from(LARGEST_COUNT), "by 2, the lanes of a core,");
    lanes.min(f64::from(u32::MAX)) as u32
}

fn build_on_chip_memories(r: &mut CompassReader<'_>, clock: Hertz, node: ProcessNode, fed: f64) -> Vec<MemoryLevel> {
    let sram = r.positive_number("device.compute_chiplet.core.SRAM_KB", capacity_limits(KIB)) * KIB;
    let buffer = r.positive_number("device.io.global_buffer_MB", capacity_limits(MIB)) * MIB;
    let per_cycle = r.positive_number("device.io.global_buffer_bandwidth_per_cycle_byte", FACTOR);
    let paths = ["device.io.global_buffer_bandwidth_per_cycle_byte", "device.frequency_Hz"];
    r.capped_product(&paths, per_cycle * clock.0, limits::RATE, "in B/s");
    vec![
        build_level("sram", MemoryScope::Core, sram, fed * clock.0, 2, clock, node),
        build_level("global_buffer", MemoryScope::Chip, buffer, per_cycle * clock.0, 1, clock, node),
    ]
}

fn build_device_memory(r: &mut CompassReader<'_>, clock: Hertz, node: ProcessNode) -> MemoryLevel {
    let capacity = r.positive_number("device.memory.total_capacity_GB", capacity_limits(GIB)) * GIB;
    let channels = r.positive_number("device.io.memory_channel_active_count", FACTOR);
    let pins = r.positive_number("device.io.pin_count_per_channel", FACTOR);
    let bits = r.positive_number("device.io.bandwidth_per_pin_bit", PIN);
    let paths =
        ["device.io.memory_channel_active_count x device.io.pin_count_per_channel", "device.io.bandwidth_per_pin_bit"];
    r.capped_product(&paths, channels * pins * bits / 8.0, limits::RATE, "in B/s, bits by 8,");
    build_level("memory", MemoryScope::Chip, capacity, channels * pins * bits / 8.0, 1, clock, node)
}

fn build_level(
    name: &str,
    scope: MemoryScope,
    capacity: f64,
    bytes_per_second: f64,
    ports: u32,
    clock: Hertz,
    node: ProcessNode,
) -> MemoryLevel {
    let capacity = Bytes(capacity.round() as u64);
    let (read, write) =
        default_energy_per_byte(EnergyPoint { constants: &Constants::nominal(), node, clock }, name, capacity, HBM);
    MemoryLevel {
        name: name.to_owned(),
        scope,
        kind: MemoryKind::Cache,
        capacity,
        read_bandwidth: BytesPerSecond(bytes_per_second),
        write_bandwidth: BytesPerSecond(bytes_per_second),
        ports,
        latency: Seconds::ZERO,
        read_energy_per_byte: read,
        write_energy_per_byte: write,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use sim::kernel::DataType;

    const DEVICE: &str = include_str!("../tests/llm_compass/a100_like.json");

    fn changed(path: &str, value: Option<Value>) -> String {
        let mut json: Value = serde_json::from_str(DEVICE).unwrap();
        let (table, key) = path.rsplit_once('.').unwrap();
        let table = table.split('.').fold(&mut json, |at, key| at.get_mut(key).unwrap()).as_object_mut().unwrap();
        assert!(table.remove(key).is_some(), "{path}");
        table.extend(value.map(|value| (key.to_owned(), value)));
        json.to_string()
    }

    #[test]
    fn figures_are_read_in_their_units() {
        let chip = read_chip(DEVICE, "a100_like.json").unwrap().accelerator;
        let tflops = |data_type| chip.peak_flops(data_type).map(|peak| (peak.0 / 1e10).round() / 100.0);
        assert_eq!((tflops(DataType::Fp16), tflops(DataType::Int8)), (Some(311.87), None));
        assert_eq!(chip.hbm.read_bandwidth, BytesPerSecond(2.048e12));
        assert_eq!(chip.memory_capacity(), Bytes(80 << 30));
        assert_eq!(chip.local_buffer().unwrap().capacity, Bytes(192 << 10));
        assert_eq!(chip.global_buffer().unwrap().read_bandwidth, BytesPerSecond(5120.0 * 1.41e9));
        assert_eq!((chip.vector.cores, chip.vector.lanes), (108, 256));
        let chiplets = changed("device.compute_chiplet_count", Some(2.into()));
        assert_eq!(super::read_chip(&chiplets, "c.json").unwrap().accelerator.tensor.cores, 216);
    }

    #[test]
    fn links_are_a_fabric() {
        use sim::kernel::{Collective, CollectiveKind, RankGroup};
        let full = read_fabric(DEVICE, "a100_like.json").unwrap();
        assert_eq!((full.device_count(), full.tiers[0].bandwidth), (4, BytesPerSecond(300e9)));
        assert!((full.tiers[0].achieved_fraction - 256.0 / 272.0).abs() < 1e-12);
        let ring = read_fabric(&changed("interconnect.topology", Some("RING".into())), "r.json").unwrap();
        let group = RankGroup { ranks: 4, stride: 1 };
        let all_reduce = Collective { kind: CollectiveKind::AllReduce, bytes: Bytes(1 << 30), group };
        // Each device sends 3/4 of the buffer twice (reduce-scatter, all-gather) through its port at the achieved rate.
        let bound = 1.5 * f64::from(1 << 30) / (300e9 * 256.0 / 272.0);
        for fabric in [full, ring] {
            let time = fabric.cost_of_collective(&all_reduce).latency.0;
            assert!((bound..bound * 1.1).contains(&time), "{}: {time} {bound}", fabric.name);
        }
        let error =
            read_fabric(&changed("interconnect.topology", Some("MESH".into())), "m.json").unwrap_err().to_string();
        assert_eq!(error, "m.json: interconnect.topology = MESH: must be one of FC, RING; correct it");
    }

    #[test]
    fn every_fault_is_named_by_its_path() {
        let core = "device.compute_chiplet.core";
        for (path, value, expected) in [
            (format!("{core}.SRAM_KB"), None, "SRAM_KB = nothing: this figure is needed; add it"),
            (
                format!("{core}.sublane_count"),
                Some(0.into()),
                "sublane_count = 0: must be a positive number; correct it",
            ),
            (
                "device.frequency_Hz".into(),
                Some((-1).into()),
                "frequency_Hz = -1: must be a positive number; correct it",
            ),
            ("device.compute_chiplet.core_count".into(), Some(1.5.into()), "core_count = 1.5: must be a whole number"),
            (
                format!("{core}.systolic_array.data_type"),
                Some("fp4".into()),
                "data_type = fp4: must be one of fp32, bf16,",
            ),
            ("device.compute_chiplet.process_node".into(), Some("7".into()), "process_node = 7: must be one of 45nm,"),
            ("device.frequency_Hz".into(), Some(1e30.into()), ": must be from 1000 to 1e11; correct it"),
            (
                format!("{core}.vector_unit.vector_width"),
                Some(1_000_000.into()),
                "vector_unit.flop_per_cycle = 8000000: their product by 2, the lanes of a core, must be from 1 to 1048576; correct one",
            ),
            (
                "device.io.global_buffer_MB".into(),
                Some(0.1.into()),
                "memory.sram.capacity = 196608 B: exceeds the 104858 B of",
            ),
        ] {
            let error = read_chip(&changed(&path, value), "d.json").unwrap_err();
            assert!(error.to_string().starts_with("d.json: ") && error.to_string().contains(expected), "{error}");
            assert_eq!(error.faults.len(), 1, "{error}");
        }
        let error = read_chip("{", "d.json").unwrap_err().to_string();
        assert!(error.contains("must be JSON") && error.ends_with("(.json)"), "{error}");
    }
}
