//! Fits a software stack's scalars to measured runs.

use super::{Fit, errors, output_stem, scalars_table};
use crate::answer::{self, Versioned};
use crate::call::Call;
use crate::failure::{self, Failure, OrInput, OrOther, OrUnwritable};
use crate::progress;
use interop::log::LogContext;
use measured::validate::ValidateOptions;
use measured::validate::held_out::{CalibratedStack, QuantityFit, calibrate_stack};
use results::text::{fold_line, format_count};
use serde::Serialize;
use step::SoftwareStack;

#[derive(Serialize)]
struct CalibratedStackAnswer {
    stack: String,
    data: String,
    rows: usize,
    parts: Vec<QuantityFit>,
}

/// Fits a stack's scalars to measured runs, writes the stack if a file is asked for, and prints its errors.
pub fn run_calibrate_stack(arguments: &Fit<'_>, call: &Call) -> Result<(), Failure> {
    if !arguments.only.is_empty() {
        return Err(failure::option_failure(
            "--only",
            "",
            "selects scalars of a chip",
            "for a stack all are fitted, and those that runs do not determine are kept",
        ));
    }
    let base = SoftwareStack::load(arguments.chip).map_err(|fault| {
        failure::file_failure(
            arguments.data.display(),
            format!("these are runs, which a software stack is fitted to: {fault}"),
            "",
        )
    })?;
    let name = arguments.out.map_or_else(|| format!("{}_calibrated", base.name), output_stem);
    let CalibratedStack { stack, rows, parts } = progress::run_with_progress(call, "fitting", || {
        calibrate_stack(arguments.data, &base, &name, &ValidateOptions::default())
    })
    .or_input()?;
    if let Some(out) = arguments.out {
        let text = stack.to_toml_string().or_other()?;
        results::store::files::write_file(out, text.as_bytes()).or_unwritable()?;
    }
    let answer = CalibratedStackAnswer { stack: base.name, data: arguments.data.display().to_string(), rows, parts };
    answer::write_answer(call, arguments.format, &Versioned::with_schema_one(&answer), |_| answer_text(&answer))?;
    super::report_wrong_rows(arguments.data, LogContext::default())
}

fn answer_text(answer: &CalibratedStackAnswer) -> String {
    let mut text = format!("{}: {} rows, stack {}\n\n", answer.data, format_count(answer.rows as u64), answer.stack);
    let row = |part: &QuantityFit| errors::FitErrorRow {
        first: vec![part.quantity.to_owned(), format_count(part.rows as u64)],
        before_pct: part.before_pct,
        after_pct: part.after_pct,
        left_out_pct: part.left_out_pct,
        by_kind_pct: part.by_model_pct,
    };
    let rows: Vec<errors::FitErrorRow> = answer.parts.iter().map(row).collect();
    text.push_str(&errors::errors_table(&["quantity", "rows fitted"], "models", &rows));
    text.push('\n');
    text.push_str(&scalars_table(answer.parts.iter().flat_map(|part| &part.scalars)));
    text.push_str(&fold_line(
        "The stack that --out writes has the runs' held-out errors. On the runs' chips and fabrics, intervals under it \
        rest on them.",
    ));
    text
}
