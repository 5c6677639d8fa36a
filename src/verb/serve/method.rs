//! Flags of drafts, held prefixes, and a cache off the device.

use crate::failure::{self, Failure, OrInput};
use crate::input::{self, TechniqueUse};
use crate::numbers::{real_number, token_count_in};
use crate::verb::job::{LONGEST, count_up_to};
use clap::ValueEnum;
use results::answer::serving_method::{InferenceRecord, MethodRecord};
use search::ask::MethodSpec;
use serving::ServingMethod;
use serving::beside::TechniqueFigures;
use serving::best::{Deployment, ServingHardware, ServingQuestion};
use serving::lengths::RequestLengths;
use serving::method::{CacheAway, CacheStore, Drafter, HeldPrefixes, MOST_DRAFTS, Speculation};
use serving::technique::ContextTechnique;
use sim::files::carried::Files;
use workloads::{Model, Technique, TechniqueError};

/// Drafts by a module of one layer.
const MODULE: &str = "module";
/// Drafts looked up in the text so far.
const LOOKUP: &str = "lookup";

/// The memory of keys and values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CachePlace {
    /// In the device's memory
    Device,
    /// In the host's memory
    Host,
    /// On storage behind the host
    Nvme,
}

/// How a deployment serves beside the plain way.
#[derive(clap::Args, Clone)]
pub struct MethodArguments {
    /// Tokens drafted for every decoding pass, which verifies them (speculative decoding)
    #[arg(long, value_name = "N", value_parser = count_up_to(MOST_DRAFTS))]
    draft: Option<u32>,
    /// Drafts that a pass accepts in the mean, from 0 to those of --draft
    #[arg(long, value_name = "MEAN", requires = "draft", value_parser = real_number)]
    accepted: Option<f64>,
    /// The drafter: module (one more layer of the model, as DeepSeek's MTP or an EAGLE head), lookup (in the text so
    /// far, without cost), or a model, built in or a config.json, on the same devices [default: module]
    #[arg(long, value_name = "MODEL", requires = "draft")]
    draft_model: Option<String>,
    /// Fraction of every prompt whose keys and values are already held, from 0 to below 1
    #[arg(long, value_name = "FRACTION", value_parser = real_number)]
    prefix_hit: Option<f64>,
    /// Tokens of all prefixes that every replica holds [default: those of a single one]
    #[arg(long, value_name = "TOKENS", requires = "prefix_hit", value_parser = token_count_in(1..=LONGEST << 16))]
    prefix_tokens: Option<u64>,
    /// Memory of the keys and values. Off the device, every decoding pass reads them over the device's link
    #[arg(long, value_enum, default_value_t = CachePlace::Device)]
    cache_place: CachePlace,
    /// Fraction of the keys and values off the device [default: all, in layers whose queries see all tokens]
    #[arg(long, value_name = "FRACTION", value_parser = real_number)]
    cache_away: Option<f64>,
    /// A technique of inference: homer (chunks of a prompt are merged) or memory3 (stored memories are read), with
    /// parameters (coplace list techniques)
    #[arg(long, value_name = "NAME[,KEY=VALUE]", value_parser = technique_of_serving,
        conflicts_with_all = ["draft", "prefix_hit", "cache_away"])]
    technique: Option<Technique>,
    /// Storage of every device: bandwidth each way and capacity, such as 6.4:1600, in place of the chip's own
    #[arg(long, value_name = "GB_PER_S:GB", conflicts_with = "study")]
    nvme: Option<String>,
}

impl MethodArguments {
    /// Returns the method as a value.
    pub fn spec(&self) -> MethodSpec {
        let place = match self.cache_place {
            CachePlace::Device => None,
            CachePlace::Host => Some(CacheStore::Host),
            CachePlace::Nvme => Some(CacheStore::Nvme),
        };
        MethodSpec {
            draft: self.draft,
            accepted: self.accepted,
            draft_model: self.draft_model.clone(),
            prefix_hit: self.prefix_hit,
            prefix_tokens: self.prefix_tokens,
            cache_place: place.map(|place| place.name().to_owned()),
            cache_away: self.cache_away,
            technique: self.technique.as_ref().map(ToString::to_string),
        }
    }

    /// Returns the storage that is given in place of the chips' own.
    pub fn storage(&self) -> Option<String> {
        self.nvme.clone()
    }
}

/// Returns the memory that a method names for the cache; `None` for the device's own memory.
fn store_of_method(spec: &MethodSpec) -> Option<CacheStore> {
    [CacheStore::Host, CacheStore::Nvme].into_iter().find(|store| spec.cache_place.as_deref() == Some(store.name()))
}

/// Reads the model that drafts; `None` if the drafter is a module, a look-up, or missing.
pub fn read_draft_model(spec: &MethodSpec, files: &Files) -> Result<Option<Model>, Failure> {
    let named = spec.draft_model.as_deref().filter(|name| spec.draft.is_some() && ![MODULE, LOOKUP].contains(name));
    let Some(name) = named else { return Ok(None) };
    match Model::load_assuming(name, files, &[]) {
        Ok(model) => Ok(Some(model)),
        Err(error) => Err(failure::option_failure_from("--draft-model", &error)),
    }
}

/// Reads the technique of a method.
fn technique_of_method(spec: &MethodSpec) -> Result<Option<Technique>, Failure> {
    spec.technique.as_ref().map(|text| input::parse_technique(text, TechniqueUse::Serving)).transpose().or_input()
}

/// Parses a technique of inference.
fn technique_of_serving(text: &str) -> Result<Technique, TechniqueError> {
    input::parse_technique(text, TechniqueUse::Serving)
}

/// Returns the method for a model and the lengths of its requests. `draft` is the model that [`read_draft_model`]
/// returned.
pub fn read_method<'a>(
    spec: &MethodSpec,
    model: &Model,
    lengths: &RequestLengths,
    draft: Option<&'a Model>,
) -> Result<ServingMethod<'a>, Failure> {
    let drafter = match draft {
        Some(model) => Drafter::Model(model),
        None if spec.draft_model.as_deref() == Some(LOOKUP) => Drafter::Lookup,
        None => Drafter::Module,
    };
    if spec.draft.is_some() && spec.accepted.is_none() {
        let cure = "give the mean number of drafts that a pass accepts, from 0 to those of --draft";
        return Err(failure::missing_option("--accepted", cure));
    }
    let drafts = spec.draft.map(|drafted| Speculation::new(drafted, spec.accepted.unwrap_or(0.0), drafter));
    let prefixes = spec.prefix_hit.map(|hit| HeldPrefixes::new(hit, spec.prefix_tokens));
    let store = store_of_method(spec);
    let longest = lengths.classes().iter().map(|class| class.input).max().unwrap_or(1);
    let technique = technique_of_method(spec)?;
    let technique = technique.map(|own| ContextTechnique::of_technique(&own, model, longest));
    let technique = technique.transpose().map_err(|error| failure::option_failure_from("--technique", &error))?;
    if technique.is_some() && store.is_some() {
        let limit = "a technique has its own way with keys and values";
        return Err(failure::option_failure("--cache-place", "", limit, "leave it or --technique out"));
    }
    let away = store.map(|store| CacheAway::new(store, spec.cache_away.unwrap_or(1.0)));
    Ok(ServingMethod {
        speculation: drafts.transpose().or_input()?,
        prefixes: prefixes.transpose().or_input()?,
        away: away.transpose().or_input()?,
        technique,
    })
}

/// Refuses a fraction of the cache off the device, or storage, if nothing uses it. `nvme` is true if storage is given.
pub fn check_storage(spec: &MethodSpec, nvme: bool, method: &ServingMethod<'_>) -> Result<(), Failure> {
    let store = store_of_method(spec);
    let stored = store == Some(CacheStore::Nvme) || matches!(method.technique, Some(ContextTechnique::Memories(_)));
    let given = [
        ("--cache-away", spec.cache_away.is_some(), "host or nvme", store.is_some()),
        ("--nvme", nvme, "nvme", stored),
    ];
    match given.into_iter().find(|(_, given, _, takes)| *given && !takes) {
        None => Ok(()),
        Some((flag, _, place, _)) => {
            let cure = format!("give --cache-place {place}, or leave {flag} out");
            Err(failure::option_failure(flag, "", "has no effect on a cache on the device", cure))
        }
    }
}

/// Returns the record of the method of a question, with the technique's figures on the best deployment's plan if its
/// chip is among `sides`.
pub fn record_of_method(
    spec: &MethodSpec,
    model: &Model,
    question: &ServingQuestion<'_>,
    best: Option<&Deployment>,
    sides: &[ServingHardware<'_>],
) -> Option<MethodRecord> {
    let (method, lengths) = (&question.method, &question.lengths);
    let figures = || {
        let pool = best.map(|best| best.prefill.as_ref().unwrap_or(&best.decode))?;
        let side = sides.iter().find(|side| side.chip.name == pool.chip)?;
        let input = lengths.classes().iter().map(|class| class.share * class.input as f64).sum::<f64>();
        let asked = (method.technique?, input.round() as u64);
        let figures = TechniqueFigures::of_prompt(*side, model, pool.plan, asked).ok()?;
        Some(InferenceRecord::of_figures(spec.technique.clone()?, &figures))
    };
    let record = MethodRecord::of_method(method)?;
    Some(MethodRecord { technique: figures(), ..record })
}
