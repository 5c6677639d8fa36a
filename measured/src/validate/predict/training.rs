//! Training runs: the step time of the row's plan, from `step`.

use super::run::MeasuredRun;
use super::{PreparedInputs, recompute};
use crate::validate::row::{MeasuredRow, RowFailure};
use step::{StepTime, step_time};
use workloads::Layout;

/// Predicts the time of a training step in seconds.
pub(in crate::validate) fn predict_training(
    prepared: &mut PreparedInputs,
    row: &MeasuredRow<'_>,
) -> Result<Vec<(&'static str, f64)>, RowFailure> {
    let run = MeasuredRun::read_row(prepared, row)?;
    let mut chosen = predict_run(prepared, row, run.clone())?;
    if row.cell("virtual_stages").is_none() && run.plan.layout.pipeline > 1 {
        chosen = choose_interleaving(prepared, row, &run, chosen)?;
        let chunks = chosen.run.plan.layout.virtual_stages;
        prepared.note_assumption(format!("virtual_stages is empty, taken as {chunks}, the fastest of those that fit"));
    }
    recompute::note_choice(prepared, row, &chosen.run);
    prepared.note_facts(&chosen.run)?;
    prepared.steps.push((row.id(), chosen.time));
    let mut values = vec![("iteration_s", chosen.time.total.0)];
    values.extend(chosen.memory);
    Ok(values)
}

/// A run with its step time and its memory.
struct PredictedRun {
    run: MeasuredRun,
    time: StepTime,
    memory: Vec<(&'static str, f64)>,
}

impl PredictedRun {
    fn fits_memory(&self) -> bool {
        self.memory.iter().any(|(quantity, value)| *quantity == "fits" && *value > 0.0)
    }
}

fn predict_run(
    prepared: &mut PreparedInputs,
    row: &MeasuredRow<'_>,
    run: MeasuredRun,
) -> Result<PredictedRun, RowFailure> {
    let run = recompute::run_with_policy(prepared, row, run)?;
    let time = predict_step(prepared, &run)?;
    let memory = super::memory::memory_of_run(prepared, row, &run)?;
    Ok(PredictedRun { run, time, memory })
}

fn predict_step(prepared: &mut PreparedInputs, run: &MeasuredRun) -> Result<StepTime, RowFailure> {
    let chip = prepared.chip_under_stack(&run.chip, &run.stack)?;
    step_time(chip, &run.model, &run.fabric, &run.plan).map_err(|e| RowFailure::Unpredictable(e.to_string()))
}

/// Returns the run with the assumed number of chunks per stage, if the row does not state it. `chosen` has one chunk.
/// The fastest number that fits wins, because the owners of the run are assumed to have chosen it. If none fits, the
/// fastest number wins.
fn choose_interleaving(
    prepared: &mut PreparedInputs,
    row: &MeasuredRow<'_>,
    run: &MeasuredRun,
    mut chosen: PredictedRun,
) -> Result<PredictedRun, RowFailure> {
    let stage = run.model.layers.div_ceil(u64::from(run.plan.layout.pipeline));
    for virtual_stages in 2..=u32::try_from(stage).unwrap_or(u32::MAX) {
        let mut other = run.clone();
        other.plan.layout = Layout { virtual_stages, ..run.plan.layout };
        if other.plan.layout.check_model_and_batch(&other.model, &other.plan.batch).is_err() {
            continue;
        }
        let Ok(other) = predict_run(prepared, row, other) else { continue };
        let better = (other.fits_memory() && !chosen.fits_memory())
            || (other.fits_memory() == chosen.fits_memory() && other.time.total < chosen.time.total);
        if better {
            chosen = other;
        }
    }
    Ok(chosen)
}
