//! The cost of a kernel on an accelerator: time, energy, traffic per memory level and the bottleneck.
//!
//! [`CostModel`] prepares one accelerator and then costs any kernel without failing. A search over tiles maps
//! contractions ([`MappingEffort`]). Vector work counts passes over memory. Fused attention follows its tile
//! recurrence. [`CostCache`] remembers costs by the kernel's value.
//!
//! Two spans: [`Span::AllCores`] uses the whole chip. [`Span::OneCore`] uses one core and **1/cores of every shared
//! memory's capacity and bandwidth** (cores of the kernel's kind; pairs for fused kernels). A kernel alone on one core
//! could use more; several of one kind in parallel get exactly this share. Kernels of different kinds each have the
//! ports to themselves here; the scheduler that runs them in parallel shares the ports.

mod attention;
mod attention_call;
mod bound;
mod cache;
pub mod calibrate;
mod contraction;
mod level_rates;
mod library;
mod library_attention;
mod library_model;
mod local_ports;
mod machine;
mod mapping;
mod mapping_problem;
pub mod named;
mod route;
mod routine;
mod shared_traffic;
mod tensor_core;
mod tiles;
mod vector_core;

pub use attention_call::{AttentionCall, AttentionSoftware, UnknownAttentionLibrary};
pub use cache::CostCache;
pub use routine::{ExpertsCall, InputConversion, Routine};
pub use tensor_core::{ArrayProblem, ArrayReport, count_result_passes, fold_cycles, map_on_array};
pub use tiles::MappingEffort;
pub use vector_core::{elementwise_cycles, row_cycles};

use crate::hardware::{Accelerator, EnergyModel};
use crate::kernel::{Contraction, Kernel, Transfer, TransferLink};
use crate::units::{Bytes, Joules, Seconds};
use library::vector_alignment;
use machine::{CoreUse, Machine};
use serde::{Deserialize, Serialize};

/// Most memory levels of an accelerator, the device's memory included.
pub const MAX_LEVELS: usize = 8;

/// The cores that a kernel runs on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Span {
    /// One core of its kind (one tensor and one vector core for fused kernels), with its share of shared memories.
    OneCore,
    /// Every core.
    AllCores,
}

/// The bottleneck of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Bottleneck {
    /// The arrays or the lanes.
    Compute,
    /// The ports of a memory: its index in [`Accelerator::memory_levels`], innermost first. A core's accumulators count
    /// as its innermost memory.
    Memory(u8),
    /// A network or a link out of the device.
    Network,
    /// Launch overhead and latencies.
    Overhead,
}

/// Bytes through the ports of each level, summed over all instances. Indexed as [`Accelerator::memory_levels`],
/// innermost first.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub struct Traffic {
    /// Bytes read from each level.
    pub read: [f64; MAX_LEVELS],
    /// Bytes written to each level.
    pub written: [f64; MAX_LEVELS],
    /// Bytes of partial sums written to the cores' accumulator memories, where the chip has them. As many are read.
    pub accumulated: f64,
}

impl Traffic {
    /// Returns the bytes through a level's ports in both directions; zero for a level that does not exist. Saturates.
    #[must_use]
    pub fn bytes(&self, level: usize) -> Bytes {
        match (self.read.get(level), self.written.get(level)) {
            (Some(read), Some(written)) => Bytes((read + written) as u64),
            _ => Bytes::ZERO,
        }
    }

    fn add_traffic(&mut self, level: usize, read: f64, written: f64) {
        if let (Some(r), Some(w)) = (self.read.get_mut(level), self.written.get_mut(level)) {
            *r += read;
            *w += written;
        }
    }

    /// Adds the traffic of a kernel that runs `times` times.
    fn add_times(&mut self, kernel: &Self, times: f64) {
        let sums = [(&mut self.read, &kernel.read), (&mut self.written, &kernel.written)];
        for (sum, bytes) in sums.into_iter().flat_map(|(sums, bytes)| sums.iter_mut().zip(bytes)) {
            *sum += bytes * times;
        }
        self.accumulated += kernel.accumulated * times;
    }
}

/// The cost of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct KernelCost {
    /// Time from its launch to its last byte.
    pub latency: Seconds,
    /// Dynamic energy of operations and bytes. Static power belongs to the chip, not to a kernel.
    pub energy: Joules,
    /// Traffic per memory level.
    pub traffic: Traffic,
    /// Achieved fraction of the span's peak: of the matrix units for kernels with contractions, of the lanes for
    /// others.
    pub utilization: f64,
    /// The part that takes most of the time.
    pub bound: Bottleneck,
}

impl KernelCost {
    /// Returns the cost of a transfer on the network or a host link. It has no energy, and no traffic of its buffer
    /// through the device's memory.
    #[must_use]
    pub fn on_network(latency: Seconds) -> Self {
        Self {
            latency,
            energy: Joules::ZERO,
            traffic: Traffic::default(),
            utilization: 0.0,
            bound: Bottleneck::Network,
        }
    }

    /// Returns the same work with another latency. The utilization scales with it; energy and traffic stay.
    #[must_use]
    pub fn stretched_to(self, latency: Seconds) -> Self {
        let slower = if latency > Seconds::ZERO { self.latency / latency } else { 1.0 };
        Self { latency, utilization: self.utilization * slower, ..self }
    }
}

/// The reason why an accelerator cannot be costed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum CostError {
    /// A figure that the model divides by is not a positive number.
    #[error("{chip}: {what} is {value}; it must be a positive finite number: correct it in the chip's description")]
    NotPositive {
        /// The accelerator's name.
        chip: String,
        /// The figure.
        what: String,
        /// Its value.
        value: f64,
    },
    /// More memory levels than [`Traffic`] can hold.
    #[error(
        "{chip} has {levels} memory levels, the model holds {MAX_LEVELS}: merge levels that no kernel distinguishes"
    )]
    TooManyLevels {
        /// The accelerator's name.
        chip: String,
        /// Number of its levels.
        levels: usize,
    },
    /// A core's own memory lies outside a shared one.
    #[error(
        "{chip}: level {level} belongs to one core but lies outside a level that all cores share: list the levels innermost first"
    )]
    LevelOrder {
        /// The accelerator's name.
        chip: String,
        /// The level's name.
        level: String,
    },
    /// The arrays support no data type.
    #[error("{chip}: the arrays support no data type: give macs_per_unit_per_cycle for at least one")]
    NoRate {
        /// The accelerator's name.
        chip: String,
    },
}

/// Predicts the cost of kernels on one accelerator.
#[derive(Debug, Clone)]
pub struct CostModel {
    accelerator: Accelerator,
    machine: Machine,
    effort: MappingEffort,
}

impl CostModel {
    /// Prepares an accelerator.
    ///
    /// # Errors
    /// [`CostError`] if a figure that the model divides by is not positive and finite, if there are too many levels or
    /// they are out of order, or if the arrays support no data type.
    pub fn new(accelerator: Accelerator) -> Result<Self, CostError> {
        let machine = Machine::new(&accelerator)?;
        Ok(Self { accelerator, machine, effort: MappingEffort::default() })
    }

    /// Returns the same model with another mapping effort. More effort never gives a slower mapping.
    #[must_use]
    pub fn with_effort(mut self, effort: MappingEffort) -> Self {
        self.effort = effort;
        self
    }

    /// The accelerator.
    #[must_use]
    pub fn accelerator(&self) -> &Accelerator {
        &self.accelerator
    }

    /// Returns the cost of a kernel as part of a compiled step: row functions are fused, and data moves while the
    /// arrays compute. [`crate::network`] costs collectives; here they are the passes of their buffer through the
    /// device's own memory. Transfers use the host or storage link; without that link the latency is infinite. Never
    /// panics.
    #[must_use]
    pub fn cost_of_kernel(&self, kernel: &Kernel, span: Span) -> KernelCost {
        let cost = self.cost_on_cores(kernel, |cores| self.machine.resources_of(span, cores));
        match (span, kernel, self.machine.paired_resources()) {
            // If the numbers of tensor and vector cores differ, leaving the unpaired cores idle may be faster.
            (Span::AllCores, Kernel::Epilogue(_), Some((pairs, share)))
                if cost.latency > self.lower_bound_on(kernel, pairs) =>
            {
                let paired = self.cost_on_cores(kernel, |_| pairs);
                if paired.latency < cost.latency {
                    return KernelCost { utilization: paired.utilization * share, ..paired };
                }
                cost
            }
            _ => cost,
        }
    }

    /// Returns the cost of a kernel that a framework runs alone on the whole chip, as in measurements of single
    /// kernels. It includes the passes that the chip's software stack leaves unfused and the transfers that the stack
    /// does not overlap. It excludes host overheads ([`CostModel::time_by_host`]).
    #[must_use]
    pub fn cost_alone(&self, kernel: &Kernel) -> KernelCost {
        self.cost_on_cores(kernel, |_| self.machine.resources_alone())
    }

    fn cost_on_cores<'v>(
        &'v self,
        kernel: &Kernel,
        view: impl Fn(CoreUse) -> &'v machine::SpanResources,
    ) -> KernelCost {
        let cost = self.cost_without_core_energy(kernel, &view);
        let cores = match kernel {
            Kernel::Contraction(_) => view(CoreUse::Tensor).cores,
            Kernel::Epilogue(_) | Kernel::FusedAttention(_) => view(CoreUse::Pair).cores,
            Kernel::Elementwise(_) | Kernel::Reduction(_) | Kernel::Collective(_) => view(CoreUse::Vector).vector_cores,
            Kernel::Transfer(_) => return cost,
        };
        let running = self.energy_model().running_energy(cores, self.accelerator.clock, cost.latency);
        KernelCost { energy: cost.energy + running, ..cost }
    }

    /// Returns the cost of a kernel without the running energy of its cores, which depends on the latency.
    fn cost_without_core_energy<'v>(
        &'v self,
        kernel: &Kernel,
        view: &impl Fn(CoreUse) -> &'v machine::SpanResources,
    ) -> KernelCost {
        match kernel {
            Kernel::Contraction(c) => contraction::cost_of_contraction(self, view(CoreUse::Tensor), c, None),
            Kernel::Epilogue(e) => contraction::cost_of_contraction(self, view(CoreUse::Pair), &e.contraction, Some(e)),
            Kernel::FusedAttention(a) => attention::cost_of_attention(self, view(CoreUse::Pair), a),
            Kernel::Elementwise(e) => vector_core::cost_of_elementwise(self, view(CoreUse::Vector), e),
            Kernel::Reduction(r) => vector_core::cost_of_reduction(self, view(CoreUse::Vector), r),
            Kernel::Collective(c) => {
                vector_core::stream_pass(self, view(CoreUse::Vector), c.bytes.as_f64(), c.bytes.as_f64(), 0.0, 0.0)
            }
            Kernel::Transfer(t) => self.cost_of_transfer(t),
        }
    }

    fn cost_of_transfer(&self, transfer: &Transfer) -> KernelCost {
        let bytes = transfer.bytes.as_f64();
        let link = match transfer.link {
            // The device takes no part. If the rate of the host's memory is unknown, the transfer is free.
            TransferLink::HostMemory => {
                let rate =
                    self.accelerator.host.as_ref().and_then(|link| link.memory).map_or(f64::INFINITY, |rate| rate.0);
                return KernelCost::on_network(Seconds(bytes / rate));
            }
            TransferLink::Host => self.accelerator.host.as_ref().map(|link| link.bandwidth.0),
            TransferLink::Storage => {
                self.accelerator.storage.as_ref().map(|s| s.read_bandwidth.0.min(s.write_bandwidth.0))
            }
        };
        let rate = link.unwrap_or(0.0);
        let moving = if bytes == 0.0 { 0.0 } else { bytes / rate };
        let overhead = self.machine.calibration.launch_overhead.0;
        let mut traffic = Traffic::default();
        let hbm = self.accelerator.level_count() - 1;
        traffic.add_traffic(hbm, bytes, 0.0);
        KernelCost {
            latency: Seconds(overhead + moving),
            energy: self.accelerator.hbm.traffic_energy(transfer.bytes, Bytes::ZERO),
            traffic,
            utilization: 0.0,
            bound: if moving > overhead { Bottleneck::Network } else { Bottleneck::Overhead },
        }
    }

    /// Returns the time that a host clock shows for a kernel that a framework runs alone on the whole chip. For a call
    /// of a native library it is the host's overhead plus the latency. A composed operation keeps the host busy for its
    /// dispatch time; the last `host_overhead` of it overlaps the device. Both include the kernel's start on the
    /// device.
    #[must_use]
    pub fn time_by_host(&self, kernel: &Kernel) -> Seconds {
        let latency = self.cost_on_cores(kernel, |_| self.machine.resources_alone_by_host()).latency;
        let calibration = &self.machine.calibration;
        if vector_core::is_composed(kernel) {
            let start = (calibration.host_dispatch - calibration.host_overhead).max(Seconds::ZERO);
            calibration.host_dispatch.max(start + latency)
        } else {
            calibration.host_overhead + latency
        }
    }

    /// Returns the energy of the traffic, summed over the levels and the accumulators.
    fn energy_of_traffic(&self, traffic: &Traffic) -> Joules {
        let sums = self.accelerator.tensor.accumulation.memory();
        let each = sums.map_or(Joules::ZERO, |memory| memory.read_energy_per_byte + memory.write_energy_per_byte);
        let levels: Joules = self
            .accelerator
            .memory_levels()
            .zip(traffic.read.iter().zip(&traffic.written))
            .map(|(level, (read, written))| level.read_energy_per_byte * *read + level.write_energy_per_byte * *written)
            .sum();
        levels + each * traffic.accumulated
    }

    fn energy_model(&self) -> &EnergyModel {
        &self.accelerator.energy
    }

    /// Returns the number of multiply-accumulates of a contraction.
    fn count_macs(c: &Contraction) -> u128 {
        c.flops().0 / 2
    }
}
