//! The facts of an answer that must stay, and the differences between two answers.

use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// Keys of JSON answers that may change, with reasons.
const LEFT_OUT: [(&str, &[&str]); 4] = [
    ("times of computing", &["seconds", "solve_seconds", "times", "this_run", "threads"]),
    (
        "versions, features and digests",
        &["highs", "version", "coplace", "format", "question", "digest", "sha256", "bytes"],
    ),
    ("command lines and the files of questions", &["asked", "asked_with", "evaluate_with", "inputs"]),
    (
        "prose",
        &[
            "why",
            "note",
            "notes",
            "source",
            "sources",
            "formula",
            "description",
            "meaning",
            "assumed",
            "assumptions",
            "not_modelled",
            "refused",
            "lacks",
            "change",
            "label",
            "tolerance",
            "cure",
            "limit",
            "freedom",
            "checked",
        ],
    ),
];

/// Number of elements of a list that are kept one by one; the others are summed. Lists of scalars keep [`KEPT_PLAIN`].
const KEPT: usize = 3;
const KEPT_PLAIN: usize = 16;

/// Returns the facts of one or more JSON answers.
pub fn reduced_json(text: &str, name: &str) -> Value {
    let stream = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let parsed = stream.map(|value| value.unwrap_or_else(|e| panic!("{name}: {e}: {text}")));
    let mut values: Vec<Value> = parsed.map(|value| reduced(&value)).collect();
    if values.len() == 1 { values.remove(0) } else { Value::Array(values) }
}

/// Returns the numbers of a text with at least three significant digits, each once. A new wording may repeat a number.
pub fn reduced_text(text: &str) -> Value {
    let digits = |number: &str| number.trim_start_matches(['0', '.']).chars().filter(char::is_ascii_digit).count();
    let found = numbers(text).into_iter().filter(|number| digits(number) >= 3);
    json!(found.map(|number| (number, true)).collect::<BTreeMap<_, _>>())
}

/// Returns the numbers of a text, without the commas between thousands.
fn numbers(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut number = String::new();
    let mut before = ' ';
    let characters: Vec<char> = text.chars().chain([' ']).collect();
    for (at, c) in characters.iter().copied().enumerate() {
        let digits_behind = characters[at + 1..].iter().take_while(|c| c.is_ascii_digit()).count();
        let joins = match c {
            '.' => digits_behind > 0,
            ',' => digits_behind == 3,
            _ => c.is_ascii_digit(),
        };
        let in_word = number.is_empty() && (!c.is_ascii_digit() || before.is_alphanumeric() || before == '_');
        if joins && !in_word {
            number.extend((c != ',').then_some(c));
        } else if !number.is_empty() {
            found.push(std::mem::take(&mut number));
        }
        before = c;
    }
    found
}

fn is_left_out(key: &str) -> bool {
    LEFT_OUT.iter().any(|(_, keys)| keys.contains(&key))
}

fn reduced(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().filter(|(key, _)| !is_left_out(key));
            Value::Object(kept.map(|(key, value)| (key.clone(), reduced(value))).collect())
        }
        Value::Array(list) => {
            let plain = list.iter().all(|value| !value.is_array() && !value.is_object());
            let kept = if plain { KEPT_PLAIN } else { KEPT };
            let mut all: Vec<Value> = list.iter().take(kept).map(reduced).collect();
            if list.len() > kept {
                let mut sums = BTreeMap::new();
                list.iter().enumerate().skip(kept).for_each(|(at, value)| add(&reduced(value), at, "", &mut sums));
                all.push(json!({ "more": list.len() - kept, "sums": sums }));
            }
            Value::Array(all)
        }
        Value::String(text) if text.contains(' ') => json!(numbers(text)),
        Value::Number(number) if number.is_f64() => json!(rounded(number.as_f64().unwrap())),
        other => other.clone(),
    }
}

/// Rounds a number to 14 digits. Two computers may differ in the digits after them.
fn rounded(number: f64) -> f64 {
    format!("{number:.13e}").parse().unwrap()
}

/// Adds the contents of a value to sums by path: numbers weighted by their position, texts by the sum of their bytes.
fn add(value: &Value, at: usize, path: &str, sums: &mut BTreeMap<String, f64>) {
    let weight = 1.0 + (at % 7) as f64 / 8.0;
    let mut put = |number: f64| {
        let sum = sums.entry(path.to_owned()).or_default();
        *sum = rounded(*sum + weight * number);
    };
    match value {
        Value::Object(map) => map.iter().for_each(|(key, value)| add(value, at, &format!("{path}.{key}"), sums)),
        Value::Array(list) => {
            list.iter().enumerate().for_each(|(i, value)| add(value, at + i, &format!("{path}[]"), sums));
        }
        Value::Number(number) => put(number.as_f64().unwrap()),
        Value::Bool(is) => put(f64::from(u8::from(*is))),
        Value::String(text) => put(text.bytes().map(f64::from).sum()),
        Value::Null => {}
    }
}

/// Returns the differences of an answer from the recorded one, by path: at most 12, and the number of the others.
pub fn different(was: &Value, is: &Value) -> Vec<String> {
    let mut found = Vec::new();
    compare(was, is, "", &mut found);
    let more = found.len().saturating_sub(12);
    found.truncate(12);
    found.extend((more > 0).then(|| format!("and {more} more")));
    found
}

fn compare(was: &Value, is: &Value, path: &str, found: &mut Vec<String>) {
    match (was, is) {
        (Value::Object(was), Value::Object(is)) => compare_keys(was, is, path, found),
        (Value::Array(was), Value::Array(is)) if was.len() == is.len() => {
            was.iter().zip(is).enumerate().for_each(|(i, (was, is))| compare(was, is, &format!("{path}[{i}]"), found));
        }
        (Value::Number(was), Value::Number(is)) if same(was.as_f64().unwrap(), is.as_f64().unwrap()) => {}
        _ if was == is => {}
        _ => found.push(format!("{path}: was {}, is {}", short(was), short(is))),
    }
}

fn compare_keys(was: &Map<String, Value>, is: &Map<String, Value>, path: &str, found: &mut Vec<String>) {
    for (key, was) in was {
        match is.get(key) {
            Some(is) => compare(was, is, &format!("{path}.{key}"), found),
            None => found.push(format!("{path}.{key}: was {}, is gone", short(was))),
        }
    }
}

fn same(was: f64, is: f64) -> bool {
    (was - is).abs() <= 1e-12 * was.abs().max(is.abs())
}

fn short(value: &Value) -> String {
    let text = value.to_string();
    text.char_indices().nth(80).map_or(text.clone(), |(end, _)| format!("{}...", &text[..end]))
}

#[test]
fn numbers_are_found_in_texts() {
    let text = "44.74 sequences/s, 38,880 chips of 44.74; 2 x 128x128, h100_80gb, 75.5 %, 1,2 and 0.021.";
    assert_eq!(numbers(text), ["44.74", "38880", "44.74", "2", "128", "75.5", "1", "2", "0.021"]);
    assert_eq!(reduced_text(text), json!({ "44.74": true, "38880": true, "75.5": true, "128": true }));
}

#[test]
fn a_change_is_seen_and_a_new_key_is_not() {
    let answer = |step: f64, last: f64| {
        let rows: Vec<Value> = (0..6).map(|i| json!({ "step_s": f64::from(i) + last, "why": "prose" })).collect();
        json!({ "step_s": step, "fits": true, "plan": "t 4, p 2", "rows": rows })
    };
    let was = reduced(&answer(1.5, 0.25));
    assert!(different(&was, &reduced(&answer(1.5 + 1e-13, 0.25))).is_empty());
    assert_eq!(different(&was, &reduced(&answer(1.6, 0.25))), [".step_s: was 1.5, is 1.6"]);
    assert_eq!(different(&was, &reduced(&answer(1.5, 0.26))).len(), 4, "three rows and the sum of the others");
    let mut more = answer(1.5, 0.25);
    more["new"] = json!(1);
    assert!(different(&was, &reduced(&more)).is_empty());
    assert_eq!(different(&reduced(&more), &was), [".new: was 1, is gone"]);
}
