//! Writes the tables of built-in models from `models/*.json`, and of their other names from `models/names.csv`. A file
//! there adds a model, a row a name.

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
    let tables = PathBuf::from(env::var("OUT_DIR")?);
    fs::write(tables.join("built_in.rs"), table)?;
    let mut names = String::from("&[\n");
    for row in fs::read_to_string(models.join("names.csv"))?.lines().skip(1) {
        let (name, model) =
            row.split_once(',').ok_or_else(|| format!("names.csv: `{row}`: must be a name and a model"))?;
        writeln!(names, "    ({name:?}, {model:?}),")?;
    }
    names.push_str("]\n");
    fs::write(tables.join("other_names.rs"), names)?;
    let mut out = std::io::stdout();
    writeln!(out, "cargo:rerun-if-changed=models")?;
    writeln!(out, "cargo:rerun-if-changed=build.rs")?;
    Ok(())
}
