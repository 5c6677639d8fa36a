//! A product with a weight matrix, whole or split over tensor-parallel devices as in Megatron-LM. Split by columns,
//! each device makes a slice of the result. Split by rows, each device contracts its slice of the input, and the
//! devices' results are summed.
//!
//! The backward pass computes dX = dY W^T and dW = X^T dY. A bias costs no forward kernel, because the accumulators
//! start from the bias. Its gradient is a sum over the tokens.

use super::{OperatorContext, RowShape, elementwise_kernel, input_chain, kernel_step, reduction_kernel, weight_chain};
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

/// A part of a product's result.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ResultPart<'a> {
    pub(crate) name: &'a str,
    pub(crate) width: u64,
}

/// Returns the part `name` with rows of `width` elements.
pub(crate) const fn result_part(name: &str, width: u64) -> ResultPart<'_> {
    ResultPart { name, width }
}

/// A product (tokens, `input`) x (`input`, sum of the outputs' widths).
#[derive(Debug)]
pub(crate) struct Linear<'a> {
    pub(crate) name: String,
    /// Width of the input on this device.
    pub(crate) input: u64,
    /// The result's parts on this device.
    pub(crate) outputs: &'a [ResultPart<'a>],
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
        let tokens = if self.split == WeightSplit::Replicated { shape.local_tokens() } else { shape.tokens() };
        // If the conversion is kept, the weights' gradient reads the converted input.
        let copy = if self.narrow {
            add_kept_conversion(graph, shape, tokens.saturating_mul(self.input), input)
        } else {
            None
        };
        let passes = LinearPasses {
            product: &self,
            shape,
            width: self.outputs.iter().fold(0u64, |sum, part| sum.saturating_add(part.width)),
            tokens,
            result_tokens: if self.split == WeightSplit::Columns { tokens } else { shape.local_tokens() },
            converts_input: self.narrow && !self.shares_input && copy.is_none(),
        };
        let outputs = self.add_results(graph, passes.result_tokens);
        graph.add_operator(NewOperator {
            name: self.name.clone(),
            inputs: std::iter::once(input).chain(copy).collect(),
            outputs: outputs.clone(),
            forward: passes.forward_steps(),
            backward_prepare: passes.prepare_steps(),
            backward: vec![
                input_chain(&[input], &[], passes.input_gradient_steps()),
                weight_chain(&[copy.unwrap_or(input)], passes.weight_gradient_steps()),
            ],
            parameters: parameters_of_linear(self.split, passes.weights(), if self.bias { passes.width } else { 0 }),
            workspace: passes.gathered_bytes(),
            ..NewOperator::default()
        });
        outputs
    }

    /// Adds the parts of the result as tensors.
    fn add_results(&self, graph: &mut GraphBuilder, tokens: u64) -> Vec<TensorId> {
        let result = |part: &ResultPart<'_>| {
            graph.add_activation(&format!("{}.{}", self.name, part.name), tokens.saturating_mul(part.width))
        };
        self.outputs.iter().map(result).collect()
    }
}

/// A product and the sizes that its passes share.
struct LinearPasses<'a> {
    product: &'a Linear<'a>,
    shape: &'a OperatorContext,
    /// Width of the result on this device.
    width: u64,
    tokens: u64,
    result_tokens: u64,
    /// True if the product converts its input itself. An operator that shares its input finds it converted.
    converts_input: bool,
}

impl LinearPasses<'_> {
    fn gathers_input(&self) -> bool {
        self.product.split == WeightSplit::Columns && !self.product.shares_input
    }

    fn sums_result(&self) -> bool {
        self.product.split == WeightSplit::Rows
    }

    fn input_elements(&self) -> u64 {
        self.tokens.saturating_mul(self.product.input)
    }

    fn full_input(&self) -> Bytes {
        self.shape.activation_bytes(self.input_elements())
    }

    fn full_output(&self) -> Bytes {
        self.shape.activation_bytes(self.tokens.saturating_mul(self.width))
    }

    fn weights(&self) -> u64 {
        self.product.input.saturating_mul(self.width)
    }

    /// Returns the step that converts `elements` operands, if the product converts them.
    fn conversion_step(&self, label: &str, elements: u64) -> Option<KernelStep> {
        let kernel = self.product.narrow.then(|| convert_operands(self.shape, elements)).flatten();
        kernel.map(|kernel| kernel_step(label, kernel))
    }

    fn input_conversion_step(&self, label: &str) -> Option<KernelStep> {
        self.converts_input.then(|| self.conversion_step(label, self.input_elements())).flatten()
    }

    fn weight_conversion_step(&self, label: &str) -> Option<KernelStep> {
        self.conversion_step(label, self.weights()).filter(|_| !self.shape.cached_conversions)
    }

    /// Returns the size of the forward product of one chunk of tokens.
    fn forward_size(&self) -> ProductSize {
        let chunk = self.tokens.div_ceil(self.product.chunks.max(1));
        ProductSize { m: chunk, n: self.width, k: self.product.input }
    }

    fn product_step(&self, label: &str, size: ProductSize, result: DataType) -> KernelStep {
        let operand = if self.product.narrow { self.shape.product } else { self.shape.operand };
        kernel_step(label, Kernel::Contraction(size.contraction(self.product.chunks.max(1), operand, result)))
    }

    fn forward_steps(&self) -> Vec<KernelStep> {
        let shape = self.shape;
        let mut steps: Vec<KernelStep> = Vec::new();
        steps.extend(self.gathers_input().then(|| shape.gather_sequence("forward", self.full_input())).flatten());
        steps.extend(self.input_conversion_step("forward.convert_input"));
        steps.extend(self.weight_conversion_step("forward.convert_weight"));
        steps.push(self.product_step("forward", self.forward_size(), shape.operand));
        steps.extend(self.sums_result().then(|| shape.sum_over_tensor_ranks("forward", self.full_output())).flatten());
        steps
    }

    /// Returns the steps before both gradients.
    fn prepare_steps(&self) -> Vec<KernelStep> {
        let gathered = self.sums_result().then(|| self.shape.gather_sequence("backward", self.full_output()));
        let mut steps: Vec<KernelStep> = gathered.flatten().into_iter().collect();
        steps.extend(self.conversion_step("backward.convert_gradient", self.tokens.saturating_mul(self.width)));
        steps
    }

    fn input_gradient_steps(&self) -> Vec<KernelStep> {
        let shape = self.shape;
        let mut steps: Vec<KernelStep> =
            self.weight_conversion_step("backward_input.convert_weight").into_iter().collect();
        steps.push(self.product_step("backward_input", self.forward_size().left_gradient(), shape.operand));
        let summed = self.gathers_input().then(|| shape.sum_over_tensor_ranks("backward_input", self.full_input()));
        steps.extend(summed.flatten());
        steps
    }

    fn weight_gradient_steps(&self) -> Vec<KernelStep> {
        let shape = self.shape;
        let gathered = self.gathers_input().then(|| shape.gather_sequence("backward_weight", self.full_input()));
        let mut steps: Vec<KernelStep> = gathered.flatten().into_iter().collect();
        steps.extend(self.input_conversion_step("backward_weight.convert_input"));
        steps.push(self.product_step("backward_weight", self.forward_size().right_gradient(), shape.gradient));
        if shape.separate_accumulation {
            steps.push(accumulate_weight_gradient(shape, self.weights()));
        }
        if self.product.bias {
            steps.push(reduce_bias_gradient(shape, self.width, self.result_tokens));
        }
        steps
    }

    /// Returns the bytes of the larger activation that is gathered along the sequence.
    fn gathered_bytes(&self) -> Bytes {
        let gathered =
            [self.gathers_input().then(|| self.full_input()), self.sums_result().then(|| self.full_output())];
        if self.shape.sequence_parallel {
            gathered.into_iter().flatten().max().unwrap_or(Bytes::ZERO)
        } else {
            Bytes::ZERO
        }
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
        reduction_kernel(
            RowFunction::Sum,
            Direction::Backward,
            RowShape { rows: width, columns: tokens },
            read,
            written,
        ),
    )
}

/// Widths of a product's input and result on one device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProductWidths {
    pub(crate) input: u64,
    pub(crate) output: u64,
}

/// The size of a product (m, k) x (k, n).
#[derive(Debug, Clone, Copy)]
pub(crate) struct ProductSize {
    pub(crate) m: u64,
    pub(crate) n: u64,
    pub(crate) k: u64,
}

impl ProductSize {
    /// Returns the size of the product that makes the left factor's gradient: (m, n) x (n, k).
    pub(crate) fn left_gradient(self) -> Self {
        Self { m: self.m, n: self.k, k: self.n }
    }

    /// Returns the size of the product that makes the right factor's gradient: (k, m) x (m, n).
    pub(crate) fn right_gradient(self) -> Self {
        Self { m: self.k, n: self.n, k: self.m }
    }

    /// Returns `batch` products of this size.
    pub(crate) fn contraction(self, batch: u64, operand: DataType, result: DataType) -> Contraction {
        Contraction { batch, m: self.m, n: self.n, k: self.k, operand, result }
    }
}

/// Returns a batch of `batch` independent products of activations (queries and keys, probabilities and values).
pub(crate) fn activation_product(batch: u64, size: ProductSize, operand: DataType) -> Kernel {
    Kernel::Contraction(size.contraction(batch, operand, operand))
}
