//! `SHA256SUMS` ties the files of a run together. It has the format of `sha256sum`, which can verify it: `sha256sum -c
//! SHA256SUMS`.
//!
//! Every file of a run is complete at all times. But files of two runs can lie side by side, after a kill between two
//! renames over an older run, or after a copy. The digests reveal this. They also reveal an edited number in a record,
//! which would still be valid JSON.

use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// The name of the file.
pub const SUMS: &str = "SHA256SUMS";

/// The length of a digest in hexadecimal digits: 256 bits, four bits each.
const LETTERS: usize = 64;

/// An error of a run's digests, or of the files that they list.
#[derive(Debug, thiserror::Error)]
pub enum DigestError {
    /// The file of digests is missing.
    #[error(
        "{}: cannot be opened: {why}; without digests no one can tell whether the files are of one run: run the search \
        again, or give another run directory", file.display()
    )]
    Open {
        /// The file of digests.
        file: PathBuf,
        /// Message of the system.
        why: io::Error,
    },
    /// The file of digests is malformed, or has no digest of a required file.
    #[error("{}: {why}; run the search again, or give another run directory", file.display())]
    Malformed {
        /// The file of digests.
        file: PathBuf,
        /// The fault, with the line or the name.
        why: String,
    },
    /// A file of the run cannot be read.
    #[error("{}: cannot be opened: {why}; give a run directory that `coplace search` wrote", file.display())]
    Unreadable {
        /// The file.
        file: PathBuf,
        /// Message of the system.
        why: io::Error,
    },
    /// The digest of a file differs from the listed one.
    #[error(
        "{}: its SHA-256 digest is {found}, {SUMS} beside it says {expected}: it is damaged, or the directory holds \
        files of two runs; run the search again, or give another run directory", file.display()
    )]
    Differs {
        /// The file.
        file: PathBuf,
        /// The digest of the file.
        found: String,
        /// The listed digest.
        expected: String,
    },
}

impl DigestError {
    /// Returns the file and the fault, without advice.
    pub(crate) fn into_fault(self) -> (PathBuf, String) {
        let unopened = |why: io::Error| format!("cannot be opened: {why}");
        match self {
            Self::Open { file, why } => {
                (file, format!("{}; without digests no one can tell whether the files are of one run", unopened(why)))
            }
            Self::Malformed { file, why } => (file, format!("is damaged: {why}")),
            Self::Unreadable { file, why } => (file, unopened(why)),
            Self::Differs { file, found, expected } => {
                let why = format!(
                    "is damaged, or the directory holds files of two runs: its SHA-256 digest is {found}, {SUMS} \
                    beside it says {expected}"
                );
                (file, why)
            }
        }
    }
}

/// Returns the SHA-256 digest of bytes in hexadecimal digits.
fn digest_of_bytes(bytes: &[u8]) -> String {
    to_hex(&Sha256::digest(bytes))
}

/// Returns the SHA-256 digest of a file in hexadecimal digits. The file is read piece by piece. A device or a pipe is
/// an error, because it may have no end.
pub(crate) fn digest_of_file(file: &Path) -> io::Result<String> {
    if !std::fs::metadata(file)?.is_file() {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file"));
    }
    let (mut hasher, mut open, mut piece) = (Sha256::new(), std::fs::File::open(file)?, vec![0; 1 << 16]);
    loop {
        match io::Read::read(&mut open, &mut piece)? {
            0 => return Ok(to_hex(&hasher.finalize())),
            read => hasher.update(&piece[..read]),
        }
    }
}

fn to_hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns the first eight hexadecimal digits of a text's digest. They are enough to distinguish questions.
#[must_use]
pub fn short_digest(text: &str) -> String {
    digest_of_bytes(text.as_bytes()).chars().take(8).collect()
}

/// Returns the digests of files, one line `DIGEST  NAME` per file.
pub(crate) fn digest_lines(files: &[(PathBuf, Vec<u8>)]) -> String {
    let line = |(path, bytes): &(PathBuf, Vec<u8>)| {
        let name = path.file_name().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        format!("{}  {name}\n", digest_of_bytes(bytes))
    };
    files.iter().map(line).collect()
}

/// The digests of a run's files, by name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DigestList(BTreeMap<String, String>);

impl DigestList {
    /// Reads the digests of a run directory.
    ///
    /// # Errors
    /// A file of digests that is missing or malformed.
    pub(crate) fn read_from(directory: &Path) -> Result<Self, DigestError> {
        let file = directory.join(SUMS);
        let text = sim::files::text::read_text(&file).map_err(|why| DigestError::Open { file: file.clone(), why })?;
        let entry = |(at, line): (usize, &str)| {
            let entry = line
                .split_once("  ")
                .filter(|(sum, _)| sum.len() == LETTERS && sum.bytes().all(|b| b.is_ascii_hexdigit()));
            let (sum, name) = entry.ok_or_else(|| DigestError::Malformed {
                file: file.clone(),
                why: format!("line {} is no digest of {LETTERS} hexadecimal letters, two blanks and a name", at + 1),
            })?;
            Ok((name.to_owned(), sum.to_ascii_lowercase()))
        };
        Ok(Self(text.lines().enumerate().map(entry).collect::<Result<_, DigestError>>()?))
    }

    /// True if all of these files are listed.
    pub(crate) fn lists_all(&self, files: &[&str]) -> bool {
        files.iter().all(|file| self.0.contains_key(*file))
    }

    /// Verifies the digest of a file in the directory.
    ///
    /// # Errors
    /// A file without a digest, a file that cannot be read, or a file with another digest.
    pub(crate) fn verify_file(&self, directory: &Path, name: &str) -> Result<(), DigestError> {
        let lacking = || DigestError::Malformed { file: directory.join(SUMS), why: format!("has no digest of {name}") };
        let expected = self.0.get(name).ok_or_else(lacking)?;
        let file = directory.join(name);
        let found = digest_of_file(&file).map_err(|why| DigestError::Unreadable { file: file.clone(), why })?;
        if found == *expected { Ok(()) } else { Err(DigestError::Differs { file, found, expected: expected.clone() }) }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_digest_is_the_published_one() {
        // FIPS 180-2, appendix B.1.
        assert_eq!(digest_of_bytes(b"abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    }

    #[test]
    fn every_changed_byte_and_every_lost_line_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("record.json");
        std::fs::write(dir.path().join(SUMS), digest_lines(&[(file.clone(), b"{}".to_vec())])).unwrap();
        let check = || DigestList::read_from(dir.path()).and_then(|sums| sums.verify_file(dir.path(), "record.json"));
        for (bytes, sound) in [(&b"{}"[..], true), (b"{", false), (b"{} ", false), (b"[]", false)] {
            std::fs::write(&file, bytes).unwrap();
            assert_eq!(check().is_ok(), sound, "{bytes:?}");
        }
        assert!(check().unwrap_err().to_string().contains("record.json: its SHA-256 digest is"));
        std::fs::write(dir.path().join(SUMS), "").unwrap();
        assert!(
            check().unwrap_err().to_string().contains("SHA256SUMS: has no digest of record.json; run the search again")
        );
        std::fs::write(dir.path().join(SUMS), "abc  record.json\n").unwrap();
        assert!(check().unwrap_err().to_string().contains("SHA256SUMS: line 1 is no digest"));
    }
}
