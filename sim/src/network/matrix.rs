//! A measured bandwidth between any two units.

use ndarray::{Array2, Axis};
use serde::{Deserialize, Serialize};

/// Bandwidths between the units of a tier, one direction, in bytes per second of the *whole unit* (a node, not a
/// device). They are symmetric: the import averages measurements of both directions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(from = "Array2<f64>", into = "Array2<f64>")]
pub struct LinkMatrix {
    /// `units` x `units`; the diagonal is not used.
    rates: Array2<f64>,
    /// True if some links are slower than others.
    differ: bool,
}

impl From<Array2<f64>> for LinkMatrix {
    fn from(rates: Array2<f64>) -> Self {
        let links = || rates.indexed_iter().filter(|((a, b), _)| a != b).map(|(_, rate)| *rate);
        let differ = links().next().is_some_and(|first| links().any(|rate| rate != first));
        Self { rates, differ }
    }
}

impl From<LinkMatrix> for Array2<f64> {
    fn from(links: LinkMatrix) -> Self {
        links.rates
    }
}

impl LinkMatrix {
    /// Builds a matrix from rows. The caller verifies that they are square, symmetric and positive, as
    /// [`super::Fabric::from_toml_str`] does.
    #[must_use]
    pub(crate) fn from_rows(rows: &[Vec<f64>]) -> Self {
        let units = rows.len();
        Array2::from_shape_fn((units, units), |(a, b)| rows[a].get(b).copied().unwrap_or_default()).into()
    }

    /// The number of units.
    #[must_use]
    pub fn unit_count(&self) -> u32 {
        self.rates.nrows() as u32
    }

    /// Returns the bytes per second from unit `a` to unit `b` (indices wrap around).
    #[must_use]
    pub fn rate_between(&self, a: u32, b: u32) -> f64 {
        let units = self.unit_count();
        self.rates[[(a % units) as usize, (b % units) as usize]]
    }

    /// Returns a matrix of `units` units with equal links of `rate` bytes per second.
    #[must_use]
    pub(crate) fn with_uniform_links(units: u32, rate: f64) -> Self {
        Array2::from_elem((units as usize, units as usize), rate).into()
    }

    /// True if some links are slower than others.
    #[must_use]
    pub fn rates_differ(&self) -> bool {
        self.differ
    }

    /// The slowest link, bytes per second of the unit.
    #[must_use]
    pub(crate) fn slowest_rate(&self) -> f64 {
        self.rates.indexed_iter().filter(|((a, b), _)| a != b).map(|(_, rate)| *rate).fold(f64::INFINITY, f64::min)
    }

    /// Returns a matrix of as many units, joined by equal links at the harmonic mean of the rates here. The result does
    /// not depend on the units' order.
    #[must_use]
    pub(crate) fn equalise(&self) -> Self {
        if !self.rates_differ() {
            return self.clone();
        }
        let units = self.unit_count();
        let pairs = (0..units).flat_map(|a| (0..units).filter(move |b| *b != a).map(move |b| (a, b)));
        let (count, time) = pairs.fold((0.0, 0.0), |(n, sum), (a, b)| (n + 1.0, sum + 1.0 / self.rate_between(a, b)));
        let rate = if count > 0.0 { count / time } else { 1.0 };
        Self::with_uniform_links(units, rate)
    }

    /// Returns the matrix of the first `units` units.
    #[must_use]
    pub(crate) fn truncate(&self, units: u32) -> Self {
        let first: Vec<u32> = (0..units.min(self.unit_count())).collect();
        self.permute(&first)
    }

    /// Returns the same links with unit `i` of the result at unit `order[i]` of this matrix: a mapping of ranks to
    /// hardware.
    #[must_use]
    pub(crate) fn permute(&self, order: &[u32]) -> Self {
        let units = self.unit_count();
        let order: Vec<usize> = order.iter().map(|&unit| (unit % units) as usize).collect();
        self.rates.select(Axis(0), &order).select(Axis(1), &order).into()
    }

    /// Returns the members of every sibling group of `fan_out` units, `spacing` apart. Both numbers are limited to the
    /// matrix.
    fn sibling_groups(&self, fan_out: u32, spacing: u32) -> impl Iterator<Item = Vec<u32>> {
        let spacing = spacing.clamp(1, (self.unit_count() / 2).max(1));
        let fan_out = fan_out.clamp(2, (self.unit_count() / spacing).max(2));
        let span = fan_out * spacing;
        let blocks = (self.unit_count() / span).max(1);
        (0..blocks).flat_map(move |block| {
            (0..spacing).map(move |first| (0..fan_out).map(|i| block * span + first + i * spacing).collect())
        })
    }

    /// Returns the rate of the slowest link in the rings of all sibling groups, in rank order, in bytes per second of
    /// the unit.
    #[must_use]
    pub(crate) fn ring_rate(&self, fan_out: u32, spacing: u32) -> f64 {
        let mut slowest = f64::INFINITY;
        for group in self.sibling_groups(fan_out, spacing) {
            for (i, &from) in group.iter().enumerate() {
                slowest = slowest.min(self.rate_between(from, group[(i + 1) % group.len()]));
            }
        }
        slowest
    }

    /// Returns the rate of the slowest link between neighbours in rank order, without a link from the last back to the
    /// first, in bytes per second of the unit.
    #[must_use]
    pub(crate) fn line_rate(&self, fan_out: u32, spacing: u32) -> f64 {
        let mut slowest = f64::INFINITY;
        for group in self.sibling_groups(fan_out, spacing) {
            for pair in group.windows(2) {
                slowest = slowest.min(self.rate_between(pair[0], pair[1]));
            }
        }
        slowest
    }

    /// Returns the rate of an exchange of equal shares for the slowest member of any sibling group: the harmonic mean
    /// of the member's links, in bytes per second of the unit.
    #[must_use]
    pub(crate) fn exchange_rate(&self, fan_out: u32, spacing: u32) -> f64 {
        let mut slowest = f64::INFINITY;
        for group in self.sibling_groups(fan_out, spacing) {
            for &from in &group {
                let time: f64 =
                    group.iter().filter(|&&to| to != from).map(|&to| 1.0 / self.rate_between(from, to)).sum();
                slowest = slowest.min((group.len() - 1) as f64 / time);
            }
        }
        slowest
    }
}
