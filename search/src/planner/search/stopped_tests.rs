//! A search may be stopped anywhere, and its claims hold.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use crate::planner::search_plans::usual_subspace;
use crate::planner::tests::PlannerHardware;
use crate::planner::{
    Job, PlanAnswer, PlanSpace, PlanWatch, Splits, default_policies, search_plans, search_plans_watched,
};
use sim::pipeline::PipelineSchedule;
use std::sync::atomic::{AtomicUsize, Ordering};
use step::MixKind;
use workloads::ZeroStage;

/// Stops a search after `asks` calls of its stop function. Returns its answer and the number of calls.
fn stopped_after(asks: usize, job: &Job<'_>, space: &PlanSpace) -> (PlanAnswer, usize) {
    let asked = AtomicUsize::new(0);
    let stop = || asked.fetch_add(1, Ordering::Relaxed) >= asks;
    let answer = search_plans_watched(job, space, 4, PlanWatch { stop: &stop, told: &|_| {} }).unwrap();
    (answer, asked.into_inner())
}

/// Stops a search at 24 moments between its start and its end, and checks its claims. Returns the number of stops after
/// a plan was found.
fn holds_wherever_it_stops(space: &PlanSpace) -> usize {
    let hardware = PlannerHardware::new("llama2-7b");
    let job = hardware.job(8, 16, 4096);
    let whole = search_plans(&job, space, 4).unwrap();
    let least = whole.best[0].time.total.0;
    assert_eq!((whole.stopped, whole.not_reached), (None, 0));
    let (through, asks) = stopped_after(usize::MAX, &job, space);
    assert_eq!(through, whole);
    let mut found = 0;
    for part in 0..24 {
        let (answer, _) = stopped_after(asks * part / 24, &job, space);
        let bound = answer.stopped.expect("it was told to stop").0;
        assert!(bound > 0.0 && bound <= least, "stopped at {part} of 24: {bound} is no bound of {least}");
        let counts = [answer.timed, answer.over_capacity, answer.rejected_by_bound, answer.refused, answer.not_reached];
        assert_eq!((answer.plans, counts.iter().sum::<usize>()), (whole.plans, whole.plans), "{part}: {counts:?}");
        if let Some(best) = answer.best.first() {
            assert!(best.time.total.0 >= least * (1.0 - 1e-9) && bound <= best.time.total.0);
            found += 1;
        }
    }
    found
}

#[test]
fn a_bound_and_the_best_so_far_hold_wherever_a_search_stops() {
    let schedules = Some(vec![PipelineSchedule::OneForwardOneBackward, PipelineSchedule::ZbH1]);
    let space = PlanSpace { schedules, micro_batch: Some(vec![1, 2]), ..PlanSpace::default() };
    assert!(holds_wherever_it_stops(&space) >= 12);
    let mixed = PlanSpace { mixes: Some(MixKind::PerStage), schedules: None, ..space };
    assert!(holds_wherever_it_stops(&mixed) >= 12);
}

#[test]
fn a_space_within_the_space_gives_its_plans_where_the_rest_is_stopped() {
    let hardware = PlannerHardware::new("llama2-7b");
    let job = hardware.job(8, 16, 4096);
    let asked =
        PlanSpace { micro_batch: Some(vec![1]), zero: Some(vec![ZeroStage::OptimizerStates]), ..PlanSpace::default() };
    let full = PlanSpace::full(&job, &asked, default_policies());
    assert!(matches!(full.splits, Some(Splits::NearOf(_))));
    let small = PlanSpace { splits: Some(Splits::Listed(vec![None])), ..usual_subspace(&full).unwrap() };
    let (alone, asks) = stopped_after(usize::MAX, &job, &small);
    let best = alone.best[0].time.total.0;
    // The small space is done and the large one has just begun.
    let (answer, _) = stopped_after(asks, &job, &full);
    assert!(2 * answer.not_reached > answer.plans, "{} of {}", answer.not_reached, answer.plans);
    let (bound, found) = (answer.stopped.unwrap().0, answer.best[0].time.total.0);
    assert!(found <= best * (1.0 + 1e-9) && bound <= found, "{bound} {found} {best}");
}
