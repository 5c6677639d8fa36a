//! Tensors of a layer by the names that its operators give them, and lists of tensors in the text of a policy.

use super::{ActivationPolicy, Treatment, unknown};
use crate::error::WorkloadError;
use crate::graph::{OperatorGraph, TensorId};
use crate::layer_names::layers_in;
use std::collections::BTreeSet;
use std::fmt::Display;

/// The name of what enters a layer, without the layer's own.
const INPUT: &str = "input";

/// The tensors of the graph's layers that have one of these names.
pub(crate) fn by_name(graph: &OperatorGraph, names: &BTreeSet<String>) -> BTreeSet<TensorId> {
    let mut layers = layers_in(graph);
    // Of a block of layers a name is of all of them, or with its number of one.
    layers.push("layer".to_owned());
    let of_layer = |layer: &String| names.iter().filter_map(|name| graph.tensor(&format!("{layer}.{name}"))).collect::<Vec<_>>();
    layers.iter().flat_map(of_layer).collect()
}

/// A policy's text: `tensors:offload(a,b)+device(c)`.
pub(crate) fn written(host: &BTreeSet<String>, device: &BTreeSet<String>) -> String {
    let list = |place: &str, names: &BTreeSet<String>| {
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        (!names.is_empty()).then(|| format!("{place}({})", names.join(",")))
    };
    let mut parts: Vec<String> = [list("offload", host), list("device", device)].into_iter().flatten().collect();
    if parts.is_empty() {
        parts.push(format!("device({INPUT})"));
    }
    format!("tensors:{}", parts.join("+"))
}

/// Reads what [`written`] writes, its prefix left out.
pub(crate) fn read(text: &str, parts: &str) -> Result<(BTreeSet<String>, BTreeSet<String>), WorkloadError> {
    let (host, mut device) = lists(text, parts, |name| Ok(name.to_owned()))?;
    device.remove(INPUT);
    Ok((host, device))
}

/// Reads `offload(a,b)+device(c)`: either part may be missing.
pub(crate) fn lists<T: Ord + Display>(
    text: &str,
    parts: &str,
    read: impl Fn(&str) -> Result<T, WorkloadError>,
) -> Result<(BTreeSet<T>, BTreeSet<T>), WorkloadError> {
    let (mut host, mut device) = (BTreeSet::new(), BTreeSet::new());
    for part in parts.split('+') {
        let list = part.split_once('(').and_then(|(place, rest)| Some((place, rest.strip_suffix(')')?)));
        let (place, names) = list.ok_or_else(|| malformed(text, part))?;
        let target = match place {
            "offload" => &mut host,
            "device" => &mut device,
            _ => return Err(unknown("place", place, &["offload", "device"])),
        };
        if names.trim().is_empty() {
            return Err(malformed(text, part));
        }
        for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            target.insert(read(name)?);
        }
    }
    match host.intersection(&device).next() {
        None => Ok((host, device)),
        Some(both) => Err(WorkloadError::BadRecompute {
            what: "policy",
            name: text.to_owned(),
            cure: format!("`{both}` is both offloaded and kept on the device: name it once"),
        }),
    }
}

fn malformed(text: &str, part: &str) -> WorkloadError {
    let cure = format!("`{part}` is no list of tensors: write `custom:offload(decoder_layer_input,query_proj)+device(out_proj)`");
    WorkloadError::BadRecompute { what: "policy", name: text.to_owned(), cure }
}

impl ActivationPolicy {
    /// A name of a [`Self::Tensors`] that no tensor of a layer has, with those that there are.
    ///
    /// # Errors
    /// The first such name.
    pub fn check_names(&self, layer: &OperatorGraph) -> Result<(), WorkloadError> {
        let Self::Tensors { host, device } = self else { return Ok(()) };
        let known: Vec<&str> = layer.tensors.iter().filter_map(|t| t.name.strip_prefix("layer.")).collect();
        let of_all = |name: &str| {
            known
                .iter()
                .any(|known| known.split_once('.').is_some_and(|(number, rest)| rest == name && number.parse::<u32>().is_ok()))
        };
        match host.union(device).find(|name| !known.contains(&name.as_str()) && !of_all(name)) {
            Some(name) => Err(unknown("tensor", name, &known)),
            None => Ok(()),
        }
    }

    /// The policy that treats a layer so.
    #[must_use]
    pub fn of_treatment(layer: &OperatorGraph, treatment: &Treatment) -> Self {
        let names = |tensors: &BTreeSet<TensorId>| {
            let named =
                tensors.iter().filter_map(|t| layer.tensors.get(t.index())?.name.strip_prefix("layer.").map(str::to_owned));
            named.collect::<BTreeSet<_>>()
        };
        let (host, mut device) = (names(&treatment.offloaded), names(&treatment.kept));
        device.remove(INPUT);
        Self::Tensors { host, device }
    }
}
