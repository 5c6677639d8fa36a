//! The steady state of continuous batching in closed form.
//!
//! A replica runs one iteration after the other. While no prompt waits, every decoding sequence gets a token per
//! iteration, which takes D(n) with n sequences. A prompt delays all of them by a time P, before or inside an
//! iteration.
//!
//! **Requests that arrive at random** (Poisson, r per second). Between prompts the decoding sequences share the replica
//! like a processor whose speed depends on their number: with L iterations each, they leave at n / (L D(n)). Such a
//! queue depends on the lengths only through their mean (symmetric queues: Kelly 1979, "Reversibility and stochastic
//! networks", section 3.3). Prompts come in busy periods, so sequences join in groups. Small groups have their exact
//! probabilities (Takacs 1962, "Introduction to the theory of queues", chapter 2), larger ones a geometric tail that
//! keeps the mean and second moment of a busy period of M/G/1 (Kleinrock 1975, "Queueing systems I", section 5.9). A
//! balance of flows over every number of sequences up to the B places then gives their distribution.
//!
//! **The wait for a place** has two estimates. Each is too long in a case of its own, so the shorter counts.
//! - *By work.* The work that waits, is in progress or is left in a sequence obeys a conservation law (Kleinrock 1976,
//!   "Queueing systems II", section 3.4). Its mean follows from the requests' squares and from the time in which the
//!   replica runs below its full speed. The work that is neither in prompts nor in sequences waits. This estimate is
//!   too long if few requests wait: sequences of a group are younger than others when their number is high.
//! - *By a random walk.* With all places taken, a sequence leaves after L D(B) / B, and the prompt of a waiting request
//!   follows, until none waits. The times between them vary like those of a queue with such a service, between the
//!   fixed and the random case (Cosmetatos 1975, INFOR 13), and more if sequences leave together. This estimate is too
//!   long if they do so again and again: equal answers that start together also leave together, at even intervals.
//!
//! Prompts are served in order of arrival, before decoding. Their wait is that of the higher class in a queue with two
//! priorities (Kleinrock 1976, section 3.6), with a decoding iteration as the work in progress. In mixed iterations,
//! prompts that arrive during one iteration join the next, and a sequence holds its place for one iteration more.
//!
//! **Drafts.** A sequence gains several tokens per iteration, so its answer takes fewer iterations L than it has
//! tokens.

use crate::costs::{IterationCosts, RequestCost};
use crate::prompt_groups::PromptGroups;
use crate::sequence_numbers::SequenceNumbers;
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
    /// Mean number of sequences that decode.
    pub decoding: f64,
    /// Fraction of the time that prompts take.
    pub prompt_fraction: f64,
    /// Requests per second relative to the rate at which the queue grows without end.
    pub load: f64,
}

/// Returns the steady state under `rate` requests per second that arrive at random; `None` if the replica cannot keep
/// up or the rate is not positive. In mixed iterations, a prompt's wait is the longer of two estimates: all waiting
/// prompts join the next iteration, or prompts run one after the other. Prompts that fill whole iterations use the
/// second one.
#[must_use]
pub fn under_arrivals(costs: &IterationCosts, rate: f64) -> Option<SteadyState> {
    let load = rate / costs.saturation();
    let groups = PromptGroups::at_rate(costs, rate);
    if load.is_nan() || load >= 1.0 || groups.load >= 1.0 || rate <= 0.0 {
        return None;
    }
    let numbers = SequenceNumbers::at_rate(costs, rate, &groups);
    let free = 1.0 - groups.load;
    let steps = costs.mean(|r| r.steps as f64);
    let (wait, beside, longest) = if costs.mixed {
        let beside = (1.0 - numbers.full) * numbers.iteration + numbers.full * costs.decode_time(costs.places());
        let for_place = match costs.is_bound_by_prompts() {
            true => 0.0,
            false => SequenceNumbers::at_rate(&costs.with_prompts_first(), rate, &groups).waiting / rate,
        };
        // Estimate for prompts that run one after the other, each with the decoding of the iterations that it fills.
        let filled = costs.mean(|r| r.filled_iterations);
        let decode = costs.decode_time(numbers.beside_prompts.max(1.0));
        let service = |r: &RequestCost| r.prompt + r.filled_iterations * decode * numbers.beside_prompts.min(1.0);
        let busy = rate * costs.mean(service);
        let one_by_one = rate * costs.mean(|r| service(r) * service(r)) / (2.0 * (1.0 - busy)) + beside / 2.0;
        // Estimate if all waiting prompts join the next iteration. A request is more likely to arrive in a long
        // iteration.
        let iteration =
            numbers.iteration / free + (1.0 - numbers.idle) * 2.0 * groups.in_progress / (free * (1.0 + groups.load));
        let found = iteration * (0.5 + groups.load) + numbers.idle * groups.in_progress;
        let together = (1.0 - numbers.full) * found + numbers.full * groups.in_progress / free;
        let wait = if filled < 1.0 { together.max(one_by_one) } else { one_by_one };
        // The longest mean time per iteration. With probability `busy` the replica has a prompt, and the prompt adds
        // its part of each iteration that it fills.
        let longest = decode + busy * costs.mean(|r| r.prompt) / filled;
        (wait + for_place / free, beside * costs.mean(|r| r.prompt_iterations), longest)
    } else {
        let busy = groups.in_progress + numbers.partly * numbers.iteration / 2.0 + numbers.waiting / rate;
        (busy / free, 0.0, f64::INFINITY)
    };
    let first = wait + costs.mean(|r| r.alone) + beside;
    let decoding = numbers.decoding.min(rate * costs.mean_iterations() * longest);
    Some(SteadyState {
        time_to_first_token: Seconds(first),
        time_per_output_token: Seconds(decoding / (rate * steps)),
        requests_per_second: rate,
        decoding,
        prompt_fraction: groups.load,
        load,
    })
}
