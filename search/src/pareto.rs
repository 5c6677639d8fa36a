//! Pareto fronts of a value against one or two costs, with hypervolume and knee. All axes are minimised; negate values
//! that are to be maximised.

use serde::{Deserialize, Serialize};

/// Costs along the axes of a front. A missing axis has cost 0 for all points.
pub type FrontCosts = [f64; 2];

/// A front, kept in ascending order of the first cost, then of the second.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Front {
    points: Vec<FrontPoint>,
}

/// A point on a front.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct FrontPoint {
    /// The costs (for a design: its area, and its power).
    pub costs: FrontCosts,
    /// The value (for a design: step time).
    pub value: f64,
    /// The caller's number of the point.
    pub id: usize,
}

impl FrontPoint {
    /// True if `other` replaces this point on a front: equal costs and value, and a smaller id.
    #[must_use]
    pub fn yields_to(&self, other: &Self) -> bool {
        self.costs == other.costs && self.value == other.value && other.id < self.id
    }

    /// True if the point costs no more than `costs` along any axis.
    fn costs_no_more_than(&self, costs: &FrontCosts) -> bool {
        self.costs[0] <= costs[0] && self.costs[1] <= costs[1]
    }
}

impl Front {
    /// The points, ascending in the first cost, then in the second. Against one cost the values descend strictly.
    #[must_use]
    pub fn points(&self) -> &[FrontPoint] {
        &self.points
    }

    /// The point with the least value; on ties, the one with the smallest first cost. `None` if the front is empty.
    #[must_use]
    pub fn best_point(&self) -> Option<FrontPoint> {
        first_of_least_value(&self.points)
    }

    /// The point with the least value among those that cost at most `costs`; on ties, the one with the smallest first
    /// cost.
    #[must_use]
    pub fn best_point_within(&self, costs: &FrontCosts) -> Option<FrontPoint> {
        let after = self.points.partition_point(|p| p.costs[0] <= costs[0]);
        first_of_least_value(self.points[..after].iter().filter(|p| p.costs[1] <= costs[1]))
    }

    /// Inserts a point, unless another point is no worse along every axis; of two equal points the earlier stays.
    /// Removes the points that it dominates. Refuses points with a NaN. Returns true if the point is now on the front.
    pub fn insert(&mut self, point: FrontPoint) -> bool {
        let is_nan = point.value.is_nan() || point.costs.iter().any(|cost| cost.is_nan());
        if is_nan || self.best_point_within(&point.costs).is_some_and(|best| best.value <= point.value) {
            return false;
        }
        self.points.retain(|p| !point.costs_no_more_than(&p.costs) || p.value < point.value);
        let at = self.points.partition_point(|p| (p.costs[0], p.costs[1]) < (point.costs[0], point.costs[1]));
        self.points.insert(at, point);
        true
    }

    /// As [`Self::insert`], but of two equal points the one with the smaller id stays, in any order of insertion.
    pub fn insert_by_id(&mut self, point: FrontPoint) -> bool {
        if let Some(equal) = self.points.iter_mut().find(|p| p.yields_to(&point)) {
            *equal = point;
            return true;
        }
        self.insert(point)
    }
}

/// The first point with the least value.
fn first_of_least_value<'a>(points: impl IntoIterator<Item = &'a FrontPoint>) -> Option<FrontPoint> {
    points.into_iter().copied().reduce(|best, p| if p.value < best.value { p } else { best })
}

/// Distance of the reference point of [`FrontScales::hypervolume`] beyond the worst value of each axis, as a fraction
/// of the axis' range. It makes the ends of a front count too. A tenth is the usual choice (Ishibuchi et al., How to
/// Specify a Reference Point in Hypervolume Calculation, Evolutionary Computation 26(3), 2018).
const BEYOND: f64 = 0.1;

/// The best and worst value of each axis over some fronts, for two or three minimised axes. They scale points to 0 to
/// 1.
#[derive(Debug, Clone, PartialEq)]
pub struct FrontScales {
    best: Vec<f64>,
    worst: Vec<f64>,
}

impl FrontScales {
    /// The scales over the points of one front, or of several that are compared. Points that are not finite are
    /// ignored, and so are axes along which no point differs. `None` without points.
    #[must_use]
    pub fn of_fronts<'a>(points: impl IntoIterator<Item = &'a Vec<f64>>) -> Option<Self> {
        let mut points = points.into_iter().filter(|point| point.iter().all(|value| value.is_finite()));
        let first = points.next()?;
        let mut scales = Self { best: first.clone(), worst: first.clone() };
        for point in points {
            for (axis, value) in point.iter().enumerate().take(first.len()) {
                scales.best[axis] = scales.best[axis].min(*value);
                scales.worst[axis] = scales.worst[axis].max(*value);
            }
        }
        Some(scales)
    }

    /// The point scaled to 0 for the best and 1 for the worst of each axis that differs.
    fn scale_point(&self, point: &[f64]) -> Vec<f64> {
        let axes = self.best.iter().zip(&self.worst).zip(point).filter(|((best, worst), _)| worst > best);
        axes.map(|((best, worst), value)| (value - best) / (worst - best)).collect()
    }

    /// The fraction of a box that the points of a front dominate: 0 for nothing, 1 if one point is the best in
    /// everything.
    ///
    /// The box lies between the best of each axis and the reference point (a tenth of the range beyond the worst of
    /// each). The computation is exact (Zitzler and Thiele, Multiobjective evolutionary algorithms, IEEE Transactions
    /// on Evolutionary Computation 3(4), 1999).
    #[must_use]
    pub fn hypervolume(&self, front: &[Vec<f64>]) -> f64 {
        let points: Vec<Vec<f64>> = front.iter().map(|point| self.scale_point(point)).collect();
        let axes = points.first().map_or(0, Vec::len);
        dominated_volume(points, axes) / (1.0 + BEYOND).powi(axes as i32)
    }

    /// The index of a front's knee: the point with the least sum of the scaled axes; on ties, the first. `None` for an
    /// empty front.
    ///
    /// With two axes it is the point farthest from the line through the front's ends (Das, On characterizing the knee
    /// of the Pareto curve, Structural Optimization 18, 1999). With more axes it is the point at the least Manhattan
    /// distance from the best of each axis (Chiu, Yen and Juan, Minimum Manhattan Distance Approach, IEEE Transactions
    /// on Evolutionary Computation 20(6), 2016).
    #[must_use]
    pub fn find_knee(&self, front: &[Vec<f64>]) -> Option<usize> {
        let sums = front.iter().map(|point| self.scale_point(point).iter().sum::<f64>()).enumerate();
        sums.reduce(|least, next| if next.1 < least.1 { next } else { least }).map(|(at, _)| at)
    }
}

/// The volume, in scaled units, that points dominate below the reference point over their first `axes` axes.
fn dominated_volume(mut points: Vec<Vec<f64>>, axes: usize) -> f64 {
    let Some(last) = axes.checked_sub(1) else { return if points.is_empty() { 0.0 } else { 1.0 } };
    let end = 1.0 + BEYOND;
    points.retain(|point| point[..axes].iter().all(|value| *value < end));
    points.sort_by(|a, b| a[last].total_cmp(&b[last]));
    // Between consecutive points along the last axis, the points so far dominate a constant volume of the other axes.
    let slice = |at: usize| {
        let to = points.get(at + 1).map_or(end, |next| next[last]);
        let thick = to - points[at][last];
        if thick > 0.0 { thick * dominated_volume(points[..=at].to_vec(), last) } else { 0.0 }
    };
    (0..points.len()).map(slice).sum()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn points(values: &[(u8, u8, u8)]) -> Vec<FrontPoint> {
        let point = |(id, &(a, b, value)): (usize, &(u8, u8, u8))| FrontPoint {
            costs: [a.into(), b.into()],
            value: value.into(),
            id,
        };
        values.iter().enumerate().map(point).collect()
    }

    fn covers(a: FrontPoint, b: FrontPoint) -> bool {
        a.costs_no_more_than(&b.costs) && a.value <= b.value
    }

    fn check(values: &[(u8, u8, u8)]) -> Result<(), TestCaseError> {
        let (all, mut front) = (points(values), Front::default());
        for &p in &all {
            front.insert_by_id(p);
        }
        let mut backwards = Front::default();
        for &p in all.iter().rev() {
            backwards.insert_by_id(p);
        }
        prop_assert_eq!(&front, &backwards, "the order of insertion shows");
        for &a in front.points() {
            prop_assert!(
                !front.points().iter().any(|&b| a.id != b.id && covers(b, a)),
                "a dominated point on the front"
            );
        }
        for &a in &all {
            let first = all.iter().find(|b| b.costs == a.costs && b.value == a.value).map(|b| b.id);
            let best =
                all.iter().filter(|b| b.costs_no_more_than(&a.costs)).map(|b| b.value).fold(f64::INFINITY, f64::min);
            prop_assert!(front.points().iter().any(|&b| covers(b, a)), "a point that the front does not cover");
            prop_assert_eq!(front.best_point_within(&a.costs).map(|b| b.value), Some(best));
            let dominated = all.iter().any(|&b| covers(b, a) && (b.costs != a.costs || b.value != a.value));
            prop_assert_eq!(front.points().iter().any(|b| b.id == a.id), !dominated && first == Some(a.id));
        }
        prop_assert!(front.points().is_sorted_by_key(|p| (p.costs[0], p.costs[1])));
        prop_assert_eq!(front.best_point().map(|p| p.value), all.iter().map(|p| p.value).reduce(f64::min));
        Ok(())
    }

    /// Counts the cells of a grid over the scaled axes that some point dominates. The axes run from 0 to `most` in
    /// whole numbers.
    fn counted(front: &[Vec<f64>], most: usize) -> f64 {
        // In tenths of a step: the reference point is a tenth of the range beyond.
        let (axes, cells) = (front[0].len(), most * 11);
        let at = |cell: usize, axis: usize| (cell / cells.pow(axis as u32) % cells) as f64 / 10.0;
        let dominates =
            |cell: usize, p: &Vec<f64>| p.iter().enumerate().all(|(axis, value)| *value <= at(cell, axis) + 1e-9);
        let all = cells.pow(axes as u32);
        (0..all).filter(|cell| front.iter().any(|p| dominates(*cell, p))).count() as f64 / all as f64
    }

    proptest! {
        #[test]
        fn against_one_cost_values_descend(values in prop::collection::vec((0u8..20, Just(0u8), 0u8..20), 0..40)) {
            check(&values)?;
            let mut front = Front::default();
            points(&values).into_iter().for_each(|p| { front.insert(p); });
            prop_assert!(front.points().windows(2).all(|w| w[0].costs[0] < w[1].costs[0] && w[0].value > w[1].value));
        }

        #[test]
        fn holds_exactly_the_points_that_no_other_dominates(values in prop::collection::vec((0u8..6, 0u8..6, 0u8..6), 0..40)) {
            check(&values)?;
        }

        #[test]
        fn the_hypervolume_is_what_counting_says(
            values in prop::collection::vec((0u8..4, 0u8..4, 0u8..4), 1..8), axes in 2..4_usize,
        ) {
            let most = 3;
            let vector = |&(a, b, c): &(u8, u8, u8)| [a, b, c].map(f64::from)[..axes].to_vec();
            let front: Vec<Vec<f64>> = values.iter().map(vector).collect();
            let ends = [vec![0.0; axes], vec![most as f64; axes]];
            let scales = FrontScales::of_fronts(&ends).unwrap();
            prop_assert!((scales.hypervolume(&front) - counted(&front, most)).abs() < 1e-9);
            let knee = scales.find_knee(&front).unwrap();
            let sum = |p: &Vec<f64>| p.iter().sum::<f64>();
            prop_assert!(front.iter().all(|p| sum(&front[knee]) <= sum(p)));
        }
    }

    #[test]
    fn the_knee_bends_most_and_a_front_without_range_covers_all() {
        let front = vec![vec![0.0, 10.0], vec![2.0, 3.0], vec![5.0, 1.0], vec![10.0, 0.0]];
        let scales = FrontScales::of_fronts(&front).unwrap();
        assert_eq!(scales.find_knee(&front), Some(1));
        // The points dominate 2 x 1 + 3 x 8 + 5 x 10 + 1 x 11 = 87 of the 121 below the reference point (11, 11).
        assert!((scales.hypervolume(&front) - 87.0 / 121.0).abs() < 1e-12, "{}", scales.hypervolume(&front));
        let alone = vec![vec![7.0, 3.0]];
        let scales = FrontScales::of_fronts(&alone).unwrap();
        assert_eq!((scales.hypervolume(&alone), scales.find_knee(&alone)), (1.0, Some(0)));
        assert_eq!(FrontScales::of_fronts(&[]), None);
    }

    #[test]
    fn the_earlier_of_two_equal_points_stays_or_that_of_the_smaller_id() {
        let point = |value, id| FrontPoint { costs: [1.0, 0.0], value, id };
        let mut front = Front::default();
        assert!(front.insert(point(1.0, 1)));
        assert!(!front.insert(point(1.0, 0)));
        assert!(!front.insert_by_id(point(1.0, 2)));
        assert!(front.insert_by_id(point(1.0, 0)));
        assert_eq!(front.points()[0].id, 0);
        assert!(!front.insert(point(f64::NAN, 2)));
        assert_eq!(front.points().len(), 1);
    }
}
