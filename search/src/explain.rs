//! Why a plan takes as long as it does: where the step's time goes, and what bounds each kernel.

use crate::bench::Bench;
use crate::evaluate::Planned;
use crate::memory::OperatorSet;
use crate::placement::plan::Effort;
use crate::placement::plan::StagePlan;
use crate::profile::{ChipOnBench, ProfileError};
use crate::shape::{SegmentShape, recompute_set};
use sim::cost::Bound;
use sim::costed::{CostedGraph, ScheduledGraph};
use sim::hardware::Accelerator;
use sim::kernel::Kernel;
use sim::pipeline::{Pipeline, PipelineError, Reduction, Schedule, Stage};
use sim::units::Seconds;
use std::collections::BTreeMap;
use workloads::RecomputeSet;

/// A named part of a step's time.
#[derive(Debug, Clone, PartialEq)]
pub struct Part {
    /// What the time goes to.
    pub name: String,
    /// How much of the step.
    pub time: Seconds,
}

/// A pass of a segment as the plan's slowest stage runs it.
#[derive(Debug, Clone)]
pub struct PassDetail {
    /// The segment.
    pub segment: String,
    /// `forward`, or `backward` with what it recomputes.
    pub pass: String,
    /// Times per micro-batch that the slowest stage runs it.
    pub count: usize,
    /// Its kernels, costed and scheduled.
    pub scheduled: ScheduledGraph,
}

/// Why a plan takes as long as it does.
#[derive(Debug, Clone)]
pub struct Explanation {
    /// The step's time in parts that add up to it, largest first.
    pub parts: Vec<Part>,
    /// The slowest stage, counted from 0.
    pub slowest_stage: usize,
    /// Its passes.
    pub passes: Vec<PassDetail>,
}

/// What a kernel does and what holds it up, in words.
#[must_use]
pub fn kernel_class(kernel: &Kernel, bound: Bound, chip: &Accelerator) -> String {
    let work = match kernel {
        Kernel::Contraction(_) | Kernel::Epilogue(_) => "matrix products",
        Kernel::FusedAttention(_) => "fused attention",
        Kernel::Elementwise(_) | Kernel::Reduction(_) => "vector work",
        Kernel::Collective(_) => "tensor-parallel collectives",
        Kernel::Transfer(_) => "host transfers",
    };
    format!("{work}, bound by {}", bound_name(bound, kernel_units(kernel), chip))
}

/// What computes a kernel.
#[must_use]
pub fn kernel_units(kernel: &Kernel) -> &'static str {
    match kernel {
        Kernel::Contraction(_) | Kernel::Epilogue(_) => "arrays",
        Kernel::FusedAttention(_) => "cores",
        Kernel::Elementwise(_) | Kernel::Reduction(_) => "lanes",
        Kernel::Collective(_) => "network",
        Kernel::Transfer(_) => "link",
    }
}

/// What a bound is called on a chip; `units` is what computes.
#[must_use]
pub fn bound_name(bound: Bound, units: &str, chip: &Accelerator) -> String {
    match bound {
        Bound::Compute => units.to_owned(),
        Bound::Memory(level) => chip.levels().nth(usize::from(level)).map_or_else(|| "memory".into(), |l| l.name.clone()),
        Bound::Network => "network".into(),
        Bound::Overhead => "launch overhead".into(),
    }
}

/// Explains a plan: the slowest stage's work by what bounds its kernels, recomputation, transfers between stages, the pipeline's bubble, and
/// the end of the step.
///
/// # Errors
/// As profiling the plan's shape on the chip, which succeeded when the plan was made.
pub fn explain(bench: &Bench, chip: Accelerator, planned: &Planned) -> Result<Explanation, ProfileError> {
    let on_bench = ChipOnBench::new(bench, chip, Effort::Proof)?;
    let plan = &planned.plan;
    let slowest = slowest_stage(planned);
    let stage = &plan.stages[slowest];
    let shape = &bench.shapes[planned.shape];
    let mut passes = Vec::new();
    for share in &stage.shares {
        let segment = &shape.segments[share.segment];
        passes.push(detail(&on_bench, bench, segment, "forward".into(), share.count, None)?);
        for policy in &share.policies {
            let operators = planned.profile.segments[share.segment].policies[policy.id].policy.operators;
            let name = backward_name(segment, operators);
            passes.push(detail(&on_bench, bench, segment, name, policy.count, Some(operators))?);
        }
    }
    let m = plan.micro_batches as f64;
    let mut parts: BTreeMap<String, f64> = BTreeMap::new();
    let busy = stage.time - stage.recompute - stage.transfer;
    add_kernel_parts(&mut parts, &passes, on_bench.device().chip(), busy * m);
    parts.insert("recomputation".into(), stage.recompute.0 * m);
    parts.insert("activations between stages".into(), stage.transfer.0 * m);
    parts.insert("gradient reduction and optimizer".into(), plan.tail.0);
    parts.insert("pipeline bubble".into(), plan.step.0 - plan.tail.0 - stage.time.0 * m);
    let mut parts: Vec<Part> =
        parts.into_iter().filter(|(_, t)| *t > 0.0).map(|(name, t)| Part { name, time: Seconds(t) }).collect();
    parts.sort_by(|a, b| b.time.0.total_cmp(&a.time.0));
    Ok(Explanation { parts, slowest_stage: slowest, passes })
}

/// The first of the plan's slowest stages.
fn slowest_stage(planned: &Planned) -> usize {
    let stages = &planned.plan.stages;
    let most = stages.iter().map(|s| s.time.0).fold(0.0, f64::max);
    stages.iter().position(|s| s.time.0 >= most).unwrap_or_default()
}

/// The plan as the event simulation plays it: 1F1B over its stages. Sends delay the stage that waits for them and keep nobody busy, where
/// the planner charges them to both sides of a cut; gradient reduction and optimizer follow each stage's own last backward pass, where the
/// planner adds the slowest stage's at the end.
#[must_use]
pub fn pipeline(planned: &Planned) -> Pipeline {
    let plan = &planned.plan;
    let stage = |s: &StagePlan| {
        let mut stage = Stage { recompute: s.recompute, optimizer: s.tail, ..Stage::default() };
        for share in &s.shares {
            let segment = &planned.profile.segments[share.segment];
            stage.forward += segment.forward.time * share.count as f64;
            stage.backward_input += segment.backward.time * share.count as f64;
        }
        stage
    };
    // A stage's transfers are those of the cut before it and of the cut after it.
    let mut sends: Vec<Seconds> = Vec::with_capacity(plan.stages.len());
    for s in &plan.stages[..plan.stages.len().saturating_sub(1)] {
        let before = sends.last().copied().unwrap_or(Seconds::ZERO);
        sends.push((s.transfer - before).max(Seconds::ZERO));
    }
    Pipeline {
        stages: plan.stages.iter().map(stage).collect(),
        sends,
        // At most the global batch, which is a u32.
        micro_batches: plan.micro_batches as u32,
        schedule: Schedule::OneForwardOneBackward,
        reduction: Reduction::AfterBackward,
        optimizer_waits_for_all: false,
    }
}

/// The step time of a plan by event simulation, beside the planner's closed form in [`crate::placement::plan::Plan::step`]. The two are
/// equal for one stage, and for equal stages without sends or tails; [`sim::pipeline`] says how they compare otherwise.
///
/// # Errors
/// A stage whose times are no durations, which the planner refuses before.
pub fn simulate(planned: &Planned) -> Result<Seconds, PipelineError> {
    Ok(pipeline(planned).measure()?.total)
}

/// `backward`, and what it runs again by the operators' own names.
fn backward_name(segment: &SegmentShape, operators: OperatorSet) -> String {
    if operators.is_empty() {
        return "backward".into();
    }
    let short = |i: usize| segment.segment.operators().get(i).map_or("?", |op| op.name.rsplit('.').next().unwrap_or(&op.name));
    let names: Vec<&str> = operators.iter().map(short).collect();
    format!("backward, recomputing {}", names.join(" "))
}

fn detail(
    chip: &ChipOnBench<'_>,
    bench: &Bench,
    segment: &SegmentShape,
    pass: String,
    count: usize,
    backward: Option<OperatorSet>,
) -> Result<PassDetail, ProfileError> {
    let graph = match backward {
        None => segment.segment.forward(),
        Some(operators) if operators.is_empty() => segment.segment.backward(&RecomputeSet::none()),
        Some(operators) => segment.segment.backward(&recompute_set(operators)),
    };
    let scheduled =
        CostedGraph::new(graph, chip.device()).schedule(chip.device(), bench.memo(Effort::Proof)).map_err(|source| {
            let direction = if backward.is_some() { "backward" } else { "forward" };
            ProfileError::Schedule {
                chip: chip.device().chip().name.clone(),
                segment: segment.segment.name.clone(),
                pass: direction,
                source,
            }
        })?;
    Ok(PassDetail { segment: segment.segment.name.clone(), pass, count, scheduled })
}

/// Shares `busy` out by kernel class: kernels overlap, so each pass's time is divided in proportion to its kernels' latencies, and the
/// passes' times (recomputing kernels included) in proportion to each other.
fn add_kernel_parts(parts: &mut BTreeMap<String, f64>, passes: &[PassDetail], chip: &Accelerator, busy: Seconds) {
    let mut weights: BTreeMap<String, f64> = BTreeMap::new();
    for pass in passes {
        let total: f64 = pass.scheduled.costs.iter().map(|c| c.latency.0).sum();
        if total <= 0.0 {
            continue;
        }
        let scale = pass.scheduled.makespan().0 * pass.count as f64 / total;
        for (node, cost) in pass.scheduled.graph.node_weights().zip(&pass.scheduled.costs) {
            *weights.entry(kernel_class(&node.kernel, cost.bound, chip)).or_default() += cost.latency.0 * scale;
        }
    }
    let total: f64 = weights.values().sum();
    for (name, weight) in weights {
        *parts.entry(name).or_default() += busy.0 * weight / total.max(f64::MIN_POSITIVE);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::evaluate::{Degrees, fixed_plan};
    use crate::placement::plan::LayerSplit;
    use crate::study::Study;
    use sim::network::Fabric;
    use sim::pipeline::{StageWork, one_f_one_b_exact_time};
    use workloads::Model;

    /// A plan of BERT-large for a batch of 64 on eight TPUv4 of PHAZE's fabric.
    fn planned(pipeline: usize, data: u64) -> Planned {
        let mut study = Study::load("phaze").unwrap();
        study.cluster.devices = 8;
        study.cluster.global_batch_sequences = 64;
        study.plan.tensor_parallel = vec![1];
        study.plan.micro_batch_sequences = vec![4];
        let fabric = Fabric::template(&study.cluster.fabric).unwrap();
        let bench = Bench::new(Model::load("bert-large").unwrap(), &study, &fabric, None).unwrap();
        let degrees = Degrees { pipeline, data, tensor: 1 };
        fixed_plan(&bench, Accelerator::template("tpu_v4").unwrap(), degrees, None, LayerSplit::Optimal).outcome.unwrap()
    }

    #[test]
    fn the_simulated_pipeline_is_the_plans() {
        for (p, d) in [(1, 8), (2, 4), (4, 2), (8, 1)] {
            let planned = planned(p, d);
            let (plan, pipeline) = (&planned.plan, pipeline(&planned));
            let near = |a: Seconds, b: Seconds| (a.0 - b.0).abs() <= 1e-12 * plan.step.0;
            for (stage, planned) in pipeline.stages.iter().zip(&plan.stages) {
                assert!(near(stage.forward + stage.backward() + planned.transfer, planned.time));
            }
            // Every cut is charged to both of its sides.
            let sent: Seconds = pipeline.sends.iter().copied().sum();
            assert!(near(sent * 2.0, plan.stages.iter().map(|s| s.transfer).sum()));
            assert!(pipeline.sends.iter().all(|c| near(*c, pipeline.sends[0]) && c.0 > 0.0));
            let simulated = simulate(&planned).unwrap();
            assert!(simulated.0 >= pipeline.lower_bound().0 * (1.0 - 1e-12));
            // Its passes end when the recurrence says, which knows nothing of events.
            let works: Vec<StageWork> =
                pipeline.stages.iter().map(|s| StageWork { forward: s.forward, backward: s.backward() }).collect();
            let exact = one_f_one_b_exact_time(&works, &pipeline.sends, pipeline.micro_batches);
            assert!(near(pipeline.measure().unwrap().passes_end, exact));
            assert!(simulated.0 >= exact.0 && simulated.0 <= exact.0 + plan.tail.0 + 1e-12);
        }
    }

    #[test]
    fn one_stage_takes_what_the_closed_form_says() {
        let planned = planned(1, 8);
        assert!((simulate(&planned).unwrap() / planned.plan.step - 1.0).abs() < 1e-12);
    }
}
