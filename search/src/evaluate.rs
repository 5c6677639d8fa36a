//! The best plan of a model on a chip, exactly; an expert's plan on a chip; and a bound of both.

use crate::bench::Bench;
use crate::bound::{ShapeOrder, gradient_sync};
use crate::placement::plan::{
    ClusterLimits, Effort, FixedPlacement, LayerSplit, NoPlan, Placement, PlacementError, Plan, evaluate_fixed, place_with,
};
use crate::profile::{Chains, ChipOnBench, Profile, ProfileError};
use crate::runner::Verdict;
use crate::shape::Shape;
use sim::hardware::Accelerator;
use sim::status::SolveStatus;
use sim::units::{Bytes, Joules};
use std::collections::BTreeSet;

/// Step times closer than this, relatively, are equal.
const TIE: f64 = 1e-12;

/// The parallel degrees an expert would write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Degrees {
    /// Pipeline stages.
    pub pipeline: usize,
    /// Data-parallel replicas.
    pub data: u64,
    /// Tensor-parallel width.
    pub tensor: u32,
}

/// A plan on a chip, with what it was made from.
#[derive(Debug, Clone, PartialEq)]
pub struct Planned {
    /// The plan.
    pub plan: Plan,
    /// The position of its shape in [`Bench::shapes`].
    pub shape: usize,
    /// The shape on the chip.
    pub profile: Profile,
    /// Energy of one step over all devices, static power included.
    pub energy: Joules,
}

/// The outcome of placing a model on a chip.
#[derive(Debug, Clone, PartialEq)]
pub struct Evaluation {
    /// The best plan, or why there is none.
    pub outcome: Result<Planned, Rejection>,
    /// How good the plan is among all plans of the study on this chip.
    pub status: SolveStatus,
    /// Shapes (tensor width x micro-batch) planned exactly.
    pub planned: usize,
    /// Shapes that a bound ruled out.
    pub pruned: usize,
}

/// Why a chip has no plan.
#[derive(Debug, Clone, PartialEq)]
pub enum Rejection {
    /// No plan fits: the attempt that comes nearest.
    NoPlan {
        /// Its tensor width.
        tensor_parallel: u32,
        /// Its micro-batch.
        micro_batch: u32,
        /// What it lacks.
        why: NoPlan,
    },
    /// The chip cannot be simulated.
    Unusable(String),
}

impl std::fmt::Display for Rejection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoPlan { tensor_parallel, micro_batch, why } => {
                write!(f, "with tensor width {tensor_parallel} and micro-batch {micro_batch}, {why}")
            }
            Self::Unusable(why) => f.write_str(why),
        }
    }
}

fn limits(bench: &Bench, shape: &Shape) -> ClusterLimits {
    ClusterLimits {
        devices: u64::from(bench.devices),
        global_batch: u64::from(bench.global_batch),
        tensor_width: u64::from(shape.tensor_parallel),
        micro_batch: u64::from(shape.micro_batch),
    }
}

/// What asks the planner for a plan of a shape.
type Ask<'a> = &'a dyn Fn(&Bench, &Shape, &Chains) -> Result<Placement, PlacementError>;

/// The best plan of a shape: of one stage (where a tied head shares the embedding's weights) or of several.
fn any_plan(bench: &Bench, shape: &Shape, chains: &Chains, effort: Effort) -> Result<Placement, PlacementError> {
    let sync = |bytes: Bytes, ranks: u64, stride: u64| gradient_sync(&bench.fabric, bytes, ranks, stride);
    let limits = limits(bench, shape);
    let mut best = place_with(&chains.split, limits, &sync, effort)?;
    if chains.whole != chains.split {
        let replicas = u64::from(bench.global_batch / shape.micro_batch);
        for data in (1..=replicas.min(limits.devices / limits.tensor_width)).filter(|d| replicas.is_multiple_of(*d)) {
            let fixed = FixedPlacement { pipeline_stages: 1, data_parallel: data };
            let one_stage = evaluate_fixed(&chains.whole, limits, &sync, fixed, LayerSplit::Optimal)?;
            if better(&one_stage, &best) {
                // What the search over several stages left open stays open.
                let lower = placement_bound(&best).min(placement_bound(&one_stage));
                best = one_stage;
                if let Ok(plan) = &best.outcome {
                    best.status = SolveStatus::from_bounds(lower.min(plan.step.0), plan.step.0);
                }
            }
        }
    }
    Ok(best)
}

/// What came of planning a shape.
enum Attempt {
    /// Its best placement.
    Placed(Placement),
    /// No plan of it is below this, which is not below what is known.
    Beaten(f64),
}

/// Asks for a plan of a shape on a chip that is faster than `known`, scheduling only those recomputing backward passes that the answer turns
/// on. Exact:
///
/// 1. with all memory in the world nothing is recomputed; where that plan fits the chip, no plan is better;
/// 2. otherwise every policy costs a lower bound until the planner uses it; a plan whose policies all have their scheduled cost is the best,
///    because no other can cost less than its bounds.
///
/// Either way each plan on the way bounds the answer from below, as far as its own schedules are proven.
fn plan_lazily(
    chip: &mut ChipOnBench<'_>,
    shape: &Shape,
    profile: &mut Profile,
    ask: Ask<'_>,
    known: f64,
) -> Result<Attempt, ProfileError> {
    let bench = chip.bench();
    let refused = |chip: &ChipOnBench<'_>, error: PlacementError| ProfileError::Numbers {
        chip: chip.device().chip().name.clone(),
        why: error.to_string(),
    };
    let beaten = |placement: &Placement, profile: &Profile| {
        let bound = placement_bound(placement) * (1.0 - profile.schedule_gap());
        (placement.outcome.is_ok() && bound >= known).then_some(bound)
    };
    ChipOnBench::keep_everything(shape, profile);
    let capacity = chip.device().chip().memory_capacity();
    let mut chains = chip.chains(shape, profile);
    chains.whole.hbm = Bytes(u64::MAX);
    chains.split.hbm = Bytes(u64::MAX);
    let unlimited = ask(bench, shape, &chains).map_err(|e| refused(chip, e))?;
    if let Some(bound) = beaten(&unlimited, profile) {
        return Ok(Attempt::Beaten(bound));
    }
    match &unlimited.outcome {
        Ok(plan) if plan.stages.iter().any(|s| s.memory.total() > capacity) => {}
        _ => return Ok(Attempt::Placed(unlimited)),
    }
    chip.open_policies(shape, profile)?;
    loop {
        let placement = ask(bench, shape, &chip.chains(shape, profile)).map_err(|e| refused(chip, e))?;
        if let Some(bound) = beaten(&placement, profile) {
            return Ok(Attempt::Beaten(bound));
        }
        let Ok(plan) = &placement.outcome else { return Ok(Attempt::Placed(placement)) };
        let used = plan.stages.iter().flat_map(|s| &s.shares).flat_map(|s| s.policies.iter().map(|p| (s.segment, p.id)));
        let open: BTreeSet<(usize, usize)> = used.filter(|&(s, p)| profile.segments[s].policies[p].pass.is_none()).collect();
        if open.is_empty() {
            return Ok(Attempt::Placed(placement));
        }
        for (segment, policy) in open {
            chip.close_policy(shape, profile, segment, policy)?;
        }
    }
}

/// No plan that the placement speaks for is faster.
fn placement_bound(placement: &Placement) -> f64 {
    match (&placement.status, &placement.outcome) {
        (SolveStatus::Gap { lower_bound, .. }, _) => *lower_bound,
        (_, Ok(plan)) => plan.step.0,
        (_, Err(_)) => f64::INFINITY,
    }
}

/// Whether `a` is faster than `b`; of two that do not fit, whether it lacks less.
fn better(a: &Placement, b: &Placement) -> bool {
    match (&a.outcome, &b.outcome) {
        (Ok(a), Ok(b)) => a.step.0 < b.step.0,
        (Ok(_), Err(_)) => true,
        (Err(_), Ok(_)) => false,
        (Err(a), Err(b)) => lacking(a) < lacking(b),
    }
}

/// How far a rejected plan is from fitting; rules other than capacity come last.
fn lacking(why: &NoPlan) -> u64 {
    if let NoPlan::OverCapacity(shortfall) = why { shortfall.lacking().0 } else { u64::MAX }
}

/// What is known of a chip before its shapes are planned.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Known {
    /// Only plans that take less count, in seconds per step.
    pub cutoff: f64,
    /// No plan takes less, in seconds per step: one that takes as long ends the search.
    pub floor: f64,
    /// The shape to plan first, a position in [`Bench::shapes`]: that of the best plan on a chip much like this one.
    pub first: Option<usize>,
}

impl Known {
    /// Nothing.
    pub const NOTHING: Self = Self { cutoff: f64::INFINITY, floor: 0.0, first: None };
}

/// The best plan of the bench's model on `chip`, over every shape of the bench, every pipeline depth and data-parallel degree, every
/// split of the layers and every mix of recomputation. With [`Effort::Sweep`] the planner may leave a gap, which the status states.
#[must_use]
pub fn best_plan(bench: &Bench, chip: Accelerator, effort: Effort) -> Evaluation {
    best_plan_knowing(bench, chip, effort, Known::NOTHING)
}

/// [`best_plan`] with less work where something is known of the chip; the cutoff does not count. Where it is proven, it is the plan that its degrees
/// and micro-batch give by themselves.
#[must_use]
pub fn best_plan_knowing(bench: &Bench, chip: Accelerator, effort: Effort, known: Known) -> Evaluation {
    match plan_knowing(bench, chip.clone(), effort, Known { cutoff: f64::INFINITY, ..known }) {
        Verdict::Feasible(_, evaluation) if effort == Effort::Proof => as_given(bench, chip, evaluation),
        Verdict::Feasible(_, evaluation) | Verdict::Infeasible(evaluation) => evaluation,
        Verdict::Beaten(bound) => rejected(Rejection::Unusable(format!("no plan is below {bound} s per step"))),
    }
}

/// An evaluation with the plan that its own degrees and micro-batch give by themselves ([`fixed_plan`]): of splits and policies that are equally fast
/// the search meets others first. The plan as it is where that one is slower, which only gaps of the search's schedules can make it.
fn as_given(bench: &Bench, chip: Accelerator, evaluation: Evaluation) -> Evaluation {
    let Ok(found) = &evaluation.outcome else { return evaluation };
    let Plan { pipeline_stages: pipeline, data_parallel: data, step, .. } = found.plan;
    let shape = &bench.shapes[found.shape];
    let degrees = Degrees { pipeline, data, tensor: shape.tensor_parallel };
    match fixed_plan(bench, chip, degrees, Some(shape.micro_batch), LayerSplit::Optimal).outcome {
        Ok(given) if given.plan.step.0 <= step.0 * (1.0 + TIE) => Evaluation { outcome: Ok(given), ..evaluation },
        _ => evaluation,
    }
}

/// [`best_plan`], unless it is shown on the way that no plan takes less than the cutoff.
#[must_use]
pub fn plan_knowing(bench: &Bench, chip: Accelerator, effort: Effort, known: Known) -> Verdict<Evaluation> {
    match ChipOnBench::new(bench, chip, effort) {
        Ok(mut chip) => search_shapes(bench, &mut chip, effort, known),
        Err(error) => Verdict::Infeasible(rejected(Rejection::Unusable(error.to_string()))),
    }
}

fn rejected(why: Rejection) -> Evaluation {
    let status = SolveStatus::Infeasible { why: why.to_string() };
    Evaluation { outcome: Err(why), status, planned: 0, pruned: 0 }
}

/// What is found while the shapes of a chip are planned.
struct Search<'a> {
    bench: &'a Bench,
    effort: Effort,
    known: Known,
    best: Option<(Plan, usize, Profile)>,
    nearest: Option<(NoPlan, usize)>,
    unusable: Option<String>,
    /// No plan of the shapes done is below this.
    lower: f64,
    /// Shapes that were not scheduled, as bounds of their schedules are not below what was known; with those bounds of their steps.
    deferred: Vec<(f64, usize)>,
    planned: usize,
}

fn search_shapes(bench: &Bench, chip: &mut ChipOnBench<'_>, effort: Effort, known: Known) -> Verdict<Evaluation> {
    let mut search = Search {
        bench,
        effort,
        known,
        best: None,
        nearest: None,
        unusable: None,
        lower: f64::INFINITY,
        deferred: Vec::new(),
        planned: 0,
    };
    if let Some(first) = known.first {
        search.shape(chip, first, false);
    }
    if !search.done() {
        search.rest(chip);
    }
    search.verdict(chip)
}

impl Search<'_> {
    /// Only plans below this count.
    fn limit(&self) -> f64 {
        self.best.as_ref().map_or(self.known.cutoff, |(plan, ..)| plan.step.0.min(self.known.cutoff))
    }

    fn done(&self) -> bool {
        self.best.as_ref().is_some_and(|(plan, ..)| plan.step.0 <= self.known.floor)
    }

    /// Plans the shapes in the order of their bounds.
    fn rest(&mut self, chip: &mut ChipOnBench<'_>) {
        let mut order = ShapeOrder::new(self.bench, &chip.device().model);
        while let Some((bound, index)) = order.next(&chip.device().model) {
            if self.known.first == Some(index) {
                continue;
            }
            // A chip that nothing fits has infinite bounds: its shapes are planned all the same, to say what they lack.
            let nothing = self.best.is_none() && self.lower.is_infinite() && self.deferred.is_empty();
            let explain = bound.0.is_infinite() && nothing;
            if bound.0 >= self.limit() && !explain {
                // So are all that follow.
                self.lower = self.lower.min(bound.0);
                return;
            }
            self.shape(chip, index, explain);
            if self.done() {
                return;
            }
        }
    }

    /// Plans a shape unless bounds rule it out: those of its schedules, then its schedules.
    fn shape(&mut self, chip: &mut ChipOnBench<'_>, index: usize, explain: bool) {
        let (bench, known) = (self.bench, self.limit());
        let (shape, bound) = (&bench.shapes[index], &bench.bounds[index]);
        let hbm = chip.device().chip().memory_capacity();
        if known.is_finite()
            && !explain
            && let Ok(times) = chip.least_times(shape)
        {
            let least = bound.step(shape, hbm, times.into_iter()).0;
            if least >= known {
                self.deferred.push((least, index));
                return;
            }
        }
        let ask = |bench: &Bench, shape: &Shape, chains: &Chains| any_plan(bench, shape, chains, self.effort);
        let mut planned = 0;
        let attempt = chip.profile(shape).and_then(|mut profile| {
            // With its passes scheduled the shape's bound is tighter: it may already be beaten.
            ChipOnBench::keep_everything(shape, &mut profile);
            let tighter = bound.scheduled(shape, hbm, &profile).0 * (1.0 - profile.schedule_gap());
            if tighter >= known && !explain {
                return Ok((Attempt::Beaten(tighter), profile));
            }
            planned = 1;
            plan_lazily(chip, shape, &mut profile, &ask, known).map(|attempt| (attempt, profile))
        });
        self.planned += planned;
        self.take(index, attempt);
    }

    /// Schedules the deferred shapes that decide what a beaten chip is beaten by: the bound told rests on schedules.
    fn settle(&mut self, chip: &mut ChipOnBench<'_>) {
        self.deferred.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)));
        for (least, index) in std::mem::take(&mut self.deferred) {
            if least >= self.lower {
                return;
            }
            let shape = &self.bench.shapes[index];
            let hbm = chip.device().chip().memory_capacity();
            let scheduled = chip.profile(shape).map_or(0.0, |mut profile| {
                ChipOnBench::keep_everything(shape, &mut profile);
                self.bench.bounds[index].scheduled(shape, hbm, &profile).0 * (1.0 - profile.schedule_gap())
            });
            self.lower = self.lower.min(scheduled.max(least));
        }
    }

    fn take(&mut self, index: usize, attempt: Result<(Attempt, Profile), ProfileError>) {
        let best = self.best.as_ref().map_or(f64::INFINITY, |(plan, ..)| plan.step.0);
        match attempt {
            Ok((Attempt::Beaten(bound), _)) => self.lower = self.lower.min(bound),
            Ok((Attempt::Placed(placement), profile)) => {
                // A schedule within g of its optimum makes a step within g of its own.
                self.lower = self.lower.min(placement_bound(&placement) * (1.0 - profile.schedule_gap()));
                match placement.outcome {
                    Ok(plan) if plan.step.0 < best => self.best = Some((plan, index, profile)),
                    Ok(_) => {}
                    Err(why) if self.nearest.is_none_or(|(n, _)| lacking(&why) < lacking(&n)) => {
                        self.nearest = Some((why, index))
                    }
                    Err(_) => {}
                }
            }
            Err(error) => self.unusable = Some(error.to_string()),
        }
    }

    fn verdict(mut self, chip: &mut ChipOnBench<'_>) -> Verdict<Evaluation> {
        let (planned, pruned) = (self.planned, self.bench.shapes.len() - self.planned);
        if let Some((plan, shape, profile)) = self.best {
            let energy = step_energy(chip, &plan, &profile);
            let step = plan.step.0;
            let status = SolveStatus::from_bounds(self.lower.min(step), step);
            return Verdict::Feasible(
                step,
                Evaluation { outcome: Ok(Planned { plan, shape, profile, energy }), status, planned, pruned },
            );
        }
        self.settle(chip);
        if self.lower >= self.known.cutoff && self.lower.is_finite() {
            return Verdict::Beaten(self.lower);
        }
        Verdict::Infeasible(match (self.nearest, self.unusable) {
            (Some((why, index)), _) => {
                let shape = &self.bench.shapes[index];
                let why = Rejection::NoPlan { tensor_parallel: shape.tensor_parallel, micro_batch: shape.micro_batch, why };
                Evaluation { planned, pruned, ..rejected(why) }
            }
            (None, why) => rejected(Rejection::Unusable(why.unwrap_or_else(|| "no shape of the study can be tried".into()))),
        })
    }
}

/// The best plan with the degrees given, over the bench's micro-batches (or the one given) and every mix of recomputation, its layers
/// split as `split` says.
#[must_use]
pub fn fixed_plan(bench: &Bench, chip: Accelerator, degrees: Degrees, micro_batch: Option<u32>, split: LayerSplit) -> Evaluation {
    let mut chip = match ChipOnBench::new(bench, chip, Effort::Proof) {
        Ok(chip) => chip,
        Err(error) => return rejected(Rejection::Unusable(error.to_string())),
    };
    let fixed = FixedPlacement { pipeline_stages: degrees.pipeline, data_parallel: degrees.data };
    let mut best: Option<(Placement, usize, Profile)> = None;
    let mut planned = 0;
    for (index, shape) in bench.shapes.iter().enumerate() {
        if shape.tensor_parallel != degrees.tensor || micro_batch.is_some_and(|b| b != shape.micro_batch) {
            continue;
        }
        planned += 1;
        let ask = |bench: &Bench, shape: &Shape, chains: &Chains| {
            let sync = |bytes: Bytes, ranks: u64, stride: u64| gradient_sync(&bench.fabric, bytes, ranks, stride);
            let chain = if degrees.pipeline == 1 { &chains.whole } else { &chains.split };
            evaluate_fixed(chain, limits(bench, shape), &sync, fixed, split)
        };
        let placed = chip
            .profile(shape)
            .and_then(|mut profile| plan_lazily(&mut chip, shape, &mut profile, &ask, f64::INFINITY).map(|a| (a, profile)));
        match placed {
            Ok((Attempt::Placed(placement), profile)) if best.as_ref().is_none_or(|(b, ..)| better(&placement, b)) => {
                best = Some((placement, index, profile));
            }
            Ok(_) => {}
            Err(error) => return rejected(Rejection::Unusable(error.to_string())),
        }
    }
    let Some((placement, shape, profile)) = best else {
        let why = format!("the bench has no shape of tensor width {}: add it to the study's widths", degrees.tensor);
        return rejected(Rejection::Unusable(why));
    };
    match placement.outcome {
        Ok(plan) => {
            let energy = step_energy(&chip, &plan, &profile);
            Evaluation { outcome: Ok(Planned { plan, shape, profile, energy }), status: placement.status, planned, pruned: 0 }
        }
        Err(why) => {
            let s = &bench.shapes[shape];
            let why = Rejection::NoPlan { tensor_parallel: s.tensor_parallel, micro_batch: s.micro_batch, why };
            Evaluation { planned, ..rejected(why) }
        }
    }
}

/// Energy of a step: every kernel of every micro-batch on every device that the plan uses, the optimizer, and static power for as long as
/// the step takes. Energy on the network's links is not modelled.
fn step_energy(chip: &ChipOnBench<'_>, plan: &Plan, profile: &Profile) -> Joules {
    let replicas = (plan.data_parallel * plan.tensor_width) as f64;
    let mut micro_batch = Joules::ZERO;
    let mut once = Joules::ZERO;
    for stage in &plan.stages {
        for share in &stage.shares {
            let segment = &profile.segments[share.segment];
            micro_batch += segment.forward.energy * share.count as f64;
            once += segment.optimizer_energy * share.count as f64;
            for policy in &share.policies {
                let pass = segment.policies[policy.id].pass.unwrap_or(segment.backward);
                micro_batch += pass.energy * policy.count as f64;
            }
        }
    }
    let dynamic = (micro_batch * plan.micro_batches as f64 + once) * replicas;
    dynamic + chip.device().chip().energy.static_power * plan.step * plan.devices as f64
}
