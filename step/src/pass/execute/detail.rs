//! The kernels of a pass under either execution mode: each kernel's time, start, place and bound.

use crate::pass::chip_times::ChipTimes;
use crate::pass::copied::CopiesEachWay;
use crate::pass::execute::scheduled::ROUNDING;
use crate::pass::profile::PassProfile;
use crate::{ExecutionMode, StepError};
use sim::cost::{Bottleneck, KernelCost, Traffic};
use sim::kernel::{Kernel, KernelGraph, KernelNode, KernelRole, ParallelAxis, Pass, TransferLink};
use sim::network::Fabric;
use sim::units::{Bytes, Joules, Seconds};

/// The place where a kernel runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KernelPlace {
    /// The whole chip.
    AllCores,
    /// One tensor core, one vector core, or one of each.
    OneCore {
        /// The tensor core.
        tensor: Option<u32>,
        /// The vector core.
        vector: Option<u32>,
    },
    /// The network between devices.
    Network,
    /// The link to the host, also for copies to storage.
    Host,
}

/// Details of one kernel of a pass.
#[derive(Debug, Clone, PartialEq)]
pub struct KernelDetail {
    /// Name, unique in its pass.
    pub name: String,
    /// The kernel.
    pub kernel: Kernel,
    /// Its place.
    pub place: KernelPlace,
    /// Start, relative to the pass's start.
    pub start: Seconds,
    /// Time from launch to last byte under the stack; under the operator schedule, with the slowdown by concurrent
    /// kernels.
    pub latency: Seconds,
    /// The part of the latency that lengthens its pass; the rest is hidden beside other kernels. Kernels that run side
    /// by side on cores count an equal part of that time each. The kernels of a pass add up to its time.
    pub exposed: Seconds,
    /// Energy without static power; zero on the network, whose energy is not modelled.
    pub energy: Joules,
    /// Bytes read from and written to device memory; zero on the network.
    pub hbm: Bytes,
    /// Traffic of every memory level; zero on the network.
    pub traffic: Traffic,
    /// Achieved fraction of the peak of its cores.
    pub utilization: f64,
    /// The bottleneck that takes most of its time.
    pub bound: Bottleneck,
}

impl KernelDetail {
    fn new(node: &KernelNode, cost: &KernelCost, hbm: usize) -> Self {
        Self {
            name: node.name.clone(),
            kernel: node.kernel,
            place: if matches!(node.kernel, Kernel::Collective(_)) {
                KernelPlace::Network
            } else {
                KernelPlace::AllCores
            },
            start: Seconds::ZERO,
            latency: cost.latency,
            exposed: cost.latency,
            energy: cost.energy,
            hbm: cost.traffic.bytes(hbm),
            traffic: cost.traffic,
            utilization: cost.utilization,
            bound: cost.bound,
        }
    }

    /// Returns the kernel's end, relative to the pass's start.
    #[must_use]
    pub fn end_time(&self) -> Seconds {
        self.start + self.latency
    }

    /// Returns whether the device's cores run it.
    #[must_use]
    pub fn runs_on_cores(&self) -> bool {
        matches!(self.place, KernelPlace::AllCores | KernelPlace::OneCore { .. })
    }
}

impl ChipTimes {
    /// Returns the kernels of a pass in order of start, with its copies into the device and out of it. `pass` is the
    /// same pass in [`crate::StepProfile`], with the same time. All kernels end within it.
    pub(crate) fn kernel_details(
        &mut self,
        graph: &KernelGraph,
        fabric: &Fabric,
        pass: &PassProfile,
        copied: CopiesEachWay,
    ) -> Result<Vec<KernelDetail>, StepError> {
        let mut kernels = match self.stack().kernels.execution {
            ExecutionMode::Stream => self.stream_details(graph, fabric, pass),
            ExecutionMode::Scheduled => self.schedule_details(graph, fabric)?,
        };
        kernels.sort_by(|a, b| a.start.0.total_cmp(&b.start.0));
        kernels.extend(self.copy_details(fabric, pass, copied));
        Ok(kernels)
    }

    /// Returns the copies of a pass. Each ends with the pass. They share the exposed time in proportion to their
    /// latencies.
    fn copy_details(&mut self, fabric: &Fabric, pass: &PassProfile, copied: CopiesEachWay) -> Vec<KernelDetail> {
        let mut copies = Vec::new();
        for (way, bytes) in [("from", copied.into_device), ("to", copied.out_of_device)] {
            for copy in bytes.transfers() {
                let name = match copy.link {
                    TransferLink::Host => format!("copy {way} the host"),
                    TransferLink::Storage => format!("copy {way} storage"),
                    TransferLink::HostMemory => "update in the host's memory".to_owned(),
                };
                let kernel = Kernel::Transfer(copy);
                let cost = self.schedule_costs(&kernel, fabric).all_cores;
                let role = KernelRole { operator: None, pass: Pass::Forward, gradient: None, axis: None };
                let row = KernelDetail::new(&KernelNode { name, kernel, role }, &cost, self.hbm_level());
                let start = (pass.busy_time() - row.latency).max(Seconds::ZERO);
                copies.push(KernelDetail { place: KernelPlace::Host, start, ..row });
            }
        }
        let all: Seconds = copies.iter().map(|copy| copy.latency).sum();
        for copy in &mut copies {
            copy.exposed = if all > Seconds::ZERO { pass.offload * (copy.latency / all) } else { Seconds::ZERO };
        }
        copies
    }

    fn hbm_level(&self) -> usize {
        self.chip().level_count() - 1
    }

    /// Returns the kernels in sequence over the whole chip. The hidden part of a collective runs beside the following
    /// kernels, or beside the preceding ones at the end of the pass. All collectives of an axis in a pass have the same
    /// hidden share.
    fn stream_details(&mut self, graph: &KernelGraph, fabric: &Fabric, pass: &PassProfile) -> Vec<KernelDetail> {
        let hbm = self.hbm_level();
        let rows: Vec<(KernelDetail, Option<ParallelAxis>)> = graph
            .node_weights()
            .map(|node| {
                let Kernel::Collective(collective) = &node.kernel else {
                    return (KernelDetail::new(node, &self.schedule_costs(&node.kernel, fabric).all_cores, hbm), None);
                };
                let cost = KernelCost::on_network(self.cost_of_collective(fabric, collective).time);
                (KernelDetail::new(node, &cost, hbm), node.role.axis.or(Some(ParallelAxis::Tensor)))
            })
            .collect();
        let exposed = |axis: ParallelAxis| {
            let all: Seconds = rows.iter().filter(|(_, a)| *a == Some(axis)).map(|(row, _)| row.latency).sum();
            let exposed = match axis {
                ParallelAxis::Tensor => pass.tensor,
                ParallelAxis::Context => pass.context,
                ParallelAxis::Expert => pass.expert,
            };
            if all > Seconds::ZERO { exposed / all } else { 0.0 }
        };
        let shares =
            [ParallelAxis::Tensor, ParallelAxis::Context, ParallelAxis::Expert].map(|axis| (axis, exposed(axis)));
        let mut clock = Seconds::ZERO;
        let place = |(row, axis): (KernelDetail, Option<ParallelAxis>)| {
            let start = clock.min(pass.busy_time() - row.latency).max(Seconds::ZERO);
            let share =
                axis.map_or(1.0, |axis| shares.iter().find(|(a, _)| *a == axis).map_or(1.0, |(_, share)| *share));
            let exposed = row.latency * share;
            clock += exposed;
            KernelDetail { start, exposed, ..row }
        };
        rows.into_iter().map(place).collect()
    }

    /// Returns the kernels as the operator schedule has them.
    fn schedule_details(&mut self, graph: &KernelGraph, fabric: &Fabric) -> Result<Vec<KernelDetail>, StepError> {
        let hbm = self.hbm_level();
        let scheduled = self.schedule_graph(graph, fabric, |_| false)?;
        let (schedule, exposed) = (&scheduled.schedule, scheduled.exposed_by_kernel());
        let detail = |(i, node): (usize, &&KernelNode)| {
            let (exclusive, on) = (schedule.exclusive[i], schedule.cores[i]);
            let cost = if exclusive { scheduled.costs[i].all_cores } else { scheduled.costs[i].one_core };
            let [start, end] = scheduled.spans[i].map(Seconds);
            let row = KernelDetail::new(node, &cost.stretched_to(end - start), hbm);
            let place = match row.place {
                KernelPlace::AllCores if !exclusive => {
                    KernelPlace::OneCore { tensor: on.tensor_core, vector: on.vector_core }
                }
                place => place,
            };
            // A sum over stretches differs by rounding from the latency of a kernel that nothing hides.
            let whole = (exposed[i] - row.latency).0.abs() <= ROUNDING * row.latency.0;
            let exposed = if whole { row.latency } else { exposed[i] };
            KernelDetail { place, start, exposed, ..row }
        };
        Ok(scheduled.kernels.iter().enumerate().map(detail).collect())
    }
}
