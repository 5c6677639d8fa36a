//! Exact methods agree with one another and with a brute force that shares no code with them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod schedule_support;

use coplace_sim::schedule::{
    Backend, Cores, ExactMethod, Exclusivity, Formulation, IlpOptions, Operator, OperatorKind, Pairing, Problem,
    ProofMethod, SolveLimits, bounds_without_search, solve_ilp, solve_problem, verify_schedule,
};
use coplace_sim::status::SolveStatus;
use schedule_support::{Random, STYLES, Spec, Style, brute_force, generate};
use std::time::Duration;

/// Returns problem number `seed` of the agreement set: every style, family, pairing and exclusivity, with and without
/// links.
fn small(seed: u64) -> Spec {
    let mut random = Random(seed);
    let (style, pairing) = (random.pick(&STYLES), random.pick(&[Pairing::AnyPair, Pairing::SameIndex]));
    // Brute force tries every order, so graphs with less precedence and cores with indices get fewer operators.
    let most = 10 - 3 * u64::from(style == Style::Independent) - u64::from(pairing == Pairing::SameIndex);
    let operators = random.range(2, most) as usize;
    Spec {
        style,
        tensor_cores: random.pick(&[1, 2, 2, 3, 4]),
        vector_cores: random.pick(&[1, 2, 2, 3, 4]),
        network_links: random.pick(&[0, 0, 1, 2]),
        pairing,
        exclusivity: random.pick(&[Exclusivity::AllCores, Exclusivity::AllCores, Exclusivity::OwnKind]),
        longest: random.pick(&[4, 12, 100]),
        ..Spec::drawn(operators, seed)
    }
}

#[test]
fn the_search_finds_what_brute_force_finds_on_500_problems() {
    for seed in 0..500 {
        let spec = small(seed);
        let problem = generate(&spec, seed);
        let optimum = brute_force(&problem);
        let schedule = solve_problem(&problem, &SolveLimits::default());
        assert_eq!(verify_schedule(&problem, &schedule), Vec::new(), "seed {seed} {spec:?}");
        assert_eq!(schedule.status, SolveStatus::Optimal, "seed {seed} {spec:?}");
        assert_eq!(schedule.makespan, optimum, "seed {seed} {spec:?}");
        let (lower, upper) = bounds_without_search(&problem);
        assert!(lower <= optimum && optimum <= upper, "seed {seed} {spec:?}: {lower} <= {optimum} <= {upper}");
    }
}

/// Returns problem number `seed` of few operators with few distinct latencies. Latencies across all cores are at most
/// those on one core, or absent. Many operators are equal, and many schedules tie.
fn alike(seed: u64) -> Problem {
    let mut random = Random(seed);
    let least = seed % 2;
    let (operators, longest) = (random.range(3, 8), random.pick(&[2, 3, 4, 8]));
    let (edges_in_100, across_in_100) = (random.pick(&[0, 5, 10, 20, 35]), random.pick(&[30, 60, 90]));
    let most_across = random.pick(&[3, longest]);
    let cores = Cores {
        tensor_cores: random.pick(&[1, 1, 2, 2, 3]),
        vector_cores: random.pick(&[1, 1, 2, 2, 3]),
        network_links: random.pick(&[0, 0, 0, 0, 1]),
        pairing: random.pick(&[Pairing::AnyPair, Pairing::SameIndex]),
        exclusivity: random.pick(&[
            Exclusivity::AllCores,
            Exclusivity::AllCores,
            Exclusivity::AllCores,
            Exclusivity::OwnKind,
        ]),
    };
    let (mut list, mut edges) = (Vec::new(), Vec::new());
    for i in 0..operators as u32 {
        let kind = match random.range(0, 9) {
            0 | 1 => OperatorKind::TensorVector,
            2..=5 => OperatorKind::Tensor,
            9 if cores.network_links > 0 => OperatorKind::Network,
            _ => OperatorKind::Vector,
        };
        let latency = random.range(least, longest);
        let across = kind != OperatorKind::Network && latency > 0 && random.chance(across_in_100);
        list.push(if across {
            Operator::with_exclusive(kind, latency, random.range(least, latency.min(most_across)))
        } else {
            Operator::new(kind, latency)
        });
        edges.extend((0..i).filter(|_| random.chance(edges_in_100)).map(|before| (before, i)));
    }
    Problem::new(cores, list, edges).unwrap()
}

#[test]
fn the_search_finds_what_brute_force_finds_where_operators_are_alike() {
    for seed in 0..4_000 {
        let problem = alike(seed);
        let schedule = solve_problem(&problem, &SolveLimits::default());
        assert_eq!(verify_schedule(&problem, &schedule), Vec::new(), "seed {seed}");
        assert_eq!(
            (schedule.lower_bound, schedule.makespan),
            (schedule.makespan, brute_force(&problem)),
            "seed {seed}"
        );
    }
}

/// Problems for which the search lost the optimum under an earlier rule on the order of operators across all cores. The
/// optimum runs an operator across all cores at a point where the rule forbade it to a dominating state. The rule also
/// pruned every other state that leads to the optimum.
#[test]
fn rules_and_states_that_defer_to_each_other_lose_no_optimum() {
    let cores = |tensor_cores, vector_cores| Cores {
        tensor_cores,
        vector_cores,
        network_links: 0,
        pairing: Pairing::AnyPair,
        exclusivity: Exclusivity::AllCores,
    };
    let (tensor, vector) = (OperatorKind::Tensor, OperatorKind::Vector);
    let six = vec![
        Operator::new(vector, 4),
        Operator::with_exclusive(vector, 4, 1),
        Operator::new(vector, 2),
        Operator::with_exclusive(vector, 7, 3),
        Operator::with_exclusive(vector, 8, 2),
        Operator::new(tensor, 4),
    ];
    let four = vec![
        Operator::new(vector, 2),
        Operator::new(tensor, 1),
        Operator::with_exclusive(OperatorKind::TensorVector, 2, 1),
        Operator::with_exclusive(tensor, 4, 0),
    ];
    let problems = [
        (Problem::new(cores(1, 2), six, vec![(3, 1), (5, 4)]).unwrap(), 10),
        (Problem::new(cores(1, 1), four, vec![]).unwrap(), 3),
    ];
    for (problem, optimum) in problems {
        let schedule = solve_problem(&problem, &SolveLimits::default());
        assert_eq!(verify_schedule(&problem, &schedule), Vec::new());
        assert_eq!((schedule.lower_bound, schedule.makespan, brute_force(&problem)), (optimum, optimum, optimum));
    }
}

/// Compares the integer program with the search on the problems of `seeds`, each of at most `largest` operators.
/// Returns the number of problems that the program solves to optimality.
fn ilp_agrees(backend: Backend, formulation: Formulation, seeds: std::ops::Range<u64>, largest: usize) -> usize {
    let mut compared = 0;
    for seed in seeds {
        let spec = Spec { operators: small(seed).operators.min(largest), ..small(seed) };
        let problem = generate(&spec, seed);
        let optimum = solve_problem(&problem, &SolveLimits::default());
        let options = IlpOptions { formulation, backend, time_limit: Some(Duration::from_secs(20)) };
        let schedule = solve_ilp(&problem, &options).unwrap();
        assert_eq!(verify_schedule(&problem, &schedule), Vec::new(), "seed {seed} {spec:?}");
        if schedule.status == SolveStatus::Optimal {
            compared += 1;
            assert_eq!(schedule.makespan, optimum.makespan, "seed {seed} {spec:?}");
        } else {
            assert!(schedule.makespan >= optimum.makespan, "seed {seed} {spec:?}");
        }
    }
    compared
}

#[test]
fn the_integer_program_by_microlp_finds_the_same_optimum() {
    assert!(ilp_agrees(Backend::Microlp, Formulation::Tight, 0..500, 10) >= 490);
}

/// Solves small problems under limits, and says how many pieces the integer program closed.
fn pieces_closed_by_program(limits: SolveLimits) -> usize {
    let mut closed = 0;
    for seed in 0..200 {
        let problem = generate(&small(seed), seed);
        let (schedule, optimum) = (solve_problem(&problem, &limits), solve_problem(&problem, &SolveLimits::default()));
        assert_eq!(verify_schedule(&problem, &schedule), Vec::new(), "seed {seed}");
        assert!(schedule.lower_bound <= optimum.makespan && optimum.makespan <= schedule.makespan, "seed {seed}");
        assert_eq!(schedule.pieces.iter().map(|p| p.makespan).sum::<u64>(), schedule.makespan, "seed {seed}");
        assert_eq!(
            schedule.pieces.iter().map(|p| p.method).max().unwrap_or(ProofMethod::Decomposition),
            schedule.method
        );
        closed += schedule.pieces.iter().filter(|p| p.method == ProofMethod::Ilp).count();
    }
    closed
}

#[test]
fn a_piece_that_the_search_leaves_open_goes_to_the_integer_program() {
    let spent = SolveLimits { steps: 0, ..SolveLimits::default() };
    // No time limit, no program: its work cannot be counted.
    assert_eq!(pieces_closed_by_program(spent), 0);
    let timed = SolveLimits { time: Some(Duration::from_secs(20)), ..spent };
    let by_program = pieces_closed_by_program(timed);
    assert!(by_program >= 40, "{by_program} of the pieces that bounds leave open");
    assert_eq!(pieces_closed_by_program(SolveLimits { method: ExactMethod::Search, ..timed }), 0);
    // The search closes them all before the program is asked.
    assert_eq!(pieces_closed_by_program(SolveLimits { steps: SolveLimits::default().steps, ..timed }), 0);
    // Alone, the program also gets the pieces that the search's first bound closes.
    assert!(pieces_closed_by_program(SolveLimits { method: ExactMethod::Ilp, ..timed }) >= by_program);
}

#[test]
fn phazes_program_by_microlp_finds_the_same_optimum() {
    assert!(ilp_agrees(Backend::Microlp, Formulation::Plain, 0..60, 5) >= 59);
}

#[cfg(feature = "highs")]
#[test]
fn both_programs_by_highs_find_the_same_optimum() {
    assert!(ilp_agrees(Backend::Highs, Formulation::Tight, 0..500, 10) >= 490);
    assert!(ilp_agrees(Backend::Highs, Formulation::Plain, 0..60, 6) >= 59);
}
