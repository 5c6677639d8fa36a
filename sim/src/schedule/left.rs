//! Remaining work after a down-set. All states that extend the down-set by one operator share it, so it is computed
//! once.

use super::bounds::{OperatorBitset, first_operators, set_members};
use super::state::{BoundIncrements, Searcher};

/// Classes of operators: one per set of kind bits, plus [`ACROSS`].
const CLASSES: usize = 6;
/// The class of operators that only run across all cores and wait until all of them are idle.
pub(super) const ACROSS: usize = 5;

/// Cached down-sets, as a power of two: about as many as a layer has states. Small pieces cache fewer, one bit per
/// three operators.
const REMEMBERED: usize = 9;

/// The index of no operator.
pub(super) const NOTHING: u8 = u8::MAX;

/// The operators that have not started after a down-set.
#[derive(Debug, Clone, Default)]
pub(super) struct RemainingOperators {
    /// Operators whose predecessors have all started.
    pub ready: OperatorBitset,
    /// Per class: the longest time from an operator's start to the end of the piece, that operator, and the longest
    /// time among the others.
    longest: [(u64, u8, u64); CLASSES],
    /// The operators that use each resource, by falling `after`, with their core-ticks.
    pub by_tail: [Vec<(u8, u64)>; 3],
    pub adds: BoundIncrements,
}

impl RemainingOperators {
    /// The longest time from the start of an operator of `class` to the end of the piece, operator `but` excluded; 0
    /// where the class has no other.
    pub fn longest_without(&self, class: usize, but: u8) -> u64 {
        let (most, whose, second) = self.longest[class];
        if whose == but { second } else { most }
    }

    fn note_length(&mut self, class: usize, length: u64, operator: usize) {
        let (most, _, second) = &mut self.longest[class];
        if length > *most {
            self.longest[class] = (length, operator as u8, *most);
        } else {
            *second = length.max(*second);
        }
    }
}

/// A cache of the remaining work after the down-sets that were asked for last.
#[derive(Debug, Default)]
pub(super) struct RemainingCache {
    known: Vec<(OperatorBitset, RemainingOperators)>,
}

impl RemainingCache {
    /// The remaining work after the down-set `set`.
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

    /// The operators that can start once `operator` has started too. `set` is the down-set that includes `operator`.
    pub fn ready_after_start(&self, left: &RemainingOperators, operator: u8, set: OperatorBitset) -> OperatorBitset {
        if operator == NOTHING {
            return left.ready;
        }
        let freed = set_members(self.relation.succs[operator as usize]).filter(|&i| self.relation.preds[i] & !set == 0);
        freed.fold(left.ready & !(1 << operator), |ready, i| ready | 1 << i)
    }
}
