//! Scalars fitted to measurements from what is believed of them before: those that the measurements say nothing of stay where they usually are, and
//! a handful of measurements moves those that they determine.
//!
//! A point has a coordinate per scalar, usually a logarithm. What is minimised is the sum over the rows of |ln(predicted / measured)| over
//! `ERROR_SCALE`, plus half the square of every coordinate's distance from what is believed in units of the belief's spread: the most probable point
//! where errors have a Laplace distribution (one row that the model does not understand does not carry the others away) and scalars a normal one.

use crate::coordinate_search::coordinate_search;

/// What errors scatter by where the model is right: the median error of the built-in stacks on the data sets that they were fitted on is from 2 to
/// 9 % (`step/stacks/README.md`), and that of the built-in fabrics on collectives from 16 MiB on is of the same size.
const ERROR_SCALE: f64 = 0.05;
/// How much worse than the best the logarithm of the probability is at the ends of a 90 % range (half the chi-square of one degree of freedom).
const RANGE_DROP: f64 = 1.353;
/// The step of a coordinate, a logarithm, at which a fit ends: what is left moves no time by as much as models are wrong about it.
const FINEST: f64 = 0.02;
/// By how much longer steps are than those of a fit of fractions: times span a factor of a hundred.
const STRIDE: f64 = 3.0;
/// Standard deviations on either side of the mean between which 90 % of a normal distribution lies.
const NORMAL_90: f64 = 1.645;
/// The least spread of what is believed: files that took their figures over from each other agree better than they know.
const LEAST_SPREAD: f64 = 0.1;
/// Rows up to which each is left out by itself; of more, as many parts of them.
pub const LEFT_OUT: usize = 12;

/// What is believed of a coordinate before anything is measured: a normal distribution, within what can be.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Belief {
    /// Its middle.
    pub centre: f64,
    /// Its standard deviation.
    pub spread: f64,
    /// The least that can be.
    pub least: f64,
    /// The most.
    pub most: f64,
}

/// Between which values the rows put a coordinate.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Range {
    /// At least.
    pub low: f64,
    /// At most.
    pub high: f64,
    /// Whether the rows end it on one side at least, and it is narrower than what was believed.
    pub determined: bool,
}

/// ln(predicted / measured) of every row at a point.
pub type Errors<'a> = dyn FnMut(&[f64]) -> Vec<f64> + 'a;

/// The same of some rows, by their places.
pub type ErrorsOf<'a> = dyn FnMut(&[usize], &[f64]) -> Vec<f64> + 'a;

/// What is to be fitted.
#[derive(Debug, Clone, Copy)]
pub struct ScalarFit<'a> {
    /// What is believed of each coordinate.
    pub beliefs: &'a [Belief],
    /// Points besides the middle of what is believed where the search may begin.
    pub starts: &'a [Vec<f64>],
}

impl ScalarFit<'_> {
    /// The most probable point.
    #[must_use]
    pub fn fit(&self, errors: &mut Errors<'_>) -> Vec<f64> {
        self.search(&vec![true; self.beliefs.len()], errors)
    }

    /// The same, with the range in which the rows determine every coordinate; one that they do not determine keeps the middle of what is believed.
    #[must_use]
    pub fn fit_with_ranges(&self, errors: &mut Errors<'_>) -> (Vec<f64>, Vec<Range>) {
        let point = self.fit(errors);
        let ranges: Vec<Range> = (0..point.len()).map(|i| self.range(&point, i, errors)).collect();
        let free: Vec<bool> = ranges.iter().map(|range| range.determined).collect();
        let point = if free.iter().all(|free| *free) { point } else { self.search(&free, errors) };
        (point, ranges)
    }

    /// The most probable point without each fold of the rows; `of` says in which fold each row is, `errors` gives those of some rows at a point.
    #[must_use]
    pub fn left_out(&self, of: &[usize], errors: &mut ErrorsOf<'_>) -> Vec<Vec<f64>> {
        let folds = of.iter().copied().max().map_or(0, |last| last + 1);
        let rest = |fold: usize| (0..of.len()).filter(|row| of[*row] != fold).collect::<Vec<_>>();
        (0..folds).map(rest).map(|rest| self.fit(&mut |point| errors(&rest, point))).collect()
    }

    /// Moves the free coordinates from the middle of what is believed, or from another start if that explains the rows better: where a scalar makes
    /// no difference until another has moved (the host's time, where devices take longer) no single step leads out.
    fn search(&self, free: &[bool], errors: &mut Errors<'_>) -> Vec<f64> {
        let centres: Vec<f64> = self.beliefs.iter().map(|belief| belief.centre).collect();
        let start =
            |other: &Vec<f64>| (0..centres.len()).map(|i| if free[i] { self.limited(i, other[i]) } else { centres[i] }).collect();
        let mut starts: Vec<Vec<f64>> = self.starts.iter().map(start).collect();
        starts.push(centres.clone());
        let mut cost = |point: &Vec<f64>| misfit(point, errors) + self.improbability(point);
        let best = starts.into_iter().map(|point| (cost(&point), point)).min_by(|a, b| a.0.total_cmp(&b.0));
        let free: Vec<usize> = (0..free.len()).filter(|i| free[*i]).collect();
        let neighbours = |point: &Vec<f64>, i: usize, step: f64| {
            [step, -step].map(|by| {
                let mut moved = point.clone();
                moved[free[i]] = self.limited(free[i], moved[free[i]] + STRIDE * by);
                (STRIDE * step > FINEST && moved[free[i]] != point[free[i]]).then_some(moved)
            })
        };
        let objective = |point: &Vec<f64>| Ok::<f64, std::convert::Infallible>(cost(point));
        let Ok(found) = coordinate_search(best.map_or(centres, |(_, point)| point), free.len(), neighbours, objective);
        found.point
    }

    fn limited(&self, i: usize, coordinate: f64) -> f64 {
        coordinate.max(self.beliefs[i].least).min(self.beliefs[i].most)
    }

    /// Minus the logarithm of a point's density, without the constant.
    fn improbability(&self, point: &[f64]) -> f64 {
        point.iter().zip(self.beliefs).map(|(u, b)| ((u - b.centre) / b.spread).powi(2) / 2.0).sum()
    }

    /// How far a coordinate can move, the others fixed, before the rows alone speak against it.
    fn range(&self, point: &[f64], i: usize, errors: &mut Errors<'_>) -> Range {
        let best = misfit(point, errors);
        let mut end = |direction: f64| {
            let mut at = |by: f64| {
                let mut moved = point.to_vec();
                moved[i] = self.limited(i, point[i] + direction * by);
                (moved[i], misfit(&moved, errors) - best)
            };
            let (mut inside, mut outside) = (0.0, 0.02);
            // What lies further than this no belief holds possible.
            let far = 8.0 * self.beliefs[i].spread;
            while at(outside).1 < RANGE_DROP {
                if outside > far {
                    return (at(outside).0, false);
                }
                (inside, outside) = (outside, outside * 2.0);
            }
            for _ in 0..6 {
                let middle = f64::midpoint(inside, outside);
                if at(middle).1 < RANGE_DROP { inside = middle } else { outside = middle }
            }
            (at(inside).0, true)
        };
        let ((low, below), (high, above)) = (end(-1.0), end(1.0));
        let width = 2.0 * NORMAL_90 * self.beliefs[i].spread;
        Range { low, high, determined: (below || above) && high - low < width }
    }
}

fn misfit(point: &[f64], errors: &mut Errors<'_>) -> f64 {
    errors(point).iter().map(|e| e.abs()).sum::<f64>() / ERROR_SCALE
}

/// How surely a coordinate is believed in that has these values elsewhere, each counted once.
#[must_use]
pub fn spread(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.dedup();
    deviation(&values).max(LEAST_SPREAD)
}

/// The standard deviation of some values.
#[must_use]
pub fn deviation(values: &[f64]) -> f64 {
    let n = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / n;
    (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n).sqrt()
}

/// Four significant digits: what a fit is worth, and what is written to a file.
#[must_use]
pub fn rounded(value: f64) -> f64 {
    if value.abs() < 1e-9 { 0.0 } else { format!("{value:.3e}").parse().unwrap_or(value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn belief(centre: f64) -> Belief {
        Belief { centre, spread: 1.0, least: -10.0, most: 10.0 }
    }

    #[test]
    fn what_rows_say_nothing_of_stays() {
        let beliefs = [belief(0.0), belief(3.0)];
        let fit = ScalarFit { beliefs: &beliefs, starts: &[] };
        let (point, ranges) = fit.fit_with_ranges(&mut |p| (0..8).map(|_| p[0] - 1.0).collect());
        assert!((point[0] - 1.0).abs() < 0.02 && ranges[0].determined, "{point:?} {ranges:?}");
        assert!(ranges[0].low < 1.0 && ranges[0].high > 1.0 && ranges[0].high - ranges[0].low < 0.1, "{ranges:?}");
        assert!((point[1] - 3.0).abs() < 1e-12 && !ranges[1].determined, "{point:?} {ranges:?}");
    }

    #[test]
    fn a_plateau_is_left_by_another_start() {
        let beliefs = [belief(0.0)];
        // Below 4 nothing changes, as where the host is faster than the device.
        let mut errors = |p: &[f64]| vec![p[0].max(4.0) - 5.0; 8];
        let stuck = ScalarFit { beliefs: &beliefs, starts: &[] }.fit(&mut errors);
        let found = ScalarFit { beliefs: &beliefs, starts: &[vec![5.5]] }.fit(&mut errors);
        assert!(stuck[0] < 4.0 && (found[0] - 5.0).abs() < 0.02, "{stuck:?} {found:?}");
    }
}
