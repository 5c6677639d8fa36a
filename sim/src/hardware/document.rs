//! A chip's file as a document with settable fields. Design spaces vary them, and a search writes the found chip as
//! such a file for other verbs.
//!
//! Values are set in the file's tables and read by the reader of chip files, so every field of a chip's file can be
//! varied.

use super::error::HardwareError;
use super::file::ChipTemplate;
use super::sources::is_reason_of_absence;
use super::template::embedded;
use super::{Accelerator, ChipFamily, file};
use crate::files::FileFault;
use crate::files::document::{self, FieldValue};
use crate::limits;
use crate::units::Watts;
use std::collections::BTreeMap;

/// A chip's file as a table, with its sources apart.
#[derive(Debug, Clone, PartialEq)]
pub struct ChipDocument {
    /// All tables except the sources.
    table: toml::Table,
    sources: BTreeMap<String, String>,
    file: String,
}

impl ChipDocument {
    /// Reads and verifies a chip's file; `file` names it in errors.
    ///
    /// # Errors
    /// As [`ChipTemplate::from_toml_str`].
    pub fn parse_chip_file(text: &str, file: &str) -> Result<Self, HardwareError> {
        let template = ChipTemplate::from_toml_str(text, file)?;
        let malformed = |why: toml::de::Error| HardwareError::Malformed { file: file.to_owned(), why: why.to_string() };
        let mut table: toml::Table = toml::from_str(text).map_err(malformed)?;
        table.remove("sources");
        Ok(Self { table, sources: template.sources, file: file.to_owned() })
    }

    /// Returns the file of a built-in chip, by name or alias.
    ///
    /// # Errors
    /// [`HardwareError::Unknown`] lists the names that exist.
    pub fn of_built_in_chip(name: &str) -> Result<Self, HardwareError> {
        let found = &ChipTemplate::find_built_in(name)?.name;
        let text = embedded::CHIPS.iter().find(|(known, _)| known == found).map_or("", |(_, text)| text);
        Self::parse_chip_file(text, &format!("{found}.toml"))
    }

    /// Returns the chip as if it had not been built: without aliases, published figures and lowered clock, and without
    /// a stated idle power if the file describes the die. `ideal` removes the fitted scalars, the family's efficiency
    /// and the sustained clock as well.
    #[must_use]
    pub fn strip_measured(mut self, ideal: bool) -> Self {
        for table in ["aliases", "published"].into_iter().chain(MEASURED.into_iter().filter(|_| ideal)) {
            self.table.remove(table);
        }
        if ideal {
            self.table.remove(FAMILY);
        }
        self.pin_stated_energies();
        // A changed chip has a lowered clock of its own.
        self.table.remove("lowered_clock_mhz");
        if ideal {
            // The clock that a built chip keeps under load is measured too.
            self.table.remove("sustained_clock_fraction");
        }
        self
    }

    /// Gives the chip the efficiency of a family. [`Self::build_accelerator`] refuses a chip that also has a
    /// `calibration` table of its own.
    pub fn set_family_efficiency(&mut self, family: ChipFamily) {
        self.table.insert(FAMILY.into(), toml::Value::String(family.name().into()));
    }

    /// Changes constants of the model for this chip, by key (`hbm.phy`). [`Self::build_accelerator`] refuses unknown
    /// keys and values outside their ranges.
    pub fn set_constants(&mut self, changes: &BTreeMap<String, f64>) {
        if changes.is_empty() {
            return;
        }
        let table = self.table.entry("constants").or_insert_with(|| toml::Value::Table(toml::Table::new()));
        if let Some(table) = table.as_table_mut() {
            table.extend(changes.iter().map(|(key, value)| (key.clone(), toml::Value::Float(*value))));
        }
    }

    /// Writes the process and the clock to which stated energies of memories refer, so that the energies follow a
    /// change of either. Removes a stated idle power if the file describes the die: it was measured, and a changed chip
    /// takes the model's.
    fn pin_stated_energies(&mut self) {
        let states = |memory: &toml::Value| {
            memory.get("read_pj_per_byte").is_some() || memory.get("write_pj_per_byte").is_some()
        };
        let stated = self.table.get("memory").and_then(toml::Value::as_array).is_some_and(|all| all.iter().any(states));
        let clock = self.table.get("clock_mhz").cloned();
        let disclosed = self.table.contains_key("area");
        let Some(energy) = self.table.get_mut("energy").and_then(toml::Value::as_table_mut) else { return };
        if disclosed {
            energy.remove("static_w");
        }
        if let (true, false, Some(node), Some(clock)) =
            (stated, energy.contains_key("stated"), energy.get("node").cloned(), clock)
        {
            energy.insert(
                "stated".into(),
                toml::Value::Table([("node".into(), node), ("clock_mhz".into(), clock)].into_iter().collect()),
            );
        }
    }

    /// Returns every field with a single value, by key, without names, descriptions and origins of fits. Tables of a
    /// list go by their names: `memory.hbm.capacity_gib`.
    #[must_use]
    pub fn list_fields(&self) -> Vec<(String, FieldValue)> {
        let mut found = document::list_fields(&self.table);
        found.retain(|(key, _)| !DESCRIPTIVE.contains(&key.as_str()) && !key.contains(".fitted_on"));
        found
    }

    /// Returns the value of a field; `None` if the file has no such field.
    #[must_use]
    pub fn field_value(&self, key: &str) -> Option<FieldValue> {
        document::field_value(&self.table, key)
    }

    /// Sets a field in a table that the file has, or in `[tensor.accumulators]`, which any chip can have. It replaces
    /// alternatives: `read_bytes_per_cycle` replaces `read_gb_per_s`.
    ///
    /// # Errors
    /// No such table, or a field that is a table itself. [`Self::build_accelerator`] refuses unknown fields.
    pub fn set_field(&mut self, key: &str, value: &FieldValue) -> Result<(), FileFault> {
        let tensor = self.table.get_mut("tensor").and_then(toml::Value::as_table_mut);
        if let Some(tensor) = tensor.filter(|_| key.starts_with("tensor.accumulators.")) {
            tensor.entry("accumulators").or_insert_with(|| toml::Value::Table(toml::Table::new()));
        }
        document::set_field(&mut self.table, key, value, &self.file)
    }

    /// Sets a field on which no other figure of the chip depends, as [`Self::build_accelerator`] sets it. Returns false
    /// and leaves the chip unchanged if other figures depend on the field, or if a file could not have the value.
    pub fn set_lone_field(chip: &mut Accelerator, key: &str, value: &FieldValue) -> bool {
        let (Some(watts), "energy.static_w", None) = (value.number(), key, chip.lowered) else { return false };
        let below_tdp = chip.published.tdp.is_none_or(|tdp| watts < tdp.0);
        let possible = below_tdp && (0.0..=*limits::POWER.end()).contains(&watts);
        if possible {
            chip.energy.static_power = Watts(watts);
        }
        possible
    }

    /// Sets a fitted scalar and its origin. If the table has one origin for all scalars, the others keep it.
    ///
    /// # Errors
    /// As [`Self::set_field`].
    pub fn set_fitted_scalar(&mut self, key: &str, value: f64, fitted_on: &str) -> Result<(), FileFault> {
        let (table, own) = key.split_once('.').unwrap_or(("calibration", key));
        let empty = || toml::Value::Table(toml::Table::new());
        if let Some(scalars) = self.table.entry(table).or_insert_with(empty).as_table_mut() {
            if let Some(one) = scalars.get("fitted_on").and_then(toml::Value::as_str).map(str::to_owned) {
                let others = scalars.keys().filter(|key| *key != "fitted_on");
                let origins = others.map(|key| (key.clone(), toml::Value::String(one.clone()))).collect();
                scalars.insert("fitted_on".into(), toml::Value::Table(origins));
            }
            scalars.entry("fitted_on").or_insert_with(empty);
        }
        self.set_field(key, &FieldValue::Number(value))?;
        self.set_field(&format!("{table}.fitted_on.{own}"), &FieldValue::Word(fitted_on.to_owned()))
    }

    /// Sets the chip's name and description, and removes its aliases.
    pub fn set_name(&mut self, name: &str, description: &str) {
        self.table.remove("aliases");
        self.table.insert("name".into(), toml::Value::String(name.to_owned()));
        self.table.insert("description".into(), toml::Value::String(description.to_owned()));
    }

    /// Builds the chip.
    ///
    /// # Errors
    /// An unknown field or a value of the wrong type ([`HardwareError::Malformed`]); impossible values
    /// ([`HardwareError::Invalid`]).
    pub fn build_accelerator(&self) -> Result<Accelerator, HardwareError> {
        file::build_table(self.table.clone(), &self.file)
    }

    /// Returns the chip's file as text, with `source` as the source of the fields in `set` and of new fields.
    /// [`ChipTemplate::from_toml_str`] reads it back as [`Self::build_accelerator`] builds it.
    ///
    /// # Errors
    /// A document that cannot be written as TOML; its reader would have refused it.
    pub fn to_text(&self, set: &[String], source: &str) -> Result<String, HardwareError> {
        let mut fields = self.list_fields();
        fields.retain(|(key, value)| value.number().is_some() && !is_measured(key));
        let covers = |source: &str, key: &str| {
            key.strip_prefix(source).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
        };
        let mut sources = self.sources.clone();
        for (key, _) in fields.iter().filter(|(key, _)| set.contains(key)) {
            sources.insert(key.clone(), source.to_owned());
        }
        // Add sources for new fields, and remove those of fields that are gone.
        for (key, _) in &fields {
            if !sources.keys().any(|known| covers(known, key)) {
                sources.insert(key.clone(), source.to_owned());
            }
        }
        sources.retain(|known, _| {
            is_reason_of_absence(&self.table, known) || fields.iter().any(|(key, _)| covers(known, key))
        });
        let mut table = self.table.clone();
        let sources = sources.into_iter().map(|(key, text)| (key, toml::Value::String(text))).collect();
        table.insert("sources".into(), toml::Value::Table(sources));
        toml::to_string(&table)
            .map_err(|why| HardwareError::Malformed { file: self.file.clone(), why: why.to_string() })
    }
}

/// The key of the family whose efficiency a chip has.
const FAMILY: &str = "family_efficiency";

/// Top-level keys that say nothing about the hardware.
const DESCRIPTIVE: [&str; 4] = ["name", "description", "usual_stack", "usual_fabric"];

/// Tables of fitted scalars; they carry their own origins.
const MEASURED: [&str; 4] = ["calibration", "library", "attention", "streams"];

/// True if a field is a fitted scalar.
pub(super) fn is_measured(key: &str) -> bool {
    key.split('.').next().is_some_and(|table| MEASURED.contains(&table))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::super::energy::default_static_power;
    use super::super::{chip_area, phaze, template_names, templates};
    use super::*;
    use crate::cost::{CostModel, Span};
    use crate::kernel::{Direction, Elementwise, ElementwiseFunction, Kernel};
    use crate::units::Bytes;
    use proptest::prelude::*;

    #[test]
    fn a_document_is_the_chip_and_its_text_reads_back() {
        for name in template_names() {
            let document = ChipDocument::of_built_in_chip(name).unwrap();
            let template = ChipTemplate::find_built_in(name).unwrap();
            let mut built = document.build_accelerator().unwrap();
            built.origin.built_in.clone_from(&template.accelerator.origin.built_in);
            assert_eq!(built, template.accelerator, "{name}");
            let again = ChipTemplate::from_toml_str(&document.to_text(&[], "nobody").unwrap(), "again.toml").unwrap();
            assert_eq!(
                (again.accelerator, again.sources),
                (template.accelerator.clone(), template.sources.clone()),
                "{name}"
            );
        }
    }

    #[test]
    fn an_ideal_chip_is_the_built_one_without_what_is_measured_of_it() {
        for template in templates().unwrap() {
            let ideal = ChipDocument::of_built_in_chip(&template.name)
                .unwrap()
                .strip_measured(true)
                .build_accelerator()
                .unwrap();
            let mut expected = template.accelerator.clone();
            expected.calibration = super::super::Calibration::default();
            (expected.library, expected.streams) = (None, None);
            expected.attention.clear();
            expected.published = super::super::PublishedFigures::default();
            (expected.sustained_clock_fraction, expected.rates_are_measured) = (1.0, false);
            expected.origin.built_in = None;
            // Idle power is measured too; the model's takes its place where the die is known.
            if let Some(modelled) = default_static_power(&template.accelerator) {
                expected.energy.static_power = modelled;
            }
            assert_eq!(ideal, expected);
        }
    }

    #[test]
    fn fields_are_found_set_and_refused_by_name() {
        let mut document = ChipDocument::of_built_in_chip("tpu_v4").unwrap().strip_measured(true);
        assert_eq!(document.field_value("memory.hbm.capacity_gib"), Some(FieldValue::Number(32.0)));
        assert_eq!(document.field_value("area.core_memory.local_buffer.ports"), Some(FieldValue::Number(3.0)));
        assert_eq!((document.field_value("memory.l3.capacity_gib"), document.field_value("memory")), (None, None));
        for (key, value) in document.list_fields() {
            document.set_field(&key, &value).unwrap();
        }
        let unchanged = ChipDocument::of_built_in_chip("tpu_v4").unwrap().strip_measured(true);
        assert!(document.build_accelerator() == unchanged.build_accelerator(), "each field set to what it was");
        document.set_field("memory.cmem.read_bytes_per_cycle", &FieldValue::Number(4000.0)).unwrap();
        document.set_field("memory.cmem.latency_ns", &FieldValue::Number(7.5)).unwrap();
        document.set_field("area.node", &FieldValue::Word("n5".into())).unwrap();
        let set = ["memory.cmem.read_bytes_per_cycle", "memory.cmem.latency_ns"].map(str::to_owned);
        let read = ChipTemplate::from_toml_str(&document.to_text(&set, "found here").unwrap(), "x.toml").unwrap();
        assert_eq!(read.accelerator, document.build_accelerator().unwrap());
        assert_eq!(read.accelerator.on_chip[1].read_bandwidth.0, 4000.0 * 1.05e9);
        assert_eq!(read.source_of("memory.cmem.latency_ns"), Some("found here"));
        let refused = document.set_field("memory.l3.capacity_gib", &FieldValue::Number(1.0)).unwrap_err().to_string();
        assert_eq!(
            refused,
            "memory.l3.capacity_gib = 1: there is no such table; use a field of tpu_v4.toml's file (coplace list dimensions)"
        );
        assert!(document.set_field("memory.cmem", &FieldValue::Flag(true)).is_err());
        document.set_field("tensor.colums", &FieldValue::Number(1.0)).unwrap();
        let unknown = document.build_accelerator().unwrap_err().to_string();
        assert!(unknown.contains("unknown field `colums`, expected one of `cores`"), "{unknown}");
    }

    #[test]
    fn any_chip_can_be_given_accumulators_which_take_area() {
        let with = |kib: f64| {
            let mut document = ChipDocument::of_built_in_chip("tpu_v4").unwrap().strip_measured(true);
            let ports = ["read_bytes_per_cycle", "write_bytes_per_cycle"].map(|key| (key, 2048.0));
            for (key, value) in [("capacity_kib", kib)].into_iter().chain(ports) {
                document.set_field(&format!("tensor.accumulators.{key}"), &FieldValue::Number(value)).unwrap();
            }
            document.build_accelerator().unwrap()
        };
        let plain = ChipDocument::of_built_in_chip("tpu_v4").unwrap().strip_measured(true).build_accelerator().unwrap();
        let area = |chip: &Accelerator| chip_area(chip).unwrap().total_area().0;
        assert_eq!(with(0.0), plain);
        let larger = with(4096.0);
        assert_eq!(larger.tensor.accumulation.memory().unwrap().capacity, Bytes(4096 << 10));
        assert!(area(&larger) > area(&with(2048.0)) && area(&with(2048.0)) > area(&plain));
    }

    #[test]
    fn units_for_transcendental_functions_take_area_and_time_off_the_lanes() {
        let with = |units: f64| {
            let mut document = ChipDocument::of_built_in_chip("tpu_v4").unwrap().strip_measured(true);
            document.set_field("vector.transcendentals_per_cycle", &FieldValue::Number(units)).unwrap();
            document.build_accelerator().unwrap()
        };
        let area = |units: f64| chip_area(&with(units)).unwrap().total_area().0;
        assert!(area(256.0) > area(128.0) && area(128.0) > area(0.0));
        let seconds = |units: f64| {
            let mut chip = with(units);
            // The memories are too fast to be the bottleneck.
            let levels = chip.on_chip.iter_mut().chain([&mut chip.hbm]);
            levels.for_each(|level| (level.read_bandwidth.0, level.write_bandwidth.0) = (1e18, 1e18));
            let exponential = Elementwise {
                function: ElementwiseFunction::Exp,
                direction: Direction::Forward,
                elements: 1 << 26,
                read: Bytes(1 << 27),
                written: Bytes(1 << 27),
            };
            CostModel::new(chip).unwrap().cost_of_kernel(&Kernel::Elementwise(exponential), Span::AllCores).latency.0
        };
        // An exponential takes ten cycles on a lane and one on a unit. One unit per ten lanes takes half of the
        // exponentials, so the time halves. One unit per lane takes ten of eleven.
        let lanes = f64::from(with(0.0).vector.lanes);
        assert!((seconds(lanes / 10.0) / seconds(0.0) - 0.5).abs() < 1e-3);
        assert!((seconds(lanes) / seconds(0.0) - 1.0 / 11.0).abs() < 1e-3);
        let mut refused = ChipDocument::of_built_in_chip("tpu_v4").unwrap();
        refused.set_field("vector.transcendentals_per_cycle", &FieldValue::Number(-1.0)).unwrap();
        assert!(refused.build_accelerator().unwrap_err().to_string().contains("must be from 0 to 1e6"));
    }

    proptest! {
        #[test]
        fn the_file_of_phazes_design_is_the_design(
            tc in 0..=12u32, vc in 0..=12u32, w in 1..=8u32, d in 1..=8u32, glb in 1..=7u32, hbm in prop::sample::select(vec![32.0, 64.0, 80.0, 33.3]),
        ) {
            let config = phaze::PhazeConfig {
                num_tc: 1 << tc, num_vc: 1 << vc, width: 1 << w, depth: 1 << d, width_vc: 1 << w,
                global_buffer: Bytes(1 << (20 + glb)), hbm: Bytes::from_gib(hbm),
            };
            let document = phaze::design_document(&config).unwrap();
            prop_assert_eq!(document.build_accelerator().unwrap(), phaze::design_accelerator(&config));
            let read = ChipTemplate::from_toml_str(&document.to_text(&[], "searched").unwrap(), "best.toml").unwrap();
            prop_assert_eq!(read.accelerator, phaze::design_accelerator(&config));
        }
    }

    #[test]
    fn a_lone_field_is_set_as_its_file_sets_it() {
        let mut set = 0;
        for name in template_names() {
            for watts in [0.0, 12.5, 1e3, -1.0, 1e9] {
                let mut document = ChipDocument::of_built_in_chip(name).unwrap();
                let mut chip = document.build_accelerator().unwrap();
                let value = FieldValue::Number(watts);
                document.set_field("energy.static_w", &value).unwrap();
                let before = chip.clone();
                let is_set = ChipDocument::set_lone_field(&mut chip, "energy.static_w", &value);
                match document.build_accelerator() {
                    Ok(built) => assert!(is_set && chip == built, "{name} {watts}"),
                    Err(_) => assert!(!is_set && chip == before, "{name} {watts}"),
                }
                set += usize::from(is_set);
                assert!(!ChipDocument::set_lone_field(&mut chip, "tensor.rows", &FieldValue::Number(8.0)));
            }
        }
        assert!(set > 20, "{set}");
    }
}
