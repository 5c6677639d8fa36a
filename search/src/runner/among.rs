//! A search of one part among others: each tells the others of the best that it has evaluated, so that all discard by it.
//!
//! What is heard discards as what is evaluated here does, and is on the front. Of candidates of its own the part hears nothing: it evaluates them, or
//! discards them by others. So whatever is on the front of all parts' fronts has been evaluated by the part that it belongs to.

use super::{RunnerState, SearchNode, SearchProblem};
use crate::pareto::FrontPoint;
use std::collections::BTreeMap;

/// What parts of a search tell each other.
pub trait ShardExchange {
    /// Tells others what is on the front here and has been evaluated here; hears of theirs, at any time and in any order. Costs and values are exact.
    fn exchange_results(&mut self, own: &[FrontPoint]) -> Vec<FrontPoint>;
    /// Tells others for the last time, before the part ends.
    fn send_last(&mut self, own: &[FrontPoint]) {
        self.exchange_results(own);
    }
    /// Whether there may be others.
    fn is_among_others(&self) -> bool {
        true
    }
}

/// The whole search: there is nobody else.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoExchange;

impl ShardExchange for NoExchange {
    fn exchange_results(&mut self, _own: &[FrontPoint]) -> Vec<FrontPoint> {
        Vec::new()
    }

    fn is_among_others(&self) -> bool {
        false
    }
}

/// The others, and what has been heard of them.
pub(super) struct OtherShards<'a, P: SearchProblem> {
    others: &'a mut dyn ShardExchange,
    /// The part's own candidates.
    own: Vec<P::Set>,
    heard: BTreeMap<usize, FrontPoint>,
}

impl<'a, P: SearchProblem> OtherShards<'a, P> {
    pub fn new(problem: &P, others: &'a mut dyn ShardExchange, roots: &[SearchNode<P::Set>]) -> Self {
        let own = |roots: &[SearchNode<P::Set>]| roots.iter().map(|node| problem.strip_decided_set(node.set.clone())).collect();
        let own = if others.is_among_others() { own(roots) } else { Vec::new() };
        Self { others, own, heard: BTreeMap::new() }
    }

    fn is_own(&self, problem: &P, candidate: usize) -> bool {
        self.own.iter().any(|set| problem.set_contains(set, candidate))
    }

    /// Candidates of other parts, by their numbers.
    pub fn received_points(self) -> Vec<FrontPoint> {
        self.heard.into_values().collect()
    }
}

impl<P: SearchProblem> RunnerState<'_, P> {
    /// Tells the others and takes what they tell.
    pub(super) fn exchange_with_others(&mut self, among: &mut OtherShards<'_, P>) {
        if !among.others.is_among_others() {
            return;
        }
        let own = self.own_front(among);
        for point in among.others.exchange_results(&own) {
            self.take_received(among, point);
        }
    }

    /// Tells the others at the end.
    pub(super) fn send_last_to_others(&self, among: &mut OtherShards<'_, P>) {
        let own = self.own_front(among);
        among.others.send_last(&own);
    }

    /// What is on the front and has been evaluated here.
    fn own_front(&self, among: &OtherShards<'_, P>) -> Vec<FrontPoint> {
        self.front.points().iter().filter(|point| !among.heard.contains_key(&point.id)).copied().collect()
    }

    fn take_received(&mut self, among: &mut OtherShards<'_, P>, point: FrontPoint) {
        let numbers = point.value.is_finite() && point.costs.iter().all(|cost| cost.is_finite());
        if numbers && !among.heard.contains_key(&point.id) && !among.is_own(self.problem, point.id) {
            among.heard.insert(point.id, point);
            self.front.insert_by_id(point);
        }
    }

    /// The candidate to go to first. One of another part is evaluated for what it has to be held against; where others have told of theirs, none is
    /// looked for.
    pub(super) fn goal_candidate(&mut self, among: &mut OtherShards<'_, P>) -> Result<Option<usize>, String> {
        if !among.heard.is_empty() {
            return Ok(None);
        }
        let goal = self.problem.first_candidate(self.stop)?;
        if let Some(goal) = goal.filter(|goal| among.others.is_among_others() && !among.is_own(self.problem, *goal))
            && let Some(point) = self.problem.evaluate_elsewhere(goal)?
        {
            self.take_received(among, point);
        }
        Ok(goal)
    }
}
