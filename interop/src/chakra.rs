//! Writes a micro-batch on the slowest stage as a Chakra execution trace, kernel by kernel. Simulators such as
//! ASTRA-sim replay it.
//!
//! The schema is MLCommons Chakra's `schema/protobuf/et_def.proto` (github.com/mlcommons/chakra, commit 6dc63e1;
//! Sridharan et al., *Chakra: Advancing Performance Benchmarking and Co-design using Standardized Execution Traces*,
//! 2023). A file holds a `GlobalMetadata` and then `Node`s, each after its length as a varint. Attributes have the
//! names and types that Chakra's feeder reads.

use prost::Message;
use sim::kernel::{CollectiveKind, Kernel, RankGroup};
use sim::units::Seconds;
use std::collections::{BTreeMap, BTreeSet};
use step::KernelDetail;
use step::explain::{Explanation, PassDetail};

/// The schema version that the trace declares, as Chakra's own generators write it.
const SCHEMA: &str = "0.0.4";
/// Times closer than this count as equal: a thousandth of the schedule's tick of a picosecond.
const MOMENT: f64 = 1e-15;

/// `ChakraProtoMsg.GlobalMetadata`.
#[derive(Clone, PartialEq, Message)]
struct GlobalMetadata {
    #[prost(string, tag = "1")]
    version: String,
    #[prost(message, repeated, tag = "2")]
    attr: Vec<Attribute>,
}

/// `ChakraProtoMsg.Node`.
#[derive(Clone, PartialEq, Message)]
struct Node {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(enumeration = "NodeType", tag = "3")]
    r#type: i32,
    #[prost(uint64, repeated, tag = "5")]
    data_deps: Vec<u64>,
    #[prost(uint64, tag = "6")]
    start_time_micros: u64,
    #[prost(uint64, tag = "7")]
    duration_micros: u64,
    #[prost(message, repeated, tag = "10")]
    attr: Vec<Attribute>,
}

/// `ChakraProtoMsg.AttributeProto`.
#[derive(Clone, PartialEq, Message)]
struct Attribute {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(oneof = "Value", tags = "7, 9, 13, 27, 29")]
    value: Option<Value>,
}

/// The types of the written attributes.
#[derive(Clone, PartialEq, prost::Oneof)]
enum Value {
    #[prost(int32, tag = "7")]
    Int32(i32),
    #[prost(int64, tag = "9")]
    Int64(i64),
    #[prost(uint64, tag = "13")]
    Uint64(u64),
    #[prost(bool, tag = "27")]
    Bool(bool),
    #[prost(string, tag = "29")]
    Text(String),
}

/// `ChakraProtoMsg.NodeType`, restricted to the written types.
#[derive(Debug, Clone, Copy, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
enum NodeType {
    Invalid = 0,
    MemLoad = 2,
    MemStore = 3,
    Comp = 4,
    CommSend = 5,
    CommColl = 7,
}

/// Writes the trace of a micro-batch on the slowest stage of a step.
///
/// Every pass appears as often as a device of the stage runs it: forward passes in the order of the model, backward
/// passes in reverse. A kernel depends on the kernels that ended last before its start. Times are microseconds from the
/// micro-batch's start. Copies to the host are stores in forward passes and loads in backward passes.
#[must_use]
pub fn write_execution_trace(title: &str, why: &Explanation) -> Vec<u8> {
    let forward = why.passes.iter().filter(|pass| pass.pass == "forward");
    let backward = why.passes.iter().filter(|pass| pass.pass != "forward").rev();
    let metadata = GlobalMetadata {
        version: SCHEMA.to_owned(),
        attr: vec![
            text_attribute("title", title),
            text_attribute("schema", SCHEMA),
            Attribute { name: "stage".into(), value: Some(Value::Uint64(why.slowest_stage.into())) },
        ],
    };
    let mut file = metadata.encode_length_delimited_to_vec();
    let mut writer = Writer { at: Seconds::ZERO, next: 1, last: Vec::new(), groups: groups_of(why) };
    for pass in forward.chain(backward) {
        for time in 0..pass.count {
            for node in writer.write_pass(pass, time) {
                file.extend(node.encode_length_delimited_to_vec());
            }
        }
    }
    file
}

/// Writes the groups of ranks that a trace's collectives name, as JSON for ASTRA-sim's `--comm-group-configuration`:
/// under the name of each group, the devices of the group that holds device 0. Source: `astra-sim/workload/Workload.cc`
/// of astra-sim/astra-sim at commit 0383c203.
#[must_use]
pub fn write_rank_groups(why: &Explanation) -> String {
    let members = |group: &RankGroup| (0..group.ranks).map(|rank| u64::from(rank) * u64::from(group.stride)).collect();
    let groups: BTreeMap<String, Vec<u64>> =
        groups_of(why).iter().enumerate().map(|(at, group)| (name_of_group(at), members(group))).collect();
    serde_json::json!(groups).to_string()
}

/// Returns the distinct groups of all collectives, sorted.
fn groups_of(why: &Explanation) -> Vec<RankGroup> {
    let kernels = why.passes.iter().flat_map(|pass| &pass.kernels);
    let found: BTreeSet<RankGroup> = kernels
        .filter_map(|kernel| match kernel.kernel {
            Kernel::Collective(collective) => Some(collective.group),
            _ => None,
        })
        .collect();
    found.into_iter().collect()
}

/// Returns the name of the group at place `at`, counted from 1. ASTRA-sim's names are numbers, and 0 means all ranks.
fn name_of_group(at: usize) -> String {
    (at + 1).to_string()
}

/// The state of a trace being written.
struct Writer {
    /// Start of the next pass.
    at: Seconds,
    /// Number of the next node.
    next: u64,
    /// The nodes on which the next pass depends.
    last: Vec<u64>,
    /// The groups of ranks, in the order of their names.
    groups: Vec<RankGroup>,
}

impl Writer {
    /// Returns the nodes of the `time`-th run of a pass, and moves on to the next pass.
    fn write_pass(&mut self, pass: &PassDetail, time: u64) -> Vec<Node> {
        let kernels: Vec<&KernelDetail> = pass.kernels.iter().filter(|kernel| kernel.latency > Seconds::ZERO).collect();
        let first = self.next;
        let number = |at: usize| first + at as u64;
        let mut nodes = Vec::with_capacity(kernels.len());
        for (at, kernel) in kernels.iter().enumerate() {
            let before = latest_ended(&kernels, kernel.start.0);
            let (start, end) = (to_microseconds(self.at + kernel.start), to_microseconds(self.at + kernel.end_time()));
            let (kind, attr) = node_attributes(kernel, pass, &self.groups);
            nodes.push(Node {
                id: number(at),
                name: format!("{} {time} {}: {}", pass.segment, pass.pass, kernel.name),
                r#type: kind.into(),
                data_deps: if before.is_empty() { self.last.clone() } else { before.into_iter().map(number).collect() },
                start_time_micros: start,
                duration_micros: end - start,
                attr,
            });
        }
        if !kernels.is_empty() {
            self.last = latest_ended(&kernels, f64::INFINITY).into_iter().map(number).collect();
        }
        self.next += kernels.len() as u64;
        self.at += pass.time;
        nodes
    }
}

/// Returns the places of the kernels that a kernel starting at `moment` depends on: those that ended by `moment`, but
/// not before the last of the ended kernels started. The other ended kernels precede that last one.
fn latest_ended(kernels: &[&KernelDetail], moment: f64) -> Vec<usize> {
    let ended = || kernels.iter().enumerate().filter(|(_, kernel)| kernel.end_time().0 <= moment + MOMENT);
    let last = ended().map(|(_, kernel)| kernel.start.0).fold(f64::NEG_INFINITY, f64::max);
    ended().filter(|(_, kernel)| kernel.end_time().0 > last + MOMENT).map(|(at, _)| at).collect()
}

/// Returns the schema's type of a kernel, and the attributes that Chakra's feeder reads.
fn node_attributes(kernel: &KernelDetail, pass: &PassDetail, groups: &[RankGroup]) -> (NodeType, Vec<Attribute>) {
    let integer = |name: &str, value: u64| Attribute {
        name: name.into(),
        value: Some(Value::Int64(i64::try_from(value).unwrap_or(i64::MAX))),
    };
    let size = |value: u64| Attribute { name: "tensor_size".into(), value: Some(Value::Uint64(value)) };
    let mut attributes = vec![Attribute { name: "is_cpu_op".into(), value: Some(Value::Bool(false)) }];
    match kernel.kernel {
        Kernel::Collective(collective) => {
            attributes.push(integer("comm_size", collective.bytes.0));
            attributes.push(integer("group_ranks", collective.group.ranks.into()));
            attributes.push(integer("group_stride", collective.group.stride.into()));
            let named = groups.iter().position(|group| *group == collective.group).map(name_of_group);
            attributes.extend(named.map(|name| text_attribute("pg_name", &name)));
            let rank = |name: &str, value: u32| Attribute {
                name: name.into(),
                value: Some(Value::Int32(i32::try_from(value).unwrap_or(i32::MAX))),
            };
            match comm_type(collective.kind) {
                Some(number) => {
                    attributes.push(integer("comm_type", number));
                    (NodeType::CommColl, attributes)
                }
                None => {
                    attributes.extend([rank("comm_src", 0), rank("comm_dst", collective.group.stride)]);
                    (NodeType::CommSend, attributes)
                }
            }
        }
        Kernel::Transfer(transfer) => {
            attributes.push(size(transfer.bytes.0));
            (if pass.pass == "forward" { NodeType::MemStore } else { NodeType::MemLoad }, attributes)
        }
        _ => {
            // Operations of matrix products, as "model FLOPs" count them.
            attributes.push(integer("num_ops", kernel.kernel.flops().as_f64() as u64));
            attributes.push(size(kernel.hbm.0));
            (NodeType::Comp, attributes)
        }
    }
}

/// Returns the number of a collective in `ChakraProtoMsg.CollectiveCommType`; `None` for point-to-point messages.
fn comm_type(kind: CollectiveKind) -> Option<u64> {
    match kind {
        CollectiveKind::AllReduce => Some(0),
        CollectiveKind::AllGather => Some(2),
        CollectiveKind::Broadcast => Some(5),
        CollectiveKind::AllToAll | CollectiveKind::Dispatch(_) => Some(6),
        CollectiveKind::ReduceScatter => Some(7),
        CollectiveKind::SendRecv => None,
    }
}

fn text_attribute(name: &str, value: &str) -> Attribute {
    Attribute { name: name.into(), value: Some(Value::Text(value.into())) }
}

/// Rounds a moment to whole microseconds. Starts and ends are rounded, and durations are their differences, so that a
/// long trace does not drift.
fn to_microseconds(moment: Seconds) -> u64 {
    (moment.0 * 1e6).round() as u64
}

#[cfg(test)]
#[path = "chakra_tests.rs"]
mod tests;
