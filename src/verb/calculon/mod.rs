//! `coplace calculon`: runs a row of Calculon's format (application, execution, system) under the models of this
//! project.

mod record;
mod text;

use crate::answer::{self, Format};
use crate::call::Call;
use crate::failure::{self, Failure, OrInput};
use crate::input;
use crate::numbers::whole_number_in;
use interop::calculon::job::{CalculonApplication, CalculonExecution, VOCABULARY};
use interop::calculon::row::assemble_row;
use interop::calculon::system::CalculonSystem;
use record::CalculonAnswer;
use sim::files::carried::Files;
use std::path::PathBuf;

/// Run one row of Calculon's format: the step by parts, the memory by class, and Calculon's own figures of equal
/// meaning
#[derive(clap::Args)]
#[command(
    after_help = "Example:\n  coplace calculon interop/tests/calculon/model.json interop/tests/calculon/execution.json interop/tests/calculon/system.json\n\n\
    Rates are those of the system's file for large operations; kernels, collectives, the pipeline and memory are this project's models. What is assumed\n\
    where the files are silent and what of them is not modelled is listed with the answer. Refused: inference, weights or optimizer states in the\n\
    second memory, and what breaks a rule of the format.\n\n\
    JSON: step_s, parts_s, fits, stages, and under calculon the figures of its output that mean the same (total_time, fw_time, bw_time, ...), of the\n\
    blocks alone as there: without embedding and head. docs/json.md describes every key."
)]
pub struct CalculonArguments {
    /// Calculon's application: one block and its number of repetitions
    #[arg(value_name = "MODEL.json")]
    model: PathBuf,
    /// Calculon's execution: degrees, batch, options
    #[arg(value_name = "EXECUTION.json")]
    execution: PathBuf,
    /// Calculon's system: engines, memories, networks
    #[arg(value_name = "SYSTEM.json")]
    system: PathBuf,
    /// Software stack: built in (coplace list stacks) or a file (.toml)
    #[arg(long, default_value = "megatron")]
    stack: String,
    /// Set an option of the stack; `coplace list stacks --format json` lists all with their defaults. Can be given
    /// several times
    #[arg(long, value_name = "TABLE.KEY=VALUE")]
    stack_option: Vec<String>,
    /// Size of the vocabulary; the application has none
    #[arg(long, value_name = "ROWS", default_value_t = VOCABULARY)]
    #[arg(value_parser = whole_number_in::<u64>(1..=1 << 24))]
    vocabulary: u64,
    /// Format of the answer
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// Runs the verb: reads a row, evaluates it, prints.
pub fn run_calculon(arguments: &CalculonArguments, call: &Call) -> Result<(), Failure> {
    let files = [&arguments.model, &arguments.execution, &arguments.system].map(|path| path.display().to_string());
    let [model, execution, system] = files.each_ref().map(String::as_str);
    let application = input::read_text(&arguments.model, "an application of Calculon (.json)")?;
    let application = CalculonApplication::from_json_str(&application, model).or_input()?;
    let execution_text = input::read_text(&arguments.execution, "an execution of Calculon (.json)")?;
    let run = CalculonExecution::from_json_str(&execution_text, execution).or_input()?;
    let system_text = input::read_text(&arguments.system, "a system of Calculon (.json)")?;
    let described = CalculonSystem::from_json_str(&system_text, system).or_input()?;
    let stack = input::read_stack(&arguments.stack, &arguments.stack_option, &Files::default())?;
    let row = assemble_row(&application, &run, &described, &stack, arguments.vocabulary).or_input()?;
    let outcome = row.run_row().map_err(|why| failure::file_failure(execution, why, ""))?;
    let ran = CalculonAnswer::new([model, execution, system], &row, &outcome);
    answer::write_answer(call, arguments.format, &ran, text::calculon_report)
}
