//! A call of attention, as measurements of single kernels describe it.

use crate::kernel::{DataType, Direction};

/// A call of attention: `queries` new tokens of each sequence attend to the `keys` tokens before and among them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionCall {
    /// Forward or backward.
    pub direction: Direction,
    /// Sequences.
    pub batch: u64,
    /// Query heads.
    pub heads: u64,
    /// Key and value heads.
    pub kv_heads: u64,
    /// New tokens of a sequence; 1 in decoding.
    pub queries: u64,
    /// Visible tokens of a sequence, the new ones included.
    pub keys: u64,
    /// Dimension of a head.
    pub head_dim: u64,
    /// Keys that a query sees at most, where attention has a window.
    pub window: Option<u64>,
    /// Type of queries, keys and values.
    pub operand: DataType,
    /// True if a serving library runs it: it then includes the rotary embedding and the write of keys and values to
    /// their cache.
    pub serving: bool,
}
