//! Training runs: the step time that `search::step` finds for the plan that the row describes.

use super::Prepared;
use super::run::Run;
use crate::validate::row::{Row, RowFailure};
use search::step::{StepTime, step_time};
use workloads::Layout;

/// Predicts the time of a training step in seconds.
pub(in crate::validate) fn predict(prepared: &mut Prepared, row: &Row<'_>) -> Result<Vec<(&'static str, f64)>, RowFailure> {
    let mut run = Run::read(prepared, row)?;
    let mut time = step(prepared, &run)?;
    if row.cell("virtual_stages").is_none() && run.plan.layout.pipeline > 1 {
        (run, time) = interleaved(prepared, run, time)?;
    }
    prepared.steps.push((row.id(), time));
    let mut values = vec![("iteration_s", time.total.0)];
    values.extend(super::memory::of_run(prepared, row, &run)?);
    Ok(values)
}

fn step(prepared: &mut Prepared, run: &Run) -> Result<StepTime, RowFailure> {
    let chip = prepared.chip(&run.chip, run.stack)?;
    step_time(chip, &run.model, &run.fabric, &run.plan).map_err(|e| RowFailure::Unpredictable(e.to_string()))
}

/// A run whose source does not say how many chunks its stages held (one: `time`) with as many as are fastest, as those who ran it will have
/// chosen, and its step.
fn interleaved(prepared: &mut Prepared, run: Run, time: StepTime) -> Result<(Run, StepTime), RowFailure> {
    let mut best = (run.clone(), time);
    let stage = run.model.layers.div_ceil(u64::from(run.plan.layout.pipeline));
    for virtual_stages in 2..=u32::try_from(stage).unwrap_or(u32::MAX) {
        let mut other = run.clone();
        other.plan.layout = Layout { virtual_stages, ..run.plan.layout };
        if other.plan.layout.check(&other.model, &other.plan.batch).is_ok()
            && let Ok(time) = step(prepared, &other)
            && time.total < best.1.total
        {
            best = (other, time);
        }
    }
    Ok(best)
}
