//! Published figures of papers beside computed ones, as text.

use crate::papers::{ReproducedFigure, unit_of_points};
use crate::text::{ColumnAlign, TextTable, fold_line, format_heading, format_significant};

/// Returns the published value or range.
fn published_text(figure: &ReproducedFigure) -> String {
    let low = format_significant(figure.published, 4);
    figure.published_to.map_or(low.clone(), |high| format!("{low} to {}", format_significant(high, 4)))
}

/// Returns the table of figures, their settings, and the reasons for those that miss their tolerance.
#[must_use]
pub fn papers_report(figures: &[ReproducedFigure]) -> String {
    let mut table = TextTable::new(["figure", "what", "published", "predicted", "unit", "error", "allowed", "verdict"])
        .align_column(1, ColumnAlign::Left)
        .align_column(4, ColumnAlign::Left)
        .align_column(7, ColumnAlign::Left);
    for figure in figures {
        let verdict = match (figure.within, figure.fitted) {
            (true, false) => "within",
            (true, true) => "within, fitted",
            (false, _) => "missed",
        };
        table.add_row([
            figure.id.clone(),
            figure.what.clone(),
            published_text(figure),
            format_significant(figure.predicted, 4),
            figure.unit.clone(),
            figure.error_points.map_or_else(
                || format!("{:+.1} %", figure.error_pct),
                |points| format!("{points:+.1} {}", unit_of_points(&figure.unit)),
            ),
            figure.tolerance.clone(),
            verdict.to_owned(),
        ]);
    }
    let mut text = table.render();
    let within = figures.iter().filter(|f| f.within).count();
    text.push_str(&format!("\n{within} of {} within their tolerance\n", figures.len()));
    text.push_str(&format_heading("Settings"));
    let mut systems: Vec<&str> = Vec::new();
    for figure in figures {
        if !systems.contains(&figure.system.as_str()) {
            systems.push(&figure.system);
        }
    }
    for system in systems {
        text.push_str(&format!("  {system}\n"));
        for figure in figures.iter().filter(|figure| figure.system == system) {
            text.push_str(&fold_line(&format!("    {}: {}", figure.id, figure.setting)));
        }
    }
    text.push_str(&format_heading("Missed"));
    for figure in figures.iter().filter(|f| !f.within) {
        text.push_str(&fold_line(&format!("  {}: {} ({})", figure.id, figure.why, figure.source)));
    }
    text
}
