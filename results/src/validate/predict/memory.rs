//! Memory peaks, and whether a run fits: `step::step_memory` of the plan that the row describes.

use super::run::Run;
use super::{Prepared, recompute};
use crate::validate::row::{Row, RowFailure};
use step::{Reading, StepMemory};

/// Predicts the peak in GiB, as the row's instrument shows it, and whether the run fits (1 or 0).
pub(in crate::validate) fn predict(prepared: &mut Prepared, row: &Row<'_>) -> Result<Vec<(&'static str, f64)>, RowFailure> {
    let run = Run::read(prepared, row)?;
    if row.cell("virtual_stages").is_none() && run.plan.layout.pipeline > 1 {
        prepared.assume("virtual_stages is empty, taken as 1".to_owned());
    }
    let run = recompute::settled(prepared, row, run)?;
    recompute::assume(prepared, row, &run);
    prepared.rest_on(&run)?;
    of_run(prepared, row, &run)
}

/// The same of a row that has been read.
pub(in crate::validate) fn of_run(
    prepared: &mut Prepared,
    row: &Row<'_>,
    run: &Run,
) -> Result<Vec<(&'static str, f64)>, RowFailure> {
    let memory = recompute::memory(prepared, run)?;
    let peak = peak(row, run, &memory);
    let mut values = vec![("peak_gib", peak), ("fits", f64::from(u8::from(memory.fits().is_ok())))];
    values.extend(row.cell("peak_reserved_gib").map(|_| ("peak_reserved_gib", memory.peak(Reading::Reserved).gib())));
    Ok(values)
}

/// What the row's instrument shows: the `allocator` column names it, or the source where it reads the device; otherwise the
/// allocator's reserved bytes. Megatron-LM logs its allocator from the last rank, which is of the last stage.
fn peak(row: &Row<'_>, run: &Run, memory: &StepMemory) -> f64 {
    let names = |key: &str, word: &str| row.cell(key).is_some_and(|text| text.to_lowercase().contains(word));
    let reading = if names("allocator", "allocated") || names("peak_kind", "allocated") {
        Reading::Allocated
    } else if names("allocator", "device") || names("source", "nvidia-smi") || names("source", "device memory") {
        Reading::Device
    } else {
        Reading::Reserved
    };
    let logged_by_last = run.stack.starts_with("megatron") && reading == Reading::Allocated && row.cell("peak_scope").is_none();
    if names("peak_scope", "rank 0") {
        memory.first_stage(reading).gib()
    } else if logged_by_last {
        memory.last_stage(reading).gib()
    } else {
        memory.peak(reading).gib()
    }
}
