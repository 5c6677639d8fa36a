//! A memo of solved pieces. Layers repeat over a model, over micro-batches, and over designs whose latencies differ by
//! a factor.

use super::piece::Piece;
use super::piece_answer::PieceAnswer;
use super::portfolio::{self, Budget};
use super::{Problem, Schedule, SolveLimits, solve_with_answers};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

const SHARDS: usize = 64;

/// Answers by piece in normal form. Isomorphic layers, and layers whose latencies differ by a factor, share one answer.
///
/// Threads share one memo by reference. An answer depends only on the piece and the limits. The memo fixes the limits,
/// so results are the same with and without a memo. Only the statistics depend on the order of events.
#[derive(Debug)]
pub struct Memo {
    limits: SolveLimits,
    shards: Vec<Mutex<HashMap<Piece, Arc<PieceAnswer>>>>,
    per_shard: usize,
    hasher: RandomState,
    hits: AtomicU64,
    misses: AtomicU64,
    dropped: AtomicU64,
}

/// Counts of a memo. While nothing is dropped they do not depend on the number of threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct MemoStatistics {
    /// Pieces answered from the memo.
    pub hits: u64,
    /// Pieces solved.
    pub misses: u64,
    /// Answers that were not stored because the memo was full.
    pub dropped: u64,
    /// Answers stored.
    pub held: u64,
}

impl MemoStatistics {
    /// The fraction of pieces answered from the memo; 0 if none were asked for.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        let asked = self.hits + self.misses;
        if asked == 0 { 0.0 } else { self.hits as f64 / asked as f64 }
    }

    /// Returns the sum of both memos' counts.
    #[must_use]
    pub fn sum_with(self, other: Self) -> Self {
        Self {
            hits: self.hits + other.hits,
            misses: self.misses + other.misses,
            dropped: self.dropped + other.dropped,
            held: self.held + other.held,
        }
    }
}

impl Memo {
    /// Returns a memo for solves under `limits` that holds up to `capacity` pieces. A piece of 20 operators takes about
    /// 2 kB. A full memo answers the pieces that it holds and solves the others.
    #[must_use]
    pub fn new(limits: SolveLimits, capacity: usize) -> Self {
        Self {
            limits,
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            per_shard: capacity.div_ceil(SHARDS),
            hasher: RandomState::new(),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            dropped: AtomicU64::new(0),
        }
    }

    /// Solves a problem as [`super::solve_problem`] does, under the memo's limits; each piece is solved once.
    #[must_use]
    pub fn solve_problem(&self, problem: &Problem) -> Schedule {
        solve_with_answers(problem, |piece| self.answer_piece(piece))
    }

    /// The counts so far.
    #[must_use]
    pub fn statistics(&self) -> MemoStatistics {
        MemoStatistics {
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
            dropped: self.dropped.load(Ordering::Relaxed),
            held: self.shards.iter().map(|s| s.lock().unwrap_or_else(PoisonError::into_inner).len() as u64).sum(),
        }
    }

    fn answer_piece(&self, piece: &Piece) -> (PieceAnswer, bool) {
        let solve = || portfolio::solve_piece(piece, Budget::from_limits(&self.limits));
        if piece.operator_count() == 1 {
            return (solve(), false);
        }
        let shard = &self.shards[self.hasher.hash_one(piece) as usize % SHARDS];
        let known = shard.lock().unwrap_or_else(PoisonError::into_inner).get(piece).cloned();
        if let Some(answer) = known {
            self.hits.fetch_add(1, Ordering::Relaxed);
            return (PieceAnswer::clone(&answer), true);
        }
        let answer = solve();
        let mut held = shard.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have solved the piece meanwhile. It counts as a hit, so the counts do not depend on the
        // order of threads.
        let counter = if held.contains_key(piece) { &self.hits } else { &self.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        // Under a time limit an open answer depends on the moment, so it is not stored.
        if self.limits.time.is_none() || answer.lower_bound == answer.found.makespan {
            if held.len() < self.per_shard {
                held.entry(piece.clone()).or_insert_with(|| Arc::new(answer.clone()));
            } else if !held.contains_key(piece) {
                self.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
        (answer, false)
    }
}
