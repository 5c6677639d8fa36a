//! AIConfigurator (NVIDIA, `ai-dynamo/aiconfigurator`): reads the YAML description of a system
//! (`src/aiconfigurator/systems/*.yaml`). Its GPU becomes a chip, and its nodes and racks become a fabric.
//!
//! AIConfigurator prices products, attention and collectives from measured tables beside the file, and by the peaks of
//! the file where a table has no entry. coplace does not read the tables. Products reach their peak. Memory operations
//! reach the file's fraction of the bandwidth after its constant latency (`PerfDatabase.query_mem_op`), and a message
//! takes the file's latency once (`query_p2p`). The file states neither energy nor the host's capacity.

use crate::rated_chip::RatedChip;
use serde::Deserialize;
use sim::files::FileError;
use sim::hardware::{Calibration, ChipTemplate, FileFault, PerDataType};
use sim::network::{Fabric, Tier, Topology};
use sim::units::{Bytes, BytesPerSecond, Hertz, Seconds, Watts};
use std::collections::BTreeMap;

/// The clock that rates per cycle refer to; only the product of clock and rate matters.
const CLOCK: Hertz = Hertz(1e9);
/// Lanes of a vector engine that never limits, at 131 TFLOP/s: AIConfigurator prices vector work by its bytes.
const LANES: u32 = 1 << 17;
/// The usual software stack of NVIDIA's GPUs in training.
const USUAL_STACK: &str = "megatron_core";

/// A system of AIConfigurator.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AiConfiguratorSystem {
    /// Folder of the measured tables; its last part names the system.
    data_dir: String,
    gpu: Gpu,
    node: Node,
    /// Memory of collective libraries and of the runtime. Neither the chip nor the fabric uses it, because engines and
    /// stacks state their own values.
    #[serde(default)]
    misc: Option<Misc>,
    #[serde(skip)]
    file: String,
}

/// Figures of the GPU in bytes, bytes per second, operations per second, seconds and watts.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Gpu {
    mem_bw: f64,
    #[serde(default = "one")]
    mem_bw_empirical_scaling_factor: f64,
    #[serde(default)]
    mem_empirical_constant_latency: f64,
    mem_capacity: f64,
    float32_tc_flops: Option<f64>,
    float16_tc_flops: Option<f64>,
    bfloat16_tc_flops: Option<f64>,
    int8_tc_flops: Option<f64>,
    fp8_tc_flops: Option<f64>,
    fp4_tc_flops: Option<f64>,
    power: Option<f64>,
    /// The GPU's generation, by which the measured tables name kernels.
    #[serde(rename = "sm_version")]
    _sm_version: Option<u32>,
}

/// Figures of the node and its networks in devices, bytes per second and seconds.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Node {
    num_gpus_per_node: u32,
    num_gpus_per_rack: Option<u32>,
    intra_node_bw: f64,
    inter_node_bw: f64,
    inter_rack_bw: Option<f64>,
    pcie_bw: Option<f64>,
    #[serde(default)]
    p2p_latency: f64,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
struct Misc {
    #[serde(default)]
    nccl_mem: BTreeMap<u32, f64>,
    other_mem: Option<f64>,
    #[serde(rename = "nccl_version")]
    _nccl_version: Option<String>,
}

fn one() -> f64 {
    1.0
}

impl AiConfiguratorSystem {
    /// Reads a system; `file` names it in errors.
    ///
    /// # Errors
    /// Malformed YAML, a missing or unknown key, a figure out of range.
    pub fn from_yaml_str(text: &str, file: &str) -> Result<Self, FileError> {
        let fault = |faults| FileError { file: file.to_owned(), faults };
        let system: Self = serde_yaml_ng::from_str(text).map_err(|why| {
            let cure = "give a system of AIConfigurator (src/aiconfigurator/systems/*.yaml)";
            fault(vec![FileFault::new("text", "malformed", why.to_string(), cure)])
        })?;
        let faults: Vec<FileFault> = system.figures_with_ranges().into_iter().filter_map(check_range).collect();
        if faults.is_empty() { Ok(Self { file: file.to_owned(), ..system }) } else { Err(fault(faults)) }
    }

    fn figures_with_ranges(&self) -> Vec<(&'static str, f64, f64, f64)> {
        let Self { gpu, node, misc, .. } = self;
        let mut figures = vec![
            ("gpu.mem_bw", gpu.mem_bw, 1e9, 1e15),
            ("gpu.mem_bw_empirical_scaling_factor", gpu.mem_bw_empirical_scaling_factor, 0.01, 1.0),
            ("gpu.mem_empirical_constant_latency", gpu.mem_empirical_constant_latency, 0.0, 1e-3),
            ("gpu.mem_capacity", gpu.mem_capacity, 1e9, 1e13),
            ("node.num_gpus_per_node", f64::from(node.num_gpus_per_node), 1.0, 4096.0),
            ("node.intra_node_bw", node.intra_node_bw, 1e6, 1e14),
            ("node.inter_node_bw", node.inter_node_bw, 1e6, 1e14),
            ("node.p2p_latency", node.p2p_latency, 0.0, 1e-2),
        ];
        let optional = [
            ("gpu.float32_tc_flops", gpu.float32_tc_flops, 1e9, 1e18),
            ("gpu.float16_tc_flops", gpu.float16_tc_flops, 1e9, 1e18),
            ("gpu.bfloat16_tc_flops", gpu.bfloat16_tc_flops, 1e9, 1e18),
            ("gpu.int8_tc_flops", gpu.int8_tc_flops, 1e9, 1e18),
            ("gpu.fp8_tc_flops", gpu.fp8_tc_flops, 1e9, 1e18),
            ("gpu.fp4_tc_flops", gpu.fp4_tc_flops, 1e9, 1e18),
            ("gpu.power", gpu.power, 1.0, 1e5),
            ("node.num_gpus_per_rack", node.num_gpus_per_rack.map(f64::from), 1.0, 65536.0),
            ("node.inter_rack_bw", node.inter_rack_bw, 1e6, 1e14),
            ("node.pcie_bw", node.pcie_bw, 1e6, 1e13),
            ("misc.other_mem", misc.as_ref().and_then(|misc| misc.other_mem), 0.0, 1e12),
        ];
        figures.extend(optional.into_iter().filter_map(|(key, value, min, max)| Some((key, value?, min, max))));
        let largest = misc.iter().flat_map(|misc| misc.nccl_mem.values()).copied();
        figures.extend(largest.map(|bytes| ("misc.nccl_mem", bytes, 0.0, 1e12)));
        figures
    }

    /// Returns the system's name: the last part of the folder of its tables.
    #[must_use]
    pub fn name(&self) -> &str {
        self.data_dir.rsplit('/').next().unwrap_or(&self.data_dir)
    }

    /// Returns the GPU as a chip. The system's fabric is its usual fabric.
    ///
    /// # Errors
    /// The file has no rate of products in 16 bits, or figures that are impossible for a chip.
    pub fn to_chip(&self) -> Result<ChipTemplate, FileError> {
        let gpu = &self.gpu;
        let faulty = |faults| FileError { file: self.file.clone(), faults };
        let Some(half) = gpu.bfloat16_tc_flops.or(gpu.float16_tc_flops) else {
            let limit = "the rate of products in 16 bits is needed";
            return Err(faulty(vec![FileFault::new("gpu.bfloat16_tc_flops", "nothing", limit, "add it")]));
        };
        // A multiply-accumulate is two operations.
        let per_cycle = |flops: f64| flops / 2.0 / CLOCK.0;
        let rates = PerDataType {
            fp32: gpu.float32_tc_flops.map(per_cycle),
            bf16: Some(per_cycle(half)),
            fp16: Some(per_cycle(gpu.float16_tc_flops.unwrap_or(half))),
            fp8: gpu.fp8_tc_flops.map(per_cycle),
            int8: gpu.int8_tc_flops.map(per_cycle),
            nvfp4: gpu.fp4_tc_flops.map(per_cycle),
            ..PerDataType::default()
        };
        let chip = RatedChip {
            name: self.name(),
            file: &self.file,
            tool: "AIConfigurator",
            noun: "GPU",
            clock: CLOCK,
            rates,
            lanes: LANES,
            memory_name: "memory",
            capacity: Bytes(gpu.mem_capacity as u64),
            bandwidth: BytesPerSecond(gpu.mem_bw),
            host: None,
            collectives_overlap: true,
            calibration: Calibration {
                hbm_achieved_fraction: gpu.mem_bw_empirical_scaling_factor,
                launch_overhead: Seconds(gpu.mem_empirical_constant_latency),
                ..Calibration::default()
            },
            tdp: gpu.power.map(Watts),
            usual_stack: USUAL_STACK,
            usual_fabric: Some(self.file.clone()),
        };
        chip.to_template()
    }

    /// Returns the system's fabric: tiers of switches inside a node, inside a rack if racks hold several nodes, and
    /// beyond.
    #[must_use]
    pub fn to_fabric(&self) -> Fabric {
        let node = &self.node;
        let tier = |name: &str, devices, bandwidth: f64| Tier {
            name: name.to_owned(),
            devices,
            topology: Topology::Switch,
            bandwidth: BytesPerSecond(bandwidth),
            achieved_fraction: 1.0,
            operation: Seconds(node.p2p_latency),
            step: Seconds::ZERO,
            chunk: Seconds::ZERO,
            final_copy: BytesPerSecond(f64::INFINITY),
            low_latency: None,
            line: None,
            exchange: None,
            ring_step: None,
            group_bandwidth: Vec::new(),
            in_network: None,
            source: self.file.clone(),
        };
        let mut tiers = vec![tier("node", node.num_gpus_per_node, node.intra_node_bw)];
        let rack = node.num_gpus_per_rack.filter(|rack| *rack > node.num_gpus_per_node);
        tiers.extend(rack.map(|rack| tier("rack", rack, node.inter_node_bw)));
        let beyond = rack.and(node.inter_rack_bw).unwrap_or(node.inter_node_bw);
        tiers.push(tier("cluster", u32::MAX, beyond));
        Fabric {
            name: self.name().to_owned(),
            description: format!("nodes of AIConfigurator's system {}", self.file),
            launch: Seconds::ZERO,
            tiers,
            fitted_on: String::new(),
            joins: Vec::new(),
            system: Default::default(),
        }
    }

    /// Returns the parts of the file that neither the chip nor the fabric models, one line each.
    #[must_use]
    pub fn list_unmodelled(&self) -> Vec<String> {
        let mut lines =
            vec![format!("data_dir {}: its measured tables are not read, products reach their peak", self.data_dir)];
        lines.extend(
            self.node
                .pcie_bw
                .map(|_| "node.pcie_bw: the host's capacity is not stated, so nothing can be kept there".to_owned()),
        );
        lines.extend(
            self.misc
                .as_ref()
                .map(|_| "misc: libraries take the memory that the engine's or the stack's file states".to_owned()),
        );
        lines
    }
}

/// Returns the fault of a figure out of its range; `None` if it is in range.
fn check_range((key, value, min, max): (&'static str, f64, f64, f64)) -> Option<FileFault> {
    let limit = format!("must be from {min:e} to {max:e}, in bytes, operations, seconds or watts");
    (!(min..=max).contains(&value)).then(|| FileFault::new(key, value.to_string(), limit, "correct it"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
    use super::*;
    use sim::kernel::{Collective, CollectiveKind, DataType, RankGroup};

    const H100: &str = include_str!("../tests/aiconfigurator/h100_sxm.yaml");

    fn read(text: &str) -> AiConfiguratorSystem {
        AiConfiguratorSystem::from_yaml_str(text, "h100_sxm.yaml").unwrap()
    }

    #[test]
    fn a_system_is_a_chip_and_a_fabric() {
        let system = read(H100);
        let chip = system.to_chip().unwrap().accelerator;
        assert_eq!(chip.name, "h100_sxm");
        let peak = |data_type| chip.peak_flops(data_type).map(|peak| peak.0 / 1e12);
        assert!((peak(DataType::Bf16).unwrap() - 989.0).abs() < 1e-6);
        assert!((peak(DataType::Fp8).unwrap() - 1978.0).abs() < 1e-6 && peak(DataType::Nvfp4).is_none());
        assert_eq!((chip.hbm.capacity, chip.hbm.read_bandwidth.0), (Bytes(85_899_345_920), 3.35e12));
        assert_eq!(chip.published.tdp, Some(Watts(700.0)));
        let fabric = system.to_fabric();
        assert_eq!((fabric.fast_domain_devices(), fabric.tiers.len()), (8, 2));
        // A gigabyte takes a latency of 10 us, plus its bytes over 450 GB/s inside a node or 25 GB/s between nodes.
        let send = |stride| {
            let group = RankGroup { ranks: 2, stride };
            let sent = Collective { kind: CollectiveKind::SendRecv, bytes: Bytes(1_000_000_000), group };
            fabric.cost_of_collective(&sent).latency.0
        };
        assert!((send(1) - (1e-5 + 1.0 / 450.0)).abs() < 1e-9, "{}", send(1));
        assert!((send(8) - (1e-5 + 1.0 / 25.0)).abs() < 1e-9, "{}", send(8));
        assert_eq!(system.list_unmodelled().len(), 3);
        // Racks that join several nodes are a tier of their own.
        let rack = H100
            .replace("num_gpus_per_node: 8", "num_gpus_per_node: 4\n  num_gpus_per_rack: 72\n  inter_rack_bw: 1e10");
        let tiers: Vec<(u32, f64)> = read(&rack).to_fabric().tiers.iter().map(|t| (t.devices, t.bandwidth.0)).collect();
        assert_eq!(tiers, [(4, 4.5e11), (72, 2.5e10), (u32::MAX, 1e10)]);
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for (from, to, parts) in [
            ("  power: 700", "  power: 700\n  l2_capacity: 1", &["l2_capacity", "mem_bw"][..]),
            ("  mem_bw: 3350000000000\n", "", &["mem_bw", "systems/*.yaml"]),
            ("mem_bw: 3350000000000", "mem_bw: 3", &["gpu.mem_bw", "1e9"]),
            ("mem_bw: 3350000000000", "mem_bw: fast", &["mem_bw", "fast"]),
            ("float16_tc_flops", "float32_tc_flops", &["gpu.bfloat16_tc_flops", "16 bits"]),
            ("intra_node_bw: 450000000000", "intra_node_bw: -1", &["node.intra_node_bw", "1e6"]),
            ("gpu:", "gpu: [", &["malformed"]),
        ] {
            let text = H100.replace(from, to);
            let error = AiConfiguratorSystem::from_yaml_str(&text, "x.yaml").and_then(|system| system.to_chip());
            let error = error.unwrap_err().to_string();
            assert!(parts.iter().all(|part| error.contains(part)), "{from}: {error}");
        }
    }
}
