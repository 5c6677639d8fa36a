#![allow(clippy::unwrap_used, clippy::panic)]
use super::super::{Operator, Pairing, Problem, SolveLimits, solve_problem};
use super::*;
use proptest::prelude::*;

const KINDS: [OperatorKind; 4] =
    [OperatorKind::Tensor, OperatorKind::Vector, OperatorKind::TensorVector, OperatorKind::Network];

/// Draws operators with their times on one core and across all cores, edges, and cores.
fn case() -> impl Strategy<Value = (Vec<Operator>, Vec<(u32, u32)>, Cores)> {
    let operator =
        (prop::sample::select(KINDS.to_vec()), 1_u64..60, 1_u64..30).prop_map(|(kind, one, all)| match kind {
            OperatorKind::Network => Operator::new(kind, one),
            _ => Operator::with_exclusive(kind, one, all),
        });
    let cores =
        (1_u32..5, 1_u32..5, any::<bool>(), any::<bool>()).prop_map(|(tensor_cores, vector_cores, same, own)| Cores {
            tensor_cores,
            vector_cores,
            network_links: 1,
            pairing: if same { Pairing::SameIndex } else { Pairing::AnyPair },
            exclusivity: if own { Exclusivity::OwnKind } else { Exclusivity::AllCores },
        });
    (prop::collection::vec(operator, 1..9), prop::collection::vec(any::<bool>(), 36), cores).prop_map(
        |(operators, has, cores)| {
            let n = operators.len() as u32;
            let pairs = (0..n).flat_map(|from| (from + 1..n).map(move |to| (from, to)));
            let edges = pairs.zip(has).filter_map(|(edge, has)| has.then_some(edge)).collect();
            (operators, edges, cores)
        },
    )
}

fn of(operator: &Operator) -> OperatorLeastTimes {
    let all = operator.exclusive_latency.map_or(f64::INFINITY, |ticks| ticks as f64);
    OperatorLeastTimes { kind: operator.kind, one: operator.latency as f64, all }
}

fn least(operators: &[Operator], edges: &[(u32, u32)], cores: &Cores, chains: bool) -> f64 {
    let outline = Outline::new(operators.len(), edges, |i| operators[i].kind != OperatorKind::Network);
    outline.lower_bound(cores, chains, |i| of(&operators[i]))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn no_schedule_is_shorter((operators, edges, cores) in case()) {
        let problem = Problem::new(cores, operators.clone(), edges.clone()).unwrap();
        let schedule = solve_problem(&problem, &SolveLimits::default());
        for chains in [false, true] {
            let bound = least(&operators, &edges, &cores, chains);
            prop_assert!(bound <= schedule.makespan as f64 * (1.0 + 1e-12), "{bound} {}", schedule.makespan);
        }
    }

    #[test]
    fn more_cores_and_shorter_operators_bound_no_higher((operators, edges, cores) in case(), shorter in prop::collection::vec(0.1..1.0_f64, 9)) {
        let outline = Outline::new(operators.len(), &edges, |i| operators[i].kind != OperatorKind::Network);
        let whole = outline.lower_bound(&cores, false, |i| of(&operators[i]));
        let more = Cores { tensor_cores: cores.tensor_cores + 1, vector_cores: cores.vector_cores + 2, ..cores };
        prop_assert!(outline.lower_bound(&more, false, |i| of(&operators[i])) <= whole);
        let short = |i: usize| {
            let OperatorLeastTimes { kind, one, all } = of(&operators[i]);
            OperatorLeastTimes { kind, one: one * shorter[i], all: all * shorter[i] }
        };
        prop_assert!(outline.lower_bound(&cores, true, short) <= outline.lower_bound(&cores, true, |i| of(&operators[i])));
    }
}

#[test]
fn pieces_add_and_each_has_its_own_best_bound() {
    let cores = Cores {
        tensor_cores: 2,
        vector_cores: 2,
        network_links: 1,
        pairing: Pairing::AnyPair,
        exclusivity: Exclusivity::AllCores,
    };
    let tensor = |one, all| Operator::with_exclusive(OperatorKind::Tensor, one, all);
    // Three in parallel, then one: the work of three on two cores, then the shorter mode of the last.
    let operators = [tensor(10, 5), tensor(10, 5), tensor(10, 5), tensor(10, 6)];
    let edges = [(0, 3), (1, 3), (2, 3)];
    assert_eq!(least(&operators, &edges, &cores, false), 15.0 + 6.0);
    // One operator is no faster across all cores than on one: the critical path exceeds the work per core.
    let operators = [tensor(40, 40), tensor(10, 5), tensor(10, 5), tensor(10, 6)];
    assert_eq!(least(&operators, &edges, &cores, false), 40.0 + 6.0);
}

#[test]
fn across_many_cores_nothing_runs_beside_anything() {
    let cores = Cores {
        tensor_cores: 64,
        vector_cores: 64,
        network_links: 1,
        pairing: Pairing::AnyPair,
        exclusivity: Exclusivity::AllCores,
    };
    let [tensor, vector] =
        [OperatorKind::Tensor, OperatorKind::Vector].map(|kind| Operator::with_exclusive(kind, 640, 10));
    let operators = [tensor, vector, tensor, vector];
    assert_eq!(least(&operators, &[], &cores, true), 40.0);
    // Each kind of core has half of the work, and without the chain bound the two kinds may overlap.
    assert_eq!(least(&operators, &[], &cores, false), 20.0);
    let free = Cores { exclusivity: Exclusivity::OwnKind, ..cores };
    assert_eq!(least(&operators, &[], &free, true), 20.0);
}
