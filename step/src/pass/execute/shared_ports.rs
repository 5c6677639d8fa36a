//! Kernels' use of the ports of memories that cores share.
//!
//! The operator schedule times every kernel as if no kernel ran on another kind of core. Cores of one kind have equal
//! shares of a memory. But a tensor core and a vector core may together ask for more than the memory provides.
//! [`sim::schedule::PortSharing`] simulates the schedule's order with the port uses from this module.

use sim::cost::KernelCost;
use sim::costed::{CostsBySpan, TICKS_PER_SECOND};
use sim::hardware::{Accelerator, MemoryScope};
use sim::schedule::PortUse;

/// The ports of a shared memory, at the rates that kernels achieve.
struct MemoryPorts {
    /// Index in [`Accelerator::memory_levels`].
    level: usize,
    /// Bytes per second.
    read: f64,
    write: f64,
    /// True if reads and writes share one port.
    single: bool,
}

impl MemoryPorts {
    fn of_chip(chip: &Accelerator) -> impl Iterator<Item = Self> {
        let outermost = chip.level_count() - 1;
        chip.memory_levels().enumerate().filter(|(_, memory)| memory.scope == MemoryScope::Chip).map(
            move |(level, memory)| {
                let achieved = if level == outermost { chip.calibration.hbm_achieved_fraction } else { 1.0 };
                let [read, write] =
                    [memory.read_bandwidth, memory.write_bandwidth].map(|bandwidth| bandwidth.0 * achieved);
                Self { level, read, write, single: memory.ports <= 1 }
            },
        )
    }

    /// Returns the time for which a kernel keeps each port busy, in seconds.
    fn busy_times(&self, kernel: &KernelCost) -> Vec<f64> {
        let (read, written) =
            (kernel.traffic.read[self.level] / self.read, kernel.traffic.written[self.level] / self.write);
        if self.single { vec![read + written] } else { vec![read, written] }
    }
}

/// Returns the time for which a kernel keeps each port of every shared memory busy, in ticks.
pub(super) fn port_use(chip: &Accelerator, costs: &CostsBySpan) -> PortUse {
    let busy = |kernel: &KernelCost| -> Vec<f64> {
        MemoryPorts::of_chip(chip)
            .flat_map(|ports| ports.busy_times(kernel))
            .map(|seconds| seconds * TICKS_PER_SECOND)
            .collect()
    };
    PortUse { one: busy(&costs.one_core), all: busy(&costs.all_cores) }
}

/// Returns a lower bound in ticks on the time of these kernels through the busiest port, wherever they run.
pub(super) fn busiest_port_ticks(uses: &[PortUse]) -> f64 {
    let ports = uses.first().map_or(0, |uses| uses.one.len());
    let busy = |port: usize| uses.iter().map(|uses| uses.one[port].min(uses.all[port])).sum::<f64>();
    (0..ports).map(busy).fold(0.0, f64::max)
}
