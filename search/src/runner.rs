//! Best-first branch and bound over sets of candidates.
//!
//! The search splits sets until a bound prunes them whole. It evaluates exactly only the candidates that no bound
//! decides.
//!
//! Every candidate has costs and a value to minimise. A cost is known at once (die area) or bounded from below
//! (energy). The value (step time) is expensive and has lower bounds. A set has the least of each over its candidates.
//!
//! A set is pruned when an evaluated candidate costs no more along any axis and its value is no larger than the set's
//! bound. The remaining candidates are the Pareto front of value against costs, with the best value among them. On ties
//! the smallest candidate number wins, as if candidates had been evaluated in their order.
//!
//! Sets are processed in rounds of a fixed size, and the front changes only between rounds. So the answer is the same
//! for any number of threads.

mod among;
mod standing;

use crate::pareto::{Front, FrontCosts, FrontPoint};
use crate::space::OutsideReason;
use among::OtherShards;
pub use among::{NoExchange, ShardExchange};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};
pub use standing::{DecisionCounts, RunnerProgress, SearchMoment};
use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::fmt::Debug;

/// Candidates evaluated per round: enough to keep some cores busy, few enough that a better front prunes soon.
const ROUND: usize = 16;
/// Limit on the weight of refinements per round. Refinements are cheap beside evaluations.
const LOOKS: usize = 256;
/// Weight of splitting a set; refining a single candidate weighs 1. A split computes several bounds.
const SPLITTING: usize = 4;

/// A set of candidates with common bounds.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchNode<S> {
    /// The set.
    pub set: S,
    /// Lower bounds on the costs of all its candidates.
    pub costs: FrontCosts,
    /// Lower bound on their values.
    pub bound: f64,
    /// The smallest candidate number in the set.
    pub first: usize,
    /// The source of the bound on values.
    pub shown: BoundSource,
}

/// The source of a bound on candidates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum BoundSource {
    /// Kernels at their peak rates, or at the part of the peaks that arrays and buffers allow.
    Peaks,
    /// Mapped kernels, and plans timed with them.
    Mapped,
    /// Plans timed on the way to the exact value.
    Plans,
}

/// The result of refining a set.
#[derive(Debug, Clone, PartialEq)]
pub enum NodeRefinement<S> {
    /// A better bound on the same candidates, and their set with cached data of the refinement.
    Bound(f64, S),
    /// The parts of the set, and the sets of excluded candidates.
    Parts(Vec<SearchNode<S>>, Vec<(S, Exclusion)>),
}

/// Why candidates are excluded.
#[derive(Debug, Clone, PartialEq)]
pub enum Exclusion {
    /// They exceed a limit.
    Limit(OutsideReason),
    /// They are no chips, for the given reason.
    NoChip(String),
    /// No plan fits their memory, as is known from another candidate with at least as much.
    NoPlan,
}

/// A problem for branch and bound.
pub trait SearchProblem: Sync {
    /// A set of candidates.
    type Set: Clone + Debug + Send + Sync;
    /// An exact evaluation.
    type Evaluation: Send + Sync;
    /// A partition of the candidates. Once `stop` returns true, nodes may carry the trivial bound.
    fn root_nodes(&self, stop: &(dyn Fn() -> bool + Sync)) -> Vec<SearchNode<Self::Set>>;
    /// A promising candidate to visit first. It may turn out bad.
    ///
    /// # Errors
    /// Errors that end the search.
    fn first_candidate(&self, _stop: &(dyn Fn() -> bool + Sync)) -> Result<Option<usize>, String> {
        Ok(None)
    }
    /// True if a set contains a candidate.
    fn set_contains(&self, _set: &Self::Set, _candidate: usize) -> bool {
        false
    }
    /// Evaluates a candidate that another shard owns, to prune by it from the start. `None` if it has no value.
    ///
    /// # Errors
    /// Errors that end the search.
    fn evaluate_elsewhere(&self, _candidate: usize) -> Result<Option<FrontPoint>, String> {
        Ok(None)
    }
    /// Strips a decided set of the data that only refinement needs.
    fn strip_decided_set(&self, set: Self::Set) -> Self::Set {
        set
    }
    /// The number of candidates in a set.
    fn set_size(&self, set: &Self::Set) -> u64;
    /// True if a set is one candidate, ready to be evaluated once [`BoundSource::Mapped`] bounds it.
    fn is_single(&self, set: &Self::Set) -> bool;
    /// Returns a better bound on a set ([`BoundSource::Mapped`]), or the set's parts. It may stop once it knows whether
    /// values are below `cutoff`.
    ///
    /// # Errors
    /// Errors that end the search.
    fn refine_set(&self, node: &SearchNode<Self::Set>, cutoff: f64) -> Result<NodeRefinement<Self::Set>, String>;
    /// Returns the reason why a candidate may be excluded without an evaluation; `None` if it must be evaluated. It is
    /// called for a single candidate that was found to have no value.
    fn exclude_without_value(&self, _set: &Self::Set) -> Option<Exclusion> {
        None
    }
    /// Evaluates a candidate exactly. It may stop once the value is proven to be at least `cutoff`; an infinite cutoff
    /// always asks for the value.
    fn evaluate_candidate(&self, candidate: usize, cutoff: f64) -> Verdict<Self::Evaluation>;
}

/// The result of an evaluation.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict<E> {
    /// The exact value and its details.
    Feasible {
        /// The value.
        value: f64,
        /// The exact costs, if the node has only bounds on them.
        costs: Option<FrontCosts>,
        /// The details.
        evaluation: E,
    },
    /// No value exists. Holds the reason.
    Infeasible(E),
    /// Beaten by the cutoff. Holds a lower bound on the value, which may be below the cutoff by the evaluation's own
    /// tolerance.
    Beaten(f64),
}

/// The outcome of the decision about candidates.
#[derive(Debug, Clone, PartialEq)]
pub enum CandidateOutcome<E> {
    /// Evaluated: feasible with this value.
    Evaluated {
        /// The exact value.
        value: f64,
        /// The details of the evaluation.
        evaluation: E,
    },
    /// Evaluated: not feasible.
    Infeasible {
        /// The details of the evaluation.
        evaluation: E,
    },
    /// Pruned: `by` costs no more, and its value is at most the bound, or above it within the allowed gap.
    Pruned {
        /// Lower bound on the values.
        bound: f64,
        /// The candidate that dominates them.
        by: usize,
        /// The source of the bound.
        shown: BoundSource,
    },
    /// Open: the search ended before it decided them.
    Open {
        /// Lower bound on the values.
        bound: f64,
    },
    /// Excluded: they exceed a limit, are no chips or have no plan.
    Excluded(Exclusion),
}

/// Limits on the search, and the allowed gap.
pub struct RunnerLimits<'a> {
    /// Limit on exact evaluations. The first candidate is evaluated in any case.
    pub evaluations: usize,
    /// Candidates that are better by at most this fraction need not be found.
    pub gap: f64,
    /// True to stop now. It is called before every round, refinement and evaluation. The descent to the first candidate
    /// ignores it.
    pub stop: &'a (dyn Fn() -> bool + Sync),
}

/// The answer of a search.
#[derive(Debug, Clone)]
pub struct RunnerAnswer<S, E> {
    /// Sets of candidates with their outcomes, in the order of the decisions.
    pub outcomes: Vec<(S, CandidateOutcome<E>)>,
    /// The front of value against costs, over evaluated candidates and those received from other shards.
    pub front: Front,
    /// Lower bound on the value of any candidate. `None` if no candidate is feasible and none is open.
    pub lower_bound: Option<f64>,
    /// Counts of decisions.
    pub counts: DecisionCounts,
    /// Received candidates of other shards that took part in pruning.
    pub heard: Vec<FrontPoint>,
}

/// A node in the queue. The smallest bound comes first, then the smallest first candidate.
struct QueuedNode<S>(SearchNode<S>);

impl<S> PartialEq for QueuedNode<S> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}
impl<S> Eq for QueuedNode<S> {}
impl<S> PartialOrd for QueuedNode<S> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}
impl<S> Ord for QueuedNode<S> {
    fn cmp(&self, other: &Self) -> Ordering {
        // BinaryHeap pops the largest first, so the order is reversed. Ties go to the smaller first candidate, then to
        // the more detailed bound.
        other
            .0
            .bound
            .total_cmp(&self.0.bound)
            .then(other.0.first.cmp(&self.0.first))
            .then(self.0.shown.cmp(&other.0.shown))
    }
}

type Nodes<P> = Vec<SearchNode<<P as SearchProblem>::Set>>;

/// The state of a search.
struct RunnerState<'a, P: SearchProblem> {
    problem: &'a P,
    gap: f64,
    stop: &'a (dyn Fn() -> bool + Sync),
    queue: BinaryHeap<QueuedNode<P::Set>>,
    outcomes: Vec<(P::Set, CandidateOutcome<P::Evaluation>)>,
    front: Front,
    counts: DecisionCounts,
    total: u64,
    decided: u64,
    /// Least bound of the sets pruned so far; within the gap, their candidates may be better than the best.
    left: f64,
}

/// Searches all candidates of `problem`. Calls `told` after the first evaluation and after every round, so the calls do
/// not depend on the clock.
///
/// # Errors
/// An error of [`SearchProblem::first_candidate`], [`SearchProblem::evaluate_elsewhere`] or
/// [`SearchProblem::refine_set`].
pub fn run_search<P: SearchProblem>(
    problem: &P,
    limits: &RunnerLimits<'_>,
    told: &mut dyn FnMut(RunnerProgress, SearchMoment),
) -> Result<RunnerAnswer<P::Set, P::Evaluation>, String> {
    run_search_among(problem, limits, told, &mut NoExchange)
}

/// Runs one shard of a search that exchanges results with others.
///
/// # Errors
/// As [`run_search`].
pub fn run_search_among<P: SearchProblem>(
    problem: &P,
    limits: &RunnerLimits<'_>,
    told: &mut dyn FnMut(RunnerProgress, SearchMoment),
    others: &mut dyn ShardExchange,
) -> Result<RunnerAnswer<P::Set, P::Evaluation>, String> {
    let roots = problem.root_nodes(limits.stop);
    let total = roots.iter().map(|node| problem.set_size(&node.set)).sum();
    let mut among = OtherShards::new(problem, others, &roots);
    let queue = roots.into_iter().map(QueuedNode).collect::<Vec<_>>().into();
    let (front, counts) = (Front::default(), DecisionCounts::default());
    let (gap, stop, outcomes, left) = (limits.gap, limits.stop, Vec::new(), f64::INFINITY);
    let mut run = RunnerState { problem, gap, stop, queue, outcomes, front, counts, total, decided: 0, left };
    run.exchange_with_others(&mut among);
    // Evaluates one candidate at once, so that there is an answer whenever the search is stopped.
    run.dive_to_best(&mut among)?;
    run.report_progress(told);
    while run.counts.evaluated < limits.evaluations as u64 && !run.queue.is_empty() && !(limits.stop)() {
        run.exchange_with_others(&mut among);
        let room = limits.evaluations - run.counts.evaluated as usize;
        let (looks, singles) = run.take_round(room);
        run.refine_nodes(looks)?;
        run.evaluate_nodes(singles);
        run.report_progress(told);
    }
    let lower_bound = run.lower_bound();
    run.close_stopped();
    run.send_last_to_others(&mut among);
    Ok(RunnerAnswer {
        outcomes: run.outcomes,
        front: run.front,
        lower_bound,
        counts: run.counts,
        heard: among.received_points(),
    })
}

impl<P: SearchProblem> RunnerState<'_, P> {
    fn report_progress(&self, told: &mut dyn FnMut(RunnerProgress, SearchMoment)) {
        let best = self.front.best_point().map(|point| point.value);
        let bound = self.lower_bound().unwrap_or(f64::INFINITY);
        let evaluated = self.counts.evaluated as usize;
        let progress = RunnerProgress { decided: self.decided, evaluated, total: self.total, best, bound };
        told(progress, SearchMoment { best, bound, counts: self.counts });
    }

    /// Lower bound on the value of any candidate; `None` if none is feasible or open.
    fn lower_bound(&self) -> Option<f64> {
        let best = self.front.best_point().map(|point| point.value);
        let open = self.queue.peek().map(|waiting| waiting.0.bound).into_iter().chain(best);
        open.reduce(f64::min).map(|bound| bound.min(self.left))
    }

    /// The candidate that prunes a node: it costs no more along any axis, and its value is at most the node's bound, up
    /// to the allowed gap. `None` if there is none.
    fn find_rival(&self, node: &SearchNode<P::Set>) -> Option<usize> {
        let rival = self.front.best_point_within(&node.costs)?;
        let own = FrontPoint { costs: node.costs, value: node.bound, id: node.first };
        (rival.value <= node.bound * (1.0 + self.gap) && !rival.yields_to(&own)).then_some(rival.id)
    }

    /// The value from which on the node can be pruned; infinite without a rival.
    fn cutoff_of_node(&self, node: &SearchNode<P::Set>) -> f64 {
        let Some(rival) = self.front.best_point_within(&node.costs) else { return f64::INFINITY };
        let value = if self.gap > 0.0 { rival.value / (1.0 + self.gap) } else { rival.value };
        // A candidate that ties and has a smaller number must be found.
        if rival.costs == node.costs && node.first < rival.id { value.next_up() } else { value }
    }

    fn discard_beaten(&mut self, node: SearchNode<P::Set>, by: usize) {
        let size = self.problem.set_size(&node.set);
        self.decided += size;
        let single = self.problem.is_single(&node.set);
        let counts = if single { &mut self.counts.alone } else { &mut self.counts.in_sets };
        counts[node.shown as usize] += size;
        self.left = self.left.min(node.bound);
        self.outcomes.push((
            self.problem.strip_decided_set(node.set),
            CandidateOutcome::Pruned { bound: node.bound, by, shown: node.shown },
        ));
    }

    fn exclude_set(&mut self, set: P::Set, why: Exclusion) {
        let size = self.problem.set_size(&set);
        self.decided += size;
        self.counts.excluded += size;
        self.outcomes.push((self.problem.strip_decided_set(set), CandidateOutcome::Excluded(why)));
    }

    /// True if a node can be evaluated next.
    fn is_ready(&self, node: &SearchNode<P::Set>) -> bool {
        node.shown >= BoundSource::Mapped && self.problem.is_single(&node.set)
    }

    /// Goes down from a set to one candidate and evaluates it. At each split it follows the part with the goal
    /// candidate, or the best part.
    fn dive_to_best(&mut self, among: &mut OtherShards<'_, P>) -> Result<(), String> {
        let goal = self.goal_candidate(among)?;
        let there = |node: &SearchNode<P::Set>| goal.is_some_and(|goal| self.problem.set_contains(&node.set, goal));
        let mut roots = std::mem::take(&mut self.queue).into_vec();
        let towards = roots.iter().position(|root| there(&root.0)).map(|at| roots.swap_remove(at));
        self.queue = roots.into();
        let mut next = towards.or_else(|| self.queue.pop());
        while let Some(QueuedNode(node)) = next {
            if self.is_ready(&node) {
                self.evaluate_nodes(vec![node]);
                return Ok(());
            }
            self.counts.looks += 1;
            next = match self.problem.refine_set(&node, f64::INFINITY)? {
                NodeRefinement::Bound(bound, set) => Some(QueuedNode(SearchNode {
                    set,
                    bound: bound.max(node.bound),
                    shown: BoundSource::Mapped,
                    ..node
                })),
                NodeRefinement::Parts(mut parts, excluded) => {
                    excluded.into_iter().for_each(|(set, why)| self.exclude_set(set, why));
                    let towards = parts.iter().position(there).map(|at| QueuedNode(parts.swap_remove(at)));
                    let mut parts: BinaryHeap<QueuedNode<P::Set>> = parts.into_iter().map(QueuedNode).collect();
                    let best = towards.or_else(|| parts.pop());
                    self.queue.append(&mut parts);
                    best.or_else(|| self.queue.pop())
                }
            };
        }
        Ok(())
    }

    /// Takes the next nodes off the queue: nodes to refine and nodes to evaluate. Prunes dominated nodes on the way.
    fn take_round(&mut self, room: usize) -> (Nodes<P>, Nodes<P>) {
        let (mut looks, mut singles, mut weight) = (Vec::new(), Vec::new(), 0);
        while weight < LOOKS && singles.len() < ROUND.min(room) {
            // Refined nodes may come before this candidate in the queue. So a round with refinements stops at the first
            // candidate that is ready.
            if !looks.is_empty() && self.queue.peek().is_some_and(|waiting| self.is_ready(&waiting.0)) {
                break;
            }
            let Some(QueuedNode(node)) = self.queue.pop() else { break };
            if let Some(by) = self.find_rival(&node) {
                self.discard_beaten(node, by);
            } else if self.is_ready(&node) {
                singles.push(node);
            } else {
                weight += if self.problem.is_single(&node.set) { 1 } else { SPLITTING };
                looks.push(node);
            }
        }
        (looks, singles)
    }

    fn refine_nodes(&mut self, nodes: Vec<SearchNode<P::Set>>) -> Result<(), String> {
        let cutoffs: Vec<f64> = nodes.iter().map(|node| self.cutoff_of_node(node)).collect();
        let (problem, stop) = (self.problem, self.stop);
        let look = |(node, cutoff): (&SearchNode<P::Set>, &f64)| (!stop()).then(|| problem.refine_set(node, *cutoff));
        let looked: Vec<Option<Result<NodeRefinement<P::Set>, String>>> =
            nodes.par_iter().zip(&cutoffs).with_max_len(4).map(look).collect();
        for ((node, look), cutoff) in nodes.into_iter().zip(looked).zip(cutoffs) {
            let Some(look) = look else {
                self.queue.push(QueuedNode(node));
                continue;
            };
            self.counts.looks += 1;
            let look = look?;
            // A refinement with an infinite cutoff does not stop early. So an infinite bound shows that the candidate
            // has no value.
            if let NodeRefinement::Bound(bound, set) = &look
                && bound.is_infinite()
                && cutoff.is_infinite()
                && self.problem.is_single(set)
                && let Some(why) = self.problem.exclude_without_value(set)
            {
                self.exclude_set(set.clone(), why);
                continue;
            }
            match look {
                NodeRefinement::Bound(bound, set) => {
                    self.queue.push(QueuedNode(SearchNode {
                        set,
                        bound: bound.max(node.bound),
                        shown: BoundSource::Mapped,
                        ..node
                    }));
                }
                NodeRefinement::Parts(parts, excluded) => {
                    excluded.into_iter().for_each(|(set, why)| self.exclude_set(set, why));
                    for part in parts {
                        match self.find_rival(&part) {
                            Some(by) => self.discard_beaten(part, by),
                            None => self.queue.push(QueuedNode(part)),
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn evaluate_nodes(&mut self, nodes: Vec<SearchNode<P::Set>>) {
        let cutoffs: Vec<f64> = nodes.iter().map(|node| self.cutoff_of_node(node)).collect();
        let rivals: Vec<Option<FrontPoint>> =
            nodes.iter().map(|node| self.front.best_point_within(&node.costs)).collect();
        let (problem, stop, first) = (self.problem, self.stop, self.counts.evaluated == 0);
        let evaluate = |(node, cutoff): (&SearchNode<P::Set>, &f64)| {
            (first || !stop()).then(|| problem.evaluate_candidate(node.first, *cutoff))
        };
        // One item per task: otherwise one core would hold several while another is idle.
        let answers: Vec<Option<Verdict<P::Evaluation>>> =
            nodes.par_iter().zip(&cutoffs).with_max_len(1).map(evaluate).collect();
        for ((node, rival), verdict) in nodes.into_iter().zip(rivals).zip(answers) {
            let Some(verdict) = verdict else {
                self.queue.push(QueuedNode(node));
                continue;
            };
            self.counts.evaluated += 1;
            self.decided += 1;
            let outcome = match (verdict, rival) {
                (Verdict::Feasible { value, costs, evaluation }, _) => {
                    self.front.insert_by_id(FrontPoint { costs: costs.unwrap_or(node.costs), value, id: node.first });
                    CandidateOutcome::Evaluated { value, evaluation }
                }
                (Verdict::Infeasible(evaluation), _) => {
                    self.counts.infeasible += 1;
                    CandidateOutcome::Infeasible { evaluation }
                }
                (Verdict::Beaten(bound), Some(rival)) => {
                    self.counts.alone[BoundSource::Plans as usize] += 1;
                    let bound = bound.max(node.bound);
                    self.left = self.left.min(bound);
                    CandidateOutcome::Pruned { bound, by: rival.id, shown: BoundSource::Plans }
                }
                // Without a rival, nothing can be pruned. An evaluation that stops early anyway has only proven its
                // bound.
                (Verdict::Beaten(bound), None) => {
                    self.left = self.left.min(bound.max(node.bound));
                    CandidateOutcome::Open { bound: bound.max(node.bound) }
                }
            };
            self.outcomes.push((problem.strip_decided_set(node.set), outcome));
        }
    }

    /// Decides the remaining nodes when the search is stopped.
    fn close_stopped(&mut self) {
        for QueuedNode(node) in std::mem::take(&mut self.queue).into_sorted_vec().into_iter().rev() {
            match self.find_rival(&node) {
                Some(by) => self.discard_beaten(node, by),
                None => self
                    .outcomes
                    .push((self.problem.strip_decided_set(node.set), CandidateOutcome::Open { bound: node.bound })),
            }
        }
    }
}

#[cfg(test)]
#[path = "runner_tests.rs"]
mod tests;
