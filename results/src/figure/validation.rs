//! Figures of validation: predicted against measured values, one per file and quantity.

use super::{Figure, FigureError, PredictedGroup, PredictedPlot, draw_predicted};
use crate::text::format_count;
use measured::validate::FileReport;
use std::collections::BTreeMap;

/// Makes one figure for each predicted quantity of a report, with a name for its files: `kernels-measured_us`.
///
/// # Errors
/// Errors of the drawing library.
pub fn plots_of_report(report: &FileReport) -> Result<Vec<(String, Figure)>, FigureError> {
    let mut figures = Vec::new();
    // The quantity `fits` is yes or no, and cannot be drawn.
    for target in report.dataset.target_columns().iter().filter(|t| t.column != "fits") {
        let mut groups: BTreeMap<&str, Vec<(f64, f64)>> = BTreeMap::new();
        for p in report.predictions.iter().filter(|p| p.quantity == target.column) {
            if let Some(measured) = p.measured {
                groups.entry(&p.group).or_default().push((measured, p.predicted));
            }
        }
        if groups.is_empty() {
            continue;
        }
        let stem = report.file.file_stem().map_or_else(String::new, |s| s.to_string_lossy().into_owned());
        let left_out = report.unpredicted.len() + report.row_errors.len();
        let plot = PredictedPlot {
            title: format!("{stem}: predicted against measured {}", target.quantity),
            subtitle: format!(
                "{} rows measured and predicted; {2} of the file's {1} rows are not predicted",
                format_count(groups.values().map(Vec::len).sum::<usize>() as u64),
                format_count(report.rows as u64),
                format_count(left_out as u64)
            ),
            quantity: target.quantity.into(),
            unit: target.unit.into(),
            groups: groups.into_iter().map(|(name, points)| PredictedGroup { name: name.into(), points }).collect(),
        };
        figures.push((format!("{stem}-{}", target.column), draw_predicted(&plot)?));
    }
    Ok(figures)
}
