//! How a deployment serves beside the plain way, as data.

use serde::{Deserialize, Serialize};
use serving::beside::TechniqueFigures;
use serving::method::{Drafter, ServingMethod};

/// Drafts, held prefixes, and a cache off the device. Described in `docs/json.md`.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct MethodRecord {
    /// Tokens drafted for a pass; `null` without drafts.
    pub drafted: Option<u32>,
    /// Drafts that a pass accepts, in the mean.
    pub accepted: Option<f64>,
    /// The model that drafts, `module` or `lookup`.
    pub draft_model: Option<String>,
    /// Fraction of every prompt that is held; `null` without held prefixes.
    pub prefix_hit: Option<f64>,
    /// Tokens of all held prefixes; `null` for a single prefix.
    pub prefix_tokens: Option<u64>,
    /// The memory that a part of the cache lies in: `host` or `nvme`; `null` if all of it is on the device.
    pub cache_place: Option<String>,
    /// Fraction of the keys and values that lies there.
    pub cache_away: Option<f64>,
    /// The technique of inference, with the best plan's figures; `null` without one.
    pub technique: Option<InferenceRecord>,
}

/// A technique of inference beside the plain way, for a prompt of the mean length alone on the best plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InferenceRecord {
    /// The technique, with the given parameters.
    pub name: String,
    /// Keys and values of the prompt at their peak, GiB per device.
    pub peak_gib: f64,
    /// The same in the plain way.
    pub plain_peak_gib: f64,
    /// Time of the prompt, ms.
    pub prompt_ms: f64,
    /// The same in the plain way.
    pub plain_prompt_ms: f64,
    /// Storage that a device reads per token of a sequence, KiB.
    pub read_kib_per_token: f64,
    /// Stored memories, GiB per device.
    pub stored_gib: f64,
}

impl InferenceRecord {
    /// Returns the record of a technique's figures.
    #[must_use]
    pub fn of_figures(name: String, figures: &TechniqueFigures) -> Self {
        Self {
            name,
            peak_gib: figures.peak.gib(),
            plain_peak_gib: figures.plain_peak.gib(),
            prompt_ms: figures.prompt.0 * 1e3,
            plain_prompt_ms: figures.plain_prompt.0 * 1e3,
            read_kib_per_token: figures.read_per_token / 1024.0,
            stored_gib: figures.stored / (1u64 << 30) as f64,
        }
    }
}

impl MethodRecord {
    /// Returns the record of a method; `None` of the plain way.
    #[must_use]
    pub fn of_method(method: &ServingMethod<'_>) -> Option<Self> {
        if *method == ServingMethod::default() {
            return None;
        }
        let (drafts, prefixes, away) = (method.speculation, method.prefixes, method.away);
        let drafter = drafts.map(|drafts| match drafts.drafter {
            Drafter::Lookup => "lookup".to_owned(),
            Drafter::Module => "module".to_owned(),
            Drafter::Model(model) => model.name.clone(),
        });
        Some(Self {
            drafted: drafts.map(|drafts| drafts.drafted),
            accepted: drafts.map(|drafts| drafts.accepted),
            draft_model: drafter,
            prefix_hit: prefixes.map(|prefixes| prefixes.hit),
            prefix_tokens: prefixes.and_then(|prefixes| prefixes.tokens),
            cache_place: away.map(|away| away.store.name().to_owned()),
            cache_away: away.map(|away| away.fraction),
            technique: None,
        })
    }
}
