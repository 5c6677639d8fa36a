//! Finds plans with the best policies for each stage.
//!
//! For a given layout, split of the layers and schedule, a stage's least time in its own memory does not depend on the
//! other stages. A group's layer has a front of choices (keep, rerun or offload each tensor:
//! [`crate::memory::LayerFront`]). `step` times and sizes each choice and each named policy. Every stage takes the
//! fastest mix of them for its own micro-batches in flight ([`crate::memory::MixQuestion`]).
//!
//! A plan that keeps everything is a lower bound: no mix with the same layout, split and schedule is faster. So the
//! candidates are plans that do not fit if they keep everything, but would then be faster than the fastest known plan.
//! They are tried in the order of that bound, until none is below the fastest plan.

use crate::memory::{CopyLinks, CopyRate, LayerFront, LayerTensors, MixPoint, RecomputeSpace};
use crate::planner::PlanPart;
use crate::planner::mixes::layer_policies::{policy_of_choice, preset_policies};
use crate::planner::mixes::stages::{GroupLayers, LackingPolicies, PlanStages, StagedPlan};
use crate::planner::ranked::MixStatistics;
use crate::planner::search::core::{PlanSearch, SPARE};
use crate::planner::search::found::{FoundPlans, GroupPlace, PlanCandidate};
use crate::planner::space::policies::default_policies;
use rayon::prelude::*;
use sim::kernel::{Kernel, Transfer, TransferLink};
use sim::units::{Bytes, Seconds};
use std::collections::BTreeMap;
use std::sync::PoisonError;
use step::{ChipTimes, DegreeCosts, LoweredModel, MixKind, PlanShape, RecentChunks, StepError, TrainingPlan};
use workloads::{ActivationPolicy, LayerEnds, Layout, Segment, SegmentKind, StagePolicies};

/// Plans mixed between two updates of the fastest plan.
const ROUND: usize = 16;

/// Largest number of policies in a space that mixes may use by name. If a space has more, mixes use none of them.
const NAMED: usize = 32;

/// The proven distance of a group's mixed plans from the optimum.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Looked {
    /// True if no other order of kernels makes the passes of these plans faster.
    pub proven: bool,
    /// The largest possible gain of a better mix of policies, as a fraction.
    pub gap: f64,
}

/// A plan that does not fit if it keeps everything, with a lower bound in seconds on its time under any policies.
struct OpenPlan {
    candidate: PlanCandidate,
    /// Bytes of device memory that some stage lacks under every policy; zero if some policy might fit.
    lacks: Bytes,
}

/// Shapes of a group's plans under the two extreme policies.
struct ExtremeShapes {
    /// The shape if everything is kept.
    keeping: PlanShape,
    /// The shape if everything is rerun. `None` if mixes may need less memory than that, or if no plan is known yet.
    rerunning: Option<PlanShape>,
}

/// By group, its layer under every policy; `None` if it cannot be lowered.
type LayersByGroup = BTreeMap<GroupPlace, Option<GroupLayers>>;

/// Threads for timing a group's policies. If many groups run at once, a group gets one thread.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum TimingThreads {
    One,
    All,
}

impl PlanSearch<'_> {
    /// Adds the plans with policies by stage that are faster than the fastest plan found. Returns their statistics.
    pub(crate) fn add_mixed_plans(&self, found: &mut FoundPlans) -> MixStatistics {
        let mut mixed = MixStatistics::default();
        if self.mixes == MixKind::None {
            return mixed;
        }
        let bounds = self.open_plans_of_all_groups(found);
        let open = candidates_by_bound(&bounds);
        let mut known = LayersByGroup::default();
        let mut at = 0;
        self.standing.begin_part(PlanPart::Mixes, open.len());
        while at < open.len() {
            let limit = self.limit.min(found.cutoff_for_count(1));
            if self.standing.should_stop() {
                self.standing.note_left_bound(open[at].time);
                break;
            }
            let round = &open[at..open.len().min(at + ROUND)];
            let round = &round[..round.partition_point(|candidate| candidate.time < limit)];
            if round.is_empty() {
                break;
            }
            self.mix_policies_of_plans(round, &mut known, found, &mut mixed);
            at += round.len();
            self.standing.add_done(round.len(), 0, found.cutoff_for_count(1));
        }
        if found.best.is_empty() && self.limit.is_infinite() && !self.standing.was_stopped() {
            self.note_least_shortfall(bounds, known, found);
        }
        mixed
    }

    /// The plans of all groups that do not fit if they keep everything, but would then be faster than the fastest plan
    /// found.
    fn open_plans_of_all_groups(&self, found: &FoundPlans) -> Vec<OpenPlan> {
        let limit = self.limit.min(found.cutoff_for_count(1));
        let places: Vec<(usize, GroupPlace)> = self.group_places().into_iter().enumerate().collect();
        let keeping = |chip: &mut ChipTimes, &(index, place): &(usize, GroupPlace)| {
            if self.standing.should_stop() {
                self.standing.note_left_bound(self.lower_bound_of_group_at(index));
                return Vec::new();
            }
            self.plans_keeping_everything(chip, place, found, limit)
        };
        let open: Vec<Vec<OpenPlan>> = places.par_iter().map_init(|| self.chip.clone(), keeping).collect();
        open.into_iter().flatten().collect()
    }

    /// Gives some plans their best policies by stage, and adds those that enter the list.
    fn mix_policies_of_plans(
        &self,
        plans: &[PlanCandidate],
        known: &mut LayersByGroup,
        found: &mut FoundPlans,
        mixed: &mut MixStatistics,
    ) {
        plans.iter().for_each(|candidate| self.time_layers(known, candidate));
        let listed = self.limit.min(found.cutoff_for_count(self.length - SPARE));
        let staged = |chip: &mut ChipTimes, candidate: &PlanCandidate| {
            let layers = known.get(&candidate.group_place())?.as_ref()?;
            self.plan_with_stage_policies(chip, layers, candidate, listed)
        };
        let staged: Vec<Option<StagedPlan>> = plans.par_iter().map_init(|| self.chip.clone(), staged).collect();
        for (candidate, staged) in plans.iter().zip(staged) {
            mixed.tried += 1;
            let Some(staged) = staged else { continue };
            mixed.gap = mixed.gap.max(staged.gap);
            self.insert_staged(found, staged, *candidate);
        }
    }

    /// Times the layers of a plan's group, if they are not known yet.
    fn time_layers(&self, known: &mut LayersByGroup, candidate: &PlanCandidate) {
        known
            .entry(candidate.group_place())
            .or_insert_with(|| self.layers_of_group(&mut self.chip.clone(), candidate, TimingThreads::All).ok());
    }

    /// Adds a plan with policies by stage, if it enters the list.
    fn insert_staged(&self, found: &mut FoundPlans, staged: StagedPlan, candidate: PlanCandidate) {
        if !found.beats_bound(staged.time, self.length) {
            let policy = self.remember_policies(staged.policies);
            found.insert_timed(PlanCandidate { time: staged.time, policy, ..candidate }, self.length);
        }
    }

    /// Notes the smallest shortfall over all policies of the stages; called if no plan fits. Plans that lack more under
    /// every policy are left out.
    fn note_least_shortfall(&self, mut open: Vec<OpenPlan>, mut known: LayersByGroup, found: &mut FoundPlans) {
        let place = |of: &PlanCandidate| (of.group_place(), of.division, of.schedule);
        open.sort_by_key(|plan| (plan.lacks, place(&plan.candidate)));
        let mut least: Option<(PlanCandidate, LackingPolicies)> = None;
        for round in open.chunks(ROUND) {
            let beaten = |plan: &OpenPlan| least.as_ref().is_some_and(|(_, other)| plan.lacks > other.lack);
            let round = &round[..round.iter().position(beaten).unwrap_or(round.len())];
            if round.is_empty() {
                break;
            }
            round.iter().for_each(|plan| self.time_layers(&mut known, &plan.candidate));
            let lacking = |chip: &mut ChipTimes, OpenPlan { candidate, .. }: &OpenPlan| {
                let layers = known.get(&candidate.group_place())?.as_ref()?;
                let lacking = self
                    .stages_of_plan(chip, layers, candidate, f64::INFINITY, |stages| stages.least_memory_policies())?;
                Some((*candidate, lacking))
            };
            let found: Vec<_> = round.par_iter().map_init(|| self.chip.clone(), lacking).flatten().collect();
            least = least.into_iter().chain(found).min_by_key(|(candidate, other)| (other.lack, place(candidate)));
        }
        if let Some((candidate, LackingPolicies { lack, policies })) = least {
            let policy = self.remember_policies(policies);
            found.note_shortfall(lack, PlanCandidate { policy, ..candidate });
        }
    }

    /// Adds a group's plans with policies by stage that are faster than `limit` and the fastest found.
    pub(crate) fn add_mixes_of_group(
        &self,
        chip: &mut ChipTimes,
        place: GroupPlace,
        limit: f64,
        found: &mut FoundPlans,
    ) -> Looked {
        let mut gap = 0.0_f64;
        if self.mixes == MixKind::None {
            return Looked { proven: true, gap };
        }
        let open = self.plans_keeping_everything(chip, place, found, limit.min(found.cutoff_for_count(1)));
        // Layers are timed when a plan first needs them, because most groups have no plan that could be faster.
        let mut layers = None;
        for candidate in candidates_by_bound(&open) {
            if candidate.time >= limit.min(found.cutoff_for_count(1)) {
                break;
            }
            let layers = layers.get_or_insert_with(|| self.layers_of_group(chip, &candidate, TimingThreads::One).ok());
            let listed = found.cutoff_for_count(self.length - SPARE);
            let staged =
                layers.as_ref().and_then(|layers| self.plan_with_stage_policies(chip, layers, &candidate, listed));
            let Some(staged) = staged else { continue };
            gap = gap.max(staged.gap);
            self.insert_staged(found, staged, candidate);
        }
        let proven = layers.flatten().is_none_or(|layers| layers.shapes.iter().all(PlanShape::is_proven));
        Looked { proven, gap }
    }

    /// Stores policies by stage for [`PlanSearch::plan_of`]. Returns the policy index that stands for them.
    pub(crate) fn remember_policies(&self, policies: StagePolicies) -> u32 {
        let mut mixes = self.staged.lock().unwrap_or_else(PoisonError::into_inner);
        mixes.push(policies);
        (self.policies.len() + mixes.len() - 1) as u32
    }

    /// The plans of a group that do not fit if they keep everything, but would then take less than `limit` seconds;
    /// with that time.
    fn plans_keeping_everything(
        &self,
        chip: &mut ChipTimes,
        place: GroupPlace,
        found: &FoundPlans,
        limit: f64,
    ) -> Vec<OpenPlan> {
        let first = self.any_plan_of_group(place);
        let Ok(shapes) = self.extreme_shapes(chip, self.plan_of(first), found) else { return Vec::new() };
        let mut open: Vec<OpenPlan> = Vec::new();
        let here = &self.families[place.family as usize];
        for &(division, _) in &here.lots[place.lot as usize].pairs {
            for schedule in 0..here.divisions[division].schedules.len() {
                let candidate = PlanCandidate { division: division as u32, schedule: schedule as u32, ..first };
                let splits = self.splits_for_mixes(chip, &shapes, &candidate, found, limit);
                open.extend(splits.into_iter().filter_map(|ends| {
                    let candidate = PlanCandidate { ends, ..candidate };
                    let plan = self.plan_keeping_everything(chip, &shapes.keeping, candidate)?;
                    (plan.candidate.time < limit).then_some(plan)
                }));
            }
        }
        open
    }

    /// The shapes of a group's plans that keep everything, and that rerun everything.
    fn extreme_shapes(
        &self,
        chip: &mut ChipTimes,
        plan: TrainingPlan,
        found: &FoundPlans,
    ) -> Result<ExtremeShapes, StepError> {
        let with = |policy: ActivationPolicy| TrainingPlan { activations: policy.into(), ..plan.clone() };
        let keeping = with(ActivationPolicy::None);
        let mut lowered = LoweredModel::new(self.job.model, &keeping, self.job.stack)?;
        let mut shape = |plan: &TrainingPlan| lowered.plan_shape(chip, self.job.fabric, plan);
        let keeping = shape(&keeping)?;
        // If no plan was found, the report needs the smallest shortfall of all.
        let rerunning = (self.mixes == MixKind::Block && !found.best.is_empty())
            .then(|| shape(&with(ActivationPolicy::Full)))
            .transpose()?;
        Ok(ExtremeShapes { keeping, rerunning })
    }

    /// The splits of a plan's layers that mixes may use: the space's own split, those in the list, and the few near the
    /// even one that are fastest if everything is kept. Splits that do not fit even if everything is rerun are left
    /// out.
    fn splits_for_mixes(
        &self,
        chip: &mut ChipTimes,
        shapes: &ExtremeShapes,
        candidate: &PlanCandidate,
        found: &FoundPlans,
        limit: f64,
    ) -> Vec<Option<LayerEnds>> {
        let plan = self.plan_of(*candidate);
        let domain = self.job.sharding_domain(&plan);
        let (rerunning, evaluator) = (shapes.rerunning.as_ref(), self.evaluator_of_mixes(&plan));
        if rerunning.is_some_and(|shape| !evaluator.may_fit(shape, &plan, domain)) {
            return Vec::new();
        }
        let exceeds = |ends: Option<LayerEnds>| {
            let layout = Layout { ends: ends.or(plan.layout.ends), ..plan.layout };
            let split = layout.chunk_split(self.job.model.layers).ok();
            rerunning.zip(split).is_some_and(|(shape, split)| evaluator.exceeds_capacity(shape, &plan, split, domain))
        };
        let listed = found.best.iter().filter(|other| other.is_split_of(candidate) && other.ends.is_some());
        let near = self.ends_for_mixes(chip, &shapes.keeping, candidate, limit);
        let mut ends: Vec<_> = listed.map(|other| other.ends).chain([None]).chain(near.into_iter().map(Some)).collect();
        ends.sort();
        ends.dedup();
        ends.retain(|ends| !exceeds(*ends));
        ends
    }

    /// Sizes and bounds a plan that keeps everything. `None` if the plan fits or cannot be timed.
    fn plan_keeping_everything(
        &self,
        chip: &mut ChipTimes,
        shape: &PlanShape,
        candidate: PlanCandidate,
    ) -> Option<OpenPlan> {
        let plan = self.plan_of(candidate);
        let keeping = TrainingPlan { activations: StagePolicies::default(), ..plan.clone() };
        let (kind, m) = (plan.schedule, plan.micro_batches());
        let degrees = self.degrees_of_plan(chip, shape, &candidate, &plan)?;
        let need = self.evaluator.memory_need(shape, &degrees, kind, m);
        if self.evaluator_of(&keeping, kind).total_shortfall(need) == Bytes::ZERO {
            return None;
        }
        let lacks = self.evaluator_of_mixes(&plan).least_shortfall(shape, &degrees, kind, m);
        let sends = self.evaluator.pipeline_sends(chip, shape, &plan);
        let passes = self.evaluator.time_of_passes(&mut RecentChunks::default(), shape, &degrees, &sends, kind, m);
        Some(OpenPlan { candidate: PlanCandidate { time: passes.seconds().0, ..candidate }, lacks })
    }

    fn degrees_of_plan(
        &self,
        chip: &mut ChipTimes,
        shape: &PlanShape,
        candidate: &PlanCandidate,
        plan: &TrainingPlan,
    ) -> Option<DegreeCosts> {
        match candidate.ends {
            None => self.divisions_of(candidate.family)[candidate.division as usize].degrees.as_ref().ok().cloned(),
            Some(_) => self.evaluator.prepare_degrees(chip, shape, plan, self.job.sharding_domain(plan)).ok(),
        }
    }

    /// Finds a plan's best policies for every stage. `None` if no plan with such policies fits or is below `limit`
    /// seconds.
    fn plan_with_stage_policies(
        &self,
        chip: &mut ChipTimes,
        layers: &GroupLayers,
        candidate: &PlanCandidate,
        limit: f64,
    ) -> Option<StagedPlan> {
        let block = self.mixes == MixKind::Block;
        self.stages_of_plan(chip, layers, candidate, limit, |stages| {
            if block { stages.rerun_first_layers() } else { stages.mix_every_stage() }
        })
    }

    /// Calls `of` with the stages of a plan; `None` if the plan cannot be timed.
    pub(crate) fn stages_of_plan<T>(
        &self,
        chip: &mut ChipTimes,
        layers: &GroupLayers,
        candidate: &PlanCandidate,
        limit: f64,
        of: impl FnOnce(&PlanStages<'_, '_>) -> Option<T>,
    ) -> Option<T> {
        let plan = self.plan_of(*candidate);
        let degrees = self.degrees_of_plan(chip, &layers.none, candidate, &plan)?;
        let sends = self.evaluator.pipeline_sends(chip, &layers.none, &plan);
        of(&PlanStages {
            search: self,
            evaluator: self.evaluator_of_mixes(&plan),
            layers,
            degrees: &degrees,
            sends: &sends,
            run: (plan.schedule, plan.micro_batches()),
            limit,
        })
    }

    /// A group's layer under every policy that a mix may use. Policies with equal costs count once.
    pub(crate) fn layers_of_group(
        &self,
        chip: &mut ChipTimes,
        candidate: &PlanCandidate,
        cores: TimingThreads,
    ) -> Result<GroupLayers, StepError> {
        let plan = TrainingPlan { activations: StagePolicies::default(), ..self.plan_of(*candidate) };
        let mut lowered = LoweredModel::new(self.job.model, &plan, self.job.stack)?;
        let none = lowered.plan_shape(chip, self.job.fabric, &plan)?;
        let policies = self.policies_for_mixes(chip, &lowered, &none)?;
        let shapes = self.shapes_under_policies(chip, lowered, &plan, &policies, cores)?;
        let mut layers = GroupLayers { policies: Vec::new(), shapes: Vec::new(), points: Vec::new(), none };
        for (policy, shape) in policies.into_iter().zip(shapes) {
            let cost = shape.layer_cost(self.job.stack);
            let point = MixPoint {
                kept: cost.kept.0,
                host: cost.host.0,
                storage: cost.storage.0,
                working: cost.working.0,
                time: cost.time.0,
            };
            if !layers.points.contains(&point) {
                layers.policies.push(policy);
                layers.shapes.push(shape);
                layers.points.push(point);
            }
        }
        Ok(layers)
    }

    /// The policies that a group's mixes may use. The first keeps everything, and `none` is its shape.
    fn policies_for_mixes(
        &self,
        chip: &mut ChipTimes,
        lowered: &LoweredModel<'_>,
        none: &PlanShape,
    ) -> Result<Vec<ActivationPolicy>, StepError> {
        let allowed = |policy: &ActivationPolicy| {
            self.job.techniques.check_policy(policy, lowered.graph(), self.job.stack.replay_extent())
        };
        let mut policies = vec![ActivationPolicy::None];
        let named = match self.mixes {
            MixKind::Block => {
                allowed(&ActivationPolicy::Full)?;
                vec![ActivationPolicy::Full]
            }
            // A space with very many policies adds none of them, because the front has better ones.
            _ => self
                .policies
                .iter()
                .filter(|_| self.policies.len() <= NAMED)
                .cloned()
                .chain(default_policies())
                .collect(),
        };
        let chosen = match (self.mixes, lowered.graph().segment(SegmentKind::Layer)) {
            // For a block of different layers, the named policies suffice. Choices for all its tensors together would
            // be too many.
            (MixKind::PerStage, Some(layer)) if layer.layers_per_piece() == 1 => {
                self.policies_of_front(chip, layer, none)
            }
            _ => Vec::new(),
        };
        let presets = match self.mixes {
            MixKind::PerStage => {
                preset_policies(self.job.model, lowered.graph(), self.job.stack, self.evaluator.capacity())
            }
            _ => Vec::new(),
        };
        for policy in named.into_iter().chain(chosen).chain(presets) {
            if !policies.contains(&policy) && allowed(&policy).is_ok() {
                policies.push(policy);
            }
        }
        Ok(policies)
    }

    /// A plan's shape under each of some policies.
    fn shapes_under_policies(
        &self,
        chip: &mut ChipTimes,
        mut lowered: LoweredModel<'_>,
        plan: &TrainingPlan,
        policies: &[ActivationPolicy],
        cores: TimingThreads,
    ) -> Result<Vec<PlanShape>, StepError> {
        let shape = |chip: &mut ChipTimes, lowered: &mut LoweredModel<'_>, policy: &ActivationPolicy| {
            let plan = TrainingPlan { activations: policy.clone().into(), ..plan.clone() };
            lowered.plan_shape(chip, self.job.fabric, &plan)
        };
        match cores {
            TimingThreads::One => policies.iter().map(|policy| shape(chip, &mut lowered, policy)).collect(),
            TimingThreads::All => {
                let own = || (chip.clone(), lowered.clone());
                policies
                    .par_iter()
                    .with_max_len(1)
                    .map_init(own, |own, policy| shape(&mut own.0, &mut own.1, policy))
                    .collect()
            }
        }
    }

    /// The front of a layer's choices as policies; empty if it cannot be computed.
    fn policies_of_front(&self, chip: &mut ChipTimes, layer: &Segment, none: &PlanShape) -> Vec<ActivationPolicy> {
        let mut operator = |kernel: &Kernel| match kernel {
            Kernel::Collective(collective) => chip.cost_of_collective(self.job.fabric, collective).time,
            _ => chip.time_of_kernel(kernel),
        };
        let forward: Vec<Seconds> =
            layer.operators().iter().map(|op| op.forward.iter().map(|step| operator(&step.kernel)).sum()).collect();
        let [forward_busy, backward_busy] = none.layer_busy_times();
        let have = self.evaluator.capacity();
        let mut rate = |link: TransferLink, there: Bytes| {
            let mut copy =
                |bytes: u64| chip.time_of_kernel(&Kernel::Transfer(Transfer { link, bytes: Bytes(bytes) })).0;
            let (one, many) = (copy(1), copy(1 << 30));
            let rate = CopyRate { latency: one, per_byte: (many - one) / (1_u64 << 30) as f64 };
            (there > Bytes::ZERO && many.is_finite()).then_some(rate)
        };
        let (host, storage) = (rate(TransferLink::Host, have.host), rate(TransferLink::Storage, have.storage));
        let links = (host.is_some() || storage.is_some()).then_some(CopyLinks {
            host,
            storage,
            hidden: self.job.stack.overlap.host,
            forward: forward_busy.0,
            backward: backward_busy.0,
        });
        let Ok(space) = RecomputeSpace::new(LayerTensors::from_segment(layer)) else { return Vec::new() };
        let Ok(front) = LayerFront::new(&space, &forward, links) else { return Vec::new() };
        front.choices.iter().map(|choice| policy_of_choice(space.layer(), choice)).collect()
    }
}

/// The plans that may fit under some policy, least bound first.
fn candidates_by_bound(open: &[OpenPlan]) -> Vec<PlanCandidate> {
    let mut open: Vec<PlanCandidate> =
        open.iter().filter(|plan| plan.lacks == Bytes::ZERO).map(|plan| plan.candidate).collect();
    open.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
    open
}

#[cfg(test)]
#[path = "mixes_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "laws_tests.rs"]
mod laws;

#[cfg(test)]
#[path = "preset_laws_tests.rs"]
mod preset_laws;
