//! PyTorch's autocast, applied to a lowered segment: which operators run in fp32, and the casts between types.
//!
//! Parameters are fp32, so embeddings and norms produce fp32, and the residual stream is fp32. Products cast their
//! inputs to 16 bits and keep the copy. Norms and softmax run in fp32. Other operators take the widest type of their
//! inputs and parameters. Source: `aten/src/ATen/autocast_mode.cpp` and `tools/autograd/derivatives.yaml` of PyTorch
//! 1.7 and 2.

use crate::error::WorkloadError;
use crate::graph::{
    BackwardChain, Gradient, KernelStep, OpId, OperatorGraph, OperatorNode, OperatorRole, Parameters, TensorId,
    TensorInfo, TensorRole,
};
use crate::lowering::{Autocast, Lowering};
use crate::model::Model;
use sim::kernel::{DataType, Direction, Elementwise, ElementwiseFunction, Kernel, RowFunction};
use sim::units::Bytes;

/// Refuses autocast if devices share layers: casts next to the devices' collectives are not modelled.
pub(crate) fn refuse_split_autocast(model: &Model, lowering: &Lowering) -> Result<(), WorkloadError> {
    let degrees = [
        ("tensor", lowering.tensor_parallel),
        ("context", lowering.context_parallel),
        ("expert", lowering.expert_parallel),
    ];
    let split = degrees.into_iter().find(|(_, degree)| *degree > 1);
    let Some((name, degree)) = split.filter(|_| !lowering.autocast.is_none()) else { return Ok(()) };
    Err(WorkloadError::BadLowering {
        model: model.name.clone(),
        setting: format!("the {name}-parallel degree under autocast"),
        value: degree.to_string(),
        limit: "1, because the casts beside its collectives are not modelled".to_owned(),
        cure: "use --tensor 1, --context 1 and --expert 1, or kernels.autocast=none".to_owned(),
    })
}

/// The type in which an operator runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum OperatorType {
    /// 16 bits: products and fused attention.
    Narrow,
    /// fp32: norms, and under PyTorch 1.7 also GELU.
    Wide,
    /// Softmax: fp32 results from 16-bit scores, in one kernel.
    WideResult,
    /// The widest type of its inputs and parameters.
    Promoted,
    /// A loss, whose kernels convert logits themselves.
    Loss,
}

impl OperatorType {
    fn of_operator(op: &OperatorNode, autocast: Autocast) -> Self {
        let any = |is: fn(&Kernel) -> bool| op.forward.iter().any(|step| is(&step.kernel));
        if op.role == OperatorRole::Loss {
            Self::Loss
        } else if any(|k| matches!(k, Kernel::Contraction(_) | Kernel::FusedAttention(_) | Kernel::Epilogue(_))) {
            Self::Narrow
        } else if op.role == OperatorRole::AttentionScores {
            Self::WideResult
        } else if any(is_norm) || autocast == Autocast::Pytorch1 && any(is_gelu) {
            Self::Wide
        } else {
            Self::Promoted
        }
    }
}

fn is_norm(kernel: &Kernel) -> bool {
    matches!(kernel, Kernel::Reduction(r) if matches!(r.function, RowFunction::LayerNorm | RowFunction::RmsNorm))
}

fn is_gelu(kernel: &Kernel) -> bool {
    matches!(kernel, Kernel::Elementwise(e) if e.function == ElementwiseFunction::Gelu)
}

impl OperatorGraph {
    /// Returns the segment under autocast. `wide_inputs` says whether the residual stream enters the segment in fp32.
    #[must_use]
    pub(crate) fn with_autocast(self, autocast: Autocast, wide_inputs: bool) -> Self {
        if autocast == Autocast::None || self.operand == DataType::Fp32 {
            return self;
        }
        let OperatorGraph { operators, tensors, output, operand, settled } = self;
        let mut cast = CastWriter { autocast, operand, tensors, operators: Vec::new() };
        let entering = |t: &&mut TensorInfo| t.producer.is_none() && t.gradient_bytes > Bytes::ZERO;
        if wide_inputs {
            cast.tensors.iter_mut().filter(entering).for_each(|t| widen_tensor(t, operand));
        }
        operators.into_iter().for_each(|op| cast.add_operator(op));
        let CastWriter { mut tensors, operators, .. } = cast;
        tensors.iter_mut().for_each(|t| t.saved = false);
        for read in operators.iter().flat_map(|op| &op.backward).flat_map(|chain| &chain.reads) {
            tensors[read.index()].saved = true;
        }
        Self { operators, tensors, output, operand, settled }
    }

    /// Returns whether the segment's output is in fp32.
    #[must_use]
    pub(crate) fn has_wide_output(&self) -> bool {
        self.tensors[self.output.index()].role.is_wide()
    }
}

/// Widens an activation and its gradient from the operand type to fp32. Other tensors stay as they are.
fn widen_tensor(tensor: &mut TensorInfo, operand: DataType) {
    if tensor.role == TensorRole::Activation && tensor.gradient_bytes > Bytes::ZERO {
        let widened = |bytes: Bytes| Bytes(bytes.0 / operand.bytes().max(1)) * DataType::Fp32.bytes();
        (tensor.bytes, tensor.gradient_bytes) = (widened(tensor.bytes), widened(tensor.gradient_bytes));
        tensor.role = TensorRole::Wide;
    }
}

/// Rewrites a segment's operators in their order.
struct CastWriter {
    autocast: Autocast,
    operand: DataType,
    /// All tensors. New casts are appended.
    tensors: Vec<TensorInfo>,
    /// The operators rewritten so far.
    operators: Vec<OperatorNode>,
}

impl CastWriter {
    fn is_wide(&self, id: TensorId) -> bool {
        self.tensors[id.index()].role.is_wide()
    }

    fn sum_bytes(&self, ids: &[TensorId]) -> Bytes {
        ids.iter().map(|id| self.tensors[id.index()].bytes).sum()
    }

    fn add_operator(&mut self, mut op: OperatorNode) {
        let runs = OperatorType::of_operator(&op, self.autocast);
        // The kernels' bytes assume tensors in the operand type. `read_before` and `written_before` are those bytes.
        let narrow = |tensors: &[TensorInfo], ids: &[TensorId]| -> Bytes {
            ids.iter().map(|id| narrow_bytes(&tensors[id.index()], self.operand)).sum()
        };
        let [read_before, written_before] = [&op.inputs, &op.outputs].map(|ids| narrow(&self.tensors, ids));
        let asked = match runs {
            OperatorType::Narrow => Some(false),
            OperatorType::Wide => Some(true),
            _ => None,
        };
        for input in op.inputs.clone() {
            let differs = self.tensors[input.index()].gradient_bytes > Bytes::ZERO
                && asked.is_some_and(|wide| wide != self.is_wide(input));
            if differs {
                let copy = self.add_cast(&op, input);
                replace_tensor(&mut op, input, copy);
            }
        }
        let wide = match runs {
            OperatorType::Narrow | OperatorType::Loss => false,
            OperatorType::Wide | OperatorType::WideResult => true,
            OperatorType::Promoted => {
                op.inputs.iter().any(|t| self.is_wide(*t)) || op.parameters.per_device_count() > 0
            }
        };
        if wide {
            op.outputs.iter().for_each(|t| widen_tensor(&mut self.tensors[t.index()], self.operand));
        }
        self.use_input_as_wide_copy(&mut op);
        if runs == OperatorType::Narrow {
            self.cast_weights(&mut op);
        }
        if runs == OperatorType::WideResult && self.autocast == Autocast::Pytorch1 {
            let scores = op.inputs.first().copied();
            op.backward.iter_mut().filter(|chain| !chain.reads.is_empty()).for_each(|c| c.reads.extend(scores));
        }
        if !matches!(runs, OperatorType::Narrow | OperatorType::Loss) {
            let read = [self.sum_bytes(&op.inputs), read_before];
            let written = [self.sum_bytes(&op.outputs), written_before];
            scale_steps(op.forward.iter_mut(), [read, written]);
            let chains = op.backward.iter_mut().flat_map(|chain| &mut chain.steps);
            scale_steps(op.backward_prepare.iter_mut().chain(chains), [written, read]);
        }
        self.push_operator(op);
    }

    /// Adds an operator that casts an input of `reader` to the other type. Returns the cast copy.
    fn add_cast(&mut self, reader: &OperatorNode, input: TensorId) -> TensorId {
        let source = &self.tensors[input.index()];
        let (from, numbers) = (source.bytes, narrow_bytes(source, self.operand).0 / self.operand.bytes().max(1));
        let to_wide = !source.role.is_wide();
        let each = if to_wide { DataType::Fp32.bytes() } else { self.operand.bytes() };
        let to = Bytes(each) * numbers;
        let place = reader.inputs.iter().position(|t| *t == input).unwrap_or_default();
        let name = format!("{}.cast{}", reader.name, if place == 0 { String::new() } else { place.to_string() });
        let copy = TensorId(self.tensors.len() as u32);
        self.tensors.push(TensorInfo {
            id: copy,
            name: format!("{name}.out"),
            bytes: to,
            gradient_bytes: to,
            producer: None,
            saved: false,
            is_segment_input: false,
            role: if to_wide { TensorRole::Wide } else { TensorRole::Activation },
        });
        let core = matches!(reader.role, OperatorRole::AttentionCore | OperatorRole::AttentionScores);
        self.push_operator(OperatorNode {
            id: OpId(0),
            name,
            inputs: vec![input],
            outputs: vec![copy],
            forward: vec![convert_step("forward", numbers, [from, to])],
            backward_prepare: vec![],
            backward: vec![BackwardChain {
                gradient: Gradient::Inputs(vec![input]),
                reads: vec![],
                steps: vec![convert_step("backward_input", numbers, [to, from])],
            }],
            parameters: Parameters::default(),
            workspace: Bytes::ZERO,
            shared_expert: reader.shared_expert,
            layer: reader.layer.clone(),
            // A recomputation of attention's core includes its casts.
            role: if core { OperatorRole::AttentionCore } else { OperatorRole::Other },
        });
        copy
    }

    /// Adds the casts of a product's weights, which are cached for the backward pass, and of their gradients. The
    /// product makes gradients in the operand type.
    fn cast_weights(&self, op: &mut OperatorNode) {
        let numbers = op.parameters.per_device_count();
        if numbers == 0 {
            return;
        }
        let [narrow, wide] = [self.operand, DataType::Fp32].map(|of| Bytes(of.bytes()) * numbers);
        op.forward.insert(0, convert_step("forward.cast_weight", numbers, [wide, narrow]));
        for chain in op.backward.iter_mut().filter(|chain| chain.gradient == Gradient::Weights) {
            for step in &mut chain.steps {
                if let Kernel::Contraction(product) = &mut step.kernel {
                    product.result = self.operand;
                }
            }
            let products = chain.steps.iter().position(|step| matches!(step.kernel, Kernel::Contraction(_)));
            let after = products.map_or(chain.steps.len(), |place| place + 1);
            chain.steps.insert(after, convert_step("backward_weight.cast", numbers, [narrow, wide]));
        }
    }

    /// Replaces the fp32 copy of an input that an operator keeps (eager RMS norms) by the input itself, if the input is
    /// fp32.
    fn use_input_as_wide_copy(&mut self, op: &mut OperatorNode) {
        let Some(input) = op.inputs.first().copied().filter(|t| self.is_wide(*t)) else { return };
        for copy in op.outputs.clone() {
            let tensor = &mut self.tensors[copy.index()];
            if tensor.role == TensorRole::WideCopy {
                tensor.bytes = Bytes::ZERO;
                op.backward.iter_mut().for_each(|chain| replace_all(&mut chain.reads, copy, input));
            }
        }
    }

    fn push_operator(&mut self, op: OperatorNode) {
        let id = OpId(self.operators.len() as u32);
        op.outputs.iter().for_each(|t| self.tensors[t.index()].producer = Some(id));
        self.operators.push(OperatorNode { id, ..op });
    }
}

/// Returns the kernel that casts `numbers` numbers, with the bytes that it reads and writes. Both directions of a cast
/// have the same cost.
fn convert_step(label: &str, numbers: u64, [read, written]: [Bytes; 2]) -> KernelStep {
    let (function, direction) = (ElementwiseFunction::Convert, Direction::Forward);
    let kernel = Kernel::Elementwise(Elementwise { function, direction, elements: numbers, read, written });
    KernelStep { label: label.to_owned(), kernel, axis: None }
}

/// Returns the bytes of a tensor if it were in the operand type.
fn narrow_bytes(tensor: &TensorInfo, operand: DataType) -> Bytes {
    match tensor.role {
        TensorRole::Wide => Bytes(tensor.bytes.0 / DataType::Fp32.bytes()) * operand.bytes(),
        _ => tensor.bytes,
    }
}

/// Makes an operator read `new` wherever it reads `old`.
fn replace_tensor(op: &mut OperatorNode, old: TensorId, new: TensorId) {
    replace_all(&mut op.inputs, old, new);
    for chain in &mut op.backward {
        replace_all(&mut chain.reads, old, new);
        if let Gradient::Inputs(inputs) = &mut chain.gradient {
            replace_all(inputs, old, new);
        }
    }
}

fn replace_all(ids: &mut [TensorId], old: TensorId, new: TensorId) {
    ids.iter_mut().filter(|id| **id == old).for_each(|id| *id = new);
}

/// Scales the bytes that vector kernels read and write by the ratio of a tensor's bytes now to those before.
fn scale_steps<'s>(steps: impl Iterator<Item = &'s mut KernelStep>, [read, written]: [[Bytes; 2]; 2]) {
    let scaled = |bytes: Bytes, [now, before]: [Bytes; 2]| match before {
        Bytes::ZERO => bytes,
        _ => Bytes((u128::from(bytes.0) * u128::from(now.0) / u128::from(before.0)).try_into().unwrap_or(u64::MAX)),
    };
    for step in steps {
        match &mut step.kernel {
            Kernel::Elementwise(e) => (e.read, e.written) = (scaled(e.read, read), scaled(e.written, written)),
            Kernel::Reduction(r) => (r.read, r.written) = (scaled(r.read, read), scaled(r.written, written)),
            _ => {}
        }
    }
}

#[cfg(test)]
#[path = "autocast_tests.rs"]
mod tests;
