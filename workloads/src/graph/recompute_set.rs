//! Which operators run again in the backward pass.

use serde::{Deserialize, Serialize};
use sim::kernel::OpId;
use std::collections::BTreeSet;

/// The operators to run again in the backward pass.
///
/// With one backward pass per layer and everything rebuilt kept until that layer's backward ends, each operator runs again at
/// most once, so a set says everything.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RecomputeSet(BTreeSet<OpId>);

impl RecomputeSet {
    /// Nothing is recomputed: every saved tensor is kept.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Whether the operator is recomputed.
    #[must_use]
    pub fn contains(&self, op: OpId) -> bool {
        self.0.contains(&op)
    }

    /// Adds an operator.
    pub fn insert(&mut self, op: OpId) {
        self.0.insert(op);
    }

    /// The operators, in order.
    pub fn iter(&self) -> impl Iterator<Item = OpId> + '_ {
        self.0.iter().copied()
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether nothing is recomputed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl FromIterator<OpId> for RecomputeSet {
    fn from_iter<I: IntoIterator<Item = OpId>>(ops: I) -> Self {
        Self(ops.into_iter().collect())
    }
}
