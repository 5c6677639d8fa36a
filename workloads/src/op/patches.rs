//! Patches of images as tokens: one product of their numbers, after a learned first token. ViT's convolution is such a
//! product, because its windows do not overlap. The images have no gradient.

use super::linear::{accumulate_weight_gradient, reduce_bias_gradient};
use super::{OperatorContext, kernel_step, weight_chain};
use crate::graph::{GraphBuilder, NewOperator, Parameters, TensorId};
use crate::variations::Patches;
use sim::kernel::{Contraction, Kernel};

/// Adds the product to the width of the residual stream; returns the tokens. Every tensor-parallel device makes its own
/// tokens.
pub(crate) fn add_patch_product(
    graph: &mut GraphBuilder,
    shape: &OperatorContext,
    name: &str,
    patches: Patches,
    hidden: u64,
) -> TensorId {
    let tokens = shape.local_tokens();
    // The first token of a sequence is no patch.
    let made = tokens.saturating_sub(shape.batch);
    let numbers = made.saturating_mul(patches.numbers);
    let images = graph.add_constant(&format!("{name}.images"), shape.activation_bytes(numbers));
    let output = graph.add_activation(&format!("{name}.out"), tokens.saturating_mul(hidden));
    let product =
        |m, n, k, result| Kernel::Contraction(Contraction { batch: 1, m, n, k, operand: shape.operand, result });
    let weights = patches.numbers.saturating_mul(hidden);
    let mut gradient = vec![kernel_step("backward_weight", product(patches.numbers, hidden, made, shape.gradient))];
    if shape.separate_accumulation {
        gradient.push(accumulate_weight_gradient(shape, weights));
    }
    gradient.extend(patches.bias.then(|| reduce_bias_gradient(shape, hidden, made)));
    // The first token is a learned vector.
    let vectors = hidden.saturating_mul(1 + u64::from(patches.bias));
    graph.add_operator(NewOperator {
        name: name.to_owned(),
        inputs: vec![images],
        outputs: vec![output],
        forward: vec![kernel_step("forward", product(made, hidden, patches.numbers, shape.operand))],
        backward: vec![weight_chain(&[images], gradient)],
        parameters: Parameters { replicated: weights.saturating_add(vectors), ..Parameters::default() },
        ..NewOperator::default()
    });
    output
}
