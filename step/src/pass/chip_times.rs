//! Times of a chip's kernels under a software stack: exact, or lower bounds.

use crate::communication::contention::Communication;
use crate::communication::network::StepNetwork;
use crate::communication::slowing::MutualSlowdown;
use crate::stack::software::{MODELLED_ATTENTION, SDPA};
use crate::{ExecutionMode, SoftwareStack, StepError};
use sim::cost::{AttentionCall, AttentionSoftware, CostModel, KernelCost, Routine, Span};
use sim::costed::{self, CostsBySpan};
use sim::hardware::{Accelerator, KernelLibrary};
use sim::kernel::{Collective, DataType, Kernel, RankGroup};
use sim::network::Fabric;
use sim::schedule::{Cores, Memo, OperatorLeastTimes, SolveLimits};
use sim::units::{Bytes, Joules, Seconds};
use std::collections::BTreeMap;
use std::sync::Arc;

/// The precision of kernel times. All but `Exact` give lower bounds: no mapping and no schedule makes a step faster.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fidelity {
    /// Contractions at their peak rate and with compulsory traffic only; vector work and collectives exactly. For
    /// searches that cannot afford microseconds per kernel.
    Peak,
    /// Like `Peak`, and also with the folds that arrays cannot fill, and the shared-buffer traffic that the cores'
    /// buffers cause.
    Buffered,
    /// Every kernel mapped and at its fastest. No schedule is solved.
    Mapped,
    /// Every kernel mapped, and scheduled if the stack schedules kernels, with every pass at its schedule's lower
    /// bound. No order of its kernels takes less.
    Scheduled,
    /// Every kernel mapped, and scheduled if the stack schedules kernels: the time of the step.
    Exact,
}

impl Fidelity {
    /// Returns whether kernels take the same times as in a step.
    fn times_kernels(self) -> bool {
        self >= Self::Scheduled
    }
}

/// Number of cached pieces of schedules, some kilobytes each.
const MEMO_CAPACITY: usize = 1 << 16;
/// Limit on the solver's work per piece of a schedule: tens of milliseconds for hard pieces. In built-in dense models
/// on built-in chips, fewer than one pass in a thousand stays unproven within it. All of those recompute, and the gap
/// is at most 6.4 % (sim/README.md has the counts). Many layers of experts beside shared ones stay unproven, even with
/// thirty times the work, which shortens their steps by 0.2 %.
pub const SCHEDULE_STEPS: u64 = 50_000;

/// Times of kernels and passes on a chip under a software stack.
#[derive(Debug, Clone)]
pub struct ChipTimes {
    stack: SoftwareStack,
    model: CostModel,
    attention: Option<AttentionSoftware>,
    fidelity: Fidelity,
    known: BTreeMap<Kernel, KernelTimeEnergy>,
    scheduled: BTreeMap<Kernel, CostsBySpan>,
    least: BTreeMap<Kernel, OperatorLeastTimes>,
    schedules: Arc<Memo>,
}

/// Returns a kernel library with the rates that it sustains in hours of training. `clock` is the fraction of the chip's
/// clock.
fn apply_sustained_rates(library: KernelLibrary, stack: &SoftwareStack, clock: f64) -> KernelLibrary {
    KernelLibrary {
        issue_fraction: library.issue_fraction * stack.sustained.tensor_fraction * clock,
        read_fraction: (library.read_fraction * stack.sustained.memory_fraction).min(1.0),
        write_fraction: (library.write_fraction * stack.sustained.memory_fraction).min(1.0),
        ..library
    }
}

/// Returns the attention library that a stack names, at a fraction of the chip's clock.
///
/// # Errors
/// A library without measurements on the chip.
fn attention_library_of_chip(chip: &Accelerator, name: &str, clock: f64) -> Result<AttentionSoftware, StepError> {
    match AttentionSoftware::measured_on_chip(chip, name) {
        Ok(AttentionSoftware::Version(own)) => Ok(AttentionSoftware::Version(own.at_clock(clock))),
        Ok(other) => Ok(other),
        Err(e) => {
            let always = format!("{MODELLED_ATTENTION} and {} are known on every chip", SDPA.0);
            Err(StepError::Hardware(format!("kernels.attention_library: {e}; {always}")))
        }
    }
}

/// Time and energy of a kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct KernelTimeEnergy {
    pub(crate) time: Seconds,
    pub(crate) energy: Joules,
}

impl ChipTimes {
    /// Returns the kernel times of a chip under `stack`.
    ///
    /// # Errors
    /// A figure of the chip that the cost model cannot use; an attention library of the stack without measurements on
    /// the chip.
    pub fn new(chip: &Accelerator, stack: &SoftwareStack) -> Result<Self, StepError> {
        let limits = SolveLimits { steps: SCHEDULE_STEPS, ..SolveLimits::default() };
        Self::with_shared_schedules(chip, stack, Arc::new(Memo::new(limits, MEMO_CAPACITY)))
    }

    /// Returns [`Self::new`] with solved schedules that are shared with other chips, so that common pieces are solved
    /// once.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn with_shared_schedules(
        chip: &Accelerator,
        stack: &SoftwareStack,
        schedules: Arc<Memo>,
    ) -> Result<Self, StepError> {
        let mut chip = chip.clone();
        let clock = if stack.sustained.throttled { chip.sustained_clock_fraction } else { 1.0 };
        let mut calibration = chip.calibration.scale_tensor_rates(stack.sustained.tensor_fraction * clock);
        calibration.hbm_achieved_fraction =
            (calibration.hbm_achieved_fraction * stack.sustained.memory_fraction).min(1.0);
        chip.calibration = calibration;
        let attention = match stack.kernels.attention_library.as_str() {
            MODELLED_ATTENTION => None,
            name if name == SDPA.0 && !chip.attention.contains_key(SDPA.1) => None,
            name if name == SDPA.0 => Some(attention_library_of_chip(&chip, SDPA.1, clock)?),
            name => Some(attention_library_of_chip(&chip, name, clock)?),
        };
        chip.library = match stack.kernels.execution {
            // A compiler's schedule runs its own kernels.
            ExecutionMode::Scheduled => None,
            ExecutionMode::Stream => chip.library.map(|library| apply_sustained_rates(library, stack, clock)),
        };
        let model = CostModel::new(chip).map_err(|e| StepError::Hardware(e.to_string()))?;
        let (known, scheduled, least) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Ok(Self {
            stack: stack.clone(),
            model,
            attention,
            fidelity: Fidelity::Exact,
            known,
            scheduled,
            least,
            schedules,
        })
    }

    /// Returns the times of `chip`, which must have identical timing ([`Accelerator::runs_like`]), with the cached
    /// kernel times.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn reuse_for_like_chip(self, chip: &Accelerator) -> Result<Self, StepError> {
        let Self { stack, fidelity, known, scheduled, least, schedules, .. } = self;
        let new = Self::with_shared_schedules(chip, &stack, schedules)?;
        Ok(Self { fidelity, known, scheduled, least, ..new })
    }

    /// Returns the same chip at another fidelity.
    #[must_use]
    pub fn with_fidelity(&self, fidelity: Fidelity) -> Self {
        let same = fidelity.times_kernels() && self.fidelity.times_kernels();
        let (known, scheduled) = if same { (self.known.clone(), self.scheduled.clone()) } else { Default::default() };
        let (stack, model, schedules) = (self.stack.clone(), self.model.clone(), Arc::clone(&self.schedules));
        Self { stack, model, attention: self.attention, fidelity, known, scheduled, least: BTreeMap::new(), schedules }
    }

    /// Returns the software stack.
    #[must_use]
    pub fn stack(&self) -> &SoftwareStack {
        &self.stack
    }

    /// Returns the chip, with its rates as the stack sustains them.
    #[must_use]
    pub fn chip(&self) -> &Accelerator {
        self.model.accelerator()
    }

    /// Returns the fidelity of its kernel times.
    #[must_use]
    pub fn fidelity(&self) -> Fidelity {
        self.fidelity
    }

    pub(crate) fn schedule_memo(&self) -> &Memo {
        &self.schedules
    }

    /// Returns a kernel's time with the launch gap: its modelled time, divided by the stack's fraction for such
    /// kernels. The chip's limit on cells times clock bounds the modelled time from below. A measured attention library
    /// replaces the modelled time.
    fn launched_time(&self, kernel: &Kernel, modelled: Seconds) -> Seconds {
        let gap = Seconds::from_micros(self.stack.launch.gap_us);
        if let (Kernel::FusedAttention(attention), Some(software)) = (kernel, self.attention)
            && let Some(call) = AttentionCall::of_kernel(attention, software)
        {
            return self.model.time_alone(&Routine::Attention(call)) + gap;
        }
        let slower = match kernel {
            Kernel::FusedAttention(_) => self.stack.sustained.attention_fraction,
            Kernel::Contraction(c) if c.operand.bytes() == 1 => self.narrow_fraction(c.operand),
            _ => 1.0,
        };
        modelled.max(self.model.time_at_cell_rate_limit(kernel)) / slower + gap
    }

    /// Returns the stack's rate of narrow products relative to a library's. If the chip's own rates were measured with
    /// a scale per row, they include its cost, so the fraction is at least 1.
    fn narrow_fraction(&self, format: DataType) -> f64 {
        let fraction = self.stack.sustained.narrow_fraction;
        let kernels = self.chip().library.and_then(|library| library.formats.get(format));
        if kernels.is_some_and(|kernels| kernels.row_scaled) { fraction.max(1.0) } else { fraction }
    }

    /// Returns a lower bound on a kernel's time over all mappings, at `fidelity`; for a collective, its latency.
    #[must_use]
    pub fn lower_bound_of_kernel(&self, kernel: &Kernel, fabric: &Fabric, fidelity: Fidelity) -> Seconds {
        match kernel {
            Kernel::Collective(collective) => fabric.cost_of_collective(collective).latency,
            _ => self.mapped_lower_bound(kernel, fidelity),
        }
    }

    fn mapped_lower_bound(&self, kernel: &Kernel, fidelity: Fidelity) -> Seconds {
        let least = match fidelity {
            Fidelity::Peak if is_mapped(kernel) => {
                self.model.lower_bound(kernel, Span::AllCores).min(self.model.lower_bound(kernel, Span::OneCore))
            }
            Fidelity::Buffered if is_mapped(kernel) => self.model.buffered_bound(kernel),
            _ => self.model.fastest_latency(kernel),
        };
        self.launched_time(kernel, least)
    }

    /// Returns lower bounds on a kernel's time in a schedule, on one core and across all, at `fidelity`. The unit is
    /// ticks, as in schedules.
    #[must_use]
    pub fn least_in_schedule(
        &self,
        kernel: &Kernel,
        network: &impl StepNetwork,
        fidelity: Fidelity,
    ) -> OperatorLeastTimes {
        if let Kernel::Collective(collective) = kernel {
            return self.least_of_collective(kernel, collective_latency(network, collective));
        }
        let on = |span| {
            let least = match fidelity {
                Fidelity::Peak if is_mapped(kernel) => self.model.lower_bound(kernel, span),
                Fidelity::Buffered if is_mapped(kernel) => self.model.buffered_bound_on(kernel, span),
                _ => self.model.latency_of_kernel(kernel, span),
            };
            self.launched_time(kernel, least)
        };
        costed::least_operator(self.chip(), kernel, [Span::OneCore, Span::AllCores].map(on))
    }

    /// Returns [`Self::least_in_schedule`] of a collective with a known latency ([`collective_latency`]).
    #[must_use]
    pub fn least_of_collective(&self, kernel: &Kernel, latency: Seconds) -> OperatorLeastTimes {
        costed::least_operator(self.chip(), kernel, [latency; 2])
    }

    /// Returns [`Self::least_in_schedule`] at the chip's own fidelity. Results are cached, except for collectives.
    pub fn cached_least_in_schedule(&mut self, kernel: &Kernel, network: &impl StepNetwork) -> OperatorLeastTimes {
        if let Some(known) = self.least.get(kernel) {
            return *known;
        }
        let least = self.least_in_schedule(kernel, network, self.fidelity);
        if !matches!(kernel, Kernel::Collective(_)) {
            self.least.insert(*kernel, least);
        }
        least
    }

    /// Returns the cores available to a schedule.
    #[must_use]
    pub fn schedule_cores(&self) -> Cores {
        costed::schedule_cores(self.chip())
    }

    /// Returns the time and the energy of a kernel in a stream, over the whole chip. Bounds have zero energy.
    pub(crate) fn cost_of_kernel(&mut self, kernel: &Kernel) -> KernelTimeEnergy {
        if let Some(known) = self.known.get(kernel) {
            return *known;
        }
        let scheduled = self.stack.kernels.execution == ExecutionMode::Scheduled;
        let timed = self.fidelity.times_kernels() || self.fidelity == Fidelity::Mapped && !scheduled;
        let cost = if timed {
            let cost = self.model.cost_of_kernel(kernel, Span::AllCores);
            KernelTimeEnergy { time: self.launched_time(kernel, cost.latency), energy: cost.energy }
        } else {
            KernelTimeEnergy { time: self.mapped_lower_bound(kernel, self.fidelity), energy: Joules::ZERO }
        };
        self.known.insert(*kernel, cost);
        cost
    }

    /// Returns the time of a kernel in a stream, over the whole chip.
    pub fn time_of_kernel(&mut self, kernel: &Kernel) -> Seconds {
        self.cost_of_kernel(kernel).time
    }

    /// Returns the energy of a kernel over the whole chip, without static power.
    pub(crate) fn energy_of_kernel(&mut self, kernel: &Kernel) -> Joules {
        self.cost_of_kernel(kernel).energy
    }

    /// Returns the costs of a kernel or collective in a schedule, on one core and on all.
    pub(crate) fn schedule_costs(&mut self, kernel: &Kernel, network: &impl StepNetwork) -> CostsBySpan {
        if let Kernel::Collective(collective) = kernel {
            let cost = KernelCost::on_network(collective_latency(network, collective));
            return CostsBySpan { one_core: cost, all_cores: cost };
        }
        if let Some(known) = self.scheduled.get(kernel) {
            return *known;
        }
        let on = |span| {
            let cost = self.model.cost_of_kernel(kernel, span);
            cost.stretched_to(self.launched_time(kernel, cost.latency))
        };
        let costs = CostsBySpan { one_core: on(Span::OneCore), all_cores: on(Span::AllCores) };
        self.scheduled.insert(*kernel, costs);
        costs
    }

    /// Returns the cost of a collective in a stream, with the launch gap. The previous kernel hides the rest of its
    /// launch.
    #[must_use]
    pub fn cost_of_collective(&self, network: &impl StepNetwork, collective: &Collective) -> Communication {
        let RankGroup { ranks, stride } = collective.group;
        let slowing = self.slowdown_of_collective(ranks.saturating_mul(stride) > network.fast_domain_size());
        Communication { slowing, ..network.cost_of_collective(collective).with_launch_gap(self.launch_gap()) }
    }

    /// Returns the slowdown of a collective and concurrent work by each other; none if the chip's streams are unknown
    /// or the stack leaves the slowdown out.
    fn slowdown_of_collective(&self, between_nodes: bool) -> MutualSlowdown {
        let streams = self.chip().streams.as_ref().filter(|_| self.stack.overlap.contended);
        streams.map_or_else(MutualSlowdown::default, |streams| MutualSlowdown::of_collective(streams, between_nodes))
    }

    /// Returns the gap between two launches.
    pub(crate) fn launch_gap(&self) -> Seconds {
        Seconds::from_micros(self.stack.launch.gap_us)
    }
}

/// Returns whether a kernel is cut into tiles. The fast fidelities bound such a kernel without a choice of tiles.
fn is_mapped(kernel: &Kernel) -> bool {
    matches!(kernel, Kernel::Contraction(_) | Kernel::Epilogue(_) | Kernel::FusedAttention(_))
}

/// Returns the latency of a collective in a schedule, with its launch; zero for a single rank or no bytes. It is the
/// same on every chip.
#[must_use]
pub fn collective_latency(network: &impl StepNetwork, collective: &Collective) -> Seconds {
    if collective.group.ranks < 2 || collective.bytes == Bytes::ZERO {
        return Seconds::ZERO;
    }
    network.launch_time() + network.cost_of_collective(collective).time
}
