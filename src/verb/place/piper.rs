//! Answers for Piper's graphs.

use crate::answer::{self, Format, Versioned};
use crate::call::Call;
use crate::failure::{self, Failure, OrInput};
use interop::piper;
use serde::Serialize;
use sim::status::SolveStatus;
use std::collections::BTreeMap;

/// Solves a graph and prints its answer.
pub fn place_piper_text(call: &Call, text: &str, file: &str, format: Format) -> Result<(), Failure> {
    let instance = piper::PiperInstance::from_json_str(text, file).or_input()?;
    let solution = piper::place_graph(&instance).map_err(|why| failure::file_failure(file, why, ""))?;
    print_piper(call, file, &instance, &solution, format)
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
    call: &Call,
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
        status: super::word_of_status(&solution.status),
        why: (solution.status != SolveStatus::Optimal).then(|| solution.status.to_string()),
        solve_seconds: solution.solve_seconds,
    };
    answer::write_answer_line(call, format, &Versioned::with_schema_one(&line), |_| {
        piper_text(&line, instance, solution)
    })
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

/// Lists numbers, with runs of consecutive ones written as `3-7`.
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

/// Returns the number of layers per choice: `3 vanilla, 1 activation recomp`.
fn choice_counts(stage: &piper::PiperStage) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for choice in stage.choices.values() {
        *counts.entry(choice).or_default() += 1;
    }
    counts.iter().map(|(choice, count)| format!("{count} {choice}")).collect::<Vec<_>>().join(", ")
}
