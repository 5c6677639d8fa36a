//! Serving of a model by a deployment: the times of decoding and prefilling passes under an engine, the memory of
//! weights and cache, the steady state of continuous batching in closed form, and the plan that serves most.
//!
//! [`PassTimes`] times single passes of a plan. [`steady`] turns them into times to the first token and between tokens
//! under a load. [`best`] searches plans and loads within a service level. [`apart`] does the same for separate pools
//! of prompts and decoding.

pub mod apart;
pub mod beside;
pub mod best;
mod bounds;
pub mod context;
pub mod costs;
mod deployment;
pub mod engine;
pub mod in_flight;
mod kernels;
pub mod lengths;
mod loaded;
pub mod memory;
pub mod method;
pub mod nearest;
mod pass_time;
pub mod passes;
pub mod plan;
mod prompt_groups;
mod question;
mod sequence_numbers;
pub mod steady;
pub mod technique;

pub use engine::{EngineError, ServingEngine};
pub use memory::{ServingMemory, memory_of_plan};
pub use method::ServingMethod;
pub use pass_time::PassTime;
pub use passes::PassTimes;
pub use plan::{ServingFormats, ServingPlan};

use sim::files::{FaultParts, StructuredError};
use thiserror::Error;
use workloads::{TechniqueError, WorkloadError};

/// The reason why a deployment has no times.
#[derive(Debug, Clone, PartialEq, Error)]
pub enum ServingError {
    /// The model cannot be lowered for the plan.
    #[error(transparent)]
    Workload(Box<WorkloadError>),
    /// A technique cannot be used.
    #[error(transparent)]
    Technique(Box<TechniqueError>),
    /// The chip or the fabric cannot run the plan.
    #[error("{0}")]
    Hardware(String),
    /// A value of the plan breaks a rule.
    #[error("{key} = {value}: {limit}; {cure}")]
    Plan {
        /// The decision.
        key: &'static str,
        /// Its value.
        value: String,
        /// The rule.
        limit: String,
        /// The cure.
        cure: String,
    },
}

impl StructuredError for ServingError {
    fn fault_parts(&self) -> FaultParts {
        match self {
            Self::Workload(error) => error.fault_parts(),
            Self::Technique(error) => error.fault_parts(),
            Self::Hardware(why) => FaultParts { limit: Some(why.clone()), ..FaultParts::default() },
            Self::Plan { key, value, limit, cure } => FaultParts::of_key(*key, value, limit, cure),
        }
    }
}

impl From<WorkloadError> for ServingError {
    fn from(error: WorkloadError) -> Self {
        Self::Workload(Box::new(error))
    }
}
