//! Systolic arrays: the stall-free counts of `sim::cost` under SCALE-Sim's names.

use super::PreparedInputs;
use crate::validate::row::{MeasuredRow, RowFailure};
use sim::cost::ArrayProblem;
use sim::hardware::Dataflow;

/// Predicts cycles, mapping efficiency and SRAM accesses of one array.
pub(in crate::validate) fn predict_systolic(
    _: &mut PreparedInputs,
    row: &MeasuredRow<'_>,
) -> Result<Vec<(&'static str, f64)>, RowFailure> {
    let dataflow = match row.text("dataflow")? {
        "os" => Dataflow::OutputStationary,
        "ws" => Dataflow::WeightStationary,
        "is" => Dataflow::InputStationary,
        _ => return Err(row.row_fault("dataflow", "must be os, ws or is", "correct it")),
    };
    let problem = ArrayProblem {
        rows: row.count("rows")?,
        columns: row.count("cols")?,
        dataflow,
        m: row.side("m")?,
        n: row.side("n")?,
        k: row.side("k")?,
    };
    let report = problem.run_stall_free();
    Ok(vec![
        ("array_cycles", report.cycles as f64),
        // SCALE-Sim's COMPUTE_REPORT numbers cycles from 0 and prints the number of the last one.
        ("reported_total_cycles", report.cycles.saturating_sub(1) as f64),
        ("mapping_efficiency_pct", report.mapping_efficiency_percent),
        ("ifmap_sram_reads", report.ifmap_reads as f64),
        ("filter_sram_reads", report.filter_reads as f64),
        ("ofmap_sram_writes", report.ofmap_writes_scale_sim as f64),
    ])
}
