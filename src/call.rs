//! One call of the command: where its answer goes, what stops it, and the texts that stand in for files.

use sim::files::carried::Files;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// The controls of a running call, for the program that calls the command as a library. Clones share their state.
#[derive(Debug, Clone, Default)]
pub struct CallControl {
    stopped: Arc<AtomicBool>,
    progress: Arc<Mutex<String>>,
}

impl CallControl {
    /// Asks the call to stop. A verb that can stop early does so, and answers with the best so far.
    pub fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
    }

    /// True if the call was asked to stop.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// Returns the progress of the call in one line; empty while there is none.
    #[must_use]
    pub fn progress_line(&self) -> String {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Asks the call to stop, and returns whether it was asked before.
    pub(crate) fn stop_again(&self) -> bool {
        self.stopped.swap(true, Ordering::SeqCst)
    }

    pub(crate) fn set_progress(&self, line: String) {
        *self.progress.lock().unwrap_or_else(PoisonError::into_inner) = line;
    }
}

/// The output of a call. `json` and `text` are exactly what the program writes to standard output.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CallOutput {
    /// The answer under `--format json`; empty where the verb has text alone.
    pub json: String,
    /// The answer under `--format text`.
    pub text: String,
    /// The run directory that was written; `None` if none was.
    pub directory: Option<PathBuf>,
    /// The warnings, one line each.
    pub warnings: Vec<String>,
}

/// The warnings of a call, line by line.
#[derive(Debug, Clone, Default)]
pub(crate) struct WarningLog(Arc<Mutex<Vec<u8>>>);

impl WarningLog {
    /// Returns a subscriber of `tracing` that writes warnings into this log.
    pub fn subscriber(&self) -> impl tracing::Subscriber + Send + Sync + 'static {
        let log = self.clone();
        tracing_subscriber::fmt()
            .with_max_level(tracing::Level::WARN)
            .with_writer(move || log.clone())
            .with_ansi(false)
            .with_level(false)
            .with_target(false)
            .without_time()
            .finish()
    }

    /// Returns the warnings, one per line.
    pub fn into_lines(self) -> Vec<String> {
        let bytes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&bytes).lines().map(str::to_owned).collect()
    }
}

impl Write for WarningLog {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// A call of one verb.
pub(crate) struct Call {
    /// Texts that stand in for files of the same names.
    pub files: Files,
    pub control: CallControl,
    /// `None` in the program itself, which prints, shows progress and handles signals.
    kept: Option<Mutex<CallOutput>>,
}

impl Call {
    /// Makes a call of the program; `files` are texts that stand in for files of the same names.
    pub fn of_program(files: Files) -> Self {
        Self { files, control: CallControl::default(), kept: None }
    }

    /// Makes a call from another program. Its output is kept.
    pub fn of_library(files: Files, control: CallControl) -> Self {
        Self { files, control, kept: Some(Mutex::default()) }
    }

    /// True if the program itself runs the call; false for a call from another program.
    pub fn is_of_program(&self) -> bool {
        self.kept.is_none()
    }

    /// Lets `add` add to the kept output. Returns false in the program itself, which keeps no output.
    pub fn keep(&self, add: impl FnOnce(&mut CallOutput)) -> bool {
        let Some(kept) = &self.kept else { return false };
        add(&mut kept.lock().unwrap_or_else(PoisonError::into_inner));
        true
    }

    /// Notes the run directory that is written.
    pub fn note_directory(&self, directory: &Path) {
        self.keep(|kept| kept.directory = Some(directory.to_owned()));
    }

    /// Returns the kept output; empty in the program itself.
    pub fn into_output(self) -> CallOutput {
        self.kept.map_or_else(CallOutput::default, |kept| kept.into_inner().unwrap_or_else(PoisonError::into_inner))
    }
}
