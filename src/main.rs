//! The coplace command: reads arguments, calls one verb, turns its answer into text or JSON and its error into an exit code.

mod answer;
mod failure;
mod input;
mod numbers;
mod progress;
mod verb;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use std::io::IsTerminal;
use std::process::ExitCode;

/// The planner makes millions of short-lived lists; this allocator serves them in a fraction of the system's time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Which accelerator should you build for the models you train, and how should each model run on a cluster of it?
#[derive(Parser)]
#[command(name = "coplace", version, propagate_version = true, arg_required_else_help = true)]
#[command(after_help = "Exit codes: 0 a result, 2 input that needs mending, 3 a result that lacks something, 1 anything else.\n\
    The main job: coplace search llama2-7b")]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    Search(Box<verb::search::Arguments>),
    Sweep(Box<verb::sweep::Arguments>),
    Merge(verb::merge::Arguments),
    Explain(verb::explain::Arguments),
    Init(verb::init::Arguments),
    Evaluate(Box<verb::evaluate::Arguments>),
    Plan(Box<verb::plan::Arguments>),
    Compare(verb::compare::Arguments),
    Pareto(verb::pareto::Arguments),
    Report(verb::report::Arguments),
    Validate(verb::validate::Arguments),
    Calibrate(verb::calibrate::Arguments),
    Place(verb::place::Arguments),
    Schedule(verb::schedule::Arguments),
    Scalesim(verb::scalesim::Arguments),
    Calculon(verb::calculon::Arguments),
    Techniques(Box<verb::techniques::Arguments>),
    List(verb::list::Arguments),
    Doctor(verb::doctor::Arguments),
    #[command(hide = true)]
    Completions(verb::shell::CompletionArguments),
    #[command(hide = true)]
    Man(verb::shell::ManArguments),
}

/// Prints what is said instead of a verb's answer: the help, the version, what is wrong with the arguments. Help that cannot be written is a failure.
fn explained(error: &clap::Error) -> ExitCode {
    if error.use_stderr() {
        error.exit();
    }
    match error.print().map_err(answer::unwritten) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}

/// Characters of a line where the answer goes into a file or a pipe.
const COLUMNS: usize = 80;

/// Characters of a line of the reader's screen: what COLUMNS says, or the terminal; [`COLUMNS`] where neither does.
fn columns() -> usize {
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
    results::report::fit(columns());
    let given = numbers::joined(std::env::args_os().collect());
    let arguments = match Arguments::try_parse_from(verb::search::again::completed(given.clone())) {
        Ok(arguments) => arguments,
        Err(error) if error.kind() == ErrorKind::MissingRequiredArgument => {
            let fault = verb::search::again::unusable_chip(&given).or_else(|| verb::search::again::fabric_missing(&given));
            return fault.map_or_else(|| explained(&error), |fault| fault.report());
        }
        Err(error) => return explained(&error),
    };
    let outcome = match arguments.verb {
        Verb::Search(a) => verb::search::run(&a),
        Verb::Sweep(a) => verb::sweep::run(&a),
        Verb::Merge(a) => verb::merge::run(&a),
        Verb::Explain(a) => verb::explain::run(&a),
        Verb::Init(a) => verb::init::run(&a),
        Verb::Evaluate(a) => verb::evaluate::run(&a),
        Verb::Plan(a) => verb::plan::run(&a),
        Verb::Compare(a) => verb::compare::run(&a),
        Verb::Pareto(a) => verb::pareto::run(&a),
        Verb::Report(a) => verb::report::run(&a),
        Verb::Validate(a) => verb::validate::run(&a),
        Verb::Calibrate(a) => verb::calibrate::run(&a),
        Verb::Place(a) => verb::place::run(&a),
        Verb::Schedule(a) => verb::schedule::run(&a),
        Verb::Scalesim(a) => verb::scalesim::run(&a),
        Verb::Calculon(a) => verb::calculon::run(&a),
        Verb::Techniques(a) => verb::techniques::run(&a),
        Verb::List(a) => verb::list::run(&a),
        Verb::Doctor(a) => verb::doctor::run(&a),
        Verb::Completions(a) => verb::shell::completions(&a, Arguments::command()),
        Verb::Man(a) => verb::shell::man(&a, Arguments::command()),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
