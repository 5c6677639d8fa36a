//! Pareto fronts of two objectives, both to be minimised (negate what is to be maximised).

use serde::{Deserialize, Serialize};

/// A front kept as points are added: ascending in the first objective, strictly descending in the second.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Front {
    points: Vec<FrontPoint>,
}

/// A point on a front.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct FrontPoint {
    /// First objective (for a design: area).
    pub first: f64,
    /// Second objective (for a design: step time).
    pub second: f64,
    /// Who it is, by the caller's numbering.
    pub id: usize,
}

impl FrontPoint {
    /// Whether another point takes this one's place on a front: equal, and of a smaller id.
    #[must_use]
    pub fn yields(&self, other: &Self) -> bool {
        self.first == other.first && self.second == other.second && other.id < self.id
    }
}

impl Front {
    /// The points, ascending in the first objective.
    #[must_use]
    pub fn points(&self) -> &[FrontPoint] {
        &self.points
    }

    /// The point of the best second objective among those whose first is at most `first`: the last of them.
    #[must_use]
    pub fn best_within(&self, first: f64) -> Option<FrontPoint> {
        let after = self.points.partition_point(|p| p.first <= first);
        self.points.get(after.checked_sub(1)?).copied()
    }

    /// The point that is no worse than (`first`, `second`) in both objectives, if there is one.
    #[must_use]
    pub fn dominator(&self, first: f64, second: f64) -> Option<FrontPoint> {
        self.best_within(first).filter(|p| p.second <= second)
    }

    /// Adds a point unless one at hand is no worse in both objectives (the earlier of two equals stays); removes what it dominates.
    /// Points with a NaN objective are refused. Returns whether the point is now on the front.
    pub fn insert(&mut self, point: FrontPoint) -> bool {
        if point.first.is_nan() || point.second.is_nan() || self.dominator(point.first, point.second).is_some() {
            return false;
        }
        self.points.retain(|p| p.first < point.first || p.second < point.second);
        let at = self.points.partition_point(|p| p.first < point.first);
        self.points.insert(at, point);
        true
    }

    /// As [`Self::insert`], but of two equals the one with the smaller id stays, whichever comes first.
    pub fn insert_by_id(&mut self, point: FrontPoint) -> bool {
        if let Some(equal) = self.points.iter_mut().find(|p| p.yields(&point)) {
            *equal = point;
            return true;
        }
        self.insert(point)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn dominated(a: FrontPoint, b: FrontPoint) -> bool {
        b.id != a.id && b.first <= a.first && b.second <= a.second
    }

    proptest! {
        #[test]
        fn holds_exactly_the_points_that_no_other_dominates(values in proptest::collection::vec((0u8..20, 0u8..20), 0..40)) {
            let all: Vec<FrontPoint> = values.iter().enumerate()
                .map(|(id, &(x, y))| FrontPoint { first: f64::from(x), second: f64::from(y), id }).collect();
            let mut front = Front::default();
            for &p in &all {
                front.insert(p);
            }
            for &a in front.points() {
                prop_assert!(!front.points().iter().any(|&b| dominated(a, b)), "a dominated point on the front");
            }
            for &a in &all {
                let covered = front.points().iter().any(|b| b.first <= a.first && b.second <= a.second);
                prop_assert!(covered, "a point that the front does not cover");
            }
            prop_assert!(front.points().windows(2).all(|w| w[0].first < w[1].first && w[0].second > w[1].second));
        }
    }

    #[test]
    fn the_earlier_of_two_equal_points_stays_or_that_of_the_smaller_id() {
        let mut front = Front::default();
        assert!(front.insert(FrontPoint { first: 1.0, second: 1.0, id: 1 }));
        assert!(!front.insert(FrontPoint { first: 1.0, second: 1.0, id: 0 }));
        assert!(!front.insert_by_id(FrontPoint { first: 1.0, second: 1.0, id: 2 }));
        assert!(front.insert_by_id(FrontPoint { first: 1.0, second: 1.0, id: 0 }));
        assert_eq!(front.points()[0].id, 0);
        assert!(!front.insert(FrontPoint { first: f64::NAN, second: 0.0, id: 2 }));
        assert_eq!(front.points().len(), 1);
    }
}
