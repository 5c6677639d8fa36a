//! The exact search over tensor widths of chains that are tensor parallel except at their two ends. It probes limits on
//! the load of the slowest stage with greedy splits, and needs no table.
//!
//! A *candidate* is a width, a number of stages `s` and a least number of narrow stages, with the degrees that so many
//! devices allow. (Degrees that are possible with fewer narrow stages belong to the candidates with fewer.) None of its
//! plans takes less time than `floor * (m + s - 1) + sync * P(e)` at its best degree. Here `floor` bounds the
//! bottleneck, `m` is the number of micro-batches, `P(e)` the parameters of the first `e` layers, and `e` the least
//! number of layers that memory leaves for the first stage. The candidates of a width are taken by rising bound until
//! the bound reaches the best known time.
//!
//! Within a candidate the end `e` of the first stage rises. A better plan whose first stage ends at `e` has all loads
//! below `L(e) = max (time - sync * P(e)) / (m + s - 1)` over the degrees. `L` falls as `e` rises and as the best time
//! falls, while the load and the memory of the first stage rise. So once the first stage is not good under `L(e)`, it
//! is not good for any later end.
//!
//! If a probe under `L(e)` fails, it names the next end that is possible under any limit up to `L(e)`, and the ends
//! between are skipped. If it succeeds, bisection finds the least bottleneck for this end. A failed probe names the
//! least limit under which it would do anything else; a successful one has a split whose own bottleneck is the new
//! upper end (Nicol, "Rectilinear partitioning of irregular data parallel computations", J. Parallel Distrib. Comput.
//! 23, 1994). So the two ends of the bisection meet exactly at a load.
//!
//! The first bisection of a candidate covers all ends at once; its plan is often the best. The greedy split under
//! a limit has the least end of the first stage among all splits, and therefore the least load of that stage.
//!
//! Plans that are better by a fraction of less than 1e-12 are ignored, because such differences are rounding.
//!
//! If the probes work on relaxed costs, a split that they find is evaluated under the true costs. If a gap below the
//! best known time remains, the width is undecided and goes to the table of [`super::width`].

use super::degrees::{BestPlacement, DataParallelDegrees, SAFETY};
use super::evaluate::StageRange;
use super::instance::{Chain, PhazeInstance};
use super::line::ProbeChain;
use super::probe::{ProbeOutcome, ProbeTarget};
use std::ops::Range;

/// Plans of one width with this number of stages, at least `plane` of them narrow.
struct SweepCandidate {
    /// Lower bound on the time of its plans.
    bound: f64,
    stages: usize,
    plane: usize,
    /// The least end of the first stage.
    end: usize,
    /// Indices of the degrees.
    degrees: Range<usize>,
}

/// A tensor width that probes can search.
pub(super) struct LineWidth<'a> {
    index: usize,
    line: ProbeChain<'a>,
    /// Devices of a wide stage; a narrow one has one device.
    wide: usize,
    max_devices: usize,
    recompute: bool,
    /// Largest number of narrow stages in a plan; 0 at a width where narrow stages save no devices.
    planes: usize,
    /// Work of the tensor-parallel layers, which must be in wide stages; 0 if narrow stages save no devices.
    parallel_work: f64,
    /// True if a plan better than the best known may have been missed.
    undecided: bool,
}

impl<'a> LineWidth<'a> {
    /// Prepares a width; `None` if probes cannot search it.
    pub fn new(instance: &'a PhazeInstance, chain: &'a Chain, index: usize) -> Option<Self> {
        let line = ProbeChain::new(instance, chain)?;
        let (wide, planes) = if line.prefix == line.len() { (1, 0) } else { (chain.width, line.prefix + line.suffix) };
        let parallel_work = if planes > 0 { line.parallel_work_between() } else { 0.0 };
        let PhazeInstance { max_devices, recompute, .. } = *instance;
        Some(Self { index, line, wide, max_devices, recompute, planes, parallel_work, undecided: false })
    }

    /// Returns the index of the width if the table must search it; `None` if the probes decided it.
    pub fn undecided_width(&self) -> Option<usize> {
        self.undecided.then_some(self.index)
    }

    /// Keeps the plan of one stage if it fits and is better.
    pub fn take_single_stage(&self, degrees: &DataParallelDegrees, best: &mut BestPlacement) {
        let count = self.line.len();
        if !self.line.exceeds_memory(0, count, 1) {
            best.take_single_stage(
                self.index,
                self.line.work,
                self.line.parameters_before(count),
                count,
                self.max_devices / self.wide,
                degrees,
            );
        }
    }

    /// Estimates the time per batch: the whole work once per micro-batch of a copy.
    fn estimate_time(&self, micro_batches: usize) -> f64 {
        let copies = (self.max_devices / self.wide).clamp(1, micro_batches);
        self.line.work * micro_batches.div_ceil(copies) as f64
    }

    /// Returns the devices of one copy of a pipeline with `plane` narrow stages, or with only narrow stages if it has
    /// fewer than `plane`.
    fn devices_of_pipeline(&self, stages: usize, plane: usize) -> usize {
        let narrow = plane.min(stages);
        self.wide * (stages - narrow) + narrow
    }

    /// Returns a lower bound on the bottleneck of any split into at least two stages, at least `plane` of them narrow.
    /// It is the largest of the mean load, the load of the most expensive layer, and the tensor-parallel work per wide
    /// stage.
    ///
    /// Every cut costs a transfer in the stage on either side, and every stage has a cut next to it. With
    /// recomputation, the transfer in the stage before the cut may be hidden, but every stage except the last does its
    /// forward work twice. The last stage's forward work does not exceed the bottleneck either.
    fn bottleneck_floor(&self, stages: usize, plane: usize) -> f64 {
        let ProbeChain { work, forward, transfer, dearest, .. } = self.line;
        let cuts = (stages - 1) as f64;
        let mut floor = ((work + 2.0 * cuts * transfer) / stages as f64).max(dearest + transfer);
        if self.recompute {
            floor = floor.max((work + forward + (cuts + 1.0) * transfer) / (stages + 1) as f64);
        }
        if plane > 0 { floor.max(self.parallel_work / (stages - plane) as f64) } else { floor }
    }

    /// Returns the largest number of stages that the devices and the memory of the first layer allow.
    fn most_stages(&self) -> usize {
        let all = (self.max_devices + (self.wide - 1) * self.planes) / self.wide;
        (1..=all.min(self.line.len())).rev().find(|&stages| !self.line.exceeds_memory(0, 1, stages)).unwrap_or(0)
    }

    /// Collects the candidates of this width that may beat `time` in `candidates`.
    fn candidates_below(&self, degrees: &DataParallelDegrees, time: f64, candidates: &mut Vec<SweepCandidate>) {
        // Indexed by plane (the least number of narrow stages): how many degrees, smallest first, the devices allow.
        // This number falls as the number of stages rises.
        let mut possible = vec![degrees.degree.len(); self.planes + 1];
        // The least end of the first stage by memory alone, the number of stages behind it, and the length of the stage
        // that was placed last.
        let (mut end, mut behind, mut length) = (self.line.len(), 0, 1);
        for stages in 2..=self.most_stages() {
            let mut start = 0;
            for (plane, most) in possible.iter_mut().enumerate().take(stages) {
                let devices = self.devices_of_pipeline(stages, plane);
                while *most > 0 && degrees.degree[*most - 1] * devices > self.max_devices {
                    *most -= 1;
                }
                let range = start..*most;
                start = range.end;
                let floor = self.bottleneck_floor(stages, plane);
                if range.is_empty() || degrees.least_time_of(range.end, stages, floor) >= time {
                    continue;
                }
                while behind + 1 < stages {
                    behind += 1;
                    let first = self.line.reach_from(behind, end, length);
                    length = (end - first).max(1);
                    end = first;
                }
                if end + stages > self.line.len() + 1 || self.line.exceeds_memory(0, end, stages) {
                    continue;
                }
                let bound = degrees.least_time_over(range.clone(), stages, floor, self.line.parameters_before(end));
                if bound < time {
                    candidates.push(SweepCandidate { bound, stages, plane, end, degrees: range });
                }
            }
        }
    }

    /// Keeps the best plan of a candidate if it is better than the best so far.
    fn sweep_candidate(
        &mut self,
        candidate: &SweepCandidate,
        degrees: &DataParallelDegrees,
        cuts: &mut StageCuts,
        best: &mut BestPlacement,
    ) {
        let SweepCandidate { stages, plane, end, .. } = *candidate;
        for leading in plane.saturating_sub(self.line.suffix)..=plane.min(self.line.prefix) {
            let target = ProbeTarget { stages, end, leading, trailing: plane - leading };
            self.sweep_narrow_ends(target, candidate, degrees, cuts, best);
        }
    }

    /// As [`Self::sweep_candidate`], with the narrow stages at given ends of the chain.
    fn sweep_narrow_ends(
        &mut self,
        mut target: ProbeTarget,
        candidate: &SweepCandidate,
        degrees: &DataParallelDegrees,
        cuts: &mut StageCuts,
        best: &mut BestPlacement,
    ) {
        let SweepCandidate { stages, plane, degrees: range, .. } = candidate;
        let mut last = self.line.len() + 1 - stages;
        if target.leading > 0 {
            last = last.min(self.line.prefix + 1 - target.leading);
        }
        let mut floor = self.bottleneck_floor(*stages, *plane);
        let mut descended = false;
        while target.end <= last {
            let end = target.end;
            let limit = degrees.bottleneck_limit(range.clone(), *stages, best.time, self.line.parameters_before(end))
                / (SAFETY * SAFETY);
            let (own, low) = self.line.load_of_first_stage(end);
            if low >= limit || self.line.exceeds_memory(0, end, *stages) {
                return;
            }
            if own >= limit {
                target.end += 1;
                continue;
            }
            match self.line.probe_split(target, false, limit, &mut cuts.found) {
                ProbeOutcome::Nothing { end, .. } => target.end = end,
                ProbeOutcome::Split { bottleneck: rest, .. } if descended => {
                    let bottleneck = own.max(self.refine_bottleneck(target, own.max(floor), rest, cuts));
                    self.undecided |= self.take_split(target, bottleneck, range, degrees, cuts, best);
                    // This was the least bottleneck for this end, at any degree.
                    target.end += 1;
                }
                ProbeOutcome::Split { bottleneck: rest, .. } => {
                    // The least bottleneck at any end comes first: its plan excludes most ends, and it bounds all of
                    // them.
                    descended = true;
                    floor = self.descend_bottleneck(target, last, floor, own.max(rest), cuts);
                    let found = cuts.found.last().copied().unwrap_or(end);
                    self.take_split(ProbeTarget { end: found, ..target }, floor, range, degrees, cuts, best);
                    let bound =
                        degrees.least_time_over(range.clone(), *stages, floor, self.line.parameters_before(end));
                    if bound * SAFETY >= best.time {
                        return;
                    }
                }
            }
        }
    }

    /// Keeps the split that was found if it is better than the best so far. Returns true if a better plan may still
    /// exist with the same target and at least this bottleneck.
    fn take_split(
        &self,
        target: ProbeTarget,
        bottleneck: f64,
        range: &Range<usize>,
        degrees: &DataParallelDegrees,
        cuts: &mut StageCuts,
        best: &mut BestPlacement,
    ) -> bool {
        let parameters = self.line.parameters_before(target.end);
        let cheapest =
            |bottleneck, time| degrees.cheapest_degree(range.clone(), target.stages, bottleneck, parameters, time);
        let settled = if self.line.exact { bottleneck } else { self.line.true_bottleneck(target, &mut cuts.found) };
        if let Some((time, degree)) = cheapest(settled, best.time) {
            *best = BestPlacement { time, chain: self.index, degree, ranges: cuts.stage_ranges(self.line.len()) };
        }
        !self.line.exact && cheapest(bottleneck * SAFETY, best.time).is_some()
    }

    /// Lowers the bottleneck of the split that was found from `high` to the least one for its target, but not below
    /// `low`. Returns the result.
    fn refine_bottleneck(&self, target: ProbeTarget, mut low: f64, mut high: f64, cuts: &mut StageCuts) -> f64 {
        while low * SAFETY < high {
            match self.line.probe_split(target, false, low + (high - low) / 2.0, &mut cuts.tried) {
                ProbeOutcome::Split { bottleneck, .. } => {
                    high = bottleneck;
                    std::mem::swap(&mut cuts.found, &mut cuts.tried);
                }
                ProbeOutcome::Nothing { limit, .. } => low = limit,
            }
        }
        high
    }

    /// As [`Self::refine_bottleneck`], for the bottleneck of all stages including the first. The first stage may end at
    /// any position from the target's to `last`.
    fn descend_bottleneck(
        &self,
        target: ProbeTarget,
        last: usize,
        mut low: f64,
        mut high: f64,
        cuts: &mut StageCuts,
    ) -> f64 {
        while low * SAFETY < high {
            let middle = low + (high - low) / 2.0;
            match self.probe_ends(target, last, middle, &mut cuts.tried) {
                ProbeOutcome::Split { bottleneck, next } => {
                    let end = cuts.tried.last().copied().unwrap_or(target.end);
                    let (_, own) = self.line.load_of_first_stage(end);
                    if end > last || self.line.exceeds_memory(0, end, target.stages) {
                        low = next;
                    } else if own >= middle {
                        low = next.min(own);
                    } else {
                        high = own.max(bottleneck);
                        std::mem::swap(&mut cuts.found, &mut cuts.tried);
                    }
                }
                ProbeOutcome::Nothing { limit, .. } => low = limit,
            }
        }
        high
    }

    /// Looks for a split below a limit whose first stage ends at any position from the target's to `last`. A probe that
    /// fails names a later end, from which the next probe starts. The returned limits hold for all of these ends.
    fn probe_ends(&self, mut target: ProbeTarget, last: usize, limit: f64, cuts: &mut Vec<usize>) -> ProbeOutcome {
        let mut alike = f64::INFINITY;
        loop {
            match self.line.probe_split(target, true, limit, cuts) {
                ProbeOutcome::Split { bottleneck, next } => {
                    return ProbeOutcome::Split { bottleneck, next: next.min(alike) };
                }
                ProbeOutcome::Nothing { end, limit } => {
                    alike = alike.min(limit);
                    if end > last {
                        return ProbeOutcome::Nothing { end, limit: alike };
                    }
                    target.end = end;
                }
            }
        }
    }
}

/// First positions of the stages from the last to the second one: of the split found so far, and of the one being
/// tried.
struct StageCuts {
    found: Vec<usize>,
    tried: Vec<usize>,
}

impl StageCuts {
    /// Returns the stages of the found split in chain order, each as a first position and an exclusive end.
    fn stage_ranges(&self, count: usize) -> Vec<StageRange> {
        let firsts = std::iter::once(0).chain(self.found.iter().rev().copied());
        let ends = self.found.iter().rev().copied().chain(std::iter::once(count));
        firsts.zip(ends).map(|(first, end)| StageRange { first, end }).collect()
    }
}

/// Sweeps all widths, and keeps the best plan if it is better than the best so far.
pub(super) fn sweep_widths(
    widths: &mut [LineWidth<'_>],
    degrees: &DataParallelDegrees,
    micro_batches: usize,
    best: &mut BestPlacement,
) {
    // The most promising width comes first, because its plan prunes the search at the others.
    widths.sort_by(|a, b| a.estimate_time(micro_batches).total_cmp(&b.estimate_time(micro_batches)));
    let layers = widths.first().map_or(0, |width| width.line.len());
    let mut cuts = StageCuts { found: Vec::with_capacity(layers), tried: Vec::with_capacity(layers) };
    let mut candidates = Vec::with_capacity(layers);
    for width in widths {
        width.candidates_below(degrees, best.time, &mut candidates);
        while let Some(at) = least(&candidates) {
            let candidate = candidates.swap_remove(at);
            let before = best.time;
            width.sweep_candidate(&candidate, degrees, &mut cuts, best);
            if best.time < before {
                candidates.retain(|candidate| candidate.bound < best.time);
            }
        }
    }
}

fn least(candidates: &[SweepCandidate]) -> Option<usize> {
    (0..candidates.len()).min_by(|&a, &b| candidates[a].bound.total_cmp(&candidates[b].bound))
}
