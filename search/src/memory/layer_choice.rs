//! The choice for a layer: the tensors that it keeps, rebuilds and offloads.

use super::layer::{OperatorSet, TensorIndex};
use sim::units::{Bytes, Seconds};
use workloads::TokenShare;

/// One way to treat a layer's tensors, with offloading.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerChoice {
    /// Bytes kept on the device per micro-batch in flight.
    pub stash: Bytes,
    /// Bytes kept in the host's memory per micro-batch in flight.
    pub host: Bytes,
    /// Bytes kept in storage per micro-batch in flight.
    pub storage: Bytes,
    /// Seconds of the reruns in the backward pass.
    pub again: Seconds,
    /// Seconds that reruns and exposed copies add to the layer's passes.
    pub added: Seconds,
    /// The operators that are rerun.
    pub operators: OperatorSet,
    /// The tensors that go to the host.
    pub offloaded: Vec<TensorIndex>,
    /// The tensors that go to storage.
    pub stored: Vec<TensorIndex>,
    /// Tensors that are offloaded for only a fraction of the tokens, and that fraction. If they are rebuilt for the
    /// other tokens, `operators` are rerun for those other tokens only.
    pub share: Option<(Vec<TensorIndex>, TokenShare)>,
}
