//! NEST's placement problem (scai-tech/Nest, commit 3e163ad4), solved exactly under NEST's own evaluator.
//!
//! An instance ([`NestInstance`]) is a chain of layers, with one graph of costs per tensor width `t`, on a network of
//! levels. A plan ([`NestPlan`]) is a width, a number of copies `d` and a cut of the chain into contiguous stages.
//! [`place_nest_chain`] returns the plan with the most samples per second. [`evaluate_baselines`] evaluates the plans
//! that the file fixes: as NEST cuts them, and with a correct cut.
//!
//! `interop/reference/nest/README.md` states the formulas in full, and the errors in them that are kept because the
//! published figures depend on them. The formulas apply to NEST's instances only. Latencies are in NEST's seconds: 1000
//! times the real ones.

mod baseline;
mod evaluate;
mod instance;
mod network;
mod parse;
mod search;
mod tables;
mod zero;

pub use baseline::{NestBaseline, NestNoCut, NestRatedPlan, evaluate_baselines};
pub use evaluate::{NestEvaluation, NestPlanFault, NestStageCost, NestStageOrder, evaluate_nest_plan};
pub use instance::{
    NestEdge, NestFixedPlan, NestGraph, NestInstance, NestLayer, NestLevel, NestOptimizer, NestPlan, NestRecord,
};

use instance::GIB;
use sim::status::SolveStatus;
use std::time::Instant;
use thiserror::Error;

/// Why an instance has no answer.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum NestError {
    /// No plan fits without ZeRO, and the file has no times for ZeRO's collectives.
    #[error(
        "memory_bytes is {:.2} GiB, and the last layer alone needs {:.2} GiB at tensor width {width}. NEST would shard \
         its states by ZeRO, with collectives that a network simulator times; the file has no such times. Give more \
         memory, or graphs of wider tensor widths", .have / GIB, .need / GIB
    )]
    NeedsZero {
        /// The tensor width.
        width: u64,
        /// Bytes of the last layer.
        need: f64,
        /// Bytes of a device.
        have: f64,
    },
}

/// The answer of [`place_nest_chain`].
#[derive(Debug, Clone, PartialEq)]
pub struct NestSolution {
    /// Proven bounds on the time per batch, in NEST's seconds.
    pub status: SolveStatus,
    /// The best plan, its time and throughput; `None` if no plan fits. Other plans may tie with it.
    pub best: Option<NestBestPlan>,
    /// Wall-clock time of the search in seconds, without reading the file.
    pub solve_seconds: f64,
}

/// The best plan with its costs.
#[derive(Debug, Clone, PartialEq)]
pub struct NestBestPlan {
    /// The plan.
    pub plan: NestPlan,
    /// The plan's time and throughput.
    pub evaluation: NestEvaluation,
}

/// Finds the plan with the most samples per second, or proves that none fits. The search is exact over all tensor
/// widths of the file, all numbers of copies and all contiguous cuts, without ZeRO. The status bounds how much ZeRO
/// could gain where NEST would try it.
///
/// # Errors
/// An instance that may fit with ZeRO only.
///
/// # Examples
/// ```
/// use coplace_interop::nest;
/// let text = r#"{"devices": 2, "mbs": 1, "ep": 1, "cp": 1, "global_batch": 8, "memory_bytes": 3e9, "recompute": false,
///   "optimizer": "SGD", "network": {"devices_per_level": [2], "bandwidth_GiB_s": [1], "latency_s": [0]},
///   "graphs": {"1": {"layers": {"block": {"fw": 1.0, "bw": 2.0, "params": 1e9, "acts": 0}}, "chain": [["block", 2]],
///     "edges": {"first": 0, "repeat": 0}}}}"#;
/// let solution = nest::place_nest_chain(&nest::NestInstance::from_json_str(text, "two.json")?)?;
/// let best = solution.best.expect("two stages fit");
/// // A device holds one layer with its gradients. Nine turns of 3 s each: eight micro-batches and one to fill.
/// assert_eq!((best.plan.stages, best.evaluation.time_per_batch), (vec![1, 1], 27.0));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn place_nest_chain(instance: &NestInstance) -> Result<NestSolution, NestError> {
    let start = Instant::now();
    let best = find_optimum(instance);
    let sharded = zero::sharded_widths(instance);
    let with_zero = find_optimum(&zero::relax_states(instance, &sharded));
    let status = match (&best, &with_zero) {
        (Some(best), Some(with_zero)) => {
            let time = best.evaluation.time_per_batch;
            SolveStatus::from_bounds(with_zero.evaluation.time_per_batch.min(time), time)
        }
        (Some(_), None) => SolveStatus::Optimal,
        (None, Some(with_zero)) => return Err(needs_zero(instance, with_zero.plan.t)),
        (None, None) => SolveStatus::Infeasible { why: explain_no_plan(instance) },
    };
    Ok(NestSolution { status, best, solve_seconds: start.elapsed().as_secs_f64() })
}

fn find_optimum(instance: &NestInstance) -> Option<NestBestPlan> {
    let plans = instance.graphs.keys().filter_map(|width| search::find_best_plan(instance, *width, None));
    let evaluated = plans.filter_map(|plan| {
        let evaluation = evaluate_nest_plan(instance, &plan, NestStageOrder::Chain);
        debug_assert!(evaluation.is_ok(), "the search returned a plan its verifier rejects: {evaluation:?}");
        Some(NestBestPlan { plan, evaluation: evaluation.ok()? })
    });
    evaluated.min_by(|one, other| one.evaluation.time_per_batch.total_cmp(&other.evaluation.time_per_batch))
}

fn bytes_alone(instance: &NestInstance, layer: &NestLayer) -> f64 {
    evaluate::fixed_bytes(instance.optimizer, layer.parameter_bytes, layer.activation_bytes)
}

fn needs_zero(instance: &NestInstance, width: u64) -> NestError {
    let last = instance.graphs.get(&width).and_then(|graph| graph.layers.last());
    let need = last.map_or(0.0, |layer| bytes_alone(instance, layer));
    NestError::NeedsZero { width, need, have: instance.memory_bytes }
}

/// Explains for each tensor width why no plan fits.
fn explain_no_plan(instance: &NestInstance) -> String {
    let reasons = instance.graphs.iter().map(|(width, graph)| {
        let group = instance.devices_of_stage(*width);
        let heaviest = graph.layers.iter().map(|layer| bytes_alone(instance, layer)).enumerate();
        let heaviest =
            heaviest.max_by(|one, other| one.1.total_cmp(&other.1)).filter(|(_, need)| *need > instance.memory_bytes);
        let stages = (instance.devices / group).min(graph.layers.len() as u64);
        match heaviest {
            _ if stages == 0 => {
                format!("tensor width {width}: a stage takes {group} devices of {}", instance.devices)
            }
            Some((layer, need)) => format!(
                "tensor width {width}: layer {layer} alone needs {:.2} of {:.2} GiB, most of it {}",
                need / GIB,
                instance.memory_bytes / GIB,
                if graph.layers[layer].activation_bytes * 2.0 > need { "activations" } else { "weights and gradients" }
            ),
            None => format!(
                "tensor width {width}: no cut into at most {stages} stages fits the memory, though each layer does"
            ),
        }
    });
    format!("no plan fits: {}", reasons.collect::<Vec<_>>().join("; "))
}
