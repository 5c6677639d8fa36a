//! AIConfigurator (NVIDIA, `ai-dynamo/aiconfigurator`): reads the rows of `best_config_topn.csv` and `pareto.csv` that
//! `aiconfigurator cli ... --save-dir DIR` writes (columns of `aiconfigurator.sdk.common`, `ColumnsAgg` and
//! `ColumnsDisagg`, as of 0.12.0). Columns are found by their header. Each row is a prediction of AIConfigurator.

use serde::Serialize;
use sim::files::{FileError, FileFault};
use std::collections::BTreeMap;

/// Systems of AIConfigurator (`systems/*.yaml`), each with its built-in chip.
const SYSTEMS: [(&str, &str); 6] = [
    ("a100_sxm", "a100_80gb_sxm"),
    ("h100_sxm", "h100_80gb_sxm"),
    ("h200_sxm", "h200"),
    ("b200_sxm", "b200"),
    ("b300_sxm", "b300"),
    ("gb300", "gb300"),
];

/// The cure for a file of another kind.
const CURE: &str = "give best_config_topn.csv or pareto.csv as AIConfigurator writes them";

/// Columns that do not affect the work: identities, sums of other columns, and figures that are not compared.
const TOLD: [&str; 22] = [
    "request_rate",
    "request_latency",
    "seq/s",
    "seq/s/gpu",
    "tokens/s",
    "tokens/s/gpu_cluster",
    "parallel",
    "fmha",
    "comm",
    "memory",
    "balance_score",
    "num_ctx_reqs",
    "num_gen_reqs",
    "num_tokens",
    "ctx_tokens",
    "gen_tokens",
    "version",
    "power_w",
    "encoder_memory",
    "seq/s/worker",
    "global_bs",
    "index",
];

/// Columns that change the work, each with the only value that changes nothing.
const NEUTRAL: [(&str, f64); 3] = [("encoder_latency", 0.0), ("cp", 1.0), ("workers", 0.0)];

/// A pool of replicas of a row.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PredictedPool {
    /// The system, by AIConfigurator's name.
    pub system: String,
    /// The engine: `vllm`, `sglang` or `trtllm`.
    pub backend: String,
    /// Replicas.
    pub workers: u32,
    /// Batch size: sequences in flight in each group of a replica that has attention of its own.
    pub batch: u64,
    /// Devices that split every layer.
    pub tensor: u32,
    /// Stages.
    pub pipeline: u32,
    /// Groups with attention of their own.
    pub attention_data: u32,
    /// Devices that split every expert by width.
    pub expert_tensor: u32,
    /// Parts with whole experts of their own.
    pub expert: u32,
    /// Format of the layers' products.
    pub products: String,
    /// Format of experts' products.
    pub experts: String,
    /// Format of the cache.
    pub cache: String,
}

/// A row: a deployment with AIConfigurator's prediction.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PredictedDeployment {
    /// The line of the file, from 1.
    pub line: u64,
    /// The model, by its name on Hugging Face or a path.
    pub model: String,
    /// Tokens of a prompt, including those of [`Self::held`].
    pub input: u64,
    /// Tokens of the prompt whose keys and values are held already.
    pub held: u64,
    /// Tokens of an answer.
    pub output: u64,
    /// Requests in flight over all replicas of the row.
    pub concurrency: u64,
    /// The pool that decodes; it also prefills unless [`Self::prefill`] is a pool of its own.
    pub decode: PredictedPool,
    /// The pool for prompts; `None` if the pool that decodes also prefills.
    pub prefill: Option<PredictedPool>,
    /// Devices of the row.
    pub devices: u32,
    /// Predicted mean time to the first token, ms.
    pub ttft_ms: f64,
    /// Predicted mean time per output token, ms.
    pub tpot_ms: f64,
    /// Predicted output tokens per second and device.
    pub tokens_per_s_per_device: f64,
    /// Predicted output tokens per second and user.
    pub tokens_per_s_per_user: f64,
    /// Columns that change the work in a way that is not modelled, with their values; empty if the row can be priced.
    pub refused: Vec<String>,
}

/// The rows of a file.
#[derive(Debug, Clone, PartialEq)]
pub struct PredictedFile {
    /// The rows, in order.
    pub rows: Vec<PredictedDeployment>,
    /// Columns that are neither read nor known to have no effect.
    pub unknown: Vec<String>,
}

/// Returns the built-in chip of a system; `None` for a system without one.
#[must_use]
pub fn chip_of_system(system: &str) -> Option<&'static str> {
    SYSTEMS.iter().find(|(known, _)| *known == system).map(|(_, chip)| *chip)
}

/// Returns the built-in engine of a backend.
#[must_use]
pub fn engine_of_backend(backend: &str) -> &str {
    if backend == "trtllm" { "tensorrt_llm" } else { backend }
}

/// A row with its cells by the names in the header.
struct HeadedRow<'a> {
    file: &'a str,
    line: u64,
    cells: BTreeMap<&'a str, &'a str>,
}

impl HeadedRow<'_> {
    fn fault(&self, column: &str, why: &str) -> FileError {
        let value = self.cells.get(column).copied().unwrap_or("missing");
        let fault = FileFault::new(format!("line {}: {column}", self.line), value, why, CURE);
        FileError { file: self.file.to_owned(), faults: vec![fault] }
    }

    fn text(&self, column: &str) -> Result<String, FileError> {
        let cell = self.cells.get(column).filter(|cell| !cell.is_empty());
        cell.map(|cell| (*cell).to_owned()).ok_or_else(|| self.fault(column, "is needed"))
    }

    fn number(&self, column: &str) -> Result<f64, FileError> {
        let number = self.text(column)?.parse::<f64>().ok().filter(|number| number.is_finite() && *number >= 0.0);
        number.ok_or_else(|| self.fault(column, "must be a number of at least 0"))
    }

    fn count(&self, column: &str) -> Result<u64, FileError> {
        let number = self.number(column)?;
        if number.fract() == 0.0 && number <= 1e12 {
            Ok(number as u64)
        } else {
            Err(self.fault(column, "must be whole"))
        }
    }

    fn positive_count(&self, column: &str) -> Result<u64, FileError> {
        let count = self.count(column)?;
        if count > 0 { Ok(count) } else { Err(self.fault(column, "must be at least 1")) }
    }

    fn degree(&self, column: &str) -> Result<u32, FileError> {
        let count = self.count(column)?;
        u32::try_from(count)
            .ok()
            .filter(|degree| (1..=1 << 16).contains(degree))
            .ok_or_else(|| self.fault(column, "must be from 1 to 65536"))
    }

    /// Reads the pool whose columns have this prefix. Without a prefix the row is one replica.
    fn pool(&self, prefix: &str) -> Result<PredictedPool, FileError> {
        let of = |column: &str| format!("{prefix}{column}");
        let workers = if prefix.is_empty() { 1 } else { self.degree(&of("workers"))? };
        Ok(PredictedPool {
            system: self.text(&of("system"))?,
            backend: self.text(&of("backend"))?,
            workers,
            batch: self.positive_count(&of("bs"))?,
            tensor: self.degree(&of("tp"))?,
            pipeline: self.degree(&of("pp"))?,
            attention_data: self.degree(&of("dp"))?,
            expert_tensor: self.degree(&of("moe_tp"))?,
            expert: self.degree(&of("moe_ep"))?,
            products: self.text(&of("gemm"))?,
            experts: self.text(&of("moe"))?,
            cache: self.text(&of("kvcache"))?,
        })
    }

    fn deployment(&self) -> Result<PredictedDeployment, FileError> {
        let apart = self.cells.contains_key("(d)tp");
        let [prefill, decode] = if apart { ["(p)", "(d)"] } else { ["", ""] };
        let refused = self.cells.iter().filter_map(|(column, value)| {
            let of_pool = ["(p)", "(d)"].iter().find_map(|prefix| column.strip_prefix(prefix));
            let name = of_pool.or(column.strip_prefix("(e)")).unwrap_or(column);
            // For separate pools, `workers` is read from columns with a prefix. Without a prefix, the column must be
            // neutral.
            let neutral =
                NEUTRAL.iter().find(|(known, _)| *known == name && !(*known == "workers" && of_pool.is_some()))?;
            let is_neutral = value.is_empty() || value.parse::<f64>() == Ok(neutral.1);
            (!is_neutral).then(|| format!("{column} = {value}"))
        });
        Ok(PredictedDeployment {
            line: self.line,
            model: self.text("model")?,
            input: self.count("isl")?,
            held: if self.text("prefix").is_ok() { self.count("prefix")? } else { 0 },
            output: self.count("osl")?,
            concurrency: self.positive_count("concurrency")?,
            decode: self.pool(decode)?,
            prefill: apart.then(|| self.pool(prefill)).transpose()?,
            devices: self.degree("num_total_gpus")?,
            ttft_ms: self.number("ttft")?,
            tpot_ms: self.number("tpot")?,
            tokens_per_s_per_device: self.number("tokens/s/gpu")?,
            tokens_per_s_per_user: self.number("tokens/s/user")?,
            refused: refused.collect(),
        })
    }
}

/// Counts the lines of a text up to a record. The CSV reader's own count is off in files with `\r\n`: it ends a line at
/// `\r` and puts `\n` into the next one.
struct LineCount<'a> {
    text: &'a [u8],
    at: usize,
    line: u64,
}

impl LineCount<'_> {
    /// Returns the line of the record that begins at `byte` or behind the ends of lines there. Calls must not go
    /// backwards in the text.
    fn line_of_record(&mut self, byte: u64) -> u64 {
        let from = usize::try_from(byte).unwrap_or(usize::MAX).clamp(self.at, self.text.len());
        let blank = self.text[from..].iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        let to = from + blank;
        self.line += self.text[self.at..to].iter().filter(|byte| **byte == b'\n').count() as u64;
        self.at = to;
        self.line
    }
}

/// Columns that are read, without their prefix.
const READ: [&str; 22] = [
    "model",
    "isl",
    "osl",
    "prefix",
    "concurrency",
    "ttft",
    "tpot",
    "tokens/s/gpu",
    "tokens/s/user",
    "num_total_gpus",
    "system",
    "backend",
    "workers",
    "bs",
    "tp",
    "pp",
    "dp",
    "moe_tp",
    "moe_ep",
    "gemm",
    "moe",
    "kvcache",
];

/// Reads rows from the text of a CSV file; `file` names it in errors.
///
/// # Errors
/// Text that is no CSV with the columns of AIConfigurator, or a cell that is no number.
pub fn read_predicted_rows(text: &str, file: &str) -> Result<PredictedFile, FileError> {
    let malformed =
        |why: String| FileError { file: file.to_owned(), faults: vec![FileFault::new("text", "malformed", why, CURE)] };
    let text = text.trim_start_matches('\u{feff}').as_bytes();
    let mut reader = csv::Reader::from_reader(text);
    let mut lines = LineCount { text, at: 0, line: 1 };
    let header = reader.headers().map_err(|why| malformed(why.to_string()))?.clone();
    let mut rows = Vec::new();
    for record in reader.records() {
        let record = record.map_err(|why| malformed(why.to_string()))?;
        let line = record.position().map_or(0, |position| lines.line_of_record(position.byte()));
        let cells = header.iter().map(str::trim).zip(record.iter().map(str::trim)).collect();
        rows.push(HeadedRow { file, line, cells }.deployment()?);
    }
    if rows.is_empty() {
        return Err(malformed("it has no rows: no deployment met the level".to_owned()));
    }
    let is_known = |column: &str| {
        let pool = ["(p)", "(d)", "(e)"].iter().find_map(|prefix| column.strip_prefix(prefix));
        let name = pool.unwrap_or(column);
        let neutral = NEUTRAL.iter().any(|(known, _)| *known == name);
        READ.contains(&name) || TOLD.contains(&name) || neutral
    };
    let unknown = header.iter().map(str::trim).filter(|column| !is_known(column)).map(str::to_owned).collect();
    Ok(PredictedFile { rows, unknown })
}
