//! Counts of blocks whose weights several layers share (Zamba). Every layer does a block's work, but a block's
//! parameters count once.

use crate::layer_list::Mixer;
use crate::model::Model;
use crate::variations::SharedBlock;

impl SharedBlock {
    /// Returns the number of weights of a layer's own products besides its scan, in a model of width `hidden` and MLP
    /// width `ffn`: the adapters, and the product from the block's result to the scan's input.
    #[must_use]
    pub fn own_matrices(&self, hidden: u64, ffn: u64) -> u64 {
        let attention = self.attention_adapter.unwrap_or(0).saturating_mul(12 * hidden);
        let mlp = self.mlp_adapter.unwrap_or(0).saturating_mul(hidden + 2 * ffn);
        hidden.saturating_mul(hidden).saturating_add(attention).saturating_add(mlp)
    }
}

impl Model {
    /// Returns the number of layers that run a shared block.
    pub(crate) fn shared_block_layers(&self) -> u64 {
        let kinds = self.layer_kinds().into_iter();
        kinds.filter(|(kind, _)| kind.mixer == Mixer::SharedBlock).map(|(_, count)| count).sum()
    }

    /// Returns the number of weights of one shared block's products: queries, keys and values from the layer's input
    /// concatenated with the embedding, attention's output projection, and a gated MLP.
    pub(crate) fn shared_block_matrices(&self) -> u64 {
        let joint = 2 * self.hidden;
        joint
            .saturating_mul(self.query_width() + 2 * self.kv_width())
            .saturating_add(self.hidden.saturating_mul(self.context_width() + 3 * self.ffn))
    }

    /// Returns the number of parameters of one shared block outside matrices: the norms before attention and MLP, and
    /// the MLP's biases.
    pub(crate) fn shared_block_vectors(&self) -> u64 {
        3 * self.hidden + if self.mlp_bias { 2 * self.ffn + self.hidden } else { 0 }
    }

    /// Returns the number of weights of the products of a layer with a shared block, without its scan.
    pub(crate) fn shared_layer_matrices(&self) -> u64 {
        let own = self.variations.shared_block.map_or(0, |block| block.own_matrices(self.hidden, self.ffn));
        self.shared_block_matrices().saturating_add(own)
    }

    pub(crate) fn channel_scan_matrices(&self) -> u64 {
        self.variations.channel_scan.map_or(0, |scan| scan.matrices(self.hidden))
    }

    pub(crate) fn channel_scan_vectors(&self) -> u64 {
        self.variations.channel_scan.map_or(0, |scan| scan.vectors(self.hidden))
    }

    /// Returns the number of weights of the products of a layer's scan, whose decays are per head or per channel.
    pub(crate) fn any_scan_matrices(&self) -> u64 {
        self.scan_matrices().saturating_add(self.channel_scan_matrices())
    }

    /// Returns the number of parameters outside matrices of a layer's scan, whose decays are per head or per channel.
    pub(crate) fn any_scan_vectors(&self) -> u64 {
        self.variations.scan.map_or(0, |scan| self.scan_vectors(scan)) + self.channel_scan_vectors()
    }

    /// Returns the number of parameters that a sum over layers counts more than once: the shared block of every layer,
    /// except of the first layer of each block.
    pub(crate) fn repeated_parameters(&self) -> u64 {
        let Some(block) = self.variations.shared_block else { return 0 };
        let again = self.shared_block_layers().saturating_sub(block.count);
        again.saturating_mul(self.shared_block_matrices().saturating_add(self.shared_block_vectors()))
    }
}
