//! Answers for NEST's instances.

use crate::answer::{self, Format, Versioned};
use crate::call::Call;
use crate::failure::{self, Failure, OrInput};
use interop::nest::{self, NestBaseline, NestInstance, NestPlan, NestRecord, NestSolution};
use serde::Serialize;
use sim::status::SolveStatus;
use std::collections::BTreeMap;

/// The name of the method under which files record the throughput of NEST's own search.
const NEST_METHOD: &str = "Nest";
/// Smaller differences, as a fraction, come from another order of summation.
const ROUNDING: f64 = 1e-9;

#[derive(Serialize)]
struct NestLine<'a> {
    file: &'a str,
    feasible: bool,
    nest: NestAnswer<'a>,
    status: &'static str,
    why: Option<String>,
    solve_seconds: f64,
    expected: Option<ThroughputComparison>,
    published: Option<PublishedFigures<'a>>,
}

/// The answer for an instance. Throughputs are in samples per second.
#[derive(Serialize)]
struct NestAnswer<'a> {
    throughput: Option<f64>,
    time_per_batch: Option<f64>,
    plan: Option<&'a NestPlan>,
    /// Throughput of the fixed plans as NEST cuts and charges them.
    baselines: BTreeMap<&'a str, Option<f64>>,
    why_none: BTreeMap<&'a str, String>,
    /// The fixed plans' degrees with the best cut.
    correct_cut: BTreeMap<&'a str, CorrectCutAnswer<'a>>,
}

#[derive(Serialize)]
struct CorrectCutAnswer<'a> {
    throughput: Option<f64>,
    plan: Option<&'a NestPlan>,
    why: Option<String>,
}

/// This answer compared with the one recorded in the file.
#[derive(Serialize)]
struct ThroughputComparison {
    throughput: Option<f64>,
    /// Excess of this throughput over the recorded one, as a fraction.
    difference: Option<f64>,
    verdict: &'static str,
}

/// Figures that NEST published for the cell.
#[derive(Serialize)]
struct PublishedFigures<'a> {
    /// Throughput of NEST's plan divided by that of each method.
    gain: BTreeMap<&'a str, f64>,
    /// Seconds that NEST's own search took.
    wall_seconds: Option<f64>,
}

/// Solves an instance, evaluates its fixed plans and prints the answer.
pub fn place_nest_text(call: &Call, text: &str, file: &str, format: Format) -> Result<(), Failure> {
    let instance = NestInstance::from_json_str(text, file).or_input()?;
    let solution = nest::place_nest_chain(&instance).map_err(|why| failure::file_failure(file, why, ""))?;
    let baselines = nest::evaluate_baselines(&instance);
    let line = line_of_solution(file, &instance.record, &solution, &baselines);
    answer::write_answer_line(call, format, &Versioned::with_schema_one(&line), |_| {
        nest_text(&line, &instance, &solution)
    })
}

fn line_of_solution<'a>(
    file: &'a str,
    record: &'a NestRecord,
    solution: &'a NestSolution,
    baselines: &'a BTreeMap<String, NestBaseline>,
) -> NestLine<'a> {
    let throughput = solution.best.as_ref().map(|best| best.evaluation.throughput);
    let named = || baselines.iter().map(|(name, baseline)| (name.as_str(), baseline));
    let failed =
        |(name, baseline): (&'a str, &NestBaseline)| Some((name, baseline.as_nest_cuts.as_ref().err()?.to_string()));
    let correct_cut = |(name, baseline): (&'a str, &'a NestBaseline)| {
        let cut = baseline.correct_cut.as_ref();
        let answer = CorrectCutAnswer {
            throughput: cut.ok().map(|rated| rated.throughput),
            plan: cut.ok().map(|rated| &rated.plan),
            why: cut.err().map(ToString::to_string),
        };
        (name, answer)
    };
    NestLine {
        file,
        feasible: throughput.is_some(),
        nest: NestAnswer {
            throughput,
            time_per_batch: solution.best.as_ref().map(|best| best.evaluation.time_per_batch),
            plan: solution.best.as_ref().map(|best| &best.plan),
            baselines: named()
                .map(|(name, baseline)| (name, baseline.as_nest_cuts.as_ref().ok().map(|rated| rated.throughput)))
                .collect(),
            why_none: named().filter_map(failed).collect(),
            correct_cut: named().map(correct_cut).collect(),
        },
        status: super::word_of_status(&solution.status),
        why: (solution.status != SolveStatus::Optimal).then(|| solution.status.to_string()),
        solve_seconds: solution.solve_seconds,
        expected: record.throughput.get(NEST_METHOD).map(|recorded| compare_throughput(throughput, *recorded)),
        published: published_figures(record),
    }
}

fn compare_throughput(ours: Option<f64>, recorded: Option<f64>) -> ThroughputComparison {
    let difference = ours.zip(recorded).map(|(ours, recorded)| ours / recorded - 1.0);
    let verdict = match difference {
        Some(above) if above.abs() <= ROUNDING => "the same",
        Some(above) if above > 0.0 => "faster",
        Some(_) => "slower",
        None if ours.is_some() => "fits",
        None if recorded.is_some() => "does not fit",
        None => "the same",
    };
    ThroughputComparison { throughput: recorded, difference, verdict }
}

/// Returns the published figures; `None` if the file has none.
fn published_figures(record: &NestRecord) -> Option<PublishedFigures<'_>> {
    let figure = |method: &str| record.published.get(method).copied().flatten();
    let gains = |nest: f64| {
        let others = record.published.keys().map(String::as_str).filter(|method| *method != NEST_METHOD);
        others.filter_map(|method| Some((method, nest / figure(method)?))).collect()
    };
    let gain: BTreeMap<&str, f64> = figure(NEST_METHOD).map(gains).unwrap_or_default();
    let wall_seconds = record.nest_wall_seconds;
    (!gain.is_empty() || wall_seconds.is_some()).then_some(PublishedFigures { gain, wall_seconds })
}

fn nest_text(line: &NestLine<'_>, instance: &NestInstance, solution: &NestSolution) -> String {
    let mut out = format!("{}: {}\n", line.file, solution.status);
    if let Some(best) = &solution.best {
        out += &format!(
            "  {} under NEST's model: tensor width {}, {} copies x {} stages, {} of {} devices; solved in {:.1} ms\n",
            rate_text(best.evaluation.throughput),
            best.plan.t,
            best.plan.d,
            best.plan.p,
            best.plan.devices,
            instance.devices,
            solution.solve_seconds * 1e3
        );
        out += &format!("  layers per stage: {}\n", stage_runs(&best.plan.stages));
    }
    out += &baselines_text(line);
    if let Some(expected) = &line.expected {
        let recorded = expected.throughput.map_or_else(|| "no plan fits".to_owned(), rate_text);
        let above = expected.difference.filter(|above| above.abs() > ROUNDING);
        let above = above.map_or_else(String::new, |above| format!(", ours {:+.7} %", above * 100.0));
        out += &format!("  expected: {recorded}{above}: {}\n", expected.verdict);
    }
    if let Some(seconds) = line.published.as_ref().and_then(|published| published.wall_seconds) {
        out += &format!("  NEST's own run took {seconds:.0} s as published\n");
    }
    out
}

/// Returns the baselines as a table: throughput as NEST cuts them and with a correct cut, and the gain of the best plan
/// over both. Reasons of missing figures follow.
fn baselines_text(line: &NestLine<'_>) -> String {
    if line.nest.baselines.is_empty() {
        return String::new();
    }
    let cell = |figure: Option<f64>| figure.map_or_else(|| "-".to_owned(), six_digits);
    let gain_over = |other: Option<f64>| {
        let gain = line.nest.throughput.zip(other).map(|(best, other)| best / other);
        gain.map_or_else(|| "-".to_owned(), |gain| format!("{gain:.3}"))
    };
    let mut out = row_text(["baseline", "NEST's cut", "gain", "published", "correct cut", "gain"]);
    let mut reasons = String::new();
    for (name, cut) in &line.nest.correct_cut {
        let as_cut = line.nest.baselines.get(name).copied().flatten();
        let published = line.published.as_ref().and_then(|published| published.gain.get(name));
        let published = published.map_or_else(|| "-".to_owned(), |gain| format!("{gain:.2}"));
        let cells = [cell(as_cut), gain_over(as_cut), published, cell(cut.throughput), gain_over(cut.throughput)];
        let [as_cut, gain, published, correct, correct_gain] = &cells;
        out += &row_text([name, as_cut, gain, published, correct, correct_gain]);
        let why = line.nest.why_none.get(name).map(|why| format!("  {name}, NEST's cut: {why}\n"));
        let why_correct = cut.why.as_ref().map(|why| format!("  {name}, correct cut: {why}\n"));
        reasons.extend(why.into_iter().chain(why_correct));
    }
    out + &reasons
}

fn row_text(cells: [&str; 6]) -> String {
    let [name, as_cut, gain, published, correct, correct_gain] = cells;
    format!("  {name:<10} {as_cut:>12} {gain:>7} {published:>10} {correct:>12} {correct_gain:>7}\n")
}

fn rate_text(throughput: f64) -> String {
    format!("{} samples/s", six_digits(throughput))
}

/// Formats a figure with six significant digits.
fn six_digits(figure: f64) -> String {
    let before = figure.abs().log10().floor();
    let decimals = if before.is_finite() { (5.0 - before).clamp(0.0, 15.0) as usize } else { 0 };
    format!("{figure:.decimals$}")
}

/// Lists numbers and counts equal neighbours: `7 x 4, 5`.
fn stage_runs(stages: &[usize]) -> String {
    let runs = stages.chunk_by(|one, other| one == other);
    let run = |run: &[usize]| if run.len() == 1 { run[0].to_string() } else { format!("{} x {}", run.len(), run[0]) };
    runs.map(run).collect::<Vec<_>>().join(", ")
}
