//! The built-in chips: one TOML file each in `sim/templates/chips/`, embedded at build time, with a source for every
//! number.

use super::file::{self, ChipTemplate};
use super::{Accelerator, HardwareError};
use std::sync::OnceLock;

pub(super) mod embedded {
    include!(concat!(env!("OUT_DIR"), "/templates.rs"));
}

impl ChipTemplate {
    /// Reads and verifies a chip's file; `file` names it in errors.
    ///
    /// # Errors
    /// Malformed TOML, a missing or unknown key, or impossible values (all of them are listed).
    pub fn from_toml_str(text: &str, file: &str) -> Result<Self, HardwareError> {
        let mut template = file::read_chip_file(text, file)?;
        let like = all_templates()?.iter().find(|built_in| built_in.accelerator.has_hardware_of(&template.accelerator));
        template.accelerator.origin.built_in = like.map(|built_in| built_in.name.clone());
        Ok(template)
    }

    /// Returns the built-in chip of this name or alias; case, `-` and blanks do not matter.
    ///
    /// # Errors
    /// [`HardwareError::Unknown`] lists the names that exist.
    pub fn find_built_in(name: &str) -> Result<&'static Self, HardwareError> {
        let wanted = normalise_name(name);
        let answers = |t: &&Self| {
            normalise_name(&t.name) == wanted || t.aliases.iter().any(|alias| normalise_name(alias) == wanted)
        };
        match all_templates()?.iter().find(answers) {
            Some(template) => Ok(template),
            None => Err(HardwareError::Unknown { name: name.to_owned(), known: template_names().join(", ") }),
        }
    }

    /// Returns the source of a figure: that of its key, or of the nearest table above it; `None` if there is none.
    #[must_use]
    pub fn source_of(&self, key: &str) -> Option<&str> {
        let mut prefix = key;
        loop {
            if let Some(source) = self.sources.get(prefix) {
                return Some(source);
            }
            prefix = prefix.rsplit_once('.')?.0;
        }
    }
}

fn normalise_name(name: &str) -> String {
    name.chars().filter(|c| c.is_ascii_alphanumeric()).map(|c| c.to_ascii_lowercase()).collect()
}

/// Returns the names of the built-in chips, sorted.
#[must_use]
pub fn template_names() -> Vec<&'static str> {
    embedded::CHIPS.iter().map(|(name, _)| *name).collect()
}

/// Returns all built-in chips, sorted by name.
///
/// # Errors
/// A built-in file that does not verify. The tests read them all, so a released build has none.
pub fn all_templates() -> Result<&'static [ChipTemplate], HardwareError> {
    static ALL: OnceLock<Result<Vec<ChipTemplate>, HardwareError>> = OnceLock::new();
    let read = |(name, text): &(&str, &str)| {
        let mut template = file::read_chip_file(text, &format!("{name}.toml"))?;
        template.accelerator.origin.built_in = Some((*name).to_owned());
        Ok(template)
    };
    let read = || embedded::CHIPS.iter().map(read).collect();
    match ALL.get_or_init(read) {
        Ok(templates) => Ok(templates),
        Err(error) => Err(error.clone()),
    }
}

impl Accelerator {
    /// Returns the built-in chip of this name or alias.
    ///
    /// # Errors
    /// [`HardwareError::Unknown`] lists the names that exist.
    pub fn built_in(name: &str) -> Result<Self, HardwareError> {
        ChipTemplate::find_built_in(name).map(|template| template.accelerator.clone())
    }

    /// Reads and verifies a chip's file; `file` names it in errors.
    ///
    /// # Errors
    /// Malformed TOML, a missing or unknown key, or impossible values (all of them are listed).
    pub fn from_toml_str(text: &str, file: &str) -> Result<Self, HardwareError> {
        ChipTemplate::from_toml_str(text, file).map(|template| template.accelerator)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_copied_file_is_the_built_in_chip_under_another_name() {
        for (name, text) in embedded::CHIPS {
            let copy = text.replacen(&format!("name = \"{name}\""), "name = \"acme\"", 1);
            let chip = Accelerator::from_toml_str(&copy, "acme.toml").unwrap();
            let built_in = Accelerator::built_in(name).unwrap();
            assert_eq!((chip.name.as_str(), chip.known_name()), ("acme", *name));
            assert_eq!(Accelerator { name: built_in.name.clone(), ..chip }, built_in);
        }
    }

    #[test]
    fn other_hardware_is_no_built_in_chip_whatever_its_name() {
        let (_, text) = embedded::CHIPS.iter().find(|(name, _)| *name == "tpu_v5p").unwrap();
        let chip = Accelerator::from_toml_str(&text.replacen("preload = true", "preload = false", 1), "tpu_v5p.toml");
        let chip = chip.unwrap();
        assert_eq!((chip.origin.built_in.as_deref(), chip.known_name()), (None, "tpu_v5p"));
        assert!(!chip.runs_like(&Accelerator::built_in("tpu_v5p").unwrap()));
    }

    #[test]
    fn usual_software_and_fabric_are_no_hardware() {
        let chip = Accelerator::built_in("h100").unwrap();
        let bare = Accelerator { origin: crate::hardware::ChipOrigin::default(), ..chip.clone() };
        assert!(chip.runs_like(&bare) && chip.has_hardware_of(&bare));
    }
}
