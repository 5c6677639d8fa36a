//! Memories in which no plan of a model fits. What a plan needs does not depend on how fast a chip is, so one chip
//! without a plan excludes every set of chips with no more memory.

use super::bounds::ChipOrBox;
use super::{DesignEvaluation, DesignSearch, Rejection, evaluate_chip};
use crate::runner::Verdict;
use crate::space::{DesignId, Enclosed};
use sim::hardware::Accelerator;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use step::DeviceMemory;

/// A memory that no plan of a model on a fabric fits.
#[derive(Debug, Clone, Copy, PartialEq)]
struct TooSmallMemory {
    model: usize,
    fabric: usize,
    memory: DeviceMemory,
}

impl TooSmallMemory {
    fn covers(&self, other: &Self) -> bool {
        (self.model, self.fabric) == (other.model, other.fabric)
            && self.memory.hbm >= other.memory.hbm
            && self.memory.host >= other.memory.host
            && self.memory.storage >= other.memory.storage
    }
}

/// The memories found too small so far. Evaluations add to them, refinements read them. The two never run at once, so
/// the search does not depend on the number of threads.
#[derive(Debug, Default)]
pub(super) struct TooSmallMemories {
    found: Mutex<Vec<TooSmallMemory>>,
    largest_tried: AtomicBool,
}

impl TooSmallMemories {
    /// True if some model has no plan on any of the chips, on any of their fabrics.
    pub fn exclude(&self, search: &DesignSearch<'_>, seen: &ChipOrBox) -> bool {
        let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let memory = DeviceMemory::of_chip(seen.roomiest_chip());
        let is_known = |one: TooSmallMemory| found.iter().any(|known| known.covers(&one));
        !found.is_empty()
            && (0..search.workloads.len())
                .any(|model| seen.fabrics().iter().all(|&fabric| is_known(TooSmallMemory { model, fabric, memory })))
    }

    /// As [`Self::exclude`], for one design.
    pub fn exclude_design(&self, search: &DesignSearch<'_>, id: DesignId) -> bool {
        let space = search.space;
        let Ok(chip) = space.chip_of_design(id) else { return false };
        let figures = space.figures_of_design(id, &chip);
        self.exclude(search, &ChipOrBox::chip(chip, figures, space.fabric_of_design(id)))
    }

    /// Evaluates a design, and notes its memory if a model has no plan. The first time, the largest memory of the space
    /// is tried too: it may be that nothing fits at all.
    pub fn evaluate_design(
        &self,
        search: &DesignSearch<'_>,
        id: DesignId,
        cutoff: f64,
    ) -> Verdict<Vec<DesignEvaluation>> {
        let verdict = search.evaluate_design(id, cutoff);
        let Verdict::Infeasible(evaluations) = &verdict else { return verdict };
        let space = search.space;
        let (Some(last), Ok(chip)) = (evaluations.last(), space.chip_of_design(id)) else { return verdict };
        self.note_chip(last, evaluations.len() - 1, space.fabric_of_design(id), &chip);
        if !is_too_large(last) || self.largest_tried.swap(true, Ordering::Relaxed) {
            return verdict;
        }
        let whole = space.whole_region().map(|region| space.enclose_boxes(&region));
        if let Some(Ok(Enclosed::Within(corners))) = whole {
            for (model, workload) in search.workloads.iter().enumerate() {
                for &fabric in &corners.fabrics {
                    let tried = evaluate_chip(&workload.prepared[fabric], &corners.fast, f64::INFINITY);
                    if let Verdict::Infeasible(why) = tried {
                        self.note_chip(&why, model, fabric, &corners.fast);
                    }
                }
            }
        }
        verdict
    }

    fn note_chip(&self, evaluation: &DesignEvaluation, model: usize, fabric: usize, chip: &Accelerator) {
        let one = TooSmallMemory { model, fabric, memory: DeviceMemory::of_chip(chip) };
        let mut found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        if is_too_large(evaluation) && !found.iter().any(|known| known.covers(&one)) {
            found.push(one);
        }
    }
}

/// True if every plan was tried and none fits.
fn is_too_large(evaluation: &DesignEvaluation) -> bool {
    matches!(evaluation.outcome, Err(Rejection::TooLarge(Some(_))))
}
