//! The distribution of document lengths.

use serde::{Deserialize, Serialize};

/// The documents of one length, as a weight among all lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct DocumentLength {
    /// Tokens of a document.
    pub tokens: u64,
    /// Documents of that length, relative to the other lengths.
    pub documents: u64,
}
