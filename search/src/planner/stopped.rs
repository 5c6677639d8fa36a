//! What is proven where a search over plans is stopped before its end.

use super::Mixed;
use super::found::Found;
use super::loads::Loads;
use super::search::Search;
use super::splits::ROUNDING;
use rayon::prelude::*;
use sim::units::Seconds;
use step::{Fidelity, Lowered, TrainingPlan};
use workloads::StagePolicies;

impl Search<'_> {
    /// Plans of a lot.
    pub(super) fn plans_of_lot(&self, (family, lot): (usize, usize)) -> usize {
        let family = &self.families[family];
        let of = |open: bool| -> usize {
            let divisions = family.lots[lot].pairs.iter().map(|(division, _)| &family.divisions[*division]);
            divisions.filter(|division| division.even || open).map(|division| division.schedules.len()).sum()
        };
        let [even, all] = [false, true].map(of);
        self.open.iter().map(|open| if *open { all } else { even }).sum()
    }

    /// Seconds that no plan of a lot, by its place in [`Search::places`], goes below, whatever it keeps and however its layers are split: nothing runs
    /// again, every kernel at its peak.
    pub(super) fn least_of_lot(&self, place: usize) -> f64 {
        let all = self.least.get_or_init(|| {
            let peak = self.chip.at(Fidelity::Peak);
            let least = |chip: &mut step::ChipTimes, &(family, lot): &(usize, usize)| {
                let first = self.plan(self.first_of(family as u32, lot as u32));
                let kept = TrainingPlan { activations: StagePolicies::default(), ..first };
                let lowered = Lowered::new(self.job.model, &kept, self.job.stack);
                let shape = lowered.and_then(|mut lowered| lowered.shape(chip, self.job.fabric, &kept));
                let work = shape.map_or(0.0, |shape| Loads::of(&shape, self.job.stack).all(self.job.model.layers));
                let share = self.least_shares(family as u32, lot as u32).into_iter().fold(f64::INFINITY, f64::min);
                (work * share + self.evaluator.overhead().0) * (1.0 - ROUNDING)
            };
            self.places().par_iter().map_init(|| peak.clone(), least).collect()
        });
        all[place]
    }

    /// The time that no plan goes below where the search has been stopped: neither those found, nor those that the stop has left; nor those that the
    /// tolerances of splits and mixes leave.
    pub(super) fn bound_of_stopped(&self, found: &Found, split_tolerance: Option<f64>, mixed: Option<Mixed>) -> Seconds {
        let gap = 1.0 - mixed.map_or(0.0, |mixed| mixed.gap);
        let best = found.limit_of(1) * (1.0 - split_tolerance.unwrap_or(0.0)) * gap;
        Seconds(best.min(self.standing.left()))
    }
}

#[cfg(test)]
#[path = "stopped_tests.rs"]
mod tests;
