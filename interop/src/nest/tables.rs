//! Costs of all contiguous stages of a chain.

use super::evaluate::fixed_bytes;
use super::instance::{NestGraph, NestInstance};
use super::network::time_of_transfer;

/// A value for every stage: by its first layer, then by its number of layers less one.
type ByStage = Vec<Vec<f64>>;

/// Costs of every stage of a chain at one tensor width.
pub(super) struct StageTables {
    /// Layers of the chain.
    pub layers: usize,
    /// Time of the forward pass, by the level of the link before the stage. Empty for levels without a link.
    pub forward: Vec<ByStage>,
    /// Time of the backward pass, by the level of the link behind the stage. With recomputation, it includes the
    /// recomputed forward pass, except in the last stage.
    pub backward: Vec<ByStage>,
    /// Time of the layers alone. This lower bound on the load rises with the number of layers.
    pub work: ByStage,
    /// Bytes that do not depend on the place of the stage.
    pub fixed: ByStage,
    /// Bytes for each micro-batch in flight after the first.
    pub stash: ByStage,
    /// Bytes of the weights of the stages that begin with the first layer.
    pub leading_parameters: Vec<f64>,
}

impl StageTables {
    /// Fills the tables; `levels` lists the levels of the links between stages.
    pub fn new(instance: &NestInstance, graph: &NestGraph, levels: &[usize]) -> Self {
        let layers = graph.layers.len();
        let mut tables = Self {
            layers,
            forward: vec![Vec::new(); instance.levels.len()],
            backward: vec![Vec::new(); instance.levels.len()],
            work: Vec::with_capacity(layers),
            fixed: Vec::with_capacity(layers),
            stash: Vec::with_capacity(layers),
            leading_parameters: Vec::with_capacity(layers),
        };
        tables.fill_bytes_and_work(instance, graph);
        for &level in levels {
            tables.forward[level] = forward_passes(instance, graph, level);
            tables.backward[level] = backward_passes(instance, graph, level);
        }
        tables
    }

    fn fill_bytes_and_work(&mut self, instance: &NestInstance, graph: &NestGraph) {
        // Bytes that enter each layer from before the first layer of the stage.
        let mut entering = vec![0.0; self.layers];
        let by_source = edges_by(graph, |edge| edge.source);
        for first in 0..self.layers {
            if first > 0 {
                for &edge in &by_source[first - 1] {
                    entering[graph.edges[edge].destination] += graph.edges[edge].bytes;
                }
            }
            let (mut work, mut parameters, mut activations, mut arriving) = (0.0, 0.0, 0.0, 0.0);
            let rest = self.layers - first;
            let mut rows = [(); 3].map(|()| Vec::with_capacity(rest));
            for (layer, bytes) in graph.layers[first..].iter().zip(&entering[first..]) {
                work += layer.forward + layer.backward;
                parameters += layer.parameter_bytes;
                activations += layer.activation_bytes;
                arriving += bytes;
                rows[0].push(work);
                rows[1].push(fixed_bytes(instance.optimizer, parameters, activations));
                rows[2].push(if instance.recompute { arriving } else { activations });
                if first == 0 {
                    self.leading_parameters.push(parameters);
                }
            }
            let [work, fixed, stash] = rows;
            self.work.push(work);
            self.fixed.push(fixed);
            self.stash.push(stash);
        }
    }
}

/// Returns the indices of the edges by one of their ends.
fn edges_by(graph: &NestGraph, end: impl Fn(&super::NestEdge) -> usize) -> Vec<Vec<usize>> {
    let mut by_layer = vec![Vec::new(); graph.layers.len()];
    for (at, edge) in graph.edges.iter().enumerate() {
        by_layer[end(edge)].push(at);
    }
    by_layer
}

/// Returns the time of the forward pass of every stage, if its edges arrive over `level`.
fn forward_passes(instance: &NestInstance, graph: &NestGraph, level: usize) -> ByStage {
    let count = graph.layers.len();
    let by_source = edges_by(graph, |edge| edge.source);
    let mut arrival = vec![0.0_f64; count];
    let mut passes = Vec::with_capacity(count);
    for first in 0..count {
        if first > 0 {
            for edge in by_source[first - 1].iter().map(|&edge| &graph.edges[edge]) {
                let time = time_of_transfer(instance, level, edge.bytes);
                arrival[edge.destination] = arrival[edge.destination].max(time);
            }
        }
        let mut done = 0.0_f64;
        let layers = graph.layers[first..].iter().zip(&arrival[first..]);
        passes.push(
            layers
                .map(|(layer, arrival)| {
                    done = done.max(*arrival) + layer.forward;
                    done
                })
                .collect(),
        );
    }
    passes
}

/// Returns the time of the backward pass of every stage, if its gradients arrive over `level`.
fn backward_passes(instance: &NestInstance, graph: &NestGraph, level: usize) -> ByStage {
    let count = graph.layers.len();
    let by_destination = edges_by(graph, |edge| edge.destination);
    let mut arrival = vec![0.0_f64; count];
    let mut passes: ByStage = (0..count).map(|first| vec![0.0; count - first]).collect();
    for end in (1..=count).rev() {
        if end < count {
            for edge in by_destination[end].iter().map(|&edge| &graph.edges[edge]) {
                let time = time_of_transfer(instance, level, edge.bytes);
                arrival[edge.source] = arrival[edge.source].max(time);
            }
        }
        let recomputes = instance.recompute && end < count;
        // Without recomputation, the pass begins at 0. With recomputation, it begins after the recomputed forward pass,
        // which takes the sum of the stage's backward latencies and grows with the stage. `waiting` is the pass that
        // begins at 0 and waits only for arrivals.
        let (mut sum, mut waiting) = (0.0, 0.0_f64);
        for first in (0..end).rev() {
            let layer = &graph.layers[first];
            waiting = waiting.max(arrival[first]) + layer.backward;
            sum += layer.backward;
            passes[first][end - 1 - first] = if recomputes { waiting.max(sum + sum) } else { waiting };
        }
    }
    passes
}
