//! Exact search over partial schedules, layer by layer: dynamic programming over down-sets.
//!
//! A state is a down-set of operators that have started, the time `t` of the latest start, and which of them still run until when.
//! Operators are added in the order of their starts, each as early as it can at or after `t`, so that every active schedule is a path. An
//! operator across all cores is a barrier at which a state shrinks to its down-set, so this is the barrier recurrence
//! f(I+i) <= f(I) + exc(i), f(I+S) <= f(I) + R(S) with R(S), the makespan of S with one core each, built up operator by operator.
//!
//! What keeps it small: a state that another one with the same down-set dominates is dropped; extensions that are not needed are not
//! tried (see `moves`); a state whose lower bound meets the best schedule is dropped; the time of a state moves on to the earliest at
//! which anything more can start, which makes more states comparable. Layer `k` holds states of `k` operators and is cut to a width, best bounds first. A pass in which no layer was cut has proved its answer; the
//! least bound among states that were cut is a lower bound for the whole piece in any case. Width and direction of the
//! passes grow from a quick beam to the whole space; all of it is counted in steps, so the answer does not depend on the machine.

use super::bounds::{Set, full};
use super::layer::{DEAD, Held, Layer, Move, NONE, Node, Step};
use super::left::{Left, Lefts};
use super::list::Found;
use super::state::{NO_SLOT, Run, Searcher, Since};

/// How many states of the same down-set a new one is compared with.
const COMPARED: usize = 48;
/// How many it is compared with before its bound is worked out, which costs more than a few comparisons: a third of new states
/// fall to one.
const LOOKED: usize = 4;

/// What a pass is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Aim {
    /// Schedules.
    Schedules,
    /// Lower bounds.
    Bounds,
    /// A proof: as lower bounds, but it gives up as soon as a layer has to be cut.
    Proof,
}

/// What one pass found.
#[derive(Debug, Clone)]
pub(super) struct Pass {
    /// A schedule better than the one it was given.
    pub found: Option<Found>,
    /// No schedule is below this (or below the best schedule known).
    pub lower_bound: u64,
    /// States generated.
    pub steps: u64,
}

impl Searcher<'_> {
    /// One pass with layers of at most `width` states and at most `budget` steps, for a schedule below `best`.
    pub fn pass(&self, best: u64, width: usize, aim: Aim, budget: u64) -> Pass {
        Passing {
            searcher: self,
            best,
            found: None,
            dropped: u64::MAX,
            steps: 0,
            budget,
            width,
            aim,
            least: self.root_bound().min(best),
            trail: Vec::new(),
            next: Layer::default(),
            ends: vec![0; self.piece.n()],
        }
        .run()
    }
}

struct Passing<'s, 'a> {
    searcher: &'s Searcher<'a>,
    best: u64,
    found: Option<Found>,
    dropped: u64,
    steps: u64,
    budget: u64,
    width: usize,
    aim: Aim,
    /// A lower bound on the whole piece.
    least: u64,
    trail: Vec<Step>,
    next: Layer,
    ends: Vec<u64>,
}

impl Passing<'_, '_> {
    fn run(mut self) -> Pass {
        let n = self.searcher.piece.n();
        let mut layer = Layer::default();
        let nothing = Move { op: 0, exclusive: false, slot: NO_SLOT, start: 0, finish: 0 };
        let root = Node {
            set: 0,
            time: 0,
            bound: 0,
            guide: 0,
            runs: (0, 0),
            idle: 0,
            since: Since::default(),
            settled: 0,
            cases: self.searcher.all_cases(),
            held: Held::default(),
            step: nothing,
            parent: NONE,
            next: NONE,
        };
        layer.nodes.push(root);
        let mut moves = Vec::new();
        let mut runs = Vec::new();
        let mut lefts = Lefts::default();
        for depth in 0..n {
            for at in 0..layer.nodes.len() {
                let node = layer.nodes[at];
                if node.bound >= self.best {
                    continue;
                }
                if self.steps >= self.budget {
                    self.drop_state(node.bound);
                    continue;
                }
                let parent = if depth == 0 { NONE } else { self.remember(&node) };
                self.searcher.moves(&node, layer.runs_of(&node), &mut moves);
                let left = lefts.of(self.searcher, node.set);
                for step in moves.drain(..) {
                    self.extend((&node, left), parent, layer.runs_of(&node), step, &mut runs);
                }
            }
            self.select(&mut layer);
            if self.aim == Aim::Proof && self.dropped < self.best {
                layer.nodes.iter().for_each(|node| self.drop_state(node.bound));
                break;
            }
        }
        Pass { lower_bound: self.dropped.min(self.best), found: self.found, steps: self.steps }
    }

    fn drop_state(&mut self, bound: u64) {
        if bound < self.best {
            self.dropped = self.dropped.min(bound);
        }
    }

    fn remember(&mut self, node: &Node) -> u32 {
        self.trail.push(Step { parent: node.parent, step: node.step });
        (self.trail.len() - 1) as u32
    }

    fn extend(&mut self, (node, left): (&Node, &Left), parent: u32, before: &[Run], step: Move, runs: &mut Vec<Run>) {
        self.steps += 1;
        let piece = self.searcher.piece;
        let set = node.set | 1 << step.op;
        // Cores that an operator across all of them holds are free again when it ends; with no links in play nothing can start earlier.
        let time = if step.exclusive && self.searcher.barriers { step.finish } else { step.start };
        let shortest = piece.shortest(step.op as usize);
        self.run_beside(before, step, time, runs);
        if set == full(piece.n()) {
            let makespan = runs.last().map_or(time, |r| r.finish).max(time);
            if makespan < self.best {
                self.best = makespan;
                self.found = Some(self.trace(parent, step, makespan));
            }
            return;
        }
        let (idle, since) = if runs.is_empty() {
            (set, Since { idle: time, work: 0 })
        } else if before.iter().all(|r| r.finish <= step.start) {
            (node.set, Since { idle: step.start, work: shortest })
        } else {
            (node.idle, Since { work: node.since.work + shortest, ..node.since })
        };
        let mut cases = self.searcher.cases_with(node.cases, step.op as usize, step.exclusive);
        let mut settled = node.settled & !(1 << step.op);
        if self.searcher.barriers && idle == node.set && !step.exclusive {
            let Some(known) = self.searcher.settled(cases, left.ready & !(1 << step.op)) else { return };
            (settled, cases) = known;
        }
        if self.dominated(set, (time, runs), settled) {
            return;
        }
        let adds = self.searcher.adds_without(&left.adds, step.op as usize);
        let known = (since, cases, &adds);
        let (bound, guide, next) = self.searcher.bound((set, left, step.op), (time, runs), known, self.best, &mut self.ends);
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
                    (idle, since) = (set, Since { idle: from, work: 0 });
                }
            }
            let held = Held::of(piece, time, runs);
            self.insert(
                Node { set, time, bound, guide, runs: (0, 0), idle, since, settled, cases, held, step, parent, next: NONE },
                runs,
            );
        }
    }

    /// What runs at `time`, once `step` has started beside what ran before.
    fn run_beside(&self, before: &[Run], step: Move, time: u64, runs: &mut Vec<Run>) {
        let piece = self.searcher.piece;
        let shortest = piece.shortest(step.op as usize);
        let mut beside = 0;
        runs.clear();
        for run in before.iter().filter(|r| r.finish > time) {
            beside += piece.shortest(run.op as usize);
            runs.push(Run { beside: run.beside + shortest, ..*run });
        }
        if step.finish > time {
            let run = Run { finish: step.finish, op: step.op, exclusive: step.exclusive, slot: step.slot, beside };
            let at = runs.partition_point(|r| *r < run);
            runs.insert(at, run);
        }
    }

    /// Whether a state of the next layer dominates one there might be, as far as a short look tells.
    fn dominated(&self, set: Set, mine: (u64, &[Run]), settled: Set) -> bool {
        let layer = &self.next;
        let mut at = layer.heads.get(&set).copied().unwrap_or(NONE);
        for _ in 0..LOOKED {
            if at == NONE {
                return false;
            }
            let other = &layer.nodes[at as usize];
            if other.time <= mine.0 && other.settled & !settled == 0 && other.bound != DEAD {
                let theirs = (other.time, &layer.runs[other.runs.0 as usize..(other.runs.0 + other.runs.1) as usize]);
                if self.searcher.dominates(theirs, mine, set) {
                    return true;
                }
            }
            at = other.next;
        }
        false
    }

    /// Adds a state to the next layer unless one there dominates it, and drops those that it dominates.
    fn insert(&mut self, mut node: Node, runs: &[Run]) {
        let layer = &mut self.next;
        let head = layer.heads.entry(node.set).or_insert(NONE);
        let mut at = *head;
        for _ in 0..COMPARED {
            if at == NONE {
                break;
            }
            let other = &layer.nodes[at as usize];
            if other.bound != DEAD {
                let theirs = (other.time, &layer.runs[other.runs.0 as usize..(other.runs.0 + other.runs.1) as usize]);
                let searcher = self.searcher;
                let [theirs_may, mine_may] = [other.may_dominate(&node), node.may_dominate(other)];
                debug_assert!(other.holds_no_more(&node) || !searcher.dominates(theirs, (node.time, runs), node.set));
                debug_assert!(node.holds_no_more(other) || !searcher.dominates((node.time, runs), theirs, node.set));
                if theirs_may && searcher.dominates(theirs, (node.time, runs), node.set) {
                    return;
                }
                if mine_may && searcher.dominates((node.time, runs), theirs, node.set) {
                    layer.nodes[at as usize].bound = DEAD;
                    layer.live -= 1;
                }
            }
            at = layer.nodes[at as usize].next;
        }
        node.next = *head;
        *head = layer.nodes.len() as u32;
        node.runs = (layer.runs.len() as u32, runs.len() as u32);
        layer.runs.extend_from_slice(runs);
        layer.nodes.push(node);
        layer.live += 1;
        if layer.live > 4 * self.width.max(64) {
            self.shrink();
        }
    }

    /// Cuts the layer under construction to its width, so that memory stays bounded.
    fn shrink(&mut self) {
        let mut full_layer = std::mem::take(&mut self.next);
        let kept = self.best_of(&full_layer);
        for mut node in kept {
            let runs = full_layer.runs_of(&node);
            node.runs = (self.next.runs.len() as u32, runs.len() as u32);
            self.next.runs.extend_from_slice(runs);
            let head = self.next.heads.entry(node.set).or_insert(NONE);
            node.next = *head;
            *head = self.next.nodes.len() as u32;
            self.next.nodes.push(node);
            self.next.live += 1;
        }
        full_layer.clear();
    }

    /// Which states are kept when a layer is cut: the lowest bounds, or in a guided pass the lowest expected makespans. What is left to do is
    /// expected to exceed its bound by as much as the best schedule known exceeds the bound of the whole, which favours states that have
    /// more behind them; the mean of the bounds tells more states apart than the largest does.
    fn rank(&self, node: &Node) -> (u128, u64, u64, Set, u32) {
        let mean = u128::from(node.guide);
        let first = if self.aim == Aim::Schedules {
            mean + (mean - 3 * u128::from(node.time)) * u128::from(self.best - self.least) / u128::from(self.least.max(1))
        } else {
            u128::from(node.bound)
        };
        (first, node.guide, node.time, node.set, node.runs.0)
    }

    /// The best `width` states of a layer, the rest recorded as cut.
    fn best_of(&mut self, layer: &Layer) -> Vec<Node> {
        let best = self.best;
        let mut kept: Vec<Node> = layer.nodes.iter().filter(|n| n.bound < best).copied().collect();
        if kept.len() > self.width {
            kept.select_nth_unstable_by_key(self.width, |n| self.rank(n));
            for node in kept.drain(self.width..).collect::<Vec<_>>() {
                self.drop_state(node.bound);
            }
        }
        kept
    }

    /// Makes the next layer the current one, cut to its width, best states first.
    fn select(&mut self, layer: &mut Layer) {
        let next = std::mem::take(&mut self.next);
        let mut kept = self.best_of(&next);
        kept.sort_unstable_by_key(|n| self.rank(n));
        let mut used = std::mem::replace(layer, next);
        layer.nodes = kept;
        used.clear();
        self.next = used;
    }

    fn trace(&self, parent: u32, last: Move, makespan: u64) -> Found {
        let piece = self.searcher.piece;
        let n = piece.n();
        let mut found = Found {
            makespan,
            starts: vec![0; n],
            exclusive: vec![false; n],
            slots: if piece.paired { vec![u32::MAX; n] } else { Vec::new() },
        };
        let mut put = |step: &Move| {
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
