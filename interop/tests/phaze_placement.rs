//! PHAZE's placement: every recorded instance, and the search against PHAZE's table written out literally.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use coplace_interop::phaze::{
    self, PhazeEdge, PhazeInstance, PhazeLayer, PhazeOptimizer, PhazeProblem, Recorded, WidthGraph,
};
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::path::PathBuf;

fn instances() -> Vec<PathBuf> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/reference/phaze/placement");
    let mut files: Vec<PathBuf> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|extension| extension == "json"));
    files.sort();
    assert_eq!(files.len(), 32);
    files
}

fn assert_same(found: Option<f64>, expected: Option<f64>, what: &str) {
    match (found, expected) {
        (Some(found), Some(expected)) => {
            let error = (found - expected).abs() / expected;
            assert!(error <= 1e-9, "{what}: {found} against {expected}, relative error {error:e}");
        }
        (found, expected) => assert_eq!(found, expected, "{what}"),
    }
}

/// The time of a solution whose plan passed the verifier.
fn verified(instance: &PhazeInstance, what: &str) -> Option<f64> {
    let solution = phaze::place_chain(instance);
    assert_eq!(solution.is_feasible(), solution.time_per_batch.is_some());
    assert_eq!(solution.is_feasible(), solution.infeasible_reason().is_none());
    if let Some(plan) = &solution.plan {
        let evaluation = phaze::evaluate_plan(instance, plan).unwrap_or_else(|faults| panic!("{what}: {faults:?}"));
        assert_same(solution.time_per_batch, Some(evaluation.time_per_batch), what);
    }
    solution.time_per_batch
}

#[test]
fn every_recorded_optimum_is_met_in_total_and_at_each_width() {
    for path in instances() {
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let instance = PhazeInstance::read_file(&path).unwrap();
        let recorded = Recorded::from_json_str(&std::fs::read_to_string(&path).unwrap()).unwrap().unwrap();
        assert_same(verified(&instance, &name), recorded.time_per_batch, &name);
        assert_eq!(instance.widths(), recorded.per_width.keys().copied().collect::<Vec<_>>(), "{name}");
        for (&width, &expected) in &recorded.per_width {
            let what = format!("{name} at width {width}");
            assert_same(verified(&instance.at_width(width).unwrap(), &what), expected, &what);
        }
    }
}

/// PHAZE's table over (suffix, devices, stages), with every stage's costs summed anew: slow and simple.
mod literal {
    use super::{PhazeOptimizer, PhazeProblem, WidthGraph};

    const NEVER: f64 = 1e30;

    struct StageCost {
        devices: usize,
        parameters: f64,
        plain: f64,
        recomputing: f64,
        deepest: usize,
    }

    /// Layers are numbered 0, 1, ... in chain order.
    fn stage(problem: &PhazeProblem, width: usize, graph: &WidthGraph, first: usize, end: usize) -> StageCost {
        let inside = |id: i64| id >= first as i64 && id < end as i64;
        let delay = |bytes: f64| bytes / problem.bandwidth;
        let mut forward = 0.0_f64;
        let mut stashed = 0.0;
        for at in first..end {
            for edge in graph.edges.iter().filter(|edge| edge.destination == at as i64 && !inside(edge.source)) {
                forward = forward.max(delay(edge.bytes));
                stashed += edge.bytes;
            }
            forward += graph.layers[at].forward;
        }
        let again: f64 = graph.layers[first..end].iter().map(|layer| layer.forward).sum();
        let backward = |start: f64| {
            let mut done = start;
            for at in (first..end).rev() {
                for edge in graph.edges.iter().filter(|edge| edge.source == at as i64 && !inside(edge.destination)) {
                    done = done.max(delay(edge.bytes));
                }
                done += graph.layers[at].backward;
            }
            done
        };
        let layers = &graph.layers[first..end];
        let parameters: f64 = layers.iter().map(|layer| layer.parameter_bytes).sum();
        let activations: f64 = layers.iter().map(|layer| layer.activation_bytes).sum();
        let fixed = if problem.optimizer == PhazeOptimizer::Adam { 3.0 } else { 2.0 } * parameters + activations;
        let stash = if problem.activation_recomputation { stashed } else { activations };
        let fits = |place: usize| fixed + (place - 1) as f64 * stash <= problem.max_memory_per_device;
        StageCost {
            devices: if layers.iter().any(|layer| layer.tensor_parallel) { width } else { 1 },
            parameters,
            plain: forward + backward(0.0),
            recomputing: forward + backward(again),
            deepest: (1..=graph.layers.len()).take_while(|&place| fits(place)).count(),
        }
    }

    fn at_width(problem: &PhazeProblem, width: usize, graph: &WidthGraph) -> f64 {
        let (count, devices) = (graph.layers.len(), problem.max_devices);
        let load = |cost: &StageCost, place: usize| {
            if problem.activation_recomputation && place > 1 { cost.recomputing } else { cost.plain }
        };
        // The table is indexed by [first][devices][stages].
        let mut table = vec![vec![vec![NEVER; count + 1]; devices + 1]; count + 1];
        for row in &mut table[count] {
            row[0] = 0.0;
        }
        for first in (1..count).rev() {
            for end in first + 1..=count {
                let cost = stage(problem, width, graph, first, end);
                for stages in 1..=cost.deepest {
                    for k in cost.devices..=devices {
                        let value = table[end][k - cost.devices][stages - 1].max(load(&cost, stages));
                        table[first][k][stages] = table[first][k][stages].min(value);
                    }
                }
            }
        }
        let mut best = NEVER;
        for degree in 1..=devices.min(problem.micro_batches) {
            let (share, per_copy) = (problem.micro_batches.div_ceil(degree), devices / degree);
            for (end, rest) in table.iter().enumerate().skip(1) {
                let cost = stage(problem, width, graph, 0, end);
                if cost.devices > per_copy {
                    continue;
                }
                for stages in 1..=cost.deepest {
                    let bottleneck = rest[per_copy - cost.devices][stages - 1].max(load(&cost, stages));
                    let d = degree as f64;
                    let synchronization = 4.0 * (d - 1.0) * cost.parameters / problem.bandwidth / d;
                    best = best.min(bottleneck * (share + stages - 1) as f64 + synchronization);
                }
            }
        }
        best
    }

    pub fn optimum(problem: &PhazeProblem) -> Option<f64> {
        let best = problem.graphs.iter().map(|(&width, graph)| at_width(problem, width, graph)).fold(NEVER, f64::min);
        (best < NEVER / 2.0).then_some(best)
    }
}

/// A random problem. Costs are small whole numbers, so that ties and exactly full memories are frequent and every sum
/// is exact.
fn problems() -> impl Strategy<Value = PhazeProblem> {
    let shape = (1..=9_usize, 1..=14_usize, 1..=20_usize, 0..4_u8, any::<[bool; 2]>(), 0..3_u8);
    shape.prop_flat_map(|(count, devices, micro_batches, edges, [recompute, adam], parallel)| {
        let layer = (0..12_u8, 0..12_u8, 1..9_u8, 1..9_u8, 0..4_u8);
        let layers = prop::collection::vec(prop::collection::vec(layer, count), 1..=3);
        let skips = prop::collection::vec((0..count, 0..count), 0..=usize::from(edges));
        let bytes = prop::collection::vec(0..12_u8, 64);
        let widths = prop::sample::subsequence(vec![1_usize, 2, 3, 4, 8], 3);
        (layers, skips, bytes, widths, 8..140_u16, 1..8_u8, Just(parallel)).prop_map(
            move |(layers, skips, bytes, widths, memory, bandwidth, parallel)| {
                let mut pairs: Vec<(usize, usize)> = (1..count).map(|at| (at - 1, at)).collect();
                pairs.extend(skips.into_iter().filter(|(from, to)| from + 1 < *to));
                pairs.sort_unstable();
                pairs.dedup();
                let mut graphs = BTreeMap::new();
                for (choice, (width, layers)) in widths.into_iter().zip(layers).enumerate() {
                    let split = |mark: u8| width > 1 && (parallel == 0 || (parallel == 1 && mark > 0));
                    let layers =
                        layers.into_iter().enumerate().map(|(id, (parameters, activations, f, b, mark))| PhazeLayer {
                            id: id as i64,
                            parameter_bytes: f64::from(parameters),
                            activation_bytes: f64::from(activations),
                            forward: f64::from(f),
                            backward: f64::from(b),
                            tensor_parallel: split(mark),
                        });
                    let edges = pairs.iter().enumerate().map(|(at, &(from, to))| PhazeEdge {
                        source: from as i64,
                        destination: to as i64,
                        bytes: f64::from(bytes[(at * 5 + choice) % 64]),
                    });
                    graphs.insert(width, WidthGraph { layers: layers.collect(), edges: edges.collect() });
                }
                PhazeProblem {
                    max_memory_per_device: f64::from(memory),
                    max_devices: devices,
                    bandwidth: f64::from(bandwidth) / 2.0,
                    micro_batches,
                    activation_recomputation: recompute,
                    optimizer: if adam { PhazeOptimizer::Adam } else { PhazeOptimizer::Sgd },
                    graphs,
                }
            },
        )
    })
}

/// Larger problems of the shape PHAZE writes: a cheap first layer with many parameters, equal or varied layers,
/// fractional costs, both ends without tensor parallelism, and memory from plenty to too little.
fn transformers() -> impl Strategy<Value = PhazeProblem> {
    let shape = (10..=26_usize, 0..5_usize, 0..6_usize, any::<[bool; 5]>(), 0..5_usize);
    let scales = (-3.0..-0.5_f64, 5.0..10.0_f64, 8.0..10.0_f64, 8.0..10.0_f64, -1.6..0.1_f64, 8.0..11.5_f64);
    let jitters = prop::collection::vec(0.4..1.6_f64, 200);
    (shape, scales, jitters).prop_map(|((count, devices, batch, flags, skips), scales, jitters)| {
        let [recompute, adam, uniform, ends, wide_only] = flags;
        let (time, transfer, parameters, activations, memory, bandwidth) = scales;
        let jitter = |at: usize| if uniform { 1.0 } else { jitters[at % 200] };
        let cost = |at: usize, kind: usize| {
            let first = if at == 0 { [3.0, 1.0, 0.05][kind] } else { 1.0 };
            first * 10.0_f64.powf([parameters, activations, time][kind]) * jitter(at * 3 + kind)
        };
        let mut graphs = BTreeMap::new();
        for width in [1_usize, 2, 4].into_iter().filter(|&width| width > 1 || !wide_only) {
            let layers = (0..count).map(|at| {
                let split = width > 1 && !(ends && (at == 0 || at + 1 == count));
                let share = if split { width as f64 } else { 1.0 };
                PhazeLayer {
                    id: at as i64,
                    parameter_bytes: cost(at, 0) / share,
                    activation_bytes: cost(at, 1) / share,
                    forward: cost(at, 2) / share * 1.07,
                    backward: cost(at, 2) / share * 2.0,
                    tensor_parallel: split,
                }
            });
            let link = |from: usize, to: usize| PhazeEdge {
                source: from as i64,
                destination: to as i64,
                bytes: 10.0_f64.powf(transfer) * jitter(from * 7 + to),
            };
            let mut edges: Vec<PhazeEdge> = (1..count).map(|at| link(at - 1, at)).collect();
            edges.extend((0..skips).map(|at| link(at, (at * 5 + 4) % (count - at - 2) + at + 2)));
            graphs.insert(width, WidthGraph { layers: layers.collect(), edges });
        }
        let whole: f64 = (0..count).map(|at| if adam { 3.0 } else { 2.0 } * cost(at, 0) + cost(at, 1)).sum();
        PhazeProblem {
            max_memory_per_device: whole * 10.0_f64.powf(memory),
            max_devices: [4, 16, 32, 48, 90][devices],
            bandwidth: 10.0_f64.powf(bandwidth),
            micro_batches: [1, 3, 31, 64, 100, 512][batch],
            activation_recomputation: recompute,
            optimizer: if adam { PhazeOptimizer::Adam } else { PhazeOptimizer::Sgd },
            graphs,
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn larger_problems_equal_the_literal_table_too(problem in transformers()) {
        let expected = literal::optimum(&problem);
        let instance = PhazeInstance::new(problem).unwrap();
        assert_same(verified(&instance, "transformer"), expected, "transformer");
    }
}

/// A chain with the best split (0..2), (2..3), (3..4), (4..6). Its first stage ends behind the first end that memory
/// allows, and probes below its bottleneck get stuck before that first end.
#[test]
fn the_best_first_stage_may_end_behind_where_probes_get_stuck() {
    let costs = [[0, 0, 4, 1], [1, 0, 3, 8], [6, 0, 5, 1], [9, 0, 3, 3], [5, 7, 1, 5], [11, 8, 3, 3]];
    let layers = costs.into_iter().enumerate().map(|(at, costs)| {
        let [parameter_bytes, activation_bytes, forward, backward] = costs.map(f64::from);
        PhazeLayer { id: at as i64, parameter_bytes, activation_bytes, forward, backward, tensor_parallel: true }
    });
    let edge = |(at, bytes)| PhazeEdge { source: at, destination: at + 1, bytes };
    let edges = (0..).zip([7.0, 5.0, 2.0, 0.0, 0.0]).map(edge).collect();
    let problem = PhazeProblem {
        max_memory_per_device: 63.0,
        max_devices: 10,
        bandwidth: 0.5,
        micro_batches: 11,
        activation_recomputation: true,
        optimizer: PhazeOptimizer::Adam,
        graphs: BTreeMap::from([(2, WidthGraph { layers: layers.collect(), edges })]),
    };
    assert_eq!(literal::optimum(&problem), Some(364.0));
    assert_same(verified(&PhazeInstance::new(problem).unwrap(), "stuck"), Some(364.0), "stuck");
}

/// The shortfall in bytes of an infeasible answer.
fn lacking(why: &str) -> Option<f64> {
    let (_, rest) = why.split_once("lacks ")?;
    rest.split_once(' ')?.0.parse().ok()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100_000, ..ProptestConfig::default() })]

    #[test]
    fn the_search_equals_the_literal_table(problem in problems()) {
        let expected = literal::optimum(&problem);
        let instance = PhazeInstance::new(problem).unwrap();
        assert_same(verified(&instance, "random problem"), expected, "random problem");
    }

}

proptest! {
    #![proptest_config(ProptestConfig { cases: 6000, ..ProptestConfig::default() })]

    #[test]
    fn an_infeasible_answer_says_exactly_what_is_lacking(mut problem in problems()) {
        problem.max_memory_per_device = (problem.max_memory_per_device / 5.0).ceil();
        let solution = phaze::place_chain(&PhazeInstance::new(problem.clone()).unwrap());
        prop_assume!(!solution.is_feasible());
        let why = solution.infeasible_reason().unwrap();
        match lacking(why) {
            Some(bytes) => {
                // All costs are whole numbers, so the shortfall is one too. No plan fits if one byte of the shortfall
                // is missing.
                prop_assert!(bytes >= 1.0, "{}", why);
                problem.max_memory_per_device += bytes - 1.0;
                prop_assert_eq!(literal::optimum(&problem), None);
                problem.max_memory_per_device += 1.0;
                prop_assert!(literal::optimum(&problem).is_some(), "{}", why);
            }
            None => {
                prop_assert!(why.contains("no tensor width can be used"), "{}", why);
                problem.max_memory_per_device = 1e12;
                prop_assert_eq!(literal::optimum(&problem), None);
            }
        }
    }
}
