//! A fabric's scalars fitted to measured collectives.

use super::{Arguments, stack, stem};
use crate::answer::{self, Versioned};
use crate::failure::{self, Failure, OrInput, OrOther, OrUnwritable};
use results::report::{Table, count};
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
        calibrate_fabric(&arguments.data, &arguments.chip, &Options::default()).or_input()?;
    if let Some(out) = &arguments.out {
        document.name(&stem(out), &source);
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
    let mut errors =
        Table::new(["rows fitted", "MAPE % before", "after", "rows left out in turn", "kinds of collectives left out in turn"]);
    let percent = |value: f64| format!("{value:.1}");
    errors.row([
        count(fit.rows as u64),
        percent(fit.before_pct),
        percent(fit.after_pct),
        percent(fit.left_out_pct),
        fit.by_kind_pct.map_or_else(|| "-".to_owned(), percent),
    ]);
    text.push_str(&errors.render());
    text.push('\n');
    text.push_str(&stack::scalars(&fit.scalars));
    text
}
