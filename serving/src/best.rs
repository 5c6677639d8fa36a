//! The deployments that serve most within a service level: prompts and decoding on the same devices, or in pools apart,
//! which may have different chips.
//!
//! Every plan of the degrees is priced; none is left out by a bound. Within a plan, the time to the first token and the
//! time per output token rise with the rate of requests, so bisection finds the highest rate.

use crate::lengths::{LengthClass, RequestLengths};
use crate::memory::ServingMemory;
use crate::method::ServingMethod;
use crate::pass_time::PassTime;
use crate::passes::PassTimes;
use crate::plan::{ServingFormats, ServingPlan};
use crate::steady::{IterationCosts, PromptPool, RequestCost, SteadyState, iteration_costs, under_arrivals};
use crate::{ServingEngine, ServingError};
use serde::{Deserialize, Serialize};
use sim::hardware::Accelerator;
use sim::kernel::{Collective, CollectiveKind, RankGroup};
use sim::network::Fabric;
use sim::units::{Seconds, Watts};
use workloads::Model;
use workloads::parallel::tensor_parallel_degrees;
use workloads::serving::CacheSize;

/// The highest load that a deployment is planned for, as a fraction of the rate at which its queue grows without end.
/// Above it the mean wait grows faster than any forecast of arrivals holds. Range 0.8 to 0.98.
pub const MOST_LOAD: f64 = 0.95;
/// Steps of bisection: the rate is exact to 2^-40 of its range.
const BISECTIONS: u32 = 40;

/// Limits on means over requests; `None` is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct ServiceLevel {
    /// On the time from arrival to the first token.
    pub time_to_first_token: Option<Seconds>,
    /// On the time between two tokens.
    pub time_per_output_token: Option<Seconds>,
}

impl ServiceLevel {
    fn is_met(&self, first: Seconds, between: Seconds) -> bool {
        self.time_to_first_token.is_none_or(|limit| first <= limit)
            && self.time_per_output_token.is_none_or(|limit| between <= limit)
    }
}

/// A chip with its fabric and engine.
#[derive(Debug, Clone, Copy)]
pub struct ServingHardware<'a> {
    /// The chip.
    pub chip: &'a Accelerator,
    /// The fabric.
    pub fabric: &'a Fabric,
    /// The engine.
    pub engine: &'a ServingEngine,
}

/// A model to serve, and how well.
#[derive(Debug, Clone)]
pub struct ServingQuestion<'a> {
    /// The model.
    pub model: &'a Model,
    /// Devices of the whole deployment.
    pub devices: u32,
    /// Number formats.
    pub formats: ServingFormats,
    /// Lengths of the requests.
    pub lengths: RequestLengths,
    /// The service level.
    pub level: ServiceLevel,
    /// Degrees that are given; `None` is free.
    pub given: GivenDegrees,
    /// How it serves beside the plain way.
    pub method: ServingMethod<'a>,
}

/// Degrees that a question fixes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct GivenDegrees {
    /// Devices that split every layer.
    pub tensor: Option<u32>,
    /// Stages.
    pub pipeline: Option<u32>,
    /// Groups with attention of their own.
    pub attention_data: Option<u32>,
    /// Parts that share out the experts.
    pub expert: Option<u32>,
}

/// The reason why a deployment does not serve more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ServingBound {
    /// The limit on the time to the first token.
    TimeToFirstToken,
    /// The limit on the time per output token.
    TimePerOutputToken,
    /// The highest load.
    Load,
}

/// A pool of replicas of one plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ReplicaPool {
    /// The chip.
    pub chip: String,
    /// The plan of a replica.
    pub plan: ServingPlan,
    /// Replicas.
    pub replicas: u32,
    /// Memory of one device.
    pub memory: ServingMemory,
    /// Mean power of one device: static, and of its kernels.
    pub power: Watts,
    /// The chip's published limit on it.
    pub tdp: Option<Watts>,
}

/// A deployment at its highest rate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Deployment {
    /// The pool that decodes; it also prefills unless [`Self::prefill`] is a pool of its own.
    pub decode: ReplicaPool,
    /// The pool for prompts, if they are apart.
    pub prefill: Option<ReplicaPool>,
    /// The state of one decoding replica. The time to the first token is the deployment's.
    pub state: SteadyState,
    /// One decoding iteration at the mean number of sequences.
    pub iteration: PassTime,
    /// A prompt of the mean length alone.
    pub prompt: Seconds,
    /// The cache's way from one pool to the other.
    pub transfer: Seconds,
    /// Requests per second of the whole deployment.
    pub requests_per_second: f64,
    /// Output tokens per second of the whole deployment.
    pub tokens_per_second: f64,
    /// The same per device in use.
    pub tokens_per_second_per_device: f64,
    /// Output tokens per joule.
    pub tokens_per_joule: f64,
    /// The reason why it does not serve more.
    pub bound: ServingBound,
}

impl Deployment {
    /// Returns the devices in use.
    #[must_use]
    pub fn devices(&self) -> u32 {
        let of = |pool: &ReplicaPool| pool.replicas.saturating_mul(pool.plan.devices());
        of(&self.decode).saturating_add(self.prefill.as_ref().map_or(0, of))
    }
}

/// A plan that does not serve, and why.
#[derive(Debug, Clone, PartialEq)]
pub enum PlanRefusal {
    /// It cannot run.
    Fault(ServingError),
    /// It misses the service level even with a single request at a time.
    TooSlow {
        /// The plan.
        plan: ServingPlan,
        /// Its time to the first token then.
        time_to_first_token: Seconds,
        /// Its time per output token then.
        time_per_output_token: Seconds,
    },
}

/// All deployments of a question, best first, and the plans that do not serve.
#[derive(Debug, Clone, Default)]
pub struct ServingAnswer {
    /// By output tokens per second of the whole deployment.
    pub deployments: Vec<Deployment>,
    /// Plans refused.
    pub refused: Vec<PlanRefusal>,
    /// Plans priced: of replicas, or of both pools.
    pub priced: u64,
}

impl ServingAnswer {
    /// Returns the refusal nearest to serving: a plan that runs but is too slow, by how much it misses the level; else
    /// the first fault.
    #[must_use]
    pub fn nearest_refusal(&self, level: &ServiceLevel) -> Option<&PlanRefusal> {
        let over = |time: Seconds, limit: Option<Seconds>| limit.map_or(0.0, |limit| (time / limit).max(1.0).ln());
        let miss = |refusal: &PlanRefusal| match refusal {
            PlanRefusal::Fault(_) => f64::INFINITY,
            PlanRefusal::TooSlow { time_to_first_token: first, time_per_output_token: between, .. } => {
                over(*first, level.time_to_first_token) + over(*between, level.time_per_output_token)
            }
        };
        self.refused.iter().min_by(|a, b| miss(a).total_cmp(&miss(b)))
    }
}

/// Returns the plans of one replica on at most `devices` devices, smallest first.
#[must_use]
pub fn enumerate_plans(question: &ServingQuestion<'_>) -> Vec<ServingPlan> {
    let (model, devices, given) = (question.model, question.devices, question.given);
    let halving = |limit: u32| std::iter::successors(Some(1u32), |n| n.checked_mul(2)).take_while(move |n| *n <= limit);
    let or_given = |given: Option<u32>, free: Vec<u32>| given.map_or(free, |degree| vec![degree]);
    let tensors = or_given(given.tensor, tensor_parallel_degrees(model, devices));
    let mut plans = Vec::new();
    for tensor in tensors {
        let stages = or_given(given.pipeline, halving(devices / tensor.max(1)).collect());
        for pipeline in stages {
            let left = devices / tensor.saturating_mul(pipeline).max(1);
            let free = if model.experts.is_some() { halving(left).collect() } else { vec![1] };
            for attention_data in or_given(given.attention_data, free) {
                let free = match (model.experts, attention_data) {
                    (Some(_), 1) => halving(tensor).collect(),
                    (Some(_), groups) => vec![tensor.saturating_mul(groups)],
                    (None, _) => vec![1],
                };
                for expert in or_given(given.expert, free) {
                    plans.push(ServingPlan { tensor, pipeline, attention_data, expert, formats: question.formats });
                }
            }
        }
    }
    plans.retain(|plan| plan.devices() <= devices);
    plans.sort_by_key(|plan| (plan.devices(), *plan));
    plans
}

/// Returns a rate of output tokens per second that no deployment of the question on `chip` under `engine` exceeds,
/// whatever its plan.
///
/// - Products: a request has at least 2 operations per active weight of the layers and token.
/// - Memory: an iteration of n sequences per device reads at least the active weights, divided by all devices, and n
///   caches; each sequence gains its accepted drafts besides a token. More sequences read fewer bytes per token; the
///   memory and the limit on the time per output token bound n.
#[must_use]
pub fn bound_of_chip(question: &ServingQuestion<'_>, chip: &Accelerator, engine: &ServingEngine) -> f64 {
    let (model, lengths, formats) = (question.model, &question.lengths, &question.formats);
    let devices = f64::from(question.devices);
    let mut served = model.clone();
    served.variations.further_tokens = 0;
    let active = served.active_matrix_parameters(0) as f64;
    let bytes = formats.products.bytes_of_weight().min(formats.experts.bytes_of_weight()) * active / devices;
    let peak = [formats.products, formats.experts]
        .into_iter()
        .filter_map(|format| chip.peak_flops(format.operand()))
        .map(|peak| peak.0)
        .fold(0.0, f64::max);
    let method = &question.method;
    let computed = |class: &LengthClass| method.computed_tokens(class.input) + class.output as f64;
    let tokens: f64 = lengths.classes().iter().map(|class| class.share * computed(class)).sum();
    // An engine's kernels may be stated to be faster than the library's.
    let kernels = &engine.kernels;
    let peak = peak * kernels.product_fraction.max(1.0);
    let by_products = devices * peak / (2.0 * active * tokens) * lengths.mean_output();
    let size = CacheSize::of_model(model, 1, formats.cache);
    let cache = size.of_sequence(method.mean_context(lengths) as u64).as_f64();
    let elsewhere = |input: u64| input - method.own_tokens(input);
    let own = size.of_sequence(lengths.mean_context_after(elsewhere) as u64).as_f64();
    let rate = chip.hbm.read_bandwidth.0 * kernels.product_fraction.max(kernels.decode_fraction).max(1.0);
    let gained = method.tokens_per_pass();
    let readable = question.level.time_per_output_token.map_or(f64::INFINITY, |limit| limit.0 * gained * rate);
    let capacity = if method.away.is_some() { f64::INFINITY } else { chip.hbm.capacity.as_f64() };
    let that_fit = |room: f64, each: f64| (room - bytes).max(0.0) / each.max(1.0);
    let sequences = that_fit(capacity, own).min(that_fit(readable, cache));
    // The prompt makes an answer's first token, decoding the others.
    let per_step = lengths.mean_output() / (lengths.mean_output() - 1.0);
    let by_memory =
        if cache > 0.0 { devices * rate * gained / (bytes / sequences + cache) * per_step } else { f64::INFINITY };
    by_products.min(by_memory)
}

/// Returns the highest rates of requests per second and device of pools on a chip: of a pool for prompts, and of one
/// for decoding; zero where no plan serves.
#[must_use]
pub fn pool_rates(question: &ServingQuestion<'_>, hardware: ServingHardware<'_>) -> [f64; 2] {
    let per_device = |rate: PoolRate<'_>| rate.rate / f64::from(rate.loaded.times.plan().devices());
    let plans = enumerate_plans(question);
    let best = |rates: &mut dyn Iterator<Item = f64>| rates.fold(0.0, f64::max);
    [
        best(&mut plans.iter().filter_map(|plan| prompt_rate(question, hardware, *plan).ok()).map(per_device)),
        best(&mut plans.iter().filter_map(|plan| decode_rate(question, hardware, *plan).ok()).map(per_device)),
    ]
}

/// A plan ready to be loaded.
struct LoadedPlan<'a> {
    times: PassTimes<'a>,
    memory: ServingMemory,
    costs: IterationCosts,
    context: u64,
}

impl<'a> LoadedPlan<'a> {
    fn new(
        question: &ServingQuestion<'a>,
        hardware: ServingHardware<'a>,
        plan: ServingPlan,
    ) -> Result<Self, ServingError> {
        let ServingHardware { chip, fabric, engine } = hardware;
        let times = PassTimes::new(question.model, chip, fabric, engine, plan)?;
        let mut times = times.with_method(question.method)?;
        let memory = times.memory(&question.lengths)?;
        let costs = iteration_costs(&mut times, &memory, &question.lengths, TYPICAL_SEQUENCES)?;
        let context = question.method.mean_context(&question.lengths) as u64;
        Ok(Self { times, memory, costs, context })
    }

    /// Returns a pool, with the power of a device that takes part in `rate` requests per second and decodes `decoding`
    /// sequences, if it decodes, and prefills, if it prefills.
    fn pool(&mut self, replicas: u32, lengths: &RequestLengths, work: PoolWork) -> Result<ReplicaPool, ServingError> {
        let iteration = self.times.decode(work.decoding.max(1.0).round() as u64, self.context)?;
        let iterations = self.costs.mean_iterations();
        // A pass's energy is that of a device with all layers. A stage has a share of them, and in the time of an
        // iteration it works on as many parts of the sequences as there are stages.
        let stages = f64::from(self.times.plan().pipeline);
        let groups = f64::from(self.times.plan().attention_data);
        let per_token = iteration.energy * (1.0 / work.decoding.max(1.0).round());
        let mut dynamic = per_token * (work.rate * iterations * f64::from(u8::from(work.decodes)));
        if work.prefills {
            for class in lengths.classes() {
                let prompt = crate::steady::time_of_prompts(&mut self.times, 1, class.input)?;
                dynamic += prompt.energy * (work.rate * class.share / groups / stages);
            }
        }
        let chip = self.times.chip();
        let power = chip.energy.static_power + Watts(dynamic.0);
        Ok(ReplicaPool {
            chip: chip.name.clone(),
            plan: *self.times.plan(),
            replicas,
            memory: self.memory.clone(),
            power,
            tdp: chip.published.tdp,
        })
    }
}

/// The work of a pool's replica.
#[derive(Clone, Copy)]
struct PoolWork {
    rate: f64,
    decoding: f64,
    decodes: bool,
    prefills: bool,
}

/// Sequences that decode beside a prompt in a mixed iteration, for its cost: the middle of what engines run.
const TYPICAL_SEQUENCES: u64 = 32;

/// Returns the highest rate up to `most` at which `holds`, and whether it is below `most`; `None` if it holds at
/// none.
fn highest_rate(most: f64, holds: impl Fn(f64) -> bool) -> Option<(f64, bool)> {
    let (mut low, mut high) = (most * 1e-6, most);
    if !holds(low) {
        return None;
    }
    if holds(high) {
        return Some((high, false));
    }
    for _ in 0..BISECTIONS {
        let middle = (low + high) / 2.0;
        if holds(middle) { low = middle } else { high = middle }
    }
    Some((low, true))
}

/// Returns the deployments with prompts and decoding on the same devices.
#[must_use]
pub fn together(question: &ServingQuestion<'_>, hardware: ServingHardware<'_>) -> ServingAnswer {
    let mut answer = ServingAnswer::default();
    let plans = enumerate_plans(question);
    answer.priced = plans.len() as u64;
    for plan in plans {
        match deploy_together(question, hardware, plan) {
            Ok(deployment) => answer.deployments.push(deployment),
            Err(refusal) => answer.refused.push(refusal),
        }
    }
    answer.deployments.sort_by(|a, b| b.tokens_per_second.total_cmp(&a.tokens_per_second));
    answer
}

fn deploy_together(
    question: &ServingQuestion<'_>,
    hardware: ServingHardware<'_>,
    plan: ServingPlan,
) -> Result<Deployment, PlanRefusal> {
    let mut loaded = LoadedPlan::new(question, hardware, plan).map_err(PlanRefusal::Fault)?;
    let (level, lengths) = (&question.level, &question.lengths);
    let state = |rate: f64| under_arrivals(&loaded.costs, rate);
    let most = loaded.costs.saturation() * MOST_LOAD;
    let met = |rate: f64| {
        state(rate).is_some_and(|state| level.is_met(state.time_to_first_token, state.time_per_output_token))
    };
    let found = highest_rate(most, met).and_then(|(rate, limited)| Some((state(rate)?, limited)));
    let Some((state, limited)) = found else {
        let idle = state(most * 1e-6).ok_or_else(|| PlanRefusal::Fault(no_rate()))?;
        return Err(PlanRefusal::TooSlow {
            plan,
            time_to_first_token: idle.time_to_first_token,
            time_per_output_token: idle.time_per_output_token,
        });
    };
    let above = under_arrivals(&loaded.costs, state.requests_per_second * 1.0001);
    let bound = match (limited, level.time_to_first_token, above) {
        (false, ..) => ServingBound::Load,
        (true, Some(limit), Some(above)) if above.time_to_first_token > limit => ServingBound::TimeToFirstToken,
        (true, Some(_), None) => ServingBound::TimeToFirstToken,
        (true, ..) => ServingBound::TimePerOutputToken,
    };
    let replicas = question.devices / plan.devices();
    let rate = state.requests_per_second;
    let work = PoolWork { rate, decoding: state.decoding, decodes: true, prefills: true };
    let finish = |loaded: &mut LoadedPlan<'_>| {
        let pool = loaded.pool(replicas, lengths, work)?;
        let iteration = loaded.times.decode(state.decoding.max(1.0).round() as u64, loaded.context)?;
        let input = lengths.classes().iter().map(|class| class.share * class.input as f64).sum::<f64>();
        let prompt = prompt_time(&mut loaded.times, input.round() as u64)?;
        Ok((pool, iteration, prompt))
    };
    let (pool, iteration, prompt) = finish(&mut loaded).map_err(PlanRefusal::Fault)?;
    let requests = rate * f64::from(replicas);
    Ok(deployment_of(DeploymentParts {
        decode: pool,
        prefill: None,
        state,
        iteration,
        prompt,
        transfer: Seconds::ZERO,
        requests,
        output: lengths.mean_output(),
        bound,
    }))
}

fn no_rate() -> ServingError {
    ServingError::Hardware("the replica serves no request in finite time".to_owned())
}

fn prompt_time(times: &mut PassTimes<'_>, input: u64) -> Result<Seconds, ServingError> {
    Ok(crate::steady::time_of_prompts(times, 1, input.max(1))?.total())
}

struct DeploymentParts {
    decode: ReplicaPool,
    prefill: Option<ReplicaPool>,
    state: SteadyState,
    iteration: PassTime,
    prompt: Seconds,
    transfer: Seconds,
    requests: f64,
    output: f64,
    bound: ServingBound,
}

fn deployment_of(parts: DeploymentParts) -> Deployment {
    let tokens = parts.requests * parts.output;
    let power = |pool: &ReplicaPool| pool.power.0 * f64::from(pool.replicas.saturating_mul(pool.plan.devices()));
    let watts = power(&parts.decode) + parts.prefill.as_ref().map_or(0.0, power);
    let mut deployment = Deployment {
        decode: parts.decode,
        prefill: parts.prefill,
        state: parts.state,
        iteration: parts.iteration,
        prompt: parts.prompt,
        transfer: parts.transfer,
        requests_per_second: parts.requests,
        tokens_per_second: tokens,
        tokens_per_second_per_device: 0.0,
        tokens_per_joule: if watts > 0.0 { tokens / watts } else { 0.0 },
        bound: parts.bound,
    };
    deployment.tokens_per_second_per_device = tokens / f64::from(deployment.devices().max(1));
    deployment
}

/// A plan of a pool with its highest rate per replica and the times there.
struct PoolRate<'a> {
    loaded: LoadedPlan<'a>,
    rate: f64,
    limited: bool,
    /// The queue of a prefilling pool.
    queue: PromptQueue,
    /// The state of a decoding pool.
    state: Option<SteadyState>,
}

/// The queue of a replica that only prefills: one server and fixed service times (Pollaczek and Khinchine).
#[derive(Clone, Copy, Default)]
struct PromptQueue {
    /// Seconds from the start of a prompt to its first token, and outside of passes.
    alone: f64,
    /// Mean seconds of the replica per prompt, and their mean square.
    service: f64,
    squares: f64,
}

impl PromptQueue {
    fn time_to_first_token(&self, rate: f64) -> Seconds {
        Seconds(self.alone + rate * self.squares / (2.0 * (1.0 - rate * self.service)))
    }
}

/// Returns the deployments with a pool for prompts on `prompts` and one for decoding on `decoding`. For every pair of
/// plans the devices are split so that the deployment serves most. Among a pool's plans with equal numbers of devices,
/// only the one that serves most is paired.
#[must_use]
pub fn apart(
    question: &ServingQuestion<'_>,
    prompts: ServingHardware<'_>,
    decoding: ServingHardware<'_>,
) -> ServingAnswer {
    let mut answer = ServingAnswer::default();
    let mut refuse = |refusal: PlanRefusal| answer.refused.push(refusal);
    let plans = enumerate_plans(question);
    let priced = 2 * plans.len() as u64;
    let first: Vec<PoolRate<'_>> =
        plans.iter().filter_map(|plan| prompt_rate(question, prompts, *plan).map_err(&mut refuse).ok()).collect();
    let second: Vec<PoolRate<'_>> =
        plans.iter().filter_map(|plan| decode_rate(question, decoding, *plan).map_err(&mut refuse).ok()).collect();
    let (first, second) = (best_by_size(first), best_by_size(second));
    let mut pairs: Vec<(f64, usize, usize, u32, u32)> = Vec::new();
    for (i, a) in first.iter().enumerate() {
        for (j, b) in second.iter().enumerate() {
            let (x, y) = (a.loaded.times.plan().devices(), b.loaded.times.plan().devices());
            let best = (1..=question.devices / x.max(1))
                .filter_map(|n| {
                    let m = question.devices.checked_sub(n * x)? / y.max(1);
                    (m > 0).then(|| ((f64::from(n) * a.rate).min(f64::from(m) * b.rate), n, m))
                })
                .max_by(|p, q| p.0.total_cmp(&q.0));
            pairs.extend(best.map(|(rate, n, m)| (rate, i, j, n, m)));
        }
    }
    answer.priced = priced;
    pairs.sort_by(|a, b| b.0.total_cmp(&a.0));
    pairs.truncate(MOST_PAIRS);
    let (mut first, mut second) = (first, second);
    for (rate, i, j, n, m) in pairs {
        let pair = match (first.get_mut(i), second.get_mut(j)) {
            (Some(a), Some(b)) => deploy_apart(question, (a, n), (b, m), rate),
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

/// Pairs of plans that an answer lists.
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

fn prompt_rate<'a>(
    question: &ServingQuestion<'a>,
    hardware: ServingHardware<'a>,
    plan: ServingPlan,
) -> Result<PoolRate<'a>, PlanRefusal> {
    let mut loaded = LoadedPlan::new(question, hardware, plan).map_err(PlanRefusal::Fault)?;
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
    match highest_rate(most, |rate| limit.is_none_or(|limit| first(rate) <= limit)) {
        Some((rate, limited)) => Ok(PoolRate { loaded, rate, limited, queue, state: None }),
        None => {
            Err(PlanRefusal::TooSlow { plan, time_to_first_token: first(0.0), time_per_output_token: Seconds::ZERO })
        }
    }
}

fn decode_rate<'a>(
    question: &ServingQuestion<'a>,
    hardware: ServingHardware<'a>,
    plan: ServingPlan,
) -> Result<PoolRate<'a>, PlanRefusal> {
    let mut loaded = LoadedPlan::new(question, hardware, plan).map_err(PlanRefusal::Fault)?;
    let free = |request: &RequestCost| RequestCost { prompt: 0.0, alone: 0.0, ..*request };
    loaded.costs.requests = loaded.costs.requests.iter().map(free).collect();
    let limit = question.level.time_per_output_token;
    let met = |rate: f64| {
        under_arrivals(&loaded.costs, rate)
            .is_some_and(|state| limit.is_none_or(|limit| state.time_per_output_token <= limit))
    };
    let most = loaded.costs.saturation() * MOST_LOAD;
    let found =
        highest_rate(most, met).and_then(|(rate, limited)| Some((under_arrivals(&loaded.costs, rate)?, limited)));
    match found {
        Some((state, limited)) => {
            let rate = state.requests_per_second;
            Ok(PoolRate { loaded, rate, limited, queue: PromptQueue::default(), state: Some(state) })
        }
        None => Err(PlanRefusal::TooSlow {
            plan,
            time_to_first_token: Seconds::ZERO,
            time_per_output_token: Seconds(loaded.costs.decode_time(1.0)),
        }),
    }
}

fn deploy_apart(
    question: &ServingQuestion<'_>,
    (a, n): (&mut PoolRate<'_>, u32),
    (b, m): (&mut PoolRate<'_>, u32),
    rate: f64,
) -> Result<Deployment, PlanRefusal> {
    let lengths = &question.lengths;
    let state = under_arrivals(&b.loaded.costs, rate / f64::from(m)).or(b.state);
    let state = state.ok_or_else(|| PlanRefusal::Fault(no_rate()))?;
    let input = lengths.classes().iter().map(|class| class.share * class.input as f64).sum::<f64>().round() as u64;
    let transfer = time_of_transfer(a, b, input);
    let finish = |a: &mut PoolRate<'_>, b: &mut PoolRate<'_>| {
        let decodes = PoolWork { rate: rate / f64::from(m), decoding: state.decoding, decodes: true, prefills: false };
        let prefills = PoolWork { rate: rate / f64::from(n), decoding: 1.0, decodes: false, prefills: true };
        let decode = b.loaded.pool(m, lengths, decodes)?;
        let prefill = a.loaded.pool(n, lengths, prefills)?;
        let iteration = b.loaded.times.decode(state.decoding.max(1.0).round() as u64, b.loaded.context)?;
        let prompt = prompt_time(&mut a.loaded.times, input)?;
        Ok((decode, prefill, iteration, prompt))
    };
    let (decode, prefill, iteration, prompt) = finish(a, b).map_err(PlanRefusal::Fault)?;
    // The first token comes from the prefilling pool; its successor waits for the cache.
    let of_prompts = rate / f64::from(n);
    let load = state.load.max(of_prompts * a.queue.service);
    let state = SteadyState { time_to_first_token: a.queue.time_to_first_token(of_prompts), load, ..state };
    let bound = if f64::from(n) * a.rate <= f64::from(m) * b.rate {
        if a.limited { ServingBound::TimeToFirstToken } else { ServingBound::Load }
    } else if b.limited {
        ServingBound::TimePerOutputToken
    } else {
        ServingBound::Load
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

/// Returns the time that a prompt's cache takes from one pool to the other: every device of the smaller side sends or
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
