//! Loads models by name or from a file.

use super::hugging_face;
use crate::error::WorkloadError;
use crate::model::{Model, built_in_names, config_file, find_built_in};
use sim::files::carried::Files;
use std::path::Path;

impl Model {
    /// Loads a built-in model by its name or an alias, or a `config.json` by its path or folder.
    ///
    /// # Errors
    /// A name that is neither built in nor a file, or a file that is not a valid configuration.
    pub fn load(name_or_path: &str) -> Result<Self, WorkloadError> {
        Self::load_from(name_or_path, &Files::default())
    }

    /// Loads a model as [`Self::load`] does; the texts of `files` replace files on the disk.
    ///
    /// # Errors
    /// The errors of [`Self::load`].
    pub fn load_from(name_or_path: &str, files: &Files) -> Result<Self, WorkloadError> {
        Self::load_assuming(name_or_path, files, &[])
    }

    /// Loads a model as [`Self::load_from`] does, and ignores the keys in `ignored`. Each ignored key must be in the
    /// file, and the model's family must not read it.
    ///
    /// # Errors
    /// The errors of [`Self::load`]; an ignored key that is absent, or that the family reads.
    pub fn load_assuming(name_or_path: &str, files: &Files, ignored: &[String]) -> Result<Self, WorkloadError> {
        if let Some((name, text)) = find_built_in(name_or_path) {
            return hugging_face::parse_config_ignoring(name, name, text, ignored);
        }
        let path = Path::new(name_or_path);
        if files.exists(path) || files.exists(&config_file(path, files)) {
            return Self::load_file_from(path, files, ignored);
        }
        Err(WorkloadError::unknown_model(name_or_path, built_in_names()))
    }

    /// Loads a `config.json` in Hugging Face's format, by its path or folder.
    ///
    /// # Errors
    /// An unreadable file, or a file that is not a valid configuration.
    pub fn load_file(path: &Path) -> Result<Self, WorkloadError> {
        Self::load_file_from(path, &Files::default(), &[])
    }

    fn load_file_from(path: &Path, files: &Files, ignored: &[String]) -> Result<Self, WorkloadError> {
        let file = config_file(path, files);
        let place = file.display().to_string();
        let unreadable = |e: std::io::Error| WorkloadError::Unreadable { file: place.clone(), reason: e.to_string() };
        let text = files.read(&file).map_err(unreadable)?;
        hugging_face::parse_config_ignoring(&place, &place, &text, ignored)
    }
}
