//! The steady state of continuous batching in closed form.
//!
//! A replica does one iteration after the other. While no prompt waits, every decoding sequence gets a token per
//! iteration, which takes D(n) with n sequences. Prompts take time P each from all of them, before or inside an
//! iteration.
//!
//! **Requests that arrive at random** (Poisson, r per second). Between prompts the decoding sequences share the replica
//! like a processor whose speed depends on their number: with L iterations each, they leave at n / (L D(n)). Such a
//! queue depends on the lengths only through their mean (symmetric queues: Kelly 1979, "Reversibility and stochastic
//! networks", section 3.3). Prompts come in busy periods, so sequences join in groups. The size of a group has the
//! mean and second moment of a busy period of M/G/1 (Kleinrock 1975, "Queueing systems I", section 5.9); its tail is
//! taken as geometric. A balance of flows over every number of sequences then gives their distribution.
//!
//! With all B places taken, requests wait. A place is free after P + L D(B) / B on average. The wait is that of a queue
//! with so long a service, between the fixed and the random case (Cosmetatos 1975, INFOR 13), plus the prompts of the
//! group that filled the places.
//!
//! Prompts are served in order of arrival before decoding: the wait is that of the higher class of a queue with two
//! priorities (Kleinrock 1976, "Queueing systems II", section 3.6), with a decoding iteration as the work in progress.
//! In mixed iterations, prompts that arrive during one join the next.
//!
//! **Drafts.** A sequence gains several tokens by an iteration, so its answer takes L iterations, fewer than tokens.
//!
//! **Requests in flight.** If a load generator keeps a number of them, the mean cycle of a request is solved for.

use crate::engine::Batching;
pub use crate::lengths::{LengthClass, LengthError, RequestLengths};
use crate::memory::ServingMemory;
use crate::passes::PassTimes;
use crate::{PassTime, ServingError};
use serde::{Deserialize, Serialize};
use sim::units::{Joules, Seconds};

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

/// The costs of a class of requests to a replica.
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
    /// Iterations that this takes in the mean: as many without drafts.
    pub iterations: f64,
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
        1.0 / (self.mean(|r| r.prompt) + self.time_per_place())
    }

    /// Returns the mean iterations that a request decodes.
    #[must_use]
    pub fn mean_iterations(&self) -> f64 {
        self.mean(|r| r.iterations)
    }

    /// Iterations per token: 1 without drafts.
    fn iterations_per_token(&self) -> f64 {
        self.mean_iterations() / self.mean(|r| r.steps as f64)
    }

    /// Iterations for which a sequence has its place: those that decode, and a mixed one with its prompt.
    fn held_iterations(&self) -> f64 {
        self.mean(|r| r.iterations) + f64::from(u8::from(self.mixed))
    }

    /// Decoding time between two sequences that leave, with all places taken.
    fn time_per_place(&self) -> f64 {
        let most = self.most_sequences.max(1) as f64;
        self.held_iterations() * self.decode_time(most) / most
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

/// Busy periods of prompts: the groups in which sequences start to decode.
struct PromptGroups {
    /// Fraction of the time that prompts take.
    load: f64,
    /// Seconds of prompts that an arriving request finds in progress.
    in_progress: f64,
    /// Probability of a group of two and more.
    several: f64,
    /// Probability that a group of two and more has another member.
    further: f64,
    /// Mean members that have started to decode, at any time of a busy period.
    joined: f64,
}

impl PromptGroups {
    fn at_rate(costs: &IterationCosts, rate: f64) -> Self {
        let (load, squares) = (rate * costs.mean(|r| r.prompt), costs.mean(|r| r.prompt * r.prompt));
        // The square of the load times that of the prompts' coefficient of variation.
        let varied = (rate * rate * squares - load * load).max(0.0);
        let free = 1.0 - load;
        let ratio = if load > 0.0 { varied / load } else { 0.0 };
        let last = (2.0 * free * free / (2.0 - load + ratio)).min(1.0);
        Self {
            load,
            in_progress: rate * squares / 2.0,
            several: load * last / free,
            further: 1.0 - last,
            joined: ((1.0 + varied) / (free * free) - 1.0) / 2.0,
        }
    }
}

/// The distribution of the number of decoding sequences.
struct SequenceNumbers {
    /// Fraction of the time with all places taken.
    full: f64,
    /// Otherwise, between prompts: the mean number,
    mean: f64,
    /// the mean time of the iteration in progress,
    iteration: f64,
    /// and the fraction of the time without any.
    idle: f64,
}

impl SequenceNumbers {
    /// Sequences leave at n / (L D(n)). Groups join at `rate`: over every number, as many pass up as down.
    fn at_rate(costs: &IterationCosts, rate: f64, groups: &PromptGroups) -> Self {
        let (most, iterations) = (costs.most_sequences.max(1), costs.mean(|r| r.iterations));
        let leaving = 1.0 / costs.time_per_place();
        let joining = rate / (1.0 - groups.load);
        let (mut weight, mut before, mut larger) = (1.0, 0.0, 0.0);
        let (mut all, mut flow, mut mean, mut iteration, mut idle) = (1.0, 0.0, 0.0, 0.0, 1.0);
        let mut negligible = false;
        for n in 1..most {
            let time = costs.decode_time(n as f64);
            let speed = n as f64 / (iterations * time);
            larger = before + groups.further * larger;
            let next = rate * (weight + groups.several * larger) / speed;
            negligible = next < NEGLIGIBLE * all && next < weight / 2.0;
            if negligible {
                break;
            }
            (before, weight) = (weight, next);
            all += next;
            flow += next * speed;
            mean += next * n as f64;
            iteration += next * time;
            if weight > 1e200 {
                for sum in [&mut before, &mut weight, &mut larger, &mut all, &mut flow, &mut mean] {
                    *sum *= 1e-200;
                }
                iteration *= 1e-200;
                idle *= 1e-200;
            }
        }
        // All that joins leaves, so the balance of all numbers gives the weight of full places.
        let taken = if negligible { 0.0 } else { ((joining * all - flow) / (leaving - joining)).max(0.0) };
        // With all places taken, a prompt follows each sequence that leaves.
        let while_full = taken * (1.0 + costs.mean(|r| r.prompt) * leaving);
        let else_time = all / (1.0 - groups.load);
        let full = while_full / (while_full + else_time);
        Self { full, mean: mean / all, iteration: iteration / all, idle: idle / all }
    }
}

/// Weights below this fraction of their sum, and falling by half and more, are left out.
const NEGLIGIBLE: f64 = 1e-14;

/// Returns the mean wait of a request that finds all places taken, for one of them.
fn wait_for_place(costs: &IterationCosts, rate: f64, groups: &PromptGroups) -> f64 {
    let (most, held) = (costs.most_sequences.max(1) as f64, costs.held_iterations());
    let (prompt, decoding) = (costs.mean(|r| r.prompt), costs.time_per_place());
    let service = prompt + decoding;
    let load = rate * service;
    let spread = |of: &dyn Fn(&RequestCost) -> f64, mean: f64| costs.mean(|r| (of(r) - mean) * (of(r) - mean));
    let steps_spread = spread(&|r| r.iterations, costs.mean(|r| r.iterations)) / (held * held);
    let varied = (spread(&|r| r.prompt, prompt) + decoding * decoding * steps_spread) / (service * service);
    // Several places that are held for fixed times: Cosmetatos's correction, for the part that places take.
    let places = (1.0 - load) * (most - 1.0) * ((4.0 + 5.0 * most).sqrt() - 2.0) / (16.0 * load * most);
    let fixed = (1.0 - varied).max(0.0) / 2.0 * (1.0 + places * decoding / service);
    let random = if varied < 1.0 { varied } else { f64::midpoint(1.0, varied) };
    service / (1.0 - load) * (random + fixed) + groups.further / (1.0 - groups.further) / rate
}

/// Returns the steady state under `rate` requests per second that arrive at random; `None` if the replica cannot keep
/// up. An iteration is taken to have room for all prompts that wait, and a prompt to take one.
#[must_use]
pub fn under_arrivals(costs: &IterationCosts, rate: f64) -> Option<SteadyState> {
    let load = rate / costs.saturation();
    let groups = PromptGroups::at_rate(costs, rate);
    if load.is_nan() || load >= 1.0 || groups.load >= 1.0 || rate <= 0.0 {
        return None;
    }
    let numbers = SequenceNumbers::at_rate(costs, rate, &groups);
    let (most, steps) = (costs.most_sequences.max(1) as f64, costs.mean(|r| r.steps as f64));
    let prompt_while_full = costs.mean(|r| r.prompt) * costs.saturation();
    let decoding =
        (1.0 - numbers.full) * (numbers.mean + groups.load * groups.joined) + numbers.full * (most - prompt_while_full);
    let free = 1.0 - groups.load;
    let (queue, beside) = if costs.mixed {
        // An iteration with its prompts; a request more probably arrives in a long one.
        let iteration =
            numbers.iteration / free + (1.0 - numbers.idle) * 2.0 * groups.in_progress / (free * (1.0 + groups.load));
        let found = iteration * (0.5 + groups.load) + numbers.idle * groups.in_progress;
        let beside = (1.0 - numbers.full) * numbers.iteration + numbers.full * costs.decode_time(most);
        (found, beside)
    } else {
        ((groups.in_progress + free * numbers.iteration / 2.0) / free, 0.0)
    };
    let wait = numbers.full * wait_for_place(costs, rate, &groups);
    let first = (1.0 - numbers.full) * queue + wait + costs.mean(|r| r.alone) + beside;
    Some(SteadyState {
        time_to_first_token: Seconds(first),
        time_per_output_token: Seconds(decoding / (rate * steps)),
        requests_per_second: rate,
        decoding,
        prompt_fraction: groups.load,
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
    let (steps, own, alone) = (costs.mean(|r| r.iterations), costs.mean(|r| r.prompt), costs.mean(|r| r.alone));
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
        time_per_output_token: Seconds(between * costs.iterations_per_token()),
        requests_per_second: rate,
        decoding,
        prompt_fraction: (rate * own).min(1.0),
        load: rate / costs.saturation(),
    }
}

/// Returns the mean time to the first token of `concurrency` requests that arrive at once at an idle replica, as a load
/// generator's first ones do: `together` prompts at a time, without decoding beside them.
#[must_use]
pub fn first_burst(costs: &IterationCosts, concurrency: u64, together: u64) -> Seconds {
    let running = concurrency.min(costs.most_sequences).max(1);
    let together = together.clamp(1, running);
    Seconds(costs.mean(|r| r.prompt) * (running + together) as f64 / 2.0)
}

/// The workers of a pool that only prefills.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PromptPool {
    /// Workers, each a replica.
    pub workers: u32,
    /// Seconds of a worker per prompt, with others in the same pass.
    pub prompt: f64,
    /// Seconds from the start of a prompt to its first token.
    pub alone: f64,
}

impl PromptPool {
    /// Returns `workers` replicas that prefill prompts of `input` tokens, up to `batch` in one pass of a group with
    /// attention of its own.
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

/// Returns the steady state while `concurrency` requests are in flight over pools apart: `prompts`, and `decoders`
/// replicas that decode at `costs`. The cache's way from pool to pool takes no time.
///
/// A request that arrives at a prefilling worker finds what the others leave there, and half of the prompt in progress
/// (mean value analysis, Reiser and Lavenberg 1980, with Schweitzer's approximation). A sequence without a place in a
/// decoding replica waits for one after its first token.
#[must_use]
pub fn closed_loop_apart(prompts: &PromptPool, costs: &IterationCosts, decoders: u32, concurrency: u64) -> SteadyState {
    let (workers, decoders) = (f64::from(prompts.workers.max(1)), f64::from(decoders.max(1)));
    let (count, most) = (concurrency.max(1) as f64, costs.most_sequences as f64);
    let steps = costs.mean(|r| r.iterations);
    let others = (count - 1.0) / count;
    let (mut first, mut between, mut decoding) = (prompts.alone, costs.decode_time(1.0), 1.0);
    for _ in 0..ROUNDS {
        let rate = count / (first + steps * between);
        let busy = (rate * prompts.prompt / workers).min(1.0);
        let found = (rate * (first - prompts.alone + prompts.prompt) / workers).max(busy) * others;
        let placed = (rate * steps * between / decoders).max(1.0);
        let next_between = costs.decode_time(placed.min(most)) * (placed / most).max(1.0);
        first = f64::midpoint(first, prompts.alone + prompts.prompt * (found - busy * others / 2.0));
        between = f64::midpoint(between, next_between);
        decoding = placed.min(most);
    }
    let rate = count / (first + steps * between);
    let limit = (workers / prompts.prompt).min(decoders * most / (steps * costs.decode_time(most)));
    SteadyState {
        time_to_first_token: Seconds(first),
        time_per_output_token: Seconds(between * costs.iterations_per_token()),
        requests_per_second: rate,
        decoding,
        prompt_fraction: (rate * prompts.prompt / workers).min(1.0),
        load: rate / limit,
    }
}

/// Returns the time of a whole prompt of `input` tokens, chunk after chunk, with `prompts` alike at once. Groups with
/// attention of their own take prompts side by side, each with the engine's most tokens. Tokens that are held take no
/// time.
pub(crate) fn time_of_prompts(times: &mut PassTimes<'_>, prompts: u64, input: u64) -> Result<PassTime, ServingError> {
    if let Some(merged) = times.method().merged() {
        return times.merged_prefill(prompts, input, merged);
    }
    let held = times.method().held_tokens(input);
    time_of_tokens(times, prompts, (held, input))
}

/// Returns the energy of a prompt of `input` tokens on a device of its group, without static power: its share of those
/// that an iteration holds, which read the weights once for all of them.
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

/// Returns the time of a prompt's tokens from place `done` to place `end`.
fn time_of_tokens(
    times: &mut PassTimes<'_>,
    prompts: u64,
    (mut done, end): (u64, u64),
) -> Result<PassTime, ServingError> {
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

/// Returns the prompts of `input` tokens that an iteration holds. Groups with attention of their own hold so many each.
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
    let method = *times.method();
    let context = method.mean_context(lengths);
    let parts = u64::from(times.plan().attention_data);
    // A sequence holds the tokens that no held prefix has, and its drafts.
    let elsewhere = |input: u64| input - method.own_tokens(input);
    let own = lengths.mean_context_after(elsewhere).ceil() as u64;
    let longest = lengths.longest_after(elsewhere);
    let drafts = method.verified_tokens() - 1;
    let fit = memory.sequences_that_fit(own.saturating_add(drafts)).saturating_mul(parts);
    if memory.room_for_cache() == sim::units::Bytes::ZERO {
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
    let most = fit.min(placed.saturating_mul(parts));
    // Powers of two and their middles, past the most sequences, so that times do not depend on how many fit.
    let mut decode = Vec::new();
    let mut n = 1;
    loop {
        decode.push((n, times.decode(n, context as u64)?.total().0));
        if n >= most {
            break;
        }
        n = if n.is_power_of_two() { (n + n / 2).max(n + 1) } else { n.next_power_of_two() };
    }
    // The nodes of a merged prompt are passes of their own.
    let mixed = times.batching() == Batching::Mixed && method.merged().is_none();
    let typical = typical.clamp(1, most);
    let beside = times.decode(typical, context as u64)?;
    let mut requests = Vec::new();
    for class in lengths.classes() {
        let flight = times.passes_in_flight();
        let steps = class.output - 1;
        let iterations = method.passes_for(steps);
        let request = |prompt: f64, alone: f64| RequestCost { share: class.share, prompt, alone, steps, iterations };
        let latency = Seconds(times.engine().launch.request_ms * 1e-3);
        if mixed {
            // In an iteration with c tokens of prompts and b decoding sequences, all work but attention is that of
            // c + b tokens; b of these would pass the weights anyway. Groups take a prompt each.
            let most_tokens = times.engine().batching.most_tokens;
            let held = method.held_tokens(class.input);
            let chunks = (class.input - held).div_ceil(most_tokens);
            let saved = (beside.total() - beside.attention - beside.drafts - beside.fetches).0 * chunks as f64;
            let whole = time_of_prompts(times, parts, class.input)?.total().0;
            let decoding = typical.div_ceil(parts) * (drafts + 1);
            let wider = class.input.saturating_add(chunks * decoding);
            let joint = time_of_tokens(times, parts, (held, wider))?.total().0;
            let own = (joint - saved).max(marginal_time(times, parts, class.input, whole)?);
            // One sequence at least decodes beside it later.
            let one = times.decode(1, context as u64)?;
            let single = whole - (one.total() - one.drafts - one.fetches).0;
            requests.push(request(own / flight / parts as f64, single.max(0.0) + latency.0));
        } else {
            let together = prompts_together(times, class.input);
            let batch = time_of_prompts(times, together, class.input)?.total().0 / together as f64;
            let alone = time_of_prompts(times, 1, class.input)?;
            requests.push(request(batch / flight, alone.total().0 + latency.0));
        }
    }
    Ok(IterationCosts { decode, most_sequences: most, requests, mixed })
}

/// Returns what one more prompt for each of `parts` groups adds to an iteration that holds others: the difference
/// between as many as it holds and one, or a share of the `whole` time of one if it holds no more.
fn marginal_time(times: &mut PassTimes<'_>, parts: u64, input: u64, whole: f64) -> Result<f64, ServingError> {
    let together = prompts_together(times, input) / parts.max(1);
    if together < 2 {
        return Ok(whole * LEAST_PROMPT_SHARE);
    }
    let all = time_of_prompts(times, together * parts, input)?.total().0;
    Ok(((all - whole) / (together - 1) as f64).max(0.0))
}

/// The least share of a prompt's time alone that it adds to an iteration, if the prompt fills it: its products take
/// time beside weights that are read anyway.
const LEAST_PROMPT_SHARE: f64 = 0.1;
