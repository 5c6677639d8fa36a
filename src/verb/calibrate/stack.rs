//! A software stack's scalars fitted to measured runs.

use super::{Arguments, number, stem};
use crate::answer::{self, Versioned};
use crate::failure::{self, Failure, OrInput, OrOther, OrUnwritable};
use results::report::{Align, Table, count};
use results::validate::Options;
use results::validate::held_out::{Calibrated, FittedScalar, Part, calibrate};
use serde::Serialize;
use step::SoftwareStack;

#[derive(Serialize)]
struct Answer {
    stack: String,
    data: String,
    rows: usize,
    parts: Vec<Part>,
}

/// Fits, writes and prints.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    if !arguments.only.is_empty() {
        return Err(failure::input(
            "--only: picks a chip's scalars; of a stack all are fitted, and those that runs do not determine are kept",
        ));
    }
    let base = SoftwareStack::load(&arguments.chip).or_input()?;
    let name = arguments.out.as_deref().map_or_else(|| format!("{}_calibrated", base.name), stem);
    let Calibrated { stack, rows, parts } = calibrate(&arguments.data, &base, &name, &Options::default()).or_input()?;
    if let Some(out) = &arguments.out {
        let text = stack.to_toml_string().or_other()?;
        results::files::write(out, text.as_bytes()).or_unwritable()?;
    }
    let answer = Answer { stack: base.name, data: arguments.data.display().to_string(), rows, parts };
    answer::give(arguments.format, &Versioned::first(&answer), |_| text(&answer))?;
    super::wrong_rows(&arguments.data)
}

fn text(answer: &Answer) -> String {
    let mut text = format!("{}: {} rows, stack {}\n\n", answer.data, count(answer.rows as u64), answer.stack);
    let head = ["quantity", "rows fitted", "MAPE % before", "after", "rows left out in turn", "models left out in turn"];
    let mut errors = Table::new(head);
    for part in &answer.parts {
        let percent = |value: f64| format!("{value:.1}");
        errors.row([
            part.quantity.to_owned(),
            count(part.rows as u64),
            percent(part.before_pct),
            percent(part.after_pct),
            percent(part.left_out_pct),
            part.by_model_pct.map_or_else(|| "-".to_owned(), percent),
        ]);
    }
    text.push_str(&errors.render());
    text.push('\n');
    text.push_str(&scalars(answer.parts.iter().flat_map(|part| &part.scalars)));
    text
}

/// Scalars before and after, with the ranges that the rows put them in.
pub(super) fn scalars<'a>(fitted: impl IntoIterator<Item = &'a FittedScalar>) -> String {
    let mut table = Table::new(["scalar", "before", "after", "90 % range", ""]).align(4, Align::Left);
    for scalar in fitted {
        table.row([
            scalar.key.clone(),
            number(scalar.before),
            number(scalar.after),
            format!("{} to {}", number(scalar.range.0), number(scalar.range.1)),
            if scalar.determined { String::new() } else { "not determined by the rows, kept".to_owned() },
        ]);
    }
    let mut text = table.render();
    text.push_str("Ranges: what the rows allow with the other scalars as they are.\n");
    text
}
