//! `coplace schedule`: operator-schedule instances, solved with proof in both pairings.

use crate::answer::{self, Format};
use crate::failure::{self, Failure, OrOther};
use serde::Serialize;
use sim::schedule::{self, Limits, Memo, Schedule};
use sim::status::SolveStatus;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Schedule operator graphs on tensor and vector cores: the optimum, proven
#[derive(clap::Args)]
#[command(after_help = "Example:\n  coplace schedule results/reference/phaze/schedule/instance_000.json\n\n\
    An operator without intra_latency, or with null there, runs on one core and never across all.\n\
    JSON: one object per line and file: {\"file\", \"unpaired\": {\"makespan\", \"lower_bound\", \"status\", \"method\", \"seconds\"},\n\
    \"paired\": {...}}; unpaired lets a fused operator take any tensor and vector core, paired only two of the same index;\n\
    status is \"optimal\" or \"gap\"; times are in the unit of the file's latencies.")]
pub struct Arguments {
    /// Instance files (JSON)
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Stop refining after this long and report the gap; by default the work is limited, not the time
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    time_limit: Option<f64>,
    /// Form of the answer
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Serialize)]
struct Answer {
    makespan: u64,
    lower_bound: u64,
    status: &'static str,
    method: String,
    seconds: f64,
}

#[derive(Serialize)]
struct Line {
    file: String,
    unpaired: Answer,
    paired: Answer,
}

/// Solves every file in both pairings; a bad one is named and the rest still answered.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let time = match arguments.time_limit {
        Some(s) if !(s > 0.0 && s < 1e9) => {
            return Err(failure::input(format!(
                "--time-limit {s}: must be above 0 and below 1e9 seconds; leave it out for none"
            )));
        }
        limit => limit.map(Duration::from_secs_f64),
    };
    let limits = Limits { time, ..Limits::default() };
    let mut faults = Vec::new();
    for path in &arguments.files {
        match schedule::read_instance(path) {
            Ok(instance) => {
                let (unpaired, paired) = (solve(&instance.unpaired, limits), solve(&instance.paired, limits));
                show(&Line { file: path.display().to_string(), unpaired, paired }, arguments.format)?;
            }
            Err(error) => faults.push(error.to_string()),
        }
    }
    if faults.is_empty() { Ok(()) } else { Err(failure::input(faults.join("\nerror: "))) }
}

fn solve(problem: &schedule::Problem, limits: Limits) -> Answer {
    let start = Instant::now();
    let Schedule { makespan, lower_bound, status, method, .. } = Memo::new(limits, 1 << 12).solve(problem);
    let status = if status == SolveStatus::Optimal { "optimal" } else { "gap" };
    Answer { makespan, lower_bound, status, method: method.to_string(), seconds: start.elapsed().as_secs_f64() }
}

fn show(line: &Line, format: Format) -> Result<(), Failure> {
    if format == Format::Json {
        return answer::text(&(serde_json::to_string(line).or_other()? + "\n"));
    }
    let mut out = format!("{}\n", line.file);
    for (name, a) in [("unpaired", &line.unpaired), ("paired", &line.paired)] {
        let proof = if a.status == "optimal" {
            format!("optimal by {}", a.method)
        } else {
            format!("gap at most {:.2} %", (1.0 - a.lower_bound as f64 / a.makespan as f64) * 100.0)
        };
        out += &format!(
            "  {name:<9} makespan {:>10}  lower bound {:>10}  {proof:<24} {:.3} ms\n",
            a.makespan,
            a.lower_bound,
            a.seconds * 1e3
        );
    }
    answer::text(&out)
}
