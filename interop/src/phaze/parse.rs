//! Reads PHAZE's placement instance files.

use super::PlacementError;
use super::instance::{PhazeEdge, PhazeInstance, PhazeLayer, PhazeOptimizer, PhazeProblem, WidthGraph};
use serde_json::{Map, Value};
use sim::files::strict;
use std::collections::BTreeMap;
use std::path::Path;

/// Keys of the problem. The last four describe PHAZE's fixed baseline. It does not affect the optimum, so their values
/// are ignored.
const PROBLEM_KEYS: [&str; 12] = [
    "maxMemoryPerDevice",
    "maxDevices",
    "bandwidth",
    "mbsInBatch",
    "nodes",
    "edges",
    "activationRecomputation",
    "optimizerAlgorithm",
    "fixedPP",
    "fixedTMPC",
    "fixedDP",
    "numTransformerLayers",
];
const LAYER_KEYS: [&str; 6] =
    ["id", "parameterSize", "activationSize", "optimalLatencyFw", "optimalLatencyBw", "isTensorParallelized"];
const EDGE_KEYS: [&str; 3] = ["sourceId", "destId", "communicationCost"];
/// Keys next to the problem that a bare problem may also have.
const COMPANIONS: [&str; 2] = ["meta", "expected"];
/// PHAZE's infinity: a recorded time of at least this means "infeasible".
const INFEASIBLE_TIME: f64 = 1e29;

impl PhazeInstance {
    /// Reads an instance from JSON: the problem itself, or an object that holds it under `input` (its other keys are
    /// ignored).
    ///
    /// # Errors
    /// Text that is not JSON, missing or unknown keys of the problem, values of the wrong type, and everything that
    /// [`PhazeInstance::new`] rejects.
    pub fn from_json_str(text: &str) -> Result<Self, PlacementError> {
        let root = as_object("the file", &parse_json(text)?)?.clone();
        match root.get("input") {
            Some(input) => Self::new(parse_problem(as_object("input", input)?)?),
            None => Self::new(parse_problem(&root)?),
        }
    }

    /// Reads an instance file.
    ///
    /// # Errors
    /// Those of [`PhazeInstance::from_json_str`], with the name of the file, and a file that cannot be read.
    pub fn read_file(path: impl AsRef<Path>) -> Result<Self, PlacementError> {
        let path = path.as_ref();
        let text = sim::files::text::read_text(path)
            .map_err(|source| PlacementError::Unreadable { path: path.to_owned(), source })?;
        Self::from_json_str(&text)
            .map_err(|source| PlacementError::InFile { path: path.to_owned(), source: Box::new(source) })
    }
}

/// The answer recorded in an instance file next to its problem.
#[derive(Debug, Clone, PartialEq)]
pub struct Recorded {
    /// The optimal time per batch, in the unit of the latencies; `None` if the instance is infeasible.
    pub time_per_batch: Option<f64>,
    /// The optimal time per batch of each tensor width alone; `None` if no plan fits.
    pub per_width: BTreeMap<usize, Option<f64>>,
    /// Seconds PHAZE's own search took (compiled -O2, one core of a 2-core machine), if recorded.
    pub phaze_seconds: Option<f64>,
}

impl Recorded {
    /// Reads the `expected` part of an instance file; `None` if the file has none.
    ///
    /// # Errors
    /// Text that is not JSON, an `expected` without a time, or a time below 0.
    pub fn from_json_str(text: &str) -> Result<Option<Self>, PlacementError> {
        let root = parse_json(text)?;
        let Some(expected) = root.get("expected").filter(|value| !value.is_null()) else { return Ok(None) };
        let expected = as_object("expected", expected)?;
        let feasible = |time: f64| Some(time).filter(|&time| time < INFEASIBLE_TIME);
        let mut per_width = BTreeMap::new();
        if let Some(widths) = expected.get("time_per_batch_per_width") {
            for (key, value) in as_object("expected.time_per_batch_per_width", widths)? {
                let at = format!("expected.time_per_batch_per_width.{key}");
                per_width.insert(parse_width(&at, key)?, feasible(parse_time(&at, as_number(&at, value)?)?));
            }
        }
        let seconds = |value| parse_time("expected.phaze_seconds", as_number("expected.phaze_seconds", value)?);
        let phaze_seconds = expected.get("phaze_seconds").map(seconds);
        Ok(Some(Self {
            time_per_batch: feasible(parse_time(
                "expected.time_per_batch",
                parse_number(expected, "expected.", "time_per_batch")?,
            )?),
            per_width,
            phaze_seconds: phaze_seconds.transpose()?,
        }))
    }
}

fn parse_json(text: &str) -> Result<Value, PlacementError> {
    strict::parse_strict(text).map_err(|source| PlacementError::NotJson { source })
}

fn parse_problem(object: &Map<String, Value>) -> Result<PhazeProblem, PlacementError> {
    check_known_keys("", object, &PROBLEM_KEYS, &COMPANIONS)?;
    let optimizer = match parse_text(object, "optimizerAlgorithm")? {
        "SGD" => PhazeOptimizer::Sgd,
        "Adam" => PhazeOptimizer::Adam,
        other => {
            return Err(PlacementError::OutOfRange {
                at: "optimizerAlgorithm".into(),
                value: format!("{other:?}"),
                limit: "only SGD and Adam are known".into(),
                cure: "write \"SGD\" or \"Adam\"",
            });
        }
    };
    Ok(PhazeProblem {
        max_memory_per_device: parse_number(object, "", "maxMemoryPerDevice")?,
        max_devices: parse_count(object, "maxDevices", false)?,
        bandwidth: parse_number(object, "", "bandwidth")?,
        // PHAZE reads this number into an integer: 7.9 micro-batches are 7.
        micro_batches: parse_count(object, "mbsInBatch", true)?,
        activation_recomputation: parse_flag(object, "", "activationRecomputation")?,
        optimizer,
        graphs: parse_graphs(object)?,
    })
}

fn parse_graphs(object: &Map<String, Value>) -> Result<BTreeMap<usize, WidthGraph>, PlacementError> {
    let nodes =
        as_object("nodes", required_field(object, "", "nodes", "an object with one list of layers per tensor width")?)?;
    let edges =
        as_object("edges", required_field(object, "", "edges", "an object with one list of edges per tensor width")?)?;
    let mut graphs = BTreeMap::new();
    for (key, value) in nodes {
        let at = format!("nodes.\"{key}\"");
        let layers = parse_list(&at, value, parse_layer)?;
        let place = format!("edges.\"{key}\"");
        let value = edges.get(key);
        let value = value.ok_or(PlacementError::Missing { at: place.clone(), expected: "the edges of that width" })?;
        let graph = WidthGraph { layers, edges: parse_list(&place, value, parse_edge)? };
        let width = parse_width(&at, key)?;
        if graphs.insert(width, graph).is_some() {
            return Err(PlacementError::OutOfRange {
                at,
                value: key.clone(),
                limit: format!("width {width} has a graph already"),
                cure: "give each tensor width once",
            });
        }
    }
    if let Some(key) = edges.keys().find(|&key| !nodes.contains_key(key)) {
        return Err(PlacementError::Missing { at: format!("nodes.\"{key}\""), expected: "the layers of that width" });
    }
    Ok(graphs)
}

fn parse_layer(at: &str, object: &Map<String, Value>) -> Result<PhazeLayer, PlacementError> {
    check_known_keys(at, object, &LAYER_KEYS, &[])?;
    Ok(PhazeLayer {
        id: parse_id(object, at, "id")?,
        parameter_bytes: parse_number(object, at, "parameterSize")?,
        activation_bytes: parse_number(object, at, "activationSize")?,
        forward: parse_number(object, at, "optimalLatencyFw")?,
        backward: parse_number(object, at, "optimalLatencyBw")?,
        tensor_parallel: parse_flag(object, at, "isTensorParallelized")?,
    })
}

fn parse_edge(at: &str, object: &Map<String, Value>) -> Result<PhazeEdge, PlacementError> {
    check_known_keys(at, object, &EDGE_KEYS, &[])?;
    Ok(PhazeEdge {
        source: parse_id(object, at, "sourceId")?,
        destination: parse_id(object, at, "destId")?,
        bytes: parse_number(object, at, "communicationCost")?,
    })
}

fn parse_list<T>(
    at: &str,
    value: &Value,
    item: fn(&str, &Map<String, Value>) -> Result<T, PlacementError>,
) -> Result<Vec<T>, PlacementError> {
    let items = value.as_array().ok_or_else(|| wrong_type(at, value, "a list"))?;
    items
        .iter()
        .enumerate()
        .map(|(index, value)| {
            let place = format!("{at}[{index}]");
            let object = as_object(&place, value)?;
            item(&format!("{place}."), object)
        })
        .collect()
}

fn check_known_keys(
    at: &str,
    object: &Map<String, Value>,
    known: &[&str],
    also: &[&str],
) -> Result<(), PlacementError> {
    match object.keys().find(|key| !known.contains(&key.as_str()) && !also.contains(&key.as_str())) {
        Some(key) => Err(PlacementError::UnknownKey { at: format!("{at}{key}"), known: known.join(", ") }),
        None => Ok(()),
    }
}

fn required_field<'a>(
    object: &'a Map<String, Value>,
    at: &str,
    key: &str,
    expected: &'static str,
) -> Result<&'a Value, PlacementError> {
    object.get(key).ok_or_else(|| PlacementError::Missing { at: format!("{at}{key}"), expected })
}

fn wrong_type(at: &str, value: &Value, expected: &'static str) -> PlacementError {
    let mut found = value.to_string();
    if found.chars().count() > 40 {
        found = found.chars().take(37).chain("...".chars()).collect();
    }
    PlacementError::WrongType { at: at.to_owned(), found, expected }
}

fn as_object<'a>(at: &str, value: &'a Value) -> Result<&'a Map<String, Value>, PlacementError> {
    value.as_object().ok_or_else(|| wrong_type(at, value, "an object"))
}

fn as_number(at: &str, value: &Value) -> Result<f64, PlacementError> {
    value.as_f64().ok_or_else(|| wrong_type(at, value, "a number"))
}

fn parse_number(object: &Map<String, Value>, at: &str, key: &str) -> Result<f64, PlacementError> {
    as_number(&format!("{at}{key}"), required_field(object, at, key, "a number")?)
}

fn parse_flag(object: &Map<String, Value>, at: &str, key: &str) -> Result<bool, PlacementError> {
    let value = required_field(object, at, key, "true or false")?;
    value.as_bool().ok_or_else(|| wrong_type(&format!("{at}{key}"), value, "true or false"))
}

fn parse_text<'a>(object: &'a Map<String, Value>, key: &str) -> Result<&'a str, PlacementError> {
    let value = required_field(object, "", key, "a string")?;
    value.as_str().ok_or_else(|| wrong_type(key, value, "a string"))
}

fn parse_id(object: &Map<String, Value>, at: &str, key: &str) -> Result<i64, PlacementError> {
    let value = required_field(object, at, key, "a whole number")?;
    value.as_i64().ok_or_else(|| wrong_type(&format!("{at}{key}"), value, "a whole number"))
}

/// Checks that a recorded time is at least 0.
fn parse_time(at: &str, time: f64) -> Result<f64, PlacementError> {
    if time >= 0.0 {
        return Ok(time);
    }
    Err(PlacementError::OutOfRange {
        at: at.to_owned(),
        value: time.to_string(),
        limit: "a time is at least 0 (1e30: infeasible)".into(),
        cure: "correct it or remove `expected`",
    })
}

/// Reads a count of at least 1. With `truncate`, a fraction is cut off instead of rejected.
fn parse_count(object: &Map<String, Value>, key: &str, truncate: bool) -> Result<usize, PlacementError> {
    let value = required_field(object, "", key, "a whole number")?;
    let number = as_number(key, value)?;
    if !truncate && number.fract() != 0.0 {
        return Err(wrong_type(key, value, "a whole number"));
    }
    if !(1.0..=f64::from(i32::MAX)).contains(&number) {
        return Err(PlacementError::OutOfRange {
            at: key.to_owned(),
            value: number.to_string(),
            limit: format!("it must be from 1 to {}", i32::MAX),
            cure: "give a count of at least one",
        });
    }
    Ok(number as usize)
}

fn parse_width(at: &str, key: &str) -> Result<usize, PlacementError> {
    key.trim().parse().map_err(|_| PlacementError::OutOfRange {
        at: at.to_owned(),
        value: format!("{key:?}"),
        limit: "a tensor width is a whole number of at least 1".into(),
        cure: "name the graph after its tensor width",
    })
}
