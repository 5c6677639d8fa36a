//! `coplace place`: PHAZE placement instances, solved exactly under PHAZE's own formulas.

use crate::answer::{self, Format};
use crate::failure::{self, Failure, OrOther};
use search::placement::phaze::{self, Plan, Solution};
use serde::Serialize;
use std::path::PathBuf;

/// Place PHAZE instances on devices: the optimum under PHAZE's own formulas
#[derive(clap::Args)]
#[command(after_help = "Example:\n  coplace place results/reference/phaze/placement/instance_000.json\n\n\
    JSON: one object per line and file: {\"file\", \"feasible\", \"time_per_batch\", \"plan\", \"status\", \"why\", \"solve_seconds\"};\n\
    time_per_batch and plan are null where no plan fits, and why says what is lacking. solve_seconds is the search alone, without\n\
    reading the file; a search of less than 1 ms is repeated and its median time given.")]
pub struct Arguments {
    /// Instance files (JSON, PHAZE's placement input)
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Form of the answer
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Serialize)]
struct Line<'a> {
    file: String,
    feasible: bool,
    time_per_batch: Option<f64>,
    plan: Option<&'a Plan>,
    status: &'static str,
    why: Option<&'a str>,
    solve_seconds: f64,
}

/// Solves every file; a bad one is named and the rest still answered.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let mut faults = Vec::new();
    for path in &arguments.files {
        match phaze::Instance::read(path) {
            Ok(instance) => show(&path.display().to_string(), &solve(&instance), arguments.format)?,
            Err(error) => faults.push(error.to_string()),
        }
    }
    if faults.is_empty() { Ok(()) } else { Err(failure::input(faults.join("\nerror: "))) }
}

/// A search that takes longer than this is timed once: it is far above what the clock and the scheduler disturb.
const LONG_SECONDS: f64 = 1e-3;
/// How often a shorter search is timed; odd, so that the median is one of the times.
const REPEATS: usize = 7;

/// The answer of one search. The first search of a process is slow for reasons that are not the search's (cold caches, the
/// allocator's first pages), so a short one is timed again and the median kept.
fn solve(instance: &phaze::Instance) -> Solution {
    let mut solution = phaze::solve(instance);
    if solution.solve_seconds < LONG_SECONDS {
        let again = (1..REPEATS).map(|_| phaze::solve(instance).solve_seconds);
        let mut times: Vec<f64> = std::iter::once(solution.solve_seconds).chain(again).collect();
        times.sort_by(f64::total_cmp);
        solution.solve_seconds = times[REPEATS / 2];
    }
    solution
}

fn show(file: &str, solution: &Solution, format: Format) -> Result<(), Failure> {
    if format == Format::Json {
        let line = Line {
            file: file.to_owned(),
            feasible: solution.feasible(),
            time_per_batch: solution.time_per_batch,
            plan: solution.plan.as_ref(),
            status: if solution.feasible() { "optimal" } else { "infeasible" },
            why: solution.why(),
            solve_seconds: solution.solve_seconds,
        };
        return answer::text(&(serde_json::to_string(&line).or_other()? + "\n"));
    }
    let mut out = format!("{file}: {}\n", solution.status);
    if let (Some(time), Some(plan)) = (solution.time_per_batch, &solution.plan) {
        out += &format!(
            "  time per batch {time:.6} (unit of the file's latencies), {} copies x {} stages, tensor width {}, {} devices\n",
            plan.data_parallel,
            plan.stages.len(),
            plan.tensor_width,
            plan.devices()
        );
        for (index, stage) in plan.stages.iter().enumerate() {
            out += &format!(
                "  stage {index:>3}: layers {} to {}, {} device(s), load {:.6}, memory {:.2} GiB\n",
                stage.first_layer,
                stage.last_layer,
                stage.devices,
                stage.load,
                stage.memory_bytes / 1_073_741_824.0
            );
        }
    }
    answer::text(&out)
}
