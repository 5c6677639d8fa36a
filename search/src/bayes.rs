//! Bayesian optimisation over hardware alone, as a baseline.
//!
//! A Gaussian process models the value over a space's dimensions. The design with the largest expected improvement is
//! evaluated next (Jones, Schonlau and Welch, Journal of Global Optimization 13, 1998). Hardware searches such as
//! Spotlight's work this way.
//!
//! The process has a Matern 5/2 kernel over the logarithms of the dimensions, each scaled to 0 to 1. Its length scale
//! and its noise maximise the marginal likelihood among a few candidates (Rasmussen and Williams 2006, section 5.4.1).
//! It models the logarithm of the value. A design without a value counts as the worst value seen. It also counts as an
//! evaluation, because evaluating it takes as long.

use crate::random::SeededRandom;
use std::collections::BTreeSet;

/// Designs drawn at random before the process is fitted.
const START: usize = 8;

/// Limit on the designs whose expected improvement is computed for each choice: random ones, and neighbours of the best
/// in the space's order.
const CANDIDATES: usize = 2_000;

/// Kernel length scales tried, as fractions of a dimension's range.
const LENGTHS: [f64; 5] = [0.1, 0.2, 0.4, 0.8, 1.6];

/// Noise variances tried, in units of the values' variance.
const NOISES: [f64; 3] = [1e-6, 1e-3, 1e-1];

/// Limit on the designs that the process is fitted to. Above it, half of them are the best designs and the rest the
/// latest.
const FITTED: usize = 200;

/// A space of designs with a value to minimise.
pub trait BayesProblem {
    /// The number of designs.
    fn count(&self) -> usize;
    /// A design's dimensions as numbers, equally many for each design. `None` if the index is no design. The call is
    /// cheap.
    fn dimensions_of(&self, design: usize) -> Option<Vec<f64>>;
    /// The value to minimise, above zero; `None` if the design has none.
    fn value_of(&self, design: usize) -> Option<f64>;
}

/// The designs tried, in the order of their evaluation.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TriedDesigns {
    /// Designs with their values; `None` if a design has no value.
    pub designs: Vec<(usize, Option<f64>)>,
}

impl TriedDesigns {
    /// The design with the least value, with that value; `None` if no design has one.
    #[must_use]
    pub fn best(&self) -> Option<(usize, f64)> {
        let valued = self.designs.iter().filter_map(|(design, value)| Some((*design, (*value)?)));
        valued.min_by(|a, b| a.1.total_cmp(&b.1).then(a.0.cmp(&b.0)))
    }
}

/// Evaluates up to `evaluations` designs, each once. The same seed gives the same result. The search ends early if no
/// design is left, or after a hundred draws in a row without a new design.
#[must_use]
pub fn minimise_value(designs: &impl BayesProblem, evaluations: usize, seed: u64) -> TriedDesigns {
    let mut search = BayesSearch {
        designs,
        random: SeededRandom(seed),
        tried: TriedDesigns::default(),
        known: BTreeSet::new(),
        points: Vec::new(),
        ranges: None,
    };
    while search.tried.designs.len() < evaluations {
        let next = if search.points.len() < START { search.draw_untried() } else { search.most_promising() };
        let Some((design, dimensions)) = next else { break };
        search.known.insert(design);
        search.points.push(dimensions);
        search.tried.designs.push((design, designs.value_of(design)));
    }
    search.tried
}

struct BayesSearch<'a, D> {
    designs: &'a D,
    random: SeededRandom,
    tried: TriedDesigns,
    known: BTreeSet<usize>,
    /// Logarithms of the tried designs' dimensions.
    points: Vec<Vec<f64>>,
    /// The least logarithm of each dimension and its range, over all designs seen.
    ranges: Option<Vec<(f64, f64)>>,
}

impl<D: BayesProblem> BayesSearch<'_, D> {
    /// Draws a design that has not been tried, with the logarithms of its dimensions. `None` after a hundred failed
    /// draws.
    fn draw_untried(&mut self) -> Option<(usize, Vec<f64>)> {
        let count = self.designs.count();
        for _ in 0..100 {
            if self.known.len() >= count {
                break;
            }
            let design = self.random.next_below(count as u64) as usize;
            if self.known.contains(&design) {
                continue;
            }
            match self.designs.dimensions_of(design) {
                Some(dimensions) => return Some((design, self.is_tried(&dimensions))),
                None => {
                    self.known.insert(design);
                }
            }
        }
        None
    }

    fn is_tried(&mut self, dimensions: &[f64]) -> Vec<f64> {
        let logs: Vec<f64> = dimensions.iter().map(|value| value.abs().max(1e-12).ln()).collect();
        let ranges = self.ranges.get_or_insert_with(|| logs.iter().map(|log| (*log, 0.0)).collect());
        for (range, log) in ranges.iter_mut().zip(&logs) {
            let (low, high) = (range.0.min(*log), (range.0 + range.1).max(*log));
            *range = (low, high - low);
        }
        logs
    }

    /// The design with the largest expected improvement among some that have not been tried, with the logarithms of its
    /// dimensions.
    fn most_promising(&mut self) -> Option<(usize, Vec<f64>)> {
        let mut drawn: Vec<(usize, Vec<f64>)> = Vec::new();
        let mut among = BTreeSet::new();
        let near = self.tried.best().map_or(0, |(best, _)| best);
        for i in 0..CANDIDATES {
            // Neighbours in the space's order differ in few dimensions.
            let step = (i / 2 + 1) as i64 * if i % 2 == 0 { 1 } else { -1 };
            let neighbour = usize::try_from(near as i64 + step).ok().filter(|at| *at < self.designs.count());
            let picked = match neighbour.filter(|at| i < CANDIDATES / 8 && !self.known.contains(at)) {
                Some(at) => self.designs.dimensions_of(at).map(|dimensions| (at, dimensions)),
                None => None,
            };
            let one = match picked {
                Some((at, dimensions)) => Some((at, self.is_tried(&dimensions))),
                None => self.draw_untried(),
            };
            let Some((design, logs)) = one else { break };
            if among.insert(design) {
                drawn.push((design, logs));
            }
        }
        let process = self.fit_process()?;
        let improvement = |logs: &Vec<f64>| process.expected_improvement(&self.scale_point(logs));
        let best = drawn.iter().map(|(design, logs)| (improvement(logs), *design, logs));
        let best = best.max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1)))?;
        Some((best.1, best.2.clone()))
    }

    fn scale_point(&self, logs: &[f64]) -> Vec<f64> {
        let ranges = self.ranges.as_deref().unwrap_or_default();
        logs.iter()
            .zip(ranges)
            .map(|(log, (low, range))| if *range > 0.0 { (log - low) / range } else { 0.0 })
            .collect()
    }

    /// Fits the process to the logarithms of the tried designs' values.
    fn fit_process(&self) -> Option<GaussianProcess> {
        let worst = self.tried.designs.iter().filter_map(|(_, value)| *value).fold(f64::MIN_POSITIVE, f64::max);
        let values: Vec<f64> = self.tried.designs.iter().map(|(_, value)| value.unwrap_or(worst).ln()).collect();
        let mut order: Vec<usize> = (0..values.len()).collect();
        if order.len() > FITTED {
            order.sort_by(|a, b| values[*a].total_cmp(&values[*b]));
            order.truncate(FITTED / 2);
            let last = (values.len() - FITTED / 2..values.len()).filter(|at| !order.contains(at)).collect::<Vec<_>>();
            order.extend(last);
        }
        let points: Vec<Vec<f64>> = order.iter().map(|at| self.scale_point(&self.points[*at])).collect();
        let values: Vec<f64> = order.iter().map(|at| values[*at]).collect();
        GaussianProcess::fit_by_likelihood(points, &values)
    }
}

/// A Gaussian process conditioned on values; the prior has mean zero and variance one.
#[derive(Debug)]
struct GaussianProcess {
    points: Vec<Vec<f64>>,
    length: f64,
    /// The lower Cholesky factor of the covariance, row by row.
    factor: Vec<Vec<f64>>,
    /// The covariance's inverse times the values.
    weights: Vec<f64>,
    least: f64,
}

impl GaussianProcess {
    /// The process with the largest marginal likelihood; `None` if no covariance can be factored.
    fn fit_by_likelihood(points: Vec<Vec<f64>>, values: &[f64]) -> Option<Self> {
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let spread = (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n).sqrt().max(1e-12);
        let values: Vec<f64> = values.iter().map(|v| (v - mean) / spread).collect();
        let mut best: Option<(f64, Self)> = None;
        for length in LENGTHS {
            for noise in NOISES {
                let Some(factor) = cholesky_factor(&points, length, noise) else { continue };
                let half = solve_lower(&factor, &values);
                let weights = solve_transposed(&factor, &half);
                let fit: f64 = half.iter().map(|v| v * v).sum();
                let determinant: f64 = factor.iter().enumerate().map(|(i, row)| row[i].ln()).sum();
                let likelihood = -0.5 * fit - determinant;
                if best.as_ref().is_none_or(|(most, _)| likelihood > *most) {
                    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
                    best = Some((likelihood, Self { points: points.clone(), length, factor, weights, least }));
                }
            }
        }
        best.map(|(_, process)| process)
    }

    /// The mean and the variance at a point.
    fn mean_and_variance_at(&self, point: &[f64]) -> (f64, f64) {
        let near: Vec<f64> = self.points.iter().map(|other| matern_kernel(point, other, self.length)).collect();
        let mean = near.iter().zip(&self.weights).map(|(k, w)| k * w).sum();
        let half = solve_lower(&self.factor, &near);
        (mean, (1.0 - half.iter().map(|v| v * v).sum::<f64>()).max(0.0))
    }

    /// Expected improvement on the least value: the mean of the improvement, where larger values count as none.
    fn expected_improvement(&self, point: &[f64]) -> f64 {
        let (mean, variance) = self.mean_and_variance_at(point);
        let deviation = variance.sqrt();
        let gain = self.least - mean;
        if deviation < 1e-9 {
            return gain.max(0.0);
        }
        let z = gain / deviation;
        gain * normal_distribution(z) + deviation * (-0.5 * z * z).exp() / std::f64::consts::TAU.sqrt()
    }
}

/// The Matern 5/2 kernel.
fn matern_kernel(a: &[f64], b: &[f64], length: f64) -> f64 {
    let squared: f64 = a.iter().zip(b).map(|(a, b)| (a - b).powi(2)).sum();
    let r = (5.0 * squared).sqrt() / length;
    (1.0 + r + r * r / 3.0) * (-r).exp()
}

/// The lower Cholesky factor of the points' covariance; `None` if rounding makes it indefinite.
fn cholesky_factor(points: &[Vec<f64>], length: f64, noise: f64) -> Option<Vec<Vec<f64>>> {
    let mut factor: Vec<Vec<f64>> = Vec::with_capacity(points.len());
    for (i, point) in points.iter().enumerate() {
        let mut row = vec![0.0; i + 1];
        for j in 0..=i {
            let own = if i == j { noise } else { 0.0 };
            let before: f64 = (0..j).map(|k| row[k] * factor.get(j).map_or(row[k], |other| other[k])).sum();
            let left = matern_kernel(point, &points[j], length) + own - before;
            row[j] = if i == j { (left > 0.0).then(|| left.sqrt())? } else { left / factor[j][j] };
        }
        factor.push(row);
    }
    Some(factor)
}

/// Solves the lower triangular system `factor` x = `right`.
fn solve_lower(factor: &[Vec<f64>], right: &[f64]) -> Vec<f64> {
    let mut solved: Vec<f64> = Vec::with_capacity(right.len());
    for (row, value) in factor.iter().zip(right) {
        let before: f64 = row.iter().zip(&solved).map(|(l, x)| l * x).sum();
        solved.push((value - before) / row[solved.len()]);
    }
    solved
}

/// Solves the system with the transposed factor.
fn solve_transposed(factor: &[Vec<f64>], right: &[f64]) -> Vec<f64> {
    let mut solved = right.to_vec();
    for i in (0..solved.len()).rev() {
        let after: f64 = (i + 1..solved.len()).map(|k| factor[k][i] * solved[k]).sum();
        solved[i] = (solved[i] - after) / factor[i][i];
    }
    solved
}

/// The distribution function of the normal distribution, to 7.5e-8 (Abramowitz and Stegun 26.2.17).
fn normal_distribution(z: f64) -> f64 {
    let t = 1.0 / (1.0 + 0.231_641_9 * z.abs());
    let sum = [0.319_381_530, -0.356_563_782, 1.781_477_937, -1.821_255_978, 1.330_274_429];
    let tail = sum.iter().rev().fold(0.0, |s, c| (s + c) * t) * (-0.5 * z * z).exp() / std::f64::consts::TAU.sqrt();
    if z > 0.0 { 1.0 - tail } else { tail }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// A bowl over a grid in logarithms. One corner has no value and one is no design.
    struct Bowl {
        side: usize,
    }

    impl BayesProblem for Bowl {
        fn count(&self) -> usize {
            self.side * self.side
        }
        fn dimensions_of(&self, design: usize) -> Option<Vec<f64>> {
            let (x, y) = (design % self.side, design / self.side);
            (x + y > 0).then(|| vec![2_f64.powi(x as i32), 2_f64.powi(y as i32)])
        }
        fn value_of(&self, design: usize) -> Option<f64> {
            let (x, y) = ((design % self.side) as f64, (design / self.side) as f64);
            let side = self.side as f64;
            (x + y < 1.8 * side).then(|| 1.0 + (x - 0.7 * side).powi(2) + 2.0 * (y - 0.3 * side).powi(2))
        }
    }

    #[test]
    fn it_finds_the_bottom_in_fewer_evaluations_than_chance() {
        let bowl = Bowl { side: 32 };
        let least = (0..bowl.count())
            .filter(|d| bowl.dimensions_of(*d).is_some())
            .filter_map(|d| bowl.value_of(d))
            .fold(f64::INFINITY, f64::min);
        for seed in 0..4 {
            let tried = minimise_value(&bowl, 40, seed);
            assert_eq!(tried.designs.len(), 40);
            let distinct: BTreeSet<usize> = tried.designs.iter().map(|(d, _)| *d).collect();
            assert_eq!(distinct.len(), 40, "each design once");
            assert!(!distinct.contains(&0), "what is no design is not evaluated");
            // By chance, 40 of the 1024 designs include one of the ten best in only one run out of three.
            assert!(tried.best().unwrap().1 <= least + 3.0, "seed {seed}: {:?} above {least}", tried.best());
            assert_eq!(tried, minimise_value(&bowl, 40, seed), "the same for a seed");
        }
        assert_eq!(minimise_value(&Bowl { side: 2 }, 40, 1).designs.len(), 3, "no more than there are");
    }

    #[test]
    fn the_process_goes_through_what_it_is_fitted_to_and_is_unsure_elsewhere() {
        let points: Vec<Vec<f64>> = (0..6).map(|i| vec![f64::from(i) / 5.0]).collect();
        let values: Vec<f64> = points.iter().map(|p| (4.0 * p[0]).sin()).collect();
        let process = GaussianProcess::fit_by_likelihood(points.clone(), &values).unwrap();
        let mean = values.iter().sum::<f64>() / 6.0;
        let spread = (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 6.0).sqrt();
        for (point, value) in points.iter().zip(&values) {
            let (found, variance) = process.mean_and_variance_at(point);
            assert!((found - (value - mean) / spread).abs() < 0.05 && variance < 0.05, "{point:?}: {found} {variance}");
        }
        assert!(process.mean_and_variance_at(&[3.0]).1 > 0.5, "far away it knows nothing");
        assert!(process.expected_improvement(&[3.0]) > 0.0);
        for (z, wanted) in [(0.0, 0.5), (1.0, 0.841_344_746), (-1.96, 0.024_997_895)] {
            assert!((normal_distribution(z) - wanted).abs() < 1e-6, "{z}: {}", normal_distribution(z));
        }
    }
}
