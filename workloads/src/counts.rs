//! Counts of a model: its parameters, those active per token, and the matrix operations of a training step.

use crate::layer_list::{EncoderDecoderSide, FeedForward, KeyChoice, KeyWindow, Mixer};
use crate::model::{Experts, Model, Norm, NormPlacement, PositionEncoding};
use crate::variations::{HeadTokens, Indexer, OutputGate, ParallelBranches, QueryKeyNorm, StateSpace};
use sim::units::Flops;

fn count_if(condition: bool, count: u64) -> u64 {
    if condition { count } else { 0 }
}

impl Model {
    /// Returns the total width of all query heads.
    #[must_use]
    pub fn query_width(&self) -> u64 {
        self.heads * self.head_dim
    }

    /// Returns the total width of all key heads. Value heads have the same width, unless [`Self::value_dim`] differs
    /// from `head_dim`.
    #[must_use]
    pub fn kv_width(&self) -> u64 {
        self.kv_heads * self.head_dim
    }

    /// Returns the dimension of a value head.
    #[must_use]
    pub fn value_dim(&self) -> u64 {
        let variations = &self.variations;
        variations.latent.map(|latent| latent.value_dim).or(variations.value_dim).unwrap_or(self.head_dim)
    }

    /// Returns the width of attention's result before its output projection.
    #[must_use]
    pub fn context_width(&self) -> u64 {
        self.heads * self.value_dim()
    }

    /// Returns the widths that tensor parallelism divides: the MLP or one expert, the shared expert, the MLP beside
    /// experts, and the MLPs of layer kinds with a width of their own.
    pub(crate) fn mlp_widths(&self) -> impl Iterator<Item = u64> {
        let shared = self.experts.and_then(|experts| experts.shared).map(|shared| shared.ffn);
        let others = self.layer_kinds().into_iter().filter_map(|(kind, _)| match kind.feed {
            FeedForward::Mlp(width) => Some(width),
            FeedForward::Own | FeedForward::None => None,
        });
        [Some(self.ffn), shared, self.variations.dense_beside_experts].into_iter().flatten().chain(others)
    }

    /// Returns the distinct [`Self::mlp_widths`] as text for a message.
    pub(crate) fn distinct_mlp_widths(&self) -> String {
        let mut widths: Vec<String> = Vec::new();
        for width in self.mlp_widths().map(|width| width.to_string()) {
            if !widths.contains(&width) {
                widths.push(width);
            }
        }
        widths.join(" and ")
    }

    /// Returns the number of all layers, of every kind.
    #[must_use]
    pub fn layer_count(&self) -> u64 {
        let ends = self.list.leading.len() + self.list.trailing.len();
        self.layers.saturating_mul(self.layers_per_block()).saturating_add(ends as u64)
    }

    /// Returns the distinct (query heads, key/value heads) of the layers with attention, sorted. Without such layers,
    /// it returns the model's own pair.
    #[must_use]
    pub fn attention_heads(&self) -> Vec<(u64, u64)> {
        let kinds = self.layer_kinds().into_iter().filter(|(kind, _)| kind.mixer.has_attention());
        let mut heads: Vec<(u64, u64)> = kinds
            .map(|(kind, _)| kind.attention.map_or((self.heads, self.kv_heads), |shape| (shape.heads, shape.kv_heads)))
            .collect();
        heads.sort_unstable();
        heads.dedup();
        if heads.is_empty() { vec![(self.heads, self.kv_heads)] } else { heads }
    }

    /// Returns the embedding's rows over all `tensor_parallel` devices: the vocabulary rounded up to a multiple of
    /// `vocabulary_multiple * tensor_parallel` (Megatron-LM, `_vocab_size_with_padding`).
    #[must_use]
    pub fn padded_vocabulary(&self, tensor_parallel: u32) -> u64 {
        self.vocabulary_padded_by(1, tensor_parallel)
    }

    /// Returns [`Self::padded_vocabulary`] with the framework's multiple, if the model's own multiple is 1.
    #[must_use]
    pub fn vocabulary_padded_by(&self, framework_multiple: u64, tensor_parallel: u32) -> u64 {
        let multiple = if self.vocabulary_multiple > 1 { self.vocabulary_multiple } else { framework_multiple };
        self.vocabulary.next_multiple_of(multiple.saturating_mul(u64::from(tensor_parallel)).max(1))
    }

    /// Returns the number of weights of one layer's matrix products, in a model whose layers are alike.
    #[must_use]
    pub fn layer_matrix_parameters(&self) -> u64 {
        self.layer_matrices(|experts| experts.count)
    }

    /// Returns the number of weights of one layer's matrix products that are active for one token, in a model whose
    /// layers are alike. Only the chosen experts count.
    #[must_use]
    pub fn active_layer_matrix_parameters(&self) -> u64 {
        self.layer_matrices(|experts| experts.top_k)
    }

    fn layer_matrices(&self, met: impl Fn(Experts) -> u64) -> u64 {
        let mlp = count_if(!self.variations.without_mlp, self.mlp_matrices(self.ffn));
        let mlps = self.experts.map_or(mlp, |experts| {
            let shared = experts.shared.map_or(0, |shared| {
                self.mlp_matrices(shared.ffn).saturating_add(count_if(shared.weighed, self.hidden))
            });
            let latent = experts.latent.map_or(0, |latent| 2 * latent.saturating_mul(self.hidden));
            let each = self.mlp_matrices_of(experts.latent.unwrap_or(self.hidden), self.ffn);
            each.saturating_mul(met(experts))
                .saturating_add(self.hidden.saturating_mul(experts.count))
                .saturating_add(shared)
                .saturating_add(latent)
                .saturating_add(self.variations.dense_beside_experts.map_or(0, |width| self.mlp_matrices(width)))
        });
        let mixer = match self.variations.mixer {
            Mixer::Attention => self.attention_matrices(),
            Mixer::Scan => self.scan_matrices(),
            Mixer::AttentionAndScan => self.attention_matrices().saturating_add(self.scan_matrices()),
            Mixer::ChannelScan => self.channel_scan_matrices(),
            // The gate product of this layer's MLP counts too.
            Mixer::Recurrence => {
                self.variations.recurrence.map_or(0, |own| own.matrices(self.hidden) + self.hidden * self.hidden)
            }
            Mixer::Compressed => self.compressed_attention_matrices(),
            Mixer::SharedBlock => self.shared_layer_matrices().saturating_add(self.any_scan_matrices()),
            Mixer::Convolution => self.variations.convolution.map_or(0, |mixer| mixer.matrices(self.hidden)),
            Mixer::Linear => self.variations.linear.map_or(0, |linear| linear.matrices(self.hidden)),
            Mixer::None => 0,
        };
        let cross = count_if(self.attends_to_encoder(), self.attention_matrices());
        mixer.saturating_add(cross).saturating_add(mlps).saturating_add(self.stream_matrices())
    }

    /// Returns whether a layer attends to an encoder's result.
    fn attends_to_encoder(&self) -> bool {
        self.variations.side == EncoderDecoderSide::Decoder
    }

    /// Returns the number of weights of the products that turn an encoder's result into keys and values.
    fn cross_key_value_matrices(&self) -> u64 {
        count_if(self.attends_to_encoder(), self.hidden.saturating_mul(self.kv_width() + self.value_width()))
    }

    /// Returns the number of weights of the products before and after a state-space scan.
    pub(crate) fn scan_matrices(&self) -> u64 {
        let into = |scan: StateSpace| 2 * scan.scan_width() + 2 * scan.groups * scan.state + scan.heads;
        self.variations.scan.map_or(0, |scan| self.hidden.saturating_mul(into(scan).saturating_add(scan.scan_width())))
    }

    /// Returns the total width of the values; 0 if keys are the values too.
    fn value_width(&self) -> u64 {
        count_if(!self.variations.shared_value, self.kv_heads * self.value_dim())
    }

    /// Returns the layer's own indexer; `None` if the layer has none or reuses the choice of an earlier layer.
    pub(crate) fn own_indexer(&self) -> Option<Indexer> {
        self.variations.indexer.filter(|_| self.variations.keys == KeyChoice::Indexed)
    }

    fn indexer_matrices(&self) -> u64 {
        self.own_indexer().map_or(0, |indexer| indexer.matrices(self.hidden))
    }

    /// Returns the width of the gate on attention's result; 0 without a gate.
    fn gate_width(&self) -> u64 {
        match self.variations.output_gate {
            Some(OutputGate::Number) => self.context_width(),
            Some(OutputGate::Head) => self.heads,
            None => 0,
        }
    }

    fn attention_matrices(&self) -> u64 {
        let Some(latent) = self.variations.latent else {
            let joint = self.query_width() + self.kv_width() + self.value_width() + self.context_width();
            return self.hidden.saturating_mul(joint + self.gate_width()).saturating_add(self.indexer_matrices());
        };
        let query = match latent.query_rank {
            Some(rank) => rank.saturating_mul(self.hidden + self.query_width()),
            None => self.hidden.saturating_mul(self.query_width()),
        };
        let up = self.heads.saturating_mul(self.head_dim.saturating_sub(latent.rope_dim) + latent.value_dim);
        let key_value = self
            .hidden
            .saturating_mul(latent.kv_rank + latent.rope_dim)
            .saturating_add(latent.kv_rank.saturating_mul(up));
        query
            .saturating_add(key_value)
            .saturating_add((self.context_width() + self.gate_width()).saturating_mul(self.hidden))
            .saturating_add(self.indexer_matrices())
    }

    fn mlp_matrices(&self, width: u64) -> u64 {
        self.mlp_matrices_of(self.hidden, width)
    }

    /// Returns the number of weights of an MLP of inner width `width` that reads and writes `outer` numbers per token.
    fn mlp_matrices_of(&self, outer: u64, width: u64) -> u64 {
        let products = if self.gated { 3 } else { 2 };
        outer.saturating_mul(products * width)
    }

    /// Returns the number of weights of the layers' matrices, the embedding and the head, in 128 bits;
    /// [`crate::limits::MAX_WEIGHTS`] bounds it. Embedding and head count separately, even if they are tied. Their
    /// width counts as the embedding's or the model's, whichever is larger.
    pub(crate) fn weight_count(&self) -> u128 {
        u128::from(self.sum_over_layers(Self::layer_matrix_parameters))
            + 2 * u128::from(self.embedding_width.max(self.hidden)) * u128::from(self.vocabulary)
            + u128::from(self.further_matrices())
            + u128::from(self.conditioning_parameters())
    }

    /// Returns the number of parameters of the conditioning of all branches.
    fn conditioning_parameters(&self) -> u64 {
        self.variations.conditioning.map_or(0, |own| own.parameters(self.hidden, self.layer_count()))
    }

    /// Returns the number of elements of the largest tensor that `tokens` tokens make, except scores;
    /// [`crate::limits::MAX_ELEMENTS`] bounds it.
    pub(crate) fn largest_tensor(&self, tokens: u64) -> u128 {
        let places = self.experts.map_or(tokens, |experts| experts.expert_slots(tokens).max(tokens));
        let scanned = self.variations.scan.map_or(0, |scan| scan.scan_width().saturating_add(scan.convolved_width()));
        let linear = self.variations.linear.map_or(0, |linear| linear.mixed_width().saturating_mul(2));
        let linear = linear.max(self.variations.channel_scan.map_or(0, |scan| 2 * scan.width));
        let linear = linear.max(self.variations.convolution.map_or(0, |_| 2 * self.hidden));
        let beside = self.mlp_widths().max().unwrap_or(0).max(scanned).max(linear);
        let mlp = 2
            * (u128::from(places) * u128::from(self.ffn.max(self.hidden))).max(u128::from(tokens) * u128::from(beside));
        let attention =
            u128::from(self.query_width()) + u128::from(self.kv_width()) + u128::from(self.kv_heads * self.value_dim());
        let widest = attention.max(self.vocabulary.into()).max(self.residual_width().into());
        mlp.max(u128::from(tokens) * widest)
    }

    /// Returns the number of weights of the model's matrix products, with `vocabulary_rows` logits per token: layers,
    /// head, BERT's head transform, OPT's projections, the inputs from patches or sound, and the modules that predict
    /// further tokens. The embedding's lookup is no product.
    #[must_use]
    pub fn matrix_parameters(&self, vocabulary_rows: u64) -> u64 {
        self.add_end_matrices(self.sum_over_layers(Self::layer_matrix_parameters), vocabulary_rows)
    }

    /// Returns the number of weights of the model's matrix products that are active for one token:
    /// [`Self::matrix_parameters`] without the experts that are not chosen.
    #[must_use]
    pub fn active_matrix_parameters(&self, vocabulary_rows: u64) -> u64 {
        self.add_end_matrices(self.sum_over_layers(Self::active_layer_matrix_parameters), vocabulary_rows)
    }

    fn add_end_matrices(&self, layers: u64, vocabulary_rows: u64) -> u64 {
        let patches = self.variations.patches.map_or(0, |patches| patches.numbers.saturating_mul(self.hidden));
        layers
            .saturating_add(self.end_matrices())
            .saturating_add(self.head_matrices(vocabulary_rows))
            .saturating_add(patches)
            .saturating_add(self.variations.frames.map_or(0, |frames| frames.matrices(self.hidden)))
            .saturating_add(self.further_matrices())
    }

    /// Returns the number of weights of the products that merge two vectors into one, in the modules that predict
    /// further tokens.
    fn further_matrices(&self) -> u64 {
        self.variations.further_tokens.saturating_mul(2 * self.hidden * self.hidden)
    }

    /// Returns the number of weights of the products at the model's ends that every token passes: OPT's projections,
    /// and the product that sums the residual streams.
    fn end_matrices(&self) -> u64 {
        let projections = count_if(self.embedding_width != self.hidden, 2 * self.embedding_width * self.hidden);
        projections.saturating_add(self.last_stream_matrices())
    }

    /// Returns the number of weights of the head's products: the logits or another task's outputs, and BERT's
    /// transform.
    fn head_matrices(&self, vocabulary_rows: u64) -> u64 {
        let transform = count_if(self.head_transform, self.hidden * self.hidden);
        let last = match self.variations.task_head {
            Some(head) => head.matrices(self.embedding_width, self.hidden),
            None => self.embedding_width.saturating_mul(vocabulary_rows),
        };
        last.saturating_add(transform)
    }

    /// Returns the number of all trained parameters, for the vocabulary without padding. A tied head's matrix counts
    /// once.
    #[must_use]
    pub fn parameters(&self) -> u64 {
        self.all_parameters(self.matrix_parameters(self.vocabulary), |experts| experts.count)
    }

    /// Returns the number of parameters active for one token: [`Self::parameters`] without the experts that are not
    /// chosen. Lookup tables count in full.
    #[must_use]
    pub fn active_parameters(&self) -> u64 {
        self.all_parameters(self.active_matrix_parameters(self.vocabulary), |experts| experts.top_k)
    }

    /// Returns [`Self::active_parameters`] if it is smaller than [`Self::parameters`], else `None`.
    #[must_use]
    pub fn find_active_parameters(&self) -> Option<u64> {
        Some(self.active_parameters()).filter(|active| *active < self.parameters())
    }

    fn all_parameters(&self, matrices: u64, met: impl Fn(Experts) -> u64) -> u64 {
        let norm = self.norm_parameters(self.hidden);
        let positions = match self.position {
            PositionEncoding::Learned { rows } => rows,
            PositionEncoding::Rotary | PositionEncoding::Alibi | PositionEncoding::None => 0,
        };
        // Each side of an encoder-decoder has its own positions and norms.
        let sides = if self.attends_to_encoder() { 2 } else { 1 };
        let tables_of = |sides: u64| sides * (positions + self.token_types).saturating_mul(self.hidden);
        // An encoder of sound has its own table of positions.
        let tables = match self.variations.frames {
            Some(frames) => tables_of(1).saturating_add(frames.vectors(self.hidden)),
            None => tables_of(sides),
        };
        let norms = sides * (count_if(self.embedding_norm, norm) + count_if(self.final_norm, norm))
            + count_if(self.head_transform, norm)
            + self.last_stream_vectors();
        let head_biases = count_if(self.head_transform && !self.variations.transform_without_bias, self.hidden)
            + count_if(self.head_bias, self.vocabulary);
        let pooled = self.variations.task_head.map_or(0, |head| head.biases(self.hidden));
        // The token table. With patches, the learned vectors of every sequence's first tokens and the patches' biases
        // replace it.
        let table = match self.variations.patches {
            Some(patches) => patches.first_tokens() * self.hidden + count_if(patches.bias, self.hidden),
            None if self.tied_head => 0,
            None => self.embedding_width.saturating_mul(self.vocabulary),
        };
        let shared_rows = count_if(!self.variations.relative_in_layers, self.variations.relative_rows);
        let relative = sides * shared_rows * self.heads;
        // Each module has three norms: of the hidden vector, of the embedding, and before the head.
        let further = self.variations.further_tokens.saturating_mul(3 * norm);
        let layers = self.sum_over_layers(|alike| alike.layer_vectors(&met)) + self.conditioning_parameters();
        let all = matrices.saturating_add(layers + tables + norms + head_biases + pooled + table + relative + further);
        all.saturating_sub(self.repeated_parameters())
    }

    /// Returns the number of parameters of a layer outside its matrices, in a model whose layers are alike.
    fn layer_vectors(&self, met: impl Fn(Experts) -> u64) -> u64 {
        let mixer = match self.variations.mixer {
            Mixer::Attention => self.attention_vectors(),
            Mixer::Scan => self.variations.scan.map_or(0, |scan| self.scan_vectors(scan)),
            Mixer::AttentionAndScan => {
                self.variations.scan.map_or(0, |scan| self.scan_vectors(scan)) + self.attention_vectors()
            }
            Mixer::ChannelScan => self.channel_scan_vectors(),
            // The MLP of this layer mixes neighbouring tokens twice. The weights of both mixes count too.
            Mixer::Recurrence => self.variations.recurrence.map_or(0, |own| own.vectors(self.hidden) + 2 * self.hidden),
            Mixer::Compressed => self.compressed_attention_vectors(),
            Mixer::SharedBlock => self.shared_block_vectors() + self.any_scan_vectors(),
            Mixer::Convolution => self.variations.convolution.map_or(0, |mixer| mixer.vectors(self.hidden)),
            Mixer::Linear => self.variations.linear.map_or(0, |linear| linear.vectors()),
            Mixer::None => 0,
        };
        let biases = match self.experts {
            Some(experts) => {
                let norms = 3 + u64::from(experts.shared.is_some());
                met(experts).saturating_mul(self.mlp_biases(self.ffn))
                    + count_if(experts.router_bias, experts.count)
                    + count_if(experts.own_norms, norms * self.norm_parameters(self.hidden))
            }
            None => count_if(!self.variations.without_mlp, self.mlp_biases(self.ffn)),
        };
        let cross = count_if(self.attends_to_encoder(), self.attention_biases());
        mixer + self.stream_vectors() + cross.saturating_add(self.layer_norms()).saturating_add(biases)
    }

    /// Returns the number of parameters of the norms around a layer's branches.
    fn layer_norms(&self) -> u64 {
        let variations = &self.variations;
        let branches = u64::from(variations.mixer != Mixer::None)
            + u64::from(!variations.without_mlp)
            + u64::from(self.attends_to_encoder())
            + u64::from(variations.dense_beside_experts.is_some() && self.experts.is_some())
            - u64::from(variations.without_first_norm);
        let norms = match (self.norm_placement, variations.parallel) {
            (NormPlacement::Sandwich, _) => 2 * branches,
            (_, Some(ParallelBranches::OneNorm)) => 1,
            _ => branches,
        };
        norms * self.norm_parameters(self.hidden)
    }

    /// Returns the number of parameters of a scan outside its matrices: the convolution, the decay, step and skip of
    /// every head, the norm of the result, and biases.
    pub(crate) fn scan_vectors(&self, scan: StateSpace) -> u64 {
        let convolution = scan.convolved_width() * (scan.convolution + u64::from(scan.convolution_bias));
        let biases =
            count_if(scan.bias, 2 * scan.scan_width() + 2 * scan.groups * scan.state + scan.heads + self.hidden);
        convolution + 3 * scan.heads + count_if(!scan.without_norm, scan.scan_width()) + biases
    }

    fn norm_parameters(&self, width: u64) -> u64 {
        match (self.norm_affine, self.norm) {
            (false, _) => 0,
            (true, Norm::LayerNorm) if !self.variations.norm_without_bias => 2 * width,
            (true, _) => width,
        }
    }

    fn mlp_biases(&self, width: u64) -> u64 {
        count_if(self.mlp_bias, count_if(self.gated, width) + width + self.hidden)
    }

    /// Returns the number of parameters of a layer's attention outside its matrices.
    fn attention_vectors(&self) -> u64 {
        let variations = &self.variations;
        let query_key = match variations.query_key_norm {
            Some(QueryKeyNorm::Head) => 2 * self.head_dim,
            Some(QueryKeyNorm::OwnHead | QueryKeyNorm::Whole) => self.query_width() + self.kv_width(),
            None => 0,
        };
        let latent = variations.latent.map_or(0, |latent| latent.query_rank.unwrap_or(0) + latent.kv_rank);
        count_if(self.norm_affine, query_key + latent)
            + self.own_indexer().map_or(0, |indexer| indexer.vectors())
            + self.attention_biases()
            + count_if(variations.sinks, self.heads)
            + count_if(variations.relative_in_layers, variations.relative_rows * self.heads)
    }

    /// Returns whether a product of attention's input has a bias; `part` is `query`, `key` or `value`.
    pub(crate) fn has_bias(&self, part: &str) -> bool {
        self.qkv_bias && !(self.variations.key_without_bias && part == "key")
    }

    /// Returns the number of biases of the products of queries, keys and values and of attention's result.
    fn attention_biases(&self) -> u64 {
        let keys = count_if(!self.variations.key_without_bias, self.kv_width());
        count_if(self.qkv_bias, self.query_width() + keys + self.value_width())
            + count_if(self.attention_output_bias, self.hidden)
    }

    /// Returns the matrix operations of a training step in closed form: forward and both gradients, without
    /// recomputation. All scores count, causal or not (the convention of Megatron and PaLM for model FLOPs).
    ///
    /// The terms are 6 * active matrix parameters * tokens, and per token 6 * layers * heads * (dimension of a query +
    /// of a value) * sequence for scores and context. The latter is 12 * layers * query width * sequence if both
    /// dimensions are equal. For GPT the sum is 72 B s l h^2 (1 + s/(6h) + V/(12 l h)) (Narayanan et al. 2021, without
    /// recomputation's quarter).
    ///
    /// A state-space scan does [`StateSpace::scan_operations`] per token and direction. Only the tokens that are
    /// patches count for the patch product. A head that reads one token per sequence counts once per sequence. Scores
    /// between packed documents do not count.
    #[must_use]
    pub fn training_flops(&self, sequences: u64, sequence_length: u64, vocabulary_rows: u64) -> Flops {
        let pieces = self.pieces_of_sequence(sequence_length);
        self.flops_with_attended_tokens(sequences, sequence_length, vocabulary_rows, |layer| {
            let entries = layer.entries_of_sequence(sequence_length);
            let whole = || u128::from(layer.variations.tokens_of_side(sequence_length)) + u128::from(entries);
            pieces.map_or_else(whole, |pieces| pieces.mean_over_keys(u128::from))
        })
    }

    /// Returns [`Self::training_flops`] with only those scores that the result depends on. A token of a causal model
    /// sees (s + 1) / 2 tokens on average. Through a window of w tokens it sees w - w^2 / (2 s), and in chunks only
    /// tokens of its own chunk. With an indexer, only the chosen keys count. Utilisation is based on this figure: with
    /// all scores counted, a kernel that skips the masked half would exceed 100 % of its peak.
    #[must_use]
    pub fn necessary_training_flops(&self, sequences: u64, sequence_length: u64, vocabulary_rows: u64) -> Flops {
        self.flops_with_attended_tokens(sequences, sequence_length, vocabulary_rows, |layer| {
            if layer.variations.mixer == Mixer::Compressed {
                return layer.compressed_keys_seen(sequence_length);
            }
            if let Some(indexer) = layer.variations.indexer.filter(|_| layer.variations.keys != KeyChoice::All) {
                return u128::from(indexer.chosen_keys(sequence_length));
            }
            let seen = |tokens: u64| {
                let s = u128::from(tokens);
                let window = layer.variations.window.and_then(KeyWindow::sliding).map(u128::from);
                match (window.filter(|window| *window < s), layer.causal) {
                    (Some(window), true) => (2 * s * window - window * window) / (2 * s.max(1)),
                    (Some(window), false) => window,
                    (None, true) => s.div_ceil(2),
                    (None, false) => s,
                }
            };
            let pieces = layer.pieces_of_attention(sequence_length);
            let whole = layer.variations.tokens_of_side(sequence_length);
            pieces.map_or_else(|| seen(whole), |pieces| pieces.mean_over_keys(seen))
        })
    }

    /// Returns the closed form of [`Self::training_flops`] for a given number of attended tokens. `seen` returns, for
    /// each kind of layer, the number of tokens that one query attends to.
    fn flops_with_attended_tokens(
        &self,
        sequences: u64,
        sequence_length: u64,
        vocabulary_rows: u64,
        seen: impl Fn(&Self) -> u128,
    ) -> Flops {
        let tokens = u128::from(sequences) * u128::from(sequence_length);
        let mut each_sequence = 0;
        for (kind, count) in self.layer_kinds() {
            let layer = if self.list.is_empty() { self.clone() } else { self.with_uniform_kind(&kind) };
            let own = layer.variations.tokens_of_side(sequence_length);
            let cross = 6
                * u128::from(layer.cross_key_value_matrices())
                * u128::from(layer.variations.encoder_tokens(sequence_length));
            let operations = u128::from(own) * layer.layer_operations(seen(&layer), sequence_length) + cross;
            each_sequence += u128::from(count) * operations;
        }
        let further = u128::from(self.variations.further_tokens);
        if further > 0 {
            let last = self.with_uniform_kind(&self.last_kind());
            let each =
                further * last.layer_operations(seen(&last), sequence_length) + 6 * u128::from(self.further_matrices());
            each_sequence += u128::from(sequence_length) * each;
        }
        each_sequence += self.variations.frames.map_or(0, |frames| frames.operations(self.hidden));
        let conditioning = self.variations.conditioning;
        each_sequence += conditioning.map_or(0, |own| own.operations(self.hidden, self.layer_count()));
        // Every module that predicts further tokens computes its own logits.
        let head = 6 * u128::from(self.head_matrices(vocabulary_rows)) * (1 + further);
        let pooled = self.variations.task_head.is_some_and(|head| head.tokens != HeadTokens::Every);
        let heads = if pooled { u128::from(sequences) } else { tokens };
        let ends = tokens * 6 * u128::from(self.end_matrices());
        let patches = self.patch_operations(sequences, sequence_length);
        Flops(u128::from(sequences) * each_sequence + heads * head + ends + patches)
    }

    /// Returns the operations of the product that turns patches into tokens. It counts 4 per weight instead of 6,
    /// because its input has no gradient. A sequence's learned first tokens are no patches.
    fn patch_operations(&self, sequences: u64, sequence_length: u64) -> u128 {
        let Some(patches) = self.variations.patches else { return 0 };
        let weights = u128::from(patches.numbers) * u128::from(self.hidden);
        4 * weights * u128::from(sequences) * u128::from(sequence_length.saturating_sub(patches.first_tokens()))
    }

    /// Returns the operations per token of a layer's indexer, without its products with weights: all scores in the
    /// forward pass, and the gradients of queries and keys on the chosen tokens.
    fn indexer_operations(&self, sequence_length: u64) -> u128 {
        self.own_indexer().map_or(0, |indexer| {
            let chosen = u128::from(indexer.chosen_keys(sequence_length));
            let per_key = 2 * u128::from(indexer.heads) * u128::from(indexer.head_dim);
            indexer.score_operations(sequence_length) + 2 * per_key * chosen
        })
    }

    /// Returns the operations of a layer per token, in a model whose layers are alike. It leaves out the products that
    /// turn an encoder's result into keys and values.
    fn layer_operations(&self, seen: u128, sequence_length: u64) -> u128 {
        // The indexer's input is detached, so its products compute no input gradient.
        let products = 6 * u128::from(self.active_layer_matrix_parameters() - self.cross_key_value_matrices())
            - 2 * u128::from(self.indexer_matrices());
        let widths = 6 * u128::from(self.query_width() + self.context_width());
        let scan = self.variations.scan.map_or(0, |scan| 3 * scan.scan_operations());
        let mixer = match self.variations.mixer {
            Mixer::Attention | Mixer::Compressed => widths * seen + self.indexer_operations(sequence_length),
            Mixer::AttentionAndScan | Mixer::SharedBlock => widths * seen + scan,
            Mixer::Scan => scan,
            // Besides their products with weights, these mixers do no matrix operations.
            Mixer::ChannelScan | Mixer::Convolution | Mixer::Recurrence => 0,
            Mixer::Linear => self.variations.linear.map_or(0, |linear| linear.operations(sequence_length).1),
            Mixer::None => 0,
        };
        let encoded = u128::from(self.variations.encoder_tokens(sequence_length));
        let cross = if self.attends_to_encoder() { widths * encoded } else { 0 };
        products + mixer + cross
    }
}
