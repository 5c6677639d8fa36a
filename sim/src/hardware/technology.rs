//! Process nodes.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A process node, named as its foundry names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProcessNode {
    /// 45 nm planar.
    N45,
    /// 28 nm planar.
    N28,
    /// 22 nm.
    N22,
    /// 16 nm FinFET, and 12 nm, its optical shrink.
    N16,
    /// Samsung's 8 nm, its last step before EUV.
    N8,
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

impl ProcessNode {
    /// All nodes, oldest first.
    pub const ALL: [Self; 10] =
        [Self::N45, Self::N28, Self::N22, Self::N16, Self::N8, Self::N7, Self::N6, Self::N5, Self::N4, Self::N3];

    /// The number in the node's name, in nanometres.
    #[must_use]
    pub fn nanometres(self) -> u32 {
        match self {
            Self::N45 => 45,
            Self::N28 => 28,
            Self::N22 => 22,
            Self::N16 => 16,
            Self::N8 => 8,
            Self::N7 => 7,
            Self::N6 => 6,
            Self::N5 => 5,
            Self::N4 => 4,
            Self::N3 => 3,
        }
    }
}

impl fmt::Display for ProcessNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} nm", self.nanometres())
    }
}
