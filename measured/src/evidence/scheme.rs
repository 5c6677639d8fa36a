//! The schemes by which rows are held out.

use std::fmt;

/// The rows that are held out together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum HoldOutScheme {
    /// Models of similar size.
    Model,
    /// Runs on a similar number of chips.
    Nodes,
    /// A chip.
    Chip,
    /// The software. Its scalars are then those of the other stacks.
    Stack,
}

impl HoldOutScheme {
    /// Every scheme.
    pub const ALL: [Self; 4] = [Self::Model, Self::Nodes, Self::Chip, Self::Stack];
    /// Schemes under which a stack's scalars are fitted to the other folds.
    pub const FITTED: [Self; 3] = [Self::Model, Self::Nodes, Self::Chip];
}

impl fmt::Display for HoldOutScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Model => "model",
            Self::Nodes => "nodes",
            Self::Chip => "chip",
            Self::Stack => "stack",
        })
    }
}
