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

/// Predicts the peak and the outcome of a run that has been read from a row, and the reserved peak if the row has one.
pub(in crate::validate) fn memory_of_run(
    prepared: &mut PreparedInputs,
    row: &MeasuredRow<'_>,
    run: &MeasuredRun,
) -> Result<Vec<(&'static str, f64)>, RowFailure> {
    let memory = recompute::memory_of_run(prepared, run)?;
    let peak = peak_of_instrument(row, run, &memory)?;
    let mut values = vec![("peak_gib", peak), ("fits", f64::from(u8::from(memory.check_fits().is_ok())))];
    values.extend(
        row.cell("peak_reserved_gib")
            .map(|_| ("peak_reserved_gib", memory.peak_reading(MemoryReading::Reserved).gib())),
    );
    Ok(values)
}

/// Returns the peak in GiB that the row's instrument shows. The columns `allocator` or `peak_kind` name the instrument.
/// The default is the reserved bytes of the allocator. Megatron-LM logs the allocator of the last rank, which belongs
/// to the last stage.
fn peak_of_instrument(row: &MeasuredRow<'_>, run: &MeasuredRun, memory: &StepMemory) -> Result<f64, RowFailure> {
    let reading = match read_instrument(row, "allocator")? {
        Some(reading) => reading,
        None => read_instrument(row, "peak_kind")?.unwrap_or(MemoryReading::Reserved),
    };
    let of_last_rank = run.framework.takes_megatron_arguments() && reading == MemoryReading::Allocated;
    let peak = match row.cell("peak_scope") {
        Some("rank 0" | "rank 0 (first stage)" | "first stage") => memory.first_stage_reading(reading),
        None if of_last_rank => memory.last_stage_reading(reading),
        None | Some("all ranks") => memory.peak_reading(reading),
        Some(_) => {
            let cure = "an empty cell means all ranks, or the last rank where Megatron-LM logs it";
            return Err(row.row_fault("peak_scope", "must be all ranks, or rank 0 (first stage)", cure));
        }
    };
    Ok(peak.gib())
}

/// Returns the instrument that a column names; `None` for an empty cell.
fn read_instrument(row: &MeasuredRow<'_>, key: &str) -> Result<Option<MemoryReading>, RowFailure> {
    match row.cell(key) {
        None => Ok(None),
        Some("allocated" | "torch max_memory_allocated") => Ok(Some(MemoryReading::Allocated)),
        Some("reserved" | "torch max_memory_reserved") => Ok(Some(MemoryReading::Reserved)),
        Some("device" | "nvidia-smi") => Ok(Some(MemoryReading::Device)),
        Some(_) => Err(row.row_fault(key, "must be allocated, reserved or device", "an empty cell means reserved")),
    }
}
