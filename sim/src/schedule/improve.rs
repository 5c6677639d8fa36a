//! Local search for pieces too large to search: list schedules with shifted priorities and flipped modes, kept when no worse.

use super::Method;
use super::bounds::{chain_tails, urgency};
use super::list::{Exclusive, list_schedule};
use super::piece::{NEVER, Piece};
use super::portfolio::{Answer, Budget};

/// A list schedule counts as this many steps per operator: it costs about as much as generating one state of the search.
const STEPS_PER_OPERATOR: u64 = 1;

/// A small reproducible generator (xorshift64*), seeded by the piece's size only: the same piece always gets the same answer.
pub(super) struct Random(u64);

impl Random {
    pub fn new(n: usize) -> Self {
        Self(0x9e37_79b9_7f4a_7c15 ^ n as u64)
    }

    /// A number below `n` (`n` > 0).
    pub fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) % n
    }
}

/// Betters the schedule in `answer` by local search until the budget is spent.
pub(super) fn improve(piece: &Piece, answer: &mut Answer, budget: Budget) {
    let n = piece.n();
    let mut random = Random::new(n);
    let tails = chain_tails(piece);
    let longest = tails.iter().copied().max().unwrap_or(1).max(1);
    let mut priority = urgency(piece);
    let mut flags: Vec<bool> = answer.found.exclusive.clone();
    let mut current = answer.found.makespan;
    let cost = STEPS_PER_OPERATOR * n as u64;
    while answer.found.makespan > answer.lower_bound && !budget.spent(answer.steps + cost) {
        answer.steps += cost;
        let i = random.below(n as u64) as usize;
        let flip = piece.exc[i] != NEVER && random.below(2) == 0;
        let old = priority[i];
        if flip {
            flags[i] = !flags[i];
        } else {
            priority[i] = tails[i] + random.below(longest / 2 + 1);
        }
        let found = list_schedule(piece, &priority, Exclusive::Flagged(&flags));
        if found.makespan <= current {
            current = found.makespan;
            if found.makespan < answer.found.makespan {
                answer.found = found;
                answer.method = Method::LocalSearch;
            }
        } else if flip {
            flags[i] = !flags[i];
        } else {
            priority[i] = old;
        }
    }
}
