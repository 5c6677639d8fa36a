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
use crate::planner::search::found::{FoundPlans, GroupPlace, PlanCandidate, ROUNDING, SplitStatistics};
use crate::planner::search::settle::TimingMethod;
use crate::planner::space::plan_space::SPLIT_TOLERANCE;
use rayon::prelude::*;
use sim::pipeline::PassesTime;
use sim::units::{Bytes, Seconds};
use std::collections::BTreeMap;
use step::{
    ChipTimes, DegreeCosts, DeviceHolding, EndChunk, Evaluator, LoweredModel, PipelineSends, PlanShape, RecentChunks,
    TrainingPlan,
};
use workloads::{ChunkSplit, LayerEnds};

/// [`SplitCosts`] of a plan of a search.
struct PlanSplitCosts<'r, 's, 'c> {
    search: &'r PlanSearch<'s>,
    shared: &'r mut GroupDegrees<'c>,
    /// The evaluator in the memory that the plan may fill.
    evaluator: Evaluator<'s>,
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
            && !self.evaluator.exceeds_capacity(self.shape, self.plan, split, self.domain)
    }

    fn may_fit_without(&self, split: ChunkSplit, end: EndChunk) -> bool {
        !self.evaluator.exceeds_capacity_without(self.shape, self.plan, split, end, self.domain)
    }
}

/// A plan of a group that has uneven splits.
struct OpenPlan {
    /// Index among the group's pairs of division and micro-batches; `schedule` is the index among the division's
    /// schedules.
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
    /// Number of its splits, without the one already evaluated: the even split or its substitute.
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

/// The plans of a group with uneven splits that were found, and counts of the splits.
pub(crate) struct FoundSplits {
    pub plans: FoundPlans,
    pub statistics: SplitStatistics,
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
    /// A rank, from 1, in a group's own list. A plan must also beat the plan at this rank, by at least the fraction
    /// `gain` of that plan's time.
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
        self.search_uneven_splits(found, loads, SplitReach::All, self.length - SPARE, 0.0)
    }

    /// Gives plans of the list, and plans that then enter it, the best split near the even one. Adds any plan that
    /// another split makes faster than the first by more than [`SPLIT_TOLERANCE`], and gives the first plan its best
    /// split.
    pub(crate) fn find_near_splits(&self, found: &mut FoundPlans, loads: &[Vec<Option<PassLoads>>]) -> SplitStatistics {
        let near = self.search_uneven_splits(found, loads, SplitReach::Near, self.length - SPARE, 0.0);
        let all = self.search_uneven_splits(found, loads, SplitReach::All, 1, SPLIT_TOLERANCE);
        SplitStatistics { splits: all.splits, tried: near.tried + all.tried + self.polish_first_plan(found, loads) }
    }

    /// Gives the first plan of the list its best split, so that none of its neighbours is faster. Returns the number of
    /// splits evaluated.
    fn polish_first_plan(&self, found: &mut FoundPlans, loads: &[Vec<Option<PassLoads>>]) -> u64 {
        // After a stop, the first plan is within the tolerance of the splits that were tried.
        let first = found.best.first().filter(|_| !self.standing.should_stop());
        let Some(first) = first.map(|first| PlanCandidate { ends: None, ..*first }) else { return 0 };
        let place = self.group_places().iter().position(|place| *place == first.group_place());
        let loads = place.and_then(|place| loads[place].get(first.policy as usize)).and_then(Option::as_ref);
        let (plan, mut chip) = (self.plan_of(first), self.chip.clone());
        let (Some(loads), true) = (loads, plan.layout.pipeline > 1) else { return 0 };
        let Ok(shape) = PlanShape::new(&mut chip, self.job.model, self.job.fabric, &plan) else { return 0 };
        let mut shared = GroupDegrees { chip: &mut chip, degrees: BTreeMap::new(), known: Default::default() };
        let sought = SplitGoal { reach: SplitReach::All, limit: first.time, place: 1, gain: 0.0 };
        let TriedSplits { best, tried } = self.find_best_split(&mut shared, &shape, &plan, first, loads, sought);
        best.into_iter().for_each(|best| found.insert_with_split(best, self.length));
        tried
    }

    /// The plans of a group that some split makes faster than `limit` seconds. `listed` are the group's plans in the
    /// list, `loads` those of its policies.
    pub(crate) fn best_splits_of_group(
        &self,
        chip: &mut ChipTimes,
        place: GroupPlace,
        listed: &[PlanCandidate],
        loads: &[Option<PassLoads>],
        limit: f64,
    ) -> FoundSplits {
        let (gain, rank) = (self.split_tolerance, self.length - SPARE);
        let sought = SplitGoal { reach: SplitReach::All, limit: limit * (1.0 - gain), place: rank, gain };
        self.search_uneven_splits_of_group(chip, place, listed, loads, sought)
    }

    fn search_uneven_splits(
        &self,
        found: &mut FoundPlans,
        loads: &[Vec<Option<PassLoads>>],
        reach: SplitReach,
        place: usize,
        gain: f64,
    ) -> SplitStatistics {
        let limit = self.limit.min(SplitGoal::cutoff_seconds(found, place, gain));
        let sought = SplitGoal { reach, limit, place, gain };
        let places = self.group_places();
        self.standing.begin_part(PlanPart::Splits, places.len());
        let listed = &found.best;
        let search = |chip: &mut ChipTimes, (&place, loads): (&GroupPlace, &Vec<Option<PassLoads>>)| {
            let here: Vec<PlanCandidate> = listed.iter().filter(|c| c.group_place() == place).copied().collect();
            let one = self.search_uneven_splits_of_group(chip, place, &here, loads, sought);
            self.standing.add_done(1, 0, one.plans.cutoff_for_count(1));
            one
        };
        let each: Vec<FoundSplits> = places.par_iter().zip(loads).map_init(|| self.chip.clone(), search).collect();
        let mut all = SplitStatistics::default();
        for FoundSplits { plans, statistics } in each {
            plans.best.into_iter().for_each(|candidate| found.insert_with_split(candidate, self.length));
            all = SplitStatistics { splits: all.splits + statistics.splits, tried: all.tried + statistics.tried };
        }
        all
    }

    fn search_uneven_splits_of_group(
        &self,
        chip: &mut ChipTimes,
        place: GroupPlace,
        listed: &[PlanCandidate],
        loads: &[Option<PassLoads>],
        sought: SplitGoal,
    ) -> FoundSplits {
        let (mut found, mut tried) = (FoundPlans::default(), SplitStatistics::default());
        let layers = self.job.model.layers;
        let open = self.open_plans(place);
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
                let candidate = self.candidate_with_split(place, policy, plan);
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
            let candidate = self.candidate_with_split(place, policy, plan);
            let first = self.plan_of(candidate);
            let lowered = lowered.get_or_insert_with(|| LoweredModel::new(self.job.model, &first, self.job.stack));
            let Ok(lowered) = lowered else { break };
            let shape = shapes[policy].get_or_insert_with(|| lowered.plan_shape(shared.chip, self.job.fabric, &first));
            let Ok(shape) = shape else { continue };
            let sought = SplitGoal { limit: sought.list_limit(&found), ..sought };
            let one = self.find_best_split(&mut shared, shape, &first, candidate, loads, sought);
            tried.tried += one.tried;
            if let Some(best) = one.best {
                found.insert_timed(best, self.length);
            }
        }
        FoundSplits { plans: found, statistics: tried }
    }

    /// The plans of a group, under one policy, that have uneven splits.
    fn open_plans(&self, group: GroupPlace) -> Vec<OpenPlan> {
        let mut open = Vec::new();
        let mut counted = (0, 0);
        let (divided, family) = (self.divisions_of(group.family), &self.families[group.family as usize]);
        for (pair, &(place, m)) in family.lots[group.lot as usize].pairs.iter().enumerate() {
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

    fn candidate_with_split(&self, place: GroupPlace, policy: usize, open: &OpenPlan) -> PlanCandidate {
        let GroupPlace { family, lot } = place;
        let (division, _) = self.families[family as usize].lots[lot as usize].pairs[open.pair];
        PlanCandidate {
            time: 0.0,
            family,
            lot,
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
        let need = self.evaluator.memory_need(shape, degrees, plan.schedule, m);
        if self.evaluator_of(plan, plan.schedule).total_shortfall(need) > Bytes::ZERO {
            return f64::INFINITY;
        }
        match self.evaluator.time_of_passes(&mut RecentChunks::default(), shape, degrees, sends, plan.schedule, m) {
            PassesTime::Exact(time) => time.0,
            PassesTime::AtLeast(closed) => {
                self.simulate_plan(shape, degrees, sends, plan.schedule, m, closed).map_or(f64::INFINITY, |time| time.0)
            }
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

    /// Finds the fastest uneven split under which a plan fits and is below the goal's limit.
    fn find_best_split(
        &self,
        shared: &mut GroupDegrees<'_>,
        shape: &PlanShape,
        plan: &TrainingPlan,
        candidate: PlanCandidate,
        loads: &PassLoads,
        sought: SplitGoal,
    ) -> TriedSplits {
        let (layers, domain) = (self.job.model.layers, self.job.sharding_domain(plan));
        let evaluator = self.evaluator_of(plan, plan.schedule);
        if !evaluator.may_fit(shape, plan, domain) {
            return TriedSplits { best: None, tried: 0 };
        }
        let sends = self.evaluator.pipeline_sends(shared.chip, shape, plan);
        let (even, overhead) = (plan.layout.chunk_split(layers).ok(), self.evaluator.overhead_per_step().0);
        let loads = self.loads_of_plan(shared.chip, shape, plan, loads, &sends);
        let mut rest =
            PlanSplitCosts { search: self, shared, evaluator, shape, plan, division: candidate.division, domain };
        let mut splits = match sought.reach {
            SplitReach::All => loads.splits_by_bound(layers, plan, sought.limit - overhead, &mut rest),
            SplitReach::Near => loads.near_splits_by_bound(layers, plan, sought.limit - overhead, &mut rest),
        };
        let mut trial = SplitTrial {
            search: self,
            evaluator,
            shape,
            plan: plan.clone(),
            candidate,
            sends,
            domain,
            limit: sought.limit,
            best: None,
            lowest: f64::INFINITY,
            waiting: Vec::new(),
        };
        let mut tried = 0;
        while let Some(least) = splits.next_below(&loads, plan, trial.cutoff_seconds() - overhead, &rest) {
            if Some(least.split) == even {
                continue;
            }
            let bound = least.bound + overhead;
            if self.standing.should_stop() {
                self.standing.note_left_bound(bound);
                break;
            }
            // A split that is no faster than the evaluated one is useless. If few splits are searched, this is checked
            // afterwards.
            if tried == 0 && sought.reach == SplitReach::All && sought.gain == 0.0 {
                trial.limit = sought.limit.min(self.known_time_of(shape, plan, candidate, &trial.sends));
                if bound >= trial.limit {
                    break;
                }
            }
            tried += 1;
            trial.try_split(rest.shared, least.split, bound);
        }
        trial.play_in_order(shared);
        TriedSplits { best: trial.best, tried }
    }
}

/// The fastest split of a plan, if one is useful, and the number of splits evaluated.
struct TriedSplits {
    best: Option<PlanCandidate>,
    tried: u64,
}

/// A split that fits and whose time is known only to be at least `bound`.
struct WaitingSplit {
    bound: Seconds,
    ends: Option<LayerEnds>,
}

/// Tries a plan under different splits, one after another.
struct SplitTrial<'t> {
    search: &'t PlanSearch<'t>,
    /// The evaluator in the memory that the plan may fill.
    evaluator: Evaluator<'t>,
    shape: &'t PlanShape,
    plan: TrainingPlan,
    candidate: PlanCandidate,
    sends: PipelineSends,
    domain: Option<u32>,
    limit: f64,
    /// The fastest plan so far, if it is below the limit.
    best: Option<PlanCandidate>,
    /// The least bound in seconds of the splits simulated at once.
    lowest: f64,
    waiting: Vec<WaitingSplit>,
}

impl SplitTrial<'_> {
    /// Times a split with a lower bound of `bound` seconds on its step. A split without a closed form is simulated at
    /// once if its bound is the lowest so far; the others wait for its time.
    fn try_split(&mut self, shared: &mut GroupDegrees<'_>, split: ChunkSplit, bound: f64) {
        let holds = |time: f64| bound <= time * (1.0 + ROUNDING);
        match self.time_of_split(shared, split.layer_ends()) {
            Some(PassesTime::AtLeast(time))
                if self.search.timing_method(self.shape, self.plan.schedule) == TimingMethod::Closed =>
            {
                self.take_time(time);
            }
            Some(PassesTime::Exact(time)) => {
                debug_assert!(holds(time.0), "{split}: {bound} above {time}");
                self.take_time(time);
            }
            Some(PassesTime::AtLeast(at_least)) if at_least.0 < self.lowest => {
                self.lowest = at_least.0;
                let played = self.play_split(shared, split.layer_ends(), at_least);
                debug_assert!(played.is_none_or(|time| holds(time.0)), "{split}: {bound} above {played:?}");
            }
            Some(PassesTime::AtLeast(bound)) => {
                self.waiting.push(WaitingSplit { bound, ends: split.layer_ends() });
            }
            None => {}
        }
    }

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
        let (evaluator, schedule, m) = (&self.evaluator, self.plan.schedule, self.plan.micro_batches());
        let degrees =
            shared.degrees_with_split(self.search, self.shape, &self.plan, self.candidate.division, self.domain)?;
        let time =
            evaluator.time_of_passes(&mut RecentChunks::default(), self.shape, degrees, &self.sends, schedule, m);
        let fits = || evaluator.total_shortfall(evaluator.memory_need(self.shape, degrees, schedule, m)) == Bytes::ZERO;
        (time.seconds().0 < self.cutoff_seconds() && fits()).then_some(time)
    }

    /// Simulates the schedule under the waiting splits, in ascending order of their bounds, as long as these are
    /// useful.
    fn play_in_order(&mut self, shared: &mut GroupDegrees<'_>) {
        let mut splits = std::mem::take(&mut self.waiting);
        splits.sort_by(|a, b| a.bound.0.total_cmp(&b.bound.0).then(a.ends.cmp(&b.ends)));
        for WaitingSplit { bound, ends } in splits {
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
        let played = |degrees| self.search.simulate_plan(self.shape, degrees, &self.sends, schedule, m, closed).ok();
        let time = degrees.and_then(played)?;
        self.take_time(time);
        Some(time)
    }
}

#[cfg(test)]
#[path = "splits_tests.rs"]
mod tests;
