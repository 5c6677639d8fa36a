//! The coverage of intervals, as text.

use crate::text::{ColumnAlign, TextTable, fold_line, format_count};
use measured::evidence::{IntervalCoverage, RatioCoverage};

/// Returns the coverage of prediction intervals as text.
#[must_use]
pub fn coverage_report(found: &[IntervalCoverage]) -> String {
    let head =
        ["data set", "quantity", "held out", "rows", "covered %", "median width %", "groups", "regret %", "robust"];
    let mut table = TextTable::new(head)
        .align_column(1, ColumnAlign::Left)
        .align_column(2, ColumnAlign::Left)
        .keep_columns(&["held out", "rows", "covered %", "median width %", "regret %", "robust"]);
    for c in found {
        let percent = |value: f64| format!("{:.1}", value * 100.0);
        let regret = c.regret.map_or_else(|| ["-".to_owned(), "-".to_owned()], |r| r.map(percent));
        let cells =
            [c.dataset.clone(), c.quantity.column().to_owned(), c.scheme.to_string(), format_count(c.rows as u64)];
        let numbers = [percent(c.covered), percent(c.width), format_count(c.groups as u64)];
        table.add_row(cells.into_iter().chain(numbers).chain(regret));
    }
    let note = "90 % intervals: the row's fold is held out of the fitted scalars and of the errors that make its \
        interval. Width: relative to the predicted value. Regret: loss of the plan that is predicted fastest against \
        the fastest one; robust: of the plan with the best bad end.";
    table.render() + &fold_line(note)
}

/// Returns the coverage of intervals of ratios as text.
#[must_use]
pub fn ratio_coverage_report(found: &[RatioCoverage]) -> String {
    let head = [
        "pair of",
        "held out",
        "jobs",
        "pairs",
        "covered %",
        "median width %",
        "nothing shared",
        "called %",
        "right %",
    ];
    let mut table = TextTable::new(head).align_column(1, ColumnAlign::Left);
    for c in found {
        let percent = |value: f64| format!("{:.1}", value * 100.0);
        table.add_row([
            c.kind.to_string(),
            c.scheme.to_string(),
            format_count(c.jobs as u64),
            format_count(c.pairs as u64),
            percent(c.covered),
            percent(c.width),
            percent(c.width_apart),
            percent(c.called),
            c.right.map_or_else(|| "-".to_owned(), percent),
        ]);
    }
    let note = "90 % intervals of the ratio of two steps of one job. Held out: the models, the two chips, or the \
        software of both runs, of the scalars and of the pairs that make the interval. Nothing shared: the width if \
        the errors of the two steps were independent. Called: pairs whose interval does not hold 1; right: those \
        whose faster one is the measured one.";
    table.render() + &fold_line(note)
}
