//! The deployments that serve most within a service level, with prompts and decoding on the same devices. Pools apart
//! are in [`crate::apart`].
//!
//! Every plan of the degrees is priced; none is left out by a bound. Within a plan, the time to the first token and the
//! time per output token rise with the rate of requests, so bisection finds the highest rate.
//!
//! A device takes at most the question's power in the mean, or else its published limit. If a plan takes more at its
//! highest rate, the chip runs at the highest clock at which it does not (`deploy_within_power`).

use crate::lengths::{LengthClass, RequestLengths};
use crate::memory::ServingMemory;
use crate::method::ServingMethod;
use crate::pass_time::PassTime;
use crate::passes::PassTimes;
use crate::plan::{ServedProduct, ServingFormats, ServingPlan};
use crate::steady::{IterationCosts, SteadyState, energy_of_prompt, iteration_costs, under_arrivals};
use crate::{ServingEngine, ServingError};
use serde::{Deserialize, Serialize};
use sim::hardware::{Accelerator, highest_clock_within, lower_clock, lowest_clock};
use sim::kernel::DataType;
use sim::network::Fabric;
use sim::units::{Hertz, Joules, Seconds, Watts};
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
    /// Limit on the mean power of a device; `None` for the chip's published one, if it has one.
    pub power_limit: Option<Watts>,
}

impl ServingQuestion<'_> {
    /// Returns the most that a device of `chip` may take in the mean.
    pub(crate) fn power_limit_of(&self, chip: &Accelerator) -> Option<Watts> {
        self.power_limit.or(chip.published.tdp)
    }
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
    /// The limit on it.
    pub power_limit: Option<Watts>,
    /// The clock at which the power is within the limit.
    pub clock: Hertz,
    /// The clock without that limit.
    pub full_clock: Hertz,
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
    /// It takes too much power at every clock at which it meets the service level.
    TooHot {
        /// The plan.
        plan: ServingPlan,
        /// The mean power of a device at the chip's full clock.
        power: Watts,
        /// The limit on it.
        limit: Watts,
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
            PlanRefusal::TooHot { power, limit, .. } => (*power / *limit).ln(),
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

/// Upper bounds on what a device of a chip does in any deployment of a question, whatever its plan and clock.
///
/// - Products: a request has at least 2 operations per active weight of the layers and token.
/// - Memory: an iteration of n sequences per device reads at least the active weights, divided by all devices, and n
///   caches; each sequence gains its accepted drafts besides a token. More sequences read fewer bytes per token; the
///   memory and the limit on the time per output token bound n.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DeviceBounds {
    /// Tokens per second whose products the arrays multiply.
    tokens: f64,
    /// Tokens per second that decoding iterations make.
    decoded: f64,
    /// Static power, and the least energy of a token's products.
    standing: Watts,
    token: Joules,
    /// Mean computed tokens of a prompt, and tokens of an answer.
    input: f64,
    output: f64,
}

impl DeviceBounds {
    /// Returns the bounds on a chip under an engine.
    #[must_use]
    pub fn of_chip(question: &ServingQuestion<'_>, chip: &Accelerator, engine: &ServingEngine) -> Self {
        let (model, lengths, formats) = (question.model, &question.lengths, &question.formats);
        let mut served = model.clone();
        served.variations.further_tokens = 0;
        let active = served.active_matrix_parameters(0) as f64;
        let bytes = formats.products.bytes_of_weight().min(formats.experts.bytes_of_weight()) * active
            / f64::from(question.devices);
        let operands = [formats.products, formats.experts].map(ServedProduct::operand);
        let peaks = operands.into_iter().filter_map(|operand| chip.peak_flops(operand)).map(|peak| peak.0);
        // An engine's kernels may be stated to be faster than the library's.
        let kernels = &engine.kernels;
        let peak = peaks.fold(0.0, f64::max) * kernels.product_fraction.max(1.0);
        let macs = operands.map(|operand| lowest_mac_energy(chip, operand).0);
        let method = &question.method;
        let size = CacheSize::of_model(model, 1, formats.cache);
        let cache = size.of_sequence(method.mean_context(lengths) as u64).as_f64();
        let elsewhere = |input: u64| input - method.own_tokens(input);
        let own = size.of_sequence(lengths.mean_context_after(elsewhere) as u64).as_f64();
        let gained = method.tokens_per_pass();
        let rate = chip.hbm.read_bandwidth.0 * kernels.product_fraction.max(kernels.decode_fraction).max(1.0);
        let readable = question.level.time_per_output_token.map_or(f64::INFINITY, |limit| limit.0 * gained * rate);
        let capacity = if method.away.is_some() { f64::INFINITY } else { chip.hbm.capacity.as_f64() };
        let that_fit = |room: f64, each: f64| (room - bytes).max(0.0) / each.max(1.0);
        let sequences = that_fit(capacity, own).min(that_fit(readable, cache));
        let computed = |class: &LengthClass| class.share * method.computed_tokens(class.input);
        Self {
            tokens: peak / (2.0 * active),
            decoded: if cache > 0.0 { rate * gained / (bytes / sequences + cache) } else { f64::INFINITY },
            standing: chip.energy.static_power,
            token: Joules(active * macs.into_iter().fold(f64::INFINITY, f64::min)),
            input: lengths.classes().iter().map(computed).sum(),
            output: lengths.mean_output(),
        }
    }

    /// Returns requests per second of a device that prefills and decodes.
    #[must_use]
    pub fn requests(&self) -> f64 {
        (self.tokens / (self.input + self.output)).min(self.decoded / self.steps())
    }

    /// Returns requests per second of a device of a pool for prompts.
    #[must_use]
    pub fn prompts(&self) -> f64 {
        self.tokens / self.input
    }

    /// Returns requests per second of a device of a pool for decoding.
    #[must_use]
    pub fn decoding(&self) -> f64 {
        self.tokens.min(self.decoded) / self.steps()
    }

    /// Returns output tokens per joule of a device that prefills and decodes: static power at the highest rate, and
    /// the products.
    #[must_use]
    pub fn tokens_per_joule(&self) -> f64 {
        let request = self.standing.0 / self.requests() + self.token.0 * (self.input + self.steps());
        self.output / request
    }

    /// Tokens that decoding makes of an answer: the prompt makes the first.
    fn steps(&self) -> f64 {
        self.output - 1.0
    }
}

/// Returns the least energy of a multiply-accumulate over the clocks at which a chip may run.
fn lowest_mac_energy(chip: &Accelerator, operand: DataType) -> Joules {
    lower_clock(chip, lowest_clock(chip)).energy.macs_energy(operand, 1)
}

/// Returns a rate of output tokens per second that no deployment of the question on `chip` under `engine` exceeds,
/// whatever its plan.
#[must_use]
pub fn bound_of_chip(question: &ServingQuestion<'_>, chip: &Accelerator, engine: &ServingEngine) -> f64 {
    let bounds = DeviceBounds::of_chip(question, chip, engine);
    f64::from(question.devices) * bounds.requests() * bounds.output
}

/// A plan ready to be loaded.
pub(crate) struct LoadedPlan<'a> {
    pub(crate) times: PassTimes<'a>,
    pub(crate) memory: ServingMemory,
    pub(crate) costs: IterationCosts,
    pub(crate) context: u64,
    /// The limit on a device's power, and the clock without it.
    power_limit: Option<Watts>,
    full_clock: Hertz,
}

impl<'a> LoadedPlan<'a> {
    /// Prepares a plan on `chip`: that of `hardware`, or the same at a lower clock.
    ///
    /// # Errors
    /// A plan that the model, the chip or its memory does not allow.
    pub(crate) fn new(
        question: &ServingQuestion<'a>,
        hardware: ServingHardware<'a>,
        chip: &Accelerator,
        plan: ServingPlan,
    ) -> Result<Self, ServingError> {
        let ServingHardware { chip: full, fabric, engine } = hardware;
        let times = PassTimes::new(question.model, chip, fabric, engine, plan)?;
        let mut times = times.with_method(question.method)?;
        let memory = times.memory(&question.lengths)?;
        let costs = iteration_costs(&mut times, &memory, &question.lengths, TYPICAL_SEQUENCES)?;
        let context = question.method.mean_context(&question.lengths) as u64;
        let power_limit = question.power_limit_of(full);
        Ok(Self { times, memory, costs, context, power_limit, full_clock: full.clock })
    }

    /// Returns a pool, with the power of a device that takes part in `rate` requests per second and decodes `decoding`
    /// sequences, if it decodes, and prefills, if it prefills.
    pub(crate) fn pool(
        &mut self,
        replicas: u32,
        lengths: &RequestLengths,
        work: PoolWork,
    ) -> Result<ReplicaPool, ServingError> {
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
                let prompt = energy_of_prompt(&mut self.times, class.input)?;
                dynamic += prompt * (work.rate * class.share / groups / stages);
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
            power_limit: self.power_limit,
            clock: chip.clock,
            full_clock: self.full_clock,
        })
    }
}

/// The work of a pool's replica.
#[derive(Clone, Copy)]
pub(crate) struct PoolWork {
    pub(crate) rate: f64,
    pub(crate) decoding: f64,
    pub(crate) decodes: bool,
    pub(crate) prefills: bool,
}

/// Sequences that decode beside a prompt in a mixed iteration, for its cost: the middle of what engines run.
const TYPICAL_SEQUENCES: u64 = 32;

/// Returns the highest rate up to `most` at which `holds`, and whether it is below `most`; `None` if it holds at
/// none.
pub(crate) fn highest_rate(most: f64, holds: impl Fn(f64) -> bool) -> Option<(f64, bool)> {
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
        let deploy = |chip: &Accelerator| {
            let deployment = deploy_together(question, hardware, chip, plan)?;
            let power = deployment.decode.power;
            Ok((deployment, power))
        };
        match deploy_within_power(question, hardware.chip, plan, deploy) {
            Ok(deployment) => answer.deployments.push(deployment),
            Err(refusal) => answer.refused.push(refusal),
        }
    }
    answer.deployments.sort_by(|a, b| b.tokens_per_second.total_cmp(&a.tokens_per_second));
    answer
}

/// Returns what `deploy` makes of a chip, with the power of a device, at the highest clock at which that is within the
/// limit.
///
/// # Errors
/// The refusal of `deploy` at the full clock, or [`PlanRefusal::TooHot`].
pub(crate) fn deploy_within_power<T>(
    question: &ServingQuestion<'_>,
    chip: &Accelerator,
    plan: ServingPlan,
    deploy: impl Fn(&Accelerator) -> Result<(T, Watts), PlanRefusal>,
) -> Result<T, PlanRefusal> {
    let (full, power) = deploy(chip)?;
    let Some(limit) = question.power_limit_of(chip).filter(|limit| power > *limit) else { return Ok(full) };
    // Clocks that miss the service level are below those that meet it, and take no power.
    let power_at = |clock: Hertz| deploy(&lower_clock(chip, clock)).map_or(Watts(0.0), |(_, power)| power);
    highest_clock_within(chip.clock, lowest_clock(chip), limit, power_at)
        .and_then(|clock| deploy(&lower_clock(chip, clock)).ok())
        .map(|(lowered, _)| lowered)
        .ok_or(PlanRefusal::TooHot { plan, power, limit })
}

fn deploy_together(
    question: &ServingQuestion<'_>,
    hardware: ServingHardware<'_>,
    chip: &Accelerator,
    plan: ServingPlan,
) -> Result<Deployment, PlanRefusal> {
    let mut loaded = LoadedPlan::new(question, hardware, chip, plan).map_err(PlanRefusal::Fault)?;
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

pub(crate) fn no_rate() -> ServingError {
    ServingError::Hardware("the replica serves no request in finite time".to_owned())
}

pub(crate) fn prompt_time(times: &mut PassTimes<'_>, input: u64) -> Result<Seconds, ServingError> {
    Ok(crate::steady::time_of_prompts(times, 1, input.max(1))?.total())
}

pub(crate) struct DeploymentParts {
    pub(crate) decode: ReplicaPool,
    pub(crate) prefill: Option<ReplicaPool>,
    pub(crate) state: SteadyState,
    pub(crate) iteration: PassTime,
    pub(crate) prompt: Seconds,
    pub(crate) transfer: Seconds,
    pub(crate) requests: f64,
    pub(crate) output: f64,
    pub(crate) bound: ServingBound,
}

pub(crate) fn deployment_of(parts: DeploymentParts) -> Deployment {
    let tokens = parts.requests * parts.output;
    let power = |pool: &ReplicaPool| pool.power.0 * f64::from(pool.replicas.saturating_mul(pool.plan.devices()));
    // The power of a chip whose file states no energy is not known, and neither is the sum.
    let powers = [Some(&parts.decode), parts.prefill.as_ref()].map(|pool| pool.map(power));
    let known = powers.iter().flatten().all(|watts| *watts > 0.0);
    let watts: f64 = powers.iter().flatten().sum();
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
        tokens_per_joule: if known { tokens / watts } else { 0.0 },
        bound: parts.bound,
    };
    deployment.tokens_per_second_per_device = tokens / f64::from(deployment.devices().max(1));
    deployment
}
