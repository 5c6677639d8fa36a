//! The parts of a search: what each has found, in a directory of its own, and the best that each knows, in a directory of all.
//!
//! A part's directory is complete or is none: a search that is killed leaves nothing that counts, and begins again.

use crate::files::{self, Unwritable, WriteError};
use crate::record::Versions;
use crate::sums::{self, DigestError, DigestList, SUMS};
use crate::sweep::merge::SweepMergeError;
use search::design::PartAnswer;
use search::pareto::FrontPoint;
use search::runner::ShardExchange;
use search::shard::Shard;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The file that says of what a part is.
pub const PART: &str = "part.json";
/// The file of what became of its designs.
pub const DECIDED: &str = "decided.bin";
/// Every file of a part's directory.
pub const FILES: [&str; 3] = [SUMS, DECIDED, PART];
/// The format of both.
const FORMAT: u32 = 2;

/// Other parts are asked for what they know no more often than this, and for each of them than [`EACH`]: a thousand parts are no load on their disk.
const PAUSE: Duration = Duration::from_secs(1);
const EACH: Duration = Duration::from_millis(20);

/// Of what a part is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PartFacts {
    /// Of the files.
    pub format: u32,
    /// The version of coplace.
    pub coplace: String,
    /// Digest of all that was asked.
    pub question: String,
    /// The words of the command that ask it again, after the verb.
    pub asked_with: Vec<String>,
    /// Seed of everything random.
    pub seed: u64,
    /// The part, from 1.
    pub part: u32,
    /// Parts in all.
    pub parts: u32,
    /// Designs that it has evaluated.
    pub evaluated: u64,
    /// How long it has taken.
    pub seconds: f64,
}

impl PartFacts {
    /// Those of a part that is to be searched.
    #[must_use]
    pub fn for_part(question: String, (asked_with, seed): (Vec<String>, u64), shard: Shard) -> Self {
        let Shard { part, of: parts } = shard;
        let coplace = Versions::current().coplace;
        Self { format: FORMAT, coplace, question, asked_with, seed, part, parts, evaluated: 0, seconds: 0.0 }
    }

    /// Whether two are of parts of the same search; they may be asked in other words.
    #[must_use]
    pub fn is_same_search(&self, other: &Self) -> bool {
        let of = |facts: &Self| (facts.format, facts.coplace.clone(), facts.question.clone(), facts.seed, facts.parts);
        of(self) == of(other)
    }
}

/// Why parts cannot be read, or are no whole.
#[derive(Debug, thiserror::Error)]
pub enum SearchPartsError {
    /// A file that is missing, damaged or of another part.
    #[error(transparent)]
    Sums(#[from] DigestError),
    /// A file that is not one of these.
    #[error("{}: {why}; search the part again into another directory, or remove this one", file.display())]
    Malformed {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Two directories are of different searches.
    #[error("{} and {} hold parts of different searches; give the directories of one", first.display(), other.display())]
    Different {
        /// The first directory.
        first: PathBuf,
        /// One that differs from it.
        other: PathBuf,
    },
    /// No directory is given, or parts are missing.
    #[error(transparent)]
    Missing(#[from] SweepMergeError),
    /// A file cannot be written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl Unwritable for SearchPartsError {
    fn write_error(&self) -> Option<&WriteError> {
        if let Self::Write(error) = self { Some(error) } else { None }
    }
}

/// Whether a directory holds a part of a search.
#[must_use]
pub fn is_part(directory: &Path) -> bool {
    directory.join(PART).exists()
}

/// Of what the part in a directory is.
///
/// # Errors
/// A file that is missing, damaged, or of another version.
pub fn read_facts(directory: &Path) -> Result<PartFacts, SearchPartsError> {
    let file = directory.join(PART);
    DigestList::read_from(directory)?.verify_file(directory, PART)?;
    let text = sim::files::text::read_text(&file).map_err(|why| DigestError::Unreadable { file: file.clone(), why })?;
    let malformed = |why: String| SearchPartsError::Malformed { file: file.clone(), why };
    let facts: PartFacts = serde_json::from_str(&text).map_err(|why| malformed(why.to_string()))?;
    match facts.format {
        FORMAT => Ok(facts),
        format => Err(malformed(format!("its format is {format}, this version of coplace has {FORMAT}"))),
    }
}

/// Writes what a part has found into its directory; what says of what it is last.
///
/// # Errors
/// Whatever the system reports. Nothing of the part is there then.
pub fn write_part(directory: &Path, facts: &PartFacts, answer: &PartAnswer) -> Result<(), SearchPartsError> {
    let (file, decided) = (directory.join(PART), directory.join(DECIDED));
    let malformed = |file: &Path, why: String| SearchPartsError::Malformed { file: file.into(), why };
    let bytes = postcard::to_allocvec(answer).map_err(|why| malformed(&decided, why.to_string()))?;
    let text = serde_json::to_string_pretty(facts).map_err(|why| malformed(&file, why.to_string()))? + "\n";
    let mut written = vec![(decided, bytes), (file, text.into_bytes())];
    written.insert(0, (directory.join(SUMS), sums::digest_lines(&written).into_bytes()));
    Ok(files::write_files(&written)?)
}

/// All parts of a search.
#[derive(Debug)]
pub struct SearchParts {
    /// Of what they are; of one of them.
    pub facts: PartFacts,
    /// What they have found, in their order.
    pub answers: Vec<PartAnswer>,
    /// How long they have taken together.
    pub seconds: f64,
}

impl SearchParts {
    /// Reads the parts in directories, in whatever order.
    ///
    /// # Errors
    /// A file that is damaged, a part of another search, a part that none of them holds.
    pub fn open_all(directories: &[PathBuf]) -> Result<Self, SearchPartsError> {
        let mut held: BTreeMap<u32, (PathBuf, PartFacts)> = BTreeMap::new();
        for directory in directories.iter().filter(|directory| is_part(directory)) {
            let own = read_facts(directory)?;
            if let Some((first, known)) = held.values().next()
                && !known.is_same_search(&own)
            {
                return Err(SearchPartsError::Different { first: first.clone(), other: directory.clone() });
            }
            held.entry(own.part).or_insert((directory.clone(), own));
        }
        let Some((_, facts)) = held.values().next().cloned() else { return Err(SweepMergeError::Nothing.into()) };
        let missing: Vec<u32> = (1..=facts.parts).filter(|part| !held.contains_key(part)).collect();
        if !missing.is_empty() {
            return Err(SweepMergeError::Lost { missing, of: facts.parts }.into());
        }
        let answers = held.values().map(|(directory, _)| merged_answer(directory)).collect::<Result<_, _>>()?;
        Ok(Self { facts, answers, seconds: held.values().map(|(_, facts)| facts.seconds).sum() })
    }
}

fn merged_answer(directory: &Path) -> Result<PartAnswer, SearchPartsError> {
    DigestList::read_from(directory)?.verify_file(directory, DECIDED)?;
    let file = directory.join(DECIDED);
    let bytes = std::fs::read(&file).map_err(|why| DigestError::Unreadable { file: file.clone(), why })?;
    postcard::from_bytes(&bytes).map_err(|why| SearchPartsError::Malformed { file, why: why.to_string() })
}

/// What a part tells the others.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct BestMessage {
    facts: PartFacts,
    front: Vec<FrontPoint>,
}

/// A directory in which every part of a search keeps the best that it has evaluated, in a file of its own that is whole at any time.
#[derive(Debug)]
pub struct BestKnown {
    directory: PathBuf,
    facts: PartFacts,
    told: Vec<FrontPoint>,
    asked: Option<Instant>,
    /// Why others could not be told, where they could not: they only search longer.
    pub failed: Option<WriteError>,
}

impl BestKnown {
    /// The directory, made if need be.
    ///
    /// # Errors
    /// Whatever the system reports.
    pub fn new(directory: &Path, facts: &PartFacts) -> Result<Self, WriteError> {
        std::fs::create_dir_all(directory).map_err(|why| WriteError { file: directory.into(), why })?;
        let (directory, facts) = (directory.to_path_buf(), facts.clone());
        Ok(Self { directory, facts, told: Vec::new(), asked: None, failed: None })
    }

    fn message_file(&self, part: u32) -> PathBuf {
        self.directory.join(format!("{part}-of-{}.json", self.facts.parts))
    }

    fn write_message(&mut self, own: &[FrontPoint]) {
        let told = BestMessage { facts: self.facts.clone(), front: own.to_vec() };
        let Ok(text) = serde_json::to_vec(&told) else { return };
        match files::write_file(&self.message_file(self.facts.part), &text) {
            Ok(()) => self.told = told.front,
            Err(error) => self.failed = Some(error),
        }
    }

    /// What another part has told. What is no such file, or of another search, tells nothing.
    fn read_message(&self, part: u32) -> Vec<FrontPoint> {
        let text = std::fs::read(self.message_file(part)).ok();
        let told: Option<BestMessage> = text.and_then(|text| serde_json::from_slice(&text).ok());
        told.filter(|told| told.facts.is_same_search(&self.facts)).map_or_else(Vec::new, |told| told.front)
    }
}

impl ShardExchange for BestKnown {
    fn exchange_results(&mut self, own: &[FrontPoint]) -> Vec<FrontPoint> {
        let pause = PAUSE.max(EACH * self.facts.parts);
        if self.asked.is_some_and(|asked| asked.elapsed() < pause) {
            return Vec::new();
        }
        self.asked = Some(Instant::now());
        if !own.is_empty() && own != self.told {
            self.write_message(own);
        }
        let mut seen = BTreeSet::new();
        let others = (1..=self.facts.parts).filter(|part| *part != self.facts.part);
        others.flat_map(|part| self.read_message(part)).filter(|point| seen.insert(point.id)).collect()
    }

    fn send_last(&mut self, own: &[FrontPoint]) {
        if own != self.told {
            self.write_message(own);
        }
    }
}

#[cfg(test)]
#[path = "parts_tests.rs"]
mod tests;
