//! What bounds lots of plans on one chip, from cheap to exact; see [`fastest`](super::fastest).

use super::found::Found;
use super::prepared::{Mark, Prepared};
use super::search::Search;
use super::splits::ROUNDING;
use super::{Job, fastest};
use sim::hardware::Accelerator;
use sim::kernel::Kernel;
use sim::network::Fabric;
use sim::schedule::{Cores, Least, OperatorKind};
use sim::units::{Bytes, Seconds};
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::sync::Arc;
use step::{ChipTimes, DeviceMemory, Fidelity, KernelTable, MixKind, Program, StepError};
use workloads::ActivationPolicy;
#[cfg(test)]
use {super::prepared::PreparedLot, step::Outlined, step::Shape};

/// How far a lot has been looked into.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    Bound(Fidelity),
    /// Its plans timed with kernels as fast as they run, in memory without end.
    Relaxed,
    /// Those that fit timed so, policy by policy.
    Fitting,
}

/// A lot with a bound of its plans.
#[derive(Debug, Clone, Copy)]
pub(super) struct Waiting {
    pub bound: f64,
    pub lot: usize,
    pub look: Look,
}

/// What kernels take at least on a chip, each found once. Jobs of one model on several fabrics, prepared alike, have them in common.
#[derive(Debug)]
pub struct ChipKernels<'c> {
    chip: &'c Accelerator,
    pub(super) times: ChipTimes,
    /// The same with kernels mapped and nothing scheduled.
    pub(super) mapped: ChipTimes,
    cores: Cores,
    table: Arc<KernelTable>,
    /// The prepared jobs that they are of, by their marks.
    of: Vec<Mark>,
    /// By fidelity, where they are found: in a stream, and in a schedule.
    streamed: [Vec<Option<Seconds>>; 3],
    scheduled: [Vec<Option<Least>>; 3],
}

impl<'c> ChipKernels<'c> {
    /// None yet.
    ///
    /// # Errors
    /// A chip that the cost model cannot use.
    pub fn new(prepared: &Prepared<'_>, chip: &'c Accelerator) -> Result<Self, StepError> {
        let times = ChipTimes::sharing(chip, prepared.job.stack, Arc::clone(&prepared.schedules))?;
        let (mapped, cores, table) = (times.at(Fidelity::Mapped), times.cores(), Arc::clone(&prepared.table));
        let (of, streamed, scheduled) = Default::default();
        let mut kernels = Self { chip, times, mapped, cores, table, of, streamed, scheduled };
        kernels.forget();
        Ok(kernels)
    }

    fn forget(&mut self) {
        self.streamed = std::array::from_fn(|_| vec![None; self.table.kernels().len()]);
        self.scheduled = std::array::from_fn(|_| vec![None; self.table.kernels().len()]);
    }

    /// For the kernels of a job on these fabrics.
    fn turn_to(&mut self, all: &[&Prepared<'_>]) {
        let of: Vec<Mark> = all.iter().map(|prepared| prepared.mark).collect();
        if of == self.of {
            return;
        }
        let same = self.of.first().zip(of.first()).is_some_and(|(then, now)| then.alike == now.alike);
        self.of = of;
        if let (false, Some(prepared)) = (same, all.first()) {
            self.table = Arc::clone(&prepared.table);
            return self.forget();
        }
        // Collectives are the fabrics' own.
        for (kernel, of) in self.table.kernels().iter().enumerate() {
            if let Kernel::Collective(_) = of {
                self.streamed.iter_mut().for_each(|known| known[kernel] = None);
                self.scheduled.iter_mut().for_each(|known| known[kernel] = None);
            }
        }
    }

    /// The chip.
    #[must_use]
    pub fn chip(&self) -> &'c Accelerator {
        self.chip
    }

    /// What a kernel takes at least in a stream, a collective on the fabric on which it takes least.
    fn streamed(&mut self, fabrics: &[&Fabric], kernel: u32, fidelity: Fidelity) -> Seconds {
        let known = &mut self.streamed[slot(fidelity)][kernel as usize];
        *known.get_or_insert_with(|| {
            let kernel = &self.table.kernels()[kernel as usize];
            let on = own(kernel, fabrics).iter().map(|fabric| self.times.bound(kernel, fabric, fidelity));
            on.fold(Seconds(f64::INFINITY), Seconds::min)
        })
    }

    /// What a kernel takes at least in a schedule, likewise.
    fn scheduled(&mut self, fabrics: &[&Fabric], kernel: u32, fidelity: Fidelity) -> Least {
        let known = &mut self.scheduled[slot(fidelity)][kernel as usize];
        *known.get_or_insert_with(|| {
            let kernel = &self.table.kernels()[kernel as usize];
            let on = own(kernel, fabrics).iter().map(|fabric| self.times.least(kernel, *fabric, fidelity));
            let less = |a: Least, b: Least| Least { one: a.one.min(b.one), all: a.all.min(b.all), ..a };
            on.reduce(less).unwrap_or(Least { kind: OperatorKind::Nop, one: 0.0, all: 0.0 })
        })
    }

    /// A lot's shape with its kernels mapped.
    #[cfg(test)]
    pub(super) fn shape(&mut self, outlined: &Outlined, lot: &PreparedLot<'_>, prepared: &Prepared<'_>) -> Shape {
        self.turn_to(&[prepared]);
        let fabrics = [prepared.job.fabric];
        outlined.shape(&lot.passes, |program| self.pass(prepared.scheduled(), &fabrics, program, Fidelity::Mapped))
    }

    /// What a pass takes at least: what every schedule of its kernels does, or in a stream their sum.
    fn pass(&mut self, scheduled: bool, fabrics: &[&Fabric], program: &Program, fidelity: Fidelity) -> Seconds {
        if scheduled {
            let cores = self.cores;
            // A box of chips is bounded by the one with most cores, until its kernels are mapped.
            let chains = fidelity == Fidelity::Mapped;
            return program.least(&cores, chains, |kernel| self.scheduled(fabrics, kernel, fidelity));
        }
        // Of collectives in a stream overlap may leave nothing.
        let table = Arc::clone(&self.table);
        let works = |kernel: u32| !matches!(table.kernels()[kernel as usize], Kernel::Collective(_));
        program.sum(|kernel| if works(kernel) { self.streamed(fabrics, kernel, fidelity) } else { Seconds::ZERO })
    }
}

/// The fabrics that change what a kernel takes.
fn own<'f, 'g>(kernel: &Kernel, fabrics: &'g [&'f Fabric]) -> &'g [&'f Fabric] {
    if let Kernel::Collective(_) = kernel { fabrics } else { &fabrics[..fabrics.len().min(1)] }
}

/// A chip on which a job is planned.
pub(super) struct OnChip<'p, 'k, 'c> {
    prepared: &'p Prepared<'p>,
    /// The same and its likes on other fabrics, of which any may be the one.
    all: &'p [&'p Prepared<'p>],
    fabrics: Vec<&'p Fabric>,
    job: &'p Job<'p>,
    pub kernels: &'k mut ChipKernels<'c>,
    pub waiting: Vec<Waiting>,
    /// Searches in memory without end, and in the chip's.
    endless: OnceCell<Search<'p>>,
    own: OnceCell<Search<'p>>,
    /// Of lots looked into so far, seconds that no plan of each policy that fits goes below.
    pub fitting: BTreeMap<usize, Vec<f64>>,
    /// Of the plans that do not fit, the one that lacks least.
    pub lacking: Found,
}

impl<'p, 'k, 'c> OnChip<'p, 'k, 'c> {
    /// `job` is the prepared one on the chip of `kernels`; `all` are it and its likes on other fabrics,
    /// of which any may be the one.
    pub fn new(
        prepared: &'p Prepared<'p>,
        all: &'p [&'p Prepared<'p>],
        job: &'p Job<'p>,
        kernels: &'k mut ChipKernels<'c>,
    ) -> Self {
        kernels.turn_to(all);
        let fabrics = all.iter().map(|prepared| prepared.job.fabric).collect();
        let (endless, own, fitting, lacking) = Default::default();
        let mut on = Self { prepared, all, fabrics, job, kernels, waiting: Vec::new(), endless, own, fitting, lacking };
        on.waiting = (0..prepared.lots.len())
            .map(|lot| Waiting { bound: on.bound(lot, Fidelity::Peak), lot, look: Look::Bound(Fidelity::Peak) })
            .collect();
        on
    }

    /// The lot of the least bound.
    pub fn least(&self) -> Option<usize> {
        let order = |a: &Waiting, b: &Waiting| a.bound.total_cmp(&b.bound).then(a.lot.cmp(&b.lot));
        (0..self.waiting.len()).min_by(|&a, &b| order(&self.waiting[a], &self.waiting[b]))
    }

    /// Bounds a lot better.
    pub fn look_further(&mut self, at: usize, limit: f64) {
        let Waiting { bound, lot, look } = self.waiting[at];
        let (better, look) = match look {
            Look::Bound(Fidelity::Peak) => (self.bound(lot, Fidelity::Buffered), Look::Bound(Fidelity::Buffered)),
            Look::Bound(Fidelity::Buffered) => (self.bound(lot, Fidelity::Mapped), Look::Bound(Fidelity::Mapped)),
            _ if self.prepared.deepest() == Look::Fitting => (self.fitting(lot, limit), Look::Fitting),
            _ => (self.relaxed(lot, limit), Look::Relaxed),
        };
        self.waiting[at] = Waiting { bound: bound.max(better), lot, look };
    }

    /// Seconds that no plan of a lot goes below: every pass takes what it takes at least.
    fn bound(&mut self, lot: usize, fidelity: Fidelity) -> f64 {
        let (scheduled, passes) = (self.prepared.scheduled(), &self.prepared.lots[lot].passes);
        let mut pass = |program: &Program| self.kernels.pass(scheduled, &self.fabrics, program, fidelity).0;
        let [embedding, layer, head] = passes.each_ref().map(|passes| pass(&passes.forward) + pass(&passes.backward));
        let work = embedding + layer * self.job.model.layers as f64 + head;
        self.all.iter().map(|on| on.lots[lot].least(work)).fold(f64::INFINITY, f64::min) * (1.0 - ROUNDING)
    }

    /// The fastest plan of a lot with kernels as fast as they run and memory without end: in seconds, or at least `limit` where it is not below that.
    fn relaxed(&mut self, lot: usize, limit: f64) -> f64 {
        let times = &self.kernels.times;
        let search = self.endless.get_or_init(|| {
            let endless = DeviceMemory { hbm: Bytes(u64::MAX), host: Bytes(u64::MAX), storage: Bytes(u64::MAX) };
            let search = fastest::search(self.prepared, self.job, times.at(Fidelity::Mapped), endless);
            let policies = Arc::new(vec![ActivationPolicy::None]);
            Search { policies, open: Arc::new(vec![true]), mixes: MixKind::None, ..search }
        });
        let mut found = Found::default();
        // So far beyond the limit that a lot of which no plan is below it is shown to be beaten, rounding given back.
        let limit = limit * (1.0 + 4.0 * ROUNDING);
        search.lot_fastest(&mut self.kernels.mapped, &self.prepared.lots[lot], (limit, None), &mut found);
        // Plans above the limit may not have been timed.
        found.limit_of(1).min(limit) * (1.0 - ROUNDING)
    }

    /// Seconds that no plan of these lots goes below whatever the order of its kernels, or `limit` where that is less. The lots' plans are timed with
    /// every pass at its schedule's bound, as `times` are.
    pub fn least_of(&self, lots: &[usize], times: &ChipTimes, limit: f64) -> f64 {
        if lots.is_empty() {
            return limit;
        }
        let mut times = times.clone();
        let search = fastest::search(self.prepared, self.job, times.clone(), self.job.memory());
        lots.iter().fold(limit, |limit, &lot| {
            let (mut found, bounds) = (Found::default(), self.fitting.get(&lot).map(Vec::as_slice));
            let looked = search.lot_fastest(&mut times, &self.prepared.lots[lot], (limit, bounds), &mut found);
            // Plans above the limit may not have been timed; where some were, one is the fastest.
            limit.min(found.limit_of(1) * (1.0 - looked.gap) * (1.0 - ROUNDING))
        })
    }

    /// The search for plans that fit the chip's memory.
    pub fn own(&self) -> &Search<'p> {
        let times = &self.kernels.times;
        self.own.get_or_init(|| fastest::search(self.prepared, self.job, times.clone(), self.job.memory()))
    }

    /// The fastest plan of a lot that fits with kernels as fast as they run: in seconds, or at least `limit` where it is not below that; infinite where
    /// none fits.
    fn fitting(&mut self, lot: usize, limit: f64) -> f64 {
        self.own();
        let Some(search) = self.own.get() else { return 0.0 };
        let (scheduled, job, fabrics) = (self.prepared.scheduled(), self.job, &self.fabrics);
        let (of, kernels) = (&self.prepared.lots[lot], &mut *self.kernels);
        let mut lowered = of.lowered.clone();
        // As far beyond the limit as for relaxed plans.
        let beyond = limit * (1.0 + 4.0 * ROUNDING);
        let policies = 0..search.policies.len();
        let bound = |policy: usize| {
            let shape = match of.outlined.get(policy) {
                Some(Some(known)) => {
                    Ok(known.shape(&of.passes, |program| kernels.pass(scheduled, fabrics, program, Fidelity::Mapped)))
                }
                _ => lowered.shape(&mut kernels.mapped, job.fabric, &search.under(of, policy)),
            };
            search.fitting(of, (policy, &shape), beyond, &mut self.lacking) * (1.0 - ROUNDING)
        };
        let bounds: Vec<f64> = policies.map(bound).collect();
        let least = bounds.iter().copied().fold(f64::INFINITY, f64::min);
        self.fitting.insert(lot, bounds);
        least
    }
}

/// Where a fidelity's bounds are kept.
fn slot(fidelity: Fidelity) -> usize {
    match fidelity {
        Fidelity::Peak => 0,
        Fidelity::Buffered => 1,
        Fidelity::Mapped | Fidelity::Scheduled | Fidelity::Exact => 2,
    }
}
