//! Compares with exhaustive search: the list with a discouraged plan at its end, and the fastest plan of each family.
#![allow(clippy::unwrap_used)]

use super::search_plans::search_once;
use super::tests::PlannerHardware;
use super::{
    FamilyPlan, Job, NeighbourOutcome, PlanFamily, PlanSpace, PlanWatch, RankedPlan, Splits, neighbours, search_plans,
    search_plans_watched,
};
use sim::pipeline::PipelineSchedule;
use std::sync::atomic::Ordering::Relaxed;
use step::{ChipTimes, DeviceMemory, SoftwareStack, TrainingPlan, step_memory, step_time};
use workloads::{ActivationPolicy, Batch, Layout, ZeroStage};

/// A space of some hundred plans with contexts and all ZeRO stages.
fn space() -> PlanSpace {
    PlanSpace {
        virtual_stages: Some(vec![1, 2]),
        micro_batch: Some(vec![1, 2]),
        splits: Some(Splits::Listed(vec![None])),
        ..PlanSpace::default()
    }
}

/// Every plan of a space that fits, with its seconds, fastest first.
fn all_that_fit(job: &Job<'_>, space: &PlanSpace) -> Vec<(f64, TrainingPlan)> {
    let mut chip = ChipTimes::new(job.chip, job.stack).unwrap();
    let timed = |plan: TrainingPlan| {
        let memory = step_memory(job.model, &plan, job.stack, DeviceMemory::of_chip(job.chip), None).ok()?;
        let time = step_time(&mut chip, job.model, job.fabric, &plan).ok()?;
        memory.check_fits().is_ok().then_some((time.total.0, plan))
    };
    let mut plans: Vec<(f64, TrainingPlan)> = space.plans(job).into_iter().filter_map(timed).collect();
    plans.sort_by(|a, b| a.0.total_cmp(&b.0));
    plans
}

/// Plans with pipelines. Megatron-LM discourages sharded gradients there, but they leave room for activations.
fn pipelines() -> PlanSpace {
    PlanSpace { pipeline: Some(vec![2, 4]), ..space() }
}

fn seconds(plans: &[RankedPlan]) -> Vec<f64> {
    plans.iter().map(|ranked| ranked.time.total.0).collect()
}

#[test]
fn the_list_has_the_fastest_documented_plans_and_the_fastest_discouraged_one_behind_them() {
    let hardware = PlannerHardware::new("llama2-13b");
    let job = hardware.job(16, 32, 4096);
    // The stack, Megatron-LM, keeps gradients in fp32.
    let job = Job { precision: job.stack.precision_of_run(job.precision), ..job };
    let all = all_that_fit(&job, &pipelines());
    let (discouraged, documented): (Vec<_>, Vec<_>) =
        all.into_iter().partition(|(_, plan)| job.discouragement(plan).is_some());
    let once = search_once(&job, &pipelines().documented(&job).unwrap(), 8, PlanWatch::NONE).unwrap();
    assert_eq!(seconds(&once.best), documented[..8].iter().map(|(time, _)| *time).collect::<Vec<_>>());

    let answer = search_plans(&job, &pipelines(), 8).unwrap();
    let listed = job.count_documented(&answer.best);
    let alike: usize = answer.best[..listed].iter().map(|ranked| ranked.alike).sum();
    assert!(listed == 8 && seconds(&answer.best[..8]).is_sorted() && answer.best[0].time.total.0 == documented[0].0);
    // Only the other listed plans, and the plans that count as alike to a listed one, may be faster than the last
    // listed plan.
    assert!(answer.best[7].time.total.0 <= documented[7 + alike].0);
    assert!(discouraged[0].0 < documented[0].0, "the case shows nothing");
    assert_eq!(seconds(&answer.best[8..]), [discouraged[0].0]);
    assert_eq!(answer.plans, pipelines().plans(&job).len());
    assert_eq!(answer.timed + answer.over_capacity + answer.rejected_by_bound + answer.refused, answer.plans);
}

#[test]
fn software_that_discourages_nothing_ranks_all_plans_alike() {
    let hardware = PlannerHardware::new("llama2-7b");
    let mut stack = SoftwareStack::load("megatron").unwrap();
    stack.framework.discouraged.clear();
    let job = Job { stack: &stack, ..hardware.job(16, 32, 8192) };
    let answer = search_plans(&job, &space(), 3).unwrap();
    assert_eq!(answer.best[0].time.total.0, all_that_fit(&job, &space())[0].0);
    assert_eq!(job.count_documented(&answer.best), 3);
}

#[test]
fn discouraged_plans_are_listed_where_no_others_are_asked_for_or_fit() {
    let hardware = PlannerHardware::new("llama2-13b");
    let job = hardware.job(16, 32, 2048);
    let with = |zero: Vec<ZeroStage>| PlanSpace {
        // Over 8 tensor-parallel devices nothing is left to shard.
        tensor: Some(if zero.len() == 1 { vec![1, 8] } else { vec![1] }),
        pipeline: Some(vec![2]),
        zero: Some(zero),
        ..space()
    };
    for zero in [vec![ZeroStage::Gradients], vec![ZeroStage::None, ZeroStage::Gradients]] {
        let answer = search_plans(&job, &with(zero.clone()), 3).unwrap();
        assert_eq!(answer.best.len(), 3, "{zero:?}");
        assert!(job.discouragement(&answer.best[0].plan).is_some(), "{zero:?}");
        assert!(seconds(&answer.best).is_sorted());
        assert_eq!(job.count_documented(&answer.best), 3, "{zero:?}");
    }
}

#[test]
fn a_stopped_search_bounds_discouraged_plans_too() {
    let hardware = PlannerHardware::new("llama2-7b");
    let job = hardware.job(16, 32, 8192);
    let fastest = all_that_fit(&job, &space())[0].0;
    for calls in [0, 3, 40] {
        let left = std::sync::atomic::AtomicUsize::new(calls);
        let counted = || left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_err();
        let answer = search_plans_watched(&job, &space(), 4, PlanWatch { stop: &counted, told: &|_| {} }).unwrap();
        assert!(answer.stopped.is_none_or(|bound| bound.0 <= fastest), "{calls}: {:?}", answer.stopped);
        assert!(calls > 0 || answer.stopped.is_some());
    }
}

#[test]
fn the_fastest_of_a_family_is_that_of_trying_every_plan() {
    for (model, sequence) in [("llama2-7b", 8192), ("mixtral-8x7b", 2048)] {
        let hardware = PlannerHardware::new(model);
        let job = hardware.job(32, 64, sequence);
        let all = all_that_fit(&job, &space());
        let answer = search_plans(&job, &space(), 3).unwrap();
        let mut found = 0;
        for family in PlanFamily::ALL {
            let is_member =
                |plan: &TrainingPlan| family.includes_layout(&plan.layout) && job.discouragement(plan).is_none();
            let expected = all.iter().find(|(_, plan)| is_member(plan)).map(|(time, _)| *time);
            let alone = FamilyPlan::search(&job, &space(), family, PlanWatch::NONE).unwrap();
            assert_eq!(alone.as_ref().map(|of| of.ranked.time.total.0), expected, "{model}, {family:?}");
            let listed = FamilyPlan::among_listed(&job, &answer.best, family);
            assert!(listed.as_ref().is_none_or(|of| Some(of.ranked.time.total.0) == expected), "{model}, {family:?}");
            found += usize::from(expected.is_some());
        }
        assert!(found >= 3, "{model}: {found} families");
    }
}

#[test]
fn neighbours_halve_and_double_the_expert_degree() {
    let hardware = PlannerHardware::new("mixtral-8x7b");
    let job = hardware.job(32, 64, 2048);
    let changes = |layout: Layout| -> Vec<(String, bool)> {
        let batch = Batch { micro_batch: 1, global_batch: 64, sequence_length: 2048 };
        let plan = job.make_plan(layout, batch, ActivationPolicy::Full, PipelineSchedule::OneForwardOneBackward);
        let best = job.rank_plan(&plan).unwrap().unwrap();
        let around = neighbours(&job, &PlanSpace::default(), &best).unwrap();
        let experts = around.into_iter().filter(|n| n.change.starts_with("e "));
        let mut found: Vec<(String, bool)> =
            experts.map(|n| (n.change, !matches!(n.outcome, NeighbourOutcome::Refused(_)))).collect();
        found.sort();
        found
    };
    let named = |changes: &[&str]| changes.iter().map(|change| ((*change).to_owned(), true)).collect::<Vec<_>>();
    let alone = Layout { data: 32, zero: ZeroStage::Parameters, ..Layout::default() };
    assert_eq!(changes(alone), named(&["e 1 -> 2"]));
    assert_eq!(changes(Layout { expert: 4, ..alone }), named(&["e 4 -> 2", "e 4 -> 8"]));
    // Four data-parallel ranks hold no more than four groups of experts.
    let wide = Layout {
        tensor: 8,
        data: 4,
        expert: 4,
        sequence_parallel: true,
        zero: ZeroStage::OptimizerStates,
        ..Layout::default()
    };
    assert_eq!(changes(wide), named(&["e 4 -> 2"]));
    // Experts over single devices reach into the tensor-parallel groups.
    let narrow = wide.with_expert_tensor_degree(1);
    assert_eq!(changes(narrow), named(&["e 4 -> 2", "e 4 -> 8"]));
}

#[test]
fn a_faster_neighbour_is_discouraged_or_there_is_none() {
    let hardware = PlannerHardware::new("llama2-13b");
    let job = hardware.job(16, 32, 4096);
    let answer = search_plans(&job, &space(), 1).unwrap();
    let (best, around) = (&answer.best[0], neighbours(&job, &space(), &answer.best[0]).unwrap());
    let limit = best.time.total.0 * (1.0 - 1e-12);
    let is_faster =
        |outcome: &NeighbourOutcome| matches!(outcome, NeighbourOutcome::Runs { step, .. } if step.0 < limit);
    let inside = |change: &str| !change.starts_with("chunks") && !change.starts_with("layers");
    for n in around.iter().filter(|n| inside(&n.change) && n.discouraged.is_none()) {
        assert!(!is_faster(&n.outcome), "{}: {:?}", n.change, n.outcome);
    }
    assert!(around.iter().any(|n| n.discouraged.is_some()));
}
