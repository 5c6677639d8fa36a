//! Counts of attention to compressed entries, and of several residual streams (DeepSeek-V4).

use crate::layer_list::{KeyWindow, Mixer};
use crate::model::Model;
use crate::variations::{CompressedAttention, EntryForm, ResidualStreams};

impl EntryForm {
    /// Returns the number of vectors that a token contributes to compressed entries: one to its own entry, and one to
    /// the next entry if entries overlap.
    pub(crate) fn vectors(self) -> u64 {
        if self.overlaps { 2 } else { 1 }
    }

    /// Returns the number of weights of the products that make entries of `width` numbers: the vectors and their gates.
    #[must_use]
    pub fn matrices(self, hidden: u64, width: u64) -> u64 {
        2 * hidden.saturating_mul(self.vectors()).saturating_mul(width)
    }

    /// Returns the number of parameters of entries outside matrices: the gates' biases per position, and the norm's
    /// gains.
    #[must_use]
    pub fn biases(self, width: u64) -> u64 {
        self.tokens.saturating_mul(self.vectors()).saturating_add(1).saturating_mul(width)
    }
}

impl ResidualStreams {
    /// Returns the number of mixing weights per token: into the branch, out of it, and from stream to stream.
    #[must_use]
    pub fn weights(&self) -> u64 {
        self.count.saturating_mul(self.count + 2)
    }
}

impl Model {
    /// Returns the width of the residual stream per token, over all streams.
    pub(crate) fn residual_width(&self) -> u64 {
        self.variations.streams.map_or(1, |streams| streams.count).saturating_mul(self.hidden)
    }

    /// Returns the number of weights of the products that mix a layer's streams. Each of its two branches has one
    /// product.
    pub(crate) fn stream_matrices(&self) -> u64 {
        let each = |streams: ResidualStreams| streams.weights().saturating_mul(self.residual_width());
        self.variations.streams.map_or(0, |streams| 2 * each(streams))
    }

    /// Returns the number of parameters of a layer's mixing outside matrices: a bias per mixing weight and three
    /// factors, per branch.
    pub(crate) fn stream_vectors(&self) -> u64 {
        self.variations.streams.map_or(0, |streams| 2 * (streams.weights() + 3))
    }

    /// Returns the number of weights of the product that sums the streams before the head.
    pub(crate) fn last_stream_matrices(&self) -> u64 {
        self.variations.streams.map_or(0, |streams| streams.count.saturating_mul(self.residual_width()))
    }

    /// Returns the number of parameters of the sum before the head outside its matrix: a bias per stream and a factor.
    pub(crate) fn last_stream_vectors(&self) -> u64 {
        self.variations.streams.map_or(0, |streams| streams.count + 1)
    }

    /// Returns a layer's attention to compressed entries; `None` for other layers.
    fn compressed(&self) -> Option<CompressedAttention> {
        self.variations.compressed.filter(|_| self.variations.mixer == Mixer::Compressed)
    }

    fn own_entry_form(&self) -> Option<EntryForm> {
        self.compressed().and_then(|own| own.entry_form(self.variations.keys))
    }

    /// Returns the number of weights of the matrix products of a layer's attention to compressed entries; 0 for other
    /// layers.
    pub(crate) fn compressed_attention_matrices(&self) -> u64 {
        let Some(own) = self.compressed() else { return 0 };
        let query = own.query_rank.saturating_mul(self.hidden + self.query_width());
        let key = self.hidden.saturating_mul(self.head_dim);
        let output = own.output_rank.saturating_mul(self.query_width() + own.output_groups * self.hidden);
        let entries = self.own_entry_form().map_or(0, |form| form.matrices(self.hidden, self.head_dim));
        let index = self.own_indexer().map_or(0, |indexer| indexer.matrices(self.hidden));
        query.saturating_add(key).saturating_add(output).saturating_add(entries).saturating_add(index)
    }

    /// Returns the number of parameters outside matrices of a layer's attention to compressed entries: norms of the
    /// narrow query and the key, sinks, and the vectors of entries and indexer.
    pub(crate) fn compressed_attention_vectors(&self) -> u64 {
        let Some(own) = self.compressed() else { return 0 };
        let entries = self.own_entry_form().map_or(0, |form| form.biases(self.head_dim));
        own.query_rank + self.head_dim + self.heads + entries + self.own_indexer().map_or(0, |index| index.vectors())
    }

    /// Returns the number of compressed entries that a layer makes of a sequence; 0 for layers without entries.
    pub(crate) fn entries_of_sequence(&self, sequence: u64) -> u64 {
        self.own_entry_form().map_or(0, |form| sequence / form.tokens.max(1))
    }

    /// Returns the mean number of keys that a query of a causal sequence of s tokens sees. Through a window of w tokens
    /// it sees w - w² / (2 s) near keys. It also sees half of the compressed entries, or the entries that the indexer
    /// chooses.
    pub(crate) fn compressed_keys_seen(&self, sequence: u64) -> u128 {
        let near = self.variations.window.and_then(KeyWindow::sliding).unwrap_or(sequence).min(sequence);
        let near = near - near.saturating_mul(near) / (2 * sequence.max(1));
        let entries = match self.own_indexer() {
            Some(index) => index.chosen_keys(sequence),
            None => self.entries_of_sequence(sequence).div_ceil(2),
        };
        u128::from(near.saturating_add(entries).max(1))
    }

    /// Returns the number of keys that the last query of a sequence sees. The sequence has `seen` tokens, and the last
    /// `queries` of them are new.
    pub(crate) fn keys_at_end(&self, seen: u64, queries: u64) -> u64 {
        let near =
            self.variations.window.map_or(seen, |window| window.keys_at_end(seen, queries).min(window.most_keys()));
        let entries = self.entries_of_sequence(seen);
        let entries = self.own_indexer().map_or(entries, |index| index.chosen.min(entries));
        near.saturating_add(entries)
    }
}
