//! Runs every command of the README and of the book. In blocks marked `console`, lines that begin with `$ ` are
//! commands. Blocks marked `LANGUAGE,file=NAME` are files that they need. Blocks marked `console,long` run with the
//! ignored tests, as do the README's indented commands and the examples in its table of verbs.

use crate::support::{chosen_program, files_with_ending, repository_path};
use std::path::Path;
use std::process::Command;

/// A block between fences.
struct Block {
    /// The text after the opening fence.
    info: String,
    text: String,
}

fn blocks(page: &str) -> Vec<Block> {
    let mut found: Vec<Block> = Vec::new();
    let mut open = false;
    for line in page.lines() {
        match line.strip_prefix("```") {
            Some(info) if !open => {
                found.push(Block { info: info.to_owned(), text: String::new() });
                open = true;
            }
            Some(_) => open = false,
            None if open => {
                let block = found.last_mut().unwrap();
                block.text.push_str(line);
                block.text.push('\n');
            }
            None => {}
        }
    }
    assert!(!open, "a block is not closed");
    found
}

/// Returns the paths of the README and of every page of the book.
fn pages() -> Vec<String> {
    let mut pages = files_with_ending("docs/src", ".md");
    pages.push(repository_path("README.md").display().to_string());
    pages
}

/// Returns the commands outside blocks: indented lines, and the last cells of tables.
fn examples(page: &str) -> Vec<String> {
    let indented =
        |line: &str| line.strip_prefix("    coplace ").map(|rest| rest.split("  #").next().unwrap().trim().to_owned());
    let in_table = |line: &str| {
        let cell = line.strip_suffix("` |")?.rsplit('`').next()?;
        cell.strip_prefix("coplace ").map(str::to_owned)
    };
    page.lines()
        .filter_map(|line| indented(line).or_else(|| in_table(line)))
        .map(|rest| format!("coplace {rest}"))
        .collect()
}

/// Replaces RUN in a command by the newest run.
fn of_newest_run(command: &str, dir: &Path) -> String {
    if !command.contains("runs/RUN") {
        return command.to_owned();
    }
    let runs = std::fs::read_dir(dir.join("runs")).unwrap().map(|entry| entry.unwrap());
    let newest = runs.max_by_key(|entry| entry.metadata().unwrap().modified().unwrap()).unwrap();
    command.replace("RUN", newest.file_name().to_str().unwrap())
}

/// Runs the commands of a page in a directory of its own that contains the folders of the repository. Returns their
/// number.
fn run(page: &str, long: bool) -> usize {
    let text = std::fs::read_to_string(page).unwrap();
    let dir = tempfile::tempdir().unwrap();
    for folder in ["docs", "interop", "measured", "results", "search", "sim", "step", "workloads"] {
        std::os::unix::fs::symlink(repository_path(folder), dir.path().join(folder)).unwrap();
    }
    let binary = chosen_program();
    let path = std::env::join_paths(
        std::iter::once(binary.parent().unwrap().to_path_buf())
            .chain(std::env::split_paths(&std::env::var_os("PATH").unwrap())),
    );
    let (path, mut count) = (path.unwrap(), 0);
    let mut check = |command: &str| {
        let output =
            Command::new("sh").args(["-c", command]).current_dir(dir.path()).env("PATH", &path).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{page}: {command}\n{said}");
        count += 1;
    };
    for block in blocks(&text) {
        if let Some((_, name)) = block.info.split_once(",file=") {
            std::fs::write(dir.path().join(name), &block.text).unwrap();
        }
        if block.info != (if long { "console,long" } else { "console" }) {
            continue;
        }
        // A line that ends with a backslash goes on in the next one, as in a shell.
        for command in block.text.replace("\\\n", "").lines().filter_map(|line| line.strip_prefix("$ ")) {
            check(command);
        }
    }
    if long && Path::new(page) == repository_path("README.md") {
        examples(&text).iter().for_each(|command| check(&of_newest_run(command, dir.path())));
    }
    count
}

#[test]
fn the_commands_of_the_readme_and_the_book_run() {
    let pages = pages();
    let counts: Vec<usize> = std::thread::scope(|scope| {
        let runs: Vec<_> = pages.iter().map(|page| scope.spawn(move || run(page, false))).collect();
        runs.into_iter().map(|run| run.join().unwrap()).collect()
    });
    assert!(counts.iter().sum::<usize>() > 25, "{counts:?}");
}

/// `.ci/run` runs this test.
#[test]
#[ignore = "takes minutes without optimisation"]
fn the_long_commands_of_the_book_run() {
    assert!(pages().iter().map(|page| run(page, true)).sum::<usize>() >= 25);
}

#[test]
fn the_book_has_every_page_and_every_link_leads_somewhere() {
    let summary = std::fs::read_to_string(repository_path("docs/src/SUMMARY.md")).unwrap();
    for page in pages() {
        let path = Path::new(&page);
        let name = path.file_name().unwrap().to_str().unwrap();
        assert!(
            ["SUMMARY.md", "README.md"].contains(&name) || summary.contains(&format!("({name})")),
            "{name} is not in SUMMARY.md"
        );
        let text = std::fs::read_to_string(path).unwrap();
        for link in text.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(link, _)| link) {
            let file = link.split('#').next().unwrap();
            if !file.is_empty() && !file.starts_with("http") {
                assert!(path.parent().unwrap().join(file).exists(), "{name}: {link} leads nowhere");
            }
        }
    }
}
