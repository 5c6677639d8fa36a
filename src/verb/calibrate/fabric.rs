//! Fits a fabric's scalars to measured collectives.

use super::{Fit, errors, output_stem, scalars_table};
use crate::answer::{self, Versioned};
use crate::call::Call;
use crate::failure::{self, Failure, OrInput, OrOther, OrUnwritable};
use crate::input::read_measured_rows;
use crate::progress;
use interop::log::LogContext;
use measured::validate::ValidateOptions;
use measured::validate::held_out::{CalibratedFabric, FabricFit, calibrate_fabric};
use results::text::{fold_line, format_count};
use serde::Serialize;

#[derive(Serialize)]
struct CalibratedFabricAnswer {
    fabric: String,
    data: String,
    #[serde(flatten)]
    fit: FabricFit,
}

/// Fits the fabric, writes it if a file is asked for, and prints the answer.
pub fn run_calibrate_fabric(arguments: &Fit<'_>, call: &Call) -> Result<(), Failure> {
    if !arguments.only.is_empty() {
        return Err(failure::option_failure(
            "--only",
            "",
            "selects scalars of a chip",
            "for a fabric all are fitted, and those that collectives do not determine are kept",
        ));
    }
    let context = LogContext { fabric: Some(arguments.chip), ..LogContext::default() };
    let rows = read_measured_rows(arguments.data, context)?;
    let CalibratedFabric { mut document, fit, source } = progress::run_with_progress(call, "fitting", || {
        calibrate_fabric(arguments.data, &rows, arguments.chip, &ValidateOptions::default())
    })
    .or_input()?;
    if let Some(out) = arguments.out {
        document.set_name(&output_stem(out));
        document.set_fitted_on(&source);
        results::store::files::write_file(out, document.to_text().or_other()?.as_bytes()).or_unwritable()?;
    }
    let answer =
        CalibratedFabricAnswer { fabric: arguments.chip.to_owned(), data: arguments.data.display().to_string(), fit };
    answer::write_answer(call, arguments.format, &Versioned::with_schema_one(&answer), |_| answer_text(&answer))?;
    super::report_wrong_rows(arguments.data, context)
}

fn answer_text(answer: &CalibratedFabricAnswer) -> String {
    let fit = &answer.fit;
    let mut text = format!(
        "{}: {} rows of {}, {} others\n\n",
        answer.data,
        format_count(fit.rows as u64),
        answer.fabric,
        format_count(fit.others as u64)
    );
    let row = errors::FitErrorRow {
        first: vec![format_count(fit.rows as u64)],
        before_pct: fit.before_pct,
        after_pct: fit.after_pct,
        left_out_pct: fit.left_out_pct,
        by_kind_pct: fit.by_kind_pct,
    };
    text.push_str(&errors::errors_table(&["rows fitted"], "kinds of collectives", &[row]));
    text.push('\n');
    text.push_str(&scalars_table(&fit.scalars));
    if let Some(software) = &fit.software {
        text.push_str(&fold_line(&format!(
            "The fitted fabric, which --out writes, is the one under {software}, without the figures for other \
            software."
        )));
    }
    text
}
