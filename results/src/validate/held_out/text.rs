//! Errors in sample and held out, side by side.

use super::{FromFew, Residual};
use crate::evidence::Scheme;
use crate::text::{Table, count};
use crate::validate::Prediction;
use crate::validate::ranking::rankings;
use std::collections::BTreeMap;

/// A line per data set and quantity: mean absolute errors in percent, in sample and with each kind of fold held out, and how well plans of equal
/// model, chips and batch are ordered (Spearman) in sample and with models held out.
#[must_use]
pub fn report(residuals: &[Residual]) -> String {
    let mut sets: BTreeMap<(&str, &str), Vec<&Residual>> = BTreeMap::new();
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
    let mut table = Table::new(head).align(1, crate::text::Align::Left);
    for ((quantity, dataset), rows) in &sets {
        let mut cells = vec![(*dataset).to_owned(), (*quantity).to_owned(), count(rows.len() as u64)];
        cells.push(percent(mape(rows, |r| Some(r.in_sample))));
        cells.extend(Scheme::ALL.map(|scheme| percent(mape(rows, |r| r.held_out[scheme as usize]))));
        cells.push(order(rows, |r| Some(r.in_sample)));
        cells.push(order(rows, |r| r.held_out[Scheme::Model as usize]));
        table.row(cells);
    }
    format!(
        "{}by model, nodes, chip: the stack's scalars fitted to the other folds from where other stacks have them; by stack: not fitted at all.\n",
        table.render()
    )
}

fn percent(value: Option<f64>) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.1}"))
}

/// The mean absolute error of the rows that have one, in percent of what was measured.
fn mape(rows: &[&Residual], error: impl Fn(&Residual) -> Option<f64>) -> Option<f64> {
    let errors: Vec<f64> = rows.iter().filter_map(|r| error(r)).map(|e| ((-e).exp() - 1.0).abs() * 100.0).collect();
    (!errors.is_empty()).then(|| errors.iter().sum::<f64>() / errors.len() as f64)
}

fn order(rows: &[&Residual], error: impl Fn(&Residual) -> Option<f64>) -> String {
    let prediction = |r: &&Residual| {
        Some(Prediction {
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
    let predictions: Vec<Prediction> = rows.iter().filter_map(prediction).collect();
    rankings(&predictions, "iteration_s").first().map_or_else(|| "-".into(), |ranking| format!("{:.3}", ranking.spearman))
}

/// A line per data set: how a stack fitted to a few rows predicts the others.
#[must_use]
pub fn few(found: &[FromFew]) -> String {
    let mut table = Table::new(["data set", "fitted", "predicted", "MAPE % built in", "fitted to the few", "ratio"]);
    for f in found {
        let ratio = format!("{:.2}", f.few_pct / f.built_in_pct);
        let cells = [f.dataset.clone(), count(f.fitted as u64), count(f.rows as u64), percent(Some(f.built_in_pct))];
        table.row(cells.into_iter().chain([percent(Some(f.few_pct)), ratio]));
    }
    table.render()
}
