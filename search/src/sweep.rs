//! A sweep evaluates every combination of a study's values exactly, for maps and sensitivities. No bound prunes any.
//!
//! A result depends on the combination's number alone, not on the number of threads or the order of evaluation.

use crate::design::{DesignEvaluation, Rejection, best_plan_with_kernels, infeasible_evaluation};
use crate::planner::{ChipKernels, PreparedJob};
use crate::space::{Combination, CombinationChip, OutsideReason, Space};
use sim::units::Seconds;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Longest time between two saves. If the process ends, less than a second of work is lost.
const PAUSE: Duration = Duration::from_millis(250);

/// Limit on results that wait to be saved; it bounds the memory when saving is slow.
const WAITING: usize = 1024;

/// The outcome of a combination.
#[derive(Debug, Clone, PartialEq)]
pub enum SweptOutcome {
    /// No chip: the values do not go together. Holds the reason.
    NoChip(String),
    /// A chip outside the limits.
    Outside(OutsideReason, Box<CombinationChip>),
    /// A chip with its fastest plan, or with the reason why it has none.
    Evaluated(Box<CombinationChip>, Box<DesignEvaluation>),
}

/// A sweep: the job's plans on each of the space's fabrics, and the space of chips.
#[derive(Debug, Clone, Copy)]
pub struct Sweep<'a> {
    /// The job and its plans, prepared for every fabric of [`Space::fabric_settings`], in that order.
    pub prepared: &'a [PreparedJob<'a>],
    /// The space of chips.
    pub space: &'a Space,
    /// Limit on the step time.
    pub max_step: Option<Seconds>,
}

impl Sweep<'_> {
    /// Evaluates a combination, with the fastest plan if it is a chip of the space.
    ///
    /// # Errors
    /// Only errors that the space's enumeration has already reported.
    pub fn evaluate_combination(&self, number: u64) -> Result<SweptOutcome, String> {
        let alone = self.evaluate_combinations(&[number])?;
        alone.into_iter().next().ok_or_else(|| format!("design {number} has no result"))
    }

    /// Evaluates several combinations in their order. A chip that runs like the one before reuses its kernels
    /// ([`Space::combinations_by_fabric`]).
    ///
    /// # Errors
    /// As [`Self::evaluate_combination`].
    pub fn evaluate_combinations(&self, numbers: &[u64]) -> Result<Vec<SweptOutcome>, String> {
        let combinations: Vec<Combination> =
            numbers.iter().map(|number| self.space.combination_at(*number)).collect::<Result<_, _>>()?;
        let mut kernels = None;
        let mut evaluations = Vec::with_capacity(combinations.len());
        for combination in &combinations {
            evaluations.push(match combination {
                Combination::Chip(built) => Some(self.evaluate_chip_after(&mut kernels, built)),
                _ => None,
            });
        }
        let fates = combinations.into_iter().zip(evaluations).map(|(combination, evaluation)| {
            match (combination, evaluation) {
                (Combination::NoChip(why), _) => Ok(SweptOutcome::NoChip(why)),
                (Combination::Outside(why, built), _) => Ok(SweptOutcome::Outside(why, built)),
                (Combination::Chip(built), Some(evaluation)) => {
                    Ok(SweptOutcome::Evaluated(built, Box::new(evaluation)))
                }
                (Combination::Chip(built), None) => Err(format!("{} was not evaluated", built.chip.name)),
            }
        });
        fates.collect()
    }

    /// Evaluates a chip under its fastest plan. The result is a rejection if no plan fits, or if the step exceeds
    /// [`Self::max_step`].
    #[must_use]
    pub fn evaluate_chip(&self, built: &CombinationChip) -> DesignEvaluation {
        self.evaluate_chip_after(&mut None, built)
    }

    /// Evaluates a chip under its fastest plan. `kernels` holds the kernel times of the previous chip, and afterwards
    /// those of this chip.
    fn evaluate_chip_after<'b>(
        &self,
        kernels: &mut Option<ChipKernels<'b>>,
        built: &'b CombinationChip,
    ) -> DesignEvaluation {
        let Some(prepared) = built.fabric.and_then(|fabric| self.prepared.get(fabric)) else {
            return infeasible_evaluation(Rejection::Unusable("no chip of the space is on its fabric".to_owned()));
        };
        let own = match kernels.take() {
            Some(before) => before.for_other_chip(prepared, &built.chip),
            None => ChipKernels::new(prepared, &built.chip),
        };
        let evaluation = match own {
            Ok(own) => best_plan_with_kernels(prepared, kernels.insert(own)),
            Err(error) => infeasible_evaluation(Rejection::Unusable(error.to_string())),
        };
        match (&evaluation.outcome, self.max_step) {
            (Ok(plan), Some(most)) if plan.time.total > most => {
                infeasible_evaluation(Rejection::TooSlow(plan.time.total, most))
            }
            _ => evaluation,
        }
    }
}

/// A function from the numbers of some combinations to their results, in the same order.
pub type CombinationResults<'a, T, E> = dyn Fn(&[u64]) -> Result<Vec<T>, E> + Sync + 'a;

/// Results that wait to be kept, and the outcome so far.
struct ResultBatches<'k, T, E> {
    keep: &'k mut dyn FnMut(Vec<(u64, T)>) -> Result<(), E>,
    found: Vec<(u64, T)>,
    /// When results were last kept.
    last: Instant,
    outcome: Result<(), E>,
}

impl<T, E> ResultBatches<'_, T, E> {
    /// Adds the results of a group, and keeps those that wait if it is time. Returns true if no more are wanted: all
    /// groups have ended, or an error has come.
    fn add_results(&mut self, received: Result<Result<impl Iterator<Item = (u64, T)>, E>, RecvTimeoutError>) -> bool {
        let ended = match received {
            Ok(Ok(some)) => {
                self.found.extend(some);
                false
            }
            Ok(Err(error)) => {
                self.outcome = Err(error);
                true
            }
            Err(RecvTimeoutError::Timeout) => false,
            Err(RecvTimeoutError::Disconnected) => true,
        };
        if ended || self.last.elapsed() >= PAUSE || self.found.len() >= WAITING {
            if !self.found.is_empty()
                && let Err(error) = (self.keep)(std::mem::take(&mut self.found))
                && self.outcome.is_ok()
            {
                self.outcome = Err(error);
            }
            self.last = Instant::now();
        }
        ended || self.outcome.is_err()
    }
}

/// Calls `some` for each group of numbers on all of rayon's threads, and `keep` with batches of the results on the
/// calling thread. Stops at the first error of either; results that were kept stay kept.
///
/// If the calling thread belongs to rayon's pool, it calls `some` too, because the pool may have no other thread.
///
/// # Errors
/// The first error of `some` or `keep`.
pub fn run_in_groups<T: Send, E: Send>(
    groups: impl Iterator<Item = Vec<u64>> + Send,
    some: &CombinationResults<'_, T, E>,
    keep: &mut dyn FnMut(Vec<(u64, T)>) -> Result<(), E>,
) -> Result<(), E> {
    let groups = Mutex::new(groups);
    let stop = AtomicBool::new(false);
    let next = || groups.lock().unwrap_or_else(PoisonError::into_inner).next();
    let results_of = |numbers: Vec<u64>| some(&numbers).map(|found| numbers.into_iter().zip(found));
    let (sender, receiver) = sync_channel(WAITING);
    let (next, stop, results_of) = (&next, &stop, &results_of);
    let own = rayon::current_thread_index();
    rayon::in_place_scope(move |scope| {
        for _ in usize::from(own.is_some())..rayon::current_num_threads() {
            let sender = sender.clone();
            scope.spawn(move |_| {
                // The calling thread may run this task while it waits inside `some`. It would then wait for itself.
                let is_receiver = own.is_some() && rayon::current_thread_index() == own;
                while !is_receiver
                    && !stop.load(Ordering::Relaxed)
                    && let Some(numbers) = next()
                {
                    // The receiver is gone after an error.
                    if sender.send(results_of(numbers)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        let mut batches = ResultBatches { keep, found: Vec::new(), last: Instant::now(), outcome: Ok(()) };
        loop {
            let received = match receiver.try_recv() {
                Err(_) if own.is_some() => next().map(results_of),
                Err(_) => None,
                Ok(results) => Some(results),
            };
            let received = match received {
                Some(results) => Ok(results),
                None => receiver.recv_timeout(PAUSE.saturating_sub(batches.last.elapsed())),
            };
            if batches.add_results(received) {
                break;
            }
        }
        stop.store(true, Ordering::Relaxed);
        batches.outcome
    })
}

#[cfg(test)]
#[path = "sweep_tests.rs"]
mod tests;
