//! The network as a step sees it ([`StepNetwork`]): a fabric with ranks in device order, ranks placed on measured
//! links, or a table of known times. A step's time is the same function of the network's answers in all cases.

use crate::communication::contention::{Communication, PortTimes};
use sim::kernel::{Collective, CollectiveKind, RankGroup};
use sim::network::{CollectiveCost, Fabric, sibling_groups};
use sim::units::{Bytes, Seconds};
use workloads::{Layout, RankOrder};

/// The network's answers to a step. Times exclude the gap between two launches. An implementation must never answer
/// with a shorter time if a link is slower.
pub trait StepNetwork {
    /// Returns the number of devices in one unit of the innermost tier; hybrid sharding stays inside it.
    fn fast_domain_size(&self) -> u32;

    /// Returns the time from a collective's launch to its start, if no earlier work hides it.
    fn launch_time(&self) -> Seconds;

    /// Returns the cost of a collective that all groups of its pattern run at the same time.
    fn cost_of_collective(&self, collective: &Collective) -> Communication;

    /// Returns the cost of a send between neighbouring stages whose ranks cross `tier`.
    fn cost_of_send(&self, layout: &Layout, tier: usize, bytes: Bytes) -> Communication;

    /// Returns the cost of summing a tied embedding's two gradients, between the first stage and the last.
    fn time_of_tied_sum(&self, layout: &Layout, bytes: Bytes) -> Communication;

    /// Returns the outermost tier between any rank of one stage and its counterpart in another, over all pipelines.
    fn tier_between(&self, layout: &Layout, a: u32, b: u32) -> usize;
}

/// A fabric with ranks in device order.
impl StepNetwork for Fabric {
    fn fast_domain_size(&self) -> u32 {
        Self::fast_domain_devices(self)
    }

    fn launch_time(&self) -> Seconds {
        self.launch
    }

    fn cost_of_collective(&self, collective: &Collective) -> Communication {
        communication_of_cost(&Self::cost_of_collective(self, collective))
    }

    fn cost_of_send(&self, layout: &Layout, tier: usize, bytes: Bytes) -> Communication {
        if self.links_differ() {
            return PlacedNetwork::devices_in_order(self).cost_of_send(layout, tier, bytes);
        }
        let unit = tier.checked_sub(1).and_then(|below| self.tiers.get(below)).map_or(1, |below| below.devices);
        let group = RankGroup { ranks: 2, stride: layout.stage_stride().max(unit) };
        StepNetwork::cost_of_collective(self, &Collective { kind: CollectiveKind::SendRecv, bytes, group })
    }

    fn time_of_tied_sum(&self, layout: &Layout, bytes: Bytes) -> Communication {
        if self.links_differ() {
            return PlacedNetwork::devices_in_order(self).time_of_tied_sum(layout, bytes);
        }
        let group = RankGroup { ranks: 2, stride: layout.stage_stride() * (layout.pipeline - 1) };
        StepNetwork::cost_of_collective(self, &Collective { kind: CollectiveKind::AllReduce, bytes, group })
    }

    fn tier_between(&self, layout: &Layout, a: u32, b: u32) -> usize {
        outermost_tier_between(self, layout, a, b)
    }
}

/// Ranks on given devices of a fabric with measured links.
#[derive(Debug, Clone)]
pub struct PlacedNetwork<'a> {
    fabric: &'a Fabric,
    /// `devices[rank]`.
    devices: Vec<u32>,
}

impl<'a> PlacedNetwork<'a> {
    /// Places ranks: `devices[rank]` is the device of each rank, a permutation of the fabric's devices.
    #[must_use]
    pub fn new(fabric: &'a Fabric, devices: Vec<u32>) -> Self {
        Self { fabric, devices }
    }

    fn devices_in_order(fabric: &'a Fabric) -> Self {
        Self::new(fabric, (0..fabric.device_count()).collect())
    }

    fn devices_of_group(
        &self,
        kind: CollectiveKind,
        bytes: Bytes,
        groups: impl Iterator<Item = Vec<u32>>,
    ) -> Communication {
        let devices = |group: Vec<u32>| group.into_iter().map(|rank| self.devices[rank as usize]).collect();
        self.fabric
            .collective_among(kind, bytes, groups.map(devices))
            .map_or_else(Communication::default, |c| communication_of_cost(&c))
    }

    /// Returns the outermost tier between the stages `lower` and `lower + 1`.
    fn outermost_tier(&self, layout: &Layout, lower: u32) -> usize {
        let at = |rank: u32| self.devices[rank as usize];
        stage_rank_pairs(layout, lower, lower + 1)
            .map(|[a, b]| self.fabric.meeting_tier(at(a), at(b)))
            .max()
            .unwrap_or(0)
    }
}

impl StepNetwork for PlacedNetwork<'_> {
    fn fast_domain_size(&self) -> u32 {
        self.fabric.fast_domain_devices()
    }

    fn launch_time(&self) -> Seconds {
        self.fabric.launch
    }

    fn cost_of_collective(&self, collective: &Collective) -> Communication {
        self.devices_of_group(
            collective.kind,
            collective.bytes,
            sibling_groups(collective.group, self.devices.len() as u32),
        )
    }

    fn cost_of_send(&self, layout: &Layout, tier: usize, bytes: Bytes) -> Communication {
        let crossing = (1..layout.pipeline).filter(|next| self.outermost_tier(layout, next - 1) == tier);
        let pairs = crossing.flat_map(|next| stage_rank_pairs(layout, next - 1, next)).map(|pair| pair.to_vec());
        self.devices_of_group(CollectiveKind::SendRecv, bytes, pairs)
    }

    fn time_of_tied_sum(&self, layout: &Layout, bytes: Bytes) -> Communication {
        let pairs = stage_rank_pairs(layout, 0, layout.pipeline - 1).map(|pair| pair.to_vec());
        self.devices_of_group(CollectiveKind::AllReduce, bytes, pairs)
    }

    /// Returns the outermost tier that two neighbouring stages cross. For other stages, such as the last and the first,
    /// this is the outermost tier that any neighbours cross.
    fn tier_between(&self, layout: &Layout, a: u32, b: u32) -> usize {
        if a.abs_diff(b) == 1 {
            return self.outermost_tier(layout, a.min(b));
        }
        (1..layout.pipeline).map(|next| self.outermost_tier(layout, next - 1)).max().unwrap_or(0)
    }
}

/// Returns the ranks of two stages that exchange with each other, over all pipelines.
pub fn stage_rank_pairs(layout: &Layout, a: u32, b: u32) -> impl Iterator<Item = [u32; 2]> + use<> {
    let stride = layout.stage_stride();
    let (pipelines, length) = match layout.order {
        RankOrder::DataFirst => (1, 0),
        RankOrder::PipelineFirst => (layout.data, layout.pipeline * stride),
    };
    (0..pipelines).flat_map(move |pipeline| {
        let first = pipeline * length;
        (0..stride).map(move |i| [first + a * stride + i, first + b * stride + i])
    })
}

/// Returns a collective's cost on the network alone: start-up and transfer time, and port times. It has no slowdown by
/// other work.
#[must_use]
pub fn communication_of_cost(cost: &CollectiveCost) -> Communication {
    Communication {
        time: cost.startup + cost.transfer,
        ports: PortTimes::of_collective(cost),
        ..Communication::default()
    }
}

impl Communication {
    /// Returns the communication with the gap between two launches added to its time.
    pub(crate) fn with_launch_gap(self, gap: Seconds) -> Self {
        Self { time: self.time + gap, ..self }
    }

    /// Returns the longer time and, for each port, the longer port time of two communications; the slowdown of `self`.
    #[must_use]
    pub fn at_most(self, other: Self) -> Self {
        Self { time: self.time.max(other.time), ports: self.ports.map_each(other.ports, Seconds::max), ..self }
    }

    /// Returns the shorter time and, for each port, the shorter port time of two communications; the slowdown of
    /// `self`.
    #[must_use]
    pub fn at_least(self, other: Self) -> Self {
        Self { time: self.time.min(other.time), ports: self.ports.map_each(other.ports, Seconds::min), ..self }
    }
}

/// Returns the outermost tier between any rank of one stage and its counterpart in another, over all pipelines.
pub(crate) fn outermost_tier_between(fabric: &Fabric, layout: &Layout, a: u32, b: u32) -> usize {
    let stride = u64::from(layout.stage_stride());
    let (length, pipelines) = match layout.order {
        RankOrder::DataFirst => (0, 1),
        RankOrder::PipelineFirst => (u64::from(layout.pipeline) * stride, u64::from(layout.data)),
    };
    // Every rank shares a unit with its counterpart only if one unit holds both stages and all stages between them.
    let (from, to) = (u64::from(a.min(b)) * stride, (u64::from(a.max(b)) + 1) * stride - 1);
    let inside = |units: u64| {
        // The positions of pipelines in their units repeat after at most as many pipelines as a unit has devices.
        (0..pipelines.min(units)).all(|i| (i * length + from) / units == (i * length + to) / units)
    };
    let tier = fabric.tiers.iter().position(|tier| inside(u64::from(tier.devices).max(1)));
    tier.unwrap_or(fabric.tiers.len().saturating_sub(1))
}
