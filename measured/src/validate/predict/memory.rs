//! Memory peaks, and whether a run fits: `step::step_memory` of the row's plan.

use super::run::MeasuredRun;
use super::{PreparedInputs, recompute};
use crate::validate::row::{MeasuredRow, RowFailure};
use step::{MemoryReading, StepMemory};

/// Predicts the peak in GiB as the row's instrument shows it, and the outcome (1 if the run fits, otherwise 0).
pub(in crate::validate) fn predict_memory(
    prepared: &mut PreparedInputs,
    row: &MeasuredRow<'_>,
) -> Result<Vec<(&'static str, f64)>, RowFailure> {
    let run = MeasuredRun::read_row(prepared, row)?;
    if row.cell("virtual_stages").is_none() && run.plan.layout.pipeline > 1 {
        prepared.note_assumption("virtual_stages is empty, taken as 1".to_owned());
    }
    let run = recompute::run_with_policy(prepared, row, run)?;
    recompute::note_choice(prepared, row, &run);
    prepared.note_facts(&run)?;
    memory_of_run(prepared, row, &run)
}

/// The same for a row that has been read.
pub(in crate::validate) fn memory_of_run(
    prepared: &mut PreparedInputs,
    row: &MeasuredRow<'_>,
    run: &MeasuredRun,
) -> Result<Vec<(&'static str, f64)>, RowFailure> {
    let memory = recompute::memory_of_run(prepared, run)?;
    let peak = peak_of_instrument(row, run, &memory);
    let mut values = vec![("peak_gib", peak), ("fits", f64::from(u8::from(memory.check_fits().is_ok())))];
    values
        .extend(row.cell("peak_reserved_gib").map(|_| ("peak_reserved_gib", memory.peak_reading(MemoryReading::Reserved).gib())));
    Ok(values)
}

/// The value of the row's instrument. The `allocator` column names it, or the source if it reads the device. The
/// default is the reserved bytes of the allocator. Megatron-LM logs the allocator of the last rank, which belongs to
/// the last stage.
fn peak_of_instrument(row: &MeasuredRow<'_>, run: &MeasuredRun, memory: &StepMemory) -> f64 {
    let names = |key: &str, word: &str| row.cell(key).is_some_and(|text| text.to_lowercase().contains(word));
    let reading = if names("allocator", "allocated") || names("peak_kind", "allocated") {
        MemoryReading::Allocated
    } else if names("allocator", "device") || names("source", "nvidia-smi") || names("source", "device memory") {
        MemoryReading::Device
    } else {
        MemoryReading::Reserved
    };
    let logged_by_last =
        run.stack.starts_with("megatron") && reading == MemoryReading::Allocated && row.cell("peak_scope").is_none();
    if names("peak_scope", "rank 0") {
        memory.first_stage_reading(reading).gib()
    } else if logged_by_last {
        memory.last_stage_reading(reading).gib()
    } else {
        memory.peak_reading(reading).gib()
    }
}
