//! Effects of memory techniques on a stage's memory: bytes by class instead of bytes per parameter, offloaded bytes,
//! planned addresses.

use crate::SoftwareStack;
use crate::memory::addresses::plan_addresses;
use crate::memory::zero_states::{ResidentBytes, ZeroSharding};
use sim::units::Bytes;
use workloads::graph::OperatorGraph;
use workloads::memory::{BytesByPlace, SegmentStatics, StaticBytes};
use workloads::{Release, SegmentKind, TrainingGraph, Treatment};

/// Effects of memory techniques on a lowered model.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub(crate) struct TechniqueMemory {
    embedding: StaticBytes,
    layer: StaticBytes,
    head: StaticBytes,
    head_apart: StaticBytes,
    /// Bytes of a master weight and of a gradient, if the stack stores master weights that are wider than gradients;
    /// otherwise (1, 1). Gradients grow by the ratio.
    widened: (u64, u64),
    /// True if fragmentation wastes nothing.
    pub(crate) planned_addresses: bool,
    /// Number of layers per device whose activations are never offloaded.
    pub(crate) buffered_layers: u64,
}

/// Offloaded bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct OffloadedModelBytes {
    pub(crate) host: Bytes,
    pub(crate) storage: Bytes,
    /// Read-only data, in host memory and in storage.
    pub(crate) read_only: [Bytes; 2],
    /// Bytes in storage that an update writes: weights, master weights and states.
    pub(crate) updated: Bytes,
    /// Gradients in storage, which every micro-batch writes.
    pub(crate) gradients: Bytes,
}

impl TechniqueMemory {
    /// Returns the effects of a lowered model's techniques; `None` if none was applied.
    pub(crate) fn new(training: &TrainingGraph, stack: &SoftwareStack) -> Option<Self> {
        let applied = training.applied.as_ref()?;
        let of = |kind| training.segment(kind).and_then(|s| s.statics.as_deref()).copied().unwrap_or_default();
        let [embedding, layer, head]: [SegmentStatics; 3] =
            [SegmentKind::Embedding, SegmentKind::Layer, SegmentKind::Head].map(of);
        let per = training.segments[0].bytes_per_parameter();
        let wide = stack.memory.stored_master && per.master > per.gradient;
        let settled = training.segment(SegmentKind::Layer).map(|s| &s.graph.settled);
        Some(Self {
            embedding: embedding.own,
            layer: layer.own,
            head: head.own,
            head_apart: head.apart,
            widened: if wide { (per.master.0, per.gradient.0.max(1)) } else { (1, 1) },
            planned_addresses: applied.planned_addresses,
            buffered_layers: settled.map_or(0, |s| s.buffered_layers),
        })
    }

    /// Returns the resident and the offloaded bytes of `layers` layers and of the ends on a device, under ZeRO
    /// sharding.
    pub(crate) fn resident_bytes(
        &self,
        sharding: &ZeroSharding,
        layers: u64,
        [embedding, head]: [bool; 2],
        stored_master: bool,
    ) -> (ResidentBytes, OffloadedModelBytes) {
        let mut all = self.layer.times_pieces(layers);
        if embedding {
            all = all.plus(self.embedding);
        }
        if head {
            all = all.plus(if embedding { self.head } else { self.head_apart });
        }
        let sum = |of: fn(&BytesByPlace) -> workloads::graph::Parameters| {
            let [weights, gradients, states] = sharding.zero_sharded_classes();
            sharding.share_of(of(&all.weights).plus(of(&all.copies)), weights)
                + sharding.share_of(of(&all.gradients), gradients)
                + sharding.share_of(of(&all.masters), states)
                + sharding.share_of(of(&all.states), states)
                + of(&all.stock).per_device_count()
        };
        let read_only = [all.stock.host, all.stock.nvme].map(|stock| Bytes(stock.per_device_count()));
        let stored = |placed: &BytesByPlace, class: usize| {
            sharding.share_of(placed.nvme, sharding.zero_sharded_classes()[class])
        };
        let away = OffloadedModelBytes {
            host: Bytes(sum(|p| p.host)),
            storage: Bytes(sum(|p| p.nvme)),
            read_only,
            updated: Bytes(stored(&all.weights, 0) + stored(&all.masters, 2) + stored(&all.states, 2)),
            gradients: Bytes(stored(&all.gradients, 1)),
        };
        // Without master weights, the stored weights are narrow, and so are the gradients.
        let masters = [all.masters.device, all.masters.host, all.masters.nvme];
        let has_masters = masters.into_iter().any(|bytes| bytes.per_device_count() > 0);
        let (wide, narrow) = if has_masters { self.widened } else { (1, 1) };
        (
            sharding.resident_static_bytes(&all, stored_master, |gradient| {
                (u128::from(gradient) * u128::from(wide) / u128::from(narrow)) as u64
            }),
            away,
        )
    }
}

/// Returns whether a technique or the stack plans addresses ahead.
fn plans_addresses(changed: Option<&TechniqueMemory>, stack: &SoftwareStack) -> bool {
    stack.memory.planned_addresses || changed.is_some_and(|changed| changed.planned_addresses)
}

/// Returns the fraction of the live bytes that fragmentation wastes.
pub(crate) fn fragmented_fraction(changed: Option<&TechniqueMemory>, stack: &SoftwareStack) -> f64 {
    if plans_addresses(changed, stack) { 0.0 } else { stack.memory.fragmentation }
}

/// Returns the bytes of a layer's working set: the most bytes alive at once, or the packed size if addresses are
/// planned. The kept blocks of different layers are alike and replace each other, so planned ones leave no gaps.
pub(crate) fn working_set_of_layer(
    treatment: &Treatment,
    layer: &OperatorGraph,
    changed: Option<&TechniqueMemory>,
    stack: &SoftwareStack,
    release: Release,
) -> Bytes {
    if plans_addresses(changed, stack) {
        treatment.lifetimes(layer).iter().map(|pass| plan_addresses(pass).peak).max().unwrap_or_default()
    } else {
        treatment.transient_bytes(layer, release)
    }
}
