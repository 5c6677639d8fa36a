//! The steady state while a load generator keeps a fixed number of requests in flight. An iteration solves for the mean
//! cycle of a request.

use crate::costs::{IterationCosts, PromptPool};
use crate::steady::SteadyState;
use sim::units::Seconds;

/// Rounds of the iteration that solves for a cycle's time in one pool. A round roughly halves the error.
const ROUNDS: u32 = 60;

/// Most rounds with separate pools. A round removes only a few percent of the error if both pools are nearly balanced,
/// so the iteration goes on until a round changes nothing by more than [`CONVERGED`].
const MOST_ROUNDS: u32 = 5_000;

/// Relative change of a round that counts as none.
const CONVERGED: f64 = 1e-12;

/// Returns the steady state while `concurrency` requests are in flight. Each finished request is followed by a new one.
///
/// An engine that prefills waiting prompts first decodes all sequences in step. Sequences of equal length end together,
/// and their successors' prompts follow each other, `together` at a time. In mixed iterations, requests spread out, and
/// a prompt waits only for those that happen to coincide.
#[must_use]
pub fn closed_loop(costs: &IterationCosts, concurrency: u64, together: u64) -> SteadyState {
    let running = concurrency.min(costs.places() as u64).max(1);
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
            // All work of a cycle: the decoding of all sequences, and all prompts.
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

/// Returns the mean time to the first token of `concurrency` requests that arrive at once at an idle replica, like a
/// load generator's first ones. Prompts are prefilled `together` at a time, without decoding beside them.
#[must_use]
pub fn first_burst(costs: &IterationCosts, concurrency: u64, together: u64) -> Seconds {
    let running = concurrency.min(costs.most_sequences).max(1);
    let together = together.clamp(1, running);
    Seconds(costs.mean(|r| r.prompt) * (running + together) as f64 / 2.0)
}

/// Returns the steady state while `concurrency` requests are in flight over separate pools: `prompts`, and `decoders`
/// replicas that decode at `costs`. The transfer of the cache takes no time.
///
/// A request that arrives at a prefilling worker finds the prompts that the other requests have left there, and half of
/// the prompt in progress (mean value analysis, Reiser and Lavenberg 1980, with Schweitzer's approximation). A sequence
/// without a place in a decoding replica waits for one after its first token.
#[must_use]
pub fn closed_loop_apart(prompts: &PromptPool, costs: &IterationCosts, decoders: u32, concurrency: u64) -> SteadyState {
    let (workers, decoders) = (f64::from(prompts.workers.max(1)), f64::from(decoders.max(1)));
    let (count, most) = (concurrency.max(1) as f64, costs.most_sequences as f64);
    let steps = costs.mean(|r| r.iterations);
    let others = (count - 1.0) / count;
    let (mut first, mut between, mut decoding) = (prompts.alone, costs.decode_time(1.0), 1.0);
    for _ in 0..MOST_ROUNDS {
        let before = [first, between];
        let rate = count / (first + steps * between);
        let busy = (rate * prompts.prompt / workers).min(1.0);
        let found = (rate * (first - prompts.alone + prompts.prompt) / workers).max(busy) * others;
        let placed = (rate * steps * between / decoders).max(1.0);
        let next_between = costs.decode_time(placed.min(most)) * (placed / most).max(1.0);
        first = f64::midpoint(first, prompts.alone + prompts.prompt * (found - busy * others / 2.0));
        between = f64::midpoint(between, next_between);
        decoding = placed.min(most);
        if before.iter().zip([first, between]).all(|(old, new)| (new - old).abs() <= CONVERGED * new) {
            break;
        }
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
