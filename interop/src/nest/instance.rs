//! A NEST instance and the plans over it.

use serde::Serialize;
use std::collections::BTreeMap;

/// Bytes of a "GB" in NEST: 2^30.
pub(super) const GIB: f64 = 1_073_741_824.0;

/// A layer at one tensor width.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NestLayer {
    /// Forward pass of one micro-batch, in NEST's seconds.
    pub forward: f64,
    /// Backward pass of one micro-batch, in NEST's seconds.
    pub backward: f64,
    /// Bytes of the weights on one device.
    pub parameter_bytes: f64,
    /// Bytes of the activations of one micro-batch on one device.
    pub activation_bytes: f64,
}

/// An edge between two layers, by their places in the chain.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NestEdge {
    /// The layer that sends.
    pub source: usize,
    /// The layer that receives.
    pub destination: usize,
    /// Bytes of one micro-batch.
    pub bytes: f64,
}

/// The chain of layers at one tensor width.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NestGraph {
    /// The layers in the order of the chain.
    pub layers: Vec<NestLayer>,
    /// The edges: one between each two neighbours, and those that skip layers.
    pub edges: Vec<NestEdge>,
}

/// One level of the network, from the innermost outwards.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NestLevel {
    /// Blocks of the level below in one block of this level; for the innermost level, devices in one block.
    pub branches: u64,
    /// Bytes per second.
    pub bandwidth: f64,
    /// Seconds.
    pub latency: f64,
}

/// The optimizer, which decides the bytes that are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NestOptimizer {
    /// Keeps nothing.
    Sgd,
    /// Keeps momentum, variance and a copy in fp32: six bytes per byte of weights.
    Adam,
}

/// A plan that the file fixes: a baseline of NEST's paper.
#[derive(Debug, Clone, PartialEq)]
pub struct NestFixedPlan {
    /// Pipeline stages.
    pub pipeline: u64,
    /// Copies of the pipeline.
    pub data_parallel: u64,
    /// Tensor width.
    pub tensor_width: u64,
    /// Number of layers that NEST cuts evenly. All layers from this place on join the last stage.
    pub layers: usize,
    /// Layers per stage, in place of an even cut.
    pub partition: Option<Vec<usize>>,
}

/// Answers that the file records.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NestRecord {
    /// Samples per second by method (`Nest` and the baselines); `None` where no plan fits.
    pub throughput: BTreeMap<String, Option<f64>>,
    /// Published throughput by method, relative to that of one of the methods.
    pub published: BTreeMap<String, Option<f64>>,
    /// Seconds that NEST itself took for the cell, as published.
    pub nest_wall_seconds: Option<f64>,
}

/// A placement problem; made by [`NestInstance::from_json_str`], which checks it.
#[derive(Debug, Clone, PartialEq)]
pub struct NestInstance {
    /// Devices.
    pub devices: u64,
    /// Samples of a micro-batch.
    pub micro_batch: u64,
    /// Expert-parallel degree.
    pub expert_parallel: u64,
    /// Context-parallel degree.
    pub context_parallel: u64,
    /// Samples of a batch.
    pub global_batch: u64,
    /// Bytes that a device holds.
    pub memory_bytes: f64,
    /// True if all stages but the last recompute their activations.
    pub recompute: bool,
    /// The optimizer.
    pub optimizer: NestOptimizer,
    /// The network, innermost level first.
    pub levels: Vec<NestLevel>,
    /// The model by tensor width.
    pub graphs: BTreeMap<u64, NestGraph>,
    /// The baselines by name.
    pub fixed_plans: BTreeMap<String, NestFixedPlan>,
    /// Answers that the file records.
    pub record: NestRecord,
}

impl NestInstance {
    /// Returns the number of devices of a stage at a tensor width.
    #[must_use]
    pub fn devices_of_stage(&self, tensor_width: u64) -> u64 {
        tensor_width * self.expert_parallel * self.context_parallel
    }

    /// Returns the micro-batches of a batch, counted in rounds: in a round, an expert-parallel group processes one
    /// micro-batch per member.
    #[must_use]
    pub fn micro_batches(&self) -> u64 {
        self.global_batch / (self.micro_batch * self.expert_parallel)
    }
}

/// A plan for the chain of one tensor width.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NestPlan {
    /// Pipeline stages.
    pub p: u64,
    /// Copies of the pipeline.
    pub d: u64,
    /// Tensor width.
    pub t: u64,
    /// Layers per stage in the order of the chain.
    pub stages: Vec<usize>,
    /// Devices that the plan uses.
    pub devices: u64,
}

impl NestPlan {
    /// Makes a plan from the numbers of layers per stage.
    #[must_use]
    pub fn new(instance: &NestInstance, tensor_width: u64, data_parallel: u64, stages: Vec<usize>) -> Self {
        let p = stages.len() as u64;
        let pipeline = p.saturating_mul(instance.devices_of_stage(tensor_width));
        Self { p, d: data_parallel, t: tensor_width, stages, devices: pipeline.saturating_mul(data_parallel) }
    }
}
