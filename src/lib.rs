//! The coplace command as a library. A call parses arguments, runs one verb, and turns its result into text, JSON, an
//! exit code or a fault.
//!
//! [`run_program`] runs the command-line program. [`answer_call`] answers a call from another program in the same
//! process. It neither prints nor handles signals, and parallel calls are independent.

mod answer;
pub mod arguments;
mod call;
mod failure;
#[cfg(test)]
mod flags;
mod from;
mod input;
mod named_input;
mod numbers;
mod progress;
mod serve;
mod verb;
mod written_path;

use call::Call;
pub use call::{CallControl, CallOutput};
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
pub use failure::CallFault;
use failure::Failure;
pub use named_input::{InputKind, NamedInput};
pub use sim::files::carried::Files;
use std::ffi::OsString;
use std::io::IsTerminal;

/// Which accelerator should you build for the models you train, and how should each model run on a cluster of it?
#[derive(Parser)]
#[command(name = "coplace", version, propagate_version = true, arg_required_else_help = true)]
#[command(after_help = "Exit codes: 0 a result, 2 wrong input, 3 an incomplete result, 1 anything else.\n\
    The main job: coplace search llama2-7b\n\
    For a shell: coplace completions SHELL, coplace man --out DIR")]
struct CommandLine {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Search(Box<verb::search::SearchArguments>),
    Sweep(Box<verb::sweep::SweepArguments>),
    Merge(verb::merge::MergeArguments),
    Explain(verb::explain::ExplainArguments),
    Init(verb::init::InitArguments),
    Evaluate(Box<verb::evaluate::EvaluateArguments>),
    Plan(Box<verb::plan::PlanArguments>),
    Compare(verb::compare::CompareArguments),
    Pareto(verb::pareto::ParetoArguments),
    Report(verb::report::ReportArguments),
    Validate(verb::validate::ValidateArguments),
    Calibrate(verb::calibrate::CalibrateArguments),
    Place(verb::place::PlaceArguments),
    Schedule(verb::schedule::ScheduleArguments),
    Scalesim(verb::scalesim::ScaleSimArguments),
    Calculon(verb::calculon::CalculonArguments),
    Techniques(Box<verb::techniques::TechniquesArguments>),
    Serve(Box<verb::serve::ServeArguments>),
    List(verb::list::ListArguments),
    Doctor(verb::doctor::DoctorArguments),
    Mcp(serve::mcp::McpArguments),
    Page(Box<serve::page::PageArguments>),
    #[command(hide = true)]
    Completions(verb::shell::CompletionArguments),
    #[command(hide = true)]
    Man(verb::shell::ManArguments),
}

/// Prints the parser's message and returns the exit code. Help and version go to standard output; the exit code is then
/// 0, or that of a failed write. An error of the arguments goes to standard error and ends the process.
fn print_parser_message(error: &clap::Error) -> u8 {
    if error.use_stderr() {
        error.exit();
    }
    match error.print().map_err(answer::output_failure) {
        Ok(()) => 0,
        Err(failure) => failure.report_to_stderr(),
    }
}

/// Line width for files and pipes, in characters.
const COLUMNS: usize = 80;

/// Returns the line width in characters: the environment variable `COLUMNS`, else the terminal's width, else
/// [`COLUMNS`]. A width of 0 counts as [`COLUMNS`].
fn screen_columns() -> usize {
    let said = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let screen = said.or_else(|| console::Term::stdout().size_checked().map(|(_, columns)| usize::from(columns)));
    screen.filter(|columns| *columns > 0).unwrap_or(COLUMNS)
}

/// Sets the line width of all text answers to the width of the screen.
pub fn fit_text_to_screen() {
    results::text::set_screen_width(screen_columns());
}

/// Returns the verbs with their options, as the program takes them.
#[must_use]
pub fn command() -> clap::Command {
    numbers::with_short_names(numbers::with_negative_values(CommandLine::command()))
}

/// Parses the words of a command line, without the program's name, into a verb with its arguments. An error about a
/// value that `--from FILE` supplied names the file's key.
fn parse_words(merged: &from::MergedWords) -> Result<Verb, clap::Error> {
    // `sweep serve` means the same as `serve`, whose lists of limits and lengths already form a sweep.
    let of_serve = merged.words.iter().take(2).eq(["sweep", "serve"]);
    let own = merged.words.iter().skip(usize::from(of_serve)).cloned();
    let words = std::iter::once(OsString::from("coplace")).chain(own);
    let parsed = command().try_get_matches_from(words);
    let parsed = parsed.and_then(|mut matches| Ok(CommandLine::from_arg_matches_mut(&mut matches)?.verb));
    parsed.map_err(|mut error| {
        merged.name_key_of_file(&mut error);
        error
    })
}

/// Runs the program with the words of its command line, without the program's name. Returns its exit code: 0 a result,
/// 2 wrong input, 3 an incomplete result, 1 anything else.
pub fn run_program(words: impl IntoIterator<Item = OsString>) -> u8 {
    let usual = || format!("warn,{}=info", progress::TARGET).into();
    let log = tracing_subscriber::EnvFilter::try_from_env("COPLACE_LOG").unwrap_or_else(|_| usual());
    // The variable NO_COLOR turns colours off: https://no-color.org
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let colours = std::io::stderr().is_terminal() && !plain;
    let log = tracing_subscriber::fmt()
        .with_env_filter(log)
        .with_writer(std::io::stderr)
        .with_ansi(colours)
        .without_time()
        .with_target(false)
        .finish();
    // A log that another program has set stays.
    let _ = tracing::subscriber::set_global_default(log);
    fit_text_to_screen();
    let mut files = Files::default();
    let words = match from::with_file_options(words.into_iter().collect(), &command(), &mut files) {
        Ok(words) => words,
        Err(failure) => return failure.report_to_stderr(),
    };
    let verb = match parse_words(&words) {
        Ok(verb) => verb,
        Err(error) => return print_parser_message(&error),
    };
    match run_verb(verb, &Call::of_program(files)) {
        Ok(()) => 0,
        Err(failure) => failure.report_to_stderr(),
    }
}

/// Answers a call from another program. `words` are the words of the command line, without the program's name. `files`
/// holds texts that replace files of the same names, in the verbs of [`VERBS_WITH_FILES`]. Returns the output in both
/// formats, and the fault if there is one. Beside a fault, the output may hold a part of the answer.
pub fn answer_call(
    words: &[String],
    mut files: Files,
    control: CallControl,
) -> (CallOutput, Result<(), Box<CallFault>>) {
    let warnings = call::WarningLog::default();
    let (output, result) = tracing::subscriber::with_default(warnings.subscriber(), || {
        let words = words.iter().map(OsString::from).collect();
        let verb = match from::with_file_options(words, &command(), &mut files) {
            Ok(words) => parse_words(&words).map_err(|error| Box::new(CallFault::of_arguments(&error))),
            Err(failure) => Err(Box::new(CallFault::of_failure(&failure))),
        };
        let call = Call::of_library(files, control);
        let result =
            verb.and_then(|verb| run_verb(verb, &call).map_err(|failure| Box::new(CallFault::of_failure(&failure))));
        (call.into_output(), result)
    });
    (CallOutput { warnings: warnings.into_lines(), ..output }, result)
}

/// The verbs that can read texts instead of files.
pub const VERBS_WITH_FILES: [&str; 8] =
    ["search", "sweep", "evaluate", "plan", "techniques", "serve", "calibrate", "list"];

fn run_verb(verb: Verb, call: &Call) -> Result<(), Failure> {
    match verb {
        Verb::Search(a) => verb::serve::searched::run_search_or_serve(&a.with_files(&call.files), call),
        Verb::Sweep(a) => verb::sweep::run_sweep(&a.with_files(&call.files), call),
        Verb::Merge(a) => verb::merge::run_merge(&a, call),
        Verb::Explain(a) => verb::explain::run_explain(&a, call),
        Verb::Init(a) => verb::init::run_init(&a, call),
        Verb::Evaluate(a) => verb::evaluate::run_evaluate(&a.with_files(&call.files), call),
        Verb::Plan(a) => verb::plan::run_plan(&a.with_files(&call.files), call),
        Verb::Compare(a) => verb::compare::run_compare(&a, call),
        Verb::Pareto(a) => verb::pareto::run_pareto(&a, call),
        Verb::Report(a) => verb::report::run_report(&a, call),
        Verb::Validate(a) => verb::validate::run_validate(&a, call),
        Verb::Calibrate(a) => verb::calibrate::run_calibrate(&a, call),
        Verb::Place(a) => verb::place::run_place(&a, call),
        Verb::Schedule(a) => verb::schedule::run_schedule(&a, call),
        Verb::Scalesim(a) => verb::scalesim::run_scalesim(&a, call),
        Verb::Calculon(a) => verb::calculon::run_calculon(&a, call),
        Verb::Techniques(a) => verb::techniques::run_techniques(&a, call),
        Verb::Serve(a) => verb::serve::run_serve(&a, call),
        Verb::List(a) => verb::list::run_list(&a, call),
        Verb::Doctor(a) => verb::doctor::run_doctor(&a, call),
        Verb::Mcp(a) => serve::mcp::run_mcp(&a, call),
        Verb::Page(a) => serve::page::run_page(&a, call),
        Verb::Completions(a) => verb::shell::print_completions(&a, command(), call),
        Verb::Man(a) => verb::shell::write_manual(&a, command(), call),
    }
}
