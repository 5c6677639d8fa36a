//! Lower bounds on groups of plans on one chip, from cheap to exact; see [`fastest`](crate::planner::chips::fastest).

use crate::planner::Job;
use crate::planner::chips::group_search::{search_in_memory, search_without_memory};
use crate::planner::chips::prepared::{PreparedJob, PreparedJobKey};
use crate::planner::search::core::PlanSearch;
use crate::planner::search::found::{FoundPlans, ROUNDING};
use sim::hardware::Accelerator;
use sim::kernel::Kernel;
use sim::network::Fabric;
use sim::schedule::{Cores, OperatorKind, OperatorLeastTimes};
use sim::units::Seconds;
use std::cell::OnceCell;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use step::{ChipTimes, Fidelity, KernelProgram, KernelTable, MixKind, StepError};
use workloads::ActivationPolicy;
#[cfg(test)]
use {crate::planner::chips::prepared::PreparedGroup, step::OutlinedShape, step::PlanShape};

/// The refinement of a group so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GroupRefinement {
    /// Not refined on this chip; the bound was known before.
    Known,
    Bound(Fidelity),
    /// Plans timed with kernels at their fastest, without a memory limit.
    Relaxed,
    /// Plans that fit, timed with kernels at their fastest, policy by policy.
    Fitting,
}

/// A group in the queue, with a lower bound on its plans.
#[derive(Debug, Clone, Copy)]
pub(crate) struct QueuedGroup {
    pub bound: f64,
    pub lot: usize,
    pub look: GroupRefinement,
}

impl Ord for QueuedGroup {
    /// The order is reversed, so that a heap pops the group with the least bound first. On ties the smaller index comes
    /// first.
    fn cmp(&self, other: &Self) -> Ordering {
        other.bound.total_cmp(&self.bound).then(other.lot.cmp(&self.lot))
    }
}

impl PartialOrd for QueuedGroup {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for QueuedGroup {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for QueuedGroup {}

/// A group, with the indices of the policies under which another order of kernels may make passes faster.
pub(crate) struct UnprovenGroup {
    pub lot: usize,
    pub policies: Vec<usize>,
}

/// Bounds on a job's groups that hold for a set of chips and fabrics, and so for any subset of it.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GroupBounds {
    /// The key of jobs that are lowered alike ([`PreparedJobKey::alike`]).
    alike: u64,
    /// Seconds by group, rounded down; zero if nothing is known.
    seconds: Vec<f32>,
}

impl GroupBounds {
    fn new(alike: u64, waiting: &BinaryHeap<QueuedGroup>) -> Self {
        let mut seconds = vec![0.0; waiting.len()];
        for QueuedGroup { bound, lot, .. } in waiting {
            let near = *bound as f32;
            seconds[*lot] = if f64::from(near) > *bound { near.next_down() } else { near };
        }
        Self { alike, seconds }
    }

    fn bounds_of(&self, alike: u64, lot: usize) -> f64 {
        self.seconds.get(lot).filter(|_| self.alike == alike).map_or(0.0, |seconds| f64::from(*seconds))
    }
}

/// Least kernel times on a chip, each computed once. Jobs of one model that are lowered alike on several fabrics share
/// them.
#[derive(Debug)]
pub struct ChipKernels<'c> {
    chip: &'c Accelerator,
    pub(crate) times: ChipTimes,
    /// A copy of `times`, with the times that exact plans have needed.
    pub(crate) exact: ChipTimes,
    /// A copy of `times` with mapped kernels and without schedules.
    pub(crate) mapped: ChipTimes,
    cores: Cores,
    table: Arc<KernelTable>,
    /// Keys of the prepared jobs that the cached times belong to.
    of: Vec<PreparedJobKey>,
    /// By fidelity and kernel, once computed: least times in a stream, and in a schedule.
    streamed: [Vec<Option<Seconds>>; 3],
    scheduled: [Vec<Option<OperatorLeastTimes>>; 3],
    /// Least times of programs, by fidelity. Groups that differ only in other parts of their devices' work run the same
    /// programs.
    passes: [Vec<Option<Seconds>>; 3],
}

impl<'c> ChipKernels<'c> {
    /// Makes an empty cache.
    ///
    /// # Errors
    /// A chip that the cost model cannot use.
    pub fn new(prepared: &PreparedJob<'_>, chip: &'c Accelerator) -> Result<Self, StepError> {
        let times = ChipTimes::with_shared_schedules(chip, prepared.job.stack, Arc::clone(&prepared.schedules))?;
        let (mapped, cores, table) =
            (times.with_fidelity(Fidelity::Mapped), times.schedule_cores(), Arc::clone(&prepared.table));
        let (of, streamed, scheduled, passes) = Default::default();
        Ok(Self { chip, exact: times.clone(), times, mapped, cores, table, of, streamed, scheduled, passes })
    }

    /// Reuses cached kernel times for another chip: all of them if it runs like this one, otherwise none.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn for_other_chip<'d>(
        self,
        prepared: &PreparedJob<'_>,
        chip: &'d Accelerator,
    ) -> Result<ChipKernels<'d>, StepError> {
        if !self.chip.runs_like(chip) {
            return ChipKernels::new(prepared, chip);
        }
        let Self { times, exact, mapped, cores, table, of, streamed, scheduled, passes, .. } = self;
        let [times, exact, mapped] =
            [times.reuse_for_like_chip(chip)?, exact.reuse_for_like_chip(chip)?, mapped.reuse_for_like_chip(chip)?];
        Ok(ChipKernels { chip, times, exact, mapped, cores, table, of, streamed, scheduled, passes })
    }

    /// Switches to the kernels of a job on these fabrics, and drops cached times that do not hold for them.
    fn switch_to_job(&mut self, all: &[&PreparedJob<'_>]) {
        let of: Vec<PreparedJobKey> = all.iter().map(|prepared| prepared.mark).collect();
        if of == self.of {
            return;
        }
        let same = self.of.first().zip(of.first()).is_some_and(|(then, now)| then.alike == now.alike);
        self.of = of;
        self.passes = Default::default();
        if let (false, Some(prepared)) = (same, all.first()) {
            self.table = Arc::clone(&prepared.table);
            (self.streamed, self.scheduled) = Default::default();
            return;
        }
        // The times of collectives depend on the fabric.
        for (kernel, of) in self.table.kernels().iter().enumerate() {
            if let Kernel::Collective(_) = of {
                self.scheduled.iter_mut().filter_map(|known| known.get_mut(kernel)).for_each(|known| *known = None);
            }
        }
    }

    /// The chip.
    #[must_use]
    pub fn chip(&self) -> &'c Accelerator {
        self.chip
    }

    /// Least time of a kernel in a stream. The kernel must not be a collective.
    fn least_streamed_seconds(&mut self, fabric: &Fabric, kernel: u32, fidelity: Fidelity) -> Seconds {
        let known = slot_of_kernel(&mut self.streamed[slot_of_fidelity(fidelity)], kernel, &self.table);
        *known.get_or_insert_with(|| {
            self.times.lower_bound_of_kernel(&self.table.kernels()[kernel as usize], fabric, fidelity)
        })
    }

    /// Least time of a kernel in a schedule. A collective counts with its time on its fastest fabric.
    fn least_scheduled_seconds(
        &mut self,
        all: &[&PreparedJob<'_>],
        kernel: u32,
        fidelity: Fidelity,
    ) -> OperatorLeastTimes {
        let known = slot_of_kernel(&mut self.scheduled[slot_of_fidelity(fidelity)], kernel, &self.table);
        *known.get_or_insert_with(|| {
            let of = &self.table.kernels()[kernel as usize];
            match (of, all.first()) {
                (Kernel::Collective(collective), _) => {
                    let on = all.iter().map(|prepared| prepared.collective_seconds(kernel, collective));
                    self.times.least_of_collective(of, on.fold(Seconds(f64::INFINITY), Seconds::min))
                }
                // Plans timed with mapped kernels need the same values, so these are cached together.
                (_, Some(prepared)) if fidelity == Fidelity::Mapped => {
                    self.mapped.cached_least_in_schedule(of, prepared.job.fabric)
                }
                (_, Some(prepared)) => self.times.least_in_schedule(of, prepared.job.fabric, fidelity),
                (_, None) => OperatorLeastTimes { kind: OperatorKind::Nop, one: 0.0, all: 0.0 },
            }
        })
    }

    /// A group's shape with mapped kernels.
    #[cfg(test)]
    pub(crate) fn shape_of_group(
        &mut self,
        outlined: &OutlinedShape,
        lot: &PreparedGroup<'_>,
        prepared: &PreparedJob<'_>,
    ) -> PlanShape {
        self.switch_to_job(&[prepared]);
        outlined
            .shape_with_least(&lot.passes, |program| self.least_pass_seconds(&[prepared], program, Fidelity::Mapped))
    }

    /// Least time of a pass, cached.
    fn least_pass_seconds(&mut self, all: &[&PreparedJob<'_>], program: &KernelProgram, fidelity: Fidelity) -> Seconds {
        let (index, slot) = (program.index as usize, slot_of_fidelity(fidelity));
        if let Some(Some(known)) = self.passes[slot].get(index) {
            return *known;
        }
        let least = self.least_kernel_seconds(all, program, fidelity);
        if self.passes[slot].is_empty() {
            self.passes[slot].resize(self.table.program_count(), None);
        }
        self.passes[slot][index] = Some(least);
        least
    }

    /// Lower bound on the time of a pass: over all schedules of its kernels, or their sum if kernels run as a stream.
    fn least_kernel_seconds(
        &mut self,
        all: &[&PreparedJob<'_>],
        program: &KernelProgram,
        fidelity: Fidelity,
    ) -> Seconds {
        let Some(first) = all.first() else { return Seconds::ZERO };
        if first.is_scheduled() {
            let cores = self.cores;
            // Before kernels are mapped, the chip with the most cores bounds a box of chips. The chain bound may fall
            // with fewer cores, so it is left out then.
            let chains = fidelity == Fidelity::Mapped;
            return program.least_ticks(&cores, chains, |kernel| self.least_scheduled_seconds(all, kernel, fidelity));
        }
        // In a stream, overlap may hide collectives entirely, so they count as zero.
        let table = Arc::clone(&self.table);
        let works = |kernel: u32| !matches!(table.kernels()[kernel as usize], Kernel::Collective(_));
        program.sum_of_kernels(|kernel| {
            if works(kernel) { self.least_streamed_seconds(first.job.fabric, kernel, fidelity) } else { Seconds::ZERO }
        })
    }
}

/// The cache entry of a kernel.
fn slot_of_kernel<'k, T: Clone>(known: &'k mut Vec<Option<T>>, kernel: u32, table: &KernelTable) -> &'k mut Option<T> {
    if known.is_empty() {
        known.resize(table.kernels().len(), None);
    }
    &mut known[kernel as usize]
}

impl PreparedJob<'_> {
    /// The deepest refinement of groups before their plans are timed exactly. If splits or policies beyond the listed
    /// ones are allowed, they may fit although the listed ones do not. Memory is then no criterion.
    pub(crate) fn deepest_refinement(&self) -> GroupRefinement {
        if self.uneven || self.mixes != MixKind::None { GroupRefinement::Relaxed } else { GroupRefinement::Fitting }
    }
}

/// The state of planning a job on one chip.
pub(crate) struct OnChip<'p, 'k, 'c> {
    prepared: &'p PreparedJob<'p>,
    /// The same job and its counterparts on other fabrics. Any of these fabrics may be the real one.
    all: &'p [&'p PreparedJob<'p>],
    job: &'p Job<'p>,
    pub kernels: &'k mut ChipKernels<'c>,
    /// Groups in the queue.
    pub waiting: BinaryHeap<QueuedGroup>,
    /// The search without a memory limit, and the search in the chip's memory; made on first use.
    endless: OnceCell<PlanSearch<'p>>,
    own: OnceCell<PlanSearch<'p>>,
    /// By group refined so far: lower bounds in seconds by policy on plans that fit.
    pub fitting: BTreeMap<usize, Vec<f64>>,
    /// The smallest shortfall among plans that do not fit.
    pub lacking: FoundPlans,
}

impl<'p, 'k, 'c> OnChip<'p, 'k, 'c> {
    /// Queues all groups of the prepared job with their bounds in `known`. `job` is the same job on the chip of
    /// `kernels`. `all` are this job and its counterparts on other fabrics, any of which may be the real one.
    pub fn new(
        prepared: &'p PreparedJob<'p>,
        all: &'p [&'p PreparedJob<'p>],
        job: &'p Job<'p>,
        kernels: &'k mut ChipKernels<'c>,
        known: &GroupBounds,
    ) -> Self {
        kernels.switch_to_job(all);
        let (endless, own, fitting, lacking) = Default::default();
        let waiting =
            |lot| QueuedGroup { bound: known.bounds_of(prepared.mark.alike, lot), lot, look: GroupRefinement::Known };
        let waiting = (0..prepared.lots.len()).map(waiting).collect();
        Self { prepared, all, job, kernels, waiting, endless, own, fitting, lacking }
    }

    /// The current bounds on all groups.
    pub fn group_bounds(&self) -> GroupBounds {
        GroupBounds::new(self.prepared.mark.alike, &self.waiting)
    }

    /// Tightens the bound of a group by one step, and puts the group back into the queue.
    pub fn refine_bound(&mut self, QueuedGroup { bound, lot, look }: QueuedGroup, limit: f64) {
        let (better, look) = match look {
            GroupRefinement::Known => {
                (self.lower_bound_of_group(lot, Fidelity::Peak), GroupRefinement::Bound(Fidelity::Peak))
            }
            GroupRefinement::Bound(Fidelity::Peak) => {
                (self.lower_bound_of_group(lot, Fidelity::Buffered), GroupRefinement::Bound(Fidelity::Buffered))
            }
            GroupRefinement::Bound(Fidelity::Buffered) => {
                (self.lower_bound_of_group(lot, Fidelity::Mapped), GroupRefinement::Bound(Fidelity::Mapped))
            }
            _ if self.prepared.deepest_refinement() == GroupRefinement::Fitting => {
                (self.fastest_fitting(lot, limit), GroupRefinement::Fitting)
            }
            _ => (self.fastest_without_memory_limit(lot, limit), GroupRefinement::Relaxed),
        };
        self.waiting.push(QueuedGroup { bound: bound.max(better), lot, look });
    }

    /// Lower bound in seconds on any plan of a group, from the least time of every pass.
    fn lower_bound_of_group(&mut self, lot: usize, fidelity: Fidelity) -> f64 {
        let passes = &self.prepared.lots[lot].passes;
        let mut pass = |program: &KernelProgram| self.kernels.least_pass_seconds(self.all, program, fidelity).0;
        let [embedding, layer, head] = passes.each_ref().map(|passes| pass(&passes.forward) + pass(&passes.backward));
        let work = embedding + layer * self.job.model.layers as f64 + head;
        self.all.iter().map(|on| on.lots[lot].lower_bound_seconds(work, layer)).fold(f64::INFINITY, f64::min)
            * (1.0 - ROUNDING)
    }

    /// Seconds of a group's fastest plan, with kernels at their fastest and without a memory limit. If the plan is not
    /// below `limit`, returns at least `limit` instead.
    fn fastest_without_memory_limit(&mut self, lot: usize, limit: f64) -> f64 {
        let times = &self.kernels.times;
        let search = self.endless.get_or_init(|| {
            let search = search_without_memory(self.prepared, self.job, times.with_fidelity(Fidelity::Mapped));
            let policies = Arc::new(vec![ActivationPolicy::None]);
            PlanSearch { policies, open: Arc::new(vec![true]), mixes: MixKind::None, split_tolerance: 0.0, ..search }
        });
        let mut found = FoundPlans::default();
        // This is far enough above the limit that rounding cannot hide a plan below it.
        let limit = limit * (1.0 + 4.0 * ROUNDING);
        search.find_fastest_of_group(&mut self.kernels.mapped, &self.prepared.lots[lot], limit, None, &mut found);
        // Plans above the limit may not have been timed.
        found.cutoff_for_count(1).min(limit) * (1.0 - ROUNDING)
    }

    /// Lower bound in seconds on any plan of these groups under these policies, for any order of kernels; `limit` if
    /// that is smaller. Plans are timed with every pass at the lower bound of its schedule, as in `times`.
    pub fn lower_bound_of_groups(&self, lots: &[UnprovenGroup], times: &ChipTimes, limit: f64) -> f64 {
        if lots.is_empty() {
            return limit;
        }
        let mut times = times.clone();
        let search = search_in_memory(self.prepared, self.job, times.clone());
        lots.iter().fold(limit, |limit, UnprovenGroup { lot, policies: open }| {
            let (mut found, known) = (FoundPlans::default(), self.fitting.get(lot));
            let mut bounds = vec![f64::INFINITY; search.policies.len()];
            open.iter().for_each(|&policy| bounds[policy] = known.map_or(0.0, |known| known[policy]));
            let looked =
                search.find_fastest_of_group(&mut times, &self.prepared.lots[*lot], limit, Some(&bounds), &mut found);
            // Plans above the limit may not have been timed. If any plan was timed, the fastest plan is among those
            // timed.
            limit.min(found.cutoff_for_count(1) * (1.0 - looked.gap) * (1.0 - ROUNDING))
        })
    }

    /// The search for plans that fit the chip's memory.
    pub fn search_in_own_memory(&self) -> &PlanSearch<'p> {
        let times = &self.kernels.times;
        self.own.get_or_init(|| search_in_memory(self.prepared, self.job, times.clone()))
    }

    /// Seconds of a group's fastest plan that fits, with kernels at their fastest. If the plan is not below `limit`,
    /// returns at least `limit` instead. Infinite if no plan fits.
    fn fastest_fitting(&mut self, lot: usize, limit: f64) -> f64 {
        self.search_in_own_memory();
        let Some(search) = self.own.get() else { return 0.0 };
        let (all, job) = (self.all, self.job);
        let (of, kernels) = (&self.prepared.lots[lot], &mut *self.kernels);
        let mut lowered = of.lowered.clone();
        // The same allowance as for plans without a memory limit.
        let beyond = limit * (1.0 + 4.0 * ROUNDING);
        let policies = 0..search.policies.len();
        let bound = |policy: usize| {
            let shape = match of.outlined.get(policy) {
                Some(Some(known)) => Ok(known.shape_with_least(&of.passes, |program| {
                    kernels.least_pass_seconds(all, program, Fidelity::Mapped)
                })),
                _ => lowered.plan_shape(&mut kernels.mapped, job.fabric, &search.plan_under_policy(of, policy)),
            };
            search.bound_fitting_plans(of, policy, &shape, beyond, &mut self.lacking) * (1.0 - ROUNDING)
        };
        let bounds: Vec<f64> = policies.map(bound).collect();
        let least = bounds.iter().copied().fold(f64::INFINITY, f64::min);
        self.fitting.insert(lot, bounds);
        least
    }
}

/// The cache index of a fidelity.
fn slot_of_fidelity(fidelity: Fidelity) -> usize {
    match fidelity {
        Fidelity::Peak => 0,
        Fidelity::Buffered => 1,
        Fidelity::Mapped | Fidelity::Scheduled | Fidelity::Exact => 2,
    }
}
