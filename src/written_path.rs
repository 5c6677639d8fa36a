//! Paths that a verb writes to. Their type distinguishes them from paths that are read, so that a caller can refuse
//! them.

use clap::builder::{MapValueParser, PathBufValueParser, TypedValueParser, ValueParserFactory};
use std::ops::Deref;
use std::path::{Path, PathBuf};

/// The path of a file or directory that a verb writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenPath(PathBuf);

impl ValueParserFactory for WrittenPath {
    type Parser = MapValueParser<PathBufValueParser, fn(PathBuf) -> Self>;

    fn value_parser() -> Self::Parser {
        PathBufValueParser::new().map(Self)
    }
}

impl Deref for WrittenPath {
    type Target = Path;

    fn deref(&self) -> &Path {
        &self.0
    }
}

impl AsRef<Path> for WrittenPath {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}
