//! A product with a weight matrix, whole or split over tensor-parallel devices as in Megatron-LM: by columns (each device makes a
//! slice of the result) or by rows (each device contracts its slice of the input, and the results are summed).
//!
//! Backward: dX = dY W^T and dW = X^T dY, both. A bias costs no kernel forward (it is what the accumulators start
//! from); its gradient is a sum over the tokens.

use super::{Shape, elementwise, input_chain, reduction, step, weight_chain};
use crate::graph::{GraphBuilder, NewOperator, Parameters, Step, TensorId};
use sim::kernel::{Contraction, DataType, Direction, Function, Kernel, RowFunction};
use sim::units::Bytes;

/// How the weights are split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Split {
    /// Not at all: every device computes the whole product over the tokens it has.
    Replicated,
    /// By columns: needs all tokens, makes this device's columns.
    Columns,
    /// By rows: contracts this device's rows, then sums over the devices.
    Rows,
}

/// A product (tokens, `input`) x (`input`, sum of the outputs' widths).
#[derive(Debug)]
pub(crate) struct Linear<'a> {
    pub(crate) name: String,
    /// Width of the input on this device.
    pub(crate) input: u64,
    /// Names and widths of the parts of the result on this device.
    pub(crate) outputs: &'a [(&'a str, u64)],
    pub(crate) bias: bool,
    pub(crate) split: Split,
}

impl Linear<'_> {
    /// Adds the operator; returns the parts of the result.
    pub(crate) fn add(self, graph: &mut GraphBuilder, shape: &Shape, input: TensorId) -> Vec<TensorId> {
        let width = self.outputs.iter().fold(0u64, |sum, (_, w)| sum.saturating_add(*w));
        let tokens = if self.split == Split::Replicated { shape.local_tokens() } else { shape.tokens() };
        let result_tokens = if self.split == Split::Columns { tokens } else { shape.local_tokens() };
        let outputs: Vec<TensorId> = self
            .outputs
            .iter()
            .map(|(part, w)| graph.activation(&format!("{}.{part}", self.name), result_tokens.saturating_mul(*w)))
            .collect();
        let full_input = shape.bytes(tokens.saturating_mul(self.input));
        let full_output = shape.bytes(tokens.saturating_mul(width));
        let product = |m, n, k, result| Kernel::Contraction(Contraction { batch: 1, m, n, k, operand: shape.operand, result });
        let forward = product(tokens, width, self.input, shape.operand);
        let backward_input = product(tokens, self.input, width, shape.operand);
        let backward_weight = product(self.input, width, tokens, shape.gradient);
        let columns = self.split == Split::Columns;
        let rows = self.split == Split::Rows;

        let mut forward_steps: Vec<Step> = Vec::new();
        forward_steps.extend(columns.then(|| shape.gather_step("forward", full_input)).flatten());
        forward_steps.push(step("forward", forward));
        forward_steps.extend(rows.then(|| shape.sum_step("forward", full_output)).flatten());

        let mut input_steps = vec![step("backward_input", backward_input)];
        input_steps.extend(columns.then(|| shape.sum_step("backward_input", full_input)).flatten());

        let mut weight_steps: Vec<Step> = Vec::new();
        weight_steps.extend(columns.then(|| shape.gather_step("backward_weight", full_input)).flatten());
        weight_steps.push(step("backward_weight", backward_weight));
        if shape.separate_accumulation {
            weight_steps.push(accumulation(shape, self.input.saturating_mul(width)));
        }
        if self.bias {
            weight_steps.push(bias_gradient(shape, width, result_tokens));
        }
        let gathered = [columns.then_some(full_input), rows.then_some(full_output)].into_iter().flatten().max();
        graph.add(NewOperator {
            name: self.name,
            inputs: vec![input],
            outputs: outputs.clone(),
            forward: forward_steps,
            backward_prepare: rows.then(|| shape.gather_step("backward", full_output)).flatten().into_iter().collect(),
            backward: vec![input_chain(&[input], &[], input_steps), weight_chain(&[input], weight_steps)],
            parameters: parameters(self.split, self.input.saturating_mul(width), if self.bias { width } else { 0 }),
            workspace: if shape.sequence_parallel { gathered.unwrap_or(Bytes::ZERO) } else { Bytes::ZERO },
        });
        outputs
    }
}

/// The bias of a row-split product is added after the sum over devices, hence held in full by each.
fn parameters(split: Split, weights: u64, bias: u64) -> Parameters {
    match split {
        Split::Replicated => Parameters { sharded: 0, replicated: weights.saturating_add(bias) },
        Split::Columns => Parameters { sharded: weights.saturating_add(bias), replicated: 0 },
        Split::Rows => Parameters { sharded: weights, replicated: bias },
    }
}

/// The new gradient added to the one in memory.
fn accumulation(shape: &Shape, weights: u64) -> Step {
    let size = shape.gradient_bytes(weights);
    step("backward_weight.accumulate", elementwise(Function::Add, Direction::Backward, weights, size * 2, size))
}

fn bias_gradient(shape: &Shape, width: u64, tokens: u64) -> Step {
    let read = shape.bytes(tokens.saturating_mul(width));
    let written = shape.gradient_bytes(width);
    step("backward_weight.bias", reduction(RowFunction::Sum, Direction::Backward, (width, tokens), read, written))
}

/// The product of activations (queries and keys, probabilities and values): `batch` independent ones.
pub(crate) fn product(batch: u64, (m, n, k): (u64, u64, u64), operand: DataType) -> Kernel {
    Kernel::Contraction(Contraction { batch, m, n, k, operand, result: operand })
}
