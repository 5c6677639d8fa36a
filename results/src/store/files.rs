//! Writes files atomically. If the process is killed at any moment, a file has either its old contents or its new ones,
//! never a part.

use sim::files::{FaultParts, StructuredError};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// An error of writing a file of a run.
#[derive(Debug, thiserror::Error)]
#[error("{}: cannot be written: {why}; {}", file.display(), self.cure())]
pub struct WriteError {
    /// The file.
    pub file: PathBuf,
    /// Message of the system.
    pub why: io::Error,
}

impl StructuredError for WriteError {
    fn fault_parts(&self) -> FaultParts {
        FaultParts::of_file(self.file.display().to_string(), format!("cannot be written: {}", self.why), self.cure())
    }
}

impl WriteError {
    fn cure(&self) -> &'static str {
        // An error without a code of the system comes from `refuse_link`.
        let is_link = self.why.kind() == io::ErrorKind::InvalidInput && self.why.raw_os_error().is_none();
        match is_link {
            true => "remove it, or give another directory",
            false => "check that the directory exists, is writable and has space left",
        }
    }
}

/// An error type that may hold a [`WriteError`].
pub trait Unwritable {
    /// Returns the write error, which has the file and the system's message; `None` for other errors.
    fn write_error(&self) -> Option<&WriteError>;
}

impl Unwritable for WriteError {
    fn write_error(&self) -> Option<&WriteError> {
        Some(self)
    }
}

/// Limit on files that are read whole, in bytes: 1 GiB. A device (`/dev/zero`) may have no end.
const MOST_BYTES: u64 = 1 << 30;

/// Reads a file.
///
/// # Errors
/// Errors of the system; a file of more than 1 GiB.
pub(crate) fn read_whole(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    match bytes.len() as u64 {
        ..=MOST_BYTES => Ok(bytes),
        _ => Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it has more than {} GiB", MOST_BYTES >> 30))),
    }
}

/// Returns the temporary path of a file that is being written. It lies beside the destination, so that the final rename
/// stays on one file system and is atomic. The process id in the name separates two runs in one directory.
pub(crate) fn temporary_path(path: &Path) -> PathBuf {
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    path.with_file_name(format!(".{name}.{}.partial", std::process::id()))
}

/// Returns the file that a write to `path` replaces: the target of a link, or `path` itself if it does not exist.
fn resolve_destination(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf())
}

/// Refuses a link in place of a file whose name coplace chooses. Another user may own the directory, and a link could
/// lead the write to any file.
///
/// # Errors
/// The path is a link.
pub(crate) fn refuse_link(path: &Path) -> Result<(), WriteError> {
    match fs::symlink_metadata(path).is_ok_and(|at| at.is_symlink()) {
        false => Ok(()),
        true => Err(WriteError {
            file: path.into(),
            why: io::Error::new(io::ErrorKind::InvalidInput, "it is a link, which is not followed"),
        }),
    }
}

/// Creates the temporary file of a destination. A file or link that lies there is removed, not written through.
fn create_temporary(destination: &Path) -> io::Result<File> {
    let temporary = temporary_path(destination);
    match fs::remove_file(&temporary) {
        Err(why) if why.kind() != io::ErrorKind::NotFound => return Err(why),
        _ => {}
    }
    File::options().write(true).create_new(true).open(temporary)
}

/// True if `path` is a device or a pipe. Such a path is written directly, because a rename would replace it with a
/// file.
fn is_special(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|at| !at.is_file() && !at.is_dir())
}

/// Writes `contents` to `path` atomically. A temporary file beside it is written, flushed to the disk and renamed. On
/// failure the temporary file is removed and the old contents stay. Devices and pipes are written directly.
///
/// # Errors
/// Errors of the system, with the name of the destination.
pub fn write_file(path: &Path, contents: &[u8]) -> Result<(), WriteError> {
    write_files(&[(path.to_path_buf(), contents.to_vec())])
}

/// Writes several files: first all temporary files, then all renames, in the given order. A failure before the renames
/// leaves all regular files unchanged; devices and pipes are written directly. A failure or kill between two renames
/// leaves the earlier files new and the later ones old.
///
/// # Errors
/// Errors of the system, with the name of the destination.
pub fn write_files(files: &[(PathBuf, Vec<u8>)]) -> Result<(), WriteError> {
    replace_files(files, &[])
}

/// Writes several files as [`write_files`] does, then removes the files of `stale`. Files that are not there are
/// skipped.
///
/// # Errors
/// Errors of the system, with the name of the file. Nothing is removed unless all files are in place.
pub fn replace_files(files: &[(PathBuf, Vec<u8>)], stale: &[PathBuf]) -> Result<(), WriteError> {
    let done = (|| {
        for (path, contents) in files {
            let written = if is_special(path) {
                fs::write(path, contents)
            } else {
                stage_file(&resolve_destination(path), contents)
            };
            written.map_err(|why| WriteError { file: path.clone(), why })?;
        }
        for (path, _) in files.iter().filter(|(path, _)| !is_special(path)) {
            let to = resolve_destination(path);
            fs::rename(temporary_path(&to), to).map_err(|why| WriteError { file: path.clone(), why })?;
        }
        Ok(())
    })();
    if done.is_err() {
        // The first error is the one to report. Failing to remove a temporary file does not change it.
        files.iter().for_each(|(path, _)| drop(fs::remove_file(temporary_path(&resolve_destination(path)))));
    }
    done?;
    let gone = |why: &io::Error| why.kind() == io::ErrorKind::NotFound;
    stale.iter().try_for_each(|path| match fs::remove_file(path) {
        Err(why) if !gone(&why) => Err(WriteError { file: path.clone(), why }),
        _ => Ok(()),
    })
}

/// A file that is written piece by piece under a temporary name. It appears at its destination once it is complete.
#[derive(Debug)]
pub struct StagedFile {
    destination: PathBuf,
    file: File,
    kept: bool,
}

impl StagedFile {
    /// Creates the temporary file of `path`.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn new(path: &Path) -> Result<Self, WriteError> {
        let destination = resolve_destination(path);
        let file = create_temporary(&destination).map_err(|why| WriteError { file: path.into(), why })?;
        Ok(Self { destination, file, kept: false })
    }

    /// Returns the file to write to.
    pub fn file(&mut self) -> &mut File {
        &mut self.file
    }

    /// Flushes the file to the disk.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn flush_to_disk(&mut self) -> Result<(), WriteError> {
        self.file.sync_all().map_err(|why| WriteError { file: self.destination.clone(), why })
    }

    /// Renames the temporary file to its destination.
    ///
    /// # Errors
    /// Errors of the system.
    pub fn put_in_place(mut self) -> Result<(), WriteError> {
        let renamed = fs::rename(temporary_path(&self.destination), &self.destination);
        self.kept = renamed.is_ok();
        renamed.map_err(|why| WriteError { file: self.destination.clone(), why })
    }
}

impl Drop for StagedFile {
    fn drop(&mut self) {
        if !self.kept {
            // The failure has been reported. Failing to remove the temporary file does not change it.
            drop(fs::remove_file(temporary_path(&self.destination)));
        }
    }
}

/// Writes the temporary file and flushes it to the disk.
fn stage_file(path: &Path, contents: &[u8]) -> io::Result<()> {
    let mut file = create_temporary(path)?;
    file.write_all(contents)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_failed_write_keeps_the_old_files_and_leaves_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("record.json");
        write_file(&path, b"old").unwrap();
        let lost = dir.path().join("missing").join("designs.parquet");
        let error = write_files(&[(path.clone(), b"new".to_vec()), (lost, Vec::new())]).unwrap_err();
        assert!(error.to_string().contains("designs.parquet: cannot be written"), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"old");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
        write_file(&path, b"new").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"new");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[cfg(unix)]
    #[test]
    fn links_are_followed_and_devices_written_to() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file.json"), dir.path().join("link.json"));
        write_file(&file, b"old").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        write_file(&link, b"new").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"new");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        write_file(Path::new("/dev/null"), b"nothing").unwrap();
        // A link in the place of the temporary file is replaced.
        let victim = dir.path().join("victim");
        fs::write(&victim, "precious").unwrap();
        std::os::unix::fs::symlink(&victim, temporary_path(&file)).unwrap();
        write_file(&file, b"newer").unwrap();
        assert_eq!((fs::read(&victim).unwrap(), fs::read(&file).unwrap()), (b"precious".to_vec(), b"newer".to_vec()));
        assert!(!fs::symlink_metadata(&file).unwrap().is_symlink());
        assert!(refuse_link(&link).is_err() && refuse_link(&file).is_ok());
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }

    #[test]
    fn a_missing_directory_is_named() {
        let error = write_file(Path::new("/nonexistent/dir/x.json"), b"").unwrap_err();
        assert!(error.to_string().starts_with("/nonexistent/dir/x.json: cannot be written"), "{error}");
    }
}
