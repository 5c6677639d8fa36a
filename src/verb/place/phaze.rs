//! Answers for PHAZE's placement instances.

use crate::answer::{self, Format, Versioned};
use crate::call::Call;
use crate::failure::{Failure, OrInput};
use interop::phaze::{self, PhazePlan, PhazeSolution, Recorded};
use serde::Serialize;
use std::path::Path;

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

/// Smaller differences, as a fraction, come from another order of summation.
const ROUNDING: f64 = 1e-9;

impl RecordedComparison {
    fn compare_with_record(recorded: &Recorded, solution: &PhazeSolution) -> Self {
        let (ours, theirs) = (solution.time_per_batch, recorded.time_per_batch);
        // Two zero times are equal.
        let difference = ours.zip(theirs).map(|(ours, theirs)| if ours == theirs { 0.0 } else { ours / theirs - 1.0 });
        // The difference relative to a time of zero is undefined.
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

/// Solves an instance and prints its answer.
pub fn place_phaze_file(call: &Call, path: &Path, format: Format) -> Result<(), Failure> {
    let file = path.display().to_string();
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
        call,
        &file,
        &solution,
        recorded.map(|recorded| RecordedComparison::compare_with_record(&recorded, &solution)),
        format,
    )
}

/// A search that takes at least this many seconds is timed once. The limit is far above disturbances from the clock and
/// the scheduler.
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
    call: &Call,
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
    answer::write_answer_line(call, format, &Versioned::with_schema_one(&line), |_| phaze_text(&line, solution))
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
