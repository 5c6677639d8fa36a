//! `coplace page`: serves a page on this machine with sliders for a chip and a plan. Every move of a slider evaluates
//! the job again.

mod controls;
mod job;

use crate::call::Call;
use crate::failure::{CallFault, Failure, OrOther, option_failure};
use crate::numbers::whole_number_in;
use crate::verb::job::{JobArguments, SpaceArguments};
use clap::Args;
use job::PageJob;
use results::page::Page;
use serde_json::{Value, json};
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::io::Read;
use std::sync::Arc;
use std::thread;
use tiny_http::{Header, Method, Request, Response, Server};

const SKELETON: &str = include_str!("page/assets/page.html");
const STYLE: &str = include_str!("page/assets/page.css");
const SCRIPT: &str = include_str!("page/assets/page.js");

/// Threads that answer requests. The browser asks for one answer at a time, and for the page's files beside it.
const THREADS: usize = 3;
/// Bytes of a thread's stack, as Linux gives a program's main thread.
const STACK: usize = 8 << 20;
/// Bytes of the largest request that is read.
const LARGEST: u64 = 1 << 16;

/// Serve a page on this machine with sliders of a chip and a plan, which redraw step, memory, roofline and comparison
#[derive(Args)]
#[command(
    after_help = "The address is printed. It is of this machine alone (127.0.0.1) and has a random word, without \
    which nothing is answered. The page stays until Ctrl-C.\n\
    The plan at the start is the fastest that fits, of those that the options leave; the sliders then fix it.\n\n\
    Example:\n  coplace page llama3-8b --chip h100 --fabric nvlink4_node --devices 8 --global-batch 64"
)]
pub struct PageArguments {
    #[command(flatten)]
    job: JobArguments,
    #[command(flatten)]
    choices: SpaceArguments,
    /// Port of the address; 0 takes one that is free
    #[arg(long, value_name = "PORT", default_value_t = 0, value_parser = whole_number_in(0..=u16::MAX))]
    port: u16,
}

/// Runs the verb: serves until the process ends.
pub fn run_page(arguments: &PageArguments, call: &Call) -> Result<(), Failure> {
    if !call.is_of_program() {
        return Err(option_failure("page", "", "serves a browser", "run it as a program: coplace page"));
    }
    let job = PageJob::new(arguments.job.question(arguments.choices.plan_space()?, None, false)?)?;
    let server = Server::http(("127.0.0.1", arguments.port)).map_err(|why| {
        option_failure("--port", arguments.port, format!("cannot be opened: {why}"), "use another one, or 0")
    })?;
    let port = server.server_addr().to_ip().map_or(arguments.port, |address| address.port());
    let site = Site { token: random_word(), port, job };
    crate::answer::write_text(call, &format!("http://127.0.0.1:{port}/{}/\n", site.token))?;
    let (server, site) = (Arc::new(server), Arc::new(site));
    let threads = (0..THREADS).map(|_| {
        let (server, site) = (Arc::clone(&server), Arc::clone(&site));
        thread::Builder::new().stack_size(STACK).spawn(move || {
            while let Ok(request) = server.recv() {
                // The error is ignored, because a browser that has gone needs no answer.
                let _ = site.answer_request(request);
            }
        })
    });
    let threads = threads.collect::<Result<Vec<_>, _>>().or_other()?;
    // The verb waits here as long as the server runs, because a thread ends only with the server.
    threads.into_iter().for_each(|thread| drop(thread.join()));
    Ok(())
}

/// Returns a word of 128 random bits, from the seeds that the system gives to hash maps.
fn random_word() -> String {
    let bits = || RandomState::new().hash_one("coplace");
    format!("{:016x}{:016x}", bits(), bits())
}

/// The page and its job.
struct Site {
    token: String,
    port: u16,
    job: PageJob,
}

impl Site {
    fn answer_request(&self, mut request: Request) -> std::io::Result<()> {
        let path = request.url().strip_prefix('/').and_then(|path| path.strip_prefix(&*self.token)).map(str::to_owned);
        let (status, kind, body) = match (path.as_deref(), request.method()) {
            // A request under another host name for this address is refused.
            _ if !self.is_own_host(&request) => (404, "text/plain", "not found".to_owned()),
            (Some("/"), Method::Get) => (200, "text/html; charset=utf-8", self.page()),
            (Some("/charts.js"), Method::Get) => (200, "text/javascript; charset=utf-8", Page::charts().to_owned()),
            (Some("/answer"), Method::Post) => (200, "application/json", self.answer(&mut request).to_string()),
            _ => (404, "text/plain", "not found".to_owned()),
        };
        let mut response = Response::from_string(body).with_status_code(status);
        for (name, value) in
            [("Content-Type", kind), ("Cache-Control", "no-store"), ("X-Content-Type-Options", "nosniff")]
        {
            if let Ok(header) = Header::from_bytes(name, value) {
                response.add_header(header);
            }
        }
        request.respond(response)
    }

    fn is_own_host(&self, request: &Request) -> bool {
        let host = request.headers().iter().find(|header| header.field.equiv("Host"));
        let own = [format!("127.0.0.1:{}", self.port), format!("localhost:{}", self.port)];
        host.is_some_and(|host| own.iter().any(|own| host.value == own.as_str()))
    }

    fn page(&self) -> String {
        // `<` is escaped, because `</script>` in a text would end the script.
        let start = self.job.start().to_string().replace('<', "\\u003c");
        SKELETON
            .replacen("<!--STYLE-->", &format!("{}{STYLE}", Page::style()), 1)
            .replacen("<!--DATA-->", &start, 1)
            .replacen("<!--SCRIPT-->", &format!("{}{SCRIPT}", Page::roofline_script()), 1)
    }

    /// Returns the answer to the settings of the sliders, or an object with the error.
    fn answer(&self, request: &mut Request) -> Value {
        let mut text = String::new();
        let read = request.as_reader().take(LARGEST).read_to_string(&mut text);
        let settings = read.ok().and_then(|_| serde_json::from_str(&text).ok()).unwrap_or_default();
        self.job.answer(&settings).unwrap_or_else(|failure| {
            let CallFault { message, .. } = CallFault::of_failure(&failure);
            json!({ "error": message })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_word_of_an_address_is_random() {
        let (one, other) = (random_word(), random_word());
        assert!(one != other && one.len() == 32 && one[..16] != one[16..]);
    }
}
