//! A system's processor as a chip.

use super::read::LARGEST_GIB;
use super::{CalculonEngine, CalculonMemory, CalculonSystem};
use sim::files::FileError;
use sim::hardware::{
    Accelerator, AreaModel, Calibration, ChipOrigin, Constants, Dataflow, EnergyModel, Exclusivity, HostLink,
    MemoryKind, MemoryLevel, Pairing,
};
use sim::hardware::{
    Accumulation, ChipTemplate, MemoryScope, PerDataType, PublishedFigures, TensorCores, VectorCores, find_faults,
};
use sim::kernel::DataType;
use sim::limits::format_number;
use sim::units::{Bytes, BytesPerSecond, Hertz, Joules, Seconds};
use std::collections::BTreeMap;

/// Lanes over which the vector engine's rate is spread; at a clock of 1.2 GHz they give 78.6 TFLOP/s. Only the product
/// matters.
const LANES: u32 = 1 << 16;
/// Bandwidth in bytes per second of a memory that never limits: a million times an HBM stack's.
const NEVER_LIMITS: f64 = 1e18;
/// The usual software stack: Calculon models Megatron-LM (Isaev et al., SC 2023).
const USUAL_STACK: &str = "megatron";

/// The second memory as the host's. The device updates offloaded data there.
fn host_link(host: &CalculonMemory) -> HostLink {
    let bandwidth = BytesPerSecond(host.bandwidth.0 * host.efficiency.largest_efficiency());
    HostLink { bandwidth, capacity: host.capacity, memory: None }
}

impl CalculonSystem {
    /// The processor as a chip, with Calculon's assumptions: engines reach the stated fraction of their peak for every
    /// shape, and every operand of a product is read once from the device's memory. `data_type` selects the curves
    /// where types differ; by default it is the first of fp16, bf16, fp8, fp32 that the matrix engine has. Area and
    /// energy are not stated and therefore zero.
    ///
    /// # Errors
    /// A type that an engine does not have, or figures that are impossible for a chip.
    pub fn to_chip(&self, data_type: Option<DataType>) -> Result<ChipTemplate, FileError> {
        let matrix = self.engine_of_type("matrix", &self.matrix, data_type)?;
        let vector = self.engine_of_type("vector", &self.vector, data_type.or(Some(matrix.data_type)))?;
        let clock = Hertz(vector.peak.0 / f64::from(LANES));
        let mut rates = PerDataType::default();
        for engine in &self.matrix {
            // A multiply-accumulate is two operations.
            set_field(&mut rates, engine.data_type, engine.peak.0 / 2.0 / clock.0);
        }
        let accelerator = Accelerator {
            name: self.name().to_owned(),
            clock,
            lowered: None,
            cell_rate_limit: None,
            rates_are_measured: false,
            sustained_clock_fraction: 1.0,
            tensor: TensorCores {
                cores: 1,
                arrays_per_core: 1,
                rows: 1,
                columns: 1,
                dataflow: Dataflow::OutputStationary,
                preload: true,
                accumulation: Accumulation::default(),
                macs_per_unit_per_cycle: rates,
            },
            vector: VectorCores { cores: 1, lanes: LANES, buffer: None },
            on_chip: vec![memory_level(
                "operands",
                MemoryScope::Core,
                self.memory.capacity,
                BytesPerSecond(NEVER_LIMITS),
                2,
            )],
            hbm: memory_level("mem1", MemoryScope::Chip, self.memory.capacity, self.memory.bandwidth, 1),
            host: self.host.as_ref().map(host_link),
            storage: None,
            pairing: Pairing::SameIndex,
            exclusivity: Exclusivity::AllCores,
            collectives_overlap: false,
            area_model: AreaModel::Undisclosed,
            energy: EnergyModel::default(),
            calibration: Calibration {
                hbm_achieved_fraction: self.memory.efficiency.largest_efficiency(),
                tensor_achieved_fraction: matrix.efficiency.largest_efficiency(),
                vector_achieved_fraction: vector.efficiency.largest_efficiency(),
                overlap_fraction: if self.roofline { 1.0 } else { 0.0 },
                ..Calibration::default()
            },
            library: None,
            attention: BTreeMap::new(),
            streams: None,
            published: PublishedFigures::default(),
            origin: ChipOrigin { usual_stack: Some(USUAL_STACK.to_owned()), ..ChipOrigin::default() },
            constants: Constants::nominal(),
        };
        let faults = find_faults(&accelerator);
        if !faults.is_empty() {
            return Err(FileError { file: self.file.clone(), faults });
        }
        Ok(ChipTemplate {
            name: accelerator.name.clone(),
            aliases: Vec::new(),
            description: format!("processor of Calculon's system {}", self.file),
            accelerator,
            sources: BTreeMap::from([(
                "all".to_owned(),
                format!("{}, and where it is silent Calculon's own assumptions", self.file),
            )]),
            fitted_on: BTreeMap::new(),
        })
    }

    fn engine_of_type<'a>(
        &self,
        key: &str,
        engines: &'a [CalculonEngine],
        data_type: Option<DataType>,
    ) -> Result<&'a CalculonEngine, FileError> {
        let found = engines.iter().find(|engine| data_type.is_none_or(|wanted| engine.data_type == wanted));
        found.ok_or_else(|| {
            let known: Vec<String> = engines.iter().map(|engine| engine.data_type.to_string()).collect();
            let asked = data_type.map_or_else(String::new, |wanted| wanted.to_string());
            let limit = format!("no rate of {asked}; it has {}", known.join(", "));
            let fault = sim::hardware::FileFault::new(key, "nothing", limit, "add its rate, or run in another type");
            FileError { file: self.file.clone(), faults: vec![fault] }
        })
    }

    /// The memories without end, one line each. As a chip they have the largest capacity that is modelled.
    #[must_use]
    pub fn list_endless_memories(&self) -> Vec<String> {
        let memories = [("mem1", Some(&self.memory)), ("mem2", self.host.as_ref())];
        let beyond = |(name, memory): (&str, Option<&CalculonMemory>)| {
            let gib = format_number(memory?.beyond_gib?);
            let most = format_number(LARGEST_GIB);
            Some(format!("{name}.GiB = {gib}: a memory without end, taken as {most} GiB"))
        };
        memories.into_iter().filter_map(beyond).collect()
    }

    /// The parts of the file that the chip does not model, one line each.
    #[must_use]
    pub fn list_unmodelled_of_chip(&self) -> Vec<String> {
        let mut lines = self.list_endless_memories();
        let mut curve = |key: String, points: &[(f64, f64)]| {
            let smaller = points.get(1..).unwrap_or_default();
            if let (Some((from, _)), false) = (points.first(), smaller.is_empty()) {
                lines.push(format!(
                    "{key}: the steps below {from:.3e}; this model's tiles and launches give the losses of small operations"
                ));
            }
        };
        for (name, engines) in [("matrix", &self.matrix), ("vector", &self.vector)] {
            for engine in engines {
                curve(format!("{name} {} efficiency by FLOPs", engine.data_type), &engine.efficiency.0);
            }
        }
        curve("mem1 efficiency by bytes".to_owned(), &self.memory.efficiency.0);
        if let Some(host) = &self.host {
            curve("mem2 efficiency by bytes".to_owned(), &host.efficiency.0);
        }
        if !self.roofline {
            lines.push(
                "processing_mode no_overlap: in a step the next kernel's data moves while one computes".to_owned(),
            );
        }
        lines
    }
}

fn set_field(rates: &mut PerDataType<f64>, data_type: DataType, rate: f64) {
    let slot = match data_type {
        DataType::Fp32 => &mut rates.fp32,
        DataType::Bf16 => &mut rates.bf16,
        DataType::Fp16 => &mut rates.fp16,
        DataType::Fp8 => &mut rates.fp8,
        DataType::Int8 => &mut rates.int8,
        DataType::Mxfp8 => &mut rates.mxfp8,
        DataType::Nvfp4 => &mut rates.nvfp4,
    };
    *slot = Some(rate);
}

fn memory_level(name: &str, scope: MemoryScope, capacity: Bytes, bandwidth: BytesPerSecond, ports: u32) -> MemoryLevel {
    MemoryLevel {
        name: name.to_owned(),
        scope,
        kind: MemoryKind::Cache,
        capacity,
        read_bandwidth: bandwidth,
        write_bandwidth: bandwidth,
        ports,
        latency: Seconds::ZERO,
        read_energy_per_byte: Joules(0.0),
        write_energy_per_byte: Joules(0.0),
    }
}
