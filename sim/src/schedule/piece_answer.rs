//! The answer to a piece, and the bounds that are known before any exact method runs.

use super::ProofMethod;
use super::bounds::{MixedBound, PrecedenceSets, chain_tails, quick_lower_bound, successors_and_tails};
use super::list::{ExclusivePolicy, PieceSchedule, list_schedule};
use super::piece::{Piece, SEARCHABLE};

/// Rounds of fictitious play for the quick mixed bound.
const QUICK_ROUNDS: usize = 32;

/// The best schedule and lower bound of a piece.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct PieceAnswer {
    pub found: PieceSchedule,
    pub lower_bound: u64,
    pub method: ProofMethod,
    pub steps: u64,
}

impl PieceAnswer {
    /// Raises the lower bound to `bound`, but at most to the makespan found. `bound` holds for every schedule better
    /// than the one found.
    pub fn raise_lower_bound(&mut self, bound: u64) {
        self.lower_bound = self.lower_bound.max(bound.min(self.found.makespan));
    }
}

/// Returns the best lower bound and the best list schedule of a piece, without search.
pub(super) fn bound_without_search(piece: &Piece) -> (u64, PieceSchedule) {
    let tails = chain_tails(piece);
    let mut lower = quick_lower_bound(piece, &tails);
    let urgency = successors_and_tails(piece);
    let mut best = list_schedule(piece, &urgency, ExclusivePolicy::Alone);
    if best.makespan == lower || !piece.has_exclusive() {
        return (lower, best);
    }
    if piece.operator_count() <= SEARCHABLE {
        let relation = PrecedenceSets::of_piece(piece);
        let mixed = MixedBound::search_weights(piece, &relation, relation.all_operators(), QUICK_ROUNDS);
        lower = lower.max(mixed.integer_bound());
        let flags: Vec<bool> = (0..piece.operator_count())
            .map(|i| mixed.on[i] * piece.lat[i] as f64 > mixed.stops[i] * piece.exc[i] as f64)
            .collect();
        keep_better(&mut best, list_schedule(piece, &tails, ExclusivePolicy::Flagged(&flags)));
    }
    if best.makespan > lower {
        keep_better(
            &mut best,
            list_schedule(piece, &tails, ExclusivePolicy::Flagged(&vec![true; piece.operator_count()])),
        );
    }
    (lower, best)
}

pub(super) fn keep_better(best: &mut PieceSchedule, other: PieceSchedule) {
    if other.makespan < best.makespan {
        *best = other;
    }
}

/// Returns the answer to a piece of one operator.
pub(super) fn answer_single_operator(piece: &Piece) -> PieceAnswer {
    let exclusive = piece.exc[0] < piece.lat[0];
    let slots = if piece.paired { vec![if exclusive { u32::MAX } else { 0 }] } else { Vec::new() };
    let found =
        PieceSchedule { makespan: piece.shortest_latency(0), starts: vec![0], exclusive: vec![exclusive], slots };
    PieceAnswer { lower_bound: found.makespan, found, method: ProofMethod::Decomposition, steps: 0 }
}
