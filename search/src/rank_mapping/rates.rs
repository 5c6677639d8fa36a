//! Upper bounds on the rates between units, for any placement of groups.

use sim::network::LinkMatrix;

/// Upper bounds on the rate of the slowest link of groups, if every unit takes part.
#[derive(Debug)]
pub(super) struct LinkRates<'a> {
    links: &'a LinkMatrix,
    /// The distinct rates, fastest first.
    rates: Vec<f64>,
}

/// The shape in which a group connects its units.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GroupShape {
    /// A closed ring; with two units, there and back.
    Ring,
    /// An open chain from the first to the last.
    Chain,
}

impl<'a> LinkRates<'a> {
    pub fn of_links(links: &'a LinkMatrix) -> Self {
        let units = links.unit_count();
        let mut rates: Vec<f64> =
            (0..units).flat_map(|a| (a + 1..units).map(move |b| links.rate_between(a, b))).collect();
        rates.sort_by(|a, b| b.total_cmp(a));
        rates.dedup();
        Self { links, rates }
    }

    /// The rate of the fastest link in bytes per second; infinite without links.
    pub fn fastest_link(&self) -> f64 {
        self.rates.first().copied().unwrap_or(f64::INFINITY)
    }

    /// Upper bound on the rate of the slowest group's slowest link, if every unit is in a group over `units` units.
    ///
    /// It is the highest rate such that the links of at least this rate meet three conditions:
    /// - Each unit has as many neighbours as the shape needs: two in a ring, one in a chain or a pair.
    /// - Each connected part has at least `units` units.
    /// - For a ring through all units, the units stay connected without any single one of them.
    pub fn fastest_through(&self, units: u32, shape: GroupShape) -> f64 {
        let neighbours = if shape == GroupShape::Ring && units > 2 { 2 } else { 1 };
        let holds = |rate: f64| {
            let around = neighbours == 2 && units == self.links.unit_count();
            self.joins_every_unit(rate, neighbours, units)
                && (!around || (0..units).all(|left_out| self.joins_all_but_one(rate, 0, Some(left_out))))
        };
        // A lower rate admits more links, which only connect more.
        let at = self.rates.partition_point(|rate| !holds(*rate));
        self.rates.get(at).or(self.rates.last()).copied().unwrap_or(f64::INFINITY)
    }

    /// Upper bound on the rate of an exchange: the harmonic mean rate of a unit's `units - 1` fastest links, for the
    /// slowest unit.
    pub fn slowest_exchange(&self, units: u32) -> f64 {
        let mean = |a: u32| {
            let mut times: Vec<f64> =
                (0..self.links.unit_count()).filter(|b| *b != a).map(|b| 1.0 / self.links.rate_between(a, b)).collect();
            times.sort_by(f64::total_cmp);
            let peers = units.saturating_sub(1).max(1) as usize;
            peers as f64 / times.iter().take(peers).sum::<f64>()
        };
        (0..self.links.unit_count()).map(mean).fold(f64::INFINITY, f64::min)
    }

    /// True if links no slower than `rate` give every unit at least `neighbours` neighbours and connect it to at least
    /// `units` units, itself included.
    fn joins_every_unit(&self, rate: f64, neighbours: usize, units: u32) -> bool {
        let near =
            |a: u32| (0..self.links.unit_count()).filter(|b| *b != a && self.links.rate_between(a, *b) >= rate).count();
        let all = 0..self.links.unit_count();
        all.clone().all(|a| near(a) >= neighbours)
            && all.into_iter().all(|a| self.reachable_units(rate, a, None) >= units)
    }

    /// True if links no slower than `rate` connect all units, or all except `without`.
    fn joins_all_but_one(&self, rate: f64, from: u32, without: Option<u32>) -> bool {
        let from = if without == Some(from) { from + 1 } else { from };
        self.reachable_units(rate, from, without) + u32::from(without.is_some()) >= self.links.unit_count()
    }

    /// The number of units that links no slower than `rate` connect to `from`, itself included and `without` excluded.
    fn reachable_units(&self, rate: f64, from: u32, without: Option<u32>) -> u32 {
        let units = self.links.unit_count();
        let (mut seen, mut open, mut count) = (vec![false; units as usize], vec![from], 1);
        seen[from as usize] = true;
        while let Some(a) = open.pop() {
            for b in 0..units {
                if !seen[b as usize] && Some(b) != without && self.links.rate_between(a, b) >= rate {
                    seen[b as usize] = true;
                    count += 1;
                    open.push(b);
                }
            }
        }
        count
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn links(units: usize, rate: impl Fn(usize, usize) -> f64) -> LinkMatrix {
        let row = |a: usize| (0..units).map(|b| if a == b { 0.0 } else { rate(a.min(b), a.max(b)) }).collect();
        LinkMatrix::from_gb_per_s(&(0..units).map(row).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn a_ring_through_two_racks_crosses_between_them() {
        let racks = links(6, |a, b| if a / 3 == b / 3 { 50.0 } else { 5.0 });
        let rates = LinkRates::of_links(&racks);
        assert_eq!(rates.fastest_through(6, GroupShape::Ring), 5e9, "all units");
        assert_eq!(rates.fastest_through(3, GroupShape::Ring), 50e9, "a rack");
        assert_eq!(rates.fastest_through(4, GroupShape::Chain), 5e9, "more than a rack");
        assert_eq!(rates.slowest_exchange(3), 50e9);
    }

    #[test]
    fn a_unit_all_rings_go_through_has_two_links_in_one() {
        // Both triangles are fast, but a ring through all five units passes unit 2 twice.
        let bow_tie = links(5, |a, b| if (a < 3 && b < 3) || (a >= 2 && b >= 2) { 50.0 } else { 5.0 });
        let rates = LinkRates::of_links(&bow_tie);
        assert_eq!(rates.fastest_through(5, GroupShape::Ring), 5e9);
        assert_eq!(rates.fastest_through(5, GroupShape::Chain), 50e9);
        // Unit 0 has one fast link.
        let tail = links(4, |a, b| if (a, b) == (0, 1) || a > 0 { 50.0 } else { 5.0 });
        assert_eq!(LinkRates::of_links(&tail).fastest_through(3, GroupShape::Ring), 5e9);
        assert_eq!(LinkRates::of_links(&tail).fastest_through(2, GroupShape::Ring), 50e9);
    }
}
