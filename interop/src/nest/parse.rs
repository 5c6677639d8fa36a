//! Reads instance files of NEST.

use super::instance::{
    GIB, NestEdge, NestFixedPlan, NestGraph, NestInstance, NestLayer, NestLevel, NestOptimizer, NestRecord,
};
use serde_json::Value;
use sim::files::FileError;
use sim::files::json::{JsonObject, JsonReader};
use std::collections::{BTreeMap, BTreeSet};

/// Limit on devices, and on each degree.
const MOST_DEVICES: u64 = 1 << 20;
/// Limit on samples of a batch.
const MOST_SAMPLES: u64 = 1 << 24;
/// Limit on layers. The tables of the search grow with the square of it.
const MOST_LAYERS: u64 = 1024;
/// Limit on levels of the network.
const MOST_LEVELS: usize = 8;
/// Limit on bytes, rates and times, so that no sum overflows.
const LARGEST: f64 = 1e30;
/// Lower limit on bandwidths and on the time of all layers, so that no quotient overflows.
const SMALLEST: f64 = 1e-30;

const KEYS: [&str; 18] = [
    "name",
    "model",
    "devices",
    "mbs",
    "sequence",
    "ep",
    "cp",
    "sp",
    "global_batch",
    "memory_bytes",
    "recompute",
    "optimizer",
    "network",
    "units",
    "graphs",
    "fixed_plans",
    "expected",
    "computed",
];

impl NestInstance {
    /// True if a JSON text is an instance of NEST, valid or not: it has a network and graphs by tensor width.
    #[must_use]
    pub fn is_nest_instance(text: &str) -> bool {
        serde_json::from_str::<Value>(text)
            .is_ok_and(|value| value.get("graphs").is_some() && value.get("network").is_some())
    }

    /// Reads an instance; `file` names it in errors.
    ///
    /// # Errors
    /// All faults, each with its path in the file: malformed JSON; missing or unknown keys; wrong types; numbers out of
    /// range; micro-batches that do not divide the batch; a network with fewer devices than the plan may use; edges to
    /// nowhere, backwards or repeated; graphs of unequal length.
    pub fn from_json_str(text: &str, file: &str) -> Result<Self, FileError> {
        let mut r = JsonReader::new(file);
        let json = r.parse_value(text, "an instance of NEST (.json)")?;
        let instance = r.root_object(&json).map(|root| read_instance(&mut r, &root));
        if let (Some(instance), true) = (&instance, r.is_sound()) {
            check_instance(&mut r, instance);
        }
        r.finish_reading(())
            .and_then(|()| instance.ok_or_else(|| FileError { file: file.to_owned(), faults: Vec::new() }))
    }
}

fn read_instance(r: &mut JsonReader, root: &JsonObject<'_>) -> NestInstance {
    r.refuse_unknown_keys(root, &KEYS);
    // The graphs' latencies already include the effect of these keys. The keys are read so that a wrong type is
    // refused.
    for label in ["name", "model", "units"].into_iter().filter(|key| root.contains_key(key)) {
        r.text_under(root, label);
    }
    if root.contains_key("sequence") {
        r.count_under(root, "sequence", 1, MOST_SAMPLES);
    }
    if root.contains_key("sp") {
        r.flag_under(root, "sp");
    }
    let optimizers = [("SGD", NestOptimizer::Sgd), ("Adam", NestOptimizer::Adam)];
    NestInstance {
        devices: r.count_under(root, "devices", 1, MOST_DEVICES),
        micro_batch: r.count_under(root, "mbs", 1, MOST_SAMPLES),
        expert_parallel: r.count_under(root, "ep", 1, MOST_DEVICES),
        context_parallel: r.count_under(root, "cp", 1, MOST_DEVICES),
        global_batch: r.count_under(root, "global_batch", 1, MOST_SAMPLES),
        memory_bytes: r.positive_number_under(root, "memory_bytes", LARGEST),
        recompute: r.flag_under(root, "recompute"),
        optimizer: r.choice_under(root, "optimizer", &optimizers).unwrap_or(NestOptimizer::Sgd),
        levels: r.object_under(root, "network").map(|network| read_levels(r, &network)).unwrap_or_default(),
        graphs: read_graphs(r, root),
        fixed_plans: read_fixed_plans(r, root),
        record: read_record(r, root),
    }
}

fn read_levels(r: &mut JsonReader, network: &JsonObject<'_>) -> Vec<NestLevel> {
    let keys = ["devices_per_level", "bandwidth_GiB_s", "latency_s"];
    r.refuse_unknown_keys(network, &keys);
    let [branches, bandwidths, latencies] = keys.map(|key| r.list_under(network, key));
    let count = branches.len();
    if r.is_sound() && !(1..=MOST_LEVELS).contains(&count) {
        let limit = format!("a network has 1 to {MOST_LEVELS} levels");
        r.add_fault("network.devices_per_level", format!("{count} levels"), limit, "list them, innermost first");
    }
    for (key, list) in [(keys[1], bandwidths), (keys[2], latencies)] {
        if r.is_sound() && list.len() != count {
            let limit = format!("must have one number per level, which are {count}");
            r.add_fault(format!("network.{key}"), format!("{} numbers", list.len()), limit, "correct the lists");
        }
    }
    let mut read_level = |at: usize| NestLevel {
        branches: read_count(r, &format!("network.{}[{at}]", keys[0]), &branches[at], MOST_DEVICES),
        bandwidth: GIB * r.number_at(&format!("network.{}[{at}]", keys[1]), &bandwidths[at], SMALLEST, LARGEST),
        latency: r.number_at(&format!("network.{}[{at}]", keys[2]), &latencies[at], 0.0, LARGEST),
    };
    if bandwidths.len() == count && latencies.len() == count {
        (0..count).map(&mut read_level).collect()
    } else {
        Vec::new()
    }
}

/// Reads a whole number from 1 to `most`; returns 1 after a fault. `path` names it in the fault.
fn read_count(r: &mut JsonReader, path: &str, value: &Value, most: u64) -> u64 {
    match value.as_u64() {
        Some(count) if (1..=most).contains(&count) => count,
        _ => {
            r.add_fault(path, value, format!("must be a whole number between 1 and {most}"), "correct it");
            1
        }
    }
}

fn read_graphs(r: &mut JsonReader, root: &JsonObject<'_>) -> BTreeMap<u64, NestGraph> {
    let Some(graphs) = r.object_under(root, "graphs") else { return BTreeMap::new() };
    let mut read = BTreeMap::new();
    for (key, value) in graphs.entries() {
        let path = format!("graphs.{key}");
        let Some(width) = key.parse().ok().filter(|t| (1..=MOST_DEVICES).contains(t)) else {
            let limit = format!("a tensor width is a whole number between 1 and {MOST_DEVICES}");
            r.add_fault(path, "its key", limit, "name the graph after its width");
            continue;
        };
        if let Some(graph) = r.object_at(&path, value) {
            read.insert(width, read_graph(r, &graph));
        }
    }
    if read.is_empty() && r.is_sound() {
        r.add_fault("graphs", "{}", "there is at least one graph", "add one under its tensor width");
    }
    read
}

fn read_graph(r: &mut JsonReader, graph: &JsonObject<'_>) -> NestGraph {
    r.refuse_unknown_keys(graph, &["layers", "chain", "edges"]);
    let mut kinds = BTreeMap::new();
    let layers = r.object_under(graph, "layers");
    for (name, value) in layers.iter().flat_map(JsonObject::entries) {
        if let Some(layer) = r.object_at(&format!("{}layers.{name}", graph.path), value) {
            kinds.insert(name, read_layer(r, &layer));
        }
    }
    let layers = read_chain(r, graph, &kinds);
    let edges = r.object_under(graph, "edges").map(|edges| read_edges(r, &edges, layers.len())).unwrap_or_default();
    NestGraph { layers, edges }
}

fn read_layer(r: &mut JsonReader, layer: &JsonObject<'_>) -> NestLayer {
    let bounds = ["fw_lower_bound", "bw_lower_bound"];
    r.refuse_unknown_keys(layer, &[&["fw", "bw", "params", "acts"][..], &bounds].concat());
    for key in bounds.into_iter().filter(|key| layer.contains_key(key)) {
        r.number_under(layer, key, 0.0, LARGEST);
    }
    let [forward, backward, parameter_bytes, activation_bytes] =
        ["fw", "bw", "params", "acts"].map(|key| r.number_under(layer, key, 0.0, LARGEST));
    NestLayer { forward, backward, parameter_bytes, activation_bytes }
}

/// Reads the layers from the list `chain`, whose entries are `[name, count]`.
fn read_chain(r: &mut JsonReader, graph: &JsonObject<'_>, kinds: &BTreeMap<&str, NestLayer>) -> Vec<NestLayer> {
    let mut layers = Vec::new();
    let at = format!("{}chain", graph.path);
    for (i, entry) in r.list_under(graph, "chain").iter().enumerate() {
        let path = format!("{at}[{i}]");
        let Some([name, count]) = entry.as_array().and_then(|entry| <&[Value; 2]>::try_from(entry.as_slice()).ok())
        else {
            r.add_fault(path, entry, "must be [name, count]", "give the layer's name and how often it follows");
            continue;
        };
        let Some(layer) = name.as_str().and_then(|name| kinds.get(name)) else {
            let known = kinds.keys().copied().collect::<Vec<_>>().join(", ");
            r.add_fault(format!("{path}[0]"), name, format!("is not a layer; there are {known}"), "correct its name");
            continue;
        };
        let count = read_count(r, &format!("{path}[1]"), count, MOST_LAYERS);
        layers.extend(std::iter::repeat_n(*layer, count as usize));
        if layers.len() as u64 > MOST_LAYERS {
            r.add_fault(&at, format!("{} layers", layers.len()), format!("at most {MOST_LAYERS}"), "merge layers");
            return Vec::new();
        }
    }
    if layers.is_empty() && r.is_sound() {
        r.add_fault(&at, "no layers", "a chain has at least one layer", "add [name, count]");
    }
    layers
}

/// Reads the edges of a chain of `count` layers: `first` between the first two layers, `repeat` between all other
/// neighbours, and the list `extra`.
fn read_edges(r: &mut JsonReader, edges: &JsonObject<'_>, count: usize) -> Vec<NestEdge> {
    r.refuse_unknown_keys(edges, &["first", "repeat", "extra"]);
    let [first, repeat] = ["first", "repeat"].map(|key| r.number_under(edges, key, 0.0, LARGEST));
    let mut read: Vec<NestEdge> = (1..count)
        .map(|at| NestEdge { source: at - 1, destination: at, bytes: if at == 1 { first } else { repeat } })
        .collect();
    let mut pairs = BTreeSet::new();
    let extra = if edges.contains_key("extra") { r.list_under(edges, "extra") } else { &[] };
    for (i, entry) in extra.iter().enumerate() {
        let path = format!("{}extra[{i}]", edges.path);
        let Some([source, destination, bytes]) =
            entry.as_array().and_then(|entry| <&[Value; 3]>::try_from(entry.as_slice()).ok())
        else {
            r.add_fault(path, entry, "must be [source, destination, bytes]", "correct it");
            continue;
        };
        let end = |value: &Value| value.as_u64().map(|at| at as usize).filter(|at| *at < count);
        let (Some(source), Some(destination)) = (end(source), end(destination)) else {
            let limit = format!("layers are numbered from 0 to {}", count.saturating_sub(1));
            r.add_fault(path, entry, limit, "name two layers of the chain");
            continue;
        };
        if destination <= source + 1 {
            let limit = "an extra edge skips at least one layer forwards; `first` and `repeat` hold the others";
            r.add_fault(path, entry, limit, "remove it, or correct its ends");
        } else if !pairs.insert((source, destination)) {
            r.add_fault(path, entry, "this edge is there already", "give each edge once");
        } else {
            let bytes = r.number_at(&format!("{path}[2]"), bytes, 0.0, LARGEST);
            read.push(NestEdge { source, destination, bytes });
        }
    }
    read
}

fn read_fixed_plans(r: &mut JsonReader, root: &JsonObject<'_>) -> BTreeMap<String, NestFixedPlan> {
    let mut read = BTreeMap::new();
    if !root.contains_key("fixed_plans") {
        return read;
    }
    let plans = r.object_under(root, "fixed_plans");
    for (name, value) in plans.iter().flat_map(JsonObject::entries) {
        let Some(plan) = r.object_at(&format!("fixed_plans.{name}"), value) else { continue };
        r.refuse_unknown_keys(&plan, &["p", "d", "t", "layers", "partition"]);
        let [pipeline, data_parallel, tensor_width] =
            ["p", "d", "t"].map(|key| r.count_under(&plan, key, 1, MOST_DEVICES));
        let layers = r.count_under(&plan, "layers", 1, MOST_LAYERS) as usize;
        let partition = plan.contains_key("partition").then(|| {
            let list = r.list_under(&plan, "partition").iter().enumerate();
            list.map(|(i, value)| read_count(r, &format!("{}partition[{i}]", plan.path), value, MOST_LAYERS) as usize)
                .collect()
        });
        read.insert(name.to_owned(), NestFixedPlan { pipeline, data_parallel, tensor_width, layers, partition });
    }
    read
}

fn read_record(r: &mut JsonReader, root: &JsonObject<'_>) -> NestRecord {
    let mut record = NestRecord::default();
    if root.contains_key("computed")
        && let Some(computed) = r.object_under(root, "computed")
    {
        record.throughput = read_figures(r, &computed, "samples_per_s");
    }
    if root.contains_key("expected")
        && let Some(expected) = r.object_under(root, "expected")
    {
        record.published = read_figures(r, &expected, "relative");
        let wall = expected.entries().find(|(key, value)| *key == "wall_s_published" && !value.is_null());
        record.nest_wall_seconds =
            wall.map(|(key, value)| r.number_at(&format!("expected.{key}"), value, 0.0, LARGEST));
    }
    record
}

/// Reads figures by method under a key; `None` where the file has null. Empty if the key is missing.
fn read_figures(r: &mut JsonReader, object: &JsonObject<'_>, key: &str) -> BTreeMap<String, Option<f64>> {
    if !object.contains_key(key) {
        return BTreeMap::new();
    }
    let Some(figures) = r.object_under(object, key) else { return BTreeMap::new() };
    let read_figure = |(method, value): (&str, &Value)| {
        let path = format!("{}{method}", figures.path);
        let figure = (!value.is_null()).then(|| r.number_at(&path, value, SMALLEST, LARGEST));
        (method.to_owned(), figure)
    };
    figures.entries().map(read_figure).collect()
}

/// Checks that the values of several keys are consistent.
fn check_instance(r: &mut JsonReader, instance: &NestInstance) {
    let at_once = instance.micro_batch.saturating_mul(instance.expert_parallel);
    if !instance.global_batch.is_multiple_of(at_once) {
        let limit = format!("must be a multiple of mbs * ep = {at_once}");
        r.add_fault("global_batch", instance.global_batch, limit, "change one of the three");
    }
    let held = instance.levels.iter().fold(1_u64, |held, level| held.saturating_mul(level.branches));
    if held < instance.devices {
        let limit = format!("the levels of the network hold {held} devices");
        r.add_fault("devices", instance.devices, limit, "widen network.devices_per_level, or use fewer devices");
    }
    let counts: BTreeMap<u64, usize> = instance.graphs.iter().map(|(t, graph)| (*t, graph.layers.len())).collect();
    let fewest = counts.values().copied().min().unwrap_or(0);
    if let Some((t, count)) = counts.iter().find(|(_, count)| **count != fewest) {
        let limit = format!("every tensor width has the same layers, and another has {fewest}");
        r.add_fault(format!("graphs.{t}.chain"), format!("{count} layers"), limit, "correct the counts");
    }
    for (t, graph) in &instance.graphs {
        if graph.layers.iter().map(|layer| layer.forward + layer.backward).sum::<f64>() < SMALLEST {
            let limit = "a pass takes time, or the throughput has no limit";
            r.add_fault(format!("graphs.{t}.layers"), "fw and bw of 0", limit, "give the latencies");
        }
    }
    for (name, plan) in &instance.fixed_plans {
        if plan.layers > fewest {
            let limit = format!("the chain has {fewest} layers");
            r.add_fault(format!("fixed_plans.{name}.layers"), plan.layers, limit, "give at most as many");
        }
    }
}
