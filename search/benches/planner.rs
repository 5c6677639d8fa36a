//! How many plans a second are bounded, timed, sized, and decided by the search.
//!
//! `cargo bench -p coplace-search --bench planner`. GPT-3 175B on 1024 A100s of Selene with a global batch of 1536, every plan of the planner's
//! space. Bounding, timing and sizing run on one thread over plans whose model is lowered and profiled already; the search runs whole, on all
//! threads.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use coplace_search::planner::{Job, PlanSpace, search_plans};
use coplace_search::step::{
    ChipTimes, SoftwareStack, StepProfile, TrainingPlan, lowering, step_lower_bound, step_memory_of, step_time_of,
};
use sim::hardware::Accelerator;
use sim::network::Fabric;
use std::collections::BTreeMap;
use std::hint::black_box;
use std::time::Instant;
use workloads::footprint::{Optimizer, Precision};
use workloads::training::Attention;
use workloads::{Model, TrainingGraph};

/// Plans that are timed and sized: every n-th of the space.
const SAMPLE: usize = 2_000;

fn rate(what: &str, count: usize, seconds: f64) {
    let per = seconds * 1e6 / count as f64;
    println!("{what:<44} {count:>9} plans  {per:>9.3} us each  {:>12.0} per second", count as f64 / seconds);
}

fn main() {
    let model = Model::load("gpt3-175b").unwrap();
    let chip = Accelerator::template("a100_80gb_sxm").unwrap();
    let fabric = Fabric::template("selene_hdr200x8").unwrap().for_devices(1024).unwrap();
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
        precision: Precision::MIXED_BF16,
        optimizer: Optimizer::Adam,
    };
    let space = PlanSpace::default();
    let plans = space.plans(&job);
    let mut times = ChipTimes::new(&chip, &stack).unwrap();
    let start = Instant::now();
    let mut shapes = BTreeMap::new();
    for plan in &plans {
        let key = (lowering(&model, plan, &stack), plan.activations.clone());
        shapes.entry(key).or_insert_with(|| {
            let graph = TrainingGraph::new(&model, &lowering(&model, plan, &stack)).unwrap();
            let profile = times.profile_of(&model, &graph, &fabric, plan).unwrap();
            (graph, profile)
        });
    }
    rate("lowered and profiled (distinct shapes)", shapes.len(), start.elapsed().as_secs_f64());
    let shaped: Vec<(&TrainingPlan, &(TrainingGraph, StepProfile))> =
        plans.iter().map(|plan| (plan, &shapes[&(lowering(&model, plan, &stack), plan.activations.clone())])).collect();

    let start = Instant::now();
    for (plan, (_, profile)) in &shaped {
        let _ = black_box(step_lower_bound(&model, plan, profile));
    }
    rate("bounded", shaped.len(), start.elapsed().as_secs_f64());

    let some: Vec<_> = shaped.iter().step_by((shaped.len() / SAMPLE).max(1)).collect();
    let start = Instant::now();
    for (plan, (graph, _)) in &some {
        let _ = black_box(step_memory_of(&model, graph, plan, &stack, chip.memory_capacity(), None));
    }
    rate("sized", some.len(), start.elapsed().as_secs_f64());
    let start = Instant::now();
    for (plan, (_, profile)) in &some {
        let _ = black_box(step_time_of(&mut times, &model, &fabric, plan, profile));
    }
    rate("timed", some.len(), start.elapsed().as_secs_f64());

    let start = Instant::now();
    let answer = search_plans(&job, &space, 10).unwrap();
    rate("decided by the search, all of it included", answer.plans, start.elapsed().as_secs_f64());
}
