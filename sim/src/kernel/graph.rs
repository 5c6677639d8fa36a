//! Kernels and their dependencies: the input of an operator schedule.

use super::Kernel;
use petgraph::graph::{DiGraph, NodeIndex};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The index of an operator in the part of a model that a [`KernelGraph`] runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct OpId(pub u32);

impl OpId {
    /// Returns the index as a `usize`.
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
    /// The backward pass without recomputation.
    Backward,
    /// The optimizer's step.
    Optimizer,
}

/// The gradient that a kernel of the backward pass computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GradientOf {
    /// With respect to the operator's inputs (dX): earlier operators wait for it.
    Inputs,
    /// With respect to the operator's parameters (dW): nothing else in the micro-batch waits for it, so zero-bubble
    /// schedules delay it.
    Weights,
}

/// The parallel axis of a collective's ranks.
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

/// The role of a kernel in a training step. The code that makes the kernel sets it; names are only for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct KernelRole {
    /// The operator of the kernel. A kernel of several operators names the first, and a sum of a tensor's gradients
    /// names the tensor's producer. `None` if the graph has no such operator: for the optimizer, and for sums of a
    /// tensor from outside.
    pub operator: Option<OpId>,
    /// The pass that runs it.
    pub pass: Pass,
    /// The gradient that it computes; `None` outside the backward pass, and for work that both gradients need.
    pub gradient: Option<GradientOf>,
    /// The axis of a collective; `None` for every other kernel.
    pub axis: Option<ParallelAxis>,
}

/// A kernel in a graph, with its name and role.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelNode {
    /// A readable name, unique in its graph: `layer.mlp.fc1.forward`.
    pub name: String,
    /// The work.
    pub kernel: Kernel,
    /// Its role in the step.
    pub role: KernelRole,
}

/// Kernels and their dependencies. Edges have no weight: data passes through memory.
pub type KernelGraph = DiGraph<KernelNode, ()>;

/// The index of a kernel in its [`KernelGraph`].
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
