//! Reads schedule instances: PHAZE's operator schedules as JSON.
//!
//! ```json
//! {"num_tc": 2, "num_vc": 1, "ops": [{"id": 0, "type": "TC", "latency": 10, "intra_latency": 6}], "edges": []}
//! ```
//! - `type` is `TC`, `VC`, `TCandVC` or `Nop`.
//! - `latency` is the latency on one core, `intra_latency` the one across all cores; both are whole numbers of one
//!   unit. `intra_latency` is absent or null if the operator runs on one core only. Some files write 0 and 1 as `false`
//!   and `true`.
//! - An edge `[a, b]` requires that `a` ends before `b` starts.
//! - `exclusivity` gives the cores that an operator across all cores blocks: `"all_cores"` (of both kinds, the default)
//!   or `"own_kind"` (of the kinds that it uses).
//! - `optimal_unpaired` and `optimal_paired` may hold known answers. Other keys are notes.

use serde_json::{Map, Value};
use sim::files::strict;
use sim::schedule::{Cores, Exclusivity, Operator, OperatorKind, Pairing, Problem, ScheduleError};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// An instance: the same operators under both pairings, with the answers stored in the file.
#[derive(Debug, Clone)]
pub struct ScheduleInstance {
    /// The id of each operator, in the order of the problems' operators.
    pub ids: Vec<u64>,
    /// The problem in which fused operators take any tensor and any vector core.
    pub unpaired: Problem,
    /// The problem in which fused operators take cores of the same index.
    pub paired: Problem,
    /// The stored answer to `unpaired`.
    pub stored_unpaired: Option<StoredAnswer>,
    /// The stored answer to `paired`.
    pub stored_paired: Option<StoredAnswer>,
}

/// An answer stored in an instance file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoredAnswer {
    /// Its makespan.
    pub makespan: u64,
    /// Its lower bound.
    pub lower_bound: u64,
    /// True if the makespan is proven optimal.
    pub proved: bool,
}

/// The reason why an instance cannot be read. A message names the file and the fault, with the key, the value and the
/// cure where they exist.
#[derive(Debug, Error)]
pub enum InstanceError {
    /// The file cannot be read.
    #[error("cannot read {}: {source}; check the path and its permissions", path.display())]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's message.
        source: std::io::Error,
    },
    /// The file is not JSON, or gives a key twice.
    #[error("{}: not valid JSON: {source}; {}", path.display(), cure_for_malformed(.source))]
    NotJson {
        /// The file.
        path: PathBuf,
        /// The parser's message.
        source: serde_json::Error,
    },
    /// An unknown key.
    #[error("{}: `{key}` is not a key; there are {known}; remove it or correct its name", path.display())]
    UnknownKey {
        /// The file.
        path: PathBuf,
        /// The key, with its path.
        key: String,
        /// The known keys at that path.
        known: String,
    },
    /// A key is missing.
    #[error("{}: `{key}` is missing; give {expected}", path.display())]
    Missing {
        /// The file.
        path: PathBuf,
        /// The key, with its path.
        key: String,
        /// The expected value.
        expected: &'static str,
    },
    /// A key has a wrong value.
    #[error("{}: `{key}` is {value}; give {expected}", path.display())]
    Value {
        /// The file.
        path: PathBuf,
        /// The key, with its path.
        key: String,
        /// The value found.
        value: String,
        /// The expected value.
        expected: &'static str,
    },
    /// An edge names an operator that does not exist.
    #[error("{}: `{key}` is {value}, but no operator of `ops` has the id {id}; correct the edge, or add the operator", path.display())]
    NoOperator {
        /// The file.
        path: PathBuf,
        /// The edge's key.
        key: String,
        /// The edge.
        value: String,
        /// The id that no operator has.
        id: u64,
    },
    /// The parts do not form a valid problem.
    #[error("{}: {source}", path.display())]
    Problem {
        /// The file.
        path: PathBuf,
        /// The fault, with operators by their ids.
        source: ScheduleError,
    },
}

/// Returns the cure for a file that is not JSON.
fn cure_for_malformed(error: &serde_json::Error) -> &'static str {
    if error.is_eof() {
        "the file may be cut short"
    } else {
        let otherwise = "mend that place (JSON has no Infinity and no NaN: every latency is a whole number)";
        strict::cure_for_refusal(error, otherwise)
    }
}

/// Keys of an instance. The last six are the known answers and notes on origin and unit.
const INSTANCE_KEYS: [&str; 11] = [
    "num_tc",
    "num_vc",
    "ops",
    "edges",
    "exclusivity",
    "optimal_unpaired",
    "optimal_paired",
    "seed",
    "style",
    "intra_family",
    "unit",
];
/// Keys of an operator.
const OPERATOR_KEYS: [&str; 5] = ["id", "type", "latency", "intra_latency", "desc"];

const WHOLE: &str = "a whole number, 0 or more";

/// Reads an instance file.
///
/// # Errors
/// An [`InstanceError`] that names the fault and its place.
pub fn read_instance(path: &Path) -> Result<ScheduleInstance, InstanceError> {
    let text =
        sim::files::text::read_text(path).map_err(|source| InstanceError::Unreadable { path: path.into(), source })?;
    parse_instance(path, &text)
}

/// Reads an instance from text; `path` is for messages only.
///
/// # Errors
/// An [`InstanceError`] that names the fault and its place.
pub fn parse_instance(path: &Path, text: &str) -> Result<ScheduleInstance, InstanceError> {
    let root = strict::parse_strict(text).map_err(|source| InstanceError::NotJson { path: path.into(), source })?;
    let reader = InstanceReader { path };
    let Value::Object(root) = &root else {
        return Err(reader.wrong_value("the file", &root, "an object with num_tc, num_vc, ops and edges"));
    };
    reader.refuse_unknown_keys(root, "", &INSTANCE_KEYS)?;
    let cores = Cores {
        tensor_cores: reader.read_count(root, "num_tc")?,
        vector_cores: reader.read_count(root, "num_vc")?,
        network_links: 0,
        pairing: Pairing::AnyPair,
        exclusivity: reader.read_exclusivity(root)?,
    };
    let (operators, numbers) = reader.read_operators(root)?;
    let edges = reader.read_edges(root, &numbers)?;
    let mut ids = vec![0; operators.len()];
    for (&id, &number) in &numbers {
        ids[number as usize] = id;
    }
    let make = |pairing| Problem::new(Cores { pairing, ..cores }, operators.clone(), edges.clone());
    let checked = |made: Result<Problem, ScheduleError>| {
        made.map_err(|source| InstanceError::Problem { path: path.into(), source: source.with_ids(&ids) })
    };
    let [unpaired, paired] = [checked(make(Pairing::AnyPair))?, checked(make(Pairing::SameIndex))?];
    Ok(ScheduleInstance {
        ids,
        unpaired,
        paired,
        stored_unpaired: reader.read_stored_answer(root, "optimal_unpaired")?,
        stored_paired: reader.read_stored_answer(root, "optimal_paired")?,
    })
}

struct InstanceReader<'a> {
    path: &'a Path,
}

impl InstanceReader<'_> {
    fn wrong_value(&self, key: &str, value: &Value, expected: &'static str) -> InstanceError {
        let mut text = value.to_string();
        if text.chars().count() > 60 {
            text = text.chars().take(57).chain("...".chars()).collect();
        }
        InstanceError::Value { path: self.path.into(), key: key.into(), value: text, expected }
    }

    fn refuse_unknown_keys(&self, map: &Map<String, Value>, place: &str, known: &[&str]) -> Result<(), InstanceError> {
        let unknown = |key: &&String| !known.contains(&key.as_str());
        map.keys().find(unknown).map_or(Ok(()), |key| {
            let key = format!("{place}{key}");
            Err(InstanceError::UnknownKey { path: self.path.into(), key, known: known.join(", ") })
        })
    }

    fn value_of_key<'v>(
        &self,
        map: &'v Map<String, Value>,
        place: &str,
        key: &str,
        expected: &'static str,
    ) -> Result<&'v Value, InstanceError> {
        map.get(key).ok_or_else(|| InstanceError::Missing {
            path: self.path.into(),
            key: format!("{place}{key}"),
            expected,
        })
    }

    /// Reads a number of cores.
    fn read_count(&self, root: &Map<String, Value>, key: &str) -> Result<u32, InstanceError> {
        const EXPECTED: &str = "a whole number of cores, 0 to 4294967295";
        let value = self.value_of_key(root, "", key, EXPECTED)?;
        value.as_u64().and_then(|v| u32::try_from(v).ok()).ok_or_else(|| self.wrong_value(key, value, EXPECTED))
    }

    /// Reads which cores an operator across all cores blocks: cores of both kinds if the key is absent or null.
    fn read_exclusivity(&self, root: &Map<String, Value>) -> Result<Exclusivity, InstanceError> {
        match root.get("exclusivity").filter(|value| !value.is_null()) {
            None => Ok(Exclusivity::default()),
            Some(value) => match value.as_str() {
                Some("all_cores") => Ok(Exclusivity::AllCores),
                Some("own_kind") => Ok(Exclusivity::OwnKind),
                _ => Err(self.wrong_value("exclusivity", value, "\"all_cores\" or \"own_kind\"")),
            },
        }
    }

    /// Reads a number of ticks. Python writes 0 and 1 as booleans if they came from comparisons.
    fn read_ticks(&self, map: &Map<String, Value>, place: &str, key: &str) -> Result<u64, InstanceError> {
        let value = self.value_of_key(map, place, key, WHOLE)?;
        match value {
            Value::Bool(b) => Ok(u64::from(*b)),
            _ => value.as_u64().ok_or_else(|| self.wrong_value(&format!("{place}{key}"), value, WHOLE)),
        }
    }

    /// Reads the operators in the order of the file, and returns the index of each id too.
    fn read_operators(&self, root: &Map<String, Value>) -> Result<(Vec<Operator>, BTreeMap<u64, u32>), InstanceError> {
        let value = self.value_of_key(root, "", "ops", "a list of operators")?;
        let list = value.as_array().ok_or_else(|| self.wrong_value("ops", value, "a list of operators"))?;
        let (mut operators, mut numbers) = (Vec::with_capacity(list.len()), BTreeMap::new());
        for (index, item) in (0u32..).zip(list) {
            let place = format!("ops[{index}].");
            let map = item.as_object().ok_or_else(|| {
                self.wrong_value(&format!("ops[{index}]"), item, "an object with id, type, latency and intra_latency")
            })?;
            self.refuse_unknown_keys(map, &place, &OPERATOR_KEYS)?;
            let id = self.value_of_key(map, &place, "id", WHOLE)?;
            let number = id.as_u64().ok_or_else(|| self.wrong_value(&format!("{place}id"), id, WHOLE))?;
            if numbers.insert(number, index).is_some() {
                return Err(self.wrong_value(&format!("{place}id"), id, "an id that no other operator has"));
            }
            let place = format!("ops[{index}] (id {number}).");
            let kind = self.read_kind(map, &place)?;
            let latency = self.read_ticks(map, &place, "latency")?;
            let across = match map.get("intra_latency") {
                None | Some(Value::Null) => None,
                Some(_) => Some(self.read_ticks(map, &place, "intra_latency")?),
            };
            operators.push(match kind {
                OperatorKind::Nop => Operator::new(kind, latency),
                _ => Operator { kind, latency, exclusive_latency: across },
            });
        }
        Ok((operators, numbers))
    }

    fn read_kind(&self, map: &Map<String, Value>, place: &str) -> Result<OperatorKind, InstanceError> {
        const KINDS: &str = "\"TC\", \"VC\", \"TCandVC\" or \"Nop\"";
        let value = self.value_of_key(map, place, "type", KINDS)?;
        match value.as_str() {
            Some("TC") => Ok(OperatorKind::Tensor),
            Some("VC") => Ok(OperatorKind::Vector),
            Some("TCandVC") => Ok(OperatorKind::TensorVector),
            Some("Nop") => Ok(OperatorKind::Nop),
            _ => Err(self.wrong_value(&format!("{place}type"), value, KINDS)),
        }
    }

    fn read_edges(
        &self,
        root: &Map<String, Value>,
        numbers: &BTreeMap<u64, u32>,
    ) -> Result<Vec<(u32, u32)>, InstanceError> {
        const PAIR: &str = "a pair [from, to] of operator ids that occur in `ops`";
        let value = self.value_of_key(root, "", "edges", "a list of pairs [from, to]")?;
        let list = value.as_array().ok_or_else(|| self.wrong_value("edges", value, "a list of pairs [from, to]"))?;
        let pair = |(index, item): (usize, &Value)| {
            let key = format!("edges[{index}]");
            let Some([from, to]) = item.as_array().map(Vec::as_slice) else {
                return Err(self.wrong_value(&key, item, PAIR));
            };
            let number = |id: &Value| {
                let id = id.as_u64().ok_or_else(|| self.wrong_value(&key, item, PAIR))?;
                let nowhere = || InstanceError::NoOperator {
                    path: self.path.into(),
                    key: key.clone(),
                    value: item.to_string(),
                    id,
                };
                numbers.get(&id).copied().ok_or_else(nowhere)
            };
            Ok((number(from)?, number(to)?))
        };
        list.iter().enumerate().map(pair).collect()
    }

    fn read_stored_answer(&self, root: &Map<String, Value>, key: &str) -> Result<Option<StoredAnswer>, InstanceError> {
        let Some(value) = root.get(key) else { return Ok(None) };
        let map = value
            .as_object()
            .ok_or_else(|| self.wrong_value(key, value, "an object with makespan, lower_bound and proved"))?;
        let place = format!("{key}.");
        let proved = self.value_of_key(map, &place, "proved", "true or false")?;
        Ok(Some(StoredAnswer {
            makespan: self.read_ticks(map, &place, "makespan")?,
            lower_bound: self.read_ticks(map, &place, "lower_bound")?,
            proved: proved
                .as_bool()
                .ok_or_else(|| self.wrong_value(&format!("{place}proved"), proved, "true or false"))?,
        }))
    }
}
