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
//! What a device exchanges once per step follows its passes, the first device's the last pass of all, and all updates follow: they are added to a
//! split's bound ([`step::Evaluator::least_exchange`]).
//!
//! Plans whose stages together have too little room for all layers, however many each takes, are left out. For those that are left, the splits are
//! bounded one by one, by the first rule with their own `D_j` and by paths through the schedule, with what nothing hides of a chunk's gathered weights, and those below the list, and below the plan's own
//! time, evaluated, least bound first, until the best is no more than the next bound. So every plan of the list has its best split of these, where
//! that is asked for. Usually it is one near the even split, and only splits are looked for among all that make a plan faster than the first of the
//! list by more than a tolerance: few bounds are below that. That one of another form (chunks between that differ by two layers, or longer ones apart) is faster is not ruled out.

use super::PlanPart;
use super::found::{Candidate, Found};
use super::loads::{Loads, Rest, least_share};
use super::search::{SPARE, Search};
use super::settle::Timing;
use super::space::SPLIT_TOLERANCE;
use rayon::prelude::*;
use sim::pipeline::PassesTime;
use sim::units::{Bytes, Seconds};
use std::collections::BTreeMap;
use step::{ChipTimes, Degrees, Held, Lowered, Recent, Sends, Shape, TrainingPlan};
use workloads::{ChunkSplit, LayerEnds};

/// [`Rest`] of a plan of a search.
struct PlanRest<'r, 's, 'c> {
    search: &'r Search<'s>,
    shared: &'r mut Shared<'c>,
    shape: &'r Shape,
    plan: &'r TrainingPlan,
    division: u32,
    domain: Option<u32>,
}

impl Rest for PlanRest<'_, '_, '_> {
    fn late(&mut self, held: Held) -> f64 {
        let Shared { chip, known: [late, _], .. } = &mut *self.shared;
        let known = late.entry((self.division, held));
        *known.or_insert_with(|| self.search.evaluator.least_exchange(chip, self.shape, self.plan, held).0)
    }

    fn update(&mut self, held: Held) -> f64 {
        let Shared { chip, known: [_, update], .. } = &mut *self.shared;
        let known = update.entry((self.division, held));
        *known.or_insert_with(|| self.search.evaluator.least_update(chip, self.shape, self.plan, held).0)
    }

    fn may_fit(&self, split: ChunkSplit) -> bool {
        self.search.job.may_hold(&split) && !self.search.evaluator.surely_too_large(self.shape, self.plan, split, self.domain)
    }
}

/// A plan of a lot that has other splits.
struct Open {
    /// Its place among the lot's pairs and among the division's schedules.
    pair: usize,
    schedule: usize,
    /// [`least_share`].
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

impl Open {
    /// Seconds that no split of the plan's layers goes below, but for the overhead, where all devices' work for a micro-batch and a layer's take so long.
    fn least(&self, work: f64, layer: f64) -> f64 {
        ((work + self.waiting) * self.share).max(self.busiest.0 * layer + self.busiest.1)
    }
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
    /// What a device exchanges behind its last pass at least, and its update, by division and what it holds.
    known: [BTreeMap<(u32, Held), f64>; 2],
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

/// Which splits of a plan's layers are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reach {
    /// Of those near the even one the few of the least bounds.
    Near,
    /// All whose bound is below what is sought.
    All,
}

/// What a pass over the splits of all plans looks for.
#[derive(Debug, Clone, Copy)]
struct Sought {
    reach: Reach,
    /// Seconds that a plan has to stay below.
    limit: f64,
    /// The place in a lot's own list that it has to beat as well, from 1, and by what share of its time.
    place: usize,
    gain: f64,
}

impl Sought {
    /// Seconds from which on a plan is of no use. What the list keeps beyond those asked for is for times that differ by rounding.
    fn below(found: &Found, place: usize, gain: f64) -> f64 {
        found.limit_of(place) * (1.0 + ROUNDING) * (1.0 - gain)
    }

    fn limit(&self, found: &Found) -> f64 {
        self.limit.min(Self::below(found, self.place, self.gain))
    }
}

impl Search<'_> {
    /// Gives every plan of the list its best split, and the list every plan that belongs there with its best split. `loads` are those of the
    /// policies of every lot, in the order of [`Search::places`].
    pub(super) fn best_splits(&self, found: &mut Found, loads: &[Vec<Option<Loads>>]) -> Tried {
        self.uneven(found, loads, Reach::All, (self.length - SPARE, 0.0))
    }

    /// Gives the plans of the list, and those that belong there with it, the best of the splits near the even one, and the list any plan that
    /// another split makes faster than the first by more than [`SPLIT_TOLERANCE`].
    pub(super) fn near_splits(&self, found: &mut Found, loads: &[Vec<Option<Loads>>]) -> Tried {
        let near = self.uneven(found, loads, Reach::Near, (self.length - SPARE, 0.0));
        let all = self.uneven(found, loads, Reach::All, (1, SPLIT_TOLERANCE));
        Tried { splits: all.splits, tried: near.tried + all.tried + self.polish(found, loads) }
    }

    /// Gives the first plan of the list its best split, so that no neighbour of it is faster; how many were evaluated.
    fn polish(&self, found: &mut Found, loads: &[Vec<Option<Loads>>]) -> u64 {
        // Who stops the search has the first plan within the tolerance of the splits that were looked at.
        let first = found.best.first().filter(|_| !self.standing.stops());
        let Some(first) = first.map(|first| Candidate { ends: None, ..*first }) else { return 0 };
        let place = self.places().iter().position(|place| *place == (first.family as usize, first.lot as usize));
        let loads = place.and_then(|place| loads[place].get(first.policy as usize)).and_then(Option::as_ref);
        let (plan, mut chip) = (self.plan(first), self.chip.clone());
        let (Some(loads), true) = (loads, plan.layout.pipeline > 1) else { return 0 };
        let Ok(shape) = Shape::new(&mut chip, self.job.model, self.job.fabric, &plan) else { return 0 };
        let mut shared = Shared { chip: &mut chip, degrees: BTreeMap::new(), known: Default::default() };
        let sought = Sought { reach: Reach::All, limit: first.time, place: 1, gain: 0.0 };
        let (best, tried) = self.best_split(&mut shared, &shape, &plan, first, loads, sought);
        best.into_iter().for_each(|best| found.better(best, self.length));
        tried
    }

    /// The plans of a lot that any split makes faster than `limit`, `known` those of the list and the loads of its policies; how the splits were decided.
    pub(super) fn best_of_lot(
        &self,
        chip: &mut ChipTimes,
        place: (usize, usize),
        known: (&[Candidate], &[Option<Loads>]),
        limit: f64,
    ) -> (Found, Tried) {
        let (gain, place_in_list) = (self.split_tolerance, self.length - SPARE);
        self.uneven_lot(chip, place, known, Sought { reach: Reach::All, limit: limit * (1.0 - gain), place: place_in_list, gain })
    }

    fn uneven(&self, found: &mut Found, loads: &[Vec<Option<Loads>>], reach: Reach, (place, gain): (usize, f64)) -> Tried {
        let sought = Sought { reach, limit: Sought::below(found, place, gain), place, gain };
        let places = self.places();
        self.standing.begins(PlanPart::Splits, places.len());
        let listed = &found.best;
        let each: Vec<(Found, Tried)> = places
            .par_iter()
            .zip(loads)
            .map_init(
                || self.chip.clone(),
                |chip, (&(family, lot), loads)| {
                    let here = listed.iter().filter(|c| (c.family as usize, c.lot as usize) == (family, lot));
                    let (one, tried) = self.uneven_lot(chip, (family, lot), (&here.copied().collect::<Vec<_>>(), loads), sought);
                    self.standing.done(1, 0, one.limit_of(1));
                    (one, tried)
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

    fn uneven_lot(
        &self,
        chip: &mut ChipTimes,
        (family, lot): (usize, usize),
        (listed, loads): (&[Candidate], &[Option<Loads>]),
        sought: Sought,
    ) -> (Found, Tried) {
        let (mut found, mut tried) = (Found::default(), Tried::default());
        let layers = self.job.model.layers;
        let open = self.open_plans(family, lot);
        let overhead = self.evaluator.overhead().0;
        let mut shared = Shared { chip, degrees: BTreeMap::new(), known: Default::default() };
        // Plans in the order of their bounds: what the first ones are found to take, few others are below.
        let mut order: Vec<(f64, usize, &Open, &Loads)> = Vec::new();
        for (policy, loads) in loads.iter().enumerate() {
            let Some(loads) = loads else { continue };
            if !self.open[policy] && listed.is_empty() {
                continue;
            }
            let is_open = |plan: &&Open| {
                let candidate = self.candidate((family, lot), policy, plan);
                self.open[policy] && plan.usual || listed.iter().any(|one| one.same_plan(&candidate))
            };
            let work = loads.all(layers);
            for plan in open.iter().filter(is_open) {
                tried.splits += plan.others;
                order.push((plan.least(work, loads.layer) + overhead, policy, plan, loads));
            }
        }
        order.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (mut lowered, mut shapes) = (None, vec![None; loads.len()]);
        for (bound, policy, plan, loads) in order {
            if bound >= sought.limit(&found) {
                break;
            }
            if self.standing.stops() {
                // Of those left this one has the least.
                self.standing.leaves(bound);
                break;
            }
            let candidate = self.candidate((family, lot), policy, plan);
            let first = self.plan(candidate);
            let lowered = lowered.get_or_insert_with(|| Lowered::new(self.job.model, &first, self.job.stack));
            let Ok(lowered) = lowered else { break };
            let shape = shapes[policy].get_or_insert_with(|| lowered.shape(shared.chip, self.job.fabric, &first));
            let Ok(shape) = shape else { continue };
            let sought = Sought { limit: sought.limit(&found), ..sought };
            let (best, count) = self.best_split(&mut shared, shape, &first, candidate, loads, sought);
            tried.tried += count;
            if let Some(best) = best {
                found.rank(best, self.length);
            }
        }
        (found, tried)
    }

    /// The plans of a lot under one policy that have other splits.
    fn open_plans(&self, family: usize, lot: usize) -> Vec<Open> {
        let mut open = Vec::new();
        let mut counted = (0, 0);
        let (divided, family) = (self.divided(family as u32), &self.families[family]);
        for (pair, &(place, m)) in family.lots[lot].pairs.iter().enumerate() {
            let (division, (most, late)) = (&family.divisions[place], divided[place].busiest);
            if division.layout.pipeline < 2 {
                continue;
            }
            let chunks = division.layout.chunks();
            if counted.0 != chunks {
                counted = (chunks, division.layout.split_count(self.job.model.layers).saturating_sub(1));
            }
            for (schedule, (&kind, &usual)) in division.schedules.iter().zip(&division.open).enumerate() {
                let (share, pass) = (least_share(&division.layout, kind, m), self.evaluator.pass_overhead(&division.layout));
                let (waiting, busiest) = (2.0 * pass.0 * chunks as f64, ((m * most) as f64, late));
                open.push(Open { pair, schedule, share, waiting, busiest, usual, others: counted.1 });
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
        let degrees = &self.divided(candidate.family)[candidate.division as usize].degrees;
        let (Ok(degrees), m) = (degrees, plan.micro_batches()) else { return f64::INFINITY };
        if self.evaluator.lack(self.evaluator.need(shape, degrees, plan.schedule, m)) > Bytes::ZERO {
            return f64::INFINITY;
        }
        match self.evaluator.time(&mut Recent::default(), shape, degrees, sends, plan.schedule, m) {
            PassesTime::Exact(time) => time.0,
            PassesTime::AtLeast(closed) => {
                self.play(shape, degrees, sends, (plan.schedule, m), closed).map_or(f64::INFINITY, |time| time.0)
            }
        }
    }

    /// Loads with what a plan's chunks and sends take besides.
    pub(super) fn loads_of_plan(
        &self,
        chip: &mut ChipTimes,
        shape: &Shape,
        plan: &TrainingPlan,
        loads: &Loads,
        sends: &Sends,
    ) -> Loads {
        let (chunk, sends_at_least) = (self.evaluator.pass_overhead(&plan.layout), self.evaluator.least_sends(plan, sends));
        let gathers = self.evaluator.least_gathers(chip, shape, plan);
        let between = self.evaluator.layer_gathers(chip, shape, plan);
        Loads {
            chunk: gathers.map(|time| (chunk + time).0),
            between: [between.once.map(|time| (chunk + time).0), between.each.map(|time| time.0)],
            sends: sends_at_least.map(|time| time.0),
            ..*loads
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
        sought: Sought,
    ) -> (Option<Candidate>, u64) {
        let (layers, domain) = (self.job.model.layers, self.job.domain(plan));
        if !self.evaluator.may_fit(shape, plan, domain) {
            return (None, 0);
        }
        let sends = self.evaluator.sends(shared.chip, shape, plan);
        let (even, overhead) = (plan.layout.chunk_split(layers).ok(), self.evaluator.overhead().0);
        let loads = self.loads_of_plan(shared.chip, shape, plan, loads, &sends);
        let mut rest = PlanRest { search: self, shared, shape, plan, division: candidate.division, domain };
        let limit = sought.limit;
        let mut splits = match sought.reach {
            Reach::All => loads.splits(layers, plan, limit - overhead, &mut rest),
            Reach::Near => loads.near(layers, plan, limit - overhead, &mut rest),
        };
        let mut trial = Trial { search: self, shape, plan: plan.clone(), candidate, sends, domain, limit, best: None };
        let (mut open, mut lowest, mut tried): (Vec<(Seconds, Option<LayerEnds>)>, f64, u64) = (Vec::new(), f64::INFINITY, 0);
        while let Some((bound, split)) = splits.next(&loads, plan, trial.least() - overhead, &rest) {
            if Some(split) == even {
                continue;
            }
            if self.standing.stops() {
                self.standing.leaves(bound + overhead);
                break;
            }
            // What is no faster than the split that the plan has been evaluated with is of no use. Of few splits that is seen afterwards.
            if tried == 0 && sought.reach == Reach::All && sought.gain == 0.0 {
                trial.limit = limit.min(self.known(shape, plan, candidate, &trial.sends));
                if bound + overhead >= trial.limit {
                    break;
                }
            }
            tried += 1;
            let bounds = |time: f64| bound + overhead <= time * (1.0 + ROUNDING);
            match trial.time(rest.shared, split.ends()) {
                Some(PassesTime::AtLeast(time)) if self.timing(shape, plan.schedule) == Timing::Closed => trial.take(time),
                Some(PassesTime::Exact(time)) => {
                    debug_assert!(bounds(time.0), "{split}: {bound} and {overhead} above {time}");
                    trial.take(time);
                }
                // What has the lowest bound so far is played at once, the others wait for it.
                Some(PassesTime::AtLeast(at_least)) if at_least.0 < lowest => {
                    lowest = at_least.0;
                    let played = trial.play(rest.shared, split.ends(), at_least);
                    debug_assert!(played.is_none_or(|time| bounds(time.0)), "{split}: {bound} and {overhead} above {played:?}");
                }
                Some(PassesTime::AtLeast(bound)) => open.push((bound, split.ends())),
                None => {}
            }
        }
        trial.play_in_order(shared, open);
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
        self.best.map_or(self.limit, |best| best.time * (1.0 - self.search.split_tolerance))
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

    /// Plays the schedule under splits that fit, in the order of their bounds, as long as these are of use.
    fn play_in_order(&mut self, shared: &mut Shared<'_>, mut splits: Vec<(Seconds, Option<LayerEnds>)>) {
        splits.sort_by(|a, b| a.0.0.total_cmp(&b.0.0).then(a.1.cmp(&b.1)));
        for (bound, ends) in splits {
            if bound.0 >= self.least() {
                break;
            }
            if self.search.standing.stops() {
                self.search.standing.leaves(bound.0);
                break;
            }
            self.play(shared, ends, bound);
        }
    }

    /// Plays the schedule under a split that fits, which takes no less than `closed`; its time.
    fn play(&mut self, shared: &mut Shared<'_>, ends: Option<LayerEnds>, closed: Seconds) -> Option<Seconds> {
        self.plan.layout.ends = ends;
        let (schedule, m) = (self.plan.schedule, self.plan.micro_batches());
        let degrees = shared.degrees(self.search, self.shape, &self.plan, self.candidate.division, self.domain);
        let played = |degrees| self.search.play(self.shape, degrees, &self.sends, (schedule, m), closed).ok();
        let time = degrees.and_then(played)?;
        self.take(time);
        Some(time)
    }
}

#[cfg(test)]
#[path = "splits_tests.rs"]
mod tests;
