//! Errors in sample and on held-out rows, side by side.

use super::{FewRunsFit, RunResidual};
use crate::evidence::HoldOutScheme;
use crate::text::{TextTable, format_count};
use crate::validate::ValuePrediction;
use crate::validate::ranking::score_rankings;
use std::collections::BTreeMap;

/// A line per data set and quantity: mean absolute errors in percent, in sample and with each kind of fold held out. It
/// also has the quality of the order of comparable plans (Spearman), in sample and with models held out.
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
    let mut table = TextTable::new(head).align_column(1, crate::text::ColumnAlign::Left);
    for ((quantity, dataset), rows) in &sets {
        let mut cells = vec![(*dataset).to_owned(), (*quantity).to_owned(), format_count(rows.len() as u64)];
        cells.push(percent_cell(mean_absolute_error(rows, |r| Some(r.in_sample))));
        cells.extend(HoldOutScheme::ALL.map(|scheme| percent_cell(mean_absolute_error(rows, |r| r.held_out[scheme as usize]))));
        cells.push(order_error(rows, |r| Some(r.in_sample)));
        cells.push(order_error(rows, |r| r.held_out[HoldOutScheme::Model as usize]));
        table.add_row(cells);
    }
    format!(
        "{}by model, nodes, chip: the stack's scalars fitted to the other folds from where other stacks have them; by stack: not fitted at all.\n",
        table.render()
    )
}

fn percent_cell(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.1}"))
}

/// The mean absolute error of the rows that have one, in percent of the measured value.
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
            evidence: None,
        })
    };
    let predictions: Vec<ValuePrediction> = rows.iter().filter_map(prediction).collect();
    score_rankings(&predictions, "iteration_s").first().map_or_else(|| "-".into(), |ranking| format!("{:.3}", ranking.spearman))
}

/// A line per data set: the errors of a stack that was fitted to a few rows.
#[must_use]
pub fn few_runs_report(found: &[FewRunsFit]) -> String {
    let mut table = TextTable::new(["data set", "fitted", "predicted", "MAPE % built in", "fitted to the few", "ratio"]);
    for f in found {
        let ratio = format!("{:.2}", f.few_pct / f.built_in_pct);
        let cells =
            [f.dataset.clone(), format_count(f.fitted as u64), format_count(f.rows as u64), percent_cell(Some(f.built_in_pct))];
        table.add_row(cells.into_iter().chain([percent_cell(Some(f.few_pct)), ratio]));
    }
    table.render()
}
