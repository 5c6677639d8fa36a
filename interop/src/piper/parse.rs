//! Reads Piper's graph files.

use super::{PiperChoice, PiperEdge, PiperInstance, PiperNode};
use serde_json::Value;
use sim::files::FileError;
use sim::files::json::{JsonObject, JsonReader};
use std::collections::{BTreeMap, BTreeSet};

/// Limit on devices in Piper's planner.
const MOST_DEVICES: u64 = 10_000;
/// Limit on the micro-batches of a batch, and on any number of a file.
const MOST_MICRO_BATCHES: u64 = 1 << 24;
const LARGEST: f64 = 1e30;

impl PiperInstance {
    /// True if a JSON text is one of Piper's graphs, valid or not: its layers are a list. In PHAZE's files, they are an
    /// object by tensor width.
    #[must_use]
    pub fn is_piper_graph(text: &str) -> bool {
        serde_json::from_str::<Value>(text).is_ok_and(|value| value.get("nodes").is_some_and(Value::is_array))
    }

    /// Reads a graph; `file` names it in errors. The micro-batches of a batch may be called `mbsInBatch`, as in Piper's
    /// files, or `maxBatchSize`, as in its documentation.
    ///
    /// # Errors
    /// All of these, each with its path in the file: malformed JSON; missing or unknown keys; wrong types; negative
    /// sizes; edges to nowhere, repeated or in a cycle; layers or choices of the same name; sync times that do not
    /// match the edges.
    pub fn from_json_str(text: &str, file: &str) -> Result<Self, FileError> {
        let mut r = JsonReader::new(file);
        let json = r.parse_value(text, "a graph of Piper (.json)")?;
        let instance = r.root_object(&json).map(|root| read_graph(&mut r, &root));
        if let (Some(instance), true) = (&instance, r.is_sound()) {
            check_graph(&mut r, instance);
        }
        r.finish_reading(())
            .and_then(|()| instance.ok_or_else(|| FileError { file: file.to_owned(), faults: Vec::new() }))
    }
}

fn read_graph(r: &mut JsonReader, root: &JsonObject<'_>) -> PiperInstance {
    let batch = if root.contains_key("maxBatchSize") && !root.contains_key("mbsInBatch") {
        "maxBatchSize"
    } else {
        "mbsInBatch"
    };
    r.refuse_unknown_keys(root, &["maxMemoryPerDevice", "maxDevices", "bandwidth", batch, "nodes", "edges", "name"]);
    let nodes = r.list_under(root, "nodes");
    let edges = r.list_under(root, "edges");
    if nodes.is_empty() && r.is_sound() {
        r.add_fault("nodes", "[]", "a graph has at least one layer", "add one");
    }
    PiperInstance {
        max_memory_per_device: r.positive_number_under(root, "maxMemoryPerDevice", LARGEST),
        max_devices: r.count_under(root, "maxDevices", 1, MOST_DEVICES) as u32,
        bandwidth: r.positive_number_under(root, "bandwidth", LARGEST),
        micro_batches: r.count_under(root, batch, 1, MOST_MICRO_BATCHES) as u32,
        nodes: read_objects(r, "nodes", nodes, read_node),
        edges: read_objects(r, "edges", edges, |r, o| {
            r.refuse_unknown_keys(o, &["sourceId", "destId", "communicationCost"]);
            PiperEdge {
                source: read_layer_number(r, o, "sourceId"),
                destination: read_layer_number(r, o, "destId"),
                bytes: r.number_under(o, "communicationCost", 0.0, LARGEST),
            }
        }),
    }
}

fn read_objects<T>(
    r: &mut JsonReader,
    path: &str,
    list: &[Value],
    read: impl Fn(&mut JsonReader, &JsonObject<'_>) -> T,
) -> Vec<T> {
    let mut read_one = |(i, value)| {
        let object = r.object_at(&format!("{path}[{i}]"), value)?;
        Some(read(r, &object))
    };
    list.iter().enumerate().filter_map(&mut read_one).collect()
}

/// Reads a layer's number; returns 0 after a fault.
fn read_layer_number(r: &mut JsonReader, object: &JsonObject<'_>, key: &str) -> i64 {
    let Some(value) = r.value_of_key(object, key) else { return 0 };
    value.as_i64().unwrap_or_else(|| {
        r.add_fault(format!("{}{key}", object.path), value, "must be a whole number", "correct it");
        0
    })
}

fn read_node(r: &mut JsonReader, object: &JsonObject<'_>) -> PiperNode {
    r.refuse_unknown_keys(object, &["id", "name", "TMPCs"]);
    let mut choices = BTreeMap::new();
    let tables = r.object_under(object, "TMPCs");
    for (key, value) in tables.iter().flat_map(|tables| tables.entries()) {
        let path = format!("{}TMPCs.{key}", object.path);
        let degree = key.parse().ok().filter(|t| (1..=MOST_DEVICES).contains(t));
        let Some(degree) = degree else {
            let limit = format!("a tensor-parallel degree is a whole number between 1 and {MOST_DEVICES}");
            r.add_fault(path, "its key", limit, "name the list after its degree");
            continue;
        };
        let Some(list) = value.as_array() else {
            r.add_fault(path, value, "must be a list", "put it in [ ]");
            continue;
        };
        choices.insert(degree as u32, read_objects(r, &path, list, read_choice));
    }
    let name = if object.contains_key("name") { Some(r.text_under(object, "name").to_owned()) } else { None };
    let node = PiperNode { id: read_layer_number(r, object, "id"), name, choices };
    if node.choices.values().all(Vec::is_empty) && r.is_sound() {
        r.add_fault(
            format!("{}TMPCs", object.path),
            "{}",
            "a layer can be run in at least one way",
            "add a TMPC under a degree",
        );
    }
    node
}

fn read_choice(r: &mut JsonReader, object: &JsonObject<'_>) -> PiperChoice {
    let sizes = ["timePerSample", "parameterSize", "memoryUsageA", "memoryUsageB"];
    r.refuse_unknown_keys(object, &[&["id"][..], &sizes, &["syncTimeFw", "syncTimeBw"]].concat());
    let id = r.text_under(object, "id").to_owned();
    if id.is_empty() && r.is_sound() {
        r.add_fault(format!("{}id", object.path), "\"\"", "must not be empty", "name it");
    }
    let [time_per_sample, parameter_bytes, memory_a, memory_b] =
        sizes.map(|key| r.number_under(object, key, 0.0, LARGEST));
    PiperChoice {
        id,
        time_per_sample,
        parameter_bytes,
        memory_a,
        memory_b,
        sync_forward: read_sync(r, object, "syncTimeFw"),
        sync_backward: read_sync(r, object, "syncTimeBw"),
    }
}

fn read_sync(r: &mut JsonReader, object: &JsonObject<'_>, key: &str) -> BTreeMap<i64, f64> {
    let mut times = BTreeMap::new();
    let Some(table) = r.object_under(object, key) else { return times };
    for (neighbour, value) in table.entries() {
        let path = format!("{}{neighbour}", table.path);
        match neighbour.parse() {
            Ok(id) => {
                times.insert(id, r.number_at(&path, value, 0.0, LARGEST));
            }
            Err(_) => r.add_fault(path, value, "its key must be the number of a layer", "correct it"),
        }
    }
    times
}

/// Checks how the parts of a graph fit together.
fn check_graph(r: &mut JsonReader, instance: &PiperInstance) {
    let mut ids = BTreeSet::new();
    for (i, node) in instance.nodes.iter().enumerate() {
        if !ids.insert(node.id) {
            r.add_fault(format!("nodes[{i}].id"), node.id, "another layer has this number", "give every layer its own");
        }
        for (t, choices) in &node.choices {
            let mut names = BTreeSet::new();
            for (l, choice) in choices.iter().enumerate().filter(|(_, choice)| !names.insert(&choice.id)) {
                let at = format!("nodes[{i}].TMPCs.{t}[{l}].id");
                r.add_fault(at, &choice.id, "another TMPC of the layer and degree has this name", "give each its own");
            }
        }
    }
    let mut pairs = BTreeSet::new();
    for (i, edge) in instance.edges.iter().enumerate() {
        for (key, id) in [("sourceId", edge.source), ("destId", edge.destination)] {
            if !ids.contains(&id) {
                r.add_fault(format!("edges[{i}].{key}"), id, "no layer has this number", "name a layer of `nodes`");
            }
        }
        if edge.source == edge.destination {
            let value = format!("layer {} to itself", edge.source);
            r.add_fault(format!("edges[{i}]"), value, "must lead to another layer", "remove it");
        } else if !pairs.insert((edge.source, edge.destination)) {
            let value = format!("{} to {}", edge.source, edge.destination);
            r.add_fault(format!("edges[{i}]"), value, "is given twice", "add the costs up in one edge");
        }
    }
    if !r.is_sound() {
        return;
    }
    // Edges are checked first, because a surplus edge would also be reported as missing sync times in every choice of
    // two layers.
    match find_cycle(instance) {
        Some(ids) => {
            let round: Vec<String> = ids.iter().chain(ids.first()).map(ToString::to_string).collect();
            r.add_fault(
                "edges",
                format!("layers {}", round.join(" -> ")),
                "must not lead in a circle",
                "remove an edge of it",
            );
        }
        None => check_syncs(r, instance, &pairs),
    }
}

/// Checks that sync times match a layer's edges exactly.
fn check_syncs(r: &mut JsonReader, instance: &PiperInstance, pairs: &BTreeSet<(i64, i64)>) {
    for (i, node) in instance.nodes.iter().enumerate() {
        let incoming: BTreeSet<i64> = pairs.iter().filter(|(_, to)| *to == node.id).map(|(from, _)| *from).collect();
        let outgoing: BTreeSet<i64> = pairs.iter().filter(|(from, _)| *from == node.id).map(|(_, to)| *to).collect();
        for (t, choices) in &node.choices {
            for (l, choice) in choices.iter().enumerate() {
                let sides =
                    [("syncTimeFw", &choice.sync_forward, &incoming), ("syncTimeBw", &choice.sync_backward, &outgoing)];
                for (key, times, neighbours) in sides {
                    let at = format!("nodes[{i}].TMPCs.{t}[{l}].{key}");
                    if let Some(extra) = times.keys().find(|id| !neighbours.contains(id)) {
                        r.add_fault(
                            format!("{at}.{extra}"),
                            times[extra],
                            "there is no such edge",
                            "remove it, or add the edge",
                        );
                    }
                    if let Some(lacking) = neighbours.iter().find(|id| !times.contains_key(id)) {
                        r.add_fault(
                            format!("{at}.{lacking}"),
                            "nothing",
                            "every edge of the layer has one",
                            "add it, 0 if there is none",
                        );
                    }
                }
            }
        }
    }
}

/// Returns the layers of a cycle of edges; `None` if there is no cycle.
fn find_cycle(instance: &PiperInstance) -> Option<Vec<i64>> {
    let mut waiting: BTreeMap<i64, usize> = instance.nodes.iter().map(|node| (node.id, 0)).collect();
    for edge in &instance.edges {
        *waiting.entry(edge.destination).or_default() += 1;
    }
    let mut ready: Vec<i64> = waiting.iter().filter(|(_, n)| **n == 0).map(|(id, _)| *id).collect();
    while let Some(id) = ready.pop() {
        waiting.remove(&id);
        for edge in instance.edges.iter().filter(|edge| edge.source == id) {
            if let Some(n) = waiting.get_mut(&edge.destination) {
                *n -= 1;
                if *n == 0 {
                    ready.push(edge.destination);
                }
            }
        }
    }
    // Every waiting layer waits for another one, so following them backwards ends in a cycle.
    let mut path = vec![*waiting.keys().next()?];
    loop {
        let last = path.last().copied()?;
        let before =
            instance.edges.iter().find(|edge| edge.destination == last && waiting.contains_key(&edge.source))?.source;
        if let Some(at) = path.iter().position(|id| *id == before) {
            path.drain(..at);
            path.reverse();
            let first = path.iter().enumerate().min_by_key(|(_, id)| **id).map_or(0, |(at, _)| at);
            path.rotate_left(first);
            return Some(path);
        }
        path.push(before);
    }
}
