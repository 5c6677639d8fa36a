//! Piper's placement problem (Tarnawski, Narayanan, Phanishayee, *Piper: Multidimensional Planner for DNN
//! Parallelization*, NeurIPS 2021), solved exactly under Piper's own objective.
//!
//! An instance ([`PiperInstance`]) is a graph of layers. For each tensor-parallel degree `t`, a layer has some ways to
//! run (Piper's TMPCs, [`PiperChoice`]): with everything kept, or with recomputation. A plan ([`PiperPlan`]) cuts the
//! graph into stages, in an order without backward edges. It gives each stage a degree `t`, a data-parallel degree `d`
//! that divides the micro-batches of a batch, and each layer a choice.
//!
//! The objective has exactly Piper's terms (`algo.cpp` of msr-fiddle/piper, commit d7fc8cf). For a stage, per
//! micro-batch ("sample"):
//!
//! - computing: the sum of `timePerSample`, divided by `d`;
//! - edges that leave or enter the stage: `2 (communicationCost + syncTime)` bytes (forward and backward), divided by
//!   `d` and by the bandwidth;
//! - gradients: `4 (d - 1) / d` times `parameterSize`, divided by the micro-batches of a batch and by the bandwidth;
//! - memory: the sum of `memoryUsageA y + memoryUsageB`, where `y` is the sum of `d` over this stage and the stages
//!   after it, divided by this stage's `d` and rounded up.
//!
//! The objective is the time per sample of the slowest stage. At most `maxDevices` devices are used, and the degrees
//! `d` sum to at most the micro-batches of a batch. Filling and draining the pipeline is not counted.
//!
//! [`place_graph`] is exact over all stages, degrees and choices, while Piper's planner chooses recomputation by a
//! heuristic. It enumerates the suffixes that a cut can leave: n + 1 of them in a chain of n layers. A graph with too
//! many suffixes is refused.

mod error;
mod evaluate;
mod from_model;
mod parse;
mod prepared;
mod search;
mod stage;
#[cfg(test)]
mod tests;
mod write;

pub use error::PiperError;
pub use evaluate::{PiperEvaluation, PiperStageCost, evaluate_piper_plan};
pub use from_model::piper_graph_of_job;

use serde::Serialize;
use sim::status::SolveStatus;
use std::collections::BTreeMap;
use std::time::Instant;

/// One way to run a layer at a tensor-parallel degree (Piper's TMPC). Sizes in bytes of one device.
#[derive(Debug, Clone, PartialEq)]
pub struct PiperChoice {
    /// The name of the choice.
    pub id: String,
    /// Forward and backward pass of one micro-batch, in seconds.
    pub time_per_sample: f64,
    /// Bytes of weights whose gradients the data-parallel ranks exchange.
    pub parameter_bytes: f64,
    /// Bytes kept per micro-batch in flight.
    pub memory_a: f64,
    /// Bytes kept once, regardless of the micro-batches in flight.
    pub memory_b: f64,
    /// Bytes to bring an incoming edge into the layout of the choice, by the layer it comes from.
    pub sync_forward: BTreeMap<i64, f64>,
    /// Bytes to bring an outgoing edge's gradient into the layout of the choice, by the layer it leads to.
    pub sync_backward: BTreeMap<i64, f64>,
}

/// A layer.
#[derive(Debug, Clone, PartialEq)]
pub struct PiperNode {
    /// The layer's number.
    pub id: i64,
    /// The layer's name for people.
    pub name: Option<String>,
    /// The ways to run the layer, by tensor-parallel degree.
    pub choices: BTreeMap<u32, Vec<PiperChoice>>,
}

/// An edge.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PiperEdge {
    /// The layer that it comes from.
    pub source: i64,
    /// The layer that it leads to.
    pub destination: i64,
    /// Bytes of one micro-batch's activations over it.
    pub bytes: f64,
}

/// A placement problem; made by [`PiperInstance::from_json_str`], which checks it.
#[derive(Debug, Clone, PartialEq)]
pub struct PiperInstance {
    /// Bytes that a device holds.
    pub max_memory_per_device: f64,
    /// Devices.
    pub max_devices: u32,
    /// Bytes per second from a device to the outside.
    pub bandwidth: f64,
    /// Micro-batches of a batch.
    pub micro_batches: u32,
    /// The layers.
    pub nodes: Vec<PiperNode>,
    /// The edges.
    pub edges: Vec<PiperEdge>,
}

/// A stage of a plan, in the words of Piper's result files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PiperStage {
    /// Its layers.
    pub nodes: Vec<i64>,
    /// Copies of the stage, each with its share of the micro-batches.
    #[serde(rename = "dataParallelDegree")]
    pub data_parallel: u32,
    /// Devices of a copy.
    #[serde(rename = "tensorParallelDegree")]
    pub tensor_parallel: u32,
    /// The choice of each layer, by its name.
    #[serde(rename = "TMPCids")]
    pub choices: BTreeMap<i64, String>,
}

/// A placement: the stages in the order of the forward pass.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct PiperPlan {
    /// The stages.
    pub stages: Vec<PiperStage>,
}

impl PiperPlan {
    /// Returns the number of devices that the plan uses.
    #[must_use]
    pub fn device_count(&self) -> u64 {
        self.stages.iter().map(|s| u64::from(s.data_parallel) * u64::from(s.tensor_parallel)).sum()
    }
}

/// The answer of [`place_graph`].
#[derive(Debug, Clone, PartialEq)]
pub struct PiperSolution {
    /// Proven bounds on the time per sample.
    pub status: SolveStatus,
    /// Seconds per micro-batch of the slowest stage; `None` if no plan fits.
    pub time_per_sample: Option<f64>,
    /// A plan with that time; `None` if no plan fits. Other plans may tie with it.
    pub plan: Option<PiperPlan>,
    /// The number of suffixes that a cut can leave.
    pub cuts: usize,
    /// Wall-clock time of the search in seconds, without reading the file.
    pub solve_seconds: f64,
}

/// Finds the plan with the least time per sample, or proves that none fits.
///
/// # Errors
/// A graph with too many cuts or too many possible stages.
///
/// # Examples
/// ```
/// use coplace_interop::piper;
/// let text = r#"{"maxMemoryPerDevice": 8e9, "maxDevices": 2, "bandwidth": 1e9, "mbsInBatch": 8, "edges": [
///     {"sourceId": 0, "destId": 1, "communicationCost": 1e6}], "nodes": [
///     {"id": 0, "TMPCs": {"1": [{"id": "vanilla", "timePerSample": 0.010, "parameterSize": 1e9, "memoryUsageA": 1e6,
///         "memoryUsageB": 3e9, "syncTimeFw": {}, "syncTimeBw": {"1": 0.0}}]}},
///     {"id": 1, "TMPCs": {"1": [{"id": "vanilla", "timePerSample": 0.010, "parameterSize": 1e9, "memoryUsageA": 1e6,
///         "memoryUsageB": 3e9, "syncTimeFw": {"0": 0.0}, "syncTimeBw": {}}]}}]}"#;
/// let solution = piper::place_graph(&piper::PiperInstance::from_json_str(text, "two.json")?)?;
/// // Two stages: 10 ms, and 2 MB over 1 GB/s for the edge between them. Two copies would exchange 4 GB of gradients
/// // per 8 samples.
/// assert!((solution.time_per_sample.unwrap_or(0.0) - 0.012).abs() < 1e-9);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn place_graph(instance: &PiperInstance) -> Result<PiperSolution, PiperError> {
    let start = Instant::now();
    let prepared = prepared::PreparedGraph::new(instance)?;
    let found = search::find_optimum(&prepared);
    let (time_per_sample, plan) = match found.best {
        Some(plan) => {
            let evaluation = evaluate_piper_plan(instance, &plan);
            debug_assert!(
                evaluation.faults.is_empty(),
                "the search returned a plan its verifier rejects: {:?}",
                evaluation.faults
            );
            (Some(evaluation.time_per_sample), Some(plan))
        }
        None => (None, None),
    };
    let status = match time_per_sample {
        Some(time) => SolveStatus::from_bounds(found.lower_bound.min(time), time),
        None => SolveStatus::Infeasible { why: prepared.explain_infeasible() },
    };
    Ok(PiperSolution {
        status,
        time_per_sample,
        plan,
        cuts: prepared.suffixes.len(),
        solve_seconds: start.elapsed().as_secs_f64(),
    })
}
