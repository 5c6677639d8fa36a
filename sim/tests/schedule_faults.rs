//! Bad problems, bad files and bad schedules get messages that name the fault. Problems that are too large get an
//! honest gap.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod schedule_support;

use coplace_sim::schedule::{
    Cores, Exclusivity, MAX_TOTAL_TICKS, Memo, Operator, OperatorKind, Pairing, Problem, ProofMethod, Schedule,
    ScheduleFault, SolveLimits, bounds_without_search, solve_problem, verify_schedule,
};
use coplace_sim::status::SolveStatus;
use schedule_support::{Family, Spec, Style, generate};

const CORES: Cores = Cores {
    tensor_cores: 2,
    vector_cores: 2,
    network_links: 1,
    pairing: Pairing::SameIndex,
    exclusivity: Exclusivity::AllCores,
};

fn tensor(latency: u64) -> Operator {
    Operator::new(OperatorKind::Tensor, latency)
}

fn error(cores: Cores, operators: Vec<Operator>, edges: Vec<(u32, u32)>) -> String {
    Problem::new(cores, operators, edges).unwrap_err().to_string()
}

#[test]
fn a_problem_says_what_is_wrong_with_it() {
    assert_eq!(
        error(CORES, vec![tensor(1); 4], vec![(0, 1), (1, 2), (2, 3), (3, 1)]),
        "the operators form a cycle: 1 -> 2 -> 3 -> 1; remove one of its edges"
    );
    assert_eq!(
        error(CORES, vec![tensor(1)], vec![(0, 0)]),
        "the operators form a cycle: 0 -> 0; remove one of its edges"
    );
    assert_eq!(
        error(CORES, vec![tensor(1); 2], vec![(0, 1), (1, 7)]),
        "edge 1 goes from operator 1 to operator 7, but there are only 2 operators (0 to 1); mend the edge"
    );
    assert_eq!(
        error(
            Cores { vector_cores: 0, ..CORES },
            vec![tensor(1), Operator::new(OperatorKind::TensorVector, 2)],
            vec![]
        ),
        "operator 1 is a tensor and vector operator, but the chip has 0 vector cores; give it at least 1 or remove the operator"
    );
    assert_eq!(
        error(Cores { network_links: 0, ..CORES }, vec![Operator::new(OperatorKind::Network, 2)], vec![]),
        "operator 0 is a network operator, but the chip has 0 network links; give it at least 1 or remove the operator"
    );
    assert_eq!(
        error(CORES, vec![tensor(MAX_TOTAL_TICKS), tensor(1)], vec![]),
        "the latencies up to operator 1 add up to more than 4611686018427387904 ticks; use a coarser tick"
    );
    assert_eq!(
        error(CORES, vec![Operator::new(OperatorKind::Nop, 3)], vec![]),
        "operator 0 is a no-operation but has a latency of 3 ticks; a no-operation takes 0, give it another kind"
    );
    assert_eq!(
        error(CORES, vec![Operator::with_exclusive(OperatorKind::Network, 3, 2)], vec![]),
        "operator 0 is a network operator with an exclusive latency of 2 ticks; only operators on cores have one, remove it"
    );
    assert_eq!(
        error(CORES, vec![tensor(1); 20_001], vec![]),
        "20001 operators are more than the 20000 that can be scheduled at once; split the graph by layer"
    );
}

/// A fused operator in parallel with two single ones, then an operator across all cores, and a collective.
fn sample() -> (Problem, Schedule) {
    let operators = vec![
        Operator::new(OperatorKind::TensorVector, 4),
        tensor(4),
        Operator::new(OperatorKind::Vector, 3),
        Operator::with_exclusive(OperatorKind::Tensor, 9, 5),
        Operator::new(OperatorKind::Network, 6),
    ];
    let problem = Problem::new(CORES, operators, vec![(0, 3), (1, 3), (2, 4)]).unwrap();
    let schedule = solve_problem(&problem, &SolveLimits::default());
    assert_eq!((schedule.makespan, schedule.exclusive[3]), (9, true));
    assert_eq!(verify_schedule(&problem, &schedule), Vec::new());
    (problem, schedule)
}

#[test]
fn the_verifier_names_every_fault() {
    let (problem, good) = sample();
    let faults = |change: &dyn Fn(&mut Schedule)| {
        let mut bad = good.clone();
        change(&mut bad);
        verify_schedule(&problem, &bad)
    };
    let found = faults(&|s| s.starts[3] = 3);
    assert!(found.contains(&ScheduleFault::Precedence { from: 0, to: 3, end: 4, start: 3 }), "{found:?}");
    assert!(found.contains(&ScheduleFault::Exclusivity { exclusive: 3, other: 1, start: 3, end: 8 }), "{found:?}");
    let found = faults(&|s| s.cores[1] = s.cores[0]);
    assert!(found.iter().any(|f| matches!(f, ScheduleFault::Overlap { resource: "tensor core", .. })), "{found:?}");
    assert!(
        found.iter().any(|f| matches!(f, ScheduleFault::WrongCore { operator: 1, resource: "vector core", .. })),
        "{found:?}"
    );
    let found = faults(&|s| s.cores[0].vector_core = s.cores[0].vector_core.map(|c| 1 - c));
    assert!(found.iter().any(|f| matches!(f, ScheduleFault::Pairing { operator: 0, .. })), "{found:?}");
    assert_eq!(
        faults(&|s| s.cores[4].link = Some(1)),
        vec![ScheduleFault::WrongCore { operator: 4, resource: "link", assigned: Some(1), available: 1 }]
    );
    assert_eq!(faults(&|s| s.makespan = 12).len(), 2, "the makespan, and a status that does not follow");
    assert!(faults(&|s| s.lower_bound = 8).iter().any(|f| matches!(f, ScheduleFault::Status { lower_bound: 8, .. })));
    assert!(faults(&|s| s.exclusive[1] = true).contains(&ScheduleFault::NotExclusive { operator: 1 }));
    assert_eq!(
        faults(&|s| s.starts.truncate(4)),
        vec![ScheduleFault::WrongLength { list: "starts", have: 4, need: 5 }]
    );
}

#[test]
fn ten_thousand_operators_get_an_honest_answer() {
    let spec = Spec {
        style: Style::Layered,
        family: Family::Sublinear,
        tensor_cores: 4,
        vector_cores: 4,
        ..Spec::drawn(10_000, 1)
    };
    let problem = generate(&spec, 1);
    let schedule = solve_problem(&problem, &SolveLimits { steps: 100_000, ..SolveLimits::default() });
    assert_eq!(verify_schedule(&problem, &schedule), Vec::new());
    let (lower, upper) = bounds_without_search(&problem);
    assert!(lower <= schedule.lower_bound && schedule.lower_bound <= schedule.makespan && schedule.makespan <= upper);
    assert_eq!(schedule.status == SolveStatus::Optimal, schedule.lower_bound == schedule.makespan);
    // A chain of 10,000 operators is as easy as one operator.
    let chain = Problem::new(CORES, vec![tensor(7); 10_000], (1..10_000).map(|i| (i - 1, i)).collect()).unwrap();
    let schedule = solve_problem(&chain, &SolveLimits::default());
    assert_eq!((schedule.makespan, schedule.method), (70_000, ProofMethod::Decomposition));
}

#[test]
fn a_spent_work_limit_leaves_a_gap_and_a_valid_schedule() {
    let spec = Spec {
        style: Style::Random,
        family: Family::Sublinear,
        tensor_cores: 3,
        vector_cores: 3,
        ..Spec::drawn(30, 40_058)
    };
    let problem = generate(&spec, 40_058);
    let none = solve_problem(&problem, &SolveLimits { steps: 0, ..SolveLimits::default() });
    assert_eq!(none.method, ProofMethod::Open);
    assert!(matches!(none.status, SolveStatus::Gap { .. }));
    assert_eq!(verify_schedule(&problem, &none), Vec::new());
    let more = solve_problem(&problem, &SolveLimits { steps: 50_000, ..SolveLimits::default() });
    assert!(more.makespan <= none.makespan && more.lower_bound >= none.lower_bound);
}

/// Returns the same problem with its operators renumbered backwards and every latency tripled.
fn renumbered(problem: &Problem) -> Problem {
    let n = problem.operators().len() as u32;
    let triple =
        |o: &Operator| Operator { latency: 3 * o.latency, exclusive_latency: o.exclusive_latency.map(|e| 3 * e), ..*o };
    let operators = problem.operators().iter().rev().map(triple).collect();
    let edges = problem.edges().iter().map(|&(a, b)| (n - 1 - a, n - 1 - b)).collect();
    Problem::new(*problem.cores(), operators, edges).unwrap()
}

#[test]
fn the_memo_knows_isomorphic_and_scaled_problems_again_and_changes_no_answer() {
    let memo = Memo::new(SolveLimits::default(), 1_000);
    for seed in 0..40 {
        let problem = generate(&Spec::drawn(20, seed), seed);
        let fresh = solve_problem(&problem, &SolveLimits::default());
        let first = memo.solve_problem(&problem);
        assert_eq!(
            (&first.starts, &first.exclusive, first.makespan),
            (&fresh.starts, &fresh.exclusive, fresh.makespan)
        );
        let before = memo.statistics();
        let again = memo.solve_problem(&renumbered(&problem));
        let after = memo.statistics();
        assert_eq!(again.makespan, 3 * first.makespan);
        assert_eq!(after.misses, before.misses, "seed {seed}: a renumbered problem was solved anew");
    }
    let statistics = memo.statistics();
    assert!(statistics.hit_rate() >= 0.5, "{statistics:?}");
    assert_eq!(statistics.held, statistics.misses);
}

#[test]
fn a_full_memo_still_answers_and_threads_agree() {
    let memo = Memo::new(SolveLimits::default(), 64);
    let problems: Vec<Problem> = (0..200).map(|seed| generate(&Spec::drawn(15, seed), seed)).collect();
    let alone: Vec<u64> = problems.iter().map(|p| solve_problem(p, &SolveLimits::default()).makespan).collect();
    let shared: Vec<Vec<u64>> = std::thread::scope(|scope| {
        let workers: Vec<_> =
            (0..4).map(|_| scope.spawn(|| problems.iter().map(|p| memo.solve_problem(p).makespan).collect())).collect();
        workers.into_iter().map(|w| w.join().unwrap()).collect()
    });
    assert!(shared.iter().all(|answers| *answers == alone));
    assert!(memo.statistics().held <= 64);
}

#[test]
fn more_cores_and_shorter_operators_never_hurt() {
    for seed in 0..60 {
        let spec = Spec { tensor_cores: 2, vector_cores: 2, ..Spec::drawn(12, seed) };
        let problem = generate(&spec, seed);
        let makespan = |p: &Problem| {
            let schedule = solve_problem(p, &SolveLimits::default());
            assert_eq!(schedule.status, SolveStatus::Optimal, "seed {seed}");
            schedule.makespan
        };
        let base = makespan(&problem);
        let wider = problem.on_cores(Cores { tensor_cores: 3, vector_cores: 3, ..*problem.cores() }).unwrap();
        assert!(makespan(&wider) <= base, "seed {seed}: more cores");
        let strict = problem.on_cores(Cores { pairing: Pairing::SameIndex, ..*problem.cores() }).unwrap();
        assert!(makespan(&strict) >= base, "seed {seed}: pairing by index");
        let relaxed = problem.on_cores(Cores { exclusivity: Exclusivity::OwnKind, ..*problem.cores() }).unwrap();
        assert!(makespan(&relaxed) <= base, "seed {seed}: own kind");
        let mut operators = problem.operators().to_vec();
        operators[0].latency /= 2;
        let faster = Problem::new(*problem.cores(), operators, problem.edges().to_vec()).unwrap();
        assert!(makespan(&faster) <= base, "seed {seed}: a shorter operator");
    }
}
