//! Fits scalars to measurements under a prior. Scalars that the measurements do not determine stay at their prior
//! means; a handful of measurements is enough to move those that they determine.
//!
//! A point has a coordinate per scalar, usually a logarithm. The fit minimises the negative log-posterior: the negative
//! log-likelihood of the rows' errors, |ln(predicted / measured)|, plus half the squared distance of every coordinate
//! from its prior's mean in units of the prior's spread. Errors have a Laplace distribution, so one row that the model
//! does not explain does not dominate the others. Scalars have a normal distribution. The scale of the errors is their
//! own mean, but at least `ERROR_SCALE`. So the worse the model explains the rows, the less they move the scalars from
//! the prior.

use ndarray::{Array1, Array2};

/// Lower limit on the scale of the errors. The median error of the built-in stacks on the data sets that they were
/// fitted to is 2 to 9 % (`step/stacks/README.md`), and the built-in fabrics' on collectives from 16 MiB is similar.
const ERROR_SCALE: f64 = 0.05;
/// Drop of the log-likelihood at the ends of a 90 % range: half the chi-square of one degree of freedom.
const RANGE_DROP: f64 = 1.353;
/// Correction of the drop for few rows: with n rows it is multiplied by n / (n - 1.6). From five rows on, this is
/// within 5 % of the drop for Student's distribution, n/2 ln(1 + t^2 / (n - 1)).
const LOST_ROWS: f64 = 1.6;
/// Factor on the drop if errors are normal and not Laplace. A value fitted to normal errors by the mean absolute error
/// has pi / 2 times the variance of their mean (Huber, Robust Statistics, 1981).
const NORMAL_ERRORS: f64 = std::f64::consts::FRAC_PI_2;
/// Step of a coordinate (a logarithm) for numerical slopes. A smaller step changes no time by more than the model's
/// errors.
const NEAR: f64 = 0.05;
/// Smallest error that counts in a row's weight. The weight is the inverse of the row's error; smaller errors have the
/// weight of this one.
const LEAST_ERROR: f64 = 0.02;
/// Largest change of a coordinate in one step. The slopes are trusted within it.
const LONGEST: f64 = 1.0;
/// First damping of a step, as a fraction of the normal equations' diagonal. A successful step divides it by [`EASED`],
/// a failed one multiplies it by [`DAMPED`] (Marquardt, 1963).
const DAMPING: f64 = 1e-2;
const EASED: f64 = 5.0;
const DAMPED: f64 = 6.0;
/// Consecutive failed steps after which a fit ends.
const FAILURES: usize = 6;
/// Gain in log-probability below which a fit ends: a hundredth of the drop that bounds a 90 % range.
const LEAST_GAIN: f64 = 0.0135;
/// Most steps of a descent.
const STEPS: usize = 40;
/// Sizes of the leaps of a single coordinate, up and down, that are tried where no slope leads further. Large leaps are
/// needed because times span a factor of a hundred. A host time that the device's time hides has no effect until it is
/// much longer.
const LEAPS: [f64; 4] = [2.0, 1.0, 0.5, 0.2];
/// Most rounds of descents and leaps.
const ROUNDS: usize = 12;
/// Steps of a descent from every start, before the best one continues.
const FIRST_STEPS: usize = 6;
/// Sweeps over the coordinates to solve a step's equations.
const SWEEPS: usize = 200;
/// Standard deviations on either side of the mean that contain 90 % of a normal distribution.
const NORMAL_90: f64 = 1.645;
/// Smallest standard deviation of a prior. Files copy figures from one another, and so agree better than independent
/// ones would.
const LEAST_SPREAD: f64 = 0.1;
/// Largest number of folds in a cross-validation. With up to this many rows, each row is its own fold.
pub const LEFT_OUT: usize = 12;

/// The prior of a coordinate: a normal distribution within limits.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScalarPrior {
    /// Its mean.
    pub centre: f64,
    /// Its standard deviation.
    pub spread: f64,
    /// The lower limit.
    pub least: f64,
    /// The upper limit.
    pub most: f64,
}

/// The range of a coordinate that agrees with the rows.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ScalarRange {
    /// Its lower end.
    pub low: f64,
    /// Its upper end.
    pub high: f64,
    /// True if the rows limit the coordinate on at least one side while the others are fixed, and that range is
    /// narrower than the prior's 90 % range.
    pub determined: bool,
}

impl ScalarRange {
    /// Returns the smallest range that contains both, determined as `self`.
    fn join_with(self, other: Self) -> Self {
        Self { low: self.low.min(other.low), high: self.high.max(other.high), ..self }
    }
}

/// ln(predicted / measured) of every row at a point.
pub type LogErrors<'a> = dyn FnMut(&[f64]) -> Vec<f64> + 'a;

/// ln(predicted / measured) of some rows at a point. The rows are given by their indices.
pub type LogErrorsOf<'a> = dyn FnMut(&[usize], &[f64]) -> Vec<f64> + 'a;

/// A fit: the priors and starting points of its coordinates.
#[derive(Debug, Clone, Copy)]
pub struct ScalarFit<'a> {
    /// The prior of each coordinate.
    pub beliefs: &'a [ScalarPrior],
    /// Starting points in addition to the priors' means.
    pub starts: &'a [Vec<f64>],
}

impl ScalarFit<'_> {
    /// Returns the most probable point.
    #[must_use]
    pub fn fit_point(&self, errors: &mut LogErrors<'_>) -> Vec<f64> {
        self.search_point(&vec![true; self.beliefs.len()], errors)
    }

    /// Returns the most probable point, and the 90 % range of every coordinate. As a coordinate moves through its
    /// range, the others move within their priors to fit the rows best. A coordinate that the rows do not determine
    /// keeps its prior's mean, and the others are then fitted again.
    #[must_use]
    pub fn fit_with_ranges(&self, errors: &mut LogErrors<'_>) -> (Vec<f64>, Vec<ScalarRange>) {
        let mut point = self.fit_point(errors);
        let mut ranges: Vec<ScalarRange> = (0..point.len()).map(|i| self.range_alone(&point, i, errors)).collect();
        let free: Vec<bool> = ranges.iter().map(|range| range.determined).collect();
        if free.contains(&false) {
            point = self.search_point(&free, errors);
            let about = |(i, determined): (usize, &bool)| ScalarRange {
                determined: *determined,
                ..self.range_alone(&point, i, errors)
            };
            ranges = free.iter().enumerate().map(about).collect();
        }
        let (directions, rows) = (self.shared_directions(&point, errors), errors(&point).len() as f64);
        let drop = RANGE_DROP * NORMAL_ERRORS * rows / (rows - LOST_ROWS).max(1.0);
        for (i, (range, direction)) in ranges.iter_mut().zip(&directions).enumerate() {
            *range = range.join_with(self.range_along(&point, i, direction, drop, errors));
            if range.determined && !(range.low..=range.high).contains(&self.beliefs[i].centre) {
                let unmoved = self.point_without_move(&point, i, errors);
                let worse = self.cost_beside(&unmoved, i, errors) - self.cost_beside(&point, i, errors);
                if worse < drop {
                    let axis = axis_of(i, point.len());
                    *range = range.join_with(self.range_along(&unmoved, i, &axis, drop, errors));
                }
            }
        }
        (point, ranges)
    }

    /// Returns the most probable point near `point` with a coordinate at its prior's mean. The other coordinates may
    /// explain the rows equally well. Slopes do not show this if, for example, only the larger of two scalars has an
    /// effect.
    fn point_without_move(&self, point: &[f64], i: usize, errors: &mut LogErrors<'_>) -> Vec<f64> {
        let mut unmoved = point.to_vec();
        unmoved[i] = self.beliefs[i].centre;
        let others: Vec<usize> = (0..point.len()).filter(|other| *other != i).collect();
        self.settle_point(unmoved, &others, errors)
    }

    /// Returns, for every coordinate, the direction in which the others best make up for its movement, per unit of that
    /// movement. The direction is the coordinate's column of the covariance from rows and priors, scaled.
    fn shared_directions(&self, point: &[f64], errors: &mut LogErrors<'_>) -> Vec<Vec<f64>> {
        let all: Vec<usize> = (0..point.len()).collect();
        let rows = errors(point);
        let slopes = self.error_slopes(point, &rows, &all, errors);
        let mut normal = weigh_rows(&rows, &slopes).t().dot(&slopes);
        for (i, belief) in self.beliefs.iter().enumerate() {
            normal[[i, i]] += belief.spread.powi(-2);
        }
        let covariance = invert_matrix(normal);
        all.iter().map(|i| covariance.column(*i).iter().map(|with| with / covariance[[*i, *i]]).collect()).collect()
    }

    /// Cross-validation: returns, for every fold of the rows, the most probable point of the rows outside the fold.
    /// `of` gives the fold of each row. `errors` gives the errors of some rows at a point.
    #[must_use]
    pub fn fit_without_folds(&self, of: &[usize], errors: &mut LogErrorsOf<'_>) -> Vec<Vec<f64>> {
        let folds = of.iter().copied().max().map_or(0, |last| last + 1);
        let rest = |fold: usize| (0..of.len()).filter(|row| of[*row] != fold).collect::<Vec<_>>();
        (0..folds).map(rest).map(|rest| self.fit_point(&mut |point| errors(&rest, point))).collect()
    }

    /// Fits the free coordinates; the others keep their priors' means. A short descent from every start selects the one
    /// that explains the rows best. Several starts are needed where a scalar has no effect until another one has moved,
    /// and no slope leads out: the host's time, for instance, while the devices take longer.
    fn search_point(&self, free: &[bool], errors: &mut LogErrors<'_>) -> Vec<f64> {
        let centres: Vec<f64> = self.beliefs.iter().map(|belief| belief.centre).collect();
        let start = |other: &Vec<f64>| {
            (0..centres.len()).map(|i| if free[i] { self.limit_coordinate(i, other[i]) } else { centres[i] }).collect()
        };
        let mut starts: Vec<Vec<f64>> = self.starts.iter().map(start).collect();
        starts.push(centres.clone());
        let free: Vec<usize> = (0..free.len()).filter(|i| free[*i]).collect();
        let mut known: Vec<(f64, Vec<f64>)> = Vec::new();
        for start in starts {
            if known.iter().all(|(_, other)| *other != start) {
                known.push((f64::INFINITY, start));
            }
        }
        for (cost, point) in &mut known {
            *point = self.descend_slopes(std::mem::take(point), &free, FIRST_STEPS, errors);
            *cost = self.negative_log_posterior(point, errors);
        }
        let point = known.into_iter().min_by(|a, b| a.0.total_cmp(&b.0)).map_or(centres, |(_, point)| point);
        self.settle_point(point, &free, errors)
    }

    /// Moves the free coordinates by descents and leaps until neither gains.
    fn settle_point(&self, mut point: Vec<f64>, free: &[usize], errors: &mut LogErrors<'_>) -> Vec<f64> {
        for _ in 0..ROUNDS {
            point = self.descend_slopes(point, free, STEPS, errors);
            if !self.leap_coordinates(&mut point, free, errors) {
                break;
            }
        }
        point
    }

    /// Tries each leap of every free coordinate once, and keeps the leaps that gain. Returns true if they gain at least
    /// [`LEAST_GAIN`] together.
    fn leap_coordinates(&self, point: &mut Vec<f64>, free: &[usize], errors: &mut LogErrors<'_>) -> bool {
        let mut least = self.negative_log_posterior(point, errors);
        let before = least;
        for &i in free {
            for by in LEAPS.into_iter().flat_map(|by| [by, -by]) {
                let mut moved = point.clone();
                moved[i] = self.limit_coordinate(i, point[i] + by);
                let there =
                    if moved[i] == point[i] { f64::INFINITY } else { self.negative_log_posterior(&moved, errors) };
                if there < least {
                    (*point, least) = (moved, there);
                }
            }
        }
        before - least >= LEAST_GAIN
    }

    /// Moves the free coordinates together along the slopes of all rows' errors until a step gains less than
    /// [`LEAST_GAIN`]. Each step solves a least-squares problem whose rows are weighted by the inverse of their errors.
    /// Its fixed point minimises the sum of absolute errors (Holland and Welsch, 1977). A search along one coordinate
    /// at a time would stop where two coordinates compensate each other, as the host's time and the gap between kernels
    /// do.
    fn descend_slopes(
        &self,
        mut point: Vec<f64>,
        free: &[usize],
        steps: usize,
        errors: &mut LogErrors<'_>,
    ) -> Vec<f64> {
        let mut rows = errors(&point);
        let mut cost = negative_log_likelihood(&rows) + self.negative_log_prior(&point);
        let mut damping = DAMPING;
        for _ in 0..steps {
            let slopes = self.error_slopes(&point, &rows, free, errors);
            let mut gain = 0.0;
            for _ in 0..FAILURES {
                let moved = self.step_along_slopes(&point, &rows, &slopes, free, damping);
                let there = errors(&moved);
                let less = cost - negative_log_likelihood(&there) - self.negative_log_prior(&moved);
                if less > 0.0 {
                    (point, rows, gain) = (moved, there, less);
                    cost -= less;
                    damping /= EASED;
                    break;
                }
                damping *= DAMPED;
            }
            if gain < LEAST_GAIN {
                break;
            }
        }
        point
    }

    /// Returns the slope of every row's error along each free coordinate, as a matrix of rows by coordinates.
    fn error_slopes(&self, point: &[f64], rows: &[f64], free: &[usize], errors: &mut LogErrors<'_>) -> Array2<f64> {
        let mut slopes = Array2::zeros((rows.len(), free.len()));
        for (mut column, &i) in slopes.columns_mut().into_iter().zip(free) {
            let mut moved = point.to_vec();
            moved[i] = self.limit_coordinate(i, point[i] + NEAR);
            if moved[i] - point[i] < NEAR / 2.0 {
                moved[i] = self.limit_coordinate(i, point[i] - NEAR);
            }
            let by = moved[i] - point[i];
            // A coordinate at its limit cannot move and has slope zero.
            if by != 0.0 {
                let slope =
                    errors(&moved).iter().zip(rows).map(|(there, here)| (there - here) / by).collect::<Array1<f64>>();
                column.assign(&slope);
            }
        }
        slopes
    }

    /// Returns the solution of a step's damped normal equations, within the limits and [`LONGEST`]. The solver is
    /// Gauss-Seidel with clamping.
    fn step_along_slopes(
        &self,
        point: &[f64],
        rows: &[f64],
        slopes: &Array2<f64>,
        free: &[usize],
        damping: f64,
    ) -> Vec<f64> {
        let weighed = weigh_rows(rows, slopes);
        let mut normal = weighed.t().dot(slopes);
        let mut pull = weighed.t().dot(&Array1::from(rows.to_vec()));
        for (at, &i) in free.iter().enumerate() {
            let belief = &self.beliefs[i];
            let sure = belief.spread.powi(-2);
            normal[[at, at]] = (normal[[at, at]] + sure) * (1.0 + damping);
            pull[at] += (point[i] - belief.centre) * sure;
        }
        let mut by = Array1::<f64>::zeros(free.len());
        for _ in 0..SWEEPS {
            for (at, &i) in free.iter().enumerate() {
                let wanted = by[at] - (pull[at] + normal.row(at).dot(&by)) / normal[[at, at]];
                by[at] = self.limit_coordinate(i, point[i] + wanted.clamp(-LONGEST, LONGEST)) - point[i];
            }
        }
        let mut moved = point.to_vec();
        free.iter().zip(&by).for_each(|(&i, by)| moved[i] += by);
        moved
    }

    fn limit_coordinate(&self, i: usize, coordinate: f64) -> f64 {
        coordinate.max(self.beliefs[i].least).min(self.beliefs[i].most)
    }

    /// Returns the negative log-posterior of a point, without the constant.
    fn negative_log_posterior(&self, point: &[f64], errors: &mut LogErrors<'_>) -> f64 {
        negative_log_likelihood(&errors(point)) + self.negative_log_prior(point)
    }

    /// Returns the negative log-prior of a point, without the constant.
    fn negative_log_prior(&self, point: &[f64]) -> f64 {
        point.iter().zip(self.beliefs).map(|(u, b)| ((u - b.centre) / b.spread).powi(2) / 2.0).sum()
    }

    /// Returns the range of a coordinate with the others fixed.
    fn range_alone(&self, point: &[f64], i: usize, errors: &mut LogErrors<'_>) -> ScalarRange {
        self.range_along(point, i, &axis_of(i, point.len()), RANGE_DROP, errors)
    }

    /// Returns the negative log-posterior of a point without coordinate `i`'s own prior.
    fn cost_beside(&self, point: &[f64], i: usize, errors: &mut LogErrors<'_>) -> f64 {
        let own = (point[i] - self.beliefs[i].centre) / self.beliefs[i].spread;
        negative_log_likelihood(&errors(point)) + self.negative_log_prior(point) - own * own / 2.0
    }

    /// Returns the range in which a coordinate can move, together with the others along `direction`, before the
    /// log-probability of the rows and of the other coordinates falls by `drop`.
    fn range_along(
        &self,
        point: &[f64],
        i: usize,
        direction: &[f64],
        drop: f64,
        errors: &mut LogErrors<'_>,
    ) -> ScalarRange {
        let best = self.cost_beside(point, i, errors);
        let mut end = |sign: f64| {
            let mut at = |by: f64| {
                let moved = |(j, with): (usize, &f64)| self.limit_coordinate(j, point[j] + sign * by * with);
                let moved: Vec<f64> = direction.iter().enumerate().map(moved).collect();
                (moved[i], self.cost_beside(&moved, i, errors) - best)
            };
            let (mut inside, mut outside) = (0.0, 0.02);
            // The search ends eight standard deviations of the prior away: the rows do not limit this side.
            let far = 8.0 * self.beliefs[i].spread;
            while at(outside).1 < drop {
                if outside > far {
                    return (at(outside).0, false);
                }
                (inside, outside) = (outside, outside * 2.0);
            }
            for _ in 0..6 {
                let middle = f64::midpoint(inside, outside);
                if at(middle).1 < drop { inside = middle } else { outside = middle }
            }
            (at(inside).0, true)
        };
        let ((low, below), (high, above)) = (end(-1.0), end(1.0));
        let width = 2.0 * NORMAL_90 * self.beliefs[i].spread;
        ScalarRange { low, high, determined: (below || above) && high - low < width }
    }
}

/// Returns the direction of one coordinate alone, among `count`.
fn axis_of(i: usize, count: usize) -> Vec<f64> {
    (0..count).map(|other| f64::from(u8::from(other == i))).collect()
}

/// Returns the slopes with every row weighted by the inverse of its error and of the errors' scale.
fn weigh_rows(rows: &[f64], slopes: &Array2<f64>) -> Array2<f64> {
    let scatter = laplace_scale(rows);
    let mut weighed = slopes.clone();
    for (mut row, error) in weighed.rows_mut().into_iter().zip(rows) {
        row /= error.abs().max(LEAST_ERROR) * scatter;
    }
    weighed
}

/// Returns the inverse of a symmetric positive definite matrix, by Gauss-Jordan elimination in place.
fn invert_matrix(mut matrix: Array2<f64>) -> Array2<f64> {
    for pivot in 0..matrix.nrows() {
        let by = matrix[[pivot, pivot]];
        matrix[[pivot, pivot]] = 1.0;
        matrix.row_mut(pivot).mapv_inplace(|value| value / by);
        let above = matrix.row(pivot).to_owned();
        for other in (0..matrix.nrows()).filter(|other| *other != pivot) {
            let times = std::mem::take(&mut matrix[[other, pivot]]);
            matrix.row_mut(other).scaled_add(-times, &above);
        }
    }
    matrix
}

/// Returns the negative log-likelihood of the errors, without the constant, at their most probable scale that is at
/// least [`ERROR_SCALE`].
fn negative_log_likelihood(errors: &[f64]) -> f64 {
    let (scatter, rows) = (laplace_scale(errors), errors.len() as f64);
    rows * (mean_of(errors) / scatter + (scatter / ERROR_SCALE).ln())
}

/// Returns the scale of the errors as a Laplace distribution: the mean of their absolute values, at least
/// [`ERROR_SCALE`].
fn laplace_scale(errors: &[f64]) -> f64 {
    mean_of(errors).max(ERROR_SCALE)
}

fn mean_of(errors: &[f64]) -> f64 {
    errors.iter().map(|error| error.abs()).sum::<f64>() / errors.len().max(1) as f64
}

/// Returns the standard deviation of a prior, from a coordinate's values in other files. Equal values count once, and
/// the result is at least 0.1.
#[must_use]
pub fn prior_spread(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.dedup();
    standard_deviation(&values).max(LEAST_SPREAD)
}

/// Returns the population standard deviation of some values; zero without values.
#[must_use]
pub fn standard_deviation(values: &[f64]) -> f64 {
    let n = values.len().max(1) as f64;
    let mean = values.iter().sum::<f64>() / n;
    (values.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / n).sqrt()
}

/// Rounds to four significant digits, the precision of a fit and of files. Sizes below 1e-9 become zero.
#[must_use]
pub fn round_to_four_digits(value: f64) -> f64 {
    if value.abs() < 1e-9 { 0.0 } else { format!("{value:.3e}").parse().unwrap_or(value) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn belief(centre: f64) -> ScalarPrior {
        ScalarPrior { centre, spread: 1.0, least: -10.0, most: 10.0 }
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

    /// Rows of two coordinates that nearly share their effect, with lognormal noise. The range of each has its true
    /// value nine times in ten. With the other one fixed it would have it half as often.
    #[test]
    fn ranges_hold_the_true_values_though_two_share_a_loss() {
        let beliefs = [ScalarPrior { spread: 0.3, ..belief(0.0) }; 2];
        let fit = ScalarFit { beliefs: &beliefs, starts: &[] };
        let (mut held, mut held_alone, mut draws) = (0, 0, Draws(7));
        const TRIALS: usize = 200;
        for _ in 0..TRIALS {
            let truth = [0.3 * draws.normal(), 0.3 * draws.normal()];
            let noise: Vec<f64> = (0..12).map(|_| 0.08 * draws.normal()).collect();
            let mut errors = |p: &[f64]| {
                let share = |i: usize| 0.4 + 0.2 * (i % 2) as f64;
                let row = |(i, noise): (usize, &f64)| {
                    share(i) * (p[0] - truth[0]) + (1.0 - share(i)) * (p[1] - truth[1]) - noise
                };
                noise.iter().enumerate().map(row).collect()
            };
            let (point, ranges) = fit.fit_with_ranges(&mut errors);
            let holds = |range: ScalarRange, i: usize| usize::from(range.low <= truth[i] && truth[i] <= range.high);
            for (i, range) in ranges.into_iter().enumerate() {
                held += holds(range, i);
                held_alone += holds(fit.range_alone(&point, i, &mut errors), i);
            }
        }
        let [held, held_alone] = [held, held_alone].map(|count| count as f64 / (2 * TRIALS) as f64);
        assert!((0.85..0.97).contains(&held) && held_alone < 0.6, "{held} {held_alone}");
    }

    /// All rows depend on the larger of two coordinates alone. The fit moves one of them, although the other one
    /// explains the rows as well. So its range must reach back to the prior's mean.
    #[test]
    fn a_range_reaches_back_where_another_coordinate_explains_the_rows() {
        let beliefs = [ScalarPrior { spread: 0.25, ..belief(0.0) }, ScalarPrior { spread: 0.3, ..belief(-0.1) }];
        let mut errors = |p: &[f64]| vec![p[0].max(p[1]) - 0.4; 10];
        let fit = ScalarFit { beliefs: &beliefs, starts: &[] };
        let (point, ranges) = fit.fit_with_ranges(&mut errors);
        let blamed = usize::from(point[1] > 0.3);
        let centre = beliefs[blamed].centre;
        assert!(ranges[blamed].determined && ranges[blamed].low <= centre && ranges[blamed].high < 0.5, "{ranges:?}");
    }

    /// Draws of a normal distribution from a linear congruential generator.
    struct Draws(u64);

    impl Draws {
        fn normal(&mut self) -> f64 {
            let mut uniform = || {
                self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                ((self.0 >> 11) as f64 + 0.5) / (1_u64 << 53) as f64
            };
            (-2.0 * uniform().ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos()
        }
    }

    #[test]
    fn two_that_make_up_for_each_other_move_together() {
        let beliefs = [ScalarPrior { spread: 3.0, ..belief(0.0) }; 2];
        // The sum is known ten times as well as the difference, and one row in seven is wrong about both.
        let mut errors = |p: &[f64]| {
            let row = |i: usize| match i % 7 {
                0 => 2.0,
                1..4 => p[0] + p[1] - 1.0,
                _ => (p[0] - p[1] - 4.0) / 10.0,
            };
            (0..70).map(row).collect()
        };
        let found = ScalarFit { beliefs: &beliefs, starts: &[] }.fit_point(&mut errors);
        assert!((found[0] - 2.5).abs() < 0.02 && (found[1] + 1.5).abs() < 0.02, "{found:?}");
    }

    #[test]
    fn a_coordinate_stays_within_what_can_be() {
        let beliefs = [ScalarPrior { most: 0.5, ..belief(0.0) }, belief(0.0)];
        let fit = ScalarFit { beliefs: &beliefs, starts: &[] };
        let found = fit.fit_point(&mut |p| (0..8).flat_map(|_| [p[0] + p[1] - 2.0, p[0] - 3.0]).collect());
        assert!((found[0] - 0.5).abs() < 1e-9 && (found[1] - 1.5).abs() < 0.05, "{found:?}");
    }

    #[test]
    fn a_plateau_is_left_by_another_start() {
        let beliefs = [ScalarPrior { spread: 3.0, ..belief(0.0) }];
        // Below 4 the value has no effect, as where the host is faster than the device.
        let mut errors = |p: &[f64]| vec![p[0].max(4.0) - 5.0; 8];
        let stuck = ScalarFit { beliefs: &beliefs, starts: &[] }.fit_point(&mut errors);
        let found = ScalarFit { beliefs: &beliefs, starts: &[vec![5.5]] }.fit_point(&mut errors);
        assert!(stuck[0] < 4.0 && (found[0] - 5.0).abs() < 0.02, "{stuck:?} {found:?}");
    }
}
