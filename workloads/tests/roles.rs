//! Laws of kernel roles: pass, gradient, axis, operator.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, missing_docs)]

use coplace_workloads as workloads;
use petgraph::Direction::Outgoing;
use sim::kernel::{GradientOf, Kernel, KernelGraph, ParallelAxis, Pass};
use std::collections::BTreeSet;
use workloads::model::{Model, built_in_names};
use workloads::parallel::tensor_parallel_degrees;
use workloads::training::{Attention, ContextMethod};
use workloads::{Lowering, OpId, RecomputeSet, Segment, TrainingGraph};

/// Returns every built-in model at each tensor-parallel degree up to eight. Sequences and experts are split or not, and
/// switches give the fewest or the most kernels.
fn cases() -> Vec<(String, TrainingGraph)> {
    let mut cases = Vec::new();
    for name in built_in_names() {
        let model = Model::load(name).unwrap();
        let experts = model.experts.map_or(1, |e| u32::try_from(e.count).unwrap());
        for tensor_parallel in tensor_parallel_degrees(&model, 8) {
            for switches in 0..32 {
                let bit = |i: u32| switches >> i & 1 == 1;
                let context_parallel = if bit(1) { 2 } else { 1 };
                let lowering = Lowering {
                    tensor_parallel,
                    sequence_parallel: bit(0) && tensor_parallel > 1,
                    context_parallel,
                    context_method: if bit(2) { ContextMethod::Ulysses } else { ContextMethod::Ring },
                    expert_parallel: if bit(3) { experts } else { 1 },
                    attention: if bit(4) || context_parallel > 1 { Attention::Fused } else { Attention::Unfused },
                    elementwise_fusion: bit(4),
                    epilogues: bit(4),
                    separate_accumulation: !bit(4),
                    fused_loss: bit(4),
                    ..Lowering::new(&model)
                };
                // Some models lack the heads or positions for such a split.
                if let Ok(graph) = TrainingGraph::new(&model, &lowering) {
                    cases.push((format!("{name} {lowering:?}"), graph));
                }
            }
        }
    }
    cases
}

/// Returns the forward pass, the backward pass without recomputation, and the backward pass with full recomputation.
fn passes(segment: &Segment) -> [KernelGraph; 3] {
    [
        segment.forward_graph(),
        segment.backward_graph(&RecomputeSet::none()),
        segment.backward_graph(&segment.graph.full_recompute_set()),
    ]
}

/// Checks `holds` for every pass of every segment of every case.
fn for_all(mut holds: impl FnMut(&str, &TrainingGraph, &KernelGraph)) {
    for (what, graph) in cases() {
        for segment in &graph.segments {
            passes(segment).iter().for_each(|pass| holds(&what, &graph, pass));
        }
    }
}

#[test]
fn a_kernel_has_an_axis_if_and_only_if_it_is_a_collective_and_as_many_ranks_as_that_axis() {
    let mut seen = BTreeSet::new();
    for_all(|what, graph, pass| {
        for node in pass.node_weights() {
            let Kernel::Collective(collective) = node.kernel else {
                assert_eq!(node.role.axis, None, "{what}: {}", node.name);
                continue;
            };
            let l = &graph.lowering;
            let ranks = match node.role.axis.unwrap_or_else(|| panic!("{what}: {} along no axis", node.name)) {
                ParallelAxis::Tensor => l.tensor_parallel,
                ParallelAxis::Context => l.context_parallel,
                ParallelAxis::Expert => l.expert_parallel,
            };
            assert_eq!(collective.group.ranks, ranks, "{what}: {}", node.name);
            seen.insert(node.role.axis);
        }
    });
    assert_eq!(seen.len(), 3, "{seen:?}");
}

#[test]
fn the_forward_pass_runs_again_as_recomputation_and_nothing_else_does() {
    for (what, graph) in cases() {
        for segment in &graph.segments {
            let [forward, backward, again] = passes(segment);
            let of = |graph: &KernelGraph, pass: Pass| -> Vec<(Option<OpId>, Kernel)> {
                graph.node_weights().filter(|n| n.role.pass == pass).map(|n| (n.role.operator, n.kernel)).collect()
            };
            assert_eq!(of(&forward, Pass::Forward).len(), forward.node_count(), "{what}");
            assert_eq!(of(&backward, Pass::Backward).len(), backward.node_count(), "{what}");
            assert_eq!(of(&again, Pass::Backward), of(&backward, Pass::Backward), "{what}");
            assert_eq!(of(&again, Pass::Recompute).len() + backward.node_count(), again.node_count(), "{what}");
            if graph.lowering.epilogues {
                continue; // An operator whose follower does not run again is a kernel of its own.
            }
            let chosen = segment.graph.full_recompute_set();
            let mut expected = of(&forward, Pass::Forward);
            expected.retain(|(op, _)| op.is_some_and(|op| chosen.contains(op)));
            assert_eq!(of(&again, Pass::Recompute), expected, "{what}");
        }
    }
}

/// Only weight gradients wait for weight gradients. Zero-bubble schedules rely on this to delay them.
#[test]
fn only_gradients_of_weights_wait_for_gradients_of_weights() {
    for_all(|what, _, pass| {
        for id in pass.node_indices().filter(|id| pass[*id].role.gradient == Some(GradientOf::Weights)) {
            for next in pass.neighbors_directed(id, Outgoing) {
                let name = &pass[next].name;
                assert_eq!(
                    pass[next].role.gradient,
                    Some(GradientOf::Weights),
                    "{what}: {name} waits for {}",
                    pass[id].name
                );
            }
        }
    });
}

#[test]
fn an_operator_has_gradients_of_weights_if_and_only_if_it_has_weights() {
    for (what, graph) in cases() {
        for segment in &graph.segments {
            let backward = segment.backward_graph(&RecomputeSet::none());
            let with = backward.node_weights().filter(|n| n.role.gradient == Some(GradientOf::Weights));
            let with: BTreeSet<OpId> = with.filter_map(|n| n.role.operator).collect();
            let owners = segment.operators().iter().filter(|op| op.parameters.per_device_count() > 0).map(|op| op.id);
            assert_eq!(with, owners.collect(), "{what}: {}", segment.name);
        }
    }
}

#[test]
fn the_optimizer_runs_in_its_own_pass() {
    for (what, graph) in cases() {
        for node in graph.segments.iter().flat_map(Segment::optimizer_step_kernels) {
            assert_eq!((node.role.pass, node.role.operator), (Pass::Optimizer, None), "{what}");
            let collective = matches!(node.kernel, Kernel::Collective(_));
            assert_eq!(node.role.axis, collective.then_some(ParallelAxis::Tensor), "{what}");
        }
    }
}
