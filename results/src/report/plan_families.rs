//! The fastest plan of each family, as text.

use super::plan_cells::{experts_cell, recompute_cell};
use crate::answer::plan::FamilyRow;
use crate::text::{ColumnAlign, TextTable, fold_line, format_heading, format_percent, format_significant};

/// The heads of the table of families.
const COLUMNS: [&str; 13] =
    ["family", "listed", "t", "p", "d", "c", "e", "v", "micro-batch", "ZeRO", "recompute", "step s", "slower"];

/// The columns that a narrow screen keeps longest.
const KEPT: [&str; 9] = ["family", "t", "p", "d", "c", "e", "ZeRO", "step s", "slower"];

/// Returns the table of the fastest plan of each family. Empty if there are fewer than two families, because the list
/// of plans then has the same content.
///
/// `everything` is true if the list of plans comes from a larger space than the plans of families that are not listed.
pub(super) fn families_text(rows: &[FamilyRow], everything: bool) -> String {
    if rows.len() < 2 {
        return String::new();
    }
    let fastest = rows.iter().map(|row| row.plan.step_s).fold(f64::INFINITY, f64::min);
    let mut table = TextTable::new(COLUMNS).align_column(0, ColumnAlign::Left).keep_columns(&KEPT);
    table = table.align_column(9, ColumnAlign::Left).align_column(10, ColumnAlign::Left);
    let mut sorted: Vec<&FamilyRow> = rows.iter().collect();
    sorted.sort_by(|a, b| a.plan.step_s.total_cmp(&b.plan.step_s));
    for row in sorted {
        let (plan, l) = (&row.plan.plan, &row.plan.plan.layout);
        table.add_row([
            row.family.clone(),
            row.place.map_or_else(|| "-".to_owned(), |place| place.to_string()),
            l.tensor.to_string(),
            l.pipeline.to_string(),
            l.data.to_string(),
            l.context.to_string(),
            experts_cell(l),
            l.virtual_stages.to_string(),
            plan.batch.micro_batch.to_string(),
            l.sharding_words(),
            recompute_cell(&plan.activations),
            format_significant(row.plan.step_s, 4),
            format_percent(row.plan.step_s / fastest - 1.0),
        ]);
    }
    let common = table.take_common_columns(&[5, 6, 7, 8, 9, 10]);
    let common: Vec<String> = common.iter().map(|(head, cell)| format!("{head} {cell}")).collect();
    let all =
        if common.is_empty() { String::new() } else { fold_line(&format!("All of them: {}.", common.join(", "))) };
    let space = if everything { " Families that are not listed: the fastest of the default space." } else { "" };
    let legend = format!(
        "FSDP: ZeRO-2 or ZeRO-3 alone; listed: its number in the list above; slower: than the fastest family.{space}"
    );
    format!("{}{}{all}{}", format_heading("The fastest of each family"), table.render(), fold_line(&legend))
}
