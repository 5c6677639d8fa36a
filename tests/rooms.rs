//! Checks that the modules of a crate form no cycle. A reader can start with those that need nothing.
//!
//! The rooms of a crate are its top-level modules with everything in them, without tests.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The crates; the program comes last.
const CRATES: [&str; 6] = ["sim", "workloads", "step", "search", "results", "."];

type Needs = BTreeMap<String, BTreeSet<String>>;

#[test]
fn the_rooms_of_a_crate_form_no_circle() {
    for name in CRATES {
        let needs = needs(&Path::new(env!("CARGO_MANIFEST_DIR")).join(name).join("src"));
        assert!(needs.len() > 1, "{name}: no modules found");
        let circle = circling(&needs);
        let why: Vec<String> = circle.iter().map(|room| format!("{room} needs {:?}", needs[room])).collect();
        assert!(circle.is_empty(), "{name}: {}", why.join("; "));
    }
}

#[test]
fn a_circle_is_found() {
    let needs = |pairs: &[(&str, &str)]| {
        let mut all = Needs::new();
        for (a, b) in pairs {
            all.entry((*b).into()).or_default();
            all.entry((*a).into()).or_default().insert((*b).into());
        }
        all
    };
    assert!(circling(&needs(&[("a", "b"), ("b", "c"), ("a", "c")])).is_empty());
    assert_eq!(circling(&needs(&[("a", "b"), ("b", "c"), ("c", "b"), ("c", "d")])), ["b", "c"]);
    let text = "use crate::{one, two::Two};\nuse super::super::three::Three;\nfn f() { crate::four::f() } // crate::five";
    let found: Vec<String> = named(&code(text), 2).into_iter().collect();
    assert_eq!(found, ["four", "one", "three", "two"]);
}

/// The modules that each top-level module of a crate needs.
fn needs(source: &Path) -> Needs {
    let mut files = Vec::new();
    collect(source, &mut files);
    let place = |file: &PathBuf| -> Vec<String> {
        let path = file.strip_prefix(source).unwrap().with_extension("");
        let mut parts: Vec<String> = path.iter().map(|part| part.to_str().unwrap().to_owned()).collect();
        if matches!(parts.last().map(String::as_str), Some("mod" | "lib" | "main")) {
            parts.pop();
        }
        parts
    };
    let placed: Vec<(Vec<String>, &PathBuf)> =
        files.iter().map(|file| (place(file), file)).filter(|(parts, _)| !parts.is_empty()).collect();
    let mut needs: Needs = placed.iter().map(|(parts, _)| (parts[0].clone(), BTreeSet::new())).collect();
    for (parts, file) in placed.iter().filter(|(parts, _)| !parts.iter().any(|part| part.contains("test"))) {
        let found = named(&code(&fs::read_to_string(file).unwrap()), parts.len());
        let others: Vec<String> = found.into_iter().filter(|room| *room != parts[0] && needs.contains_key(room)).collect();
        needs.get_mut(&parts[0]).unwrap().extend(others);
    }
    needs
}

fn collect(directory: &Path, files: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            collect(&path, files);
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
}

/// The code of a file without comments and without the tests at its end.
fn code(text: &str) -> String {
    let text = text.split("#[cfg(test)]\nmod").next().unwrap();
    text.lines().map(|line| line.split("//").next().unwrap()).collect::<Vec<_>>().join("\n")
}

/// The first names of paths from the crate's root, which is `depth` modules above the code.
fn named(code: &str, depth: usize) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let roots = ["crate::".to_owned(), "super::".repeat(depth)];
    for root in roots {
        for (at, _) in code.match_indices(&root) {
            let before = code[..at].chars().next_back();
            if before.is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':') {
                continue;
            }
            let rest = &code[at + root.len()..];
            match rest.strip_prefix('{') {
                Some(list) => found.extend(first_names(list)),
                None => found.extend(identifier(rest)),
            }
        }
    }
    found
}

fn identifier(text: &str) -> Option<String> {
    let end = text.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(text.len());
    (end > 0).then(|| text[..end].to_owned())
}

/// The first name of every path in a list after its opening brace.
fn first_names(list: &str) -> Vec<String> {
    let (mut depth, mut begins, mut names) = (0_usize, true, Vec::new());
    for (at, c) in list.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => begins = true,
            c if depth == 0 && begins && !c.is_whitespace() => {
                names.extend(identifier(&list[at..]));
                begins = false;
            }
            _ => {}
        }
    }
    names
}

/// The modules that need themselves through others.
fn circling(needs: &Needs) -> Vec<String> {
    let reaches = |from: &String| {
        let (mut seen, mut next) = (BTreeSet::new(), vec![from]);
        while let Some(room) = next.pop() {
            next.extend(needs[room].iter().filter(|other| seen.insert((*other).clone())));
        }
        seen
    };
    needs.keys().filter(|room| reaches(room).contains(*room)).cloned().collect()
}
