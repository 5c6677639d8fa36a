//! The best plan of a model on a chip, exactly; an expert's plan on a chip; and a bound of both.

use crate::bench::Bench;
use crate::placement::plan::{
    ChainProfile, ClusterLimits, Effort, FixedPlacement, LayerSplit, NoPlan, Placement, PlacementError, Plan, Segment,
    evaluate_fixed, place_with,
};
use crate::profile::{Chains, ChipOnBench, Detail, KernelBounds, Profile, ProfileError};
use crate::runner::Verdict;
use crate::shape::Shape;
use sim::hardware::Accelerator;
use sim::kernel::{Collective, CollectiveKind, Group};
use sim::status::SolveStatus;
use sim::units::{Bytes, Joules, Seconds};
use std::collections::BTreeSet;

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

/// How long `bytes` of gradients take to be summed among `ranks` devices of the bench's fabric.
fn gradient_sync(bench: &Bench, bytes: Bytes, ranks: u64, stride: u64) -> Seconds {
    let group = Group { ranks: ranks as u32, stride: stride as u32 };
    bench.fabric.collective(&Collective { kind: CollectiveKind::AllReduce, bytes, group }).latency
}

fn limits(bench: &Bench, shape: &Shape) -> ClusterLimits {
    ClusterLimits {
        devices: u64::from(bench.devices),
        global_batch: u64::from(bench.global_batch),
        tensor_width: u64::from(shape.tensor_parallel),
        micro_batch: u64::from(shape.micro_batch),
    }
}

/// A step time that no plan of `shape` beats when its chain takes the times of `chain`, in closed form: infinite where there is no plan.
///
/// With d replicas there are at most p = N / (t d) stages, never more than pieces of the chain. The slowest stage takes at least an equal share of
/// the chain's work W, and at least its largest piece; the stage with most gradients reduces at least an equal share of them, and the fullest
/// holds at least an equal share of the weights. Activations, recomputation and transfers between stages are left out.
pub(crate) fn lower_bound(bench: &Bench, shape: &Shape, chain: &ChainProfile) -> Seconds {
    let of = |f: fn(&Segment) -> f64| chain.segments.iter().map(|s| f(s) * s.repeat as f64).sum::<f64>();
    let work = of(|s| s.forward.0 + s.backward.0);
    let gradient = of(|s| s.gradient.as_f64());
    let optimizer = of(|s| s.optimizer.0);
    let weights = of(|s| s.replicated.as_f64());
    let largest = chain.segments.iter().map(|s| s.forward.0 + s.backward.0).fold(0.0, f64::max);
    let width = u64::from(shape.tensor_parallel);
    let replicas = u64::from(bench.global_batch / shape.micro_batch);
    let most = (u64::from(bench.devices) / width).min(replicas);
    let step = |d: u64| {
        let stages = (u64::from(bench.devices) / (width * d)).min(chain.units() as u64) as f64;
        if weights / stages > chain.hbm.as_f64() {
            return f64::INFINITY;
        }
        let slowest = (work / stages).max(largest);
        // Rounded down: a bound must not lose a byte to rounding.
        let sync = if d > 1 { gradient_sync(bench, Bytes((gradient / stages) as u64), d, width) } else { Seconds::ZERO };
        (replicas / d - 1) as f64 * slowest + work + sync.0.max(optimizer / stages)
    };
    Seconds((1..=most).filter(|d| replicas.is_multiple_of(*d)).map(step).fold(f64::INFINITY, f64::min))
}

/// What asks the planner for a plan of a shape.
type Ask<'a> = &'a dyn Fn(&Bench, &Shape, &Chains) -> Result<Placement, PlacementError>;

/// The best plan of a shape: of one stage (where a tied head shares the embedding's weights) or of several.
fn any_plan(bench: &Bench, shape: &Shape, chains: &Chains, effort: Effort) -> Result<Placement, PlacementError> {
    let sync = |bytes: Bytes, ranks: u64, stride: u64| gradient_sync(bench, bytes, ranks, stride);
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

/// A shape with a bound of its step time.
#[derive(Debug, Clone, Copy)]
struct Bounded {
    bound: f64,
    shape: usize,
    detail: Detail,
}

/// The shapes of a bench in the order of their bounds on a chip. Mapping every kernel of a shape costs far more than bounding it from its
/// peaks, so a shape is mapped only once no other has a smaller bound.
struct ShapeOrder<'a> {
    bench: &'a Bench,
    mapped: KernelBounds,
    waiting: Vec<Bounded>,
}

impl<'a> ShapeOrder<'a> {
    fn new(bench: &'a Bench, chip: &mut ChipOnBench<'_>) -> Self {
        let mut peak = KernelBounds::new(bench, Detail::Peak);
        let bound =
            |(i, shape): (usize, &Shape)| Bounded { bound: chip.lower_bound(shape, &mut peak).0, shape: i, detail: Detail::Peak };
        let waiting = bench.shapes.iter().enumerate().map(bound).collect();
        Self { bench, mapped: KernelBounds::new(bench, Detail::Mapped), waiting }
    }

    /// The least bound of all shapes waiting, with every kernel of that shape mapped; it is taken out.
    fn next(&mut self, chip: &mut ChipOnBench<'_>) -> Option<(Seconds, usize)> {
        loop {
            let order = |a: &Bounded, b: &Bounded| a.bound.total_cmp(&b.bound).then(a.shape.cmp(&b.shape));
            let at = (0..self.waiting.len()).min_by(|&a, &b| order(&self.waiting[a], &self.waiting[b]))?;
            if self.waiting[at].detail == Detail::Mapped {
                let least = self.waiting.swap_remove(at);
                return Some((Seconds(least.bound), least.shape));
            }
            let shape = &self.bench.shapes[self.waiting[at].shape];
            let bound = chip.lower_bound(shape, &mut self.mapped).0;
            let waiting = &mut self.waiting[at];
            *waiting = Bounded { bound: bound.max(waiting.bound), detail: Detail::Mapped, ..*waiting };
        }
    }

    /// The least bound from the peaks alone.
    fn least_peak(&self) -> Seconds {
        Seconds(self.waiting.iter().map(|w| w.bound).fold(f64::INFINITY, f64::min))
    }
}

/// A step time that no plan of the bench's model on `chip` beats. Nothing is scheduled; `detail` says whether kernels are mapped.
///
/// # Errors
/// A chip that the cost model cannot use.
pub fn step_bound(bench: &Bench, chip: Accelerator, detail: Detail) -> Result<Seconds, ProfileError> {
    let mut chip = ChipOnBench::new(bench, chip, Effort::Sweep)?;
    let mut order = ShapeOrder::new(bench, &mut chip);
    Ok(match detail {
        Detail::Peak => order.least_peak(),
        Detail::Mapped => order.next(&mut chip).map_or(Seconds(f64::INFINITY), |(bound, _)| bound),
    })
}

/// The best plan of the bench's model on `chip`, over every shape of the bench, every pipeline depth and data-parallel degree, every
/// split of the layers and every mix of recomputation. With [`Effort::Sweep`] the planner may leave a gap, which the status states.
#[must_use]
pub fn best_plan(bench: &Bench, chip: Accelerator, effort: Effort) -> Evaluation {
    match plan_below(bench, chip, effort, f64::INFINITY) {
        Verdict::Feasible(_, evaluation) | Verdict::Infeasible(evaluation) => evaluation,
        Verdict::Beaten(bound) => rejected(Rejection::Unusable(format!("no plan is below {bound} s per step"))),
    }
}

/// [`best_plan`], unless it is shown on the way that no plan takes less than `cutoff` seconds per step.
#[must_use]
pub fn plan_below(bench: &Bench, chip: Accelerator, effort: Effort, cutoff: f64) -> Verdict<Evaluation> {
    match ChipOnBench::new(bench, chip, effort) {
        Ok(mut chip) => search_shapes(bench, &mut chip, effort, cutoff),
        Err(error) => Verdict::Infeasible(rejected(Rejection::Unusable(error.to_string()))),
    }
}

fn rejected(why: Rejection) -> Evaluation {
    let status = SolveStatus::Infeasible { why: why.to_string() };
    Evaluation { outcome: Err(why), status, planned: 0, pruned: 0 }
}

/// What is known while the shapes of a chip are planned.
struct Search {
    best: Option<(Plan, usize, Profile)>,
    nearest: Option<(NoPlan, usize)>,
    unusable: Option<String>,
    /// No plan of the shapes done is below this.
    lower: f64,
    planned: usize,
}

fn search_shapes(bench: &Bench, chip: &mut ChipOnBench<'_>, effort: Effort, cutoff: f64) -> Verdict<Evaluation> {
    let mut order = ShapeOrder::new(bench, chip);
    let ask = |bench: &Bench, shape: &Shape, chains: &Chains| any_plan(bench, shape, chains, effort);
    let mut search = Search { best: None, nearest: None, unusable: None, lower: f64::INFINITY, planned: 0 };
    while let Some((bound, index)) = order.next(chip) {
        let known = search.best.as_ref().map_or(cutoff, |(plan, ..)| plan.step.0.min(cutoff));
        // A chip that nothing fits has infinite bounds: its shapes are planned all the same, to say what they lack.
        let explain = bound.0.is_infinite() && search.best.is_none() && search.lower.is_infinite();
        if bound.0 >= known && !explain {
            // So are all that follow.
            search.lower = search.lower.min(bound.0);
            break;
        }
        let shape = &bench.shapes[index];
        let attempt = chip.profile(shape).and_then(|mut profile| {
            // With its passes scheduled the shape's bound is tighter: it may already be beaten.
            ChipOnBench::keep_everything(shape, &mut profile);
            let tighter = lower_bound(bench, shape, &chip.chains(shape, &profile).whole).0 * (1.0 - profile.schedule_gap());
            if tighter >= known && !explain {
                return Ok((Attempt::Beaten(tighter), profile));
            }
            search.planned += 1;
            plan_lazily(chip, shape, &mut profile, &ask, known).map(|attempt| (attempt, profile))
        });
        search.take(index, attempt);
    }
    search.verdict(bench, chip, bench.shapes.len(), cutoff)
}

impl Search {
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

    fn verdict(self, bench: &Bench, chip: &ChipOnBench<'_>, shapes: usize, cutoff: f64) -> Verdict<Evaluation> {
        let (planned, pruned) = (self.planned, shapes - self.planned);
        if let Some((plan, shape, profile)) = self.best {
            let energy = step_energy(chip, &plan, &profile);
            let step = plan.step.0;
            let status = SolveStatus::from_bounds(self.lower.min(step), step);
            return Verdict::Feasible(
                step,
                Evaluation { outcome: Ok(Planned { plan, shape, profile, energy }), status, planned, pruned },
            );
        }
        if self.lower >= cutoff && self.lower.is_finite() {
            return Verdict::Beaten(self.lower);
        }
        Verdict::Infeasible(match (self.nearest, self.unusable) {
            (Some((why, index)), _) => {
                let shape = &bench.shapes[index];
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
            let sync = |bytes: Bytes, ranks: u64, stride: u64| gradient_sync(bench, bytes, ranks, stride);
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
