//! Exact search over partial schedules, layer by layer: dynamic programming over down-sets.
//!
//! A state holds the down-set of operators that have started, the time `t` of the latest start, and the end of each
//! operator that still runs. Operators are added in the order of their starts, each as early as possible at or after
//! `t`, so every active schedule is a path. An operator across all cores is a barrier at which a state shrinks to its
//! down-set. The search therefore builds the barrier recurrence f(I+i) <= f(I) + exc(i), f(I+S) <= f(I) + R(S) operator
//! by operator. Here R(S) is the makespan of S with one core for each operator.
//!
//! Five rules keep it small:
//! - A state is dropped when another state of the same down-set dominates it.
//! - A state is dropped when a state that has started one more operator dominates it.
//! - Extensions that no optimum needs are not tried (see `moves`).
//! - A state is pruned when its lower bound reaches the best makespan.
//! - The time of a state advances to the earliest next start, which makes more states comparable.
//!
//! Layer `k` holds states of `k` operators. Each wave goes through all layers. In each it extends the best states that
//! no wave has extended before, so no work is repeated. This is a complete anytime beam search (Zhang, "Complete
//! anytime beam search", 1998) that keeps its states. A wave that leaves no open state has proved the best schedule.
//! Otherwise the least bound of the open states is a lower bound for the whole piece. Waves widen from a narrow beam to
//! the whole space. All work is counted in steps, so the answer does not depend on the machine.
//!
//! Extended states go on dominating new ones. This loses no optimum: while some completion beats all known schedules,
//! an unextended state has one. Proof:
//! - Take the generated states that have such a completion, and of these the ones with most operators.
//! - One of them has not been dropped. A dominating state has all completions of the dropped one, without any operator
//!   that it has already started, so the dominating state is one of them too. It existed when it dropped the other; if
//!   it is dropped itself, that happens later.
//! - The kept state has not been extended. Otherwise one of its extensions has such a completion (see `moves`), or
//!   the state that dominates this extension has, with one more operator.

use super::bounds::{OperatorBitset, first_operators, set_members};
use super::layer::{DEAD, NONE, ScheduleMove, SearchState, StateLayer, StateSummary, TrailStep};
use super::left::RemainingCache;
use super::list::PieceSchedule;
use super::remaining::RemainingOperators;
use super::running::{NO_SLOT, RunningOperator, RunsAt, SinceIdle};
use super::state::{Searcher, StartedSet, StateBound};

/// Most states of the same down-set with which a new state is compared.
const COMPARED: usize = 48;
/// Most states with which a new state is compared before its bound is computed. A bound costs more than a few
/// comparisons, and one of these states dominates a third of the new states.
const LOOKED: usize = 4;
/// Most states of each down-set with one more operator with which a state is compared before it is extended. Chosen
/// among 4, 8 and 16 by instruction counts on three slow passes of models.
const COMPARED_AHEAD: usize = 8;
/// Capacity of a layer in states of some hundred bytes each.
const MOST_STATES: usize = 1 << 20;

/// The result of one wave.
#[derive(Debug, Clone)]
pub(super) struct WaveOutcome {
    /// A schedule better than the given one, if the wave found one.
    pub found: Option<PieceSchedule>,
    /// A lower bound on every schedule; at most the best makespan known.
    pub lower_bound: u64,
    /// States generated.
    pub steps: u64,
}

/// The operators that had started when all cores were last idle, and the work since then.
struct LastIdle {
    set: OperatorBitset,
    since: SinceIdle,
}

/// Advances a state to `next`, the earliest next start. Operators that end until then count as ended.
#[inline]
fn advance_to_start(state: &mut SearchState, next: u64, runs: &mut Vec<RunningOperator>) {
    let idle_from = runs.last().map(|r| r.finish);
    state.time = next;
    runs.retain(|r| r.finish > next);
    if let Some(from) = idle_from
        && runs.is_empty()
    {
        (state.idle, state.since) = (state.set, SinceIdle { idle: from, work: 0 });
    }
}

/// A search that successive waves continue.
pub(super) struct Exploration<'s, 'a> {
    searcher: &'s Searcher<'a>,
    best: u64,
    found: Option<PieceSchedule>,
    /// The least bound of the states that were dropped because a layer was full.
    dropped: u64,
    steps: u64,
    budget: u64,
    trail: Vec<TrailStep>,
    /// By index: the states with this number of operators.
    layers: Vec<StateLayer>,
    /// The layer that receives the extensions.
    next: StateLayer,
    lefts: RemainingCache,
    moves: Vec<ScheduleMove>,
    runs: Vec<RunningOperator>,
    ends: Vec<u64>,
}

impl Drop for Exploration<'_, '_> {
    fn drop(&mut self) {
        self.layers.drain(..).for_each(StateLayer::keep_as_spare);
    }
}

impl<'s, 'a> Exploration<'s, 'a> {
    /// Creates a search that holds only the empty schedule.
    pub fn new(searcher: &'s Searcher<'a>) -> Self {
        let n = searcher.piece.operator_count();
        let mut layers: Vec<StateLayer> = Vec::new();
        layers.resize_with(n + 1, StateLayer::default);
        let nothing = ScheduleMove { op: 0, exclusive: false, slot: NO_SLOT, start: 0, finish: 0 };
        let empty = SearchState {
            set: 0,
            time: 0,
            bound: 0,
            guide: 0,
            runs: (0, 0),
            idle: 0,
            since: SinceIdle::default(),
            settled: 0,
            step: nothing,
            parent: NONE,
        };
        layers[0].push(empty, StateSummary::summarise(RunsAt { time: 0, runs: &[] }, 0), &[]);
        Self {
            searcher,
            best: u64::MAX,
            found: None,
            dropped: u64::MAX,
            steps: 0,
            budget: 0,
            trail: Vec::new(),
            layers,
            next: StateLayer::default(),
            lefts: RemainingCache::default(),
            moves: Vec::new(),
            runs: Vec::new(),
            ends: vec![0; n],
        }
    }

    /// Continues the search for a schedule with a makespan below `best`. Extends at most `width` more states of each
    /// layer, and stops after `budget` steps.
    pub fn search_wave(&mut self, best: u64, width: usize, budget: u64) -> WaveOutcome {
        (self.best, self.found, self.steps, self.budget) = (best, None, 0, budget);
        let mut closed = true;
        for depth in 0..self.ends.len() {
            let mut layer = std::mem::take(&mut self.layers[depth]);
            self.next = std::mem::take(&mut self.layers[depth + 1]);
            if self.next.nodes.is_empty() {
                self.next = StateLayer::take_spare();
            }
            self.extend_best(depth, &mut layer, width);
            self.layers[depth + 1] = std::mem::take(&mut self.next);
            closed &= layer.open.is_empty();
            if closed {
                layer.keep_as_spare();
            } else {
                self.layers[depth] = layer;
            }
        }
        let best = self.best;
        let open = self
            .layers
            .iter()
            .filter_map(|layer| layer.open.iter().map(|&at| layer.nodes[at as usize].bound).min())
            .min();
        WaveOutcome {
            lower_bound: self.dropped.min(open.unwrap_or(best)).min(best),
            found: self.found.take(),
            steps: self.steps,
        }
    }

    /// Extends the best unextended states of a layer.
    fn extend_best(&mut self, depth: usize, layer: &mut StateLayer, width: usize) {
        let chosen = self.choose_states(layer, width);
        let (mut moves, mut runs, mut lefts) =
            (std::mem::take(&mut self.moves), std::mem::take(&mut self.runs), std::mem::take(&mut self.lefts));
        for (k, &at) in chosen.iter().enumerate() {
            let node = layer.nodes[at as usize];
            if node.bound >= self.best {
                continue;
            }
            if self.steps >= self.budget {
                layer.open.extend(&chosen[k..]);
                break;
            }
            let left = lefts.find_or_compute(self.searcher, node.set);
            if self.is_overtaken(&node, &layer.known[at as usize], layer.runs_of_state(&node), left.ready) {
                continue;
            }
            let parent = if depth == 0 { NONE } else { self.remember_state(&node) };
            self.searcher.list_moves(&node, layer.runs_of_state(&node), &mut moves);
            for step in moves.drain(..) {
                self.extend_state(&node, left, parent, layer.runs_of_state(&node), step, &mut runs);
            }
        }
        (self.moves, self.runs, self.lefts) = (moves, runs, lefts);
    }

    /// Takes the best `width` unextended states out of a layer and returns them in order of time. Earlier states come
    /// first because their successors are more likely to dominate.
    fn choose_states(&self, layer: &mut StateLayer, width: usize) -> Vec<u32> {
        let (nodes, best) = (&layer.nodes, self.best);
        layer.open.retain(|&at| nodes[at as usize].bound < best);
        let mut chosen = std::mem::take(&mut layer.open);
        if chosen.len() > width {
            let mut ranked: Vec<_> = chosen.drain(..).map(|at| (Self::rank_state(&nodes[at as usize]), at)).collect();
            ranked.select_nth_unstable(width);
            layer.open.extend(ranked.drain(width..).map(|r| r.1));
            chosen.extend(ranked.into_iter().map(|r| r.1));
        }
        let mut timed: Vec<_> = chosen.iter().map(|&at| (nodes[at as usize].time, at)).collect();
        let rank = |at: u32| Self::rank_state(&nodes[at as usize]);
        timed.sort_unstable_by(|a, b| a.0.cmp(&b.0).then_with(|| rank(a.1).cmp(&rank(b.1))));
        timed.into_iter().map(|t| t.1).collect()
    }

    fn drop_state(&mut self, bound: u64) {
        if bound < self.best {
            self.dropped = self.dropped.min(bound);
        }
    }

    fn remember_state(&mut self, node: &SearchState) -> u32 {
        self.trail.push(TrailStep { parent: node.parent, step: node.step });
        (self.trail.len() - 1) as u32
    }

    fn extend_state(
        &mut self,
        node: &SearchState,
        left: &RemainingOperators,
        parent: u32,
        before: &[RunningOperator],
        step: ScheduleMove,
        runs: &mut Vec<RunningOperator>,
    ) {
        self.steps += 1;
        let set = node.set | 1 << step.op;
        // The cores of an operator across all cores are free again when it ends. Without links nothing can start
        // earlier.
        let time = if step.exclusive && self.searcher.barriers { step.finish } else { step.start };
        self.runs_after_start(before, step, time, runs);
        if set == first_operators(self.searcher.piece.operator_count()) {
            let makespan = runs.last().map_or(time, |r| r.finish).max(time);
            if makespan < self.best {
                self.best = makespan;
                self.found = Some(self.trace_schedule(parent, step, makespan));
            }
            return;
        }
        let LastIdle { set: idle, since } = if runs.is_empty() {
            LastIdle { set, since: SinceIdle { idle: time, work: 0 } }
        } else {
            self.idle_before_start(node, before, step)
        };
        let mut settled = node.settled & !(1 << step.op);
        if self.searcher.barriers && idle == node.set && !step.exclusive {
            let Some(known) = self.searcher.settle_idle_operators(left.ready & !(1 << step.op)) else { return };
            settled = known;
        }
        let known = StateSummary::summarise(RunsAt { time, runs }, settled);
        if self.is_dominated(LOOKED, set, &known, runs) {
            return;
        }
        let adds = self.searcher.increments_without(&left.adds, step.op as usize);
        let StateBound { bound, guide, next } = self.searcher.lower_bound_of_state(
            StartedSet { set, left, operator: step.op },
            RunsAt { time, runs },
            since,
            &adds,
            self.best,
            &mut self.ends,
        );
        let bound = bound.max(node.bound);
        if bound < self.best {
            let mut state = SearchState { set, time, bound, guide, runs: (0, 0), idle, since, settled, step, parent };
            if next > time {
                advance_to_start(&mut state, next, runs);
            }
            self.insert_state(state, runs);
        }
    }

    /// Returns the last moment at which all cores were idle, if operators run after `step` has started.
    #[inline]
    fn idle_before_start(&self, node: &SearchState, before: &[RunningOperator], step: ScheduleMove) -> LastIdle {
        let shortest = self.searcher.piece.shortest_latency(step.op as usize);
        if before.iter().all(|r| r.finish <= step.start) {
            LastIdle { set: node.set, since: SinceIdle { idle: step.start, work: shortest } }
        } else {
            LastIdle { set: node.idle, since: SinceIdle { work: node.since.work + shortest, ..node.since } }
        }
    }

    /// Writes the operators that run at `time`, after `step` has started, into `runs`.
    fn runs_after_start(
        &self,
        before: &[RunningOperator],
        step: ScheduleMove,
        time: u64,
        runs: &mut Vec<RunningOperator>,
    ) {
        let piece = self.searcher.piece;
        let shortest = piece.shortest_latency(step.op as usize);
        let mut beside = 0;
        runs.clear();
        for run in before.iter().filter(|r| r.finish > time) {
            beside += piece.shortest_latency(run.op as usize);
            runs.push(RunningOperator { beside: run.beside + shortest, ..*run });
        }
        if step.finish > time {
            let need = self.searcher.needs[step.op as usize][usize::from(step.exclusive)];
            let run = RunningOperator {
                finish: step.finish,
                op: step.op,
                exclusive: step.exclusive,
                slot: step.slot,
                need,
                beside,
            };
            let at = runs.partition_point(|r| *r < run);
            runs.insert(at, run);
        }
    }

    /// True if one of the first `count` states of a down-set in the next layer dominates this state. The operators of
    /// this state lie in that down-set.
    fn is_dominated(&self, count: usize, set: OperatorBitset, mine: &StateSummary, runs: &[RunningOperator]) -> bool {
        let layer = &self.next;
        let mut at = layer.heads.get(&set).copied().unwrap_or(NONE);
        for _ in 0..count {
            if at == NONE {
                return false;
            }
            let other = &layer.known[at as usize];
            if other.may_dominate_by_sums(mine)
                && self.searcher.dominates_state(
                    RunsAt { time: other.time, runs: layer.runs_of_summary(other) },
                    RunsAt { time: mine.time, runs },
                    set,
                )
            {
                return true;
            }
            at = other.next;
        }
        false
    }

    /// True if a state of the next layer, with one more operator of `ready` started, dominates this one.
    fn is_overtaken(
        &self,
        node: &SearchState,
        known: &StateSummary,
        runs: &[RunningOperator],
        ready: OperatorBitset,
    ) -> bool {
        set_members(ready).any(|i| self.is_dominated(COMPARED_AHEAD, node.set | 1 << i, known, runs))
    }

    /// Adds a state to the next layer unless a state there dominates it, and drops the states that it dominates.
    fn insert_state(&mut self, node: SearchState, runs: &[RunningOperator]) {
        let (searcher, layer) = (self.searcher, &mut self.next);
        let known = StateSummary::summarise(RunsAt { time: node.time, runs }, node.settled);
        let mut at = layer.heads.get(&node.set).copied().unwrap_or(NONE);
        let mut before = NONE;
        for _ in 0..COMPARED {
            if at == NONE {
                break;
            }
            let other = layer.known[at as usize];
            let mine = RunsAt { time: node.time, runs };
            let theirs = RunsAt { time: other.time, runs: layer.runs_of_summary(&other) };
            debug_assert!(other.holds_no_more(&known) || !searcher.dominates_state(theirs, mine, node.set));
            debug_assert!(known.holds_no_more(&other) || !searcher.dominates_state(mine, theirs, node.set));
            if other.may_dominate_by_sums(&known) && searcher.dominates_state(theirs, mine, node.set) {
                // A dominating state often dominates the next one too, so move it to the front.
                if let Some(before) = layer.known.get_mut(before as usize) {
                    before.next = other.next;
                    layer.known[at as usize].next = layer.heads.insert(node.set, at).unwrap_or(NONE);
                }
                return;
            }
            if known.may_dominate_by_sums(&other) && searcher.dominates_state(mine, theirs, node.set) {
                layer.nodes[at as usize].bound = DEAD;
                match layer.known.get_mut(before as usize) {
                    Some(before) => before.next = other.next,
                    None => _ = layer.heads.insert(node.set, other.next),
                }
            } else {
                before = at;
            }
            at = other.next;
        }
        if layer.nodes.len() >= MOST_STATES {
            return self.drop_state(node.bound);
        }
        layer.push(node, known, runs);
    }

    /// Returns the sort key of the order in which states are extended: lowest bound first. The guide, a sum of bounds,
    /// separates more states than the largest bound does.
    fn rank_state(node: &SearchState) -> (u64, u64, u64, OperatorBitset, u32) {
        (node.bound, node.guide, node.time, node.set, node.runs.0)
    }

    fn trace_schedule(&self, parent: u32, last: ScheduleMove, makespan: u64) -> PieceSchedule {
        let piece = self.searcher.piece;
        let n = piece.operator_count();
        let mut found = PieceSchedule {
            makespan,
            starts: vec![0; n],
            exclusive: vec![false; n],
            slots: if piece.paired { vec![u32::MAX; n] } else { Vec::new() },
        };
        let mut put = |step: &ScheduleMove| {
            found.starts[step.op as usize] = step.start;
            found.exclusive[step.op as usize] = step.exclusive;
            if piece.paired && step.slot != NO_SLOT {
                found.slots[step.op as usize] = u32::from(step.slot);
            }
        };
        put(&last);
        let mut at = parent;
        while at != NONE {
            let step = &self.trail[at as usize];
            put(&step.step);
            at = step.parent;
        }
        found
    }
}
