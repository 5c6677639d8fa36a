//! The optional methods of a deployment beside plain serving, as data.

use serde::{Deserialize, Serialize};
use serving::beside::TechniqueFigures;
use serving::method::{Drafter, ServingMethod};

/// Drafts, held prefixes, a cache off the device, and an inference technique. `docs/json.md` describes them.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct MethodRecord {
    /// Tokens that are drafted for a pass; `null` without drafts.
    pub drafted: Option<u32>,
    /// Mean number of drafted tokens that a pass accepts.
    pub accepted: Option<f64>,
    /// The source of drafts: `module`, `lookup`, or the name of a draft model.
    pub draft_model: Option<String>,
    /// The fraction of every prompt whose keys and values are held; `null` without held prefixes.
    pub prefix_hit: Option<f64>,
    /// The tokens of all held prefixes; `null` if there is a single prefix.
    pub prefix_tokens: Option<u64>,
    /// The memory that holds a part of the cache: `host` or `nvme`; `null` if the whole cache is on the device.
    pub cache_place: Option<String>,
    /// The fraction of keys and values that lies in `cache_place`.
    pub cache_away: Option<f64>,
    /// The inference technique, with its figures for the best plan; `null` without one.
    pub technique: Option<InferenceRecord>,
}

/// An inference technique beside plain serving. The figures are for the best plan and a single prompt of the mean
/// length.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct InferenceRecord {
    /// The technique, with the given parameters.
    pub name: String,
    /// Peak of the prompt's keys and values, in GiB per device.
    pub peak_gib: f64,
    /// Peak of the prompt's keys and values in plain serving, in GiB per device.
    pub plain_peak_gib: f64,
    /// Time of the prompt, in ms.
    pub prompt_ms: f64,
    /// Time of the prompt in plain serving, in ms.
    pub plain_prompt_ms: f64,
    /// Data that a device reads from storage per token of a sequence, in KiB.
    pub read_kib_per_token: f64,
    /// Keys and values of the technique's reference texts in storage, in GiB per device.
    pub stored_gib: f64,
}

impl InferenceRecord {
    /// Makes the record of a technique's figures.
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
    /// Makes the record of a method; `None` for plain serving.
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
