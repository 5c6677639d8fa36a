//! A product with a weight matrix, whole or split over tensor-parallel devices as in Megatron-LM. Split by columns,
//! each device makes a slice of the result. Split by rows, each device contracts its slice of the input, and the
//! devices' results are summed.
//!
//! The backward pass computes dX = dY W^T and dW = X^T dY. A bias costs no forward kernel, because the accumulators
//! start from the bias. Its gradient is a sum over the tokens.

use super::{OperatorContext, elementwise_kernel, input_chain, kernel_step, reduction_kernel, weight_chain};
use crate::graph::{GraphBuilder, KernelStep, NARROW, NewOperator, Parameters, TensorId};
use sim::kernel::{Contraction, DataType, Direction, ElementwiseFunction, Kernel, RowFunction};
use sim::units::Bytes;

/// The split of the weights over tensor-parallel devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WeightSplit {
    /// Replicated: every device computes the whole product for its own tokens.
    Replicated,
    /// By columns: each device needs all tokens and makes its own columns of the result.
    Columns,
    /// By rows: each device contracts its rows, and the results are summed over the devices.
    Rows,
}

/// A product (tokens, `input`) x (`input`, sum of the outputs' widths).
#[derive(Debug)]
pub(crate) struct Linear<'a> {
    pub(crate) name: String,
    /// Width of the input on this device.
    pub(crate) input: u64,
    /// Names and widths of the result's parts on this device.
    pub(crate) outputs: &'a [(&'a str, u64)],
    pub(crate) bias: bool,
    pub(crate) split: WeightSplit,
    /// True if an earlier operator reads the same input. Then the gathered and converted copy of the input exists
    /// already, and the sum of the input's gradient over the devices is counted only once.
    pub(crate) shares_input: bool,
    /// Number of chunks of tokens that pass the product one after the other, in both passes; 1 for all tokens at once.
    pub(crate) chunks: u64,
    /// True if operands are converted to [`OperatorContext::product`]. The head's and a router's operands are not
    /// converted.
    pub(crate) narrow: bool,
}

impl Linear<'_> {
    /// Adds the operator and returns the parts of the result.
    pub(crate) fn add_linear(
        self,
        graph: &mut GraphBuilder,
        shape: &OperatorContext,
        input: TensorId,
    ) -> Vec<TensorId> {
        let width = self.outputs.iter().fold(0u64, |sum, (_, w)| sum.saturating_add(*w));
        let tokens = if self.split == WeightSplit::Replicated { shape.local_tokens() } else { shape.tokens() };
        let result_tokens = if self.split == WeightSplit::Columns { tokens } else { shape.local_tokens() };
        // If the conversion is kept, the weights' gradient reads the converted input.
        let copy = if self.narrow {
            add_kept_conversion(graph, shape, tokens.saturating_mul(self.input), input)
        } else {
            None
        };
        let outputs = self.add_results(graph, result_tokens);
        let full_input = shape.activation_bytes(tokens.saturating_mul(self.input));
        let full_output = shape.activation_bytes(tokens.saturating_mul(width));
        let operand = if self.narrow { shape.product } else { shape.operand };
        let chunks = self.chunks.max(1);
        let product = |m, n, k, result| Kernel::Contraction(Contraction { batch: chunks, m, n, k, operand, result });
        let chunk = tokens.div_ceil(chunks);
        let forward = product(chunk, width, self.input, shape.operand);
        let backward_input = product(chunk, self.input, width, shape.operand);
        let backward_weight = product(self.input, width, chunk, shape.gradient);
        let weights = self.input.saturating_mul(width);
        let [convert_input, convert_weight, convert_gradient] =
            [tokens.saturating_mul(self.input), weights, tokens.saturating_mul(width)]
                .map(|elements| self.narrow.then(|| convert_operands(shape, elements)).flatten());
        let convert_weight = convert_weight.filter(|_| !shape.cached_conversions);
        // An operator that shares its input finds the input already converted.
        let convert_input = convert_input.filter(|_| !self.shares_input && copy.is_none());
        let again = convert_input;
        let columns = self.split == WeightSplit::Columns && !self.shares_input;
        let rows = self.split == WeightSplit::Rows;

        let mut forward_steps: Vec<KernelStep> = Vec::new();
        forward_steps.extend(columns.then(|| shape.gather_sequence("forward", full_input)).flatten());
        forward_steps.extend(convert_input.map(|kernel| kernel_step("forward.convert_input", kernel)));
        forward_steps.extend(convert_weight.map(|kernel| kernel_step("forward.convert_weight", kernel)));
        forward_steps.push(kernel_step("forward", forward));
        forward_steps.extend(rows.then(|| shape.sum_over_tensor_ranks("forward", full_output)).flatten());

        let mut input_steps: Vec<KernelStep> =
            convert_weight.map(|kernel| kernel_step("backward_input.convert_weight", kernel)).into_iter().collect();
        input_steps.push(kernel_step("backward_input", backward_input));
        input_steps.extend(columns.then(|| shape.sum_over_tensor_ranks("backward_input", full_input)).flatten());

        let mut weight_steps: Vec<KernelStep> = Vec::new();
        weight_steps.extend(columns.then(|| shape.gather_sequence("backward_weight", full_input)).flatten());
        weight_steps.extend(again.map(|kernel| kernel_step("backward_weight.convert_input", kernel)));
        weight_steps.push(kernel_step("backward_weight", backward_weight));
        if shape.separate_accumulation {
            weight_steps.push(accumulate_weight_gradient(shape, weights));
        }
        if self.bias {
            weight_steps.push(reduce_bias_gradient(shape, width, result_tokens));
        }
        let mut prepare: Vec<KernelStep> =
            rows.then(|| shape.gather_sequence("backward", full_output)).flatten().into_iter().collect();
        prepare.extend(convert_gradient.map(|kernel| kernel_step("backward.convert_gradient", kernel)));
        let gathered = [columns.then_some(full_input), rows.then_some(full_output)].into_iter().flatten().max();
        graph.add_operator(NewOperator {
            name: self.name,
            inputs: std::iter::once(input).chain(copy).collect(),
            outputs: outputs.clone(),
            forward: forward_steps,
            backward_prepare: prepare,
            backward: vec![
                input_chain(&[input], &[], input_steps),
                weight_chain(&[copy.unwrap_or(input)], weight_steps),
            ],
            parameters: parameters_of_linear(self.split, weights, if self.bias { width } else { 0 }),
            workspace: if shape.sequence_parallel { gathered.unwrap_or(Bytes::ZERO) } else { Bytes::ZERO },
            ..NewOperator::default()
        });
        outputs
    }

    /// Adds the parts of the result as tensors.
    fn add_results(&self, graph: &mut GraphBuilder, tokens: u64) -> Vec<TensorId> {
        let result = |(part, width): &(&str, u64)| {
            graph.add_activation(&format!("{}.{part}", self.name), tokens.saturating_mul(*width))
        };
        self.outputs.iter().map(result).collect()
    }
}

/// Returns the parameters on one device. The bias of a row-split product is added after the sum over devices, so each
/// device holds the bias in full.
fn parameters_of_linear(split: WeightSplit, weights: u64, bias: u64) -> Parameters {
    match split {
        WeightSplit::Replicated => Parameters { replicated: weights.saturating_add(bias), ..Parameters::default() },
        WeightSplit::Columns => Parameters { sharded: weights.saturating_add(bias), ..Parameters::default() },
        WeightSplit::Rows => Parameters { sharded: weights, replicated: bias, ..Parameters::default() },
    }
}

/// Returns the conversion of `elements` operands to the products' type; `None` if the types are the same. Dynamic
/// scaling needs one pass for the largest magnitude and one for the conversion (torchao's tensor-wise float8; AQT's
/// int8). Cached conversions read once, and also write a copy in the layout of the backward pass; serving has no
/// backward pass.
pub(crate) fn convert_operands(shape: &OperatorContext, elements: u64) -> Option<Kernel> {
    let (reads, writes) = match (shape.cached_conversions, shape.serving) {
        (true, None) => (1, 2),
        (true, Some(_)) => (1, 1),
        (false, _) => (2, 1),
    };
    let read = shape.activation_bytes(elements) * reads;
    let written = shape.product.packed_bytes_of(elements) * writes;
    (shape.product != shape.operand)
        .then(|| elementwise_kernel(ElementwiseFunction::Convert, Direction::Forward, elements, read, written))
}

/// Adds the converted copy of a product's input if conversions are cached by Transformer Engine's rules, and returns
/// the copy; otherwise `None`. The weights' gradient reads this copy instead of the input, and the backward pass keeps
/// it (`transformer_engine/pytorch/module/linear.py` saves only the quantised input). Under sequence parallelism,
/// `elements` counts the gathered input, and this device keeps its share. Each input has one such operator, even if
/// several products read the input.
pub(crate) fn add_kept_conversion(
    graph: &mut GraphBuilder,
    shape: &OperatorContext,
    elements: u64,
    input: TensorId,
) -> Option<TensorId> {
    let kernel = convert_operands(shape, elements).filter(|_| shape.cached_conversions)?;
    let name = format!("{}{NARROW}", graph.tensor_name(input));
    if let Some(made) = graph.find_tensor_by_name(&name) {
        return Some(made);
    }
    let numbers = graph.tensor_bytes(input).0 / shape.operand.bytes().max(1);
    let copy = graph.add_constant(&name, shape.product.packed_bytes_of(numbers));
    graph.add_operator(NewOperator {
        name: format!("{name}.convert"),
        inputs: vec![input],
        outputs: vec![copy],
        forward: vec![kernel_step("forward", kernel)],
        ..NewOperator::default()
    });
    Some(copy)
}

/// Returns the step that adds a new weight gradient to the one in memory.
pub(crate) fn accumulate_weight_gradient(shape: &OperatorContext, weights: u64) -> KernelStep {
    let size = shape.gradient_bytes(weights);
    kernel_step(
        "backward_weight.accumulate",
        elementwise_kernel(ElementwiseFunction::Add, Direction::Backward, weights, size * 2, size),
    )
}

/// Returns the step that computes a bias's gradient: the sum over the tokens.
pub(crate) fn reduce_bias_gradient(shape: &OperatorContext, width: u64, tokens: u64) -> KernelStep {
    let read = shape.activation_bytes(tokens.saturating_mul(width));
    let written = shape.gradient_bytes(width);
    kernel_step(
        "backward_weight.bias",
        reduction_kernel(RowFunction::Sum, Direction::Backward, (width, tokens), read, written),
    )
}

/// Returns a batch of `batch` independent m x n products of activations with inner dimension k (queries and keys,
/// probabilities and values).
pub(crate) fn activation_product(batch: u64, (m, n, k): (u64, u64, u64), operand: DataType) -> Kernel {
    Kernel::Contraction(Contraction { batch, m, n, k, operand, result: operand })
}
