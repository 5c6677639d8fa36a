//! Progress on standard error during long work: a temporary line on a terminal, otherwise an occasional log line.

use crate::call::{Call, CallControl};
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Work shorter than this shows no progress. A log gets the first line of a phase after this time, and a further line
/// each time the phase has taken twice as long.
const QUIET: Duration = Duration::from_secs(2);

/// Time between two updates.
const TICK: Duration = Duration::from_millis(200);

/// Target of the log lines about progress. `COPLACE_LOG=warn` hides them.
pub const TARGET: &str = "coplace::progress";

/// Runs `work` and shows its progress after the first two seconds. `what` is the name of the work.
pub fn run_with_progress<T>(call: &Call, what: &'static str, work: impl FnOnce() -> T) -> T {
    let progress = ProgressDisplay::begin_phase(call, what);
    let result = work();
    drop(progress);
    result
}

/// A display of work in phases. Dropping it ends the display.
pub struct ProgressDisplay {
    state: Arc<Mutex<DisplayState>>,
    /// Dropping the sender ends the display's thread.
    end: Option<mpsc::Sender<()>>,
    teller: Option<JoinHandle<()>>,
    /// The control through which another program reads the progress; `None` in the program itself, which displays it.
    control: Option<CallControl>,
}

/// The state of the display.
struct DisplayState {
    phase: &'static str,
    since: Instant,
    /// Progress of the phase, in words; empty if unknown.
    said: String,
    /// Time left, if known.
    left: Option<TimeLeft>,
    /// Time since the start of the phase at which the next log line is due.
    next: Duration,
}

/// An estimate of the time left.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeLeft {
    /// Lower estimate.
    least: Duration,
    /// Upper estimate; `None` if it is about the same as the lower one.
    most: Option<Duration>,
    /// The words after the time: `left`, `to the proof`.
    to: &'static str,
}

impl TimeLeft {
    /// Makes an estimate with one time for both ends.
    pub fn about_seconds(time: Duration, to: &'static str) -> Self {
        Self { least: time, most: None, to }
    }

    fn left_text(self) -> String {
        let said = |time: Duration| duration_text(time.max(Duration::from_secs(1)));
        let (least, most) = (said(self.least), self.most.map(said).filter(|most| *most != said(self.least)));
        match most {
            Some(most) => format!("{least} to {most} {}", self.to),
            None => format!("about {least} {}", self.to),
        }
    }
}

impl DisplayState {
    fn new(phase: &'static str) -> Self {
        Self { phase, since: Instant::now(), said: String::new(), left: None, next: QUIET }
    }

    /// Returns the state in one line. The times come first, because a long line loses its end.
    fn status_line(&self) -> String {
        let said = if self.said.is_empty() { String::new() } else { format!(": {}", self.said) };
        let left = self.left.map_or_else(String::new, |left| format!(", {}", left.left_text()));
        format!("{} [{}{left}]{said}", self.phase, duration_text(self.since.elapsed()))
    }
}

/// Formats a time with its unit: `12 s`, `3 min`, `2.5 h`.
fn duration_text(time: Duration) -> String {
    match time.as_secs() {
        seconds @ ..120 => format!("{seconds} s"),
        seconds @ ..7200 => format!("{} min", seconds / 60),
        seconds => format!("{:.1} h", seconds as f64 / 3600.0),
    }
}

impl ProgressDisplay {
    /// Starts the display with a phase.
    pub fn begin_phase(call: &Call, phase: &'static str) -> Self {
        let state = Arc::new(Mutex::new(DisplayState::new(phase)));
        if !call.is_of_program() {
            call.control.set_progress(phase.to_owned());
            return Self { state, end: None, teller: None, control: Some(call.control.clone()) };
        }
        let (end, waiting) = mpsc::channel();
        let watched = Arc::clone(&state);
        let teller = thread::spawn(move || {
            if std::io::stderr().is_terminal() {
                draw_on_terminal(&watched, &waiting)
            } else {
                write_to_log(&watched, &waiting)
            }
        });
        Self { state, end: Some(end), teller: Some(teller), control: None }
    }

    fn lock_state(&self) -> MutexGuard<'_, DisplayState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell_caller(&self, state: &DisplayState) {
        if let Some(control) = &self.control {
            control.set_progress(state.status_line());
        }
    }

    /// Starts another phase.
    pub fn next_phase(&self, phase: &'static str) {
        let mut state = self.lock_state();
        if state.phase != phase {
            *state = DisplayState::new(phase);
        }
        self.tell_caller(&state);
    }

    /// Sets the progress of the phase in words, and the time left if it is known.
    pub fn say_progress(&self, said: String, left: Option<TimeLeft>) {
        let mut state = self.lock_state();
        (state.said, state.left) = (said, left);
        self.tell_caller(&state);
    }
}

impl Drop for ProgressDisplay {
    fn drop(&mut self) {
        self.end = None;
        if let Some(control) = &self.control {
            control.set_progress(String::new());
        }
        if let Some(teller) = self.teller.take() {
            // A panic of the thread has no consequence here.
            let _ = teller.join();
        }
    }
}

/// Waits for a tick. Returns true if the work continues.
fn wait_for_tick(waiting: &mpsc::Receiver<()>) -> bool {
    waiting.recv_timeout(TICK) == Err(mpsc::RecvTimeoutError::Timeout)
}

fn draw_on_terminal(state: &Mutex<DisplayState>, waiting: &mpsc::Receiver<()>) {
    let start = Instant::now();
    let mut drawn: Option<ProgressBar> = None;
    while wait_for_tick(waiting) {
        if start.elapsed() < QUIET {
            continue;
        }
        let spinner = drawn.get_or_insert_with(|| {
            let spinner = ProgressBar::new_spinner();
            match ProgressStyle::with_template("{spinner} {wide_msg}") {
                Ok(style) => spinner.with_style(style),
                Err(_) => spinner,
            }
        });
        spinner.set_message(state.lock().unwrap_or_else(PoisonError::into_inner).status_line());
        spinner.tick();
    }
    if let Some(spinner) = drawn {
        spinner.finish_and_clear();
    }
}

fn write_to_log(state: &Mutex<DisplayState>, waiting: &mpsc::Receiver<()>) {
    while wait_for_tick(waiting) {
        let mut state = state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.since.elapsed() >= state.next {
            tracing::info!(target: TARGET, "{}", state.status_line());
            state.next *= 2;
        }
    }
}

/// Estimates when a falling value, such as the gap of a search, reaches its end.
pub struct RemainingTime {
    start: Instant,
    /// Pairs of the elapsed time in seconds and the value.
    seen: Vec<(f64, f64)>,
    end: f64,
}

/// An estimate is reported only if the estimates from the last half and from the last quarter of the elapsed time
/// differ by at most this factor.
const ALIKE: f64 = 2.0;

/// A value that halves repeatedly counts as zero below this limit. The last chips are then decided one by one.
const CLOSED: f64 = 1e-3;

impl RemainingTime {
    /// Starts to estimate when the value reaches `end`.
    pub fn towards(end: f64) -> Self {
        Self { start: Instant::now(), seen: Vec::new(), end }
    }

    /// Adds the current value. Returns the longer estimate of the time to the end; `None` if it is not known yet.
    pub fn left_at_value(&mut self, value: f64) -> Option<Duration> {
        self.left_at_pace(self.start.elapsed().as_secs_f64(), value).map(|(_, most)| most)
    }

    /// As [`Self::left_at_value`], for a value that falls ever more slowly, such as the gap of a search. The lower
    /// estimate assumes the current pace; the upper one assumes that every halving takes as long as the last. `None`
    /// before the first halving.
    pub fn left_at_slowing_value(&mut self, value: f64, to: &'static str) -> Option<TimeLeft> {
        self.slowing_left(self.start.elapsed().as_secs_f64(), value, to)
    }

    fn slowing_left(&mut self, now: f64, value: f64, to: &'static str) -> Option<TimeLeft> {
        let (least, pace) = self.left_at_pace(now, value)?;
        let open = value - self.end;
        let (then, _) = self.seen.iter().rfind(|(_, before)| before - self.end >= 2.0 * open)?;
        let halvings = (open / CLOSED).log2().max(1.0);
        let most = Duration::try_from_secs_f64((now - then) * halvings).ok()?;
        Some(TimeLeft { least, most: Some(most.max(pace)), to })
    }

    /// Adds the value, and estimates the time to the end from the last half and from the last quarter of the elapsed
    /// time. Returns the shorter estimate first; `None` in the first two seconds, if the value does not fall, or if the
    /// two estimates differ by more than [`ALIKE`].
    fn left_at_pace(&mut self, now: f64, value: f64) -> Option<(Duration, Duration)> {
        self.seen.push((now, value));
        let over = |part: f64| {
            let at = self.seen.partition_point(|(then, _)| *then < now * (1.0 - part));
            let (then, before) = *self.seen.get(at)?;
            let rate = (before - value) / (now - then);
            (rate > 0.0 && rate.is_finite()).then(|| (value - self.end) / rate)
        };
        let (half, quarter) = (over(0.5)?, over(0.25)?);
        let (least, most) = (half.min(quarter), half.max(quarter));
        let known = now >= QUIET.as_secs_f64() && least > 0.0 && most <= ALIKE * least;
        let seconds = |seconds: f64| Duration::try_from_secs_f64(seconds).ok();
        known.then(|| seconds(least).zip(seconds(most)))?
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Returns the last estimate of the seconds left, if `value` is observed every tenth of a second.
    fn left(value: impl Fn(f64) -> f64, seconds: u32) -> Option<f64> {
        let mut pace = RemainingTime::towards(0.01);
        let mut said = None;
        for tenth in 1..=10 * seconds {
            let now = f64::from(tenth) / 10.0;
            said = pace.left_at_pace(now, value(now));
        }
        said.map(|(_, left)| left.as_secs_f64())
    }

    #[test]
    fn a_steady_pace_says_when_it_ends() {
        let said = left(|now| 1.01 - now / 100.0, 40);
        assert!(said.is_some_and(|left| (left - 60.0).abs() < 0.5), "{said:?}");
    }

    #[test]
    fn nothing_is_said_where_nothing_is_known() {
        assert_eq!(left(|_| 0.5, 30), None, "it stands still");
        assert_eq!(left(|now| 1.0 - now / 10.0, 1), None, "it has just begun");
        assert_eq!(left(|now| 1.0 / (1.0 + now * now * now), 30), None, "it gets slower and slower");
        assert_eq!(left(|now| if now < 20.0 { 1.0 } else { 0.01 }, 30), None, "it is over");
    }

    #[test]
    fn what_falls_ever_more_slowly_takes_longer_than_at_its_pace() {
        let left = |value: &dyn Fn(f64) -> f64, seconds: u32| {
            let mut pace = RemainingTime::towards(0.0);
            (1..=10 * seconds)
                .map(f64::from)
                .fold(None, |_, tenth| pace.slowing_left(tenth / 10.0, value(tenth / 10.0), "left"))
        };
        // The value halves every 10 s, so it is an eighth at 30 s. It takes seven more halvings (70 s) to reach a
        // thousandth. At the current pace it would reach zero in about 10 s.
        let said = left(&|now| 0.5_f64.powf(now / 10.0), 30).unwrap();
        let most = said.most.unwrap().as_secs_f64();
        assert!((most - 69.7).abs() < 1.5 && said.least.as_secs_f64() < 25.0, "{said:?}");
        // Gaps of a search whose gap was still 0.09 about 150 s later. The current pace alone estimated 22 s to the
        // end.
        let gaps = [(0.0, 0.72), (15.0, 0.66), (30.0, 0.53), (70.0, 0.42), (90.0, 0.23), (110.0, 0.18), (115.0, 0.136)];
        let gap = |now: f64| gaps.iter().rfind(|(from, _)| *from <= now).map_or(1.0, |(_, gap)| *gap);
        let said = left(&gap, 116);
        assert!(
            said.is_some_and(|left| left.least.as_secs() < 60 && left.most.is_some_and(|most| most.as_secs() > 150)),
            "{said:?}"
        );
        assert_eq!(left(&|now| 1.0 - now / 100.0, 40), None, "not yet halved");
    }

    #[test]
    fn a_line_names_the_phase_and_what_is_known() {
        let mut state = DisplayState::new("searching");
        assert_eq!(state.status_line(), "searching [0 s]");
        (state.said, state.left) =
            ("3 evaluated".to_owned(), Some(TimeLeft::about_seconds(Duration::from_secs(200), "left")));
        assert_eq!(state.status_line(), "searching [0 s, about 3 min left]: 3 evaluated");
        state.left = Some(TimeLeft::about_seconds(Duration::ZERO, "to the proof"));
        assert_eq!(state.status_line(), "searching [0 s, about 1 s to the proof]: 3 evaluated");
        state.left =
            Some(TimeLeft { least: Duration::from_secs(22), most: Some(Duration::from_secs(241)), to: "to the proof" });
        assert_eq!(state.status_line(), "searching [0 s, 22 s to 4 min to the proof]: 3 evaluated");
        assert_eq!([7_199, 7_200].map(|seconds| duration_text(Duration::from_secs(seconds))), ["119 min", "2.0 h"]);
    }
}
