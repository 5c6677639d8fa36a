//! What is run: a model's training plan on given devices.

use serde::{Deserialize, Serialize};
use sim::pipeline::PipelineSchedule;
use workloads::footprint::{Optimizer, Precision};
use workloads::training::Attention;
use workloads::{Batch, Layout, StagePolicies, Techniques};

/// A training run's plan: everything that the user chooses besides model, chip, fabric and software.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainingPlan {
    /// The parallel degrees.
    pub layout: Layout,
    /// Micro-batch, global batch, sequence length.
    pub batch: Batch,
    /// What happens to activations between forward and backward pass, in every stage.
    pub activations: StagePolicies,
    /// How attention is computed.
    pub attention: Attention,
    /// Number formats.
    pub precision: Precision,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// The pipeline's schedule; without a pipeline it changes nothing.
    pub schedule: PipelineSchedule,
    /// Memory techniques besides.
    #[serde(default, skip_serializing_if = "Techniques::is_empty")]
    pub techniques: Techniques,
}

impl TrainingPlan {
    /// Micro-batches per step and pipeline.
    #[must_use]
    pub fn micro_batches(&self) -> u64 {
        self.layout.micro_batches(&self.batch)
    }
}
