//! Reads the inputs that several verbs share, and assigns exit codes to their errors.

use crate::failure::{self, Failure, OrInput};
use results::asked::JobInputs;
use results::run::{self, SearchRun};
use sim::hardware::{ChipTemplate, Storage};
use sim::network::{Fabric, LinkMatrix};
use sim::units::{Bytes, BytesPerSecond};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use step::SoftwareStack;
use workloads::model;

/// Reads a chip by name or path. A path leads to a chip file (`.toml`), an LLMCompass device description or a Calculon
/// system (`.json`). It may also lead to a run directory with a found chip, or to the JSON that `evaluate` or `plan`
/// printed.
pub fn read_chip(name_or_path: &str) -> Result<ChipTemplate, Failure> {
    let directory = Path::new(name_or_path);
    if directory.is_dir() {
        let text = SearchRun::read_chip(directory).or_input()?;
        return ChipTemplate::from_toml_str(&text, &directory.join(run::CHIP).display().to_string()).or_input();
    }
    let file = |ending| name_or_path.ends_with(ending);
    if !file(".toml") && !file(".json") {
        return ChipTemplate::find_built_in(name_or_path).cloned().or_input();
    }
    let text =
        read_text(Path::new(name_or_path), "a chip file (.toml), an LLMCompass device description or a Calculon system (.json)")?;
    if let Some(asked) = file(".json").then(|| read_answer_inputs(&text)).flatten() {
        return chip_of_answer(&asked, name_or_path);
    }
    chip_from_text(&text, name_or_path)
}

/// Reads a chip from the text of its file.
fn chip_from_text(text: &str, file: &str) -> Result<ChipTemplate, Failure> {
    if file.ends_with(".json") {
        return interop::import_chip(text, file).or_input();
    }
    ChipTemplate::from_toml_str(text, file).or_input()
}

/// The inputs of an answer of `evaluate` or `plan`, if the text is one. A search's record is none; its chip is in its
/// directory.
fn read_answer_inputs(text: &str) -> Option<JobInputs> {
    let asked: JobInputs = serde_json::from_str(text).ok()?;
    asked.asked_with.iter().any(|word| word == "--chip").then_some(asked)
}

/// Reads the chip of an answer.
fn chip_of_answer(asked: &JobInputs, file: &str) -> Result<ChipTemplate, Failure> {
    let named = asked.asked_with.iter().skip_while(|word| *word != "--chip").nth(1).map_or("", String::as_str);
    match asked.inputs.get(named) {
        Some(text) => match read_answer_inputs(text) {
            Some(earlier) => chip_of_answer(&earlier, file),
            None => chip_from_text(text, named),
        },
        None => ChipTemplate::find_built_in(named).cloned().map_err(|error| failure::input_failure(format!("{file}: {error}"))),
    }
}

/// From now on, reads the files that a run's question names as they were at that time. Files that the user names
/// (`own`) are read as they are.
pub fn keep_files_of_run(directory: &Path, own: &[&str]) -> Result<(), Failure> {
    keep_texts(run::read_inputs(directory).or_input()?, own);
    Ok(())
}

/// From now on, reads these texts instead of the files of their names, as [`keep_files_of_run`] does.
pub fn keep_texts(mut inputs: BTreeMap<String, String>, own: &[&str]) {
    for named in own.iter().map(Path::new).filter(|path| path.exists()) {
        inputs.retain(|path, _| Path::new(path) != named && *path != model::config_file(named).display().to_string());
    }
    sim::files::text::keep_texts(inputs.into_iter().map(|(path, text)| (path.into(), text)));
}

/// The texts of the files among these names of models, studies, chips, fabrics and stacks, by path as given.
pub fn texts_of_files<'a>(
    models: impl Iterator<Item = &'a str>,
    others: &[&'a str],
) -> Result<BTreeMap<String, String>, Failure> {
    let models = models.filter(|name| !model::is_built_in(name)).map(|name| model::config_file(Path::new(name)));
    // Names other than models refer to a file if they have its extension. A directory is a run; the question has its
    // chip.
    let named =
        others.iter().filter(|name| [".toml", ".json"].iter().any(|end| name.ends_with(end)) && !Path::new(name).is_dir());
    let read = |path: PathBuf| Ok((path.display().to_string(), self::read_text(&path, "a file that the question names")?));
    models.chain(named.map(PathBuf::from)).map(read).collect()
}

/// Reads a fabric with its figures for `chip`. The fabric is built in, or a path to a fabric file (`.toml`), an
/// LLMCompass device description or a Calculon system (`.json`). Fast domains have `domain` devices, if given.
pub fn read_fabric(name_or_path: &str, chip: &str, domain: Option<u32>) -> Result<Fabric, Failure> {
    let fabric = interop::load_fabric(name_or_path, chip).or_input()?;
    let largest = fabric.fast_domain_devices();
    match domain {
        // A larger fast domain would be another fabric.
        Some(devices) if devices > largest => Err(failure::input_failure(format!(
            "--fast-domain {devices}: {}'s have at most {largest} devices; use at most {largest}, or a fabric with larger ones",
            fabric.name
        ))),
        Some(devices) => {
            fabric.with_fast_domain(devices).map_err(|e| failure::input_failure(format!("--fast-domain {devices}: {e}")))
        }
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

/// Reads a software stack, built in or from a file, and sets its options.
pub fn read_stack(name_or_path: &str, options: &[String]) -> Result<SoftwareStack, Failure> {
    let mut stack = SoftwareStack::load(name_or_path).or_input()?;
    let key = |option: &String| option.split('=').next().unwrap_or_default().trim().to_owned();
    for (i, option) in options.iter().enumerate() {
        if options[..i].iter().any(|other| key(other) == key(option)) {
            return Err(failure::input_failure(format!("--stack-option {option}: {} is set twice; set it once", key(option))));
        }
        stack = stack.with_option(option).map_err(|error| failure::input_failure(format!("--stack-option: {error}")))?;
    }
    Ok(stack)
}

/// A fabric with measured links between its nodes or devices. Fails if they do not join the devices of the cluster.
pub fn fabric_with_links(whole: Fabric, devices: u32, links: LinksFile<'_>) -> Result<Fabric, Failure> {
    let file = links.path.display().to_string();
    let text = read_text(links.path, "a table of links (.csv)")?;
    let matrix = LinkMatrix::from_csv(&file, &text, links.of).or_input()?;
    let unit = if links.between_devices { 1 } else { whole.fast_domain_devices() };
    if devices <= unit {
        return Err(failure::input_failure(format!(
            "--links {file}: --devices {devices} lie in one unit of {unit}, which these links do not join; give more devices, a smaller \
             --fast-domain, or --links-between devices"
        )));
    }
    let held = u64::from(matrix.unit_count()) * u64::from(unit);
    if u64::from(devices) > held {
        return Err(failure::input_failure(format!(
            "--links {file}: {} units of {unit} devices hold {held}, --devices {devices} is more; measure more units or use {held}",
            matrix.unit_count()
        )));
    }
    whole.with_links(&matrix, unit, &file).or_input()
}

/// Reads the text of a file. `what` is the expected content, for the message.
pub fn read_text(path: &Path, what: &str) -> Result<String, Failure> {
    sim::files::text::read_text(path)
        .map_err(|e| failure::input_failure(format!("{}: cannot be read: {e}; give the path of {what}", path.display())))
}

/// Parses `7:960`: bandwidth in one direction in GB/s, and capacity in GB.
pub fn parse_storage(text: &str) -> Result<Storage, Failure> {
    let number = |part: &str| part.trim().parse::<f64>().ok().filter(|v| (1e-3..=1e6).contains(v));
    let parts = text.split_once(':').and_then(|(rate, size)| Some((number(rate)?, number(size)?)));
    let (rate, size) = parts.ok_or_else(|| {
        failure::input_failure(format!(
            "--nvme {text}: must be GB/s and GB of every device, each from 0.001 to 1000000; write it like 6.4:1600"
        ))
    })?;
    let bandwidth = BytesPerSecond(rate * 1e9);
    Ok(Storage { read_bandwidth: bandwidth, write_bandwidth: bandwidth, capacity: Bytes((size * 1e9) as u64) })
}
