//! `coplace place`: solves placement instances of PHAZE and graphs of Piper exactly, each under its own formulas.

use crate::answer::{self, Format, Versioned};
use crate::failure::{self, Failure, OrInput};
use interop::phaze::{self, PhazePlan, PhazeSolution, Recorded};
use interop::piper;
use serde::Serialize;
use sim::status::SolveStatus;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Place PHAZE instances and Piper graphs on devices: the optimum under the formulas of each
#[derive(clap::Args)]
#[command(after_help = "Examples:\n  coplace place interop/reference/phaze/placement/instance_000.json\n  \
    coplace place interop/tests/piper/small.json\n\n\
    A graph of Piper (layers as a list, with TMPCs) is placed exactly under Piper's objective, the time per sample of the slowest stage, over all\n\
    stages, tensor- and data-parallel degrees and choices per layer; one that can be cut in more than 4,096 ways is refused. coplace plan --emit\n\
    piper writes such graphs. Of PHAZE's files fixedPP, fixedTMPC, fixedDP, numTransformerLayers and meta are not looked at; expected is what\n\
    the answer is held against.\n\n\
    JSON: one object per line and file: {\"file\", \"feasible\", \"time_per_batch\", \"plan\", \"status\", \"why\", \"solve_seconds\",\n\
    \"expected\"}; time_per_batch and plan are null where no plan fits, and why says what is lacking. expected is null where the file has none,\n\
    else {\"time_per_batch\", \"difference\", \"verdict\"}: the time recorded, null where it is recorded that no plan fits; what ours is above it\n\
    as a share of it, null where there is one of the two only or it is 0; the same, faster, slower, fits, or does not fit. solve_seconds is the search alone,\n\
    without reading the file; a search of less than 1 ms is repeated and its median time given. Of a graph of Piper: {\"file\", \"feasible\",\n\
    \"time_per_sample\", \"plan\", \"costs\", \"status\", \"why\", \"solve_seconds\"}, the plan as Piper writes it.")]
pub struct PlaceArguments {
    /// Instance files (JSON: PHAZE's placement input or Piper's graph)
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Format of the answer
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Serialize)]
struct PhazeLine<'a> {
    file: String,
    feasible: bool,
    time_per_batch: Option<f64>,
    plan: Option<&'a PhazePlan>,
    status: &'static str,
    why: Option<&'a str>,
    solve_seconds: f64,
    expected: Option<RecordedComparison>,
}

/// An answer compared with the one recorded in the file.
#[derive(Serialize)]
struct RecordedComparison {
    time_per_batch: Option<f64>,
    /// Excess of this answer over the recorded one, as a fraction.
    difference: Option<f64>,
    verdict: &'static str,
}

/// Differences below this fraction come from another order of summation.
const ROUNDING: f64 = 1e-9;

impl RecordedComparison {
    fn compare_with_record(recorded: &Recorded, solution: &PhazeSolution) -> Self {
        let (ours, theirs) = (solution.time_per_batch, recorded.time_per_batch);
        // Two zero times are equal.
        let difference = ours.zip(theirs).map(|(ours, theirs)| if ours == theirs { 0.0 } else { ours / theirs - 1.0 });
        // A fraction of zero is undefined.
        let difference = difference.filter(|above| above.is_finite());
        let verdict = match (ours, theirs) {
            (Some(_), Some(_)) if difference.is_some_and(|above| above.abs() <= ROUNDING) => "the same",
            (Some(ours), Some(theirs)) if ours < theirs => "faster",
            (Some(_), Some(_)) => "slower",
            (Some(_), None) => "fits",
            (None, _) if theirs.is_some() => "does not fit",
            (None, _) => "the same",
        };
        Self { time_per_batch: theirs, difference, verdict }
    }

    fn comparison_text(&self) -> String {
        let theirs = self.time_per_batch.map_or_else(
            || "no plan fits".to_owned(),
            |time| {
                // Adding 0.0 removes the sign of a negative zero.
                format!("time per batch {:.6}", time + 0.0)
            },
        );
        let above = self.difference.map_or_else(String::new, |above| {
            let shown = if above.abs() <= ROUNDING { 0.0 } else { above };
            format!(", ours {:+.6} %", shown * 100.0)
        });
        format!("  expected: {theirs}{above}: {}\n", self.verdict)
    }
}

/// Runs the verb: solves every file. A bad file is reported; the others are still solved.
pub fn run_place(arguments: &PlaceArguments) -> Result<(), Failure> {
    let mut faults = Vec::new();
    for path in &arguments.files {
        match place_file(path, arguments.format) {
            Err(Failure::Input(error)) => faults.push(error.to_string()),
            other => other?,
        }
    }
    if faults.is_empty() { Ok(()) } else { Err(failure::input_failure(faults.join("\nerror: "))) }
}

fn place_file(path: &Path, format: Format) -> Result<(), Failure> {
    let file = path.display().to_string();
    if let Some(text) = sim::files::text::read_text(path).ok().filter(|text| piper::PiperInstance::is_piper_graph(text))
    {
        let instance = piper::PiperInstance::from_json_str(&text, &file).or_input()?;
        let solution = piper::place_graph(&instance).map_err(|why| failure::input_failure(format!("{file}: {why}")))?;
        return print_piper(&file, &instance, &solution, format);
    }
    let instance = phaze::PhazeInstance::read_file(path).or_input()?;
    let solution = solve_timed(&instance);
    let recorded = sim::files::text::read_text(path).ok().and_then(|text| {
        let recorded = Recorded::from_json_str(&text);
        recorded.unwrap_or_else(|fault| {
            tracing::warn!("{file}: expected is not compared: {fault}");
            None
        })
    });
    print_phaze(
        &file,
        &solution,
        recorded.map(|recorded| RecordedComparison::compare_with_record(&recorded, &solution)),
        format,
    )
}

/// The answer for a graph of Piper.
#[derive(Serialize)]
struct PiperLine<'a> {
    file: &'a str,
    feasible: bool,
    time_per_sample: Option<f64>,
    plan: Option<&'a piper::PiperPlan>,
    costs: Vec<PiperCost>,
    status: &'static str,
    why: Option<String>,
    solve_seconds: f64,
}

/// The costs of a stage, in seconds per sample and in bytes per device.
#[derive(Serialize)]
struct PiperCost {
    time_per_sample: f64,
    computing: f64,
    edges: f64,
    gradients: f64,
    memory_bytes: f64,
}

fn print_piper(
    file: &str,
    instance: &piper::PiperInstance,
    solution: &piper::PiperSolution,
    format: Format,
) -> Result<(), Failure> {
    let evaluation = solution.plan.as_ref().map(|plan| piper::evaluate_piper_plan(instance, plan));
    let cost = |c: &piper::PiperStageCost| PiperCost {
        time_per_sample: c.time_per_sample,
        computing: c.computing,
        edges: c.edges,
        gradients: c.gradients,
        memory_bytes: c.memory,
    };
    let line = PiperLine {
        file,
        feasible: solution.plan.is_some(),
        time_per_sample: solution.time_per_sample,
        plan: solution.plan.as_ref(),
        costs: evaluation.iter().flat_map(|evaluation| &evaluation.stages).map(cost).collect(),
        status: match solution.status {
            SolveStatus::Optimal => "optimal",
            SolveStatus::Gap { .. } => "gap",
            SolveStatus::Infeasible { .. } => "infeasible",
        },
        why: (solution.status != SolveStatus::Optimal).then(|| solution.status.to_string()),
        solve_seconds: solution.solve_seconds,
    };
    answer::write_answer_line(format, &Versioned::with_schema_one(&line), |_| piper_text(&line, instance, solution))
}

fn piper_text(line: &PiperLine<'_>, instance: &piper::PiperInstance, solution: &piper::PiperSolution) -> String {
    let mut out = format!("{}: {}\n", line.file, solution.status);
    if let (Some(time), Some(plan)) = (solution.time_per_sample, &solution.plan) {
        out += &format!(
            "  time per sample {time:.6} s under Piper's objective, {} stages, {} of {} devices\n",
            plan.stages.len(),
            plan.device_count(),
            instance.max_devices
        );
        for (index, (stage, cost)) in plan.stages.iter().zip(&line.costs).enumerate() {
            out += &format!(
                "  stage {index:>3}: d {}, t {}, layers {}, {}: {:.6} s, memory {:.2} GiB\n",
                stage.data_parallel,
                stage.tensor_parallel,
                number_runs(&stage.nodes),
                choice_counts(stage),
                cost.time_per_sample,
                cost.memory_bytes / 1_073_741_824.0
            );
        }
    }
    out
}

/// Numbers, with ranges written as `3-7`.
fn number_runs(ids: &[i64]) -> String {
    let mut text: Vec<String> = Vec::new();
    let mut at = 0;
    while at < ids.len() {
        let length = ids[at..].windows(2).take_while(|pair| pair[1] == pair[0] + 1).count();
        text.push(if length == 0 { ids[at].to_string() } else { format!("{}-{}", ids[at], ids[at + length]) });
        at += length + 1;
    }
    text.join(" ")
}

/// The number of layers per choice: `3 vanilla, 1 activation recomp`.
fn choice_counts(stage: &piper::PiperStage) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for choice in stage.choices.values() {
        *counts.entry(choice).or_default() += 1;
    }
    counts.iter().map(|(choice, count)| format!("{count} {choice}")).collect::<Vec<_>>().join(", ")
}

/// A longer search is timed once. This limit is far above disturbances from the clock and the scheduler.
const LONG_SECONDS: f64 = 1e-3;
/// Number of timings of a shorter search; odd, so that the median is one of them.
const REPEATS: usize = 7;

/// Solves an instance and times it. The first search of a process is slow for other reasons (cold caches, first pages
/// of the allocator). A short search is therefore repeated, and the median time is kept.
fn solve_timed(instance: &phaze::PhazeInstance) -> PhazeSolution {
    let mut solution = phaze::place_chain(instance);
    if solution.solve_seconds < LONG_SECONDS {
        let again = (1..REPEATS).map(|_| phaze::place_chain(instance).solve_seconds);
        let mut times: Vec<f64> = std::iter::once(solution.solve_seconds).chain(again).collect();
        times.sort_by(f64::total_cmp);
        solution.solve_seconds = times[REPEATS / 2];
    }
    solution
}

fn print_phaze(
    file: &str,
    solution: &PhazeSolution,
    expected: Option<RecordedComparison>,
    format: Format,
) -> Result<(), Failure> {
    let line = PhazeLine {
        file: file.to_owned(),
        feasible: solution.is_feasible(),
        time_per_batch: solution.time_per_batch,
        plan: solution.plan.as_ref(),
        status: if solution.is_feasible() { "optimal" } else { "infeasible" },
        why: solution.infeasible_reason(),
        solve_seconds: solution.solve_seconds,
        expected,
    };
    answer::write_answer_line(format, &Versioned::with_schema_one(&line), |_| phaze_text(&line, solution))
}

fn phaze_text(line: &PhazeLine<'_>, solution: &PhazeSolution) -> String {
    let mut out = format!("{}: {}\n", line.file, solution.status);
    if let (Some(time), Some(plan)) = (solution.time_per_batch, &solution.plan) {
        out += &format!(
            "  time per batch {time:.6} (unit of the file's latencies), {} copies x {} stages, tensor width {}, {} \
            devices\n",
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
    out += &line.expected.as_ref().map(RecordedComparison::comparison_text).unwrap_or_default();
    out
}
