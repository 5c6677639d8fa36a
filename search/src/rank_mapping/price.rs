//! What a group costs where its members are.

use super::traffic::Demand;
use sim::kernel::CollectiveKind;
use sim::network::{Fabric, LinkMatrix, Spread, Topology};
use sim::units::BytesPerSecond;
use std::collections::BTreeMap;

/// Prices groups by their spread and slowest link, and remembers.
#[derive(Debug, Clone)]
pub(super) struct Prices<'a> {
    fabric: &'a Fabric,
    links: Option<&'a LinkMatrix>,
    /// Devices of a unit.
    pub unit: u32,
    /// Whether it matters where in a unit a device is: inside a torus, or under several tiers. Then only whole units are moved.
    pub whole: bool,
    known: BTreeMap<(usize, Spread, u64), f64>,
    /// Units of the group at hand with their members, in the order of its ranks.
    seen: Vec<(u32, u32)>,
}

impl<'a> Prices<'a> {
    pub fn new(fabric: &'a Fabric) -> Self {
        let (links, unit) = fabric.links().map_or((None, 1), |(links, unit)| (Some(links), unit));
        let inner = fabric.tiers.split_last().map_or(&[][..], |(_, inner)| inner);
        let whole = inner.len() > 1 || inner.iter().any(|tier| matches!(tier.topology, Topology::Torus { .. }));
        Self { fabric, links, unit, whole, known: BTreeMap::new(), seen: Vec::new() }
    }

    /// Seconds of one collective of a demand over links of `link` bytes per second (of whole units).
    pub fn spread(&mut self, id: usize, demand: &Demand, spread: Spread, link: f64) -> f64 {
        let (fabric, collective) = (self.fabric, &demand.collective);
        *self.known.entry((id, spread, link.to_bits())).or_insert_with(|| {
            let cost = fabric.collective_spread(collective.kind, collective.bytes, spread, BytesPerSecond(link));
            (cost.startup + cost.transfer).0
        })
    }

    /// Seconds of one collective of a demand among devices, in the order of its ranks.
    pub fn among(&mut self, id: usize, demand: &Demand, devices: impl Iterator<Item = u32>) -> f64 {
        let spread = self.spread_of(devices);
        let link = if spread.units > 1 { self.link(demand.collective.kind) } else { 1.0 };
        self.spread(id, demand, spread, link)
    }

    /// How a group lies on the units, which are left in [`Self::seen`]. Members inside a unit are taken to be as far apart as the
    /// first two neighbours that share one: groups of a parallel axis are evenly spaced.
    pub fn spread_of(&mut self, devices: impl Iterator<Item = u32>) -> Spread {
        self.seen.clear();
        let (mut members, mut stride, mut before) = (0, None, None);
        for device in devices {
            members += 1;
            let unit = device / self.unit;
            if let Some(before) = before.replace(device).filter(|before| self.whole && before / self.unit == unit) {
                stride = stride.or(Some(device.abs_diff(before)));
            }
            match self.seen.iter_mut().find(|(u, _)| *u == unit) {
                Some((_, count)) => *count += 1,
                None => self.seen.push((unit, 1)),
            }
        }
        let counts = self.seen.iter().map(|(_, count)| *count);
        Spread {
            members,
            units: self.seen.len() as u32,
            most: counts.clone().max().unwrap_or(1),
            least: counts.min().unwrap_or(1),
            stride: stride.unwrap_or(1),
        }
    }

    /// Units of the group that [`Self::spread_of`] has looked at last.
    pub fn units(&self) -> impl Iterator<Item = u32> + '_ {
        self.seen.iter().map(|(unit, _)| *unit)
    }

    /// The link rate that decides for the units at hand: the slowest of the ring through them, or for an exchange the slowest unit's
    /// harmonic mean over the others.
    fn link(&self, kind: CollectiveKind) -> f64 {
        let Some(links) = self.links else { return 1.0 };
        let units = &self.seen;
        if kind == CollectiveKind::AllToAll {
            let mean = |from: u32| {
                let times = units.iter().filter(|(to, _)| *to != from).map(|(to, _)| 1.0 / links.rate(from, *to));
                (units.len() - 1) as f64 / times.sum::<f64>()
            };
            return units.iter().map(|(from, _)| mean(*from)).fold(f64::INFINITY, f64::min);
        }
        let next = |i: usize| units[(i + 1) % units.len()].0;
        units.iter().enumerate().map(|(i, (from, _))| links.rate(*from, next(i))).fold(f64::INFINITY, f64::min)
    }
}
