//! Runs one shard of a search among others. Each shard sends its front to the others, so that all prune by it.
//!
//! Results received from other shards prune like local ones and join the front. A shard ignores received results for
//! its own candidates: it evaluates them, or prunes them by others. So every point on the merged front has been
//! evaluated by the shard that it belongs to.

use super::{RunnerState, SearchNode, SearchProblem};
use crate::pareto::FrontPoint;
use std::collections::BTreeMap;

/// Exchange of results between shards of a search.
pub trait ShardExchange {
    /// Sends the front points that this shard evaluated, and returns results of other shards. These may come at any
    /// time and in any order. Costs and values are exact.
    fn exchange_results(&mut self, own: &[FrontPoint]) -> Vec<FrontPoint>;
    /// Sends results for the last time, before the shard ends.
    fn send_last(&mut self, own: &[FrontPoint]) {
        self.exchange_results(own);
    }
    /// True if there may be other shards.
    fn is_among_others(&self) -> bool {
        true
    }
}

/// No exchange: the whole search is one shard.
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

/// The other shards and their received results.
pub(super) struct OtherShards<'a, P: SearchProblem> {
    others: &'a mut dyn ShardExchange,
    /// The shard's own candidates.
    own: Vec<P::Set>,
    heard: BTreeMap<usize, FrontPoint>,
}

impl<'a, P: SearchProblem> OtherShards<'a, P> {
    pub fn new(problem: &P, others: &'a mut dyn ShardExchange, roots: &[SearchNode<P::Set>]) -> Self {
        let own = |roots: &[SearchNode<P::Set>]| {
            roots.iter().map(|node| problem.strip_decided_set(node.set.clone())).collect()
        };
        let own = if others.is_among_others() { own(roots) } else { Vec::new() };
        Self { others, own, heard: BTreeMap::new() }
    }

    fn is_own(&self, problem: &P, candidate: usize) -> bool {
        self.own.iter().any(|set| problem.set_contains(set, candidate))
    }

    /// The received candidates of other shards, in the order of their numbers.
    pub fn received_points(self) -> Vec<FrontPoint> {
        self.heard.into_values().collect()
    }
}

impl<P: SearchProblem> RunnerState<'_, P> {
    /// Sends this shard's results and inserts those of others into the front.
    pub(super) fn exchange_with_others(&mut self, among: &mut OtherShards<'_, P>) {
        if !among.others.is_among_others() {
            return;
        }
        let own = self.own_front(among);
        for point in among.others.exchange_results(&own) {
            self.take_received(among, point);
        }
    }

    /// Sends own results at the end.
    pub(super) fn send_last_to_others(&self, among: &mut OtherShards<'_, P>) {
        let own = self.own_front(among);
        among.others.send_last(&own);
    }

    /// The points of the front that were evaluated here.
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

    /// The candidate to visit first, if any. A candidate of another shard is evaluated here only to prune by it. `None`
    /// once other shards have sent results.
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
