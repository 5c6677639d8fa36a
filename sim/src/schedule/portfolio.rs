//! Solves one piece: bounds and list schedules first, then search waves. The waves widen until one proves the answer or
//! the work limit is spent. With a time limit, the integer program uses the time that is left; [`ExactMethod::Ilp`]
//! skips the waves. Pieces of more than [`SEARCHABLE`] operators keep their list schedule. sim/README.md reports the
//! effect of leaving methods out.

use super::bounds::{OperatorBitset, PrecedenceSets, find_only_across, set_members};
use super::cores::pair_by_index;
use super::list::{ExclusivePolicy, PieceSchedule, list_schedule};
use super::piece::{Piece, SEARCHABLE};
use super::piece_answer::{PieceAnswer, answer_single_operator, bound_without_search, keep_better};
use super::search::Exploration;
use super::state::Searcher;
use super::{Backend, ExactMethod, ProofMethod, SolveLimits, ilp};
use std::time::{Duration, Instant};

/// Widths of the waves. The first one solves most pieces.
const WIDTHS: [usize; 7] = [64, 128, 512, 4_096, 16_384, 131_072, usize::MAX];

/// The remaining work in steps, the deadline if there is one, and the exact methods that may run.
#[derive(Debug, Clone, Copy)]
pub(super) struct Budget {
    pub steps: u64,
    pub deadline: Option<Instant>,
    pub method: ExactMethod,
    pub solver: Backend,
}

impl Budget {
    pub fn from_limits(limits: &SolveLimits) -> Self {
        let deadline = limits.time.map(|t| Instant::now() + t);
        Self { steps: limits.steps, deadline, method: limits.method, solver: limits.solver }
    }

    /// Returns the time that the integer program may take: `None` if it may not run, `Some(None)` if nothing limits it.
    fn time_for_program(&self) -> Option<Option<Duration>> {
        let left = self.deadline.map(|d| d.saturating_duration_since(Instant::now()));
        match (self.method, left) {
            (ExactMethod::Search, _) | (ExactMethod::Auto, None) => None,
            (_, Some(left)) => (!left.is_zero()).then_some(Some(left)),
            (ExactMethod::Ilp, None) => Some(None),
        }
    }

    pub fn is_spent(&self, steps: u64) -> bool {
        steps >= self.steps || self.deadline.is_some_and(|d| Instant::now() >= d)
    }
}

/// Solves a piece within the budget.
pub(super) fn solve_piece(piece: &Piece, budget: Budget) -> PieceAnswer {
    if piece.operator_count() == 1 {
        return answer_single_operator(piece);
    }
    if !piece.pairing_matters() {
        return solve_as_is(piece, budget, 0, None);
    }
    // The piece is easier if any cores may pair. A lower bound for the easier piece holds here too, and its schedule
    // often fits.
    let first = budget.steps / 4 * 3;
    let relaxed = solve_as_is(&piece.without_pairing(), Budget { steps: first, ..budget }, 0, None);
    if let Some(slots) = pair_by_index(piece, &relaxed.found) {
        return PieceAnswer { found: PieceSchedule { slots, ..relaxed.found }, ..relaxed };
    }
    let rest = Budget { steps: budget.steps.saturating_sub(relaxed.steps), ..budget };
    let answer = solve_as_is(piece, rest, relaxed.lower_bound, Some(&relaxed.found));
    PieceAnswer { steps: answer.steps + relaxed.steps, ..answer }
}

/// Solves a piece as it is. `known` is a lower bound from elsewhere, and `like` a schedule whose order one list
/// schedule follows.
fn solve_as_is(piece: &Piece, budget: Budget, known: u64, like: Option<&PieceSchedule>) -> PieceAnswer {
    let (lower, mut found) = bound_without_search(piece);
    if let Some(like) = like {
        let sooner: Vec<u64> = like.starts.iter().map(|s| like.makespan - s).collect();
        keep_better(&mut found, list_schedule(piece, &sooner, ExclusivePolicy::Flagged(&like.exclusive)));
    }
    let mut answer = PieceAnswer { lower_bound: lower.max(known), found, method: ProofMethod::Bounds, steps: 0 };
    if answer.lower_bound >= answer.found.makespan {
        return answer;
    }
    if piece.operator_count() <= SEARCHABLE {
        if budget.method != ExactMethod::Ilp {
            search_in_waves(piece, &mut answer, budget);
        }
        if answer.lower_bound < answer.found.makespan
            && let Some(time_limit) = budget.time_for_program()
        {
            ilp::improve_answer(piece, &mut answer, budget.solver, time_limit);
        }
    }
    if answer.lower_bound < answer.found.makespan {
        answer.method = ProofMethod::Open;
    }
    answer
}

/// Returns the piece with a longer single-core latency for the operators in `across`, which only run across all cores.
/// The latency is longer than all operators take one after another.
fn lengthen_across_only(piece: &Piece, across: OperatorBitset) -> Piece {
    let longer = (0..piece.operator_count()).map(|i| piece.shortest_latency(i)).sum::<u64>() + 1;
    let mut hard = piece.clone();
    for i in set_members(across) {
        hard.lat[i] = longer.max(piece.lat[i]);
    }
    hard
}

/// Searches in waves of rising width until one proves the answer or the budget is spent.
fn search_in_waves(piece: &Piece, answer: &mut PieceAnswer, budget: Budget) {
    let across = find_only_across(piece, &PrecedenceSets::of_piece(piece));
    let hard = lengthen_across_only(piece, across);
    let searcher = Searcher::new(&hard, across);
    answer.raise_lower_bound(searcher.lower_bound_of_piece());
    let mut way = Exploration::new(&searcher);
    for width in WIDTHS {
        if answer.lower_bound >= answer.found.makespan || budget.is_spent(answer.steps) {
            return;
        }
        answer.method = ProofMethod::Search;
        let wave = way.search_wave(answer.found.makespan, width, budget.steps - answer.steps);
        answer.steps += wave.steps;
        answer.found = wave.found.unwrap_or_else(|| answer.found.clone());
        answer.raise_lower_bound(wave.lower_bound);
    }
}
