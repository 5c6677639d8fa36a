//! Simulates plans whose time has no closed form, least bound first.

use crate::planner::search::core::PlanSearch;
use crate::planner::search::found::{FoundPlans, PlanCandidate};
use crate::planner::{Job, PlanPart};
use rayon::prelude::*;
use sim::pipeline::PipelineSchedule;
use sim::units::Seconds;
use std::sync::Arc;
use step::{ChipTimes, DegreeCosts, Fidelity, LoweredModel, PipelineSends, PlanShape, StepError, TrainingPlan};

/// Plans simulated between two updates of the list.
const ROUND: usize = 64;

/// The method that times a plan whose closed form is only a lower bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TimingMethod {
    /// The closed form itself, as a bound.
    Closed,
    /// The longer of two bounds: the closed form, and the simulated schedule with the least time of every part of a
    /// pass.
    Parts,
    /// The simulated schedule.
    Played,
}

/// Computes the shapes of plans, one after the other.
struct ShapeSource<'l> {
    chip: ChipTimes,
    /// The lowered model, if all plans are of one group.
    lowered: Option<LoweredModel<'l>>,
    /// The last shape, with the class, group and policy of its plan. Plans with equal indices share it.
    last: Option<((u32, u32, u32), Arc<PlanShape>)>,
}

impl ShapeSource<'_> {
    fn shape_of_plan(
        &mut self,
        job: &Job<'_>,
        candidate: &PlanCandidate,
        plan: &TrainingPlan,
    ) -> Result<Arc<PlanShape>, StepError> {
        let key = (candidate.family, candidate.lot, candidate.policy);
        if let Some((_, shape)) = self.last.as_ref().filter(|(last, _)| *last == key) {
            return Ok(Arc::clone(shape));
        }
        let shape = Arc::new(match &mut self.lowered {
            Some(lowered) => lowered.plan_shape(&mut self.chip, job.fabric, plan)?,
            None => PlanShape::new(&mut self.chip, job.model, job.fabric, plan)?,
        });
        self.last = Some((key, Arc::clone(&shape)));
        Ok(shape)
    }
}

impl PlanSearch<'_> {
    /// Simulates the open plans, least bound first, until no bound is below the last time of the list. Returns the
    /// number of plans simulated.
    pub fn settle_open_plans(&self, found: &mut FoundPlans) -> usize {
        self.settle_by_shapes(found, || ShapeSource { chip: self.chip.clone(), lowered: None, last: None })
    }

    /// As [`Self::settle_open_plans`], for open plans that are all of one group, with cached kernel times of the chip.
    pub fn settle_group(&self, found: &mut FoundPlans, chip: &ChipTimes, lowered: &LoweredModel<'_>) -> usize {
        self.settle_by_shapes(found, || ShapeSource { chip: chip.clone(), lowered: Some(lowered.clone()), last: None })
    }

    fn settle_by_shapes<'l>(&self, found: &mut FoundPlans, shapes: impl Fn() -> ShapeSource<'l> + Sync) -> usize {
        let mut open = std::mem::take(&mut found.open);
        open.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
        let mut at = 0;
        self.standing.begin_part(PlanPart::Played, open.len());
        while at < open.len() {
            if self.standing.should_stop() {
                let left = open[at..].partition_point(|c| !found.beats_bound(c.time, self.length));
                found.not_reached += left;
                found.rejected_by_bound += open.len() - at - left;
                // The first open plan has the least bound of those left.
                self.standing.note_left_bound(open[at].time);
                return at;
            }
            let end = open.len().min(at + ROUND);
            let round = &open[at..end];
            let round = &round[..round.partition_point(|c| !found.beats_bound(c.time, self.length))];
            if round.is_empty() {
                break;
            }
            let times: Vec<Result<f64, StepError>> = round
                .par_iter()
                .map_init(&shapes, |shapes, candidate| self.simulate_pipeline(shapes, candidate))
                .collect();
            for (candidate, time) in round.iter().zip(times) {
                match time {
                    Ok(time) => {
                        found.timed += 1;
                        found.insert_timed(PlanCandidate { time, ..*candidate }, self.length);
                    }
                    Err(error) => {
                        found.refused += 1;
                        found.keep_refusal(error);
                    }
                }
            }
            at += round.len();
            self.standing.add_done(round.len(), 0, found.cutoff_for_count(1));
        }
        found.rejected_by_bound += open.len() - at;
        at
    }

    /// Returns the method for a plan whose closed form is a lower bound. If a schedule splits the backward pass, lower
    /// bounds on kernel times do not suffice to simulate it. The true share of input gradients may be smaller, and the
    /// schedule then defers more work while it waits for inputs.
    pub(crate) fn timing_method(&self, shape: &PlanShape, schedule: PipelineSchedule) -> TimingMethod {
        match self.chip.fidelity() {
            _ if !schedule.splits_backward() => TimingMethod::Played,
            Fidelity::Exact => TimingMethod::Played,
            Fidelity::Scheduled if shape.is_proven() => TimingMethod::Played,
            Fidelity::Scheduled => TimingMethod::Parts,
            Fidelity::Peak | Fidelity::Buffered | Fidelity::Mapped => TimingMethod::Closed,
        }
    }

    /// Times a plan whose closed form `closed` is only a lower bound. The result is also a lower bound if the chip's
    /// fidelity is not exact.
    ///
    /// # Errors
    /// A pipeline that the schedule cannot run.
    pub(crate) fn simulate_plan(
        &self,
        shape: &PlanShape,
        degrees: &DegreeCosts,
        sends: &PipelineSends,
        schedule: PipelineSchedule,
        micro_batches: u64,
        closed: Seconds,
    ) -> Result<Seconds, StepError> {
        Ok(match self.timing_method(shape, schedule) {
            TimingMethod::Closed => closed,
            TimingMethod::Parts => {
                closed.max(self.evaluator.simulate_lower_bound(shape, degrees, sends, schedule, micro_batches)?)
            }
            TimingMethod::Played => self.evaluator.simulate_step(shape, degrees, sends, schedule, micro_batches)?,
        })
    }

    fn simulate_pipeline(&self, shapes: &mut ShapeSource<'_>, candidate: &PlanCandidate) -> Result<f64, StepError> {
        let plan = self.plan_of(*candidate);
        let shape = shapes.shape_of_plan(self.job, candidate, &plan)?;
        let closed = Seconds(candidate.time);
        if self.timing_method(&shape, plan.schedule) == TimingMethod::Closed {
            return Ok(closed.0);
        }
        let degrees =
            self.divisions_of(candidate.family)[candidate.division as usize].degrees.as_ref().map_err(Clone::clone)?;
        let sends = self.evaluator.pipeline_sends(&shapes.chip, &shape, &plan);
        Ok(self.simulate_plan(&shape, degrees, &sends, plan.schedule, plan.micro_batches(), closed)?.0)
    }
}
