//! Evaluates Piper's objective for a given plan. The code is independent of the search, and verifies it.

use super::{PiperChoice, PiperInstance, PiperPlan, PiperStage};
use std::collections::BTreeMap;

/// Relative allowance for rounding when sums of bytes are compared with the limit.
const ROUNDING: f64 = 1e-12;

/// The cost of a stage.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PiperStageCost {
    /// Seconds per micro-batch.
    pub time_per_sample: f64,
    /// The computing part of that time.
    pub computing: f64,
    /// The part for edges that leave or enter the stage.
    pub edges: f64,
    /// The part for gradients.
    pub gradients: f64,
    /// Bytes of one device.
    pub memory: f64,
}

/// The cost of a plan, and the rules that it breaks.
#[derive(Debug, Clone, PartialEq)]
pub struct PiperEvaluation {
    /// Seconds per micro-batch of the slowest stage.
    pub time_per_sample: f64,
    /// The stages.
    pub stages: Vec<PiperStageCost>,
    /// Every broken rule; empty for a plan that is valid and fits.
    pub faults: Vec<String>,
}

/// Evaluates a plan by Piper's formulas.
#[must_use]
pub fn evaluate_piper_plan(instance: &PiperInstance, plan: &PiperPlan) -> PiperEvaluation {
    let mut faults = check_structure(instance, plan);
    let mut after: u64 = plan.stages.iter().map(|s| u64::from(s.data_parallel)).sum();
    let mut stages = Vec::new();
    for (i, stage) in plan.stages.iter().enumerate() {
        let in_flight = after.div_ceil(u64::from(stage.data_parallel.max(1)));
        after -= u64::from(stage.data_parallel);
        let cost = stage_cost(instance, stage, in_flight, &mut faults);
        if cost.memory > instance.max_memory_per_device * (1.0 + ROUNDING) {
            faults.push(format!(
                "stage {i} needs {} bytes, a device has {}",
                cost.memory, instance.max_memory_per_device
            ));
        }
        stages.push(cost);
    }
    let time_per_sample = stages.iter().map(|s| s.time_per_sample).fold(0.0, f64::max);
    PiperEvaluation { time_per_sample, stages, faults }
}

fn check_structure(instance: &PiperInstance, plan: &PiperPlan) -> Vec<String> {
    let mut faults = Vec::new();
    let mut stage_of: BTreeMap<i64, usize> = BTreeMap::new();
    for (i, stage) in plan.stages.iter().enumerate() {
        for id in &stage.nodes {
            if stage_of.insert(*id, i).is_some() {
                faults.push(format!("layer {id} is in two stages"));
            }
        }
        if stage.data_parallel == 0 || !instance.micro_batches.is_multiple_of(stage.data_parallel) {
            faults.push(format!(
                "stage {i}: {} copies do not divide {} micro-batches",
                stage.data_parallel, instance.micro_batches
            ));
        }
    }
    for node in instance.nodes.iter().filter(|node| !stage_of.contains_key(&node.id)) {
        faults.push(format!("layer {} is in no stage", node.id));
    }
    for edge in &instance.edges {
        if stage_of.get(&edge.source) > stage_of.get(&edge.destination) {
            faults.push(format!("the edge from {} to {} leads back", edge.source, edge.destination));
        }
    }
    if plan.device_count() > u64::from(instance.max_devices) {
        faults.push(format!("{} devices are used of {}", plan.device_count(), instance.max_devices));
    }
    let copies: u64 = plan.stages.iter().map(|s| u64::from(s.data_parallel)).sum();
    if copies > u64::from(instance.micro_batches) {
        faults.push(format!("{copies} copies of stages for {} micro-batches", instance.micro_batches));
    }
    faults
}

fn stage_cost(
    instance: &PiperInstance,
    stage: &PiperStage,
    in_flight: u64,
    faults: &mut Vec<String>,
) -> PiperStageCost {
    let (mut computing, mut bytes, mut parameters, mut memory) = (0.0, 0.0, 0.0, 0.0);
    for id in &stage.nodes {
        let Some(choice) = chosen_option(instance, stage, *id) else {
            faults.push(format!("layer {id} has no such choice at degree {}", stage.tensor_parallel));
            continue;
        };
        computing += choice.time_per_sample;
        parameters += choice.parameter_bytes;
        memory += choice.memory_a * in_flight as f64 + choice.memory_b;
        for edge in &instance.edges {
            if edge.destination == *id && !stage.nodes.contains(&edge.source) {
                bytes += 2.0 * (edge.bytes + choice.sync_forward.get(&edge.source).copied().unwrap_or_default());
            }
            if edge.source == *id && !stage.nodes.contains(&edge.destination) {
                bytes += 2.0 * (edge.bytes + choice.sync_backward.get(&edge.destination).copied().unwrap_or_default());
            }
        }
    }
    let d = f64::from(stage.data_parallel.max(1));
    let (computing, edges) = (computing / d, bytes / d / instance.bandwidth);
    let gradients = 4.0 * (d - 1.0) * parameters / d / f64::from(instance.micro_batches) / instance.bandwidth;
    PiperStageCost { time_per_sample: computing + edges + gradients, computing, edges, gradients, memory }
}

fn chosen_option<'a>(instance: &'a PiperInstance, stage: &PiperStage, id: i64) -> Option<&'a PiperChoice> {
    let node = instance.nodes.iter().find(|node| node.id == id)?;
    let name = stage.choices.get(&id)?;
    node.choices.get(&stage.tensor_parallel)?.iter().find(|choice| choice.id == *name)
}
