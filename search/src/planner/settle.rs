//! Plans whose time no closed form gives are played, least bound first.

use super::found::{FoundPlans, PlanCandidate};
use super::search::PlanSearch;
use super::{Job, PlanPart};
use rayon::prelude::*;
use sim::pipeline::PipelineSchedule;
use sim::units::Seconds;
use std::sync::Arc;
use step::{ChipTimes, DegreeCosts, Fidelity, LoweredModel, PipelineSends, PlanShape, StepError, TrainingPlan};

/// Plans simulated between two looks at the list.
const ROUND: usize = 64;

/// What the time of a plan is, of which the closed form is a bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TimingMethod {
    /// The closed form.
    Closed,
    /// That, or its schedule played with every part of a pass as short as it may be, whichever is longer.
    Parts,
    /// Its schedule played.
    Played,
}

/// What gives plans their shapes, one plan after the other.
struct ShapeSource<'l> {
    chip: ChipTimes,
    /// The lowered model, where all plans are of one lot.
    lowered: Option<LoweredModel<'l>>,
    /// Of the last plan's family, lot and policy: those of others are the same.
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
    /// Simulates the open plans, least bound first, until no bound is below the last of the list; how many it were.
    pub fn settle_open_plans(&self, found: &mut FoundPlans) -> usize {
        self.settle_by_shapes(found, || ShapeSource { chip: self.chip.clone(), lowered: None, last: None })
    }

    /// [`Self::settle_open_plans`] where all open plans are of one lot, with what the chip's kernels are known to take.
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
                // The first has the least bound.
                self.standing.note_left_bound(open[at].time);
                return at;
            }
            let end = open.len().min(at + ROUND);
            let round = &open[at..end];
            let round = &round[..round.partition_point(|c| !found.beats_bound(c.time, self.length))];
            if round.is_empty() {
                break;
            }
            let times: Vec<Result<f64, StepError>> =
                round.par_iter().map_init(&shapes, |shapes, candidate| self.simulate_pipeline(shapes, candidate)).collect();
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

    /// How a plan is timed whose closed form is a bound. Where less of a backward pass is gradients of inputs and more may be put off, a played schedule
    /// may wait for inputs first and run what it has put off later.
    pub(super) fn timing_method(&self, shape: &PlanShape, schedule: PipelineSchedule) -> TimingMethod {
        match self.chip.fidelity() {
            _ if !schedule.splits_backward() => TimingMethod::Played,
            Fidelity::Exact => TimingMethod::Played,
            Fidelity::Scheduled if shape.is_proven() => TimingMethod::Played,
            Fidelity::Scheduled => TimingMethod::Parts,
            Fidelity::Peak | Fidelity::Buffered | Fidelity::Mapped => TimingMethod::Closed,
        }
    }

    /// The time of a plan whose closed form is no more than a bound.
    ///
    /// # Errors
    /// A pipeline that the schedule cannot run.
    pub(super) fn simulate_plan(
        &self,
        shape: &PlanShape,
        degrees: &DegreeCosts,
        sends: &PipelineSends,
        (schedule, micro_batches): (PipelineSchedule, u64),
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
        let degrees = self.divisions_of(candidate.family)[candidate.division as usize].degrees.as_ref().map_err(Clone::clone)?;
        let sends = self.evaluator.pipeline_sends(&shapes.chip, &shape, &plan);
        Ok(self.simulate_plan(&shape, degrees, &sends, (plan.schedule, plan.micro_batches()), closed)?.0)
    }
}
