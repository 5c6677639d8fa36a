//! Serving engines: their launches, batching, kernels and use of memory. Files are in `serving/engines`.

use serde::{Deserialize, Serialize};
use sim::files::carried::Files;
use sim::files::{FaultParts, StructuredError};
use std::collections::BTreeMap;
use thiserror::Error;

static ENGINES: include_dir::Dir<'_> = include_dir::include_dir!("$CARGO_MANIFEST_DIR/engines");

/// The way in which an engine joins prompts and decoding in its iterations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Batching {
    /// An iteration has all decoding sequences. Chunks of waiting prompts take the remaining tokens.
    Mixed,
    /// Waiting prompts are prefilled first, in iterations of their own. Decoding waits meanwhile.
    PromptsFirst,
}

/// Costs of an engine's host and launches.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineLaunch {
    /// Microseconds on the device between two kernels of a captured graph.
    pub gap_us: f64,
    /// Microseconds of host time between two iterations that no kernel hides: scheduling, inputs, sampling, answers.
    pub iteration_us: f64,
    /// Further microseconds of host time between two iterations, per sequence of the iteration.
    pub sequence_us: f64,
    /// Microseconds of host time per kernel of an iteration with prompts, which is not captured as a graph. The
    /// iteration takes at least the sum over its kernels.
    pub prompt_kernel_us: f64,
    /// Milliseconds that a request waits outside the engine's iterations: tokenizer, queues between processes.
    pub request_ms: f64,
}

/// An engine's rules for iterations.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineBatching {
    /// The way in which prompts and decoding share iterations.
    pub form: Batching,
    /// Largest number of tokens of an iteration.
    pub most_tokens: u64,
    /// Largest number of sequences that decode at once.
    pub most_sequences: u64,
}

/// Rates of the engine's kernels relative to the chip's library.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineKernels {
    /// Rate of matrix products, as a fraction of the library's.
    pub product_fraction: f64,
    /// Rate of products whose stored weights are converted on their way to the arrays, as a fraction of the arrays'
    /// rate. The conversion does not slow the reading of weights.
    pub stored_fraction: f64,
    /// Rate of attention while decoding, as a fraction of the library's.
    pub decode_fraction: f64,
    /// The longest message in KiB that the engine sums by its own kernels, in which every device reads the buffers of
    /// all others. The collective library sums longer messages.
    pub own_sum_kib: f64,
    /// Microseconds that an engine's own sum takes in addition to the time of its bytes.
    pub own_sum_us: f64,
    /// The library that runs attention of prompts, by a name of the chip's file. `None` is the serving library
    /// (TensorRT-LLM), whose calls also rotate and write the cache. Decoding has the rates of the chip's decode kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attention_library: Option<String>,
}

/// Models whose cache an engine divides by tokens among devices that would hold copies of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SharedTokens {
    /// No model, or none that the engine's documentation names.
    #[default]
    None,
    /// Models with latent attention.
    Latent,
    /// Models whose layers all attend to all tokens.
    All,
}

/// An engine's use of memory.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineMemory {
    /// Fraction of the chip's memory that the engine takes for weights, working memory and cache.
    pub used_fraction: f64,
    /// GiB of context, libraries and graphs on every device.
    pub context_gib: f64,
    /// Tokens of a page of the cache. A sequence's last page is half empty on average.
    pub page_tokens: u64,
    /// Models whose cache the engine divides by tokens.
    #[serde(default)]
    pub shared_tokens: SharedTokens,
}

/// A serving engine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServingEngine {
    /// Its name; a built-in engine's file is `NAME.toml`.
    pub name: String,
    /// A description of one line, for lists.
    pub description: String,
    /// Other values of `batching.most_tokens` that a plan may take. Each plan takes the value with which it serves
    /// most.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub other_most_tokens: Vec<u64>,
    /// Costs of launches.
    pub launch: EngineLaunch,
    /// Forming of iterations.
    pub batching: EngineBatching,
    /// Kernels.
    pub kernels: EngineKernels,
    /// Memory.
    pub memory: EngineMemory,
    /// Source of each value, by `table.key` or by table; every value has one.
    pub sources: BTreeMap<String, String>,
}

/// The reason why an engine cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum EngineError {
    /// No built-in engine has the name.
    #[error("{name}: no such engine; {}", sim::names::hint(name, known, "built in are"))]
    Unknown {
        /// The given name.
        name: String,
        /// The built-in names.
        known: String,
    },
    /// The file cannot be read.
    #[error("{file}: {why}; give the path of a readable engine file")]
    Unreadable {
        /// The file.
        file: String,
        /// The operating system's reason.
        why: String,
    },
    /// The file is not the TOML of an engine.
    #[error("{file}: {why}; {SHAPE}")]
    Malformed {
        /// The file.
        file: String,
        /// The parser's reason, with line and key.
        why: String,
    },
    /// A value out of range, or without a source.
    #[error("{file}: {key} = {value}: {limit}; {cure}")]
    Value {
        /// The file.
        file: String,
        /// The key, with its table.
        key: String,
        /// The value.
        value: String,
        /// The rule broken.
        limit: String,
        /// The cure.
        cure: &'static str,
    },
}

/// The shape of an engine's file.
const SHAPE: &str = "an engine has the tables and keys of serving/engines/vllm.toml, all of them and no other";

impl StructuredError for EngineError {
    fn fault_parts(&self) -> FaultParts {
        match self {
            Self::Unknown { name, known } => FaultParts::of_key(
                "engine",
                name,
                "is no built-in serving engine",
                sim::names::hint(name, known, "built in are"),
            ),
            Self::Unreadable { file, why } => FaultParts::of_file(file, why, "give the path of a readable engine file"),
            Self::Malformed { file, why } => FaultParts::of_file(file, why, SHAPE),
            Self::Value { file, key, value, limit, cure } => FaultParts::of_key(key, value, limit, *cure).in_file(file),
        }
    }
}

impl ServingEngine {
    /// Returns the names of the built-in engines, sorted.
    #[must_use]
    pub fn built_in_names() -> Vec<String> {
        let toml = |f: &&include_dir::File<'_>| f.path().extension().is_some_and(|e| e == "toml");
        let stem = |f: &include_dir::File<'_>| f.path().file_stem().map(|s| s.to_string_lossy().into_owned());
        let mut names: Vec<String> = ENGINES.files().filter(toml).filter_map(stem).collect();
        names.sort();
        names
    }

    /// Loads a built-in engine by name, or an engine's file by path (any name that ends in `.toml`). `files` may hold
    /// the file's text in place of the disk.
    ///
    /// # Errors
    /// An unknown name, an unreadable file, or invalid values.
    pub fn load_from(name_or_path: &str, files: &Files) -> Result<Self, EngineError> {
        if name_or_path.ends_with(".toml") {
            let text = files
                .read(name_or_path.as_ref())
                .map_err(|e| EngineError::Unreadable { file: name_or_path.to_owned(), why: e.to_string() })?;
            return Self::from_toml_str(name_or_path, &text);
        }
        let known = Self::built_in_names();
        let own = known.iter().find(|name| sim::names::are_same_name(name, name_or_path));
        let file = own.map(|name| format!("{name}.toml"));
        match file.and_then(|file| Some((ENGINES.get_file(&file)?.contents_utf8()?, file))) {
            Some((text, file)) => Self::from_toml_str(&file, text),
            None => Err(EngineError::Unknown { name: name_or_path.to_owned(), known: known.join(", ") }),
        }
    }

    /// Parses and checks an engine's file; `file` names it in errors.
    ///
    /// # Errors
    /// Malformed TOML, a missing or unknown key, a value out of range or without a source.
    pub fn from_toml_str(file: &str, text: &str) -> Result<Self, EngineError> {
        let malformed = |why: String| EngineError::Malformed { file: file.to_owned(), why: why.trim_end().to_owned() };
        let engine: Self = toml::from_str(text).map_err(|e| malformed(e.to_string()))?;
        let out = |(_, value, min, max): &(&str, f64, f64, f64)| !(*min..=*max).contains(value);
        let others = engine.other_most_tokens.iter().map(|most| ("other_most_tokens", *most as f64, 1.0, 1e7));
        if let Some((key, value, min, max)) = engine.values_with_ranges().into_iter().chain(others).find(out) {
            return Err(EngineError::Value {
                file: file.to_owned(),
                key: key.to_owned(),
                value: value.to_string(),
                limit: format!("must be from {min} to {max}"),
                cure: "give a value in that range",
            });
        }
        let tables = ["launch", "batching", "kernels", "memory"];
        let sourced = |key: &str| {
            engine.sources.contains_key(key)
                || tables
                    .iter()
                    .any(|table| key.starts_with(&format!("{table}.")) && engine.sources.contains_key(*table))
        };
        let table = text.parse::<toml::Table>().map_err(|e| malformed(e.to_string()))?;
        for name in tables {
            for (key, value) in table.get(name).and_then(toml::Value::as_table).into_iter().flatten() {
                let key = format!("{name}.{key}");
                if !sourced(&key) {
                    return Err(EngineError::Value {
                        file: file.to_owned(),
                        key,
                        value: value.to_string(),
                        limit: "has no source".to_owned(),
                        cure: "state under [sources] its source or the data that it was fitted on",
                    });
                }
            }
        }
        Ok(engine)
    }

    /// Returns the engine in each of its settings: one for `batching.most_tokens` and for each of the other values.
    #[must_use]
    pub fn settings(&self) -> Vec<Self> {
        let mut settings = vec![Self { other_most_tokens: Vec::new(), ..self.clone() }];
        for most in &self.other_most_tokens {
            let mut other = settings.first().unwrap_or(self).clone();
            other.batching.most_tokens = *most;
            settings.push(other);
        }
        settings
    }

    fn values_with_ranges(&self) -> [(&'static str, f64, f64, f64); 15] {
        let Self { launch: l, batching: b, kernels: k, memory: m, .. } = self;
        [
            ("launch.gap_us", l.gap_us, 0.0, 1e3),
            ("launch.iteration_us", l.iteration_us, 0.0, 1e6),
            ("launch.sequence_us", l.sequence_us, 0.0, 1e4),
            ("launch.prompt_kernel_us", l.prompt_kernel_us, 0.0, 1e3),
            ("launch.request_ms", l.request_ms, 0.0, 1e5),
            ("batching.most_tokens", b.most_tokens as f64, 1.0, 1e7),
            ("batching.most_sequences", b.most_sequences as f64, 1.0, 1e6),
            ("kernels.product_fraction", k.product_fraction, 0.05, 2.0),
            ("kernels.stored_fraction", k.stored_fraction, 0.05, 1.0),
            ("kernels.decode_fraction", k.decode_fraction, 0.05, 4.0),
            ("kernels.own_sum_kib", k.own_sum_kib, 0.0, 1e6),
            ("kernels.own_sum_us", k.own_sum_us, 0.0, 1e3),
            ("memory.used_fraction", m.used_fraction, 0.05, 1.0),
            ("memory.context_gib", m.context_gib, 0.0, 1e3),
            ("memory.page_tokens", m.page_tokens as f64, 1.0, 1e5),
        ]
    }
}
