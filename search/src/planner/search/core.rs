//! The search over plans. It evaluates every plan in closed form, and simulates the remaining ones in the order of
//! their bounds.

use crate::planner::bounds::loads::{PassLoads, least_share_of_work};
use crate::planner::fit::PeakFactors;
use crate::planner::search::found::{FoundPlans, GroupPlace, PlanCandidate, SplitStatistics, group_places};
use crate::planner::search::watch::PlanWatchState;
use crate::planner::space::groups::{DegreeClass, PlanGroup};
use crate::planner::{Job, PlanAnswer, PlanAttempt, PlanPart, PlanSpace, PlanWatch, Splits};
use rayon::prelude::*;
use sim::pipeline::{PassesTime, PipelineSchedule};
use sim::units::Bytes;
use std::borrow::Cow;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use step::{
    ChipTimes, DegreeCosts, DeviceHolding, DeviceMemory, Evaluator, Fidelity, LoweredModel, MixKind, PipelineSends,
    PlanShape, RecentChunks, StepError, TrainingPlan,
};
use workloads::{ActivationPolicy, StagePolicies};

/// Plans kept beyond the requested list. They are needed because closed forms and the event simulation round
/// differently, and the simulation decides.
pub(crate) const SPARE: usize = 16;

/// A prepared search over plans.
pub(crate) struct PlanSearch<'a> {
    pub job: &'a Job<'a>,
    /// The evaluator for figures that do not depend on the memory. [`Self::evaluator_of`] returns one with the memory
    /// that a plan may fill.
    pub evaluator: Evaluator<'a>,
    /// The factors on the peaks of plans that must fit; `None` without a memory limit.
    pub factors: Option<Arc<PeakFactors>>,
    pub chip: ChipTimes,
    pub families: Arc<Vec<DegreeClass>>,
    pub policies: Arc<Vec<ActivationPolicy>>,
    /// By policy: true if its plans may use the fastest split of layers.
    pub open: Arc<Vec<bool>>,
    /// Upper bound in seconds on the list's last plan, if known beforehand.
    pub limit: f64,
    /// By degree class: the shape of its first group, if known. Its times belong to no particular chip.
    pub shapes: Vec<Option<&'a PlanShape>>,
    /// By degree class, then by division; made on first use.
    pub divided: Vec<OnceLock<Vec<DivisionBounds>>>,
    /// Length of the list.
    pub length: usize,
    /// True if uneven splits of layers are allowed.
    pub uneven: bool,
    /// See [`PreparedJob::with_split_tolerance`](crate::planner::PreparedJob::with_split_tolerance).
    pub split_tolerance: f64,
    /// The kind of mixes by which policies may differ from stage to stage.
    pub mixes: MixKind,
    /// Policies by stage that were found. Their indices follow those of [`Self::policies`].
    pub staged: Mutex<Vec<StagePolicies>>,
    /// Progress reports and stop requests.
    pub standing: PlanWatchState<'a>,
    /// [`PlanSearch::lower_bound_of_group_at`] of every group; computed when a stop needs it.
    pub least: OnceLock<Vec<f64>>,
}

/// The results of one group, and the loads of its policies. A stopped group has fewer loads than policies.
struct EvaluatedGroup {
    found: FoundPlans,
    loads: Vec<Option<PassLoads>>,
}

/// The results of all groups, and by group the loads of its policies.
pub(crate) struct EvaluatedGroups {
    pub found: FoundPlans,
    pub loads: Vec<Vec<Option<PassLoads>>>,
}

/// The least shares of all devices' work ([`PlanSearch::least_shares_of_group`]), one for each of a group's pairs of
/// division and micro-batches. Pairs with a share of `most` or more are pruned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WorkShares<'a> {
    pub by_pair: &'a [f64],
    pub most: f64,
}

/// Degree costs and lower bounds that all plans of a division share.
#[derive(Debug, Clone)]
pub(crate) struct DivisionBounds {
    pub degrees: Result<DegreeCosts, StepError>,
    /// Lower bounds on the layers of the fullest device, and on the seconds of its exchange after its last pass.
    pub busiest: (u64, f64),
}

impl<'a> PlanSearch<'a> {
    pub(crate) fn new(
        job: &'a Job<'a>,
        space: &PlanSpace,
        top: usize,
        watch: PlanWatch<'a>,
    ) -> Result<Self, StepError> {
        let (families, policies) = (space.families(job), space.policies_under_techniques(job));
        let open = space.open_policies(&policies);
        let chip = ChipTimes::new(job.chip, job.stack)?;
        Ok(Self {
            job,
            evaluator: Evaluator::new(job.model, job.fabric, job.stack, DeviceMemory::of_chip(job.chip)),
            factors: Some(Arc::new(PeakFactors::new(job))),
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
            standing: PlanWatchState::new(watch),
            least: OnceLock::new(),
        })
    }

    /// The evaluator in the memory that a plan may fill under a schedule.
    pub fn evaluator_of(&self, plan: &TrainingPlan, schedule: PipelineSchedule) -> Evaluator<'a> {
        self.evaluator_with(|factors| factors.factor_of_plan(self.job, plan, schedule))
    }

    /// The evaluator in the memory that a plan may fill with a treatment for each stage or tensor, whatever its
    /// policies are now.
    pub fn evaluator_of_mixes(&self, plan: &TrainingPlan) -> Evaluator<'a> {
        self.evaluator_with(|factors| factors.factor_of_mixes(self.job, plan, plan.schedule))
    }

    fn evaluator_with(&self, factor: impl FnOnce(&PeakFactors) -> f64) -> Evaluator<'a> {
        let Some(factors) = &self.factors else { return self.evaluator };
        let job = self.job;
        Evaluator::new(job.model, job.fabric, job.stack, job.memory_for_peak(factor(factors)))
    }

    /// The divisions of a degree class.
    pub fn divisions_of(&self, family: u32) -> &[DivisionBounds] {
        self.divided[family as usize].get_or_init(|| self.divide_class(family as usize))
    }

    /// Prepares the divisions of a class by the shape of its first group. Only sizes are used, no times.
    fn divide_class(&self, family: usize) -> Vec<DivisionBounds> {
        let known = self.shapes.get(family).copied().flatten();
        let family = &self.families[family];
        let Some(lot) = family.lots.first() else { return Vec::new() };
        let plan = |division: usize| {
            let schedule = family.divisions[division].schedules[0];
            family.plan(self.job, lot, division, &ActivationPolicy::None, schedule)
        };
        let mut chip = self.chip.clone();
        let new = || {
            PlanShape::new(
                &mut chip.with_fidelity(Fidelity::Peak),
                self.job.model,
                self.job.fabric,
                &plan(lot.pairs[0].0),
            )
        };
        match known.map_or_else(|| new().map(Cow::Owned), |shape| Ok(Cow::Borrowed(shape))) {
            Ok(shape) => (0..family.divisions.len())
                .map(|division| {
                    let plan = plan(division);
                    let most = self.job.model.layers.div_ceil(plan.layout.pipeline.into());
                    let late = self
                        .evaluator
                        .least_exposed_exchange(&chip, &shape, &plan, DeviceHolding::inner_device(most))
                        .0;
                    let degrees =
                        self.evaluator.prepare_degrees(&mut chip, &shape, &plan, self.job.sharding_domain(&plan));
                    DivisionBounds { degrees, busiest: (most, late) }
                })
                .collect(),
            Err(error) => vec![DivisionBounds { degrees: Err(error), busiest: (0, 0.0) }; family.divisions.len()],
        }
    }

    /// The places of all groups.
    pub fn group_places(&self) -> Vec<GroupPlace> {
        group_places(&self.families)
    }

    /// Evaluates every plan, group by group.
    pub(crate) fn evaluate_all_groups(&self) -> EvaluatedGroups {
        let places = self.group_places();
        self.standing.begin_part(PlanPart::Lots, places.len());
        let each: Vec<EvaluatedGroup> =
            places.par_iter().map_init(|| self.chip.clone(), |chip, &place| self.evaluate_group(chip, place)).collect();
        let (mut found, mut all) = (FoundPlans::default(), Vec::with_capacity(each.len()));
        for (place, EvaluatedGroup { found: mut one, loads }) in each.into_iter().enumerate() {
            if loads.len() < self.policies.len() {
                one.count_stopped_group(self.plan_count_of_group(places[place]));
                self.standing.note_left_bound(self.lower_bound_of_group_at(place));
            }
            found.merge_with(one, self.length);
            all.push(loads);
        }
        found.prune_beaten(self.length);
        EvaluatedGroups { found, loads: all }
    }

    /// Evaluates the plans of a group.
    fn evaluate_group(&self, chip: &mut ChipTimes, place: GroupPlace) -> EvaluatedGroup {
        let mut loads = Vec::with_capacity(self.policies.len());
        let mut found = FoundPlans::default();
        let first = self.any_plan_of_group(place);
        let first_plan = self.plan_of(first);
        let shares = self.least_shares_of_group(place);
        let mut lowered = LoweredModel::new(self.job.model, &first_plan, self.job.stack);
        for (policy, activations) in self.policies.iter().enumerate() {
            if self.standing.should_stop() {
                return EvaluatedGroup { found, loads };
            }
            let plan = TrainingPlan { activations: activations.clone().into(), ..first_plan.clone() };
            let shape = match &mut lowered {
                Ok(lowered) => lowered.plan_shape(chip, self.job.fabric, &plan),
                Err(error) => Err(error.clone()),
            };
            let known = shape.as_ref().ok().map(|shape| PassLoads::of_shape(shape, self.job.stack));
            loads.push(known);
            // A plan with at least this share of all devices' work for one micro-batch cannot enter the list.
            let work = known.map_or(0.0, |loads| loads.all_loads(self.job.model.layers));
            let most = (self.limit - self.evaluator.overhead_per_step().0) / work;
            let at = PlanCandidate { policy: policy as u32, ..first };
            self.evaluate_policy(chip, &shape, plan, at, WorkShares { by_pair: &shares, most }, &mut found);
        }
        found.prune_beaten(self.length);
        self.standing.add_done(1, found.plans, found.cutoff_for_count(1));
        EvaluatedGroup { found, loads }
    }

    /// Any plan of a group.
    pub fn any_plan_of_group(&self, place: GroupPlace) -> PlanCandidate {
        let division = self.group_of(place).pairs[0].0 as u32;
        let GroupPlace { family, lot } = place;
        PlanCandidate { time: 0.0, family, lot, policy: 0, division, schedule: 0, ends: None }
    }

    /// Returns the [`least_share_of_work`] of each of a group's pairs of division and micro-batches: the least over the
    /// division's schedules.
    pub fn least_shares_of_group(&self, at: GroupPlace) -> Vec<f64> {
        let least = |&(place, m): &(usize, u64)| {
            let division = &self.families[at.family as usize].divisions[place];
            let shares = division.schedules.iter().map(|schedule| least_share_of_work(&division.layout, *schedule, m));
            shares.fold(f64::INFINITY, f64::min)
        };
        self.group_of(at).pairs.iter().map(least).collect()
    }

    /// Evaluates the plans of a group under one policy. `plan` is any of them, and `at` has its indices.
    pub fn evaluate_policy(
        &self,
        chip: &ChipTimes,
        shape: &Result<PlanShape, StepError>,
        mut plan: TrainingPlan,
        at: PlanCandidate,
        shares: WorkShares<'_>,
        found: &mut FoundPlans,
    ) {
        let (mut known, mut recent) = (KnownSends::default(), RecentChunks::default());
        let lot = self.group_of(at.group_place());
        for (&(place, m), share) in lot.pairs.iter().zip(shares.by_pair) {
            let division = &self.families[at.family as usize].divisions[place];
            if !division.even && !self.open[at.policy as usize] {
                continue;
            }
            let (shape, degrees) = match (shape, &self.divisions_of(at.family)[place].degrees) {
                (Ok(shape), Ok(degrees)) => (shape, degrees),
                (Err(error), _) | (_, Err(error)) => {
                    found.plans += division.schedules.len();
                    found.refused += division.schedules.len();
                    found.keep_refusal(error.clone());
                    continue;
                }
            };
            if *share >= shares.most {
                found.plans += division.schedules.len();
                found.rejected_by_bound += division.schedules.len();
                continue;
            }
            plan.layout = lot.layout(division.layout);
            let sends = known.sends_of_plan(&plan, || self.evaluator.pipeline_sends(chip, shape, &plan));
            for (schedule, &kind) in division.schedules.iter().enumerate() {
                let candidate = PlanCandidate { division: place as u32, schedule: schedule as u32, ..at };
                found.plans += 1;
                let evaluator = self.evaluator_of(&plan, kind);
                let lack = evaluator.total_shortfall(evaluator.memory_need(shape, degrees, kind, m));
                if lack > Bytes::ZERO {
                    found.over_capacity += 1;
                    found.note_shortfall(lack, candidate);
                    continue;
                }
                let time = self.evaluator.time_of_passes(&mut recent, shape, degrees, &sends, kind, m);
                self.note_fitting_plan(PlanCandidate { time: time.seconds().0, ..candidate }, time, found);
            }
        }
    }

    /// Adds a plan that fits: timed, open or pruned by its bound.
    fn note_fitting_plan(&self, candidate: PlanCandidate, time: PassesTime, found: &mut FoundPlans) {
        if let PassesTime::Exact(_) = time {
            found.timed += 1;
            found.insert_timed(candidate, self.length);
        } else if candidate.time >= self.limit || found.beats_bound(candidate.time, self.length) {
            found.rejected_by_bound += 1;
        } else {
            found.open.push(candidate);
        }
    }

    fn group_of(&self, place: GroupPlace) -> &PlanGroup {
        &self.families[place.family as usize].lots[place.lot as usize]
    }

    /// Makes a plan from its indices.
    pub fn plan_of(&self, c: PlanCandidate) -> TrainingPlan {
        let family = &self.families[c.family as usize];
        let (lot, division): (&PlanGroup, usize) = (&family.lots[c.lot as usize], c.division as usize);
        let schedule: PipelineSchedule = family.divisions[division].schedules[c.schedule as usize];
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

    /// Completes the list for reports: evaluates each plan's parts of the time and the memory of all stages.
    pub fn finish_answer(
        &self,
        found: FoundPlans,
        simulated: usize,
        tried: SplitStatistics,
        top: usize,
    ) -> Result<PlanAnswer, StepError> {
        self.finish_answer_on(&mut self.chip.clone(), found, simulated, tried, top)
    }

    /// As [`Self::finish_answer`], with a chip that may have cached kernel times.
    pub fn finish_answer_on(
        &self,
        chip: &mut ChipTimes,
        found: FoundPlans,
        simulated: usize,
        tried: SplitStatistics,
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
        let factors = self.factors.clone().unwrap_or_else(|| Arc::new(PeakFactors::new(self.job)));
        for candidate in found.best {
            let plan = self.plan_of(candidate);
            let shape = self.job.lower_shape(chip, &plan)?;
            if let PlanAttempt::Fits(ranked) = self.job.try_plan(chip, &shape, &plan, &factors)? {
                answer.best.push(*ranked);
            }
        }
        answer.best.sort_by(|a, b| a.time.total.0.total_cmp(&b.time.total.0));
        answer.best.truncate(top);
        if let Some((_, candidate)) = found.nearest {
            let plan = self.plan_of(candidate);
            // The time of a plan that does not fit is not needed.
            let chip = &mut chip.with_fidelity(Fidelity::Peak);
            let shape = self.job.lower_shape(chip, &plan)?;
            if let PlanAttempt::OverCapacity(why, memory) = self.job.try_plan(chip, &shape, &plan, &factors)? {
                let away = |s: &step::StageMemory| {
                    s.check_host(memory.host_capacity).and_then(|()| s.check_storage(memory.storage_capacity)).is_ok()
                };
                answer.enough = memory.stages.iter().all(away).then_some(why.need);
                answer.nearest = Some((plan, why));
            }
        }
        Ok(answer)
    }
}

/// Costs of sends between stages under one shape. Their key is the distance between stages, the number of stages, and
/// the data-parallel degree.
#[derive(Default)]
struct KnownSends(Vec<([u32; 3], PipelineSends)>);

impl KnownSends {
    fn sends_of_plan(&mut self, plan: &TrainingPlan, price: impl FnOnce() -> PipelineSends) -> PipelineSends {
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
