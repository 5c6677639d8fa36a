//! coplace-workloads says what is trained: model configurations, their operators, the training graph with both
//! gradients of every product, its split over tensor-parallel devices, and the bytes that training keeps. It lowers operators to
//! [`sim::kernel`]s as a compiler lowers to an intermediate representation, and knows nothing of what they cost.
//!
//! The way through: [`model::Model::load`] reads a configuration, [`training::Lowering`] says how it is trained,
//! [`training::TrainingGraph::new`] makes the pipeline segments, and each segment gives its kernel graphs and bytes.

mod counts;
pub mod error;
pub mod footprint;
pub mod graph;
pub mod import;
mod layer_ends;
pub mod layer_list;
mod layers_of_model;
pub mod layout;
mod layout_rules;
mod leading_layers;
mod lifetimes;
pub mod limits;
mod lower;
pub mod memory;
pub mod model;
mod op;
pub mod parallel;
pub mod recompute_policy;
pub mod stage_policies;
mod tensor_names;
pub mod training;
mod transformer;
pub mod variations;
mod working_set;

pub use error::WorkloadError;
pub use graph::{OpId, RecomputeSet, TensorId};
pub use layer_ends::{Between, LayerEnds};
pub use layer_list::{LayerKind, LayerList};
pub use layers_of_model::LeadingDense;
pub use layout::{Batch, ChunkSplit, Layout, RankOrder, ZeroStage};
pub use layout_rules::LayoutError;
pub use lifetimes::Lifetime;
pub use memory::{Technique, TechniqueError, Techniques};
pub use model::Model;
pub use recompute_policy::{ActivationPolicy, NamedPolicy, NamedTensor, Replay, Treatment};
pub use stage_policies::{LayerMix, LayerRun, StagePolicies};
pub use training::{Lowering, Segment, SegmentKind, TrainingGraph};
