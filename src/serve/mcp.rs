//! `coplace mcp`: serves the verbs as tools to agents, over the Model Context Protocol on standard input and output.

mod access;
mod answers;
mod server;
mod tools;

use crate::call::Call;
use crate::failure::{Failure, OrOther, option_failure};
use access::FolderAccess;
use clap::Args;
use rmcp::ServiceExt;
use rmcp::transport::stdio;
use server::AgentServer;
use std::path::PathBuf;

/// Serve the verbs as tools to an agent, over the Model Context Protocol on standard input and output
#[derive(Debug, Args)]
#[command(
    after_help = "Every verb is a tool with the command's options as arguments (_ for -). An answer has about ten \
    lines and a name, such as answer-3: the tool `details` has the whole record, and other tools take the name in the \
    place of a run directory or a file.\n\
    Files are read in the current directory and below, and in DIR. Nothing is written outside a temporary directory, \
    which goes with the server, and DIR. Jobs are not submitted.\n\
    An agent's configuration: {\"command\": \"coplace\", \"args\": [\"mcp\"]}.\n\n\
    Example:\n  coplace mcp --allow-write runs"
)]
pub struct McpArguments {
    /// Let tools write into this directory, which is created if needed [default: tools write nothing that stays]
    #[arg(long, value_name = "DIR")]
    allow_write: Option<PathBuf>,
}

/// Runs the verb: serves until standard input ends.
pub fn run_mcp(arguments: &McpArguments, call: &Call) -> Result<(), Failure> {
    if !call.is_of_program() {
        return Err(option_failure("mcp", "", "serves on standard input", "run it as a program: coplace mcp"));
    }
    let scratch = tempfile::Builder::new().prefix("coplace-mcp-").tempdir().or_other()?;
    let access = FolderAccess::new(arguments.allow_write.as_deref(), scratch.path())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().or_other()?;
    let served = runtime.block_on(async {
        let server = AgentServer::new(access).serve(stdio()).await.or_other()?;
        server.waiting().await.or_other()
    });
    // The shutdown does not wait for threads, because one that reads standard input may never end.
    runtime.shutdown_background();
    served.map(drop)
}
