//! `coplace doctor`: checks the machine, the built-in files, and the runs in a directory.

use crate::answer::{self, Format, Versioned};
use crate::call::Call;
use crate::failure::{Failure, OrOther};
use crate::verb::list;
use results::run::parts;
use results::run::record::RECORD;
use results::run::serving::ServingRun;
use results::run::sweep;
use results::store::sums::SUMS;
use results::text::{format_fields, format_heading};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Check the installation: the machine, the built-in files, and the runs in a directory
#[derive(clap::Args)]
#[command(after_help = "Example:\n  coplace doctor --runs runs\n\n\
    Reads every built-in model, chip, fabric, study and stack, and verifies every run in the directory of runs\n\
    with its digests. The exit code is 3 if a fault is found.\n\n\
    JSON: version, threads, built_in, runs_in, runs, unsound.")]
pub struct DoctorArguments {
    /// Directory of runs
    #[arg(long, value_name = "DIR", default_value = "runs")]
    runs: PathBuf,
    /// Format of the answer
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// The findings.
#[derive(Serialize)]
struct DoctorAnswer {
    version: &'static str,
    /// Threads that a search uses.
    threads: usize,
    /// True if the build has the solver HiGHS.
    highs: bool,
    built_in: Vec<BuiltInFiles>,
    runs_in: String,
    runs: Vec<RunDirectory>,
    /// The faults, each with its reason.
    unsound: Vec<String>,
}

/// The built-in files of a kind.
#[derive(Serialize)]
struct BuiltInFiles {
    kind: &'static str,
    sound: usize,
}

/// A run directory.
#[derive(Serialize)]
struct RunDirectory {
    directory: String,
    model: String,
    /// `None` for a run of serve on given chips.
    study: Option<String>,
}

/// Runs the verb: checks and prints.
pub fn run_doctor(arguments: &DoctorArguments, call: &Call) -> Result<(), Failure> {
    let mut unsound = Vec::new();
    let mut built_in = Vec::new();
    for (kind, count) in list::KINDS {
        match count() {
            Ok(sound) => built_in.push(BuiltInFiles { kind, sound }),
            Err(failure) => unsound.push(format!("built-in {kind}: {}", failure.message())),
        }
    }
    let found = DoctorAnswer {
        version: env!("CARGO_PKG_VERSION"),
        threads: std::thread::available_parallelism().or_other()?.get(),
        highs: cfg!(feature = "highs"),
        built_in,
        runs_in: arguments.runs.display().to_string(),
        runs: find_runs(&arguments.runs, &mut unsound),
        unsound,
    };
    answer::write_answer(call, arguments.format, &Versioned::with_schema_one(&found), |_| answer_text(&found))?;
    match found.unsound.len() {
        0 => Ok(()),
        n => Err(Failure::Incomplete(anyhow::anyhow!("{n} faults found; the answer names them with their cures"))),
    }
}

/// Returns the runs in a directory, by name. Other directories are skipped; the faults of damaged runs are added to
/// `unsound`.
fn find_runs(directory: &Path, unsound: &mut Vec<String>) -> Vec<RunDirectory> {
    let entries = std::fs::read_dir(directory).into_iter().flatten().filter_map(Result::ok);
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| is_run(path)).collect();
    paths.sort();
    let mut found = Vec::new();
    for path in paths {
        match read_names(&path) {
            Ok((model, study)) => found.push(RunDirectory { directory: path.display().to_string(), model, study }),
            Err(why) => unsound.push(why),
        }
    }
    found
}

/// True if a directory holds a run, even if either its record or its digests are lost.
fn is_run(directory: &Path) -> bool {
    let sealed = directory.join(SUMS).exists() && !parts::is_part(directory);
    directory.join(RECORD).exists() || sealed || ServingRun::is_in(directory)
}

/// Returns the model and the study of a run after a check of its digests, or the fault in words.
fn read_names(directory: &Path) -> Result<(String, Option<String>), String> {
    if ServingRun::is_in(directory) {
        let run = ServingRun::read_from(directory).map_err(|why| why.to_string())?;
        return Ok((run.record.asked.model, run.record.asked.study));
    }
    let study = sweep::read_directory(directory).map_err(|why| why.to_string())?.record.study;
    Ok((study.model, Some(study.name)))
}

fn answer_text(found: &DoctorAnswer) -> String {
    let mut text = format_fields(&[
        ("coplace", found.version.to_owned()),
        ("threads", format!("{}, all of which a search uses", found.threads)),
        (
            "solvers",
            if found.highs { "microlp and HiGHS" } else { "microlp; HiGHS with the feature `highs`" }.to_owned(),
        ),
    ]);
    text.push_str(&format_heading("Built in, read and sound"));
    let built_in: Vec<(&str, String)> = found.built_in.iter().map(|kind| (kind.kind, kind.sound.to_string())).collect();
    text.push_str(&format_fields(&built_in));
    text.push_str(&format_heading(&format!("Runs in {}", found.runs_in)));
    let words = |run: &RunDirectory| match &run.study {
        Some(study) => format!("{}, study {study}", run.model),
        None => format!("{}, served on given chips", run.model),
    };
    let runs: Vec<(&str, String)> = found.runs.iter().map(|run| (run.directory.as_str(), words(run))).collect();
    text.push_str(&if runs.is_empty() { "  none\n".to_owned() } else { format_fields(&runs) });
    if !found.unsound.is_empty() {
        text.push_str(&format_heading("Not sound"));
        text.extend(found.unsound.iter().map(|what| format!("  {what}\n")));
    }
    text
}
