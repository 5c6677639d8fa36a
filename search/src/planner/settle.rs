//! Plans whose time no closed form gives are played, least bound first.

use super::found::{Candidate, Found};
use super::search::Search;
use super::{Job, PlanPart};
use rayon::prelude::*;
use sim::pipeline::Schedule;
use std::sync::Arc;
use step::{ChipTimes, Fidelity, Lowered, Shape, StepError, TrainingPlan};

/// Plans simulated between two looks at the list.
const ROUND: usize = 64;

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

    /// Whether a schedule's closed form is what bounds it: its passes are bounded themselves, and played it may take longer than what they bound. Where
    /// less of a pass is gradients of inputs and more may be put off, a played schedule may wait for inputs first and run what it has put off later;
    /// and ZB-V's passes take the next that is ready.
    pub(super) fn is_bounded(&self, shape: &Shape, schedule: Schedule) -> bool {
        let bounded = match self.chip.fidelity() {
            Fidelity::Exact => false,
            Fidelity::Scheduled => !shape.proven(),
            Fidelity::Peak | Fidelity::Buffered | Fidelity::Mapped => true,
        };
        bounded && schedule.splits_backward()
    }

    fn simulate(&self, shapes: &mut Shapes<'_>, candidate: &Candidate) -> Result<f64, StepError> {
        let plan = self.plan(*candidate);
        let shape = shapes.of(self.job, candidate, &plan)?;
        if self.is_bounded(&shape, plan.schedule) {
            return Ok(candidate.time);
        }
        let degrees = self.divided(candidate.family)[candidate.division as usize].degrees.as_ref().map_err(Clone::clone)?;
        let sends = self.evaluator.sends(&shapes.chip, &shape, &plan);
        Ok(self.evaluator.simulate(&shape, degrees, &sends, plan.schedule, plan.micro_batches())?.0)
    }
}
