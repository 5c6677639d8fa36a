//! PHAZE's formulas, written out for a given plan: its time and memory. They share no table with the search.

use super::instance::{Chain, PhazeInstance, PhazeOptimizer};
use super::{PhazePlan, PhazeStage};
use serde::Serialize;
use thiserror::Error;

/// The cost of a plan.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PhazeEvaluation {
    /// Time per batch, in the unit of the latencies.
    pub time_per_batch: f64,
    /// The largest stage load: the pipeline's period.
    pub bottleneck: f64,
    /// Micro-batches of each copy of the pipeline, rounded up.
    pub micro_batches: usize,
    /// Time of the first stage's gradient synchronisation.
    pub synchronization: f64,
    /// Devices of all copies.
    pub devices: usize,
    /// Bytes of the fullest device.
    pub peak_memory_bytes: f64,
}

/// A rule that a plan breaks.
#[derive(Debug, Clone, PartialEq, Error)]
#[non_exhaustive]
pub enum PlanFault {
    /// The instance has no graph of the plan's tensor width.
    #[error("tensor width {width} has no graph; the instance has {known:?}")]
    UnknownWidth {
        /// The plan's width.
        width: usize,
        /// The instance's widths.
        known: Vec<usize>,
    },
    /// The data-parallel degree is 0, or above the devices or the micro-batches.
    #[error("data-parallel degree {degree} is not from 1 to {most}")]
    DataParallel {
        /// The plan's degree.
        degree: usize,
        /// The smaller of devices and micro-batches.
        most: usize,
    },
    /// The stages do not cover the chain once, in order.
    #[error(
        "stage {stage} holds layers {first} to {last}; it has to begin at position {expected} of the chain and end within it"
    )]
    Cover {
        /// Index of the stage.
        stage: usize,
        /// Id of its first layer.
        first: i64,
        /// Id of its last layer.
        last: i64,
        /// Position in the chain where it has to begin.
        expected: usize,
    },
    /// Layers are left over behind the last stage.
    #[error("the stages end after {covered} of {layers} layers")]
    Uncovered {
        /// Layers in stages.
        covered: usize,
        /// Layers of the chain.
        layers: usize,
    },
    /// A stage states the wrong number of devices.
    #[error("stage {stage} states {stated} devices; its layers need {needed}")]
    StageDevices {
        /// Index of the stage.
        stage: usize,
        /// Devices stated.
        stated: usize,
        /// Devices by the rule.
        needed: usize,
    },
    /// The plan uses more devices than there are.
    #[error("the plan uses {used} devices of {available}")]
    Devices {
        /// Devices of all copies.
        used: usize,
        /// Devices of the cluster.
        available: usize,
    },
    /// A stage does not fit a device.
    #[error("stage {stage} needs {need} bytes on each device, {} more than the limit of {limit}", need - limit)]
    Memory {
        /// Index of the stage.
        stage: usize,
        /// Bytes needed.
        need: f64,
        /// Bytes of a device.
        limit: f64,
    },
    /// A stage states a load or a memory that the formulas do not give.
    #[error("stage {stage} states a {what} of {stated}; the formulas give {computed}")]
    Stated {
        /// Index of the stage.
        stage: usize,
        /// `load` or `memory`.
        what: &'static str,
        /// The number in the plan.
        stated: f64,
        /// The number by the formulas.
        computed: f64,
    },
}

/// Recomputes the time per batch of `plan` from the formulas, and checks the plan's rules and stated values.
///
/// # Errors
/// Every rule that the plan breaks, not only the first.
pub fn evaluate_plan(instance: &PhazeInstance, plan: &PhazePlan) -> Result<PhazeEvaluation, Vec<PlanFault>> {
    let Some(chain) = instance.chain(plan.tensor_width) else {
        return Err(vec![PlanFault::UnknownWidth { width: plan.tensor_width, known: instance.widths() }]);
    };
    let mut faults = Vec::new();
    let most = instance.max_devices.min(instance.micro_batches);
    if plan.data_parallel == 0 || plan.data_parallel > most {
        faults.push(PlanFault::DataParallel { degree: plan.data_parallel, most });
    }
    let ranges = stage_ranges(chain, plan, &mut faults);
    if !faults.is_empty() {
        return Err(faults);
    }
    for (index, range) in ranges.iter().enumerate() {
        check_stage(instance, chain, plan, index, *range, &mut faults);
    }
    if plan.devices() > instance.max_devices {
        faults.push(PlanFault::Devices { used: plan.devices(), available: instance.max_devices });
    }
    if faults.is_empty() { Ok(cost_of_stages(instance, chain, plan)) } else { Err(faults) }
}

/// The first position of a stage and its exclusive end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StageRange {
    pub(super) first: usize,
    pub(super) end: usize,
}

/// Returns the range of every stage, and adds the faults of stages that do not cover the
/// chain.
fn stage_ranges(chain: &Chain, plan: &PhazePlan, faults: &mut Vec<PlanFault>) -> Vec<StageRange> {
    let mut ranges = Vec::with_capacity(plan.stages.len());
    let mut expected = 0;
    let position = |id: i64| chain.layers.iter().position(|layer| layer.id == id);
    for (stage, PhazeStage { first_layer, last_layer, .. }) in plan.stages.iter().enumerate() {
        match (position(*first_layer), position(*last_layer)) {
            (Some(first), Some(last)) if first == expected && last >= first => {
                ranges.push(StageRange { first, end: last + 1 });
                expected = last + 1;
            }
            _ => {
                faults.push(PlanFault::Cover { stage, first: *first_layer, last: *last_layer, expected });
                return ranges;
            }
        }
    }
    if expected != chain.len() {
        faults.push(PlanFault::Uncovered { covered: expected, layers: chain.len() });
    }
    ranges
}

fn check_stage(
    instance: &PhazeInstance,
    chain: &Chain,
    plan: &PhazePlan,
    index: usize,
    range: StageRange,
    faults: &mut Vec<PlanFault>,
) {
    let from_end = plan.stages.len() - index;
    let stage = &plan.stages[index];
    let needed = chain.devices_of_stage(range.first, range.end);
    if stage.devices != needed {
        faults.push(PlanFault::StageDevices { stage: index, stated: stage.devices, needed });
    }
    if from_end > deepest_place(instance, chain, range) {
        let need = memory_of_stage(instance, chain, range, from_end);
        faults.push(PlanFault::Memory { stage: index, need, limit: instance.max_memory });
    }
    let stated = [
        ("load", stage.load, load_of_stage(instance, chain, range, from_end)),
        ("memory", stage.memory_bytes, memory_of_stage(instance, chain, range, from_end)),
    ];
    for (what, stated, computed) in stated {
        let close = (stated - computed).abs() <= 1e-9 * computed.abs();
        if !close {
            faults.push(PlanFault::Stated { stage: index, what, stated, computed });
        }
    }
}

/// Returns the cost of a plan whose stages cover the chain and state the loads and bytes of the formulas.
fn cost_of_stages(instance: &PhazeInstance, chain: &Chain, plan: &PhazePlan) -> PhazeEvaluation {
    let bottleneck = plan.stages.iter().fold(0.0_f64, |most, stage| most.max(stage.load));
    let peak_memory_bytes = plan.stages.iter().fold(0.0_f64, |most, stage| most.max(stage.memory_bytes));
    let micro_batches = instance.micro_batches.div_ceil(plan.data_parallel);
    let end = plan.stages.first().map(|stage| stage.last_layer);
    let mut first_parameters = 0.0;
    for layer in &chain.layers {
        first_parameters += layer.parameter_bytes;
        if Some(layer.id) == end {
            break;
        }
    }
    let d = plan.data_parallel as f64;
    let synchronization = 4.0 * (d - 1.0) * first_parameters / instance.bandwidth / d;
    PhazeEvaluation {
        time_per_batch: bottleneck * (micro_batches + plan.stages.len() - 1) as f64 + synchronization,
        bottleneck,
        micro_batches,
        synchronization,
        devices: plan.devices(),
        peak_memory_bytes,
    }
}

/// Returns the time per micro-batch of the stage at `from_end` (1 = last stage), in the unit of the latencies.
pub(super) fn load_of_stage(
    instance: &PhazeInstance,
    chain: &Chain,
    StageRange { first, end }: StageRange,
    from_end: usize,
) -> f64 {
    let layers = &chain.layers[first..end];
    let again =
        if instance.recompute && from_end > 1 { layers.iter().map(|layer| layer.forward).sum() } else { 0.0_f64 };
    if chain.skips.is_empty() {
        // Without skip edges, only the first layer waits in the forward pass, and only the last layer in the backward
        // pass.
        let transfer = |at: usize| chain.between.get(at).map_or(0.0, |bytes| bytes / instance.bandwidth);
        let arrival = first.checked_sub(1).map_or(0.0, transfer);
        let forward = layers.iter().fold(arrival, |done, layer| done + layer.forward);
        return forward + layers.iter().rev().fold(again.max(transfer(end - 1)), |done, layer| done + layer.backward);
    }
    let (mut arrive, mut depart) = (vec![0.0_f64; layers.len()], vec![0.0_f64; layers.len()]);
    for link in chain.crossing_edges(first, end) {
        let transfer = link.bytes / instance.bandwidth;
        let wait = if link.from < first { &mut arrive[link.to - first] } else { &mut depart[link.from - first] };
        *wait = wait.max(transfer);
    }
    let forward = layers.iter().zip(&arrive).fold(0.0_f64, |done, (layer, &at)| done.max(at) + layer.forward);
    let backward = layers.iter().zip(&depart).rev().fold(again, |done, (layer, &at)| done.max(at) + layer.backward);
    forward + backward
}

/// Bytes of a stage on each device.
struct StageMemoryParts {
    /// Bytes that do not depend on the stage's place.
    fixed: f64,
    /// Bytes that the stage keeps for each micro-batch in flight after the first.
    stash: f64,
}

fn memory_parts(instance: &PhazeInstance, chain: &Chain, StageRange { first, end }: StageRange) -> StageMemoryParts {
    let layers = &chain.layers[first..end];
    let parameters: f64 = layers.iter().map(|layer| layer.parameter_bytes).sum();
    let activations: f64 = layers.iter().map(|layer| layer.activation_bytes).sum();
    let stash = if instance.recompute {
        chain.crossing_edges(first, end).filter(|link| link.from < first).map(|link| link.bytes).sum()
    } else {
        activations
    };
    let state = if instance.optimizer == PhazeOptimizer::Adam { parameters } else { 0.0 };
    StageMemoryParts { fixed: 2.0 * parameters + state + activations, stash }
}

/// Returns the bytes on each device of the stage at `from_end` (1 = last stage).
pub(super) fn memory_of_stage(instance: &PhazeInstance, chain: &Chain, range: StageRange, from_end: usize) -> f64 {
    let StageMemoryParts { fixed, stash } = memory_parts(instance, chain, range);
    fixed + (from_end - 1) as f64 * stash
}

/// Returns the place farthest from the end at which the stage fits; 0 if it fits nowhere. The order of the operations
/// is PHAZE's own, because rounding decides exact ties.
pub(super) fn deepest_place(instance: &PhazeInstance, chain: &Chain, range: StageRange) -> usize {
    let StageMemoryParts { fixed, stash } = memory_parts(instance, chain, range);
    let (limit, most) = (instance.max_memory, instance.max_devices);
    if fixed + (most - 1) as f64 * stash <= limit {
        most
    } else if fixed > limit {
        0
    } else {
        1 + ((limit - fixed) / stash).floor() as usize
    }
}

/// Returns the time per batch and the plan of a split that the search found. The stages must cover the chain. All
/// values come from the formulas above, none from the search.
pub(super) fn realise_split(
    instance: &PhazeInstance,
    chain: &Chain,
    degree: usize,
    ranges: &[StageRange],
) -> (f64, PhazePlan) {
    let stages = ranges.iter().enumerate().map(|(index, &range)| PhazeStage {
        first_layer: chain.layers[range.first].id,
        last_layer: chain.layers[range.end - 1].id,
        devices: chain.devices_of_stage(range.first, range.end),
        load: load_of_stage(instance, chain, range, ranges.len() - index),
        memory_bytes: memory_of_stage(instance, chain, range, ranges.len() - index),
    });
    let plan = PhazePlan { data_parallel: degree, tensor_width: chain.width, stages: stages.collect() };
    (cost_of_stages(instance, chain, &plan).time_per_batch, plan)
}
