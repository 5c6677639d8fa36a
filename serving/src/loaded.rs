//! A plan under load: its highest rate within the service level and the limit on power, and the clock at which that
//! rate is highest.
//!
//! A device takes at most the question's power in the mean; without one, its published limit. Its power at a clock is
//! the static power, plus the energy of a request's prompt and iterations times the rate. If a plan takes more than the
//! limit at its highest rate, it runs at the rate that takes the limit, and at the clock with the highest such rate
//! (`deploy_within_power`).
//!
//! The rates of a built chip were measured while it kept to its published limit. So they hold at that limit. If the
//! model's energies of a plan exceed the limit there, the energies are too high, and are lowered to it. A lower limit
//! of the question then lowers rate and clock as for other chips.

use crate::costs::{IterationCosts, energy_of_prompt, interpolated, iteration_costs, time_of_prompts};
use crate::deployment::{PlanRefusal, ReplicaPool};
use crate::lengths::RequestLengths;
use crate::memory::ServingMemory;
use crate::passes::PassTimes;
use crate::plan::ServingPlan;
use crate::question::{ServingHardware, ServingQuestion};
use crate::{ServingEngine, ServingError};
use sim::hardware::{Accelerator, highest_clock_where, lower_clock, lowest_clock};
use sim::units::{Hertz, Joules, Seconds, Watts};

/// The highest load for which a deployment is planned, as a fraction of the rate at which its queue grows without end.
/// Above it, the mean wait changes faster with the rate of arrivals than forecasts of that rate are exact. Range 0.8 to
/// 0.98.
pub const MOST_LOAD: f64 = 0.95;
/// Steps of bisection: the rate is exact to 2^-40 of its range.
const BISECTIONS: u32 = 40;
/// Number of equal steps of a plan's rate that are tried first in the search for the highest rate within the limit on
/// power. Power may fall where more sequences share the weights, so bisection alone could miss it.
const RATE_POINTS: u32 = 64;
/// The lowest rate of a search, relative to the rate at the highest load.
pub(crate) const LEAST_RATE: f64 = 1e-6;

/// Assumed number of sequences that decode beside a prompt in a mixed iteration, for the prompt's cost: the middle of
/// what engines run.
const TYPICAL_SEQUENCES: u64 = 32;

/// A plan with everything that its rate and power depend on.
pub(crate) struct LoadedPlan<'a> {
    pub(crate) times: PassTimes<'a>,
    pub(crate) memory: ServingMemory,
    pub(crate) costs: IterationCosts,
    pub(crate) context: u64,
    /// Points (sequences, joules) of a decoding iteration's energy on a device; linear in between.
    iterations: Vec<(u64, f64)>,
    /// The energy of a request's prompt on a device.
    prompt: Joules,
    power: PowerRule,
    /// The clock without a limit on power.
    full_clock: Hertz,
}

/// The limit on a device's power, and the part of the model's energies that a plan takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct PowerRule {
    pub(crate) limit: Option<Watts>,
    /// True if rates were measured within the limit, so that the limit lowers none.
    holds: bool,
    /// Factor on the model's energies: 1 unless measured rates show them to be too high.
    dynamic: f64,
}

impl PowerRule {
    /// Returns the rule of a question on a chip before any plan is known.
    fn of_chip(question: &ServingQuestion<'_>, chip: &Accelerator) -> Self {
        let asked = question.power_limit;
        let measured = chip.published.tdp.filter(|_| chip.rates_are_measured);
        match measured {
            Some(within) => Self { limit: Some(within), holds: true, dynamic: 1.0 },
            None => Self { limit: asked.or(chip.published.tdp), holds: false, dynamic: 1.0 },
        }
    }

    /// Returns the rule of a plan that takes `power` at its highest rate under `self`.
    fn of_plan(self, question: &ServingQuestion<'_>, chip: &Accelerator, power: Watts) -> Self {
        let (true, Some(within)) = (self.holds, self.limit) else { return self };
        let standing = chip.energy.static_power;
        let dynamic = ((within - standing) / (power - standing)).clamp(0.0, 1.0);
        match question.power_limit.filter(|asked| *asked < within) {
            Some(asked) => Self { limit: Some(asked), holds: false, dynamic },
            None => Self { dynamic, ..self },
        }
    }
}

impl<'a> LoadedPlan<'a> {
    /// Prepares a plan on `chip`: the chip of `hardware`, or the same chip at a lower clock.
    ///
    /// # Errors
    /// A plan that the model, the chip or its memory does not allow.
    pub(crate) fn new(
        question: &ServingQuestion<'a>,
        hardware: ServingHardware<'a>,
        chip: &Accelerator,
        power: PowerRule,
        plan: ServingPlan,
    ) -> Result<Self, ServingError> {
        let ServingHardware { chip: full, fabric, engine } = hardware;
        let times = PassTimes::new(question.model, chip, fabric, engine, plan)?;
        let mut times = times.with_method(question.method)?;
        let memory = times.memory(&question.lengths)?;
        let costs = iteration_costs(&mut times, &memory, &question.lengths, TYPICAL_SEQUENCES)?;
        let context = question.method.mean_context(&question.lengths) as u64;
        let energy = |(n, _): &(u64, f64)| Ok((*n, times.decode(*n, context)?.energy.0));
        let iterations = costs.decode.iter().map(energy).collect::<Result<_, ServingError>>()?;
        let prompt = mean_energy_of_prompt(&mut times, &question.lengths)?;
        Ok(Self { times, memory, costs, context, iterations, prompt, power, full_clock: full.clock })
    }

    /// Returns the mean power of a device of a replica that does `work`.
    pub(crate) fn power_of(&self, work: PoolWork) -> Watts {
        let mut request = if work.prefills { self.prompt } else { Joules(0.0) };
        if let Some(decoding) = work.decoding {
            let n = decoding.max(1.0);
            request += Joules(self.costs.mean_iterations() * interpolated(&self.iterations, n) / n);
        }
        self.times.chip().energy.static_power + Watts(request.0 * work.rate * self.power.dynamic)
    }

    /// Returns whether the power of a device of a replica that does `work` is within the limit.
    pub(crate) fn is_cool(&self, work: PoolWork) -> bool {
        self.power.holds || self.power.limit.is_none_or(|limit| self.power_of(work) <= limit)
    }

    /// Returns the refusal of a plan whose power at the least rate is too much.
    pub(crate) fn too_hot(&self, work: PoolWork) -> PlanRefusal {
        let limit = self.power.limit.unwrap_or(Watts(f64::INFINITY));
        PlanRefusal::TooHot { plan: *self.times.plan(), power: self.power_of(work), limit }
    }

    /// Returns a pool of `replicas` replicas that each do `work`.
    pub(crate) fn pool(&self, replicas: u32, work: PoolWork) -> ReplicaPool {
        let chip = self.times.chip();
        ReplicaPool {
            chip: chip.name.clone(),
            plan: *self.times.plan(),
            replicas,
            memory: self.memory.clone(),
            power: self.power_of(work),
            power_limit: self.power.limit,
            most_tokens: self.times.engine().batching.most_tokens,
            clock: chip.clock,
            full_clock: self.full_clock,
        }
    }
}

/// Returns the mean energy of a request's prompt on a device. A pass's energy is that of a device with all layers, and
/// a stage has a share of them. Groups with attention of their own share the prompts.
///
/// The energy of an iteration needs no such division. The groups already divide its sequences. In the time of one
/// iteration, a stage works on as many parts of the sequences as there are stages.
fn mean_energy_of_prompt(times: &mut PassTimes<'_>, lengths: &RequestLengths) -> Result<Joules, ServingError> {
    let shares = f64::from(times.plan().attention_data) * f64::from(times.plan().pipeline);
    let mut sum = Joules(0.0);
    for class in lengths.classes() {
        sum += energy_of_prompt(times, class.input)? * (class.share / shares);
    }
    Ok(sum)
}

/// The work of a pool's replica.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PoolWork {
    /// Requests per second.
    pub(crate) rate: f64,
    /// Mean sequences that decode; `None` if the replica does not decode.
    pub(crate) decoding: Option<f64>,
    pub(crate) prefills: bool,
}

/// The highest rate of a plan.
pub(crate) enum HighestRate {
    /// The service level is met at no rate.
    TooSlow,
    /// The power is within its limit at no rate.
    TooHot,
    /// The highest rate, and the limit that prevents a higher one.
    At(f64, RateEnd),
}

/// The reason why a rate is not higher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RateEnd {
    Load,
    Level,
    Power,
}

/// Returns the highest rate up to `most` at which the service level is `met` and the power is `cool`. If a rate meets
/// the level, all lower rates must meet it. Power need not rise with the rate.
pub(crate) fn highest_rate(most: f64, met: impl Fn(f64) -> bool, cool: impl Fn(f64) -> bool) -> HighestRate {
    let bisect = |low: f64, high: f64, holds: &dyn Fn(f64) -> bool| {
        let (mut low, mut high) = (low, high);
        for _ in 0..BISECTIONS {
            let middle = f64::midpoint(low, high);
            if holds(middle) { low = middle } else { high = middle }
        }
        low
    };
    let least = most * LEAST_RATE;
    if !met(least) {
        return HighestRate::TooSlow;
    }
    let (rate, end) = if met(most) { (most, RateEnd::Load) } else { (bisect(least, most, &met), RateEnd::Level) };
    if cool(rate) {
        return HighestRate::At(rate, end);
    }
    let points = (0..=RATE_POINTS).rev().map(|k| least.max(most * f64::from(k) / f64::from(RATE_POINTS)));
    let mut above = rate;
    for point in points.filter(|point| *point < rate) {
        if cool(point) {
            return HighestRate::At(bisect(point, above, &cool), RateEnd::Power);
        }
        above = point;
    }
    HighestRate::TooHot
}

/// A plan's deployment at a clock.
pub(crate) struct AtClock<T> {
    pub(crate) deployed: T,
    /// Requests per second.
    pub(crate) rate: f64,
    pub(crate) end: RateEnd,
    /// The mean power of a device.
    pub(crate) power: Watts,
}

/// Returns the result of `deploy` for the setting in `settings` with the highest `rate`.
///
/// # Errors
/// The refusal of the first setting, if no setting serves.
pub(crate) fn best_of_settings<'e, T>(
    settings: &'e [ServingEngine],
    deploy: impl Fn(&'e ServingEngine) -> Result<T, PlanRefusal>,
    rate: impl Fn(&T) -> f64,
) -> Result<T, PlanRefusal> {
    let mut best: Option<Result<T, PlanRefusal>> = None;
    for setting in settings {
        let own = deploy(setting);
        let better = match (&best, &own) {
            (None, _) | (Some(Err(_)), Ok(_)) => true,
            (Some(Ok(best)), Ok(own)) => rate(own) > rate(best),
            (Some(_), Err(_)) => false,
        };
        if better {
            best = Some(own);
        }
    }
    best.unwrap_or_else(|| Err(PlanRefusal::Fault(no_rate())))
}

/// Returns the result of `deploy` for a chip at the clock, in whole MHz, at which its rate is highest.
///
/// Consider the highest clock at which the limit on power does not lower the rate. Below it, the rate falls with the
/// clock. Above it, the rate falls because a request takes more energy. So this clock, the next one and the full clock
/// are compared.
///
/// # Errors
/// The refusal of `deploy` at the full clock.
pub(crate) fn deploy_within_power<T>(
    question: &ServingQuestion<'_>,
    chip: &Accelerator,
    deploy: impl Fn(&Accelerator, PowerRule) -> Result<AtClock<T>, PlanRefusal>,
) -> Result<T, PlanRefusal> {
    let first = PowerRule::of_chip(question, chip);
    let mut full = deploy(chip, first);
    let rule = full.as_ref().map_or(first, |full| first.of_plan(question, chip, full.power));
    if rule != first {
        full = deploy(chip, rule);
    }
    match &full {
        Ok(AtClock { end: RateEnd::Power, .. }) | Err(PlanRefusal::TooHot { .. }) => {}
        _ => return full.map(|at| at.deployed),
    }
    let at = |clock: Hertz| deploy(&lower_clock(chip, clock), rule);
    // A clock that misses the service level lies below all clocks that meet it. It counts as within the power limit.
    let is_cool = |clock: Hertz| match at(clock) {
        Ok(at) => at.end != RateEnd::Power,
        Err(refusal) => !matches!(refusal, PlanRefusal::TooHot { .. }),
    };
    let cool = highest_clock_where(chip.clock, lowest_clock(chip), is_cool);
    let next = cool.map_or(lowest_clock(chip), |clock| Hertz((clock.0 + 1e6).min(chip.clock.0)));
    let others = cool.into_iter().chain([next]).filter_map(|clock| at(clock).ok());
    let best = others.fold(None, |best: Option<AtClock<T>>, own| match best {
        Some(best) if best.rate >= own.rate => Some(best),
        _ => Some(own),
    });
    match (best, full) {
        (Some(best), Ok(full)) => Ok(if full.rate > best.rate { full } else { best }.deployed),
        (Some(best), Err(_)) => Ok(best.deployed),
        (None, full) => full.map(|at| at.deployed),
    }
}

pub(crate) fn no_rate() -> ServingError {
    ServingError::Hardware("the replica serves no request in finite time".to_owned())
}

pub(crate) fn prompt_time(times: &mut PassTimes<'_>, input: u64) -> Result<Seconds, ServingError> {
    Ok(time_of_prompts(times, 1, input.max(1))?.total())
}
