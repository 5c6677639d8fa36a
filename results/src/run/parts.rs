//! The parts of a search. Each part keeps its results in its own directory and shares its best designs in a common
//! directory.
//!
//! The directory of a part is complete or absent. A killed search leaves no result, and must start again.

use crate::run::record::Versions;
use crate::run::sweep::merge::SweepMergeError;
use crate::store::files::{self, Unwritable, WriteError};
use crate::store::sums::{self, DigestError, DigestList, SUMS};
use search::ask::Question;
use search::design::PartAnswer;
use search::pareto::FrontPoint;
use search::runner::ShardExchange;
use search::shard::Shard;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The file with the facts about a part.
pub const PART: &str = "part.json";
/// The file with the decided designs.
pub const DECIDED: &str = "decided.bin";
/// All files of a part's directory.
pub const FILES: [&str; 3] = [SUMS, DECIDED, PART];
/// The version of the format of both files.
const FORMAT: u32 = 3;

/// The shortest interval between two reads of the other parts' results. With many parts it is [`EACH`] times their
/// number, so that even a thousand parts hardly load their disk.
const PAUSE: Duration = Duration::from_secs(1);
const EACH: Duration = Duration::from_millis(20);

/// The facts about a part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PartFacts {
    /// The format of the files.
    pub format: u32,
    /// The version of coplace.
    pub coplace: String,
    /// Digest of the whole question.
    pub question: String,
    /// The question as a value.
    pub asked: Question,
    /// The seed of all random choices.
    pub seed: u64,
    /// The number of the part, from 1.
    pub part: u32,
    /// Number of parts.
    pub parts: u32,
    /// The number of evaluated designs.
    pub evaluated: u64,
    /// Elapsed time, in seconds.
    pub seconds: f64,
}

impl PartFacts {
    /// Makes the facts about a part that is going to be searched.
    #[must_use]
    pub fn for_part(question: String, asked: Question, seed: u64, shard: Shard) -> Self {
        let Shard { part, of: parts } = shard;
        let coplace = Versions::current().coplace;
        Self { format: FORMAT, coplace, question, asked, seed, part, parts, evaluated: 0, seconds: 0.0 }
    }

    /// True if both parts belong to the same search. Paths in the question may be spelled differently.
    #[must_use]
    pub fn is_same_search(&self, other: &Self) -> bool {
        let of = |facts: &Self| (facts.format, facts.coplace.clone(), facts.question.clone(), facts.seed, facts.parts);
        of(self) == of(other)
    }
}

/// An error of reading or merging parts.
#[derive(Debug, thiserror::Error)]
pub enum SearchPartsError {
    /// A file or digest that is missing, damaged or of another run.
    #[error(transparent)]
    Sums(#[from] DigestError),
    /// A file whose contents cannot be decoded, or are of another format.
    #[error("{}: {why}; search the part again into another directory, or remove this one", file.display())]
    Malformed {
        /// The file.
        file: PathBuf,
        /// The fault.
        why: String,
    },
    /// Two directories belong to different searches.
    #[error("{} and {} hold parts of different searches; give the directories of one", first.display(), other.display())]
    Different {
        /// The first directory.
        first: PathBuf,
        /// The directory that belongs to another search.
        other: PathBuf,
    },
    /// No directory holds a part, or parts are missing.
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

/// True if the directory holds a part of a search.
#[must_use]
pub fn is_part(directory: &Path) -> bool {
    directory.join(PART).exists()
}

/// Reads the facts about the part in a directory.
///
/// # Errors
/// A file that is missing, damaged, or of another version.
pub fn read_facts(directory: &Path) -> Result<PartFacts, SearchPartsError> {
    let file = directory.join(PART);
    DigestList::read_from(directory)?.verify_file(directory, PART)?;
    let text = sim::files::text::read_text(&file).map_err(|why| DigestError::Unreadable { file: file.clone(), why })?;
    let malformed = |why: String| SearchPartsError::Malformed { file: file.clone(), why };
    let value: serde_json::Value = serde_json::from_str(&text).map_err(|why| malformed(why.to_string()))?;
    match value.get("format").and_then(serde_json::Value::as_u64) {
        Some(format) if format == u64::from(FORMAT) => {
            serde_json::from_str(&text).map_err(|why| malformed(why.to_string()))
        }
        format => {
            let format = format.map_or_else(|| "missing".to_owned(), |format| format.to_string());
            Err(malformed(format!("its format is {format}, this version of coplace has {FORMAT}")))
        }
    }
}

/// Writes the results of a part into its directory. The file of facts comes last, so that a directory with it is
/// complete.
///
/// # Errors
/// Errors of the system. A new directory then holds no file of facts.
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
    /// The facts about the first part.
    pub facts: PartFacts,
    /// The answers, in the order of the parts.
    pub answers: Vec<PartAnswer>,
    /// Elapsed time in seconds, summed over the parts.
    pub seconds: f64,
}

impl SearchParts {
    /// Reads the parts in directories, which may be in any order. Directories without a part are skipped.
    ///
    /// # Errors
    /// A file that is damaged; a part of another search; a part that is in none of the directories.
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
    let bytes = files::read_whole(&file).map_err(|why| DigestError::Unreadable { file: file.clone(), why })?;
    postcard::from_bytes(&bytes).map_err(|why| SearchPartsError::Malformed { file, why: why.to_string() })
}

/// The message with which a part tells the others its best designs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct BestMessage {
    facts: PartFacts,
    front: Vec<FrontPoint>,
}

/// A directory through which the parts of a search share their best designs. Each part has its own file there, which is
/// complete at all times.
#[derive(Debug)]
pub struct BestKnown {
    directory: PathBuf,
    facts: PartFacts,
    told: Vec<FrontPoint>,
    asked: Option<Instant>,
    /// The last error of writing to the directory, if any. The search goes on; the other parts only prune less.
    pub failed: Option<WriteError>,
}

impl BestKnown {
    /// Opens the directory, and creates it if needed.
    ///
    /// # Errors
    /// Errors of the system.
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

    /// Reads the designs that another part shares. Empty if the file is missing or belongs to another search.
    fn read_message(&self, part: u32) -> Vec<FrontPoint> {
        let text = files::read_whole(&self.message_file(part)).ok();
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
