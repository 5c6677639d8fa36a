//! `coplace compare`: shows the answers of several runs side by side, or the value of each freedom of a search.

mod freedoms;

use crate::answer::{self, Format, Versioned};
use crate::call::Call;
use crate::failure::{self, Failure, OrInput};
use crate::input;
use crate::numbers::{token_count_in, whole_number_in};
use crate::verb::job::LONGEST;
use crate::verb::job::run::run_path;
use crate::written_path::WrittenPath;
use freedoms::FreedomsRequest;
use results::compare::answers::{self, KeptAnswer};
use results::compare::runs::compare_runs;
use results::compare::serving::compare_serving_runs;
use results::page::PageSubject;
use results::run::search_run::SearchRun;
use results::run::serving::ServingRun;
use results::run::sweep;
use sim::files::carried::Files;
use std::path::PathBuf;

/// Compare the best designs and the baselines of run directories, answers of evaluate and plan, or the value of each
/// freedom of a search
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  coplace compare runs/llama2-7b-phaze runs/llama2-7b-phaze_ici\n  \
    coplace evaluate llama3-8b --chip h100 --fabric nvlink4_node --devices 8 --global-batch 32 --format json > \
    h100.json && coplace compare h100.json\n  \
    coplace compare runs/serve-h100 runs/serve-h200\n  \
    coplace compare --freedoms llama2-7b gpt3-175b --study phaze --out figures\n\n\
    Prints the designs by the first run's objective, and the first one's lead over built chips; --details has all.\n\n\
    JSON: {\"entries\": [{\"label\", \"chip\", \"plan\", \"area_mm2\", \"throughput_sequences_per_s\",\n\
    \"throughput_tokens_per_s\", \"step_time_s\", \"mfu\", \"energy_per_step_j\", \"peak_memory_gib\", \
    \"bound_by\",\n\
    \"note\"}]}, as `comparison` in record.json. The first entry is the best design of the first run, or the first\n\
    answer. Notes name differences in the work. Entries of runs of several models have \"times_reference\", the\n\
    mean over the models, and \"models\" has the entries of each model. Of runs of serve: {\"objective\", \"unit\",\n\
    \"differences\", \"cases\": [{\"case\", \"entries\"}]}. With --freedoms: {\"models\": [{\"model\",\n\
    \"study\", \"expert\", \"entries\", \"times_first\", \"evaluations\", \"gap\"}], \"over_all\", \"seed\"}.")]
pub struct CompareArguments {
    /// Run directories of `coplace search` or `coplace sweep`, or of `coplace serve`, or answers that `evaluate` or
    /// `plan` printed with --format json; models with --freedoms
    #[arg(required = true, value_name = "DIR|FILE.json", value_parser = run_path())]
    directories: Vec<PathBuf>,
    /// For each model: the value of the chip alone, the plan alone and both, relative to the reference chip under an
    /// expert's placement, beside Bayesian optimisation of the chip
    #[arg(long)]
    freedoms: bool,
    /// Study whose space is searched [default: phaze]
    #[arg(long, requires = "freedoms")]
    study: Option<String>,
    /// Software stack instead of the study's
    #[arg(long, requires = "freedoms")]
    stack: Option<String>,
    /// Tokens per sequence; 32k is 32768 [default: the model's longest]
    #[arg(long, value_name = "TOKENS", requires = "freedoms", value_parser = token_count_in(1..=LONGEST))]
    sequence_length: Option<u64>,
    /// The expert's pipeline stages, tensor-parallel width and data-parallel ranks [default: PHAZE's, if it gives them
    /// for the model]
    #[arg(long, value_name = "P,T,D", requires = "freedoms", value_delimiter = ',', action = clap::ArgAction::Set)]
    expert: Option<Vec<String>>,
    /// Chips that Bayesian optimisation evaluates [default: as many as the joint search, at least 32]
    #[arg(long, value_name = "N", requires = "freedoms", value_parser = whole_number_in(1..=100_000_u64))]
    evaluations: Option<u64>,
    /// Seed of Bayesian optimisation
    #[arg(long, default_value_t = 0, requires = "freedoms", value_parser = whole_number_in(0..=u64::MAX))]
    seed: u64,
    /// Draw the comparison of freedoms into this directory (freedoms.svg and .png), which is created if needed
    #[arg(long, value_name = "DIR", requires = "freedoms")]
    out: Option<WrittenPath>,
    /// Print every row with its chip, plan, figures and intervals, and the causes of the lead
    #[arg(long, conflicts_with = "freedoms")]
    details: bool,
    /// Format of the answer
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

impl CompareArguments {
    fn freedoms_request(&self) -> FreedomsRequest<'_> {
        FreedomsRequest {
            models: self.directories.iter().map(|model| model.display().to_string()).collect(),
            study: self.study.as_ref(),
            stack: self.stack.as_ref(),
            sequence_length: self.sequence_length,
            expert: self.expert.as_ref().map(|degrees| degrees.join(",")),
            evaluations: self.evaluations,
            seed: self.seed,
            out: self.out.as_deref(),
            format: self.format,
        }
    }
}

/// Runs the verb: reads the runs and prints the comparison.
pub fn run_compare(arguments: &CompareArguments, call: &Call) -> Result<(), Failure> {
    if arguments.freedoms {
        return freedoms::compare_freedoms(call, &arguments.freedoms_request());
    }
    if let Some(missing) = arguments.directories.iter().find(|path| !path.exists()) {
        return Err(failure::file_failure(
            missing.display(),
            "no such file or directory",
            "give run directories, or what evaluate or plan printed with --format json",
        ));
    }
    let files = arguments.directories.iter().filter(|path| path.is_file()).count();
    let comparison = match arguments.directories.iter().find(|path| !path.is_file()) {
        None => return print_kept_answers(arguments, call),
        Some(directory) if files > 0 => {
            return Err(failure::file_failure(
                directory.display(),
                "is a directory, and others are files",
                format!(
                    "give only runs, or only answers: coplace evaluate --chip {} --format json is the run's",
                    directory.display()
                ),
            ));
        }
        Some(_) if arguments.directories.iter().any(|directory| ServingRun::is_in(directory)) => {
            let runs = read_serving_runs(&arguments.directories)?;
            let comparison = compare_serving_runs(&runs).map_err(failure::input_failure)?;
            return answer::write_answer(call, arguments.format, &Versioned::with_schema_one(&comparison), |_| {
                comparison.to_text()
            });
        }
        Some(_) => compare_runs(read_runs(&arguments.directories)?).map_err(failure::input_failure)?,
    };
    answer::write_answer(call, arguments.format, &Versioned::with_schema_one(&comparison), |_| {
        if !comparison.over.any_runs() {
            return "No design of these runs runs the model.\n".to_owned();
        }
        match arguments.details {
            true => comparison.to_text(),
            false => comparison.to_summary() + FURTHER,
        }
    })
}

/// Compares and prints answers that were kept in files.
fn print_kept_answers(arguments: &CompareArguments, call: &Call) -> Result<(), Failure> {
    let comparison = answers::compare_answers(&read_answers(&arguments.directories)?);
    answer::write_answer(call, arguments.format, &Versioned::with_schema_one(&comparison), |_| {
        match arguments.details {
            true => comparison.to_text(),
            false => {
                let all: Vec<usize> = (0..comparison.entries.len()).collect();
                comparison.to_summary(&all, &[], false) + FURTHER
            }
        }
    })
}

/// The last line of a short comparison.
const FURTHER: &str = "Next: this with --details (every row, its plan, figures and intervals).\n";

/// Reads kept answers. Files of the same name are labelled with their paths.
fn read_answers(files: &[PathBuf]) -> Result<Vec<KeptAnswer>, Failure> {
    let name = |file: &PathBuf| file.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
    let names: Vec<String> = files.iter().map(name).collect();
    let of = |(file, name): (&PathBuf, &String)| {
        let unique = names.iter().filter(|other| *other == name).count() < 2;
        let label = if unique { name.clone() } else { file.display().to_string() };
        let subject = PageSubject::read_from(file).or_input()?;
        // The answer contains the file of its chip.
        let chip = input::read_chip(&file.display().to_string(), &Files::default()).ok();
        Ok(KeptAnswer { label, subject, chip: chip.map(|template| Box::new(template.accelerator)) })
    };
    files.iter().zip(&names).map(of).collect()
}

/// Refuses a directory that does not exist.
fn refuse_missing(directories: &[PathBuf]) -> Result<(), Failure> {
    let Some(missing) = directories.iter().find(|path| !path.exists()) else { return Ok(()) };
    let cure = "give directories that coplace search, sweep or serve wrote";
    Err(failure::file_failure(missing.display(), "no such file or directory", cure))
}

/// Reads directories of runs of serve. Directories of the same name are labelled with their paths. Fails if a directory
/// holds another kind of run.
pub fn read_serving_runs(directories: &[PathBuf]) -> Result<Vec<ServingRun>, Failure> {
    refuse_missing(directories)?;
    if let Some(other) = directories.iter().find(|directory| !ServingRun::is_in(directory)) {
        let limit = "is no run of serve, and others are: a training step and a deployment have no common measure";
        let cure = "give runs of serve alone, or runs of search and sweep alone; serve --study STUDY --train-weight \
            weighs both on one chip";
        return Err(failure::file_failure(other.display(), limit, cure));
    }
    let mut runs =
        directories.iter().map(|path| ServingRun::read_from(path).or_input()).collect::<Result<Vec<_>, _>>()?;
    let names: Vec<String> = runs.iter().map(|run| run.name.clone()).collect();
    for (run, directory) in runs.iter_mut().zip(directories) {
        if names.iter().filter(|name| **name == run.name).count() > 1 {
            run.name = directory.display().to_string();
        }
    }
    Ok(runs)
}

/// Reads run directories. Directories of the same name are labelled with their paths.
pub fn read_runs(directories: &[PathBuf]) -> Result<Vec<SearchRun>, Failure> {
    refuse_missing(directories)?;
    let mut runs = Vec::with_capacity(directories.len());
    for directory in directories {
        if directory.is_file() {
            let cure = "give directories that coplace search or coplace sweep wrote; coplace compare takes answers of \
                evaluate and plan";
            return Err(failure::file_failure(directory.display(), "is a file, not a run", cure));
        }
        runs.push(sweep::read_directory(directory).or_input()?);
    }
    let names: Vec<String> = runs.iter().map(|run| run.name.clone()).collect();
    for (run, directory) in runs.iter_mut().zip(directories) {
        if names.iter().filter(|name| **name == run.name).count() > 1 {
            run.name = directory.display().to_string();
        }
    }
    Ok(runs)
}
