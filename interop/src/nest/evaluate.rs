//! NEST's formulas, written out for one plan. Every answer of the search is evaluated here.

use super::instance::{GIB, NestEdge, NestGraph, NestInstance, NestOptimizer, NestPlan};
use super::network::{self, AllReduceCost};
use std::ops::Range;
use thiserror::Error;

/// Why a plan is invalid under NEST's rules.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum NestPlanFault {
    /// The file has no graph of the plan's tensor width.
    #[error("the file has no graph of tensor width {width}")]
    NoGraph {
        /// The width.
        width: u64,
    },
    /// The copies of the pipeline need more devices than there are.
    #[error("devices: the plan needs {need} of {have}")]
    Devices {
        /// Devices of the plan.
        need: u64,
        /// Devices of the instance.
        have: u64,
    },
    /// More copies than micro-batches.
    #[error("copies: {copies} share {micro_batches} micro-batches; each needs one")]
    Copies {
        /// Copies of the pipeline.
        copies: u64,
        /// Micro-batches of a batch.
        micro_batches: u64,
    },
    /// A stage without layers. NEST reads past the end of a list here.
    #[error("empty: stage {stage} of {stages} has no layer")]
    EmptyStage {
        /// The stage, from 1.
        stage: usize,
        /// Stages of the plan.
        stages: usize,
    },
    /// Stages that do not hold every layer once.
    #[error("layers: the stages hold {held} of the {layers} layers")]
    Layers {
        /// Layers of the stages.
        held: usize,
        /// Layers of the chain.
        layers: usize,
    },
    /// A stage that needs more memory than a device has.
    #[error("memory: stage {stage} of {stages} needs {:.2} of {:.2} GiB", .need / GIB, .have / GIB)]
    Memory {
        /// The stage, from 1.
        stage: usize,
        /// Stages of the plan.
        stages: usize,
        /// Bytes that it needs.
        need: f64,
        /// Bytes of a device.
        have: f64,
    },
}

/// The order in which NEST charges the stages of a plan. The charged place from the end decides how many micro-batches
/// a stage keeps, and whether it recomputes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NestStageOrder {
    /// The order of the chain.
    Chain,
    /// The reverse order. NEST charges its baselines this way, because their lists of stages begin with the last one.
    Reversed,
}

/// Time and memory of a stage.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NestStageCost {
    /// Seconds per micro-batch.
    pub load: f64,
    /// Bytes on each device.
    pub memory_bytes: f64,
}

/// Time and throughput of a plan.
#[derive(Debug, Clone, PartialEq)]
pub struct NestEvaluation {
    /// Seconds per batch.
    pub time_per_batch: f64,
    /// Samples per second.
    pub throughput: f64,
    /// The stages in the order of the chain.
    pub stages: Vec<NestStageCost>,
}

/// Returns the bytes of a stage that do not depend on its place: weights, gradients, optimizer states, and the
/// activations of the current micro-batch.
pub(super) fn fixed_bytes(optimizer: NestOptimizer, parameters: f64, activations: f64) -> f64 {
    let kept = match optimizer {
        NestOptimizer::Sgd => 0.0,
        NestOptimizer::Adam => 6.0 * parameters,
    };
    2.0 * parameters + kept + activations
}

/// Evaluates a plan by NEST's formulas.
///
/// # Errors
/// A tensor width without a graph, or a plan that does not fit the instance's devices, micro-batches, layers or memory.
pub fn evaluate_nest_plan(
    instance: &NestInstance,
    plan: &NestPlan,
    order: NestStageOrder,
) -> Result<NestEvaluation, NestPlanFault> {
    let graph = instance.graphs.get(&plan.t).ok_or(NestPlanFault::NoGraph { width: plan.t })?;
    check_counts(instance, graph, plan)?;
    let group = instance.devices_of_stage(plan.t);
    let stages = plan.stages.len();
    let mut costs = Vec::with_capacity(stages);
    let mut first = 0;
    for (at, count) in plan.stages.iter().enumerate() {
        let from_end = (stages - at) as u64;
        let link = |position: u64| network::level_before_stage(instance, position, group);
        let site = StageSite {
            // The first stage receives nothing, and the last one sends nothing.
            level_before: if at == 0 { 0 } else { link(from_end) },
            level_behind: if at + 1 == stages { 0 } else { link(from_end - 1) },
            charged_position: if order == NestStageOrder::Chain { from_end } else { at as u64 + 1 },
        };
        let cost = cost_of_stage(instance, graph, first..first + count, site);
        if cost.memory_bytes > instance.memory_bytes {
            let (need, have) = (cost.memory_bytes, instance.memory_bytes);
            return Err(NestPlanFault::Memory { stage: at + 1, stages, need, have });
        }
        costs.push(cost);
        first += count;
    }
    let reduced = match order {
        NestStageOrder::Chain => 0..plan.stages[0],
        NestStageOrder::Reversed => graph.layers.len() - plan.stages[stages - 1]..graph.layers.len(),
    };
    let reduced: f64 = graph.layers[reduced].iter().map(|layer| layer.parameter_bytes).sum();
    let slowest = costs.iter().map(|cost| cost.load).fold(0.0, f64::max);
    let turns = instance.micro_batches().div_ceil(plan.d) + stages as u64 - 1;
    let all_reduce = AllReduceCost::between_copies(instance, plan.d, stages as u64 * group);
    let time_per_batch = slowest * turns as f64 + all_reduce.time_for(reduced);
    Ok(NestEvaluation { time_per_batch, throughput: instance.global_batch as f64 / time_per_batch, stages: costs })
}

fn check_counts(instance: &NestInstance, graph: &NestGraph, plan: &NestPlan) -> Result<(), NestPlanFault> {
    let stages = plan.stages.len();
    let pipeline = (stages as u64).saturating_mul(instance.devices_of_stage(plan.t));
    let need = pipeline.saturating_mul(plan.d);
    if need > instance.devices {
        return Err(NestPlanFault::Devices { need, have: instance.devices });
    }
    let micro_batches = instance.micro_batches();
    if !(1..=micro_batches).contains(&plan.d) {
        return Err(NestPlanFault::Copies { copies: plan.d, micro_batches });
    }
    if let Some(empty) = plan.stages.iter().position(|count| *count == 0) {
        return Err(NestPlanFault::EmptyStage { stage: empty + 1, stages });
    }
    let (held, layers) = (plan.stages.iter().sum(), graph.layers.len());
    if held == layers { Ok(()) } else { Err(NestPlanFault::Layers { held, layers }) }
}

/// The levels of a stage's links, and the place from the end at which the stage is charged.
#[derive(Debug, Clone, Copy)]
struct StageSite {
    level_before: usize,
    level_behind: usize,
    charged_position: u64,
}

fn cost_of_stage(instance: &NestInstance, graph: &NestGraph, range: Range<usize>, site: StageSite) -> NestStageCost {
    let layers = &graph.layers[range.clone()];
    let recomputes = instance.recompute && site.charged_position > 1;
    let enters = |edge: &&NestEdge| range.contains(&edge.destination) && !range.contains(&edge.source);
    let leaves = |edge: &&NestEdge| range.contains(&edge.source) && !range.contains(&edge.destination);
    let arrivals: Vec<&NestEdge> = graph.edges.iter().filter(enters).collect();
    let departures: Vec<&NestEdge> = graph.edges.iter().filter(leaves).collect();
    let mut forward = 0.0_f64;
    for (at, layer) in range.clone().zip(layers) {
        for edge in arrivals.iter().filter(|edge| edge.destination == at) {
            forward = forward.max(network::time_of_transfer(instance, site.level_before, edge.bytes));
        }
        forward += layer.forward;
    }
    // NEST charges the recomputed forward pass with the backward latencies.
    let again = if recomputes { layers.iter().map(|layer| layer.backward).sum() } else { 0.0 };
    let mut backward: f64 = again;
    for (at, layer) in range.clone().zip(layers).rev() {
        for edge in departures.iter().filter(|edge| edge.source == at) {
            backward = backward.max(network::time_of_transfer(instance, site.level_behind, edge.bytes));
        }
        backward += layer.backward;
    }
    let parameters = layers.iter().map(|layer| layer.parameter_bytes).sum();
    let activations: f64 = layers.iter().map(|layer| layer.activation_bytes).sum();
    let stash = if instance.recompute { arrivals.iter().map(|edge| edge.bytes).sum() } else { activations };
    let kept = (site.charged_position - 1) as f64 * stash;
    NestStageCost {
        load: forward + backward,
        memory_bytes: fixed_bytes(instance.optimizer, parameters, activations) + kept,
    }
}
