//! When a search over designs or plans, or a sweep, stops before its end: a limit of time, or Ctrl-C.

use crate::failure::{self, Failure};
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What a shell says of a program that Ctrl-C has ended: 128 and the signal's number.
const INTERRUPTED: i32 = 130;
/// Longest limit: what a clock can count.
const LONGEST: f64 = 1e9;

static ASKED: AtomicBool = AtomicBool::new(false);

/// What stops a search.
pub struct StopLimit {
    end: Option<(Instant, f64)>,
}

impl StopLimit {
    /// From now on: so many seconds, where they are limited, and Ctrl-C, of which the second ends the program.
    pub fn new(seconds: Option<f64>) -> Result<Self, Failure> {
        if let Some(seconds) = seconds.filter(|seconds| !(*seconds > 0.0 && *seconds <= LONGEST)) {
            let limit = format!("must be above 0 and at most {LONGEST} seconds; give a limit, or leave it out");
            return Err(failure::input_failure(format!("--time-limit {seconds}: {limit}")));
        }
        let handler = || {
            if ASKED.swap(true, Ordering::SeqCst) {
                std::process::exit(INTERRUPTED);
            }
            tracing::warn!("stopping: what is under way ends, the best so far follows; Ctrl-C again ends at once");
        };
        // Without a handler Ctrl-C ends the program, as it does everywhere.
        if let Err(why) = ctrlc::set_handler(handler) {
            tracing::debug!("no handler for Ctrl-C: {why}");
        }
        let end = seconds.map(|seconds| (Instant::now() + Duration::from_secs_f64(seconds), seconds));
        Ok(Self { end })
    }

    /// Whether to stop now.
    pub fn is_reached(&self) -> bool {
        ASKED.load(Ordering::SeqCst) || self.end.is_some_and(|(end, _)| Instant::now() >= end)
    }

    /// Whether Ctrl-C was pressed.
    pub fn was_interrupted() -> bool {
        ASKED.load(Ordering::SeqCst)
    }

    /// What has stopped the search, where something has.
    pub fn stopped_by(&self) -> Option<String> {
        if ASKED.load(Ordering::SeqCst) {
            return Some("stopped by Ctrl-C".to_owned());
        }
        self.end.filter(|(end, _)| Instant::now() >= *end).map(|(_, seconds)| format!("stopped by --time-limit {seconds}"))
    }
}

/// What a sweep has kept: Ctrl-C ends the program at once and says so, for a store loses nothing that it keeps.
pub struct KeptCounter(Arc<AtomicU64>);

impl KeptCounter {
    /// From now on; `words` says what so many are.
    pub fn new(kept: u64, words: impl Fn(u64) -> String + Send + 'static) -> Self {
        let count = Arc::new(AtomicU64::new(kept));
        let known = Arc::clone(&count);
        let handler = move || {
            // Standard error may be closed; there is nobody to tell then.
            let _ = writeln!(std::io::stderr(), "stopped by Ctrl-C: {}", words(known.load(Ordering::SeqCst)));
            std::process::exit(INTERRUPTED);
        };
        if let Err(why) = ctrlc::set_handler(handler) {
            tracing::debug!("no handler for Ctrl-C: {why}");
        }
        Self(count)
    }

    /// So many are kept now.
    pub fn set_kept(&self, kept: u64) {
        self.0.store(kept, Ordering::SeqCst);
    }
}
