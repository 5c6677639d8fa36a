//! `coplace place`: solves placement instances of NEST and PHAZE and graphs of Piper exactly, each under its own
//! formulas.

mod nest;
mod phaze;
mod piper;

use crate::answer::Format;
use crate::call::Call;
use crate::failure::{self, Failure};
use sim::status::SolveStatus;
use std::path::{Path, PathBuf};

/// Place NEST and PHAZE instances and Piper graphs on devices: the optimum under the formulas of each
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  coplace place interop/reference/phaze/placement/instance_000.json\n  \
    coplace place interop/tests/piper/small.json\n  \
    coplace place interop/reference/nest/exp1_llama2_256_mbs1.json\n\n\
    A graph of Piper (layers as a list, with TMPCs) is placed exactly under Piper's objective, the time\n\
    per sample of the slowest stage, over all stages, tensor- and data-parallel degrees and choices per\n\
    layer; one that can be cut in more than 4,096 ways is refused. coplace plan --emit piper writes such\n\
    graphs. Of PHAZE's files fixedPP, fixedTMPC, fixedDP, numTransformerLayers and meta are not looked\n\
    at; expected is what the answer is held against.\n\n\
    An instance of NEST (graphs and network) is placed exactly under NEST's evaluator, over all tensor\n\
    widths of the file, copies and cuts, without ZeRO. Its fixed_plans are evaluated as NEST cuts them,\n\
    and with the best cut of the same degrees.\n\n\
    JSON: one object per line and file: {\"file\", \"feasible\", \"time_per_batch\", \"plan\", \"status\", \"why\",\n\
    \"solve_seconds\", \"expected\"}; time_per_batch and plan are null where no plan fits, and why says what\n\
    is lacking. expected is null where the file has none, else {\"time_per_batch\", \"difference\",\n\
    \"verdict\"}: the time recorded, null where it is recorded that no plan fits; what ours is above it as\n\
    a share of it, null where there is one of the two only or it is 0; the same, faster, slower, fits,\n\
    or does not fit. solve_seconds is the search alone, without reading the file; a search of less than\n\
    1 ms is repeated and its median time given.\n\
    Of a graph of Piper: {\"file\", \"feasible\", \"time_per_sample\", \"plan\", \"costs\", \"status\", \"why\",\n\
    \"solve_seconds\"}, the plan as Piper writes it.\n\
    Of an instance of NEST: {\"file\", \"feasible\", \"nest\": {\"throughput\", \"time_per_batch\", \"plan\",\n\
    \"baselines\", \"why_none\", \"correct_cut\"}, \"status\", \"why\", \"solve_seconds\", \"expected\",\n\
    \"published\"}, throughputs in samples per second.")]
pub struct PlaceArguments {
    /// Instance files (JSON: NEST's instance, PHAZE's placement input or Piper's graph)
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Format of the answer
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

/// Runs the verb: solves every file. A bad file is reported; the others are still solved.
pub fn run_place(arguments: &PlaceArguments, call: &Call) -> Result<(), Failure> {
    let mut faults = Vec::new();
    for path in &arguments.files {
        match place_file(call, path, arguments.format) {
            Err(Failure::Input(error)) => faults.push(error),
            other => other?,
        }
    }
    failure::all_faults(faults)
}

/// Returns the word for a status in records.
fn word_of_status(status: &SolveStatus) -> &'static str {
    match status {
        SolveStatus::Optimal => "optimal",
        SolveStatus::Gap { .. } => "gap",
        SolveStatus::Infeasible { .. } => "infeasible",
    }
}

/// Solves one file. Its keys decide its format.
fn place_file(call: &Call, path: &Path, format: Format) -> Result<(), Failure> {
    let file = path.display().to_string();
    match sim::files::text::read_text(path) {
        Ok(text) if interop::piper::PiperInstance::is_piper_graph(&text) => {
            piper::place_piper_text(call, &text, &file, format)
        }
        Ok(text) if interop::nest::NestInstance::is_nest_instance(&text) => {
            nest::place_nest_text(call, &text, &file, format)
        }
        // PHAZE's reader also reports a file that cannot be read.
        _ => phaze::place_phaze_file(call, path, format),
    }
}
