//! Remembers solved pieces. Layers repeat: over a model, over micro-batches, over designs whose latencies differ by a factor.

use super::piece::Piece;
use super::portfolio::{self, Budget, PieceAnswer};
use super::{Problem, Schedule, SolveLimits, solve_with_answers};
use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

const SHARDS: usize = 64;

/// Answers by piece in normal form: isomorphic layers, and layers whose latencies differ by a factor, share one.
///
/// Share one memo among threads by reference. An answer depends on the piece and the limits only, never on what was remembered or
/// on which thread came first, so results are the same with and without it; only the statistics depend on the order of events. The
/// limits belong to the memo, for the same reason.
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

/// How a memo did. As long as nothing was dropped, the counts do not depend on the number of threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Serialize, serde::Deserialize)]
pub struct MemoStatistics {
    /// Pieces found.
    pub hits: u64,
    /// Pieces solved.
    pub misses: u64,
    /// Answers that found no room.
    pub dropped: u64,
    /// Answers held.
    pub held: u64,
}

impl MemoStatistics {
    /// The share of pieces found, 0 when none were asked for.
    #[must_use]
    pub fn hit_rate(&self) -> f64 {
        let asked = self.hits + self.misses;
        if asked == 0 { 0.0 } else { self.hits as f64 / asked as f64 }
    }

    /// Both memos' counts.
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
    /// A memo for solves under `limits` that holds up to `capacity` pieces (a piece of 20 operators takes about 2 kB). A full memo
    /// answers what it holds and solves the rest.
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

    /// [`super::solve_problem`] under the memo's limits, each piece solved once.
    #[must_use]
    pub fn solve_problem(&self, problem: &Problem) -> Schedule {
        solve_with_answers(problem, |piece| self.answer_piece(piece))
    }

    /// How it did so far.
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
        // A piece that another thread has solved meanwhile counts as found, so that the counts do not depend on who came first.
        let counter = if held.contains_key(piece) { &self.hits } else { &self.misses };
        counter.fetch_add(1, Ordering::Relaxed);
        // Under a time limit an open answer says more about the moment than about the piece.
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
