//! No code decides by a name or by a printed text. This test looks for comparisons of texts in the production code of
//! the crates below the answers.
//!
//! [`READERS`] are files that read input text: keys, paths, other programs' files. [`OPEN`] are the decisions that
//! remain, with their number of lines; it may only fall.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// The crates that must not decide by names.
const CRATES: [&str; 4] = ["sim", "workloads", "step", "search"];

/// Code that compares a text.
const COMPARISONS: [&str; 11] = [
    ".starts_with(",
    ".ends_with(",
    ".contains(\"",
    ".to_string() ==",
    ".to_string().contains(",
    "name == \"",
    "name != \"",
    "label == \"",
    "model_type == \"",
    "model_type != \"",
    "matches!(*name, \"",
];

/// Files and folders that compare input text, with the text that they read.
const READERS: [(&str, &str); 24] = [
    ("sim/src/cost/named.rs", "names of measured kernels in tables"),
    ("sim/src/files/text.rs", "the byte order mark of a file"),
    ("sim/src/hardware/document.rs", "keys of chip files"),
    ("sim/src/hardware/fields.rs", "keys of chip files"),
    ("sim/src/hardware/sources.rs", "keys of chip files"),
    ("sim/src/names.rs", "names that a user types"),
    ("sim/src/network/document.rs", "keys of fabric files"),
    ("sim/src/network/file.rs", "paths of fabric files"),
    ("workloads/src/import/", "config.json of Hugging Face"),
    ("workloads/src/layer_names.rs", "names of operators in presets and policies"),
    ("workloads/src/memory/checks.rs", "keys of preset files"),
    ("workloads/src/memory/policy.rs", "tensor lists of preset files"),
    ("workloads/src/memory/preset.rs", "keys and paths of preset files"),
    ("workloads/src/recompute_policy/tensor_names.rs", "the text of a policy"),
    ("workloads/src/technique/change.rs", "operator names in preset files"),
    ("step/src/stack/bridge_fields.rs", "values of recipes"),
    ("step/src/stack/software.rs", "keys and paths of stack files"),
    ("search/src/ask/question.rs", "paths in a question"),
    ("search/src/space/grid.rs", "keys of dimensions"),
    ("search/src/space/lookup.rs", "keys of a table in a study"),
    ("search/src/space/mod.rs", "keys of dimensions"),
    ("search/src/space/names.rs", "formulas of a study"),
    ("search/src/study.rs", "paths and keys of studies"),
    ("search/src/study/place.rs", "lines of studies"),
];

/// Files that decide by a printed text, with their lines.
const OPEN: [(&str, usize); 1] = [("workloads/src/further_tokens.rs", 1)];

#[test]
fn no_code_below_the_answers_decides_by_a_name() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut found: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for file in CRATES.iter().flat_map(|name| rust_files(&root.join(name).join("src"))) {
        let name = file.strip_prefix(root).unwrap().display().to_string();
        let lines = compared_lines(&fs::read_to_string(&file).unwrap());
        if !lines.is_empty() && !READERS.iter().any(|(reader, _)| name.starts_with(reader)) {
            found.insert(name, lines);
        }
    }
    let risen: Vec<String> = found
        .iter()
        .filter(|(file, lines)| OPEN.iter().find(|(open, _)| open == file).is_none_or(|(_, most)| lines.len() > *most))
        .map(|(file, lines)| format!("{file}, {}:\n  {}", lines.len(), lines.join("\n  ")))
        .collect();
    assert!(risen.is_empty(), "decisions by a name; use a typed field\n{}", risen.join("\n"));
    for (file, count) in OPEN {
        assert_eq!(found.get(file).map_or(0, Vec::len), count, "{file}: lower its number in OPEN");
    }
}

#[test]
fn comparisons_are_found_outside_comments_and_tests() {
    let code = "f(x.starts_with(\"a\"));\n// y.starts_with(z)\nif op.name == \"b\" {}\n";
    let text = &format!("{code}#[cfg(test)]\ng.ends_with(\"c\")");
    assert_eq!(compared_lines(text), ["1: f(x.starts_with(\"a\"));", "3: if op.name == \"b\" {}"]);
}

/// Returns the lines of production code with a comparison, each with its number.
fn compared_lines(text: &str) -> Vec<String> {
    let code = text.lines().enumerate().take_while(|(_, line)| !line.contains("#[cfg(test)]"));
    let code = code.map(|(at, line)| (at, line.trim())).filter(|(_, line)| !line.starts_with("//"));
    let compared = code.filter(|(_, line)| COMPARISONS.iter().any(|comparison| line.contains(comparison)));
    compared.map(|(at, line)| format!("{}: {line}", at + 1)).collect()
}

/// Returns the files of production code below a folder.
fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        if path.is_dir() {
            files.extend(rust_files(&path));
        } else if name.ends_with(".rs") && name != "tests.rs" && !name.ends_with("_tests.rs") {
            files.push(path);
        }
    }
    files
}
