//! Models whose layers differ: the kinds of layers, and their order.
//!
//! A model is a chain of leading layers, a repeated block of layers, and trailing layers. A pipeline divides the
//! block's repetitions, which [`crate::Model::layers`] counts. In most models the block is one layer. Leading layers
//! stay with the embedding on the first stage, trailing ones with the head on the last. [`crate::Model::with_layers`]
//! splits any list into the three parts.

use serde::{Deserialize, Serialize};
use std::fmt;

/// The operation of a layer that mixes the tokens of a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mixer {
    /// Attention.
    #[default]
    Attention,
    /// A state-space scan ([`crate::variations::StateSpace`]).
    Scan,
    /// Linear attention ([`crate::linear_attention::LinearAttention`]).
    Linear,
    /// Attention and a state-space scan beside each other, on the same input.
    AttentionAndScan,
    /// A scan whose decays are numbers per channel ([`crate::variations::ChannelScan`]).
    ChannelScan,
    /// A short convolution between two gates ([`crate::variations::GatedConvolution`]).
    Convolution,
    /// A block of attention and MLP with weights that several layers share, and then the layer's own scan
    /// ([`crate::variations::SharedBlock`]).
    SharedBlock,
    /// Attention to near tokens and compressed entries ([`crate::variations::CompressedAttention`]).
    /// [`LayerKind::keys`] selects the entries.
    Compressed,
    /// A recurrence over mixes of neighbouring tokens ([`crate::variations::Recurrence`]).
    Recurrence,
    /// No mixing: the layer is only an MLP.
    None,
}

impl Mixer {
    /// Returns whether the layer has attention.
    #[must_use]
    pub fn has_attention(self) -> bool {
        matches!(self, Self::Attention | Self::AttentionAndScan | Self::SharedBlock | Self::Compressed)
    }
}

/// The keys that a layer's queries see.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KeyChoice {
    /// All keys that mask and window leave.
    #[default]
    All,
    /// The keys that the layer's own indexer chooses ([`crate::variations::Indexer`]).
    Indexed,
    /// The keys that an earlier layer's indexer chose.
    Reused,
    /// The near keys and all compressed entries.
    Entries,
}

impl KeyChoice {
    /// Returns whether queries see all keys.
    #[allow(clippy::trivially_copy_pass_by_ref)]
    pub(crate) fn is_all(&self) -> bool {
        *self == Self::All
    }
}

/// A local window: the near keys that a query sees, among those that the mask leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum KeyWindow {
    /// A number of keys. Under causal attention they are the query's own and the last ones before it. Otherwise half of
    /// them lie on either side.
    Sliding(u64),
    /// The keys of the query's own chunk. A sequence is cut into chunks from its start (Llama 4's local layers).
    Chunk {
        /// Tokens of a chunk.
        chunk: u64,
    },
}

impl KeyWindow {
    /// Returns the largest number of keys that one query sees.
    #[must_use]
    pub fn most_keys(self) -> u64 {
        match self {
            Self::Sliding(keys) | Self::Chunk { chunk: keys } => keys,
        }
    }

    /// Returns the width of a sliding window; `None` for chunks.
    pub(crate) fn sliding(self) -> Option<u64> {
        match self {
            Self::Sliding(keys) => Some(keys),
            Self::Chunk { .. } => None,
        }
    }

    /// Returns the number of tokens of a chunk, at least 1; `None` for a sliding window.
    pub(crate) fn chunk(self) -> Option<u64> {
        match self {
            Self::Sliding(_) => None,
            Self::Chunk { chunk } => Some(chunk.max(1)),
        }
    }

    /// Returns the number of distinct keys, among the last `seen`, that `queries` neighbouring queries at the
    /// sequence's end see together. Sliding windows shift by one key per query. The last query's position in its chunk
    /// is unknown: on average it sees half of the chunk and itself, rounded up.
    pub(crate) fn keys_at_end(self, seen: u64, queries: u64) -> u64 {
        let beside = queries.saturating_sub(1);
        match self {
            Self::Sliding(keys) => keys.saturating_add(beside).min(seen),
            Self::Chunk { chunk } if seen <= chunk => seen,
            Self::Chunk { chunk } => (chunk / 2 + 1).saturating_add(beside).min(chunk),
        }
    }
}

impl fmt::Display for KeyWindow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Sliding(keys) => write!(f, "a window of {keys}"),
            Self::Chunk { chunk } => write!(f, "chunks of {chunk}"),
        }
    }
}

/// The shape of a layer's attention, if it differs from the model's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct AttentionShape {
    /// Query heads.
    pub heads: u64,
    /// Key/value heads.
    pub kv_heads: u64,
    /// Dimension of a head.
    pub head_dim: u64,
    /// True if every head has a learned logit in addition to its scores.
    pub sinks: bool,
    /// True if keys, before norm and rotation, also serve as values.
    pub shared_value: bool,
}

/// The part of a layer that works on each token by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FeedForward {
    /// The model's own experts or MLP.
    #[default]
    Own,
    /// An MLP of this width, even in a model with experts.
    Mlp(u64),
    /// Nothing.
    None,
}

/// The side of an encoder-decoder model that a layer belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EncoderDecoderSide {
    /// A single stack of layers, causal or not as the model states.
    #[default]
    Only,
    /// The encoder: every token sees the whole input.
    Encoder,
    /// The decoder: causal, with attention to the encoder's result between attention and MLP.
    Decoder,
}

/// A kind of layer: the properties that can differ within a model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LayerKind {
    /// The operation that mixes tokens.
    pub mixer: Mixer,
    /// The near keys that a query sees; `None` means all.
    pub window: Option<KeyWindow>,
    /// The part that works on each token by itself.
    pub feed: FeedForward,
    /// The side of an encoder-decoder that the layer belongs to.
    pub side: EncoderDecoderSide,
    /// True if the first branch reads the layer's input without a norm.
    pub without_first_norm: bool,
    /// The shape of its attention, if it differs from the model's.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attention: Option<AttentionShape>,
    /// The keys that its queries see.
    #[serde(skip_serializing_if = "KeyChoice::is_all")]
    pub keys: KeyChoice,
}

impl fmt::Display for LayerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = match self.side {
            EncoderDecoderSide::Only => None,
            EncoderDecoderSide::Encoder => Some("encoder".to_owned()),
            EncoderDecoderSide::Decoder => Some("decoder".to_owned()),
        };
        let mixer = match (self.mixer, self.window) {
            (Mixer::Attention, Some(window)) => Some(format!("attention in {window}")),
            (Mixer::Attention, None) if self.keys != KeyChoice::All => Some("attention to chosen tokens".to_owned()),
            (Mixer::Attention, None) => Some("attention".to_owned()),
            (Mixer::AttentionAndScan, _) => Some("attention beside a scan".to_owned()),
            (Mixer::Compressed, _) => Some(match self.keys {
                KeyChoice::All => "attention to near tokens".to_owned(),
                KeyChoice::Entries => "attention to near tokens and all entries".to_owned(),
                KeyChoice::Indexed | KeyChoice::Reused => "attention to near tokens and chosen entries".to_owned(),
            }),
            (Mixer::SharedBlock, _) => Some("a shared block and a scan".to_owned()),
            (Mixer::ChannelScan, _) => Some("scan by channels".to_owned()),
            (Mixer::Convolution, _) => Some("short convolution".to_owned()),
            (Mixer::Recurrence, _) => Some("recurrence".to_owned()),
            (Mixer::Scan, _) => Some("scan".to_owned()),
            (Mixer::Linear, _) => Some("linear attention".to_owned()),
            (Mixer::None, _) => None,
        };
        let feed = match self.feed {
            FeedForward::Own => Some("own MLP or experts".to_owned()),
            FeedForward::Mlp(width) => Some(format!("MLP of {width}")),
            FeedForward::None => None,
        };
        let heads = self
            .attention
            .map(|shape| format!("{} heads of {}, {} for keys", shape.heads, shape.head_dim, shape.kv_heads));
        f.write_str(&[side, mixer, heads, feed].into_iter().flatten().collect::<Vec<_>>().join(", "))
    }
}

/// The layers of a model whose layers differ, in order: `leading`, then `block` repeated [`crate::Model::layers`]
/// times, then `trailing`. An empty `block` means one layer that the model's own fields describe.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LayerList {
    /// Layers on the embedding's pipeline stage.
    pub leading: Vec<LayerKind>,
    /// Layers of one repetition of the block.
    pub block: Vec<LayerKind>,
    /// Layers on the head's pipeline stage.
    pub trailing: Vec<LayerKind>,
}

impl LayerList {
    /// Returns whether the list is empty, so that the model's own fields describe every layer.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.leading.is_empty() && self.block.is_empty() && self.trailing.is_empty()
    }

    /// Splits a list of layers into leading layers, a repeated block and trailing layers. Returns the three parts and
    /// the block's repetitions. It chooses the block that covers the most layers, then the shortest one, and then the
    /// position with the fewest layers after it.
    pub(crate) fn from_layers(list: &[LayerKind]) -> (Self, u64) {
        let (mut best, mut found) = ((0, 0, 0), (0, 1, list.len()));
        for length in 1..=list.len() {
            for from in 0..=list.len() - length {
                let block = &list[from..from + length];
                let repeats = list[from..].chunks_exact(length).take_while(|chunk| *chunk == block).count();
                let end = from + repeats * length;
                let covered = if repeats > 1 || length == 1 { repeats * length } else { 0 };
                let score = (covered, list.len() - length, end);
                if score > best {
                    (best, found) = (score, (from, length, repeats));
                }
            }
        }
        let (from, length, repeats) = found;
        let (leading, rest) = list.split_at(from);
        let (block, trailing) = (&rest[..length], &rest[repeats * length..]);
        (Self { leading: leading.to_vec(), block: block.to_vec(), trailing: trailing.to_vec() }, repeats as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Vec<LayerKind> {
        let kind = |c: char| LayerKind {
            window: c.to_digit(10).map(|n| KeyWindow::Sliding(n.into())),
            ..LayerKind::default()
        };
        text.chars().map(kind).collect()
    }

    /// Each digit of a list is a kind of layer. The lists imitate Gemma 3, Command A, ModernBERT, DeepSeek-V3 and a
    /// model with equal layers. The last list is that of Nemotron-H 8B, with M, - and * as 1, 2 and 3.
    #[test]
    fn lists_are_folded() {
        let nemotron = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-";
        let nemotron: String = nemotron
            .chars()
            .map(|c| {
                if c == 'M' {
                    '1'
                } else if c == '-' {
                    '2'
                } else {
                    '3'
                }
            })
            .collect();
        for (list, parts) in [
            ("11111211111211", (2, 6, 2, 0)),
            ("11121112", (0, 4, 2, 0)),
            ("2112112", (1, 3, 2, 0)),
            ("1112222", (3, 1, 4, 0)),
            ("1111", (0, 1, 4, 0)),
            (&nemotron, (7, 11, 4, 1)),
        ] {
            let all = kinds(list);
            let (folded, repeats) = LayerList::from_layers(&all);
            let again: Vec<LayerKind> = folded
                .leading
                .iter()
                .chain((0..repeats).flat_map(|_| &folded.block))
                .chain(&folded.trailing)
                .copied()
                .collect();
            assert_eq!(again, all, "{list}");
            let found = (folded.leading.len(), folded.block.len(), repeats, folded.trailing.len());
            assert_eq!(found, parts, "{list}");
        }
    }
}
