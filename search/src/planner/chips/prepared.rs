//! Prepares a job for many chips: computes once everything that does not depend on the chip.
//!
//! Plans that are lowered alike form a group. A group's passes are programs of interned kernels, so a chip bounds each
//! distinct kernel once. A group's plans become lines: a step takes at least a fraction of all devices' work for one
//! micro-batch, plus an offset that does not depend on the chip.

use crate::planner::bounds::loads::least_share_of_work;
use crate::planner::fit::PeakFactors;
use crate::planner::search::found::{GroupPlace, group_places};
use crate::planner::space::groups::DegreeClass;
use crate::planner::{Job, PlanSpace, Splits};
use rayon::prelude::*;
use sim::hardware::Accelerator;
use sim::kernel::{Collective, DataType, Kernel};
use sim::schedule::{Memo, SolveLimits};
use sim::units::{Joules, Seconds};
use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use step::{
    ChipTimes, DeviceHolding, DeviceMemory, Evaluator, ExecutionMode, Fidelity, KernelTable, LoweredModel, MixKind,
    OutlinedShape, PlanShape, SCHEDULE_STEPS, SegmentPasses, StepError, TrainingPlan, UntimedShape, collective_latency,
};
use workloads::ActivationPolicy;

/// Limit on cached schedules of pieces, which take some kilobytes each.
const MEMO_CAPACITY: usize = 1 << 16;

/// The key of a prepared job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PreparedJobKey {
    /// A number that no other prepared job has.
    own: u64,
    /// A digest of its groups and their kernels. Jobs of one model on several fabrics have equal digests if they are
    /// lowered alike.
    pub alike: u64,
}

/// Number of jobs prepared so far.
static PREPARED: AtomicU64 = AtomicU64::new(0);

/// A job and its plans, prepared for any chip.
#[derive(Debug)]
pub struct PreparedJob<'a> {
    pub(crate) mark: PreparedJobKey,
    pub(crate) job: Job<'a>,
    pub(crate) families: Arc<Vec<DegreeClass>>,
    pub(crate) policies: Arc<Vec<ActivationPolicy>>,
    pub(crate) open: Arc<Vec<bool>>,
    /// True if uneven splits of layers are allowed.
    pub(crate) uneven: bool,
    /// Largest fraction of its time by which a plan may be slower than under its best split.
    pub(crate) split_tolerance: f64,
    /// The kind of mixes by which policies may differ from stage to stage.
    pub(crate) mixes: MixKind,
    pub(crate) lots: Vec<PreparedGroup<'a>>,
    /// The distinct kernels of all groups' passes.
    pub(crate) table: Arc<KernelTable>,
    pub(crate) schedules: Arc<Memo>,
    /// The factors on peaks, once for all chips whose predictions have the same errors.
    factors: Mutex<Vec<Arc<PeakFactors>>>,
    /// By kernel of the table: the time of a collective on the job's fabric, once needed. It is equal for all chips.
    latencies: Vec<OnceLock<Seconds>>,
}

/// Plans that are lowered alike.
#[derive(Debug)]
pub(crate) struct PreparedGroup<'a> {
    pub place: GroupPlace,
    pub lowered: LoweredModel<'a>,
    pub passes: [SegmentPasses; 3],
    /// The shape of its plans that keep everything. Its times belong to no particular chip.
    shape: PlanShape,
    /// By policy: the shape of its plans without the times of its passes. `None` if other parts depend on the chip too.
    pub outlined: Vec<Option<OutlinedShape>>,
    /// Lower bounds on its plans. A line is left out if another line is below it everywhere.
    lines: Vec<StepTimeLine>,
    /// Multiply-accumulates of a step on all devices, by operand type. They are equal for every plan of the group.
    macs: Vec<OperandMacs>,
}

/// A lower bound on a plan's step, as the larger of two sums. The first is the fraction `share` of all devices' work
/// for one micro-batch, plus `besides` seconds. The second is the passes through `layers` layers on the device with
/// most layers, plus the `busiest` seconds that follow them.
#[derive(Debug, Clone, Copy, PartialEq, PartialOrd)]
struct StepTimeLine {
    share: f64,
    besides: f64,
    layers: f64,
    busiest: f64,
}

impl StepTimeLine {
    fn seconds_at(&self, work: f64, layer: f64) -> f64 {
        (self.share * work + self.besides).max(self.layers * layer + self.busiest)
    }

    fn is_below(&self, other: &Self) -> bool {
        self.share <= other.share
            && self.besides <= other.besides
            && self.layers <= other.layers
            && self.busiest <= other.busiest
    }
}

impl PreparedGroup<'_> {
    /// Lower bound in seconds on any plan of the group. `work` is all devices' work for one micro-batch, `layer` one
    /// layer's part of it.
    pub fn lower_bound_seconds(&self, work: f64, layer: f64) -> f64 {
        self.lines.iter().map(|line| line.seconds_at(work, layer)).fold(f64::INFINITY, f64::min)
    }
}

impl<'a> PreparedJob<'a> {
    /// Prepares the plans of a space for a job: those that the stack's framework documents, or all if it documents
    /// none. The job's chip matters only for the framework's warnings about such chips.
    ///
    /// # Errors
    /// A chip that the cost model cannot use, or a model that cannot be lowered in any way of the space.
    pub fn new(job: Job<'a>, space: &PlanSpace) -> Result<Self, StepError> {
        let documented = space.documented(&job);
        let space = documented.as_ref().unwrap_or(space);
        let (families, policies) = (space.families(&job), space.policies_under_techniques(&job));
        let open = space.open_policies(&policies);
        let schedules =
            Arc::new(Memo::new(SolveLimits { steps: SCHEDULE_STEPS, ..SolveLimits::default() }, MEMO_CAPACITY));
        let chip = ChipTimes::new(job.chip, job.stack)?.with_fidelity(Fidelity::Peak);
        let places = group_places(&families);
        let uneven = !matches!(space.splits, Some(Splits::Listed(_)));
        let mixes = space.mix_kind();
        // Shapes by policy are needed only if plans are refined policy by policy: see
        // [`PreparedJob::deepest_refinement`].
        let apart: &[ActivationPolicy] = if uneven || mixes != MixKind::None { &[] } else { &policies };
        let lowered: Vec<Result<LoweredGroup<'a>, StepError>> = places
            .par_iter()
            .map_init(
                || chip.clone(),
                |chip, at| lower_group(&job, chip, &families[at.family as usize], at.lot as usize, apart),
            )
            .collect();
        let (mut table, mut lots, mut refused) = (KernelTable::default(), Vec::new(), None);
        for (&place, lowered) in places.iter().zip(lowered) {
            match lowered {
                Ok(LoweredGroup { lowered, shape, untimed, lines }) => {
                    let passes = SegmentPasses::from_graph(lowered.graph(), &mut table);
                    let family = &families[place.family as usize];
                    let macs = step_macs(&job, family, place.lot as usize, &passes, &table);
                    let outlined = untimed.into_iter().map(|of| of.map(|of| of.intern_kernels(&mut table))).collect();
                    lots.push(PreparedGroup { place, lowered, passes, shape, outlined, lines, macs });
                }
                Err(error) => refused = refused.or(Some(error)),
            }
        }
        match refused {
            Some(error) if lots.is_empty() => Err(error),
            _ => Ok(Self {
                latencies: table.kernels().iter().map(|_| OnceLock::new()).collect(),
                mark: PreparedJobKey {
                    own: PREPARED.fetch_add(1, Ordering::Relaxed),
                    alike: digest_job(&lots, &table, &job),
                },
                job,
                families: Arc::new(families),
                policies: Arc::new(policies),
                open: Arc::new(open),
                uneven,
                split_tolerance: 0.0,
                mixes,
                lots,
                table: Arc::new(table),
                schedules,
                factors: Mutex::default(),
            }),
        }
    }

    /// Allows the search to skip splits of layers that make a plan faster by at most the fraction `share` of its time.
    /// Answers are then within that fraction of the fastest, and their status includes it. The tolerance stays 0 if
    /// splits are listed.
    #[must_use]
    pub fn with_split_tolerance(self, share: f64) -> Self {
        Self { split_tolerance: if self.uneven { share.clamp(0.0, 1.0) } else { 0.0 }, ..self }
    }

    /// The job on a chip.
    #[must_use]
    pub fn job<'b>(&'b self, chip: &'b Accelerator) -> Job<'b> {
        Job { chip, ..self.job }
    }

    /// True if the space has no plan for the job.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.lots.is_empty()
    }

    /// One plan of every layout and schedule that keeps everything. Further plans differ only in micro-batch, in the
    /// split of sequences (context method and sequence parallelism), and in [`Self::policies`].
    pub fn one_plan_per_layout(&self) -> impl Iterator<Item = TrainingPlan> + '_ {
        self.families.iter().flat_map(move |family| {
            let first =
                |division: usize| family.lots.iter().find(|lot| lot.pairs.iter().any(|pair| pair.0 == division));
            let lots = (0..family.divisions.len()).filter_map(move |division| Some((division, first(division)?)));
            lots.flat_map(move |(division, lot)| {
                let schedules = family.divisions[division].schedules.iter();
                schedules.map(move |&schedule| family.plan(&self.job, lot, division, &ActivationPolicy::None, schedule))
            })
        })
    }

    /// The policies of the plans. If stages may mix policies ([`Self::mixes_policies`]), there are more.
    #[must_use]
    pub fn policies(&self) -> &[ActivationPolicy] {
        &self.policies
    }

    /// True if stages may each have their own policies.
    #[must_use]
    pub fn mixes_policies(&self) -> bool {
        self.mixes != MixKind::None
    }

    /// The job's number of devices.
    #[must_use]
    pub fn device_count(&self) -> u32 {
        self.job.devices
    }

    /// Lower bound in joules on any plan's step on a chip: its multiply-accumulates.
    #[must_use]
    pub fn least_step_energy(&self, chip: &Accelerator) -> Joules {
        let of = |lot: &PreparedGroup<'_>| {
            let energies = lot.macs.iter().map(|macs| chip.energy.macs_energy(macs.operand, 1) * macs.count);
            energies.sum::<Joules>()
        };
        Joules(self.lots.iter().map(|lot| of(lot).0).fold(f64::INFINITY, f64::min))
    }

    /// The factors on the peaks of the job's plans on the chip of `job`.
    pub(crate) fn factors_of(&self, job: &Job<'_>) -> Arc<PeakFactors> {
        let mut all = self.factors.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = all.iter().find(|known| known.are_of_job(job)) {
            return Arc::clone(known);
        }
        all.push(Arc::new(PeakFactors::new(job)));
        Arc::clone(&all[all.len() - 1])
    }

    /// By degree class: the shape of its first group, if that could be lowered.
    pub(crate) fn first_shapes(&self) -> Vec<Option<&PlanShape>> {
        let mut shapes = vec![None; self.families.len()];
        let first = self.lots.iter().filter(|lot| lot.place.lot == 0);
        first.for_each(|lot| shapes[lot.place.family as usize] = Some(&lot.shape));
        shapes
    }

    /// The time of a collective of the table on the job's fabric, for a schedule.
    pub(crate) fn collective_seconds(&self, kernel: u32, collective: &Collective) -> Seconds {
        *self.latencies[kernel as usize].get_or_init(|| collective_latency(self.job.fabric, collective))
    }

    /// Statistics of shared schedules.
    #[must_use]
    pub fn memo_statistics(&self) -> sim::schedule::MemoStatistics {
        self.schedules.statistics()
    }

    /// True if kernels run side by side.
    pub(crate) fn is_scheduled(&self) -> bool {
        self.job.stack.kernels.execution == ExecutionMode::Scheduled
    }
}

fn digest_job(lots: &[PreparedGroup<'_>], table: &KernelTable, job: &Job<'_>) -> u64 {
    let mut hasher = DefaultHasher::new();
    (table.kernels(), job.devices, job.model.layers).hash(&mut hasher);
    for lot in lots {
        (lot.place.family, lot.place.lot).hash(&mut hasher);
        for program in lot.passes.iter().flat_map(|passes| [&passes.forward, &passes.backward]) {
            (&program.kernels, &program.edges).hash(&mut hasher);
        }
    }
    hasher.finish()
}

/// Multiply-accumulates with operands of one type.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OperandMacs {
    operand: DataType,
    count: f64,
}

/// Multiply-accumulates of a step on all devices, by operand type. Every plan runs each layer once forward and once
/// backward for each micro-batch, on all devices in parallel.
fn step_macs(
    job: &Job<'_>,
    family: &DegreeClass,
    lot: usize,
    passes: &[SegmentPasses; 3],
    table: &KernelTable,
) -> Vec<OperandMacs> {
    let once = |(division, m): &(usize, u64)| {
        let layout = &family.divisions[*division].layout;
        *m as f64 * f64::from(layout.tensor) * f64::from(layout.context) * f64::from(layout.data)
    };
    let times = family.lots[lot].pairs.iter().map(once).fold(f64::INFINITY, f64::min);
    let mut sums: BTreeMap<DataType, f64> = BTreeMap::new();
    for (passes, times) in passes.iter().zip([times, times * job.model.layers as f64, times]) {
        for &kernel in passes.forward.kernels.iter().chain(&passes.backward.kernels) {
            let (operand, flops) = match &table.kernels()[kernel as usize] {
                Kernel::Contraction(c) => (c.operand, c.flops()),
                Kernel::Epilogue(e) => (e.contraction.operand, e.contraction.flops()),
                Kernel::FusedAttention(a) => (a.operand, a.flops()),
                Kernel::Elementwise(_) | Kernel::Reduction(_) | Kernel::Collective(_) | Kernel::Transfer(_) => continue,
            };
            *sums.entry(operand).or_default() += flops.0 as f64 / 2.0 * times;
        }
    }
    sums.into_iter().map(|(operand, count)| OperandMacs { operand, count }).collect()
}

/// A group before its kernels are interned.
struct LoweredGroup<'a> {
    lowered: LoweredModel<'a>,
    shape: PlanShape,
    untimed: Vec<Option<UntimedShape>>,
    lines: Vec<StepTimeLine>,
}

/// Lowers a group, with its shape under each of some policies and the lines of its plans.
fn lower_group<'a>(
    job: &Job<'a>,
    chip: &mut ChipTimes,
    family: &DegreeClass,
    lot: usize,
    policies: &[ActivationPolicy],
) -> Result<LoweredGroup<'a>, StepError> {
    let lot = &family.lots[lot];
    let evaluator = Evaluator::new(job.model, job.fabric, job.stack, DeviceMemory::of_chip(job.chip));
    let first = &family.divisions[lot.pairs[0].0];
    let plan = family.plan(job, lot, lot.pairs[0].0, &ActivationPolicy::None, first.schedules[0]);
    let lowered = LoweredModel::new(job.model, &plan, job.stack)?;
    let mut shaped = lowered.clone();
    let shape: PlanShape = shaped.plan_shape(chip, job.fabric, &plan)?;
    let under = |policy: &ActivationPolicy| {
        let plan = TrainingPlan { activations: policy.clone().into(), ..plan.clone() };
        shaped.untimed_shape(chip, job.fabric, &plan)
    };
    let untimed = policies.iter().map(under).collect::<Result<_, _>>()?;
    let overhead = evaluator.overhead_per_step().0;
    let mut lines = Vec::new();
    for &(division, m) in &lot.pairs {
        let layout = family.divisions[division].layout;
        for &schedule in &family.divisions[division].schedules {
            let plan = family.plan(job, lot, division, &ActivationPolicy::None, schedule);
            let share = least_share_of_work(&layout, schedule, m);
            // A pipeline's first device may hold no layer. But some device holds at least as many layers as in an even
            // split.
            let first = DeviceHolding::first_device(if layout.pipeline == 1 { job.model.layers } else { 0 });
            let busiest = DeviceHolding::inner_device(job.model.layers.div_ceil(layout.pipeline.into()));
            let after = |held: DeviceHolding| overhead + evaluator.least_exposed_exchange(chip, &shape, &plan, held).0;
            let besides = if schedule.splits_backward() { overhead } else { after(first) };
            lines.push(StepTimeLine { share, besides, layers: (m * busiest.layers) as f64, busiest: after(busiest) });
        }
    }
    Ok(LoweredGroup { lowered, shape, untimed, lines: lowest_lines(lines) })
}

/// Drops every line that another line is below everywhere.
fn lowest_lines(mut lines: Vec<StepTimeLine>) -> Vec<StepTimeLine> {
    lines.sort_by(|a, b| a.partial_cmp(b).unwrap_or(std::cmp::Ordering::Equal));
    let mut kept: Vec<StepTimeLine> = Vec::new();
    for line in lines {
        if !kept.iter().any(|other| other.is_below(&line)) {
            kept.push(line);
        }
    }
    kept
}
