//! Process nodes.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A process node, named as its foundry names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Node {
    /// 45 nm planar.
    N45,
    /// 28 nm planar.
    N28,
    /// 22 nm.
    N22,
    /// 16 nm FinFET (and its 12 nm shrink).
    N16,
    /// 7 nm.
    N7,
    /// 6 nm, the optical shrink of 7 nm.
    N6,
    /// 5 nm.
    N5,
    /// 4 nm, the optical shrink of 5 nm (TSMC 4N and 4NP included).
    N4,
    /// 3 nm.
    N3,
}

impl Node {
    /// The number in the node's name, in nanometres.
    #[must_use]
    pub fn nanometres(self) -> u32 {
        match self {
            Self::N45 => 45,
            Self::N28 => 28,
            Self::N22 => 22,
            Self::N16 => 16,
            Self::N7 => 7,
            Self::N6 => 6,
            Self::N5 => 5,
            Self::N4 => 4,
            Self::N3 => 3,
        }
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} nm", self.nanometres())
    }
}
