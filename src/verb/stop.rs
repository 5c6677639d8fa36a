//! Stops a search or a sweep before its end: after a time limit, or on Ctrl-C or SIGTERM.

use crate::failure::{self, Failure};
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The cause of a stop by a signal.
const BY_SIGNAL: &str = "stopped by Ctrl-C or SIGTERM";
/// Exit code of a program that Ctrl-C has ended: 128 plus the number of the signal.
const INTERRUPTED: i32 = 130;
/// Largest limit that a clock can represent.
const LONGEST: f64 = 1e9;

static ASKED: AtomicBool = AtomicBool::new(false);

/// The limits of a search.
pub struct StopLimit {
    end: Option<(Instant, f64)>,
}

impl StopLimit {
    /// Starts the time limit, if there is one, and handles Ctrl-C and SIGTERM. A second signal ends the program.
    pub fn new(seconds: Option<f64>) -> Result<Self, Failure> {
        if let Some(seconds) = seconds.filter(|seconds| !(*seconds > 0.0 && *seconds <= LONGEST)) {
            let limit = format!("must be above 0 and at most {LONGEST} seconds; give a limit, or leave it out");
            return Err(failure::input_failure(format!("--time-limit {seconds}: {limit}")));
        }
        let handler = || {
            if ASKED.swap(true, Ordering::SeqCst) {
                std::process::exit(INTERRUPTED);
            }
            tracing::warn!("stopping: work in progress ends, then the best so far follows; Ctrl-C again ends at once");
        };
        // Without a handler, Ctrl-C ends the program as usual.
        if let Err(why) = ctrlc::set_handler(handler) {
            tracing::debug!("no handler for Ctrl-C: {why}");
        }
        let end = seconds.map(|seconds| (Instant::now() + Duration::from_secs_f64(seconds), seconds));
        Ok(Self { end })
    }

    /// True if the search must stop now.
    pub fn is_reached(&self) -> bool {
        ASKED.load(Ordering::SeqCst) || self.end.is_some_and(|(end, _)| Instant::now() >= end)
    }

    /// True if a signal has stopped the search.
    pub fn was_interrupted() -> bool {
        ASKED.load(Ordering::SeqCst)
    }

    /// The cause of the stop, if the search was stopped.
    pub fn stopped_by(&self) -> Option<String> {
        if ASKED.load(Ordering::SeqCst) {
            return Some(BY_SIGNAL.to_owned());
        }
        self.end
            .filter(|(end, _)| Instant::now() >= *end)
            .map(|(_, seconds)| format!("stopped by --time-limit {seconds}"))
    }
}

/// The number of stored designs of a sweep. Ctrl-C and SIGTERM end the program at once and print it; the store loses
/// nothing.
pub struct KeptCounter(Arc<Mutex<u64>>);

impl KeptCounter {
    /// Starts with `kept` stored designs. `words` describes a number.
    pub fn new(kept: u64, words: impl Fn(u64) -> String + Send + 'static) -> Self {
        let count = Arc::new(Mutex::new(kept));
        let known = Arc::clone(&count);
        let handler = move || {
            // A commit in progress ends first, so the line and the store agree; none starts before the exit.
            let kept = known.lock().unwrap_or_else(PoisonError::into_inner);
            // Standard error may be closed.
            let _ = writeln!(std::io::stderr(), "{BY_SIGNAL}: {}", words(*kept));
            std::process::exit(INTERRUPTED);
        };
        if let Err(why) = ctrlc::set_handler(handler) {
            tracing::debug!("no handler for Ctrl-C: {why}");
        }
        Self(count)
    }

    /// Stores designs with `store`, which returns the number of all stored designs.
    ///
    /// # Errors
    /// Those of `store`; the number stays as it was.
    pub fn count_stored<E>(&self, store: impl FnOnce() -> Result<u64, E>) -> Result<u64, E> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *kept = store()?;
        Ok(*kept)
    }
}
