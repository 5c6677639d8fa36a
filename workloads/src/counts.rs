//! What a model counts: its parameters, those that a token meets, and the matrix operations of a training step.

use crate::model::{Experts, Model, Norm, NormPlacement, Position};
use crate::variations::{ParallelBranches, QueryKeyNorm};
use sim::units::Flops;

fn if_so(condition: bool, count: u64) -> u64 {
    if condition { count } else { 0 }
}

impl Model {
    /// Width of all query heads together.
    #[must_use]
    pub fn query_width(&self) -> u64 {
        self.heads * self.head_dim
    }

    /// Width of all key heads together (and of all value heads, unless attention is latent).
    #[must_use]
    pub fn kv_width(&self) -> u64 {
        self.kv_heads * self.head_dim
    }

    /// Dimension of a value head.
    #[must_use]
    pub fn value_dim(&self) -> u64 {
        self.variations.latent.map_or(self.head_dim, |latent| latent.value_dim)
    }

    /// Width of attention's result, before its output projection.
    #[must_use]
    pub fn context_width(&self) -> u64 {
        self.heads * self.value_dim()
    }

    /// The widths that tensor parallelism divides: of the MLP or of one expert, of an expert for every token, of leading layers' MLPs.
    pub(crate) fn mlp_widths(&self) -> impl Iterator<Item = u64> {
        let shared = self.experts.and_then(|experts| experts.shared).map(|shared| shared.ffn);
        let leading = self.variations.leading_dense.map(|dense| dense.ffn);
        [Some(self.ffn), shared, leading].into_iter().flatten()
    }

    /// All layers, leading dense ones included.
    #[must_use]
    pub fn all_layers(&self) -> u64 {
        self.layers.saturating_add(self.variations.leading_dense.map_or(0, |dense| dense.layers))
    }

    /// The embedding's rows on `tensor_parallel` devices: the vocabulary rounded up to a multiple of
    /// `vocabulary_multiple * tensor_parallel` (Megatron-LM, `_vocab_size_with_padding`).
    #[must_use]
    pub fn padded_vocabulary(&self, tensor_parallel: u32) -> u64 {
        self.vocabulary.next_multiple_of(self.vocabulary_multiple.saturating_mul(u64::from(tensor_parallel)).max(1))
    }

    /// Weights of a layer that take part in matrix products.
    #[must_use]
    pub fn layer_matrix_parameters(&self) -> u64 {
        self.layer_matrices(|experts| experts.count)
    }

    /// Weights of a layer that one token meets in matrix products: of the experts only those it goes to.
    #[must_use]
    pub fn active_layer_matrix_parameters(&self) -> u64 {
        self.layer_matrices(|experts| experts.top_k)
    }

    fn layer_matrices(&self, met: impl Fn(Experts) -> u64) -> u64 {
        let mlp = self.mlp_matrices(self.ffn);
        let mlps = self.experts.map_or(mlp, |experts| {
            let shared = experts
                .shared
                .map_or(0, |shared| self.mlp_matrices(shared.ffn).saturating_add(if_so(shared.weighed, self.hidden)));
            mlp.saturating_mul(met(experts)).saturating_add(self.hidden.saturating_mul(experts.count)).saturating_add(shared)
        });
        self.attention_matrices().saturating_add(mlps)
    }

    fn attention_matrices(&self) -> u64 {
        let Some(latent) = self.variations.latent else {
            return self.hidden.saturating_mul(2 * (self.query_width() + self.kv_width()));
        };
        let query = match latent.query_rank {
            Some(rank) => rank.saturating_mul(self.hidden + self.query_width()),
            None => self.hidden.saturating_mul(self.query_width()),
        };
        let up = self.heads.saturating_mul(self.head_dim.saturating_sub(latent.rope_dim) + latent.value_dim);
        let key_value =
            self.hidden.saturating_mul(latent.kv_rank + latent.rope_dim).saturating_add(latent.kv_rank.saturating_mul(up));
        query.saturating_add(key_value).saturating_add(self.context_width().saturating_mul(self.hidden))
    }

    fn mlp_matrices(&self, width: u64) -> u64 {
        let products = if self.gated { 3 } else { 2 };
        self.hidden.saturating_mul(products * width)
    }

    /// Weights of all leading dense layers that take part in matrix products.
    fn leading_matrices(&self) -> u64 {
        let layer = |ffn| self.attention_matrices().saturating_add(self.mlp_matrices(ffn));
        self.variations.leading_dense.map_or(0, |dense| dense.layers.saturating_mul(layer(dense.ffn)))
    }

    /// Weights of all matrices, embedding included, in 128 bits: what [`crate::limits::MAX_WEIGHTS`] bounds.
    pub(crate) fn weights(&self) -> u128 {
        let layers = u128::from(self.layers) * u128::from(self.layer_matrix_parameters()) + u128::from(self.leading_matrices());
        layers + 2 * u128::from(self.embedding_width.max(self.hidden)) * u128::from(self.vocabulary)
    }

    /// Elements of the largest tensor that `tokens` tokens make, scores apart: what [`crate::limits::MAX_ELEMENTS`] bounds.
    pub(crate) fn largest_tensor(&self, tokens: u64) -> u128 {
        let places = self.experts.map_or(tokens, |experts| experts.slots(tokens).max(tokens));
        let shared = self.experts.and_then(|experts| experts.shared).map_or(0, |shared| shared.ffn);
        let beside = shared.max(self.variations.leading_dense.map_or(0, |dense| dense.ffn));
        let mlp = 2 * (u128::from(places) * u128::from(self.ffn.max(self.hidden))).max(u128::from(tokens) * u128::from(beside));
        let attention =
            u128::from(self.query_width()) + u128::from(self.kv_width()) + u128::from(self.kv_heads * self.value_dim());
        mlp.max(u128::from(tokens) * attention.max(self.vocabulary.into()))
    }

    /// Weights of the whole model that take part in matrix products, with `vocabulary_rows` logits per token: layers,
    /// head, BERT's head transform and OPT's projections. The embedding's lookup multiplies nothing.
    #[must_use]
    pub fn matrix_parameters(&self, vocabulary_rows: u64) -> u64 {
        self.with_layers(self.layer_matrix_parameters(), vocabulary_rows)
    }

    /// Weights of the whole model that one token meets in matrix products: [`Self::matrix_parameters`] less the experts that it does
    /// not go to.
    #[must_use]
    pub fn active_matrix_parameters(&self, vocabulary_rows: u64) -> u64 {
        self.with_layers(self.active_layer_matrix_parameters(), vocabulary_rows)
    }

    fn with_layers(&self, per_layer: u64, vocabulary_rows: u64) -> u64 {
        let transform = if_so(self.head_transform, self.hidden * self.hidden);
        let projections = if_so(self.embedding_width != self.hidden, 2 * self.embedding_width * self.hidden);
        let logits = self.embedding_width.saturating_mul(vocabulary_rows);
        let layers = self.layers.saturating_mul(per_layer).saturating_add(self.leading_matrices());
        layers.saturating_add(logits + transform + projections)
    }

    /// All trained parameters, the vocabulary without padding, a tied head's matrix once.
    #[must_use]
    pub fn parameters(&self) -> u64 {
        self.all_parameters(self.matrix_parameters(self.vocabulary), |experts| experts.count)
    }

    /// The parameters that one token meets: [`Self::parameters`] less the experts that it does not go to, lookup tables in full.
    #[must_use]
    pub fn active_parameters(&self) -> u64 {
        self.all_parameters(self.active_matrix_parameters(self.vocabulary), |experts| experts.top_k)
    }

    fn all_parameters(&self, matrices: u64, met: impl Fn(Experts) -> u64) -> u64 {
        let norm = self.norm_parameters(self.hidden);
        let positions = match self.position {
            Position::Learned { rows } => rows,
            Position::Rotary | Position::Alibi => 0,
        };
        let tables = (positions + self.token_types).saturating_mul(self.hidden);
        let norms = if_so(self.embedding_norm, norm) + if_so(self.final_norm, norm) + if_so(self.head_transform, norm);
        let head_biases = if_so(self.head_transform, self.hidden) + if_so(self.head_bias, self.vocabulary);
        let untied_table = if_so(!self.tied_head, self.embedding_width.saturating_mul(self.vocabulary));
        let attention = self.attention_vectors();
        let layer = attention.saturating_add(match self.experts {
            Some(experts) => met(experts).saturating_mul(self.mlp_biases(self.ffn)) + if_so(experts.router_bias, experts.count),
            None => self.mlp_biases(self.ffn),
        });
        let leading =
            self.variations.leading_dense.map_or(0, |dense| dense.layers.saturating_mul(attention + self.mlp_biases(dense.ffn)));
        let layers = self.layers.saturating_mul(layer).saturating_add(leading);
        matrices.saturating_add(layers + tables + norms + head_biases + untied_table)
    }

    fn norm_parameters(&self, width: u64) -> u64 {
        match (self.norm_affine, self.norm) {
            (false, _) => 0,
            (true, Norm::LayerNorm) if !self.variations.norm_without_bias => 2 * width,
            (true, _) => width,
        }
    }

    fn mlp_biases(&self, width: u64) -> u64 {
        if_so(self.mlp_bias, if_so(self.gated, width) + width + self.hidden)
    }

    /// Parameters of a layer's norms and of its attention that are in no matrix.
    fn attention_vectors(&self) -> u64 {
        let variations = &self.variations;
        let norms = match (self.norm_placement, variations.parallel) {
            (NormPlacement::Sandwich, _) => 4,
            (_, Some(ParallelBranches::OneNorm)) => 1,
            _ => 2,
        };
        let query_key = match variations.query_key_norm {
            Some(QueryKeyNorm::Head) => 2 * self.head_dim,
            Some(QueryKeyNorm::OwnHead | QueryKeyNorm::Whole) => self.query_width() + self.kv_width(),
            None => 0,
        };
        let latent = variations.latent.map_or(0, |latent| latent.query_rank.unwrap_or(0) + latent.kv_rank);
        norms * self.norm_parameters(self.hidden)
            + if_so(self.norm_affine, query_key + latent)
            + if_so(self.qkv_bias, self.query_width() + 2 * self.kv_width())
            + if_so(self.attention_output_bias, self.hidden)
            + if_so(variations.sinks, self.heads)
    }

    /// The closed form of a training step's matrix operations, forward and both gradients, without recomputation and
    /// with all scores counted (Megatron's and PaLM's convention for model FLOPs, causal or not):
    /// 6 * matrix parameters that a token meets * tokens, and 6 * layers * heads * (dimension of a query + of a value) * sequence per token for
    /// scores and context, which is 12 * layers * query width * sequence where the two are alike.
    /// For GPT this is 72 B s l h^2 (1 + s/(6h) + V/(12 l h)) (Narayanan et al. 2021, without recomputation's quarter).
    #[must_use]
    pub fn training_flops(&self, sequences: u64, sequence_length: u64, vocabulary_rows: u64) -> Flops {
        self.flops_over(sequences, sequence_length, vocabulary_rows, u128::from(sequence_length))
    }

    /// [`Self::training_flops`] of the scores that the result depends on: a token of a causal model sees (s + 1) / 2 tokens on average. What
    /// utilisation divides: a kernel that skips the masked half would pass 100 % of its peak by the convention that counts all scores.
    #[must_use]
    pub fn necessary_training_flops(&self, sequences: u64, sequence_length: u64, vocabulary_rows: u64) -> Flops {
        let seen = if self.causal { u128::from(sequence_length).div_ceil(2) } else { u128::from(sequence_length) };
        self.flops_over(sequences, sequence_length, vocabulary_rows, seen)
    }

    /// The closed form with `seen` tokens per token in scores and context.
    fn flops_over(&self, sequences: u64, sequence_length: u64, vocabulary_rows: u64, seen: u128) -> Flops {
        let tokens = u128::from(sequences) * u128::from(sequence_length);
        let products = 6 * u128::from(self.active_matrix_parameters(vocabulary_rows));
        let attention = 6 * u128::from(self.all_layers()) * u128::from(self.query_width() + self.context_width()) * seen;
        Flops(tokens * (products + attention))
    }
}
