//! States of the exact search: lower bounds on their completions, and dominance between them.

use super::bounds::{
    MixedBound, OperatorBitset, PrecedenceSets, first_operators, least_core_ticks, round_down_safely, set_members,
    strong_tails,
};
use super::demand::CoreDemand;
use super::piece::{LINK, NEVER, Piece, TENSOR, VECTOR};
use super::remaining::{ACROSS, BoundIncrements, LANES, NOTHING, RemainingOperators};
use super::running::{RunningOperator, RunsAt, SinceIdle};
use super::slots::CoreAccounting;
use super::twins::earlier_twins;

/// Rounds of fictitious play for the mixed bound of the whole piece, and of each operator's descendants.
const MIXED_ROUNDS: [usize; 2] = [128, 24];
/// Largest size, in operators, of a small piece. The search of a small piece takes less time than many mixed bounds, so
/// it gets one bound, with [`SMALL_ROUNDS`] rounds per operator.
const SMALL: usize = 10;
const SMALL_ROUNDS: usize = 4;
/// Running operators on one resource whose tails are kept apart. The work of any further one counts without its tail.
const RUNNING: usize = 16;

/// Earliest starts that the cores alone allow: per kind of operator, and for operators that need all cores.
struct EarliestStarts {
    floor: [u64; 5],
    idle: u64,
}

/// A searchable piece with the tables that the search reads.
pub(super) struct Searcher<'a> {
    pub piece: &'a Piece,
    pub relation: PrecedenceSets,
    pub after: Vec<u64>,
    /// Operators per resource by falling `after`, with their core-ticks.
    pub by_tail: [Vec<(u8, u64)>; 3],
    /// The smaller latency of each operator.
    pub shortest: Vec<u64>,
    /// The cores that each operator holds on one core, and across all cores.
    pub needs: Vec<[CoreDemand; 2]>,
    /// Mixed bounds of the piece and of its later parts, one per lane: each operator's contribution and its two
    /// weights. Empty if no operator runs across all cores.
    mixed_adds: Vec<[f64; LANES]>,
    mixed_on: Vec<[f64; LANES]>,
    mixed_stops: Vec<[f64; LANES]>,
    /// An upper bound on the rounding error of sums over mixed bounds.
    rounding: f64,
    /// The operators that use each resource.
    users: [OperatorBitset; 3],
    pub slots: CoreAccounting,
    /// Operators that only run across all cores.
    pub only_across: OperatorBitset,
    /// The operators that can run across all cores.
    pub can_across: OperatorBitset,
    /// Per operator, the twins that start before it if they are ready by then.
    pub twins: Vec<OperatorBitset>,
    /// Per operator, the operators of `only_across` that cannot run while it does.
    apart: Vec<OperatorBitset>,
    /// True if an operator across all cores waits for all others and stops all others. It can then be moved to an
    /// instant at which all cores are idle.
    pub barriers: bool,
}

/// Operators that have started, `operator` last, and the remaining work before it.
#[derive(Clone, Copy)]
pub(super) struct StartedSet<'a> {
    pub set: OperatorBitset,
    pub left: &'a RemainingOperators,
    pub operator: u8,
}

/// Bounds on a state, in ticks.
#[derive(Clone, Copy)]
pub(super) struct StateBound {
    /// A lower bound on every completion.
    pub bound: u64,
    /// A finer value that ranks equal bounds.
    pub guide: u64,
    /// A time before which nothing starts.
    pub next: u64,
}

/// Operators that have not started, those of them that are ready, and those that run.
#[derive(Clone, Copy)]
struct UnfinishedSets {
    rest: OperatorBitset,
    ready: OperatorBitset,
    running: OperatorBitset,
}

/// The work of all running operators, and the longest of them.
#[derive(Clone, Copy)]
struct RunningLoad {
    work: u64,
    longest: u64,
}

impl<'a> Searcher<'a> {
    pub fn new(piece: &'a Piece, only_across: OperatorBitset) -> Self {
        let relation = PrecedenceSets::of_piece(piece);
        let exclusive = piece.has_exclusive();
        let after = strong_tails(
            piece,
            &relation,
            if exclusive && piece.operator_count() > SMALL { MIXED_ROUNDS[1] } else { 0 },
        );
        let mut by_tail: [Vec<(u8, u64)>; 3] = Default::default();
        for (k, list) in by_tail.iter_mut().enumerate() {
            *list = (0..piece.operator_count())
                .filter(|&i| piece.kind[i] & [TENSOR, VECTOR, LINK][k] > 0)
                .map(|i| (i as u8, least_core_ticks(piece, i, k)))
                .collect();
            list.sort_by_key(|&(i, _)| std::cmp::Reverse(after[i as usize]));
        }
        let n = piece.operator_count();
        let mut searcher = Self {
            can_across: (0..n).filter(|&i| piece.exc[i] != NEVER).fold(0, |set, i| set | 1 << i),
            twins: earlier_twins(piece, &relation, only_across),
            piece,
            relation,
            after,
            by_tail,
            shortest: (0..n).map(|i| piece.shortest_latency(i)).collect(),
            needs: (0..n)
                .map(|i| [false, true].map(|across| CoreDemand::from_counts(piece.need_in_mode(i, across))))
                .collect(),
            mixed_adds: Vec::new(),
            mixed_on: Vec::new(),
            mixed_stops: Vec::new(),
            rounding: 0.0,
            users: [TENSOR, VECTOR, LINK]
                .map(|bit| (0..n).filter(|&i| piece.kind[i] & bit > 0).fold(0, |set, i| set | 1 << i)),
            slots: CoreAccounting::new(piece),
            only_across,
            apart: (0..n)
                .map(|i| set_members(only_across).filter(|&j| piece.excludes(j, i)).fold(0, |set, j| set | 1 << j))
                .collect(),
            barriers: !piece.own_kind && piece.m[2] == 0,
        };
        if exclusive {
            searcher.find_mixed_bounds();
        }
        searcher
    }

    /// Finds one mixed bound per lane: for the whole piece, and for the part after each further eighth of it.
    fn find_mixed_bounds(&mut self) {
        let n = self.piece.operator_count();
        for lanes in [&mut self.mixed_adds, &mut self.mixed_on, &mut self.mixed_stops] {
            lanes.resize(n, [0.0; LANES]);
        }
        let (lanes, rounds) = if n > SMALL { (LANES, MIXED_ROUNDS[0]) } else { (1, SMALL_ROUNDS * n) };
        for lane in 0..lanes {
            let set = self.relation.all_operators() & !first_operators(lane * n / LANES);
            let mixed = MixedBound::search_weights(
                self.piece,
                &self.relation,
                set,
                if lane == 0 { rounds } else { MIXED_ROUNDS[1] },
            );
            for i in set_members(set) {
                self.mixed_adds[i][lane] = mixed.adds[i];
                self.mixed_on[i][lane] = mixed.on[i];
                self.mixed_stops[i][lane] = mixed.stops[i];
            }
        }
        self.rounding = self.increments_of(self.relation.all_operators()).into_iter().fold(0.0, f64::max) * 1e-13;
    }

    /// A lower bound on the whole piece, without search.
    pub fn lower_bound_of_piece(&self) -> u64 {
        let mut left = RemainingOperators::default();
        self.compute_remaining(0, &mut left);
        self.lower_bound_of_state(
            StartedSet { set: 0, left: &left, operator: NOTHING },
            RunsAt { time: 0, runs: &[] },
            SinceIdle::default(),
            &left.adds,
            u64::MAX,
            &mut vec![0; self.piece.operator_count()],
        )
        .bound
    }

    /// Returns the contribution of a set of operators to each mixed bound.
    pub fn increments_of(&self, set: OperatorBitset) -> BoundIncrements {
        let mut sums = [0.0f64; LANES];
        if !self.mixed_adds.is_empty() {
            for i in set_members(set) {
                for (sum, add) in sums.iter_mut().zip(&self.mixed_adds[i]) {
                    *sum += add;
                }
            }
        }
        sums
    }

    /// Returns these contributions without those of one operator of the set.
    pub fn increments_without(&self, adds: &BoundIncrements, operator: usize) -> BoundIncrements {
        let mut rest = *adds;
        if let Some(adds) = self.mixed_adds.get(operator) {
            for (sum, add) in rest.iter_mut().zip(adds) {
                *sum -= add;
            }
        }
        rest
    }

    /// Returns bounds on a state. `adds` is the contribution of the unstarted operators to each mixed bound. Once a
    /// bound reaches `best` the values are rough.
    pub fn lower_bound_of_state(
        &self,
        StartedSet { set, left, operator }: StartedSet<'_>,
        RunsAt { time, runs }: RunsAt<'_>,
        since: SinceIdle,
        adds: &BoundIncrements,
        best: u64,
        ends: &mut [u64],
    ) -> StateBound {
        let mut mixed = time + self.mixed_bound(adds, time, runs);
        if mixed >= best {
            return StateBound { bound: mixed, guide: mixed, next: time };
        }
        let rest = first_operators(self.piece.operator_count()) & !set;
        let (running, mut longest, load) = self.note_runs(RunsAt { time, runs }, ends);
        let starts = EarliestStarts {
            floor: self.slots.earliest_single_times(self.piece, time, runs),
            idle: runs.last().map_or(time, |r| r.finish),
        };
        // An operator that waits for an unstarted predecessor lies on its path, so only ready operators are visited.
        // The sums by kind of core that follow cover waits for cores.
        let ready = self.ready_after_start(left, operator, set);
        let mut next = u64::MAX;
        for i in set_members(ready) {
            let start = self.earliest_start(i, running, &starts, ends);
            next = next.min(start);
            ends[i] = start + self.shortest[i];
            longest = longest.max(ends[i] + self.after[i]);
        }
        for (kind, &floor) in starts.floor.iter().enumerate().skip(1) {
            longest = longest.max(floor + left.longest_without(kind, operator));
        }
        longest = longest.max(starts.idle + left.longest_without(ACROSS, operator));
        if longest >= best || self.is_wasteful(UnfinishedSets { rest, ready, running }, runs, since, &starts, ends) {
            return StateBound { bound: best, guide: best, next: time };
        }
        // Nothing starts before `next`, so until then only running operators contribute.
        mixed = mixed.max(next + self.mixed_bound(adds, next, runs));
        if mixed >= best {
            return StateBound { bound: mixed, guide: mixed, next: time };
        }
        let mut most = next;
        for (k, &busy) in load.iter().enumerate() {
            if busy > 0 || self.users[k] & rest != 0 {
                let load = RunningLoad { work: busy, longest: starts.idle - time };
                most = most.max(time + self.energy_bound(k, left, operator, runs, load, time));
            }
        }
        StateBound { bound: longest.max(most).max(mixed), guide: longest + most + mixed, next }
    }

    /// Writes the ends of the running operators into `ends`. Returns their set, the longest path through any of them, and
    /// the work that is left of them on each kind of core.
    fn note_runs(&self, RunsAt { time, runs }: RunsAt<'_>, ends: &mut [u64]) -> (OperatorBitset, u64, [u64; 3]) {
        let (mut running, mut longest, mut load): (OperatorBitset, _, _) = (0, time, [0; 3]);
        for run in runs {
            let i = run.op as usize;
            running |= 1 << i;
            ends[i] = run.finish;
            longest = longest.max(run.finish + self.after[i]);
            for (k, sum) in load.iter_mut().enumerate() {
                *sum += u64::from(run.need.of_kind(k)) * (run.finish - time);
            }
        }
        (running, longest, load)
    }

    /// Returns the earliest start of an operator. `open` holds the predecessors that are unstarted or running, and
    /// `ends` their ends.
    fn earliest_start(&self, i: usize, open: OperatorBitset, starts: &EarliestStarts, ends: &[u64]) -> u64 {
        let mut start = starts.floor[self.piece.kind[i] as usize];
        if self.barriers && self.only_across >> i & 1 == 1 {
            start = start.max(starts.idle);
        }
        for p in set_members(self.relation.preds[i] & open) {
            start = start.max(ends[p]);
        }
        start
    }

    /// True if a stretch of the schedule is strictly longer than all its operators across all cores, one after another.
    /// No optimal schedule then continues this state: those operators can run that way, in order of their starts, and
    /// the rest moves earlier. The stretches tried begin at the last idle moment and at the start of each running
    /// operator, and end with that operator.
    fn is_wasteful(
        &self,
        UnfinishedSets { rest, ready, running }: UnfinishedSets,
        runs: &[RunningOperator],
        since: SinceIdle,
        starts: &EarliestStarts,
        ends: &mut [u64],
    ) -> bool {
        if self.mixed_on.is_empty() {
            return false;
        }
        let mut all_known = false;
        runs.iter().filter(|r| !r.exclusive).any(|run| {
            let i = run.op as usize;
            let room = (self.piece.lat[i].saturating_sub(run.beside + self.shortest[i]))
                .max(run.finish.saturating_sub(since.idle + since.work));
            let could = rest & !self.relation.descendants[i] & !self.apart[i];
            if room == 0 || !self.fits_before(could & ready, room, run.finish, ends) {
                return false;
            }
            if !all_known {
                for j in set_members(rest & !ready) {
                    ends[j] = self.earliest_start(j, rest | running, starts, ends) + self.shortest[j];
                }
                all_known = true;
            }
            self.fits_before(could, room, run.finish, ends)
        })
    }

    /// True if the operators that could start before `finish` take less than `room` ticks, one after another.
    fn fits_before(&self, operators: OperatorBitset, room: u64, finish: u64, ends: &[u64]) -> bool {
        let mut work = 0;
        set_members(operators).all(|j| {
            if ends[j] - self.shortest[j] < finish {
                work += self.shortest[j];
            }
            work < room
        })
    }

    /// Returns the energy bound on resource `k`. It is the largest, over all sets V of operators with the longest
    /// tails, of the time at which the work of V fits, plus the shortest tail of V. Running work outside V counts in
    /// full only if it ends before V can.
    fn energy_bound(
        &self,
        k: usize,
        left: &RemainingOperators,
        operator: u8,
        runs: &[RunningOperator],
        load: RunningLoad,
        time: u64,
    ) -> u64 {
        let m = u64::from(self.piece.m[k]);
        let mut running = [(0, 0); RUNNING];
        let mut count = 0;
        for run in runs.iter().filter(|r| self.users[k] >> r.op & 1 == 1) {
            if count < RUNNING {
                running[count] = (self.after[run.op as usize], run.finish - time);
                count += 1;
            }
        }
        running[..count].sort_unstable_by(|a, b| b.cmp(a));
        let mut running = running[..count].iter().peekable();
        let (mut work, mut beside, mut most) = (0, load.work, 0);
        let mut note = |tail: u64, own: u64, of_running: u64| {
            work += own + of_running;
            beside = beside.saturating_sub(of_running);
            let total = if m * load.longest <= work + beside { work + beside } else { work };
            most = most.max(total + m * tail);
        };
        for &(i, e) in left.by_tail[k].iter().filter(|o| o.0 != operator) {
            let tail = self.after[i as usize];
            while let Some(&&(after, rest)) = running.peek().filter(|r| r.0 >= tail) {
                note(after, 0, rest);
                running.next();
            }
            note(tail, e, 0);
        }
        for &(after, rest) in running {
            note(after, 0, rest);
        }
        most.div_ceil(m.max(1))
    }

    fn mixed_bound(&self, adds: &BoundIncrements, time: u64, runs: &[RunningOperator]) -> u64 {
        if self.mixed_on.is_empty() {
            return 0;
        }
        let mut sums = *adds;
        for run in runs {
            let weights = if run.exclusive { &self.mixed_stops } else { &self.mixed_on };
            for (sum, weight) in sums.iter_mut().zip(&weights[run.op as usize]) {
                *sum += weight * run.finish.saturating_sub(time) as f64;
            }
        }
        // Subtracting operators one by one leaves the rounding error of the whole sum in the rest.
        round_down_safely(sums.into_iter().fold(0.0, f64::max) - self.rounding)
    }

    /// True if state `a` dominates state `b` of the same down-set: everything that can follow `b` can follow `a`, no
    /// later. `b` starts nothing before its time, nor before it has cores. By then the predecessors have ended in `a`,
    /// and as many cores are free in `a`.
    pub fn dominates_state(&self, a: RunsAt<'_>, b: RunsAt<'_>, set: OperatorBitset) -> bool {
        if a.time > b.time || !self.slots.frees_no_later(self.piece, a.runs, b) {
            return false;
        }
        let mut floor = None;
        for run in a.runs.iter().rev() {
            if run.finish <= b.time {
                break;
            }
            let waiting = self.relation.succs[run.op as usize] & !set;
            if waiting == 0 || b.runs.iter().any(|r| r.op == run.op && r.finish >= run.finish) {
                continue;
            }
            let floor = floor.get_or_insert_with(|| self.slots.earliest_single_times(self.piece, b.time, b.runs));
            let held = |j: usize| {
                floor[self.piece.kind[j] as usize] < run.finish
                    && !b.runs.iter().any(|r| r.finish >= run.finish && self.relation.preds[j] >> r.op & 1 == 1)
            };
            if set_members(waiting).any(held) {
                return false;
            }
        }
        true
    }
}
