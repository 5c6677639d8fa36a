//! Chooses the number of a stage's layers that follow each policy. The choice is an integer program over few policies,
//! solved near its relaxation.
//!
//! Layers are alike, so a mix is a count `n_j` for each policy `j`. With `d` micro-batches in flight, minimise
//! `sum n_j time_j` subject to:
//!
//! - `d sum n_j kept_j + max working_j` within the room on the device,
//! - `d sum n_j host_j` within the host's memory,
//! - `d sum n_j storage_j` within the storage.
//!
//! The largest working set takes few values. Each is tried as a cap, so that the device has a plain byte budget. The
//! relaxation under a cap mixes two neighbours `lo` and `hi` of the lower convex hull of (kept, time). The hull's slope
//! there is the price of a byte.
//!
//! A layer under another policy exceeds the relaxation by its reduced cost. So the gap to the best mix so far limits
//! the number of such layers. The few possible counts are tried one by one, with all other layers on `lo` and `hi`. A
//! search that ends has the best mix. If it is cut off after [`STATES`] steps, the distance to the relaxation is
//! reported as the gap.
//!
//! If such a mix offloads more than the host's memory or the storage holds, [`PolicyMixProgram`] solves the counts as
//! an integer program.

use super::hull::{StashCost, lower_hull};
use super::mix_point::{MixPoint, StageMix};
use super::scarce::PolicyMixProgram;

/// The mix problem of one stage: find the fastest mix of policies that fits.
#[derive(Debug, Clone, Copy)]
pub struct MixQuestion<'a> {
    /// The policies.
    pub points: &'a [MixPoint],
    /// The stage's layers.
    pub layers: u64,
    /// Micro-batches in flight.
    pub depth: f64,
    /// Bytes on the device for everything kept plus the largest working set.
    pub room: u64,
    /// Limit in bytes on what is kept on the device alone, from a moment other than the layers' passes; `None` if there
    /// is no such limit.
    pub kept: Option<u64>,
    /// Bytes in the host's memory.
    pub host: u64,
    /// Bytes in storage.
    pub storage: u64,
}

/// Limit on mixes tried for one price and cap.
pub const STATES: usize = 20_000;

/// Weight of a policy's copies, as a fraction of its time. It only breaks ties.
const TIE: f64 = 1e-12;

/// Relative differences in time below this fraction do not matter.
const TOLERANCE: f64 = 1e-9;

impl MixQuestion<'_> {
    /// Lower bound on the seconds of any mix, from the relaxations alone. It assumes that the offloaded bytes fit.
    /// `None` if no mix fits.
    #[must_use]
    pub fn lower_bound_seconds(&self) -> Option<f64> {
        if self.layers == 0 {
            return Some(0.0);
        }
        let relaxed = |cap: u64| {
            let (allowed, budget) = self.policies_under_cap(cap);
            let points = self.price_policies(&allowed);
            Rounding::new(&points, self.layers, budget).map(|rounding| rounding.bound * (1.0 - TOLERANCE))
        };
        self.working_set_caps().into_iter().filter_map(relaxed).reduce(f64::min)
    }

    /// The distinct working sets, in bytes, that can be a mix's largest and fit; ascending.
    fn working_set_caps(&self) -> Vec<u64> {
        let mut caps: Vec<u64> =
            self.points.iter().map(|point| point.working).filter(|cap| *cap <= self.room).collect();
        caps.sort_unstable();
        caps.dedup();
        caps
    }

    /// Finds the fastest mix and a lower bound; `None` if none fits.
    #[must_use]
    pub fn find_best_mix(&self) -> Option<StageMix> {
        if self.layers == 0 {
            return Some(StageMix { counts: Vec::new(), time: 0.0, bound: 0.0 });
        }
        let caps = self.working_set_caps();
        let mut best: Option<StageMix> = None;
        let mut bound = f64::INFINITY;
        let mut scarce: Vec<(f64, PolicyMixProgram<'_>)> = Vec::new();
        let away = [self.host as f64 / self.depth, self.storage as f64 / self.depth];
        for cap in caps.into_iter().rev() {
            let (allowed, budget) = self.policies_under_cap(cap);
            let Some(found) = self.best_mix_within(&allowed, budget) else { continue };
            if self.fits_away(&found, away) {
                bound = bound.min(found.bound);
                keep_faster_mix(&mut best, found);
            } else if best.as_ref().is_none_or(|best| found.bound < best.time) {
                let scarcer = PolicyMixProgram::new(self.points, &allowed, self.layers, [budget, away[0], away[1]]);
                scarce.extend(scarcer.solve_relaxation().map(|least| (least.max(found.bound), scarcer)));
            }
        }
        scarce.sort_by(|a, b| a.0.total_cmp(&b.0));
        for (least, scarce) in scarce {
            if best.as_ref().is_some_and(|best| least >= best.time - TOLERANCE * best.time.abs()) {
                break;
            }
            let solved = scarce.solve_mix(least);
            bound = bound.min(solved.bound);
            solved.mix.into_iter().for_each(|mix| keep_faster_mix(&mut best, mix));
        }
        let best = best?;
        Some(StageMix { bound: bound.min(best.time), ..best })
    }

    /// True if the bytes that a mix offloads fit. Limits are bytes per micro-batch in flight.
    fn fits_away(&self, mix: &StageMix, [host, storage]: [f64; 2]) -> bool {
        let sum = |of: fn(&MixPoint) -> u64| {
            mix.counts.iter().map(|(j, n)| of(&self.points[*j]) as f64 * *n as f64).sum::<f64>()
        };
        sum(|p| p.host) <= host && sum(|p| p.storage) <= storage
    }

    /// Returns the same problem with tighter limits, after a mix turned out to exceed the limits of device, host and
    /// storage by the given bytes. A new limit is the mix's computed use less the excess; limits without an excess
    /// stay.
    #[must_use]
    pub fn tighten_budgets(&self, mix: &StageMix, device: u64, [host, storage]: [u64; 2]) -> Self {
        let sum = |of: fn(&MixPoint) -> u64| {
            (self.depth * mix.counts.iter().map(|(j, n)| of(&self.points[*j]) as f64 * *n as f64).sum::<f64>()) as u64
        };
        let less =
            |limit: u64, used: u64, over: u64| if over > 0 { limit.min(used).saturating_sub(over) } else { limit };
        let working = mix.counts.iter().map(|(j, _)| self.points[*j].working).max().unwrap_or(0);
        let room = less(self.room, sum(|p| p.kept).saturating_add(working), device);
        Self {
            room,
            kept: self.kept.map(|kept| kept.saturating_sub(self.room - room)),
            host: less(self.host, sum(|p| p.host), host),
            storage: less(self.storage, sum(|p| p.storage), storage),
            ..*self
        }
    }

    /// The policies with a working set of at most `cap`, and the bytes that remain for each micro-batch in flight.
    fn policies_under_cap(&self, cap: u64) -> (Vec<usize>, f64) {
        let budget = (self.room - cap).min(self.kept.unwrap_or(u64::MAX));
        let allowed = (0..self.points.len()).filter(|j| self.points[*j].working <= cap).collect();
        (allowed, budget as f64 / self.depth)
    }

    /// The best mix of the allowed policies that keeps at most `budget` bytes per micro-batch on the device. Offloaded
    /// bytes are not limited.
    fn best_mix_within(&self, allowed: &[usize], budget: f64) -> Option<StageMix> {
        Rounding::new(&self.price_policies(allowed), self.layers, budget)?.solve_rounding()
    }

    /// The allowed policies that are faster than every policy with fewer bytes kept, in the order of these bytes.
    fn price_policies(&self, allowed: &[usize]) -> Vec<PricedPolicy> {
        // On ties in time, the policy that copies least wins.
        let away = |p: &MixPoint| p.host as f64 + p.storage as f64;
        let most = |of: &dyn Fn(&MixPoint) -> f64| allowed.iter().map(|&at| of(&self.points[at])).fold(0.0, f64::max);
        let price = TIE * most(&|p| p.time) / most(&away).max(1.0);
        let mut points: Vec<PricedPolicy> = allowed
            .iter()
            .map(|&at| {
                let point = &self.points[at];
                PricedPolicy { at, kept: point.kept as f64, time: point.time + price * away(point) }
            })
            .collect();
        points.sort_by(|a, b| a.kept.total_cmp(&b.kept).then(a.time.total_cmp(&b.time)).then(a.at.cmp(&b.at)));
        let mut fastest = f64::INFINITY;
        points.retain(|point| {
            let faster = point.time < fastest;
            fastest = fastest.min(point.time);
            faster
        });
        points
    }
}

/// Keeps the faster mix.
fn keep_faster_mix(best: &mut Option<StageMix>, found: StageMix) {
    if best.as_ref().is_none_or(|best| found.time < best.time) {
        *best = Some(found);
    }
}

/// A policy whose time includes the tie-breaking weight of its copies.
#[derive(Debug, Clone, Copy)]
struct PricedPolicy {
    at: usize,
    kept: f64,
    time: f64,
}

/// The search for integer counts near the relaxation.
struct Rounding<'a> {
    points: &'a [PricedPolicy],
    /// Policies besides `lo` and `hi` with their reduced costs, ascending.
    others: Vec<(f64, usize)>,
    lo: usize,
    hi: usize,
    layers: u64,
    budget: f64,
    /// The relaxation's value: a lower bound in seconds.
    bound: f64,
    states: usize,
    best: Option<(f64, Vec<u64>)>,
}

/// Layers without a policy, the bytes left for them, and the seconds of the layers already assigned.
#[derive(Clone, Copy)]
struct RemainingLayers {
    layers: u64,
    budget: f64,
    time: f64,
}

impl<'a> Rounding<'a> {
    fn new(points: &'a [PricedPolicy], layers: u64, budget: f64) -> Option<Self> {
        let n = layers as f64;
        // Bytes are whole, so the allowance only gives back what rounding took from the budget.
        let budget = budget * (1.0 + 1e-12);
        let (least, most) = (points.first()?, points.last()?);
        if least.kept * n > budget {
            return None;
        }
        let costs = points.iter().map(|point| StashCost { bytes: point.kept, seconds: point.time });
        let hull = lower_hull(&costs.collect::<Vec<_>>());
        let above = hull.iter().position(|&at| points[at].kept * n > budget);
        let (lo, hi) = match above {
            Some(place) if most.kept * n > budget => (hull[place - 1], hull[place]),
            _ => (points.len() - 1, points.len() - 1),
        };
        let slope =
            if lo == hi { 0.0 } else { (points[lo].time - points[hi].time) / (points[hi].kept - points[lo].kept) };
        let cost = |point: &PricedPolicy| point.time + slope * point.kept;
        let base = cost(&points[lo]);
        let bound = if lo == hi { points[lo].time * n } else { n * base - slope * budget };
        let others = (0..points.len()).filter(|at| *at != lo && *at != hi);
        let mut others: Vec<(f64, usize)> = others.map(|at| ((cost(&points[at]) - base).max(0.0), at)).collect();
        others.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        Some(Self { points, others, lo, hi, layers, budget, bound, states: STATES, best: None })
    }

    fn solve_rounding(mut self) -> Option<StageMix> {
        let mut counts = vec![0; self.points.len()];
        self.fill_remaining_layers(&counts, self.layers, self.budget, 0.0);
        if self.lo != self.hi {
            let left = RemainingLayers { layers: self.layers, budget: self.budget, time: 0.0 };
            self.branch_on_policy(0, &mut counts, left, 0.0);
        }
        let (time, counts) = self.best?;
        let bound = if self.states > 0 { time } else { self.bound.min(time) };
        let followed =
            counts.iter().enumerate().filter(|(_, n)| **n > 0).map(|(at, n)| (self.points[at].at, *n)).collect();
        Some(StageMix { counts: followed, time, bound })
    }

    /// Tries every possible number of layers under each policy of `others` from `place` on. `reduced` is the reduced
    /// cost of the layers already assigned.
    fn branch_on_policy(&mut self, place: usize, counts: &mut Vec<u64>, left: RemainingLayers, reduced: f64) {
        let Some(&(cost, at)) = self.others.get(place) else { return };
        let RemainingLayers { layers, budget, time } = left;
        for n in 0..=layers {
            if self.states == 0 {
                break;
            }
            let reduced = reduced + cost * n as f64;
            let upper = self.best.as_ref().map_or(f64::INFINITY, |(time, _)| *time);
            let least = self.bound + reduced;
            // Larger counts cost more.
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
            let time = time + point.time * n as f64;
            if n > 0 {
                self.fill_remaining_layers(counts, rest, room, time);
            }
            let left = RemainingLayers { layers: rest, budget: room, time };
            self.branch_on_policy(place + 1, counts, left, reduced);
        }
        counts[at] = 0;
    }

    /// Completes a mix with `lo` and `hi`, with as many layers as possible on the faster one. Keeps the mix if it is
    /// the fastest so far.
    fn fill_remaining_layers(&mut self, counts: &[u64], layers: u64, budget: f64, time: f64) {
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
