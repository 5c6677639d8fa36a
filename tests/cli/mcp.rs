//! `coplace mcp` from the outside: a transcript of the protocol, line by line.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// A server with an agent that speaks JSON-RPC, a message per line.
struct Agent {
    server: Child,
    said: Option<ChildStdin>,
    heard: BufReader<ChildStdout>,
    next: u64,
}

impl Agent {
    fn start(directory: &Path, arguments: &[&str]) -> Self {
        let mut server = Command::new(assert_cmd::cargo::cargo_bin!("coplace"))
            .arg("mcp")
            .args(arguments)
            .current_dir(directory)
            .env("COPLACE_LOG", "off")
            .env("COLUMNS", "80")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (said, heard) = (server.stdin.take(), BufReader::new(server.stdout.take().unwrap()));
        let mut agent = Self { server, said, heard, next: 0 };
        let params = json!({
            "protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": { "name": "test", "version": "1" },
        });
        let id = agent.send("initialize", params);
        let about = agent.receive(id);
        assert_eq!(about["result"]["serverInfo"]["name"], "coplace", "{about}");
        agent.say(&json!({ "jsonrpc": "2.0", "method": "notifications/initialized" }));
        agent
    }

    fn say(&mut self, message: &Value) {
        writeln!(self.said.as_mut().unwrap(), "{message}").unwrap();
    }

    fn send(&mut self, method: &str, params: Value) -> u64 {
        self.next += 1;
        self.say(&json!({ "jsonrpc": "2.0", "id": self.next, "method": method, "params": params }));
        self.next
    }

    /// Returns the next answer. Notifications are skipped.
    fn receive_any(&mut self) -> Value {
        loop {
            let mut line = String::new();
            assert!(self.heard.read_line(&mut line).unwrap() > 0, "the server has ended");
            let message: Value = serde_json::from_str(&line).unwrap();
            if message.get("id").is_some() {
                return message;
            }
        }
    }

    fn receive(&mut self, id: u64) -> Value {
        let message = self.receive_any();
        assert_eq!(message["id"], id, "{message}");
        message
    }

    /// Calls a tool. Returns the text of its answer, and true if it is an error.
    fn call(&mut self, tool: &str, arguments: Value) -> (String, bool) {
        let id = self.send("tools/call", json!({ "name": tool, "arguments": arguments }));
        let message = self.receive(id);
        let result = &message["result"];
        let text = result["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{message}"));
        (text.to_owned(), result["isError"].as_bool().unwrap_or_default())
    }

    #[track_caller]
    fn answer(&mut self, tool: &str, arguments: Value) -> String {
        let (text, is_error) = self.call(tool, arguments);
        assert!(!is_error, "{text}");
        text
    }

    #[track_caller]
    fn refusal(&mut self, tool: &str, arguments: Value) -> String {
        let (text, is_error) = self.call(tool, arguments);
        assert!(is_error, "{text}");
        text
    }

    /// Waits until the server rests: until it uses at most 0.1 s of a core within a second.
    #[cfg(target_os = "linux")]
    fn expect_rest(&self) {
        let ticks = || {
            let text = std::fs::read_to_string(format!("/proc/{}/stat", self.server.id())).unwrap();
            let fields: Vec<&str> = text.rsplit_once(')').unwrap().1.split_whitespace().collect();
            // utime and stime, in hundredths of a second: fields 14 and 15 by proc(5). `fields` begins with field 3.
            fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap()
        };
        let end = Instant::now() + Duration::from_secs(60);
        loop {
            let before = ticks();
            std::thread::sleep(Duration::from_secs(1));
            if ticks() - before <= 10 {
                return;
            }
            assert!(Instant::now() < end, "the cancelled search goes on");
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn expect_rest(&self) {}

    /// Ends standard input, and waits for the server.
    fn end(mut self) {
        drop(self.said.take());
        assert!(self.server.wait().unwrap().success());
    }
}

fn job() -> Value {
    json!({ "model": "opt-350m", "chip": "h100", "fabric": "nvlink4_node", "devices": 8, "global_batch": 16 })
}

fn with(mut base: Value, key: &str, value: Value) -> Value {
    base[key] = value;
    base
}

#[test]
fn an_agent_asks_for_plans_and_details_and_is_refused_what_writes() {
    let place = tempfile::tempdir().unwrap();
    let mut agent = Agent::start(place.path(), &[]);
    let id = agent.send("tools/list", json!({}));
    let tools = agent.receive(id)["result"]["tools"].as_array().unwrap().clone();
    let named = |name: &str| tools.iter().find(|tool| tool["name"] == name).unwrap_or_else(|| panic!("no {name}"));
    assert!(!tools.iter().any(|tool| tool["name"] == "mcp"));
    let plan = &named("plan")["inputSchema"];
    // The schema of a degree has the limits of the table of decisions.
    assert_eq!(plan["properties"]["tensor"]["anyOf"][0], json!({ "type": "integer", "minimum": 1, "maximum": 65536 }));
    assert_eq!(plan["properties"]["attention"]["enum"], json!(["fused", "unfused"]));
    assert_eq!(plan["required"], json!(["model", "chip"]));
    // Without --allow-write, the server offers no arguments that write files or submit jobs.
    assert!(plan["properties"].get("trace").is_none() && named("search")["inputSchema"].get("slurm").is_none());
    assert_eq!(named("search")["annotations"]["readOnlyHint"], true);

    let short = agent.answer("plan", job());
    assert!((8..=12).contains(&short.lines().count()), "{short}");
    assert!(short.contains("opt-350m on 8 x h100") && short.contains("answer-1: "), "{short}");
    let step = agent.answer("details", json!({ "answer": "answer-1", "path": "plans.0.step_s" }));
    assert!(step.parse::<f64>().unwrap() > 0.0);
    let whole = agent.answer("details", json!({ "answer": "answer-1", "whole": true }));
    assert_eq!(serde_json::from_str::<Value>(&whole).unwrap()["plans"][0]["step_s"].to_string(), step);

    assert!(agent.refusal("plan", with(job(), "tensr", json!(2))).contains("did you mean `tensor`"));
    assert!(agent.refusal("plan", with(job(), "tensor", json!(3))).contains("--tensor: tp = 3: must be"));
    assert!(agent.refusal("plan", with(job(), "trace", json!("t.json"))).contains("writes nothing that stays"));
    assert!(agent.refusal("plan", with(job(), "chip", json!("/etc/hostname"))).contains("reads files in"));
    let (text, is_error) = agent.call("plan", with(job(), "tensor", json!([1, 2])));
    assert!(!is_error, "{text}");
    // An unknown tool is a protocol error, not an error of a tool.
    let id = agent.send("tools/call", json!({ "name": "plam", "arguments": {} }));
    let message = agent.receive(id);
    assert!(message["error"]["message"].as_str().unwrap().contains("is no verb"), "{message}");
    agent.end();
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0, "something was written");
}

#[test]
fn an_agent_searches_and_writes_in_its_folder_alone() {
    let place = tempfile::tempdir().unwrap();
    let mut agent = Agent::start(place.path(), &["--allow-write", "mine"]);
    let search = json!({ "models": ["llama2-7b"], "study": "smoke", "draws": 0 });
    let found = agent.answer("search", search.clone());
    assert!(found.contains("answer-1: ") && found.contains("files in "), "{found}");
    // The name of an answer may be given for its run.
    let explained = agent.answer("explain", json!({ "run": "answer-1" }));
    assert!(explained.contains("answer-2: "), "{explained}");
    agent.answer("search", with(search.clone(), "out", json!("mine/run")));
    assert!(place.path().join("mine/run/record.json").is_file());
    assert!(
        agent.refusal("search", with(search.clone(), "out", json!("run"))).contains("mine only; give a path in it")
    );
    assert!(agent.refusal("search", with(search.clone(), "out", json!("mine/../run"))).contains("mine only"));
    assert!(agent.refusal("search", with(search, "slurm", json!(true))).contains("submits no jobs"));
    let page = agent.answer("report", json!({ "run": "mine/run", "out": "mine/page.html" }));
    assert!(page.contains("page.html") && place.path().join("mine/page.html").is_file());
    agent.end();
    let left: Vec<_> = std::fs::read_dir(place.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["mine"]);
}

#[test]
fn a_long_call_neither_blocks_others_nor_outlives_its_cancellation() {
    let place = tempfile::tempdir().unwrap();
    let mut agent = Agent::start(place.path(), &[]);
    let start = Instant::now();
    let long = json!({ "name": "search", "arguments": { "models": ["llama3-70b"], "study": "tpu", "draws": 0 } });
    let id = agent.send("tools/call", long);
    // Other calls are answered while the search runs.
    assert!(agent.answer("list", json!({ "what": "chips" })).contains("h100"));
    let cancelled = json!({ "requestId": id, "reason": "enough" });
    agent.say(&json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": cancelled }));
    assert!(agent.answer("list", json!({ "what": "stacks" })).contains("megatron"));
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
    agent.expect_rest();
    agent.end();
}
