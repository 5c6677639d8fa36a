//! Errors in sample and held out, side by side, as text.

use crate::text::{ColumnAlign, TextTable, format_count};
use measured::evidence::{AloneCoverage, AloneResiduals, HoldOutScheme, RunsAlone};
use measured::validate::ValuePrediction;
use measured::validate::held_out::{AloneResidual, FewRunsFit, HeldOutModel, RunResidual, mean_percent};
use measured::validate::score_rankings;
use std::collections::BTreeMap;

/// Returns one line per data set and quantity: mean absolute errors in percent, in sample and with each kind of fold
/// held out. Each line also has the rank correlation (Spearman) of comparable plans, in sample and with models held
/// out.
#[must_use]
pub fn held_out_report(residuals: &[RunResidual]) -> String {
    let mut sets: BTreeMap<(&str, &str), Vec<&RunResidual>> = BTreeMap::new();
    for residual in residuals {
        sets.entry((residual.quantity, &residual.dataset)).or_default().push(residual);
    }
    let head = [
        "data set",
        "quantity",
        "rows",
        "MAPE % in sample",
        "by model",
        "by nodes",
        "by chip",
        "by stack",
        "Spearman in sample",
        "by model",
    ];
    let mut table = TextTable::new(head).align_column(1, ColumnAlign::Left);
    for ((quantity, dataset), rows) in &sets {
        let mut cells = vec![(*dataset).to_owned(), (*quantity).to_owned(), format_count(rows.len() as u64)];
        cells.push(percent_cell(mean_absolute_error(rows, |r| Some(r.in_sample))));
        cells.extend(
            HoldOutScheme::ALL.map(|scheme| percent_cell(mean_absolute_error(rows, |r| r.held_out[scheme as usize]))),
        );
        cells.push(order_error(rows, |r| Some(r.in_sample)));
        cells.push(order_error(rows, |r| r.held_out[HoldOutScheme::Model as usize]));
        table.add_row(cells);
    }
    format!(
        "{}by model, nodes, chip: the stack's scalars are fitted to the other folds, starting from those of other \
        stacks; by stack: not fitted at all.\n",
        table.render()
    )
}

fn percent_cell(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.1}"))
}

/// Returns the mean absolute error of those rows that have one, in percent of the measured value. `None` if none has
/// one.
fn mean_absolute_error(rows: &[&RunResidual], error: impl Fn(&RunResidual) -> Option<f64>) -> Option<f64> {
    let errors: Vec<f64> = rows.iter().filter_map(|r| error(r)).map(|e| ((-e).exp() - 1.0).abs() * 100.0).collect();
    (!errors.is_empty()).then(|| errors.iter().sum::<f64>() / errors.len() as f64)
}

fn order_error(rows: &[&RunResidual], error: impl Fn(&RunResidual) -> Option<f64>) -> String {
    let prediction = |r: &&RunResidual| {
        Some(ValuePrediction {
            line: 0,
            id: r.id.clone(),
            quantity: r.quantity,
            group: r.dataset.clone(),
            size: None,
            ranking: r.ranking.clone(),
            measured: Some(r.measured),
            predicted: r.measured * (-error(r)?).exp(),
            stack: None,
            evidence: None,
        })
    };
    let predictions: Vec<ValuePrediction> = rows.iter().filter_map(prediction).collect();
    score_rankings(&predictions, "iteration_s")
        .first()
        .map_or_else(|| "-".into(), |ranking| format!("{:.3}", ranking.spearman))
}

/// Returns one line per data set: the errors of a stack that was fitted to a few rows.
#[must_use]
pub fn few_runs_report(found: &[FewRunsFit]) -> String {
    let mut table =
        TextTable::new(["data set", "fitted", "predicted", "MAPE % built in", "fitted to the few", "ratio"]);
    for f in found {
        let ratio = format!("{:.2}", f.few_pct / f.built_in_pct);
        let cells = [
            f.dataset.clone(),
            format_count(f.fitted as u64),
            format_count(f.rows as u64),
            percent_cell(Some(f.built_in_pct)),
        ];
        table.add_row(cells.into_iter().chain([percent_cell(Some(f.few_pct)), ratio]));
    }
    table.render()
}

/// Returns one line per engine and model: mean absolute errors in percent, in sample and with the model held out of the
/// engine's fit.
#[must_use]
pub fn held_out_models_report(found: &[HeldOutModel]) -> String {
    let head = ["engine", "model", "rows", "tpot_ms MAPE %", "held out", "ttft_ms MAPE %", "held out"];
    let mut table = TextTable::new(head).align_column(1, ColumnAlign::Left);
    for f in found {
        let errors = [f.between_pct, f.first_pct].concat();
        let cells = [f.engine.clone(), f.model.clone(), format_count(f.rows as u64)];
        table.add_row(cells.into_iter().chain(errors.into_iter().map(|error| percent_cell(Some(error)))));
    }
    table.render()
}

/// Returns one line per group of rows: mean absolute errors in percent, in sample and with each kind of rows held out.
/// A table of the coverage of intervals follows.
#[must_use]
pub fn alone_report(residuals: &[AloneResidual]) -> String {
    let mut groups: BTreeMap<&str, Vec<&AloneResidual>> = BTreeMap::new();
    for residual in residuals {
        groups.entry(&residual.group).or_default().push(residual);
    }
    let head = ["group", "rows", "MAPE % in sample", "rows left out", "kind left out", "chip left out", "scalars of"];
    let mut table = TextTable::new(head).align_column(6, ColumnAlign::Left);
    for (group, rows) in &groups {
        let mean = |error: &dyn Fn(&AloneResidual) -> Option<f64>| {
            let errors: Vec<f64> = rows.iter().filter_map(|r| error(r)).map(|e| -e).collect();
            if errors.is_empty() { "-".to_owned() } else { format!("{:.1}", mean_percent(&errors)) }
        };
        let from = rows[0].from.clone().unwrap_or_else(|| "-".into());
        let errors = [mean(&|r| Some(r.in_sample)), mean(&|r| r.rows), mean(&|r| r.kinds), mean(&|r| r.chip)];
        let first = [(*group).to_owned(), format_count(rows.len() as u64)];
        table.add_row(first.into_iter().chain(errors).chain([from]).collect::<Vec<_>>());
    }
    let words = "rows, kind left out: the scalars of chip or fabric fitted to the others, of a chip from where the chip under `scalars of` has them;\n\
                 chip left out: that chip's scalars.\n";
    let coverage =
        AloneResiduals::from(residuals.iter().map(AloneResidual::to_row).collect::<Vec<_>>()).coverage_by_data_set();
    format!("{}{words}\n{}", table.render(), coverage_of_alone(&coverage))
}

/// Returns the coverage of the 90 % intervals of kernels and collectives, as text.
#[must_use]
pub fn coverage_of_alone(found: &[AloneCoverage]) -> String {
    let mut table = TextTable::new(["data set", "of", "held out", "rows", "covered %", "median width %"]);
    for c in found {
        let numbers =
            [format_count(c.rows as u64), format!("{:.1}", c.covered * 100.0), format!("{:.0}", c.width * 100.0)];
        let what = if c.what == RunsAlone::Kernel { "kernels" } else { "collectives" };
        let first = [c.dataset.clone(), what.to_owned(), c.held_out.to_string()];
        table.add_row(first.into_iter().chain(numbers).collect::<Vec<_>>());
    }
    format!("90 % intervals made of the other rows' errors:\n{}", table.render())
}
