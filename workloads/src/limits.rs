//! The largest models and batches that are simulated, from any file or option. Within these limits, 64-bit byte counts
//! do not overflow, and floats represent every whole number exactly (up to 2^53). Larger values are treated as
//! mistakes, and the error names the limit.

/// Largest width of the residual stream or of a head, 2^20.
pub const MAX_WIDTH: u64 = 1 << 20;
/// Largest width of an MLP, 2^24.
pub const MAX_FFN: u64 = 1 << 24;
/// Largest number of layers, 2^12: four times the deepest trained transformer (DeepNet, Wang et al. 2022: 1,000
/// layers). The planner searches layer by layer, and its time grows faster than linearly in the number of layers.
pub const MAX_LAYERS: u64 = 1 << 12;
/// Largest number of modules that predict further tokens, four times the largest number studied (Gloeckle et al. 2024,
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
/// Largest number of weights in a model's matrices, 2^50. The limits above would allow 2^78. At 18 bytes per weight
/// (weights, gradients and Adam's states), the limit is below 2^55 bytes.
pub const MAX_WEIGHTS: u128 = 1 << 50;
/// Largest number of elements of any tensor of a micro-batch, 2^53; at 8 bytes each these are 2^56 bytes. Scores of
/// unfused attention are exempt: their size saturates, and then no device can hold them.
pub const MAX_ELEMENTS: u128 = 1 << 53;
/// Most tokens per step, 2^53: a float can count them exactly.
pub const MAX_TOKENS: u128 = 1 << 53;
/// Largest number of passes of micro-batches through the chunks of a pipeline, 2^24. The schedule is held pass by pass.
/// At the limit it takes about a gigabyte.
pub const MAX_PASSES: u128 = 1 << 24;
