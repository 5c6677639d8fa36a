//! Plans found by a search, by index: the fastest, those that are only bounded, and counts of the others.

use crate::planner::space::groups::DegreeClass;
use sim::units::Bytes;
use step::StepError;
use workloads::LayerEnds;

/// Largest relative difference of times that are equal except for rounding.
pub(crate) const ROUNDING: f64 = 1e-9;

/// A group of plans by its indices: degree class, and group in the class.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GroupPlace {
    pub family: u32,
    pub lot: u32,
}

/// The places of all groups of these classes.
pub(crate) fn group_places(classes: &[DegreeClass]) -> Vec<GroupPlace> {
    let of_class = |(family, class): (usize, &DegreeClass)| {
        (0..class.lots.len()).map(move |lot| GroupPlace { family: family as u32, lot: lot as u32 })
    };
    classes.iter().enumerate().flat_map(of_class).collect()
}

/// A plan by its indices in the search, ordered by time.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
pub(crate) struct PlanCandidate {
    /// The step's time, or a lower bound on it, in seconds.
    pub time: f64,
    pub family: u32,
    pub lot: u32,
    pub policy: u32,
    pub division: u32,
    /// Index among the division's schedules.
    pub schedule: u32,
    /// Its split of the layers, if it is not the division's.
    pub ends: Option<LayerEnds>,
}

impl PlanCandidate {
    /// The group of the plan.
    pub fn group_place(&self) -> GroupPlace {
        GroupPlace { family: self.family, lot: self.lot }
    }

    /// True if both plans are equal except for policy and split of the layers.
    pub fn is_split_of(&self, other: &Self) -> bool {
        let places = |c: &Self| (c.family, c.lot, c.division, c.schedule);
        places(self) == places(other)
    }

    /// True if both plans are equal except for the split of the layers.
    pub fn is_same_plan(&self, other: &Self) -> bool {
        let places = |c: &Self| (c.family, c.lot, c.policy, c.division, c.schedule);
        places(self) == places(other)
    }
}

/// The results of one group, or of all.
#[derive(Debug, Default)]
pub(crate) struct FoundPlans {
    /// The fastest plans that fit, fastest first.
    pub best: Vec<PlanCandidate>,
    /// Plans that fit and have only a lower bound on their time.
    pub open: Vec<PlanCandidate>,
    pub plans: usize,
    pub over_capacity: usize,
    pub timed: usize,
    pub rejected_by_bound: usize,
    pub refused: usize,
    /// Plans neither timed nor ruled out before a stop.
    pub not_reached: usize,
    pub refusal: Option<StepError>,
    /// The smallest shortfall in bytes, and its plan.
    pub nearest: Option<(Bytes, PlanCandidate)>,
}

impl FoundPlans {
    /// Inserts a timed plan that fits, if it is among the `length` fastest.
    pub fn insert_timed(&mut self, candidate: PlanCandidate, length: usize) {
        if self.best.len() < length || self.best.last().is_some_and(|last| candidate < *last) {
            let place = self.best.partition_point(|b| *b < candidate);
            self.best.insert(place, candidate);
            self.best.truncate(length);
        }
    }

    /// Inserts a plan with another split. It replaces the same plan with a slower split; if the known split is as fast,
    /// nothing changes.
    pub fn insert_with_split(&mut self, candidate: PlanCandidate, length: usize) {
        if let Some(place) = self.best.iter().position(|b| b.is_same_plan(&candidate)) {
            if self.best[place].time <= candidate.time {
                return;
            }
            self.best.remove(place);
        }
        self.insert_timed(candidate, length);
    }

    /// The time in seconds from which on a plan is not among the `count` fastest; infinite if fewer are known.
    pub fn cutoff_for_count(&self, count: usize) -> f64 {
        count.checked_sub(1).and_then(|last| self.best.get(last)).map_or(f64::INFINITY, |last| last.time)
    }

    /// True if the list has `length` plans and `bound` seconds are no less than the last one's time.
    pub fn beats_bound(&self, bound: f64, length: usize) -> bool {
        self.best.len() >= length && self.best.last().is_some_and(|last| bound >= last.time)
    }

    pub fn note_shortfall(&mut self, lack: Bytes, candidate: PlanCandidate) {
        if self.nearest.is_none_or(|(least, _)| lack < least) {
            self.nearest = Some((lack, candidate));
        }
    }

    /// Keeps the reason of a refusal. The first reason stays, except that a technique's error replaces an error of
    /// another kind: the user asked for the technique, while the search itself chose the layout.
    pub fn keep_refusal(&mut self, error: StepError) {
        let of_technique = |known: &StepError| matches!(known, StepError::Technique(_));
        if self.refusal.as_ref().is_none_or(|known| of_technique(&error) && !of_technique(known)) {
            self.refusal = Some(error);
        }
    }

    pub fn merge_with(&mut self, other: Self, length: usize) {
        other.best.into_iter().for_each(|candidate| self.insert_timed(candidate, length));
        self.open.extend(other.open);
        self.plans += other.plans;
        self.over_capacity += other.over_capacity;
        self.timed += other.timed;
        self.rejected_by_bound += other.rejected_by_bound;
        self.refused += other.refused;
        self.not_reached += other.not_reached;
        other.refusal.into_iter().for_each(|error| self.keep_refusal(error));
        if let Some((lack, candidate)) = other.nearest {
            self.note_shortfall(lack, candidate);
        }
    }

    /// Counts the plans of a group that was stopped before its end; `plans` is their total.
    pub fn count_stopped_group(&mut self, plans: usize) {
        self.not_reached += plans - self.plans;
        self.plans = plans;
    }

    /// Drops the open plans whose bound is no less than the list's last time.
    pub fn prune_beaten(&mut self, length: usize) {
        let open = std::mem::take(&mut self.open);
        let before = open.len();
        self.open = open.into_iter().filter(|c| !self.beats_bound(c.time, length)).collect();
        self.rejected_by_bound += before - self.open.len();
    }
}

/// Counts of uneven splits.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SplitStatistics {
    /// All uneven splits.
    pub splits: u64,
    /// Evaluated ones among them.
    pub tried: u64,
}
