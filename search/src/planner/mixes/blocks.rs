//! Finds plans whose chunks rerun a given number of their first layers.
//!
//! The plan that keeps everything is a lower bound on them, as for other mixes. Even and listed splits come first.
//! Other splits are tried if that bound is below the fastest plan.

use crate::ask::PlanSpace;
use crate::planner::PlanPart;
use crate::planner::mixes::mixed::TimingThreads;
use crate::planner::mixes::stages::{LackingPolicies, PlanStages, RerunNeed, StagedPlan};
use crate::planner::search::core::{PlanSearch, SPARE};
use crate::planner::search::found::{FoundPlans, GroupPlace, PlanCandidate};
use sim::units::Bytes;
use step::{ChipTimes, PlanShape, TrainingPlan};
use workloads::StagePolicies;

impl PlanSearch<'_> {
    /// Adds the plans with the blocks of a space. If the space has no other policies, all other plans are dropped
    /// first.
    pub(crate) fn add_block_plans(&self, space: &PlanSpace, found: &mut FoundPlans) {
        if space.blocks.is_empty() {
            return;
        }
        if space.has_only_blocks() {
            found.best.clear();
        }
        let (places, mut chip) = (self.group_places(), self.chip.clone());
        self.standing.begin_part(PlanPart::Mixes, 2 * places.len());
        for uneven in [false, true] {
            for (lot, &place) in places.iter().enumerate() {
                if self.standing.should_stop() {
                    self.standing.note_left_bound(self.lower_bound_of_group_at(lot));
                    continue;
                }
                self.add_blocks_of_group(&mut chip, place, &space.blocks, uneven, found);
                self.standing.add_done(1, 0, found.cutoff_for_count(1));
            }
        }
    }

    /// Adds the plans of a group: with its own splits, or with uneven ones if `uneven` is true.
    fn add_blocks_of_group(
        &self,
        chip: &mut ChipTimes,
        place: GroupPlace,
        blocks: &[u64],
        uneven: bool,
        found: &mut FoundPlans,
    ) {
        let first = self.any_plan_of_group(place);
        let none = TrainingPlan { activations: StagePolicies::default(), ..self.plan_of(first) };
        let Ok(shape) = PlanShape::new(chip, self.job.model, self.job.fabric, &none) else { return };
        let mut layers = None;
        let here = &self.families[place.family as usize];
        for &(division, _) in &here.lots[place.lot as usize].pairs {
            for schedule in 0..here.divisions[division].schedules.len() {
                let candidate = PlanCandidate { division: division as u32, schedule: schedule as u32, ..first };
                let limit = self.limit.min(found.cutoff_for_count(1));
                let ends: Vec<_> = match uneven {
                    false => vec![None],
                    true => self.ends_for_mixes(chip, &shape, &candidate, limit).into_iter().map(Some).collect(),
                };
                for candidate in ends.into_iter().map(|ends| PlanCandidate { ends, ..candidate }) {
                    let known =
                        layers.get_or_insert_with(|| self.layers_of_group(chip, &candidate, TimingThreads::One));
                    let known = match known {
                        Ok(known) => known,
                        Err(error) => return found.keep_refusal(error.clone()),
                    };
                    for &count in blocks {
                        let limit = self.limit.min(found.cutoff_for_count(self.length - SPARE));
                        let rerun = self
                            .stages_of_plan(chip, known, &candidate, limit, |stages| Some(stages.rerun_layers(count)));
                        self.keep_rerun(rerun.flatten(), candidate, found);
                    }
                }
            }
        }
    }

    /// Keeps a plan that fits, or its shortfall.
    fn keep_rerun(&self, rerun: Option<RerunPlan>, candidate: PlanCandidate, found: &mut FoundPlans) {
        match rerun {
            Some(RerunPlan::Fits(staged)) if !found.beats_bound(staged.time, self.length) => {
                let policy = self.remember_policies(staged.policies);
                found.insert_timed(PlanCandidate { time: staged.time, policy, ..candidate }, self.length);
            }
            Some(RerunPlan::Lacks(LackingPolicies { lack, policies })) if found.best.is_empty() => {
                let policy = self.remember_policies(policies);
                found.note_shortfall(lack, PlanCandidate { policy, ..candidate });
            }
            _ => {}
        }
    }
}

/// A plan that reruns the first layers of every chunk.
pub(crate) enum RerunPlan {
    Fits(StagedPlan),
    /// It does not fit.
    Lacks(LackingPolicies),
}

impl PlanStages<'_, '_> {
    /// The plan that reruns the first `count` layers of every chunk; `None` if it cannot be timed.
    fn rerun_layers(&self, count: u64) -> Option<RerunPlan> {
        let RerunNeed { policies, shape, lack } = self.rerun_need(count)?;
        Some(match lack {
            Bytes::ZERO => RerunPlan::Fits(self.simulate_policies(policies, &shape, 0.0)?),
            lack => RerunPlan::Lacks(LackingPolicies { lack, policies }),
        })
    }
}
