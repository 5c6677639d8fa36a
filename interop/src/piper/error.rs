//! Errors other than the faults of a graph file.

use step::StepError;
use thiserror::Error;

/// Why a graph cannot be placed, or a model cannot be written as one.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum PiperError {
    /// Too many cuts.
    #[error(
        "the graph of {layers} layers and {edges} edges can be cut in more than {limit} ways: its branches run side by side; merge \
         layers of a branch, or add edges of 0 bytes that put branches in an order"
    )]
    TooManyCuts {
        /// Layers.
        layers: usize,
        /// Edges.
        edges: usize,
        /// The limit.
        limit: usize,
    },
    /// Too many stages.
    #[error(
        "the graph has more than {limit} possible stages that fit a device: merge layers, or leave out tensor-parallel degrees"
    )]
    TooManyStages {
        /// The limit.
        limit: usize,
    },
    /// The model cannot be costed this way.
    #[error(transparent)]
    Step(#[from] StepError),
    /// A setting for which there is no graph.
    #[error("{what} = {value}: {limit}; {cure}")]
    Value {
        /// The setting.
        what: String,
        /// Its value.
        value: String,
        /// The rule.
        limit: String,
        /// The cure.
        cure: String,
    },
}
