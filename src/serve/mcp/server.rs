//! The server. Each call has a thread and a thread pool of its own, so that no call waits for another.

use super::access::FolderAccess;
use super::answers::KeptAnswers;
use super::tools;
use crate::arguments::{self, GivenArgument};
use crate::call::{CallControl, CallOutput};
use crate::failure::CallFault;
use clap::Command;
use rayon::ThreadPoolBuilder;
use rmcp::handler::server::ServerHandler;
use rmcp::model::{
    CallToolRequestParams, CallToolResponse, CallToolResult, ContentBlock, Implementation, JsonObject, ListToolsResult,
    PaginatedRequestParams, ProgressNotificationParam, ServerCapabilities, ServerConfig, Tool,
};
use rmcp::service::RequestContext;
use rmcp::{ErrorData, RoleServer};
use serde_json::json;
use sim::files::carried::Files;
use std::fs;
use std::panic::{self, AssertUnwindSafe};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::Duration;
use tokio::sync::oneshot;

/// Bytes of a thread's stack, as Linux gives a program's main thread.
const STACK: usize = 8 << 20;
/// Time between two lines of progress.
const TICK: Duration = Duration::from_secs(1);

/// Serves the verbs to one agent.
pub struct AgentServer {
    access: FolderAccess,
    tools: Vec<Tool>,
    answers: Mutex<KeptAnswers>,
    asked: AtomicU64,
}

/// A checked call: the name of its answer, its words, and the scratch directory of its answer.
struct ReadyCall {
    name: String,
    words: Vec<String>,
    directory: PathBuf,
}

/// Asks a call to stop when nobody waits for it any more: it was cancelled, or the agent has gone.
struct StopWhenDropped(CallControl);

impl Drop for StopWhenDropped {
    fn drop(&mut self) {
        self.0.stop();
    }
}

impl AgentServer {
    /// Makes a server with access to folders.
    pub fn new(access: FolderAccess) -> Self {
        let tools = tools::list_tools(&access);
        Self { access, tools, answers: Mutex::default(), asked: AtomicU64::new(0) }
    }

    /// Checks the arguments of a call, and names its answer.
    fn prepare(&self, verb: &'static Command, given: &JsonObject) -> Result<ReadyCall, Box<CallFault>> {
        let name = format!("answer-{}", self.asked.fetch_add(1, Ordering::SeqCst) + 1);
        let directory = self.access.scratch_of(&name);
        let answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        let argument = |(name, value)| (String::clone(name), answers.with_paths(GivenArgument::from_json(value)));
        let mut named: Vec<(String, GivenArgument)> = given.iter().map(argument).collect();
        self.access.check_call(verb, &mut named, &directory)?;
        let words = arguments::words_of_call(verb.get_name(), &[], &named)?;
        Ok(ReadyCall { name, words, directory })
    }

    /// Keeps the answer of a call, and returns the call's result.
    fn result_of(
        &self,
        ready: ReadyCall,
        (output, result): (CallOutput, Result<(), Box<CallFault>>),
    ) -> Result<CallToolResult, ErrorData> {
        let is_empty = output.json.is_empty() && output.text.is_empty();
        let lines = if is_empty {
            String::new()
        } else {
            let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
            answers
                .keep(&ready.name, output, ready.directory)
                .map_err(|why| ErrorData::internal_error(why.to_string(), None))?
        };
        Ok(match result {
            Ok(()) => CallToolResult::success(vec![ContentBlock::text(lines)]),
            Err(fault) => fault_result(&fault, &lines),
        })
    }
}

/// Turns a fault into a result that the agent reads: the message, the partial answer `part`, and the fault's parts.
fn fault_result(fault: &CallFault, part: &str) -> CallToolResult {
    let CallFault { exit_code, message, file, key, value, limit, cure } = fault;
    let text = if part.is_empty() { format!("error: {message}") } else { format!("error: {message}\n{part}") };
    let mut result = CallToolResult::error(vec![ContentBlock::text(text)]);
    result.structured_content = Some(json!({
        "exit_code": exit_code, "message": message, "file": file, "key": key, "value": value, "limit": limit,
        "cure": cure,
    }));
    result
}

/// Answers a call on the threads of its own pool.
fn answer(ready: &ReadyCall, control: CallControl) -> (CallOutput, Result<(), Box<CallFault>>) {
    let failed = |why: String| {
        let fault = CallFault { exit_code: 1, message: why, ..CallFault::default() };
        (CallOutput::default(), Err(Box::new(fault)))
    };
    if let Err(why) = fs::create_dir_all(&ready.directory) {
        return failed(format!("{}: cannot be written: {why}", ready.directory.display()));
    }
    let work = || crate::answer_call(&ready.words, Files::default(), control);
    let pool = ThreadPoolBuilder::new().stack_size(STACK).build();
    // A panic in one call does not end the server.
    let called = panic::catch_unwind(AssertUnwindSafe(|| match pool {
        Ok(pool) => pool.install(work),
        Err(_) => work(),
    }));
    called.unwrap_or_else(|_| failed("the call ended without an answer, which is a defect of coplace".to_owned()))
}

impl ServerHandler for AgentServer {
    fn get_info(&self) -> ServerConfig {
        let mut info = ServerConfig::new(ServerCapabilities::builder().enable_tools().build());
        info.server_info = Implementation::new("coplace", env!("CARGO_PKG_VERSION"));
        let written = match self.access.is_read_only() {
            true => "Nothing that a tool writes stays.",
            false => "Tools write where an argument says, in one folder.",
        };
        info.instructions = Some(format!(
            "coplace predicts how fast a model trains on a chip and a cluster, plans the training, searches chips. \
            `list` has the models, chips, fabrics, stacks and studies. `plan` finds the fastest plan of a job, \
            `evaluate` times one, `search` finds a chip. An answer is short and has a name: `details` gives its \
            record, and an argument that takes a run directory or an answer's file takes the name. {written}"
        ));
        info
    }

    async fn list_tools(
        &self,
        _page: Option<PaginatedRequestParams>,
        _context: RequestContext<RoleServer>,
    ) -> Result<ListToolsResult, ErrorData> {
        Ok(ListToolsResult::with_all_items(self.tools.clone()))
    }

    async fn call_tool(
        &self,
        request: CallToolRequestParams,
        context: RequestContext<RoleServer>,
    ) -> Result<CallToolResponse, ErrorData> {
        let given = request.arguments.unwrap_or_default();
        if request.name == tools::DETAILS {
            let details = self.answers.lock().unwrap_or_else(PoisonError::into_inner).details(&given);
            return Ok(match details {
                Ok(text) => CallToolResult::success(vec![ContentBlock::text(text)]).into(),
                Err(fault) => fault_result(&fault, "").into(),
            });
        }
        let verb =
            arguments::find_verb(&request.name).map_err(|fault| ErrorData::invalid_params(fault.message, None))?;
        let ready = match self.prepare(verb, &given) {
            Ok(ready) => ready,
            Err(fault) => return Ok(fault_result(&fault, "").into()),
        };
        let control = CallControl::default();
        let _stop = StopWhenDropped(control.clone());
        let (sender, mut answered) = oneshot::channel();
        let of_call = control.clone();
        let work = move || {
            let output = answer(&ready, of_call);
            // The send fails if the call was cancelled. Nobody waits for its answer then.
            let _ = sender.send((ready, output));
        };
        thread::Builder::new()
            .stack_size(STACK)
            .spawn(work)
            .map_err(|why| ErrorData::internal_error(format!("no thread can be started: {why}"), None))?;
        let token = context.meta.get_progress_token();
        let mut told = 0_u32;
        loop {
            tokio::select! {
                done = &mut answered => {
                    let lost = |_| ErrorData::internal_error("the call's thread has ended", None);
                    let (ready, output) = done.map_err(lost)?;
                    return self.result_of(ready, output).map(Into::into);
                }
                () = context.ct.cancelled() => {
                    return Err(ErrorData::internal_error("cancelled", None));
                }
                () = tokio::time::sleep(TICK) => {
                    let line = control.progress_line();
                    if let (Some(token), false) = (&token, line.is_empty()) {
                        told += 1;
                        let told = ProgressNotificationParam::new(token.clone(), f64::from(told)).with_message(line);
                        // The error is ignored, because an agent that has gone needs no progress.
                        let _ = context.peer.notify_progress(told).await;
                    }
                }
            }
        }
    }
}
