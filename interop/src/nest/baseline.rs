//! Evaluates the plans that a file fixes: as NEST cuts and charges them, and with the best cut of the same degrees.

use super::evaluate::{NestPlanFault, NestStageOrder, evaluate_nest_plan};
use super::instance::{NestFixedPlan, NestInstance, NestPlan};
use super::search::{self, PlanDegrees};
use std::collections::BTreeMap;
use thiserror::Error;

/// A plan and its throughput in samples per second.
#[derive(Debug, Clone, PartialEq)]
pub struct NestRatedPlan {
    /// The plan.
    pub plan: NestPlan,
    /// Samples per second.
    pub throughput: f64,
}

/// Why no cut of a baseline's degrees fits.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum NestNoCut {
    /// The degrees themselves are infeasible.
    #[error(transparent)]
    Degrees(#[from] NestPlanFault),
    /// More stages than layers.
    #[error("empty: {stages} stages share {layers} layers; each needs one")]
    Stages {
        /// Stages of the plan.
        stages: u64,
        /// Layers of the chain.
        layers: usize,
    },
    /// No cut fits the memory.
    #[error("memory: no cut into {stages} stages fits {:.2} GiB", .have / super::instance::GIB)]
    Memory {
        /// Stages of the plan.
        stages: u64,
        /// Bytes of a device.
        have: f64,
    },
}

/// The two throughputs of a baseline.
#[derive(Debug, Clone, PartialEq)]
pub struct NestBaseline {
    /// The plan as NEST cuts the layers and charges the stages.
    pub as_nest_cuts: Result<NestRatedPlan, NestPlanFault>,
    /// The best cut with the same degrees, charged in the order of the chain.
    pub correct_cut: Result<NestRatedPlan, NestNoCut>,
}

/// Evaluates the fixed plans of an instance, by name.
#[must_use]
pub fn evaluate_baselines(instance: &NestInstance) -> BTreeMap<String, NestBaseline> {
    let evaluate = |(name, fixed): (&String, &NestFixedPlan)| {
        let baseline = NestBaseline {
            as_nest_cuts: rate_plan(instance, cut_as_nest_does(instance, fixed), NestStageOrder::Reversed),
            correct_cut: find_correct_cut(instance, fixed),
        };
        (name.clone(), baseline)
    };
    instance.fixed_plans.iter().map(evaluate).collect()
}

fn rate_plan(instance: &NestInstance, plan: NestPlan, order: NestStageOrder) -> Result<NestRatedPlan, NestPlanFault> {
    let throughput = evaluate_nest_plan(instance, &plan, order)?.throughput;
    Ok(NestRatedPlan { plan, throughput })
}

/// Returns the cut of NEST's own script: equal numbers of layers per stage, rounded up and counted from the embedding.
/// All layers from place `fixed.layers` on join the last stage. One of them is the last block, because the embedding
/// takes the first place. A partition of the file applies only if it has one entry per stage.
fn cut_as_nest_does(instance: &NestInstance, fixed: &NestFixedPlan) -> NestPlan {
    let stages = fixed.pipeline as usize;
    let per_stage = fixed.layers.div_ceil(stages);
    let even = || {
        let end = |stage: usize| (stage * per_stage).min(fixed.layers);
        (0..stages).map(|stage| end(stage + 1) - end(stage)).collect()
    };
    let mut counts: Vec<usize> =
        fixed.partition.clone().filter(|partition| partition.len() == stages).unwrap_or_else(even);
    let layers = instance.graphs.get(&fixed.tensor_width).map_or(0, |graph| graph.layers.len());
    if let Some(last) = counts.last_mut() {
        *last += layers.saturating_sub(fixed.layers);
    }
    NestPlan::new(instance, fixed.tensor_width, fixed.data_parallel, counts)
}

fn find_correct_cut(instance: &NestInstance, fixed: &NestFixedPlan) -> Result<NestRatedPlan, NestNoCut> {
    let width = fixed.tensor_width;
    let layers = instance.graphs.get(&width).ok_or(NestPlanFault::NoGraph { width })?.layers.len();
    if fixed.pipeline > layers as u64 {
        return Err(NestNoCut::Stages { stages: fixed.pipeline, layers });
    }
    let degrees = PlanDegrees { stages: fixed.pipeline, copies: fixed.data_parallel };
    match search::find_best_plan(instance, width, Some(degrees)) {
        Some(plan) => Ok(rate_plan(instance, plan, NestStageOrder::Chain)?),
        // Some degrees are infeasible under every cut. Any cut reveals this fault, so NEST's cut serves as the example.
        None => match rate_plan(instance, cut_as_nest_does(instance, fixed), NestStageOrder::Chain) {
            Err(fault @ (NestPlanFault::Devices { .. } | NestPlanFault::Copies { .. })) => Err(fault.into()),
            _ => Err(NestNoCut::Memory { stages: fixed.pipeline, have: instance.memory_bytes }),
        },
    }
}
