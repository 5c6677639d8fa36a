//! How one piece is solved: bounds and list schedules first, then waves of search that widen until one proves the answer or the
//! work limit is spent.

use super::bounds::{Mixed, Relation, Set, chain_tails, members, only_across, quick_lower_bound, urgency};
use super::cores::pair_by_index;
use super::evolve::Evolution;
use super::idle::IdleBounds;
use super::list::{Exclusive, Found, list_schedule};
use super::modes::{CaseTable, Cases};
use super::piece::{NEVER, Piece, SEARCHABLE};
use super::search::{Aim, Exploration, Wave};
use super::state::Searcher;
use super::{Limits, Method, improve};
use std::time::Instant;

/// Width of the first waves: forwards before anything costly is known, then forwards and backwards, for schedules.
const FIRST_WIDTH: usize = 64;
/// The waves that follow, forwards: most layers of models are proven forwards in a fraction of the steps that it takes backwards.
const FORWARDS: [(usize, Aim); 3] = [(128, Aim::Schedules), (COMPARED, Aim::Bounds), (4_096, Aim::Bounds)];
/// Where they prove nothing, a wave of this width backwards tells which way gets further with as much.
const COMPARED: usize = 512;
/// Widths of the last waves, in the direction that does.
const WIDE: [usize; 3] = [16_384, 131_072, usize::MAX];
/// Schedules evolve after the first wave for as long as this many steps better them, and before the comparison for this many steps, but
/// no more than this part of all; so much goes into them at the end, too. Chosen on passes of models and on random graphs that `schedule_unseen`
/// draws as the stored ones; it holds others against the choice.
const EARLY_STEPS: u64 = 500;
const EVOLVING_STEPS: u64 = 30_000;
const EVOLVING_SHARE: u64 = 10;
/// Cases are split until that has taken this part of all steps. The share was chosen on the 30 graphs of 80 operators of `schedule_unseen`,
/// which holds 60 others against the choice.
const CASES_SHARE: u64 = 6;
/// Bounds from idle moments are looked for until that has taken this part of the steps that are left: as much as cases may. Passes of models
/// take less than a fiftieth.
const IDLE_SHARE: u64 = 6;
/// Rounds of play for the quick mixed bound.
const QUICK_ROUNDS: usize = 32;
/// Rounds of play to rule out a mode of an operator.
const PROBING_ROUNDS: usize = 96;

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
    /// Work besides, for a piece in which any cores pair in place of one that pairs them by index, while its schedule can be paired so.
    more: u64,
    pub deadline: Option<Instant>,
}

impl Budget {
    pub fn of(limits: &Limits) -> Self {
        Self { steps: limits.steps, more: 0, deadline: limits.time.map(|t| Instant::now() + t) }
    }

    /// The same work, but no more than until so many steps are done.
    pub fn up_to(self, steps: u64) -> Self {
        Self { steps: self.steps.min(steps), ..self }
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
    let relaxed = solve_plain(&piece.unpaired(), Budget { steps: first, more: budget.steps - first, ..budget }, 0, None);
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
    } else {
        improve::improve(piece, &mut answer, budget);
    }
    if answer.lower_bound < answer.found.makespan {
        answer.method = Method::Open;
    }
    answer
}

/// Which operators run across all cores, and which on single ones, in every schedule that is still looked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Decided {
    across: Set,
    single: Set,
}

impl Decided {
    /// The piece with operators that only run across all cores taking longer on one than everything together takes one by one.
    fn apply(self, piece: &Piece) -> Piece {
        let longer = (0..piece.n()).map(|i| piece.shortest(i)).sum::<u64>() + 1;
        let mut hard = piece.clone();
        for i in members(self.across) {
            hard.lat[i] = longer.max(piece.lat[i]);
        }
        for i in members(self.single) {
            hard.exc[i] = NEVER;
        }
        hard
    }

    /// Tries both modes of every undecided operator: one under which a bound of the whole reaches `best` is ruled out.
    fn probe(self, piece: &Piece, relation: &Relation, best: u64) -> Self {
        let bound = |decided: Self| Mixed::find(&decided.apply(piece), relation, relation.all(), PROBING_ROUNDS).bound();
        let mut now = self;
        for i in (0..piece.n()).filter(|&i| piece.exc[i] != NEVER) {
            let bit = 1 << i;
            if (now.across | now.single) & bit != 0 {
                continue;
            }
            if bound(Self { single: now.single | bit, ..now }) >= best {
                now.across |= bit;
            } else if bound(Self { across: now.across | bit, ..now }) >= best {
                now.single |= bit;
            }
        }
        now
    }
}

fn search(piece: &Piece, answer: &mut Answer, budget: Budget) {
    let relation = Relation::of(piece);
    let mut decided = Decided { across: only_across(piece, &relation), single: 0 };
    let hard = decided.apply(piece);
    let forward = Searcher::new(&hard, decided.across);
    answer.raise(forward.root_bound());
    // Most pieces are small and fall to the first wave: what costs more is set up for those that do not.
    let first = &mut Exploration::new(&forward);
    if one_wave(piece, answer, (first, false), (FIRST_WIDTH, Aim::Schedules), budget).is_none() {
        return;
    }
    let reversed = piece.reversed();
    let mut evolution = Evolution::new(piece, &reversed, (forward.can_across & !forward.only_across, forward.only_across));
    while evolution.run(answer, budget.up_to(answer.steps + EARLY_STEPS)) {}
    if answer.lower_bound >= answer.found.makespan || budget.spent(answer.steps) {
        return;
    }
    let best = answer.found.makespan;
    let mut cases = Cases::of(piece, &relation, (decided.across, decided.single));
    if let Some(cases) = &mut cases {
        cases.split(piece, best, budget.steps / CASES_SHARE);
        answer.steps += cases.steps();
        answer.raise(cases.lower_bound(best));
        if answer.lower_bound >= best || budget.spent(answer.steps) {
            return;
        }
        (decided.across, decided.single) = cases.common();
    } else {
        decided = decided.probe(piece, &relation, best);
    }
    let hard = decided.apply(piece);
    let turned = hard.reversed();
    let searchers = both_ways(Searcher::new(&hard, decided.across), &turned, cases.as_ref(), answer);
    waves(piece, answer, (&searchers, cases.as_ref()), &mut evolution, budget);
}

/// Wave after wave, wider and wider, until one proves the answer.
fn waves(
    piece: &Piece,
    answer: &mut Answer,
    (searchers, cases): (&[Searcher<'_>; 2], Option<&Cases<'_>>),
    evolution: &mut Evolution<'_>,
    budget: Budget,
) {
    let mut ways = searchers.each_ref().map(Exploration::new);
    let turned = narrow_waves(piece, answer, (&mut ways, cases), evolution, budget).unwrap_or(false);
    let way = &mut ways[usize::from(turned)];
    wide_waves(piece, answer, (way, turned), evolution, budget);
    if budget.more == 0 || answer.lower_bound >= answer.found.makespan {
        return;
    }
    // What would go to pairing by index is not needed there where this schedule can be paired.
    let paired = Piece { paired: true, ..piece.clone() };
    if pair_by_index(&paired, &answer.found).is_some() {
        let kept = answer.found.clone();
        let all = Budget { steps: budget.steps + budget.more, more: 0, ..budget };
        wide_waves(piece, answer, (way, turned), evolution, all);
        if pair_by_index(&paired, &answer.found).is_none() {
            answer.found = kept;
        }
    }
}

/// Narrow waves both ways, and whether backwards gets further. `None` when there is nothing left to do, or nothing left to do it with.
fn narrow_waves(
    piece: &Piece,
    answer: &mut Answer,
    ([forwards, backwards], cases): (&mut [Exploration<'_, '_>; 2], Option<&Cases<'_>>),
    evolution: &mut Evolution<'_>,
    budget: Budget,
) -> Option<bool> {
    one_wave(piece, answer, (forwards, false), (FIRST_WIDTH, Aim::Schedules), budget)?;
    one_wave(piece, answer, (backwards, true), (FIRST_WIDTH, Aim::Schedules), budget)?;
    if let Some(cases) = cases {
        let most = budget.steps.saturating_sub(answer.steps) / IDLE_SHARE;
        let (bounds, steps) = IdleBounds::of(forwards.searcher(), &cases.prices, answer.found.makespan, most);
        answer.steps += steps;
        if let Some(bounds) = bounds {
            answer.raise(bounds.root());
            forwards.hold_against(bounds, answer.found.makespan);
        }
    }
    let mut ahead = 0;
    for (width, aim) in FORWARDS {
        let bound = one_wave(piece, answer, (forwards, false), (width, aim), budget)?;
        if width == COMPARED {
            ahead = bound;
        }
    }
    evolution.run(answer, budget.up_to(answer.steps + EVOLVING_STEPS.min(budget.steps / EVOLVING_SHARE)));
    let turned = one_wave(piece, answer, (backwards, true), (COMPARED, Aim::Bounds), budget)? > ahead;
    // What these leave is hard to prove: it is worth as much again to look for better schedules, both ways.
    one_wave(piece, answer, (forwards, false), (COMPARED, Aim::Schedules), budget)?;
    one_wave(piece, answer, (backwards, true), (COMPARED, Aim::Schedules), budget)?;
    Some(turned)
}

/// The last waves, in the direction that gets further. What is left at the end goes to better schedules: what is still open then would
/// hardly have been proven with it.
fn wide_waves(
    piece: &Piece,
    answer: &mut Answer,
    (way, turned): (&mut Exploration<'_, '_>, bool),
    evolution: &mut Evolution<'_>,
    budget: Budget,
) {
    let most = budget.up_to(budget.steps - budget.steps / EVOLVING_SHARE);
    let proven =
        WIDE.iter().try_for_each(|&width| one_wave(piece, answer, (way, turned), (width, Aim::Bounds), most).map(|_| ()));
    if proven.is_none() {
        evolution.run(answer, budget);
    }
}

/// The searcher of a piece and that of its reverse, which tell each other what they know; their bounds are noted.
fn both_ways<'a>(
    mut forward: Searcher<'a>,
    reversed: &'a Piece,
    cases: Option<&Cases<'_>>,
    answer: &mut Answer,
) -> [Searcher<'a>; 2] {
    let last = reversed.n() - 1;
    let across = members(forward.only_across).fold(0, |set, i| set | 1 << (last - i));
    let mut backward = Searcher::new(reversed, across);
    Searcher::share(&mut forward, &mut backward);
    forward.cases = cases.map(|c| CaseTable::of(c, last + 1, false));
    backward.cases = cases.map(|c| CaseTable::of(c, last + 1, true));
    answer.raise(forward.root_bound().max(backward.root_bound()));
    [forward, backward]
}

/// One wave of the search forwards or backwards, and its lower bound. `None` when there is nothing left to do, or nothing left to do it with.
fn one_wave(
    piece: &Piece,
    answer: &mut Answer,
    (way, reversed): (&mut Exploration<'_, '_>, bool),
    (width, aim): (usize, Aim),
    budget: Budget,
) -> Option<u64> {
    if answer.lower_bound >= answer.found.makespan || budget.spent(answer.steps) {
        return None;
    }
    answer.method = Method::Search;
    let wave = way.wave(answer.found.makespan, width, aim, budget.steps - answer.steps);
    answer.steps += wave.steps;
    let bound = wave.lower_bound;
    take(answer, piece, wave, reversed);
    (answer.lower_bound < answer.found.makespan).then_some(bound)
}

fn take(answer: &mut Answer, piece: &Piece, wave: Wave, reversed: bool) {
    if let Some(found) = wave.found {
        answer.found = if reversed { turn_round(piece, &found) } else { found };
    }
    answer.lower_bound = answer.lower_bound.max(wave.lower_bound.min(answer.found.makespan));
}

/// A schedule of the reversed piece as one of the piece.
fn turn_round(piece: &Piece, found: &Found) -> Found {
    let n = piece.n();
    let exclusive: Vec<bool> = found.exclusive.iter().rev().copied().collect();
    let starts = (0..n)
        .map(|i| found.makespan - found.starts[n - 1 - i] - if exclusive[i] { piece.exc[i] } else { piece.lat[i] })
        .collect();
    Found { makespan: found.makespan, starts, exclusive, slots: found.slots.iter().rev().copied().collect() }
}
