//! Spaces without plans: found exactly where there are none, with cures that cure.
#![allow(clippy::unwrap_used)]

use super::Refusals;
use crate::planner::tests::PlannerHardware;
use crate::planner::{Job, PlanSpace, Splits, default_policies};
use sim::pipeline::PipelineSchedule;
use workloads::{ActivationPolicy, LayerEnds, RankOrder};

const PLAIN: PipelineSchedule = PipelineSchedule::OneForwardOneBackward;

/// The rule that a space without plans breaks.
fn refused(space: &PlanSpace, job: &Job<'_>) -> Option<String> {
    let mut refusals = Refusals::noted(None);
    let found = space.enumerate(job, &mut refusals);
    refusals.nearest.filter(|_| found.is_empty()).map(|nearest| nearest.rule.to_string())
}

/// Spaces with one value per decision. Only some of their degrees fit together.
fn spaces() -> Vec<PlanSpace> {
    let mut spaces = Vec::new();
    for (tensor, pipeline) in [(1, 1), (1, 3), (2, 2), (5, 4), (1, 8), (3, 2)] {
        for (context, expert) in [(1, 1), (2, 1), (3, 1), (1, 4), (1, 3)] {
            for chunks in [1, 2, 3, 65] {
                for (micro_batch, schedule) in [
                    (1, PLAIN),
                    (2, PipelineSchedule::GPipe),
                    (5, PLAIN),
                    (1, PipelineSchedule::ZB_V),
                    (3, PipelineSchedule::ZbH1),
                ] {
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
    let hardware = [PlannerHardware::new("mixtral-8x7b"), PlannerHardware::new("gpt2-xl")];
    let (mut with, mut without) = (0, 0);
    for (hardware, devices, batch, tokens) in
        [(&hardware[0], 16, 24, 4096), (&hardware[0], 15, 30, 999), (&hardware[1], 16, 24, 1024)]
    {
        let job = hardware.job(devices, batch, tokens);
        for space in spaces() {
            let (nearest, plans) = (refused(&space, &job), space.plans(&job));
            assert_eq!(nearest.is_none(), !plans.is_empty(), "{space:?}: {nearest:?}");
            *(if nearest.is_none() { &mut with } else { &mut without }) += 1;
        }
    }
    assert!(with > 30 && without > 300, "{with} {without}");
}

/// A given expert width leaves the rest of a stage's ranks to expert parallelism.
#[test]
fn widths_of_experts_are_plans_or_named() {
    let hardware = PlannerHardware::new("mixtral-8x7b");
    let job = hardware.job(16, 24, 4096);
    let (mut with, mut without) = (0, 0);
    for (tensor, width) in [(1, 1), (1, 2), (4, 1), (4, 2), (4, 4), (4, 16), (4, 3), (2, 8)] {
        for (expert, context) in [(None, 1), (Some(1), 1), (Some(4), 1), (Some(8), 2), (Some(16), 1), (Some(3), 1)] {
            for sequence_parallel in [true, false] {
                let space = PlanSpace {
                    tensor: Some(vec![tensor]),
                    context: Some(vec![context]),
                    expert: expert.map(|expert| vec![expert]),
                    expert_tensor: Some(vec![width]),
                    sequence_parallel: Some(vec![sequence_parallel]),
                    ..PlanSpace::default()
                };
                let (nearest, plans) = (refused(&space, &job), space.plans(&job));
                assert_eq!(nearest.is_none(), !plans.is_empty(), "{space:?}: {nearest:?}");
                for plan in &plans {
                    let l = &plan.layout;
                    assert_eq!(l.expert_tensor_degree().unwrap_or(l.tensor), width, "{l}");
                    assert_eq!(l.ranks_per_stage() % (u64::from(width) * u64::from(l.expert)), 0, "{l}");
                    assert!(width == tensor || l.sequence_parallel || tensor == 1, "{l}");
                }
                *(if nearest.is_none() { &mut with } else { &mut without }) += 1;
            }
        }
    }
    assert!(with > 20 && without > 20, "{with} {without}");
    // Whole experts on every rank of four copies of two devices: ep x etp divides tp x cp x dp, as Megatron-LM asks.
    let whole = PlanSpace {
        tensor: Some(vec![2]),
        expert: Some(vec![8]),
        expert_tensor: Some(vec![1]),
        sequence_parallel: Some(vec![true]),
        ..PlanSpace::default()
    };
    for batch in [4, 8, 12] {
        let job = hardware.job(8, batch, 4096);
        assert!(whole.fault(&whole, &job, job.fabric).is_none(), "{batch}");
    }
    let asked = PlanSpace { expert_tensor: Some(vec![3]), ..PlanSpace::default() };
    assert!(message(&job, &asked).starts_with("etp = 3: must be a divisor of the "), "{}", message(&job, &asked));
    let dense = PlannerHardware::new("gpt2-xl");
    let text = message(&dense.job(16, 24, 1024), &asked);
    assert_eq!(text, "etp = 3: must be left out for a model without experts; leave it out");
}

#[test]
fn a_larger_space_is_refused_exactly_where_it_has_no_plans() {
    let gpt = PlannerHardware::new("gpt2-xl");
    let (mut with, mut without, mut only_larger) = (0, 0, 0);
    for (devices, batch) in [(16, 24), (8, 40)] {
        let job = gpt.job(devices, batch, 1024);
        let asked = spaces().into_iter().filter(|space| space.expert == Some(vec![1]));
        // The request without the schedule and with one policy: neither decides whether a schedule has plans.
        let asked =
            asked.map(|space| PlanSpace { schedules: None, activations: Some(vec![ActivationPolicy::None]), ..space });
        for asked in asked.step_by(3) {
            let larger = PlanSpace::full(&job, &asked, default_policies());
            let plans = !larger.plans(&job).is_empty();
            let fault = asked.fault(&larger, &job, job.fabric);
            assert_eq!(fault.is_none(), plans, "{asked:?}: {fault:?}");
            *(if plans { &mut with } else { &mut without }) += 1;
            only_larger += usize::from(plans && asked.plans(&job).is_empty());
        }
    }
    assert!(with > 10 && without > 30 && only_larger > 0, "{with} {without} {only_larger}");
}

/// The message about a space.
fn message(job: &Job<'_>, space: &PlanSpace) -> String {
    space.fault(space, job, job.fabric).unwrap().to_string()
}

#[test]
fn the_rule_the_number_and_the_nearest_values_are_named() {
    let gpt = PlannerHardware::new("gpt2-xl");
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
        only(|s| (s.schedules, s.virtual_stages) = (Some(vec![PipelineSchedule::ZB_V]), Some(vec![3]))),
        "virtual_stages = 3: must be 2 under ZB-V; use virtual_stages = 2, or the schedule 1f1b"
    );
    assert_eq!(only(|s| s.data = Some(vec![3])), "dp = 3: must be a divisor of the 16 devices; use dp = 2 or 4");
    assert_eq!(
        only(|s| (s.tensor, s.pipeline, s.data) = (Some(vec![1]), Some(vec![4]), Some(vec![8]))),
        "dp = 8: must be 4, the copies of 4 devices (tp x cp x pp) among 16; use dp = 4, or pp = 2"
    );
    assert_eq!(
        only(|s| {
            (s.tensor, s.pipeline, s.context) = (Some(vec![1]), Some(vec![2]), Some(vec![2]));
            s.orders = Some(vec![RankOrder::PipelineFirst]);
        }),
        "cp = 2: must be 1 if the stages of a copy are neighbours; use cp = 1 or 8, or pp = 1 or 8, or another order \
         of ranks"
    );
    let pipeline = |stages| PlanSpace { pipeline: Some(vec![stages]), ..PlanSpace::default() };
    assert_eq!(
        message(&gpt.job(64, 64, 1024), &pipeline(64)),
        "pp = 64: must be at most 50: the 48 layers, one for every stage, and the embedding's and the head's; use pp = 32"
    );
    assert_eq!(
        only(|s| s.splits = Some(Splits::Listed(vec![Some(LayerEnds { first: 99, last: 1, shorter: 0 })]))),
        "layer_split = 99:1: must be at most the 48 layers in the first and the last chunk together; use 47:1 or 48:0, or the best split \
         of the layers"
    );
    let mixtral = PlannerHardware::new("mixtral-8x7b");
    let three = PlanSpace { expert: Some(vec![3]), ..PlanSpace::default() };
    assert!(message(&mixtral.job(16, 64, 4096), &three).starts_with("ep = 3: must be a divisor of dp = "));
}

/// True if a plan of a space runs a schedule.
fn runs(space: &PlanSpace, job: &Job<'_>, schedule: PipelineSchedule) -> bool {
    space.plans(job).iter().any(|plan| plan.schedule == schedule && plan.layout.pipeline > 1)
}

#[test]
fn a_schedule_that_no_plan_runs_is_refused() {
    let gpt = PlannerHardware::new("gpt2-xl");
    let job = gpt.job(8, 24, 1024);
    let (mut idle, mut run) = (0, 0);
    for schedule in [PipelineSchedule::GPipe, PipelineSchedule::ZbH1, PipelineSchedule::ZB_V] {
        for pipeline in [None, Some(vec![1]), Some(vec![1, 2]), Some(vec![4])] {
            for virtual_stages in [None, Some(vec![1]), Some(vec![2]), Some(vec![1, 2])] {
                let (pipeline, virtual_stages) = (pipeline.clone(), virtual_stages);
                let space =
                    PlanSpace { pipeline, virtual_stages, schedules: Some(vec![schedule]), ..PlanSpace::default() };
                let beside = PlanSpace { schedules: Some(vec![PLAIN, schedule]), ..space.clone() };
                let (fault, left_out) =
                    (space.fault(&space, &job, job.fabric), beside.idle_schedules(&job, job.fabric));
                if runs(&space, &job, schedule) {
                    assert_eq!(left_out, Vec::new(), "{space:?}");
                    run += 1;
                } else {
                    assert!(fault.is_some() && left_out.len() == 1, "{space:?}");
                    idle += 1;
                }
                // If the space has plans under 1F1B alone, a request for another schedule besides is no fault.
                let plain = PlanSpace { schedules: Some(vec![PLAIN]), ..space.clone() };
                let [plain, beside] = [plain, beside].map(|space| space.fault(&space, &job, job.fabric));
                assert!(plain.is_some() || beside.is_none(), "{space:?}: {beside:?}");
            }
        }
    }
    assert!(idle > 10 && run > 10, "{idle} {run}");
    let one =
        PlanSpace { pipeline: Some(vec![1]), schedules: Some(vec![PipelineSchedule::ZB_V]), ..PlanSpace::default() };
    assert_eq!(
        message(&job, &one),
        "schedule = zb-v: must be left out without a pipeline: one stage has nothing to schedule; use the schedule 1f1b, or pp = 2"
    );
    assert!(runs(&PlanSpace { pipeline: Some(vec![2]), ..one.clone() }, &job, PipelineSchedule::ZB_V));
    // Other degrees may leave one stage as well.
    let wide =
        PlanSpace { context: Some(vec![8]), schedules: Some(vec![PipelineSchedule::ZB_V]), ..PlanSpace::default() };
    assert_eq!(
        message(&job, &wide),
        "schedule = zb-v: must be left out without a pipeline: one stage has nothing to schedule; use the schedule 1f1b, or cp = 4"
    );
    assert!(runs(&PlanSpace { context: Some(vec![4]), ..wide }, &job, PipelineSchedule::ZB_V));
    let plain = PlanSpace { schedules: Some(vec![PLAIN]), ..one };
    assert_eq!(plain.fault(&plain, &job, job.fabric), None, "one stage runs one forward, one backward");
}

#[test]
fn devices_that_no_plan_divides_are_named_with_the_nearest_that_one_does() {
    let gpt = PlannerHardware::new("gpt2-xl");
    let job = gpt.job(1048, 512, 1024);
    for space in [
        PlanSpace::default(),
        PlanSpace { tensor: Some(vec![5]), ..PlanSpace::default() },
        PlanSpace::full(&job, &PlanSpace::default(), default_policies()),
    ] {
        assert_eq!(
            message(&job, &space),
            "devices = 1048: must be tp x cp x pp x dp of a plan; the nearest product, 1 x 1 x 131 x 8, breaks a rule: pp = 131 must be at most 50: \
             the 48 layers, one for every stage, and the embedding's and the head's; use 1040 or 1056 devices, or global_batch = 1048"
        );
    }
    // The nearest of all multiples of a node, by trying each.
    let plans = |devices: u32| {
        let job = gpt.job(devices, 512, 1024);
        !PlanSpace {
            context: PlanSpace::full(&job, &PlanSpace::default(), default_policies()).context,
            ..PlanSpace::default()
        }
        .plans(&job)
        .is_empty()
    };
    let nodes = |from: u32, to: u32| (from..=to).filter(|n| n % 8 == 0 && plans(*n)).collect::<Vec<u32>>();
    assert_eq!(nodes(1033, 1063), [1040, 1056]);
}

#[test]
fn the_cures_cure() {
    let gpt = PlannerHardware::new("gpt2-xl");
    let large = gpt.job(1024, 1536, 1024);
    let fault = |space: &PlanSpace, job: &Job<'_>| space.fault(space, job, job.fabric);
    let error = fault(&PlanSpace { pipeline: Some(vec![128]), ..PlanSpace::default() }, &large).unwrap();
    assert_eq!((error.key, error.value.as_str()), ("pp", "128"));
    let named = |cure: &str| cure.split([' ', ',']).filter_map(|word| word.parse::<u32>().ok()).collect::<Vec<u32>>();
    assert!(!named(&error.cure).is_empty());
    for pipeline in named(&error.cure) {
        let cured = PlanSpace { pipeline: Some(vec![pipeline]), ..PlanSpace::default() };
        assert!(fault(&cured, &large).is_none() && !cured.plans(&large).is_empty(), "{error}");
    }
    // If no other value of a decision helps, the cluster may.
    let odd = gpt.job(53, 8, 1024);
    let error = fault(&PlanSpace::default(), &odd).unwrap();
    assert!(error.cure.contains("devices") || error.cure.contains("global_batch"), "{error}");
    let even = gpt.job(8, 8, 1024);
    assert!(fault(&PlanSpace::default(), &even).is_none());
}
