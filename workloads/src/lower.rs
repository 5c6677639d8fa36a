//! Lowers operators to kernels: a segment's forward graph, and its backward graph with recomputed kernels.

use crate::graph::{Gradient, KernelStep, OpId, OperatorGraph, OperatorNode, RecomputeSet, TensorId};
use petgraph::graph::NodeIndex;
use sim::kernel::{
    Direction, Elementwise, ElementwiseFunction, Epilogue, GradientOf, Kernel, KernelGraph, KernelNode, KernelRole,
    ParallelAxis, Pass,
};
use sim::units::Bytes;

/// Nodes that must end before another node can start.
type Predecessors = Vec<NodeIndex>;

/// Role of a chain of kernels: its operator, pass and gradient.
#[derive(Clone, Copy)]
struct ChainKind {
    operator: Option<OpId>,
    pass: Pass,
    gradient: Option<GradientOf>,
}

impl ChainKind {
    fn of_operator(op: &OperatorNode, pass: Pass, gradient: Option<GradientOf>) -> Self {
        Self { operator: Some(op.id), pass, gradient }
    }

    /// Returns the role of one kernel of the chain.
    fn kernel_role(self, axis: Option<ParallelAxis>) -> KernelRole {
        let Self { operator, pass, gradient } = self;
        KernelRole { operator, pass, gradient, axis }
    }
}

/// Turns the operators of one segment into kernel graphs.
pub(crate) struct Lowerer<'a> {
    operators: &'a OperatorGraph,
    epilogues: bool,
    graph: KernelGraph,
}

impl<'a> Lowerer<'a> {
    pub(crate) fn new(operators: &'a OperatorGraph, epilogues: bool) -> Self {
        Self { operators, epilogues, graph: KernelGraph::new() }
    }

    /// Returns the forward kernels of all operators.
    pub(crate) fn lower_forward(mut self) -> KernelGraph {
        self.add_forward_kernels(|_| true, Pass::Forward);
        self.graph
    }

    /// Returns the forward kernels of recomputed operators, and the backward kernels of all operators. Recomputed
    /// operators depend only on each other. A gradient's kernels wait for the gradients of the operator's outputs, and
    /// for the recomputed tensors that they read. No other kernel waits for weight gradients.
    pub(crate) fn lower_backward(mut self, recompute: &RecomputeSet) -> KernelGraph {
        let rebuilt = self.add_forward_kernels(|op| recompute.contains(op.id), Pass::Recompute);
        let mut gradients: Vec<Vec<Predecessors>> = vec![Vec::new(); self.operators.tensors.len()];
        for op in self.operators.operators.iter().rev() {
            let mut after: Predecessors = Vec::new();
            for output in &op.outputs {
                after.extend(self.accumulate_gradient(*output, &mut gradients));
            }
            remove_duplicates(&mut after);
            let after =
                self.add_chain(op, &op.backward_prepare, after, ChainKind::of_operator(op, Pass::Backward, None));
            for chain in &op.backward {
                let mut start = after.clone();
                start.extend(chain.reads.iter().flat_map(|t| rebuilt[t.index()].iter().copied()));
                remove_duplicates(&mut start);
                let end = self.add_chain(
                    op,
                    &chain.steps,
                    start,
                    ChainKind::of_operator(op, Pass::Backward, Some(chain.gradient.differentiated_by())),
                );
                if let Gradient::Inputs(inputs) = &chain.gradient {
                    for input in inputs {
                        gradients[input.index()].push(end.clone());
                    }
                }
            }
        }
        // A segment input that several operators read (post-norm: the first product and the residual sum) gets one
        // gradient.
        for tensor in self.operators.tensors.iter().filter(|t| t.is_segment_input) {
            self.accumulate_gradient(tensor.id, &mut gradients);
        }
        self.graph
    }

    /// Adds the forward kernels of the chosen operators. Returns, for each tensor, the nodes after which it exists;
    /// none if no chosen operator makes it.
    fn add_forward_kernels(&mut self, chosen: impl Fn(&OperatorNode) -> bool, pass: Pass) -> Vec<Predecessors> {
        let mut ready: Vec<Predecessors> = vec![Vec::new(); self.operators.tensors.len()];
        let mut done = vec![false; self.operators.operators.len()];
        for op in self.operators.operators.iter().filter(|op| chosen(op)) {
            if done[op.id.index()] {
                continue;
            }
            let mut after: Predecessors = op.inputs.iter().flat_map(|t| ready[t.index()].iter().copied()).collect();
            remove_duplicates(&mut after);
            let follower =
                if self.epilogues { find_epilogue(self.operators, op).filter(|next| chosen(next)) } else { None };
            let end = match follower {
                Some(next) => {
                    done[next.id.index()] = true;
                    after.extend(next.inputs.iter().flat_map(|t| ready[t.index()].iter().copied()));
                    remove_duplicates(&mut after);
                    let end = self.fuse_epilogue(op, next, after, pass);
                    for output in &next.outputs {
                        ready[output.index()] = end.clone();
                    }
                    end
                }
                None => self.add_chain(op, &op.forward, after, ChainKind::of_operator(op, pass, None)),
            };
            for output in &op.outputs {
                ready[output.index()] = end.clone();
            }
        }
        ready
    }

    /// Adds kernels one after the other. Returns the nodes that following kernels must wait for. In a recomputation,
    /// `recompute` replaces `forward` in the kernels' names.
    fn add_chain(
        &mut self,
        op: &OperatorNode,
        steps: &[KernelStep],
        mut after: Predecessors,
        run: ChainKind,
    ) -> Predecessors {
        for step in steps {
            let name = match run.pass {
                Pass::Recompute => format!("{}.{}", op.name, step.label.replacen("forward", "recompute", 1)),
                Pass::Forward | Pass::Backward | Pass::Optimizer => format!("{}.{}", op.name, step.label),
            };
            after = vec![self.add_node(name, step.kernel, run.kernel_role(step.axis), &after)];
        }
        after
    }

    fn add_node(&mut self, name: String, kernel: Kernel, role: KernelRole, after: &[NodeIndex]) -> NodeIndex {
        let node = self.graph.add_node(KernelNode { name, kernel, role });
        for before in after {
            self.graph.add_edge(*before, node, ());
        }
        node
    }

    /// Sums the gradient contributions of a tensor that several operators read: one addition for each contribution but
    /// the first, as in automatic differentiation.
    fn accumulate_gradient(&mut self, tensor: TensorId, gradients: &mut [Vec<Predecessors>]) -> Predecessors {
        let info = &self.operators.tensors[tensor.index()];
        let mut parts = std::mem::take(&mut gradients[tensor.index()]).into_iter();
        let Some(mut sum) = parts.next() else { return Vec::new() };
        for (i, part) in parts.enumerate() {
            let mut after = sum;
            after.extend(part);
            remove_duplicates(&mut after);
            let size = info.gradient_bytes;
            let add = Kernel::Elementwise(Elementwise {
                function: ElementwiseFunction::Add,
                direction: Direction::Backward,
                elements: size.0 / self.operators.operand.bytes(),
                read: size * 2,
                written: size,
            });
            let count = if i == 0 { String::new() } else { format!(".{}", i + 1) };
            let run = ChainKind { operator: info.producer, pass: Pass::Backward, gradient: Some(GradientOf::Inputs) };
            sum = vec![self.add_node(
                format!("{}.backward_accumulate{count}", info.name),
                add,
                run.kernel_role(None),
                &after,
            )];
        }
        sum
    }

    /// Adds the kernels of `op`, and fuses its last product with `next`, the elementwise operator that reads the
    /// result.
    fn fuse_epilogue(
        &mut self,
        op: &OperatorNode,
        next: &OperatorNode,
        after: Predecessors,
        pass: Pass,
    ) -> Predecessors {
        let run = ChainKind::of_operator(op, pass, None);
        let last = op.forward.len().saturating_sub(1);
        let after = self.add_chain(op, &op.forward[..last], after, run);
        let (Some(Kernel::Contraction(contraction)), Some(Kernel::Elementwise(elementwise))) =
            (op.forward.last().map(|s| s.kernel), next.forward.first().map(|s| s.kernel))
        else {
            return self.add_chain(op, &op.forward[last..], after, run);
        };
        let product: Bytes = op.outputs.iter().map(|t| self.operators.tensors[t.index()].bytes).sum();
        let kept = op.outputs.iter().any(|t| self.operators.tensors[t.index()].saved);
        // The product's result stays on chip for the elementwise function. It is written only if the backward pass
        // reads it.
        let written = if kept { elementwise.written } else { elementwise.written.saturating_sub(product) };
        let kernel = Kernel::Epilogue(Epilogue {
            contraction,
            elementwise: Elementwise { read: elementwise.read.saturating_sub(product), written, ..elementwise },
            summed: 1,
        });
        let short = next.name.rsplit('.').next().unwrap_or(&next.name);
        let label = if pass == Pass::Recompute { "recompute" } else { "forward" };
        vec![self.add_node(format!("{}+{short}.{label}", op.name), kernel, run.kernel_role(None), &after)]
    }
}

/// Returns the elementwise operator that can run in the epilogue of `op`, or `None`. It must be a single kernel and the
/// only reader of the results of `op`. Its other inputs must exist before `op` ends. The last kernel of `op` must be a
/// product, not a collective.
fn find_epilogue<'g>(operators: &'g OperatorGraph, op: &OperatorNode) -> Option<&'g OperatorNode> {
    let Some(Kernel::Contraction(_)) = op.forward.last().map(|s| s.kernel) else { return None };
    let mut readers = operators.operators.iter().filter(|next| next.inputs.iter().any(|t| op.outputs.contains(t)));
    let (first, second) = (readers.next()?, readers.next());
    let elementwise = first.forward.len() == 1 && matches!(first.forward[0].kernel, Kernel::Elementwise(_));
    let earlier = |t: &TensorId| operators.tensors[t.index()].producer.is_none_or(|p| p <= op.id);
    (second.is_none() && elementwise && first.inputs.iter().all(earlier)).then_some(first)
}

fn remove_duplicates(nodes: &mut Predecessors) {
    nodes.sort_unstable();
    nodes.dedup();
}
