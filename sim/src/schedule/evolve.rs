//! Schedules by evolution: a genetic algorithm over orders of operators and their modes.
//!
//! An order and a choice of modes stand for a serial schedule. Of two parents a child takes operators in the order of one up to a point,
//! then in that of the other, then in that of the first again, each in its parent's mode (Hartmann, "A competitive genetic algorithm for
//! resource-constrained project scheduling", 1998). Each child's schedule is moved to the right and back to the left, which
//! never makes it longer where any cores pair (double justification: Valls, Ballestin and Quintanilla, "Justification and RCPSP: a technique that
//! pays", 2005); where they pair by index the shorter of both is taken.
//!
//! How many schedules are kept, for how long, and how often a child changes was chosen on random graphs (see `portfolio`).

use super::Method;
use super::bounds::{Set, chain_tails, members};
use super::improve::Random;
use super::list::Found;
use super::piece::Piece;
use super::portfolio::{Answer, Budget};
use super::serial::{Serial, turned};

/// Schedules that are kept (Hartmann: 40).
const POPULATION: usize = 30;
/// Serial schedules per child: one, and one in each direction to justify it.
const PLACED: u64 = 3;
/// Operators placed count as one step of the search.
const OPERATORS_PER_STEP: u64 = 8;
/// A population that this many children have not bettered gives way to a new one.
const STALE: u64 = 50;
/// Neighbours in the order of a child that change places, and operators that change their mode, on average.
const SWAPPED: u64 = 2;
const CHANGED: u64 = 1;
/// The operators of a schedule drawn at random that run in another mode than in the best one: up to this many per cent.
const MOST_FLIPPED: u64 = 50;

/// One order, the modes, and what they lead to.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Member {
    makespan: u64,
    order: Vec<u8>,
    across: Set,
}

/// A population of schedules of a piece.
pub(super) struct Evolution<'a> {
    piece: &'a Piece,
    /// The operators that may run either way, and those that only run across all cores.
    either: Set,
    only_across: Set,
    forward: Serial<'a>,
    backward: Serial<'a>,
    members: Vec<Member>,
    tails: Vec<u64>,
    /// Children since the last one that bettered the population.
    stale: u64,
    random: Random,
}

impl<'a> Evolution<'a> {
    /// Of a piece and its reverse, in which some operators may run on one core or across all, and some only across all.
    pub fn new(piece: &'a Piece, reversed: &'a Piece, (either, only_across): (Set, Set)) -> Self {
        Self {
            piece,
            either,
            only_across,
            forward: Serial::new(piece),
            backward: Serial::new(reversed),
            members: Vec::new(),
            tails: chain_tails(piece),
            stale: 0,
            random: Random::new(piece.n()),
        }
    }

    /// Betters the schedule in `answer` until the budget is spent. Answers whether it did and there is something left to better.
    pub fn run(&mut self, answer: &mut Answer, budget: Budget) -> bool {
        let cost = (PLACED * self.piece.n() as u64).div_ceil(OPERATORS_PER_STEP);
        let had = answer.found.makespan;
        let mut next = Some((by(self.piece.n(), |i| answer.found.starts[i]), across(&answer.found)));
        while answer.found.makespan > answer.lower_bound && !budget.spent(answer.steps + cost) {
            answer.steps += cost;
            let (order, across) = match next.take() {
                Some(known) => known,
                None if self.members.len() < POPULATION => self.drawn(&answer.found),
                None => self.child(),
            };
            let found = self.justified(&order, across | self.only_across);
            self.stale = if self.keep(&found) { 0 } else { self.stale + 1 };
            if self.stale >= STALE {
                (self.stale, self.members) = (0, Vec::new());
            }
            if found.makespan < answer.found.makespan {
                answer.found = found;
                answer.method = Method::LocalSearch;
            }
        }
        answer.lower_bound < answer.found.makespan && answer.found.makespan < had
    }

    /// A random order in which what has much behind it tends to come first, and modes near those of a schedule.
    fn drawn(&mut self, like: &Found) -> (Vec<u8>, Set) {
        let n = self.piece.n();
        let (tails, random) = (&self.tails, &mut self.random);
        let mut urgency: Vec<u64> = tails.iter().map(|&t| t * (64 + random.below(64)) + 1).collect();
        // The urgency of an operator is no less than that of those behind it: the order that it gives can be kept.
        for i in (0..n).rev() {
            for &p in self.piece.preds(i) {
                urgency[p as usize] = urgency[p as usize].max(urgency[i] + 1);
            }
        }
        let order = by(n, |i| u64::MAX - urgency[i]);
        let chance = self.random.below(MOST_FLIPPED);
        let flipped = members(self.either).filter(|_| self.random.below(100) < chance).fold(0, |set, i| set | 1 << i);
        (order, across(like) ^ flipped)
    }

    fn child(&mut self) -> (Vec<u8>, Set) {
        let n = self.piece.n();
        let count = self.members.len() as u64;
        let mother = self.random.below(count) as usize;
        let father = (mother + 1 + self.random.below(count - 1) as usize) % self.members.len();
        let (a, b) = (self.random.below(n as u64 + 1) as usize, self.random.below(n as u64 + 1) as usize);
        let (mother, father) = (&self.members[mother], &self.members[father]);
        let (from, until) = (a.min(b), a.max(b));
        let (mut order, mut taken, mut across): (Vec<u8>, Set, Set) = (Vec::with_capacity(n), 0, 0);
        for (parent, length) in [(mother, from), (father, until), (mother, n)] {
            for &i in &parent.order {
                if order.len() >= length {
                    break;
                }
                if taken >> i & 1 == 0 {
                    taken |= 1 << i;
                    across |= parent.across & 1 << i;
                    order.push(i);
                }
            }
        }
        for at in 1..n {
            let (i, j) = (order[at - 1], order[at]);
            if self.random.below(n as u64) < SWAPPED && !self.piece.preds(j as usize).contains(&u32::from(i)) {
                order.swap(at - 1, at);
            }
        }
        let flexible = u64::from(self.either.count_ones());
        for i in members(self.either) {
            if self.random.below(flexible) < CHANGED {
                across ^= 1 << i;
            }
        }
        (order, across)
    }

    /// The schedule of an order and modes, moved to the right and back to the left.
    fn justified(&mut self, order: &[u8], across: Set) -> Found {
        let n = self.piece.n();
        let length = |i: usize| if across >> i & 1 == 1 { self.piece.exc[i] } else { self.piece.lat[i] };
        let salt = if !self.piece.paired || self.random.below(2) == 0 { 0 } else { self.random.below(u64::MAX) };
        (self.forward.salt, self.backward.salt) = (salt, salt);
        let first = self.forward.schedule(order, across);
        // Backwards what ends last comes first; operators of the reversed piece are numbered from the end.
        let latest = by(n, |k| u64::MAX - first.starts[n - 1 - k] - length(n - 1 - k));
        let right = self.backward.schedule(&latest, turned(across, n));
        let left = by(n, |i| u64::MAX - right.starts[n - 1 - i] - length(i));
        let last = self.forward.schedule(&left, across);
        if last.makespan <= first.makespan { last } else { first }
    }

    /// Takes a schedule in, in place of the longest once there are enough, unless there is one like it.
    fn keep(&mut self, found: &Found) -> bool {
        let member = Member { makespan: found.makespan, order: by(self.piece.n(), |i| found.starts[i]), across: across(found) };
        if self.members.contains(&member) {
            return false;
        }
        if self.members.len() < POPULATION {
            self.members.push(member);
            return true;
        }
        let longest = self.members.iter_mut().max_by_key(|m| m.makespan);
        let Some(longest) = longest.filter(|longest| member.makespan <= longest.makespan) else { return false };
        let better = member.makespan < longest.makespan;
        *longest = member;
        better
    }
}

/// The operators that run across all cores.
fn across(found: &Found) -> Set {
    found.exclusive.iter().enumerate().fold(0, |set, (i, &x)| set | Set::from(x) << i)
}

/// The numbers below `n` by a key.
fn by(n: usize, key: impl Fn(usize) -> u64) -> Vec<u8> {
    let mut order: Vec<u8> = (0..n as u8).collect();
    order.sort_by_key(|&i| key(i as usize));
    order
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

    use super::super::Limits;
    use super::super::bounds::{Relation, urgency};
    use super::super::list::{Exclusive, list_schedule};
    use super::super::modes::tests::problem;
    use super::super::piece::{self, NEVER};
    use super::super::search::{Aim, Exploration};
    use super::super::state::Searcher;
    use super::*;

    #[test]
    fn evolution_ends_at_the_optimum_of_most_small_problems_and_never_below() {
        let (mut all, mut optimal) = (0, 0);
        for seed in 0..300 {
            for cut in piece::whole(&problem(seed)) {
                let piece = &cut.piece;
                let listed = list_schedule(piece, &urgency(piece), Exclusive::Alone);
                let searcher = Searcher::new(piece, 0);
                let wave = Exploration::new(&searcher).wave(listed.makespan, usize::MAX, Aim::Bounds, u64::MAX);
                let optimum = wave.found.map_or(listed.makespan, |found| found.makespan);
                let reversed = piece.reversed();
                let either = members(Relation::of(piece).all()).filter(|&i| piece.exc[i] != NEVER).fold(0, |set, i| set | 1 << i);
                let mut answer = Answer { found: listed, lower_bound: 0, method: Method::Bounds, steps: 0 };
                Evolution::new(piece, &reversed, (either, 0)).run(&mut answer, Budget::of(&Limits { steps: 10_000, time: None }));
                assert!(answer.found.makespan >= optimum, "seed {seed}");
                all += 1;
                optimal += usize::from(answer.found.makespan == optimum);
            }
        }
        assert!(optimal * 100 >= all * 95, "{optimal} of {all}");
    }
}
