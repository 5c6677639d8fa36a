//! Intervals and grades of an answer, wherever it keeps them.

use super::Fact;
use serde_json::Value;

/// Keys under which an answer keeps how far its figures can be trusted.
const KEYS: [&str; 3] = ["interval", "evidence", "grade"];

/// Every value under such a key, with the keys that lead to it.
pub fn of(said: &Value) -> Vec<Fact> {
    let mut found = Vec::new();
    walk(said, &mut Vec::new(), &mut found);
    found
}

fn walk(value: &Value, path: &mut Vec<String>, found: &mut Vec<Fact>) {
    match value {
        Value::Object(map) => {
            for (key, value) in map {
                path.push(key.replace('_', " "));
                if KEYS.iter().any(|known| key.split('_').any(|word| word.trim_end_matches('s') == *known)) && !value.is_null() {
                    found.push(Fact::new(path.join(", "), words(value)));
                } else {
                    walk(value, path, found);
                }
                path.pop();
            }
        }
        // Of a list the first: the plans behind the first are not what the page is about.
        Value::Array(items) => items.iter().take(1).for_each(|item| walk(item, path, found)),
        _ => {}
    }
}

/// A value in words: `low 1.2, high 1.5`.
fn words(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.as_f64().map_or_else(|| number.to_string(), |n| crate::text::significant(n, 4)),
        Value::Array(items) => items.iter().map(words).collect::<Vec<_>>().join(" to "),
        Value::Object(map) => {
            map.iter().map(|(key, value)| format!("{} {}", key.replace('_', " "), words(value))).collect::<Vec<_>>().join(", ")
        }
        Value::Bool(_) | Value::Null => value.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn intervals_and_grades_are_found_where_they_are() {
        let said = json!({ "best": { "step": { "step_interval_s": [1.0, 2.0], "evidence": { "grade": "measured" }, "time_s": 1.5 } }, "grade": null });
        let found = of(&said);
        let said: Vec<(&str, &str)> = found.iter().map(|f| (f.name.as_str(), f.value.as_str())).collect();
        assert_eq!(said.len(), 2, "{said:?}");
        assert!(said.contains(&("best, step, evidence", "grade measured")), "{said:?}");
        assert!(said.contains(&("best, step, step interval s", "1.000 to 2.000")), "{said:?}");
    }
}
