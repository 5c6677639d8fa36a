//! Plans per second in closed form, by the slow paths, and in whole searches.
//!
//! `cargo bench -p coplace-search --bench planner`. GPT-3 175B on 1024 A100s of Selene with a global batch of 1536. An
//! evaluation gives a plan's time and the need of its fullest device.
//!
//! Evaluations run on one thread over every plan of the default space with all schedules, with shapes and degrees
//! prepared. Plans with equal chunks and other plans are timed apart. Searches run whole, with preparation, on all
//! threads: first the default space, then that of `plan --everything` (`PlanSpace::full`).
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use coplace_search::planner::{Job, NO_MARGIN, PlanSpace, default_policies, search_plans};
use sim::hardware::Accelerator;
use sim::network::Fabric;
use sim::pipeline::{PassesTime, PipelineSchedule};
use sim::units::Bytes;
use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Instant;
use step::{
    ChipTimes, DegreeCosts, DeviceMemory, Evaluator, PipelineSends, PlanShape, SoftwareStack, TrainingPlan,
    lowering_of_plan, step_memory, step_time,
};
use workloads::footprint::{Optimizer, Precision};
use workloads::training::Attention;
use workloads::{Layout, Model};

/// Number of plans that the slow paths evaluate: every n-th of the space.
const SAMPLE: usize = 500;

/// Number of evaluations of every plan with equal chunks.
const ROUNDS: usize = 50;

fn print_rate(what: &str, count: usize, seconds: f64) {
    let per = seconds * 1e6 / count as f64;
    println!(
        "{what:<44} {count:>10} plans  {per:>9.3} us each  {:>12.0} per second  {seconds:>8.3} s",
        count as f64 / seconds
    );
}

fn main() {
    let model = Model::load("gpt3-175b").unwrap();
    let chip = Accelerator::built_in("a100_80gb_sxm").unwrap();
    let fabric = Fabric::built_in("selene_hdr200x8").unwrap().for_devices(1024).unwrap();
    let stack = SoftwareStack::load("megatron").unwrap();
    let job = Job {
        model: &model,
        chip: &chip,
        fabric: &fabric,
        stack: &stack,
        devices: 1024,
        global_batch: 1536,
        sequence_length: model.max_sequence,
        attention: Attention::Fused,
        precision: stack.precision_of_run(Precision::MIXED_BF16),
        optimizer: Optimizer::Adam,
        headroom: Bytes::ZERO,
        fit: NO_MARGIN,
        techniques: workloads::Techniques::none(),
    };
    let schedules = PlanSpace::full(&job, &PlanSpace::default(), default_policies()).schedules;
    let plans = PlanSpace { schedules, ..PlanSpace::default() }.plans(&job);
    let (even, uneven): (Vec<TrainingPlan>, Vec<TrainingPlan>) =
        plans.iter().cloned().partition(|plan| plan.layout.ends.is_none());
    bench_evaluations("chunks of equal layers", &job, &even, ROUNDS);
    bench_evaluations("chunks of several lengths", &job, &uneven, 1);
    bench_slow_searches(&job, &plans);
    search_preset("search, default space", &job, &PlanSpace::default());
    search_preset("search, full space", &job, &PlanSpace::full(&job, &PlanSpace::default(), default_policies()));
}

/// Prepares shapes and degrees once, then evaluates the plans `rounds` times.
fn bench_evaluations(what: &str, job: &Job<'_>, plans: &[TrainingPlan], rounds: usize) {
    let mut times = ChipTimes::new(job.chip, job.stack).unwrap();
    let evaluator = Evaluator::new(job.model, job.fabric, job.stack, DeviceMemory::of_chip(job.chip));
    let shape_of = |plan: &TrainingPlan| (lowering_of_plan(job.model, plan, job.stack), plan.activations.clone());
    let degrees_of = |plan: &TrainingPlan| {
        (Layout { sequence_parallel: false, ..plan.layout }, plan.schedule == PipelineSchedule::ZB_V)
    };
    let start = Instant::now();
    let mut shapes = BTreeMap::new();
    for plan in plans {
        shapes
            .entry(shape_of(plan))
            .or_insert_with(|| PlanShape::new(&mut times, job.model, job.fabric, plan).unwrap());
    }
    print_rate("prepared: shapes", shapes.len(), start.elapsed().as_secs_f64());
    let start = Instant::now();
    let mut degrees = BTreeMap::new();
    for plan in plans {
        let shape = &shapes[&shape_of(plan)];
        degrees
            .entry(degrees_of(plan))
            .or_insert_with(|| evaluator.prepare_degrees(&mut times, shape, plan, None).unwrap());
    }
    print_rate("prepared: degrees", degrees.len(), start.elapsed().as_secs_f64());
    let prepared: Vec<(&PlanShape, &DegreeCosts, PipelineSends, &TrainingPlan)> = plans
        .iter()
        .map(|plan| {
            let shape = &shapes[&shape_of(plan)];
            (shape, &degrees[&degrees_of(plan)], evaluator.pipeline_sends(&times, shape, plan), plan)
        })
        .collect();
    let (mut exact, mut fit) = (0, 0);
    let start = Instant::now();
    for _ in 0..rounds {
        (exact, fit) = (0, 0);
        for (shape, degrees, sends, plan) in &prepared {
            let found = black_box(evaluator.evaluate_plan(shape, degrees, sends, plan.schedule, plan.micro_batches()));
            exact += usize::from(matches!(found.time, PassesTime::Exact(_)));
            fit += usize::from(evaluator.total_shortfall(found.need) == Bytes::ZERO);
        }
    }
    print_rate("evaluated: time and memory, one thread", rounds * prepared.len(), start.elapsed().as_secs_f64());
    println!("    {what}: of {} plans {exact} timed exactly, the others bounded; {fit} fit", plans.len());
}

/// Evaluates a sample of the plans by the slow paths: lowers each plan, simulates its schedule and sizes every stage.
fn bench_slow_searches(job: &Job<'_>, plans: &[TrainingPlan]) {
    let mut times = ChipTimes::new(job.chip, job.stack).unwrap();
    let some: Vec<&TrainingPlan> = plans.iter().step_by((plans.len() / SAMPLE).max(1)).collect();
    let start = Instant::now();
    for plan in &some {
        let _ = black_box(step_time(&mut times, job.model, job.fabric, plan));
        let _ = black_box(step_memory(job.model, plan, job.stack, DeviceMemory::of_chip(job.chip), None));
    }
    print_rate("by the slow paths, lowering included", some.len(), start.elapsed().as_secs_f64());
}

fn search_preset(what: &str, job: &Job<'_>, space: &PlanSpace) {
    let start = Instant::now();
    let answer = search_plans(job, space, 10).unwrap();
    print_rate(what, answer.plans, start.elapsed().as_secs_f64());
    let closed = answer.plans - answer.simulated - answer.rejected_by_bound - answer.refused;
    let share = |count: usize| 100.0 * count as f64 / answer.plans.max(1) as f64;
    println!(
        "    {closed} decided in closed form ({:.3} %; {} of them too large), {} simulated ({:.3} %), {} rejected by bound ({:.3} %), {} refused",
        share(closed),
        answer.over_capacity,
        answer.simulated,
        share(answer.simulated),
        answer.rejected_by_bound,
        share(answer.rejected_by_bound),
        answer.refused,
    );
    println!(
        "    other splits of their layers: {}, of which bounds left {} to evaluate",
        answer.splits, answer.splits_tried
    );
    if let Some(best) = answer.best.first() {
        let layout = &best.plan.layout;
        println!(
            "    best: {layout} micro-batch {} ZeRO-{} {:?} {}: {:.3} s",
            best.plan.batch.micro_batch,
            layout.zero as u8,
            best.plan.schedule,
            best.plan.activations,
            best.time.total.0
        );
    }
}
