//! A search over plans as it is seen and stopped from outside.

use sim::units::Seconds;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What a search over plans is at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlanPart {
    /// Plans that are lowered alike, lot by lot: sized, and timed in closed form or bounded.
    Lots,
    /// Plans whose schedule has no closed form, played in the order of their bounds.
    Played,
    /// Other splits of the layers, lot by lot.
    Splits,
    /// Plans that do not fit where everything is kept: what each stage keeps, in the order of their bounds.
    Mixes,
}

/// Where a search over plans stands.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PlanProgress {
    /// What it is at.
    pub part: PlanPart,
    /// How much of the part is done.
    pub done: usize,
    /// How much of it there is; bounds may end it sooner.
    pub all: usize,
    /// Plans evaluated so far; a space within the space, searched first, included.
    pub plans: usize,
    /// The step of the fastest plan that fits so far, if one is known.
    pub best: Option<Seconds>,
}

/// Who watches a search over plans.
#[derive(Clone, Copy)]
pub struct PlanWatch<'w> {
    /// Whether the search is to end with the best so far. Once it has said so it is not asked again.
    pub stop: &'w (dyn Fn() -> bool + Sync),
    /// Is told now and then where the search stands, from whatever thread.
    pub told: &'w (dyn Fn(PlanProgress) + Sync),
}

impl std::fmt::Debug for PlanWatch<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PlanWatch").finish_non_exhaustive()
    }
}

impl PlanWatch<'static> {
    /// Nobody: the search goes to its end.
    pub const NONE: Self = Self { stop: &|| false, told: &|_| {} };
}

/// Between two words of a search.
const PAUSE: Duration = Duration::from_millis(100);

/// The state of a search that is watched.
pub(super) struct PlanWatchState<'w> {
    watch: PlanWatch<'w>,
    stopped: AtomicBool,
    part: Mutex<(PlanPart, usize)>,
    done: AtomicUsize,
    plans: AtomicUsize,
    /// Bits of the least seconds so far: of numbers above zero they are in the numbers' order.
    best: AtomicU64,
    /// When it was told last.
    last: Mutex<Instant>,
    /// Seconds that no plan goes below which a stop has left.
    left: Mutex<f64>,
}

/// What a thread that has panicked has left is as good as before: every write is one number.
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

    /// Begins a part of so many pieces.
    pub fn begin_part(&self, part: PlanPart, all: usize) {
        *lock_despite_panic(&self.part) = (part, all);
        self.done.store(0, Ordering::Relaxed);
    }

    /// Takes what came of some pieces of the part: plans evaluated, and the least seconds of those that fit.
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

    /// Whether to stop.
    pub fn should_stop(&self) -> bool {
        if !self.was_stopped() && (self.watch.stop)() {
            self.stopped.store(true, Ordering::Relaxed);
        }
        self.was_stopped()
    }

    /// Whether it was stopped.
    pub fn was_stopped(&self) -> bool {
        self.stopped.load(Ordering::Relaxed)
    }

    /// Takes the bound of plans that a stop leaves.
    pub fn note_left_bound(&self, bound: f64) {
        let mut left = lock_despite_panic(&self.left);
        *left = left.min(bound);
    }

    /// Seconds that no plan goes below which a stop has left.
    pub fn left_bound(&self) -> f64 {
        *lock_despite_panic(&self.left)
    }
}
