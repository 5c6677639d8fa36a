//! A layer of linear attention (`crate::linear_attention`). Products make queries, keys, values, decays and the output
//! gate. A short convolution or a nonlinearity and the chunked mixing follow, then a norm of the result, the gate, and
//! one product back to the residual stream.
//!
//! With fused attention, the backward pass rebuilds updates, states and scores from queries, keys, values, decays and
//! the inverse triangles, as flash-linear-attention does (`fla/ops/gated_delta_rule/chunk.py`). With unfused attention,
//! all of these are kept. One state is written per chunk, in the activations' type (`fla/ops/common/chunk_delta_h.py`).
//!
//! Tensor parallelism splits the heads.

use super::linear::{Linear, ProductSize, ResultPart, WeightSplit, activation_product, result_part};
use super::norm::NormOperator;
use super::segment_plan::SegmentPlan;
use super::{
    OperatorContext, RowShape, activation, convolution, elementwise_kernel, gated, input_chain, kernel_step,
    recurrent_step, reduction_kernel, weight_chain,
};
use crate::graph::{GraphBuilder, KernelStep, NewOperator, Parameters, TensorId};
use crate::linear_attention::{ChunkProduct, ChunkResult, LinearAttention, StateDecay};
use crate::lowering::Attention;
use crate::model::Norm;
use sim::kernel::{Direction, ElementwiseFunction, Kernel, RowFunction};
use sim::units::Bytes;

/// Bytes of a decay (fp32).
const WIDE: u64 = 4;

/// Adds the branch of linear attention and returns its result.
pub(crate) fn add_linear_attention(
    graph: &mut GraphBuilder,
    plan: &SegmentPlan<'_>,
    whole: LinearAttention,
    x: TensorId,
) -> TensorId {
    let shape = &plan.shape;
    let own = whole.share_of_device(shape.ranks.into());
    let width = own.value_width();
    let mut parts = vec![result_part("mixed", own.mixed_width())];
    parts.extend(own.gate_rank.is_none().then_some(result_part("gate", width)));
    parts.extend((own.rates() > 0).then_some(result_part("rates", own.rates())));
    let made = plan.add_column_split_products(graph, "layer.linear", "in", &parts, false, x);
    let mut made = made.into_iter();
    let joint = made.next().unwrap_or(x);
    let (decay, gate) = match own.gate_rank {
        Some(rank) => add_narrow_gates(graph, plan, &own, rank, x),
        None => (None, made.next().unwrap_or(x)),
    };
    let rates = made.next();
    let mixed = if own.convolution > 0 {
        let size = convolution::Convolution {
            name: "layer.linear.convolution",
            width: own.mixed_width(),
            reach: own.convolution,
            bias: false,
        };
        size.add_convolution(graph, shape, joint)
    } else {
        let (name, function) = ("layer.linear.activation", ElementwiseFunction::Silu);
        activation::add_activation(graph, shape, name, function, own.mixed_width(), joint)
    };
    let core = LinearCore { plan, own, chunk: own.chunk_of_sequence(shape.sequence) };
    let result = core.add_core(graph, mixed, &[rates, decay].into_iter().flatten().collect::<Vec<_>>());
    // A norm per head has rows of one head; the other norm has rows of all heads.
    let per_token = if own.norm_of_head { own.heads } else { 1 };
    let sequence = shape.sequence.saturating_mul(per_token);
    let rows = OperatorContext { sequence, ranks: 1, sequence_parallel: false, ..*shape };
    let norm = NormOperator {
        name: "layer.linear.norm_of_result".to_owned(),
        norm: Norm::RmsNorm,
        width: width / per_token.max(1),
        affine: true,
        bias: false,
        split: !own.norm_of_head,
    };
    let normed = norm.add_norm(graph, &rows, result);
    let function = if own.delta_rule && own.gate_rank.is_none() {
        ElementwiseFunction::Silu
    } else {
        ElementwiseFunction::Sigmoid
    };
    let unit = gated::add_gated_unit(graph, shape, "layer.linear.gated", function, width, [gate, normed]);
    plan.add_row_split_product(graph, "layer.linear.out", width, false, unit)
}

/// Adds the decays, if they are per channel, and the output gate, both from low-rank vectors of width `rank`. Every
/// device computes the low-rank vectors for its own tokens.
fn add_narrow_gates(
    graph: &mut GraphBuilder,
    plan: &SegmentPlan<'_>,
    own: &LinearAttention,
    rank: u64,
    x: TensorId,
) -> (Option<TensorId>, TensorId) {
    let product = |name: &str, input, outputs: &[ResultPart<'_>], split, graph: &mut GraphBuilder, x| {
        let name = format!("layer.linear.{name}");
        let product = Linear { name, input, outputs, bias: false, split, shares_input: false, narrow: true, chunks: 1 };
        product.add_linear(graph, &plan.shape, x)
    };
    let per_channel = own.decay == StateDecay::PerChannel;
    let mut parts = vec![result_part("gate", rank)];
    parts.extend(per_channel.then_some(result_part("decay", rank)));
    let narrow = product("narrow", plan.model.hidden, &parts, WeightSplit::Replicated, graph, x);
    let up = |name: &str, width, x, graph: &mut GraphBuilder| {
        product(name, rank, &[result_part("out", width)], WeightSplit::Columns, graph, x)[0]
    };
    let decay = narrow.get(1).map(|narrow| up("decay", own.decays(), *narrow, graph));
    (decay, up("gate_up", own.value_width(), narrow[0], graph))
}

/// The mixing of tokens, between the products with weights.
struct LinearCore<'a> {
    plan: &'a SegmentPlan<'a>,
    own: LinearAttention,
    chunk: u64,
}

impl LinearCore<'_> {
    /// Returns a chunk's product for all chunks and heads. Chunks that must run in order form one product over the
    /// whole sequence, which is parallel only over sequences and heads.
    fn product(&self, product: &ChunkProduct, [m, n, k]: [u64; 3]) -> Kernel {
        let shape = &self.plan.shape;
        let chunks = shape.sequence.div_ceil(self.chunk);
        let heads = shape.batch.saturating_mul(self.own.heads);
        if product.in_order {
            let tokens = chunks.saturating_mul(self.chunk);
            let size = ProductSize { m: self.own.key_dim, n: self.own.value_dim, k: tokens };
            return activation_product(heads, size, shape.operand);
        }
        activation_product(heads.saturating_mul(chunks), ProductSize { m, n, k }, shape.operand)
    }

    /// Returns the bytes of a product's result, over all chunks and heads.
    fn result_bytes(&self, product: &ChunkProduct) -> Bytes {
        let shape = &self.plan.shape;
        let chunks = shape.batch.saturating_mul(shape.sequence.div_ceil(self.chunk)).saturating_mul(self.own.heads);
        shape.activation_bytes(chunks.saturating_mul(product.forward[0]).saturating_mul(product.forward[1]))
    }

    /// Adds the mixing operator and returns its result. `rates` are steps and decays before their nonlinearity.
    fn add_core(&self, graph: &mut GraphBuilder, mixed: TensorId, rates: &[TensorId]) -> TensorId {
        let (own, shape) = (&self.own, &self.plan.shape);
        let tokens = shape.tokens();
        let output = graph.add_activation("layer.linear.core.out", tokens.saturating_mul(own.value_width()));
        let products = own.chunk_products(self.chunk);
        let mut kept: Vec<TensorId> = Vec::new();
        for product in products.iter().filter(|product| self.keeps_result(product)) {
            kept.push(graph.add_constant(&format!("layer.linear.core.{}", product.name), self.result_bytes(product)));
        }
        let decays = tokens.saturating_mul(own.decays());
        let decays =
            (decays > 0).then(|| (graph.add_constant("layer.linear.core.decays", Bytes(WIDE) * decays), decays));
        let decay_count = decays.map(|(_, count)| count);
        let mut forward = self.vector_passes("forward", Direction::Forward, decay_count);
        if shape.decodes() {
            forward.push(recurrent_step(shape, own.state_numbers()));
        } else {
            forward.extend(products.iter().flat_map(|product| self.forward_of_product("forward", product)));
        }
        let mut backward = self.backward_of_products(&products);
        backward.extend(self.vector_passes("backward_input", Direction::Backward, decay_count));
        let inputs: Vec<TensorId> = std::iter::once(mixed).chain(rates.iter().copied()).collect();
        let reads: Vec<TensorId> =
            inputs.iter().copied().chain(kept.iter().copied()).chain(decays.map(|(tensor, _)| tensor)).collect();
        let mut chains = vec![input_chain(&inputs, &reads, backward)];
        chains.extend(decays.map(|(tensor, _)| {
            let (parameters, read) = (own.decay_parameters(), graph.tensor_bytes(tensor));
            let written = shape.gradient_bytes(parameters);
            let sum = reduction_kernel(
                RowFunction::Sum,
                Direction::Backward,
                RowShape { rows: parameters, columns: tokens },
                read,
                written,
            );
            weight_chain(&[tensor], vec![kernel_step("backward_weight", sum)])
        }));
        let rebuilt = products.iter().filter(|product| self.rebuilds_result(product));
        let workspace = rebuilt.map(|product| self.result_bytes(product)).sum();
        graph.add_operator(NewOperator {
            name: "layer.linear.core".to_owned(),
            inputs,
            outputs: [output].into_iter().chain(kept).chain(decays.map(|(tensor, _)| tensor)).collect(),
            forward,
            backward: chains,
            parameters: Parameters { sharded: own.decay_parameters(), ..Parameters::default() },
            workspace,
            ..NewOperator::default()
        });
        output
    }

    fn keeps_result(&self, product: &ChunkProduct) -> bool {
        match product.result {
            ChunkResult::Passing => false,
            ChunkResult::Kept => true,
            ChunkResult::Rebuilt => !self.rebuilds_result(product),
        }
    }

    /// Returns whether the backward pass rebuilds a product's result.
    fn rebuilds_result(&self, product: &ChunkProduct) -> bool {
        product.result == ChunkResult::Rebuilt && self.plan.lowering.attention != Attention::Unfused
    }

    /// Returns the kernels that rebuild results, and those of the gradients of each product's factors.
    fn backward_of_products(&self, products: &[ChunkProduct]) -> Vec<KernelStep> {
        let rebuilt = products.iter().filter(|product| self.rebuilds_result(product));
        let again = rebuilt.flat_map(|product| self.forward_of_product("backward_input.again", product));
        let mut steps: Vec<KernelStep> = again.collect();
        for product in products.iter().rev() {
            for (side, dimensions) in ["left", "right"].into_iter().zip(product.backward) {
                let label = format!("backward_input.{}_{side}", product.name);
                steps.push(kernel_step(&label, self.product(product, dimensions)));
            }
        }
        steps
    }

    /// Returns the kernels of a product's forward pass. The states' product also has a kernel that applies the decay
    /// and writes one state per chunk.
    fn forward_of_product(&self, prefix: &str, product: &ChunkProduct) -> Vec<KernelStep> {
        let label = format!("{prefix}.{}", product.name);
        let mut steps = vec![kernel_step(&label, self.product(product, product.forward))];
        if product.writes_states {
            let written = self.result_bytes(product);
            let numbers = written.0 / self.plan.shape.operand.bytes().max(1);
            let decay = elementwise_kernel(ElementwiseFunction::Mul, Direction::Forward, numbers, Bytes::ZERO, written);
            steps.push(kernel_step(&format!("{label}.write"), decay));
        }
        steps
    }

    /// Returns the passes over queries and keys (their norms, only under the delta rule) and over decays.
    fn vector_passes(&self, prefix: &str, direction: Direction, decays: Option<u64>) -> Vec<KernelStep> {
        let (own, shape) = (&self.own, &self.plan.shape);
        let rows = shape.tokens().saturating_mul(2 * own.key_heads);
        let size = shape.activation_bytes(rows.saturating_mul(own.key_dim));
        let sides = if direction == Direction::Forward { 1 } else { 2 };
        let norm = reduction_kernel(
            RowFunction::RmsNorm,
            direction,
            RowShape { rows, columns: own.key_dim },
            size * sides,
            size,
        );
        let decay = decays.map(|count| {
            let (narrow, wide) = (shape.activation_bytes(count), Bytes(WIDE) * count);
            let (read, written) =
                if direction == Direction::Forward { (narrow, wide) } else { (wide + narrow, narrow) };
            kernel_step(
                &format!("{prefix}.decays"),
                elementwise_kernel(ElementwiseFunction::Exp, direction, count, read, written),
            )
        });
        let norm = own.delta_rule.then(|| kernel_step(&format!("{prefix}.norm"), norm));
        norm.into_iter().chain(decay).collect()
    }
}
