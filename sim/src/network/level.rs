//! The levels of a group on a fabric's tiers, with their rates and steps.

use super::fabric::{Fabric, MAX_TIERS, Tier, Topology};
use super::torus::{self, GroupExtents};
use crate::kernel::RankGroup;

/// The part of a group on one tier.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct GroupLevel {
    /// The tier's index.
    pub tier: usize,
    /// Units of the tier below that the group joins here.
    pub fan_out: u32,
    /// Members inside the smallest of those units; their ports share the unit's traffic.
    pub ports: u32,
    /// Members inside the units up to and including this tier.
    pub members: u32,
    /// Members inside the units below this tier.
    pub members_below: u32,
    /// Distance in units from one of the group's units to the next.
    pub spacing: u32,
}

/// The levels of a group, innermost first, without the tiers that it does not cross.
#[derive(Debug, Clone, Copy)]
pub(crate) struct GroupLevels {
    list: [GroupLevel; MAX_TIERS],
    len: usize,
}

impl GroupLevels {
    /// The levels, innermost first.
    pub fn as_slice(&self) -> &[GroupLevel] {
        &self.list[..self.len]
    }
}

/// The distribution of a group's members over the units of the outermost tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct GroupSpread {
    /// Members of the group.
    pub members: u32,
    /// Units that hold members.
    pub units: u32,
    /// Members in the fullest unit.
    pub most: u32,
    /// Members in the emptiest unit. This unit reaches the other units through these members' ports.
    pub least: u32,
    /// Devices from one member to the next inside a unit; 1 if a unit holds one member, or if the position inside a
    /// unit does not matter.
    pub stride: u32,
}

impl Fabric {
    /// Returns the levels of a group with this spread. If units hold unequal numbers of members, the emptiest unit's
    /// ports carry the traffic.
    pub(crate) fn levels_of_spread(&self, spread: GroupSpread) -> GroupLevels {
        let none = GroupLevel { tier: 0, fan_out: 1, ports: 1, members: 1, members_below: 1, spacing: 1 };
        let mut levels = GroupLevels { list: [none; MAX_TIERS], len: 0 };
        let outer = self.tiers.len().saturating_sub(1);
        if spread.most > 1 && outer > 0 {
            levels = self.levels_on_inner_tiers(outer, RankGroup { ranks: spread.most, stride: spread.stride });
        }
        if spread.units > 1 {
            let least = spread.least.max(1);
            levels.list[levels.len] = GroupLevel {
                tier: outer,
                fan_out: spread.units,
                ports: least,
                members: spread.members,
                members_below: least,
                spacing: 1,
            };
            levels.len += 1;
        }
        levels
    }

    /// Returns the levels of a group. If the group is larger than the fabric, the outermost tier is extended.
    pub(crate) fn levels_of_group(&self, group: RankGroup) -> GroupLevels {
        self.levels_on_inner_tiers(self.tiers.len(), group)
    }

    /// Returns the levels as [`Self::levels_of_group`] does, on the inner `tiers` tiers alone; the outermost of these
    /// is extended.
    fn levels_on_inner_tiers(&self, tiers: usize, group: RankGroup) -> GroupLevels {
        let (ranks, stride) = (group.ranks.max(1), group.stride.max(1));
        let none = GroupLevel { tier: 0, fan_out: 1, ports: 1, members: 1, members_below: 1, spacing: 1 };
        let mut levels = GroupLevels { list: [none; MAX_TIERS], len: 0 };
        let mut below = 1;
        for (i, tier) in self.tiers.iter().enumerate().take(tiers.min(MAX_TIERS)) {
            let last = i + 1 == tiers;
            let members = if last { ranks } else { ranks.min((tier.devices / stride).max(1)).max(below) };
            if members > below {
                let partial = members % below;
                levels.list[levels.len] = GroupLevel {
                    tier: i,
                    fan_out: members.div_ceil(below),
                    ports: if partial == 0 { below } else { partial },
                    members,
                    members_below: below,
                    spacing: (stride / self.unit_devices(i)).max(1),
                };
                levels.len += 1;
            }
            below = members;
        }
        levels
    }

    /// Returns the innermost tier in which two devices share a unit, or the outermost tier if they share none.
    #[must_use]
    pub fn meeting_tier(&self, a: u32, b: u32) -> usize {
        let shared = self.tiers.iter().position(|tier| a / tier.devices == b / tier.devices);
        shared.unwrap_or(self.tiers.len().saturating_sub(1))
    }

    /// Returns the tier on which devices `a` and `b` meet, as a level; `None` if they are the same device.
    pub(crate) fn meeting_level(&self, a: u32, b: u32) -> Option<GroupLevel> {
        let tier = self.meeting_tier(a, b);
        let unit = self.unit_devices(tier);
        let spacing = (a / unit).abs_diff(b / unit).max(1);
        (a != b).then_some(GroupLevel { tier, fan_out: 2, ports: 1, members: 2, members_below: 1, spacing })
    }

    /// Returns the nominal bytes per second of a device in ring-like patterns (all-reduce, all-gather, reduce-scatter,
    /// broadcast), in parallel with the sibling groups.
    pub(crate) fn ring_rate(&self, level: &GroupLevel) -> f64 {
        let tier = &self.tiers[level.tier];
        match &tier.topology {
            Topology::Switch => {
                let group = tier.group_bandwidth.get((level.fan_out as usize).saturating_sub(2));
                group.unwrap_or(&tier.bandwidth).0
            }
            Topology::FatTree { oversubscription } => tier.bandwidth.0 / oversubscription,
            Topology::FullyConnected { units } => {
                tier.bandwidth.0 * count_peers(level.fan_out) / count_peers(*units).max(1.0)
            }
            Topology::Torus { dims, .. } => {
                let links: f64 = group_extents(tier, level).iter().map(torus::GroupExtent::links_per_member).sum();
                tier.bandwidth.0 * links / (2 * dims.len()) as f64
            }
            Topology::Matrix(m) => m.ring_rate(level.fan_out, level.spacing) / f64::from(self.unit_devices(level.tier)),
        }
    }

    /// Returns the nominal rate of a device in an all-to-all, in bytes per second. The rate counts the bytes that leave
    /// the device's unit through this tier.
    pub(crate) fn exchange_rate(&self, level: &GroupLevel) -> f64 {
        let tier = &self.tiers[level.tier];
        match &tier.topology {
            Topology::Torus { dims, twisted_hops, .. } => {
                let whole = level.fan_out == dims.iter().map(|d| d.size).product::<u32>();
                let load = match twisted_hops.filter(|_| whole) {
                    Some(hops) => hops / (2 * dims.len()) as f64,
                    None => {
                        group_extents(tier, level).iter().map(torus::GroupExtent::exchange_load).fold(0.0, f64::max)
                    }
                };
                let leaving = 1.0 - 1.0 / f64::from(level.fan_out);
                leaving * tier.bandwidth.0 / (2 * dims.len()) as f64 / load
            }
            Topology::Matrix(m) => {
                m.exchange_rate(level.fan_out, level.spacing) / f64::from(self.unit_devices(level.tier))
            }
            Topology::Switch | Topology::FatTree { .. } | Topology::FullyConnected { .. } => self.ring_rate(level),
        }
    }

    /// Returns the nominal bytes per second of a device that sends to one other, the level's spacing away, while all
    /// devices do the same.
    pub(crate) fn pair_rate(&self, level: &GroupLevel) -> f64 {
        let tier = &self.tiers[level.tier];
        match &tier.topology {
            Topology::Switch => tier.bandwidth.0,
            Topology::FatTree { oversubscription } => tier.bandwidth.0 / oversubscription,
            Topology::FullyConnected { units } => tier.bandwidth.0 / count_peers(*units).max(1.0),
            Topology::Torus { dims, .. } => {
                // One link, shared by the `spacing` flows that pass through it.
                let hops = group_extents(tier, level).iter().map(|e| e.spacing).max().unwrap_or(1);
                tier.bandwidth.0 / (2 * dims.len()) as f64 / f64::from(hops)
            }
            Topology::Matrix(m) => {
                let places = (m.unit_count() / level.spacing).max(2);
                m.line_rate(places, level.spacing) / f64::from(self.unit_devices(level.tier))
            }
        }
    }

    /// Returns the number of steps of one pass (all-gather or reduce-scatter) over this level alone.
    pub(crate) fn pass_steps(&self, level: &GroupLevel) -> f64 {
        let tier = &self.tiers[level.tier];
        match &tier.topology {
            Topology::Torus { .. } => group_extents(tier, level).iter().map(|e| f64::from(e.steps_of_pass())).sum(),
            // Every member has a link to every other, so all shards travel at once.
            Topology::FullyConnected { .. } => 1.0,
            _ => count_peers(level.fan_out),
        }
    }

    /// True if the tier's links form a torus; flat rings and trees do not apply to it.
    pub(crate) fn is_torus(&self, level: &GroupLevel) -> bool {
        matches!(self.tiers[level.tier].topology, Topology::Torus { .. })
    }
}

fn count_peers(n: u32) -> f64 {
    f64::from(n.saturating_sub(1))
}

fn group_extents(tier: &Tier, level: &GroupLevel) -> GroupExtents {
    match &tier.topology {
        Topology::Torus { dims, .. } => torus::extents_of_group(dims, level.fan_out, level.spacing),
        _ => torus::extents_of_group(&[], 1, 1),
    }
}
