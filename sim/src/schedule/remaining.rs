//! The operators that have not started in a down-set.

use super::bounds::OperatorBitset;

/// Number of mixed bounds per state.
pub(super) const LANES: usize = 8;

/// The contribution of operators that have not started to each mixed bound of a state.
pub(super) type BoundIncrements = [f64; LANES];

/// Classes of operators: one per set of kind bits, plus [`ACROSS`].
pub(super) const CLASSES: usize = 6;

/// The class of operators that only run across all cores, and so wait until all of them are idle.
pub(super) const ACROSS: usize = 5;

/// The index that stands for no operator.
pub(super) const NOTHING: u8 = u8::MAX;

/// The operators that have not started, given a down-set of started ones.
#[derive(Debug, Clone, Default)]
pub(super) struct RemainingOperators {
    /// Operators whose predecessors have all started.
    pub ready: OperatorBitset,
    /// Per class: the longest time from an operator's start to the end of the piece, that operator, and the longest
    /// time among the others.
    pub longest: [(u64, u8, u64); CLASSES],
    /// The operators that use each resource, by falling `after`, with their core-ticks.
    pub by_tail: [Vec<(u8, u64)>; 3],
    pub adds: BoundIncrements,
}

impl RemainingOperators {
    /// Returns the longest time from the start of an operator of `class` to the end of the piece, without operator
    /// `but`. Zero if the class has no other operator.
    pub fn longest_without(&self, class: usize, but: u8) -> u64 {
        let (most, whose, second) = self.longest[class];
        if whose == but { second } else { most }
    }

    pub fn note_length(&mut self, class: usize, length: u64, operator: usize) {
        let (most, _, second) = &mut self.longest[class];
        if length > *most {
            self.longest[class] = (length, operator as u8, *most);
        } else {
            *second = length.max(*second);
        }
    }
}
