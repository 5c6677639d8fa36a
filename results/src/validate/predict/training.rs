//! Training runs: the step time that `search::step` finds for the plan that the row describes.

use super::Prepared;
use super::run::Run;
use crate::validate::row::{Row, RowFailure};
use search::step::step_time;

/// Predicts the time of a training step in seconds.
pub(in crate::validate) fn predict(prepared: &mut Prepared, row: &Row<'_>) -> Result<Vec<(&'static str, f64)>, RowFailure> {
    let run = Run::read(prepared, row)?;
    let chip = prepared.chip(&run.chip, run.stack)?;
    let time = step_time(chip, &run.model, &run.fabric, &run.plan).map_err(|e| RowFailure::Unpredictable(e.to_string()))?;
    prepared.steps.push((row.id(), time));
    let mut values = vec![("iteration_s", time.total.0)];
    values.extend(super::memory::of_run(prepared, row, &run)?);
    Ok(values)
}
