//! Patches of images as tokens. One product maps the elements of each patch to a token; a learned first token precedes
//! them if the model has one. ViT's convolution is such a product, because its windows do not overlap. The images have
//! no gradient.

use super::linear::{accumulate_weight_gradient, reduce_bias_gradient};
use super::{OperatorContext, kernel_step, weight_chain};
use crate::graph::{GraphBuilder, NewOperator, Parameters, TensorId};
use crate::variations::Patches;
use sim::kernel::{Contraction, Kernel};

/// Adds the product to the width of the residual stream and returns the tokens. Every tensor-parallel device makes its
/// own tokens.
pub(crate) fn add_patch_product(
    graph: &mut GraphBuilder,
    shape: &OperatorContext,
    name: &str,
    patches: Patches,
    hidden: u64,
) -> TensorId {
    let tokens = shape.local_tokens();
    // A sequence's learned first token is no patch.
    let first = patches.first_tokens();
    let product = DataProduct {
        data: "images",
        rows: tokens,
        made: tokens.saturating_sub(first.saturating_mul(shape.batch)),
        numbers: patches.numbers,
        input: patches.numbers,
        hidden,
        vectors: first,
        bias: patches.bias,
    };
    product.add_product_of_data(graph, shape, name)
}

/// A product of input data, which have no gradient, with weights of `input` x `hidden`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct DataProduct {
    /// Name of the data in the graph.
    pub(crate) data: &'static str,
    /// Rows of the result.
    pub(crate) rows: u64,
    /// Rows of the result that the product makes.
    pub(crate) made: u64,
    /// Elements of the data per made row; windows of the data may overlap.
    pub(crate) numbers: u64,
    pub(crate) input: u64,
    pub(crate) hidden: u64,
    /// Further vectors of the result's width among the parameters.
    pub(crate) vectors: u64,
    pub(crate) bias: bool,
}

impl DataProduct {
    /// Adds the product as `name` and returns its result.
    pub(crate) fn add_product_of_data(
        &self,
        graph: &mut GraphBuilder,
        shape: &OperatorContext,
        name: &str,
    ) -> TensorId {
        let Self { data, rows, made, numbers, input, hidden, vectors, bias } = *self;
        let data = graph.add_constant(&format!("{name}.{data}"), shape.activation_bytes(made.saturating_mul(numbers)));
        let output = graph.add_activation(&format!("{name}.out"), rows.saturating_mul(hidden));
        let product =
            |m, n, k, result| Kernel::Contraction(Contraction { batch: 1, m, n, k, operand: shape.operand, result });
        let weights = input.saturating_mul(hidden);
        let mut gradient = vec![kernel_step("backward_weight", product(input, hidden, made, shape.gradient))];
        if shape.separate_accumulation {
            gradient.push(accumulate_weight_gradient(shape, weights));
        }
        gradient.extend(bias.then(|| reduce_bias_gradient(shape, hidden, made)));
        let vectors = hidden.saturating_mul(vectors + u64::from(bias));
        graph.add_operator(NewOperator {
            name: name.to_owned(),
            inputs: vec![data],
            outputs: vec![output],
            forward: vec![kernel_step("forward", product(made, hidden, input, shape.operand))],
            backward: vec![weight_chain(&[data], gradient)],
            parameters: Parameters { replicated: weights.saturating_add(vectors), ..Parameters::default() },
            ..NewOperator::default()
        });
        output
    }
}
