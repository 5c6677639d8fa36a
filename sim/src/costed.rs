//! Costs every kernel of a graph on a device, turns the graph into a scheduling problem, and schedules it. Each step
//! consumes the previous one's result.

use crate::cost::{CostModel, KernelCost, Span};
use crate::hardware::Accelerator;
use crate::kernel::{Kernel, KernelGraph};
use crate::network::Fabric;
use crate::schedule::{self, Cores, Operator, OperatorKind, OperatorLeastTimes, Schedule, ScheduleError};
use crate::units::{Joules, Seconds};

/// Ticks of the schedule per second: picoseconds, much finer than any kernel's latency.
pub const TICKS_PER_SECOND: f64 = 1e12;

/// The cost of a kernel on one core and across all cores. A collective costs the same both ways.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct CostsBySpan {
    /// On one tensor core, one vector core, or one of each.
    pub one_core: KernelCost,
    /// Across all cores.
    pub all_cores: KernelCost,
}

impl CostsBySpan {
    /// The lower latency of the two.
    #[must_use]
    pub fn fastest_latency(&self) -> Seconds {
        self.one_core.latency.min(self.all_cores.latency)
    }
}

/// One device of a cluster: a chip's cost model and its fabric.
#[derive(Debug, Clone)]
pub struct Device {
    /// The cost model of kernels on the chip.
    pub model: CostModel,
    /// The fabric, which gives the cost of collectives.
    pub fabric: Fabric,
}

impl Device {
    /// The chip.
    #[must_use]
    pub fn chip(&self) -> &Accelerator {
        self.model.accelerator()
    }

    /// Returns the cost of a kernel on one core and across all cores.
    #[must_use]
    pub fn costs(&self, kernel: &Kernel) -> CostsBySpan {
        if let Kernel::Collective(collective) = kernel {
            let cost = KernelCost::on_network(self.fabric.cost_of_collective(collective).latency);
            return CostsBySpan { one_core: cost, all_cores: cost };
        }
        CostsBySpan {
            one_core: self.model.cost_of_kernel(kernel, Span::OneCore),
            all_cores: self.model.cost_of_kernel(kernel, Span::AllCores),
        }
    }

    /// The cores of the schedule.
    #[must_use]
    pub fn cores(&self) -> Cores {
        schedule_cores(self.chip())
    }

    /// Returns a kernel as an operator of the schedule.
    #[must_use]
    pub fn operator(&self, kernel: &Kernel, costs: &CostsBySpan) -> Operator {
        schedule_operator(self.chip(), kernel, costs)
    }
}

/// Returns the cores of a chip's schedule.
#[must_use]
pub fn schedule_cores(chip: &Accelerator) -> Cores {
    Cores {
        tensor_cores: chip.tensor.cores,
        vector_cores: chip.vector.cores,
        network_links: 1,
        pairing: chip.pairing,
        exclusivity: chip.exclusivity,
    }
}

/// Returns a kernel as an operator of a chip's schedule. If the chip cannot overlap collectives with computation, as in
/// PHAZE, a collective becomes a vector operator that takes as long on one core as across all cores. Schedules
/// therefore run it on one vector core.
#[must_use]
pub fn schedule_operator(chip: &Accelerator, kernel: &Kernel, costs: &CostsBySpan) -> Operator {
    let (one, all) = (to_ticks(costs.one_core.latency), to_ticks(costs.all_cores.latency));
    match (kernel, operator_kind(chip, kernel)) {
        (_, OperatorKind::Network) => Operator::new(OperatorKind::Network, one),
        (Kernel::Collective(_), kind) => Operator::with_exclusive(kind, all, all),
        (_, kind) => Operator::with_exclusive(kind, one, all),
    }
}

/// Returns the resources that a kernel occupies in a chip's schedule.
#[must_use]
pub fn operator_kind(chip: &Accelerator, kernel: &Kernel) -> OperatorKind {
    match kernel {
        Kernel::Contraction(_) => OperatorKind::Tensor,
        Kernel::Elementwise(_) | Kernel::Reduction(_) => OperatorKind::Vector,
        Kernel::Epilogue(_) | Kernel::FusedAttention(_) => OperatorKind::TensorVector,
        Kernel::Collective(_) if !chip.collectives_overlap => OperatorKind::Vector,
        Kernel::Collective(_) | Kernel::Transfer(_) => OperatorKind::Network,
    }
}

/// Returns the least times of an operator in ticks, from lower bounds on the kernel's latency on one core and across
/// all cores. An operator on the network never spans all cores; its time there is infinite.
#[must_use]
pub fn least_operator(chip: &Accelerator, kernel: &Kernel, [one, all]: [Seconds; 2]) -> OperatorLeastTimes {
    let kind = operator_kind(chip, kernel);
    let across = if kind == OperatorKind::Network { f64::INFINITY } else { to_ticks(all) as f64 };
    OperatorLeastTimes { kind, one: to_ticks(one) as f64, all: across }
}

/// Returns a time in ticks, rounded to the nearest and saturating. Any positive time is at least one tick; zero,
/// negative times and NaN are zero ticks.
#[must_use]
pub fn to_ticks(time: Seconds) -> u64 {
    if time.0 > 0.0 { ((time.0 * TICKS_PER_SECOND).round() as u64).max(1) } else { 0 }
}

/// Converts ticks to seconds.
#[must_use]
pub fn from_ticks(ticks: u64) -> Seconds {
    Seconds(ticks as f64 / TICKS_PER_SECOND)
}

/// A kernel graph with the costs of its kernels on a device.
#[derive(Debug, Clone)]
pub struct CostedGraph {
    /// The kernels.
    pub graph: KernelGraph,
    /// The costs of each kernel, by node index.
    pub costs: Vec<CostsBySpan>,
}

/// A costed graph with its schedule.
#[derive(Debug, Clone)]
pub struct ScheduledGraph {
    /// The kernels.
    pub graph: KernelGraph,
    /// The cost of each kernel as scheduled: on one core or across all cores.
    pub costs: Vec<KernelCost>,
    /// The scheduling problem, for [`schedule::verify_schedule`] and for traces.
    pub problem: schedule::Problem,
    /// The schedule, in ticks of [`TICKS_PER_SECOND`].
    pub schedule: Schedule,
}

impl CostedGraph {
    /// Costs every kernel of a graph on a device.
    #[must_use]
    pub fn new(graph: KernelGraph, device: &Device) -> Self {
        let costs = graph.node_weights().map(|node| device.costs(&node.kernel)).collect();
        Self { graph, costs }
    }

    /// Schedules the kernels on the device's cores.
    ///
    /// # Errors
    /// A cyclic graph, or latencies too large for ticks.
    pub fn schedule_kernels(self, device: &Device, memo: &schedule::Memo) -> Result<ScheduledGraph, ScheduleError> {
        let operators = self
            .graph
            .node_weights()
            .zip(&self.costs)
            .map(|(node, costs)| device.operator(&node.kernel, costs))
            .collect();
        let edges =
            self.graph.raw_edges().iter().map(|e| (e.source().index() as u32, e.target().index() as u32)).collect();
        let problem = schedule::Problem::new(device.cores(), operators, edges)?;
        let schedule = memo.solve_problem(&problem);
        let costs = self
            .costs
            .iter()
            .zip(&schedule.exclusive)
            .map(|(c, &all)| if all { c.all_cores } else { c.one_core })
            .collect();
        Ok(ScheduledGraph { graph: self.graph, costs, problem, schedule })
    }
}

impl ScheduledGraph {
    /// The duration of the schedule.
    #[must_use]
    pub fn makespan(&self) -> Seconds {
        from_ticks(self.schedule.makespan)
    }

    /// Returns the energy of all kernels, without static power.
    #[must_use]
    pub fn energy(&self) -> Joules {
        self.costs.iter().map(|c| c.energy).sum()
    }
}
