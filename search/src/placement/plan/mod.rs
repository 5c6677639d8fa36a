//! The exact placement of a chain of layers on a cluster: pipeline stages, data-parallel degree and a memory plan per stage.
//!
//! For one tensor-parallel width and one micro-batch size, [`place`] finds, over every pipeline depth p, every data-parallel degree
//! d, every split of the chain into p contiguous stages and every mix of recompute policies within each stage, the plan with
//! the least time per training step whose every stage fits the device's memory. Nothing here knows models or hardware: a
//! [`ChainProfile`] is seconds and bytes.
//!
//! # What is minimised
//! Under 1F1B with m = global batch / (d * micro-batch) micro-batches, stage k of p (counted from 0) keeps min(m, p - k) of them in
//! flight. With tau_k the time stage k spends on one micro-batch (forward, backward, recomputation, exposed transfers),
//!
//! ```text
//! step time = sum_k tau_k + (m - 1) * max_k tau_k + max_k (gradient all-reduce_k + optimiser_k)
//! memory_k  = constant + replicated_k + sharded_k / d + min(m, p - k) * stash_k + max over its layers (transient + workspace)
//! ```
//!
//! # How
//! Pairs (p, d) are taken in the order of an admissible lower bound until the bound reaches the best plan. For one pair, labels (sum,
//! maximum, tail) run over stages and cut positions; dominated labels and labels whose completion cannot beat the best plan are dropped.
//! A stage's policy mix is an integer knapsack over few distinct policies, solved by its relaxation and labels over
//! the policies whose reduced cost is below the rounding gap ([`Effort`] says how much that may cost). Equal layers make equal stages:
//! results are kept per content and depth.
//!
//! Of plans equal to 1e-12 relative the one with fewer devices, then fewer stages, is returned; between splits of the same pair
//! the first in a fixed order. Runs are deterministic.

mod answer;
mod assemble;
mod bound;
mod chain;
mod fixed;
mod mix;
mod profile;
mod rounding;
mod schedule;
mod search;
mod split;
mod stage;
#[cfg(test)]
mod tests;
mod verify;

pub use answer::{NoPlan, Placement, Plan, PolicyCount, SearchCounts, SegmentShare, Shortfall, StageMemory, StagePlan};
pub use fixed::{FixedPlacement, LayerSplit, evaluate_fixed};
pub use profile::{ChainProfile, ClusterLimits, Effort, GradientSync, PlacementError, Segment, SegmentPolicy};
pub use schedule::{in_flight, step_seconds};
pub use search::{lower_bound, place, place_with};
pub use verify::{PlanFault, verify_plan};
