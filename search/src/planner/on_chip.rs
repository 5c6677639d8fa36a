//! What bounds lots of plans on one chip, from cheap to exact; see [`fastest`](super::fastest).

use super::found::FoundPlans;
use super::prepared::{PreparedJob, PreparedJobKey};
use super::search::PlanSearch;
use super::splits::ROUNDING;
use super::{Job, fastest};
use sim::hardware::Accelerator;
use sim::kernel::Kernel;
use sim::network::Fabric;
use sim::schedule::{Cores, OperatorKind, OperatorLeastTimes};
use sim::units::{Bytes, Seconds};
use std::cell::OnceCell;
use std::cmp::Ordering;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;
use step::{ChipTimes, DeviceMemory, Fidelity, KernelProgram, KernelTable, MixKind, StepError};
use workloads::ActivationPolicy;
#[cfg(test)]
use {super::prepared::PreparedGroup, step::OutlinedShape, step::PlanShape};

/// How far a lot has been looked into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GroupRefinement {
    /// Not at all on this chip.
    Known,
    Bound(Fidelity),
    /// Its plans timed with kernels as fast as they run, in memory without end.
    Relaxed,
    /// Those that fit timed so, policy by policy.
    Fitting,
}

/// A lot with a bound of its plans.
#[derive(Debug, Clone, Copy)]
pub(super) struct QueuedGroup {
    pub bound: f64,
    pub lot: usize,
    pub look: GroupRefinement,
}

impl Ord for QueuedGroup {
    /// Of a heap's lots the one of the least bound is the first, of equal bounds the first lot.
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

/// Bounds of a job's lots that hold on some chips and fabrics, so that they hold on some of these too.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct GroupBounds {
    /// What the job is lowered like ([`PreparedJobKey::alike`]).
    alike: u64,
    /// Seconds by lot, rounded down; none where nothing is known.
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

/// What kernels take at least on a chip, each found once. Jobs of one model on several fabrics, prepared alike, have them in common.
#[derive(Debug)]
pub struct ChipKernels<'c> {
    chip: &'c Accelerator,
    pub(super) times: ChipTimes,
    /// The same with what exact plans have asked for.
    pub(super) exact: ChipTimes,
    /// The same with kernels mapped and nothing scheduled.
    pub(super) mapped: ChipTimes,
    cores: Cores,
    table: Arc<KernelTable>,
    /// The prepared jobs that they are of, by their marks.
    of: Vec<PreparedJobKey>,
    /// By fidelity, where they are found: in a stream, and in a schedule. Empty until one is asked for.
    streamed: [Vec<Option<Seconds>>; 3],
    scheduled: [Vec<Option<OperatorLeastTimes>>; 3],
    /// What programs take at least, by fidelity: lots that differ in what else their devices do run the same.
    passes: [Vec<Option<Seconds>>; 3],
}

impl<'c> ChipKernels<'c> {
    /// None yet.
    ///
    /// # Errors
    /// A chip that the cost model cannot use.
    pub fn new(prepared: &PreparedJob<'_>, chip: &'c Accelerator) -> Result<Self, StepError> {
        let times = ChipTimes::with_shared_schedules(chip, prepared.job.stack, Arc::clone(&prepared.schedules))?;
        let (mapped, cores, table) = (times.with_fidelity(Fidelity::Mapped), times.schedule_cores(), Arc::clone(&prepared.table));
        let (of, streamed, scheduled, passes) = Default::default();
        Ok(Self { chip, exact: times.clone(), times, mapped, cores, table, of, streamed, scheduled, passes })
    }

    /// What is known of these on another chip: all of it where that runs like this one, nothing otherwise.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn for_other_chip<'d>(self, prepared: &PreparedJob<'_>, chip: &'d Accelerator) -> Result<ChipKernels<'d>, StepError> {
        if !self.chip.runs_like(chip) {
            return ChipKernels::new(prepared, chip);
        }
        let Self { times, exact, mapped, cores, table, of, streamed, scheduled, passes, .. } = self;
        let [times, exact, mapped] =
            [times.reuse_for_like_chip(chip)?, exact.reuse_for_like_chip(chip)?, mapped.reuse_for_like_chip(chip)?];
        Ok(ChipKernels { chip, times, exact, mapped, cores, table, of, streamed, scheduled, passes })
    }

    /// For the kernels of a job on these fabrics.
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
        // Collectives are the fabrics' own.
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

    /// What a kernel other than a collective takes at least in a stream.
    fn least_streamed_seconds(&mut self, fabric: &Fabric, kernel: u32, fidelity: Fidelity) -> Seconds {
        let known = slot_of_kernel(&mut self.streamed[slot_of_fidelity(fidelity)], kernel, &self.table);
        *known.get_or_insert_with(|| self.times.lower_bound_of_kernel(&self.table.kernels()[kernel as usize], fabric, fidelity))
    }

    /// What a kernel takes at least in a schedule, a collective on the fabric on which it takes least.
    fn least_scheduled_seconds(&mut self, all: &[&PreparedJob<'_>], kernel: u32, fidelity: Fidelity) -> OperatorLeastTimes {
        let known = slot_of_kernel(&mut self.scheduled[slot_of_fidelity(fidelity)], kernel, &self.table);
        *known.get_or_insert_with(|| {
            let of = &self.table.kernels()[kernel as usize];
            match (of, all.first()) {
                (Kernel::Collective(collective), _) => {
                    let on = all.iter().map(|prepared| prepared.collective_seconds(kernel, collective));
                    self.times.least_of_collective(of, on.fold(Seconds(f64::INFINITY), Seconds::min))
                }
                // Plans timed with kernels mapped ask for the same.
                (_, Some(prepared)) if fidelity == Fidelity::Mapped => {
                    self.mapped.cached_least_in_schedule(of, prepared.job.fabric)
                }
                (_, Some(prepared)) => self.times.least_in_schedule(of, prepared.job.fabric, fidelity),
                (_, None) => OperatorLeastTimes { kind: OperatorKind::Nop, one: 0.0, all: 0.0 },
            }
        })
    }

    /// A lot's shape with its kernels mapped.
    #[cfg(test)]
    pub(super) fn shape_of_group(
        &mut self,
        outlined: &OutlinedShape,
        lot: &PreparedGroup<'_>,
        prepared: &PreparedJob<'_>,
    ) -> PlanShape {
        self.switch_to_job(&[prepared]);
        outlined.shape_with_least(&lot.passes, |program| self.least_pass_seconds(&[prepared], program, Fidelity::Mapped))
    }

    /// What a pass takes at least.
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

    /// What every schedule of a pass's kernels takes at least, or in a stream their sum.
    fn least_kernel_seconds(&mut self, all: &[&PreparedJob<'_>], program: &KernelProgram, fidelity: Fidelity) -> Seconds {
        let Some(first) = all.first() else { return Seconds::ZERO };
        if first.is_scheduled() {
            let cores = self.cores;
            // A box of chips is bounded by the one with most cores, until its kernels are mapped.
            let chains = fidelity == Fidelity::Mapped;
            return program.least_ticks(&cores, chains, |kernel| self.least_scheduled_seconds(all, kernel, fidelity));
        }
        // Of collectives in a stream overlap may leave nothing.
        let table = Arc::clone(&self.table);
        let works = |kernel: u32| !matches!(table.kernels()[kernel as usize], Kernel::Collective(_));
        program.sum_of_kernels(|kernel| {
            if works(kernel) { self.least_streamed_seconds(first.job.fabric, kernel, fidelity) } else { Seconds::ZERO }
        })
    }
}

/// Where what is known of a kernel is kept.
fn slot_of_kernel<'k, T: Clone>(known: &'k mut Vec<Option<T>>, kernel: u32, table: &KernelTable) -> &'k mut Option<T> {
    if known.is_empty() {
        known.resize(table.kernels().len(), None);
    }
    &mut known[kernel as usize]
}

/// A chip on which a job is planned.
pub(super) struct OnChip<'p, 'k, 'c> {
    prepared: &'p PreparedJob<'p>,
    /// The same and its likes on other fabrics, of which any may be the one.
    all: &'p [&'p PreparedJob<'p>],
    job: &'p Job<'p>,
    pub kernels: &'k mut ChipKernels<'c>,
    /// The lots not yet done with.
    pub waiting: BinaryHeap<QueuedGroup>,
    /// Searches in memory without end, and in the chip's.
    endless: OnceCell<PlanSearch<'p>>,
    own: OnceCell<PlanSearch<'p>>,
    /// Of lots looked into so far, seconds that no plan of each policy that fits goes below.
    pub fitting: BTreeMap<usize, Vec<f64>>,
    /// Of the plans that do not fit, the one that lacks least.
    pub lacking: FoundPlans,
}

impl<'p, 'k, 'c> OnChip<'p, 'k, 'c> {
    /// `job` is the prepared one on the chip of `kernels`; `all` are it and its likes on other fabrics,
    /// of which any may be the one; `known` what is known of the lots.
    pub fn new(
        prepared: &'p PreparedJob<'p>,
        all: &'p [&'p PreparedJob<'p>],
        job: &'p Job<'p>,
        kernels: &'k mut ChipKernels<'c>,
        known: &GroupBounds,
    ) -> Self {
        kernels.switch_to_job(all);
        let (endless, own, fitting, lacking) = Default::default();
        let waiting = |lot| QueuedGroup { bound: known.bounds_of(prepared.mark.alike, lot), lot, look: GroupRefinement::Known };
        let waiting = (0..prepared.lots.len()).map(waiting).collect();
        Self { prepared, all, job, kernels, waiting, endless, own, fitting, lacking }
    }

    /// What is known of the lots.
    pub fn group_bounds(&self) -> GroupBounds {
        GroupBounds::new(self.prepared.mark.alike, &self.waiting)
    }

    /// Bounds a lot better.
    pub fn refine_bound(&mut self, QueuedGroup { bound, lot, look }: QueuedGroup, limit: f64) {
        let (better, look) = match look {
            GroupRefinement::Known => (self.lower_bound_of_group(lot, Fidelity::Peak), GroupRefinement::Bound(Fidelity::Peak)),
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

    /// Seconds that no plan of a lot goes below: every pass takes what it takes at least.
    fn lower_bound_of_group(&mut self, lot: usize, fidelity: Fidelity) -> f64 {
        let passes = &self.prepared.lots[lot].passes;
        let mut pass = |program: &KernelProgram| self.kernels.least_pass_seconds(self.all, program, fidelity).0;
        let [embedding, layer, head] = passes.each_ref().map(|passes| pass(&passes.forward) + pass(&passes.backward));
        let work = embedding + layer * self.job.model.layers as f64 + head;
        self.all.iter().map(|on| on.lots[lot].lower_bound_seconds(work, layer)).fold(f64::INFINITY, f64::min) * (1.0 - ROUNDING)
    }

    /// The fastest plan of a lot with kernels as fast as they run and memory without end: in seconds, or at least `limit` where it is not below that.
    fn fastest_without_memory_limit(&mut self, lot: usize, limit: f64) -> f64 {
        let times = &self.kernels.times;
        let search = self.endless.get_or_init(|| {
            let endless = DeviceMemory { hbm: Bytes(u64::MAX), host: Bytes(u64::MAX), storage: Bytes(u64::MAX) };
            let search = fastest::search_with_memory(self.prepared, self.job, times.with_fidelity(Fidelity::Mapped), endless);
            let policies = Arc::new(vec![ActivationPolicy::None]);
            PlanSearch { policies, open: Arc::new(vec![true]), mixes: MixKind::None, split_tolerance: 0.0, ..search }
        });
        let mut found = FoundPlans::default();
        // So far beyond the limit that a lot of which no plan is below it is shown to be beaten, rounding given back.
        let limit = limit * (1.0 + 4.0 * ROUNDING);
        search.find_fastest_of_group(&mut self.kernels.mapped, &self.prepared.lots[lot], (limit, None), &mut found);
        // Plans above the limit may not have been timed.
        found.cutoff_for_count(1).min(limit) * (1.0 - ROUNDING)
    }

    /// Seconds that no plan of these lots under these policies of theirs goes below whatever the order of its kernels, or `limit` where that is less. The
    /// plans are timed with every pass at its schedule's bound, as `times` are.
    pub fn lower_bound_of_groups(&self, lots: &[(usize, Vec<usize>)], times: &ChipTimes, limit: f64) -> f64 {
        if lots.is_empty() {
            return limit;
        }
        let mut times = times.clone();
        let search = fastest::search_with_memory(self.prepared, self.job, times.clone(), self.job.device_memory());
        lots.iter().fold(limit, |limit, (lot, open)| {
            let (mut found, known) = (FoundPlans::default(), self.fitting.get(lot));
            let mut bounds = vec![f64::INFINITY; search.policies.len()];
            open.iter().for_each(|&policy| bounds[policy] = known.map_or(0.0, |known| known[policy]));
            let looked = search.find_fastest_of_group(&mut times, &self.prepared.lots[*lot], (limit, Some(&bounds)), &mut found);
            // Plans above the limit may not have been timed; where some were, one is the fastest.
            limit.min(found.cutoff_for_count(1) * (1.0 - looked.gap) * (1.0 - ROUNDING))
        })
    }

    /// The search for plans that fit the chip's memory.
    pub fn search_in_own_memory(&self) -> &PlanSearch<'p> {
        let times = &self.kernels.times;
        self.own.get_or_init(|| fastest::search_with_memory(self.prepared, self.job, times.clone(), self.job.device_memory()))
    }

    /// The fastest plan of a lot that fits with kernels as fast as they run: in seconds, or at least `limit` where it is not below that; infinite where
    /// none fits.
    fn fastest_fitting(&mut self, lot: usize, limit: f64) -> f64 {
        self.search_in_own_memory();
        let Some(search) = self.own.get() else { return 0.0 };
        let (all, job) = (self.all, self.job);
        let (of, kernels) = (&self.prepared.lots[lot], &mut *self.kernels);
        let mut lowered = of.lowered.clone();
        // As far beyond the limit as for relaxed plans.
        let beyond = limit * (1.0 + 4.0 * ROUNDING);
        let policies = 0..search.policies.len();
        let bound = |policy: usize| {
            let shape = match of.outlined.get(policy) {
                Some(Some(known)) => {
                    Ok(known.shape_with_least(&of.passes, |program| kernels.least_pass_seconds(all, program, Fidelity::Mapped)))
                }
                _ => lowered.plan_shape(&mut kernels.mapped, job.fabric, &search.plan_under_policy(of, policy)),
            };
            search.bound_fitting_plans(of, (policy, &shape), beyond, &mut self.lacking) * (1.0 - ROUNDING)
        };
        let bounds: Vec<f64> = policies.map(bound).collect();
        let least = bounds.iter().copied().fold(f64::INFINITY, f64::min);
        self.fitting.insert(lot, bounds);
        least
    }
}

/// Where a fidelity's bounds are kept.
fn slot_of_fidelity(fidelity: Fidelity) -> usize {
    match fidelity {
        Fidelity::Peak => 0,
        Fidelity::Buffered => 1,
        Fidelity::Mapped | Fidelity::Scheduled | Fidelity::Exact => 2,
    }
}
