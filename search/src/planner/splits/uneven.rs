//! Searches uneven splits of the layers. The first and the last chunk, with embedding and head, may hold other numbers
//! of layers. If the rest does not divide evenly among the inner chunks, one contiguous run of these holds one layer
//! more each.
//!
//! Every plan with a pipeline has thousands of these splits ([`workloads::Layout::chunk_splits`]). They are not
//! evaluated one by one. First, a lower bound over all splits of a plan, for any chunks, is compared with the list that
//! the even splits have left:
//! - Let device `j` of `p` work `D_j` seconds per micro-batch. Its first pass waits until one micro-batch has passed
//!   the devices before it, and after its last pass that micro-batch goes back the same way. So the passes take at
//!   least `D_0 + ... + D_(j-1) + m D_j`. With `D` as the sum over all devices, the largest of these is least if each
//!   device works `1 - 1 / m` of the one before: `D / (1 - (1 - 1 / m)^p)`.
//! - With several chunks per device, or backward passes in two parts, only `m D / p` of this bound remains.
//!
//! A device's exchange, once per step, follows its passes. The first device's exchange follows the last pass of all,
//! and all updates follow. They are added to a split's bound ([`step::Evaluator::least_exposed_exchange`]).
//!
//! Plans whose stages together have too little memory for all layers are left out for every split. For the remaining
//! plans the splits are bounded one by one: by the first rule with their own `D_j`, and by paths through the schedule
//! with the exposed gathers of a chunk's weights. Splits whose bound is below the list and below the plan's own time
//! are evaluated, least bound first, until the best time is no more than the next bound.
//!
//! With [`Splits::Best`](crate::planner::Splits::Best), every plan of the list gets its best split. Otherwise a plan
//! gets the best split near the even one. All other splits are then searched only for plans that become faster than the
//! first of the list by more than a tolerance; few bounds are below that. Splits of other forms are not ruled out:
//! inner chunks that differ by two layers, or longer chunks that are not contiguous.

use crate::planner::PlanPart;
use crate::planner::bounds::loads::{PassLoads, SecondsByHolding, SplitCosts, least_share_of_work};
use crate::planner::search::core::{PlanSearch, SPARE};
use crate::planner::search::found::{FoundPlans, PlanCandidate, ROUNDING, SplitStatistics};
use crate::planner::search::settle::TimingMethod;
use crate::planner::space::plan_space::SPLIT_TOLERANCE;
use rayon::prelude::*;
use sim::pipeline::PassesTime;
use sim::units::{Bytes, Seconds};
use std::collections::BTreeMap;
use step::{
    ChipTimes, DegreeCosts, DeviceHolding, EndChunk, LoweredModel, PipelineSends, PlanShape, RecentChunks, TrainingPlan,
};
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
        let GroupDegrees { chip, known, .. } = &mut *self.shared;
        let [late, _] = known.entry(self.division).or_default();
        late.get_or_insert_with(held, || {
            self.search.evaluator.least_exposed_exchange(chip, self.shape, self.plan, held).0
        })
    }

    fn update_seconds(&mut self, held: DeviceHolding) -> f64 {
        let GroupDegrees { chip, known, .. } = &mut *self.shared;
        let [_, update] = known.entry(self.division).or_default();
        update.get_or_insert_with(held, || {
            self.search.evaluator.time_of_least_update(chip, self.shape, self.plan, held).0
        })
    }

    fn may_fit(&self, split: ChunkSplit) -> bool {
        self.search.job.may_hold_split(&split)
            && !self.search.evaluator.exceeds_capacity(self.shape, self.plan, split, self.domain)
    }

    fn may_fit_without(&self, split: ChunkSplit, end: EndChunk) -> bool {
        !self.search.evaluator.exceeds_capacity_without(self.shape, self.plan, split, end, self.domain)
    }
}

/// A plan of a group that has uneven splits.
struct OpenPlan {
    /// Index among the group's pairs; `schedule` is the index among the division's schedules.
    pair: usize,
    schedule: usize,
    /// See [`least_share_of_work`].
    share: f64,
    /// Seconds of all chunks' passes of a micro-batch beyond their kernels.
    waiting: f64,
    /// For the device with most layers: the number of passes through a layer, and the seconds that follow them.
    busiest: (f64, f64),
    /// True if the plan may have uneven splits under every open policy; otherwise only if it is in the list.
    usual: bool,
    /// Number of its splits besides the one already evaluated: the even one, or the one in its place.
    others: u64,
}

impl OpenPlan {
    /// Lower bound in seconds on any split of the plan's layers, without overhead. `work` is all devices' work for a
    /// micro-batch, `layer` a layer's part of it.
    fn lower_bound_of_splits(&self, work: f64, layer: f64) -> f64 {
        ((work + self.waiting) * self.share).max(self.busiest.0 * layer + self.busiest.1)
    }
}

/// Limit on cached degree costs of a group.
const KEPT: usize = 4096;

/// Data that plans of a group share. Degree costs do not depend on the policy of a layer.
struct GroupDegrees<'c> {
    chip: &'c mut ChipTimes,
    /// By division and split; `None` if the split is impossible.
    degrees: BTreeMap<(u32, Option<LayerEnds>), Option<DegreeCosts>>,
    /// By division: the seconds of a device's least exchange after its last pass, and of its update.
    known: BTreeMap<u32, [SecondsByHolding; 2]>,
}

impl GroupDegrees<'_> {
    /// The degree costs of a division's plan under the plan's split; `None` if the split is impossible.
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

/// The splits of a plan's layers that are tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SplitReach {
    /// The few with the least bounds, among those near the even split.
    Near,
    /// All with a bound below the goal.
    All,
}

/// The goal of a pass over the splits of all plans.
#[derive(Debug, Clone, Copy)]
struct SplitGoal {
    reach: SplitReach,
    /// Upper limit on a plan's seconds.
    limit: f64,
    /// The rank in a group's own list (from 1) that a plan must beat as well. `gain` is the required gain as a fraction
    /// of its time.
    place: usize,
    gain: f64,
}

impl SplitGoal {
    /// The time in seconds from which on a plan is useless. The rounding allowance keeps plans whose times are equal
    /// except for rounding.
    fn cutoff_seconds(found: &FoundPlans, place: usize, gain: f64) -> f64 {
        found.cutoff_for_count(place) * (1.0 + ROUNDING) * (1.0 - gain)
    }

    fn list_limit(&self, found: &FoundPlans) -> f64 {
        self.limit.min(Self::cutoff_seconds(found, self.place, self.gain))
    }
}

impl PlanSearch<'_> {
    /// Gives every plan of the list its best split, and adds every plan that enters the list with its best split.
    /// `loads` are those of every group's policies, in the order of [`PlanSearch::group_places`].
    pub(crate) fn find_best_splits(&self, found: &mut FoundPlans, loads: &[Vec<Option<PassLoads>>]) -> SplitStatistics {
        self.search_uneven_splits(found, loads, SplitReach::All, (self.length - SPARE, 0.0))
    }

    /// Gives plans of the list, and plans that then enter it, the best split near the even one. Adds any plan that
    /// another split makes faster than the first by more than [`SPLIT_TOLERANCE`], and gives the first plan its best
    /// split.
    pub(crate) fn find_near_splits(&self, found: &mut FoundPlans, loads: &[Vec<Option<PassLoads>>]) -> SplitStatistics {
        let near = self.search_uneven_splits(found, loads, SplitReach::Near, (self.length - SPARE, 0.0));
        let all = self.search_uneven_splits(found, loads, SplitReach::All, (1, SPLIT_TOLERANCE));
        SplitStatistics { splits: all.splits, tried: near.tried + all.tried + self.polish_first_plan(found, loads) }
    }

    /// Gives the first plan of the list its best split, so that none of its neighbours is faster. Returns the number of
    /// splits evaluated.
    fn polish_first_plan(&self, found: &mut FoundPlans, loads: &[Vec<Option<PassLoads>>]) -> u64 {
        // After a stop, the first plan is within the tolerance of the splits that were tried.
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

    /// The plans of a group that some split makes faster than `limit` seconds, and the counts of splits. `known` holds
    /// the group's plans in the list, and the loads of its policies.
    pub(crate) fn best_splits_of_group(
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
        let limit = self.limit.min(SplitGoal::cutoff_seconds(found, place, gain));
        let sought = SplitGoal { reach, limit, place, gain };
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
        // Plans are tried in the order of their bounds, because few later bounds are below the times found first.
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
                // The least bound of the remaining plans.
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

    /// The plans of a group, under one policy, that have uneven splits.
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

    /// Seconds of a plan under the split already evaluated; infinite if it does not fit.
    fn known_time_of(
        &self,
        shape: &PlanShape,
        plan: &TrainingPlan,
        candidate: PlanCandidate,
        sends: &PipelineSends,
    ) -> f64 {
        let degrees = &self.divisions_of(candidate.family)[candidate.division as usize].degrees;
        let (Ok(degrees), m) = (degrees, plan.micro_batches()) else { return f64::INFINITY };
        if self.evaluator.total_shortfall(self.evaluator.memory_need(shape, degrees, plan.schedule, m)) > Bytes::ZERO {
            return f64::INFINITY;
        }
        match self.evaluator.time_of_passes(&mut RecentChunks::default(), shape, degrees, sends, plan.schedule, m) {
            PassesTime::Exact(time) => time.0,
            PassesTime::AtLeast(closed) => self
                .simulate_plan(shape, degrees, sends, (plan.schedule, m), closed)
                .map_or(f64::INFINITY, |time| time.0),
        }
    }

    /// The loads with the further seconds of a plan's chunks and sends.
    pub(crate) fn loads_of_plan(
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

    /// The fastest uneven split of a plan that fits and is below the goal's limit, and the number of splits evaluated.
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
        let mut trial =
            SplitTrial { search: self, shape, plan: plan.clone(), candidate, sends, domain, limit, best: None };
        let (mut open, mut lowest, mut tried): (Vec<(Seconds, Option<LayerEnds>)>, f64, u64) =
            (Vec::new(), f64::INFINITY, 0);
        while let Some((bound, split)) = splits.next_below(&loads, plan, trial.cutoff_seconds() - overhead, &rest) {
            if Some(split) == even {
                continue;
            }
            if self.standing.should_stop() {
                self.standing.note_left_bound(bound + overhead);
                break;
            }
            // A split that is no faster than the evaluated one is useless. If few splits are searched, this is checked
            // afterwards.
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
                // The split with the lowest bound so far is simulated at once; the others wait for its time.
                Some(PassesTime::AtLeast(at_least)) if at_least.0 < lowest => {
                    lowest = at_least.0;
                    let played = trial.play_split(rest.shared, split.layer_ends(), at_least);
                    debug_assert!(
                        played.is_none_or(|time| bounds(time.0)),
                        "{split}: {bound} and {overhead} above {played:?}"
                    );
                }
                Some(PassesTime::AtLeast(bound)) => open.push((bound, split.layer_ends())),
                None => {}
            }
        }
        trial.play_in_order(shared, open);
        (trial.best, tried)
    }
}

/// Tries a plan under different splits, one after another.
struct SplitTrial<'t> {
    search: &'t PlanSearch<'t>,
    shape: &'t PlanShape,
    plan: TrainingPlan,
    candidate: PlanCandidate,
    sends: PipelineSends,
    domain: Option<u32>,
    limit: f64,
    /// The fastest plan so far, if it is below the limit.
    best: Option<PlanCandidate>,
}

impl SplitTrial<'_> {
    /// The time in seconds from which on a split is useless.
    fn cutoff_seconds(&self) -> f64 {
        self.best.map_or(self.limit, |best| best.time * (1.0 - self.search.split_tolerance))
    }

    /// Keeps the time of the last split if it is the best.
    fn take_time(&mut self, time: Seconds) {
        if time.0 < self.cutoff_seconds() {
            self.best = Some(PlanCandidate { time: time.0, ends: self.plan.layout.ends, ..self.candidate });
        }
    }

    /// The time under a split, or a lower bound on it. `None` if the split does not fit or its time is useless.
    fn time_of_split(&mut self, shared: &mut GroupDegrees<'_>, ends: Option<LayerEnds>) -> Option<PassesTime> {
        self.plan.layout.ends = ends;
        let (evaluator, schedule, m) = (&self.search.evaluator, self.plan.schedule, self.plan.micro_batches());
        let degrees =
            shared.degrees_with_split(self.search, self.shape, &self.plan, self.candidate.division, self.domain)?;
        let time =
            evaluator.time_of_passes(&mut RecentChunks::default(), self.shape, degrees, &self.sends, schedule, m);
        let fits = || evaluator.total_shortfall(evaluator.memory_need(self.shape, degrees, schedule, m)) == Bytes::ZERO;
        (time.seconds().0 < self.cutoff_seconds() && fits()).then_some(time)
    }

    /// Simulates the schedule under splits that fit, in ascending order of their bounds, as long as these are useful.
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

    /// Simulates the schedule under a split that fits and returns its time. `closed` is a lower bound on it. `None` if
    /// it cannot be simulated.
    fn play_split(
        &mut self,
        shared: &mut GroupDegrees<'_>,
        ends: Option<LayerEnds>,
        closed: Seconds,
    ) -> Option<Seconds> {
        self.plan.layout.ends = ends;
        let (schedule, m) = (self.plan.schedule, self.plan.micro_batches());
        let degrees =
            shared.degrees_with_split(self.search, self.shape, &self.plan, self.candidate.division, self.domain);
        let played = |degrees| self.search.simulate_plan(self.shape, degrees, &self.sends, (schedule, m), closed).ok();
        let time = degrees.and_then(played)?;
        self.take_time(time);
        Some(time)
    }
}

#[cfg(test)]
#[path = "splits_tests.rs"]
mod tests;
