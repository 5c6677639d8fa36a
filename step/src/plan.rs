//! The plan of a training run on given devices.

use serde::{Deserialize, Serialize};
use sim::pipeline::PipelineSchedule;
use workloads::footprint::{Optimizer, Precision};
use workloads::training::Attention;
use workloads::{Batch, Layout, StagePolicies, Techniques};

/// A training run's plan: all choices of the user besides model, chip, fabric and software.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainingPlan {
    /// The parallel degrees.
    pub layout: Layout,
    /// Micro-batch, global batch, sequence length.
    pub batch: Batch,
    /// The policies by which every stage keeps, recomputes or offloads activations.
    pub activations: StagePolicies,
    /// The form of attention: fused or not.
    pub attention: Attention,
    /// Number formats.
    pub precision: Precision,
    /// The optimizer.
    pub optimizer: Optimizer,
    /// The pipeline's schedule; without effect if there is no pipeline.
    pub schedule: PipelineSchedule,
    /// Memory techniques.
    #[serde(default, skip_serializing_if = "Techniques::is_empty")]
    pub techniques: Techniques,
}

impl TrainingPlan {
    /// Returns the number of micro-batches per step and pipeline.
    #[must_use]
    pub fn micro_batches(&self) -> u64 {
        self.layout.micro_batches(&self.batch)
    }
}
