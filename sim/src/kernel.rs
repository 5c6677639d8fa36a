//! Kernels: the work that hardware executes. They are the vocabulary between `workloads`, which lowers operators to
//! kernels, and [`crate::cost`], which costs a kernel on an accelerator. No code here knows about models.

mod graph;
mod pieces;

use crate::units::{Bytes, Flops};
pub use graph::{GradientOf, KernelGraph, KernelId, KernelNode, KernelRole, OpId, ParallelAxis, Pass};
pub use pieces::{MOST_PIECE_LENGTHS, PieceLength, SequencePieces};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The type of a number in memory and on the arrays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DataType {
    /// IEEE binary32.
    Fp32,
    /// bfloat16.
    Bf16,
    /// IEEE binary16.
    Fp16,
    /// 8-bit floating point (E4M3 or E5M2).
    Fp8,
    /// 8-bit integer.
    Int8,
    /// 8-bit floating point in blocks of 32 with a scale of 8 bits (MXFP8: OCP Microscaling Formats specification 1.0,
    /// table 1).
    Mxfp8,
    /// 4-bit floating point (E2M1) in blocks of 16 with a scale of 8 bits (NVFP4: NVIDIA Blackwell).
    Nvfp4,
    /// 4-bit floating point (E2M1) in blocks of 32 with a scale of 8 bits (MXFP4: OCP Microscaling Formats
    /// specification 1.0, table 1).
    Mxfp4,
}

impl DataType {
    /// All types.
    pub const ALL: [Self; 8] =
        [Self::Fp32, Self::Bf16, Self::Fp16, Self::Fp8, Self::Int8, Self::Mxfp8, Self::Nvfp4, Self::Mxfp4];

    /// Its name in files, tables and answers.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Fp32 => "fp32",
            Self::Bf16 => "bf16",
            Self::Fp16 => "fp16",
            Self::Fp8 => "fp8",
            Self::Int8 => "int8",
            Self::Mxfp8 => "mxfp8",
            Self::Nvfp4 => "nvfp4",
            Self::Mxfp4 => "mxfp4",
        }
    }

    /// Returns the whole bytes of a single number: 4-bit numbers are rounded up, and block scales are left out.
    #[must_use]
    pub fn bytes(self) -> u64 {
        match self {
            Self::Fp32 => 4,
            Self::Bf16 | Self::Fp16 => 2,
            Self::Fp8 | Self::Int8 | Self::Mxfp8 | Self::Nvfp4 | Self::Mxfp4 => 1,
        }
    }

    /// Returns the bytes of `numbers` numbers in a tensor, with the scales of their blocks. Parts of a byte are rounded
    /// down.
    #[must_use]
    pub fn packed_bytes_of(self, numbers: u64) -> Bytes {
        match self {
            Self::Mxfp8 => Bytes(numbers.saturating_add(numbers / 32)),
            Self::Nvfp4 => Bytes((numbers / 2).saturating_add(numbers / 16)),
            Self::Mxfp4 => Bytes((numbers / 2).saturating_add(numbers / 32)),
            _ => Bytes(self.bytes()) * numbers,
        }
    }

    /// Returns the bytes of one number in a tensor, with its part of a block's scale.
    #[must_use]
    pub fn packed_bytes_per_number(self) -> f64 {
        match self {
            Self::Mxfp8 => 1.0 + 1.0 / 32.0,
            Self::Nvfp4 => 0.5 + 1.0 / 16.0,
            Self::Mxfp4 => 0.5 + 1.0 / 32.0,
            _ => self.bytes() as f64,
        }
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// `batch` independent products (m, k) x (k, n) -> (m, n).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Contraction {
    /// Independent products.
    pub batch: u64,
    /// Rows of the left operand and of the result.
    pub m: u64,
    /// Columns of the right operand and of the result.
    pub n: u64,
    /// The contracted dimension.
    pub k: u64,
    /// Type of both operands.
    pub operand: DataType,
    /// Type of the result in memory (fp32 for accumulated main gradients, for instance).
    pub result: DataType,
}

impl Contraction {
    /// Returns the number of floating-point operations; a multiply-accumulate counts as two.
    #[must_use]
    pub fn flops(&self) -> Flops {
        let macs = [self.m, self.n, self.k]
            .into_iter()
            .fold(u128::from(self.batch), |product, d| product.saturating_mul(d.into()));
        Flops(macs.saturating_mul(2))
    }

    /// Returns the bytes that must cross the outermost memory at least once: both operands in, the result out.
    #[must_use]
    pub fn compulsory_bytes(&self) -> Bytes {
        let operands = Bytes(self.batch) * self.m * self.k + Bytes(self.batch) * self.k * self.n;
        self.operand.packed_bytes_of(operands.0) + Bytes(self.result.bytes()) * self.result_count()
    }

    /// Returns the number of elements of the result.
    fn result_count(&self) -> u64 {
        self.batch.saturating_mul(self.m).saturating_mul(self.n)
    }
}

/// The pass of a function: the function itself or its gradient.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Direction {
    /// The function itself.
    Forward,
    /// Its gradient with respect to its inputs.
    Backward,
}

/// An elementwise function; [`crate::cost`] holds the vector-core cycles of each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ElementwiseFunction {
    /// A plain copy (also the identity activation, "linear").
    Copy,
    /// Addition or subtraction (residual, bias, embedding sum, gradient accumulation).
    Add,
    /// Multiplication (gating, scaling, masking).
    Mul,
    /// Rectified linear unit.
    Relu,
    /// Leaky ReLU (fixed slope).
    LeakyRelu,
    /// Parametric ReLU (learned slope).
    ParametricRelu,
    /// Exponential linear unit.
    Elu,
    /// Scaled exponential linear unit.
    Selu,
    /// Gaussian error linear unit.
    Gelu,
    /// Sigmoid linear unit, x * sigmoid(x).
    Silu,
    /// silu(gate) * up, the gated unit of Llama's MLP.
    SwiGlu,
    /// Logistic sigmoid.
    Sigmoid,
    /// Hyperbolic tangent.
    Tanh,
    /// Exponential.
    Exp,
    /// Heaviside step.
    BinaryStep,
    /// Rotary position embedding (a rotation of pairs).
    Rope,
    /// Dropout, with the random mask drawn or reread.
    Dropout,
    /// Change of number format (quantise or dequantise).
    Convert,
    /// One operation on numbers whose addresses are computed one by one, in a framework's kernel without vector loads.
    /// Its operands are broadcast, transposed, cut from wider rows, or of two sizes.
    Indexed,
    /// Gather of rows (embedding lookup, expert dispatch).
    Gather,
    /// Sum of rows that are sorted by their result (embedding gradient, expert combine).
    Scatter,
    /// Sum of unsorted rows by atomic additions, as a framework's `index_add` and `scatter_add` do it.
    ScatterAdd,
    /// One parameter update of plain SGD.
    Sgd,
    /// One parameter update of SGD with momentum.
    Momentum,
    /// One parameter update of Adam.
    Adam,
    /// One parameter update of Adafactor (factored second moments, no momentum).
    Adafactor,
    /// One parameter update of Adam whose moments are read and written in 8 bits.
    Adam8bit,
}

/// One function over `elements` numbers, in one pass over memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Elementwise {
    /// The function.
    pub function: ElementwiseFunction,
    /// Its direction.
    pub direction: Direction,
    /// Results computed. For [`ElementwiseFunction::SwiGlu`] they are those of the gated product.
    pub elements: u64,
    /// Bytes read, all operands together.
    pub read: Bytes,
    /// Bytes written, all results together.
    pub written: Bytes,
}

/// A function that reduces along rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RowFunction {
    /// Softmax along the row.
    Softmax,
    /// Layer normalisation along the row.
    LayerNorm,
    /// Root-mean-square normalisation along the row.
    RmsNorm,
    /// Softmax cross-entropy against one label per row.
    CrossEntropy,
    /// Plain sum along the row (bias gradients, for instance).
    Sum,
}

/// A row-wise reduction over `rows` x `columns`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Reduction {
    /// The function.
    pub function: RowFunction,
    /// Its direction.
    pub direction: Direction,
    /// Independent rows.
    pub rows: u64,
    /// Numbers in a row.
    pub columns: u64,
    /// Compulsory bytes read, each operand once. The cost model adds passes if a row does not stay on chip.
    pub read: Bytes,
    /// Bytes written.
    pub written: Bytes,
}

/// Attention fused over tiles of the sequence, so that scores never reach memory: softmax(Q K^T) V per head.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct FusedAttention {
    /// Forward, or backward with scores recomputed from the saved log-sum-exp.
    pub direction: Direction,
    /// Sequences.
    pub batch: u64,
    /// Query heads on this device.
    pub heads: u64,
    /// Key/value heads on this device.
    pub kv_heads: u64,
    /// Query length.
    pub queries: u64,
    /// Key/value length.
    pub keys: u64,
    /// Dimension of a head.
    pub head_dim: u64,
    /// True if only the causal half of the scores is computed.
    pub causal: bool,
    /// Most keys that a query sees; `None` is all keys. With causal attention they are the query's own and earlier
    /// ones, otherwise half of them lie on either side.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub window: Option<u64>,
    /// True if keys and values are one tensor, as in latent attention on its narrow vectors. The tensor is read once
    /// and has one gradient.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub values_are_keys: bool,
    /// The pieces that every sequence is cut into; `None` if a query may see all keys.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pieces: Option<SequencePieces>,
    /// Type of Q, K, V and the output.
    pub operand: DataType,
}

impl FusedAttention {
    /// Returns the number of tensors that hold keys and values.
    #[must_use]
    pub fn key_value_tensors(&self) -> u64 {
        if self.values_are_keys { 1 } else { 2 }
    }

    /// Returns the number of floating-point operations: two products per score forward; five backward (scores again,
    /// dV, dP, dQ, dK). [`Self::score_count`] counts the scores.
    #[must_use]
    pub fn flops(&self) -> Flops {
        let scores = self.score_count();
        let products = match self.direction {
            Direction::Forward => 2,
            Direction::Backward => 5,
        };
        Flops(scores.saturating_mul(2 * products).saturating_mul(self.head_dim.into()))
    }

    /// Returns the number of scores that the mask keeps. A causal query sees n / 2 of n keys on average. With a window
    /// of w it sees w keys, less the average shortfall of the first w queries: w - w^2 / (2n). If sequences are cut
    /// into pieces, n is the number of keys of the query's own piece.
    #[must_use]
    pub fn score_count(&self) -> u128 {
        let rows = [self.heads, self.queries]
            .into_iter()
            .fold(u128::from(self.batch), |product, d| product.saturating_mul(d.into()));
        match self.pieces {
            None => self.scores_of_rows(rows, self.keys),
            Some(pieces) => pieces.lengths().fold(0, |sum, length| {
                let held = rows.saturating_mul(length.held.into()) / u128::from(self.keys.max(1));
                sum + self.scores_of_rows(held, length.keys)
            }),
        }
    }

    /// Returns the number of scores of `rows` queries on sequences of `keys` keys.
    fn scores_of_rows(&self, rows: u128, keys: u64) -> u128 {
        let window = self.window.filter(|window| *window < keys).map(u128::from);
        let keys = u128::from(keys);
        match (window, self.causal) {
            (None, true) => rows.saturating_mul(keys) / 2,
            (None, false) => rows.saturating_mul(keys),
            (Some(window), true) => rows.saturating_mul(2 * keys * window - window * window) / (2 * keys),
            (Some(window), false) => rows.saturating_mul(window),
        }
    }

    /// Returns the compulsory bytes. Forward: Q, K, V in, O and the fp32 log-sum-exp out. Backward: Q, K, V, O, dO and
    /// the log-sum-exp in, dQ, dK, dV out.
    #[must_use]
    pub fn compulsory_bytes(&self) -> Bytes {
        let numbers = |heads: u64, tokens: u64| Bytes(self.batch) * heads * tokens * self.head_dim;
        let q = self.operand.packed_bytes_of(numbers(self.heads, self.queries).0);
        let kv = self.operand.packed_bytes_of(numbers(self.kv_heads, self.keys).0) * self.key_value_tensors();
        let lse = Bytes(4) * self.batch * self.heads * self.queries;
        match self.direction {
            Direction::Forward => q * 2 + kv + lse,
            Direction::Backward => q * 4 + kv * 2 + lse,
        }
    }
}

/// A contraction with elementwise work on its result while the result is on chip. It takes one tensor core and one
/// vector core.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Epilogue {
    /// The contraction; the epilogue writes its `result`.
    pub contraction: Contraction,
    /// The function applied to each result. Its bytes read are in addition to the contraction's result.
    pub elementwise: Elementwise,
    /// Results of the function that are summed into one before they are written; 1 writes all of them.
    #[serde(default = "write_all", skip_serializing_if = "writes_all")]
    pub summed: u64,
}

fn write_all() -> u64 {
    1
}

/// True if all results are written. Serde then omits the field.
#[allow(clippy::trivially_copy_pass_by_ref)]
fn writes_all(summed: &u64) -> bool {
    *summed == 1
}

impl Epilogue {
    /// Returns the bytes that must cross the outermost memory at least once: both operands in, the sums or results out,
    /// and the function's own bytes.
    #[must_use]
    pub fn compulsory_bytes(&self) -> Bytes {
        let results = Bytes(self.contraction.result.bytes()) * self.contraction.result_count();
        let operands = self.contraction.compulsory_bytes().saturating_sub(results);
        // Rounded down, because lower bounds use this number and costs count fractions of a byte.
        operands + Bytes(results.0 / self.summed.max(1)) + self.elementwise.read + self.elementwise.written
    }
}

/// A random choice of `chosen` parts per item. The parts are spread evenly over ranks, in order, and all are equally
/// likely. The chosen parts of an item lie in `groups_chosen` of `groups` equal, contiguous groups of parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PartChoice {
    /// Parts on all ranks together.
    pub parts: u32,
    /// Parts chosen per item.
    pub chosen: u32,
    /// Groups of parts; 1 if any parts may be chosen.
    pub groups: u32,
    /// Groups that hold the chosen parts of an item.
    pub groups_chosen: u32,
}

/// The kind of a collective operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CollectiveKind {
    /// Every rank ends with the sum of all buffers.
    AllReduce,
    /// Every rank ends with the concatenation of all shards.
    AllGather,
    /// Every rank ends with its shard of the sum.
    ReduceScatter,
    /// Every rank sends a distinct shard to every other.
    AllToAll,
    /// Every rank sends its items to the ranks of their chosen parts. An item goes once into every network unit that
    /// holds any of its parts, and is forwarded inside the unit. The buffer holds one copy per chosen part. In the
    /// backward direction, sums return the same way.
    Dispatch(PartChoice),
    /// One rank's buffer reaches all.
    Broadcast,
    /// One rank's buffer reaches one other (pipeline boundary).
    SendRecv,
}

impl CollectiveKind {
    /// True if every rank has distinct data for ranks other than its neighbours.
    #[must_use]
    pub fn is_exchange(self) -> bool {
        matches!(self, Self::AllToAll | Self::Dispatch(_))
    }
}

/// The ranks of a collective: `ranks` devices, `stride` apart in device numbering. The stride determines which tiers of
/// a fabric the group crosses: tensor-parallel groups have stride 1, data-parallel groups the product of the inner
/// axes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RankGroup {
    /// Members.
    pub ranks: u32,
    /// Distance of neighbours in device numbering.
    pub stride: u32,
}

/// A collective operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Collective {
    /// Its kind.
    pub kind: CollectiveKind,
    /// Bytes of the full buffer (of the gathered result for all-gather, of the input for reduce-scatter).
    pub bytes: Bytes,
    /// Its ranks.
    pub group: RankGroup,
}

/// The link of a transfer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TransferLink {
    /// Device to host memory or back.
    Host,
    /// Device (or host) to storage or back.
    Storage,
    /// The host's processor to its own memory or back, for updates on the host.
    HostMemory,
}

/// A copy over one link, between the memories at its ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Transfer {
    /// The link it crosses.
    pub link: TransferLink,
    /// Bytes moved.
    pub bytes: Bytes,
}

/// A unit of work that hardware executes. It is `Copy` and hashable, so costs can be memoised by its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kernel {
    /// A matrix product, on a tensor core.
    Contraction(Contraction),
    /// An elementwise pass, on a vector core.
    Elementwise(Elementwise),
    /// A row-wise reduction, on a vector core.
    Reduction(Reduction),
    /// A contraction with its epilogue, on a tensor and a vector core.
    Epilogue(Epilogue),
    /// Tiled attention, on a tensor and a vector core.
    FusedAttention(FusedAttention),
    /// A collective, on the network.
    Collective(Collective),
    /// A copy to or from host memory or storage, on its link.
    Transfer(Transfer),
}

impl Kernel {
    /// Returns the number of floating-point operations of the matrix products; zero for a kernel without products.
    /// Attention's backward pass includes the recomputed scores.
    #[must_use]
    pub fn flops(&self) -> Flops {
        match self {
            Self::Contraction(c) => c.flops(),
            Self::Epilogue(e) => e.contraction.flops(),
            Self::FusedAttention(a) => a.flops(),
            Self::Elementwise(_) | Self::Reduction(_) | Self::Collective(_) | Self::Transfer(_) => Flops::ZERO,
        }
    }

    /// Returns the bytes that must cross the device's outermost memory at least once. For a collective or a transfer,
    /// the bytes of its buffer.
    #[must_use]
    pub fn compulsory_bytes(&self) -> Bytes {
        match self {
            Self::Contraction(c) => c.compulsory_bytes(),
            Self::Elementwise(e) => e.read + e.written,
            Self::Reduction(r) => r.read + r.written,
            Self::Epilogue(e) => e.compulsory_bytes(),
            Self::FusedAttention(a) => a.compulsory_bytes(),
            Self::Collective(c) => c.bytes,
            Self::Transfer(t) => t.bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{Bytes, DataType, Direction, FusedAttention};

    #[test]
    fn attention_moves_narrow_numbers_with_their_scales() {
        let attention = |operand| FusedAttention {
            direction: Direction::Forward,
            batch: 1,
            heads: 1,
            kv_heads: 1,
            queries: 64,
            keys: 64,
            head_dim: 64,
            causal: false,
            window: None,
            values_are_keys: false,
            pieces: None,
            operand,
        };
        // Queries, keys, values and output of 4096 numbers each, and an fp32 number per query.
        for (operand, tensor) in [(DataType::Bf16, 8192), (DataType::Mxfp8, 4224), (DataType::Nvfp4, 2304)] {
            assert_eq!(attention(operand).compulsory_bytes(), Bytes(4 * tensor + 4 * 64), "{operand}");
        }
    }

    #[test]
    fn blocks_carry_their_scales() {
        // Two MXFP8 or MXFP4 blocks of 32 numbers, four of NVFP4.
        let bytes = [(DataType::Mxfp8, 66), (DataType::Mxfp4, 34), (DataType::Nvfp4, 36)];
        for (data_type, expected) in bytes {
            assert_eq!(data_type.packed_bytes_of(64).0, expected, "{data_type}");
            assert_eq!(data_type.packed_bytes_per_number() * 64.0, expected as f64, "{data_type}");
        }
    }
}
