//! The fastest plan of each family, as text.

use super::plan_cells::{experts_cell, recompute_cell};
use crate::answer::plan::{FamilyRow, PlanRow};
use crate::text::{ColumnAlign, TextTable, fold_line, format_heading, format_percent, format_significant};

/// The heads of the table of families.
const COLUMNS: [&str; 13] =
    ["family", "listed", "t", "p", "d", "c", "e", "v", "micro-batch", "ZeRO", "recompute", "step s", "slower"];

/// The columns that a narrow screen keeps longest.
const KEPT: [&str; 9] = ["family", "t", "p", "d", "c", "e", "ZeRO", "step s", "slower"];

/// Returns the table of the fastest plan of each family. Empty if there are fewer than two families, because the list
/// of plans then has the same content.
///
/// With `everything`, the list of plans comes from the whole space, but plans of families that it lacks come from the
/// default space. The legend then says so.
pub(super) fn families_text(rows: &[FamilyRow], everything: bool) -> String {
    if rows.len() < 2 {
        return String::new();
    }
    let space = if everything { " Families that are not listed: the fastest of the default space." } else { "" };
    let legend = format!(
        "FSDP: ZeRO-2 or ZeRO-3 alone; listed: its number in the list above; slower: than the fastest family.{space}"
    );
    format!("{}{}{}", format_heading("The fastest of each family"), families_table(rows), fold_line(&legend))
}

/// Returns the fastest plan of each family as a table, fastest first, with the values that all of them share below it.
pub(super) fn families_table(rows: &[FamilyRow]) -> String {
    let mut sorted: Vec<&FamilyRow> = rows.iter().collect();
    sorted.sort_by(|a, b| a.plan.step_s.total_cmp(&b.plan.step_s));
    let fastest = sorted.first().map_or(f64::INFINITY, |row| row.plan.step_s);
    let mut table = TextTable::new(COLUMNS).align_column(0, ColumnAlign::Left).keep_columns(&KEPT);
    table = table.align_column(9, ColumnAlign::Left).align_column(10, ColumnAlign::Left);
    for row in sorted {
        let place = row.place.map_or_else(|| "-".to_owned(), |place| place.to_string());
        table.add_row([row.family.clone(), place].into_iter().chain(plan_cells(&row.plan, fastest)));
    }
    render_with_common_columns(table, 5)
}

/// Returns plans of a list as a narrow table, with the values that all of them share below it. `fastest` is the step
/// that the last column compares with, in seconds.
pub(super) fn first_plans_table(rows: &[PlanRow], fastest: f64) -> String {
    let heads = std::iter::once("#").chain(COLUMNS.into_iter().skip(2));
    let mut table = TextTable::new(heads).align_column(0, ColumnAlign::Right).keep_columns(&KEPT);
    table = table.align_column(8, ColumnAlign::Left).align_column(9, ColumnAlign::Left);
    for (i, row) in rows.iter().enumerate() {
        table.add_row(std::iter::once((i + 1).to_string()).chain(plan_cells(row, fastest)));
    }
    render_with_common_columns(table, 4)
}

/// Returns the cells of a plan, from `t` on.
fn plan_cells(row: &PlanRow, fastest: f64) -> [String; 11] {
    let (plan, l) = (&row.plan, &row.plan.layout);
    let step = row.mapped_step_s.unwrap_or(row.step_s);
    [
        l.tensor.to_string(),
        l.pipeline.to_string(),
        l.data.to_string(),
        l.context.to_string(),
        experts_cell(l),
        l.virtual_stages.to_string(),
        plan.batch.micro_batch.to_string(),
        l.sharding_words(),
        recompute_cell(&plan.activations),
        format_significant(step, 4),
        format_percent(step / fastest - 1.0),
    ]
}

/// Renders a table of plans. A line below it has those of the six columns from `first` on whose cells are all equal.
fn render_with_common_columns(mut table: TextTable, first: usize) -> String {
    let columns: Vec<usize> = (first..first + 6).collect();
    let common = table.take_common_columns(&columns);
    let common: Vec<String> = common.iter().map(|(head, cell)| format!("{head} {cell}")).collect();
    let all =
        if common.is_empty() { String::new() } else { fold_line(&format!("All of them: {}.", common.join(", "))) };
    table.render() + &all
}
