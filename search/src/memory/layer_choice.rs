//! The choice of a layer: the tensors that it keeps, rebuilds and sends away.

use super::layer::{OperatorSet, TensorIndex};
use sim::units::{Bytes, Seconds};
use workloads::TokenShare;

/// One way to treat a layer's tensors.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerChoice {
    /// Bytes kept on the device per micro-batch in flight.
    pub stash: Bytes,
    /// Bytes kept in the host's memory per micro-batch in flight.
    pub host: Bytes,
    /// Bytes kept in storage per micro-batch in flight.
    pub storage: Bytes,
    /// Seconds of the reruns.
    pub again: Seconds,
    /// Seconds that reruns and copies add to the layer's passes.
    pub added: Seconds,
    /// The operators run again.
    pub operators: OperatorSet,
    /// The tensors that go to the host.
    pub offloaded: Vec<TensorIndex>,
    /// The tensors that go to storage.
    pub stored: Vec<TensorIndex>,
    /// Tensors of which only a fraction of the tokens goes, and that fraction. If the rest is rerun, `operators` are
    /// those of the rest.
    pub share: Option<(Vec<TensorIndex>, TokenShare)>,
}
