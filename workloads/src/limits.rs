//! The largest models and batches that are costed, whatever file or option they come from. Within these limits, 64-bit
//! byte counts do not overflow, and floats represent every whole number (up to 2^53). Larger values are mistakes, and
//! are refused by name.

/// Largest width of the residual stream or of a head, 2^20.
pub const MAX_WIDTH: u64 = 1 << 20;
/// Largest width of an MLP, 2^24.
pub const MAX_FFN: u64 = 1 << 24;
/// Most layers, 2^12: four times the deepest trained transformer (DeepNet, Wang et al. 2022: 1,000 layers). The planner
/// searches layer by layer, and its time grows faster than their number.
pub const MAX_LAYERS: u64 = 1 << 12;
/// Most modules that predict further tokens: four times as many as were studied (Gloeckle et al. 2024,
/// arXiv:2404.19737: up to 8).
pub const MAX_FURTHER_TOKENS: u64 = 32;
/// Most heads, 2^16.
pub const MAX_HEADS: u64 = 1 << 16;
/// Most experts per layer, 2^16.
pub const MAX_EXPERTS: u64 = 1 << 16;
/// Largest vocabulary, 2^24.
pub const MAX_VOCABULARY: u64 = 1 << 24;
/// Most positions, 2^24.
pub const MAX_POSITIONS: u64 = 1 << 24;
/// Most weights in the matrices of a model, 2^50. The limits above would allow 2^78. With weights, gradients and Adam's
/// states at 18 bytes each these are 2^55 bytes.
pub const MAX_WEIGHTS: u128 = 1 << 50;
/// Most elements of any tensor of a micro-batch, 2^53: at 8 bytes each 2^56 bytes. Scores of unfused attention are
/// exempt; they saturate, and then fit nowhere.
pub const MAX_ELEMENTS: u128 = 1 << 53;
/// Most tokens per step, 2^53: a float can count them exactly.
pub const MAX_TOKENS: u128 = 1 << 53;
/// Most passes of micro-batches through the chunks of a pipeline, 2^24. The schedule is held pass by pass; at the limit
/// it takes about a gigabyte.
pub const MAX_PASSES: u128 = 1 << 24;
