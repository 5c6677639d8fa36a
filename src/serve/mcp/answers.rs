//! Keeps answers by name: a few lines for the agent, and the whole record on request.

use crate::arguments::{ArgumentValue, GivenArgument, argument_fault};
use crate::call::CallOutput;
use crate::failure::CallFault;
use serde_json::{Map, Value};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;

/// Number of lines of an answer that the agent gets without asking for more.
const LINES: usize = 10;
/// Largest record or part of a record, in bytes, that [`KeptAnswers::details`] returns in full without `whole = true`.
/// A longer text would fill too much of the agent's context.
const LETTERS: usize = 16_000;

/// An answer that was given.
#[derive(Debug, Clone)]
struct KeptAnswer {
    /// The answer as text.
    text: String,
    /// The file of the record, if the verb has one.
    record: Option<PathBuf>,
    /// The run directory, if the verb wrote one.
    directory: Option<PathBuf>,
}

/// The answers of a server by name.
#[derive(Debug, Default)]
pub struct KeptAnswers(BTreeMap<String, KeptAnswer>);

impl KeptAnswers {
    /// Keeps an answer; its record is written into `directory`, which exists. Returns its first lines.
    ///
    /// # Errors
    /// A record that cannot be written, for instance to a full disk.
    pub fn keep(&mut self, name: &str, output: CallOutput, directory: PathBuf) -> io::Result<String> {
        let CallOutput { json, text, directory: run, warnings } = output;
        let record = if json.is_empty() { None } else { Some(directory.join(format!("{name}.json"))) };
        if let Some(file) = &record {
            fs::write(file, &json)?;
        }
        let mut lines = first_lines(&text, &warnings, name, run.as_ref().map(|run| run.display().to_string()));
        if let Some(names) = listed_names(&json) {
            lines = format!("{names}\n{lines}");
        }
        self.0.insert(name.to_owned(), KeptAnswer { text, record, directory: run });
        Ok(lines)
    }

    /// Replaces names of answers in an argument by paths: the run directory if there is one, else the record's file.
    pub fn with_paths(&self, given: GivenArgument) -> GivenArgument {
        GivenArgument { value: self.value_with_paths(given.value), ..given }
    }

    fn value_with_paths(&self, value: ArgumentValue) -> ArgumentValue {
        match value {
            ArgumentValue::Word(word) => {
                let kept = self.0.get(&word).and_then(|kept| kept.directory.as_ref().or(kept.record.as_ref()));
                ArgumentValue::Word(kept.map_or(word, |path| path.display().to_string()))
            }
            ArgumentValue::List(entries) => {
                ArgumentValue::List(entries.into_iter().map(|entry| self.value_with_paths(entry)).collect())
            }
            other => other,
        }
    }

    /// Returns more of an answer: its text, its record, or the part of the record under `path`. A large part is
    /// returned as an outline, unless the whole is asked for.
    ///
    /// # Errors
    /// An unknown name or path, or an argument of another form.
    pub fn details(&self, asked: &Map<String, Value>) -> Result<String, Box<CallFault>> {
        const KEYS: [&str; 4] = ["answer", "path", "text", "whole"];
        if let Some((key, value)) = asked.iter().find(|(key, _)| !KEYS.contains(&key.as_str())) {
            return Err(argument_fault(key, &value.to_string(), "details has no such argument", "leave it out"));
        }
        let word = |key: &str| match asked.get(key) {
            None | Some(Value::Null) => Ok(""),
            Some(Value::String(word)) => Ok(word.as_str()),
            Some(value) => Err(argument_fault(key, &value.to_string(), "is no text", "give a text")),
        };
        let flag = |key: &str| match asked.get(key) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::Bool(flag)) => Ok(*flag),
            Some(value) => Err(argument_fault(key, &value.to_string(), "is no truth value", "use true or false")),
        };
        let (name, path) = (word("answer")?, word("path")?);
        let kept = self.0.get(name).ok_or_else(|| {
            let known: Vec<&str> = self.0.keys().map(String::as_str).collect();
            let cure = if known.is_empty() {
                "ask a question first".to_owned()
            } else {
                format!("there is {}", known.join(", "))
            };
            argument_fault("answer", name, "is no answer of this server", &cure)
        })?;
        let file = match &kept.record {
            Some(file) if !flag("text")? => file,
            _ => return Ok(kept.text.clone()),
        };
        let text = fs::read_to_string(file)
            .map_err(|why| argument_fault("answer", name, &format!("cannot be read: {why}"), "ask again"))?;
        let (text, value) = match path {
            "" => (text, None),
            path => {
                let value =
                    value_at(&text, path).map_err(|(limit, cure)| argument_fault("path", path, &limit, &cure))?;
                (format!("{value:#}"), Some(value))
            }
        };
        if text.len() <= LETTERS || flag("whole")? {
            return Ok(text);
        }
        let value = match value {
            Some(value) => value,
            None => record_of(&text).map_err(|why| argument_fault("answer", name, &why, "use text = true"))?,
        };
        let how = format!(
            "{} letters; a part by its path, such as path = {:?}, or all of it with whole = true:",
            text.len(),
            if path.is_empty() { example_of(&value) } else { format!("{path}.{}", example_of(&value)) }
        );
        Ok(format!("{how}\n{}", outline(&value)))
    }
}

/// Returns the first lines of an answer, and how to get more.
fn first_lines(text: &str, warnings: &[String], name: &str, run: Option<String>) -> String {
    let is_content = |line: &&str| !line.trim().is_empty() && !line.trim().chars().all(|letter| "=- ".contains(letter));
    let mut content = text.lines().filter(is_content);
    let mut lines: Vec<String> = content.by_ref().take(LINES).map(str::to_owned).collect();
    lines.extend(warnings.iter().map(|warning| format!("warning: {}", warning.trim())));
    let left = content.count();
    let more = if left > 0 { format!("{left} more lines and ") } else { String::new() };
    let kept = run.map_or_else(String::new, |run| format!(", files in {run}"));
    lines.push(format!("{name}: {more}the record by the tool details{kept}"));
    lines.join("\n")
}

/// Returns all names in one line if a record is a list of named things, as the record of `list` is; otherwise `None`.
fn listed_names(json: &str) -> Option<String> {
    let Value::Array(entries) = record_of(json).ok()? else { return None };
    let names: Option<Vec<&str>> = entries.iter().map(|entry| entry.get("name")?.as_str()).collect();
    names.filter(|names| !names.is_empty()).map(|names| format!("names: {}", names.join(", ")))
}

/// Parses a record: one JSON value, or several lines of JSON as a list.
fn record_of(text: &str) -> Result<Value, String> {
    serde_json::from_str(text)
        .or_else(|_| text.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>().map(Value::Array))
        .map_err(|why| format!("is no JSON: {why}"))
}

/// Returns the value under a path of keys and numbers joined by dots, or the fault of the path and the cure.
fn value_at(text: &str, path: &str) -> Result<Value, (String, String)> {
    let mut value = record_of(text).map_err(|why| (why, "use text = true".to_owned()))?;
    for part in path.split('.') {
        let next = match &mut value {
            Value::Object(keys) => keys.remove(part).ok_or_else(|| {
                let known = keys.keys().cloned().collect::<Vec<_>>().join(", ");
                (format!("has no `{part}`"), sim::names::hint(part, &known, "it has"))
            }),
            Value::Array(entries) => {
                let count = entries.len();
                let at = part.parse::<usize>().ok().filter(|at| *at < count);
                at.map(|at| entries.swap_remove(at))
                    .ok_or_else(|| (format!("has no entry {part}"), format!("the list has {count}, from 0")))
            }
            _ => Err((format!("ends before `{part}`"), "leave the rest out".to_owned())),
        };
        value = next?;
    }
    Ok(value)
}

/// Returns an example of the next part of a path into a value: an object's first key, otherwise `0`.
fn example_of(value: &Value) -> String {
    match value {
        Value::Object(keys) => keys.keys().next().cloned().unwrap_or_default(),
        _ => "0".to_owned(),
    }
}

/// Returns the keys of an object with their values, one per line. Lists and long texts are shown by size, objects by
/// their keys.
fn outline(value: &Value) -> String {
    let short = |value: &Value| match value {
        Value::Array(entries) => format!("list of {}", entries.len()),
        Value::Object(keys) => format!("object: {}", keys.keys().cloned().collect::<Vec<_>>().join(", ")),
        Value::String(text) if text.len() > 200 => format!("text of {} letters", text.len()),
        other => other.to_string(),
    };
    match value {
        Value::Object(keys) => {
            keys.iter().map(|(key, value)| format!("{key}: {}", short(value))).collect::<Vec<_>>().join("\n")
        }
        other => short(other),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn asked(value: Value) -> Map<String, Value> {
        value.as_object().unwrap().clone()
    }

    #[test]
    fn an_answer_is_short_and_its_record_whole() {
        let place = tempfile::tempdir().unwrap();
        let mut kept = KeptAnswers::default();
        let text: String = (0..40).map(|line| format!("line {line}\n====\n\n")).collect();
        let json = json!({"plans": [{"step_s": 1.5}, {"step_s": 2.5}], "filler": "x".repeat(LETTERS)}).to_string();
        let output = CallOutput { json: json.clone(), text: text.clone(), ..CallOutput::default() };
        let lines = kept.keep("answer-1", output, place.path().to_owned()).unwrap();
        assert_eq!(lines.lines().count(), LINES + 1);
        assert!(lines.ends_with("answer-1: 30 more lines and the record by the tool details"), "{lines}");
        let details = |value: Value| kept.details(&asked(value));
        assert_eq!(details(json!({"answer": "answer-1", "whole": true})).unwrap(), json);
        assert_eq!(details(json!({"answer": "answer-1", "text": true})).unwrap(), text);
        assert_eq!(details(json!({"answer": "answer-1", "path": "plans.1.step_s"})).unwrap(), "2.5");
        let outline = details(json!({"answer": "answer-1"})).unwrap();
        assert!(outline.contains("plans: list of 2") && outline.len() < 400, "{outline}");
        let listed = json!([{"name": "a100"}, {"name": "h100"}]).to_string();
        let output = CallOutput { json: listed, text: "a table".to_owned(), ..CallOutput::default() };
        let lines = kept.keep("answer-9", output, place.path().to_owned()).unwrap();
        assert!(lines.starts_with("names: a100, h100\na table\n"), "{lines}");
        let details = |value: Value| kept.details(&asked(value));
        let wrong = details(json!({"answer": "answer-1", "path": "plns"})).unwrap_err();
        assert!(wrong.message.contains("did you mean `plans`"), "{}", wrong.message);
        assert!(details(json!({"answer": "answer-2"})).unwrap_err().message.contains("there is answer-1, answer-9"));
        let path = kept.with_paths(GivenArgument::from_json(&json!(["answer-1", "other"])));
        let file = place.path().join("answer-1.json").display().to_string();
        assert_eq!(path.value, ArgumentValue::List([file, "other".to_owned()].map(ArgumentValue::Word).to_vec()));
    }
}
