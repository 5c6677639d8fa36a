//! Other tools' formats: AIConfigurator, Calculon, Chakra, LLMCompass, NEST, PHAZE, Piper and SCALE-Sim; logs of
//! nccl-tests and traces of PyTorch's profiler. Nothing of the main path needs this crate.

pub mod aiconfigurator;
pub mod aiconfigurator_rows;
pub mod calculon;
pub mod chakra;
pub mod framework;
pub mod llm_compass;
pub mod log;
pub mod nest;
pub mod phaze;
pub mod piper;
mod rated_chip;
pub mod scale_sim;
pub mod schedule_instance;

use aiconfigurator::AiConfiguratorSystem;
use sim::files::FileError;
use sim::files::carried::Files;
use sim::hardware::{Accelerator, ChipTemplate};
use sim::network::{Fabric, NetworkError};

/// A chip from another simulator's file.
#[derive(Debug, Clone)]
pub struct ImportedChip {
    /// The chip.
    pub template: ChipTemplate,
    /// Figures of the file that the chip has in another size, one line each.
    pub notes: Vec<String>,
}

/// Returns whether a name or path is that of another simulator's file.
#[must_use]
pub fn is_imported(name_or_path: &str) -> bool {
    name_or_path.ends_with(".json") || is_yaml(name_or_path)
}

/// AIConfigurator's systems are the only ones in YAML.
fn is_yaml(name_or_path: &str) -> bool {
    name_or_path.ends_with(".yaml") || name_or_path.ends_with(".yml")
}

/// A chip from another simulator's file: LLMCompass's device or Calculon's system (`.json`), or AIConfigurator's
/// (`.yaml`).
///
/// # Errors
/// A file of none of these, or a faulty one.
pub fn import_chip(text: &str, file: &str) -> Result<ImportedChip, FileError> {
    if is_yaml(file) {
        let system = AiConfiguratorSystem::from_yaml_str(text, file)?;
        return Ok(ImportedChip { template: system.to_chip()?, notes: system.list_unmodelled() });
    }
    if calculon::system::CalculonSystem::recognises(text) {
        let system = calculon::system::CalculonSystem::from_json_str(text, file)?;
        return Ok(ImportedChip { template: system.to_chip(None)?, notes: system.list_endless_memories() });
    }
    Ok(ImportedChip { template: llm_compass::read_chip(text, file)?, notes: Vec::new() })
}

/// A fabric from another simulator's file: LLMCompass's interconnect, Calculon's networks, AIConfigurator's nodes.
///
/// # Errors
/// As [`import_chip`].
pub fn import_fabric(text: &str, file: &str) -> Result<Fabric, FileError> {
    if is_yaml(file) {
        return Ok(AiConfiguratorSystem::from_yaml_str(text, file)?.to_fabric());
    }
    if calculon::system::CalculonSystem::recognises(text) {
        return calculon::system::CalculonSystem::from_json_str(text, file)?.to_fabric();
    }
    llm_compass::read_fabric(text, file)
}

/// A fabric by name or by path, as in [`Fabric::load_for_chip`]. A `.json` path names an LLMCompass or Calculon system,
/// a `.yaml` path one of AIConfigurator; its networks belong to one chip.
///
/// # Errors
/// Those of [`Fabric::load_for_chip`], and a faulty file of another simulator.
pub fn load_fabric(name_or_path: &str, chip: &Accelerator, files: &Files) -> Result<Fabric, NetworkError> {
    if is_imported(name_or_path) {
        return load_imported_fabric(name_or_path, files);
    }
    Fabric::load_for_accelerator(name_or_path, chip, files)
}

/// The same with the figures for a built-in chip's name, or for the name of a fabric's own table.
///
/// # Errors
/// Those of [`load_fabric`].
pub fn load_fabric_for_name(name_or_path: &str, chip: &str, files: &Files) -> Result<Fabric, NetworkError> {
    if is_imported(name_or_path) {
        return load_imported_fabric(name_or_path, files);
    }
    Fabric::load_for_chip_from(name_or_path, chip, files)
}

fn load_imported_fabric(name_or_path: &str, files: &Files) -> Result<Fabric, NetworkError> {
    let text = Fabric::text_of_file(name_or_path, files)?;
    import_fabric(&text, name_or_path).map_err(|e| NetworkError::Malformed { why: e.faults_as_text(), file: e.file })
}
