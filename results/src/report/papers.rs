//! Published figures beside computed ones as text.

use super::{Align, Table, folded, heading, significant};
use crate::papers::{Reproduced, points_of};

/// The table, and why some are missed.
#[must_use]
pub fn papers(figures: &[Reproduced]) -> String {
    let mut table = Table::new(["figure", "what", "published", "predicted", "unit", "error", "allowed", "verdict"])
        .align(1, Align::Left)
        .align(4, Align::Left)
        .align(7, Align::Left);
    for figure in figures {
        let verdict = match (figure.within, figure.fitted) {
            (true, false) => "within",
            (true, true) => "within, fitted",
            (false, _) => "missed",
        };
        table.row([
            figure.id.clone(),
            figure.what.clone(),
            significant(figure.published, 4),
            significant(figure.predicted, 4),
            figure.unit.clone(),
            figure.error_points.map_or_else(
                || format!("{:+.1} %", figure.error_pct),
                |points| format!("{points:+.1} {}", points_of(&figure.unit)),
            ),
            figure.tolerance.clone(),
            verdict.to_owned(),
        ]);
    }
    let mut text = table.render();
    let within = figures.iter().filter(|f| f.within).count();
    text.push_str(&format!("\n{within} of {} within their tolerance\n", figures.len()));
    text.push_str(&heading("Missed"));
    for figure in figures.iter().filter(|f| !f.within) {
        text.push_str(&folded(&format!("  {}: {} ({})", figure.id, figure.why, figure.source)));
    }
    text
}
