//! The times and energies of a replica's iterations and prompts, for the steady state.

use crate::engine::Batching;
use crate::lengths::RequestLengths;
use crate::memory::ServingMemory;
use crate::passes::PassTimes;
use crate::{PassTime, ServingError};
use sim::units::{Bytes, Joules};

/// The times of a replica's iterations, and all other inputs of the steady state.
#[derive(Debug, Clone, PartialEq)]
pub struct IterationCosts {
    /// Points (sequences, seconds) of the decoding iteration's time. Both rise, and the time is linear in between.
    pub decode: Vec<(u64, f64)>,
    /// Largest number of sequences that decode at once.
    pub most_sequences: u64,
    /// Classes of requests.
    pub requests: Vec<RequestCost>,
    /// True if an iteration that has prompts also decodes.
    pub mixed: bool,
}

/// The costs of a class of requests to a replica.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RequestCost {
    /// Share of the requests.
    pub share: f64,
    /// Seconds by which its prompt delays decoding.
    pub prompt: f64,
    /// Seconds of its prompt from start to first token, without decoding.
    pub alone: f64,
    /// Number of tokens that it decodes: one less than its answer has.
    pub steps: u64,
    /// Mean number of iterations in which it decodes these `steps` tokens; equal to `steps` without drafts.
    pub iterations: f64,
    /// Mixed iterations that its prompt takes; more than 1 if the prompt has more tokens than an iteration holds.
    pub prompt_iterations: f64,
    /// Mixed iterations that a prompt of this length fills. It is below 1 if an iteration holds several such prompts.
    pub filled_iterations: f64,
}

impl IterationCosts {
    /// Returns the time of a decoding iteration of `n` sequences, in seconds.
    #[must_use]
    pub fn decode_time(&self, n: f64) -> f64 {
        interpolated(&self.decode, n)
    }

    pub(crate) fn mean(&self, of: impl Fn(&RequestCost) -> f64) -> f64 {
        self.requests.iter().map(|request| request.share * of(request)).sum()
    }

    /// Returns the rate in requests per second beyond which the queue grows without end.
    #[must_use]
    pub fn saturation(&self) -> f64 {
        1.0 / (self.mean(|r| r.prompt) + self.time_per_place())
    }

    /// Returns the mean number of decoding iterations of a request.
    #[must_use]
    pub fn mean_iterations(&self) -> f64 {
        self.mean(|r| r.iterations)
    }

    /// Returns the mean number of iterations per decoded token; 1 without drafts.
    pub(crate) fn iterations_per_token(&self) -> f64 {
        self.mean_iterations() / self.mean(|r| r.steps as f64)
    }

    /// Returns the mean number of iterations for which a sequence holds its place: its decoding iterations, and the
    /// mixed ones with its prompt.
    pub(crate) fn held_iterations(&self) -> f64 {
        self.mean(|r| r.iterations + if self.mixed { r.prompt_iterations } else { 0.0 })
    }

    /// Returns the number of places that sequences can take at once.
    ///
    /// A mixed iteration holds a fixed number of tokens. If prompts fill c iterations each, one more sequence decodes
    /// after every c iterations. So answers of L iterations keep L / c places busy, and a prompt keeps another one
    /// busy.
    pub(crate) fn places(&self) -> f64 {
        let most = self.most_sequences.max(1) as f64;
        let filled = self.mean(|r| r.filled_iterations);
        if self.mixed && filled > 0.0 { most.min(1.0 + self.mean_iterations() / filled) } else { most }
    }

    /// Returns whether prompts, and not places, bound the number of sequences that decode.
    pub(crate) fn is_bound_by_prompts(&self) -> bool {
        self.places() < self.most_sequences as f64
    }

    /// Returns the costs of a replica that prefills prompts first, with the same places, work and saturation. Mixed
    /// iterations with a prompt count as iterations of its answer.
    pub(crate) fn with_prompts_first(&self) -> Self {
        let longer = |r: &RequestCost| RequestCost {
            steps: r.steps + r.prompt_iterations.round() as u64,
            iterations: r.iterations + r.prompt_iterations,
            ..*r
        };
        let requests = if self.mixed { self.requests.iter().map(longer).collect() } else { self.requests.clone() };
        Self { requests, mixed: false, ..self.clone() }
    }

    /// Returns the costs of a replica that receives the cache of prompts from other replicas.
    pub(crate) fn without_prompts(&self) -> Self {
        let decode = |r: &RequestCost| RequestCost { prompt: 0.0, alone: 0.0, ..*r };
        Self { requests: self.requests.iter().map(decode).collect(), mixed: false, ..self.clone() }
    }

    /// Returns the seconds of decoding between two sequences that leave, with all places taken.
    pub(crate) fn time_per_place(&self) -> f64 {
        let places = self.places();
        self.held_iterations() * self.decode_time(places) / places
    }
}

/// Returns the value at `n` sequences by linear interpolation between `points`, which must be sorted by sequences.
/// Outside the points, the nearest value holds.
pub(crate) fn interpolated(points: &[(u64, f64)], n: f64) -> f64 {
    let at = points.partition_point(|(sequences, _)| (*sequences as f64) < n);
    let point = |i: usize| points.get(i).map(|(sequences, value)| (*sequences as f64, *value));
    match (at.checked_sub(1).and_then(point), point(at)) {
        (Some((n0, v0)), Some((n1, v1))) => v0 + (v1 - v0) * (n - n0) / (n1 - n0),
        (None, Some((_, value))) | (Some((_, value)), None) => value,
        (None, None) => 0.0,
    }
}

/// The workers of a pool that only prefills.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PromptPool {
    /// Number of workers. Each worker is a replica.
    pub workers: u32,
    /// Seconds of a worker per prompt, if other prompts share its pass.
    pub prompt: f64,
    /// Seconds from the start of a prompt to its first token.
    pub alone: f64,
}

impl PromptPool {
    /// Returns a pool of `workers` replicas that prefill prompts of `input` tokens. Every group with attention of its
    /// own takes up to `batch` prompts in one pass.
    ///
    /// # Errors
    /// A length that the model does not allow.
    pub fn of_replicas(times: &mut PassTimes<'_>, workers: u32, input: u64, batch: u64) -> Result<Self, ServingError> {
        let groups = u64::from(times.plan().attention_data);
        let together = prompts_together(times, input).min(batch.max(1).saturating_mul(groups));
        let several = time_of_prompts(times, together, input)?.total().0 / together as f64;
        let alone = time_of_prompts(times, 1, input)?.total().0;
        let latency = times.engine().launch.request_ms * 1e-3;
        Ok(Self { workers, prompt: several.min(alone) / times.passes_in_flight(), alone: alone + latency })
    }
}

/// Returns the time of whole prompts of `input` tokens, chunk after chunk, with `prompts` of equal length at once.
/// Groups with attention of their own take prompts side by side, each with the engine's most tokens. Tokens of held
/// prefixes take no time.
pub(crate) fn time_of_prompts(times: &mut PassTimes<'_>, prompts: u64, input: u64) -> Result<PassTime, ServingError> {
    if let Some(merged) = times.method().merged() {
        return times.merged_prefill(prompts, input, merged);
    }
    let held = times.method().held_tokens(input);
    time_of_tokens(times, prompts, held, input)
}

/// Returns the energy of a prompt of `input` tokens on a device of its group, without static power. It is the prompt's
/// share of the energy of an iteration full of such prompts, which reads the weights once for all of them.
///
/// # Errors
/// A length that the model does not allow.
pub(crate) fn energy_of_prompt(times: &mut PassTimes<'_>, input: u64) -> Result<Joules, ServingError> {
    let together = prompts_together(times, input);
    let own = together.div_ceil(u64::from(times.plan().attention_data)).max(1);
    let shared = time_of_prompts(times, together, input)?.energy * (1.0 / own as f64);
    let alone = time_of_prompts(times, 1, input)?.energy;
    Ok(Joules(shared.0.min(alone.0)))
}

/// Returns the time of the tokens from place `done` to place `end` of `prompts` prompts.
fn time_of_tokens(times: &mut PassTimes<'_>, prompts: u64, mut done: u64, end: u64) -> Result<PassTime, ServingError> {
    let own = prompts.div_ceil(u64::from(times.plan().attention_data)).max(1);
    let most = (times.engine().batching.most_tokens / own).max(1);
    let mut sum = PassTime::default();
    while done < end {
        let chunk = most.min(end - done);
        sum = sum.plus(times.prefill(prompts, chunk, done)?);
        done += chunk;
    }
    Ok(sum)
}

/// Returns the number of prompts of `input` tokens that an iteration holds, at least one per group with attention of
/// its own.
#[must_use]
pub fn prompts_together(times: &PassTimes<'_>, input: u64) -> u64 {
    if times.method().merged().is_some() {
        return u64::from(times.plan().attention_data);
    }
    let own = input - times.method().held_tokens(input);
    (times.engine().batching.most_tokens / own.max(1)).max(1) * u64::from(times.plan().attention_data)
}

/// Returns the costs of a replica's iterations under requests of given lengths.
///
/// A prompt's cost in a mixed iteration assumes that `typical` sequences decode beside it.
///
/// # Errors
/// A plan or a length that the model does not allow; a plan whose weights and one sequence do not fit.
pub fn iteration_costs(
    times: &mut PassTimes<'_>,
    memory: &ServingMemory,
    lengths: &RequestLengths,
    typical: u64,
) -> Result<IterationCosts, ServingError> {
    let most = most_sequences(times, memory, lengths)?;
    let context = times.method().mean_context(lengths) as u64;
    // Powers of two and the middles between them, up to the first one that is at least `most`. So times do not depend
    // on how many sequences fit.
    let mut decode = Vec::new();
    let mut n = 1;
    loop {
        decode.push((n, times.decode(n, context)?.total().0));
        if n >= most {
            break;
        }
        n = if n.is_power_of_two() { (n + n / 2).max(n + 1) } else { n.next_power_of_two() };
    }
    // The nodes of a merged prompt run in passes of their own.
    let mixed = times.batching() == Batching::Mixed && times.method().merged().is_none();
    let mut requests = Vec::new();
    let room = room_for_prompts(times, lengths, most);
    for class in lengths.classes() {
        let (prompt, alone) = if mixed {
            cost_of_mixed_prompt(times, class.input, typical.clamp(1, most), context)?
        } else {
            cost_of_prompt(times, class.input)?
        };
        let (steps, latency) = (class.output - 1, times.engine().launch.request_ms * 1e-3);
        let own = (class.input - times.method().held_tokens(class.input)) as f64;
        requests.push(RequestCost {
            share: class.share,
            prompt,
            alone: alone + latency,
            steps,
            iterations: times.method().passes_for(steps),
            prompt_iterations: (own / room).ceil().max(1.0),
            filled_iterations: own / room / f64::from(times.plan().attention_data) / times.passes_in_flight(),
        });
    }
    Ok(IterationCosts { decode, most_sequences: most, requests, mixed })
}

/// Returns the number of tokens of a mixed iteration that prompts may take, in one group with attention of its own. The
/// decoding sequences take the other tokens: `most` sequences, or as many as the prompts keep busy if these are fewer.
fn room_for_prompts(times: &PassTimes<'_>, lengths: &RequestLengths, most: u64) -> f64 {
    let method = times.method();
    let tokens = times.engine().batching.most_tokens as f64;
    let prompt = lengths.mean(|class| (class.input - method.held_tokens(class.input)) as f64);
    let decoded = lengths.mean(|class| method.passes_for(class.output - 1)) * method.verified_tokens() as f64;
    let parts = f64::from(times.plan().attention_data) * times.passes_in_flight();
    let placed = most as f64 * method.verified_tokens() as f64 / parts;
    (tokens - placed.min(tokens * decoded / (prompt + decoded).max(1.0))).max(1.0)
}

/// Returns the largest number of sequences that decode at once: as many as fit and as the engine runs.
fn most_sequences(
    times: &PassTimes<'_>,
    memory: &ServingMemory,
    lengths: &RequestLengths,
) -> Result<u64, ServingError> {
    let method = times.method();
    let parts = u64::from(times.plan().attention_data);
    // A sequence holds the tokens outside held prefixes, and its drafts.
    let elsewhere = |input: u64| input - method.own_tokens(input);
    let own = lengths.mean_context_after(elsewhere).ceil() as u64;
    let longest = lengths.longest_after(elsewhere);
    let drafts = method.verified_tokens() - 1;
    if memory.room_for_cache() == Bytes::ZERO {
        return Err(ServingError::Plan {
            key: "weights",
            value: format!("{:.1} GiB on every device", memory.weights.gib()),
            limit: format!(
                "and {:.1} GiB at work leave nothing of the {:.1} GiB that the engine may use",
                memory.working.gib(),
                memory.usable.gib()
            ),
            cure: "give more devices to a replica (--tensor, --pipeline), or narrower weights (--products)".to_owned(),
        });
    }
    let fit = memory.sequences_that_fit(own.saturating_add(drafts)).saturating_mul(parts);
    if fit == 0 || memory.sequences_that_fit(longest.saturating_add(drafts)) == 0 {
        let beside = memory.away.map_or_else(String::new, |away| {
            format!(", and {:.1} GiB are beside the device for {:.0} % of it", away.capacity.gib(), away.fraction * 1e2)
        });
        return Err(ServingError::Plan {
            key: "input + output",
            value: lengths.longest().to_string(),
            limit: format!(
                "needs {:.1} GiB of cache on every device, and weights leave {:.1}{beside}",
                memory.cache_on_device(longest).gib(),
                memory.room_for_cache().gib()
            ),
            cure: "give more devices (tp), a narrower cache or shorter requests".to_owned(),
        });
    }
    let batching = &times.engine().batching;
    let placed = batching.most_sequences.min(batching.most_tokens / (drafts + 1)).max(1);
    Ok(fit.min(placed.saturating_mul(parts)))
}

/// Returns the seconds by which a prompt in iterations of its own delays decoding, and the seconds to its first token.
fn cost_of_prompt(times: &mut PassTimes<'_>, input: u64) -> Result<(f64, f64), ServingError> {
    let together = prompts_together(times, input);
    let batch = time_of_prompts(times, together, input)?.total().0 / together as f64;
    Ok((batch / times.passes_in_flight(), time_of_prompts(times, 1, input)?.total().0))
}

/// Returns the same two times as [`cost_of_prompt`] in mixed iterations, in which `decoding` sequences of `context`
/// tokens also decode.
///
/// In an iteration with c tokens of prompts and b decoding sequences, all work but attention is that of c + b tokens.
/// The b tokens would pass the weights anyway. Each group takes a prompt.
fn cost_of_mixed_prompt(
    times: &mut PassTimes<'_>,
    input: u64,
    decoding: u64,
    context: u64,
) -> Result<(f64, f64), ServingError> {
    let parts = u64::from(times.plan().attention_data);
    let beside = times.decode(decoding, context)?;
    let held = times.method().held_tokens(input);
    let chunks = (input - held).div_ceil(times.engine().batching.most_tokens);
    let saved = (beside.total() - beside.attention - beside.drafts - beside.fetches).0 * chunks as f64;
    let whole = time_of_prompts(times, parts, input)?.total().0;
    let wider = input.saturating_add(chunks * decoding.div_ceil(parts) * times.method().verified_tokens());
    let joint = time_of_tokens(times, parts, held, wider)?.total().0;
    let own = (joint - saved).max(marginal_time(times, parts, input, whole)?);
    // The steady state adds the decoding beside the prompt to this time: at least one sequence. So one sequence is left
    // out here.
    let one = times.decode(1, context)?;
    let single = whole - (one.total() - one.drafts - one.fetches).0;
    Ok((own / times.passes_in_flight() / parts as f64, single.max(0.0)))
}

/// Returns the seconds that one more prompt in each of `parts` groups adds to an iteration with other prompts. If an
/// iteration holds several prompts, it is the mean difference per prompt between a full iteration and one with one
/// prompt. Otherwise it is a fixed share of `whole`, the time of one prompt.
fn marginal_time(times: &mut PassTimes<'_>, parts: u64, input: u64, whole: f64) -> Result<f64, ServingError> {
    let together = prompts_together(times, input) / parts.max(1);
    if together < 2 {
        return Ok(whole * LEAST_PROMPT_SHARE);
    }
    let all = time_of_prompts(times, together * parts, input)?.total().0;
    Ok(((all - whole) / (together - 1) as f64).max(0.0))
}

/// Least time that a prompt adds to an iteration that it fills, as a fraction of the prompt's time alone. The weights
/// are read anyway, but the prompt's products still take time.
const LEAST_PROMPT_SHARE: f64 = 0.1;
