//! The deployments that serve most within a service level, with prompts and decoding on the same devices. Separate
//! pools are in [`crate::apart`].
//!
//! Every plan of the degrees is priced, without pruning by bounds. Within a plan, the time to the first token and the
//! time per output token rise with the rate of requests, so bisection finds the highest rate.

pub use crate::bounds::{DeviceBounds, bound_of_chip};
pub use crate::deployment::{Deployment, PlanRefusal, ReplicaPool, ServingAnswer, ServingBound};
pub use crate::loaded::MOST_LOAD;
pub use crate::question::{GivenDegrees, ServiceLevel, ServingHardware, ServingQuestion, enumerate_plans};

use crate::deployment::{DeploymentParts, deployment_of};
use crate::loaded::{
    AtClock, HighestRate, LEAST_RATE, LoadedPlan, PoolWork, PowerRule, RateEnd, best_of_settings, deploy_within_power,
    highest_rate, no_rate, prompt_time,
};
use crate::plan::ServingPlan;
use crate::steady::{SteadyState, under_arrivals};
use sim::hardware::Accelerator;
use sim::units::Seconds;

/// Returns the deployments with prompts and decoding on the same devices, most tokens per second first, and the
/// refusals.
#[must_use]
pub fn together(question: &ServingQuestion<'_>, hardware: ServingHardware<'_>) -> ServingAnswer {
    let mut answer = ServingAnswer::default();
    let plans = enumerate_plans(question, hardware.engine);
    answer.priced = plans.len() as u64;
    let settings = hardware.engine.settings();
    for plan in plans {
        let deploy = |engine| {
            let hardware = ServingHardware { engine, ..hardware };
            deploy_within_power(question, hardware.chip, |chip, power| {
                deploy_together(question, hardware, chip, power, plan)
            })
        };
        match best_of_settings(&settings, deploy, |deployment| deployment.tokens_per_second) {
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
    chip: &Accelerator,
    power: PowerRule,
    plan: ServingPlan,
) -> Result<AtClock<Deployment>, PlanRefusal> {
    let mut loaded = LoadedPlan::new(question, hardware, chip, power, plan).map_err(PlanRefusal::Fault)?;
    let (level, lengths) = (&question.level, &question.lengths);
    let state = |rate: f64| under_arrivals(&loaded.costs, rate);
    let work = |state: &SteadyState| PoolWork {
        rate: state.requests_per_second,
        decoding: Some(state.decoding),
        prefills: true,
    };
    let most = loaded.costs.saturation() * MOST_LOAD;
    let met = |rate: f64| {
        state(rate).is_some_and(|state| level.is_met(state.time_to_first_token, state.time_per_output_token))
    };
    let cool = |rate: f64| state(rate).is_some_and(|state| loaded.is_cool(work(&state)));
    let of_rate = |rate: f64| state(rate).ok_or_else(|| PlanRefusal::Fault(no_rate()));
    let (state, end) = match highest_rate(most, met, cool) {
        HighestRate::At(rate, end) => (of_rate(rate)?, end),
        HighestRate::TooHot => return Err(loaded.too_hot(work(&of_rate(most * LEAST_RATE)?))),
        HighestRate::TooSlow => {
            let idle = of_rate(most * LEAST_RATE)?;
            return Err(PlanRefusal::TooSlow {
                plan,
                time_to_first_token: idle.time_to_first_token,
                time_per_output_token: idle.time_per_output_token,
            });
        }
    };
    let rate = state.requests_per_second;
    let bound = bound_of_end(end, level, under_arrivals(&loaded.costs, rate * 1.0001));
    let replicas = question.devices / plan.devices();
    let pool = loaded.pool(replicas, work(&state));
    let power = pool.power;
    let finish = |loaded: &mut LoadedPlan<'_>| {
        let iteration = loaded.times.decode(state.decoding.max(1.0).round() as u64, loaded.context)?;
        let input = lengths.classes().iter().map(|class| class.share * class.input as f64).sum::<f64>();
        let prompt = prompt_time(&mut loaded.times, input.round() as u64)?;
        Ok((iteration, prompt))
    };
    let (iteration, prompt) = finish(&mut loaded).map_err(PlanRefusal::Fault)?;
    let deployed = deployment_of(DeploymentParts {
        decode: pool,
        prefill: None,
        state,
        iteration,
        prompt,
        transfer: Seconds::ZERO,
        requests: rate * f64::from(replicas),
        output: lengths.mean_output(),
        bound,
    });
    Ok(AtClock { deployed, rate, end, power })
}

/// Returns the limit at which the highest rate ends; `above` is the state at a rate just above it.
fn bound_of_end(end: RateEnd, level: &ServiceLevel, above: Option<SteadyState>) -> ServingBound {
    match (end, level.time_to_first_token, above) {
        (RateEnd::Load, ..) => ServingBound::Load,
        (RateEnd::Power, ..) => ServingBound::Power,
        (RateEnd::Level, Some(limit), Some(above)) if above.time_to_first_token > limit => {
            ServingBound::TimeToFirstToken
        }
        (RateEnd::Level, Some(_), None) => ServingBound::TimeToFirstToken,
        (RateEnd::Level, ..) => ServingBound::TimePerOutputToken,
    }
}
