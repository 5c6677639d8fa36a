//! A fabric's file as a document with settable fields, like [`ChipDocument`](crate::hardware::ChipDocument) for a chip.

use super::error::NetworkError;
use super::fabric::Fabric;
use super::file;
use super::tables::FabricFile;
use crate::files::FileFault;
use crate::files::carried::Files;
use crate::files::document::{self, FieldValue};
use serde::Deserialize;

/// A fabric's file as a table, with its figures for one chip.
#[derive(Debug, Clone, PartialEq)]
pub struct FabricDocument {
    table: toml::Table,
    file: String,
}

impl FabricDocument {
    /// Loads a built-in fabric by name, or a fabric file by path (any name that ends in `.toml`), with its figures for
    /// `chip`.
    ///
    /// # Errors
    /// As [`Fabric::load_for_chip`].
    pub fn load_for(name_or_path: &str, chip: &str) -> Result<Self, NetworkError> {
        Self::load_from(name_or_path, chip, &Files::default())
    }

    /// Loads like [`Self::load_for`], with the texts of `files` in place of files on the disk.
    ///
    /// # Errors
    /// Those of [`Self::load_for`].
    pub fn load_from(name_or_path: &str, chip: &str, files: &Files) -> Result<Self, NetworkError> {
        Fabric::load_for_chip_from(name_or_path, chip, files)?;
        let text = file::text_by_name_or_path(name_or_path, files)?;
        let malformed = |e: toml::de::Error| NetworkError::Malformed { file: name_or_path.into(), why: e.to_string() };
        let mut table: toml::Table = toml::from_str(&text).map_err(malformed)?;
        if let Some(toml::Value::Array(chips)) = table.remove("chip") {
            let own = chips.iter().find(|own| own.get("name").and_then(toml::Value::as_str) == Some(chip));
            apply_chip(&mut table, own.and_then(toml::Value::as_table));
            let names = chips.iter().filter_map(|own| own.get("name").cloned()).collect();
            table.insert("joins".into(), toml::Value::Array(names));
        }
        Ok(Self { table, file: name_or_path.to_owned() })
    }

    /// Returns every field with a single value, by key, without names of the fabric, sources, software and parts. Tiers
    /// go by their names: `tier.ici.bandwidth_gb_per_s`.
    #[must_use]
    pub fn list_fields(&self) -> Vec<(String, FieldValue)> {
        let mut fields = document::list_fields(&self.table);
        fields.retain(|(key, _)| {
            !matches!(key.as_str(), "name" | "description" | "source" | "fitted_on")
                && !key.ends_with(".source")
                && !key.starts_with("software.")
                && !key.starts_with("system.")
        });
        fields
    }

    /// Returns the first version or setting of the communication library that `software` names and for which the
    /// document has figures. `None` if there is none.
    #[must_use]
    pub fn software_with_figures(&self, software: &str) -> Option<&str> {
        self.apply_software(software)?.get("name")?.as_str()
    }

    fn apply_software(&self, software: &str) -> Option<&toml::Table> {
        let all = self.table.get("software")?.as_array()?;
        let named = |own: &&toml::Table| {
            own.get("name").and_then(toml::Value::as_str).is_some_and(|name| file::names_software(software, name))
        };
        all.iter().filter_map(toml::Value::as_table).find(named)
    }

    /// Returns the document with the figures under this version or setting, and without those of others
    /// ([`Fabric::built_in_under_software`]).
    #[must_use]
    pub fn with_software(mut self, software: &str) -> Self {
        let own = self.apply_software(software).cloned();
        self.table.remove("software");
        let Some(own) = own else { return self };
        if let Some(launch) = own.get("launch_us") {
            self.table.insert("launch_us".into(), launch.clone());
        }
        if let Some(toml::Value::Table(tier)) =
            self.table.get_mut("tier").and_then(toml::Value::as_array_mut).and_then(|t| t.first_mut())
        {
            // If the software has no protocol of lines or all-to-all, the tier has none either.
            tier.retain(|key, _| !key.starts_with("line_") && !key.starts_with("exchange_"));
            let figures = own.into_iter().filter(|(key, _)| !matches!(key.as_str(), "name" | "source" | "launch_us"));
            tier.extend(figures);
        }
        self
    }

    /// Returns the value of a field; `None` if the document has no such field.
    #[must_use]
    pub fn field_value(&self, key: &str) -> Option<FieldValue> {
        document::field_value(&self.table, key)
    }

    /// Sets a field. The sides of a torus are a word, `4x4x8`.
    ///
    /// # Errors
    /// No such table, a field that is a table itself, or malformed sides. [`Self::build_fabric`] refuses unknown
    /// fields.
    pub fn set_field(&mut self, key: &str, value: &FieldValue) -> Result<(), FileFault> {
        let Some(tier) = key.strip_prefix("tier.").and_then(|rest| rest.strip_suffix(".dims")) else {
            return document::set_field(&mut self.table, key, value, &self.file);
        };
        let side = |side: &str| side.parse().map(toml::Value::Integer).ok();
        let sides: Option<Vec<toml::Value>> = value.to_string().split('x').map(side).collect();
        let cure = "write the sides as \"4x4x8\" or [4, 4, 8]";
        let sides = sides.ok_or_else(|| FileFault::new(key, value, "does not give the sides of a torus", cure))?;
        let tiers = self.table.get_mut("tier").and_then(toml::Value::as_array_mut).into_iter().flatten();
        let own = tiers
            .filter_map(toml::Value::as_table_mut)
            .find(|table| table.get("name").and_then(toml::Value::as_str) == Some(tier));
        let own = own
            .ok_or_else(|| FileFault::new(key, value, format!("the fabric has no tier {tier}"), "correct the name"))?;
        own.insert("dims".into(), toml::Value::Array(sides));
        Ok(())
    }

    /// Sets the fabric's name.
    pub fn set_name(&mut self, name: &str) {
        self.table.insert("name".into(), toml::Value::String(name.to_owned()));
    }

    /// Prepends the source of the figures that were set.
    pub fn set_source(&mut self, source: &str) {
        self.prepend_text("source", source);
    }

    /// Prepends a text that says what was fitted, and on which data.
    pub fn set_fitted_on(&mut self, what: &str) {
        self.prepend_text("fitted_on", what);
    }

    /// Prepends a text to the file's own text under a key. The file's text then applies to the rest.
    fn prepend_text(&mut self, key: &str, text: &str) {
        let said = self.table.get(key).and_then(toml::Value::as_str).filter(|said| !said.is_empty());
        let rest = said.map_or_else(String::new, |said| format!("; the rest: {said}"));
        self.table.insert(key.into(), toml::Value::String(format!("{text}{rest}")));
    }

    /// Builds the fabric.
    ///
    /// # Errors
    /// An unknown field, a value of the wrong type, or impossible values (all of them are listed).
    pub fn build_fabric(&self) -> Result<Fabric, NetworkError> {
        let malformed = |e: toml::de::Error| NetworkError::Malformed {
            file: self.file.clone(),
            why: e.to_string().trim_end().into(),
        };
        file::build_checked(&self.file, FabricFile::deserialize(self.table.clone()).map_err(malformed)?)
    }

    /// The fabric's file as text. [`Fabric::load`] reads it back as [`Self::build_fabric`] builds it.
    ///
    /// # Errors
    /// A document that cannot be written as TOML; its reader would have refused it.
    pub fn to_text(&self) -> Result<String, NetworkError> {
        toml::to_string(&self.table)
            .map_err(|e| NetworkError::Malformed { file: self.file.clone(), why: e.to_string() })
    }
}

/// Applies a chip's figures to the tiers, as the reader of fabric files does.
fn apply_chip(table: &mut toml::Table, own: Option<&toml::Table>) {
    let (Some(own), Some(toml::Value::Array(tiers))) = (own, table.get_mut("tier")) else { return };
    let rates = own.get("bandwidth_gb_per_s").and_then(toml::Value::as_array);
    for (tier, rate) in tiers.iter_mut().filter_map(toml::Value::as_table_mut).zip(rates.into_iter().flatten()) {
        tier.insert("bandwidth_gb_per_s".into(), rate.clone());
    }
    if let Some(tier) = tiers.first_mut().and_then(toml::Value::as_table_mut) {
        for key in ["dims", "wrap_multiple"] {
            if let Some(value) = own.get(key) {
                tier.insert(key.into(), value.clone());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_document_is_the_fabric_and_its_text_reads_back() {
        let shared = [("ici_3d_torus", "tpu_v5p"), ("ici_2d_torus", "tpu_v6e")];
        for (name, chip) in Fabric::names().into_iter().map(|name| (name, "tpu_v4")).chain(shared) {
            let Ok(fabric) = Fabric::load_for_chip(name, chip) else { continue };
            let document = FabricDocument::load_for(name, chip).unwrap();
            assert_eq!(document.build_fabric().unwrap(), fabric, "{name}");
            assert_eq!(Fabric::from_toml_str("again.toml", &document.to_text().unwrap()).unwrap(), fabric, "{name}");
        }
    }

    #[test]
    fn a_document_under_a_library_is_the_fabric_under_it() {
        for software in ["NCCL 2.27.3", "NCCL 2.27.3, NVLS off", "another"] {
            for (name, chip) in [("nvlink3_node", "a100_80gb_sxm"), ("nvlink4_node", "h100_80gb_sxm")] {
                let document = FabricDocument::load_for(name, chip).unwrap().with_software(software);
                assert_eq!(
                    document.build_fabric().unwrap(),
                    Fabric::built_in_under_software(name, chip, software).unwrap(),
                    "{name} {software}"
                );
            }
        }
        assert_eq!(
            FabricDocument::load_for("nvlink3_node", "a100_80gb_sxm").unwrap().software_with_figures("NCCL 2.27.3"),
            Some("NCCL 2.2")
        );
    }

    #[test]
    fn a_tier_is_set_by_name() {
        let mut document = FabricDocument::load_for("ici_3d_torus", "tpu_v5p").unwrap();
        assert_eq!(document.field_value("tier.ici.bandwidth_gb_per_s"), Some(FieldValue::Number(600.0)));
        document.set_field("tier.ici.bandwidth_gb_per_s", &FieldValue::Number(300.0)).unwrap();
        assert_eq!(document.build_fabric().unwrap().tiers[0].bandwidth.0, 300e9);
        document.set_field("tier.ici.bandwith_gb_per_s", &FieldValue::Number(300.0)).unwrap();
        assert!(document.build_fabric().unwrap_err().to_string().contains("unknown field `bandwith_gb_per_s`"));
        assert!(document.set_field("tier.nvlink.devices", &FieldValue::Number(8.0)).is_err());
        let mut document = FabricDocument::load_for("tpu_v4_ici", "tpu_v4").unwrap();
        let sides = |document: &FabricDocument, devices| match document
            .build_fabric()
            .unwrap()
            .for_devices(devices)
            .unwrap()
            .tiers[0]
            .topology
        {
            crate::network::Topology::Torus { ref dims, .. } => dims.iter().map(|dim| dim.size).collect::<Vec<_>>(),
            _ => Vec::new(),
        };
        document.set_field("tier.ici.dims", &FieldValue::Word("4x32".into())).unwrap();
        assert_eq!(sides(&document, 128), [4, 32]);
        document.set_field("tier.ici.dims", &FieldValue::Word("8x4x4".into())).unwrap();
        assert_eq!(sides(&document, 128), [8, 4, 4]);
        for (key, value) in [("tier.ici.dims", "4xx4"), ("tier.ici.dims", "ring"), ("tier.dcn.dims", "4x4")] {
            assert!(document.set_field(key, &FieldValue::Word(value.into())).is_err(), "{key} {value}");
        }
    }
}
