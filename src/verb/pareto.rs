//! `coplace pareto`: the front of throughput against area, drawn and listed.

use super::compare::read;
use crate::answer::{self, Format, Versioned};
use crate::failure::{self, Failure, OrOther, OrUnwritable};
use results::design::DesignRow;
use results::report::{Align, Table, area, significant};
use results::run::{self, PARETO, Run};
use serde::Serialize;
use sim::units::SquareMillimeters;
use std::path::PathBuf;

/// Draw throughput against area of one or more runs and list the designs on the front
#[derive(clap::Args)]
#[command(after_help = "Example:\n  coplace pareto runs/llama2-7b-phaze runs/llama2-7b-phaze_ici --out figures\n\n\
    Writes pareto.svg and pareto.png into the directory. A design is on its run's front where no other evaluated design of the\n\
    run is at most as large and at least as fast.\n\
    JSON: {\"written\": [paths], \"runs\": [{\"run\", \"front\": [designs]}]}, by area; a design has the columns of designs.parquet.")]
pub struct Arguments {
    /// Run directories that `coplace search` or `coplace sweep` wrote
    #[arg(required = true, value_name = "DIR")]
    directories: Vec<PathBuf>,
    /// Directory of the figures; made if need be
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// Form of the answer
    #[arg(long, value_enum, default_value_t = Format::Text)]
    format: Format,
}

#[derive(Serialize)]
struct Answer<'a> {
    written: Vec<String>,
    runs: Vec<RunFront<'a>>,
}

#[derive(Serialize)]
struct RunFront<'a> {
    run: &'a str,
    front: Vec<&'a DesignRow>,
}

/// Reads the runs, draws, lists.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    let runs = read(&arguments.directories)?;
    let out = &arguments.out;
    if out.exists() && !out.is_dir() {
        return Err(failure::input(format!("--out {}: is a file; give a directory", out.display())));
    }
    let figure = run::figure(&runs).or_other()?;
    std::fs::create_dir_all(out).map_err(|e| {
        failure::of_io(&e, format!("--out {}: cannot be made: {e}; give a directory you may write to", out.display()))
    })?;
    let written = figure.write(out, PARETO).or_unwritable()?;
    let written = written.iter().map(|path| path.display().to_string()).collect();
    let fronts = runs.iter().map(|run| RunFront { run: &run.name, front: run.front() }).collect();
    let answer = Answer { written, runs: fronts };
    answer::give(arguments.format, &Versioned::first(&answer), |_| text(&answer, &runs))
}

/// One table per run: its front by area.
fn text(answer: &Answer<'_>, runs: &[Run]) -> String {
    let mut text = String::new();
    for (front, run) in answer.runs.iter().zip(runs) {
        let (name, model) = (front.run, &run.record.study.model);
        if front.front.is_empty() {
            text.push_str(&format!("{name}: no design runs {model}\n\n"));
            continue;
        }
        text.push_str(&format!("{name}: the front of {model}, {} designs\n", front.front.len()));
        if let Some(note) = runs.first().and_then(|first| run::difference(first, run)) {
            text.push_str(&format!("({note})\n"));
        }
        let mut table = Table::new(["area", "sequences/s", "chip", "plan"]).align(2, Align::Left).align(3, Align::Left);
        for row in &front.front {
            table.row([
                area(SquareMillimeters(row.area_mm2)),
                row.throughput_sequences_per_s.map_or_else(String::new, |t| significant(t, 4)),
                row.chip(),
                row.plan().unwrap_or_default(),
            ]);
        }
        text.push_str(&table.render());
        text.push('\n');
    }
    text.push_str(&format!("Written: {}\n", answer.written.join(", ")));
    text
}
