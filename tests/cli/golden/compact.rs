//! Compact JSON: a value that fits in one line is written in one line.

use serde_json::{Value, json};

/// Returns the value as text. Lines have at most 120 characters where the value can be broken.
pub fn written(value: &Value) -> String {
    let mut text = String::new();
    write(value, 0, &mut text);
    text.push('\n');
    text
}

fn write(value: &Value, indent: usize, text: &mut String) {
    let line = value.to_string();
    if line.len() + indent <= 110 {
        text.push_str(&line);
        return;
    }
    let parts: Vec<(String, &Value)> = match value {
        Value::Object(map) => map.iter().map(|(key, value)| (format!("{}:", json!(key)), value)).collect(),
        Value::Array(list) => list.iter().map(|value| (String::new(), value)).collect(),
        _ => return text.push_str(&line),
    };
    let (open, close) = if value.is_object() { ('{', '}') } else { ('[', ']') };
    text.push(open);
    for (at, (key, value)) in parts.iter().enumerate() {
        let is_short = |value: &Value| !value.is_object() && !value.is_array();
        // Scalars of one list or table share lines.
        let last = text.len() - text.rfind('\n').map_or(0, |at| at + 1);
        let joins = at > 0 && is_short(value) && is_short(parts[at - 1].1);
        if !joins || last + key.len() + value.to_string().len() > 110 {
            text.push('\n');
            text.extend(std::iter::repeat_n(' ', indent + 1));
        }
        text.push_str(key);
        write(value, indent + 1, text);
        if at + 1 < parts.len() {
            text.push(',');
        }
    }
    text.push(close);
}
