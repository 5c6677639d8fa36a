//! Exact search over partial schedules, layer by layer: dynamic programming over down-sets.
//!
//! A state is a down-set of operators that have started, the time `t` of the latest start, and which of them still run until when.
//! Operators are added in the order of their starts, each as early as it can at or after `t`, so that every active schedule is a path. An
//! operator across all cores is a barrier at which a state shrinks to its down-set, so this is the barrier recurrence
//! f(I+i) <= f(I) + exc(i), f(I+S) <= f(I) + R(S) with R(S), the makespan of S with one core each, built up operator by operator.
//!
//! What keeps it small: a state that another one of the same down-set dominates is dropped, and so is one dominated by a state that has
//! started one operator more; extensions that are not needed are not tried (see `moves`); a state whose lower bound meets the best schedule
//! is dropped; the time of a state moves on to the earliest at which anything more can start, which makes more states comparable.
//!
//! Layer `k` holds states of `k` operators. The search comes in waves: each goes through all layers and extends the best states of
//! each that no wave has extended before, so that nothing is done twice (a complete anytime beam search: Zhang, "Complete anytime beam
//! search", 1998, that keeps what it has). A wave that leaves no state has proved the best schedule; the least bound among those
//! it leaves is a lower bound for the whole piece. Waves grow from a quick beam to the whole space; all of it is
//! counted in steps, so the answer does not depend on the machine.
//!
//! States that have been extended go on dominating new ones. As long as there is a completion better than all known schedules, there is a
//! state that has it and that has not been extended. For take, of all states generated that have one, those with most operators. One
//! of them has not been dropped: what drops a state has all that state's completions, without the operator that it may have started
//! besides, so it is one of them too; it was there when it dropped the state, and if it is dropped itself, that happens later. And that one has not
//! been extended: one of its extensions has such a completion (see `moves`), and so has what dominates that, with an operator more.

use super::bounds::{OperatorBitset, first_operators, set_members};
use super::layer::{DEAD, NONE, ScheduleMove, SearchState, StateLayer, StateSummary, TrailStep};
use super::left::{RemainingCache, RemainingOperators};
use super::list::PieceSchedule;
use super::state::{NO_SLOT, RunningOperator, Searcher, SinceIdle};

/// How many states of the same down-set a new one is compared with.
const COMPARED: usize = 48;
/// How many it is compared with before its bound is worked out, which costs more than a few comparisons: a third of new states
/// fall to one.
const LOOKED: usize = 4;
/// How many states of each down-set that has an operator more a state is compared with before it is extended:
/// tried 4, 8 and 16 on three slow passes of models, counting instructions.
const COMPARED_AHEAD: usize = 8;
/// A layer has room for this many states: some hundred bytes each.
const MOST_STATES: usize = 1 << 20;

/// What one wave found.
#[derive(Debug, Clone)]
pub(super) struct WaveOutcome {
    /// A schedule better than the one it was given.
    pub found: Option<PieceSchedule>,
    /// No schedule is below this (or below the best schedule known).
    pub lower_bound: u64,
    /// States generated.
    pub steps: u64,
}

/// The search, as far as it has come.
pub(super) struct Exploration<'s, 'a> {
    searcher: &'s Searcher<'a>,
    best: u64,
    found: Option<PieceSchedule>,
    /// The least bound of states for which there was no room.
    dropped: u64,
    steps: u64,
    budget: u64,
    trail: Vec<TrailStep>,
    /// The states of as many operators as the index says.
    layers: Vec<StateLayer>,
    /// The layer that is being extended.
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
    /// Nothing but the empty schedule.
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
        layers[0].push(empty, StateSummary::summarise((0, &[]), 0), &[]);
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

    /// Goes on, for a schedule below `best`: extends at most `width` more states of each layer, and no more once `budget` steps are done.
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
        let open = self.layers.iter().filter_map(|layer| layer.open.iter().map(|&at| layer.nodes[at as usize].bound).min()).min();
        WaveOutcome { lower_bound: self.dropped.min(open.unwrap_or(best)).min(best), found: self.found.take(), steps: self.steps }
    }

    /// Extends the best states of a layer that have not been.
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
            if self.is_overtaken((&node, &layer.known[at as usize]), layer.runs_of_summary(&node), left.ready) {
                continue;
            }
            let parent = if depth == 0 { NONE } else { self.remember_state(&node) };
            self.searcher.list_moves(&node, layer.runs_of_summary(&node), &mut moves);
            for step in moves.drain(..) {
                self.extend_state((&node, left), parent, layer.runs_of_summary(&node), step, &mut runs);
            }
        }
        (self.moves, self.runs, self.lefts) = (moves, runs, lefts);
    }

    /// Takes the best `width` states of a layer from those that have not been extended, by time: of two states the earlier one leads sooner to
    /// states that dominate the other.
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
        (node, left): (&SearchState, &RemainingOperators),
        parent: u32,
        before: &[RunningOperator],
        step: ScheduleMove,
        runs: &mut Vec<RunningOperator>,
    ) {
        self.steps += 1;
        let piece = self.searcher.piece;
        let set = node.set | 1 << step.op;
        // Cores that an operator across all of them holds are free again when it ends; with no links in play nothing can start earlier.
        let time = if step.exclusive && self.searcher.barriers { step.finish } else { step.start };
        let shortest = piece.shortest_latency(step.op as usize);
        self.runs_after_start(before, step, time, runs);
        if set == first_operators(piece.operator_count()) {
            let makespan = runs.last().map_or(time, |r| r.finish).max(time);
            if makespan < self.best {
                self.best = makespan;
                self.found = Some(self.trace_schedule(parent, step, makespan));
            }
            return;
        }
        let (idle, since) = if runs.is_empty() {
            (set, SinceIdle { idle: time, work: 0 })
        } else if before.iter().all(|r| r.finish <= step.start) {
            (node.set, SinceIdle { idle: step.start, work: shortest })
        } else {
            (node.idle, SinceIdle { work: node.since.work + shortest, ..node.since })
        };
        let mut settled = node.settled & !(1 << step.op);
        if self.searcher.barriers && idle == node.set && !step.exclusive {
            let Some(known) = self.searcher.settle_idle_operators(left.ready & !(1 << step.op)) else { return };
            settled = known;
        }
        let known = StateSummary::summarise((time, runs), settled);
        if self.is_dominated(LOOKED, set, &known, runs) {
            return;
        }
        let adds = self.searcher.increments_without(&left.adds, step.op as usize);
        let (bound, guide, next) =
            self.searcher.lower_bound_of_state((set, left, step.op), (time, runs), (since, &adds), self.best, &mut self.ends);
        let bound = bound.max(node.bound);
        if bound < self.best {
            // Nothing starts before `next`: what ends until then might as well have ended.
            let (mut time, mut idle, mut since) = (time, idle, since);
            if next > time {
                let idle_from = runs.last().map(|r| r.finish);
                time = next;
                runs.retain(|r| r.finish > time);
                if let Some(from) = idle_from
                    && runs.is_empty()
                {
                    (idle, since) = (set, SinceIdle { idle: from, work: 0 });
                }
            }
            self.insert_state(SearchState { set, time, bound, guide, runs: (0, 0), idle, since, settled, step, parent }, runs);
        }
    }

    /// What runs at `time`, once `step` has started beside what ran before.
    fn runs_after_start(&self, before: &[RunningOperator], step: ScheduleMove, time: u64, runs: &mut Vec<RunningOperator>) {
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
            let run =
                RunningOperator { finish: step.finish, op: step.op, exclusive: step.exclusive, slot: step.slot, need, beside };
            let at = runs.partition_point(|r| *r < run);
            runs.insert(at, run);
        }
    }

    /// Whether one of the first `count` states of a down-set in the next layer dominates a state that has started no more than that set.
    fn is_dominated(&self, count: usize, set: OperatorBitset, mine: &StateSummary, runs: &[RunningOperator]) -> bool {
        let layer = &self.next;
        let mut at = layer.heads.get(&set).copied().unwrap_or(NONE);
        for _ in 0..count {
            if at == NONE {
                return false;
            }
            let other = &layer.known[at as usize];
            if other.may_dominate_by_sums(mine)
                && self.searcher.dominates_state((other.time, layer.runs_of_state(other)), (mine.time, runs), set)
            {
                return true;
            }
            at = other.next;
        }
        false
    }

    /// Whether a state of the next layer dominates this one with one of the operators that are `ready` started besides.
    fn is_overtaken(
        &self,
        (node, known): (&SearchState, &StateSummary),
        runs: &[RunningOperator],
        ready: OperatorBitset,
    ) -> bool {
        set_members(ready).any(|i| self.is_dominated(COMPARED_AHEAD, node.set | 1 << i, known, runs))
    }

    /// Adds a state to the next layer unless one there dominates it, and drops those that it dominates.
    fn insert_state(&mut self, node: SearchState, runs: &[RunningOperator]) {
        let (searcher, layer) = (self.searcher, &mut self.next);
        let known = StateSummary::summarise((node.time, runs), node.settled);
        let mut at = layer.heads.get(&node.set).copied().unwrap_or(NONE);
        let mut before = NONE;
        for _ in 0..COMPARED {
            if at == NONE {
                break;
            }
            let other = layer.known[at as usize];
            let [mine, theirs] = [(node.time, runs), (other.time, layer.runs_of_state(&other))];
            debug_assert!(other.holds_no_more(&known) || !searcher.dominates_state(theirs, mine, node.set));
            debug_assert!(known.holds_no_more(&other) || !searcher.dominates_state(mine, theirs, node.set));
            if other.may_dominate_by_sums(&known) && searcher.dominates_state(theirs, mine, node.set) {
                // What dominates one often dominates the next: it is looked at first.
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

    /// Which states are extended first: those of the lowest bounds; the sum of the bounds tells more states apart than the largest does.
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
