//! Reads and writes the formats of other tools: AIConfigurator, Calculon, Chakra, LLMCompass, NEST, PHAZE, Piper and
//! SCALE-Sim, logs of nccl-tests, traces of PyTorch's profiler, and training configurations of frameworks. The main
//! path does not need this crate.

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
    /// Figures of the file that the chip does not have or has in another size, one line each.
    pub notes: Vec<String>,
}

/// True if a name or path ends like another simulator's file: `.json`, `.yaml` or `.yml`.
#[must_use]
pub fn is_imported(name_or_path: &str) -> bool {
    name_or_path.ends_with(".json") || is_yaml(name_or_path)
}

/// True if a name or path ends in `.yaml` or `.yml`. Only AIConfigurator's systems are in YAML.
fn is_yaml(name_or_path: &str) -> bool {
    name_or_path.ends_with(".yaml") || name_or_path.ends_with(".yml")
}

/// Reads a chip from the text of another simulator's file: LLMCompass's device or Calculon's system (`.json`), or
/// AIConfigurator's system (`.yaml`). `file` names it in errors, and its ending selects the format.
///
/// # Errors
/// A file of none of these formats, or a faulty one.
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

/// Reads a fabric from the text of another simulator's file: LLMCompass's interconnect, Calculon's networks, or
/// AIConfigurator's nodes and racks.
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

/// Loads a fabric by name or by path, as [`Fabric::load_for_chip`] does. A `.json` path names a file of LLMCompass or
/// Calculon, a `.yaml` path one of AIConfigurator. The networks of such a file belong to its own chip, so `chip` does
/// not change them.
///
/// # Errors
/// Those of [`Fabric::load_for_chip`], and a faulty file of another simulator.
pub fn load_fabric(name_or_path: &str, chip: &Accelerator, files: &Files) -> Result<Fabric, NetworkError> {
    if is_imported(name_or_path) {
        return load_imported_fabric(name_or_path, files);
    }
    Fabric::load_for_accelerator(name_or_path, chip, files)
}

/// As [`load_fabric`], with the figures for `chip`, which is the name of a built-in chip or of a table of the fabric's
/// file.
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
