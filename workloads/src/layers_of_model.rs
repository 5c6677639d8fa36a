//! Models whose layers differ: a uniform model for each kind of layer, and sums over all layers.

use crate::layer_list::{EncoderDecoderSide, FeedForward, LayerKind, LayerList};
use crate::model::Model;
use crate::variations::Variations;
use serde::{Deserialize, Serialize};

/// The leading layers of a model with experts, if they have a dense MLP instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeadingDense {
    /// Number of layers.
    pub layers: u64,
    /// Width of their MLP.
    pub ffn: u64,
}

impl Model {
    /// Returns the kind of layer that the model's own fields describe, without an attention shape of its own.
    #[must_use]
    pub fn uniform_kind(&self) -> LayerKind {
        let feed = if self.variations.without_mlp { FeedForward::None } else { FeedForward::Own };
        let Variations { mixer, window, side, without_first_norm, keys, .. } = self.variations;
        LayerKind { mixer, window, feed, side, without_first_norm, attention: None, keys }
    }

    /// Returns the model with these `layers`, first to last. The `before` layers precede them on the embedding's stage.
    /// An empty list of `layers` changes nothing.
    #[must_use]
    pub fn with_layers(self, before: &[LayerKind], layers: &[LayerKind]) -> Self {
        if layers.is_empty() {
            return self;
        }
        let (mut list, repeats) = LayerList::from_layers(layers);
        list.leading.splice(0..0, before.iter().copied());
        let mut model = Self { layers: repeats, list, ..self };
        if let [kind] = model.list.block[..]
            && !matches!(kind.feed, FeedForward::Mlp(_))
            && kind.attention.is_none()
        {
            // A block of one layer becomes the model's own layer.
            let (experts, ffn, kind) = (model.experts, model.ffn, kind);
            let list = LayerList { block: Vec::new(), ..std::mem::take(&mut model.list) };
            model = Self { list, experts, ffn, ..model.with_uniform_kind(&kind) };
        }
        model
    }

    /// Returns all layers in order.
    #[must_use]
    pub fn layers_in_order(&self) -> Vec<LayerKind> {
        let block = self.block_kinds();
        let repeated = (0..self.layers).flat_map(|_| block.iter().copied());
        let LayerList { leading, trailing, .. } = &self.list;
        leading.iter().copied().chain(repeated).chain(trailing.iter().copied()).collect()
    }

    /// Returns the model with every layer replaced by `change(index, kind)`; indices start at 0.
    pub(crate) fn with_changed_layers(self, change: impl Fn(u64, LayerKind) -> LayerKind) -> Self {
        let layers: Vec<LayerKind> = (0..).zip(self.layers_in_order()).map(|(i, kind)| change(i, kind)).collect();
        self.with_layers(&[], &layers)
    }

    /// Returns the model with all layers of this kind.
    #[must_use]
    pub fn with_uniform_kind(&self, kind: &LayerKind) -> Self {
        let mut alike = Self { list: LayerList::default(), ..self.clone() };
        let variations = &mut alike.variations;
        (variations.mixer, variations.window, variations.side) = (kind.mixer, kind.window, kind.side);
        variations.keys = kind.keys;
        (variations.without_mlp, variations.without_first_norm) =
            (kind.feed == FeedForward::None, kind.without_first_norm);
        if let Some(shape) = kind.attention {
            (variations.sinks, variations.shared_value) = (shape.sinks, shape.shared_value);
            (alike.heads, alike.kv_heads, alike.head_dim) = (shape.heads, shape.kv_heads, shape.head_dim);
        }
        match kind.side {
            EncoderDecoderSide::Only => {}
            EncoderDecoderSide::Encoder => alike.causal = false,
            EncoderDecoderSide::Decoder => alike.causal = true,
        }
        match kind.feed {
            FeedForward::Own => {}
            FeedForward::Mlp(width) => (alike.experts, alike.ffn) = (None, width),
            FeedForward::None => alike.experts = None,
        }
        alike
    }

    /// Returns the kinds of the layers in one block.
    #[must_use]
    pub fn block_kinds(&self) -> Vec<LayerKind> {
        if self.list.block.is_empty() { vec![self.uniform_kind()] } else { self.list.block.clone() }
    }

    /// Returns the import note for a model whose blocks have several layers; `None` for other models.
    pub(crate) fn block_assumption(&self) -> Option<String> {
        let LayerList { leading, block, trailing } = &self.list;
        let ends = [(leading.len(), "embedding"), (trailing.len(), "head")];
        let beside: Vec<String> = ends
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, end)| {
                format!("; {count} more {} with the {end}", if *count == 1 { "layer stays" } else { "layers stay" })
            })
            .collect();
        (block.len() > 1).then(|| {
            format!(
                "layers differ and come in blocks of {}, {} in all: a pipeline's chunk holds whole blocks, and a \
                 plan's layer counts are counts of blocks{}",
                block.len(),
                self.layers,
                beside.concat()
            )
        })
    }

    /// Returns the number of layers per block; a pipeline stage holds whole blocks.
    #[must_use]
    pub fn layers_per_block(&self) -> u64 {
        self.list.block.len().max(1) as u64
    }

    /// Returns the distinct kinds of layers with their counts, in order of first appearance.
    #[must_use]
    pub fn layer_kinds(&self) -> Vec<(LayerKind, u64)> {
        let mut kinds: Vec<(LayerKind, u64)> = Vec::new();
        let once = |list: &[LayerKind]| list.iter().map(|kind| (*kind, 1)).collect::<Vec<_>>();
        let block = self.block_kinds().into_iter().map(|kind| (kind, self.layers));
        for (kind, count) in once(&self.list.leading).into_iter().chain(block).chain(once(&self.list.trailing)) {
            match kinds.iter_mut().find(|(known, _)| *known == kind) {
                Some((_, known)) => *known = known.saturating_add(count),
                None => kinds.push((kind, count)),
            }
        }
        kinds
    }

    /// Returns the kind of the last layer.
    pub(crate) fn last_kind(&self) -> LayerKind {
        let last = self.list.trailing.last().or(self.list.block.last());
        last.copied().unwrap_or_else(|| self.uniform_kind())
    }

    /// Returns the number of layers on the head's stage: trailing layers, and the layers of the modules that predict
    /// further tokens.
    #[must_use]
    pub fn layers_with_head(&self) -> u64 {
        self.list.trailing.len() as u64 + self.variations.further_tokens
    }

    /// Returns the sum of `of` over all layers, including the layers of modules that predict further tokens. `of` gets
    /// a uniform model of each kind of layer.
    pub(crate) fn sum_over_layers(&self, of: impl Fn(&Self) -> u64) -> u64 {
        if self.list.is_empty() {
            return self.layers.saturating_add(self.variations.further_tokens).saturating_mul(of(self));
        }
        let further = self.variations.further_tokens;
        let last = if further > 0 { further.saturating_mul(of(&self.with_uniform_kind(&self.last_kind()))) } else { 0 };
        let kinds = self.layer_kinds();
        kinds.iter().fold(last, |sum: u64, (kind, count)| {
            sum.saturating_add(count.saturating_mul(of(&self.with_uniform_kind(kind))))
        })
    }

    /// Returns the leading layers if all have MLPs of one width instead of experts (DeepSeek), else `None`.
    #[must_use]
    pub fn leading_dense(&self) -> Option<LeadingDense> {
        let mlp = |kind: &LayerKind| match kind.feed {
            FeedForward::Mlp(width) if self.experts.is_some() => Some(width),
            _ => None,
        };
        let ffn = self.list.leading.first().and_then(mlp)?;
        let alike = self.list.leading.iter().all(|kind| mlp(kind) == Some(ffn));
        alike.then_some(LeadingDense { layers: self.list.leading.len() as u64, ffn })
    }
}
