//! Progress reports of a search over plans, and requests to stop it.

use sim::units::Seconds;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The part of a search over plans that is running.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlanPart {
    /// Evaluating groups of plans that are lowered alike: memory, and time in closed form or a bound on it.
    Lots,
    /// Simulating plans whose schedule has no closed form, in the order of their bounds.
    Played,
    /// Trying uneven splits of the layers, group by group.
    Splits,
    /// Choosing the policies of each stage, for plans that do not fit if they keep everything, in the order of their
    /// bounds.
    Mixes,
}

/// The progress of a search over plans.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PlanProgress {
    /// The running part.
    pub part: PlanPart,
    /// Finished pieces of the part.
    pub done: usize,
    /// All pieces of the part; bounds may end it sooner.
    pub all: usize,
    /// Plans evaluated so far, including those of a small space searched first.
    pub plans: usize,
    /// The step of the fastest plan that fits, if one is known.
    pub best: Option<Seconds>,
}

/// Callbacks of a search over plans.
#[derive(Clone, Copy)]
pub struct PlanWatch<'w> {
    /// True to end the search with the best plans so far. After it has returned true, it is not called again.
    pub stop: &'w (dyn Fn() -> bool + Sync),
    /// Called with the progress, at most every 100 ms, from any thread.
    pub told: &'w (dyn Fn(PlanProgress) + Sync),
}

impl std::fmt::Debug for PlanWatch<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PlanWatch").finish_non_exhaustive()
    }
}

impl PlanWatch<'static> {
    /// No callbacks: the search runs to its end.
    pub const NONE: Self = Self { stop: &|| false, told: &|_| {} };
}

/// Least time between two progress reports.
const PAUSE: Duration = Duration::from_millis(100);

/// The state of a watched search.
pub(crate) struct PlanWatchState<'w> {
    watch: PlanWatch<'w>,
    stopped: AtomicBool,
    part: Mutex<(PlanPart, usize)>,
    done: AtomicUsize,
    plans: AtomicUsize,
    /// The bits of the least seconds so far. Bits of positive numbers have the order of the numbers.
    best: AtomicU64,
    /// Time of the last report.
    last: Mutex<Instant>,
    /// Lower bound in seconds on the plans that a stop has left.
    left: Mutex<f64>,
}

/// Locks a mutex even if it is poisoned. Its value is still valid, because every write is a plain copy.
fn lock_despite_panic<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<'w> PlanWatchState<'w> {
    pub fn new(watch: PlanWatch<'w>) -> Self {
        Self {
            watch,
            stopped: AtomicBool::new(false),
            part: Mutex::new((PlanPart::Lots, 0)),
            done: AtomicUsize::new(0),
            plans: AtomicUsize::new(0),
            best: AtomicU64::new(f64::INFINITY.to_bits()),
            last: Mutex::new(Instant::now()),
            left: Mutex::new(f64::INFINITY),
        }
    }

    /// Begins a part of `all` pieces.
    pub fn begin_part(&self, part: PlanPart, all: usize) {
        *lock_despite_panic(&self.part) = (part, all);
        self.done.store(0, Ordering::Relaxed);
    }

    /// Adds finished pieces of the part, with the plans evaluated in them and the least seconds of those that fit.
    /// Reports the progress if the last report is old enough.
    pub fn add_done(&self, pieces: usize, plans: usize, best: f64) {
        let done = self.done.fetch_add(pieces, Ordering::Relaxed) + pieces;
        let plans = self.plans.fetch_add(plans, Ordering::Relaxed) + plans;
        let best = self.best.fetch_min(best.to_bits(), Ordering::Relaxed).min(best.to_bits());
        let Ok(mut last) = self.last.try_lock() else { return };
        if last.elapsed() < PAUSE {
            return;
        }
        *last = Instant::now();
        let (part, all) = *lock_despite_panic(&self.part);
        let best = Some(f64::from_bits(best)).filter(|best| best.is_finite()).map(Seconds);
        (self.watch.told)(PlanProgress { part, done: done.min(all), all, plans, best });
    }

    /// True if the search must stop now. Asks the watch unless it has already stopped the search.
    pub fn should_stop(&self) -> bool {
        if !self.was_stopped() && (self.watch.stop)() {
            self.stopped.store(true, Ordering::Relaxed);
        }
        self.was_stopped()
    }

    /// True if the watch has stopped the search.
    pub fn was_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Notes a lower bound in seconds on plans that a stop leaves unevaluated.
    pub fn note_left_bound(&self, bound: f64) {
        let mut left = lock_despite_panic(&self.left);
        *left = left.min(bound);
    }

    /// Lower bound in seconds on the plans that a stop has left; infinite if it has left none.
    pub fn left_bound(&self) -> f64 {
        *lock_despite_panic(&self.left)
    }
}
