//! The fastest plan of a job on one of many chips: lots in the order of what bounds them, each looked into no further than the best plan so far asks.
//!
//! A lot is bounded by its kernels' peaks, then by what arrays and buffers leave of them, then by its kernels mapped; then its plans are timed with
//! kernels as fast as they run and memory without end; what that leaves is timed exactly. Plans, times and ties are those of
//! [`search_plans`](super::search_plans), all splits of the layers open and whatever the stack's framework can run.

use super::found::{Candidate, Found};
use super::loads::Loads;
use super::mixes::Looked;
use super::prepared::{Prepared, PreparedLot};
use super::search::Search;
use super::splits::ROUNDING;
use super::{Job, RankedPlan};
use sim::hardware::Accelerator;
use sim::status::SolveStatus;
use sim::units::{Bytes, Seconds};
use std::sync::{Arc, OnceLock};
use step::{ChipTimes, DeviceMemory, Evaluator, Fidelity, MixKind, OverCapacity, Program, StepError, TrainingPlan};
use workloads::ActivationPolicy;

/// What became of a job on a chip.
#[derive(Debug, Clone, PartialEq)]
pub enum Fastest {
    /// The fastest plan that fits, and how good it is among all.
    Plan(Box<RankedPlan>, SolveStatus),
    /// No plan fits: the one that lacks least.
    TooLarge(Option<Box<(TrainingPlan, OverCapacity)>>),
    /// No plan is below this, which is not below the cutoff.
    Beaten(Seconds),
}

/// How far a lot has been looked into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Look {
    Bound(Fidelity),
    /// Its plans timed with kernels as fast as they run, in memory without end.
    Relaxed,
}

/// A lot with a bound of its plans.
#[derive(Debug, Clone, Copy)]
struct Waiting {
    bound: f64,
    lot: usize,
    look: Look,
}

/// A chip on which a job is planned.
struct OnChip<'p> {
    prepared: &'p Prepared<'p>,
    job: Job<'p>,
    times: ChipTimes,
    /// Kernels' bounds by fidelity, `NAN` where not yet found.
    bounds: [Vec<f64>; 3],
    waiting: Vec<Waiting>,
}

impl Prepared<'_> {
    /// Seconds that no plan on the chip goes below, from its kernels' peaks.
    ///
    /// # Errors
    /// A chip that the cost model cannot use.
    pub fn coarse_bound(&self, chip: &Accelerator) -> Result<Seconds, StepError> {
        let on = OnChip::new(self, chip)?;
        Ok(Seconds(on.waiting.iter().map(|w| w.bound).fold(f64::INFINITY, f64::min)))
    }

    /// Seconds that no plan on the chip goes below, from its kernels mapped and its plans timed; no more than is needed to see whether that is below
    /// `cutoff`.
    ///
    /// # Errors
    /// A chip that the cost model cannot use.
    pub fn fine_bound(&self, chip: &Accelerator, cutoff: f64) -> Result<Seconds, StepError> {
        self.bound_to(chip, cutoff, Look::Relaxed)
    }

    /// Seconds that no plan on the chip goes below, from its kernels' peaks and what arrays and buffers leave of them; no more than is needed to see
    /// whether that is below `cutoff`.
    ///
    /// # Errors
    /// A chip that the cost model cannot use.
    pub fn buffered_bound(&self, chip: &Accelerator, cutoff: f64) -> Result<Seconds, StepError> {
        self.bound_to(chip, cutoff, Look::Bound(Fidelity::Buffered))
    }

    fn bound_to(&self, chip: &Accelerator, cutoff: f64, deepest: Look) -> Result<Seconds, StepError> {
        let mut on = OnChip::new(self, chip)?;
        loop {
            match on.least() {
                None => return Ok(Seconds(f64::INFINITY)),
                Some(at) if on.waiting[at].look == deepest || on.waiting[at].bound >= cutoff => {
                    return Ok(Seconds(on.waiting[at].bound));
                }
                Some(at) => on.look_further(at, cutoff)?,
            }
        }
    }

    /// The fastest plan on the chip, unless no plan is below `cutoff` seconds.
    ///
    /// # Errors
    /// A chip that the cost model cannot use.
    pub fn fastest(&self, chip: &Accelerator, cutoff: f64) -> Result<Fastest, StepError> {
        let mut on = OnChip::new(self, chip)?;
        let job = on.job;
        let search = search(self, &job, on.times.clone(), job.memory());
        let mut exact = on.times.clone();
        let (mut found, mut gap, mut open) = (Found::default(), 0.0_f64, Vec::new());
        let mut left = f64::INFINITY;
        while let Some(at) = on.least() {
            let limit = cutoff.min(found.limit_of(1) * (1.0 + ROUNDING));
            let Waiting { bound, lot, look } = on.waiting[at];
            if bound >= limit {
                left = bound;
                break;
            }
            if look == Look::Relaxed {
                on.waiting.swap_remove(at);
                let looked = search.lot_fastest(&mut exact, &self.lots[lot], limit, &mut found);
                gap = gap.max(looked.gap);
                if !looked.proven {
                    open.push(lot);
                }
            } else {
                on.look_further(at, limit)?;
            }
        }
        let least = |seconds: f64| on.least_of(&open, seconds * (1.0 - gap), &job);
        let Some(first) = found.best.first().copied() else {
            return Ok(match cutoff.is_finite() || left.is_finite() {
                true => Fastest::Beaten(Seconds(least(cutoff.min(left)))),
                false => Fastest::TooLarge(search.nearest(found)?.map(Box::new)),
            });
        };
        // What differs by rounding is decided by the last word.
        found.best.retain(|candidate| candidate.time <= first.time * (1.0 + 2.0 * ROUNDING));
        let answer = search.answer(found, 0, super::splits::Tried::default(), 1)?;
        match answer.best.into_iter().next() {
            Some(best) if best.time.total.0 < cutoff => {
                let seconds = best.time.total.0;
                Ok(Fastest::Plan(Box::new(best), SolveStatus::from_bounds(least(seconds), seconds)))
            }
            // Others below it may not have been timed, but none is below the cutoff.
            Some(_) => Ok(Fastest::Beaten(Seconds(least(cutoff)))),
            None => Ok(Fastest::TooLarge(None)),
        }
    }
}

impl<'p> OnChip<'p> {
    fn new(prepared: &'p Prepared<'_>, chip: &'p Accelerator) -> Result<Self, StepError> {
        let times = ChipTimes::sharing(chip, prepared.job.stack, Arc::clone(&prepared.schedules))?;
        let unknown = vec![f64::NAN; prepared.table.kernels().len()];
        let bounds = [unknown.clone(), unknown.clone(), unknown];
        let mut on = Self { prepared, job: prepared.job(chip), times, bounds, waiting: Vec::new() };
        on.waiting = (0..prepared.lots.len())
            .map(|lot| Waiting { bound: on.bound(lot, Fidelity::Peak), lot, look: Look::Bound(Fidelity::Peak) })
            .collect();
        Ok(on)
    }

    /// The lot of the least bound.
    fn least(&self) -> Option<usize> {
        let order = |a: &Waiting, b: &Waiting| a.bound.total_cmp(&b.bound).then(a.lot.cmp(&b.lot));
        (0..self.waiting.len()).min_by(|&a, &b| order(&self.waiting[a], &self.waiting[b]))
    }

    /// Bounds a lot better.
    fn look_further(&mut self, at: usize, limit: f64) -> Result<(), StepError> {
        let Waiting { bound, lot, look } = self.waiting[at];
        let (better, look) = match look {
            Look::Bound(Fidelity::Peak) => (self.bound(lot, Fidelity::Buffered), Look::Bound(Fidelity::Buffered)),
            Look::Bound(Fidelity::Buffered) => (self.bound(lot, Fidelity::Mapped), Look::Bound(Fidelity::Mapped)),
            _ => (self.relaxed(lot, limit), Look::Relaxed),
        };
        self.waiting[at] = Waiting { bound: bound.max(better), lot, look };
        Ok(())
    }

    fn kernel(&mut self, kernel: u32, fidelity: Fidelity) -> Seconds {
        let known = match fidelity {
            Fidelity::Peak => 0,
            Fidelity::Buffered => 1,
            Fidelity::Mapped | Fidelity::Scheduled | Fidelity::Exact => 2,
        };
        let slot = self.bounds[known][kernel as usize];
        if !slot.is_nan() {
            return Seconds(slot);
        }
        let bound = self.times.bound(&self.prepared.table.kernels()[kernel as usize], self.job.fabric, fidelity);
        self.bounds[known][kernel as usize] = bound.0;
        bound
    }

    /// Seconds that no plan of a lot goes below: every pass takes at least its critical path, or in a stream the sum of its kernels.
    fn bound(&mut self, lot: usize, fidelity: Fidelity) -> f64 {
        let prepared = self.prepared;
        let scheduled = prepared.scheduled();
        let mut pass = |program: &Program| {
            if scheduled {
                return program.critical_path(|kernel| self.kernel(kernel, fidelity)).0;
            }
            // Of collectives in a stream overlap may leave nothing.
            let kernels = prepared.table.kernels();
            let works = |kernel: u32| !matches!(kernels[kernel as usize], sim::kernel::Kernel::Collective(_));
            program.sum(|kernel| if works(kernel) { self.kernel(kernel, fidelity) } else { Seconds::ZERO }).0
        };
        let lot = &prepared.lots[lot];
        let [embedding, layer, head] = lot.passes.each_ref().map(|passes| pass(&passes.forward) + pass(&passes.backward));
        lot.least(embedding + layer * prepared.job.model.layers as f64 + head)
    }

    /// Seconds that no plan of these lots goes below whatever the order of its kernels, or `limit` where that is less. The lots' plans are timed with
    /// every pass at its schedule's bound.
    fn least_of(&self, lots: &[usize], limit: f64, job: &Job<'_>) -> f64 {
        if lots.is_empty() {
            return limit;
        }
        let mut times = self.times.at(Fidelity::Scheduled);
        let search = search(self.prepared, job, times.clone(), job.memory());
        lots.iter().fold(limit, |limit, &lot| {
            let mut found = Found::default();
            let looked = search.lot_fastest(&mut times, &self.prepared.lots[lot], limit, &mut found);
            // Plans above the limit may not have been timed; where some were, one is the fastest.
            limit.min(found.limit_of(1) * (1.0 - looked.gap) * (1.0 - ROUNDING))
        })
    }

    /// The fastest plan of a lot with kernels as fast as they run and memory without end: in seconds, or at least `limit` where it is not below that.
    fn relaxed(&self, lot: usize, limit: f64) -> f64 {
        let endless = DeviceMemory { hbm: Bytes(u64::MAX), host: Bytes(u64::MAX), storage: Bytes(u64::MAX) };
        let mut times = self.times.at(Fidelity::Mapped);
        let search = search(self.prepared, &self.job, times.clone(), endless);
        let search = Search {
            policies: Arc::new(vec![ActivationPolicy::None]),
            open: Arc::new(vec![true]),
            mixes: MixKind::None,
            ..search
        };
        let mut found = Found::default();
        // So far beyond the limit that a lot of which no plan is below it is shown to be beaten, rounding given back.
        let limit = limit * (1.0 + 4.0 * ROUNDING);
        search.lot_fastest(&mut times, &self.prepared.lots[lot], limit, &mut found);
        // Plans above the limit may not have been timed.
        found.limit_of(1).min(limit) * (1.0 - ROUNDING)
    }
}

/// A search among the plans of a job on devices with so much memory.
fn search<'s>(prepared: &Prepared<'_>, job: &'s Job<'s>, chip: ChipTimes, memory: DeviceMemory) -> Search<'s> {
    Search {
        job,
        evaluator: Evaluator::new(job.model, job.fabric, job.stack, memory),
        chip,
        families: Arc::clone(&prepared.families),
        policies: Arc::clone(&prepared.policies),
        open: Arc::clone(&prepared.open),
        limit: f64::INFINITY,
        degrees: vec![OnceLock::new(); prepared.families.len()],
        length: 1 + super::search::SPARE,
        uneven: prepared.uneven,
        mixes: prepared.mixes,
        staged: std::sync::Mutex::default(),
    }
}

impl Search<'_> {
    /// Takes the fastest plans of a lot that are below `limit` seconds into `found`.
    fn lot_fastest(&self, chip: &mut ChipTimes, lot: &PreparedLot<'_>, limit: f64, found: &mut Found) -> Looked {
        let (family, place) = (lot.family, lot.lot);
        let layers = self.job.model.layers;
        let first = self.first_of(family, place);
        let first_plan = self.plan(first);
        let shares = self.least_shares(family, place);
        let mut lowered = lot.lowered.clone();
        let (mut proven, mut kept, mut loads) = (true, None, Vec::with_capacity(self.policies.len()));
        for (policy, activations) in self.policies.iter().enumerate() {
            let limit = limit.min(found.limit_of(1) * (1.0 + ROUNDING));
            // No policy works less than one that runs nothing again.
            let work = kept.map_or(0.0, |kept: Loads| kept.all(layers));
            let overhead = self.evaluator.overhead().0;
            if shares.iter().all(|share| work * share + overhead >= limit) {
                loads.push(None);
                continue;
            }
            let plan = TrainingPlan { activations: activations.clone().into(), ..first_plan.clone() };
            let shape = lowered.shape(chip, self.job.fabric, &plan);
            let known = shape.as_ref().ok().map(|shape| Loads::of(shape, self.job.stack));
            if let Ok(shape) = &shape {
                proven &= shape.proven();
            }
            if *activations == ActivationPolicy::None {
                kept = known;
            }
            loads.push(known);
            let most = known.map_or(f64::INFINITY, |known| (limit - overhead) / known.all(layers));
            self.policy(chip, &shape, plan, (Candidate { policy: policy as u32, ..first }, &shares, most), found);
        }
        found.prune(self.length);
        self.settle(found);
        if self.uneven {
            let limit = limit.min(found.limit_of(1) * (1.0 + ROUNDING));
            let here: Vec<Candidate> = found.best.iter().filter(|c| (c.family, c.lot) == (family, place)).copied().collect();
            let (more, _) = self.best_of_lot(chip, (family as usize, place as usize), (&here, &loads), limit);
            more.best.into_iter().for_each(|candidate| found.better(candidate, self.length));
        }
        let mixed = self.mix_lot(chip, (family as usize, place as usize), limit, found);
        Looked { proven: proven && mixed.proven, ..mixed }
    }

    /// Of the plans that do not fit, the one that lacks least.
    fn nearest(&self, found: Found) -> Result<Option<(TrainingPlan, OverCapacity)>, StepError> {
        Ok(self.answer(found, 0, super::splits::Tried::default(), 1)?.nearest)
    }
}

#[cfg(test)]
#[path = "fastest_tests.rs"]
mod tests;
