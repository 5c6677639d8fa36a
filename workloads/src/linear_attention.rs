//! Linear attention: a mixer that keeps one state per head instead of the keys and values of all earlier tokens.
//!
//! A sequence runs in chunks of C tokens (the chunkwise parallel form). Within a chunk, the mixer is a few products of
//! C rows. Between chunks, it updates the state, a matrix of key dimension x value dimension. [`LinearAttention`] lists
//! these products once; time, operations and kept bytes all follow from that list.

use serde::{Deserialize, Serialize};

/// The decay of linear attention's state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StateDecay {
    /// One constant per head (lightning attention).
    Constant,
    /// One number per head and token (gated delta net).
    PerHead,
    /// One number per key channel and token (Kimi delta attention).
    PerChannel,
}

/// The dimensions of a layer with linear attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinearAttention {
    /// Number of value heads; each has a state.
    pub heads: u64,
    /// Number of query and key heads, a divisor of `heads`.
    pub key_heads: u64,
    /// Dimension of a query or key head.
    pub key_dim: u64,
    /// Dimension of a value head.
    pub value_dim: u64,
    /// The decay of the states.
    pub decay: StateDecay,
    /// True if the state's value for a token's key is removed before the token's own value is added (the delta rule).
    pub delta_rule: bool,
    /// Width of the convolution of queries, keys and values, in tokens; 0 without one.
    pub convolution: u64,
    /// Width of the low-rank vectors from which decays and output gates are computed; `None` if they are computed from
    /// the layer's input.
    pub gate_rank: Option<u64>,
    /// True if the result's norm has one gain per dimension of a head, shared by all heads. Otherwise it has one gain
    /// per dimension of the whole vector.
    pub norm_of_head: bool,
    /// Tokens per chunk.
    pub chunk: u64,
}

/// One product of the chunkwise form, for one head: an m x n result with inner dimension k.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChunkProduct {
    /// The product's name in kernel names.
    pub(crate) name: &'static str,
    /// m, n and k of one chunk's forward product.
    pub(crate) forward: [u64; 3],
    /// m, n and k of the two products of the backward pass.
    pub(crate) backward: [[u64; 3]; 2],
    /// True if the chunks of one head must run in order, because the product reads or updates the state.
    pub(crate) in_order: bool,
    /// Lifetime of the result.
    pub(crate) result: ChunkResult,
    /// True if the result is the states; one state per chunk is written.
    pub(crate) writes_states: bool,
}

/// Lifetime of the result of a chunk's product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChunkResult {
    /// Only until the next product or operator reads it.
    Passing,
    /// Until the backward pass.
    Kept,
    /// Until the backward pass if kernels are not fused; fused kernels rebuild it.
    Rebuilt,
}

impl ChunkProduct {
    /// Returns a product whose backward pass computes the gradients of both factors.
    const fn new(name: &'static str, [m, n, k]: [u64; 3]) -> Self {
        let backward = [[m, k, n], [k, n, m]];
        let (in_order, result, writes_states) = (false, ChunkResult::Passing, false);
        Self { name, forward: [m, n, k], backward, in_order, result, writes_states }
    }

    const fn in_order(self) -> Self {
        Self { in_order: true, ..self }
    }

    const fn rebuilt(self) -> Self {
        Self { result: ChunkResult::Rebuilt, ..self }
    }
}

/// Returns the multiply-additions of an m x n product with inner dimension k.
fn multiply_adds([m, n, k]: [u64; 3]) -> u128 {
    u128::from(m) * u128::from(n) * u128::from(k)
}

impl LinearAttention {
    /// Returns the total width of all queries, which is also that of all keys.
    #[must_use]
    pub fn key_width(&self) -> u64 {
        self.key_heads.saturating_mul(self.key_dim)
    }

    /// Returns the total width of all values, which is also that of the result.
    #[must_use]
    pub fn value_width(&self) -> u64 {
        self.heads.saturating_mul(self.value_dim)
    }

    /// Returns the width of queries, keys and values together.
    #[must_use]
    pub fn mixed_width(&self) -> u64 {
        self.value_width().saturating_add(2 * self.key_width())
    }

    /// Returns the number of elements in all heads' states.
    pub(crate) fn state_numbers(&self) -> u64 {
        self.heads.saturating_mul(self.key_dim).saturating_mul(self.value_dim)
    }

    /// Returns the number of scalars per token, over all heads: the delta rule's step and the per-head decay, if the
    /// layer has them.
    #[must_use]
    pub fn rates(&self) -> u64 {
        self.heads * (u64::from(self.delta_rule) + u64::from(self.decay == StateDecay::PerHead))
    }

    /// Returns the number of decays per token; 0 if the decay is constant.
    pub(crate) fn decays(&self) -> u64 {
        match self.decay {
            StateDecay::Constant => 0,
            StateDecay::PerHead => self.heads,
            StateDecay::PerChannel => self.heads.saturating_mul(self.key_dim),
        }
    }

    /// Returns the total width of the low-rank vectors for decays and gates; 0 without them.
    pub(crate) fn narrow_width(&self) -> u64 {
        let vectors = if self.decay == StateDecay::PerChannel { 2 } else { 1 };
        self.gate_rank.map_or(0, |rank| vectors * rank)
    }

    /// Returns the share of the heads on one of `ranks` tensor-parallel devices. With more devices than key heads,
    /// several devices hold the same key head.
    pub(crate) fn share_of_device(self, ranks: u64) -> Self {
        Self { heads: self.heads / ranks.max(1), key_heads: (self.key_heads / ranks.max(1)).max(1), ..self }
    }

    /// Returns the number of weights of the layer's matrix products, for a layer of width `hidden`.
    #[must_use]
    pub fn matrices(&self, hidden: u64) -> u64 {
        let width = self.value_width();
        let gates = match self.gate_rank {
            Some(rank) => {
                let decays = if self.decay == StateDecay::PerChannel { self.decays() } else { 0 };
                hidden.saturating_mul(self.narrow_width()).saturating_add(rank.saturating_mul(decays + width))
            }
            None => hidden.saturating_mul(width),
        };
        hidden.saturating_mul(self.mixed_width() + self.rates() + width).saturating_add(gates)
    }

    /// Returns the number of parameters outside matrices: the convolution, the decays and their offsets, and the
    /// result's norm.
    #[must_use]
    pub fn vectors(&self) -> u64 {
        let norm = if self.norm_of_head { self.value_dim } else { self.value_width() };
        self.convolution * self.mixed_width() + self.decay_parameters() + norm
    }

    /// Returns the number of parameters of the decays: a rate per head, and an offset per decay.
    pub(crate) fn decay_parameters(&self) -> u64 {
        match self.decay {
            StateDecay::Constant => 0,
            StateDecay::PerHead | StateDecay::PerChannel => self.heads + self.decays(),
        }
    }

    /// Returns the products of one chunk of `c` tokens, for one head.
    ///
    /// Without the delta rule there are four: scores within the chunk, their product with the values, the update of the
    /// state, and the contribution of the previous state (Qin et al. 2024, Lightning Attention-2, arXiv:2401.04658,
    /// algorithm 1).
    ///
    /// The delta rule adds four: the products of keys with each other, the inverse of that triangular matrix, the
    /// inverse's products with keys and values (W and U), and W's product with the previous state. Inverting a triangle
    /// of c rows takes c³ / 6 multiply-additions; its gradient is two products with the inverse (`wy_fast.py` of
    /// flash-linear-attention). Sources: Yang et al. 2024, arXiv:2406.06484, section 3.2; Gated Delta Networks,
    /// arXiv:2412.06464, section 3.3; Kimi Linear, arXiv:2510.26692, section 3.
    pub(crate) fn chunk_products(&self, c: u64) -> Vec<ChunkProduct> {
        let (k, v) = (self.key_dim, self.value_dim);
        let correction = [
            ChunkProduct::new("keys", [c, c, k]),
            ChunkProduct {
                backward: [[c, c, c]; 2],
                result: ChunkResult::Kept,
                ..ChunkProduct::new("inverse", [c, c, c.div_ceil(6)])
            },
            ChunkProduct::new("updates", [c, k + v, c]).rebuilt(),
            ChunkProduct::new("correction", [c, v, k]).in_order().rebuilt(),
        ];
        let common = [
            ChunkProduct { writes_states: true, ..ChunkProduct::new("states", [k, v, c]).in_order().rebuilt() },
            ChunkProduct::new("scores", [c, c, k]).rebuilt(),
            ChunkProduct::new("within", [c, v, c]),
            ChunkProduct::new("across", [c, v, k]),
        ];
        correction.into_iter().filter(|_| self.delta_rule).chain(common).collect()
    }

    /// Returns the matrix operations of all heads per token: (forward, forward and backward). Each multiply-addition of
    /// `chunk_products` counts 2.
    #[must_use]
    pub fn operations(&self, sequence: u64) -> (u128, u128) {
        let c = self.chunk_of_sequence(sequence);
        let products = self.chunk_products(c);
        let forward: u128 = products.iter().map(|product| multiply_adds(product.forward)).sum();
        let backward: u128 = products.iter().flat_map(|product| product.backward).map(multiply_adds).sum();
        let per_token = |adds: u128| 2 * adds * u128::from(self.heads) / u128::from(c);
        (per_token(forward), per_token(forward + backward))
    }

    /// Returns the number of tokens per chunk in a sequence of this length: at most the sequence, at least 1.
    pub(crate) fn chunk_of_sequence(&self, sequence: u64) -> u64 {
        self.chunk.min(sequence).max(1)
    }
}
