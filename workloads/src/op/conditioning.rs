//! Conditioning in models that denoise images (DiT, Peebles and Xie, ICCV 2023, section 3.2). One vector per image
//! encodes its time step and class. Every branch has a shift and a scale after its norm, and a gate on its result;
//! products of that vector make all three. The last product makes the elements of each patch, and the loss is their
//! squared error.
//!
//! Every tensor- and context-parallel device does the work on the images' vectors, with weights that each device holds
//! in full (NeMo's `AdaLN` of its DiT). With fusion, shift and scale are part of the norm's kernel, and the gate is
//! part of the residual sum's kernel. Otherwise each is a pass over the tokens. Gradients of the vectors are sums over
//! an image's tokens.
//!
//! The target has as many elements as the prediction, in the activations' type. Sines and cosines of the time step are
//! input data.

use super::cross::{borrow_tensor, lend_tensor};
use super::embedding::{TOKEN_ID_BYTES, TableSize, add_token_embedding};
use super::linear::{Linear, ProductWidths, ResultPart, WeightSplit, result_part};
use super::patches::DataProduct;
use super::segment_plan::SegmentPlan;
use super::{
    OperatorContext, RowShape, activation, elementwise_kernel, input_chain, kernel_step, reduction_kernel, residual,
};
use crate::graph::{GraphBuilder, KernelStep, NewOperator, OperatorGraph, Parameters, TensorId};
use crate::variations::Conditioning;
use sim::kernel::{Direction, ElementwiseFunction, RowFunction};
use sim::units::Bytes;

/// Bytes per element of the loss (fp32).
const LOSS_BYTES: u64 = 4;

/// Adds the fixed positions of the patches and, if all layers share one, the conditioning vector. Returns the tokens.
pub(crate) fn add_to_embedding(
    graph: &mut GraphBuilder,
    plan: &SegmentPlan<'_>,
    own: Conditioning,
    x: TensorId,
) -> TensorId {
    let (shape, size) = (&plan.shape, plan.residual_stream_size());
    let table = shape.activation_bytes(shape.local_sequence().saturating_mul(plan.model.hidden));
    let output = graph.add_activation("embedding.position.out", size);
    let bytes = shape.activation_bytes(size);
    let add = elementwise_kernel(ElementwiseFunction::Add, Direction::Forward, size, bytes + table, bytes);
    graph.add_operator(NewOperator {
        name: "embedding.position".to_owned(),
        inputs: vec![x],
        outputs: vec![output],
        forward: vec![kernel_step("forward", add)],
        backward: vec![input_chain(&[x], &[], vec![])],
        ..NewOperator::default()
    });
    if !own.in_layers {
        let vector = add_embedders(graph, plan, "embedding.condition", own);
        lend_tensor(graph, "embedding.condition.lent", Parameters::default(), vector);
    }
    output
}

/// Adds attention and MLP, both conditioned. Returns the layer's result.
pub(crate) fn add_conditioned_layer(
    graph: &mut GraphBuilder,
    plan: &SegmentPlan<'_>,
    own: Conditioning,
    x: TensorId,
) -> TensorId {
    let vector = add_vector(graph, plan, "layer", own);
    let names = ["attention.shift", "attention.scale", "attention.gate", "mlp.shift", "mlp.scale", "mlp.gate"];
    let made = add_modulation(graph, plan, "layer.modulation", &names, vector);
    let [shift, scale, gate, mlp_shift, mlp_scale, mlp_gate] =
        <[TensorId; Conditioning::IN_LAYER as usize]>::try_from(made).unwrap_or([vector; 6]);
    let rows = ImageRows { plan };
    let normed = rows.add_conditioned_norm(graph, "layer.attention.norm", [x, shift, scale]);
    let mixed = plan.add_attention(graph, normed);
    let x = rows.add_gated_sum(graph, "layer.attention.residual", [mixed, x, gate]);
    let normed = rows.add_conditioned_norm(graph, "layer.mlp.norm", [x, mlp_shift, mlp_scale]);
    let made = plan.add_mlp(graph, "layer.mlp", plan.slice.ffn, normed);
    rows.add_gated_sum(graph, "layer.mlp.residual", [made, x, mlp_gate])
}

/// Builds the rest of the head: a conditioned norm, the product that makes each patch's elements, and the loss. Every
/// device runs the product, with whole weights, for its own tokens.
pub(crate) fn build_denoising_head(
    plan: &SegmentPlan<'_>,
    mut graph: GraphBuilder,
    own: Conditioning,
    x: TensorId,
) -> OperatorGraph {
    let mark = graph.operator_count();
    let vector = add_vector(&mut graph, plan, "head", own);
    // The first layer counts the parameters of these embedders.
    graph.share_parameters_since(mark);
    let made = add_modulation(&mut graph, plan, "head.modulation", &["shift", "scale"], vector);
    let [shift, scale] = <[TensorId; Conditioning::IN_HEAD as usize]>::try_from(made).unwrap_or([vector; 2]);
    let normed = ImageRows { plan }.add_conditioned_norm(&mut graph, "head.norm", [x, shift, scale]);
    let (width, outputs) = (plan.model.hidden, plan.model.vocabulary);
    let bias = plan.model.head_bias;
    let predicted = plan.add_replicated_product(
        &mut graph,
        "head.prediction",
        ProductWidths { input: width, output: outputs },
        bias,
        normed,
    );
    let loss = add_squared_error(&mut graph, &plan.shape, outputs, predicted);
    graph.finish_graph(loss)
}

/// Adds the conditioning vector that a layer or the head reads: made by its own embedders, or lent by the embedding.
fn add_vector(graph: &mut GraphBuilder, plan: &SegmentPlan<'_>, place: &str, own: Conditioning) -> TensorId {
    let name = format!("{place}.condition");
    if own.in_layers {
        return add_embedders(graph, plan, &name, own);
    }
    let shape = plan.sequence_context();
    let elements = shape.tokens().saturating_mul(plan.model.hidden);
    borrow_tensor(graph, &shape, &format!("{name}.lent"), &format!("{name}.borrowed"), elements)
}

/// Adds the embedders of time steps and classes, and the sum of their results.
fn add_embedders(graph: &mut GraphBuilder, plan: &SegmentPlan<'_>, name: &str, own: Conditioning) -> TensorId {
    let (shape, width) = (plan.sequence_context(), plan.model.hidden);
    let (images, waves) = (shape.tokens(), Conditioning::WAVES);
    let called = |part: &str| format!("{name}.{part}");
    let product = DataProduct {
        data: "waves",
        rows: images,
        made: images,
        numbers: waves,
        input: waves,
        hidden: width,
        vectors: 0,
        bias: true,
    };
    let mut time = product.add_product_of_data(graph, &shape, &called("time"));
    time = activation::add_activation(graph, &shape, &called("activation"), ElementwiseFunction::Silu, width, time);
    time = add_vector_product(graph, &shape, &called("time_out"), width, &[result_part("out", width)], time)[0];
    let labels = graph.add_constant(&called("labels"), Bytes(TOKEN_ID_BYTES) * images);
    let mark = graph.operator_count();
    let class = add_token_embedding(graph, &shape, &called("class"), TableSize { rows: own.rows, width }, labels);
    let table = graph.share_parameters_since(mark).per_device_count();
    graph.add_replicated_to_last(table);
    residual::add_residual_sum(graph, &shape, &called("sum"), width, false, [time, class])
}

/// Adds a product with a bias on one row per image.
fn add_vector_product(
    graph: &mut GraphBuilder,
    shape: &OperatorContext,
    name: &str,
    input: u64,
    outputs: &[ResultPart<'_>],
    x: TensorId,
) -> Vec<TensorId> {
    let (name, split) = (name.to_owned(), WeightSplit::Replicated);
    let product = Linear { name, input, outputs, bias: true, split, shares_input: false, narrow: false, chunks: 1 };
    product.add_linear(graph, shape, x)
}

/// Adds the vectors called `parts`: a SiLU and one product of the conditioning vector make them.
fn add_modulation(
    graph: &mut GraphBuilder,
    plan: &SegmentPlan<'_>,
    name: &str,
    parts: &[&str],
    vector: TensorId,
) -> Vec<TensorId> {
    let (shape, width) = (plan.sequence_context(), plan.model.hidden);
    let silu = ElementwiseFunction::Silu;
    let active = activation::add_activation(graph, &shape, &format!("{name}.activation"), silu, width, vector);
    let outputs: Vec<ResultPart<'_>> = parts.iter().map(|part| result_part(part, width)).collect();
    add_vector_product(graph, &shape, &format!("{name}.product"), width, &outputs, active)
}

/// Adds the mean squared error of `columns` elements per token and returns the loss.
fn add_squared_error(graph: &mut GraphBuilder, shape: &OperatorContext, columns: u64, predicted: TensorId) -> TensorId {
    let tokens = shape.local_tokens();
    let elements = tokens.saturating_mul(columns);
    let size = shape.activation_bytes(elements);
    let target = graph.add_constant("head.loss.target", size);
    let loss = graph.add_constant("head.loss.out", Bytes(LOSS_BYTES) * shape.batch);
    let written = graph.tensor_bytes(loss);
    let sum =
        reduction_kernel(RowFunction::Sum, Direction::Forward, RowShape { rows: tokens, columns }, size * 2, written);
    let difference = elementwise_kernel(ElementwiseFunction::Add, Direction::Backward, elements, size * 2, size);
    graph.add_operator(NewOperator {
        name: "head.loss".to_owned(),
        inputs: vec![predicted, target],
        outputs: vec![loss],
        forward: vec![kernel_step("forward", sum)],
        backward: vec![input_chain(
            &[predicted],
            &[predicted, target],
            vec![kernel_step("backward_input", difference)],
        )],
        ..NewOperator::default()
    });
    loss
}

/// Adds operators that combine tokens with the vectors of their images.
struct ImageRows<'a> {
    plan: &'a SegmentPlan<'a>,
}

impl ImageRows<'_> {
    /// Returns a pass over the tokens. It reads them `reads` times. With one read, it also reads an image's vector.
    fn pass(&self, function: ElementwiseFunction, direction: Direction, reads: u64) -> sim::kernel::Kernel {
        let shape = &self.plan.shape;
        let function = if shape.composed && reads == 1 { ElementwiseFunction::Indexed } else { function };
        let (elements, size) = (self.plan.residual_stream_size(), self.plan.residual_stream_bytes());
        let vector = if reads == 1 { self.vector_bytes(1) } else { Bytes::ZERO };
        elementwise_kernel(function, direction, elements, size * reads + vector, size)
    }

    /// Returns the bytes of `count` vectors for every image.
    fn vector_bytes(&self, count: u64) -> Bytes {
        self.plan.shape.activation_bytes(self.plan.shape.batch.saturating_mul(self.plan.model.hidden) * count)
    }

    /// Returns the step that sums the tokens of each image to `vectors` vectors, with `reads` reads of the tokens.
    fn sum_step(&self, label: &str, vectors: u64, reads: u64) -> KernelStep {
        let shape = &self.plan.shape;
        let rows = shape.batch.saturating_mul(self.plan.model.hidden) * vectors;
        let (read, written) = (self.plan.residual_stream_bytes() * reads, self.vector_bytes(vectors));
        let rows = RowShape { rows, columns: shape.local_sequence() };
        kernel_step(label, reduction_kernel(RowFunction::Sum, Direction::Backward, rows, read, written))
    }

    /// Adds a norm without parameters, scaled by 1 + scale and shifted by shift.
    fn add_conditioned_norm(&self, graph: &mut GraphBuilder, name: &str, inputs: [TensorId; 3]) -> TensorId {
        use Direction::{Backward, Forward};
        let [x, shift, scale] = inputs;
        let (shape, size) = (&self.plan.shape, self.plan.residual_stream_bytes());
        if !shape.fused {
            let normed = self.plan.add_norm_operator(graph, name, self.plan.model.hidden, x);
            return self.add_shift_and_scale(graph, &format!("{name}.conditioned"), [normed, shift, scale]);
        }
        let output = graph.add_activation(&format!("{name}.out"), self.plan.residual_stream_size());
        let rows = RowShape { rows: shape.local_tokens(), columns: self.plan.model.hidden };
        let norm = |direction, read, written| reduction_kernel(RowFunction::LayerNorm, direction, rows, read, written);
        let back = norm(Backward, size * 2 + self.vector_bytes(1), size);
        graph.add_operator(NewOperator {
            name: name.to_owned(),
            inputs: inputs.to_vec(),
            outputs: vec![output],
            forward: vec![kernel_step("forward", norm(Forward, size + self.vector_bytes(2), size))],
            backward: vec![
                input_chain(&[x], &[x, scale], vec![kernel_step("backward_input", back)]),
                input_chain(&[shift, scale], &[x], vec![self.sum_step("backward_vectors", 2, 2)]),
            ],
            ..NewOperator::default()
        });
        output
    }

    /// Adds scale and shift as separate passes.
    fn add_shift_and_scale(&self, graph: &mut GraphBuilder, name: &str, inputs: [TensorId; 3]) -> TensorId {
        use Direction::{Backward, Forward};
        use ElementwiseFunction::{Add, Mul};
        let [x, shift, scale] = inputs;
        let output = graph.add_activation(&format!("{name}.out"), self.plan.residual_stream_size());
        graph.add_operator(NewOperator {
            name: name.to_owned(),
            inputs: inputs.to_vec(),
            outputs: vec![output],
            forward: vec![
                kernel_step("forward.scale", self.pass(Mul, Forward, 1)),
                kernel_step("forward.shift", self.pass(Add, Forward, 1)),
            ],
            backward: vec![
                input_chain(&[x], &[scale], vec![kernel_step("backward_input", self.pass(Mul, Backward, 1))]),
                input_chain(&[shift], &[], vec![self.sum_step("backward_shift", 1, 1)]),
                input_chain(
                    &[scale],
                    &[x],
                    vec![
                        kernel_step("backward_scale.product", self.pass(Mul, Backward, 2)),
                        self.sum_step("backward_scale", 1, 1),
                    ],
                ),
            ],
            workspace: self.plan.residual_stream_bytes(),
            ..NewOperator::default()
        });
        output
    }

    /// Adds residual + gate * branch.
    fn add_gated_sum(&self, graph: &mut GraphBuilder, name: &str, inputs: [TensorId; 3]) -> TensorId {
        use Direction::{Backward, Forward};
        use ElementwiseFunction::{Add, Mul};
        let [branch, residual, gate] = inputs;
        let (fused, size) = (self.plan.shape.fused, self.plan.residual_stream_bytes());
        let output = graph.add_activation(&format!("{name}.out"), self.plan.residual_stream_size());
        let (forward, of_gate) = if fused {
            let elements = self.plan.residual_stream_size();
            let both = elementwise_kernel(Mul, Forward, elements, size * 2 + self.vector_bytes(1), size);
            (vec![kernel_step("forward", both)], vec![self.sum_step("backward_gate", 1, 2)])
        } else {
            let gated = kernel_step("forward.gate", self.pass(Mul, Forward, 1));
            let product = kernel_step("backward_gate.product", self.pass(Mul, Backward, 2));
            let sum = kernel_step("forward", self.pass(Add, Forward, 2));
            (vec![gated, sum], vec![product, self.sum_step("backward_gate", 1, 1)])
        };
        graph.add_operator(NewOperator {
            name: name.to_owned(),
            inputs: inputs.to_vec(),
            outputs: vec![output],
            forward,
            backward: vec![
                input_chain(&[branch], &[gate], vec![kernel_step("backward_input", self.pass(Mul, Backward, 1))]),
                input_chain(&[gate], &[branch], of_gate),
                input_chain(&[residual], &[], vec![]),
            ],
            workspace: if fused { Bytes::ZERO } else { size },
            ..NewOperator::default()
        });
        output
    }
}
