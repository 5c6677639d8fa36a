//! NEST's fallback to ZeRO. NEST asks a network simulator for the collectives of ZeRO, and no instance has their times.
//! This module finds when NEST would shard, and bounds the gain from sharding.

use super::evaluate::fixed_bytes;
use super::instance::{NestGraph, NestInstance};
use std::collections::BTreeMap;

/// Returns the tensor widths at which NEST would shard model states: the last layer alone does not fit a device, and
/// some degree of ZeRO-3 makes it fit at every place in a pipeline. ZeRO-3 needs the least memory of the three stages.
pub(super) fn sharded_widths(instance: &NestInstance) -> Vec<u64> {
    let shards = |(width, graph): (&u64, &NestGraph)| would_shard(instance, *width, graph).then_some(*width);
    instance.graphs.iter().filter_map(shards).collect()
}

fn would_shard(instance: &NestInstance, width: u64, graph: &NestGraph) -> bool {
    let Some(last) = graph.layers.last() else { return false };
    let (parameters, activations) = (last.parameter_bytes, last.activation_bytes);
    if fixed_bytes(instance.optimizer, parameters, activations) <= instance.memory_bytes {
        return false;
    }
    let most_stages = instance.devices.min(graph.layers.len() as u64);
    let at = graph.layers.len() - 1;
    let entering: f64 = graph.edges.iter().filter(|edge| edge.destination == at).map(|edge| edge.bytes).sum();
    let stash = if instance.recompute { entering } else { activations };
    let group = instance.devices_of_stage(width);
    let fits = |degree: u64| {
        let states = fixed_bytes(instance.optimizer, parameters, 0.0) / degree as f64;
        states + activations + (most_stages - 1) as f64 * stash <= instance.memory_bytes
    };
    let degrees = std::iter::successors(Some(2_u64), |degree| Some(degree * 2));
    degrees.take_while(|degree| group.saturating_mul(*degree) <= instance.devices).any(fits)
}

/// Returns a relaxed instance whose optimum is at least as fast as any plan with ZeRO. Model states take no memory, and
/// collectives and transfers take no time. Only the given widths remain.
pub(super) fn relax_states(instance: &NestInstance, widths: &[u64]) -> NestInstance {
    let relax = |graph: &NestGraph| {
        let mut graph = graph.clone();
        graph.layers.iter_mut().for_each(|layer| layer.parameter_bytes = 0.0);
        graph.edges.iter_mut().for_each(|edge| edge.bytes = 0.0);
        graph
    };
    let graphs: BTreeMap<u64, NestGraph> =
        widths.iter().filter_map(|width| Some((*width, relax(instance.graphs.get(width)?)))).collect();
    let mut relaxed = NestInstance { graphs, ..instance.clone() };
    relaxed.levels.iter_mut().for_each(|level| level.latency = 0.0);
    relaxed
}
