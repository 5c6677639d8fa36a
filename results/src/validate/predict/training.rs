//! Training runs: the step time that `step` finds for the plan that the row describes.

use super::run::Run;
use super::{Prepared, recompute};
use crate::validate::row::{Row, RowFailure};
use step::{StepTime, step_time};
use workloads::Layout;

/// Predicts the time of a training step in seconds.
pub(in crate::validate) fn predict(prepared: &mut Prepared, row: &Row<'_>) -> Result<Vec<(&'static str, f64)>, RowFailure> {
    let run = Run::read(prepared, row)?;
    let mut chosen = predicted(prepared, row, run.clone())?;
    if row.cell("virtual_stages").is_none() && run.plan.layout.pipeline > 1 {
        chosen = interleaved(prepared, row, &run, chosen)?;
        let chunks = chosen.run.plan.layout.virtual_stages;
        prepared.assume(format!("virtual_stages is empty, taken as {chunks}, the fastest of those that fit"));
    }
    recompute::assume(prepared, row, &chosen.run);
    prepared.rest_on(&chosen.run)?;
    prepared.steps.push((row.id(), chosen.time));
    let mut values = vec![("iteration_s", chosen.time.total.0)];
    values.extend(chosen.memory);
    Ok(values)
}

/// A run with its step and its memory.
struct Predicted {
    run: Run,
    time: StepTime,
    memory: Vec<(&'static str, f64)>,
}

impl Predicted {
    fn fits(&self) -> bool {
        self.memory.iter().any(|(quantity, value)| *quantity == "fits" && *value > 0.0)
    }
}

fn predicted(prepared: &mut Prepared, row: &Row<'_>, run: Run) -> Result<Predicted, RowFailure> {
    let run = recompute::settled(prepared, row, run)?;
    let time = step(prepared, &run)?;
    let memory = super::memory::of_run(prepared, row, &run)?;
    Ok(Predicted { run, time, memory })
}

fn step(prepared: &mut Prepared, run: &Run) -> Result<StepTime, RowFailure> {
    let chip = prepared.chip(&run.chip, &run.stack)?;
    step_time(chip, &run.model, &run.fabric, &run.plan).map_err(|e| RowFailure::Unpredictable(e.to_string()))
}

/// A run whose source does not say how many chunks its stages held (one: `chosen`) with as many as are fastest of those that fit, as those who ran
/// it will have chosen; where none fits with as many as are fastest.
fn interleaved(prepared: &mut Prepared, row: &Row<'_>, run: &Run, mut chosen: Predicted) -> Result<Predicted, RowFailure> {
    let stage = run.model.layers.div_ceil(u64::from(run.plan.layout.pipeline));
    for virtual_stages in 2..=u32::try_from(stage).unwrap_or(u32::MAX) {
        let mut other = run.clone();
        other.plan.layout = Layout { virtual_stages, ..run.plan.layout };
        if other.plan.layout.check(&other.model, &other.plan.batch).is_err() {
            continue;
        }
        let Ok(other) = predicted(prepared, row, other) else { continue };
        let better = (other.fits() && !chosen.fits()) || (other.fits() == chosen.fits() && other.time.total < chosen.time.total);
        if better {
            chosen = other;
        }
    }
    Ok(chosen)
}
