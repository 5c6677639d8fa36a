//! Reads the inputs that several verbs share, and assigns exit codes to their errors.

use crate::failure::{self, Failure, OrInput};
use interop::log::LogContext;
use measured::validate::read_measured_file;
use results::run::search_run::{self, SearchRun};
use search::ask::{ChipChoice, Question};
use serde::Deserialize;
use sim::files::carried::Files;
use sim::hardware::{Accelerator, ChipTemplate, Storage};
use sim::network::{Fabric, LinkMatrix};
use sim::units::{Bytes, BytesPerSecond};
use std::path::Path;
use step::SoftwareStack;
use workloads::memory::Preset;
use workloads::{Technique, TechniqueError};

/// Returns the rows of a file of measured data as CSV: the file's own text, or the rows of a log of nccl-tests or a
/// trace of PyTorch's profiler.
pub fn read_measured_rows(path: &Path, context: LogContext<'_>) -> Result<Vec<u8>, Failure> {
    let text = read_measured_file(path).or_input()?;
    Ok(interop::log::rows_of_log(path, &text, context).or_input()?.unwrap_or(text))
}

/// Reads a built-in chip by name, or a chip by path. The path is a chip file (`.toml`), an LLMCompass device
/// description or a Calculon system (`.json`), a system of AIConfigurator (`.yaml`), the directory of a run that found
/// a chip, or an answer that `evaluate` or `plan` printed as JSON.
pub fn read_chip(name_or_path: &str, files: &Files) -> Result<ChipTemplate, Failure> {
    let directory = search_run::directory_of_run(Path::new(name_or_path));
    if directory.is_dir() {
        let text = SearchRun::read_chip(&directory).or_input()?;
        return ChipTemplate::from_toml_str(&text, &directory.join(search_run::CHIP).display().to_string()).or_input();
    }
    let file = |ending| name_or_path.ends_with(ending);
    if !file(".toml") && !interop::is_imported(name_or_path) {
        return ChipTemplate::find_built_in(name_or_path).cloned().or_input();
    }
    let what =
        "a chip file (.toml), an LLMCompass device or a Calculon system (.json), or one of AIConfigurator (.yaml)";
    let text = read_text_from(Path::new(name_or_path), what, files)?;
    if let Some(chip) = file(".json").then(|| chip_of_answer(&text)).flatten() {
        return chip.map_err(|error| error.with_context(name_or_path.to_owned()));
    }
    chip_from_text(&text, name_or_path)
}

/// Reads a chip from the text of its file.
fn chip_from_text(text: &str, file: &str) -> Result<ChipTemplate, Failure> {
    if interop::is_imported(file) {
        let imported = interop::import_chip(text, file).or_input()?;
        for note in &imported.notes {
            tracing::warn!("{file}: {note}");
        }
        return Ok(imported.template);
    }
    ChipTemplate::from_toml_str(text, file).or_input()
}

/// The part of an answer of `evaluate` or `plan` that names its chip. A search's record has no such part: its chip is a
/// file of the run directory.
#[derive(Deserialize)]
struct ChipOfAnswer {
    asked: Question,
}

/// Reads the chip of an answer of `evaluate` or `plan`; `None` if the text is no such answer.
fn chip_of_answer(text: &str) -> Option<Result<ChipTemplate, Failure>> {
    let ChipOfAnswer { asked } = serde_json::from_str(text).ok()?;
    let ChipChoice::One { chip, .. } = &asked.chips else { return None };
    Some(read_chip(chip, &asked.files))
}

/// Reads a fabric with its figures for `chip`. The fabric is built in, or a path to a fabric file (`.toml`), an
/// LLMCompass device description or a Calculon system (`.json`), or a system of AIConfigurator (`.yaml`). If `domain`
/// is given, fast domains have that many devices. Fails if the fabric's own fast domains are smaller.
pub fn read_fabric(
    name_or_path: &str,
    chip: &Accelerator,
    domain: Option<u32>,
    files: &Files,
) -> Result<Fabric, Failure> {
    let fabric = interop::load_fabric(name_or_path, chip, files).or_input()?;
    let largest = fabric.fast_domain_devices();
    match domain {
        // A larger fast domain would be another fabric.
        Some(devices) if devices > largest => Err(failure::option_failure(
            "--fast-domain",
            devices,
            format!("{}'s have at most {largest} devices", fabric.name),
            format!("use at most {largest}, or a fabric with larger ones"),
        )),
        Some(devices) => fabric
            .with_fast_domain(devices)
            .map_err(|error| failure::option_failure_from(&format!("--fast-domain {devices}"), &error)),
        None => Ok(fabric),
    }
}

/// A file of measured links.
#[derive(Debug, Clone, Copy)]
pub struct LinksFile<'a> {
    /// The file.
    pub path: &'a Path,
    /// The name of the cluster, if the file has several.
    pub of: Option<&'a str>,
    /// True if the links join devices; otherwise they join the units of the fabric's innermost tier.
    pub between_devices: bool,
}

/// Reads the requested software stack, else the chip's usual one, and sets its options. `file` is the chip's name or
/// path as given.
pub fn read_stack_of_chip(
    asked: Option<&str>,
    (chip, file): (&Accelerator, &str),
    options: &[String],
    files: &Files,
) -> Result<SoftwareStack, Failure> {
    match asked {
        Some(asked) => read_stack(asked, options, files),
        None => set_options(SoftwareStack::load_usual_of_chip(chip, file).or_input()?, options),
    }
}

/// Reads a software stack, built in or from a file, and sets its options. Fails if an option is given twice.
pub fn read_stack(name_or_path: &str, options: &[String], files: &Files) -> Result<SoftwareStack, Failure> {
    set_options(SoftwareStack::load_from(name_or_path, files).or_input()?, options)
}

fn set_options(mut stack: SoftwareStack, options: &[String]) -> Result<SoftwareStack, Failure> {
    let key = |option: &String| option.split('=').next().unwrap_or_default().trim().to_owned();
    for (i, option) in options.iter().enumerate() {
        if options[..i].iter().any(|other| key(other) == key(option)) {
            return Err(failure::option_failure(
                "--stack-option",
                option,
                format!("{} is set twice", key(option)),
                "set it once",
            ));
        }
        stack = stack.with_option(option).map_err(|error| failure::option_failure_from("--stack-option", &error))?;
    }
    Ok(stack)
}

/// Puts measured links between the nodes or devices of a fabric. Fails if the links do not join the devices of the
/// cluster.
pub fn fabric_with_links(whole: Fabric, devices: u32, links: LinksFile<'_>) -> Result<Fabric, Failure> {
    let file = links.path.display().to_string();
    let text = read_text(links.path, "a table of links (.csv)")?;
    let matrix = LinkMatrix::from_csv(&file, &text, links.of).or_input()?;
    let unit = if links.between_devices { 1 } else { whole.fast_domain_devices() };
    if devices <= unit {
        return Err(failure::option_failure(
            "--links",
            file,
            format!("--devices {devices} lie in one unit of {unit}, which these links do not join"),
            "give more devices, a smaller --fast-domain, or --links-between devices",
        ));
    }
    let held = u64::from(matrix.unit_count()) * u64::from(unit);
    if u64::from(devices) > held {
        return Err(failure::option_failure(
            "--links",
            file,
            format!("{} units of {unit} devices hold {held}, --devices {devices} is more", matrix.unit_count()),
            format!("measure more units or use {held}"),
        ));
    }
    whole.with_links(&matrix, unit, &file).or_input()
}

/// The kind of work that a technique serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TechniqueUse {
    Training,
    Serving,
}

/// Parses a technique. An unknown name is refused with the names of the techniques for the same work.
pub fn parse_technique(text: &str, work: TechniqueUse) -> Result<Technique, TechniqueError> {
    text.parse().map_err(|error| match error {
        TechniqueError::Unknown { name, .. } => {
            let serves = |preset: &Preset| preset.inference_only.is_some() == (work == TechniqueUse::Serving);
            let of_work = |name: &String| Preset::load(name).is_ok_and(|preset| serves(&preset));
            let names: Vec<String> = Preset::built_in_names().into_iter().filter(of_work).collect();
            let hint = sim::names::hint(&name, &names.join(", "), "built in are");
            TechniqueError::Unknown { name, hint }
        }
        other => other,
    })
}

/// Reads the text of a file. `what` is the expected content, for the message.
pub fn read_text(path: &Path, what: &str) -> Result<String, Failure> {
    read_text_from(path, what, &Files::default())
}

/// Reads the text of a file as [`read_text`] does. Texts in `files` replace files on the disk.
pub fn read_text_from(path: &Path, what: &str, files: &Files) -> Result<String, Failure> {
    files.read(path).map_err(|e| {
        failure::file_failure(path.display(), format!("cannot be read: {e}"), format!("give the path of {what}"))
    })
}

/// Parses `7:960`: bandwidth in one direction in GB/s, and capacity in GB.
pub fn parse_storage(text: &str) -> Result<Storage, Failure> {
    let number = |part: &str| part.trim().parse::<f64>().ok().filter(|v| (1e-3..=1e6).contains(v));
    let parts = text.split_once(':').and_then(|(rate, size)| Some((number(rate)?, number(size)?)));
    let (rate, size) = parts.ok_or_else(|| {
        failure::option_failure(
            "--nvme",
            text,
            "must be GB/s and GB of every device, each from 0.001 to 1000000",
            "write it like 6.4:1600",
        )
    })?;
    let bandwidth = BytesPerSecond(rate * 1e9);
    Ok(Storage { read_bandwidth: bandwidth, write_bandwidth: bandwidth, capacity: Bytes((size * 1e9) as u64) })
}
