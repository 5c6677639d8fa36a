//! Writing files so that a run killed at any moment leaves either the old file or the new one, never half of one.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// Why a file of a run could not be written.
#[derive(Debug, thiserror::Error)]
#[error("{}: cannot be written: {why}; check that the directory exists, is writable and has space left", file.display())]
pub struct WriteError {
    /// The file.
    pub file: PathBuf,
    /// What the system said.
    pub why: io::Error,
}

/// Where a file lies while it is being written: beside its destination, so that the final rename stays on one file
/// system and is atomic. The process id keeps two runs into one directory apart.
fn temporary(path: &Path) -> PathBuf {
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    path.with_file_name(format!(".{name}.{}.partial", std::process::id()))
}

/// Writes `path` atomically: `fill` writes a temporary file beside it, which is flushed to the disk and renamed.
/// On failure the temporary file is removed and what was at `path` stays.
///
/// # Errors
/// Whatever the system or `fill` reports, with the name of the destination.
pub fn write_with<F>(path: &Path, fill: F) -> Result<(), WriteError>
where
    F: FnOnce(&mut File) -> io::Result<()>,
{
    let partial = temporary(path);
    let written = (|| {
        let mut file = File::create(&partial)?;
        fill(&mut file)?;
        file.sync_all()?;
        fs::rename(&partial, path)
    })();
    written.map_err(|why| {
        // The first error is the one to report; a temporary file that cannot be removed either changes nothing.
        let _ = fs::remove_file(&partial);
        WriteError { file: path.to_path_buf(), why }
    })
}

/// Writes `contents` to `path` atomically; see [`write_with`].
///
/// # Errors
/// Whatever the system reports, with the name of the destination.
pub fn write(path: &Path, contents: &[u8]) -> Result<(), WriteError> {
    write_with(path, |file| file.write_all(contents))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_failed_write_keeps_the_old_file_and_leaves_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("record.json");
        write(&path, b"old").unwrap();
        let error = write_with(&path, |file| {
            file.write_all(b"ne")?;
            Err(io::Error::other("disk full"))
        })
        .unwrap_err();
        assert!(error.to_string().contains("record.json: cannot be written: disk full"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        write(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
    }

    #[test]
    fn a_missing_directory_is_named() {
        let error = write(Path::new("/nonexistent/dir/x.json"), b"").unwrap_err();
        assert!(error.to_string().starts_with("/nonexistent/dir/x.json: cannot be written"), "{error}");
    }
}
