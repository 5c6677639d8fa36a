//! A placement instance and its validation.

use super::PlacementError;
use std::collections::{BTreeMap, BTreeSet};

/// PHAZE's own limit on devices.
pub const MAX_DEVICES: usize = 10_000;
/// Limit on the length of a chain: the tables of the search grow with its square.
pub const MAX_LAYERS: usize = 4_096;
/// PHAZE rejects a bandwidth or a memory limit below this.
pub const SMALLEST_POSITIVE: f64 = 1e-9;
/// Limit on sizes, rates and times, as for Piper's graphs. Sums over the longest chain and all micro-batches stay
/// finite, and cannot be mistaken for PHAZE's own infinity, a time of 1e30.
pub const LARGEST: f64 = 1e30;

/// A layer with its costs. At a tensor width above 1, the costs of a tensor-parallel layer are those of one device's
/// slice.
#[derive(Debug, Clone, PartialEq)]
pub struct PhazeLayer {
    /// Its name in the file.
    pub id: i64,
    /// Bytes of weights.
    pub parameter_bytes: f64,
    /// Bytes of all activations of one micro-batch, including intermediate ones.
    pub activation_bytes: f64,
    /// Time of the forward pass of one micro-batch.
    pub forward: f64,
    /// Time of the backward pass of one micro-batch.
    pub backward: f64,
    /// True if the costs are those of one slice out of `width`.
    pub tensor_parallel: bool,
}

/// A tensor passed from one layer to another.
#[derive(Debug, Clone, PartialEq)]
pub struct PhazeEdge {
    /// Id of the layer that makes it.
    pub source: i64,
    /// Id of the layer that uses it.
    pub destination: i64,
    /// Bytes that cross the link if the two are in different stages, in either pass.
    pub bytes: f64,
}

/// The layer graph at one tensor width.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct WidthGraph {
    /// The layers, in any order.
    pub layers: Vec<PhazeLayer>,
    /// The edges, in any order.
    pub edges: Vec<PhazeEdge>,
}

/// PHAZE's optimiser, which decides the bytes per parameter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PhazeOptimizer {
    /// Weights and gradients: twice the parameters.
    Sgd,
    /// Weights, gradients and one copy of state: three times the parameters.
    Adam,
}

impl PhazeOptimizer {
    /// Returns the bytes that a device holds per byte of parameters.
    #[must_use]
    pub fn copies_per_parameter(self) -> f64 {
        match self {
            Self::Sgd => 2.0,
            Self::Adam => 3.0,
        }
    }
}

/// The content of an instance file, before [`PhazeInstance::new`] checks it.
#[derive(Debug, Clone, PartialEq)]
pub struct PhazeProblem {
    /// Bytes a device can hold.
    pub max_memory_per_device: f64,
    /// Devices of the cluster, at most 10,000.
    pub max_devices: usize,
    /// Bytes per unit of time over the link between any two stages.
    pub bandwidth: f64,
    /// Micro-batches per batch, over all copies of the pipeline.
    pub micro_batches: usize,
    /// True if stages keep only their inputs and recompute their activations.
    pub activation_recomputation: bool,
    /// The optimiser.
    pub optimizer: PhazeOptimizer,
    /// One layer graph per tensor width.
    pub graphs: BTreeMap<usize, WidthGraph>,
}

/// A tensor between positions of the chain.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ChainLink {
    pub from: usize,
    pub to: usize,
    pub bytes: f64,
}

/// A layer graph in chain order.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Chain {
    pub width: usize,
    pub layers: Vec<PhazeLayer>,
    /// `between[i]`: bytes from position `i` to `i + 1`.
    pub between: Vec<f64>,
    /// All other edges; each leads forward over at least one layer.
    pub skips: Vec<ChainLink>,
}

impl Chain {
    pub fn len(&self) -> usize {
        self.layers.len()
    }

    /// Returns the edges with exactly one end in the stage of positions `first..end`.
    pub fn crossing_edges(&self, first: usize, end: usize) -> impl Iterator<Item = ChainLink> + '_ {
        let ends = [first.checked_sub(1), Some(end - 1)].into_iter().flatten();
        let chain = ends.filter_map(|from| Some(ChainLink { from, to: from + 1, bytes: *self.between.get(from)? }));
        let inside = move |at: usize| (first..end).contains(&at);
        chain.chain(self.skips.iter().copied().filter(move |link| inside(link.from) != inside(link.to)))
    }

    /// Returns, for each position, the end of the longest stage that begins there and has no tensor-parallel layer. The
    /// end is the position itself if there is none.
    pub fn narrow_ends(&self) -> Vec<usize> {
        let mut next = self.len();
        let mut ends = vec![next; self.len()];
        for (at, layer) in self.layers.iter().enumerate().rev() {
            if layer.tensor_parallel {
                next = at;
            }
            ends[at] = next;
        }
        ends
    }

    /// Returns the devices of one copy of the stage of positions `first..end`.
    pub fn devices_of_stage(&self, first: usize, end: usize) -> usize {
        if self.layers[first..end].iter().any(|layer| layer.tensor_parallel) { self.width } else { 1 }
    }
}

/// A checked instance: finite, non-negative numbers and the same chain at every width.
#[derive(Debug, Clone, PartialEq)]
pub struct PhazeInstance {
    pub(super) max_memory: f64,
    pub(super) max_devices: usize,
    pub(super) bandwidth: f64,
    pub(super) micro_batches: usize,
    pub(super) recompute: bool,
    pub(super) optimizer: PhazeOptimizer,
    /// Ascending by width.
    pub(super) chains: Vec<Chain>,
}

impl PhazeInstance {
    /// Checks a problem and puts its layers in chain order.
    ///
    /// # Errors
    /// Any number out of range, repeated or unknown ids, cycles, branches, and graphs that differ between widths.
    pub fn new(problem: PhazeProblem) -> Result<Self, PlacementError> {
        check_scalars(&problem)?;
        let Some((&first_width, first)) = problem.graphs.first_key_value() else {
            return Err(PlacementError::Missing { at: "nodes".into(), expected: "one layer graph per tensor width" });
        };
        for (&width, graph) in &problem.graphs {
            check_graph(width, graph)?;
            check_same_model(WidthOfGraph { width: first_width, graph: first }, WidthOfGraph { width, graph })?;
        }
        let order = chain_order(first)?;
        let position: BTreeMap<i64, usize> = order.iter().enumerate().map(|(at, &id)| (id, at)).collect();
        let chains = problem.graphs.into_iter().map(|(width, graph)| into_chain(width, graph, &position)).collect();
        Ok(Self {
            max_memory: problem.max_memory_per_device,
            max_devices: problem.max_devices,
            bandwidth: problem.bandwidth,
            micro_batches: problem.micro_batches,
            recompute: problem.activation_recomputation,
            optimizer: problem.optimizer,
            chains,
        })
    }

    /// Returns the number of layers in the chain.
    #[must_use]
    pub fn layers(&self) -> usize {
        self.chains.first().map_or(0, Chain::len)
    }

    /// Returns the number of devices in the cluster.
    #[must_use]
    pub fn devices(&self) -> usize {
        self.max_devices
    }

    /// Returns the tensor widths, rising.
    #[must_use]
    pub fn widths(&self) -> Vec<usize> {
        self.chains.iter().map(|chain| chain.width).collect()
    }

    /// Returns the same instance with one tensor width only; `None` if it has no such width.
    #[must_use]
    pub fn at_width(&self, width: usize) -> Option<Self> {
        let chain = self.chains.iter().find(|chain| chain.width == width)?.clone();
        Some(Self { chains: vec![chain], ..*self })
    }

    pub(super) fn chain(&self, width: usize) -> Option<&Chain> {
        self.chains.iter().find(|chain| chain.width == width)
    }
}

fn out_of_range(at: String, value: impl ToString, limit: impl Into<String>, cure: &'static str) -> PlacementError {
    PlacementError::OutOfRange { at, value: value.to_string(), limit: limit.into(), cure }
}

/// Formats a number as people write it: 1e308, not a 1 with 308 zeros.
fn write_number(value: f64) -> String {
    if value.abs() >= 1e15 { format!("{value:e}") } else { value.to_string() }
}

fn check_scalars(problem: &PhazeProblem) -> Result<(), PlacementError> {
    let positive = [
        ("maxMemoryPerDevice", problem.max_memory_per_device, "give the bytes a device can hold"),
        ("bandwidth", problem.bandwidth, "give the bytes per second of the link between stages"),
    ];
    for (key, value, cure) in positive {
        if !(SMALLEST_POSITIVE..=LARGEST).contains(&value) {
            let limit = format!("it must be from {SMALLEST_POSITIVE:e} to {LARGEST:e}");
            return Err(out_of_range(key.into(), write_number(value), limit, cure));
        }
    }
    if problem.max_devices == 0 || problem.max_devices > MAX_DEVICES {
        let limit = format!("it must be from 1 to {MAX_DEVICES}");
        return Err(out_of_range("maxDevices".into(), problem.max_devices, limit, "give the devices of the cluster"));
    }
    if problem.micro_batches == 0 || i32::try_from(problem.micro_batches).is_err() {
        let limit = format!("it must be from 1 to {} after truncation", i32::MAX);
        return Err(out_of_range(
            "mbsInBatch".into(),
            problem.micro_batches,
            limit,
            "give the micro-batches of a batch",
        ));
    }
    Ok(())
}

fn check_graph(width: usize, graph: &WidthGraph) -> Result<(), PlacementError> {
    if width == 0 || width > MAX_DEVICES {
        let limit = format!("a tensor width must be from 1 to {MAX_DEVICES}");
        return Err(out_of_range(format!("nodes.\"{width}\""), width, limit, "name the graph after its tensor width"));
    }
    let count = graph.layers.len();
    if count == 0 || count > MAX_LAYERS {
        let limit = format!("a graph has from 1 to {MAX_LAYERS} layers");
        return Err(out_of_range(
            format!("nodes.\"{width}\""),
            format!("{count} layers"),
            limit,
            "merge layers that stay together",
        ));
    }
    let mut ids = BTreeSet::new();
    for (at, layer) in graph.layers.iter().enumerate() {
        let place = format!("nodes.\"{width}\"[{at}]");
        let costs = [
            ("parameterSize", layer.parameter_bytes),
            ("activationSize", layer.activation_bytes),
            ("optimalLatencyFw", layer.forward),
            ("optimalLatencyBw", layer.backward),
        ];
        for (key, value) in costs {
            check_cost(&place, key, value)?;
        }
        if width == 1 && layer.tensor_parallel {
            return Err(PlacementError::TensorParallelAtWidthOne { at: format!("{place}.isTensorParallelized") });
        }
        if !ids.insert(layer.id) {
            return Err(PlacementError::RepeatedId { at: place, id: layer.id });
        }
    }
    check_edges(width, graph, &ids)
}

fn check_cost(place: &str, key: &str, value: f64) -> Result<(), PlacementError> {
    if (0.0..=LARGEST).contains(&value) {
        return Ok(());
    }
    let limit = format!("it must be from 0 to {LARGEST:e}");
    Err(out_of_range(format!("{place}.{key}"), write_number(value), limit, "give the measured or estimated cost"))
}

fn check_edges(width: usize, graph: &WidthGraph, ids: &BTreeSet<i64>) -> Result<(), PlacementError> {
    let mut seen = BTreeSet::new();
    for (at, edge) in graph.edges.iter().enumerate() {
        let place = format!("edges.\"{width}\"[{at}]");
        for (key, id) in [("sourceId", edge.source), ("destId", edge.destination)] {
            if !ids.contains(&id) {
                return Err(PlacementError::EdgeToNowhere { at: format!("{place}.{key}"), id, layers: ids.len() });
            }
        }
        check_cost(&place, "communicationCost", edge.bytes)?;
        let (from, to) = (edge.source, edge.destination);
        if from == to {
            return Err(PlacementError::BadEdge { at: place, from, to, how: "itself", cure: "remove it" });
        }
        if !seen.insert((from, to)) {
            let cure = "add the bytes of both to one edge";
            return Err(PlacementError::BadEdge { at: place, from, to, how: "a second time", cure });
        }
    }
    Ok(())
}

/// The graph of a model at a tensor width.
#[derive(Clone, Copy)]
struct WidthOfGraph<'a> {
    width: usize,
    graph: &'a WidthGraph,
}

fn check_same_model(first: WidthOfGraph<'_>, other: WidthOfGraph<'_>) -> Result<(), PlacementError> {
    let ids = |graph: &WidthGraph| graph.layers.iter().map(|layer| layer.id).collect::<BTreeSet<_>>();
    let edges = |graph: &WidthGraph| graph.edges.iter().map(|e| (e.source, e.destination)).collect::<BTreeSet<_>>();
    let differ =
        |what, which| Err(PlacementError::WidthsDiffer { width: other.width, first: first.width, what, which });
    if let Some(id) = ids(first.graph).symmetric_difference(&ids(other.graph)).next() {
        return differ("layers", format!("layer {id}"));
    }
    if let Some((from, to)) = edges(first.graph).symmetric_difference(&edges(other.graph)).next() {
        return differ("edges", format!("edge {from} -> {to}"));
    }
    Ok(())
}

/// Returns the ids in chain order. A graph is a chain with skip edges if and only if it has a single topological order;
/// another graph is an error.
fn chain_order(graph: &WidthGraph) -> Result<Vec<i64>, PlacementError> {
    let mut waiting: BTreeMap<i64, usize> = graph.layers.iter().map(|layer| (layer.id, 0)).collect();
    let mut successors: BTreeMap<i64, Vec<i64>> = BTreeMap::new();
    for edge in &graph.edges {
        *waiting.entry(edge.destination).or_default() += 1;
        successors.entry(edge.source).or_default().push(edge.destination);
    }
    let mut ready: Vec<i64> = waiting.iter().filter(|&(_, &count)| count == 0).map(|(&id, _)| id).collect();
    let mut order = Vec::with_capacity(graph.layers.len());
    while let Some(id) = ready.pop() {
        if let Some(&second) = ready.first() {
            return Err(PlacementError::Branching { first: id.min(second), second: id.max(second) });
        }
        order.push(id);
        waiting.remove(&id);
        for next in successors.get(&id).into_iter().flatten() {
            if let Some(count) = waiting.get_mut(next) {
                *count -= 1;
                if *count == 0 {
                    ready.push(*next);
                }
            }
        }
    }
    match waiting.first_key_value() {
        Some((&layer, _)) => Err(PlacementError::Cycle { layer, remaining: waiting.len() }),
        None => Ok(order),
    }
}

fn into_chain(width: usize, graph: WidthGraph, position: &BTreeMap<i64, usize>) -> Chain {
    let at = |id: i64| position.get(&id).copied().unwrap_or_default();
    let mut layers = graph.layers;
    layers.sort_by_key(|layer| at(layer.id));
    let mut between = vec![0.0; layers.len() - 1];
    let mut skips = Vec::new();
    for edge in graph.edges {
        let link = ChainLink { from: at(edge.source), to: at(edge.destination), bytes: edge.bytes };
        if link.to == link.from + 1 {
            between[link.from] = link.bytes;
        } else {
            skips.push(link);
        }
    }
    skips.sort_by_key(|link| (link.from, link.to));
    Chain { width, layers, between, skips }
}
