#![allow(clippy::expect_used)]
use super::super::{Cores, Exclusivity, Operator, OperatorKind, Pairing, Problem, SolveLimits, solve_problem};
use super::{PortSharing, PortUse};
use proptest::prelude::*;

fn cores(count: u32, exclusivity: Exclusivity) -> Cores {
    Cores { tensor_cores: count, vector_cores: count, network_links: 1, pairing: Pairing::AnyPair, exclusivity }
}

/// A tensor operator that uses 60 % of a port and a vector operator that uses all of it, in parallel on one core of
/// each kind.
fn two() -> (Problem, Vec<PortUse>) {
    let operators = vec![Operator::new(OperatorKind::Tensor, 1_000), Operator::new(OperatorKind::Vector, 200)];
    let uses = [600.0, 200.0].map(|busy| PortUse { one: vec![busy], all: vec![busy] });
    (Problem::new(cores(1, Exclusivity::AllCores), operators, Vec::new()).expect("sound"), uses.to_vec())
}

#[test]
fn both_are_slowed_alike_and_the_bound_says_so() {
    let (problem, uses) = two();
    let sharing = PortSharing::new(&problem, &uses);
    let schedule = solve_problem(&problem, &SolveLimits::default());
    assert_eq!(schedule.makespan, 1_000);
    let spans = sharing.spans_of_schedule(&schedule);
    // The vector operator takes 200 x 1.6 ticks; meanwhile 200 ticks of the tensor operator are done.
    assert!((spans[1][1] - 320.0).abs() < 1e-6 && (spans[0][1] - 1_120.0).abs() < 1e-6, "{spans:?}");
    let least = sharing.lower_bound().expect("two operators");
    assert!((least - 1_120.0).abs() < 1e-6, "{least}");
}

#[test]
fn without_ports_a_schedule_is_played_as_it_is() {
    let (problem, _) = two();
    let sharing = PortSharing::new(&problem, &[PortUse::default(), PortUse::default()]);
    let schedule = solve_problem(&problem, &SolveLimits::default());
    assert_eq!(sharing.spans_of_schedule(&schedule), vec![[0.0, 1_000.0], [0.0, 200.0]]);
    assert!((sharing.lower_bound().expect("two operators") - 1_000.0).abs() < 1e-6);
}

#[test]
fn a_wait_may_beat_every_order_without_one() {
    // The first operator asks for 37 % of the port and the second for 93 %. If the second one waits for the first, it
    // runs in parallel with the third one, which takes as long. Without that wait the first two slow each other down.
    let operators = vec![
        Operator::new(OperatorKind::Network, 1),
        Operator::new(OperatorKind::TensorVector, 20),
        Operator::new(OperatorKind::Tensor, 20),
    ];
    let uses = [0.37, 18.54, 0.0].map(|busy| PortUse { one: vec![busy], all: vec![busy] });
    let problem = Problem::new(cores(2, Exclusivity::AllCores), operators, vec![(0, 2)]).expect("sound");
    let sharing = PortSharing::new(&problem, &uses);
    let ends = |before: &[Vec<usize>]| {
        sharing.play_operators(before, &[false; 3]).iter().map(|span| span[1]).fold(0.0, f64::max)
    };
    let (waits, starts) = (ends(&[vec![], vec![0], vec![0]]), ends(&[vec![], vec![], vec![0]]));
    assert!((waits - 21.0).abs() < 1e-9 && starts > 21.29, "{waits} {starts}");
    assert!(sharing.lower_bound().expect("three operators") <= waits * (1.0 + 1e-9));
}

/// Returns the least time over all orders, modes and cores. Lists the operators in every topological order. Each
/// operator starts as soon as its predecessors and the operators listed earlier on its core or link have ended.
fn brute_force(problem: &Problem, sharing: &PortSharing<'_>) -> f64 {
    let n = problem.operators().len();
    let mut best = f64::INFINITY;
    let count = problem.cores().tensor_cores as usize;
    for modes in 0..1_usize << n {
        let exclusive: Vec<bool> = (0..n).map(|i| modes >> i & 1 == 1).collect();
        if (0..n).any(|i| exclusive[i] && problem.operators()[i].exclusive_latency.is_none()) {
            continue;
        }
        for places in 0..count.pow(2 * n as u32) {
            let place = |i: usize, kind: usize| places / count.pow((2 * i + kind) as u32) % count;
            let shares = |i: usize, j: usize| {
                let (a, b) = (problem.operators()[i].kind, problem.operators()[j].kind);
                let uses = [(a.uses_tensor(), b.uses_tensor()), (a.uses_vector(), b.uses_vector())];
                let network = [a, b].map(|kind| kind == OperatorKind::Network);
                let all = problem.cores().exclusivity == Exclusivity::AllCores;
                let across = (exclusive[i] || exclusive[j]) && !network[0] && !network[1];
                network[0] && network[1]
                    || across && all
                    || (0..2).any(|kind| uses[kind].0 && uses[kind].1 && (across || place(i, kind) == place(j, kind)))
            };
            let mut listed = Vec::new();
            every_order(problem, &mut listed, &mut |order: &[usize]| {
                let mut before: Vec<Vec<usize>> = vec![Vec::new(); n];
                problem.edges().iter().for_each(|&(a, b)| before[b as usize].push(a as usize));
                for (at, &later) in order.iter().enumerate() {
                    before[later].extend(order[..at].iter().filter(|&&earlier| shares(earlier, later)));
                }
                let ends = sharing.play_operators(&before, &exclusive).iter().map(|span| span[1]).fold(0.0, f64::max);
                best = best.min(ends);
            });
        }
    }
    best
}

fn every_order(problem: &Problem, listed: &mut Vec<usize>, take: &mut impl FnMut(&[usize])) {
    let n = problem.operators().len();
    if listed.len() == n {
        return take(listed);
    }
    for i in (0..n).filter(|i| !listed.contains(i)).collect::<Vec<_>>() {
        if problem.edges().iter().all(|&(a, b)| b as usize != i || listed.contains(&(a as usize))) {
            listed.push(i);
            every_order(problem, listed, take);
            listed.pop();
        }
    }
}

prop_compose! {
    fn problems(most: usize, count: u32)(
        kinds in prop::collection::vec((0..4_usize, 1..60_u64, prop::option::of(1..60_u64), [0.0..1.0_f64, 0.0..1.0_f64], 0.3..1.0_f64), 2..=most),
        edges in prop::collection::vec(any::<bool>(), most * most),
        own in any::<bool>(),
    ) -> (Problem, Vec<PortUse>) {
        let n = kinds.len();
        let kind = [OperatorKind::Tensor, OperatorKind::Vector, OperatorKind::TensorVector, OperatorKind::Network];
        let operators: Vec<Operator> = kinds.iter().map(|&(at, one, all, ..)| Operator {
            kind: kind[at],
            latency: one,
            exclusive_latency: all.filter(|_| kind[at] != OperatorKind::Network),
        }).collect();
        // Every operator asks each of two ports for at most its bandwidth; across all cores it asks for less.
        let uses = kinds.iter().zip(&operators).map(|(&(_, one, _, asks, less), operator)| PortUse {
            one: asks.map(|asks| asks * one as f64).to_vec(),
            all: asks.map(|asks| asks * less * operator.exclusive_latency.unwrap_or(one) as f64).to_vec(),
        }).collect();
        let pairs = (0..n as u32).flat_map(|a| (a + 1..n as u32).map(move |b| (a, b)));
        let edges = pairs.zip(edges).filter(|(_, edge)| *edge).map(|(pair, _)| pair).step_by(2).collect();
        let exclusivity = if own { Exclusivity::OwnKind } else { Exclusivity::AllCores };
        (Problem::new(cores(count, exclusivity), operators, edges).expect("sound"), uses)
    }
}

fn check(problem: &Problem, uses: &[PortUse]) -> Result<(), TestCaseError> {
    let sharing = PortSharing::new(problem, uses);
    let least = sharing.lower_bound().expect("few operators");
    let best = brute_force(problem, &sharing);
    prop_assert!(least <= best * (1.0 + 1e-9), "the bound {least} is above the best schedule {best}");
    let schedule = solve_problem(problem, &SolveLimits::default());
    let played = sharing.spans_of_schedule(&schedule).iter().map(|span| span[1]).fold(0.0, f64::max);
    prop_assert!(least <= played * (1.0 + 1e-9), "the bound {least} is above the played schedule {played}");
    // A schedule that does not exceed its ports is kept with its waits. It may beat every order without waits.
    let kept = played <= schedule.makespan as f64;
    prop_assert!(
        kept || played >= best * (1.0 - 1e-9),
        "the played schedule {played} is faster than the best of all {best}"
    );
    // The busiest port is a lower bound on the program.
    let busy = |at: usize| uses.iter().map(|uses| uses.one[at].min(uses.all[at])).sum::<f64>();
    prop_assert!(least >= busy(0).max(busy(1)) * (1.0 - 3e-6), "the bound {least} is below the busiest port");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn no_order_beats_the_bound_on_one_core_of_each_kind((problem, uses) in problems(5, 1)) {
        check(&problem, &uses)?;
    }

    #[test]
    fn no_order_beats_the_bound_on_two_cores_of_each_kind((problem, uses) in problems(3, 2)) {
        check(&problem, &uses)?;
    }
}
