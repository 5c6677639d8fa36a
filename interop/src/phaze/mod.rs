//! PHAZE's placement problem, solved exactly under PHAZE's own cost formulas.
//!
//! An instance ([`PhazeInstance`]) is a chain of layers (skip edges allowed) with one cost graph per tensor width `t`,
//! a number of devices, a link bandwidth, a memory limit and a number of micro-batches. A plan ([`PhazePlan`]) is a
//! data-parallel degree `d`, one tensor width and a split of the chain into contiguous stages. [`place_chain`] returns
//! the plan with the least time per batch. [`evaluate_plan`] recomputes the time of any plan from the formulas and
//! checks its memory and devices.
//!
//! The formulas are those of PHAZE 1.0 (msr-fiddle/phaze, commit fed7cde); `interop/reference/phaze/README.md` states
//! them in full. They apply to PHAZE's instance files only: they charge only the first stage's gradients, make every
//! collective within a stage free, and have a single bandwidth.
//!
//! Units: bytes, bytes per second, and the time unit of the file's latencies (seconds, if transfers of
//! `bytes / bandwidth` are to have a meaning).

mod degrees;
mod error;
mod evaluate;
mod infeasible;
mod instance;
mod levels;
mod line;
mod parse;
mod probe;
mod rows;
mod search;
mod sweep;
#[cfg(test)]
mod tests;
mod width;

pub use error::PlacementError;
pub use evaluate::{PhazeEvaluation, PlanFault, evaluate_plan};
pub use instance::{PhazeEdge, PhazeInstance, PhazeLayer, PhazeOptimizer, PhazeProblem, WidthGraph};
pub use parse::Recorded;

use serde::Serialize;
use sim::status::SolveStatus;
use std::time::Instant;

/// One pipeline stage of a [`PhazePlan`]: a contiguous run of the chain.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PhazeStage {
    /// The file's id of the first layer of the stage.
    pub first_layer: i64,
    /// The id of the last layer of the stage (inclusive).
    pub last_layer: i64,
    /// Devices of one copy of the stage: the tensor width if any of its layers is tensor parallel, else 1.
    pub devices: usize,
    /// Time of the stage per micro-batch, in the unit of the latencies: forward and backward pass with the transfers
    /// that they wait for.
    pub load: f64,
    /// Peak bytes on each device of the stage.
    pub memory_bytes: f64,
}

/// A placement of the chain on the devices.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PhazePlan {
    /// Copies of the pipeline, each with its share of the micro-batches.
    pub data_parallel: usize,
    /// Devices that share a tensor-parallel layer; one of the widths of the instance.
    pub tensor_width: usize,
    /// The stages in chain order.
    pub stages: Vec<PhazeStage>,
}

impl PhazePlan {
    /// Returns the number of devices that the whole plan uses: the devices of one pipeline times the copies.
    #[must_use]
    pub fn devices(&self) -> usize {
        self.data_parallel * self.stages.iter().map(|stage| stage.devices).sum::<usize>()
    }
}

/// The answer of [`place_chain`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PhazeSolution {
    /// `Optimal`, or `Infeasible` with the reason.
    pub status: SolveStatus,
    /// Time per batch of the best plan in the unit of the latencies; `None` if no plan fits.
    pub time_per_batch: Option<f64>,
    /// A plan of that time; `None` if no plan fits. Other plans may tie with it.
    pub plan: Option<PhazePlan>,
    /// Wall-clock time of the search in seconds, without reading the file.
    pub solve_seconds: f64,
}

impl PhazeSolution {
    /// True if a plan fits.
    #[must_use]
    pub fn is_feasible(&self) -> bool {
        self.plan.is_some()
    }

    /// Returns the reason why no plan fits; `None` if a plan fits.
    #[must_use]
    pub fn infeasible_reason(&self) -> Option<&str> {
        match &self.status {
            SolveStatus::Infeasible { why } => Some(why),
            _ => None,
        }
    }
}

/// Finds the plan with the least time per batch, or proves that none fits. The search is exact: it skips plans only if
/// a bound proves that none of them is better. The returned time is that of [`evaluate_plan`], not of the search's own
/// tables.
///
/// # Examples
/// ```
/// use coplace_interop::phaze;
/// let text = r#"{"maxMemoryPerDevice": 8e9, "maxDevices": 4, "bandwidth": 1e9, "mbsInBatch": 8, "activationRecomputation": false,
///   "optimizerAlgorithm": "SGD", "edges": {"1": []}, "nodes": {"1": [{"id": 0, "parameterSize": 1e9, "activationSize": 1e9,
///   "optimalLatencyFw": 1.0, "optimalLatencyBw": 2.0, "isTensorParallelized": false}]}}"#;
/// let solution = phaze::place_chain(&phaze::PhazeInstance::from_json_str(text)?);
/// // Four copies: two micro-batches of 3 s each, and 4 * 3/4 * 1 GB over 1 GB/s of gradients.
/// assert_eq!(solution.time_per_batch, Some(9.0));
/// # Ok::<(), phaze::PlacementError>(())
/// ```
#[must_use]
pub fn place_chain(instance: &PhazeInstance) -> PhazeSolution {
    let start = Instant::now();
    let (status, time_per_batch, plan) = match search::find_optimum(instance) {
        Some((time, plan)) => {
            debug_assert!(evaluate_plan(instance, &plan).is_ok(), "the search returned a plan its verifier rejects");
            (SolveStatus::Optimal, Some(time), Some(plan))
        }
        None => (SolveStatus::Infeasible { why: infeasible::explain_infeasible(instance) }, None, None),
    };
    PhazeSolution { status, time_per_batch, plan, solve_seconds: start.elapsed().as_secs_f64() }
}
