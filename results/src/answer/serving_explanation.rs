//! The reasons why a run of `coplace serve` chose its deployment, as data. `docs/json.md` describes them.

use super::serving::ServingChoice;
use serde::Serialize;

/// The explanation of the best deployment of a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ServingExplanation {
    /// The run's directory.
    pub run: String,
    /// The lengths and limits in words.
    pub case: String,
    /// The unit of the objective's values.
    pub unit: String,
    /// The best deployment, at its highest rate.
    pub best: ServingChoice,
    /// The limit that keeps it from serving more, in words.
    pub binds: String,
    /// The best deployment of every chip, or pair of chips, the highest value first; then the chips that do not serve.
    pub chips: Vec<ExplainedAlternative>,
    /// Every plan of the chosen chips: those named by the user first, then by value as in `chips`.
    pub plans: Vec<ExplainedAlternative>,
    /// The best value if one limit is a tenth looser, and with twice the devices.
    pub looser: Vec<LooserLimit>,
}

/// A chip or a plan that was not chosen.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ExplainedAlternative {
    /// The chips of the pools.
    pub chip: String,
    /// The plans of the pools; `null` if no plan of the chip serves.
    pub plan: Option<String>,
    /// True if the user named it.
    pub named: bool,
    /// Its value at its highest rate; `null` if it does not serve.
    pub value: Option<f64>,
    /// The value relative to the best deployment's.
    pub times_best: Option<f64>,
    /// Mean time to the first token, in ms.
    pub ttft_ms: Option<f64>,
    /// Mean time between two tokens, in ms.
    pub tpot_ms: Option<f64>,
    /// The limit that binds, or the reason why it does not serve.
    pub binds: String,
}

/// The best value if one limit is looser.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LooserLimit {
    /// The limit, with its looser value.
    pub limit: String,
    /// The best value.
    pub value: f64,
    /// The value relative to the best deployment's.
    pub times_best: f64,
}
