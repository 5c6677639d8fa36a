//! Writes the table of built-in models from `models/*.json`. A file there adds a model.

use std::error::Error;
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::PathBuf;
use std::{env, fs};

fn main() -> Result<(), Box<dyn Error>> {
    let models = PathBuf::from(env::var("CARGO_MANIFEST_DIR")?).join("models");
    let mut paths = Vec::new();
    for entry in fs::read_dir(&models)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "json") {
            paths.push(path);
        }
    }
    paths.sort();
    let mut table = String::from("&[\n");
    for path in &paths {
        let name = path.file_stem().ok_or("a model file without a name")?.to_string_lossy();
        writeln!(table, "    ({name:?}, include_str!({:?})),", path.to_string_lossy())?;
    }
    table.push_str("]\n");
    fs::write(PathBuf::from(env::var("OUT_DIR")?).join("built_in.rs"), table)?;
    let mut out = std::io::stdout();
    writeln!(out, "cargo:rerun-if-changed=models")?;
    writeln!(out, "cargo:rerun-if-changed=build.rs")?;
    Ok(())
}
