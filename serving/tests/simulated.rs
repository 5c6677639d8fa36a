//! The steady state in closed form against a simulation of iterations one after the other.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::print_stdout, missing_docs)]

use coplace_serving::costs::{IterationCosts, PromptPool, RequestCost};
use coplace_serving::in_flight::closed_loop_apart;
use coplace_serving::method::{Drafter, Speculation};
use coplace_serving::steady::under_arrivals;
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// SplitMix64 (Steele, Lea and Flood 2014).
struct Random(u64);

impl Random {
    fn uniform(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1u64 << 53) as f64
    }

    fn exponential(&mut self, rate: f64) -> f64 {
        -(1.0 - self.uniform()).ln() / rate
    }

    fn request(&mut self, costs: &IterationCosts) -> RequestCost {
        let mut left = self.uniform();
        for request in &costs.requests {
            left -= request.share;
            if left < 0.0 {
                return *request;
            }
        }
        *costs.requests.last().unwrap()
    }
}

/// Draws the number of iterations in which a request decodes. With drafts, an iteration gains the accepted drafts and
/// one more token.
fn iterations(random: &mut Random, steps: u64, drafts: Option<(u32, f64)>) -> u64 {
    let Some((drafted, chance)) = drafts else { return steps };
    let (mut gained, mut count) = (0, 0);
    while gained < steps {
        gained += 1 + (0..drafted).take_while(|_| random.uniform() < chance).count() as u64;
        count += 1;
    }
    count
}

/// Returns the mean times to the first token and between tokens of `requests` requests, after a tenth of them.
///
/// Prompts first: a waiting prompt with a place has an iteration of its own. Mixed: waiting prompts with a place fill
/// the next iteration in order of arrival, and the last of them may enter only in part. They lengthen the iteration by
/// their times. In addition, a first token waits for `alone` less `prompt` seconds.
fn simulate(
    costs: &IterationCosts,
    rate: f64,
    (requests, drafts): (usize, Option<(u32, f64)>),
    seed: u64,
) -> (f64, f64) {
    let mut random = Random(seed);
    let most = costs.most_sequences as usize;
    let (mut now, mut iteration, mut sent) = (0.0, 0u64, 0);
    let mut next = (random.exponential(rate), random.request(costs));
    // Waiting requests: time of arrival, costs, and the part of the prompt that is left.
    let mut waiting: VecDeque<(f64, RequestCost, f64)> = VecDeque::new();
    // Decoding requests: the iteration of the last token, the index in `first_at`, and the number of tokens.
    let mut decoding: BinaryHeap<Reverse<(u64, usize, u64)>> = BinaryHeap::new();
    let mut first_at: Vec<f64> = Vec::with_capacity(requests);
    let (mut first, mut between, mut ended) = (0.0, 0.0, 0usize);
    let warm = requests / 10;
    while first_at.len() < requests || !decoding.is_empty() {
        while sent < requests && next.0 <= now {
            waiting.push_back((next.0, next.1, 1.0));
            sent += 1;
            next = (next.0 + random.exponential(rate), random.request(costs));
        }
        if waiting.is_empty() && decoding.is_empty() {
            now = next.0;
            continue;
        }
        let (mut taken, mut prompts, mut room) = (Vec::new(), 0.0, 1.0);
        while let Some((_, request, left)) = waiting.front_mut()
            && decoding.len() + taken.len() < most
            && room > 1e-9
        {
            let fills = if costs.mixed { request.filled_iterations } else { 1.0 };
            let part = left.min(room / fills);
            prompts += request.prompt * part;
            *left -= part;
            room -= fills * part;
            taken.extend((*left < 1e-9).then(|| waiting.pop_front().unwrap()));
        }
        let decodes = !decoding.is_empty() && (costs.mixed || prompts == 0.0);
        now += prompts + if decodes { costs.decode_time(decoding.len() as f64) } else { 0.0 };
        if decodes {
            iteration += 1;
        }
        while let Some(Reverse((_, index, steps))) = decoding.peek().filter(|Reverse((last, ..))| *last <= iteration) {
            if *index >= warm {
                between += (now - first_at[*index]) / *steps as f64;
                ended += 1;
            }
            decoding.pop();
        }
        for (arrived, request, _) in taken {
            let last = iteration + iterations(&mut random, request.steps, drafts);
            decoding.push(Reverse((last, first_at.len(), request.steps)));
            if first_at.len() >= warm {
                first += now - arrived + request.alone - request.prompt;
            }
            first_at.push(now);
        }
    }
    (first / ended as f64, between / ended as f64)
}

fn costs(decode: impl Fn(f64) -> f64, most: u64, requests: &[RequestCost], mixed: bool) -> IterationCosts {
    let mut points: Vec<u64> = (0..).map(|i| 1 << i).take_while(|n| *n < most).collect();
    points.push(most);
    let decode = points.into_iter().map(|n| (n, decode(n as f64))).collect();
    IterationCosts { decode, most_sequences: most, requests: requests.to_vec(), mixed }
}

fn request(share: f64, prompt: f64, alone: f64, steps: u64) -> RequestCost {
    // An iteration holds sixteen such prompts.
    let (prompt_iterations, filled_iterations) = (1.0, 1.0 / 16.0);
    RequestCost { share, prompt, alone, steps, iterations: steps as f64, prompt_iterations, filled_iterations }
}

/// Returns the requests with prompts that fill `filled` iterations.
fn filling(filled: f64, requests: &[RequestCost]) -> Vec<RequestCost> {
    let (prompt_iterations, filled_iterations) = (filled.ceil().max(1.0), filled);
    requests.iter().map(|r| RequestCost { prompt_iterations, filled_iterations, ..*r }).collect()
}

fn alike() -> Vec<RequestCost> {
    vec![request(1.0, 0.030, 0.035, 60)]
}

/// Returns requests whose prompts and answers differ by a factor of about seven.
fn various() -> Vec<RequestCost> {
    vec![request(0.5, 0.02, 0.022, 30), request(0.4, 0.06, 0.065, 80), request(0.1, 0.15, 0.16, 200)]
}

fn short_prompts() -> Vec<RequestCost> {
    vec![request(1.0, 0.002, 0.012, 100)]
}

/// Checks loads of 50, 70 and 90 %. The limits are relative errors of the first token and between tokens.
fn check(name: &str, decode: impl Fn(f64) -> f64 + Copy, most: u64, requests: &[RequestCost], limits: [(f64, f64); 3]) {
    let mut missed = Vec::new();
    for mixed in [false, true] {
        missed.extend(misses(name, &costs(decode, most, requests, mixed), MANY, limits));
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

/// Number of simulated requests with which errors of 5 % at 90 % load can be told if places bind.
const MANY: usize = 1_500_000;
/// Number of simulated requests with which errors of 20 % can be told.
const SEVERAL: usize = 300_000;

/// Returns the loads at which an error is beyond its limit.
fn misses(name: &str, costs: &IterationCosts, requests: usize, limits: [(f64, f64); 3]) -> Vec<String> {
    let of = |(load, (first_limit, between_limit)): (f64, (f64, f64))| {
        let rate = load * costs.saturation();
        let (first, between) = simulate(costs, rate, (requests, None), 7);
        let state = under_arrivals(costs, rate).unwrap();
        let first = state.time_to_first_token.0 / first - 1.0;
        let between = state.time_per_output_token.0 / between - 1.0;
        let what = format!("{name}, mixed {}, load {load}: first {first:+.3}, between {between:+.3}", costs.mixed);
        println!("{what}");
        (!(first.abs() < first_limit && between.abs() < between_limit)).then_some(what)
    };
    [0.5, 0.7, 0.9].into_iter().zip(limits).filter_map(of).collect()
}

/// Limits while places do not bind.
const WITHIN_FIVE_PERCENT: [(f64, f64); 3] = [(0.05, 0.05); 3];
/// Limits where prompts fill whole iterations or take seconds. At 90 % load, the predicted wait of prompts that find
/// little room is off by a sixth.
const WITHIN_TWENTY_AT_MOST_LOAD: [(f64, f64); 3] = [(0.05, 0.05), (0.05, 0.05), (0.20, 0.05)];
/// Limits where places bind, and for one case in which they seldom do. At 90 % load, the predicted wait for a place is
/// off by more than 5 %.
const WITHIN_TEN_AT_MOST_LOAD: [(f64, f64); 3] = [(0.05, 0.05), (0.05, 0.05), (0.10, 0.05)];

#[test]
fn iterations_whose_time_is_affine() {
    let decode = |n: f64| 0.010 + 0.0001 * n;
    check("affine, alike", decode, 256, &alike(), WITHIN_FIVE_PERCENT);
    check("affine, various", decode, 256, &various(), WITHIN_FIVE_PERCENT);
    check("affine, short prompts", decode, 256, &short_prompts(), WITHIN_FIVE_PERCENT);
}

#[test]
fn iterations_whose_time_is_concave() {
    let decode = |n: f64| 0.008 + 0.001 * n.powf(0.6);
    check("concave, alike", decode, 256, &alike(), WITHIN_TEN_AT_MOST_LOAD);
    check("concave, various", decode, 256, &various(), WITHIN_FIVE_PERCENT);
    check("concave, short prompts", decode, 256, &short_prompts(), WITHIN_FIVE_PERCENT);
}

/// At 90 % load, requests wait for a place more than half of the time.
#[test]
fn places_that_bind() {
    let decode = |n: f64| 0.010 + 0.0002 * n;
    check("twelve places, alike", decode, 12, &alike(), WITHIN_TEN_AT_MOST_LOAD);
    check("twelve places, various", decode, 12, &various(), WITHIN_TEN_AT_MOST_LOAD);
    check("twelve places, short prompts", decode, 12, &short_prompts(), WITHIN_TEN_AT_MOST_LOAD);
    check("64 places, short prompts", |_| 0.012, 64, &short_prompts(), WITHIN_TEN_AT_MOST_LOAD);
}

/// Prompts take two thirds of the time, and the groups in which they come fill the places.
#[test]
fn prompts_that_take_most_of_the_time() {
    check("64 places, long prompts", |_| 0.012, 64, &various(), WITHIN_TEN_AT_MOST_LOAD);
}

/// Prompts of 131,072 tokens of deepseek-r1 on eight H200, in products of fp8: four places, and prompts take nearly all
/// of the time. A mixed iteration holds 8,192 tokens.
#[test]
fn four_places_and_prompts_of_seconds() {
    for steps in [15, 63, 255, 1023] {
        let decode = |n: f64| 0.0059 + 0.00272 * n;
        let requests = filling(16.0, &[request(1.0, 12.63, 12.63, steps)]);
        let of =
            |mixed| misses("four places", &costs(decode, 4, &requests, mixed), SEVERAL, WITHIN_TWENTY_AT_MOST_LOAD);
        let missed = [of(false), of(true)].concat();
        assert!(missed.is_empty(), "{missed:#?}");
    }
}

/// Mixed iterations hold few prompts, or a part of one, so prompts bound the number of sequences that decode. A prompt
/// fills a half, one, two or four iterations, and eight times as many if it takes seconds.
#[test]
fn prompts_that_fill_iterations() {
    let affine = |n: f64| 0.010 + 0.0001 * n;
    let seconds = vec![request(1.0, 2.0, 2.0, 400)];
    let mut missed = Vec::new();
    for filled in [0.5, 1.0, 2.0, 4.0] {
        for (name, most, requests) in [
            ("alike", 256, alike()),
            ("various", 256, various()),
            ("12 places, various", 12, various()),
            ("64 places, various", 64, various()),
        ] {
            let costs = costs(affine, most, &filling(filled, &requests), true);
            missed.extend(misses(&format!("{name}, {filled} iterations"), &costs, SEVERAL, WITHIN_TWENTY_AT_MOST_LOAD));
        }
        let costs = costs(affine, 256, &filling(filled * 8.0, &seconds), true);
        missed.extend(misses(
            &format!("seconds, {} iterations", filled * 8.0),
            &costs,
            SEVERAL,
            WITHIN_TWENTY_AT_MOST_LOAD,
        ));
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

/// No more sequences decode than there are places, whatever the costs.
#[test]
fn sequences_that_decode_have_places() {
    for seed in 1..400u64 {
        let at = |salt: u64| (seed.wrapping_mul(2_654_435_761).wrapping_add(salt * 40_503) % 1000) as f64 / 1000.0;
        let most = 1 + (at(1) * 40.0) as u64;
        let prompt = 0.001 * 10f64.powf(4.0 * at(2));
        let requests = [request(1.0, prompt, prompt, 2 + (at(3) * 500.0) as u64)];
        let decode = |n: f64| 0.005 + 0.003 * at(4) * n;
        let costs = costs(decode, most, &requests, seed % 2 == 0);
        for load in [0.3, 0.6, 0.9, 0.97] {
            let state = under_arrivals(&costs, load * costs.saturation()).unwrap();
            assert!(
                state.decoding <= most as f64 * (1.0 + 1e-9),
                "{} of {most} at {load}, seed {seed}",
                state.decoding
            );
        }
    }
}

/// Each of four drafts is accepted with a probability of 75 %. Answers then take a third of the iterations, and
/// slightly more if the last iteration gains more tokens than are left. The number of iterations varies from request to
/// request.
fn check_with_drafts(requests: &[RequestCost], limits: [(f64, f64); 3]) {
    let (drafted, chance) = (4u32, 0.75f64);
    let accepted = (1..=4).map(|i| chance.powi(i)).sum();
    let speculation = Speculation::new(drafted, accepted, Drafter::Lookup).unwrap();
    let passes = |request: &RequestCost| RequestCost { iterations: speculation.passes_for(request.steps), ..*request };
    let requests: Vec<RequestCost> = requests.iter().map(passes).collect();
    let mut missed = Vec::new();
    for mixed in [false, true] {
        let costs = costs(|n| 0.014 + 0.0003 * n, 256, &requests, mixed);
        for (load, (first_limit, between_limit)) in [0.5, 0.7, 0.9].into_iter().zip(limits) {
            let rate = load * costs.saturation();
            let (first, between) = simulate(&costs, rate, (1_500_000, Some((drafted, chance))), 7);
            let state = under_arrivals(&costs, rate).unwrap();
            // Little's law: sequences that decode are requests by the time that each decodes.
            let steps: f64 = costs.requests.iter().map(|r| r.share * r.steps as f64).sum();
            assert!((state.decoding - rate * steps * state.time_per_output_token.0).abs() < 1e-9);
            let first = state.time_to_first_token.0 / first - 1.0;
            let between = state.time_per_output_token.0 / between - 1.0;
            let what = format!("drafts, mixed {mixed}, load {load}: first {first:+.3}, between {between:+.3}");
            println!("{what}");
            if !(first.abs() < first_limit && between.abs() < between_limit) {
                missed.push(what);
            }
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}

#[test]
fn drafts_that_iterations_verify() {
    let longer = |request: RequestCost| RequestCost { steps: request.steps * 4, ..request };
    check_with_drafts(&alike().into_iter().map(longer).collect::<Vec<_>>(), WITHIN_FIVE_PERCENT);
    check_with_drafts(&various().into_iter().map(longer).collect::<Vec<_>>(), WITHIN_FIVE_PERCENT);
    // Answers of 10 to 60 iterations beside prompts of 20 to 150 ms. Without drafts, answers of as many iterations have
    // similar errors.
    check_with_drafts(&various(), [(0.05, 0.05), (0.05, 0.07), (0.05, 0.10)]);
}

#[test]
fn no_state_beyond_saturation_and_little_s_law_below() {
    for mixed in [false, true] {
        let costs = costs(|n| 0.010 + 0.0001 * n, 256, &various(), mixed);
        assert!(under_arrivals(&costs, costs.saturation() * 1.001).is_none());
        assert!(under_arrivals(&costs, 0.0).is_none() && under_arrivals(&costs, f64::NAN).is_none());
        let mut last = (0.0, 0.0);
        for load in 1..100 {
            let rate = costs.saturation() * f64::from(load) / 100.0;
            let state = under_arrivals(&costs, rate).unwrap();
            let steps: f64 = costs.requests.iter().map(|r| r.share * r.steps as f64).sum();
            assert!((state.decoding - rate * steps * state.time_per_output_token.0).abs() < 1e-9);
            let now = (state.time_to_first_token.0, state.time_per_output_token.0);
            assert!(now.0 >= last.0 && now.1 >= last.1, "load {load} %: {now:?} after {last:?}");
            last = now;
        }
        // A single request at a time has the times of one alone.
        let idle = under_arrivals(&costs, costs.saturation() * 1e-6).unwrap();
        assert!((idle.time_per_output_token.0 / costs.decode_time(1.0) - 1.0).abs() < 1e-3);
    }
}

/// Prompts of one second before sequences of 5,000 steps: a prefilling worker and its decoding replica are nearly
/// balanced, so each round of the iteration brings the state only a little nearer. It must stop where requests find the
/// state that they leave.
#[test]
fn pools_that_are_nearly_balanced_reach_their_steady_state() {
    let requests = [request(1.0, 0.0, 0.0, 5_000)];
    let costs = costs(|n| 0.018 + n * 1e-6, 100, &requests, false);
    let pool = PromptPool { workers: 1, prompt: 1.0, alone: 1.0 };
    for concurrency in [80_u64, 90, 100, 110] {
        let state = closed_loop_apart(&pool, &costs, 1, concurrency);
        let (count, first) = (concurrency as f64, state.time_to_first_token.0);
        let others = (count - 1.0) / count;
        let busy = state.requests_per_second.min(1.0);
        let found = (state.requests_per_second * first).max(busy) * others;
        let again = 1.0 + found - busy * others / 2.0;
        assert!((first / again - 1.0).abs() < 1e-6, "{concurrency}: {first} s, found by the next {again} s");
    }
}
