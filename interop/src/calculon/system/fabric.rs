//! A system's networks as a fabric.

use super::{CalculonNetwork, CalculonOperation, CalculonSystem, OPERATIONS};
use sim::files::FileError;
use sim::hardware::FileFault;
use sim::network::{Fabric, InNetwork, MAX_TIERS, Tier, Topology};
use sim::units::{BytesPerSecond, Seconds};

/// A parallel axis and its network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CalculonAxis<'a> {
    /// Key of the axis's degree in the execution.
    pub key: &'a str,
    /// The parallel degree.
    pub degree: u32,
    /// Key of the axis's network in the execution.
    pub network_key: &'a str,
    /// Index of the axis's network in the system.
    pub network: usize,
}

/// The bytes that a ring sends for an all-reduce, relative to the size.
const RING: CalculonOperation = CalculonOperation { factor: 2.0, offset: -1.0 };
/// The bytes that a ring sends for a reduce-scatter or an all-gather, relative to the size.
const HALF_RING: CalculonOperation = CalculonOperation { factor: 1.0, offset: -1.0 };

impl CalculonSystem {
    /// Returns a fabric of all networks; each network encloses the previous ones.
    ///
    /// # Errors
    /// A network whose size is not a larger multiple of the size before it.
    pub fn to_fabric(&self) -> Result<Fabric, FileError> {
        let mut below = 1;
        let mut tiers = Vec::new();
        for (i, network) in self.networks.iter().enumerate() {
            if network.size <= below && i > 0 || !network.size.is_multiple_of(below) {
                let limit = format!("must be a larger multiple of the {below} endpoints of the network before it");
                return Err(self.fabric_fault(
                    format!("networks[{i}].size"),
                    network.size,
                    limit,
                    "list networks from the innermost to the widest",
                ));
            }
            below = network.size;
            tiers.push(self.tier_of_network(i, network, network.size));
        }
        self.fabric_of_tiers(tiers)
    }

    /// Returns a fabric of the networks that a run's axes use. Ranks are numbered along the axes in the given order. An
    /// axis lies on one network, so a network joins the ranks of its own axes and of all axes before them.
    ///
    /// # Errors
    /// A network that does not exist, is too small, or must be filled and is not; an axis on a network inside the
    /// network of an earlier axis.
    pub fn to_fabric_of_axes(&self, execution: &str, axes: &[CalculonAxis<'_>]) -> Result<Fabric, FileError> {
        let fault = |key: &str, value: String, limit: String, cure: &str| {
            Err(FileError { file: execution.to_owned(), faults: vec![FileFault::new(key, value, limit, cure)] })
        };
        let (mut ranks, mut last) = (1_u32, 0);
        let mut tiers: Vec<Tier> = Vec::new();
        let mut on_network = vec![1_u64; self.networks.len()];
        for axis in axes {
            let Some(network) = self.networks.get(axis.network) else {
                let limit = format!("{} has networks 0 to {}", self.file, self.networks.len() - 1);
                return fault(axis.network_key, axis.network.to_string(), limit, "name one of them");
            };
            if axis.degree == 1 {
                continue;
            }
            if axis.network < last {
                let limit = format!(
                    "lies inside network {last}, on which a faster axis lies; ranks are numbered tensor, data, pipeline"
                );
                return fault(
                    axis.network_key,
                    axis.network.to_string(),
                    limit,
                    "give tensor_par the lowest network, pipeline_par the highest",
                );
            }
            on_network[axis.network] *= u64::from(axis.degree);
            let used = on_network[axis.network];
            if used > u64::from(network.size) {
                let limit = format!(
                    "the axes on network {} have {used} ranks, it has {} endpoints",
                    axis.network, network.size
                );
                return fault(
                    axis.key,
                    axis.degree.to_string(),
                    limit,
                    "lower the degree, or put the axis on a wider network",
                );
            }
            ranks = ranks.saturating_mul(axis.degree);
            if tiers.is_empty() || axis.network > last {
                tiers.push(self.tier_of_network(axis.network, network, ranks));
            } else if let Some(tier) = tiers.last_mut() {
                tier.devices = ranks;
            }
            last = axis.network;
        }
        if let Some(unfilled) = self.unfilled_network(&on_network) {
            return Err(FileError { file: execution.to_owned(), faults: vec![unfilled] });
        }
        if let (true, Some(first)) = (tiers.is_empty(), self.networks.first()) {
            tiers.push(self.tier_of_network(0, first, 1));
        }
        self.fabric_of_tiers(tiers)
    }

    /// Returns the fault of the first network that must be filled and is not; `on_network` has the ranks on each.
    fn unfilled_network(&self, on_network: &[u64]) -> Option<FileFault> {
        self.networks.iter().zip(on_network).enumerate().find_map(|(i, (network, used))| {
            if !network.must_be_filled || *used <= 1 || u64::from(network.size).is_multiple_of(*used) {
                return None;
            }
            let limit = format!(
                "must be filled: the {used} ranks of the axes on it must divide its {} endpoints",
                network.size
            );
            Some(FileFault::new(format!("network {i}"), used.to_string(), limit, "choose degrees that divide it"))
        })
    }

    fn fabric_of_tiers(&self, tiers: Vec<Tier>) -> Result<Fabric, FileError> {
        if tiers.len() > MAX_TIERS {
            let limit = format!("a fabric here has at most {MAX_TIERS} tiers");
            return Err(self.fabric_fault(
                "networks".to_owned(),
                tiers.len() as u32,
                limit,
                "leave out networks that the run does not use",
            ));
        }
        let (name, description) = (self.name().to_owned(), format!("networks of Calculon's system {}", self.file));
        Ok(Fabric {
            name,
            description,
            launch: Seconds::ZERO,
            tiers,
            fitted_on: String::new(),
            joins: Vec::new(),
            system: Default::default(),
        })
    }

    fn fabric_fault(&self, key: String, value: u32, limit: String, cure: &str) -> FileError {
        FileError { file: self.file.clone(), faults: vec![FileFault::new(key, value, limit, cure)] }
    }

    /// Returns a network as a tier of switches. If its all-reduce sends fewer bytes than a ring does, its switches
    /// reduce.
    fn tier_of_network(&self, index: usize, network: &CalculonNetwork, devices: u32) -> Tier {
        let all_reduce = network.operations[3];
        let in_network = (all_reduce.factor < RING.factor).then(|| InNetwork {
            latency: network.latency,
            fraction: network.efficiency / all_reduce.factor,
            chunk: Seconds::ZERO,
            forced: false,
        });
        Tier {
            name: format!("network {index}"),
            devices,
            topology: Topology::Switch,
            bandwidth: network.bandwidth,
            achieved_fraction: network.efficiency,
            operation: network.latency,
            step: Seconds::ZERO,
            chunk: Seconds::ZERO,
            final_copy: BytesPerSecond(f64::INFINITY),
            low_latency: None,
            line: None,
            exchange: None,
            ring_step: None,
            group_bandwidth: Vec::new(),
            in_network,
            source: self.file.clone(),
        }
    }

    /// Lists the parts of the networks that the fabric does not model, one line each.
    #[must_use]
    pub fn list_unmodelled_of_fabric(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for (i, network) in self.networks.iter().enumerate() {
            let expected = [CalculonOperation { factor: 1.0, offset: 0.0 }, HALF_RING, HALF_RING, RING];
            for ((name, stated), ours) in OPERATIONS.iter().zip(network.operations).zip(expected) {
                let reduced = *name == "all_reduce" && stated.factor < RING.factor;
                if stated != ours && !reduced {
                    lines.push(format!(
                        "networks[{i}].ops.{name} [{}, {}]: bytes are counted by the algorithm, a ring's [{}, {}]",
                        stated.factor, stated.offset, ours.factor, ours.offset
                    ));
                }
                if reduced {
                    lines.push(format!(
                        "networks[{i}].ops.{name} [{}, {}]: read as a reduction in the switches, [{}, 1]",
                        stated.factor, stated.offset, stated.factor
                    ));
                }
            }
            if network.processor_usage > 0.0 {
                lines.push(format!(
                    "networks[{i}].processor_usage {}: overlapped communication does not slow computing",
                    network.processor_usage
                ));
            }
        }
        lines
    }
}
