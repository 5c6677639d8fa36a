//! The cost of a collective.

mod exchange;

use super::fabric::{Fabric, MAX_TIERS};
use super::level::{GroupLevel, GroupLevels, GroupSpread};
use crate::kernel::{Collective, CollectiveKind};
use crate::units::{Bytes, BytesPerSecond, Seconds};
use serde::{Deserialize, Serialize};
use std::fmt;

/// The algorithm of a collective.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Algorithm {
    /// Nothing to send: one rank, or no bytes.
    None,
    /// One pipelined ring through all members. The slowest tier sets the transfer time; the startup time grows with the
    /// number of members.
    Ring,
    /// A chain inside each innermost unit, binary trees between units; both halves of the message move at once.
    Tree,
    /// Phases through the tiers: reduce-scatter inward, the outermost tier, all-gather back.
    Hierarchical,
    /// All dimensions of a torus at once, each on its part of the message.
    TorusDimensions,
    /// The switch reduces and multicasts.
    InNetwork,
    /// The switch reduces inside a unit, with pipelined trees between units.
    InNetworkTree,
    /// Every member sends to every other.
    Direct,
    /// One member sends to one other.
    PointToPoint,
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Ring => "ring",
            Self::Tree => "tree",
            Self::Hierarchical => "hierarchical",
            Self::TorusDimensions => "torus dimensions",
            Self::InNetwork => "in-network",
            Self::InNetworkTree => "in-network + tree",
            Self::Direct => "direct",
            Self::PointToPoint => "point to point",
        })
    }
}

/// The cost of a collective for each member.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CollectiveCost {
    /// Time from start to the last member's end: `launch + startup + transfer`.
    pub latency: Seconds,
    /// The time to start it; an asynchronous launch hides it.
    pub launch: Seconds,
    /// The time of steps, independent of the size.
    pub startup: Seconds,
    /// The time that grows with the bytes.
    pub transfer: Seconds,
    /// The cheapest algorithm.
    pub algorithm: Algorithm,
    /// The index of the tier whose transfer takes longest.
    pub bound_tier: usize,
    /// Bytes that a device sends into each tier.
    pub link_bytes: [Bytes; MAX_TIERS],
    /// A lower bound on the time that these bytes occupy the device's port into each tier, at the full achieved rate
    /// while all devices send. On measured links it uses the rate of those links and the fewest bytes of any algorithm,
    /// so a faster link never occupies a port longer.
    pub port_times: [Seconds; MAX_TIERS],
}

impl CollectiveCost {
    /// Returns the later of two concurrent collectives, with the larger port time of both on each tier.
    pub(super) fn slower_of(self, other: Self) -> Self {
        let mut slower = if other.latency > self.latency { other } else { self };
        let ports = self.port_times.into_iter().zip(other.port_times);
        slower.port_times.iter_mut().zip(ports).for_each(|(most, (a, b))| *most = a.max(b));
        slower
    }
}

/// The demand of an algorithm on one tier.
#[derive(Clone, Copy)]
struct TierDemand {
    tier: usize,
    bytes: f64,
    /// Nominal bytes per second.
    rate: f64,
    steps: f64,
    /// Messages that queue for injection, one low-latency step each, in addition to the steps.
    messages: f64,
}

impl TierDemand {
    const NONE: Self = Self { tier: 0, bytes: 0.0, rate: 1.0, steps: 0.0, messages: 0.0 };
}

/// The time and bytes of a candidate, without the launch.
#[derive(Clone, Copy)]
struct CollectiveDraft {
    algorithm: Algorithm,
    startup: f64,
    transfer: f64,
    /// The tier with the longest transfer, and the transfer's seconds.
    bound: (usize, f64),
    bytes: [f64; MAX_TIERS],
    /// The fewest bytes of any candidate, per tier.
    fewest: [f64; MAX_TIERS],
}

impl CollectiveDraft {
    fn total_seconds(&self) -> f64 {
        self.startup + self.transfer
    }

    fn faster_of(self, other: Self) -> Self {
        let mut faster = if other.total_seconds() < self.total_seconds() { other } else { self };
        for (fewest, (mine, theirs)) in faster.fewest.iter_mut().zip(self.fewest.into_iter().zip(other.fewest)) {
            *fewest = mine.min(theirs);
        }
        faster
    }

    /// Returns this candidate followed by `next`.
    fn followed_by(mut self, next: Self) -> Self {
        self.startup += next.startup;
        self.transfer += next.transfer;
        if next.bound.1 > self.bound.1 {
            self.bound = next.bound;
        }
        for (mine, theirs) in
            self.bytes.iter_mut().chain(&mut self.fewest).zip(next.bytes.into_iter().chain(next.fewest))
        {
            *mine += theirs;
        }
        self
    }
}

impl Fabric {
    /// Returns the cost of a collective whose group runs in parallel with its sibling groups; every device belongs to
    /// one of them. Slower links or more bytes never make a collective faster. For a group larger than the fabric the
    /// outermost tier is extended; [`Fabric::check_group`] detects such groups.
    #[must_use]
    pub fn cost_of_collective(&self, collective: &Collective) -> CollectiveCost {
        self.cost_of_collective_sharing(collective, 1.0)
    }

    /// Returns [`Fabric::cost_of_collective`] while `flows` flows of equal weight share every port. `flows` includes
    /// this one; values below 1 count as 1.
    #[must_use]
    pub fn cost_of_collective_sharing(&self, collective: &Collective, flows: f64) -> CollectiveCost {
        if let Some(cost) = self.cost_on_links(collective, flows) {
            return cost;
        }
        let levels = self.levels_of_group(collective.group);
        let size = collective.bytes.as_f64();
        if levels.as_slice().is_empty() || size == 0.0 {
            return self.finish_cost(None, None);
        }
        let pricer = CollectivePricer { fabric: self, flows: flows.max(1.0), outer: None };
        self.finish_cost(pricer.price_collective(collective.kind, &levels, size), None)
    }

    /// Returns the cost of sending `bytes` from device `from` to device `to` while all other devices send over the same
    /// distance.
    #[must_use]
    pub fn cost_of_send_between(&self, from: u32, to: u32, bytes: Bytes) -> CollectiveCost {
        let pricer = CollectivePricer { fabric: self, flows: 1.0, outer: None };
        let level = self.meeting_level(from, to).filter(|_| bytes > Bytes::ZERO);
        self.finish_cost(level.map(|level| pricer.price_point_to_point(&level, bytes.as_f64())), None)
    }

    /// Returns the cost of a collective whose group lies on units of the outermost tier as given by `spread`. `link` is
    /// the bandwidth of the slowest link in use, of a whole unit. A group inside one unit uses no link.
    #[must_use]
    pub fn cost_of_spread_collective(
        &self,
        kind: CollectiveKind,
        bytes: Bytes,
        spread: GroupSpread,
        link: BytesPerSecond,
    ) -> CollectiveCost {
        self.cost_of_spread_sharing(kind, bytes, spread, link.0, 1.0)
    }

    pub(super) fn cost_of_spread_sharing(
        &self,
        kind: CollectiveKind,
        bytes: Bytes,
        spread: GroupSpread,
        link: f64,
        flows: f64,
    ) -> CollectiveCost {
        let levels = self.levels_of_spread(spread);
        if levels.as_slice().is_empty() || bytes == Bytes::ZERO {
            return self.finish_cost(None, None);
        }
        let unit = self.unit_devices(self.tiers.len().saturating_sub(1));
        let outer = Some(link / f64::from(unit));
        let pricer = CollectivePricer { fabric: self, flows: flows.max(1.0), outer };
        self.finish_cost(pricer.price_collective(kind, &levels, bytes.as_f64()), outer)
    }

    /// Completes a candidate with the launch and the port times. `outer` is as in [`CollectivePricer`].
    fn finish_cost(&self, draft: Option<CollectiveDraft>, outer: Option<f64>) -> CollectiveCost {
        let Some(d) = draft else {
            return CollectiveCost {
                latency: Seconds::ZERO,
                launch: Seconds::ZERO,
                startup: Seconds::ZERO,
                transfer: Seconds::ZERO,
                algorithm: Algorithm::None,
                bound_tier: 0,
                link_bytes: [Bytes::ZERO; MAX_TIERS],
                port_times: [Seconds::ZERO; MAX_TIERS],
            };
        };
        let whole = |bytes: f64| Bytes(bytes.round() as u64);
        let mut port_times = [Seconds::ZERO; MAX_TIERS];
        for (at, (time, tier)) in port_times.iter_mut().zip(&self.tiers).enumerate() {
            let sent = whole(if outer.is_some() { d.fewest[at] } else { d.bytes[at] });
            let rate = outer.filter(|_| at + 1 == self.tiers.len()).unwrap_or_else(|| tier.shared_rate());
            if sent > Bytes::ZERO {
                *time = Seconds(sent.as_f64() / (rate * tier.achieved_fraction));
            }
        }
        CollectiveCost {
            latency: self.launch + Seconds(d.total_seconds()),
            launch: self.launch,
            startup: Seconds(d.startup),
            transfer: Seconds(d.transfer),
            algorithm: d.algorithm,
            bound_tier: d.bound.0,
            link_bytes: d.bytes.map(whole),
            port_times,
        }
    }
}

/// Prices candidates on a fabric.
struct CollectivePricer<'a> {
    fabric: &'a Fabric,
    flows: f64,
    /// Nominal bytes per second of a device on the outermost tier, if the group's own links determine it.
    outer: Option<f64>,
}

impl CollectiveDraft {
    /// Adds the messages of a tier. Startups add up, and transfers overlap.
    fn add_parallel_messages(&mut self, demand: &TierDemand, startup: f64, wire: f64) {
        self.startup += startup;
        self.bytes[demand.tier] += demand.bytes;
        self.fewest[demand.tier] += demand.bytes;
        if wire > self.bound.1 {
            self.bound = (demand.tier, wire);
        }
    }
}

impl CollectivePricer<'_> {
    fn effective_rate(&self, level: &GroupLevel, topology: impl Fn(&Fabric, &GroupLevel) -> f64) -> f64 {
        match self.outer {
            Some(rate) if level.tier + 1 == self.fabric.tiers.len() => rate,
            _ => topology(self.fabric, level),
        }
    }

    fn price_collective(&self, kind: CollectiveKind, levels: &GroupLevels, size: f64) -> Option<CollectiveDraft> {
        let levels = levels.as_slice();
        let flat = levels.iter().all(|l| !self.fabric.is_torus(l));
        match kind {
            CollectiveKind::SendRecv => levels.last().map(|l| self.price_point_to_point(l, size)),
            CollectiveKind::AllToAll => Some(self.price_direct_exchange(levels, size, None)),
            CollectiveKind::Dispatch(choice) => Some(self.price_direct_exchange(levels, size, Some(choice))),
            // NCCL has no other algorithm for a broadcast (src/graph/tuning.cc).
            CollectiveKind::Broadcast => Some(self.price_pipeline_through(Algorithm::Ring, levels, size, 1.0, 0.0)),
            CollectiveKind::AllGather | CollectiveKind::ReduceScatter => {
                if flat && levels.len() > 1 && self.longest_ring_step(levels) > 0.0 {
                    return Some(self.price_flat_ring(levels, size, 1.0));
                }
                let phases = self.price_gather_phases(levels, size);
                Some(if flat && levels.len() > 1 {
                    phases.faster_of(self.price_flat_ring(levels, size, 1.0))
                } else {
                    phases
                })
            }
            CollectiveKind::AllReduce => self.price_all_reduce(levels, size, flat),
        }
    }

    fn price_all_reduce(&self, levels: &[GroupLevel], size: f64, flat: bool) -> Option<CollectiveDraft> {
        let (top, inner) = levels.split_last()?;
        // If units hold unequal numbers of members, the emptiest unit's ports carry the data that leaves it.
        let top_size = size / f64::from(top.ports);
        let top_draft = self.price_level_all_reduce(top, top_size);
        if inner.is_empty() {
            return Some(top_draft);
        }
        let gathers = self.price_gather_phases(inner, size);
        let mut best = gathers.followed_by(top_draft).followed_by(gathers);
        best.algorithm = Algorithm::Hierarchical;
        if flat {
            best = best.faster_of(self.price_flat_ring(levels, size, 2.0));
            best = best.faster_of(self.price_pipeline_through(
                Algorithm::Tree,
                levels,
                2.0 * size,
                2.0,
                self.price_final_copy(levels, size),
            ));
        }
        if let Some(draft) = self.price_in_network_tree(levels, size) {
            best = best.faster_of(draft);
        }
        Some(best)
    }

    /// Prices an all-reduce over one level: by the ring (or the torus' dimensions), or in the switch.
    fn price_level_all_reduce(&self, level: &GroupLevel, size: f64) -> CollectiveDraft {
        let ring = self.price_level_pass(level, size, f64::from(level.fan_out), 2.0);
        let forced = self.fabric.tiers[level.tier].in_network.is_some_and(|engine| engine.forced);
        match self.price_in_network(level, size) {
            Some(draft) if forced => draft,
            Some(draft) => ring.faster_of(draft),
            None => ring,
        }
    }

    /// Prices one pass (all-gather, reduce-scatter) or two (all-reduce) over one level, on `size` bytes per port, in
    /// `k` parts.
    fn price_level_pass(&self, level: &GroupLevel, size: f64, k: f64, passes: f64) -> CollectiveDraft {
        let torus = self.fabric.is_torus(level);
        let algorithm = if torus { Algorithm::TorusDimensions } else { Algorithm::Ring };
        let demand = TierDemand {
            tier: level.tier,
            bytes: passes * size * (k - 1.0) / k,
            rate: self.effective_rate(level, Fabric::ring_rate),
            steps: passes * self.fabric.pass_steps(level),
            messages: 0.0,
        };
        let copy = size / k / self.fabric.tiers[level.tier].final_copy.0;
        self.price_pipelined(algorithm, &[demand], copy)
    }

    /// Prices an all-gather, or its mirror reduce-scatter, level after level. The outer tiers carry shards, the inner
    /// ones more.
    fn price_gather_phases(&self, levels: &[GroupLevel], size: f64) -> CollectiveDraft {
        let mut total: Option<CollectiveDraft> = None;
        for level in levels {
            // All data of members outside the emptiest unit has to enter it.
            let parts = f64::from(level.members) / f64::from(level.ports);
            let phase = self.price_level_pass(level, size / f64::from(level.ports), parts, 1.0);
            total = Some(match total {
                None => phase,
                Some(t) => CollectiveDraft { algorithm: Algorithm::Hierarchical, ..t.followed_by(phase) },
            });
        }
        total.unwrap_or(CollectiveDraft {
            algorithm: Algorithm::None,
            startup: 0.0,
            transfer: 0.0,
            bound: (0, 0.0),
            bytes: [0.0; MAX_TIERS],
            fewest: [0.0; MAX_TIERS],
        })
    }

    /// Prices one ring through all members, with as many parallel rings as ports.
    fn price_flat_ring(&self, levels: &[GroupLevel], size: f64, passes: f64) -> CollectiveDraft {
        let n = group_members(levels);
        let ring = self.price_pipeline_through(
            Algorithm::Ring,
            levels,
            passes * size * (n - 1.0) / n,
            passes,
            self.price_final_copy(levels, size),
        );
        let in_step = passes * (n - 1.0) * self.longest_ring_step(levels);
        CollectiveDraft { startup: ring.startup.max(in_step), ..ring }
    }

    /// Returns the longest ring step of these tiers; 0 if none is given.
    fn longest_ring_step(&self, levels: &[GroupLevel]) -> f64 {
        levels.iter().filter_map(|level| self.fabric.tiers[level.tier].ring_step).map(|step| step.0).fold(0.0, f64::max)
    }

    /// Prices a pipeline through all levels that carries `traffic` bytes out of every unit, shared by the unit's ports.
    fn price_pipeline_through(
        &self,
        algorithm: Algorithm,
        levels: &[GroupLevel],
        traffic: f64,
        passes: f64,
        copy: f64,
    ) -> CollectiveDraft {
        let mut demands = [TierDemand::NONE; MAX_TIERS];
        for (i, (demand, level)) in demands.iter_mut().zip(levels).enumerate() {
            let steps = match algorithm {
                Algorithm::Tree => self.tree_steps_of_level(level, i == 0),
                _ => self.ring_steps_of_level(level, group_members(levels), i + 1 == levels.len()),
            };
            *demand = TierDemand {
                tier: level.tier,
                bytes: traffic / f64::from(level.ports),
                rate: self.effective_rate(level, Fabric::ring_rate),
                steps: passes * steps,
                messages: 0.0,
            };
        }
        self.price_pipelined(algorithm, &demands[..levels.len()], copy)
    }

    /// Returns the number of steps of one pass that cross this level, out of the `n - 1` of a ring through `n` members.
    fn ring_steps_of_level(&self, level: &GroupLevel, n: f64, outermost: bool) -> f64 {
        if self.fabric.is_torus(level) {
            return self.fabric.pass_steps(level);
        }
        let back = if outermost { 1.0 } else { n / f64::from(level.members) };
        (n / f64::from(level.members_below) - back).max(0.0)
    }

    /// Returns the number of steps from the root to the leaves on this level: a chain inside the innermost units, a
    /// binary tree between units. NCCL's src/graph/tuning.cc has `ranks per node - 1` inner and `log2(nodes)` outer
    /// steps.
    fn tree_steps_of_level(&self, level: &GroupLevel, innermost: bool) -> f64 {
        if innermost {
            f64::from(level.fan_out - 1)
        } else {
            f64::from(u32::BITS - (level.fan_out - 1).leading_zeros())
        }
    }

    fn price_final_copy(&self, levels: &[GroupLevel], size: f64) -> f64 {
        let innermost = levels.first().map_or(f64::INFINITY, |l| self.fabric.tiers[l.tier].final_copy.0);
        size / group_members(levels) / innermost
    }

    /// Prices a reduction in the switch; `None` if the tier has none. A member sends its buffer once and its share of
    /// the result, in total `1 + 1/k` of the size.
    fn price_in_network(&self, level: &GroupLevel, size: f64) -> Option<CollectiveDraft> {
        let engine = self.fabric.tiers[level.tier].in_network?;
        let sent = size * (1.0 + 1.0 / f64::from(level.fan_out));
        let wire = sent * self.flows / (self.effective_rate(level, Fabric::ring_rate) * engine.fraction);
        let time = time_of_chunked_transfer(wire, engine.chunk.0);
        let mut bytes = [0.0; MAX_TIERS];
        bytes[level.tier] = sent;
        Some(CollectiveDraft {
            algorithm: Algorithm::InNetwork,
            startup: engine.latency.0,
            transfer: time,
            bound: (level.tier, time),
            bytes,
            fewest: bytes,
        })
    }

    /// Prices a reduction in the innermost switch while trees join the units (NCCL's NVLSTree). The slower part
    /// decides. `None` without a reducing switch, on one level, or with a torus outside it.
    fn price_in_network_tree(&self, levels: &[GroupLevel], size: f64) -> Option<CollectiveDraft> {
        let (inner, outer) = levels.split_first()?;
        if outer.is_empty() || outer.iter().any(|l| self.fabric.is_torus(l)) {
            return None;
        }
        let local = self.price_in_network(inner, size)?;
        let mut demands = [TierDemand::NONE; MAX_TIERS];
        for (demand, level) in demands.iter_mut().zip(outer) {
            *demand = TierDemand {
                tier: level.tier,
                bytes: 2.0 * size / f64::from(level.ports),
                rate: self.effective_rate(level, Fabric::ring_rate),
                steps: 2.0 * self.tree_steps_of_level(level, false),
                messages: 0.0,
            };
        }
        let trees = self.price_pipelined(Algorithm::Tree, &demands[..outer.len()], 0.0);
        let mut both = local.followed_by(trees);
        both.transfer = local.transfer.max(trees.transfer);
        both.algorithm = Algorithm::InNetworkTree;
        Some(both)
    }

    fn price_point_to_point(&self, level: &GroupLevel, size: f64) -> CollectiveDraft {
        let rate = self.effective_rate(level, Fabric::pair_rate);
        self.price_pipelined(
            Algorithm::PointToPoint,
            &[TierDemand { tier: level.tier, bytes: size, rate, steps: 1.0, messages: 0.0 }],
            0.0,
        )
    }

    /// Prices concurrent demands under the fastest protocol: steps add up, and the slowest tier decides the transfer. A
    /// tier that lacks a protocol keeps its bulk figures under it.
    fn price_pipelined(&self, algorithm: Algorithm, demands: &[TierDemand], copy: f64) -> CollectiveDraft {
        let nothing = [0.0; MAX_TIERS];
        let empty = CollectiveDraft {
            algorithm,
            startup: 0.0,
            transfer: 0.0,
            bound: (0, 0.0),
            bytes: nothing,
            fewest: nothing,
        };
        let operation = demands.iter().map(|d| self.fabric.tiers[d.tier].operation.0).fold(0.0, f64::max);
        let start = CollectiveDraft { startup: operation, ..empty };
        let (mut bulk, mut low, mut line) = (start, start, start);
        let (mut has_low, mut has_line) = (false, false);
        for d in demands {
            let tier = &self.fabric.tiers[d.tier];
            let nominal = d.bytes * self.flows / d.rate;
            if let Some(own) = tier.exchange.filter(|_| algorithm == Algorithm::Direct) {
                let [slow, quick] = self.time_of_exchange(d, own);
                has_low = true;
                for (draft, (startup, wire)) in [(&mut bulk, slow), (&mut low, quick), (&mut line, slow)] {
                    draft.add_parallel_messages(d, startup, wire);
                }
                continue;
            }
            let gap = tier.low_latency.map_or(0.0, |l| l.step.0) * d.messages.max(0.0);
            let slow =
                (d.steps * tier.step.0 + gap, time_of_chunked_transfer(nominal / tier.achieved_fraction, tier.chunk.0));
            let quick = tier.low_latency.map_or(slow, |l| (d.steps * l.step.0 + gap, nominal / l.fraction));
            let lines = tier.line.map_or(slow, |l| {
                (d.steps * l.step.0 + gap, time_of_chunked_transfer(nominal / l.fraction, l.chunk.0))
            });
            has_low |= tier.low_latency.is_some();
            has_line |= tier.line.is_some();
            for (draft, (startup, wire)) in [(&mut bulk, slow), (&mut low, quick), (&mut line, lines)] {
                draft.add_parallel_messages(d, startup, wire);
            }
        }
        bulk.transfer = bulk.bound.1 + copy;
        low.transfer = low.bound.1;
        line.transfer = line.bound.1;
        let best = if has_low { bulk.faster_of(low) } else { bulk };
        if has_line { best.faster_of(line) } else { best }
    }
}

/// Returns the number of members of the whole group.
fn group_members(levels: &[GroupLevel]) -> f64 {
    f64::from(levels.last().map_or(1, |l| l.members))
}

/// Returns the seconds of a transfer that takes `wire` seconds on the wire, in chunks that cost `chunk` seconds each,
/// at the best chunk size.
fn time_of_chunked_transfer(wire: f64, chunk: f64) -> f64 {
    wire + 2.0 * (chunk * wire).sqrt()
}
