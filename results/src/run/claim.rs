//! Claims the directory of a run. Only one search at a time may write into it. Foreign files are not touched, and links
//! are not followed.

use crate::run::record::RECORD;
use crate::run::search_run::{DESIGNS, FILES};
use crate::run::serving::{self, ServingRun};
use crate::run::{parts, sweep};
use crate::store::sums::DigestList;
use std::ffi::OsStr;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

/// An error of claiming a directory. The message continues a sentence that begins with the directory's name.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryClaimError {
    /// The path is a file.
    #[error("is a file; give a directory")]
    File,
    /// The directory holds files that are not a run.
    #[error("holds files that are not a run; give an empty or a new directory")]
    Foreign,
    /// A path that the run would write is taken by something else.
    #[error("{name} in it {what}; remove it, or give an empty or a new directory")]
    Occupied {
        /// The file name in the directory.
        name: &'static str,
        /// The obstacle, as a predicate: `is not a file`.
        what: &'static str,
    },
    /// Another search is writing into the directory.
    #[error("another search writes into it; wait for its end, or give another directory")]
    Busy,
    /// The system refuses to write into the directory.
    #[error("cannot be written into: {0}; give a directory you may write to")]
    Unwritable(#[from] io::Error),
}

/// Exclusive use of a run directory by this process, until the value is dropped. The operating system releases the lock
/// when the process ends.
#[derive(Debug)]
pub struct DirectoryClaim {
    path: PathBuf,
    /// The directories that were created for the claim, innermost first.
    made: Vec<PathBuf>,
    /// `None` on systems without directory locks. There, only the digests tell the files of two runs apart.
    _lock: Option<File>,
}

impl DirectoryClaim {
    /// Claims a directory for a run, and creates it if needed. The directory must be empty or hold an older run, which
    /// stays until the new one is written. Files left behind by killed searches are removed.
    ///
    /// # Errors
    /// A directory that holds something else, that another search uses, or that is not writable. The check comes before
    /// the search, because a long search must not fail at its end.
    pub fn for_run(path: &Path) -> Result<Self, DirectoryClaimError> {
        Self::take_directory(path, &FILES, |path| {
            let record = path.join(RECORD);
            let sealed = DigestList::read_from(path).is_ok_and(|sums| sums.lists_all(&[RECORD, DESIGNS]));
            match (sealed || is_record(&record), record.exists()) {
                (true, _) => Ok(()),
                (false, true) => {
                    Err(DirectoryClaimError::Occupied { name: RECORD, what: "is not a record of coplace" })
                }
                (false, false) => Err(DirectoryClaimError::Foreign),
            }
        })
    }

    /// Claims a directory for a run of `serve`, and creates it if needed. The directory must be empty or hold an older
    /// run of `serve`.
    ///
    /// # Errors
    /// As [`Self::for_run`].
    pub fn for_serving(path: &Path) -> Result<Self, DirectoryClaimError> {
        let held = |path: &Path| if ServingRun::is_in(path) { Ok(()) } else { Err(DirectoryClaimError::Foreign) };
        Self::take_directory(path, &serving::FILES, held)
    }

    /// Claims a directory for a sweep, and creates it if needed. The directory must be empty or hold the store of any
    /// sweep.
    ///
    /// # Errors
    /// As [`Self::for_run`].
    pub fn for_sweep(path: &Path) -> Result<Self, DirectoryClaimError> {
        let held =
            |path: &Path| if path.join(sweep::STORE).exists() { Ok(()) } else { Err(DirectoryClaimError::Foreign) };
        Self::take_directory(path, &sweep::directory::FILES, held)
    }

    /// Claims a directory for a part of a search, and creates it if needed. The directory must be empty or hold a part
    /// of any search.
    ///
    /// # Errors
    /// As [`Self::for_run`].
    pub fn for_part(path: &Path) -> Result<Self, DirectoryClaimError> {
        let held = |path: &Path| if parts::is_part(path) { Ok(()) } else { Err(DirectoryClaimError::Foreign) };
        Self::take_directory(path, &parts::FILES, held)
    }

    /// Claims a directory for `files`. If other files are in it, `own` decides whether coplace wrote them, and returns
    /// an error if not.
    fn take_directory(
        path: &Path,
        files: &[&'static str],
        own: impl Fn(&Path) -> Result<(), DirectoryClaimError>,
    ) -> Result<Self, DirectoryClaimError> {
        if path.is_file() {
            return Err(DirectoryClaimError::File);
        }
        let missing = |directory: &&Path| !directory.as_os_str().is_empty() && !directory.exists();
        let made = path.ancestors().take_while(missing).map(Path::to_path_buf).collect();
        fs::create_dir_all(path)?;
        let lock = lock_directory(path)?;
        let mut others = false;
        let mut leftovers = Vec::new();
        for entry in fs::read_dir(path)? {
            let name = entry?.file_name();
            if is_leftover(&name, files) { leftovers.push(path.join(name)) } else { others = true }
        }
        if others {
            refuse_occupied(path, files)?;
            own(path)?;
        }
        // Without the lock, the files may belong to a search in progress.
        if lock.is_some() {
            leftovers.iter().try_for_each(fs::remove_file)?;
        }
        let probe = path.join(format!("{PROBE}{}", std::process::id()));
        fs::write(&probe, "").and_then(|()| fs::remove_file(&probe))?;
        Ok(Self { path: path.into(), made, _lock: lock })
    }

    /// Returns the directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for DirectoryClaim {
    /// Removes the directories that the claim created, if no run was written into them.
    fn drop(&mut self) {
        for directory in &self.made {
            // A directory that is not empty stays.
            if fs::remove_dir(directory).is_err() {
                break;
            }
        }
    }
}

/// Prefix of the file that tests whether a directory is writable.
const PROBE: &str = ".writable-";

/// True if a killed search left the file: a staged file with a process id in its name (see [`crate::store::files`]), or
/// the file of the write test.
fn is_leftover(name: &OsStr, files: &[&str]) -> bool {
    let name = name.to_string_lossy();
    let number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
    let staged = |file: &str| {
        let of = name.strip_prefix('.').and_then(|n| n.strip_prefix(file)?.strip_prefix('.')?.strip_suffix(".partial"));
        of.is_some_and(number)
    };
    name.strip_prefix(PROBE).is_some_and(number) || files.iter().any(|file| staged(file))
}

/// Locks a directory. `None` on systems that do not support this.
fn lock_directory(path: &Path) -> Result<Option<File>, DirectoryClaimError> {
    let Ok(directory) = File::open(path) else { return Ok(None) };
    match directory.try_lock() {
        Ok(()) => Ok(Some(directory)),
        Err(TryLockError::WouldBlock) => Err(DirectoryClaimError::Busy),
        Err(TryLockError::Error(_)) => Ok(None),
    }
}

/// Returns an error if one of the files to be written exists as a link, a directory or another special file.
fn refuse_occupied(path: &Path, files: &[&'static str]) -> Result<(), DirectoryClaimError> {
    for &name in files {
        match fs::symlink_metadata(path.join(name)) {
            Ok(found) if found.is_symlink() => {
                return Err(DirectoryClaimError::Occupied {
                    name,
                    what: "is a link, through which a run is never written",
                });
            }
            Ok(found) if !found.is_file() => return Err(DirectoryClaimError::Occupied { name, what: "is not a file" }),
            _ => {}
        }
    }
    Ok(())
}

/// True if coplace wrote the record, in any format.
fn is_record(file: &Path) -> bool {
    let value =
        sim::files::text::read_text(file).ok().and_then(|text| serde_json::from_str::<serde_json::Value>(&text).ok());
    value.is_some_and(|record| {
        let version = record.pointer("/versions/coplace").and_then(serde_json::Value::as_str);
        version.is_some() && record.get("format").is_some_and(serde_json::Value::is_u64)
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::store::sums::SUMS;

    #[test]
    fn leftovers_are_the_files_of_killed_searches_alone() {
        for name in [".designs.parquet.7.partial", ".record.json.123.partial", ".SHA256SUMS.1.partial", ".writable-42"]
        {
            assert!(is_leftover(OsStr::new(name), &FILES), "{name}");
        }
        for name in [
            ".designs.parquet..partial",
            ".notes.7.partial",
            "designs.parquet.7.partial",
            ".writable-",
            ".record.json.7.partial~",
        ] {
            assert!(!is_leftover(OsStr::new(name), &FILES), "{name}");
        }
    }

    #[test]
    fn what_a_killed_search_left_goes_and_locks_nothing() {
        let dir = tempfile::tempdir().unwrap();
        for name in [".designs.parquet.7.partial", ".pareto.svg.7.partial", ".writable-7"] {
            fs::write(dir.path().join(name), "half").unwrap();
        }
        DirectoryClaim::for_run(dir.path()).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_search_without_a_run_leaves_no_directory_that_it_made() {
        let dir = tempfile::tempdir().unwrap();
        let runs = dir.path().join("runs");
        drop(DirectoryClaim::for_run(&runs.join("a")).unwrap());
        assert!(!runs.exists() && dir.path().exists());
        let claim = DirectoryClaim::for_run(&runs.join("a")).unwrap();
        fs::write(claim.path().join("record.json"), "").unwrap();
        drop(claim);
        assert!(runs.join("a/record.json").exists());
        fs::create_dir(runs.join("empty")).unwrap();
        drop(DirectoryClaim::for_run(&runs.join("empty")).unwrap());
        assert!(runs.join("empty").exists(), "it was there before");
    }

    #[test]
    fn a_directory_has_one_search_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let first = DirectoryClaim::for_run(dir.path()).unwrap();
        let second = DirectoryClaim::for_run(dir.path()).unwrap_err();
        assert_eq!(second.to_string(), "another search writes into it; wait for its end, or give another directory");
        drop(first);
        DirectoryClaim::for_run(dir.path()).unwrap();
    }

    #[test]
    fn only_a_run_is_written_over() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        let refusal = || DirectoryClaim::for_run(dir.path()).unwrap_err().to_string();
        fs::write(at("notes.txt"), "mine").unwrap();
        assert_eq!(refusal(), "holds files that are not a run; give an empty or a new directory");
        let not_ours = "record.json in it is not a record of coplace; remove it, or give an empty or a new directory";
        for text in ["", "{}", "{\"format\": 1}", "[1]", "{\"versions\": {\"coplace\": 1}, \"format\": 1}"] {
            fs::write(at("record.json"), text).unwrap();
            assert_eq!(refusal(), not_ours, "{text}");
            assert_eq!(fs::read_to_string(at("record.json")).unwrap(), text);
        }
        // A record of any format is a run, and so is a damaged record beside its digests.
        fs::write(at("record.json"), "{\"format\": 9, \"versions\": {\"coplace\": \"9.0\"}}").unwrap();
        DirectoryClaim::for_run(dir.path()).unwrap();
        fs::write(at("record.json"), "{\"format\"").unwrap();
        let digests =
            crate::store::sums::digest_lines(&[(at("record.json"), Vec::new()), (at("designs.parquet"), Vec::new())]);
        fs::write(at(SUMS), digests).unwrap();
        DirectoryClaim::for_run(dir.path()).unwrap();
    }

    #[cfg(unix)]
    #[test]
    fn nothing_is_written_through_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("run");
        fs::create_dir(&run).unwrap();
        let other = dir.path().join("other.json");
        fs::write(&other, crate::run::record::example().to_json().unwrap()).unwrap();
        std::os::unix::fs::symlink(&other, run.join("record.json")).unwrap();
        let error = DirectoryClaim::for_run(&run).unwrap_err().to_string();
        assert_eq!(
            error,
            "record.json in it is a link, through which a run is never written; remove it, or give an empty or a new \
            directory"
        );
    }
}
