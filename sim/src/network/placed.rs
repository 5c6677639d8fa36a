//! Groups on measured links: the units of their members, and the links that they use.

use super::collective::CollectiveCost;
use super::fabric::{Fabric, Topology};
use super::level::GroupSpread;
use super::matrix::LinkMatrix;
use crate::kernel::{Collective, CollectiveKind, RankGroup};
use crate::units::{Bytes, BytesPerSecond};
use std::collections::BTreeMap;

/// The placement of a group, and the rate of its decisive link.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GroupPlacement {
    /// The distribution of its members over the units.
    pub spread: GroupSpread,
    /// Bytes per second of a whole unit: the slowest link of the ring through the units in rank order. For an exchange
    /// it is the slowest unit's harmonic mean over its links to the others. Infinite if the group lies inside a unit.
    pub link: BytesPerSecond,
}

/// Finds the placement of groups on the units of a matrix of links.
#[derive(Debug, Clone)]
pub struct PlacementFinder<'a> {
    links: &'a LinkMatrix,
    /// Devices of a unit.
    unit: u32,
    /// True if a device's position inside its unit matters: in a torus, or under several tiers.
    inside: bool,
    /// Units of the current group with their member counts, in rank order.
    seen: Vec<(u32, u32)>,
}

impl<'a> PlacementFinder<'a> {
    /// Returns a finder for a fabric whose outermost tier is a matrix of links; `None` for other fabrics.
    #[must_use]
    pub fn of_fabric(fabric: &'a Fabric) -> Option<Self> {
        let (links, unit) = fabric.measured_links()?;
        Some(Self { links, unit, inside: fabric.has_places_inside_units(), seen: Vec::new() })
    }

    /// The links.
    #[must_use]
    pub fn links(&self) -> &'a LinkMatrix {
        self.links
    }

    /// Devices of a unit.
    #[must_use]
    pub fn unit_devices(&self) -> u32 {
        self.unit
    }

    /// Returns the placement of a group whose ranks run on `devices`. Members inside a unit are assumed to be as far
    /// apart as the first two neighbours that share a unit, because groups of a parallel axis are evenly spaced.
    pub fn place_group(&mut self, kind: CollectiveKind, devices: impl Iterator<Item = u32>) -> GroupPlacement {
        self.seen.clear();
        let (mut members, mut stride, mut before) = (0, None, None);
        for device in devices {
            members += 1;
            let unit = device / self.unit;
            if let Some(before) = before.replace(device).filter(|before| self.inside && before / self.unit == unit) {
                stride = stride.or(Some(device.abs_diff(before)));
            }
            match self.seen.iter_mut().find(|(u, _)| *u == unit) {
                Some((_, count)) => *count += 1,
                None => self.seen.push((unit, 1)),
            }
        }
        let counts = self.seen.iter().map(|(_, count)| *count);
        let spread = GroupSpread {
            members,
            units: self.seen.len() as u32,
            most: counts.clone().max().unwrap_or(1),
            least: counts.min().unwrap_or(1),
            stride: stride.unwrap_or(1),
        };
        GroupPlacement {
            spread,
            link: BytesPerSecond(if spread.units > 1 { self.place_on_links(kind) } else { f64::INFINITY }),
        }
    }

    fn place_on_links(&self, kind: CollectiveKind) -> f64 {
        let (units, links) = (&self.seen, self.links);
        if kind.is_exchange() {
            let mean = |from: u32| {
                let times =
                    units.iter().filter(|(to, _)| *to != from).map(|(to, _)| 1.0 / links.rate_between(from, *to));
                (units.len() - 1) as f64 / times.sum::<f64>()
            };
            return units.iter().map(|(from, _)| mean(*from)).fold(f64::INFINITY, f64::min);
        }
        let next = |i: usize| units[(i + 1) % units.len()].0;
        units.iter().enumerate().map(|(i, (from, _))| links.rate_between(*from, next(i))).fold(f64::INFINITY, f64::min)
    }
}

impl Fabric {
    /// True if a device's position inside a unit of the outermost tier matters: the unit is a torus, or has several
    /// tiers.
    #[must_use]
    pub fn has_places_inside_units(&self) -> bool {
        let inner = self.tiers.split_last().map_or(&[][..], |(_, inner)| inner);
        inner.len() > 1 || inner.iter().any(|tier| matches!(tier.topology, Topology::Torus { .. }))
    }

    /// Returns the cost of concurrent collectives of several groups on measured links. Each group lists its devices in
    /// rank order. The result is the slowest group's cost, with the largest port time of any group on each tier. `None`
    /// without measured links or without groups.
    #[must_use]
    pub fn collective_among(
        &self,
        kind: CollectiveKind,
        bytes: Bytes,
        groups: impl Iterator<Item = Vec<u32>>,
    ) -> Option<CollectiveCost> {
        self.cost_among(kind, bytes, groups, 1.0)
    }

    pub(super) fn cost_among(
        &self,
        kind: CollectiveKind,
        bytes: Bytes,
        groups: impl Iterator<Item = Vec<u32>>,
        flows: f64,
    ) -> Option<CollectiveCost> {
        let mut places = PlacementFinder::of_fabric(self)?;
        // Among groups with equal spread the one on the slowest links decides.
        let mut slowest: BTreeMap<GroupSpread, f64> = BTreeMap::new();
        for group in groups {
            let GroupPlacement { spread, link } = places.place_group(kind, group.into_iter());
            let known = slowest.entry(spread).or_insert(f64::INFINITY);
            *known = known.min(link.0);
        }
        let costs =
            slowest.into_iter().map(|(spread, link)| self.cost_of_spread_sharing(kind, bytes, spread, link, flows));
        costs.reduce(CollectiveCost::slower_of)
    }

    /// Returns the cost of a collective of all groups of a pattern on unequal measured links. `None` if links are not
    /// measured or are equal, or if no group of the pattern lies within the fabric.
    pub(super) fn cost_on_links(&self, collective: &Collective, flows: f64) -> Option<CollectiveCost> {
        let (links, _) = self.measured_links()?;
        if !links.rates_differ() {
            return None;
        }
        let Collective { kind, bytes, group } = *collective;
        let devices = self.device_count();
        if kind == CollectiveKind::SendRecv {
            let pairs = (0..devices.saturating_sub(group.stride)).map(|from| vec![from, from + group.stride]);
            return self.cost_among(kind, bytes, pairs, flows);
        }
        self.cost_among(kind, bytes, sibling_groups(group, devices), flows)
    }
}

/// Returns the members of every group of a pattern that lies within `ranks` ranks.
pub fn sibling_groups(group: RankGroup, ranks: u32) -> impl Iterator<Item = Vec<u32>> {
    let (members, stride) = (u64::from(group.ranks.max(1)), u64::from(group.stride.max(1)));
    let (span, ranks) = (members * stride, u64::from(ranks));
    (0..ranks.div_ceil(span)).flat_map(move |block| {
        let lanes = (0..stride).map(move |lane| block * span + lane);
        let within = lanes.take_while(move |first| first + (members - 1) * stride < ranks);
        within.map(move |first| (0..members).map(|i| (first + i * stride) as u32).collect())
    })
}
