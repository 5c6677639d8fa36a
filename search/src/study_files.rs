//! The built-in studies' files, embedded at build time.

use include_dir::{Dir, include_dir};

static STUDIES: Dir<'_> = include_dir!("$CARGO_MANIFEST_DIR/studies");

/// The built-in studies' names, sorted.
pub(crate) fn names() -> Vec<String> {
    let stem = |f: &include_dir::File<'_>| f.path().file_stem().map(|s| s.to_string_lossy().into_owned());
    let mut names: Vec<String> = STUDIES.files().filter_map(stem).collect();
    names.sort();
    names
}

/// The canonical name and the text of a built-in study. Names are compared as everywhere in coplace (`are_same_name`).
pub(crate) fn find(name: &str) -> Option<(String, &'static str)> {
    let own = names().into_iter().find(|own| sim::names::are_same_name(own, name))?;
    let text = STUDIES.get_file(format!("{own}.toml"))?.contents_utf8()?;
    Some((own, text))
}

/// The text of a file of `search/studies/hindcast/`, by its stem.
pub(crate) fn hindcast_text(stem: &str) -> Option<&'static str> {
    STUDIES.get_file(format!("hindcast/{stem}.toml"))?.contents_utf8()
}
