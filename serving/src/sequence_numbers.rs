//! The distribution of the number of decoding sequences, and the requests that wait for a place.

use crate::costs::{IterationCosts, RequestCost};
use crate::prompt_groups::PromptGroups;

/// The number of decoding sequences, over all of the time.
pub(crate) struct SequenceNumbers {
    /// Fraction of the time with all places taken, prompts that follow a sequence that leaves included.
    pub(crate) full: f64,
    /// Mean sequences that decode.
    pub(crate) decoding: f64,
    /// Mean sequences that decode, during prompts.
    pub(crate) beside_prompts: f64,
    /// Mean requests that wait while all places decode, times the fraction of that time.
    pub(crate) waiting: f64,
    /// With places left, between prompts: the fraction of the time,
    pub(crate) partly: f64,
    /// the mean time of the iteration in progress,
    pub(crate) iteration: f64,
    /// and the fraction of that time without any.
    pub(crate) idle: f64,
}

impl SequenceNumbers {
    /// Returns the numbers under `rate` requests per second.
    pub(crate) fn at_rate(costs: &IterationCosts, rate: f64, groups: &PromptGroups) -> Self {
        let partly = PartlyTaken::at_rate(costs, rate, groups);
        let full =
            if partly.ends { FullPlaces::default() } else { FullPlaces::after(costs, rate, groups, &partly.weights) };
        let (count, prompt) = (costs.places(), costs.mean(|r| r.prompt));
        let ended = full.periods * full.leave;
        let unit = (1.0 - groups.load) / (partly.time + ended * costs.time_per_place());
        // Prompts of an iteration that decodes are taken to follow sequences that leave one by one.
        let in_step = if costs.mixed { 1.0 } else { full.in_step };
        let followed = ended - full.periods;
        // Sequences beside a prompt, by prompts: those that decoded before its group, and its group's.
        let before = partly.before + followed * (count - in_step) + full.periods * (count - 1.0);
        let joined = partly.joined + followed * full.refilled_before(in_step);
        let decode = partly.numbers + ended * costs.time_per_place() * count;
        let work = Work::of(costs);
        let unfinished = unit * (work.residual * (decode + prompt * before) + work.decoding * prompt * joined);
        let by_work = work.waiting(rate, unit * work.residual * partly.slow, unfinished) * (1.0 - groups.load)
            - rate * groups.in_progress;
        let by_walk = unit * full.periods * full.waiting;
        Self {
            full: unit * (ended * (costs.time_per_place() + prompt) - full.periods * prompt),
            decoding: unit * (decode + prompt * (before + joined)),
            beside_prompts: unit * (before + joined) / rate,
            waiting: (by_work * evenness(costs, rate)).max(0.0).min(by_walk),
            partly: unit * partly.time,
            iteration: partly.iteration / partly.time,
            idle: partly.weights.first().map_or(0.0, |none| none / partly.time),
        }
    }
}

/// Numbers of sequences below that of all places, between prompts. All sums are in the unit of the weights.
struct PartlyTaken {
    /// The time with 0, 1, ... sequences.
    weights: Vec<f64>,
    /// True if the weights end before all places are taken.
    ends: bool,
    /// Sum of the weights,
    time: f64,
    /// times the sequences,
    numbers: f64,
    /// times the seconds of an iteration,
    iteration: f64,
    /// and times the sequences and the fraction by which all progress more slowly than with all places taken.
    slow: f64,
    /// Sequences that decoded before, summed over the prompts by which their number rises,
    before: f64,
    /// and those that have joined in the same group.
    joined: f64,
}

/// Weights below this fraction of their sum, and falling by half and more, are left out.
const NEGLIGIBLE: f64 = 1e-14;

impl PartlyTaken {
    /// Sequences leave at n / (L D(n)). Groups join at `rate`: over every number, as many pass up as down.
    fn at_rate(costs: &IterationCosts, rate: f64, groups: &PromptGroups) -> Self {
        let (most, iterations) = (costs.places() as u64, costs.mean(|r| r.iterations));
        let mut sums = Self {
            weights: vec![1.0],
            ends: false,
            time: 1.0,
            numbers: 0.0,
            iteration: 0.0,
            slow: 0.0,
            before: 0.0,
            joined: 0.0,
        };
        // Groups that began with more members than have their own probability: their rate, and by sequences before.
        let (mut farther, mut farther_before) = (0.0, 0.0);
        for n in 1..most {
            let time = costs.decode_time(n as f64);
            let speed = n as f64 / (iterations * time);
            let (mut up, mut before) = (0.0, 0.0);
            for ((at, weight), more) in sums.weights.iter().enumerate().rev().zip(&groups.more) {
                up += weight * more;
                before += weight * more * at as f64;
            }
            let at = (n as usize).checked_sub(groups.more.len() + 1);
            let (at, weight) = at.and_then(|at| Some((at, *sums.weights.get(at)?))).unwrap_or_default();
            farther = groups.further * farther + groups.beyond * weight;
            farther_before = groups.further * farther_before + groups.beyond * weight * at as f64;
            (up, before) = (rate * (up + farther), rate * (before + farther_before));
            let next = up / speed;
            if next < NEGLIGIBLE * sums.time && sums.weights.last().is_some_and(|last| next < last / 2.0) {
                sums.ends = true;
                break;
            }
            sums.weights.push(next);
            sums.time += next;
            sums.numbers += next * n as f64;
            sums.iteration += next * time;
            sums.slow += next * n as f64 * (1.0 - speed * costs.time_per_place()).max(0.0);
            sums.before += before;
            sums.joined += up * (n - 1) as f64 - before;
            if next > 1e200 {
                sums.scale(1e-200);
                farther *= 1e-200;
                farther_before *= 1e-200;
            }
        }
        sums
    }

    fn scale(&mut self, factor: f64) {
        let Self { weights, ends: _, time, numbers, iteration, slow, before, joined } = self;
        let sums = [time, numbers, iteration, slow, before, joined];
        weights.iter_mut().chain(sums).for_each(|sum| *sum *= factor);
    }
}

/// The work of a request, in seconds of a replica with all places taken.
struct Work {
    /// Mean of a request,
    request: f64,
    /// of its answer,
    decoding: f64,
    /// and of what is left of an answer at any time at which it decodes.
    residual: f64,
    /// Mean square of a request's,
    square: f64,
    /// and work that requests have left during their prompt, times the prompt.
    in_prompt: f64,
}

impl Work {
    fn of(costs: &IterationCosts) -> Self {
        let iteration = costs.time_per_place() / costs.held_iterations();
        let of = |r: &RequestCost| r.prompt + iteration * r.iterations;
        let iterations = costs.mean(|r| r.iterations);
        Self {
            request: costs.mean(of),
            decoding: iteration * iterations,
            residual: iteration * costs.mean(|r| r.iterations * r.iterations) / (2.0 * iterations),
            square: costs.mean(|r| of(r) * of(r)),
            in_prompt: costs.mean(|r| r.prompt * (r.prompt / 2.0 + iteration * r.iterations)),
        }
    }

    /// Returns the mean requests of which nothing is done.
    ///
    /// Work is conserved. Its square neither grows nor falls in the mean: requests of work S add `rate` (E(S^2) +
    /// 2 E(S) E(V)) to V^2 per second, and the replica takes 2 E(V r) from it at speed r, which is 1 but where places
    /// are left. `slow` is E(V (1 - r)), and `unfinished` the part of V in sequences that decode.
    fn waiting(&self, rate: f64, slow: f64, unfinished: f64) -> f64 {
        let all = (rate * self.square / 2.0 + slow) / (1.0 - rate * self.request);
        (all - rate * self.in_prompt - unfinished) / self.request
    }
}

/// Periods with all places taken: a sequence leaves, the prompt of one that waits follows, until none waits.
#[derive(Default)]
struct FullPlaces {
    /// Periods per second, in the unit of the weights.
    periods: f64,
    /// Sequences that leave in a period.
    leave: f64,
    /// Requests that wait while all places decode, times the time of a period that they wait.
    waiting: f64,
    /// Mean sequences that leave together with a sequence, itself included.
    in_step: f64,
}

impl FullPlaces {
    /// A group that starts with j sequences fills the places after B - j prompts, if it has as many. The requests that
    /// then wait have the mean and second moment of a random walk that stops at zero: each prompt takes one, and those
    /// that arrive meanwhile come to it. While places are full the walk goes on, with a sequence that leaves and a
    /// prompt per step.
    fn after(costs: &IterationCosts, rate: f64, groups: &PromptGroups, weights: &[f64]) -> Self {
        let (free, load) = (1.0 - groups.load, rate / costs.saturation());
        let step_variance = groups.varied + free * free;
        let [mut filled, mut found, mut squared, mut together, mut longer] = [0.0; 5];
        for (n, weight) in weights.iter().rev().enumerate() {
            let reached = groups.tails(n)[0];
            let [_, sum, sums] = groups.tails(n + 1);
            filled += weight * reached;
            let (joined, before) = ((n + 1) as f64, (weights.len() - n - 1) as f64);
            together += weight * reached * (joined * joined + before * before.min(groups.own)) / (joined + before);
            longer += weight * reached * (joined + before) / (before + 1.0);
            found += weight * free * sum;
            squared += weight * (2.0 * free * free * sums - step_variance * sum);
            if reached < NEGLIGIBLE {
                break;
            }
        }
        if filled <= 0.0 {
            return Self::default();
        }
        let (found, squared) = (found / filled, (squared / filled).max(found / filled));
        let in_step = 1.0 + (together / filled - 1.0) * chance_in_step(costs);
        let (spread_of_step, spread_of_gap) = spreads(costs, load, in_step);
        let gap = costs.time_per_place();
        let arriving = rate * gap;
        // Those that have joined leave after a whole answer: the first to leave is one of those that decoded before.
        let iterations_of_gap = costs.held_iterations() / costs.places();
        let whole = costs.mean(|r| f64::from(u8::from(r.iterations > iterations_of_gap)));
        let first_gap = gap * (1.0 + whole * (longer / filled - 1.0));
        let meanwhile = rate * first_gap;
        // Those that wait when a sequence leaves. The gap's second moment is that of any other.
        let moment = 1.0 + spread_of_gap;
        let first = found + meanwhile;
        let first_squared = squared + 2.0 * found * meanwhile + meanwhile + moment * meanwhile * meanwhile;
        let variance = load + load * load * spread_of_step + (1.0 - load) * (1.0 - load);
        let steps = first / (1.0 - load);
        let sum = (first_squared + variance * steps) / (2.0 * (1.0 - load));
        let later = gap * (sum - first - steps * arriving * (1.0 - spread_of_gap) / 2.0);
        Self {
            periods: rate * filled,
            leave: 1.0 + (found + arriving) / (1.0 - load),
            waiting: first_gap * (found + meanwhile * moment / 2.0) + later.max(0.0),
            in_step,
        }
    }

    /// Returns the mean places that are refilled before a prompt, of `in_step` that sequences have left together. Their
    /// number in a period is taken as geometric, so the last of them may be fewer.
    fn refilled_before(&self, in_step: f64) -> f64 {
        let another = 1.0 - 1.0 / self.leave.max(1.0);
        let all = another.powf(in_step);
        // Nearly no period ends.
        if all > 1.0 - 1e-9 {
            return (in_step - 1.0) / 2.0;
        }
        (another / (1.0 - another) - in_step * all / (1.0 - all)).max(0.0)
    }
}

/// Returns by how much places that are held for fixed times wait longer than half of those held for random times:
/// Cosmetatos's correction of M/D/c.
fn cosmetatos(load: f64, places: f64) -> f64 {
    (1.0 - load) * (places - 1.0) * ((4.0 + 5.0 * places).sqrt() - 2.0) / (16.0 * load * places)
}

/// Returns the factor of the wait by work: the correction of fixed times, for the part of a request that its place
/// takes.
fn evenness(costs: &IterationCosts, rate: f64) -> f64 {
    let (decoding, places) = (costs.time_per_place(), costs.places());
    let fixed = (1.0 - spread_of_answers(costs)).max(0.0);
    1.0 + cosmetatos(rate / costs.saturation(), places) * decoding * costs.saturation() * fixed
}

/// Returns the squared coefficients of variation of the time between two prompts while all places are taken, and of the
/// part of it in which they decode.
///
/// The first of the sequences that leave together has the whole pause before it, the others none.
fn spreads(costs: &IterationCosts, load: f64, in_step: f64) -> (f64, f64) {
    let (prompt, decoding) = (costs.mean(|r| r.prompt), costs.time_per_place());
    let service = prompt + decoding;
    let (iteration, iterations) = (decoding / costs.held_iterations(), costs.mean_iterations());
    let apart = |r: &RequestCost| r.prompt - prompt + iteration * (r.iterations - iterations);
    let varied = costs.mean(|r| apart(r) * apart(r)) / (service * service);
    let steps_spread = spread_of_answers(costs);
    let places = cosmetatos(load, costs.places());
    let of = |varied: f64, part: f64| {
        let fixed = (1.0 - varied).max(0.0) / 2.0 * (1.0 + places * part);
        let random = if varied < 1.0 { varied } else { f64::midpoint(1.0, varied) };
        (2.0 * (random + fixed) - 1.0).max(0.0)
    };
    let part = decoding / service;
    // Fixed times of many places are even in the long run; random ones are not.
    let random = steps_spread.min(1.0);
    let lasting = random + (1.0 - random) * (1.0 - load);
    (of(varied, part) + part * part * (in_step - 1.0) * lasting, of(steps_spread, 1.0) + in_step - 1.0)
}

/// Returns the squared coefficient of variation of the iterations for which a sequence has its place.
fn spread_of_answers(costs: &IterationCosts) -> f64 {
    let (mean, held) = (costs.mean_iterations(), costs.held_iterations());
    costs.mean(|r| (r.iterations - mean) * (r.iterations - mean)) / (held * held)
}

/// Returns the chance that two sequences of a group leave together: they have as many iterations to go. With drafts
/// that number is random.
fn chance_in_step(costs: &IterationCosts) -> f64 {
    let fixed = |request: &RequestCost| (request.iterations - request.steps as f64).abs() < 1e-9;
    let alike = |own: &RequestCost| costs.mean(|other| f64::from(u8::from(other.steps == own.steps)));
    costs.mean(|request| if fixed(request) { alike(request) } else { 0.0 })
}
