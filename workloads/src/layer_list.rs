//! Models whose layers differ: which kinds of layers there are, and in which order.
//!
//! A model is a chain: leading layers, a block of layers that repeats, trailing layers. The block is what a pipeline divides and what
//! [`crate::Model::layers`] counts; in most models it is one layer. Leading layers stay with the embedding on the first stage, trailing ones with the head
//! on the last. [`crate::Model::with_layers`] finds the three parts of any list.

use serde::{Deserialize, Serialize};
use std::fmt;

/// What mixes the tokens of a sequence in a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mixer {
    /// Attention.
    #[default]
    Attention,
    /// A state-space scan ([`crate::variations::StateSpace`]).
    Scan,
    /// Nothing: the layer is an MLP alone.
    None,
}

/// What works on every token of a layer by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FeedForward {
    /// The model's own: its experts, or its MLP.
    #[default]
    Own,
    /// An MLP of this width, whether the model has experts or not.
    Mlp(u64),
    /// Nothing.
    None,
}

/// The sides of an encoder-decoder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EncoderDecoderSide {
    /// There is one stack of layers, which is causal or not as the model says.
    #[default]
    Only,
    /// The encoder: every token sees all of the input.
    Encoder,
    /// The decoder: causal, with attention to the encoder's result between attention and MLP.
    Decoder,
}

/// A kind of layer: what differs from one layer of a model to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LayerKind {
    /// What mixes tokens.
    pub mixer: Mixer,
    /// Most keys that a query sees; all where none is given.
    pub window: Option<u64>,
    /// What works on every token.
    pub feed: FeedForward,
    /// Which side it is on.
    pub side: EncoderDecoderSide,
    /// Whether its first branch reads its input as it is.
    pub without_first_norm: bool,
}

impl fmt::Display for LayerKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = match self.side {
            EncoderDecoderSide::Only => None,
            EncoderDecoderSide::Encoder => Some("encoder".to_owned()),
            EncoderDecoderSide::Decoder => Some("decoder".to_owned()),
        };
        let mixer = match (self.mixer, self.window) {
            (Mixer::Attention, Some(window)) => Some(format!("attention in a window of {window}")),
            (Mixer::Attention, None) => Some("attention".to_owned()),
            (Mixer::Scan, _) => Some("scan".to_owned()),
            (Mixer::None, _) => None,
        };
        let feed = match self.feed {
            FeedForward::Own => Some("own MLP or experts".to_owned()),
            FeedForward::Mlp(width) => Some(format!("MLP of {width}")),
            FeedForward::None => None,
        };
        f.write_str(&[side, mixer, feed].into_iter().flatten().collect::<Vec<_>>().join(", "))
    }
}

/// The layers of a model whose layers differ, in order: `leading`, `block` as often as [`crate::Model::layers`] says, `trailing`. Where `block` is empty
/// it is one layer as the model itself describes it.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct LayerList {
    /// Layers with the embedding.
    pub leading: Vec<LayerKind>,
    /// Layers that repeat together.
    pub block: Vec<LayerKind>,
    /// Layers with the head.
    pub trailing: Vec<LayerKind>,
}

impl LayerList {
    /// Whether all layers are alike.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.leading.is_empty() && self.block.is_empty() && self.trailing.is_empty()
    }

    /// A list of layers as leading ones, a block and trailing ones, and how often the block follows itself: the block that covers most layers, of
    /// several the shortest, of its places that with the fewest layers behind it.
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
        let kind = |c: char| LayerKind { window: c.to_digit(10).map(u64::from), ..LayerKind::default() };
        text.chars().map(kind).collect()
    }

    /// Gemma 3, Command A, ModernBERT, DeepSeek-V3 and Nemotron-H 8B (M, -, * as 1, 2, 3).
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
            let again: Vec<LayerKind> =
                folded.leading.iter().chain((0..repeats).flat_map(|_| &folded.block)).chain(&folded.trailing).copied().collect();
            assert_eq!(again, all, "{list}");
            let found = (folded.leading.len(), folded.block.len(), repeats, folded.trailing.len());
            assert_eq!(found, parts, "{list}");
        }
    }
}
