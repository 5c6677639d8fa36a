//! Golden answers: the recorded answers of about a hundred commands over all verbs must not change.
//!
//! `tests/golden/answers/NAME.json` holds one answer, reduced to the facts that must stay: numbers, booleans and
//! one-word texts. A JSON answer may gain keys but lose none. Numbers must agree to one part in 10^12.
//!
//! - `COPLACE_GOLDEN=write cargo test --test cli golden` records today's answers. Read `git diff tests/golden` before
//!   you commit it.
//! - `COPLACE_PROGRAM=PATH` runs another program than the one that cargo built, such as an older one.

mod commands;
mod compact;
mod reduced;

use crate::support::{chosen_program, repository_path};
use commands::{COMMANDS, Command, Form};
use reduced::{different, reduced_json, reduced_text};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Output;

#[test]
fn golden_answers_of_evaluate() {
    hold("evaluate");
}

#[test]
fn golden_answers_of_plan() {
    hold("plan");
}

#[test]
fn golden_answers_of_search() {
    hold("search");
}

#[test]
fn golden_answers_of_data() {
    hold("data");
}

#[test]
fn golden_answers_of_lists() {
    hold("lists");
}

#[test]
fn golden_answers_of_refusals() {
    hold("refusals");
}

#[test]
fn every_golden_answer_has_a_command_and_every_command_one_answer() {
    let mut names: Vec<&str> = COMMANDS.iter().map(|command| command.name).collect();
    names.sort_unstable();
    assert!(names.windows(2).all(|pair| pair[0] != pair[1]), "{names:?}");
    assert!(names.len() >= 60, "{} commands", names.len());
    let entries = std::fs::read_dir(repository_path("tests/golden/answers")).unwrap();
    let mut files: Vec<String> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    files.sort();
    let wanted: Vec<String> = names.iter().map(|name| format!("{name}.json")).collect();
    assert_eq!(files, wanted);
}

/// Runs the commands of one group in sequence in one directory, and compares each answer with the recorded one.
#[track_caller]
fn hold(group: &str) {
    let write = std::env::var_os("COPLACE_GOLDEN").is_some_and(|value| value == "write");
    let directory = tempfile::tempdir().unwrap();
    let mut wrong = Vec::new();
    for command in COMMANDS.iter().filter(|command| command.group == group) {
        let is = answer(command, directory.path());
        let file = repository_path("tests/golden/answers").join(format!("{}.json", command.name));
        if write {
            std::fs::write(&file, compact::written(&is)).unwrap();
            continue;
        }
        let text = std::fs::read_to_string(&file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
        let was: Value = serde_json::from_str(&text).unwrap();
        let differences = different(&was, &is);
        if !differences.is_empty() {
            wrong.push(format!("{}: coplace {}\n  {}", command.name, command.line, differences.join("\n  ")));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Returns the reduced answer of one command: its exit code and its output.
fn answer(command: &Command, directory: &Path) -> Value {
    let place = directory.display().to_string();
    let arguments: Vec<String> = command.line.split_whitespace().map(|word| word.replace("{T}", &place)).collect();
    let output = run(&arguments);
    let plain = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap().replace(&place, "{T}");
    let (printed, message) = (plain(&output.stdout), plain(&output.stderr));
    let text = match command.file {
        Some(file) => {
            let written = std::fs::read_to_string(directory.join(file));
            written.unwrap_or_else(|e| panic!("{file}: {e}; {message}"))
        }
        None => printed,
    };
    let reduced = match command.form {
        Form::Json => reduced_json(&text, command.name),
        Form::Refusal => json!({ "names": named(&message, command.line), "figures": reduced_text(&message) }),
        Form::Figures => reduced_text(&text),
        Form::Code => json!(text.lines().filter(|line| !line.trim_start().starts_with('#')).collect::<Vec<_>>()),
        Form::Help => json!(flags(&text)),
    };
    json!({ "code": output.status.code(), "answer": reduced })
}

fn run(arguments: &[String]) -> Output {
    let mut command = std::process::Command::new(chosen_program());
    command.env("COPLACE_LOG", "warn").env("COLUMNS", "170").env("NO_COLOR", "1");
    command.current_dir(env!("CARGO_MANIFEST_DIR")).args(arguments).output().unwrap()
}

/// Returns the words of a command line that an error message repeats.
fn named(message: &str, line: &str) -> Vec<String> {
    let words = line.split_whitespace().filter(|word| word.len() > 2 && !word.contains("{T}"));
    words.filter(|word| message.contains(word)).map(str::to_owned).collect()
}

/// Returns the flags of a help text, with their one-word defaults and their values.
fn flags(help: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in help.lines().map(str::trim) {
        let long = line.split([' ', ',']).find(|word| word.starts_with("--") && line.starts_with('-'));
        found.extend(long.map(str::to_owned));
        let value = line.strip_prefix("- ").and_then(|rest| rest.split_once(':'));
        found.extend(value.filter(|(name, _)| !name.contains(' ')).map(|(name, _)| format!("= {name}")));
        let default = line.strip_prefix("[default: ").and_then(|rest| rest.strip_suffix(']'));
        found.extend(default.filter(|value| !value.contains(' ')).map(|value| format!("default {value}")));
        found.extend(line.strip_prefix("[possible values: ").map(str::to_owned));
    }
    found
}
