//! Tensors of a layer by their operators' names, and lists of tensors in a policy's text.

use super::{ActivationPolicy, Treatment, unknown_policy_error};
use crate::error::WorkloadError;
use crate::graph::{OperatorGraph, PartialOffload, TensorId, WHOLE};
use crate::layer_names::layer_prefixes;
use serde::{Deserialize, Serialize};
use sim::units::Bytes;
use std::collections::BTreeSet;
use std::fmt::Display;

/// The places of a layer's tensors between its forward and backward pass, by their operators' names. Tensors in no list
/// are dropped, and recomputed if needed.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
pub struct TensorPlaces {
    /// In host memory.
    pub host: BTreeSet<String>,
    /// In storage (NVMe).
    pub storage: BTreeSet<String>,
    /// On the device, besides the layer's input.
    pub device: BTreeSet<String>,
    /// The offloaded share of tokens, if some offloaded tensors move only in part; the other tokens stay on the device
    /// or are recomputed. `None` if all offloaded tensors move whole.
    pub share: Option<TokenShare>,
}

/// The share of tokens that is offloaded, for some tensors.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct TokenShare {
    /// The tensors.
    pub tensors: BTreeSet<String>,
    /// The share in millionths, above 0 and below 1,000,000.
    pub millionths: u32,
    /// True if the other tokens are dropped and recomputed (MEMO's token-wise recomputation) instead of kept.
    pub recomputed: bool,
}

impl TokenShare {
    /// Returns the smallest share of `tensor` that offloads at least `part` of its `bytes`. Returns `None` if that
    /// share is all or nothing.
    #[must_use]
    pub fn smallest_for_bytes(tensor: &str, bytes: Bytes, part: Bytes) -> Option<Self> {
        let millionths = (u128::from(part.0) * u128::from(WHOLE)).div_ceil(u128::from(bytes.0.max(1)));
        let millionths = u32::try_from(millionths).ok().filter(|m| (1..WHOLE).contains(&u64::from(*m)))?;
        Some(Self { tensors: BTreeSet::from([tensor.to_owned()]), millionths, recomputed: false })
    }

    /// Returns the offloaded part of a tensor's bytes.
    #[must_use]
    pub fn offloaded_bytes(&self, bytes: Bytes) -> Bytes {
        PartialOffload { tensors: BTreeSet::new(), millionths: self.millionths, recomputed: false }
            .offloaded_bytes(bytes)
    }
}

impl TensorPlaces {
    /// Applies storage and shares to a treatment in which the tensors of all lists are kept or offloaded.
    pub(super) fn to_placements(&self, graph: &OperatorGraph, mut treatment: Treatment) -> Treatment {
        if let Some(share) = &self.share {
            let named = tensors_by_name(graph, &share.tensors);
            let tensors: BTreeSet<TensorId> = named.intersection(&treatment.offloaded).copied().collect();
            let partly = PartialOffload { tensors, millionths: share.millionths, recomputed: share.recomputed };
            if partly.recomputed && !partly.tensors.is_empty() {
                // All other kept tensors are available while the remaining tokens are recomputed.
                let device = tensors_by_name(graph, &self.device).union(&treatment.kept).copied().collect();
                let away: BTreeSet<TensorId> =
                    tensors_by_name(graph, &self.offloaded_names()).union(&treatment.offloaded).copied().collect();
                treatment =
                    treatment.recompute_remainder(graph, &device, &away.difference(&named).copied().collect(), partly);
            } else {
                treatment.partly = Some(partly).filter(|partly| !partly.tensors.is_empty());
            }
        }
        treatment.stored = tensors_by_name(graph, &self.storage).intersection(&treatment.offloaded).copied().collect();
        treatment
    }

    /// Returns the names of all offloaded tensors.
    pub(super) fn offloaded_names(&self) -> BTreeSet<String> {
        self.host.union(&self.storage).cloned().collect()
    }
}

/// The name of a layer's input, without the layer's name.
const INPUT: &str = "input";

/// The text in a policy that requests recomputation of the tokens that are not offloaded.
const REST: &str = "rest(recompute)";

/// Returns the tensors with one of these names, in all layers of the graph.
pub(crate) fn tensors_by_name(graph: &OperatorGraph, names: &BTreeSet<String>) -> BTreeSet<TensorId> {
    let mut layers = layer_prefixes(graph);
    // In a block of layers, a plain name stands for all layers; a name with a layer's number stands for that layer.
    layers.push("layer".to_owned());
    let of_layer = |layer: &String| {
        names.iter().filter_map(|name| graph.find_tensor(&format!("{layer}.{name}"))).collect::<Vec<_>>()
    };
    layers.iter().flat_map(of_layer).collect()
}

/// Returns a policy's text, such as `tensors:offload(a,b*0.5)+nvme(c)+device(d)+rest(recompute)`.
pub(crate) fn write_policy(places: &TensorPlaces) -> String {
    let name = |name: &String| match places.share.as_ref().filter(|share| share.tensors.contains(name)) {
        Some(share) => format!("{name}*{}", f64::from(share.millionths) / WHOLE as f64),
        None => name.clone(),
    };
    let list = |place: &str, names: &BTreeSet<String>| {
        let names: Vec<String> = names.iter().map(name).collect();
        (!names.is_empty()).then(|| format!("{place}({})", names.join(",")))
    };
    let lists = [list("offload", &places.host), list("nvme", &places.storage), list("device", &places.device)];
    let mut parts: Vec<String> = lists.into_iter().flatten().collect();
    if parts.is_empty() {
        parts.push(format!("device({INPUT})"));
    }
    if places.share.as_ref().is_some_and(|share| share.recomputed) {
        parts.push(REST.to_owned());
    }
    format!("tensors:{}", parts.join("+"))
}

/// Parses the text that [`write_policy`] writes, without the prefix `tensors:`.
pub(crate) fn parse_policy(text: &str, parts: &str) -> Result<TensorPlaces, WorkloadError> {
    let bad = |cure: String| WorkloadError::BadRecompute { what: "policy", name: text.to_owned(), cure };
    let (rest, lists_of): (Vec<&str>, Vec<&str>) = parts.split('+').partition(|part| part.starts_with("rest"));
    if let Some(other) = rest.iter().find(|part| **part != REST) {
        return Err(bad(format!(
            "`{other}`: the tokens that are not offloaded stay or are recomputed: leave it out, or write `{REST}`"
        )));
    }
    if rest.len() > 1 {
        return Err(bad(format!("`{REST}` is given twice: give it once")));
    }
    let recomputed = !rest.is_empty();
    let mut share: Option<TokenShare> = None;
    let [host, mut device, storage] =
        parse_place_lists(text, &lists_of.join("+"), ["offload", "device", "nvme"], |written| {
            let Some((name, part)) = written.split_once('*') else { return Ok(written.to_owned()) };
            let millionths = part.trim().parse::<f64>().ok().map(|part| (part * WHOLE as f64).round());
            let millionths = millionths.filter(|m| (1.0..WHOLE as f64).contains(m)).ok_or_else(|| {
                bad(format!(
                    "`{written}`: the offloaded share of the tokens must be above 0 and below 1: write `{name}*0.5`"
                ))
            })?;
            let known = share.get_or_insert_with(|| TokenShare {
                tensors: BTreeSet::new(),
                millionths: millionths as u32,
                recomputed,
            });
            if known.millionths != millionths as u32 {
                let first = f64::from(known.millionths) / WHOLE as f64;
                return Err(bad(format!(
                    "`{written}`: all partly offloaded tensors have the same share, and the first one has {first}"
                )));
            }
            known.tensors.insert(name.trim().to_owned());
            Ok(name.trim().to_owned())
        })?;
    if let Some(name) = share.iter().flat_map(|share| &share.tensors).find(|name| device.contains(*name)) {
        return Err(bad(format!(
            "`{name}` stays on the device whole: only offloaded tensors have a share (offload, nvme)"
        )));
    }
    if recomputed && share.is_none() {
        return Err(bad(format!(
            "`{REST}` needs a partly offloaded tensor: write `offload(NAME*0.5)+{REST}`, or leave it out"
        )));
    }
    device.remove(INPUT);
    Ok(TensorPlaces { host, storage, device, share })
}

/// Parses `offload(a,b)+device(c)`, with the places in any order. Returns the lists in the order of `places`.
pub(crate) fn parse_place_lists<T: Ord + Display + Clone, const N: usize>(
    text: &str,
    parts: &str,
    places: [&'static str; N],
    mut read: impl FnMut(&str) -> Result<T, WorkloadError>,
) -> Result<[BTreeSet<T>; N], WorkloadError> {
    let mut found: [BTreeSet<T>; N] = std::array::from_fn(|_| BTreeSet::new());
    for part in parts.split('+') {
        let list = part.split_once('(').and_then(|(place, rest)| Some((place, rest.strip_suffix(')')?)));
        let (place, names) = list.ok_or_else(|| malformed_list_error(text, part))?;
        let at = places
            .iter()
            .position(|known| *known == place)
            .ok_or_else(|| unknown_policy_error("place", place, &places))?;
        if names.trim().is_empty() {
            return Err(malformed_list_error(text, part));
        }
        for name in names.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let name = read(name)?;
            if found.iter().enumerate().any(|(other, names)| other != at && names.contains(&name)) {
                return Err(WorkloadError::BadRecompute {
                    what: "policy",
                    name: text.to_owned(),
                    cure: format!("`{name}` is in two places: name it once"),
                });
            }
            if !found[at].insert(name.clone()) {
                return Err(WorkloadError::BadRecompute {
                    what: "policy",
                    name: text.to_owned(),
                    cure: format!("`{name}` is named twice: name it once"),
                });
            }
        }
    }
    Ok(found)
}

fn malformed_list_error(text: &str, part: &str) -> WorkloadError {
    let cure = format!(
        "`{part}` is not a list of tensors: write `custom:offload(decoder_layer_input,query_proj)+device(out_proj)`"
    );
    WorkloadError::BadRecompute { what: "policy", name: text.to_owned(), cure }
}

impl ActivationPolicy {
    /// Checks that the layer has every tensor that a [`Self::Tensors`] policy names.
    ///
    /// # Errors
    /// The first unknown name; the message lists all known names.
    pub fn check_names(&self, layer: &OperatorGraph) -> Result<(), WorkloadError> {
        let Self::Tensors(places) = self else { return Ok(()) };
        let known: Vec<&str> = layer.tensors.iter().filter_map(|t| t.name.strip_prefix("layer.")).collect();
        let of_all = |name: &str| {
            known.iter().any(|known| {
                known.split_once('.').is_some_and(|(number, rest)| rest == name && number.parse::<u32>().is_ok())
            })
        };
        match places
            .offloaded_names()
            .union(&places.device)
            .find(|name| !known.contains(&name.as_str()) && !of_all(name))
        {
            Some(name) => Err(unknown_policy_error("tensor", name, &known)),
            None => Ok(()),
        }
    }

    /// Returns the [`Self::Tensors`] policy that gives a layer this treatment.
    #[must_use]
    pub fn from_treatment(layer: &OperatorGraph, treatment: &Treatment) -> Self {
        let names = |tensors: &BTreeSet<TensorId>| {
            let named = tensors
                .iter()
                .filter_map(|t| layer.tensors.get(t.index())?.name.strip_prefix("layer.").map(str::to_owned));
            named.collect::<BTreeSet<_>>()
        };
        let (mut away, mut device, mut storage) =
            (names(&treatment.offloaded), names(&treatment.kept), names(&treatment.stored));
        device.remove(INPUT);
        let share = treatment.partly.as_ref().map(|partly| TokenShare {
            tensors: names(&partly.tensors),
            millionths: partly.millionths,
            recomputed: partly.recomputed,
        });
        if let Some(none) = share.as_ref().filter(|share| share.millionths == 0) {
            // No token is offloaded: the tensors stay whole, or are recomputed whole.
            away.retain(|name| !none.tensors.contains(name));
            storage.retain(|name| !none.tensors.contains(name));
            device.extend(none.tensors.iter().filter(|_| !none.recomputed).cloned());
        }
        let share = share.filter(|share| share.millionths > 0);
        let host = away.difference(&storage).cloned().collect();
        Self::Tensors(TensorPlaces { host, storage, device, share })
    }
}
