//! Reads arguments from a shell script, a file of arguments, or a list of `--key: value`.

use super::shell::{ShellRun, UNDECIDED, merge_words, options_of, run_script};
use super::shell_text::{ShellValue, ShellVariables, Token, fields, tokens};
use std::collections::BTreeMap;

/// Deepest nesting of variables that refer to each other.
const MOST_DEPTH: usize = 16;

/// The options of `torchrun` and `deepspeed` that are read: the numbers of nodes and of devices per node.
const OF_THE_LAUNCHER: [&str; 2] = ["nnodes", "nproc-per-node"];

/// Returns the variable if a word consists of nothing else: `$NAME`, `${NAME}` or `${NAME[@]}`.
fn referred(word: &str) -> Option<&str> {
    let name = word.strip_prefix('$')?;
    let name = name.strip_prefix('{').and_then(|name| name.strip_suffix('}')).unwrap_or(name);
    Some(name.trim_end_matches("[@]").trim_end_matches("[*]"))
}

/// Replaces the variables in the words of a command, as `eval` would. If branches set a variable to different options,
/// the options that differ are undecided.
fn resolve(words: &[String], variables: &ShellVariables, depth: usize) -> Vec<String> {
    let mut found = Vec::new();
    for word in words {
        match referred(word).and_then(|name| variables.get(name)) {
            Some(ShellValue::OneOf(lists)) if depth < MOST_DEPTH => {
                let lists: Vec<Vec<String>> = lists.iter().map(|list| resolve(list, variables, depth + 1)).collect();
                match lists.iter().flatten().any(|word| word.starts_with("--")) {
                    true => found.extend(merge_words(lists.iter())),
                    false => found.push(word.clone()),
                }
            }
            _ => {
                let again = word.contains("--") && word.contains(char::is_whitespace) || word.contains('$');
                let parts: Vec<String> = if again && !word.contains("$(") {
                    let words = tokens(word).into_iter().filter_map(|token| match token {
                        Token::Word(word) => Some(fields(&word, variables)),
                        Token::Operator(sign) if sign == "(" || sign == ")" => Some(vec![sign]),
                        _ => None,
                    });
                    words.flatten().collect()
                } else {
                    // `eval` removes quotes that come from a variable's text.
                    let inside = ['\'', '"'].iter().find_map(|q| word.strip_prefix(*q)?.strip_suffix(*q));
                    vec![inside.unwrap_or(word).to_owned()]
                };
                match parts.as_slice() != [word.clone()] && depth < MOST_DEPTH {
                    true => found.extend(resolve(&parts, variables, depth + 1)),
                    false => found.extend(parts),
                }
            }
        }
    }
    found
}

/// Returns, for every command that trains, the launcher's numbers of devices and the words after the program. If no
/// command trains, returns all words and the variables that hold options as one list.
fn launches(run: &ShellRun) -> Vec<Vec<String>> {
    let commands: Vec<Vec<String>> = run.commands.iter().map(|words| resolve(words, &run.variables, 0)).collect();
    let with_program = commands.iter().filter_map(|words| {
        let program = words.iter().position(|word| word.ends_with(".py"))?;
        let mut kept = Vec::new();
        for (name, values) in options_of(&words[..program]) {
            let name = if name == "num-gpus" { "nproc-per-node" } else { name.trim_start_matches("num-nodes") };
            let name = if name.is_empty() { "nnodes" } else { name };
            if OF_THE_LAUNCHER.contains(&name) {
                kept.push(format!("--{name}"));
                kept.extend(values);
            }
        }
        kept.extend_from_slice(&words[program + 1..]);
        Some(kept)
    });
    let training: Vec<Vec<String>> = with_program.filter(|words| is_training(words)).collect();
    if !training.is_empty() {
        return training;
    }
    let set = run.variables.values().map(|value| match value {
        ShellValue::Known(words) => resolve(words, &run.variables, 0),
        ShellValue::OneOf(lists) => merge_words(lists.iter()),
    });
    let options = set.filter(|words| words.first().is_some_and(|word| word.starts_with("--")));
    vec![options.chain(commands).flatten().collect()]
}

fn is_training(words: &[String]) -> bool {
    let known = |word: &String| {
        let name = word.replace('_', "-");
        name.starts_with("--num-layers") || name.starts_with("--tensor-model-parallel-size")
    };
    words.iter().any(known) || words.iter().any(|word| word.ends_with(".yml"))
}

/// Returns the arguments of a script by name, with `-` between words: `--num_layers=32`, `--num-layers 32`,
/// `--num-layers: 32`.
pub(super) fn read_arguments(text: &str) -> BTreeMap<String, Vec<String>> {
    if let Some(list) = read_list(text) {
        return list;
    }
    let launches = launches(&run_script(text));
    let words = match launches.as_slice() {
        [only] => only.clone(),
        several => merge_words(several.iter()),
    };
    let mut found: BTreeMap<String, Vec<String>> = options_of(&words).into_iter().collect();
    for name in OF_THE_LAUNCHER {
        if found.get(name).is_some_and(|values| values == &[UNDECIDED]) {
            found.remove(name);
        }
    }
    found
}

/// Returns the settings `KEY=VALUE` of the only command that trains with a `.yml`; empty if there is none or more than
/// one.
pub(super) fn settings_of_script(text: &str) -> BTreeMap<String, Vec<String>> {
    let launches = launches(&run_script(text));
    let [only] = launches.as_slice() else { return BTreeMap::new() };
    let settings = only.iter().skip_while(|word| !word.ends_with(".yml")).filter_map(|word| word.split_once('='));
    settings.map(|(key, value)| (key.to_owned(), vec![value.to_owned()])).collect()
}

/// Reads a YAML list of `--key: value`; `None` for another text.
fn read_list(text: &str) -> Option<BTreeMap<String, Vec<String>>> {
    let mut found = BTreeMap::<String, Vec<String>>::new();
    let mut last: Option<(String, usize)> = None;
    for line in text.lines() {
        let indent = line.len() - line.trim_start().len();
        let line = line.split(" #").next().unwrap_or_default().trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let pair = line.strip_prefix("--").and_then(|line| line.split_once(':'));
        let named = pair.filter(|(key, _)| key.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_'));
        let value = match named {
            Some((key, value)) => {
                let key = key.replace('_', "-");
                found.insert(key.clone(), Vec::new());
                last = Some((key, indent));
                value
            }
            // A value may stand on a line below its key.
            None if last.as_ref().is_some_and(|(_, of_key)| indent > *of_key) => line.trim_start_matches("- "),
            None => {
                last = None;
                continue;
            }
        };
        let value = value.trim();
        let several = value.strip_prefix('[').and_then(|list| list.strip_suffix(']')).filter(|_| !value.contains('*'));
        let values = several.map_or_else(|| vec![value], |list| list.split(',').collect());
        let plain = values.iter().map(|value| value.trim().trim_matches(['\'', '"'])).filter(|value| !value.is_empty());
        if let Some(values) = last.as_ref().and_then(|(key, _)| found.get_mut(key)) {
            values.extend(plain.map(str::to_owned));
        }
    }
    Some(found).filter(|found| !found.is_empty())
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

    /// A launch behind conditions, with options quoted in lists.
    const BRANCHES: &str = r#"
        # it's a comment with (a parenthesis
        GPUS=8; NODES=2
        WORLD=$(($GPUS*$NODES))
        FORMAT=${FORMAT:-"fp8"}
        SIZE=$1
        TRAINING=(
            --micro-batch-size 1 # don't
            --global-batch-size $(( WORLD * 4 ))
        )
        declare -a MORE=()
        if [[ "$FORMAT" == "fp8" ]]; then
            MORE+=("--fp8-format hybrid" "--split '99,1,0'")
        else
            MORE+=(--bf16)
        fi
        if [ -n "${WANDB_KEY}" ]; then
            MORE+=(--wandb-project x)
        fi
        if [ $SIZE = 8B ]; then
            LAYERS=32; experts=""; kept="--swiglu"
        elif [ $SIZE = 70B ]; then
            LAYERS=80
            experts=" \
                --num-experts 8 --moe-router-topk 2"
            kept="--swiglu"
        else
            echo "--unknown size"; exit 1
        fi
        cat <<EOT > config.json
        { "--mystery": $SIZE }
        EOT
        TRAINING+=("${MORE[@]}")
        docker_options="--ipc host"
        run="torchrun --nproc_per_node $GPUS --nnodes $NODES --rdzv-id 1 pretrain_gpt.py --num-layers ${LAYERS} \
            ${TRAINING[@]} ${experts} ${kept}"
        eval $run 2>&1 | tee log.txt
    "#;

    #[test]
    fn conditions_that_the_script_decides_are_followed() {
        let found = read_arguments(BRANCHES);
        let of = |key: &str| found.get(key).map(|values| values.join(" "));
        for (key, value) in [
            ("global-batch-size", "64"),
            ("fp8-format", "hybrid"),
            ("split", "99,1,0"),
            ("nnodes", "2"),
            ("swiglu", ""),
            ("num-layers", "${LAYERS}"),
            ("num-experts", UNDECIDED),
        ] {
            assert_eq!(of(key).as_deref(), Some(value), "{key}: {found:?}");
        }
        for absent in ["bf16", "wandb-project", "mystery", "ipc", "rdzv-id", "unknown"] {
            assert_eq!(of(absent), None, "{absent}");
        }
        let decided = read_arguments(&BRANCHES.replace("SIZE=$1", "SIZE=8B"));
        assert_eq!((decided["num-layers"].join(" "), decided.get("num-experts")), ("32".to_owned(), None));
    }

    #[test]
    fn a_list_of_yaml_has_values_below_their_keys() {
        let list = "ENV:\n  A: 1\nMODEL_ARGS:\n  # one\n  --num-layers: 4 # layers\n  --flag:\n    true\n  \
                    --recompute-modules: [core_attn, mlp]\n  --moe-layer-freq: ([0]*1+[1]*3)\nMETRICS:\n\n";
        let found = read_arguments(list);
        assert_eq!((&*found["num-layers"].join(" "), &*found["flag"].join(" ")), ("4", "true"));
        assert_eq!(found["recompute-modules"], ["core_attn", "mlp"]);
        assert_eq!(found["moe-layer-freq"], ["([0]*1+[1]*3)"]);
    }

    #[test]
    fn settings_of_a_command_are_read() {
        let script = "N=4\npython3 MaxText/train.py MaxText/configs/base.yml run_name=x \\\n  \
                      ici_fsdp_parallelism=$((N*4)) per_device_batch_size=2 | tee log";
        let found = settings_of_script(script);
        assert_eq!((&*found["ici_fsdp_parallelism"][0], &*found["per_device_batch_size"][0]), ("16", "2"));
    }
}
