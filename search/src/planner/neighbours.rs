//! Evaluates the plans one decision away from a plan: the changes that an engineer would try next.

use super::fit::PeakFactors;
use super::search_plans::search_once;
use super::space::plan_space::MOST_CHUNKS;
use super::{Job, PlanAttempt, PlanSpace, PlanWatch, RankedPlan};
use sim::pipeline::PipelineSchedule;
use sim::units::{Bytes, Seconds};
use step::{ChipTimes, MemoryClass, OverCapacity, StepError, StepMemory, TrainingPlan};
use workloads::training::ContextMethod;
use workloads::{ActivationPolicy, LayerEnds, Layout, RankOrder};

/// A plan that differs from the best by one decision.
#[derive(Debug, Clone, PartialEq)]
pub struct Neighbour {
    /// The changed decision, for example `t 4 -> 8, d 16 -> 8`.
    pub change: String,
    /// The result.
    pub outcome: NeighbourOutcome,
    /// Why the stack's framework discourages it; `None` if no reason is known.
    pub discouraged: Option<String>,
}

/// The result of a neighbour.
#[derive(Debug, Clone, PartialEq)]
pub enum NeighbourOutcome {
    /// It fits and runs.
    Runs {
        /// Its step time.
        step: Seconds,
        /// The part of the step that grew most, with its growth.
        grew: (&'static str, Seconds),
    },
    /// It needs more memory than there is.
    OverCapacity {
        /// The shortfall of the fullest stage.
        why: OverCapacity,
        /// Bytes of device memory that it must leave free.
        free: Bytes,
        /// The memory class that grew most over the best plan's fullest stage, with its growth.
        grew: (MemoryClass, Bytes),
    },
    /// It breaks a rule.
    Refused(StepError),
}

/// The neighbours of a plan: first those that run, by step time, then those that do not fit, then those that break a
/// rule. They are:
/// - a factor of two moved between two axes;
/// - expert parallelism doubled and halved, for models with experts;
/// - the next smaller and larger micro-batch and number of chunks;
/// - every other activation policy and ZeRO stage of the space;
/// - sequence parallelism toggled, the other context-parallel method, and the other order of ranks, if the space has
///   them;
/// - the split of the layers: even, a layer moved between the ends, or the run of longer chunks moved by one.
///
/// If a change of degrees or of the micro-batch makes the number of chunks invalid, the nearest valid number is used.
///
/// # Errors
/// A chip that the cost model cannot use.
pub fn neighbours(job: &Job<'_>, space: &PlanSpace, best: &RankedPlan) -> Result<Vec<Neighbour>, StepError> {
    let (mut chip, factors) = (ChipTimes::new(job.chip, job.stack)?, PeakFactors::new(job));
    let mut found: Vec<Neighbour> = changes(job, space, &best.plan)
        .into_iter()
        .map(|(change, plan)| Neighbour {
            outcome: outcome(job, &mut chip, &factors, best, &plan),
            discouraged: job.discouragement(&plan),
            change,
        })
        .collect();
    let rank = |n: &Neighbour| match &n.outcome {
        NeighbourOutcome::Runs { step, .. } => (0, step.0),
        NeighbourOutcome::OverCapacity { .. } => (1, 0.0),
        NeighbourOutcome::Refused(_) => (2, 0.0),
    };
    found.sort_by(|a, b| rank(a).0.cmp(&rank(b).0).then(rank(a).1.total_cmp(&rank(b).1)));
    Ok(found)
}

fn outcome(
    job: &Job<'_>,
    chip: &mut ChipTimes,
    factors: &PeakFactors,
    best: &RankedPlan,
    plan: &TrainingPlan,
) -> NeighbourOutcome {
    let moved = plan.layout != best.plan.layout || plan.batch != best.plan.batch || plan.schedule != best.plan.schedule;
    let mixed = if moved && plan.activations.uniform_policy().is_none() { remixed(job, plan) } else { None };
    let plan = mixed.as_ref().unwrap_or(plan);
    let attempt = plan
        .layout
        .check_model_and_batch(job.model, &plan.batch)
        .map_err(StepError::from)
        .and_then(|()| job.lower_shape(chip, plan))
        .and_then(|shape| job.try_plan(chip, &shape, plan, factors));
    match attempt {
        Ok(PlanAttempt::Fits(ranked)) => {
            let parts = ranked.time.named_parts().into_iter().zip(best.time.named_parts()).skip(1);
            let grown = parts.map(|((name, now), (_, before))| (name, now - before));
            let most = grown.max_by(|a, b| a.1.0.total_cmp(&b.1.0)).unwrap_or(("total", Seconds::ZERO));
            NeighbourOutcome::Runs { step: ranked.time.total, grew: most }
        }
        Ok(PlanAttempt::OverCapacity(why, memory)) => NeighbourOutcome::OverCapacity {
            grew: grown(&memory, &best.memory, &why),
            free: job.memory_left_free(factors.factor_of_plan(job, plan, plan.schedule)),
            why,
        },
        Err(error) => NeighbourOutcome::Refused(error),
    }
}

/// Gives a plan whose stages have changed the best policies for its new stages, or full recomputation if none fits.
/// `None` if the plan breaks a rule. Only plans with policies by stage need this.
fn remixed(job: &Job<'_>, plan: &TrainingPlan) -> Option<TrainingPlan> {
    let l = &plan.layout;
    l.check_model_and_batch(job.model, &plan.batch).ok()?;
    let space = PlanSpace { activations: None, ..PlanSpace::of_plan(plan) };
    let best = search_once(job, &space, 1, PlanWatch::NONE).ok()?.best.into_iter().next();
    Some(
        best.map_or_else(
            || TrainingPlan { activations: ActivationPolicy::Full.into(), ..plan.clone() },
            |best| best.plan,
        ),
    )
}

/// The memory class that grew most between the fullest stages of two plans, with its growth in bytes.
fn grown(now: &StepMemory, before: &StepMemory, why: &OverCapacity) -> (MemoryClass, Bytes) {
    let fullest = |memory: &StepMemory| memory.stages.iter().max_by_key(|stage| stage.bytes_needed()).cloned();
    if let (MemoryClass::Host | MemoryClass::Storage, _) | (_, None) = (why.class, fullest(before)) {
        return (why.class, why.largest);
    }
    let of = |memory: &StepMemory, class| fullest(memory).map_or(Bytes::ZERO, |stage| stage.class_bytes(class));
    let growth = MemoryClass::ALL.map(|class| (class, of(now, class).saturating_sub(of(before, class))));
    growth.into_iter().max_by_key(|(_, bytes)| *bytes).unwrap_or((why.class, why.largest))
}

/// A degree of a layout.
type Degree = fn(&mut Layout) -> &mut u32;

/// The axes of a layout whose degrees multiply to the devices, by their letters.
const AXES: [(&str, Degree); 4] =
    [("t", |l| &mut l.tensor), ("p", |l| &mut l.pipeline), ("d", |l| &mut l.data), ("c", |l| &mut l.context)];

/// All plans one decision away, each with a description of the change.
fn changes(job: &Job<'_>, space: &PlanSpace, plan: &TrainingPlan) -> Vec<(String, TrainingPlan)> {
    let layout = &plan.layout;
    let of_layout = |(change, layout)| (change, TrainingPlan { layout, ..plan.clone() });
    let degrees: Vec<_> = degrees(layout, space).into_iter().map(of_layout).chain(micro_batches(job, plan)).collect();
    // Other schedules have a fixed number of chunks.
    let chunks =
        if plan.schedule == PipelineSchedule::OneForwardOneBackward { chunks(job, layout) } else { Vec::new() };
    let experts = expert_degrees(job, layout);
    let layouts = [experts, methods(job, space, layout), chunks, other_splits(job, layout), sharding(space, layout)];
    let scheduled = degrees.into_iter().map(|(change, other)| with_schedule(space, plan, change, other));
    let mut found: Vec<_> = scheduled.map(|(change, plan)| with_nearest_chunks(job, change, plan)).collect();
    found.extend(layouts.into_iter().flatten().map(of_layout));
    for activations in space.policies_under_techniques(job) {
        if plan.activations.uniform_policy() != Some(&activations) {
            let change = format!("recompute {} -> {activations}", plan.activations);
            found.push((change, TrainingPlan { activations: activations.into(), ..plan.clone() }));
        }
    }
    found
}

/// Sets a requested schedule for a plan that a change gives a pipeline. Without a pipeline all schedules are equal, and
/// plans have 1F1B.
fn with_schedule(
    space: &PlanSpace,
    before: &TrainingPlan,
    change: String,
    mut plan: TrainingPlan,
) -> (String, TrainingPlan) {
    let asked = space.schedules.as_ref().and_then(|list| list.first().filter(|_| !list.contains(&plan.schedule)));
    let Some(&schedule) = asked.filter(|_| before.layout.pipeline == 1 && plan.layout.pipeline > 1) else {
        return (change, plan);
    };
    plan.schedule = schedule;
    plan.layout.virtual_stages = schedule.chunks_per_device();
    (format!("{change}, {}", schedule.name()), plan)
}

/// Gives a changed plan with an invalid number of chunks the nearest valid number. The plan is unchanged if there is
/// none.
fn with_nearest_chunks(job: &Job<'_>, change: String, mut plan: TrainingPlan) -> (String, TrainingPlan) {
    let (layout, v) = (plan.layout, plan.layout.virtual_stages);
    let micro_batches = plan.micro_batches();
    let obeys = |layout: &Layout| {
        let in_turn = layout.virtual_stages == 1 || micro_batches.is_multiple_of(layout.pipeline.into());
        in_turn && layout.chunk_split(job.model.layers).is_ok()
    };
    // Other schedules have a fixed number of chunks.
    if plan.schedule != PipelineSchedule::OneForwardOneBackward || layout.pipeline == 1 || obeys(&layout) {
        return (change, plan);
    }
    let others =
        (1..=job.model.layers.min(MOST_CHUNKS) as u32).map(|v| Layout { virtual_stages: v, ends: None, ..layout });
    let Some(nearest) = others.filter(obeys).min_by_key(|other| other.virtual_stages.abs_diff(v)) else {
        return (change, plan);
    };
    plan.layout = nearest;
    (format!("{change}, v {v} -> {}", nearest.virtual_stages), plan)
}

/// A factor of two moved between two axes.
fn degrees(layout: &Layout, space: &PlanSpace) -> Vec<(String, Layout)> {
    let mut found = Vec::new();
    for (more, grow) in AXES {
        for (less, shrink) in AXES {
            let mut other = *layout;
            let (a, b) = (*grow(&mut other), *shrink(&mut other));
            // Context parallelism is a neighbour only of plans that have it, or if the space lists context degrees.
            let foreign = more == "c" && layout.context == 1 && space.context.is_none();
            if more == less || b % 2 != 0 || foreign {
                continue;
            }
            *grow(&mut other) *= 2;
            *shrink(&mut other) /= 2;
            if other.tensor == 1 {
                other.sequence_parallel = false;
            }
            if other.pipeline == 1 {
                other.virtual_stages = 1;
            }
            if other.pipeline != layout.pipeline {
                other.ends = None;
            }
            found.push((format!("{more} {a} -> {}, {less} {b} -> {}", 2 * a, b / 2), other));
        }
    }
    found
}

/// Twice and half the expert-parallel degree, if it divides the devices that experts spread over. The number of devices
/// that share an expert stays the same.
fn expert_degrees(job: &Job<'_>, layout: &Layout) -> Vec<(String, Layout)> {
    if job.model.experts.is_none() {
        return Vec::new();
    }
    let (e, width) = (layout.expert, layout.expert_tensor);
    let ranks = width.map_or(layout.data, |width| {
        layout.ranks_per_stage().checked_div(u64::from(width)).map_or(0, |ranks| ranks as u32)
    });
    let halved = (e % 2 == 0).then_some(e / 2);
    let doubled = e.checked_mul(2).filter(|twice| ranks.is_multiple_of(*twice));
    let with = |expert: u32| {
        let order = if expert > 1 { RankOrder::DataFirst } else { layout.order };
        (format!("e {e} -> {expert}"), Layout { expert, order, ..*layout })
    };
    halved.into_iter().chain(doubled).map(with).collect()
}

/// The space's other context-parallel method, sequence parallelism toggled, and its other order of ranks.
fn methods(job: &Job<'_>, space: &PlanSpace, layout: &Layout) -> Vec<(String, Layout)> {
    let mut found = Vec::new();
    let (method, parallel) = (layout.context_method, layout.sequence_parallel);
    for (context_method, sequence_parallel) in space.sequences(layout) {
        if context_method != method && sequence_parallel == parallel {
            let change = match context_method {
                ContextMethod::Ring => "Ulysses -> ring",
                ContextMethod::Ulysses => "ring -> Ulysses",
            };
            found.push((change.to_owned(), Layout { context_method, ..*layout }));
        }
        if context_method == method && sequence_parallel != parallel {
            let change = format!("sequence parallelism {}", if sequence_parallel { "on" } else { "off" });
            found.push((change, Layout { sequence_parallel, ..*layout }));
        }
    }
    let others = space.orders(job, layout).into_iter().filter(|order| *order != layout.order);
    found.extend(others.map(|order| (format!("ranks {} -> {order}", layout.order), Layout { order, ..*layout })));
    found
}

/// The next smaller and larger number of chunks.
fn chunks(job: &Job<'_>, layout: &Layout) -> Vec<(String, Layout)> {
    if layout.pipeline == 1 {
        return Vec::new();
    }
    let with = |v: u32| Layout { virtual_stages: v, ends: None, ..*layout };
    let divides = |v: &u32| with(*v).chunk_layers(job.model.layers).is_ok();
    let v = layout.virtual_stages;
    let nearest = [(1..v).rev().find(divides), (v + 1..=job.model.layers.min(MOST_CHUNKS) as u32).find(divides)];
    nearest.into_iter().flatten().map(|other| (format!("chunks per stage {v} -> {other}"), with(other))).collect()
}

/// The even split, a layer moved from one end to the other, and the run of longer chunks moved by one.
fn other_splits(job: &Job<'_>, layout: &Layout) -> Vec<(String, Layout)> {
    let Ok(split) = layout.chunk_split(job.model.layers) else { return Vec::new() };
    let mut found = Vec::new();
    let even = Layout { ends: None, ..*layout };
    if layout.ends.is_some() && even.chunk_split(job.model.layers).is_ok() {
        found.push((format!("layers {split} -> evenly"), even));
    }
    let Some(ends) = split.layer_ends() else { return found };
    let LayerEnds { first, last, shorter } = ends;
    let end = |(first, last): (Option<u32>, Option<u32>)| Some(LayerEnds { first: first?, last: last?, ..ends });
    let shifted = [(first.checked_add(1), last.checked_sub(1)), (first.checked_sub(1), last.checked_add(1))].map(end);
    let row =
        [shorter.checked_sub(1), shorter.checked_add(1)].map(|shorter| Some(LayerEnds { shorter: shorter?, ..ends }));
    for ends in shifted.into_iter().chain(row).flatten() {
        let moved = Layout { ends: Some(ends), ..*layout };
        if let Ok(other) = moved.chunk_split(job.model.layers) {
            found.push((format!("layers {split} -> {other}"), moved));
        }
    }
    found
}

/// The space's other ZeRO stages.
fn sharding(space: &PlanSpace, layout: &Layout) -> Vec<(String, Layout)> {
    let others = space.zeros(layout).into_iter().filter(|zero| *zero != layout.zero);
    let with = |zero| (format!("ZeRO-{} -> ZeRO-{}", layout.zero as u8, zero as u8), Layout { zero, ..*layout });
    others.map(with).collect()
}

/// The next smaller and larger micro-batch.
fn micro_batches(job: &Job<'_>, plan: &TrainingPlan) -> Vec<(String, TrainingPlan)> {
    let b = plan.batch.micro_batch;
    let per_rank = job.global_batch / u64::from(plan.layout.data);
    let sizes =
        [(1..b).rev().find(|n| per_rank.is_multiple_of(*n)), (b + 1..=per_rank).find(|n| per_rank.is_multiple_of(*n))];
    let with = |micro_batch: u64| {
        let mut other = plan.clone();
        other.batch.micro_batch = micro_batch;
        (format!("micro-batch {b} -> {micro_batch}"), other)
    };
    sizes.into_iter().flatten().map(with).collect()
}
