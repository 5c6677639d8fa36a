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

use crate::costs::{IterationCosts, RequestCost};
use serde::{Deserialize, Serialize};
use sim::units::Seconds;

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
