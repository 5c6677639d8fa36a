//! The largest models and batches that are costed, from whatever file or option: what 64-bit counts of bytes and floats that hold every whole number
//! up to 2^53 carry without an overflow. What is over them is a slip of the pen, and is refused by name.

/// Largest width of the residual stream or of a head, 2^20.
pub const MAX_WIDTH: u64 = 1 << 20;
/// Largest width of an MLP, 2^24.
pub const MAX_FFN: u64 = 1 << 24;
/// Most layers, 2^12: four times the deepest transformer that was trained (DeepNet, Wang et al. 2022: 1,000 layers). A plan is searched layer by
/// layer, in time that grows faster than their number.
pub const MAX_LAYERS: u64 = 1 << 12;
/// Most modules that predict further tokens: four times as many as have been studied (Gloeckle et al. 2024, arXiv:2404.19737: up to 8).
pub const MAX_FURTHER_TOKENS: u64 = 32;
/// Most heads, 2^16.
pub const MAX_HEADS: u64 = 1 << 16;
/// Most experts of a layer, 2^16.
pub const MAX_EXPERTS: u64 = 1 << 16;
/// Largest vocabulary, 2^24.
pub const MAX_VOCABULARY: u64 = 1 << 24;
/// Most positions, 2^24.
pub const MAX_POSITIONS: u64 = 1 << 24;
/// Most weights in the matrices of a model, 2^50; within the limits above they could be 2^78. With weights, gradients and Adam's states at 18 bytes
/// each these are 2^55 bytes.
pub const MAX_WEIGHTS: u128 = 1 << 50;
/// Most elements of any tensor of a micro-batch but unfused attention's scores, 2^53: at 8 bytes each 2^56 bytes. Scores saturate: they then fit
/// nowhere.
pub const MAX_ELEMENTS: u128 = 1 << 53;
/// Most tokens of a step, 2^53: a float counts every one.
pub const MAX_TOKENS: u128 = 1 << 53;
/// Most passes of micro-batches through the chunks of a pipeline, 2^24: its schedule is held pass by pass, about a gigabyte of them.
pub const MAX_PASSES: u128 = 1 << 24;
