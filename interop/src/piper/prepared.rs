//! Prepares an instance for the search: the suffixes that a cut can leave, and the layers of each stage in classes of
//! equal cost.
//!
//! A *suffix* is a set of layers that contains all successors of its layers: the part behind a cut. A stage is the
//! difference of two suffixes. Stages are built from the last one, because memory counts the copies of a stage and of
//! those after it.

use super::{PiperChoice, PiperError, PiperInstance};
use std::collections::BTreeMap;

/// Limit on the suffixes of a graph; a chain of n layers has n + 1.
pub(super) const MOST_CUTS: usize = 4_096;
/// Limit on the stages (pairs of suffixes, by degree).
const MOST_STAGES: usize = 600_000;

/// One option of each layer in a class, with its costs on one device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct ClassOption {
    /// Seconds per micro-batch of one copy.
    pub time: f64,
    /// Bytes that cross the stage's border per micro-batch.
    pub border: f64,
    /// Bytes of weights whose gradients are exchanged.
    pub parameters: f64,
    /// Bytes per micro-batch in flight, and fixed bytes.
    pub memory: (f64, f64),
}

/// Layers of a stage with equal options.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct LayerClass {
    /// Number of layers in the class.
    pub count: u32,
    /// The options, in the order of the layers' choices.
    pub options: Vec<ClassOption>,
}

/// A stage: the layers of one suffix that are not in a smaller one.
#[derive(Debug, Clone)]
pub(super) struct SuffixStages {
    /// The smaller suffix.
    pub rest: usize,
    /// The stage's classes by tensor-parallel degree. Degrees that a layer lacks, or at which the stage does not fit a
    /// device, are left out.
    pub widths: Vec<(u32, Vec<LayerClass>)>,
}

/// A set of layers as bits.
pub(super) type LayerSet = Vec<u64>;

/// A prepared instance.
#[derive(Debug)]
pub(super) struct PreparedGraph<'a> {
    pub instance: &'a PiperInstance,
    /// All suffixes, by size; the first is empty, the last has every layer.
    pub suffixes: Vec<LayerSet>,
    /// Per suffix, the stages that begin it.
    pub stages: Vec<Vec<SuffixStages>>,
    /// Data-parallel degrees, ascending: divisors of the micro-batches up to the devices.
    pub degrees: Vec<u32>,
    /// Limit on the copies of stages: the micro-batches or the devices, whichever is less.
    pub most_copies: u32,
    /// The predecessors of each layer, and its successors, with the bytes of the edges.
    before: Vec<Vec<(usize, f64)>>,
    behind: Vec<Vec<(usize, f64)>>,
}

fn has_layer(set: &LayerSet, layer: usize) -> bool {
    set[layer / 64] >> (layer % 64) & 1 == 1
}

/// Returns the layers of `set` that are not in `less`.
pub(super) fn layers_without(set: &LayerSet, less: &LayerSet) -> Vec<usize> {
    let bits =
        |(word, left): (usize, u64)| (0..64).filter(move |bit| left >> bit & 1 == 1).map(move |bit| word * 64 + bit);
    set.iter().zip(less).map(|(a, b)| a & !b).enumerate().flat_map(bits).collect()
}

impl<'a> PreparedGraph<'a> {
    pub fn new(instance: &'a PiperInstance) -> Result<Self, PiperError> {
        let index: BTreeMap<i64, usize> = instance.nodes.iter().enumerate().map(|(i, node)| (node.id, i)).collect();
        let n = instance.nodes.len();
        let (mut before, mut behind) = (vec![Vec::new(); n], vec![Vec::new(); n]);
        for edge in &instance.edges {
            if let (Some(&from), Some(&to)) = (index.get(&edge.source), index.get(&edge.destination)) {
                before[to].push((from, edge.bytes));
                behind[from].push((to, edge.bytes));
            }
        }
        let suffixes = all_suffixes(n, &before, &behind)?;
        let most_copies = instance.micro_batches.min(instance.max_devices);
        let degrees = (1..=most_copies).filter(|d| instance.micro_batches.is_multiple_of(*d)).collect();
        let mut prepared = Self { instance, suffixes, stages: Vec::new(), degrees, most_copies, before, behind };
        let mut kept = 0;
        for whole in 0..prepared.suffixes.len() {
            let stages = prepared.stages_of_suffix(whole);
            kept += stages.iter().map(|s| s.widths.len()).sum::<usize>();
            if kept > MOST_STAGES {
                return Err(PiperError::TooManyStages { limit: MOST_STAGES });
            }
            prepared.stages.push(stages);
        }
        Ok(prepared)
    }

    fn stages_of_suffix(&self, whole: usize) -> Vec<SuffixStages> {
        let set = &self.suffixes[whole];
        let inside = |rest: &LayerSet| rest.iter().zip(set).all(|(a, b)| a & !b == 0);
        let mut stages = Vec::new();
        for (rest, smaller) in self.suffixes[..whole].iter().enumerate().filter(|(_, rest)| inside(rest)) {
            let layers = layers_without(set, smaller);
            let Some(first) = layers.first() else { continue };
            let degrees =
                self.instance.nodes[*first].choices.keys().copied().filter(|t| *t <= self.instance.max_devices);
            let width = |t: u32| Some((t, self.layer_classes(&layers, t, set, smaller)?));
            let widths: Vec<_> = degrees.filter_map(width).filter(|(_, classes)| self.fits_at_all(classes)).collect();
            if !widths.is_empty() {
                stages.push(SuffixStages { rest, widths });
            }
        }
        stages
    }

    /// Returns the layers in classes of equal options at degree `t`; `None` if a layer has no option.
    fn layer_classes(&self, layers: &[usize], t: u32, set: &LayerSet, rest: &LayerSet) -> Option<Vec<LayerClass>> {
        let mut classes: Vec<LayerClass> = Vec::new();
        for &layer in layers {
            let options = self.options_of_layer(layer, t, set, rest)?;
            match classes.iter_mut().find(|class| class.options == options) {
                Some(class) => class.count += 1,
                None => classes.push(LayerClass { count: 1, options }),
            }
        }
        Some(classes)
    }

    /// Returns the options of a layer in the stage between two suffixes; `None` if it has none at degree `t`.
    pub fn options_of_layer(&self, layer: usize, t: u32, set: &LayerSet, rest: &LayerSet) -> Option<Vec<ClassOption>> {
        let choices = self.instance.nodes[layer].choices.get(&t).filter(|choices| !choices.is_empty())?;
        let id = |other: usize| self.instance.nodes[other].id;
        let option = |choice: &PiperChoice| {
            let sync = |table: &BTreeMap<i64, f64>, other| table.get(&id(other)).copied().unwrap_or_default();
            // A predecessor outside the stage's suffix lies in an earlier stage. A successor in the smaller suffix lies
            // in a later stage.
            let entering = self.before[layer].iter().filter(|(other, _)| !has_layer(set, *other));
            let leaving = self.behind[layer].iter().filter(|(other, _)| has_layer(rest, *other));
            let entering: f64 = entering.map(|(other, bytes)| bytes + sync(&choice.sync_forward, *other)).sum();
            let leaving: f64 = leaving.map(|(other, bytes)| bytes + sync(&choice.sync_backward, *other)).sum();
            ClassOption {
                time: choice.time_per_sample,
                border: 2.0 * (entering + leaving),
                parameters: choice.parameter_bytes,
                memory: (choice.memory_a, choice.memory_b),
            }
        };
        Some(choices.iter().map(option).collect())
    }

    /// True if the least memory of all classes together fits with one micro-batch in flight.
    fn fits_at_all(&self, classes: &[LayerClass]) -> bool {
        least_stage_memory(classes, 1.0) <= self.instance.max_memory_per_device
    }

    /// Explains why no plan fits.
    pub fn explain_infeasible(&self) -> String {
        let limit = self.instance.max_memory_per_device;
        let least = |choices: &BTreeMap<u32, Vec<PiperChoice>>| {
            let usable = choices.iter().filter(|(t, _)| **t <= self.instance.max_devices);
            usable.flat_map(|(_, list)| list).map(|c| c.memory_a + c.memory_b).fold(f64::INFINITY, f64::min)
        };
        let needs = self.instance.nodes.iter().map(|node| (node.id, least(&node.choices)));
        let (id, need) = needs.fold((0, 0.0), |worst, next| if next.1 > worst.1 { next } else { worst });
        if need > limit {
            let need =
                if need.is_finite() { format!("needs {need} bytes") } else { "can be run at no degree".to_owned() };
            return format!(
                "layer {id} {need} even alone, a device has {limit} and there are {}",
                self.instance.max_devices
            );
        }
        format!(
            "every layer fits a device of {limit} bytes alone, no split into stages fits {} such devices: give more devices or memory",
            self.instance.max_devices
        )
    }
}

/// Returns the least memory, in bytes, of a stage with `in_flight` micro-batches in flight.
pub(super) fn least_stage_memory(classes: &[LayerClass], in_flight: f64) -> f64 {
    let of = |option: &ClassOption| option.memory.0 * in_flight + option.memory.1;
    classes
        .iter()
        .map(|class| class.options.iter().map(of).fold(f64::INFINITY, f64::min) * f64::from(class.count))
        .sum()
}

/// Returns all suffixes of a graph, ascending by size. Fails if there are more than [`MOST_CUTS`].
fn all_suffixes(
    n: usize,
    before: &[Vec<(usize, f64)>],
    behind: &[Vec<(usize, f64)>],
) -> Result<Vec<LayerSet>, PiperError> {
    let mut known: BTreeMap<LayerSet, ()> = BTreeMap::new();
    let empty: LayerSet = vec![0; n.div_ceil(64)];
    known.insert(empty.clone(), ());
    let mut all = vec![empty];
    let mut at = 0;
    while at < all.len() {
        let set = all[at].clone();
        at += 1;
        let ready =
            |layer: &usize| !has_layer(&set, *layer) && behind[*layer].iter().all(|(other, _)| has_layer(&set, *other));
        for layer in (0..n).filter(ready) {
            let mut larger = set.clone();
            larger[layer / 64] |= 1 << (layer % 64);
            if known.insert(larger.clone(), ()).is_none() {
                all.push(larger);
            }
        }
        if all.len() > MOST_CUTS {
            return Err(PiperError::TooManyCuts {
                layers: n,
                edges: before.iter().map(Vec::len).sum(),
                limit: MOST_CUTS,
            });
        }
    }
    // The levels are already in the order of size.
    Ok(all)
}
