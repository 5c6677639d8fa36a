//! What errors are judged without.

use std::fmt;

/// What is held out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum HoldOutScheme {
    /// Models of about one size.
    Model,
    /// Runs on about as many chips.
    Nodes,
    /// A chip.
    Chip,
    /// The software: its scalars are those that the other stacks have.
    Stack,
}

impl HoldOutScheme {
    /// Every scheme.
    pub const ALL: [Self; 4] = [Self::Model, Self::Nodes, Self::Chip, Self::Stack];
    /// Those under which a stack's scalars are fitted to the other folds.
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
