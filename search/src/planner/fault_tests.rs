//! Spaces without plans: found exactly where there are none, with cures that cure.
#![allow(clippy::unwrap_used)]

use super::Walk;
use crate::planner::tests::Hardware;
use crate::planner::{Job, PlanSpace};
use sim::pipeline::Schedule;

const PLAIN: Schedule = Schedule::OneForwardOneBackward;

/// Spaces of one choice each, by degrees of which some fit together.
fn spaces() -> Vec<PlanSpace> {
    let mut spaces = Vec::new();
    for (tensor, pipeline) in [(1, 1), (1, 3), (2, 2), (5, 4), (1, 8), (3, 2)] {
        for (context, expert) in [(1, 1), (2, 1), (3, 1), (1, 4), (1, 3)] {
            for chunks in [1, 2, 3, 65] {
                for (micro_batch, schedule) in
                    [(1, PLAIN), (2, Schedule::GPipe), (5, PLAIN), (1, Schedule::ZbV), (3, Schedule::ZbH1)]
                {
                    spaces.push(PlanSpace {
                        tensor: Some(vec![tensor]),
                        pipeline: Some(vec![pipeline]),
                        context: Some(vec![context]),
                        expert: Some(vec![expert]),
                        virtual_stages: Some(vec![chunks]),
                        micro_batch: Some(vec![micro_batch]),
                        schedules: Some(vec![schedule]),
                        ..PlanSpace::default()
                    });
                }
            }
        }
    }
    spaces
}

#[test]
fn a_rule_is_named_exactly_where_there_are_no_plans() {
    let hardware = [Hardware::new("mixtral-8x7b"), Hardware::new("gpt2-xl")];
    let (mut with, mut without) = (0, 0);
    for (hardware, devices, batch, tokens) in
        [(&hardware[0], 16, 24, 4096), (&hardware[0], 15, 30, 999), (&hardware[1], 16, 24, 1024)]
    {
        let job = hardware.job(devices, batch, tokens);
        for space in spaces() {
            let walk = Walk::of(&space, &job);
            let plans = space.plans(&job);
            assert_eq!(walk.plans, !plans.is_empty(), "{space:?}: {:?}", walk.nearest);
            assert!(walk.plans || walk.nearest.is_some());
            *(if walk.plans { &mut with } else { &mut without }) += 1;
        }
    }
    assert!(with > 30 && without > 300, "{with} {without}");
}

/// The message about a space.
fn message(job: &Job<'_>, space: &PlanSpace) -> String {
    space.fault(job).unwrap().to_string()
}

#[test]
fn the_rule_the_number_and_the_nearest_values_are_named() {
    let gpt = Hardware::new("gpt2-xl");
    let job = gpt.job(16, 24, 1024);
    let deep = PlanSpace {
        tensor: Some(vec![1]),
        pipeline: Some(vec![8]),
        micro_batch: Some(vec![1]),
        virtual_stages: Some(vec![2]),
        ..PlanSpace::default()
    };
    assert_eq!(
        message(&job, &deep),
        "virtual_stages = 2: must be 1 where the 12 micro-batches of a copy (24 sequences / (dp 2 x micro_batch 1)) are no multiple of pp = 8: \
         interleaving runs them pp at a time; use virtual_stages = 1, or global_batch = 16 or 32"
    );
    let only = |set: fn(&mut PlanSpace)| {
        let mut space = PlanSpace::default();
        set(&mut space);
        message(&job, &space)
    };
    assert_eq!(only(|s| s.pipeline = Some(vec![7])), "pp = 7: must be a divisor of the 16 devices; use pp = 4 or 8");
    assert_eq!(
        only(|s| s.context = Some(vec![3])),
        "cp = 3: must be a divisor of the 1024 tokens of a sequence; use cp = 2 or 4"
    );
    assert_eq!(
        only(|s| s.micro_batch = Some(vec![7])),
        "micro_batch = 7: must be a divisor of the 24 sequences of a step; use micro_batch = 6 or 8"
    );
    assert_eq!(
        only(|s| (s.schedules, s.virtual_stages) = (Some(vec![Schedule::ZbV]), Some(vec![3]))),
        "virtual_stages = 3: must be 2 under ZB-V; use virtual_stages = 2, or the schedule 1f1b"
    );
    let mixtral = Hardware::new("mixtral-8x7b");
    let three = PlanSpace { expert: Some(vec![3]), ..PlanSpace::default() };
    assert!(message(&mixtral.job(16, 64, 4096), &three).starts_with("ep = 3: must be a divisor of dp = "));
}

#[test]
fn the_cures_cure() {
    let gpt = Hardware::new("gpt2-xl");
    let large = gpt.job(1024, 1536, 1024);
    let error = PlanSpace { pipeline: Some(vec![128]), ..PlanSpace::default() }.fault(&large).unwrap();
    assert_eq!((error.key, error.value.as_str()), ("pp", "128"));
    let named = |cure: &str| cure.split([' ', ',']).filter_map(|word| word.parse::<u32>().ok()).collect::<Vec<u32>>();
    assert!(!named(&error.cure).is_empty());
    for pipeline in named(&error.cure) {
        let cured = PlanSpace { pipeline: Some(vec![pipeline]), ..PlanSpace::default() };
        assert!(cured.fault(&large).is_none() && !cured.plans(&large).is_empty(), "{error}");
    }
    // Where no other value of a decision helps, the cluster may.
    let odd = gpt.job(53, 8, 1024);
    let error = PlanSpace::default().fault(&odd).unwrap();
    assert!(error.cure.contains("devices") || error.cure.contains("global_batch"), "{error}");
    assert!(PlanSpace::default().fault(&gpt.job(8, 8, 1024)).is_none());
}
