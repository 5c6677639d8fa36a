//! Kernels and what each waits for: what an operator schedule is made of.

use super::Kernel;
use petgraph::graph::{DiGraph, NodeIndex};
use serde::{Deserialize, Serialize};
use std::fmt;

/// An operator's place in the part of a model that a [`KernelGraph`] runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OpId(pub u32);

impl OpId {
    /// The index into the operators of that part.
    #[must_use]
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for OpId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "op{}", self.0)
    }
}

/// The pass of a training step that runs a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pass {
    /// The forward pass.
    Forward,
    /// Forward kernels that the backward pass runs again.
    Recompute,
    /// The backward pass without them.
    Backward,
    /// The optimizer's step.
    Optimizer,
}

/// What a kernel of the backward pass differentiates by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GradientOf {
    /// The operator's inputs (dX): earlier operators wait for it.
    Inputs,
    /// The operator's parameters (dW): nothing else in the micro-batch waits for it, zero-bubble schedules put it off.
    Weights,
}

/// The parallel axis along which a collective's ranks lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ParallelAxis {
    /// Tensor-parallel.
    Tensor,
    /// Context-parallel.
    Context,
    /// Expert-parallel.
    Expert,
}

/// What a kernel is to a training step. Whoever makes the kernel says it; names are for people only.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct KernelRole {
    /// Whose kernel it is: the first operator of several in one kernel, the producer of a tensor whose gradients are summed. None
    /// where no operator of the graph has it: the optimizer's, and sums for a tensor that comes from outside.
    pub operator: Option<OpId>,
    /// The pass that runs it.
    pub pass: Pass,
    /// What it differentiates by: none outside the backward pass, and for what both gradients wait for.
    pub gradient: Option<GradientOf>,
    /// The axis of a collective; none for every other kernel.
    pub axis: Option<ParallelAxis>,
}

/// A kernel in a graph: what it is called, what it does and what for.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelNode {
    /// A name that users know, unique in its graph: `layer.mlp.fc1.forward`.
    pub name: String,
    /// What is executed.
    pub kernel: Kernel,
    /// What it is to the step.
    pub role: KernelRole,
}

/// Kernels and what each waits for. The edge weight is unused by the schedule: data passes through memory.
pub type KernelGraph = DiGraph<KernelNode, ()>;

/// A kernel's place in its [`KernelGraph`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KernelId(pub u32);

impl From<NodeIndex> for KernelId {
    fn from(index: NodeIndex) -> Self {
        Self(index.index() as u32)
    }
}

impl fmt::Display for KernelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "kernel{}", self.0)
    }
}
