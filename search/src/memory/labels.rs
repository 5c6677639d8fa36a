//! The exact method for recomputation policies: one pass over the operators with labels and dominance.
//!
//! A label holds a decision (rerun or not) for every operator so far. Only one consequence of it matters to later
//! operators: the tensors that are at hand in the backward pass, among those that later operators read and the backward
//! pass itself does not. A tensor is at hand if it is kept or rebuilt. One label dominates another if it has at least
//! the same tensors at hand, at most the same stash and at most the same cost.

use super::layer::{LayerTensors, OperatorIndex, OperatorSet, TensorIndex, TensorSource};

/// The cost of rerunning operators, in the form in which labels are compared.
pub(super) trait RerunCost: Clone {
    /// The cost with one more operator rerun.
    fn add_rerun(&self, operator: usize) -> Self;
    /// True if this cost is at most `other`, and stays so if both add the same operators later.
    fn is_at_most(&self, other: &Self) -> bool;
    /// The operators rerun.
    fn rerun_operators(&self) -> OperatorSet;
}

/// The set of operators as the cost. A smaller cost means a subset, so a comparison holds for any non-negative times.
#[derive(Clone)]
pub(super) struct AnyTimes(pub OperatorSet);

impl RerunCost for AnyTimes {
    fn add_rerun(&self, operator: usize) -> Self {
        Self(self.0.with_operator(operator))
    }
    fn is_at_most(&self, other: &Self) -> bool {
        self.0.is_subset(other.0)
    }
    fn rerun_operators(&self) -> OperatorSet {
        self.0
    }
}

/// Cost in seconds for given operator times. On ties the smaller workspace wins.
#[derive(Clone)]
pub(super) struct GivenTimes<'a> {
    pub per_operator: &'a [(f64, u64)],
    pub seconds: f64,
    pub workspace: u64,
    pub set: OperatorSet,
}

impl RerunCost for GivenTimes<'_> {
    fn add_rerun(&self, operator: usize) -> Self {
        let (seconds, workspace) = self.per_operator[operator];
        Self {
            per_operator: self.per_operator,
            seconds: self.seconds + seconds,
            workspace: self.workspace.saturating_add(workspace),
            set: self.set.with_operator(operator),
        }
    }
    fn is_at_most(&self, other: &Self) -> bool {
        self.seconds < other.seconds || (self.seconds == other.seconds && self.workspace <= other.workspace)
    }
    fn rerun_operators(&self) -> OperatorSet {
        self.set
    }
}

/// The decisions for all operators so far.
#[derive(Clone)]
pub(super) struct Label<C> {
    /// Tensors that later operators may read and that are at hand in the backward pass, although the backward pass does
    /// not read them.
    at_hand: u128,
    /// Bytes kept on the device so far.
    pub stash: u64,
    /// The cost of the operators rerun so far.
    pub cost: C,
}

/// One operator as the pass over operators sees it: the tensors that its rerun reads, and the bytes that its rerun
/// saves.
struct OperatorStep {
    recomputable: bool,
    /// Inputs the backward pass does not read: (bit, bytes). All other inputs are at hand anyway.
    reads: Vec<(u128, u64)>,
    /// Bytes of outputs the backward pass reads; they are kept unless the operator is rerun.
    needed_bytes: u64,
    /// Bits of the outputs the backward pass does not read.
    makes: u128,
    /// Bits of tensors that no later recomputable operator reads.
    forget: u128,
}

fn operator_steps(layer: &LayerTensors) -> Vec<OperatorStep> {
    let bit = |t: TensorIndex| 1_u128 << t.0;
    let silent = |t: &TensorIndex| !layer.tensors[t.0].needed_by_backward;
    let mut later_reads = 0_u128;
    let mut steps: Vec<OperatorStep> = Vec::with_capacity(layer.operators.len());
    for operator in layer.operators.iter().rev() {
        let forget = !later_reads;
        let mut inputs = operator.inputs.clone();
        inputs.sort_unstable();
        inputs.dedup();
        if operator.recomputable {
            later_reads |= inputs.iter().fold(0, |mask, &t| mask | bit(t));
        }
        steps.push(OperatorStep {
            recomputable: operator.recomputable,
            reads: inputs.iter().filter(|t| silent(t)).map(|&t| (bit(t), layer.tensors[t.0].bytes.0)).collect(),
            needed_bytes: operator.outputs.iter().filter(|t| !silent(t)).map(|t| layer.tensors[t.0].bytes.0).sum(),
            makes: operator.outputs.iter().filter(|t| silent(t)).fold(0, |mask, &t| mask | bit(t)),
            forget,
        });
    }
    steps.reverse();
    steps
}

/// The labels of all operators that no other label dominates. `None` once more than `limit` labels are alive. `nothing`
/// is the cost without reruns.
pub(super) fn undominated_labels<C: RerunCost>(
    layer: &LayerTensors,
    nothing: C,
    limit: usize,
) -> Option<Vec<Label<C>>> {
    let is_input = |t: &&super::layer::SavedTensor| t.source == TensorSource::LayerInput && t.needed_by_backward;
    let stash = layer.tensors.iter().filter(is_input).map(|t| t.bytes.0).fold(0, u64::saturating_add);
    let mut labels = vec![Label { at_hand: 0, stash, cost: nothing }];
    for (o, step) in operator_steps(layer).iter().enumerate() {
        let mut next = Vec::with_capacity(labels.len() * 2);
        for label in labels {
            if step.recomputable {
                next.push(rerun_operator(&label, OperatorIndex(o), step));
            }
            next.push(Label {
                at_hand: label.at_hand & !step.forget,
                stash: label.stash.saturating_add(step.needed_bytes),
                cost: label.cost,
            });
        }
        labels = keep_undominated(next);
        if labels.len() > limit {
            return None;
        }
    }
    Some(labels)
}

fn rerun_operator<C: RerunCost>(label: &Label<C>, operator: OperatorIndex, step: &OperatorStep) -> Label<C> {
    let missing = step.reads.iter().filter(|(bit, _)| label.at_hand & bit == 0);
    let stash = missing.fold(label.stash, |stash, (_, bytes)| stash.saturating_add(*bytes));
    let reads = step.reads.iter().fold(0, |mask, (bit, _)| mask | bit);
    Label {
        at_hand: (label.at_hand | reads | step.makes) & !step.forget,
        stash,
        cost: label.cost.add_rerun(operator.0),
    }
}

/// Drops every dominated label. The first of equal labels in (stash, set size, set) order stays.
fn keep_undominated<C: RerunCost>(mut labels: Vec<Label<C>>) -> Vec<Label<C>> {
    let order = |l: &Label<C>| (l.stash, l.cost.rerun_operators().len(), l.cost.rerun_operators());
    labels.sort_by_cached_key(order);
    let mut kept: Vec<Label<C>> = Vec::with_capacity(labels.len());
    for label in labels {
        let superfluous = |better: &Label<C>| {
            // Labels are sorted by stash, so `better.stash <= label.stash` holds already.
            label.at_hand & !better.at_hand == 0 && better.cost.is_at_most(&label.cost)
        };
        if !kept.iter().any(superfluous) {
            kept.push(label);
        }
    }
    kept
}
