//! Stops a search or a sweep before its end: after a time limit, or on Ctrl-C or SIGTERM.

use crate::call::{Call, CallControl};
use crate::failure::{self, Failure};
use std::io::Write;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The cause of a stop of the program itself.
const BY_SIGNAL: &str = "stopped by Ctrl-C or SIGTERM";
/// The cause of a stop by a program, an agent or a Python session that called this one.
const BY_CALLER: &str = "stopped by the caller";
/// Exit code of a program that Ctrl-C has ended: 128 plus the number of the signal.
const INTERRUPTED: i32 = 130;
/// Largest limit that a clock can represent.
const LONGEST: f64 = 1e9;

/// Decides when a search must stop: at a time limit, or when the call is asked to.
pub struct StopLimit {
    control: CallControl,
    /// The cause if the call is asked to stop.
    asked_by: &'static str,
    end: Option<(Instant, f64)>,
}

impl StopLimit {
    /// Starts the time limit, if there is one. In the program, it also handles Ctrl-C and SIGTERM: the first signal
    /// stops the search, the second ends the program. Fails if the limit is not positive or above 1e9 seconds.
    pub fn new(call: &Call, seconds: Option<f64>) -> Result<Self, Failure> {
        if let Some(seconds) = seconds.filter(|seconds| !(*seconds > 0.0 && *seconds <= LONGEST)) {
            let limit = format!("must be above 0 and at most {LONGEST} seconds; give a limit, or leave it out");
            return Err(failure::option_failure("--time-limit", seconds, limit, ""));
        }
        let control = call.control.clone();
        handle_signals(call, move || {
            if control.stop_again() {
                std::process::exit(INTERRUPTED);
            }
            tracing::warn!("stopping: work in progress ends, then the best so far follows; Ctrl-C again ends at once");
        });
        let end = seconds.map(|seconds| (Instant::now() + Duration::from_secs_f64(seconds), seconds));
        let asked_by = if call.is_of_program() { BY_SIGNAL } else { BY_CALLER };
        Ok(Self { control: call.control.clone(), asked_by, end })
    }

    /// True if the search must stop now.
    pub fn is_reached(&self) -> bool {
        self.control.is_stopped() || self.end.is_some_and(|(end, _)| Instant::now() >= end)
    }

    /// Returns the cause of the stop; `None` if the search was not stopped.
    pub fn stopped_by(&self) -> Option<String> {
        if self.control.is_stopped() {
            return Some(self.asked_by.to_owned());
        }
        self.end
            .filter(|(end, _)| Instant::now() >= *end)
            .map(|(_, seconds)| format!("stopped by --time-limit {seconds}"))
    }
}

/// Handles Ctrl-C and SIGTERM in the program itself. A program that calls this one handles its own signals.
fn handle_signals(call: &Call, handler: impl FnMut() + Send + 'static) {
    if !call.is_of_program() {
        return;
    }
    // Without a handler, Ctrl-C ends the program as usual.
    if let Err(why) = ctrlc::set_handler(handler) {
        tracing::debug!("no handler for Ctrl-C: {why}");
    }
}

/// Counts the stored designs of a sweep. In the program itself, Ctrl-C and SIGTERM print the number and end the
/// program, after a commit in progress. A call from another program ends with an incomplete answer that states the
/// number. The store loses nothing.
pub struct KeptCounter {
    kept: Arc<Mutex<u64>>,
    control: CallControl,
    words: Arc<dyn Fn(u64) -> String + Send + Sync>,
}

impl KeptCounter {
    /// Starts the count with `kept` stored designs. `words` turns the number into a message.
    pub fn new(call: &Call, kept: u64, words: impl Fn(u64) -> String + Send + Sync + 'static) -> Self {
        let count = Self { kept: Arc::new(Mutex::new(kept)), control: call.control.clone(), words: Arc::new(words) };
        let (known, words) = (Arc::clone(&count.kept), Arc::clone(&count.words));
        handle_signals(call, move || {
            // A commit in progress ends first, so the line and the store agree; none starts before the exit.
            let kept = known.lock().unwrap_or_else(PoisonError::into_inner);
            // The error is ignored, because standard error may be closed.
            let _ = writeln!(std::io::stderr(), "{BY_SIGNAL}: {}", words(*kept));
            std::process::exit(INTERRUPTED);
        });
        count
    }

    /// Stores designs with `store`, which returns the number of all stored designs.
    ///
    /// # Errors
    /// Those of `store`, after which the number is unchanged. An incomplete answer if the call was asked to stop; the
    /// designs are stored and counted all the same.
    pub fn count_stored(&self, store: impl FnOnce() -> Result<u64, Failure>) -> Result<u64, Failure> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        *kept = store()?;
        if self.control.is_stopped() {
            return Err(Failure::Incomplete(anyhow::anyhow!("{BY_CALLER}: {}", (self.words)(*kept))));
        }
        Ok(*kept)
    }
}
