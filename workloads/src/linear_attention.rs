//! Linear attention: a mixer with a state per head instead of keys and values of all earlier tokens.
//!
//! A sequence runs in chunks of C tokens (the chunkwise parallel form). Within a chunk the mixer is a few products of
//! C rows; between chunks it updates the state, a matrix of key dimension x value dimension. [`LinearAttention`] lists
//! these products once; time, operations and kept bytes all come from that list.

use serde::{Deserialize, Serialize};

/// How the state of linear attention forgets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StateDecay {
    /// By a constant of every head (lightning attention).
    Constant,
    /// By one number per head and token (gated delta net).
    PerHead,
    /// By one number per key channel and token (Kimi delta attention).
    PerChannel,
}

/// A layer with linear attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinearAttention {
    /// Heads of values; each has a state.
    pub heads: u64,
    /// Heads of queries and keys, a divisor of `heads`.
    pub key_heads: u64,
    /// Dimension of a query or key head.
    pub key_dim: u64,
    /// Dimension of a value head.
    pub value_dim: u64,
    /// How states forget.
    pub decay: StateDecay,
    /// True if a token first takes out what the state holds for its key (the delta rule).
    pub delta_rule: bool,
    /// Width of the convolution of queries, keys and values, in tokens; 0 without one.
    pub convolution: u64,
    /// Width of the vectors that decays and output gates come from; `None` if they come from the layer's input.
    pub gate_rank: Option<u64>,
    /// True if the result's norm has one gain per number of a head; otherwise one per number of the whole vector.
    pub norm_of_head: bool,
    /// Tokens per chunk.
    pub chunk: u64,
}

/// One product of the chunkwise form, for one head: m x n results over k numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ChunkProduct {
    /// The product's name in kernels.
    pub(crate) name: &'static str,
    /// m, n and k of a chunk.
    pub(crate) forward: [u64; 3],
    /// The products of the backward pass.
    pub(crate) backward: [[u64; 3]; 2],
    /// True if the chunks of one head must follow each other, because the product reads or updates the state.
    pub(crate) in_order: bool,
    /// How long the result lives.
    pub(crate) result: ChunkResult,
    /// True if the result is the states, one of which is written per chunk.
    pub(crate) writes_states: bool,
}

/// How long the result of a chunk's product lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ChunkResult {
    /// Until the next product, or as the layer's result.
    Passing,
    /// Until the backward pass.
    Kept,
    /// Until the backward pass where kernels are not fused; fused ones rebuild it.
    Rebuilt,
}

impl ChunkProduct {
    /// A product whose backward pass has the gradients of both factors.
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

/// Multiply-additions of a product m x n x k.
fn multiply_adds([m, n, k]: [u64; 3]) -> u128 {
    u128::from(m) * u128::from(n) * u128::from(k)
}

impl LinearAttention {
    /// Returns the width of all queries, and of all keys.
    #[must_use]
    pub fn key_width(&self) -> u64 {
        self.key_heads.saturating_mul(self.key_dim)
    }

    /// Returns the width of all values, and of the result.
    #[must_use]
    pub fn value_width(&self) -> u64 {
        self.heads.saturating_mul(self.value_dim)
    }

    /// Returns the width of queries, keys and values together.
    #[must_use]
    pub fn mixed_width(&self) -> u64 {
        self.value_width().saturating_add(2 * self.key_width())
    }

    /// Returns the numbers of all heads' states.
    pub(crate) fn state_numbers(&self) -> u64 {
        self.heads.saturating_mul(self.key_dim).saturating_mul(self.value_dim)
    }

    /// Returns the numbers per token that each head needs besides vectors: the delta rule's step, and its decay.
    #[must_use]
    pub fn rates(&self) -> u64 {
        self.heads * (u64::from(self.delta_rule) + u64::from(self.decay == StateDecay::PerHead))
    }

    /// Returns the decays of a token.
    pub(crate) fn decays(&self) -> u64 {
        match self.decay {
            StateDecay::Constant => 0,
            StateDecay::PerHead => self.heads,
            StateDecay::PerChannel => self.heads.saturating_mul(self.key_dim),
        }
    }

    /// Returns the width of the narrow vectors for decays and gates; 0 without them.
    pub(crate) fn narrow_width(&self) -> u64 {
        let vectors = if self.decay == StateDecay::PerChannel { 2 } else { 1 };
        self.gate_rank.map_or(0, |rank| vectors * rank)
    }

    /// Returns one of `ranks` tensor-parallel devices' share of the heads. More devices than key heads hold copies.
    pub(crate) fn share_of_device(self, ranks: u64) -> Self {
        Self { heads: self.heads / ranks.max(1), key_heads: (self.key_heads / ranks.max(1)).max(1), ..self }
    }

    /// Returns the weights of the products with weights.
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

    /// Returns the parameters in no matrix: the convolution, decays and their offsets, the result's norm.
    #[must_use]
    pub fn vectors(&self) -> u64 {
        let norm = if self.norm_of_head { self.value_dim } else { self.value_width() };
        self.convolution * self.mixed_width() + self.decay_parameters() + norm
    }

    /// Returns the parameters of the decays: a rate per head, and an offset per decay.
    pub(crate) fn decay_parameters(&self) -> u64 {
        match self.decay {
            StateDecay::Constant => 0,
            StateDecay::PerHead | StateDecay::PerChannel => self.heads + self.decays(),
        }
    }

    /// Returns the products of a chunk of `c` tokens for one head.
    ///
    /// Without the delta rule: scores within the chunk, their product with the values, the state's update and the
    /// contribution of the arriving state (Qin et al. 2024, Lightning Attention-2, arXiv:2401.04658, algorithm 1).
    ///
    /// With it, four more: the products of keys with each other, the inverse of that triangle, its products with keys
    /// and values (W and U), and what the arriving state holds for W. Inverting a triangle of c rows takes c³ / 6
    /// multiply-additions; its gradient is two products with it (`wy_fast.py` of flash-linear-attention). Sources: Yang
    /// et al. 2024, arXiv:2406.06484, section 3.2; Gated Delta Networks, arXiv:2412.06464, section 3.3; Kimi Linear,
    /// arXiv:2510.26692, section 3.
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

    /// Returns the operations of all heads per token, forward and in both passes: 2 per multiply-addition of
    /// `chunk_products`.
    #[must_use]
    pub fn operations(&self, sequence: u64) -> (u128, u128) {
        let c = self.chunk_of_sequence(sequence);
        let products = self.chunk_products(c);
        let forward: u128 = products.iter().map(|product| multiply_adds(product.forward)).sum();
        let backward: u128 = products.iter().flat_map(|product| product.backward).map(multiply_adds).sum();
        let per_token = |adds: u128| 2 * adds * u128::from(self.heads) / u128::from(c);
        (per_token(forward), per_token(forward + backward))
    }

    /// Returns the chunk's length for a sequence: no longer than the sequence.
    pub(crate) fn chunk_of_sequence(&self, sequence: u64) -> u64 {
        self.chunk.min(sequence).max(1)
    }
}
