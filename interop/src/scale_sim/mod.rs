//! SCALE-Sim (Samajdar et al., ISPASS 2020; versions 2 and 3): reads its configuration and its topologies, and writes
//! its compute report.
//!
//! Counts come from [`ArrayProblem::run_stall_free`], for an array that never waits for its SRAMs. SCALE-Sim simulates
//! such an array under `InterfaceBandwidth: CALC`. Stalls under a user-defined bandwidth, sparsity, custom layouts and
//! Ramulator traces are not modelled; [`ScaleSimConfig::beyond`] lists the settings that ask for them.

mod columns;
mod config;
mod report;
mod topology;

pub use columns::TopologyKind;
pub use config::ScaleSimConfig;
pub use report::{LayerReport, REPORT_HEADER, write_compute_report};
pub use topology::{TopologyLayer, read_topology};

use sim::cost::ArrayProblem;

impl ScaleSimConfig {
    /// Returns the report of one layer.
    #[must_use]
    pub fn run_layer(&self, layer: &TopologyLayer) -> LayerReport {
        let problem = ArrayProblem {
            rows: self.rows,
            columns: self.columns,
            dataflow: self.dataflow,
            m: layer.m,
            n: layer.n,
            k: layer.k,
        };
        LayerReport::new(&problem)
    }
}
