//! Best-first search with admissible bounds: evaluates exactly only the candidates that a bound cannot decide, and says how far it got.
//!
//! Every candidate has a cost that is known at once (its area), or from below (its energy), and a value to be minimised that is expensive (its
//! step time), with bounds from below in between. A candidate is discarded when one already evaluated costs no more and is no slower than the
//! candidate's bounds, so what remains is the Pareto front of value against cost, the best value at its end.
//!
//! Candidates are taken in rounds of a fixed size and the front changes only between rounds: the answer is the same for any
//! number of threads.

use crate::pareto::{Front, FrontPoint};
use rayon::prelude::*;
use std::cmp::Ordering;
use std::collections::BinaryHeap;

/// Candidates decided per round: enough to keep many cores busy, few enough that a better front prunes soon.
const ROUND: usize = 32;

/// What is searched.
pub trait Problem: Sync {
    /// An exact evaluation.
    type Evaluation: Send;
    /// How many candidates there are, numbered from 0.
    fn candidates(&self) -> usize;
    /// The cost of a candidate, or what it is not below where its evaluation has the exact one.
    fn cost(&self, candidate: usize) -> f64;
    /// A very cheap lower bound of the candidate's value.
    fn coarse_bound(&self, candidate: usize) -> f64;
    /// A tighter lower bound, still much cheaper than an evaluation; at least the coarse one is taken.
    /// No more need be found out than whether it is below `cutoff`.
    fn fine_bound(&self, candidate: usize, cutoff: f64) -> f64;
    /// The exact value, unless it is shown on the way that the value is at least `cutoff` (infinite where any value counts).
    fn evaluate(&self, candidate: usize, cutoff: f64) -> Verdict<Self::Evaluation>;
}

/// What an evaluation found.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict<E> {
    /// The exact value, and what belongs to it.
    Feasible {
        /// The value.
        value: f64,
        /// The exact cost, where [`Problem::cost`] is a bound.
        cost: Option<f64>,
        /// What belongs to them.
        evaluation: E,
    },
    /// There is none, and why.
    Infeasible(E),
    /// It is at least this, which is at least the cutoff.
    Beaten(f64),
}

/// How a candidate was decided.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome<E> {
    /// Evaluated: feasible with this value.
    Evaluated {
        /// The exact value.
        value: f64,
        /// What the evaluation said.
        evaluation: E,
    },
    /// Evaluated: not feasible.
    Infeasible {
        /// What the evaluation said.
        evaluation: E,
    },
    /// Not worth evaluating: `by` costs no more and its value is no worse than this candidate's bound.
    Pruned {
        /// The lower bound of the candidate's value.
        bound: f64,
        /// The candidate that dominates it.
        by: usize,
    },
    /// The evaluation limit was reached first.
    Open {
        /// The lower bound of the candidate's value.
        bound: f64,
    },
}

/// Where a search stands, for a progress display.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Progress {
    /// Candidates decided so far, by evaluation or by bound.
    pub decided: usize,
    /// Of these, evaluated exactly.
    pub evaluated: usize,
    /// All candidates.
    pub total: usize,
    /// The best value so far.
    pub best: Option<f64>,
}

/// The answer of a search.
#[derive(Debug, Clone)]
pub struct Answer<E> {
    /// How each candidate was decided.
    pub outcomes: Vec<Outcome<E>>,
    /// The front of value (second) against cost (first) over all evaluated candidates.
    pub front: Front,
    /// The candidate of the best value; among equals the cheapest.
    pub best: Option<usize>,
    /// No candidate's value is below this; `None` when nothing is feasible and nothing is open.
    pub lower_bound: Option<f64>,
}

/// A candidate waiting in the queue: smallest bound first, then the caller's order.
struct Waiting {
    bound: f64,
    candidate: usize,
    fine: bool,
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl Eq for Waiting {}
impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> Ordering {
        // BinaryHeap takes the largest first.
        other.bound.total_cmp(&self.bound).then(other.candidate.cmp(&self.candidate))
    }
}

/// Searches all candidates of `problem`, evaluating at most `limit` of them exactly.
pub fn run<P: Problem>(problem: &P, limit: usize, progress: &(dyn Fn(Progress) + Sync)) -> Answer<P::Evaluation> {
    let total = problem.candidates();
    let mut queue: BinaryHeap<Waiting> = (0..total)
        .into_par_iter()
        .map(|candidate| Waiting { bound: problem.coarse_bound(candidate), candidate, fine: false })
        .collect::<Vec<_>>()
        .into();
    let mut outcomes: Vec<Option<Outcome<P::Evaluation>>> = (0..total).map(|_| None).collect();
    let mut front = Front::default();
    let (mut decided, mut evaluated) = (0, 0);
    while evaluated < limit && !queue.is_empty() {
        let (coarse, fine) = take_round(problem, &mut queue, &front, &mut outcomes, &mut decided, limit - evaluated);
        let refined: Vec<Waiting> = coarse
            .into_par_iter()
            .map(|w| {
                let cutoff = front.best_within(problem.cost(w.candidate)).map_or(f64::INFINITY, |rival| rival.second);
                let bound = problem.fine_bound(w.candidate, cutoff).max(w.bound);
                Waiting { bound, candidate: w.candidate, fine: true }
            })
            .collect();
        queue.extend(refined);
        let rivals: Vec<Option<FrontPoint>> = fine.iter().map(|w| front.best_within(problem.cost(w.candidate))).collect();
        let evaluate = |(w, rival): (&Waiting, &Option<FrontPoint>)| {
            problem.evaluate(w.candidate, rival.map_or(f64::INFINITY, |r| r.second))
        };
        // One by one: a core that took several would keep them while another is idle.
        let answers: Vec<_> = fine.par_iter().zip(&rivals).with_max_len(1).map(evaluate).collect();
        for ((waiting, rival), verdict) in fine.iter().zip(&rivals).zip(answers) {
            let candidate = waiting.candidate;
            evaluated += 1;
            decided += 1;
            outcomes[candidate] = Some(match (verdict, rival) {
                (Verdict::Feasible { value, cost, evaluation }, _) => {
                    let first = cost.unwrap_or_else(|| problem.cost(candidate));
                    front.insert(FrontPoint { first, second: value, id: candidate });
                    Outcome::Evaluated { value, evaluation }
                }
                (Verdict::Infeasible(evaluation), _) => Outcome::Infeasible { evaluation },
                (Verdict::Beaten(bound), Some(rival)) => Outcome::Pruned { bound: bound.max(waiting.bound), by: rival.id },
                // Nothing to be beaten by: an evaluation that gives up all the same has only shown its bound.
                (Verdict::Beaten(bound), None) => Outcome::Open { bound: bound.max(waiting.bound) },
            });
        }
        progress(Progress { decided, evaluated, total, best: front.points().last().map(|p| p.second) });
    }
    let open_bound = queue.peek().map(|w| w.bound);
    for waiting in queue {
        let cost = problem.cost(waiting.candidate);
        outcomes[waiting.candidate] = Some(match front.dominator(cost, waiting.bound) {
            Some(by) => Outcome::Pruned { bound: waiting.bound, by: by.id },
            None => Outcome::Open { bound: waiting.bound },
        });
    }
    let best = front.points().last();
    let lower_bound = match (best, open_bound) {
        (Some(best), Some(open)) => Some(best.second.min(open)),
        (Some(best), None) => Some(best.second),
        (None, open) => open,
    };
    Answer { outcomes: outcomes.into_iter().flatten().collect(), best: best.map(|p| p.id), front, lower_bound }
}

/// Takes the next candidates off the queue: those that still need a fine bound, and those to evaluate. What the front dominates is
/// decided on the way.
fn take_round<P: Problem>(
    problem: &P,
    queue: &mut BinaryHeap<Waiting>,
    front: &Front,
    outcomes: &mut [Option<Outcome<P::Evaluation>>],
    decided: &mut usize,
    room: usize,
) -> (Vec<Waiting>, Vec<Waiting>) {
    let (mut coarse, mut fine) = (Vec::new(), Vec::new());
    // Fine bounds are cheap beside evaluations: a round holds many more of them.
    while coarse.len() < 16 * ROUND && fine.len() < ROUND.min(room) {
        // A candidate whose bound is above that of one waiting for its fine bound may not be next: evaluate only while none waits.
        if !coarse.is_empty() && queue.peek().is_some_and(|w| w.fine) {
            break;
        }
        let Some(waiting) = queue.pop() else { break };
        if let Some(by) = front.dominator(problem.cost(waiting.candidate), waiting.bound) {
            outcomes[waiting.candidate] = Some(Outcome::Pruned { bound: waiting.bound, by: by.id });
            *decided += 1;
        } else if waiting.fine {
            fine.push(waiting);
        } else {
            coarse.push(waiting);
        }
    }
    (coarse, fine)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::panic)]
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug)]
    struct Toy {
        items: Vec<(u8, Option<u8>, u8)>,
        costs_known_late: bool,
    }

    impl Toy {
        /// The exact cost, at least the one that is known at once.
        fn exact(&self, c: usize) -> f64 {
            let (cost, _, slack) = self.items[c];
            f64::from(cost) + if self.costs_known_late { f64::from(slack % 3) } else { 0.0 }
        }
    }

    impl Problem for Toy {
        type Evaluation = ();
        fn candidates(&self) -> usize {
            self.items.len()
        }
        fn cost(&self, c: usize) -> f64 {
            f64::from(self.items[c].0)
        }
        fn coarse_bound(&self, c: usize) -> f64 {
            self.fine_bound(c, f64::INFINITY) / 2.0
        }
        fn fine_bound(&self, c: usize, _cutoff: f64) -> f64 {
            let (_, value, slack) = self.items[c];
            f64::from(value.unwrap_or(255).saturating_sub(slack))
        }
        fn evaluate(&self, c: usize, cutoff: f64) -> Verdict<()> {
            match self.items[c].1.map(f64::from) {
                Some(value) if value >= cutoff => Verdict::Beaten(cutoff),
                Some(value) => Verdict::Feasible { value, cost: self.costs_known_late.then(|| self.exact(c)), evaluation: () },
                None => Verdict::Infeasible(()),
            }
        }
    }

    fn toy() -> impl Strategy<Value = Toy> {
        let items = proptest::collection::vec((0u8..50, proptest::option::weighted(0.8, 0u8..100), 0u8..10), 0..200);
        (items, any::<bool>()).prop_map(|(items, costs_known_late)| Toy { items, costs_known_late })
    }

    proptest! {
        #[test]
        fn finds_the_true_front_and_proves_it(toy in toy()) {
            let answer = run(&toy, usize::MAX, &|_| {});
            prop_assert_eq!(answer.outcomes.len(), toy.items.len());
            let mut truth = Front::default();
            for (id, item) in toy.items.iter().enumerate() {
                if let Some(v) = item.1 {
                    truth.insert(FrontPoint { first: toy.exact(id), second: f64::from(v), id });
                }
            }
            let pairs = |f: &Front| f.points().iter().map(|p| (p.first, p.second)).collect::<Vec<_>>();
            prop_assert_eq!(pairs(&answer.front), pairs(&truth));
            prop_assert_eq!(answer.lower_bound, truth.points().last().map(|p| p.second));
        }

        #[test]
        fn a_limited_search_never_claims_more_than_it_proved(toy in toy(), limit in 1usize..20) {
            let answer = run(&toy, limit, &|_| {});
            let truth = toy.items.iter().filter_map(|i| i.1).min().map(f64::from);
            if let (Some(bound), Some(truth)) = (answer.lower_bound, truth) {
                prop_assert!(bound <= truth);
            }
            let evaluated = answer.outcomes.iter().filter(|o| matches!(o, Outcome::Evaluated { .. } | Outcome::Infeasible { .. })).count();
            prop_assert!(evaluated <= limit);
        }
    }
}
