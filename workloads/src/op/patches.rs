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
    let rows = (tokens, tokens.saturating_sub(first.saturating_mul(shape.batch)));
    let Patches { numbers, bias, .. } = patches;
    add_product_of_data(graph, shape, (name, "images"), rows, (numbers, numbers, hidden), (first, bias))
}

/// Adds a product of input data, which have no gradient, with weights of `input` x `hidden`. Returns its result of
/// `rows` rows, of which the product makes `made` rows. The data have `numbers` elements per made row; windows of the
/// data may overlap. The parameters include `vectors` further vectors of the result's width.
pub(crate) fn add_product_of_data(
    graph: &mut GraphBuilder,
    shape: &OperatorContext,
    (name, data): (&str, &str),
    (rows, made): (u64, u64),
    (numbers, input, hidden): (u64, u64, u64),
    (vectors, bias): (u64, bool),
) -> TensorId {
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
