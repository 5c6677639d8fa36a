//! Writes `COMPUTE_REPORT.csv`.

use serde::Serialize;
use sim::cost::{ArrayProblem, ArrayReport};
use sim::hardware::Dataflow;
use std::fmt::Write as _;

/// The header of `COMPUTE_REPORT.csv` as SCALE-Sim 2 writes it. Version 3 has one more column,
/// `Total Cycles (incl. prefetch)`. It counts filling and emptying the SRAMs from DRAM, which is not modelled here. The
/// other columns have the same names.
pub const REPORT_HEADER: &str =
    "LayerID, Total Cycles, Stall Cycles, Overall Util %, Mapping Efficiency %, Compute Util %,";

/// One layer's line of the report, with the array's counts.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct LayerReport {
    /// Cycles as SCALE-Sim prints them: the index of the last one, counted from zero.
    pub total_cycles: u64,
    /// Stall cycles: always zero.
    pub stall_cycles: u64,
    /// Multiplications divided by units and by printed cycles, in percent.
    pub overall_utilization_percent: f64,
    /// Share of units that hold work, averaged over folds, in percent.
    pub mapping_efficiency_percent: f64,
    /// Multiplications divided by units and by the cycles of a fold, averaged over folds, in percent.
    pub compute_utilization_percent: f64,
    /// The array's counts.
    pub array: ArrayReport,
}

impl LayerReport {
    /// Returns SCALE-Sim's figures for a product on one array.
    #[must_use]
    pub fn new(problem: &ArrayProblem) -> Self {
        let array = problem.run_stall_free();
        let (rows, columns) = (problem.rows.max(1), problem.columns.max(1));
        let total_cycles = array.cycles.saturating_sub(1);
        let products = problem.m as f64 * problem.n as f64 * problem.k as f64;
        let units = rows as f64 * columns as f64;
        let per_fold = array.cycles as f64 / array.folds.max(1) as f64;
        // With a stationary operand, SCALE-Sim counts the skew of the columns once more per fold.
        let (streamed, skew) = match problem.dataflow {
            Dataflow::OutputStationary => (problem.k, 0.0),
            Dataflow::WeightStationary => (problem.m, columns as f64 - 1.0),
            Dataflow::InputStationary => (problem.n, columns as f64 - 1.0),
        };
        Self {
            total_cycles,
            stall_cycles: 0,
            overall_utilization_percent: 100.0 * products / (total_cycles.max(1) as f64 * units),
            mapping_efficiency_percent: array.mapping_efficiency_percent,
            compute_utilization_percent: array.mapping_efficiency_percent * streamed as f64
                / (per_fold + skew).max(1.0),
            array,
        }
    }
}

/// Returns the text of `COMPUTE_REPORT.csv`: a line per layer, numbered from zero, with SCALE-Sim's spaces and trailing
/// commas.
#[must_use]
pub fn write_compute_report(layers: &[LayerReport]) -> String {
    let mut text = format!("{REPORT_HEADER}\n");
    for (id, layer) in layers.iter().enumerate() {
        let _ = writeln!(
            text,
            "{id}, {}, {}, {}, {}, {},",
            layer.total_cycles,
            layer.stall_cycles,
            layer.overall_utilization_percent,
            layer.mapping_efficiency_percent,
            layer.compute_utilization_percent
        );
    }
    text
}
