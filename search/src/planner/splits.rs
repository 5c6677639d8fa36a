//! Other splits of the layers than the even one: other numbers of layers in the first and the last chunk, where embedding and head are, and, where
//! what they leave does not divide among the chunks between, a row of neighbours among these that hold one layer more, anywhere.
//!
//! Every plan with a pipeline has as many of these as [`workloads::Layout::splits`] lists: thousands. They are not evaluated one by one. A bound
//! that no split of a plan's layers goes below, whatever chunks it makes, is held against the list that the even splits have left:
//! - Let device `j` of `p` work `D_j` per micro-batch. Its first pass waits for one micro-batch's way through the devices before it, and after its
//!   last one that way goes back: the passes take at least `D_0 + ... + D_(j-1) + m D_j`. With `D` the sum of all devices, the largest of these is
//!   least where each device does `1 - 1 / m` of what the one before does: `D / (1 - (1 - 1 / m)^p)`.
//! - With several chunks per device, or backward passes in two parts, `m D / p` is what remains of it.
//!
//! What the first device exchanges once per step, and its update, follow the last pass and are added to a split's bound
//! ([`step::Evaluator::least_once`]).
//!
//! Plans whose stages together have too little room for all layers, however many each takes, are left out. For those that are left, the splits are
//! bounded one by one, by the first rule with their own `D_j` and by paths through the schedule, and those below the list, and below the plan's own
//! time, evaluated, least bound first, until the best is no more than the next bound. So every plan of the list has its best split of these. That
//! one of another form (chunks between that differ by two layers, or longer ones apart) is faster is not ruled out.

use super::found::{Candidate, Found};
use super::search::{SPARE, Search};
use rayon::prelude::*;
use sim::pipeline::{ChunkWork, EndedPipeline, PassesTime, RowPipeline, Schedule};
use sim::units::{Bytes, Seconds};
use std::collections::BTreeMap;
use step::{Alike, Arrangement, ChipTimes, Degrees, Lowered, Recent, Sends, Shape, TrainingPlan};
use workloads::{ChunkSplit, LayerEnds, Layout};

/// Seconds of one micro-batch's passes on one device, forward and backward, what nothing hides included.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Loads {
    /// The embedding.
    pub embedding: f64,
    /// One layer.
    pub layer: f64,
    /// The head.
    pub head: f64,
    /// What every chunk takes besides, at least.
    pub chunk: f64,
    /// What nothing hides of a send between chunks, and what the sends between devices farther apart take longer, all together: at least.
    pub sends: [f64; 2],
}

impl Loads {
    /// Those of a shape, what chunks and sends take besides left out.
    pub fn of(shape: &Shape) -> Self {
        let [embedding, layer, head] = shape.loads().map(|time| time.0);
        Self { embedding, layer, head, chunk: 0.0, sends: [0.0; 2] }
    }

    pub fn all(&self, layers: u64) -> f64 {
        self.embedding + self.layer * layers as f64 + self.head
    }

    /// Seconds that the passes of a split take at least: each device's, behind the way to it.
    fn bound(&self, split: &ChunkSplit, layout: &Layout, schedule: Schedule, micro_batches: u64) -> f64 {
        let arrangement = Arrangement::new(*layout, *split, schedule, micro_batches);
        let waits = !schedule.splits_backward();
        let device = |alike: Alike| {
            let ends = [alike.counts[0], alike.counts[2]].map(|count| count as f64);
            let chunks = f64::from(layout.virtual_stages) * self.chunk;
            let work = self.part(arrangement.layers_on(alike.from)) + ends[0] * self.embedding + ends[1] * self.head + chunks;
            // Of the devices that hold the same the last has the longest way to it.
            let way = if waits && alike.to > 0 { self.embedding + self.part(split.layers_before(alike.to.into())) } else { 0.0 };
            way + micro_batches as f64 * work
        };
        arrangement.devices().map(device).fold(0.0, f64::max)
    }

    /// Seconds that the passes of a split take at least under GPipe and 1F1B, plain or interleaved: paths whose bounds ([`RowPipeline`]) are sums of
    /// whole chunks' passes, forward and backward, or means of two such, so that half of either direction does.
    fn paths(&self, split: &ChunkSplit, layout: &Layout, schedule: Schedule, micro_batches: u64) -> f64 {
        let half = |seconds: f64| ChunkWork {
            forward: Seconds((seconds + self.chunk) / 2.0),
            backward: Seconds((seconds + self.chunk) / 2.0),
            ..ChunkWork::default()
        };
        let pipeline = EndedPipeline {
            first: half(self.embedding + self.part(split.first)),
            inner: half(self.part(split.inner)),
            last: half(self.part(split.last) + self.head),
            send: Seconds(self.sends[0]),
            farther: Seconds(self.sends[1]),
            devices: layout.pipeline,
            micro_batches: u32::try_from(micro_batches).unwrap_or(u32::MAX),
        };
        let longer = half(self.part(split.inner + 1));
        let row = RowPipeline { pipeline, longer, from: split.longer_from, count: split.longer };
        row.time(Arrangement::new(*layout, *split, schedule, micro_batches).schedule).seconds().0
    }

    /// Seconds of so many layers.
    fn part(&self, layers: u64) -> f64 {
        self.layer * layers as f64
    }

    /// All splits of a plan's layers whose bound is below a limit, with their bounds: of the passes, and what follows them at least where the first
    /// device holds so many layers.
    fn splits(&self, layers: u64, plan: &TrainingPlan, limit: f64, mut once: impl FnMut(u64) -> f64) -> Vec<(f64, ChunkSplit)> {
        let (layout, m) = (&plan.layout, plan.micro_batches());
        let v = u64::from(layout.virtual_stages);
        let each = limit / m as f64;
        let mut splits = Vec::new();
        for between in layout.betweens(layers) {
            // What a device between works at least, and the ends' devices besides their ends.
            let inner = if layout.pipeline > 2 { between.inner * v + u64::from(v == 1 && between.longer > 0) } else { 0 };
            if self.part(inner) > each {
                continue;
            }
            let others = if plan.schedule == Schedule::ZbV { 0.0 } else { self.part(between.inner * (v - 1)) };
            // What rounding leaves out of a whole number is given back.
            let most = |end: f64| ((each - others - end) / self.layer + 1e-9).clamp(-1.0, layers as f64).floor();
            let (first, last) = (most(self.embedding), most(self.head));
            if first < 0.0 || last < 0.0 {
                continue;
            }
            let ends = layers - between.layers();
            for first in ends.saturating_sub(last as u64)..=ends.min(first as u64) {
                let split = between.split(first, ends - first);
                let mut bound = self.bound(&split, layout, plan.schedule, m);
                if bound >= limit {
                    continue;
                }
                let once = once(Arrangement::new(*layout, split, plan.schedule, m).layers_on(0));
                if bound + once < limit && !plan.schedule.splits_backward() {
                    bound = bound.max(self.paths(&split, layout, plan.schedule, m));
                }
                if bound + once < limit {
                    splits.push((bound + once, split));
                }
            }
        }
        splits.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        splits
    }
}

/// What the passes of any split take at least, in terms of all devices' work for one micro-batch.
pub(super) fn least_share(layout: &Layout, schedule: Schedule, micro_batches: u64) -> f64 {
    let (m, p) = (micro_batches as f64, f64::from(layout.pipeline));
    let waits = layout.virtual_stages == 1 && !matches!(schedule, Schedule::ZbH1 | Schedule::ZbV);
    if waits { 1.0 / (1.0 - (1.0 - 1.0 / m).powf(p)) } else { m / p }
}

/// A plan of a lot that has other splits.
struct Open {
    /// Its place among the lot's pairs and among the division's schedules.
    pair: usize,
    schedule: usize,
    /// [`least_share`].
    share: f64,
    /// Whether every policy for it opens the plan; if not, only plans of the list are.
    usual: bool,
    /// Its splits besides the even one, or the one in its place, which has been evaluated.
    others: u64,
}

/// Of times that are equal but for rounding, the larger share by which they differ at most.
pub(super) const ROUNDING: f64 = 1e-9;

/// Degrees that a lot keeps at most.
const KEPT: usize = 4096;

/// What plans of a lot share: degrees do not depend on what a layer keeps.
struct Shared<'c> {
    chip: &'c mut ChipTimes,
    /// By division and split; none where the split cannot be.
    degrees: BTreeMap<(u32, Option<LayerEnds>), Option<Degrees>>,
    /// What a step takes at least besides its passes, by division, whether weight gradients are put off, and layers on the first device.
    once: BTreeMap<(u32, bool, u64), f64>,
}

impl Shared<'_> {
    /// The degrees of a plan of a division with a split of its own.
    fn degrees(
        &mut self,
        search: &Search<'_>,
        shape: &Shape,
        plan: &TrainingPlan,
        division: u32,
        domain: Option<u32>,
    ) -> Option<&Degrees> {
        if self.degrees.len() >= KEPT {
            self.degrees.clear();
        }
        let Self { chip, degrees, .. } = self;
        let degrees = degrees.entry((division, plan.layout.ends));
        degrees.or_insert_with(|| search.evaluator.degrees(chip, shape, plan, domain).ok()).as_ref()
    }
}

/// How the other splits were decided.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Tried {
    /// All there are.
    pub splits: u64,
    /// Evaluated.
    pub tried: u64,
}

impl Search<'_> {
    /// Gives every plan of the list its best split, and the list every plan that belongs there with its best split. `loads` are those of the
    /// policies of every lot, in the order of [`Search::places`].
    pub(super) fn uneven(&self, found: &mut Found, loads: &[Vec<Option<Loads>>]) -> Tried {
        let limit = self.needed(found);
        let places = self.places();
        let listed = &found.best;
        let each: Vec<(Found, Tried)> = places
            .par_iter()
            .zip(loads)
            .map_init(
                || self.chip.clone(),
                |chip, (&(family, lot), loads)| {
                    let here = listed.iter().filter(|c| (c.family as usize, c.lot as usize) == (family, lot));
                    self.uneven_lot(chip, (family, lot), (&here.copied().collect::<Vec<_>>(), loads), limit)
                },
            )
            .collect();
        let mut all = Tried::default();
        for (one, tried) in each {
            one.best.into_iter().for_each(|candidate| found.better(candidate, self.length));
            all = Tried { splits: all.splits + tried.splits, tried: all.tried + tried.tried };
        }
        all
    }

    /// Seconds from which on a plan is not among those asked for; what the list keeps beyond them is for times that differ by rounding.
    fn needed(&self, found: &Found) -> f64 {
        found.limit_of(self.length - SPARE) * (1.0 + ROUNDING)
    }

    pub(super) fn uneven_lot(
        &self,
        chip: &mut ChipTimes,
        (family, lot): (usize, usize),
        (listed, loads): (&[Candidate], &[Option<Loads>]),
        limit: f64,
    ) -> (Found, Tried) {
        let (mut found, mut tried) = (Found::default(), Tried::default());
        let layers = self.job.model.layers;
        let open = self.open_plans(family, lot);
        let least = open.iter().map(|o| o.share).fold(f64::INFINITY, f64::min);
        let overhead = self.evaluator.overhead().0;
        let mut shared = Shared { chip, degrees: BTreeMap::new(), once: BTreeMap::new() };
        let mut lowered = None;
        for (policy, loads) in loads.iter().enumerate() {
            let Some(loads) = loads else { continue };
            let is_open = |plan: &&Open| {
                let candidate = self.candidate((family, lot), policy, plan);
                self.open[policy] && plan.usual || listed.iter().any(|one| one.same_plan(&candidate))
            };
            if !self.open[policy] && listed.is_empty() {
                continue;
            }
            tried.splits += open.iter().filter(is_open).map(|plan| plan.others).sum::<u64>();
            let work = loads.all(layers);
            if work * least + overhead >= limit.min(self.needed(&found)) {
                continue;
            }
            let mut shape = None;
            for plan in open.iter().filter(is_open) {
                if work * plan.share + overhead >= limit.min(self.needed(&found)) {
                    continue;
                }
                let candidate = self.candidate((family, lot), policy, plan);
                let first = self.plan(candidate);
                let lowered = lowered.get_or_insert_with(|| Lowered::new(self.job.model, &first, self.job.stack));
                let Ok(lowered) = lowered else { continue };
                let shape = shape.get_or_insert_with(|| lowered.shape(shared.chip, self.job.fabric, &first));
                let Ok(shape) = shape else { continue };
                let limit = limit.min(self.needed(&found));
                let (best, count) = self.best_split(&mut shared, shape, &first, candidate, loads, limit);
                tried.tried += count;
                if let Some(best) = best {
                    found.rank(best, self.length);
                }
            }
        }
        (found, tried)
    }

    /// The plans of a lot under one policy that have other splits.
    fn open_plans(&self, family: usize, lot: usize) -> Vec<Open> {
        let mut open = Vec::new();
        let mut counted = (0, 0);
        let family = &self.families[family];
        for (pair, &(place, m)) in family.lots[lot].pairs.iter().enumerate() {
            let division = &family.divisions[place];
            if division.layout.pipeline < 2 {
                continue;
            }
            let chunks = division.layout.chunks();
            if counted.0 != chunks {
                counted = (chunks, division.layout.split_count(self.job.model.layers).saturating_sub(1));
            }
            for (schedule, (&kind, &usual)) in division.schedules.iter().zip(&division.open).enumerate() {
                open.push(Open { pair, schedule, share: least_share(&division.layout, kind, m), usual, others: counted.1 });
            }
        }
        open
    }

    fn candidate(&self, (family, lot): (usize, usize), policy: usize, open: &Open) -> Candidate {
        let (division, _) = self.families[family].lots[lot].pairs[open.pair];
        Candidate {
            time: 0.0,
            family: family as u32,
            lot: lot as u32,
            policy: policy as u32,
            division: division as u32,
            schedule: open.schedule as u32,
            ends: None,
        }
    }

    /// The time of a plan as it has been evaluated; infinite where it does not fit.
    fn known(&self, shape: &Shape, plan: &TrainingPlan, candidate: Candidate, sends: &Sends) -> f64 {
        let degrees = &self.degrees(candidate.family)[candidate.division as usize];
        let (Ok(degrees), m) = (degrees, plan.micro_batches()) else { return f64::INFINITY };
        if self.evaluator.lack(self.evaluator.need(shape, degrees, plan.schedule, m)) > Bytes::ZERO {
            return f64::INFINITY;
        }
        match self.evaluator.time(&mut Recent::default(), shape, degrees, sends, plan.schedule, m) {
            PassesTime::Exact(time) => time.0,
            PassesTime::AtLeast(_) => {
                self.evaluator.simulate(shape, degrees, sends, plan.schedule, m).map_or(f64::INFINITY, |time| time.0)
            }
        }
    }

    /// The fastest other split of a plan that fits and is faster than `limit`, and how many were evaluated.
    fn best_split(
        &self,
        shared: &mut Shared<'_>,
        shape: &Shape,
        plan: &TrainingPlan,
        candidate: Candidate,
        loads: &Loads,
        limit: f64,
    ) -> (Option<Candidate>, u64) {
        let (layers, domain) = (self.job.model.layers, self.job.domain(plan));
        if !self.evaluator.may_fit(shape, plan, domain) {
            return (None, 0);
        }
        let sends = self.evaluator.sends(shared.chip, shape, plan);
        // What is no faster than the split that the plan has been evaluated with is of no use.
        let limit = limit.min(self.known(shape, plan, candidate, &sends));
        let (known, overhead) = (plan.layout.chunk_split(layers).ok(), self.evaluator.overhead().0);
        let (chunk, sends_at_least) = (self.evaluator.pass_overhead(plan), self.evaluator.least_sends(plan, &sends));
        let loads = Loads { chunk: 2.0 * chunk.0, sends: sends_at_least.map(|time| time.0), ..*loads };
        let Shared { chip, once, .. } = &mut *shared;
        let once = |first: u64| {
            let known = once.entry((candidate.division, plan.schedule.splits_backward(), first));
            *known.or_insert_with(|| self.evaluator.least_once(chip, shape, plan, first).0)
        };
        let splits = loads.splits(layers, plan, limit - overhead, once).into_iter().filter(|(_, split)| Some(*split) != known);
        let mut trial = Trial { search: self, shape, plan: plan.clone(), candidate, sends, domain, limit, best: None };
        let (mut open, mut lowest, mut tried): (Vec<(f64, Option<LayerEnds>)>, f64, u64) = (Vec::new(), f64::INFINITY, 0);
        for (bound, split) in splits {
            if bound + overhead >= trial.least() {
                break;
            }
            tried += 1;
            match trial.time(shared, split.ends()) {
                Some(PassesTime::Exact(time)) => trial.take(time),
                // What has the lowest bound so far is played at once, the others wait for it.
                Some(PassesTime::AtLeast(bound)) if bound.0 < lowest => {
                    lowest = bound.0;
                    trial.play(shared, split.ends());
                }
                Some(PassesTime::AtLeast(bound)) => open.push((bound.0, split.ends())),
                None => {}
            }
        }
        open.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        for (bound, ends) in open {
            if bound >= trial.least() {
                break;
            }
            trial.play(shared, ends);
        }
        (trial.best, tried)
    }
}

/// A plan under one split of its layers after another.
struct Trial<'t> {
    search: &'t Search<'t>,
    shape: &'t Shape,
    plan: TrainingPlan,
    candidate: Candidate,
    sends: Sends,
    domain: Option<u32>,
    limit: f64,
    /// The fastest so far that is faster than the limit.
    best: Option<Candidate>,
}

impl Trial<'_> {
    /// Seconds from which on a split is of no use.
    fn least(&self) -> f64 {
        self.best.map_or(self.limit, |best| best.time)
    }

    /// Takes the time of the split tried last.
    fn take(&mut self, time: Seconds) {
        if time.0 < self.least() {
            self.best = Some(Candidate { time: time.0, ends: self.plan.layout.ends, ..self.candidate });
        }
    }

    /// The time under a split, or its bound; none where it is of no use or does not fit.
    fn time(&mut self, shared: &mut Shared<'_>, ends: Option<LayerEnds>) -> Option<PassesTime> {
        self.plan.layout.ends = ends;
        let (evaluator, schedule, m) = (&self.search.evaluator, self.plan.schedule, self.plan.micro_batches());
        let degrees = shared.degrees(self.search, self.shape, &self.plan, self.candidate.division, self.domain)?;
        let time = evaluator.time(&mut Recent::default(), self.shape, degrees, &self.sends, schedule, m);
        let fits = || evaluator.lack(evaluator.need(self.shape, degrees, schedule, m)) == Bytes::ZERO;
        (time.seconds().0 < self.least() && fits()).then_some(time)
    }

    /// Plays the schedule under a split that fits.
    fn play(&mut self, shared: &mut Shared<'_>, ends: Option<LayerEnds>) {
        self.plan.layout.ends = ends;
        let (schedule, m) = (self.plan.schedule, self.plan.micro_batches());
        let degrees = shared.degrees(self.search, self.shape, &self.plan, self.candidate.division, self.domain);
        let played = |degrees| self.search.evaluator.simulate(self.shape, degrees, &self.sends, schedule, m).ok();
        if let Some(time) = degrees.and_then(played) {
            self.take(time);
        }
    }
}

#[cfg(test)]
#[path = "splits_tests.rs"]
mod tests;
