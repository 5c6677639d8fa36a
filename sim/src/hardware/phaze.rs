//! PHAZE's design space (Wang et al., *Integrated Hardware Architecture and Device Placement Search*, ICML 2024):
//! builds an accelerator from its dimensions, cheaply enough for a search.
//!
//! The dimensions fix the same parts as in PHAZE's `Estimator/architecture.py`. A tensor core has one `width` x `depth`
//! array and a local buffer of max(1 KiB, width x depth x 16 B). A vector core has `width` lanes and max(1 KiB, width x
//! 16 B). There is one global buffer. PHAZE gives every chip 64, 256 and 128 words per cycle from these memories,
//! however large the chip; more cores then gain nothing. Here bandwidth follows the hardware:
//!
//! - A **local buffer** feeds its array's edges. It reads [`ELEMENT_BYTES`] per cycle for each of the `width` rows
//!   (streaming operand) and `depth` columns (stationary operand being preloaded). It writes as much for refills, plus
//!   4-byte partial sums from each column.
//! - The **global buffer** has one port per core and never more bandwidth than its banks. A tensor core's port reads
//!   [`ELEMENT_BYTES`] per edge lane and cycle and writes half of that. For comparison, TPU v4i's CMEM serves four 128
//!   x 128 arrays with 2048 GB/s reads and 1024 GB/s writes at 1.05 GHz, 1.9 B per edge lane and cycle (accelforge,
//!   `examples/arches/tpu_v4i.yaml`). A vector core's port reads two operands per lane and cycle and writes one. A bank
//!   is 512 KiB with 64 B per cycle: an L2 slice of the A100, 40 MiB and 5120 B per cycle in total (NVIDIA A100 white
//!   paper).
//! - **HBM** has TPU v4's bandwidth, whatever its capacity.
//!
//! All bandwidths are monotone: more cores, wider arrays or a larger buffer never reduce them.

use super::energy::{EnergyPoint, default_energy_model, default_energy_per_byte, default_static_power};
use super::{
    Accelerator, AreaModel, Calibration, ChipOrigin, Dataflow, Exclusivity, MemoryKind, MemoryLevel, MemoryScope,
    Pairing, PerDataType, ProcessNode, PublishedFigures,
};
use super::{
    Accumulation, ChipDocument, Constants, FieldValue, HardwareError, HbmGeneration, TensorCores, VectorCores,
};
use crate::units::{Bytes, BytesPerSecond, Hertz, Seconds};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::sync::Arc;

/// Bytes of an operand at the array's edge (bf16, as PHAZE trains).
pub const ELEMENT_BYTES: f64 = 2.0;
/// Bytes of a partial sum (fp32).
const PARTIAL_SUM_BYTES: f64 = 4.0;
/// A global-buffer bank (an A100 L2 slice).
const BANK_BYTES: f64 = 524_288.0;
/// Bytes per cycle of a bank (an A100 L2 slice).
const BANK_BYTES_PER_CYCLE: f64 = 64.0;

/// A point of PHAZE's design space.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PhazeConfig {
    /// Tensor cores, of one array each.
    pub num_tc: u32,
    /// Vector cores.
    pub num_vc: u32,
    /// Rows of an array.
    pub width: u32,
    /// Columns of an array.
    pub depth: u32,
    /// Lanes of a vector core (PHAZE: equal to `width`).
    pub width_vc: u32,
    /// The global buffer.
    pub global_buffer: Bytes,
    /// Capacity of HBM.
    pub hbm: Bytes,
}

impl fmt::Display for PhazeConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { num_tc, num_vc, width, depth, width_vc, .. } = self;
        let (buffer, hbm) = (self.global_buffer.0 >> 20, self.hbm.gib());
        write!(f, "{num_tc} x {width}x{depth} TC, {num_vc} x {width_vc} VC, {buffer} MiB, {hbm} GiB HBM")
    }
}

impl PhazeConfig {
    /// The TPUv4-like point of PHAZE's area limit and comparison: 8 tensor cores of 128 x 128, 2 vector cores of 128
    /// lanes, 128 MiB, and TPU v4's 32 GiB of HBM.
    #[must_use]
    pub fn tpu_v4_like() -> Self {
        Self {
            num_tc: 8,
            num_vc: 2,
            width: 128,
            depth: 128,
            width_vc: 128,
            global_buffer: Bytes(128 << 20),
            hbm: Bytes(32 << 30),
        }
    }

    /// The local buffer of a tensor core: max(1 KiB, width x depth x 16 B).
    #[must_use]
    pub fn tensor_local_buffer(&self) -> Bytes {
        Bytes((u64::from(self.width) * u64::from(self.depth) * 16).max(1024))
    }

    /// The local buffer of a vector core: max(1 KiB, lanes x 16 B).
    #[must_use]
    pub fn vector_local_buffer(&self) -> Bytes {
        Bytes((u64::from(self.width_vc) * 16).max(1024))
    }

    /// Returns the bytes per cycle that the global buffer reads and writes.
    #[must_use]
    pub fn global_buffer_bytes_per_cycle(&self) -> (f64, f64) {
        let banks = (self.global_buffer.as_f64() / BANK_BYTES).max(1.0) * BANK_BYTES_PER_CYCLE;
        let edge = f64::from(self.width) + f64::from(self.depth);
        let tensor = f64::from(self.num_tc) * edge * ELEMENT_BYTES;
        let vector = f64::from(self.num_vc) * f64::from(self.width_vc) * 2.0 * ELEMENT_BYTES;
        let read = (tensor + vector).min(banks);
        (read, read / 2.0)
    }

    /// Returns a name made of the dimensions.
    fn name(&self) -> String {
        let (buffer, hbm) = (self.global_buffer.0 >> 20, self.hbm.gib());
        format!("tc{}_vc{}_{}x{}_glb{buffer}MiB_hbm{hbm:.0}GiB", self.num_tc, self.num_vc, self.width, self.depth)
    }
}

/// Returns the chip file of a design point: PHAZE's own file with the dimensions set. It reads back as
/// [`design_accelerator`] builds it.
///
/// # Errors
/// A built-in file that cannot be read; the tests read them all.
pub fn design_document(config: &PhazeConfig) -> Result<ChipDocument, HardwareError> {
    let chip = design_accelerator(config);
    let mut document = ChipDocument::of_built_in_chip("phaze_tpuv4")?.strip_measured(true);
    document.set_name(&chip.name, &format!("A point of PHAZE's design space: {config}"));
    let kib = |bytes: Bytes| bytes.as_f64() / 1024.0;
    let (rows, columns) = (f64::from(config.width), f64::from(config.depth));
    let feed = ELEMENT_BYTES * (rows + columns);
    let (global_read, global_write) = config.global_buffer_bytes_per_cycle();
    let settings = [
        ("tensor.cores", f64::from(config.num_tc)),
        ("tensor.rows", rows),
        ("tensor.columns", columns),
        ("vector.cores", f64::from(config.num_vc)),
        ("vector.lanes", f64::from(config.width_vc)),
        ("vector.buffer_kib", kib(config.vector_local_buffer())),
        ("memory.local_buffer.capacity_kib", kib(config.tensor_local_buffer())),
        ("memory.local_buffer.read_bytes_per_cycle", feed),
        ("memory.local_buffer.write_bytes_per_cycle", feed + PARTIAL_SUM_BYTES * columns),
        ("memory.global_buffer.capacity_mib", kib(config.global_buffer) / 1024.0),
        ("memory.global_buffer.read_bytes_per_cycle", global_read),
        ("memory.global_buffer.write_bytes_per_cycle", global_write),
        ("memory.hbm.capacity_gib", config.hbm.gib()),
        ("energy.static_w", chip.energy.static_power.0),
    ];
    for (key, value) in settings {
        let invalid = |fault| HardwareError::Invalid { file: chip.name.clone(), faults: vec![fault] };
        document.set_field(key, &FieldValue::Number(value)).map_err(invalid)?;
    }
    Ok(document)
}

/// Returns the accelerator of a design point. It reads no file and searches nothing, so a search can call it for every
/// point of a space.
#[must_use]
pub fn design_accelerator(config: &PhazeConfig) -> Accelerator {
    let constants = Constants::nominal();
    let clock = Hertz(1.05e9); // TPU v4, and PHAZE's text (which misspells it by a factor of 1000)
    let point = EnergyPoint { constants: &constants, node: ProcessNode::N22, clock };
    let [local_buffer, global_buffer, hbm] = memory_levels(config, point);
    let mut accelerator = Accelerator {
        name: config.name(),
        clock,
        lowered: None,
        cell_rate_limit: None,
        rates_are_measured: false,
        sustained_clock_fraction: 1.0,
        tensor: TensorCores {
            cores: config.num_tc,
            arrays_per_core: 1,
            rows: config.width,
            columns: config.depth,
            dataflow: Dataflow::WeightStationary,
            preload: true,
            // The local buffer writes 4 B per column and cycle more than its refills: PHAZE's sums take no time.
            accumulation: Accumulation::DedicatedPorts,
            macs_per_unit_per_cycle: PerDataType { bf16: Some(1.0), fp16: Some(1.0), ..PerDataType::default() },
        },
        vector: VectorCores {
            cores: config.num_vc,
            lanes: config.width_vc,
            buffer: Some(config.vector_local_buffer()),
            transcendentals_per_cycle: 0.0,
        },
        on_chip: vec![local_buffer, global_buffer],
        hbm,
        host: None,
        storage: None,
        pairing: Pairing::AnyPair,
        exclusivity: Exclusivity::AllCores,
        collectives_overlap: false,
        area_model: AreaModel::Phaze22nm,
        energy: default_energy_model(point),
        calibration: Calibration::default(),
        library: None,
        attention: std::collections::BTreeMap::new(),
        streams: None,
        published: PublishedFigures::default(),
        origin: ChipOrigin {
            built_in: None,
            usual_stack: Some("megatron".to_owned()),
            usual_fabric: Some("phaze_flat".to_owned()),
        },
        constants: Arc::clone(&constants),
    };
    // If the area table cannot be read, static power stays zero here; asking for the area returns the error.
    accelerator.energy.static_power = default_static_power(&accelerator).unwrap_or_default();
    accelerator
}

/// Returns the local buffers, the global buffer and HBM, with the default energies at `point`.
fn memory_levels(config: &PhazeConfig, point: EnergyPoint<'_>) -> [MemoryLevel; 3] {
    let per_cycle = |bytes: f64| BytesPerSecond(bytes * point.clock.0);
    let (rows, columns) = (f64::from(config.width), f64::from(config.depth));
    let feed = ELEMENT_BYTES * (rows + columns);
    let local_write = feed + PARTIAL_SUM_BYTES * columns;
    let (global_read, global_write) = config.global_buffer_bytes_per_cycle();
    let hbm_bandwidth = BytesPerSecond(1.2e12); // TPU v4: cloud.google.com/tpu/docs/v4, 1200 GB/s
    let level = |name: &str, capacity, read_bandwidth, write_bandwidth| {
        let (read_energy_per_byte, write_energy_per_byte) =
            default_energy_per_byte(point, name, capacity, HbmGeneration::Hbm2);
        MemoryLevel {
            name: name.to_owned(),
            scope: MemoryScope::Chip,
            // PHAZE moves all data through its global buffer.
            kind: MemoryKind::Scratchpad { bypass: false },
            capacity,
            read_bandwidth,
            write_bandwidth,
            ports: 2,
            latency: Seconds::ZERO,
            read_energy_per_byte,
            write_energy_per_byte,
        }
    };
    let local = level("local_buffer", config.tensor_local_buffer(), per_cycle(feed), per_cycle(local_write));
    let global = level("global_buffer", config.global_buffer, per_cycle(global_read), per_cycle(global_write));
    let hbm = level("hbm", config.hbm, hbm_bandwidth, hbm_bandwidth);
    [MemoryLevel { scope: MemoryScope::Core, ..local }, global, MemoryLevel { ports: 1, ..hbm }]
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::super::{ChipTemplate, chip_area, find_faults};
    use super::*;
    use crate::kernel::DataType;
    use proptest::prelude::*;

    #[test]
    fn the_template_is_the_design_point() {
        let template = &ChipTemplate::find_built_in("phaze_tpuv4").unwrap().accelerator;
        let mut point = design_accelerator(&PhazeConfig::tpu_v4_like());
        point.name.clone_from(&template.name);
        point.published = template.published;
        point.origin.built_in.clone_from(&template.origin.built_in);
        assert!((point.energy.static_power.0 / template.energy.static_power.0 - 1.0).abs() < 0.01);
        point.energy.static_power = template.energy.static_power;
        assert_eq!(&point, template);
    }

    fn config() -> impl Strategy<Value = PhazeConfig> {
        (0..=12u32, 0..=12u32, 1..=8u32, 1..=8u32, 1..=7u32, 0..3usize).prop_map(|(tc, vc, w, d, glb, hbm)| {
            PhazeConfig {
                num_tc: 1 << tc,
                num_vc: 1 << vc,
                width: 1 << w,
                depth: 1 << d,
                width_vc: 1 << w,
                global_buffer: Bytes(1 << (20 + glb)),
                hbm: Bytes::from_gib([32.0, 64.0, 80.0][hbm]),
            }
        })
    }

    /// Returns the configuration with one dimension doubled.
    fn doubled(config: &PhazeConfig, dimension: usize) -> PhazeConfig {
        let mut larger = *config;
        match dimension {
            0 => larger.num_tc *= 2,
            1 => larger.num_vc *= 2,
            2 => larger.width *= 2,
            3 => larger.depth *= 2,
            4 => larger.width_vc *= 2,
            _ => larger.global_buffer = larger.global_buffer * 2,
        }
        larger
    }

    proptest! {
        #[test]
        fn every_point_is_sound(config in config()) {
            let faults = find_faults(&design_accelerator(&config));
            prop_assert!(faults.is_empty(), "{faults:?}");
        }

        #[test]
        fn larger_is_never_smaller_or_narrower(config in config(), dimension in 0..6usize) {
            let larger = doubled(&config, dimension);
            let (a, b) = (design_accelerator(&config), design_accelerator(&larger));
            prop_assert!(chip_area(&b).unwrap().total_area() > chip_area(&a).unwrap().total_area());
            for (inner, outer) in a.memory_levels().zip(b.memory_levels()) {
                let (few, many) = (f64::from(a.instance_count(inner)), f64::from(b.instance_count(outer)));
                prop_assert!(outer.read_bandwidth.0 * many >= inner.read_bandwidth.0 * few);
                prop_assert!(outer.write_bandwidth.0 * many >= inner.write_bandwidth.0 * few);
                prop_assert!(outer.capacity >= inner.capacity);
            }
        }
    }

    #[test]
    fn the_tpu_v4_like_point_has_tpu_v4s_peak() {
        let chip = design_accelerator(&PhazeConfig::tpu_v4_like());
        let peak = chip.peak_flops(DataType::Bf16).unwrap();
        assert!((peak.0 / 275e12 - 1.0).abs() < 0.01, "{peak}");
        assert_eq!(chip.local_buffer().unwrap().capacity, Bytes(256 << 10));
        assert_eq!(chip.global_buffer().unwrap().capacity, Bytes(128 << 20));
        assert_eq!(chip.level_count(), 3);
        assert_eq!(chip.memory_levels().last().unwrap().name, "hbm");
    }
}
