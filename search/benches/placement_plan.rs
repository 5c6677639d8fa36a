//! Time of one exact placement, and of one layer's recompute front, over random devices.
//!
//! `cargo bench -p coplace-search --bench placement_plan`. For each model: a chain of embedding, equal layers and head with costs of a
//! device drawn at random (speed, bandwidth, memory), 1024 devices, a global batch of 4096; mean and worst microseconds, and how
//! the search ended.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

use coplace_search::memory::{
    LayerOperator, LayerTensors, OperatorIndex, RecomputeSpace, SavedTensor, TensorIndex, TensorSource,
};
use coplace_search::placement::plan::{
    ChainProfile, ClusterLimits, Effort, NoPlan, Segment, SegmentPolicy, lower_bound, place_with, verify_plan,
};
use sim::status::SolveStatus;
use sim::units::{Bytes, Seconds};
use std::time::Instant;

struct Model {
    name: &'static str,
    layers: usize,
    hidden: u64,
    sequence: u64,
    vocabulary: u64,
    tensor_width: u64,
    micro_batch: u64,
}

const MODELS: [Model; 6] = [
    Model {
        name: "gpt3-175b t=4",
        layers: 96,
        hidden: 12_288,
        sequence: 2048,
        vocabulary: 50_304,
        tensor_width: 4,
        micro_batch: 1,
    },
    Model {
        name: "gpt3-175b t=8",
        layers: 96,
        hidden: 12_288,
        sequence: 2048,
        vocabulary: 50_304,
        tensor_width: 8,
        micro_batch: 1,
    },
    Model { name: "8.3b t=2", layers: 72, hidden: 3072, sequence: 1024, vocabulary: 50_304, tensor_width: 2, micro_batch: 4 },
    Model {
        name: "llama2-7b t=1",
        layers: 32,
        hidden: 4096,
        sequence: 4096,
        vocabulary: 32_000,
        tensor_width: 1,
        micro_batch: 1,
    },
    Model {
        name: "llama2-7b t=1 mb=8",
        layers: 32,
        hidden: 4096,
        sequence: 4096,
        vocabulary: 32_000,
        tensor_width: 1,
        micro_batch: 8,
    },
    Model { name: "gpt2-xl t=1", layers: 48, hidden: 1600, sequence: 1024, vocabulary: 50_304, tensor_width: 1, micro_batch: 8 },
];

/// SplitMix64: the draws are the same in every run.
struct Draw(u64);

impl Draw {
    fn between(&mut self, low: f64, high: f64) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        low + (high - low) * ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}

/// A transformer layer with fused attention: operators as (name, FLOPs, bytes, inputs, outputs as (bytes, needed)).
fn layer(m: &Model) -> (LayerTensors, Vec<(f64, f64)>) {
    let tokens = m.sequence * m.micro_batch;
    let (full, part) = (2 * tokens * m.hidden, 2 * tokens * m.hidden / m.tensor_width);
    let gemm = |wide: u64| 2.0 * (tokens * m.hidden) as f64 * (wide * m.hidden) as f64 / m.tensor_width as f64;
    let attention = 4.0 * (tokens * m.sequence) as f64 * m.hidden as f64 / m.tensor_width as f64;
    let rows = 4 * tokens;
    // Tensor 0 is the layer's input.
    type Row<'a> = (&'a str, f64, u64, &'a [usize], &'a [(u64, bool)]);
    let table: [Row<'_>; 15] = [
        ("norm1", 0.0, 2 * full, &[0], &[(full, true), (rows, true)]),
        ("query", gemm(1), full, &[1], &[(part, true)]),
        ("key", gemm(1), full, &[1], &[(part, true)]),
        ("value", gemm(1), full, &[1], &[(part, true)]),
        ("flash", attention, 4 * part, &[3, 4, 5], &[(part, true), (64 * tokens, true)]),
        ("proj", gemm(1), full, &[6], &[(full, false)]),
        ("all-reduce1", 0.0, 8 * full, &[8], &[(full, false)]),
        ("add1", 0.0, 3 * full, &[0, 9], &[(full, true)]),
        ("norm2", 0.0, 2 * full, &[10], &[(full, true), (rows, true)]),
        ("gate", gemm(4), full, &[11], &[(4 * part, true)]),
        ("up", gemm(4), full, &[11], &[(4 * part, true)]),
        ("act", 0.0, 12 * part, &[13, 14], &[(4 * part, true)]),
        ("down", gemm(4), full, &[15], &[(full, false)]),
        ("all-reduce2", 0.0, 8 * full, &[16], &[(full, false)]),
        ("add2", 0.0, 3 * full, &[10, 17], &[(full, false)]),
    ];
    let tensor = |name: &str, bytes, source, needed| SavedTensor {
        name: name.into(),
        bytes: Bytes(bytes),
        source,
        needed_by_backward: needed,
    };
    let mut layer = LayerTensors { tensors: vec![tensor("x", full, TensorSource::LayerInput, true)], operators: vec![] };
    let mut work = Vec::new();
    for (name, flops, bytes, inputs, outputs) in table {
        let here = TensorSource::Operator(OperatorIndex(layer.operators.len()));
        let from = layer.tensors.len();
        layer.tensors.extend(outputs.iter().map(|&(bytes, needed)| tensor(name, bytes, here, needed)));
        layer.operators.push(LayerOperator {
            name: name.into(),
            forward: Seconds(0.0),
            inputs: inputs.iter().map(|&t| TensorIndex(t)).collect(),
            outputs: (from..layer.tensors.len()).map(TensorIndex).collect(),
            recomputable: true,
        });
        work.push((flops, bytes as f64));
    }
    (layer, work)
}

fn chain(m: &Model, space: &RecomputeSpace, work: &[(f64, f64)], draw: &mut Draw) -> (ChainProfile, f64) {
    let (speed, bandwidth) = (draw.between(40e12, 400e12), draw.between(0.4e12, 3e12));
    let times: Vec<Seconds> = work.iter().map(|(flops, bytes)| Seconds((flops / speed).max(bytes / bandwidth) + 3e-6)).collect();
    let start = Instant::now();
    let front = space.front(&times).unwrap();
    let front_seconds = start.elapsed().as_secs_f64();
    let forward: Seconds = times.iter().copied().sum();
    let tokens = m.sequence * m.micro_batch;
    let full = Bytes(2 * tokens * m.hidden);
    let per_parameter = [4, 8, 16][draw.between(0.0, 2.999) as usize];
    let segment = |name: &str, repeat, forward: f64, parameters: u64, stash: u64, transient: u64| Segment {
        name: name.into(),
        repeat,
        forward: Seconds(forward),
        backward: Seconds(2.0 * forward),
        policies: vec![SegmentPolicy { id: 0, stash: Bytes(stash), extra: Seconds(0.0), workspace: Bytes(0) }],
        replicated: Bytes(per_parameter * parameters),
        sharded: Bytes(0),
        gradient: Bytes(2 * parameters),
        optimizer: Seconds((per_parameter * 2 * parameters) as f64 / bandwidth),
        sharded_optimizer: Seconds(0.0),
        transient: Bytes(transient),
        boundary: Seconds(full.as_f64() / 25e9),
    };
    let vocabulary = m.vocabulary * m.hidden / m.tensor_width;
    let head = 2.0 * (tokens * m.hidden) as f64 * m.vocabulary as f64 / m.tensor_width as f64 / speed;
    let mut body = segment("layer", m.layers, forward.0, 16 * m.hidden * m.hidden / m.tensor_width, 0, 6 * full.0);
    let policy = |(id, p): (usize, &coplace_search::memory::RecomputePolicy)| SegmentPolicy {
        id,
        stash: p.stash,
        extra: p.extra,
        workspace: p.workspace,
    };
    body.policies = front.iter().enumerate().map(policy).collect();
    let logits = 6 * tokens * m.vocabulary / m.tensor_width;
    let segments = vec![
        segment("embedding", 1, full.as_f64() * 2.0 / bandwidth, vocabulary, 0, full.0),
        body,
        segment("head", 1, head, vocabulary, full.0, logits),
    ];
    let hbm = Bytes::from_gib(draw.between(16.0, 96.0));
    (ChainProfile { segments, hbm, constant: Bytes::from_gib(0.5) }, front_seconds)
}

fn sync(bytes: Bytes, ranks: u64, _stride: u64) -> Seconds {
    Seconds(2.0 * bytes.as_f64() / 25e9 * (ranks - 1) as f64 / ranks as f64 + 5e-6 * ranks as f64)
}

/// What the random devices of a model came to, summed over them.
#[derive(Default)]
struct Sums {
    /// Microseconds of every placement.
    times: Vec<f64>,
    /// Microseconds of all lower bounds, and of all recompute fronts.
    bounds: f64,
    fronts: f64,
    infeasible: u32,
    gaps: usize,
    labels: u64,
    solved: u64,
    looseness: f64,
    stages: usize,
    policies: usize,
}

impl Sums {
    /// Places the model on one more device.
    fn add(&mut self, model: &Model, space: &RecomputeSpace, work: &[(f64, f64)], draw: &mut Draw, effort: Effort) {
        let limits =
            ClusterLimits { devices: 1024, global_batch: 4096, tensor_width: model.tensor_width, micro_batch: model.micro_batch };
        let (profile, front_seconds) = chain(model, space, work, draw);
        self.fronts += front_seconds * 1e6;
        self.policies += profile.segments[1].policies.len();
        let start = Instant::now();
        let placement = place_with(&profile, limits, &sync, effort).unwrap();
        self.times.push(start.elapsed().as_secs_f64() * 1e6);
        let start = Instant::now();
        let bound = lower_bound(&profile, limits, &sync).unwrap();
        self.bounds += start.elapsed().as_secs_f64() * 1e6;
        self.labels += placement.counts.labels;
        self.solved += placement.counts.solved;
        match &placement.outcome {
            Ok(plan) => {
                assert_eq!(verify_plan(&profile, limits, &sync, plan), vec![]);
                self.looseness += 1.0 - bound.0 / plan.step.0;
                self.stages += plan.pipeline_stages;
                self.gaps += usize::from(placement.status != SolveStatus::Optimal);
            }
            Err(NoPlan::OverCapacity(_)) => self.infeasible += 1,
            Err(other) => panic!("{other}"),
        }
    }
}

fn main() {
    // `-- proof` proves every mix.
    let effort = if std::env::args().any(|argument| argument == "proof") { Effort::Proof } else { Effort::Sweep };
    for model in &MODELS {
        let (layer, work) = layer(model);
        let start = Instant::now();
        let space = RecomputeSpace::new(layer).unwrap();
        let prepared = start.elapsed();
        let mut draw = Draw(1);
        let mut sums = Sums::default();
        for _ in 0..500 {
            sums.add(model, &space, &work, &mut draw, effort);
        }
        sums.times.sort_by(f64::total_cmp);
        let Sums { times, infeasible, gaps, .. } = &sums;
        let n = times.len() as f64;
        let found = n - f64::from(*infeasible);
        println!(
            "{:20} place: mean {:7.1} us, median {:7.1}, 99 % {:7.1}, worst {:8.1}; pairs solved {:.1}, labels {:.0}, infeasible \
             {infeasible}, unproven {gaps}, stages {:.1}",
            model.name,
            times.iter().sum::<f64>() / n,
            times[times.len() / 2],
            times[times.len() * 99 / 100],
            times[times.len() - 1],
            sums.solved as f64 / n,
            sums.labels as f64 / n,
            sums.stages as f64 / found,
        );
        println!(
            "{:20} lower bound: {:.1} us, {:.1} % below; front: {:.1} policies in {:.1} us of {:?} candidates prepared in {:.1?}",
            "",
            sums.bounds / n,
            sums.looseness / found * 100.0,
            sums.policies as f64 / n,
            sums.fronts / n,
            space.candidate_count(),
            prepared,
        );
    }
}
