//! The search over pipeline depths and data-parallel degrees.

use super::answer::{NoPlan, Placement, Plan, SearchCounts, Shortfall};
use super::assemble::assemble;
use super::bound::{Bottlenecks, Floor, Pair, floor};
use super::profile::{ChainProfile, ClusterLimits, Effort, GradientSync, PlacementError};
use super::schedule::in_flight;
use super::split::{Split, Splitter};
use super::stage::{Place, Stages};
use sim::units::{Bytes, Seconds};
use std::cmp::Ordering;

/// Step times closer than this, relatively, are equal: the tie goes to fewer devices, then fewer stages.
const TIE: f64 = 1e-12;

/// The best plan over all pipeline depths, data-parallel degrees, splits and policy mixes for one tensor width and micro-batch size.
///
/// # Errors
/// [`PlacementError`] for an input or a fabric that makes no sense. That no plan exists is an answer, not an error.
pub fn place<S: GradientSync + ?Sized>(
    profile: &ChainProfile,
    limits: ClusterLimits,
    sync: &S,
) -> Result<Placement, PlacementError> {
    place_with(profile, limits, sync, Effort::Proof)
}

/// [`place`] with a chosen effort.
///
/// # Errors
/// As [`place`].
pub fn place_with<S: GradientSync + ?Sized>(
    profile: &ChainProfile,
    limits: ClusterLimits,
    sync: &S,
    effort: Effort,
) -> Result<Placement, PlacementError> {
    profile.check()?;
    limits.check()?;
    if let Err(why) = allowed(limits) {
        return Ok(Placement::none(why, SearchCounts::default()));
    }
    let mut search = Search::new(profile, limits, sync, effort);
    let best = search.run();
    if let Some(fault) = search.stages.fault.take() {
        return Err(fault);
    }
    let found = best.and_then(|(pair, split)| assemble(&mut search.stages, limits, pair, &split.ends));
    Ok(match found {
        Some(plan) => search.answer(plan),
        None => Placement::none(NoPlan::OverCapacity(search.shortfall()), search.counts),
    })
}

/// A step time no plan beats, memory and recomputation ignored: for ruling a profile out before placing it.
/// Infinite where the batch or the devices allow no plan at all.
///
/// # Errors
/// As [`place`].
pub fn lower_bound<S: GradientSync + ?Sized>(
    profile: &ChainProfile,
    limits: ClusterLimits,
    sync: &S,
) -> Result<Seconds, PlacementError> {
    profile.check()?;
    limits.check()?;
    if allowed(limits).is_err() {
        return Ok(Seconds(f64::INFINITY));
    }
    let mut search = Search::new(profile, limits, sync, Effort::Sweep);
    let mut least = f64::INFINITY;
    for candidate in search.candidates() {
        if candidate.bound >= least {
            break;
        }
        let bottleneck = search.bottlenecks.of(&search.stages.chain, candidate.pair.stages);
        least = least.min(candidate.floor.step(candidate.pair, bottleneck));
    }
    search.stages.fault.map_or(Ok(Seconds(least)), Err)
}

/// Whether the batch and the devices allow any plan.
pub(super) fn allowed(limits: ClusterLimits) -> Result<(), NoPlan> {
    let ClusterLimits { devices, global_batch, tensor_width, micro_batch } = limits;
    if tensor_width > devices {
        return Err(NoPlan::TooFewDevices { needed: tensor_width, devices });
    }
    if !global_batch.is_multiple_of(micro_batch) {
        return Err(NoPlan::BatchDoesNotDivide { global_batch, micro_batch, data_parallel: 1 });
    }
    Ok(())
}

struct Candidate {
    pair: Pair,
    floor: Floor,
    bound: f64,
}

struct Search<'a, S: ?Sized> {
    stages: Stages<'a, S>,
    limits: ClusterLimits,
    bottlenecks: Bottlenecks,
    counts: SearchCounts,
}

impl<'a, S: GradientSync + ?Sized> Search<'a, S> {
    fn new(profile: &'a ChainProfile, limits: ClusterLimits, sync: &'a S, effort: Effort) -> Self {
        let stages = Stages::new(profile, limits, sync, effort);
        let bottlenecks = Bottlenecks::new(&stages.chain);
        Self { stages, limits, bottlenecks, counts: SearchCounts::default() }
    }

    /// Data-parallel degrees that divide the batch, ascending, at most `most`.
    fn degrees(&self, most: u64) -> Vec<u64> {
        let micro_batches = self.limits.global_batch / self.limits.micro_batch;
        let mut degrees = Vec::new();
        for small in (1..).take_while(|&n: &u64| n <= most && n.saturating_mul(n) <= micro_batches) {
            if micro_batches.is_multiple_of(small) {
                degrees.extend([small, micro_batches / small]);
            }
        }
        degrees.retain(|&d| d <= most);
        degrees.sort_unstable();
        degrees.dedup();
        degrees
    }

    fn pair(&self, stages: usize, data_parallel: u64) -> Pair {
        Pair {
            stages,
            data_parallel,
            micro_batches: self.limits.global_batch / self.limits.micro_batch / data_parallel,
            devices: stages as u64 * data_parallel * self.limits.tensor_width,
        }
    }

    /// All pairs with a cheap bound, best bound first.
    fn candidates(&mut self) -> Vec<Candidate> {
        let groups = self.limits.devices / self.limits.tensor_width;
        let degrees = self.degrees(groups);
        let mut candidates = Vec::new();
        for stages in 1..=self.stages.chain.len().min(usize::try_from(groups).unwrap_or(usize::MAX)) {
            let least = (self.stages.chain.total() / stages as f64).max(self.stages.chain.longest);
            for &degree in degrees.iter().take_while(|&&d| d <= groups / stages as u64) {
                let pair = self.pair(stages, degree);
                let floor = floor(&mut self.stages, pair);
                candidates.push(Candidate { pair, floor, bound: floor.step(pair, least) });
            }
        }
        candidates.sort_by(|a, b| a.bound.total_cmp(&b.bound).then(prefer(&a.pair, &b.pair)));
        candidates
    }

    /// The best pair and split, or nothing where no pair fits.
    fn run(&mut self) -> Option<(Pair, Split)> {
        let candidates = self.candidates();
        self.counts.candidates = candidates.len() as u64;
        let mut best: Option<(Pair, Split)> = None;
        // Per depth whether the largest degree, which needs least memory, fits.
        let mut fits: Vec<Option<bool>> = vec![None; self.stages.chain.len() + 1];
        for candidate in &candidates {
            let pair = candidate.pair;
            let limit = limit(best.as_ref(), &pair);
            if candidate.bound >= limit {
                self.counts.pruned += 1;
                continue;
            }
            let bottleneck = self.bottlenecks.of(&self.stages.chain, pair.stages);
            if candidate.floor.step(pair, bottleneck) >= limit {
                self.counts.pruned += 1;
                continue;
            }
            if fits[pair.stages].is_none() {
                let (widest, capacity) = (self.widest(pair.stages), self.stages.chain.profile.hbm.0);
                fits[pair.stages] = Some(self.splitter(widest).fill_memory(capacity).is_some());
            }
            if let Some(split) = self.solve(candidate, bottleneck, fits[pair.stages] == Some(true), limit) {
                best = Some((pair, split));
            }
        }
        best
    }

    /// The pair of `stages` stages with the largest data-parallel degree: fewest micro-batches in flight, smallest shards.
    fn widest(&self, stages: usize) -> Pair {
        let groups = self.limits.devices / self.limits.tensor_width;
        let degree = self.degrees(groups / stages as u64).last().copied().unwrap_or(1);
        self.pair(stages, degree)
    }

    fn splitter(&mut self, pair: Pair) -> Splitter<'_, 'a, S> {
        let floor = Floor { sum: 0.0, tail: 0.0 };
        Splitter { stages: &mut self.stages, pair, floor, bottleneck: 0.0, labels: 0 }
    }

    fn solve(&mut self, candidate: &Candidate, bottleneck: f64, may_fit: bool, limit: f64) -> Option<Split> {
        let capacity = self.stages.chain.profile.hbm.0;
        let Candidate { pair, floor, .. } = *candidate;
        let mut splitter = Splitter { stages: &mut self.stages, pair, floor, bottleneck, labels: 0 };
        let Some(filled) = may_fit.then(|| splitter.fill_memory(capacity)).flatten() else {
            self.counts.infeasible += 1;
            return None;
        };
        let seed = splitter.seed(&filled);
        let better = splitter.solve(limit.min(seed.step * (1.0 - TIE)));
        self.counts.labels += splitter.labels;
        self.counts.solved += 1;
        better.or(Some(seed).filter(|seed| seed.step < limit))
    }

    fn answer(&self, plan: Plan) -> Placement {
        let status = self.stages.status(plan.step.0);
        Placement { outcome: Ok(plan), status, counts: self.counts }
    }

    /// The attempt that lacks least memory, when none fits.
    fn shortfall(&mut self) -> Shortfall {
        let have = self.stages.chain.profile.hbm;
        let groups = self.limits.devices / self.limits.tensor_width;
        let mut best: Option<(u64, Pair)> = None;
        for stages in 1..=self.stages.chain.len().min(usize::try_from(groups).unwrap_or(usize::MAX)) {
            let pair = self.widest(stages);
            let mut splitter = self.splitter(pair);
            let most = best.map_or(u64::MAX, |(need, _)| need - 1);
            if splitter.fill_memory(most).is_none() {
                continue;
            }
            let (mut low, mut high) = (have.0, most);
            while low < high {
                let middle = low + (high - low) / 2;
                if splitter.fill_memory(middle).is_some() { high = middle } else { low = middle + 1 }
            }
            best = Some((low, pair));
        }
        let (need, pair) = best.unwrap_or_else(|| (u64::MAX, self.pair(1, 1)));
        let stage = self.fullest(pair, need);
        Shortfall { pipeline_stages: pair.stages, data_parallel: pair.data_parallel, stage, need: Bytes(need), have }
    }

    /// The first stage that needs exactly `need` in the split that needs no more.
    fn fullest(&mut self, pair: Pair, need: u64) -> usize {
        let ends = self.splitter(pair).fill_memory(need).unwrap_or_default();
        let (mut first, mut fullest) = (0, (0, 0));
        for (stage, end) in ends.into_iter().enumerate() {
            let depth = in_flight(pair.micro_batches, pair.stages, stage);
            let bytes = self.stages.least_memory(Place { first, end, depth, data_parallel: pair.data_parallel });
            if bytes > fullest.0 {
                fullest = (bytes, stage);
            }
            first = end;
        }
        fullest.1
    }
}

/// The step time a plan of `pair` must stay below to replace the best one.
fn limit(best: Option<&(Pair, Split)>, pair: &Pair) -> f64 {
    best.map_or(f64::INFINITY, |(other, split)| {
        let preferred = prefer(pair, other) == Ordering::Less;
        split.step * if preferred { 1.0 + TIE } else { 1.0 - TIE }
    })
}

/// Of equally fast plans the one with fewer devices, then fewer stages, comes first.
fn prefer(a: &Pair, b: &Pair) -> Ordering {
    a.devices.cmp(&b.devices).then(a.stages.cmp(&b.stages))
}
