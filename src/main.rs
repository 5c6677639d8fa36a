//! The coplace command. It parses arguments, calls one verb, and turns its result into text, JSON or an exit code.

mod answer;
mod failure;
#[cfg(test)]
mod flags;
mod input;
mod numbers;
mod progress;
mod verb;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use std::io::IsTerminal;
use std::process::ExitCode;

/// The planner makes millions of short-lived lists. This allocator is many times faster for them than the system's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Which accelerator should you build for the models you train, and how should each model run on a cluster of it?
#[derive(Parser)]
#[command(name = "coplace", version, propagate_version = true, arg_required_else_help = true)]
#[command(after_help = "Exit codes: 0 a result, 2 wrong input, 3 an incomplete result, 1 anything else.\n\
    The main job: coplace search llama2-7b")]
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
    List(verb::list::ListArguments),
    Doctor(verb::doctor::DoctorArguments),
    #[command(hide = true)]
    Completions(verb::shell::CompletionArguments),
    #[command(hide = true)]
    Man(verb::shell::ManArguments),
}

/// Prints the parser's message: the help, the version, or the error of the arguments. A failure to print the help is a
/// failure.
fn print_parser_message(error: &clap::Error) -> ExitCode {
    if error.use_stderr() {
        error.exit();
    }
    match error.print().map_err(answer::output_failure) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report_and_exit(),
    }
}

/// Line width for files and pipes, in characters.
const COLUMNS: usize = 80;

/// The line width in characters: COLUMNS, or the width of the terminal, or [`COLUMNS`].
fn screen_columns() -> usize {
    let said = std::env::var("COLUMNS").ok().and_then(|text| text.parse().ok());
    let screen = said.or_else(|| console::Term::stdout().size_checked().map(|(_, columns)| usize::from(columns)));
    screen.filter(|columns| *columns > 0).unwrap_or(COLUMNS)
}

fn main() -> ExitCode {
    let usual = || format!("warn,{}=info", progress::TARGET).into();
    let log = tracing_subscriber::EnvFilter::try_from_env("COPLACE_LOG").unwrap_or_else(|_| usual());
    // https://no-color.org
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let colours = std::io::stderr().is_terminal() && !plain;
    tracing_subscriber::fmt()
        .with_env_filter(log)
        .with_writer(std::io::stderr)
        .with_ansi(colours)
        .without_time()
        .with_target(false)
        .init();
    results::text::set_screen_width(screen_columns());
    let matches = numbers::with_negative_values(CommandLine::command()).try_get_matches();
    let arguments = match matches.and_then(|mut matches| CommandLine::from_arg_matches_mut(&mut matches)) {
        Ok(arguments) => arguments,
        Err(error) => return print_parser_message(&error),
    };
    let outcome = match arguments.verb {
        Verb::Search(a) => verb::search::run_search(&a),
        Verb::Sweep(a) => verb::sweep::run_sweep(&a),
        Verb::Merge(a) => verb::merge::run_merge(&a),
        Verb::Explain(a) => verb::explain::run_explain(&a),
        Verb::Init(a) => verb::init::run_init(&a),
        Verb::Evaluate(a) => verb::evaluate::run_evaluate(&a),
        Verb::Plan(a) => verb::plan::run_plan(&a),
        Verb::Compare(a) => verb::compare::run_compare(&a),
        Verb::Pareto(a) => verb::pareto::run_pareto(&a),
        Verb::Report(a) => verb::report::run_report(&a),
        Verb::Validate(a) => verb::validate::run_validate(&a),
        Verb::Calibrate(a) => verb::calibrate::run_calibrate(&a),
        Verb::Place(a) => verb::place::run_place(&a),
        Verb::Schedule(a) => verb::schedule::run_schedule(&a),
        Verb::Scalesim(a) => verb::scalesim::run_scalesim(&a),
        Verb::Calculon(a) => verb::calculon::run_calculon(&a),
        Verb::Techniques(a) => verb::techniques::run_techniques(&a),
        Verb::List(a) => verb::list::run_list(&a),
        Verb::Doctor(a) => verb::doctor::run_doctor(&a),
        Verb::Completions(a) => verb::shell::print_completions(&a, CommandLine::command()),
        Verb::Man(a) => verb::shell::write_manual(&a, CommandLine::command()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report_and_exit(),
    }
}
