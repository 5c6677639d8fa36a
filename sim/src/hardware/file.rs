//! A chip's file as written. Keys carry the unit; this module alone converts them.

use super::area::Floorplan;
use super::constants::{ChipFamily, Constants, read_changes};
use super::energy::{ControlStyle, EnergyPoint, default_core_cycle, default_energy_model, default_static_power};
use super::error::HardwareError;
use super::memory_tables::{
    AccumulationKey, AccumulatorTable, MemoryEnergyBasis, MemoryTable, build_accumulation, build_levels, to_bytes,
};
use super::sources;
use super::verify::find_faults;
use super::{
    Accelerator, Accumulation, AreaModel, AttentionLibrary, Calibration, ChipOrigin, Dataflow, DecodeKernel,
    EnergyModel, Exclusivity, FittedScalar, FormatKernels, HbmGeneration, HostBus, HostLink, KernelLibrary,
    UnalignedKernels,
};
use super::{
    Pairing, PerDataType, ProcessNode, PublishedFigures, Storage, StreamContention, TensorCores, VectorCores,
    lower_clock, lowest_clock,
};
use crate::files::FileFault;
use crate::kernel::DataType;
use crate::limits;
use crate::units::{Bytes, BytesPerSecond, FlopsPerSecond, Hertz, SquareMillimeters, Watts};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A chip's file as read: the accelerator, and the sources of its figures.
#[derive(Debug, Clone)]
pub struct ChipTemplate {
    /// The canonical name.
    pub name: String,
    /// Its aliases.
    pub aliases: Vec<String>,
    /// One line for lists.
    pub description: String,
    /// The chip.
    pub accelerator: Accelerator,
    /// The source of each figure by key; a key covers all keys below it (`memory.hbm` covers
    /// `memory.hbm.capacity_gib`). [`ChipTemplate::from_toml_str`] checks that every figure is covered.
    pub sources: BTreeMap<String, String>,
    /// The data that each calibration scalar was fitted to, by its key.
    pub fitted_on: BTreeMap<String, String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ChipFile {
    name: String,
    #[serde(default)]
    aliases: Vec<String>,
    description: String,
    clock_mhz: f64,
    lowered_clock_mhz: Option<f64>,
    sustained_clock_fraction: Option<f64>,
    usual_stack: Option<String>,
    usual_fabric: Option<String>,
    tensor: TensorTable,
    vector: VectorTable,
    memory: Vec<MemoryTable>,
    host: Option<HostTable>,
    storage: Option<StorageTable>,
    #[serde(default)]
    schedule: ScheduleTable,
    area: Option<AreaTable>,
    energy: EnergyTable,
    #[serde(default)]
    calibration: BTreeMap<String, toml::Value>,
    family_efficiency: Option<ChipFamily>,
    library: Option<BTreeMap<String, toml::Value>>,
    #[serde(default)]
    attention: BTreeMap<String, BTreeMap<String, toml::Value>>,
    streams: Option<BTreeMap<String, toml::Value>>,
    #[serde(default)]
    published: PublishedTable,
    #[serde(default)]
    constants: toml::Table,
    sources: toml::Table,
}

impl ChipFile {
    /// Returns the usual software and fabric. The reader of whole files adds the built-in chip with the same hardware.
    fn read_origin(&self) -> ChipOrigin {
        let (usual_stack, usual_fabric) = (self.usual_stack.clone(), self.usual_fabric.clone());
        ChipOrigin { built_in: None, usual_stack, usual_fabric }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct TensorTable {
    cores: u32,
    arrays_per_core: u32,
    rows: u32,
    columns: u32,
    dataflow: Dataflow,
    preload: bool,
    accumulation: Option<AccumulationKey>,
    accumulators: Option<AccumulatorTable>,
    macs_per_unit_per_cycle: PerDataType<f64>,
}

impl TensorTable {
    fn tensor_cores(&self, accumulation: Accumulation) -> TensorCores {
        TensorCores {
            cores: self.cores,
            arrays_per_core: self.arrays_per_core,
            rows: self.rows,
            columns: self.columns,
            dataflow: self.dataflow,
            preload: self.preload,
            accumulation,
            macs_per_unit_per_cycle: self.macs_per_unit_per_cycle,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct VectorTable {
    cores: u32,
    lanes: u32,
    buffer_kib: Option<f64>,
    transcendentals_per_cycle: Option<f64>,
}

impl VectorTable {
    fn vector_cores(&self) -> VectorCores {
        VectorCores {
            cores: self.cores,
            lanes: self.lanes,
            buffer: self.buffer_kib.map(|kib| to_bytes(kib, 1024.0)),
            transcendentals_per_cycle: self.transcendentals_per_cycle.unwrap_or(0.0),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HostTable {
    link: Option<HostBus>,
    link_gb_per_s: f64,
    capacity_gib: f64,
    memory_gb_per_s: Option<f64>,
}

impl HostTable {
    fn host_link(&self, constants: &Constants) -> HostLink {
        // The fraction of the stated rate that copied data reach.
        let fraction = match self.link {
            Some(HostBus::Pcie) => constants.link.pcie.payload_fraction,
            None => 1.0,
        };
        HostLink {
            bandwidth: from_gb(self.link_gb_per_s * fraction),
            capacity: Bytes::from_gib(self.capacity_gib),
            memory: self.memory_gb_per_s.map(from_gb),
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct StorageTable {
    read_gb_per_s: f64,
    write_gb_per_s: f64,
    capacity_gb: f64,
}

impl StorageTable {
    fn storage(&self) -> Storage {
        Storage {
            read_bandwidth: from_gb(self.read_gb_per_s),
            write_bandwidth: from_gb(self.write_gb_per_s),
            capacity: to_bytes(self.capacity_gb, 1e9),
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScheduleTable {
    #[serde(default)]
    pairing: Pairing,
    #[serde(default)]
    exclusivity: Exclusivity,
    #[serde(default)]
    collectives_overlap: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case", tag = "model")]
enum AreaTable {
    #[serde(rename = "phaze_22nm")]
    Phaze22nm,
    UnitAreas(Box<Floorplan>),
}

impl AreaTable {
    fn area_model(table: Option<&Self>, accumulation: Accumulation) -> AreaModel {
        match table {
            None => AreaModel::Undisclosed,
            Some(Self::Phaze22nm) => AreaModel::Phaze22nm,
            Some(Self::UnitAreas(floorplan)) => {
                AreaModel::UnitAreas(Box::new(Floorplan::clone(floorplan).with_accumulators(accumulation.memory())))
            }
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct EnergyTable {
    node: ProcessNode,
    #[serde(default)]
    control: ControlStyle,
    static_w: Option<f64>,
    stated: Option<StatedEnergies>,
    #[serde(default)]
    pj_per_mac: PerDataType<f64>,
    pj_per_vector_operation: Option<f64>,
    pj_per_core_cycle: Option<f64>,
}

impl EnergyTable {
    /// Returns the energies that the file states, and the defaults of `point` for the others.
    fn energy_model(&self, point: EnergyPoint<'_>) -> EnergyModel {
        let picojoules = |pj: f64| point.drawn_energy(pj);
        let defaults = default_energy_model(point);
        EnergyModel {
            per_mac: self.pj_per_mac.map_values(picojoules).or_else_from(&defaults.per_mac),
            per_vector_operation: self.pj_per_vector_operation.map_or(defaults.per_vector_operation, picojoules),
            ..defaults
        }
    }
}

/// The process and the clock to which the file's energies of on-chip memories refer.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
struct StatedEnergies {
    node: ProcessNode,
    clock_mhz: f64,
}

impl StatedEnergies {
    fn clock_fault(&self) -> Option<FileFault> {
        if limits::CLOCK.contains(&(self.clock_mhz * 1e6)) {
            return None;
        }
        let range = limits::describe_range(limits::CLOCK.start() / 1e6, limits::CLOCK.end() / 1e6);
        let cure = "give the clock to which the energies of memories refer";
        Some(FileFault::new("energy.stated.clock_mhz", self.clock_mhz, range, cure))
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct PublishedTable {
    die_area_mm2: Option<f64>,
    tdp_w: Option<f64>,
    #[serde(default)]
    peak_tflops: PerDataType<f64>,
}

impl PublishedTable {
    fn published_figures(&self) -> PublishedFigures {
        PublishedFigures {
            die_area: self.die_area_mm2.map(SquareMillimeters),
            tdp: self.tdp_w.map(Watts),
            peak: self.peak_tflops.map_values(|tflops| FlopsPerSecond(tflops * 1e12)),
        }
    }
}

/// Reads and verifies a chip's file.
pub(super) fn read_chip_file(text: &str, file: &str) -> Result<ChipTemplate, HardwareError> {
    let malformed = |why: toml::de::Error| HardwareError::Malformed { file: file.to_owned(), why: plain_message(&why) };
    let raw: ChipFile = toml::from_str(text).map_err(malformed)?;
    let table: toml::Table = toml::from_str(text).map_err(malformed)?;
    let mut faults = Vec::new();
    let sources = sources::flatten_sources(&raw.sources, &mut faults);
    let (calibration, mut fitted_on) = read_calibration(&raw.calibration, &mut faults);
    let mut fitted = FittedTables { fitted_on: &mut fitted_on, faults: &mut faults };
    let measured = read_measured_scalars(&raw, &mut fitted);
    sources::check_sources(&table, &sources, &mut faults);
    let accelerator = build_accelerator(&raw, calibration, &mut faults).map(|accelerator| measured.add_to(accelerator));
    if let Some(accelerator) = &accelerator {
        faults.extend(find_faults(accelerator));
    }
    match accelerator {
        Some(accelerator) if faults.is_empty() => Ok(ChipTemplate {
            name: raw.name,
            aliases: raw.aliases,
            description: raw.description,
            accelerator,
            sources,
            fitted_on,
        }),
        _ => Err(HardwareError::Invalid { file: file.to_owned(), faults }),
    }
}

/// The scalars of kernels and streams, if the file has them.
struct MeasuredScalars {
    library: Option<KernelLibrary>,
    attention: BTreeMap<String, AttentionLibrary>,
    streams: Option<StreamContention>,
}

impl MeasuredScalars {
    fn add_to(self, accelerator: Accelerator) -> Accelerator {
        let Self { library, attention, streams } = self;
        Accelerator { library, attention, streams, ..accelerator }
    }
}

fn read_measured_scalars(raw: &ChipFile, fitted: &mut FittedTables<'_>) -> MeasuredScalars {
    let mut attention = BTreeMap::new();
    for (name, table) in &raw.attention {
        let scalars = fitted.read_scalars(&format!("attention.{name}"), table, &AttentionLibrary::PARAMETERS);
        attention.insert(name.clone(), scalars);
    }
    MeasuredScalars {
        library: raw.library.as_ref().map(|table| fitted.read_library(table)),
        attention,
        streams: raw.streams.as_ref().map(|table| fitted.read_scalars("streams", table, &StreamContention::PARAMETERS)),
    }
}

/// Builds and verifies the chip of a file's table. The sources are kept elsewhere.
pub(super) fn build_table(mut table: toml::Table, file: &str) -> Result<Accelerator, HardwareError> {
    table.insert("sources".into(), toml::Value::Table(toml::Table::new()));
    let malformed = |why: toml::de::Error| HardwareError::Malformed { file: file.to_owned(), why: plain_message(&why) };
    let raw = ChipFile::deserialize(table).map_err(malformed)?;
    let mut faults = Vec::new();
    let (calibration, mut fitted_on) = read_calibration(&raw.calibration, &mut faults);
    let measured = read_measured_scalars(&raw, &mut FittedTables { fitted_on: &mut fitted_on, faults: &mut faults });
    let accelerator = build_accelerator(&raw, calibration, &mut faults).map(|accelerator| measured.add_to(accelerator));
    faults.extend(accelerator.iter().flat_map(find_faults));
    match accelerator {
        Some(accelerator) if faults.is_empty() => Ok(accelerator),
        _ => Err(HardwareError::Invalid { file: file.to_owned(), faults }),
    }
}

/// Returns the parser's message without the names of Rust types.
fn plain_message(why: &toml::de::Error) -> String {
    let text = why.to_string().replace("expected u32", "expected a whole number from 0 to 4294967295");
    let text = text.replace("expected f64", "expected a number");
    match text.split_once("missing field ") {
        Some(_) => format!("{}: add it", text.trim_end()),
        None => text.trim_end().to_owned(),
    }
}

/// Builds the chip. Returns `None` if a memory level cannot be read, if there is no memory, or if the static power has
/// no default; the faults give the reason.
fn build_accelerator(raw: &ChipFile, calibration: Calibration, faults: &mut Vec<FileFault>) -> Option<Accelerator> {
    let clock = Hertz(raw.clock_mhz * 1e6);
    let constants = read_constants(&raw.constants, faults);
    faults.extend(raw.energy.stated.and_then(|stated| stated.clock_fault()));
    let point = EnergyPoint { constants: &constants, node: raw.energy.node, clock };
    let basis = MemoryEnergyBasis::of_file(raw, point);
    let (mut levels, complete) = build_levels(&raw.memory, &basis, faults);
    let (place, accumulators) = (raw.tensor.accumulation, raw.tensor.accumulators.as_ref());
    let accumulation = build_accumulation(place, accumulators, &basis, faults);
    let hbm = levels.pop();
    if hbm.is_none() && complete {
        faults.push(FileFault::new(
            "memory",
            "[]",
            "a chip has at least one memory",
            "add a [[memory]] table, the outermost last",
        ));
    }
    let hbm = hbm.filter(|_| complete)?;
    let mut designed = Accelerator {
        name: raw.name.clone(),
        clock,
        lowered: None,
        cell_rate_limit: None,
        rates_are_measured: raw.calibration.contains_key("tensor_achieved_fraction"),
        sustained_clock_fraction: raw.sustained_clock_fraction.unwrap_or(1.0),
        tensor: raw.tensor.tensor_cores(accumulation),
        vector: raw.vector.vector_cores(),
        on_chip: levels,
        hbm,
        host: raw.host.as_ref().map(|host| host.host_link(&constants)),
        storage: raw.storage.as_ref().map(StorageTable::storage),
        pairing: raw.schedule.pairing,
        exclusivity: raw.schedule.exclusivity,
        collectives_overlap: raw.schedule.collectives_overlap,
        area_model: AreaTable::area_model(raw.area.as_ref(), accumulation),
        energy: raw.energy.energy_model(point),
        calibration,
        library: None,
        attention: BTreeMap::new(),
        streams: None,
        published: raw.published.published_figures(),
        origin: raw.read_origin(),
        constants: Arc::clone(&constants),
    };
    set_family_efficiency(&mut designed, raw, faults);
    designed.energy.per_core_cycle = match raw.energy.pj_per_core_cycle {
        Some(pj) => point.drawn_energy(pj),
        None => default_core_cycle(point, &designed, raw.energy.control),
    };
    let stated = raw.energy.static_w.map(Watts);
    let Some(static_power) = stated.or_else(|| default_static_power(&designed)) else {
        let why = "a chip without an area has no default";
        faults.push(FileFault::new("energy.static_w", "nothing", why, "give the power of the idle chip"));
        return None;
    };
    designed.energy.static_power = static_power;
    Some(lower_clock_of_file(designed, raw.lowered_clock_mhz, faults))
}

/// Gives the chip the efficiency of the file's `family_efficiency`, if given.
fn set_family_efficiency(designed: &mut Accelerator, raw: &ChipFile, faults: &mut Vec<FileFault>) {
    let Some(family) = raw.family_efficiency else { return };
    designed.calibration = designed.constants.efficiency.of_family(family).calibration();
    if !raw.calibration.is_empty() {
        let cure = "leave one out: `calibration` holds a chip's own scalars, `family_efficiency` those of its like";
        faults.push(FileFault::new("family_efficiency", family.name(), "no table `calibration` beside it", cure));
    }
}

/// Reads the constants with the file's changes; the nominal ones if the changes have faults.
fn read_constants(table: &toml::Table, faults: &mut Vec<FileFault>) -> Arc<Constants> {
    read_changes(table).and_then(|changes| Constants::with_changes(&changes)).unwrap_or_else(|found| {
        faults.extend(found);
        Constants::nominal()
    })
}

/// Lowers the chip's clock to the file's `lowered_clock_mhz`, if given.
fn lower_clock_of_file(designed: Accelerator, mhz: Option<f64>, faults: &mut Vec<FileFault>) -> Accelerator {
    let Some(mhz) = mhz else { return designed };
    let (least, most) = (lowest_clock(&designed).0, designed.clock.0);
    let clock = mhz * 1e6;
    if (least..=most).contains(&clock) {
        return lower_clock(&designed, Hertz(clock));
    }
    let limit = limits::describe_range(least / 1e6, most / 1e6);
    faults.push(FileFault::new(
        "lowered_clock_mhz",
        mhz,
        limit,
        "give the clock that the chip is held down to, or leave it out",
    ));
    designed
}

fn from_gb(gb_per_s: f64) -> BytesPerSecond {
    BytesPerSecond(gb_per_s * 1e9)
}

impl<'a> MemoryEnergyBasis<'a> {
    fn of_file(raw: &ChipFile, point: EnergyPoint<'a>) -> Self {
        let of = |stated: StatedEnergies| {
            let (node, clock) = (stated.node, Hertz(stated.clock_mhz * 1e6));
            point.memory_energy_over(&EnergyPoint { node, clock, ..point })
        };
        let generation = match &raw.area {
            Some(AreaTable::UnitAreas(floorplan)) => floorplan.hbm_generation,
            Some(AreaTable::Phaze22nm) => HbmGeneration::Hbm2,
            None => HbmGeneration::default(),
        };
        Self { point, stated_factor: raw.energy.stated.map_or(1.0, of), generation }
    }
}

/// Reads the calibration. Scalars are optional; the origin of each is not.
fn read_calibration(
    table: &BTreeMap<String, toml::Value>,
    faults: &mut Vec<FileFault>,
) -> (Calibration, BTreeMap<String, String>) {
    let mut calibration = Calibration::default();
    let mut fitted_on = BTreeMap::new();
    if let Some(toml::Value::Table(origins)) = table.get("fitted_on") {
        fitted_on.extend(origins.iter().filter_map(|(key, text)| Some((key.clone(), text.as_str()?.to_owned()))));
    }
    for (key, value) in table.iter().filter(|(key, _)| *key != "fitted_on") {
        let path = format!("calibration.{key}");
        let known = || format!("{}, {}", Calibration::PARAMETERS.map(|p| p.key).join(", "), Calibration::BY_FORMAT);
        if key == Calibration::BY_FORMAT {
            calibration.achieved_by_format = read_fractions_by_format(&path, value, faults);
        } else {
            read_calibration_scalar(&mut calibration, key, value, &known, faults);
        }
        if !fitted_on.contains_key(key) {
            let cure = format!("name the data in [calibration.fitted_on] {key}");
            faults.push(FileFault::new(
                format!("calibration.{key}"),
                value,
                "a fitted figure must name the data that it was fitted to",
                cure,
            ));
        }
    }
    (calibration, fitted_on)
}

fn read_calibration_scalar(
    calibration: &mut Calibration,
    key: &str,
    value: &toml::Value,
    known: &dyn Fn() -> String,
    faults: &mut Vec<FileFault>,
) {
    let path = format!("calibration.{key}");
    match (Calibration::find_parameter(key), read_number(value)) {
        (None, _) => faults.push(FileFault::new(path, value, "no such scalar", format!("use one of {}", known()))),
        (Some(_), None) => faults.push(FileFault::new(path, value, "a number", "write the fitted value")),
        (Some(parameter), Some(number)) => (parameter.set)(calibration, number),
    }
}

/// Reads a number per format, from a table with the formats' names as keys.
fn read_fractions_by_format(path: &str, value: &toml::Value, faults: &mut Vec<FileFault>) -> PerDataType<f64> {
    let mut fractions = PerDataType::default();
    let Some(table) = value.as_table() else {
        faults.push(FileFault::new(
            path,
            value,
            "a table of formats",
            format!("write [{path}] with a line per format"),
        ));
        return fractions;
    };
    for (name, value) in table {
        match (find_format(name), read_number(value)) {
            (None, _) => faults.push(unknown_format(&format!("{path}.{name}"), value)),
            (Some(_), None) => {
                faults.push(FileFault::new(format!("{path}.{name}"), value, "a number", "write the fitted value"))
            }
            (Some(format), Some(number)) => *fractions.value_mut(format) = Some(number),
        }
    }
    fractions
}

fn read_number(value: &toml::Value) -> Option<f64> {
    value.as_float().or_else(|| value.as_integer().map(|i| i as f64))
}

fn find_format(name: &str) -> Option<DataType> {
    DataType::ALL.into_iter().find(|format| format.name() == name)
}

fn unknown_format(path: &str, value: &toml::Value) -> FileFault {
    let known = DataType::ALL.map(DataType::name).join(", ");
    FileFault::new(path, value, "no such number format", format!("use one of {known}"))
}

/// Reads tables of fitted scalars.
struct FittedTables<'a> {
    fitted_on: &'a mut BTreeMap<String, String>,
    faults: &'a mut Vec<FileFault>,
}

impl FittedTables<'_> {
    /// Reads a kernel library, with the tables of its formats.
    fn read_library(&mut self, table: &BTreeMap<String, toml::Value>) -> KernelLibrary {
        const FORMATS: &str = "formats";
        const DECODE: &str = "decode";
        const UNALIGNED: &str = "unaligned";
        let mut own = table.clone();
        let (formats, decode, unaligned) = (own.remove(FORMATS), own.remove(DECODE), own.remove(UNALIGNED));
        let mut library = self.read_scalars("library", &own, &KernelLibrary::PARAMETERS);
        for (name, value) in formats.iter().filter_map(toml::Value::as_table).flatten() {
            let path = format!("library.{FORMATS}.{name}");
            match (find_format(name), value.as_table()) {
                (None, _) => self.faults.push(unknown_format(&path, value)),
                (_, None) => self.faults.push(FileFault::new(path, value, "a table of scalars", "write it as a table")),
                (Some(format), Some(scalars)) => {
                    *library.formats.value_mut(format) = Some(self.read_format(&path, scalars));
                }
            }
        }
        for (name, value) in [(FORMATS, &formats), (DECODE, &decode), (UNALIGNED, &unaligned)] {
            if let Some(value) = value.as_ref().filter(|value| !value.is_table()) {
                self.faults.push(FileFault::new(format!("library.{name}"), value, "a table", "write it as a table"));
            }
        }
        let scalars = |value: &Option<toml::Value>| {
            let table = value.as_ref().and_then(toml::Value::as_table)?;
            Some(table.iter().map(|(key, value)| (key.clone(), value.clone())).collect::<BTreeMap<_, _>>())
        };
        library.decode = scalars(&decode)
            .map(|scalars| self.read_scalars(&format!("library.{DECODE}"), &scalars, &DecodeKernel::PARAMETERS));
        library.unaligned = scalars(&unaligned)
            .map(|own| self.read_scalars(&format!("library.{UNALIGNED}"), &own, &UnalignedKernels::PARAMETERS));
        library
    }

    /// Reads the kernels of a number format.
    fn read_format(&mut self, path: &str, table: &toml::Table) -> FormatKernels {
        let key = FormatKernels::ROW_SCALED;
        let scalars: BTreeMap<_, _> = table.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
        let row_scaled = scalars.get(key).map(|value| (value.as_bool(), value));
        if let Some((None, value)) = row_scaled {
            let cure = "write true if the products have a scale per row or block";
            self.faults.push(FileFault::new(format!("{path}.{key}"), value, "true or false", cure));
        }
        let row_scaled = matches!(row_scaled, Some((Some(true), _)));
        FormatKernels { row_scaled, ..self.read_scalars_beside(&[key], path, &scalars, &FormatKernels::PARAMETERS) }
    }

    /// Reads all scalars of a table, with one origin each or one for the table (`fitted_on = "..."`).
    fn read_scalars<T: Default>(
        &mut self,
        name: &str,
        table: &BTreeMap<String, toml::Value>,
        known: &[FittedScalar<T>],
    ) -> T {
        self.read_scalars_beside(&[], name, table, known)
    }

    /// Reads all scalars of a table as [`Self::read_scalars`] does, and allows the keys in `others`, which are read
    /// elsewhere.
    fn read_scalars_beside<T: Default>(
        &mut self,
        others: &[&str],
        name: &str,
        table: &BTreeMap<String, toml::Value>,
        known: &[FittedScalar<T>],
    ) -> T {
        let mut scalars = T::default();
        let origin = |key: &str| match table.get("fitted_on") {
            Some(toml::Value::Table(origins)) => origins.get(key).and_then(toml::Value::as_str),
            Some(toml::Value::String(origin)) => Some(origin.as_str()),
            _ => None,
        };
        for scalar in known {
            let path = format!("{name}.{}", scalar.key);
            let value = table.get(scalar.key);
            match value.and_then(read_number) {
                Some(number) => (scalar.set)(&mut scalars, number),
                None => self.faults.push(FileFault::new(path.clone(), "nothing", "a number", "write the fitted value")),
            }
            match origin(scalar.key).filter(|text| !text.trim().is_empty()) {
                Some(text) => drop(self.fitted_on.insert(path, text.to_owned())),
                None => {
                    let cure = format!("name the data in [{name}.fitted_on] {}", scalar.key);
                    self.faults.push(FileFault::new(
                        path,
                        "(no origin)",
                        "a fitted figure must name the data that it was fitted to",
                        cure,
                    ));
                }
            }
        }
        let keys: Vec<&str> = known.iter().map(|scalar| scalar.key).chain(others.iter().copied()).collect();
        let is_known = |key: &str| key == "fitted_on" || keys.contains(&key);
        for (key, value) in table.iter().filter(|(key, _)| !is_known(key)) {
            self.faults.push(FileFault::new(
                format!("{name}.{key}"),
                value,
                "no such scalar",
                format!("use one of {}", keys.join(", ")),
            ));
        }
        scalars
    }
}
