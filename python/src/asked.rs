//! Calls of verbs: one, or many side by side. Both release Python's lock and notice Ctrl-C.

use crate::arguments::words_of_call;
use crate::fault::Fault;
use coplace::{CallControl, CallOutput, Files, answer_call};
use pyo3::exceptions::PyKeyboardInterrupt;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use rayon::{ThreadPool, ThreadPoolBuilder};
use std::collections::BTreeMap;
use std::panic::{self, AssertUnwindSafe};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Time between two checks for Ctrl-C.
const TICK: Duration = Duration::from_millis(50);
/// A call that was stopped gets this long to end. Then its thread is left to itself.
const GRACE: Duration = Duration::from_secs(20);

/// Bytes of a thread's stack, as Linux gives a program's main thread.
const STACK: usize = 8 << 20;

/// The output of a call, with a fault if it failed.
#[pyclass(frozen, get_all)]
#[derive(Debug, Clone)]
pub struct Output {
    /// The answer as JSON; empty if the verb has only text.
    json: String,
    /// The answer as text.
    text: String,
    /// Warnings.
    warnings: Vec<String>,
    /// The run directory that was written.
    directory: Option<String>,
    /// The fault.
    fault: Option<Fault>,
}

impl From<Fault> for Output {
    fn from(fault: Fault) -> Self {
        let (json, text) = (String::new(), String::new());
        Self { json, text, warnings: Vec::new(), directory: None, fault: Some(fault) }
    }
}

/// A question that is ready to be asked without Python, or the fault of its arguments.
type Ready = Result<(Vec<String>, Files), Fault>;

fn read_question(
    verb: &str,
    given: &Bound<'_, PyTuple>,
    named: Option<&Bound<'_, PyDict>>,
    texts: BTreeMap<String, String>,
) -> PyResult<Ready> {
    let mut files = Files::default();
    texts.into_iter().for_each(|(name, text)| files.insert(Path::new(&name), text));
    Ok(words_of_call(verb, given, named)?.map(|words| (words, files)))
}

fn answer(ready: Ready, control: CallControl) -> Output {
    let (words, files) = match ready {
        Ok(ready) => ready,
        Err(fault) => return fault.into(),
    };
    // A panic in one call must not lose the answers of the others.
    let called = panic::catch_unwind(AssertUnwindSafe(|| answer_call(&words, files, control)));
    let Ok((output, result)) = called else { return lost_call() };
    let CallOutput { json, text, directory, warnings } = output;
    let directory = directory.map(|path| path.display().to_string());
    Output { json, text, warnings, directory, fault: result.err().map(|fault| Fault::of_call(*fault)) }
}

/// Starts a thread with the stack of a program's main thread.
fn spawn(work: impl FnOnce() + Send + 'static) -> PyResult<()> {
    thread::Builder::new().stack_size(STACK).spawn(work).map(drop).map_err(Into::into)
}

/// Makes a pool of threads. `None` if the system gives no threads; the caller's thread then does the work.
fn pool_of(threads: usize) -> Option<ThreadPool> {
    ThreadPoolBuilder::new().num_threads(threads).stack_size(STACK).build().ok()
}

/// Waits for a result without Python's lock, and calls `told` after every `TICK`. `None` if the sender is gone. After
/// Ctrl-C or an error of `told`, asks the work to stop, waits for at most `GRACE`, and returns the error.
fn wait<T: Send>(
    py: Python<'_>,
    results: Receiver<T>,
    control: &CallControl,
    mut told: impl FnMut() -> PyResult<()>,
) -> PyResult<Option<T>> {
    let mut results = results;
    let mut next = || {
        py.detach(|| {
            // A receiver may be sent to another thread, but not shared. So the closure takes an exclusive reference.
            let results = &mut results;
            results.recv_timeout(TICK)
        })
    };
    loop {
        match next() {
            Ok(result) => return Ok(Some(result)),
            Err(RecvTimeoutError::Disconnected) => return Ok(None),
            Err(RecvTimeoutError::Timeout) => {}
        }
        if let Err(interrupt) = py.check_signals().and_then(|()| told()) {
            control.stop();
            let end = Instant::now() + GRACE;
            // A second Ctrl-C ends the wait.
            while Instant::now() < end && py.check_signals().is_ok() {
                match next() {
                    Ok(result) if interrupt.is_instance_of::<PyKeyboardInterrupt>(py) => {
                        drop(result);
                        break;
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                    _ => break,
                }
            }
            return Err(interrupt);
        }
    }
}

/// Asks a verb. `texts` stand in for files of the same names. While there is progress, `told` gets a line of it up to
/// 20 times a second.
#[pyfunction]
#[pyo3(signature = (verb, given, named, texts, told=None))]
pub fn ask(
    py: Python<'_>,
    verb: &str,
    given: &Bound<'_, PyTuple>,
    named: &Bound<'_, PyDict>,
    texts: BTreeMap<String, String>,
    told: Option<Py<PyAny>>,
) -> PyResult<Output> {
    let ready = read_question(verb, given, Some(named), texts)?;
    let control = CallControl::default();
    let (sender, results) = mpsc::channel();
    let of_call = control.clone();
    spawn(move || {
        // Sending fails if Python was interrupted and no longer waits.
        let _ = sender.send(answer(ready, of_call));
    })?;
    let tell = || match (&told, control.progress_line()) {
        (Some(told), line) if !line.is_empty() => told.call1(py, (line,)).map(drop),
        _ => Ok(()),
    };
    let output = wait(py, results, &control, tell)?;
    Ok(output.unwrap_or_else(lost_call))
}

/// Returns the output of a call whose thread ended without an answer, which is a defect of the program.
fn lost_call() -> Output {
    Fault::of_program("the call ended without an answer, which is a defect of coplace").into()
}

/// The work of a batch: questions in order, and answers as they come.
struct Batch {
    questions: Vec<Mutex<Option<Ready>>>,
    answers: Vec<Mutex<Option<Output>>>,
    next: AtomicUsize,
    done: AtomicUsize,
    control: CallControl,
}

impl Batch {
    /// Answers questions until none is left.
    fn work(&self, threads: usize) {
        // Each worker has its own threads, so that its questions never wait for the work of other workers.
        let pool = pool_of(threads);
        loop {
            let at = self.next.fetch_add(1, Ordering::SeqCst);
            let Some(question) = self.questions.get(at) else { return };
            if self.control.is_stopped() {
                return;
            }
            let Some(ready) = question.lock().unwrap_or_else(PoisonError::into_inner).take() else { continue };
            let control = self.control.clone();
            let output = match &pool {
                Some(pool) => pool.install(|| answer(ready, control)),
                None => answer(ready, control),
            };
            *self.answers[at].lock().unwrap_or_else(PoisonError::into_inner) = Some(output);
            self.done.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// A question as Python gives it: verb, arguments by position and by name, texts in the place of files.
type Asked<'py> = (String, Bound<'py, PyTuple>, Bound<'py, PyDict>, BTreeMap<String, String>);

/// Asks many verbs side by side. Returns the outputs in the order of the questions, and true if Ctrl-C came. After
/// Ctrl-C, the outputs of unanswered questions are `None`. `told` gets the number of answers up to 20 times a second.
#[pyfunction]
#[pyo3(signature = (questions, told=None, threads=None))]
pub fn ask_all(
    py: Python<'_>,
    questions: Vec<Asked<'_>>,
    told: Option<Py<PyAny>>,
    threads: Option<usize>,
) -> PyResult<(Vec<Option<Output>>, bool)> {
    let ready = questions
        .iter()
        .map(|(verb, given, named, texts)| read_question(verb, given, Some(named), texts.clone()))
        .collect::<PyResult<Vec<_>>>()?;
    let count = ready.len();
    let batch = Arc::new(Batch {
        questions: ready.into_iter().map(|question| Mutex::new(Some(question))).collect(),
        answers: (0..count).map(|_| Mutex::default()).collect(),
        next: AtomicUsize::new(0),
        done: AtomicUsize::new(0),
        control: CallControl::default(),
    });
    let all = threads.or_else(|| thread::available_parallelism().ok().map(usize::from)).unwrap_or(1).max(1);
    let workers = all.min(count).max(1);
    let (sender, results) = mpsc::channel::<()>();
    for _ in 0..workers {
        let (batch, sender) = (Arc::clone(&batch), sender.clone());
        spawn(move || {
            batch.work(all / workers);
            // The last worker to end disconnects the channel.
            drop(sender);
        })?;
    }
    drop(sender);
    let tell = || match &told {
        Some(told) => told.call1(py, (batch.done.load(Ordering::SeqCst),)).map(drop),
        None => Ok(()),
    };
    let interrupted = match wait(py, results, &batch.control, tell) {
        Ok(_) => false,
        Err(error) if error.is_instance_of::<PyKeyboardInterrupt>(py) => true,
        Err(error) => return Err(error),
    };
    let take = |answer: &Mutex<Option<Output>>| answer.lock().unwrap_or_else(PoisonError::into_inner).take();
    let outputs = batch.answers.iter().map(take);
    let outputs = outputs.map(|output| if interrupted { output } else { Some(output.unwrap_or_else(lost_call)) });
    Ok((outputs.collect(), interrupted))
}

/// Asks one question `count` times on `threads` threads without Python, and returns the seconds.
/// `python/tools/measure.py` compares a batch of Python with this time.
#[pyfunction]
pub fn time_loop(
    py: Python<'_>,
    verb: &str,
    given: &Bound<'_, PyTuple>,
    named: &Bound<'_, PyDict>,
    count: usize,
    threads: usize,
) -> PyResult<f64> {
    let ready = read_question(verb, given, Some(named), BTreeMap::new())?;
    Ok(py.detach(|| {
        let start = Instant::now();
        let next = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..threads.max(1) {
                scope.spawn(|| {
                    let pool = pool_of(1);
                    while next.fetch_add(1, Ordering::SeqCst) < count {
                        let work = || answer(ready.clone(), CallControl::default());
                        drop(pool.as_ref().map_or_else(work, |pool| pool.install(work)));
                    }
                });
            }
        });
        start.elapsed().as_secs_f64()
    }))
}
