//! Methods of serving: drafts that a pass verifies, prefixes whose keys and values are held, a cache that lies off the
//! device, and techniques of inference.

use crate::ServingError;
use crate::lengths::RequestLengths;
use crate::technique::{ContextTechnique, MergedChunks, StoredMemories};
use sim::hardware::Accelerator;
use sim::units::{Bytes, BytesPerSecond};
use workloads::Model;

/// Largest number of tokens drafted for one pass.
pub const MOST_DRAFTS: u32 = 64;

/// The methods with which a deployment serves. The default has none.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct ServingMethod<'a> {
    /// Drafts that decoding passes verify.
    pub speculation: Option<Speculation<'a>>,
    /// Prefixes of prompts whose keys and values are held.
    pub prefixes: Option<HeldPrefixes>,
    /// A part of the cache that lies off the device.
    pub away: Option<CacheAway>,
    /// A technique of inference.
    pub technique: Option<ContextTechnique>,
}

impl ServingMethod<'_> {
    /// Returns the number of a prompt's tokens whose keys and values are held. The last token is always computed,
    /// because its result gives the answer's first token.
    #[must_use]
    pub fn held_tokens(&self, input: u64) -> u64 {
        self.prefixes.map_or(0, |prefixes| ((input as f64 * prefixes.hit) as u64).min(input.saturating_sub(1)))
    }

    /// Returns the merging of the prompts' chunks; `None` if they are not merged.
    #[must_use]
    pub fn merged(&self) -> Option<MergedChunks> {
        self.technique.and_then(|technique| match technique {
            ContextTechnique::Merged(merged) => Some(merged),
            ContextTechnique::Memories(_) => None,
        })
    }

    /// Returns the stored memories that sequences read; `None` if they read none.
    #[must_use]
    pub fn memories(&self) -> Option<StoredMemories> {
        self.technique.and_then(|technique| match technique {
            ContextTechnique::Merged(_) => None,
            ContextTechnique::Memories(memories) => Some(memories),
        })
    }

    /// Returns the number of a prompt's tokens that pass the layers, as a mean over layers.
    #[must_use]
    pub fn computed_tokens(&self, input: u64) -> f64 {
        let rest = (input - self.held_tokens(input)) as f64;
        self.merged().map_or(rest, |merged| merged.computed_tokens(input))
    }

    /// Returns the number of a prompt's tokens whose keys and values the sequence itself holds.
    pub(crate) fn own_tokens(&self, input: u64) -> u64 {
        self.merged().map_or(input - self.held_tokens(input), |merged| merged.kept_tokens(input))
    }

    /// Returns the mean number of tokens that a decoding sequence attends to, without stored memories.
    #[must_use]
    pub fn mean_context(&self, lengths: &RequestLengths) -> f64 {
        let lost = |input: u64| self.merged().map_or(0, |merged| input - merged.kept_tokens(input));
        lengths.mean_context_after(lost)
    }

    /// Returns the number of tokens that a pass verifies per sequence; 1 without drafts.
    #[must_use]
    pub fn verified_tokens(&self) -> u64 {
        self.speculation.map_or(1, |speculation| u64::from(speculation.drafted) + 1)
    }

    /// Returns the mean number of tokens that a sequence gains in a decoding pass.
    #[must_use]
    pub fn tokens_per_pass(&self) -> f64 {
        self.speculation.map_or(1.0, |speculation| 1.0 + speculation.accepted)
    }

    /// Returns the mean number of decoding passes until a sequence has gained `tokens` tokens.
    #[must_use]
    pub fn passes_for(&self, tokens: u64) -> f64 {
        self.speculation.map_or(tokens as f64, |speculation| speculation.passes_for(tokens))
    }
}

/// The source of drafts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Drafter<'a> {
    /// A search for the last tokens in the prompt and in the answer so far. It takes no time of the device.
    Lookup,
    /// A module of one layer, run once per draft ([`workloads::serving::drafting_module`]).
    Module,
    /// A separate model on the same devices.
    Model(&'a Model),
}

/// Speculative decoding: drafts are proposed token after token, and one pass of the model verifies all of them
/// (Leviathan, Kalman and Matias 2023, arXiv:2211.17192).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Speculation<'a> {
    /// Tokens drafted for a pass.
    pub drafted: u32,
    /// Mean number of drafts that a pass accepts: from 0 to `drafted`.
    pub accepted: f64,
    /// The source of the drafts.
    pub drafter: Drafter<'a>,
}

impl<'a> Speculation<'a> {
    /// Returns speculative decoding with `drafted` drafts per pass, of which `accepted` are accepted in the mean.
    ///
    /// # Errors
    /// No draft or too many; an accepted number that is negative or above `drafted`.
    pub fn new(drafted: u32, accepted: f64, drafter: Drafter<'a>) -> Result<Self, ServingError> {
        let fault = |key, value: String, limit: String, cure: &str| {
            Err(ServingError::Plan { key, value, limit, cure: cure.to_owned() })
        };
        if !(1..=MOST_DRAFTS).contains(&drafted) {
            let limit = format!("must be from 1 to {MOST_DRAFTS}");
            return fault("draft", drafted.to_string(), limit, "leave it out to decode without drafts");
        }
        if !(0.0..=f64::from(drafted)).contains(&accepted) {
            let limit = format!("must be from 0 to the {drafted} drafted");
            return fault("accepted", accepted.to_string(), limit, "give the mean number of accepted drafts of a pass");
        }
        Ok(Self { drafted, accepted, drafter })
    }

    /// Returns the probability that a draft is accepted if those before it are. It is equal for all drafts, and gives
    /// the mean `accepted` (Leviathan et al. 2023, section 3.1).
    fn chance_of_draft(&self) -> f64 {
        let mean = |chance: f64| {
            let mut power = 1.0;
            (0..self.drafted).map(|_| (power *= chance, power).1).sum::<f64>()
        };
        let (mut low, mut high) = (0.0, 1.0);
        for _ in 0..60 {
            let middle = f64::midpoint(low, high);
            if mean(middle) < self.accepted { low = middle } else { high = middle }
        }
        if self.accepted > 0.0 { high } else { 0.0 }
    }

    /// Returns the mean number of passes until a sequence has gained `tokens` tokens. The last pass may gain more
    /// tokens than are left; the surplus is lost. The result is exact up to `EXACT_TOKENS`. Beyond that, further tokens
    /// take the mean number of passes.
    #[must_use]
    pub fn passes_for(&self, tokens: u64) -> f64 {
        let longest = u64::from(self.drafted) + 1;
        // The inexact rest is a multiple of the largest gain per pass. So the result stays exact if all drafts are
        // accepted.
        let further = tokens.saturating_sub(EXACT_TOKENS) / longest * longest;
        let exact = (tokens - further) as usize;
        let chance = self.chance_of_draft();
        let mut passes = vec![0.0; exact + 1];
        for left in 1..=exact {
            let after = |gained: usize| passes.get(left.saturating_sub(gained)).copied().unwrap_or(0.0);
            let (mut reached, mut sum) = (1.0, 1.0);
            for gained in 1..=self.drafted as usize {
                sum += reached * (1.0 - chance) * after(gained);
                reached *= chance;
            }
            let all = reached * after(longest as usize);
            passes[left] = sum + all;
        }
        passes.last().copied().unwrap_or(0.0) + further as f64 / (1.0 + self.accepted)
    }
}

/// Tokens of an answer up to which passes are counted exactly.
const EXACT_TOKENS: u64 = 1024;

/// Prefixes of prompts whose keys and values every replica holds on its devices, once for all requests.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct HeldPrefixes {
    /// Fraction of every prompt that is held, below 1.
    pub hit: f64,
    /// Tokens of all held prefixes together; `None` if all requests share one prefix.
    pub tokens: Option<u64>,
}

impl HeldPrefixes {
    /// Returns prefixes that hold the fraction `hit` of every prompt. `tokens` is the number of tokens in all prefixes.
    ///
    /// # Errors
    /// A fraction that is negative or at least 1.
    pub fn new(hit: f64, tokens: Option<u64>) -> Result<Self, ServingError> {
        if (0.0..1.0).contains(&hit) {
            return Ok(Self { hit, tokens });
        }
        Err(ServingError::Plan {
            key: "prefix_hit",
            value: hit.to_string(),
            limit: "must be from 0 to below 1".to_owned(),
            cure: "give the fraction of a prompt's tokens whose keys and values are held".to_owned(),
        })
    }
}

/// A memory beside the device's own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheStore {
    /// The host's memory, over the device's link to it.
    Host,
    /// Storage behind the host.
    Nvme,
}

/// A part of every sequence's cache that lies off the device. Every decoding pass reads it, layer after layer. The next
/// layer's part arrives while a layer is at work.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CacheAway {
    /// The memory.
    pub store: CacheStore,
    /// Fraction of the keys and values that lies in that memory, in layers whose queries see all tokens.
    pub fraction: f64,
}

/// Capacity and rates of a store for one device.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StoreRates {
    /// Bytes that it holds.
    pub capacity: Bytes,
    /// Rate of reading.
    pub read: BytesPerSecond,
    /// Rate of writing.
    pub write: BytesPerSecond,
}

impl CacheAway {
    /// Returns a cache of which `fraction` lies in `store`.
    ///
    /// # Errors
    /// A fraction that is negative or above 1.
    pub fn new(store: CacheStore, fraction: f64) -> Result<Self, ServingError> {
        if (0.0..=1.0).contains(&fraction) {
            return Ok(Self { store, fraction });
        }
        Err(ServingError::Plan {
            key: "cache_away",
            value: fraction.to_string(),
            limit: "must be from 0 to 1".to_owned(),
            cure: "give the fraction of keys and values that lies off the device".to_owned(),
        })
    }
}

impl CacheStore {
    /// Returns the capacity and the rates of the memory for a device of `chip`. Errors name `key` and `value` as the
    /// option that needs it.
    ///
    /// # Errors
    /// A chip whose file states no such memory.
    pub fn rates(self, chip: &Accelerator, key: &'static str, value: &str) -> Result<StoreRates, ServingError> {
        let missing = |table: &str| {
            let option = if table == "storage" { "--nvme GB_PER_S:GB, such as 6.4:1600, or " } else { "" };
            ServingError::Plan {
                key,
                value: value.to_owned(),
                limit: format!("needs {table}, and the file of {} has no {table}", chip.name),
                cure: format!("give {option}its file a [{table}] table, or leave {key} out"),
            }
        };
        let link = chip.host.ok_or_else(|| missing("host"))?;
        match self {
            Self::Host => {
                // Transfers also use the host's own memory, whose rate limits them if it is known.
                let rate = link.memory.map_or(link.bandwidth, |memory| BytesPerSecond(memory.0.min(link.bandwidth.0)));
                Ok(StoreRates { capacity: link.capacity, read: rate, write: rate })
            }
            Self::Nvme => {
                let storage = chip.storage.ok_or_else(|| missing("storage"))?;
                let through = |rate: BytesPerSecond| BytesPerSecond(rate.0.min(link.bandwidth.0));
                Ok(StoreRates {
                    capacity: storage.capacity,
                    read: through(storage.read_bandwidth),
                    write: through(storage.write_bandwidth),
                })
            }
        }
    }

    /// Returns the memory's name in options and answers.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Nvme => "nvme",
        }
    }
}
