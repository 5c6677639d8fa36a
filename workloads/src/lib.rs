//! coplace-workloads describes what is trained: model configurations, their operators, the training graph with both
//! gradients of every product, its split over tensor-parallel devices, and the bytes that training keeps. It lowers
//! operators to [`sim::kernel`]s, as a compiler lowers to an intermediate representation. It does not know their cost.
//!
//! The usual path: [`model::Model::load`] reads a configuration, [`training::Lowering`] holds the settings of the run,
//! and [`training::TrainingGraph::new`] makes the pipeline segments. Each segment gives its kernel graphs and bytes.

mod autocast;
mod compressed_attention;
mod counts;
mod document_lengths;
pub mod documents;
pub mod error;
pub mod footprint;
mod further_tokens;
pub mod graph;
pub mod import;
pub mod layer_list;
mod layer_names;
mod layers_of_model;
pub mod layout;
mod lifetimes;
pub mod limits;
pub mod linear_attention;
mod lower;
mod lowering;
pub mod memory;
mod mixers;
pub mod model;
pub(crate) mod op;
pub mod parallel;
pub mod recompute_policy;
pub mod serving;
mod serving_pass;
mod shared_block;
pub mod stage_policies;
mod technique;
pub mod training;
pub mod variations;
mod working_set;

pub use document_lengths::DocumentLength;
pub use error::WorkloadError;
pub use graph::{OpId, RecomputeSet, TensorId};
pub use layer_list::{LayerKind, LayerList};
pub use layers_of_model::LeadingDense;
pub use layout::{Batch, ChunkSplit, InnerChunks, LayerEnds, Layout, LayoutError, RankOrder, ZeroStage};
pub use lifetimes::Lifetime;
pub use memory::TechniqueError;
pub use model::Model;
pub use recompute_policy::{
    ActivationPolicy, NamedPolicy, NamedTensor, ReplayExtent, TensorPlaces, TokenShare, Treatment,
};
pub use stage_policies::{LayerMix, LayerRun, StagePolicies};
pub use technique::{Allowance, Technique, Techniques};
pub use training::{Lowering, Segment, SegmentKind, TrainingGraph};
pub use working_set::Release;
