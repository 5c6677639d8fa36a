//! `coplace schedule`: operator-schedule instances, solved with proof in both pairings.

use crate::answer::{self, Format};
use crate::failure::{self, Failure, OrOther};
use serde::Serialize;
use sim::schedule::{self, Instance, Limits, Memo, Pairing, Schedule, Stored};
use sim::status::SolveStatus;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Schedule operator graphs on tensor and vector cores: the optimum, proven
#[derive(clap::Args)]
#[command(after_help = "Example:\n  coplace schedule results/reference/phaze/schedule/instance_000.json\n\n\
    An operator without intra_latency, or with null there, runs on one core and never across all.\n\
    Where the file holds a proven answer (optimal_unpaired, optimal_paired) that cannot be true, the answer says so.\n\
    JSON: one object per line and file: {\"file\", \"unpaired\": {\"makespan\", \"lower_bound\", \"status\", \"method\", \"seconds\",\n\
    \"contradicts\", \"operators\": [{\"id\", \"start\", \"end\", \"across\", \"tensor_core\", \"vector_core\"}]}, \"paired\": {...}};\n\
    unpaired lets a fused operator take any tensor and vector core, paired only two of the same index; status is \"optimal\" or \"gap\";\n\
    contradicts is the file's answer where it cannot be true; an operator across all cores has no core of its own, nor has one that\n\
    takes no time; times are in the unit of the file's latencies.")]
pub struct Arguments {
    /// Instance files (JSON)
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Begin no more search passes after this long and report the gap; the work is limited besides
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true)]
    time_limit: Option<f64>,
    /// Search states to generate at most for each piece of an instance; about a million take a second
    #[arg(long, value_name = "N", default_value_t = Limits::default().steps)]
    steps: u64,
    /// Form of the answer
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

const OPTIMAL: &str = "optimal";
const GAP: &str = "gap";

#[derive(Clone, Serialize)]
struct Answer {
    makespan: u64,
    lower_bound: u64,
    status: &'static str,
    method: String,
    seconds: f64,
    contradicts: Option<u64>,
    operators: Vec<Placed>,
}

/// When and where one operator runs.
#[derive(Clone, Serialize)]
struct Placed {
    id: u64,
    start: u64,
    end: u64,
    across: bool,
    tensor_core: Option<u32>,
    vector_core: Option<u32>,
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
    let limits = Limits { time, steps: arguments.steps };
    let mut faults = Vec::new();
    for path in &arguments.files {
        match schedule::read_instance(path) {
            Ok(instance) => {
                let (mut unpaired, paired) =
                    (Answer::to(&instance, Pairing::AnyPair, limits), Answer::to(&instance, Pairing::SameIndex, limits));
                // A schedule whose cores pair by index is one whose cores pair.
                if paired.makespan < unpaired.makespan {
                    let status = if paired.makespan == unpaired.lower_bound { OPTIMAL } else { GAP };
                    let (lower_bound, seconds) = (unpaired.lower_bound, unpaired.seconds);
                    unpaired = Answer { lower_bound, status, seconds, contradicts: unpaired.contradicts, ..paired.clone() };
                }
                show(&Line { file: path.display().to_string(), unpaired, paired }, arguments.format)?;
            }
            Err(error) => faults.push(error.to_string()),
        }
    }
    if faults.is_empty() { Ok(()) } else { Err(failure::input(faults.join("\nerror: "))) }
}

impl Answer {
    fn to(instance: &Instance, pairing: Pairing, limits: Limits) -> Self {
        let (problem, stored) = match pairing {
            Pairing::AnyPair => (&instance.unpaired, instance.stored_unpaired),
            Pairing::SameIndex => (&instance.paired, instance.stored_paired),
        };
        let begun = Instant::now();
        let schedule = Memo::new(limits, 1 << 12).solve(problem);
        let seconds = begun.elapsed().as_secs_f64();
        let Schedule { makespan, lower_bound, .. } = schedule;
        let untrue = |stored: &Stored| stored.makespan < lower_bound || stored.proved && stored.makespan > makespan;
        let ends = schedule.ends(problem);
        let placed = |(at, &id): (usize, &u64)| Placed {
            id,
            start: schedule.starts[at],
            end: ends[at],
            across: schedule.exclusive[at],
            tensor_core: schedule.cores[at].tensor_core,
            vector_core: schedule.cores[at].vector_core,
        };
        Self {
            makespan,
            lower_bound,
            status: if schedule.status == SolveStatus::Optimal { OPTIMAL } else { GAP },
            method: schedule.method.to_string(),
            seconds,
            contradicts: stored.filter(untrue).map(|stored| stored.makespan),
            operators: instance.ids.iter().enumerate().map(placed).collect(),
        }
    }
}

fn show(line: &Line, format: Format) -> Result<(), Failure> {
    if format == Format::Json {
        return answer::text(&(serde_json::to_string(line).or_other()? + "\n"));
    }
    let mut out = format!("{}\n", line.file);
    for (name, a) in [("unpaired", &line.unpaired), ("paired", &line.paired)] {
        let proof = if a.status == OPTIMAL {
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
        if let Some(stored) = a.contradicts {
            out += &format!("            the file states {stored} as proven or reached: that cannot be true\n");
        }
    }
    answer::text(&out)
}
