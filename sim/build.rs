//! Embeds the templates: every `templates/<kind>/*.toml` becomes an entry of `<KIND>`, a sorted table of (name, text),
//! in `$OUT_DIR/templates.rs`. A chip or a fabric is added as a file.

#![allow(clippy::print_stdout)] // cargo reads a build script's stdout

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

fn main() -> io::Result<()> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default()).join("templates");
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("templates.rs");
    let mut code = String::new();
    for kind in ["chips", "fabrics"] {
        let folder = root.join(kind);
        println!("cargo:rerun-if-changed={}", folder.display());
        let files = toml_files(&folder)?;
        let upper = kind.to_uppercase();
        let _ = writeln!(code, "#[allow(dead_code)]\npub(crate) static {upper}: &[(&str, &str)] = &[");
        for file in files {
            println!("cargo:rerun-if-changed={}", file.display());
            let name = file.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let _ = writeln!(code, "    ({name:?}, include_str!({:?})),", file.display().to_string());
        }
        code.push_str("];\n");
    }
    fs::write(out, code)
}

/// Returns the `.toml` files of a folder, sorted by name; none if the folder does not exist.
fn toml_files(folder: &Path) -> io::Result<Vec<PathBuf>> {
    if !folder.is_dir() {
        return Ok(Vec::new());
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "toml") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}
