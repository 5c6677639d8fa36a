//! Prompts and decoding in separate pools, which may have different chips.
//!
//! The transfer of the cache from pool to pool delays an answer's second token and no later one. The limits hold for
//! the first token and for the mean time between tokens, so the transfer changes no rate. So the rate of a pool depends
//! on its own chip and plan alone.
//!
//! **Bound of a split.** Let a replica of the best plan for prompts serve at most `a` requests per second and device,
//! and one for decoding `b`. A deployment at rate r has at least r / a devices for prompts and r / b for decoding. With
//! N devices, r (1 / a + 1 / b) <= N, so r <= N a b / (a + b). Large clusters come arbitrarily close to this bound
//! ([`rate_of_many_devices`]). A finite cluster has whole replicas, and [`best_split`] finds the best numbers of them.

use crate::ServingEngine;
use crate::costs::PromptPool;
use crate::deployment::{Deployment, DeploymentParts, PlanRefusal, ServingAnswer, ServingBound, deployment_of};
use crate::loaded::{
    AtClock, HighestRate, LEAST_RATE, LoadedPlan, MOST_LOAD, PoolWork, PowerRule, RateEnd, best_of_settings,
    deploy_within_power, highest_rate, no_rate, prompt_time,
};
use crate::plan::ServingPlan;
use crate::question::{ServingHardware, ServingQuestion, enumerate_plans};
use crate::steady::{SteadyState, under_arrivals};
use sim::hardware::Accelerator;
use sim::kernel::{Collective, CollectiveKind, RankGroup};
use sim::units::Seconds;

/// The size of a replica, and the highest rate of one replica.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SizedRate {
    /// Number of devices of a replica.
    pub devices: u32,
    /// Requests per second of a replica.
    pub rate: f64,
}

impl SizedRate {
    /// Returns the rate in requests per second and device.
    #[must_use]
    pub fn per_device(&self) -> f64 {
        self.rate / f64::from(self.devices.max(1))
    }
}

/// The rates of a chip in each pool: for every size of a replica, the rate of the plan that serves most.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct PoolRates {
    /// Rates in a pool for prompts.
    pub prompts: Vec<SizedRate>,
    /// Rates in a pool for decoding.
    pub decoding: Vec<SizedRate>,
}

/// Returns the highest rates of both pools on a chip. A pool has no entries if no plan serves.
#[must_use]
pub fn pool_rates(question: &ServingQuestion<'_>, hardware: ServingHardware<'_>) -> PoolRates {
    PoolRates { prompts: prompt_rates(question, hardware), decoding: decode_rates(question, hardware) }
}

/// Returns the highest rate of a pool for prompts, for every size of a replica.
#[must_use]
pub fn prompt_rates(question: &ServingQuestion<'_>, hardware: ServingHardware<'_>) -> Vec<SizedRate> {
    let (plans, settings) = (enumerate_plans(question, hardware.engine), hardware.engine.settings());
    let rates = plans
        .iter()
        .filter_map(|plan| rate_of_settings(question, hardware, &settings, *plan, prompt_rate_at_clock).ok());
    sized_rates(&best_by_size(rates.collect()))
}

/// Returns the highest rate of a pool for decoding, for every size of a replica.
#[must_use]
pub fn decode_rates(question: &ServingQuestion<'_>, hardware: ServingHardware<'_>) -> Vec<SizedRate> {
    let (plans, settings) = (enumerate_plans(question, hardware.engine), hardware.engine.settings());
    let rates = plans
        .iter()
        .filter_map(|plan| rate_of_settings(question, hardware, &settings, *plan, decode_rate_at_clock).ok());
    sized_rates(&best_by_size(rates.collect()))
}

fn sized_rates(rates: &[PoolRate<'_>]) -> Vec<SizedRate> {
    rates.iter().map(|own| SizedRate { devices: own.loaded.times.plan().devices(), rate: own.rate }).collect()
}

/// Returns the highest rate per device over all sizes, in requests per second; zero if there are none.
#[must_use]
pub fn highest_per_device(rates: &[SizedRate]) -> f64 {
    rates.iter().map(SizedRate::per_device).fold(0.0, f64::max)
}

/// Returns an upper bound on the requests per second and device of every finite cluster: the rate of a cluster so large
/// that devices divide between the pools in the best proportion. `prompts` and `decoding` are the requests per second
/// and device of the pools. Zero if either is zero.
#[must_use]
pub fn rate_of_many_devices(prompts: f64, decoding: f64) -> f64 {
    if prompts > 0.0 && decoding > 0.0 { 1.0 / (1.0 / prompts + 1.0 / decoding) } else { 0.0 }
}

/// A division of devices between two pools.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PoolSplit {
    /// Requests per second of both pools together.
    pub rate: f64,
    /// Replicas for prompts.
    pub prompts: u32,
    /// Replicas for decoding.
    pub decoding: u32,
}

/// Returns the division of at most `devices` devices between replicas of two sizes that serves most; `None` if one
/// replica of each needs more. Among equal divisions, it returns the one with the fewest replicas for prompts.
#[must_use]
pub fn best_split(devices: u32, prompts: SizedRate, decoding: SizedRate) -> Option<PoolSplit> {
    let (x, y) = (prompts.devices.max(1), decoding.devices.max(1));
    let split = |n: u32| {
        let m = devices.checked_sub(n.checked_mul(x)?)? / y;
        let rate = (f64::from(n) * prompts.rate).min(f64::from(m) * decoding.rate);
        (m > 0).then_some(PoolSplit { rate, prompts: n, decoding: m })
    };
    // More replicas for prompts leave fewer for decoding: the smaller of the two rates rises, then falls.
    let (mut low, mut high) = (1, devices / x);
    while low < high {
        let middle = low + (high - low) / 2;
        let enough = split(middle).is_none_or(|found| f64::from(found.prompts) * prompts.rate > found.rate);
        if enough { high = middle } else { low = middle + 1 }
    }
    let near = [low.saturating_sub(1), low].into_iter().filter(|n| *n > 0).filter_map(split);
    near.fold(None, |best: Option<PoolSplit>, own| Some(best.filter(|best| best.rate >= own.rate).unwrap_or(own)))
}

/// Returns the requests per second of the best division of `devices` devices between two pools, over all sizes of their
/// replicas; zero if none fits.
#[must_use]
pub fn best_rate_of_pools(devices: u32, prompts: &[SizedRate], decoding: &[SizedRate]) -> f64 {
    let pairs = prompts.iter().flat_map(|a| decoding.iter().map(move |b| (*a, *b)));
    pairs.filter_map(|(a, b)| best_split(devices, a, b)).map(|split| split.rate).fold(0.0, f64::max)
}

/// A plan of a pool, with the highest rate of a replica and the times at that rate.
struct PoolRate<'a> {
    loaded: LoadedPlan<'a>,
    rate: f64,
    end: RateEnd,
    /// The queue of a prefilling pool.
    queue: PromptQueue,
    /// The state of a decoding pool.
    state: Option<SteadyState>,
}

/// The queue of a replica that only prefills: one server and fixed service times (Pollaczek and Khinchine).
#[derive(Clone, Copy, Default)]
struct PromptQueue {
    /// Seconds from the start of a prompt to its first token, with the request's time outside of passes.
    alone: f64,
    /// Mean seconds of the replica per prompt. `squares` is the mean square.
    service: f64,
    squares: f64,
}

impl PromptQueue {
    fn time_to_first_token(&self, rate: f64) -> Seconds {
        Seconds(self.alone + rate * self.squares / (2.0 * (1.0 - rate * self.service)))
    }
}

/// Returns deployments with a pool for prompts on `prompts` and one for decoding on `decoding`, most tokens per second
/// first, and the refusals. Only the best `MOST_PAIRS` pairs of plans are deployed. Among a pool's plans with equal
/// numbers of devices, only the one with the highest rate is paired. Every pair has the split of the devices that
/// serves most.
#[must_use]
pub fn apart(
    question: &ServingQuestion<'_>,
    prompts: ServingHardware<'_>,
    decoding: ServingHardware<'_>,
) -> ServingAnswer {
    let mut answer = ServingAnswer::default();
    let mut refuse = |refusal: PlanRefusal| answer.refused.push(refusal);
    let plans = enumerate_plans(question, decoding.engine);
    let priced = 2 * plans.len() as u64;
    let (of_prompts, of_decoding) = (prompts.engine.settings(), decoding.engine.settings());
    let rate = |plan: &ServingPlan| rate_of_settings(question, prompts, &of_prompts, *plan, prompt_rate_at_clock);
    let first: Vec<PoolRate<'_>> = plans.iter().filter_map(|plan| rate(plan).map_err(&mut refuse).ok()).collect();
    let rate = |plan: &ServingPlan| rate_of_settings(question, decoding, &of_decoding, *plan, decode_rate_at_clock);
    let second: Vec<PoolRate<'_>> = plans.iter().filter_map(|plan| rate(plan).map_err(&mut refuse).ok()).collect();
    let (first, second) = (best_by_size(first), best_by_size(second));
    let mut pairs: Vec<(f64, usize, usize, u32, u32)> = Vec::new();
    for (i, a) in first.iter().enumerate() {
        for (j, b) in second.iter().enumerate() {
            let sized = |own: &PoolRate<'_>| SizedRate { devices: own.loaded.times.plan().devices(), rate: own.rate };
            let best = best_split(question.devices, sized(a), sized(b));
            pairs.extend(best.map(|split| (split.rate, i, j, split.prompts, split.decoding)));
        }
    }
    answer.priced = priced;
    pairs.sort_by(|a, b| b.0.total_cmp(&a.0));
    pairs.truncate(MOST_PAIRS);
    let (mut first, mut second) = (first, second);
    for (rate, i, j, n, m) in pairs {
        let pair = match (first.get_mut(i), second.get_mut(j)) {
            (Some(a), Some(b)) => {
                deploy_apart(question, ReplicasOfPool { pool: a, count: n }, ReplicasOfPool { pool: b, count: m }, rate)
            }
            _ => continue,
        };
        match pair {
            Ok(deployment) => answer.deployments.push(deployment),
            Err(refusal) => answer.refused.push(refusal),
        }
    }
    answer.deployments.sort_by(|a, b| b.tokens_per_second.total_cmp(&a.tokens_per_second));
    answer
}

/// Largest number of pairs of plans that an answer lists.
const MOST_PAIRS: usize = 32;

/// Keeps, for every number of devices, the plan with the highest rate.
fn best_by_size(mut rates: Vec<PoolRate<'_>>) -> Vec<PoolRate<'_>> {
    rates.sort_by(|a, b| {
        let devices = |rate: &PoolRate<'_>| rate.loaded.times.plan().devices();
        devices(a).cmp(&devices(b)).then(b.rate.total_cmp(&a.rate))
    });
    rates.dedup_by_key(|rate| rate.loaded.times.plan().devices());
    rates
}

/// The rate of a pool's plan at a clock, or its refusal.
type RateAtClock<'a> = Result<AtClock<PoolRate<'a>>, PlanRefusal>;

/// The highest rate of a pool's plan at a clock.
type SearchAtClock =
    for<'a> fn(&ServingQuestion<'a>, ServingHardware<'a>, &Accelerator, PowerRule, ServingPlan) -> RateAtClock<'a>;

/// Returns the highest rate of a plan over the engine's settings and the clocks within the limit on power.
fn rate_of_settings<'a>(
    question: &ServingQuestion<'a>,
    hardware: ServingHardware<'a>,
    settings: &'a [ServingEngine],
    plan: ServingPlan,
    search: SearchAtClock,
) -> Result<PoolRate<'a>, PlanRefusal> {
    let deploy = |engine| {
        let hardware = ServingHardware { engine, ..hardware };
        deploy_within_power(question, hardware.chip, |chip, power| search(question, hardware, chip, power, plan))
    };
    best_of_settings(settings, deploy, |own| own.rate)
}

/// Returns the rate that a search up to `most` found, or the refusal of the plan. `work` gives a replica's work at a
/// rate, with its state if it decodes. `alone` are the times to the first token and per output token of a request
/// alone, for the refusal of a plan that misses the service level.
fn rate_of_search<'a>(
    loaded: LoadedPlan<'a>,
    found: HighestRate,
    most: f64,
    queue: PromptQueue,
    work: impl Fn(&LoadedPlan<'a>, f64) -> Result<(PoolWork, Option<SteadyState>), PlanRefusal>,
    alone: [Seconds; 2],
) -> RateAtClock<'a> {
    match found {
        HighestRate::At(rate, end) => {
            let (work, state) = work(&loaded, rate)?;
            let power = loaded.power_of(work);
            let deployed = PoolRate { loaded, rate, end, queue, state };
            Ok(AtClock { deployed, rate, end, power })
        }
        HighestRate::TooHot => Err(loaded.too_hot(work(&loaded, most * LEAST_RATE)?.0)),
        HighestRate::TooSlow => {
            let [time_to_first_token, time_per_output_token] = alone;
            Err(PlanRefusal::TooSlow { plan: *loaded.times.plan(), time_to_first_token, time_per_output_token })
        }
    }
}

fn prompt_rate_at_clock<'a>(
    question: &ServingQuestion<'a>,
    hardware: ServingHardware<'a>,
    chip: &Accelerator,
    power: PowerRule,
    plan: ServingPlan,
) -> RateAtClock<'a> {
    let mut loaded = LoadedPlan::new(question, hardware, chip, power, plan).map_err(PlanRefusal::Fault)?;
    let mut queue = PromptQueue::default();
    for class in question.lengths.classes() {
        let pool = PromptPool::of_replicas(&mut loaded.times, 1, class.input, u64::MAX);
        let pool = pool.map_err(PlanRefusal::Fault)?;
        queue.alone += class.share * pool.alone;
        queue.service += class.share * pool.prompt;
        queue.squares += class.share * pool.prompt * pool.prompt;
    }
    let most = MOST_LOAD / queue.service;
    let first = |rate: f64| queue.time_to_first_token(rate);
    let limit = question.level.time_to_first_token;
    let met = |rate: f64| limit.is_none_or(|limit| first(rate) <= limit);
    let found = highest_rate(most, met, |rate| loaded.is_cool(prompts_at(rate)));
    let work = |_: &LoadedPlan<'a>, rate: f64| Ok((prompts_at(rate), None));
    rate_of_search(loaded, found, most, queue, work, [first(0.0), Seconds::ZERO])
}

/// Returns the work of a replica that prefills `rate` prompts per second.
fn prompts_at(rate: f64) -> PoolWork {
    PoolWork { rate, decoding: None, prefills: true }
}

fn decode_rate_at_clock<'a>(
    question: &ServingQuestion<'a>,
    hardware: ServingHardware<'a>,
    chip: &Accelerator,
    power: PowerRule,
    plan: ServingPlan,
) -> RateAtClock<'a> {
    let mut loaded = LoadedPlan::new(question, hardware, chip, power, plan).map_err(PlanRefusal::Fault)?;
    loaded.costs = loaded.costs.without_prompts();
    let limit = question.level.time_per_output_token;
    let state = |rate: f64| under_arrivals(&loaded.costs, rate);
    let met =
        |rate: f64| state(rate).is_some_and(|state| limit.is_none_or(|limit| state.time_per_output_token <= limit));
    let cool = |rate: f64| state(rate).is_some_and(|state| loaded.is_cool(decoding_in(&state)));
    let most = loaded.costs.saturation() * MOST_LOAD;
    let found = highest_rate(most, met, cool);
    let work = |loaded: &LoadedPlan<'a>, rate: f64| {
        let state = under_arrivals(&loaded.costs, rate).ok_or_else(|| PlanRefusal::Fault(no_rate()))?;
        Ok((decoding_in(&state), Some(state)))
    };
    let alone = [Seconds::ZERO, Seconds(loaded.costs.decode_time(1.0))];
    rate_of_search(loaded, found, most, PromptQueue::default(), work, alone)
}

/// Returns the work of a replica that only decodes, in the steady state `state`.
fn decoding_in(state: &SteadyState) -> PoolWork {
    PoolWork { rate: state.requests_per_second, decoding: Some(state.decoding), prefills: false }
}

/// A number of replicas of a pool.
struct ReplicasOfPool<'p, 'q> {
    pool: &'p mut PoolRate<'q>,
    count: u32,
}

fn deploy_apart(
    question: &ServingQuestion<'_>,
    ReplicasOfPool { pool: a, count: n }: ReplicasOfPool<'_, '_>,
    ReplicasOfPool { pool: b, count: m }: ReplicasOfPool<'_, '_>,
    rate: f64,
) -> Result<Deployment, PlanRefusal> {
    let lengths = &question.lengths;
    let state = under_arrivals(&b.loaded.costs, rate / f64::from(m)).or(b.state);
    let state = state.ok_or_else(|| PlanRefusal::Fault(no_rate()))?;
    let input = lengths.classes().iter().map(|class| class.share * class.input as f64).sum::<f64>().round() as u64;
    let transfer = time_of_transfer(a, b, input);
    let decode = b.loaded.pool(m, PoolWork { rate: rate / f64::from(m), ..decoding_in(&state) });
    let prefill = a.loaded.pool(n, prompts_at(rate / f64::from(n)));
    let finish = |a: &mut PoolRate<'_>, b: &mut PoolRate<'_>| {
        let iteration = b.loaded.times.decode(state.decoding.max(1.0).round() as u64, b.loaded.context)?;
        Ok((iteration, prompt_time(&mut a.loaded.times, input)?))
    };
    let (iteration, prompt) = finish(a, b).map_err(PlanRefusal::Fault)?;
    // The first token comes from the prefilling pool. The second token waits for the cache.
    let of_prompts = rate / f64::from(n);
    let load = state.load.max(of_prompts * a.queue.service);
    let state = SteadyState { time_to_first_token: a.queue.time_to_first_token(of_prompts), load, ..state };
    let prompts_bind = f64::from(n) * a.rate <= f64::from(m) * b.rate;
    let bound = match if prompts_bind { a.end } else { b.end } {
        RateEnd::Load => ServingBound::Load,
        RateEnd::Power => ServingBound::Power,
        RateEnd::Level if prompts_bind => ServingBound::TimeToFirstToken,
        RateEnd::Level => ServingBound::TimePerOutputToken,
    };
    Ok(deployment_of(DeploymentParts {
        decode,
        prefill: Some(prefill),
        state,
        iteration,
        prompt,
        transfer,
        requests: rate,
        output: lengths.mean_output(),
        bound,
    }))
}

/// Returns the time to transfer a prompt's cache from one pool to the other. Every device of the smaller side sends or
/// receives its share over the slower of the two fabrics, beyond the fast domain if the pools fill one.
fn time_of_transfer(a: &PoolRate<'_>, b: &PoolRate<'_>, input: u64) -> Seconds {
    let of = |rate: &PoolRate<'_>| {
        let times = &rate.loaded.times;
        let bytes = rate.loaded.memory.cache_of_sequence(times.method().own_tokens(input));
        let fabric = times.fabric();
        let stride = fabric.fast_domain_devices().min(fabric.device_count().max(2) - 1).max(times.plan().devices());
        let group = RankGroup { ranks: 2, stride };
        fabric.cost_of_collective(&Collective { kind: CollectiveKind::SendRecv, bytes, group }).latency
    };
    of(a).max(of(b))
}
