//! Runs the command and reads its output.

use std::path::{Path, PathBuf};

/// The result of a call of the command.
#[derive(Debug)]
pub struct CommandOutput {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl CommandOutput {
    /// Returns the standard output. Fails unless the exit code is 0 and standard error is empty.
    #[track_caller]
    pub fn expect_result(self) -> String {
        assert_eq!((self.code, self.stderr.as_str()), (0, ""), "{}", self.stdout);
        self.stdout
    }

    /// Returns the standard output as JSON. Fails as [`Self::expect_result`] does.
    #[track_caller]
    pub fn expect_json(self) -> serde_json::Value {
        serde_json::from_str(&self.expect_result()).unwrap()
    }

    /// Returns the message of a call with wrong input. Fails unless the exit code is 2, standard output is empty, and
    /// standard error is a single message without a panic.
    #[track_caller]
    pub fn expect_refusal(self) -> String {
        assert_eq!((self.code, self.stdout.as_str()), (2, ""), "{}", self.stderr);
        assert!(self.stderr.starts_with("error: ") && self.stderr.matches("error: ").count() == 1, "{}", self.stderr);
        assert!(!self.stderr.contains("panicked"), "{}", self.stderr);
        self.stderr
    }
}

/// Returns the arguments to add to a call: `--draws 0` for a search, because draws would take most of the suite's time.
/// A search with `--draws` keeps it. A part and a robust search never draw.
fn without_draws(arguments: &[&str]) -> &'static [&'static str] {
    let decided = ["--draws", "--shard", "--robust"].iter().any(|flag| arguments.contains(flag));
    if arguments.first() == Some(&"search") && !decided { &["--draws", "0"] } else { &[] }
}

/// Returns the program in `COPLACE_PROGRAM`, such as an older or an optimised one, or else the one that cargo built.
pub fn chosen_program() -> PathBuf {
    let built = || assert_cmd::cargo::cargo_bin!("coplace").to_path_buf();
    std::env::var_os("COPLACE_PROGRAM").map_or_else(built, PathBuf::from)
}

/// Calls the command in a directory.
pub fn run_coplace_in(directory: &Path, arguments: &[&str]) -> CommandOutput {
    // This width has room for all columns.
    run_on_screen(directory, "170", arguments)
}

/// Calls the command in a directory, for a screen of this many columns.
pub fn run_on_screen(directory: &Path, columns: &str, arguments: &[&str]) -> CommandOutput {
    let mut command = assert_cmd::cargo::cargo_bin_cmd!("coplace");
    // Progress output depends on the machine's speed, so it is switched off.
    command.env("COPLACE_LOG", "warn").env("COLUMNS", columns);
    let output = command.current_dir(directory).args(arguments).args(without_draws(arguments)).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    CommandOutput { code: output.status.code().unwrap(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// Calls the command in the root of the repository.
pub fn run_coplace(arguments: &[&str]) -> CommandOutput {
    run_coplace_in(Path::new(env!("CARGO_MANIFEST_DIR")), arguments)
}

/// Returns the path of a file of the repository.
pub fn repository_path(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Returns the text of a file of the repository.
pub fn read_repository_file(path: &str) -> String {
    std::fs::read_to_string(repository_path(path)).unwrap()
}

/// Returns the built-in study `smoke` with some of its lines (`key = ...`) replaced.
pub fn study_with(changes: &[(&str, &str)]) -> String {
    let mut text = read_repository_file("search/studies/smoke.toml");
    for (key, value) in changes {
        let line = text.lines().find(|line| line.starts_with(&format!("{key} = "))).unwrap().to_owned();
        text = text.replace(&line, &format!("{key} = {value}"));
    }
    text
}

/// Returns a study of four chips, which a search decides in seconds.
pub fn small_study() -> String {
    study_with(&[
        ("tensor_cores", "[8, 4]"),
        ("vector_cores", "[2, 4]"),
        ("array_widths", "[128]"),
        ("global_buffer_mib", "[32]"),
    ])
}

/// Returns the config.json of a small Llama-like model with one key changed (`None` removes it).
pub fn config_with(key: &str, value: Option<serde_json::Value>) -> String {
    let mut config: serde_json::Value =
        serde_json::from_str(&read_repository_file("workloads/tests/configs/smollm2_135m.json")).unwrap();
    let map = config.as_object_mut().unwrap();
    map.remove(key);
    map.extend(value.map(|value| (key.to_owned(), value)));
    serde_json::to_string_pretty(&config).unwrap()
}

/// Returns the paths of the files in a directory with this extension, sorted.
pub fn files_with_ending(directory: &str, ending: &str) -> Vec<String> {
    let entries = std::fs::read_dir(repository_path(directory)).unwrap();
    let mut paths: Vec<String> =
        entries.map(|e| e.unwrap().path().display().to_string()).filter(|p| p.ends_with(ending)).collect();
    paths.sort();
    paths
}

/// Returns the file names in a directory, sorted.
pub fn file_names(directory: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        std::fs::read_dir(directory).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Opens an address in Chromium. Returns its console output and the resulting page.
pub fn browse_page(address: &str) -> (String, String) {
    let profile = tempfile::tempdir().unwrap();
    let profile = format!("--user-data-dir={}", profile.path().display());
    let flags =
        ["--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--window-size=1280,900"];
    let output = std::process::Command::new("chromium")
        .args(flags)
        .args([&profile, "--virtual-time-budget=20000", "--dump-dom", address])
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let console: Vec<&str> = said.lines().filter(|line| line.contains(":CONSOLE")).collect();
    (console.join("\n"), String::from_utf8_lossy(&output.stdout).into_owned())
}
