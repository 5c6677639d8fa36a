//! Failures and their exit codes: 2 for input that the user must mend, 3 for an answer that lacks something, 1 for anything else.

use results::files::Unwritable;
use std::io;
use std::process::ExitCode;

/// Why a verb gave no result.
#[derive(Debug)]
pub enum Failure {
    /// The user's input needs mending: the message names the thing, the value, the limit and the cure.
    Input(anyhow::Error),
    /// An answer was given, but not all of it can be relied on: the message says what it lacks.
    Incomplete(anyhow::Error),
    /// Anything else: a full disk, a defect of ours.
    Other(anyhow::Error),
    /// The reader of our output went away (`coplace ... | head`): no message, nothing to mend.
    ClosedPipe,
}

impl Failure {
    /// The failure with the place it came from before its message.
    pub fn with_context(self, place: String) -> Self {
        match self {
            Self::Input(e) => Self::Input(e.context(place)),
            Self::Incomplete(e) => Self::Incomplete(e.context(place)),
            Self::Other(e) => Self::Other(e.context(place)),
            Self::ClosedPipe => Self::ClosedPipe,
        }
    }

    /// Its message.
    pub fn message(&self) -> String {
        match self {
            Self::Input(e) | Self::Incomplete(e) | Self::Other(e) => format!("{e:#}"),
            Self::ClosedPipe => "the reader of the answer went away".to_owned(),
        }
    }

    /// Prints the message on standard error and says which exit code it is.
    pub fn report_and_exit(&self) -> ExitCode {
        let (code, error) = match self {
            Self::Input(e) => (2, e),
            Self::Incomplete(e) => (3, e),
            Self::Other(e) => (1, e),
            Self::ClosedPipe => return ExitCode::SUCCESS,
        };
        write_to_stderr(&format!("error: {error:#}"));
        ExitCode::from(code)
    }
}

/// Standard error may be closed too; then there is nobody to tell.
fn write_to_stderr(message: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr(), "{message}");
}

/// Marks an error as the user's to mend.
pub trait OrInput<T> {
    /// The value, or exit code 2.
    fn or_input(self) -> Result<T, Failure>;
}

impl<T, E: Into<anyhow::Error>> OrInput<T> for Result<T, E> {
    fn or_input(self) -> Result<T, Failure> {
        self.map_err(|e| Failure::Input(e.into()))
    }
}

/// Marks an error as ours or the machine's.
pub trait OrOther<T> {
    /// The value, or exit code 1.
    fn or_other(self) -> Result<T, Failure>;
}

impl<T, E: Into<anyhow::Error>> OrOther<T> for Result<T, E> {
    fn or_other(self) -> Result<T, Failure> {
        self.map_err(|e| Failure::Other(e.into()))
    }
}

/// Marks an error of writing a file: the path is the user's to mend (2), a full disk or a broken one is not (1).
pub trait OrUnwritable<T> {
    /// The value, or exit code 2 or 1.
    fn or_unwritable(self) -> Result<T, Failure>;
}

impl<T, E: Unwritable + Into<anyhow::Error>> OrUnwritable<T> for Result<T, E> {
    fn or_unwritable(self) -> Result<T, Failure> {
        self.map_err(|error| match error.write_error().map(|error| is_machine_fault(&error.why)) {
            Some(false) => Failure::Input(error.into()),
            Some(true) | None => Failure::Other(error.into()),
        })
    }
}

/// A failure to write, with its message.
pub fn write_failure(why: &io::Error, message: impl std::fmt::Display) -> Failure {
    let error = anyhow::anyhow!("{message}");
    if is_machine_fault(why) { Failure::Other(error) } else { Failure::Input(error) }
}

/// EIO of every Unix.
const BROKEN_DISK: i32 = 5;

/// Whether no other path would help against an error of the system: the disk is full or broken, or the machine is at its limits.
fn is_machine_fault(why: &io::Error) -> bool {
    use io::ErrorKind::{FileTooLarge, Interrupted, Other, OutOfMemory, QuotaExceeded, StorageFull, TimedOut, WriteZero};
    let kinds = [FileTooLarge, Interrupted, OutOfMemory, Other, QuotaExceeded, StorageFull, TimedOut, WriteZero];
    kinds.contains(&why.kind()) || why.raw_os_error() == Some(BROKEN_DISK)
}

/// A user-mendable failure from a message.
pub fn input_failure(message: impl std::fmt::Display) -> Failure {
    Failure::Input(anyhow::anyhow!("{message}"))
}
