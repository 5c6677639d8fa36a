//! Probes of a chain. A probe decides if some split into a given number of stages keeps all loads below a limit. It
//! fills the stages greedily from the end of the chain.
//!
//! This is a probe of one-dimensional partitioning (Pınar and Aykanat, "Fast optimal load balancing algorithms for 1D
//! partitioning", J. Parallel Distrib. Comput. 64, 2004), with a memory limit that depends on the place of a stage. A
//! stage's *place* counts from the end of the chain, as memory does: the last stage has place 1. A stage is *good* at a
//! place if its load is below the limit of the probe and its memory within that of the device.
//!
//! # Why greedy filling decides
//! Take a split into `s` stages that are all good. By place, its stages begin at `y[1] > y[2] > ... > y[s] = 0`. Let
//! `z[j]` be the position at which the greedy stage of place `j` begins: the least position from which a good stage
//! reaches `z[j - 1]`, but not less than a bound that every such split meets. (The bound leaves a layer for every later
//! stage, lets the first stage end at `end` or later, and makes the last stages narrow if they must be.) Then
//! `z[j] <= y[j]` for `j < s`, by induction. Let `z[j - 1] <= y[j - 1]`. Either `y[j] >= z[j - 1] > z[j]`, or the stage
//! `y[j]..z[j - 1]` lies inside the split's own stage and is therefore good.
//!
//! If no stage that reaches `z[j - 1]` is good, the stage of only the last layer before `z[j - 1]` is not good either.
//! In the split, that layer is then neither at place `j` nor at a later place, unless it is in the first stage, which
//! alone begins at position 0. So `y[s - 1] >= z[j - 1]`, which exceeds `end`. (At place 1, that layer is the last of
//! the chain, and no split is good.) In all cases, a probe that fails names a position before which the first stage
//! cannot end, under this limit or a lower one. A probe that succeeds has found a split whose first stage ends at
//! `end`; the caller must check the load and the memory of that stage. Because the first cut is known to be at `end`,
//! both stages beside it are charged the true transfer of this cut.
//!
//! The `s - j` stages in front of place `j` hold at least the layers before `z[j]`. Once a lower bound on the mean of
//! their loads reaches the limit, no split can be good.

use super::evaluate;
use super::evaluate::StageRange;
use super::line::{ChainPosition, ProbeChain, higher, lower};

/// The target of a probe: `stages` stages, the first of which ends at `end`.
#[derive(Clone, Copy)]
pub(super) struct ProbeTarget {
    pub stages: usize,
    pub end: usize,
    /// Number of stages, counted from the first one, that must be narrow.
    pub leading: usize,
    /// Number of stages, counted from the last one, that must be narrow.
    pub trailing: usize,
}

/// The result of a probe.
pub(super) enum ProbeOutcome {
    /// A split was found. `bottleneck` is the largest load of its stages after the first. A probe under any limit up to
    /// `next` takes the same steps.
    Split { bottleneck: f64, next: f64 },
    /// No split under the limit has a first stage that ends before `end`, and none ends at the requested position under
    /// any limit up to `limit`.
    Nothing { end: usize, limit: f64 },
}

/// A stage found by [`ProbeChain::extend_stage`].
struct ExtendedStage {
    /// The stage's first position; its end if no stage is good.
    first: usize,
    load: f64,
    /// The least limit that admits a longer stage; infinite if memory or the bound on its first position forbids one.
    next: f64,
}

impl ProbeChain<'_> {
    /// Returns the least position, by memory alone, at which a stage at `place` that ends at `end` can begin; `end` if
    /// there is none. The result is at least 1. `length` is a guess of the stage's length, which only affects speed.
    pub fn reach_from(&self, place: usize, end: usize, length: usize) -> usize {
        if end > 1 { self.extend_stage(place, 1, end, length, f64::INFINITY).first } else { end }
    }

    /// Returns the longest good stage at `place` that ends at `end` and begins at `least` or later. `length` is a guess
    /// of its length.
    fn extend_stage(&self, place: usize, least: usize, end: usize, length: usize, limit: f64) -> ExtendedStage {
        let ChainPosition { to, fixed, stash_to, .. } = self.positions[end];
        let behind = f64::from(place as u32 - 1);
        let (most, tie) = (fixed + behind * stash_to - self.instance.max_memory, self.tie[0] + behind * self.tie[1]);
        let exceeds = |first: usize| {
            let from = &self.positions[first];
            let excess = most - (from.fixed + behind * from.stash_from);
            if excess.abs() > tie {
                excess > 0.0
            } else {
                self.exact && !self.fits_literally(StageRange { first, end }, place)
            }
        };
        let mut first = end.saturating_sub(length).max(least);
        let mut load = self.load_of_stage(first, to);
        let mut next = f64::INFINITY;
        if load < limit && !exceeds(first) {
            while first > least {
                let longer = self.load_of_stage(first - 1, to);
                if longer >= limit {
                    next = longer;
                    break;
                }
                if exceeds(first - 1) {
                    break;
                }
                first -= 1;
                load = longer;
            }
            return ExtendedStage { first, load, next };
        }
        loop {
            next = if load >= limit { load } else { f64::INFINITY };
            first += 1;
            if first == end {
                return ExtendedStage { first, load, next };
            }
            load = self.load_of_stage(first, to);
            if load < limit && !exceeds(first) {
                return ExtendedStage { first, load, next };
            }
        }
    }

    /// Returns a lower bound on the mean load of `stages` stages that hold the layers before `end`, if another stage
    /// follows. Every cut costs a transfer in the stage on either side. With recomputation, the transfer in the stage
    /// before the cut may be hidden, but all forward work is done twice.
    fn mean_load_bound(&self, end: usize, stages: usize) -> f64 {
        let [once, twice] = self.positions[end].to;
        let stages = f64::from(stages as u32);
        let transfers = (stages - 1.0) * self.transfer;
        higher(once + transfers + transfers, twice + transfers) / stages
    }

    /// Looks for a split whose loads are below `limit` and whose first stage ends at `target.end`. With `later` it may
    /// also end at the next position that is possible under the relaxed costs. `cuts` receives the first positions of
    /// its stages, from the last stage to the second.
    pub fn probe_split(&self, target: ProbeTarget, later: bool, limit: f64, cuts: &mut Vec<usize>) -> ProbeOutcome {
        let ProbeTarget { stages, end, leading, trailing } = target;
        let count = self.len();
        let (mut start, mut length) = (count, count.div_ceil(stages));
        let (mut bottleneck, mut next) = (0.0, f64::INFINITY);
        cuts.clear();
        for place in 1..stages {
            let mut least = end + stages - 1 - place;
            if place <= trailing {
                least = least.max(count - self.suffix + trailing - place);
            }
            let stage = self.extend_stage(place, least, start, length, limit);
            next = lower(stage.next, next);
            if stage.first == start {
                return ProbeOutcome::Nothing { end: start, limit: next };
            }
            let mut load = stage.load;
            if stage.first == end && !later {
                // Only the last stage to be filled can begin at `end`.
                load += self.lowered_by(end);
                if load >= limit {
                    return ProbeOutcome::Nothing { end: end + 1, limit: lower(load, next) };
                }
            }
            bottleneck = higher(bottleneck, load);
            length = start - stage.first;
            start = stage.first;
            if place + leading == stages && start > self.prefix {
                return ProbeOutcome::Nothing { end: count, limit: next };
            }
            cuts.push(start);
            let mean = self.mean_load_bound(start, stages - place);
            if mean >= limit {
                return ProbeOutcome::Nothing { end: count, limit: lower(mean, next) };
            }
        }
        if start > end && !later {
            ProbeOutcome::Nothing { end: start, limit: next }
        } else {
            ProbeOutcome::Split { bottleneck, next }
        }
    }

    /// Returns the bottleneck of a split that a probe found, under the true costs and including the first stage;
    /// infinite if the split does not fit.
    ///
    /// The cuts first move to the transfers that decided the lowered values of their own transfers. Without
    /// recomputation, a stage's load is then no larger than in the probe.
    pub fn true_bottleneck(&self, target: ProbeTarget, cuts: &mut [usize]) -> f64 {
        let count = self.len();
        for at in 0..cuts.len().saturating_sub(1) {
            let (below, above) = (cuts[at + 1], at.checked_sub(1).map_or(count, |before| cuts[before]));
            let source = self.lowered.get(cuts[at] - 1).map_or(cuts[at], |lowered| lowered.1 + 1);
            if below < source && source < above {
                cuts[at] = source;
            }
        }
        let ProbeTarget { stages, leading, trailing, .. } = target;
        if (trailing > 0 && cuts[trailing - 1] < count - self.suffix)
            || (leading > 0 && cuts[stages - leading - 1] > self.prefix)
        {
            return f64::INFINITY;
        }
        let (mut end, mut bottleneck) = (count, 0.0);
        for (at, &first) in cuts.iter().enumerate() {
            if !self.fits_literally(StageRange { first, end }, at + 1) {
                return f64::INFINITY;
            }
            bottleneck = higher(
                bottleneck,
                evaluate::load_of_stage(self.instance, self.chain, StageRange { first, end }, at + 1),
            );
            end = first;
        }
        if !self.fits_literally(StageRange { first: 0, end }, stages) {
            return f64::INFINITY;
        }
        higher(bottleneck, evaluate::load_of_stage(self.instance, self.chain, StageRange { first: 0, end }, stages))
    }
}
