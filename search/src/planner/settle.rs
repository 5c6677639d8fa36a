//! Plans whose time no closed form gives are played, least bound first.

use super::found::{Candidate, Found};
use super::search::Search;
use super::{Job, PlanPart};
use rayon::prelude::*;
use sim::pipeline::Schedule;
use sim::units::Seconds;
use std::sync::Arc;
use step::{ChipTimes, Degrees, Fidelity, Lowered, Sends, Shape, StepError, TrainingPlan};

/// Plans simulated between two looks at the list.
const ROUND: usize = 64;

/// What the time of a plan is, of which the closed form is a bound.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Timing {
    /// The closed form.
    Closed,
    /// That, or its schedule played with every part of a pass as short as it may be, whichever is longer.
    Parts,
    /// Its schedule played.
    Played,
}

/// What gives plans their shapes, one plan after the other.
struct Shapes<'l> {
    chip: ChipTimes,
    /// The lowered model, where all plans are of one lot.
    lowered: Option<Lowered<'l>>,
    /// Of the last plan's family, lot and policy: those of others are the same.
    last: Option<((u32, u32, u32), Arc<Shape>)>,
}

impl Shapes<'_> {
    fn of(&mut self, job: &Job<'_>, candidate: &Candidate, plan: &TrainingPlan) -> Result<Arc<Shape>, StepError> {
        let key = (candidate.family, candidate.lot, candidate.policy);
        if let Some((_, shape)) = self.last.as_ref().filter(|(last, _)| *last == key) {
            return Ok(Arc::clone(shape));
        }
        let shape = Arc::new(match &mut self.lowered {
            Some(lowered) => lowered.shape(&mut self.chip, job.fabric, plan)?,
            None => Shape::new(&mut self.chip, job.model, job.fabric, plan)?,
        });
        self.last = Some((key, Arc::clone(&shape)));
        Ok(shape)
    }
}

impl Search<'_> {
    /// Simulates the open plans, least bound first, until no bound is below the last of the list; how many it were.
    pub fn settle(&self, found: &mut Found) -> usize {
        self.settle_by(found, || Shapes { chip: self.chip.clone(), lowered: None, last: None })
    }

    /// [`Self::settle`] where all open plans are of one lot, with what the chip's kernels are known to take.
    pub fn settle_lot(&self, found: &mut Found, chip: &ChipTimes, lowered: &Lowered<'_>) -> usize {
        self.settle_by(found, || Shapes { chip: chip.clone(), lowered: Some(lowered.clone()), last: None })
    }

    fn settle_by<'l>(&self, found: &mut Found, shapes: impl Fn() -> Shapes<'l> + Sync) -> usize {
        let mut open = std::mem::take(&mut found.open);
        open.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
        let mut at = 0;
        self.standing.begins(PlanPart::Played, open.len());
        while at < open.len() {
            if self.standing.stops() {
                let left = open[at..].partition_point(|c| !found.beaten(c.time, self.length));
                found.not_reached += left;
                found.rejected_by_bound += open.len() - at - left;
                // The first has the least bound.
                self.standing.leaves(open[at].time);
                return at;
            }
            let end = open.len().min(at + ROUND);
            let round = &open[at..end];
            let round = &round[..round.partition_point(|c| !found.beaten(c.time, self.length))];
            if round.is_empty() {
                break;
            }
            let times: Vec<Result<f64, StepError>> =
                round.par_iter().map_init(&shapes, |shapes, candidate| self.simulate(shapes, candidate)).collect();
            for (candidate, time) in round.iter().zip(times) {
                match time {
                    Ok(time) => {
                        found.timed += 1;
                        found.rank(Candidate { time, ..*candidate }, self.length);
                    }
                    Err(error) => {
                        found.refused += 1;
                        found.reason(error);
                    }
                }
            }
            at += round.len();
            self.standing.done(round.len(), 0, found.limit_of(1));
        }
        found.rejected_by_bound += open.len() - at;
        at
    }

    /// How a plan is timed whose closed form is a bound. Where less of a backward pass is gradients of inputs and more may be put off, a played schedule
    /// may wait for inputs first and run what it has put off later.
    pub(super) fn timing(&self, shape: &Shape, schedule: Schedule) -> Timing {
        match self.chip.fidelity() {
            _ if !schedule.splits_backward() => Timing::Played,
            Fidelity::Exact => Timing::Played,
            Fidelity::Scheduled if shape.proven() => Timing::Played,
            Fidelity::Scheduled => Timing::Parts,
            Fidelity::Peak | Fidelity::Buffered | Fidelity::Mapped => Timing::Closed,
        }
    }

    /// The time of a plan whose closed form is no more than a bound.
    ///
    /// # Errors
    /// A pipeline that the schedule cannot run.
    pub(super) fn play(
        &self,
        shape: &Shape,
        degrees: &Degrees,
        sends: &Sends,
        (schedule, micro_batches): (Schedule, u64),
        closed: Seconds,
    ) -> Result<Seconds, StepError> {
        Ok(match self.timing(shape, schedule) {
            Timing::Closed => closed,
            Timing::Parts => closed.max(self.evaluator.simulate_least(shape, degrees, sends, schedule, micro_batches)?),
            Timing::Played => self.evaluator.simulate(shape, degrees, sends, schedule, micro_batches)?,
        })
    }

    fn simulate(&self, shapes: &mut Shapes<'_>, candidate: &Candidate) -> Result<f64, StepError> {
        let plan = self.plan(*candidate);
        let shape = shapes.of(self.job, candidate, &plan)?;
        let closed = Seconds(candidate.time);
        if self.timing(&shape, plan.schedule) == Timing::Closed {
            return Ok(closed.0);
        }
        let degrees = self.divided(candidate.family)[candidate.division as usize].degrees.as_ref().map_err(Clone::clone)?;
        let sends = self.evaluator.sends(&shapes.chip, &shape, &plan);
        Ok(self.play(&shape, degrees, &sends, (plan.schedule, plan.micro_batches()), closed)?.0)
    }
}
