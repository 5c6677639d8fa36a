//! Another tool's predictions of deployments beside coplace's for the same configuration, as data. Described in
//! `docs/json.md`.

use serde::{Deserialize, Serialize};

/// The rows of a file with both predictions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PredictionsBeside {
    /// The file.
    pub file: String,
    /// The rows, in the file's order.
    pub rows: Vec<PredictionBeside>,
    /// Columns of the file that are not known, and so not read.
    pub unread_columns: Vec<String>,
}

/// A deployment with another tool's prediction and coplace's: as many requests in flight on the same plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PredictionBeside {
    /// The line of the file.
    pub line: u64,
    /// The chip, by the file's name of the system.
    pub system: String,
    /// The plan in words.
    pub plan: String,
    /// Tokens of a prompt.
    pub input: u64,
    /// Tokens of an answer.
    pub output: u64,
    /// Requests in flight.
    pub concurrency: u64,
    /// The file's figures.
    pub predicted: ServedFigures,
    /// Coplace's; `null` if it cannot price the row.
    pub own: Option<ServedFigures>,
    /// The reason why not.
    pub note: Option<String>,
}

/// Times and rates of a deployment.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ServedFigures {
    /// Mean time to the first token, ms.
    pub ttft_ms: f64,
    /// Mean time per output token, ms.
    pub tpot_ms: f64,
    /// Output tokens per second and device.
    pub tokens_per_s_per_device: f64,
}
