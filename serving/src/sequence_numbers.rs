//! The distribution of the number of decoding sequences, and the requests that wait for a place.

use crate::costs::{IterationCosts, RequestCost};
use crate::prompt_groups::PromptGroups;

/// The distribution of the number of decoding sequences over time.
pub(crate) struct SequenceNumbers {
    /// Fraction of the time with all places taken, including prompts that follow a sequence that leaves.
    pub(crate) full: f64,
    /// Mean number of sequences that decode.
    pub(crate) decoding: f64,
    /// Mean number of sequences that decode, during prompts.
    pub(crate) beside_prompts: f64,
    /// Mean number of requests that wait while all places decode, times the fraction of that time.
    pub(crate) waiting: f64,
    /// Fraction of the time with free places, between prompts. The next two fields refer to this time.
    pub(crate) partly: f64,
    /// Mean seconds of the iteration in progress.
    pub(crate) iteration: f64,
    /// Fraction of that time without decoding sequences.
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
        // In mixed iterations, prompts are assumed to follow sequences that leave one by one.
        let in_step = if costs.mixed { 1.0 } else { full.in_step };
        let followed = ended - full.periods;
        // Sequences beside a prompt, summed over prompts: those that decoded before its group, and those of its group.
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

/// States with free places, between prompts. All sums are in the unit of the weights.
struct PartlyTaken {
    /// The time with 0, 1, ... sequences.
    weights: Vec<f64>,
    /// True if the weights end before all places are taken.
    ends: bool,
    /// Sum of the weights.
    time: f64,
    /// Sum of the weights times the number of sequences.
    numbers: f64,
    /// Sum of the weights times the seconds of an iteration.
    iteration: f64,
    /// Sum of the weights times the number of sequences, times the fraction by which the replica is slower than with
    /// all places taken.
    slow: f64,
    /// Number of sequences that decoded before a prompt's group joined, summed over the prompts that add a sequence.
    before: f64,
    /// Number of sequences of a prompt's own group that joined before it, summed over the prompts that add a sequence.
    joined: f64,
}

/// Weights are left out below this fraction of their sum, if they fall by half or more from one to the next.
const NEGLIGIBLE: f64 = 1e-14;

impl PartlyTaken {
    /// Returns the states under `rate` requests per second. Sequences leave at the rate n / (L D(n)), and groups join
    /// at `rate`. Over every number of sequences, as many groups pass upwards as sequences pass downwards.
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
        // Sums over groups with more members than `groups.more` covers: of the weights, and of the weights times the
        // number of sequences before the group joins.
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
    /// Mean work of a request.
    request: f64,
    /// Mean work of an answer.
    decoding: f64,
    /// Mean remaining work of an answer, at a random time at which it decodes.
    residual: f64,
    /// Mean square of a request's work.
    square: f64,
    /// Mean of a prompt's time, times the work that its request has left during it.
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

    /// Returns the mean number of requests whose work has not begun.
    ///
    /// Work is conserved. In the mean, the square of the work V neither grows nor falls. Requests of work S add `rate`
    /// (E(S^2) + 2 E(S) E(V)) to V^2 per second. The replica takes 2 E(V r) from it at speed r, which is 1 unless
    /// places are free. `slow` is E(V (1 - r)), and `unfinished` is the part of V in sequences that decode.
    fn waiting(&self, rate: f64, slow: f64, unfinished: f64) -> f64 {
        let all = (rate * self.square / 2.0 + slow) / (1.0 - rate * self.request);
        (all - rate * self.in_prompt - unfinished) / self.request
    }
}

/// Periods with all places taken. In each, a sequence leaves and the prompt of a waiting request follows, until no
/// request waits.
#[derive(Default)]
struct FullPlaces {
    /// Periods per second, in the unit of the weights.
    periods: f64,
    /// Mean number of sequences that leave in a period.
    leave: f64,
    /// Number of requests that wait while all places decode, times the time of a period for which they wait.
    waiting: f64,
    /// Mean number of sequences that leave together with a sequence, itself included.
    in_step: f64,
}

impl FullPlaces {
    /// Returns the periods with all places taken. A group that starts with j sequences fills the B places after B - j
    /// prompts, if it has as many. The requests that then wait have the mean and second moment of a random walk that
    /// stops at zero: each prompt takes one request, and those that arrive meanwhile are added. While places are full,
    /// the walk goes on. Each step has a sequence that leaves and a prompt.
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
        // Sequences that have just joined leave only after a whole answer. So the first to leave decoded before the
        // group joined, and the gap before it leaves is longer than the others.
        let iterations_of_gap = costs.held_iterations() / costs.places();
        let whole = costs.mean(|r| f64::from(u8::from(r.iterations > iterations_of_gap)));
        let first_gap = gap * (1.0 + whole * (longer / filled - 1.0));
        let meanwhile = rate * first_gap;
        // Mean and second moment of the number of requests that wait when the first sequence leaves. The first gap is
        // assumed to have the same relative second moment as any other.
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

    /// Returns the number of places of its own group that are already refilled when a prompt starts: the mean over the
    /// prompts of a period. A group is `in_step` sequences that leave together. The number of sequences that leave in a
    /// period is assumed to be geometrically distributed, so its last group may be smaller.
    fn refilled_before(&self, in_step: f64) -> f64 {
        let another = 1.0 - 1.0 / self.leave.max(1.0);
        let all = another.powf(in_step);
        // Periods nearly never end: the limit of the formula below.
        if all > 1.0 - 1e-9 {
            return (in_step - 1.0) / 2.0;
        }
        (another / (1.0 - another) - in_step * all / (1.0 - all)).max(0.0)
    }
}

/// Returns the relative excess of the wait for places held for fixed times over half the wait for places held for
/// random times: Cosmetatos's correction of M/D/c.
fn cosmetatos(load: f64, places: f64) -> f64 {
    (1.0 - load) * (places - 1.0) * ((4.0 + 5.0 * places).sqrt() - 2.0) / (16.0 * load * places)
}

/// Returns the factor on the wait by work: Cosmetatos's correction for fixed times, weighted by the part of a request's
/// work that its place takes.
fn evenness(costs: &IterationCosts, rate: f64) -> f64 {
    let (decoding, places) = (costs.time_per_place(), costs.places());
    let fixed = (1.0 - spread_of_answers(costs)).max(0.0);
    1.0 + cosmetatos(rate / costs.saturation(), places) * decoding * costs.saturation() * fixed
}

/// Returns two squared coefficients of variation while all places are taken: of the time between two prompts, and of
/// the part of it in which sequences decode.
///
/// The first of the sequences that leave together has the whole gap before it. The others have none.
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
    // Fixed times of many places even out in the long run. Random times do not.
    let random = steps_spread.min(1.0);
    let lasting = random + (1.0 - random) * (1.0 - load);
    (of(varied, part) + part * part * (in_step - 1.0) * lasting, of(steps_spread, 1.0) + in_step - 1.0)
}

/// Returns the squared coefficient of variation of the iterations for which a sequence has its place.
fn spread_of_answers(costs: &IterationCosts) -> f64 {
    let (mean, held) = (costs.mean_iterations(), costs.held_iterations());
    costs.mean(|r| (r.iterations - mean) * (r.iterations - mean)) / (held * held)
}

/// Returns the probability that two sequences of a group leave together, because they have equally many iterations to
/// go. With drafts, that number is random, so the probability is zero.
fn chance_in_step(costs: &IterationCosts) -> f64 {
    let fixed = |request: &RequestCost| (request.iterations - request.steps as f64).abs() < 1e-9;
    let alike = |own: &RequestCost| costs.mean(|other| f64::from(u8::from(other.steps == own.steps)));
    costs.mean(|request| if fixed(request) { alike(request) } else { 0.0 })
}
