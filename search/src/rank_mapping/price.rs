//! What a group costs where its members are.

use super::traffic::Demand;
use sim::kernel::CollectiveKind;
use sim::network::{Fabric, LinkMatrix, Spread};
use sim::units::BytesPerSecond;
use std::collections::BTreeMap;

/// Prices groups by their spread and slowest link, and remembers.
#[derive(Debug, Clone)]
pub(super) struct Prices<'a> {
    fabric: &'a Fabric,
    links: Option<&'a LinkMatrix>,
    /// Devices of a unit.
    pub unit: u32,
    known: BTreeMap<(usize, Spread, u64), f64>,
    /// Units of the group at hand with their members, in the order of its ranks.
    seen: Vec<(u32, u32)>,
}

impl<'a> Prices<'a> {
    pub fn new(fabric: &'a Fabric) -> Self {
        let (links, unit) = fabric.links().map_or((None, 1), |(links, unit)| (Some(links), unit));
        Self { fabric, links, unit, known: BTreeMap::new(), seen: Vec::new() }
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
        self.seen.clear();
        let mut members = 0;
        for device in devices {
            members += 1;
            let unit = device / self.unit;
            match self.seen.iter_mut().find(|(u, _)| *u == unit) {
                Some((_, count)) => *count += 1,
                None => self.seen.push((unit, 1)),
            }
        }
        let counts = self.seen.iter().map(|(_, count)| *count);
        let spread = Spread {
            members,
            units: self.seen.len() as u32,
            most: counts.clone().max().unwrap_or(1),
            least: counts.min().unwrap_or(1),
        };
        let link = if spread.units > 1 { self.link(demand.collective.kind) } else { 1.0 };
        self.spread(id, demand, spread, link)
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
