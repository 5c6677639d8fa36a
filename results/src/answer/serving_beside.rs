//! Another tool's predictions for deployments, beside coplace's predictions for the same configurations, as data.
//! `docs/json.md` describes them.

use serde::{Deserialize, Serialize};

/// The rows of a file, each with both predictions.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PredictionsBeside {
    /// The file.
    pub file: String,
    /// The rows, in the file's order.
    pub rows: Vec<PredictionBeside>,
    /// Columns of the file with unknown names. They are not read.
    pub unread_columns: Vec<String>,
}

/// A deployment with the predictions of another tool and of coplace, for the same plan and the same number of requests
/// in flight.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PredictionBeside {
    /// The number of the line in the file.
    pub line: u64,
    /// The chip, by the name of the system in the file.
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
    /// The figures by coplace; `null` if it cannot price the row.
    pub own: Option<ServedFigures>,
    /// The reason why coplace cannot price the row.
    pub note: Option<String>,
}

/// Times and rates of a deployment.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct ServedFigures {
    /// Mean time to the first token, in ms.
    pub ttft_ms: f64,
    /// Mean time per output token, in ms.
    pub tpot_ms: f64,
    /// Output tokens per second and device.
    pub tokens_per_s_per_device: f64,
}
