//! Builds the segments of every family from operators: embedding, layers and head.

use super::embedding::TableSize;
use super::fused_attention::{AttentionCore, ChosenKeys};
use super::linear::{Linear, ProductWidths, ResultPart, WeightSplit, result_part};
use super::norm::NormOperator;
use super::per_head::PerHeadProduct;
use super::rope::RotatedWidths;
use super::scores::ScoreShape;
use super::segment_plan::SegmentPlan;
use super::{
    OperatorContext, RowShape, activation, channel_scan, compressed_attention, conditioning, context, cross, dropout,
    embedding, frames, further, fused_attention, gated, gated_convolution, indexer, kernel_step, latent,
    linear_attention, loss, moe, patches, pooling, query_key_norm, recurrence, reduction_kernel, residual, rope, scan,
    scores, shared_block, softmax, streams, ulysses,
};
use crate::graph::{GraphBuilder, KernelStep, NewOperator, OperatorGraph, OperatorRole, Parameters, TensorId};
use crate::layer_list::{EncoderDecoderSide, KeyChoice, LayerKind, Mixer};
use crate::layer_names::{LEADING_LAYER, TRAILING_LAYER};
use crate::lowering::{Attention, ContextMethod, LossForm};
use crate::model::{Experts, NormPlacement, PositionEncoding};
use crate::parallel::{DeviceSlice, Heads, kv_heads_of_device};
use crate::variations::{HeadTokens, Indexer, OutputGate, ParallelBranches, TaskHead, Variations};
use sim::kernel::{CollectiveKind, Direction, ElementwiseFunction, RowFunction};
use sim::units::Bytes;

impl SegmentPlan<'_> {
    /// Builds the embedding's segment: token lookup (or the product of patches, or the convolutions over sound),
    /// projection to the residual stream if the widths differ, positions, token types, norm and dropout. Leading layers
    /// follow, which stay with the embedding on the first stage. In an encoder-decoder, the leading layers are the
    /// encoder, with a norm after it if the decoder has one. The segment's output is then the decoder's embedding, and
    /// the encoder's result is lent to the decoder's layers.
    pub(crate) fn build_embedding(&self) -> OperatorGraph {
        let mut graph = GraphBuilder::new(self.shape.operand);
        let frames = self.model.variations.frames;
        let mut x = match frames {
            Some(frames) => frames::add_sound_frames(&mut graph, self, "embedding", frames),
            None => self.add_embedded_tokens(&mut graph, "embedding", self.slice.vocabulary),
        };
        if let Some(own) = self.model.variations.conditioning {
            x = conditioning::add_to_embedding(&mut graph, self, own, x);
        }
        if self.model.variations.streams.is_some() {
            x = streams::add_first_streams(&mut graph, self, "embedding.streams", x);
        }
        if let Some(block) = self.model.variations.shared_block {
            shared_block::add_shared_weights(&mut graph, self, block, x);
        }
        for (i, kind) in self.model.list.leading.iter().enumerate() {
            x = self.add_layer(&mut graph, kind, &format!("{LEADING_LAYER}{i}"), x);
        }
        if self.model.variations.side == EncoderDecoderSide::Decoder {
            let encoded = match self.model.final_norm {
                true => self.encoder_plan().add_norm_operator(&mut graph, "encoder.norm", self.model.hidden, x),
                false => x,
            };
            let Variations { relative_rows, relative_in_layers, .. } = self.model.variations;
            let bias = if relative_in_layers { 0 } else { self.slice.heads.saturating_mul(2 * relative_rows) };
            let biases = Parameters { sharded: bias, ..Parameters::default() };
            cross::lend_tensor(&mut graph, "encoder.result", biases, encoded);
            // Both sides use the same table. The encoder's lookup counts it, unless the encoder reads sound.
            let rows = if frames.is_some() { self.slice.vocabulary } else { 0 };
            x = self.add_embedded_tokens(&mut graph, "decoder_embedding", rows);
        }
        graph.finish_graph(x)
    }

    /// Adds the embedding of tokens or patches under `name`; the lookup counts `rows` rows of the table as parameters.
    fn add_embedded_tokens(&self, graph: &mut GraphBuilder, name: &str, rows: u64) -> TensorId {
        let (model, shape) = (self.model, &self.shape);
        let called = |part: &str| format!("{name}.{part}");
        let mut x = match model.variations.patches {
            Some(patches) => patches::add_patch_product(graph, shape, &called("patches"), patches, model.hidden),
            None => {
                let ids = graph.add_constant(&called("tokens"), Bytes(embedding::TOKEN_ID_BYTES) * shape.tokens());
                embedding::add_token_embedding(
                    graph,
                    shape,
                    &called("token"),
                    TableSize { rows, width: model.embedding_width },
                    ids,
                )
            }
        };
        if model.embedding_width != model.hidden {
            x = self.add_replicated_product(
                graph,
                &called("projection"),
                ProductWidths { input: model.embedding_width, output: model.hidden },
                false,
                x,
            );
        }
        if let PositionEncoding::Learned { rows } = model.position {
            let table = TableSize { rows, width: model.hidden };
            x = embedding::add_learned_table(graph, shape, &called("position"), table, shape.local_sequence(), x);
        }
        if model.token_types > 0 {
            let table = TableSize { rows: model.token_types, width: model.hidden };
            x = embedding::add_learned_table(graph, shape, &called("token_type"), table, model.token_types, x);
        }
        if model.embedding_norm {
            x = self.add_norm_operator(graph, &called("norm"), model.hidden, x);
        }
        if model.dropout.embedding > 0.0 {
            x = dropout::add_dropout(graph, shape, &called("dropout"), self.residual_stream_size(), x);
        }
        x
    }

    /// Builds one layer, or a block of different layers called `layer.0`, `layer.1` and so on.
    pub(crate) fn build_layers(&self) -> OperatorGraph {
        let mut graph = GraphBuilder::new(self.shape.operand);
        let mut x = graph.add_activation("layer.input", self.residual_stream_size());
        let block = &self.model.list.block;
        if block.is_empty() {
            x = self.add_branches(&mut graph, x);
        }
        for (i, kind) in block.iter().enumerate() {
            x = self.add_layer(&mut graph, kind, &format!("layer.{i}"), x);
        }
        graph.finish_graph(x)
    }

    /// Adds a layer of a kind; its operators' names begin with `name`.
    pub(crate) fn add_layer(&self, graph: &mut GraphBuilder, kind: &LayerKind, name: &str, x: TensorId) -> TensorId {
        let alike = self.model.with_uniform_kind(kind);
        let t = u64::from(self.shape.ranks.max(1));
        let (heads, kv_heads) = (alike.heads / t, kv_heads_of_device(&alike, t));
        let slice = DeviceSlice { heads, kv_heads, ffn: alike.ffn / t, ..self.slice };
        let pieces =
            self.shape.serving.is_none().then(|| alike.pieces_of_attention(self.shape.full_sequence())).flatten();
        let shape = match kind.side {
            EncoderDecoderSide::Encoder => self.encoder_plan().shape,
            EncoderDecoderSide::Only | EncoderDecoderSide::Decoder => self.shape,
        };
        let shape = OperatorContext { pieces, ..shape };
        let plan = SegmentPlan { model: &alike, slice, shape, ..*self };
        graph.rename_layers(Some(name.to_owned()));
        let x = plan.add_branches(graph, x);
        graph.rename_layers(None);
        x
    }

    /// Adds all branches of a layer: the mixer, cross attention in a decoder, and the MLP or experts.
    fn add_branches(&self, graph: &mut GraphBuilder, mut x: TensorId) -> TensorId {
        let input = x;
        let variations = &self.model.variations;
        if let Some(own) = variations.conditioning {
            return conditioning::add_conditioned_layer(graph, self, own, x);
        }
        if let Some(branches) = variations.parallel {
            return self.add_parallel_branches(graph, branches, x);
        }
        x = self.add_mixer(graph, x);
        if variations.side == EncoderDecoderSide::Decoder {
            x = self.add_residual_branch(graph, "layer.cross", false, x, |graph, x| {
                cross::add_cross_attention(graph, self, x)
            });
        }
        if variations.without_mlp {
            return x;
        }
        if let (Some(width), Some(experts)) = (variations.dense_beside_experts, self.model.experts) {
            return self.add_experts_beside(graph, width, experts, [input, x]);
        }
        self.add_residual_branch(graph, self.name_of_second_branch(), false, x, |graph, x| {
            self.add_mlp_or_experts(graph, x)
        })
    }

    /// Adds the layer's mixer, with its norms and residual sums.
    fn add_mixer(&self, graph: &mut GraphBuilder, x: TensorId) -> TensorId {
        let v = &self.model.variations;
        match v.mixer {
            Mixer::Attention => {
                self.add_residual_branch(graph, "layer.attention", v.without_first_norm, x, |graph, x| {
                    self.add_attention(graph, x)
                })
            }
            Mixer::Scan => self.add_branch_of(graph, "layer.scan", v.scan, x, |graph, own, x| {
                scan::add_scan_branch(graph, self, own, x)
            }),
            Mixer::Linear => self.add_branch_of(graph, "layer.linear", v.linear, x, |graph, own, x| {
                linear_attention::add_linear_attention(graph, self, own, x)
            }),
            Mixer::Convolution => self.add_branch_of(graph, "layer.convolution", v.convolution, x, |graph, own, x| {
                gated_convolution::add_gated_convolution(graph, self, own, x)
            }),
            Mixer::ChannelScan => self.add_branch_of(graph, "layer.scan", v.channel_scan, x, |graph, own, x| {
                channel_scan::add_channel_scan(graph, self, own, x)
            }),
            Mixer::Compressed => self.add_branch_of(graph, "layer.attention", v.compressed, x, |graph, own, x| {
                compressed_attention::add_compressed_attention(graph, self, own, x)
            }),
            Mixer::Recurrence => self.add_branch_of(graph, "layer.recurrence", v.recurrence, x, |graph, own, x| {
                recurrence::add_recurrence(graph, self, own, x)
            }),
            Mixer::AttentionAndScan => self.add_attention_beside_scan(graph, x),
            Mixer::SharedBlock => match v.shared_block {
                Some(block) => shared_block::add_shared_block_and_scan(graph, self, block, x),
                None => x,
            },
            Mixer::None => x,
        }
    }

    /// Adds the residual branch of a mixer that `own` describes; adds nothing if `own` is `None`.
    fn add_branch_of<T: Copy>(
        &self,
        graph: &mut GraphBuilder,
        name: &str,
        own: Option<T>,
        x: TensorId,
        branch: impl Fn(&mut GraphBuilder, T, TensorId) -> TensorId,
    ) -> TensorId {
        let Some(own) = own else { return x };
        self.add_residual_branch(graph, name, false, x, |graph, x| branch(graph, own, x))
    }

    /// Adds a dense MLP on `x`, the residual sum after attention, and experts on the layer's `input`.
    fn add_experts_beside(
        &self,
        graph: &mut GraphBuilder,
        width: u64,
        experts: Experts,
        [input, x]: [TensorId; 2],
    ) -> TensorId {
        let own = width / u64::from(self.shape.ranks.max(1));
        let x = self
            .add_residual_branch(graph, "layer.dense", false, x, |graph, x| self.add_mlp(graph, "layer.dense", own, x));
        let (width, drops) = (self.model.hidden, self.model.dropout.residual > 0.0);
        let normed = self.add_norm_operator(graph, "layer.moe.norm", width, input);
        let routed = moe::add_mixture(graph, self, experts, normed);
        residual::add_residual_sum(graph, &self.shape, "layer.moe.residual", width, drops, [routed, x])
    }

    fn name_of_second_branch(&self) -> &'static str {
        if self.model.experts.is_some() { "layer.moe" } else { "layer.mlp" }
    }

    fn add_mlp_or_experts(&self, graph: &mut GraphBuilder, x: TensorId) -> TensorId {
        match self.model.experts {
            Some(experts) => moe::add_mixture(graph, self, experts, x),
            None if self.model.variations.mixer == Mixer::Recurrence => recurrence::add_channel_mixing(graph, self, x),
            None => self.add_mlp(graph, "layer.mlp", self.slice.ffn, x),
        }
    }

    /// Adds attention and a scan on the same normalised input. The tensor-parallel devices sum each result separately.
    fn add_attention_beside_scan(&self, graph: &mut GraphBuilder, x: TensorId) -> TensorId {
        let (width, drops) = (self.model.hidden, self.model.dropout.residual > 0.0);
        let normed = self.add_norm_operator(graph, "layer.attention.norm", width, x);
        let mixed = self.add_attention(graph, normed);
        let name = "layer.attention.residual";
        let sum = residual::add_residual_sum(graph, &self.shape, name, width, drops, [mixed, x]);
        let Some(dimensions) = self.model.variations.scan else { return sum };
        let scanned = scan::add_scan_branch(graph, self, dimensions, normed);
        residual::add_residual_sum(graph, &self.shape, "layer.scan.residual", width, drops, [scanned, sum])
    }

    /// Adds attention and MLP on the same input. The tensor-parallel devices sum each result separately.
    fn add_parallel_branches(&self, graph: &mut GraphBuilder, branches: ParallelBranches, x: TensorId) -> TensorId {
        let (width, drops) = (self.model.hidden, self.model.dropout.residual > 0.0);
        let first = self.add_norm_operator(graph, "layer.attention.norm", width, x);
        let second = match branches {
            ParallelBranches::OneNorm => first,
            ParallelBranches::OwnNorms => {
                self.add_norm_operator(graph, &format!("{}.norm", self.name_of_second_branch()), width, x)
            }
        };
        let attention = self.add_attention(graph, first);
        let sum =
            residual::add_residual_sum(graph, &self.shape, "layer.attention.residual", width, drops, [attention, x]);
        let mlp = self.add_mlp_or_experts(graph, second);
        residual::add_residual_sum(
            graph,
            &self.shape,
            &format!("{}.residual", self.name_of_second_branch()),
            width,
            drops,
            [mlp, sum],
        )
    }

    /// Adds a residual branch with its norm, whose place is before the branch, on its result, or after the sum. A
    /// `bare` branch has no norm before it.
    fn add_residual_branch(
        &self,
        graph: &mut GraphBuilder,
        name: &str,
        bare: bool,
        x: TensorId,
        branch: impl Fn(&mut GraphBuilder, TensorId) -> TensorId,
    ) -> TensorId {
        let (width, placement) = (self.model.hidden, self.model.norm_placement);
        if let Some(streams) = self.model.variations.streams {
            return streams::add_branch_of_streams(graph, self, streams, name, x, |graph, x| {
                let normed = self.add_norm_operator(graph, &format!("{name}.norm"), width, x);
                branch(graph, normed)
            });
        }
        let input = if placement.normalises_before() && !bare {
            self.add_norm_operator(graph, &format!("{name}.norm"), width, x)
        } else {
            x
        };
        let mut result = branch(graph, input);
        if placement.normalises_result() {
            result = self.add_norm_operator(graph, &format!("{name}.output_norm"), width, result);
        }
        let drops = self.model.dropout.residual > 0.0;
        let sum =
            residual::add_residual_sum(graph, &self.shape, &format!("{name}.residual"), width, drops, [result, x]);
        if placement == NormPlacement::Post {
            self.add_norm_operator(graph, &format!("{name}.norm"), width, sum)
        } else {
            sum
        }
    }

    pub(crate) fn add_attention(&self, graph: &mut GraphBuilder, x: TensorId) -> TensorId {
        let (model, shape) = (self.model, &self.shape);
        let heads = self.slice.attention_heads(model);
        let absorbed = self.attends_absorbed();
        let (qkv, narrow) = match model.variations.latent {
            Some(latent) => latent::add_latent_attention(graph, shape, model, latent, absorbed, heads, x),
            None => (self.add_query_key_value(graph, heads, x), None),
        };
        let [mut query, mut key, mut value] = qkv;
        let chosen = self.add_key_choice(graph, heads, x, narrow);
        let whole = heads;
        let heads = match model.variations.latent.filter(|_| absorbed) {
            Some(latent) => latent.absorbed_heads(heads.query),
            None => heads,
        };
        let exchange = (shape.context > 1 && self.lowering.context_method == ContextMethod::Ulysses)
            .then(|| heads.split_over_devices(shape.context));
        let mut core_heads = heads;
        if let Some(fewer) = exchange {
            let name = "layer.attention.exchange";
            [query, key, value] = ulysses::scatter_heads(graph, shape, name, heads, fewer, [query, key, value]);
            core_heads = fewer;
        }
        let core_shape = if exchange.is_some() { shape.with_whole_sequences() } else { *shape };
        let mut mixed = self.add_attention_core(graph, &core_shape, core_heads, chosen, [query, key, value]);
        if model.variations.relative_in_layers {
            graph.add_sharded_to_last(heads.query.saturating_mul(model.variations.relative_rows));
        }
        if exchange.is_some() {
            mixed = ulysses::gather_heads(graph, shape, "layer.attention.exchange_back", heads, mixed);
        }
        if absorbed {
            let (input, output) = (heads.value, whole.value);
            let name = "layer.attention.value_up";
            mixed = PerHeadProduct { name, heads: heads.query, input, output }.add_product(graph, shape, mixed);
        }
        let heads = whole;
        if let Some(gate) = model.variations.output_gate {
            mixed = self.add_output_gate(graph, gate, heads, [x, mixed]);
        }
        self.add_row_split_product(
            graph,
            "layer.attention.output",
            heads.query * heads.value,
            model.attention_output_bias,
            mixed,
        )
    }

    /// Adds the gate: the sigmoid of a product of the layer's input, multiplied with attention's result.
    fn add_output_gate(
        &self,
        graph: &mut GraphBuilder,
        gate: OutputGate,
        heads: Heads,
        [x, mixed]: [TensorId; 2],
    ) -> TensorId {
        let width = heads.query * heads.value;
        let gates = match gate {
            OutputGate::Number => width,
            OutputGate::Head => heads.query,
        };
        let product = Linear {
            name: "layer.attention.gate".to_owned(),
            input: self.model.hidden,
            outputs: &[result_part("out", gates)],
            bias: false,
            split: WeightSplit::Columns,
            shares_input: true,
            narrow: true,
            chunks: 1,
        };
        let open = product.add_linear(graph, &self.shape, x)[0];
        let sizes = gated::GateSizes { gates, width };
        gated::add_gate(graph, &self.shape, "layer.attention.gated", sizes, [open, mixed])
    }

    /// Adds the products that make queries, keys and values, the norms of queries and keys, and the rotation.
    pub(crate) fn add_query_key_value(&self, graph: &mut GraphBuilder, heads: Heads, x: TensorId) -> [TensorId; 3] {
        let (model, shape) = (self.model, &self.shape);
        let (query_width, kv_width) = (heads.query * heads.dim, heads.kv * heads.dim);
        let parts = [
            result_part("query", query_width),
            result_part("key", kv_width),
            result_part("value", heads.kv * heads.value),
        ];
        let made = if model.variations.shared_value { &parts[..2] } else { &parts[..] };
        let qkv = if model.variations.key_without_bias {
            self.add_separate_products(graph, "layer.attention", made, |part| model.has_bias(part), x)
        } else {
            self.add_column_split_products(graph, "layer.attention", "qkv", made, model.qkv_bias, x)
        };
        let (mut query, mut key) = (qkv[0], qkv[1]);
        let value = qkv.get(2).copied().unwrap_or(key);
        if let Some(kind) = model.variations.query_key_norm {
            let name = "layer.attention.query_key_norm";
            [query, key] = query_key_norm::add_query_key_norms(graph, shape, name, model, kind, heads, [query, key]);
        }
        if model.position == PositionEncoding::Rotary {
            let rotated = model.variations.rotated.unwrap_or(heads.dim);
            let widths = RotatedWidths { query: query_width, key: kv_width, head_dim: heads.dim, rotated };
            [query, key] = rope::add_rotation(graph, shape, "layer.attention.rope", widths, [query, key]);
        }
        [query, key, value]
    }

    /// Returns the indexer whose choice limits the keys of fused attention; `None` if queries see all keys. Unfused
    /// attention computes all scores and masks them, as transformers does.
    fn limiting_indexer(&self) -> Option<Indexer> {
        let sequence = self.shape.seen_tokens();
        let limits = |indexer: &Indexer| {
            self.model.variations.keys != KeyChoice::All
                && self.lowering.attention == Attention::Fused
                && indexer.chosen < sequence
        };
        self.model.variations.indexer.filter(limits)
    }

    /// Returns whether latent attention runs in absorbed form, on the low-rank vectors that all heads share. With an
    /// indexer, each query has its own keys. DeepSeek-V3.2 then uses this form for long sequences, and masks full
    /// attention for short ones (its report, 2025, section 2.1); here the form with fewer operations is used. Decoding
    /// always uses the absorbed form, because its cache holds only the low-rank vectors (DeepSeek-V2, 2024, section
    /// 2.1.2).
    fn attends_absorbed(&self) -> bool {
        if self.model.variations.latent.is_some() && self.shape.decodes() {
            return true;
        }
        let (Some(latent), Some(indexer)) = (self.model.variations.latent, self.limiting_indexer()) else {
            return false;
        };
        let sequence = self.shape.seen_tokens();
        let narrow = indexer.chosen_keys(sequence) * (2 * latent.kv_rank + latent.rope_dim);
        narrow < sequence / 2 * (self.model.head_dim + latent.value_dim)
    }

    /// Adds the layer's own indexer, if it has one. Returns the keys that attention's core sees; `None` if it sees all.
    fn add_key_choice(
        &self,
        graph: &mut GraphBuilder,
        heads: Heads,
        x: TensorId,
        narrow: Option<TensorId>,
    ) -> Option<ChosenKeys> {
        let choice = self.model.own_indexer().map(|own| indexer::add_indexer(graph, self, own, heads, x, narrow));
        let limiting = self.limiting_indexer()?;
        let sparse = self.model.variations.latent.is_none() || self.attends_absorbed();
        sparse.then(|| ChosenKeys {
            most: limiting.chosen,
            count: if self.shape.serving.is_some() {
                limiting.chosen.min(self.shape.seen_tokens())
            } else {
                limiting.chosen_keys(self.shape.full_sequence())
            },
            in_blocks: limiting.block > 1,
            one_tensor: self.model.variations.latent.is_some(),
            choice,
        })
    }

    pub(crate) fn add_attention_core(
        &self,
        graph: &mut GraphBuilder,
        shape: &OperatorContext,
        heads: Heads,
        chosen: Option<ChosenKeys>,
        qkv: [TensorId; 3],
    ) -> TensorId {
        let Variations { sinks, window, .. } = self.model.variations;
        match self.lowering.attention {
            Attention::Fused => {
                let core = AttentionCore {
                    heads,
                    keys: shape.seen_tokens(),
                    causal: self.model.causal,
                    window,
                    sinks,
                    chosen,
                };
                fused_attention::add_fused_attention(graph, shape, "layer.attention.core", core, qkv)
            }
            Attention::Unfused => {
                let scores = ScoreShape { heads, keys: shape.sequence };
                self.add_unfused_core(graph, shape, "layer.attention", scores, sinks, qkv)
            }
        }
    }

    /// Adds the core of unfused attention, between the products with weights. Operators'
    /// names begin with `name`.
    pub(crate) fn add_unfused_core(
        &self,
        graph: &mut GraphBuilder,
        shape: &OperatorContext,
        name: &str,
        scores: ScoreShape,
        sinks: bool,
        [query, key, value]: [TensorId; 3],
    ) -> TensorId {
        let mut p = scores::add_scores(graph, shape, &format!("{name}.scores"), scores, [query, key]);
        p = softmax::add_softmax(graph, shape, &format!("{name}.softmax"), scores, sinks, p);
        if self.model.dropout.attention > 0.0 {
            p = dropout::add_dropout(
                graph,
                shape,
                &format!("{name}.dropout"),
                scores.heads.score_count(shape, scores.keys),
                p,
            );
            graph.set_role_of_last(OperatorRole::AttentionCore);
        }
        context::add_context_product(graph, shape, &format!("{name}.context"), scores, [p, value])
    }

    /// Adds the MLP `name`; `width` is its width on this device.
    pub(crate) fn add_mlp(&self, graph: &mut GraphBuilder, name: &str, width: u64, x: TensorId) -> TensorId {
        let (model, shape) = (self.model, &self.shape);
        let parts = if model.gated {
            self.add_column_split_products(
                graph,
                name,
                "gate_up",
                &[result_part("gate", width), result_part("up", width)],
                model.mlp_bias,
                x,
            )
        } else {
            self.add_column_split_products(graph, name, "fc1", &[result_part("out", width)], model.mlp_bias, x)
        };
        let mut y = match parts[..] {
            [gate, up] => {
                gated::add_gated_unit(graph, shape, &format!("{name}.gated"), model.activation, width, [gate, up])
            }
            [out, ..] => {
                activation::add_activation(graph, shape, &format!("{name}.activation"), model.activation, width, out)
            }
            [] => x,
        };
        if model.dropout.activation > 0.0 {
            let elements = shape.tokens().saturating_mul(width);
            y = dropout::add_dropout(graph, shape, &format!("{name}.activation_dropout"), elements, y);
        }
        let last = if model.gated { "down" } else { "fc2" };
        self.add_row_split_product(graph, &format!("{name}.{last}"), width, model.mlp_bias, y)
    }

    /// Builds the head's segment: trailing layers, final norm, BERT's transform, OPT's projection, logits and loss, and
    /// the modules that predict further tokens. Models that denoise images, other tasks and serving have heads of their
    /// own.
    pub(crate) fn build_head(&self) -> OperatorGraph {
        let (model, shape) = (self.model, &self.shape);
        let mut graph = GraphBuilder::new(self.shape.operand);
        let mut x = graph.add_activation("head.input", self.residual_stream_size());
        for (i, kind) in model.list.trailing.iter().enumerate() {
            x = self.add_layer(&mut graph, kind, &format!("{TRAILING_LAYER}{i}"), x);
        }
        if self.shape.serving.is_some() {
            return self.with_last_tokens().build_serving_head(graph, x);
        }
        if let Some(own) = model.variations.conditioning {
            return conditioning::build_denoising_head(self, graph, own, x);
        }
        let hidden = x;
        if let Some(head) = model.variations.task_head {
            x = self.add_last_vectors(&mut graph, x);
            return self.build_task_head(graph, head, x);
        }
        x = self.add_head_vectors(&mut graph, x);
        let chunks = self.loss_chunks(model.embedding_width);
        let logits = self.add_logits(&mut graph, shape, chunks, x);
        let loss = loss::add_loss(
            &mut graph,
            shape,
            "head.loss",
            loss::LossSize { columns: self.slice.vocabulary, chunks },
            logits,
        );
        graph.set_role_of_last(OperatorRole::Loss);
        let loss = further::add_further_token_modules(&mut graph, self, hidden, loss);
        graph.finish_graph(loss)
    }

    /// Returns the plan for only the last token of every sequence, or for all drafts if the pass verifies them.
    fn with_last_tokens(&self) -> Self {
        let sequence = if self.shape.decodes() { self.shape.sequence } else { 1 };
        Self { shape: OperatorContext { sequence, context: 1, ..self.shape }, ..*self }
    }

    /// Builds the rest of the head in serving: the logits of the last tokens, and the choice of a token. Devices that
    /// split the vocabulary gather the logits (vLLM, `LogitsProcessor`).
    fn build_serving_head(&self, mut graph: GraphBuilder, x: TensorId) -> OperatorGraph {
        let (model, shape) = (self.model, &self.shape);
        let x = self.add_head_vectors(&mut graph, x);
        let logits = self.add_logits(&mut graph, shape, 1, x);
        let columns = self.slice.vocabulary.saturating_mul(u64::from(shape.ranks.max(1)));
        let gathered = shape.activation_bytes(shape.tokens().saturating_mul(columns));
        let mut forward: Vec<KernelStep> = Vec::new();
        forward.extend(
            shape
                .is_tensor_parallel()
                .then(|| shape.tensor_collective_step("forward.all_gather", CollectiveKind::AllGather, gathered)),
        );
        let chosen = graph.add_constant("head.choice.out", Bytes(embedding::TOKEN_ID_BYTES) * shape.tokens());
        let rows = RowShape { rows: shape.tokens(), columns: model.vocabulary };
        let choice =
            reduction_kernel(RowFunction::Softmax, Direction::Forward, rows, gathered, graph.tensor_bytes(chosen));
        forward.push(kernel_step("forward", choice));
        graph.add_operator(NewOperator {
            name: "head.choice".to_owned(),
            inputs: vec![logits],
            outputs: vec![chosen],
            forward,
            ..NewOperator::default()
        });
        graph.finish_graph(chosen)
    }

    /// Adds the product that makes the logits.
    fn add_logits(&self, graph: &mut GraphBuilder, shape: &OperatorContext, chunks: u64, x: TensorId) -> TensorId {
        let logits = Linear {
            name: "head.logits".to_owned(),
            input: self.model.embedding_width,
            outputs: &[result_part("out", self.slice.vocabulary)],
            bias: self.model.head_bias,
            split: WeightSplit::Columns,
            shares_input: false,
            narrow: false,
            chunks,
        };
        let made = logits.add_linear(graph, shape, x)[0];
        graph.set_role_of_last(OperatorRole::Logits);
        made
    }

    /// Adds [`Self::add_last_vectors`] and the head's transform. Returns the vectors from which logits are made.
    fn add_head_vectors(&self, graph: &mut GraphBuilder, x: TensorId) -> TensorId {
        let x = self.add_last_vectors(graph, x);
        self.add_head_transform(graph, x)
    }

    /// Adds the sum of the streams, the final norm and OPT's projection. Returns a vector for every token.
    fn add_last_vectors(&self, graph: &mut GraphBuilder, mut x: TensorId) -> TensorId {
        let model = self.model;
        if let Some(streams) = model.variations.streams {
            x = streams::add_last_sum(graph, self, streams, x);
        }
        if model.final_norm {
            x = self.add_norm_operator(graph, "head.norm", model.hidden, x);
        }
        if model.embedding_width != model.hidden {
            x = self.add_replicated_product(
                graph,
                "head.projection",
                ProductWidths { input: model.hidden, output: model.embedding_width },
                false,
                x,
            );
        }
        x
    }

    /// Adds BERT's product, activation and norm before the logits, if the model has them.
    fn add_head_transform(&self, graph: &mut GraphBuilder, mut x: TensorId) -> TensorId {
        let model = self.model;
        if model.head_transform {
            let bias = !model.variations.transform_without_bias;
            x = self.add_replicated_product(
                graph,
                "head.transform",
                ProductWidths { input: model.hidden, output: model.hidden },
                bias,
                x,
            );
            let elements_shape = self.unsplit_context();
            x = activation::add_activation(
                graph,
                &elements_shape,
                "head.transform_activation",
                model.activation,
                model.hidden,
                x,
            );
            x = self.add_norm_operator(graph, "head.transform_norm", model.hidden, x);
        }
        x
    }

    /// Builds the head and loss of another task. If the head reads one token per sequence, every device computes all of
    /// these tokens. If it reads every token, each device computes its own tokens.
    fn build_task_head(&self, mut graph: GraphBuilder, head: TaskHead, mut x: TensorId) -> OperatorGraph {
        let width = self.model.embedding_width;
        let every = head.tokens == HeadTokens::Every;
        let context = if every { self.unsplit_context() } else { self.sequence_context() };
        let shape = OperatorContext { loss: LossForm::Whole, ..context };
        if !every {
            x = pooling::add_token_choice(&mut graph, &self.shape, "head.pooling", width, x);
        }
        // For every token, products run on this device's tokens. For one token per sequence, no tokens are split.
        let own = Self { shape: if every { self.shape } else { shape }, ..*self };
        x = own.add_head_transform(&mut graph, x);
        if head.tokens == HeadTokens::Pooled {
            x = own.add_replicated_product(
                &mut graph,
                "head.pooler",
                ProductWidths { input: width, output: width },
                true,
                x,
            );
            let name = "head.pooler_activation";
            x = activation::add_activation(&mut graph, &shape, name, ElementwiseFunction::Tanh, width, x);
        }
        if !head.without_product {
            x = own.add_replicated_product(
                &mut graph,
                "head.logits",
                ProductWidths { input: width, output: head.outputs },
                head.bias,
                x,
            );
            graph.set_role_of_last(OperatorRole::Logits);
        }
        let loss =
            loss::add_loss(&mut graph, &shape, "head.loss", loss::LossSize { columns: head.outputs, chunks: 1 }, x);
        graph.set_role_of_last(OperatorRole::Loss);
        graph.finish_graph(loss)
    }

    /// Returns the context of operators on one row per sequence, which every device computes.
    pub(crate) fn sequence_context(&self) -> OperatorContext {
        OperatorContext { sequence: 1, context: 1, ranks: 1, sequence_parallel: false, ..self.shape }
    }

    /// Returns the context of elementwise operators outside the split products: this device's tokens there.
    pub(crate) fn unsplit_context(&self) -> OperatorContext {
        OperatorContext { sequence: self.shape.local_sequence(), ranks: 1, sequence_parallel: false, ..self.shape }
    }

    pub(crate) fn add_norm_operator(&self, graph: &mut GraphBuilder, name: &str, width: u64, x: TensorId) -> TensorId {
        let model = self.model;
        let bias = !model.variations.norm_without_bias;
        let norm = NormOperator {
            name: name.to_owned(),
            norm: model.norm,
            width,
            affine: model.norm_affine,
            bias,
            split: false,
        };
        norm.add_norm(graph, &self.shape, x)
    }

    /// Adds a row-split product whose result has the residual stream's width.
    pub(crate) fn add_row_split_product(
        &self,
        graph: &mut GraphBuilder,
        name: &str,
        input: u64,
        bias: bool,
        x: TensorId,
    ) -> TensorId {
        let outputs = &[result_part("out", self.model.hidden)];
        let product = Linear {
            name: name.to_owned(),
            input,
            outputs,
            bias,
            split: WeightSplit::Rows,
            shares_input: false,
            narrow: true,
            chunks: 1,
        };
        product.add_linear(graph, &self.shape, x)[0]
    }

    pub(crate) fn add_replicated_product(
        &self,
        graph: &mut GraphBuilder,
        name: &str,
        ProductWidths { input, output }: ProductWidths,
        bias: bool,
        x: TensorId,
    ) -> TensorId {
        let outputs = &[result_part("out", output)];
        let split = WeightSplit::Replicated;
        let product = Linear {
            name: name.to_owned(),
            input,
            outputs,
            bias,
            split,
            shares_input: false,
            narrow: false,
            chunks: 1,
        };
        product.add_linear(graph, &self.shape, x)[0]
    }

    /// Adds column-split products of one input: one operator `prefix.joint`, or one operator per part (`prefix.part`)
    /// if projections are separate.
    pub(crate) fn add_column_split_products(
        &self,
        graph: &mut GraphBuilder,
        prefix: &str,
        joint: &str,
        parts: &[ResultPart<'_>],
        bias: bool,
        x: TensorId,
    ) -> Vec<TensorId> {
        if !self.lowering.separate_projections || parts.len() == 1 {
            return self.add_column_split_product(graph, &format!("{prefix}.{joint}"), parts, bias, false, x);
        }
        self.add_separate_products(graph, prefix, parts, |_| bias, x)
    }

    /// Adds one column-split product of the input per part (`prefix.part`); `has_bias` returns whether a part has a
    /// bias.
    pub(crate) fn add_separate_products(
        &self,
        graph: &mut GraphBuilder,
        prefix: &str,
        parts: &[ResultPart<'_>],
        has_bias: impl Fn(&str) -> bool,
        x: TensorId,
    ) -> Vec<TensorId> {
        let mut made = Vec::with_capacity(parts.len());
        for (i, part) in parts.iter().enumerate() {
            let outputs = [result_part("out", part.width)];
            let name = format!("{prefix}.{}", part.name);
            made.extend(self.add_column_split_product(graph, &name, &outputs, has_bias(part.name), i > 0, x));
        }
        made
    }

    fn add_column_split_product(
        &self,
        graph: &mut GraphBuilder,
        name: &str,
        outputs: &[ResultPart<'_>],
        bias: bool,
        shares_input: bool,
        x: TensorId,
    ) -> Vec<TensorId> {
        let product = Linear {
            name: name.to_owned(),
            input: self.model.hidden,
            outputs,
            bias,
            split: WeightSplit::Columns,
            shares_input,
            narrow: true,
            chunks: 1,
        };
        product.add_linear(graph, &self.shape, x)
    }
}
