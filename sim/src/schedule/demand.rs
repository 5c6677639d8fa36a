//! The numbers of cores and links of each kind that an operator takes, packed into one number.

/// Bits per kind in a [`CoreDemand`].
const BITS: u32 = 10;

/// The highest bit of each kind.
const GUARDS: u32 = 1 << (BITS - 1) | 1 << (2 * BITS - 1) | 1 << (3 * BITS - 1);

/// Numbers of tensor cores, vector cores and links, packed into one number so that one operation adds or compares them.
/// A searchable piece has at most 128 of each, which leaves the highest bit of each kind free.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct CoreDemand(u32);

impl CoreDemand {
    pub fn from_counts(need: [u32; 3]) -> Self {
        debug_assert!(need.iter().all(|&n| n < 1 << (BITS - 1)));
        Self(need[0] | need[1] << BITS | need[2] << (2 * BITS))
    }

    /// Returns the count of kind `k`.
    pub fn of_kind(self, k: usize) -> u32 {
        self.0 >> (BITS * k as u32) & ((1 << BITS) - 1)
    }

    /// The sum over all kinds.
    pub fn total_cores(self) -> u32 {
        self.of_kind(0) + self.of_kind(1) + self.of_kind(2)
    }

    pub fn is_at_most(self, other: Self) -> bool {
        ((other.0 | GUARDS) - self.0) & GUARDS == GUARDS
    }

    pub fn add_demand(&mut self, other: Self) {
        self.0 += other.0;
    }
}
