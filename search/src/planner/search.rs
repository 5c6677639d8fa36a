//! The search itself: every plan is evaluated in closed form; what that leaves open is simulated in the order of its bounds.

use super::found::{Candidate, Found};
use super::loads::{Loads, least_share};
use super::lots::{Family, Lot};
use super::space::Splits;
use super::splits::{ROUNDING, Tried};
use super::watch::Standing;
use super::{Attempt, Job, PlanAnswer, PlanPart, PlanSpace, PlanWatch, RankedPlan, SPLIT_TOLERANCE, one_of_alike};
use rayon::prelude::*;
use sim::pipeline::{PassesTime, Schedule};
use sim::units::{Bytes, Seconds};
use std::borrow::Cow;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use step::{ChipTimes, Degrees, Evaluator, Fidelity, Held, Lowered, MixKind, Recent, Sends, Shape, StepError, TrainingPlan};
use workloads::{ActivationPolicy, StagePolicies};

/// Plans kept beyond the list asked for: closed forms and the event simulation round differently, and the simulation decides.
pub(super) const SPARE: usize = 16;

/// A search, prepared.
pub(super) struct Search<'a> {
    pub job: &'a Job<'a>,
    pub evaluator: Evaluator<'a>,
    pub chip: ChipTimes,
    pub families: Arc<Vec<Family>>,
    pub policies: Arc<Vec<ActivationPolicy>>,
    /// Of each policy, whether layers may be split as is fastest under it.
    pub open: Arc<Vec<bool>>,
    /// Seconds that the list's last plan takes at most, where that is known beforehand.
    pub limit: f64,
    /// The shape of each family's first lot on a chip of whatever times, where it is known.
    pub shapes: Vec<Option<&'a Shape>>,
    /// Per family, per division; made when first asked for.
    pub divided: Vec<OnceLock<Vec<Divided>>>,
    /// Plans that a list holds.
    pub length: usize,
    /// Whether layers may be split otherwise than evenly.
    pub uneven: bool,
    /// See [`Prepared::with_split_tolerance`](super::Prepared::with_split_tolerance).
    pub split_tolerance: f64,
    /// How far what is kept may differ from stage to stage.
    pub mixes: MixKind,
    /// Policies by stage that were found: their places follow those of [`Self::policies`].
    pub staged: Mutex<Vec<StagePolicies>>,
    /// How it is seen and stopped from outside.
    pub standing: Standing<'a>,
    /// [`Search::least_of_lot`] of every lot, where a stop has asked for them.
    pub least: OnceLock<Vec<f64>>,
}

/// What plans of a division have in common.
#[derive(Debug, Clone)]
pub(super) struct Divided {
    pub degrees: Result<Degrees, StepError>,
    /// Layers of the device that holds most of them, at least, and seconds of what that one exchanges behind its last pass, at least.
    pub busiest: (u64, f64),
}

/// The `top` fastest plans of `space` for a job, fastest first. Where the stack's framework cannot run the first, the fastest that it can is among them, or
/// follows them.
///
/// # Errors
/// A chip that the cost model cannot use.
pub fn search_plans(job: &Job<'_>, space: &PlanSpace, top: usize) -> Result<PlanAnswer, StepError> {
    search_plans_watched(job, space, top, PlanWatch::NONE)
}

/// [`search_plans`], which says where it stands and may be stopped: with the best so far and what no plan is below ([`PlanAnswer::stopped`]).
///
/// # Errors
/// As [`search_plans`].
pub fn search_plans_watched(job: &Job<'_>, space: &PlanSpace, top: usize, watch: PlanWatch<'_>) -> Result<PlanAnswer, StepError> {
    let mut answer = search_unlike(job, space, top, watch)?;
    let runs = |ranked: &RankedPlan| job.cannot_run(&ranked.plan).is_none();
    if answer.best.first().is_none_or(runs) {
        return Ok(answer);
    }
    // Of plans whose layers keep different things the list has the fastest kind only, which the framework may not run.
    let listed = if space.mix_kind() > job.stack.framework.mixes { None } else { answer.best.iter().position(runs) };
    let first = match (listed, space.runnable(job.stack)) {
        (Some(place), _) => Some(answer.best.remove(place)),
        (None, Some(narrow)) => {
            let narrow = search_unlike(job, &narrow, 1, watch)?;
            let fastest = answer.best.first().map_or(f64::INFINITY, |best| best.time.total.0);
            answer.stopped = answer.stopped.or(narrow.stopped).map(|bound| Seconds(bound.0.min(fastest)));
            narrow.best.into_iter().next().filter(runs)
        }
        (None, None) => None,
    };
    if let Some(first) = first {
        answer.best.retain(|other| other.plan != first.plan);
        answer.best.truncate(top);
        let place = answer.best.partition_point(|other| other.time.total.0 <= first.time.total.0);
        answer.best.insert(place, first);
        answer.best.truncate(top.max(place + 1));
    }
    Ok(answer)
}

/// By how much a list is made longer that holds too many plans alike.
const LONGER: usize = 4;

/// The fastest plans, of those alike one.
fn search_unlike(job: &Job<'_>, space: &PlanSpace, top: usize, watch: PlanWatch<'_>) -> Result<PlanAnswer, StepError> {
    let (mut length, mut shorter) = (top, None);
    loop {
        let mut answer = search_once(job, space, length, watch)?;
        let all = answer.best.len() < length;
        answer.best = one_of_alike(answer.best);
        if let (Some(shorter), Some(_)) = (shorter.take(), answer.stopped) {
            // The shorter list is of a search that was not stopped.
            return Ok(shorter);
        }
        // So many plans alike that they leave no room for others: a longer list, until it has them, holds all plans, or is as long as can be read.
        if answer.best.len() >= top || all || length >= top.saturating_mul(LONGER * LONGER) || answer.stopped.is_some() {
            answer.best.truncate(top);
            return Ok(answer);
        }
        length *= LONGER;
        shorter = Some(answer);
    }
}

/// The fastest plans, those alike among them.
pub(super) fn search_once(job: &Job<'_>, space: &PlanSpace, top: usize, watch: PlanWatch<'_>) -> Result<PlanAnswer, StepError> {
    let usual = usual(space).map(|usual| Within::new(job, &usual, top, watch)).transpose()?;
    let limit = usual.as_ref().map_or(f64::INFINITY, |within| within.limit);
    let search = Search { limit, ..Search::new(job, space, top, watch)? };
    let (mut found, loads) = search.evaluate();
    let simulated = search.settle(&mut found);
    let (tried, split_tolerance) = match space.splits {
        Some(Splits::Listed(_)) => (Tried::default(), None),
        Some(Splits::Best) => (search.best_splits(&mut found, &loads), Some(0.0)),
        None | Some(Splits::Near | Splits::NearOf(_)) => (search.near_splits(&mut found, &loads), Some(SPLIT_TOLERANCE)),
    };
    let mixed = (search.mixes != MixKind::None).then(|| search.mix(&mut found));
    let bound = search.standing.stopped().then(|| search.bound_of_stopped(&found, split_tolerance, mixed));
    let mut answer = PlanAnswer { split_tolerance, mixed, ..search.answer(found, simulated, tried, top)? };
    if let Some(bound) = bound {
        answer.stopped = Some(bound);
        usual.into_iter().try_for_each(|within| within.gives(&mut answer, top))?;
    }
    Ok(answer)
}

/// The small space within a space, if it has one.
pub(super) fn usual(space: &PlanSpace) -> Option<PlanSpace> {
    let Some(Splits::NearOf(usual)) = &space.splits else { return None };
    let policies = space.policies();
    let open = space.open_policies(&policies);
    let activations = policies.into_iter().zip(open).filter_map(|(policy, open)| open.then_some(policy)).collect();
    Some(PlanSpace { activations: Some(activations), splits: Some(Splits::Best), ..PlanSpace::clone(usual) })
}

/// The plans of a space within another, searched before it.
struct Within<'a> {
    search: Search<'a>,
    found: Found,
    /// Seconds that the last plan of the other one's list takes at most.
    limit: f64,
}

impl<'a> Within<'a> {
    fn new(job: &'a Job<'a>, space: &PlanSpace, top: usize, watch: PlanWatch<'a>) -> Result<Self, StepError> {
        let search = Search::new(job, space, top, watch)?;
        let (mut found, _) = search.evaluate();
        search.settle(&mut found);
        let limit = found.limit_of(search.length) * (1.0 + ROUNDING);
        Ok(Self { search, found, limit })
    }

    /// Adds its plans to an answer that was stopped before it had come to them.
    fn gives(self, answer: &mut PlanAnswer, top: usize) -> Result<(), StepError> {
        let own = self.search.answer(self.found, 0, Tried::default(), top)?;
        for ranked in own.best {
            if answer.best.iter().all(|known| known.plan != ranked.plan) {
                answer.best.push(ranked);
            }
        }
        answer.best.sort_by(|a, b| a.time.total.0.total_cmp(&b.time.total.0));
        answer.best.truncate(top);
        let fastest = answer.best.first().map_or(f64::INFINITY, |best| best.time.total.0);
        answer.stopped = answer.stopped.map(|bound| Seconds(bound.0.min(fastest)));
        Ok(())
    }
}

impl<'a> Search<'a> {
    fn new(job: &'a Job<'a>, space: &PlanSpace, top: usize, watch: PlanWatch<'a>) -> Result<Self, StepError> {
        let (families, policies) = (space.families(job), space.policies_under(job));
        let open = space.open_policies(&policies);
        let chip = ChipTimes::new(job.chip, job.stack)?;
        Ok(Self {
            job,
            evaluator: Evaluator::new(job.model, job.fabric, job.stack, job.memory()),
            chip,
            shapes: Vec::new(),
            divided: vec![OnceLock::new(); families.len()],
            families: Arc::new(families),
            policies: Arc::new(policies),
            open: Arc::new(open),
            limit: f64::INFINITY,
            length: top + SPARE,
            uneven: !matches!(space.splits, Some(Splits::Listed(_))),
            split_tolerance: 0.0,
            mixes: space.mix_kind(),
            staged: Mutex::default(),
            standing: Standing::new(watch),
            least: OnceLock::new(),
        })
    }

    /// A family's divisions.
    pub fn divided(&self, family: u32) -> &[Divided] {
        self.divided[family as usize].get_or_init(|| self.divide(family as usize))
    }

    /// From the shape of the family's first lot, of which no time is asked for.
    fn divide(&self, family: usize) -> Vec<Divided> {
        let known = self.shapes.get(family).copied().flatten();
        let family = &self.families[family];
        let Some(lot) = family.lots.first() else { return Vec::new() };
        let plan = |division: usize| {
            let schedule = family.divisions[division].schedules[0];
            family.plan(self.job, lot, division, &ActivationPolicy::None, schedule)
        };
        let mut chip = self.chip.clone();
        let new = || Shape::new(&mut chip.at(Fidelity::Peak), self.job.model, self.job.fabric, &plan(lot.pairs[0].0));
        match known.map_or_else(|| new().map(Cow::Owned), |shape| Ok(Cow::Borrowed(shape))) {
            Ok(shape) => (0..family.divisions.len())
                .map(|division| {
                    let plan = plan(division);
                    let most = self.job.model.layers.div_ceil(plan.layout.pipeline.into());
                    let late = self.evaluator.least_exchange(&chip, &shape, &plan, Held::inner(most)).0;
                    let degrees = self.evaluator.degrees(&mut chip, &shape, &plan, self.job.domain(&plan));
                    Divided { degrees, busiest: (most, late) }
                })
                .collect(),
            Err(error) => vec![Divided { degrees: Err(error), busiest: (0, 0.0) }; family.divisions.len()],
        }
    }

    /// All lots, by family.
    pub fn places(&self) -> Vec<(usize, usize)> {
        self.families.iter().enumerate().flat_map(|(f, family)| (0..family.lots.len()).map(move |l| (f, l))).collect()
    }

    /// Evaluates every plan, lot by lot; what came of them, and the loads of every lot's policies.
    fn evaluate(&self) -> (Found, Vec<Vec<Option<Loads>>>) {
        let places = self.places();
        self.standing.begins(PlanPart::Lots, places.len());
        let each: Vec<(Found, Vec<Option<Loads>>)> =
            places.par_iter().map_init(|| self.chip.clone(), |chip, &(family, lot)| self.lot(chip, family, lot)).collect();
        let (mut found, mut all) = (Found::default(), Vec::with_capacity(each.len()));
        for (place, (mut one, loads)) in each.into_iter().enumerate() {
            if loads.len() < self.policies.len() {
                one.stopped_at(self.plans_of_lot(places[place]));
                self.standing.leaves(self.least_of_lot(place));
            }
            found.merge(one, self.length);
            all.push(loads);
        }
        found.prune(self.length);
        (found, all)
    }

    /// Evaluates the plans of a lot.
    fn lot(&self, chip: &mut ChipTimes, family: usize, lot: usize) -> (Found, Vec<Option<Loads>>) {
        let mut loads = Vec::with_capacity(self.policies.len());
        let mut found = Found::default();
        let (family, lot) = (family as u32, lot as u32);
        let first = self.first_of(family, lot);
        let first_plan = self.plan(first);
        let shares = self.least_shares(family, lot);
        let mut lowered = Lowered::new(self.job.model, &first_plan, self.job.stack);
        for (policy, activations) in self.policies.iter().enumerate() {
            if self.standing.stops() {
                return (found, loads);
            }
            let plan = TrainingPlan { activations: activations.clone().into(), ..first_plan.clone() };
            let shape = match &mut lowered {
                Ok(lowered) => lowered.shape(chip, self.job.fabric, &plan),
                Err(error) => Err(error.clone()),
            };
            let known = shape.as_ref().ok().map(|shape| Loads::of(shape, self.job.stack));
            loads.push(known);
            // Of all devices' work for one micro-batch, a share from which on no plan is among those asked for.
            let work = known.map_or(0.0, |loads| loads.all(self.job.model.layers));
            let most = (self.limit - self.evaluator.overhead().0) / work;
            self.policy(chip, &shape, plan, (Candidate { policy: policy as u32, ..first }, &shares, most), &mut found);
        }
        found.prune(self.length);
        self.standing.done(1, found.plans, found.limit_of(1));
        (found, loads)
    }

    /// Any plan of a lot.
    pub fn first_of(&self, family: u32, lot: u32) -> Candidate {
        let division = self.lot_of(family, lot).pairs[0].0 as u32;
        Candidate { time: 0.0, family, lot, policy: 0, division, schedule: 0, ends: None }
    }

    /// [`least_share`] of a lot's pairs, the least of their schedules.
    pub fn least_shares(&self, family: u32, lot: u32) -> Vec<f64> {
        let least = |&(place, m): &(usize, u64)| {
            let division = &self.families[family as usize].divisions[place];
            let shares = division.schedules.iter().map(|schedule| least_share(&division.layout, *schedule, m));
            shares.fold(f64::INFINITY, f64::min)
        };
        self.lot_of(family, lot).pairs.iter().map(least).collect()
    }

    /// Evaluates the plans of a lot under one policy; `plan` and `at` are any of them, `shares` those of the pairs, `most` what they must be below.
    pub fn policy(
        &self,
        chip: &ChipTimes,
        shape: &Result<Shape, StepError>,
        mut plan: TrainingPlan,
        (at, shares, most): (Candidate, &[f64], f64),
        found: &mut Found,
    ) {
        let (mut known, mut recent) = (KnownSends::default(), Recent::default());
        let lot = self.lot_of(at.family, at.lot);
        for (&(place, m), share) in lot.pairs.iter().zip(shares) {
            let division = &self.families[at.family as usize].divisions[place];
            if !division.even && !self.open[at.policy as usize] {
                continue;
            }
            let (shape, degrees) = match (shape, &self.divided(at.family)[place].degrees) {
                (Ok(shape), Ok(degrees)) => (shape, degrees),
                (Err(error), _) | (_, Err(error)) => {
                    found.plans += division.schedules.len();
                    found.refused += division.schedules.len();
                    found.reason(error.clone());
                    continue;
                }
            };
            if *share >= most {
                found.plans += division.schedules.len();
                found.rejected_by_bound += division.schedules.len();
                continue;
            }
            plan.layout = lot.layout(division.layout);
            let sends = known.of(&plan, || self.evaluator.sends(chip, shape, &plan));
            for (schedule, &kind) in division.schedules.iter().enumerate() {
                let candidate = Candidate { division: place as u32, schedule: schedule as u32, ..at };
                found.plans += 1;
                let lack = self.evaluator.lack(self.evaluator.need(shape, degrees, kind, m));
                if lack > Bytes::ZERO {
                    found.over_capacity += 1;
                    found.lacking(lack, candidate);
                    continue;
                }
                let time = self.evaluator.time(&mut recent, shape, degrees, &sends, kind, m);
                self.note(Candidate { time: time.seconds().0, ..candidate }, time, found);
            }
        }
    }

    /// Takes a plan that fits.
    fn note(&self, candidate: Candidate, time: PassesTime, found: &mut Found) {
        if let PassesTime::Exact(_) = time {
            found.timed += 1;
            found.rank(candidate, self.length);
        } else if candidate.time >= self.limit || found.beaten(candidate.time, self.length) {
            found.rejected_by_bound += 1;
        } else {
            found.open.push(candidate);
        }
    }

    fn lot_of(&self, family: u32, lot: u32) -> &Lot {
        &self.families[family as usize].lots[lot as usize]
    }

    /// A plan by its places.
    pub fn plan(&self, c: Candidate) -> TrainingPlan {
        let family = &self.families[c.family as usize];
        let (lot, division): (&Lot, usize) = (&family.lots[c.lot as usize], c.division as usize);
        let schedule: Schedule = family.divisions[division].schedules[c.schedule as usize];
        let policy = c.policy as usize;
        let known = self.policies.get(policy).unwrap_or(&ActivationPolicy::None);
        let mut plan = family.plan(self.job, lot, division, known, schedule);
        plan.layout.ends = c.ends.or(plan.layout.ends);
        if let Some(mix) = policy.checked_sub(self.policies.len()) {
            let staged = self.staged.lock().unwrap_or_else(PoisonError::into_inner);
            plan.activations = staged.get(mix).cloned().unwrap_or_default();
        }
        plan
    }

    /// The list with what reports need: the parts of the time, all stages' memory.
    pub fn answer(&self, found: Found, simulated: usize, tried: Tried, top: usize) -> Result<PlanAnswer, StepError> {
        self.answer_on(&mut self.chip.clone(), found, (simulated, tried), top)
    }

    /// The same with the search's chip, which may know what its kernels take.
    pub fn answer_on(
        &self,
        chip: &mut ChipTimes,
        found: Found,
        (simulated, tried): (usize, Tried),
        top: usize,
    ) -> Result<PlanAnswer, StepError> {
        let mut answer = PlanAnswer {
            best: Vec::new(),
            plans: found.plans,
            timed: found.timed,
            simulated,
            over_capacity: found.over_capacity,
            rejected_by_bound: found.rejected_by_bound,
            refused: found.refused,
            not_reached: found.not_reached,
            stopped: None,
            refusal: found.refusal,
            nearest: None,
            enough: None,
            splits: tried.splits,
            splits_tried: tried.tried,
            split_tolerance: None,
            mixed: None,
        };
        for candidate in found.best {
            let plan = self.plan(candidate);
            let shape = self.job.shape(chip, &plan)?;
            if let Attempt::Fits(ranked) = self.job.attempt(chip, &shape, &plan)? {
                answer.best.push(*ranked);
            }
        }
        answer.best.sort_by(|a, b| a.time.total.0.total_cmp(&b.time.total.0));
        answer.best.truncate(top);
        if let Some((_, candidate)) = found.nearest {
            let plan = self.plan(candidate);
            // Of what does not fit no time is asked for.
            let chip = &mut chip.at(Fidelity::Peak);
            let shape = self.job.shape(chip, &plan)?;
            if let Attempt::OverCapacity(why, memory) = self.job.attempt(chip, &shape, &plan)? {
                let away = |s: &step::StageMemory| {
                    s.fits_host(memory.host_capacity).and_then(|()| s.fits_storage(memory.storage_capacity)).is_ok()
                };
                answer.enough = memory.stages.iter().all(away).then_some(why.need);
                answer.nearest = Some((plan, why));
            }
        }
        Ok(answer)
    }
}

/// Sends between stages, by what they depend on besides the shape: how far apart stages are, and how many follow each other.
#[derive(Default)]
struct KnownSends(Vec<([u32; 3], Sends)>);

impl KnownSends {
    fn of(&mut self, plan: &TrainingPlan, price: impl FnOnce() -> Sends) -> Sends {
        let layout = &plan.layout;
        let apart = if layout.pipeline > 1 { layout.stage_stride() } else { 0 };
        let lies = [apart, layout.pipeline, layout.data];
        if let Some((_, sends)) = self.0.iter().find(|(known, _)| *known == lies) {
            return *sends;
        }
        let sends = price();
        self.0.push((lies, sends));
        sends
    }
}
