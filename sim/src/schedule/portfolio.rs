//! How one piece is solved: bounds and list schedules first, then waves of search that widen until one proves the answer or the
//! work limit is spent. sim/README.md counts what else was tried on passes of models, and what came of leaving it out.

use super::bounds::{Mixed, Relation, Set, chain_tails, members, only_across, quick_lower_bound, urgency};
use super::cores::pair_by_index;
use super::list::{Exclusive, Found, list_schedule};
use super::piece::{Piece, SEARCHABLE};
use super::search::Exploration;
use super::state::Searcher;
use super::{Limits, Method};
use std::time::Instant;

/// Widths of the waves, until one proves its answer or the work is spent. Most pieces fall to the first.
const WIDTHS: [usize; 7] = [64, 128, 512, 4_096, 16_384, 131_072, usize::MAX];
/// Rounds of play for the quick mixed bound.
const QUICK_ROUNDS: usize = 32;

/// What is known of a piece after solving it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Answer {
    pub found: Found,
    pub lower_bound: u64,
    pub method: Method,
    pub steps: u64,
}

impl Answer {
    /// Takes note of a lower bound on every schedule better than the one found.
    fn raise(&mut self, bound: u64) {
        self.lower_bound = self.lower_bound.max(bound.min(self.found.makespan));
    }
}

/// Where the time goes: the deadline, if any, and the counted work left.
#[derive(Debug, Clone, Copy)]
pub(super) struct Budget {
    pub steps: u64,
    pub deadline: Option<Instant>,
}

impl Budget {
    pub fn of(limits: &Limits) -> Self {
        Self { steps: limits.steps, deadline: limits.time.map(|t| Instant::now() + t) }
    }

    pub fn spent(&self, steps: u64) -> bool {
        steps >= self.steps || self.deadline.is_some_and(|d| Instant::now() >= d)
    }
}

/// The bounds of a piece without search: the best lower bound and the best list schedule.
pub(super) fn quick(piece: &Piece) -> (u64, Found) {
    let tails = chain_tails(piece);
    let mut lower = quick_lower_bound(piece, &tails);
    let urgency = urgency(piece);
    let mut best = list_schedule(piece, &urgency, Exclusive::Alone);
    if best.makespan == lower || !piece.has_exclusive() {
        return (lower, best);
    }
    if piece.n() <= SEARCHABLE {
        let relation = Relation::of(piece);
        let mixed = Mixed::find(piece, &relation, relation.all(), QUICK_ROUNDS);
        lower = lower.max(mixed.bound());
        let flags: Vec<bool> =
            (0..piece.n()).map(|i| mixed.on[i] * piece.lat[i] as f64 > mixed.stops[i] * piece.exc[i] as f64).collect();
        keep_better(&mut best, list_schedule(piece, &tails, Exclusive::Flagged(&flags)));
    }
    if best.makespan > lower {
        keep_better(&mut best, list_schedule(piece, &tails, Exclusive::Flagged(&vec![true; piece.n()])));
    }
    (lower, best)
}

fn keep_better(best: &mut Found, other: Found) {
    if other.makespan < best.makespan {
        *best = other;
    }
}

/// Solves a piece within the budget.
pub(super) fn solve_piece(piece: &Piece, budget: Budget) -> Answer {
    if piece.n() == 1 {
        return trivial(piece);
    }
    if !piece.pairing_matters() {
        return solve_plain(piece, budget, 0, None);
    }
    // Where any cores pair the piece is easier, its bound holds here too, and its schedule often does.
    let first = budget.steps / 4 * 3;
    let relaxed = solve_plain(&piece.unpaired(), Budget { steps: first, ..budget }, 0, None);
    if let Some(slots) = pair_by_index(piece, &relaxed.found) {
        return Answer { found: Found { slots, ..relaxed.found }, ..relaxed };
    }
    let rest = Budget { steps: budget.steps.saturating_sub(relaxed.steps), ..budget };
    let answer = solve_plain(piece, rest, relaxed.lower_bound, Some(&relaxed.found));
    Answer { steps: answer.steps + relaxed.steps, ..answer }
}

/// The answer to a piece of one operator.
pub(super) fn trivial(piece: &Piece) -> Answer {
    let exclusive = piece.exc[0] < piece.lat[0];
    let slots = if piece.paired { vec![if exclusive { u32::MAX } else { 0 }] } else { Vec::new() };
    let found = Found { makespan: piece.shortest(0), starts: vec![0], exclusive: vec![exclusive], slots };
    Answer { lower_bound: found.makespan, found, method: Method::Decomposition, steps: 0 }
}

/// Solves a piece as it is, given a lower bound known from elsewhere and a schedule whose order is worth following.
fn solve_plain(piece: &Piece, budget: Budget, known: u64, like: Option<&Found>) -> Answer {
    let (lower, mut found) = quick(piece);
    if let Some(like) = like {
        let sooner: Vec<u64> = like.starts.iter().map(|s| like.makespan - s).collect();
        keep_better(&mut found, list_schedule(piece, &sooner, Exclusive::Flagged(&like.exclusive)));
    }
    let mut answer = Answer { lower_bound: lower.max(known), found, method: Method::Bounds, steps: 0 };
    if answer.lower_bound >= answer.found.makespan {
        return answer;
    }
    if piece.n() <= SEARCHABLE {
        search(piece, &mut answer, budget);
    }
    if answer.lower_bound < answer.found.makespan {
        answer.method = Method::Open;
    }
    answer
}

/// The piece with operators that only run across all cores taking longer on one than everything together takes one by one.
fn harder(piece: &Piece, across: Set) -> Piece {
    let longer = (0..piece.n()).map(|i| piece.shortest(i)).sum::<u64>() + 1;
    let mut hard = piece.clone();
    for i in members(across) {
        hard.lat[i] = longer.max(piece.lat[i]);
    }
    hard
}

/// Wave after wave, wider and wider, until one proves the answer.
fn search(piece: &Piece, answer: &mut Answer, budget: Budget) {
    let across = only_across(piece, &Relation::of(piece));
    let hard = harder(piece, across);
    let searcher = Searcher::new(&hard, across);
    answer.raise(searcher.root_bound());
    let mut way = Exploration::new(&searcher);
    for width in WIDTHS {
        if answer.lower_bound >= answer.found.makespan || budget.spent(answer.steps) {
            return;
        }
        answer.method = Method::Search;
        let wave = way.wave(answer.found.makespan, width, budget.steps - answer.steps);
        answer.steps += wave.steps;
        answer.found = wave.found.unwrap_or_else(|| answer.found.clone());
        answer.raise(wave.lower_bound);
    }
}
