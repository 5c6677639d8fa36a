//! How many of a stage's layers follow which policy: an integer programme over few policies, solved near its relaxation.
//!
//! Layers are alike, so that a mix is a count `n_j` for each policy `j`. With `d` micro-batches in flight the least `sum n_j time_j` is sought with
//! `d sum n_j kept_j + max working_j` within the room on the device and `d sum n_j host_j` within the host's. The largest working set takes few values:
//! for each as a cap the rest is a plain budget. Its relaxation mixes two neighbours `lo`, `hi` of the lower convex hull of (kept, time), whose slope is
//! the price of a byte. A layer under another policy costs its reduced cost more than the relaxation, so that of each no more are needed than the best
//! mix so far leaves room for: few, which are tried one by one, the rest of the layers on `lo` and `hi`. Where that ends, the mix is the best; where
//! [`STATES`] are used up before, what the relaxation leaves is the gap. The host's bytes have a price too, found by halving.

use super::offload::lower_hull;

/// A policy as a mix sees it: a layer of one micro-batch.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MixPoint {
    /// Bytes kept on the device.
    pub kept: u64,
    /// Bytes kept in the host's memory.
    pub host: u64,
    /// Bytes alive besides while one layer runs.
    pub working: u64,
    /// Seconds of both passes.
    pub time: f64,
}

/// A stage's question.
#[derive(Debug, Clone, Copy)]
pub struct MixQuestion<'a> {
    /// The policies.
    pub points: &'a [MixPoint],
    /// The stage's layers.
    pub layers: u64,
    /// Micro-batches in flight.
    pub depth: f64,
    /// Bytes on the device for what is kept of all of them and for the largest working set.
    pub room: u64,
    /// Bytes on the device for what is kept alone, where another moment leaves so many.
    pub kept: Option<u64>,
    /// Bytes in the host's memory.
    pub host: u64,
}

/// The best mix of a stage.
#[derive(Debug, Clone, PartialEq)]
pub struct StageMix {
    /// Layers by the policy's place, of those that are followed; what keeps least first.
    pub counts: Vec<(usize, u64)>,
    /// Seconds of both passes of all layers, one micro-batch.
    pub time: f64,
    /// No mix takes less.
    pub bound: f64,
}

/// Mixes that are looked at for one price and cap.
pub const STATES: usize = 20_000;

/// Halvings of the host's price.
const HALVINGS: usize = 12;

/// Mixes that are looked at for one of the host's prices, of which the relaxation is what counts.
const PRICED_STATES: usize = 50;

/// Changes of policies within a mix.
const EXCHANGES: usize = 24;

/// From what share of its time on a mix's distance from its bound is worth more work.
const WORTH: f64 = 1e-3;

/// What a policy's copies count at least, as a share of its time.
const TIE: f64 = 1e-12;

/// Differences in time below this share do not matter.
const TOLERANCE: f64 = 1e-9;

impl MixQuestion<'_> {
    /// The mix that takes least, if any fits.
    #[must_use]
    pub fn best(&self) -> Option<StageMix> {
        if self.layers == 0 {
            return Some(StageMix { counts: Vec::new(), time: 0.0, bound: 0.0 });
        }
        let mut caps: Vec<u64> = self.points.iter().map(|point| point.working).filter(|cap| *cap <= self.room).collect();
        caps.sort_unstable();
        caps.dedup();
        let mut best: Option<(StageMix, u64)> = None;
        let mut bound = f64::INFINITY;
        for cap in caps.into_iter().rev() {
            let (allowed, budget) = self.under(cap);
            let upper = best.as_ref().map_or(f64::INFINITY, |(best, _)| best.time);
            let Some(found) = self.within_host(&allowed, budget, upper) else { continue };
            bound = bound.min(found.bound);
            if found.time < upper {
                best = Some((found, cap));
            }
        }
        let (mut best, cap) = best?;
        if best.time - bound > WORTH * best.time {
            let (allowed, budget) = self.under(cap);
            best = self.exchanged(&allowed, (budget, self.host as f64 / self.depth), best);
        }
        Some(StageMix { bound: bound.min(best.time), ..best })
    }

    /// The policies whose working sets are no larger than a cap, and the bytes of one micro-batch that it leaves.
    fn under(&self, cap: u64) -> (Vec<usize>, f64) {
        let budget = (self.room - cap).min(self.kept.unwrap_or(u64::MAX));
        let allowed = (0..self.points.len()).filter(|j| self.points[*j].working <= cap).collect();
        (allowed, budget as f64 / self.depth)
    }

    /// The best mix of some of the policies that keeps `budget` bytes of one micro-batch at most, within the host's memory; no further than it takes to
    /// see that none is below `upper`.
    fn within_host(&self, allowed: &[usize], budget: f64, upper: f64) -> Option<StageMix> {
        let host = self.host as f64 / self.depth;
        let copied = |mix: &StageMix| mix.counts.iter().map(|(j, n)| self.points[*j].host as f64 * *n as f64).sum::<f64>();
        let first = self.at_price(allowed, budget, 0.0)?;
        if copied(&first) <= host {
            return Some(first);
        }
        if first.bound >= upper {
            return Some(StageMix { time: f64::INFINITY, ..first });
        }
        let without: Vec<usize> = allowed.iter().copied().filter(|j| self.points[*j].host == 0).collect();
        let mut bound = first.bound;
        let mut best = self.at_price(&without, budget, 0.0);
        // A price at which no policy is worth its bytes.
        let range = |of: fn(&MixPoint) -> f64| {
            let values = || allowed.iter().map(|j| of(&self.points[*j]));
            values().fold(f64::NEG_INFINITY, f64::max) - values().fold(f64::INFINITY, f64::min)
        };
        let least = allowed.iter().map(|j| self.points[*j].host).filter(|bytes| *bytes > 0).min().unwrap_or(1);
        let (mut low, mut high) = (0.0, range(|p| p.time) * self.layers as f64 / least as f64 + f64::MIN_POSITIVE);
        for _ in 0..HALVINGS {
            let price = 0.5 * (low + high);
            let Some(found) = self.at_price(allowed, budget, price) else { break };
            let used = copied(&found);
            bound = bound.max(found.bound - price * host);
            if used > host {
                low = price;
                continue;
            }
            high = price;
            let time = found.time - price * used;
            if best.as_ref().is_none_or(|best| time < best.time) {
                best = Some(StageMix { time, ..found });
            }
        }
        // Where none is found there may be one all the same: its bound counts.
        let best = best.unwrap_or(StageMix { counts: Vec::new(), time: f64::INFINITY, bound });
        Some(StageMix { bound: bound.min(best.time), ..best })
    }

    /// A mix made better by layers that change their policies, one kind of change or two at once, as long as that gains and both memories hold it:
    /// a price alone finds the mixes at its corners only.
    fn exchanged(&self, allowed: &[usize], (budget, host): (f64, f64), mix: StageMix) -> StageMix {
        let mut counts = vec![0_u64; self.points.len()];
        mix.counts.iter().for_each(|(at, n)| counts[*at] = *n);
        let sum = |counts: &[u64], of: fn(&MixPoint) -> f64| {
            counts.iter().zip(self.points).map(|(n, p)| *n as f64 * of(p)).sum::<f64>()
        };
        for _ in 0..EXCHANGES {
            let left = [budget - sum(&counts, |p| p.kept as f64), host - sum(&counts, |p| p.host as f64)];
            let of = |from: usize, to: usize| Change::new(self.points, from, to);
            let used = (0..counts.len()).filter(|at| counts[*at] > 0);
            let single: Vec<Change> =
                used.flat_map(|from| allowed.iter().filter(move |to| **to != from).map(move |to| of(from, *to))).collect();
            let mut best: Option<(f64, u64, Change, Option<Change>)> = None;
            for (i, one) in single.iter().enumerate() {
                for other in single[i + 1..].iter().map(Some).chain([None]) {
                    let both = other.map_or(*one, |other| one.and(other));
                    let from =
                        |change: &Change| counts[change.from] / if other.is_some_and(|o| o.from == one.from) { 2 } else { 1 };
                    let most = other.map_or(u64::MAX, from).min(from(one));
                    let times = both.times(left, most);
                    let gain = -both.time * times as f64;
                    if times > 0 && gain > best.as_ref().map_or(TOLERANCE * mix.time, |best| best.0) {
                        best = Some((gain, times, *one, other.copied()));
                    }
                }
            }
            let Some((_, times, one, other)) = best else { break };
            for change in [Some(one), other].into_iter().flatten() {
                counts[change.from] -= times;
                counts[change.to] += times;
            }
        }
        let time = sum(&counts, |p| p.time);
        StageMix { counts: counts.iter().copied().enumerate().filter(|(_, n)| *n > 0).collect(), time, ..mix }
    }

    /// The best mix where a byte on the host costs so many seconds.
    fn at_price(&self, allowed: &[usize], budget: f64, price: f64) -> Option<StageMix> {
        // Of mixes that take the same time the one that copies least.
        let most = |of: fn(&MixPoint) -> f64| allowed.iter().map(|&at| of(&self.points[at])).fold(0.0, f64::max);
        let priced = price > 0.0;
        let price = price.max(TIE * most(|p| p.time) / most(|p| p.host as f64).max(1.0));
        let mut points: Vec<Priced> = allowed
            .iter()
            .map(|&at| {
                let point = &self.points[at];
                Priced { at, kept: point.kept as f64, time: point.time + price * point.host as f64 }
            })
            .collect();
        points.sort_by(|a, b| a.kept.total_cmp(&b.kept).then(a.time.total_cmp(&b.time)).then(a.at.cmp(&b.at)));
        let mut fastest = f64::INFINITY;
        points.retain(|point| {
            let faster = point.time < fastest;
            fastest = fastest.min(point.time);
            faster
        });
        let states = if priced { PRICED_STATES } else { STATES };
        Rounding { states, ..Rounding::new(&points, self.layers, budget)? }.solve()
    }
}

/// A layer that changes its policy: what it takes more.
#[derive(Debug, Clone, Copy)]
struct Change {
    from: usize,
    to: usize,
    /// On the device and on the host.
    bytes: [f64; 2],
    time: f64,
}

impl Change {
    fn new(points: &[MixPoint], from: usize, to: usize) -> Self {
        let (a, b) = (&points[from], &points[to]);
        let bytes = [b.kept as f64 - a.kept as f64, b.host as f64 - a.host as f64];
        Self { from, to, bytes, time: b.time - a.time }
    }

    /// Both at once; of the policies the first one's.
    fn and(&self, other: &Self) -> Self {
        let bytes = [self.bytes[0] + other.bytes[0], self.bytes[1] + other.bytes[1]];
        Self { bytes, time: self.time + other.time, ..*self }
    }

    /// How many times it can be made at most, where so many bytes are left.
    fn times(&self, left: [f64; 2], most: u64) -> u64 {
        let fit = |(more, left): (f64, f64)| {
            if more > 0.0 {
                (left.max(0.0) / more) as u64
            } else if left < 0.0 {
                0
            } else {
                u64::MAX
            }
        };
        self.bytes.into_iter().zip(left).map(fit).fold(most, u64::min)
    }
}

/// A policy with the host's bytes in its time.
#[derive(Debug, Clone, Copy)]
struct Priced {
    at: usize,
    kept: f64,
    time: f64,
}

/// The integer programme near its relaxation.
struct Rounding<'a> {
    points: &'a [Priced],
    /// Those besides `lo` and `hi`, with their reduced costs, least first.
    others: Vec<(f64, usize)>,
    lo: usize,
    hi: usize,
    layers: u64,
    budget: f64,
    /// The relaxation.
    bound: f64,
    states: usize,
    best: Option<(f64, Vec<u64>)>,
}

impl<'a> Rounding<'a> {
    fn new(points: &'a [Priced], layers: u64, budget: f64) -> Option<Self> {
        let n = layers as f64;
        // Sums of whole bytes: what rounding may have taken of the budget is given back.
        let budget = budget * (1.0 + 1e-12);
        let (least, most) = (points.first()?, points.last()?);
        if least.kept * n > budget {
            return None;
        }
        let hull = lower_hull(&points.iter().map(|point| (point.kept, point.time)).collect::<Vec<_>>());
        let above = hull.iter().position(|&at| points[at].kept * n > budget);
        let (lo, hi) = match above {
            Some(place) if most.kept * n > budget => (hull[place - 1], hull[place]),
            _ => (points.len() - 1, points.len() - 1),
        };
        let slope = if lo == hi { 0.0 } else { (points[lo].time - points[hi].time) / (points[hi].kept - points[lo].kept) };
        let cost = |point: &Priced| point.time + slope * point.kept;
        let base = cost(&points[lo]);
        let bound = if lo == hi { points[lo].time * n } else { n * base - slope * budget };
        let others = (0..points.len()).filter(|at| *at != lo && *at != hi);
        let mut others: Vec<(f64, usize)> = others.map(|at| ((cost(&points[at]) - base).max(0.0), at)).collect();
        others.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        Some(Self { points, others, lo, hi, layers, budget, bound, states: STATES, best: None })
    }

    fn solve(mut self) -> Option<StageMix> {
        let mut counts = vec![0; self.points.len()];
        self.fill(&counts, self.layers, self.budget, 0.0);
        if self.lo != self.hi {
            self.branch(0, &mut counts, (self.layers, self.budget, 0.0), 0.0);
        }
        let (time, counts) = self.best?;
        let bound = if self.states > 0 { time } else { self.bound.min(time) };
        let followed = counts.iter().enumerate().filter(|(_, n)| **n > 0).map(|(at, n)| (self.points[at].at, *n)).collect();
        Some(StageMix { counts: followed, time, bound })
    }

    /// Tries every number of layers under the policies from a place on; `left` are the layers, bytes and the seconds of those already given.
    fn branch(&mut self, place: usize, counts: &mut Vec<u64>, left: (u64, f64, f64), reduced: f64) {
        let Some(&(cost, at)) = self.others.get(place) else { return };
        let (layers, budget, time) = left;
        for n in 0..=layers {
            if self.states == 0 {
                break;
            }
            let reduced = reduced + cost * n as f64;
            let upper = self.best.as_ref().map_or(f64::INFINITY, |(time, _)| *time);
            let least = self.bound + reduced;
            // Those that follow cost more each.
            if least >= upper - TOLERANCE * upper.abs() {
                break;
            }
            let point = self.points[at];
            let (rest, room) = (layers - n, budget - point.kept * n as f64);
            if room < self.points[0].kept * rest as f64 {
                break;
            }
            self.states -= 1;
            counts[at] = n;
            if n > 0 {
                self.fill(counts, rest, room, time + point.time * n as f64);
            }
            self.branch(place + 1, counts, (rest, room, time + point.time * n as f64), reduced);
        }
        counts[at] = 0;
    }

    /// Takes a mix whose other layers are on `lo` and `hi`, as many on the faster one as fit.
    fn fill(&mut self, counts: &[u64], layers: u64, budget: f64, time: f64) {
        let (lo, hi) = (self.points[self.lo], self.points[self.hi]);
        let spare = budget - lo.kept * layers as f64;
        if spare < 0.0 {
            return;
        }
        let fast = if self.lo == self.hi { layers } else { ((spare / (hi.kept - lo.kept)) as u64).min(layers) };
        let time = time + hi.time * fast as f64 + lo.time * (layers - fast) as f64;
        if self.best.as_ref().is_none_or(|(best, _)| time < *best) {
            let mut counts = counts.to_vec();
            counts[self.lo] += layers - fast;
            counts[self.hi] += fast;
            self.best = Some((time, counts));
        }
    }
}
