//! The arguments in a shell script, in a file of arguments or in a list of `--key: value`.

use std::collections::BTreeMap;

/// The words of a line outside comments, without quotes. A word in quotes may have blanks.
fn words_of_line(line: &str) -> Vec<String> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    for c in line.chars() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (Some(_), c) => word.get_or_insert_default().push(c),
            (None, '\'' | '"') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (None, '(') if word.as_deref().is_some_and(|word| word.ends_with('=')) => word = None,
            (None, '(') if word.is_none() => {}
            (None, ')') if word.as_deref().is_none_or(|word| !word.contains('(')) => words.extend(word.take()),
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

/// A text with `$NAME`, `${NAME}` and `${NAME:-default}` replaced where the value is known.
fn with_variables(text: &str, variables: &BTreeMap<String, String>) -> String {
    let Some((before, rest)) = text.split_once('$') else { return text.to_owned() };
    let braced = rest.strip_prefix('{').and_then(|rest| rest.split_once('}'));
    let (inside, after) = braced.unwrap_or_else(|| {
        let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        rest.split_at(end)
    });
    let (name, default) = inside.split_once(":-").map_or((inside, None), |(name, default)| (name, Some(default)));
    let kept = if braced.is_some() { format!("${{{inside}}}") } else { format!("${inside}") };
    let value = variables.get(name).cloned().or(default.map(str::to_owned)).unwrap_or(kept);
    format!("{before}{value}{}", with_variables(after, variables))
}

/// True for what a shell assigns: `NAME=VALUE`.
fn assignment(word: &str) -> Option<(&str, &str)> {
    let (name, value) = word.split_once('=')?;
    let is_name = !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    is_name.then_some((name, value))
}

/// The arguments of a script by name, with `-` between words: `--num_layers=32`, `--num-layers 32`, `--num-layers: 32`.
pub(super) fn read_arguments(text: &str) -> BTreeMap<String, Vec<String>> {
    let (mut variables, mut found) = (BTreeMap::new(), BTreeMap::<String, Vec<String>>::new());
    let joined = text.replace("\\\r\n", " ").replace("\\\n", " ");
    for line in joined.lines() {
        // A value stands on its key's line.
        let mut last: Option<String> = None;
        let mut words: Vec<String> = Vec::new();
        for word in words_of_line(line) {
            match assignment(&word) {
                // A variable with arguments is used once.
                Some((_, value)) if value.trim_start().starts_with("--") => {
                    words.extend(words_of_line(&with_variables(value, &variables)));
                }
                Some((name, value)) => {
                    variables.insert(name.to_owned(), with_variables(value, &variables));
                }
                None => words.push(with_variables(&word, &variables)),
            }
        }
        for word in words {
            match word.strip_prefix("--") {
                Some(named) if !named.is_empty() => {
                    let (name, value) = named.split_once('=').unwrap_or((named, ""));
                    let key = name.trim_end_matches(':').replace('_', "-");
                    found.insert(
                        key.clone(),
                        Some(value.to_owned()).filter(|value| !value.is_empty()).into_iter().collect(),
                    );
                    last = Some(key);
                }
                _ if word.ends_with(".py") || word.starts_with("${") => last = None,
                _ => {
                    if let Some(values) = last.as_ref().and_then(|key| found.get_mut(key)) {
                        values.push(word);
                    }
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn scripts_are_read_as_a_shell_reads_them() {
        let script = r#"
            #!/bin/bash
            export TP=4   # a comment
            GPUS=${GPUS:-8}
            MODEL="--num-layers 32 --hidden_size=4096"
            PLAN=(
              --tensor-model-parallel-size $TP \
              # in an array
              --moe-layer-freq '([0]*3+[1]*58)'
              --recompute-modules mlp moe_act
              --lr 1e-4)
            torchrun --nproc_per_node ${GPUS} --nnodes $NODES pretrain_gpt.py $MODEL "${PLAN[@]}" --bf16
        "#;
        let found = read_arguments(script);
        let of = |key: &str| found[key].join(" ");
        assert_eq!((of("num-layers"), of("hidden-size")), ("32".to_owned(), "4096".to_owned()));
        assert_eq!(
            (of("tensor-model-parallel-size"), of("moe-layer-freq")),
            ("4".to_owned(), "([0]*3+[1]*58)".to_owned())
        );
        assert_eq!((of("recompute-modules"), of("nproc-per-node")), ("mlp moe_act".to_owned(), "8".to_owned()));
        assert_eq!((of("nnodes"), of("bf16"), of("lr")), ("$NODES".to_owned(), String::new(), "1e-4".to_owned()));
        assert_eq!(read_arguments("  --num-layers: 4\n  --bf16: true")["bf16"], ["true"]);
    }
}
