//! Time of a layer's integer program, and of the mixes of 64 stages.
#![allow(clippy::print_stdout, clippy::unwrap_used)]

use coplace_search::memory::{
    BoundedChoice, CopyLinks, CopyRate, LayerFront, LayerOperator, LayerTensors, MixPoint, MixQuestion, OperatorIndex,
    RecomputeSpace, SavedTensor, TensorIndex, TensorSource, fastest_by_ilp,
};
use sim::units::{Bytes, Seconds};
use std::time::Instant;
use workloads::training::Attention;
use workloads::{Lowering, Model, SegmentKind, TrainingGraph};

/// Repeats a model's layer with unfused attention, up to a number of operators. The operators' times are arbitrary.
fn layers(model: &str, operators: usize) -> LayerTensors {
    let model = Model::load(model).unwrap();
    let graph =
        TrainingGraph::new(&model, &Lowering { attention: Attention::Unfused, ..Lowering::new(&model) }).unwrap();
    let one = LayerTensors::from_segment(graph.segment(SegmentKind::Layer).unwrap());
    let mut all = LayerTensors::default();
    while all.operators.len() + one.operators.len() <= operators && all.tensors.len() + one.tensors.len() <= 128 {
        let (tensors, ops) = (all.tensors.len(), all.operators.len());
        all.tensors.extend(one.tensors.iter().map(|tensor| SavedTensor {
            source: match tensor.source {
                TensorSource::Operator(o) => TensorSource::Operator(OperatorIndex(o.0 + ops)),
                TensorSource::LayerInput => TensorSource::LayerInput,
            },
            ..tensor.clone()
        }));
        let moved = |list: &[TensorIndex]| list.iter().map(|t| TensorIndex(t.0 + tensors)).collect::<Vec<_>>();
        all.operators.extend(one.operators.iter().enumerate().map(|(i, op)| LayerOperator {
            forward: Seconds(1e-4 * (1.0 + (i * 7 % 11) as f64)),
            inputs: moved(&op.inputs),
            outputs: moved(&op.outputs),
            ..op.clone()
        }));
    }
    all
}

fn main() {
    for (model, operators) in [("llama3-70b", 30), ("llama3-70b", 90), ("gpt3-175b", 30), ("gpt3-175b", 90)] {
        let layer = layers(model, operators);
        let busy: f64 = layer.operators.iter().map(|o| o.forward.0).sum();
        let all: u64 = layer.policy_of_rerun(Default::default()).stash.0;
        let rate = |share: f64| Some(CopyRate { latency: 5e-6, per_byte: share * busy / all as f64 });
        let link = CopyLinks { host: rate(2.0), storage: rate(6.0), hidden: 1.0, forward: busy, backward: 2.0 * busy };
        let mut gap = 0.0_f64;
        let mut slowest = 0.0_f64;
        for part in [8, 5, 2, 1] {
            let start = Instant::now();
            let found = fastest_by_ilp(&layer, &link, Bytes(all / 10 * part));
            slowest = slowest.max(start.elapsed().as_secs_f64());
            let BoundedChoice { choice, bound } = match found {
                Ok(found) => found.unwrap(),
                Err(why) => {
                    println!("{model}, {} operators: {part}0 % of the bytes: {why}", layer.operators.len());
                    continue;
                }
            };
            gap = gap.max((choice.added.0 - bound.0) / (3.0 * busy));
            println!(
                "{model}, {} operators, {} tensors: {}0 % of the bytes: {:.2} % slower",
                layer.operators.len(),
                layer.tensors.len(),
                part,
                100.0 * choice.added.0 / (3.0 * busy)
            );
        }
        println!(
            "{model}, {} operators: one programme takes {slowest:.3} s at most, within {:.2} % of a layer's passes of its bound",
            layer.operators.len(),
            100.0 * gap
        );
        if operators <= 30 {
            let start = Instant::now();
            let space = RecomputeSpace::new(layer.clone()).unwrap();
            let times: Vec<Seconds> = layer.operators.iter().map(|o| o.forward).collect();
            let front = LayerFront::new(&space, &times, Some(link)).unwrap();
            let gap = [8, 5, 2, 1].map(|part| {
                let budget = Bytes(all / 10 * part);
                let bound = front.lower_bound_within(budget).unwrap().0;
                (front.fastest_within(budget).unwrap().added.0 - bound) / (3.0 * busy)
            });
            println!(
                "{model}: a front of {} choices takes {:.4} s, within {:.2} % of a layer's passes of its bound",
                front.choices.len(),
                start.elapsed().as_secs_f64(),
                100.0 * gap.into_iter().fold(0.0, f64::max)
            );
            mixes(model, &front, 3.0 * busy);
        }
    }
}

/// Times the mixes of 64 stages of 40 layers. Each stage has its own number of micro-batches in flight.
fn mixes(model: &str, front: &LayerFront, busy: f64) {
    let points: Vec<MixPoint> = front
        .choices
        .iter()
        .map(|choice| MixPoint {
            kept: choice.stash.0,
            host: choice.host.0,
            storage: choice.storage.0,
            working: 0,
            time: busy + choice.added.0,
        })
        .collect();
    let most = points.iter().map(|point| point.kept).max().unwrap();
    for (name, host, storage) in
        [("ample", u64::MAX, u64::MAX), ("scarce", most * 200, most * 100), ("without storage", most * 200, 0)]
    {
        let start = Instant::now();
        let mut gap = 0.0_f64;
        for stage in 0..64_u64 {
            let question = MixQuestion {
                points: &points,
                layers: 40,
                depth: (64 - stage) as f64,
                room: most * 600,
                kept: None,
                host,
                storage,
            };
            if let Some(mix) = question.find_best_mix() {
                gap = gap.max((mix.time - mix.bound) / mix.time);
            }
        }
        println!(
            "{model}: mixes of 64 stages, host {name}: {:.3} s, within {:.3} %",
            start.elapsed().as_secs_f64(),
            100.0 * gap
        );
    }
}
