//! Checks the width of lines, the names of types, and the openings of sentences in comments.
//!
//! Each rule has a ceiling, the number of offenders that remain. The test fails when a count exceeds its ceiling, and
//! lists every offender with its line. It reports a count below the ceiling, so that someone lowers the ceiling.
//! `cargo test --test language -- --nocapture` always lists the offenders.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout)]

use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The most columns of a line.
const COLUMNS: usize = 120;

/// Words that may begin questions only.
const BANNED: [&str; 5] = ["Of", "What", "Whether", "That", "Where"];

/// The rules and their ceilings.
const CEILINGS: [(&str, usize); 5] = [
    ("lines of Rust wider than 120 columns", 309),
    ("lines of Markdown wider than 120 columns, tables apart", 40),
    ("rows of Markdown tables wider than 120 columns", 205),
    ("types that are not private and share their name", 0),
    ("sentences of comments with a banned opening", 1),
];

/// Directories to skip.
const SKIPPED: [&str; 3] = ["target", ".git", "node_modules"];

#[test]
fn no_rule_of_language_has_more_offenders_than_before() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let rust = texts(root, "rs");
    let markdown = texts(root, "md");
    let is_row = |line: &str| line.trim_start().starts_with('|');
    let found = [
        wide_lines(&rust, |_| true),
        wide_lines(&markdown, |line| !is_row(line)),
        wide_lines(&markdown, is_row),
        shared_type_names(&rust),
        banned_openings(&rust),
    ];
    let mut risen = Vec::new();
    for ((rule, ceiling), offenders) in CEILINGS.iter().zip(&found) {
        let count = offenders.len();
        println!("{rule}: {count}\n  {}", offenders.join("\n  "));
        if count > *ceiling {
            risen.push(format!("{rule}: {count}, but at most {ceiling}"));
        } else if count < *ceiling {
            // Bypasses the capture of test output: the report must show when the test passes.
            writeln!(std::io::stderr(), "{rule}: {count}; the ceiling of {ceiling} can be lowered").unwrap();
        }
    }
    assert!(risen.is_empty(), "offenders are listed above\n{}", risen.join("\n"));
}

/// PyO3's macros write unsafe code, so the compiler cannot forbid it in `python/`.
#[test]
fn nothing_of_the_python_package_is_unsafe() {
    let texts = texts(&Path::new(env!("CARGO_MANIFEST_DIR")).join("python"), "rs");
    for (file, text) in &texts {
        let code = text.lines().map(|line| line.split("//").next().unwrap());
        assert!(!code.flat_map(str::split_whitespace).any(|word| word == "unsafe"), "{file}");
    }
}

#[test]
fn offenders_are_found() {
    let texts = |text: &str| Texts::from([("a.rs".into(), text.to_owned()), ("b.rs".into(), "pub struct A;".into())]);
    let wide = "x".repeat(121);
    assert_eq!(wide_lines(&texts(&format!("\n{wide}\n{}", "é".repeat(120))), |_| true), ["a.rs:2: 121 columns"]);
    let shared = shared_type_names(&texts("struct A;\npub(crate) enum B {}\npub(super) trait A {}\n  type B = u8;"));
    assert_eq!(shared, ["a.rs:3: A", "b.rs:1: A"]);
    let comments =
        "/// Of two, the first. It is. What?\n/// Whether it\n/// is so.\nf(); // That one.\n// Offers. (Where)";
    let openings = banned_openings(&texts(comments));
    let wanted = ["a.rs:1: Of two, the first", "a.rs:2: Whether it is so", "a.rs:4: That one", "a.rs:5: Where"];
    assert_eq!(openings, wanted);
    assert!(banned_openings(&texts("let x = \"// Of\";\n/// Often e.g. What, not `Of`.")).is_empty());
}

/// Files by their path from the repository's root, with their texts.
type Texts = BTreeMap<String, String>;

fn texts(root: &Path, ending: &str) -> Texts {
    let mut files = Vec::new();
    collect(root, ending, &mut files);
    let name = |file: &Path| file.strip_prefix(root).unwrap().display().to_string();
    let texts: Texts = files.iter().map(|file| (name(file), fs::read_to_string(file).unwrap())).collect();
    assert!(texts.len() > 5, "{ending}: {} files", texts.len());
    texts
}

fn collect(directory: &Path, ending: &str, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_symlink() || SKIPPED.contains(&name) {
            continue;
        }
        if path.is_dir() {
            collect(&path, ending, files);
        } else if path.extension().is_some_and(|e| e == ending) {
            files.push(path);
        }
    }
}

/// Returns the lines with more than [`COLUMNS`] characters for which `counts` is true.
fn wide_lines(texts: &Texts, counts: impl Fn(&str) -> bool) -> Vec<String> {
    let mut found = Vec::new();
    for (file, text) in texts {
        for (at, line) in text.lines().enumerate().filter(|(_, line)| counts(line)) {
            let columns = line.chars().count();
            found.extend((columns > COLUMNS).then(|| format!("{file}:{}: {columns} columns", at + 1)));
        }
    }
    found
}

/// Returns the types that are visible outside their file and share their name with another such type.
fn shared_type_names(texts: &Texts) -> Vec<String> {
    let mut places: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (file, text) in texts {
        for (at, line) in text.lines().enumerate() {
            if let Some(name) = public_type(line) {
                places.entry(name).or_default().push(format!("{file}:{}: {name}", at + 1));
            }
        }
    }
    places.into_values().filter(|places| places.len() > 1).flatten().collect()
}

/// Returns the name of the type that a line declares for other files.
fn public_type(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("pub")?;
    let rest = if rest.starts_with('(') { rest.split_once(')')?.1 } else { rest };
    let rest = rest.strip_prefix(' ')?;
    let rest = ["struct ", "enum ", "trait ", "type ", "union "].iter().find_map(|kind| rest.strip_prefix(kind))?;
    let end = rest.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(rest.len());
    // In a macro, the name is `$name`, which does not count.
    Some(&rest[..end]).filter(|name| !name.is_empty())
}

/// Returns the sentences of comments that begin with one of [`BANNED`] and are no questions.
fn banned_openings(texts: &Texts) -> Vec<String> {
    let mut found = Vec::new();
    for (file, text) in texts {
        for (line, sentence) in sentences(text) {
            let mut words = sentence.split(|c: char| !c.is_alphanumeric());
            let first = words.find(|word| !word.is_empty()).unwrap_or_default();
            if BANNED.contains(&first) && !sentence.ends_with('?') {
                let shown: String = sentence.trim_start_matches('(').chars().take(60).collect();
                found.push(format!("{file}:{line}: {}", shown.trim_end_matches(['.', ')'])));
            }
        }
    }
    found
}

/// Returns the sentences of a text's comments, each with its first line.
fn sentences(text: &str) -> Vec<(usize, String)> {
    let mut found: Vec<(usize, String)> = Vec::new();
    let mut begins = true;
    let mut last = 0;
    for (at, line) in text.lines().enumerate() {
        let Some(comment) = comment(line) else { continue };
        // A new sentence begins at a comment after code, at an item of a list, and after an empty line.
        begins |= at != last + 1 || comment.is_empty() || comment.starts_with(['-', '*', '|', '#']);
        last = at;
        for word in comment.trim_start_matches(['-', '*', '#', ' ']).split_whitespace() {
            match found.last_mut() {
                Some((_, sentence)) if !begins => {
                    sentence.push(' ');
                    sentence.push_str(word);
                }
                _ => found.push((at + 1, word.to_owned())),
            }
            let ended = word.trim_end_matches([')', '"', '`']);
            begins = ended.ends_with(['.', '?', '!']) && !ABBREVIATIONS.contains(&ended.trim_start_matches('('));
        }
    }
    found
}

/// Words that end with a full stop and end no sentence.
const ABBREVIATIONS: [&str; 8] = ["e.g.", "i.e.", "cf.", "vs.", "al.", "Fig.", "eq.", "no."];

/// Returns the text of a line's comment, without its slashes.
fn comment(line: &str) -> Option<&str> {
    let mut starts = line.match_indices("//").map(|(at, _)| at);
    // Slashes after an odd number of quotes are inside a string. Slashes after a colon are part of an address.
    let at = starts.find(|&at| line[..at].matches('"').count().is_multiple_of(2) && !line[..at].ends_with(':'))?;
    Some(line[at..].trim_start_matches('/').trim_start_matches('!').trim())
}
