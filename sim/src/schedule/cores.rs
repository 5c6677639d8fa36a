//! Core assignment: turns start times into core numbers.

use super::CoreAssignment;
use super::list::PieceSchedule;
use super::piece::{LINK, Piece, TENSOR, VECTOR};

/// Tries of the search for a pairing by index. They decide small cases; on larger ones the search gives up.
const PAIRING_TRIES: u32 = 4_000;

fn length_in_mode(piece: &Piece, found: &PieceSchedule, i: usize) -> u64 {
    if found.exclusive[i] { piece.exc[i] } else { piece.lat[i] }
}

fn order_by_start(piece: &Piece, found: &PieceSchedule) -> Vec<usize> {
    let mut order: Vec<usize> = (0..piece.operator_count()).filter(|&i| !found.exclusive[i]).collect();
    order.sort_by_key(|&i| (found.starts[i], i));
    order
}

/// Assigns core numbers to a schedule whose core counts fit. If the piece pairs by index, the schedule must carry its
/// slots.
pub(super) fn assign_cores(piece: &Piece, found: &PieceSchedule) -> Vec<CoreAssignment> {
    let mut cores = vec![CoreAssignment::default(); piece.operator_count()];
    let mut free_at =
        [vec![0u64; piece.m[0] as usize], vec![0u64; piece.m[1] as usize], vec![0u64; piece.m[2] as usize]];
    for i in order_by_start(piece, found) {
        let (start, end) = (found.starts[i], found.starts[i] + length_in_mode(piece, found, i));
        let slot = found.slots.get(i).copied().filter(|&s| s != u32::MAX && piece.paired && piece.kind[i] != LINK);
        let mut take = |k: usize| {
            let chosen = slot.or_else(|| free_at[k].iter().position(|&t| t <= start).map(|c| c as u32));
            if let Some(until) = chosen.and_then(|c| free_at[k].get_mut(c as usize)) {
                *until = end;
            }
            chosen
        };
        cores[i] = CoreAssignment {
            tensor_core: if piece.kind[i] & TENSOR > 0 { take(0) } else { None },
            vector_core: if piece.kind[i] & VECTOR > 0 { take(1) } else { None },
            link: if piece.kind[i] == LINK { take(2) } else { None },
        };
    }
    cores
}

/// Searches core indices for a schedule that ignored them, so that each fused operator gets two cores of equal index.
/// `None` if no such assignment exists, or if [`PAIRING_TRIES`] run out.
pub(super) fn pair_by_index(piece: &Piece, found: &PieceSchedule) -> Option<Vec<u32>> {
    let order: Vec<usize> = order_by_start(piece, found).into_iter().filter(|&i| piece.kind[i] != LINK).collect();
    let mut search = PairSearch {
        piece,
        found,
        order,
        free: [vec![0; piece.m[0] as usize], vec![0; piece.m[1] as usize]],
        slots: vec![u32::MAX; piece.operator_count()],
        tries: PAIRING_TRIES,
    };
    search.place_operator(0).then_some(search.slots)
}

struct PairSearch<'a> {
    piece: &'a Piece,
    found: &'a PieceSchedule,
    order: Vec<usize>,
    /// The time at which each tensor and each vector core is next free.
    free: [Vec<u64>; 2],
    slots: Vec<u32>,
    tries: u32,
}

impl PairSearch<'_> {
    fn place_operator(&mut self, at: usize) -> bool {
        let Some(&i) = self.order.get(at) else { return true };
        if self.tries == 0 {
            return false;
        }
        self.tries -= 1;
        let (kind, start) = (self.piece.kind[i], self.found.starts[i]);
        let end = start + length_in_mode(self.piece, self.found, i);
        let until = |busy: &[u64], c: usize| busy.get(c).map_or(u64::MAX, |&t| t.max(start));
        let width = self.free[0].len().max(self.free[1].len());
        // Prefer indices whose partner core is busy longest: a fused operator has the least use for them.
        let mut choices: Vec<(u64, usize)> = (0..width)
            .filter(|&c| {
                (kind & TENSOR == 0 || until(&self.free[0], c) == start)
                    && (kind & VECTOR == 0 || until(&self.free[1], c) == start)
            })
            .map(|c| (until(&self.free[usize::from(kind == TENSOR)], c), c))
            .collect();
        choices.sort_by_key(|&(partner, c)| (std::cmp::Reverse(partner), c));
        choices.dedup_by_key(|&mut (partner, _)| partner);
        for (_, c) in choices {
            let before = [self.free[0].get(c).copied(), self.free[1].get(c).copied()];
            for (k, bit) in [TENSOR, VECTOR].into_iter().enumerate() {
                if kind & bit > 0 {
                    self.free[k][c] = end;
                }
            }
            self.slots[i] = c as u32;
            if self.place_operator(at + 1) {
                return true;
            }
            for (k, old) in before.into_iter().enumerate() {
                if let Some(old) = old {
                    self.free[k][c] = old;
                }
            }
        }
        false
    }
}
