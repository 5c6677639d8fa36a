//! Best-first branch and bound: splits sets of candidates until a bound discards them whole, evaluates exactly only the candidates that no bound
//! decides, and says how far it got.
//!
//! Every candidate has costs that are known when it is looked at (its area), or from below (its energy), and a value to be minimised that is expensive
//! (its step time), with bounds from below in between; a set has the least of each. A set is discarded when a candidate already evaluated costs no more
//! along any axis and is no slower than the set's bounds, so what remains is the Pareto front of value against costs, the best value among it. Of
//! candidates equal in all the one of the smallest number is on the front, as if they had been evaluated in their order.
//!
//! Sets are taken in rounds of a fixed size and the front changes only between rounds: the answer is the same for any number of threads.

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
/// Bounds improved per round: cheap beside evaluations.
const LOOKS: usize = 256;
/// What splitting a set counts among these: its parts are bounded several times.
const SPLITTING: usize = 4;

/// Candidates that have a bound in common, and what is known of them.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchNode<S> {
    /// Which they are.
    pub set: S,
    /// None costs less along any axis.
    pub costs: FrontCosts,
    /// None has a lower value.
    pub bound: f64,
    /// The smallest of their numbers.
    pub first: usize,
    /// What has shown the bound.
    pub shown: BoundSource,
}

/// What shows a bound of candidates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum BoundSource {
    /// The peaks of kernels, and what arrays and buffers leave of them.
    Peaks,
    /// Kernels mapped, and plans timed with them.
    Mapped,
    /// Plans on the way to the best one's exact time.
    Plans,
}

/// What a look at a set came to.
#[derive(Debug, Clone, PartialEq)]
pub enum NodeRefinement<S> {
    /// A better bound of the same candidates, with what else has been found out about them.
    Bound(f64, S),
    /// Parts of the set, and those of its candidates that need not be looked at.
    Parts(Vec<SearchNode<S>>, Vec<(S, Exclusion)>),
}

/// Why candidates are none.
#[derive(Debug, Clone, PartialEq)]
pub enum Exclusion {
    /// They are outside a limit.
    Limit(OutsideReason),
    /// They are no chips.
    NoChip(String),
}

/// What is searched.
pub trait SearchProblem: Sync {
    /// A set of candidates.
    type Set: Clone + Debug + Send + Sync;
    /// An exact evaluation.
    type Evaluation: Send + Sync;
    /// Sets that have all candidates among them, each in one; bounded no better than by nothing from where `stop` says so.
    fn root_nodes(&self, stop: &(dyn Fn() -> bool + Sync)) -> Vec<SearchNode<Self::Set>>;
    /// A candidate that may be good, to go to first. Nothing is taken for granted of it.
    ///
    /// # Errors
    /// What ends the search.
    fn first_candidate(&self, _stop: &(dyn Fn() -> bool + Sync)) -> Result<Option<usize>, String> {
        Ok(None)
    }
    /// Whether a set has a candidate.
    fn set_contains(&self, _set: &Self::Set, _candidate: usize) -> bool {
        false
    }
    /// What a candidate of another part of the search costs and its value, to have something to be held against; none where it has none.
    ///
    /// # Errors
    /// What ends the search.
    fn evaluate_elsewhere(&self, _candidate: usize) -> Result<Option<FrontPoint>, String> {
        Ok(None)
    }
    /// A set that nobody looks at any more, without what only looks need.
    fn strip_decided_set(&self, set: Self::Set) -> Self::Set {
        set
    }
    /// How many candidates a set has.
    fn set_size(&self, set: &Self::Set) -> u64;
    /// Whether a set is one candidate, to be evaluated once [`BoundSource::Mapped`] bounds it.
    fn is_single(&self, set: &Self::Set) -> bool;
    /// A better bound of a set ([`BoundSource::Mapped`]), or its parts. No more need be found out than whether values are below `cutoff`.
    ///
    /// # Errors
    /// What ends the search.
    fn refine_set(&self, node: &SearchNode<Self::Set>, cutoff: f64) -> Result<NodeRefinement<Self::Set>, String>;
    /// The exact value of a candidate, unless it is shown on the way that the value is at least `cutoff` (infinite where any value counts).
    fn evaluate_candidate(&self, candidate: usize, cutoff: f64) -> Verdict<Self::Evaluation>;
}

/// What an evaluation found.
#[derive(Debug, Clone, PartialEq)]
pub enum Verdict<E> {
    /// The exact value, and what belongs to it.
    Feasible {
        /// The value.
        value: f64,
        /// The exact costs, where those of the node are bounds.
        costs: Option<FrontCosts>,
        /// What belongs to them.
        evaluation: E,
    },
    /// There is none, and why.
    Infeasible(E),
    /// It is at least this, which is at least the cutoff.
    Beaten(f64),
}

/// How candidates were decided.
#[derive(Debug, Clone, PartialEq)]
pub enum CandidateOutcome<E> {
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
    /// Not worth evaluating: `by` costs no more and its value is no worse than the bound, or worse by no more than is allowed.
    Pruned {
        /// The lower bound of the values.
        bound: f64,
        /// The candidate that dominates them.
        by: usize,
        /// What has shown the bound.
        shown: BoundSource,
    },
    /// The search was stopped first.
    Open {
        /// The lower bound of the values.
        bound: f64,
    },
    /// No candidates.
    Excluded(Exclusion),
}

/// When a search ends before it has decided everything, and what it may leave.
pub struct RunnerLimits<'a> {
    /// Candidates evaluated exactly at most.
    pub evaluations: usize,
    /// Candidates better by no more than this fraction need not be found.
    pub gap: f64,
    /// Whether to stop now: asked before every look and every evaluation.
    pub stop: &'a (dyn Fn() -> bool + Sync),
}

/// The answer of a search.
#[derive(Debug, Clone)]
pub struct RunnerAnswer<S, E> {
    /// How sets of candidates were decided, in the order in which they were.
    pub outcomes: Vec<(S, CandidateOutcome<E>)>,
    /// The front of value against costs over all evaluated candidates.
    pub front: Front,
    /// No candidate's value is below this; `None` when nothing is feasible and nothing is open.
    pub lower_bound: Option<f64>,
    /// What was decided by what.
    pub counts: DecisionCounts,
    /// Candidates of other parts that it was held against.
    pub heard: Vec<FrontPoint>,
}

/// A node in the queue: smallest bound first, then the smallest first candidate.
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
        // BinaryHeap takes the largest first. Sets come before their parts, which may begin alike.
        other.0.bound.total_cmp(&self.0.bound).then(other.0.first.cmp(&self.0.first)).then(self.0.shown.cmp(&other.0.shown))
    }
}

type Nodes<P> = Vec<SearchNode<<P as SearchProblem>::Set>>;

/// A search under way.
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
    /// The least bound of what was discarded although it may be better, within the gap.
    left: f64,
}

/// Searches all candidates of `problem`. `progress` and `moment` are told after every round, at moments that do not depend on the clock.
///
/// # Errors
/// What [`SearchProblem::refine_set`] ends the search with.
pub fn run_search<P: SearchProblem>(
    problem: &P,
    limits: &RunnerLimits<'_>,
    told: &mut dyn FnMut(RunnerProgress, SearchMoment),
) -> Result<RunnerAnswer<P::Set, P::Evaluation>, String> {
    run_search_among(problem, limits, told, &mut NoExchange)
}

/// The same for one part of a search among others.
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
    // One candidate at once, so that there is an answer whenever the search is stopped.
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
    Ok(RunnerAnswer { outcomes: run.outcomes, front: run.front, lower_bound, counts: run.counts, heard: among.received_points() })
}

impl<P: SearchProblem> RunnerState<'_, P> {
    fn report_progress(&self, told: &mut dyn FnMut(RunnerProgress, SearchMoment)) {
        let best = self.front.best_point().map(|point| point.value);
        let bound = self.lower_bound().unwrap_or(f64::INFINITY);
        let evaluated = self.counts.evaluated as usize;
        let progress = RunnerProgress { decided: self.decided, evaluated, total: self.total, best, bound };
        told(progress, SearchMoment { best, bound, counts: self.counts });
    }

    /// No candidate's value is below this.
    fn lower_bound(&self) -> Option<f64> {
        let best = self.front.best_point().map(|point| point.value);
        let open = self.queue.peek().map(|waiting| waiting.0.bound).into_iter().chain(best);
        open.reduce(f64::min).map(|bound| bound.min(self.left))
    }

    /// Who makes a node not worth looking at: one that costs no more and is no worse, but for what is allowed.
    fn find_rival(&self, node: &SearchNode<P::Set>) -> Option<usize> {
        let rival = self.front.best_point_within(&node.costs)?;
        let own = FrontPoint { costs: node.costs, value: node.bound, id: node.first };
        (rival.value <= node.bound * (1.0 + self.gap) && !rival.yields_to(&own)).then_some(rival.id)
    }

    /// The value from which on a node is not worth looking at.
    fn cutoff_of_node(&self, node: &SearchNode<P::Set>) -> f64 {
        let Some(rival) = self.front.best_point_within(&node.costs) else { return f64::INFINITY };
        let value = if self.gap > 0.0 { rival.value / (1.0 + self.gap) } else { rival.value };
        // One that is as good and comes first is found.
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

    /// Whether a node is to be evaluated next.
    fn is_ready(&self, node: &SearchNode<P::Set>) -> bool {
        node.shown >= BoundSource::Mapped && self.problem.is_single(&node.set)
    }

    /// Follows the best of each set's parts, or the one with the candidate to go to first, to one candidate and evaluates it.
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
                NodeRefinement::Bound(bound, set) => {
                    Some(QueuedNode(SearchNode { set, bound: bound.max(node.bound), shown: BoundSource::Mapped, ..node }))
                }
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

    /// Takes the next nodes off the queue: those to look at, and those to evaluate. What the front dominates is decided on the way.
    fn take_round(&mut self, room: usize) -> (Nodes<P>, Nodes<P>) {
        let (mut looks, mut singles, mut weight) = (Vec::new(), Vec::new(), 0);
        while weight < LOOKS && singles.len() < ROUND.min(room) {
            // A candidate whose bound is above that of a node looked at may not be next: evaluate only while none is.
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
        for (node, look) in nodes.into_iter().zip(looked) {
            let Some(look) = look else {
                self.queue.push(QueuedNode(node));
                continue;
            };
            self.counts.looks += 1;
            match look? {
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
        let rivals: Vec<Option<FrontPoint>> = nodes.iter().map(|node| self.front.best_point_within(&node.costs)).collect();
        let (problem, stop, first) = (self.problem, self.stop, self.counts.evaluated == 0);
        let evaluate = |(node, cutoff): (&SearchNode<P::Set>, &f64)| {
            (first || !stop()).then(|| problem.evaluate_candidate(node.first, *cutoff))
        };
        // One by one: a core that took several would keep them while another is idle.
        let answers: Vec<Option<Verdict<P::Evaluation>>> = nodes.par_iter().zip(&cutoffs).with_max_len(1).map(evaluate).collect();
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
                // Nothing to be beaten by: an evaluation that gives up all the same has only shown its bound.
                (Verdict::Beaten(bound), None) => {
                    self.left = self.left.min(bound.max(node.bound));
                    CandidateOutcome::Open { bound: bound.max(node.bound) }
                }
            };
            self.outcomes.push((problem.strip_decided_set(node.set), outcome));
        }
    }

    /// Decides what is left when the search is stopped.
    fn close_stopped(&mut self) {
        for QueuedNode(node) in std::mem::take(&mut self.queue).into_sorted_vec().into_iter().rev() {
            match self.find_rival(&node) {
                Some(by) => self.discard_beaten(node, by),
                None => {
                    self.outcomes.push((self.problem.strip_decided_set(node.set), CandidateOutcome::Open { bound: node.bound }))
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "runner_tests.rs"]
mod tests;
