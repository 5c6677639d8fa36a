//! Memories in which some model has no plan that fits. The need of a plan does not depend on how fast a chip is, so one
//! chip without a plan excludes every set of chips with no more memory.

use super::bounds::ChipOrBox;
use super::{DesignEvaluation, DesignSearch, Rejection, Workload, evaluate_chip};
use crate::runner::Verdict;
use crate::space::{Corners, DesignId};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use step::DeviceMemory;

/// Memory capacities that are too small for every plan of some model on a fabric.
#[derive(Debug, Clone, Copy, PartialEq)]
struct TooSmallMemory {
    /// The first fabric on which plans need the same memory.
    fabric: usize,
    memory: DeviceMemory,
}

impl TooSmallMemory {
    fn covers(&self, other: &Self) -> bool {
        self.fabric == other.fabric
            && self.memory.hbm >= other.memory.hbm
            && self.memory.host >= other.memory.host
            && self.memory.storage >= other.memory.storage
    }
}

/// The memories found too small so far. They exclude sets of chips while other sets are refined at the same time.
/// Memories are added only between such rounds, so the search does not depend on the number of threads.
#[derive(Debug, Default)]
pub(super) struct TooSmallMemories {
    found: Mutex<Vec<TooSmallMemory>>,
    largest_tried: AtomicBool,
}

impl TooSmallMemories {
    /// True if some model has no plan on any of the chips, whichever of their fabrics joins them.
    pub fn exclude(&self, search: &DesignSearch<'_>, seen: &ChipOrBox) -> bool {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let is_known = |one: TooSmallMemory| found.iter().any(|known| known.covers(&one));
        !found.is_empty() && memories_of(search, seen).all(is_known)
    }

    /// As [`Self::exclude`], for one design.
    pub fn exclude_design(&self, search: &DesignSearch<'_>, id: DesignId) -> bool {
        chip_of_design(search, id).is_some_and(|seen| self.exclude(search, &seen))
    }

    /// Notes the memory of a design that has no plan for some model.
    pub fn note_design(&self, search: &DesignSearch<'_>, id: DesignId) {
        if let Some(seen) = chip_of_design(search, id) {
            self.note_chip(search, &seen);
        }
    }

    fn note_chip(&self, search: &DesignSearch<'_>, seen: &ChipOrBox) {
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        for one in memories_of(search, seen) {
            if !found.iter().any(|known| known.covers(&one)) {
                found.push(one);
            }
        }
    }

    /// Tries the largest memory of the space on each kind of its fabrics, to find out early if some model has no plan
    /// on any chip.
    fn try_largest_memory(&self, search: &DesignSearch<'_>) {
        let Some(Corners { fast, fabrics, least, .. }) = search.space.corners_of_largest_memory() else { return };
        let kinds: BTreeSet<usize> = fabrics.iter().map(|&fabric| first_alike(search, fabric)).collect();
        for fabric in kinds {
            let has_no_plan = |workload: &Workload<'_>| {
                let prepared = workload.prepared.get(fabric);
                let verdict = prepared.map(|prepared| evaluate_chip(prepared, &fast, f64::INFINITY));
                matches!(verdict, Some(Verdict::Infeasible(why)) if why.is_too_large())
            };
            if search.workloads.iter().any(has_no_plan) {
                self.note_chip(search, &search.see_chip(fast.clone(), least, fabric));
            }
        }
    }

    /// Evaluates a design, and notes its memory if some model has no plan.
    pub fn evaluate_design(
        &self,
        search: &DesignSearch<'_>,
        id: DesignId,
        cutoff: f64,
    ) -> Verdict<Vec<DesignEvaluation>> {
        let verdict = search.evaluate_design(id, cutoff);
        if let Verdict::Infeasible(evaluations) = &verdict
            && evaluations.last().is_some_and(|last| last.is_too_large())
        {
            self.note_design(search, id);
            if !self.largest_tried.swap(true, Ordering::Relaxed) {
                self.try_largest_memory(search);
            }
        }
        verdict
    }
}

impl DesignEvaluation {
    /// True if every plan was tried and none fits.
    fn is_too_large(&self) -> bool {
        matches!(self.outcome, Err(Rejection::TooLarge(Some(_))))
    }
}

/// The largest memory of the chips on each of their fabrics.
fn memories_of<'a>(search: &'a DesignSearch<'_>, seen: &'a ChipOrBox) -> impl Iterator<Item = TooSmallMemory> + 'a {
    let memory = DeviceMemory::of_chip(seen.roomiest_chip());
    seen.fabrics().iter().map(move |&fabric| TooSmallMemory { fabric: first_alike(search, fabric), memory })
}

/// Returns the first fabric of the space with the same plans and the same memory needs as `fabric`. Such fabrics differ
/// in their links, but not in the size of their fast domains.
fn first_alike(search: &DesignSearch<'_>, fabric: usize) -> usize {
    let is_alike = |other: &usize| {
        search.workloads.iter().all(|workload| match (workload.prepared.get(*other), workload.prepared.get(fabric)) {
            (Some(one), Some(own)) => {
                one.differs_in_fabric_only(own)
                    && one.job.fabric.fast_domain_devices() == own.job.fabric.fast_domain_devices()
            }
            _ => false,
        })
    };
    (0..fabric).find(is_alike).unwrap_or(fabric)
}

fn chip_of_design(search: &DesignSearch<'_>, id: DesignId) -> Option<ChipOrBox> {
    let chip = search.space.chip_of_design(id).ok()?;
    let figures = search.space.figures_of_design(id, &chip);
    Some(search.see_chip(chip, figures, search.space.fabric_of_design(id)))
}
