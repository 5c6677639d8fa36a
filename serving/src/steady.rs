//! The steady state of continuous batching in closed form.
//!
//! A replica does one iteration after the other. While no prompt waits, every decoding sequence gets a token per
//! iteration, which takes D(n) with n sequences. Prompts take time P each from all of them, before or inside an
//! iteration. Between prompts the decoding sequences share the replica like a processor whose speed depends on their
//! number: a sequence of L tokens leaves after L iterations. The number of sequences then has a product form that
//! depends on the lengths only through their mean (symmetric queues: Kelly 1979, "Reversibility and stochastic
//! networks", section 3.3), with weights p(n) = p(n - 1) * r L D(n) / (n (1 - r P)) for r requests per second. Above
//! the most sequences B, requests wait and the ratio stays that of B.
//!
//! Prompts are served in order of arrival before decoding: the wait is that of the higher class of a queue with two
//! priorities (Kleinrock 1976, "Queueing systems II", section 3.6), with a decoding iteration as the work in progress.
//!
//! Requests arrive at random (Poisson), or a load generator keeps a number of them in flight. In the second case the
//! mean cycle of a request is solved for.

use crate::engine::Batching;
use crate::memory::ServingMemory;
use crate::passes::PassTimes;
use crate::{PassTime, ServingError};
use serde::{Deserialize, Serialize};
use sim::units::Seconds;
use thiserror::Error;

/// Requests of one length and their share of all.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct LengthClass {
    /// Tokens of the prompt, at least 1.
    pub input: u64,
    /// Tokens of the answer, at least 2.
    pub output: u64,
    /// Share of the requests.
    pub share: f64,
}

/// The lengths of requests: a distribution.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RequestLengths {
    classes: Vec<LengthClass>,
}

/// Why lengths cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
#[error("{key} = {value}: {limit}; {cure}")]
pub struct LengthError {
    /// The key.
    pub key: &'static str,
    /// Its value.
    pub value: String,
    /// The rule.
    pub limit: &'static str,
    /// What to do.
    pub cure: &'static str,
}

impl RequestLengths {
    /// Most tokens of a prompt or an answer.
    pub const MOST_TOKENS: u64 = 1 << 24;

    /// Returns a distribution; shares are divided by their sum.
    ///
    /// # Errors
    /// No class, a length out of range, a share that is not positive.
    pub fn new(classes: &[LengthClass]) -> Result<Self, LengthError> {
        let fault = |key, value: String, limit, cure| Err(LengthError { key, value, limit, cure });
        let total: f64 = classes.iter().map(|class| class.share).sum();
        if classes.is_empty() {
            return fault("lengths", "none".to_owned(), "needs at least one class", "give INPUTxOUTPUT");
        }
        for class in classes {
            if !(1..=Self::MOST_TOKENS).contains(&class.input) {
                let cure = "give the tokens of a prompt";
                return fault("input", class.input.to_string(), "must be from 1 to 16777216", cure);
            }
            if !(2..=Self::MOST_TOKENS).contains(&class.output) {
                let cure = "give the tokens of an answer: the prompt makes the first, decoding the others";
                return fault("output", class.output.to_string(), "must be from 2 to 16777216", cure);
            }
            if !(class.share > 0.0 && class.share.is_finite()) {
                return fault("share", class.share.to_string(), "must be positive", "give the requests' share");
            }
        }
        let classes = classes.iter().map(|class| LengthClass { share: class.share / total, ..*class }).collect();
        Ok(Self { classes })
    }

    /// Returns requests of one length.
    ///
    /// # Errors
    /// A length out of range.
    pub fn uniform(input: u64, output: u64) -> Result<Self, LengthError> {
        Self::new(&[LengthClass { input, output, share: 1.0 }])
    }

    /// Returns the classes; their shares sum to 1.
    #[must_use]
    pub fn classes(&self) -> &[LengthClass] {
        &self.classes
    }

    fn mean(&self, of: impl Fn(&LengthClass) -> f64) -> f64 {
        self.classes.iter().map(|class| class.share * of(class)).sum()
    }

    /// Returns the mean tokens of an answer.
    #[must_use]
    pub fn mean_output(&self) -> f64 {
        self.mean(|class| class.output as f64)
    }

    /// Returns the mean tokens in the cache of a decoding sequence: weighted by how long each sequence decodes.
    #[must_use]
    pub fn mean_context(&self) -> f64 {
        let steps = self.mean(|class| (class.output - 1) as f64);
        self.mean(|class| (class.output - 1) as f64 * (class.input as f64 + class.output as f64 / 2.0)) / steps
    }

    /// Returns the most tokens of a sequence.
    #[must_use]
    pub fn longest(&self) -> u64 {
        self.classes.iter().map(|class| class.input.saturating_add(class.output)).max().unwrap_or(0)
    }
}

/// Times of a replica's iterations: all that the steady state depends on.
#[derive(Debug, Clone, PartialEq)]
pub struct IterationCosts {
    /// Seconds of a decoding iteration by sequences, rising in both; linear in between.
    pub decode: Vec<(u64, f64)>,
    /// Most sequences that decode at once.
    pub most_sequences: u64,
    /// Classes of requests.
    pub requests: Vec<RequestCost>,
    /// True if an iteration that has prompts also decodes.
    pub mixed: bool,
}

/// What a class of requests costs a replica.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RequestCost {
    /// Share of the requests.
    pub share: f64,
    /// Seconds that its prompt takes from decoding.
    pub prompt: f64,
    /// Seconds of its prompt from start to first token, without decoding.
    pub alone: f64,
    /// Tokens that it decodes: one less than its answer.
    pub steps: u64,
}

impl IterationCosts {
    /// Returns the seconds of a decoding iteration of `n` sequences.
    #[must_use]
    pub fn decode_time(&self, n: f64) -> f64 {
        let at = self.decode.partition_point(|(sequences, _)| (*sequences as f64) < n);
        let point = |i: usize| self.decode.get(i).map(|(sequences, time)| (*sequences as f64, *time));
        match (at.checked_sub(1).and_then(point), point(at)) {
            (Some((n0, t0)), Some((n1, t1))) => t0 + (t1 - t0) * (n - n0) / (n1 - n0),
            (None, Some((_, time))) | (Some((_, time)), None) => time,
            (None, None) => 0.0,
        }
    }

    fn mean(&self, of: impl Fn(&RequestCost) -> f64) -> f64 {
        self.requests.iter().map(|request| request.share * of(request)).sum()
    }

    /// Returns the requests per second beyond which the queue grows without end.
    #[must_use]
    pub fn saturation(&self) -> f64 {
        let most = self.most_sequences as f64;
        1.0 / (self.mean(|r| r.prompt) + self.mean(|r| r.steps as f64) * self.decode_time(most) / most)
    }
}

/// The steady state of a replica.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SteadyState {
    /// Mean time from a request's arrival to its first token.
    pub time_to_first_token: Seconds,
    /// Mean time between two tokens of an answer.
    pub time_per_output_token: Seconds,
    /// Requests per second.
    pub requests_per_second: f64,
    /// Mean sequences that decode.
    pub decoding: f64,
    /// Fraction of the time that prompts take from decoding.
    pub prompt_fraction: f64,
    /// Requests per second relative to the rate at which the queue grows without end.
    pub load: f64,
}

/// Returns the steady state under `rate` requests per second that arrive at random; `None` if the replica cannot keep
/// up.
#[must_use]
pub fn under_arrivals(costs: &IterationCosts, rate: f64) -> Option<SteadyState> {
    let prompts = rate * costs.mean(|r| r.prompt);
    let load = rate / costs.saturation();
    if load >= 1.0 || prompts >= 1.0 || rate <= 0.0 {
        return None;
    }
    let steps = costs.mean(|r| r.steps as f64);
    let most = costs.most_sequences.max(1);
    // Weights of the numbers of sequences, up to where the rest is negligible.
    let (mut weight, mut all, mut decoding, mut waiting, mut idle) = (1.0, 1.0, 0.0, 0.0, 1.0);
    let mut n: u64 = 0;
    loop {
        n += 1;
        let running = n.min(most) as f64;
        let ratio = rate * steps * costs.decode_time(running) / (running * (1.0 - prompts));
        if n > most {
            // From here on the weights fall as a geometric series.
            let (tail, further) = (weight * ratio / (1.0 - ratio), weight * ratio / (1.0 - ratio).powi(2));
            all += tail;
            decoding += tail * most as f64;
            waiting += further;
            break;
        }
        weight *= ratio;
        all += weight;
        decoding += weight * running;
        if weight > 1e200 {
            for sum in [&mut weight, &mut all, &mut decoding, &mut idle] {
                *sum *= 1e-200;
            }
        }
    }
    let (decoding, waiting, idle) = (decoding / all, waiting / all, idle / all);
    let iteration = costs.decode_time(decoding.max(1.0));
    let squares = costs.mean(|r| r.prompt * r.prompt);
    let in_progress = rate * squares / 2.0 + (1.0 - prompts) * (1.0 - idle) * iteration / 2.0;
    let queue = in_progress / (1.0 - prompts);
    let beside = if costs.mixed { iteration } else { 0.0 };
    Some(SteadyState {
        time_to_first_token: Seconds(waiting / rate + queue + costs.mean(|r| r.alone) + beside),
        time_per_output_token: Seconds(decoding / (rate * steps)),
        requests_per_second: rate,
        decoding,
        prompt_fraction: prompts,
        load,
    })
}

/// Rounds of the iteration that solves for a cycle's time; it converges by a factor of two and more per round.
const ROUNDS: u32 = 60;

/// Returns the steady state while `concurrency` requests are in flight, each followed by the next.
///
/// An engine that prefills waiting prompts first decodes all sequences in step: with lengths alike they end together,
/// and their successors' prompts follow each other, `together` at a time. In mixed iterations requests spread out, and
/// a prompt waits only for those that happen to coincide.
#[must_use]
pub fn closed_loop(costs: &IterationCosts, concurrency: u64, together: u64) -> SteadyState {
    let running = concurrency.min(costs.most_sequences).max(1);
    let (steps, own, alone) = (costs.mean(|r| r.steps as f64), costs.mean(|r| r.prompt), costs.mean(|r| r.alone));
    let count = running as f64;
    let (mut first, mut between) = (alone, costs.decode_time(count));
    let mut decoding = count;
    for _ in 0..ROUNDS {
        let cycle = first + steps * between;
        let mean_decoding = (count * steps * between / cycle).max(1.0);
        let (next_first, next_between) = if costs.mixed {
            let others = ((count - 1.0) * own / cycle).min(0.99);
            let iteration = costs.decode_time(mean_decoding);
            let queue = (others * own / 2.0 + (1.0 - others) * iteration / 2.0) / (1.0 - others);
            // All work of a cycle: the tokens of all sequences, and the others' prompts.
            let whole = steps * iteration + count * own;
            let first = queue + alone + iteration;
            (first, ((whole - first.min(own + iteration)) / steps).max(iteration))
        } else {
            let batches = count / (together.clamp(1, running) as f64);
            let first = own * count * (1.0 + 1.0 / batches.max(1.0)) / 2.0;
            (first, costs.decode_time(count) + (own * count - first).max(0.0) / steps)
        };
        first = (first + next_first) / 2.0;
        between = (between + next_between) / 2.0;
        decoding = mean_decoding;
    }
    let cycle = first + steps * between;
    // Requests without a place wait for one.
    let waiting = (concurrency - running.min(concurrency)) as f64 * cycle / count;
    let rate = count / cycle;
    SteadyState {
        time_to_first_token: Seconds(first + waiting),
        time_per_output_token: Seconds(between),
        requests_per_second: rate,
        decoding,
        prompt_fraction: (rate * own).min(1.0),
        load: rate / costs.saturation(),
    }
}

/// Returns the time of a whole prompt of `input` tokens, chunk after chunk, with `prompts` alike at once.
pub(crate) fn time_of_prompts(times: &mut PassTimes<'_>, prompts: u64, input: u64) -> Result<PassTime, ServingError> {
    let most = (times.engine().batching.most_tokens / prompts.max(1)).max(1);
    let (mut done, mut sum) = (0, PassTime::default());
    while done < input {
        let chunk = most.min(input - done);
        sum = sum.plus(times.prefill(prompts, chunk, done)?);
        done += chunk;
    }
    Ok(sum)
}

/// Returns the prompts of `input` tokens that an iteration holds.
#[must_use]
pub fn prompts_together(times: &PassTimes<'_>, input: u64) -> u64 {
    (times.engine().batching.most_tokens / input.max(1)).max(1)
}

/// Returns the costs of a replica's iterations under requests of given lengths.
///
/// `typical` sequences decode beside a prompt in a mixed iteration.
///
/// # Errors
/// A plan or a length that the model does not allow; a plan whose weights and one sequence do not fit.
pub fn iteration_costs(
    times: &mut PassTimes<'_>,
    memory: &ServingMemory,
    lengths: &RequestLengths,
    typical: u64,
) -> Result<IterationCosts, ServingError> {
    let context = lengths.mean_context();
    let parts = u64::from(times.plan().attention_data);
    let fit = memory.sequences_that_fit(context.ceil() as u64).saturating_mul(parts);
    if fit == 0 || memory.sequences_that_fit(lengths.longest()) == 0 {
        return Err(ServingError::Plan {
            key: "input + output",
            value: lengths.longest().to_string(),
            limit: format!(
                "needs {:.1} GiB of cache on every device, and weights leave {:.1}",
                memory.cache_of_sequence(lengths.longest()).gib(),
                memory.room_for_cache().gib()
            ),
            cure: "give more devices (tp), a narrower cache or shorter requests".to_owned(),
        });
    }
    let most = fit.min(times.engine().batching.most_sequences);
    let mut decode = Vec::new();
    let mut n = 1;
    loop {
        decode.push((n, times.decode(n, context as u64)?.total().0));
        if n >= most {
            break;
        }
        n = (n * 2).min(most);
    }
    let mixed = times.batching() == Batching::Mixed;
    let typical = typical.clamp(1, most);
    let beside = times.decode(typical, context as u64)?;
    let mut requests = Vec::new();
    for class in lengths.classes() {
        let alone = time_of_prompts(times, 1, class.input)?;
        let flight = times.passes_in_flight();
        let request =
            |prompt: f64, alone: f64| RequestCost { share: class.share, prompt, alone, steps: class.output - 1 };
        let latency = Seconds(times.engine().launch.request_ms * 1e-3);
        if mixed {
            // In an iteration with c tokens of prompts and b decoding sequences, all work but attention is that of
            // c + b tokens; b of these would pass the weights anyway.
            let most_tokens = times.engine().batching.most_tokens;
            let iterations = class.input.div_ceil(most_tokens) as f64;
            let wider = 1.0 + typical as f64 / class.input.min(most_tokens) as f64;
            let saved = (beside.total() - beside.attention).0 * iterations;
            let own = (alone.total().0 * wider - saved).max(alone.total().0 * LEAST_PROMPT_SHARE);
            requests.push(request(own / flight, own + latency.0));
        } else {
            let together = prompts_together(times, class.input);
            let batch = time_of_prompts(times, together, class.input)?.total().0 / together as f64;
            requests.push(request(batch / flight, alone.total().0 + latency.0));
        }
    }
    Ok(IterationCosts { decode, most_sequences: most, requests, mixed })
}

/// The least share of a prompt's time alone that it adds to an iteration: short prompts ride on weights that are read
/// anyway, but their own products still take time.
const LEAST_PROMPT_SHARE: f64 = 0.1;
