//! `coplace pareto` for runs of serve: tokens per second and device against tokens per second and user, or against a
//! latency.

use super::ParetoArguments;
use crate::answer::{self, Versioned};
use crate::call::Call;
use crate::failure::{self, Failure, OrOther};
use crate::verb::compare::read_serving_runs;
use results::compare::serving::describe_differences;
use results::figure::draw_pareto;
use results::report;
use results::run::serving::{ServedAxis, ServedFront, ServingRun, fronts_of_points, plot_of_fronts};
use results::text::fold_line;
use serde::Serialize;

/// The fronts of runs of serve.
#[derive(Serialize)]
struct ServingFronts<'a> {
    written: Vec<String>,
    runs: Vec<ServingRunFronts<'a>>,
}

#[derive(Serialize)]
struct ServingRunFronts<'a> {
    run: &'a str,
    /// The horizontal axis. The vertical axis is tokens per second and device.
    axis: &'static str,
    fronts: Vec<ServedFront>,
}

/// Draws and lists the fronts of runs of serve.
pub fn draw_serving_fronts(arguments: &ParetoArguments, call: &Call) -> Result<(), Failure> {
    let runs = read_serving_runs(&arguments.directories)?;
    let names = || ServedAxis::NAMES.map(|(name, _)| name).join(", ");
    let axis = match &arguments.x {
        None => ServedAxis::default(),
        Some(name) => ServedAxis::from_name(name).ok_or_else(|| {
            let cure = format!("of runs of serve it is {}", sim::names::hint(name, &names(), "one of"));
            failure::option_failure("--x", name, "is no axis of deployments", cure)
        })?,
    };
    if let Some(name) = arguments.y.as_ref().or(arguments.z.as_ref()) {
        let limit = "the vertical axis of runs of serve is tokens/s per device";
        return Err(failure::option_failure("--y, --z", name, limit, "leave it out"));
    }
    let drawn: Vec<_> = runs.iter().map(|run| (run.name.as_str(), &run.record.asked, &run.points[..])).collect();
    let figure = draw_pareto(&plot_of_fronts(&drawn, axis)).or_other()?;
    let written = super::write_figure(arguments, &figure)?;
    let of = |run: &ServingRun| fronts_of_points(&run.points, axis);
    let label = axis.label();
    let answer = ServingFronts {
        written,
        runs: runs.iter().map(|run| ServingRunFronts { run: &run.name, axis: label, fronts: of(run) }).collect(),
    };
    answer::write_answer(call, arguments.format, &Versioned::with_schema_one(&answer), |_| {
        let mut text = String::new();
        for (fronts, run) in answer.runs.iter().zip(&runs) {
            text.push_str(&format!("{}: tokens/s per device against {}\n", fronts.run, fronts.axis));
            text.extend(runs.first().and_then(|first| describe_differences(first, run)).map(|line| fold_line(&line)));
            text.push_str(&report::fronts_text(&fronts.fronts));
            text.push('\n');
        }
        text + &format!("Written: {}\n", answer.written.join(", "))
    })
}
