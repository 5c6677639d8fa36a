//! Exact methods agree with each other and with a brute force that shares no code with them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod schedule_support;

use coplace_sim::schedule::{Backend, Exclusivity, Formulation, IlpOptions, Limits, Pairing, bounds, solve, solve_ilp, verify};
use coplace_sim::status::SolveStatus;
use schedule_support::{Random, STYLES, Spec, Style, brute_force, generate};
use std::time::Duration;

/// Problem number `seed` of the agreement set: every style, family, pairing and exclusivity, with and without links.
fn small(seed: u64) -> Spec {
    let mut random = Random(seed);
    let (style, pairing) = (random.pick(&STYLES), random.pick(&[Pairing::AnyPair, Pairing::SameIndex]));
    // Brute force tries every order: fewer operators where less is ordered and where cores have names.
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
        let schedule = solve(&problem, &Limits::default());
        assert_eq!(verify(&problem, &schedule), Vec::new(), "seed {seed} {spec:?}");
        assert_eq!(schedule.status, SolveStatus::Optimal, "seed {seed} {spec:?}");
        assert_eq!(schedule.makespan, optimum, "seed {seed} {spec:?}");
        let (lower, upper) = bounds(&problem);
        assert!(lower <= optimum && optimum <= upper, "seed {seed} {spec:?}: {lower} <= {optimum} <= {upper}");
    }
}

/// Programs that `microlp` proves in well under a second: up to six operators, then as many as time allows.
fn ilp_agrees(backend: Backend, formulation: Formulation, seeds: std::ops::Range<u64>, largest: usize) -> usize {
    let mut compared = 0;
    for seed in seeds {
        let spec = Spec { operators: small(seed).operators.min(largest), ..small(seed) };
        let problem = generate(&spec, seed);
        let optimum = solve(&problem, &Limits::default());
        let options = IlpOptions { formulation, backend, time_limit: Some(Duration::from_secs(20)) };
        let schedule = solve_ilp(&problem, &options).unwrap();
        assert_eq!(verify(&problem, &schedule), Vec::new(), "seed {seed} {spec:?}");
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
