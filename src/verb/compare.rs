//! `coplace compare`: what several runs found, side by side.

use crate::answer::{self, Format, Versioned};
use crate::failure::{Failure, OrInput};
use results::run::{self, Run};
use std::path::PathBuf;

/// Compare the best designs and the baselines of run directories
#[derive(clap::Args)]
#[command(after_help = "Example:\n  coplace compare runs/llama2-7b-phaze runs/llama2-7b-phaze_ici\n\n\
    JSON: {\"entries\": [{\"label\", \"chip\", \"plan\", \"area_mm2\", \"throughput_sequences_per_s\", \"throughput_tokens_per_s\",\n\
    \"step_time_s\", \"mfu\", \"energy_per_step_j\", \"peak_memory_gib\", \"bound_by\", \"note\"}]}, as `comparison` in record.json;\n\
    the first entry is the first run's best design, the notes say where another run's work differs from the first's.")]
pub struct Arguments {
    /// Run directories that `coplace search` wrote
    #[arg(required = true, value_name = "DIR")]
    directories: Vec<PathBuf>,
    /// Form of the answer
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// Reads the runs and prints the comparison.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let comparison = run::compare(&read(&arguments.directories)?);
    answer::give(arguments.format, &Versioned::first(&comparison), |_| {
        if comparison.entries.iter().all(|e| e.plan.is_none()) {
            return "No design of these runs runs the model.\n".to_owned();
        }
        comparison.to_text()
    })
}

/// Reads run directories. Two of the same name are told apart by their paths.
pub fn read(directories: &[PathBuf]) -> Result<Vec<Run>, Failure> {
    let mut runs = Vec::with_capacity(directories.len());
    for directory in directories {
        runs.push(Run::read(directory).or_input()?);
    }
    let names: Vec<String> = runs.iter().map(|run| run.name.clone()).collect();
    for (run, directory) in runs.iter_mut().zip(directories) {
        if names.iter().filter(|name| **name == run.name).count() > 1 {
            run.name = directory.display().to_string();
        }
    }
    Ok(runs)
}
