//! The operators that are recomputed in the backward pass.

use serde::{Deserialize, Serialize};
use sim::kernel::OpId;
use std::collections::BTreeSet;

/// The operators that are recomputed in the backward pass.
///
/// A layer has one backward pass, and rebuilt tensors live until it ends. So each operator is recomputed at most once,
/// and a set describes the recomputation completely.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct RecomputeSet(BTreeSet<OpId>);

impl RecomputeSet {
    /// Returns the empty set: every saved tensor is kept.
    #[must_use]
    pub fn none() -> Self {
        Self::default()
    }

    /// Returns whether the operator is recomputed.
    #[must_use]
    pub fn contains(&self, op: OpId) -> bool {
        self.0.contains(&op)
    }

    /// Adds an operator.
    pub fn insert(&mut self, op: OpId) {
        self.0.insert(op);
    }

    /// Returns the operators, in order.
    pub fn iter(&self) -> impl Iterator<Item = OpId> + '_ {
        self.0.iter().copied()
    }

    /// Returns the number of operators.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether nothing is recomputed.
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
