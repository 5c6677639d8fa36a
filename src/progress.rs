//! A sign of life on standard error while something takes long.

use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// What is over sooner needs none.
const QUIET: Duration = Duration::from_secs(2);

/// Between two pictures.
const TICK: Duration = Duration::from_millis(200);

/// Does work, which is called `what`; on a terminal, from the third second on, with the time that it has taken on standard error, which is removed at the end.
pub fn shown<T>(what: &str, work: impl FnOnce() -> T) -> T {
    if !std::io::stderr().is_terminal() {
        return work();
    }
    let (start, (done, waiting)) = (Instant::now(), mpsc::channel::<()>());
    thread::scope(|scope| {
        scope.spawn(move || {
            // The sender goes with the work.
            if waiting.recv_timeout(QUIET) != Err(mpsc::RecvTimeoutError::Timeout) {
                return;
            }
            let spinner = ProgressBar::new_spinner().with_elapsed(start.elapsed());
            if let Ok(style) = ProgressStyle::with_template(&format!("{{spinner}} {what} [{{elapsed_precise}}]")) {
                spinner.set_style(style);
            }
            spinner.enable_steady_tick(TICK);
            let _ = waiting.recv();
            spinner.finish_and_clear();
        });
        let result = work();
        drop(done);
        result
    })
}
