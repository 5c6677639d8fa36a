//! A product with separate weights for every head or group. Examples are latent attention's projections when they are
//! absorbed into queries and results, and products of channel groups. Tensor parallelism splits the heads.

use super::linear::{
    ProductSize, ResultPart, accumulate_weight_gradient, activation_product, reduce_bias_gradient, result_part,
};
use super::{OperatorContext, input_chain, kernel_step, weight_chain};
use crate::graph::{GraphBuilder, NewOperator, Parameters, TensorId};
use sim::kernel::Kernel;

/// The product on one device.
pub(crate) struct PerHeadProduct {
    pub(crate) name: &'static str,
    /// Heads on this device.
    pub(crate) heads: u64,
    /// Elements of a head that the product reads.
    pub(crate) input: u64,
    /// Elements of a head that the product makes.
    pub(crate) output: u64,
}

impl PerHeadProduct {
    /// Adds the operator and returns its result.
    pub(crate) fn add_product(&self, graph: &mut GraphBuilder, shape: &OperatorContext, x: TensorId) -> TensorId {
        self.add_parts(graph, shape, &[result_part("out", self.output)], false, x).first().copied().unwrap_or(x)
    }

    /// Adds the operator with its result in `parts`, whose widths are per head, and with biases if `bias`.
    /// Returns the parts.
    pub(crate) fn add_parts(
        &self,
        graph: &mut GraphBuilder,
        shape: &OperatorContext,
        parts: &[ResultPart<'_>],
        bias: bool,
        x: TensorId,
    ) -> Vec<TensorId> {
        let Self { heads, input, output, .. } = *self;
        let tokens = shape.tokens();
        let rows = tokens.saturating_mul(heads);
        let result = |part: &ResultPart<'_>| {
            graph.add_activation(&format!("{}.{}", self.name, part.name), rows.saturating_mul(part.width))
        };
        let results: Vec<TensorId> = parts.iter().map(result).collect();
        let size = ProductSize { m: tokens, n: output, k: input };
        let product = |size| activation_product(heads, size, shape.operand);
        let gradient = size.right_gradient().contraction(heads, shape.operand, shape.gradient);
        let weights = heads.saturating_mul(input).saturating_mul(output);
        let mut of_weights = vec![kernel_step("backward_weight", Kernel::Contraction(gradient))];
        of_weights.extend(shape.separate_accumulation.then(|| accumulate_weight_gradient(shape, weights)));
        let biases = if bias { heads.saturating_mul(output) } else { 0 };
        of_weights.extend(bias.then(|| reduce_bias_gradient(shape, biases, tokens)));
        graph.add_operator(NewOperator {
            name: self.name.to_owned(),
            inputs: vec![x],
            outputs: results.clone(),
            forward: vec![kernel_step("forward", product(size))],
            backward: vec![
                input_chain(&[x], &[], vec![kernel_step("backward_input", product(size.left_gradient()))]),
                weight_chain(&[x], of_weights),
            ],
            parameters: Parameters { sharded: weights.saturating_add(biases), ..Parameters::default() },
            ..NewOperator::default()
        });
        results
    }
}
