//! Finds the candidate with the largest value. Values are bounded from above, and only candidates that the bounds do
//! not decide are priced.

use rayon::prelude::*;

/// Candidates priced together before bounds are compared again: enough to keep some cores busy.
const TOGETHER: usize = 8;

/// The result of pricing a candidate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum PricedValue {
    /// Its value.
    Exact(f64),
    /// An upper bound on its value, at or below the threshold of the call.
    AtMost(f64),
}

/// Prices a candidate, given its index and a threshold. Only a value above the threshold matters.
pub type PriceValue<'a> = dyn Fn(usize, f64) -> PricedValue + Sync + 'a;

/// Functions that join two values of a candidate into one.
pub struct JoinedValues<'a> {
    /// The joint value of a first and a second value. It grows with both.
    pub join: &'a (dyn Fn(f64, f64) -> f64 + Sync),
    /// Takes a joint value and a candidate's first value. Returns the second value above which the candidate exceeds
    /// that joint value.
    pub needed: &'a (dyn Fn(f64, f64) -> f64 + Sync),
}

/// Upper bounds on the values of candidates, some of them exact. The search is for the largest value.
#[derive(Debug, Clone, Default)]
pub struct BoundedValues {
    upper: Vec<f64>,
    exact: Vec<bool>,
}

impl BoundedValues {
    /// Starts with an upper bound on every candidate.
    #[must_use]
    pub fn from_bounds(upper: Vec<f64>) -> Self {
        Self { exact: vec![false; upper.len()], upper }
    }

    /// Returns the value of a candidate, or an upper bound on it; 0 for an unknown candidate.
    #[must_use]
    pub fn at_most(&self, candidate: usize) -> f64 {
        self.upper.get(candidate).copied().unwrap_or(0.0)
    }

    /// Returns the value of a candidate, if it was priced exactly.
    #[must_use]
    pub fn exact(&self, candidate: usize) -> Option<f64> {
        self.exact.get(candidate).filter(|exact| **exact).map(|_| self.at_most(candidate))
    }

    /// Returns the exactly priced candidates with their values, largest first.
    #[must_use]
    pub fn exact_by_falling(&self) -> Vec<(usize, f64)> {
        by_falling(&self.upper).into_iter().filter_map(|at| Some((at, self.exact(at)?))).collect()
    }

    /// Returns the number of exactly priced candidates.
    #[must_use]
    pub fn priced(&self) -> usize {
        self.exact.iter().filter(|exact| **exact).count()
    }

    /// Returns the highest bound of a candidate that was not priced exactly; 0 if all were.
    #[must_use]
    pub fn highest_open_bound(&self) -> f64 {
        self.upper.iter().zip(&self.exact).filter(|(_, exact)| !**exact).map(|(upper, _)| *upper).fold(0.0, f64::max)
    }

    /// Returns the candidate with the largest exact value above zero; on ties, the first.
    #[must_use]
    pub fn largest(&self) -> Option<usize> {
        let priced = (0..self.upper.len()).filter(|at| self.exact(*at).is_some_and(|value| value > 0.0));
        priced.max_by(|a, b| self.at_most(*a).total_cmp(&self.at_most(*b)).then(b.cmp(a)))
    }

    /// Prices candidates in the order of their bounds, until no remaining bound is above the largest value. Returns
    /// [`Self::largest`].
    pub fn settle_largest(&mut self, price: &PriceValue<'_>) -> Option<usize> {
        let mut best = self.largest().map_or(0.0, |at| self.at_most(at));
        for group in by_falling(&self.upper).chunks(TOGETHER) {
            if group.first().is_none_or(|first| self.at_most(*first) <= best) {
                break;
            }
            self.price_above(group, price, &|_| best);
            best = self.largest().map_or(0.0, |at| self.at_most(at));
        }
        self.largest()
    }

    /// Prices all candidates whose bound is above `threshold`.
    pub fn settle_above(&mut self, price: &PriceValue<'_>, threshold: f64) {
        let all: Vec<usize> = (0..self.upper.len()).collect();
        self.price_above(&all, price, &|_| threshold);
    }

    /// Prices the candidates of `some` that have no exact value yet and whose bound is above their threshold.
    fn price_above(&mut self, some: &[usize], price: &PriceValue<'_>, threshold: &(dyn Fn(usize) -> f64 + Sync)) {
        let due: Vec<usize> =
            some.iter().copied().filter(|at| self.exact(*at).is_none() && self.at_most(*at) > threshold(*at)).collect();
        let prices: Vec<PricedValue> = due.par_iter().with_max_len(1).map(|at| price(*at, threshold(*at))).collect();
        for (at, price) in due.into_iter().zip(prices) {
            let (value, is_exact) = match price {
                PricedValue::Exact(value) => (value, true),
                PricedValue::AtMost(value) => (value.min(self.at_most(at)), false),
            };
            if let (Some(upper), Some(exact)) = (self.upper.get_mut(at), self.exact.get_mut(at)) {
                (*upper, *exact) = (value, is_exact);
            }
        }
    }

    /// Prices both values of candidates, until no remaining bound on the joint value is above the largest one. Returns
    /// the candidate with the largest joint value above zero; on ties, the first.
    pub fn settle_joint(
        &mut self,
        second: &mut Self,
        joined: &JoinedValues<'_>,
        price: &PriceValue<'_>,
        price_second: &PriceValue<'_>,
    ) -> Option<usize> {
        let joint = |first: &Self, second: &Self, at: usize| (joined.join)(first.at_most(at), second.at_most(at));
        let bounds: Vec<f64> = (0..self.upper.len()).map(|at| joint(self, second, at)).collect();
        let mut found = self.largest_joint(second, joined);
        for group in by_falling(&bounds).chunks(TOGETHER) {
            let best = found.map_or(0.0, |at| joint(self, second, at));
            if group.first().and_then(|first| bounds.get(*first)).is_none_or(|bound| *bound <= best) {
                break;
            }
            let open = |first: &Self, second: &Self| -> Vec<usize> {
                group.iter().copied().filter(|at| joint(first, second, *at) > best).collect()
            };
            let due = open(self, second);
            self.price_above(&due, price, &|_| 0.0);
            let due = open(self, second);
            let own = &*self;
            second.price_above(&due, price_second, &|at| (joined.needed)(best, own.at_most(at)));
            found = self.largest_joint(second, joined);
        }
        found
    }

    fn largest_joint(&self, second: &Self, joined: &JoinedValues<'_>) -> Option<usize> {
        let joint = |at: usize| Some((joined.join)(self.exact(at)?, second.exact(at)?));
        let priced = (0..self.upper.len()).filter_map(|at| Some((at, joint(at).filter(|value| *value > 0.0)?)));
        priced.max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0))).map(|(at, _)| at)
    }
}

/// Returns the indices of values, largest value first; on ties, the first index first.
fn by_falling(values: &[f64]) -> Vec<usize> {
    let value = |at: usize| values.get(at).copied().unwrap_or(0.0);
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by(|a, b| value(*b).total_cmp(&value(*a)).then(a.cmp(b)));
    order
}
