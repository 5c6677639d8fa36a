//! The probes against the table, on chains too long for the literal search of the integration tests.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::degrees::{BestPlacement, DataParallelDegrees};
use super::instance::{PhazeEdge, PhazeInstance, PhazeLayer, PhazeOptimizer, PhazeProblem, WidthGraph};
use super::search::find_optimum;
use super::sweep::{self, LineWidth};
use super::width::WidthSearch;
use proptest::prelude::*;

/// Parameters of a random problem.
#[derive(Debug, Clone)]
struct Shape {
    layers: usize,
    devices: usize,
    micro_batches: usize,
    recompute: bool,
    /// Layers at the front and at the back that no width splits.
    ends: (usize, usize),
    /// Variation of layers, transfers and skip edges; 0 is none.
    spread: [f64; 3],
    /// Transfer relative to the work of a layer, and memory relative to the need of the whole chain.
    scales: [f64; 2],
    random: Vec<f64>,
}

fn shapes() -> impl Strategy<Value = Shape> {
    let sizes = (12..=60_usize, 8..=160_usize, prop::sample::select(vec![1_usize, 7, 31, 64, 200]), any::<bool>());
    let spread = || prop::sample::select(vec![0.0, 0.3, 0.9]);
    let scales = (-2.0..0.8_f64, -1.7..0.0_f64);
    (sizes, (0..4_usize, 0..4_usize), [spread(), spread(), spread()], scales, prop::collection::vec(-1.0..1.0_f64, 331))
        .prop_map(|((layers, devices, micro_batches, recompute), ends, spread, (transfer, memory), random)| {
            let scales = [10.0_f64.powf(transfer), 10.0_f64.powf(memory)];
            Shape { layers, devices, micro_batches, recompute, ends, spread, scales, random }
        })
}

fn instance(shape: &Shape) -> PhazeInstance {
    let Shape { layers: count, ends, spread, scales, .. } = *shape;
    let vary = |at: usize, spread: f64| 1.0 + spread * shape.random[at % shape.random.len()];
    let graph =
        |width: usize| {
            let layers = (0..count).map(|at| {
                let split = width > 1 && at >= ends.0 && at + ends.1 < count;
                let share = if split { width as f64 } else { 1.0 };
                PhazeLayer {
                    id: at as i64,
                    parameter_bytes: 30.0 * vary(at * 5, spread[0]) / share,
                    activation_bytes: 9.0 * vary(at * 5 + 1, spread[0]) / share,
                    forward: vary(at * 5 + 2, spread[0]) / share,
                    backward: 2.0 * vary(at * 5 + 3, spread[0]) / share,
                    tensor_parallel: split,
                }
            });
            let edge =
                |from: usize, to: usize, bytes: f64| PhazeEdge { source: from as i64, destination: to as i64, bytes };
            let mut edges: Vec<PhazeEdge> =
                (1..count).map(|at| edge(at - 1, at, 3.0 * scales[0] * vary(at * 11 + 4, spread[1]))).collect();
            let skips = if spread[2] > 0.0 { 4 } else { 0 };
            edges.extend((0..skips).map(|at| {
                edge(at, (at * 7 + 5) % (count - at - 2) + at + 2, 2.0 * scales[0] * vary(at * 13, spread[2]))
            }));
            (width, WidthGraph { layers: layers.collect(), edges })
        };
    PhazeInstance::new(PhazeProblem {
        max_memory_per_device: (count as f64 * 69.0 * scales[1]).max(140.0),
        max_devices: shape.devices,
        bandwidth: 1.0,
        micro_batches: shape.micro_batches,
        activation_recomputation: shape.recompute,
        optimizer: PhazeOptimizer::Sgd,
        graphs: [1, 2, 4].into_iter().map(graph).collect(),
    })
    .unwrap()
}

fn nothing_yet() -> BestPlacement {
    BestPlacement { time: f64::INFINITY, chain: 0, degree: 0, ranges: Vec::new() }
}

/// The least time by the table alone.
fn by_table(instance: &PhazeInstance) -> f64 {
    let degrees = DataParallelDegrees::new(instance);
    let mut best = nothing_yet();
    for (index, chain) in instance.chains.iter().enumerate() {
        let mut table = WidthSearch::new(instance, chain, index, &degrees);
        table.take_single_stage(&mut best);
        table.search_width(&mut best);
    }
    best.time
}

/// True if the probes alone decide every width.
fn decided(instance: &PhazeInstance) -> bool {
    let degrees = DataParallelDegrees::new(instance);
    let lines =
        instance.chains.iter().enumerate().map(|(index, chain)| LineWidth::new(instance, chain, index).unwrap());
    let mut lines: Vec<LineWidth<'_>> = lines.collect();
    sweep::sweep_widths(&mut lines, &degrees, instance.micro_batches, &mut nothing_yet());
    lines.iter().all(|line| line.undecided_width().is_none())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn probes_equal_the_table(shape in shapes()) {
        let instance = instance(&shape);
        let table = by_table(&instance);
        let time = find_optimum(&instance).map_or(f64::INFINITY, |(time, _)| time);
        prop_assert!(time == table || (time - table).abs() <= 1e-10 * table, "{} by probes, {} by the table", time, table);
        if shape.spread[1..] == [0.0; 2] {
            prop_assert!(decided(&instance), "equal transfers and no skip edges: the probes know all costs");
        }
    }
}
