//! Merges the parts of a sweep into one store. The result does not depend on the order of the directories, and merging
//! again changes nothing.

use super::facts::SweepFacts;
use super::row::SweptRow;
use super::store::{STORE, SweepStore, SweepStoreError};
use search::shard::Shard;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Rows per transaction.
const AT_ONCE: usize = 4096;

/// An error of merging parts.
#[derive(Debug, thiserror::Error)]
pub enum SweepMergeError {
    /// An error of a store.
    #[error(transparent)]
    Store(#[from] SweepStoreError),
    /// No directory with a part is given.
    #[error("no directory is given; give those of all parts")]
    Nothing,
    /// Two directories belong to different sweeps.
    #[error("{} and {} hold parts of different sweeps; give the directories of one", first.display(), other.display())]
    Different {
        /// The first directory.
        first: PathBuf,
        /// A directory of another sweep.
        other: PathBuf,
    },
    /// Some parts are in none of the directories.
    #[error("{} of {of} parts: none of the directories holds {}; run {} with --shard {}, and merge again", missing.len(), list_parts(missing, *of), if missing.len() == 1 { "it" } else { "each" }, name_first_part(missing, *of))]
    Lost {
        /// The missing parts.
        missing: Vec<u32>,
        /// Number of parts.
        of: u32,
    },
    /// A part is not complete.
    #[error("{}: part {part} has {found} of {wanted} designs; go on with it (--resume), and merge again", directory.display())]
    Unfinished {
        /// The part's directory.
        directory: PathBuf,
        /// The part.
        part: Shard,
        /// Designs in the store.
        found: u64,
        /// Designs of the complete part.
        wanted: u64,
    },
}

/// Lists parts in the form of `--shard`.
fn list_parts(parts: &[u32], of: u32) -> String {
    let all: Vec<String> = parts.iter().map(|part| format!("{part}/{of}")).collect();
    all.join(", ")
}

fn name_first_part(parts: &[u32], of: u32) -> String {
    parts.first().map_or_else(String::new, |part| format!("{part}/{of}"))
}

/// A part with its store.
#[derive(Debug)]
pub struct SweepPart {
    directory: PathBuf,
    store: SweepStore,
}

/// All parts of a sweep, each complete.
#[derive(Debug)]
pub struct SweepParts {
    parts: Vec<SweepPart>,
    facts: SweepFacts,
}

impl SweepParts {
    /// Opens the stores in directories and verifies the checksum of every row.
    ///
    /// # Errors
    /// A store that is damaged, incomplete or of another sweep; a part that is in none of the directories.
    pub fn open_all(directories: &[PathBuf]) -> Result<Self, SweepMergeError> {
        let mut held: BTreeMap<u32, SweepPart> = BTreeMap::new();
        let mut facts: Option<(PathBuf, SweepFacts)> = None;
        let mut of = 1;
        let mut seen = BTreeSet::new();
        let mut absent = None;
        // Ignores a directory that is given twice.
        let new =
            |directory: &&PathBuf| seen.insert(directory.canonicalize().unwrap_or_else(|_| PathBuf::clone(directory)));
        for directory in directories.iter().filter(new) {
            if !directory.join(STORE).exists() {
                // An empty directory belongs to a part that never ran. The other parts show which one is missing.
                absent = absent.or(Some(directory));
                continue;
            }
            let store = SweepStore::read_in(directory)?;
            let whole = SweepFacts { part: 1, parts: 1, ..store.facts().clone() };
            match &facts {
                Some((first, known)) if !known.is_same_part(&whole) || of != store.facts().parts => {
                    return Err(SweepMergeError::Different { first: first.clone(), other: directory.clone() });
                }
                Some(_) => {}
                None => (of, facts) = (store.facts().parts, Some((directory.clone(), whole))),
            }
            let part = SweepPart { directory: directory.clone(), store };
            let number = part.store.facts().part;
            // If two stores hold the same part, the one with more rows counts.
            if held.get(&number).is_none_or(|known| known.store.present().count() < part.store.present().count()) {
                held.insert(number, part);
            }
        }
        let missing: Vec<u32> = (1..=of).filter(|part| !held.contains_key(part)).collect();
        match (&facts, absent) {
            (Some(_), _) if !missing.is_empty() => return Err(SweepMergeError::Lost { missing, of }),
            (_, Some(directory)) => drop(SweepStore::read_in(directory)?),
            _ => {}
        }
        let Some((_, facts)) = facts else { return Err(SweepMergeError::Nothing) };
        if let Some(part) = held.values().find(|part| !part.store.is_complete()) {
            let (found, wanted) = (part.store.present().count(), part.store.facts().size());
            let directory = part.directory.clone();
            return Err(SweepMergeError::Unfinished { directory, part: part.store.facts().shard(), found, wanted });
        }
        Ok(Self { parts: held.into_values().collect(), facts })
    }

    /// Returns the facts of the whole sweep.
    #[must_use]
    pub fn facts(&self) -> &SweepFacts {
        &self.facts
    }

    /// Copies all rows into the store of the whole sweep. Rows that are there already stay.
    ///
    /// # Errors
    /// A row that cannot be read, or an error of the system.
    pub fn into_store(self, whole: &mut SweepStore) -> Result<(), SweepStoreError> {
        for part in &self.parts {
            let mut waiting: Vec<SweptRow> = Vec::new();
            part.store.for_each_row(|row| {
                waiting.push(row);
                if waiting.len() == AT_ONCE {
                    whole.keep_rows(&std::mem::take(&mut waiting))?;
                }
                Ok::<(), SweepStoreError>(())
            })?;
            whole.keep_rows(&waiting)?;
        }
        Ok(())
    }
}

/// Opens the store of the whole sweep in a directory, or creates it.
///
/// # Errors
/// A store that is damaged or of another sweep; an error of the system.
pub fn open_whole(directory: &Path, facts: &SweepFacts) -> Result<SweepStore, SweepStoreError> {
    if directory.join(STORE).exists() {
        SweepStore::open_for(directory, facts)
    } else {
        SweepStore::create_in(directory, facts)
    }
}
