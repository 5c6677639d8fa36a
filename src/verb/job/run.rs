//! The values that a run directory supplies if it is given as a chip: its cluster, its software and its files, and for
//! the same model also its plan.

use crate::failure::{Failure, OrInput};
use clap::builder::{PathBufValueParser, TypedValueParser};
use results::run::record::RECORD;
use results::run::search_run::{self, SearchRun};
use search::ask::Question;
use sim::files::carried::Files;
use std::path::{Path, PathBuf};

/// Returns the question that the best step of a run answers, for `model` or else for the run's first model. `None` if
/// `chip` is no directory.
///
/// # Errors
/// A directory that is no run, that found no chip, or whose files are damaged or of another version.
pub fn question_of_run(chip: &str, model: &str) -> Result<Option<Question>, Failure> {
    let directory = search_run::directory_of_run(Path::new(chip));
    if !directory.is_dir() {
        return Ok(None);
    }
    SearchRun::read_chip(&directory).or_input()?;
    Ok(search_run::read_record(&directory).or_input()?.question_of_best(&directory, Some(model)))
}

/// Returns the texts that the question of a run carries, without those of existing files that the user names (`own`).
/// The texts of `given` take precedence.
pub fn files_beside(run: Option<&Question>, own: &[&str], given: &Files) -> Files {
    let mut files = run.map_or_else(Files::default, |run| run.files.clone());
    for path in own.iter().map(Path::new).filter(|path| path.exists()) {
        files.remove(path);
        files.remove(&path.join("config.json"));
    }
    given.iter().for_each(|(path, text)| files.insert(Path::new(path), text.to_owned()));
    files
}

/// Returns the file of a run's chip if `chip` is a directory; otherwise `chip` itself.
pub fn file_of_chip(chip: &str) -> String {
    let directory = search_run::directory_of_run(Path::new(chip));
    if directory.is_dir() { directory.join(search_run::CHIP).display().to_string() } else { chip.to_owned() }
}

/// Makes a parser of a run's path: its directory, or its record, which stands for the directory.
pub fn run_path() -> impl TypedValueParser<Value = PathBuf> {
    PathBufValueParser::new().map(|path| search_run::directory_of_run(&path))
}

/// Returns the path of a run's own fabric if `fabric` is `fabric.toml` and the chip's directory holds a run; otherwise
/// `fabric` itself. A run's `evaluate_with` uses that short name.
pub fn fabric_beside_chip(fabric: &str, chip: &str) -> String {
    let directory = Path::new(chip).parent().unwrap_or(Path::new(""));
    let own = directory.join(search_run::FABRIC);
    let is_of_run = fabric == search_run::FABRIC && own.is_file() && directory.join(RECORD).is_file();
    if is_of_run { own.display().to_string() } else { fabric.to_owned() }
}
