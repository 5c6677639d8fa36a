//! Other splits of the layers than the even one: other numbers of layers in the first and the last chunk, where embedding and head are, and, where
//! what they leave does not divide among the chunks between, a row of neighbours among these that hold one layer more, anywhere.
//!
//! Every plan with a pipeline has as many of these as [`workloads::Layout::chunk_splits`] lists: thousands. They are not evaluated one by one. A bound
//! that no split of a plan's layers goes below, whatever chunks it makes, is held against the list that the even splits have left:
//! - Let device `j` of `p` work `D_j` per micro-batch. Its first pass waits for one micro-batch's way through the devices before it, and after its
//!   last one that way goes back: the passes take at least `D_0 + ... + D_(j-1) + m D_j`. With `D` the sum of all devices, the largest of these is
//!   least where each device does `1 - 1 / m` of what the one before does: `D / (1 - (1 - 1 / m)^p)`.
//! - With several chunks per device, or backward passes in two parts, `m D / p` is what remains of it.
//!
//! What a device exchanges once per step follows its passes, the first device's the last pass of all, and all updates follow: they are added to a
//! split's bound ([`step::Evaluator::least_exposed_exchange`]).
//!
//! Plans whose stages together have too little room for all layers, however many each takes, are left out. For those that are left, the splits are
//! bounded one by one, by the first rule with their own `D_j` and by paths through the schedule, with what nothing hides of a chunk's gathered weights, and those below the list, and below the plan's own
//! time, evaluated, least bound first, until the best is no more than the next bound. So every plan of the list has its best split of these, where
//! that is asked for. Usually it is one near the even split, and only splits are looked for among all that make a plan faster than the first of the
//! list by more than a tolerance: few bounds are below that. That one of another form (chunks between that differ by two layers, or longer ones apart) is faster is not ruled out.

use super::PlanPart;
use super::found::{FoundPlans, PlanCandidate};
use super::loads::{PassLoads, SplitCosts, least_share_of_work};
use super::search::{PlanSearch, SPARE};
use super::settle::TimingMethod;
use super::space::SPLIT_TOLERANCE;
use rayon::prelude::*;
use sim::pipeline::PassesTime;
use sim::units::{Bytes, Seconds};
use std::collections::BTreeMap;
use step::{ChipTimes, DegreeCosts, DeviceHolding, LoweredModel, PipelineSends, PlanShape, RecentChunks, TrainingPlan};
use workloads::{ChunkSplit, LayerEnds};

/// [`SplitCosts`] of a plan of a search.
struct PlanSplitCosts<'r, 's, 'c> {
    search: &'r PlanSearch<'s>,
    shared: &'r mut GroupDegrees<'c>,
    shape: &'r PlanShape,
    plan: &'r TrainingPlan,
    division: u32,
    domain: Option<u32>,
}

impl SplitCosts for PlanSplitCosts<'_, '_, '_> {
    fn late_exchange_seconds(&mut self, held: DeviceHolding) -> f64 {
        let GroupDegrees { chip, known: [late, _], .. } = &mut *self.shared;
        let known = late.entry((self.division, held));
        *known.or_insert_with(|| self.search.evaluator.least_exposed_exchange(chip, self.shape, self.plan, held).0)
    }

    fn update_seconds(&mut self, held: DeviceHolding) -> f64 {
        let GroupDegrees { chip, known: [_, update], .. } = &mut *self.shared;
        let known = update.entry((self.division, held));
        *known.or_insert_with(|| self.search.evaluator.time_of_least_update(chip, self.shape, self.plan, held).0)
    }

    fn may_fit(&self, split: ChunkSplit) -> bool {
        self.search.job.may_hold_split(&split)
            && !self.search.evaluator.exceeds_capacity(self.shape, self.plan, split, self.domain)
    }
}

/// A plan of a lot that has other splits.
struct OpenPlan {
    /// Its place among the lot's pairs and among the division's schedules.
    pair: usize,
    schedule: usize,
    /// [`least_share_of_work`].
    share: f64,
    /// Seconds that all chunks' passes of a micro-batch take besides their kernels.
    waiting: f64,
    /// Passes through a layer of the device that holds most, and seconds of what follows them.
    busiest: (f64, f64),
    /// Whether every policy for it opens the plan; if not, only plans of the list are.
    usual: bool,
    /// Its splits besides the even one, or the one in its place, which has been evaluated.
    others: u64,
}

impl OpenPlan {
    /// Seconds that no split of the plan's layers goes below, but for the overhead, where all devices' work for a micro-batch and a layer's take so long.
    fn lower_bound_of_splits(&self, work: f64, layer: f64) -> f64 {
        ((work + self.waiting) * self.share).max(self.busiest.0 * layer + self.busiest.1)
    }
}

/// Of times that are equal but for rounding, the larger share by which they differ at most.
pub(super) const ROUNDING: f64 = 1e-9;

/// Degrees that a lot keeps at most.
const KEPT: usize = 4096;

/// What plans of a lot share: degrees do not depend on what a layer keeps.
struct GroupDegrees<'c> {
    chip: &'c mut ChipTimes,
    /// By division and split; none where the split cannot be.
    degrees: BTreeMap<(u32, Option<LayerEnds>), Option<DegreeCosts>>,
    /// What a device exchanges behind its last pass at least, and its update, by division and what it holds.
    known: [BTreeMap<(u32, DeviceHolding), f64>; 2],
}

impl GroupDegrees<'_> {
    /// The degrees of a plan of a division with a split of its own.
    fn degrees_with_split(
        &mut self,
        search: &PlanSearch<'_>,
        shape: &PlanShape,
        plan: &TrainingPlan,
        division: u32,
        domain: Option<u32>,
    ) -> Option<&DegreeCosts> {
        if self.degrees.len() >= KEPT {
            self.degrees.clear();
        }
        let Self { chip, degrees, .. } = self;
        let degrees = degrees.entry((division, plan.layout.ends));
        degrees.or_insert_with(|| search.evaluator.prepare_degrees(chip, shape, plan, domain).ok()).as_ref()
    }
}

/// How the other splits were decided.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct SplitStatistics {
    /// All there are.
    pub splits: u64,
    /// Evaluated.
    pub tried: u64,
}

/// Which splits of a plan's layers are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SplitReach {
    /// Of those near the even one the few of the least bounds.
    Near,
    /// All whose bound is below what is sought.
    All,
}

/// What a pass over the splits of all plans looks for.
#[derive(Debug, Clone, Copy)]
struct SplitGoal {
    reach: SplitReach,
    /// Seconds that a plan has to stay below.
    limit: f64,
    /// The place in a lot's own list that it has to beat as well, from 1, and by what share of its time.
    place: usize,
    gain: f64,
}

impl SplitGoal {
    /// Seconds from which on a plan is of no use. What the list keeps beyond those asked for is for times that differ by rounding.
    fn cutoff_seconds(found: &FoundPlans, place: usize, gain: f64) -> f64 {
        found.cutoff_for_count(place) * (1.0 + ROUNDING) * (1.0 - gain)
    }

    fn list_limit(&self, found: &FoundPlans) -> f64 {
        self.limit.min(Self::cutoff_seconds(found, self.place, self.gain))
    }
}

impl PlanSearch<'_> {
    /// Gives every plan of the list its best split, and the list every plan that belongs there with its best split. `loads` are those of the
    /// policies of every lot, in the order of [`PlanSearch::group_places`].
    pub(super) fn find_best_splits(&self, found: &mut FoundPlans, loads: &[Vec<Option<PassLoads>>]) -> SplitStatistics {
        self.search_uneven_splits(found, loads, SplitReach::All, (self.length - SPARE, 0.0))
    }

    /// Gives the plans of the list, and those that belong there with it, the best of the splits near the even one, and the list any plan that
    /// another split makes faster than the first by more than [`SPLIT_TOLERANCE`].
    pub(super) fn find_near_splits(&self, found: &mut FoundPlans, loads: &[Vec<Option<PassLoads>>]) -> SplitStatistics {
        let near = self.search_uneven_splits(found, loads, SplitReach::Near, (self.length - SPARE, 0.0));
        let all = self.search_uneven_splits(found, loads, SplitReach::All, (1, SPLIT_TOLERANCE));
        SplitStatistics { splits: all.splits, tried: near.tried + all.tried + self.polish_first_plan(found, loads) }
    }

    /// Gives the first plan of the list its best split, so that no neighbour of it is faster; how many were evaluated.
    fn polish_first_plan(&self, found: &mut FoundPlans, loads: &[Vec<Option<PassLoads>>]) -> u64 {
        // Who stops the search has the first plan within the tolerance of the splits that were looked at.
        let first = found.best.first().filter(|_| !self.standing.should_stop());
        let Some(first) = first.map(|first| PlanCandidate { ends: None, ..*first }) else { return 0 };
        let place = self.group_places().iter().position(|place| *place == (first.family as usize, first.lot as usize));
        let loads = place.and_then(|place| loads[place].get(first.policy as usize)).and_then(Option::as_ref);
        let (plan, mut chip) = (self.plan_of(first), self.chip.clone());
        let (Some(loads), true) = (loads, plan.layout.pipeline > 1) else { return 0 };
        let Ok(shape) = PlanShape::new(&mut chip, self.job.model, self.job.fabric, &plan) else { return 0 };
        let mut shared = GroupDegrees { chip: &mut chip, degrees: BTreeMap::new(), known: Default::default() };
        let sought = SplitGoal { reach: SplitReach::All, limit: first.time, place: 1, gain: 0.0 };
        let (best, tried) = self.find_best_split(&mut shared, &shape, &plan, first, loads, sought);
        best.into_iter().for_each(|best| found.insert_with_split(best, self.length));
        tried
    }

    /// The plans of a lot that any split makes faster than `limit`, `known` those of the list and the loads of its policies; how the splits were decided.
    pub(super) fn best_splits_of_group(
        &self,
        chip: &mut ChipTimes,
        place: (usize, usize),
        known: (&[PlanCandidate], &[Option<PassLoads>]),
        limit: f64,
    ) -> (FoundPlans, SplitStatistics) {
        let (gain, place_in_list) = (self.split_tolerance, self.length - SPARE);
        self.search_uneven_splits_of_group(
            chip,
            place,
            known,
            SplitGoal { reach: SplitReach::All, limit: limit * (1.0 - gain), place: place_in_list, gain },
        )
    }

    fn search_uneven_splits(
        &self,
        found: &mut FoundPlans,
        loads: &[Vec<Option<PassLoads>>],
        reach: SplitReach,
        (place, gain): (usize, f64),
    ) -> SplitStatistics {
        let sought = SplitGoal { reach, limit: SplitGoal::cutoff_seconds(found, place, gain), place, gain };
        let places = self.group_places();
        self.standing.begin_part(PlanPart::Splits, places.len());
        let listed = &found.best;
        let each: Vec<(FoundPlans, SplitStatistics)> = places
            .par_iter()
            .zip(loads)
            .map_init(
                || self.chip.clone(),
                |chip, (&(family, lot), loads)| {
                    let here = listed.iter().filter(|c| (c.family as usize, c.lot as usize) == (family, lot));
                    let (one, tried) = self.search_uneven_splits_of_group(
                        chip,
                        (family, lot),
                        (&here.copied().collect::<Vec<_>>(), loads),
                        sought,
                    );
                    self.standing.add_done(1, 0, one.cutoff_for_count(1));
                    (one, tried)
                },
            )
            .collect();
        let mut all = SplitStatistics::default();
        for (one, tried) in each {
            one.best.into_iter().for_each(|candidate| found.insert_with_split(candidate, self.length));
            all = SplitStatistics { splits: all.splits + tried.splits, tried: all.tried + tried.tried };
        }
        all
    }

    fn search_uneven_splits_of_group(
        &self,
        chip: &mut ChipTimes,
        (family, lot): (usize, usize),
        (listed, loads): (&[PlanCandidate], &[Option<PassLoads>]),
        sought: SplitGoal,
    ) -> (FoundPlans, SplitStatistics) {
        let (mut found, mut tried) = (FoundPlans::default(), SplitStatistics::default());
        let layers = self.job.model.layers;
        let open = self.open_plans(family, lot);
        let overhead = self.evaluator.overhead_per_step().0;
        let mut shared = GroupDegrees { chip, degrees: BTreeMap::new(), known: Default::default() };
        // Plans in the order of their bounds: what the first ones are found to take, few others are below.
        let mut order: Vec<(f64, usize, &OpenPlan, &PassLoads)> = Vec::new();
        for (policy, loads) in loads.iter().enumerate() {
            let Some(loads) = loads else { continue };
            if !self.open[policy] && listed.is_empty() {
                continue;
            }
            let is_open = |plan: &&OpenPlan| {
                let candidate = self.candidate_with_split((family, lot), policy, plan);
                self.open[policy] && plan.usual || listed.iter().any(|one| one.is_same_plan(&candidate))
            };
            let work = loads.all_loads(layers);
            for plan in open.iter().filter(is_open) {
                tried.splits += plan.others;
                order.push((plan.lower_bound_of_splits(work, loads.layer) + overhead, policy, plan, loads));
            }
        }
        order.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (mut lowered, mut shapes) = (None, vec![None; loads.len()]);
        for (bound, policy, plan, loads) in order {
            if bound >= sought.list_limit(&found) {
                break;
            }
            if self.standing.should_stop() {
                // Of those left this one has the least.
                self.standing.note_left_bound(bound);
                break;
            }
            let candidate = self.candidate_with_split((family, lot), policy, plan);
            let first = self.plan_of(candidate);
            let lowered = lowered.get_or_insert_with(|| LoweredModel::new(self.job.model, &first, self.job.stack));
            let Ok(lowered) = lowered else { break };
            let shape = shapes[policy].get_or_insert_with(|| lowered.plan_shape(shared.chip, self.job.fabric, &first));
            let Ok(shape) = shape else { continue };
            let sought = SplitGoal { limit: sought.list_limit(&found), ..sought };
            let (best, count) = self.find_best_split(&mut shared, shape, &first, candidate, loads, sought);
            tried.tried += count;
            if let Some(best) = best {
                found.insert_timed(best, self.length);
            }
        }
        (found, tried)
    }

    /// The plans of a lot under one policy that have other splits.
    fn open_plans(&self, family: usize, lot: usize) -> Vec<OpenPlan> {
        let mut open = Vec::new();
        let mut counted = (0, 0);
        let (divided, family) = (self.divisions_of(family as u32), &self.families[family]);
        for (pair, &(place, m)) in family.lots[lot].pairs.iter().enumerate() {
            let (division, (most, late)) = (&family.divisions[place], divided[place].busiest);
            if division.layout.pipeline < 2 {
                continue;
            }
            let chunks = division.layout.chunk_count();
            if counted.0 != chunks {
                counted = (chunks, division.layout.count_chunk_splits(self.job.model.layers).saturating_sub(1));
            }
            for (schedule, (&kind, &usual)) in division.schedules.iter().zip(&division.open).enumerate() {
                let (share, pass) =
                    (least_share_of_work(&division.layout, kind, m), self.evaluator.pass_overhead(&division.layout));
                let (waiting, busiest) = (2.0 * pass.0 * chunks as f64, ((m * most) as f64, late));
                open.push(OpenPlan { pair, schedule, share, waiting, busiest, usual, others: counted.1 });
            }
        }
        open
    }

    fn candidate_with_split(&self, (family, lot): (usize, usize), policy: usize, open: &OpenPlan) -> PlanCandidate {
        let (division, _) = self.families[family].lots[lot].pairs[open.pair];
        PlanCandidate {
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
    fn known_time_of(&self, shape: &PlanShape, plan: &TrainingPlan, candidate: PlanCandidate, sends: &PipelineSends) -> f64 {
        let degrees = &self.divisions_of(candidate.family)[candidate.division as usize].degrees;
        let (Ok(degrees), m) = (degrees, plan.micro_batches()) else { return f64::INFINITY };
        if self.evaluator.total_shortfall(self.evaluator.memory_need(shape, degrees, plan.schedule, m)) > Bytes::ZERO {
            return f64::INFINITY;
        }
        match self.evaluator.time_of_passes(&mut RecentChunks::default(), shape, degrees, sends, plan.schedule, m) {
            PassesTime::Exact(time) => time.0,
            PassesTime::AtLeast(closed) => {
                self.simulate_plan(shape, degrees, sends, (plan.schedule, m), closed).map_or(f64::INFINITY, |time| time.0)
            }
        }
    }

    /// Loads with what a plan's chunks and sends take besides.
    pub(super) fn loads_of_plan(
        &self,
        chip: &mut ChipTimes,
        shape: &PlanShape,
        plan: &TrainingPlan,
        loads: &PassLoads,
        sends: &PipelineSends,
    ) -> PassLoads {
        let (chunk, sends_at_least) =
            (self.evaluator.pass_overhead(&plan.layout), self.evaluator.least_exposed_sends(plan, sends));
        let gathers = self.evaluator.least_exposed_gathers(chip, shape, plan);
        let between = self.evaluator.exposed_layer_gathers(chip, shape, plan);
        PassLoads {
            chunk: gathers.map(|time| (chunk + time).0),
            between: [between.once.map(|time| (chunk + time).0), between.each.map(|time| time.0)],
            sends: sends_at_least.map(|time| time.0),
            ..*loads
        }
    }

    /// The fastest other split of a plan that fits and is faster than `limit`, and how many were evaluated.
    fn find_best_split(
        &self,
        shared: &mut GroupDegrees<'_>,
        shape: &PlanShape,
        plan: &TrainingPlan,
        candidate: PlanCandidate,
        loads: &PassLoads,
        sought: SplitGoal,
    ) -> (Option<PlanCandidate>, u64) {
        let (layers, domain) = (self.job.model.layers, self.job.sharding_domain(plan));
        if !self.evaluator.may_fit(shape, plan, domain) {
            return (None, 0);
        }
        let sends = self.evaluator.pipeline_sends(shared.chip, shape, plan);
        let (even, overhead) = (plan.layout.chunk_split(layers).ok(), self.evaluator.overhead_per_step().0);
        let loads = self.loads_of_plan(shared.chip, shape, plan, loads, &sends);
        let mut rest = PlanSplitCosts { search: self, shared, shape, plan, division: candidate.division, domain };
        let limit = sought.limit;
        let mut splits = match sought.reach {
            SplitReach::All => loads.splits_by_bound(layers, plan, limit - overhead, &mut rest),
            SplitReach::Near => loads.near_splits_by_bound(layers, plan, limit - overhead, &mut rest),
        };
        let mut trial = SplitTrial { search: self, shape, plan: plan.clone(), candidate, sends, domain, limit, best: None };
        let (mut open, mut lowest, mut tried): (Vec<(Seconds, Option<LayerEnds>)>, f64, u64) = (Vec::new(), f64::INFINITY, 0);
        while let Some((bound, split)) = splits.next_below(&loads, plan, trial.cutoff_seconds() - overhead, &rest) {
            if Some(split) == even {
                continue;
            }
            if self.standing.should_stop() {
                self.standing.note_left_bound(bound + overhead);
                break;
            }
            // What is no faster than the split that the plan has been evaluated with is of no use. Of few splits that is seen afterwards.
            if tried == 0 && sought.reach == SplitReach::All && sought.gain == 0.0 {
                trial.limit = limit.min(self.known_time_of(shape, plan, candidate, &trial.sends));
                if bound + overhead >= trial.limit {
                    break;
                }
            }
            tried += 1;
            let bounds = |time: f64| bound + overhead <= time * (1.0 + ROUNDING);
            match trial.time_of_split(rest.shared, split.layer_ends()) {
                Some(PassesTime::AtLeast(time)) if self.timing_method(shape, plan.schedule) == TimingMethod::Closed => {
                    trial.take_time(time)
                }
                Some(PassesTime::Exact(time)) => {
                    debug_assert!(bounds(time.0), "{split}: {bound} and {overhead} above {time}");
                    trial.take_time(time);
                }
                // What has the lowest bound so far is played at once, the others wait for it.
                Some(PassesTime::AtLeast(at_least)) if at_least.0 < lowest => {
                    lowest = at_least.0;
                    let played = trial.play_split(rest.shared, split.layer_ends(), at_least);
                    debug_assert!(played.is_none_or(|time| bounds(time.0)), "{split}: {bound} and {overhead} above {played:?}");
                }
                Some(PassesTime::AtLeast(bound)) => open.push((bound, split.layer_ends())),
                None => {}
            }
        }
        trial.play_in_order(shared, open);
        (trial.best, tried)
    }
}

/// A plan under one split of its layers after another.
struct SplitTrial<'t> {
    search: &'t PlanSearch<'t>,
    shape: &'t PlanShape,
    plan: TrainingPlan,
    candidate: PlanCandidate,
    sends: PipelineSends,
    domain: Option<u32>,
    limit: f64,
    /// The fastest so far that is faster than the limit.
    best: Option<PlanCandidate>,
}

impl SplitTrial<'_> {
    /// Seconds from which on a split is of no use.
    fn cutoff_seconds(&self) -> f64 {
        self.best.map_or(self.limit, |best| best.time * (1.0 - self.search.split_tolerance))
    }

    /// Takes the time of the split tried last.
    fn take_time(&mut self, time: Seconds) {
        if time.0 < self.cutoff_seconds() {
            self.best = Some(PlanCandidate { time: time.0, ends: self.plan.layout.ends, ..self.candidate });
        }
    }

    /// The time under a split, or its bound; none where it is of no use or does not fit.
    fn time_of_split(&mut self, shared: &mut GroupDegrees<'_>, ends: Option<LayerEnds>) -> Option<PassesTime> {
        self.plan.layout.ends = ends;
        let (evaluator, schedule, m) = (&self.search.evaluator, self.plan.schedule, self.plan.micro_batches());
        let degrees = shared.degrees_with_split(self.search, self.shape, &self.plan, self.candidate.division, self.domain)?;
        let time = evaluator.time_of_passes(&mut RecentChunks::default(), self.shape, degrees, &self.sends, schedule, m);
        let fits = || evaluator.total_shortfall(evaluator.memory_need(self.shape, degrees, schedule, m)) == Bytes::ZERO;
        (time.seconds().0 < self.cutoff_seconds() && fits()).then_some(time)
    }

    /// Plays the schedule under splits that fit, in the order of their bounds, as long as these are of use.
    fn play_in_order(&mut self, shared: &mut GroupDegrees<'_>, mut splits: Vec<(Seconds, Option<LayerEnds>)>) {
        splits.sort_by(|a, b| a.0.0.total_cmp(&b.0.0).then(a.1.cmp(&b.1)));
        for (bound, ends) in splits {
            if bound.0 >= self.cutoff_seconds() {
                break;
            }
            if self.search.standing.should_stop() {
                self.search.standing.note_left_bound(bound.0);
                break;
            }
            self.play_split(shared, ends, bound);
        }
    }

    /// Plays the schedule under a split that fits, which takes no less than `closed`; its time.
    fn play_split(&mut self, shared: &mut GroupDegrees<'_>, ends: Option<LayerEnds>, closed: Seconds) -> Option<Seconds> {
        self.plan.layout.ends = ends;
        let (schedule, m) = (self.plan.schedule, self.plan.micro_batches());
        let degrees = shared.degrees_with_split(self.search, self.shape, &self.plan, self.candidate.division, self.domain);
        let played = |degrees| self.search.simulate_plan(self.shape, degrees, &self.sends, (schedule, m), closed).ok();
        let time = degrees.and_then(played)?;
        self.take_time(time);
        Some(time)
    }
}

#[cfg(test)]
#[path = "splits_tests.rs"]
mod tests;
