//! The operator graph of one segment of a model: operators, the tensors between them, and what the backward pass reads.

mod recompute_set;
mod settled;

pub use recompute_set::RecomputeSet;
pub(crate) use settled::WHOLE;
pub use settled::{PartialOffload, TensorPlacements};

use serde::{Deserialize, Serialize};
pub use sim::kernel::OpId;
use sim::kernel::{DataType, GradientOf, Kernel, ParallelAxis};
use sim::units::Bytes;
use std::collections::BTreeMap;
use std::fmt;

/// Index of a tensor in its segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TensorId(pub u32);

impl TensorId {
    /// Returns the index into [`OperatorGraph::tensors`].
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for TensorId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "tensor{}", self.0)
    }
}

/// The role of a tensor in its operator. Techniques and autocast depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TensorRole {
    /// An activation, a mask, or token ids.
    #[default]
    Activation,
    /// An fp32 activation among narrower ones (autocast).
    Wide,
    /// An fp32 copy of an activation.
    WideCopy,
    /// One factor of a norm per row.
    RowFactor,
    /// A tensor that a technique keeps instead of another one.
    StandIn(StandInKind),
}

impl TensorRole {
    fn is_activation(&self) -> bool {
        *self == Self::Activation
    }

    /// Returns whether the tensor is an fp32 activation, or an fp32 copy, among narrower ones.
    pub(crate) fn is_wide(self) -> bool {
        matches!(self, Self::Wide | Self::WideCopy)
    }

    /// Returns whether the tensor holds one factor per row of a norm.
    pub(crate) fn is_row_factor(self) -> bool {
        matches!(self, Self::RowFactor | Self::StandIn(StandInKind::RowFactor))
    }
}

/// The form in which a technique keeps a tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StandInKind {
    /// Fewer bits per number.
    Quantised,
    /// Bits that choose a nonlinearity's derivative.
    Bits,
    /// The product with a random matrix.
    Projected,
    /// A random sample of the rows.
    Sampled,
    /// One number per group of a row.
    GroupScalars,
    /// The result of an adapter's first factor: the rows between its two factors.
    Adapted,
    /// A copy of a tensor in the adapter's own type, or the tensor that the adapter scales.
    AdapterCopy,
    /// One factor per row, beside a norm's result.
    RowFactor,
}

impl StandInKind {
    /// Returns the word for this kind in names of tensors and kernels.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Quantised => "quantised",
            Self::Bits => "bits",
            Self::Projected => "projected",
            Self::Sampled => "sampled",
            Self::GroupScalars => "group_scalars",
            Self::Adapted => "adapted",
            Self::AdapterCopy => "adapter_copy",
            Self::RowFactor => "rstd",
        }
    }
}

/// The role of an operator in its model, if a rule depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OperatorRole {
    /// Any other role.
    #[default]
    Other,
    /// A lookup in the embedding's tables.
    Lookup,
    /// A part of attention between its products with weights: the fused kernel, scores, dropout or context.
    AttentionCore,
    /// The softmax over unfused attention's scores, which is also a part of the core.
    AttentionScores,
    /// The head's output product.
    Logits,
    /// The head's loss.
    Loss,
    /// The weights of products that several layers share.
    SharedWeights,
}

impl OperatorRole {
    fn is_other(&self) -> bool {
        *self == Self::Other
    }
}

/// An activation of one micro-batch on one device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TensorInfo {
    /// Its index.
    pub id: TensorId,
    /// The tensor's name for users: `layer.mlp.fc1.out`.
    pub name: String,
    /// Its bytes.
    pub bytes: Bytes,
    /// Bytes of its gradient; zero if it has none (masks, statistics, token ids).
    pub gradient_bytes: Bytes,
    /// The operator that makes it; `None` for a segment input.
    pub producer: Option<OpId>,
    /// True if a backward chain reads it, so that it must be kept or rebuilt.
    pub saved: bool,
    /// True if it enters the segment from outside, so that no operator here can rebuild it.
    pub is_segment_input: bool,
    /// Its role.
    #[serde(default, skip_serializing_if = "TensorRole::is_activation")]
    pub role: TensorRole,
}

/// A kernel with its label.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelStep {
    /// Role of the kernel in its operator: `forward`, `backward_input`, `backward_weight.all_gather`.
    pub label: String,
    /// The kernel.
    pub kernel: Kernel,
    /// The axis of a collective; `None` for all other kernels.
    pub axis: Option<ParallelAxis>,
}

/// Result of a chain of backward kernels.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gradient {
    /// The gradients of these inputs (dX). If the chain has no kernels, the gradient passes through unchanged (a sum).
    Inputs(Vec<TensorId>),
    /// The gradients of the operator's parameters (dW). Nothing else in the micro-batch waits for them.
    Weights,
}

impl Gradient {
    /// Returns the kind of gradient, for the role of its kernels.
    #[must_use]
    pub fn differentiated_by(&self) -> GradientOf {
        match self {
            Self::Inputs(_) => GradientOf::Inputs,
            Self::Weights => GradientOf::Weights,
        }
    }
}

/// Kernels of an operator's backward pass that run one after the other.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackwardChain {
    /// The computed gradient.
    pub gradient: Gradient,
    /// Activations that it reads, besides the gradients of the operator's outputs.
    pub reads: Vec<TensorId>,
    /// Its kernels, in order.
    pub steps: Vec<KernelStep>,
}

/// Parameters on one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Parameters {
    /// This device's slice of parameters that tensor parallelism splits.
    pub sharded: u64,
    /// Parameters that every device of the tensor-parallel group holds in full.
    pub replicated: u64,
    /// This device's slice of expert parameters. One rank of an expert-parallel group holds them, so every
    /// `expert_parallel`-th data-parallel rank holds the same ones.
    pub expert: u64,
}

impl Parameters {
    /// Returns the number of all parameters on one device.
    #[must_use]
    pub fn per_device_count(self) -> u64 {
        self.sharded.saturating_add(self.replicated).saturating_add(self.expert)
    }

    /// Returns the parameters of `count` pieces.
    #[must_use]
    pub fn times_pieces(self, count: u64) -> Self {
        Self {
            sharded: self.sharded.saturating_mul(count),
            replicated: self.replicated.saturating_mul(count),
            expert: self.expert.saturating_mul(count),
        }
    }

    /// Returns one of `count` equal shares, rounded up; 0 shares count as 1.
    #[must_use]
    pub fn share_of_parts(self, count: u64) -> Self {
        let count = count.max(1);
        Self {
            sharded: self.sharded.div_ceil(count),
            replicated: self.replicated.div_ceil(count),
            expert: self.expert.div_ceil(count),
        }
    }

    /// Returns the sum of both.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self {
            sharded: self.sharded.saturating_add(other.sharded),
            replicated: self.replicated.saturating_add(other.replicated),
            expert: self.expert.saturating_add(other.expert),
        }
    }
}

/// An operator: its forward and backward kernels, its tensors and its parameters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperatorNode {
    /// Its index.
    pub id: OpId,
    /// The operator's name for users: `layer.mlp.fc1`.
    pub name: String,
    /// Activations read.
    pub inputs: Vec<TensorId>,
    /// Activations written.
    pub outputs: Vec<TensorId>,
    /// Forward kernels, run one after the other.
    pub forward: Vec<KernelStep>,
    /// Backward kernels that precede every chain (the all-gather of a sharded output gradient).
    pub backward_prepare: Vec<KernelStep>,
    /// The backward pass: one chain per gradient. Chains do not depend on each other.
    pub backward: Vec<BackwardChain>,
    /// Its parameters.
    pub parameters: Parameters,
    /// Bytes that exist only while one of its kernels runs, and that belong to no tensor (gathered shards).
    pub workspace: Bytes,
    /// True if it belongs to the shared expert, which does not depend on the routed ones.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub shared_expert: bool,
    /// The layer that it belongs to, as written in its name; `None` outside layers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layer: Option<String>,
    /// Its role.
    #[serde(default, skip_serializing_if = "OperatorRole::is_other")]
    pub role: OperatorRole,
}

/// The tensors of a segment, and its operators in a valid execution order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OperatorGraph {
    /// Operators. Every input is made by an earlier operator or is a segment input.
    pub operators: Vec<OperatorNode>,
    /// Tensors, indexed by [`TensorId`].
    pub tensors: Vec<TensorInfo>,
    /// The segment's output.
    pub output: TensorId,
    /// Data type of activations and their gradients.
    pub operand: DataType,
    /// Tensor placements that memory techniques have fixed; empty without techniques.
    #[serde(default, skip_serializing_if = "TensorPlacements::is_empty")]
    pub settled: TensorPlacements,
}

impl OperatorGraph {
    /// Returns the tensors kept from forward to backward if the operators in `recompute` are recomputed. A tensor is
    /// kept if the backward pass or a recomputed operator reads it, unless its producer is recomputed. Every other
    /// tensor that the backward pass reads can be rebuilt from these.
    #[must_use]
    pub fn kept_tensors(&self, recompute: &RecomputeSet) -> Vec<TensorId> {
        let mut needed: Vec<bool> = self.tensors.iter().map(|t| t.saved).collect();
        for op in recompute.iter().filter_map(|id| self.operators.get(id.index())) {
            for input in &op.inputs {
                needed[input.index()] = true;
            }
        }
        let rebuilt = |t: &TensorInfo| t.producer.is_some_and(|op| recompute.contains(op));
        self.tensors.iter().filter(|t| needed[t.id.index()] && !rebuilt(t)).map(|t| t.id).collect()
    }

    /// Returns the bytes of [`Self::kept_tensors`], per micro-batch in flight on one device.
    #[must_use]
    pub fn saved_bytes(&self, recompute: &RecomputeSet) -> Bytes {
        self.kept_tensors(recompute).into_iter().map(|id| self.tensors[id.index()].bytes).sum()
    }

    /// Returns the bytes of the tensors that the recomputed operators rebuild. They live throughout the segment's
    /// backward pass.
    #[must_use]
    pub fn rebuilt_bytes(&self, recompute: &RecomputeSet) -> Bytes {
        let operators = recompute.iter().filter_map(|id| self.operators.get(id.index()));
        operators.flat_map(|op| &op.outputs).map(|id| self.tensors[id.index()].bytes).sum()
    }

    /// Returns the set under which only segment inputs are kept. It holds every operator whose result the backward pass
    /// needs, directly or to rebuild another tensor (Megatron-LM's full recomputation).
    #[must_use]
    pub fn full_recompute_set(&self) -> RecomputeSet {
        let mut needed: Vec<bool> = self.tensors.iter().map(|t| t.saved).collect();
        let mut set = RecomputeSet::none();
        for op in self.operators.iter().rev() {
            if op.outputs.iter().any(|t| needed[t.index()]) {
                set.insert(op.id);
                for input in &op.inputs {
                    needed[input.index()] = true;
                }
            }
        }
        set
    }

    /// Returns the operator called `name`, or `None`.
    #[must_use]
    pub fn find_operator(&self, name: &str) -> Option<&OperatorNode> {
        self.operators.iter().find(|op| op.name == name)
    }

    /// Returns the id of the tensor called `name`, or `None`.
    #[must_use]
    pub fn find_tensor(&self, name: &str) -> Option<TensorId> {
        self.tensors.iter().find(|t| t.name == name).map(|t| t.id)
    }

    /// Returns the most bytes alive at once in either pass besides kept tensors, with operators run in order. In the
    /// forward pass, a tensor lives from its producer to its last reader. In the backward pass, a gradient lives from
    /// its first contribution to its producer's backward pass, and rebuilt tensors live throughout. Both passes include
    /// operators' workspaces.
    #[must_use]
    pub fn transient_bytes(&self, recompute: &RecomputeSet) -> Bytes {
        let kept = self.kept_tensors(recompute);
        self.peak_forward_bytes(|t| kept.contains(&t), |_| Bytes::ZERO)
            .max(self.peak_backward_bytes() + self.rebuilt_bytes(recompute))
    }

    /// Returns the most bytes alive at once in the forward pass besides the tensors for which `kept` is true. `absent`
    /// returns bytes that are subtracted while an operator runs, because those kept tensors do not exist yet.
    pub(crate) fn peak_forward_bytes(&self, kept: impl Fn(TensorId) -> bool, absent: impl Fn(OpId) -> Bytes) -> Bytes {
        let mut last_reader = vec![0; self.tensors.len()];
        for op in &self.operators {
            for input in &op.inputs {
                last_reader[input.index()] = op.id.index();
            }
        }
        last_reader[self.output.index()] = self.operators.len();
        for tensor in self.tensors.iter().filter(|t| kept(t.id)) {
            last_reader[tensor.id.index()] = usize::MAX; // Not transient.
        }
        let mut peak = Bytes::ZERO;
        let mut alive = vec![false; self.tensors.len()];
        for op in &self.operators {
            let touched = op.inputs.iter().chain(&op.outputs).filter(|t| last_reader[t.index()] != usize::MAX);
            touched.for_each(|t| alive[t.index()] = true);
            let held = self.sum_alive_bytes(&alive, |t| self.settled.bytes_at_work(t.id, t.bytes)) + op.workspace;
            peak = peak.max(held.saturating_sub(absent(op.id)));
            for (flag, last) in alive.iter_mut().zip(&last_reader) {
                *flag &= *last > op.id.index();
            }
        }
        peak
    }

    fn peak_backward_bytes(&self) -> Bytes {
        let mut alive = vec![false; self.tensors.len()];
        alive[self.output.index()] = true;
        let mut peak = Bytes::ZERO;
        // An operator without a backward pass (a conversion) passes on no gradient.
        for op in self.operators.iter().rev().filter(|op| !op.backward.is_empty()) {
            // A second contribution to a gradient is a separate tensor until it is added.
            let further: Bytes =
                op.inputs.iter().filter(|t| alive[t.index()]).map(|t| self.tensors[t.index()].gradient_bytes).sum();
            op.inputs.iter().for_each(|t| alive[t.index()] = true);
            peak = peak.max(self.sum_alive_bytes(&alive, |t| t.gradient_bytes) + further + op.workspace);
            op.outputs.iter().for_each(|t| alive[t.index()] = false);
        }
        peak
    }

    fn sum_alive_bytes(&self, alive: &[bool], bytes: impl Fn(&TensorInfo) -> Bytes) -> Bytes {
        self.tensors.iter().filter(|t| alive[t.id.index()]).map(bytes).sum()
    }
}

/// Suffix of the name of a tensor that is converted to the products' operand type.
pub(crate) const NARROW: &str = ".narrow";

/// Prefix of the names of a layer's operators and tensors.
const LAYER: &str = "layer";

/// An operator that has no index yet.
#[derive(Debug, Clone, Default)]
pub(crate) struct NewOperator {
    pub(crate) name: String,
    pub(crate) inputs: Vec<TensorId>,
    pub(crate) outputs: Vec<TensorId>,
    pub(crate) forward: Vec<KernelStep>,
    pub(crate) backward_prepare: Vec<KernelStep>,
    pub(crate) backward: Vec<BackwardChain>,
    pub(crate) parameters: Parameters,
    pub(crate) workspace: Bytes,
    pub(crate) role: OperatorRole,
}

/// Builds the graph of one segment, operator by operator.
#[derive(Debug)]
pub(crate) struct GraphBuilder {
    operators: Vec<OperatorNode>,
    tensors: Vec<TensorInfo>,
    operand: DataType,
    /// The word that replaces the prefix `layer` in names; `None` keeps it.
    layer: Option<String>,
    /// True if new operators belong to the shared expert.
    shared_expert: bool,
    /// Number of slices of each tensor that exists one slice at a time.
    slices: BTreeMap<TensorId, u64>,
}

impl GraphBuilder {
    /// Starts an empty graph for activations of type `operand`.
    pub(crate) fn new(operand: DataType) -> Self {
        Self {
            operators: Vec::new(),
            tensors: Vec::new(),
            operand,
            layer: None,
            shared_expert: false,
            slices: BTreeMap::new(),
        }
    }

    /// Replaces the prefix `layer` by `word` in the names added from now on; `None` ends the replacement.
    pub(crate) fn rename_layers(&mut self, word: Option<String>) {
        self.layer = word;
    }

    /// Sets whether operators added from now on belong to the shared expert.
    pub(crate) fn mark_shared_expert(&mut self, are: bool) {
        self.shared_expert = are;
    }

    /// Splits a name that begins with the layer's prefix into the layer's word and the rest; `None` for other names.
    fn split_layer<'n>(&self, name: &'n str) -> Option<(&str, &'n str)> {
        Some((self.layer.as_deref().unwrap_or(LAYER), name.strip_prefix(LAYER)?.strip_prefix('.')?))
    }

    fn renamed(&self, name: &str) -> String {
        self.split_layer(name).map_or_else(|| name.to_owned(), |(word, rest)| format!("{word}.{rest}"))
    }

    /// Adds a tensor of `elements` elements of the operand type, with a gradient of the same type.
    pub(crate) fn add_activation(&mut self, name: &str, elements: u64) -> TensorId {
        let bytes = Bytes(self.operand.bytes()) * elements;
        self.push_tensor(name, bytes, bytes, TensorRole::Activation)
    }

    /// Adds a tensor of `bytes` bytes in any type, with a gradient of the same size.
    pub(crate) fn add_tensor_of_bytes(&mut self, name: &str, bytes: Bytes) -> TensorId {
        self.push_tensor(name, bytes, bytes, TensorRole::Activation)
    }

    /// Adds a tensor without a gradient: a mask, statistics, token ids.
    pub(crate) fn add_constant(&mut self, name: &str, bytes: Bytes) -> TensorId {
        self.push_tensor(name, bytes, Bytes::ZERO, TensorRole::Activation)
    }

    /// Adds a tensor with one fp32 factor for each of `rows` rows, without a gradient.
    pub(crate) fn add_row_factor(&mut self, name: &str, rows: u64) -> TensorId {
        self.push_tensor(name, Bytes(DataType::Fp32.bytes()) * rows, Bytes::ZERO, TensorRole::RowFactor)
    }

    /// Adds an fp32 copy of `elements` elements, without a gradient.
    pub(crate) fn add_wide_copy(&mut self, name: &str, elements: u64) -> TensorId {
        self.push_tensor(name, Bytes(DataType::Fp32.bytes()) * elements, Bytes::ZERO, TensorRole::WideCopy)
    }

    /// Adds a tensor that another segment keeps. The tensor takes no bytes here, but its gradient does.
    pub(crate) fn add_borrowed_tensor(&mut self, name: &str, gradient: Bytes) -> TensorId {
        self.push_tensor(name, Bytes::ZERO, gradient, TensorRole::Activation)
    }

    fn push_tensor(&mut self, name: &str, bytes: Bytes, gradient_bytes: Bytes, role: TensorRole) -> TensorId {
        let id = TensorId(self.tensors.len() as u32);
        self.tensors.push(TensorInfo {
            id,
            name: self.renamed(name),
            bytes,
            gradient_bytes,
            producer: None,
            saved: false,
            is_segment_input: true,
            role,
        });
        id
    }

    pub(crate) fn tensor_bytes(&self, id: TensorId) -> Bytes {
        self.tensors[id.index()].bytes
    }

    /// Returns the tensor's name.
    pub(crate) fn tensor_name(&self, id: TensorId) -> String {
        self.tensors[id.index()].name.clone()
    }

    /// Returns the id of the tensor called `name`, or `None`.
    pub(crate) fn find_tensor_by_name(&self, name: &str) -> Option<TensorId> {
        self.tensors.iter().find(|t| t.name == name).map(|t| t.id)
    }

    /// Makes the last operator scale its rows by `weights` in the same kernels. The operator reads the weights in both
    /// passes and computes their gradient.
    pub(crate) fn scale_rows_of_last(&mut self, weights: TensorId) {
        let Some(op) = self.operators.last_mut() else { return };
        op.inputs.push(weights);
        for chain in &mut op.backward {
            chain.reads.push(weights);
            if let Gradient::Inputs(inputs) = &mut chain.gradient {
                inputs.push(weights);
            }
        }
        self.tensors[weights.index()].saved = true;
    }

    /// Clears the parameters of the last operator, because another operator counts them.
    pub(crate) fn share_parameters_of_last(&mut self) {
        if let Some(op) = self.operators.last_mut() {
            op.parameters = Parameters::default();
        }
    }

    /// Returns the number of operators so far.
    pub(crate) fn operator_count(&self) -> usize {
        self.operators.len()
    }

    /// Clears the parameters of all operators from index `mark` on, because another operator counts them. Returns their
    /// sum.
    pub(crate) fn share_parameters_since(&mut self, mark: usize) -> Parameters {
        let later = self.operators.iter_mut().skip(mark);
        later.fold(Parameters::default(), |sum, op| sum.plus(std::mem::take(&mut op.parameters)))
    }

    /// Adds parameters that tensor parallelism splits to the last operator.
    pub(crate) fn add_sharded_to_last(&mut self, parameters: u64) {
        if let Some(op) = self.operators.last_mut() {
            op.parameters.sharded = op.parameters.sharded.saturating_add(parameters);
        }
    }

    /// Adds parameters that every tensor-parallel device holds to the last operator.
    pub(crate) fn add_replicated_to_last(&mut self, parameters: u64) {
        if let Some(op) = self.operators.last_mut() {
            op.parameters.replicated = op.parameters.replicated.saturating_add(parameters);
        }
    }

    /// States that a tensor exists in this many slices, one at a time.
    pub(crate) fn slice_tensor(&mut self, tensor: TensorId, slices: u64) {
        self.slices.insert(tensor, slices);
    }

    /// Removes the input gradients of the last operator, because it reads its inputs detached.
    pub(crate) fn detach_inputs_of_last(&mut self) {
        if let Some(op) = self.operators.last_mut() {
            op.backward.retain(|chain| matches!(chain.gradient, Gradient::Weights));
        }
    }

    /// Appends a step, if given, to the last operator's forward pass.
    pub(crate) fn extend_forward_of_last(&mut self, step: Option<KernelStep>) {
        if let Some(op) = self.operators.last_mut() {
            op.forward.extend(step);
        }
    }

    /// Gives the last operator a role.
    pub(crate) fn set_role_of_last(&mut self, role: OperatorRole) {
        if let Some(op) = self.operators.last_mut() {
            op.role = role;
        }
    }

    /// Adds an operator. Its outputs stop being segment inputs, and the tensors that its chains read are marked as
    /// saved.
    pub(crate) fn add_operator(&mut self, op: NewOperator) {
        let id = OpId(self.operators.len() as u32);
        for output in &op.outputs {
            let tensor = &mut self.tensors[output.index()];
            tensor.producer = Some(id);
            tensor.is_segment_input = false;
        }
        for read in op.backward.iter().flat_map(|chain| &chain.reads) {
            self.tensors[read.index()].saved = true;
        }
        self.operators.push(OperatorNode {
            id,
            name: self.renamed(&op.name),
            inputs: op.inputs,
            outputs: op.outputs,
            forward: op.forward,
            backward_prepare: op.backward_prepare,
            backward: op.backward,
            parameters: op.parameters,
            workspace: op.workspace,
            shared_expert: self.shared_expert,
            layer: self.split_layer(&op.name).map(|(word, _)| word.to_owned()),
            role: op.role,
        });
    }

    pub(crate) fn finish_graph(self, output: TensorId) -> OperatorGraph {
        let (operators, tensors, operand) = (self.operators, self.tensors, self.operand);
        let settled = TensorPlacements { slices: self.slices, ..TensorPlacements::default() };
        OperatorGraph { operators, tensors, output, operand, settled }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the graph input (10) -> a (20) -> b (30) -> output (5) with these bytes and no gradients; `b` is saved
    /// if `b_saved`.
    fn chain(b_saved: bool) -> OperatorGraph {
        let mut graph = GraphBuilder::new(DataType::Bf16);
        let ids = [10, 20, 30, 5].map(|bytes| graph.add_constant(&format!("t{bytes}"), Bytes(bytes)));
        for (i, pair) in ids.windows(2).enumerate() {
            let reads = if b_saved && i == 2 { vec![pair[0]] } else { vec![] };
            let gradient = Gradient::Inputs(vec![pair[0]]);
            graph.add_operator(NewOperator {
                name: format!("op{i}"),
                inputs: vec![pair[0]],
                outputs: vec![pair[1]],
                backward: vec![BackwardChain { gradient, reads, steps: vec![] }],
                ..NewOperator::default()
            });
        }
        graph.finish_graph(ids[3])
    }

    #[test]
    fn tensors_live_from_their_producer_to_their_last_reader() {
        let none = RecomputeSet::none();
        assert_eq!(chain(false).transient_bytes(&none), Bytes(50), "a and b together");
        assert_eq!(chain(true).transient_bytes(&none), Bytes(30), "b is kept, hence not transient: input and a");
    }

    #[test]
    fn recomputation_keeps_what_it_starts_from() {
        let graph = chain(true);
        assert_eq!(graph.saved_bytes(&RecomputeSet::none()), Bytes(30));
        assert_eq!(graph.saved_bytes(&[OpId(1)].into_iter().collect()), Bytes(20));
        assert_eq!(graph.full_recompute_set(), [OpId(0), OpId(1)].into_iter().collect());
        assert_eq!(graph.saved_bytes(&graph.full_recompute_set()), Bytes(10));
        assert_eq!(graph.rebuilt_bytes(&graph.full_recompute_set()), Bytes(50));
    }
}
