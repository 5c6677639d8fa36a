//! A fabric's scalars fitted to measured collectives.

use super::{Arguments, errors, scalars, stem};
use crate::answer::{self, Versioned};
use crate::failure::{self, Failure, OrInput, OrOther, OrUnwritable};
use crate::progress;
use results::report::{count, folded};
use results::validate::Options;
use results::validate::held_out::{CalibratedFabric, FabricFit, calibrate_fabric};
use serde::Serialize;

#[derive(Serialize)]
struct Answer {
    fabric: String,
    data: String,
    #[serde(flatten)]
    fit: FabricFit,
}

/// Fits, writes and prints.
pub fn run(arguments: &Arguments) -> Result<(), Failure> {
    if !arguments.only.is_empty() {
        return Err(failure::input(
            "--only: picks a chip's scalars; of a fabric all are fitted, and those that collectives do not determine are kept",
        ));
    }
    let CalibratedFabric { mut document, fit, source } =
        progress::shown("fitting", || calibrate_fabric(&arguments.data, &arguments.chip, &Options::default())).or_input()?;
    if let Some(out) = &arguments.out {
        document.name(&stem(out));
        document.fitted_on(&source);
        results::files::write(out, document.text().or_other()?.as_bytes()).or_unwritable()?;
    }
    let answer = Answer { fabric: arguments.chip.clone(), data: arguments.data.display().to_string(), fit };
    answer::give(arguments.format, &Versioned::first(&answer), |_| text(&answer))?;
    super::wrong_rows(&arguments.data)
}

fn text(answer: &Answer) -> String {
    let fit = &answer.fit;
    let mut text =
        format!("{}: {} rows of {}, {} others\n\n", answer.data, count(fit.rows as u64), answer.fabric, count(fit.others as u64));
    let row = errors::Row {
        first: vec![count(fit.rows as u64)],
        before_pct: fit.before_pct,
        after_pct: fit.after_pct,
        left_out_pct: fit.left_out_pct,
        by_kind_pct: fit.by_kind_pct,
    };
    text.push_str(&errors::table(&["rows fitted"], "kinds of collectives", &[row]));
    text.push('\n');
    text.push_str(&scalars(&fit.scalars));
    if let Some(software) = &fit.software {
        text.push_str(&folded(&format!(
            "Fitted, and written by --out, is the fabric under {software}: its figures for other software are not in it."
        )));
    }
    text
}
