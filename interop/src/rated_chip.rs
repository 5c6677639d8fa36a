//! A chip that another tool describes by its rates: peaks by data type, one memory, and the achieved fraction of each.

use sim::files::FileError;
use sim::hardware::{
    Accelerator, Accumulation, AreaModel, Calibration, ChipOrigin, ChipTemplate, Constants, Dataflow, EnergyModel,
    Exclusivity, HostLink, MemoryKind, MemoryLevel, MemoryScope, Pairing, PerDataType, PublishedFigures, TensorCores,
    VectorCores, find_faults,
};
use sim::units::{Bytes, BytesPerSecond, Hertz, Joules, Seconds, Watts};
use std::collections::BTreeMap;

/// Bandwidth of a memory that never limits: a million times an HBM stack's.
const NEVER_LIMITS: BytesPerSecond = BytesPerSecond(1e18);

/// The rates of a chip, as a file has them. Area and energy are not stated and therefore unknown.
pub(crate) struct RatedChip<'a> {
    pub(crate) name: &'a str,
    pub(crate) file: &'a str,
    /// The tool that wrote the file.
    pub(crate) tool: &'static str,
    /// The tool's word for the chip.
    pub(crate) noun: &'static str,
    pub(crate) clock: Hertz,
    /// Multiply-accumulates per cycle of the whole chip.
    pub(crate) rates: PerDataType<f64>,
    /// Lanes of the vector engine; its rate is their product with the clock.
    pub(crate) lanes: u32,
    pub(crate) memory_name: &'static str,
    pub(crate) capacity: Bytes,
    /// Rate of the memory, reads and writes together.
    pub(crate) bandwidth: BytesPerSecond,
    pub(crate) host: Option<HostLink>,
    pub(crate) collectives_overlap: bool,
    pub(crate) calibration: Calibration,
    pub(crate) tdp: Option<Watts>,
    pub(crate) usual_stack: &'static str,
    pub(crate) usual_fabric: Option<String>,
}

impl RatedChip<'_> {
    /// Returns the chip: one core with one array that reads each operand from memory once.
    ///
    /// # Errors
    /// Figures that are impossible for a chip.
    pub(crate) fn to_template(&self) -> Result<ChipTemplate, FileError> {
        let accelerator = self.to_accelerator();
        let faults = find_faults(&accelerator);
        if !faults.is_empty() {
            return Err(FileError { file: self.file.to_owned(), faults });
        }
        let source = format!("{}, and where it is silent {}'s own assumptions", self.file, self.tool);
        Ok(ChipTemplate {
            name: accelerator.name.clone(),
            aliases: Vec::new(),
            description: format!("{} of {}'s system {}", self.noun, self.tool, self.file),
            accelerator,
            sources: BTreeMap::from([("all".to_owned(), source)]),
            fitted_on: BTreeMap::new(),
        })
    }

    fn to_accelerator(&self) -> Accelerator {
        let level = |name: &str, scope, bandwidth, ports| MemoryLevel {
            name: name.to_owned(),
            scope,
            kind: MemoryKind::Cache,
            capacity: self.capacity,
            read_bandwidth: bandwidth,
            write_bandwidth: bandwidth,
            ports,
            latency: Seconds::ZERO,
            read_energy_per_byte: Joules(0.0),
            write_energy_per_byte: Joules(0.0),
        };
        Accelerator {
            name: self.name.to_owned(),
            clock: self.clock,
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
                macs_per_unit_per_cycle: self.rates,
            },
            vector: VectorCores { cores: 1, lanes: self.lanes, buffer: None, transcendentals_per_cycle: 0.0 },
            on_chip: vec![level("operands", MemoryScope::Core, NEVER_LIMITS, 2)],
            hbm: level(self.memory_name, MemoryScope::Chip, self.bandwidth, 1),
            host: self.host,
            storage: None,
            pairing: Pairing::SameIndex,
            exclusivity: Exclusivity::AllCores,
            collectives_overlap: self.collectives_overlap,
            area_model: AreaModel::Undisclosed,
            energy: EnergyModel::default(),
            calibration: self.calibration,
            library: None,
            attention: BTreeMap::new(),
            streams: None,
            published: PublishedFigures { tdp: self.tdp, ..PublishedFigures::default() },
            origin: ChipOrigin {
                usual_stack: Some(self.usual_stack.to_owned()),
                usual_fabric: self.usual_fabric.clone(),
                ..ChipOrigin::default()
            },
            constants: Constants::nominal(),
        }
    }
}
