//! Where the operators go: embedding, one layer, head, for every family.

use crate::graph::{GraphBuilder, OperatorGraph, TensorId};
use crate::leading_layers::LEADING_LAYER;
use crate::model::{Model, NormPlacement, Position};
use crate::op::linear::{Linear, Split};
use crate::op::norm::NormOperator;
use crate::op::scores::Heads;
use crate::op::{
    Shape, activation, context, dropout, embedding, fused_attention, gated, latent, loss, moe, query_key_norm, residual, rope,
    scores, softmax, ulysses,
};
use crate::parallel::Slice;
use crate::training::{Attention, ContextMethod, Lowering};
use crate::variations::ParallelBranches;
use sim::units::Bytes;

/// What building any segment needs.
pub(crate) struct Plan<'a> {
    pub(crate) model: &'a Model,
    pub(crate) shape: Shape,
    pub(crate) slice: Slice,
    pub(crate) lowering: Lowering,
}

impl<'a> Plan<'a> {
    pub(crate) fn new(model: &'a Model, lowering: &Lowering, slice: Slice) -> Self {
        let shape = Shape {
            batch: lowering.micro_batch,
            sequence: lowering.sequence_length / u64::from(lowering.context_parallel.max(1)),
            context: lowering.context_parallel,
            ranks: lowering.tensor_parallel,
            sequence_parallel: lowering.sequence_parallel && lowering.tensor_parallel > 1,
            operand: lowering.precision.operand,
            product: lowering.precision.product.unwrap_or(lowering.precision.operand),
            gradient: lowering.precision.gradient,
            fused: lowering.elementwise_fusion,
            separate_accumulation: lowering.separate_accumulation,
            cached_conversions: lowering.cached_conversions,
            fused_loss: lowering.fused_loss,
        };
        Self { model, shape, slice, lowering: *lowering }
    }

    /// Numbers of the residual stream on this device.
    fn stream(&self) -> u64 {
        self.shape.local_tokens().saturating_mul(self.model.hidden)
    }

    /// Token lookup, projection to the residual stream where narrower, positions, token types, norm, dropout; and the leading layers that have
    /// an MLP in place of experts: they stay with the embedding, on the pipeline's first stage.
    pub(crate) fn embedding(&self) -> OperatorGraph {
        let (model, shape) = (self.model, &self.shape);
        let mut graph = GraphBuilder::new(self.shape.operand);
        let ids = graph.constant("embedding.tokens", Bytes(embedding::TOKEN_ID_BYTES) * shape.tokens());
        let rows = (self.slice.vocabulary, model.embedding_width);
        let mut x = embedding::add_token(&mut graph, shape, "embedding.token", rows, ids);
        if model.embedding_width != model.hidden {
            x = self.replicated(&mut graph, "embedding.projection", (model.embedding_width, model.hidden), false, x);
        }
        if let Position::Learned { rows } = model.position {
            let table = (rows, shape.local_sequence(), model.hidden);
            x = embedding::add_table(&mut graph, shape, "embedding.position", table, x);
        }
        if model.token_types > 0 {
            let table = (model.token_types, model.token_types, model.hidden);
            x = embedding::add_table(&mut graph, shape, "embedding.token_type", table, x);
        }
        if model.embedding_norm {
            x = self.norm(&mut graph, "embedding.norm", model.hidden, x);
        }
        if model.dropout.embedding > 0.0 {
            x = dropout::add(&mut graph, shape, "embedding.dropout", self.stream(), x);
        }
        if let Some(dense) = model.variations.leading_dense {
            let layer = Model { experts: None, ..model.clone() };
            let slice = Slice { ffn: dense.ffn / u64::from(shape.ranks.max(1)), ..self.slice };
            let plan = Plan { model: &layer, slice, ..*self };
            for i in 0..dense.layers {
                graph.call_layers(format!("{LEADING_LAYER}{i}"));
                x = plan.branches(&mut graph, x);
            }
        }
        graph.finish(x)
    }

    /// One transformer layer.
    pub(crate) fn layer(&self) -> OperatorGraph {
        let mut graph = GraphBuilder::new(self.shape.operand);
        let x = graph.activation("layer.input", self.stream());
        let after = self.branches(&mut graph, x);
        graph.finish(after)
    }

    /// Attention and MLP, or experts, of a layer.
    fn branches(&self, graph: &mut GraphBuilder, x: TensorId) -> TensorId {
        if let Some(branches) = self.model.variations.parallel {
            return self.parallel_branches(graph, branches, x);
        }
        let x = self.block(graph, "layer.attention", x, |graph, x| self.attention(graph, x));
        self.block(graph, self.second_branch(), x, |graph, x| self.mlp_or_experts(graph, x))
    }

    fn second_branch(&self) -> &'static str {
        if self.model.experts.is_some() { "layer.moe" } else { "layer.mlp" }
    }

    fn mlp_or_experts(&self, graph: &mut GraphBuilder, x: TensorId) -> TensorId {
        match self.model.experts {
            Some(experts) => moe::add(graph, self, experts, x),
            None => self.mlp(graph, "layer.mlp", self.slice.ffn, x),
        }
    }

    /// Attention and MLP of the same input. Each is summed over the tensor-parallel devices by itself.
    fn parallel_branches(&self, graph: &mut GraphBuilder, branches: ParallelBranches, x: TensorId) -> TensorId {
        let (width, drops) = (self.model.hidden, self.model.dropout.residual > 0.0);
        let first = self.norm(graph, "layer.attention.norm", width, x);
        let second = match branches {
            ParallelBranches::OneNorm => first,
            ParallelBranches::OwnNorms => self.norm(graph, &format!("{}.norm", self.second_branch()), width, x),
        };
        let attention = self.attention(graph, first);
        let sum = residual::add(graph, &self.shape, "layer.attention.residual", (width, drops), (attention, x));
        let mlp = self.mlp_or_experts(graph, second);
        residual::add(graph, &self.shape, &format!("{}.residual", self.second_branch()), (width, drops), (mlp, sum))
    }

    /// A residual branch with its norm before, on its result, or after the sum.
    fn block(
        &self,
        graph: &mut GraphBuilder,
        name: &str,
        x: TensorId,
        branch: impl Fn(&mut GraphBuilder, TensorId) -> TensorId,
    ) -> TensorId {
        let (width, placement) = (self.model.hidden, self.model.norm_placement);
        let input = if placement.before() { self.norm(graph, &format!("{name}.norm"), width, x) } else { x };
        let mut result = branch(graph, input);
        if placement.on_result() {
            result = self.norm(graph, &format!("{name}.output_norm"), width, result);
        }
        let drops = self.model.dropout.residual > 0.0;
        let sum = residual::add(graph, &self.shape, &format!("{name}.residual"), (width, drops), (result, x));
        if placement == NormPlacement::Post { self.norm(graph, &format!("{name}.norm"), width, sum) } else { sum }
    }

    fn attention(&self, graph: &mut GraphBuilder, x: TensorId) -> TensorId {
        let (model, shape) = (self.model, &self.shape);
        let heads = self.slice.attention(model);
        let [mut query, mut key, mut value] = match model.variations.latent {
            Some(latent) => latent::add(graph, shape, (model, latent), heads, x),
            None => self.query_key_value(graph, heads, x),
        };
        let exchange =
            (shape.context > 1 && self.lowering.context_method == ContextMethod::Ulysses).then(|| heads.over(shape.context));
        let mut core_heads = heads;
        if let Some(fewer) = exchange {
            let name = "layer.attention.exchange";
            [query, key, value] = ulysses::add_scatter(graph, shape, name, (heads, fewer), [query, key, value]);
            core_heads = fewer;
        }
        let core_shape = if exchange.is_some() { shape.with_whole_sequences() } else { *shape };
        let mut mixed = self.attention_core(graph, &core_shape, core_heads, [query, key, value]);
        if exchange.is_some() {
            mixed = ulysses::add_gather(graph, shape, "layer.attention.exchange_back", heads, mixed);
        }
        self.rows(graph, "layer.attention.output", heads.query * heads.value, model.attention_output_bias, mixed)
    }

    /// The products of queries, keys and values, norms and the rotation.
    fn query_key_value(&self, graph: &mut GraphBuilder, heads: Heads, x: TensorId) -> [TensorId; 3] {
        let (model, shape) = (self.model, &self.shape);
        let (query_width, kv_width) = (heads.query * heads.dim, heads.kv * heads.dim);
        let parts = [("query", query_width), ("key", kv_width), ("value", kv_width)];
        let qkv = self.columns(graph, ("layer.attention", "qkv"), &parts, model.qkv_bias, x);
        let [mut query, mut key, value] = <[TensorId; 3]>::try_from(qkv).unwrap_or([x; 3]);
        if let Some(kind) = model.variations.query_key_norm {
            let name = "layer.attention.query_key_norm";
            (query, key) = query_key_norm::add(graph, shape, name, (model, kind), heads, (query, key));
        }
        if model.position == Position::Rotary {
            let widths = (query_width, kv_width, heads.dim);
            let rotated = model.variations.rotated.unwrap_or(heads.dim);
            (query, key) = rope::add(graph, shape, "layer.attention.rope", widths, rotated, (query, key));
        }
        [query, key, value]
    }

    fn attention_core(&self, graph: &mut GraphBuilder, shape: &Shape, heads: Heads, qkv: [TensorId; 3]) -> TensorId {
        let [query, key, value] = qkv;
        let sinks = self.model.variations.sinks;
        match self.lowering.attention {
            Attention::Fused => {
                fused_attention::add(graph, shape, "layer.attention.core", (heads, self.model.causal, sinks), qkv)
            }
            Attention::Unfused => {
                let count = heads.scores(shape);
                let mut p = scores::add(graph, shape, "layer.attention.scores", heads, (query, key));
                p = softmax::add(graph, shape, "layer.attention.softmax", (heads, sinks), p);
                if self.model.dropout.attention > 0.0 {
                    p = dropout::add(graph, shape, "layer.attention.dropout", count, p);
                }
                context::add(graph, shape, "layer.attention.context", heads, (p, value))
            }
        }
    }

    /// The MLP `name` of this device's `width`.
    pub(crate) fn mlp(&self, graph: &mut GraphBuilder, name: &str, width: u64, x: TensorId) -> TensorId {
        let (model, shape) = (self.model, &self.shape);
        let parts = if model.gated {
            self.columns(graph, (name, "gate_up"), &[("gate", width), ("up", width)], model.mlp_bias, x)
        } else {
            self.columns(graph, (name, "fc1"), &[("out", width)], model.mlp_bias, x)
        };
        let mut y = match parts[..] {
            [gate, up] => gated::add(graph, shape, &format!("{name}.gated"), model.activation, width, (gate, up)),
            [out, ..] => activation::add(graph, shape, &format!("{name}.activation"), model.activation, width, out),
            [] => x,
        };
        if model.dropout.activation > 0.0 {
            let elements = shape.tokens().saturating_mul(width);
            y = dropout::add(graph, shape, &format!("{name}.activation_dropout"), elements, y);
        }
        let last = if model.gated { "down" } else { "fc2" };
        self.rows(graph, &format!("{name}.{last}"), width, model.mlp_bias, y)
    }

    /// Final norm, BERT's transform, OPT's projection, logits and loss.
    pub(crate) fn head(&self) -> OperatorGraph {
        let (model, shape) = (self.model, &self.shape);
        let mut graph = GraphBuilder::new(self.shape.operand);
        let mut x = graph.activation("head.input", self.stream());
        if model.final_norm {
            x = self.norm(&mut graph, "head.norm", model.hidden, x);
        }
        if model.head_transform {
            x = self.replicated(&mut graph, "head.transform", (model.hidden, model.hidden), true, x);
            let elements_shape = self.local_shape();
            x = activation::add(&mut graph, &elements_shape, "head.transform_activation", model.activation, model.hidden, x);
            x = self.norm(&mut graph, "head.transform_norm", model.hidden, x);
        }
        if model.embedding_width != model.hidden {
            x = self.replicated(&mut graph, "head.projection", (model.hidden, model.embedding_width), false, x);
        }
        let logits = Linear {
            name: "head.logits".to_owned(),
            input: model.embedding_width,
            outputs: &[("out", self.slice.vocabulary)],
            bias: model.head_bias,
            split: Split::Columns,
            shares_input: false,
            narrow: false,
        };
        let logits = logits.add(&mut graph, shape, x)[0];
        let loss = loss::add(&mut graph, shape, "head.loss", self.slice.vocabulary, logits);
        graph.finish(loss)
    }

    /// The shape of elementwise work outside the split products: the tokens that this device has there.
    pub(crate) fn local_shape(&self) -> Shape {
        Shape { sequence: self.shape.local_sequence(), ranks: 1, sequence_parallel: false, ..self.shape }
    }

    fn norm(&self, graph: &mut GraphBuilder, name: &str, width: u64, x: TensorId) -> TensorId {
        let model = self.model;
        let bias = !model.variations.norm_without_bias;
        let norm = NormOperator { name: name.to_owned(), norm: model.norm, width, affine: model.norm_affine, bias, split: false };
        norm.add(graph, &self.shape, x)
    }

    /// A product back to the residual stream, split by rows.
    fn rows(&self, graph: &mut GraphBuilder, name: &str, input: u64, bias: bool, x: TensorId) -> TensorId {
        let outputs = &[("out", self.model.hidden)];
        let product =
            Linear { name: name.to_owned(), input, outputs, bias, split: Split::Rows, shares_input: false, narrow: true };
        product.add(graph, &self.shape, x)[0]
    }

    fn replicated(&self, graph: &mut GraphBuilder, name: &str, (input, output): (u64, u64), bias: bool, x: TensorId) -> TensorId {
        let outputs = &[("out", output)];
        let split = Split::Replicated;
        let product = Linear { name: name.to_owned(), input, outputs, bias, split, shares_input: false, narrow: false };
        product.add(graph, &self.shape, x)[0]
    }

    /// Products of one input, split by columns: one operator `prefix.joint`, or one per part (`prefix.part`) where projections
    /// are separate.
    fn columns(
        &self,
        graph: &mut GraphBuilder,
        (prefix, joint): (&str, &str),
        parts: &[(&str, u64)],
        bias: bool,
        x: TensorId,
    ) -> Vec<TensorId> {
        let product = |name: &str, outputs: &[(&str, u64)], shares_input: bool, graph: &mut GraphBuilder| {
            let (name, input) = (format!("{prefix}.{name}"), self.model.hidden);
            let product = Linear { name, input, outputs, bias, split: Split::Columns, shares_input, narrow: true };
            product.add(graph, &self.shape, x)
        };
        if !self.lowering.separate_projections || parts.len() == 1 {
            return product(joint, parts, false, graph);
        }
        let separate = parts.iter().enumerate();
        separate.flat_map(|(i, (part, width))| product(part, &[("out", *width)], i > 0, graph)).collect()
    }
}
