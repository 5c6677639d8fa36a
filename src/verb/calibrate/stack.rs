//! A software stack's scalars fitted to measured runs.

use super::{Arguments, errors, scalars, stem};
use crate::answer::{self, Versioned};
use crate::failure::{self, Failure, OrInput, OrOther, OrUnwritable};
use crate::progress;
use results::report::count;
use results::validate::Options;
use results::validate::held_out::{Calibrated, Part, calibrate};
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
    let base = SoftwareStack::load(&arguments.chip).map_err(|fault| {
        failure::input(format!("{}: these are runs, which a software stack is fitted to: {fault}", arguments.data.display()))
    })?;
    let name = arguments.out.as_deref().map_or_else(|| format!("{}_calibrated", base.name), stem);
    let Calibrated { stack, rows, parts } =
        progress::shown("fitting", || calibrate(&arguments.data, &base, &name, &Options::default())).or_input()?;
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
    let row = |part: &Part| errors::Row {
        first: vec![part.quantity.to_owned(), count(part.rows as u64)],
        before_pct: part.before_pct,
        after_pct: part.after_pct,
        left_out_pct: part.left_out_pct,
        by_kind_pct: part.by_model_pct,
    };
    let rows: Vec<errors::Row> = answer.parts.iter().map(row).collect();
    text.push_str(&errors::table(&["quantity", "rows fitted"], "models", &rows));
    text.push('\n');
    text.push_str(&scalars(answer.parts.iter().flat_map(|part| &part.scalars)));
    text
}
