//! Remaining work after a down-set. All states that extend the down-set by one operator share this work, so it is
//! computed once.

use super::bounds::{OperatorBitset, first_operators, set_members};
use super::remaining::{ACROSS, CLASSES, NOTHING, RemainingOperators};
use super::state::Searcher;

/// Base-2 logarithm of the largest number of cached down-sets, which is about the number of states of a layer. The
/// logarithm for small pieces is a third of their number of operators.
const REMEMBERED: usize = 9;

/// A cache of the remaining work after the down-sets that were requested last.
#[derive(Debug, Default)]
pub(super) struct RemainingCache {
    known: Vec<(OperatorBitset, RemainingOperators)>,
}

impl RemainingCache {
    /// Returns the remaining work after the down-set `set`.
    pub fn find_or_compute(&mut self, searcher: &Searcher<'_>, set: OperatorBitset) -> &RemainingOperators {
        let bits = (searcher.piece.operator_count() / 3).min(REMEMBERED) as u32;
        let mixed = ((set as u64) ^ ((set >> 64) as u64).rotate_left(29)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let at = mixed.checked_shr(64 - bits).unwrap_or(0) as usize;
        if self.known.is_empty() {
            self.known.resize_with(1 << bits, || (OperatorBitset::MAX, RemainingOperators::default()));
        }
        let (known, left) = &mut self.known[at];
        if *known != set {
            *known = set;
            searcher.compute_remaining(set, left);
        }
        left
    }
}

impl Searcher<'_> {
    /// Computes the remaining work after the down-set `set`.
    pub fn compute_remaining(&self, set: OperatorBitset, left: &mut RemainingOperators) {
        let rest = first_operators(self.piece.operator_count()) & !set;
        left.ready = 0;
        left.longest = [(0, NOTHING, 0); CLASSES];
        for i in set_members(rest) {
            if self.relation.preds[i] & !set == 0 {
                left.ready |= 1 << i;
            }
            let tail = self.shortest[i] + self.after[i];
            left.note_length(self.piece.kind[i] as usize, tail, i);
            if self.barriers && self.only_across >> i & 1 == 1 {
                left.note_length(ACROSS, tail, i);
            }
        }
        for (list, all) in left.by_tail.iter_mut().zip(&self.by_tail) {
            list.clear();
            list.extend(all.iter().filter(|&&(i, _)| rest >> i & 1 == 1));
        }
        left.adds = self.increments_of(rest);
    }

    /// Returns the operators that can start once `operator` has started too. `set` is the down-set that includes
    /// `operator`.
    pub fn ready_after_start(&self, left: &RemainingOperators, operator: u8, set: OperatorBitset) -> OperatorBitset {
        if operator == NOTHING {
            return left.ready;
        }
        let freed = set_members(self.relation.succs[operator as usize]).filter(|&i| self.relation.preds[i] & !set == 0);
        freed.fold(left.ready & !(1 << operator), |ready, i| ready | 1 << i)
    }
}
