//! Die areas: `sim::hardware::area` of the row's chip, by component.

use super::PreparedInputs;
use crate::validate::row::{MeasuredRow, RowFailure};

/// Predicts the area of a component of a die or a core, in mm².
pub(in crate::validate) fn predict_area(
    prepared: &mut PreparedInputs,
    row: &MeasuredRow<'_>,
) -> Result<Vec<(&'static str, f64)>, RowFailure> {
    let (chip, level, component) = (row.text("chip")?, row.text("level")?, row.text("component")?);
    let area = prepared.modelled_area(chip)?;
    let Some(part) = area.component_area(level, component) else {
        let parts = area.die.iter().chain(&area.in_core).map(|part| part.name);
        let known = parts.collect::<Vec<_>>().join(", ");
        let why = format!("unknown component `{component}` at level `{level}`; known are TOTAL, TOTAL_core, {known}");
        return Err(RowFailure::Unpredictable(why));
    };
    Ok(vec![("measured_mm2", part.0)])
}
