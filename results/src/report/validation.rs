//! The validation of predictions against measurements, as text.

use crate::text::{ColumnAlign, TextTable, fold_line, format_count, format_significant};
use measured::validate::{Dataset, FileReport, GroupScore};
use std::collections::BTreeMap;
use std::collections::BTreeSet;

/// The largest number of ids in a line. The line counts the others.
const NAMED: usize = 4;
/// The largest number of faulty rows that are printed in full.
const FAULTS: usize = 20;

/// Returns the report of one file: its data set, the scores, and every row without a score.
#[must_use]
pub fn validation_report(report: &FileReport) -> String {
    let mut text =
        format!("{}: {}, {} rows\n", report.file.display(), report.dataset, format_count(report.rows as u64));
    if !report.ignored_columns.is_empty() {
        text.push_str(&format!("ignored columns: {}\n", report.ignored_columns.join(", ")));
    }
    if !report.groups.is_empty() {
        text.push('\n');
        text.push_str(&scores_table(report));
        text.push_str(&stacks_text(report));
    }
    let silent =
        report.predictions.iter().all(|prediction| prediction.measured.is_none()) && report.row_errors.is_empty();
    if silent && report.rows > 0 {
        text.push_str(
            "No row has a measured value: nothing is scored. --predictions FILE.csv writes what is predicted.\n",
        );
    }
    text.push_str(&rankings_table(report));
    text.push_str(&out_of_memory_table(report));
    text.push_str(&assumptions_text(report));
    text.push_str(&unpredicted_text(report));
    text.push_str(&faults_text(report));
    text
}

/// Returns the software stacks of the predictions. A narrow screen may drop their column in the table.
fn stacks_text(report: &FileReport) -> String {
    let stacks: BTreeSet<&str> = report.groups.iter().flat_map(|score| &score.stacks).map(String::as_str).collect();
    match stacks.is_empty() {
        true => String::new(),
        false => format!("software stacks: {}\n", Vec::from_iter(stacks).join(", ")),
    }
}

fn scores_table(report: &FileReport) -> String {
    let several = report.dataset.target_columns().len() > 1;
    let exact = report.dataset.is_exact();
    let mut head = vec!["group"];
    head.extend(several.then_some("quantity"));
    head.extend(["n", "not predicted"]);
    head.extend(exact.then_some("exact"));
    head.extend(["MAPE %", "median %", "bias %"]);
    let judged = report.groups.iter().any(|score| score.within_pct.is_some());
    head.extend(judged.then_some(["within 90 %", "its width %"]).into_iter().flatten());
    let runs = report.groups.iter().any(|score| !score.stacks.is_empty());
    head.extend(runs.then_some("stack"));
    head.extend(["worst %", "worst row"]);
    let last = head.len() - 1;
    let mut table = TextTable::new(head).align_column(last, ColumnAlign::Left);
    if runs {
        table = table.align_column(last - 2, ColumnAlign::Left);
    }
    if several {
        table = table.align_column(1, ColumnAlign::Left);
    }
    for score in &report.groups {
        table.add_row(score_cells(score, [several, exact, judged, runs]));
    }
    table.render()
}

fn score_cells(score: &GroupScore, [several, exact, judged, runs]: [bool; 4]) -> Vec<String> {
    let number = |value: Option<f64>| value.map_or_else(|| "-".into(), |v| format!("{v:.1}"));
    let signed = |value: Option<f64>| value.map_or_else(|| "-".into(), |v| format!("{v:+.1}"));
    let mut cells = vec![score.group.clone()];
    cells.extend(several.then(|| score.quantity.to_owned()));
    cells.extend([format_count(score.n as u64), format_count(score.unpredicted as u64)]);
    cells.extend(exact.then(|| format_count(score.exact as u64)));
    cells.extend([number(score.mape_pct), number(score.median_pct), signed(score.bias_pct)]);
    cells.extend(judged.then(|| [number(score.within_pct), number(score.width_pct)]).into_iter().flatten());
    cells.extend(runs.then(|| score.stacks.iter().map(String::as_str).collect::<Vec<_>>().join(", ")));
    cells.push(signed(score.worst.as_ref().map(|w| w.error_pct)));
    cells.push(score.worst.as_ref().map_or_else(String::new, |w| {
        format!(
            "{} (measured {}, predicted {})",
            w.id,
            format_significant(w.measured, 4),
            format_significant(w.predicted, 4)
        )
    }));
    cells
}

/// Returns a table of how well predictions order comparable plans or deployments.
fn rankings_table(report: &FileReport) -> String {
    if report.rankings.is_empty() {
        return String::new();
    }
    let order = match report.dataset {
        Dataset::Serving => "order by time per output token (equal model, chip, lengths)",
        _ => "order of plans (equal model, chips, batch)",
    };
    let mut table = TextTable::new(vec![order, "groups", "Spearman", "top-1 regret %"]);
    for ranking in &report.rankings {
        table.add_row(vec![
            ranking.group.clone(),
            format_count(ranking.groups as u64),
            format!("{:.3}", ranking.spearman),
            format!("{:.1}", ranking.top1_regret_pct),
        ]);
    }
    format!("\n{}", table.render())
}

/// Returns a table of how well predictions detect runs that ran out of memory.
fn out_of_memory_table(report: &FileReport) -> String {
    if report.out_of_memory.is_empty() {
        return String::new();
    }
    let share = |value: Option<f64>| value.map_or_else(|| "-".into(), |v| format!("{:.1}", v * 100.0));
    let head = vec!["out of memory", "failed", "caught", "ran", "false alarms", "precision %", "recall %", "wrong"];
    let mut table = TextTable::new(head).align_column(7, ColumnAlign::Left);
    for group in &report.out_of_memory {
        let mut cells = vec![group.group.clone()];
        cells.extend([group.failed, group.caught, group.ran, group.false_alarms].map(|n| format_count(n as u64)));
        cells.extend([share(group.precision), share(group.recall)]);
        cells.push(list_rows(&group.wrong.iter().map(String::as_str).collect::<Vec<_>>()));
        table.add_row(cells);
    }
    format!("\n{}", table.render())
}

/// Returns the assumptions, each with its rows.
fn assumptions_text(report: &FileReport) -> String {
    if report.assumed.is_empty() {
        return String::new();
    }
    let mut text = "\nassumed, where rows leave it open\n".to_owned();
    for assumption in &report.assumed {
        let ids: Vec<&str> = assumption.rows.iter().map(String::as_str).collect();
        text.push_str(&fold_line(&format!(
            "  {} x {}: {}",
            format_count(ids.len() as u64),
            assumption.what,
            list_rows(&ids)
        )));
    }
    text
}

/// Returns the rows without a prediction, grouped by reason.
fn unpredicted_text(report: &FileReport) -> String {
    let mut reasons: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for row in &report.unpredicted {
        reasons.entry(&row.why).or_default().push(&row.id);
    }
    if reasons.is_empty() {
        return String::new();
    }
    let mut text = format!("\nnot predicted: {} rows\n", format_count(report.unpredicted.len() as u64));
    for (why, ids) in reasons {
        text.push_str(&fold_line(&format!("  {} x {why}: {}", format_count(ids.len() as u64), list_rows(&ids))));
    }
    text
}

fn list_rows(ids: &[&str]) -> String {
    let shown = ids[..ids.len().min(NAMED)].join(", ");
    if ids.len() > NAMED { format!("{shown} and {} more", ids.len() - NAMED) } else { shown }
}

fn faults_text(report: &FileReport) -> String {
    if report.row_errors.is_empty() {
        return String::new();
    }
    let mut text = format!("\nrows with faults, not scored: {}\n", format_count(report.row_errors.len() as u64));
    for error in report.row_errors.iter().take(FAULTS) {
        text.push_str(&format!("  {error}\n"));
    }
    if report.row_errors.len() > FAULTS {
        text.push_str(&format!("  and {} more; --format json lists them all\n", report.row_errors.len() - FAULTS));
    }
    text
}
